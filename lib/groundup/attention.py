"""Attention: every query takes a weighted average of the values.

Scores say how well a query matches a key, a softmax over the keys turns them into weights,
and the weights average the values. Nothing here has parameters or knows about heads.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from groundup.masks import causal_mask, masked_softmax, require_no_more_queries_than_keys


def dot_scores(
    query: Float[Tensor, "*batch q_len d_head"],
    key: Float[Tensor, "*batch k_len d_head"],
) -> Float[Tensor, "*batch q_len k_len"]:
    """Score each query against each key by their dot product.

    Long vectors score high: this measures agreement times length, not direction alone.

    Source:
        Luong et al. 2015, Effective Approaches to Attention-based Neural Machine Translation,
        section 3.1 ("dot"), https://arxiv.org/abs/1508.04025

    """
    return query @ key.transpose(-2, -1)


def attention_weights(
    query: Float[Tensor, "*batch q_len d_head"],
    key: Float[Tensor, "*kv_batch k_len d_head"],
    mask: Bool[Tensor, "..."] | Literal["causal"] | None = None,
    scale: float | None = None,
    score_bias: Float[Tensor, "..."] | None = None,
) -> Float[Tensor, "*batch q_len k_len"]:
    """Say how much each query attends to each key.

    Separate from the average of the values so that it can be looked at and tested alone.

    Args:
        query: What each position asks for.
        key: What each position answers to; `(*batch, k_len, d_head)`, or with fewer heads.
        mask: As in `scaled_dot_product_attention`.
        scale: Multiplies the scores; by default one over the square root of `d_head`, which
            gives scores of variance 1 for independent entries of variance 1.
        score_bias: Added to the scaled scores; broadcasts to `(*batch, q_len, k_len)`.

    Returns:
        Weights from 0 to 1. Rows sum to 1, or to 0 where nothing is allowed.

    Raises:
        ValueError: As in `scaled_dot_product_attention`.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, section 3.2.1,
        https://arxiv.org/abs/1706.03762

    """
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    key = _for_query_heads(key, query)
    scores = dot_scores(query * scale, key)
    if score_bias is not None:
        scores = scores + score_bias.to(scores.dtype)
    return masked_softmax(scores, _drawn(mask, query, key))


def scaled_dot_product_attention(
    query: Float[Tensor, "*batch q_len d_head"],
    key: Float[Tensor, "*kv_batch k_len d_head"],
    value: Float[Tensor, "*kv_batch k_len d_value"],
    mask: Bool[Tensor, "..."] | Literal["causal"] | None = None,
    scale: float | None = None,
    backend: Literal["explicit", "fused"] = "explicit",
    score_bias: Float[Tensor, "..."] | None = None,
) -> Float[Tensor, "*batch q_len d_value"]:
    """Give each query the average of the values, weighted by how well the keys match it.

    Args:
        query: What each position asks for.
        key: What each position answers to. There may be fewer key heads (third axis from the
            end) than query heads: neighbouring query heads then share one.
        value: What each position hands over when it is attended to.
        mask: True where attention is allowed; broadcasts to `(*batch, q_len, k_len)`.
            `"causal"` stands for `causal_mask(q_len, k_len)`.
        scale: Multiplies the scores; by default one over the square root of `d_head`.
        backend: `explicit` builds the weights and can be read; `fused` calls torch's kernel,
            which gives the same numbers without storing a `q_len` by `k_len` matrix.
        score_bias: Added to the scaled scores, as `alibi_bias` wants; broadcasts like `mask`.

    Returns:
        One average per query, in the convex hull of the values it may attend to; zeros where
        it may attend to nothing.

    Raises:
        ValueError: If the key heads do not divide the query heads, or if `"causal"` meets more
            queries than keys.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, section 3.2.1,
        https://arxiv.org/abs/1706.03762; shared key heads: Ainslie et al. 2023, GQA, section
        2.2, https://arxiv.org/abs/2305.13245

    """
    if backend == "fused":
        return _fused_attention(query, key, value, mask, scale, score_bias)
    weights = attention_weights(query, key, mask, scale, score_bias)
    return weights @ _for_query_heads(value, query)


def repeat_kv_heads(
    x: Float[Tensor, "*batch kv_heads length width"], num_heads: int
) -> Float[Tensor, "*batch {num_heads} length width"]:
    """Give every query head a copy of the key or value head that it shares with its neighbours.

    This is what grouped-query attention means: query head `i` reads key head
    `i * kv_heads // num_heads`. The fused backend reaches the same numbers without the copies.

    Args:
        x: Keys or values, head by head.
        num_heads: Number of query heads; a multiple of the heads of `x`.

    Raises:
        ValueError: If the heads do not divide.

    Source:
        Ainslie et al. 2023, GQA, section 2.2, https://arxiv.org/abs/2305.13245

    """
    kv_heads = x.shape[-3]
    if num_heads % kv_heads:
        raise ValueError(
            "num_heads must be a multiple of the key and value heads, "
            f"got num_heads={num_heads}, kv_heads={kv_heads}"
        )
    return x.repeat_interleave(num_heads // kv_heads, dim=-3)


def online_softmax_attention(
    query: Float[Tensor, "*batch q_len d_head"],
    key: Float[Tensor, "*kv_batch k_len d_head"],
    value: Float[Tensor, "*kv_batch k_len d_value"],
    mask: Bool[Tensor, "..."] | Literal["causal"] | None = None,
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
        _require_causal(mask)
        require_no_more_queries_than_keys(query.shape[-2], key.shape[-2])
    key, value = _for_query_heads(key, query), _for_query_heads(value, query)
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
    query: Tensor,
    key: Tensor,
    mask: Tensor | Literal["causal"] | None,
    scale: float,
    block: slice,
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


def additive_scores(
    query: Float[Tensor, "*batch q_len d_query"],
    key: Float[Tensor, "*batch k_len d_key"],
    w_query: Float[Tensor, "d_query d_hidden"],
    w_key: Float[Tensor, "d_key d_hidden"],
    w_score: Float[Tensor, " d_hidden"],
) -> Float[Tensor, "*batch q_len k_len"]:
    """Score each pair with a one-layer network: `tanh(q W_query + k W_key) · w_score`.

    Queries and keys may differ in width, and the score stays bounded; it costs a
    `(q_len, k_len, d_hidden)` intermediate that the dot product does not need.

    Source:
        Bahdanau et al. 2015, Neural Machine Translation by Jointly Learning to Align and
        Translate, appendix A.1.2, https://arxiv.org/abs/1409.0473

    """
    hidden = (query @ w_query).unsqueeze(-2) + (key @ w_key).unsqueeze(-3)
    return hidden.tanh() @ w_score  # (q_len, k_len, d_hidden) -> (q_len, k_len)


def gaussian_scores(
    query: Float[Tensor, "*batch q_len d_head"],
    key: Float[Tensor, "*batch k_len d_head"],
    bandwidth: float = 1.0,
) -> Float[Tensor, "*batch q_len k_len"]:
    """Score by closeness: minus the squared distance over twice the squared bandwidth.

    Under a softmax this is kernel regression with a Gaussian kernel, the estimator that
    attention grows out of. When all keys are equally long it gives the same weights as dot
    products over the squared bandwidth.

    Args:
        query: Where the average is wanted.
        key: Where the values were observed.
        bandwidth: Distance, in the units of the keys, over which a neighbour still counts.

    Raises:
        ValueError: If `bandwidth` is not positive.

    Source:
        Nadaraya 1964, On Estimating Regression, https://doi.org/10.1137/1109020; Watson 1964,
        Smooth Regression Analysis, Sankhya A 26(4), https://www.jstor.org/stable/25049340

    """
    _require_positive_bandwidth(bandwidth)
    difference = query.unsqueeze(-2) - key.unsqueeze(-3)  # (q_len, k_len, d_head)
    return -difference.square().sum(dim=-1) / (2 * bandwidth**2)


def manhattan_scores(
    query: Float[Tensor, "*batch q_len d_head"],
    key: Float[Tensor, "*batch k_len d_head"],
    bandwidth: float = 1.0,
) -> Float[Tensor, "*batch q_len k_len"]:
    """Score by closeness along the axes: minus the sum of absolute differences.

    One feature that is far off costs less than under the squared distance.

    Args:
        query: Where the average is wanted.
        key: Where the values were observed.
        bandwidth: Distance over which the weight falls by a factor of e.

    Raises:
        ValueError: If `bandwidth` is not positive.

    """
    _require_positive_bandwidth(bandwidth)
    difference = query.unsqueeze(-2) - key.unsqueeze(-3)  # (q_len, k_len, d_head)
    return -difference.abs().sum(dim=-1) / bandwidth


def mahalanobis_scores(
    query: Float[Tensor, "*batch q_len d_head"],
    key: Float[Tensor, "*batch k_len d_head"],
    precision: Float[Tensor, "d_head d_head"],
) -> Float[Tensor, "*batch q_len k_len"]:
    """Score by closeness in a learned or measured geometry: `-(q - k) P (q - k)ᵀ / 2`.

    Args:
        query: Where the average is wanted.
        key: Where the values were observed.
        precision: `P`, symmetric and positive definite, for instance an inverse covariance;
            the identity gives `gaussian_scores` with bandwidth 1.

    Source:
        Mahalanobis 1936, On the Generalised Distance in Statistics, Proceedings of the
        National Institute of Sciences of India 2(1), 49-55

    """
    difference = query.unsqueeze(-2) - key.unsqueeze(-3)  # (q_len, k_len, d_head)
    return -((difference @ precision) * difference).sum(dim=-1) / 2


def _require_positive_bandwidth(bandwidth: float) -> None:
    if not bandwidth > 0:
        raise ValueError(f"bandwidth must be positive, got bandwidth={bandwidth}")


def _fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | Literal["causal"] | None,
    scale: float | None,
    score_bias: Tensor | None,
) -> Tensor:
    is_grouped = not _have_equal_heads(key, query)
    # Only a causal mask that is said and not drawn lets torch choose its fastest kernel.
    is_square = query.shape[-2] == key.shape[-2]
    is_causal = isinstance(mask, str) and mask == "causal" and is_square and score_bias is None
    drawn = None if is_causal else _drawn(mask, query, key)
    attn_mask, silent = drawn, None
    if score_bias is not None:
        attn_mask = score_bias.to(query.dtype)
        if drawn is not None:
            # Some kernels turn a row of nothing but -inf into NaN. So a query that may attend
            # to nothing attends to everything here, and its answer is dropped.
            silent = ~drawn.any(dim=-1, keepdim=True)
            attn_mask = attn_mask.masked_fill(~(drawn | silent), -math.inf)
    mixed = F.scaled_dot_product_attention(
        query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=is_grouped
    )
    return mixed if silent is None else mixed.masked_fill(silent, 0.0)


def _drawn(
    mask: Tensor | Literal["causal"] | None, query: Tensor, key: Tensor
) -> Bool[Tensor, "..."] | None:
    """Give the mask as a tensor where it is a word."""
    if not isinstance(mask, str):
        return mask
    _require_causal(mask)
    if query.shape[-2] == 1:  # the newest token may see every key
        return None
    return causal_mask(query.shape[-2], key.shape[-2], query.device)


def _for_query_heads(x: Tensor, query: Tensor) -> Tensor:
    return x if _have_equal_heads(x, query) else repeat_kv_heads(x, query.shape[-3])


def _have_equal_heads(x: Tensor, query: Tensor) -> bool:
    if x.shape[:-2] == query.shape[:-2]:
        return True
    if x.ndim != query.ndim or x.shape[:-3] != query.shape[:-3] or query.shape[-3] % x.shape[-3]:
        raise ValueError(
            "key and value must have the batch of the query and a number of heads that divides "
            f"its heads, got query {tuple(query.shape)}, key or value {tuple(x.shape)}"
        )
    return False


def _require_causal(mask: str) -> None:
    if mask != "causal":
        raise ValueError(f'mask must be a boolean tensor, "causal" or None, got mask="{mask}"')
