"""IPython, as the cells of a submission find it, with everything that it shows collected."""

import ast
import contextlib
import io
import json
import sys
import traceback
from collections.abc import Iterator
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from classroom.calls.subject import words_of
from classroom.sandbox.inside.restoring import InitialState
from classroom.sandbox.inside.terms import HIDDEN_PACKAGES

_BYTES_PER_OUTPUT = 200


class Collected:
    """Outputs in the form of a notebook, up to a number of bytes.

    Args:
        num_bytes: The most that is kept of all of them together.

    Attributes:
        outputs: The outputs so far.

    """

    def __init__(self, num_bytes: int):
        self.outputs: list[dict[str, Any]] = []
        self._num_bytes = num_bytes
        self._bytes_left = num_bytes

    def text(self, stream: str, text: str) -> None:
        """Append to what was printed to `stdout` or `stderr`."""
        if not text or self._bytes_left <= 0:
            return
        kept = text[: self._bytes_left]
        size, is_cut = 0, len(kept) < len(text)
        while kept and (size := _size(kept)) > self._bytes_left:
            kept, is_cut = kept[: len(kept) * self._bytes_left // size], True
        if is_cut:
            kept += "\n… the rest was cut off\n"
        last = self.outputs[-1] if self.outputs else {}
        if last.get("name") == stream:
            last["text"] += kept
        else:
            self._add({"output_type": "stream", "name": stream, "text": kept})
        self._bytes_left = 0 if is_cut else self._bytes_left - size

    def data(self, kind: str, data: dict[str, Any]) -> None:
        """Append a value or a plot, as `execute_result` or `display_data`."""
        texts = {
            mime: value if isinstance(value, str) else json.dumps(value, default=repr)
            for mime, value in data.items()
        }
        if sum(map(_size, [*texts, *texts.values()])) > self._bytes_left:
            texts = {"text/plain": "… an output was left out: it is too long"}
        output = {"output_type": kind, "data": texts, "metadata": {}}
        self._add(output, *texts, *texts.values())

    def error(self, name: str, said: str, traceback: list[str]) -> None:
        """Append an exception."""
        name, said = name[:1000], said[:10_000]
        lines = [line[:10_000] for line in traceback[:100]]
        if sum(map(_size, [name, said, *lines])) > self._bytes_left:
            said, lines = said[:100], ["… the traceback was left out: it is too long"]
        output = {"output_type": "error", "ename": name, "evalue": said, "traceback": lines}
        self._add(output, name, said, *lines)

    def clear(self) -> None:
        """Drop all outputs."""
        self.outputs.clear()
        self._bytes_left = self._num_bytes

    def _add(self, output: dict[str, Any], *texts: str) -> None:
        if self._bytes_left > 0:
            self.outputs.append(output)
            self._bytes_left -= _BYTES_PER_OUTPUT + sum(map(_size, texts))


def _size(text: str) -> int:
    """Return the length of a text as JSON."""
    return len(json.dumps(text))


class _Stream(io.TextIOBase):
    """What Python prints to one of its two streams."""

    encoding = "UTF-8"

    def __init__(self, collected: Collected, name: str):
        super().__init__()
        self._collected = collected
        self._name = name

    def fileno(self) -> int:
        return 1 if self._name == "stdout" else 2

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
    """IPython, with all outputs collected.

    Attributes:
        collected: The outputs of the current cell.
        initial_state: The shell before the first cell.

    """

    collected = Collected(0)
    initial_state: InitialState
    # There is no terminal, which IPython would otherwise run commands in.
    system = InteractiveShell.system_raw

    def _showtraceback(self, etype: Any, evalue: Any, stb: list[str]) -> None:
        self.collected.error(etype.__name__, words_of(evalue), list(stb))

    def enable_gui(self, gui: str | None = None) -> None:
        """Do nothing: plots appear below their cell, in no window."""

    @contextlib.contextmanager
    def collecting(self, num_bytes: int) -> Iterator[Collected]:
        """Collect what is shown in the block."""
        self.collected = Collected(num_bytes)
        out, err = _Stream(self.collected, "stdout"), _Stream(self.collected, "stderr")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield self.collected


class NotHere:
    """The last finder of modules: it says why the course's own library is not found."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        """Raise an error for an import, and none for a question whether the module is there."""
        is_import = sys._getframe(2).f_code.co_name.startswith("_find_and_load")
        if is_import and _is_hidden(name):
            raise ModuleNotFoundError(
                f"No module named {name!r}: the course's library is not there when grades count",
                name=name,
            )


def _is_hidden(module: str) -> bool:
    return module.partition(".")[0] in HIDDEN_PACKAGES


def new_shell() -> Shell:
    """Return the one shell of this process, set up as Jupyter sets it up, before any cell."""
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    config.InteractiveShell.separate_in = ""
    shell = Shell.instance(config=config, display_pub_class=_Publisher, displayhook_class=_Hook)
    # As in a Jupyter kernel, plots appear below the cell that draws them.
    shell.run_cell("%matplotlib inline", silent=True)
    shell.initial_state = InitialState(shell)
    return shell


def below_a_hidden_import(shell: Shell, source: str, error: BaseException | None) -> str:
    """Return the part of a cell below an import of the course's library that has stopped it.

    The import may serve a plot at the end of the notebook only, and yet come first.
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
            # Comments replace what has run, so that errors name the right lines.
            return "#\n" * end + below if below.strip() else ""
    return ""
