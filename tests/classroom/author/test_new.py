import pytest

from classroom.__main__ import main
from classroom.author.inventory import inventory
from classroom.author.release import differences


@pytest.fixture
def started(course, capsys):
    """A course in which an assignment has just begun."""
    assert main(["new", "11_early_stopping", "--root", str(course)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        *(
            f"wrote solutions/11_early_stopping/{name}.py"
            for name in ("early_stopping", "checks", "mistakes", "variants")
        ),
        "change them, then run `classroom release 11_early_stopping`",
    ]
    return course


@pytest.mark.slow
def test_a_new_assignment_can_be_released_and_checks_itself(started, capsys):
    assert main(["release", "11_early_stopping", "--root", str(started)]) == 0
    exercises, solutions = (
        str(started / place / "11_early_stopping") for place in ("exercises", "solutions")
    )
    assert main(["check", solutions]) == 0
    assert "11.1 The mean so far: 3 of 3 points" in capsys.readouterr().out
    assert main(["check", exercises]) == 1
    assert "0 of 3 points" in capsys.readouterr().out
    assert main(["release", "--root", str(started)]) == 0
    assert differences(started) == []


def test_it_holds_one_of_each_that_an_author_writes(started):
    found = inventory(started)["assignments"][1]
    (exercise,) = found["exercises"]
    assert (found["title"], exercise["number"], exercise["points"]) == ("Early stopping", "11.1", 3)
    assert len(exercise["mistakes"]) == len(exercise["variants"]) == 3
    text = (started / "solutions" / "11_early_stopping" / "early_stopping.py").read_text()
    code = [line for line in text.splitlines() if line.startswith("# %%") or line[:1] != "#"]
    assert "points" not in "\n".join(code)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("topic", "must have a name like 01_attention, got 'topic'"),
        ("11_early stopping", "the topic must be a valid name in Python"),
        ("11_checks", "the topic must be a valid name in Python other than checks, mist"),
        ("07_averages", "solutions/07_averages is there already"),
        ("7_other", "solutions/07_averages is there already"),
    ],
)
def test_a_name_that_cannot_be_that_of_an_assignment_is_refused(course, capsys, name, said):
    before = sorted(course.rglob("*"))
    assert main(["new", name, "--root", str(course)]) == 2
    assert said in capsys.readouterr().err
    assert sorted(course.rglob("*")) == before
