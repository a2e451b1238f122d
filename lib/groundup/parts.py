"""The parts of a transformer one by one, as somebody would write them who builds one from scratch.

Each is a function of tensors or a plain module, without the options that the library's own have.
`Parts` is a choice of them: the library's, or somebody else's in their places. What a model makes
of a choice stands in `assembled`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from groundup import attention, layers, masks, multihead, positions


def stable_softmax(scores: Float[Tensor, "..."], dim: int) -> Float[Tensor, "..."]:
    """Turn scores into weights that sum to 1 along `dim`, or to 0 where all are minus infinity."""
    empty = (scores == -math.inf).all(dim, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(dim).masked_fill(empty, 0.0)


def log_softmax(scores: Float[Tensor, "..."], dim: int) -> Float[Tensor, "..."]:
    """Give the logarithms of `stable_softmax`."""
    empty = (scores == -math.inf).all(dim, keepdim=True)
    return scores.masked_fill(empty, 0.0).log_softmax(dim).masked_fill(empty, -math.inf)


def scaled_dot_product_attention(
    query: Float[Tensor, "*batch q_len d_head"],
    key: Float[Tensor, "*batch k_len d_head"],
    value: Float[Tensor, "*batch k_len d_value"],
) -> tuple[Float[Tensor, "*batch q_len d_value"], Float[Tensor, "*batch q_len k_len"]]:
    """Average the values, every key in sight; give the averages and their weights."""
    weights = attention.attention_weights(query, key)
    return weights @ value, weights


class MultiHeadAttention(multihead.MultiHeadAttention):
    """Many heads with biases, whose mask is one for all sequences, or one for each.

    Args:
        d_model: Width of a token; a multiple of `num_heads`.
        num_heads: Number of heads.

    """

    def __init__(self, d_model: int, num_heads: int):
        super().__init__(d_model, num_heads)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        x: Float[Tensor, "batch q_len d_model"],
        context: Float[Tensor, "batch k_len d_model"] | None = None,
        mask: Bool[Tensor, "q_len k_len"] | Bool[Tensor, "batch q_len k_len"] | None = None,
    ) -> Float[Tensor, "batch q_len d_model"]:
        """Give each token what its heads found."""
        if mask is not None and mask.ndim == 3:
            mask = mask.unsqueeze(1)  # (batch, 1, q_len, k_len)
        return super().forward(x, context, mask)


def feed_forward(
    x: Float[Tensor, "*batch d_model"],
    w_up: Float[Tensor, "d_model d_ff"],
    b_up: Float[Tensor, " d_ff"],
    w_down: Float[Tensor, "d_ff d_model"],
    b_down: Float[Tensor, " d_model"],
    activation: Literal["relu", "gelu", "gelu_tanh"],
) -> Float[Tensor, "*batch d_model"]:
    """Widen each token, bend its features, and bring it back, as `layers.FeedForward` does."""
    bend = layers.FeedForward.ACTIVATIONS[activation]
    return bend(x @ w_up + b_up) @ w_down + b_down


def swiglu(
    x: Float[Tensor, "*batch d_model"],
    w_gate: Float[Tensor, "d_model d_ff"],
    w_up: Float[Tensor, "d_model d_ff"],
    w_down: Float[Tensor, "d_ff d_model"],
) -> Float[Tensor, "*batch d_model"]:
    """Let a gate decide how much of the widened token passes, as `layers.GatedFeedForward` does."""
    return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down


class TransformerBlock(nn.Module):
    """Self attention by torch's own module, then a feed-forward network with GELU.

    Args:
        d_model: Width of a token.
        num_heads: Number of heads.
        d_ff: Width inside the feed-forward network.
        norm: `pre`, where each sub-layer reads through a norm, or `post`, where each sum goes
            through one.

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
        """Add what attention finds, then what the feed-forward network makes of it."""
        sublayers = (
            (self.attention_norm, lambda x: self._attend(x, mask)),
            (self.feed_forward_norm, lambda x: self.down(F.gelu(self.up(x)))),
        )
        for norm, compute in sublayers:
            x = x + compute(norm(x)) if self.norm == "pre" else norm(x + compute(x))
        return x

    def _attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        forbidden = None if mask is None else ~mask  # torch says where attention is forbidden
        return self.attention(x, x, x, attn_mask=forbidden, need_weights=False)[0]


def learned_positions(
    x: Float[Tensor, "batch length d_model"],
    table: Float[Tensor, "max_len d_model"],
    offset: int = 0,
) -> Float[Tensor, "batch length d_model"]:
    """Add to each token the row of its position; the first token stands at `offset`.

    Raises:
        ValueError: If the table ends before the tokens do.

    """
    length, max_len = x.shape[1], table.shape[0]
    if offset + length > max_len:
        raise ValueError(
            "offset + length must not exceed the rows of the table, "
            f"got offset={offset}, length={length}, rows={max_len}"
        )
    return x + table[offset : offset + length]


def apply_rotary(
    x: Float[Tensor, "batch heads length d_head"],
    positions_: Int[Tensor, "batch length"],
    base: float = 10_000.0,
) -> Float[Tensor, "batch heads length d_head"]:
    """Turn neighbouring features by angles that grow with position, as `positions.rotate` does."""
    return positions.rotate(x, positions_[:, None], base)


def alibi_bias(
    num_heads: int, q_len: int, k_len: int
) -> Float[Tensor, "{num_heads} {q_len} {k_len}"]:
    """Lower each score by its distance, and later keys without end."""
    bias = positions.alibi_bias(num_heads, q_len, k_len, dtype=torch.float64)
    return bias.masked_fill(~masks.causal_mask(q_len, k_len), -math.inf)


class CrossAttention(multihead.MultiHeadAttention):
    """Let each target token collect from the memory of a source.

    Args:
        d_model: Width of a token; a multiple of `num_heads`.
        num_heads: Number of heads.

    """

    def __init__(self, d_model: int, num_heads: int):
        super().__init__(d_model, num_heads)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        x: Float[Tensor, "batch tgt_len d_model"],
        memory: Float[Tensor, "batch src_len d_model"],
        source_mask: Bool[Tensor, "batch src_len"] | None = None,
    ) -> Float[Tensor, "batch tgt_len d_model"]:
        """Give each target token what it found; `source_mask` is True on real tokens."""
        mask = None if source_mask is None else source_mask[:, None, None]
        return super().forward(x, memory, mask)


def shifted_loss(
    model: Callable[[Tensor], Tensor], targets: Int[Tensor, "batch length"], bos: int, pad: int
) -> Float[Tensor, ""]:
    """Give the nats per token that a model needs for targets, each given those before it."""
    shown = F.pad(targets[:, :-1], (1, 0), value=bos)
    return F.cross_entropy(model(shown).transpose(1, 2), targets, ignore_index=pad)


def smoothed_loss(
    logits: Float[Tensor, "batch length vocab"],
    targets: Int[Tensor, "batch length"],
    smoothing: float,
    pad: int,
) -> Float[Tensor, ""]:
    """Give the mean cross-entropy, in nats, with a share of each target spread over all tokens."""
    return F.cross_entropy(
        logits.transpose(1, 2), targets, ignore_index=pad, label_smoothing=smoothing
    )


def noam(step: int, d_model: int, warmup_steps: int) -> float:
    """Give the learning rate of a step, counted from 0.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, section 5.3,
        https://arxiv.org/abs/1706.03762

    """
    number = step + 1
    return d_model**-0.5 * min(number**-0.5, number * warmup_steps**-1.5)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a model is put together from, under the names that the parts have."""

    causal_mask: Callable[..., Tensor] = masks.causal_mask
    """Of `(q_len, k_len)`: what each query may see."""
    masked_softmax: Callable[..., Tensor] = masks.masked_softmax
    """Of `(scores, mask)`: weights over the keys that are allowed."""
    split_heads: Callable[..., Tensor] = multihead.split_heads
    """Of `(x, num_heads)`: the features of each token, cut into heads."""
    merge_heads: Callable[..., Tensor] = multihead.merge_heads
    """Of `(heads)`: back to one row of features for each token."""
    head_scores: Callable[..., Tensor] = attention.dot_scores
    """Of `(query, key)`: dot products, head by head."""
    scaled_dot_product_attention: Callable[..., tuple[Tensor, Tensor]] = (
        scaled_dot_product_attention
    )
    """Of `(query, key, value)`: averages and weights where every key is in sight."""
    MultiHeadAttention: type[nn.Module] | None = None
    """Of `(d_model, num_heads)`; None for one put together from the parts above."""
    layer_norm: Callable[..., Tensor] = layers.layer_norm
    """Of `(x, gain, bias, eps)`."""
    rms_norm: Callable[..., Tensor] = layers.rms_norm
    """Of `(x, gain, eps)`."""
    feed_forward: Callable[..., Tensor] = feed_forward
    """Of `(x, w_up, b_up, w_down, b_down, activation)`."""
    swiglu: Callable[..., Tensor] = swiglu
    """Of `(x, w_gate, w_up, w_down)`."""
    TransformerBlock: type[nn.Module] | None = None
    """Of `(d_model, num_heads, d_ff, norm)`, for GELU; None for one made of the parts above."""
    sinusoidal_positions: Callable[..., Tensor] = positions.sinusoidal_table
    """Of `(length, d_model)`: a table of rows to add to tokens."""
    learned_positions: Callable[..., Tensor] = learned_positions
    """Of `(x, table, offset)`: the tokens with their rows added."""
    apply_rotary: Callable[..., Tensor] = apply_rotary
    """Of `(x, positions, base)`: queries or keys, turned."""
    alibi_bias: Callable[..., Tensor] = alibi_bias
    """Of `(num_heads, q_len, k_len)`: what is added to scores."""

    @classmethod
    def among(cls, things: Mapping[str, Any]) -> "Parts":
        """Take the parts from what has their names; the library's own where nothing has."""
        return cls(**{name: things[name] for name in cls.names() if name in things})

    @classmethod
    def names(cls) -> list[str]:
        """List the names of all parts."""
        return [field.name for field in fields(cls)]
