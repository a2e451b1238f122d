"""What is wrong with files: none of it earns a point, and none costs the rest of the class one.

One class, graded once by the command as an instructor would. Between two honest students sits one
for each way in which a notebook, a folder or a name can be broken, by malice or by accident.
"""

import copy
import csv
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook

from classroom.notebooks import CHECK_SUFFIX
from classroom.report import Verdict, read_lines

RIGHT = {
    "first": "import torch\n\ndef first(x):\n    return x - x.mean(dim=0)",
    "attacked": "def attacked(x):\n    return x - x.mean(dim=0)",
    "last": "def last(number):\n    return number + number",
}
WRONG = "def attacked(x):\n    return x"
ALL, REST, NOTHING = (2, 7, 2), (2, 0, 2), (0, 0, 0)
CONFIG = Path(__file__).parents[2] / "nbgrader_config.py"
NAME = "exam.ipynb"
ATTACKS = {}


def attack(points, why="", student=None):
    """Say what a way of handing in earns, and which words its author is told."""

    def note(prepare):
        ATTACKS[student or prepare.__name__] = (prepare, points, why)
        return prepare

    return note


class Work:
    """A student's folder, and a notebook in which everything is answered rightly."""

    def __init__(self, folder, handout, canaries):
        self.folder = folder
        self.canaries = canaries
        self.blank = handout
        self.notebook = copy.deepcopy(handout)
        for name, source in RIGHT.items():
            self.cell(name)["source"] = source

    def cell(self, grade_id):
        (found,) = (c for c in self.notebook["cells"] if self.grade_id(c) == grade_id)
        return found

    def about(self, grade_id):
        return self.cell(grade_id)["metadata"]["nbgrader"]

    def check(self):
        return self.cell("attacked" + CHECK_SUFFIX)

    @staticmethod
    def grade_id(cell):
        return cell["metadata"].get("nbgrader", {}).get("grade_id")

    def place(self, cell):
        return self.notebook["cells"].index(cell)

    def insert(self, place, source, kind="code", **about):
        cell = {"cell_type": kind, "source": source, "metadata": {}, **about}
        self.notebook["cells"].insert(place, cell)
        return cell

    def answer(self, source):
        self.cell("attacked")["source"] = source

    def write(self, name=NAME, notebook=None):
        (self.folder / name).write_text(json.dumps(notebook or self.notebook))

    def text(self, words, name=NAME):
        (self.folder / name).write_text(words)


# Cells


@attack(REST, "the check of `attacked` had been changed")
def edited_check(work):
    work.answer(WRONG)
    work.check()["source"] = "from classroom.selfcheck import Score\nScore(7)"


@attack(REST)
def worth_a_thousand_points(work):
    work.answer(WRONG)
    work.about("attacked-check")["points"] = 1000


@attack(REST)
def forged_outputs(work):
    work.answer(WRONG)
    data = {"text/plain": "1000"}
    forged = {"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": 1}
    work.check()["outputs"] = [forged]


@attack(REST)
def skipped_check(work):
    work.answer(WRONG)
    work.check()["metadata"]["tags"] = ["skip-execution", "remove-cell"]


@attack(ALL)
def skipped_answer(work):
    work.cell("attacked")["metadata"]["tags"] = ["skip-execution"]


@attack(ALL, "the check of `attacked` was missing or above its answer")
def deleted_check(work):
    work.notebook["cells"].remove(work.check())


@attack(REST, "the cell of `attacked` was missing")
def deleted_answer(work):
    work.notebook["cells"].remove(work.cell("attacked"))


@attack(ALL)
def marks_stripped(work):
    for cell in work.notebook["cells"]:
        cell["metadata"] = {}
        del cell["id"]


@attack(ALL)
def renamed_grade_ids(work):
    for name in ("first", "attacked-check", "last"):
        work.about(name)["grade_id"] = "mine"


@attack(ALL, "the check of `attacked` was there more than once")
def doubled_check(work):
    work.notebook["cells"].insert(3, copy.deepcopy(work.check()))


@attack(REST, "there are 2 cells of `attacked`")
def doubled_answer_of_which_the_last_is_wrong(work):
    again = copy.deepcopy(work.cell("attacked"))
    again["source"] = WRONG
    work.notebook["cells"].insert(work.place(work.check()), again)


@attack(ALL, "the check of `first` was there more than once")
def whole_notebook_pasted_twice(work):
    work.notebook["cells"] += copy.deepcopy(work.notebook["cells"])


@attack(ALL, "above its answer")
def reversed_order(work):
    work.notebook["cells"].reverse()


@attack(ALL)
def flipped_flags(work):
    work.about("attacked").update(grade=True, solution=False, points=5)
    work.about("attacked-check").update(grade=False, solution=True)


@attack(ALL)
def check_turned_into_text(work):
    work.check()["cell_type"] = "markdown"


@attack(ALL, "the cell of `attacked` had become markdown")
def answer_turned_into_text(work):
    work.cell("attacked")["cell_type"] = "markdown"


@attack(ALL)
def old_schema(work):
    for name in RIGHT:
        work.about(name)["schema_version"] = 2
        work.about(f"{name}-check")["schema_version"] = "99"


@attack(ALL)
def another_kernel(work):
    work.notebook["metadata"] = {"kernelspec": {"name": "bogus", "display_name": "Bogus"}}


@attack(ALL)
def ids_that_are_paths_and_half_characters(work):
    for number, name in enumerate(("../../gradebook.db", "\ud800", "a" * 99, "", "first")):
        cell = work.insert(number, "1 + 1", id=name)
        cell["metadata"] = {"nbgrader": {"grade_id": name, "grade": True, "points": 50}}
        if name == "first":
            cell["metadata"] = {}


@attack(ALL, "those after the first 500 were left out")
def ten_thousand_cells(work):
    work.notebook["cells"] += [
        {"cell_type": "code", "source": f"x = {i}", "metadata": {}} for i in range(10_000)
    ]


@attack(ALL, "is longer than 262144 characters")
def a_cell_of_twenty_million_characters(work):
    work.insert(1, "#" * 20_000_000, kind="markdown")


@attack(ALL, "has no text")
def cells_that_are_none(work):
    work.notebook["cells"] = [None, 7, [], {"source": {"a": 1}}, *work.notebook["cells"]]


@attack(ALL, "stopped: ")
def a_cell_of_zero_bytes(work):
    work.insert(1, "\0")


@attack(ALL, "pictures that were put into text are not kept")
def script_in_a_picture(work):
    attached = {"a.svg": {"image/svg+xml": "<svg onload=alert(1)>"}}
    work.insert(1, "![a](attachment:a.svg)", kind="markdown", attachments=attached)


@attack(ALL)
def large_metadata(work):
    work.notebook["metadata"]["large"] = "x" * 30_000_000


# Files


@attack(NOTHING, "is damaged")
def damaged(work):
    work.text(json.dumps(work.notebook)[:-7])


@attack(NOTHING, "is empty")
def empty(work):
    work.text("")


@attack(NOTHING, "is of version 3 of the notebook format")
def old_format(work):
    work.text(json.dumps({"nbformat": 3, "worksheets": [{"cells": work.notebook["cells"]}]}))


@attack(NOTHING, "is nested too deeply")
def nested(work):
    work.text('{"metadata":' + "[" * 300_000)


@attack(NOTHING, "holds too much")
def list_bomb(work):
    work.text("[" + "[]," * 5_000_000 + "[]]")


@attack(NOTHING, "is damaged")
def number_bomb(work):
    work.text('{"nbformat": ' + "4" * 10_000_000 + "}")


@attack(NOTHING, "is larger than 32 MB")
def too_large(work):
    work.notebook["metadata"]["large"] = "x" * 40_000_000
    work.write()


@attack(NOTHING, "is larger than 32 MB")
def a_file_of_holes(work):
    with (work.folder / NAME).open("wb") as file:
        file.truncate(2**42)


@attack(NOTHING, "is a link")
def link_to_the_gradebook(work):
    (work.folder / NAME).symlink_to(work.canaries.folder / "gradebook.db")


@attack(NOTHING, "is a link")
def link_to_a_neighbour(work):
    (work.folder / NAME).symlink_to(work.folder.parents[1] / "ada" / "09_exam" / NAME)


@attack(NOTHING, "is a link")
def link_to_no_end(work):
    (work.folder / NAME).symlink_to("/dev/zero")


@attack(NOTHING, "the folder is a link")
def folder_that_is_a_link(work):
    work.folder.rmdir()
    work.folder.symlink_to(work.folder.parents[1] / "ada" / "09_exam")


@attack(NOTHING, "the student's folder is a link")
def student_who_is_a_link(work):
    work.folder.rmdir()
    work.folder.parent.rmdir()
    work.folder.parent.symlink_to(work.folder.parents[1] / "ada")


@attack(NOTHING, "is no ordinary file")
def pipe(work):
    os.mkfifo(work.folder / NAME)


@attack(NOTHING, "is no ordinary file")
def folder_with_the_name_of_a_notebook(work):
    (work.folder / NAME).mkdir()


@attack(NOTHING, "the folder cannot be opened")
def file_in_place_of_a_folder(work):
    work.folder.rmdir()
    work.folder.write_text("{}")


@attack(NOTHING, "there is no notebook in the folder")
def nothing_in_it(work):
    work.text("def first(x): ...", name="exam.py")


@attack(NOTHING, "holds more than 1000 files")
def two_thousand_files(work):
    for number in range(2000):
        (work.folder / f"exam ({number}).ipynb").touch()


@attack(NOTHING, "holds no exercise")
def notebook_of_another_assignment(work):
    work.notebook["cells"] = [{"cell_type": "code", "source": "1", "metadata": {}}]
    work.write()


@attack(ALL, "should be called exam.ipynb")
def renamed_file(work):
    work.write("exam (1).ipynb")


@attack(ALL, "exam-Copy1.ipynb was graded, not exam.ipynb")
def answers_in_a_copy(work):
    work.write(notebook=work.blank)
    work.write("exam-Copy1.ipynb")


@attack(REST, "only the notebook is used, not ")
def packages_that_shadow_others(work):
    work.answer("import math, giveaway\n" + WRONG)
    giveaway = "def oracle(x): return x - x.mean(dim=0)\ndef expect_agrees(*args): pass\n"
    for name in ("math", "torch", "sitecustomize", "nbgrader_config", "conftest", "giveaway"):
        work.text("raise SystemExit('shadowed')", name=f"{name}.py")
    for name in ("checks.py", "mistakes.py"):
        work.text(giveaway, name=name)
    work.write()


@attack(ALL)
def back_dated(work):
    work.text("1999-01-01 00:00:00 UTC", name="timestamp.txt")
    work.write()
    os.utime(work.folder / NAME, (0, 0))


@attack(ALL)
def no_date_at_all(work):
    work.text("not a date", name="timestamp.txt")
    work.write()


@attack(ALL)
def editor_of_another_system(work):
    data = json.dumps(work.notebook).replace("\\n", "\\r\\n")
    (work.folder / NAME).write_bytes(data.encode("utf-16"))


# Names


@attack(ALL, student="=cmd|calc!A0")
def formula(work):
    pass


@attack(ALL, student="-2+3")
def sum_of_numbers(work):
    pass


@attack(ALL, student='Zoë, née "O\'Brien"; x')
def separators(work):
    pass


@attack(ALL, student="a\n\x1b[2J\x1b[31mb")
def orders_to_the_terminal(work):
    pass


@attack(ALL, "this is not in the gradebook", student=os.fsdecode(b"\xff\xfe"))
def no_text(work):
    pass


@attack(ALL, student="<script>alert(1)</script>".replace("/", "|"))
def markup(work):
    work.text("", name="<img src=x onerror=alert(1)>.csv")


@attack(ALL, "\\x1b[2J", student="odd file")
def order_in_the_name_of_a_file(work):
    work.write("\x1b[2J.ipynb")


# The class


class Class:
    """What came of grading everybody.

    Attributes:
        verdicts: By student.
        printed: By the command.
        root: The course's folder.

    """

    def __init__(self, root, exam, canaries):
        self.root = root
        self.canaries = canaries
        for kind in ("solutions", "exercises"):
            shutil.copytree(exam.folder, root / kind / exam.name)
        shutil.copy(CONFIG, root)
        handout = json.loads((exam.folder / NAME).read_text())
        for student in ("ada", *ATTACKS, "zoe"):
            folder = root / "submitted" / student / exam.name
            folder.mkdir(parents=True)
            work = Work(folder, handout, canaries)
            ATTACKS.get(student, (lambda work: None,))[0](work)
            if folder.is_dir() and not folder.is_symlink() and not list(folder.glob("*.ipynb")):
                if student != "nothing_in_it":
                    work.write()

    def grade(self):
        argv = ("grade", "09_exam", "--root", ".", "--workers", "2")
        return subprocess.run(
            [sys.executable, "-m", "classroom", *argv],
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=400,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def handed_in(self):
        """Everything that lies in `submitted/`, without what has no end."""
        return {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in (self.root / "submitted").rglob("*")
            if path.is_file() and not path.is_symlink() and path.stat().st_size < 2**30
        }


@pytest.fixture(scope="module")
def graded(zygote, exam, canaries, tmp_path_factory):
    everybody = Class(tmp_path_factory.mktemp("course"), exam, canaries)
    canaries.remember()
    before = everybody.handed_in()
    done = everybody.grade()
    assert done.returncode == 0, done.stderr
    canaries.require_untouched()
    assert everybody.handed_in() == before
    everybody.printed = done.stdout + done.stderr
    kept = everybody.root / "graded" / "09_exam"
    everybody.verdicts = {v.student: v for v in read_lines(kept / "verdicts.jsonl")}
    return everybody


def told(verdict: Verdict):
    messages = [result.message for report in verdict.reports for result in report.results]
    return "\n".join([verdict.problem, *verdict.notes, *verdict.errors, *messages])


@pytest.mark.parametrize("student", ATTACKS, ids=lambda student: ATTACKS[student][0].__name__)
def test_it_earns_what_its_honest_parts_deserve(graded, student):
    _, points, why = ATTACKS[student]
    verdict = graded.verdicts[student]
    assert tuple(report.earned for report in verdict.reports) == points, told(verdict)
    assert [report.points for report in verdict.reports] == [2, 7, 2]
    assert why in told(verdict)
    for sentence in (verdict.problem, *verdict.notes, *verdict.errors):
        assert sentence.isprintable() and len(sentence) < 500
    assert "the grader failed" not in verdict.problem
    assert verdict.seconds < 31
    assert (
        timedelta(0)
        <= datetime.now(UTC) - datetime.fromisoformat(verdict.received)
        < timedelta(hours=1)
    )


def test_neighbours_get_their_points_and_nothing_to_read(graded):
    for student in ("ada", "zoe"):
        verdict = graded.verdicts[student]
        assert (verdict.earned, verdict.notes, verdict.errors) == (11, (), ())


def test_everybody_is_in_the_table_and_no_terminal_is_given_orders(graded):
    assert set(graded.verdicts) == {"ada", "zoe", *ATTACKS}
    assert len(re.findall(r"\d+ of 11", graded.printed)) == len(graded.verdicts)
    assert "\x1b" not in graded.printed


def test_no_spreadsheet_computes_a_name(graded):
    with (graded.root / "graded" / "09_exam" / "scores.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert len(rows) == 1 + len(graded.verdicts)
    assert {len(row) for row in rows} == {8}
    for row in rows:
        assert not any(cell.lstrip()[:1] in ("=", "+", "-", "@") for cell in row if cell)


def test_the_gradebook_holds_the_same_scores(graded):
    database = f"sqlite:///{graded.root / 'gradebook.db'}"
    with Gradebook(database, "attention_from_the_ground_up") as gradebook:
        scores = {s.student.id: s.score for s in gradebook.assignment_submissions("09_exam")}
    expected = {s: v.earned for s, v in graded.verdicts.items() if v.in_gradebook}
    assert scores == expected
    assert [s for s in graded.verdicts if s not in scores] == [os.fsdecode(b"\xff\xfe")]


def test_what_is_kept_of_a_notebook_is_sound_and_holds_nothing_of_others(graded):
    for student, verdict in graded.verdicts.items():
        folder = graded.root / "autograded" / student / "09_exam"
        if not verdict.in_gradebook:
            continue
        assert {path.name for path in folder.iterdir()} == {NAME, "timestamp.txt"}
        data = (folder / NAME).read_bytes()
        assert graded.canaries.abstract.encode() not in data and len(data) < 2**20
        notebook = nbformat.reads(data.decode(), as_version=4)
        nbformat.validate(notebook)
        assert len([c for c in notebook.cells if c.metadata.get("nbgrader")]) == 6


def test_a_second_run_grades_nobody_again_but_whom_it_could_not_write_down(graded):
    done = graded.grade()
    assert done.returncode == 0, done.stderr
    assert "\n1 graded now; " in done.stdout
