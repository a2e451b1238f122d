"""Processes that grade side by side or alone, and the sandbox that those of one machine share.

The checks redirect the standard streams of a whole process, so graders are processes and not
threads. Each is in a session of its own, so that Ctrl-C reaches the process that started them and
no other. None outlives the thread that started it. What meets a submission is a fork of such a
process (`in_a_fork`), which has limits, and whose memory goes with it.

Importing torch and what checks need takes seconds. So a command forks its processes once it has
done so, before it has any thread (`Forked`). Later ones are started afresh, because a fork would
take threads and locks along. The sandbox starts meanwhile, and nothing here imports torch.
"""

import contextlib
import fcntl
import json
import math
import os
import pickle
import queue
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, TypeVar

from classroom.sandbox.inside import linux, memory
from classroom.sandbox.launcher import Launcher
from classroom.startup import skip_the_grammar_of_addresses

Work = Callable[[Any], Any]
Start = Callable[[], AbstractContextManager[Work]]
T = TypeVar("T")

# Before anything is imported, which takes seconds, Linux is asked to end it with its parent.
_BOOT = """
import ctypes, json, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() == int(sys.argv[3]):
    sys.path[:] = json.loads(sys.argv[1])
    from classroom.grader.processes import serve
    serve(int(sys.argv[2]))
"""
# One that it does and one that waits, so that no process idles while a result is kept.
_JOBS_AT_A_TIME = 2
_TRIES = 2
_STARTS = 3
_SECONDS_TO_END = 5.0


@dataclass(frozen=True)
class Killed:
    """The result of a job whose process was killed each time.

    Attributes:
        how: Such as `by the signal SIGKILL`.

    """

    how: str


class Ended(Exception):
    """A process ended, by itself or by a signal; the text says how."""


class EndedAtStart(Ended):
    """It ended before it was ready for jobs."""


class Process:
    """A process that does one job after the other.

    Args:
        descriptors: Files that stay open in it, under the same numbers.

    """

    def __init__(self, descriptors: Sequence[int] = ()):
        ours, theirs = socket.socketpair()
        with theirs:
            self._start(theirs.fileno(), descriptors)
        self.connection = Connection(ours.detach())
        self._is_ready = False

    def _start(self, theirs: int, descriptors: Sequence[int]) -> None:
        arguments = [json.dumps(sys.path), str(theirs), str(os.getpid())]
        self._process: Any = subprocess.Popen(
            [sys.executable, "-c", _BOOT, *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs, *descriptors],
            start_new_session=True,
        )

    def begin(self, start: Start) -> None:
        """Make it ready for jobs.

        Args:
            start: Called in it, once; the context manager that it returns yields what does a job.
                It is pickled, as jobs and results are.

        """
        self._send(start)

    @property
    def number(self) -> int:
        """Its number in the table of processes."""
        return self._process.pid

    def give(self, job: Any) -> None:
        """Give it a job, which it does after those that it has."""
        self._send(job)

    def take(self) -> Any:
        """Wait for the result of the oldest job.

        Raises:
            Ended: If there will be none.
            ChildProcessError: If it could not start, and so no other one will.

        """
        if not self._is_ready:
            why_not = self._receive(EndedAtStart)
            if why_not:
                raise ChildProcessError(f"a grading process did not start: {why_not}")
            self._is_ready = True
        return self._receive(Ended)

    def end(self, seconds: float = 0.0) -> int:
        """Let it end by itself within a time, kill it otherwise, and return its status."""
        self.connection.close()
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _send(self, message: Any) -> None:
        # If it has ended, `take` says so.
        with contextlib.suppress(OSError):
            self.connection.send_bytes(pickle.dumps(message))

    def _receive(self, ended: type[Ended]) -> Any:
        try:
            message = self.connection.recv_bytes()
        except (EOFError, OSError):
            raise ended(_how(self.end(_SECONDS_TO_END))) from None
        return pickle.loads(message)


class Forked(Process):
    """One that begins with all that this process has imported and computed."""

    def _start(self, theirs: int, descriptors: Sequence[int]) -> None:
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            try:
                linux.end_with_parent()
                os.setsid()
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                for name in os.listdir("/proc/self/fd"):
                    if int(name) > 2 and int(name) not in (theirs, *descriptors):
                        with contextlib.suppress(OSError):
                            os.close(int(name))
                if os.getppid() == parent:
                    serve(theirs)
            finally:
                os._exit(0)
        self._process = _Child(child)


class _Child:
    """A fork of this process, with the methods of `Popen` that are used here."""

    def __init__(self, number: int):
        self.pid = number
        self._handle = os.pidfd_open(number)
        self._status: int | None = None

    def wait(self, seconds: float | None = None) -> int:
        if self._status is None:
            if not select.select([self._handle], [], [], seconds)[0]:
                raise subprocess.TimeoutExpired("a fork", seconds or 0.0)
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._handle)
        return self._status

    def kill(self) -> None:
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)


@dataclass(frozen=True)
class Started:
    """What was started early.

    Attributes:
        sandbox: Descriptor of a socket to a sandbox, see `Launcher`; None if there is none.
        processes: They end with those of `side_by_side`.

    """

    sandbox: int | None = None
    processes: tuple[Process, ...] = ()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Files that are open in all processes."""
        return () if self.sandbox is None else (self.sandbox,)


@contextlib.contextmanager
def start_early(allow_weaker: bool) -> Iterator[Started]:
    """Start a sandbox without waiting for it.

    Raises:
        TooWeak: If no submission can be sealed in here, and that may not be.

    """
    with Launcher(allow_weaker).starting() as sandbox:
        yield Started(sandbox)


@contextlib.contextmanager
def with_forks(
    started: Started, number: int, prepare: Callable[[], None] = lambda: None
) -> Iterator[Started]:
    """Fork processes that grade; only before this process has any thread.

    Args:
        started: The sandbox that they share.
        number: How many.
        prepare: Called before: what it imports and computes, all of them have.

    """
    prepare()
    processes: list[Process] = []
    try:
        processes += (Forked(started.descriptors) for _ in range(number))
        yield Started(started.sandbox, tuple(processes))
    finally:
        for process in processes:
            process.end()


def side_by_side(
    start: Start,
    jobs: Iterable[Any],
    workers: int,
    started: Started = Started(),
) -> Iterator[tuple[Any, Any]]:
    """Do jobs in several processes.

    If a process is killed, its job is tried once more. The others do not notice.

    Args:
        start: As for `Process.begin`.
        jobs: Asked for when there is a process to do them, and done in this order, as far as there
            is one.
        workers: Number of processes.
        started: Processes that were started before, which end with the others, and the sandbox
            that all of them share.

    Yields:
        Jobs and results, in the order in which they are done; a result may be `Killed`, and may
        not be None.

    Raises:
        ChildProcessError: If no process can start.

    """
    coming = ((job, 1) for job in jobs)
    idle = list(started.processes)
    again: deque[tuple[Any, int]] = deque()
    given: dict[Process, deque[tuple[Any, int]]] = {}

    def hand_out() -> None:
        """Let each process have a job before any has a second one."""
        while True:
            idlest = min(given, key=lambda process: len(given[process]), default=None)
            has = len(given[idlest]) if idlest else _JOBS_AT_A_TIME
            is_room = len(given) < workers and has > 0
            if not is_room and has == _JOBS_AT_A_TIME:
                return
            found = again.popleft() if again else next(coming, None)
            if found is None:
                return
            if is_room or idlest is None:
                process = idle.pop() if idle else Process(started.descriptors)
                process.begin(start)
            else:
                process = idlest
            given.setdefault(process, deque()).append(found)
            process.give(found[0])

    bad_starts = 0
    try:
        hand_out()
        while busy := [process for process, has in given.items() if has]:
            ready = wait([process.connection for process in busy])
            for process in [process for process in busy if process.connection in ready]:
                job, tries = given[process][0]
                result = None
                try:
                    result = process.take()
                    given[process].popleft()
                    bad_starts = 0
                except EndedAtStart as how:
                    again.extend(given.pop(process))
                    bad_starts += 1
                    if bad_starts == _STARTS:
                        why = f"{_STARTS} grading processes were killed while they started"
                        raise ChildProcessError(f"{why}, the last one {how}") from None
                except Ended as how:
                    again.extend(list(given.pop(process))[1:])
                    if tries < _TRIES:
                        again.append((job, tries + 1))
                    else:
                        result = Killed(str(how))
                hand_out()
                if result is not None:
                    yield job, result
        for process in given:
            process.connection.close()
        for process in given:
            process.end(_SECONDS_TO_END)
    finally:
        for process in [*given, *idle]:
            process.end()


def serve(descriptor: int) -> None:
    """Do what comes in over a socket, in a process that `Process` has started."""
    skip_the_grammar_of_addresses()
    connection = Connection(descriptor)
    with contextlib.ExitStack() as stack:
        try:
            work = stack.enter_context(pickle.loads(connection.recv_bytes())())
        except Exception as error:
            connection.send(f"{type(error).__name__}: {error}")
            return
        connection.send("")
        jobs: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

        def receive() -> None:
            """Take jobs as they come, because a large one would keep its giver waiting."""
            with contextlib.suppress(EOFError, OSError):  # OSError: a result of ours was not read
                while True:
                    jobs.put(connection.recv_bytes())
            jobs.put(None)

        threading.Thread(target=receive, daemon=True).start()
        while job := jobs.get():
            result = work(pickle.loads(job))
            try:
                connection.send(result)
            except OSError:
                return


# What meets a submission


def in_a_fork(
    steps: Callable[[], Iterator[T]], memory_bytes: int, cpu_seconds: float, deadline: float
) -> Iterator[T]:
    """Do something step by step in a fork of this process, which has limits.

    What the steps leave in memory, good or bad, is gone afterwards: the next fork begins with what
    this process holds.

    Args:
        steps: Called in the fork; yields the result of each step.
        memory_bytes: What it may use, beyond what this process uses.
        cpu_seconds: CPU time of each step.
        deadline: When all of it is over, on the clock `time.monotonic`.

    Yields:
        The results.

    Raises:
        Ended: If a limit ended it, or a signal.
        Exception: What `steps` raised.

    """
    parent = os.getpid()
    reading, writing = Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        try:
            linux.end_with_parent()
            if os.getppid() == parent:
                reading.close()
                linux.limit(resource.RLIMIT_AS, memory.address_space() + memory_bytes)
                _tell(writing, steps, cpu_seconds)
        finally:
            os._exit(0)
    writing.close()
    try:
        while reading.poll(max(deadline - time.monotonic(), 0.0)):
            try:
                kind, result = pickle.loads(reading.recv_bytes())
            except EOFError:
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                child = 0
                raise Ended(_how(status)) from None
            if kind == "over":
                return
            if kind == "raised":
                raise result
            yield result
        raise Ended("at the end of its time")
    finally:
        reading.close()
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _tell(writing: Connection, steps: Callable[[], Iterator[T]], cpu_seconds: float) -> None:
    def allow_a_step() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        seconds = math.ceil(time.process_time() + cpu_seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, hard))

    try:
        allow_a_step()
        for result in steps():
            writing.send_bytes(pickle.dumps(("step", result)))
            allow_a_step()
    except BaseException as error:
        writing.send_bytes(pickle.dumps(("raised", error)))
        return
    writing.send_bytes(pickle.dumps(("over", None)))


@dataclass(frozen=True)
class Turns:
    """Who grades side by side, and who alone, among the processes of a machine.

    Attributes:
        path: A file that all of them can open; none if there is one process only, which always
            grades alone.

    """

    path: Path | None = None

    @contextlib.contextmanager
    def taken(self, alone: bool = False) -> Iterator[None]:
        """Wait for a turn: to be alone, until the others have ended theirs."""
        if self.path is None:
            yield
            return
        with self.path.open("r+b") as file:
            # Two locks: the first is kept while waiting for the second, so that one who waits to be
            # alone lets nobody else begin.
            fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
            fcntl.lockf(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH, 1, 1)
            fcntl.lockf(file, fcntl.LOCK_UN, 1, 0)
            yield


ALONE = Turns()


def _how(status: int) -> str:
    if status < 0:
        return f"by the signal {signal.Signals(-status).name}"
    return f"with the status {status}"
