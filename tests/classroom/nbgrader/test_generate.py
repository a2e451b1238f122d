"""Exercises come, go and change while a class is at work, in a real nbgrader database."""

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import nbformat
import pytest
from nbgrader.api import Gradebook
from nbgrader.converters import Autograde
from nbgrader.utils import determine_grade

from classroom.author.notebooks import build_notebook, cell_of, write_notebook
from classroom.author.release import nbgrader_config
from classroom.exercise.report import CheckResult, Report
from classroom.grader.verdicts import Verdict
from classroom.nbgrader.autograde import OnlyCounted
from classroom.nbgrader.gradebook import GradebookWriter

pytestmark = pytest.mark.slow

NAME = "07_averages"
NOON = datetime(2026, 3, 5, 12, tzinfo=UTC)


def rebuild(course):
    folder = course / "solutions" / NAME
    write_notebook(build_notebook(folder), folder / "averages.ipynb")


def replaced(path, *changes):
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def halve_instead_of_double(course):
    """The exercise `twice` goes, `half` for 4 points comes, and `centre` is worth 5."""
    folder = course / "solutions" / NAME
    replaced(folder / "averages.py", ("twice", "half"))
    checks = folder / "checks.py"
    replaced(checks, ('"twice"', '"half"'))
    points = iter(("@points(1)", "@points(4)", "@points(4)"))
    pieces = [line if "@points(" not in line else f"    {next(points)}" for line in lines(checks)]
    checks.write_text("\n".join(pieces) + "\n")
    rebuild(course)


def lines(path):
    return path.read_text().splitlines()


@pytest.fixture(scope="module")
def known_course(make_course, tmp_path_factory):
    """A course whose gradebook knows the assignment."""
    root = make_course(tmp_path_factory.mktemp("known") / "course")
    rebuild(root)
    with GradebookWriter(root, NAME, "averages"):
        return root


@pytest.fixture
def course(known_course, tmp_path):
    """Ada and Bo are graded, Ada late; a person gave points, extra credit and comments."""
    course = shutil.copytree(known_course, tmp_path / "course")
    with (course / "nbgrader_config.py").open("a") as config:
        config.write('\nc.LateSubmissionPlugin.penalty_method = "zero"\n')
    with opened(course) as gradebook:
        gradebook.update_or_create_assignment(NAME, duedate=NOON - timedelta(hours=1))
    notebook = nbformat.read(course / "solutions" / NAME / "averages.ipynb", as_version=4)
    with GradebookWriter(course, NAME, "averages") as writer:
        writer.write(verdict("ada", NOON, centre=1, twice=2), notebook)
        writer.write(verdict("bo", NOON - timedelta(hours=7), centre=3, twice=0), notebook)
    with opened(course) as gradebook:
        names = ("averages", NAME)
        gradebook.find_grade("centre-check", *names, "bo").manual_score = 2.5
        gradebook.find_grade("centre-check", *names, "bo").extra_credit = 0.25
        gradebook.find_comment("centre", *names, "bo").manual_comment = "Nearly."
        gradebook.find_comment("twice", *names, "ada").manual_comment = "Well done."
        gradebook.db.commit()
    return course


def opened(course, name="gradebook.db"):
    return Gradebook(f"sqlite:///{course / name}", "attention_from_the_ground_up")


def verdict(student, received, **earned):
    most = {"centre": 3, "twice": 2, "half": 4}
    reports = tuple(
        Report(name, f"7.1 {name}", (CheckResult("check", most[name], points),))
        for name, points in earned.items()
    )
    return Verdict(
        assignment=NAME, student=student, key="key", reports=reports, received=received.isoformat()
    )


def nbgrader(course, *command):
    return subprocess.run(
        [sys.executable, "-m", "nbgrader", *command, NAME],
        cwd=course,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def by_classroom(course):
    with GradebookWriter(course, NAME, "averages"):
        pass


def by_nbgrader(course):
    finished = nbgrader(course, "generate_assignment")
    assert finished.returncode == 0, finished.stderr[-2000:]


@pytest.mark.parametrize("bring_up_to_date", [by_classroom, by_nbgrader])
def test_exercises_come_go_and_change_points_and_what_people_gave_stays(course, bring_up_to_date):
    halve_instead_of_double(course)
    bring_up_to_date(course)
    with opened(course) as gradebook:
        notebook = gradebook.find_notebook("averages", NAME)
        assert {c.name: c.max_score for c in notebook.grade_cells} == {
            "centre-check": 5,
            "half-check": 4,
        }
        assert {c.name for c in notebook.solution_cells} == {"centre", "half"}
        assert gradebook.find_assignment(NAME).duedate == datetime(2026, 3, 5, 11)
        names = ("averages", NAME, "bo")
        grade = gradebook.find_grade("centre-check", *names)
        assert (grade.auto_score, grade.manual_score, grade.extra_credit) == (3, 2.5, 0.25)
        assert gradebook.find_comment("centre", *names).comment == "Nearly."
        submission = gradebook.find_submission(NAME, "bo")
        assert (submission.score, submission.max_score) == (2.75, 9)
        assert gradebook.find_submission(NAME, "ada").late_submission_penalty == 3
        for student in ("ada", "bo"):
            assert gradebook.find_grade("half-check", "averages", NAME, student).score == 0
            assert not gradebook.find_comment("half", "averages", NAME, student).comment
    # The comment that went with its exercise is in a copy.
    (copy,) = course.glob("gradebook.db.*")
    with opened(course, copy.name) as gradebook:
        assert gradebook.find_comment("twice", "averages", NAME, "ada").comment == "Well done."

    new = nbformat.read(course / "solutions" / NAME / "averages.ipynb", as_version=4)
    with GradebookWriter(course, NAME, "averages") as writer:
        writer.write(verdict("bo", NOON - timedelta(hours=7), centre=3, half=4), new)
        grades = writer.grades("bo")
    assert (grades.earned, grades.points) == (6.75, 9)
    assert len(list(course.glob("gradebook.db.*"))) == 1


def test_a_submission_that_lacks_a_grade_gets_it_back(course):
    """As after a crash of something else that wrote to the gradebook."""
    with opened(course) as gradebook:
        gradebook.db.delete(gradebook.find_grade("twice-check", "averages", NAME, "ada"))
        gradebook.db.commit()
    by_classroom(course)
    with opened(course) as gradebook:
        assert gradebook.find_grade("twice-check", "averages", NAME, "ada").score == 0
        assert gradebook.find_submission(NAME, "bo").score == 2.75
    assert not list(course.glob("gradebook.db.*"))


@pytest.mark.parametrize(
    "broken",
    ["no notebook", '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5, "x": 1}'],
)
def test_a_release_that_fails_leaves_the_handout_as_it_was(course, broken):
    by_nbgrader(course)
    handout = course / "exercises" / NAME
    before = {path.name: path.read_bytes() for path in handout.iterdir()}
    assert {"averages.ipynb", "checks.py"} <= before.keys()
    (course / "solutions" / NAME / "averages.ipynb").write_text(broken)
    (course / "solutions" / NAME / "checks.py").write_text("def f(:")
    assert nbgrader(course, "generate_assignment").returncode != 0
    assert {path.name: path.read_bytes() for path in handout.iterdir()} == before
    assert not list(course.glob(".release-*"))


def test_points_that_have_changed_since_are_not_put_on_a_page(course):
    halve_instead_of_double(course)
    with GradebookWriter(course, NAME, "averages") as writer:
        with pytest.raises(ValueError, match="centre is worth 5 points now, and was worth 3 when"):
            writer.write_feedback("bo")
    assert not list(course.glob("feedback/*/*/*.html"))


def test_the_class_has_a_row_for_everybody_as_nbgrader_exports_it(course):
    with opened(course) as gradebook:
        gradebook.add_student("cy", first_name="Cy")
    with GradebookWriter(course, NAME, "averages") as writer:
        found = writer.class_grades()
    ours = {student: (each.earned, each.points, each.penalty) for student, each in found.items()}
    assert ours == {"ada": (0, 5, 3), "bo": (2.75, 5, 0), "cy": (0, 5, 0)}
    assert found["cy"].problem == "nothing was submitted"
    finished = subprocess.run(
        [sys.executable, "-m", "nbgrader", "export"], cwd=course, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    head, *rows = [line.split(",") for line in lines(course / "grades.csv")]
    theirs = [dict(zip(head, row, strict=True)) for row in rows]
    names = ("score", "max_score", "late_submission_penalty")
    assert {r["student_id"]: tuple(float(r[n]) for n in names) for r in theirs} == ours


def test_whoever_lacks_the_secret_of_the_exchange_keeps_no_page_from_others(course, tmp_path):
    with GradebookWriter(course, NAME, "averages") as writer:
        for student in ("ada", "bo"):
            writer.write_feedback(student)
    secret = course / "feedback" / "bo" / NAME / "submission_secret.txt"
    secret.write_text("of the exchange")
    exchange = tmp_path / "exchange"
    exchange.mkdir()
    exchange.chmod(0o777)
    finished = nbgrader(course, "release_feedback", f"--Exchange.root={exchange}")
    assert finished.returncode == 0, finished.stderr[-2000:]
    (released,) = exchange.glob("*/feedback/*.html")
    assert "for bo" in released.read_text()
    assert "ada/07_averages has no submission_secret.txt" in finished.stderr


def count(course, *exercises):
    """Let these exercises count, as an instructor does."""
    settings = (course / "nbgrader_config.py").read_text().partition("\nc.UpdateCells")[0]
    line = f"\nc.UpdateCells.counted = {{'{NAME}': {list(exercises)}}}\n" if exercises else ""
    (course / "nbgrader_config.py").write_text(settings + line)


def test_what_an_instructor_leaves_out_does_not_count_and_may_count_again(course):
    notebook = nbformat.read(course / "solutions" / NAME / "averages.ipynb", as_version=4)
    for listed in ("7.2", "twice"):
        count(course, listed)
        with GradebookWriter(course, NAME, "averages") as writer:
            writer.write(verdict("cy", NOON - timedelta(hours=3), centre=3, twice=1), notebook)
            found = {who: (g.earned, g.points) for who, g in writer.class_grades().items()}
            page = writer.write_feedback("cy").read_text()
        # What a person gave for it stays, as extra credit does; the rest of it is gone.
        assert found == {"ada": (0, 2), "bo": (2.75, 2), "cy": (1, 2)}
        assert "1 of 2 points" in page and "3 of 3 points, which do not count" in page
        with opened(course) as gradebook:
            assert gradebook.find_assignment(NAME).max_score == 2
            assert gradebook.find_submission(NAME, "ada").late_submission_penalty == 2
    count(course)
    with GradebookWriter(course, NAME, "averages") as writer:
        found = {who: (g.earned, g.points, g.penalty) for who, g in writer.class_grades().items()}
    assert found == {"ada": (0, 5, 3), "bo": (2.75, 5, 0), "cy": (4, 5, 0)}


def test_an_exercise_that_is_not_there_cannot_count(course):
    count(course, "7.2", "7.9")
    finished = nbgrader(course, "generate_assignment")
    assert finished.returncode != 0
    assert f"{NAME} has no exercise 7.9 that could count" in finished.stderr


def test_the_handout_does_not_depend_on_what_counts(course):
    by_nbgrader(course)
    handout = course / "exercises" / NAME / "averages.ipynb"
    before = handout.read_bytes()
    count(course, "7.2")
    by_nbgrader(course)
    assert handout.read_bytes() == before


@pytest.mark.slow
def test_a_course_of_the_core_hands_out_and_grades_what_stands_above_the_line(course):
    rebuild(course)
    with (course / "nbgrader_config.py").open("a") as config:
        config.write("\nc.UpdateCells.core = True\n")
    by_nbgrader(course)
    handout = course / "exercises" / NAME
    released = nbformat.read(handout / "averages.ipynb", as_version=4)
    names = [cell.metadata.get("nbgrader", {}).get("grade_id") for cell in released.cells]
    assert names[-3:] == ["centre", "centre-check", None], "it ends above the line"
    with opened(course) as gradebook:
        assert gradebook.find_assignment(NAME).max_score == 3
    # A notebook of the core, and one of a student who was given the whole of it.
    whole = nbformat.read(course / "solutions" / NAME / "averages.ipynb", as_version=4)
    for student, notebook in (("dan", released), ("eva", whole)):
        shutil.copytree(handout, course / "submitted" / student / NAME)
        cell_of(notebook, "centre").source = "def centre(x):\n    return x - x.mean(dim=0)"
        nbformat.write(notebook, course / "submitted" / student / NAME / "averages.ipynb")
    finished = nbgrader(course, "autograde")
    assert finished.returncode == 0, finished.stderr[:9000]
    with opened(course) as gradebook:
        for student in ("dan", "eva"):
            submission = gradebook.find_submission(NAME, student)
            assert (submission.score, submission.max_score) == (3, 3)


def test_open_grading_sets_the_score_of_what_does_not_count_before_nbgrader_saves_it(course):
    config = nbgrader_config(course)
    config.CourseDirectory.root = str(course)
    chosen = [getattr(p, "__name__", p) for p in Autograde(config=config).autograde_preprocessors]
    at = chosen.index("classroom.nbgrader.autograde.OnlyCounted")
    assert chosen[at - 1 : at + 2 : 2] == ["LimitOutput", "SaveAutoGrades"]
    notebook = nbformat.read(course / "solutions" / NAME / "averages.ipynb", as_version=4)
    (cell,) = (c for c in notebook.cells if c.get("id") == "centre-check")
    cell.outputs = [nbformat.v4.new_output("execute_result", {"text/plain": "3"})]
    OnlyCounted().preprocess_cell(cell, None, 0)
    assert determine_grade(cell) == (3, 3)
    cell.metadata.nbgrader.points = 0
    with pytest.raises(ValueError, match="cannot be greater"):
        determine_grade(cell)
    OnlyCounted().preprocess_cell(cell, None, 0)
    assert determine_grade(cell) == (0, 0)
