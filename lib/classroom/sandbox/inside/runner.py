"""The runner: locks itself in, executes the cells, and forks a server for each exercise."""

import contextlib
import gc
import importlib
import os
import random
import resource
import signal
import socket
import sys
import tempfile
import warnings
from functools import partial
from typing import Any

import numpy as np
import torch

from classroom.calls.channel import Channel, HungUp
from classroom.calls.subject import words_of
from classroom.sandbox.inside import linux, memory, processes
from classroom.sandbox.inside.serving import serve
from classroom.sandbox.inside.shell import Shell, below_a_hidden_import
from classroom.sandbox.inside.terms import (
    SHARED_MEMORY,
    TOO_LITTLE_MEMORY,
    TOO_MANY_THREADS,
    WORKPLACE,
)

_DEVICES = ("/dev/zero", "/dev/random", "/dev/urandom")
# Not /dev/zero: writing to a shared map of it takes memory that counts for no process.
_WRITABLE = (WORKPLACE, SHARED_MEMORY, "/dev/null", "/dev/full")
# A socket holds memory that counts for no process, see `watch`.
_OPEN_FILES = 64
_PENDING_SIGNALS = 128


def be_runner(settings: dict[str, Any], control: int, grader: socket.socket, shell: Shell) -> None:
    """Give up every privilege, then answer the grader's requests one after another.

    Args:
        settings: What the job may use, as the launcher sends it.
        control: Descriptor of the socket for the grader's requests.
        grader: The socket of the process that keeps watch; closed here.
        shell: Runs the cells.

    """
    grader.close()
    channel = Channel(socket.socket(fileno=control))
    os.setsid()
    linux.end_with_parent()
    linux.set_dumpable(True)
    printed = _redirect_standard_streams(control, settings["file_bytes"])
    _limit_resources(settings)
    os.environ["TMPDIR"] = WORKPLACE
    # There may be a Python installed below /tmp.
    os.chdir(tempfile.mkdtemp(prefix="work-", dir=WORKPLACE))
    sys.path.insert(0, "")  # as in a Jupyter kernel, modules beside the notebook are found
    linux.give_up_privileges()
    rules = -1
    if settings["landlock"]:
        rules = linux.rules_against_writing()
        linux.restrict_files([*settings["readable"], "/proc", *_DEVICES], _WRITABLE)
    if settings["filter"]:
        linux.filter_system_calls(bytes.fromhex(settings["filter"]))
    _reseed()
    Runner(channel, shell, printed, settings, rules).run()


def _redirect_standard_streams(keep: int, num_bytes: int) -> int:
    """Close all files but one; stdin is empty, and what bypasses Python's streams is collected."""
    printed = os.memfd_create("printed")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number > 2 and number not in (keep, printed):
            with contextlib.suppress(OSError):
                os.close(number)
    return printed


def _limit_resources(settings: dict[str, Any]) -> None:
    linux.limit(resource.RLIMIT_AS, memory.address_space() + settings["memory_bytes"])
    linux.limit(resource.RLIMIT_FSIZE, settings["file_bytes"])
    linux.limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    linux.limit(resource.RLIMIT_CORE, 0)
    linux.limit(resource.RLIMIT_CPU, int(settings["seconds_per_submission"]) + 1)
    linux.limit(resource.RLIMIT_MEMLOCK, 0)
    linux.limit(resource.RLIMIT_MSGQUEUE, 0)
    if settings["namespaces"]:
        # Counted within a user namespace: elsewhere the same user's other processes would count.
        linux.limit(resource.RLIMIT_NPROC, settings["processes"] + 2)
        linux.limit(resource.RLIMIT_SIGPENDING, _PENDING_SIGNALS)


def _reseed() -> None:
    """Seed all generators anew: forks of one process would draw the same random numbers."""
    random.seed()
    np.random.seed(int.from_bytes(os.urandom(4)))
    # Not `torch.manual_seed`, which also seeds devices that a job does not have: 10 ms.
    torch.default_generator.manual_seed(int.from_bytes(os.urandom(7)))


class Runner:
    """Executes the cells of one notebook as Jupyter would, and collects their outputs."""

    def __init__(
        self, control: Channel, shell: Shell, printed: int, settings: dict[str, Any], rules: int
    ):
        self._control = control
        self._shell = shell
        self._printed = printed
        self._limits = settings
        self._rules = rules
        self._max_left: int = settings["processes"] // 2
        self._is_alone: bool = settings["namespaces"]
        self._server = 0
        self._before: set[int] = set()

    def run(self) -> None:
        """Answer the grader's requests until it closes the channel."""
        while True:
            try:
                request = self._control.receive()
            except KeyboardInterrupt:  # meant for a cell that has ended in the meantime
                continue
            except HungUp:
                return
            match request:
                case ["run", str(token), str(source), bool(only_adds), int(num_bytes)]:
                    before = dict(self._shell.user_ns) if only_adds else {}
                    self._control.send(["ran", token, *self._run_cell(source, num_bytes)])
                    self._shell.user_ns.update(before)
                case ["compiler", str(token)]:
                    with contextlib.suppress(ImportError, MemoryError):
                        importlib.import_module("torch._dynamo")
                    self._control.send(["compiler", token])
                case ["serve", str(token), float(seconds)]:
                    self._start_server(seconds)
                    self._control.send(["serving", token])
                case ["stop", str(token)]:
                    self._stop_server()
                    self._control.send(["stopped", token])

    def _run_cell(self, source: str, num_bytes: int) -> list[Any]:
        with self._shell.collecting(num_bytes) as collected:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            importlib.invalidate_caches()  # cells follow each other sooner than times of files do
            try:
                result = Shell.run_cell(self._shell, source, store_history=True)
                error = result.error_before_exec or result.error_in_exec
                said = _in_a_line(error)
                while below := below_a_hidden_import(self._shell, source, error):
                    source = below
                    error = Shell.run_cell(self._shell, source).error_in_exec
                    then = _in_a_line(error) or "the rest of the cell ran without it"
                    said = f"{said}; {then}" if then not in said else said
            except KeyboardInterrupt as interrupt:
                said = _in_a_line(interrupt)
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                is_restored = self._shell.initial_state.restore()
        collected.text("stdout", self._printed_past_python())
        self._require_resources()
        return [collected.outputs, said, is_restored]

    def _printed_past_python(self) -> str:
        try:
            size = min(os.fstat(self._printed).st_size, self._limits["output_bytes"])
            found = os.pread(self._printed, size, 0).decode("utf-8", "replace")
            os.ftruncate(self._printed, 0)
            os.lseek(self._printed, 0, os.SEEK_SET)
        except OSError:  # the cell may have closed it
            return ""
        return found

    def _require_resources(self) -> None:
        """End this process if a cell leaves too few resources for the checks."""
        if len(os.listdir("/proc/self/task")) > self._max_left:
            os._exit(TOO_MANY_THREADS)
        in_use = memory.address_space()
        if in_use > resource.getrlimit(resource.RLIMIT_AS)[0] - self._limits["memory_bytes"] // 8:
            os._exit(TOO_LITTLE_MEMORY)
        if self._is_alone and len(processes.listed()) > self._max_left:
            processes.end_all_but({1, os.getpid()})

    def _start_server(self, seconds: float) -> None:
        """Fork a process with the current variables, which forks another for each call."""
        _, (connection,), _, _ = socket.recv_fds(self._control.connection, 1, 1)
        self._before = self._hold_others() if self._is_alone else set()
        self._server = processes.fork(partial(self._serve, connection, seconds))
        os.close(connection)

    def _serve(self, connection: int, seconds: float) -> None:
        """Answer each call in a fork of its own, over the socket that comes with it."""
        os.setpgid(0, 0)
        self._control.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        linux.adopt_orphans()
        _be_quiet()
        pools = processes.pools()
        # A collection in a fork would copy all pages that hold an object.
        gc.freeze()
        spared = self._before | {os.getpid()}
        calls = socket.socket(fileno=connection)
        while True:
            _, descriptors, _, _ = socket.recv_fds(calls, 1, 1)
            if not descriptors:
                return
            call = processes.fork(partial(self._answer, calls, descriptors[0], pools, seconds))
            os.close(descriptors[0])
            os.waitpid(call, 0)
            self._end_what_is_left(spared)

    def _end_what_is_left(self, spared: set[int]) -> None:
        """End what a call has left running: Linux has made it a child of this process."""
        with contextlib.suppress(ChildProcessError):
            while True:
                if os.waitpid(-1, os.WNOHANG) != (0, 0):
                    continue
                if not self._is_alone:
                    return
                processes.end_all_but(spared)

    def _answer(
        self, calls: socket.socket, connection: int, pools: list[Any], seconds: float
    ) -> None:
        calls.close()
        _reseed()

        def prepare(without_trace: bool, keep: int) -> None:
            if without_trace:
                linux.leave_no_trace(bytes.fromhex(self._limits["traceless"]), self._rules, keep)
            else:
                processes.renew(pools)

        serve(Channel(socket.socket(fileno=connection)), self._shell.user_ns, seconds, prepare)

    def _stop_server(self) -> None:
        """End the server and all processes that it has started."""
        if not self._server:
            return
        for end in (os.killpg, os.kill):
            with contextlib.suppress(OSError):
                end(self._server, signal.SIGKILL)
        # Before the others, because searching for them takes CPU time from it while it ends.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._server, 0)
        if self._is_alone:
            processes.end_all_but(self._before)
            for process in self._before - {1, os.getpid()}:
                with contextlib.suppress(OSError):
                    os.kill(process, signal.SIGCONT)
        self._server = 0

    def _hold_others(self) -> set[int]:
        """Stop the processes that cells have left running, and return all processes of the job.

        Processes that multiply may be few after a cell, and too many to fork one more by the time
        of the checks.
        """
        spared = {1, os.getpid()}
        if processes.listed() - spared:
            processes.send_to_all_but(spared, signal.SIGSTOP, "ZXT")
            if len(processes.listed()) > self._max_left:
                processes.end_all_but(spared)
        return processes.listed()


def _be_quiet() -> None:
    """Discard what answers print, and what they warn of even if a cell made warnings errors.

    A self-check does the same.
    """
    warnings.simplefilter("ignore")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _in_a_line(error: BaseException | None) -> str:
    if error is None:
        return ""
    first = words_of(error).strip().split("\n")[0][:1000]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
