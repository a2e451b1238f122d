import json
import linecache
import re
import warnings

import pytest

from classroom import check
from classroom.exercise.expect import CheckFailed
from classroom.student.selfcheck import Score

RIGHT = """
def centre(x): return x - x.mean(dim=0)
def twice(number): return 2 * number
"""
UNMOVED = "def centre(x): return x"


def run_cell(source, namespace):
    exec("import torch\n" + source, namespace)
    return namespace


def test_a_notebook_s_own_functions_are_checked(assignment, monkeypatch, capsys):
    monkeypatch.chdir(assignment)
    namespace = run_cell(UNMOVED, {"check": check})
    run_cell("score = check('centre')", namespace)
    assert namespace["score"] == 0.0 and type(namespace["score"]) is Score
    assert "7.1 Centre the rows: 0 of 3 points" in capsys.readouterr().out
    run_cell(RIGHT + "score = check('centre')", namespace)
    assert namespace["score"] == 3.0


def test_what_the_code_prints_is_shown_below_the_report(assignment, monkeypatch, capsys):
    monkeypatch.chdir(assignment)
    printing = "def centre(x):\n    print('rows:', len(x))\n    return x"
    run_cell(printing + "\ncheck('centre')", {"check": check})
    out = capsys.readouterr().out
    assert re.search(
        r"Your code printed, in the first call that printed anything:\nrows: \d+\n", out
    )


def test_a_function_that_a_later_cell_failed_to_define_anew_is_named(
    assignment, monkeypatch, capsys
):
    """The later cell has a syntax error, or stops above the definition."""
    monkeypatch.chdir(assignment)
    linecache.cache["<cell>"] = (len(UNMOVED), None, UNMOVED.splitlines(True), "<cell>")
    namespace = {"check": check, "In": ["", UNMOVED]}
    exec(compile(UNMOVED, "<cell>", "exec"), namespace)
    said = "The last cell that defines `centre` did not run to the end"
    for later, is_old in [("check('centre')", False), ("def centre(x) return x - 1", True)]:
        namespace["In"].append(later)
        run_cell("check('centre')", namespace)
        assert (said in capsys.readouterr().out) is is_old


def test_an_assert_that_never_fails_is_named(assignment, monkeypatch, capsys):
    monkeypatch.chdir(assignment)
    source = RIGHT + "\ndef twice(n):\n    assert {}\n    return 2 * n\n"
    for asserted, is_named in [("n == n, 'odd'", False), ("(n == n, 'odd')", True)]:
        text = source.format(asserted)
        linecache.cache["<cell>"] = (len(text), None, text.splitlines(True), "<cell>")
        namespace = {"check": check}
        with warnings.catch_warnings(action="ignore"):  # Python says it, too, above a cell
            exec(compile(text, "<cell>", "exec"), namespace)
        run_cell("check('twice')", namespace)
        assert ("`twice` has `assert (condition, message)`" in capsys.readouterr().out) is is_named


def test_what_has_been_earned_so_far_and_what_comes_next_stand_below_the_report(
    assignment, monkeypatch
):
    monkeypatch.chdir(assignment)
    namespace = run_cell(RIGHT + "first = check('twice')", {"check": check})
    assert namespace["first"]._repr_html_() == (
        "2 of 5 points of this notebook so far; next is 7.1 Centre the rows"
    )
    run_cell("second = check('centre')", namespace)
    assert namespace["second"]._repr_html_() == "5 of 5 points of this notebook so far"


def test_that_the_core_is_done_is_said_while_deeper_exercises_are_left(assignment, monkeypatch):
    monkeypatch.chdir(assignment)
    namespace = run_cell(RIGHT + "score = check('centre')", {"check": check})
    assert namespace["score"]._repr_html_() == (
        "3 of 5 points of this notebook so far; the core is done (all 3 points), and "
        "what follows goes deeper; next is 7.2 Twice"
    )


def test_what_comes_next_is_in_the_notebook(assignment, monkeypatch):
    """A handout of the core alone has none of the deeper exercises."""
    check_cell = {"cells": [{"metadata": {"nbgrader": {"grade_id": "centre-check"}}}]}
    (assignment / "averages.ipynb").write_text(json.dumps(check_cell))
    monkeypatch.chdir(assignment)
    namespace = run_cell(RIGHT + "score = check('centre')", {"check": check})
    assert namespace["score"]._repr_html_() == "3 of 3 points of this notebook so far"


def test_validate_raises_what_was_found(assignment, monkeypatch, capsys):
    monkeypatch.chdir(assignment)
    monkeypatch.setenv("NBGRADER_EXECUTION", "validate")
    with pytest.raises(CheckFailed, match="(?s)0 of 3 points.*not moved"):
        run_cell(UNMOVED + "\ncheck('centre')", {"check": check})
    assert run_cell(RIGHT + "score = check('centre')", {"check": check})["score"] == 3
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    assert run_cell(UNMOVED + "\nscore = check('centre')", {"check": check})["score"] == 0


def test_a_score_is_printed_as_the_plain_number_that_nbgrader_reads():
    assert [repr(Score(n)) for n in (0, 3, 2.5)] == ["0.0", "3.0", "2.5"]
    assert isinstance(Score(2), float) and float(repr(Score(2))) == 2
