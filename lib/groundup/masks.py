"""Who may attend to whom. A mask is boolean and True where attention is allowed. Always."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def masked_softmax(
    scores: Float[Tensor, "*batch q_len k_len"],
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*batch q_len k_len"]:
    """Turn each row of scores into weights that sum to 1 over the allowed keys.

    Masking has to come before the softmax, so that what is hidden takes no share. A row in
    which nothing is allowed gives zeros, not NaN, and passes back a gradient of zero: padding
    then stays silent. The fill value is the smallest number of the dtype, so half precision
    does not overflow.

    Args:
        scores: How well each query matches each key, any real number.
        mask: True where attention is allowed; broadcasts to the shape of `scores`.

    Returns:
        Weights from 0 to 1. Masked entries are exactly 0.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, section 3.2.3 (masking inside the
        attention), https://arxiv.org/abs/1706.03762

    """
    if mask is None:
        return scores.softmax(dim=-1)
    lowest = torch.finfo(scores.dtype).min
    weights = scores.masked_fill(~mask, lowest).softmax(dim=-1)
    return weights.masked_fill(~mask, 0.0)
