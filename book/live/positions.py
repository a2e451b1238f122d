"""One query and one key at two positions, moved together and apart: what becomes of their score.

    positions.show(query, key, slope=1 / 16, places=(40, 33), shift=64, furthest=192, name="doors")

Three ways to bring positions into a score are computed for the same query and key: sinusoids added
to both (with the four parts of the product), both rotated, and a bias that falls with distance.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from groundup.core.positions import rotate, sinusoidal_table
from live import Figure, packed, sentence, table

PARTS = ("what, what", "what, where", "where, what", "where, where")
WAYS = ("sinusoids added", "rotated (rotary)", "linear bias")


def show(
    query: Float[Tensor, " d_head"],
    key: Float[Tensor, " d_head"],
    *,
    slope: float,
    places: tuple[int, int],
    shift: int,
    furthest: int,
    name: str,
) -> Figure:
    """Make places movable.

    Args:
        query: Of one head, without a place.
        key: Of the same head, without a place.
        slope: Of the linear bias, per token.
        places: Of query and key at first, below 64, counted from 0.
        shift: By how many tokens they are moved on at first.
        furthest: By how many tokens they can be moved on.
        name: Small letters, digits and hyphens; tells several figures of a page apart.

    Raises:
        ValueError: If query and key are not of one even width, or if a place or the shift is out
            of reach.

    """
    if query.shape != key.shape or query.dim() != 1 or len(query) % 2:
        raise ValueError(
            "query and key must be two vectors of one even width, "
            f"got shapes {tuple(query.shape)} and {tuple(key.shape)}"
        )
    if not all(0 <= place < 64 for place in places) or not 0 <= shift <= furthest:
        raise ValueError(
            "places must be from 0 to 63 and the shift from 0 to furthest, "
            f"got places={places}, shift={shift}, furthest={furthest}"
        )
    i, j = places
    states = [
        scores_at(query, key, slope, *pair)
        for pair in ((i, j), (i + shift, j + shift), (i + shift, j))
    ]
    data = {
        "query": packed(query),
        "key": packed(key),
        "slope": slope,
        "places": list(places),
        "shift": shift,
        "furthest": furthest,
    }
    rows = [[part, *(_number(state[part]) for state in states)] for part in states[0]]
    head = ["score", "start", "both moved", "query moved"]
    content = sentence(_said(states, *places, shift)) + table(head, rows)
    about = "A query and a key that can be moved, and their score."
    return Figure("positions", name, data, content, about)


def scores_at(
    query: Float[Tensor, " d_head"], key: Float[Tensor, " d_head"], slope: float, i: int, j: int
) -> dict[str, float]:
    """Score a query at place `i` with a key at place `j`, in each way.

    All scores are divided by the root of `d_head`. The four parts add up to the first way.
    """
    root = math.sqrt(len(query))
    rows = sinusoidal_table(max(i, j) + 1, len(query))
    products = (query @ key, query @ rows[j], rows[i] @ key, rows[i] @ rows[j])
    parts = {part: product.item() / root for part, product in zip(PARTS, products, strict=True)}
    turned = (
        rotate(vector[None], torch.tensor([place]))[0] for vector, place in ((query, i), (key, j))
    )
    added = sum(parts.values())
    rotary = torch.dot(*turned).item() / root
    biased = parts[PARTS[0]] - slope * abs(i - j)
    return parts | dict(zip(WAYS, (added, rotary, biased), strict=True))


def _number(score: float) -> str:
    return f"{score:.2f}".replace("-0.00", "0.00").replace("-", "−")


def _said(states: list[dict[str, float]], i: int, j: int, shift: int) -> str:
    start, both, one = ([_number(state[way]) for way in WAYS] for state in states)
    kept = [
        f"{way} {a}" + (" stays" if a == b else f" becomes {b}")
        for way, a, b in zip(WAYS, start, both, strict=True)
    ]
    apart = ", ".join(f"{way} {b}" for way, b in zip(WAYS, one, strict=True))
    return (
        f"Query at {i}, key at {j}. Both shifted by {shift}: {', '.join(kept)}. "
        f"The query alone moved on, to a distance of {abs(i + shift - j)}: {apart}."
    )
