"""Limits that Linux enforces for all processes of a job together, in a control group of ours.

Version 2 only: version 1 delegates none to ordinary users, and systemd has dropped it.

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
# With this one, jobs get the same weight each, however many processes they have.
_BETTER = "cpu"
_GRADER = "classroom-grader"
_WEIGHT_OF_THE_GRADER = 1000  # a job has 100
_JOB = "classroom-job"
_SECONDS_TO_END = 2.0
_numbers = itertools.count()


class NotLent(Exception):
    """No control group is delegated to us; the message says why, without a full stop."""


def lent_group() -> Path:
    """Return a control group in which groups for jobs can be made; it holds no other processes.

    A group that limits the groups below it may hold no process itself, so this process and its
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
        wanted = [*_CONTROLLERS, *({_BETTER} & set(there))]
        (own / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in wanted))
        if _BETTER in there:
            (own / _GRADER / "cpu.weight").write_text(str(_WEIGHT_OF_THE_GRADER))
    except OSError as error:
        raise NotLent(f"{error.strerror}, {error.filename}: {_remedy()}") from None
    return own


def end_strays(group: Path) -> None:
    """End the jobs of graders that have ended, and remove their groups."""
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
        OSError: If Linux refuses.

    """

    def __init__(self, parent: Path, memory_bytes: int, processes: int):
        # Named after its grader, so that a later grader can tell whether it is still needed.
        self._path = parent / f"{_JOB}-{os.getpid()}-{next(_numbers)}"
        self._cpu_seconds = 0.0
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
        """Move a process into it; all further forks of that process are in it too.

        Args:
            handle: A file descriptor of the process, since its number differs between namespaces.

        """
        (self._path / "cgroup.procs").write_text(str(number_of(handle)))

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all its processes so far, of those that have ended too."""
        try:
            used = (self._path / "cpu.stat").read_text().split()
        except OSError:  # it has ended
            return self._cpu_seconds
        self._cpu_seconds = int(used[used.index("usage_usec") + 1]) / 1e6
        return self._cpu_seconds

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether Linux has ended one of its processes for lack of memory."""
        try:
            events = (self._path / "memory.events").read_text().splitlines()
        except OSError:
            return False
        return any(int(e.removeprefix("oom_kill ")) for e in events if e.startswith("oom_kill "))

    def remove(self) -> None:
        """End the processes left in it, and remove it."""
        _remove(self._path)


def number_of(handle: int) -> int:
    """Return the number of a process that a file descriptor stands for, -1 if it has ended."""
    about = Path(f"/proc/self/fdinfo/{handle}").read_text()
    return int(about.partition("\nPid:")[2].split()[0])


def cpu_seconds_below(process: int) -> float:
    """Return the CPU time of a process, of all that descend from it, and of those that ended."""
    ticks = 0
    for each in _descendants(process):
        with contextlib.suppress(OSError), open(f"/proc/{each}/stat") as file:
            # From the third field on; the 14th to 17th are its own times and those of children
            # that it has waited for.
            fields = file.read().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


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
    # Not by `pathlib` and `glob`, which take three times as long: the grader asks after each call.
    yield process
    threads: list[str] = []
    with contextlib.suppress(OSError):  # it has ended
        threads = os.listdir(f"/proc/{process}/task")
    for thread in threads:
        with contextlib.suppress(OSError), open(f"/proc/{process}/task/{thread}/children") as file:
            for child in file.read().split():
                yield from _descendants(int(child))


def _remedy() -> str:
    user = "" if os.geteuid() == 0 else "--user "
    return f"start it as `systemd-run {user}--scope -p Delegate=yes classroom …`"
