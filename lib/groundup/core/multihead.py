"""Several attention heads side by side, each of lower dimension, joined by a linear layer."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from groundup.core.attention import attention_weights, scaled_dot_product_attention
from groundup.core.cache import LayerCache
from groundup.core.config import require, require_dropout, require_multiple
from groundup.core.layers import RMSNorm
from groundup.core.positions import Rotary, alibi_bias


def split_heads(
    x: Float[Tensor, "batch length d_model"], num_heads: int
) -> Float[Tensor, "batch {num_heads} length d_head"]:
    """Cut the features into `num_heads` equal parts and put the heads before the tokens."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def merge_heads(
    x: Float[Tensor, "batch heads length d_head"],
) -> Float[Tensor, "batch length d_model"]:
    """Undo `split_heads`: each token gets its heads' features back, side by side."""
    return x.transpose(1, 2).flatten(-2)


def repeat_kv_heads(
    x: Float[Tensor, "*batch kv_heads length width"], num_heads: int
) -> Float[Tensor, "*batch {num_heads} length width"]:
    """Copy each key or value head for every query head that uses it.

    This is what grouped-query attention means: query head `i` uses key head
    `i * kv_heads // num_heads`. The fused backend gives the same numbers without the copies.

    Args:
        x: Keys or values, head by head.
        num_heads: Number of query heads; a multiple of the heads of `x`.

    Raises:
        ValueError: If `num_heads` is not such a multiple.

    Source:
        Ainslie et al. 2023, GQA, section 2.2, https://arxiv.org/abs/2305.13245

    """
    kv_heads = x.shape[-3]
    require_multiple(num_heads=num_heads, kv_heads=kv_heads)
    return x if kv_heads == num_heads else x.repeat_interleave(num_heads // kv_heads, dim=-3)


class MultiHeadAttention(nn.Module):
    """Attention with several heads: every token makes several queries at once.

    Self-attention takes keys and values from the tokens themselves; with a `context`,
    cross-attention takes them from another sequence. With fewer key and value heads than query
    heads, neighbouring query heads share one (grouped-query attention; with a single one,
    multi-query attention), which shrinks the cache in proportion.

    Args:
        d_model: Width of a token.
        num_heads: Number of query heads.
        num_kv_heads: Number of key and value heads, a divisor of `num_heads`; by default
            `num_heads`.
        d_head: Width of one head; by default `d_model / num_heads`, if that is whole.
        bias: Whether the four linear layers have a bias.
        rotary: Rotates queries and keys by their position; as wide as a head.
        alibi: Whether scores fall with distance, in each head at its own rate.
        qk_norm: Whether queries and keys are normalised, so that no score explodes.
        norm_eps: Added to the mean square before dividing by its square root, in `qk_norm`.
        backend: `explicit` or `fused`, as in `scaled_dot_product_attention`; an attribute that
            may be changed at any time, because the result stays the same.
        attention_dropout: Probability that a weight is dropped in training.
        is_causal: Whether later tokens are hidden from each token, whatever the mask allows.

    Raises:
        ValueError: If the numbers of heads do not divide as stated, if `rotary` has another
            width, or if `attention_dropout` is not in [0, 1).

    Source:
        Vaswani et al. 2017, Attention Is All You Need, section 3.2.2,
        https://arxiv.org/abs/1706.03762; Shazeer 2019, Fast Transformer Decoding (multi-query),
        https://arxiv.org/abs/1911.02150; Ainslie et al. 2023, GQA,
        https://arxiv.org/abs/2305.13245; Henry et al. 2020, Query-Key Normalization for
        Transformers, https://arxiv.org/abs/2010.04245; dropout of weights: Radford et al. 2018,
        Improving Language Understanding by Generative Pre-Training, "Model specifications"

    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        d_head: int | None = None,
        bias: bool = True,
        rotary: Rotary | None = None,
        alibi: bool = False,
        qk_norm: bool = False,
        norm_eps: float = 1e-5,
        backend: Literal["explicit", "fused"] = "fused",
        attention_dropout: float = 0.0,
        is_causal: bool = False,
    ):
        super().__init__()
        if d_head is None:
            require_multiple(d_model=d_model, num_heads=num_heads)
            d_head = d_model // num_heads
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        require_multiple(num_heads=num_heads, num_kv_heads=num_kv_heads)
        require_dropout(attention_dropout=attention_dropout)
        width = d_head if rotary is None else rotary.d_head
        require(width == d_head, "rotary must be as wide as d_head", width=width, d_head=d_head)
        self.num_heads, self.num_kv_heads, self.d_head = num_heads, num_kv_heads, d_head
        self.rotary, self.alibi, self.is_causal = rotary, alibi, is_causal
        self.backend: Literal["explicit", "fused"] = backend
        self.attention_dropout = attention_dropout
        self.query = nn.Linear(d_model, num_heads * d_head, bias=bias)
        self.key = nn.Linear(d_model, num_kv_heads * d_head, bias=bias)
        self.value = nn.Linear(d_model, num_kv_heads * d_head, bias=bias)
        self.output = nn.Linear(num_heads * d_head, d_model, bias=bias)
        self.query_norm = RMSNorm(d_head, norm_eps) if qk_norm else nn.Identity()
        self.key_norm = RMSNorm(d_head, norm_eps) if qk_norm else nn.Identity()

    def _project(
        self, x: Tensor, context: Tensor | None, cache: LayerCache | None, positions: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Make queries, keys and values, head by head, and the bias of their scores.

        Keys and values include those of earlier calls. In cross-attention with a filled `cache`
        they are all from there: the first call made them from the context.
        """
        if context is not None and (self.rotary is not None or self.alibi):
            raise ValueError("rotary attention and ALiBi take no context: they need one sequence")
        query = self.query_norm(split_heads(self.query(x), self.num_heads))
        if context is not None and cache is not None and cache.length > 0:
            return query, cache.keys, cache.values, None
        source = x if context is None else context
        key = self.key_norm(split_heads(self.key(source), self.num_kv_heads))
        value = split_heads(self.value(source), self.num_kv_heads)
        return self._place((query, key, value), cache, positions)

    def _place(
        self,
        projected: tuple[Tensor, Tensor, Tensor],
        cache: LayerCache | None,
        positions: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Rotate by position, add keys and values of earlier calls, and make the scores' bias."""
        query, key, value = projected
        if self.rotary is not None:
            if positions is None:
                require(cache is None, "cached rotary attention needs positions", positions=None)
                positions = torch.arange(query.shape[2], device=query.device)
            positions = positions.unsqueeze(-2)  # (*batch, 1, q_len): the same for all heads
            query, key = self.rotary(query, positions), self.rotary(key, positions)

        first = 0 if cache is None else cache.num_kept  # read before `append` changes it
        if cache is not None:
            key, value = cache.append(key, value)
        score_bias = None
        if self.alibi:  # `first` is the index of the first query among the keys
            lengths = query.shape[2], key.shape[2]
            score_bias = alibi_bias(self.num_heads, *lengths, query.device, first)
        return query, key, value, score_bias

    def forward(
        self,
        x: Float[Tensor, "batch q_len d_model"],
        context: Float[Tensor, "batch k_len d_model"] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
        cache: LayerCache | None = None,
        positions: Int[Tensor, "*batch q_len"] | None = None,
    ) -> Float[Tensor, "batch q_len d_model"]:
        """Let each token attend, with all heads at once.

        Args:
            x: The tokens that make queries.
            context: The tokens that keys and values come from; by default `x` itself.
            mask: True where attention is allowed, of shape `(q_len, k_len)` or broadcasting
                to `(batch, heads, q_len, k_len)`; `k_len` includes the cached tokens.
            cache: Keys and values of earlier calls. Self-attention adds its own;
                cross-attention fills an empty cache from `context` and reads a filled one.
            positions: Index of each token of `x`, used by rotary attention alone, which needs
                them with a cache; without a cache the default is to count from 0.

        Raises:
            ValueError: If the mask is not boolean or has neither 2 nor 4 axes; if attention
                with rotary positions or ALiBi is given a `context`; or if rotary attention is
                given a `cache` but no `positions`.

        """
        _require_valid_mask(mask)
        query, key, value, score_bias = self._project(x, context, cache, positions)
        if self.backend == "explicit":  # the fused kernel needs no copies
            key, value = (repeat_kv_heads(heads, self.num_heads) for heads in (key, value))
        options = {"backend": self.backend, "is_causal": self.is_causal, "score_bias": score_bias}
        dropout = self.attention_dropout if self.training else 0.0
        mixed = scaled_dot_product_attention(query, key, value, mask, dropout=dropout, **options)
        return self.output(merge_heads(mixed))

    def weights(
        self,
        x: Float[Tensor, "batch q_len d_model"],
        context: Float[Tensor, "batch k_len d_model"] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
        positions: Int[Tensor, "*batch q_len"] | None = None,
    ) -> Float[Tensor, "batch heads q_len k_len"]:
        """Return the weights of each head, before any dropout; arguments as in `forward`."""
        _require_valid_mask(mask)
        query, key, _, score_bias = self._project(x, context, None, positions)
        key = repeat_kv_heads(key, self.num_heads)
        return attention_weights(query, key, mask, score_bias=score_bias, is_causal=self.is_causal)


def _require_valid_mask(mask: Tensor | None) -> None:
    if mask is not None:
        is_valid = mask.dtype == torch.bool and mask.ndim in (2, 4)
        rule = "a mask must be boolean with axes (q_len, k_len) or (batch, heads, q_len, k_len)"
        require(is_valid, rule, dtype=mask.dtype, shape=tuple(mask.shape))
