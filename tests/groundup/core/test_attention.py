import math
import os
import subprocess
import sys
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from groundup.core.attention import (
    attention_weights,
    dot_scores,
    scaled_dot_product_attention,
)
from groundup.core.masks import causal_mask
from groundup.core.multihead import repeat_kv_heads
from groundup.core.positions import alibi_bias

BACKENDS = ["explicit", "fused"]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
MASKS = ["none", "causal", "padding", "random"]


@pytest.fixture
def masked(normal, mask_named):
    """Make inputs, what hides keys as it is given, and the same as a mask; the flag is square."""

    def make(mask_name, num_kv_heads=3):
        is_flag = mask_name == "flag"
        k_len = 5 if is_flag else 7
        key, value = (normal(2, num_kv_heads, k_len, width) for width in (4, 6))
        mask = causal_mask(5) if is_flag else mask_named(mask_name)
        return (normal(2, 3, 5, 4), key, value), hiding(mask_name, mask), mask

    return make


def hiding(mask_name, mask):
    return {"is_causal": True} if mask_name == "flag" else {"mask": mask}


def attention(query, key, value, backend="explicit", **choices):
    """Attend with heads that may be fewer in key and value; only the kernel shares them itself."""
    if backend == "explicit" and key.shape[:-2] != query.shape[:-2]:
        key, value = (repeat_kv_heads(x, query.shape[-3]) for x in (key, value))
    return scaled_dot_product_attention(query, key, value, backend=backend, **choices)


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
    for backend in BACKENDS:
        mixed = attention(query, key, value, backend)
        assert mixed.flatten().tolist() == [5, 5, 7, 7]


# Against torch


@pytest.mark.parametrize("mask_name", MASKS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_equals_torch_s(qkv, mask_named, mask_name, backend):
    query, key, value = qkv
    mask = mask_named(mask_name)
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


@pytest.mark.parametrize("mask_name", [*MASKS, "flag"])
@pytest.mark.parametrize("num_kv_heads", [1, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_is_torch_s_layer_between_the_softmax_and_the_values(
    masked, forward_and_backward, backend, num_kv_heads, mask_name
):
    """From one seed, the same weights are dropped; gradients flow through the others only."""
    inputs, hidden, mask = masked(mask_name, num_kv_heads)

    def ours(*inputs):
        torch.manual_seed(0)
        return attention(*inputs, backend, dropout=0.4, **hidden)

    def by_hand(query, *shared):
        key, value = (repeat_kv_heads(x, 3) for x in shared)
        torch.manual_seed(0)
        return nn.Dropout(0.4)(attention_weights(query, key, mask)) @ value

    results = (forward_and_backward(function, *inputs) for function in (ours, by_hand))
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y)


# Laws


@pytest.mark.parametrize("mask_name", [*MASKS, "flag"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_dropout_of_zero_changes_and_draws_nothing(masked, backend, mask_name):
    inputs, hidden, _ = masked(mask_name)
    before = torch.get_rng_state()
    mixed = scaled_dot_product_attention(*inputs, backend=backend, dropout=0.0, **hidden)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(mixed, scaled_dot_product_attention(*inputs, backend=backend, **hidden))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("mask_name", ["none", "random", "flag"])
@pytest.mark.parametrize("num_kv_heads", [1, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_each_weight_is_dropped_or_scaled_up(
    masked, normal, backend, num_kv_heads, mask_name, biased
):
    """Where the values are the rows of the identity, the answers are the weights in use."""
    (query, key, _), hidden, mask = masked(mask_name, num_kv_heads)
    k_len = key.shape[-2]
    bias = normal(3, 5, k_len) if biased else None
    weights = attention_weights(query, repeat_kv_heads(key, 3), mask, score_bias=bias)
    inputs = (query, key, torch.eye(k_len).double().expand(2, num_kv_heads, -1, -1))
    torch.manual_seed(0)
    for dropout in (0.1, 0.7):
        many = (x.expand(200, *x.shape) for x in inputs)
        used = attention(*many, backend, score_bias=bias, dropout=dropout, **hidden)
        is_dropped, whole = used == 0, weights.expand_as(used)
        torch.testing.assert_close(used[~is_dropped], whole[~is_dropped] / (1 - dropout))
        coins = is_dropped[whole > 0].double()
        error = math.sqrt(dropout * (1 - dropout) / len(coins))  # of their mean
        assert abs(coins.mean() - dropout) < 5 * error
        alike = (is_dropped == is_dropped[:, :1, :1, :1])[whole > 0].double().mean()
        assert alike < 0.98  # each sequence, head and query draws for itself


@pytest.mark.parametrize("mask_name", [*MASKS, "flag"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_mean_of_many_draws_is_the_answer_without_dropout(masked, backend, mask_name):
    """The variance of a draw is p / (1 - p) times the sum of squared weights times values."""
    inputs, hidden, mask = masked(mask_name)
    exact = scaled_dot_product_attention(*inputs, **hidden)
    variance = attention_weights(*inputs[:2], mask).square() @ inputs[2].square() * 0.3 / 0.7
    torch.manual_seed(0)
    many = (x.expand(2000, *x.shape) for x in inputs)
    draws = scaled_dot_product_attention(*many, backend=backend, dropout=0.3, **hidden)
    assert ((draws.mean(dim=0) - exact).abs() <= 5 * (variance / 2000).sqrt() + 1e-12).all()
    torch.testing.assert_close(draws.var(dim=0), variance, atol=1e-9, rtol=0.25)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fully_masked_row_is_silent_under_dropout_too(
    normal, silent_rows_stay_silent, backend, biased
):
    torch.manual_seed(0)
    bias = normal(3, 5, 7, dtype=torch.float32) if biased else None
    attend = partial(scaled_dot_product_attention, backend=backend, score_bias=bias, dropout=0.3)
    silent_rows_stay_silent(attend, torch.float32)


@pytest.mark.parametrize("mask_name", MASKS)
def test_both_backends_agree_forward_and_backward(qkv, normal, mask_named, mask_name):
    mask, upstream = mask_named(mask_name), normal(2, 3, 5, 6)
    results = []
    for backend in BACKENDS:
        inputs = [x.clone().requires_grad_() for x in qkv]
        mixed = scaled_dot_product_attention(*inputs, mask, backend=backend)
        results.append((mixed, *torch.autograd.grad((mixed * upstream).sum(), inputs)))
    for explicit, fused in zip(*results, strict=True):
        torch.testing.assert_close(explicit, fused)


@pytest.mark.parametrize("lengths", [(5, 5), (5, 7), (1, 7)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_causal_flag_is_the_causal_mask(
    normal, assert_equal_forward_and_backward, backend, lengths
):
    q_len, k_len = lengths
    inputs = normal(2, 3, q_len, 4), normal(2, 3, k_len, 4), normal(2, 3, k_len, 6)
    assert_equal_forward_and_backward(
        lambda *inputs: scaled_dot_product_attention(*inputs, backend=backend, is_causal=True),
        lambda *inputs: scaled_dot_product_attention(*inputs, causal_mask(q_len, k_len)),
        *inputs,
    )


@pytest.mark.parametrize("mask_name", [*MASKS, "flag"])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_shared_heads_are_repeated_heads(
    normal, mask_named, assert_equal_forward_and_backward, backend, num_kv_heads, mask_name
):
    """Gradients included: those of a shared head are the sum over the heads that share it."""
    query = normal(2, 6, 5, 4)
    key, value = normal(2, num_kv_heads, 7, 4), normal(2, num_kv_heads, 7, 3)
    mask = normal(2, 6, 5, 7) > 0.5 if mask_name == "random" else None
    if mask_name not in ("random", "flag"):
        mask = mask_named(mask_name)
    hidden = hiding(mask_name, mask)
    assert_equal_forward_and_backward(
        lambda query, key, value: attention(query, key, value, backend, **hidden),
        lambda query, *shared: scaled_dot_product_attention(
            query, *(repeat_kv_heads(x, 6) for x in shared), **hidden
        ),
        query,
        key,
        value,
    )


def test_shared_heads_need_no_batch(normal):
    query, key, value = normal(6, 5, 4), normal(2, 7, 4), normal(2, 7, 3)
    repeated = (repeat_kv_heads(x, 6) for x in (key, value))
    expected = scaled_dot_product_attention(query, *repeated)
    for backend in BACKENDS:
        mixed = attention(query, key, value, backend)
        torch.testing.assert_close(mixed, expected)


@pytest.mark.parametrize("mask_name", [*MASKS, "flag"])
@pytest.mark.parametrize("num_kv_heads", [1, 3])
def test_both_backends_add_the_same_bias(
    normal, mask_named, assert_equal_forward_and_backward, mask_name, num_kv_heads
):
    """A bias per head, and gradients for it too: it may be learned."""
    hidden = hiding(mask_name, None if mask_name == "flag" else mask_named(mask_name))
    inputs = normal(2, 3, 5, 4), normal(2, num_kv_heads, 7, 4), normal(2, num_kv_heads, 7, 6)

    def with_backend(backend):
        return lambda query, key, value, bias: attention(
            query, key, value, backend, score_bias=bias, **hidden
        )

    bias = normal(3, 5, 7)
    assert_equal_forward_and_backward(*map(with_backend, BACKENDS), *inputs, bias)
    query, key = inputs[0], repeat_kv_heads(inputs[1], 3)
    biased = attention_weights(query, key, score_bias=bias, **hidden)
    assert not torch.allclose(biased, attention_weights(query, key, **hidden))


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
        query, key, value, backend=backend, score_bias=bias, is_causal=True
    )
    theirs = F.scaled_dot_product_attention(
        query, key, value, attn_mask=bias.masked_fill(~causal_mask(5), -math.inf)
    )
    torch.testing.assert_close(mixed, theirs)
    torch.testing.assert_close(mixed[:, :, 0], value[:, :, 0])


def test_a_strong_bias_lets_each_query_see_its_own_place_only(normal):
    query, key, value = normal(2, 3, 5, 4), normal(2, 3, 5, 4), normal(2, 3, 5, 6)
    bias = 1e6 * alibi_bias(3, 5).double()
    for backend in BACKENDS:
        mixed = scaled_dot_product_attention(query, key, value, backend=backend, score_bias=bias)
        torch.testing.assert_close(mixed, value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bias_in_another_precision_serves(normal, backend):
    """As under autocast, and where a model is cast and its bias is not."""
    inputs = [normal(2, 3, n, 8) for n in (5, 7, 7)]
    bias = alibi_bias(3, 5, 7).double()
    choices = {"score_bias": bias, "is_causal": True}
    exact = scaled_dot_product_attention(*inputs, **choices)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        cast = (x.to(dtype) for x in inputs)
        mixed = scaled_dot_product_attention(*cast, backend=backend, **choices)
        assert mixed.dtype == dtype
        torch.testing.assert_close(mixed.double(), exact, atol=0.05, rtol=0.05)
    with torch.autocast("cpu", torch.bfloat16):
        single = (x.float() for x in inputs)
        mixed = scaled_dot_product_attention(*single, backend=backend, **choices)
    torch.testing.assert_close(mixed.double(), exact, atol=0.05, rtol=0.05)


def test_the_fused_backend_leaves_to_the_kernel_what_it_can(normal, monkeypatch):
    """No mask is drawn for a square causal attention or a single query; no head is copied."""
    seen = {}
    kernel = F.scaled_dot_product_attention

    def spy(query, key, value, attn_mask, dropout, is_causal, **options):
        seen.update(options, attn_mask=attn_mask, is_causal=is_causal, kv_heads=key.shape[-3])
        return kernel(query, key, value, attn_mask, dropout, is_causal, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    for q_len, k_len, is_causal, is_drawn in [(5, 5, True, False), (1, 7, False, False)] + [
        (5, 7, False, True)
    ]:
        inputs = normal(2, 6, q_len, 4), normal(2, 2, k_len, 4), normal(2, 2, k_len, 3)
        scaled_dot_product_attention(*inputs, backend="fused", is_causal=True)
        assert seen["is_causal"] == is_causal and (seen["attn_mask"] is not None) == is_drawn
        assert seen["kv_heads"] == 2 and seen["enable_gqa"]


def test_no_kernel_meets_a_row_of_nothing_but_minus_infinity(silent_rows_stay_silent, monkeypatch):
    """Not every kernel answers such a row with zeros, and not in every version."""
    seen = []
    kernel = F.scaled_dot_product_attention

    def spy(query, key, value, attn_mask, *choices, **options):
        seen.append(attn_mask)
        return kernel(query, key, value, attn_mask, *choices, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    bias = torch.zeros(3, 5, 7)
    attend = partial(scaled_dot_product_attention, backend="fused", score_bias=bias)
    silent_rows_stay_silent(attend, torch.float32)
    assert seen[0].isneginf().any() and not seen[0].isneginf().all(dim=-1).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fully_masked_row_gives_zeros_and_a_zero_gradient(
    silent_rows_stay_silent, backend, dtype
):
    silent_rows_stay_silent(partial(scaled_dot_product_attention, backend=backend), dtype)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fully_masked_row_is_silent_under_a_bias_too(
    normal, silent_rows_stay_silent, backend, dtype, learned
):
    bias = normal(3, 5, 7, dtype=dtype).requires_grad_(learned)
    attend = partial(scaled_dot_product_attention, backend=backend, score_bias=bias)
    silent_rows_stay_silent(attend, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("length", [5, 64])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fully_masked_row_is_silent_on_a_gpu_too(
    normal, silent_rows_stay_silent, backend, dtype, biased, length
):
    bias = normal(3, length, length + 2, dtype=dtype).cuda() if biased else None
    attend = partial(scaled_dot_product_attention, backend=backend, score_bias=bias)
    silent_rows_stay_silent(attend, dtype, "cuda", length)


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", [(64, 64), (5, 7), (1, 7)])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", BACKENDS)
def test_causal_attention_with_shared_heads_is_the_same_on_a_gpu(
    normal, forward_and_backward, backend, dtype, num_kv_heads, lengths
):
    q_len, k_len = lengths
    sizes = (6, q_len), (num_kv_heads, k_len), (num_kv_heads, k_len)
    inputs = [normal(2, heads, length, 16) for heads, length in sizes]
    exact = forward_and_backward(
        lambda *x: attention(*x, is_causal=True),
        *(x.to(dtype).double() for x in inputs),
    )
    found = forward_and_backward(
        lambda *x: attention(*x, backend, is_causal=True),
        *(x.to("cuda", dtype) for x in inputs),
    )
    tolerance = 1e-3 if dtype == torch.float32 else 0.05
    for x, y in zip(found, exact, strict=True):
        torch.testing.assert_close(x.double().cpu(), y, atol=tolerance, rtol=tolerance)


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


def test_values_can_be_projected_before_or_after_the_average(qkv, normal):
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


def test_gradients_agree_with_finite_differences(normal):
    query, key, value = (normal(n, 3).requires_grad_() for n in (2, 5, 5))
    mask = torch.tensor([[True, False, True, True, False], [False] * 5])
    assert torch.autograd.gradcheck(
        lambda q, k, v: scaled_dot_product_attention(q, k, v, mask, scale=0.7),
        (query, key, value),
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_functional_gradients_are_the_same(qkv, backend):
    """`torch.func` differentiates functions of tensors, and knows nothing of leaves."""
    query, key, value = qkv

    def loss(backend):
        attend = partial(scaled_dot_product_attention, is_causal=True, backend=backend)
        return lambda query: attend(query, key, value).sin().sum()

    torch.testing.assert_close(
        torch.func.grad(loss(backend))(query), torch.func.grad(loss("explicit"))(query)
    )


@pytest.mark.slow
def test_a_compiler_takes_attention_whole():
    """In a process of its own: the compiler and the checker of shapes do not go together."""
    program = """
import torch
from groundup.core.attention import scaled_dot_product_attention
from groundup.core.multihead import repeat_kv_heads
from groundup.core.positions import alibi_bias

generator = torch.Generator().manual_seed(0)
query, key, value = (torch.randn(2, heads, 5, 4, generator=generator) for heads in (6, 2, 2))
for backend in ("explicit", "fused"):
    for bias in (None, alibi_bias(6, 5)):
        def attend(query, key, value):
            if backend == "explicit":
                key, value = (repeat_kv_heads(x, 6) for x in (key, value))
            return scaled_dot_product_attention(
                query, key, value, backend=backend, score_bias=bias, is_causal=True
            )
        compiled = torch.compile(attend, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(query, key, value), attend(query, key, value))
"""
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "JAXTYPING_DISABLE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_are_left_alone(qkv, mask_named, backend):
    inputs = (*qkv, mask_named("random"))
    before = [x.clone() for x in inputs]
    scaled_dot_product_attention(*inputs, backend=backend)
    assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True))


# Refusals


@pytest.mark.parametrize("backend", BACKENDS)
def test_heads_that_cannot_be_shared_are_refused(normal, unchecked, backend):
    with pytest.raises((ValueError, RuntimeError), match="[hH]eads"):
        attention(normal(2, 3, 5, 4), normal(2, 2, 7, 4), normal(2, 2, 7, 6), backend)
    with pytest.raises(RuntimeError, match="batch|must match"):
        attention(normal(2, 3, 5, 4), normal(5, 3, 7, 4), normal(5, 3, 7, 6), backend)


def test_heads_that_cannot_be_repeated_are_refused(normal):
    with pytest.raises(ValueError, match="got num_heads=5, kv_heads=2"):
        repeat_kv_heads(normal(2, 3, 4), 5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_causal_attention_of_more_queries_than_keys_is_refused(normal, backend):
    with pytest.raises(ValueError, match="q_len must not exceed k_len, got q_len=5, k_len=3"):
        scaled_dot_product_attention(
            normal(5, 4), normal(3, 4), normal(3, 6), backend=backend, is_causal=True
        )


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 1.5, math.nan])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_dropout_of_less_than_nothing_or_of_everything_is_refused(normal, backend, dropout):
    message = f"dropout must be at least 0 and below 1, got dropout={dropout}"
    with pytest.raises(ValueError, match=message):
        scaled_dot_product_attention(
            normal(5, 4), normal(5, 4), normal(5, 6), backend=backend, dropout=dropout
        )
