"""Answers the checks of an exercise with the code of a submission, in its own process."""

import builtins
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from classroom.calls import lending
from classroom.calls.channel import Channel, HungUp
from classroom.calls.local import LocalSubject
from classroom.calls.subject import Crashed, StudentError
from classroom.calls.wire import CannotCross, Handle


def serve(
    channel: Channel,
    namespace: Mapping[str, Any],
    seconds: float,
    prepare: Callable[[bool, int], None] = lambda without_trace, keep: None,
) -> None:
    """Answer the requests of a `RemoteSubject`: one, or several that it keeps together.

    Args:
        channel: The other end of its channel.
        namespace: The functions, by name.
        seconds: Time for all calls of the exercise; the other end measures what is left.
        prepare: Makes this process ready for its first request, which may have to leave no trace;
            is given the descriptor to keep.

    """
    subject, is_prepared = _BorrowingSubject(channel, namespace, seconds), False
    with contextlib.suppress(HungUp):
        while True:
            kind, one_module, without_trace, *request = channel.receive(resolve=subject._resolve)
            if not is_prepared:
                prepare(without_trace, channel.connection.fileno())
                is_prepared = True
            answer = subject.answer(kind, one_module, request)
            try:
                channel.send(answer)
            except CannotCross as reason:
                said = f"`{request[0]}` returned something unreadable: {reason}"
                channel.send(["raised", "WrongKind", said])


class _BorrowingSubject(LocalSubject):
    """Code in this process that answers a `RemoteSubject` in another one."""

    def __init__(self, channel: Channel, namespace: Mapping[str, Any], seconds: float):
        super().__init__(namespace, seconds)
        self._other_side = channel

    def answer(self, kind: str, one_module: bool, request: list[Any]) -> list[Any]:
        self._modules = (self._modules or {}) if one_module else None
        try:
            if kind in ("call", "call_by_hand"):
                name, args, kwargs = request
                return ["returned", getattr(self, kind)(name, *args, **kwargs)]
            if kind == "call_and_return_inputs":
                name, args = request
                return ["returned", self.call_and_return_inputs(name, *args)]
            if kind == "parameters":
                return ["returned", self.parameters(*request)]
            return ["returned", self.gradients(*request)]
        except Crashed as error:
            return ["raised", "Crashed", str(error), error.kind, error.text, error.where]
        except StudentError as error:
            return ["raised", type(error).__name__, str(error)]

    def _given(self, args: Any) -> Any:
        return args  # they have crossed on the channel

    def _resolve(self, handle: Handle) -> Callable[..., Any]:
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
