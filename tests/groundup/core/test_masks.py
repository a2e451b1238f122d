import math

import pytest
import torch
from torch import nn

from groundup.core.masks import (
    additive_mask,
    causal_mask,
    combine_masks,
    document_mask,
    masked_softmax,
    padding_mask,
    prefix_mask,
    sliding_window_mask,
)

# By hand


def test_masked_softmax_by_hand():
    """Scores ln 1, ln 3 and a hidden one: shares 1/4 and 3/4."""
    scores = torch.tensor([[1.0, 3.0, 100.0]]).log()
    mask = torch.tensor([[True, True, False]])
    torch.testing.assert_close(masked_softmax(scores, mask), torch.tensor([[0.25, 0.75, 0.0]]))


def test_causal_mask_by_hand():
    expected = [[True, False, False], [True, True, False], [True, True, True]]
    assert causal_mask(3).tolist() == expected


def test_causal_mask_of_the_newest_tokens_by_hand():
    assert causal_mask(2, 5).tolist() == [
        [True, True, True, True, False],
        [True, True, True, True, True],
    ]


def test_padding_mask_by_hand():
    mask = padding_mask(torch.tensor([2, 0, 3]), 3)
    assert mask.shape == (3, 1, 1, 3)
    assert mask.flatten(1).tolist() == [
        [True, True, False],
        [False, False, False],
        [True, True, True],
    ]


def test_padding_mask_with_the_filler_on_the_left_by_hand():
    mask = padding_mask(torch.tensor([2, 0, 3]), 3, side="left")
    assert mask.shape == (3, 1, 1, 3)
    assert mask.flatten(1).tolist() == [
        [False, True, True],
        [False, False, False],
        [True, True, True],
    ]


def test_sliding_window_mask_by_hand():
    """Two keys at most: the token itself and the one before."""
    assert sliding_window_mask(4, 2).tolist() == [
        [True, False, False, False],
        [True, True, False, False],
        [False, True, True, False],
        [False, False, True, True],
    ]


def test_prefix_mask_by_hand():
    """The first two tokens are given; then, none is."""
    mask = prefix_mask(torch.tensor([2, 0]), 3)
    assert mask.shape == (2, 1, 3, 3)
    assert mask[0, 0].tolist() == [[True, True, False], [True, True, False], [True, True, True]]
    assert mask[1, 0].tolist() == [[True, False, False], [True, True, False], [True, True, True]]


def test_document_mask_by_hand():
    mask = document_mask(torch.tensor([[7, 7, 2], [2, 7, 2]]))
    assert mask.shape == (2, 1, 3, 3)
    assert mask[0, 0].tolist() == [[True, True, False], [True, True, False], [False, False, True]]
    assert mask[1, 0].tolist() == [[True, False, True], [False, True, False], [True, False, True]]


def test_additive_mask_by_hand():
    mask = torch.tensor([[True, False], [False, True]])
    assert additive_mask(mask).tolist() == [[0.0, -math.inf], [-math.inf, 0.0]]


# Against torch


def test_causal_mask_allows_what_torch_does_not_forbid():
    forbidden = nn.Transformer.generate_square_subsequent_mask(7)
    assert torch.equal(causal_mask(7), forbidden == 0)


def test_the_additive_causal_mask_is_torch_s():
    theirs = nn.Transformer.generate_square_subsequent_mask(7)
    assert torch.equal(additive_mask(causal_mask(7)), theirs)


def test_without_a_mask_it_is_torch_s_softmax(normal):
    scores = normal(2, 3, 5, 7)
    assert torch.equal(masked_softmax(scores), torch.softmax(scores, dim=-1))


# Laws


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_fully_masked_row_gives_zeros_and_a_zero_gradient(normal, dtype):
    scores = normal(2, 5, 7, dtype=dtype).requires_grad_()
    mask = normal(2, 5, 7) > 0
    mask[0, 3] = False
    weights = masked_softmax(scores, mask)
    (weights * normal(2, 5, 7, dtype=dtype)).sum().backward()
    assert scores.grad is not None
    assert weights[0, 3].eq(0).all()
    assert scores.grad[0, 3].eq(0).all()
    assert weights.isfinite().all() and scores.grad.isfinite().all()
    assert scores.grad.ne(0).any()


def test_rows_sum_to_one_over_the_allowed_keys(normal):
    mask = normal(2, 3, 5, 7) > 0
    mask[..., 0] = True
    weights = masked_softmax(normal(2, 3, 5, 7), mask)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 5, dtype=torch.float64))
    assert weights[~mask].eq(0).all()


def test_what_is_hidden_takes_no_share_however_high_it_scores(normal):
    mask = torch.tensor([True, False, True, True, False])
    scores = normal(2, 3, 5)
    larger = scores.masked_fill(~mask, 1e6)
    assert torch.equal(masked_softmax(scores, mask), masked_softmax(larger, mask))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_very_low_scores_still_beat_what_is_hidden(dtype):
    scores = torch.tensor([[-6e4, -6e4, 0.0]], dtype=dtype)
    mask = torch.tensor([[True, True, False]])
    assert masked_softmax(scores, mask).tolist() == [[0.5, 0.5, 0.0]]


def test_the_newest_rows_are_the_last_rows_of_the_whole_mask():
    for q_len in range(1, 8):
        assert torch.equal(causal_mask(q_len, 7), causal_mask(7)[-q_len:])


def test_each_query_sees_its_window_and_no_more():
    seen = sliding_window_mask(11, 3).sum(dim=-1)
    assert seen.tolist() == [1, 2] + 9 * [3]
    assert torch.equal(sliding_window_mask(7, 7), causal_mask(7))
    assert torch.equal(sliding_window_mask(7, 1), torch.eye(7, dtype=torch.bool))


def test_the_newest_rows_of_a_window_are_the_last_rows_of_the_whole_mask():
    for q_len in range(1, 8):
        assert torch.equal(sliding_window_mask(q_len, 3, 7), sliding_window_mask(7, 3)[-q_len:])


def test_a_prefix_lies_between_causal_and_everything():
    nothing, all_but_one, everything = prefix_mask(torch.tensor([0, 4, 5]), 5)[:, 0]
    assert torch.equal(nothing, causal_mask(5))
    assert everything.all()
    assert all_but_one[:, :4].all() and all_but_one[:, 4].tolist() == 4 * [False] + [True]


def test_packed_texts_see_what_they_would_see_alone():
    """Texts of 2, 3 and 1 tokens in one sequence: their causal masks stand on the diagonal."""
    packed = document_mask(torch.tensor([[5, 5, 1, 1, 1, 0]])) & causal_mask(6)
    alone = torch.block_diag(*(causal_mask(n).int() for n in (2, 3, 1))).bool()
    assert torch.equal(packed[0, 0], alone)


def test_filler_on_the_left_is_filler_on_the_right_read_backwards():
    lengths = torch.tensor([0, 2, 5, 3])
    left, right = (padding_mask(lengths, 5, side=side) for side in ("left", "right"))
    assert torch.equal(left, right.flip(-1))
    assert left.sum(dim=-1).flatten().tolist() == lengths.tolist()


def test_combined_masks_allow_what_every_one_allows():
    causal, padding = causal_mask(5), padding_mask(torch.tensor([3, 5]), 5)
    window = sliding_window_mask(5, 2)
    assert torch.equal(combine_masks(causal, None, padding, window), causal & padding & window)
    assert combine_masks(None, padding) is padding
    assert combine_masks(None, None) is None and combine_masks() is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_an_additive_mask_does_what_the_boolean_one_does_until_nothing_is_allowed(normal, dtype):
    scores, mask = normal(3, 5, 7, dtype=dtype), normal(3, 5, 7) > 0
    mask[..., 0] = True
    mask[1, 2] = False
    plain = (scores + additive_mask(mask, dtype)).softmax(dim=-1)
    assert plain.dtype == dtype
    assert plain[1, 2].isnan().all()
    plain[1, 2] = 0.0
    torch.testing.assert_close(plain, masked_softmax(scores, mask))


def test_masks_combine_over_batch_heads_and_queries():
    both = causal_mask(5) & padding_mask(torch.tensor([3, 5]), 5)
    assert both.shape == (2, 1, 5, 5)
    assert both[0, 0].sum(dim=-1).tolist() == [1, 2, 3, 3, 3]
    assert both[1, 0].sum(dim=-1).tolist() == [1, 2, 3, 4, 5]


def test_inputs_are_left_alone(normal):
    scores, mask = normal(3, 5), torch.tensor([True, False, True, True, False])
    before, mask_before = scores.clone(), mask.clone()
    masked_softmax(scores, mask)
    assert torch.equal(scores, before) and torch.equal(mask, mask_before)


# Refusals


def test_more_queries_than_keys_are_refused():
    with pytest.raises(ValueError, match="q_len must not exceed k_len, got q_len=5, k_len=3"):
        causal_mask(5, 3)
    with pytest.raises(ValueError, match="q_len must not exceed k_len, got q_len=5, k_len=3"):
        sliding_window_mask(5, 2, 3)


@pytest.mark.parametrize("window", [0, -2])
def test_a_window_without_room_for_the_token_itself_is_refused(window):
    with pytest.raises(ValueError, match=f"window must be at least 1, got window={window}"):
        sliding_window_mask(5, window)


def test_filler_on_an_unknown_side_is_refused(unchecked):
    with pytest.raises(ValueError, match="side must be one of right, left, got side=top"):
        padding_mask(torch.tensor([2, 3]), 5, side="top")
