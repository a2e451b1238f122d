"""A class is graded, a person gives points, the checks are mended, and it is graded again."""

import csv
import io
import json
import shutil

import nbformat
import pytest
from nbgrader.api import Gradebook

from classroom.__main__ import main
from classroom.notebooks import build_notebook, cell_of, write_notebook

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
def classroom(sealed, course, monkeypatch, capsys):
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

    # Squaring is what was meant all along.
    checks = course / "exercises" / NAME / "checks.py"
    checks.write_text(checks.read_text().replace("lambda n: n + n", "lambda n: n * n"))
    # Of one exercise, for one student.
    said = classroom("grade", NAME, "--student", "bo", "--exercise", "twice", "--feedback")
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
        ["'=cy()", "together", "0", "2"],
        ["ada", "twice", "2", "0"],
        ["ada", "together", "5", "3"],
    ]
    assert "0 graded now" in classroom("grade", NAME)
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        assert gradebook.find_submission(NAME, "bo").score == 3.5
        comment = gradebook.find_comment("centre", "averages", NAME, "bo")
        assert comment.comment == "Look again."

    said = classroom("report", NAME)
    assert "1 × not moved: The rows are returned as they came." in said
    assert {"summary.html", "summary.svg"} <= {p.name for p in (course / "graded" / NAME).iterdir()}
    assert "handed in by nobody" in classroom("grade", NAME, "--student", "nobody", status=2)
    assert "has no exercise thrice" in classroom("grade", NAME, "--exercise", "thrice", status=2)
    assert "wrote 1 page" in classroom("feedback", NAME, "--student", "ada")
