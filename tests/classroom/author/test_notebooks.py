import re
from dataclasses import replace

import nbformat
import pytest

from classroom.author.notebooks import build_notebook, cell_of, header_of, write_notebook
from classroom.course import assignments, is_line, text_file
from classroom.exercise.expect import Exercise


@pytest.fixture
def edit(assignment):
    """Replace a part of the notebook's text, or of its checks, once or everywhere."""

    def replace(old, new, name="averages.py"):
        path = assignment / name
        source = path.read_text()
        assert old in source
        path.write_text(source.replace(old, new))
        return assignment

    return replace


# By hand


def test_a_folder_names_its_text(tmp_path):
    assert text_file(tmp_path / "01_attention") == tmp_path / "01_attention" / "attention.py"
    assert text_file(tmp_path / "12_two_words").name == "two_words.py"


def test_assignments_are_the_numbered_folders_with_checks_in_order(tmp_path):
    for name in ("10_last", "02_second", "01_first", "03_empty", "drafts", "x1_other"):
        (tmp_path / name).mkdir()
        if name != "03_empty":
            (tmp_path / name / "checks.py").touch()
    found = [folder.name for folder in assignments(tmp_path)]
    assert found == ["01_first", "02_second", "10_last"]


def test_a_header_says_what_an_exercise_asks_of_its_reader():
    about = Exercise(
        name="f", number="1.4", title="Attention", asks="", difficulty=2, importance=5, minutes=20
    )
    assert header_of(about, 8).split("\n") == [
        "## Exercise 1.4 · Attention",
        "",
        "Difficulty ●●○○○ (2 of 5) · importance ●●●●● (5 of 5) · about 20 minutes · 8 points",
    ]
    cut = header_of(replace(about, may_cut=("f", "g")), 8)
    assert cut.endswith("· 8 points\n\nGradients need not flow back through `f` and `g`.")


def test_a_notebook_is_its_text_with_the_headers_filled_in(assignment):
    notebook = build_notebook(assignment)
    assert [cell.cell_type for cell in notebook.cells] == [
        *("markdown", "code"),
        *("markdown", "code", "code", "code"),
        "markdown",
        *("markdown", "code", "code"),
    ]
    assert notebook.cells[0].source == "# Averages\n\nTwo exercises."
    assert notebook.cells[2].source.startswith("## Exercise 7.1 · Centre the rows\n\nDifficulty")
    assert "· about 10 minutes · 3 points\n\nMove the rows" in notebook.cells[2].source
    assert notebook.cells[7].source.endswith("· about 5 minutes · 2 points · goes deeper")
    assert cell_of(notebook, "centre").source.startswith("def centre(x: torch.Tensor)")
    assert cell_of(notebook, "twice-check").source == 'check("twice")'
    assert cell_of(notebook, "centre-check").metadata.nbgrader.points == 3


def test_the_line_says_what_lies_above_and_below_it(assignment):
    (line,) = filter(is_line, build_notebook(assignment).cells)
    assert "## Deeper" in line.source
    assert "is the core**: 1 exercise, about 10 minutes, 3 points." in line.source
    assert line.source.endswith("left for later: 1 exercise, about 5 minutes, 2 points.")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (("{{deeper}}", "No line."), "twice"),
        (("    deeper=True,\n", "", "checks.py"), "twice"),
        (("    minutes=10,\n", "    minutes=10,\n    deeper=True,\n", "checks.py"), "centre"),
    ],
)
def test_an_exercise_on_the_wrong_side_of_the_line_is_refused(edit, change, name):
    message = "exercises with deeper=True stand below a cell {{deeper}}, and all others above it"
    with pytest.raises(ValueError, match=f"{re.escape(message)}, got '{name}'"):
        build_notebook(edit(*change))


def test_points_are_written_in_the_checks_alone(edit):
    folder = edit("@points(2)", "@points(5)", "checks.py")
    notebook = build_notebook(folder)
    worth = [cell_of(notebook, f"{n}-check").metadata.nbgrader.points for n in ("centre", "twice")]
    assert worth == [6, 5]
    assert "· 6 points" in notebook.cells[2].source and "· 5 points" in notebook.cells[7].source


def test_ids_are_the_grade_ids_or_short_hashes(assignment):
    ids = [cell.id for cell in build_notebook(assignment).cells]
    assert ids[3:5] == ["centre", "centre-check"] and ids[8:10] == ["twice", "twice-check"]
    assert all(len(ids[i]) == 8 and int(ids[i], 16) >= 0 for i in (0, 1, 2, 5, 6, 7))
    assert len(set(ids)) == len(ids)


# Laws


def test_the_same_text_always_gives_the_same_bytes(assignment, tmp_path):
    for name in ("one", "two"):
        write_notebook(build_notebook(assignment), tmp_path / name)
    one = (tmp_path / "one").read_bytes()
    assert one == (tmp_path / "two").read_bytes() and one.endswith(b"}\n")
    notebook = nbformat.read(tmp_path / "one", as_version=4)
    nbformat.validate(notebook)
    assert notebook == build_notebook(assignment)


def test_only_the_cell_that_was_edited_gets_another_id(edit):
    before = [cell.id for cell in build_notebook(edit("Two exercises.", "Both exercises.")).cells]
    after = [cell.id for cell in build_notebook(edit("Both exercises.", "A pair.")).cells]
    assert [a == b for a, b in zip(before, after, strict=True)] == [False] + [True] * 9


def test_equal_cells_get_different_ids(edit):
    twin = "\n\n# %%\n".join(3 * ['print("one is done")'])
    ids = [cell.id for cell in build_notebook(edit('print("one is done")', twin)).cells]
    assert len(set(ids)) == len(ids) == 12
    assert ids[6:8] == [f"{ids[5]}-2", f"{ids[5]}-3"]


def test_the_layout_of_the_text_leaves_no_trace(edit):
    """Blank lines between cells, and cells that hold several blank lines."""
    folder = edit("import torch\n", "import torch\n\n\n\ndef helper():\n    pass\n\n\n\n\n")
    for cell in build_notebook(folder).cells:
        assert set(cell.metadata) <= {"nbgrader", "tags"}


def test_a_notebook_has_no_outputs_and_says_only_that_it_is_python(assignment):
    notebook = build_notebook(assignment)
    assert all(
        not c.outputs and c.execution_count is None for c in notebook.cells if "outputs" in c
    )
    assert notebook.metadata.pop("classroom").keys() == {"cells", "text"}
    assert notebook.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }


# Refusals


def refused(folder, said):
    with pytest.raises(ValueError) as raised:
        build_notebook(folder)
    assert str(raised.value) == f"averages.py: {said}"


def test_a_folder_of_another_name_is_refused(tmp_path):
    for name in ("attention", "attention_01", "01", "01_"):
        with pytest.raises(ValueError, match=f"must have a name like 01_attention, got '{name}'"):
            text_file(tmp_path / name)


def test_every_exercise_has_its_cell(edit):
    folder = edit('# %% exercise="twice"', "# %%")
    refused(folder, 'no cell begins with # %% exercise="twice"')


def test_a_cell_to_write_in_needs_checks(edit):
    folder = edit('# %% exercise="twice"', '# %% exercise="thrice"')
    refused(folder, "no checks for the cell of the exercise 'thrice'")


def test_two_cells_are_not_the_solution_of_one_exercise(edit):
    folder = edit('# %% exercise="twice"', '# %% exercise="centre"')
    refused(folder, "two cells are the solution of 'centre'")


def test_what_is_for_nbgrader_is_not_typed(edit):
    folder = edit('# %% exercise="twice"', '# %% nbgrader={"grade_id": "twice"}')
    refused(
        folder,
        'a cell has metadata of nbgrader\'s: write `# %% exercise="name"` above a solution; the '
        "rest is added",
    )


def test_a_header_names_an_exercise_that_is_checked(edit):
    folder = edit("{{exercise twice}}", "{{exercise thrice}}")
    refused(folder, "no checks for the exercise 'thrice'")


@pytest.mark.parametrize(
    "header",
    ["{{ exercise twice }}", "{{exercise  twice}}", "{{exercise twice}} now", "{{exercise}}"],
)
def test_a_header_that_would_be_handed_out_as_it_is_is_refused(edit, header):
    folder = edit("{{exercise twice}}", header)
    refused(
        folder, f"a header must be alone on its line, like {{{{exercise name}}}}, got {header!r}"
    )


def test_a_missing_cell_is_missed_by_its_grade_id(assignment):
    with pytest.raises(KeyError, match="the notebook has no cell with the grade id 'thrice'"):
        cell_of(build_notebook(assignment), "thrice")
