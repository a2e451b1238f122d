import math

import pytest
import torch

from groundup.core.positions import pair_frequencies, rotary_cos_sin, rotate
from groundup.files.conversion import (
    permute_projection,
    rotate_half_split,
    to_half_split,
    to_interleaved,
)

LAYOUTS = ["interleaved", "half_split"]

# By hand


def test_layouts_by_hand():
    assert to_half_split(torch.tensor([0.0, 1, 2, 3, 4, 5])).tolist() == [0, 2, 4, 1, 3, 5]
    assert to_interleaved(torch.tensor([0.0, 1, 2, 3, 4, 5])).tolist() == [0, 3, 1, 4, 2, 5]
    rows = torch.arange(8.0)  # two heads of four
    assert permute_projection(rows, 2, "half_split").tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_rotation_of_split_halves_by_hand():
    """Token 1 by one radian, token 2 by two; the fast pair in features 0 and 2."""
    x = torch.tensor([[1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 1.0]])
    expected = [
        [math.cos(1), -math.sin(0.01), math.sin(1), math.cos(0.01)],
        [math.cos(2), -math.sin(0.02), math.sin(2), math.cos(0.02)],
    ]
    turned = rotate_half_split(x, torch.tensor([1, 2]))
    torch.testing.assert_close(turned, torch.tensor(expected))


# Against another library


def test_split_halves_rotate_as_in_hugging_face_s_llama(normal):
    from transformers.models.llama import modeling_llama as llama

    query, key, positions = normal(2, 3, 5, 8), normal(2, 7, 5, 8), torch.tensor([[4, 0, 9, 2, 2]])
    cos_sin = rotary_cos_sin(positions, pair_frequencies(8), dtype=torch.float64)
    doubled = (torch.cat((table, table), dim=-1) for table in cos_sin.unbind(-1))
    theirs = llama.apply_rotary_pos_emb(query, key, *doubled)
    for x, their in zip((query, key), theirs, strict=True):
        torch.testing.assert_close(rotate_half_split(x, positions[:, None]), their)


# Laws


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_layouts_give_the_same_scores(normal, layout):
    """Move the features, turn by the other layout, move back: nothing has happened."""
    move, back = (to_half_split, to_interleaved)[:: 1 if layout == "half_split" else -1]
    other = next(name for name in LAYOUTS if name != layout)
    x, y, positions = normal(2, 5, 6), normal(2, 5, 6), torch.tensor([3, 0, 11, 7, 2])
    assert torch.equal(back(move(x)), x) and not torch.equal(move(x), x)

    rotations = {"interleaved": rotate, "half_split": rotate_half_split}

    def scores(layout, *vectors):
        query, key = (rotations[layout](v, positions) for v in vectors)
        return query @ key.transpose(-2, -1)

    torch.testing.assert_close(
        back(rotations[layout](move(x), positions)), rotations[other](x, positions)
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


# Refusals


def test_odd_widths_are_refused(normal):
    for reorder in (to_half_split, to_interleaved):
        with pytest.raises(ValueError, match="d_head must be even .* got d_head=5"):
            reorder(normal(3, 5))


def test_rows_that_do_not_divide_into_heads_are_refused(normal):
    with pytest.raises(ValueError, match="twice num_heads, got out=10, num_heads=2"):
        permute_projection(normal(10, 3), 2, "half_split")


def test_an_unknown_layout_is_refused(normal, unchecked):
    with pytest.raises(ValueError, match='"interleaved" or "half_split", got layout="halves"'):
        permute_projection(normal(4, 3), 1, "halves")
