"""Finds the known mistakes that code behaves like, and the smallest case on which it is wrong."""

import contextlib
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from classroom.calls.subject import Crashed, StudentError, Subject
from classroom.calls.wire import Handle
from classroom.exercise.answers import Answer
from classroom.exercise.cases import Case
from classroom.exercise.comparing import describe, number, same
from classroom.exercise.prepared import (
    WRONG_FORM,
    RecordedSubject,
    has_sketch,
    is_recording,
    known,
)

Inputs = Callable[[Case], tuple[Any, ...]]
Judge = Callable[..., str | None]
Request = Callable[[Subject], Any]

_FRESH_CASES = 3
# So many of results that are few whole numbers, which another mistake may give by chance.
_MANY_CASES = 12
# So many whole numbers are not the same by chance.
_FEW_PARTS = 8
_PLAIN = (bool, int, float, str, type(None))
_TOGETHER = 6
# Of the largest number: what differs by less is hardly seen among numbers of four digits.
_VISIBLE = 0.01
_LONG_NAME = 20
_WIDTH = 80  # of the entries of a dict, which come in lines
_LONGEST = 1500  # characters of a case


def attempt(
    subject: Subject, name: str, args: tuple[Any, ...], judge: Judge
) -> tuple[str | None, Exception | None]:
    """Call a function and judge its result.

    Returns:
        What is wrong, if anything; and the exception, if there was no result of the right form.

    """
    try:
        seen = subject.call(name, *args)
    except StudentError as error:
        return str(error), error
    try:
        return judge(seen, *args), None
    except WRONG_FORM as error:
        return f"`{name}` returned {describe(seen)}, which has the wrong form", error


def mistakes_alike(
    subject: Subject,
    case: Case,
    name: str,
    inputs: Inputs,
    judge: Judge,
    tolerance: float | None = None,
    compared: Sequence[int] = (),
    also: Sequence[Inputs] = (),
) -> list[Answer]:
    """Return the known mistakes that behave like the student's code on every fresh case.

    If there are none, the results are compared in the places `compared` alone: who makes two
    mistakes, each in another result, hears of both.

    Code that crashes is also compared on inputs whose sizes are all equal, where it often runs
    despite mismatched shapes: two programs that crash need not be the same. Code whose results are
    few whole numbers is compared on more cases. `also` draws other inputs on which both must agree.

    The `tolerance` is as in `comparing.same`.
    """
    crashed = isinstance(_outcome(subject, name, inputs(case.fresh(0))), _Failure)
    cases = [case.fresh(i) for i in range(_FRESH_CASES)]
    cases += [case.fresh(i).square(case.asked) for i in range(_FRESH_CASES)] * crashed
    trials = [(args, _outcome(subject, name, args)) for args in map(inputs, cases)]
    more = [draw(case.fresh(0)) for draw in also]
    if all(may_fit_by_chance(in_places(compared, seen)) for _, seen in trials):
        more += [inputs(case.fresh(i)) for i in range(_FRESH_CASES, _MANY_CASES)]
    trials += [(args, _outcome(subject, name, args)) for args in more]
    if not any(_tells_something(seen) for _, seen in trials):
        return []
    for places in ((), compared) if compared else ((),):
        found = [
            m for m in case.mistakes if _behaves_like(m, name, trials, judge, tolerance, places)
        ]
        if found:
            return found
    return []


def _behaves_like(
    mistake: Answer,
    name: str,
    trials: Sequence[tuple[tuple[Any, ...], Any]],
    judge: Judge,
    tolerance: float | None,
    places: Sequence[int],
) -> bool:
    known_code = known(mistake)
    shown_wrong = False
    for args, seen in trials:
        wrong = _outcome(known_code, name, args)
        if places and not _are_of_one_form(seen, wrong):
            return False
        pair = _of_one_kind(in_places(places, seen), in_places(places, wrong))
        if not same(*pair, tolerance):
            return False
        # Of a large result only a sketch is known; the student's result matches it.
        whole = seen if has_sketch(wrong) else wrong
        shown_wrong = shown_wrong or _is_wrong(judge, whole, args)
    return shown_wrong


def _are_of_one_form(one: Any, other: Any) -> bool:
    """Return whether results have the same shapes, as those of two mistakes in numbers have."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_are_of_one_form, one, other))
    return tuple(getattr(one, "shape", ())) == tuple(getattr(other, "shape", ()))


def in_places(places: Sequence[int], outcome: Any) -> Any:
    """Return the results in some places, all if there are none."""
    if not places or not isinstance(outcome, (list, tuple)) or len(outcome) <= max(places):
        return outcome
    return [outcome[place] for place in places]


def _of_one_kind(one: Any, other: Any) -> tuple[Any, Any]:
    """Make floats of two numbers if one is Python's and one torch's, or one an integer."""
    both = one, other
    if all(isinstance(each, (list, tuple)) for each in both) and len(one) == len(other):
        pairs = [_of_one_kind(*pair) for pair in zip(one, other, strict=True)]
        return tuple(a for a, _ in pairs), tuple(b for _, b in pairs)
    if type(one) is not type(other) and all(map(_is_number, both)):
        return float(one), float(other)
    return both


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not value.dim() and value.dtype is not torch.bool
    return type(value) in (int, float)


def holds_fractions(result: Any) -> bool:
    """Return whether a result has numbers that change with anything that goes into them."""
    if isinstance(result, (dict, list, tuple)):
        return any(map(holds_fractions, result.values() if isinstance(result, dict) else result))
    return isinstance(result, float) or isinstance(result, Tensor) and result.is_floating_point()


def may_fit_by_chance(result: Any) -> bool:
    """Return whether a result is a few whole numbers, which something unrelated gives, too."""
    return not holds_fractions(result) and _count(result, of_another=_FEW_PARTS) < _FEW_PARTS


@dataclass(frozen=True)
class _Failure:
    kind: str


def _outcome(subject: Subject, name: str, args: tuple[Any, ...]) -> Any:
    try:
        return subject.call(name, *args)
    except StudentError as error:
        return _Failure(type(error).__name__)


def _tells_something(outcome: Any) -> bool:
    """Return whether an outcome is specific enough to identify a mistake."""
    if isinstance(outcome, Tensor):
        return not bool(outcome.isnan().all())
    if isinstance(outcome, (list, tuple)):
        return any(_tells_something(item) for item in outcome)
    return not isinstance(outcome, _Failure) and outcome is not None and outcome == outcome


def _is_wrong(judge: Judge, outcome: Any, args: tuple[Any, ...]) -> bool:
    if isinstance(outcome, _Failure):
        return False
    try:
        return judge(outcome, *args) is not None
    except WRONG_FORM:
        return True


@dataclass(frozen=True)
class Crash:
    """The answer of code that raised an exception itself."""

    kind: str
    text: str


def asks_for(name: str, args: tuple[Any, ...]) -> Request:
    """Return a request for the result of one call."""
    return lambda subject: subject.call(name, *args)


def asking(request: Callable[..., Any], *given: Any) -> Request:
    """Return a request that makes several calls; mistakes are recognised by its result as a whole.

    Args:
        request: Takes a subject and the arguments that follow; returns plain values.
        given: These arguments.

    """

    def ask(subject: Subject) -> Any:
        return request(subject, *given)

    ask.asked = (request, given)  # type: ignore[attr-defined]
    return ask


def answer_to(request: Request, subject: Subject) -> Any:
    """Return the result of a request, or if it fails a `Crash` or the class of the failure."""
    asked = getattr(request, "asked", None)
    try:
        if isinstance(subject, RecordedSubject) and asked is not None:
            return subject.answer(("request", asked), request)
        return request(subject)
    except Crashed as error:
        return Crash(error.kind, error.text)
    except StudentError as error:
        return type(error)


def answering_alike(
    requests: Sequence[Request],
    subject: Subject,
    mistakes: Sequence[Answer],
    tolerance: float | None = None,
) -> list[Answer]:
    """Return the mistakes that answer all requests as the code under test does.

    Args:
        requests: Are made of both.
        subject: The code under test.
        mistakes: Those to compare with.
        tolerance: As in `comparing.same`.

    """
    seen = [answer_to(request, subject) for request in requests]
    alike = []
    for mistake in mistakes:
        code = known(mistake)
        pairs = zip(requests, seen, strict=True)
        if all(same(answer_to(request, code), answer, tolerance) for request, answer in pairs):
            alike.append(mistake)
    return alike


def smallest_example(
    subject: Subject,
    case: Case,
    name: str,
    args: tuple[Any, ...],
    inputs: Inputs,
    judge: Judge,
    oracle: Callable[..., Any] | None,
    is_one_of_many: bool = False,
) -> str:
    """Reduce the sizes one by one as long as the check fails; describe the smallest case.

    If no smaller case fails, say what the one that did, with `args`, was called with. Where
    the result of `oracle` is not the only correct one, it is not called the expected one.
    """
    for rounded in (True, False):
        smallest = case.smaller(case.sizes, rounded)
        if _shows_a_problem(subject, smallest, name, inputs, judge):
            break
    else:
        return shown_shapes(args, judge, oracle)
    whole = smallest.shrinkable()
    for axis, sizes in whole.items():
        for size in sizes:
            candidate = case.smaller({**smallest.asked, axis: size}, rounded)
            if _shows_a_problem(subject, candidate, name, inputs, judge):
                smallest = candidate
                break
    # Where little is left, what is wrong may hardly show: then two more of everything, or all.
    larger = {
        axis: max(size, min(size + 2, whole[axis].stop)) for axis, size in smallest.asked.items()
    }
    shown = ""
    for sizes in (smallest.asked, larger, {}):
        try:
            # A case has a generator that advances: make a new one with the same seed.
            args = inputs(case.smaller({**case.sizes, **sizes}, rounded))
            results = {"you return": subject.call(name, *args)}
            if oracle is not None and not is_one_of_many:
                results["expected"] = oracle(*args)
        except Exception:  # no time is left, or other sizes are needed
            break
        if oracle is not None and is_one_of_many:
            with contextlib.suppress(Exception):  # it is not recorded
                results["correct is"] = oracle(*args)
        is_short = _count(args) + _count(results) <= _LONGEST // 3  # each takes three at least
        if is_short and (not shown or not _looks_right(*results.values())):
            given = zip(names_of(judge, oracle, len(args)), args, strict=True)
            parts = _wrong_parts(results)
            said = list(map(_show, parts.values()))
            if any(one == other for one, other in zip(said[::2], said[1::2], strict=False)):
                said = [_show(part, digits=10) for part in parts.values()]
            rows = [*_with_settings_together(given), *zip(parts, said, strict=True)]
            lines = _aligned(rows)
            if sum(map(len, lines)) <= _LONGEST and max(map(len, lines)) < 1000:
                shown = "\n".join(["A small case to try it on:", *lines])
        if not _looks_right(*results.values()) and not is_recording():
            break
    return shown


def _wrong_parts(results: dict[str, Any]) -> dict[str, Any]:
    """Return, of several results, those that are wrong, by their place; all if all are."""
    seen, expected = results.get("you return"), results.get("expected")
    if not (isinstance(seen, (tuple, list)) and isinstance(expected, (tuple, list))):
        return results
    if len(seen) != len(expected) or not any(isinstance(part, Tensor) for part in expected):
        return results
    wrong = [n for n, parts in enumerate(zip(seen, expected, strict=True)) if not same(*parts)]
    if not 0 < len(wrong) < len(seen):
        return results
    return {f"{said}[{n}]": result[n] for n in wrong for said, result in results.items()}


def _looks_right(seen: Any, expected: Any = None) -> bool:
    """Return whether a wrong result hardly differs from the right one, as it is printed."""
    if isinstance(expected, (list, tuple)) and isinstance(seen, (list, tuple)):
        return len(seen) == len(expected) and all(map(_looks_right, seen, expected))
    if not all(isinstance(result, (int, float, Tensor)) for result in (seen, expected)):
        return False
    seen, expected = (torch.as_tensor(result).double() for result in (seen, expected))
    if seen.shape != expected.shape or not expected.numel():
        return False
    off = (seen - expected).abs()
    return bool((off <= _VISIBLE * expected.abs().amax()).all())


def _with_settings_together(given: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, str]]:
    """Show arguments one by one, but three to six consecutive plain ones as one assignment."""
    for is_plain, run in itertools.groupby(given, lambda pair: isinstance(pair[1], _PLAIN)):
        pairs = [(name, _show(value, _digits_of(value))) for name, value in run]
        for start in range(0, len(pairs), _TOGETHER):
            some = pairs[start : start + _TOGETHER]
            if is_plain and len(some) > 2:
                names, values = zip(*some, strict=True)
                yield ", ".join(names), ", ".join(values)
            else:
                yield from some


def _aligned(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Format `name = value` lines with aligned equals signs, except after a very long name."""
    width = max((len(name) for name, _ in rows if len(name) <= _LONG_NAME), default=0)
    indent = "\n" + " " * (width + 6)
    return [f"  {name:<{width}} = {value}".replace("\n", indent) for name, value in rows]


def _shows_a_problem(subject: Subject, case: Case, name: str, inputs: Inputs, judge: Judge) -> bool:
    """Return whether a result of the right form is wrong on this case."""
    try:
        problem, error = attempt(subject, name, inputs(case), judge)
    except Exception:  # inputs or an oracle that need larger sizes, or unrounded numbers
        return False
    return problem is not None and error is None


def shown_shapes(args: tuple[Any, ...], judge: Judge, oracle: Callable[..., Any] | None) -> str:
    """Describe the arguments of a call that crashed: shapes of tensors, values of the rest."""
    return shown_call(zip(names_of(judge, oracle, len(args)), args, strict=True))


def shown_call(given: Iterable[tuple[str, Any]]) -> str:
    """Describe arguments, each after its name."""
    return "It was called with " + ", ".join(f"{label} {_sizes(value)}" for label, value in given)


def _sizes(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(tuple(value.shape))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} {_sizes(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(map(_sizes, value)) + ")"
    return "(a function)" if isinstance(value, Handle) else _show(value)


def names_of(judge: Judge, oracle: Callable[..., Any] | None, count: int) -> Iterable[str]:
    """Name the arguments as the oracle does or, for a law, as its judge does."""
    for names in (_parameters(oracle) if oracle else [], _parameters(judge)[1:]):
        if len(names) >= count:
            return names[:count]
    return [f"argument {i + 1}" for i in range(count)]


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a builtin of torch without a signature
        return []
    return [p.name for p in parameters if p.kind is not inspect.Parameter.VAR_POSITIONAL]


def _count(value: Any, of_another: int = 1) -> int:
    """Count the numbers of which a value consists; a text, or what else there is, has so many."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return sum(_count(item, of_another) for item in value)
    if isinstance(value, Tensor):
        return value.numel()
    return 1 if isinstance(value, int) else of_another


def _digits_of(value: Any) -> int:
    """Return how many digits an argument is shown with: more if four make a row's entries alike."""
    if not (isinstance(value, Tensor) and value.is_floating_point() and value.numel()):
        return 4
    lost = (value - torch.tensor(_rounded(value.tolist(), 4), dtype=value.dtype)).abs().amax(dim=-1)
    spread = value.amax(dim=-1) - value.amin(dim=-1)
    return 12 if ((lost > spread / 100) & (spread > 0)).any() else 4


def _show(value: Any, digits: int = 4) -> str:
    if isinstance(value, Tensor):
        return str(_rounded(value.tolist(), digits))
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(_show(item, digits) for item in value) + ")"
    if isinstance(value, dict):
        lines = [""]
        for key, item in value.items():
            entry = f"{key}: {_show(item, digits)}, "
            if lines[-1] and len(lines[-1] + entry) > _WIDTH:
                lines.append("")
            lines[-1] += entry
        return "{" + "\n".join(lines).removesuffix(", ").replace(", \n", ",\n") + "}"
    if isinstance(value, float):
        return number(value, digits)
    return repr(value)


def _rounded(value: Any, digits: int) -> Any:
    if isinstance(value, list):
        return [_rounded(item, digits) for item in value]
    if not isinstance(value, float):
        return value
    rounded = float(f"{value:.{digits}g}")  # the largest number would become infinity
    return value if math.isinf(rounded) else rounded
