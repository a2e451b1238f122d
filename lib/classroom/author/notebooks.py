"""Assignments as text and as notebooks, and the cells that belong to an exercise.

Only the text is edited (`attention.py`, jupytext's percent format). A cell that begins with
`# %% exercise="name"` holds the solution of an exercise; the cell that checks it, nbgrader's
metadata and the points are added here. A cell of text that begins with
`# %% [markdown] written="name" points=3` holds what a person looks for in a written answer, in
whose place students get a blank. Before the first code comes a cell for whoever has the notebook
without the course. Cell ids are the grade ids, or a hash of the source, so the same text always
gives the same bytes.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from classroom.calls.subject import count
from classroom.course import CHECK_SUFFIX, DEEPER, text_file
from classroom.exercise.expect import Exercise
from classroom.exercise.run import list_checks, load_checks

_HEADER = re.compile(r"^\{\{exercise (\w+)\}\}$", re.MULTILINE)
_QUESTION = re.compile(r"^\{\{question (\w+)\}\}$", re.MULTILINE)
_LINE = "{{deeper}}"
# Metadata by which jupytext could restore the layout of the text; the notebook does not need it.
_LAYOUT_OF_THE_TEXT = ("lines_to_next_cell", "lines_to_end_of_cell_marker", "cell_marker")


def build_notebook(folder: Path) -> NotebookNode:
    """Make the instructor's notebook of an assignment from its text.

    A line `{{exercise name}}` in the text becomes the exercise's number, title, difficulty,
    importance, minutes and points, which come from its checks. After the cell of its solution comes
    a cell that checks it. A line `{{question name}}` becomes the heading of a written answer. A
    cell `{{deeper}}` becomes the line between the core and the exercises that go deeper.

    Args:
        folder: An assignment's folder with its text and `checks.py`.

    Returns:
        A notebook without outputs.

    Raises:
        ValueError: If the text does not match the checks.

    """
    import jupytext  # it depends on a server, which grading does not need

    text = text_file(folder)
    exercises = {name: found for name, (found, _) in load_checks(folder).items()}
    points = {name: sum(p for _, p in checks) for name, checks in list_checks(folder).items()}
    notebook = jupytext.read(text, fmt="py:percent")
    written = _mark_written(notebook, text)
    _draw_line(notebook, exercises, points, text)
    for cell in notebook.cells:
        for name in _LAYOUT_OF_THE_TEXT:
            cell.metadata.pop(name, None)
        if cell.cell_type == "markdown":
            cell.source = _fill_headers(cell.source, exercises, points, text)
            cell.source = _QUESTION.sub(lambda m: _question(m[1], written, text), cell.source)
    _add_checks(notebook, points, text)
    _add_start(notebook, folder)
    if missing := sorted(exercises.keys() - set(_HEADER.findall(_markdown_of(text)))):
        raise ValueError(f"{text.name}: no line {{{{exercise {missing[0]}}}}} heads its exercise")
    _give_stable_ids(notebook)
    notebook.metadata = NotebookNode(
        kernelspec={"display_name": "Python 3", "language": "python", "name": "python3"},
        language_info={"name": "python"},
    )
    notebook.metadata.classroom = {"cells": digest_of(notebook), "text": digest_of_text(text)}
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    nbformat.validate(notebook)
    return notebook


def digest_of(notebook: NotebookNode) -> str:
    """Stand for what an author writes into the cells of a notebook, whatever they have shown."""
    cells = [(c.cell_type, c.source, c.metadata.get("nbgrader")) for c in notebook.cells]
    return hashlib.sha256(json.dumps(cells, sort_keys=True).encode()).hexdigest()


def digest_of_text(text: Path) -> str:
    """Stand for the text that a notebook is made from."""
    return hashlib.sha256(text.read_bytes()).hexdigest()


def require_unedited(notebook: Path, text: Path) -> None:
    """Require that a notebook is as it was made, because its text is about to replace it.

    Raises:
        ValueError: If somebody has edited it since.

    """
    try:
        there = nbformat.read(notebook, as_version=4)
        made = there.metadata.classroom.cells
    except (AttributeError, FileNotFoundError, nbformat.reader.NotJSONError):
        return
    if digest_of(there) != made:
        raise ValueError(
            f"{notebook.name} was edited since it was made from {text.name}: put the change into "
            f"{text.name}, delete the notebook, and release again"
        )


def write_notebook(notebook: NotebookNode, path: Path) -> None:
    """Write a notebook; equal notebooks give equal bytes."""
    path.write_text(nbformat.writes(notebook, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def cell_of(notebook: NotebookNode, grade_id: str) -> NotebookNode:
    """Return the cell with this grade id.

    Raises:
        KeyError: If there is none.

    """
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("grade_id") == grade_id:
            return cell
    raise KeyError(f"the notebook has no cell with the grade id {grade_id!r}")


def header_of(about: Exercise, points: int) -> str:
    """Return the heading of an exercise and what stands under it."""
    deeper = " · goes deeper" if about.deeper else ""
    names = " and ".join(f"`{name}`" for name in about.may_cut)
    cut = f"\n\nGradients need not flow back through {names}." if names else ""
    return (
        f"## Exercise {about.number} · {about.title}\n\n"
        f"Difficulty {_dots(about.difficulty)} · importance {_dots(about.importance)} · "
        f"about {about.minutes} minutes · {count(points, 'point')}{deeper}{cut}"
    )


def _markdown_of(text: Path) -> str:
    return re.sub(r"(?m)^# ?", "", text.read_text(encoding="utf-8"))


def _dots(number: int) -> str:
    return f"{'●' * number}{'○' * (5 - number)} ({number} of 5)"


def _fill_headers(
    source: str, exercises: Mapping[str, Exercise], points: Mapping[str, int], text: Path
) -> str:
    def header(match: re.Match[str]) -> str:
        name = match[1]
        if name not in exercises:
            raise ValueError(f"{text.name}: no checks for the exercise {name!r}")
        return header_of(exercises[name], points[name])

    filled = _HEADER.sub(header, source)
    if left := re.search(r"\{\{\s*exercise.*", filled):
        raise ValueError(
            f"{text.name}: a header must be alone on its line, like {{{{exercise name}}}}, "
            f"got {left[0]!r}"
        )
    return filled


def _draw_line(
    notebook: NotebookNode,
    exercises: Mapping[str, Exercise],
    points: Mapping[str, int],
    text: Path,
) -> None:
    """Say at the line what lies above and below it, and mark that cell."""
    above, _, below = "\n".join(cell.source for cell in notebook.cells).partition(_LINE)
    core, deeper = (
        [exercises[name] for name in _HEADER.findall(part) if name in exercises]
        for part in (above, below)
    )
    wrong = [about.name for about in core if about.deeper]
    wrong += [about.name for about in deeper if not about.deeper]
    if wrong:
        raise ValueError(
            f"{text.name}: exercises with deeper=True stand below a cell {_LINE}, and all others "
            f"above it, got {wrong[0]!r}"
        )

    def together(part: list[Exercise]) -> str:
        minutes = sum(about.minutes for about in part)
        worth = sum(points[about.name] for about in part)
        return f"{count(len(part), 'exercise')}, about {minutes} minutes, {count(worth, 'point')}"

    for cell in notebook.cells:
        if cell.source == _LINE:
            cell.source = (
                f"---\n\n## Deeper\n\n**Everything above is the core**: {together(core)}. What "
                f"follows goes deeper and can be left for later: {together(deeper)}."
            )
            cell.metadata.tags = [DEEPER]


def is_written(cell: NotebookNode) -> bool:
    """Return whether a cell holds a written answer, which a person grades."""
    about = cell.metadata.get("nbgrader", {})
    return bool(about.get("grade") and about.get("solution"))


def _mark_written(notebook: NotebookNode, text: Path) -> dict[str, int]:
    """Mark the cells of written answers for nbgrader; return what each is worth."""
    worth: dict[str, int] = {}
    for cell in notebook.cells:
        name, points = (cell.metadata.pop(key, None) for key in ("written", "points"))
        if name is None:
            continue
        if cell.cell_type != "markdown" or type(points) is not int or points < 1 or name in worth:
            raise ValueError(
                f"{text.name}: a written answer is one cell that begins with "
                f'# %% [markdown] written="{name}" points=3, got points={points!r}'
            )
        worth[name] = points
        cell.metadata.nbgrader = _about(name, grade=True, solution=True, points=points)
    headed = set(_QUESTION.findall(_markdown_of(text)))
    if missing := sorted(worth.keys() - headed):
        raise ValueError(f"{text.name}: no line {{{{question {missing[0]}}}}} heads its answer")
    return worth


def _question(name: str, written: Mapping[str, int], text: Path) -> str:
    if name not in written:
        raise ValueError(f"{text.name}: no cell for the written answer {name!r}")
    return (
        "## In your own words\n\n"
        f"Optional · {written[name]} points if your course counts it · graded by a person, not by "
        "a check"
    )


def _add_checks(notebook: NotebookNode, points: Mapping[str, int], text: Path) -> None:
    """Mark the cells of solutions for nbgrader, and put the cell that checks it after each."""
    cells, solved = [], set()
    for cell in notebook.cells:
        cells.append(cell)
        if "nbgrader" in cell.metadata and not is_written(cell):
            raise ValueError(
                f'{text.name}: a cell has metadata of nbgrader\'s: write `# %% exercise="name"` '
                "above a solution; the rest is added"
            )
        name = cell.metadata.pop("exercise", None)
        if name is None:
            continue
        if name not in points:
            raise ValueError(f"{text.name}: no checks for the cell of the exercise {name!r}")
        if name in solved:
            raise ValueError(f"{text.name}: two cells are the solution of {name!r}")
        solved.add(name)
        cell.metadata.nbgrader = _about(name, solution=True)
        about = _about(name + CHECK_SUFFIX, grade=True, locked=True, points=points[name])
        check = nbformat.v4.new_code_cell(f'check("{name}")', metadata={"nbgrader": about})
        cells.append(check)
    if missing := [name for name in points if name not in solved]:
        raise ValueError(f'{text.name}: no cell begins with # %% exercise="{missing[0]}"')
    notebook.cells = cells


_START = """\
#@title Run this cell first: it finds the course, or says what to do
import sys

COURSE = "{archive}"
ON_COLAB = "google.colab" in sys.modules

try:
    import classroom
except ModuleNotFoundError:
    if not ON_COLAB:

        class CourseNotFound(Exception):
            def _render_traceback_(self):  # the sentence is enough
                return [str(self)]

        raise CourseNotFound(
            "The course is not installed for this kernel. Choose the kernel of the environment "
            "that has it, or open a terminal in the folder that holds README.md, and run\\n\\n"
            f'    "{{sys.executable}}" -m pip install -e .\\n\\n'
            "Then restart the kernel."
        ) from None
    get_ipython().run_line_magic("pip", f"install --quiet {{COURSE}}")

if ON_COLAB:
    from classroom.student.colab import begin

    begin("{assignment}", COURSE)"""


def _add_start(notebook: NotebookNode, folder: Path) -> None:
    """Put a folded cell before the first code, if the course is published somewhere."""
    try:
        about = tomllib.loads(Path(folder.parents[1], "pyproject.toml").read_text())["project"]
        archive = f"{about['urls']['Repository']}/archive/refs/tags/v{about['version']}.tar.gz"
    except (FileNotFoundError, KeyError):
        return
    cell = nbformat.v4.new_code_cell(
        _START.format(archive=archive, assignment=folder.name),
        metadata={"cellView": "form", "jupyter": {"source_hidden": True}},
    )
    first = next(i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code")
    notebook.cells.insert(first, cell)


def _about(grade_id: str, **marks: bool | int) -> dict[str, bool | int | str]:
    """Return nbgrader's metadata of a cell."""
    plain = {"grade": False, "locked": False, "solution": False, "task": False}
    return {**plain, "grade_id": grade_id, "schema_version": 3, **marks}


def _give_stable_ids(notebook: NotebookNode) -> None:
    taken: set[str] = set()
    for cell in notebook.cells:
        about = cell.metadata.get("nbgrader")
        wanted = about.grade_id if about else hashlib.sha256(cell.source.encode()).hexdigest()[:8]
        number, cell_id = 1, wanted[:60]
        while cell_id in taken:
            number += 1
            cell_id = f"{wanted[:60]}-{number}"
        taken.add(cell_id)
        cell["id"] = cell_id
