"""The sandbox as a whole: it starts, it stays clean, and nothing of it is left."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from classroom.sandbox import launcher
from classroom.sandbox import layers as sandbox
from classroom.sandbox.job import JobTooSlow
from classroom.sandbox.launcher import Launcher
from classroom.sandbox.layers import Layer, TooWeak

NOTHING = tuple(
    Layer(name, "everything", False, "it is missing")
    for name in ("bubblewrap", "namespaces", "Landlock", "seccomp")
)
GRADER = """
import time
from classroom.sandbox.launcher import Launcher
with Launcher() as launcher, launcher.start_job() as job:
    job.run("import subprocess; p = subprocess.Popen(['sleep', '1000'])")
    print(launcher.process, flush=True)
    job.run("import time; time.sleep(1000)")
"""


def descendants(root):
    return {root, *(process.pid for process in psutil.Process(root).children(recursive=True))}


def is_gone(process):
    return not Path(f"/proc/{process}").exists()


def wait_until(is_true, seconds=10):
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def running(sealed):
    with Launcher() as started:
        yield started


def test_a_machine_that_lacks_a_layer_is_refused(monkeypatch):
    monkeypatch.setattr(sandbox, "probe", lambda: NOTHING)
    with pytest.raises(TooWeak, match="seccomp is not active"):
        Launcher()


@pytest.mark.slow
def test_without_any_layer_it_still_works_if_it_may(monkeypatch):
    monkeypatch.setattr(sandbox, "probe", lambda: NOTHING)
    monkeypatch.setattr(sandbox, "system_call_filter", lambda: b"")
    with Launcher(allow_weaker=True) as weaker, weaker.start_job() as job:
        assert not job.run("def double(x): return 2 * x").error
        with job.serving() as subject:
            assert subject.call("double", 7) == 14


def test_a_sandbox_that_does_not_start_says_why(monkeypatch):
    monkeypatch.setattr(launcher, "_BOOT", "raise ImportError('no torch here')")
    with pytest.raises(RuntimeError, match="did not start: ImportError: no torch here"):
        Launcher(allow_weaker=True).__enter__()


def test_jobs_run_side_by_side_and_know_nothing_of_each_other(running):
    with running.start_job() as one, running.start_job() as other:
        one.run("import builtins, os\nbuiltins.mine = 2\nopen('file', 'w').close()")
        other.run("import os")
        assert not other.run("assert os.listdir() == []").error
        assert other.run("mine").error.startswith("NameError")
        assert not other.run(
            "assert len([p for p in os.listdir('/proc') if p.isdigit()]) == 2"
        ).error


def test_graders_that_share_a_zygote_wait_for_it_and_have_jobs_of_their_own(sealed):
    first = Launcher()
    with contextlib.ExitStack() as both:
        requests = both.enter_context(first.starting())
        one, other = (both.enter_context(Launcher(requests=os.dup(requests))) for _ in range(2))
        with one.start_job() as mine, other.start_job() as yours:
            assert not mine.run("x = 2").error
            assert yours.run("x").error.startswith("NameError")
        one.stop()
        with other.start_job() as job:
            assert not job.run("x = 3").error
        number = first.process
    assert is_gone(number)


def test_a_grader_whose_shared_zygote_has_died_starts_one_of_its_own(sealed):
    def kill(started):
        # bwrap's own child waits for ever if bwrap is killed just before it says that it may go on.
        wait_until(lambda: len(descendants(started.process)) > 3)
        for process in descendants(started.process):
            with contextlib.suppress(ProcessLookupError):  # it may have ended with the one before
                os.kill(process, signal.SIGKILL)

    first = Launcher()
    with first.starting() as requests, Launcher(requests=os.dup(requests)) as second:
        kill(first)
        wait_until(lambda: not second._is_alive())
        with second.start_job() as job:
            assert not job.run("x = 2").error
        assert second.process != first.process
    first = Launcher()
    with first.starting() as requests:
        kill(first)
        with Launcher(requests=os.dup(requests)) as second, second.start_job() as job:
            assert not job.run("x = 2").error


def test_nothing_that_grades_is_in_the_memory_of_a_job(running):
    look = """
import gc, sys
modules = [name for name in sys.modules if name.startswith("classroom")]
known = {
    "classroom",
    "classroom.calls",
    "classroom.calls.channel",
    "classroom.calls.files",
    "classroom.calls.lending",
    "classroom.calls.module_classes",
    "classroom.calls.local",
    "classroom.calls.subject",
    "classroom.calls.wire",
    "classroom.limits",
    "classroom.sandbox",
    "classroom.sandbox.inside",
    "classroom.sandbox.inside.linux",
    "classroom.sandbox.inside.memory",
    "classroom.sandbox.inside.restoring",
    "classroom.sandbox.inside.processes",
    "classroom.sandbox.inside.runner",
    "classroom.sandbox.inside.serving",
    "classroom.sandbox.inside.shell",
    "classroom.sandbox.inside.terms",
    "classroom.sandbox.inside.watch",
    "classroom.sandbox.inside.zygote",
}
assert set(modules) == known, set(modules) ^ known
from classroom import check
assert check.__module__ == "__main__"
assert "pytest" not in sys.modules
"""
    with running.start_job() as job:
        assert job.run(look).error == ""


def test_nothing_that_grades_can_be_imported_or_read_by_a_job(running):
    package = Path(sandbox.__file__).parents[1]
    with running.start_job() as job:
        for room in ("author", "exercise", "grader", "nbgrader", "student"):
            assert (package / room).is_dir()
            assert job.run(f"import classroom.{room}").error.startswith("ModuleNotFoundError")
            assert job.run(f"import os; os.listdir({str(package / room)!r})").error
        assert job.run(f"open({str(package / 'sandbox/layers.py')!r})").error


def test_killing_a_job_leaves_none_of_its_processes(running):
    before = descendants(running.process)  # one of an earlier job may be ending
    with running.start_job() as job:
        job.run("import subprocess\nfor _ in range(3): subprocess.Popen(['sleep', '1000'])")
        assert len(descendants(running.process) - before) >= 5
    wait_until(lambda: descendants(running.process) <= before)


def test_a_grader_that_is_killed_leaves_no_process(sealed):
    grader = subprocess.Popen([sys.executable, "-c", GRADER], stdout=subprocess.PIPE, text=True)
    with grader:
        assert int(grader.stdout.readline())
        processes = descendants(grader.pid)
        assert len(processes) >= 6
        grader.send_signal(signal.SIGKILL)
    wait_until(lambda: all(map(is_gone, processes)))


def test_no_file_stays_open(running):
    def opened():
        return len(os.listdir("/proc/self/fd"))

    before = opened()
    for _ in range(3):
        with running.start_job() as job:
            job.run("def die():\n  import os; os._exit(0)")
            with job.serving() as subject, pytest.raises(Exception, match="ended"):
                subject.call("die")
    assert opened() == before


def test_a_job_for_which_no_time_is_left_does_not_start(running):
    with pytest.raises(JobTooSlow, match="time for this submission is over"):
        running.start_job(deadline=time.monotonic() - 1)


def test_a_zygote_that_has_died_is_started_again(running):
    os.kill(running.process, signal.SIGKILL)
    with running.start_job() as job:
        assert not job.run("1").error
