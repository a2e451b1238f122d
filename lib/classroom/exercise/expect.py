"""The vocabulary of a file of checks: exercises, points, and expectations that explain failures.

A check is a method of a test class with two arguments: `subject` is the code under test, in this
process or another, and `case` draws the inputs from a seed. An expectation that is not met reports
what was seen and what was expected, names the mistake if the code behaves exactly like a known one
on fresh inputs, and shows the smallest case on which the code is wrong.
"""

import contextlib
import copy
import inspect
import itertools
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from classroom.calls.local import CHANGES_IN_PLACE
from classroom.calls.subject import Crashed, Died, StudentError, Subject, TooSlow, WrongKind
from classroom.calls.wire import pack
from classroom.exercise.answers import Answer
from classroom.exercise.cases import Case
from classroom.exercise.comparing import (
    NEARLY_CORRECT,
    close,
    describe,
    differs,
    loses_precision,
    number,
    wrong_form,
)
from classroom.exercise.diagnosis import (
    Crash,
    Inputs,
    Judge,
    Request,
    answering_alike,
    attempt,
    mistakes_alike,
    names_of,
    shown_shapes,
    smallest_example,
)
from classroom.exercise.prepared import (
    WRONG_FORM,
    BrokenCheck,
    Oracle,
    RecordedSubject,
    as_oracle,
    is_recording,
    known,
    require_words,
)
from classroom.exercise.usage import CALLS, Wrong

Implementations = Mapping[str, Callable[..., Any]]
Explanation = tuple[str, Sequence[Answer], str]
# What Linux says where a call is made without trace.
_REFUSED = ("Operation not permitted", "start new thread", "Bad file descriptor")
_WHILE_JUDGED = (
    "While it is judged, a test cannot change files, start threads or processes, or use a file "
    "that was opened before"
)
_BY_ASSERT = "A test reports a bug by a failed `assert`; any other error is one of the test itself"
# How often a test whose verdicts ignore what it is given may earn anything.
_LUCK = 1e-3
# How often it is called again to see whether it changes its mind.
_AGAIN = 5
_MOST_TOGETHER = 8
# Seconds that they may take; the pairs with one of them are tried in any case.
_SECONDS_TOGETHER = 5.0
# Seconds after which one call has used up the time of an exercise by itself.
_TOO_LONG = 3.0
# Calls that a student's test may make and be told more about them.
_MOST_NOTED = 100
# Relative to the largest number: correct implementations differ by less, because of rounding.
_ROUNDING = 1e-3
# Relative to the largest number: what no reasonable tolerance hides.
_VISIBLE = 0.02
# Relative to the largest number: what a test that is fair to rounding cannot see.
_TOO_SMALL = 1e-5


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """The description of an exercise, without its checks.

    Attributes:
        name: Name of the function to write; the grade ids of its cells derive from it.
        number: As printed, such as `1.4`.
        title: As printed.
        asks: What to write, in a sentence; shown if the exercise was left blank.
        difficulty: From 1 (a line) to 5 (an evening).
        importance: From 1 (a detail) to 5 (later exercises depend on it).
        minutes: For a student who has read the chapter.
        deeper: Whether it stands below the core of its notebook, and can be left for later.
        files: Names of files to submit with the notebook, such as `model.safetensors`, which
            checks read by `Subject.file`.
        by_hand: Whether the code may not let torch differentiate or optimize.
        may_cut: Names of functions that gradients need not flow through, as the notebook says.

    """

    name: str
    number: str
    title: str
    asks: str
    difficulty: int
    importance: int
    minutes: int
    deeper: bool = False
    files: tuple[str, ...] = ()
    by_hand: bool = False
    may_cut: tuple[str, ...] = ()


def exercise(name: str, **about: Any) -> Callable[[type], type]:
    """Mark a test class as the checks of one exercise; the arguments are those of `Exercise`."""

    def mark(checks: type) -> type:
        checks.exercise = Exercise(name=name, **about)  # type: ignore[attr-defined]
        return checks

    return mark


def points(number: int, only_with: str | Sequence[str] = ()) -> Callable[[Callable], Callable]:
    """Set the number of points that a check is worth.

    Args:
        number: The points.
        only_with: Names of checks of this exercise that must pass, too. For a property that
            functions have which compute something else, or nothing: a function that returns None
            leaves its inputs unchanged.

    """
    names = (only_with,) if isinstance(only_with, str) else tuple(only_with)

    def mark(check: Callable) -> Callable:
        vars(check).update(points=number, only_with=names)
        return check

    return mark


class CheckFailed(AssertionError):
    """An expectation was not met.

    Why is found out when somebody wants to know, by further calls of the code under test. If they
    were made before another check is decided, then code that notices them would know of a failure.

    Args:
        problem: What was seen and expected, in a sentence or a few lines.
        mistakes: The known mistakes that behave exactly like this; several if the inputs do not
            distinguish them.
        example: The smallest case found, as lines of text.
        explain: Returns all three when they are first asked for.

    """

    def __init__(
        self,
        problem: str,
        mistakes: Sequence[Answer] = (),
        example: str = "",
        explain: Callable[[], Explanation] | None = None,
    ):
        super().__init__(problem)
        self._found = problem, mistakes, example
        self._explain = explain

    def explained(self) -> Explanation:
        """Return the problem, the mistakes and the example, which the first time takes calls."""
        if self._explain:
            explain, self._explain = self._explain, None
            with contextlib.suppress(Died, TooSlow):
                self._found = explain()
        return self._found

    @property
    def problem(self) -> str:
        """What was seen and expected."""
        return self.explained()[0]

    @property
    def mistakes(self) -> tuple[Answer, ...]:
        """The known mistakes that behave exactly like this."""
        return tuple(self.explained()[1])

    @property
    def example(self) -> str:
        """The smallest case found, as lines of text."""
        return self.explained()[2]

    @example.setter
    def example(self, text: str) -> None:
        self._found = (*self._found[:2], text)

    def further(self, explain: Callable[..., Explanation]) -> None:
        """Let the explanation be made from the one so far, by a function of its three parts."""
        before, found = self._explain, self._found
        self._explain = lambda: explain(*(before() if before else found))

    @property
    def diagnosis(self) -> str:
        """A sentence that names the mistake, empty if none is known."""
        if not self.mistakes:
            return ""
        if len(self.mistakes) == 1:
            mistake = self.mistakes[0]
            return f"This is the mistake “{mistake.title}”: {mistake.explanation}"
        either = [f"“{m.title}”: {m.explanation.removesuffix('.')}" for m in self.mistakes]
        return (
            f"This is one of {len(either)} mistakes that look alike here: {'; or '.join(either)}."
        )

    def __str__(self) -> str:
        return "\n".join(part for part in (self.problem, self.diagnosis, self.example) if part)


def expect_agrees(
    subject: Subject,
    case: Case,
    name: str,
    inputs: Inputs,
    oracle: Callable[..., Any],
    returns: Mapping[str, str],
    compare: Sequence[str] | None = None,
    tolerance: float | None = None,
    alike: float | None = None,
    draws: int = 1,
    why: Callable[..., str] | None = None,
    also: Sequence[Inputs] = (),
) -> None:
    """Expect a student's function to return what `oracle` returns.

    Args:
        subject: The code under test.
        case: Draws the inputs.
        name: The function to call.
        inputs: Draws its arguments from a case.
        oracle: Computes the correct result from the same arguments.
        returns: What is returned, in order: the name of each result and the names of its axes,
            such as `{"output": "batch q_len d_value"}`; a number has no axes: `""`.
        compare: Names of the results whose numbers are compared here, all by default. Kinds and
            shapes are always checked.
        tolerance: For exercises that leave the precision to the student; as in `comparing.same`.
        alike: Tolerance for recognising a known mistake; `tolerance` by default.
        draws: How often inputs are drawn: more than once where so few differ that a result which
            was recorded for another seed may fit.
        why: Takes a wrong result, or the tuple of them, and the arguments; returns sentences that
            say why one of its entries should be another, or nothing. They begin with a full stop.
        also: Draw other inputs on which a mistake must agree with the code before it is named: for
            results that are few numbers, of which one may agree by chance.

    Raises:
        CheckFailed: If anything differs.
        BrokenCheck: If the oracle fails.

    """
    oracle, labels = as_oracle(oracle), list(returns)
    compared = labels if compare is None else compare
    places = [labels.index(label) for label in compare or ()]
    shapes: dict[str, tuple[int, ...]] = {}

    def judge(seen: Any, *args: Any) -> str | None:
        returned = seen
        try:
            expected = oracle(*args)
        except Exception as error:
            raise BrokenCheck(f"its oracle raised {type(error).__name__}: {error}") from error
        if len(labels) == 1:
            seen, expected = (seen,), (expected,)
        if problem := wrong_form(seen, expected, returns, name, case.asked):
            return problem
        for label, s, e in zip(labels, seen, expected, strict=True):
            shapes.setdefault(label, tuple(getattr(e, "shape", ())))
            given = dict(zip(names_of(judge, oracle, len(args)), args, strict=True))
            more = returns[label].split(), case.asked, given
            if label in compared and (problem := differs(label, s, e, tolerance, *more)):
                reason = why(returned, *args) if why else ""
                return problem + reason.removeprefix("." if problem.endswith("?") else "")
            if tolerance is None and (problem := loses_precision(label, s, args)):
                return problem
        return None

    alike = tolerance if alike is None else alike
    args = inputs(Case(case.seed, sizes=case.sizes))
    if is_recording():
        oracle.influences(inputs(case.fresh(0)), inputs(case.fresh(1)))
        for given in (inputs(case.fresh(0)), args):  # whether it is called does not depend on time
            judge(None, *given)
    _expect(subject, case, name, inputs, judge, oracle, alike, places, also=also, draws=draws)
    calls = case.memory.setdefault(CALLS, {}).setdefault(name, [])
    calls.append(Call(name, args, judge, oracle, tolerance, case.so_far(), inputs))
    require_words(returns, shapes, case.asked)


def expect_law(
    subject: Subject,
    case: Case,
    name: str,
    inputs: Inputs,
    judge: Judge,
    draws: int = 1,
    correct: Callable[..., Any] | None = None,
) -> None:
    """Expect the result of a function to obey a law.

    Args:
        subject: The code under test.
        case: Draws the inputs.
        name: The function to call.
        inputs: Draws its arguments from a case.
        judge: Takes the result and the arguments; returns None if the law holds, else a sentence
            that says how it is broken. An exception, such as a TypeError, means that the result
            has the wrong form.
        draws: As in `expect_agrees`.
        correct: Computes a result that obeys it, to be shown beside one that does not.

    Raises:
        CheckFailed: If the law is broken.

    """
    _expect(subject, case, name, inputs, judge, None, correct=correct, draws=draws)


def expect_answer(
    subject: Subject,
    case: Case,
    requests: Sequence[Request],
    judge: Judge,
    tolerance: float | None = None,
    may_crash: bool = False,
) -> None:
    """Expect the answer to the first of some requests to pass; diagnose by the answers to all.

    For what a single call does not show: gradients, several calls that belong together, a function
    that is passed to the student's code, a required exception. A crash counts as an answer, so its
    message may distinguish two mistakes.

    Args:
        subject: The code under test.
        case: Holds the known mistakes.
        requests: Functions of a subject.
        judge: Takes the answer to the first; returns None or a sentence that says what is wrong.
        tolerance: For recognising a known mistake; as in `comparing.same`.
        may_crash: Whether `judge` decides on a `Crash` as well; otherwise a crash fails the check.

    Raises:
        CheckFailed: If the first answer does not pass.

    """
    try:
        problem = judge(requests[0](subject))
    except Crashed as error:
        problem = judge(Crash(error.kind, error.text)) if may_crash else str(error)
    except StudentError as error:
        raise CheckFailed(str(error)) from error
    if problem is None:
        return
    said = problem

    def explain() -> Explanation:
        return said, answering_alike(requests, subject, case.mistakes, tolerance), ""

    raise CheckFailed(problem, explain=explain)


def expect_gradients(
    subject: Subject,
    case: Case,
    name: str,
    inputs: Inputs,
    oracle: Callable[..., Any],
    wrt: Sequence[str],
    returns: Sequence[str] = (),
) -> None:
    """Expect gradients to flow through a function as they flow through `oracle`.

    Args:
        subject: The code under test.
        case: Draws the inputs and the cotangents.
        name: The function to differentiate.
        inputs: Draws its arguments from a case.
        oracle: A correct implementation that autograd can differentiate.
        wrt: Names of the arguments with respect to which to differentiate.
        returns: Names of the results, each of which is differentiated by itself.

    Raises:
        CheckFailed: If a gradient is missing or different.
        BrokenCheck: If the oracle has no gradients.

    """
    oracle, parameters = as_oracle(oracle), list(inspect.signature(oracle).parameters)
    indices = [parameters.index(label) for label in wrt]
    args = inputs(case)
    try:
        outputs = oracle(*args)
        outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        drawn = [case.normal(*output.shape) for output in outputs]
        alone = [
            [c if n == place else torch.zeros_like(c) for n, c in enumerate(drawn)]
            for place in range(len(drawn))
        ]
        expected = [oracle.gradients(args, indices, cotangents) for cotangents in alone]
    except Exception as error:
        raise BrokenCheck(f"its oracle has no gradients: {error}") from error
    try:
        seen = [subject.gradients(name, args, indices, cotangents) for cotangents in alone]
    except StudentError as error:
        raise CheckFailed(str(error)) from error
    results = returns or ["the result"] * len(drawn)
    for result, ours, theirs in zip(results, expected, seen, strict=True):
        gradients = list(zip(wrt, theirs, ours, strict=True))
        missing = [f"`{n}`" for n, s, e in gradients if _flows(e) and not _flows(s)]
        if missing:
            raise CheckFailed(
                f"no gradient flows from {result} back to {' and '.join(missing)}: part of the "
                f"computation is cut off {_CUTS}"
            )
        for label, s, e in gradients:
            if s is None:
                continue
            if problem := differs(f"the gradient of {result} with respect to {label}", s, e):
                if bool(s.isnan().any()) and (e is None or not bool(e.isnan().any())):
                    problem += _NAN_GRADIENT
                raise CheckFailed(problem)


def _flows(gradient: Tensor | None) -> bool:
    return gradient is not None and bool((gradient != 0).any())


@dataclass(frozen=True)
class Call:
    """A call like one that a function has answered rightly, often with other numbers.

    Attributes:
        name: The function.
        args: Its arguments.
        judge: Decides on the result, as in `expect_law`.
        oracle: Computes the correct result.
        tolerance: As in `expect_agrees`.
        case: Of the check that called the function.
        inputs: Draws its arguments.

    """

    name: str
    args: tuple[Any, ...]
    judge: Judge
    oracle: Oracle
    tolerance: float | None
    case: Case
    inputs: Inputs

    @property
    def seed(self) -> str:
        """That of the check that called the function."""
        return self.case.seed

    @property
    def wrt(self) -> list[int]:
        """Indices of the arguments that a gradient may reach."""
        given = enumerate(self.args)
        return [i for i, a in given if isinstance(a, Tensor) and a.is_floating_point()]

    @property
    def labels(self) -> Sequence[str]:
        """Names of the arguments."""
        return tuple(names_of(self.judge, self.oracle, len(self.args)))

    def problem(self, subject: Subject) -> str | None:
        """Say what is wrong with the answer of code under test, if anything.

        It may take too long, but not because earlier calls have left it no time.
        """
        started = time.monotonic()
        try:
            return self.judge(subject.call(self.name, *self.args), *self.args)
        except TooSlow as error:
            return str(error) if time.monotonic() - started > _TOO_LONG else None
        except StudentError as error:
            return str(error)
        except (*WRONG_FORM, MemoryError) as error:
            return f"{type(error).__name__}: {error}"

    def largest_entry(self) -> float:
        """Return the largest magnitude in the arguments that a gradient may reach."""
        entries = (self.args[i].abs().amax().item() for i in self.wrt if self.args[i].numel())
        return max(entries, default=0.0)

    def changed_input(self, subject: Subject) -> str | None:
        """Say which argument code under test changes in place, if any."""
        try:
            changed = _changed(subject, self.name, self.args)
        except TooSlow:
            return None
        except StudentError as error:  # on inputs for which it has just been right
            return str(error)
        if changed is None:
            return None
        return _IN_PLACE.format(self.name, f"`{self.labels[changed]}`")

    def cut_gradient(self, subject: Subject, seed: str) -> str | None:
        """Say how code under test cuts a gradient that flows through the oracle."""
        draw = Case(f"{seed}/gradient")
        try:
            outputs = self.oracle(*self.args)
            outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
            cotangents = [draw.normal(*output.shape).to(output.dtype) for output in outputs]
            expected = self.oracle.gradients(self.args, self.wrt, cotangents)
        except Exception:  # no gradient flows through the oracle either
            return None
        flowing = [i for i, g in enumerate(expected) if g is not None and bool(g.any())]
        if not flowing:
            return None
        cut = f"`{self.name}` returns the correct numbers, but the gradient is cut: {{}} {_CUTS}"
        try:
            seen = subject.gradients(self.name, self.args, self.wrt, cotangents)
        except WrongKind:
            return cut.format("none flows back")
        except TooSlow:
            return None
        except StudentError as error:  # on numbers for which it has just been right
            is_in_place = isinstance(error, Crashed) and re.search(CHANGES_IN_PLACE, error.text)
            return None if is_in_place else cut.format(error)  # which is another mistake
        for index in flowing:
            label, found = self.labels[self.wrt[index]], seen[index]
            right = expected[index]
            if found is None or (right is not None and found.shape != right.shape):
                return cut.format(f"none reaches `{label}`")
            if right is None or not found.isfinite().all():
                continue  # no gradient, or one that is lost and not cut
            if differs(label, found, right, self.tolerance):
                return cut.format(f"not all of it reaches `{label}`")
        return None


def wrong_after_another(subject: Subject, calls: Sequence[Call]) -> tuple[str, str] | None:
    """Call a function with the inputs of one check, then in the same process with those of another.

    There is a process for each call: its inputs come first, and again before those of each other.
    Of many calls some are made, since the time grows with the square of their number, and fewer of
    slow code, in an order that is drawn.

    Returns:
        If a call is wrong, the seed of the later of the two checks, the earliest such, and how.

    """
    found: list[tuple[int, Call, str]] = []
    calls = calls[:: math.ceil(len(calls) / _MOST_TOGETHER)]
    draw, started = Case(f"{calls[0].seed}/together"), time.monotonic()
    for nth, place in enumerate(draw.shuffled(range(len(calls)))):
        with subject.together(one_module=True):
            for other in draw.shuffled(range(len(calls))):
                if nth and time.monotonic() - started > _SECONDS_TOGETHER:
                    break
                if place == other:
                    continue
                first, call, later = calls[place], calls[other], max(place, other)
                with contextlib.suppress(StudentError):
                    subject.call(first.name, *first.args)
                if problem := call.problem(subject):
                    found.append((later, call, f"{_lacking(first, call)}In that call: {problem}"))
    if not found:
        return None
    later, call, problem = min(found, key=lambda each: each[0])
    with subject.together(one_module=True):
        if alone := call.problem(subject):  # its check had asked with other numbers
            return calls[later].seed, alone
    return calls[later].seed, (
        f"`{calls[0].name}` is correct in its first call, but wrong after another one with "
        f"other inputs: it keeps state between calls. {problem}"
    )


def _lacking(earlier: Call, call: Call) -> str:
    """Say which arguments a call lacks that an earlier one had, such as a mask."""
    places = itertools.zip_longest(earlier.labels, earlier.args, call.args)
    names = [f"`{name}`" for name, had, has in places if had is not None and has is None]
    return f"The earlier call had {' and '.join(names)}, this one has none. " if names else ""


_NAN_GRADIENT = (
    ": 0 times infinity, from a number that overflows or is divided by 0 and is then replaced or "
    "not chosen (torch.where, masked_fill, nan_to_num). Change the number before it is used"
)

_CUTS = (
    "(look for .detach(), .item(), .data, torch.tensor(...), torch.no_grad() or NumPy on the way)"
)

_IN_PLACE = (
    "`{}` changes its argument {} in place (an operation that ends in _, an assignment into "
    "it, or +=): work on new tensors"
)


def expect_inputs_unchanged(
    subject: Subject,
    case: Case,
    name: str,
    inputs: Inputs,
    lent: Sequence[Callable[..., Any]] = (),
) -> None:
    """Expect a function to leave its arguments as they were, and to leave no gradient on them.

    Args:
        subject: The code under test.
        case: Draws the inputs, and holds the known mistakes.
        name: The function to call.
        inputs: Draws its arguments from a case.
        lent: Functions that are passed to it before these.

    Raises:
        CheckFailed: If it changed one in place; it names the known mistakes that change it too.

    """
    args = inputs(case)
    try:
        changed = _changed(subject, name, args, lent)
    except StudentError as error:
        raise CheckFailed(str(error)) from error
    if changed is None:
        return

    def explain() -> Explanation:
        alike = []
        for mistake in case.mistakes:
            with contextlib.suppress(StudentError):
                if _changed(known(mistake), name, args, lent) == changed:
                    alike.append(mistake)
        names = dict(enumerate(subject.parameters(name)[len(lent) :]))
        which = f"`{names[changed]}`" if changed in names else f"number {changed + 1}"
        return _IN_PLACE.format(name, which), alike, ""

    raise CheckFailed(_IN_PLACE.format(name, f"number {changed + 1}"), explain=explain)


def _changed(
    subject: Subject,
    name: str,
    args: tuple[Any, ...],
    lent: Sequence[Callable[..., Any]] = (),
) -> int | None:
    """Return the index of the first argument that a function changes in place, if any."""
    if isinstance(subject, RecordedSubject):  # its bits may differ from those of this machine
        return subject.answer(
            ("changed", name, args), lambda code: _changed(code, name, args, lent)
        )
    _, after = subject.call_and_return_inputs(name, *map(subject.lend, lent), *args)
    for index, (before, now) in enumerate(zip(args, after[len(lent) :], strict=True)):
        if pack(before) != pack(now):
            return index
    return None


def drawn_once(case: Case, draw: Callable[[Case], Any]) -> Any:
    """Draw what all checks of an exercise share, such as the models that a test is to judge.

    What a test is given must not be known beforehand: a list of results would pass for a test.

    Args:
        case: That of any of the checks.
        draw: Draws it from a case that all of them have in common.

    """
    key = ("drawn", draw)
    if key not in case.memory:
        case.memory[key] = draw(Case(f"{case.seed.rpartition('/')[0]}/{draw.__name__}"))
    return case.memory[key]


def expect_test_judges(
    subject: Subject,
    case: Case,
    name: str,
    right: Implementations,
    wrong: Implementations,
    must_catch: str,
    why: Callable[[Sequence[Tensor]], str] = lambda expected: "",
) -> None:
    """Expect a test that the student wrote to catch a bug and to accept correct implementations.

    The test takes an implementation, and raises AssertionError if that is wrong. Catching a bug
    earns nothing if the test also rejects a correct implementation. Correct and wrong ones come in
    an order drawn from the seed, about as many of each. They come again until verdicts that do not
    depend on the implementation would earn something at most once in a thousand times.

    Args:
        subject: The code under test.
        case: Holds the known mistakes, which are faulty tests here.
        name: The student's test.
        right: Correct implementations, by a description.
        wrong: Wrong implementations, by a description.
        must_catch: The description of the wrong one that this check is about.
        why: Takes the correct results on the inputs that the test chooses, each as a row of
            numbers; says why they do not show this bug, or nothing.

    Raises:
        CheckFailed: If the bug passes the test, or if a correct implementation does not.

    """
    lent = _lendable({**right, **wrong})
    key = ("", name, *lent)
    if key not in case.memory:
        case.memory[key] = _until_not_luck(subject, case, name, lent, list(right), list(wrong))
    verdicts, changing = case.memory[key]
    judged = must_catch
    for description in right:
        if (verdict := verdicts[description]) is not None:
            judged = description
            problem = f"`{name}` rejects a correct implementation ({description}). {verdict}"
            break
    else:
        if verdicts[must_catch] is not None:
            return
        problem = f"`{name}` lets a wrong implementation pass: {must_catch}"

    def explain() -> Explanation:
        said = problem
        is_rejected = verdicts[judged] is not None
        if judged in changing or (is_rejected and _passes_again(subject, name, lent[judged])):
            said += (
                ". Your test is not deterministic: called again on the same function, it gives the "
                "opposite result. Draw its numbers from a torch.Generator with a seed, and leave "
                "room for rounding"
            )
        else:
            with contextlib.suppress(Exception):  # what is found out beside the verdict
                accepted = [d for d in right if verdicts[d] is None]
                given = lent, judged, list(right), accepted
                said += _on_its_inputs(subject, name, *given, why)
            if verdicts[judged] is None:
                with contextlib.suppress(StudentError):
                    seen = subject.call_without_trace(name, subject.lend(lent[judged]))
                    if seen is not None:
                        said += f". It returned {describe(seen)}, which is ignored: `assert` what "
                        said += "must hold, so that your test raises AssertionError"
                        return said, (), ""
        return said, _tests_alike(case, name, lent, verdicts), ""

    raise CheckFailed(problem, explain=explain)


def _passes_again(subject: Subject, name: str, implementation: Callable[..., Any]) -> bool:
    with contextlib.suppress(CheckFailed):  # no time is left
        return None in (_verdict(subject, name, implementation) for _ in range(_AGAIN))
    return False


def _tests_alike(
    case: Case, name: str, lent: Implementations, verdicts: Mapping[str, str | None]
) -> list[Answer]:
    """Return the known faulty tests that reject the same implementations."""
    alike = []
    for mistake in case.mistakes:
        key = (mistake.name, name, *lent)
        try:
            if key not in case.memory:
                code = known(mistake)
                case.memory[key] = {d: _verdict(code, name, lent[d]) for d in lent}
        except CheckFailed:
            continue
        theirs = case.memory[key]
        if all((theirs[d] is None) == (verdicts[d] is None) for d in verdicts):
            alike.append(mistake)
    return alike


def expect(condition: bool, otherwise: str) -> None:
    """Expect something that needs no diagnosis.

    Raises:
        CheckFailed: With the sentence `otherwise`, if `condition` is false.

    """
    if not condition:
        raise CheckFailed(otherwise)


def _expect(
    subject: Subject,
    case: Case,
    name: str,
    inputs: Inputs,
    judge: Judge,
    oracle: Callable[..., Any] | None,
    tolerance: float | None = None,
    compared: Sequence[int] = (),
    correct: Callable[..., Any] | None = None,
    also: Sequence[Inputs] = (),
    draws: int = 1,
) -> None:
    # All calls are made whatever the first one returns: fewer would tell the next check.
    drawn = [inputs(case) for _ in range(draws)]
    asked = [(args, *attempt(subject, name, args, judge)) for args in drawn]
    args, problem, error = next((one for one in asked if one[1] is not None), asked[0])
    if problem is None:
        return
    if isinstance(error, StudentError) and not isinstance(error, Crashed):
        raise CheckFailed(problem) from error

    def explain() -> Explanation:
        said = problem
        alike = mistakes_alike(subject, case, name, inputs, judge, tolerance, compared, also)
        if alike:  # who knows what it is need not guess
            said = said.replace(f"{NEARLY_CORRECT} ", ". ").replace(NEARLY_CORRECT, "")
        if error is not None:
            return said, alike, shown_shapes(args, judge, oracle)
        if isinstance(oracle, Oracle) and not alike and not is_recording():
            said += Wrong(
                subject, case, name, args, inputs, judge, oracle, tolerance, compared
            ).said()
        shown = oracle or correct
        is_one = correct is not None
        example = smallest_example(subject, case, name, args, inputs, judge, shown, is_one)
        return said, alike, example

    raise CheckFailed(problem, explain=explain)


def expect_any_sizes(subject: Subject, call: Call, is_wrong_elsewhere: bool = False) -> None:
    """Expect a function that is right for some inputs to be right for other sizes, and after them.

    Once for each function, because it is the same code in all checks, however slow it is: a pause
    must not spare it the question.

    Args:
        subject: The code under test.
        call: A call that was right.
        is_wrong_elsewhere: Whether another check has failed: then no cause is suggested here.

    Raises:
        CheckFailed: If it is not.

    """
    case, inputs = call.case, call.inputs
    others = {axis: sizes[-1] for axis, sizes in case.shrinkable().items() if sizes}
    try:
        earlier = inputs(case.smaller({**case.asked, **others}, rounded=False))
        call.judge(None, *earlier)
    except Exception:  # other sizes fit neither the inputs nor the oracle
        return
    with subject.together(one_module=True):
        problem = replace(call, args=earlier).problem(subject)
        if problem is None and (later := call.problem(subject)):
            raise CheckFailed(
                f"`{call.name}` is correct in its first call, but wrong after a call with inputs "
                f"of other sizes: it keeps state between calls. In that call: {later}"
            )
    if problem is None:
        return

    def explain() -> Explanation:
        fresh = inputs(case.fresh(0))
        wrong, error = attempt(subject, call.name, fresh, call.judge)
        if isinstance(error, (Died, TooSlow)):
            raise error
        if not others or wrong:
            said, which = "some numbers, but not for others of the same sizes", "For those others"
            asked = "is a case forgotten, or does it keep state between calls?"
        else:
            said, which = "some sizes, but not for ", "With those sizes"
            said += ", ".join(f"{axis} {size}" for axis, size in others.items())
            asked = "does it rely on one of them, or keep state from an earlier call?"
        said += "." if is_wrong_elsewhere else f": {asked}"
        name, judge, oracle = call.name, call.judge, call.oracle
        alike = mistakes_alike(subject, case, name, inputs, judge, call.tolerance)
        example = smallest_example(subject, case, name, earlier, inputs, judge, oracle)
        return f"`{name}` is correct for {said} {which}: {problem}", alike, example

    raise CheckFailed(f"`{call.name}` is correct for some inputs only: {problem}", explain=explain)


def _until_not_luck(
    subject: Subject,
    case: Case,
    name: str,
    lent: Implementations,
    right: Sequence[str],
    wrong: Sequence[str],
) -> tuple[dict[str, str | None], set[str]]:
    """Run a test on each implementation, again and again.

    Returns:
        None for each that passes, else the message; and those that passed once and once did not.

    A round holds every wrong implementation once and as many correct ones. If a test fails `f`
    times in a round of `N`, whatever it is given, then the failures are all among the `W` wrong
    ones and include a given `s` of them with probability C(W - s, f - s) / C(N, f). There are
    C(W, s) such sets. A wrong implementation is caught if it is caught in every round.

    A test that is right needs `fewest` rounds; no other gets less, which would tell the next check.
    """
    draw = case.fresh(0)
    rights = list(itertools.islice(itertools.cycle(right), max(len(right), len(wrong))))
    found: dict[str, str | None] = dict.fromkeys(lent)
    caught, rounds, passed, ways = set(wrong), [], set(), 1.0
    fewest = math.ceil(-math.log(_LUCK) / math.log(math.comb(len(rights) + len(wrong), len(wrong))))
    while len(rounds) < fewest or (
        ways > _LUCK and caught and not any(found[description] for description in right)
    ):
        said = [(d, _verdict(subject, name, lent[d])) for d in draw.shuffled([*rights, *wrong])]
        found.update((d, words) for d, words in said if words is not None)
        passed |= {d for d, words in said if words is None}
        caught -= passed
        rounds.append(sum(words is not None for _, words in said))
        ways, num_caught = math.comb(len(wrong), len(caught)), len(caught)
        for failed in rounds:
            ways *= math.comb(max(len(wrong) - num_caught, 0), max(failed - num_caught, 0))
            ways /= math.comb(len(said), failed)
    verdicts = {d: None if d in wrong and d not in caught else found[d] for d in lent}
    return verdicts, {d for d in passed if found[d]}


def _on_its_inputs(
    subject: Subject,
    name: str,
    lent: Implementations,
    judged: str,
    right: Sequence[str],
    accepted: Sequence[str],
    why: Callable[[Sequence[Tensor]], str],
) -> str:
    """Say how an implementation differs from correct ones on the inputs that a test chooses."""
    calls: list[tuple[Any, ...]] = []
    seen: list[Tensor] = []

    def noting(*args: Any, **kwargs: Any) -> Any:
        if len(calls) > _MOST_NOTED:
            return lent[judged](*args, **kwargs)
        given = copy.deepcopy((args, kwargs))
        result = lent[judged](*args, **kwargs)
        calls.append(given)
        seen.append(_numbers(result))
        return result

    stopped = _verdict(subject, name, noting) or ""
    if not calls:
        return ". Your test never calls the function that it is given"
    if len(calls) > _MOST_NOTED:
        return ""
    every = judged in right and not accepted
    said = ". It rejects every other correct one, too" if every and len(right) > 1 else ""
    theirs = {d: [_numbers(lent[d](*args, **kwargs)) for args, kwargs in calls] for d in right}
    others = [d for d in (right if every else accepted) if d != judged]
    if not others:
        return said
    nearest = min(others, key=lambda d: _gap(seen, theirs[d]))
    if judged not in right:
        return _of_a_bug(seen, theirs[nearest], list(theirs.values()), why)
    gap, largest = _gap(seen, theirs[nearest]), _largest(theirs[nearest])
    if not 1e-17 * largest < gap <= _ROUNDING * largest:
        asked = "are the numbers it compares with rounded, or of another shape, dtype or input?"
        return f"{said}: {asked}" if said else ""
    off = f"its results differ by up to {number(gap)} from those of another correct one ({nearest})"
    if every:
        return (
            f"{said}. On your inputs {off}: if your test allows for that much, it compares what "
            "need not be equal"
        )
    allow = "allow for rounding, by an absolute tolerance"
    if "allclose" in stopped and "atol" not in stopped:
        allow += " (the default atol of 1e-8 is too small for entries near 0)"
    return f"{said}. On your inputs {off}: {allow}"


def _of_a_bug(
    seen: Sequence[Tensor],
    expected: Sequence[Tensor],
    right: Sequence[Sequence[Tensor]],
    why: Callable[[Sequence[Tensor]], str],
) -> str:
    """Say how wrong results differ from expected ones, though no assertion failed.

    Where correct ones differ from each other, as at padded positions, nothing is expected; one that
    differs nearly everywhere does something else, such as look back less far, and has no say.
    """
    if all(map(close, seen, expected)):
        return (
            ". On the inputs of your test it returns what a correct one returns, up to rounding: "
            + (why(expected) or "choose inputs for which this bug changes the result")
        )
    row, largest = torch.cat(list(expected)), _largest(expected)
    agreeing = [(torch.cat(list(one)) - row).abs() <= _ROUNDING * largest for one in right]
    agreed = torch.stack([a for a in agreeing if a.double().mean() > 0.5]).all(dim=0)
    gap = _gap([torch.cat(list(seen))[agreed]], [row[agreed]])
    if gap == math.inf:
        said = ". On the inputs of your test it gives NaN or infinity, and no assertion fails"
        isnt = ": NaN is not above any tolerance; assert that the error is below yours"
        return said + isnt * bool(torch.cat(list(seen)).isnan().any())
    if not gap:
        return ""
    advice = "choose inputs for which this bug changes more"
    if gap > _VISIBLE * largest:
        advice = (
            "what you assert holds for these wrong numbers, too. Assert more of them, or choose "
            "inputs for which it does not"
        )
    elif gap > _TOO_SMALL * largest:
        advice = f"compare all of them, more closely, or {advice}"
    return (
        f". On the inputs of your test its results are off by up to {number(gap)} (the largest "
        f"correct one is {number(largest)}), and no assertion fails: {why(expected) or advice}"
    )


def _numbers(result: Any) -> Tensor:
    """Return the numbers of a result in one row, those of a dict in the order of its keys."""
    if isinstance(result, dict):
        result = [result[key] for key in sorted(result, key=str)]
    if isinstance(result, (list, tuple)):
        return torch.cat([torch.empty(0, dtype=torch.float64), *map(_numbers, result)])
    row = torch.as_tensor([] if result is None else result).detach().flatten()
    return row.to(torch.float64, copy=True)


def _largest(rows: Sequence[Tensor]) -> float:
    """Return the largest finite magnitude."""
    return float(torch.cat(list(rows)).nan_to_num(0, 0, 0).abs().amax())


def _gap(ones: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """Return by how much numbers differ at most, infinity if one of two is NaN or infinite."""
    largest = 0.0
    for one, other in zip(ones, others, strict=True):
        is_same = (one == other) | (one.isnan() & other.isnan())
        gap = (one - other).abs().nan_to_num(math.inf, math.inf).masked_fill(is_same, 0.0)
        largest = max([largest, *gap.tolist()])
    return largest


def _lendable(implementations: Implementations) -> Implementations:
    """Give implementations one signature: that of the fewest parameters."""
    signatures = []
    for implementation in implementations.values():
        with contextlib.suppress(TypeError, ValueError):  # some of torch's keep theirs
            signatures.append(inspect.signature(implementation))
    shared = min(signatures, key=lambda signature: len(signature.parameters), default=None)
    return {label: _labelled(label, f, shared) for label, f in implementations.items()}


def _labelled(
    label: str, function: Callable[..., Any], signature: inspect.Signature | None
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if signature is None:
            return function(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return function(*bound.args)

    call.label = label  # type: ignore[attr-defined]
    return call


def _verdict(subject: Subject, name: str, implementation: Callable[..., Any]) -> str | None:
    try:
        subject.call_without_trace(name, subject.lend(implementation))
        return None
    except Crashed as error:
        if error.kind == "AssertionError":
            if error.text and error.text not in error.where:
                return f"Its message: {error.text}"
            # The line is more informative than an assertion without a message.
            return f"It stopped{error.where or ' at an assertion without a message'}"
        said = _BY_ASSERT
        if any(sign in error.text for sign in _REFUSED):
            said = _WHILE_JUDGED
        raise CheckFailed(f"{error}. {said}") from error
    except StudentError as error:
        raise CheckFailed(str(error)) from error
