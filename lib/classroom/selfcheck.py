"""Runs the checks of an exercise and shows what came of it, in a notebook or in a terminal.

`check(name)` is what a notebook calls. It looks for `checks.py` and `mistakes.py` beside the
notebook, takes the notebook's own variables as the code under test, shows a table with messages,
and returns the points as a number, which is what nbgrader records.

Checks read like tests for pytest, and are called here one after the other instead: a session of
pytest takes ten times as long as the checks of an exercise, and none of them needs what it offers.
"""

import contextlib
import functools
import html
import io
import itertools
import os
import sys
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from classroom.answers import load_answers
from classroom.cases import Case
from classroom.checks import DIAGNOSIS, CheckFailed, Exercise
from classroom.subjects import (
    LocalSubject,
    NotWritten,
    StudentError,
    Subject,
)

PUBLISHED_SEED = "attention"
SEED_VARIABLE = "CLASSROOM_SEED"
REPORT_TYPE = "application/vnd.classroom.report+json"
MESSAGE_WIDTH = 96
MAX_MESSAGE_LINES = 25
MAX_MESSAGE_LENGTH = 5000


@dataclass(frozen=True)
class CheckResult:
    """What came of one check.

    Attributes:
        name: What is checked, in words.
        points: What it is worth.
        earned: What was earned: all of it, or nothing.
        message: Why nothing was earned; empty if it passed.
        mistakes: Names of the known mistakes that behave exactly like this code.

    """

    name: str
    points: int
    earned: int
    message: str = ""
    mistakes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """What came of one exercise.

    Attributes:
        exercise: Its name.
        title: Its number and title, as printed.
        results: One result per check.

    """

    exercise: str
    title: str
    results: tuple[CheckResult, ...]

    @property
    def points(self) -> int:
        """What the exercise is worth."""
        return sum(result.points for result in self.results)

    @property
    def earned(self) -> int:
        """What was earned."""
        return sum(result.earned for result in self.results)

    @property
    def mistakes(self) -> list[str]:
        """Names of the mistakes that were recognised for certain, in the order found."""
        named = [result.mistakes[0] for result in self.results if len(result.mistakes) == 1]
        return list(dict.fromkeys(named))

    @property
    def messages(self) -> list[str]:
        """What to tell the author.

        The first failure whole and later ones in a line; nothing twice, and nothing more about
        a mistake that has been named.
        """
        messages: list[str] = []
        named: set[tuple[str, ...]] = set()
        for result in self.results:
            text = result.message if not messages else result.message.split("\n")[0]
            if not text or result.mistakes in named or any(text in told for told in messages):
                continue
            messages.append(text)
            if len(result.mistakes) == 1:
                named.add(result.mistakes)
        return messages

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON types."""
        return {**asdict(self), "points": self.points, "earned": self.earned}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Report":
        """Rebuild a report from what `to_json` returned."""
        results = tuple(
            CheckResult(**{**result, "mistakes": tuple(result["mistakes"])})
            for result in record["results"]
        )
        return cls(record["exercise"], record["title"], results)

    def to_text(self) -> str:
        """Return the report as text of at most `MAX_MESSAGE_LINES` lines.

        Where there is no room for all messages, the first one is told to its end before another.
        """
        lines = [f"{self.title}: {self.earned} of {self.points} points"]
        for result in self.results:
            mark = "✓" if result.earned else "✗"
            lines.append(f"  {mark} {result.name} ({result.earned}/{result.points})")
        for number, message in enumerate(self.messages):
            told = ["", *_wrap(message)]
            if number > 0 and len(lines) + len(told) > MAX_MESSAGE_LINES:
                break
            lines.extend(told)
        if len(lines) > MAX_MESSAGE_LINES:
            kept = MAX_MESSAGE_LINES - 1
            lines = [*lines[:kept], f"  … and {len(lines) - kept} more lines"]
        return "\n".join(lines)

    def to_html(self) -> str:
        """Return the report as HTML, safe whatever the code under test said."""
        rows = "".join(
            f"<tr><td>{'✓' if r.earned else '✗'}</td>"
            f'<td style="text-align:left">{html.escape(r.name)}</td>'
            f"<td>{r.earned}/{r.points}</td></tr>"
            for r in self.results
        )
        told = "".join(message_html(message) for message in self.messages)
        return (
            f"<table><caption><b>{html.escape(self.title)}: {self.earned} of {self.points} points"
            f"</b></caption><tbody>{rows}</tbody></table>{told}"
        )


class Score(float):
    """Points earned, printed as the plain number that nbgrader reads."""


@dataclass(frozen=True)
class _Found:
    exercise: Exercise
    test_class: type
    checks: dict[str, int]
    """The points of each check, by the name of its test."""


def run_checks(folder: Path, name: str, subject: Subject, seed: str | None = None) -> Report:
    """Run all checks of one exercise against a subject.

    Args:
        folder: An assignment's folder, with `checks.py` and `mistakes.py`.
        name: The exercise.
        subject: The code under test.
        seed: What the inputs depend on; by default the environment variable `CLASSROOM_SEED`,
            else the published seed.

    Raises:
        FileNotFoundError: If there is no `checks.py` in the folder.
        ValueError: If it holds no exercise of that name.

    """
    collected = _collect(folder)
    if name not in collected:
        raise ValueError(f"no exercise is called {name!r}; there are: {', '.join(collected)}")
    found = collected[name]
    mistakes = [m for m in load_answers(folder / "mistakes.py") if m.exercise == name]
    seed = seed or os.environ.get(SEED_VARIABLE) or PUBLISHED_SEED
    memory: dict[Any, Any] = {}
    results = []
    for test, value in found.checks.items():
        case = Case(f"{seed}/{name}/{test}", mistakes, memory=memory)
        problem = _run(found, test, subject, case)
        results.append(_result(found.exercise, test, value, problem))
    return Report(name, f"{found.exercise.number} {found.exercise.title}", tuple(results))


def _run(found: _Found, test: str, subject: Subject, case: Case) -> BaseException | None:
    """Run one check; return what it raised."""
    try:
        with _unheard():
            getattr(found.test_class(), test)(subject=subject, case=case)
    except BaseException as error:
        # Whatever else it is, such as the end of the program, is one more way to fail.
        if type(error) is KeyboardInterrupt:
            raise
        return error
    return None


def _result(about: Exercise, test: str, value: int, problem: BaseException | None) -> CheckResult:
    if problem is None:
        return CheckResult(in_words(test), value, value)
    known = problem.mistakes if isinstance(problem, CheckFailed) else ()
    names = tuple(mistake.name for mistake in known)
    return CheckResult(in_words(test), value, 0, _message(problem, about), names)


def load_checks(folder: Path) -> dict[str, tuple[Exercise, str]]:
    """Return the exercises of an assignment: by name, what they are and their test class.

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


def check(name: str) -> Score:
    """Check an exercise of the notebook that this is called from, and show the result.

    Args:
        name: The exercise, which is the name of the function to write.

    Returns:
        The points earned.

    Raises:
        FileNotFoundError: If `checks.py` is not beside the notebook.
        CheckFailed: Under `nbgrader validate`, which shows text only for errors.

    """
    namespace = sys._getframe(1).f_globals
    report = run_checks(Path.cwd(), name, LocalSubject(namespace))
    if os.environ.get("NBGRADER_EXECUTION") == "validate" and report.earned < report.points:
        raise CheckFailed(report.to_text())
    _show(report)
    return Score(report.earned)


def _show(report: Report) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    if not InteractiveShell.initialized():
        print(report.to_text())
        return
    from IPython.display import display

    forms = {
        "text/plain": report.to_text(),
        "text/html": report.to_html(),
        REPORT_TYPE: report.to_json(),
    }
    display(forms, raw=True)


def in_words(test_name: str) -> str:
    """Return the sentence that a test's name is."""
    return test_name.removeprefix("test_").replace("_", " ")


def _message(error: BaseException, exercise: Exercise) -> str:
    cause = error.__cause__ if isinstance(error, CheckFailed) else error
    if isinstance(cause, NotWritten):
        return f"{cause}. {exercise.asks}"
    if isinstance(error, (CheckFailed, StudentError)):
        return _printable(str(error))
    return _broken(_printable(f"{type(error).__name__}: {error}"))


def _broken(why: str) -> str:
    return f"This check itself broke ({why}). It is not your fault: please tell your instructor."


def _printable(text: str) -> str:
    """Return text without what could move a terminal's cursor, and of a length to read."""
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
        checks = {}
        for test, function in vars(value).items():
            if test.startswith("test_"):
                checks[test] = getattr(function, "points", None)
                if not isinstance(about, Exercise) or checks[test] is None:
                    raise ValueError(f"{path}: {test} needs @exercise on its class and @points")
        if not checks or about is None:
            continue
        if about.name in found:
            raise ValueError(f"{path}: two classes hold the checks of {about.name!r}")
        found[about.name] = _Found(about, value, checks)
    if not found:
        raise ValueError(f"{path} holds no checks")
    return found


def _import(path: Path) -> ModuleType:
    """Run a file of checks; it leaves no compiled file beside it, and no module behind."""
    module = ModuleType("checks")
    module.__file__ = str(path)
    somebodys = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module  # dataclasses look for the module that they stand in
    try:
        with _unheard():
            exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    except Exception as error:
        raise ValueError(f"{path} cannot be read: {type(error).__name__}: {error}") from None
    finally:
        del sys.modules[module.__name__]
        if somebodys is not None:
            sys.modules[module.__name__] = somebodys
    return module


def _collect(folder: Path) -> dict[str, _Found]:
    path = Path(folder).resolve() / "checks.py"
    if not path.exists():
        raise FileNotFoundError(
            f"there is no checks.py in {path.parent}: open the notebook from the folder that it "
            "came in"
        )
    return _collect_cached(path, path.stat().st_mtime_ns)


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Drop what code prints, warns and logs, also past Python.

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
    """Drop what is written to a stream, also by a logger that has held on to it since before.

    A stream that does not let its `write` be replaced belongs to the operating system.
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
    """Drop what is written to a standard stream of the operating system."""
    _flush()
    try:
        kept = os.dup(number)
    except OSError:  # it is closed
        yield
        return
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), number)
        yield
    finally:
        _flush()
        os.dup2(kept, number)
        os.close(kept)


def _flush() -> None:
    for stream in (sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # none, full, or closed
            stream.flush()  # type: ignore[union-attr]


def _wrap(message: str) -> list[str]:
    """Wrap sentences to the width of a page and leave examples, which are indented, alone."""
    lines: list[str] = []
    for line in message.split("\n"):
        if line.startswith("  "):
            lines.append(textwrap.shorten(line, 400) if len(line) > 400 else line)
        else:
            lines.extend(textwrap.wrap(line, MESSAGE_WIDTH) or [""])
    return lines


def message_html(message: str) -> str:
    """Sentences as paragraphs, the one that names the mistake in bold, examples as they stand."""
    parts = []
    for indented, lines in itertools.groupby(message.split("\n"), lambda line: line[:2] == "  "):
        if indented:
            parts.append(f"<pre>{html.escape(chr(10).join(lines))}</pre>")
            continue
        for line in lines:
            text = html.escape(line)
            parts.append(f"<p><b>{text}</b></p>" if DIAGNOSIS.match(line) else f"<p>{text}</p>")
    return "".join(parts)
