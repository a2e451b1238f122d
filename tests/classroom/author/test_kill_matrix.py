import json

import pytest

from classroom.__main__ import main
from classroom.author import kill_matrix
from classroom.author.kill_matrix import Kills, differences, measure, read, write
from classroom.exercise.answers import load_answers

ROUNDED = '''

class Rounded(Mistake, exercise="centre"):
    """The mean is rounded to whole numbers."""

    def centre(x):
        return x - x.mean(dim=0).round()


class LastRowFirst(Mistake, exercise="centre"):
    """The rows come back in the opposite order."""

    def centre(x):
        return (x - x.mean(dim=0)).flip(0)
'''

IN_TWICE = ["Squared", "NotDoubled", "Thrice"]


@pytest.fixture
def mistakes(course):
    return course / "solutions" / "07_averages" / "mistakes.py"


def test_a_matrix_by_hand(course, mistakes, tmp_path):
    mistakes.write_text(mistakes.read_text() + ROUNDED)
    steps = []
    found = measure(course, seeds=["a", "b"], progress=lambda *step: steps.append(step))
    assert steps[0] == (0, 8) and steps[-1] == (8, 8)
    assert found["seeds"] == ["a", "b"]
    write(tmp_path / "matrix.json", found)
    centre, twice = read(tmp_path / "matrix.json")
    assert (centre.assignment, centre.exercise, centre.number) == ("07_averages", "centre", "7.1")
    assert centre.checks == ("rows are moved by their mean", "the mean is zero")
    assert centre.failures == {
        "NotMoved": (2, 2),
        "MeanOfEachRow": (2, 2),
        "SumOfTheRows": (2, 2),
        "Rounded": (2, 2),
        "LastRowFirst": (2, 0),  # the mean stays zero, and the rows are wrong
    }
    assert centre.caught_by(1) == ["NotMoved", "MeanOfEachRow", "SumOfTheRows", "Rounded"]
    assert centre.caught_only_by(0) == ["LastRowFirst"] and centre.caught_only_by(1) == []
    assert twice.failures == {name: (2,) for name in IN_TWICE}
    assert twice.caught_only_by(0) == IN_TWICE


def test_what_fails_with_one_seed_only_counts_as_caught():
    row = Kills("07_averages", "centre", "7.1", ("one", "two"), {"Rare": (1, 0), "Never": (0, 0)})
    assert row.killers("Rare") == [0] and row.killers("Never") == []
    assert row.caught_only_by(0) == ["Rare"]


def test_only_what_has_changed_is_run_again(course, mistakes, monkeypatch):
    ran = []
    real = kill_matrix.run_mistake

    def counted(folder, mistake, seed, *solutions):
        if solutions:  # without the diagnosis
            ran.append(mistake.name)
        return real(folder, mistake, seed, *solutions)

    monkeypatch.setattr(kill_matrix, "run_mistake", counted)
    first = measure(course, seeds=["a"])
    assert ran == ["NotMoved", "MeanOfEachRow", "SumOfTheRows", *IN_TWICE]
    ran.clear()
    assert measure(course, first, seeds=["a"])["exercises"] == first["exercises"] and ran == []
    mistakes.write_text(mistakes.read_text().replace("number * number", "number ** 2"))
    measure(course, first, seeds=["a"])
    assert ran == IN_TWICE
    ran.clear()
    measure(course, first, seeds=["b"])
    assert len(ran) == 6, "other seeds are another matrix"


def test_a_mistake_that_looks_like_another_is_listed(course, mistakes, tmp_path):
    same = ROUNDED.replace("Rounded", "RoundedToo").split("class LastRowFirst")[0]
    mistakes.write_text(mistakes.read_text() + ROUNDED + same.replace(".round()", ".round() + 0.0"))
    write(tmp_path / "matrix.json", measure(course, seeds=["a"]))
    centre, twice = read(tmp_path / "matrix.json")
    assert centre.unnamed == ("Rounded", "RoundedToo") and twice.unnamed == ()


def test_what_is_edited_while_it_runs_is_run_again_the_next_time(course, mistakes, monkeypatch):
    real = kill_matrix.run_mistake

    def edit_and_run(*args):
        mistakes.write_text(mistakes.read_text().replace("number * number", "number ** 2"))
        return real(*args)

    monkeypatch.setattr(kill_matrix, "run_mistake", edit_and_run)
    first = measure(course, seeds=["a"])
    again = measure(course, first, seeds=["a"])
    assert first["exercises"][1]["version"] != again["exercises"][1]["version"]
    assert first["exercises"][0] == again["exercises"][0]


def test_what_was_added_or_taken_away_is_said_in_words(course, mistakes, tmp_path):
    write(tmp_path / "matrix.json", measure(course, seeds=["a"]))
    rows = read(tmp_path / "matrix.json")
    assert differences(course, rows) == []
    mistakes.write_text(mistakes.read_text().replace("NotMoved", "LeftAlone"))
    checks = course / "solutions" / "07_averages" / "checks.py"
    checks.write_text(checks.read_text().replace("test_two_is_four", "test_it_is_twice"))
    assert differences(course, rows) == [
        "07_averages 7.1 has a new mistake LeftAlone",
        "07_averages 7.1 no longer has the mistake NotMoved",
        "07_averages 7.2 has a new check “it is twice”",
        "07_averages 7.2 no longer has the check “two is four”",
    ]


def test_the_command_writes_the_matrix_and_counts(course, tmp_path, capsys):
    path = tmp_path / "matrix.json"
    assert main(["matrix", "--root", str(course), "--out", str(path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1].split() == ["07_averages", "6", "3", "3", "1"]
    assert said[2].split() == ["all", "6", "3", "3", "1"]
    found = json.loads(path.read_text())
    assert found["exercises"][1]["mistakes"] == dict.fromkeys(IN_TWICE, "3")
    found["exercises"][1]["mistakes"]["Squared"] = "0"  # as no run would find
    path.write_text(json.dumps(found))
    main(["matrix", "--root", str(course), "--out", str(path)])
    assert json.loads(path.read_text())["exercises"] == found["exercises"]
    main(["matrix", "--again", "--root", str(course), "--out", str(path)])
    assert json.loads(path.read_text())["exercises"][1]["mistakes"]["Squared"] == "3"


def test_a_folder_without_a_course_is_refused_in_one_sentence(tmp_path, capsys):
    assert main(["matrix", "--root", str(tmp_path), "--out", str(tmp_path / "m.json")]) == 2
    assert "there are no assignments under" in capsys.readouterr().err


def test_the_version_of_an_exercise_does_not_feel_its_neighbours(course, mistakes):
    folder = mistakes.parent
    before = {name: kill_matrix.version(folder, name) for name in ("centre", "twice")}
    mistakes.write_text(mistakes.read_text().replace("number * number", "number ** 2"))
    assert [m.cell for m in load_answers(mistakes)][
        2
    ] == "def twice(number):\n    return number ** 2\n"
    after = {name: kill_matrix.version(folder, name) for name in ("centre", "twice")}
    assert before["centre"] == after["centre"] and before["twice"] != after["twice"]


def test_a_mistake_that_is_explained_in_other_words_is_not_measured_again(mistakes):
    folder = mistakes.parent
    mistakes.write_text(mistakes.read_text() + ROUNDED)
    before = kill_matrix.version(folder, "centre")
    mistakes.write_text(mistakes.read_text().replace("rounded to whole numbers", "a whole number"))
    assert "a whole number" in load_answers(mistakes)[-2].explanation
    assert kill_matrix.version(folder, "centre") == before
