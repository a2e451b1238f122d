"""What every part of the course agrees on: names, and where an assignment's files lie.

It imports nothing, so that a command which only reads files starts at once.
"""

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
SOLUTIONS_VARIABLE = "CLASSROOM_SOLUTIONS"
"""Environment variable that names the folder of solutions whose whole checks are run."""
SEED_VARIABLE = "CLASSROOM_SEED"
"""Environment variable that replaces the published seed."""


def assignments(root: Path) -> list[Path]:
    """Return the folders of all assignments under `root`, in order."""
    return sorted(path.parent for path in root.glob("[0-9]*_*/checks.py"))


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
        raise ValueError(
            f"the folder of an assignment is called like 01_attention, got {folder.name!r}"
        )
    return folder / f"{topic}.py"
