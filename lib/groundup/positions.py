"""Where a token stands: tables added to embeddings, and turns applied to queries and keys.

Attention alone sees a set. What is here gives the set an order.
"""

from typing import Literal, get_args

import torch
from jaxtyping import Float, Int, Real
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
    angle = _angles(torch.arange(length), d_model, base)
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
        _require_positions_fit(positions, len(self.table))
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
        _require_positions_fit(positions, self.table.num_embeddings)
        return self.table(positions)


Layout = Literal["interleaved", "half_split"]


def rotary_turns(
    positions: Real[Tensor, "*batch length"],
    d_head: int,
    base: float = 10_000.0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Float[Tensor, "*batch length pairs"], Float[Tensor, "*batch length pairs"]]:
    """Work out by how much each pair of features is turned at each position.

    Pair `i` turns by `position / base^(2i / d_head)` radians. The angles depend on nothing that
    is learned, so all layers and all heads can share them.

    Args:
        positions: Where the tokens stand; any real number.
        d_head: Width of a head; even, because each turn needs two features.
        base: Sets the slowest turn: every wavelength is below `2 * pi * base` tokens.
        dtype: What the results are rounded to, once, from float64. Half precision would blur
            them.

    Returns:
        Cosine and sine of the angles.

    Raises:
        ValueError: If `d_head` is odd.

    Source:
        Su et al. 2021, RoFormer, section 3.2, https://arxiv.org/abs/2104.09864

    """
    _require_pairs(d_head)
    angle = _angles(positions, d_head, base)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def turn(
    x: Float[Tensor, "*batch length d_head"],
    cos: Float[Tensor, "*#batch length pairs"],
    sin: Float[Tensor, "*#batch length pairs"],
    layout: Layout = "interleaved",
) -> Float[Tensor, "*batch length d_head"]:
    """Turn each pair of features of `x` by its angle.

    The product is worked out in the precision of `cos` and `sin` and rounded to that of `x`
    once.

    Args:
        x: Queries or keys of one or more heads.
        cos: Cosines of the angles, in float32 or float64.
        sin: Sines of the angles.
        layout: Which features make a pair: neighbours `2i` and `2i + 1` (`interleaved`, as in
            the paper), or `i` and `i + d_head / 2` (`half_split`, as in many checkpoints).

    Returns:
        `x` turned, in its own dtype. Every vector keeps its length.

    Raises:
        ValueError: If `layout` is neither.

    """
    _require_layout(layout)
    if layout == "half_split":
        first, second = x.chunk(2, dim=-1)
        turned = torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
    elif torch.compiler.is_compiling() or not _is_made_of_pairs(x):
        even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)  # (*batch, length, pairs) each
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
    else:
        # The same product, read as one of complex numbers: a single pass over the memory, which
        # takes a quarter of the time. A compiler knows the two lines above better.
        pairs = x.to(torch.promote_types(x.dtype, cos.dtype)).unflatten(-1, (-1, 2))
        product = torch.view_as_complex(pairs) * torch.complex(cos, sin)
        turned = torch.view_as_real(product).flatten(-2)
    return turned.to(x.dtype)


def rotate(
    x: Float[Tensor, "*batch length d_head"],
    positions: Int[Tensor, "*#batch length"],
    base: float = 10_000.0,
    layout: Layout = "interleaved",
) -> Float[Tensor, "*batch length d_head"]:
    """Turn each pair of features by an angle that grows with position.

    The dot product of two turned vectors depends on how far apart they stand, not on where
    they stand.

    Args:
        x: Queries or keys of one or more heads.
        positions: Index of each token, counted from 0.
        base: Sets the slowest turn: every wavelength is below `2 * pi * base` tokens.
        layout: Which features make a pair, as in `turn`.

    Returns:
        `x` turned. Every vector keeps its length.

    Raises:
        ValueError: If `d_head` is odd.

    Source:
        Su et al. 2021, RoFormer, section 3.2, https://arxiv.org/abs/2104.09864

    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    return turn(x, *rotary_turns(positions, x.shape[-1], base, dtype), layout)


class Rotary(nn.Module):
    """`rotate` with the cosines and sines of all positions up to `max_len` kept at hand.

    One such module can serve every layer and head of a model. Nothing is learned, so nothing
    is saved with the model. The tables are float32 whatever the model is cast to (float64 in a
    float64 model), because what is lost by rounding them is lost in every layer.

    Args:
        max_len: Number of positions, counted from 0.
        d_head: Width of a head; even.
        base: Sets the slowest turn: every wavelength is below `2 * pi * base` tokens.
        layout: Which features make a pair, as in `turn`.

    Raises:
        ValueError: If `d_head` is odd, or if `layout` is neither.

    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self, max_len: int, d_head: int, base: float = 10_000.0, layout: Layout = "interleaved"
    ):
        super().__init__()
        _require_layout(layout)
        self.max_len, self.d_head, self.base = max_len, d_head, base
        self.layout: Layout = layout
        cos, sin = rotary_turns(torch.arange(max_len), d_head, base)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(
        self,
        x: Float[Tensor, "*batch length d_head"],
        positions: Int[Tensor, "*#batch length"] | None = None,
        start: int = 0,
    ) -> Float[Tensor, "*batch length d_head"]:
        """Turn `x` by its positions.

        Args:
            x: Queries or keys of one or more heads.
            positions: Index of each token; by default `start`, `start + 1` and so on.
            start: Index of the first token, where no positions are given.

        Raises:
            ValueError: If `x` is not `d_head` wide, or if it goes on beyond `max_len`. Given
                positions are looked at on a processor only, where nothing has to wait for it.

        """
        if x.shape[-1] != self.d_head:
            raise ValueError(
                f"x must be as wide as d_head, got width={x.shape[-1]}, d_head={self.d_head}"
            )
        if positions is not None:
            _require_positions_fit(positions, self.max_len)
            return turn(x, self.cos[positions], self.sin[positions], self.layout)
        end = start + x.shape[-2]
        if end > self.max_len:
            raise ValueError(
                "start + length must not exceed max_len, "
                f"got start={start}, length={x.shape[-2]}, max_len={self.max_len}"
            )
        return turn(x, self.cos[start:end], self.sin[start:end], self.layout)

    def _apply(self, fn, recurse=True):
        """Follow the module to its device and dtype, with tables worked out again."""
        super()._apply(fn, recurse)
        dtype = torch.promote_types(self.cos.dtype, torch.float32)
        positions = torch.arange(self.max_len, device="cpu")  # not every device has float64
        cos, sin = rotary_turns(positions, self.d_head, self.base, dtype)
        self.cos, self.sin = cos.to(self.cos.device), sin.to(self.sin.device)
        return self


def rotate_in_space(
    x: Float[Tensor, "*batch points d_head"],
    coordinates: Real[Tensor, "*#batch points axes"],
    base: float = 10_000.0,
) -> Float[Tensor, "*batch points d_head"]:
    """Turn queries and keys of points in a plane or in space, such as patches of an image.

    Each axis gets an equal part of the features and turns it by its own coordinate. The dot
    product of two turned vectors then depends on the difference of the coordinates, axis by
    axis, and not on where the origin lies.

    Args:
        x: Queries or keys of one or more heads.
        coordinates: Any real numbers. The fastest pair of an axis turns by one radian per unit,
            so the unit should be about the smallest distance that matters.
        base: Sets the slowest turn: every wavelength is below `2 * pi * base` units. Where the
            coordinates are few, as along the side of an image, less serves better.

    Returns:
        `x` turned. Every vector keeps its length.

    Raises:
        ValueError: If `d_head` is not a multiple of twice the number of axes.

    Source:
        Su et al. 2021, RoFormer, section 3.2.2 (turns in separate planes),
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
    cos, sin = rotary_turns(coordinates, d_head // num_axes, base, dtype)
    return turn(x, cos.flatten(-2), sin.flatten(-2))  # (*batch, points, d_head / 2) each


def to_half_split(x: Float[Tensor, "*batch d_head"]) -> Float[Tensor, "*batch d_head"]:
    """Move the features of a head so that pairs of neighbours become pairs `i, i + d_head / 2`.

    From `a0 b0 a1 b1` to `a0 a1 b0 b1`. `turn` with the matching `layout` then gives the same
    numbers, moved the same way.

    Raises:
        ValueError: If `d_head` is odd.

    """
    _require_pairs(x.shape[-1])
    return x.unflatten(-1, (-1, 2)).transpose(-2, -1).flatten(-2)


def to_interleaved(x: Float[Tensor, "*batch d_head"]) -> Float[Tensor, "*batch d_head"]:
    """Undo `to_half_split`.

    Raises:
        ValueError: If `d_head` is odd.

    """
    _require_pairs(x.shape[-1])
    return x.unflatten(-1, (2, -1)).transpose(-2, -1).flatten(-2)


def permute_projection(
    weight: Float[Tensor, "out *rest"], num_heads: int, to: Layout
) -> Float[Tensor, "out *rest"]:
    """Move the rows of a query or key projection from one rotary layout to the other.

    A model whose query and key projections are moved, and which then turns by the other
    layout, has the same scores, because a dot product does not care for the order of its terms.
    Values and outputs stay as they are.

    Args:
        weight: Weight or bias of the projection, as `nn.Linear` stores it: outputs first, head
            by head.
        num_heads: Number of heads among the outputs; for keys the number of key heads.
        to: The layout to arrive at. The weight has to be in the other one.

    Returns:
        The same rows in another order.

    Raises:
        ValueError: If the outputs do not divide into heads of an even width, or if `to` is no
            layout.

    """
    _require_layout(to)
    if num_heads < 1 or weight.shape[0] % (2 * num_heads):
        raise ValueError(
            "out must be a multiple of twice num_heads, "
            f"got out={weight.shape[0]}, num_heads={num_heads}"
        )
    move = to_half_split if to == "half_split" else to_interleaved
    heads = weight.unflatten(0, (num_heads, -1))  # (heads, d_head, *rest)
    return move(heads.movedim(1, -1)).movedim(-1, 1).flatten(0, 1)


def alibi_slopes(num_heads: int) -> Float[Tensor, "{num_heads}"]:
    """Say how fast the scores of each head fall with distance.

    For a power of two, head `h` of `n`, counted from 1, has slope `2^(-8h / n)`. For another
    number the power of two below gives the first slopes, and every other slope of the power of
    two above gives the rest, as in the authors' code.

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
    if num_heads < 1:
        raise ValueError(f"num_heads must be at least 1, got num_heads={num_heads}")
    below = 2 ** (num_heads.bit_length() - 1)  # the largest power of two up to num_heads
    slopes = [2 ** (-8 * head / below) for head in range(1, below + 1)]
    slopes += [2 ** (-4 * head / below) for head in range(1, 2 * below, 2)]
    return torch.tensor(slopes[:num_heads])


def alibi_bias(
    num_heads: int,
    q_len: int,
    k_len: int | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "{num_heads} q_len k_len"]:
    """Lower each score by the distance between query and key, times the slope of the head.

    Positions then need nothing else: no table and no turn. The queries are the last of the
    keys, as in `causal_mask`. The distance counts both ways, so that the bias also serves an
    encoder; a decoder hides the keys ahead by its mask.

    Args:
        num_heads: Number of heads.
        q_len: Number of queries, in tokens.
        k_len: Number of keys, in tokens; by default `q_len`.
        device: Where the bias is made.
        dtype: What it is rounded to.

    Returns:
        The `score_bias` of an attention: `-slope * |i - j|`.

    Raises:
        ValueError: If there is no head, or if there are more queries than keys.

    Source:
        Press et al. 2022, Train Short, Test Long, section 3, https://arxiv.org/abs/2108.12409;
        for encoders https://github.com/ofirpress/attention_with_linear_biases/issues/5

    """
    k_len = q_len if k_len is None else k_len
    if q_len > k_len:
        raise ValueError(f"q_len must not exceed k_len, got q_len={q_len}, k_len={k_len}")
    keys = torch.arange(k_len, device=device)
    distance = (keys[k_len - q_len :, None] - keys).abs()  # (q_len, k_len)
    return (-alibi_slopes(num_heads).to(device)[:, None, None] * distance).to(dtype)


def _angles(
    positions: Real[Tensor, "*batch length"], width: int, base: float
) -> Float[Tensor, "*batch length pairs"]:
    exponent = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) / width
    return positions[..., None].to(torch.float64) * base**-exponent


def _is_made_of_pairs(x: Tensor) -> bool:
    """Tell whether every pair of neighbouring features starts at an even place in memory."""
    *others, last = x.stride()
    return last == 1 and not any(n % 2 for n in (x.storage_offset(), *others))


def _require_length_fits(positions: Int[Tensor, "*batch length"], max_len: int) -> None:
    length = positions.shape[-1]
    if length > max_len:
        raise ValueError(f"length must not exceed max_len, got length={length}, max_len={max_len}")


def _require_positions_fit(positions: Int[Tensor, "*batch length"], max_len: int) -> None:
    # On a GPU every step would have to wait for the numbers, and a compiler cannot branch on them.
    if positions.device.type != "cpu" or torch.compiler.is_compiling() or not positions.numel():
        return
    lowest, highest = (place.item() for place in positions.aminmax())
    if lowest < 0 or highest >= max_len:
        raise ValueError(
            "positions must be at least 0 and below max_len, "
            f"got positions from {lowest} to {highest}, max_len={max_len}"
        )


def _require_pairs(d_head: int) -> None:
    if d_head % 2:
        raise ValueError(f"d_head must be even to be turned in pairs, got d_head={d_head}")


def _require_layout(layout: str) -> None:
    if layout not in get_args(Layout):
        raise ValueError(f'layout must be "interleaved" or "half_split", got layout="{layout}"')
