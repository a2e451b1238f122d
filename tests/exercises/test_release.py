"""What students get is what the solutions give, without the solutions."""

import ast
import json
import re

import nbformat
import pytest
from draws import draw

from classroom.author.handout import record
from classroom.author.notebooks import cell_of, is_written
from classroom.author.release import differences
from classroom.calls.wire import pack, unpack
from classroom.course import CHECK_SUFFIX, PREPARED, is_line
from classroom.exercise.comparing import same
from classroom.exercise.prepared import recorded
from classroom.exercise.run import load_checks


@pytest.mark.slow
def test_the_exercises_are_exactly_what_the_solutions_give(root):
    assert differences(root) == []


@pytest.mark.slow
def test_results_that_a_release_keeps_are_those_of_a_new_run(assignment):
    """Of one exercise."""
    name = assignment.exercises[draw(assignment.name, len(assignment.exercises), "exercise")]
    [(_, recorder)] = record(assignment.folder, [name])
    assert same(unpack(pack(recorder.answers)), recorded(assignment.folder / PREPARED, name)), name


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
    for word in ("Difficulty", "importance", "minutes", "point", "Before you code"):
        assert word in text
    assert text.count("<details>") == text.count("</details>")
    below = text.split("*Before you code:*")[1]
    assert "<summary>Answers, after you have tried</summary>" in below.split("<summary>Hint")[0]


def test_numbers_rise_and_the_core_above_the_line_takes_60_to_90_minutes(assignment):
    notebook = nbformat.read(assignment.handout / assignment.notebook_name, as_version=4)
    lines = [at for at, cell in enumerate(notebook.cells) if is_line(cell)]
    exercises = load_checks(assignment.folder).values()
    assert len(lines) == any(about.deeper for about, _ in exercises)
    above, whole = (
        re.findall(r"^## Exercise \d+\.(\d+) ·", "\n".join(c.source for c in cells), re.MULTILINE)
        for cells in (notebook.cells[: lines[0] if lines else None], notebook.cells)
    )
    first = 0 if assignment.name == "00_preliminaries" else 1
    assert list(map(int, whole)) == list(range(first, first + len(exercises)))
    core = [about for about, _ in exercises if not about.deeper]
    assert len(core) == len(above)
    assert not lines or 60 <= sum(about.minutes for about in core) <= 90


def test_what_earns_the_points_of_a_written_answer_is_not_handed_out(assignment):
    rubrics, blanks = (
        written(assignment.folder, assignment),
        written(assignment.handout, assignment),
    )
    assert blanks == dict.fromkeys(rubrics, "YOUR ANSWER HERE")
    everything = (assignment.handout / assignment.notebook_name).read_text()
    for rubric in rubrics.values():
        assert rubric.startswith("**What earns the points**")
        assert json.dumps(rubric.splitlines()[-1])[1:-1] not in everything


def test_every_chapter_of_the_course_asks_for_an_answer_in_words(every_assignment):
    for assignment in every_assignment:
        rubrics = written(assignment.folder, assignment)
        assert len(rubrics) == 1, assignment.name
        assert "**Often seen, and wrong:**" in next(iter(rubrics.values()))


def written(folder, assignment):
    notebook = nbformat.read(folder / assignment.notebook_name, as_version=4)
    return {c.metadata.nbgrader.grade_id: c.source for c in notebook.cells if is_written(c)}


def test_what_is_handed_out_of_checks_computes_no_answer(assignment):
    whole = ast.parse((assignment.folder / "checks.py").read_text())
    text = (assignment.handout / "checks.py").read_text()
    left = {n.name: n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)}
    oracles = [
        node
        for node in ast.walk(whole)
        if isinstance(node, ast.FunctionDef) and "oracle" in map(ast.unparse, node.decorator_list)
    ]
    assert oracles
    for node in oracles:
        if node.name in left:
            assert [ast.unparse(line) for line in left[node.name].body] == ["..."]
    assert "PACKED" not in text
    assert not (assignment.handout / "mistakes.py").exists()
    assert (assignment.handout / "prepared.zip").stat().st_size < 2_000_000


def test_no_output_is_handed_out(assignment):
    for folder in (assignment.folder, assignment.handout):
        notebook = nbformat.read(folder / assignment.notebook_name, as_version=4)
        assert not any(cell.get("outputs") for cell in notebook.cells)
