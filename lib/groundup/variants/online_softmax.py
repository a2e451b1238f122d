"""Attention block by block: the same result, in memory that is linear in the length."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from groundup.core.attention import dot_scores
from groundup.core.config import require
from groundup.core.multihead import repeat_kv_heads


def online_softmax_attention(
    query: Float[Tensor, "*batch q_len d_head"],
    key: Float[Tensor, "*kv_batch k_len d_head"],
    value: Float[Tensor, "*kv_batch k_len d_value"],
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    block_size: int = 64,
    is_causal: bool = False,
) -> Float[Tensor, "*batch q_len d_value"]:
    """Compute attention without ever storing all the scores of a query.

    Keys are processed block by block. For each query three quantities are kept: the highest score
    so far, the sum of the unnormalised weights, and the sum of the values times these weights. A
    block with a higher score rescales both sums by one factor. The backward pass recomputes the
    weights instead of storing them, so memory is linear in the length, forward and backward.
    Fused kernels do the same in fast on-chip memory; this version is meant for reading.

    Args:
        query: One vector per query position.
        key: One vector per key position; with fewer heads if query heads share them.
        value: One vector per key position, with as many heads as `key`.
        mask: As in `scaled_dot_product_attention`.
        scale: Multiplies the scores; by default one over the square root of `d_head`.
        block_size: Number of keys that are processed together.
        is_causal: Whether to mask later keys too, which takes no memory. The queries are at the
            last positions of the keys, as in `causal_mask`.

    Returns:
        One average per query; zeros if it may attend to nothing. Sums are accumulated in float32
        at least.

    Raises:
        ValueError: If `block_size` is below 1, or if there are more queries than keys and
            `is_causal`.

    Source:
        Milakov and Gimelshein 2018, Online normalizer calculation for softmax, section 3,
        https://arxiv.org/abs/1805.02867; Dao et al. 2022, FlashAttention, section 3.1 and
        appendix B, https://arxiv.org/abs/2205.14135

    """
    require(block_size >= 1, "block_size must be at least 1", block_size=block_size)
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    q_len, k_len = query.shape[-2], key.shape[-2]
    fits = not is_causal or q_len <= k_len
    require(fits, "q_len must not exceed k_len", q_len=q_len, k_len=k_len)
    if key.shape[:-2] != query.shape[:-2]:
        key, value = (repeat_kv_heads(x, query.shape[-3]) for x in (key, value))
    mixed, _ = _OnlineSoftmax.apply(query, key, value, mask, scale, block_size, is_causal)
    return mixed


class _OnlineSoftmax(torch.autograd.Function):
    """`online_softmax_attention`, with a backward pass that stores no weights either."""

    @staticmethod
    def forward(query, key, value, mask, scale, block_size, is_causal):
        dtype = torch.promote_types(query.dtype, torch.float32)
        lowest = torch.finfo(dtype).min  # finite, so that no difference of scores is NaN
        highest = query.new_full((*query.shape[:-1], 1), lowest, dtype=dtype)
        total = torch.zeros_like(highest)
        mixed = query.new_zeros((*query.shape[:-1], value.shape[-1]), dtype=dtype)
        for start in range(0, key.shape[-2], block_size):
            block = slice(start, start + block_size)
            scores = _block_scores(query, key, mask, scale, block, is_causal)
            higher = torch.maximum(highest, scores.amax(dim=-1, keepdim=True))
            weights, rescale = (scores - higher).exp(), (highest - higher).exp()
            total = total * rescale + weights.sum(dim=-1, keepdim=True)
            mixed = mixed * rescale + weights @ value[..., block, :].to(dtype)
            highest = higher
        total = total.masked_fill(total == 0, 1.0)  # where nothing is allowed
        return (mixed / total).to(query.dtype), highest + total.log()

    @staticmethod
    def setup_context(ctx, inputs, output):
        query, key, value, ctx.mask, ctx.scale, ctx.block_size, ctx.is_causal = inputs
        mixed, log_total = output
        ctx.mark_non_differentiable(log_total)
        ctx.save_for_backward(query, key, value, mixed, log_total)

    @staticmethod
    def backward(ctx, upstream, _):  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key, value, mixed, log_total = ctx.saved_tensors
        wide_query, upstream = query.to(log_total.dtype), upstream.to(log_total.dtype)
        # The derivative of a softmax subtracts the weighted average of the incoming gradients.
        average = (upstream * mixed).sum(dim=-1, keepdim=True)
        grad_query = torch.zeros_like(wide_query)
        grad_key, grad_value = torch.zeros_like(key), torch.zeros_like(value)
        for start in range(0, key.shape[-2], ctx.block_size):
            block = slice(start, start + ctx.block_size)
            scores = _block_scores(query, key, ctx.mask, ctx.scale, block, ctx.is_causal)
            weights = (scores - log_total).exp()
            grad_weights = upstream @ value[..., block, :].to(log_total.dtype).transpose(-2, -1)
            grad_scores = weights * (grad_weights - average) * ctx.scale
            grad_query += grad_scores @ key[..., block, :].to(log_total.dtype)
            grad_key[..., block, :] = grad_scores.transpose(-2, -1) @ wide_query
            grad_value[..., block, :] = weights.transpose(-2, -1) @ upstream
        return grad_query.to(query.dtype), grad_key, grad_value, None, None, None, None


def _block_scores(
    query: Tensor, key: Tensor, mask: Tensor | None, scale: float, block: slice, is_causal: bool
) -> Tensor:
    """Score one block of keys, in float32 at least, with minus infinity where masked."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    scores = dot_scores(query.to(dtype) * scale, key[..., block, :].to(dtype))
    if is_causal:
        q_len, k_len = query.shape[-2], key.shape[-2]
        index = torch.arange(k_len, device=query.device)
        is_past = index[block] <= index[k_len - q_len :, None]  # (q_len, block)
        scores = scores.masked_fill(~is_past, -math.inf)
    if mask is not None:
        allowed = mask if mask.shape[-1] == 1 else mask[..., block]
        scores = scores.masked_fill(~allowed, -math.inf)
    return scores
