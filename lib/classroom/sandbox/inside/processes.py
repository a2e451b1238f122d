"""The processes of a job: forking them, listing them, and ending those that multiply."""

import contextlib
import gc
import json
import math
import os
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from glob import glob
from multiprocessing.pool import RUN, Pool, ThreadPool
from pathlib import Path
from typing import Any

_ROUNDS_AGAINST_FORKS = 2000
_SECONDS_TO_TAKE_NOTE = 2.0
_POOLS = {
    ThreadPoolExecutor: ("_max_workers", "_thread_name_prefix", "_initializer", "_initargs"),
    ProcessPoolExecutor: ("_max_workers", "_mp_context", "_initializer", "_initargs"),
    ThreadPool: ("_processes", "_initializer", "_initargs"),
    Pool: ("_processes", "_initializer", "_initargs", "_maxtasksperchild"),
}
_LOWEST_PRIORITY = 19


def fork(run: Callable[[], None]) -> int:
    """Run something in a fork of this process, which ends after it however it ends.

    Returns:
        Number of the fork; this process goes on.

    """
    child = os.fork()
    if child == 0:
        try:
            run()
        finally:
            os._exit(0)
    return child


def pools() -> list[Any]:
    """Return the pools of Python's library that this process has, of threads and of processes."""
    return [thing for thing in gc.get_objects() if type(thing) in _POOLS]


def renew(pools: list[Any]) -> None:
    """Start pools anew in a fork, which has only one thread.

    Each counts on threads that were there before the fork, and would wait for them for ever.
    """
    for pool in pools:
        with contextlib.suppress(Exception):  # it may be half made, and of another Python
            if getattr(pool, "_state", RUN) == RUN:
                pool.__init__(*(getattr(pool, name) for name in _POOLS[type(pool)]))


def send_handle(grader: socket.socket, what: str, process: int) -> None:
    """Send the grader a descriptor of a process, by which it can end that process."""
    handle = os.pidfd_open(process)
    socket.send_fds(grader, [json.dumps({what: process}).encode()], [handle])
    os.close(handle)


def listed() -> set[int]:
    """Return the numbers of all processes of this process namespace."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def end_all_but(spared: set[int]) -> None:
    """End processes of this process namespace, even while they multiply.

    Until its parent has taken note of it, an ended process counts against the limit of processes.
    """
    send_to_all_but(spared, signal.SIGKILL, "ZX")
    until = time.monotonic() + _SECONDS_TO_TAKE_NOTE
    while (ended := listed() - spared) and time.monotonic() < until:
        for process in ended:
            with contextlib.suppress(ChildProcessError):  # another one's child
                os.waitpid(process, os.WNOHANG)
        time.sleep(0.001)


def send_to_all_but(spared: set[int], number: int, done: str) -> None:
    """Send a signal to processes of this process namespace until all are in a state of `done`.

    A process may have forked another between the list and its end: a signal that meets a fork
    waits until that is done. The search is over only when a list holds none but processes that
    were in such a state before it was made.
    """
    before: set[int] = set()
    for _ in range(_ROUNDS_AGAINST_FORKS):
        found = listed() - spared
        if found <= before:
            return
        before = {process for process in found if _state(process) in done}
        for process in found - before:
            with contextlib.suppress(OSError):
                os.kill(process, number)


def weigh_as_one() -> None:
    """Lower the priority of all threads of this process namespace, the more of them compute.

    One nice level is a fifth less CPU time. So all of them together get about what one would, and
    other jobs of this machine get theirs. None can raise its priority again.
    """
    here = f"{os.getpid()}/"
    # Not `Path.glob`, which fails where a process ends while it is read.
    tasks = [task.removeprefix("/proc/") for task in glob("/proc/[0-9]*/task/*")]
    busy = [task for task in tasks if not task.startswith(here) and _state(task) == "R"]
    nice = min(math.ceil(math.log(max(len(busy), 1), 1.25)), _LOWEST_PRIORITY)
    for task in busy:
        number = int(os.path.basename(task))
        with contextlib.suppress(OSError):
            if os.getpriority(os.PRIO_PROCESS, number) < nice:
                os.setpriority(os.PRIO_PROCESS, number, nice)


def _state(process: int | str) -> str:
    """Return the state of a process or, as `7/task/8`, of a thread, in Linux's letters."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
