"""Processes side by side, at work on something that takes no sandbox and no torch."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from classroom.grader.processes import (
    Ended,
    Killed,
    Process,
    Started,
    Turns,
    in_a_fork,
    side_by_side,
    start_early,
    with_forks,
)

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
from classroom.grader import processes
started = processes.Process.__init__
def tell(self, descriptors):
    started(self, descriptors)
    print(self.number, flush=True)
processes.Process.__init__ = tell
list(processes.side_by_side(workplace.Start(sys.argv[1]), ["slow", "slow"], 2))
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
        with pytest.raises(
            ChildProcessError, match="3 grading processes .* the last one by the signal S"
        ):
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


def test_a_large_job_does_not_keep_its_giver_waiting(start):
    process = Process()
    process.begin(start())
    process.give("slow")
    giver = threading.Thread(target=process.give, args=["x" * 10**7])
    giver.start()
    giver.join(30)
    is_waiting = giver.is_alive()
    process.end()
    giver.join()
    assert not is_waiting


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


# Processes that were started early


# What a job of 0 gives is the number of the process that does it: each leads a group of its own.
TELLS = partial(contextlib.nullcontext, os.getpgid)


def test_starting_early_imports_no_torch():
    look = "import sys, classroom.grader.processes\n"
    look += "assert not {'torch', 'numpy', 'nbformat'} & {*sys.modules}"
    assert subprocess.run([sys.executable, "-c", look]).returncode == 0


def test_forks_do_the_jobs_and_end_with_them():
    with with_forks(Started(), 2) as started:
        numbers = {process.number for process in started.processes}
        assert len(numbers) == 2
        done = side_by_side(TELLS, [0] * 5, 2, started)
        found = [number for _, number in done]
        assert len(found) == 5 and set(found) <= numbers
        assert not any(Path(f"/proc/{number}").exists() for number in numbers)


def test_a_fork_that_is_killed_is_replaced_and_its_job_is_done(start, tmp_path):
    with with_forks(Started(), 1) as started:
        forked = started.processes[0].number
        found = dict(side_by_side(start(), ["killed once", "poison", "1"], 1, started))
    assert found.pop("poison") == Killed("by the signal SIGKILL")
    assert found == {job: f"{job}, done" for job in ("killed once", "1")}
    by = [int(each) for each in (tmp_path / "did killed once").read_text().split()]
    assert by[0] == forked != by[1]


def held_by(number):
    """Name the files that a process holds, which may be closed while they are listed."""
    names = set()
    for each in Path(f"/proc/{number}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            names.add(each.resolve().name)
    return names


def test_a_fork_leads_a_session_of_its_own_and_holds_no_file_but_those_it_is_given(tmp_path):
    with (tmp_path / "kept").open("w") as kept, (tmp_path / "closed").open("w") as closed:
        with with_forks(Started(kept.fileno()), 1) as started:
            number = started.processes[0].number
            while (held := held_by(number)) >= {"closed"}:
                time.sleep(0.01)
            assert os.getsid(number) == number
            assert "kept" in held and closed.writable()


def test_a_fork_begins_with_what_was_prepared(start, monkeypatch):
    import workplace

    def prepare():
        workplace.Start.work = lambda self, job: "prepared"

    monkeypatch.setattr(workplace.Start, "work", workplace.Start.work)
    with with_forks(Started(), 1, prepare) as started:
        assert list(side_by_side(start(), ["1"], 1, started)) == [("1", "prepared")]


def test_a_sandbox_alone_can_be_started_early(sealed):
    with start_early(allow_weaker=False) as started:
        assert started.processes == () and started.descriptors == (started.sandbox,)


# What meets a submission


def soon(seconds=20.0):
    return time.monotonic() + seconds


def test_a_fork_gives_the_results_of_its_steps_and_leaves_nothing_in_memory():
    left = []

    def steps():
        for number in (2, 3, 5):
            left.append(number)
            yield list(left)

    assert list(in_a_fork(steps, 2**28, 5.0, soon())) == [[2], [2, 3], [2, 3, 5]]
    assert left == []


def test_what_a_fork_raises_is_raised_here():
    def steps():
        yield 2
        raise LookupError("there is no third")

    found = in_a_fork(steps, 2**28, 5.0, soon())
    assert next(found) == 2
    with pytest.raises(LookupError, match="there is no third"):
        next(found)


def takes_memory():
    yield len(bytearray(2**30))


def computes():
    yield 2
    while True:
        pass


def waits():
    yield 2
    time.sleep(1000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "error", "how"),
    [
        (takes_memory, MemoryError, None),
        (computes, Ended, "by the signal SIGXCPU"),
        (waits, Ended, "at the end of its time"),
    ],
)
def test_a_fork_is_held_to_its_limits(steps, error, how):
    started = time.monotonic()
    with pytest.raises(error, match=how):
        list(in_a_fork(steps, 2**28, 0.2, soon(8)))
    assert time.monotonic() - started < 12


def test_who_waits_to_be_alone_comes_before_those_who_come_later(tmp_path):
    (tmp_path / "turns").touch()
    log = tmp_path / "log"
    code = """
import sys, time
from pathlib import Path
from classroom.grader.processes import Turns
with Turns(Path(sys.argv[1])).taken(alone=sys.argv[3] == "alone"):
    with open(sys.argv[2], "a") as log:
        log.write("begin " + sys.argv[3] + chr(10))
    time.sleep(0.5)
    with open(sys.argv[2], "a") as log:
        log.write("end " + sys.argv[3] + chr(10))
"""
    started = []
    with Turns(tmp_path / "turns").taken():
        for who in ("alone", "later"):
            argv = [sys.executable, "-c", code, str(tmp_path / "turns"), str(log), who]
            started.append(subprocess.Popen(argv))
            deadline = soon()
            while not waits_for_a_lock(started[-1].pid) and time.monotonic() < deadline:
                time.sleep(0.02)
        assert not log.exists()
    for process in started:
        assert process.wait(60) == 0
    assert log.read_text().split("\n")[:4] == [
        "begin alone",
        "end alone",
        "begin later",
        "end later",
    ]


def waits_for_a_lock(number):
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and str(number) in line.split() for line in lines)
