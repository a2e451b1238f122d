"""Masks to switch on and off, and what they leave of the scores of a few tokens.

    masking.show(scores, pieces, num_real=5, window=3, prefix=3, name="masks")

A reader switches causal, window, padding and prefix masks, which are combined by *and*, and hides
or shows single keys of a row. Each row is normalised again over what is left. What a row gives in
which nothing is left depends on how the mask is brought in; four ways can be compared.
"""

from collections.abc import Sequence
from html import escape

import torch
from jaxtyping import Float
from torch import Tensor

from groundup.core.masks import (
    causal_mask,
    combine_masks,
    masked_softmax,
    padding_mask,
    sliding_window_mask,
)
from live import Figure, names_of, percent, sentence, shown, table

MOST = 8
"""Most tokens; the columns of more would not fit on a phone."""


def show(
    scores: Float[Tensor, "length length"],
    pieces: Sequence[str],
    *,
    num_real: int,
    window: int,
    prefix: int,
    name: str,
) -> Figure:
    """Make masks switchable. Causal, window and padding are on at first.

    Args:
        scores: How well each query (row) matches each key, before any mask.
        pieces: The text of each token, fillers among them.
        num_real: How many tokens are no fillers; these stand first.
        window: How wide the sliding window is at first, in tokens.
        prefix: How long the prefix is at first, in tokens.
        name: Small letters, digits and hyphens; tells several figures of a page apart.

    Raises:
        ValueError: If there are too many tokens or too few, if scores and tokens do not fit, or
            if a mask does not fit the tokens.

    """
    length = len(pieces)
    if not 2 <= length <= MOST or scores.shape != (length, length):
        raise ValueError(
            f"scores must be a square for from 2 to {MOST} tokens, "
            f"got shape {tuple(scores.shape)} for {length} tokens"
        )
    sizes = {"num_real": num_real, "window": window, "prefix": prefix}
    for what, size in sizes.items():
        if not 1 <= size <= length:
            raise ValueError(f"{what} must be from 1 to {length} tokens, got {what}={size}")
    masks = (
        causal_mask(length),
        sliding_window_mask(length, window),
        padding_mask(torch.tensor([num_real]), length)[0, 0],
    )
    allowed = combine_masks(*masks)
    assert allowed is not None
    weights = masked_softmax(scores, allowed).tolist()
    names = names_of(pieces)
    query = num_real - 1
    data = {
        "names": names,
        "scores": scores.tolist(),
        "query": query,
        "numReal": num_real,
        "window": window,
        "prefix": prefix,
    }
    rows = []
    for piece, row, may in zip(pieces, weights, allowed.tolist(), strict=True):
        cells = [_cell(*pair) for pair in zip(row, may, strict=True)]
        rows.append([escape(shown(piece)), *cells, f"{sum(row):.2f}"])
    caption = "Weights in percent: rows are queries, columns are keys, – is hidden"
    map_ = table(["", *map(shown, pieces), "sum"], rows, caption)
    content = (
        sentence(_said(names, weights, allowed.tolist(), query))
        + f'<div class="masking-map">{map_}</div>\n'
    )
    return Figure("masking", name, data, content, "Masks to switch on and off.")


def _cell(weight: float, is_allowed: bool) -> str:
    if not is_allowed:
        return '<td class="masking-hidden">–</td>'
    return f'<td style="--weight: {weight:.4f}">{percent(weight)[:-2]}</td>'


def _said(
    names: list[str], weights: list[list[float]], allowed: list[list[bool]], query: int
) -> str:
    keys = [key for key, may in enumerate(allowed[query]) if may]
    looks = ", ".join(f"{names[key]} {percent(weights[query][key])}" for key in keys)
    empty = [name for name, row in zip(names, allowed, strict=True) if not any(row)]
    said = f"{names[query]} may look at {len(keys)} of {len(names)} keys: {looks}."
    if not empty:
        return f"{said} No row is empty."
    return f"{said} Empty rows: {', '.join(empty)}."
