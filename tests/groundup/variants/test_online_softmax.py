import math
import os
import subprocess
import sys
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from groundup.core.attention import scaled_dot_product_attention
from groundup.core.masks import causal_mask
from groundup.core.multihead import repeat_kv_heads
from groundup.variants.online_softmax import online_softmax_attention

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
MASKS = ["none", "causal", "padding", "random"]

in_threes = partial(online_softmax_attention, block_size=3)


# By hand


def test_attention_by_hand():
    """Scores 0 and 2 ln 3, over the root of d_head = 4: weights 1/4 and 3/4; one key at a time."""
    query = torch.tensor([[2 * math.log(3), 0.0, 0.0, 0.0]])
    key = torch.tensor([[0.0, 5.0, 5.0, 5.0], [1.0, 5.0, 5.0, 5.0]])
    value = torch.tensor([[4.0, 0.0, 8.0], [0.0, 4.0, 8.0]])
    mixed = online_softmax_attention(query, key, value, block_size=1)
    torch.testing.assert_close(mixed, torch.tensor([[1.0, 3.0, 8.0]]))


def test_block_by_block_scores_may_rise_and_fall_as_far_as_they_like():
    """The highest score comes in the first, the middle and the last block in turn."""
    value = torch.tensor([[1.0], [2.0], [3.0]])
    for best in range(3):
        key = torch.full((3, 1), -3e38)
        key[best] = 3e38
        mixed = online_softmax_attention(torch.ones(1, 1), key, value, block_size=1)
        assert mixed.tolist() == [[best + 1.0]]


# Laws


@pytest.mark.parametrize("mask_name", [*MASKS, "column"])
@pytest.mark.parametrize("block_size", [1, 3, 7, 64])
def test_block_by_block_equals_all_at_once(
    qkv, normal, mask_named, assert_equal_forward_and_backward, mask_name, block_size
):
    mask = normal(5, 1) > 0 if mask_name == "column" else mask_named(mask_name)
    assert_equal_forward_and_backward(
        lambda *inputs: online_softmax_attention(*inputs, mask, block_size=block_size),
        lambda *inputs: scaled_dot_product_attention(*inputs, mask),
        *qkv,
    )


@pytest.mark.parametrize("lengths", [(5, 5), (5, 7), (1, 7)])
def test_the_causal_flag_is_the_causal_mask(normal, assert_equal_forward_and_backward, lengths):
    q_len, k_len = lengths
    inputs = normal(2, 3, q_len, 4), normal(2, 3, k_len, 4), normal(2, 3, k_len, 6)
    assert_equal_forward_and_backward(
        lambda *inputs: in_threes(*inputs, is_causal=True),
        lambda *inputs: scaled_dot_product_attention(*inputs, causal_mask(q_len, k_len)),
        *inputs,
    )


@pytest.mark.parametrize("mask_name", ["none", "causal", "padding", "flag"])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 3])
def test_shared_heads_are_repeated_heads(
    normal, mask_named, assert_equal_forward_and_backward, num_kv_heads, mask_name
):
    """Gradients included: those of a shared head are the sum over the heads that share it."""
    inputs = normal(2, 6, 5, 4), normal(2, num_kv_heads, 7, 4), normal(2, num_kv_heads, 7, 3)
    hidden = {"is_causal": True} if mask_name == "flag" else {"mask": mask_named(mask_name)}
    assert_equal_forward_and_backward(
        lambda *inputs: in_threes(*inputs, **hidden),
        lambda query, *shared: scaled_dot_product_attention(
            query, *(repeat_kv_heads(x, 6) for x in shared), **hidden
        ),
        *inputs,
    )


class Sizes(TorchDispatchMode):
    """Note the largest tensor that any operation makes, in numbers."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        for made in output if isinstance(output, tuple | list) else [output]:
            if isinstance(made, torch.Tensor):
                self.largest = max(self.largest, made.numel())
        return output


@pytest.mark.parametrize("is_causal", [False, True])
def test_block_by_block_no_tensor_grows_with_the_square_of_the_length(
    normal, forward_and_backward, is_causal
):
    """128 and 256 tokens in blocks of 16: nothing larger than the tokens times their width."""
    largest = {"explicit": [], "online": []}
    for length in (128, 256):
        inputs = [normal(2, 3, length, width) for width in (16, 16, 20)]
        with Sizes() as sizes:
            forward_and_backward(
                lambda *x: scaled_dot_product_attention(*x, is_causal=is_causal), *inputs
            )
        largest["explicit"].append(sizes.largest)
        with Sizes() as sizes:
            forward_and_backward(
                lambda *x: online_softmax_attention(*x, block_size=16, is_causal=is_causal),
                *inputs,
            )
        largest["online"].append(sizes.largest)
    assert largest["explicit"] == [2 * 3 * 128 * 128, 2 * 3 * 256 * 256]
    assert largest["online"] == [2 * 3 * 128 * 20, 2 * 3 * 256 * 20]


def test_block_by_block_nothing_of_the_size_of_the_scores_waits_for_the_backward_pass(normal):
    saved = []
    inputs = [normal(2, 3, 64, 8).requires_grad_() for _ in range(3)]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        online_softmax_attention(*inputs, block_size=16, is_causal=True)
    assert saved and sum(x.numel() for x in saved) < 2 * 3 * 64 * 64


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_fully_masked_row_gives_zeros_and_a_zero_gradient(silent_rows_stay_silent, dtype):
    silent_rows_stay_silent(in_threes, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_block_by_block_a_fully_masked_row_is_silent_on_a_gpu_too(silent_rows_stay_silent, dtype):
    silent_rows_stay_silent(in_threes, dtype, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", [(64, 64), (5, 7), (1, 7)])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_causal_attention_with_shared_heads_is_the_same_on_a_gpu(
    normal, forward_and_backward, dtype, num_kv_heads, lengths
):
    q_len, k_len = lengths
    sizes = (6, q_len), (num_kv_heads, k_len), (num_kv_heads, k_len)
    inputs = [normal(2, heads, length, 16) for heads, length in sizes]
    exact = forward_and_backward(
        lambda query, *shared: scaled_dot_product_attention(
            query, *(repeat_kv_heads(x, 6) for x in shared), is_causal=True
        ),
        *(x.to(dtype).double() for x in inputs),
    )
    found = forward_and_backward(
        lambda *x: in_threes(*x, is_causal=True), *(x.to("cuda", dtype) for x in inputs)
    )
    tolerance = 1e-3 if dtype == torch.float32 else 0.05
    for x, y in zip(found, exact, strict=True):
        torch.testing.assert_close(x.double().cpu(), y, atol=tolerance, rtol=tolerance)


def test_gradients_agree_with_finite_differences(normal):
    query, key, value = (normal(n, 3).requires_grad_() for n in (2, 5, 5))
    mask = torch.tensor([[True, False, True, True, False], [False] * 5])
    assert torch.autograd.gradcheck(
        lambda q, k, v: in_threes(q, k, v, mask, scale=0.7), (query, key, value)
    )


def test_functional_gradients_are_the_same(qkv):
    """`torch.func` differentiates functions of tensors, and knows nothing of leaves."""
    query, key, value = qkv

    def loss(attend):
        return lambda query: attend(query, key, value, is_causal=True).sin().sum()

    torch.testing.assert_close(
        torch.func.grad(loss(in_threes))(query),
        torch.func.grad(loss(scaled_dot_product_attention))(query),
    )


@pytest.mark.slow
def test_a_compiler_takes_it_whole():
    """In a process of its own: the compiler and the checker of shapes do not go together."""
    program = """
import torch
from groundup.core.attention import scaled_dot_product_attention
from groundup.core.multihead import repeat_kv_heads
from groundup.variants.online_softmax import online_softmax_attention

generator = torch.Generator().manual_seed(0)
query, key, value = (torch.randn(2, heads, 5, 4, generator=generator) for heads in (6, 2, 2))
compiled = torch.compile(online_softmax_attention, fullgraph=True, backend="eager")
shared = (repeat_kv_heads(x, 6) for x in (key, value))
expected = scaled_dot_product_attention(query, *shared, is_causal=True)
torch.testing.assert_close(compiled(query, key, value, is_causal=True), expected)
"""
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "JAXTYPING_DISABLE": "1"},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr


def test_inputs_are_left_alone(qkv, mask_named):
    inputs = (*qkv, mask_named("random"))
    before = [x.clone() for x in inputs]
    in_threes(*inputs)
    assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True))


# Refusals


def test_heads_that_cannot_be_shared_are_refused(normal):
    with pytest.raises(ValueError, match="got num_heads=3, kv_heads=2"):
        in_threes(normal(2, 3, 5, 4), normal(2, 2, 7, 4), normal(2, 2, 7, 6))


def test_a_causal_attention_of_more_queries_than_keys_is_refused(normal):
    with pytest.raises(ValueError, match="q_len must not exceed k_len, got q_len=5, k_len=3"):
        in_threes(normal(5, 4), normal(3, 4), normal(3, 6), is_causal=True)


def test_blocks_without_keys_are_refused(normal):
    with pytest.raises(ValueError, match="block_size must be at least 1, got block_size=0"):
        online_softmax_attention(normal(5, 4), normal(5, 4), normal(5, 6), block_size=0)
