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

from groundup.masks import causal_mask, masked_softmax


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
    q_len, k_len = query.shape[-2], key.shape[-2]
    scores = dot_scores(_by_key_head(query * scale, key), key).reshape(*query.shape[:-1], k_len)
    if score_bias is not None:
        scores = scores + score_bias.to(scores.dtype)
    return masked_softmax(scores, _mask_tensor(mask, q_len, k_len, query.device))


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
    mixed = _by_key_head(weights, value) @ value
    return mixed.reshape(*query.shape[:-1], value.shape[-1])


def repeat_kv_heads(
    x: Float[Tensor, "*batch kv_heads length width"], num_heads: int
) -> Float[Tensor, "*batch {num_heads} length width"]:
    """Give every query head a copy of the key or value head that it shares with its neighbours.

    This is what grouped-query attention means: query head `i` reads key head
    `i * kv_heads // num_heads`. The functions above reach the same numbers without the copies.

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


def _by_key_head(x: Tensor, key: Tensor) -> Tensor:
    """Line up the rows of query heads that share a key head, so that the key is not copied.

    From `(*batch, heads, q_len, width)` to `(*batch, key heads, group * q_len, width)`.
    """
    if x.shape[:-2] == key.shape[:-2]:
        return x
    _require_shared_heads(x, key)
    return x.reshape(*key.shape[:-2], -1, x.shape[-1])


def _fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | Literal["causal"] | None,
    scale: float | None,
    score_bias: Tensor | None,
) -> Tensor:
    _require_shared_heads(query, key)
    q_len, k_len = query.shape[-2], key.shape[-2]
    # Only a mask that is said, not drawn, lets torch pick its fastest kernel.
    is_causal = mask == "causal" if isinstance(mask, str) else False
    is_causal = is_causal and q_len == k_len and score_bias is None
    drawn = None if is_causal else _mask_tensor(mask, q_len, k_len, query.device)
    attn_mask, silent = drawn, None
    if score_bias is not None:
        attn_mask = score_bias.to(query.dtype)
        if drawn is not None:
            # A row of nothing but -inf is NaN in some kernels: such rows see all, and count none.
            silent = ~drawn.any(dim=-1, keepdim=True)
            attn_mask = attn_mask.masked_fill(~(drawn | silent), -math.inf)
    mixed = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=query.shape[:-2] != key.shape[:-2],
    )
    return mixed if silent is None else mixed.masked_fill(silent, 0.0)


def _mask_tensor(
    mask: Tensor | Literal["causal"] | None, q_len: int, k_len: int, device: torch.device
) -> Tensor | None:
    if not isinstance(mask, str):
        return mask
    if mask != "causal":
        raise ValueError(f'mask must be a boolean tensor, "causal" or None, got mask="{mask}"')
    # The newest token alone sees everything.
    return None if q_len == 1 else causal_mask(q_len, k_len, device)


def _require_shared_heads(query: Tensor, key: Tensor) -> None:
    if query.shape[:-2] == key.shape[:-2]:
        return
    heads, kv_heads = query.shape[-3], key.shape[-3]
    if query.shape[:-3] != key.shape[:-3] or heads % kv_heads:
        raise ValueError(
            "key and value need the batch of the query and a number of heads that divides its "
            f"heads, got query of shape {tuple(query.shape)}, key of shape {tuple(key.shape)}"
        )


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
