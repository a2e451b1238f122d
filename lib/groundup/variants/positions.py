"""Rotary position embeddings for points in a plane or in space."""

import torch
from jaxtyping import Float, Real
from torch import Tensor

from groundup.core.positions import pair_frequencies, rotary_cos_sin, rotate_pairs


def rotate_in_space(
    x: Float[Tensor, "*batch points d_head"],
    coordinates: Real[Tensor, "*#batch points axes"],
    base: float = 10_000.0,
) -> Float[Tensor, "*batch points d_head"]:
    """Rotate queries and keys of points in a plane or in space, such as patches of an image.

    The features are divided equally among the axes, and each part is rotated by the coordinate on
    its axis. The dot product of two rotated vectors then depends on the differences of the
    coordinates and not on the origin.

    Args:
        x: Queries or keys of one or more heads.
        coordinates: Any real numbers. The fastest pair of an axis rotates by one radian per
            unit, so the unit should be about the smallest distance that matters.
        base: Sets the slowest rotation: every wavelength is below `2 * pi * base` units. For small
            ranges of coordinates, such as the side of an image, a smaller base works better.

    Returns:
        `x` rotated. Every vector keeps its length.

    Raises:
        ValueError: If `d_head` is not a multiple of twice the number of axes.

    Source:
        Su et al. 2021, RoFormer, section 3.2.2 (rotations in separate planes),
        https://arxiv.org/abs/2104.09864; one part per axis, with base 100: Heo et al. 2024,
        Rotary Position Embedding for Vision Transformer ("axial"),
        https://arxiv.org/abs/2403.13298

    """
    d_head, num_axes = x.shape[-1], coordinates.shape[-1]
    if d_head % (2 * num_axes):
        raise ValueError(
            "d_head must be a multiple of twice the number of axes, "
            f"got d_head={d_head}, axes={num_axes}"
        )
    dtype = torch.promote_types(x.dtype, torch.float32)
    frequencies = pair_frequencies(d_head // num_axes, base, coordinates.device)
    cos_sin = rotary_cos_sin(coordinates, frequencies, dtype)
    return rotate_pairs(x, cos_sin.flatten(-3, -2))  # (*batch, points, d_head / 2, 2)
