"""A process that runs students' code and speaks the wire format; see test_another_process.py."""

import linecache
import sys
from multiprocessing.connection import Client

from classroom.lending import borrowed
from classroom.subjects import Crashed, LocalSubject, StudentError
from classroom.wire import Handle, pack, unpack


def main(address):
    with Client(address) as connection:

        def resolve(handle: Handle):
            def ask(kind):
                def request(*args):
                    connection.send_bytes(pack([kind, handle.id, *args]))
                    return unpack(connection.recv_bytes())

                return request

            return borrowed(ask("lent"), ask("lent gradients"))

        namespace = {}
        while True:
            try:
                request = connection.recv_bytes()
            except EOFError:
                return
            connection.send_bytes(pack(answer(unpack(request), namespace, resolve)))


def answer(request, namespace, resolve):
    kind, *rest = request
    if kind == "define":
        namespace.clear()
        source, filename = rest[0], "<student>"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        exec(compile(source, filename, "exec"), namespace)
        return ["returned", None]
    subject = LendingSubject(namespace, resolve)
    try:
        if kind == "call":
            name, args, kwargs = rest
            return ["returned", subject.call(name, *args, **kwargs)]
        if kind == "call_and_return_inputs":
            name, args = rest
            return ["returned", subject.call_and_return_inputs(name, *args)]
        return ["returned", subject.gradients(*rest)]
    except Crashed as error:
        return ["raised", "Crashed", str(error), error.kind, error.text, error.where]
    except StudentError as error:
        return ["raised", type(error).__name__, str(error)]


class LendingSubject(LocalSubject):
    """A subject to which functions of the other process have been lent."""

    def __init__(self, namespace, resolve):
        super().__init__(namespace)
        self._other_side = resolve

    def _resolve(self, handle):
        return self._other_side(handle)


if __name__ == "__main__":
    main(sys.argv[1])
