"""The same checks give the same scores to code that lives in another process.

Nothing but bytes of the wire format passes between the two, so a check that reached for the
student's objects would fail here.
"""

import subprocess
import sys
from multiprocessing.connection import Listener
from pathlib import Path

import pytest
import torch

from classroom.lending import differentiate
from classroom.selfcheck import run_checks
from classroom.subjects import (
    Crashed,
    LocalSubject,
    NotDefined,
    NotWritten,
    StudentError,
    TooSlow,
    WrongKind,
)
from classroom.wire import Handle, pack, unpack

CHILD = Path(__file__).with_name("other_process.py")
ERRORS = {kind.__name__: kind for kind in (NotDefined, NotWritten, TooSlow, WrongKind)}


class ProcessSubject:
    """Sends each request to a child process and answers the calls that come back from it."""

    def __init__(self, connection, source):
        self._connection = connection
        self._lent = {}
        self._ask(["define", source])

    def call(self, name, *args, **kwargs):
        return self._ask(["call", name, args, kwargs])

    def call_and_return_inputs(self, name, *args):
        return self._ask(["call_and_return_inputs", name, args])

    def gradients(self, name, args, wrt, cotangents):
        return self._ask(["gradients", name, tuple(args), list(wrt), list(cotangents)])

    def lend(self, function):
        handle = Handle(len(self._lent), "checks")
        self._lent[handle.id] = function
        return handle

    def _ask(self, request):
        self._connection.send_bytes(pack(request))
        while True:
            kind, *rest = unpack(self._connection.recv_bytes())
            if kind == "lent":
                identity, args, kwargs = rest
                self._connection.send_bytes(pack(self._lent[identity](*args, **kwargs)))
            elif kind == "lent gradients":
                identity, *request = rest
                self._connection.send_bytes(pack(differentiate(self._lent[identity], *request)))
            elif kind == "returned":
                return rest[0]
            elif rest[0] == "Crashed":
                raise Crashed(*rest[1:])
            else:
                raise ERRORS.get(rest[0], StudentError)(rest[1])


@pytest.fixture(scope="module")
def connection():
    with Listener() as listener:
        child = subprocess.Popen([sys.executable, str(CHILD), str(listener.address)])
        with listener.accept() as connection:
            yield connection
        child.wait(timeout=10)


def same_score(assignment, answer, connection):
    here = run_checks(
        assignment.handout, answer.exercise, LocalSubject(answer.namespace), "unseen 3"
    )
    there = run_checks(
        assignment.handout,
        answer.exercise,
        ProcessSubject(connection, f"{answer.prelude}\n{answer.cell}"),
        "unseen 3",
    )
    assert there.to_json() == here.to_json()


def test_the_solution_scores_the_same(exercise, connection):
    assignment, name = exercise
    same_score(assignment, assignment.solution(name), connection)


def test_the_blank_scores_the_same(exercise, connection):
    assignment, name = exercise
    same_score(assignment, assignment.blank(name), connection)


def test_a_mistake_scores_the_same(first_mistake, connection):
    """One mistake of each exercise goes through its diagnosis; how many there are adds nothing."""
    same_score(*first_mistake, connection)


def test_a_variant_scores_the_same(variant, connection):
    same_score(*variant, connection)


def test_a_lent_function_is_differentiated_across_processes(connection):
    matrix = torch.tensor([[2.0, 3.0], [5.0, 7.0]])
    source = "import torch\ndef use(f, x): return torch.autograd.functional.jacobian(f, x)"
    subject = ProcessSubject(connection, source)
    jacobian = subject.call("use", subject.lend(lambda x: matrix @ x.square()), torch.ones(2))
    assert jacobian.tolist() == (2 * matrix).tolist()
