"""Whether every answer of every chapter earns the same in a sandbox as in a notebook's self-check.

All solutions, blanks, mistakes and variants, check by check and message by message, on one seed.
And the honest styles of tests/hostile, in a Jupyter kernel as their authors run them.
Half an hour of one core, so each notebook is kept in a line of `build/parity.jsonl` as soon as it
is graded, and a run that was stopped goes on where it was.

    pytest -o addopts=--import-mode=importlib -m benchmark tests/benchmarks/test_parity.py

That stock nbgrader gives the same scores, too, is shown in tests/exercises.
"""

import hashlib
import json
import re
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import nbformat
import pytest
from honest_notebooks import CELLS, EDITS, LOSSES
from parity import measure
from warm_kernels import WarmKernels

from classroom.author.notebooks import cell_of
from classroom.calls.files import File
from classroom.calls.local import LocalSubject
from classroom.course import assignments
from classroom.exercise.answers import Answer, files_beside, load_answers
from classroom.exercise.run import load_checks, run_checks
from classroom.grader.run import Assignment, execute
from classroom.grader.submission import Submission
from classroom.limits import Limits
from classroom.sandbox.launcher import Launcher

pytestmark = pytest.mark.benchmark

ROOT = Path(__file__).parents[2]
FILE = "parity.json"
KEPT = ROOT / "build" / "parity.jsonl"
SEED = "parity"
LINE = re.compile(r"in line \d+")  # in a notebook a cell begins after its imports


def answers_of(chapter):
    """Return all answers of a chapter by kind and exercise."""
    found = {
        "solution": {},
        "blank": {},
        "mistake": defaultdict(list),
        "variant": defaultdict(list),
    }
    for kind, folder in (("solution", "solutions"), ("blank", "exercises")):
        file = next((ROOT / folder / chapter).glob("*.ipynb"))
        notebook = nbformat.read(file, as_version=4)
        first = next(cell for cell in notebook.cells if "import check" in cell.source)
        for name in load_checks(ROOT / "exercises" / chapter):
            source = cell_of(notebook, name).source
            found[kind][name] = [Answer(kind, name, kind, source, first.source)]
    for kind in ("mistake", "variant"):
        for answer in load_answers(ROOT / "solutions" / chapter / f"{kind}s.py"):
            found[kind][answer.exercise].append(answer)
    return found


def notebooks_of(chapter):
    """Share all answers out over notebooks: one of each exercise, and one kind, in each."""
    for kind, by_exercise in answers_of(chapter).items():
        for number, row in enumerate(zip_longest(*by_exercise.values())):
            yield f"{kind} {number}", {answer.exercise: answer for answer in row if answer}


def version(chapter):
    folder = ROOT / "solutions" / chapter
    contents = b"".join(file.read_bytes() for file in sorted(folder.glob("*.py")))
    return hashlib.sha256(contents).hexdigest()[:16]


def comparable(report):
    results = report.to_json()["results"]
    return [{**each, "message": LINE.sub("in line …", each["message"])} for each in results]


def compare(launcher, graded, answers, folder):
    """Grade a notebook in a sandbox and its answers by self-check; return what came of it."""
    master = graded.master
    notebook = nbformat.read(graded.folder / master.name, as_version=4)
    solutions = answers_of(graded.name)["solution"]
    for name in master.exercises:
        cell_of(notebook, name).source = answers.get(name, solutions[name][0]).cell
    nbformat.write(notebook, folder / master.name)
    beside = files_beside(ROOT / "solutions" / graded.name, *answers.values())
    for name, data in beside.items():
        (folder / name).write_bytes(data)
    files = {name: File(data) for name, data in beside.items()}
    handed_in = Submission.read(folder, master).answers(master)
    asked = tuple(c for c in handed_in.cells if not c.checks or c.checks in answers)
    execution = execute(launcher, graded, replace(handed_in, cells=asked), SEED, Limits())
    checks, different = 0, []
    for name, answer in answers.items():
        subject = LocalSubject(answer.namespace, files=files)
        here = comparable(run_checks(graded.folder, name, subject, SEED))
        there = comparable(execution.reports[name])
        checks += len(here)
        for one, other in zip(here, there, strict=True):
            what = [key for key in one if one[key] != other[key]]
            if what:
                different.append([name, answer.name, what, one, other])
    return {"answers": len(answers), "checks": checks, "different": different}


@pytest.fixture(scope="module")
def compared(sealed, tmp_path_factory):
    """What came of each notebook, by chapter and notebook."""
    kept = {}
    if KEPT.exists():
        for line in KEPT.read_text(encoding="utf-8").splitlines():
            *key, found = json.loads(line)
            kept[tuple(key)] = found
    KEPT.parent.mkdir(exist_ok=True)
    folder = tmp_path_factory.mktemp("handed_in")
    found = {}
    with Launcher() as launcher, KEPT.open("a", encoding="utf-8") as file:
        for handout in assignments(ROOT / "exercises"):
            graded = Assignment(handout)
            for name, answers in notebooks_of(graded.name):
                key = (graded.name, name, version(graded.name))
                if key not in kept:
                    kept[key] = compare(launcher, graded, answers, folder)
                    file.write(json.dumps([*key, kept[key]]) + "\n")
                    file.flush()
                found[graded.name, name] = kept[key]
    return found


def test_every_answer_earns_in_a_sandbox_what_its_self_check_shows(compared, record):
    answers = Counter()
    for (_, notebook), found in compared.items():
        answers[notebook.split()[0]] += found["answers"]
    different = {
        f"{chapter} {name} {answer}": what
        for (chapter, _), found in compared.items()
        for name, answer, what, _, _ in found["different"]
    }
    scores = {who for who, what in different.items() if {"earned", "mistakes"} & set(what)}
    assert record(
        FILE,
        "answers that score otherwise in the sandbox than in the self-check",
        len(scores),
        answers.total(),
        "all answers",
        round(len(scores) / answers.total(), 5),
        "none",
        not different,
        checks=sum(found["checks"] for found in compared.values()),
        answers=dict(answers),
        different=different,
    ), different


def test_honest_styles_earn_in_a_sandbox_what_they_earn_in_a_kernel(launcher, tmp_path, record):
    styles = [*CELLS, *EDITS, *LOSSES]
    with WarmKernels():
        found = {s: measure(launcher, s, tmp_path / str(i)) for i, s in enumerate(styles)}
    lost = [s for s, earned in found.items() if earned.in_sandbox < earned.in_kernel]
    assert record(
        FILE,
        "honest styles that earn less in the sandbox than in a Jupyter kernel",
        len(lost),
        len(found),
        "all styles",
        round(len(lost) / len(found), 5),
        "only those that are known not to work",
        set(lost) <= set(LOSSES),
        lost=lost,
        styles={s: f"{e.in_kernel} and {e.in_sandbox} of {e.points}" for s, e in found.items()},
    ), lost
