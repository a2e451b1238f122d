"""Rotary positions for points in space, and for texts longer than those in training."""

import math

import torch
from jaxtyping import Float, Real
from torch import Tensor

from groundup.core.config import require
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
    rule = "d_head must be a multiple of twice the number of axes"
    require(d_head % (2 * num_axes) == 0, rule, d_head=d_head, axes=num_axes)
    dtype = torch.promote_types(x.dtype, torch.float32)
    frequencies = pair_frequencies(d_head // num_axes, base, coordinates.device)
    cos_sin = rotary_cos_sin(coordinates, frequencies, dtype)
    return rotate_pairs(x, cos_sin.flatten(-3, -2))  # (*batch, points, d_head / 2, 2)


def by_parts(
    frequencies: Float[Tensor, " pairs"],
    factor: float,
    trained_len: int,
    few_turns: float = 1.0,
    many_turns: float = 32.0,
) -> Float[Tensor, " pairs"]:
    """Slow the pairs that made few turns in training, for texts `factor` times as long.

    A pair that made many turns has been through all of its angles, and it distinguishes
    neighbours: it is not slowed. One that made few turns would meet new angles in a longer text;
    slowed by the factor, it meets only the old ones. Those in between are slowed in part.

    Args:
        frequencies: Radians per token of each pair, as trained.
        factor: How many times as long the new texts are.
        trained_len: Length of the longest text in training, in tokens.
        few_turns: Turns within `trained_len` up to which a pair is slowed by the whole factor.
        many_turns: Turns from which a pair is not slowed.

    Returns:
        Radians per token of each pair.

    Source:
        Peng et al. 2023, YaRN, section 3.2 ("NTK-by-parts"), https://arxiv.org/abs/2309.00071;
        with 1 and 4 turns: Llama 3.1, `_compute_llama3_parameters` in
        https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_rope_utils.py

    """
    turns = trained_len * frequencies / (2 * math.pi)
    kept = ((turns - few_turns) / (many_turns - few_turns)).clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / factor


def yarn_frequencies(
    d_head: int,
    base: float,
    factor: float,
    trained_len: int,
    few_turns: float = 1.0,
    many_turns: float = 32.0,
    truncate: bool = True,
) -> Float[Tensor, " pairs"]:
    """Slow the pairs that made few turns as YaRN's authors' code does.

    Their paper interpolates by the number of turns, as `by_parts` does; their code by the index of
    the pair, from the one that makes `many_turns` to the one that makes `few_turns`.

    Args:
        d_head: Width of a head.
        base: Base of the frequencies in training.
        factor: As in `by_parts`.
        trained_len: As in `by_parts`.
        few_turns: As in `by_parts`.
        many_turns: As in `by_parts`.
        truncate: Whether both indices are rounded outwards, to integers.

    Returns:
        Radians per token of each pair.

    Source:
        Peng et al. 2023, YaRN, section 3.2, https://arxiv.org/abs/2309.00071; their code,
        https://github.com/jquesnelle/yarn

    """
    of_turn = d_head / (2 * math.log(base))
    first = of_turn * math.log(trained_len / (2 * math.pi * many_turns))
    last = of_turn * math.log(trained_len / (2 * math.pi * few_turns))
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, d_head - 1)
    frequencies = pair_frequencies(d_head, base)
    slowed = ((torch.arange(len(frequencies)) - first) / (last - first or 0.001)).clamp(0, 1)
    return (1 - slowed) * frequencies + slowed * frequencies / factor
