"""The code under test, as a check sees it: something to call, and the ways in which a call fails.

A check never holds an object of the student's. It names a function, passes tensors, numbers and
strings, and gets values of the same kinds back, so the same check serves code in this process
(`local`) and code in another one (`remote`).
"""

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from classroom.calls.files import File
from classroom.calls.wire import Handle


class StudentError(Exception):
    """The code under test gave no usable answer; the message tells its author why."""


class NotDefined(StudentError):
    """There is no function of that name."""


class NotWritten(StudentError):
    """The function is still the blank that was released."""


class Crashed(StudentError):
    """The function raised an exception of its own.

    Attributes:
        kind: Name of the exception's class, such as `RuntimeError`.
        text: What the exception said.
        where: The line that raised it, such as ` in line 7: assert x`; empty if unknown.

    """

    def __init__(self, message: str, kind: str, text: str, where: str = ""):
        super().__init__(message)
        self.kind = kind
        self.text = text
        self.where = where


class TooSlow(StudentError):
    """The time for this exercise ran out."""


class WrongKind(StudentError):
    """The function returned no tensor, number or string, or a module has the wrong parameters."""


class NotByHand(StudentError):
    """The function let torch do what this exercise asks to do by hand."""


class NotHandedIn(StudentError):
    """A file that belongs beside the notebook is missing, or cannot be read."""


class Died(StudentError):
    """The process in which the function ran came to an end."""


class Subject(Protocol):
    """What a check may do with the code under test."""

    _files: Mapping[str, File] | None
    _lent: dict[int, Callable[..., Any]]

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call the function `name`; inputs and result are copies.

        A class of modules is called with its settings, its weights and its inputs; see
        `module_classes.as_function`.

        Raises:
            NotDefined: If there is no such function.
            NotWritten: If it, or a function that it calls, is still the blank that was released.
            Crashed: If it raises anything else.
            TooSlow: If the time is up.
            WrongKind: If its result cannot cross, or if it is a module with the wrong parameters.
            Died: If its process ended.

        """
        ...

    def call_without_trace(self, name: str, *args: Any) -> Any:
        """Call the function `name` where nothing that it does can be seen by a later call.

        For functions of ours on which many calls must tell no more than one. In the sandbox such a
        call cannot change files, start threads or processes, or send signals; see
        `linux.leave_no_trace`.

        Raises:
            StudentError: As `call`.

        """
        return self.call(name, *args)

    def call_by_hand(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call the function `name`, which may not let torch differentiate or optimize.

        Raises:
            NotByHand: If it does.
            StudentError: As `call`.

        """
        ...

    def call_and_return_inputs(self, name: str, *args: Any) -> tuple[Any, tuple[Any, ...]]:
        """Call the function `name`; return its result, and its arguments after the call.

        Raises:
            StudentError: As `call`.

        """
        ...

    def parameters(self, name: str) -> list[str]:
        """Return the names of the parameters of the function `name`, as far as it has any."""
        ...

    def gradients(
        self, name: str, args: Sequence[Any], wrt: Sequence[int], cotangents: Sequence[Tensor]
    ) -> tuple[Tensor | None, ...]:
        """Differentiate `sum(output * cotangent)` through the function by autograd.

        Args:
            name: The function.
            args: Its arguments.
            wrt: Which of them to differentiate with respect to; if it is a lent function, with
                respect to what that returned.
            cotangents: One per output tensor, of its shape.

        Returns:
            One gradient per entry of `wrt`, None where the result does not depend on it.

        Raises:
            StudentError: As `call`; also if the result carries no gradient at all.

        """
        ...

    @contextlib.contextmanager
    def together(self, one_module: bool = False, explains: bool = False) -> Iterator[None]:
        """Let the calls of a block share one process, which saves a fork for each.

        For calls that explain a failure, for what is asked of a function after another call, and
        for many calls whose points count only with those of a check of which each call is alone.
        Any other one that decides about points finds nothing of another.

        Args:
            one_module: Whether they also share the modules, by class and settings.
            explains: Whether they are made because the code is wrong, which later calls must not
                find out: they are made without trace.

        """
        yield

    def lend(self, function: Callable[..., Any]) -> Handle:
        """Lend one of our functions: the code under test gets its values and its gradients.

        Returns:
            A handle, to be passed as an argument of `call`. See `lending`.

        """
        # Drawn: a count would tell a call how many functions earlier ones were lent.
        handle = Handle(secrets.randbits(53))
        self._lent[handle.id] = function
        return handle

    def file(self, name: str) -> bytes:
        """Return the bytes of a file beside the notebook.

        Raises:
            NotHandedIn: If it is missing, too large, or not an ordinary file.

        """
        return content(name, (self._files or {}).get(name))


def content(name: str, file: File | None) -> bytes:
    """Return the bytes of a file that an exercise asks for beside the notebook.

    Raises:
        NotHandedIn: If it is missing, or cannot be read.

    """
    if file is None:
        raise NotHandedIn(
            f"`{name}` is not beside the notebook: save it there under this name, and submit both"
        )
    if file.problem:
        raise NotHandedIn(file.problem)
    return file.data


def too_slow(name: str, seconds: float) -> TooSlow:
    """Return the error of a call for which no time is left."""
    return TooSlow(
        f"`{name}` was stopped: an exercise may compute for {seconds:g} seconds. "
        "Is there a loop that does not end?"
    )


def too_long(name: str, seconds: float) -> TooSlow:
    """Return the error of a call that takes long without computing."""
    return TooSlow(
        f"`{name}` was stopped: an exercise may take {seconds:g} seconds, however little it "
        "computes. Does it wait for something?"
    )


def words_of(error: BaseException) -> str:
    """Return what an exception says, nothing if it cannot say it."""
    try:
        return str(error)
    except Exception:  # an exception may be the student's own, and broken too
        return ""


def count(number: int, noun: str) -> str:
    """Return `1 tensor` or `2 tensors`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
