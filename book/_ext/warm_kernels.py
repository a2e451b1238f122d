"""Kernels that start at once: each is a fork of a process that has imported torch already.

A page spends two to three seconds of processor time on starting Python, IPython, torch and
matplotlib, before its first line runs. Here one process does so, once per build, and waits. A
kernel is a fork of it. Nothing of ours is imported beforehand, nothing is computed, and no random
number is drawn: a page finds what it would find in a kernel of its own, only sooner.

Forks of a process with threads are not safe, and macOS dislikes forks altogether. So the process
that waits has one thread, and elsewhere than on Linux kernels start as they always do.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

IMPORTED = (
    "IPython.core.completerlib",
    "ipykernel.debugger",  # two thirds of the time in which a kernel starts
    "ipykernel.kernelapp",
    "ipykernel.ipkernel",
    "jaxtyping",
    "matplotlib.backends.backend_svg",
    "matplotlib.pyplot",
    "myst_nb.ext.glue",  # for glue: a second and a half, most of it for a grammar of addresses
    "numpy",
    "safetensors.torch",
    "tokenizers",
    "torch",
    "torch._dynamo",  # what the first update of an optimizer imports
)
INSTEAD = "WARM_KERNELS_IMPORT"  # a book without torch need not wait for it
LAUNCHER = "ipykernel_launcher"
INLINE = "module://matplotlib_inline.backend_inline"
NAME = "warm"


class Kernel:
    """One kernel, as `LocalProvisioner` expects a process: it is a child of another one, though."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._handle = os.pidfd_open(pid)
        except ProcessLookupError:  # it has ended before anybody could look
            self._handle = None

    def poll(self) -> int | None:
        """Give None as long as it runs, and then 0: how it ended only its parent could say."""
        if self._handle is None:
            return 0
        ended = select.poll()
        ended.register(self._handle, select.POLLIN)
        if not ended.poll(0):
            return None
        os.close(self._handle)
        self._handle = None
        return 0

    def wait(self) -> int:
        while (status := self.poll()) is None:
            select.select([self._handle], [], [])
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class WarmProvisioner(LocalProvisioner):
    """Has a kernel forked, where it is a Python kernel of this very environment."""

    door: ClassVar[socket.socket]
    turn: ClassVar[threading.Lock] = threading.Lock()

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> dict[str, Any]:
        if cmd[0] != sys.executable or LAUNCHER not in cmd:
            return await super().launch_kernel(cmd, **kwargs)
        request = {
            "argv": cmd[cmd.index(LAUNCHER) :],
            "cwd": str(kwargs.get("cwd") or Path.cwd()),
            "env": dict(kwargs.get("env") or os.environ),
        }
        with self.turn:
            self.door.send(json.dumps(request).encode())
            answer = self.door.recv(64)
        if not answer:
            raise RuntimeError("the process that kernels are forked from has ended")
        self.process = Kernel(int(answer))
        self.pid = self.pgid = self.process.pid
        self.cwd = request["cwd"]
        return self.connection_info


class WarmKernels:
    """A process that imports what pages need, at once and while others work; kernels fork it."""

    def __init__(self) -> None:
        self._door: socket.socket | None = None
        if sys.platform != "linux":
            return
        self._door, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            # Frozen modules would make the debugger in each kernel warn; kernels start without.
            [sys.executable, "-Xfrozen_modules=off", __file__, str(theirs.fileno())],
            env=os.environ | {"MPLBACKEND": os.environ.get("MPLBACKEND") or INLINE},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the build, which then ends this, too
        )
        theirs.close()

    def __enter__(self) -> None:
        """From now on kernels are forks, on Linux."""
        self._factory = KernelProvisionerFactory.instance()
        self._usual = self._factory.default_provisioner_name
        if self._door is not None:
            WarmProvisioner.door = self._door
            where = f"{__name__}:{WarmProvisioner.__name__}"
            self._factory.provisioners[NAME] = EntryPoint(NAME, where, self._factory.GROUP_NAME)
            self._factory.default_provisioner_name = NAME

    def __exit__(self, *exception: object) -> None:
        self._factory.default_provisioner_name = self._usual
        self.end()

    def end(self) -> None:
        """End the process; kernels that still run end when they miss it."""
        if self._door is not None:
            self._door.close()
            self._door = None
            self._process.kill()
            self._process.wait()


def serve(door: socket.socket) -> None:
    """Import everything, then fork a kernel for each request, until nobody is there to ask."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who has ended is gone; nobody waits for them
    os.environ["JPY_PARENT_PID"] = str(os.getpid())  # kernels read it when they are imported
    for name in os.environ.get(INSTEAD, " ".join(IMPORTED)).split():
        with contextlib.suppress(ImportError):  # a page that needs it will say so
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # or each kernel's first collection would copy every page of memory
    with contextlib.suppress(ConnectionResetError):
        while request := door.recv(1 << 20):
            pid = os.fork()
            if pid == 0:
                door.close()
                become_kernel(**json.loads(request))
            door.send(str(pid).encode())


def become_kernel(argv: list[str], cwd: str, env: dict[str, str]) -> None:
    """Be what `python -m ipykernel_launcher` would be; never returns."""
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(env)
        os.chdir(cwd)
        sys.argv = argv
        runpy.run_module(LAUNCHER, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file, from which no page imports
    serve(socket.socket(fileno=int(sys.argv[1])))
