"""What is wrong with files: none of it earns a point, and none costs the rest of the class one.

One class, graded once by the command as an instructor would. Between two honest students sits one
for each way in which a notebook, a folder or a name can be broken, by malice or by accident, and
one for each editor that writes notebooks in a way of its own.
"""

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
from attacks_in_files import HANDED_IN
from corpus import NAME, POINTS, Came, Case, require_promises
from honest_styles import EDITORS
from nbgrader.api import Gradebook

from classroom.grader.verdicts import read_lines

CONFIG = Path(__file__).parents[2] / "nbgrader_config.py"
SECONDS = 20
HONEST = Case("honest", POINTS)
CASES = {case.student or name: case for name, case in (HANDED_IN | EDITORS).items()}


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
        for student in ("ada", *CASES, "zoe"):
            folder = root / "submitted" / student / exam.name
            folder.mkdir(parents=True)
            CASES.get(student, HONEST).hand_in(folder, handout, canaries.words)

    def grade(self):
        argv = ("grade", "09_exam", "--root", ".", "--workers", "2")
        argv += ("--seconds-per-submission", str(SECONDS))
        return subprocess.run(
            [sys.executable, "-m", "classroom", *argv],
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=400,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def handed_in(self):
        """What lies in `submitted/`, but what has no end, and the dates, which are written anew."""
        return {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in (self.root / "submitted").rglob("*")
            if path.is_file() and not path.is_symlink() and path.stat().st_size < 2**30
            if path.name != "timestamp.txt"
        }


@pytest.fixture(scope="module")
def graded(launcher, exam, canaries, tmp_path_factory):
    everybody = Class(tmp_path_factory.mktemp("course"), exam, canaries)
    canaries.remember()
    before = everybody.handed_in()
    done = everybody.grade()
    # One name cannot be kept in a database; that is an error, and nobody else's.
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("is not in the gradebook") == 1, done.stderr
    canaries.require_untouched()
    assert everybody.handed_in() == before
    everybody.printed = done.stdout + done.stderr
    kept = everybody.root / "graded" / "09_exam"
    everybody.verdicts = {v.student: v for v in read_lines(kept / "verdicts.jsonl")}
    return everybody


def came_of(graded, student):
    verdict = graded.verdicts[student]
    messages = [result.message for report in verdict.reports for result in report.results]
    reasons = filter(None, [verdict.problem, *verdict.notes, *verdict.errors, *messages])
    folder = graded.root / "autograded" / student / "09_exam"
    kept = folder / NAME
    return Came(
        earned=tuple(report.earned for report in verdict.reports),
        reasons=tuple(reasons),
        kept=kept.read_text() if verdict.in_gradebook else "",
        seconds=verdict.seconds,
        is_neighbour_whole=all(graded.verdicts[name].earned == 11 for name in ("ada", "zoe")),
    )


@pytest.mark.parametrize("student", CASES, ids=lambda student: CASES[student].name)
def test_it_earns_what_its_honest_parts_deserve(graded, student):
    verdict = graded.verdicts[student]
    require_promises(CASES[student], came_of(graded, student), SECONDS)
    assert tuple(report.points for report in verdict.reports) == POINTS
    for sentence in (verdict.problem, *verdict.notes, *verdict.errors):
        assert sentence.isprintable() and len(sentence) < 500
    assert "the grader failed" not in verdict.problem
    assert (
        timedelta(0)
        <= datetime.now(UTC) - datetime.fromisoformat(verdict.received)
        < timedelta(hours=1)
    )


@pytest.mark.parametrize("student", EDITORS)
def test_what_an_editor_writes_is_no_cause_for_a_remark(graded, student):
    verdict = graded.verdicts[student]
    assert (verdict.notes, verdict.errors) == ((), ())


def test_neighbours_get_their_points_and_nothing_to_read(graded):
    for student in ("ada", "zoe"):
        verdict = graded.verdicts[student]
        assert (verdict.earned, verdict.notes, verdict.errors) == (11, (), ())


def test_everybody_is_in_the_table_and_no_terminal_is_given_orders(graded):
    assert set(graded.verdicts) == {"ada", "zoe", *CASES}
    assert len(re.findall(r"\d+ of 11", graded.printed)) == len(graded.verdicts)
    assert "\x1b" not in graded.printed


def test_no_spreadsheet_computes_a_name(graded):
    with (graded.root / "graded" / "09_exam" / "scores.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert len(rows) == 1 + len(graded.verdicts)
    assert {len(row) for row in rows} == {9}
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
