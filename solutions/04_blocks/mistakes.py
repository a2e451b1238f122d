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
"""Epsilon is added to the root; it belongs under it, where it is added to the variance."""

StandardDeviationOfTorch = LayerNorm.but(
    "variance = …", "spread = x.std(dim=-1, keepdim=True) + eps"
).but("torch.sqrt(variance + eps)", "spread")
"""std() divides by d_model - 1, and epsilon is added to it instead of to the variance under the
root."""

EpsilonForgotten = LayerNorm.but("variance + eps", "variance")
"""Epsilon plays no part, or far too small a one: it is added to the variance, under the root, and a
token of equal features is not divided by zero."""

EpsilonWrittenIn = LayerNorm.but("+ eps", "+ 1e-5")
"""Epsilon is always 1e-5; it is an argument, and may be another number."""

StatisticsOverTokens = LayerNorm.but("dim=-1", "dim=-2", times=2)
"""Mean and variance are taken over the tokens of the sequence (dim=-2), so the future leaks into
the past; they are those of one token, over its features (dim=-1)."""

StatisticsOverTheBatch = LayerNorm.but("dim=-1", "dim=0", times=2)
"""Mean and variance are taken over the batch, so a sequence depends on its neighbours; they are
those of one token, over its features (dim=-1)."""

StatisticsOfTheWholeSequence = LayerNorm.but(
    "mean(dim=-1, keepdim=True)", "mean(dim=(-2, -1), keepdim=True)"
).but("-1, keepdim=True,", "(-2, -1), keepdim=True,")
"""One mean and one variance serve a whole sequence; each token needs its own, over its features
only."""

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
"""The statistics are stored ones, as batch normalisation uses after training, here still 0 and 1;
each token must be measured anew."""

MeanNotSubtracted = LayerNorm.but("(x - mean)", "x")
"""The mean is not subtracted from the token, only from what the variance is made of."""

RmsNormInstead = LayerNorm.but("x.mean(dim=-1, keepdim=True)", "0").but(
    "var(dim=-1, keepdim=True, correction=0)", "square().mean(dim=-1, keepdim=True)"
)
"""This divides by the root of the mean square and leaves the mean where it is, which is RMSNorm;
LayerNorm subtracts the mean first."""

DividedByTheVariance = LayerNorm.but(") / torch.sqrt(", ") / (")
"""The token is divided by its variance; divide by the root of it."""

GainForgotten = LayerNorm.but("* gain + bias", "+ bias")
"""The gain is not applied."""

BiasForgotten = LayerNorm.but("gain + bias", "gain")
"""The bias is not added."""

GainTimesBias = LayerNorm.but(
    "return …", "return ((x - mean) / torch.sqrt(variance + eps) + bias) * gain"
)
"""The gain multiplies the bias too: the bias is added last."""

GainBeforeTheNorm = LayerNorm.but(
    "def …", "def layer_norm(x, gain, bias, eps=1e-5):\n    x = x * gain"
).but("* gain + bias", "+ bias")
"""The gain multiplies the token before its mean and variance are taken; it comes after the
division."""

SquaresNotCentred = LayerNorm.but(
    "var(dim=-1, keepdim=True, correction=0)", "square().mean(dim=-1, keepdim=True)"
)
"""The squares are those of the features as they came; the variance is the mean of the squares of
what is left when the mean is subtracted."""

OneMeanForEverything = LayerNorm.but(
    "mean = …\nreturn …",
    "variance = x.var(correction=0)\n"
    "return (x - x.mean()) / torch.sqrt(variance + eps) * gain + bias",
)
"""One mean and one variance serve all that is in the batch; each token needs its own, over its
features only."""


# 4.5 --------------------------------------------------------------------------------------------
class RMSNorm(Correct, exercise="rms_norm"):
    def rms_norm(x, gain, eps=1e-5):
        mean_square = x.square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(mean_square + eps) * gain

    def centring_matrix(d_model):
        return torch.eye(d_model, dtype=torch.float64) - 1 / d_model


MeanSubtracted = RMSNorm.but(
    "def rms_norm(x, gain, eps=1e-5):",
    "def rms_norm(x, gain, eps=1e-5):\n    x = x - x.mean(dim=-1, keepdim=True)",
)
"""The mean is subtracted first, which is LayerNorm; RMSNorm leaves it where it is."""

VarianceInsteadOfMeanSquare = RMSNorm.but(
    "square().mean(dim=-1, keepdim=True)", "var(dim=-1, keepdim=True, correction=0)"
)
"""This divides by the standard deviation, which is measured from the mean; RMSNorm measures from 0:
the mean of the squares."""

DividedByTheLength = RMSNorm.but(").mean(", ").sum(")
"""This divides by the length of the vector, the root of the sum of its squares; RMSNorm takes the
root of their mean."""

DividedByTheNorm = RMSNorm.but("mean_square = x.square().mean", "length = x.norm").but(
    "x * torch.rsqrt(mean_square + eps)", "x / (length + eps)"
)
"""This divides by what norm() gives, the root of the sum of the squares, and adds epsilon to it;
RMSNorm takes the root of their mean, with epsilon under it."""

MeanOfAbsolutes = RMSNorm.but("mean_square = x.square", "mean_size = x.abs").but(
    "x * torch.rsqrt(mean_square + eps)", "x / (mean_size + eps)"
)
"""This divides by the mean of the absolute values; RMSNorm squares, takes the mean, and takes the
root."""

RootForgotten = RMSNorm.but("x * torch.rsqrt(mean_square + eps)", "x / (mean_square + eps)")
"""The token is divided by its mean square; divide by the root of it."""

EpsilonOutsideTheRoot = RMSNorm.but("return x …", "return x / (mean_square.sqrt() + eps) * gain")
"""Epsilon is added to the root; it belongs under it, where it is added to the mean square."""

EpsilonForgotten = RMSNorm.but("x * torch.rsqrt(mean_square + eps)", "x / mean_square.sqrt()")
"""Epsilon plays no part, or far too small a one: it is added to the mean square, under the root,
and a token of zeros is not divided by zero."""

EpsilonWrittenIn = RMSNorm.but("return x …", "return x / torch.sqrt(mean_square + 1e-5) * gain")
"""Epsilon is always 1e-5; it is an argument, and may be another number."""

MeanOverTokens = RMSNorm.but("dim=-1", "dim=-2")
"""The mean of the squares is taken over the tokens; it is that of one token, over its features
(dim=-1)."""

GainForgotten = RMSNorm.but("(mean_square + eps) * gain", "(mean_square + eps)")
"""The gain is not applied."""

MeanKeptInstead = RMSNorm.but(
    "eye(d_model, dtype=torch.float64) - 1 / d_model",
    "full((d_model, d_model), 1 / d_model, dtype=torch.float64)",
)
"""This matrix replaces a token by its mean; what is left after subtracting it is the identity less
this."""

SumSubtracted = RMSNorm.but("1 / d_model", "1")
"""The matrix subtracts the sum of the features; divide it by d_model to get the mean."""

MatrixInFloat32 = RMSNorm.but(", dtype=torch.float64", "")
"""The matrix is in float32, which is what `torch.eye` makes unless it is told: ask for
dtype=torch.float64."""

OnlyTheDiagonal = RMSNorm.but("- 1 / d_model", "* (1 - 1 / d_model)")
"""Only the diagonal of the identity is made smaller, which shrinks each feature; the mean has to be
subtracted from each feature and contains all of them."""


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


SingleLayer = FeedForward.but("hidden @ w_down + b_down", "hidden")
"""There is one map with an activation behind it, and it leaves a token d_ff wide with no negative
features; a second map brings it back to d_model."""

ActivationOnTheOutput = FeedForward.but(
    "return hidden @ w_down + b_down",
    "output = hidden @ w_down + b_down\n"
    'if activation == "relu":\n'
    "    return F.relu(output)\n"
    'return F.gelu(output, approximate="none" if activation == "gelu" else "tanh")',
)
"""The activation stands behind the second map as well, so nothing negative can be added to the
stream; the second map is the last step."""

ActivationMoved = FeedForward.but(
    'if activation == "relu":…\nreturn …',
    "output = hidden @ w_down + b_down\n"
    'if activation == "relu":\n'
    "    return F.relu(output)\n"
    'return F.gelu(output, approximate="none" if activation == "gelu" else "tanh")',
)
"""The activation stands behind the second map instead of between the two, so the two maps are
one."""

ActivationForgotten = FeedForward.but(
    'if activation == "relu":…\n    hidden = F.gelu(hidden, …', ""
)
"""Nothing bends between the two maps, so together they are one linear map."""

AlwaysRelu = FeedForward.but(
    'if activation == "relu":…\n    hidden = F.gelu(hidden, …', "hidden = F.relu(hidden)"
)
"""ReLU is used whatever `activation` says."""

ExactGeluForBoth = FeedForward.but('elif activation == "gelu"', "else").but(
    'else:\n    hidden = F.gelu(hidden, approximate="tanh")', ""
)
"""The exact GELU is used where the approximation by a tanh is asked for."""

ApproximateGeluForBoth = FeedForward.but("elif …\n    hidden = F.gelu(hidden)", "")
"""The approximation by a tanh is used where the exact GELU is asked for."""

PlainTanh = FeedForward.but('F.gelu(hidden, approximate="tanh")', "torch.tanh(hidden)")
"""A plain tanh is used where the GELU with a tanh is asked for; there the tanh only says how much
of z passes."""

GeluBySigmoid = FeedForward.but("F.gelu(hidden)", "hidden * torch.sigmoid(1.702 * hidden)")
"""This is z times the sigmoid of 1.702 z, a coarser approximation of GELU; the exact one uses the
normal distribution function."""

GeluWithoutItsRoot = FeedForward.but("F.gelu(hidden)", "0.5 * hidden * (1 + torch.erf(hidden))")
"""The distribution function is erf of z; the argument of erf is z divided by the root of 2."""

CubeOutsideTheFactor = FeedForward.but(
    'hidden = F.gelu(hidden, approximate="tanh")',
    "bent = math.sqrt(2 / math.pi) * hidden + 0.044715 * hidden**3\n"
    "hidden = 0.5 * hidden * (1 + torch.tanh(bent))",
)
"""In the tanh, the root of 2/pi multiplies the cube as well as z itself."""

BiasesForgotten = FeedForward.but("w_up + b_up", "w_up").but("w_down + b_down", "w_down")
"""The two biases are not added."""

FirstBiasForgotten = FeedForward.but("w_up + b_up", "w_up")
"""The bias of the first map is not added: it comes before the bend."""

GateAndUpExchanged = FeedForward.but(
    "F.silu(x @ w_gate) * (x @ w_up)", "(x @ w_gate) * F.silu(x @ w_up)"
)
"""The activation is on what goes up instead of on the gate."""

SigmoidForSilu = FeedForward.but("F.silu", "torch.sigmoid")
"""The gate is a plain sigmoid; silu(z) is z times the sigmoid of z."""

GateAdded = FeedForward.but("* (x @ w_up)", "+ x @ w_up")
"""The gate is added to what goes up; a gate multiplies."""

SiluOnTheProduct = FeedForward.but(
    "(F.silu(x @ w_gate) * (x @ w_up))", "F.silu((x @ w_gate) * (x @ w_up))"
)
"""The activation is on the product of gate and up; it belongs on the gate alone."""

SiluOnBoth = FeedForward.but(") * (x", ") * F.silu(x")
"""The activation is on the gate and on what goes up; it belongs on the gate alone."""

GeluOnTheGate = FeedForward.but("F.silu", "F.gelu")
"""The gate bends with GELU, which makes a GEGLU; SwiGLU has silu(z), z times the sigmoid of z."""

TwoThirdsForgotten = FeedForward.but("2 * d_ff / (3 * multiple)", "d_ff / multiple")
"""The gated network is as wide as the plain one, so its third matrix comes on top: it should have
two thirds of the width."""

RoundedDown = FeedForward.but("math.ceil(2 * d_ff / (3 * multiple))", "2 * d_ff // (3 * multiple)")
"""The width is rounded down, at the end or on the way there, and some weights are missing: round
up, once."""

OneMultipleTooMany = FeedForward.but(
    "math.ceil(2 * d_ff / (3 * multiple))", "(2 * d_ff // (3 * multiple) + 1)"
)
"""A multiple is always added, even where the width is a multiple already."""

NotRounded = FeedForward.but("(2 * d_ff / (3 * multiple)) * multiple", "(2 * d_ff / 3)")
"""The width is not rounded up to a multiple of `multiple`."""

EightThirdsOfTheWidth = FeedForward.but("2 * d_ff", "8 * d_ff")
"""8/3 is the share of d_model, for a plain width of 4 d_model; of the plain width d_ff it is
2/3."""


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


ResidualFromTheNorm = Block.but(
    "x = …\nreturn x …",
    "x = self.attention_norm(x)\n"
    "x = x + self.attend(x, mask)\n"
    "x = self.feed_forward_norm(x)\n"
    "return x + self.feed_forward(x)",
)
"""The stream itself goes through the norm, `x = norm(x); x = x + f(x)`, so its size is lost at
every sub-layer: in pre-norm only what f reads is normalised."""

StreamNormalisedOnce = Block.but(
    "x = x …", "x = self.attention_norm(x)\nx = x + self.attend(x, mask)"
)
"""Attention's result is added to what attention read, behind the norm; in pre-norm it is added to
the stream, as in the second sub-layer."""

OneNormForBoth = Block.but("feed_forward_norm(", "attention_norm(", times=2)
"""`attention_norm` is used for both sub-layers, and `feed_forward_norm` never: each sub-layer has a
norm of its own."""

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
"""The feed-forward network is fed with what came into the block; it should read the stream that
attention has already written to."""

AttentionLostFromTheStream = (
    Block.but("x = x", "attended = x")
    .but("feed_forward_norm(x)", "feed_forward_norm(attended)")
    .but("x = self", "attended = self")
    .but("feed_forward(x)", "feed_forward(attended)")
)
"""What the feed-forward network gives is added to what came into the block, and what attention
wrote is lost from the stream."""

NoResidualAroundAttention = Block.but("x + self.attend", "self.attend", times=2)
"""What attention finds replaces the stream; it has to be added to it."""

NoResidualAroundFeedForward = Block.but("x + self.feed_forward", "self.feed_forward", times=2)
"""What the feed-forward network gives replaces the stream; it has to be added to it."""

AlwaysPostNorm = Block.but('if self.norm == "pre":…\n    return …', "")
"""Every sum is normalised, even where pre-norm is asked for."""

AlwaysPreNorm = Block.but(
    'if self.norm == "pre":…\nreturn …',
    "x = x + self.attend(self.attention_norm(x), mask)\n"
    "return x + self.feed_forward(self.feed_forward_norm(x))",
)
"""The stream is never normalised, even where post-norm is asked for."""

NormOfTheSublayer = Block.but(
    "attend(self.attention_norm(x), mask)", "attention_norm(self.attend(x, mask))"
).but("feed_forward(self.feed_forward_norm(x))", "feed_forward_norm(self.feed_forward(x))")
"""The norm acts on what a sub-layer gives, `x + norm(f(x))`; pre-norm normalises what it reads, `x
+ f(norm(x))`."""

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
"""Only the query of pre-norm attention goes through the norm; its keys and values are read through
it too."""

NormBehindTheBlock = Block.but(
    "return x + self.feed_forward(self.feed_forward_norm(x))",
    "x = x + self.feed_forward(self.feed_forward_norm(x))\nreturn self.feed_forward_norm(x)",
)
"""A norm stands behind the whole pre-norm block, so its stream does not leave as it should; a final
norm comes once, after the last block."""

MaskInverted = Block.but("~mask", "mask.clone()")
"""The mask went to torch as it was; torch's says where attention is forbidden, so turn it round."""

MaskIgnored = Block.but(
    "if mask is not None:…\nreturn …", "return self.attention(x, x, x, need_weights=False)[0]"
)
"""The mask never reaches attention."""

BatchFirstForgotten = Block.but("num_heads, batch_first=True", "num_heads")
"""torch's attention takes the first axis for the length unless it is built with `batch_first=True`,
so tokens attend across the sequences of the batch."""

ReluInsteadOfGelu = Block.but("F.gelu", "F.relu")
"""The feed-forward network bends with ReLU; an exact GELU is asked for."""

ApproximateGelu = Block.but("up(x)", 'up(x), approximate="tanh"')
"""GELU is approximated by a tanh; the exact one is asked for."""

NothingBends = Block.but("F.gelu(self.up(x))", "self.up(x)")
"""Nothing bends between the two maps of the feed-forward network: a GELU is missing."""


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
"""The stream comes out as it is: a pre-norm stack ends with one more norm."""

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

LastNormUsedAgain = Stack.but("[-1]", "[-2]", times=2)
"""The norm of the last sub-layer is used as the final norm, which has a gain and a bias of its own,
in the last row."""

ResidualFromTheNorm = Stack.but("x + F", "read + F")
"""Each sub-layer is added to what it read, which is normalised; it has to be added to the
stream."""

ResidualForgotten = Stack.but("x + F", "F")
"""What a sub-layer gives replaces the stream; it has to be added to it."""

SizesOfWhatIsRead = Stack.but(
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
"""The sizes are those of what the sub-layers read, behind their norms; those of the stream itself
are asked for."""

SizesNotOfTheMean = Stack.but("square().mean().sqrt", "norm", times=2)
"""The sizes are lengths, roots of a sum; the root of the mean of the squares does not depend on how
many numbers there are."""

SizesAboutTheMean = Stack.but("square().mean().sqrt", "std", times=2)
"""The sizes are standard deviations, measured from the mean; those of the stream are measured from
0."""

SizesTokenByToken = Stack.but(
    "[x.square().mean().sqrt()]", "[x.square().mean(dim=-1).sqrt().mean()]"
).but("(x.square().mean().sqrt())", "(x.square().mean(dim=-1).sqrt().mean())")
"""Each token's root is taken, and then the mean of the roots; the mean of the squares of all
numbers comes first, then one root."""

SizesOfWhatIsAdded = Stack.but(
    "x = x + F.relu(read @ w_up[i]) @ w_down[i]\nsizes.append(x.square().mean().sqrt())",
    "added = F.relu(read @ w_up[i]) @ w_down[i]\n"
    "sizes.append(added.square().mean().sqrt())\n"
    "x = x + added",
)
"""The sizes are those of what the sub-layers add; those of the stream after each sum are asked
for."""

SizesOneStepLate = Stack.but("[x.square().mean().sqrt()]", "[]").but(
    "output = F.layer_norm(x, x.shape[-1:], gains[-1], biases[-1])",
    "output = F.layer_norm(x, x.shape[-1:], gains[-1], biases[-1])\n"
    "sizes.append(output.square().mean().sqrt())",
)
"""The sizes begin after the first sub-layer and end behind the final norm; they begin with the
stream as it came in and end before that norm."""

RootForgotten = Stack.but("().sqrt()", "()", times=2)
"""The sizes are mean squares: the root is missing."""


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
"""1/fan_in is the variance that a weight should have; the standard deviation is its root."""

FanInForgottenAltogether = InitStd.but("1 / math.sqrt(fan_in)", "1.0")
"""The weights are as large for many inputs as for few, but a sum of many products is larger: divide
by the root of fan_in."""

ReluCountedInTheLinearMap = InitStd.but("1 / math.sqrt(fan_in)", "math.sqrt(2 / fan_in)")
"""This makes up for a ReLU that a linear map does not have: the 2 does not belong here."""

BoundForStandardDeviation = InitStd.but("6 / fan_in", "2 / fan_in")
"""This is the standard deviation of the weights; numbers drawn evenly between -a and a have the
variance a²/3, so the bound is larger."""

BoundOfTorchsLinearLayer = InitStd.but("math.sqrt(6 / fan_in)", "1 / math.sqrt(fan_in)")
"""This is the bound that torch's linear layers start with; the variance of such weights is a sixth
of what is needed here."""

ReluNotCounted = InitStd.but("6 / fan_in", "3 / fan_in")
"""ReLU removes half of the mean square, and nothing here makes up for it."""

EvenlyAndWithoutFanIn = InitStd.but("math.sqrt(6 / fan_in)", "1.0")
"""The bound does not depend on fan_in, so the numbers grow from layer to layer."""

OneSublayerPerBlock = InitStd.but("(2 * num_layers * fan_in)", "(num_layers * fan_in)")
"""Together the writers add 2 here, one unit of variance too many: a block has two sub-layers that
write, and the stream has the variance 1 before them."""

DepthForgotten = InitStd.but("(2 * num_layers * fan_in)", "(fan_in)")
"""The stream grows with each sub-layer that adds to it: divide by the root of their number too."""

RootOfTheDepthForgotten = InitStd.but("(2 * num_layers * fan_in)", "(fan_in) / (2 * num_layers)")
"""The variances of what is added share one unit, so the standard deviation is divided by the root
of their number; here it is divided by the number, and the sub-layers hardly speak."""

FanInForgotten = InitStd.but("(2 * num_layers * fan_in)", "(2 * num_layers)")
"""This shares the variance out among the sub-layers but not among the inputs of each: divide by the
root of fan_in too."""

VariancesMultiplied = InitStd.but(
    "1 + 2 * num_layers * fan_in * std**2", "(1 + fan_in * std**2) ** (2 * num_layers)"
)
"""The variances of independent terms add; here each sub-layer multiplies what is there, as if it
read the stream without a norm."""

SpreadsAdded = InitStd.but(
    "1 + 2 * num_layers * fan_in * std**2", "(1 + 2 * num_layers * math.sqrt(fan_in) * std) ** 2"
)
"""Of independent terms the variances add, not the standard deviations."""

StartForgotten = InitStd.but("return 1 + 2", "return 2")
"""The stream starts with variance 1, and the sub-layers add to it."""

NotSquared = InitStd.but("std**2", "std")
"""The standard deviation of the weights is taken for their variance: square it."""

RootOfTheVariance = InitStd.but(
    "1 + 2 * num_layers * fan_in * std**2", "math.sqrt(1 + 2 * num_layers * fan_in * std**2)"
)
"""This is the standard deviation of the stream; its variance is asked for."""

OneWriterCounted = InitStd.but("+ 2 * num_layers", "+ num_layers")
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


NothingMakesUpForIt = Dropout.but("keep / (1 - rate)", "keep")
"""What stays is not made larger, so features are smaller in training than in evaluation: divide by
the share that stays."""

DroppedInPlace = Dropout.but("return x * keep / (1 - rate)", "x *= keep\nx /= 1 - rate\nreturn x")
"""The features are dropped in the tensor that was passed, by `*=`, and the caller's is changed; `x *
keep` makes a new one."""

DividedByTheRate = Dropout.but("(1 - rate)", "rate")
"""What stays is divided by the rate, as if that were the share that stays; the rate is the share
that is dropped."""

DividedByWhatHappenedToStay = Dropout.but("(1 - rate)", "keep.to(x.dtype).mean()")
"""What stays is divided by the share that happened to stay; it is 1 less the rate that has to make
up for it, for the mean over many draws."""

MultipliedByTheShare = Dropout.but("keep / (1 - rate)", "keep * (1 - rate)")
"""What stays is made smaller instead of larger: divide by the share that stays."""

KeptWhatShouldGo = Dropout.but("* keep", "* ~keep")
"""The features where `keep` is True are dropped; True means that a feature stays."""

StillDroppedInEvaluation = Dropout.but("if training:…\nreturn x", "return x * keep / (1 - rate)")
"""Features are dropped in evaluation too; dropout is for training only."""

ScaledInEvaluation = Dropout.but(
    "if training:\n    return x * keep / (1 - rate)\nreturn x",
    "if training:\n    return x * keep / (1 - rate)\nreturn x * (1 - rate)",
)
"""Everything is made smaller in evaluation, as the first dropout did; with the division in training
nothing is left to do."""

DividedInEvaluationToo = Dropout.but(
    "if training:\n    return x * keep / (1 - rate)\nreturn x",
    "if training:\n    return x * keep / (1 - rate)\nreturn x / (1 - rate)",
)
"""In evaluation nothing is dropped, and yet everything is divided by the share that stays."""

DroppedBehindTheSum = Dropout.but(
    "x + dropout(output, keep, rate, training)", "dropout(x + output, keep, rate, training)"
)
"""Dropout acts on the stream, behind the sum, and what it drops is lost to every later layer; it
acts on what the sub-layer gives, before the sum."""

DroppedBeforeTheSublayer = Dropout.but(
    "read = F.layer_norm(x, gain.shape, gain, bias)",
    "read = F.layer_norm(x, gain.shape, gain, bias)\nread = dropout(read, keep, rate, training)",
).but("dropout(output, keep, rate, training)", "output")
"""Dropout acts on what the sub-layer reads; it acts on what it gives."""

NoDropoutInTheBlock = Dropout.but("dropout(output, keep, rate, training)", "output")
"""The block never drops anything."""

ResidualForgotten = Dropout.but("x + dropout", "dropout")
"""What is left of the sub-layer's output replaces the stream; it has to be added to it."""

ResidualFromTheNorm = Dropout.but("x + dropout", "read + dropout")
"""What is left is added to what the network read, behind the norm; it has to be added to the
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
"""The gain scales the rows of the weight, which belong to what comes out; the features of the norm
are its columns."""

BiasNotFolded = Fold.but("linear_bias + F.linear(bias, weight)", "linear_bias")
"""The bias of the norm is lost; behind the map it is a constant that belongs to the new bias."""

LinearBiasLost = Fold.but("linear_bias + F", "F")
"""The map's own bias is replaced; what the norm's bias gives is added to it."""

BiasThroughTheNewWeight = Fold.but(
    "return weight * gain, linear_bias + F.linear(bias, weight)",
    "weight = weight * gain\nreturn weight, linear_bias + F.linear(bias, weight)",
)
"""The norm's bias is sent through the new weight, which has the gain in it; the gain never
multiplied the bias, so send it through the old one."""

GainDivided = Fold.but("weight * gain", "weight / gain")
"""The weight is divided by the gain; the norm multiplies by it, so the weight has to as well."""

GainNotFolded = Fold.but("weight * gain", "weight")
"""The gain of the norm is lost; it belongs into the weight."""

CentredOverInputs = Fold.but("dim=0", "dim=1")
"""The mean is taken over the inputs of the map (dim=1); what it writes has mean 0 if the mean over
its outputs (dim=0) is gone."""

BiasNotCentred = Fold.but("linear_bias - linear_bias.mean()", "linear_bias")
"""The weight is centred and the bias is not, and it is written too."""

OneMeanForTheMatrix = Fold.but("mean(dim=0, keepdim=True)", "mean()")
"""One mean is subtracted from the whole weight; each input writes a column, and each column needs
its own."""


# 4.10 -------------------------------------------------------------------------------------------
class CheckNorm(Correct, exercise="check_layer_norm"):
    def check_layer_norm(layer_norm):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(3, 5, 4, generator=generator)
        gain, bias = 1 + torch.rand(2, 4, generator=generator)
        for eps in (1e-5, 0.5):
            seen = layer_norm(x, gain, bias, eps)
            assert torch.allclose(seen, F.layer_norm(x, (4,), gain, bias, eps), atol=1e-4)


CatchesNothing = CheckNorm.but("assert …", "assert seen.shape == x.shape")
"""No wrong norm is caught: nearly everything has the right shape, and what is printed nobody reads,
so assert something about the numbers."""

GainOneBiasZero = CheckNorm.but("gain, bias = …", "gain, bias = torch.ones(4), torch.zeros(4)")
"""The gain is 1 and the bias 0 in all inputs, so nobody notices where they are left out: draw
them."""

ManyFeaturesOneToken = (
    CheckNorm.but("3, 5, 4, generator", "1, 1, 256, generator")
    .but("2, 4, generator", "2, 256, generator")
    .but("(x, (4,), gain, bias, eps), atol=1e-4", "(x, (256,), gain, bias, eps), atol=0.01")
)
"""One token of many features hides a division by d - 1, and says nothing about axes: use few
features, and more than one token and sequence."""

EpsilonTooSmallToSee = CheckNorm.but("1e-5, 0.5", "1e-5,")
"""Epsilon is far below the variance of every token, so nobody sees whether and where it is added:
choose a large one, or tokens that are next to constant."""

DemandsEqualBits = CheckNorm.but(
    "assert …", "assert torch.equal(seen, F.layer_norm(x, (4,), gain, bias, eps))"
)
"""The test demands that numbers are equal bit by bit, and right implementations round differently:
allow for a small difference."""

ExpectsOneLess = CheckNorm.but(
    "assert torch.allclose(seen, F.layer_norm(x, (4,), gain, bias, eps), atol=1e-4)",
    "spread = torch.sqrt(x.var(dim=-1, keepdim=True) + eps)\n"
    "expected = (x - x.mean(dim=-1, keepdim=True)) / spread * gain + bias\n"
    "assert torch.allclose(seen, expected, atol=1e-4)",
)
"""The test lets a division by d - 1 pass and rejects right norms: LayerNorm divides by d."""

NoNormPasses = CheckNorm.but(
    "assert torch.allclose(seen, F.layer_norm(x, (4,), gain, bias, eps), atol=1e-4)",
    "centred = (x - x.mean(dim=-1, keepdim=True)) / (x.std(dim=-1, keepdim=True) + eps)\n"
    "assert torch.allclose(seen, centred * gain + bias, atol=1e-4)",
)
"""No norm passes this test, neither a right one nor any of the wrong ones: what it expects is not
LayerNorm. Compare what it expects with torch's own, or with a token worked out by hand."""


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


StillAsPublished = (
    Mended.but("tokens.mean(dim=-1, keepdim=True)", "tokens.mean(dim=1, keepdim=True)")
    .but(").mean(dim=-1", ").mean(dim=1")
    .but("y2 = x", "y2 = y1")
    .but("y4, 2", "y2, 0")
)
"""All four bugs are still there."""

NormStillOverTokens = Mended.but("dim=-1", "dim=1", times=2)
"""The norm still takes its mean and variance over the tokens of the sequence (dim=1), and each
token learns about later ones: take them over the features (dim=-1)."""

ResidualStillFromTheNorm = Mended.but("y2 = x", "y2 = y1")
"""The stream still goes through the first norm: what attention finds is to be added to `x`, not to
what attention read."""

SecondResidualFromTheNorm = Mended.but("y4 = y2", "y4 = y3")
"""What cross attention finds is added to what it read, behind norm 1; it is to be added to the
stream."""

NormStillUsedTwice = Mended.but("y4, 2", "y4, 0")
"""Norm 0 is still used for the feed-forward network, and norm 2 never."""

NormOneForFeedForward = Mended.but("y4, 2", "y4, 1")
"""The feed-forward network reads through norm 1, which belongs to cross attention; the third
sub-layer has norm 2."""

FeedForwardStillSkipsTheMemory = Mended.but("y4, 2", "y2, 2")
"""The feed-forward network still reads the stream as it was before cross attention: it never sees
what was found in the memory."""

FeedForwardLineNotMended = Mended.but("y4, 2", "y2, 0")
"""The line of the feed-forward network still has both of its bugs: another sub-layer's norm, and a
stream that cross attention has not written to yet."""

ResidualOfTheFeedForwardMovedToo = Mended.but("y4 + y5", "y2 + y5")
"""The last sum starts from the stream before cross attention, so what was found in the memory is
lost."""

MemoryNormalised = Mended.but("y4 = …", "read = norm(memory, 1)\ny4 = y2 + attend(y3, read, read)")
"""The memory goes through a norm of this block; it comes normalised, and is used as it is."""

CausalMaskLost = Mended.but("y1, is_causal=True", "y1")
"""Self attention has lost its causal mask."""

MemoryMaskedToo = Mended.but("memory, memory", "memory, memory, is_causal=True")
"""Cross attention has a causal mask too; every token may read the whole memory."""

NormedBehindTheSums = Mended.but(
    "y1 = norm(x, 0)…\nreturn y4 + y5",
    "y1 = norm(x + attend(x, x, x, is_causal=True), 0)\n"
    "y2 = norm(y1 + attend(y1, memory, memory), 1)\n"
    "return norm(y2 + torch.relu(y2 @ w_up) @ w_down, 2)",
)
"""The norms stand behind the sums, which makes a post-norm block; this is a pre-norm block, and its
stream is left alone."""


# 4.4 --------------------------------------------------------------------------------------------
class Swapped(Correct, exercise="swapped_sublayer"):
    def swapped_sublayer(x, weights):
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, correction=0)
        read = (x - mean) / torch.sqrt(variance + 1e-5) * weights["gain"] + weights["bias"]
        hidden = F.gelu(read @ weights["up.weight"].T + weights["up.bias"])
        return x + hidden @ weights["down.weight"].T + weights["down.bias"]


ResidualForgotten = Swapped.but("x + hidden", "hidden")
"""What the network gives replaces the stream; it has to be added to it."""

ResidualFromTheNorm = Swapped.but("return x", "return read")
"""What the network gives is added to what it read, behind the norm; it has to be added to the
stream."""

DividedByOneLess = Swapped.but("True, correction=0", "True")
"""The variance is divided by d_model - 1: with 128 features the loss hardly moves, the logits
do."""

EpsilonForgotten = Swapped.but("variance + 1e-5", "variance")
"""Epsilon is missing under the root of the norm, or far too small; the model was trained with 1e-5.
The loss does not show it, the logits do."""

EpsilonOfAnotherModel = Swapped.but("variance + 1e-5", "variance + 1e-3")
"""Epsilon is larger than 1e-5, with which the model was trained: a norm divides by a little too
much, and what stands behind it is a little too small."""

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

NormBehindTheSum = Swapped.but(
    "mean = …\nreturn …",
    'hidden = F.gelu(x @ weights["up.weight"].T + weights["up.bias"])\n'
    'x = x + hidden @ weights["down.weight"].T + weights["down.bias"]\n'
    'return F.layer_norm(x, x.shape[-1:], weights["gain"], weights["bias"])',
)
"""The norm stands behind the sum, as in post-norm; this model is pre-norm, and its network reads
through the norm."""

ApproximateGelu = Swapped.but('["up.bias"]', '["up.bias"], approximate="tanh"')
"""GELU is approximated by a tanh; the model was trained with the exact one."""

ReluInsteadOfGelu = Swapped.but("F.gelu", "F.relu")
"""The network bends with ReLU; the model was trained with GELU."""

BiasesForgotten = Swapped.but('T + weights["up.bias"]', "T").but('T + weights["down.bias"]', "T")
"""The biases of the two maps are not added."""
