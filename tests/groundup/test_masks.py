import pytest
import torch
from torch import nn

from groundup.masks import causal_mask, masked_softmax, padding_mask

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


# Against torch


def test_causal_mask_allows_what_torch_does_not_forbid():
    forbidden = nn.Transformer.generate_square_subsequent_mask(7)
    assert torch.equal(causal_mask(7), forbidden == 0)


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
    louder = scores.masked_fill(~mask, 1e6)
    assert torch.equal(masked_softmax(scores, mask), masked_softmax(louder, mask))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_very_low_scores_still_beat_what_is_hidden(dtype):
    scores = torch.tensor([[-6e4, -6e4, 0.0]], dtype=dtype)
    mask = torch.tensor([[True, True, False]])
    assert masked_softmax(scores, mask).tolist() == [[0.5, 0.5, 0.0]]


def test_the_newest_rows_are_the_last_rows_of_the_whole_mask():
    for q_len in range(1, 8):
        assert torch.equal(causal_mask(q_len, 7), causal_mask(7)[-q_len:])


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
