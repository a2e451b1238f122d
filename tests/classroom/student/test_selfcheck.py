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
