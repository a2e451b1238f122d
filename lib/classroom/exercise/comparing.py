"""Compares results, and describes in a sentence how they differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

RELATIVE_TOLERANCE = 1e-6
ABSOLUTE_TOLERANCE = 1e-8
_BUCKETS = 32
# Of so few different numbers, some relation holds by chance.
_FEW = 4


@dataclass(frozen=True)
class Sketch:
    """A summary of a large tensor by which it can be recognised.

    Attributes:
        dtype: Its dtype, such as `torch.float64`.
        shape: Its shape.
        sums: 32 sums of its entries with pseudo-random signs.

    """

    dtype: str
    shape: tuple[int, ...]
    sums: Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> "Sketch":
        """Sketch a tensor."""
        return cls(str(tensor.dtype), tuple(tensor.shape), _sums(tensor))

    def is_of(self, tensor: Any, tolerance: float | None = None) -> bool:
        """Return whether this may be the sketch of a tensor, up to rounding or a tolerance."""
        if not isinstance(tensor, Tensor) or tuple(tensor.shape) != self.shape:
            return False
        if tolerance is None and str(tensor.dtype) != self.dtype:
            return False
        relative = RELATIVE_TOLERANCE if tolerance is None else tolerance
        absolute = ABSOLUTE_TOLERANCE if tolerance is None else tolerance
        largest = _sums(tensor, has_signs=False)
        allowed = relative * largest + absolute * (tensor.numel() / _BUCKETS)
        return bool(((_sums(tensor) - self.sums).abs() <= allowed).all())


def _sums(tensor: Tensor, has_signs: bool = True) -> Tensor:
    """Sum entries by bucket; NaN and infinities count as fixed, unusual numbers."""
    numbers = tensor.detach().double().flatten().nan_to_num(1234.5, 54321.0, -98765.0)
    order = torch.arange(len(numbers)) * 40503 % 65521  # by two primes
    signs = 1.0 - 2.0 * (order // _BUCKETS % 2)
    sums = torch.zeros(_BUCKETS, dtype=torch.float64)
    return sums.index_add(0, order % _BUCKETS, numbers * signs if has_signs else numbers.abs())


def same(a: Any, b: Any, tolerance: float | None = None) -> bool:
    """Return whether two results are equal in kind, shape, dtype and, up to rounding, numbers.

    Args:
        a: A result.
        b: Another one.
        tolerance: Absolute and relative tolerance, for exercises that leave the precision to the
            code under test; dtypes may then differ too. By default only rounding is tolerated.

    """
    if isinstance(a, Sketch) and isinstance(b, Sketch):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and close(a.sums, b.sums)
    if isinstance(a, Sketch) or isinstance(b, Sketch):
        return b.is_of(a, tolerance) if isinstance(b, Sketch) else a.is_of(b, tolerance)
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
    """Return whether two tensors are equal up to rounding or a tolerance; NaN equals NaN."""
    return bool(_is_close(a.double(), b.double(), tolerance).all())


def _is_close(a: Tensor, b: Tensor, tolerance: float | None) -> Tensor:
    relative, absolute = (
        (RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE) if tolerance is None else (tolerance, tolerance)
    )
    return torch.isclose(a, b, rtol=relative, atol=absolute, equal_nan=True)


def wrong_form(
    seen: Any, expected: Sequence[Any], returns: Mapping[str, str], name: str
) -> str | None:
    """Describe how results differ in number, kind, shape or dtype; None if they do not.

    Args:
        seen: What was returned.
        expected: One correct result per entry of `returns`.
        returns: The name of each result and the names of its axes.
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
            if s.device != e.device:
                return f"{label} is on the device {s.device}, expected {e.device}"
            if _family(s.dtype) != _family(e.dtype):
                return f"{label} has dtype {s.dtype}, expected {e.dtype}"
        elif not isinstance(s, (int, float)) and not (isinstance(s, Tensor) and s.numel() == 1):
            return f"{label} should be a number, it is {describe(s)}"
    return None


def differs(label: str, seen: Any, expected: Any, tolerance: float | None = None) -> str | None:
    """Describe how the numbers of two results of the same shape differ; None if they do not.

    NaN equals only NaN. For `tolerance` see `same`.
    """
    seen = torch.as_tensor(seen, dtype=torch.float64)
    expected = torch.as_tensor(expected, dtype=torch.float64)
    if seen.numel() == expected.numel() == 1:
        seen, expected = seen.reshape(()), expected.reshape(())
    if close(seen, expected, tolerance):
        return None
    if seen.dim() == 0:
        shown, wanted = _distinguished(seen, expected)
        return f"{label} is {shown}, expected {wanted}"
    nan = seen.isnan() & ~expected.isnan()
    if nan.any():
        where = _index_of_first(nan)
        return f"{label} holds NaN in {_count(nan)}, first at {where}"
    off = ~_is_close(seen, expected, tolerance)
    # Where both are infinite, or both NaN, the difference is NaN, but nothing is wrong.
    distance = (seen - expected).abs().nan_to_num(float("inf")).where(off, -1.0)
    where = _index(distance, int(distance.argmax()))
    shown, wanted = _distinguished(seen[where], expected[where])
    return (
        f"{label}: wrong in {_count(off)}; furthest at {list(where)}: "
        f"seen {shown}, expected {wanted}{_relation(seen, expected, tolerance)}"
    )


def loses_precision(label: str, seen: Any, args: Sequence[Any]) -> str | None:
    """Say that a result has a narrower floating dtype than all inputs that have one, if so.

    Not of a single number: it may have been one of Python's.
    """
    dtypes = [a.dtype for a in args if isinstance(a, Tensor) and a.dtype.is_floating_point]
    if not dtypes or not isinstance(seen, Tensor) or not seen.dim():
        return None
    if not seen.dtype.is_floating_point:
        return None
    narrowest = min(dtypes, key=lambda dtype: dtype.itemsize)
    if seen.dtype.itemsize >= narrowest.itemsize:
        return None
    return f"{label} has dtype {seen.dtype}, and the inputs have {narrowest}: keep it"


def _relation(seen: Tensor, expected: Tensor, tolerance: float | None) -> str:
    """Say what would make wrong numbers right, or what they lack, if it is simple."""
    if len(expected.unique()) < _FEW:
        return ""
    largest = expected.abs().argmax()
    factor = seen.flatten()[largest] / expected.flatten()[largest]
    shift = (seen - expected).mean()
    mended = {
        "every sign is the wrong one": -seen,
        f"every entry is {number(factor)} times what is expected": seen / factor,
        f"every entry is {number(shift)} more than what is expected": seen - shift,
        **{
            f"in reverse order along axis {n}, it is right": seen.flip(n) for n in range(seen.dim())
        },
        "with its last two axes exchanged, it is right": seen.mT if seen.dim() > 1 else seen,
    }
    for said, right in mended.items():
        if right.shape == expected.shape and close(right, expected, tolerance):
            return f"; {said}"
    return _lost_sum(seen) if _sums_to_one(expected, -1) else ""


def _lost_sum(seen: Tensor) -> str:
    """Say how rows that should be weights are none."""
    if _sums_to_one(seen, -1):
        return ""
    for axis in range(seen.dim() - 1):
        if _sums_to_one(seen, axis):
            return f"; it sums to 1 along axis {axis}, and should along the last one"
    sums = seen.sum(-1).flatten()
    furthest = sums[(sums - 1).abs().argmax()]
    return f"; along the last axis it should sum to 1, and sums to {number(furthest)}"


def _sums_to_one(numbers: Tensor, axis: int) -> bool:
    sums = numbers.sum(axis)
    return close(sums, torch.ones_like(sums))


def _family(dtype: torch.dtype) -> str:
    """Return the kind of a dtype: boolean, integer or floating point."""
    if dtype is torch.bool:
        return "bool"
    return "float" if dtype.is_floating_point else "int"


def _count(flags: Tensor) -> str:
    return f"{int(flags.sum())} of {flags.numel()} entries"


def _index(tensor: Tensor, flat: int) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, tensor.shape))


def _index_of_first(flags: Tensor) -> list[int]:
    return flags.nonzero()[0].tolist()


def number(value: Tensor | float) -> str:
    """Return a number with four significant digits, a whole one below 1e15 with all of them."""
    if isinstance(value, int):
        return str(value)
    value = float(value)
    return f"{value:.0f}" if value.is_integer() and 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def _distinguished(seen: Tensor, expected: Tensor) -> tuple[str, str]:
    """Return two numbers with four significant digits, or ten if they look the same."""
    if number(seen) != number(expected):
        return number(seen), number(expected)
    return f"{float(seen):.10g}", f"{float(expected):.10g}"


def describe(value: Any) -> str:
    """Describe the kind of a result."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if value is None:
        return "None (is there a return?)"
    return f"{type(value).__name__} {value!r}"[:80]
