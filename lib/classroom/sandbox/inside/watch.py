"""The first process of a job: starts the runner, watches memory, and ends when the runner ends."""

import contextlib
import json
import os
import select
import signal
import socket
from functools import partial
from typing import Any

from classroom.sandbox.inside import linux, memory, processes
from classroom.sandbox.inside.runner import be_runner
from classroom.sandbox.inside.shell import Shell
from classroom.sandbox.inside.terms import SHARED_MEMORY, WORKPLACE

_NUM_FILES = 10_000
_SECONDS_BETWEEN_LOOKS = 0.05


def keep_watch(settings: dict[str, Any], control: int, grader: socket.socket, shell: Shell) -> None:
    """Start the runner, and wait for the end of the job.

    When this process ends, the kernel ends all others of its process namespace.
    """
    try:
        # The grader may first move this process, and thereby its children, into a control group.
        if not grader.recv(1):
            return
        if settings["namespaces"]:
            linux.keep_mounts_private()
            for folder in (WORKPLACE, SHARED_MEMORY):
                linux.mount_memory(folder, settings["file_bytes"], _NUM_FILES, settings["readable"])
            linux.mount_processes()
        linux.set_dumpable(False)
        runner = processes.fork(partial(be_runner, settings, control, grader, shell))
        os.close(control)
        processes.send_handle(grader, "runner", runner)
    except OSError as error:
        grader.send(json.dumps({"failed": str(error)}).encode())
        return
    ended = _watch(runner, grader, settings)
    with contextlib.suppress(OSError):
        grader.send(json.dumps(ended).encode())


def _watch(runner: int, grader: socket.socket, settings: dict[str, Any]) -> dict[str, Any]:
    """Wait until the runner ends, the grader closes its socket, or the job exceeds its memory."""
    memory_bytes = settings["memory_bytes"] + memory.resident(os.getpid())
    a_child_ended, bell = os.pipe()
    os.set_blocking(a_child_ended, False)
    os.set_blocking(bell, False)
    signal.set_wakeup_fd(bell, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    events = select.poll()
    events.register(a_child_ended, select.POLLIN)
    events.register(grader, select.POLLIN)
    while True:
        events.poll(1000 * _SECONDS_BETWEEN_LOOKS)
        with contextlib.suppress(BlockingIOError):
            os.read(a_child_ended, 2**12)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                if ended[0] == runner:
                    return {"ended": os.waitstatus_to_exitcode(ended[1])}
        # Without a process namespace, the processes of the whole machine would count.
        if settings["namespaces"]:
            enough = memory_bytes - memory.in_sockets()
            if enough < 0 or memory.in_use(enough) > enough:
                return {"memory": memory_bytes}
            processes.weigh_as_one()
        with contextlib.suppress(BlockingIOError):
            if not grader.recv(1, socket.MSG_DONTWAIT):
                return {"alone": True}
