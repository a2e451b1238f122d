"""What the hostile submissions meet: an exam, a sandbox to grade it in, and canaries around it."""

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from corpus import RIGHT, SECRET, contents, lay_out
from exam import known, write_exam

from classroom.exercise.run import run_checks
from classroom.grader.run import Assignment
from classroom.limits import Limits
from classroom.sandbox.layers import NOBODY


@pytest.fixture(scope="session")
def exam(tmp_path_factory):
    """The assignment as it was handed out: first for 2 points, attacked for 7, last for 2."""
    folder = tmp_path_factory.mktemp("exercises") / "09_exam"
    folder.mkdir()
    write_exam(folder)
    return Assignment(folder)


@dataclass
class Canaries:
    """What a submission must not reach.

    Attributes:
        folder: Looks like a course that anybody may read and write.
        port: Of a server on this machine.
        abstract: Name of another one's socket, without the zero byte before it.
        process: Of the user that the sandbox runs as.
        known: What a class can learn of the exam.

    """

    folder: Path
    port: int
    abstract: str
    process: int
    known: dict[str, str]
    _servers: list[socket.socket]
    _before: dict[str, bytes] = field(default_factory=dict)

    @property
    def words(self):
        """What the words in capitals of a case stand for here."""
        places = {"FOLDER": self.folder, "PORT": self.port, "ABSTRACT": self.abstract}
        return {
            **{word: str(place) for word, place in places.items()},
            **{"PROCESS": str(self.process), **self.known},
        }

    def remember(self):
        self._before = contents(self.folder)

    def require_untouched(self):
        assert contents(self.folder) == self._before, "a file was changed"
        os.kill(self.process, 0)
        state = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()[0]
        assert state == "S", "a process was stopped or killed"
        for server in self._servers:
            with contextlib.suppress(BlockingIOError):
                server.accept()
                pytest.fail("a server was reached")


@pytest.fixture(scope="session")
def canaries(exam):
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    learned = known(exam.folder)
    lay_out(folder, json.loads((exam.folder / "exam.ipynb").read_text()))
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
        port = tcp.getsockname()[1]
        yield Canaries(folder, port, name, process.pid, learned, [tcp, abstract])
        process.kill()
        process.wait()
        shutil.rmtree(folder)


@pytest.fixture
def guarded(canaries, launcher):
    """Hold a test to what holds for every submission: nothing outside is read, changed or left."""
    canaries.remember()
    sandbox = psutil.Process(launcher.process)
    processes = set(sandbox.children(recursive=True))
    yield canaries
    canaries.require_untouched()
    deadline = time.monotonic() + 2
    while set(sandbox.children(recursive=True)) != processes and time.monotonic() < deadline:
        time.sleep(0.01)
    assert set(sandbox.children(recursive=True)) == processes, "a process was left behind"


@pytest.fixture(scope="session")
def neighbour(launcher, exam):
    """Another submission at work in the same sandbox; each test asks it for its points."""
    hours = 2
    with launcher.start_job(Limits(seconds_per_submission=hours * 3600)) as job:
        job.run(RIGHT["first"])
        job.run("attacked = first")

        def earned():
            with job.serving() as subject:
                return run_checks(exam.folder, "attacked", subject, "unseen").earned

        yield earned
