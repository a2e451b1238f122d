"""How a model represents positions.

Attention by itself sees a set. Tables added to embeddings, rotations of queries and keys, or a bias
on the scores give the set an order.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Real
from torch import Tensor, nn

from groundup.core.config import require


def sinusoidal_table(
    length: int, d_model: int, base: float = 10_000.0
) -> Float[Tensor, "{length} {d_model}"]:
    """Return the sine and cosine of `d_model / 2` angles at each position, from fast to slow.

    Feature `2i` holds the sine and `2i + 1` the cosine of `position / base^(2i / d_model)`.
    Moving on by k tokens adds a fixed amount to each angle, whatever the position.

    Args:
        length: Number of positions, counted from 0.
        d_model: Width of a row; even, because each angle needs two features.
        base: Sets the slowest angle: every wavelength is below `2 * pi * base` tokens.

    Returns:
        The table, computed in float64 and rounded once to torch's default dtype.

    Raises:
        ValueError: If `d_model` is odd.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, section 3.5,
        https://arxiv.org/abs/1706.03762

    """
    require(d_model % 2 == 0, "d_model must be even for sinusoidal positions", d_model=d_model)
    angle = torch.arange(length)[:, None] * pair_frequencies(d_model, base)  # (length, angles)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2).to(torch.get_default_dtype())


def pair_frequencies(
    width: int, base: float = 10_000.0, device: torch.device | str | None = None
) -> Float[Tensor, " pairs"]:
    """Return how fast each pair of features rotates: pair `i` by `base^(-2i / width)`.

    Args:
        width: Number of features; even.
        base: Sets the slowest frequency: every wavelength is below `2 * pi * base` tokens.
        device: Where the frequencies are computed.

    Returns:
        Radians per token, from fast to slow, in float64.

    Raises:
        ValueError: If `width` is odd.

    """
    require(width % 2 == 0, "d_head must be even to be rotated in pairs", d_head=width)
    return base ** -(torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)


class SinusoidalPositions(nn.Module):
    """Rows of the sinusoidal table. Nothing is learned, so nothing is saved with the model."""

    table: Tensor

    def __init__(self, max_len: int, d_model: int):
        super().__init__()
        self.register_buffer("table", sinusoidal_table(max_len, d_model), persistent=False)

    def forward(self, positions: Int[Tensor, "*batch length"]) -> Float[Tensor, "*batch length d"]:
        """Look up the rows of the given positions."""
        return _rows(self.table, positions)


class LearnedPositions(nn.Module):
    """A trained vector for each position below `max_len`, and none beyond.

    Source:
        Gehring et al. 2017, Convolutional Sequence to Sequence Learning, section 3.1,
        https://arxiv.org/abs/1705.03122

    """

    def __init__(self, max_len: int, d_model: int):
        super().__init__()
        self.table = nn.Embedding(max_len, d_model)

    def forward(self, positions: Int[Tensor, "*batch length"]) -> Float[Tensor, "*batch length d"]:
        """Look up the vectors of the given positions."""
        return _rows(self.table.weight, positions)


def _rows(table: Tensor, positions: Tensor) -> Tensor:
    """Look up rows, and refuse positions that have none; on a CPU only: a GPU would wait."""
    try:
        return F.embedding(positions, table)
    except IndexError:
        lowest, highest = (position.item() for position in positions.aminmax())
        got = f"positions from {lowest} to {highest}, max_len={len(table)}"
        raise ValueError(f"positions must be at least 0 and below max_len, got {got}") from None


def rotary_cos_sin(
    positions: Real[Tensor, "*batch length"],
    frequencies: Float[Tensor, " pairs"],
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "*batch length pairs 2"]:
    """Compute by how much each pair of features is rotated at each position.

    The angles depend on nothing that is learned, so all layers and all heads can use the same
    ones.

    Args:
        positions: Index of each token; any real number.
        frequencies: Radians per token of each pair, as from `pair_frequencies`.
        dtype: What the results are rounded to, once, from float64. Half precision would be too
            coarse.

    Returns:
        Cosine and sine of each angle, side by side.

    Source:
        Su et al. 2021, RoFormer, section 3.2, https://arxiv.org/abs/2104.09864

    """
    angle = positions[..., None].to(torch.float64) * frequencies  # (*batch, length, pairs)
    return torch.stack((angle.cos(), angle.sin()), dim=-1).to(dtype)


def rotate_pairs(
    x: Float[Tensor, "*batch length d_head"], cos_sin: Float[Tensor, "*#batch length pairs 2"]
) -> Float[Tensor, "*batch length d_head"]:
    """Rotate each pair of neighbouring features of `x` by its angle.

    The product is computed in the higher precision of `x` and `cos_sin` and rounded once to that of
    `x`. Many checkpoints pair features `i` and `i + d_head / 2` instead: `files.conversion`
    reorders them.

    Args:
        x: Queries or keys of one or more heads.
        cos_sin: Cosines and sines of the angles, in float32 or float64.

    Returns:
        `x` rotated, in its own dtype. Vectors keep their norms, unless `cos_sin` is scaled.

    """
    if not torch.compiler.is_compiling() and _is_made_of_pairs(x):
        # A rotation is a product of complex numbers: one pass over the memory, which takes a
        # quarter of the time. A compiler knows the lines below better.
        pairs = x.to(torch.promote_types(x.dtype, cos_sin.dtype)).unflatten(-1, (-1, 2))
        product = torch.view_as_complex(pairs) * torch.view_as_complex(cos_sin)
        return torch.view_as_real(product).flatten(-2).to(x.dtype)
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)  # (*batch, length, pairs) each
    cos, sin = cos_sin.unbind(-1)
    rotated = torch.stack((first * cos - second * sin, first * sin + second * cos), dim=-1)
    return rotated.flatten(-2).to(x.dtype)


def _is_made_of_pairs(x: Tensor) -> bool:
    """Tell whether every pair of neighbouring features starts at an even index in memory."""
    *others, last = x.stride()
    return last == 1 and not any(n % 2 for n in (x.storage_offset(), *others))


def rotate(
    x: Float[Tensor, "*batch length d_head"],
    positions: Int[Tensor, "*#batch length"],
    base: float = 10_000.0,
) -> Float[Tensor, "*batch length d_head"]:
    """Rotate each pair of neighbouring features by an angle that grows with position.

    The dot product of two rotated vectors depends on the difference of their positions, not on
    the positions themselves.

    Args:
        x: Queries or keys of one or more heads.
        positions: Index of each token, counted from 0.
        base: Sets the slowest rotation: every wavelength is below `2 * pi * base` tokens.

    Returns:
        `x` rotated. Every vector keeps its norm.

    Raises:
        ValueError: If `d_head` is odd.

    Source:
        Su et al. 2021, RoFormer, section 3.2, https://arxiv.org/abs/2104.09864

    """
    frequencies = pair_frequencies(x.shape[-1], base, positions.device)
    dtype = torch.promote_types(x.dtype, torch.float32)
    return rotate_pairs(x, rotary_cos_sin(positions, frequencies, dtype))


class Rotary(nn.Module):
    """`rotate`, with the cosines and sines of all positions below `max_len` in a table.

    One such module can serve every layer and head of a model. Nothing is learned, so nothing
    is saved with the model. The table is float32 whatever the model is cast to (float64 in a
    float64 model), because rounding errors in it recur in every layer.

    Args:
        max_len: Number of positions, counted from 0.
        d_head: Width of a head; even.
        base: Sets the slowest rotation: every wavelength is below `2 * pi * base` tokens.
        frequencies: Radians per token of each pair; by default those that `base` gives.
        scale: Multiplies rotated queries and keys; their scores are multiplied by its square.

    Raises:
        ValueError: If `d_head` is odd.

    """

    table: Tensor

    def __init__(
        self,
        max_len: int,
        d_head: int,
        base: float = 10_000.0,
        frequencies: Sequence[float] | None = None,
        scale: float = 1.0,
    ):
        super().__init__()
        self.frequencies = frequencies or pair_frequencies(d_head, base, "cpu").tolist()
        self.max_len, self.d_head, self.scale = max_len, 2 * len(self.frequencies), scale
        self.register_buffer("table", self._computed(torch.float32), persistent=False)

    def forward(
        self, x: Float[Tensor, "*batch length d_head"], positions: Int[Tensor, "*#batch length"]
    ) -> Float[Tensor, "*batch length d_head"]:
        """Rotate `x` by its positions.

        Args:
            x: Queries or keys of one or more heads.
            positions: Index of each token.

        Raises:
            ValueError: If `x` is not `d_head` wide, or if a position is not below `max_len`
                (on a CPU only).

        """
        width, d_head = x.shape[-1], self.d_head
        require(width == d_head, "x must be as wide as d_head", width=width, d_head=d_head)
        cos_sin = _rows(self.table, positions).unflatten(-1, (-1, 2))
        return rotate_pairs(x, cos_sin)

    def _apply(self, fn, recurse=True):
        """Follow the module to its device and dtype, with the table computed again."""
        super()._apply(fn, recurse)
        dtype = torch.promote_types(self.table.dtype, torch.float32)
        self.table = self._computed(dtype, "cpu").to(self.table.device)  # some have no float64
        return self

    def _computed(self, dtype: torch.dtype, device: str | None = None) -> Tensor:
        frequencies = torch.tensor(self.frequencies, dtype=torch.float64, device=device)
        cos_sin = rotary_cos_sin(torch.arange(self.max_len, device=device), frequencies, dtype)
        return self.scale * cos_sin.flatten(-2)  # (max_len, d_head)


def alibi_slopes(num_heads: int) -> Float[Tensor, "{num_heads}"]:
    """Return how fast the scores of each head fall with distance.

    For a power of two, head `h` of `n`, counted from 1, has slope `2^(-8h / n)`. For other
    numbers, the next lower power of two gives the first slopes, and every other slope of the
    next higher one gives the rest, as in the authors' code.

    Args:
        num_heads: Number of heads.

    Returns:
        Slopes between 0 and 1, per token, one for each head.

    Raises:
        ValueError: If there is no head.

    Source:
        Press et al. 2022, Train Short, Test Long, section 3, https://arxiv.org/abs/2108.12409;
        other numbers of heads: https://github.com/ofirpress/attention_with_linear_biases

    """
    require(num_heads >= 1, "num_heads must be at least 1", num_heads=num_heads)
    below = 2 ** (num_heads.bit_length() - 1)  # the largest power of two up to num_heads
    slopes = [2 ** (-8 * head / below) for head in range(1, below + 1)]
    slopes += [2 ** (-4 * head / below) for head in range(1, 2 * below, 2)]
    return torch.tensor(slopes[:num_heads])


def alibi_bias(
    num_heads: int,
    q_len: int,
    k_len: int | None = None,
    device: torch.device | str | None = None,
    first: int | Int[Tensor, ""] | None = None,
) -> Float[Tensor, "{num_heads} q_len k_len"]:
    """Lower each score by the distance between query and key, times the slope of the head.

    No table and no rotation is then needed. The distance counts both ways, so that the bias also
    serves an encoder; a decoder's attention hides the keys ahead.

    Args:
        num_heads: Number of heads.
        q_len: Number of queries, in tokens.
        k_len: Number of keys, in tokens; by default `q_len`.
        device: Where the bias is made.
        first: Index of the first query among the keys; by default the queries are the last of
            the keys, as in `causal_mask`.

    Returns:
        The `score_bias` of attention: `-slope * |i - j|`.

    Raises:
        ValueError: If there is no head, or if there are more queries than keys.

    Source:
        Press et al. 2022, Train Short, Test Long, section 3, https://arxiv.org/abs/2108.12409;
        for encoders https://github.com/ofirpress/attention_with_linear_biases/issues/5

    """
    k_len = q_len if k_len is None else k_len
    require(q_len <= k_len, "q_len must not exceed k_len", q_len=q_len, k_len=k_len)
    first = k_len - q_len if first is None else first
    queries = first + torch.arange(q_len, device=device)
    distance = (queries[:, None] - torch.arange(k_len, device=device)).abs()  # (q_len, k_len)
    return -alibi_slopes(num_heads).to(device)[:, None, None] * distance
