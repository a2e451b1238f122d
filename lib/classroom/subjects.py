"""The code under test, as a check sees it: something to call, wherever it runs.

A check never holds an object of the student's. It names a function, hands over tensors, numbers
and strings, and gets the same kinds of values back, so the same check serves code in this
process and code in another one.
"""

import builtins
import contextlib
import difflib
import itertools
import signal
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from classroom import frames, lending, modules
from classroom.frames import Channel, HungUp, Late, ProtocolError
from classroom.limits import SECONDS_PER_EXERCISE
from classroom.wire import CannotCross, Handle, pack, unpack

if TYPE_CHECKING:
    from classroom.intake import File

_REPEAT_ALARM_AFTER = 0.01
_FASTEST_ALARM = 2e-5
# The process of the code under test stops a call itself; this long after, it is stopped.
_GRACE_SECONDS = 0.3
# What a check lends is computed by the grader, so it is not computed for inputs of any size.
MAX_LENT_BYTES = 2**18
# While these run, no alarm goes off: they clear up after the code under test.
_OUR_FILES = (
    __file__,
    frames.__file__,
    lending.__file__,
    modules.__file__,
    contextlib.__file__,
)
_LIBRARIES = (sysconfig.get_path("stdlib"), "site-packages", "dist-packages")


class StudentError(Exception):
    """The code under test gave no usable answer; the text says why, to its author."""


class NotDefined(StudentError):
    """There is no function of that name."""


class NotWritten(StudentError):
    """The function is still the blank of the handout."""


class Crashed(StudentError):
    """The function raised an exception of its own.

    Attributes:
        kind: Name of the exception's class, such as `RuntimeError`.
        text: What the exception said.
        where: The line that raised it, such as ` in line 7: assert x`; empty if it is not known.

    """

    def __init__(self, message: str, kind: str, text: str, where: str = ""):
        super().__init__(message)
        self.kind = kind
        self.text = text
        self.where = where


class TooSlow(StudentError):
    """The time for this exercise ran out."""


class WrongKind(StudentError):
    """The function returned no tensor, number or string, or is a module of other parameters."""


class NotHandedIn(StudentError):
    """A file that is to lie beside the notebook is not there, or cannot be read."""


class Died(StudentError):
    """The process in which the function ran came to an end."""


class Subject(Protocol):
    """What a check may do with the code under test."""

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a function by name; inputs and result are copies."""
        ...

    def call_and_return_inputs(self, name: str, *args: Any) -> tuple[Any, tuple[Any, ...]]:
        """Call a function and also return its arguments as it left them."""
        ...

    def gradients(
        self, name: str, args: Sequence[Any], wrt: Sequence[int], cotangents: Sequence[Tensor]
    ) -> tuple[Tensor | None, ...]:
        """Differentiate the outputs, weighted by `cotangents`, by the arguments `wrt`."""
        ...

    def lend(self, function: Callable[..., Any]) -> Handle:
        """Lend one of our functions: the code under test sees its values and its gradients."""
        ...

    def file(self, name: str) -> bytes:
        """Return what is in a file that lies beside the notebook."""
        ...


class LocalSubject:
    """Code that lives in this process, such as the cells of an open notebook.

    Every value is packed and unpacked on its way, as it would be between processes, so nothing
    that passes a check here depends on sharing memory with it.

    Args:
        namespace: Where the functions are found by name, for instance a notebook's variables.
        seconds: Time for all calls together; after that each call fails at once. Enforced in
            the main thread of systems with POSIX timers, elsewhere only between calls.
        files: What lies beside the notebook, by name; by default what is in the folder in which
            this process works.

    """

    def __init__(
        self,
        namespace: Mapping[str, Any],
        seconds: float = SECONDS_PER_EXERCISE,
        files: Mapping[str, "File"] | None = None,
    ):
        self._namespace = namespace
        self._files = files
        self._seconds = seconds
        self._seconds_left = seconds
        self._lent: dict[int, Callable[..., Any]] = {}
        self._ids = itertools.count()

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call the function `name` with copies of the arguments and return a copy of its result.

        A class of modules is called with its settings, its weights and its inputs, see
        `modules.as_function`.

        Raises:
            NotDefined: If the namespace has no such function.
            NotWritten: If it, or a function that it calls, is still the blank of the handout.
            Crashed: If it raises anything else.
            TooSlow: If the time is up.
            WrongKind: If what it returns cannot cross, or if it is a module whose parameters are
                not the agreed ones.

        """
        args, kwargs = self._cross((args, kwargs))
        return self._returned(name, self._run(name, lambda function: function(*args, **kwargs)))

    def call_and_return_inputs(self, name: str, *args: Any) -> tuple[Any, tuple[Any, ...]]:
        """Call the function `name` and return its result and its arguments after the call.

        Raises:
            StudentError: As `call`.

        """
        given = self._cross(args)
        result = self._run(name, lambda function: function(*given))
        return self._returned(name, result), self._returned(name, given)

    def gradients(
        self, name: str, args: Sequence[Any], wrt: Sequence[int], cotangents: Sequence[Tensor]
    ) -> tuple[Tensor | None, ...]:
        """Differentiate `sum(output * cotangent)` through the function by autograd.

        Args:
            name: The function.
            args: Its arguments.
            wrt: Which of them to differentiate by.
            cotangents: One per output tensor, of its shape.

        Returns:
            One gradient per entry of `wrt`, None where the result does not depend on it.

        Raises:
            StudentError: As `call`; also if the result carries no gradient at all.

        """
        given = list(self._cross(tuple(args)))
        leaves = [given[index].requires_grad_() for index in wrt]

        def differentiate(function: Callable[..., Any]) -> tuple[Tensor | None, ...]:
            outputs = _require_tensors(name, function(*given), cotangents)
            total = sum((o * c).sum() for o, c in zip(outputs, cotangents, strict=True))
            if not isinstance(total, Tensor) or not total.requires_grad:
                raise WrongKind(
                    f"the result of `{name}` is cut off from its inputs: no gradient can flow "
                    "back (look for .detach(), .data, torch.no_grad() or a new torch.tensor(...))"
                )
            return torch.autograd.grad(total, leaves, allow_unused=True)

        return self._returned(name, self._run(name, differentiate))

    def lend(self, function: Callable[..., Any]) -> Handle:
        """Lend a function of ours; pass the handle as an argument of `call`. See `lending`."""
        handle = Handle(next(self._ids), "checks")
        self._lent[handle.id] = function
        return handle

    def file(self, name: str) -> bytes:
        """Return what is in a file that lies beside the notebook.

        Raises:
            NotHandedIn: If it is not there, or if it is too large or no ordinary file.

        """
        if self._files is not None:
            return _content(name, self._files.get(name))
        from classroom.intake import read_file  # it reads notebooks too, which takes a moment

        folder = Path.cwd()
        is_there = (folder / name).exists() or (folder / name).is_symlink()
        return _content(name, read_file(folder, name) if is_there else None)

    def _cross(self, value: Any) -> Any:
        return unpack(pack(value), self._resolve)

    def _resolve(self, handle: Handle) -> Callable[..., Any]:
        if handle.owner != "checks" or handle.id not in self._lent:
            raise CannotCross("a handle that no check has lent")
        function, cross = self._lent[handle.id], self._cross

        def call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            given, named = cross((args, kwargs))
            return cross(function(*given, **named))

        def gradients(*request: Any) -> Any:
            return cross(lending.differentiate(function, *cross(request)))

        return lending.borrowed(call, gradients)

    def _returned(self, name: str, result: Any) -> Any:
        try:
            return self._cross(result)
        except CannotCross as reason:
            raise WrongKind(f"`{name}` returned something unreadable: {reason}") from None

    def _run(self, name: str, compute: Callable[[Callable[..., Any]], Any]) -> Any:
        """Let `compute` use the function `name` in the time that is left."""
        function = self._find(name)
        try:
            with self._time_limit(name):
                return compute(function)
        except StudentError:
            raise
        except modules.WrongWeights as error:
            raise WrongKind(f"`{name}` cannot take the weights of this exercise: {error}") from None
        except BaseException as error:
            raise _failure(name, error) from None

    def _find(self, name: str) -> Callable[..., Any]:
        found = self._namespace.get(name)
        if modules.is_module_class(found):
            return modules.as_function(found)
        if callable(found):
            return found
        if found is not None:
            raise NotDefined(f"`{name}` should be a function, it is a {type(found).__name__}")
        near = difflib.get_close_matches(
            name, [n for n, v in self._namespace.items() if callable(v) and n[0] != "_"], n=1
        )
        hint = f"; there is a `{near[0]}`: is that its name?" if near else ""
        raise NotDefined(
            f"`{name}` is not defined: its cell has not run to the end "
            f"(run it, and look for an error below it){hint}"
        )

    @contextlib.contextmanager
    def _time_limit(self, name: str) -> Iterator[None]:
        if self._seconds_left <= 0:
            raise _too_slow(name, self._seconds)
        can_interrupt = (
            hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
        )
        started = time.monotonic()
        armed = can_interrupt
        repeat_after = _REPEAT_ALARM_AFTER
        went_off = False

        def stop(signum: int, frame: FrameType | None) -> None:
            nonlocal repeat_after, went_off
            went_off = True
            if not armed or frame is None or frame.f_code.co_filename in _OUR_FILES:
                return
            # Code under test may catch an alarm. The next one comes sooner, and in the end one
            # comes while the code is outside of its `try`.
            repeat_after = max(repeat_after / 2, _FASTEST_ALARM)
            signal.setitimer(signal.ITIMER_REAL, repeat_after, repeat_after)
            raise _too_slow(name, self._seconds)

        previous = signal.signal(signal.SIGALRM, stop) if can_interrupt else None
        try:
            if can_interrupt:
                signal.setitimer(signal.ITIMER_REAL, self._seconds_left, _REPEAT_ALARM_AFTER)
            yield
        finally:
            armed = False
            seconds_left = self._seconds_left - (time.monotonic() - started)
            if can_interrupt:
                signal.setitimer(signal.ITIMER_REAL, 0)
                # One of many alarms may still be on its way, through a thread of torch's. The
                # default would end the process, and Python reports an alarm that finds itself
                # ignored between its arrival and its handling. A handler that came from C is
                # None here and cannot be put back.
                may_be_late = went_off or seconds_left < _REPEAT_ALARM_AFTER
                keep = callable(previous) or (previous is not None and not may_be_late)
                signal.signal(signal.SIGALRM, previous if keep else _too_late)
            self._seconds_left = seconds_left


class WorkerSubject:
    """Code that lives in another process, at the other end of a channel; see `serve`.

    Nothing that the process does is an error here, and nothing that it sends is believed: it
    gives values, or it gives none.

    Args:
        connect: Starts a process that serves the code, and returns a channel to it. Called again
            after a process has died, so that each call starts with the code as it was.
        disconnect: Ends that process, whatever it is doing.
        seconds: Time for all calls together, as in `LocalSubject`.
        files: What was handed in beside the notebook, by name.

    """

    def __init__(
        self,
        connect: Callable[[], Channel],
        disconnect: Callable[[], None],
        seconds: float = SECONDS_PER_EXERCISE,
        files: Mapping[str, "File"] | None = None,
    ):
        self._files = files or {}
        self._connect = connect
        self._disconnect = disconnect
        self._seconds = seconds
        self._seconds_left = seconds
        self._channel: Channel | None = None
        self._broken = ""
        self._lent: dict[int, Callable[..., Any]] = {}

    @property
    def broken(self) -> str:
        """How the other end broke the rules of the conversation; empty if it did not."""
        return self._broken

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a function by name, as `LocalSubject.call` does.

        Raises:
            StudentError: As there; `Died` if the process ended.

        """
        return self._ask("call", name, args, kwargs)

    def call_and_return_inputs(self, name: str, *args: Any) -> tuple[Any, tuple[Any, ...]]:
        """Call a function and also return its arguments as it left them."""
        found = self._ask("call_and_return_inputs", name, args)
        if type(found) is not tuple or len(found) != 2 or type(found[1]) is not tuple:
            raise self._break("it returned no inputs")
        return found

    def gradients(
        self, name: str, args: Sequence[Any], wrt: Sequence[int], cotangents: Sequence[Tensor]
    ) -> tuple[Tensor | None, ...]:
        """Differentiate the outputs, weighted by `cotangents`, by the arguments `wrt`."""
        found = self._ask("gradients", name, tuple(args), list(wrt), list(cotangents))
        found = found if type(found) is tuple else ()
        is_gradient = [g is None or isinstance(g, Tensor) for g in found]
        if len(is_gradient) != len(wrt) or not all(is_gradient):
            raise self._break(f"it returned no {_count(len(wrt), 'gradient')}")
        return found

    def lend(self, function: Callable[..., Any]) -> Handle:
        """Lend a function of ours; pass the handle as an argument of `call`. See `lending`."""
        handle = Handle(len(self._lent), "checks")
        self._lent[handle.id] = function
        return handle

    def file(self, name: str) -> bytes:
        """Return what is in a file that was handed in beside the notebook.

        Raises:
            NotHandedIn: As `LocalSubject.file`.

        """
        return _content(name, self._files.get(name))

    def close(self) -> None:
        """End the conversation."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
            self._disconnect()

    def _ask(self, kind: str, name: str, *rest: Any) -> Any:
        if self._broken:
            raise self._break(self._broken)
        if self._seconds_left <= 0:
            raise _too_slow(name, self._seconds)
        started = time.monotonic()
        deadline = started + self._seconds_left + _GRACE_SECONDS
        try:
            if self._channel is None:
                self._channel = self._connect()
            self._channel.send([kind, self._seconds_left, name, *rest], deadline)
            return self._listen(self._channel, deadline)
        except TooSlow:
            self._seconds_left = 0.0
            raise
        except Late:
            self._seconds_left = 0.0
            self.close()
            raise _too_slow(name, self._seconds) from None
        except HungUp:
            self.close()
            raise Died(
                f"`{name}` ended the process that it ran in: does it call os._exit, or crash the "
                "interpreter?"
            ) from None
        except ProtocolError as error:
            raise self._break(str(error)) from None
        finally:
            self._seconds_left -= time.monotonic() - started

    def _listen(self, channel: Channel, deadline: float) -> Any:
        """Answer the calls that come back from the code, until it has an answer itself."""
        while True:
            match channel.receive(deadline, _refuse):
                case ["returned", value]:
                    return value
                case ["raised", "Crashed", str(said), str(kind), str(text), str(where)]:
                    raise Crashed(said, kind, text, where)
                case ["raised", str(kind), str(said)]:
                    raise _ERRORS.get(kind, StudentError)(said)
                case ["lent" | "lent gradients" as kind, int(identity), *request]:
                    channel.send(self._lend_to(kind, identity, request, channel), deadline)
                case _:
                    raise ProtocolError("it sent something else than an answer")

    def _lend_to(self, kind: str, identity: int, request: list[Any], channel: Channel) -> list[Any]:
        try:
            if channel.last_length > MAX_LENT_BYTES:
                raise ValueError(f"this function takes at most {MAX_LENT_BYTES:,} bytes")
            function = self._lent[identity]
            if kind == "lent":
                args, kwargs = request
                return ["lent", function(*args, **kwargs)]
            return ["lent", lending.differentiate(function, *request)]
        except Exception as error:  # whatever it was called with, this is for its caller to see
            return ["lent raised", type(error).__name__, _words_of(error)]

    def _break(self, how: str) -> StudentError:
        self._broken = how
        self.close()
        return StudentError(f"the code under test wrote to the grader, which ends the check: {how}")


def serve(channel: Channel, namespace: Mapping[str, Any], seconds: float) -> None:
    """Answer what a `WorkerSubject` asks, until it hangs up.

    Args:
        channel: The other end of its channel.
        namespace: Where the functions are found by name.
        seconds: Time for all calls together, for messages; what is left comes with each request.

    """
    subject = _BorrowingSubject(channel, namespace, seconds)
    while True:
        try:
            kind, seconds_left, *request = channel.receive()
        except HungUp:
            return
        answer = subject.answer(kind, seconds_left, request)
        try:
            channel.send(answer)
        except CannotCross as reason:
            said = f"`{request[0]}` returned something unreadable: {reason}"
            channel.send(["raised", "WrongKind", said])


class _BorrowingSubject(LocalSubject):
    """Code in this process that works for a `WorkerSubject` in another one."""

    def __init__(self, channel: Channel, namespace: Mapping[str, Any], seconds: float):
        super().__init__(namespace, seconds)
        self._other_side = channel

    def answer(self, kind: str, seconds_left: float, request: list[Any]) -> list[Any]:
        self._seconds_left = seconds_left
        try:
            if kind == "call":
                name, args, kwargs = request
                return ["returned", self.call(name, *args, **kwargs)]
            if kind == "call_and_return_inputs":
                name, args = request
                return ["returned", self.call_and_return_inputs(name, *args)]
            return ["returned", self.gradients(*request)]
        except Crashed as error:
            return ["raised", "Crashed", str(error), error.kind, error.text, error.where]
        except StudentError as error:
            return ["raised", type(error).__name__, str(error)]

    def _resolve(self, handle: Handle) -> Callable[..., Any]:
        if handle.owner != "checks":
            raise CannotCross("a handle that no check has lent")

        def ask(kind: str) -> Callable[..., Any]:
            def request(*args: Any) -> Any:
                self._other_side.send([kind, handle.id, *args])
                answer = self._other_side.receive()
                if answer[0] == "lent":
                    return answer[1]
                error = getattr(builtins, answer[1], None)
                if not isinstance(error, type) or not issubclass(error, Exception):
                    error = RuntimeError
                raise error(answer[2])

            return request

        return lending.borrowed(ask("lent"), ask("lent gradients"))


_ERRORS = {kind.__name__: kind for kind in (NotDefined, NotWritten, TooSlow, WrongKind)}


def _content(name: str, file: "File | None") -> bytes:
    if file is None:
        raise NotHandedIn(
            f"`{name}` is not beside the notebook: save it there under this name, and hand both in"
        )
    if file.problem:
        raise NotHandedIn(file.problem)
    return file.data


def _refuse(handle: Handle) -> Any:
    raise CannotCross("a handle that no check has lent")


def _too_slow(name: str, seconds: float) -> TooSlow:
    return TooSlow(
        f"`{name}` was stopped: an exercise may compute for {seconds:g} seconds. "
        "Is there a loop that does not end?"
    )


def _too_late(signum: int, frame: FrameType | None) -> None:
    """Do nothing about an alarm that comes when the call has ended."""


def _require_tensors(name: str, result: Any, cotangents: Sequence[Tensor]) -> Sequence[Tensor]:
    """Require one tensor per cotangent, of its shape."""
    outputs = result if isinstance(result, (tuple, list)) else (result,)
    if len(outputs) != len(cotangents) or not all(isinstance(o, Tensor) for o in outputs):
        raise WrongKind(f"`{name}` should return {_count(len(cotangents), 'tensor')}")
    for output, cotangent in zip(outputs, cotangents, strict=True):
        if output.shape != cotangent.shape:
            raise WrongKind(
                f"`{name}` returned a tensor of shape {tuple(output.shape)}, expected "
                f"{tuple(cotangent.shape)}"
            )
    return outputs


def _failure(name: str, error: BaseException) -> StudentError:
    """Say what an exception means to the author of the code that raised it."""
    frames = _frames_under_test(error)
    # What a blank raises carries no words; torch raises NotImplementedError too, with words.
    if isinstance(error, NotImplementedError) and not error.args:
        blank = frames[-1].name if len(frames) > 1 else name
        if blank in (name, "__init__", "forward") or not blank.isidentifier():
            return NotWritten(f"`{name}` is not written yet")
        return NotWritten(f"`{name}` calls `{blank}`, which is not written yet")
    frame = frames[-1] if frames else None
    where = f" in line {frame.lineno}: {frame.line.strip()}" if frame and frame.line else ""
    kind, said = type(error).__name__, _words_of(error)
    text = f": {said.strip().splitlines()[0].rstrip('.')}" if said.strip() else ""
    return Crashed(f"`{name}` raised {kind}{text}{where}", kind, said, where)


def _frames_under_test(error: BaseException) -> list[traceback.FrameSummary]:
    """Return where the code under test was, without libraries and without what we lent it."""
    frames = itertools.dropwhile(
        lambda frame: frame.filename in _OUR_FILES, traceback.extract_tb(error.__traceback__)
    )
    theirs = itertools.takewhile(lambda frame: frame.filename not in _OUR_FILES, frames)
    return [
        frame for frame in theirs if not any(library in frame.filename for library in _LIBRARIES)
    ]


def _words_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an exception may be the student's own, and broken too
        return ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
