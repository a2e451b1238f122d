"""The named mistakes of chapter 04: what a message can name, and what graders are tested with."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from classroom.answers import Mistake

# 4.1 --------------------------------------------------------------------------------------------


class DividedByOneLess(Mistake, exercise="layer_norm"):
    """The variance is divided by d_model - 1, which is what var() and std() do by default;
    LayerNorm divides by d_model."""

    def layer_norm(x, gain, bias, eps=1e-5):
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True)
        return (x - mean) / torch.sqrt(variance + eps) * gain + bias


class EpsilonOutsideTheRoot(Mistake, exercise="layer_norm"):
    """Epsilon is added to the root; it belongs under it, where it is added to the variance."""

    def layer_norm(x, gain, bias, eps=1e-5):
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, correction=0)
        return (x - mean) / (torch.sqrt(variance) + eps) * gain + bias


class StandardDeviationOfTorch(Mistake, exercise="layer_norm"):
    """std() divides by d_model - 1, and epsilon is added to it instead of to the variance under
    the root."""

    def layer_norm(x, gain, bias, eps=1e-5):
        mean = x.mean(dim=-1, keepdim=True)
        spread = x.std(dim=-1, keepdim=True) + eps
        return (x - mean) / spread * gain + bias


class EpsilonForgotten(Mistake, exercise="layer_norm"):
    """Epsilon plays no part, or far too small a one: it is added to the variance, under the root,
    and a token of equal features is not divided by zero."""

    def layer_norm(x, gain, bias, eps=1e-5):
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, correction=0)
        return (x - mean) / torch.sqrt(variance) * gain + bias


class EpsilonWrittenIn(Mistake, exercise="layer_norm"):
    """Epsilon is always 1e-5; it is an argument, and may be another number."""

    def layer_norm(x, gain, bias, eps=1e-5):
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, correction=0)
        return (x - mean) / torch.sqrt(variance + 1e-5) * gain + bias


class StatisticsOverTokens(Mistake, exercise="layer_norm"):
    """Mean and variance are taken over the tokens of the sequence (dim=-2), so the future leaks
    into the past; they are those of one token, over its features (dim=-1)."""

    def layer_norm(x, gain, bias, eps=1e-5):
        mean = x.mean(dim=-2, keepdim=True)
        variance = x.var(dim=-2, keepdim=True, correction=0)
        return (x - mean) / torch.sqrt(variance + eps) * gain + bias


class StatisticsOverTheBatch(Mistake, exercise="layer_norm"):
    """Mean and variance are taken over the batch, so a sequence depends on its neighbours; they
    are those of one token, over its features (dim=-1)."""

    def layer_norm(x, gain, bias, eps=1e-5):
        mean = x.mean(dim=0, keepdim=True)
        variance = x.var(dim=0, keepdim=True, correction=0)
        return (x - mean) / torch.sqrt(variance + eps) * gain + bias


class StatisticsOfTheWholeSequence(Mistake, exercise="layer_norm"):
    """One mean and one variance serve a whole sequence; each token needs its own, over its
    features only."""

    def layer_norm(x, gain, bias, eps=1e-5):
        mean = x.mean(dim=(-2, -1), keepdim=True)
        variance = x.var(dim=(-2, -1), keepdim=True, correction=0)
        return (x - mean) / torch.sqrt(variance + eps) * gain + bias


class BatchNormInstead(Mistake, exercise="layer_norm"):
    """Each feature is normalised over all tokens of the batch, which is batch normalisation;
    LayerNorm normalises each token over its features."""

    def layer_norm(x, gain, bias, eps=1e-5):
        axes = tuple(range(x.dim() - 1))
        mean = x.mean(dim=axes, keepdim=True)
        variance = x.var(dim=axes, keepdim=True, correction=0)
        return (x - mean) / torch.sqrt(variance + eps) * gain + bias


class RunningStatistics(Mistake, exercise="layer_norm"):
    """The statistics are stored ones, as batch normalisation uses after training, here still 0
    and 1; each token must be measured anew."""

    def layer_norm(x, gain, bias, eps=1e-5):
        mean = torch.zeros_like(gain)
        variance = torch.ones_like(gain)
        return (x - mean) / torch.sqrt(variance + eps) * gain + bias


class MeanNotSubtracted(Mistake, exercise="layer_norm"):
    """The mean is not subtracted from the token, only from what the variance is made of."""

    def layer_norm(x, gain, bias, eps=1e-5):
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, correction=0)
        return x / torch.sqrt(variance + eps) * gain + bias


class RmsNormInstead(Mistake, exercise="layer_norm"):
    """This divides by the root of the mean square and leaves the mean where it is, which is
    RMSNorm; LayerNorm subtracts the mean first."""

    def layer_norm(x, gain, bias, eps=1e-5):
        mean = 0
        variance = x.square().mean(dim=-1, keepdim=True)
        return (x - mean) / torch.sqrt(variance + eps) * gain + bias


class DividedByTheVariance(Mistake, exercise="layer_norm"):
    """The token is divided by its variance; divide by the root of it."""

    def layer_norm(x, gain, bias, eps=1e-5):
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, correction=0)
        return (x - mean) / (variance + eps) * gain + bias


class GainForgotten(Mistake, exercise="layer_norm"):
    """The gain is not applied."""

    def layer_norm(x, gain, bias, eps=1e-5):
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, correction=0)
        return (x - mean) / torch.sqrt(variance + eps) + bias


class BiasForgotten(Mistake, exercise="layer_norm"):
    """The bias is not added."""

    def layer_norm(x, gain, bias, eps=1e-5):
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, correction=0)
        return (x - mean) / torch.sqrt(variance + eps) * gain


class GainTimesBias(Mistake, exercise="layer_norm"):
    """The gain multiplies the bias too: the bias is added last."""

    def layer_norm(x, gain, bias, eps=1e-5):
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, correction=0)
        return ((x - mean) / torch.sqrt(variance + eps) + bias) * gain


class GainBeforeTheNorm(Mistake, exercise="layer_norm"):
    """The gain multiplies the token before its mean and variance are taken; it comes after the
    division."""

    def layer_norm(x, gain, bias, eps=1e-5):
        x = x * gain
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, correction=0)
        return (x - mean) / torch.sqrt(variance + eps) + bias


class SquaresNotCentred(Mistake, exercise="layer_norm"):
    """The squares are those of the features as they came; the variance is the mean of the squares
    of what is left when the mean is subtracted."""

    def layer_norm(x, gain, bias, eps=1e-5):
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.square().mean(dim=-1, keepdim=True)
        return (x - mean) / torch.sqrt(variance + eps) * gain + bias


class OneMeanForEverything(Mistake, exercise="layer_norm"):
    """One mean and one variance serve all that is in the batch; each token needs its own, over its
    features only."""

    def layer_norm(x, gain, bias, eps=1e-5):
        variance = x.var(correction=0)
        return (x - x.mean()) / torch.sqrt(variance + eps) * gain + bias


# 4.2 --------------------------------------------------------------------------------------------


class MeanSubtracted(Mistake, exercise="rms_norm"):
    """The mean is subtracted first, which is LayerNorm; RMSNorm leaves it where it is."""

    def rms_norm(x, gain, eps=1e-5):
        x = x - x.mean(dim=-1, keepdim=True)
        mean_square = x.square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(mean_square + eps) * gain

    def centring_matrix(d_model):
        return torch.eye(d_model, dtype=torch.float64) - 1 / d_model


class VarianceInsteadOfMeanSquare(Mistake, exercise="rms_norm"):
    """This divides by the standard deviation, which is measured from the mean; RMSNorm measures
    from 0: the mean of the squares."""

    def rms_norm(x, gain, eps=1e-5):
        mean_square = x.var(dim=-1, keepdim=True, correction=0)
        return x * torch.rsqrt(mean_square + eps) * gain

    def centring_matrix(d_model):
        return torch.eye(d_model, dtype=torch.float64) - 1 / d_model


class DividedByTheLength(Mistake, exercise="rms_norm"):
    """This divides by the length of the vector, the root of the sum of its squares; RMSNorm
    takes the root of their mean."""

    def rms_norm(x, gain, eps=1e-5):
        mean_square = x.square().sum(dim=-1, keepdim=True)
        return x * torch.rsqrt(mean_square + eps) * gain

    def centring_matrix(d_model):
        return torch.eye(d_model, dtype=torch.float64) - 1 / d_model


class DividedByTheNorm(Mistake, exercise="rms_norm"):
    """This divides by what norm() gives, the root of the sum of the squares, and adds epsilon to
    it; RMSNorm takes the root of their mean, with epsilon under it."""

    def rms_norm(x, gain, eps=1e-5):
        length = x.norm(dim=-1, keepdim=True)
        return x / (length + eps) * gain

    def centring_matrix(d_model):
        return torch.eye(d_model, dtype=torch.float64) - 1 / d_model


class MeanOfAbsolutes(Mistake, exercise="rms_norm"):
    """This divides by the mean of the absolute values; RMSNorm squares, takes the mean, and
    takes the root."""

    def rms_norm(x, gain, eps=1e-5):
        mean_size = x.abs().mean(dim=-1, keepdim=True)
        return x / (mean_size + eps) * gain

    def centring_matrix(d_model):
        return torch.eye(d_model, dtype=torch.float64) - 1 / d_model


class RootForgotten(Mistake, exercise="rms_norm"):
    """The token is divided by its mean square; divide by the root of it."""

    def rms_norm(x, gain, eps=1e-5):
        mean_square = x.square().mean(dim=-1, keepdim=True)
        return x / (mean_square + eps) * gain

    def centring_matrix(d_model):
        return torch.eye(d_model, dtype=torch.float64) - 1 / d_model


class EpsilonOutsideTheRoot(Mistake, exercise="rms_norm"):
    """Epsilon is added to the root; it belongs under it, where it is added to the mean
    square."""

    def rms_norm(x, gain, eps=1e-5):
        mean_square = x.square().mean(dim=-1, keepdim=True)
        return x / (mean_square.sqrt() + eps) * gain

    def centring_matrix(d_model):
        return torch.eye(d_model, dtype=torch.float64) - 1 / d_model


class EpsilonForgotten(Mistake, exercise="rms_norm"):
    """Epsilon plays no part, or far too small a one: it is added to the mean square, under the
    root, and a token of zeros is not divided by zero."""

    def rms_norm(x, gain, eps=1e-5):
        mean_square = x.square().mean(dim=-1, keepdim=True)
        return x / mean_square.sqrt() * gain

    def centring_matrix(d_model):
        return torch.eye(d_model, dtype=torch.float64) - 1 / d_model


class EpsilonWrittenIn(Mistake, exercise="rms_norm"):
    """Epsilon is always 1e-5; it is an argument, and may be another number."""

    def rms_norm(x, gain, eps=1e-5):
        mean_square = x.square().mean(dim=-1, keepdim=True)
        return x / torch.sqrt(mean_square + 1e-5) * gain

    def centring_matrix(d_model):
        return torch.eye(d_model, dtype=torch.float64) - 1 / d_model


class MeanOverTokens(Mistake, exercise="rms_norm"):
    """The mean of the squares is taken over the tokens; it is that of one token, over its
    features (dim=-1)."""

    def rms_norm(x, gain, eps=1e-5):
        mean_square = x.square().mean(dim=-2, keepdim=True)
        return x * torch.rsqrt(mean_square + eps) * gain

    def centring_matrix(d_model):
        return torch.eye(d_model, dtype=torch.float64) - 1 / d_model


class GainForgotten(Mistake, exercise="rms_norm"):
    """The gain is not applied."""

    def rms_norm(x, gain, eps=1e-5):
        mean_square = x.square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(mean_square + eps)

    def centring_matrix(d_model):
        return torch.eye(d_model, dtype=torch.float64) - 1 / d_model


class MeanKeptInstead(Mistake, exercise="rms_norm"):
    """This matrix replaces a token by its mean; what is left after subtracting it is the
    identity less this."""

    def rms_norm(x, gain, eps=1e-5):
        mean_square = x.square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(mean_square + eps) * gain

    def centring_matrix(d_model):
        return torch.full((d_model, d_model), 1 / d_model, dtype=torch.float64)


class SumSubtracted(Mistake, exercise="rms_norm"):
    """The matrix subtracts the sum of the features; divide it by d_model to get the mean."""

    def rms_norm(x, gain, eps=1e-5):
        mean_square = x.square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(mean_square + eps) * gain

    def centring_matrix(d_model):
        return torch.eye(d_model, dtype=torch.float64) - 1


class OnlyTheDiagonal(Mistake, exercise="rms_norm"):
    """Only the diagonal of the identity is made smaller, which shrinks each feature; the mean
    has to be subtracted from each feature and contains all of them."""

    def rms_norm(x, gain, eps=1e-5):
        mean_square = x.square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(mean_square + eps) * gain

    def centring_matrix(d_model):
        return torch.eye(d_model, dtype=torch.float64) * (1 - 1 / d_model)


# 4.3 --------------------------------------------------------------------------------------------


class SingleLayer(Mistake, exercise="feed_forward"):
    """There is one map with an activation behind it, and it leaves a token d_ff wide with no
    negative features; a second map brings it back to d_model."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        hidden = x @ w_up + b_up
        if activation == "relu":
            hidden = F.relu(hidden)
        elif activation == "gelu":
            hidden = F.gelu(hidden)
        else:
            hidden = F.gelu(hidden, approximate="tanh")
        return hidden

    def swiglu(x, w_gate, w_up, w_down):
        return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down

    def gated_width(d_ff, multiple):
        return math.ceil(2 * d_ff / (3 * multiple)) * multiple


class ActivationOnTheOutput(Mistake, exercise="feed_forward"):
    """The activation stands behind the second map as well, so nothing negative can be added to
    the stream; the second map is the last step."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        hidden = x @ w_up + b_up
        if activation == "relu":
            hidden = F.relu(hidden)
        elif activation == "gelu":
            hidden = F.gelu(hidden)
        else:
            hidden = F.gelu(hidden, approximate="tanh")
        output = hidden @ w_down + b_down
        if activation == "relu":
            return F.relu(output)
        return F.gelu(output, approximate="none" if activation == "gelu" else "tanh")

    def swiglu(x, w_gate, w_up, w_down):
        return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down

    def gated_width(d_ff, multiple):
        return math.ceil(2 * d_ff / (3 * multiple)) * multiple


class ActivationMoved(Mistake, exercise="feed_forward"):
    """The activation stands behind the second map instead of between the two, so the two maps
    are one."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        hidden = x @ w_up + b_up
        output = hidden @ w_down + b_down
        if activation == "relu":
            return F.relu(output)
        return F.gelu(output, approximate="none" if activation == "gelu" else "tanh")

    def swiglu(x, w_gate, w_up, w_down):
        return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down

    def gated_width(d_ff, multiple):
        return math.ceil(2 * d_ff / (3 * multiple)) * multiple


class ActivationForgotten(Mistake, exercise="feed_forward"):
    """Nothing bends between the two maps, so together they are one linear map."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        hidden = x @ w_up + b_up
        return hidden @ w_down + b_down

    def swiglu(x, w_gate, w_up, w_down):
        return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down

    def gated_width(d_ff, multiple):
        return math.ceil(2 * d_ff / (3 * multiple)) * multiple


class AlwaysRelu(Mistake, exercise="feed_forward"):
    """ReLU is used whatever `activation` says."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        hidden = x @ w_up + b_up
        hidden = F.relu(hidden)
        return hidden @ w_down + b_down

    def swiglu(x, w_gate, w_up, w_down):
        return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down

    def gated_width(d_ff, multiple):
        return math.ceil(2 * d_ff / (3 * multiple)) * multiple


class ExactGeluForBoth(Mistake, exercise="feed_forward"):
    """The exact GELU is used where the approximation by a tanh is asked for."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        hidden = x @ w_up + b_up
        if activation == "relu":
            hidden = F.relu(hidden)
        else:
            hidden = F.gelu(hidden)
        return hidden @ w_down + b_down

    def swiglu(x, w_gate, w_up, w_down):
        return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down

    def gated_width(d_ff, multiple):
        return math.ceil(2 * d_ff / (3 * multiple)) * multiple


class ApproximateGeluForBoth(Mistake, exercise="feed_forward"):
    """The approximation by a tanh is used where the exact GELU is asked for."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        hidden = x @ w_up + b_up
        if activation == "relu":
            hidden = F.relu(hidden)
        else:
            hidden = F.gelu(hidden, approximate="tanh")
        return hidden @ w_down + b_down

    def swiglu(x, w_gate, w_up, w_down):
        return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down

    def gated_width(d_ff, multiple):
        return math.ceil(2 * d_ff / (3 * multiple)) * multiple


class PlainTanh(Mistake, exercise="feed_forward"):
    """A plain tanh is used where the GELU with a tanh is asked for; there the tanh only says
    how much of z passes."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        hidden = x @ w_up + b_up
        if activation == "relu":
            hidden = F.relu(hidden)
        elif activation == "gelu":
            hidden = F.gelu(hidden)
        else:
            hidden = torch.tanh(hidden)
        return hidden @ w_down + b_down

    def swiglu(x, w_gate, w_up, w_down):
        return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down

    def gated_width(d_ff, multiple):
        return math.ceil(2 * d_ff / (3 * multiple)) * multiple


class GeluBySigmoid(Mistake, exercise="feed_forward"):
    """This is z times the sigmoid of 1.702 z, a coarser approximation of GELU; the exact one
    uses the normal distribution function."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        hidden = x @ w_up + b_up
        if activation == "relu":
            hidden = F.relu(hidden)
        elif activation == "gelu":
            hidden = hidden * torch.sigmoid(1.702 * hidden)
        else:
            hidden = F.gelu(hidden, approximate="tanh")
        return hidden @ w_down + b_down

    def swiglu(x, w_gate, w_up, w_down):
        return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down

    def gated_width(d_ff, multiple):
        return math.ceil(2 * d_ff / (3 * multiple)) * multiple


class GeluWithoutItsRoot(Mistake, exercise="feed_forward"):
    """The distribution function is erf of z; the argument of erf is z divided by the root of 2."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        hidden = x @ w_up + b_up
        if activation == "relu":
            hidden = F.relu(hidden)
        elif activation == "gelu":
            hidden = 0.5 * hidden * (1 + torch.erf(hidden))
        else:
            hidden = F.gelu(hidden, approximate="tanh")
        return hidden @ w_down + b_down

    def swiglu(x, w_gate, w_up, w_down):
        return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down

    def gated_width(d_ff, multiple):
        return math.ceil(2 * d_ff / (3 * multiple)) * multiple


class CubeOutsideTheFactor(Mistake, exercise="feed_forward"):
    """In the tanh, the root of 2/pi multiplies the cube as well as z itself."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        hidden = x @ w_up + b_up
        if activation == "relu":
            hidden = F.relu(hidden)
        elif activation == "gelu":
            hidden = F.gelu(hidden)
        else:
            bent = math.sqrt(2 / math.pi) * hidden + 0.044715 * hidden**3
            hidden = 0.5 * hidden * (1 + torch.tanh(bent))
        return hidden @ w_down + b_down

    def swiglu(x, w_gate, w_up, w_down):
        return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down

    def gated_width(d_ff, multiple):
        return math.ceil(2 * d_ff / (3 * multiple)) * multiple


class BiasesForgotten(Mistake, exercise="feed_forward"):
    """The two biases are not added."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        hidden = x @ w_up
        if activation == "relu":
            hidden = F.relu(hidden)
        elif activation == "gelu":
            hidden = F.gelu(hidden)
        else:
            hidden = F.gelu(hidden, approximate="tanh")
        return hidden @ w_down

    def swiglu(x, w_gate, w_up, w_down):
        return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down

    def gated_width(d_ff, multiple):
        return math.ceil(2 * d_ff / (3 * multiple)) * multiple


class FirstBiasForgotten(Mistake, exercise="feed_forward"):
    """The bias of the first map is not added: it comes before the bend."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        hidden = x @ w_up
        if activation == "relu":
            hidden = F.relu(hidden)
        elif activation == "gelu":
            hidden = F.gelu(hidden)
        else:
            hidden = F.gelu(hidden, approximate="tanh")
        return hidden @ w_down + b_down

    def swiglu(x, w_gate, w_up, w_down):
        return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down

    def gated_width(d_ff, multiple):
        return math.ceil(2 * d_ff / (3 * multiple)) * multiple


class GateAndUpExchanged(Mistake, exercise="feed_forward"):
    """The activation is on what goes up instead of on the gate."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        hidden = x @ w_up + b_up
        if activation == "relu":
            hidden = F.relu(hidden)
        elif activation == "gelu":
            hidden = F.gelu(hidden)
        else:
            hidden = F.gelu(hidden, approximate="tanh")
        return hidden @ w_down + b_down

    def swiglu(x, w_gate, w_up, w_down):
        return ((x @ w_gate) * F.silu(x @ w_up)) @ w_down

    def gated_width(d_ff, multiple):
        return math.ceil(2 * d_ff / (3 * multiple)) * multiple


class SigmoidForSilu(Mistake, exercise="feed_forward"):
    """The gate is a plain sigmoid; silu(z) is z times the sigmoid of z."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        hidden = x @ w_up + b_up
        if activation == "relu":
            hidden = F.relu(hidden)
        elif activation == "gelu":
            hidden = F.gelu(hidden)
        else:
            hidden = F.gelu(hidden, approximate="tanh")
        return hidden @ w_down + b_down

    def swiglu(x, w_gate, w_up, w_down):
        return (torch.sigmoid(x @ w_gate) * (x @ w_up)) @ w_down

    def gated_width(d_ff, multiple):
        return math.ceil(2 * d_ff / (3 * multiple)) * multiple


class GateAdded(Mistake, exercise="feed_forward"):
    """The gate is added to what goes up; a gate multiplies."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        hidden = x @ w_up + b_up
        if activation == "relu":
            hidden = F.relu(hidden)
        elif activation == "gelu":
            hidden = F.gelu(hidden)
        else:
            hidden = F.gelu(hidden, approximate="tanh")
        return hidden @ w_down + b_down

    def swiglu(x, w_gate, w_up, w_down):
        return (F.silu(x @ w_gate) + x @ w_up) @ w_down

    def gated_width(d_ff, multiple):
        return math.ceil(2 * d_ff / (3 * multiple)) * multiple


class SiluOnTheProduct(Mistake, exercise="feed_forward"):
    """The activation is on the product of gate and up; it belongs on the gate alone."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        hidden = x @ w_up + b_up
        if activation == "relu":
            hidden = F.relu(hidden)
        elif activation == "gelu":
            hidden = F.gelu(hidden)
        else:
            hidden = F.gelu(hidden, approximate="tanh")
        return hidden @ w_down + b_down

    def swiglu(x, w_gate, w_up, w_down):
        return F.silu((x @ w_gate) * (x @ w_up)) @ w_down

    def gated_width(d_ff, multiple):
        return math.ceil(2 * d_ff / (3 * multiple)) * multiple


class SiluOnBoth(Mistake, exercise="feed_forward"):
    """The activation is on the gate and on what goes up; it belongs on the gate alone."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        hidden = x @ w_up + b_up
        if activation == "relu":
            hidden = F.relu(hidden)
        elif activation == "gelu":
            hidden = F.gelu(hidden)
        else:
            hidden = F.gelu(hidden, approximate="tanh")
        return hidden @ w_down + b_down

    def swiglu(x, w_gate, w_up, w_down):
        return (F.silu(x @ w_gate) * F.silu(x @ w_up)) @ w_down

    def gated_width(d_ff, multiple):
        return math.ceil(2 * d_ff / (3 * multiple)) * multiple


class GeluOnTheGate(Mistake, exercise="feed_forward"):
    """The gate bends with GELU, which makes a GEGLU; SwiGLU has silu(z), z times the sigmoid of
    z."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        hidden = x @ w_up + b_up
        if activation == "relu":
            hidden = F.relu(hidden)
        elif activation == "gelu":
            hidden = F.gelu(hidden)
        else:
            hidden = F.gelu(hidden, approximate="tanh")
        return hidden @ w_down + b_down

    def swiglu(x, w_gate, w_up, w_down):
        return (F.gelu(x @ w_gate) * (x @ w_up)) @ w_down

    def gated_width(d_ff, multiple):
        return math.ceil(2 * d_ff / (3 * multiple)) * multiple


class TwoThirdsForgotten(Mistake, exercise="feed_forward"):
    """The gated network is as wide as the plain one, so its third matrix comes on top: it
    should have two thirds of the width."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        hidden = x @ w_up + b_up
        if activation == "relu":
            hidden = F.relu(hidden)
        elif activation == "gelu":
            hidden = F.gelu(hidden)
        else:
            hidden = F.gelu(hidden, approximate="tanh")
        return hidden @ w_down + b_down

    def swiglu(x, w_gate, w_up, w_down):
        return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down

    def gated_width(d_ff, multiple):
        return math.ceil(d_ff / multiple) * multiple


class RoundedDown(Mistake, exercise="feed_forward"):
    """The width is rounded down, at the end or on the way there, and some weights are missing:
    round up, once."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        hidden = x @ w_up + b_up
        if activation == "relu":
            hidden = F.relu(hidden)
        elif activation == "gelu":
            hidden = F.gelu(hidden)
        else:
            hidden = F.gelu(hidden, approximate="tanh")
        return hidden @ w_down + b_down

    def swiglu(x, w_gate, w_up, w_down):
        return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down

    def gated_width(d_ff, multiple):
        return 2 * d_ff // (3 * multiple) * multiple


class OneMultipleTooMany(Mistake, exercise="feed_forward"):
    """A multiple is always added, even where the width is a multiple already."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        hidden = x @ w_up + b_up
        if activation == "relu":
            hidden = F.relu(hidden)
        elif activation == "gelu":
            hidden = F.gelu(hidden)
        else:
            hidden = F.gelu(hidden, approximate="tanh")
        return hidden @ w_down + b_down

    def swiglu(x, w_gate, w_up, w_down):
        return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down

    def gated_width(d_ff, multiple):
        return (2 * d_ff // (3 * multiple) + 1) * multiple


class NotRounded(Mistake, exercise="feed_forward"):
    """The width is not rounded up to a multiple of `multiple`."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        hidden = x @ w_up + b_up
        if activation == "relu":
            hidden = F.relu(hidden)
        elif activation == "gelu":
            hidden = F.gelu(hidden)
        else:
            hidden = F.gelu(hidden, approximate="tanh")
        return hidden @ w_down + b_down

    def swiglu(x, w_gate, w_up, w_down):
        return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down

    def gated_width(d_ff, multiple):
        return math.ceil(2 * d_ff / 3)


class EightThirdsOfTheWidth(Mistake, exercise="feed_forward"):
    """8/3 is the share of d_model, for a plain width of 4 d_model; of the plain width d_ff it
    is 2/3."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        hidden = x @ w_up + b_up
        if activation == "relu":
            hidden = F.relu(hidden)
        elif activation == "gelu":
            hidden = F.gelu(hidden)
        else:
            hidden = F.gelu(hidden, approximate="tanh")
        return hidden @ w_down + b_down

    def swiglu(x, w_gate, w_up, w_down):
        return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down

    def gated_width(d_ff, multiple):
        return math.ceil(8 * d_ff / (3 * multiple)) * multiple


# 4.4 --------------------------------------------------------------------------------------------


class ResidualFromTheNorm(Mistake, exercise="TransformerBlock"):
    """The stream itself goes through the norm, `x = norm(x); x = x + f(x)`, so its size is lost
    at every sub-layer: in pre-norm only what f reads is normalised."""

    class TransformerBlock(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, norm="pre"):
            super().__init__()
            self.norm = norm
            self.attention_norm = nn.LayerNorm(d_model)
            self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
            self.feed_forward_norm = nn.LayerNorm(d_model)
            self.up = nn.Linear(d_model, d_ff)
            self.down = nn.Linear(d_ff, d_model)

        def attend(self, x, mask):
            if mask is not None:
                mask = ~mask
            return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]

        def feed_forward(self, x):
            return self.down(F.gelu(self.up(x)))

        def forward(self, x, mask=None):
            if self.norm == "pre":
                x = self.attention_norm(x)
                x = x + self.attend(x, mask)
                x = self.feed_forward_norm(x)
                return x + self.feed_forward(x)
            x = self.attention_norm(x + self.attend(x, mask))
            return self.feed_forward_norm(x + self.feed_forward(x))


class StreamNormalisedOnce(Mistake, exercise="TransformerBlock"):
    """Attention's result is added to what attention read, behind the norm; in pre-norm it is added
    to the stream, as in the second sub-layer."""

    class TransformerBlock(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, norm="pre"):
            super().__init__()
            self.norm = norm
            self.attention_norm = nn.LayerNorm(d_model)
            self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
            self.feed_forward_norm = nn.LayerNorm(d_model)
            self.up = nn.Linear(d_model, d_ff)
            self.down = nn.Linear(d_ff, d_model)

        def attend(self, x, mask):
            if mask is not None:
                mask = ~mask
            return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]

        def feed_forward(self, x):
            return self.down(F.gelu(self.up(x)))

        def forward(self, x, mask=None):
            if self.norm == "pre":
                x = self.attention_norm(x)
                x = x + self.attend(x, mask)
                return x + self.feed_forward(self.feed_forward_norm(x))
            x = self.attention_norm(x + self.attend(x, mask))
            return self.feed_forward_norm(x + self.feed_forward(x))


class OneNormForBoth(Mistake, exercise="TransformerBlock"):
    """`attention_norm` is used for both sub-layers, and `feed_forward_norm` never: each
    sub-layer has a norm of its own."""

    class TransformerBlock(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, norm="pre"):
            super().__init__()
            self.norm = norm
            self.attention_norm = nn.LayerNorm(d_model)
            self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
            self.feed_forward_norm = nn.LayerNorm(d_model)
            self.up = nn.Linear(d_model, d_ff)
            self.down = nn.Linear(d_ff, d_model)

        def attend(self, x, mask):
            if mask is not None:
                mask = ~mask
            return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]

        def feed_forward(self, x):
            return self.down(F.gelu(self.up(x)))

        def forward(self, x, mask=None):
            if self.norm == "pre":
                x = x + self.attend(self.attention_norm(x), mask)
                return x + self.feed_forward(self.attention_norm(x))
            x = self.attention_norm(x + self.attend(x, mask))
            return self.attention_norm(x + self.feed_forward(x))


class NormsExchanged(Mistake, exercise="TransformerBlock"):
    """Each sub-layer uses the norm of the other."""

    class TransformerBlock(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, norm="pre"):
            super().__init__()
            self.norm = norm
            self.attention_norm = nn.LayerNorm(d_model)
            self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
            self.feed_forward_norm = nn.LayerNorm(d_model)
            self.up = nn.Linear(d_model, d_ff)
            self.down = nn.Linear(d_ff, d_model)

        def attend(self, x, mask):
            if mask is not None:
                mask = ~mask
            return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]

        def feed_forward(self, x):
            return self.down(F.gelu(self.up(x)))

        def forward(self, x, mask=None):
            if self.norm == "pre":
                x = x + self.attend(self.feed_forward_norm(x), mask)
                return x + self.feed_forward(self.attention_norm(x))
            x = self.feed_forward_norm(x + self.attend(x, mask))
            return self.attention_norm(x + self.feed_forward(x))


class FeedForwardNeverSeesAttention(Mistake, exercise="TransformerBlock"):
    """The feed-forward network is fed with what came into the block; it should read the stream
    that attention has already written to."""

    class TransformerBlock(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, norm="pre"):
            super().__init__()
            self.norm = norm
            self.attention_norm = nn.LayerNorm(d_model)
            self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
            self.feed_forward_norm = nn.LayerNorm(d_model)
            self.up = nn.Linear(d_model, d_ff)
            self.down = nn.Linear(d_ff, d_model)

        def attend(self, x, mask):
            if mask is not None:
                mask = ~mask
            return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]

        def feed_forward(self, x):
            return self.down(F.gelu(self.up(x)))

        def forward(self, x, mask=None):
            if self.norm == "pre":
                attended = self.attend(self.attention_norm(x), mask)
                return x + attended + self.feed_forward(self.feed_forward_norm(x))
            attended = self.attention_norm(x + self.attend(x, mask))
            return self.feed_forward_norm(attended + self.feed_forward(x))


class AttentionLostFromTheStream(Mistake, exercise="TransformerBlock"):
    """What the feed-forward network gives is added to what came into the block, and what attention
    wrote is lost from the stream."""

    class TransformerBlock(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, norm="pre"):
            super().__init__()
            self.norm = norm
            self.attention_norm = nn.LayerNorm(d_model)
            self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
            self.feed_forward_norm = nn.LayerNorm(d_model)
            self.up = nn.Linear(d_model, d_ff)
            self.down = nn.Linear(d_ff, d_model)

        def attend(self, x, mask):
            if mask is not None:
                mask = ~mask
            return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]

        def feed_forward(self, x):
            return self.down(F.gelu(self.up(x)))

        def forward(self, x, mask=None):
            if self.norm == "pre":
                attended = x + self.attend(self.attention_norm(x), mask)
                return x + self.feed_forward(self.feed_forward_norm(attended))
            attended = self.attention_norm(x + self.attend(x, mask))
            return self.feed_forward_norm(x + self.feed_forward(attended))


class NoResidualAroundAttention(Mistake, exercise="TransformerBlock"):
    """What attention finds replaces the stream; it has to be added to it."""

    class TransformerBlock(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, norm="pre"):
            super().__init__()
            self.norm = norm
            self.attention_norm = nn.LayerNorm(d_model)
            self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
            self.feed_forward_norm = nn.LayerNorm(d_model)
            self.up = nn.Linear(d_model, d_ff)
            self.down = nn.Linear(d_ff, d_model)

        def attend(self, x, mask):
            if mask is not None:
                mask = ~mask
            return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]

        def feed_forward(self, x):
            return self.down(F.gelu(self.up(x)))

        def forward(self, x, mask=None):
            if self.norm == "pre":
                x = self.attend(self.attention_norm(x), mask)
                return x + self.feed_forward(self.feed_forward_norm(x))
            x = self.attention_norm(self.attend(x, mask))
            return self.feed_forward_norm(x + self.feed_forward(x))


class NoResidualAroundFeedForward(Mistake, exercise="TransformerBlock"):
    """What the feed-forward network gives replaces the stream; it has to be added to it."""

    class TransformerBlock(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, norm="pre"):
            super().__init__()
            self.norm = norm
            self.attention_norm = nn.LayerNorm(d_model)
            self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
            self.feed_forward_norm = nn.LayerNorm(d_model)
            self.up = nn.Linear(d_model, d_ff)
            self.down = nn.Linear(d_ff, d_model)

        def attend(self, x, mask):
            if mask is not None:
                mask = ~mask
            return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]

        def feed_forward(self, x):
            return self.down(F.gelu(self.up(x)))

        def forward(self, x, mask=None):
            if self.norm == "pre":
                x = x + self.attend(self.attention_norm(x), mask)
                return self.feed_forward(self.feed_forward_norm(x))
            x = self.attention_norm(x + self.attend(x, mask))
            return self.feed_forward_norm(self.feed_forward(x))


class AlwaysPostNorm(Mistake, exercise="TransformerBlock"):
    """Every sum is normalised, even where pre-norm is asked for."""

    class TransformerBlock(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, norm="pre"):
            super().__init__()
            self.norm = norm
            self.attention_norm = nn.LayerNorm(d_model)
            self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
            self.feed_forward_norm = nn.LayerNorm(d_model)
            self.up = nn.Linear(d_model, d_ff)
            self.down = nn.Linear(d_ff, d_model)

        def attend(self, x, mask):
            if mask is not None:
                mask = ~mask
            return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]

        def feed_forward(self, x):
            return self.down(F.gelu(self.up(x)))

        def forward(self, x, mask=None):
            x = self.attention_norm(x + self.attend(x, mask))
            return self.feed_forward_norm(x + self.feed_forward(x))


class AlwaysPreNorm(Mistake, exercise="TransformerBlock"):
    """The stream is never normalised, even where post-norm is asked for."""

    class TransformerBlock(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, norm="pre"):
            super().__init__()
            self.norm = norm
            self.attention_norm = nn.LayerNorm(d_model)
            self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
            self.feed_forward_norm = nn.LayerNorm(d_model)
            self.up = nn.Linear(d_model, d_ff)
            self.down = nn.Linear(d_ff, d_model)

        def attend(self, x, mask):
            if mask is not None:
                mask = ~mask
            return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]

        def feed_forward(self, x):
            return self.down(F.gelu(self.up(x)))

        def forward(self, x, mask=None):
            x = x + self.attend(self.attention_norm(x), mask)
            return x + self.feed_forward(self.feed_forward_norm(x))


class NormOfTheSublayer(Mistake, exercise="TransformerBlock"):
    """The norm acts on what a sub-layer gives, `x + norm(f(x))`; pre-norm normalises what it
    reads, `x + f(norm(x))`."""

    class TransformerBlock(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, norm="pre"):
            super().__init__()
            self.norm = norm
            self.attention_norm = nn.LayerNorm(d_model)
            self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
            self.feed_forward_norm = nn.LayerNorm(d_model)
            self.up = nn.Linear(d_model, d_ff)
            self.down = nn.Linear(d_ff, d_model)

        def attend(self, x, mask):
            if mask is not None:
                mask = ~mask
            return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]

        def feed_forward(self, x):
            return self.down(F.gelu(self.up(x)))

        def forward(self, x, mask=None):
            if self.norm == "pre":
                x = x + self.attention_norm(self.attend(x, mask))
                return x + self.feed_forward_norm(self.feed_forward(x))
            x = self.attention_norm(x + self.attend(x, mask))
            return self.feed_forward_norm(x + self.feed_forward(x))


class OnlyAttentionIsNormalised(Mistake, exercise="TransformerBlock"):
    """The feed-forward network reads the stream without a norm before it."""

    class TransformerBlock(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, norm="pre"):
            super().__init__()
            self.norm = norm
            self.attention_norm = nn.LayerNorm(d_model)
            self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
            self.feed_forward_norm = nn.LayerNorm(d_model)
            self.up = nn.Linear(d_model, d_ff)
            self.down = nn.Linear(d_ff, d_model)

        def attend(self, x, mask):
            if mask is not None:
                mask = ~mask
            return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]

        def feed_forward(self, x):
            return self.down(F.gelu(self.up(x)))

        def forward(self, x, mask=None):
            if self.norm == "pre":
                x = x + self.attend(self.attention_norm(x), mask)
                return x + self.feed_forward(x)
            x = self.attention_norm(x + self.attend(x, mask))
            return self.feed_forward_norm(x + self.feed_forward(x))


class OnlyTheQueryIsNormalised(Mistake, exercise="TransformerBlock"):
    """Only the query of pre-norm attention goes through the norm; its keys and values are read
    through it too."""

    class TransformerBlock(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, norm="pre"):
            super().__init__()
            self.norm = norm
            self.attention_norm = nn.LayerNorm(d_model)
            self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
            self.feed_forward_norm = nn.LayerNorm(d_model)
            self.up = nn.Linear(d_model, d_ff)
            self.down = nn.Linear(d_ff, d_model)

        def attend(self, x, mask, read=None):
            if mask is not None:
                mask = ~mask
            read = x if read is None else read
            return self.attention(x, read, read, attn_mask=mask, need_weights=False)[0]

        def feed_forward(self, x):
            return self.down(F.gelu(self.up(x)))

        def forward(self, x, mask=None):
            if self.norm == "pre":
                attended = self.attend(self.attention_norm(x), mask, x)
                x = x + attended
                return x + self.feed_forward(self.feed_forward_norm(x))
            x = self.attention_norm(x + self.attend(x, mask))
            return self.feed_forward_norm(x + self.feed_forward(x))


class NormBehindTheBlock(Mistake, exercise="TransformerBlock"):
    """A norm stands behind the whole pre-norm block, so its stream does not leave as it should;
    a final norm comes once, after the last block."""

    class TransformerBlock(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, norm="pre"):
            super().__init__()
            self.norm = norm
            self.attention_norm = nn.LayerNorm(d_model)
            self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
            self.feed_forward_norm = nn.LayerNorm(d_model)
            self.up = nn.Linear(d_model, d_ff)
            self.down = nn.Linear(d_ff, d_model)

        def attend(self, x, mask):
            if mask is not None:
                mask = ~mask
            return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]

        def feed_forward(self, x):
            return self.down(F.gelu(self.up(x)))

        def forward(self, x, mask=None):
            if self.norm == "pre":
                x = x + self.attend(self.attention_norm(x), mask)
                x = x + self.feed_forward(self.feed_forward_norm(x))
                return self.feed_forward_norm(x)
            x = self.attention_norm(x + self.attend(x, mask))
            return self.feed_forward_norm(x + self.feed_forward(x))


class MaskInverted(Mistake, exercise="TransformerBlock"):
    """The mask went to torch as it was; torch's says where attention is forbidden, so turn it
    round."""

    class TransformerBlock(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, norm="pre"):
            super().__init__()
            self.norm = norm
            self.attention_norm = nn.LayerNorm(d_model)
            self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
            self.feed_forward_norm = nn.LayerNorm(d_model)
            self.up = nn.Linear(d_model, d_ff)
            self.down = nn.Linear(d_ff, d_model)

        def attend(self, x, mask):
            if mask is not None:
                mask = mask.clone()
            return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]

        def feed_forward(self, x):
            return self.down(F.gelu(self.up(x)))

        def forward(self, x, mask=None):
            if self.norm == "pre":
                x = x + self.attend(self.attention_norm(x), mask)
                return x + self.feed_forward(self.feed_forward_norm(x))
            x = self.attention_norm(x + self.attend(x, mask))
            return self.feed_forward_norm(x + self.feed_forward(x))


class MaskIgnored(Mistake, exercise="TransformerBlock"):
    """The mask never reaches attention."""

    class TransformerBlock(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, norm="pre"):
            super().__init__()
            self.norm = norm
            self.attention_norm = nn.LayerNorm(d_model)
            self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
            self.feed_forward_norm = nn.LayerNorm(d_model)
            self.up = nn.Linear(d_model, d_ff)
            self.down = nn.Linear(d_ff, d_model)

        def attend(self, x, mask):
            return self.attention(x, x, x, need_weights=False)[0]

        def feed_forward(self, x):
            return self.down(F.gelu(self.up(x)))

        def forward(self, x, mask=None):
            if self.norm == "pre":
                x = x + self.attend(self.attention_norm(x), mask)
                return x + self.feed_forward(self.feed_forward_norm(x))
            x = self.attention_norm(x + self.attend(x, mask))
            return self.feed_forward_norm(x + self.feed_forward(x))


class BatchFirstForgotten(Mistake, exercise="TransformerBlock"):
    """torch's attention takes the first axis for the length unless it is built with
    `batch_first=True`, so tokens attend across the sequences of the batch."""

    class TransformerBlock(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, norm="pre"):
            super().__init__()
            self.norm = norm
            self.attention_norm = nn.LayerNorm(d_model)
            self.attention = nn.MultiheadAttention(d_model, num_heads)
            self.feed_forward_norm = nn.LayerNorm(d_model)
            self.up = nn.Linear(d_model, d_ff)
            self.down = nn.Linear(d_ff, d_model)

        def attend(self, x, mask):
            if mask is not None:
                mask = ~mask
            return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]

        def feed_forward(self, x):
            return self.down(F.gelu(self.up(x)))

        def forward(self, x, mask=None):
            if self.norm == "pre":
                x = x + self.attend(self.attention_norm(x), mask)
                return x + self.feed_forward(self.feed_forward_norm(x))
            x = self.attention_norm(x + self.attend(x, mask))
            return self.feed_forward_norm(x + self.feed_forward(x))


class ReluInsteadOfGelu(Mistake, exercise="TransformerBlock"):
    """The feed-forward network bends with ReLU; an exact GELU is asked for."""

    class TransformerBlock(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, norm="pre"):
            super().__init__()
            self.norm = norm
            self.attention_norm = nn.LayerNorm(d_model)
            self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
            self.feed_forward_norm = nn.LayerNorm(d_model)
            self.up = nn.Linear(d_model, d_ff)
            self.down = nn.Linear(d_ff, d_model)

        def attend(self, x, mask):
            if mask is not None:
                mask = ~mask
            return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]

        def feed_forward(self, x):
            return self.down(F.relu(self.up(x)))

        def forward(self, x, mask=None):
            if self.norm == "pre":
                x = x + self.attend(self.attention_norm(x), mask)
                return x + self.feed_forward(self.feed_forward_norm(x))
            x = self.attention_norm(x + self.attend(x, mask))
            return self.feed_forward_norm(x + self.feed_forward(x))


class ApproximateGelu(Mistake, exercise="TransformerBlock"):
    """GELU is approximated by a tanh; the exact one is asked for."""

    class TransformerBlock(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, norm="pre"):
            super().__init__()
            self.norm = norm
            self.attention_norm = nn.LayerNorm(d_model)
            self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
            self.feed_forward_norm = nn.LayerNorm(d_model)
            self.up = nn.Linear(d_model, d_ff)
            self.down = nn.Linear(d_ff, d_model)

        def attend(self, x, mask):
            if mask is not None:
                mask = ~mask
            return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]

        def feed_forward(self, x):
            return self.down(F.gelu(self.up(x), approximate="tanh"))

        def forward(self, x, mask=None):
            if self.norm == "pre":
                x = x + self.attend(self.attention_norm(x), mask)
                return x + self.feed_forward(self.feed_forward_norm(x))
            x = self.attention_norm(x + self.attend(x, mask))
            return self.feed_forward_norm(x + self.feed_forward(x))


class NothingBends(Mistake, exercise="TransformerBlock"):
    """Nothing bends between the two maps of the feed-forward network: a GELU is missing."""

    class TransformerBlock(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, norm="pre"):
            super().__init__()
            self.norm = norm
            self.attention_norm = nn.LayerNorm(d_model)
            self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
            self.feed_forward_norm = nn.LayerNorm(d_model)
            self.up = nn.Linear(d_model, d_ff)
            self.down = nn.Linear(d_ff, d_model)

        def attend(self, x, mask):
            if mask is not None:
                mask = ~mask
            return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]

        def feed_forward(self, x):
            return self.down(self.up(x))

        def forward(self, x, mask=None):
            if self.norm == "pre":
                x = x + self.attend(self.attention_norm(x), mask)
                return x + self.feed_forward(self.feed_forward_norm(x))
            x = self.attention_norm(x + self.attend(x, mask))
            return self.feed_forward_norm(x + self.feed_forward(x))


# 4.5 --------------------------------------------------------------------------------------------


class FinalNormForgotten(Mistake, exercise="stack_with_final_norm"):
    """The stream comes out as it is: a pre-norm stack ends with one more norm."""

    def stack_with_final_norm(x, gains, biases, w_up, w_down):
        sizes = [x.square().mean().sqrt()]
        for i in range(len(w_up)):
            read = F.layer_norm(x, x.shape[-1:], gains[i], biases[i])
            x = x + F.relu(read @ w_up[i]) @ w_down[i]
            sizes.append(x.square().mean().sqrt())
        output = x
        return output, torch.stack(sizes)


class FinalNormTwice(Mistake, exercise="stack_with_final_norm"):
    """The final norm is applied twice."""

    def stack_with_final_norm(x, gains, biases, w_up, w_down):
        sizes = [x.square().mean().sqrt()]
        for i in range(len(w_up)):
            read = F.layer_norm(x, x.shape[-1:], gains[i], biases[i])
            x = x + F.relu(read @ w_up[i]) @ w_down[i]
            sizes.append(x.square().mean().sqrt())
        output = F.layer_norm(x, x.shape[-1:], gains[-1], biases[-1])
        output = F.layer_norm(output, x.shape[-1:], gains[-1], biases[-1])
        return output, torch.stack(sizes)


class NormAfterEachSublayer(Mistake, exercise="stack_with_final_norm"):
    """The final norm follows every sub-layer instead of the last one only, so the stream never
    grows."""

    def stack_with_final_norm(x, gains, biases, w_up, w_down):
        sizes = [x.square().mean().sqrt()]
        for i in range(len(w_up)):
            read = F.layer_norm(x, x.shape[-1:], gains[i], biases[i])
            x = x + F.relu(read @ w_up[i]) @ w_down[i]
            x = F.layer_norm(x, x.shape[-1:], gains[-1], biases[-1])
            sizes.append(x.square().mean().sqrt())
        output = x
        return output, torch.stack(sizes)


class LastNormUsedAgain(Mistake, exercise="stack_with_final_norm"):
    """The norm of the last sub-layer is used as the final norm, which has a gain and a bias of
    its own, in the last row."""

    def stack_with_final_norm(x, gains, biases, w_up, w_down):
        sizes = [x.square().mean().sqrt()]
        for i in range(len(w_up)):
            read = F.layer_norm(x, x.shape[-1:], gains[i], biases[i])
            x = x + F.relu(read @ w_up[i]) @ w_down[i]
            sizes.append(x.square().mean().sqrt())
        output = F.layer_norm(x, x.shape[-1:], gains[-2], biases[-2])
        return output, torch.stack(sizes)


class ResidualFromTheNorm(Mistake, exercise="stack_with_final_norm"):
    """Each sub-layer is added to what it read, which is normalised; it has to be added to the
    stream."""

    def stack_with_final_norm(x, gains, biases, w_up, w_down):
        sizes = [x.square().mean().sqrt()]
        for i in range(len(w_up)):
            read = F.layer_norm(x, x.shape[-1:], gains[i], biases[i])
            x = read + F.relu(read @ w_up[i]) @ w_down[i]
            sizes.append(x.square().mean().sqrt())
        output = F.layer_norm(x, x.shape[-1:], gains[-1], biases[-1])
        return output, torch.stack(sizes)


class ResidualForgotten(Mistake, exercise="stack_with_final_norm"):
    """What a sub-layer gives replaces the stream; it has to be added to it."""

    def stack_with_final_norm(x, gains, biases, w_up, w_down):
        sizes = [x.square().mean().sqrt()]
        for i in range(len(w_up)):
            read = F.layer_norm(x, x.shape[-1:], gains[i], biases[i])
            x = F.relu(read @ w_up[i]) @ w_down[i]
            sizes.append(x.square().mean().sqrt())
        output = F.layer_norm(x, x.shape[-1:], gains[-1], biases[-1])
        return output, torch.stack(sizes)


class SizesOfWhatIsRead(Mistake, exercise="stack_with_final_norm"):
    """The sizes are those of what the sub-layers read, behind their norms; those of the stream
    itself are asked for."""

    def stack_with_final_norm(x, gains, biases, w_up, w_down):
        sizes = []
        for i in range(len(w_up)):
            read = F.layer_norm(x, x.shape[-1:], gains[i], biases[i])
            sizes.append(read.square().mean().sqrt())
            x = x + F.relu(read @ w_up[i]) @ w_down[i]
        output = F.layer_norm(x, x.shape[-1:], gains[-1], biases[-1])
        sizes.append(output.square().mean().sqrt())
        return output, torch.stack(sizes)


class SizesNotOfTheMean(Mistake, exercise="stack_with_final_norm"):
    """The sizes are lengths, roots of a sum; the root of the mean of the squares does not
    depend on how many numbers there are."""

    def stack_with_final_norm(x, gains, biases, w_up, w_down):
        sizes = [x.norm()]
        for i in range(len(w_up)):
            read = F.layer_norm(x, x.shape[-1:], gains[i], biases[i])
            x = x + F.relu(read @ w_up[i]) @ w_down[i]
            sizes.append(x.norm())
        output = F.layer_norm(x, x.shape[-1:], gains[-1], biases[-1])
        return output, torch.stack(sizes)


class SizesAboutTheMean(Mistake, exercise="stack_with_final_norm"):
    """The sizes are standard deviations, measured from the mean; those of the stream are measured
    from 0."""

    def stack_with_final_norm(x, gains, biases, w_up, w_down):
        sizes = [x.std()]
        for i in range(len(w_up)):
            read = F.layer_norm(x, x.shape[-1:], gains[i], biases[i])
            x = x + F.relu(read @ w_up[i]) @ w_down[i]
            sizes.append(x.std())
        output = F.layer_norm(x, x.shape[-1:], gains[-1], biases[-1])
        return output, torch.stack(sizes)


class SizesTokenByToken(Mistake, exercise="stack_with_final_norm"):
    """Each token's root is taken, and then the mean of the roots; the mean of the squares of all
    numbers comes first, then one root."""

    def stack_with_final_norm(x, gains, biases, w_up, w_down):
        sizes = [x.square().mean(dim=-1).sqrt().mean()]
        for i in range(len(w_up)):
            read = F.layer_norm(x, x.shape[-1:], gains[i], biases[i])
            x = x + F.relu(read @ w_up[i]) @ w_down[i]
            sizes.append(x.square().mean(dim=-1).sqrt().mean())
        output = F.layer_norm(x, x.shape[-1:], gains[-1], biases[-1])
        return output, torch.stack(sizes)


class SizesOfWhatIsAdded(Mistake, exercise="stack_with_final_norm"):
    """The sizes are those of what the sub-layers add; those of the stream after each sum are
    asked for."""

    def stack_with_final_norm(x, gains, biases, w_up, w_down):
        sizes = [x.square().mean().sqrt()]
        for i in range(len(w_up)):
            read = F.layer_norm(x, x.shape[-1:], gains[i], biases[i])
            added = F.relu(read @ w_up[i]) @ w_down[i]
            sizes.append(added.square().mean().sqrt())
            x = x + added
        output = F.layer_norm(x, x.shape[-1:], gains[-1], biases[-1])
        return output, torch.stack(sizes)


class SizesOneStepLate(Mistake, exercise="stack_with_final_norm"):
    """The sizes begin after the first sub-layer and end behind the final norm; they begin with the
    stream as it came in and end before that norm."""

    def stack_with_final_norm(x, gains, biases, w_up, w_down):
        sizes = []
        for i in range(len(w_up)):
            read = F.layer_norm(x, x.shape[-1:], gains[i], biases[i])
            x = x + F.relu(read @ w_up[i]) @ w_down[i]
            sizes.append(x.square().mean().sqrt())
        output = F.layer_norm(x, x.shape[-1:], gains[-1], biases[-1])
        sizes.append(output.square().mean().sqrt())
        return output, torch.stack(sizes)


class RootForgotten(Mistake, exercise="stack_with_final_norm"):
    """The sizes are mean squares: the root is missing."""

    def stack_with_final_norm(x, gains, biases, w_up, w_down):
        sizes = [x.square().mean()]
        for i in range(len(w_up)):
            read = F.layer_norm(x, x.shape[-1:], gains[i], biases[i])
            x = x + F.relu(read @ w_up[i]) @ w_down[i]
            sizes.append(x.square().mean())
        output = F.layer_norm(x, x.shape[-1:], gains[-1], biases[-1])
        return output, torch.stack(sizes)


# 4.6 --------------------------------------------------------------------------------------------


class RootOfTheFanInForgotten(Mistake, exercise="init_std"):
    """1/fan_in is the variance that a weight should have; the standard deviation is its
    root."""

    def linear_std(fan_in):
        return 1 / fan_in

    def uniform_bound(fan_in):
        return math.sqrt(6 / fan_in)

    def init_std(fan_in, num_layers):
        return 1 / math.sqrt(2 * num_layers * fan_in)

    def stream_variance(fan_in, num_layers, std):
        return 1 + 2 * num_layers * fan_in * std**2


class FanInForgottenAltogether(Mistake, exercise="init_std"):
    """The weights are as large for many inputs as for few, but a sum of many products is
    larger: divide by the root of fan_in."""

    def linear_std(fan_in):
        return 1.0

    def uniform_bound(fan_in):
        return math.sqrt(6 / fan_in)

    def init_std(fan_in, num_layers):
        return 1 / math.sqrt(2 * num_layers * fan_in)

    def stream_variance(fan_in, num_layers, std):
        return 1 + 2 * num_layers * fan_in * std**2


class ReluCountedInTheLinearMap(Mistake, exercise="init_std"):
    """This makes up for a ReLU that a linear map does not have: the 2 does not belong here."""

    def linear_std(fan_in):
        return math.sqrt(2 / fan_in)

    def uniform_bound(fan_in):
        return math.sqrt(6 / fan_in)

    def init_std(fan_in, num_layers):
        return 1 / math.sqrt(2 * num_layers * fan_in)

    def stream_variance(fan_in, num_layers, std):
        return 1 + 2 * num_layers * fan_in * std**2


class BoundForStandardDeviation(Mistake, exercise="init_std"):
    """This is the standard deviation of the weights; numbers drawn evenly between -a and a have
    the variance a²/3, so the bound is larger."""

    def linear_std(fan_in):
        return 1 / math.sqrt(fan_in)

    def uniform_bound(fan_in):
        return math.sqrt(2 / fan_in)

    def init_std(fan_in, num_layers):
        return 1 / math.sqrt(2 * num_layers * fan_in)

    def stream_variance(fan_in, num_layers, std):
        return 1 + 2 * num_layers * fan_in * std**2


class BoundOfTorchsLinearLayer(Mistake, exercise="init_std"):
    """This is the bound that torch's linear layers start with; the variance of such weights is a
    sixth of what is needed here."""

    def linear_std(fan_in):
        return 1 / math.sqrt(fan_in)

    def uniform_bound(fan_in):
        return 1 / math.sqrt(fan_in)

    def init_std(fan_in, num_layers):
        return 1 / math.sqrt(2 * num_layers * fan_in)

    def stream_variance(fan_in, num_layers, std):
        return 1 + 2 * num_layers * fan_in * std**2


class ReluNotCounted(Mistake, exercise="init_std"):
    """ReLU removes half of the mean square, and nothing here makes up for it."""

    def linear_std(fan_in):
        return 1 / math.sqrt(fan_in)

    def uniform_bound(fan_in):
        return math.sqrt(3 / fan_in)

    def init_std(fan_in, num_layers):
        return 1 / math.sqrt(2 * num_layers * fan_in)

    def stream_variance(fan_in, num_layers, std):
        return 1 + 2 * num_layers * fan_in * std**2


class EvenlyAndWithoutFanIn(Mistake, exercise="init_std"):
    """The bound does not depend on fan_in, so the numbers grow from layer to layer."""

    def linear_std(fan_in):
        return 1 / math.sqrt(fan_in)

    def uniform_bound(fan_in):
        return 1.0

    def init_std(fan_in, num_layers):
        return 1 / math.sqrt(2 * num_layers * fan_in)

    def stream_variance(fan_in, num_layers, std):
        return 1 + 2 * num_layers * fan_in * std**2


class OneSublayerPerBlock(Mistake, exercise="init_std"):
    """Together the writers add 2 here, one unit of variance too many: a block has two sub-layers
    that write, and the stream has the variance 1 before them."""

    def linear_std(fan_in):
        return 1 / math.sqrt(fan_in)

    def uniform_bound(fan_in):
        return math.sqrt(6 / fan_in)

    def init_std(fan_in, num_layers):
        return 1 / math.sqrt(num_layers * fan_in)

    def stream_variance(fan_in, num_layers, std):
        return 1 + 2 * num_layers * fan_in * std**2


class DepthForgotten(Mistake, exercise="init_std"):
    """The stream grows with each sub-layer that adds to it: divide by the root of their number
    too."""

    def linear_std(fan_in):
        return 1 / math.sqrt(fan_in)

    def uniform_bound(fan_in):
        return math.sqrt(6 / fan_in)

    def init_std(fan_in, num_layers):
        return 1 / math.sqrt(fan_in)

    def stream_variance(fan_in, num_layers, std):
        return 1 + 2 * num_layers * fan_in * std**2


class RootOfTheDepthForgotten(Mistake, exercise="init_std"):
    """The variances of what is added share one unit, so the standard deviation is divided by
    the root of their number; here it is divided by the number, and the sub-layers hardly
    speak."""

    def linear_std(fan_in):
        return 1 / math.sqrt(fan_in)

    def uniform_bound(fan_in):
        return math.sqrt(6 / fan_in)

    def init_std(fan_in, num_layers):
        return 1 / math.sqrt(fan_in) / (2 * num_layers)

    def stream_variance(fan_in, num_layers, std):
        return 1 + 2 * num_layers * fan_in * std**2


class FanInForgotten(Mistake, exercise="init_std"):
    """This shares the variance out among the sub-layers but not among the inputs of each:
    divide by the root of fan_in too."""

    def linear_std(fan_in):
        return 1 / math.sqrt(fan_in)

    def uniform_bound(fan_in):
        return math.sqrt(6 / fan_in)

    def init_std(fan_in, num_layers):
        return 1 / math.sqrt(2 * num_layers)

    def stream_variance(fan_in, num_layers, std):
        return 1 + 2 * num_layers * fan_in * std**2


class VariancesMultiplied(Mistake, exercise="init_std"):
    """The variances of independent terms add; here each sub-layer multiplies what is there, as
    if it read the stream without a norm."""

    def linear_std(fan_in):
        return 1 / math.sqrt(fan_in)

    def uniform_bound(fan_in):
        return math.sqrt(6 / fan_in)

    def init_std(fan_in, num_layers):
        return 1 / math.sqrt(2 * num_layers * fan_in)

    def stream_variance(fan_in, num_layers, std):
        return (1 + fan_in * std**2) ** (2 * num_layers)


class SpreadsAdded(Mistake, exercise="init_std"):
    """Of independent terms the variances add, not the standard deviations."""

    def linear_std(fan_in):
        return 1 / math.sqrt(fan_in)

    def uniform_bound(fan_in):
        return math.sqrt(6 / fan_in)

    def init_std(fan_in, num_layers):
        return 1 / math.sqrt(2 * num_layers * fan_in)

    def stream_variance(fan_in, num_layers, std):
        return (1 + 2 * num_layers * math.sqrt(fan_in) * std) ** 2


class StartForgotten(Mistake, exercise="init_std"):
    """The stream starts with variance 1, and the sub-layers add to it."""

    def linear_std(fan_in):
        return 1 / math.sqrt(fan_in)

    def uniform_bound(fan_in):
        return math.sqrt(6 / fan_in)

    def init_std(fan_in, num_layers):
        return 1 / math.sqrt(2 * num_layers * fan_in)

    def stream_variance(fan_in, num_layers, std):
        return 2 * num_layers * fan_in * std**2


class NotSquared(Mistake, exercise="init_std"):
    """The standard deviation of the weights is taken for their variance: square it."""

    def linear_std(fan_in):
        return 1 / math.sqrt(fan_in)

    def uniform_bound(fan_in):
        return math.sqrt(6 / fan_in)

    def init_std(fan_in, num_layers):
        return 1 / math.sqrt(2 * num_layers * fan_in)

    def stream_variance(fan_in, num_layers, std):
        return 1 + 2 * num_layers * fan_in * std


class RootOfTheVariance(Mistake, exercise="init_std"):
    """This is the standard deviation of the stream; its variance is asked for."""

    def linear_std(fan_in):
        return 1 / math.sqrt(fan_in)

    def uniform_bound(fan_in):
        return math.sqrt(6 / fan_in)

    def init_std(fan_in, num_layers):
        return 1 / math.sqrt(2 * num_layers * fan_in)

    def stream_variance(fan_in, num_layers, std):
        return math.sqrt(1 + 2 * num_layers * fan_in * std**2)


class OneWriterCounted(Mistake, exercise="init_std"):
    """A block has two sub-layers that add to the stream, and this counts one."""

    def linear_std(fan_in):
        return 1 / math.sqrt(fan_in)

    def uniform_bound(fan_in):
        return math.sqrt(6 / fan_in)

    def init_std(fan_in, num_layers):
        return 1 / math.sqrt(2 * num_layers * fan_in)

    def stream_variance(fan_in, num_layers, std):
        return 1 + num_layers * fan_in * std**2


# 4.7 --------------------------------------------------------------------------------------------


class NothingMakesUpForIt(Mistake, exercise="dropout_block"):
    """What stays is not made larger, so features are smaller in training than in evaluation:
    divide by the share that stays."""

    def dropout(x, keep, rate, training):
        if training:
            return x * keep
        return x

    def dropout_block(x, keep, rate, gain, bias, w_up, w_down, training):
        read = F.layer_norm(x, gain.shape, gain, bias)
        output = F.relu(read @ w_up) @ w_down
        return x + dropout(output, keep, rate, training)


class DividedByTheRate(Mistake, exercise="dropout_block"):
    """What stays is divided by the rate, as if that were the share that stays; the rate is the
    share that is dropped."""

    def dropout(x, keep, rate, training):
        if training:
            return x * keep / rate
        return x

    def dropout_block(x, keep, rate, gain, bias, w_up, w_down, training):
        read = F.layer_norm(x, gain.shape, gain, bias)
        output = F.relu(read @ w_up) @ w_down
        return x + dropout(output, keep, rate, training)


class DividedByWhatHappenedToStay(Mistake, exercise="dropout_block"):
    """What stays is divided by the share that happened to stay; it is 1 less the rate that has to
    make up for it, for the mean over many draws."""

    def dropout(x, keep, rate, training):
        if training:
            return x * keep / keep.to(x.dtype).mean()
        return x

    def dropout_block(x, keep, rate, gain, bias, w_up, w_down, training):
        read = F.layer_norm(x, gain.shape, gain, bias)
        output = F.relu(read @ w_up) @ w_down
        return x + dropout(output, keep, rate, training)


class MultipliedByTheShare(Mistake, exercise="dropout_block"):
    """What stays is made smaller instead of larger: divide by the share that stays."""

    def dropout(x, keep, rate, training):
        if training:
            return x * keep * (1 - rate)
        return x

    def dropout_block(x, keep, rate, gain, bias, w_up, w_down, training):
        read = F.layer_norm(x, gain.shape, gain, bias)
        output = F.relu(read @ w_up) @ w_down
        return x + dropout(output, keep, rate, training)


class KeptWhatShouldGo(Mistake, exercise="dropout_block"):
    """The features where `keep` is True are dropped; True means that a feature stays."""

    def dropout(x, keep, rate, training):
        if training:
            return x * ~keep / (1 - rate)
        return x

    def dropout_block(x, keep, rate, gain, bias, w_up, w_down, training):
        read = F.layer_norm(x, gain.shape, gain, bias)
        output = F.relu(read @ w_up) @ w_down
        return x + dropout(output, keep, rate, training)


class StillDroppedInEvaluation(Mistake, exercise="dropout_block"):
    """Features are dropped in evaluation too; dropout is for training only."""

    def dropout(x, keep, rate, training):
        return x * keep / (1 - rate)

    def dropout_block(x, keep, rate, gain, bias, w_up, w_down, training):
        read = F.layer_norm(x, gain.shape, gain, bias)
        output = F.relu(read @ w_up) @ w_down
        return x + dropout(output, keep, rate, training)


class ScaledInEvaluation(Mistake, exercise="dropout_block"):
    """Everything is made smaller in evaluation, as the first dropout did; with the division in
    training nothing is left to do."""

    def dropout(x, keep, rate, training):
        if training:
            return x * keep / (1 - rate)
        return x * (1 - rate)

    def dropout_block(x, keep, rate, gain, bias, w_up, w_down, training):
        read = F.layer_norm(x, gain.shape, gain, bias)
        output = F.relu(read @ w_up) @ w_down
        return x + dropout(output, keep, rate, training)


class DividedInEvaluationToo(Mistake, exercise="dropout_block"):
    """In evaluation nothing is dropped, and yet everything is divided by the share that stays."""

    def dropout(x, keep, rate, training):
        if training:
            return x * keep / (1 - rate)
        return x / (1 - rate)

    def dropout_block(x, keep, rate, gain, bias, w_up, w_down, training):
        read = F.layer_norm(x, gain.shape, gain, bias)
        output = F.relu(read @ w_up) @ w_down
        return x + dropout(output, keep, rate, training)


class DroppedBehindTheSum(Mistake, exercise="dropout_block"):
    """Dropout acts on the stream, behind the sum, and what it drops is lost to every later
    layer; it acts on what the sub-layer gives, before the sum."""

    def dropout(x, keep, rate, training):
        if training:
            return x * keep / (1 - rate)
        return x

    def dropout_block(x, keep, rate, gain, bias, w_up, w_down, training):
        read = F.layer_norm(x, gain.shape, gain, bias)
        output = F.relu(read @ w_up) @ w_down
        return dropout(x + output, keep, rate, training)


class DroppedBeforeTheSublayer(Mistake, exercise="dropout_block"):
    """Dropout acts on what the sub-layer reads; it acts on what it gives."""

    def dropout(x, keep, rate, training):
        if training:
            return x * keep / (1 - rate)
        return x

    def dropout_block(x, keep, rate, gain, bias, w_up, w_down, training):
        read = F.layer_norm(x, gain.shape, gain, bias)
        read = dropout(read, keep, rate, training)
        output = F.relu(read @ w_up) @ w_down
        return x + output


class NoDropoutInTheBlock(Mistake, exercise="dropout_block"):
    """The block never drops anything."""

    def dropout(x, keep, rate, training):
        if training:
            return x * keep / (1 - rate)
        return x

    def dropout_block(x, keep, rate, gain, bias, w_up, w_down, training):
        read = F.layer_norm(x, gain.shape, gain, bias)
        output = F.relu(read @ w_up) @ w_down
        return x + output


class ResidualForgotten(Mistake, exercise="dropout_block"):
    """What is left of the sub-layer's output replaces the stream; it has to be added to it."""

    def dropout(x, keep, rate, training):
        if training:
            return x * keep / (1 - rate)
        return x

    def dropout_block(x, keep, rate, gain, bias, w_up, w_down, training):
        read = F.layer_norm(x, gain.shape, gain, bias)
        output = F.relu(read @ w_up) @ w_down
        return dropout(output, keep, rate, training)


class ResidualFromTheNorm(Mistake, exercise="dropout_block"):
    """What is left is added to what the network read, behind the norm; it has to be added to the
    stream."""

    def dropout(x, keep, rate, training):
        if training:
            return x * keep / (1 - rate)
        return x

    def dropout_block(x, keep, rate, gain, bias, w_up, w_down, training):
        read = F.layer_norm(x, gain.shape, gain, bias)
        output = F.relu(read @ w_up) @ w_down
        return read + dropout(output, keep, rate, training)


class NormForgotten(Mistake, exercise="dropout_block"):
    """The network reads the stream without a norm."""

    def dropout(x, keep, rate, training):
        if training:
            return x * keep / (1 - rate)
        return x

    def dropout_block(x, keep, rate, gain, bias, w_up, w_down, training):
        output = F.relu(x @ w_up) @ w_down
        return x + dropout(output, keep, rate, training)


# 4.8 --------------------------------------------------------------------------------------------


class RowsScaled(Mistake, exercise="fold_norm"):
    """The gain scales the rows of the weight, which belong to what comes out; the features of
    the norm are its columns."""

    def fold_norm(gain, bias, weight, linear_bias):
        return weight * gain[:, None], linear_bias + F.linear(bias, weight)

    def centre_writer(weight, linear_bias):
        return weight - weight.mean(dim=0, keepdim=True), linear_bias - linear_bias.mean()


class BiasNotFolded(Mistake, exercise="fold_norm"):
    """The bias of the norm is lost; behind the map it is a constant that belongs to the new
    bias."""

    def fold_norm(gain, bias, weight, linear_bias):
        return weight * gain, linear_bias

    def centre_writer(weight, linear_bias):
        return weight - weight.mean(dim=0, keepdim=True), linear_bias - linear_bias.mean()


class LinearBiasLost(Mistake, exercise="fold_norm"):
    """The map's own bias is replaced; what the norm's bias gives is added to it."""

    def fold_norm(gain, bias, weight, linear_bias):
        return weight * gain, F.linear(bias, weight)

    def centre_writer(weight, linear_bias):
        return weight - weight.mean(dim=0, keepdim=True), linear_bias - linear_bias.mean()


class BiasThroughTheNewWeight(Mistake, exercise="fold_norm"):
    """The norm's bias is sent through the new weight, which has the gain in it; the gain never
    multiplied the bias, so send it through the old one."""

    def fold_norm(gain, bias, weight, linear_bias):
        weight = weight * gain
        return weight, linear_bias + F.linear(bias, weight)

    def centre_writer(weight, linear_bias):
        return weight - weight.mean(dim=0, keepdim=True), linear_bias - linear_bias.mean()


class GainDivided(Mistake, exercise="fold_norm"):
    """The weight is divided by the gain; the norm multiplies by it, so the weight has to as
    well."""

    def fold_norm(gain, bias, weight, linear_bias):
        return weight / gain, linear_bias + F.linear(bias, weight)

    def centre_writer(weight, linear_bias):
        return weight - weight.mean(dim=0, keepdim=True), linear_bias - linear_bias.mean()


class GainNotFolded(Mistake, exercise="fold_norm"):
    """The gain of the norm is lost; it belongs into the weight."""

    def fold_norm(gain, bias, weight, linear_bias):
        return weight, linear_bias + F.linear(bias, weight)

    def centre_writer(weight, linear_bias):
        return weight - weight.mean(dim=0, keepdim=True), linear_bias - linear_bias.mean()


class CentredOverInputs(Mistake, exercise="fold_norm"):
    """The mean is taken over the inputs of the map (dim=1); what it writes has mean 0 if the
    mean over its outputs (dim=0) is gone."""

    def fold_norm(gain, bias, weight, linear_bias):
        return weight * gain, linear_bias + F.linear(bias, weight)

    def centre_writer(weight, linear_bias):
        return weight - weight.mean(dim=1, keepdim=True), linear_bias - linear_bias.mean()


class BiasNotCentred(Mistake, exercise="fold_norm"):
    """The weight is centred and the bias is not, and it is written too."""

    def fold_norm(gain, bias, weight, linear_bias):
        return weight * gain, linear_bias + F.linear(bias, weight)

    def centre_writer(weight, linear_bias):
        return weight - weight.mean(dim=0, keepdim=True), linear_bias


class OneMeanForTheMatrix(Mistake, exercise="fold_norm"):
    """One mean is subtracted from the whole weight; each input writes a column, and each column
    needs its own."""

    def fold_norm(gain, bias, weight, linear_bias):
        return weight * gain, linear_bias + F.linear(bias, weight)

    def centre_writer(weight, linear_bias):
        return weight - weight.mean(), linear_bias - linear_bias.mean()


# 4.9 --------------------------------------------------------------------------------------------


class CatchesNothing(Mistake, exercise="check_layer_norm"):
    """No wrong norm is caught: nearly everything has the right shape, and what is printed
    nobody reads, so assert something about the numbers."""

    def check_layer_norm(layer_norm):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(3, 5, 4, generator=generator)
        gain, bias = 1 + torch.rand(2, 4, generator=generator)
        for eps in (1e-5, 0.5):
            seen = layer_norm(x, gain, bias, eps)
            assert seen.shape == x.shape


class GainOneBiasZero(Mistake, exercise="check_layer_norm"):
    """The gain is 1 and the bias 0 in all inputs, so nobody notices where they are left out:
    draw them."""

    def check_layer_norm(layer_norm):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(3, 5, 4, generator=generator)
        gain, bias = torch.ones(4), torch.zeros(4)
        for eps in (1e-5, 0.5):
            seen = layer_norm(x, gain, bias, eps)
            assert torch.allclose(seen, F.layer_norm(x, (4,), gain, bias, eps), atol=1e-4)


class ManyFeaturesOneToken(Mistake, exercise="check_layer_norm"):
    """One token of many features hides a division by d - 1, and says nothing about axes: use
    few features, and more than one token and sequence."""

    def check_layer_norm(layer_norm):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(1, 1, 512, generator=generator)
        gain, bias = 1 + torch.rand(2, 512, generator=generator)
        for eps in (1e-5, 0.5):
            seen = layer_norm(x, gain, bias, eps)
            assert torch.allclose(seen, F.layer_norm(x, (512,), gain, bias, eps), atol=0.01)


class EpsilonTooSmallToSee(Mistake, exercise="check_layer_norm"):
    """Epsilon is far below the variance of every token, so nobody sees whether and where it is
    added: choose a large one, or tokens that are next to constant."""

    def check_layer_norm(layer_norm):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(3, 5, 4, generator=generator)
        gain, bias = 1 + torch.rand(2, 4, generator=generator)
        for eps in (1e-5,):
            seen = layer_norm(x, gain, bias, eps)
            assert torch.allclose(seen, F.layer_norm(x, (4,), gain, bias, eps), atol=1e-4)


class DemandsEqualBits(Mistake, exercise="check_layer_norm"):
    """The test demands that numbers are equal bit by bit, and right implementations round
    differently: allow for a small difference."""

    def check_layer_norm(layer_norm):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(3, 5, 4, generator=generator)
        gain, bias = 1 + torch.rand(2, 4, generator=generator)
        for eps in (1e-5, 0.5):
            seen = layer_norm(x, gain, bias, eps)
            assert torch.equal(seen, F.layer_norm(x, (4,), gain, bias, eps))


class ExpectsOneLess(Mistake, exercise="check_layer_norm"):
    """The test lets a division by d - 1 pass and rejects right norms: LayerNorm divides by d."""

    def check_layer_norm(layer_norm):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(3, 5, 4, generator=generator)
        gain, bias = 1 + torch.rand(2, 4, generator=generator)
        for eps in (1e-5, 0.5):
            seen = layer_norm(x, gain, bias, eps)
            spread = torch.sqrt(x.var(dim=-1, keepdim=True) + eps)
            expected = (x - x.mean(dim=-1, keepdim=True)) / spread * gain + bias
            assert torch.allclose(seen, expected, atol=1e-4)


class NoNormPasses(Mistake, exercise="check_layer_norm"):
    """No norm passes this test, neither a right one nor any of the wrong ones: what it expects is
    not LayerNorm. Compare what it expects with torch's own, or with a token worked out by hand."""

    def check_layer_norm(layer_norm):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(3, 5, 4, generator=generator)
        gain, bias = 1 + torch.rand(2, 4, generator=generator)
        for eps in (1e-5, 0.5):
            seen = layer_norm(x, gain, bias, eps)
            centred = (x - x.mean(dim=-1, keepdim=True)) / (x.std(dim=-1, keepdim=True) + eps)
            assert torch.allclose(seen, centred * gain + bias, atol=1e-4)


# 4.10 -------------------------------------------------------------------------------------------


class StillAsPublished(Mistake, exercise="mended_block"):
    """All four bugs are still there."""

    def mended_block(x, memory, gains, biases, w_up, w_down):
        def norm(tokens, i):
            mean = tokens.mean(dim=1, keepdim=True)
            variance = (tokens - mean).square().mean(dim=1, keepdim=True)
            return (tokens - mean) / torch.sqrt(variance + 1e-5) * gains[i] + biases[i]

        attend = F.scaled_dot_product_attention
        y1 = norm(x, 0)
        y2 = y1 + attend(y1, y1, y1, is_causal=True)
        y3 = norm(y2, 1)
        y4 = y2 + attend(y3, memory, memory)
        y5 = torch.relu(norm(y2, 0) @ w_up) @ w_down
        return y4 + y5


class NormStillOverTokens(Mistake, exercise="mended_block"):
    """The norm still takes its mean and variance over the tokens of the sequence (dim=1), and
    each token learns about later ones: take them over the features (dim=-1)."""

    def mended_block(x, memory, gains, biases, w_up, w_down):
        def norm(tokens, i):
            mean = tokens.mean(dim=1, keepdim=True)
            variance = (tokens - mean).square().mean(dim=1, keepdim=True)
            return (tokens - mean) / torch.sqrt(variance + 1e-5) * gains[i] + biases[i]

        attend = F.scaled_dot_product_attention
        y1 = norm(x, 0)
        y2 = x + attend(y1, y1, y1, is_causal=True)
        y3 = norm(y2, 1)
        y4 = y2 + attend(y3, memory, memory)
        y5 = torch.relu(norm(y4, 2) @ w_up) @ w_down
        return y4 + y5


class ResidualStillFromTheNorm(Mistake, exercise="mended_block"):
    """The stream still goes through the first norm: what attention finds is to be added to `x`,
    not to what attention read."""

    def mended_block(x, memory, gains, biases, w_up, w_down):
        def norm(tokens, i):
            mean = tokens.mean(dim=-1, keepdim=True)
            variance = (tokens - mean).square().mean(dim=-1, keepdim=True)
            return (tokens - mean) / torch.sqrt(variance + 1e-5) * gains[i] + biases[i]

        attend = F.scaled_dot_product_attention
        y1 = norm(x, 0)
        y2 = y1 + attend(y1, y1, y1, is_causal=True)
        y3 = norm(y2, 1)
        y4 = y2 + attend(y3, memory, memory)
        y5 = torch.relu(norm(y4, 2) @ w_up) @ w_down
        return y4 + y5


class SecondResidualFromTheNorm(Mistake, exercise="mended_block"):
    """What cross attention finds is added to what it read, behind norm 1; it is to be added to the
    stream."""

    def mended_block(x, memory, gains, biases, w_up, w_down):
        def norm(tokens, i):
            mean = tokens.mean(dim=-1, keepdim=True)
            variance = (tokens - mean).square().mean(dim=-1, keepdim=True)
            return (tokens - mean) / torch.sqrt(variance + 1e-5) * gains[i] + biases[i]

        attend = F.scaled_dot_product_attention
        y1 = norm(x, 0)
        y2 = x + attend(y1, y1, y1, is_causal=True)
        y3 = norm(y2, 1)
        y4 = y3 + attend(y3, memory, memory)
        y5 = torch.relu(norm(y4, 2) @ w_up) @ w_down
        return y4 + y5


class NormStillUsedTwice(Mistake, exercise="mended_block"):
    """Norm 0 is still used for the feed-forward network, and norm 2 never."""

    def mended_block(x, memory, gains, biases, w_up, w_down):
        def norm(tokens, i):
            mean = tokens.mean(dim=-1, keepdim=True)
            variance = (tokens - mean).square().mean(dim=-1, keepdim=True)
            return (tokens - mean) / torch.sqrt(variance + 1e-5) * gains[i] + biases[i]

        attend = F.scaled_dot_product_attention
        y1 = norm(x, 0)
        y2 = x + attend(y1, y1, y1, is_causal=True)
        y3 = norm(y2, 1)
        y4 = y2 + attend(y3, memory, memory)
        y5 = torch.relu(norm(y4, 0) @ w_up) @ w_down
        return y4 + y5


class NormOneForFeedForward(Mistake, exercise="mended_block"):
    """The feed-forward network reads through norm 1, which belongs to cross attention; the third
    sub-layer has norm 2."""

    def mended_block(x, memory, gains, biases, w_up, w_down):
        def norm(tokens, i):
            mean = tokens.mean(dim=-1, keepdim=True)
            variance = (tokens - mean).square().mean(dim=-1, keepdim=True)
            return (tokens - mean) / torch.sqrt(variance + 1e-5) * gains[i] + biases[i]

        attend = F.scaled_dot_product_attention
        y1 = norm(x, 0)
        y2 = x + attend(y1, y1, y1, is_causal=True)
        y3 = norm(y2, 1)
        y4 = y2 + attend(y3, memory, memory)
        y5 = torch.relu(norm(y4, 1) @ w_up) @ w_down
        return y4 + y5


class FeedForwardStillSkipsTheMemory(Mistake, exercise="mended_block"):
    """The feed-forward network still reads the stream as it was before cross attention: it
    never sees what was found in the memory."""

    def mended_block(x, memory, gains, biases, w_up, w_down):
        def norm(tokens, i):
            mean = tokens.mean(dim=-1, keepdim=True)
            variance = (tokens - mean).square().mean(dim=-1, keepdim=True)
            return (tokens - mean) / torch.sqrt(variance + 1e-5) * gains[i] + biases[i]

        attend = F.scaled_dot_product_attention
        y1 = norm(x, 0)
        y2 = x + attend(y1, y1, y1, is_causal=True)
        y3 = norm(y2, 1)
        y4 = y2 + attend(y3, memory, memory)
        y5 = torch.relu(norm(y2, 2) @ w_up) @ w_down
        return y4 + y5


class FeedForwardLineNotMended(Mistake, exercise="mended_block"):
    """The line of the feed-forward network still has both of its bugs: another sub-layer's
    norm, and a stream that cross attention has not written to yet."""

    def mended_block(x, memory, gains, biases, w_up, w_down):
        def norm(tokens, i):
            mean = tokens.mean(dim=-1, keepdim=True)
            variance = (tokens - mean).square().mean(dim=-1, keepdim=True)
            return (tokens - mean) / torch.sqrt(variance + 1e-5) * gains[i] + biases[i]

        attend = F.scaled_dot_product_attention
        y1 = norm(x, 0)
        y2 = x + attend(y1, y1, y1, is_causal=True)
        y3 = norm(y2, 1)
        y4 = y2 + attend(y3, memory, memory)
        y5 = torch.relu(norm(y2, 0) @ w_up) @ w_down
        return y4 + y5


class ResidualOfTheFeedForwardMovedToo(Mistake, exercise="mended_block"):
    """The last sum starts from the stream before cross attention, so what was found in the
    memory is lost."""

    def mended_block(x, memory, gains, biases, w_up, w_down):
        def norm(tokens, i):
            mean = tokens.mean(dim=-1, keepdim=True)
            variance = (tokens - mean).square().mean(dim=-1, keepdim=True)
            return (tokens - mean) / torch.sqrt(variance + 1e-5) * gains[i] + biases[i]

        attend = F.scaled_dot_product_attention
        y1 = norm(x, 0)
        y2 = x + attend(y1, y1, y1, is_causal=True)
        y3 = norm(y2, 1)
        y4 = y2 + attend(y3, memory, memory)
        y5 = torch.relu(norm(y4, 2) @ w_up) @ w_down
        return y2 + y5


class MemoryNormalised(Mistake, exercise="mended_block"):
    """The memory goes through a norm of this block; it comes normalised, and is used as it
    is."""

    def mended_block(x, memory, gains, biases, w_up, w_down):
        def norm(tokens, i):
            mean = tokens.mean(dim=-1, keepdim=True)
            variance = (tokens - mean).square().mean(dim=-1, keepdim=True)
            return (tokens - mean) / torch.sqrt(variance + 1e-5) * gains[i] + biases[i]

        attend = F.scaled_dot_product_attention
        y1 = norm(x, 0)
        y2 = x + attend(y1, y1, y1, is_causal=True)
        y3 = norm(y2, 1)
        read = norm(memory, 1)
        y4 = y2 + attend(y3, read, read)
        y5 = torch.relu(norm(y4, 2) @ w_up) @ w_down
        return y4 + y5


class CausalMaskLost(Mistake, exercise="mended_block"):
    """Self attention has lost its causal mask."""

    def mended_block(x, memory, gains, biases, w_up, w_down):
        def norm(tokens, i):
            mean = tokens.mean(dim=-1, keepdim=True)
            variance = (tokens - mean).square().mean(dim=-1, keepdim=True)
            return (tokens - mean) / torch.sqrt(variance + 1e-5) * gains[i] + biases[i]

        attend = F.scaled_dot_product_attention
        y1 = norm(x, 0)
        y2 = x + attend(y1, y1, y1)
        y3 = norm(y2, 1)
        y4 = y2 + attend(y3, memory, memory)
        y5 = torch.relu(norm(y4, 2) @ w_up) @ w_down
        return y4 + y5


class MemoryMaskedToo(Mistake, exercise="mended_block"):
    """Cross attention has a causal mask too; every token may read the whole memory."""

    def mended_block(x, memory, gains, biases, w_up, w_down):
        def norm(tokens, i):
            mean = tokens.mean(dim=-1, keepdim=True)
            variance = (tokens - mean).square().mean(dim=-1, keepdim=True)
            return (tokens - mean) / torch.sqrt(variance + 1e-5) * gains[i] + biases[i]

        attend = F.scaled_dot_product_attention
        y1 = norm(x, 0)
        y2 = x + attend(y1, y1, y1, is_causal=True)
        y3 = norm(y2, 1)
        y4 = y2 + attend(y3, memory, memory, is_causal=True)
        y5 = torch.relu(norm(y4, 2) @ w_up) @ w_down
        return y4 + y5


class NormedBehindTheSums(Mistake, exercise="mended_block"):
    """The norms stand behind the sums, which makes a post-norm block; this is a pre-norm block,
    and its stream is left alone."""

    def mended_block(x, memory, gains, biases, w_up, w_down):
        def norm(tokens, i):
            mean = tokens.mean(dim=-1, keepdim=True)
            variance = (tokens - mean).square().mean(dim=-1, keepdim=True)
            return (tokens - mean) / torch.sqrt(variance + 1e-5) * gains[i] + biases[i]

        attend = F.scaled_dot_product_attention
        y1 = norm(x + attend(x, x, x, is_causal=True), 0)
        y2 = norm(y1 + attend(y1, memory, memory), 1)
        return norm(y2 + torch.relu(y2 @ w_up) @ w_down, 2)


# 4.11 -------------------------------------------------------------------------------------------


class ResidualForgotten(Mistake, exercise="swapped_sublayer"):
    """What the network gives replaces the stream; it has to be added to it."""

    def swapped_sublayer(x, weights):
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, correction=0)
        read = (x - mean) / torch.sqrt(variance + 1e-5) * weights["gain"] + weights["bias"]
        hidden = F.gelu(read @ weights["up.weight"].T + weights["up.bias"])
        return hidden @ weights["down.weight"].T + weights["down.bias"]


class ResidualFromTheNorm(Mistake, exercise="swapped_sublayer"):
    """What the network gives is added to what it read, behind the norm; it has to be added to
    the stream."""

    def swapped_sublayer(x, weights):
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, correction=0)
        read = (x - mean) / torch.sqrt(variance + 1e-5) * weights["gain"] + weights["bias"]
        hidden = F.gelu(read @ weights["up.weight"].T + weights["up.bias"])
        return read + hidden @ weights["down.weight"].T + weights["down.bias"]


class DividedByOneLess(Mistake, exercise="swapped_sublayer"):
    """The variance is divided by d_model - 1: with 128 features the loss hardly moves, the
    logits do."""

    def swapped_sublayer(x, weights):
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True)
        read = (x - mean) / torch.sqrt(variance + 1e-5) * weights["gain"] + weights["bias"]
        hidden = F.gelu(read @ weights["up.weight"].T + weights["up.bias"])
        return x + hidden @ weights["down.weight"].T + weights["down.bias"]


class EpsilonForgotten(Mistake, exercise="swapped_sublayer"):
    """Epsilon is missing under the root of the norm, or far too small; the model was trained with
    1e-5. The loss does not show it, the logits do."""

    def swapped_sublayer(x, weights):
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, correction=0)
        read = (x - mean) / torch.sqrt(variance) * weights["gain"] + weights["bias"]
        hidden = F.gelu(read @ weights["up.weight"].T + weights["up.bias"])
        return x + hidden @ weights["down.weight"].T + weights["down.bias"]


class MeanNotSubtracted(Mistake, exercise="swapped_sublayer"):
    """The mean is not subtracted in the norm; the model was trained with LayerNorm."""

    def swapped_sublayer(x, weights):
        variance = x.square().mean(dim=-1, keepdim=True)
        read = x / torch.sqrt(variance + 1e-5) * weights["gain"] + weights["bias"]
        hidden = F.gelu(read @ weights["up.weight"].T + weights["up.bias"])
        return x + hidden @ weights["down.weight"].T + weights["down.bias"]


class GainForgotten(Mistake, exercise="swapped_sublayer"):
    """The gain of the norm is not applied."""

    def swapped_sublayer(x, weights):
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, correction=0)
        read = (x - mean) / torch.sqrt(variance + 1e-5) + weights["bias"]
        hidden = F.gelu(read @ weights["up.weight"].T + weights["up.bias"])
        return x + hidden @ weights["down.weight"].T + weights["down.bias"]


class NormBiasForgotten(Mistake, exercise="swapped_sublayer"):
    """The bias of the norm is not added."""

    def swapped_sublayer(x, weights):
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, correction=0)
        read = (x - mean) / torch.sqrt(variance + 1e-5) * weights["gain"]
        hidden = F.gelu(read @ weights["up.weight"].T + weights["up.bias"])
        return x + hidden @ weights["down.weight"].T + weights["down.bias"]


class NormForgotten(Mistake, exercise="swapped_sublayer"):
    """The network reads the stream without a norm."""

    def swapped_sublayer(x, weights):
        hidden = F.gelu(x @ weights["up.weight"].T + weights["up.bias"])
        return x + hidden @ weights["down.weight"].T + weights["down.bias"]


class NormBehindTheSum(Mistake, exercise="swapped_sublayer"):
    """The norm stands behind the sum, as in post-norm; this model is pre-norm, and its network
    reads through the norm."""

    def swapped_sublayer(x, weights):
        hidden = F.gelu(x @ weights["up.weight"].T + weights["up.bias"])
        x = x + hidden @ weights["down.weight"].T + weights["down.bias"]
        return F.layer_norm(x, x.shape[-1:], weights["gain"], weights["bias"])


class ApproximateGelu(Mistake, exercise="swapped_sublayer"):
    """GELU is approximated by a tanh; the model was trained with the exact one."""

    def swapped_sublayer(x, weights):
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, correction=0)
        read = (x - mean) / torch.sqrt(variance + 1e-5) * weights["gain"] + weights["bias"]
        hidden = F.gelu(read @ weights["up.weight"].T + weights["up.bias"], approximate="tanh")
        return x + hidden @ weights["down.weight"].T + weights["down.bias"]


class ReluInsteadOfGelu(Mistake, exercise="swapped_sublayer"):
    """The network bends with ReLU; the model was trained with GELU."""

    def swapped_sublayer(x, weights):
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, correction=0)
        read = (x - mean) / torch.sqrt(variance + 1e-5) * weights["gain"] + weights["bias"]
        hidden = F.relu(read @ weights["up.weight"].T + weights["up.bias"])
        return x + hidden @ weights["down.weight"].T + weights["down.bias"]


class BiasesForgotten(Mistake, exercise="swapped_sublayer"):
    """The biases of the two maps are not added."""

    def swapped_sublayer(x, weights):
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, correction=0)
        read = (x - mean) / torch.sqrt(variance + 1e-5) * weights["gain"] + weights["bias"]
        hidden = F.gelu(read @ weights["up.weight"].T)
        return x + hidden @ weights["down.weight"].T
