import math

import pytest
import torch
import torch.nn.functional as F

from groundup.core.attention import attention_weights, dot_scores, scaled_dot_product_attention
from groundup.core.masks import masked_softmax, sliding_window_mask
from groundup.variants.scores import (
    additive_scores,
    gaussian_scores,
    mahalanobis_scores,
    manhattan_scores,
)

# By hand


def test_scores_by_hand():
    query = torch.tensor([[1.0, 2.0]])
    key = torch.tensor([[3.0, 5.0], [1.0, 2.0]])  # differences (-2, -3) and (0, 0)
    precision = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    assert dot_scores(query, key).tolist() == [[13.0, 5.0]]
    assert gaussian_scores(query, key, bandwidth=0.5).tolist() == [[-26.0, 0.0]]
    assert manhattan_scores(query, key, bandwidth=0.5).tolist() == [[-10.0, 0.0]]
    assert mahalanobis_scores(query, key, precision).tolist() == [[-23.5, 0.0]]


def test_additive_scores_by_hand():
    """Hidden features: first the sum of q and k, second k alone. Scored 2 and -1."""
    query, key = torch.tensor([[0.5]]), torch.tensor([[1.0], [-0.5]])
    w_query, w_key = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]])
    scores = additive_scores(query, key, w_query, w_key, torch.tensor([2.0, -1.0]))
    expected = [2 * math.tanh(1.5) - math.tanh(1.0), 2 * math.tanh(0.0) - math.tanh(-0.5)]
    torch.testing.assert_close(scores, torch.tensor([expected]))


# Against torch


def test_distances_equal_torch_s(normal):
    query, key = normal(2, 5, 3), normal(2, 7, 3)
    squared = torch.cdist(query, key).square()
    torch.testing.assert_close(gaussian_scores(query, key, 1.5), -squared / (2 * 1.5**2))
    torch.testing.assert_close(
        manhattan_scores(query, key, 1.5), -torch.cdist(query, key, p=1) / 1.5
    )


# Laws


def test_mahalanobis_is_gaussian_after_a_change_of_axes(normal):
    query, key, root = normal(2, 5, 3), normal(2, 7, 3), normal(3, 3)
    torch.testing.assert_close(
        mahalanobis_scores(query, key, root @ root.T), gaussian_scores(query @ root, key @ root)
    )


def test_any_score_can_take_the_place_of_the_dot_product(normal):
    """Scores, a masked softmax over the keys, an average: attention is no more than that."""
    query, key, value = normal(2, 5, 4), normal(2, 7, 4), normal(2, 7, 6)
    root, mask = normal(4, 4), sliding_window_mask(5, 3, 7)
    w_query, w_key, w_score = normal(4, 11), normal(4, 11), normal(11)
    for scores in (
        dot_scores(query, key) / 2,
        additive_scores(query, key, w_query, w_key, w_score),
        gaussian_scores(query, key, 1.5),
        manhattan_scores(query, key, 1.5),
        mahalanobis_scores(query, key, root @ root.T),
    ):
        mixed = masked_softmax(scores, mask) @ value
        for i in range(5):  # query i sees the keys i, i + 1 and i + 2
            shares = scores[:, i, i : i + 3].exp()
            average = (shares[..., None] * value[:, i : i + 3]).sum(1) / shares.sum(1)[:, None]
            torch.testing.assert_close(mixed[:, i], average)
    torch.testing.assert_close(
        masked_softmax(dot_scores(query, key) / 2, mask) @ value,
        scaled_dot_product_attention(query, key, value, mask),
    )


def test_gaussian_weights_are_dot_weights_when_keys_are_equally_long(normal):
    query, key, bandwidth = normal(5, 4), F.normalize(normal(7, 4), dim=-1), 0.7
    gaussian = gaussian_scores(query, key, bandwidth).softmax(dim=-1)
    dot = attention_weights(query, key, scale=1 / bandwidth**2)
    torch.testing.assert_close(gaussian, dot)
    longer = torch.cat((2 * key[:1], key[1:]))
    gaussian = gaussian_scores(query, longer, bandwidth).softmax(dim=-1)
    assert not torch.allclose(gaussian, attention_weights(query, longer, scale=1 / bandwidth**2))


def test_distances_ignore_where_the_origin_is_and_dot_products_do_not(normal):
    query, key, shift, root = normal(5, 4), normal(7, 4), normal(4), normal(4, 4)
    for scores in (
        gaussian_scores,
        manhattan_scores,
        lambda q, k: mahalanobis_scores(q, k, root @ root.T),
    ):
        torch.testing.assert_close(scores(query + shift, key + shift), scores(query, key))
    assert not torch.allclose(dot_scores(query + shift, key + shift), dot_scores(query, key))


def test_additive_scores_join_queries_and_keys_of_different_widths(normal):
    w_score = normal(11)
    scores = additive_scores(
        9 * normal(2, 5, 3), normal(2, 7, 4), normal(3, 11), normal(4, 11), w_score
    )
    assert scores.shape == (2, 5, 7)
    assert scores.abs().max() <= w_score.abs().sum()


# Refusals


@pytest.mark.parametrize("scores", [gaussian_scores, manhattan_scores])
@pytest.mark.parametrize("bandwidth", [0.0, -1.0, math.nan])
def test_a_bandwidth_that_is_not_positive_is_refused(normal, scores, bandwidth):
    with pytest.raises(ValueError, match=f"bandwidth must be positive, got bandwidth={bandwidth}"):
        scores(normal(5, 3), normal(7, 3), bandwidth)
