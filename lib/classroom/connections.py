"""How a program and the kernel it starts talk to each other."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import zmq
from traitlets.config import Config


@contextlib.contextmanager
def own_connection() -> Iterator[Config]:
    """Have a kernel and its client talk through sockets in a folder of their own.

    A port of the network that is free when it is chosen may be another program's a moment later,
    when the kernel wants it, and then the kernel ends. The more kernels a machine starts, the more
    often that happens. Where the system has no such sockets, kernels use ports as ever.

    Yields:
        Settings for one kernel manager, or for what makes one. The folder goes afterwards.

    """
    with TemporaryDirectory() as folder:
        settings = {
            "connection_file": str(Path(folder) / "kernel.json"),
            "transport": "ipc" if zmq.has("ipc") else "tcp",
            "transport_encryption": "auto",  # without it each kernel warns
        }
        yield Config({"KernelManager": settings})
