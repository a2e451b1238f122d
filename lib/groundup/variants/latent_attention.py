"""Multi-head latent attention: one short cached vector per token gives all keys and values."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from groundup.core.attention import scaled_dot_product_attention
from groundup.core.cache import LayerCache
from groundup.core.multihead import merge_heads, split_heads
from groundup.core.positions import Rotary


class LatentCache(LayerCache):
    """The latents of one layer of latent attention, and the rotated key that its heads share.

    The latents are stored as keys of one head, the rotated keys as its values.

    Args:
        batch_size: Number of sequences.
        max_len: Capacity in tokens.
        d_latent: Width of a latent.
        d_rotary: Width of the rotated key; 0 for none.
        device: Where the buffers are allocated.
        dtype: Data type of the buffers.

    """

    def __init__(
        self,
        batch_size: int,
        max_len: int,
        d_latent: int,
        d_rotary: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(batch_size, 1, max_len, d_latent, device=device, dtype=dtype)
        self._values = self._keys.new_zeros(batch_size, 1, max_len, d_rotary)

    @property
    def num_bytes(self) -> int:
        """Memory allocated, in bytes."""
        return (self._keys.numel() + self._values.numel()) * self._keys.element_size()


class LatentAttention(nn.Module):
    """Self-attention whose keys and values are linear functions of one short latent per token.

    Each head has its own keys and values, as in multi-head attention, but the latent is cached in
    their place. Keys that depend on the position cannot be made from it by one fixed matrix, so
    positions have their own part of the score: a rotated part of each query, and a rotated key
    that all heads share.

    Args:
        d_model: Width of a token.
        num_heads: Number of heads.
        d_head: Width of a head's keys (without their rotated part) and values.
        d_latent: Width of the latent.
        rotary: Rotates the queries and the key of the part of the scores that depends on position,
            and is as wide as they are; None for none.
        is_causal: Whether later tokens are hidden from each token, whatever the mask allows.
        absorb: Whether scores and averages are computed on the latents themselves. An attribute
            that may be changed at any time, because the result stays the same.

    Source:
        DeepSeek-AI 2024, DeepSeek-V2, sections 2.1.2 and 2.1.3, https://arxiv.org/abs/2405.04434.
        Left out here: queries made from a latent of their own, and norms of the latents.

    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_head: int,
        d_latent: int,
        rotary: Rotary | None = None,
        is_causal: bool = False,
        absorb: bool = False,
    ):
        super().__init__()
        d_rotary = 0 if rotary is None else rotary.d_head
        self.num_heads, self.d_head, self.d_latent = num_heads, d_head, d_latent
        self.rotary, self.is_causal, self.absorb = rotary, is_causal, absorb
        self.query = nn.Linear(d_model, num_heads * (d_head + d_rotary), bias=False)
        self.latent = nn.Linear(d_model, d_latent, bias=False)
        self.rotated_key = nn.Linear(d_model, d_rotary, bias=False) if d_rotary else None
        self.key = nn.Linear(d_latent, num_heads * d_head, bias=False)
        self.value = nn.Linear(d_latent, num_heads * d_head, bias=False)
        self.output = nn.Linear(num_heads * d_head, d_model, bias=False)

    def new_cache(self, batch_size: int, max_len: int, **options) -> LatentCache:
        """Make an empty cache; `options` are its device and dtype."""
        d_rotary = 0 if self.rotary is None else self.rotary.d_head
        return LatentCache(batch_size, max_len, self.d_latent, d_rotary, **options)

    def forward(
        self,
        x: Float[Tensor, "batch q_len d_model"],
        mask: Bool[Tensor, "..."] | None = None,
        cache: LatentCache | None = None,
        positions: Int[Tensor, "*batch q_len"] | None = None,
    ) -> Float[Tensor, "batch q_len d_model"]:
        """Let each token attend.

        Args:
            x: The tokens.
            mask: True where attention is allowed; broadcasts to `(batch, heads, q_len, k_len)`,
                where `k_len` includes the cached tokens.
            cache: From `new_cache`: latents of earlier calls, to which these are added.
            positions: Index of each token, needed by rotary attention with a cache; without
                one they are counted from 0 by default.

        Raises:
            ValueError: If attention with rotary positions is given a `cache` but no `positions`.

        """
        query, latent, rotated_key = self._project(x, cache, positions)
        w_key = self.key.weight.unflatten(0, (self.num_heads, -1))  # (heads, d_head, d_latent)
        w_value = self.value.weight.unflatten(0, (self.num_heads, -1))
        query, rotated_query = query.split((self.d_head, rotated_key.shape[-1]), dim=-1)
        if self.absorb:  # q · (W c) = (q W) · c, and the average of W c is W times that of c
            query, key, value = query @ w_key, latent, latent  # one key head, one value head
        else:
            key, value = latent @ w_key.transpose(-2, -1), latent @ w_value.transpose(-2, -1)
        query = torch.cat((query, rotated_query), dim=-1)
        key = torch.cat((key, rotated_key.expand(-1, key.shape[1], -1, -1)), dim=-1)
        scale = 1 / math.sqrt(self.d_head + rotated_key.shape[-1])
        mixed = scaled_dot_product_attention(
            query, key, value, mask, scale, "fused", is_causal=self.is_causal
        )
        if self.absorb:
            mixed = mixed @ w_value.transpose(-2, -1)
        return self.output(merge_heads(mixed))

    def _project(
        self, x: Tensor, cache: LatentCache | None, positions: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Make queries, head by head, and latents and rotated keys, including cached ones."""
        query = split_heads(self.query(x), self.num_heads)
        latent = self.latent(x).unsqueeze(1)  # (batch, 1, q_len, d_latent), as one head
        if self.rotary is None or self.rotated_key is None:
            rotated_key = latent[..., :0]
        else:
            if positions is None:
                if cache is not None:
                    raise ValueError("cached rotary attention needs positions, got none")
                positions = torch.arange(x.shape[1], device=x.device)
            positions = positions.unsqueeze(-2)  # (*batch, 1, q_len): the same for all heads
            own, rotated = query.split((self.d_head, self.rotary.d_head), dim=-1)
            query = torch.cat((own, self.rotary(rotated, positions)), dim=-1)
            rotated_key = self.rotary(self.rotated_key(x).unsqueeze(1), positions)
        if cache is not None:
            latent, rotated_key = cache.append(latent, rotated_key)
        return query, latent, rotated_key
