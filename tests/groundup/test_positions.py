import cmath
import math
import os
import subprocess
import sys

import pytest
import torch

from groundup.positions import (
    LearnedPositions,
    Rotary,
    SinusoidalPositions,
    alibi_bias,
    alibi_slopes,
    permute_projection,
    rotary_turns,
    rotate,
    rotate_in_space,
    sinusoidal_table,
    to_half_split,
    to_interleaved,
    turn,
)

LAYOUTS = ["interleaved", "half_split"]

# By hand


def test_sinusoidal_table_by_hand():
    """Two clocks: one radian per token, and a hundredth of one. Position 0 comes first."""
    expected = [
        [0, 1, 0, 1],
        [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)],
        [math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)],
    ]
    torch.testing.assert_close(sinusoidal_table(3, 4), torch.tensor(expected))


def test_rotation_by_hand():
    """Token 1 turns by one radian, token 2 by two; the slow pair by a hundredth of that."""
    x = torch.tensor([[1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 1.0]])
    expected = [
        [math.cos(1), math.sin(1), -math.sin(0.01), math.cos(0.01)],
        [math.cos(2), math.sin(2), -math.sin(0.02), math.cos(0.02)],
    ]
    torch.testing.assert_close(rotate(x, torch.tensor([1, 2])), torch.tensor(expected))


def test_rotation_of_split_halves_by_hand():
    """The same turns as above, with the fast pair in features 0 and 2, the slow one in 1 and 3."""
    x = torch.tensor([[1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 1.0]])
    expected = [
        [math.cos(1), -math.sin(0.01), math.sin(1), math.cos(0.01)],
        [math.cos(2), -math.sin(0.02), math.sin(2), math.cos(0.02)],
    ]
    turned = rotate(x, torch.tensor([1, 2]), layout="half_split")
    torch.testing.assert_close(turned, torch.tensor(expected))


def test_turns_by_hand():
    """A quarter turn, and none."""
    x, cos, sin = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[0.0, 1.0]]), [[1.0, 0.0]]
    sin = torch.tensor(sin)
    assert turn(x, cos, sin).tolist() == [[-2.0, 1.0, 3.0, 4.0]]
    assert turn(x, cos, sin, "half_split").tolist() == [[-3.0, 2.0, 1.0, 4.0]]


def test_rotation_in_a_plane_by_hand():
    """The first pair turns by the first coordinate, the second pair by the second."""
    x = torch.tensor([[1.0, 0.0, 1.0, 0.0]])
    turned = rotate_in_space(x, torch.tensor([[0.5, -2.0]]))
    expected = [[math.cos(0.5), math.sin(0.5), math.cos(2), -math.sin(2)]]
    torch.testing.assert_close(turned, torch.tensor(expected))


def test_layouts_by_hand():
    assert to_half_split(torch.tensor([0.0, 1, 2, 3, 4, 5])).tolist() == [0, 2, 4, 1, 3, 5]
    assert to_interleaved(torch.tensor([0.0, 1, 2, 3, 4, 5])).tolist() == [0, 3, 1, 4, 2, 5]
    rows = torch.arange(8.0)  # two heads of four
    assert permute_projection(rows, 2, "half_split").tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_alibi_slopes_by_hand():
    """Eight heads as in the paper; twelve take four from sixteen heads, as in its code."""
    eight = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert alibi_slopes(8).tolist() == eight
    assert alibi_slopes(1).tolist() == [1 / 256]
    four = [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    torch.testing.assert_close(alibi_slopes(12), torch.tensor(eight + four))


def test_alibi_bias_by_hand():
    bias = alibi_bias(2, 3)  # slopes 1/16 and 1/256
    assert (bias[0] * 16).tolist() == [[0, -1, -2], [-1, 0, -1], [-2, -1, 0]]
    assert (bias[1] * 256).tolist() == [[0, -1, -2], [-1, 0, -1], [-2, -1, 0]]
    assert (alibi_bias(2, 2, 3)[0] * 16).tolist() == [[-1, 0, -1], [-2, -1, 0]]


def test_learned_positions_are_rows_of_their_table():
    positions = LearnedPositions(max_len=7, d_model=3)
    rows = torch.tensor([[5, 0], [2, 6]])
    assert torch.equal(positions(rows), positions.table.weight[rows])


def test_sinusoidal_positions_are_rows_of_the_table():
    positions = SinusoidalPositions(max_len=7, d_model=4)
    found = positions(torch.tensor([5, 0, 2]))
    assert torch.equal(found, sinusoidal_table(7, 4)[[5, 0, 2]])


# Against the formulas, entry by entry, with Python's own arithmetic


def test_every_entry_of_the_table_follows_the_paper():
    table = sinusoidal_table(11, 6)
    for position in range(11):
        for i in range(3):
            angle = position / 10_000 ** (2 * i / 6)
            assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-7)
            assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-7)


def test_late_positions_are_as_exact_as_early_ones():
    late = 100_003
    angle = late / 10_000 ** (2 / 6)
    row = sinusoidal_table(late + 1, 6)[late]
    assert row[0].item() == pytest.approx(math.sin(late), abs=1e-7)
    assert row[3].item() == pytest.approx(math.cos(angle), abs=1e-7)


@pytest.mark.parametrize("base", [10_000.0, 7.0])
def test_rotation_is_multiplication_by_a_complex_number(normal, base):
    x, positions = normal(3, 6), torch.tensor([13, 0, 4])
    turned = rotate(x, positions, base)
    for token, position in enumerate(positions.tolist()):
        for i in range(3):
            number = complex(*x[token, 2 * i : 2 * i + 2].tolist())
            number *= cmath.exp(1j * position / base ** (2 * i / 6))
            assert turned[token, 2 * i].item() == pytest.approx(number.real)
            assert turned[token, 2 * i + 1].item() == pytest.approx(number.imag)


# Against another library


def test_split_halves_turn_as_in_hugging_face_s_llama(normal):
    from transformers.models.llama import modeling_llama as llama

    query, key, positions = normal(2, 3, 5, 8), normal(2, 7, 5, 8), torch.tensor([[4, 0, 9, 2, 2]])
    cos, sin = rotary_turns(positions, 8, dtype=torch.float64)
    doubled = (torch.cat((table, table), dim=-1) for table in (cos, sin))
    theirs = llama.apply_rotary_pos_emb(query, key, *doubled)
    for x, their in zip((query, key), theirs, strict=True):
        torch.testing.assert_close(turn(x, cos, sin, "half_split"), their)


def test_the_angles_are_those_of_hugging_face_s_llama():
    from transformers.models.llama import modeling_llama as llama

    config = llama.LlamaConfig(
        hidden_size=24,
        num_attention_heads=3,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    )
    positions = torch.arange(13)
    cos, sin = llama.LlamaRotaryEmbedding(config)(torch.zeros(1), positions[None])
    for ours, theirs in zip(rotary_turns(positions, 8, base=500.0), (cos, sin), strict=True):
        torch.testing.assert_close(torch.cat((ours, ours), dim=-1)[None], theirs)


@pytest.mark.parametrize("num_heads", [1, 2, 3, 6, 7, 12, 16, 25])
def test_alibi_slopes_are_those_of_hugging_face_s_bloom(num_heads):
    from transformers.models.bloom import modeling_bloom as bloom

    theirs = bloom.build_alibi_tensor(torch.ones(1, 2), num_heads, torch.float32)
    torch.testing.assert_close(alibi_slopes(num_heads), theirs[:, 0, 1])


# Laws


def test_products_of_table_rows_depend_on_distance_alone():
    """P Pᵀ is Toeplitz: constant along each diagonal, and different between diagonals."""
    table = sinusoidal_table(13, 8).double()
    products = table @ table.T
    torch.testing.assert_close(products[1:, 1:], products[:-1, :-1], atol=1e-6, rtol=0)
    assert products[0].diff().abs().min() > 1e-3


def test_a_shift_is_the_same_rotation_everywhere():
    table, shift = sinusoidal_table(13, 6).double(), 5
    for i in range(3):
        angle = shift / 10_000 ** (2 * i / 6)
        turn = torch.tensor(
            [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]],
            dtype=torch.float64,
        )
        clock = table[:, 2 * i : 2 * i + 2]  # (sine, cosine) of every position
        torch.testing.assert_close(clock[shift:], clock[:-shift] @ turn, atol=1e-6, rtol=0)


def test_rotated_scores_depend_on_distance_alone(normal):
    query, key = normal(2, 5, 6), normal(2, 5, 6)
    positions = torch.arange(5)

    def scores(query_positions, key_positions):
        return rotate(query, query_positions) @ rotate(key, key_positions).transpose(-2, -1)

    here = scores(positions, positions)
    torch.testing.assert_close(scores(positions + 1009, positions + 1009), here)
    assert not torch.allclose(scores(positions + 1, positions), here)


def test_rotation_keeps_lengths_and_leaves_position_zero_alone(normal):
    x = normal(2, 3, 7, 4)
    turned = rotate(x, torch.arange(7))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(turned[:, :, 0], x[:, :, 0])
    assert (turned[:, :, 1:] - x[:, :, 1:]).abs().amax(dim=-1).min() > 0.01


def test_each_sequence_may_have_its_own_positions(normal):
    x = normal(2, 3, 5, 4)
    positions = torch.tensor([[0, 1, 2, 3, 4], [7, 3, 11, 2, 2]])
    turned = rotate(x, positions[:, None, :])
    for sequence in range(2):
        torch.testing.assert_close(turned[sequence], rotate(x[sequence], positions[sequence]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_does_not_blur_late_positions(normal, dtype):
    """The nearest number in bfloat16 to 4001 is 4000: an angle worked out there is a radian off."""
    x, positions = normal(3, 6, dtype=dtype), torch.tensor([4001, 2003, 997])
    turned = rotate(x, positions)
    assert turned.dtype == dtype
    exact = rotate(x.double(), positions)
    torch.testing.assert_close(turned.double(), exact, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_layouts_give_the_same_scores(normal, layout):
    """Move the features, turn by the other layout, move back: nothing has happened."""
    move, back = (to_half_split, to_interleaved)[:: 1 if layout == "half_split" else -1]
    other = next(name for name in LAYOUTS if name != layout)
    x, y, positions = normal(2, 5, 6), normal(2, 5, 6), torch.tensor([3, 0, 11, 7, 2])
    assert torch.equal(back(move(x)), x) and not torch.equal(move(x), x)

    def scores(layout, *vectors):
        query, key = (rotate(v, positions, layout=layout) for v in vectors)
        return query @ key.transpose(-2, -1)

    torch.testing.assert_close(
        back(rotate(move(x), positions, layout=layout)), rotate(x, positions, layout=other)
    )
    torch.testing.assert_close(scores(layout, move(x), move(y)), scores(other, x, y))
    assert not torch.allclose(scores(layout, x, y), scores(other, x, y))


@pytest.mark.parametrize("to", LAYOUTS)
def test_a_moved_projection_gives_moved_features(normal, to):
    """Three heads of four from five features: each head is moved by itself, bias included."""
    weight, bias, x = normal(12, 5), normal(12), normal(2, 7, 5)
    move = to_half_split if to == "half_split" else to_interleaved
    moved = x @ permute_projection(weight, 3, to).T + permute_projection(bias, 3, to)
    heads = (x @ weight.T + bias).unflatten(-1, (3, 4))
    torch.testing.assert_close(moved.unflatten(-1, (3, 4)), move(heads))
    back = next(name for name in LAYOUTS if name != to)
    assert torch.equal(permute_projection(permute_projection(weight, 3, to), 3, back), weight)


def test_the_two_ways_to_multiply_agree(normal):
    """Features whose pairs do not lie at even places in memory cannot be read as complex."""
    memory = normal(2, 5, 9)
    odd_places, even_places = memory[..., 1:7], memory[..., 1:7].contiguous()
    positions = torch.arange(5)
    torch.testing.assert_close(rotate(odd_places, positions), rotate(even_places, positions))
    by_columns = normal(2, 6, 5).transpose(-2, -1)
    every_other = normal(2, 5, 12)[..., ::2]
    for x in (by_columns, every_other):
        torch.testing.assert_close(rotate(x, positions), rotate(x.contiguous(), positions))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("places", [slice(0, 4), slice(1, 5)])
def test_gradients_of_a_turn_agree_with_finite_differences(normal, layout, places):
    memory, positions = normal(2, 3, 6).requires_grad_(), torch.tensor([2, 0, 5])
    assert torch.autograd.gradcheck(
        lambda x: rotate(x[..., places], positions, layout=layout), (memory,)
    )


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_scores_in_space_depend_on_differences_of_coordinates(normal, axes):
    """Points anywhere, not on a grid; moving the origin changes nothing, moving a point does."""
    query, key = normal(2, 3, 5, 12), normal(2, 3, 7, 12)
    q_places, k_places, shift = 3 * normal(2, 1, 5, axes), 3 * normal(2, 1, 7, axes), normal(axes)

    def scores(q_places, k_places):
        turned = rotate_in_space(key, k_places)
        return rotate_in_space(query, q_places) @ turned.transpose(-2, -1)

    here = scores(q_places, k_places)
    torch.testing.assert_close(scores(q_places + shift, k_places + shift), here)
    for axis in range(axes):
        moved = q_places.clone()
        moved[..., axis] += 0.5
        assert not torch.allclose(scores(moved, k_places), here)


def test_in_space_each_axis_turns_its_own_part(normal):
    x, places = normal(5, 12), 3 * normal(5, 3)
    turned = rotate_in_space(x, places)
    for axis in range(3):
        own = slice(4 * axis, 4 * axis + 4)
        alone = rotate_in_space(x[:, own], places[:, [axis]])
        torch.testing.assert_close(turned[:, own], alone)
    line = torch.tensor([3, 0, 11, 7, 2])
    torch.testing.assert_close(rotate_in_space(x, line[:, None]), rotate(x, line))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_cast", [False, True])
def test_the_kept_tables_turn_as_the_function_does(normal, layout, is_cast):
    rotary = Rotary(13, 6, base=100.0, layout=layout)
    rotary = rotary.double() if is_cast else rotary
    x = normal(2, 3, 5, 6, dtype=rotary.cos.dtype)
    for start in (0, 4, 8):
        expected = rotate(x, torch.arange(start, start + 5), base=100.0, layout=layout)
        torch.testing.assert_close(rotary(x, start=start), expected)
    places = torch.tensor([[3, 0, 12, 7, 7], [1, 2, 3, 4, 5]])[:, None]
    expected = rotate(x, places, base=100.0, layout=layout)
    torch.testing.assert_close(rotary(x, places), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_casting_a_model_does_not_blur_the_kept_tables(dtype):
    """Tables that had been rounded to eight bits on the way would be off by 1e-3."""
    rotary = Rotary(4099, 6).to(torch.bfloat16).to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    assert rotary.cos.dtype == rotary.sin.dtype == wide
    angle = 4098 / 10_000 ** (2 / 6)
    tolerance = 1e-12 if wide == torch.float64 else 1e-7
    assert rotary.cos[4098, 1].item() == pytest.approx(math.cos(angle), abs=tolerance)
    assert rotary.sin[4098, 1].item() == pytest.approx(math.sin(angle), abs=tolerance)


def test_kept_tables_survive_a_model_that_is_made_without_memory(normal):
    """`to_empty` fills a model that was made on the meta device with whatever is in memory."""
    with torch.device("meta"):
        rotary = Rotary(7, 4)
    x = normal(2, 7, 4, dtype=torch.float32)
    torch.testing.assert_close(rotary.to_empty(device="cpu")(x), rotate(x, torch.arange(7)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_turned_in_full_and_rounded_once(normal, layout, dtype):
    """As near as the dtype allows: half the distance between two of its numbers."""
    rotary, x = Rotary(4001, 6, layout=layout).to(dtype), normal(2, 5, 6, dtype=dtype)
    turned = rotary(x, start=3990)
    exact = rotate(x.double(), torch.arange(3990, 3995), layout=layout)
    assert turned.dtype == dtype
    error = (turned.double() - exact).abs()
    assert (error <= 0.5001 * torch.finfo(dtype).eps * exact.abs() + 1e-6).all()


def test_nothing_of_the_kept_tables_is_saved_or_trained():
    rotary = Rotary(7, 4)
    assert not rotary.state_dict() and not list(rotary.parameters())


@pytest.mark.slow
def test_a_compiler_takes_the_kept_tables_whole():
    """In a process of its own: the compiler and the checker of shapes do not go together."""
    program = """
import torch
from groundup.positions import Rotary, rotate

x = torch.randn(2, 3, 5, 6, generator=torch.Generator().manual_seed(0))
for layout in ("interleaved", "half_split"):
    rotary = Rotary(13, 6, layout=layout)
    compiled = torch.compile(rotary, fullgraph=True, backend="eager")
    for dtype in (torch.float32, torch.bfloat16):
        leaf = x.to(dtype).detach().clone().requires_grad_()
        turned = compiled(leaf, start=4)
        turned.square().sum().backward()
        assert turned.dtype == leaf.grad.dtype == dtype
        torch.testing.assert_close(turned, rotary(leaf, start=4))
        torch.testing.assert_close(leaf.grad, 2 * leaf.detach(), atol=0.1, rtol=0)
        places = torch.tensor([3, 0, 12, 7, 7])
        torch.testing.assert_close(compiled(leaf, places), rotate(leaf, places, layout=layout))
"""
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "JAXTYPING_DISABLE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr


def test_alibi_bias_falls_with_distance_both_ways_and_faster_in_earlier_heads():
    bias = alibi_bias(4, 7)
    assert torch.equal(bias, bias.transpose(-2, -1))
    assert bias.diagonal(dim1=-2, dim2=-1).eq(0).all()
    assert (bias[:, 0].diff(dim=-1) < 0).all()
    assert (bias[:, 0, 1:].diff(dim=0) > 0).all()


def test_the_newest_rows_of_the_bias_are_the_last_rows_of_the_whole():
    for q_len in range(1, 8):
        assert torch.equal(alibi_bias(3, q_len, 7), alibi_bias(3, 7)[:, -q_len:])


@pytest.mark.parametrize("num_heads", [1, 2, 3, 5, 8, 12, 13, 32])
def test_slopes_are_all_different_and_between_zero_and_one(num_heads):
    slopes = alibi_slopes(num_heads)
    assert slopes.shape == (num_heads,) and slopes.unique().shape == (num_heads,)
    assert (slopes > 0).all() and (slopes < 1).all()


def test_nothing_of_the_sinusoids_is_saved_or_trained():
    positions = SinusoidalPositions(max_len=7, d_model=4)
    assert not positions.state_dict() and not list(positions.parameters())


def test_inputs_are_left_alone(normal):
    x, positions = normal(5, 4), torch.arange(5)
    before = x.clone()
    rotate(x, positions)
    assert torch.equal(x, before) and torch.equal(positions, torch.arange(5))


# Refusals


@pytest.mark.parametrize("kind", [SinusoidalPositions, LearnedPositions])
def test_more_positions_than_the_table_has_are_refused(kind):
    positions = kind(max_len=5, d_model=4)
    with pytest.raises(ValueError, match="length must not exceed max_len, got length=7, max_len=5"):
        positions(torch.arange(7))


@pytest.mark.parametrize(("lowest", "highest"), [(3, 7), (-1, 3)])
@pytest.mark.parametrize("kind", [SinusoidalPositions, LearnedPositions, Rotary])
def test_a_position_outside_the_table_is_refused(kind, lowest, highest):
    """However few positions there are; a negative one would be counted from the end."""
    positions = kind(7, 4)
    inputs = [torch.ones(2, 2, 4)] if kind is Rotary else []
    assert positions(*inputs, torch.tensor([[6, 0], [3, 6]])).shape == (2, 2, 4)
    message = f"below max_len, got positions from {lowest} to {highest}, max_len=7"
    with pytest.raises(ValueError, match=message):
        positions(*inputs, torch.tensor([[highest, 3], [3, lowest]]))


def test_odd_widths_are_refused(normal):
    with pytest.raises(ValueError, match="d_model must be even .* got d_model=5"):
        sinusoidal_table(3, 5)
    with pytest.raises(ValueError, match="d_head must be even .* got d_head=5"):
        rotate(normal(3, 5), torch.arange(3))
    with pytest.raises(ValueError, match="d_head must be even .* got d_head=5"):
        Rotary(7, 5)
    for move in (to_half_split, to_interleaved):
        with pytest.raises(ValueError, match="d_head must be even .* got d_head=5"):
            move(normal(3, 5))


def test_a_head_that_does_not_divide_among_the_axes_is_refused(normal):
    with pytest.raises(ValueError, match="twice the number of axes, got d_head=8, axes=3"):
        rotate_in_space(normal(5, 8), normal(5, 3))


def test_rows_that_do_not_divide_into_heads_are_refused(normal):
    with pytest.raises(ValueError, match="twice num_heads, got out=10, num_heads=2"):
        permute_projection(normal(10, 3), 2, "half_split")


def test_an_unknown_layout_is_refused(normal, unchecked):
    for call in (
        lambda: turn(normal(3, 4), normal(3, 2), normal(3, 2), "halves"),
        lambda: permute_projection(normal(4, 3), 1, "halves"),
        lambda: Rotary(7, 4, layout="halves"),
    ):
        with pytest.raises(ValueError, match='"interleaved" or "half_split", got layout="halves"'):
            call()


def test_positions_beyond_the_kept_tables_are_refused(normal):
    rotary = Rotary(7, 4)
    x = normal(2, 5, 4, dtype=torch.float32)
    assert rotary(x, start=2).shape == x.shape
    with pytest.raises(ValueError, match="max_len, got start=3, length=5, max_len=7"):
        rotary(x, start=3)
    with pytest.raises(ValueError, match="got width=6, d_head=4"):
        rotary(normal(2, 5, 6, dtype=torch.float32))


def test_alibi_needs_a_head_and_a_key_for_each_query():
    with pytest.raises(ValueError, match="num_heads must be at least 1, got num_heads=0"):
        alibi_slopes(0)
    with pytest.raises(ValueError, match="q_len must not exceed k_len, got q_len=5, k_len=3"):
        alibi_bias(2, 5, 3)
