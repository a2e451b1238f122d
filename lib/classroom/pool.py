"""Processes that grade side by side, each with a sandbox of its own.

The checks turn the standard streams of a whole process to themselves, so graders are processes
and not threads. Each is started afresh, because a fork would take threads and locks along, and in
a session of its own, so that Ctrl-C reaches the one who started them and nobody else. None
outlives the thread that started it. What a process needs is imported in it late, after what makes
importing fast.
"""

import contextlib
import importlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from classroom.startup import skip_the_grammar_of_addresses

Work = Callable[[Any], Any]
Start = Callable[[], AbstractContextManager[Work]]

# Before anything is imported, which takes seconds, the kernel is asked to end it with its parent.
_BOOT = """
import ctypes, json, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() == int(sys.argv[3]):
    sys.path[:] = json.loads(sys.argv[1])
    from classroom.pool import serve
    serve(int(sys.argv[2]), sys.argv[4])
"""
# A job in hand and one at hand: nobody waits while a result is written down.
_JOBS_AT_A_TIME = 2
_TRIES = 2
_STARTS = 3
_SECONDS_TO_END = 5.0


@dataclass(frozen=True)
class Killed:
    """Stands for the result of a job whose process was killed each time.

    Attributes:
        how: Such as `by the signal SIGKILL`.

    """

    how: str


class Ended(Exception):
    """A process came to an end by itself, or by somebody else; the text says how."""


class EndedAtStart(Ended):
    """It came to an end before it was given anything to do."""


class Process:
    """A process that does one job after the other.

    Args:
        descriptors: Files that stay open in it, under the same numbers.
        imports: Name of a module that it is to import before it is told anything.

    """

    def __init__(self, descriptors: Sequence[int] = (), imports: str = ""):
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = [json.dumps(sys.path), str(theirs.fileno()), str(os.getpid()), imports]
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), *descriptors],
                start_new_session=True,
            )
        self.connection = Connection(ours.detach())
        self._is_ready = False

    def begin(self, start: Start) -> None:
        """Tell it how to start.

        Args:
            start: Called in it, once; the context manager that it returns gives what does a job.
                It is pickled, as jobs and results are.

        """
        self._send(start)

    @property
    def number(self) -> int:
        """Its number in the table of processes."""
        return self._process.pid

    def give(self, job: Any) -> None:
        """Hand it a job, which it does after those that it has."""
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
                raise ChildProcessError(f"a process that grades did not start: {why_not}")
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
        # Where nobody reads any more, the next one who waits for a result is told.
        with contextlib.suppress(OSError):
            self.connection.send_bytes(pickle.dumps(message))

    def _receive(self, ended: type[Ended]) -> Any:
        try:
            message = self.connection.recv_bytes()
        except (EOFError, OSError):
            raise ended(_how(self.end(_SECONDS_TO_END))) from None
        return pickle.loads(message)


def side_by_side(
    start: Start,
    jobs: Iterable[Any],
    workers: int,
    descriptors: Sequence[int] = (),
    waiting: Sequence[Process] = (),
) -> Iterator[tuple[Any, Any]]:
    """Do jobs in several processes.

    If a process is killed, its job is tried once more. The others do not notice.

    Args:
        start: As for `Process.begin`.
        jobs: Asked for when there is somebody to do them, and done in this order, as far as there
            is one.
        workers: Number of processes.
        descriptors: As for `Process`.
        waiting: Processes that have been started before; they end with the others.

    Yields:
        Jobs and results, in the order in which they are done; a result may be `Killed`, and may
        not be None.

    Raises:
        ChildProcessError: If no process can start.

    """
    coming = ((job, 1) for job in jobs)
    idle = list(waiting)
    again: deque[tuple[Any, int]] = deque()
    given: dict[Process, deque[tuple[Any, int]]] = {}

    def hand_out() -> None:
        """Let everybody have a job before anybody has a second one."""
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
                process = idle.pop() if idle else Process(descriptors)
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
                        why = f"{_STARTS} processes that grade were ended while they started"
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


def serve(descriptor: int, imports: str) -> None:
    """Do what comes in over a socket, in a process that `Process` has started."""
    skip_the_grammar_of_addresses()
    if imports:
        importlib.import_module(imports)
    connection = Connection(descriptor)
    with contextlib.ExitStack() as stack:
        try:
            work = stack.enter_context(pickle.loads(connection.recv_bytes())())
        except Exception as error:
            connection.send(f"{type(error).__name__}: {error}")
            return
        connection.send("")
        while True:
            try:
                job = connection.recv_bytes()
            except (EOFError, OSError):  # the latter where a result of ours was not read
                return
            result = work(pickle.loads(job))
            try:
                connection.send(result)
            except OSError:
                return


def _how(status: int) -> str:
    if status < 0:
        return f"by the signal {signal.Signals(-status).name}"
    return f"with the status {status}"
