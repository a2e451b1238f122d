"""A class in which some take all that they can get: the others' points are exactly as alone.

One class, graded by two processes at a time. Between honest students sit one who poisons what a
lent function remembers, one who lets it compute something huge, one whose cells show far too much,
and one whose processes take every CPU that there is.
"""

import json
import zipfile
from dataclasses import replace

import nbformat
import pytest
from exam import LIMITS, write_exam

from classroom.author.notebooks import cell_of
from classroom.grader.collect import collect
from classroom.grader.run import Assignment, Settings, ThisMachine, grade, grade_folder
from classroom.grader.submission import Submission
from classroom.grader.verdicts import read_lines

NAME = "08_neighbours"
CHECKS = '''\
"""What is graded."""

import torch

from classroom.exercise.expect import exercise, expect_agrees, expect_answer, points

KNOWN = {}
TEXT = torch.arange(20) * 3


def products(x):
    """A model that remembers, and whose dtype makes a difference."""
    key = tuple(x.tolist())
    if key not in KNOWN:
        KNOWN[key] = (x[:, None] * x).sum(dim=1, dtype=x.dtype)
    return KNOWN[key]


def about(name, number):
    return exercise(
        name, number=number, title=name, asks="Write it.", difficulty=1, importance=1, minutes=1
    )


@about("borrows", "8.1")
class TestBorrows:
    @points(5)
    def test_the_model_is_asked(self, subject, case):
        def judge(found):
            expected = TEXT * TEXT.sum()
            return None if torch.equal(torch.as_tensor(found), expected) else f"it is {found}"

        request = lambda code: code.call("borrows", code.lend(products), TEXT)
        expect_answer(subject, case, [request], judge)


@about("computes", "8.2")
class TestComputes:
    @points(3)
    def test_three_is_six(self, subject, case):
        inputs = lambda case: (case.integer(2, 1000),)
        expect_agrees(subject, case, "computes", inputs, lambda n: n + n, {"double": ""})
'''
BORROWS = "import torch\n\ndef borrows(model, x):\n    return model(x)"
# Half of what an exercise may compute.
COMPUTES = """
import time

def computes(n):
    end = time.process_time() + 0.5
    while time.process_time() < end:
        pass
    return n + n
"""
POISON = """
def borrows(model, x):
    model(x.to(torch.uint8))
    return model(x)
"""
BOMB = """
def borrows(model, x):
    return model(torch.arange(10_000))
"""
HOG = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        while True:
            pass
time.sleep(6)
"""
FLOOD = """
from IPython.display import display
display({f"{number} {'k' * 1000}": "" for number in range(200)}, raw=True)
print("x" * 100_000)
"""
HONEST = ("ada", "bo", "cy", "zoe")
HOSTILE = {
    "eve who borrows": {"borrows": f"import torch\n{POISON}"},
    "eve who computes": {"borrows": f"import torch\n{BOMB}"},
    "eve who shows": {"own": [FLOOD] * 40},
    "beth who hogs": {"own": [HOG]},
}
TOGETHER = 2**20


@pytest.fixture(scope="module")
def assignment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exercises") / NAME
    folder.mkdir()
    write_exam(folder, ("borrows", "computes"), CHECKS)
    return Assignment(folder)


def handed_in(assignment, borrows=BORROWS, computes=COMPUTES, own=()):
    notebook = nbformat.read(assignment.folder / "neighbours.ipynb", as_version=4)
    cell_of(notebook, "borrows").source = borrows
    cell_of(notebook, "computes").source = computes
    notebook.cells[2:2] = [nbformat.v4.new_code_cell(source) for source in own]
    return nbformat.writes(notebook)


def graded(assignment, submitted, kept, num_workers):
    limits = replace(LIMITS, seconds_per_cell=10.0, output_bytes_together=TOGETHER)
    notebooks = {}

    def keep(verdict, notebook):
        notebooks[verdict.student] = nbformat.writes(notebook)

    engine = ThisMachine(num_workers)
    grade_folder(assignment, submitted, kept, keep, limits, engine=engine)
    return {v.student: v for v in read_lines(kept / "verdicts.jsonl")}, notebooks


@pytest.fixture(scope="module")
def everybody(sealed, assignment, tmp_path_factory):
    """The verdicts of all, and their notebooks; they came in an archive that holds bombs, too."""
    folder = tmp_path_factory.mktemp("course")
    archive = folder / "uploads.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for number in range(12):
            file.writestr(f"dan/{number}.ipynb", bytes(40 * 2**20))
        for number in range(1200):
            file.writestr(f"dora/{number}.txt", "")
        for student in HONEST:
            file.writestr(f"{student}/neighbours.ipynb", handed_in(assignment))
        for student, answers in HOSTILE.items():
            file.writestr(f"{student}/neighbours.ipynb", handed_in(assignment, **answers))
    submitted = folder / "submitted"
    rows = collect([archive], submitted, NAME, "neighbours.ipynb")
    taken = {row.student for row in rows if row.outcome == "taken"}
    assert taken == {*HONEST, *HOSTILE}
    return graded(assignment, submitted, folder / "kept", num_workers=2)


@pytest.mark.slow
def test_honest_students_get_exactly_what_they_get_alone(everybody, assignment, tmp_path):
    folder = tmp_path / "submitted" / "ada" / NAME
    folder.mkdir(parents=True)
    (folder / "neighbours.ipynb").write_text(handed_in(assignment))
    alone, _ = graded(assignment, tmp_path / "submitted", tmp_path / "kept", num_workers=1)
    assert [report.earned for report in alone["ada"].reports] == [5, 3]
    verdicts, _ = everybody
    for student in HONEST:
        earned = [report.earned for report in verdicts[student].reports]
        assert earned == [5, 3], verdicts[student].reports
        assert (verdicts[student].errors, verdicts[student].notes) == ((), ())


@pytest.mark.slow
def test_what_a_lent_function_computes_is_bounded_by_lengths(everybody):
    verdicts, _ = everybody
    report = verdicts["eve who computes"].reports[0]
    assert report.earned == 0 and "lengths of at most 256" in report.results[0].message
    assert verdicts["eve who computes"].reports[1].earned == 3


@pytest.mark.slow
def test_all_cells_together_show_a_bounded_amount(everybody):
    verdicts, notebooks = everybody
    assert len(notebooks["eve who shows"]) < 2 * TOGETHER
    outputs = [cell.get("outputs", []) for cell in json.loads(notebooks["eve who shows"])["cells"]]
    assert sum(len(json.dumps(each)) for each in outputs) < 1.2 * TOGETHER
    assert "the rest was cut off" in notebooks["eve who shows"]
    assert verdicts["eve who shows"].earned == 8


@pytest.mark.slow
def test_a_hog_keeps_its_own_points(everybody):
    verdicts, _ = everybody
    assert verdicts["beth who hogs"].reports[0].earned == 5


def test_what_a_lent_function_remembers_of_one_student_is_unknown_to_the_next(
    launcher, assignment, tmp_path
):
    settings = Settings(assignment=assignment, limits=LIMITS, allow_weaker=False, seed="unseen")
    earned = {}
    for student, borrows in (("eve", f"import torch\n{POISON}"), ("zoe", BORROWS)):
        folder = tmp_path / student / NAME
        folder.mkdir(parents=True)
        (folder / "neighbours.ipynb").write_text(handed_in(assignment, borrows))
        verdict, _ = grade(launcher, settings, Submission.read(folder, assignment.master))
        earned[student] = verdict.reports[0].earned
    assert earned == {"eve": 0, "zoe": 5}
