"""An exam of three exercises, a sandbox to grade it in, and canaries around it.

A hostile submission answers the first and the last exercise honestly and attacks at the second.
"""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import nbformat
import pytest

from classroom.grade import Assignment, Outcome, grade_submission
from classroom.intake import Cell, Submission
from classroom.notebooks import build_notebook
from classroom.sandbox import NOBODY, Limits
from classroom.selfcheck import run_checks
from classroom.zygote import Zygote

SECRET = "canary-b3a17c55"
LIMITS = Limits(
    seconds_per_cell=2.0,
    seconds_per_exercise=1.0,
    seconds_per_submission=20.0,
    memory_bytes=2**29,
    processes=24,
    file_bytes=2**23,
    output_bytes=2**18,
)
FIRST = "import torch\n\ndef first(x):\n    return x - x.mean(dim=0)"
LAST = "def last(number):\n    return number + number"


def _marker(grade_id, points=None):
    about = f'"grade_id": "{grade_id}", "schema_version": 3, "task": false'
    if points is None:
        return f'# %% nbgrader={{{about}, "grade": false, "locked": false, "solution": true}}'
    about += f', "points": {points}'
    return f'# %% nbgrader={{{about}, "grade": true, "locked": true, "solution": false}}'


_EXERCISE = """
# %% [markdown]
# {{{{exercise {name}}}}}

{answer}
def {name}(x):
    raise NotImplementedError

{check}
check("{name}")
"""

_CHECKS = '''\
"""What is graded."""

import torch

from classroom.checks import exercise, expect_agrees, expect_inputs_unchanged, points


def rows(case):
    num_rows, width = case.size("rows", 5), case.size("width", 3)
    return (case.normal(num_rows, width),)


def oracle(x):
    return x - x.mean(dim=0)


def number(case):
    return (case.integer(2, 1000),)


def about(name, number):
    return exercise(
        name, number=number, title=name, asks="Write it.", difficulty=1, importance=1, minutes=1
    )


@about("first", "9.1")
class TestFirst:
    @points(2)
    def test_rows_are_moved_by_their_mean(self, subject, case):
        expect_agrees(subject, case, "first", rows, oracle, {"centred": "rows width"})


@about("attacked", "9.2")
class TestAttacked:
    @points(3)
    def test_rows_are_moved_by_their_mean(self, subject, case):
        expect_agrees(subject, case, "attacked", rows, oracle, {"centred": "rows width"})
        expect_inputs_unchanged(subject, case, "attacked", rows)

    @points(4)
    def test_nothing_is_added_to_more_rows(self, subject, case):
        def more(case):
            return (torch.cat([*rows(case), *rows(case)]),)

        expect_agrees(subject, case, "attacked", more, oracle, {"centred": "many width"})


@about("last", "9.3")
class TestLast:
    @points(2)
    def test_two_is_four(self, subject, case):
        expect_agrees(subject, case, "last", number, lambda n: n + n, {"double": ""})
'''


@pytest.fixture(scope="session")
def exam(tmp_path_factory):
    """The assignment as it was handed out: first for 2 points, attacked for 7, last for 2."""
    folder = tmp_path_factory.mktemp("exercises") / "09_exam"
    folder.mkdir()
    text = ["# %% [markdown]\n# # Exam\n", "# %%\nfrom classroom import check\n"]
    for name, points in (("first", 2), ("attacked", 7), ("last", 2)):
        check = _marker(f"{name}-check", points)
        text.append(_EXERCISE.format(name=name, answer=_marker(name), check=check))
    (folder / "exam.py").write_text("\n".join(text))
    (folder / "checks.py").write_text(_CHECKS)
    (folder / "mistakes.py").write_text("")
    nbformat.write(build_notebook(folder), folder / "exam.ipynb")
    return Assignment(folder)


@pytest.fixture(scope="session")
def zygote(sealed):
    """A sandbox."""
    with Zygote() as zygote:
        yield zygote


@dataclass
class Graded:
    """What came of a submission.

    Attributes:
        outcome: As the grader sees it.
        told: Everything that its author is told, and everything that its cells showed.

    """

    outcome: Outcome
    told: str = field(init=False)

    def __post_init__(self):
        reports = self.outcome.reports.values()
        said = [result.message for report in reports for result in report.results]
        said += self.outcome.errors.values()
        said += [str(output) for outputs in self.outcome.outputs.values() for output in outputs]
        self.told = "\n".join(said)

    @property
    def earned(self):
        return {name: report.earned for name, report in self.outcome.reports.items()}

    @property
    def why(self):
        """Why the attacked exercise did not get all of its points."""
        messages = [result.message for result in self.outcome.reports["attacked"].results]
        return "\n".join([*messages, *self.outcome.errors.values()])


@pytest.fixture(scope="session")
def grade(zygote, exam):
    """Grade cells, `check NAME` among them, as the cells of one submission."""

    def grade(sources, limits=LIMITS, seed="unseen"):
        cells = tuple(
            Cell("code", "", checks=source.removeprefix("check "))
            if source.startswith("check ")
            else Cell("code", source)
            for source in sources
        )
        received = datetime(2020, 2, 3, tzinfo=UTC)
        submission = Submission("exam.ipynb", cells, (), "", received)
        return Graded(grade_submission(zygote, exam, submission, seed, limits))

    return grade


@pytest.fixture(scope="session")
def attack(grade):
    """Grade a submission whose cells for the second exercise are these."""

    def attack(*cells, limits=LIMITS):
        return grade([FIRST, "check first", *cells, "check attacked", LAST, "check last"], limits)

    return attack


@dataclass
class Canaries:
    """What a submission must not reach.

    Attributes:
        folder: Files that anybody may read and write.
        port: Of a server on this machine.
        abstract: Name of another one's socket, without the zero byte before it.
        process: Of the user that the sandbox runs as.

    """

    folder: Path
    port: int
    abstract: str
    process: int
    _servers: list[socket.socket]
    _before: dict[str, bytes] = field(default_factory=dict)

    def remember(self):
        self._before = self._contents()

    def require_untouched(self):
        assert self._contents() == self._before, "a file was changed"
        os.kill(self.process, 0)
        state = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()[0]
        assert state == "S", "a process was stopped or killed"
        for server in self._servers:
            with contextlib.suppress(BlockingIOError):
                server.accept()
                pytest.fail("a server was reached")

    def _contents(self):
        return {str(path): path.read_bytes() for path in sorted(self.folder.iterdir())}


@pytest.fixture(scope="session")
def canaries():
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o777)
    for file in ("gradebook.db", "solution.ipynb", "neighbour.ipynb", "seed"):
        (folder / file).write_text(f"{SECRET} {file}")
        (folder / file).chmod(0o666)
    tcp = socket.create_server(("127.0.0.1", 0))
    abstract = socket.socket(socket.AF_UNIX)
    name = f"{SECRET}-{secrets.token_hex(4)}"
    abstract.bind(f"\0{name}")
    abstract.listen()
    for server in (tcp, abstract):
        server.setblocking(False)
    user = {"user": NOBODY} if os.geteuid() == 0 else {}
    process = subprocess.Popen(["sleep", "3600"], cwd="/", **user)
    with pytest.MonkeyPatch.context() as patch, tcp, abstract:
        patch.setenv("CLASSROOM_SEED_FILE", SECRET)
        yield Canaries(folder, tcp.getsockname()[1], name, process.pid, [tcp, abstract])
        process.kill()
        process.wait()
        shutil.rmtree(folder)


@pytest.fixture
def guarded(canaries, zygote, grade):
    """Hold a test to what holds for every submission: nothing outside is read, changed or left."""
    canaries.remember()
    processes = _below(zygote.process)
    yield canaries
    canaries.require_untouched()
    deadline = time.monotonic() + 2
    while _below(zygote.process) != processes and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _below(zygote.process) == processes, "a process was left behind"


@pytest.fixture
def neighbour(zygote, exam):
    """Another submission at work in the same sandbox; the test asks it for its points."""
    with zygote.start_job() as job:
        job.run(FIRST)
        job.run("attacked = first")

        def earned():
            with job.serving("attacked") as subject:
                return run_checks(exam.folder, "attacked", subject, "unseen").earned

        yield earned


def _below(root):
    """Return the processes that descend from one."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = {root}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found
