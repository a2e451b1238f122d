"""Functions and modules from the exercises whose interface differs from the library's.

Each is a function of tensors or a plain module, with fewer options than the library's own. Those
that can be replaced one by one in a model are in `variants.functional`.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from groundup.core import multihead
from groundup.core.attention import attention_weights
from groundup.core.masks import causal_mask
from groundup.core.positions import rotate


def stable_softmax(scores: Float[Tensor, "..."], dim: int) -> Float[Tensor, "..."]:
    """Convert scores to weights that sum to 1 along `dim`, or to 0 where all are minus infinity."""
    empty = (scores == -math.inf).all(dim, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(dim).masked_fill(empty, 0.0)


def log_softmax(scores: Float[Tensor, "..."], dim: int) -> Float[Tensor, "..."]:
    """Return the logarithms of `stable_softmax`."""
    empty = (scores == -math.inf).all(dim, keepdim=True)
    return scores.masked_fill(empty, 0.0).log_softmax(dim).masked_fill(empty, -math.inf)


class MultiHeadAttention(multihead.MultiHeadAttention):
    """Multi-head attention with one mask for all sequences, or one per sequence."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        x: Float[Tensor, "batch q_len d_model"],
        context: Float[Tensor, "batch k_len d_model"] | None = None,
        mask: Bool[Tensor, "q_len k_len"] | Bool[Tensor, "batch q_len k_len"] | None = None,
    ) -> Float[Tensor, "batch q_len d_model"]:
        """Return the attention output of each token."""
        if mask is not None and mask.ndim == 3:
            mask = mask.unsqueeze(1)  # (batch, 1, q_len, k_len)
        return super().forward(x, context, mask)


class TransformerBlock(nn.Module):
    """Self-attention with torch's own module, then a feed-forward network with GELU.

    Args:
        d_model: Width of a token.
        num_heads: Number of heads.
        d_ff: Width inside the feed-forward network.
        norm: `pre` normalises the input of each sub-layer, `post` each residual sum.

    """

    def __init__(
        self, d_model: int, num_heads: int, d_ff: int, norm: Literal["pre", "post"] = "pre"
    ):
        super().__init__()
        self.attention_norm = nn.LayerNorm(d_model)
        self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.up = nn.Linear(d_model, d_ff)
        self.down = nn.Linear(d_ff, d_model)
        self.norm = norm

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Add the output of attention, then that of the feed-forward network."""
        forbidden = None if mask is None else ~mask  # in torch, True means forbidden

        def attend(x: Tensor) -> Tensor:
            return self.attention(x, x, x, attn_mask=forbidden, need_weights=False)[0]

        if self.norm == "pre":
            x = x + attend(self.attention_norm(x))
            return x + self.down(F.gelu(self.up(self.feed_forward_norm(x))))
        x = self.attention_norm(x + attend(x))
        return self.feed_forward_norm(x + self.down(F.gelu(self.up(x))))


class CrossAttention(multihead.MultiHeadAttention):
    """Multi-head attention of target tokens to an encoder's output."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        x: Float[Tensor, "batch tgt_len d_model"],
        memory: Float[Tensor, "batch src_len d_model"],
        source_mask: Bool[Tensor, "batch src_len"] | None = None,
    ) -> Float[Tensor, "batch tgt_len d_model"]:
        """Return the output for each target token; `source_mask` is True on real tokens."""
        mask = None if source_mask is None else source_mask[:, None, None]
        return super().forward(x, memory, mask)


def shifted_loss(
    model: Callable[[Tensor], Tensor], targets: Int[Tensor, "batch length"], bos: int, pad: int
) -> Float[Tensor, ""]:
    """Return the mean loss of predicting each target from those before it, in nats per token."""
    inputs = F.pad(targets[:, :-1], (1, 0), value=bos)
    return F.cross_entropy(model(inputs).transpose(1, 2), targets, ignore_index=pad)


def smoothed_loss(
    logits: Float[Tensor, "batch length vocab"],
    targets: Int[Tensor, "batch length"],
    smoothing: float,
    pad: int,
) -> Float[Tensor, ""]:
    """Return the mean cross-entropy with smoothed labels, in nats per token."""
    return F.cross_entropy(
        logits.transpose(1, 2), targets, ignore_index=pad, label_smoothing=smoothing
    )


def noam(step: int, d_model: int, warmup_steps: int) -> float:
    """Return the learning rate of a step, counted from 0.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, section 5.3,
        https://arxiv.org/abs/1706.03762

    """
    number = step + 1
    return d_model**-0.5 * min(number**-0.5, number * warmup_steps**-1.5)


def cached_attention(
    query: Float[Tensor, "batch heads new d_head"],
    key: Float[Tensor, "batch heads new d_head"],
    value: Float[Tensor, "batch heads new d_value"],
    cache: tuple[Tensor, Tensor] | None = None,
) -> tuple[Float[Tensor, "batch heads new d_value"], tuple[Tensor, Tensor]]:
    """Rotate new queries and keys, and attend to the cached tokens and, causally, to the new ones.

    Returns:
        The averages of the values, and the cache with the new tokens: keys, rotated, and values.

    """
    past, new = 0 if cache is None else cache[0].shape[2], query.shape[2]
    positions = torch.arange(past, past + new, device=query.device)
    query, key = rotate(query, positions), rotate(key, positions)
    if cache is not None:
        key, value = torch.cat((cache[0], key), dim=2), torch.cat((cache[1], value), dim=2)
    allowed = causal_mask(new, past + new).to(query.device)
    return attention_weights(query, key, allowed) @ value, (key, value)
