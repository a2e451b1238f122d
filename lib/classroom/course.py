"""What every part of the course agrees on: names, and where an assignment's files lie.

It imports nothing of ours, so that a command which only reads files starts at once.
"""

import os
from pathlib import Path
from typing import Any

CHECK_SUFFIX = "-check"
"""Ends the grade id of the cell that checks an exercise; the answer's cell has the bare name."""
DEEPER = "deeper"
"""Tags the cell of a notebook below which exercises go deeper than the core."""
REPORT_TYPE = "application/vnd.classroom.report+json"
"""MIME type under which a check's report lies among the outputs of its cell."""
PUBLISHED_SEED = "attention"
"""Inputs drawn from it are those that students see."""
PREPARED = "prepared.zip"
"""Name of the file that stands for known mistakes in an assignment as it is handed out."""
MADE_FROM = "made_from.json"
"""Name of the file in a folder of solutions that says from which code those were made."""
SOLUTIONS_VARIABLE = "CLASSROOM_SOLUTIONS"
"""Environment variable that names the folder of solutions whose whole checks are run."""
SEED_VARIABLE = "CLASSROOM_SEED"
"""Environment variable that replaces the published seed."""


def assignments(root: Path) -> list[Path]:
    """Return the folders of all assignments under `root`, in order."""
    return sorted(path.parent for path in root.glob("[0-9]*_*/checks.py"))


def all_solutions(root: Path) -> list[Path]:
    """Return the folders of all assignments of a course with solutions, in order.

    Raises:
        FileNotFoundError: If there are none.

    """
    if found := assignments(root / "solutions"):
        return found
    raise FileNotFoundError(
        f"there are no assignments under {root / 'solutions'}: "
        "specify with --root where the course is"
    )


def is_line(cell: Any) -> bool:
    """Return whether a cell of a notebook is the line between the core and what goes deeper."""
    return DEEPER in cell.metadata.get("tags", ())


def text_file(folder: Path) -> Path:
    """Return the text of an assignment's notebook: `01_attention` has `attention.py`.

    Raises:
        ValueError: If the folder's name does not have that form.

    """
    number, _, topic = folder.name.partition("_")
    if not number.isdigit() or not topic:
        raise ValueError(f"an assignment must have a name like 01_attention, got {folder.name!r}")
    return folder / f"{topic}.py"


def is_handout(folder: Path) -> bool:
    """Return whether a folder holds prepared results instead of known mistakes."""
    return (folder / PREPARED).exists() and not (folder / "mistakes.py").exists()


def folder_for(folder: Path, seed: str) -> Path:
    """Return the folder whose checks can be run with a seed.

    A handout supports only the published seed. For other seeds, the solutions that it was made from
    are used if they are in `solutions/` next to its parent folder, as on an instructor's machine.
    If the variable `CLASSROOM_SOLUTIONS` is set, as by `nbgrader autograde`, the solutions there
    are used for every seed, so that files which a student submitted do not count.

    Raises:
        ValueError: If the seed needs the solutions and they are not there.

    """
    name = folder.resolve().name
    if solutions := os.environ.get(SOLUTIONS_VARIABLE):
        return Path(solutions, name)
    if seed == PUBLISHED_SEED or not is_handout(folder):
        return folder
    whole = folder.resolve().parents[1] / "solutions" / name
    if not (whole / "checks.py").exists():
        raise ValueError(
            f"without the course's solutions the seed must be {PUBLISHED_SEED!r}, for which "
            f"results are prepared, got {seed!r}"
        )
    return whole
