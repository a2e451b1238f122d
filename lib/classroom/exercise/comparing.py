"""Compares results, and describes in a sentence how they differ."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
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
# Relative to the median size: what looks like rounding, and is too large for it.
_NEARLY = 2e-3
NEARLY_CORRECT = (
    "; nearly correct: is a small number added that should not be (an epsilon), something "
    "rounded, computed in float32, or approximated?"
)


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
    seen: Any,
    expected: Sequence[Any],
    returns: Mapping[str, str],
    name: str,
    sizes: Mapping[str, int] | None = None,
) -> str | None:
    """Describe how results differ in number, kind, shape or dtype; None if they do not.

    Args:
        seen: What was returned.
        expected: One correct result per entry of `returns`.
        returns: The name of each result and the names of its axes.
        name: The function that returned it.
        sizes: Sizes of the inputs by name: an axis too many may be one of them.

    """
    labels = list(returns)
    if len(labels) > 1 and not (isinstance(seen, (tuple, list)) and len(seen) == len(labels)):
        return f"`{name}` should return ({', '.join(labels)}); it returned {describe(seen)}"
    if order := _another_order(seen, expected):
        returned = ", ".join(labels[i] for i in order)
        return f"`{name}` should return ({', '.join(labels)}), but returns them as ({returned})"
    for label, s, e in zip(labels, seen, expected, strict=True):
        if isinstance(e, Tensor):
            if isinstance(s, (int, float)) and e.dim() == 0:
                continue
            if not isinstance(s, Tensor):
                return f"{label} should be a tensor; it is {describe(s)}"
            if s.shape != e.shape:
                axes = f" = ({', '.join(returns[label].split())})" if returns[label] else ""
                said = f"{label} has shape {tuple(s.shape)}, expected {tuple(e.shape)}{axes}"
                names = returns[label].split()
                return said + (
                    _reduced(s, e) or _kept_axes(s, e, names, sizes) or _shapes_apart(s, e, names)
                )
            if s.device != e.device:
                return f"{label} is on the device {s.device}, expected {e.device}"
            if _family(s.dtype) != _family(e.dtype):
                return f"{label} has dtype {s.dtype}, expected {e.dtype}{_kinds_apart(s, e)}"
        elif not isinstance(s, (int, float)) and not (isinstance(s, Tensor) and s.numel() == 1):
            return f"{label} should be a number; it is {describe(s)}"
    return None


def _another_order(seen: Any, expected: Sequence[Any]) -> tuple[int, ...] | None:
    """Return which of several right results stands in each place, if they stand in others."""
    if not 1 < len(expected) <= _FEW:
        return None
    for order in itertools.permutations(range(len(expected))):
        if all(same(s, expected[i]) for s, i in zip(seen, order, strict=True)):
            is_in_order = all(same(s, e) for s, e in zip(seen, expected, strict=True))
            return None if is_in_order else order
    return None


def _reduced(seen: Tensor, expected: Tensor) -> str:
    """Say that numbers are the right ones in another shape, or summed or averaged over an axis."""
    if not seen.is_floating_point() or not expected.is_floating_point():
        return ""
    seen, expected = seen.detach().double(), expected.detach().double()
    if len(expected.unique()) < _FEW:
        return ""
    if seen.numel() == expected.numel() and seen.dim() != expected.dim():
        is_same = close(seen.flatten(), expected.flatten())
        is_stretched = seen.squeeze().shape != expected.squeeze().shape
        return ": the numbers are correct, but in another shape" if is_same and is_stretched else ""
    for axis in range(expected.dim()):
        made = {
            "summed": expected.sum(axis),
            "averaged": expected.mean(axis),
            "reduced to the first entry": expected.select(axis, 0),
            "reduced to the last entry": expected.select(axis, -1),
        }
        for said, wrong in made.items():
            if seen.shape == wrong.shape and close(seen, wrong):
                return f": the numbers are correct, but {said} along axis {axis}"
    for said, wrong in {"summed": expected.sum(), "averaged": expected.mean()}.items():
        if not seen.dim() and close(seen, wrong):
            return f": the numbers are correct, but {said} over everything"
    return ""


def _kept_axes(
    seen: Tensor, expected: Tensor, axes: Sequence[str], sizes: Mapping[str, int] | None
) -> str:
    """Say which axes should not be there, and whether it is correct without them."""
    count = seen.dim() - expected.dim()
    for kept in itertools.combinations(range(seen.dim()), max(count, 0)):
        rest = [size for axis, size in enumerate(seen.shape) if axis not in kept]
        if not kept or rest != list(expected.shape) or 1 in (seen.shape[axis] for axis in kept):
            continue
        named = {
            seen.shape[axis]: [
                name
                for name, size in (sizes or {}).items()
                if size == seen.shape[axis] and name not in axes
            ]
            for axis in kept
        }
        known = [f"{size} is the size of {' or '.join(n)}" for size, n in named.items() if n]
        which = f" ({', '.join(known)})" if known else ""
        numbers, right = seen.detach().double(), expected.detach().double()
        for done, made in (("averaged", numbers.mean(kept)), ("summed", numbers.sum(kept))):
            if seen.is_floating_point() and close(made, right):
                return f": {done} along {_axes_in_words(kept)}{which}, it is correct"
        return f": {_axes_in_words(kept)} should not be there{which}; reduce over it, or index it"
    return ""


def _axes_in_words(axes: Sequence[int]) -> str:
    return ("axis " if len(axes) == 1 else "the axes ") + " and ".join(map(str, axes))


def _shapes_apart(seen: Tensor, expected: Tensor, axes: Sequence[str]) -> str:
    """Say what is simple about the difference of two shapes."""
    if seen.squeeze().shape == expected.squeeze().shape and seen.dim() != expected.dim():
        if seen.dim() > expected.dim():
            return (
                ": an axis of size 1 is left over (is keepdim=True, or None in an index, needed?)"
            )
        return ": an axis of size 1 is missing (keepdim=True, or unsqueeze; squeeze() cuts all)"
    if sorted(seen.shape) == sorted(expected.shape):
        return ": the axes are in another order"
    names = axes if len(axes) == expected.dim() else [str(n) for n in range(expected.dim())]
    if not seen.dim():
        return ": a single number (was everything summed or averaged?)"
    if seen.dim() + 1 == expected.dim():
        for n, axis in enumerate(names):
            if seen.shape == expected.shape[:n] + expected.shape[n + 1 :]:
                return (
                    f": there is no axis for {axis} (was it summed or averaged away, or indexed?)"
                )
    if seen.dim() == expected.dim():
        off = [n for n, (s, e) in enumerate(zip(seen.shape, expected.shape, strict=True)) if s != e]
        if len(off) == 1 and abs(by := seen.shape[off[0]] - expected.shape[off[0]]) == 1:
            return f": one too {'many' if by > 0 else 'few'} along {names[off[0]]}"
    return ""


def _kinds_apart(seen: Tensor, expected: Tensor) -> str:
    """Say what the dtypes of two results tell."""
    if expected.dtype is torch.bool:
        return ": True and False are asked for, not numbers"
    if not expected.dtype.is_floating_point and seen.dtype.is_floating_point:
        return ": integers are asked for, such as indices or counts"
    return ""


def differs(
    label: str,
    seen: Any,
    expected: Any,
    tolerance: float | None = None,
    axes: Sequence[str] = (),
    sizes: Mapping[str, int] | None = None,
    given: Mapping[str, Any] | None = None,
) -> str | None:
    """Describe how the numbers of two results of the same shape differ; None if they do not.

    NaN equals only NaN. For `tolerance` see `same`.

    Args:
        label: The name of the result.
        seen: What was returned.
        expected: What is right.
        tolerance: As in `same`.
        axes: The names of the axes.
        sizes: Sizes of the inputs by name: a factor may be one of them.
        given: The inputs by name: one may be added or multiplied once too often, or not at all.

    """
    plain = {n: v for n, v in (given or {}).items() if type(v) is int}
    sizes = {**plain, **(sizes or {})}
    dtype = expected.dtype if isinstance(expected, Tensor) else torch.float64
    is_mask = dtype is torch.bool
    written = _written_for_infinity(seen, expected)
    seen = torch.as_tensor(seen, dtype=torch.float64)
    expected = torch.as_tensor(expected, dtype=torch.float64)
    if seen.numel() == expected.numel() == 1:
        seen, expected = seen.reshape(()), expected.reshape(())
    if close(seen, expected, tolerance):
        return None
    if seen.dim() == 0:
        shown, wanted = _distinguished(seen, expected)
        relation = written or _relation_of_one(seen, expected, sizes)
        return f"{label} is {shown}, expected {wanted}{relation}"
    nan = seen.isnan() & ~expected.isnan()
    if nan.any():
        where = _index_of_first(nan)
        return f"{label} holds NaN in {_count(nan)}, first at {where}"
    off = ~_is_close(seen, expected, tolerance)
    # Where both are infinite, or both NaN, the difference is NaN, but nothing is wrong.
    distance = (seen - expected).abs().nan_to_num(float("inf")).where(off, -1.0)
    where = _index(distance, int(distance.argmax()))
    shown, wanted = _distinguished(seen[where], expected[where])
    if is_mask:
        shown, wanted = str(bool(seen[where])), str(bool(expected[where]))
    said = f"{label}: wrong in {_count(off)}; furthest off at {list(where)}: "
    said += f"seen {shown}, expected {wanted}"
    relation = (
        (is_mask and _flags_apart(seen, expected))
        or _inverse(seen, expected)
        or _relation(seen, expected, tolerance, sizes)
        or _with_an_input(seen, expected, given or {}, sizes)
        or _nearly(seen, expected)
        or _moved(seen, expected, tolerance)
        or _rows(seen, expected, axes)
        or _by_row(seen, expected)
    )
    striking = _as_a_whole(seen, expected) if dtype.is_floating_point else ""
    return said + (relation or (written or striking) + _place(off, axes))


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
    return f"{label} has dtype {seen.dtype}, but the inputs have {narrowest}: keep their dtype"


def _relation(
    seen: Tensor, expected: Tensor, tolerance: float | None, sizes: Mapping[str, int] | None
) -> str:
    """Say what would make wrong numbers right, or what they lack, if it is simple."""
    if _are_few(expected):
        return ""
    largest = expected.abs().argmax()
    factor = seen.flatten()[largest] / expected.flatten()[largest]
    shift = (seen - expected).mean()
    shifted = f"{number(shift.abs())} {'more' if shift > 0 else 'less'} than what is expected"
    mended = {
        "every sign is wrong": -seen,
        # Not where one entry is wrong, and the correct ones stay so within the tolerance.
        f"every entry is {number(factor)} times what is expected{_in_sizes(factor, sizes)}": (
            seen / factor if _all_near(seen - expected, (factor - 1) * expected) else seen
        ),
        f"every entry is {shifted}": seen - shift if _all_near(seen - expected, shift) else seen,
        **{
            f"in reverse order along axis {n}, it is correct": seen.flip(n)
            for n in range(seen.dim())
        },
        "with its last two axes exchanged, it is correct": seen.mT if seen.dim() > 1 else seen,
        **{f"{relation} what is expected": undo(seen) for relation, undo in _UNDONE.items()},
        "a softmax along the last axis makes it correct": seen.softmax(-1),
        "the logarithm of its softmax is correct": seen.log_softmax(-1),
        "divided by its sum along the last axis, it is correct": seen / seen.sum(-1, keepdim=True),
    }
    for said, right in mended.items():
        if right.shape == expected.shape and close(right, expected, tolerance):
            return f"; {said}"
    made = {said: make(expected) for said, make in _MADE.items()}
    for said, wrong in made.items():
        if close(seen, wrong, tolerance) and not close(expected, wrong, tolerance):
            return f"; it is {said} of what is expected"
    return _lost_sum(seen) if _sums_to_one(expected, -1) else ""


def _all_near(differences: Tensor, wanted: Tensor) -> bool:
    rest = (differences - wanted).abs()
    return bool((rest <= 0.5 * wanted.abs() + ABSOLUTE_TOLERANCE).all())


_UNDONE: dict[str, Callable[[Tensor], Tensor]] = {
    "it is the logarithm of": torch.exp,
    "it is the exponential of": torch.log,
    "it is the square of": torch.sqrt,
    "it is the square root of": torch.square,
    "it is 1 divided by": torch.reciprocal,
    "it is 1 minus": lambda seen: 1 - seen,
}


_MADE: dict[str, Callable[[Tensor], Tensor]] = {
    "the softmax along the last axis": lambda right: right.softmax(-1),
    "the softmax along the second-to-last axis": lambda right: (
        right.softmax(-2) if right.dim() > 1 else right
    ),
    "the logarithm of the softmax": lambda right: right.log_softmax(-1),
    "the positive part (negative numbers set to 0)": torch.relu,
    "the absolute value": torch.abs,
    "the nearest integer": torch.round,
    "the running sum along the last axis": lambda right: right.cumsum(-1),
    "the normalised version (length 1 along the last axis)": lambda right: (
        right / right.norm(dim=-1, keepdim=True)
    ),
}


def _relation_of_one(seen: Tensor, expected: Tensor, sizes: Mapping[str, int] | None) -> str:
    """Say what a wrong number is to the right one, if it is simple."""
    if not bool(seen.isfinite() & expected.isfinite()) or not seen or not expected:
        return ""
    if close(-seen, expected):
        return "; the sign is wrong"
    factor = seen / expected
    for said, bits in (
        ("it is counted in bits", 1 / math.log(2)),
        ("ln 2 is on the wrong side of the fraction", math.log(2) ** 2),
    ):
        if close(factor, torch.tensor(bits, dtype=torch.float64)):
            return f"; {said}"
    if said := _in_sizes(factor, sizes):
        return f"; {number(factor)} times as much{said}"
    for times, said in ((factor, "{} times"), (1 / factor, "1/{} of")):
        whole = times.round()
        if 1 < whole <= _BUCKETS and close(times, whole) and not _is_plain(seen, expected):
            return f"; it is {said.format(int(whole))} what is expected"
    for relation, undo in _UNDONE.items():
        if close(undo(seen), expected) and not _is_plain(seen, expected):
            return f"; {relation} what is expected"
    return _nearly(seen, expected)


def _is_plain(seen: Tensor, expected: Tensor) -> bool:
    """Return whether two numbers are so small and round that they are related by chance."""
    return all(float(n).is_integer() and abs(n) <= 10 for n in (seen, expected))


def _in_sizes(factor: Tensor, sizes: Mapping[str, int] | None) -> str:
    """Say which sizes of the inputs a factor is, or the roots of which."""
    powers = {}
    for name, size in (sizes or {}).items():
        if size > 1:
            powers[name], powers[f"1 / {name}"] = size, 1 / size
            powers[f"the square root of {name}"] = size**0.5
            powers[f"1 / the square root of {name}"] = size**-0.5
    alike = [said for said, p in powers.items() if close(factor, torch.tensor(p).double())]
    return f" (which is {', or '.join(alike)})" if alike else ""


def _rows(seen: Tensor, expected: Tensor, axes: Sequence[str]) -> str:
    """Say that what is wrong along an axis is right in other places of it."""
    if bool((expected == expected.round()).all()) and expected.dim() < 2:
        return ""
    for axis in range(seen.dim()):
        mine, right = (t.movedim(axis, 0).reshape(t.shape[axis], -1) for t in (seen, expected))
        if not 2 <= len(mine) <= _BUCKETS or len(right.unique()) < _FEW // 2:
            continue
        held: dict[int, int | None] = {}
        for n, row in enumerate(mine):
            alike = _is_close(row, right, None).all(-1).tolist()
            if not alike[n]:
                held[n] = alike.index(True) if True in alike else None
                if held[n] is None:
                    break
        if None in held.values() or len(held) == len(mine) and len(set(held.values())) == 1:
            continue
        along = axes[axis] if len(axes) == seen.dim() else f"axis {axis}"
        said = ", ".join(f"{n} holds what belongs at {m}" for n, m in list(held.items())[:_FEW])
        return f"; along {along}, {said}" + (" …" if len(held) > _FEW else "")
    return ""


def _moved(seen: Tensor, expected: Tensor, tolerance: float | None) -> str:
    """Say that all entries stand one place beside their own."""
    for axis in range(seen.dim()):
        size = seen.shape[axis] - 1
        if size < _FEW // 2:
            continue
        for said, here, there in (("late", 1, 0), ("early", 0, 1)):
            if close(seen.narrow(axis, here, size), expected.narrow(axis, there, size), tolerance):
                rest = seen.select(axis, -there), expected.select(axis, -here)
                end = ("last", "first") if here else ("first", "last")
                around = f", and the {end[0]} is {end[1]}" if close(*rest, tolerance) else ""
                return f"; everything is one position too {said} along axis {axis}{around}"
    return ""


def _by_row(seen: Tensor, expected: Tensor) -> str:
    """Say that the numbers along an axis are right but for a factor or a shift of their own."""
    if not bool(seen.isfinite().all() & expected.isfinite().all()):
        return ""
    for axis in reversed(range(seen.dim())):
        if seen.shape[axis] < _FEW - 1 or seen.dim() < 2:
            continue
        largest = expected.abs().argmax(axis, keepdim=True)
        factor = seen.gather(axis, largest) / expected.gather(axis, largest)
        if close(seen / factor, expected):
            return f"; it is correct up to a factor for each line along axis {axis}"
        shift = (seen - expected).mean(axis, keepdim=True)
        if close(seen - shift, expected):
            return f"; it is correct up to a constant added to each line along axis {axis}"
    return ""


def _nearly(seen: Tensor, expected: Tensor) -> str:
    """Say that wrong numbers are nearly right; a wrong count is wrong, however large it is."""
    if bool((seen == seen.round()).all() & (expected == expected.round()).all()):
        return ""
    off, sizes = (seen - expected).abs(), expected[expected != 0].abs()
    # Not of the largest: beside an entry of 1000, one of 0.1 may be wrong by half of it.
    if sizes.numel() and bool(off.isfinite().all() & (off <= _NEARLY * sizes.median()).all()):
        return NEARLY_CORRECT
    return ""


def _with_an_input(
    seen: Tensor, expected: Tensor, given: Mapping[str, Any], sizes: Mapping[str, int]
) -> str:
    """Say that an input is returned, or added or multiplied too often, not at all or too little."""
    parts = {}
    for name, value in given.items():
        parts |= value if isinstance(value, dict) else {name: value}
    extra = seen - expected
    if _are_few(expected) or not bool(extra.isfinite().all()):
        return ""
    for name, value in parts.items():
        if not isinstance(value, Tensor) or not value.is_floating_point():
            continue
        try:
            part = value.detach().double().expand_as(expected)
        except RuntimeError:
            continue
        if _are_few(part) or not bool(part.isfinite().all()):
            continue
        wrong = {
            f"it is `{name}` itself": part,
            f"`{name}` is added, and should not be": expected + part,
            f"`{name}` is not added, and should be": expected - part,
            f"`{name}` is multiplied once too often": expected * part,
            f"it is not multiplied by `{name}`, and should be": expected / part,
        }
        for said, numbers in wrong.items():
            if close(seen, numbers):
                return f"; {said}"
        added = expected - part
        factor = ((seen - part) / added).flatten()[added.abs().argmax()]
        if not _are_few(added) and factor and close(seen - part, factor * added):
            if (times := number(factor)) != "1":
                by = f"{times} times what is expected{_in_sizes(factor, sizes)}"
                return f"; what is added to `{name}` is {by}"
    return ""


def _are_few(numbers: Tensor) -> bool:
    """Return whether there are so few different numbers that a relation may hold by chance."""
    is_whole = bool((numbers == numbers.round()).all())
    return len(numbers.unique()) < _FEW - (not is_whole)


def _as_a_whole(seen: Tensor, expected: Tensor) -> str:
    """Say what is striking about wrong numbers as a whole."""
    if len(expected.unique()) < _FEW:
        return ""
    if len(seen.unique()) == 1:
        return f"; every entry is {number(seen.flatten()[0])}"
    if close(seen.flatten().sort().values, expected.flatten().sort().values):
        return "; the numbers are correct, but in the wrong positions"
    zeros = (seen == 0) & (expected != 0)
    if bool(zeros.any()):
        above = torch.ones_like(zeros).triu(1) if seen.dim() > 1 else ~zeros
        where = " above the diagonal" if bool((zeros == above & (expected != 0)).all()) else ""
        return (
            f"; {_count(zeros)} are exactly 0{where}, and should not be: masked, cut off, or never "
            "written?"
        )
    infinite = seen.isinf() & expected.isfinite()
    if bool(infinite.any()):
        return f"; {_count(infinite)} are infinite, and should not be"
    forgotten = (seen != 0) & (expected == 0)
    if int(forgotten.sum()) > 1:
        return f"; {_count(forgotten)} should be exactly 0, and are not"
    order = seen.flatten().argsort()
    if len(order) > 2 * _FEW and bool(expected.flatten()[order].diff().ge(0).all()):
        return "; the entries are in the correct order of size, but their values are wrong"
    return ""


def _written_for_infinity(seen: Any, expected: Any) -> str:
    """Say that the largest number of a dtype stands where another belongs."""
    seen, expected = torch.as_tensor(seen), torch.as_tensor(expected)
    if not seen.is_floating_point():
        return ""
    largest = torch.finfo(seen.dtype).max
    if not bool(((seen.abs() == largest) & (expected.abs() != largest)).any()):
        return ""
    return (
        f"; {number(largest)} is the largest number of {seen.dtype}, not infinity: nan_to_num "
        "writes it for each infinity, a correct one too, unless told otherwise (posinf=, neginf=)"
    )


def _inverse(seen: Tensor, expected: Tensor) -> str:
    """Say that an order is the inverse of the right one: ranks instead of indices, for instance."""
    counted = torch.arange(seen.shape[-1]).double().expand_as(seen)
    orders = seen.sort(-1).values, expected.sort(-1).values
    if seen.shape[-1] < _FEW or not all(torch.equal(order, counted) for order in orders):
        return ""
    if not torch.equal(seen.gather(-1, expected.long()), counted):
        return ""
    return (
        "; it is the inverse permutation: is asked which one comes first, second, and so on, or at "
        "which place each one comes?"
    )


def _flags_apart(seen: Tensor, expected: Tensor) -> str:
    """Say how a mask is wrong as a whole."""
    if bool((seen != expected).all()):
        return "; True and False are exchanged"
    if seen.dim() > 1 and seen.shape[-1] == seen.shape[-2] and bool((seen.mT == expected).all()):
        return "; with its last two axes exchanged, it is correct"
    many, few = int((seen > expected).sum()), int((seen < expected).sum())
    said = f"; {many} entries are True instead of False, {few} are False instead of True"
    if not (many and few):
        said = f"; all of these are {'True instead of False' if many else 'False instead of True'}"
    if seen.dim() > 1 and seen.shape[-1] <= _BUCKETS // 2:
        at = tuple(_index_of_first(seen != expected)[:-1])
        row, right = (" ".join(str(int(flag)) for flag in t[at]) for t in (seen, expected))
        said += f"; row {list(at)} is {row}, expected {right}"
    return said


def _place(off: Tensor, axes: Sequence[str]) -> str:
    """Say along which axis the wrong entries lie together, if along any."""
    for axis in range(off.dim() if off.dim() > 1 else 0):
        wrong = off.movedim(axis, 0).flatten(1).any(1)
        if bool(wrong.all()) or wrong.numel() < 2:
            continue
        along = axes[axis] if len(axes) == off.dim() else f"axis {axis}"
        at = wrong.nonzero().flatten().tolist()
        right = (~wrong).nonzero().flatten().tolist()
        if len(right) <= len(at):
            return f"; along {along}, only the entries at {_listed(right)} are correct"
        return f"; along {along}, only the entries at {_listed(at)} are wrong"
    return ""


def _listed(places: Sequence[int]) -> str:
    if len(places) > 2 and list(places) == list(range(places[0], places[-1] + 1)):
        return f"{places[0]} to {places[-1]}"
    return ", ".join(map(str, places[:6])) + (" …" if len(places) > 6 else "")


def _lost_sum(seen: Tensor) -> str:
    """Say how rows that should be weights are none."""
    if _sums_to_one(seen, -1):
        return ""
    for axis in range(seen.dim() - 1):
        if _sums_to_one(seen, axis):
            return f"; it sums to 1 along axis {axis}, but should along the last one"
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


def number(value: Tensor | float, digits: int = 4) -> str:
    """Return a number with some significant digits, a whole one below 1e15 with all of them."""
    if isinstance(value, int):
        return str(value)
    value = float(value)
    return (
        f"{value:.0f}" if value.is_integer() and 1e4 <= abs(value) < 1e15 else f"{value:.{digits}g}"
    )


def _distinguished(seen: Tensor, expected: Tensor) -> tuple[str, str]:
    """Return two numbers with four significant digits, or ten if they look the same."""
    if number(seen) != number(expected):
        return number(seen), number(expected)
    return number(seen, 10), number(expected, 10)


def describe(value: Any) -> str:
    """Describe the kind of a result."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if value is None:
        return "None (is there a return?)"
    return f"{type(value).__name__} {value!r}"[:80]
