"""Compares results, and says in a sentence how they differ."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

RELATIVE_TOLERANCE = 1e-6
ABSOLUTE_TOLERANCE = 1e-8


def same(a: Any, b: Any, tolerance: float | None = None) -> bool:
    """Say whether two results are equal in kind, shape, dtype and, up to rounding, numbers.

    Args:
        a: A result.
        b: Another one.
        tolerance: How far apart numbers may be, absolutely and relatively, where precision is
            left to the code under test: then dtypes may differ, too. By default only rounding
            is forgiven.

    """
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        alike = a.shape == b.shape and (tolerance is not None or a.dtype == b.dtype)
        return alike and close(a, b, tolerance)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        pairs = zip(a, b, strict=False)
        return len(a) == len(b) and all(same(x, y, tolerance) for x, y in pairs)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k], tolerance) for k in a)
    if isinstance(a, float) and isinstance(b, float):
        a, b = (torch.tensor(number, dtype=torch.float64) for number in (a, b))
        return close(a, b, tolerance)
    return type(a) is type(b) and a == b


def close(a: Tensor, b: Tensor, tolerance: float | None = None) -> bool:
    """Say whether two tensors are equal up to rounding, or a tolerance; NaN equals NaN."""
    return bool(_is_close(a.double(), b.double(), tolerance).all())


def _is_close(a: Tensor, b: Tensor, tolerance: float | None) -> Tensor:
    relative, absolute = (
        (RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE) if tolerance is None else (tolerance, tolerance)
    )
    return torch.isclose(a, b, rtol=relative, atol=absolute, equal_nan=True)


def wrong_form(
    seen: Any, expected: Sequence[Any], returns: Mapping[str, str], name: str
) -> str | None:
    """Say how results differ in number, kind, shape or dtype; None if they do not.

    Args:
        seen: What was returned.
        expected: One right result per entry of `returns`.
        returns: The name of each result and the words of its axes.
        name: The function that returned it.

    """
    labels = list(returns)
    if len(labels) > 1 and not (isinstance(seen, (tuple, list)) and len(seen) == len(labels)):
        return f"`{name}` should return ({', '.join(labels)}), it returned {describe(seen)}"
    for label, s, e in zip(labels, seen, expected, strict=True):
        if isinstance(e, Tensor):
            if isinstance(s, (int, float)) and e.dim() == 0:
                continue
            if not isinstance(s, Tensor):
                return f"{label} should be a tensor, it is {describe(s)}"
            if s.shape != e.shape:
                axes = f" = ({', '.join(returns[label].split())})" if returns[label] else ""
                return f"{label} has shape {tuple(s.shape)}, expected {tuple(e.shape)}{axes}"
            if _family(s.dtype) != _family(e.dtype):
                return f"{label} has dtype {s.dtype}, expected {e.dtype}"
        elif not isinstance(s, (int, float)) and not (isinstance(s, Tensor) and s.numel() == 1):
            return f"{label} should be a number, it is {describe(s)}"
    return None


def differs(label: str, seen: Any, expected: Any, tolerance: float | None = None) -> str | None:
    """Say how the numbers of two results of one shape differ; None if they do not.

    NaN never passes for a number. What `tolerance` forgives is said at `same`.
    """
    seen = torch.as_tensor(seen, dtype=torch.float64)
    expected = torch.as_tensor(expected, dtype=torch.float64)
    if seen.numel() == expected.numel() == 1:
        seen, expected = seen.reshape(()), expected.reshape(())
    if close(seen, expected, tolerance):
        return None
    if seen.dim() == 0:
        told, wanted = _told_apart(seen, expected)
        return f"{label} is {told}, expected {wanted}"
    nan = seen.isnan() & ~expected.isnan()
    if nan.any():
        where = _index_of_first(nan)
        return f"{label} holds NaN in {_share(nan)}, first at {where}"
    off = ~_is_close(seen, expected, tolerance)
    # Where both are infinite, or both NaN, the difference is no number, and nothing is wrong.
    distance = (seen - expected).abs().nan_to_num(float("inf")).where(off, -1.0)
    where = _index(distance, int(distance.argmax()))
    told, wanted = _told_apart(seen[where], expected[where])
    return (
        f"{label}: wrong in {_share(off)}; furthest at {list(where)}: "
        f"seen {told}, expected {wanted}"
    )


def _family(dtype: torch.dtype) -> str:
    """Say what a number of this dtype means: a truth, a count or index, or a quantity."""
    if dtype is torch.bool:
        return "bool"
    return "float" if dtype.is_floating_point else "int"


def _share(flags: Tensor) -> str:
    return f"{int(flags.sum())} of {flags.numel()} places"


def _index(tensor: Tensor, flat: int) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, tensor.shape))


def _index_of_first(flags: Tensor) -> list[int]:
    return flags.nonzero()[0].tolist()


def number(value: Tensor | float) -> str:
    """Return a number with four digits, a whole number with all of them."""
    if isinstance(value, int):
        return str(value)
    return f"{float(value):.4g}"


def _told_apart(seen: Tensor, expected: Tensor) -> tuple[str, str]:
    """Return two numbers with four digits, or with as many as it takes to see a difference."""
    if number(seen) != number(expected):
        return number(seen), number(expected)
    return f"{float(seen):.10g}", f"{float(expected):.10g}"


def describe(value: Any) -> str:
    """Say what kind of thing a result is."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if value is None:
        return "None (is there a return?)"
    return f"{type(value).__name__} {value!r}"[:80]
