"""Control groups, against a folder that looks like what the kernel mounts.

A machine that lends one runs all other tests of the sandbox with them: see `classroom doctor`.
"""

import os
import shutil
import subprocess
from pathlib import Path

import psutil
import pytest

from classroom.limits import Limits
from classroom.sandbox import control_groups
from classroom.sandbox import job as jobs
from classroom.sandbox import layers as sandbox
from classroom.sandbox.control_groups import JobGroup, NotLent, end_strays, lent_group
from classroom.sandbox.launcher import Launcher
from classroom.sandbox.layers import Layer, probe


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A group that is lent to this process: its files are there, and nothing happens to them."""
    group = tmp_path / "user.slice" / "run-7.scope"
    group.mkdir(parents=True)
    for path in (tmp_path, group):
        (path / "cgroup.controllers").write_text("cpu memory pids\n")
    (group / "cgroup.procs").write_text(f"{os.getpid()}\n")
    (group / "cgroup.subtree_control").write_text("")
    membership = tmp_path / "membership"
    membership.write_text("0::/user.slice/run-7.scope\n")
    monkeypatch.setattr(control_groups, "MOUNTED", tmp_path)
    monkeypatch.setattr(control_groups, "MEMBERSHIP", membership)
    # The files of a real group vanish with it.
    monkeypatch.setattr(Path, "rmdir", lambda path: shutil.rmtree(path))
    return group


def names(group):
    return sorted(path.name for path in group.iterdir() if path.is_dir())


def test_the_grader_leaves_the_group_that_it_divides(kernel):
    assert lent_group() == kernel
    assert names(kernel) == ["classroom-grader"]
    assert (kernel / "classroom-grader" / "cgroup.procs").read_text() == str(os.getpid())
    assert (kernel / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    assert (kernel / "classroom-grader" / "cpu.weight").read_text() == "1000"


def test_who_has_moved_already_finds_the_same_group(kernel):
    control_groups.MEMBERSHIP.write_text("0::/user.slice/run-7.scope/classroom-grader\n")
    assert lent_group() == kernel
    assert names(kernel) == []


def test_a_group_with_other_programs_in_it_is_left_alone(kernel):
    (kernel / "cgroup.procs").write_text(f"{os.getpid()}\n{os.getppid()}\n")
    with pytest.raises(NotLent, match=r"other programs .*systemd-run .*--scope -p Delegate=yes"):
        lent_group()
    assert names(kernel) == []


def test_children_of_the_grader_are_no_other_programs(kernel):
    with subprocess.Popen(["sleep", "60"]) as child:
        (kernel / "cgroup.procs").write_text(f"{os.getpid()}\n{child.pid}\n")
        assert lent_group() == kernel
        child.kill()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda group: control_groups.MEMBERSHIP.unlink(), "no control groups of version 2"),
        (lambda group: control_groups.MEMBERSHIP.write_text("4:memory:/x\n"), "of version 2"),
        (lambda group: shutil.rmtree(group), "No such file"),
        (lambda group: (group / "cgroup.controllers").write_text("cpu memory"), "control of pids"),
        (lambda group: (group / "cgroup.controllers").write_text(""), "memory and pids"),
    ],
)
def test_what_is_not_lent_is_named(kernel, spoil, why):
    spoil(kernel)
    with pytest.raises(NotLent, match=why):
        lent_group()


def test_a_job_gets_limits_and_a_process_and_leaves_nothing(kernel):
    group = JobGroup(kernel, 2000, 30)
    (path,) = [path for path in kernel.iterdir() if path.is_dir()]
    assert str(os.getpid()) in path.name
    assert (path / "memory.max").read_text() == "2000"
    assert (path / "pids.max").read_text() == "30"
    with subprocess.Popen(["sleep", "60"]) as child:
        handle = os.pidfd_open(child.pid)
        group.add(handle)
        os.close(handle)
        child.kill()
    assert (path / "cgroup.procs").read_text() == str(child.pid)
    assert not group.ran_out_of_memory
    (path / "memory.events").write_text("low 0\noom 2\noom_kill 0\noom_group_kill 0\n")
    assert not group.ran_out_of_memory
    (path / "memory.events").write_text("low 0\noom 2\noom_kill 1\noom_group_kill 0\n")
    assert group.ran_out_of_memory
    group.remove()
    assert names(kernel) == []
    group.remove()  # a second time does nothing


def test_a_group_that_cannot_be_limited_is_removed(kernel, monkeypatch):
    def refuse(path, text):
        raise OSError(22, "Invalid argument", str(path))

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(OSError, match="memory.max"):
        JobGroup(kernel, 2000, 30)
    assert names(kernel) == []


def test_groups_of_graders_that_are_gone_are_removed_and_no_others(kernel):
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    for name in (f"classroom-job-{gone.pid}-3", f"classroom-job-{os.getpid()}-5", "other-7"):
        (kernel / name).mkdir()
    end_strays(kernel)
    assert names(kernel) == [f"classroom-job-{os.getpid()}-5", "other-7"]


def test_a_group_that_does_nothing_is_probed_as_lacking(kernel):
    """In this folder no process ends with its group."""
    layer = {layer.name: layer for layer in probe.__wrapped__()}["control groups"]
    assert (layer.active, layer.is_required) == (False, False)
    assert "timed out" in layer.why_not
    assert names(kernel) == ["classroom-grader"]


def test_every_job_is_in_a_group_while_it_lasts(kernel, monkeypatch, sealed):
    layers = tuple(layer for layer in probe() if layer.name != "control groups")
    layers += (Layer("control groups", "memory", True, is_required=False),)
    monkeypatch.setattr(sandbox, "probe", lambda: layers)
    limits = Limits(memory_bytes=2**30, file_bytes=2**20, processes=30)
    with Launcher() as launcher, launcher.start_job(limits) as job:
        (path,) = [path for path in kernel.iterdir() if path.name.startswith("classroom-job")]
        assert (path / "memory.max").read_text() == str(2**30 + 2**21)
        assert (path / "pids.max").read_text() == "32"
        first = int((path / "cgroup.procs").read_text())
        assert launcher.process in [process.pid for process in psutil.Process(first).parents()]
        (path / "memory.events").write_text("oom_kill 1\n")
        with pytest.raises(jobs.JobDied, match="it used more than 1,024 MiB"):
            job.run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        assert names(kernel) == ["classroom-grader"]
