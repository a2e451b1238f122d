"""Where a token stands: tables added to embeddings, and turns applied to queries and keys.

Attention alone sees a set. What is here gives the set an order.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


def sinusoidal_table(
    length: int, d_model: int, base: float = 10_000.0
) -> Float[Tensor, "{length} {d_model}"]:
    """Give each position its own reading of `d_model / 2` clocks, from fast to slow.

    Feature `2i` holds the sine and `2i + 1` the cosine of `position / base^(2i / d_model)`.
    Moving on by k tokens turns every clock by a fixed angle, whatever the position.

    Args:
        length: Number of positions, counted from 0.
        d_model: Width of a row; even, because each clock needs two features.
        base: Sets the slowest clock: every wavelength is below `2 * pi * base` tokens.

    Returns:
        The table, worked out in float64 and rounded once to torch's default dtype.

    Raises:
        ValueError: If `d_model` is odd.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, section 3.5,
        https://arxiv.org/abs/1706.03762

    """
    if d_model % 2:
        raise ValueError(f"d_model must be even for sinusoidal positions, got d_model={d_model}")
    angle = _angles(torch.arange(length), d_model, base, torch.float64)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2).to(torch.get_default_dtype())


class SinusoidalPositions(nn.Module):
    """Rows of the sinusoidal table. Nothing is learned, so nothing is saved with the model."""

    table: Tensor

    def __init__(self, max_len: int, d_model: int):
        super().__init__()
        self.register_buffer("table", sinusoidal_table(max_len, d_model), persistent=False)

    def forward(self, positions: Int[Tensor, "*batch length"]) -> Float[Tensor, "*batch length d"]:
        """Look up the rows of the given positions."""
        _require_length_fits(positions, len(self.table))
        return self.table[positions]


class LearnedPositions(nn.Module):
    """A trained vector for each position up to `max_len`, and none beyond.

    Source:
        Gehring et al. 2017, Convolutional Sequence to Sequence Learning, section 3.1,
        https://arxiv.org/abs/1705.03122

    """

    def __init__(self, max_len: int, d_model: int):
        super().__init__()
        self.table = nn.Embedding(max_len, d_model)

    def forward(self, positions: Int[Tensor, "*batch length"]) -> Float[Tensor, "*batch length d"]:
        """Look up the vectors of the given positions."""
        _require_length_fits(positions, self.table.num_embeddings)
        return self.table(positions)


def rotate(
    x: Float[Tensor, "*batch length d_head"],
    positions: Int[Tensor, "*#batch length"],
    base: float = 10_000.0,
) -> Float[Tensor, "*batch length d_head"]:
    """Turn each pair of features by an angle that grows with position.

    The dot product of two turned vectors depends on how far apart they stand, not on where
    they stand. A pair is two neighbours, features `2i` and `2i + 1`, as in the paper; some
    libraries pair feature `i` with `i + d_head / 2` instead.

    Args:
        x: Queries or keys of one or more heads.
        positions: Index of each token, counted from 0.
        base: Sets the slowest turn: every wavelength is below `2 * pi * base` tokens.

    Returns:
        `x` turned. Every vector keeps its length.

    Raises:
        ValueError: If `d_head` is odd.

    Source:
        Su et al. 2021, RoFormer, section 3.2, https://arxiv.org/abs/2104.09864

    """
    d_head = x.shape[-1]
    if d_head % 2:
        raise ValueError(f"d_head must be even to be turned in pairs, got d_head={d_head}")
    # In half precision, positions beyond a few hundred would blur into one another.
    angle = _angles(positions, d_head, base, torch.promote_types(x.dtype, torch.float32))
    cos, sin = angle.cos(), angle.sin()
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)  # (*batch, length, d_head / 2) each
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return turned.flatten(-2).to(x.dtype)


def _angles(
    positions: Int[Tensor, "*batch length"], width: int, base: float, dtype: torch.dtype
) -> Float[Tensor, "*batch length pairs"]:
    exponent = torch.arange(0, width, 2, dtype=dtype, device=positions.device) / width
    return positions[..., None].to(dtype) * base**-exponent


def _require_length_fits(positions: Int[Tensor, "*batch length"], max_len: int) -> None:
    length = positions.shape[-1]
    if length > max_len:
        raise ValueError(f"length must not exceed max_len, got length={length}, max_len={max_len}")
