"""Starts the sandbox in which submissions run, and in it jobs, one for each submission.

Importing torch takes a second; forking a process that has imported it takes milliseconds. So a
clean process waits in the sandbox with everything imported, and each job is a fork of it. The
grader itself is never forked: what it knows, a fork of it would know.
"""

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from classroom import sandbox
from classroom.control_groups import JobGroup, lent_group
from classroom.jobs import Job, JobDied
from classroom.sandbox import Layer, Limits

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
    to that one.

    Args:
        allow_weaker: Go on where this machine lacks a layer of the sandbox.

    Attributes:
        layers: What this machine offers, see `sandbox.probe`.

    Raises:
        TooWeak: If it lacks a layer and may not.

    """

    def __init__(self, allow_weaker: bool = False):
        self.layers: tuple[Layer, ...] = sandbox.probe()
        sandbox.require(self.layers, allow_weaker)
        self._filter = sandbox.system_call_filter().hex()
        self._process: subprocess.Popen | None = None
        self._requests: socket.socket | None = None

    def __enter__(self) -> "Zygote":
        self._start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start_job(self, limits: Limits | None = None, deadline: float | None = None) -> Job:
        """Start a job for one submission.

        Args:
            limits: What it may use.
            deadline: When its wall time is over, on the clock `time.monotonic`; by default as
                long from now as the limits say. A second attempt at the same submission gets the
                deadline of the first.

        Raises:
            JobDied: If it cannot be started.

        """
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

    @property
    def process(self) -> int:
        """Number of the process that holds the sandbox."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """End the sandbox and everything in it."""
        if self._requests is not None:
            self._requests.close()
            self._requests = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        self.stop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        package = Path(__file__).parent.parent
        argv = [sys.executable, "-I", "-B", "-c", _BOOT, str(package), str(theirs.fileno())]
        if self._has("bubblewrap"):
            argv = sandbox.command(argv)
        with theirs, tempfile.TemporaryFile() as said:
            self._process = subprocess.Popen(
                argv,
                env=sandbox.environment(),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                pass_fds=[theirs.fileno()],
                cwd="/",
            )
            theirs.close()
            self._requests = ours
            ours.settimeout(_SECONDS_TO_START)
            try:
                is_ready = bool(ours.recv(100))
            except OSError:
                is_ready = False
            if not is_ready:
                self.stop()
                said.seek(0)
                last = said.read().decode(errors="replace").strip().splitlines()[-1:]
                raise RuntimeError(f"the sandbox did not start: {''.join(last) or 'no reason'}")

    def _ask(self, limits: Limits, deadline: float) -> Job:
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
        return self._process is not None and self._process.poll() is None

    def _has(self, name: str) -> bool:
        return any(layer.name == name and layer.active for layer in self.layers)
