"""What students get is what the solutions give, without the solutions."""

import nbformat

from classroom.notebooks import CHECK_SUFFIX, cell_of
from classroom.release import differences


def test_the_exercises_are_exactly_what_the_solutions_give(root):
    assert differences(root) == []


def test_a_released_cell_holds_no_line_of_its_solution(exercise):
    assignment, name = exercise
    released = assignment.blank(name).cell
    solution = assignment.solution(name).cell
    inside = False
    for line in solution.splitlines():
        if "SOLUTION" in line:
            inside = "BEGIN" in line
        elif inside and line.strip():
            assert line.strip() not in released


def test_every_exercise_can_be_written_and_its_check_cannot(exercise):
    assignment, name = exercise
    notebook = nbformat.read(assignment.handout / assignment.notebook_name, as_version=4)
    solution, grade = cell_of(notebook, name), cell_of(notebook, name + CHECK_SUFFIX)
    assert solution.metadata.get("editable", True)
    assert grade.metadata.editable is False
    assert grade.source == f'check("{name}")'
    assert "raise NotImplementedError()" in solution.source


def test_every_exercise_says_how_hard_it_is_and_folds_its_hints(exercise):
    assignment, name = exercise
    notebook = nbformat.read(assignment.handout / assignment.notebook_name, as_version=4)
    position = notebook.cells.index(cell_of(notebook, name))
    text = ""
    for cell in reversed(notebook.cells[:position]):
        text = cell.source + text
        if "Difficulty" in cell.source:
            break
    for word in ("Difficulty", "importance", "minutes", "points", "Before you code"):
        assert word in text
    assert text.count("<details>") == text.count("</details>")


def test_no_output_is_handed_out(assignment):
    for folder in (assignment.folder, assignment.handout):
        notebook = nbformat.read(folder / assignment.notebook_name, as_version=4)
        assert not any(cell.get("outputs") for cell in notebook.cells)
