"""Checks a whole notebook outside JupyterLab: runs it and collects the reports of its checks."""

import contextlib
import logging
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError

from classroom.course import CHECK_SUFFIX, REPORT_TYPE, is_line
from classroom.exercise.report import CheckResult, Report, next_step
from classroom.student.connections import own_connection

SECONDS_PER_CELL = 60
_NOT_BEGUN = "stopped: NotImplementedError"  # by a cell that tries an exercise


@dataclass(frozen=True)
class NotebookReport:
    """The outcome of a notebook.

    Attributes:
        reports: One per check cell, even if it did not get as far as checking.
        errors: One sentence per cell that did not run to its end.
        num_core: How many of the reports, from the first on, are those of the core; if the
            notebook has no line below which exercises go deeper, None.

    """

    reports: tuple[Report, ...]
    errors: tuple[str, ...]
    num_core: int | None = None

    @property
    def points(self) -> int:
        """What the notebook's exercises are worth."""
        return sum(report.points for report in self.reports)

    @property
    def earned(self) -> int:
        """What was earned."""
        return sum(report.earned for report in self.reports)

    @property
    def unfinished(self) -> tuple[Report, ...]:
        """Exercises that have points left to earn."""
        return tuple(report for report in self.reports if report.earned < report.points)

    @property
    def next_step(self) -> str:
        """What comes next, as the end of a sentence; empty if nothing does."""
        if not self.unfinished:
            return ""
        core = self.reports[: self.num_core]
        is_core = self.num_core is None or self.unfinished[0] in core
        points = None if is_core else sum(report.points for report in core)
        return f"; {next_step(self.unfinished[0].title, points)}"


def check_notebook(
    path: Path,
    progress: Callable[[int, int], None] = lambda done, cells: None,
    seconds_per_cell: int = SECONDS_PER_CELL,
) -> NotebookReport:
    """Run a notebook from top to bottom in a fresh Jupyter kernel, and collect its reports.

    A cell that fails or does not end is stopped; the others still run. The file is not changed.

    Args:
        path: The notebook.
        progress: Called with the number of cells run and the number of cells.
        seconds_per_cell: Time after which a cell is interrupted.

    Raises:
        FileNotFoundError: If there is no such notebook.
        ValueError: If the file is not a notebook.

    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no notebook {path}, and no folder of this name")
    try:
        notebook = nbformat.read(path, as_version=4)
    except Exception as error:
        raise ValueError(f"{path} is not a readable notebook: {error}") from None
    with own_connection() as config:
        client = NotebookClient(
            notebook,
            config=config,
            timeout=seconds_per_cell,
            interrupt_on_timeout=True,
            allow_errors=True,
            kernel_manager_class=_Kernel,
            kernel_name="python3",
            log=logging.Logger("notebook", logging.CRITICAL),  # the report says what it would
            resources={"metadata": {"path": str(path.resolve().parent)}},
        )
        reports, errors, num_core = [], [], None
        # What the Jupyter kernel writes to stderr is not for the student.
        with client.setup_kernel(stderr=subprocess.DEVNULL):
            alive = True
            for index, cell in enumerate(notebook.cells):
                progress(index, len(notebook.cells))
                if is_line(cell):
                    num_core = len(reports)
                if cell.cell_type != "code":
                    continue
                cell.outputs = []
                if alive:
                    said, alive = _run(client, cell, index)
                    if "nbgrader" in cell.metadata or said != [_NOT_BEGUN]:
                        errors.extend(f"{_name(cell, index)} {sentence}" for sentence in said)
                reports.extend(_reports(cell))
            progress(len(notebook.cells), len(notebook.cells))
        return NotebookReport(tuple(reports), tuple(errors), num_core)


class _Kernel(AsyncKernelManager):
    """Interrupts a cell that takes too long, and shuts down if that cell continues."""

    interrupts = 0

    async def interrupt_kernel(self) -> None:
        self.interrupts += 1
        if self.interrupts == 1:
            await super().interrupt_kernel()
        else:
            await self.shutdown_kernel(now=True)


def _run(client: NotebookClient, cell: nbformat.NotebookNode, index: int) -> tuple[list[str], bool]:
    """Run a cell; return what stopped it, and whether the Jupyter kernel is still alive."""
    kernel = client.km
    assert isinstance(kernel, _Kernel)
    kernel.interrupts = 0
    too_long = f"did not end within {client.timeout} s"
    try:
        client.execute_cell(cell, index)
    except DeadKernelError:
        what = (
            f"{too_long} and could not be stopped"
            if kernel.interrupts
            else "ended the Jupyter kernel"
        )
        return [f"{what}: the cells below it did not run"], False
    if kernel.interrupts:
        return [too_long], True
    return [f"stopped: {said}" for said in _errors(cell)], True


def _reports(cell: nbformat.NotebookNode) -> list[Report]:
    """Return the reports of a cell; a check without a report earns nothing."""
    reports = []
    for output in cell.outputs:
        if output.output_type == "display_data" and REPORT_TYPE in output.data:
            # Data under this type that is not a report was not made by a check.
            with contextlib.suppress(KeyError, TypeError):
                reports.append(Report.from_json(output.data[REPORT_TYPE]))
    about = cell.metadata.get("nbgrader", {})
    if about.get("grade") and not reports:
        exercise = about["grade_id"].removesuffix(CHECK_SUFFIX)
        result = CheckResult("the check ran to its end", int(about["points"]), 0)
        reports.append(Report(exercise, exercise, (result,)))
    return reports


def _errors(cell: nbformat.NotebookNode) -> list[str]:
    return [
        f"{output.ename}: {output.evalue}".splitlines()[0].removesuffix(": ")
        for output in cell.outputs
        if output.output_type == "error"
    ]


def _name(cell: nbformat.NotebookNode, index: int) -> str:
    grade_id = cell.metadata.get("nbgrader", {}).get("grade_id", "")
    exercise = grade_id.removesuffix(CHECK_SUFFIX)
    return f"cell {index + 1} ({exercise})" if exercise else f"cell {index + 1}"
