"""Starts the sandbox in which submissions run, and in it jobs, one for each submission.

Importing torch takes a second; forking a process that has imported it takes milliseconds. So a
clean process waits in the sandbox with everything imported, and each job is a fork of it. The
grader itself is never forked: what it knows, a fork of it would know.
"""

import contextlib
import json
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from classroom import sandbox
from classroom.control_groups import JobGroup, lent_group
from classroom.sandbox import Layer, Limits

if TYPE_CHECKING:
    from classroom.jobs import Job

READY = b"ready?"
"""Asked of a zygote, with a socket to answer on; it answers when it can start jobs."""
_SECONDS_TO_START = 120.0
# `classroom.check` grades; in here it only says that it does not.
_BOOT = """
import sys, types
sys.path.append(sys.argv[1])
elsewhere = types.ModuleType("classroom.selfcheck")
def check(name):
    print(f"{name} is graded elsewhere")
elsewhere.check = check
sys.modules[elsewhere.__name__] = elsewhere
from classroom.worker import main
main(int(sys.argv[2]))
"""


class Zygote:
    """A sandbox with a clean process that waits for submissions; a context manager.

    It is started again if it has died. It ends with the thread that started it, whatever happens
    to that one. Several graders may share one, which spares each of them a start: the one that
    has started it gives them its door.

    Args:
        allow_weaker: Go on where this machine lacks a layer of the sandbox.
        door: Descriptor of the door of one that somebody else has started.

    Attributes:
        layers: What this machine offers, see `sandbox.probe`.

    Raises:
        TooWeak: If it lacks a layer and may not.

    """

    def __init__(self, allow_weaker: bool = False, door: int | None = None):
        self.layers: tuple[Layer, ...] = sandbox.probe()
        sandbox.require(self.layers, allow_weaker)
        self._filter = sandbox.system_call_filter().hex()
        self._process: subprocess.Popen | None = None
        self._requests: socket.socket | None = None
        self._said: IO[bytes] | None = None
        if door is not None:
            self._requests = socket.socket(fileno=door)

    def __enter__(self) -> "Zygote":
        if self._is_alive():
            self._wait_until_ready()
        else:
            self._start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start_job(self, limits: Limits | None = None, deadline: float | None = None) -> "Job":
        """Start a job for one submission.

        Args:
            limits: What it may use.
            deadline: When its wall time is over, on the clock `time.monotonic`; by default as
                long from now as the limits say. A second attempt at the same submission gets the
                deadline of the first.

        Raises:
            JobDied: If it cannot be started.

        """
        from classroom.jobs import JobDied

        limits = limits or Limits()
        if deadline is None:
            deadline = time.monotonic() + limits.seconds_per_submission
        if not self._is_alive():
            self._start()
        try:
            return self._ask(limits, deadline)
        except (OSError, JobDied):
            if self._is_alive():
                raise
            self._start()
            return self._ask(limits, deadline)

    @contextlib.contextmanager
    def starting(self) -> Iterator[int]:
        """Start it without waiting for it, and give its door for others who grade; end it then."""
        try:
            self._launch()
            assert self._requests is not None
            yield self._requests.fileno()
        finally:
            self.stop()

    @property
    def process(self) -> int:
        """Number of the process that holds the sandbox."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """End the sandbox and everything in it, if it was started here."""
        if self._requests is not None:
            self._requests.close()
            self._requests = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._said is not None:
            self._said.close()
            self._said = None

    def _start(self) -> None:
        self._launch()
        self._wait_until_ready()

    def _launch(self) -> None:
        self.stop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        package = Path(__file__).parent.parent
        argv = [sys.executable, "-I", "-B", "-c", _BOOT, str(package), str(theirs.fileno())]
        if self._has("bubblewrap"):
            argv = sandbox.command(argv)
        self._requests, self._said = ours, tempfile.TemporaryFile()
        with theirs:
            self._process = subprocess.Popen(
                argv,
                env=sandbox.environment(),
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                pass_fds=[theirs.fileno()],
                cwd="/",
            )

    def _wait_until_ready(self) -> None:
        """Wait for its answer; if one that was started elsewhere gives none, start another."""
        assert self._requests is not None
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, contextlib.suppress(OSError):
                socket.send_fds(self._requests, [READY], [theirs.fileno()])
            ours.settimeout(_SECONDS_TO_START)
            try:
                is_ready = bool(ours.recv(1))
            except OSError:
                is_ready = False
        if is_ready:
            return
        if self._process is None:
            self._start()
            return
        assert self._said is not None
        self._said.seek(0)
        last = self._said.read().decode(errors="replace").strip().splitlines()[-1:]
        self.stop()
        raise RuntimeError(f"the sandbox did not start: {''.join(last) or 'no reason'}")

    def _ask(self, limits: Limits, deadline: float) -> "Job":
        from classroom.jobs import Job

        assert self._requests is not None
        settings = {
            "namespaces": self._has("namespaces"),
            "landlock": self._has("Landlock"),
            "filter": self._filter,
            "readable": sandbox.readable(),
            "memory_bytes": limits.memory_bytes,
            "processes": limits.processes,
            "file_bytes": limits.file_bytes,
            "output_bytes": limits.output_bytes,
            "cpu_seconds": int(limits.seconds_per_submission) + 1,
        }
        with contextlib.ExitStack() as theirs:
            control, their_control = socket.socketpair()
            watch, their_watch = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            theirs.enter_context(their_control)
            theirs.enter_context(their_watch)
            try:
                socket.send_fds(
                    self._requests,
                    [json.dumps(settings).encode()],
                    [their_control.fileno(), their_watch.fileno()],
                )
            except OSError:
                control.close()
                watch.close()
                raise
        return Job(control, watch, limits, deadline, self._new_group(limits))

    def _new_group(self, limits: Limits) -> JobGroup | None:
        if not self._has("control groups"):
            return None
        # Files in its two folders are memory too; its first process and a server are processes.
        memory_bytes = limits.memory_bytes + 2 * limits.file_bytes
        return JobGroup(lent_group(), memory_bytes, limits.processes + 2)

    def _is_alive(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        if self._requests is None:
            return False
        # Of one that was started elsewhere, the other end of the socket closes when it dies.
        door = select.poll()
        door.register(self._requests, 0)
        return not door.poll(0)

    def _has(self, name: str) -> bool:
        return any(layer.name == name and layer.active for layer in self.layers)
