"""A class graded with stock nbgrader commands gets the scores that its self-checks showed."""

import csv
import itertools
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook

from classroom.notebooks import CHECK_SUFFIX
from classroom.selfcheck import run_checks
from classroom.subjects import LocalSubject
from classroom.terminal import check_notebook

pytestmark = pytest.mark.slow

THOROUGHLY = "01_attention"
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
    "raw_scores": "should be a tensor, it is a list",
    "mended_attention": "output holds NaN",
    "project_after_mixing": "Is there a loop that does not end?",
}


def packs(answers):
    """Share answers out over as few notebooks as possible, one per exercise in each."""
    by_exercise = defaultdict(list)
    for answer in answers:
        by_exercise[answer.exercise].append(answer)
    number = max(map(len, by_exercise.values()))
    return [
        {name: found[i] for name, found in by_exercise.items() if i < len(found)}
        for i in range(number)
    ]


class Classroom:
    """A copy of the course in which several kinds of student have handed in one chapter.

    In chapter 01 there is one for every mistake and every variant; in the others two, because what
    is asked here is whether nbgrader and the self-check agree, and each takes ten seconds.
    """

    def __init__(self, assignment, root: Path, folder: Path):
        self.assignment = assignment
        self.folder = folder
        for name in ("solutions", "exercises", "nbgrader_config.py"):
            copy = shutil.copytree if (root / name).is_dir() else shutil.copy
            copy(root / name, folder / name)
        thorough = assignment.name == THOROUGHLY
        solution = {name: assignment.solution(name) for name in assignment.exercises}
        blank = {name: assignment.blank(name) for name in assignment.exercises}
        mistakes, variants = packs(assignment.mistakes), packs(assignment.variants)
        self.answers = {"solution": solution}
        if thorough:
            self.answers["blank"] = blank
            for kind, found in (("mistakes", mistakes), ("variants", variants)):
                for i, pack in enumerate(found):
                    self.answers[f"{kind}_{i:02}"] = {**solution, **pack}
        else:
            kinds = itertools.cycle([mistakes[0], variants[0], blank])
            self.answers["mixed"] = {
                name: kind[name] for name, kind in zip(assignment.exercises, kinds, strict=False)
            }
        for student, answers in self.answers.items():
            self.hand_in(student, {name: answer.cell for name, answer in answers.items()})
        if thorough:
            cells = {name: answer.cell for name, answer in solution.items()}
            self.hand_in("broken", {**cells, **BROKEN})
        self.nbgrader("generate_assignment", assignment.name)
        self.nbgrader("autograde", assignment.name)

    def hand_in(self, student, cells):
        target = self.folder / "submitted" / student / self.assignment.name
        shutil.copytree(self.assignment.handout, target)
        notebook = self.assignment.notebook(cells)
        nbformat.write(notebook, target / self.assignment.notebook_name)

    def submission(self, student):
        folder = self.folder / "submitted" / student / self.assignment.name
        return folder / self.assignment.notebook_name

    def nbgrader(self, *args):
        finished = subprocess.run(
            [sys.executable, "-m", "nbgrader", *args],
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert finished.returncode == 0, finished.stderr[-3000:]

    def scores(self, student):
        """Points per exercise in the gradebook."""
        database = f"sqlite:///{self.folder / 'gradebook.db'}"
        with Gradebook(database, "attention_from_the_ground_up") as gradebook:
            submission = gradebook.find_submission(self.assignment.name, student)
            return {
                grade.name.removesuffix(CHECK_SUFFIX): grade.score
                for notebook in submission.notebooks
                for grade in notebook.grades
            }


@pytest.fixture(scope="module")
def classroom(every_assignment, root, tmp_path_factory):
    """Chapter 01, released, handed in and graded with four stock commands."""
    assignment = next(a for a in every_assignment if a.name == THOROUGHLY)
    graded = Classroom(assignment, root, tmp_path_factory.mktemp("class"))
    graded.nbgrader("generate_feedback", assignment.name)
    graded.nbgrader("export", "--to", "grades.csv")
    return graded


@pytest.fixture(scope="module")
def classrooms(classroom, every_assignment, root, tmp_path_factory):
    """Every chapter, graded."""
    others = [a for a in every_assignment if a.name != THOROUGHLY]
    return [classroom, *(Classroom(a, root, tmp_path_factory.mktemp("class")) for a in others)]


def test_generate_assignment_makes_the_committed_exercises(classrooms, root):
    for classroom in classrooms:
        made = classroom.folder / "exercises" / classroom.assignment.name
        kept = root / "exercises" / classroom.assignment.name
        assert {p.name: p.read_bytes() for p in made.iterdir()} == {
            p.name: p.read_bytes() for p in kept.iterdir() if p.is_file()
        }


def test_every_answer_scores_in_the_gradebook_what_its_self_check_showed(classrooms):
    for classroom in classrooms:
        scores_are_those_of_the_self_check(classroom)


def scores_are_those_of_the_self_check(classroom):
    shown = {}
    for student, answers in classroom.answers.items():
        recorded = classroom.scores(student)
        assert set(recorded) == set(classroom.assignment.exercises)
        for exercise, answer in answers.items():
            if (exercise, answer.name) not in shown:
                subject = LocalSubject(answer.namespace)
                report = run_checks(classroom.assignment.handout, exercise, subject)
                shown[exercise, answer.name] = report.earned
            expected = shown[exercise, answer.name]
            assert recorded[exercise] == expected, f"{student}: {exercise} {answer.name}"


def test_mistakes_lose_points_and_nothing_else_does(classrooms):
    for classroom in classrooms:
        only_mistakes_lose_points(classroom)


def only_mistakes_lose_points(classroom):
    full = classroom.scores("solution")
    mistakes = {(mistake.exercise, mistake.name) for mistake in classroom.assignment.mistakes}
    for student, answers in classroom.answers.items():
        scores = classroom.scores(student)
        for exercise, answer in answers.items():
            score = scores[exercise]
            if answer.name == "Blank":
                assert score == 0
            elif (exercise, answer.name) in mistakes:
                assert score < full[exercise], f"{exercise}: {answer.name}"
            else:
                assert score == full[exercise], f"{exercise}: {answer.name}"


def test_broken_cells_cost_their_own_exercise_only(classroom):
    full, scores = classroom.scores("solution"), classroom.scores("broken")
    for exercise, points in full.items():
        if exercise not in BROKEN:
            assert scores[exercise] == points
        else:
            assert scores[exercise] < points


def test_broken_cells_are_explained_in_the_self_check_and_in_the_feedback(classroom):
    found = check_notebook(classroom.submission("broken"))
    told = {report.exercise: report.to_text() for report in found.reports}
    recorded = classroom.scores("broken")
    assert {report.exercise: report.earned for report in found.reports} == recorded
    folder = classroom.folder / "feedback" / "broken" / classroom.assignment.name
    feedback = next(folder.glob("*.html")).read_text()
    for exercise, message in BROKEN_MESSAGES.items():
        assert message in " ".join(told[exercise].split()), told[exercise]
        assert message.split("`")[0].strip() in " ".join(feedback.split())
    assert any("SyntaxError" in error for error in found.errors)


def test_a_mistake_is_named_in_the_feedback(classroom):
    folder = classroom.folder / "feedback" / "mistakes_00" / classroom.assignment.name
    feedback = " ".join(next(folder.glob("*.html")).read_text().split())
    for answer in classroom.answers["mistakes_00"].values():
        assert f"“{answer.title}”" in feedback


def test_the_grades_are_exported(classroom):
    with (classroom.folder / "grades.csv").open() as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    assert set(rows) == {*classroom.answers, "broken"}
    assert float(rows["solution"]["score"]) == float(rows["solution"]["max_score"])
    assert float(rows["blank"]["score"]) == 0
