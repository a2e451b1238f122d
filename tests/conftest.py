"""What tests of several folders need, and what becomes of a test where this machine lacks a part.

A test that needs a part has its mark, one of `PARTS`. Without the part it is left
out, and the last lines say how many were, and which command adds the part. Where `CI` is `true`,
a part that a command could have added is a failure instead.

Tests run on all cores, a file or a class on one of them; `-n 0` runs them in one process. What
takes long to make and serves many files is made once for all processes, by the fixture `once`.
"""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import jaxtyping
import pytest
from filelock import FileLock

# A shell that starts tests in the background lets them ignore Ctrl-C, and so all that they start.
# Some of them try what Ctrl-C does.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tensors are small, and a core has a process of tests: more threads would only wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
]


def found_chromium() -> str | None:
    return next(filter(None, map(shutil.which, CHROMIUM)), None)


def why_no_browser() -> str:
    return "" if found_chromium() else "Chromium (apt-get install chromium)"


def why_no_compiler() -> str:
    """What torch.compile writes is C++ that Python loads."""
    header = Path(sysconfig.get_path("include"), "Python.h")
    there = shutil.which(os.environ.get("CXX", "g++")) and header.exists()
    return "" if there else "a C++ compiler (apt-get install g++ python3-dev)"


def why_no_git() -> str:
    return "" if shutil.which("git") else "git (apt-get install git)"


@functools.cache
def why_no_sandbox() -> str:
    if shutil.which("bwrap") is None:
        return "a sandbox (apt-get install bubblewrap)"
    from classroom.sandbox.layers import TooWeak, probe, require

    try:
        require(probe())
    except TooWeak:
        return "a sandbox (classroom doctor says what keeps it off)"
    return ""


def why_no_gpu() -> str:
    import torch

    return "" if torch.cuda.is_available() else "a GPU"


PARTS = {
    "browser": why_no_browser,
    "sandbox": why_no_sandbox,
    "compiler": why_no_compiler,
    "git": why_no_git,
    "gpu": why_no_gpu,
}
MARKED_BY_FIXTURE = {
    "sealed": ["sandbox", "slow"],
    "browser": ["browser", "slow"],
    "site": ["slow"],  # the built book
}


class CheckedAtFirst(type(jaxtyping.config)):
    """Have shapes checked in the first calls of each test: a training makes the same ones again."""

    num_calls = 0
    is_off = jaxtyping.config.jaxtyping_disable

    @property
    def jaxtyping_disable(self) -> bool:
        """Say whether a call is not checked; each call of a function of groundup asks once."""
        CheckedAtFirst.num_calls += 1
        return self.is_off or self.num_calls > 500

    @jaxtyping_disable.setter
    def jaxtyping_disable(self, is_off: bool) -> None:
        self.is_off = is_off


jaxtyping.config.__class__ = CheckedAtFirst


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    if not pluginmanager.hasplugin("xdist"):  # our own settings are no mistake without it
        for option in ("--numprocesses", "--maxprocesses", "--dist"):
            parser.addoption(option, help="needs pytest-xdist")
        parser.addoption("--no-loadscope-reorder", action="store_true", help="needs pytest-xdist")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let several processes begin with the long files, or one would end long after the others.

    The first of them builds the book. The other files that need it come when it is there.
    """
    if hasattr(config, "workerinput"):
        long = {item.path: None for item in items if item.get_closest_marker("slow")}
        on_the_book = {i.path: None for i in items if "site" in getattr(i, "fixturenames", ())}
        builder, *others = on_the_book or [None]
        order = [builder, *(path for path in long if path not in on_the_book), *others]
        places = {path: place for place, path in enumerate(order)}
        items.sort(key=lambda item: places.get(item.path, len(order)))


def pytest_itemcollected(item: pytest.Item) -> None:
    marks = ["slow"] if item.get_closest_marker("benchmark") else []
    for fixture in MARKED_BY_FIXTURE.keys() & set(getattr(item, "fixturenames", ())):
        marks += MARKED_BY_FIXTURE[fixture]
    for mark in marks:
        item.add_marker(mark)


def pytest_runtest_setup(item: pytest.Item) -> None:
    CheckedAtFirst.num_calls = 0
    for part, why_not in PARTS.items():
        if item.get_closest_marker(part) and (needed := why_not()):
            if os.environ.get("CI") == "true" and part != "gpu":
                pytest.fail(f"needs {needed}", pytrace=False)
            pytest.skip(f"needs {needed}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    yield
    skipped = terminalreporter.getreports("skipped")
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    if reasons:
        were = "1 test was" if len(skipped) == 1 else f"{len(skipped)} tests were"
        each = (
            f"{number} {reason if number == 1 else reason.replace('needs', 'need', 1)}"
            for reason, number in sorted(reasons.items(), key=lambda found: (-found[1], found[0]))
        )
        terminalreporter.write_line(f"{were} left out: {', '.join(each)}.")


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], None]], Path]:
    """Fill a folder of this name once for all processes of a run; return it."""
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder

    def make(name: str, fill: Callable[[Path], None]) -> Path:
        filled = shared / name
        with FileLock(f"{filled}.lock"):
            if not filled.exists():
                filled.mkdir()
                fill(filled)
        return filled

    return make


@pytest.fixture(scope="session")
def sealed() -> None:
    """Mark a test as one that needs a sandbox."""


@pytest.fixture(scope="session")
def launcher(sealed):
    """A sandbox, for every test of this process that does not end it."""
    from classroom.sandbox.launcher import Launcher

    with Launcher() as launcher:
        yield launcher


@pytest.fixture
def dask(tmp_path):
    """Start a scheduler and two workers of one thread each; give its address and the workers."""
    log = (tmp_path / "dask.log").open("w")
    options = {"stdout": log, "stderr": log, "cwd": tmp_path}
    file = tmp_path / "scheduler.json"
    local = ["--no-dashboard", "--scheduler-file", file]
    scheduler = subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", *local]
        + ["--port", "0"],
        **options,
    )
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--no-nanny", "--nthreads", "1"]
    worker += ["--host", "127.0.0.1", *local]
    workers = [subprocess.Popen(worker, **options) for _ in range(2)]
    try:
        deadline = time.monotonic() + 60
        while not file.exists() or not file.read_text():
            assert time.monotonic() < deadline, (tmp_path / "dask.log").read_text()
            time.sleep(0.1)
        yield json.loads(file.read_text())["address"], workers
    finally:
        for process in (*workers, scheduler):
            process.kill()
            process.wait()
        log.close()


@pytest.fixture(scope="module")
def browser():
    """A browser of the module's own: more would mean an event loop that runs in other tests."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found_chromium(), args=FLAGS)
        yield launched
        launched.close()
