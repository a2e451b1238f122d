import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from classroom.__main__ import _in_a_sentence, _is_something_new, main
from classroom.exercise.report import CheckResult, Report
from classroom.grader.json_lines import append
from classroom.student.terminal import NotebookReport


def run(capsys, *argv):
    """Run a command; return its status, and what it wrote to stdout and stderr."""
    try:
        status = main([str(word) for word in argv])
    except SystemExit as stop:
        status = stop.code
    wrote = capsys.readouterr()
    return status, wrote.out, wrote.err


PASSED = CheckResult("one", 2, 2)
FAILED = CheckResult("two", 3, 0, "It is wrong.", ("NoScale",))


@pytest.fixture
def notebooks(tmp_path, monkeypatch):
    """Two notebooks, and what `check_notebook` is to find in each: nothing is really run."""
    found = {
        "a.ipynb": NotebookReport((Report("f", "1.1 F", (PASSED,)),), ()),
        "b.ipynb": NotebookReport((Report("g", "1.2 G", (PASSED, FAILED)),), ("cell 2 stopped",)),
    }
    seconds = []

    def check_notebook(path, progress, seconds_per_cell):
        progress(1, 3)
        seconds.append(seconds_per_cell)
        return found[path.name]

    monkeypatch.setattr("classroom.student.terminal.check_notebook", check_notebook)
    for name in (*found, "notes.txt"):
        (tmp_path / name).touch()
    return SimpleNamespace(folder=tmp_path, found=found, seconds=seconds)


# Check


def test_checking_prints_the_report_and_the_points(notebooks, capsys):
    status, out, err = run(capsys, "check", notebooks.folder / "b.ipynb")
    assert out.splitlines() == [
        "1.2 G: 2 of 5 points",
        "  ✓ one (2/2)",
        "  ✗ two (0/3)",
        "",
        "It is wrong.",
        "",
        "cell 2 stopped",
        f"{notebooks.folder / 'b.ipynb'}: 2 of 5 points; next is 1.2 G",
    ]
    assert (status, err) == (1, "")


def test_an_exercise_that_is_not_begun_is_one_line(notebooks, capsys):
    blank = Report("h", "1.3 H", (CheckResult("one", 4, 0, "`h` is not written", is_blank=True),))
    notebooks.found["a.ipynb"] = NotebookReport((blank,), ())
    _, out, _ = run(capsys, "check", notebooks.folder / "a.ipynb")
    assert out.splitlines()[0] == "1.3 H: 0 of 4 points, not begun"
    assert out.splitlines()[1].endswith(": 0 of 4 points; next is 1.3 H")


def test_the_status_is_0_only_if_all_is_well(notebooks, capsys):
    assert run(capsys, "check", notebooks.folder / "a.ipynb")[0] == 0
    assert run(capsys, "check", notebooks.folder)[0] == 1
    notebooks.found["b.ipynb"] = NotebookReport(notebooks.found["a.ipynb"].reports, ("stopped",))
    assert run(capsys, "check", notebooks.folder / "b.ipynb")[0] == 1
    notebooks.found["b.ipynb"] = notebooks.found["a.ipynb"]
    assert run(capsys, "check", notebooks.folder)[0] == 0


def test_json_is_one_object_per_notebook_of_a_folder(notebooks, capsys):
    status, out, err = run(capsys, "check", notebooks.folder, "--json", "--seconds-per-cell", 7)
    first, second = map(json.loads, out.splitlines())
    assert (first["notebook"], first["points"], first["earned"], first["errors"]) == (
        str(notebooks.folder / "a.ipynb"),
        2,
        2,
        [],
    )
    assert (second["points"], second["earned"], second["errors"]) == (5, 2, ["cell 2 stopped"])
    (exercise,) = second["exercises"]
    assert Report.from_json(exercise) == notebooks.found["b.ipynb"].reports[0]
    assert (status, err, notebooks.seconds) == (1, "", [7, 7])


# Inventory and release


def test_the_inventory_is_printed_for_people_and_as_json(course, capsys):
    status, out, err = run(capsys, "inventory", "--root", course)
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "07_averages: Averages (5 points, 15 minutes; the core: 3 points, 10 minutes)",
        "  7.1  Centre the rows: 3 points, 10 minutes, difficulty 2 of 5, 3 named mistakes, "
        "3 variants",
        "  7.2  Twice: 2 points, 5 minutes, difficulty 1 of 5, 3 named mistakes, 3 variants, "
        "goes deeper",
    ]
    status, out, err = run(capsys, "inventory", "--json", "--root", course)
    assert status == 0 and json.loads(out)["assignments"][0]["points"] == 5


def test_a_release_can_be_made_and_verified(course, capsys):
    status, out, err = run(capsys, "release", "--verify", "--root", course)
    assert (status, err) == (1, "")
    assert out.splitlines()[-4:] == [
        "solutions/07_averages/averages.ipynb is missing",
        "solutions/07_averages/made_from.json is missing",
        "solutions/07_averages/prepared.zip is missing",
        "make edits in solutions/, not in exercises/, then run `classroom release` and commit the "
        "files that it writes",
    ]
    assert not (course / "exercises").exists()
    status, out, err = run(capsys, "release", "--root", course)
    assert (status, err) == (0, "")
    assert "wrote exercises/07_averages/averages.ipynb" in out.splitlines()
    status, out, err = run(capsys, "release", "--verify", "--root", course)
    assert (status, out) == (0, "exercises/ is exactly what solutions/ gives\n")


# Is it worth starting processes before the class is read?


NAME = "07_averages"


def test_something_is_new_if_nobody_was_graded_or_a_submission_came_later(tmp_path):
    submitted, verdicts = tmp_path / "submitted", tmp_path / "verdicts.jsonl"
    for student in ("ada", "zoe"):
        (submitted / student / NAME).mkdir(parents=True)
    assert _is_something_new(submitted, NAME, tmp_path)
    assert not _is_something_new(submitted, "08_more", tmp_path)
    verdicts.touch()
    last = max((submitted / s / NAME).lstat().st_ctime for s in ("ada", "zoe"))
    os.utime(verdicts, (last + 1, last + 1))
    assert not _is_something_new(submitted, NAME, tmp_path)
    os.utime(verdicts, (last - 1, last - 1))
    assert _is_something_new(submitted, NAME, tmp_path)


def test_nothing_is_new_where_there_are_no_submissions(tmp_path):
    assert not _is_something_new(tmp_path / "submitted", NAME, tmp_path)


# Refusals: one sentence on stderr, nothing on stdout, status 2


def broken_checks(course):
    (course / "solutions/07_averages/checks.py").write_text("import no_such_module")


def broken_mistakes(course):
    (course / "solutions/07_averages/mistakes.py").write_text("class class")


def no_text(course):
    (course / "solutions/07_averages/averages.py").unlink()


def unreadable(course):
    (course / "odd.ipynb").write_text("{}")


def nothing(course):
    pass


@pytest.mark.parametrize(
    ("prepare", "words", "said"),
    [
        (
            nothing,
            "check {}/nowhere.ipynb",
            "classroom check: there is no notebook {}/nowhere.ipynb",
        ),
        (nothing, "check {}", "classroom check: there is no notebook in {}"),
        (unreadable, "check {}/odd.ipynb", "odd.ipynb is not a readable notebook"),
        (nothing, "inventory --root {}/nowhere", "classroom inventory: there are no assignments"),
        (broken_checks, "inventory --root {}", "checks.py cannot be read: "),
        (broken_mistakes, "inventory --root {}", "mistakes.py, line 1: invalid syntax"),
        (no_text, "inventory --root {}", "averages.py: No such file or directory"),
        (nothing, "release --root {}/nowhere", "classroom release: there are no assignments"),
        (nothing, "release 08_x --root {}", "no assignment is called 08_x; there are: 07_averages"),
        (no_text, "release --root {}", "classroom release: a release needs {}/solutions"),
        (broken_checks, "release --verify --root {}", "checks.py cannot be read: "),
    ],
)
def test_errors_are_told_in_a_sentence(course, capsys, prepare, words, said):
    prepare(course)
    status, out, err = run(capsys, *words.format(course).split())
    assert status == 2 and out == ""
    assert said.format(course) in err
    assert err.count("\n") == 1 and "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "the following arguments are required: command"),
        ("grades", "invalid choice: 'grades'"),
        ("check", "the following arguments are required: path"),
        ("check a.ipynb --seconds-per-cell 0", "must be at least 1, got 0"),
        ("check a.ipynb --seconds-per-cell soon", "invalid"),
        ("inventory --jsn", "unrecognized arguments: --jsn"),
    ],
)
def test_a_command_that_is_mistyped_says_how_to_type_it(capsys, words, said):
    status, out, err = run(capsys, *words.split())
    assert status == 2 and out == ""
    assert err.startswith("usage: classroom") and said in err


def test_help_names_the_commands(capsys):
    status, out, _ = run(capsys, "--help")
    assert status == 0
    assert all(f"\n    {command} " in out for command in ("release", "check", "inventory"))


def test_a_command_ends_with_its_status(tmp_path):
    finished = subprocess.run(
        [sys.executable, "-m", "classroom", "inventory", "--root", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr.startswith("classroom inventory: there are no assignments under")


def test_a_full_disk_is_reported_with_the_file_that_it_has_no_room_for(tmp_path, monkeypatch):
    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    ledger = tmp_path / "submitted" / "received.jsonl"
    ledger.parent.mkdir()
    with pytest.raises(OSError) as raised:
        append(ledger, [{"student": "ada"}])
    said = _in_a_sentence(raised.value)
    assert (
        said == f"{ledger}: No space left on device; free some space and run it again to continue"
    )
    assert _in_a_sentence(OSError(28, "No space left on device")).startswith("No space left")
