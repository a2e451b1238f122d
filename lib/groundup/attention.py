"""Attention: every query takes a weighted average of the values.

Scores say how well a query matches a key, a softmax over the keys turns them into weights,
and the weights average the values. Nothing here has parameters or knows about heads.
"""

import math
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from groundup.config import require_share
from groundup.masks import AnyMask, drawn_mask, masked_softmax


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
    mask: AnyMask | None = None,
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
    scores = dot_scores(query * scale, match_heads(key, query))
    if score_bias is not None:
        scores = scores + score_bias.to(scores.dtype)
    return masked_softmax(scores, mask)


def scaled_dot_product_attention(
    query: Float[Tensor, "*batch q_len d_head"],
    key: Float[Tensor, "*kv_batch k_len d_head"],
    value: Float[Tensor, "*kv_batch k_len d_value"],
    mask: AnyMask | None = None,
    scale: float | None = None,
    backend: Literal["explicit", "fused"] = "explicit",
    score_bias: Float[Tensor, "..."] | None = None,
    dropout: float = 0.0,
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
        dropout: Share of the weights that is dropped, from 0 to 1; for training. Those
            that stay are scaled up, so that the mean of many draws is the answer
            without dropout. Draws from torch's global random state.

    Returns:
        One average per query, in the convex hull of the values it may attend to; zeros where
        it may attend to nothing.

    Raises:
        ValueError: If the key heads do not divide the query heads, if `"causal"` meets
            more queries than keys, or if `dropout` is below 0 or not below 1.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, section 3.2.1,
        https://arxiv.org/abs/1706.03762; shared key heads: Ainslie et al. 2023, GQA, section
        2.2, https://arxiv.org/abs/2305.13245; dropout: `dot_product_attention` in
        https://github.com/tensorflow/tensor2tensor

    """
    require_share("dropout", dropout)
    if backend == "fused":
        return _fused_attention(query, key, value, mask, scale, score_bias, dropout)
    weights = attention_weights(query, key, mask, scale, score_bias)
    return F.dropout(weights, dropout) @ match_heads(value, query)


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


def match_heads(
    x: Float[Tensor, "*kv_batch length width"], query: Float[Tensor, "*batch q_len d_head"]
) -> Float[Tensor, "*batch length width"]:
    """Give keys or values as many heads as the query has, by `repeat_kv_heads` where needed.

    Raises:
        ValueError: If `x` has another batch, or heads that do not divide those of the query.

    """
    return repeat_kv_heads(x, query.shape[-3]) if _has_fewer_heads(x, query) else x


def _has_fewer_heads(x: Tensor, query: Tensor) -> bool:
    if x.shape[:-2] == query.shape[:-2]:
        return False
    if x.ndim != query.ndim or x.shape[:-3] != query.shape[:-3] or query.shape[-3] % x.shape[-3]:
        raise ValueError(
            "key and value must have the batch of the query and a number of heads that divides "
            f"its heads, got query {tuple(query.shape)}, key or value {tuple(x.shape)}"
        )
    return True


def _fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: AnyMask | None,
    scale: float | None,
    score_bias: Tensor | None,
    dropout: float,
) -> Tensor:
    q_len, k_len, is_grouped = query.shape[-2], key.shape[-2], _has_fewer_heads(key, query)
    # Only a causal mask that is said and not drawn lets torch choose its fastest kernel.
    is_causal = isinstance(mask, str) and mask == "causal" and q_len == k_len and score_bias is None
    drawn = None if is_causal else drawn_mask(mask, q_len, k_len, query.device)
    attn_mask, silent = drawn, None
    if score_bias is not None:
        attn_mask = score_bias.to(query.dtype)
        if drawn is not None:
            # Some kernels turn a row of nothing but -inf into NaN. So a query that may attend
            # to nothing attends to everything here, and its answer is dropped.
            silent = ~drawn.any(dim=-1, keepdim=True)
            attn_mask = attn_mask.masked_fill(~(drawn | silent), -math.inf)
    mixed = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask,
        dropout_p=dropout,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=is_grouped,
    )
    return mixed if silent is None else mixed.masked_fill(silent, 0.0)
