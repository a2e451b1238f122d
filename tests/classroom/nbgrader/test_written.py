"""Written answers, which a person grades: from the author's text to the grade that goes back."""

import csv
import zipfile

import nbformat
import pytest
from nbgrader.api import Gradebook

from classroom.__main__ import main
from classroom.author.notebooks import cell_of
from classroom.author.release import ReleaseError, release

pytestmark = pytest.mark.slow

NAME = "07_averages"
QUESTION = """
# %% [markdown]
# {{question why_zero}}
#
# Why is the mean zero afterwards?

# %% [markdown] written="why_zero" points=4
# **What earns the points:** the mean is linear.
"""
RIGHT = {
    "centre": "def centre(x):\n    return x - x.mean(dim=0)",
    "twice": "def twice(number):\n    return 2 * number",
}
WORKSHEET = """\
Identifier,Full name,Email address,Grade,Maximum Grade
Participant 11,Ada One,ada@example.org,,100
Participant 13,Bob Two,bob@example.org,,100
"""


@pytest.fixture
def asks(course, assignment):
    """The course, with a written question in its notebook."""
    text = assignment / "averages.py"
    text.write_text(text.read_text() + QUESTION)
    return course


@pytest.fixture
def counts(asks):
    """The same, where written answers count."""
    config = asks / "nbgrader_config.py"
    config.write_text(f"{config.read_text()}\nc.UpdateCells.written = True\n")
    return asks


def hand_in(course):
    """Let Ada write two sentences, and Bob none; both have right code."""
    with zipfile.ZipFile(course / "uploads.zip", "w") as archive:
        answers = {"Ada One_11": "The mean is linear.", "Bob Two_13": None}
        for student, words in answers.items():
            notebook = nbformat.read(course / "exercises" / NAME / "averages.ipynb", as_version=4)
            for name, source in RIGHT.items():
                cell_of(notebook, name).source = source
            if words:
                cell_of(notebook, "why_zero").source = words
            path = f"{student}_assignsubmission_file/averages.ipynb"
            archive.writestr(path, nbformat.writes(notebook))
    (course / "worksheet.csv").write_text(WORKSHEET)


def run(course, capsys, *command, status=0):
    found = main([*command, "--root", str(course)])
    printed = capsys.readouterr()
    assert found == status, printed.err
    return printed.out + printed.err


def scores(course):
    with (course / "graded" / NAME / "scores.csv").open() as file:
        return {row["student"]: row for row in csv.DictReader(file)}


def test_a_rubric_is_not_handed_out_and_a_self_check_counts_no_words(asks, capsys):
    release(asks)
    folder = asks / "exercises" / NAME
    notebook = nbformat.read(folder / "averages.ipynb", as_version=4)
    assert cell_of(notebook, "why_zero").source == "YOUR ANSWER HERE"
    assert notebook.cells[-2].source.startswith("## In your own words\n\nOptional · 4 points if")
    assert not any(b"the mean is linear" in file.read_bytes() for file in folder.iterdir())
    assert main(["check", str(folder)]) == 1
    assert "0 of 5 points" in capsys.readouterr().out


def test_what_a_person_gives_is_in_the_scores_on_the_page_and_in_the_grades(
    counts, capsys, here, monkeypatch
):
    monkeypatch.chdir(counts)
    release(counts)
    hand_in(counts)
    run(counts, capsys, "collect", "uploads.zip", "--assignment", NAME)
    told = run(counts, capsys, "grade", NAME, "--feedback")
    assert "5 of 9  no remarks, 1 still to grade" in told
    ada, bob = sorted(scores(counts))
    before = scores(counts)
    assert (before[ada]["why_zero"], before[bob]["why_zero"]) == ("still to grade", "0")
    assert (before[ada]["earned"], before[ada]["points"]) == ("5", "9")
    page = counts / "feedback" / ada / NAME / "averages.html"
    assert "still to grade" in page.read_text() and "The mean is linear." in page.read_text()

    # As formgrader does it, for whom nbgrader says that there is something to do.
    with Gradebook(f"sqlite:///{counts / 'gradebook.db'}", "attention_from_the_ground_up") as book:
        where = ("why_zero", "averages", NAME)
        assert book.find_grade(*where, ada).needs_manual_grade
        assert not book.find_grade(*where, bob).needs_manual_grade
        grade = book.find_grade(*where, ada)
        grade.manual_score, grade.needs_manual_grade = 3, False
        book.find_comment(*where, ada).manual_comment = "Linear in what?"
        book.db.commit()

    told = run(counts, capsys, "grade", NAME, "--feedback")
    assert "8 of 9" in told and "still to grade" not in told
    assert scores(counts)[ada]["why_zero"] == "3"
    assert "Linear in what?" in page.read_text() and "points given by a person" in page.read_text()
    command = ("return", NAME, "--to", "moodle", "--roster", "worksheet.csv")
    assert "still to grade" not in run(counts, capsys, *command)
    with (counts / "graded" / NAME / "grades_moodle.csv").open(encoding="utf-8-sig") as file:
        grades = {row["Full name"]: float(row["Grade"]) for row in csv.DictReader(file)}
    assert grades["Ada One"] > grades["Bob Two"]


def test_words_count_only_where_the_course_says_so(asks, capsys, here, monkeypatch):
    monkeypatch.chdir(asks)
    release(asks)
    hand_in(asks)
    run(asks, capsys, "collect", "uploads.zip", "--assignment", NAME)
    assert "5 of 5  no remarks\n" in run(asks, capsys, "grade", NAME)
    ada, _ = sorted(scores(asks))
    assert "why_zero" not in scores(asks)[ada]

    def needs(ada):
        with Gradebook(
            f"sqlite:///{asks / 'gradebook.db'}", "attention_from_the_ground_up"
        ) as book:
            return book.find_grade("why_zero", "averages", NAME, ada).needs_manual_grade

    assert not needs(ada)
    # Somebody changes their mind when all are graded.
    config = asks / "nbgrader_config.py"
    config.write_text(f'{config.read_text()}\nc.UpdateCells.counted = {{"{NAME}": ["why_zero"]}}\n')
    run(asks, capsys, "grade", NAME)
    assert needs(ada)
    assert (scores(asks)[ada]["why_zero"], scores(asks)[ada]["points"]) == ("still to grade", "4")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            " points=4",
            "",
            'begins with # %% [markdown] written="why_zero" points=3, got points=None',
        ),
        (
            "# %% [markdown] written",
            "# %% written",
            "a written answer is one cell that begins with",
        ),
        ("# {{question why_zero}}\n", "", "no line {{question why_zero}} heads its answer"),
        ("{{question why_zero}}", "{{question why}}", "no line {{question why_zero}} heads its"),
    ],
)
def test_a_question_that_is_not_whole_is_refused(asks, assignment, old, new, said):
    text = assignment / "averages.py"
    text.write_text(text.read_text().replace(old, new))
    with pytest.raises(ReleaseError) as raised:
        release(asks)
    assert said in str(raised.value)
    assert not (asks / "exercises").exists()
