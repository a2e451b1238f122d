import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from classroom.author.notebooks import build_notebook, cell_of
from classroom.course import REPORT_TYPE
from classroom.exercise.report import CheckResult, Report
from classroom.student.terminal import NotebookReport, check_notebook

# A kernel takes seconds to start: each of these notebooks shows several things at once.


@pytest.fixture
def write(assignment):
    """Write a notebook beside the checks of the small assignment."""

    def write_notebook(notebook):
        path = assignment / "averages.ipynb"
        nbformat.write(notebook, path)
        return path

    return write_notebook


def told(found):
    return {report.exercise: (report.earned, report.points) for report in found.reports}


@pytest.mark.slow
def test_a_notebook_is_run_from_top_to_bottom_and_left_as_it_is(assignment, write):
    path = write(build_notebook(assignment))
    before = path.read_bytes()
    seen = []
    found = check_notebook(path, progress=lambda done, cells: seen.append((done, cells)))
    assert found.errors == ()
    assert told(found) == {"centre": (3, 3), "twice": (2, 2)}
    assert (found.earned, found.points, found.num_core) == (5, 5, 1)
    assert [r.name for r in found.reports[0].results] == [
        "rows are moved by their mean",
        "the mean is zero",
    ]
    assert path.read_bytes() == before
    assert seen == [(done, 10) for done in range(11)]


def test_a_kernel_needs_no_port_that_another_program_may_take_first(assignment, write):
    notebook = build_notebook(assignment)
    asked = "import json\nfrom ipykernel.connect import get_connection_file\n"
    asked += "raise OSError(json.load(open(get_connection_file()))['transport'])"
    notebook.cells = [new_code_cell(asked)]
    (said,) = check_notebook(write(notebook)).errors
    assert "OSError: ipc" in said


@pytest.mark.slow
def test_cells_that_fail_stop_themselves_and_not_the_rest(assignment, write):
    """A syntax error, a blank, an exception and a report that no check made."""
    notebook = build_notebook(assignment)
    cell_of(notebook, "centre").source = "def centre(x) return x"
    cell_of(notebook, "twice").source = "def twice(number):\n    raise NotImplementedError()"
    forged = {REPORT_TYPE: {"exercise": "centre", "results": [7]}}
    notebook.cells += [
        new_code_cell("raise ValueError('first line\\nsecond line')"),
        new_code_cell(f"from IPython.display import display\ndisplay({forged!r}, raw=True)"),
        new_code_cell("def twice(number):\n    return 2 * number"),
        new_code_cell('check("twice")'),
        new_code_cell("import sys\nprint('noise', file=sys.stderr)"),
        new_code_cell("raise NotImplementedError()  # tries what has not been begun"),
    ]
    path = write(notebook)
    before = path.read_bytes()
    found = check_notebook(path)
    assert len(found.errors) == 2
    assert found.errors[0].startswith("cell 4 (centre) stopped: SyntaxError: expected ':'")
    assert found.errors[1] == "cell 11 stopped: ValueError: first line"
    centre, blank, written = found.reports
    assert (centre.earned, centre.points) == (0, 3)
    assert "`centre` is not defined: its cell has not run to the end" in centre.results[0].message
    assert "`twice` is not written yet. Return the number plus itself." in blank.messages
    assert (blank.earned, written.earned) == (0, 2)
    assert path.read_bytes() == before


@pytest.mark.slow
def test_a_kernel_that_ends_keeps_what_was_earned_before(assignment, write):
    notebook = build_notebook(assignment)
    cell_of(notebook, "twice").source = "import os\nos._exit(3)"
    found = check_notebook(write(notebook))
    assert found.errors == (
        "cell 9 (twice) ended the Jupyter kernel: the cells below it did not run",
    )
    assert told(found) == {"centre": (3, 3), "twice": (0, 2)}
    assert found.reports[1].results == (CheckResult("the check ran to its end", 2, 0),)


@pytest.mark.slow
def test_a_loop_is_interrupted_and_ended_if_that_does_not_help(write):
    plain = "while True:\n    pass"
    stubborn = "import time\nwhile True:\n    try: time.sleep(9)\n    except BaseException: pass"
    cells = [
        new_code_cell(source) for source in (plain, "raise KeyboardInterrupt", stubborn, "1/0")
    ]
    found = check_notebook(write(new_notebook(cells=cells)), seconds_per_cell=1)
    assert found.errors == (
        "cell 1 did not end within 1 s",
        "cell 2 stopped: KeyboardInterrupt",
        "cell 3 did not end within 1 s and could not be stopped: the cells below it did not run",
    )
    assert found.reports == () and found.points == 0


def test_points_are_those_of_the_reports():
    results = CheckResult("one", 2, 2), CheckResult("two", 3, 0)
    found = NotebookReport((Report("f", "F", results), Report("g", "G", results[:1])), ())
    assert (found.points, found.earned) == (7, 4)


def test_what_comes_next_says_when_the_core_is_done():
    done, left = CheckResult("one", 2, 2), CheckResult("two", 3, 0)
    reports = tuple(Report(result.name, result.name.upper(), (result,)) for result in (done, left))
    for num_core, said in [
        (None, "; next is TWO"),
        (2, "; next is TWO"),
        (1, "; the core is done (all 2 points), and what follows goes deeper; next is TWO"),
    ]:
        assert NotebookReport(reports, (), num_core).next_step == said
    assert NotebookReport(reports[:1], (), 1).next_step == ""


def test_what_is_no_notebook_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no notebook .*missing.ipynb"):
        check_notebook(tmp_path / "missing.ipynb")
    with pytest.raises(FileNotFoundError, match="there is no notebook"):
        check_notebook(tmp_path)
    for content in ("", "not json", "[]", "{}", '{"nbformat": 4}', '{"nbformat": 99}', "\xff"):
        path = tmp_path / "odd.ipynb"
        path.write_text(content, encoding="latin-1")
        with pytest.raises(ValueError, match="odd.ipynb is not a readable notebook: "):
            check_notebook(path)
