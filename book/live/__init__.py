"""Figures that compute: a reader moves something, and the page works out what becomes of it.

One module for each of them, with a function `show` to be called in the last line of a cell:

    from live import masking

    masking.show(scores, pieces, num_real=5, window=3, prefix=3, name="masks")

- `masking`: what masks and their combinations leave of a row of scores.
- `positions`: what a score owes to places, and what to distances alone.
- `sampling`: what temperature, top-k and top-p make of a distribution, and draws from it.
- `caching`: what is computed and what is kept, token by token.

(`explorer`, which lies beside this folder, is the fifth.) What goes into a page are numbers that
groundup has computed. `_static/live.js` has what the scripts share, `_static/live-KIND.js` works
one figure out again when it is changed; tests compare its numbers with groundup's in a browser.

Rules for each of them. Without its script a table and a sentence stand there that say the same.
Everything is reached by the keyboard, by inputs as browsers make them. What changes is said in a
sentence that screen readers announce, and stands in a table. Nothing moves by itself, nothing is
fetched. Colours are those of `plotstyle`.
"""

import base64
import html
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class Figure:
    """What a cell gives back: a piece of a page, and what its script needs.

    Args:
        kind: Which script wakes it up; a class of the piece.
        name: Small letters, digits and hyphens; tells several figures of a page apart.
        data: What the script needs, as JSON can write it.
        content: The HTML that stands there without a script.
        about: Said where there is no browser.

    Raises:
        ValueError: If the name is none.

    """

    def __init__(self, kind: str, name: str, data: dict[str, Any], content: str, about: str):
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
            raise ValueError(f"name must be small letters, digits and hyphens, got name={name!r}")
        # A "<" in a text must not end the script; JSON may spell it as a number.
        encoded = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
        self._page = (
            f'<div class="live {kind} mathjax_ignore tex2jax_ignore" id="{kind}-{name}">\n'
            f'<script type="application/json">{encoded}</script>\n{content}</div>\n'
        )
        self._about = about

    def _repr_html_(self) -> str:
        return self._page

    def __repr__(self) -> str:
        return f"{self._about} (It needs a browser.)"


def sentence(said: str) -> str:
    """Write the sentence that changes with the figure, and is announced when it does."""
    return f'<p class="live-says" aria-live="polite">{html.escape(said)}</p>\n'


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str = "",
    groups: Mapping[str, int] | None = None,
) -> str:
    """Write a table.

    Args:
        head: Names of the columns; an empty one names nothing.
        rows: HTML of the cells, without their tags or with those of a `td`; the first of a row
            names it.
        caption: What the table shows, if nothing else says so.
        groups: Names over the columns, after the first, each with the number of columns it spans.

    """
    over = "".join(
        f'<th scope="colgroup" colspan="{span}">{html.escape(name)}</th>'
        for name, span in (groups or {}).items()
    )
    over = f"<tr><td></td>{over}</tr>\n" if groups else ""
    names = "".join(
        f'<th scope="col">{html.escape(name)}</th>' if name else "<td></td>" for name in head
    )
    lines = "".join(
        f'<tr><th scope="row">{first}</th>'
        + "".join(cell if cell.startswith("<td") else f"<td>{cell}</td>" for cell in rest)
        + "</tr>\n"
        for first, *rest in rows
    )
    title = f"<caption>{html.escape(caption)}</caption>\n" if caption else ""
    return (
        f"<table>\n{title}<thead>{over}<tr>{names}</tr></thead>\n<tbody>{lines}</tbody>\n</table>\n"
    )


def packed(numbers: Tensor) -> str:
    """Write numbers in 32 bits as base64, so that a script has every bit of them."""
    return base64.b64encode(numbers.to(torch.float32).numpy().astype("<f4").tobytes()).decode()


def percent(share: float) -> str:
    return f"{math.floor(100 * share + 0.5)}\N{NO-BREAK SPACE}%"


def names_of(pieces: Sequence[str]) -> list[str]:
    """Call each token so that a sentence can speak of it, and of several that are spelled alike."""
    plain = [quoted(piece) for piece in pieces]
    times, seen, names = Counter(plain), Counter(), []
    for name in plain:
        seen[name] += 1
        names.append(f"{name} ({_ordinal(seen[name])})" if times[name] > 1 else name)
    return names


def quoted(piece: str) -> str:
    if piece.strip():
        return f"‘{piece.strip()}’"
    return "line break" if "\n" in piece else "space"


def shown(piece: str) -> str:
    """Give what is printed for a token: never nothing."""
    return piece.strip() or ("↵" if "\n" in piece else "␣")


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10)
    return f"{number}{ending or 'th'}"
