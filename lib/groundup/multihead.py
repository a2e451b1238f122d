"""Several attentions side by side, each in its own small space, and one map that joins them."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from groundup.attention import attention_weights, scaled_dot_product_attention
from groundup.cache import AnyLayerCache, StaticLayerCache
from groundup.config import require_multiple, require_share
from groundup.layers import RMSNorm
from groundup.masks import AnyMask
from groundup.positions import Rotary, alibi_bias, alibi_slopes


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


class MultiHeadAttention(nn.Module):
    """Let every token ask several questions at once.

    Self attention asks the tokens themselves; with a `context`, cross attention asks another
    sequence. With fewer key and value heads than query heads, neighbouring query heads share
    one (grouped-query attention; with a single one, multi-query attention), which shrinks the
    cache in proportion.

    Args:
        d_model: Width of a token; a multiple of `num_heads`.
        num_heads: Number of query heads.
        num_kv_heads: Number of key and value heads, a divisor of `num_heads`; by default
            `num_heads`.
        bias: Whether the four linear maps add a constant.
        rotary: Turns queries and keys by their position; of the width of a head.
        alibi: Whether scores fall with distance, in each head at its own rate.
        qk_norm: Whether queries and keys are brought to one size, so that no score explodes.
        backend: `explicit` or `fused`, as in `scaled_dot_product_attention`; an attribute that
            may be changed at any time, because it changes how and not what.
        attention_dropout: Share of the weights that `forward` drops in training, from 0 to 1.

    Raises:
        ValueError: If the heads do not divide as stated, `rotary` is made for other heads, or
            `attention_dropout` is below 0 or not below 1.

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
        bias: bool = True,
        rotary: Rotary | None = None,
        alibi: bool = False,
        qk_norm: bool = False,
        backend: Literal["explicit", "fused"] = "fused",
        attention_dropout: float = 0.0,
    ):
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        require_multiple("d_model", d_model, "num_heads", num_heads)
        require_multiple("num_heads", num_heads, "num_kv_heads", num_kv_heads)
        require_share("attention_dropout", attention_dropout)
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.d_head = d_model // num_heads
        if rotary is not None and rotary.d_head != self.d_head:
            raise ValueError(
                "rotary must turn vectors as wide as a head, "
                f"got rotary.d_head={rotary.d_head}, d_head={self.d_head}"
            )
        self.rotary, self.alibi = rotary, alibi
        self.backend: Literal["explicit", "fused"] = backend
        self.attention_dropout = attention_dropout
        self.query = nn.Linear(d_model, d_model, bias=bias)
        self.key = nn.Linear(d_model, num_kv_heads * self.d_head, bias=bias)
        self.value = nn.Linear(d_model, num_kv_heads * self.d_head, bias=bias)
        self.output = nn.Linear(d_model, d_model, bias=bias)
        self.query_norm = RMSNorm(self.d_head) if qk_norm else None
        self.key_norm = RMSNorm(self.d_head) if qk_norm else None

    def forward(
        self,
        x: Float[Tensor, "batch q_len d_model"],
        context: Float[Tensor, "batch k_len d_model"] | None = None,
        mask: AnyMask | None = None,
        cache: AnyLayerCache | None = None,
        positions: Int[Tensor, "*batch q_len"] | None = None,
    ) -> Float[Tensor, "batch q_len d_model"]:
        """Give each token what its heads found.

        Args:
            x: The tokens that ask.
            context: The tokens that are asked; by default `x` itself.
            mask: True where attention is allowed, of shape `(q_len, k_len)` or broadcasting
                to `(batch, heads, q_len, k_len)`; `k_len` counts what is in the cache. `causal`
                stands for `causal_mask(q_len, k_len)`.
            cache: Keys and values of earlier calls. Self attention adds its own; cross
                attention fills an empty cache from `context` and reads a filled one.
            positions: Index of each token of `x`, used by rotary attention; by default they
                go on from what is in the cache.

        Raises:
            ValueError: If the mask is not boolean or has an ambiguous number of axes, or if
                rotary attention is given a `context`.

        """
        query, key, value = self._project(x, context, mask, cache, positions)
        bias = self._score_bias(query, key, cache)
        dropout = self.attention_dropout if self.training else 0.0
        mixed = scaled_dot_product_attention(
            query,
            key,
            value,
            mask,
            backend=self.backend,
            score_bias=bias,
            dropout=dropout,
        )
        return self.output(merge_heads(mixed))

    def weights(
        self,
        x: Float[Tensor, "batch q_len d_model"],
        context: Float[Tensor, "batch k_len d_model"] | None = None,
        mask: AnyMask | None = None,
        positions: Int[Tensor, "*batch q_len"] | None = None,
    ) -> Float[Tensor, "batch heads q_len k_len"]:
        """Say how much each token attends to each other, head by head, before any dropout."""
        query, key, _ = self._project(x, context, mask, None, positions)
        return attention_weights(query, key, mask, score_bias=self._score_bias(query, key, None))

    def qk_circuit(self, head: int) -> Float[Tensor, "d_model d_model"]:
        """Give the map by which a head scores two tokens: `x circuit yᵀ` before the scale.

        The query and key maps matter through this product alone. It leaves out biases, turns
        and norms.

        Source:
            Elhage et al. 2021, A Mathematical Framework for Transformer Circuits,
            https://transformer-circuits.pub/2021/framework/index.html

        """
        query = self.query.weight.unflatten(0, (self.num_heads, -1))[head]  # (d_head, d_model)
        kv_head = head * self.num_kv_heads // self.num_heads
        key = self.key.weight.unflatten(0, (self.num_kv_heads, -1))[kv_head]
        return query.T @ key

    def ov_circuit(self, head: int) -> Float[Tensor, "d_model d_model"]:
        """Give the map of what a head writes when it attends to a token: `x circuit`.

        Its rank is at most `d_head`. It leaves out biases. Source as in `qk_circuit`.
        """
        kv_head = head * self.num_kv_heads // self.num_heads
        value = self.value.weight.unflatten(0, (self.num_kv_heads, -1))[kv_head]
        output = self.output.weight.unflatten(1, (self.num_heads, -1))[:, head]  # (d_model, d_head)
        return value.T @ output.T

    def _project(
        self,
        x: Tensor,
        context: Tensor | None,
        mask: AnyMask | None,
        cache: AnyLayerCache | None,
        positions: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        _require_mask(mask)
        if (self.rotary is not None or self.alibi) and context is not None:
            raise ValueError(
                "rotary attention and ALiBi take no context: they need places in one sequence"
            )
        query = split_heads(self.query(x), self.num_heads)
        if self.query_norm is not None:
            query = self.query_norm(query)
        if context is not None and cache is not None and cache.length > 0:
            return query, cache.keys, cache.values
        source = x if context is None else context
        key = split_heads(self.key(source), self.num_kv_heads)
        value = split_heads(self.value(source), self.num_kv_heads)
        if self.key_norm is not None:
            key = self.key_norm(key)
        if self.rotary is not None:
            start = 0
            if positions is not None:
                positions = positions.unsqueeze(-2)  # (*batch, 1, q_len): all heads turn alike
            elif cache is not None:
                start = cache.length
            query, key = (self.rotary(vectors, positions, start) for vectors in (query, key))
        if cache is not None:
            key, value = cache.append(key, value)
        return query, key, value

    def _score_bias(
        self, query: Tensor, key: Tensor, cache: AnyLayerCache | None
    ) -> Float[Tensor, "heads q_len k_len"] | None:
        if not self.alibi:
            return None
        q_len, k_len = query.shape[-2], key.shape[-2]
        if isinstance(cache, StaticLayerCache):  # its last places are not the newest tokens
            distance = cache.length - q_len + torch.arange(q_len, device=query.device)[:, None]
            distance = distance - torch.arange(k_len, device=query.device)
            slopes = alibi_slopes(self.num_heads).to(query)
            return -slopes[:, None, None] * distance.abs()
        return alibi_bias(self.num_heads, q_len, k_len, query.device, query.dtype)


def _require_mask(mask: AnyMask | None) -> None:
    if isinstance(mask, Tensor) and (mask.dtype != torch.bool or mask.ndim not in (2, 4)):
        raise ValueError(
            "a mask must be boolean with axes (q_len, k_len) or (batch, heads, q_len, k_len), "
            f"got dtype={mask.dtype}, shape={tuple(mask.shape)}"
        )
