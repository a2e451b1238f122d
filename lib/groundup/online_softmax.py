"""Attention block by block: the same averages, in memory that grows with the length alone."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from groundup.attention import dot_scores, match_heads
from groundup.masks import AnyMask, require_causal


def online_softmax_attention(
    query: Float[Tensor, "*batch q_len d_head"],
    key: Float[Tensor, "*kv_batch k_len d_head"],
    value: Float[Tensor, "*kv_batch k_len d_value"],
    mask: AnyMask | None = None,
    scale: float | None = None,
    block_size: int = 64,
) -> Float[Tensor, "*batch q_len d_value"]:
    """Give the same averages without ever holding all the scores of a query.

    The keys come block by block. Three things are kept for each query: the highest score so
    far, the sum of the shares so far, and the values so far, weighted by their shares. When a
    block brings a higher score, what was kept shrinks by one factor. The backward pass works
    the shares out again instead of storing them. So memory grows with the length and not with
    its square, forward and backward. The fused kernels do the same where memory is fast; this
    is the version to read.

    Args:
        query: What each position asks for.
        key: What each position answers to; with fewer heads if they are shared.
        value: What each position hands over.
        mask: As in `scaled_dot_product_attention`. The word `"causal"` costs no memory; a
            tensor is there already.
        scale: Multiplies the scores; by default one over the square root of `d_head`.
        block_size: Number of keys that are looked at together.

    Returns:
        One average per query; zeros where it may attend to nothing. Sums are kept in float32
        at least.

    Raises:
        ValueError: If `block_size` is below 1, or as in `scaled_dot_product_attention`.

    Source:
        Milakov and Gimelshein 2018, Online normalizer calculation for softmax, section 3,
        https://arxiv.org/abs/1805.02867; Dao et al. 2022, FlashAttention, section 3.1 and
        appendix B, https://arxiv.org/abs/2205.14135

    """
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, got block_size={block_size}")
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    if isinstance(mask, str):
        require_causal(mask, query.shape[-2], key.shape[-2])
    key, value = match_heads(key, query), match_heads(value, query)
    mixed, _ = _OnlineSoftmax.apply(query, key, value, mask, scale, block_size)
    return mixed


class _OnlineSoftmax(torch.autograd.Function):
    """`online_softmax_attention`, with a backward pass that stores no shares either."""

    @staticmethod
    def forward(query, key, value, mask, scale, block_size):
        dtype = torch.promote_types(query.dtype, torch.float32)
        lowest = torch.finfo(dtype).min  # finite, so that no difference of scores is NaN
        highest = query.new_full((*query.shape[:-1], 1), lowest, dtype=dtype)
        total = torch.zeros_like(highest)
        mixed = query.new_zeros((*query.shape[:-1], value.shape[-1]), dtype=dtype)
        for start in range(0, key.shape[-2], block_size):
            block = slice(start, start + block_size)
            scores = _block_scores(query, key, mask, scale, block)  # (*batch, q_len, block)
            higher = torch.maximum(highest, scores.amax(dim=-1, keepdim=True))
            share, shrink = (scores - higher).exp(), (highest - higher).exp()
            total = total * shrink + share.sum(dim=-1, keepdim=True)
            mixed = mixed * shrink + share @ value[..., block, :].to(dtype)
            highest = higher
        total = total.masked_fill(total == 0, 1.0)  # where nothing is allowed
        return (mixed / total).to(query.dtype), highest + total.log()

    @staticmethod
    def setup_context(ctx, inputs, output):
        query, key, value, ctx.mask, ctx.scale, ctx.block_size = inputs
        mixed, log_total = output
        ctx.mark_non_differentiable(log_total)
        ctx.save_for_backward(query, key, value, mixed, log_total)

    @staticmethod
    def backward(ctx, upstream, _):  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key, value, mixed, log_total = ctx.saved_tensors
        wide_query, upstream = query.to(log_total.dtype), upstream.to(log_total.dtype)
        # A weight moves the loss by how far its value stands out from the average.
        average = (upstream * mixed).sum(dim=-1, keepdim=True)
        grad_query = torch.zeros_like(wide_query)
        grad_key, grad_value = torch.zeros_like(key), torch.zeros_like(value)
        for start in range(0, key.shape[-2], ctx.block_size):
            block = slice(start, start + ctx.block_size)
            scores = _block_scores(query, key, ctx.mask, ctx.scale, block)
            weights = (scores - log_total).exp()
            grad_weights = upstream @ value[..., block, :].to(log_total.dtype).transpose(-2, -1)
            grad_scores = weights * (grad_weights - average) * ctx.scale
            grad_query += grad_scores @ key[..., block, :].to(log_total.dtype)
            grad_key[..., block, :] = grad_scores.transpose(-2, -1) @ wide_query
            grad_value[..., block, :] = weights.transpose(-2, -1) @ upstream
        return grad_query.to(query.dtype), grad_key, grad_value, None, None, None


def _block_scores(
    query: Tensor, key: Tensor, mask: AnyMask | None, scale: float, block: slice
) -> Tensor:
    """Score one block of keys, in float32 at least, with minus infinity where masked."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    scores = dot_scores(query.to(dtype) * scale, key[..., block, :].to(dtype))
    if mask is None:
        return scores
    if isinstance(mask, str):
        q_len, k_len = query.shape[-2], key.shape[-2]
        places = torch.arange(k_len, device=query.device)
        allowed = places[block] <= places[k_len - q_len :, None]  # (q_len, block)
    else:
        allowed = mask if mask.shape[-1] == 1 else mask[..., block]
    return scores.masked_fill(~allowed, -math.inf)
