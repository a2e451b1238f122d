"""Assignments as text and as notebooks, and the cells that belong to an exercise.

The text (`attention.py`, jupytext's percent format with nbgrader's metadata in the cell markers)
is the only file that is edited. Cell ids are the grade ids, or a hash of the source, so that the
same text always gives the same bytes.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from classroom.checks import Exercise
from classroom.selfcheck import list_checks, load_checks

CHECK_SUFFIX = "-check"
_HEADER = re.compile(r"^\{\{exercise (\w+)\}\}$", re.MULTILINE)
# What jupytext keeps to write the same text again: of no use once the notebook is made.
_LAYOUT_OF_THE_TEXT = ("lines_to_next_cell", "lines_to_end_of_cell_marker", "cell_marker")


def text_file(folder: Path) -> Path:
    """Return the text of an assignment's notebook: `01_attention` has `attention.py`.

    Raises:
        ValueError: If the folder's name does not have that form.

    """
    number, _, topic = folder.name.partition("_")
    if not number.isdigit() or not topic:
        raise ValueError(
            f"the folder of an assignment is called like 01_attention, got {folder.name!r}"
        )
    return folder / f"{topic}.py"


def assignments(root: Path) -> list[Path]:
    """Return the folders of all assignments under `root`, in order."""
    return sorted(path.parent for path in root.glob("[0-9]*_*/checks.py"))


def build_notebook(folder: Path) -> NotebookNode:
    """Make the instructor's notebook of an assignment from its text.

    A line `{{exercise name}}` in the text becomes the exercise's number, title, difficulty,
    importance, minutes and points, as its checks give them.

    Args:
        folder: An assignment's folder with its text, `checks.py` and so on.

    Returns:
        A notebook without outputs.

    Raises:
        ValueError: If the text and the checks do not fit together.

    """
    import jupytext  # it brings a server along, and those who grade need none of it

    text = text_file(folder)
    exercises = {name: found for name, (found, _) in load_checks(folder).items()}
    points = {name: sum(p for _, p in checks) for name, checks in list_checks(folder).items()}
    notebook = jupytext.read(text, fmt="py:percent")
    for cell in notebook.cells:
        for name in _LAYOUT_OF_THE_TEXT:
            cell.metadata.pop(name, None)
        if cell.cell_type == "markdown":
            cell.source = _fill_headers(cell.source, exercises, points, text)
    _require_fit(notebook, points, text)
    _give_stable_ids(notebook)
    notebook.metadata = NotebookNode(
        kernelspec={"display_name": "Python 3", "language": "python", "name": "python3"},
        language_info={"name": "python"},
    )
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    nbformat.validate(notebook)
    return notebook


def write_notebook(notebook: NotebookNode, path: Path) -> None:
    """Write a notebook so that equal notebooks are equal bytes."""
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
    """Return the heading of an exercise and the line under it."""
    optional = " · optional" if about.optional else ""
    return (
        f"## Exercise {about.number} · {about.title}\n\n"
        f"Difficulty {_dots(about.difficulty)} · importance {_dots(about.importance)} · "
        f"about {about.minutes} minutes · {points} points{optional}"
    )


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
            f"{text.name}: a header stands alone on a line, like {{{{exercise name}}}}, "
            f"got {left[0]!r}"
        )
    return filled


def _require_fit(notebook: NotebookNode, points: Mapping[str, int], text: Path) -> None:
    """Require one solution cell and one grade cell per exercise, with the checks' points."""
    cells = _cells_by_grade_id(notebook, text)
    for name, expected in points.items():
        solution, grade = cells.pop(name, None), cells.pop(name + CHECK_SUFFIX, None)
        if solution is None or not solution.metadata.nbgrader.solution:
            raise ValueError(f"{text.name}: no solution cell with the grade id {name!r}")
        if grade is None or not grade.metadata.nbgrader.grade:
            raise ValueError(
                f"{text.name}: no grade cell with the grade id {name + CHECK_SUFFIX!r}"
            )
        worth = grade.metadata.nbgrader.get("points")
        if worth != expected:
            raise ValueError(
                f"{text.name}: {name}{CHECK_SUFFIX} is worth {worth} points, its checks "
                f"add up to {expected}"
            )
        if f'check("{name}")' not in grade.source:
            raise ValueError(f"{text.name}: {name}{CHECK_SUFFIX} does not call check({name!r})")
    if unknown := [grade_id for grade_id, cell in cells.items() if cell.metadata.nbgrader.grade]:
        raise ValueError(f"{text.name}: graded cells without checks: {', '.join(unknown)}")


def _cells_by_grade_id(notebook: NotebookNode, text: Path) -> dict[str, NotebookNode]:
    cells: dict[str, NotebookNode] = {}
    for cell in notebook.cells:
        about = cell.metadata.get("nbgrader")
        if about is None:
            continue
        if missing := [key for key in ("grade_id", "grade", "solution") if key not in about]:
            raise ValueError(f"{text.name}: a cell for nbgrader lacks {', '.join(missing)}")
        if about.grade_id in cells:
            raise ValueError(f"{text.name}: two cells have the grade id {about.grade_id!r}")
        cells[about.grade_id] = cell
    return cells


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
