"""One floor of a transformer: sub-layers that each add to the residual stream.

Pre-norm normalises what a sub-layer reads, `x + f(norm(x))`, and leaves the stream alone.
Post-norm normalises the stream after each sum, `norm(x + f(x))`. Dropout acts on what a
sub-layer gives, before it is added; apart from it, attention may drop some of its weights.

Source:
    Vaswani et al. 2017, Attention Is All You Need, sections 3.1 and 5.4 (post-norm, dropout),
    https://arxiv.org/abs/1706.03762; Xiong et al. 2020, On Layer Normalization in the
    Transformer Architecture (pre-norm), https://arxiv.org/abs/2002.04745

"""

from functools import partial
from typing import Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from groundup.cache import AnyLayerCache
from groundup.config import Activation, Norm
from groundup.layers import new_feed_forward, new_norm
from groundup.masks import AnyMask
from groundup.multihead import MultiHeadAttention
from groundup.positions import Rotary


class Block(nn.Module):
    """Self attention, then feed-forward: an encoder's block, and a decoder-only model's.

    Which of the two it is depends on the mask alone.

    Args:
        d_model: Width of a token.
        num_heads: Number of query heads.
        d_ff: Width inside the feed-forward network.
        num_kv_heads: Number of key and value heads; by default `num_heads`.
        activation: The bend inside the feed-forward network, as in `new_feed_forward`.
        norm: `layer` or `rms`.
        norm_eps: Added to a variance or mean square before it divides.
        norm_order: `pre` or `post`.
        bias: Whether linear maps add a constant.
        dropout: Share of a sub-layer's output that is dropped in training, from 0 to 1.
        attention_dropout: Share of the attention weights that is dropped in training.
        rotary: Turns the queries and keys of self attention by their position.
        alibi: Whether the scores of self attention fall with distance.
        qk_norm: Whether queries and keys are normalised.

    Raises:
        ValueError: If `norm_order`, `norm` or `activation` is none of these, or as in
            `MultiHeadAttention`.

    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        *,
        num_kv_heads: int | None = None,
        activation: Activation = "relu",
        norm: Norm = "layer",
        norm_eps: float = 1e-5,
        norm_order: Literal["pre", "post"] = "pre",
        bias: bool = True,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        rotary: Rotary | None = None,
        alibi: bool = False,
        qk_norm: bool = False,
    ):
        super().__init__()
        if norm_order not in ("pre", "post"):
            raise ValueError(f"norm_order must be pre or post, got norm_order={norm_order}")
        self.attention = MultiHeadAttention(
            d_model,
            num_heads,
            num_kv_heads,
            bias,
            rotary,
            alibi,
            qk_norm,
            attention_dropout=attention_dropout,
        )
        self.attention_norm = new_norm(norm, d_model, norm_eps)
        self.feed_forward = new_feed_forward(d_model, d_ff, activation, bias)
        self.feed_forward_norm = new_norm(norm, d_model, norm_eps)
        self.dropout = nn.Dropout(dropout)
        self.norm_order = norm_order

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        mask: AnyMask | None = None,
        cache: AnyLayerCache | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Add what attention finds, then what the feed-forward network makes of it."""
        attend = partial(self.attention, mask=mask, cache=cache, positions=positions)
        if self.norm_order == "pre":
            x = x + self.dropout(attend(self.attention_norm(x)))
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(x + self.dropout(attend(x)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class DecoderBlock(Block):
    """Self attention, then cross attention to an encoder's output, then feed-forward.

    Cross attention has no rotary positions and no ALiBi: its two sequences share no positions.

    Args:
        d_model: Width of a token.
        num_heads: Number of query heads.
        d_ff: Width inside the feed-forward network.
        **choices: As in `Block`.

    Raises:
        ValueError: As in `Block`.

    """

    def __init__(self, d_model: int, num_heads: int, d_ff: int, **choices):
        super().__init__(d_model, num_heads, d_ff, **choices)
        names = ("num_kv_heads", "bias", "qk_norm", "attention_dropout")
        shared = {name: choices[name] for name in names if name in choices}
        self.cross_attention = MultiHeadAttention(d_model, num_heads, **shared)
        norm, norm_eps = choices.get("norm", "layer"), choices.get("norm_eps", 1e-5)
        self.cross_attention_norm = new_norm(norm, d_model, norm_eps)

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        memory: Float[Tensor, "batch src_len d_model"],
        mask: AnyMask | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        cache: AnyLayerCache | None = None,
        cross_cache: AnyLayerCache | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Add what is found in the target so far, then in the source, then think it over."""
        attend = partial(self.attention, mask=mask, cache=cache, positions=positions)
        consult = partial(self.cross_attention, context=memory, mask=memory_mask, cache=cross_cache)
        if self.norm_order == "pre":
            x = x + self.dropout(attend(self.attention_norm(x)))
            x = x + self.dropout(consult(self.cross_attention_norm(x)))
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(x + self.dropout(attend(x)))
        x = self.cross_attention_norm(x + self.dropout(consult(x)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
