"""The grader's end of a running submission: cells to run, and exercises to check.

A `Launcher` starts it. Whatever it sends is validated here.
"""

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from classroom.calls.channel import Channel, HungUp, Late, ProtocolError
from classroom.calls.files import File
from classroom.calls.remote import RemoteSubject
from classroom.limits import WALL_PER_CPU, Limits
from classroom.sandbox.control_groups import JobGroup, cpu_seconds_below, number_of
from classroom.sandbox.inside.terms import TOO_LITTLE_MEMORY, TOO_MANY_THREADS

__all__ = ["CellRun", "Job", "JobDied", "JobTooSlow", "ProtocolError"]

# For steps that should take no time at all.
_GRACE_SECONDS = 0.5
# After an interrupt: on a busy machine a sleeping process needs more than a moment to wake up.
_SECONDS_TO_HEED = 2.0
_SECONDS_TO_START = 10.0
_MAX_NEWS = 2**12
_MAX_ERROR = 2000
# What says that something was left out comes on top.
_MORE_BYTES = 2**12
_STREAMS = ("stdout", "stderr")
_KINDS_OF_DATA = ("display_data", "execute_result")


class JobDied(Exception):
    """The process that runs the cells ended; the message tells its author how."""


class JobTooSlow(Exception):
    """A cell did not end in time, and could not be interrupted."""


@dataclass(frozen=True)
class CellRun:
    """The outcome of one cell.

    Attributes:
        outputs: As a notebook keeps them: streams, data, results, errors.
        error: The exception that ended it, on one line; empty if none did.
        seconds: Wall time.
        is_restored: Whether it changed how later cells are read, run or checked, which was undone.
        num_bytes: Of the outputs as JSON: every key and every name counts.

    """

    outputs: list[dict[str, Any]]
    error: str
    seconds: float
    is_restored: bool = False
    num_bytes: int = 0


class Job:
    """A submission in its sandbox, and the two sockets that connect to it.

    A context manager, which ends all of the submission's processes.

    Args:
        control: Connects to the runner, which executes the cells.
        watch: Connects to the first process, which reports how the runner ended.
        limits: What the submission may use.
        deadline: When its wall time is over, on the clock `time.monotonic`.
        group: The control group that limits its processes together, if there is one.

    """

    def __init__(
        self,
        control: socket.socket,
        watch: socket.socket,
        limits: Limits,
        deadline: float,
        group: JobGroup | None = None,
    ):
        self._control = Channel(control, max_bytes=4 * limits.output_bytes + 2**20)
        self._watch = watch
        self._limits = limits
        self.deadline = deadline
        self._group = group
        self._handles: dict[str, int] = {}
        self._calls: socket.socket | None = None
        self._reason = ""
        self._cpu_seconds = 0.0
        now = time.monotonic()
        soon = min(now + _SECONDS_TO_START, deadline + _GRACE_SECONDS)
        try:
            if now >= deadline:
                raise JobTooSlow("the time for this submission is over")
            self._take_handle("first", soon)
            if group is not None:
                group.add(self._handles["first"])
            self._watch.send(b"!")
            self._take_handle("runner", soon)
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()

    def import_compiler(self) -> None:
        """Import torch's compiler before the first cell, for code that uses what needs it.

        An optimizer, for instance: each call would spend a second on that.

        Raises:
            JobDied: If its process ended. The job is over then.
            JobTooSlow: If the wall time of the submission is over. The job is over.

        """
        token = secrets.token_hex(8)
        with self._over_at_an_error():
            self._control.send(["compiler", token], self.deadline)
            if self._control.receive(self.deadline) != ["compiler", token]:
                raise ProtocolError("it did not import the compiler")

    def run(self, source: str, only_adds: bool = False, most_bytes: int | None = None) -> CellRun:
        """Run a cell as Jupyter would, magics and all.

        A cell that takes too long is interrupted, and what it had defined by then remains.

        Args:
            source: The cell's text.
            only_adds: Whether names that are defined already keep their values.
            most_bytes: What it may show, as JSON; `limits.output_bytes` at most.

        Raises:
            JobDied: If its process ended. The job is over then.
            JobTooSlow: If it did not let itself be interrupted, or if the wall time of the
                submission is over. The job is over.
            ProtocolError: If the reply is not the outcome of a cell. The job is over.

        """
        started = time.monotonic()
        deadline = min(started + self._limits.seconds_per_cell, self.deadline)
        if started >= self.deadline:
            self.kill()
            raise JobTooSlow("the time for this submission is over")
        token = secrets.token_hex(8)
        most_bytes = min(self._limits.output_bytes, most_bytes or self._limits.output_bytes)
        with self._over_at_an_error():
            self._control.send(["run", token, source, only_adds, most_bytes], deadline)
            try:
                found = self._control.receive(deadline)
            except Late:
                self._interrupt()
                found = self._control.receive(deadline + _SECONDS_TO_HEED)
        seconds = time.monotonic() - started
        match found:
            # A reply that a cell forges lacks the token, unless the cell searches for it.
            case ["ran", str(same), list(outputs), str(error), bool(is_restored)] if same == token:
                with self._over_at_an_error():
                    shown = [_output(each) for each in outputs]
                    num_bytes = len(json.dumps(shown))
                    if num_bytes > most_bytes + _MORE_BYTES:
                        raise ProtocolError("it sent more outputs than a cell may show")
                    error = _plain(error)[:_MAX_ERROR]
                    return CellRun(shown, error, seconds, is_restored, num_bytes)
        self.kill()
        raise ProtocolError("it sent something else than the outputs of a cell")

    @contextlib.contextmanager
    def serving(self, files: Mapping[str, File] | None = None) -> Iterator[RemoteSubject]:
        """Let the checks of one exercise call the code, with its current variables.

        Changes that these calls make are discarded afterwards.

        Args:
            files: The files submitted beside the notebook, by name; the code does not see them.

        """
        seconds = self._limits.seconds_per_exercise
        left = max(self.deadline - time.monotonic(), 0.0)
        wall_seconds = min(WALL_PER_CPU * seconds, left)
        subject = RemoteSubject(
            self._connect, self._disconnect, seconds, wall_seconds, self.cpu_seconds, files
        )
        try:
            yield subject
        finally:
            subject.close()

    def kill(self) -> None:
        """End all processes of the submission."""
        self._listen_to_watch()
        for handle in self._handles.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        if "first" in self._handles:
            # Readable as soon as the last process of its namespace is gone.
            select.select([self._handles["first"]], [], [], _SECONDS_TO_START)
        if self._group is not None:
            self._group.remove()
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()
        self._control.close()
        self._watch.close()

    def cpu_seconds(self) -> float:
        """Return the CPU time that all its processes have used so far, as Linux counts it."""
        if self._group is not None:
            return self._group.cpu_seconds
        first = number_of(self._handles["first"]) if self.is_alive else 0
        self._cpu_seconds = max(self._cpu_seconds, cpu_seconds_below(first))
        return self._cpu_seconds

    @property
    def is_alive(self) -> bool:
        """Whether it still answers requests."""
        return "first" in self._handles

    def _connect(self) -> Channel:
        """Start a process for one call."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                if self._calls is None:
                    self._calls = self._start_server()
                socket.send_fds(self._calls, [b"!"], [theirs.fileno()])
            except BaseException as error:
                ours.close()
                if isinstance(error, (JobDied, JobTooSlow, OSError)):
                    raise HungUp from None
                raise
        return Channel(ours)

    def _start_server(self) -> socket.socket:
        """Start the process that starts one for each call, and return a socket to it."""
        ours, theirs = socket.socketpair()
        soon = min(time.monotonic() + _SECONDS_TO_START, self.deadline + _GRACE_SECONDS)
        token = secrets.token_hex(8)
        try:
            with theirs, self._over_at_an_error():
                seconds = float(self._limits.seconds_per_exercise)
                self._control.send(["serve", token, seconds], soon)
                socket.send_fds(self._control.connection, [b"!"], [theirs.fileno()])
                if self._control.receive(soon) != ["serving", token]:
                    raise ProtocolError("it did not start to serve")
        except BaseException:
            ours.close()
            raise
        return ours

    def _disconnect(self) -> None:
        """End all processes that answer calls."""
        if self._calls is None:
            return
        self._calls.close()
        self._calls = None
        if not self.is_alive:
            return
        soon = time.monotonic() + _GRACE_SECONDS
        token = secrets.token_hex(8)
        with contextlib.suppress(JobDied, JobTooSlow, ProtocolError), self._over_at_an_error():
            self._control.send(["stop", token], soon)
            if self._control.receive(soon) != ["stopped", token]:
                raise ProtocolError("it did not stop to serve")

    @contextlib.contextmanager
    def _over_at_an_error(self) -> Iterator[None]:
        if not self.is_alive:
            raise JobDied(self._reason or "it has ended before")
        try:
            yield
        except Late:
            self.kill()
            raise JobTooSlow("it did not end in time and did not heed an interrupt") from None
        except (HungUp, OSError):
            # A process closes its sockets a moment before it is gone.
            select.select([self._handles["runner"]], [], [], _GRACE_SECONDS)
            self.kill()
            raise JobDied(self._reason or "its process came to an end") from None
        except ProtocolError:
            self.kill()
            raise

    def _interrupt(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handles["runner"], signal.SIGINT)

    def _take_handle(self, what: str, deadline: float) -> None:
        try:
            self._watch.settimeout(max(deadline - time.monotonic(), 0.01))
            news, handles, _, _ = socket.recv_fds(self._watch, _MAX_NEWS, 1)
        except OSError as error:
            raise JobDied(f"it did not start: {error}") from None
        if not handles:
            why = json.loads(news).get("failed") if news else "its sandbox ended"
            raise JobDied(f"it did not start: {why}")
        self._handles[what] = handles[0]

    def _listen_to_watch(self) -> None:
        """Record how the job ended, if it ended by itself."""
        if self._reason or "runner" not in self._handles:
            return
        ended, _, _ = select.select([self._handles["runner"]], [], [], 0)
        try:
            self._watch.settimeout(_GRACE_SECONDS if ended else 0.0)
            news = json.loads(self._watch.recv(_MAX_NEWS) or b"{}")
        except (OSError, ValueError):
            return
        by_linux = self._group is not None and self._group.ran_out_of_memory
        if "memory" in news or (by_linux and news.get("ended") == -signal.SIGKILL):
            self._reason = f"it used more than {self._limits.memory_bytes / 2**20:,.0f} MiB"
        elif "ended" in news:
            self._reason = _how(news["ended"])


def _how(status: int) -> str:
    if status == TOO_MANY_THREADS:
        return "it left too many threads running"
    if status == TOO_LITTLE_MEMORY:
        return "it left too little memory for the other cells"
    if status >= 0:
        return f"it ended its own process with the status {status}"
    return f"its process was ended by the signal {signal.Signals(-status).name}"


def _output(found: Any) -> dict[str, Any]:
    """Rebuild one output of a notebook from its known parts."""
    match found:
        case {"output_type": "stream", "name": str(name), "text": str(text)} if name in _STREAMS:
            return {"output_type": "stream", "name": name, "text": _plain(text)}
        case {"output_type": str(kind), "data": dict(data)} if kind in _KINDS_OF_DATA:
            texts = {_plain(m): _plain(t) for m, t in data.items() if isinstance(t, str)}
            rest = {"execution_count": None} if kind == "execute_result" else {}
            return {"output_type": kind, "data": texts, "metadata": {}, **rest}
        case {
            "output_type": "error",
            "ename": str(name),
            "evalue": str(said),
            "traceback": list(lines),
        }:
            return {
                "output_type": "error",
                "ename": _plain(name),
                "evalue": _plain(said),
                "traceback": [_plain(line) for line in lines if isinstance(line, str)],
            }
    raise ProtocolError("it sent something else than an output")


def _plain(text: str) -> str:
    """Return text without lone surrogates, which cannot be written to a file."""
    return text.encode("utf-8", "replace").decode("utf-8")
