"""`nbgrader autograde`, sealed, gives the scores of `classroom grade`, and nothing stops it."""

import json
import os
import re
import shutil
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell
from nbgrader.api import Gradebook
from nbgrader.apps import api, autogradeapp
from nbgrader.converters import Autograde, NbGraderException
from nbgrader.coursedir import CourseDirectory

import classroom.nbgrader.autograde
from classroom.__main__ import main
from classroom.author.notebooks import build_notebook, cell_of, write_notebook
from classroom.author.release import nbgrader_config
from classroom.grader import run
from classroom.grader.verdicts import VERDICTS, read_lines
from classroom.nbgrader.autograde import SayOpen, SealedAutograde, switch_on
from classroom.nbgrader.gradebook import GradebookWriter

pytestmark = pytest.mark.slow

NAME = "07_averages"
CENTRE = "def centre(x):\n    return x - x.mean(dim=0)"
TWICE = "def twice(number):\n    return number + number"
SOLUTION = re.compile(r"### BEGIN SOLUTION.*### END SOLUTION", re.DOTALL)
WRONG = "def centre(x):\n    return x - x.mean(dim=1, keepdim=True)"
# Each of these earns in stock nbgrader what it did not deserve, or is not graded, or stops it all.
SHOWS_A_NUMBER = "import sys\ndef centre(x):\n    sys.displayhook(198)\n    raise SystemExit"
PATCHES_TORCH = "import torch\ntorch.allclose = torch.equal = lambda *a, **k: True\n" + WRONG
EARNED = {
    "solution": {"centre": 3, "twice": 2},
    "mistake": {"centre": 0, "twice": 2},
    "blank": {"centre": 0, "twice": 0},
    "shows a number": {"centre": 0, "twice": 2},
    "patches torch": {"centre": 0, "twice": 2},
    "skips the check": {"centre": 0, "twice": 2},
    "doubles a cell": {"centre": 3, "twice": 2},
    "renames an id": {"centre": 3, "twice": 2},
    "flips a flag": {"centre": 3, "twice": 2},
    "of an old schema": {"centre": 3, "twice": 2},
    "damaged": {"centre": 0, "twice": 0},
    "of version 3": {"centre": 0, "twice": 0},
    "renamed file": {"centre": 3, "twice": 2},
    "no time": {"centre": 3, "twice": 2},
    "links": {"centre": 3, "twice": 2},
    "no notebook": {"centre": 0, "twice": 0},
}


def hand_out(course):
    """Make the assignment as students get it, and its instructor's notebook."""
    source, folder = course / "solutions" / NAME, course / "exercises" / NAME
    folder.mkdir(parents=True)
    notebook = build_notebook(source)
    write_notebook(notebook, source / "averages.ipynb")
    for cell in notebook.cells:
        cell.source = SOLUTION.sub("raise NotImplementedError", cell.source)
    nbformat.write(notebook, folder / "averages.ipynb")
    for name in ("checks.py", "mistakes.py"):
        shutil.copy(source / name, folder)


def hand_in(course, student, centre=CENTRE, twice=TWICE, change=lambda notebook: None):
    """Hand a notebook in; return the folder."""
    notebook = nbformat.read(course / "exercises" / NAME / "averages.ipynb", as_version=4)
    for name, source in (("centre", centre), ("twice", twice)):
        if source:
            cell_of(notebook, name).source = source
    change(notebook)
    folder = course / "submitted" / student / NAME
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "averages.ipynb").write_text(json.dumps(notebook))
    return folder


def hand_in_all(course):
    """Hand in the notebooks of `EARNED`."""

    def skip(notebook):
        cell_of(notebook, "centre-check").metadata.tags = ["skip-execution"]

    def double(notebook):
        notebook.cells.append(cell_of(notebook, "centre-check").copy())

    def rename(notebook):
        cell_of(notebook, "centre").metadata.nbgrader.grade_id = "elsewhere"

    def flip(notebook):
        cell_of(notebook, "centre-check").metadata.nbgrader.grade = False

    def age(notebook):
        cell_of(notebook, "centre").metadata.nbgrader.schema_version = 2

    hand_in(course, "solution")
    hand_in(course, "mistake", WRONG)
    hand_in(course, "blank", None, None)
    hand_in(course, "shows a number", SHOWS_A_NUMBER)
    hand_in(course, "patches torch", PATCHES_TORCH)
    hand_in(course, "skips the check", WRONG, change=skip)
    hand_in(course, "doubles a cell", change=double)
    hand_in(course, "renames an id", change=rename)
    hand_in(course, "flips a flag", change=flip)
    hand_in(course, "of an old schema", change=age)
    (hand_in(course, "damaged") / "averages.ipynb").write_text("{")
    (hand_in(course, "of version 3") / "averages.ipynb").write_text(
        '{"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": []}'
    )
    (hand_in(course, "renamed file") / "averages.ipynb").rename(
        course / "submitted" / "renamed file" / NAME / "averages (1).ipynb"
    )
    (hand_in(course, "no time") / "timestamp.txt").write_text("not a date")
    (hand_in(course, "links") / "picture.png").symlink_to(course / "secret.txt")
    (hand_in(course, "no notebook") / "averages.ipynb").rename(
        course / "submitted" / "no notebook" / NAME / "averages.py"
    )
    (course / "secret.txt").write_text("the seed of next year's exam")


def scores(course):
    """Points by student and exercise, as nbgrader tells them."""
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        return {
            submission.student_id: {
                grade.name.removesuffix("-check"): grade.score
                for notebook in submission.notebooks
                for grade in notebook.grades
            }
            for submission in gradebook.assignment_submissions(NAME)
        }


@pytest.fixture(scope="module")
def known(make_course, tmp_path_factory):
    """A course whose gradebook knows of the assignment, which takes seconds."""
    root = make_course(tmp_path_factory.mktemp("known") / "course")
    hand_out(root)
    with GradebookWriter(root, NAME, "averages"):
        return root


@pytest.fixture
def course(known, tmp_path):
    return shutil.copytree(known, tmp_path / "course")


def command(course, *argv, **environment):
    return subprocess.run(
        [sys.executable, "-m", *argv],
        cwd=course,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_a_class_gets_the_same_scores_from_both_commands(course, tmp_path, here):
    hand_in_all(course)
    other = tmp_path / "other"
    shutil.copytree(course, other, symlinks=True)
    (course / "gradebook.db").unlink()
    assert main(["grade", NAME, "--root", str(other)]) == 0
    theirs = command(course, "nbgrader", "autograde", NAME, CLASSROOM_SEALED="1")
    assert theirs.returncode == 0, theirs.stderr[-3000:]
    assert scores(course) == scores(other) == EARNED
    # What ran is told, and what was wrong with it.
    assert "Sealed: students' code runs in a sandbox" in theirs.stderr
    assert "'solution': 5 of 5 points" in theirs.stderr
    assert "'damaged': 0 of 5 points, averages.ipynb is damaged" in theirs.stderr
    for student in EARNED:
        folder = course / "autograded" / student / NAME
        assert sorted(p.name for p in folder.iterdir()) == ["averages.ipynb", "timestamp.txt"]
        first = nbformat.read(folder / "averages.ipynb", as_version=4).cells[0].source
        assert first.startswith("Graded in a sandbox (bubblewrap, ")


@pytest.mark.slow
def test_stock_nbgrader_says_that_it_graded_in_the_open(course):
    hand_in(course, "ada")
    done = command(course, "nbgrader", "autograde", NAME, CLASSROOM_SEALED="0")
    assert done.returncode == 0 and "'ada' Graded in the open" in done.stderr, done.stderr[-3000:]
    assert scores(course) == {"ada": {"centre": 3, "twice": 2}}
    graded = course / "autograded" / "ada" / NAME / "averages.ipynb"
    notebook = nbformat.read(graded, as_version=4)
    nbformat.validate(notebook)
    sources = [cell.source.split(":")[0] for cell in notebook.cells]
    assert sources[0] == "Graded in the open, without a sandbox" and sources.count(sources[0]) == 1


# One process


@pytest.fixture
def autograde(course, here):
    """Give a function that grades with options as the command line would set them."""

    def work(force=False, create_student=True, **options):
        config = nbgrader_config(course)
        config.CourseDirectory.root = str(course)
        config.CourseDirectory.assignment_id = NAME
        for name, value in options.items():
            section, _, trait = name.partition("__")
            config[section][trait] = value
        here.clear()
        converter = SealedAutograde(coursedir=CourseDirectory(config=config), config=config)
        converter.force, converter.create_student = force, create_student
        converter.start()
        return here

    return work


def test_options_choose_who_is_graded(course, autograde):
    for student in ("ada", "bo", "cy", "zoe"):
        hand_in(course, student)
    options = {"CourseDirectory__student_id": "[a-c]*", "CourseDirectory__student_id_exclude": "bo"}
    assert autograde(**options) == ["ada", "cy"]
    assert autograde() == ["bo", "zoe"]
    assert autograde() == []
    assert autograde(force=True, CourseDirectory__student_id="cy") == ["cy"]


def test_an_option_sets_how_long_a_cell_may_take(course, autograde):
    slow = new_code_cell("import time\ntime.sleep(30)")
    hand_in(course, "ada", change=lambda notebook: notebook.cells.insert(1, slow))
    assert autograde(SealedAutograde__seconds_per_cell=1) == ["ada"]
    (verdict,) = read_lines(course / "graded" / NAME / VERDICTS)
    assert verdict.errors == ("cell 2 did not end within 1 s",) and verdict.earned == 5


def test_what_one_command_has_graded_the_other_leaves_alone(course, autograde, capsys):
    hand_in(course, "ada")
    assert autograde() == ["ada"]
    assert main(["grade", NAME, "--root", str(course)]) == 0
    assert "0 graded now" in capsys.readouterr().out
    hand_in(course, "bo")
    main(["grade", NAME, "--root", str(course)])
    assert autograde() == []


def test_whose_grades_are_gone_is_graded_again(course, autograde):
    for student in ("ada", "bo", "cy"):
        hand_in(course, student)
    autograde()
    shutil.rmtree(course / "autograded" / "bo")
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        gradebook.remove_submission(NAME, "cy")
    assert autograde() == ["bo", "cy"]
    assert set(scores(course)) == {"ada", "bo", "cy"}


def test_nobody_is_added_to_the_gradebook_against_the_instructors_will(course, autograde):
    hand_in(course, "ada")
    autograde()
    hand_in(course, "eve")
    assert autograde(force=True, create_student=False) == ["ada"]
    assert set(scores(course)) == {"ada"}


def test_what_it_does_not_do_it_refuses(course, autograde):
    hand_in(course, "ada")
    for option, value, reason in (
        ("Execute__enabled", False, "no --no-execute"),
        ("CourseDirectory__db_url", "sqlite:///:memory:", "not --db"),
        ("CourseDirectory__notebook_id", "problem1", "one notebook, averages"),
        (
            "CourseDirectory__student_id",
            "nobody",
            "there is no submission of 07_averages by nobody",
        ),
        ("CourseDirectory__assignment_id", "08_none", "no assignment is called 08_none"),
        ("CourseDirectory__directory_structure", "{student_id}", "directory structure"),
        ("Autograde__post_convert_hook", print, "runs no hooks"),
    ):
        with pytest.raises(NbGraderException, match=reason):
            autograde(**{option: value})
    assert not (course / "autograded").exists()


def test_without_a_sandbox_nothing_is_graded(course, autograde, monkeypatch):
    hand_in(course, "ada")
    monkeypatch.setattr(run, "probe", lambda: ())
    lacking = ValueError("this machine cannot isolate a submission")

    def require(layers, allow_weaker=False):
        if not allow_weaker:
            raise lacking

    monkeypatch.setattr(run, "require", require)
    with pytest.raises(NbGraderException, match="cannot isolate a submission"):
        autograde()
    assert not (course / "autograded").exists()
    assert autograde(SealedAutograde__allow_weaker=True) == ["ada"]


def test_a_submission_at_which_the_grader_failed_fails_the_command(course, autograde, monkeypatch):
    hand_in(course, "ada")

    def side_by_side(grader, submissions, workers, started):
        return [(e, run.grader_failed(grader.settings, e.student, "no")) for e in submissions]

    monkeypatch.setattr(run, "side_by_side", side_by_side)
    with pytest.raises(NbGraderException, match="the grader failed, so run it again for: ada"):
        autograde()


# The switch


@pytest.fixture
def switch(monkeypatch):
    for module in (autogradeapp, api):
        monkeypatch.setattr(module, "Autograde", Autograde)
    return monkeypatch


def test_the_command_and_formgrader_are_switched(course, switch):
    switch.setenv("CLASSROOM_SEALED", "yes")
    config = nbgrader_config(course)
    assert autogradeapp.Autograde is api.Autograde is SealedAutograde
    assert "autograde_preprocessors" not in config.Autograde
    switch_on()
    assert autogradeapp.Autograde is SealedAutograde


@pytest.mark.parametrize("value", [None, "0"])
def test_without_the_switch_nbgrader_is_stock(course, switch, value):
    switch.delenv("CLASSROOM_SEALED", raising=False)
    if value is not None:
        switch.setenv("CLASSROOM_SEALED", value)
    config = nbgrader_config(course)
    assert autogradeapp.Autograde is api.Autograde is Autograde
    converter = Autograde(coursedir=CourseDirectory(config=config), config=config)
    assert converter.autograde_preprocessors[-1] == f"{SayOpen.__module__}.{SayOpen.__name__}"


def test_a_switch_that_does_not_work_ends_nbgrader(course, switch):
    """nbgrader logs any other error in its settings and goes on without them, in the open."""
    switch.setenv("CLASSROOM_SEALED", "1")
    switch.delattr(api, "Autograde")
    with pytest.raises(SystemExit, match="nbgrader.apps.api does not call Autograde by its name"):
        nbgrader_config(course)
    switch.setattr(classroom.nbgrader.autograde, "switch_on", None)
    with pytest.raises(SystemExit, match="cannot be switched on"):
        nbgrader_config(course)
