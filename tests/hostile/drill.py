"""Kills and interrupts a run over a class, and says what is left of it."""

import contextlib
import csv
import ctypes
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from nbgrader.api import Gradebook

_PR_SET_CHILD_SUBREAPER = 36
# Gives a command a terminal of its own, and passes on to it what is typed.
_IN_A_TERMINAL = """
import os, pty, sys
argv = ["sh", "-c", 'stty cols 100 rows 30; exec "$@"', "sh", *sys.argv[1:]]
sys.exit(os.waitstatus_to_exitcode(pty.spawn(argv)))
"""
_SECONDS_FOR_A_RUN = 3600
_SECONDS_FOR_A_STEP = 300
_SECONDS_FOR_ORPHANS = 30


class Drill:
    """A course's folder, and runs of `classroom grade` in it.

    Args:
        root: The course's folder.
        assignment: What is graded.
        workers: How many grade at a time.

    Attributes:
        num_kills: How many runs were killed.

    """

    def __init__(self, root: Path, assignment: str, workers: int = 2):
        self.root, self.assignment = root, assignment
        self.kept = root / "graded" / assignment
        self.num_kills = 0
        self._argv = [sys.executable, "-m", "classroom", "grade", assignment]
        self._argv += ["--workers", str(workers)]
        self._options = {"cwd": root, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}

    def run(self, *options):
        """Grade, undisturbed; return the scores, byte for byte."""
        done = subprocess.run(
            [*self._argv, *options],
            capture_output=True,
            text=True,
            timeout=_SECONDS_FOR_A_RUN,
            **self._options,
        )
        assert done.returncode == 0, done.stderr
        kept = self.kept
        if "--kept" in options:
            kept = Path(options[options.index("--kept") + 1]) / self.assignment
        return (kept / "scores.csv").read_bytes()

    def kill(self, num_verdicts, seconds):
        """Start a run, and kill its first process some time after so many verdicts."""
        before = self.num_lines()
        with subprocess.Popen(
            self._argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **self._options
        ) as head:
            self._wait(head, before + num_verdicts)
            time.sleep(seconds)
            assert head.poll() is None, f"it was over before it was killed: {head.stdout.read()}"
            head.send_signal(signal.SIGKILL)
        self.num_kills += 1
        require_no_orphan()

    def press_ctrl_c(self, num_verdicts):
        """Start a run in a terminal, stop it from there; return its status and what it showed."""
        before = self.num_lines()
        with subprocess.Popen(
            [sys.executable, "-c", _IN_A_TERMINAL, *self._argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            **self._options,
        ) as terminal:
            self._wait(terminal, before + num_verdicts)
            terminal.stdin.write(b"\x03")
            terminal.stdin.flush()
            shown = terminal.stdout.read().decode()
        require_no_orphan()
        return terminal.returncode, shown

    def num_lines(self):
        path = self.kept / "verdicts.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def times_judged(self):
        """Return how many verdicts each student has."""
        lines = (self.kept / "verdicts.jsonl").read_text().splitlines()
        return Counter(json.loads(line)["student"] for line in lines)

    def require_gradebook_as(self, scores):
        """Compare nbgrader's gradebook with a CSV, student by student."""
        with contextlib.closing(sqlite3.connect(self.root / "gradebook.db")) as database:
            assert database.execute("pragma integrity_check").fetchall() == [("ok",)]
        rows = csv.DictReader(scores.decode().splitlines())
        earned = {row["student"]: float(row["earned"]) for row in rows}
        url = f"sqlite:///{self.root / 'gradebook.db'}"
        with Gradebook(url, "attention_from_the_ground_up") as gradebook:
            found = {
                submission.student_id: submission.score
                for submission in gradebook.assignment_submissions(self.assignment)
            }
        assert found == earned
        folders = {path.parent.name for path in self.root.glob(f"autograded/*/{self.assignment}")}
        assert folders == set(earned)
        half = list(self.root.glob(f"autograded/*/.{self.assignment}*"))
        assert half == [], "half a notebook was left"

    def _wait(self, process, num_lines):
        deadline = time.monotonic() + _SECONDS_FOR_A_STEP
        while self.num_lines() < num_lines:
            assert process.poll() is None, process.stdout.read()
            assert time.monotonic() < deadline, f"there are {self.num_lines()} verdicts"
            time.sleep(0.01)


@contextlib.contextmanager
def orphans_come_here():
    """Let processes whose parent ends become children of this one, where they are seen."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    _known.update(_children())
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        _known.clear()


_known: set[int] = set()


def require_no_orphan():
    """Wait until all that came here has ended."""
    deadline = time.monotonic() + _SECONDS_FOR_ORPHANS
    while left := _children() - _known:
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        assert time.monotonic() < deadline, [_words(pid) for pid in left]
        time.sleep(0.02)


def _children():
    found = set()
    for path in Path("/proc/self/task").glob("*/children"):
        found.update(map(int, path.read_text().split()))
    return found


def _words(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")[:200]
    return b"gone"
