"""Alternatives to the dot product for scoring how well a query matches a key.

Each returns scores for `masked_softmax`. Nothing else in the library uses them: they are here for
comparison with the dot product.
"""

from jaxtyping import Float
from torch import Tensor

from groundup.core.config import require


def additive_scores(
    query: Float[Tensor, "*batch q_len d_query"],
    key: Float[Tensor, "*batch k_len d_key"],
    w_query: Float[Tensor, "d_query d_hidden"],
    w_key: Float[Tensor, "d_key d_hidden"],
    w_score: Float[Tensor, " d_hidden"],
) -> Float[Tensor, "*batch q_len k_len"]:
    """Score each pair with a one-layer network: `tanh(q W_query + k W_key) · w_score`.

    Queries and keys may differ in width, and scores are bounded, but the computation needs a
    `(q_len, k_len, d_hidden)` intermediate, which the dot product does not.

    Source:
        Bahdanau et al. 2015, Neural Machine Translation by Jointly Learning to Align and
        Translate, appendix A.1.2, https://arxiv.org/abs/1409.0473

    """
    hidden = (query @ w_query).unsqueeze(-2) + (key @ w_key).unsqueeze(-3)
    return hidden.tanh() @ w_score  # (q_len, k_len, d_hidden) -> (q_len, k_len)


def gaussian_scores(
    query: Float[Tensor, "*batch q_len d_head"],
    key: Float[Tensor, "*batch k_len d_head"],
    bandwidth: float = 1.0,
) -> Float[Tensor, "*batch q_len k_len"]:
    """Score by closeness: minus the squared distance over twice the squared bandwidth.

    With a softmax this is kernel regression with a Gaussian kernel, of which attention is a
    generalisation. If all keys have the same norm it gives the same weights as dot products
    divided by the squared bandwidth.

    Args:
        query: Points at which to estimate the average.
        key: Points at which the values were observed.
        bandwidth: Distance, in the units of the keys, over which a neighbour still counts.

    Raises:
        ValueError: If `bandwidth` is not positive.

    Source:
        Nadaraya 1964, On Estimating Regression, https://doi.org/10.1137/1109020; Watson 1964,
        Smooth Regression Analysis, Sankhya A 26(4), https://www.jstor.org/stable/25049340

    """
    require(bandwidth > 0, "bandwidth must be positive", bandwidth=bandwidth)
    difference = query.unsqueeze(-2) - key.unsqueeze(-3)  # (q_len, k_len, d_head)
    return -difference.square().sum(dim=-1) / (2 * bandwidth**2)


def manhattan_scores(
    query: Float[Tensor, "*batch q_len d_head"],
    key: Float[Tensor, "*batch k_len d_head"],
    bandwidth: float = 1.0,
) -> Float[Tensor, "*batch q_len k_len"]:
    """Score by closeness along the axes: minus the sum of absolute differences over the bandwidth.

    A single feature that differs a lot lowers the score less than with the squared distance.

    Args:
        query: Points at which to estimate the average.
        key: Points at which the values were observed.
        bandwidth: Distance over which the weight falls by a factor of e.

    Raises:
        ValueError: If `bandwidth` is not positive.

    """
    require(bandwidth > 0, "bandwidth must be positive", bandwidth=bandwidth)
    difference = query.unsqueeze(-2) - key.unsqueeze(-3)  # (q_len, k_len, d_head)
    return -difference.abs().sum(dim=-1) / bandwidth


def mahalanobis_scores(
    query: Float[Tensor, "*batch q_len d_head"],
    key: Float[Tensor, "*batch k_len d_head"],
    precision: Float[Tensor, "d_head d_head"],
) -> Float[Tensor, "*batch q_len k_len"]:
    """Score by closeness in a learned or measured geometry: `-(q - k) P (q - k)ᵀ / 2`.

    Args:
        query: Points at which to estimate the average.
        key: Points at which the values were observed.
        precision: `P`, symmetric and positive definite, for instance an inverse covariance;
            the identity gives `gaussian_scores` with bandwidth 1.

    Source:
        Mahalanobis 1936, On the Generalised Distance in Statistics, Proceedings of the
        National Institute of Sciences of India 2(1), 49-55

    """
    difference = query.unsqueeze(-2) - key.unsqueeze(-3)  # (q_len, k_len, d_head)
    return -((difference @ precision) * difference).sum(dim=-1) / 2
