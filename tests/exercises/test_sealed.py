"""In a sandbox, every answer earns what its self-check shows, check by check."""

from dataclasses import replace

import nbformat
import pytest

from classroom.grade import Assignment, grade_submission
from classroom.intake import read_submission
from classroom.sandbox import Limits
from classroom.selfcheck import run_checks
from classroom.subjects import LocalSubject
from classroom.zygote import Zygote

THOROUGHLY = "01_attention"
SEED = "unseen 5"


@pytest.fixture(scope="module")
def zygote():
    with Zygote() as zygote:
        yield zygote


def notebooks(assignment):
    """Return the answers of each notebook to hand in: one of every kind, or all there are."""
    solution = {name: assignment.solution(name) for name in assignment.exercises}
    yield solution
    yield {name: assignment.blank(name) for name in assignment.exercises}
    waiting = [*assignment.mistakes, *assignment.variants]
    while waiting:
        answers = {}
        for answer in list(waiting):
            if answer.exercise not in answers:
                answers[answer.exercise] = answer
                waiting.remove(answer)
        yield {**solution, **answers}
        if assignment.name != THOROUGHLY:
            return


def scores(report):
    return [(result.name, result.earned, result.mistakes) for result in report.results]


@pytest.mark.slow
def test_a_sandbox_gives_the_scores_of_the_self_check(assignment, zygote, tmp_path):
    graded = Assignment(assignment.handout)
    seen = set()
    for answers in notebooks(assignment):
        cells = {name: answer.cell for name, answer in answers.items()}
        nbformat.write(assignment.notebook(cells), tmp_path / assignment.notebook_name)
        submission = read_submission(tmp_path, graded.master)
        assert submission.notes == ()
        new = {name: answer for name, answer in answers.items() if answer not in seen}
        seen.update(new.values())
        cells = tuple(cell for cell in submission.cells if not cell.checks or cell.checks in new)
        submission = replace(submission, cells=cells)
        outcome = grade_submission(zygote, graded, submission, SEED, Limits())
        for name, answer in new.items():
            subject = LocalSubject(answer.namespace)
            here = run_checks(assignment.handout, name, subject, SEED)
            there = outcome.reports[name]
            assert scores(there) == scores(here), f"{name} {answer.name}: {there.to_text()}"
