"""Finds the checks of an exercise in an assignment's `checks.py`, and runs them.

Checks look like tests for pytest, but are called directly: a pytest session takes ten times as long
as the checks of an exercise, which need none of its features.
"""

import contextlib
import functools
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from classroom.calls.local import Settings
from classroom.calls.subject import Crashed, NotByHand, NotWritten, StudentError, Subject
from classroom.calls.wire import Handle
from classroom.course import PUBLISHED_SEED, SEED_VARIABLE, folder_for
from classroom.exercise import prepared
from classroom.exercise.answers import Answer
from classroom.exercise.cases import Case
from classroom.exercise.diagnosis import shown_call
from classroom.exercise.expect import (
    Call,
    CheckFailed,
    Exercise,
    expect_any_sizes,
    wrong_after_another,
)
from classroom.exercise.prepared import WRONG_FORM, BrokenCheck
from classroom.exercise.report import CheckResult, Report
from classroom.exercise.usage import CALLS

MAX_MESSAGE_LENGTH = 5000
_LONGEST_CALL = 400


@dataclass(frozen=True)
class _Found:
    exercise: Exercise
    test_class: type
    checks: dict[str, int]
    """The points of each check, by the name of its test."""
    only_with: dict[str, tuple[str, ...]]
    """The checks that must pass for each check to count."""


def run_checks(folder: Path, name: str, subject: Subject, seed: str | None = None) -> Report:
    """Run all checks of one exercise against a subject, in an order drawn from the seed.

    What a check asks for is thus not known by the number of the call.

    Args:
        folder: An assignment's folder, with `checks.py`, and `mistakes.py` or `prepared.zip`.
        name: The exercise.
        subject: The code under test.
        seed: Determines the inputs; by default the environment variable `CLASSROOM_SEED`, else the
            published seed.

    Raises:
        FileNotFoundError: If there is no `checks.py` in the folder.
        ValueError: If it has no exercise of that name, or if the folder is a handout, which
            supports only the published seed, and the solutions are not at hand.

    """
    seed = seed or os.environ.get(SEED_VARIABLE) or PUBLISHED_SEED
    folder = folder_for(Path(folder), seed)
    collected = _collect(folder)
    if name not in collected:
        raise ValueError(f"no exercise is called {name!r}; there are: {', '.join(collected)}")
    found = collected[name]
    memory: dict[Any, Any] = {}
    problems: dict[str, BaseException | None] = {}
    asking: dict[str, _Asked] = {}
    with Settings().in_force(), prepared.checking(folder, name) as mistakes:
        for test in Case(f"{seed}/{name}").shuffled(found.checks):
            case = Case(f"{seed}/{name}/{test}", mistakes, memory=memory)
            asking[test] = _Asked(subject, found.exercise.by_hand, mistakes)
            check = getattr(found.test_class(), test)
            check = functools.partial(check, subject=asking[test], case=case)
            problems[test] = _run(check, asking[test], found.exercise)
        with _silenced():
            try:
                _fail_what_passed(found, subject, asking, memory, problems, f"{seed}/{name}/")
            except BrokenCheck as error:
                problems[test] = problems[test] or error
        # Only now: nothing that explains a failure may help a check that is not decided yet.
        for test, asked in asking.items():
            if isinstance(problem := problems[test], CheckFailed):
                explain = functools.partial(asked.explain, problem)
                other = _run(explain, asked, found.exercise)
                problems[test] = problem if isinstance(other, StudentError) else other or problem
    results = []
    for test, value in found.checks.items():
        first = next((p for t in (test, *found.only_with[test]) if (p := problems[t])), None)
        is_said = any(result.is_blank for result in results)
        result = _result(found.exercise, test, value, first, is_said)
        results.append(replace(result, is_waiting=bool(first and not problems[test])))
    return Report(name, f"{found.exercise.number} {found.exercise.title}", tuple(results))


def _fail_what_passed(
    found: _Found,
    subject: Subject,
    asking: Mapping[str, Any],
    memory: Mapping[Any, Any],
    problems: dict[str, BaseException | None],
    seeds: str,
) -> None:
    """Fail one check of each function that keeps something, cuts a gradient or changes its inputs.

    For a gradient or a change in place, it is the check that is worth least, and only if all passed
    that call the function: of wrong numbers the gradient is wrong as well.
    """
    called, is_wrong_elsewhere = memory.get(CALLS, {}), any(problems.values())
    for calls in called.values():
        test = calls[0].seed.removeprefix(seeds)
        try:
            expect_any_sizes(asking[test], calls[0], is_wrong_elsewhere)
        except CheckFailed as failed:
            problems[test] = problems[test] or failed
        if kept := wrong_after_another(subject, calls):
            test = kept[0].removeprefix(seeds)
            problems[test] = problems[test] or CheckFailed(kept[1])
    may_cut = found.exercise.may_cut
    for name, calls in called.items():
        has_failed = any(problems[test] and name in asking[test].names for test in found.checks)
        if has_failed or not (flowing := [call for call in calls if call.wrt]):
            continue
        # At an edge, such as minus infinity, correct functions may differ in their gradients.
        tamest, failed = min(flowing, key=Call.largest_entry), None
        try:
            with subject.together():
                problem = tamest.changed_input(subject)
                if not problem and not found.exercise.by_hand and name not in may_cut:
                    problem = tamest.cut_gradient(subject, flowing[0].seed)
            failed = CheckFailed(problem) if problem else None
        except (*WRONG_FORM, MemoryError) as error:
            failed = _of_no_form(error, found.exercise)
        if failed:
            calling = [t for t in found.checks if any(seeds + t == call.seed for call in flowing)]
            problems[min(calling, key=found.checks.__getitem__)] = failed


class _Asked:
    """Code under test that is known to have answered, or not."""

    def __init__(self, subject: Subject, by_hand: bool, mistakes: Sequence[Answer]):
        self._subject = subject
        self._by_hand = by_hand
        self._mistakes = mistakes
        self.has_answered = False
        self.names: set[str] = set()
        self._crash: tuple[Crashed, str, tuple[Any, ...], dict[str, Any]] | None = None

    def explain(self, problem: CheckFailed) -> None:
        """Find out more about a problem; if it is the last crash, what was called, if short."""
        crash = self._crash  # explaining makes others
        with self._subject.together(explains=True):
            said, _, example = problem.explained()
        if example or not crash:
            return
        error, name, args, named = crash
        if str(error) not in said or all(isinstance(arg, Handle) for arg in args):
            return
        with contextlib.suppress(StudentError), self._subject.together(explains=True):
            labels = self._subject.parameters(name)[: len(args)]
            if len(labels) == len(args):
                called = shown_call([*zip(labels, args, strict=True), *named.items()])
                problem.example = called if len(called) <= _LONGEST_CALL else ""

    def __getattr__(self, name: str) -> Any:
        how = "call_by_hand" if self._by_hand and name == "call" else name
        asks = getattr(self._subject, how)

        def ask(*args: Any, **kwargs: Any) -> Any:
            self.names.update(arg for arg in args[:1] if isinstance(arg, str))
            try:
                found = asks(*args, **kwargs)
            except NotByHand as error:
                alike = [m for m in self._mistakes if _is_not_by_hand(m, args, kwargs)]
                raise CheckFailed(str(error), alike) from error
            except Crashed as error:
                if name == "call":
                    self._crash = error, *args[:1], args[1:], kwargs
                raise
            self.has_answered = self.has_answered or name not in ("lend", "together")
            return found

        return ask


def _is_not_by_hand(mistake: Answer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    try:
        prepared.known(mistake).call_by_hand(*args, **kwargs)
    except NotByHand:
        return True
    except StudentError:
        return False
    return False


def _of_no_form(error: BaseException, exercise: Exercise) -> CheckFailed:
    """Return the error of an answer that a check stumbled over."""
    why = f"{type(error).__name__}: {error}"
    return CheckFailed(
        f"what `{exercise.name}` returned has a form that cannot be judged ({why}): is it of the "
        f"kind and the shape that the exercise asks for? {exercise.asks}"
    )


def _run(check: Callable[[], Any], asked: _Asked, exercise: Exercise) -> BaseException | None:
    """Run one check, or the explanation of its failure; return what it raised, if anything."""
    try:
        with _silenced():
            check()
    except BaseException as error:
        # Any other exception, SystemExit too, fails the check.
        if type(error) is KeyboardInterrupt:
            raise
        if isinstance(error, (*WRONG_FORM, MemoryError)) and asked.has_answered:
            return _of_no_form(error, exercise)
        return error
    return None


def _result(
    about: Exercise, test: str, value: int, problem: BaseException | None, is_said: bool
) -> CheckResult:
    """Return the outcome of one check; what the exercise asks for `is_said` already, or not."""
    if problem is None:
        return CheckResult(in_words(test), value, value)
    cause = problem.__cause__ if isinstance(problem, CheckFailed) else problem
    if isinstance(cause, NotWritten):
        asks = "" if is_said else f" {about.asks}"
        return CheckResult(in_words(test), value, 0, f"{cause}.{asks}", is_blank=True)
    known = problem.mistakes if isinstance(problem, CheckFailed) else ()
    names = tuple(mistake.name for mistake in known)
    return CheckResult(in_words(test), value, 0, _message(problem), names)


def load_checks(folder: Path) -> dict[str, tuple[Exercise, str]]:
    """Return the exercises of an assignment by name and in the order of their numbers.

    Each comes with the name of its test class.

    Raises:
        FileNotFoundError: If there is no `checks.py` in the folder.
        ValueError: If it cannot be imported.

    """
    return {
        name: (found.exercise, found.test_class.__name__)
        for name, found in _collect(folder).items()
    }


def list_checks(folder: Path) -> dict[str, list[tuple[str, int]]]:
    """Return, for each exercise of an assignment, its checks in words with their points."""
    return {
        name: [(in_words(test), points) for test, points in found.checks.items()]
        for name, found in _collect(folder).items()
    }


def in_words(test_name: str) -> str:
    """Return the name of a test as a sentence."""
    return test_name.removeprefix("test_").replace("_", " ")


def _message(error: BaseException) -> str:
    if isinstance(error, (CheckFailed, StudentError)):
        return _printable(str(error))
    return _broken(_printable(f"{type(error).__name__}: {error}"))


def _broken(why: str) -> str:
    return f"This check itself broke ({why}). It is not your fault: please tell your instructor."


def _printable(text: str) -> str:
    """Return text of bounded length, without characters that could move a terminal's cursor."""
    text = text if len(text) <= MAX_MESSAGE_LENGTH else f"{text[:MAX_MESSAGE_LENGTH]} …"
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in text)


@functools.lru_cache(maxsize=64)
def _collect_cached(path: Path, changed: int) -> dict[str, _Found]:
    found: dict[str, _Found] = {}
    for name, value in vars(_import(path)).items():
        if name.startswith("test_"):
            raise ValueError(f"{path}: {name} needs @exercise on its class and @points")
        if not name.startswith("Test") or not isinstance(value, type):
            continue
        about = getattr(value, "exercise", None)
        checks, only_with = {}, {}
        for test, function in vars(value).items():
            if test.startswith("test_"):
                checks[test] = getattr(function, "points", None)
                if not isinstance(about, Exercise) or checks[test] is None:
                    raise ValueError(f"{path}: {test} needs @exercise on its class and @points")
                only_with[test] = function.only_with
        if lacking := {name for names in only_with.values() for name in names} - checks.keys():
            raise ValueError(f"{path}: {value.__name__} has no check {', '.join(sorted(lacking))}")
        if not checks or about is None:
            continue
        if about.name in found:
            raise ValueError(f"{path}: two classes hold the checks of {about.name!r}")
        found[about.name] = _Found(about, value, checks, only_with)
    if not found:
        raise ValueError(f"{path} holds no checks")
    return dict(sorted(found.items(), key=lambda item: _in_order(item[1].exercise.number)))


def _in_order(number: str) -> list[int]:
    """Return what sorts `1.10` behind `1.9`."""
    return [int(part) for part in re.findall(r"\d+", number)]


def _import(path: Path) -> ModuleType:
    """Run a file of checks without writing bytecode or leaving an entry in `sys.modules`."""
    module = ModuleType("checks")
    module.__file__ = str(path)
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module  # dataclasses look up their module
    try:
        with _silenced():
            exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    except Exception as error:
        raise ValueError(f"{path} cannot be read: {type(error).__name__}: {error}") from None
    finally:
        del sys.modules[module.__name__]
        if before is not None:
            sys.modules[module.__name__] = before
    return module


class ChecksMissing(FileNotFoundError):
    """There is no `checks.py` in the folder."""

    def _render_traceback_(self) -> list[str]:
        """Show the sentence alone in a notebook: its line of code has no mistake."""
        return [str(self)]


def _collect(folder: Path) -> dict[str, _Found]:
    path = Path(folder).resolve() / "checks.py"
    if not path.exists():
        raise ChecksMissing(
            f"there is no checks.py in {path.parent}: open the notebook from the folder that it "
            "came in"
        )
    return _collect_cached(path, path.stat().st_mtime_ns)


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Discard output, warnings and logs, even if they bypass Python's streams.

    nbgrader gives no points to a cell that writes to stderr.
    """
    with (
        warnings.catch_warnings(action="ignore"),
        _nothing_from(sys.stderr),
        _no_file(1),
        _no_file(2),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        yield


@contextlib.contextmanager
def _nothing_from(stream: Any) -> Iterator[None]:
    """Discard what is written to a stream, even by a logger that already holds it.

    A stream whose `write` cannot be replaced writes to a file, which `_no_file` covers.
    """
    try:
        stream.write = len
    except AttributeError:
        yield
        return
    try:
        yield
    finally:
        del stream.write


@contextlib.contextmanager
def _no_file(number: int) -> Iterator[None]:
    """Discard what is written to a standard file descriptor."""
    _flush()
    try:
        kept = os.dup(number)
    except OSError:  # it is closed
        yield
        return
    try:
        with open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), number)
        yield
    finally:
        _flush()
        os.dup2(kept, number)
        os.close(kept)


def _flush() -> None:
    for stream in (sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # none, full, or closed
            stream.flush()  # type: ignore[union-attr]
