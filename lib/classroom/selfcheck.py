"""Runs the checks of an exercise and shows what came of it, in a notebook or in a terminal.

`check(name)` is what a notebook calls. It looks for `checks.py` and `mistakes.py` beside the
notebook, takes the notebook's own variables as the code under test, shows a table with messages,
and returns the points as a number, which is what nbgrader records.
"""

import contextlib
import functools
import html
import io
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from classroom.answers import Answer, load_answers
from classroom.cases import Case
from classroom.checks import CheckFailed, Exercise
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
_PYTEST_CONFIG = Path(__file__).with_name("checks.ini")


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
        """What to tell the author: the first failure whole, later ones in a line, none twice."""
        messages: list[str] = []
        for result in self.results:
            text = result.message if not messages else result.message.split("\n")[0]
            if text and not any(text in told for told in messages):
                messages.append(text)
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
        """Return the report as text of at most `MAX_MESSAGE_LINES` lines."""
        lines = [f"{self.title}: {self.earned} of {self.points} points"]
        for result in self.results:
            mark = "✓" if result.earned else "✗"
            lines.append(f"  {mark} {result.name} ({result.earned}/{result.points})")
        for message in self.messages:
            lines.append("")
            lines.extend(_wrap(message))
        if len(lines) > MAX_MESSAGE_LINES:
            lines = [*lines[: MAX_MESSAGE_LINES - 1], "  …"]
        return "\n".join(lines)

    def to_html(self) -> str:
        """Return the report as HTML, safe whatever the code under test said."""
        rows = "".join(
            f"<tr><td>{'✓' if r.earned else '✗'}</td>"
            f'<td style="text-align:left">{html.escape(r.name)}</td>'
            f"<td>{r.earned}/{r.points}</td></tr>"
            for r in self.results
        )
        body = self.to_text().split("\n\n", 1)
        told = f"<pre>{html.escape(body[1])}</pre>" if len(body) > 1 else ""
        return (
            f"<table><caption><b>{html.escape(self.title)}: {self.earned} of {self.points} points"
            f"</b></caption><tbody>{rows}</tbody></table>{told}"
        )


class Score(float):
    """Points earned, printed as the plain number that nbgrader reads."""


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
    collected = load_checks(folder)
    if name not in collected:
        raise ValueError(f"no exercise is called {name!r}; there are: {', '.join(collected)}")
    exercise, checks = collected[name]
    mistakes = [m for m in load_answers(folder / "mistakes.py") if m.exercise == name]
    seed = seed or os.environ.get(SEED_VARIABLE) or PUBLISHED_SEED
    run = _Run(exercise, subject, mistakes, seed)
    _pytest([f"{folder / 'checks.py'}::{checks}"], run)
    return Report(name, f"{exercise.number} {exercise.title}", tuple(run.results))


def load_checks(folder: Path) -> dict[str, tuple[Exercise, str]]:
    """Return the exercises of an assignment: by name, what they are and their test class.

    Raises:
        FileNotFoundError: If there is no `checks.py` in the folder.
        ValueError: If it cannot be imported.

    """
    return {name: (found.exercise, found.test_class) for name, found in _collect(folder).items()}


def list_checks(folder: Path) -> dict[str, list[tuple[str, int]]]:
    """Return, for each exercise of an assignment, its checks in words with their points."""
    return {name: found.checks for name, found in _collect(folder).items()}


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


@dataclass(frozen=True)
class _Found:
    exercise: Exercise
    test_class: str
    checks: list[tuple[str, int]]


class _Run:
    """The pytest plugin that hands the fixtures to the checks and keeps what came of them."""

    def __init__(self, exercise: Exercise, subject: Subject, mistakes: list[Answer], seed: str):
        self._exercise = exercise
        self._subject = subject
        self._mistakes = mistakes
        self._seed = seed
        self._memory: dict[Any, Any] = {}
        self.results: list[CheckResult] = []

    @pytest.fixture
    def subject(self) -> Subject:
        return self._subject

    @pytest.fixture
    def case(self, request: pytest.FixtureRequest) -> Case:
        seed = f"{self._seed}/{self._exercise.name}/{request.node.name}"
        return Case(seed, self._mistakes, memory=self._memory)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo) -> Iterator[Any]:
        if call.when == "call" or call.excinfo is not None:
            self._keep(item, call.excinfo.value if call.excinfo else None)
        return (yield)

    def _keep(self, item: pytest.Item, error: BaseException | None) -> None:
        points = item.function.points  # type: ignore[attr-defined]
        message, mistakes = "", ()
        if error is not None:
            message = _message(error, self._exercise)
        if isinstance(error, CheckFailed):
            mistakes = tuple(mistake.name for mistake in error.mistakes)
        earned = 0 if error is not None else points
        self.results.append(CheckResult(in_words(item.name), points, earned, message, mistakes))


class _Collector:
    """The pytest plugin that looks at the checks without running them."""

    def __init__(self):
        self.items: list[pytest.Item] = []
        self.problem = ""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.problem = str(report.longrepr)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = list(session.items)


def in_words(test_name: str) -> str:
    """Return the sentence that a test's name is."""
    return test_name.removeprefix("test_").replace("_", " ")


def _message(error: BaseException, exercise: Exercise) -> str:
    cause = error.__cause__ if isinstance(error, CheckFailed) else error
    if isinstance(cause, NotWritten):
        return f"{cause}. {exercise.asks}"
    if isinstance(error, (CheckFailed, StudentError)):
        return str(error)
    return (
        f"This check itself broke ({type(error).__name__}: {error}). It is not your fault: "
        "please tell your instructor."
    )


@functools.lru_cache(maxsize=64)
def _collect_cached(path: Path, changed: int) -> dict[str, _Found]:
    collector = _Collector()
    _pytest([str(path), "--collect-only"], collector)
    if collector.problem:
        raise ValueError(f"{path} cannot be read: {collector.problem}")
    found: dict[str, _Found] = {}
    for item in collector.items:
        checks = item.cls  # type: ignore[attr-defined]
        about = getattr(checks, "exercise", None)
        value = getattr(item.function, "points", None)  # type: ignore[attr-defined]
        if about is None or value is None:
            raise ValueError(f"{path}: {item.name} needs @exercise on its class and @points")
        entry = found.setdefault(about.name, _Found(about, checks.__name__, []))
        entry.checks.append((in_words(item.name), value))
    return found


def _collect(folder: Path) -> dict[str, _Found]:
    path = Path(folder).resolve() / "checks.py"
    if not path.exists():
        raise FileNotFoundError(
            f"there is no checks.py in {path.parent}: open the notebook from the folder that it "
            "came in"
        )
    return _collect_cached(path, path.stat().st_mtime_ns)


def _pytest(args: list[str], plugin: object) -> None:
    """Run pytest in this process, undisturbed by the files and settings around it."""
    folder = Path(args[0].split("::")[0]).parent
    options = [
        *("-c", str(_PYTEST_CONFIG)),
        *("--rootdir", str(folder)),
        *("--import-mode", "importlib"),
        *("--assert", "plain"),
        *("--capture", "fd"),
        "--noconftest",
        *("-p", "no:cacheprovider"),
        *("-p", "no:terminal"),
        *("-p", "no:faulthandler"),
        *("-p", "no:unraisableexception"),
        *("-p", "no:threadexception"),
        *("-W", "ignore"),
    ]
    modules = set(sys.modules)
    with _environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTEST_ADDOPTS="", PYTEST_PLUGINS=""):
        no_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                pytest.main([*args, *options], plugins=[plugin])
        finally:
            sys.dont_write_bytecode = no_bytecode
            for name in set(sys.modules) - modules:
                if getattr(sys.modules[name], "__file__", None) == str(folder / "checks.py"):
                    del sys.modules[name]


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _wrap(message: str) -> list[str]:
    """Wrap sentences to the width of a page and leave examples, which are indented, alone."""
    lines: list[str] = []
    for line in message.split("\n"):
        if line.startswith("  "):
            lines.append(textwrap.shorten(line, 400) if len(line) > 400 else line)
        else:
            lines.extend(textwrap.wrap(line, MESSAGE_WIDTH) or [""])
    return lines
