import math
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from groundup.attention import (
    additive_scores,
    attention_weights,
    dot_scores,
    gaussian_scores,
    mahalanobis_scores,
    manhattan_scores,
    online_softmax_attention,
    repeat_kv_heads,
    scaled_dot_product_attention,
)
from groundup.masks import causal_mask, masked_softmax, sliding_window_mask
from groundup.positions import alibi_bias

BACKENDS = ["explicit", "fused"]
WAYS = ["explicit", "fused", "online"]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
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


def attend(way, query, key, value, mask=None, **options):
    """Call one of the three ways to the same numbers."""
    if way == "online":
        return online_softmax_attention(query, key, value, mask, block_size=3, **options)
    return scaled_dot_product_attention(query, key, value, mask, backend=way, **options)


def forward_and_backward(function, *inputs):
    """Give the output and the gradients of a loss that no constant can hide from."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    output = function(*leaves)
    return output, *torch.autograd.grad(output.sin().sum(), leaves)


def assert_equal_forward_and_backward(ours, theirs, *inputs):
    results = (forward_and_backward(function, *inputs) for function in (ours, theirs))
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y)


# By hand


def test_attention_by_hand():
    """Scores 0 and 2 ln 3, over the root of d_head = 4: weights 1/4 and 3/4."""
    query = torch.tensor([[2 * math.log(3), 0.0, 0.0, 0.0]])
    key = torch.tensor([[0.0, 5.0, 5.0, 5.0], [1.0, 5.0, 5.0, 5.0]])
    value = torch.tensor([[4.0, 0.0, 8.0], [0.0, 4.0, 8.0]])
    torch.testing.assert_close(attention_weights(query, key), torch.tensor([[0.25, 0.75]]))
    for way in WAYS:
        mixed = attend(way, query, key, value)
        torch.testing.assert_close(mixed, torch.tensor([[1.0, 3.0, 8.0]]))


def test_a_bias_moves_the_weights_by_hand():
    """Equal scores, and a bias of ln 3 for the second key: weights 1/4 and 3/4."""
    query, key = torch.zeros(1, 4), torch.ones(2, 4)
    value, bias = torch.tensor([[4.0, 0.0], [0.0, 4.0]]), torch.tensor([[0.0, math.log(3)]])
    weights = attention_weights(query, key, score_bias=bias)
    torch.testing.assert_close(weights, torch.tensor([[0.25, 0.75]]))
    for backend in BACKENDS:
        mixed = scaled_dot_product_attention(query, key, value, backend=backend, score_bias=bias)
        torch.testing.assert_close(mixed, torch.tensor([[1.0, 3.0]]))


def test_neighbouring_query_heads_share_a_key_head_by_hand():
    """Four query heads, two key heads of one key each: every answer is the value of its head."""
    query, key = torch.ones(4, 1, 2), torch.ones(2, 1, 2)
    value = torch.tensor([[[5.0]], [[7.0]]])
    assert repeat_kv_heads(value, 4).flatten().tolist() == [5, 5, 7, 7]
    for way in WAYS:
        assert attend(way, query, key, value).flatten().tolist() == [5, 5, 7, 7]


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


@pytest.mark.parametrize("mask_name", [*MASKS, "column"])
@pytest.mark.parametrize("block_size", [1, 3, 7, 64])
def test_block_by_block_equals_all_at_once(qkv, normal, mask_name, block_size):
    mask = normal(5, 1) > 0 if mask_name == "column" else make_mask(mask_name, normal)
    assert_equal_forward_and_backward(
        lambda *inputs: online_softmax_attention(*inputs, mask, block_size=block_size),
        lambda *inputs: scaled_dot_product_attention(*inputs, mask),
        *qkv,
    )


@pytest.mark.parametrize("lengths", [(5, 5), (5, 7), (1, 7)])
@pytest.mark.parametrize("way", WAYS)
def test_the_word_causal_stands_for_the_mask(normal, way, lengths):
    q_len, k_len = lengths
    inputs = normal(2, 3, q_len, 4), normal(2, 3, k_len, 4), normal(2, 3, k_len, 6)
    assert_equal_forward_and_backward(
        lambda *inputs: attend(way, *inputs, "causal"),
        lambda *inputs: scaled_dot_product_attention(*inputs, causal_mask(q_len, k_len)),
        *inputs,
    )


@pytest.mark.parametrize("mask_name", [*MASKS, "word"])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 3])
@pytest.mark.parametrize("way", WAYS)
def test_shared_heads_are_repeated_heads(normal, way, num_kv_heads, mask_name):
    """Gradients included: those of a shared head are the sum over the heads that share it."""
    query = normal(2, 6, 5, 4)
    key, value = normal(2, num_kv_heads, 7, 4), normal(2, num_kv_heads, 7, 3)
    mask = "causal" if mask_name == "word" else make_mask(mask_name, normal)
    if mask_name == "random":
        mask = normal(2, 6, 5, 7) > 0.5
    assert_equal_forward_and_backward(
        lambda query, key, value: attend(way, query, key, value, mask),
        lambda query, *shared: scaled_dot_product_attention(
            query, *(repeat_kv_heads(x, 6) for x in shared), mask
        ),
        query,
        key,
        value,
    )


def test_shared_heads_need_no_batch(normal):
    query, key, value = normal(6, 5, 4), normal(2, 7, 4), normal(2, 7, 3)
    repeated = (repeat_kv_heads(x, 6) for x in (key, value))
    expected = scaled_dot_product_attention(query, *repeated)
    for way in WAYS:
        torch.testing.assert_close(attend(way, query, key, value), expected)


@pytest.mark.parametrize("mask_name", [*MASKS, "word"])
@pytest.mark.parametrize("num_kv_heads", [1, 3])
def test_both_backends_add_the_same_bias(normal, mask_name, num_kv_heads):
    """A bias per head, and gradients for it too: it may be learned."""
    mask = "causal" if mask_name == "word" else make_mask(mask_name, normal)
    inputs = normal(2, 3, 5, 4), normal(2, num_kv_heads, 7, 4), normal(2, num_kv_heads, 7, 6)

    def with_backend(backend):
        return lambda query, key, value, bias: scaled_dot_product_attention(
            query, key, value, mask, backend=backend, score_bias=bias
        )

    bias = normal(3, 5, 7)
    assert_equal_forward_and_backward(*map(with_backend, BACKENDS), *inputs, bias)
    biased = attention_weights(*inputs[:2], mask, score_bias=bias)
    assert not torch.allclose(biased, attention_weights(*inputs[:2], mask))


def test_a_bias_is_torch_s_float_mask(qkv, normal):
    bias = normal(3, 5, 7)
    theirs = F.scaled_dot_product_attention(*qkv, attn_mask=bias)
    for backend in BACKENDS:
        ours = scaled_dot_product_attention(*qkv, backend=backend, score_bias=bias)
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bias_does_not_lift_the_causal_mask(normal, backend):
    """Not even one that favours the future, nor where queries and keys are equally many."""
    query, key, value = normal(2, 3, 5, 4), normal(2, 3, 5, 4), normal(2, 3, 5, 6)
    bias = torch.arange(5.0, dtype=torch.float64).expand(3, 5, 5)
    mixed = scaled_dot_product_attention(
        query, key, value, "causal", backend=backend, score_bias=bias
    )
    theirs = F.scaled_dot_product_attention(
        query, key, value, attn_mask=bias.masked_fill(~causal_mask(5), -math.inf)
    )
    torch.testing.assert_close(mixed, theirs)
    torch.testing.assert_close(mixed[:, :, 0], value[:, :, 0])


def test_a_strong_bias_lets_each_query_see_its_own_place_only(normal):
    query, key, value = normal(2, 3, 5, 4), normal(2, 3, 5, 4), normal(2, 3, 5, 6)
    bias = 1e6 * alibi_bias(3, 5, dtype=torch.float64)
    for backend in BACKENDS:
        mixed = scaled_dot_product_attention(query, key, value, backend=backend, score_bias=bias)
        torch.testing.assert_close(mixed, value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bias_in_another_precision_serves(normal, backend):
    """As under autocast, and where a model is cast and its bias is not."""
    inputs = [normal(2, 3, n, 8) for n in (5, 7, 7)]
    bias = alibi_bias(3, 5, 7, dtype=torch.float64)
    exact = scaled_dot_product_attention(*inputs, "causal", score_bias=bias)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        cast = (x.to(dtype) for x in inputs)
        mixed = scaled_dot_product_attention(*cast, "causal", backend=backend, score_bias=bias)
        assert mixed.dtype == dtype
        torch.testing.assert_close(mixed.double(), exact, atol=0.05, rtol=0.05)
    with torch.autocast("cpu", torch.bfloat16):
        single = (x.float() for x in inputs)
        mixed = scaled_dot_product_attention(*single, "causal", backend=backend, score_bias=bias)
    torch.testing.assert_close(mixed.double(), exact, atol=0.05, rtol=0.05)


def test_the_fused_backend_leaves_to_the_kernel_what_it_can(normal, monkeypatch):
    """No mask is drawn for a square causal attention or a single query; no head is copied."""
    seen = {}
    kernel = F.scaled_dot_product_attention

    def spy(query, key, value, attn_mask=None, **options):
        seen.update(options, attn_mask=attn_mask, kv_heads=key.shape[-3])
        return kernel(query, key, value, attn_mask, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    for q_len, k_len, is_causal, is_drawn in [(5, 5, True, False), (1, 7, False, False)] + [
        (5, 7, False, True)
    ]:
        inputs = normal(2, 6, q_len, 4), normal(2, 2, k_len, 4), normal(2, 2, k_len, 3)
        scaled_dot_product_attention(*inputs, "causal", backend="fused")
        assert seen["is_causal"] == is_causal and (seen["attn_mask"] is not None) == is_drawn
        assert seen["kv_heads"] == 2 and seen["enable_gqa"]


def test_no_kernel_meets_a_row_of_nothing_but_minus_infinity(normal, monkeypatch):
    """Not every kernel answers such a row with zeros, and not in every version."""
    seen = []
    kernel = F.scaled_dot_product_attention

    def spy(query, key, value, attn_mask=None, **options):
        seen.append(attn_mask)
        return kernel(query, key, value, attn_mask, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    silent_rows_stay_silent(normal, "fused", torch.float32, "cpu", score_bias=torch.zeros(3, 5, 7))
    assert seen[0].isneginf().any() and not seen[0].isneginf().all(dim=-1).any()


class Sizes(TorchDispatchMode):
    """Note the largest tensor that any operation makes, in numbers."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        for made in output if isinstance(output, tuple | list) else [output]:
            if isinstance(made, torch.Tensor):
                self.largest = max(self.largest, made.numel())
        return output


@pytest.mark.parametrize("mask", [None, "causal"])
def test_block_by_block_no_tensor_grows_with_the_square_of_the_length(normal, mask):
    """128 and 256 tokens in blocks of 16: nothing larger than the tokens times their width."""
    largest = {"explicit": [], "online": []}
    for length in (128, 256):
        inputs = [normal(2, 3, length, width) for width in (16, 16, 20)]
        with Sizes() as sizes:
            forward_and_backward(lambda *x: scaled_dot_product_attention(*x, mask), *inputs)
        largest["explicit"].append(sizes.largest)
        with Sizes() as sizes:
            forward_and_backward(
                lambda *x: online_softmax_attention(*x, mask, block_size=16), *inputs
            )
        largest["online"].append(sizes.largest)
    assert largest["explicit"] == [2 * 3 * 128 * 128, 2 * 3 * 256 * 256]
    assert largest["online"] == [2 * 3 * 128 * 20, 2 * 3 * 256 * 20]


def test_block_by_block_nothing_of_the_size_of_the_scores_waits_for_the_backward_pass(normal):
    saved = []
    inputs = [normal(2, 3, 64, 8).requires_grad_() for _ in range(3)]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        online_softmax_attention(*inputs, "causal", block_size=16)
    assert saved and sum(x.numel() for x in saved) < 2 * 3 * 64 * 64


def test_block_by_block_scores_may_rise_and_fall_as_far_as_they_like():
    """The highest score comes in the first, the middle and the last block in turn."""
    value = torch.tensor([[1.0], [2.0], [3.0]])
    for best in range(3):
        key = torch.full((3, 1), -3e38)
        key[best] = 3e38
        mixed = online_softmax_attention(torch.ones(1, 1), key, value, block_size=1)
        assert mixed.tolist() == [[best + 1.0]]


def silent_rows_stay_silent(normal, way, dtype, device, length=5, **options):
    sizes = (length, length + 2, length + 2)
    inputs = [normal(2, 3, n, 8, dtype=dtype).to(device).requires_grad_() for n in sizes]
    mask = normal(2, 3, length, length + 2) > 0
    mask[0, 1, 3] = False  # one query sees nothing
    mask[1] = False  # a whole sequence does not
    mask = mask.to(device)
    mixed = attend(way, *inputs, mask, **options)
    upstream = normal(2, 3, length, 8, dtype=dtype).to(device)
    gradients = torch.autograd.grad((mixed * upstream).sum(), inputs)
    for tensor in (mixed, *gradients):
        assert tensor.isfinite().all()
        assert tensor[0].ne(0).any()
        assert tensor[1].eq(0).all()
    assert mixed[0, 1, 3].eq(0).all()
    assert gradients[0][0, 1, 3].eq(0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("way", WAYS)
def test_a_fully_masked_row_gives_zeros_and_a_zero_gradient(normal, way, dtype):
    silent_rows_stay_silent(normal, way, dtype, "cpu")


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fully_masked_row_is_silent_under_a_bias_too(normal, backend, dtype, learned):
    bias = normal(3, 5, 7, dtype=dtype).requires_grad_(learned)
    silent_rows_stay_silent(normal, backend, dtype, "cpu", score_bias=bias)


@pytest.mark.gpu
@pytest.mark.parametrize("length", [5, 64])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fully_masked_row_is_silent_on_a_gpu_too(normal, backend, dtype, biased, length):
    bias = normal(3, length, length + 2, dtype=dtype).cuda() if biased else None
    silent_rows_stay_silent(normal, backend, dtype, "cuda", length, score_bias=bias)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_block_by_block_a_fully_masked_row_is_silent_on_a_gpu_too(normal, dtype):
    silent_rows_stay_silent(normal, "online", dtype, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", [(64, 64), (5, 7), (1, 7)])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", WAYS)
def test_causal_attention_with_shared_heads_is_the_same_on_a_gpu(
    normal, way, dtype, num_kv_heads, lengths
):
    q_len, k_len = lengths
    sizes = (6, q_len), (num_kv_heads, k_len), (num_kv_heads, k_len)
    inputs = [normal(2, heads, length, 16) for heads, length in sizes]
    exact = forward_and_backward(
        lambda *x: scaled_dot_product_attention(*x, "causal"),
        *(x.to(dtype).double() for x in inputs),
    )
    found = forward_and_backward(
        lambda *x: attend(way, *x, "causal"), *(x.to("cuda", dtype) for x in inputs)
    )
    tolerance = 1e-3 if dtype == torch.float32 else 0.05
    for x, y in zip(found, exact, strict=True):
        torch.testing.assert_close(x.double().cpu(), y, atol=tolerance, rtol=tolerance)


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


@pytest.mark.parametrize("way", ["explicit", "online"])
def test_gradients_agree_with_finite_differences(normal, way):
    query, key, value = (normal(n, 3).requires_grad_() for n in (2, 5, 5))
    mask = torch.tensor([[True, False, True, True, False], [False] * 5])
    assert torch.autograd.gradcheck(
        lambda q, k, v: attend(way, q, k, v, mask, scale=0.7), (query, key, value)
    )


@pytest.mark.parametrize("way", WAYS)
def test_functional_gradients_are_the_same(qkv, way):
    """`torch.func` differentiates functions of tensors, and knows nothing of leaves."""
    query, key, value = qkv

    def loss(way):
        return lambda query: attend(way, query, key, value, "causal").sin().sum()

    torch.testing.assert_close(
        torch.func.grad(loss(way))(query), torch.func.grad(loss("explicit"))(query)
    )


@pytest.mark.slow
def test_a_compiler_takes_attention_whole():
    """In a process of its own: the compiler and the checker of shapes do not go together."""
    program = """
import torch
from groundup.attention import online_softmax_attention, scaled_dot_product_attention
from groundup.positions import alibi_bias

generator = torch.Generator().manual_seed(0)
query, key, value = (torch.randn(2, heads, 5, 4, generator=generator) for heads in (6, 2, 2))
for backend in ("explicit", "fused"):
    for bias in (None, alibi_bias(6, 5)):
        def attend(query, key, value):
            return scaled_dot_product_attention(
                query, key, value, "causal", backend=backend, score_bias=bias
            )
        compiled = torch.compile(attend, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(query, key, value), attend(query, key, value))
compiled = torch.compile(online_softmax_attention, fullgraph=True, backend="eager")
expected = scaled_dot_product_attention(query, key, value, "causal")
torch.testing.assert_close(compiled(query, key, value, "causal"), expected)
"""
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "JAXTYPING_DISABLE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("way", WAYS)
def test_inputs_are_left_alone(qkv, normal, way):
    inputs = (*qkv, make_mask("random", normal))
    before = [x.clone() for x in inputs]
    attend(way, *inputs)
    assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True))


# Refusals


@pytest.mark.parametrize("scores", [gaussian_scores, manhattan_scores])
@pytest.mark.parametrize("bandwidth", [0.0, -1.0, math.nan])
def test_a_bandwidth_that_is_not_positive_is_refused(normal, scores, bandwidth):
    with pytest.raises(ValueError, match=f"bandwidth must be positive, got bandwidth={bandwidth}"):
        scores(normal(5, 3), normal(7, 3), bandwidth)


@pytest.mark.parametrize("way", WAYS)
def test_heads_that_cannot_be_shared_are_refused(normal, way):
    with pytest.raises(
        ValueError, match=r"divides its heads, got query \(2, 3, 5, 4\), key .*2, 2"
    ):
        attend(way, normal(2, 3, 5, 4), normal(2, 2, 7, 4), normal(2, 2, 7, 6))
    with pytest.raises(ValueError, match=r"batch of the query .* key or value \(1, 3, 7, 4\)"):
        attend(way, normal(2, 3, 5, 4), normal(1, 3, 7, 4), normal(1, 3, 7, 6))
    with pytest.raises(ValueError, match=r"batch of the query .* key or value \(7, 4\)"):
        attend(way, normal(3, 5, 4), normal(7, 4), normal(7, 6))


def test_heads_that_cannot_be_repeated_are_refused(normal):
    with pytest.raises(ValueError, match="got num_heads=5, kv_heads=2"):
        repeat_kv_heads(normal(2, 3, 4), 5)


@pytest.mark.parametrize("way", WAYS)
def test_a_causal_attention_of_more_queries_than_keys_is_refused(normal, way):
    with pytest.raises(ValueError, match="q_len must not exceed k_len, got q_len=5, k_len=3"):
        attend(way, normal(5, 4), normal(3, 4), normal(3, 6), "causal")


@pytest.mark.parametrize("way", WAYS)
def test_an_unknown_word_for_a_mask_is_refused(normal, unchecked, way):
    with pytest.raises(ValueError, match='"causal" or None, got mask="casual"'):
        attend(way, normal(5, 4), normal(5, 4), normal(5, 6), "casual")


def test_blocks_without_keys_are_refused(normal):
    with pytest.raises(ValueError, match="block_size must be at least 1, got block_size=0"):
        online_softmax_attention(normal(5, 4), normal(5, 4), normal(5, 6), block_size=0)
