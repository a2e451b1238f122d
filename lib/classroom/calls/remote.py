"""Code under test in another process, such as a job of the sandbox.

`classroom.sandbox.inside.serving` is the other end.
"""

import contextlib
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any

from torch import Tensor

from classroom.calls import lending
from classroom.calls.channel import Channel, HungUp, Late, ProtocolError
from classroom.calls.files import File
from classroom.calls.subject import (
    Crashed,
    Died,
    NotByHand,
    NotDefined,
    NotWritten,
    StudentError,
    Subject,
    TooSlow,
    WrongKind,
    count,
    too_long,
    too_slow,
    words_of,
)
from classroom.calls.wire import CannotCross, Handle

# The process of the code under test stops a call itself; this long after, it is stopped.
_GRACE_SECONDS = 0.3
_SECONDS_BETWEEN_LOOKS = 0.1
_ERRORS = {kind.__name__: kind for kind in (NotByHand, NotDefined, NotWritten, WrongKind)}


class RemoteSubject(Subject):
    """Code that lives in another process, at the other end of a channel; see `serving.serve`.

    Whatever that process does ends in a `StudentError`, and what it sends is read as values and
    nothing else.

    Args:
        connect: Starts a process for one call, with the code as it was after its cells, and returns
            a channel to it. So no call finds what another left.
        disconnect: Ends all of these processes, whatever they are doing.
        seconds: CPU time for all calls together, as in `LocalSubject`, what is computed here for
            lent functions included.
        wall_seconds: Wall time for all calls together.
        computed: Returns the CPU time that the code under test has used so far, in seconds.
        files: The files submitted beside the notebook, by name.

    """

    def __init__(
        self,
        connect: Callable[[], Channel],
        disconnect: Callable[[], None],
        seconds: float,
        wall_seconds: float,
        computed: Callable[[], float],
        files: Mapping[str, File] | None,
    ):
        self._files = files
        self._connect = connect
        self._disconnect = disconnect
        self._seconds = seconds
        self._wall_seconds = wall_seconds
        self._seconds_left, self._wall_left = seconds, wall_seconds
        self._computed = computed
        self._lent_seconds = 0.0
        self._computed_before = computed()
        self._broken = ""
        self._is_together = self._one_module = self._without_trace = False
        self._kept: Channel | None = None
        self._lent: dict[int, Callable[..., Any]] = {}
        self._given: set[int] = set()

    @property
    def broken(self) -> str:
        """How the other end broke the protocol; empty if it did not."""
        return self._broken

    @property
    def was_too_slow(self) -> bool:
        """Whether the time for its calls was used up."""
        return min(self._seconds_left, self._wall_left) <= 0

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a function by name, as `LocalSubject.call` does.

        Raises:
            StudentError: As there; `Died` if the process ended.

        """
        return self._ask("call", name, args, kwargs)

    def call_without_trace(self, name: str, *args: Any) -> Any:
        """Call a function in a process that can leave nothing for a later one."""
        return self._ask_without_trace("call", name, args, {})

    def call_by_hand(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a function that may not let torch differentiate or optimize, nor start threads."""
        return self._ask_without_trace("call_by_hand", name, args, kwargs)

    def call_and_return_inputs(self, name: str, *args: Any) -> tuple[Any, tuple[Any, ...]]:
        """Call a function and also return its arguments as it left them."""
        found = self._ask("call_and_return_inputs", name, args)
        if type(found) is not tuple or len(found) != 2 or type(found[1]) is not tuple:
            raise self._break("it returned no inputs")
        return found

    def parameters(self, name: str) -> list[str]:
        """Return the names of a function's parameters."""
        found = self._ask("parameters", name)
        is_names = isinstance(found, list) and all(isinstance(n, str) for n in found)
        if not is_names or not all(map(str.isidentifier, found)):
            raise self._break("it returned no names")
        return found

    def gradients(
        self, name: str, args: Sequence[Any], wrt: Sequence[int], cotangents: Sequence[Tensor]
    ) -> tuple[Tensor | None, ...]:
        """Differentiate the outputs, weighted by `cotangents`, by the arguments `wrt`."""
        found = self._ask("gradients", name, tuple(args), list(wrt), list(cotangents))
        found = found if type(found) is tuple else ()
        is_gradient = [g is None or isinstance(g, Tensor) for g in found]
        if len(is_gradient) != len(wrt) or not all(is_gradient):
            raise self._break(f"it returned no {count(len(wrt), 'gradient')}")
        return found

    @contextlib.contextmanager
    def together(self, one_module: bool = False, explains: bool = False) -> Iterator[None]:
        """Keep the process of a call for the next ones, as long as it answers."""
        before = self._is_together, self._one_module, self._without_trace
        self._is_together, self._one_module = True, one_module
        self._without_trace = explains or self._without_trace
        try:
            yield
        finally:
            self._is_together, self._one_module, self._without_trace = before
            if self._kept is not None:
                self._kept.close()
                self._kept = None

    def close(self) -> None:
        """End the processes of all calls."""
        self._disconnect()

    @contextlib.contextmanager
    def _channel(self) -> Iterator[Channel]:
        """Return a channel to a fresh process or, if calls are `together`, to the one before."""
        channel, self._kept = self._kept or self._connect(), None
        has_answered = False
        try:
            yield channel
            has_answered = True
        except StudentError:
            has_answered = True
            raise
        finally:
            if has_answered and self._is_together:
                self._kept = channel
            else:
                channel.close()

    def _ask_without_trace(self, *request: Any) -> Any:
        before, self._without_trace = self._without_trace, True
        try:
            return self._ask(*request)
        finally:
            self._without_trace = before

    def _ask(self, kind: str, name: str, *rest: Any) -> Any:
        if self._broken:
            raise self._break(self._broken)
        if self.was_too_slow:
            raise self._too_slow(name, self._seconds_left)
        started = time.monotonic()
        deadline = started + self._wall_left + _GRACE_SECONDS
        given = {x.id for x in (name, *_flat(rest)) if isinstance(x, Handle)}
        try:
            with self._channel() as channel:
                self._given = given | (self._given if self._is_together else set())
                # Not the seconds left: they would tell what earlier calls took. `_listen` measures.
                asked = [kind, self._one_module, self._without_trace, name, *rest]
                channel.send(asked, deadline)
                return self._listen(channel, deadline)
        except Late:
            self.close()
            self._wall_left = 0.0
            raise self._too_slow(name, self._seconds_left - self._used() - _GRACE_SECONDS) from None
        except HungUp:
            self.close()
            raise Died(
                f"`{name}` ended the process that it ran in: does it call os._exit, or crash the "
                "interpreter?"
            ) from None
        except ProtocolError as error:
            raise self._break(str(error)) from None
        finally:
            used = self._used()
            self._seconds_left -= used
            self._computed_before += used
            self._wall_left -= time.monotonic() - started

    def _used(self) -> float:
        """Return the CPU time since the last call, here and there."""
        return self._computed() + self._lent_seconds - self._computed_before

    def _is_over(self, deadline: float, early: float = 0.0) -> bool:
        """Say whether the time is used up, or nearly so."""
        is_used_up = self._used() > self._seconds_left + _GRACE_SECONDS - early
        return is_used_up or time.monotonic() > deadline - early

    def _too_slow(self, name: str, seconds_left: float) -> TooSlow:
        if seconds_left <= 0:
            return too_slow(name, self._seconds)
        return too_long(name, self._wall_seconds)

    def _listen(self, channel: Channel, deadline: float) -> Any:
        """Answer calls of lent functions until the code under test returns its own result."""
        while True:
            while not select.select([channel.connection], [], [], _SECONDS_BETWEEN_LOOKS)[0]:
                if self._is_over(deadline):
                    raise Late
            match channel.receive(deadline, _refuse):
                case ["returned", value]:
                    return value
                case ["raised", "Crashed", str(said), str(kind), str(text), str(where)]:
                    raise Crashed(said, kind, text, where)
                case ["raised", "TooSlow", _] if self._is_over(deadline, early=2 * _GRACE_SECONDS):
                    raise Late  # otherwise the code under test only says so
                case ["raised", str(kind), str(said)]:
                    raise _ERRORS.get(kind, StudentError)(said)
                case ["lent" | "lent gradients" as kind, int(identity), *request]:
                    channel.send(self._lend_to(kind, identity, request, channel), deadline)
                case _:
                    raise ProtocolError("it sent something other than an answer")

    def _lend_to(self, kind: str, identity: int, request: list[Any], channel: Channel) -> list[Any]:
        started = time.process_time()
        try:
            lending.require_small(request, channel.last_length)
            if identity not in self._given:
                raise CannotCross("a function that this call was not given")
            function = self._lent[identity]
            with _stopped_after(self._seconds_left - self._used()):
                if kind == "lent":
                    return ["lent", lending.neutrally(lambda a, k: function(*a, **k), request)]
                differentiate = partial(lending.differentiate, function)
                return ["lent", lending.neutrally(differentiate, request)]
        except _Overtime:
            raise Late from None
        except Exception as error:  # its caller gets to see it
            return ["lent raised", type(error).__name__, words_of(error)]
        finally:
            self._lent_seconds += time.process_time() - started

    def _break(self, how: str) -> StudentError:
        self._broken = how
        self.close()
        return StudentError(f"the code under test wrote to the grader, which ends the check: {how}")


def _flat(values: Any) -> Iterator[Any]:
    """Yield what lists, tuples and dictionaries hold, at any depth."""
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, (list, tuple, dict)):
            yield from _flat(value)
        else:
            yield value


class _Overtime(BaseException):
    """A lent function has computed for too long; no handler for its own errors catches this."""


@contextlib.contextmanager
def _stopped_after(seconds: float) -> Iterator[None]:
    """Stop the block when it has computed for so long: `_Overtime`, in a main thread."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise _Overtime

    try:
        previous = signal.signal(signal.SIGPROF, stop)
    except ValueError:  # no main thread
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, max(seconds, _GRACE_SECONDS))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def _refuse(handle: Handle) -> Any:
    raise CannotCross("a handle that no check has lent")
