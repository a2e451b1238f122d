"""What a file of checks is written with: exercises, points, cases, and expectations that explain.

A check is a method of a test class, over two things. `subject` is the code under test, wherever it
runs. `case` draws the inputs from a seed. An expectation that is not met says what was seen and
what was expected, names the mistake if the code behaves exactly like a known one on fresh inputs,
and shows the smallest case on which it goes wrong.
"""

import contextlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from classroom.answers import Answer
from classroom.cases import Case
from classroom.comparing import differs, wrong_form
from classroom.diagnosis import (
    SECONDS_PER_MISTAKE,
    BrokenCheck,
    Crash,
    Inputs,
    Judge,
    Request,
    answering_alike,
    attempt,
    mistakes_alike,
    shown_shapes,
    smallest_example,
)
from classroom.subjects import Crashed, LocalSubject, StudentError, Subject
from classroom.wire import pack

DIAGNOSIS = re.compile(r"This is (the mistake|one of \d+ mistakes)")
"""How the sentence of a message begins that names a mistake."""

Implementations = Mapping[str, Callable[..., Any]]


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """What is known about an exercise besides its checks.

    Attributes:
        name: Name of the function to write; the grade ids of its cells derive from it.
        number: As printed, such as `1.4`.
        title: As printed.
        asks: What to write, in a sentence; shown to whoever left it blank.
        difficulty: From 1 (a line) to 5 (an evening).
        importance: From 1 (a detail) to 5 (the rest stands on it).
        minutes: For a student who has read the chapter.
        optional: Whether a course may leave it out.
        files: Names of files to hand in beside the notebook, such as `model.safetensors`, which
            checks read by `Subject.file`.

    """

    name: str
    number: str
    title: str
    asks: str
    difficulty: int
    importance: int
    minutes: int
    optional: bool = False
    files: tuple[str, ...] = ()


def exercise(name: str, **about: Any) -> Callable[[type], type]:
    """Make a test class the checks of one exercise; the arguments are those of `Exercise`."""

    def mark(checks: type) -> type:
        checks.exercise = Exercise(name=name, **about)  # type: ignore[attr-defined]
        return checks

    return mark


def points(number: int) -> Callable[[Callable], Callable]:
    """Say how many points a check is worth."""

    def mark(check: Callable) -> Callable:
        check.points = number  # type: ignore[attr-defined]
        return check

    return mark


class CheckFailed(AssertionError):
    """An expectation was not met.

    Attributes:
        problem: What was seen and expected, in a sentence or a few lines.
        mistakes: The known mistakes that behave exactly like this; several if the inputs
            cannot tell them apart.
        example: The smallest case found, as lines of text.

    """

    def __init__(self, problem: str, mistakes: Sequence[Answer] = (), example: str = ""):
        self.problem = problem
        self.mistakes = tuple(mistakes)
        self.example = example
        super().__init__(str(self))

    @property
    def diagnosis(self) -> str:
        """A sentence that names the mistake, empty if none is known."""
        if not self.mistakes:
            return ""
        if len(self.mistakes) == 1:
            mistake = self.mistakes[0]
            return f"This is the mistake “{mistake.title}”: {mistake.explanation}"
        either = "; or ".join(f"“{m.title}”: {m.explanation}" for m in self.mistakes)
        return f"This is one of {len(self.mistakes)} mistakes that look alike here: {either}"

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
) -> None:
    """Expect a function of the student's to return what `oracle` returns.

    Args:
        subject: The code under test.
        case: Where the inputs come from.
        name: The function to call.
        inputs: Draws its arguments from a case.
        oracle: Computes the right result from the same arguments.
        returns: What is returned, in order: the name of each result and the words of its axes,
            such as `{"output": "batch q_len d_value"}`; a number has no axes: `""`.
        compare: Names of the results whose numbers are compared here, all by default. Kinds and
            shapes are always checked.
        tolerance: How far off numbers may be where their precision is left to the student; as
            in `comparing.same`.
        alike: How far apart the results of two programs may be that make the same mistake;
            `tolerance` by default.

    Raises:
        CheckFailed: If anything differs.

    """
    labels = list(returns)
    compared = labels if compare is None else compare

    def judge(seen: Any, *args: Any) -> str | None:
        try:
            expected = oracle(*args)
        except Exception as error:
            raise BrokenCheck(f"its oracle raised {type(error).__name__}: {error}") from error
        if len(labels) == 1:
            seen, expected = (seen,), (expected,)
        if problem := wrong_form(seen, expected, returns, name):
            return problem
        for label, s, e in zip(labels, seen, expected, strict=True):
            if label in compared and (problem := differs(label, s, e, tolerance)):
                return problem
        return None

    alike = tolerance if alike is None else alike
    _expect(subject, case, name, inputs, judge, oracle, alike)


def expect_law(subject: Subject, case: Case, name: str, inputs: Inputs, judge: Judge) -> None:
    """Expect the result of a function to obey a law.

    Args:
        subject: The code under test.
        case: Where the inputs come from.
        name: The function to call.
        inputs: Draws its arguments from a case.
        judge: Given the result and the arguments, returns None if the law holds, else a
            sentence that says how it is broken. What it raises counts as broken form.

    Raises:
        CheckFailed: If the law is broken.

    """
    _expect(subject, case, name, inputs, judge, None)


def expect_answer(
    subject: Subject,
    case: Case,
    requests: Sequence[Request],
    judge: Judge,
    tolerance: float | None = None,
    may_crash: bool = False,
) -> None:
    """Expect the answer to the first of some requests to pass; diagnose by the answers to all.

    For what one call of one function does not show: gradients, several calls that belong
    together, a function lent, an exception that is asked for. A crash counts as an answer: where
    only what an exception says tells two mistakes apart, it does.

    Args:
        subject: The code under test.
        case: Carries the known mistakes.
        requests: Functions of a subject.
        judge: Given the answer to the first, returns None or a sentence that says what is wrong.
        tolerance: How far apart the answers of two programs may be that make the same mistake;
            as in `comparing.same`.
        may_crash: Whether `judge` is given a `Crash`, too, instead of it being wrong anyway.

    Raises:
        CheckFailed: If the first answer does not pass.

    """
    try:
        problem = judge(requests[0](subject))
    except Crashed as error:
        problem = judge(Crash(error.kind, error.text)) if may_crash else str(error)
    except StudentError as error:
        raise CheckFailed(str(error)) from error
    if problem is not None:
        raise CheckFailed(problem, answering_alike(requests, subject, case.mistakes, tolerance))


def expect_gradients(
    subject: Subject,
    case: Case,
    name: str,
    inputs: Inputs,
    oracle: Callable[..., Any],
    wrt: Sequence[str],
) -> None:
    """Expect gradients to flow through a function as they flow through `oracle`.

    Args:
        subject: The code under test.
        case: Where the inputs and the cotangents come from.
        name: The function to differentiate.
        inputs: Draws its arguments from a case.
        oracle: A right implementation that autograd can differentiate.
        wrt: Names of the arguments to differentiate by.

    Raises:
        CheckFailed: If a gradient is missing or different.

    """
    parameters = list(inspect.signature(oracle).parameters)
    indices = [parameters.index(label) for label in wrt]
    args = inputs(case)
    reference = LocalSubject({name: oracle})
    try:
        outputs = reference.call(name, *args)
        outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        cotangents = [case.normal(*output.shape) for output in outputs]
        expected = reference.gradients(name, args, indices, cotangents)
    except StudentError as error:
        raise BrokenCheck(f"its oracle has no gradients: {error}") from error
    try:
        seen = subject.gradients(name, args, indices, cotangents)
    except StudentError as error:
        raise CheckFailed(str(error)) from error
    for label, s, e in zip(wrt, seen, expected, strict=True):
        if s is None:
            raise CheckFailed(
                f"no gradient reaches `{label}`: part of the computation is cut off from it"
            )
        if problem := differs(f"the gradient by {label}", s, e):
            raise CheckFailed(problem)


def expect_inputs_unchanged(subject: Subject, case: Case, name: str, inputs: Inputs) -> None:
    """Expect a function to leave its arguments as they were.

    Raises:
        CheckFailed: If it changed one in place; names the known mistakes that change it, too.

    """
    args = inputs(case)
    try:
        changed = _changed(subject, name, args)
    except StudentError as error:
        raise CheckFailed(str(error)) from error
    if changed is None:
        return
    alike = []
    for mistake in case.mistakes:
        known = LocalSubject(mistake.namespace, seconds=SECONDS_PER_MISTAKE)
        with contextlib.suppress(StudentError):
            if _changed(known, name, args) == changed:
                alike.append(mistake)
    raise CheckFailed(
        f"`{name}` changes its argument number {changed + 1} in place (an operation that ends in "
        "_, an assignment into it, or +=): work on new tensors",
        alike,
    )


def _changed(subject: Subject, name: str, args: tuple[Any, ...]) -> int | None:
    """Return which argument a function changes first, if any."""
    _, after = subject.call_and_return_inputs(name, *args)
    for index, (before, now) in enumerate(zip(args, after, strict=True)):
        if pack(before) != pack(now):
            return index
    return None


def expect_test_judges(
    subject: Subject,
    case: Case,
    name: str,
    right: Implementations,
    wrong: Implementations,
    must_catch: str,
) -> None:
    """Expect a test that the student wrote to catch a bug and to raise no false alarm.

    The test takes an implementation, and raises AssertionError if it finds it wrong. It earns
    nothing for catching a bug while it also condemns a right implementation.

    Args:
        subject: The code under test.
        case: Carries the known mistakes; a mistake here is a test that judges badly.
        name: The student's test.
        right: Right implementations, by a description.
        wrong: Wrong implementations, by a description.
        must_catch: The wrong one that this check is about.

    Raises:
        CheckFailed: If the bug gets past, or a right implementation does not.

    """
    verdicts = _verdicts(case, subject, "", name, {**right, **wrong})
    problem = None
    for description in right:
        if verdicts[description] is not None:
            problem = (
                f"your test rejects a right implementation ({description}). {verdicts[description]}"
            )
            break
    else:
        if verdicts[must_catch] is None:
            problem = f"your test lets a wrong implementation pass: {must_catch}"
    if problem is None:
        return
    alike = []
    for mistake in case.mistakes:
        known = LocalSubject(mistake.namespace, seconds=SECONDS_PER_MISTAKE)
        try:
            theirs = _verdicts(case, known, mistake.name, name, {**right, **wrong})
        except CheckFailed:
            continue
        if all((theirs[d] is None) == (verdicts[d] is None) for d in verdicts):
            alike.append(mistake)
    raise CheckFailed(problem, alike)


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
) -> None:
    problem, error = attempt(subject, case, name, inputs, judge)
    if problem is None:
        return
    if isinstance(error, StudentError) and not isinstance(error, Crashed):
        raise CheckFailed(problem) from error
    alike = mistakes_alike(subject, case, name, inputs, judge, tolerance)
    if error is None:
        example = smallest_example(subject, case, name, inputs, judge, oracle)
    else:
        example = shown_shapes(case, inputs, judge, oracle)
    raise CheckFailed(problem, alike, example)


def _verdicts(
    case: Case, subject: Subject, who: str, name: str, implementations: Implementations
) -> dict[str, str | None]:
    """Run a test on each implementation: None where it passes, else what it said.

    Remembered for the other checks of the exercise, because tests can be slow.
    """
    key = (who, name, *implementations)
    if key not in case.memory:
        case.memory[key] = {
            description: _verdict(subject, name, implementation)
            for description, implementation in implementations.items()
        }
    return case.memory[key]


def _verdict(subject: Subject, name: str, implementation: Callable[..., Any]) -> str | None:
    try:
        subject.call(name, subject.lend(implementation))
        return None
    except Crashed as error:
        if error.kind == "AssertionError":
            if error.text:
                return f"It said: {error.text}"
            # The line says more than an assertion without words.
            return f"It stopped{error.where or ' at an assertion without a message'}"
        raise CheckFailed(f"{error}. A test says that something is wrong with `assert`") from error
    except StudentError as error:
        raise CheckFailed(str(error)) from error
