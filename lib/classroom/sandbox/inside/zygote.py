"""The zygote: a process that has imported everything, and forks a job whenever the grader asks.

It waits, clean, and never runs a line of a submission. For each one it forks a process into
namespaces of their own. The first process there keeps watch (`watch`); its child executes the
cells (`runner`), and forks another wherever an exercise is to be checked (`serving`). Nothing here
knows an answer, and nothing here is believed by the grader.
"""

import contextlib
import gc
import importlib
import json
import os
import socket
import sys
from functools import partial

import matplotlib.pyplot as plt
import numpy
import torch

from classroom.calls.local import LocalSubject
from classroom.sandbox.inside import linux, memory, processes
from classroom.sandbox.inside.shell import NotHere, Shell, new_shell
from classroom.sandbox.inside.terms import READY, WITH_COMPILER
from classroom.sandbox.inside.watch import keep_watch

_MAX_REQUEST = 2**16


def main(descriptor: int) -> None:
    """Be the zygote: fork a job whenever the grader asks for one, until it hangs up.

    Args:
        descriptor: A connected socket of whole messages, JSON with file descriptors.

    """
    torch.set_num_threads(1)
    sys.meta_path.append(NotHere)
    requests = socket.socket(fileno=descriptor)
    shell = new_shell()
    plt.close("all")
    _warm_up()
    _make_forks_cheap()
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _MAX_REQUEST, 2)
        if not message:
            return
        if message in (READY, WITH_COMPILER):
            if message == WITH_COMPILER and "torch._dynamo" not in sys.modules:
                importlib.import_module("torch._dynamo")
                _make_forks_cheap()
            with socket.socket(fileno=descriptors[0]) as asked, contextlib.suppress(OSError):
                asked.send(b"!")
            continue
        start = partial(_start_job, requests, message, descriptors, shell)
        os.waitpid(processes.fork(start), 0)
        for each in descriptors:
            os.close(each)


def _warm_up() -> None:
    """Do once what every fork would do for the first time when it answers a call."""
    numpy.random.seed(0)  # imported at its first use
    number = torch.ones(2, dtype=torch.float64, requires_grad=True)
    subject = LocalSubject({"f": lambda x: (2 * x).sum()})
    for _ in range(3):
        subject.call("f", number.detach())
        subject.gradients("f", (number.detach(),), [0], [number.sum().detach()])
    torch.autograd.grad(2 * number, number, torch.ones_like(number))  # imports sympy
    repr(number)


def _make_forks_cheap() -> None:
    gc.collect()
    gc.freeze()
    memory.gather()


def _start_job(
    requests: socket.socket, message: bytes, descriptors: list[int], shell: Shell
) -> None:
    """Enter new namespaces and start their first process, which the grader gets a handle of."""
    requests.close()
    settings, (control, watch) = json.loads(message), descriptors
    grader = socket.socket(fileno=watch)
    try:
        os.setsid()
        if settings["namespaces"]:
            linux.enter_namespaces()
        first = processes.fork(partial(keep_watch, settings, control, grader, shell))
        processes.send_handle(grader, "first", first)
    except OSError as error:
        grader.send(json.dumps({"failed": str(error)}).encode())
