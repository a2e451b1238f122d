"""A class is graded, a person gives points, the checks are mended, and it is graded again."""

import csv
import io
import json
import re
import shutil
import zipfile

import nbformat
import pytest
from nbgrader.api import Gradebook

from classroom.__main__ import main
from classroom.author.notebooks import build_notebook, cell_of, write_notebook

pytestmark = pytest.mark.slow

NAME = "07_averages"
RIGHT = {
    "centre": "def centre(x):\n    return x - x.mean(dim=0)\n",
    "twice": "def twice(number):\n    return 2 * number\n",
}
WRONG = {
    "centre": "def centre(x):\n    return x\n",
    "twice": "def twice(number):\n    return number ** 2\n",
}


@pytest.fixture
def classroom(here, course, monkeypatch, capsys):
    """Run a command in the course's folder; return what it printed."""
    solutions, handout = course / "solutions" / NAME, course / "exercises" / NAME
    shutil.copytree(solutions, handout)
    notebook = build_notebook(solutions)
    write_notebook(notebook, solutions / "averages.ipynb")
    write_notebook(notebook, handout / "averages.ipynb")
    monkeypatch.chdir(course)

    def run(*args, status=0):
        assert main(list(args)) == status
        said = capsys.readouterr()
        return said.out + said.err

    return run


@pytest.fixture
def hand_in(course, classroom):
    def write(student, answers):
        notebook = nbformat.read(course / "exercises" / NAME / "averages.ipynb", as_version=4)
        for name, source in answers.items():
            cell_of(notebook, name).source = source
        folder = course / "submitted" / student / NAME
        folder.mkdir(parents=True)
        nbformat.write(notebook, folder / "averages.ipynb")

    return write


def points(course):
    lines = (course / "graded" / NAME / "verdicts.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [(v["student"], [r["earned"] for r in v["reports"]]) for v in found]


def test_a_class_is_graded_again_after_a_check_was_mended(course, classroom, hand_in):
    hand_in("ada", RIGHT)
    hand_in("bo", {**RIGHT, "twice": WRONG["twice"]})
    hand_in("=cy()", WRONG)
    said = classroom("grade", NAME, "--feedback")
    assert "earlier scores" not in said
    pages = sorted(path.parent.parent.name for path in course.glob("feedback/*/*/averages.html"))
    assert pages == ["=cy()", "ada", "bo"]
    page = (course / "feedback" / "bo" / NAME / "averages.html").read_text()
    assert "3 of 5 points" in page and "This is the mistake “squared”" in page
    seed = json.loads(next((course / "graded" / NAME).glob("run-*.json")).read_text())["seed"]
    assert seed not in page

    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        names = ("averages", NAME, "bo")
        gradebook.find_grade("centre-check", *names).manual_score = 1.5
        gradebook.find_comment("centre", *names).manual_comment = "Look again."
        gradebook.db.commit()

    # Nothing is new to grade, and yet pages and scores follow.
    shutil.rmtree(course / "feedback")
    said = classroom("grade", NAME, "--feedback")
    assert "0 graded now" in said and re.search(r"bo +1.5 +0 +1.5 of 5", said)
    page = (course / "feedback" / "bo" / NAME / "averages.html").read_text()
    assert "1.5 of 5 points" in page and len(list(course.glob("feedback/*/*/*.html"))) == 3
    scores = (course / "graded" / NAME / "scores.csv").read_text()
    assert '"bo",1.5,0,0,1.5,5,' in scores

    # Squaring is what was meant all along.
    checks = course / "exercises" / NAME / "checks.py"
    checks.write_text(checks.read_text().replace("return n + n", "return n * n"))
    # Of one exercise, for one student.
    said = classroom("grade", NAME, "--student", "bo", "--exercise", "7.2", "--feedback")
    assert "bo       twice          0  ->      2" in said
    assert points(course)[-1] == ("bo", [3, 2]) and len(points(course)) == 4
    page = (course / "feedback" / "bo" / NAME / "averages.html").read_text()
    assert "3.5 of 5 points" in page and "Look again." in page

    # Everybody: whoever was graded in part is graded in whole.
    said = classroom("grade", NAME)
    assert "3 graded now" in said
    tables = (course / "graded" / NAME).glob("changes-*.csv")
    last = max(tables, key=lambda path: path.stat().st_mtime).read_text()
    assert list(csv.reader(io.StringIO(last)))[1:] == [
        ["'=cy()", "twice", "0", "2"],
        ["'=cy()", "total", "0", "2"],
        ["ada", "twice", "2", "0"],
        ["ada", "total", "5", "3"],
    ]
    assert "0 graded now" in classroom("grade", NAME)
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        assert gradebook.find_submission(NAME, "bo").score == 3.5
        comment = gradebook.find_comment("centre", "averages", NAME, "bo")
        assert comment.comment == "Look again."

    assert "no two submissions look alike" in classroom("similarity", NAME)
    said = classroom("report", NAME)
    assert "1 × not moved: The rows are returned as they came." in said
    assert {"summary.html", "summary.svg"} <= {p.name for p in (course / "graded" / NAME).iterdir()}
    assert f"no submission of {NAME} by nobody" in classroom(
        "grade", NAME, "--student", "nobody", status=2
    )
    said = classroom("grade", NAME, "--exercise", "thrice", status=2)
    assert "has no exercise thrice; it has 7.1 centre, 7.2 twice" in said
    assert "wrote 1 page" in classroom("feedback", NAME, "--student", "ada")

    (course / "submitted" / "ada" / NAME / "averages.ipynb").write_text("{")
    classroom("grade", NAME)
    said = classroom("report", NAME)
    assert said.startswith(f"{NAME}: 2 graded submissions, and 1 that could not be\n")


def test_a_class_from_moodle_is_graded_and_returned_with_its_absentees(course, classroom):
    """Its people, grades and pages go back as they came; a name is the same everywhere."""
    notebook = nbformat.read(course / "exercises" / NAME / "averages.ipynb", as_version=4)
    for name, source in RIGHT.items():
        cell_of(notebook, name).source = source
    with zipfile.ZipFile(course / "uploads.zip", "w") as archive:
        folder = "Bo van_der Berg_97_assignsubmission_file_"
        archive.writestr(f"{folder}/averages.ipynb", nbformat.writes(notebook))
    worksheet = (
        'Identifier,"Full name","Email address",Grade,"Maximum grade","Last modified (grade)"\n'
        '"Participant 97","Bo van_der Berg",bo@x.org,,5.00,-\n'
        '"Participant 53","Cy Twombly",cy@x.org,,5.00,-\n'
    )
    (course / "class.csv").write_text(worksheet)
    classroom("collect", "uploads.zip", "--assignment", NAME)
    assert "updated in the gradebook: 2" in classroom("roster", "class.csv")
    classroom("grade", NAME)
    scores = (course / "graded" / NAME / "scores.csv").read_text().splitlines()
    assert scores[1].startswith('"Bo van_der Berg",3,2,0,5,5,')
    assert scores[2] == '"Cy Twombly",0,0,0,0,5,"","nothing was submitted"'
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        found = {s.id: (s.last_name, s.email, s.lms_user_id) for s in gradebook.students}
    assert found["Bo van_der Berg"] == ("Bo van_der Berg", "bo@x.org", "97")

    said = classroom("return", NAME, "--to", "moodle", "--roster", "class.csv", "--zeros")
    assert "1 of 2 people have a grade" in said and "1 pages of feedback" in said
    kept = course / "graded" / NAME
    filled = worksheet.replace("bo@x.org,", "bo@x.org,5").replace("cy@x.org,", "cy@x.org,0")
    assert (kept / "grades_moodle.csv").read_text() == filled.replace('"', "")
    with zipfile.ZipFile(kept / "feedback_moodle.zip") as archive:
        (name,) = archive.namelist()
        assert name == "Bo van der Berg_97_assignfeedback_file_/averages.html"
        assert b"5 of 5 points" in archive.read(name)
    said = classroom("return", NAME, "--to", "canvas", "--roster", "class.csv", status=2)
    assert "class.csv comes from Moodle: use --to moodle" in said
