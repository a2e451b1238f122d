"""What works on each token alone: normalisation and the feed-forward network."""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class LayerNorm(nn.Module):
    """Bring each token's features to mean 0 and variance 1, then let a gain and a bias undo it.

    Statistics are taken over `d_model` alone: never over tokens, where the future would leak,
    and never over the batch.

    Args:
        d_model: Width of a token.
        eps: Added to the variance, under the root, so that a constant token stays finite.

    Source:
        Ba et al. 2016, Layer Normalization, section 3, https://arxiv.org/abs/1607.06450

    """

    def __init__(self, d_model: int, eps: float = 1e-5):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Normalise each token."""
        # The square of a half-precision number overflows from 256 on.
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        variance, mean = torch.var_mean(wide, dim=-1, correction=0, keepdim=True)
        normal = (wide - mean) * torch.rsqrt(variance + self.eps)
        return (normal * self.gain + self.bias).to(x.dtype)


class FeedForward(nn.Module):
    """Widen each token to `d_ff` features, bend them, and bring them back to `d_model`.

    The bend is the one nonlinearity that acts on a token's own features; without it the two
    linear maps would be one.

    Args:
        d_model: Width of a token.
        d_ff: Width in between, usually four times `d_model`.
        activation: `relu` as in the paper, or `gelu` in its exact form, `x Φ(x)`.

    Raises:
        ValueError: If `activation` is neither.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, section 3.3,
        https://arxiv.org/abs/1706.03762; Hendrycks and Gimpel 2016, Gaussian Error Linear
        Units, section 2, https://arxiv.org/abs/1606.08415

    """

    def __init__(self, d_model: int, d_ff: int, activation: Literal["relu", "gelu"] = "relu"):
        super().__init__()
        if activation not in ("relu", "gelu"):
            raise ValueError(f"activation must be relu or gelu, got activation={activation}")
        self.up = nn.Linear(d_model, d_ff)
        self.down = nn.Linear(d_ff, d_model)
        self.activation = F.relu if activation == "relu" else F.gelu

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Transform each token by itself."""
        return self.down(self.activation(self.up(x)))
