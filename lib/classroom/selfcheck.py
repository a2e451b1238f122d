"""Runs the checks of an exercise and shows what came of it, in a notebook or in a terminal.

`check(name)` is what a notebook calls. It looks for `checks.py` and `mistakes.py` beside the
notebook, takes the notebook's own variables as the code under test, shows a table with messages,
and returns the points as a number, which is what nbgrader records.
"""

import contextlib
import functools
import html
import io
import itertools
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from classroom.answers import Answer, load_answers
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
        told = "".join(_message_html(message) for message in self.messages)
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
    collected = _collect(folder)
    if name not in collected:
        raise ValueError(f"no exercise is called {name!r}; there are: {', '.join(collected)}")
    found = collected[name]
    mistakes = [m for m in load_answers(folder / "mistakes.py") if m.exercise == name]
    seed = seed or os.environ.get(SEED_VARIABLE) or PUBLISHED_SEED
    run = _Run(found, subject, mistakes, seed)
    _pytest(folder, [f"checks.py::{found.test_class}"], run)
    if run.interrupted:
        raise KeyboardInterrupt
    title = f"{found.exercise.number} {found.exercise.title}"
    return Report(name, title, tuple(run.results.values()))


def load_checks(folder: Path) -> dict[str, tuple[Exercise, str]]:
    """Return the exercises of an assignment: by name, what they are and their test class.

    Raises:
        FileNotFoundError: If there is no `checks.py` in the folder.
        ValueError: If it cannot be imported.

    """
    return {name: (found.exercise, found.test_class) for name, found in _collect(folder).items()}


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


@dataclass(frozen=True)
class _Found:
    exercise: Exercise
    test_class: str
    checks: dict[str, int]
    """The points of each check, by the name of its test."""


class _Plugin:
    """Keeps pytest from taking a folder for a package and running its `__init__.py`."""

    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Dir:
        return pytest.Dir.from_parent(parent, path=path)


class _Run(_Plugin):
    """The pytest plugin that hands the fixtures to the checks and keeps what came of them."""

    def __init__(self, found: _Found, subject: Subject, mistakes: list[Answer], seed: str):
        self._exercise = found.exercise
        self._subject = subject
        self._mistakes = mistakes
        self._seed = seed
        self._memory: dict[Any, Any] = {}
        self.interrupted = False
        # A check that does not come to run earns nothing, and is not forgotten.
        self.results = {
            test: CheckResult(in_words(test), points, 0, _broken("it did not run"))
            for test, points in found.checks.items()
        }

    def pytest_configure(self, config: pytest.Config) -> None:
        # Tracebacks are never shown, and the other styles are slow to make.
        config.option.tbstyle = "native"

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        # pytest has kinds of its own, for sessions that end early.
        self.interrupted = type(excinfo.value) is KeyboardInterrupt

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
        result = self.results[item.name]
        if error is None:
            self.results[item.name] = replace(result, earned=result.points, message="")
            return
        known = error.mistakes if isinstance(error, CheckFailed) else ()
        self.results[item.name] = replace(
            result,
            earned=0,
            message=_message(error, self._exercise),
            mistakes=tuple(mistake.name for mistake in known),
        )


class _Collector(_Plugin):
    """The pytest plugin that looks at the checks without running them."""

    def __init__(self):
        self.items: list[pytest.Item] = []
        self.problem = ""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.problem = str(report.longrepr).splitlines()[-1].removeprefix("E").strip()

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
    collector = _Collector()
    status = _pytest(path.parent, [path.name, "--collect-only"], collector)
    if collector.problem:
        raise ValueError(f"{path} cannot be read: {collector.problem}")
    if status != pytest.ExitCode.OK:
        raise ValueError(f"{path} holds no checks: pytest ended with {status!r}")
    found: dict[str, _Found] = {}
    for item in collector.items:
        checks = item.cls  # type: ignore[attr-defined]
        about = getattr(checks, "exercise", None)
        value = getattr(item.function, "points", None)  # type: ignore[attr-defined]
        if about is None or value is None:
            raise ValueError(f"{path}: {item.name} needs @exercise on its class and @points")
        entry = found.setdefault(about.name, _Found(about, checks.__name__, {}))
        if entry.test_class != checks.__name__:
            raise ValueError(f"{path}: two classes hold the checks of {about.name!r}")
        entry.checks[item.name] = value
    return found


def _collect(folder: Path) -> dict[str, _Found]:
    path = Path(folder).resolve() / "checks.py"
    if not path.exists():
        raise FileNotFoundError(
            f"there is no checks.py in {path.parent}: open the notebook from the folder that it "
            "came in"
        )
    return _collect_cached(path, path.stat().st_mtime_ns)


def _pytest(folder: Path, args: list[str], plugin: object) -> int:
    """Run pytest in this process, undisturbed by the files and settings around it.

    Paths in `args` are relative to `folder`, because brackets in a path would mean something
    else to pytest.
    """
    path = folder.resolve() / "checks.py"
    options = [
        *("-c", str(_PYTEST_CONFIG)),
        *("--rootdir", "."),
        # Or pytest lists every folder above: a home with thousands of files is slow.
        *("--confcutdir", "."),
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
    # pytest calls every assignment's file `checks`, and takes a module of that name as it is.
    somebodys = sys.modules.pop("checks", None)
    modules = set(sys.modules)
    with _environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTEST_ADDOPTS="", PYTEST_PLUGINS=""):
        no_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        try:
            with contextlib.chdir(folder), _nothing_from(sys.stderr):
                return pytest.main([*args, *options], plugins=[plugin])
        finally:
            sys.dont_write_bytecode = no_bytecode
            for name in set(sys.modules) - modules:
                if getattr(sys.modules[name], "__file__", None) == str(path):
                    del sys.modules[name]
            if somebodys is not None:
                sys.modules["checks"] = somebodys


@contextlib.contextmanager
def _nothing_from(stream: Any) -> Iterator[None]:
    """Drop what is written to a stream, also by a logger that has held on to it since before.

    nbgrader gives no points to a cell that writes to stderr. A stream that does not let its
    `write` be replaced belongs to the operating system, whose streams pytest captures.
    """
    with contextlib.redirect_stderr(io.StringIO()):
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


def _message_html(message: str) -> str:
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
