"""Whatever an answer returns, its author reads what is wrong with it, and no check breaks."""

import contextlib

import pytest
import torch
from draws import draw

from classroom.calls.wire import Handle
from classroom.exercise.run import run_checks

MALFORMED = {
    "nothing": None,
    "a truth": True,
    "a number": -1.5,
    "a large number": 2**62,
    "not a number": float("nan"),
    "a text": "text",
    "an empty list": [],
    "an empty dictionary": {},
    "nested lists": [[1, 2], [3], []],
    "texts": ["one", "two", "three"],
    "a pair of nothings": (None, None),
    "a tensor and nothing": (torch.ones(2, 3), None),
    "three numbers": (2, 3, 5),
    "a tensor in a dictionary": {"weights": torch.ones(3)},
    "an empty tensor": torch.zeros(2, 0, 3),
    "a tensor without axes": torch.tensor(5.0),
    "a tensor of many axes": torch.ones([1] * 16),
    "truths": torch.tensor([True, False]),
    "whole numbers": torch.arange(7),
    "tensors in a list": [torch.ones(2), torch.ones(3, dtype=torch.int8)],
}


class Stubborn:
    """Returns the same to whatever is asked; knows whether a check is decided after another's
    failure was explained, in which code could have noticed that it failed."""

    def __init__(self, value):
        self.value = value
        self.explains = self.has_explained = self.is_asked_later = False

    def call(self, name, *args, **kwargs):
        self.is_asked_later |= self.has_explained and not self.explains
        return self.value

    call_by_hand = call

    def call_without_trace(self, name, *args):
        return self.value

    def call_and_return_inputs(self, name, *args):
        return self.call(name), args

    @contextlib.contextmanager
    def together(self, one_module=False, explains=False):
        before, self.explains = self.explains, explains or self.explains
        self.has_explained |= explains
        yield
        self.explains = before

    def gradients(self, name, args, wrt, cotangents):
        self.call(name)
        return tuple(self.value if isinstance(self.value, torch.Tensor) else None for _ in wrt)

    def lend(self, function):
        return Handle(0)

    def file(self, name):
        return b"[]"


@pytest.mark.slow
def test_a_malformed_answer_gets_a_sentence_about_itself(exercise):
    """For each exercise a quarter of the answers."""
    assignment, name = exercise
    turn = draw(name, 4, "exercise")
    for what, value in list(MALFORMED.items())[turn::4]:
        subject = Stubborn(value)
        report = run_checks(assignment.handout, name, subject)
        assert not subject.is_asked_later, what
        for result in report.results:
            assert "check itself broke" not in result.message, f"{what}: {result.message}"
