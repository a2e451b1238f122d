"""One block of a transformer: sub-layers that each add to the residual stream.

Pre-norm normalises the input of a sub-layer, `x + f(norm(x))`, and leaves the stream alone.
Post-norm normalises the stream after each residual connection, `norm(x + f(x))`. Dropout acts on
the output of a sub-layer, before it is added; in addition, attention weights may be dropped in
training.

Source:
    Vaswani et al. 2017, Attention Is All You Need, sections 3.1 and 5.4 (post-norm, dropout),
    https://arxiv.org/abs/1706.03762; Xiong et al. 2020, On Layer Normalization in the
    Transformer Architecture (pre-norm), https://arxiv.org/abs/2002.04745

"""

from copy import deepcopy
from typing import Any, Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from groundup.core.cache import LayerCache
from groundup.core.config import Activation, Norm, require_choice
from groundup.core.layers import new_feed_forward, new_norm
from groundup.core.multihead import MultiHeadAttention


class Block(nn.Module):
    """Self-attention, then feed-forward: an encoder's block, and a decoder-only model's.

    Which it is depends on `is_causal` alone.

    Args:
        d_model: Width of a token.
        num_heads: Number of query heads.
        d_ff: Width inside the feed-forward network.
        activation: The nonlinearity of the feed-forward network, as in `new_feed_forward`.
        norm: `layer` or `rms`.
        norm_eps: Added to a variance or mean square before dividing by its square root.
        norm_order: `pre` or `post`.
        bias: Whether linear layers have a bias.
        dropout: Probability that a feature of a sub-layer's output is dropped in training.
        **attention: Options of the self-attention, as in `MultiHeadAttention`.

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
        activation: Activation = "relu",
        norm: Norm = "layer",
        norm_eps: float = 1e-5,
        norm_order: Literal["pre", "post"] = "pre",
        bias: bool = True,
        dropout: float = 0.0,
        **attention: Any,
    ):
        super().__init__()
        require_choice(("pre", "post"), norm_order=norm_order)
        self.norm_order = norm_order
        attention |= {"bias": bias, "norm_eps": norm_eps}
        self.attention = MultiHeadAttention(d_model, num_heads, **attention)
        self.attention_norm = new_norm(norm, d_model, norm_eps)
        self.feed_forward = new_feed_forward(d_model, d_ff, activation, bias)
        self.feed_forward_norm = new_norm(norm, d_model, norm_eps)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        mask: Bool[Tensor, "..."] | None = None,
        cache: LayerCache | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Add the output of attention, then that of the feed-forward network."""
        if self.norm_order == "pre":
            h = self.attention_norm(x)
            x = x + self.dropout(self.attention(h, mask=mask, cache=cache, positions=positions))
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        found = self.attention(x, mask=mask, cache=cache, positions=positions)
        x = self.attention_norm(x + self.dropout(found))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class DecoderBlock(Block):
    """Self-attention, then cross-attention to an encoder's output, then feed-forward.

    Cross-attention has no rotary positions and no ALiBi: its two sequences have separate positions.

    Args:
        d_model: Width of a token.
        num_heads: Number of query heads.
        d_ff: Width inside the feed-forward network.
        **choices: As in `Block`; positions, causality and backend are for self-attention only.

    Raises:
        ValueError: As in `Block`.

    """

    def __init__(self, d_model: int, num_heads: int, d_ff: int, **choices: Any):
        super().__init__(d_model, num_heads, d_ff, **choices)
        names = ("num_kv_heads", "d_head", "bias", "qk_norm", "norm_eps", "attention_dropout")
        cross = {name: choices[name] for name in names if name in choices}
        self.cross_attention = MultiHeadAttention(d_model, num_heads, **cross)
        self.cross_attention_norm = deepcopy(self.attention_norm)  # of the same kind

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        memory: Float[Tensor, "batch src_len d_model"],
        mask: Bool[Tensor, "..."] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        cache: LayerCache | None = None,
        cross_cache: LayerCache | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Add the outputs of self-attention, cross-attention and the feed-forward network."""
        if self.norm_order == "pre":
            h = self.attention_norm(x)
            x = x + self.dropout(self.attention(h, mask=mask, cache=cache, positions=positions))
            h = self.cross_attention_norm(x)
            found = self.cross_attention(h, memory, mask=memory_mask, cache=cross_cache)
            x = x + self.dropout(found)
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        found = self.attention(x, mask=mask, cache=cache, positions=positions)
        x = self.attention_norm(x + self.dropout(found))
        found = self.cross_attention(x, memory, mask=memory_mask, cache=cross_cache)
        x = self.cross_attention_norm(x + self.dropout(found))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
