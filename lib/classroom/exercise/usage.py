"""Says how wrong code uses its inputs: which it ignores, and which it takes for others."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from classroom.calls.subject import StudentError, Subject
from classroom.calls.wire import Handle
from classroom.exercise.cases import Case
from classroom.exercise.comparing import close, same
from classroom.exercise.diagnosis import (
    Inputs,
    Judge,
    holds_fractions,
    in_places,
    may_fit_by_chance,
    names_of,
)
from classroom.exercise.prepared import MANY, WRONG_FORM, BrokenCheck, Oracle, Place, influences

Given = tuple[Any, ...]

# Seconds. Code that takes longer needs the time of its exercise for the checks themselves.
QUICK = 0.3
# Seconds and calls that an exercise's checks may spend on what is used in place of the inputs.
_SEARCH, _MOST_TRIES = 1.0, 1500
# In the memory of a run: the calls of each function that were right.
CALLS = "calls"
# In the memory of a run: how many of these seconds are left.
_LEFT = "left to search"
# How many unused parts of inputs are listed.
_MOST_SAID = 4
# Rows of a tensor that are tried in other orders.
_MOST_ROWS = 16


@dataclass(frozen=True)
class Wrong:
    """A function whose result is wrong, and what it was asked.

    Attributes:
        subject: The code under test.
        case: Draws the inputs.
        name: The function.
        args: The arguments for which its result was found wrong.
        inputs: Draws others.
        judge: Decides on a result.
        oracle: Computes the correct one.
        tolerance: As in `comparing.same`.
        compared: The places of the results whose numbers are compared.

    """

    subject: Subject
    case: Case
    name: str
    args: Given
    inputs: Inputs
    judge: Judge
    oracle: Oracle
    tolerance: float | None
    compared: Sequence[int]

    def said(self) -> str:
        """Say how it uses its inputs, if that can be found out; begins with a semicolon."""
        self.case.memory.setdefault(_LEFT, _SEARCH)
        return (
            self._change()
            or self._unsteadiness()
            or self._influence(of_parts=False)
            or self._instead()
            or self._influence(of_parts=True)
        )

    def _call(self, *args: Any) -> Any:
        return self.subject.call(self.name, *args)

    def _drawn(self, number: int) -> Given:
        return self.inputs(self.case.fresh(number))

    @property
    def _labels(self) -> Sequence[str]:
        return list(names_of(self.judge, self.oracle, len(self.args)))

    def _seconds(self, args: Given) -> float:
        """Return what a call takes, at best: others may compute at the same time."""
        took = []
        for _ in range(3):
            started = time.monotonic()
            with contextlib.suppress(StudentError):
                self._call(*args)
            took.append(time.monotonic() - started)
        return min(took)

    def _change(self) -> str:
        """Say which argument it changes: a wrong result may have been computed from that."""
        try:
            _, after = self.subject.call_and_return_inputs(self.name, *self.args)
        except StudentError:
            return ""
        for label, before, now in zip(self._labels, self.args, after, strict=True):
            if not isinstance(before, Handle) and not same(before, now):
                return (
                    f"; it changes its argument `{label}` in place, so what it reads from it after "
                    "that is something else (`b = a` and a slice share memory; .clone() copies)"
                )
        return ""

    def _unsteadiness(self) -> str:
        """Say whether the result changes without the inputs, or not with them."""
        try:
            drawn, others = self._drawn(0), self._drawn(1)
            first, again, other = (self._call(*args) for args in (drawn, drawn, others))
        except StudentError:
            return ""
        if first is None:
            return ""  # that nothing is returned has been said
        if not same(first, again):
            return (
                "; called again with the same inputs, it returns something else: is there a "
                "dropout, another random number, or a number kept from an earlier call?"
            )
        is_asked_anew = any(
            not isinstance(one, Handle) and not same(one, two)
            for one, two in zip(drawn, others, strict=True)
        )
        if is_asked_anew and same(first, other) and not _is_nan(first, any):
            return "; with other numbers, it returned the same result"
        return ""

    def _influence(self, of_parts: bool) -> str:
        """Say on what the result depends and should not, or should and does not.

        One argument at a time, or one entry of a dict of them, is replaced by one of another draw;
        or one of its parts, such as a row.
        """
        args, other, another = map(self._drawn, range(3))
        try:
            should = self.oracle.influences(args, other)
            should = {place: so for place, so in should.items() if ("[" in place[1]) == of_parts}
            first = self._call(*args)
            seconds = self._seconds(args) * len(should)
            if (
                first is None
                or _is_nan(first, all)
                or seconds > min(QUICK, self.case.memory[_LEFT])
            ):
                return ""
            self.case.memory[_LEFT] -= seconds * of_parts
            does = influences(self._call, args, other, should)
            unused = [place for place in should if should[place] and does.get(place) is False]
            wholes = tuple(f"{index} {part}[" for index, part in unused)
            unused = [place for place in unused if not "{} {}".format(*place).startswith(wholes)]
            if is_discrete := not holds_fractions(first):  # which may stay the same by chance
                does_again = influences(self._call, args, another, unused)
                unused = [place for place in unused if does_again.get(place) is False]
        except StudentError:
            return ""
        if unused:
            said = [self._words(place) for place in (unused if of_parts else unused[:1])]
            said = ", ".join(said[:_MOST_SAID]) + (" …" if len(said) > _MOST_SAID else "")
            asked = "are they" if "," in said else f"is {said}"
            kept = " in each call" * (not of_parts and self._was_right())
            return f"; it does not depend on {said}: {asked} used{kept}?"
        for place, so in should.items():
            if does.get(place) and not so and not is_discrete:
                return f"; it changes with {self._words(place)}, but should not"
        return ""

    def _was_right(self) -> bool:
        """Return whether it has been right before, when it was to do the same."""
        calls = self.case.memory.get(CALLS, {}).get(self.name, [])
        return any(_choices(call.args) == _choices(self.args) for call in calls)

    def _words(self, place: Place) -> str:
        index, part = place
        return f"`{self._labels[index]}{part}`" if part[:1] in ("", "[") else f"`{part}`"

    def _instead(self) -> str:
        """Say that the result is right if something else, or another order, is given instead."""
        draw = self._drawn(0)
        try:
            right, right_of_draw = self.oracle(*self.args), self.oracle(*draw)
        except Exception:  # it is not recorded
            return ""
        if may_fit_by_chance(in_places(self.compared, right)):
            return ""
        seconds = max(self._seconds(self.args), _SEARCH / _MOST_TRIES)

        def is_accepted(given: Given, expected: Any, others: Given) -> bool:
            self.case.memory[_LEFT] -= seconds
            if self.case.memory[_LEFT] < 0:
                return False
            try:
                seen = self._call(*others)
                one, other = in_places(self.compared, seen), in_places(self.compared, expected)
                is_right = not _surely_differ(one, other, self.tolerance)
                return is_right and self.judge(seen, *given) is None
            except (BrokenCheck, StudentError, *WRONG_FORM):
                return False

        for kind, said, others in _replacements(self.args):
            if is_accepted(self.args, right, others) and any(
                kind == alike and is_accepted(draw, right_of_draw, drawn)
                for alike, _, drawn in _replacements(draw)
            ):
                said = said.format(*self._labels)
                return f"; called with {said}, it gives the correct result: how is that used?"
        return ""


def _choices(args: Given) -> list[Any]:
    """Return those of some arguments that decide what is to be done."""
    return [arg for arg in args if isinstance(arg, (bool, str, type(None)))]


def _surely_differ(seen: Any, expected: Any, tolerance: float | None) -> bool:
    """Return whether the tensors of two results are not the same.

    It takes a fraction of the time of a judge, who also finds words.
    """
    if isinstance(seen, (list, tuple)) and isinstance(expected, (list, tuple)):
        return any(_surely_differ(*pair, tolerance) for pair in zip(seen, expected, strict=False))
    if not isinstance(seen, Tensor) or not isinstance(expected, Tensor):
        return False
    return seen.shape != expected.shape or not close(seen, expected, tolerance)


def _replacements(args: Given) -> Iterator[tuple[str, str, Given]]:
    """Yield what might be used in place of some arguments.

    Two of the same form are exchanged, and so are two entries of a dict. A number is another one.
    The items of a list, or the entries of a tensor along an axis, come in another order, alone or
    together with those of other tensors.

    Yields:
        A kind, the same for other arguments; words in which `{0}` stands for the first label; and
        the arguments.

    """
    for i, j, others in _exchanged(dict(enumerate(args))):
        said = f"`{{{i}}}` and `{{{j}}}` exchanged"
        yield said, said, tuple(others.values())
    for index, one in enumerate(args):
        for kind, said, other in _near(one):
            yield f"{index} {kind}", said.format(f"`{{{index}}}`"), _put(args, {index: other})
    axes = sorted(_axes(args), key=lambda axis: (axis[0] > 0, len(axis[1])))
    for rank in range(3):
        for axis, indices in axes:
            labels = ", ".join(f"`{{{index}}}`" for index in indices)
            for how, order in _orders(_size(args[indices[0]], axis))[rank].items():
                said = f"{labels} {how} along axis {axis}"
                yield said, said, _put(args, {i: _taken(args[i], axis, order) for i in indices})


def _put(args: Given, others: Mapping[int, Any]) -> Given:
    return tuple(others.get(index, arg) for index, arg in enumerate(args))


def _exchanged(items: Mapping[Any, Any]) -> Iterator[tuple[Any, Any, dict[Any, Any]]]:
    """Yield the names of two items of one form, and all items with these exchanged."""
    for a, b in itertools.combinations(items, 2):
        if _of_one_form(items[a], items[b]):
            yield a, b, {**items, a: items[b], b: items[a]}


def _near(one: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield what may be used in place of a number or a dict: a kind, words, and the other."""
    if isinstance(one, dict):
        for a, b, other in _exchanged(one):
            yield f"{a}, {b}", f"`{a}` and `{b}` of {{}} exchanged", other
    elif type(one) is int and 0 <= one <= _MOST_ROWS:
        for other in sorted({*range(MANY), one + 1, one - 1} - {one}, key=lambda n: abs(n - one)):
            yield "", f"{other} for {{}} = {one}", other
    elif type(one) is float and one > 0:
        others = {"1 - {}": 1 - one, "1 / {}": 1 / one, "-{}": -one}
        others |= {"the square of {}": one * one, "the square root of {}": one**0.5}
        others |= {f"{n} times {{}}": n * one for n in (2, 0.5)}
        yield from ((said, said, other) for said, other in others.items())


def _axes(args: Given) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield axes that are not long, and the arguments that may be reordered along them at once."""
    sizes: dict[int, list[int]] = {}
    for index, one in enumerate(args):
        for axis in range(one.dim() if isinstance(one, Tensor) else isinstance(one, (list, tuple))):
            if 1 < (size := _size(one, axis)) <= _MOST_ROWS:
                yield axis, (index,)
                if axis == 0:
                    sizes.setdefault(size, []).append(index)
    for alike in sizes.values():
        for several in range(2, len(alike) + 1):
            yield from ((0, together) for together in itertools.combinations(alike, several))


def _size(one: Any, axis: int) -> int:
    return one.shape[axis] if isinstance(one, Tensor) else len(one)


def _taken(one: Any, axis: int, order: list[int]) -> Any:
    if isinstance(one, Tensor):
        return one.index_select(axis, torch.tensor(order))
    return type(one)(one[n] for n in order)


def _orders(size: int) -> tuple[Mapping[str, list[int]], ...]:
    """Return other orders of so many, by words for them: first the likeliest."""
    numbers = range(size)
    return (
        {"in reverse order": [*reversed(numbers)]},
        {f"shifted by {by}": [(n - by) % size for n in numbers] for by in numbers[1:]},
        {
            f"with {i} and {j} exchanged": [{i: j, j: i}.get(n, n) for n in numbers]
            for i, j in itertools.combinations(numbers if size <= MANY else (), 2)
        },
    )


def _of_one_form(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype
    return type(one) is type(other) is float


def _is_nan(result: Any, which: Callable[[Iterable[Any]], bool]) -> bool:
    """Say whether any or all numbers of a result are NaN: being the same says little then."""
    parts = result if isinstance(result, tuple | list) else [result]
    return which(
        isinstance(part, float | Tensor) and which(torch.as_tensor(part).isnan().flatten().tolist())
        for part in parts
    )
