import math

import pytest
import torch
import torch.nn.functional as F

from groundup.attention import (
    additive_scores,
    attention_weights,
    dot_scores,
    gaussian_scores,
    mahalanobis_scores,
    manhattan_scores,
    scaled_dot_product_attention,
)
from groundup.masks import causal_mask

BACKENDS = ["explicit", "fused"]
MASKS = ["none", "causal", "padding", "random"]


@pytest.fixture
def qkv(normal):
    """Every size differs: batch 2, heads 3, queries 5, keys 7, d_head 4, d_value 6."""
    return normal(2, 3, 5, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 6)


def make_mask(name, normal):
    if name == "none":
        return None
    if name == "causal":
        return causal_mask(5, 7)
    if name == "padding":
        return torch.arange(7) < torch.tensor([4, 7])[:, None, None, None]
    return normal(2, 3, 5, 7) > 0.5  # some rows allow nothing


# By hand


def test_attention_by_hand():
    """Scores 0 and 2 ln 3, over the root of d_head = 4: weights 1/4 and 3/4."""
    query = torch.tensor([[2 * math.log(3), 0.0, 0.0, 0.0]])
    key = torch.tensor([[0.0, 5.0, 5.0, 5.0], [1.0, 5.0, 5.0, 5.0]])
    value = torch.tensor([[4.0, 0.0, 8.0], [0.0, 4.0, 8.0]])
    torch.testing.assert_close(attention_weights(query, key), torch.tensor([[0.25, 0.75]]))
    for backend in BACKENDS:
        mixed = scaled_dot_product_attention(query, key, value, backend=backend)
        torch.testing.assert_close(mixed, torch.tensor([[1.0, 3.0, 8.0]]))


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


@pytest.mark.parametrize("mask_name", MASKS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_equals_torch_s(qkv, normal, mask_name, backend):
    query, key, value = qkv
    mask = make_mask(mask_name, normal)
    ours = scaled_dot_product_attention(query, key, value, mask, backend=backend)
    theirs = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_the_scale_can_be_chosen(qkv, scale):
    query, key, value = qkv
    theirs = F.scaled_dot_product_attention(query, key, value, scale=scale)
    for backend in BACKENDS:
        ours = scaled_dot_product_attention(query, key, value, scale=scale, backend=backend)
        torch.testing.assert_close(ours, theirs)


def test_distances_equal_torch_s(normal):
    query, key = normal(2, 5, 3), normal(2, 7, 3)
    squared = torch.cdist(query, key).square()
    torch.testing.assert_close(gaussian_scores(query, key, 1.5), -squared / (2 * 1.5**2))
    torch.testing.assert_close(
        manhattan_scores(query, key, 1.5), -torch.cdist(query, key, p=1) / 1.5
    )


def test_mahalanobis_is_gaussian_after_a_change_of_axes(normal):
    query, key, root = normal(2, 5, 3), normal(2, 7, 3), normal(3, 3)
    torch.testing.assert_close(
        mahalanobis_scores(query, key, root @ root.T), gaussian_scores(query @ root, key @ root)
    )


# Laws


@pytest.mark.parametrize("mask_name", MASKS)
def test_both_backends_agree_forward_and_backward(qkv, normal, mask_name):
    mask, upstream = make_mask(mask_name, normal), normal(2, 3, 5, 6)
    results = []
    for backend in BACKENDS:
        inputs = [x.clone().requires_grad_() for x in qkv]
        mixed = scaled_dot_product_attention(*inputs, mask, backend=backend)
        results.append((mixed, *torch.autograd.grad((mixed * upstream).sum(), inputs)))
    for explicit, fused in zip(*results, strict=True):
        torch.testing.assert_close(explicit, fused)


def silent_rows_stay_silent(normal, backend, dtype, device):
    inputs = [normal(2, 3, n, 8, dtype=dtype).to(device).requires_grad_() for n in (5, 7, 7)]
    mask = normal(2, 3, 5, 7) > 0
    mask[0, 1, 3] = False  # one query sees nothing
    mask[1] = False  # a whole sequence does not
    mask = mask.to(device)
    mixed = scaled_dot_product_attention(*inputs, mask, backend=backend)
    upstream = normal(2, 3, 5, 8, dtype=dtype).to(device)
    gradients = torch.autograd.grad((mixed * upstream).sum(), inputs)
    for tensor in (mixed, *gradients):
        assert tensor.isfinite().all()
        assert tensor[0].ne(0).any()
        assert tensor[1].eq(0).all()
    assert mixed[0, 1, 3].eq(0).all()
    assert gradients[0][0, 1, 3].eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fully_masked_row_gives_zeros_and_a_zero_gradient(normal, backend, dtype):
    silent_rows_stay_silent(normal, backend, dtype, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fully_masked_row_is_silent_on_a_gpu_too(normal, backend, dtype):
    silent_rows_stay_silent(normal, backend, dtype, "cuda")


def test_weights_of_a_query_sum_to_one(qkv):
    weights = attention_weights(qkv[0], qkv[1])
    assert weights.shape == (2, 3, 5, 7)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 3, 5, dtype=torch.float64))


def test_outputs_lie_in_the_convex_hull_of_the_values(qkv, normal):
    """Seen from any direction, no average sticks out beyond the outermost value."""
    query, key, value = qkv
    mixed = scaled_dot_product_attention(3 * query, key, value)
    directions = normal(6, 101)
    assert ((mixed @ directions) <= (value @ directions).amax(dim=-2, keepdim=True)).all()


def test_values_can_be_mapped_before_or_after_the_average(qkv, normal):
    query, key, value = qkv
    change = normal(6, 2)
    before = scaled_dot_product_attention(query, key, value @ change)
    torch.testing.assert_close(before, scaled_dot_product_attention(query, key, value) @ change)


def test_the_order_of_the_keys_does_not_matter(qkv):
    query, key, value = qkv
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    torch.testing.assert_close(
        scaled_dot_product_attention(query, key[..., order, :], value[..., order, :]),
        scaled_dot_product_attention(query, key, value),
    )


def test_a_query_of_zeros_gives_the_plain_mean(qkv):
    query, key, value = qkv
    mixed = scaled_dot_product_attention(torch.zeros_like(query), key, value)
    torch.testing.assert_close(mixed, value.mean(dim=-2, keepdim=True).expand_as(mixed))


def test_a_very_large_scale_looks_up_the_best_key(qkv):
    query, key, value = qkv
    best = dot_scores(query, key).argmax(dim=-1)
    looked_up = torch.gather(value, -2, best[..., None].expand(2, 3, 5, 6))
    torch.testing.assert_close(
        scaled_dot_product_attention(query, key, value, scale=1e4), looked_up
    )


def test_scaled_scores_of_unit_normal_vectors_have_variance_one(normal):
    for d_head in (5, 64):
        scores = dot_scores(normal(300, d_head), normal(301, d_head))
        assert (scores / math.sqrt(d_head)).var().item() == pytest.approx(1, abs=0.1)


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


def test_gradients_agree_with_finite_differences(normal):
    query, key, value = (normal(n, 3).requires_grad_() for n in (2, 5, 5))
    mask = torch.tensor([[True, False, True, True, False], [False] * 5])
    assert torch.autograd.gradcheck(
        lambda q, k, v: scaled_dot_product_attention(q, k, v, mask), (query, key, value)
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_are_left_alone(qkv, normal, backend):
    inputs = (*qkv, make_mask("random", normal))
    before = [x.clone() for x in inputs]
    scaled_dot_product_attention(*inputs, backend=backend)
    assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True))


# Refusals


@pytest.mark.parametrize("scores", [gaussian_scores, manhattan_scores])
@pytest.mark.parametrize("bandwidth", [0.0, -1.0, math.nan])
def test_a_bandwidth_that_is_not_positive_is_refused(normal, scores, bandwidth):
    with pytest.raises(ValueError, match=f"bandwidth must be positive, got bandwidth={bandwidth}"):
        scores(normal(5, 3), normal(7, 3), bandwidth)
