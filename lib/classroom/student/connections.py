"""The connection between a program and the Jupyter kernel that it starts."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import zmq
from traitlets.config import Config


@contextlib.contextmanager
def own_connection() -> Iterator[Config]:
    """Connect a Jupyter kernel and its client by sockets in a temporary folder.

    A network port that is free when it is chosen may be taken a moment later, when the Jupyter
    kernel binds it, and then that kernel ends. The more of them a machine starts, the more often
    this happens. Where the system has no Unix sockets, ports are used as usual.

    Yields:
        Settings for one kernel manager. The folder is removed afterwards.

    """
    with TemporaryDirectory() as folder:
        settings = {
            "connection_file": str(Path(folder) / "kernel.json"),
            "transport": "ipc" if zmq.has("ipc") else "tcp",
            "transport_encryption": "auto",  # without it each Jupyter kernel warns
        }
        yield Config({"KernelManager": settings})
