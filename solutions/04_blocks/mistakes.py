"""The named mistakes of chapter 04: what a message can name, and what graders are tested with."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from classroom.exercise.answers import Correct


# 4.1 --------------------------------------------------------------------------------------------
class LayerNorm(Correct, exercise="layer_norm"):
    def layer_norm(x, gain, bias, eps=1e-5):
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, correction=0)
        return (x - mean) / torch.sqrt(variance + eps) * gain + bias


DividedByOneLess = LayerNorm.but("True, correction=0", "True")
"""The variance is divided by d_model - 1, which is what var() and std() do by default; LayerNorm
divides by d_model."""

EpsilonOutsideTheRoot = LayerNorm.but(") / torch.sqrt(variance", ") / (torch.sqrt(variance)")
"""Epsilon is added to the square root; add it to the variance, under the root."""

TorchStandardDeviation = LayerNorm.but(
    "variance = …", "spread = x.std(dim=-1, keepdim=True) + eps"
).but("torch.sqrt(variance + eps)", "spread")
"""std() divides by d_model - 1, and epsilon is added to it instead of to the variance under the
root."""

EpsilonForgotten = LayerNorm.but("variance + eps", "variance")
"""Epsilon is missing or far too small: add it to the variance, under the root, so that a token of
equal features is not divided by zero."""

EpsilonAsAFloor = LayerNorm.but("(variance + eps)", "(variance.clamp(min=eps))")
"""The variance is only kept from falling below epsilon; add epsilon to it, whatever it is."""

EpsilonHardCoded = LayerNorm.but("+ eps", "+ 1e-5")
"""Epsilon is always 1e-5; it is an argument and may have another value."""

StatisticsOverTokens = LayerNorm.but("dim=-1", "dim=-2", times=2)
"""Mean and variance are taken over the tokens of the sequence (dim=-2), so the future leaks into
the past; take them over the features of each token (dim=-1)."""

StatisticsOverTheBatch = LayerNorm.but("dim=-1", "dim=0", times=2)
"""Mean and variance are taken over the batch, so a sequence depends on its neighbours; take them
over the features of each token (dim=-1)."""

StatisticsOfTheWholeSequence = LayerNorm.but(
    "mean(dim=-1, keepdim=True)", "mean(dim=(-2, -1), keepdim=True)"
).but("-1, keepdim=True,", "(-2, -1), keepdim=True,")
"""One mean and one variance are used for a whole sequence; each token needs its own, over its
features only."""

BatchNormInstead = LayerNorm.but(
    "mean = x.mean(dim=-1, keepdim=True)\nvariance = x.var(dim=-1, keepdim=True, correction=0)",
    "axes = tuple(range(x.dim() - 1))\n"
    "mean = x.mean(dim=axes, keepdim=True)\n"
    "variance = x.var(dim=axes, keepdim=True, correction=0)",
)
"""Each feature is normalised over all tokens of the batch, which is batch normalisation; LayerNorm
normalises each token over its features."""

RunningStatistics = LayerNorm.but("x.mean(dim=-1, keepdim=True)", "torch.zeros_like(gain)").but(
    "x.var(dim=-1, keepdim=True, correction=0)", "torch.ones_like(gain)"
)
"""Stored statistics are used, as in batch normalisation after training, and are still 0 and 1;
compute them for each token."""

MeanNotSubtracted = LayerNorm.but("(x - mean)", "x")
"""The mean is subtracted only in the variance, not from the token itself."""

RmsNormInstead = LayerNorm.but("x.mean(dim=-1, keepdim=True)", "0").but(
    "var(dim=-1, keepdim=True, correction=0)", "square().mean(dim=-1, keepdim=True)"
)
"""This divides by the root mean square without subtracting the mean, which is RMSNorm; LayerNorm
subtracts the mean first."""

DividedByTheVariance = LayerNorm.but(") / torch.sqrt(", ") / (")
"""The token is divided by its variance; divide by the root of it."""

GainForgotten = LayerNorm.but("* gain + bias", "+ bias")
"""The gain is not applied."""

BiasForgotten = LayerNorm.but("gain + bias", "gain")
"""The bias is not added."""

GainTimesBias = LayerNorm.but(
    "return …", "return ((x - mean) / torch.sqrt(variance + eps) + bias) * gain"
)
"""The gain multiplies the bias too: add the bias last."""

GainTimesBiasByOneLess = GainTimesBias.but("True, correction=0", "True")
"""These are two mistakes: the gain multiplies the bias too (add it last); and the variance is
divided by d_model - 1, the default of var() and std(), instead of d_model."""

GainBeforeTheNorm = LayerNorm.but(
    "def …", "def layer_norm(x, gain, bias, eps=1e-5):\n    x = x * gain"
).but("* gain + bias", "+ bias")
"""The gain multiplies the token before its mean and variance are taken; do it after the
division."""

SquaresNotCentred = LayerNorm.but(
    "var(dim=-1, keepdim=True, correction=0)", "square().mean(dim=-1, keepdim=True)"
)
"""The squares are those of the original features; for the variance, subtract the mean first, then
square."""

SquaresLessTheSquare = LayerNorm.but(
    "x.var(dim=-1, keepdim=True, correction=0)",
    "x.square().mean(dim=-1, keepdim=True) - mean.square()",
)
"""The mean of the squares minus the square of the mean is used: for tokens far from 0 the two are
nearly equal, and rounding is all that is left. Subtract the mean first, then square."""

SquaresLessTheSquareNotNegative = LayerNorm.but(
    "x.var(dim=-1, keepdim=True, correction=0)",
    "(x.square().mean(dim=-1, keepdim=True) - mean.square()).clamp(min=0)",
)
"""The mean of the squares minus the square of the mean is used, kept from being negative: far from
0 the two are nearly equal, and rounding is all that is left. Subtract the mean, then square."""

RoundedToFloat32 = LayerNorm.but(
    "def layer_norm(x, gain, bias, eps=1e-5):",
    "def layer_norm(x, gain, bias, eps=1e-5):\n    x = x.float().to(gain.dtype)",
)
"""The token is rounded to float32 on the way, which loses digits that matter far from 0: compute in
the precision of x."""

ComputedInFloat32 = LayerNorm.but(
    "return …",
    "x, gain, bias = x.float(), gain.float(), bias.float()\n"
    "return F.layer_norm(x, gain.shape, gain, bias, eps).to(mean.dtype)",
)
"""The norm is computed in float32, which loses digits that matter far from 0: compute in the
precision of x."""

OneMeanForEverything = LayerNorm.but(
    "mean = …\nreturn …",
    "variance = x.var(correction=0)\n"
    "return (x - x.mean()) / torch.sqrt(variance + eps) * gain + bias",
)
"""One mean and one variance are used for the whole batch; each token needs its own, over its
features only."""


# 4.5 --------------------------------------------------------------------------------------------
class RMSNorm(Correct, exercise="rms_norm"):
    def rms_norm(x, gain, eps=1e-5):
        mean_square = x.square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(mean_square + eps) * gain

    def centring_matrix(d_model):
        return torch.eye(d_model, dtype=torch.float64) - 1 / d_model


MatrixInSinglePrecision = RMSNorm.but(
    "torch.eye(d_model, dtype=torch.float64) - 1 / d_model",
    "(torch.eye(d_model) - torch.ones(d_model, d_model) / d_model).double()",
)
"""The matrix is computed in float32 and converted afterwards, when 1 / d_model is already rounded:
make it in float64."""

MeanSubtracted = RMSNorm.but(
    "def rms_norm(x, gain, eps=1e-5):",
    "def rms_norm(x, gain, eps=1e-5):\n    x = x - x.mean(dim=-1, keepdim=True)",
)
"""The mean is subtracted first, which is LayerNorm; RMSNorm does not subtract it."""

VarianceInsteadOfMeanSquare = RMSNorm.but(
    "square().mean(dim=-1, keepdim=True)", "var(dim=-1, keepdim=True, correction=0)"
)
"""This divides by the standard deviation, which is measured from the mean; RMSNorm measures from 0:
it uses the mean of the squares."""

DividedByTheLength = RMSNorm.but(").mean(", ").sum(")
"""This divides by the norm of the token, the root of the sum of its squares; RMSNorm takes the
root of their mean."""

DividedByTheNorm = RMSNorm.but("mean_square = x.square().mean", "length = x.norm").but(
    "x * torch.rsqrt(mean_square + eps)", "x / (length + eps)"
)
"""This divides by norm(), the root of the sum of the squares, and adds epsilon to the root; RMSNorm
adds epsilon to the mean of the squares, then takes the root."""

MeanOfAbsoluteValues = RMSNorm.but("mean_square = x.square", "mean_size = x.abs").but(
    "x * torch.rsqrt(mean_square + eps)", "x / (mean_size + eps)"
)
"""This divides by the mean of the absolute values; RMSNorm squares, takes the mean, and takes the
square root."""

RootForgotten = RMSNorm.but("x * torch.rsqrt(mean_square + eps)", "x / (mean_square + eps)")
"""The token is divided by its mean square; divide by the root of it."""

EpsilonOutsideTheRoot = RMSNorm.but("return x …", "return x / (mean_square.sqrt() + eps) * gain")
"""Epsilon is added to the square root; add it to the mean square, under the root."""

EpsilonForgotten = RMSNorm.but("x * torch.rsqrt(mean_square + eps)", "x / mean_square.sqrt()")
"""Epsilon is missing or far too small: add it to the mean square, under the root, so that a token
of zeros is not divided by zero."""

EpsilonAsAFloor = RMSNorm.but("(mean_square + eps)", "(mean_square.clamp(min=eps))")
"""The mean square is only kept from falling below epsilon; add epsilon to it, whatever it is."""

EpsilonHardCoded = RMSNorm.but("return x …", "return x / torch.sqrt(mean_square + 1e-5) * gain")
"""Epsilon is always 1e-5; it is an argument and may have another value."""

MeanOverTokens = RMSNorm.but("dim=-1", "dim=-2")
"""The mean of the squares is taken over the tokens; take it over the features of each token
(dim=-1)."""

GainForgotten = RMSNorm.but("(mean_square + eps) * gain", "(mean_square + eps)")
"""The gain is not applied."""

MeanKeptInstead = RMSNorm.but(
    "eye(d_model, dtype=torch.float64) - 1 / d_model",
    "full((d_model, d_model), 1 / d_model, dtype=torch.float64)",
)
"""This matrix replaces a token by its mean; to subtract the mean, use the identity minus this
matrix."""

SumSubtracted = RMSNorm.but("1 / d_model", "1")
"""The matrix subtracts the sum of the features; divide the sum by d_model to get the mean."""

MatrixInFloat32 = RMSNorm.but(", dtype=torch.float64", "")
"""The matrix is in float32, torch's default: specify dtype=torch.float64."""

OnlyTheDiagonal = RMSNorm.but("- 1 / d_model", "* (1 - 1 / d_model)")
"""Only the diagonal of the identity is reduced, which shrinks each feature; the mean to subtract
depends on all features."""


# 4.2 --------------------------------------------------------------------------------------------
class FeedForward(Correct, exercise="feed_forward"):
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
        return math.ceil(2 * d_ff / (3 * multiple)) * multiple


OnlyTheProbability = FeedForward.but(
    "hidden = F.gelu(hidden)", "hidden = 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))"
)
"""The GELU lacks the factor z: it is z times the probability that a standard normal variable is
below z."""

TanhByExponentials = FeedForward.but(
    'hidden = F.gelu(hidden, approximate="tanh")',
    "up = (2 * math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)).exp()\n"
    "hidden = 0.5 * hidden * (1 + (up - 1) / (up + 1))",
)
"""The tanh is computed from exponentials, which overflow for large features, and infinity divided by
infinity is NaN: use torch.tanh."""

SigmoidByExponentials = FeedForward.but(
    "F.silu(x @ w_gate)", "(x @ w_gate) * (x @ w_gate).exp() / (1 + (x @ w_gate).exp())"
)
"""The sigmoid of the gate is computed as exp(x) / (1 + exp(x)), where exp(x) overflows for large
features, and infinity divided by infinity is NaN: use torch.sigmoid or F.silu."""

SingleLayer = FeedForward.but("hidden @ w_down + b_down", "hidden")
"""There is one matrix with an activation after it, so the result is d_ff wide and hardly ever
negative; a second matrix projects back to d_model."""

ActivationOnTheOutput = FeedForward.but(
    "return hidden @ w_down + b_down",
    "output = hidden @ w_down + b_down\n"
    'if activation == "relu":\n'
    "    return F.relu(output)\n"
    'return F.gelu(output, approximate="none" if activation == "gelu" else "tanh")',
)
"""The activation is applied after the second matrix as well, so hardly anything negative is added
to the stream; the second matrix and its bias come last."""

ActivationMoved = FeedForward.but(
    'if activation == "relu":…\nreturn …',
    "output = hidden @ w_down + b_down\n"
    'if activation == "relu":\n'
    "    return F.relu(output)\n"
    'return F.gelu(output, approximate="none" if activation == "gelu" else "tanh")',
)
"""The activation comes after the second matrix instead of between the two, so together they are one
linear map."""

ActivationForgotten = FeedForward.but(
    'if activation == "relu":…\n    hidden = F.gelu(hidden, …', ""
)
"""There is no activation between the two matrices, so together they are one linear map."""

AlwaysRelu = FeedForward.but(
    'if activation == "relu":…\n    hidden = F.gelu(hidden, …', "hidden = F.relu(hidden)"
)
"""ReLU is used whatever `activation` says."""

ExactGeluForBoth = FeedForward.but('elif activation == "gelu"', "else").but(
    'else:\n    hidden = F.gelu(hidden, approximate="tanh")', ""
)
"""The exact GELU is used where `activation` specifies the tanh approximation."""

ApproximateGeluForBoth = FeedForward.but("elif …\n    hidden = F.gelu(hidden)", "")
"""The tanh approximation is used where `activation` specifies the exact GELU."""

PlainTanh = FeedForward.but('F.gelu(hidden, approximate="tanh")', "torch.tanh(hidden)")
"""A plain tanh is used where `activation` specifies the tanh approximation of GELU, in which the
tanh only scales z."""

GeluBySigmoid = FeedForward.but("F.gelu(hidden)", "hidden * torch.sigmoid(1.702 * hidden)")
"""This is z times the sigmoid of 1.702 z, a coarser approximation of GELU; the exact one uses the
normal distribution function."""

GeluWithoutTheSquareRoot = FeedForward.but(
    "F.gelu(hidden)", "0.5 * hidden * (1 + torch.erf(hidden))"
)
"""The distribution function uses erf of z; the argument should be z divided by the root of 2."""

RootOfTwoAlone = FeedForward.but(
    'hidden = F.gelu(hidden, approximate="tanh")',
    "bent = math.sqrt(2) / math.pi * (hidden + 0.044715 * hidden**3)\n"
    "hidden = 0.5 * hidden * (1 + torch.tanh(bent))",
)
"""The factor in the tanh is the root of 2, divided by pi; it should be the root of 2/pi."""

CubeOutsideTheFactor = FeedForward.but(
    'hidden = F.gelu(hidden, approximate="tanh")',
    "bent = math.sqrt(2 / math.pi) * hidden + 0.044715 * hidden**3\n"
    "hidden = 0.5 * hidden * (1 + torch.tanh(bent))",
)
"""In the tanh, the square root of 2/pi must multiply the cube as well as z itself."""

BiasesForgotten = FeedForward.but("w_up + b_up", "w_up").but("w_down + b_down", "w_down")
"""The two biases are not added."""

FirstBiasForgotten = FeedForward.but("w_up + b_up", "w_up")
"""The bias of the first layer is not added: add it before the activation."""

GateAndUpExchanged = FeedForward.but(
    "F.silu(x @ w_gate) * (x @ w_up)", "(x @ w_gate) * F.silu(x @ w_up)"
)
"""The activation is applied to the expanded features instead of to the gate."""

SigmoidInsteadOfSilu = FeedForward.but("F.silu", "torch.sigmoid")
"""The gate is a plain sigmoid; silu(z) is z times the sigmoid of z."""

GateAdded = FeedForward.but("* (x @ w_up)", "+ x @ w_up")
"""The gate is added to the expanded features; a gate multiplies."""

SiluOnTheProduct = FeedForward.but(
    "(F.silu(x @ w_gate) * (x @ w_up))", "F.silu((x @ w_gate) * (x @ w_up))"
)
"""The activation is applied to the product of gate and expanded features; apply it to the gate
alone."""

SiluOnBoth = FeedForward.but(") * (x", ") * F.silu(x")
"""The activation is applied to the gate and to the expanded features; apply it to the gate
alone."""

GeluOnTheGate = FeedForward.but("F.silu", "F.gelu")
"""The activation of the gate is GELU, which makes this a GEGLU; SwiGLU uses silu(z), z times the
sigmoid of z."""

TwoThirdsForgotten = FeedForward.but("2 * d_ff / (3 * multiple)", "d_ff / multiple")
"""The gated network is as wide as the plain one, so its third matrix is an extra cost: use
two thirds of the width."""

RoundedDown = FeedForward.but("math.ceil(2 * d_ff / (3 * multiple))", "2 * d_ff // (3 * multiple)")
"""The width is rounded down, at the end or on the way, so it is too small: round up, once."""

OneMultipleTooMany = FeedForward.but(
    "math.ceil(2 * d_ff / (3 * multiple))", "(2 * d_ff // (3 * multiple) + 1)"
)
"""A multiple is always added, even if the width is already a multiple."""

NotRounded = FeedForward.but("(2 * d_ff / (3 * multiple)) * multiple", "(2 * d_ff / 3)")
"""The width is not rounded up to a multiple of `multiple`."""

EightThirdsOfTheWidth = FeedForward.but("2 * d_ff", "8 * d_ff")
"""8/3 is the factor for d_model if the plain width is 4 d_model; the factor for the plain width
d_ff is 2/3."""


# 4.3 --------------------------------------------------------------------------------------------
class Block(Correct, exercise="TransformerBlock"):
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
                return x + self.feed_forward(self.feed_forward_norm(x))
            x = self.attention_norm(x + self.attend(x, mask))
            return self.feed_forward_norm(x + self.feed_forward(x))


WritesNormalised = Block.but(
    "self.attention_norm(x + self.attend(x, mask))", "x + self.attention_norm(self.attend(x, mask))"
).but(
    "self.feed_forward_norm(x + self.feed_forward(x))",
    "x + self.feed_forward_norm(self.feed_forward(x))",
)
"""The post-norm block normalises the output of each sub-layer before it is added: normalise the sum
instead."""

SmallNumberInsteadOfMinusInfinity = Block.but("mask = ~mask", "mask = (~mask).to(x.dtype) * -100.0")
"""A number such as -100 or -1e4 is added to the masked scores. Where the others are even lower,
masked tokens get all the weight: hide them with minus infinity or a boolean mask."""

CausalBesideTheMask = Block.but(
    "attn_mask=mask, need_weights=False",
    "attn_mask=mask, need_weights=False, is_causal=mask is not None",
)
"""`is_causal=True` is passed along with the mask. It tells torch that this mask is the causal one,
so torch ignores the mask and uses its own causal one: leave is_causal out."""

ResidualFromTheNormOutput = Block.but(
    "x = …\nreturn x …",
    "x = self.attention_norm(x)\n"
    "x = x + self.attend(x, mask)\n"
    "x = self.feed_forward_norm(x)\n"
    "return x + self.feed_forward(x)",
)
"""The stream itself goes through the norm, `x = norm(x); x = x + f(x)`, so its scale is lost at
every sub-layer: in pre-norm only the input of f is normalised."""

StreamNormalisedOnce = Block.but(
    "x = x …", "x = self.attention_norm(x)\nx = x + self.attend(x, mask)"
)
"""The output of attention is added to its normalised input; in pre-norm it is added to the stream,
as in the second sub-layer."""

OneNormForBoth = Block.but("feed_forward_norm(", "attention_norm(", times=2)
"""`attention_norm` is used for both sub-layers, and `feed_forward_norm` never: each sub-layer has
its own norm."""

NormsExchanged = (
    Block.but("attention_norm(x)", "feed_forward_norm(x)")
    .but("return x …", "return x + self.feed_forward(self.attention_norm(x))")
    .but("x = self.attention_norm(x …", "x = self.feed_forward_norm(x + self.attend(x, mask))")
    .but(
        "return self.feed_forward_norm(x …", "return self.attention_norm(x + self.feed_forward(x))"
    )
)
"""Each sub-layer uses the norm of the other."""

FeedForwardNeverSeesAttention = (
    Block.but("x = x + self", "attended = self")
    .but("return x + self", "return x + attended + self")
    .but("x = self", "attended = self")
    .but("x + self.feed_forward(x)", "attended + self.feed_forward(x)")
)
"""The feed-forward network reads the input of the block; it should read the stream that attention
has already written to."""

AttentionLostFromTheStream = (
    Block.but("x = x", "attended = x")
    .but("feed_forward_norm(x)", "feed_forward_norm(attended)")
    .but("x = self", "attended = self")
    .but("feed_forward(x)", "feed_forward(attended)")
)
"""The output of the feed-forward network is added to the input of the block, so the output of
attention is lost from the stream."""

NoResidualAroundAttention = Block.but("x + self.attend", "self.attend", times=2)
"""The output of attention replaces the stream; it must be added to it."""

NoResidualAroundFeedForward = Block.but("x + self.feed_forward", "self.feed_forward", times=2)
"""The output of the feed-forward network replaces the stream; it must be added to it."""

AlwaysPostNorm = Block.but('if self.norm == "pre":…\n    return …', "")
"""The stream is normalised after every addition, even if pre-norm is specified."""

AlwaysPreNorm = Block.but(
    'if self.norm == "pre":…\nreturn …',
    "x = x + self.attend(self.attention_norm(x), mask)\n"
    "return x + self.feed_forward(self.feed_forward_norm(x))",
)
"""The stream is never normalised, even if post-norm is specified."""

CausalWithoutAMask = Block.but(
    "if mask is not None:",
    "if mask is None:\n"
    "    mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()\n"
    "if mask is not None:",
)
"""Without a mask, the block is causal: no token sees a later one. No mask means that nothing is
masked."""

NormOnTheSublayerOutput = Block.but(
    "attend(self.attention_norm(x), mask)", "attention_norm(self.attend(x, mask))"
).but("feed_forward(self.feed_forward_norm(x))", "feed_forward_norm(self.feed_forward(x))")
"""The norm acts on the output of a sub-layer, `x + norm(f(x))`; pre-norm normalises its input, `x +
f(norm(x))`."""

NormAfterTheFeedForward = Block.but(
    "feed_forward(self.feed_forward_norm(x))", "feed_forward_norm(self.feed_forward(x))"
)
"""The second norm acts on the output of the feed-forward network, `x + norm(f(x))`; pre-norm
normalises its input, as in the first sub-layer."""

OnlyAttentionIsNormalised = Block.but("self.feed_forward_norm(x)", "x")
"""The feed-forward network reads the stream without a norm before it."""

OnlyTheQueryIsNormalised = (
    Block.but("attend(self, x, mask)", "attend(self, x, mask, read=None)")
    .but(
        "return self.attention(x, …",
        "read = x if read is None else read\n"
        "return self.attention(x, read, read, attn_mask=mask, need_weights=False)[0]",
    )
    .but("x = x …", "attended = self.attend(self.attention_norm(x), mask, x)\nx = x + attended")
)
"""Only the query of pre-norm attention goes through the norm; its keys and values must as well."""

QueryNotNormalised = (
    Block.but("attend(self, x, mask)", "attend(self, x, mask, read=None)")
    .but(
        "return self.attention(x, …",
        "read = x if read is None else read\n"
        "return self.attention(x, read, read, attn_mask=mask, need_weights=False)[0]",
    )
    .but("x = x …", "attended = self.attend(x, mask, self.attention_norm(x))\nx = x + attended")
)
"""Only the keys and values of pre-norm attention go through the norm; its query must as well."""

NormAfterTheBlock = Block.but(
    "return x + self.feed_forward(self.feed_forward_norm(x))",
    "x = x + self.feed_forward(self.feed_forward_norm(x))\nreturn self.feed_forward_norm(x)",
)
"""There is a norm after the whole pre-norm block, which normalises its stream; a final norm comes
only once, after the last block."""

MaskInverted = Block.but("~mask", "mask.clone()")
"""The mask was passed to torch unchanged; torch's is True where attention is forbidden, so invert
it."""

MaskIgnored = Block.but(
    "if mask is not None:…\nreturn …", "return self.attention(x, x, x, need_weights=False)[0]"
)
"""The mask is not passed to attention in pre-norm, in post-norm, or in both."""

BatchFirstForgotten = Block.but("num_heads, batch_first=True", "num_heads")
"""torch's attention takes the first axis for the length unless it is built with `batch_first=True`,
so tokens attend across the sequences of the batch."""

ReluInsteadOfGelu = Block.but("F.gelu", "F.relu")
"""The feed-forward network uses ReLU; the exercise specifies an exact GELU."""

ApproximateGelu = Block.but("up(x)", 'up(x), approximate="tanh"')
"""GELU is approximated by a tanh; the exercise specifies the exact one."""

ActivationForgotten = Block.but("F.gelu(self.up(x))", "self.up(x)")
"""There is no activation between the two layers of the feed-forward network: a GELU is missing."""


# 4.6 --------------------------------------------------------------------------------------------
class Stack(Correct, exercise="stack_with_final_norm"):
    def stack_with_final_norm(x, gains, biases, w_up, w_down):
        sizes = [x.square().mean().sqrt()]
        for i in range(len(w_up)):
            read = F.layer_norm(x, x.shape[-1:], gains[i], biases[i])
            x = x + F.relu(read @ w_up[i]) @ w_down[i]
            sizes.append(x.square().mean().sqrt())
        output = F.layer_norm(x, x.shape[-1:], gains[-1], biases[-1])
        return output, torch.stack(sizes)


FinalNormForgotten = Stack.but("output = …", "output = x")
"""The stream is returned without a norm: a pre-norm stack ends with one more norm."""

FinalNormTwice = Stack.but(
    "output = F.layer_norm(x, x.shape[-1:], gains[-1], biases[-1])",
    "output = F.layer_norm(x, x.shape[-1:], gains[-1], biases[-1])\n"
    "output = F.layer_norm(output, x.shape[-1:], gains[-1], biases[-1])",
)
"""The final norm is applied twice."""

NormAfterEachSublayer = Stack.but(
    "x = x + F.relu(read @ w_up[i]) @ w_down[i]",
    "x = x + F.relu(read @ w_up[i]) @ w_down[i]\n"
    "x = F.layer_norm(x, x.shape[-1:], gains[-1], biases[-1])",
).but("output = F.layer_norm(x, x.shape[-1:], gains[-1], biases[-1])", "output = x")
"""The final norm follows every sub-layer instead of the last one only, so the stream never
grows."""

LastNormReused = Stack.but("[-1]", "[-2]", times=2)
"""The norm of the last sub-layer is used as the final norm, which has its own gain and bias, in the
last row."""

ResidualFromTheNormOutput = Stack.but("x + F", "read + F")
"""The output of each sub-layer is added to its normalised input; it must be added to the stream."""

ResidualForgotten = Stack.but("x + F", "F")
"""The output of a sub-layer replaces the stream; it must be added to it."""

SizesOfTheNormalisedInputs = Stack.but(
    "sizes = …\noutput = …",
    """
    sizes = []
    for i in range(len(w_up)):
        read = F.layer_norm(x, x.shape[-1:], gains[i], biases[i])
        sizes.append(read.square().mean().sqrt())
        x = x + F.relu(read @ w_up[i]) @ w_down[i]
    output = F.layer_norm(x, x.shape[-1:], gains[-1], biases[-1])
    sizes.append(output.square().mean().sqrt())
    """,
)
"""The sizes are those of the normalised inputs of the sub-layers; return those of the stream
itself."""

SizesFromSumsOfSquares = Stack.but("square().mean().sqrt", "norm", times=2)
"""The sizes are norms, roots of a sum of squares; the root mean square does not depend on how many
numbers there are."""

SizesMeasuredFromTheMean = Stack.but("square().mean().sqrt", "std", times=2)
"""The sizes are standard deviations, measured from the mean; those of the stream are measured from
0."""

SizesAveragedOverTokens = Stack.but(
    "[x.square().mean().sqrt()]", "[x.square().mean(dim=-1).sqrt().mean()]"
).but("(x.square().mean().sqrt())", "(x.square().mean(dim=-1).sqrt().mean())")
"""This averages each token's root mean square; take the mean of the squares of all numbers first,
then one root."""

SizesOfTheSublayerOutputs = Stack.but(
    "x = x + F.relu(read @ w_up[i]) @ w_down[i]\nsizes.append(x.square().mean().sqrt())",
    "added = F.relu(read @ w_up[i]) @ w_down[i]\n"
    "sizes.append(added.square().mean().sqrt())\n"
    "x = x + added",
)
"""The sizes are those of the sub-layers' outputs; return those of the stream after each
addition."""

SizesOneStepLate = Stack.but("[x.square().mean().sqrt()]", "[]").but(
    "output = F.layer_norm(x, x.shape[-1:], gains[-1], biases[-1])",
    "output = F.layer_norm(x, x.shape[-1:], gains[-1], biases[-1])\n"
    "sizes.append(output.square().mean().sqrt())",
)
"""The sizes begin after the first sub-layer and end after the final norm; they should begin with
the input and end before that norm."""

RootForgotten = Stack.but("().sqrt()", "()", times=2)
"""The sizes are mean squares: the square root is missing."""

ReluForgotten = Stack.but("F.relu(read @ w_up[i])", "(read @ w_up[i])")
"""There is no ReLU between the two matrices of a sub-layer."""

FirstNormForAll = Stack.but("gains[i], biases[i]", "gains[0], biases[0]")
"""Every sub-layer reads through the norm of the first one; row i of gains and biases belongs to
sub-layer i."""


# 4.7 --------------------------------------------------------------------------------------------
class InitStd(Correct, exercise="init_std"):
    def linear_std(fan_in):
        return 1 / math.sqrt(fan_in)

    def uniform_bound(fan_in):
        return math.sqrt(6 / fan_in)

    def init_std(fan_in, num_layers):
        return 1 / math.sqrt(2 * num_layers * fan_in)

    def stream_variance(fan_in, num_layers, std):
        return 1 + 2 * num_layers * fan_in * std**2


RootOfTheFanInForgotten = InitStd.but("math.sqrt(fan_in)", "fan_in")
"""1/fan_in is the variance that a weight should have; the standard deviation is its square root."""

FanInForgottenAltogether = InitStd.but("1 / math.sqrt(fan_in)", "1.0")
"""The standard deviation does not depend on the number of inputs, but a sum of more products is
larger: divide by the square root of fan_in."""

ReluCountedInALinearLayer = InitStd.but("1 / math.sqrt(fan_in)", "math.sqrt(2 / fan_in)")
"""The 2 compensates for a ReLU, which a linear layer does not have: remove it."""

StandardDeviationUsedAsBound = InitStd.but("6 / fan_in", "2 / fan_in")
"""This is the standard deviation of the weights; numbers drawn uniformly between -a and a have
variance a²/3, so the bound is larger."""

DefaultBoundOfTorch = InitStd.but("math.sqrt(6 / fan_in)", "1 / math.sqrt(fan_in)")
"""This is the default bound of torch's linear layers; the variance of such weights is a sixth of
what is needed here."""

ReluNotCounted = InitStd.but("6 / fan_in", "3 / fan_in")
"""ReLU removes half of the mean square, and nothing compensates for it: multiply the variance by
2."""

BoundWithoutFanIn = InitStd.but("math.sqrt(6 / fan_in)", "1.0")
"""The bound does not depend on fan_in, so the numbers grow from layer to layer."""

OneSublayerPerBlock = InitStd.but("(2 * num_layers * fan_in)", "(num_layers * fan_in)")
"""The sub-layers add a variance of 2 in total instead of 1: a block has two sub-layers that write
to the stream."""

DepthForgotten = InitStd.but("(2 * num_layers * fan_in)", "(fan_in)")
"""The stream grows with each sub-layer that adds to it: divide by the square root of the number of
sub-layers too."""

RootOfTheDepthForgotten = InitStd.but("(2 * num_layers * fan_in)", "(fan_in) / (2 * num_layers)")
"""The variances of all sub-layers must sum to 1, so the standard deviation is divided by the square
root of their number; here it is divided by the number itself, and the sub-layers add too little."""

FanInForgotten = InitStd.but("(2 * num_layers * fan_in)", "(2 * num_layers)")
"""This divides the variance among the sub-layers but not among the inputs of each: divide by the
square root of fan_in too."""

VariancesMultiplied = InitStd.but(
    "1 + 2 * num_layers * fan_in * std**2", "(1 + fan_in * std**2) ** (2 * num_layers)"
)
"""The variances of independent terms add; here each sub-layer multiplies the variance, as if it
read the stream without a norm."""

StandardDeviationsAdded = InitStd.but(
    "1 + 2 * num_layers * fan_in * std**2", "(1 + 2 * num_layers * math.sqrt(fan_in) * std) ** 2"
)
"""The variances of independent terms add, not their standard deviations."""

InitialVarianceForgotten = InitStd.but("return 1 + 2", "return 2")
"""The initial variance of the stream is missing: it is 1, and the sub-layers add to it."""

NotSquared = InitStd.but("std**2", "std")
"""The standard deviation of the weights is taken for their variance: square it."""

StandardDeviationReturned = InitStd.but(
    "1 + 2 * num_layers * fan_in * std**2", "math.sqrt(1 + 2 * num_layers * fan_in * std**2)"
)
"""This is the standard deviation of the stream; return its variance."""

OneSublayerCounted = InitStd.but("+ 2 * num_layers", "+ num_layers")
"""A block has two sub-layers that add to the stream, and this counts one."""


# 4.8 --------------------------------------------------------------------------------------------
class Dropout(Correct, exercise="dropout_block"):
    def dropout(x, keep, rate, training):
        if training:
            return x * keep / (1 - rate)
        return x

    def dropout_block(x, keep, rate, gain, bias, w_up, w_down, training):
        read = F.layer_norm(x, gain.shape, gain, bias)
        output = F.relu(read @ w_up) @ w_down
        return x + dropout(output, keep, rate, training)


NotRescaled = Dropout.but("keep / (1 - rate)", "keep")
"""The kept features are not scaled up, so their mean in training is not that of evaluation:
divide by 1 - rate."""

DroppedInPlace = Dropout.but("return x * keep / (1 - rate)", "x *= keep\nx /= 1 - rate\nreturn x")
"""The features are dropped in place, by `*=`, which changes the caller's tensor; `x * keep` makes a
new one."""

DividedByTheRate = Dropout.but("(1 - rate)", "rate")
"""The kept features are divided by the rate, as if it were the probability of keeping a feature; it
is the probability of dropping one."""

DividedByTheObservedFraction = Dropout.but("(1 - rate)", "keep.to(x.dtype).mean()")
"""The kept features are divided by the fraction that happened to be kept; divide by 1 - rate, which
is correct on average over many draws."""

ScaledDown = Dropout.but("keep / (1 - rate)", "keep * (1 - rate)")
"""The kept features are scaled down instead of up: divide by 1 - rate."""

KeepMaskInverted = Dropout.but("* keep", "* ~keep")
"""The features where `keep` is True are dropped; True means that a feature is kept."""

StillDroppedInEvaluation = Dropout.but("if training:…\nreturn x", "return x * keep / (1 - rate)")
"""Features are dropped in evaluation too; dropout is for training only."""

ScaledInEvaluation = Dropout.but(
    "if training:\n    return x * keep / (1 - rate)\nreturn x",
    "if training:\n    return x * keep / (1 - rate)\nreturn x * (1 - rate)",
)
"""Everything is scaled down in evaluation, as in the original dropout; with the division in
training, evaluation needs no scaling."""

DividedInEvaluationToo = Dropout.but(
    "if training:\n    return x * keep / (1 - rate)\nreturn x",
    "if training:\n    return x * keep / (1 - rate)\nreturn x / (1 - rate)",
)
"""In evaluation nothing is dropped, but everything is divided by 1 - rate: return x unchanged."""

AppliedAfterTheSum = Dropout.but(
    "x + dropout(output, keep, rate, training)", "dropout(x + output, keep, rate, training)"
)
"""Dropout is applied to the stream after the addition, and what it drops is lost for every later
layer; apply it to the output of the sub-layer, before the addition."""

AppliedBeforeTheSublayer = Dropout.but(
    "read = F.layer_norm(x, gain.shape, gain, bias)",
    "read = F.layer_norm(x, gain.shape, gain, bias)\nread = dropout(read, keep, rate, training)",
).but("dropout(output, keep, rate, training)", "output")
"""Dropout is applied to the input of the sub-layer; apply it to its output."""

NoDropoutInTheBlock = Dropout.but("dropout(output, keep, rate, training)", "output")
"""The block never drops anything."""

ResidualForgotten = Dropout.but("x + dropout", "dropout")
"""The sub-layer's output after dropout replaces the stream; it must be added to it."""

ResidualFromTheNormOutput = Dropout.but("x + dropout", "read + dropout")
"""The output after dropout is added to the normalised input of the network; it must be added to the
stream."""

NormForgotten = Dropout.but("read = …\noutput = …", "output = F.relu(x @ w_up) @ w_down")
"""The network reads the stream without a norm."""


# 4.11 -------------------------------------------------------------------------------------------
class Fold(Correct, exercise="fold_norm"):
    def fold_norm(gain, bias, weight, linear_bias):
        return weight * gain, linear_bias + F.linear(bias, weight)

    def centre_writer(weight, linear_bias):
        return weight - weight.mean(dim=0, keepdim=True), linear_bias - linear_bias.mean()


RowsScaled = Fold.but("* gain", "* gain[:, None]")
"""The gain scales the rows of the weight, which belong to the outputs; the features of the norm are
its columns."""

BiasNotFolded = Fold.but("linear_bias + F.linear(bias, weight)", "linear_bias")
"""The bias of the norm is lost; after the linear layer it is a constant that belongs in the new
bias."""

LinearBiasLost = Fold.but("linear_bias + F", "F")
"""The layer's own bias is replaced; the projected bias of the norm must be added to it."""

BiasTimesTheNewWeight = Fold.but(
    "return weight * gain, linear_bias + F.linear(bias, weight)",
    "weight = weight * gain\nreturn weight, linear_bias + F.linear(bias, weight)",
)
"""The norm's bias is multiplied by the new weight, which contains the gain; the gain never
multiplied the bias, so use the old weight."""

DividedByTheGain = Fold.but("weight * gain", "weight / gain")
"""The weight is divided by the gain; the norm multiplies by it, so the weight must be multiplied as
well."""

GainNotFolded = Fold.but("weight * gain", "weight")
"""The gain of the norm is lost; it belongs in the weight."""

CentredOverInputs = Fold.but("dim=0", "dim=1")
"""The mean over the inputs of the layer (dim=1) is subtracted; subtract the mean over its outputs
(dim=0)."""

BiasNotCentred = Fold.but("linear_bias - linear_bias.mean()", "linear_bias")
"""The weight is centred and the bias is not, but the bias is written to the stream too."""

OneMeanForTheMatrix = Fold.but("mean(dim=0, keepdim=True)", "mean()")
"""One mean is subtracted from the whole weight; each column, which belongs to one input, needs its
own."""


# 4.10 -------------------------------------------------------------------------------------------
class CheckNorm(Correct, exercise="check_layer_norm"):
    def check_layer_norm(layer_norm):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(3, 5, 4, generator=generator)
        gain, bias = 1 + torch.rand(2, 4, generator=generator)
        for eps in (1e-5, 0.5):
            seen = layer_norm(x, gain, bias, eps)
            assert torch.allclose(seen, F.layer_norm(x, (4,), gain, bias, eps), atol=1e-4)


NothingCaught = CheckNorm.but("assert …", "assert seen.shape == x.shape")
"""No wrong norm is caught: perhaps only shapes are compared, results are printed and not asserted,
or the tolerance is too large. `assert` that the numbers are close to correct ones."""

GainOneBiasZero = CheckNorm.but("gain, bias = …", "gain, bias = torch.ones(4), torch.zeros(4)")
"""The gain is 1 and the bias 0 in all inputs, so a norm that omits them passes: draw them at
random."""

ManyFeaturesOneToken = (
    CheckNorm.but("3, 5, 4, generator", "1, 1, 256, generator")
    .but("2, 4, generator", "2, 256, generator")
    .but("(x, (4,), gain, bias, eps), atol=1e-4", "(x, (256,), gain, bias, eps), atol=0.01")
)
"""A single token with many features hides a division by d - 1, and does not test the axes: use few
features, and more than one token and sequence."""

EpsilonTooSmallToSee = CheckNorm.but("1e-5, 0.5", "1e-5,")
"""Epsilon is far below the variance of every token, so it does not matter where it is added: choose
a large one, or tokens that are nearly constant."""

EpsilonNotTested = EpsilonTooSmallToSee.but(
    "x, (4,), gain, bias, eps), atol=1e-4", "x, (4,), gain, bias, eps), atol=1e-3"
)
"""Nothing in this test fails if epsilon is missing or in the wrong place: choose a large epsilon, or
tokens that are nearly constant, and let NaN fail, as in `assert error < 1e-3`: `error > 1e-3` is
False for NaN."""

EpsilonGainAndBiasHidden = CheckNorm.but(
    "for …\n    assert …",
    "seen = layer_norm(x, torch.ones(4), torch.zeros(4), 1e-5)\n"
    "assert torch.allclose(seen.mean(dim=-1), torch.zeros(3, 5), atol=1e-4)\n"
    "assert torch.allclose(seen.var(dim=-1, correction=0), torch.ones(3, 5), atol=1e-2)",
)
"""The inputs, or what is compared, cannot show a wrong epsilon, gain or bias: compare each number,
not only mean and variance, with a random gain and bias and a large epsilon."""

GainIsOne = CheckNorm.but(
    "gain, bias = …", "gain, bias = torch.ones(4), torch.randn(4, generator=generator)"
)
"""The gain is 1 in all inputs, so a norm that omits it passes: draw it at random."""

BiasIsZero = CheckNorm.but(
    "gain, bias = …", "gain, bias = 1 + torch.rand(4, generator=generator), torch.zeros(4)"
)
"""The bias is 0 in all inputs, so a norm that omits it passes: draw it at random."""

SequencesOfOneToken = CheckNorm.but("3, 5, 4, generator", "5, 1, 4, generator")
"""Each sequence holds one token, or equal ones, so its statistics are those of the token: draw
sequences of several tokens."""

ToleranceTooLarge = CheckNorm.but("1e-5, 0.5", "0.5,").but("eps), atol=1e-4", "eps), atol=0.5")
"""The tolerance hides a division by d - 1 and a misplaced epsilon: use few features, and a tolerance
of 0.001, which is enough for a norm that computes in float32."""

ExactComparison = CheckNorm.but(
    "assert …", "assert torch.equal(seen, F.layer_norm(x, (4,), gain, bias, eps))"
)
"""The test requires numbers to be equal, or too nearly so, but correct implementations round
differently: allow a small difference."""

ExpectsDivisionByOneLess = CheckNorm.but(
    "assert torch.allclose(seen, F.layer_norm(x, (4,), gain, bias, eps), atol=1e-4)",
    "spread = torch.sqrt(x.var(dim=-1, keepdim=True) + eps)\n"
    "expected = (x - x.mean(dim=-1, keepdim=True)) / spread * gain + bias\n"
    "assert torch.allclose(seen, expected, atol=1e-4)",
)
"""The test accepts a division by d - 1 and rejects correct norms: LayerNorm divides by d."""

NoNormPasses = CheckNorm.but(
    "assert torch.allclose(seen, F.layer_norm(x, (4,), gain, bias, eps), atol=1e-4)",
    "centred = (x - x.mean(dim=-1, keepdim=True)) / (x.std(dim=-1, keepdim=True) + eps)\n"
    "assert torch.allclose(seen, centred * gain + bias, atol=1e-4)",
)
"""No norm passes this test, correct or wrong: what it expects is not LayerNorm. Compare its
expected result with torch's own, or with a token worked out by hand."""


# 4.9 --------------------------------------------------------------------------------------------
class Mended(Correct, exercise="mended_block"):
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
        return y4 + y5


SmallNumberInsteadOfMinusInfinity = Mended.but(
    "y2 = …",
    "later = torch.ones(x.shape[1], x.shape[1], dtype=x.dtype).triu(1)\n"
    "y2 = x + attend(y1, y1, y1, attn_mask=-100.0 * later)",
)
"""A number such as -100 is added to the scores of later tokens. Where scores are hundreds apart,
later tokens still get weight: hide them with minus infinity or a boolean mask."""

StillAsPublished = (
    Mended.but("tokens.mean(dim=-1, keepdim=True)", "tokens.mean(dim=1, keepdim=True)")
    .but(").mean(dim=-1", ").mean(dim=1")
    .but("y2 = x", "y2 = y1")
    .but("y4, 2", "y2, 0")
)
"""All four bugs are still there."""

NormStillOverTokens = Mended.but("dim=-1", "dim=1", times=2)
"""The norm still takes its mean and variance over the tokens of the sequence (dim=1), so each token
depends on later ones: take them over the features (dim=-1)."""

ResidualStillFromTheNormOutput = Mended.but("y2 = x", "y2 = y1")
"""The stream still goes through the first norm: add the output of attention to `x`, not to its
normalised input."""

SecondResidualFromTheNormOutput = Mended.but("y4 = y2", "y4 = y3")
"""The output of cross-attention is added to its normalised input; add it to the stream."""

NormStillUsedTwice = Mended.but("y4, 2", "y4, 0")
"""Norm 0 is still used for the feed-forward network, and norm 2 is never used."""

NormOneForFeedForward = Mended.but("y4, 2", "y4, 1")
"""The input of the feed-forward network goes through norm 1, which belongs to cross-attention; use
norm 2."""

NormZeroForCrossAttention = Mended.but("norm(y2, 1)", "norm(y2, 0)")
"""The queries of cross-attention go through norm 0, which belongs to self-attention; use norm 1."""

CrossAttentionWithoutANorm = Mended.but("attend(y3", "attend(y2")
"""The queries of cross-attention are not normalised: read the stream through norm 1."""

NormOverTheSequence = Mended.but("dim=-1", "dim=(1, 2)", times=2)
"""The norm takes its mean and variance over all features of a sequence, so each token still depends
on later ones: take them over the features of each token (dim=-1)."""

NormDividedByOneLess = Mended.but(
    "(tokens - mean).square().mean(dim=-1, keepdim=True)", "tokens.var(dim=-1, keepdim=True)"
)
"""The variance is divided by d_model - 1, the default of var(); the norm divides by d_model."""

FeedForwardStillSkipsTheMemory = Mended.but("y4, 2", "y2, 2")
"""The feed-forward network still reads the stream as it was before cross-attention: it never sees
the memory."""

FeedForwardLineNotFixed = Mended.but("y4, 2", "y2, 0")
"""The line of the feed-forward network still has both of its bugs: another sub-layer's norm, and a
stream that cross-attention has not written to yet."""

ResidualOfTheFeedForwardMovedToo = Mended.but("y4 + y5", "y2 + y5")
"""The last addition starts from the stream before cross-attention, so the output of cross-attention
is lost."""

MemoryNormalised = Mended.but("y4 = …", "read = norm(memory, 1)\ny4 = y2 + attend(y3, read, read)")
"""The memory goes through a norm of this block; it is already normalised and must be used
unchanged."""

CausalMaskLost = Mended.but("y1, is_causal=True", "y1")
"""Self-attention has lost its causal mask."""

MemoryMaskedToo = Mended.but("memory, memory", "memory, memory, is_causal=True")
"""Cross-attention has a causal mask too; every token may attend to the whole memory."""

NormsAfterTheSums = Mended.but(
    "y1 = norm(x, 0)…\nreturn y4 + y5",
    "y1 = norm(x + attend(x, x, x, is_causal=True), 0)\n"
    "y2 = norm(y1 + attend(y1, memory, memory), 1)\n"
    "return norm(y2 + torch.relu(y2 @ w_up) @ w_down, 2)",
)
"""The norms come after the additions, as in a post-norm block; in a pre-norm block the stream is
not normalised."""


# 4.4 --------------------------------------------------------------------------------------------
class Swapped(Correct, exercise="swapped_sublayer"):
    def swapped_sublayer(x, weights):
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, correction=0)
        read = (x - mean) / torch.sqrt(variance + 1e-5) * weights["gain"] + weights["bias"]
        hidden = F.gelu(read @ weights["up.weight"].T + weights["up.bias"])
        return x + hidden @ weights["down.weight"].T + weights["down.bias"]


WidthOfTheTrainedModel = Swapped.but(
    "mean = …\nvariance = …",
    "mean = x.sum(dim=-1, keepdim=True) / 128\n"
    "variance = (x - mean).square().sum(dim=-1, keepdim=True) / 128",
)
"""The sums are divided by 128, whatever the width of the tokens is: take the width from `x`."""

ResidualForgotten = Swapped.but("x + hidden", "hidden")
"""The output of the network replaces the stream; it must be added to it."""

ResidualFromTheNormOutput = Swapped.but("return x", "return read")
"""The output of the network is added to its normalised input; it must be added to the stream."""

DividedByOneLess = Swapped.but("True, correction=0", "True")
"""The variance is divided by d_model - 1, not by d_model: the loss hardly changes, but the logits
do."""

EpsilonForgotten = Swapped.but("variance + 1e-5", "variance")
"""Epsilon is missing in the norm, or far too small; the model was trained with 1e-5. The loss does
not show it, but the logits do."""

EpsilonOfAnotherModel = Swapped.but("variance + 1e-5", "variance + 1e-3")
"""Epsilon is larger than 1e-5, with which the model was trained: the norm divides by slightly too
much, and its output is slightly too small."""

MeanNotSubtracted = Swapped.but(
    "mean = …\nread = …",
    "variance = x.square().mean(dim=-1, keepdim=True)\n"
    'read = x / torch.sqrt(variance + 1e-5) * weights["gain"] + weights["bias"]',
)
"""The mean is not subtracted in the norm; the model was trained with LayerNorm."""

GainForgotten = Swapped.but('* weights["gain"] + weights', "+ weights")
"""The gain of the norm is not applied."""

NormBiasForgotten = Swapped.but('["gain"] + weights["bias"]', '["gain"]')
"""The bias of the norm is not added."""

NormForgotten = Swapped.but(
    "mean = …\nhidden = …", 'hidden = F.gelu(x @ weights["up.weight"].T + weights["up.bias"])'
)
"""The network reads the stream without a norm."""

NormAfterTheSum = Swapped.but(
    "mean = …\nreturn …",
    'hidden = F.gelu(x @ weights["up.weight"].T + weights["up.bias"])\n'
    'x = x + hidden @ weights["down.weight"].T + weights["down.bias"]\n'
    'return F.layer_norm(x, x.shape[-1:], weights["gain"], weights["bias"])',
)
"""The norm comes after the addition, as in post-norm; this model is pre-norm, and its network reads
through the norm."""

ApproximateGelu = Swapped.but('["up.bias"]', '["up.bias"], approximate="tanh"')
"""GELU is approximated by a tanh; the model was trained with the exact one."""

ReluInsteadOfGelu = Swapped.but("F.gelu", "F.relu")
"""The network uses ReLU; the model was trained with GELU."""

BiasesForgotten = Swapped.but('T + weights["up.bias"]', "T").but('T + weights["down.bias"]', "T")
"""The biases of the two layers are not added."""


# 4.12 -----------------------------------------------------------------------------------------
class Experts(Correct, exercise="mixture_of_experts"):
    def route(x, w_router, top_k):
        scores = x @ w_router
        probabilities = scores.softmax(dim=-1)
        best = probabilities.topk(top_k, dim=-1).indices
        chosen = F.one_hot(best, w_router.shape[1]).sum(dim=-2).bool()
        return probabilities, chosen

    def mixture_of_experts(x, probabilities, chosen, w_up, w_down):
        tokens = x.flatten(0, 1)
        weights, used = probabilities.flatten(0, 1), chosen.flatten(0, 1)
        mixed = torch.zeros_like(tokens)
        for i in range(len(w_up)):
            own = used[:, i].nonzero()[:, 0]
            output = F.relu(tokens[own] @ w_up[i]) @ w_down[i]
            mixed = mixed.index_add(0, own, weights[own, i, None] * output)
        return mixed.view_as(x)

    def balance_loss(probabilities, chosen):
        tokens, used = probabilities.flatten(0, 1), chosen.flatten(0, 1).to(probabilities.dtype)
        fractions = used.mean(dim=0) / used[0].sum()
        average = tokens.mean(dim=0)
        return tokens.shape[1] * (fractions * average).sum()


SoftmaxOverflows = Experts.but(
    "probabilities = …", "probabilities = scores.exp() / scores.exp().sum(dim=-1, keepdim=True)"
)
"""The softmax is computed without subtracting the largest score, so the exponential of a large score
overflows: use torch.softmax."""

RenormalisedOverTheChosenExperts = Experts.but(
    "return probabilities, chosen",
    "probabilities = probabilities * chosen\n"
    "return probabilities / probabilities.sum(dim=-1, keepdim=True), chosen",
).but(
    "mixed = torch.zeros_like(tokens)",
    "weights = weights / (weights * used).sum(dim=1, keepdim=True)\n"
    "mixed = torch.zeros_like(tokens)",
)
"""The probabilities of the chosen experts are rescaled to sum to 1; here those of the softmax over
all experts are used unchanged."""

SoftmaxOverTokens = Experts.but("softmax(dim=-1)", "softmax(dim=-2)")
"""The softmax runs over the tokens of a sequence; it should run over the experts of each token."""

ScoresInsteadOfProbabilities = Experts.but("return probabilities, chosen", "return scores, chosen")
"""The scores are returned as they are: apply a softmax over the experts."""

LeastProbableChosen = Experts.but("dim=-1).indices", "dim=-1, largest=False).indices")
"""The experts with the lowest probabilities are chosen: take the highest."""

TiedExpertsAllChosen = Experts.but(
    "best = …\nchosen = …",
    "worst = probabilities.topk(top_k, dim=-1).values[..., -1:]\nchosen = probabilities >= worst",
)
"""All experts at least as probable as the top_k-th are chosen, more than top_k if some are tied:
use the indices that topk returns."""

OneExpertWhateverTopK = Experts.but("topk(top_k, dim", "topk(1, dim")
"""Each token uses a single expert; it should use top_k of them."""

ExpertsChooseTokens = Experts.but(
    "best = …\nchosen = …",
    "best = probabilities.topk(min(top_k, x.shape[1]), dim=-2).indices\n"
    "chosen = torch.zeros_like(probabilities, dtype=torch.bool).scatter(-2, best, True)",
)
"""Each expert chooses top_k tokens of the sequence; each token should choose top_k experts."""

ChosenIfAboveAverage = Experts.but(
    "best = …\nchosen = …", "chosen = probabilities > 1 / w_router.shape[1]"
)
"""Every expert of more than average probability is chosen; these may be more or fewer than
top_k."""

OutputsNotWeighted = Experts.but("weights[own, i, None] * output", "output")
"""The outputs of the experts are added without their probabilities, so no gradient reaches the
router: multiply each output by its probability."""

AllExpertsUsed = Experts.but("used[:, i].nonzero()[:, 0]", "torch.arange(len(tokens))")
"""Every expert is run on every token and weighted by its probability; only the chosen ones should
count."""

UnusedExpertsTimesZero = Experts.but("used[:, i].nonzero()[:, 0]", "torch.arange(len(tokens))").but(
    "weights[own, i, None] * output", "(weights * used)[:, i, None] * output"
)
"""Every expert is run on every token and multiplied by 0 where it is not chosen: that saves
nothing, and 0 times an infinite output is NaN. Run each expert on its own tokens."""

UnusedExpertsNotLookedAt = Experts.but(
    "own = …\nmixed = …",
    "output = F.relu(tokens @ w_up[i]) @ w_down[i]\n"
    "mixed = mixed + (weights[:, i, None] * output).masked_fill(~used[:, i, None], 0.0)",
)
"""Every expert is run on every token, and its output is dropped where it is not chosen: that saves
nothing, and the gradient is NaN if the expert overflows. Run each expert on its own tokens."""

LastExpertOnly = Experts.but(
    "mixed.index_add(0, own, weights[own, i, None] * output)",
    "mixed.index_copy(0, own, weights[own, i, None] * output)",
)
"""The output of each expert overwrites that of the expert before it: add them up."""

OutputsAveraged = Experts.but(
    "return mixed.view_as(x)", "return (mixed / used.sum(dim=1, keepdim=True)).view_as(x)"
)
"""The outputs are averaged over the experts that a token uses; they should be summed, because the
probabilities are the weights."""

InputWeighted = Experts.but(
    "F.relu(tokens[own] @ w_up[i])", "F.relu(weights[own, i, None] * tokens[own] @ w_up[i])"
)
"""The probability multiplies the input of the expert as well as its output; it should multiply the
output only."""

ExpertsWithoutActivation = Experts.but("F.relu(tokens[own] @ w_up[i])", "(tokens[own] @ w_up[i])")
"""The experts have no ReLU between their two matrices, which could then be one matrix."""

NotTimesTheNumberOfExperts = Experts.but("return tokens.shape[1] * (", "return (")
"""The number of experts is missing as a factor: multiply by it, so that equal use gives 1."""

FractionsOfTokens = Experts.but("used.mean(dim=0) / used[0].sum()", "used.mean(dim=0)")
"""The fractions are counted per token and sum to top_k: divide by the number of choices."""

FractionsSquared = Experts.but("(fractions * average)", "(fractions * fractions)")
"""The fractions of the choices are squared: they have no gradient, so one factor must be the
average probability."""

ProbabilitiesSquared = Experts.but("(fractions * average)", "(average * average)")
"""The average probabilities are squared: multiply them by the fractions of the choices instead."""

ProductBeforeTheAverage = Experts.but(
    "(fractions * average).sum()", "(used * tokens).mean(dim=0).sum() / used[0].sum()"
)
"""Choices and probabilities are multiplied token by token: take the average of each over the batch
first, then multiply."""

ChosenProbabilitiesOnly = Experts.but("tokens.mean(dim=0)", "(tokens * used).mean(dim=0)")
"""Only probabilities of chosen experts enter the average; it should be over all tokens, whatever
they chose."""

SummedOverTokens = Experts.but("tokens.mean(dim=0)", "tokens.sum(dim=0)")
"""The probabilities are summed over the tokens, so the loss grows with the batch: take their
average."""

BalancePerSequence = Experts.but(
    "return tokens.shape[1] * …",
    "used = chosen.to(tokens.dtype)\n"
    "fractions = used.mean(dim=1) / used[0, 0].sum()\n"
    "return tokens.shape[1] * (fractions * probabilities.mean(dim=1)).sum(dim=-1).mean()",
)
"""Each sequence gets a loss of its own, and these are averaged; take f and P over all tokens of the
batch."""

FirstChoicesOnly = Experts.but(
    "fractions = used.mean(dim=0) / used[0].sum()",
    "fractions = F.one_hot(tokens.argmax(dim=1), tokens.shape[1]).to(tokens.dtype).mean(dim=0)",
)
"""Only the first choice of each token is counted; count all top_k of them."""
