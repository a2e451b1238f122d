"""A class graded with stock nbgrader commands gets the scores that its self-checks showed."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from draws import draw
from nbgrader.api import Gradebook

from classroom.author.notebooks import cell_of
from classroom.calls.local import LocalSubject
from classroom.course import CHECK_SUFFIX
from classroom.exercise.run import run_checks
from classroom.student.terminal import check_notebook

pytestmark = pytest.mark.slow

# The commands of `nbgrader`, as from a terminal, one after the other in one process: importing
# nbgrader takes longer than most of them. Kernels are forks, for the same reason.
COMMANDS = """
import json, sys
from nbgrader.apps import NbGraderApp
from traitlets.config import Application
from warm_kernels import WarmKernels
with WarmKernels():
    for argv in json.loads(sys.argv[1]):
        NbGraderApp.launch_instance(argv)
        type(Application.instance()).clear_instance()
"""
BROKEN_CHAPTER = "01_attention"
BROKEN = {
    "kernel_regression": "def kernel_regression(query, key, value, bandwidth)\n    return value",
    "soft_lookup": "def soft_look_up(query, key, value, temperature):\n    return value",
    "raw_scores": "def raw_scores(x, w_query, w_key):\n    return x.tolist()",
    "mended_attention": "def mended_attention(query, key, value):\n"
    "    return torch.full((*query.shape[:-1], value.shape[-1]), torch.nan).double()",
    "project_after_mixing": "def project_after_mixing(weights, tokens, w_value, b_value):\n"
    "    while True:\n        try:\n            weights = weights + 0\n"
    "        except Exception:\n            pass",
}
BROKEN_MESSAGES = {
    "kernel_regression": "`kernel_regression` is not defined",
    "soft_lookup": "there is a `soft_look_up`: is that its name?",
    "raw_scores": "should be a tensor; it is a list",
    "mended_attention": "output holds NaN",
    "project_after_mixing": "Is there a loop that does not end?",
}


def handed_in(assignment, chapter):
    """Choose the answers of a notebook: solution, mistake, variant and blank in turn.

    The chapters are out of step, so that it is not always the first mistake. What a check makes of
    each answer is tested elsewhere; here, that nbgrader's kernel changes nothing about it.
    """
    answers = {}
    for at, exercise in enumerate(assignment.exercises, chapter):
        by_kind = {
            "solution": [assignment.solution(exercise)],
            "mistake": [a for a in assignment.mistakes if a.exercise == exercise],
            "variant": [a for a in assignment.variants if a.exercise == exercise],
            "blank": [assignment.blank(exercise)],
        }
        kinds = [found for found in by_kind.values() if found]
        found = kinds[at % len(kinds)]
        answers[exercise] = found[at % len(found)]
    return answers


class Classroom:
    """A copy of the course in which a small class has handed in half of the chapters, by turns."""

    def __init__(self, assignments, root: Path, folder: Path):
        self.assignments = {assignment.name: assignment for assignment in assignments}
        self.folder = folder
        for name in ("solutions", "exercises", "nbgrader_config.py"):
            copy = shutil.copytree if (root / name).is_dir() else shutil.copy
            copy(root / name, folder / name)
        self.answers = {}
        turns = {a.name: draw(a.name, 2**64, "exercise", "nbgrader") for a in assignments}
        by_turns = sorted(assignments, key=lambda a: (a.name != BROKEN_CHAPTER, turns[a.name]))
        for chapter, assignment in enumerate(by_turns[: len(by_turns) // 2]):
            self.answers[assignment.name] = handed_in(assignment, chapter)
            self.hand_in(assignment, "mixed", self.answers[assignment.name])
        broken = self.assignments[BROKEN_CHAPTER]
        self.hand_in(broken, "broken", {name: broken.solution(name) for name in broken.exercises})
        self.break_cells(self.submission(broken, "broken"))
        self.nbgrader(
            *(["generate_assignment", name] for name in self.assignments),
            *(["autograde", name] for name in self.answers),
            ["generate_feedback", BROKEN_CHAPTER],
            ["export", "--to", "grades.csv"],
        )

    def hand_in(self, assignment, student, answers):
        target = self.submission(assignment, student)
        shutil.copytree(assignment.handout, target.parent)
        cells = {name: answer.cell for name, answer in answers.items()}
        nbformat.write(assignment.notebook(cells), target)
        for name, file in assignment.files(*answers.values()).items():
            (target.parent / name).write_bytes(file.data)

    def break_cells(self, path):
        notebook = nbformat.read(path, as_version=4)
        for exercise, source in BROKEN.items():
            cell_of(notebook, exercise).source = source
        nbformat.write(notebook, path)

    def submission(self, assignment, student):
        return self.folder / "submitted" / student / assignment.name / assignment.notebook_name

    def nbgrader(self, *commands):
        finished = subprocess.run(
            [sys.executable, "-c", COMMANDS, json.dumps(commands)],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
        )
        assert finished.returncode == 0, finished.stderr[-3000:]

    def grades(self, name, student):
        """What an exercise earned and could earn, in the gradebook; words count nowhere here."""
        database = f"sqlite:///{self.folder / 'gradebook.db'}"
        with Gradebook(database, "attention_from_the_ground_up") as gradebook:
            submission = gradebook.find_submission(name, student)
            return {
                grade.name.removesuffix(CHECK_SUFFIX): (grade.score, grade.max_score)
                for notebook in submission.notebooks
                for grade in notebook.grades
                if grade.max_score or grade.needs_manual_grade
            }

    def feedback(self, student):
        folder = self.folder / "feedback" / student / BROKEN_CHAPTER
        return " ".join(next(folder.glob("*.html")).read_text().split())

    def each_answer(self):
        """Give every answer with what it earned in the gradebook and could have earned."""
        for name, answers in self.answers.items():
            assignment, grades = self.assignments[name], self.grades(name, "mixed")
            assert set(grades) == set(assignment.exercises)
            for exercise, answer in answers.items():
                yield assignment, answer, *grades[exercise]

    def self_checked(self, assignment, answer):
        """Check an answer beside the files of the notebook that it is in."""
        files = assignment.files(*self.answers[assignment.name].values())
        subject = LocalSubject(answer.namespace, files=files)
        return run_checks(assignment.handout, answer.exercise, subject)


@pytest.fixture(scope="module")
def classroom(every_assignment, root, tmp_path_factory):
    """Every chapter, released with stock commands, and half of them handed in and graded."""
    return Classroom(every_assignment, root, tmp_path_factory.mktemp("class"))


def test_generate_assignment_makes_the_committed_exercises(classroom, root):
    for name in classroom.assignments:
        made, kept = classroom.folder / "exercises" / name, root / "exercises" / name
        assert {p.name: p.read_bytes() for p in made.iterdir()} == {
            p.name: p.read_bytes() for p in kept.iterdir() if p.is_file()
        }


def test_every_kind_of_answer_is_handed_in_everywhere(classroom):
    for name, answers in classroom.answers.items():
        assignment = classroom.assignments[name]
        kinds = {
            "mistake"
            if answer in assignment.mistakes
            else "variant"
            if answer in assignment.variants
            else answer.name
            for answer in answers.values()
        }
        assert kinds == {"Solution", "mistake", "variant", "Blank"}, name


def test_every_answer_scores_in_the_gradebook_what_its_self_check_showed(classroom):
    for assignment, answer, score, _ in classroom.each_answer():
        report = classroom.self_checked(assignment, answer)
        assert score == report.earned, f"{assignment.name}: {answer.exercise} {answer.name}"


def test_mistakes_lose_points_and_nothing_else_does(classroom):
    for assignment, answer, score, points in classroom.each_answer():
        where = f"{assignment.name}: {answer.exercise} {answer.name}"
        if answer.name == "Blank":
            assert score == 0, where
        elif answer in assignment.mistakes:
            assert score < points, where
        else:
            assert score == points, where


def test_broken_cells_cost_their_own_exercise_only(classroom):
    for exercise, (score, points) in classroom.grades(BROKEN_CHAPTER, "broken").items():
        assert (score < points) if exercise in BROKEN else (score == points), exercise


def test_broken_cells_are_explained_in_the_self_check_and_in_the_feedback(classroom):
    found = check_notebook(classroom.submission(classroom.assignments[BROKEN_CHAPTER], "broken"))
    told = {report.exercise: report.to_text() for report in found.reports}
    recorded = classroom.grades(BROKEN_CHAPTER, "broken")
    earned = {exercise: score for exercise, (score, _) in recorded.items()}
    assert {report.exercise: report.earned for report in found.reports} == earned
    feedback = classroom.feedback("broken")
    for exercise, message in BROKEN_MESSAGES.items():
        assert message in " ".join(told[exercise].split()), told[exercise]
        assert message.split("`")[0].strip() in feedback
    assert any("SyntaxError" in error for error in found.errors)


def test_a_mistake_is_named_in_the_feedback(classroom):
    mistakes = classroom.assignments[BROKEN_CHAPTER].mistakes
    handed_in = [a for a in classroom.answers[BROKEN_CHAPTER].values() if a in mistakes]
    assert len(handed_in) > 1
    for answer in handed_in:
        assert f"“{answer.title}”" in classroom.feedback("mixed")


def test_the_grades_are_exported(classroom):
    with (classroom.folder / "grades.csv").open() as file:
        rows = {(row["assignment"], row["student_id"]): row for row in csv.DictReader(file)}
    assert (BROKEN_CHAPTER, "broken") in rows
    for name in classroom.answers:
        earned = sum(score for score, _ in classroom.grades(name, "mixed").values())
        assert float(rows[name, "mixed"]["score"]) == earned > 0
