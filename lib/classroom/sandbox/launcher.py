"""Starts the sandbox in which submissions run, and in it one job for each submission.

Importing torch takes a second; forking a process that has imported it takes milliseconds. So a
clean process, the zygote, waits in the sandbox with everything imported that most jobs need, and
each job is a fork of it. The grader itself is never forked for one: a fork would know what the
grader knows.
"""

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING

from classroom.limits import Limits
from classroom.sandbox import layers as sandbox
from classroom.sandbox.control_groups import JobGroup, lent_group
from classroom.sandbox.inside.terms import READY, WITH_COMPILER
from classroom.sandbox.layers import Layer

if TYPE_CHECKING:
    from classroom.sandbox.job import Job

_SECONDS_TO_START = 120.0
# `classroom.check` grades; in here it only says that it does not, and returns what can be added up.
_BOOT = """
import sys
sys.path.append(sys.argv[1])
import classroom
class NoScore(float):
    def _ipython_display_(self):
        pass
def check(name):
    print(f"{name} is graded elsewhere")
    return NoScore()
classroom.check = check
from classroom.sandbox.inside.zygote import main
main(int(sys.argv[2]))
"""


class Launcher:
    """Starts the sandbox, and in it a zygote that forks the jobs; a context manager.

    A zygote that has died is started again. It ends with the thread that started it, whatever
    happens to that thread. Several graders may share one zygote: the one that has started it gives
    the others the socket that takes its requests.

    Args:
        allow_weaker: Go on where this machine lacks a layer of the sandbox.
        requests: Descriptor of the socket for requests to a zygote that another grader has started.

    Attributes:
        layers: What this machine offers, see `layers.probe`.

    Raises:
        TooWeak: If it lacks a layer and may not.

    """

    def __init__(self, allow_weaker: bool = False, requests: int | None = None):
        self.layers: tuple[Layer, ...] = sandbox.probe()
        sandbox.require(self.layers, allow_weaker)
        self._filter = sandbox.system_call_filter().hex()
        self._traceless = sandbox.traceless_filter().hex()
        self._process: subprocess.Popen | None = None
        self._owner = 0
        self._requests: socket.socket | None = None
        self._said: IO[bytes] | None = None
        if requests is not None:
            self._requests = socket.socket(fileno=requests)

    def __enter__(self) -> "Launcher":
        if self._is_alive():
            self._wait_until_ready()
        else:
            self._start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def be_ready(self, compiler: bool = False) -> None:
        """Start the zygote again if it has died; a fork of this process shares it then.

        Args:
            compiler: Let it import torch's compiler, too, if every job will need that.

        """
        if not self._is_alive():
            self._start()
        if compiler:
            self._wait_until_ready(WITH_COMPILER)

    def start_job(self, limits: Limits | None = None, deadline: float | None = None) -> "Job":
        """Start a job for one submission.

        Args:
            limits: What it may use.
            deadline: When its wall time is over, on the clock `time.monotonic`; by default
                `limits.seconds_per_submission` from now. A second attempt at the same submission
                gets the deadline of the first.

        Raises:
            JobDied: If it cannot be started.

        """
        from classroom.sandbox.job import JobDied

        limits = limits or Limits()
        if deadline is None:
            deadline = time.monotonic() + limits.seconds_per_submission
        self.be_ready()
        try:
            return self._ask(limits, deadline)
        except (OSError, JobDied):
            if self._is_alive():
                raise
            self._start()
            return self._ask(limits, deadline)

    @contextlib.contextmanager
    def starting(self) -> Iterator[int]:
        """Start a zygote without waiting for it, and end it after the block.

        Yields:
            Descriptor of the socket for its requests, for the graders that share it.

        """
        try:
            self._launch()
            assert self._requests is not None
            yield self._requests.fileno()
        finally:
            self.stop()

    @property
    def process(self) -> int:
        """Number of the process that the sandbox runs in."""
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
        package = Path(__file__).parents[2]
        argv = [sys.executable, "-I", "-B", "-c", _BOOT, str(package), str(theirs.fileno())]
        if self._has("bubblewrap"):
            argv = sandbox.command(argv)
        self._requests, self._said, self._owner = ours, tempfile.TemporaryFile(), os.getpid()
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

    def _wait_until_ready(self, message: bytes = READY) -> None:
        """Wait for its answer; if a zygote that was started elsewhere gives none, start another."""
        assert self._requests is not None
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, contextlib.suppress(OSError):
                socket.send_fds(self._requests, [message], [theirs.fileno()])
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
        from classroom.sandbox.job import Job

        assert self._requests is not None
        settings = {
            **asdict(limits),
            "namespaces": self._has("namespaces"),
            "landlock": self._has("Landlock"),
            "filter": self._filter,
            "traceless": self._traceless,
            "readable": sandbox.readable(),
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
        if self._process is not None and self._owner == os.getpid():
            return self._process.poll() is None
        if self._requests is None:
            return False
        # If it was started elsewhere, the other end of the socket closes when it dies.
        other_end = select.poll()
        other_end.register(self._requests, 0)
        return not other_end.poll(0)

    def _has(self, name: str) -> bool:
        return any(layer.name == name and layer.active for layer in self.layers)
