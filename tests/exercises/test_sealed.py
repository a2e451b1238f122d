"""In a sandbox an answer earns what its self-check shows, check by check, and is told the same.

A sample: of every other exercise an answer, half of them mistakes. Which ones is drawn by what the
chapter's files hold, so a chapter that changes is tried with others. That it holds for all of
them, tests/benchmarks/test_parity.py finds out.
"""

import contextlib
import hashlib
import re

import nbformat
import pytest
import torch

from classroom.exercise.cases import Case
from classroom.exercise.expect import CheckFailed, expect_agrees, expect_test_judges
from classroom.exercise.run import run_checks
from classroom.grader.run import Assignment, execute
from classroom.grader.submission import Submission
from classroom.limits import Limits

_LINE = re.compile(r"in line \d+")


def drawn(assignment):
    """Return answers: in turns a mistake, a blank, one that is no mistake, and a blank."""
    contents = b"".join(file.read_bytes() for file in sorted(assignment.folder.glob("*.py")))
    number = int.from_bytes(hashlib.sha256(contents).digest()[:8], "big")
    answers = {}
    for at, name in enumerate(assignment.exercises, number):
        found = [assignment.blank(name)]
        if at % 4 == 0:
            found = [a for a in assignment.mistakes if a.exercise == name]
        elif at % 4 == 2:
            found = [a for a in assignment.variants if a.exercise == name]
            found.append(assignment.solution(name))
        answers[name] = found[at // 4 % len(found)]
    return answers


def comparable(report):
    """Return a report without the numbers of lines: a notebook's cell begins after its imports."""
    record = report.to_json()
    for result in record["results"]:
        result["message"] = _LINE.sub("in line …", result["message"])
    return record


@pytest.mark.slow
def test_a_sandbox_gives_the_scores_of_the_self_check(assignment, launcher, self_check, tmp_path):
    graded = Assignment(assignment.handout)
    answers = drawn(assignment)
    cells = {name: answer.cell for name, answer in answers.items()}
    nbformat.write(assignment.notebook(cells), tmp_path / assignment.notebook_name)
    beside = tuple(answers.values()) if assignment.handed_in else ()
    for name, file in assignment.files(*beside).items():
        (tmp_path / name).write_bytes(file.data)
    handed_in = Submission.read(tmp_path, graded.master).answers(graded.master)
    assert handed_in.notes == ()
    execution = execute(launcher, graded, handed_in, assignment.seed, Limits())
    for name, answer in answers.items():
        here = self_check(assignment, answer, beside=beside)
        there = execution.reports[name]
        assert comparable(there) == comparable(here), f"{name} {answer.name}"


def test_a_lent_function_is_differentiated_across_processes(launcher):
    matrix = torch.tensor([[2.0, 3.0], [5.0, 7.0]])
    with launcher.start_job() as job:
        job.run("import torch\ndef use(f, x): return torch.autograd.functional.jacobian(f, x)")
        with job.serving() as subject:
            lent = subject.lend(lambda x: matrix @ x.square())
            jacobian = subject.call("use", lent, torch.ones(2))
    assert jacobian.tolist() == (2 * matrix).tolist()


VOTING = """
import json, pathlib
path = pathlib.Path("votes.json")
def check(mean):
    votes = json.loads(path.read_text()) if path.exists() else []
    votes.append([mean(x) for x in (2.0, 3.0, 5.0)])
    try:
        path.write_text(json.dumps(votes))
    except OSError:
        pass
    assert votes.count(votes[-1]) >= max(map(votes.count, votes))
"""


def test_a_test_that_rejects_what_differs_from_most_earns_nothing(launcher):
    right = {"a half": lambda x: x / 2, "the same": lambda x: 0.5 * x}
    wrong = {f"plus {n}": lambda x, n=n: x / 2 + n for n in range(1, 6)}
    earned = []
    for seed in ("one", "two", "three"):
        case = Case(seed)
        with launcher.start_job() as job:
            job.run(VOTING)
            with job.serving() as subject:
                for bug in wrong:
                    with contextlib.suppress(CheckFailed):
                        expect_test_judges(subject, case, "check", right, wrong, bug)
                        earned.append(bug)
    assert earned == []


ASKED_TWICE = """
import os, pathlib
told, asked = pathlib.Path("told"), pathlib.Path("asked")
def double(x):
    if asked.exists() and asked.read_text() == repr(x):
        told.touch()  # only an answer that was wrong is asked for again
    asked.write_text(repr(x))
    return 2 * x if told.exists() else 3 * x
"""


def test_an_answer_is_not_told_that_an_earlier_one_was_wrong(launcher):
    def draw(case):
        return (case.normal(3, 5),)

    with launcher.start_job() as job:
        job.run(ASKED_TWICE)
        with job.serving() as subject:
            for seed in ("one", "two", "three"):
                with pytest.raises(CheckFailed) as failed:
                    expect_agrees(
                        subject, Case(seed), "double", draw, lambda x: 2 * x, {"y": "b d"}
                    )
                with subject.together(explains=True):
                    failed.value.explained()


DIES = """
import os, torch
def mended_attention(query, key, value):
    if query.requires_grad: os._exit(0)
    return (query @ key.mT / query.shape[-1]**0.5).softmax(-1) @ value
"""


def test_a_process_that_ends_where_a_gradient_is_asked_for_costs_a_check(root, launcher):
    folder = root / "solutions" / "01_attention"
    with launcher.start_job() as job:
        job.run(DIES)
        with job.serving() as subject:
            report = run_checks(folder, "mended_attention", subject, "unseen")
    assert report.earned < report.points
    assert "the gradient is cut: `mended_attention` ended the process" in report.messages[0]
