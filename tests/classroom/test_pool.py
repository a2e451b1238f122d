"""Processes side by side, at work on something that takes no sandbox and no torch."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from classroom.pool import Killed, Process, side_by_side

# Processes find by its name what they are to do, so it lies in a module of its own.
WORK = """
import contextlib, dataclasses, os, signal, time
from pathlib import Path

@dataclasses.dataclass(frozen=True)
class Start:
    folder: str
    fails: bool = False

    @contextlib.contextmanager
    def __call__(self):
        if self.fails:
            raise ValueError("there is no room")
        yield self.work
        Path(self.folder, f"ended {os.getpid()}").touch()

    def work(self, job):
        log = Path(self.folder, f"did {job}")
        with log.open("a") as file:
            file.write(f"{os.getpid()} ")
        deadly = job == "poison" or job == "killed once" and len(log.read_text().split()) == 1
        if deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        if job == "slow":
            time.sleep(1000)
        return f"{job}, done"
"""
# Starts two processes that do not end, and says which.
HEAD = """
import sys
sys.path.insert(0, sys.argv[1])
import workplace
from classroom import pool
started = pool.Process.__init__
def tell(self, descriptors):
    started(self, descriptors)
    print(self.number, flush=True)
pool.Process.__init__ = tell
list(pool.side_by_side(workplace.Start(sys.argv[1]), ["slow", "slow"], 2))
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Give what a process is started with; it writes into `tmp_path` what it did."""
    (tmp_path / "workplace.py").write_text(WORK)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "workplace", raising=False)
    import workplace

    return lambda **options: workplace.Start(str(tmp_path), **options)


def did(folder, job):
    return len((folder / f"did {job}").read_text().split())


def test_all_jobs_are_done_by_as_many_processes_as_there_may_be(start, tmp_path):
    found = list(side_by_side(start(), map(str, range(7)), 3))
    assert sorted(found) == [(str(i), f"{i}, done") for i in range(7)]
    pids = {path.read_text().strip() for path in tmp_path.glob("did *")}
    assert len(pids) == 3 and str(os.getpid()) not in pids
    assert {path.name for path in tmp_path.glob("ended *")} == {f"ended {pid}" for pid in pids}
    assert list(side_by_side(start(), [], 3)) == []


def test_no_more_jobs_are_asked_for_than_can_be_held(start):
    asked = []

    def jobs():
        for number in range(20):
            asked.append(number)
            yield str(number)

    running = side_by_side(start(), jobs(), 2)
    for done in range(1, 20):
        next(running)
        assert len(asked) <= done + 2 * 2, "jobs pile up"
    running.close()


def test_a_killed_process_costs_its_job_a_second_try_and_no_other_job_anything(start, tmp_path):
    jobs = ["1", "poison", "2", "killed once", "3", "4"]
    found = dict(side_by_side(start(), jobs, 2))
    assert found.pop("poison") == Killed("by the signal SIGKILL")
    assert found == {job: f"{job}, done" for job in jobs if job != "poison"}
    times = {job: did(tmp_path, job) for job in jobs}
    assert times == {"1": 1, "2": 1, "3": 1, "4": 1, "poison": 2, "killed once": 2}


def test_a_process_that_cannot_start_ends_it_all_with_its_reason(start):
    with pytest.raises(ChildProcessError, match="did not start: ValueError: there is no room"):
        list(side_by_side(start(fails=True), ["1", "2"], 2))


@pytest.mark.parametrize("num_killed", [2, 3])
def test_a_process_that_is_killed_while_it_starts_is_replaced(start, num_killed, monkeypatch):
    started = Process.__init__

    def kill_some(process, *arguments):
        nonlocal num_killed
        started(process, *arguments)
        num_killed -= 1
        if num_killed >= 0:
            os.kill(process.number, signal.SIGKILL)

    monkeypatch.setattr(Process, "__init__", kill_some)
    if num_killed == 3:
        with pytest.raises(ChildProcessError, match="3 processes .* the last one by the signal S"):
            list(side_by_side(start(), ["1", "2"], 1))
    else:
        found = list(side_by_side(start(), ["1", "2"], 1))
        assert found == [("1", "1, done"), ("2", "2, done")]


def test_whoever_stops_asking_leaves_no_process(start, tmp_path):
    running = side_by_side(start(), ["1", "slow"], 1)
    assert next(running) == ("1", "1, done")
    pid = int((tmp_path / "did 1").read_text())
    running.close()
    assert is_gone(pid)


def test_a_process_whose_results_nobody_reads_ends_without_a_word(start, tmp_path, capfd):
    process = Process()
    process.begin(start())
    process.give("1")
    process.give("2")
    deadline = time.monotonic() + 20
    while not (tmp_path / "did 2").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert process.end(10) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_nobody_outlives_the_one_who_started_them(start, tmp_path, name):
    argv = [sys.executable, "-c", HEAD, str(tmp_path)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(argv, **options) as head:
        pids = [int(head.stdout.readline()) for _ in range(2)]
        # Ctrl-C in a terminal reaches a process group: none of theirs.
        assert all(os.getpgid(pid) == pid for pid in pids)
        head.send_signal(getattr(signal, name))
    deadline = time.monotonic() + 10
    while not all(map(is_gone, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_gone(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True
