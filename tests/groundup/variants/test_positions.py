import math

import pytest
import torch

from groundup.core.positions import pair_frequencies, rotate
from groundup.variants.positions import by_parts, rotate_in_space, yarn_frequencies

# By hand


def test_rotation_in_a_plane_by_hand():
    """The first pair turns by the first coordinate, the second pair by the second."""
    x = torch.tensor([[1.0, 0.0, 1.0, 0.0]])
    turned = rotate_in_space(x, torch.tensor([[0.5, -2.0]]))
    expected = [[math.cos(0.5), math.sin(0.5), math.cos(2), -math.sin(2)]]
    torch.testing.assert_close(turned, torch.tensor(expected))


def test_pairs_are_slowed_by_their_turns_in_training_by_hand():
    """Within 100 tokens. From 1 turn to 32, 19.6 is six tenths of the way."""
    turns = torch.tensor([50, 19.6, 1.5, 1, 0.1], dtype=torch.float64)
    slowed = by_parts(2 * math.pi * turns / 100, 4.0, 100)
    share = slowed / (2 * math.pi * turns / 100)
    mixed = [0.6 + 0.4 / 4, 0.5 / 31 + (1 - 0.5 / 31) / 4]
    torch.testing.assert_close(share, torch.tensor([1, *mixed, 1 / 4, 1 / 4]).double())


# Laws


@pytest.mark.parametrize("truncate", [False, True])
def test_yarn_leaves_fast_pairs_alone_and_slows_the_others_more_and_more(truncate):
    usual = pair_frequencies(64, 10_000.0)
    share = yarn_frequencies(64, 10_000.0, 4.0, 2048, truncate=truncate) / usual
    turns = 2048 * usual / (2 * math.pi)
    assert (share[turns > 40] == 1).all() and (share[turns < 0.7] == 1 / 4).all()
    assert (share.diff() <= 0).all() and ((share > 1 / 4) & (share < 1)).sum() > 10
    unstretched = yarn_frequencies(64, 10_000.0, 1.0, 2048, truncate=truncate)
    torch.testing.assert_close(unstretched, usual)


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


# Refusals


def test_a_head_that_does_not_divide_among_the_axes_is_refused(normal):
    with pytest.raises(ValueError, match="twice the number of axes, got d_head=8, axes=3"):
        rotate_in_space(normal(5, 8), normal(5, 3))
