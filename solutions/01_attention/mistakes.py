"""The named mistakes of chapter 01: what a message can name, and what graders are tested with."""

import math

import torch
import torch.nn.functional as F

from classroom.answers import Mistake

# 1.1 ------------------------------------------------------------------------------------------


class DistanceNotSquared(Mistake, exercise="kernel_regression"):
    """A Gaussian falls with the square of the distance, not with the distance."""

    def kernel_regression(query, key, value, bandwidth):
        distance = (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(dim=-1).sqrt()
        return (-distance / (2 * bandwidth**2)).softmax(dim=-1) @ value

    def scale_for(bandwidth):
        return 1 / bandwidth**2


class FactorTwoForgotten(Mistake, exercise="kernel_regression"):
    """The exponent of a Gaussian is the squared distance over twice the squared bandwidth."""

    def kernel_regression(query, key, value, bandwidth):
        squared = (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(dim=-1)
        return (-squared / bandwidth**2).softmax(dim=-1) @ value

    def scale_for(bandwidth):
        return 1 / bandwidth**2


class BandwidthNotSquared(Mistake, exercise="kernel_regression"):
    """The squared distance is divided by the bandwidth, not by its square."""

    def kernel_regression(query, key, value, bandwidth):
        squared = (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(dim=-1)
        return (-squared / (2 * bandwidth)).softmax(dim=-1) @ value

    def scale_for(bandwidth):
        return 1 / bandwidth**2


class NeverDividedByTheTotal(Mistake, exercise="kernel_regression"):
    """The kernel weights are used as they are: they must be divided by their sum over the keys."""

    def kernel_regression(query, key, value, bandwidth):
        squared = (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(dim=-1)
        return (-squared / (2 * bandwidth**2)).exp() @ value

    def scale_for(bandwidth):
        return 1 / bandwidth**2


class TotalOverQueries(Mistake, exercise="kernel_regression"):
    """The weights are divided by their sum over the queries; each query needs its own total."""

    def kernel_regression(query, key, value, bandwidth):
        squared = (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(dim=-1)
        return (-squared / (2 * bandwidth**2)).softmax(dim=-2) @ value

    def scale_for(bandwidth):
        return 1 / bandwidth**2


class UnderflowFarAway(Mistake, exercise="kernel_regression"):
    """Far from every key all weights underflow to 0, and 0/0 is NaN: take the softmax of the
    exponents instead of dividing exponentials."""

    def kernel_regression(query, key, value, bandwidth):
        squared = (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(dim=-1)
        weights = (-squared / (2 * bandwidth**2)).exp()
        return (weights / weights.sum(dim=-1, keepdim=True)) @ value

    def scale_for(bandwidth):
        return 1 / bandwidth**2


class ScaleWithFactorTwo(Mistake, exercise="kernel_regression"):
    """Expand the square: the 2 in front of query · key cancels the 2 under the distance."""

    def kernel_regression(query, key, value, bandwidth):
        squared = (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(dim=-1)
        return (-squared / (2 * bandwidth**2)).softmax(dim=-1) @ value

    def scale_for(bandwidth):
        return 1 / (2 * bandwidth**2)


# 1.2 ------------------------------------------------------------------------------------------


class TimesTemperature(Mistake, exercise="soft_lookup"):
    """The scores are multiplied by the temperature; a hot lookup then gets sharper."""

    def soft_lookup(query, key, value, temperature):
        scores = query @ key.transpose(-2, -1)
        if temperature == 0:
            return torch.stack([v[i] for v, i in zip(value, scores.argmax(dim=-1), strict=True)])
        return (scores * temperature).softmax(dim=-1) @ value


class TemperatureAfterSoftmax(Mistake, exercise="soft_lookup"):
    """The weights are divided by the temperature, after the softmax: they no longer sum to 1."""

    def soft_lookup(query, key, value, temperature):
        scores = query @ key.transpose(-2, -1)
        if temperature == 0:
            return torch.stack([v[i] for v, i in zip(value, scores.argmax(dim=-1), strict=True)])
        return (scores.softmax(dim=-1) / temperature) @ value


class SoftmaxOverQueries(Mistake, exercise="soft_lookup"):
    """The softmax runs over the queries (dim=-2); each query chooses among keys (dim=-1)."""

    def soft_lookup(query, key, value, temperature):
        scores = query @ key.transpose(-2, -1)
        if temperature == 0:
            return torch.stack([v[i] for v, i in zip(value, scores.argmax(dim=-1), strict=True)])
        return (scores / temperature).softmax(dim=-2) @ value


class OverflowWhenCold(Mistake, exercise="soft_lookup"):
    """exp() of a large score is infinite, and inf/inf is NaN: subtract the largest score first,
    as softmax does."""

    def soft_lookup(query, key, value, temperature):
        scores = query @ key.transpose(-2, -1)
        if temperature == 0:
            return torch.stack([v[i] for v, i in zip(value, scores.argmax(dim=-1), strict=True)])
        weights = (scores / temperature).exp()
        return (weights / weights.sum(dim=-1, keepdim=True)) @ value


class WorstMatchWins(Mistake, exercise="soft_lookup"):
    """At temperature 0 the key with the smallest score is taken instead of the largest."""

    def soft_lookup(query, key, value, temperature):
        scores = query @ key.transpose(-2, -1)
        if temperature == 0:
            return torch.stack([v[i] for v, i in zip(value, scores.argmin(dim=-1), strict=True)])
        return (scores / temperature).softmax(dim=-1) @ value


class ZeroMeansNoTemperature(Mistake, exercise="soft_lookup"):
    """Temperature 0 is taken to mean “leave the scores alone”; it is the limit in which the best
    key takes all."""

    def soft_lookup(query, key, value, temperature):
        scores = query @ key.transpose(-2, -1)
        if temperature:
            scores = scores / temperature
        return scores.softmax(dim=-1) @ value


# 1.3 ------------------------------------------------------------------------------------------


class KeysAsRows(Mistake, exercise="raw_scores"):
    """Rows hold keys and columns hold queries: the matrix is transposed."""

    def raw_scores(x, w_query, w_key):
        return (x @ w_key) @ (x @ w_query).transpose(-2, -1)

    def mixing_matrix(w_query, w_key):
        return w_query @ w_key.T

    def asymmetry(scores):
        return (scores - scores.T).norm() / scores.norm()


class QueryMapUsedTwice(Mistake, exercise="raw_scores"):
    """Queries and keys come from the same map, so the scores stay symmetric."""

    def raw_scores(x, w_query, w_key):
        query = x @ w_query
        return query @ query.transpose(-2, -1)

    def mixing_matrix(w_query, w_key):
        return w_query @ w_key.T

    def asymmetry(scores):
        return (scores - scores.T).norm() / scores.norm()


class MadeSymmetric(Mistake, exercise="raw_scores"):
    """The scores are averaged with their transpose; the asymmetry is wanted."""

    def raw_scores(x, w_query, w_key):
        scores = (x @ w_query) @ (x @ w_key).transpose(-2, -1)
        return (scores + scores.transpose(-2, -1)) / 2

    def mixing_matrix(w_query, w_key):
        return w_query @ w_key.T

    def asymmetry(scores):
        return (scores - scores.T).norm() / scores.norm()


class MapsForgotten(Mistake, exercise="raw_scores"):
    """The tokens are compared as they are; neither map is used."""

    def raw_scores(x, w_query, w_key):
        return x @ x.transpose(-2, -1)

    def mixing_matrix(w_query, w_key):
        return w_query @ w_key.T

    def asymmetry(scores):
        return (scores - scores.T).norm() / scores.norm()


class MixingMatrixBackwards(Mistake, exercise="raw_scores"):
    """The mixing matrix is transposed: for row vectors it is w_query times w_key transposed."""

    def raw_scores(x, w_query, w_key):
        return (x @ w_query) @ (x @ w_key).transpose(-2, -1)

    def mixing_matrix(w_query, w_key):
        return w_key @ w_query.T

    def asymmetry(scores):
        return (scores - scores.T).norm() / scores.norm()


class MixingMatrixInHeadSpace(Mistake, exercise="raw_scores"):
    """The product is taken the other way round and has the width of a head: the matrix between
    two tokens is d_model by d_model."""

    def raw_scores(x, w_query, w_key):
        return (x @ w_query) @ (x @ w_key).transpose(-2, -1)

    def mixing_matrix(w_query, w_key):
        return w_query.T @ w_key

    def asymmetry(scores):
        return (scores - scores.T).norm() / scores.norm()


class AsymmetryNotRelative(Mistake, exercise="raw_scores"):
    """The difference is not divided by the size of the scores, so doubling them doubles it."""

    def raw_scores(x, w_query, w_key):
        return (x @ w_query) @ (x @ w_key).transpose(-2, -1)

    def mixing_matrix(w_query, w_key):
        return w_query @ w_key.T

    def asymmetry(scores):
        return (scores - scores.T).norm()


# 1.4 ------------------------------------------------------------------------------------------


class NoScale(Mistake, exercise="scaled_dot_product_attention"):
    """The scores are never divided by the square root of d_head."""

    def scaled_dot_product_attention(query, key, value):
        weights = (query @ key.transpose(-2, -1)).softmax(dim=-1)
        return weights @ value, weights


class DividedByWidth(Mistake, exercise="scaled_dot_product_attention"):
    """The scores are divided by d_head itself: the square root is missing."""

    def scaled_dot_product_attention(query, key, value):
        weights = (query @ key.transpose(-2, -1) / query.shape[-1]).softmax(dim=-1)
        return weights @ value, weights


class ScaledByModelWidth(Mistake, exercise="scaled_dot_product_attention"):
    """The scale uses the width of all heads together (d_model); it is that of one head."""

    def scaled_dot_product_attention(query, key, value):
        d_model = query.shape[-1] * query.shape[-3] if query.dim() > 2 else query.shape[-1]
        weights = (query @ key.transpose(-2, -1) / math.sqrt(d_model)).softmax(dim=-1)
        return weights @ value, weights


class ScaledByValueWidth(Mistake, exercise="scaled_dot_product_attention"):
    """The scale uses the width of the values; the dot product runs over that of the keys."""

    def scaled_dot_product_attention(query, key, value):
        weights = (query @ key.transpose(-2, -1) / math.sqrt(value.shape[-1])).softmax(dim=-1)
        return weights @ value, weights


class ScaledByLength(Mistake, exercise="scaled_dot_product_attention"):
    """The scale uses the number of keys; it is the width of a key that makes scores grow."""

    def scaled_dot_product_attention(query, key, value):
        weights = (query @ key.transpose(-2, -1) / math.sqrt(key.shape[-2])).softmax(dim=-1)
        return weights @ value, weights


class ScaledAfterSoftmax(Mistake, exercise="scaled_dot_product_attention"):
    """The weights are divided after the softmax: they no longer sum to 1."""

    def scaled_dot_product_attention(query, key, value):
        weights = (query @ key.transpose(-2, -1)).softmax(dim=-1) / math.sqrt(query.shape[-1])
        return weights @ value, weights


class NormalisedOverQueries(Mistake, exercise="scaled_dot_product_attention"):
    """The softmax runs over the queries (dim=-2): the columns sum to 1 instead of the rows."""

    def scaled_dot_product_attention(query, key, value):
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        weights = scores.softmax(dim=-2)
        return weights @ value, weights


class QueryAndKeyExchanged(Mistake, exercise="scaled_dot_product_attention"):
    """Queries and keys have changed places: a row of the weights must belong to a query."""

    def scaled_dot_product_attention(query, key, value):
        scores = key @ query.transpose(-2, -1) / math.sqrt(query.shape[-1])
        weights = scores.softmax(dim=-1)
        return weights @ value, weights


class KeysAveraged(Mistake, exercise="scaled_dot_product_attention"):
    """The weights average the keys; what is handed over are the values."""

    def scaled_dot_product_attention(query, key, value):
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        weights = scores.softmax(dim=-1)
        return weights @ key, weights


class FeaturesAttendToFeatures(Mistake, exercise="scaled_dot_product_attention"):
    """The product compares features with features: transpose the keys, not the queries."""

    def scaled_dot_product_attention(query, key, value):
        scores = query.transpose(-2, -1) @ key / math.sqrt(query.shape[-1])
        weights = scores.softmax(dim=-1)
        return value @ weights.transpose(-2, -1), weights


class TransposeForgotten(Mistake, exercise="scaled_dot_product_attention"):
    """Nothing is transposed, so rows of queries meet columns of keys, which are features."""

    def scaled_dot_product_attention(query, key, value):
        weights = (query @ key / math.sqrt(query.shape[-1])).softmax(dim=-1)
        return weights @ value, weights


class ExponentialsOverflow(Mistake, exercise="scaled_dot_product_attention"):
    """exp() of a large score is infinite, and inf/inf is NaN: use softmax, which subtracts the
    largest score first."""

    def scaled_dot_product_attention(query, key, value):
        scores = (query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])).exp()
        weights = scores / scores.sum(dim=-1, keepdim=True)
        return weights @ value, weights


# 1.5 ------------------------------------------------------------------------------------------


class VarianceInsteadOfSpread(Mistake, exercise="logit_std"):
    """This is the variance; the standard deviation is its square root."""

    def logit_std(d_head, scale):
        return d_head * scale**2

    def excess_kurtosis(d_head):
        return 6 / d_head

    def entropy(weights):
        return torch.special.entr(weights).sum(dim=-1)


class SpreadsAdded(Mistake, exercise="logit_std"):
    """Of independent terms the variances add, not the standard deviations."""

    def logit_std(d_head, scale):
        return d_head * scale

    def excess_kurtosis(d_head):
        return 6 / d_head

    def entropy(weights):
        return torch.special.entr(weights).sum(dim=-1)


class ScaleIgnored(Mistake, exercise="logit_std"):
    """The scale is not applied."""

    def logit_std(d_head, scale):
        return math.sqrt(d_head)

    def excess_kurtosis(d_head):
        return 6 / d_head

    def entropy(weights):
        return torch.special.entr(weights).sum(dim=-1)


class CalledNormal(Mistake, exercise="logit_std"):
    """A sum of products is not normal: each product has excess kurtosis 6, and d_head of them
    still have 6 / d_head."""

    def logit_std(d_head, scale):
        return math.sqrt(d_head) * scale

    def excess_kurtosis(d_head):
        return 0.0

    def entropy(weights):
        return torch.special.entr(weights).sum(dim=-1)


class KurtosisWithoutExcess(Mistake, exercise="logit_std"):
    """This is the kurtosis; its excess is what is above the 3 of a normal."""

    def logit_std(d_head, scale):
        return math.sqrt(d_head) * scale

    def excess_kurtosis(d_head):
        return 3 + 6 / d_head

    def entropy(weights):
        return torch.special.entr(weights).sum(dim=-1)


class EntropyInBits(Mistake, exercise="logit_std"):
    """The entropy is counted in bits; nats use the natural logarithm."""

    def logit_std(d_head, scale):
        return math.sqrt(d_head) * scale

    def excess_kurtosis(d_head):
        return 6 / d_head

    def entropy(weights):
        return torch.special.entr(weights).sum(dim=-1) / math.log(2)


class ZeroTimesMinusInfinity(Mistake, exercise="logit_std"):
    """The logarithm of a weight of 0 is minus infinity, and 0 times that is NaN; its limit is 0."""

    def logit_std(d_head, scale):
        return math.sqrt(d_head) * scale

    def excess_kurtosis(d_head):
        return 6 / d_head

    def entropy(weights):
        return -(weights * weights.log()).sum(dim=-1)


class AllRowsTogether(Mistake, exercise="logit_std"):
    """The entropies of all rows are added up; each query has its own."""

    def logit_std(d_head, scale):
        return math.sqrt(d_head) * scale

    def excess_kurtosis(d_head):
        return 6 / d_head

    def entropy(weights):
        return torch.special.entr(weights).sum()


# 1.6 ------------------------------------------------------------------------------------------


class ScaleLeftOut(Mistake, exercise="worked_row"):
    """The scale is left out of scores and weights, as in the printed example."""

    def worked_row(query, keys, values):
        scores = keys @ query
        weights = scores.softmax(dim=-1)
        return scores, weights, weights @ values

    def rankings(query, keys):
        dot = keys @ query
        return dot.argsort(descending=True), (dot / keys.norm(dim=-1)).argsort(descending=True)


class ScoresPrintedUnscaled(Mistake, exercise="worked_row"):
    """The weights are right, but the scores that are returned are those before scaling."""

    def worked_row(query, keys, values):
        scores = keys @ query
        weights = (scores / math.sqrt(len(query))).softmax(dim=-1)
        return scores, weights, weights @ values

    def rankings(query, keys):
        dot = keys @ query
        return dot.argsort(descending=True), (dot / keys.norm(dim=-1)).argsort(descending=True)


class RootLeftOut(Mistake, exercise="worked_row"):
    """The scores are divided by the width of a key instead of its square root."""

    def worked_row(query, keys, values):
        scores = keys @ query / len(query)
        weights = scores.softmax(dim=-1)
        return scores, weights, weights @ values

    def rankings(query, keys):
        dot = keys @ query
        return dot.argsort(descending=True), (dot / keys.norm(dim=-1)).argsort(descending=True)


class RankedUpwards(Mistake, exercise="worked_row"):
    """The rankings run from the worst key to the best."""

    def worked_row(query, keys, values):
        scores = keys @ query / math.sqrt(len(query))
        weights = scores.softmax(dim=-1)
        return scores, weights, weights @ values

    def rankings(query, keys):
        dot = keys @ query
        return dot.argsort(), (dot / keys.norm(dim=-1)).argsort()


class CosineByQueryLength(Mistake, exercise="worked_row"):
    """For the cosine only the query's length is divided out, which changes no order: the length
    of each key matters."""

    def worked_row(query, keys, values):
        scores = keys @ query / math.sqrt(len(query))
        weights = scores.softmax(dim=-1)
        return scores, weights, weights @ values

    def rankings(query, keys):
        dot = keys @ query
        return dot.argsort(descending=True), (dot / query.norm()).argsort(descending=True)


class DistanceForDirection(Mistake, exercise="worked_row"):
    """The second ranking is by closeness in space; direction is the angle between the vectors."""

    def worked_row(query, keys, values):
        scores = keys @ query / math.sqrt(len(query))
        weights = scores.softmax(dim=-1)
        return scores, weights, weights @ values

    def rankings(query, keys):
        distance = (keys - query).norm(dim=-1)
        return (keys @ query).argsort(descending=True), distance.argsort()


# 1.7 ------------------------------------------------------------------------------------------


class NothingCompared(Mistake, exercise="check_convex_hull"):
    """Only the shape of the output is looked at: no wrong number can make the test fail."""

    def check_convex_hull(attention):
        query, key, value = torch.randn(5, 4), torch.randn(7, 4), torch.randn(7, 6)
        assert attention(query, key, value).shape == (5, 6)

    def check_value_map_commutes(attention):
        query, key, value = torch.randn(5, 4), torch.randn(7, 4), torch.randn(7, 6)
        assert attention(query, key, value @ torch.randn(6, 3)).shape == (5, 3)


class OneSided(Mistake, exercise="check_convex_hull"):
    """Only the upper end is tested, so outputs that are too small get past."""

    def check_convex_hull(attention):
        generator = torch.Generator().manual_seed(2)
        query = torch.randn(5, 4, generator=generator)
        key = torch.randn(7, 4, generator=generator)
        value = 10 + torch.rand(7, 6, generator=generator)
        output = attention(query, key, value)
        assert (output <= value.amax(dim=0) + 1e-5).all()

    def check_value_map_commutes(attention):
        generator = torch.Generator().manual_seed(3)
        query = torch.randn(5, 4, generator=generator)
        key = torch.randn(7, 4, generator=generator)
        value = torch.randn(7, 6, generator=generator)
        matrix = torch.randn(6, 3, generator=generator)
        before, after = attention(query, key, value @ matrix), attention(query, key, value)
        assert torch.allclose(before, after @ matrix, atol=1e-4)


class AllValuesEqual(Mistake, exercise="check_convex_hull"):
    """With all values equal, weights that sum to 1 look right even if some are negative."""

    def check_convex_hull(attention):
        generator = torch.Generator().manual_seed(2)
        query = torch.randn(5, 4, generator=generator)
        key = torch.randn(7, 4, generator=generator)
        value = torch.full((7, 6), 3.0)
        assert torch.allclose(attention(query, key, value), torch.tensor(3.0), atol=1e-4)

    def check_value_map_commutes(attention):
        generator = torch.Generator().manual_seed(3)
        query = torch.randn(5, 4, generator=generator)
        key = torch.randn(7, 4, generator=generator)
        value = torch.randn(7, 6, generator=generator)
        matrix = torch.randn(6, 3, generator=generator)
        before, after = attention(query, key, value @ matrix), attention(query, key, value)
        assert torch.allclose(before, after @ matrix, atol=1e-4)


class OnlyStretched(Mistake, exercise="check_convex_hull"):
    """The map only stretches all features by one positive number, which even a cut-off at zero
    survives: take a matrix that mixes features."""

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


class ExactComparison(Mistake, exercise="check_convex_hull"):
    """Floating-point numbers are compared with ==: rounding makes the test reject right
    implementations, so leave a tolerance."""

    def check_convex_hull(attention):
        generator = torch.Generator().manual_seed(2)
        query = torch.randn(50, 4, generator=generator)
        key = torch.randn(7, 4, generator=generator)
        value = torch.full((7, 6), 0.1)
        assert (attention(query, key, value) == 0.1).all()

    def check_value_map_commutes(attention):
        generator = torch.Generator().manual_seed(3)
        query = torch.randn(50, 4, generator=generator)
        key = torch.randn(7, 4, generator=generator)
        value = torch.randn(7, 6, generator=generator)
        matrix = torch.randn(6, 3, generator=generator)
        before, after = attention(query, key, value @ matrix), attention(query, key, value)
        assert torch.equal(before, after @ matrix)


# 1.8 ------------------------------------------------------------------------------------------


class ScaleForgottenBackward(Mistake, exercise="attention_backward"):
    """The scale multiplies the scores, so it multiplies the gradients by query and key too."""

    def attention_backward(query, key, value, grad_output):
        scale = 1 / math.sqrt(query.shape[-1])
        weights = (query @ key.transpose(-2, -1) * scale).softmax(dim=-1)
        grad_weights = grad_output @ value.transpose(-2, -1)
        mean = (weights * grad_weights).sum(dim=-1, keepdim=True)
        grad_scores = weights * (grad_weights - mean)
        return (
            grad_scores @ key,
            grad_scores.transpose(-2, -1) @ query,
            weights.transpose(-2, -1) @ grad_output,
        )

    def output_jacobian(query, key, value):
        weights = (key @ query / math.sqrt(len(query))).softmax(dim=-1)
        return (value - weights @ value).T @ (weights[:, None] * key)


class SoftmaxRowForgotten(Mistake, exercise="attention_backward"):
    """Raising one weight lowers the others: the weighted mean of the gradients has to be
    subtracted in each row."""

    def attention_backward(query, key, value, grad_output):
        scale = 1 / math.sqrt(query.shape[-1])
        weights = (query @ key.transpose(-2, -1) * scale).softmax(dim=-1)
        grad_scores = weights * (grad_output @ value.transpose(-2, -1)) * scale
        return (
            grad_scores @ key,
            grad_scores.transpose(-2, -1) @ query,
            weights.transpose(-2, -1) @ grad_output,
        )

    def output_jacobian(query, key, value):
        weights = (key @ query / math.sqrt(len(query))).softmax(dim=-1)
        return (value - weights @ value).T @ (weights[:, None] * key) / math.sqrt(len(query))


class MeanOverQueries(Mistake, exercise="attention_backward"):
    """The mean that is subtracted is taken over the queries; a softmax row runs over the keys."""

    def attention_backward(query, key, value, grad_output):
        scale = 1 / math.sqrt(query.shape[-1])
        weights = (query @ key.transpose(-2, -1) * scale).softmax(dim=-1)
        grad_weights = grad_output @ value.transpose(-2, -1)
        mean = (weights * grad_weights).sum(dim=-2, keepdim=True)
        grad_scores = weights * (grad_weights - mean) * scale
        return (
            grad_scores @ key,
            grad_scores.transpose(-2, -1) @ query,
            weights.transpose(-2, -1) @ grad_output,
        )

    def output_jacobian(query, key, value):
        weights = (key @ query / math.sqrt(len(query))).softmax(dim=-1)
        return (value - weights @ value).T @ (weights[:, None] * key) / math.sqrt(len(query))


class ScoresForWeights(Mistake, exercise="attention_backward"):
    """The gradient by the values uses the scores; the output is linear in the values with the
    weights as coefficients."""

    def attention_backward(query, key, value, grad_output):
        scale = 1 / math.sqrt(query.shape[-1])
        scores = query @ key.transpose(-2, -1) * scale
        weights = scores.softmax(dim=-1)
        grad_weights = grad_output @ value.transpose(-2, -1)
        mean = (weights * grad_weights).sum(dim=-1, keepdim=True)
        grad_scores = weights * (grad_weights - mean) * scale
        return (
            grad_scores @ key,
            grad_scores.transpose(-2, -1) @ query,
            scores.transpose(-2, -1) @ grad_output,
        )

    def output_jacobian(query, key, value):
        weights = (key @ query / math.sqrt(len(query))).softmax(dim=-1)
        return (value - weights @ value).T @ (weights[:, None] * key) / math.sqrt(len(query))


class GradientsExchanged(Mistake, exercise="attention_backward"):
    """The gradients by query and key are returned in each other's place."""

    def attention_backward(query, key, value, grad_output):
        scale = 1 / math.sqrt(query.shape[-1])
        weights = (query @ key.transpose(-2, -1) * scale).softmax(dim=-1)
        grad_weights = grad_output @ value.transpose(-2, -1)
        mean = (weights * grad_weights).sum(dim=-1, keepdim=True)
        grad_scores = weights * (grad_weights - mean) * scale
        return (
            grad_scores.transpose(-2, -1) @ query,
            grad_scores @ key,
            weights.transpose(-2, -1) @ grad_output,
        )

    def output_jacobian(query, key, value):
        weights = (key @ query / math.sqrt(len(query))).softmax(dim=-1)
        return (value - weights @ value).T @ (weights[:, None] * key) / math.sqrt(len(query))


class ProductNotCentred(Mistake, exercise="attention_backward"):
    """The Jacobian is a covariance: the mean value has to be subtracted before multiplying."""

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
        return value.T @ (weights[:, None] * key) / math.sqrt(len(query))


class JacobianTransposed(Mistake, exercise="attention_backward"):
    """The Jacobian is transposed: a row belongs to a feature of the output."""

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
        return (weights[:, None] * key).T @ (value - weights @ value) / math.sqrt(len(query))


# Bug hunts ------------------------------------------------------------------------------------


class LeftAsPublished(Mistake, exercise="mended_attention"):
    """Nothing changed: the softmax still takes the scores from before the scaling."""

    def mended_attention(query, key, value):
        scores = query @ key.transpose(-2, -1)
        scaled = scores / key.shape[-1]
        weights = scores.softmax(dim=-1)
        return weights @ value


class SecondBugLeft(Mistake, exercise="mended_attention"):
    """The scaled scores are used now, but they are divided by the width itself: the square root
    is missing."""

    def mended_attention(query, key, value):
        scores = query @ key.transpose(-2, -1)
        scaled = scores / key.shape[-1]
        weights = scaled.softmax(dim=-1)
        return weights @ value


class ScaledAfterwards(Mistake, exercise="mended_attention"):
    """The weights are scaled instead of the scores: they no longer sum to 1."""

    def mended_attention(query, key, value):
        scores = query @ key.transpose(-2, -1)
        weights = scores.softmax(dim=-1) / math.sqrt(key.shape[-1])
        return weights @ value


class ScaledTwice(Mistake, exercise="mended_attention"):
    """Query and key are both divided by the whole root, so the scores are scaled twice."""

    def mended_attention(query, key, value):
        root = math.sqrt(key.shape[-1])
        scores = (query / root) @ (key / root).transpose(-2, -1) / root
        weights = scores.softmax(dim=-1)
        return weights @ value


class WidthOfTheValues(Mistake, exercise="mended_attention"):
    """The scale uses the width of the values; the dot product runs over that of the keys."""

    def mended_attention(query, key, value):
        scores = query @ key.transpose(-2, -1) / math.sqrt(value.shape[-1])
        weights = scores.softmax(dim=-1)
        return weights @ value


class BiasAlwaysWhole(Mistake, exercise="project_after_mixing"):
    """The whole bias is added whatever a row sums to: a row of weights that sums to s carries s
    times the bias."""

    def project_after_mixing(weights, tokens, w_value, b_value):
        return (weights @ tokens) @ w_value + b_value


class BiasForgotten(Mistake, exercise="project_after_mixing"):
    """The bias has disappeared."""

    def project_after_mixing(weights, tokens, w_value, b_value):
        return (weights @ tokens) @ w_value


class BiasOncePerKey(Mistake, exercise="project_after_mixing"):
    """The bias is added once per key; the weights share it out, so it comes sum-of-the-row
    times."""

    def project_after_mixing(weights, tokens, w_value, b_value):
        return (weights @ tokens) @ w_value + len(tokens) * b_value


class RowsNormalised(Mistake, exercise="project_after_mixing"):
    """The rows are made to sum to 1, which is not what was asked: a faint row stays faint."""

    def project_after_mixing(weights, tokens, w_value, b_value):
        total = weights.sum(dim=-1, keepdim=True).clamp_min(1e-9)
        return (weights / total @ tokens) @ w_value + b_value


class BiasMixedFirst(Mistake, exercise="project_after_mixing"):
    """The bias is weighted by columns: it must be multiplied by what each row sums to."""

    def project_after_mixing(weights, tokens, w_value, b_value):
        return (weights @ tokens) @ w_value + weights.sum() / len(weights) * b_value
