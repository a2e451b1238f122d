"""Several attentions side by side, each in its own small space, and one map that joins them."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from groundup.attention import attention_weights, scaled_dot_product_attention
from groundup.cache import LayerCache
from groundup.positions import rotate


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
        rotary: Whether queries and keys are turned by their position.
        backend: `explicit` or `fused`, as in `scaled_dot_product_attention`; an attribute that
            may be changed at any time, because it changes how and not what.

    Raises:
        ValueError: If the heads do not divide as stated, or if `rotary` meets an odd `d_head`.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, section 3.2.2,
        https://arxiv.org/abs/1706.03762; Shazeer 2019, Fast Transformer Decoding (multi-query),
        https://arxiv.org/abs/1911.02150; Ainslie et al. 2023, GQA,
        https://arxiv.org/abs/2305.13245

    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        bias: bool = True,
        rotary: bool = False,
        backend: Literal["explicit", "fused"] = "fused",
    ):
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        _require_multiple("d_model", d_model, "num_heads", num_heads)
        _require_multiple("num_heads", num_heads, "num_kv_heads", num_kv_heads)
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.d_head = d_model // num_heads
        if rotary and self.d_head % 2:
            raise ValueError(f"rotary positions need an even d_head, got d_head={self.d_head}")
        self.rotary = rotary
        self.backend: Literal["explicit", "fused"] = backend
        self.query = nn.Linear(d_model, d_model, bias=bias)
        self.key = nn.Linear(d_model, num_kv_heads * self.d_head, bias=bias)
        self.value = nn.Linear(d_model, num_kv_heads * self.d_head, bias=bias)
        self.output = nn.Linear(d_model, d_model, bias=bias)

    def forward(
        self,
        x: Float[Tensor, "batch q_len d_model"],
        context: Float[Tensor, "batch k_len d_model"] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
        cache: LayerCache | None = None,
        positions: Int[Tensor, "*batch q_len"] | None = None,
    ) -> Float[Tensor, "batch q_len d_model"]:
        """Give each token what its heads found.

        Args:
            x: The tokens that ask.
            context: The tokens that are asked; by default `x` itself.
            mask: True where attention is allowed, of shape `(q_len, k_len)` or broadcasting
                to `(batch, heads, q_len, k_len)`; `k_len` counts what is in the cache.
            cache: Keys and values of earlier calls. Self attention adds its own; cross
                attention fills an empty cache from `context` and reads a filled one.
            positions: Index of each token of `x`, used by rotary attention; by default they
                go on from what is in the cache.

        Raises:
            ValueError: If the mask is not boolean or has an ambiguous number of axes, or if
                rotary attention is given a `context`.

        """
        query, key, value = self._project(x, context, mask, cache, positions)
        mixed = scaled_dot_product_attention(query, key, value, mask, backend=self.backend)
        return self.output(merge_heads(mixed))

    def weights(
        self,
        x: Float[Tensor, "batch q_len d_model"],
        context: Float[Tensor, "batch k_len d_model"] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
        positions: Int[Tensor, "*batch q_len"] | None = None,
    ) -> Float[Tensor, "batch heads q_len k_len"]:
        """Say how much each token attends to each other, head by head, as in `forward`."""
        query, key, _ = self._project(x, context, mask, None, positions)
        return attention_weights(query, key, mask)

    def _project(
        self,
        x: Tensor,
        context: Tensor | None,
        mask: Tensor | None,
        cache: LayerCache | None,
        positions: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        _require_mask(mask)
        if self.rotary and context is not None:
            raise ValueError(
                "rotary attention takes no context: it turns by places in one sequence"
            )
        query = split_heads(self.query(x), self.num_heads)
        if context is not None and cache is not None and cache.length > 0:
            key, value = cache.keys, cache.values
        else:
            source = x if context is None else context
            key = split_heads(self.key(source), self.num_kv_heads)
            value = split_heads(self.value(source), self.num_kv_heads)
            if self.rotary:
                if positions is None:
                    start = 0 if cache is None else cache.length
                    positions = torch.arange(start, start + x.shape[1], device=x.device)
                per_head = positions.unsqueeze(-2)  # (*batch, 1, q_len)
                query, key = rotate(query, per_head), rotate(key, per_head)
            if cache is not None:
                cache.append(key, value)
                key, value = cache.keys, cache.values
        if self.num_kv_heads < self.num_heads:
            group = self.num_heads // self.num_kv_heads
            key = key.repeat_interleave(group, dim=1)  # (batch, heads, k_len, d_head)
            value = value.repeat_interleave(group, dim=1)
        return query, key, value


def _require_mask(mask: Tensor | None) -> None:
    if mask is not None and (mask.dtype != torch.bool or mask.ndim not in (2, 4)):
        raise ValueError(
            "a mask must be boolean with axes (q_len, k_len) or (batch, heads, q_len, k_len), "
            f"got dtype={mask.dtype}, shape={tuple(mask.shape)}"
        )


def _require_multiple(name: str, value: int, of_name: str, of: int) -> None:
    if of < 1 or value % of:
        raise ValueError(
            f"{name} must be a multiple of {of_name}, got {name}={value}, {of_name}={of}"
        )
