"""Attention: every query takes a weighted average of the values.

Scores measure how well a query matches each key, a softmax over the keys turns them into
weights, and the output is the weighted average of the values. Nothing here has parameters. Axes
before the last two are batch axes; only the fused backend treats the last of these as heads.
"""

import math
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from groundup.core.config import require_dropout
from groundup.core.masks import additive_mask, causal_mask, combine_masks, masked_softmax


def dot_scores(
    query: Float[Tensor, "*batch q_len d_head"], key: Float[Tensor, "*batch k_len d_head"]
) -> Float[Tensor, "*batch q_len k_len"]:
    """Score each query against each key by their dot product.

    The score depends on the norms of both vectors, not on the angle between them alone.

    Source:
        Luong et al. 2015, Effective Approaches to Attention-based Neural Machine Translation,
        section 3.1 ("dot"), https://arxiv.org/abs/1508.04025

    """
    return query @ key.transpose(-2, -1)


def attention_weights(
    query: Float[Tensor, "*batch q_len d_head"],
    key: Float[Tensor, "*batch k_len d_head"],
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    score_bias: Float[Tensor, "..."] | None = None,
    is_causal: bool = False,
) -> Float[Tensor, "*batch q_len k_len"]:
    """Return the weight of each key for each query.

    Separate from the average of the values, so that the weights can be plotted and tested.

    Args:
        query: What each position looks for.
        key: What each position offers for matching.
        mask: True where attention is allowed; broadcasts to `(*batch, q_len, k_len)`.
        scale: Multiplies the scores; by default one over the square root of `d_head`, which
            gives scores of variance 1 for independent entries of mean 0 and variance 1.
        score_bias: Added to the scaled scores, such as `alibi_bias`; broadcasts like `mask`.
        is_causal: Whether keys later than the query are hidden too. The queries are taken to be
            the last `q_len` of the `k_len` positions, as in `causal_mask`.

    Returns:
        Weights from 0 to 1. Rows sum to 1, or to 0 where nothing is allowed.

    Raises:
        ValueError: If `is_causal` and there are more queries than keys.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, section 3.2.1,
        https://arxiv.org/abs/1706.03762

    """
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    scores = dot_scores(query * scale, key)
    if score_bias is not None:
        scores = scores + score_bias.to(scores.dtype)
    if is_causal:  # adding is faster than masking, and safe: each query sees at least itself
        past = causal_mask(query.shape[-2], key.shape[-2], query.device)
        scores = scores + additive_mask(past, scores.dtype)
    return masked_softmax(scores, mask)


def scaled_dot_product_attention(
    query: Float[Tensor, "*batch q_len d_head"],
    key: Float[Tensor, "*kv_batch k_len d_head"],
    value: Float[Tensor, "*kv_batch k_len d_value"],
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    backend: Literal["explicit", "fused"] = "explicit",
    score_bias: Float[Tensor, "..."] | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
) -> Float[Tensor, "*batch q_len d_value"]:
    """Return for each query the average of the values, weighted by how well keys match it.

    Args:
        query: What each position looks for.
        key: What each position offers for matching. The fused backend also takes fewer key
            and value heads (third axis from the end) than query heads, see `repeat_kv_heads`.
        value: What each position contributes when it is attended to.
        mask: True where attention is allowed; broadcasts to `(*batch, q_len, k_len)`.
        scale: Multiplies the scores; by default one over the square root of `d_head`.
        backend: `explicit` computes the weights, step by step; `fused` calls torch's kernel,
            which gives the same numbers without storing a `q_len` by `k_len` matrix.
        score_bias: Added to the scaled scores, such as `alibi_bias`; broadcasts like `mask`.
        dropout: Probability that a weight is dropped, for training. The others are scaled up,
            so that the expected output stays the same. Draws from torch's global generator.
        is_causal: Whether keys later than the query are hidden too. The queries are taken to be
            the last `q_len` of the `k_len` positions, as in `causal_mask`. With as many queries
            as keys and no mask or bias, the fused backend builds no mask for it.

    Returns:
        One average per query: without dropout, in the convex hull of the values it may attend
        to; zeros where it may attend to nothing.

    Raises:
        ValueError: If `is_causal` and there are more queries than keys, or if `dropout` is
            not in [0, 1).

    Source:
        Vaswani et al. 2017, Attention Is All You Need, section 3.2.1,
        https://arxiv.org/abs/1706.03762; dropout: `dot_product_attention` in
        https://github.com/tensorflow/tensor2tensor

    """
    require_dropout(dropout=dropout)
    is_causal = is_causal and query.shape[-2] > 1  # a single query is the last: it sees every key
    if backend == "fused":
        return _fused_attention(query, key, value, mask, scale, score_bias, dropout, is_causal)
    weights = attention_weights(query, key, mask, scale, score_bias, is_causal)
    return F.dropout(weights, dropout) @ value


def _fused_attention(
    query: Float[Tensor, "*batch q_len d_head"],
    key: Float[Tensor, "*kv_batch k_len d_head"],
    value: Float[Tensor, "*kv_batch k_len d_value"],
    mask: Bool[Tensor, "..."] | None,
    scale: float | None,
    score_bias: Float[Tensor, "..."] | None,
    dropout: float,
    is_causal: bool,
) -> Float[Tensor, "*batch q_len d_value"]:
    """Compute the same numbers with torch's kernel."""
    # The kernel takes one of three: is_causal (which aligns the first query with the first key, so
    # it serves only where the scores are square), a boolean mask, or numbers to add.
    q_len, k_len = query.shape[-2], key.shape[-2]
    if is_causal and (q_len != k_len or mask is not None or score_bias is not None):
        is_causal, mask = False, combine_masks(causal_mask(q_len, k_len, query.device), mask)
    attn_mask = None if score_bias is None else score_bias.to(query.dtype)
    sees_nothing = None
    if mask is not None:
        # Of a row of nothing but minus infinity some kernels make NaN, and of a row of nothing but
        # False those for 16 bits on a GPU make an average. So a query that may attend to nothing
        # attends to everything here, and its output is set to zero.
        sees_nothing = ~mask.any(dim=-1, keepdim=True)
        mask = mask | sees_nothing
        attn_mask = mask if attn_mask is None else attn_mask.masked_fill(~mask, -math.inf)
    is_grouped = key.shape[:-2] != query.shape[:-2]  # fewer key heads: grouped-query attention
    mixed = F.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout, is_causal, scale=scale, enable_gqa=is_grouped
    )
    return mixed if sees_nothing is None else mixed.masked_fill(sees_nothing, 0.0)
