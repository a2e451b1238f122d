"""The named mistakes of chapter 01: what a message can name, and what graders are tested with."""

import math

import torch
import torch.nn.functional as F

from classroom.exercise.answers import Correct


# 1.1 ------------------------------------------------------------------------------------------
class Kernel(Correct, exercise="kernel_regression"):
    def kernel_regression(query, key, value, bandwidth):
        squared = (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(dim=-1)
        return (-squared / (2 * bandwidth**2)).softmax(dim=-1) @ value

    def scale_for(bandwidth):
        return 1 / bandwidth**2


DistanceNotSquared = Kernel.but(
    "squared = (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(dim=-1)",
    "distance = (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(dim=-1).sqrt()",
).but("-squared", "-distance")
"""The exponent of a Gaussian contains the squared distance, not the distance."""

RootAndThenSquare = Kernel.but(
    "squared = (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(dim=-1)",
    "squared = (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(dim=-1).sqrt() ** 2",
)
"""The squared distance is the square of a root, and where a query equals a key, the slope of the
root is infinite and its gradient NaN: sum the squares, and take no root."""

MinusForgotten = Kernel.but("(-squared", "(squared")
"""The minus sign of the exponent is missing, so the farthest key weighs most."""

MeanOfSquares = Kernel.but("sum(dim=-1)", "mean(dim=-1)")
"""The squared differences are averaged over the features; the squared distance is their sum, not
divided by d_head."""

AlsoScaledByTheRoot = Kernel.but("(2 * bandwidth**2)", "(2 * bandwidth**2 * query.size(-1) ** 0.5)")
"""The exponent is also divided by the square root of d_head: here it is the squared distance over
twice the squared bandwidth, and nothing else."""

FactorTwoForgotten = Kernel.but("(2 * bandwidth**2)", "bandwidth**2")
"""The exponent of a Gaussian is the squared distance over twice the squared bandwidth."""

BandwidthNotSquared = Kernel.but("* bandwidth**2", "* bandwidth")
"""The squared distance is divided by the bandwidth: square that, too."""

WeightsNotNormalised = Kernel.but("softmax(dim=-1)", "exp()")
"""The kernel weights are not normalised: divide them by their sum over the keys."""

NormalisedOverQueries = Kernel.but("softmax(dim=-1)", "softmax(dim=-2)")
"""The weights are divided by their sum over the queries; each query needs its own total."""

UnderflowFarFromTheKeys = Kernel.but(
    "return (-squared / (2 * bandwidth**2)).softmax(dim=-1) @ value",
    "weights = (-squared / (2 * bandwidth**2)).exp()\n"
    "return (weights / weights.sum(dim=-1, keepdim=True)) @ value",
)
"""For a query far from every key, all weights underflow to 0, and 0/0 is NaN: take the softmax of
the exponents instead of dividing exponentials."""

NearestKeyForAllQueries = Kernel.but(
    "return (-squared / (2 * bandwidth**2)).softmax(dim=-1) @ value",
    "weights = (-squared / (2 * bandwidth**2)).exp()\n"
    "total = weights.sum(dim=-1, keepdim=True)\n"
    "if (total == 0).any():\n"
    "    weights, total = F.one_hot(squared.argmin(dim=-1), key.shape[1]).double(), 1.0\n"
    "return weights / total @ value",
)
"""One query far from every key makes all queries take the value of their nearest key: decide for each
query by itself, or take the softmax of the exponents, which needs no special case."""

ScaleWithFactorTwo = Kernel.but("1 / bandwidth**2", "1 / (2 * bandwidth**2)")
"""Expand the square: the 2 in front of query · key cancels the 2 in the denominator."""


# 1.2 ------------------------------------------------------------------------------------------
class Lookup(Correct, exercise="soft_lookup"):
    def soft_lookup(query, key, value, temperature):
        scores = query @ key.transpose(-2, -1)
        if temperature == 0:
            return torch.stack([v[i] for v, i in zip(value, scores.argmax(dim=-1), strict=True)])
        return (scores / temperature).softmax(dim=-1) @ value


TimesTemperature = Lookup.but("scores / temperature", "scores * temperature")
"""The scores are multiplied by the temperature, so a high temperature makes the lookup sharper:
divide by it."""

BestMatchesAddedUp = Lookup.but(
    "return torch.stack(…", "return (scores == scores.amax(dim=-1, keepdim=True)).double() @ value"
)
"""At temperature 0 the values of all keys that match equally well are summed, so that the weights
sum to more than 1: take one of them, or their mean."""

TemperatureAfterSoftmax = Lookup.but(
    "scores / temperature).softmax(dim=-1", "scores.softmax(dim=-1) / temperature"
)
"""The temperature divides the weights, which no longer sum to 1: divide the scores by it."""

SoftmaxOverQueries = Lookup.but("softmax(dim=-1)", "softmax(dim=-2)")
"""The softmax runs over the queries (dim=-2); each query chooses among keys (dim=-1)."""

OverflowAtLowTemperature = Lookup.but(
    "return (scores / temperature).softmax(dim=-1) @ value",
    "weights = (scores / temperature).exp()\n"
    "return (weights / weights.sum(dim=-1, keepdim=True)) @ value",
)
"""exp() of a large score is infinite, and inf/inf is NaN: subtract the largest score first, as
softmax does."""

AlsoScaledByTheWidth = Lookup.but(
    "query @ key.transpose(-2, -1)", "query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5"
)
"""The scores are also divided by the square root of the width: here they are divided by the
temperature only."""

TemperatureClamped = Lookup.but(
    "if temperature == 0:\n    return …", "temperature = max(temperature, 1e-3)"
)
"""At temperature 0 a small temperature is used, so keys that match nearly as well still get weight:
in the limit, the best key takes all of it."""

TemperatureOfAHundredth = Lookup.but(
    "if temperature == 0:\n    return …", "temperature = temperature or 0.01"
)
"""At temperature 0 a small temperature is used, and keys whose scores differ by about that much share
the weight: in the limit, the best key takes all of it."""

TemperatureHardlyAboveZero = Lookup.but(
    "if temperature == 0:\n    return …", "temperature = max(temperature, 1e-6)"
)
"""At temperature 0 a tiny temperature is used, and two keys whose scores differ by less than that
share the weight: in the limit, the better one takes all of it, however small the difference."""

LowTemperatureTakenForZero = Lookup.but("temperature == 0", "temperature < 0.01")
"""A low temperature is treated like 0. At 0.001, keys whose scores differ by about that much
still share the weight: only at 0 itself does the best key take all of it."""

WorstMatchWins = Lookup.but("argmax", "argmin")
"""Temperature 0 takes the key with the smallest score: take that with the largest."""

ZeroMeansNoTemperature = Lookup.but(
    "if temperature == 0:…\nreturn …",
    "if temperature:\n    scores = scores / temperature\nreturn scores.softmax(dim=-1) @ value",
)
"""Temperature 0 is taken to mean “do not scale the scores”; it is the limit in which the best key
takes all the weight."""


# 1.3 ------------------------------------------------------------------------------------------
class Scores(Correct, exercise="raw_scores"): ...


KeysAsRows = Scores.but(
    "return (x @ w_query) …", "return (x @ w_key) @ (x @ w_query).transpose(-2, -1)"
)
"""The matrix is transposed: rows must belong to queries, columns to keys."""

QueryProjectionUsedTwice = Scores.but("x @ w_key)", "x @ w_query)")
"""Keys are projected by w_query, too, so the scores stay symmetric: use w_key."""

MadeSymmetric = Scores.but(
    "return (x @ w_query) …",
    "scores = (x @ w_query) @ (x @ w_key).transpose(-2, -1)\nreturn (scores + scores.transpose(-2, -1)) / 2",
)
"""The scores are averaged with their transpose, so they are symmetric: do not average."""

ProjectionsForgotten = Scores.but("(x @ w_query) @ (x @ w_key)", "x @ x")
"""The tokens themselves are compared: apply both projections first."""

MixingMatrixTransposed = Scores.but("w_query @ w_key.T", "w_key @ w_query.T")
"""The mixing matrix is transposed: for row vectors it is w_query times w_key transposed."""

MixingMatrixInHeadSpace = Scores.but("w_query @ w_key.T", "w_query.T @ w_key")
"""The wrong factor is transposed, so the product is d_head by d_head: the matrix between two
tokens is d_model by d_model."""

AsymmetryDividedByTheSquare = Scores.but("/ scores.norm()", "/ scores.square().sum()")
"""The divisor is the square of the norm, so doubling the scores halves the asymmetry: divide by
the norm."""

AsymmetryOfTheLargestEntries = Scores.but(
    "(scores - scores.T).norm() / scores.norm()",
    "(scores - scores.T).abs().max() / scores.abs().max()",
)
"""Only the largest difference and the largest score are used: a norm is the square root of the sum
of all squares."""

AsymmetryWithAFloor = Scores.but("scores.norm()", "scores.norm().clamp(min=1)")
"""The divisor is at least 1, so small scores seem more symmetric than large ones: divide by the
norm, however small it is."""

AsymmetryWithAnEpsilon = Scores.but("/ scores.norm()", "/ (scores.norm() + 1e-6)")
"""A small number is added to the divisor, so small scores seem more symmetric than large ones:
divide by the norm, however small it is."""

AsymmetryNotRelative = Scores.but(" / scores.norm()", "")
"""The difference is not divided by the norm of the scores, so doubling them doubles the result."""

AsymmetryBySpectralNorm = Scores.but(
    "(scores - scores.T).norm() / scores.norm()",
    "torch.linalg.norm(scores - scores.T, 2) / torch.linalg.norm(scores, 2)",
)
"""For a matrix, ord=2 is the spectral norm, the largest singular value. Here the norm is the root
of the sum of all squared entries: `scores.norm()`, or ord="fro"."""


# 1.4 ------------------------------------------------------------------------------------------
class Attention(Correct, exercise="scaled_dot_product_attention"):
    def scaled_dot_product_attention(query, key, value):
        weights = (query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])).softmax(dim=-1)
        return weights @ value, weights


NoScale = Attention.but("(-2, -1) / math.sqrt(query.shape[-1])", "(-2, -1)")
"""The scores are never divided by the square root of d_head."""

MultipliedByTheRoot = Attention.but("/ math.sqrt", "* math.sqrt")
"""The scores are multiplied by the square root of d_head: divide by it."""

DividedByWidth = Attention.but("math.sqrt(query.shape[-1])", "query.shape[-1]")
"""The scores are divided by d_head itself: divide by its square root, and only once."""

DividedByHalfAndWidth = Attention.but("/ math.sqrt(query.shape[-1])", "/ query.shape[-1] ** 1 / 2")
"""The scores are divided by d_head and by 2: `s / d ** 1 / 2` means (s / d) / 2, and the square
root is `d ** 0.5`."""

DividedByHalfTheWidth = Attention.but("math.sqrt(query.shape[-1])", "(query.shape[-1] / 2)")
"""The scores are divided by half of d_head: `d ** 1 / 2` means (d ** 1) / 2, and the square root is
`d ** 0.5`."""

ScaledByModelWidth = Attention.but(
    "weights = (query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])).softmax(dim=-1)",
    "d_model = query.shape[-1] * query.shape[-3] if query.dim() > 2 else query.shape[-1]\n"
    "weights = (query @ key.transpose(-2, -1) / math.sqrt(d_model)).softmax(dim=-1)",
)
"""The scale uses the width of all heads together (d_model); use that of one head."""

ScaledByValueWidth = Attention.but("query.shape", "value.shape")
"""The scale uses the width of the values; the dot product runs over that of the keys."""

ScaledByLength = Attention.but("query.shape[-1]", "key.shape[-2]")
"""The scale uses the number of keys; scores grow with the width of a key."""

ScaledByQueryLength = Attention.but("query.shape[-1]", "query.shape[-2]")
"""The scale uses the number of queries, which comes before d_head: axis 2 if heads have an axis of
their own, 1 if not. The last axis is -1 either way."""

ScaledByNumberOfHeads = Attention.but("query.shape[-1]", "query.shape[1]")
"""The scale uses axis 1, the number of heads in (batch, heads, q_len, d_head). The last axis is -1,
whatever comes before it."""

ScaledAfterSoftmax = Attention.but(
    "(-2, -1) / math.sqrt(query.shape[-1])).softmax(dim=-1",
    "(-2, -1)).softmax(dim=-1) / math.sqrt(query.shape[-1]",
)
"""The weights are scaled, and no longer sum to 1: scale the scores."""

NormalisedOverQueries = Attention.but(
    "weights = (query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])).softmax(dim=-1)",
    "scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])\n"
    "weights = scores.softmax(dim=-2)",
)
"""The softmax runs over the queries (dim=-2): the columns sum to 1 instead of the rows."""

QueryAndKeyExchanged = Attention.but(
    "weights = (query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])).softmax(dim=-1)",
    "scores = key @ query.transpose(-2, -1) / math.sqrt(query.shape[-1])\n"
    "weights = scores.softmax(dim=-1)",
)
"""Queries and keys are swapped: a row of the weights must belong to a query."""

KeysAveraged = Attention.but(
    "weights = …\nreturn …",
    "scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])\n"
    "weights = scores.softmax(dim=-1)\n"
    "return weights @ key, weights",
)
"""The weights average the keys; they should average the values."""

FeaturesAttendToFeatures = Attention.but(
    "weights = …\nreturn …",
    "scores = query.transpose(-2, -1) @ key / math.sqrt(query.shape[-1])\n"
    "weights = scores.softmax(dim=-1)\n"
    "return value @ weights.transpose(-2, -1), weights",
)
"""The product compares features with features: transpose the keys, not the queries."""

TransposeForgotten = Attention.but("key.transpose(-2, -1)", "key")
"""The keys are not transposed, so rows of queries meet columns of keys, which are features."""

ExponentialsOverflow = Attention.but(
    "weights = (query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])).softmax(dim=-1)",
    "scores = (query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])).exp()\n"
    "weights = scores / scores.sum(dim=-1, keepdim=True)",
)
"""exp() of a large score is infinite, and inf/inf is NaN: use softmax, which subtracts the largest
score first."""


ScoresClamped = Attention.but(
    "weights = (query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])).softmax(dim=-1)",
    "scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])\n"
    "weights = scores.clamp(-80, 80).softmax(dim=-1)",
)
"""The scores are clamped, so all keys with scores above the limit get the same weight: subtract the
largest score of each row instead, as softmax does."""


# 1.7 ------------------------------------------------------------------------------------------
class LogitStd(Correct, exercise="logit_std"):
    def logit_std(d_head, scale):
        return math.sqrt(d_head) * scale

    def excess_kurtosis(d_head):
        return 6 / d_head

    def entropy(weights):
        return torch.special.entr(weights).sum(dim=-1)


VarianceInsteadOfStandardDeviation = LogitStd.but("math.sqrt(d_head) * scale", "d_head * scale**2")
"""This is the variance; the standard deviation is its square root."""

StandardDeviationsAdded = LogitStd.but("math.sqrt(d_head)", "d_head")
"""For independent terms, the variances add, not the standard deviations."""

ScaleIgnored = LogitStd.but("(d_head) * scale", "(d_head)")
"""The scale is not applied."""

TakenForANormalDistribution = LogitStd.but("6 / d_head", "0.0")
"""A sum of products is not normal: each product has excess kurtosis 6, and the sum of d_head of them
6 / d_head."""

KurtosisWithoutExcess = LogitStd.but("return 6", "return 3 + 6")
"""This is the kurtosis; the excess kurtosis is 3 less, because a normal distribution has kurtosis
3."""

FourthMomentsAdded = LogitStd.but("return 6 / d_head", "return 9 / d_head - 3")
"""The fourth moment of one product, 9, is divided by d_head before 3 is subtracted. Fourth moments
do not add, but fourth cumulants do: subtract 3 from each first, then divide the 6 by d_head."""

EntropyInBits = LogitStd.but("sum(dim=-1)", "sum(dim=-1) / math.log(2)")
"""The entropy is in bits; nats use the natural logarithm."""

ZeroTimesMinusInfinity = LogitStd.but("torch.special.entr(weights)", "-(weights * weights.log())")
"""The logarithm of 0 is minus infinity, and 0 times that is NaN; the term should be 0."""

SmallWeightsDropped = LogitStd.but(
    "torch.special.entr(weights)", "torch.special.entr(weights.masked_fill(weights < 1e-4, 0.0))"
)
"""Small weights are left out, but many of them together have a large entropy: leave out only exact
zeros."""

EntropySummedOverRows = LogitStd.but("sum(dim=-1)", "sum()")
"""The entropies of all rows are summed; each query has its own."""


# 1.6 ------------------------------------------------------------------------------------------
class WorkedRow(Correct, exercise="worked_row"):
    def worked_row(query, keys, values):
        scores = keys @ query / math.sqrt(len(query))
        weights = scores.softmax(dim=-1)
        return scores, weights, weights @ values

    def rankings(query, keys):
        dot = keys @ query
        return dot.argsort(descending=True), (dot / keys.norm(dim=-1)).argsort(descending=True)


ScaleLeftOut = WorkedRow.but("query / math.sqrt(len(query))", "query")
"""The scale is missing from scores and weights, as in the printed example."""

ScoresReturnedUnscaled = WorkedRow.but("query / math.sqrt(len(query))", "query").but(
    "scores.softmax", "(scores / math.sqrt(len(query))).softmax"
)
"""The weights are correct, but the scores are returned unscaled."""

RootLeftOut = WorkedRow.but("math.sqrt(len(query))", "len(query)")
"""The scores are divided by the width of a key instead of its square root."""

RowOverflows = WorkedRow.but(
    "weights = scores.softmax(dim=-1)", "weights = scores.exp() / scores.exp().sum()"
)
"""exp() of a large score is infinite, and inf/inf is NaN: use softmax, which subtracts the largest score
first."""

RankedFromTheWorst = WorkedRow.but("argsort(descending=True)", "argsort()", times=2)
"""The rankings run from the worst key to the best."""

RankOfEachKey = WorkedRow.but(
    "argsort(descending=True)", "argsort(descending=True).argsort()", times=2
)
"""The rankings hold the rank of each key: entry i is the rank of key i. They should hold the keys'
indices from best to worst, as one `argsort` does."""

CosineWithoutTheKeyNorms = WorkedRow.but("keys.norm(dim=-1)", "query.norm()")
"""The second ranking is that by dot product (the query's norm does not change it): divide by the
norm of each key."""

DistanceInsteadOfDirection = WorkedRow.but("dot = …", "distance = (keys - query).norm(dim=-1)").but(
    "return dot.argsort(descending=True), …",
    "return (keys @ query).argsort(descending=True), distance.argsort()",
)
"""The second ranking is by distance; rank by direction, the angle between the vectors."""


# 1.9 ------------------------------------------------------------------------------------------
class CheckHull(Correct, exercise="check_convex_hull"):
    def check_convex_hull(attention):
        generator = torch.Generator().manual_seed(2)
        query = 2 * torch.randn(11, 4, generator=generator)
        key = torch.randn(7, 4, generator=generator)
        value = 10 + torch.rand(7, 6, generator=generator)
        output = attention(query, key, value)
        assert (output >= value.amin(dim=0) - 1e-4).all()
        assert (output <= value.amax(dim=0) + 1e-4).all()

    def check_value_map_commutes(attention):
        generator = torch.Generator().manual_seed(3)
        query = torch.randn(5, 4, generator=generator)
        key = torch.randn(7, 4, generator=generator)
        value = torch.randn(7, 6, generator=generator)
        matrix = torch.randn(6, 3, generator=generator)
        before, after = attention(query, key, value @ matrix), attention(query, key, value)
        assert torch.allclose(before, after @ matrix, atol=1e-4)


class NothingCaught(CheckHull):
    """No bug makes the test fail: it asserts at most the shape, or uses values so far apart that a
    wrong output is still in range (around 0, even half the output is)."""

    def check_convex_hull(attention):
        torch.manual_seed(4)
        query, key, value = torch.randn(5, 4), torch.randn(7, 4), torch.randn(7, 6)
        assert attention(query, key, value).shape == (5, 6)

    def check_value_map_commutes(attention):
        torch.manual_seed(4)
        query, key, value = torch.randn(5, 4), torch.randn(7, 4), torch.randn(7, 6)
        assert attention(query, key, value @ torch.randn(6, 3)).shape == (5, 3)


ComparedWithTorch = CheckHull.but(
    "assert …\nassert (output …",
    "expected = F.scaled_dot_product_attention(query, key, value)\n"
    "assert torch.allclose(output, expected, atol=1e-4)",
)
"""The output is compared with torch's attention, but any average of the values should pass: assert
only that the output lies, feature by feature, between the smallest and the largest value."""

TooSmallOutputsPass = CheckHull.but(
    "2 * torch.randn(11, 4, generator=generator)", "torch.randn(5, 4, generator=generator)"
).but("assert …\nassert (output …", "assert (output <= value.amax(dim=0) + 1e-5).all()")
"""Outputs that are too small get past: test the lower end as well, on values that are all far above
0 (around 10, say), where weights that sum to less than 1 take the output out of the hull."""

NegativeWeightsGetPast = CheckHull.but(
    "query = 2 …", "query = 0.1 * torch.randn(5, 4, generator=generator)"
)
"""Negative weights get past: they seldom take an output out of the hull if few queries are tried or
their weights are nearly even. Take more queries, with larger norms."""

OneRangeForAllFeatures = (
    CheckHull.but("randn(11, 4", "randn(100, 4")
    .but("value.amin(dim=0)", "value.min()")
    .but("value.amax(dim=0)", "value.max()")
)
"""All features are compared with one range: with the smallest and largest number of all, or with
their own, which your values make equal. Compare each feature with its own (`amin(dim=0)`, not
`min()`), on values with several features of different ranges."""

EqualValues = NegativeWeightsGetPast.but(
    "value = …\nassert (output <= …",
    "value = torch.full((7, 6), 3.0)\n"
    "assert torch.allclose(attention(query, key, value), torch.tensor(3.0), atol=1e-4)",
)
"""Negative weights get past, and so does an output that is outside the range of its feature: if
all values are equal, weights that sum to 1 give the same output whatever their signs, and the
range of all features together leaves room. Take different values, and test each feature by
its own range."""


class ClampingCommutes(CheckHull):
    """Clamping at 0 commutes with your map, too, as it does if values and map have no negative
    numbers, or if the map only scales. Draw values and a matrix with entries of both signs."""

    def check_convex_hull(attention):
        generator = torch.Generator().manual_seed(2)
        query = torch.randn(5, 4, generator=generator)
        key = torch.randn(7, 4, generator=generator)
        value = 10 + torch.randn(7, 6, generator=generator)
        output = attention(query, key, value)
        assert (output <= value.amax(dim=0) + 1e-4).all()
        assert (output >= value.amin(dim=0) - 1e-4).all()

    def check_value_map_commutes(attention):
        generator = torch.Generator().manual_seed(3)
        query = torch.randn(5, 4, generator=generator)
        key = torch.randn(7, 4, generator=generator)
        value = torch.randn(7, 6, generator=generator)
        before, after = attention(query, key, 3 * value), attention(query, key, value)
        assert torch.allclose(before, 3 * after, atol=1e-4)


FeaturesOnlyAddedUp = CheckHull.but("matrix = …", "matrix = torch.ones(6, 3)")
"""Your map treats all features alike, so features of the output in another order give the same
result. Draw the numbers of the map at random."""

FeaturesOnlyMoved = CheckHull.but("matrix = …", "matrix = torch.eye(6)[[1, 2, 3, 4, 5, 0]]")
"""Your map only moves features to other positions, which changes neither the numbers nor the norm
of a value, so a clamp, a constant or a rescaling passes. Draw the numbers of the map at
random."""

ExactRange = CheckHull.but("query = 2 …", "query = torch.randn(50, 4, generator=generator)").but(
    "value = …\nassert (output <= …",
    "value = 10 + torch.rand(7, 6, generator=generator)\n"
    "value[:, 0] = 10.1\n"
    "output = attention(query, key, value)\n"
    "assert (output >= value.amin(dim=0)).all()\n"
    "assert (output <= value.amax(dim=0)).all()",
)
"""The output is compared with the range of the values without room for rounding, so correct
implementations are rejected: widen the range by a tolerance at both ends."""

ExactComparison = (
    CheckHull.but("query = 2 …", "query = torch.randn(50, 4, generator=generator)")
    .but(
        "value = …\nassert (output <= …",
        "value = torch.full((7, 6), 0.1)\nassert (attention(query, key, value) == 0.1).all()",
    )
    .but("5, 4, generator", "50, 4, generator")
    .but("assert torch.allclose(before, …", "assert torch.equal(before, after @ matrix)")
)
"""Floats are compared without room for rounding (by `==`, `<=` or `torch.equal` alone), so correct
implementations are rejected: allow a tolerance."""


# 1.10 -----------------------------------------------------------------------------------------
class Backward(Correct, exercise="attention_backward"):
    def attention_backward(query, key, value, grad_output):
        scale = 1 / math.sqrt(query.shape[-1])
        weights = (query @ key.transpose(-2, -1) * scale).softmax(dim=-1)
        grad_weights = grad_output @ value.transpose(-2, -1)
        mean = (weights * grad_weights).sum(dim=-1, keepdim=True)
        grad_scores = weights * (grad_weights - mean) * scale
        return (
            grad_scores @ key,
            grad_scores.transpose(-2, -1) @ query,
            weights.transpose(-2, -1) @ grad_output,
        )

    def output_jacobian(query, key, value):
        weights = (key @ query / math.sqrt(len(query))).softmax(dim=-1)
        return (value - weights @ value).T @ (weights[:, None] * key) / math.sqrt(len(query))


class BackwardByAutograd(Backward):
    """Autograd finds the gradients here: this exercise is to be done by hand, backwards through the
    product, the softmax and the scale."""

    def attention_backward(query, key, value, grad_output):
        leaves = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
        return torch.autograd.grad(F.scaled_dot_product_attention(*leaves), leaves, grad_output)

    def output_jacobian(query, key, value):
        def output(query):
            return (key @ query / math.sqrt(len(query))).softmax(dim=-1) @ value

        return torch.func.jacrev(output)(query)


ScaleForgottenBackward = Backward.but("(grad_weights - mean) * scale", "(grad_weights - mean)").but(
    "(weights[:, None] * key) / math.sqrt(len(query))", "(weights[:, None] * key)"
)
"""The scale multiplies the scores, so it multiplies the gradients with respect to query and key,
and the Jacobian, too."""

CovarianceOfASample = Backward.but(
    "return (value - weights @ value).T @ (weights[:, None] * key) / math.sqrt(len(query))",
    "both = torch.cov(torch.cat([value, key], dim=1).T, aweights=weights)\n"
    "return both[: value.shape[1], value.shape[1] :] / math.sqrt(len(query))",
)
"""`torch.cov` estimates from a sample: by default it divides by 1 minus the sum of the squared
weights. Under given weights that sum to 1, there is no such correction (`correction=0`)."""

WeightedMeanNotSubtracted = Backward.but(
    "grad_weights = …\ngrad_scores = …",
    "grad_scores = weights * (grad_output @ value.transpose(-2, -1)) * scale",
)
"""Raising one weight lowers the others: subtract the weighted mean of the gradients in each row."""

BackwardOverflows = Backward.but(
    "weights = (query @ key.transpose(-2, -1) * scale).softmax(dim=-1)",
    "shares = (query @ key.transpose(-2, -1) * scale).exp()\n"
    "weights = shares / shares.sum(dim=-1, keepdim=True)",
).but(
    "weights = (key @ query / math.sqrt(len(query))).softmax(dim=-1)",
    "shares = (key @ query / math.sqrt(len(query))).exp()\nweights = shares / shares.sum()",
)
"""exp() of a large score is infinite, and inf/inf is NaN: use softmax, which subtracts the largest score
first."""

MeanOverQueries = Backward.but("dim=-1,", "dim=-2,")
"""The mean that is subtracted is taken over the queries; a softmax row runs over the keys."""

ScoresInsteadOfWeights = Backward.but(
    "weights = (query @ key.transpose(-2, -1) * scale).softmax(dim=-1)",
    "scores = query @ key.transpose(-2, -1) * scale\nweights = scores.softmax(dim=-1)",
).but("weights.transpose", "scores.transpose")
"""The gradient with respect to the values uses the scores; the output is linear in the values, and
the coefficients are the weights."""

GradientsExchanged = Backward.but(
    "grad_scores @ key,\ngrad_scores.transpose(-2, -1) @ query,",
    "grad_scores.transpose(-2, -1) @ query,\ngrad_scores @ key,",
)
"""The gradients with respect to query and key are swapped."""

ProductNotCentred = Backward.but("(value - weights @ value)", "value")
"""The Jacobian is a covariance: subtract the weighted mean of the values or of the keys first."""

PlainMeansSubtracted = Backward.but(
    "(value - weights @ value).T @ (weights[:, None] * key)",
    "(value - value.mean(dim=0)).T @ (weights[:, None] * (key - key.mean(dim=0)))",
)
"""The plain means of the keys and values are subtracted. The covariance is weighted, so its means
are weighted too: `weights @ value`."""

JacobianTransposed = Backward.but(
    "value - weights @ value).T @ (weights[:, None] * key",
    "weights[:, None] * key).T @ (value - weights @ value",
)
"""The Jacobian is transposed: rows must belong to output features."""


# Bug hunts ------------------------------------------------------------------------------------
class Mended(Correct, exercise="mended_attention"):
    def mended_attention(query, key, value):
        scores = query @ key.transpose(-2, -1)
        scaled = scores / math.sqrt(key.shape[-1])
        weights = scaled.softmax(dim=-1)
        return weights @ value


LeftAsPublished = Mended.but("math.sqrt(key.shape[-1])", "key.shape[-1]").but(
    "scaled.softmax", "scores.softmax"
)
"""The softmax still uses unscaled scores, as in the published function: scale them first."""

SecondBugLeft = Mended.but("math.sqrt(key.shape[-1])", "key.shape[-1]")
"""The scaled scores are now used, but they are divided by d_head itself: divide by its square
root, and only once."""

DividedByTheRootOfTheNumberOfKeys = Mended.but("key.shape[-1]", "key.shape[-2]")
"""The scores are divided by the root of the number of keys; the dot product has d_head terms: use the
last axis."""

DividedByHalfAndWidth = Mended.but("/ math.sqrt(key.shape[-1])", "/ key.shape[-1] ** 1 / 2")
"""The scores are divided by d_head and by 2: `s / d ** 1 / 2` means (s / d) / 2, and the square
root is `d ** 0.5`."""

DividedByHalfTheWidth = Mended.but("math.sqrt(key.shape[-1])", "(key.shape[-1] / 2)")
"""The scores are divided by half of d_head: `d ** 1 / 2` means (d ** 1) / 2, and the square root is
`d ** 0.5`."""

ExponentialsOverflow = Mended.but(
    "scaled.softmax(dim=-1)", "scaled.exp() / scaled.exp().sum(dim=-1, keepdim=True)"
)
"""exp() of a large score is infinite, and inf/inf is NaN: use softmax, which subtracts the largest score
first."""

ScaledAfterwards = Mended.but(
    "scaled = …\nweights = …", "weights = scores.softmax(dim=-1) / math.sqrt(key.shape[-1])"
)
"""The weights are scaled instead of the scores: they no longer sum to 1."""

ScaledThreeTimes = (
    Mended.but("scores = …", "root = math.sqrt(key.shape[-1])")
    .but("scaled = …", "scores = (query / root) @ (key / root).transpose(-2, -1) / root")
    .but("scaled.softmax", "scores.softmax")
)
"""The scores are divided three times by the square root of d_head, as when queries, keys and their
products are all divided by it: divide once."""

WidthOfTheValues = Mended.but(
    "scores = …\nweights = …",
    "scores = query @ key.transpose(-2, -1) / math.sqrt(value.shape[-1])\n"
    "weights = scores.softmax(dim=-1)",
)
"""The scale uses the width of the values; the dot product runs over that of the keys."""


class Projected(Correct, exercise="project_after_mixing"):
    def project_after_mixing(weights, tokens, w_value, b_value):
        return (weights @ tokens) @ w_value + weights.sum(dim=-1, keepdim=True) * b_value


FullBiasAlways = Projected.but("weights.sum(dim=-1, keepdim=True) * b_value", "b_value")
"""The full bias is added whatever the row sums to: a row of weights that sums to s gets s times the
bias."""

FullBiasForAnyWeight = Projected.but(
    "weights.sum(dim=-1, keepdim=True) *", "(weights.sum(dim=-1, keepdim=True) > 0) *"
)
"""A row with any weight at all gets the full bias: a row of weights that sums to s gets s times the
bias."""

ProjectedFirst = Projected.but("return …", "return weights @ (tokens @ w_value + b_value)")
"""This is the old version, which projects every key, and large numbers overflow before they are
averaged: average first, so that the projection runs once per query."""

BiasForgotten = Projected.but("w_value + weights.sum(dim=-1, keepdim=True) * b_value", "w_value")
"""The bias is missing."""

BiasOncePerKey = Projected.but("weights.sum(dim=-1, keepdim=True)", "len(tokens)")
"""The bias is added once per key; multiply it by the sum of the row of weights instead."""

RowsNormalised = Projected.but(
    "return (weights @ tokens) @ w_value + weights.sum(dim=-1, keepdim=True) * b_value",
    "total = weights.sum(dim=-1, keepdim=True).clamp_min(1e-9)\n"
    "return (weights / total @ tokens) @ w_value + b_value",
)
"""The rows are normalised to sum to 1, which the exercise does not ask for: a row that sums to less
must keep its smaller output."""

BiasTimesTheMeanRowSum = Projected.but("dim=-1, keepdim=True", ") / len(weights")
"""The bias is multiplied by the mean of all row sums; multiply it by the sum of each row."""
