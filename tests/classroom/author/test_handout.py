import pytest

from classroom.author.handout import released_text

CHECKS = '''\
"""What is graded.

The oracle is torch's own.
"""

import math
from functools import cache, partial

import torch

from classroom.exercise.prepared import oracle


def helper(x):
    return x + math.pi


# Says how it is done.
@oracle
def right(x, y=(1, 2)):
    """Add numbers."""
    return helper(x)


LIMIT = 3
"""What only the oracle knows."""


### BEGIN PACKED
def lent(x):
    return torch.ones(3) * x


MODELS = {"one": lent}
### END PACKED


def inputs(case):
    return (case.size("n", 3),)


class TestIt:
    def test_it(self, subject, case):
        @oracle
        def inner(x):
            y = x
            return y

        return right, inner, MODELS, inputs, partial
'''


def test_only_what_asks_is_left_of_the_text():
    text, pieces = released_text(CHECKS)
    assert (
        text
        == '''\
"""What is graded.

Made by `classroom release`: what is right, and what known mistakes return, comes as data in
prepared.zip.
"""

from functools import partial

import torch

from classroom.exercise.prepared import handed_out, packed


@handed_out
def right(x, y=(1, 2)):
    ...


exec(packed(__file__, 0), globals())


def inputs(case):
    return (case.size("n", 3),)


class TestIt:
    def test_it(self, subject, case):
        @handed_out
        def inner(x):
            ...

        return right, inner, MODELS, inputs, partial
'''
    )
    assert pieces == [CHECKS.split("### BEGIN PACKED\n")[1].split("### END")[0]]


def test_packed_code_calls_no_oracle():
    with pytest.raises(ValueError, match="packed code calls the oracle right"):
        released_text(CHECKS.replace("torch.ones(3) * x", "right(x)"))
