"""Checks a whole notebook outside JupyterLab: runs it and collects what its checks said."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError

from classroom.notebooks import CHECK_SUFFIX
from classroom.selfcheck import REPORT_TYPE, Report

SECONDS_PER_CELL = 60


@dataclass(frozen=True)
class NotebookReport:
    """What came of a notebook.

    Attributes:
        reports: One per check cell that ran.
        errors: One sentence per other cell that did not run to its end.

    """

    reports: tuple[Report, ...]
    errors: tuple[str, ...]

    @property
    def points(self) -> int:
        """What the notebook's exercises are worth."""
        return sum(report.points for report in self.reports)

    @property
    def earned(self) -> int:
        """What was earned."""
        return sum(report.earned for report in self.reports)


def check_notebook(
    path: Path,
    progress: Callable[[int, int], None] = lambda done, cells: None,
    seconds_per_cell: int = SECONDS_PER_CELL,
) -> NotebookReport:
    """Run a notebook from top to bottom in a fresh kernel, and collect its reports.

    A cell that fails or does not end stops itself, not the rest. The file is not changed.

    Args:
        path: The notebook.
        progress: Told the number of cells run and the number of cells.
        seconds_per_cell: Time after which a cell is interrupted.

    Raises:
        FileNotFoundError: If there is no such notebook.
        ValueError: If it is no notebook.

    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no notebook {path}")
    try:
        notebook = nbformat.read(path, as_version=4)
    except Exception as error:
        raise ValueError(f"{path} is not a readable notebook: {error}") from None
    client = NotebookClient(
        notebook,
        timeout=seconds_per_cell,
        interrupt_on_timeout=True,
        allow_errors=True,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.resolve().parent)}},
    )
    reports, errors = [], []
    with client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            progress(index, len(notebook.cells))
            if cell.cell_type != "code":
                continue
            try:
                client.execute_cell(cell, index)
            except CellTimeoutError:
                errors.append(f"{_name(cell, index)} did not end within {seconds_per_cell} s")
            reports.extend(_reports(cell))
            errors.extend(f"{_name(cell, index)} stopped: {said}" for said in _errors(cell))
        progress(len(notebook.cells), len(notebook.cells))
    return NotebookReport(tuple(reports), tuple(errors))


def _reports(cell: nbformat.NotebookNode) -> list[Report]:
    return [
        Report.from_json(output.data[REPORT_TYPE])
        for output in cell.outputs
        if output.output_type == "display_data" and REPORT_TYPE in output.data
    ]


def _errors(cell: nbformat.NotebookNode) -> list[str]:
    return [
        f"{output.ename}: {output.evalue}".splitlines()[0]
        for output in cell.outputs
        if output.output_type == "error"
    ]


def _name(cell: nbformat.NotebookNode, index: int) -> str:
    grade_id = cell.metadata.get("nbgrader", {}).get("grade_id", "")
    exercise = grade_id.removesuffix(CHECK_SUFFIX)
    return f"cell {index + 1} ({exercise})" if exercise else f"cell {index + 1}"
