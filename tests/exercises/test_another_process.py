"""The same checks give the same scores to code that lives in the sandbox of another process.

Nothing but bytes of the wire format passes between the two, so a check that reached for the
student's objects would fail here.
"""

import pytest
import torch

from classroom.selfcheck import run_checks
from classroom.subjects import LocalSubject
from classroom.zygote import Zygote


@pytest.fixture(scope="module")
def zygote():
    with Zygote(allow_weaker=True) as zygote:
        yield zygote


def same_score(assignment, answer, zygote):
    here = run_checks(
        assignment.handout, answer.exercise, LocalSubject(answer.namespace), "unseen 3"
    )
    with zygote.start_job() as job:
        assert not job.run(f"{answer.prelude}\n{answer.cell}").error
        with job.serving(answer.exercise) as subject:
            there = run_checks(assignment.handout, answer.exercise, subject, "unseen 3")
    assert there.to_json() == here.to_json()


def test_the_solution_scores_the_same(exercise, zygote):
    assignment, name = exercise
    same_score(assignment, assignment.solution(name), zygote)


def test_the_blank_scores_the_same(exercise, zygote):
    assignment, name = exercise
    same_score(assignment, assignment.blank(name), zygote)


def test_a_mistake_scores_the_same(first_mistake, zygote):
    """One mistake of each exercise goes through its diagnosis; how many there are adds nothing."""
    same_score(*first_mistake, zygote)


def test_a_variant_scores_the_same(variant, zygote):
    same_score(*variant, zygote)


def test_a_lent_function_is_differentiated_across_processes(zygote):
    matrix = torch.tensor([[2.0, 3.0], [5.0, 7.0]])
    with zygote.start_job() as job:
        job.run("import torch\ndef use(f, x): return torch.autograd.functional.jacobian(f, x)")
        with job.serving("use") as subject:
            lent = subject.lend(lambda x: matrix @ x.square())
            jacobian = subject.call("use", lent, torch.ones(2))
    assert jacobian.tolist() == (2 * matrix).tolist()
