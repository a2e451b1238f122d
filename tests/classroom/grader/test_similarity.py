"""Planted copies among answers that people give by themselves."""

import pytest

from classroom.exercise.report import CheckResult, Report
from classroom.grader.similarity import look_alikes, to_text
from classroom.grader.verdicts import Verdict

BLANKS = {
    "centre": 'def centre(x):\n    """Do it."""\n    raise NotImplementedError()',
    "twice": "def twice(number):\n    # YOUR CODE HERE\n    raise NotImplementedError()",
}
LONG = """\
def centre(x):
    total = x[0] * 0
    for row in x:
        total = total + row
    middle = total / len(x)
    moved = []
    for row in x:
        moved.append(row - middle)
    return torch.stack(moved)
"""
RENAMED = '''\
def centre(data):
    """My own words."""
    s = data[0] * 0   # begin with nothing
    for line in data:
        s = s + line
    mean = s / len(data)

    out = []
    for line in data:
        out.append(line - mean)
    return torch.stack(out)
'''
SHORT = {"centre": "def centre(x):\n    return x - x.mean(dim=0)"}
HALVED = {"twice": "def twice(n):\n    return n / 2 + 7"}


def natural(number):
    """Ten people: most write the obvious line, each in another long way for the rest."""
    lines = [f"    a{at} = x + {at * number}" for at in range(number)]
    other = "\n".join(["def centre(x):", *lines, "    return x - x.mean(0)"])
    twice = "2 * number" if number % 3 else "number + number"
    return {
        "centre": SHORT["centre"] if number % 2 else other,
        "twice": f"def twice(number):\n    return {twice}",
    }


CLASS = {f"s{number}": natural(number) for number in range(1, 11)}


def verdict(student, twice, mistakes=()):
    checks = (CheckResult("two is four", 2, twice, "" if twice else "It is off.", mistakes),)
    return Verdict(
        assignment="07", student=student, key="k", reports=(Report("twice", "7.2 Twice", checks),)
    )


def test_what_people_write_by_themselves_is_not_reported():
    assert look_alikes(CLASS, BLANKS) == []
    assert to_text([], {}) == "no two submissions look alike"


def test_a_copy_is_found_whatever_its_names_comments_and_layout():
    (found,) = look_alikes({**CLASS, "ada": {"centre": LONG}, "bo": {"centre": RENAMED}}, BLANKS)
    assert (found.students, found.exercises, found.wrong) == (("ada", "bo"), ("centre",), ())
    assert to_text([found], {"centre": "7.1 Centre"}).splitlines()[1:] == ["  7.1 Centre"]


def test_three_equal_notebooks_are_three_pairs():
    copies = {name: {"centre": LONG, **HALVED} for name in ("ada", "bo", "cy")}
    found = look_alikes({**CLASS, **copies}, BLANKS)
    assert [each.students for each in found] == [("ada", "bo"), ("ada", "cy"), ("bo", "cy")]


def test_a_short_wrong_answer_counts_only_if_it_is_rare_and_no_known_mistake():
    answers = {**CLASS, "ada": HALVED, "bo": HALVED}
    assert look_alikes(answers, BLANKS) == []
    odd = [verdict("ada", 0), verdict("bo", 0)]
    (found,) = look_alikes(answers, BLANKS, odd)
    assert found.wrong == ("twice",) and found.bits == pytest.approx(2.58, abs=0.01)
    assert "the same wrong answer, no known mistake" in to_text([found], {})
    known = [verdict("ada", 0, ("Squared",)), verdict("bo", 0, ("Squared",))]
    assert look_alikes(answers, BLANKS, known) == []
    many = {**answers, "cy": HALVED, "di": HALVED, "eve": HALVED}
    assert look_alikes(many, BLANKS, [verdict(name, 0) for name in set(many) - set(CLASS)]) == []


def test_blanks_and_what_does_not_parse_stop_nothing():
    broken = {"centre": "def centre(x:", "twice": "\0"}
    deep = {"centre": "x = " + "(" * 5000}
    students = {"ada": BLANKS, "bo": BLANKS, "cy": {}, "di": broken, "eve": deep}
    assert look_alikes({**CLASS, **students}, BLANKS) == []
