"""What runs inside the sandbox: a zygote that has imported everything, and the jobs it forks.

The zygote waits, clean, and never runs a line of a submission. For each one it forks a process
into namespaces of their own. The first process there keeps watch; its child, the runner, executes
the cells, and forks a server wherever an exercise is to be checked. Nothing here knows an answer,
and nothing here is believed by the grader.
"""

import ast
import contextlib
import gc
import io
import json
import os
import random
import resource
import select
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from classroom import kernel, pages
from classroom.frames import Channel, HungUp
from classroom.mending import Pristine
from classroom.sandbox import HIDDEN_PACKAGES, TOO_LITTLE_MEMORY, TOO_MANY_THREADS
from classroom.subjects import serve

WORKPLACE = "/tmp"
_SHARED_MEMORY = "/dev/shm"
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_NUM_FILES = 10_000
_OPEN_FILES = 256
_SECONDS_BETWEEN_LOOKS = 0.05
_MAX_REQUEST = 2**16
# `zygote.READY`, which cannot be imported here: what the grader knows stays outside.
_READY = b"ready?"
_BYTES_PER_OUTPUT = 200
_ROUNDS_AGAINST_FORKS = 200


class Collected:
    """Outputs in the form of a notebook, up to so many bytes.

    Args:
        num_bytes: The most that is kept of all of them together.

    Attributes:
        outputs: What has come so far.

    """

    def __init__(self, num_bytes: int):
        self.outputs: list[dict[str, Any]] = []
        self._num_bytes = num_bytes
        self._room = num_bytes

    def text(self, stream: str, text: str) -> None:
        """Add to what was printed to `stdout` or `stderr`."""
        if not text or self._room <= 0:
            return
        kept = text[: self._room]
        size, is_cut = 0, len(kept) < len(text)
        while kept and (size := _size(kept)) > self._room:
            kept, is_cut = kept[: len(kept) * self._room // size], True
        if is_cut:
            kept += "\n… the rest was cut off\n"
        last = self.outputs[-1] if self.outputs else {}
        if last.get("name") == stream:
            last["text"] += kept
        else:
            self._add({"output_type": "stream", "name": stream, "text": kept})
        self._room = 0 if is_cut else self._room - size

    def data(self, kind: str, data: dict[str, Any]) -> None:
        """Add a value or a picture, as `execute_result` or `display_data`."""
        texts = {
            mime: value if isinstance(value, str) else json.dumps(value, default=repr)
            for mime, value in data.items()
        }
        if sum(map(_size, texts.values())) > self._room:
            texts = {"text/plain": "… an output was left out: it is too long"}
        self._add({"output_type": kind, "data": texts, "metadata": {}}, *texts.values())

    def error(self, name: str, said: str, traceback: list[str]) -> None:
        """Add an exception."""
        said, lines = said[:10_000], [line[:10_000] for line in traceback[:100]]
        if sum(map(_size, lines)) > self._room:
            lines = ["… the traceback was left out: it is too long"]
        output = {"output_type": "error", "ename": name, "evalue": said, "traceback": lines}
        self._add(output, said, *lines)

    def clear(self) -> None:
        """Forget all outputs."""
        self.outputs.clear()
        self._room = self._num_bytes

    def _add(self, output: dict[str, Any], *texts: str) -> None:
        if self._room > 0:
            self.outputs.append(output)
            self._room -= _BYTES_PER_OUTPUT + sum(map(_size, texts))


def _size(text: str) -> int:
    """Return how long a text is when it is written out."""
    return len(json.dumps(text))


class _Stream(io.TextIOBase):
    """What Python prints to one of its two streams."""

    def __init__(self, collected: Collected, name: str):
        super().__init__()
        self._collected = collected
        self._name = name

    def write(self, text: str) -> int:
        self._collected.text(self._name, text)
        return len(text)

    def writable(self) -> bool:
        return True


class _Publisher(DisplayPublisher):
    shell: "Shell"

    def publish(self, data: Any, metadata: Any = None, **others: Any) -> None:
        self.shell.collected.data("display_data", data)

    def clear_output(self, wait: bool = False) -> None:
        self.shell.collected.clear()


class _Hook(DisplayHook):
    shell: "Shell"

    def write_output_prompt(self) -> None:
        pass

    def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
        self.shell.collected.data("execute_result", format_dict)


class Shell(InteractiveShell):
    """IPython, with everything that it shows collected.

    Attributes:
        collected: Where it goes.
        pristine: How it was before the first cell.

    """

    collected = Collected(0)
    pristine: Pristine
    # There is no terminal to run a command in.
    system = InteractiveShell.system_raw

    def _showtraceback(self, etype: Any, evalue: Any, stb: list[str]) -> None:
        self.collected.error(etype.__name__, _words_of(evalue), list(stb))

    def enable_gui(self, gui: str | None = None) -> None:
        """Do nothing: pictures appear under their cell, and there is no window to wait for."""

    @contextlib.contextmanager
    def collecting(self, num_bytes: int) -> Iterator[Collected]:
        """Collect what is shown in the block."""
        self.collected = Collected(num_bytes)
        out, err = _Stream(self.collected, "stdout"), _Stream(self.collected, "stderr")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield self.collected


class NotHere:
    """Stands last among those that look for modules, and says why one of ours is not found."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        """Raise an error for an import; who only asks whether a module is there gets an answer."""
        is_import = sys._getframe(2).f_code.co_name.startswith("_find_and_load")
        if is_import and _is_hidden(name):
            raise ModuleNotFoundError(
                f"No module named {name!r}: the course's library is not there when grades count",
                name=name,
            )


def _is_hidden(module: str) -> bool:
    return module.partition(".")[0] in HIDDEN_PACKAGES


def _new_shell() -> Shell:
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    config.InteractiveShell.separate_in = ""
    shell = Shell.instance(config=config, display_pub_class=_Publisher, displayhook_class=_Hook)
    # As in a kernel, pictures appear under the cell that draws them.
    shell.run_cell("%matplotlib inline", silent=True)
    shell.pristine = Pristine(shell)
    return shell


def main(descriptor: int) -> None:
    """Be the zygote: fork a job whenever the grader asks for one, until it hangs up.

    Args:
        descriptor: A connected socket of whole messages, JSON with file descriptors.

    """
    torch.set_num_threads(1)
    sys.meta_path.append(NotHere)
    requests = socket.socket(fileno=descriptor)
    shell = _new_shell()
    plt.close("all")
    gc.collect()
    gc.freeze()
    pages.gather()
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _MAX_REQUEST, 2)
        if not message:
            return
        if message == _READY:
            with socket.socket(fileno=descriptors[0]) as asked, contextlib.suppress(OSError):
                asked.send(b"!")
            continue
        door = os.fork()
        if door == 0:
            requests.close()
            with _no_way_back():
                control, watch = descriptors
                _open_door(json.loads(message), control, watch, shell)
        os.waitpid(door, 0)
        for each in descriptors:
            os.close(each)


@contextlib.contextmanager
def _no_way_back() -> Iterator[None]:
    """End this process after the block, however the block ends: its caller is another one's."""
    try:
        yield
    finally:
        os._exit(0)


def _open_door(settings: dict[str, Any], control: int, watch: int, shell: Shell) -> None:
    """Enter new namespaces and start their first process, which the grader gets a handle of."""
    grader = socket.socket(fileno=watch)
    try:
        os.setsid()
        if settings["namespaces"]:
            kernel.enter_namespaces()
        first = os.fork()
        if first == 0:
            with _no_way_back():
                _keep_watch(settings, control, grader, shell)
        _hand_over(grader, "first", first)
    except OSError as error:
        grader.send(json.dumps({"failed": str(error)}).encode())


def _hand_over(grader: socket.socket, what: str, process: int) -> None:
    handle = os.pidfd_open(process)
    socket.send_fds(grader, [json.dumps({what: process}).encode()], [handle])
    os.close(handle)


def _keep_watch(
    settings: dict[str, Any], control: int, grader: socket.socket, shell: Shell
) -> None:
    """Be the first process of a job: start the runner, and end everything when it is time to.

    When this process ends, the kernel ends all others of its process namespace.
    """
    try:
        # The grader may first put this process, and so all of its children, into a control group.
        if not grader.recv(1):
            return
        if settings["namespaces"]:
            kernel.keep_mounts_private()
            for folder in (WORKPLACE, _SHARED_MEMORY):
                kernel.mount_memory(
                    folder, settings["file_bytes"], _NUM_FILES, settings["readable"]
                )
            kernel.mount_processes()
        kernel.set_dumpable(False)
        runner = os.fork()
        if runner == 0:
            grader.close()
            with _no_way_back():
                _be_runner(settings, Channel(socket.socket(fileno=control)), shell)
        os.close(control)
        _hand_over(grader, "runner", runner)
    except OSError as error:
        grader.send(json.dumps({"failed": str(error)}).encode())
        return
    ended = _watch(runner, grader, settings)
    with contextlib.suppress(OSError):
        grader.send(json.dumps(ended).encode())


def _watch(runner: int, grader: socket.socket, settings: dict[str, Any]) -> dict[str, Any]:
    """Wait for the end of the runner, of the grader, or of the memory that may be used."""
    memory_bytes = settings["memory_bytes"] + _resident(os.getpid())
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
        if settings["namespaces"] and _memory_in_use(memory_bytes) > memory_bytes:
            return {"memory": memory_bytes}
        with contextlib.suppress(BlockingIOError):
            if not grader.recv(1, socket.MSG_DONTWAIT):
                return {"alone": True}


def _memory_in_use(enough: int) -> int:
    """Return the bytes that all processes here use together, roughly if it is not near `enough`."""
    processes = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    # Pages that forks share count for each of them here: an upper bound, and a cheap one.
    total = sum(map(_resident, processes))
    return total if total <= enough else sum(map(_own_share, processes))


def _resident(process: int) -> int:
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * resource.getpagesize()


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _own_share(process: int) -> int:
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return _resident(process)


def _be_runner(settings: dict[str, Any], control: Channel, shell: Shell) -> None:
    """Lock this process in and do what the grader says, one thing after another."""
    os.setsid()
    kernel.end_with_parent()
    kernel.set_dumpable(True)
    printed = _redirect_standard_streams(control.connection.fileno(), settings["file_bytes"])
    _limit_resources(settings)
    os.environ["TMPDIR"] = WORKPLACE
    # Beside it there may be a Python that was installed below /tmp.
    os.chdir(tempfile.mkdtemp(prefix="work-", dir=WORKPLACE))
    kernel.give_up_privileges()
    if settings["landlock"]:
        kernel.restrict_files(
            [*settings["readable"], "/proc"], [WORKPLACE, _SHARED_MEMORY, *_DEVICES]
        )
    if settings["filter"]:
        kernel.filter_system_calls(bytes.fromhex(settings["filter"]))
    _reseed()
    Runner(control, shell, printed, settings).run()


def _redirect_standard_streams(keep: int, num_bytes: int) -> int:
    """Close all files but one, let nothing be read, and collect what is written past Python."""
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
    kernel.limit(resource.RLIMIT_AS, _address_space() + settings["memory_bytes"])
    kernel.limit(resource.RLIMIT_FSIZE, settings["file_bytes"])
    kernel.limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    kernel.limit(resource.RLIMIT_CORE, 0)
    kernel.limit(resource.RLIMIT_CPU, settings["cpu_seconds"])
    kernel.limit(resource.RLIMIT_MEMLOCK, 0)
    kernel.limit(resource.RLIMIT_MSGQUEUE, 0)
    if settings["namespaces"]:
        # Counted within a user namespace: elsewhere the same user's other processes would count.
        kernel.limit(resource.RLIMIT_NPROC, settings["processes"] + 2)


def _reseed() -> None:
    """Forks of one process would draw the same random numbers."""
    random.seed()
    np.random.seed(int.from_bytes(os.urandom(4)))
    torch.manual_seed(int.from_bytes(os.urandom(7)))


class Runner:
    """Executes the cells of one notebook as Jupyter would, and collects what they show."""

    def __init__(self, control: Channel, shell: Shell, printed: int, settings: dict[str, Any]):
        self._control = control
        self._shell = shell
        self._printed = printed
        self._output_bytes: int = settings["output_bytes"]
        self._processes: int = settings["processes"]
        self._memory_bytes: int = settings["memory_bytes"]
        self._is_alone: bool = settings["namespaces"]
        self._server = 0
        self._before: set[int] = set()

    def run(self) -> None:
        """Do what the grader says until it hangs up."""
        while True:
            try:
                request = self._control.receive()
            except KeyboardInterrupt:  # meant for a cell that has ended in the meantime
                continue
            except HungUp:
                return
            match request:
                case ["run", str(token), str(source)]:
                    self._control.send(["ran", token, *self._run_cell(source)])
                case ["serve", str(token), float(seconds)]:
                    self._start_server(seconds)
                    self._control.send(["serving", token])
                case ["stop", str(token)]:
                    self._stop_server()
                    self._control.send(["stopped", token])

    def _run_cell(self, source: str) -> list[Any]:
        with self._shell.collecting(self._output_bytes) as collected:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                result = Shell.run_cell(self._shell, source, store_history=True)
                error = result.error_before_exec or result.error_in_exec
                said = _in_a_line(error)
                while below := _below_a_hidden_import(self._shell, source, error):
                    source = below
                    error = Shell.run_cell(self._shell, source).error_in_exec
                    then = _in_a_line(error) or "the rest of the cell ran without it"
                    said = f"{said}; {then}" if then not in said else said
            except KeyboardInterrupt as interrupt:
                said = _in_a_line(interrupt)
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                is_mended = self._shell.pristine.restore()
        collected.text("stdout", self._printed_past_python())
        self._require_room()
        return [collected.outputs, said, is_mended]

    def _printed_past_python(self) -> str:
        try:
            size = min(os.fstat(self._printed).st_size, self._output_bytes)
            found = os.pread(self._printed, size, 0).decode("utf-8", "replace")
            os.ftruncate(self._printed, 0)
            os.lseek(self._printed, 0, os.SEEK_SET)
        except OSError:  # the cell may have closed it
            return ""
        return found

    def _require_room(self) -> None:
        """End here if a cell has left so much running that no exercise could be checked."""
        if len(os.listdir("/proc/self/task")) > self._processes // 2:
            os._exit(TOO_MANY_THREADS)
        in_use = _address_space()
        if in_use > resource.getrlimit(resource.RLIMIT_AS)[0] - self._memory_bytes // 8:
            os._exit(TOO_LITTLE_MEMORY)
        if self._is_alone and len(_processes()) > self._processes // 2:
            _end_all_but({1, os.getpid()})

    def _start_server(self, seconds: float) -> None:
        """Fork a process with the variables as they are now, to answer an exercise's checks."""
        _, (connection,), _, _ = socket.recv_fds(self._control.connection, 1, 1)
        self._before = self._hold_others() if self._is_alone else set()
        self._server = os.fork()
        if self._server == 0:
            with _no_way_back():
                os.setsid()
                self._control.close()
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                serve(Channel(socket.socket(fileno=connection)), self._shell.user_ns, seconds)
        os.close(connection)

    def _stop_server(self) -> None:
        """End the server and all that it has started, so that it costs the next one nothing."""
        if not self._server:
            return
        for end in (os.killpg, os.kill):
            with contextlib.suppress(OSError):
                end(self._server, signal.SIGKILL)
        # First, because looking for others again and again while it ends takes time from it.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._server, 0)
        if self._is_alone:
            _end_all_but(self._before)
            for process in self._before - {1, os.getpid()}:
                with contextlib.suppress(OSError):
                    os.kill(process, signal.SIGCONT)
        self._server = 0

    def _hold_others(self) -> set[int]:
        """Let what cells have left running stand still, and return all processes that are here.

        If they multiply, there may be few of them after a cell and no room for one more by the
        time that the checks need it.
        """
        spared = {1, os.getpid()}
        if _processes() - spared:
            _send_to_all_but(spared, signal.SIGSTOP, "ZXT")
            if len(_processes()) > self._processes // 2:
                _end_all_but(spared)
        return _processes()


def _processes() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def _end_all_but(spared: set[int]) -> None:
    """End processes of this process namespace, also while they multiply."""
    _send_to_all_but(spared, signal.SIGKILL, "ZX")


def _send_to_all_but(spared: set[int], number: int, done: str) -> None:
    """Send a signal to processes of this process namespace until all are in a state of `done`.

    One that ends after the list was made may have forked another, which is not in it. So it is
    over only when a second list holds nobody new.
    """
    before: set[int] = set()
    for _ in range(_ROUNDS_AGAINST_FORKS):
        listed = _processes() - spared
        others = {process for process in listed if _state(process) not in done}
        if not others and listed <= before:
            return
        before = listed
        for process in others:
            with contextlib.suppress(OSError):
                os.kill(process, number)


def _state(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _below_a_hidden_import(shell: Shell, source: str, error: BaseException | None) -> str:
    """Return what of a cell stands below an import of the course's library that has stopped it.

    The import may be for a plot at the end of the notebook, and stand above all others.
    """
    if not isinstance(error, ModuleNotFoundError) or not _is_hidden(error.name or ""):
        return ""
    trace = error.__traceback__
    lines = [at for frame, at in traceback.walk_tb(trace) if frame.f_globals is shell.user_ns]
    text = shell.transform_cell(source)
    for statement in ast.parse(text).body:
        end = statement.end_lineno or 0
        is_import = isinstance(statement, (ast.Import, ast.ImportFrom))
        if is_import and lines[-1:] and statement.lineno <= lines[-1] <= end:
            below = "".join(text.splitlines(keepends=True)[end:])
            # In the place of what has run, so that errors name the lines that they are in.
            return "#\n" * end + below if below.strip() else ""
    return ""


def _in_a_line(error: BaseException | None) -> str:
    if error is None:
        return ""
    first = _words_of(error).strip().split("\n")[0][:1000]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _words_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the exception may be the student's own, and broken too
        return ""
