"""What the kernel limits for all processes of a job together, where a control group is lent to us.

Version 2 of them only: version 1 lends none to ordinary users, and systemd has given it up.

Sources: https://docs.kernel.org/admin-guide/cgroup-v2.html, and on what one may do in which group
https://systemd.io/CGROUP_DELEGATION.
"""

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

MOUNTED = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
_CONTROLLERS = ("memory", "pids")
_GRADER = "classroom-grader"
_JOB = "classroom-job"
_SECONDS_TO_END = 2.0
_numbers = itertools.count()


class NotLent(Exception):
    """No control group is ours to divide; the text says why, in a sentence without a full stop."""


def lent_group() -> Path:
    """Return a control group in which groups for jobs can be made; none but ours are in it.

    A group that limits those below it may hold no process itself, so this process and its
    children move into a group of their own first.

    Raises:
        NotLent: If there is none.

    """
    own = _own_group()
    if own.name == _GRADER:  # this process, or the one that started it, has moved already
        return own.parent
    try:
        there = (own / "cgroup.controllers").read_text().split()
        if lacking := [name for name in _CONTROLLERS if name not in there]:
            raise NotLent(f"it has no control of {' and '.join(lacking)}: {_remedy()}")
        members = _members(own)
        if set(members) - set(_descendants(os.getpid())):
            raise NotLent(f"other programs are in its control group: {_remedy()}")
        (own / _GRADER).mkdir(exist_ok=True)
        for process in members:
            with contextlib.suppress(ProcessLookupError):
                (own / _GRADER / "cgroup.procs").write_text(str(process))
        (own / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in _CONTROLLERS))
    except OSError as error:
        raise NotLent(f"{error.strerror}, {error.filename}: {_remedy()}") from None
    return own


def end_strays(group: Path) -> None:
    """End the jobs, and remove their groups, of graders that are no more."""
    for path in group.glob(f"{_JOB}-*"):
        grader = path.name.removeprefix(f"{_JOB}-").partition("-")[0]
        if not Path("/proc", grader).exists():
            _remove(path)


class JobGroup:
    """The control group of one job.

    Args:
        parent: What `lent_group` returned.
        memory_bytes: What all its processes may use together, their files in memory included.
        processes: Processes and threads at a time.

    Raises:
        OSError: If the kernel refuses.

    """

    def __init__(self, parent: Path, memory_bytes: int, processes: int):
        # Named for its grader, so that whoever comes later can tell whether it is still needed.
        self._path = parent / f"{_JOB}-{os.getpid()}-{next(_numbers)}"
        self._path.mkdir()
        try:
            (self._path / "memory.max").write_text(str(memory_bytes))
            (self._path / "pids.max").write_text(str(processes))
            swap = self._path / "memory.swap.max"
            if swap.exists():
                swap.write_text("0")
        except OSError:
            self.remove()
            raise

    def add(self, handle: int) -> None:
        """Put a process into it; whatever that process forks from now on will be in it too.

        Args:
            handle: A file descriptor of the process: its number may be another one elsewhere.

        """
        about = Path(f"/proc/self/fdinfo/{handle}").read_text()
        number = about.partition("\nPid:")[2].split()[0]
        (self._path / "cgroup.procs").write_text(number)

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether the kernel has ended one of its processes for lack of memory."""
        try:
            events = (self._path / "memory.events").read_text().splitlines()
        except OSError:
            return False
        return any(int(e.removeprefix("oom_kill ")) for e in events if e.startswith("oom_kill "))

    def remove(self) -> None:
        """End what is left in it, and remove it."""
        _remove(self._path)


def _remove(path: Path) -> None:
    deadline = time.monotonic() + _SECONDS_TO_END
    with contextlib.suppress(OSError):  # kernels before 5.14 have no such file
        (path / "cgroup.kill").write_text("1")
    while True:
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # it is busy until the last process is gone
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)
        else:
            return


def _own_group() -> Path:
    try:
        lines = MEMBERSHIP.read_text().splitlines()
    except OSError:
        lines = []
    inside = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    if not inside or not (MOUNTED / "cgroup.controllers").exists():
        raise NotLent("this system has no control groups of version 2")
    return MOUNTED / inside[0]


def _members(group: Path) -> list[int]:
    return [int(line) for line in (group / "cgroup.procs").read_text().split()]


def _descendants(process: int) -> Iterator[int]:
    yield process
    for tasks in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in tasks.read_text().split():
                yield from _descendants(int(child))


def _remedy() -> str:
    user = "" if os.geteuid() == 0 else "--user "
    return f"start it as `systemd-run {user}--scope -p Delegate=yes classroom …`"
