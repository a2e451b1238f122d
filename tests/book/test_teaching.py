"""The page for instructors: its plans add up, and what it tells them to type works as it says."""

import csv
import datetime
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
import syllabus
import yaml
from books import BOOK, ROOT
from bs4 import BeautifulSoup
from syllabus import Piece

from classroom.__main__ import main
from classroom.author.inventory import inventory
from classroom.author.notebooks import cell_of

PAGE = (BOOK / "teaching.md").read_text(encoding="utf-8")


# Plans


def piece(exercise="", minutes=10, importance=3, deeper=False, chapter="01_one"):
    return Piece(chapter, minutes, exercise, 1 if exercise else 0, importance, deeper)


def test_of_a_chapter_the_page_sees_only_what_it_says_it_sees():
    config = yaml.safe_load((BOOK / "_config.yml").read_text(encoding="utf-8"))
    seen = config["sphinx"]["config"]["seen_through"]
    assert seen == {"teaching": {".md": "syllabus.what_plans_see"}}
    cells = "".join(re.findall(r"^```{code-cell}.*?^```$", PAGE, re.MULTILINE | re.DOTALL))
    assert cells.count("read_text") == 1
    assert cells.count("TEXTS") == 3
    for use in ("TEXTS = {", "syllabus.course(ASSIGNMENTS, TEXTS)", "first_label(TEXTS[chapter])"):
        assert use in cells

    chapter = "---\n---\n(sec-any)=\n# Any\n\n" + "word " * 1200
    assignments = [{"name": "01_one", "exercises": []}]
    minutes, label = syllabus.what_plans_see(chapter)
    core, below = piece(minutes=minutes, importance=5), piece(minutes=5, importance=1, deeper=True)
    texts = {"01_one": chapter, "01_below": "word " * 600, "02_other": chapter}
    assert syllabus.course(assignments, texts) == [core, below]
    assert (minutes, label) == (10, "sec-any")


def test_the_plans_leave_out_an_exercise_of_ones_own_which_has_no_page(tmp_path, monkeypatch):
    (tmp_path / "book").mkdir()
    for page in BOOK.glob("[0-9][0-9]_*.md"):
        (tmp_path / "book" / page.name).symlink_to(page)
    shutil.copytree(
        ROOT / "solutions", tmp_path / "solutions", ignore=shutil.ignore_patterns("*.zip")
    )
    main(["new", "10_averages", "--root", str(tmp_path)])
    monkeypatch.chdir(tmp_path / "book")
    hidden = re.search(r"^:tags: \[remove-cell\]\n(import math.*?)^```$", PAGE, re.M | re.S)[1]
    found = {}
    exec(hidden, found)
    assert {piece.chapter for piece in found["EVERYTHING"]} == set(found["CHAPTERS"])
    assert "10_averages" not in found["CHAPTERS"] and len(found["CHAPTERS"]) == 10


COURSE = [
    piece(minutes=60),
    piece("1.1", 13, 5),
    piece("1.2", 7, 4),
    piece("1.3", 5, 2),
    piece("1.4", 11, 4, deeper=True),
    piece("1.5", 3, 5, deeper=True),
    piece("1.6", 17, 4),
]
"""Together 116 minutes, of which 73 must stay."""


@pytest.mark.parametrize(
    ("minutes", "gone"),
    [
        (116, set()),
        (115, {"1.4"}),
        (105, {"1.4"}),
        (104, {"1.4", "1.5"}),
        (101, {"1.4", "1.5", "1.3"}),
        (96, {"1.4", "1.5", "1.3", "1.6"}),
        (73, {"1.4", "1.5", "1.3", "1.6", "1.2"}),
    ],
)
def test_what_goes_deeper_goes_first_and_then_what_matters_least(minutes, gone):
    kept = syllabus.keep(COURSE, minutes)
    assert kept == [each for each in COURSE if each.exercise not in gone]


def test_deeper_pages_go_before_exercises():
    below = piece(minutes=2, importance=1, deeper=True)
    assert syllabus.keep([COURSE[0], below, *COURSE[1:]], 116) == COURSE


def test_of_equals_the_last_goes_first():
    twins = [piece("1.1"), piece("1.2")]
    assert syllabus.keep(twins, 15) == twins[:1]


def test_a_plan_without_time_for_what_matters_most_is_refused():
    with pytest.raises(ValueError, match="must fit, got minutes=72 for 73 minutes of work"):
        syllabus.keep(COURSE, 72)


def test_weeks_are_even_and_nothing_is_lost_or_moved():
    pieces = [piece(str(number), minutes) for number, minutes in enumerate([9, 1, 4, 6, 3, 7])]
    weeks = syllabus.into_weeks(pieces, 3)
    assert [each for week in weeks for each in week] == pieces
    assert [syllabus.time(week) for week in weeks] == [10, 10, 10]


def test_a_chapter_is_torn_only_where_weeks_would_be_very_unequal():
    def two_chapters(first, second):
        sizes = (("01_one", first), ("02_two", second))
        return [
            piece(number, minutes, chapter=name)
            for name, minutes_of in sizes
            for number, minutes in zip(("", *"abcdefgh"), minutes_of, strict=False)
        ]

    nearly = syllabus.into_weeks(two_chapters([40, 20, 20], [40, 20, 20, 20]), 2)
    assert [{each.chapter for each in week} for week in nearly] == [{"01_one"}, {"02_two"}]
    unequal = syllabus.into_weeks(two_chapters([20, 10], [60] * 5), 2)
    assert [len(week) for week in unequal] == [4, 3]


def test_more_weeks_than_pieces_are_refused():
    with pytest.raises(ValueError, match="got num_weeks=3 for 2 pieces"):
        syllabus.into_weeks(COURSE[:2], 3)


def test_neighbours_are_named_by_the_first_and_the_last_of_them():
    assert syllabus.numbers(COURSE, COURSE) == "1.1–1.6"
    assert syllabus.numbers(COURSE[1:3], COURSE) == "1.1, 1.2"
    assert syllabus.numbers([*COURSE[1:4], *COURSE[5:]], COURSE) == "1.1–1.3, 1.5, 1.6"
    other = [replace(each, chapter="02_two", exercise=f"2{each.exercise}") for each in COURSE[1:]]
    assert syllabus.numbers([*COURSE, *other], [*COURSE, *other]) == "1.1–1.6, 21.1–21.6"


def test_times_are_said_in_hours_and_minutes():
    assert [syllabus.said(minutes) for minutes in (45, 60, 65)] == ["45 min", "1 h", "1 h 05"]


@pytest.mark.parametrize(
    ("more", "minutes"),
    [
        (" word" * 600, 5),
        ("\n\n$$\na = b\n$$" * 5, 5),
        ("\n\n```{quiz}\n* no\n```" * 5, 5),
        ("\n\n```{code-cell}\n" + "x = 1\n" * 60 + "```", 5),
        ("\n\n```{code-cell}\n:tags: [hide-input]\n" + "x = 1\n" * 60 + "```", 0),
        ("\n\n```{code-cell}\n:tags: [remove-cell]\n" + "x = 1\n" * 60 + "```", 0),
        ("\n\n:::{note}\n" + "word " * 600 + "\n:::", 5),
    ],
)
def test_reading_takes_time_by_words_formulas_questions_and_shown_code(more, minutes):
    page = "---\nkernelspec: many words that nobody reads\n---\n# Title\n" + "word " * 1200
    assert syllabus.reading_minutes(page + more) == 10 + minutes


def test_the_plans_on_the_page_name_every_exercise_that_they_keep(site):
    soup = BeautifulSoup((site / "teaching.html").read_text(encoding="utf-8"), "html.parser")
    found = inventory(ROOT)["assignments"]
    everything = [exercise for assignment in found for exercise in assignment["exercises"]]
    for weeks, section in ((12, "twelve-weeks"), (8, "eight-weeks"), (4, "four-weeks")):
        rows = [
            [cell.get_text(" ", strip=True) for cell in row.find_all("td")]
            for row in soup.select(f"section#{section} tbody tr")
        ]
        *plan, sums = rows
        assert [row[0] for row in plan] == [str(week) for week in range(1, weeks + 1)]
        assert sum(int(row[6]) for row in plan) == int(sums[6])
        named = {number for row in plan for number in exercises_of(row[3], everything)}
        assert sums[3] == str(len(named))
        kept = [exercise for exercise in everything if exercise["number"] in named]
        assert sum(exercise["points"] for exercise in kept) == int(sums[6])
        assert kept == everything or weeks != 12
        for column in (2, 4, 5):
            assert sum(minutes_of(row[column]) for row in plan) == minutes_of(sums[column])
        links = soup.select(f"section#{section} tbody a")
        assert [Path(a["href"]).stem for a in links] == [each["name"] for each in found]


def minutes_of(cell):
    """Read a time as it is said."""
    found = re.fullmatch(r"(?:(\d+)\sh\s?)?(?:(\d+)(?:\smin)?)?|–", cell)
    return 60 * int(found[1] or 0) + int(found[2] or 0)


def exercises_of(cell, everything):
    """Read `1.1–1.4, 1.6` as the numbers it stands for."""
    order = [exercise["number"] for exercise in everything]
    for part in filter(None, cell.replace("–", "-").split(", ")):
        if part == "-":
            continue
        first, _, last = part.partition("-")
        yield from order[order.index(first) : order.index(last or first) + 1]


# What there is to type


def section(title):
    """Give the text of a section of the page."""
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]


def files(text):
    """Give the files that a text shows, by their paths."""
    found = re.findall(r"^```\{code-block\} python\n:caption: (\S+)\n(.*?)^```", text, re.M | re.S)
    return dict(found)


def blocks(text):
    """Give each block of commands with the lines that it is said to print."""
    pattern = r"^```bash\n(.*?)^```\n(?:\n```text\n(.*?)^```)?"
    return [
        (commands, said.splitlines()) for commands, said in re.findall(pattern, text, re.M | re.S)
    ]


class Terminal:
    """Types the commands of the page in the folder of a course with one tiny assignment."""

    def __init__(self, folder):
        self.folder = folder

    def type(self, commands, expected=(), status=0):
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        finished = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=self.folder,
            env={**os.environ, "PATH": programs, "TZ": "UTC"},
            capture_output=True,
            text=True,
        )
        printed = finished.stdout + finished.stderr
        assert finished.returncode == status, printed
        for line in expected:
            words = r"\s+".join(map(re.escape, line.split()))
            assert re.search(words, printed), f"{line!r} is not in what was printed:\n{printed}"
        return printed

    def grades(self):
        with (self.folder / "grades.csv").open() as file:
            return {row["student_id"]: row for row in csv.DictReader(file)}


def hand_in(course):
    """Let three people hand in by a learning platform: one is right, one is not, one is late."""
    own = "def running_mean(x):\n    return x.mean(dim=0).expand_as(x)\n"
    right = (
        "def running_mean(x):\n    return torch.stack([x[: t + 1].mean(0) for t in range(len(x))])"
    )
    answers = {"ada": (right, 5), "bob": (own, 5), "eve": (right, 7)}
    with zipfile.ZipFile(course / "uploads.zip", "w") as archive:
        for student, (source, day) in answers.items():
            notebook = nbformat.read(course / "exercises/10_averages/averages.ipynb", as_version=4)
            cell_of(notebook, "running_mean").source = source
            info = zipfile.ZipInfo(f"{student}/averages.ipynb", (2026, 10, day, 12, 0, 0))
            archive.writestr(info, nbformat.writes(notebook))
    assert datetime.date.today() > datetime.date(2026, 10, 7)


def unpacked(path):
    """Everything that a file holds, the files of an archive too."""
    if not zipfile.is_zipfile(path):
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        return b"".join(map(archive.read, archive.namelist()))


@pytest.mark.slow
def test_an_exercise_is_written_released_graded_changed_and_handed_back_as_the_page_says(
    tmp_path, sealed
):
    course = tmp_path / "staff"
    course.mkdir()
    for name in ("nbgrader_config.py", "pyproject.toml", "requirements-learn.txt", "LICENSE"):
        shutil.copy(ROOT / name, course)
    shutil.copytree(ROOT / "lib", course / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests" / "exercises", course / "tests" / "exercises")
    shutil.copy(ROOT / "tests" / "conftest.py", course / "tests")
    (course / "tests" / "hostile").mkdir()
    shutil.copy(ROOT / "tests" / "hostile" / "draws.py", course / "tests" / "hostile")
    terminal = Terminal(course)

    writing = section("Write an exercise")
    begin, release, trial = blocks(writing)
    terminal.type(*begin)
    shown = re.findall(r"literalinclude\} \.\./(\S+)\n:caption: (\S+)", writing)
    assert len(shown) == 4
    for source, path in shown:
        assert (course / source).read_text() == (course / path).read_text()
    (question,) = re.findall(r"^```python\n(# %% \[markdown\].*?)^```", writing, re.M | re.S)
    with (course / "solutions/10_averages/averages.py").open("a") as text:
        text.write(f"\n{question}")
    terminal.type(*release)
    tried = terminal.type(*trial)
    # Solution, blank, three mistakes and three variants at least, and the sandbox.
    assert int(re.search(r"(\d+) passed", tried)[1]) > 10
    assert "failed" not in tried and "skipped" not in tried
    terminal.type("classroom check exercises/10_averages", ["0 of 3 points"], status=1)

    hand_in(course)
    grading, handing_back = blocks(section("From release to feedback"))
    terminal.type(*grading)
    terminal.type(*handing_back)
    scores = {student: float(row["score"]) for student, row in terminal.grades().items()}
    assert scores == {"ada": 3, "bob": 0, "eve": 3}
    with zipfile.ZipFile(course / "feedback.zip") as archive:
        pages = {name for name in archive.namelist() if name.endswith(".html")}
    assert pages == {f"feedback/{who}/10_averages/averages.html" for who in scores}

    (changed,) = blocks(section("Change an exercise"))
    told = terminal.type(*changed)
    assert re.search(r"ada\s+running_mean\s+3\s+->\s+4", told), told
    terminal.type("nbgrader export --to grades.csv")
    assert {float(row["max_score"]) for row in terminal.grades().values()} == {4}

    # The rule for late days, and a gradebook that is lost: one grading for both.
    rules = files(section("Dates and late days"))["nbgrader_config.py"]
    assert '{"eve": 7}' in rules, "who has a week more pays nothing"
    settings = (course / "nbgrader_config.py").read_text()
    (course / "nbgrader_config.py").write_text(settings + rules.replace('"eve"', '"bob"'))
    (course / "gradebook.db").unlink()
    due, *_ = grading[0].splitlines()
    terminal.type(f"{due}\nclassroom grade 10_averages --again\nnbgrader export --to grades.csv")
    late = terminal.grades()["eve"]
    assert (float(late["late_submission_penalty"]), float(late["score"])) == (0.8, 3.2)
    assert float(terminal.grades()["ada"]["score"]) == 4

    (copying, _), _ = blocks(section("Keep your solutions to yourself"))
    terminal.type(copying, ["forks of public repositories are public"])
    handout = tmp_path / "handout"
    given = {str(file.relative_to(handout)) for file in handout.rglob("*") if file.is_file()}
    assert "exercises/10_averages/averages.ipynb" in given
    assert not any(path.startswith(("solutions", "tests", "book")) for path in given)
    for path in given:
        assert b"cumsum(dim=0) / counts" not in unpacked(handout / path)
    Terminal(handout).type("classroom check exercises/10_averages", ["0 of 4 points"], status=1)
