"""Layers that act on each token separately: the norms and the feed-forward network."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from groundup.core.config import Activation, Norm, require_choice


def layer_norm(
    x: Float[Tensor, "*batch d_model"],
    gain: Float[Tensor, " d_model"],
    bias: Float[Tensor, " d_model"],
    eps: float = 1e-5,
) -> Float[Tensor, "*batch d_model"]:
    """Bring each token's features to mean 0 and variance 1, then scale and shift them.

    Statistics are taken over `d_model` alone: never over tokens, which would leak the future,
    and never over the batch.

    Args:
        x: Tokens.
        gain: Multiplies each feature.
        bias: Added to each feature.
        eps: Added to the variance, inside the square root, so that a constant token stays finite.

    Source:
        Ba et al. 2016, Layer Normalization, section 3, https://arxiv.org/abs/1607.06450

    """
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    return centred * torch.rsqrt(variance + eps) * gain + bias


def rms_norm(
    x: Float[Tensor, "*batch d_model"], gain: Float[Tensor, " d_model"], eps: float = 1e-5
) -> Float[Tensor, "*batch d_model"]:
    """Bring each token's features to a mean square of 1, then scale them.

    Half of `layer_norm`: no mean is subtracted. On tokens whose mean is 0 the two agree.

    Args:
        x: Tokens.
        gain: Multiplies each feature.
        eps: Added to the mean square, inside the square root, so that a token of zeros stays
            finite.

    Source:
        Zhang and Sennrich 2019, Root Mean Square Layer Normalization, section 4,
        https://arxiv.org/abs/1910.07467

    """
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * gain


class LayerNorm(nn.Module):
    """`layer_norm` with a learned gain and bias, by torch's kernel.

    The kernel reads a token once where the formula reads it five times, and sums in float32
    when the features are in half precision: in float16, squares overflow from 256 on.

    Args:
        d_model: Width of a token.
        eps: As in `layer_norm`.

    """

    def __init__(self, d_model: int, eps: float = 1e-5):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Normalise each token."""
        return F.layer_norm(x, self.gain.shape, self.gain, self.bias, self.eps)


class RMSNorm(nn.Module):
    """`rms_norm` with a learned gain, by torch's kernel, as in `LayerNorm`.

    Args:
        d_model: Width of a token.
        eps: As in `rms_norm`.

    """

    def __init__(self, d_model: int, eps: float = 1e-5):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Normalise each token."""
        return F.rms_norm(x, self.gain.shape, self.gain, self.eps)


def new_norm(norm: Norm, d_model: int, eps: float = 1e-5) -> LayerNorm | RMSNorm:
    """Make the norm of that name.

    Raises:
        ValueError: If there is none.

    """
    require_choice(("layer", "rms"), norm=norm)
    return LayerNorm(d_model, eps) if norm == "layer" else RMSNorm(d_model, eps)


class _ReLU(torch.autograd.Function):
    """`max(x, 0)`, whose gradient is computed from its output.

    Compiled for a CPU, torch's own stores a boolean for each feature, one at a time:
    a third of the time of a small encoder-decoder (tests/benchmarks/records/training_speed.json).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return F.relu(x)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> Tensor:
        return gradients[0] * ctx.saved_tensors[0].sign()


def relu(x: Float[Tensor, "*batch d_ff"]) -> Float[Tensor, "*batch d_ff"]:
    """Set negative features to 0.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, section 3.3,
        https://arxiv.org/abs/1706.03762

    """
    return _ReLU.apply(x) if torch.compiler.is_compiling() else F.relu(x)


def squared_relu(x: Float[Tensor, "*batch d_ff"]) -> Float[Tensor, "*batch d_ff"]:
    """Set negative features to 0 and square the others.

    Source:
        So et al. 2021, Primer: Searching for Efficient Transformers for Language Modeling,
        section 3, https://arxiv.org/abs/2109.08668

    """
    return relu(x).square()


def gelu_tanh(x: Float[Tensor, "*batch d_ff"]) -> Float[Tensor, "*batch d_ff"]:
    """Approximate GELU by a tanh, as GPT-2 does.

    Source:
        Hendrycks and Gimpel 2016, Gaussian Error Linear Units, section 2,
        https://arxiv.org/abs/1606.08415

    """
    return F.gelu(x, approximate="tanh")


class FeedForward(nn.Module):
    """Expand each token to `d_ff` features, apply a nonlinearity, and project back to `d_model`.

    Norms aside, this is the only nonlinearity within a token; without it the two linear
    layers would collapse into one.

    Args:
        d_model: Width of a token.
        d_ff: Width in between, usually four times `d_model`.
        activation: `relu` as in the paper; `gelu` in its exact form, `x Φ(x)`; `gelu_tanh`, its
            approximation; or `squared_relu`.
        bias: Whether the two linear layers have a bias.

    Raises:
        ValueError: If `activation` is none of these.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, section 3.3,
        https://arxiv.org/abs/1706.03762; Hendrycks and Gimpel 2016, Gaussian Error Linear
        Units, section 2, https://arxiv.org/abs/1606.08415

    """

    ACTIVATIONS = dict(relu=relu, gelu=F.gelu, gelu_tanh=gelu_tanh, squared_relu=squared_relu)

    def __init__(self, d_model: int, d_ff: int, activation: Activation = "relu", bias: bool = True):
        super().__init__()
        require_choice(self.ACTIVATIONS, activation=activation)
        self.up = nn.Linear(d_model, d_ff, bias=bias)
        self.down = nn.Linear(d_ff, d_model, bias=bias)
        self.activation = self.ACTIVATIONS[activation]

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Transform each token by itself."""
        return self.down(self.activation(self.up(x)))


class GatedFeedForward(nn.Module):
    """A feed-forward network with a gate: one projection decides how much of another passes.

    It has three matrices where `FeedForward` has two, and as many parameters if its `d_ff` is
    two thirds as large.

    Args:
        d_model: Width of a token.
        d_ff: Width in between.
        activation: That of the gate: `swiglu` has `x sigmoid(x)`, `geglu` has GELU, `geglu_tanh`
            its approximation.
        bias: Whether the three linear layers have a bias.

    Raises:
        ValueError: If `activation` is none of these.

    Source:
        Shazeer 2020, GLU Variants Improve Transformer, section 2,
        https://arxiv.org/abs/2002.05202

    """

    ACTIVATIONS = dict(swiglu=F.silu, geglu=F.gelu, geglu_tanh=gelu_tanh)

    def __init__(
        self, d_model: int, d_ff: int, activation: Activation = "swiglu", bias: bool = False
    ):
        super().__init__()
        require_choice(self.ACTIVATIONS, activation=activation)
        self.gate = nn.Linear(d_model, d_ff, bias=bias)
        self.up = nn.Linear(d_model, d_ff, bias=bias)
        self.down = nn.Linear(d_ff, d_model, bias=bias)
        self.activation = self.ACTIVATIONS[activation]

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Transform each token by itself."""
        return self.down(self.activation(self.gate(x)) * self.up(x))


def new_feed_forward(
    d_model: int, d_ff: int, activation: Activation, bias: bool = True
) -> FeedForward | GatedFeedForward:
    """Make the feed-forward network that has this activation.

    Raises:
        ValueError: If none has it.

    """
    require_choice(FeedForward.ACTIVATIONS | GatedFeedForward.ACTIVATIONS, activation=activation)
    kind = GatedFeedForward if activation in GatedFeedForward.ACTIVATIONS else FeedForward
    return kind(d_model, d_ff, activation, bias)
