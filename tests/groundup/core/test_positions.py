import cmath
import math
import os
import subprocess
import sys

import pytest
import torch

from groundup.core.positions import (
    LearnedPositions,
    Rotary,
    SinusoidalPositions,
    alibi_bias,
    alibi_slopes,
    pair_frequencies,
    rotary_cos_sin,
    rotate,
    rotate_pairs,
    sinusoidal_table,
)

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


def test_rotated_pairs_by_hand():
    """A rotation by 90 degrees, and none."""
    x, cos_sin = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[[0.0, 1.0], [1.0, 0.0]]])
    assert rotate_pairs(x, cos_sin).tolist() == [[-2.0, 1.0, 3.0, 4.0]]


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
    first = torch.tensor(0)  # in a buffer whose last key is empty
    assert (alibi_bias(2, 2, 3, first=first)[0] * 16).tolist() == [[0, -1, -2], [-1, 0, -1]]


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


@pytest.mark.parametrize("is_cast", [False, True])
def test_a_rotary_table_takes_any_frequencies_and_a_scale(normal, is_cast):
    with torch.device("meta" if is_cast else "cpu"):
        rotary = Rotary(13, 6, frequencies=(0.7, 0.2, 0.03), scale=1.5)
    rotary = rotary.to_empty(device="cpu").double() if is_cast else rotary
    x = normal(1, 6, dtype=rotary.table.dtype)
    turned = rotary(x, torch.tensor([11]))
    for pair, frequency in enumerate((0.7, 0.2, 0.03)):
        number = 1.5 * complex(*x[0, 2 * pair : 2 * pair + 2].tolist())
        number *= cmath.exp(11j * frequency)
        got = complex(*turned[0, 2 * pair : 2 * pair + 2].tolist())
        assert got == pytest.approx(number, rel=1e-12 if is_cast else 1e-5)


# Against another library


def test_the_angles_are_those_of_hugging_face_s_llama():
    from transformers.models.llama import modeling_llama as llama

    config = llama.LlamaConfig(
        hidden_size=24,
        num_attention_heads=3,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    )
    positions = torch.arange(13)
    cos, sin = llama.LlamaRotaryEmbedding(config)(torch.zeros(1), positions[None])
    tables = rotary_cos_sin(positions, pair_frequencies(8, base=500.0)).unbind(-1)
    for ours, theirs in zip(tables, (cos, sin), strict=True):
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


@pytest.mark.parametrize("places", [slice(0, 4), slice(1, 5)])
def test_gradients_of_a_turn_agree_with_finite_differences(normal, places):
    memory, positions = normal(2, 3, 6).requires_grad_(), torch.tensor([2, 0, 5])
    assert torch.autograd.gradcheck(lambda x: rotate(x[..., places], positions), (memory,))


@pytest.mark.parametrize("is_cast", [False, True])
def test_the_kept_tables_turn_as_the_function_does(normal, is_cast):
    rotary = Rotary(13, 6, base=100.0)
    rotary = rotary.double() if is_cast else rotary
    x = normal(2, 3, 5, 6, dtype=rotary.table.dtype)
    for start in (0, 4, 8):
        positions = torch.arange(start, start + 5)
        expected = rotate(x, positions, base=100.0)
        torch.testing.assert_close(rotary(x, positions), expected)
    places = torch.tensor([[3, 0, 12, 7, 7], [1, 2, 3, 4, 5]])[:, None]
    expected = rotate(x, places, base=100.0)
    torch.testing.assert_close(rotary(x, places), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_casting_a_model_does_not_blur_the_kept_tables(dtype):
    """Tables that had been rounded to eight bits on the way would be off by 1e-3."""
    rotary = Rotary(4099, 6).to(torch.bfloat16).to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    assert rotary.table.dtype == wide
    angle = 4098 / 10_000 ** (2 / 6)
    tolerance = 1e-12 if wide == torch.float64 else 1e-7
    assert rotary.table[4098, 2].item() == pytest.approx(math.cos(angle), abs=tolerance)
    assert rotary.table[4098, 3].item() == pytest.approx(math.sin(angle), abs=tolerance)


def test_kept_tables_survive_a_model_that_is_made_without_memory(normal):
    """`to_empty` fills a model that was made on the meta device with whatever is in memory."""
    with torch.device("meta"):
        rotary = Rotary(7, 4)
    x = normal(2, 7, 4, dtype=torch.float32)
    rotary, positions = rotary.to_empty(device="cpu"), torch.arange(7)
    torch.testing.assert_close(rotary(x, positions), rotate(x, positions))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_turned_in_full_and_rounded_once(normal, dtype):
    """As near as the dtype allows: half the distance between two of its numbers."""
    rotary, x = Rotary(4001, 6).to(dtype), normal(2, 5, 6, dtype=dtype)
    turned = rotary(x, torch.arange(3990, 3995))
    exact = rotate(x.double(), torch.arange(3990, 3995))
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
from groundup.core.positions import Rotary, rotate

x = torch.randn(2, 3, 5, 6, generator=torch.Generator().manual_seed(0))
rotary = Rotary(13, 6)
compiled = torch.compile(rotary, fullgraph=True, backend="eager")
for dtype in (torch.float32, torch.bfloat16):
    leaf = x.to(dtype).detach().clone().requires_grad_()
    positions = torch.arange(4, 9)
    turned = compiled(leaf, positions)
    turned.square().sum().backward()
    assert turned.dtype == leaf.grad.dtype == dtype
    torch.testing.assert_close(turned, rotary(leaf, positions))
    torch.testing.assert_close(leaf.grad, 2 * leaf.detach(), atol=0.1, rtol=0)
    places = torch.tensor([3, 0, 12, 7, 7])
    torch.testing.assert_close(compiled(leaf, places), rotate(leaf, places))
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
    with pytest.raises(ValueError, match="below max_len, got positions from 0 to 6, max_len=5"):
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


@pytest.mark.parametrize("frequencies", [(1.0,), (1.0, 0.1, 0.01)])
def test_a_head_is_as_wide_as_there_are_pairs_with_a_frequency(normal, frequencies):
    rotary, x = Rotary(7, 4, frequencies=frequencies), normal(5, 4, dtype=torch.float32)
    message = f"x must be as wide as d_head, got width=4, d_head={2 * len(frequencies)}"
    with pytest.raises(ValueError, match=message):
        rotary(x, torch.arange(5))


def test_positions_beyond_the_kept_tables_are_refused(normal):
    rotary = Rotary(7, 4)
    x = normal(2, 5, 4, dtype=torch.float32)
    assert rotary(x, torch.arange(2, 7)).shape == x.shape
    with pytest.raises(ValueError, match="below max_len, got positions from 3 to 7, max_len=7"):
        rotary(x, torch.arange(3, 8))
    with pytest.raises(ValueError, match="got width=6, d_head=4"):
        rotary(normal(2, 5, 6, dtype=torch.float32), torch.arange(5))


def test_alibi_needs_a_head_and_a_key_for_each_query():
    with pytest.raises(ValueError, match="num_heads must be at least 1, got num_heads=0"):
        alibi_slopes(0)
    with pytest.raises(ValueError, match="q_len must not exceed k_len, got q_len=5, k_len=3"):
        alibi_bias(2, 5, 3)
