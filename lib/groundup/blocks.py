"""One floor of a transformer: sub-layers that each add to the residual stream.

Pre-norm normalises what a sub-layer reads, `x + f(norm(x))`, and leaves the stream alone.
Post-norm normalises the stream after each sum, `norm(x + f(x))`. Dropout acts on what a
sub-layer gives, before it is added.

Source:
    Vaswani et al. 2017, Attention Is All You Need, sections 3.1 and 5.4 (post-norm, dropout),
    https://arxiv.org/abs/1706.03762; Xiong et al. 2020, On Layer Normalization in the
    Transformer Architecture (pre-norm), https://arxiv.org/abs/2002.04745

"""

from functools import partial
from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor, nn

from groundup.cache import LayerCache
from groundup.layers import FeedForward, LayerNorm
from groundup.multihead import MultiHeadAttention


class Block(nn.Module):
    """Self attention, then feed-forward: an encoder's block, and a decoder-only model's.

    Which of the two it is depends on the mask alone.

    Args:
        d_model: Width of a token.
        num_heads: Number of query heads.
        d_ff: Width inside the feed-forward network.
        num_kv_heads: Number of key and value heads; by default `num_heads`.
        activation: `relu` or `gelu`, inside the feed-forward network.
        norm_order: `pre` or `post`.
        dropout: Share of a sub-layer's output that is dropped in training, from 0 to 1.
        rotary: Whether self attention turns queries and keys by their position.

    Raises:
        ValueError: If `norm_order` is neither.

    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        *,
        num_kv_heads: int | None = None,
        activation: Literal["relu", "gelu"] = "relu",
        norm_order: Literal["pre", "post"] = "pre",
        dropout: float = 0.0,
        rotary: bool = False,
    ):
        super().__init__()
        _require_norm_order(norm_order)
        self.attention = MultiHeadAttention(d_model, num_heads, num_kv_heads, rotary=rotary)
        self.attention_norm = LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, d_ff, activation)
        self.feed_forward_norm = LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
        self.norm_order = norm_order

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        mask: Bool[Tensor, "..."] | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Add what attention finds, then what the feed-forward network makes of it."""
        attend = partial(self.attention, mask=mask, cache=cache)
        if self.norm_order == "pre":
            x = x + self.dropout(attend(self.attention_norm(x)))
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(x + self.dropout(attend(x)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class DecoderBlock(nn.Module):
    """Self attention, then cross attention to an encoder's output, then feed-forward.

    Args:
        d_model: Width of a token.
        num_heads: Number of query heads.
        d_ff: Width inside the feed-forward network.
        num_kv_heads: Number of key and value heads; by default `num_heads`.
        activation: `relu` or `gelu`, inside the feed-forward network.
        norm_order: `pre` or `post`.
        dropout: Share of a sub-layer's output that is dropped in training, from 0 to 1.
        rotary: Whether self attention turns queries and keys by their position. Cross
            attention never does: its two sequences share no positions.

    Raises:
        ValueError: If `norm_order` is neither.

    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        *,
        num_kv_heads: int | None = None,
        activation: Literal["relu", "gelu"] = "relu",
        norm_order: Literal["pre", "post"] = "pre",
        dropout: float = 0.0,
        rotary: bool = False,
    ):
        super().__init__()
        _require_norm_order(norm_order)
        self.attention = MultiHeadAttention(d_model, num_heads, num_kv_heads, rotary=rotary)
        self.attention_norm = LayerNorm(d_model)
        self.cross_attention = MultiHeadAttention(d_model, num_heads, num_kv_heads)
        self.cross_attention_norm = LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, d_ff, activation)
        self.feed_forward_norm = LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
        self.norm_order = norm_order

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        memory: Float[Tensor, "batch src_len d_model"],
        mask: Bool[Tensor, "..."] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        cache: LayerCache | None = None,
        cross_cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Add what is found in the target so far, then in the source, then think it over."""
        attend = partial(self.attention, mask=mask, cache=cache)
        consult = partial(self.cross_attention, context=memory, mask=memory_mask, cache=cross_cache)
        if self.norm_order == "pre":
            x = x + self.dropout(attend(self.attention_norm(x)))
            x = x + self.dropout(consult(self.cross_attention_norm(x)))
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(x + self.dropout(attend(x)))
        x = self.cross_attention_norm(x + self.dropout(consult(x)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


def _require_norm_order(norm_order: str) -> None:
    if norm_order not in ("pre", "post"):
        raise ValueError(f"norm_order must be pre or post, got norm_order={norm_order}")
