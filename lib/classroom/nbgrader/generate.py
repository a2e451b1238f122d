"""Makes `nbgrader generate_assignment` keep what a class has: its handout and its grades.

Stock nbgrader deletes the released folder before it begins, and again at any error; and once a
submission is graded, it refuses exercises that are added or removed. nbgrader calls its converter
by name, and no setting replaces it; so `switch_on`, which `nbgrader_config.py` calls, does.
"""

import copy
import hashlib
import json
import os
import re
import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbgrader.api import (
    Comment,
    Grade,
    GradeCell,
    MissingEntry,
    SolutionCell,
    SourceCell,
    TaskCell,
)
from nbgrader.apps import api, generateassignmentapp
from nbgrader.converters import GenerateAssignment, NbGraderException
from nbgrader.preprocessors import SaveCells
from nbgrader.utils import compute_checksum, is_grade, is_solution
from traitlets import Bool, Dict

from classroom.course import CHECK_SUFFIX, is_line

_HEADING = re.compile(r"(?m)^## Exercise (\S+) ·")


class UpdateCells(SaveCells):
    """Saves the cells of an assignment, also when submissions of it are graded.

    A cell that is new gets a grade and a comment in each submission; what a cell had that is gone,
    goes. Points that a person gave, comments, due dates and penalties stay. Before something that
    a person wrote is lost with its exercise, the gradebook is copied to a file beside it.

    An exercise that does not count is worth 0 points in the gradebook, and as much as ever in the
    handout. Points that a person gives for it count all the same.
    """

    counted = Dict(
        help="By assignment, the exercises that count: names or numbers. If not listed, all count."
    ).tag(config=True)
    written = Bool(
        False,
        help="Whether written answers count, too, if `counted` does not list the assignment.",
    ).tag(config=True)

    core = Bool(
        False,
        help="Whether students get the core alone, the exercises above the line of each notebook, "
        "and only they count if `counted` does not list the assignment.",
    ).tag(config=True)

    def preprocess(
        self, nb: NotebookNode, resources: ResourcesDict
    ) -> tuple[NotebookNode, ResourcesDict]:
        """Save the cells of a notebook in the gradebook; the notebook stays as it is.

        Raises:
            ValueError: If an exercise is to count that the notebook does not have.

        """
        assignment = resources["nbgrader"]["assignment"]
        number, names, usual, is_below = "", {}, set(), False
        for cell in nb.cells:
            is_below = is_below or is_line(cell)
            if heading := _HEADING.search(cell.source) if cell.cell_type == "markdown" else None:
                number = heading[1]
            elif is_grade(cell):
                name = cell.metadata.nbgrader.grade_id
                names[name] = name if is_solution(cell) else number
                if (self.written or not is_solution(cell)) and not (self.core and is_below):
                    usual.add(names[name])
        wanted = set(self.counted.get(assignment, usual))
        known = {name.removesuffix(CHECK_SUFFIX) for name in names} | {*names.values()}
        if unknown := sorted(wanted - known):
            raise ValueError(f"{assignment} has no exercise {', '.join(unknown)} that could count")
        self._left_out = {
            name
            for name, number in names.items()
            if number not in wanted and name.removesuffix(CHECK_SUFFIX) not in wanted
        }
        return super().preprocess(nb, resources)

    def preprocess_cell(
        self, cell: NotebookNode, resources: ResourcesDict, cell_index: int
    ) -> tuple[NotebookNode, ResourcesDict]:
        """Remember a cell, as one without points if its exercise does not count."""
        saved = cell
        if is_grade(cell) and cell.metadata.nbgrader.grade_id in self._left_out:
            saved = copy.deepcopy(cell)
            saved.metadata.nbgrader.points = 0
            saved.metadata.nbgrader.checksum = compute_checksum(saved)
        super().preprocess_cell(saved, resources, cell_index)
        return cell, resources

    def _create_notebook(self, nb: NotebookNode) -> None:
        try:
            notebook = self.gradebook.find_notebook(self.notebook_id, self.assignment_id)
        except MissingEntry:
            pass
        else:
            if notebook.submissions:
                self._fit(notebook)
        super()._create_notebook(nb)

    def _fit(self, notebook: Any) -> None:
        """Give the notebook the cells that are about to be saved, in one transaction."""
        session = self.gradebook.db
        kinds = (
            (GradeCell, notebook.grade_cells, self.new_grade_cells, (Grade,)),
            (SolutionCell, notebook.solution_cells, self.new_solution_cells, (Comment,)),
            (TaskCell, notebook.task_cells, self.new_task_cells, (Grade, Comment)),
            (SourceCell, notebook.source_cells, self.new_source_cells, ()),
        )
        rows = [*(g for s in notebook.submissions for g in s.grades)]
        rows += [c for s in notebook.submissions for c in s.comments]
        gone = [c for _, there, wanted, _ in kinds for c in there if c.name not in wanted]
        lost = [row for row in rows if row.cell in gone]
        if any(_is_by_hand(row) for row in lost):
            self._keep_a_copy()
        for each in (*lost, *gone):
            session.delete(each)
        had = {(type(row), row.cell_id, row.notebook_id) for row in rows}
        for kind, there, wanted, of_each in kinds:
            cells = {cell.name: cell for cell in there if cell not in gone}
            for name, about in wanted.items():
                cell = cells.get(name) or kind(name=name, notebook=notebook, **about)
                session.add(cell)
                session.flush()  # which gives it its id
                for row in of_each:
                    for submission in notebook.submissions:
                        if (row, cell.id, submission.id) not in had:
                            session.add(row(cell_id=cell.id, notebook_id=submission.id))
        session.commit()
        session.expire_all()

    def _keep_a_copy(self) -> None:
        file = self.gradebook.engine.url.database
        if self.gradebook.engine.dialect.name == "sqlite" and file:
            copy = f"{file}.{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}"
            shutil.copy(file, copy)
            self.log.warning(
                "An exercise with points or comments given by hand is removed; %s keeps them", copy
            )


def leave_to_nobody(cell: NotebookNode) -> None:
    """Make a written answer that does not count look like a blank, which nobody has to grade."""
    cell.metadata.nbgrader.checksum = compute_checksum(cell)


def _is_by_hand(row: Any) -> bool:
    if isinstance(row, Comment):
        return bool(row.manual_comment)
    return row.manual_score is not None or row.extra_credit is not None


class KeepingGenerateAssignment(GenerateAssignment):
    """Makes a handout elsewhere, and lets it take the place of the earlier one when it is whole."""

    only_cells = False
    """Whether the handout is not for students, but for the gradebook."""

    def __init__(self, coursedir=None, **kwargs):
        super().__init__(coursedir=coursedir, **kwargs)
        self.preprocessors = [UpdateCells if p is SaveCells else p for p in self.preprocessors]

    def start(self) -> None:
        """Release the assignment; if that fails, everything released stays as it is."""
        course: Any = self.coursedir
        if not self.only_cells:
            self._require_fresh(Path(course.format_path(course.source_directory, ".", "")))
        settings = self.config.CourseDirectory
        earlier, named = course.release_directory, "release_directory" in settings
        released = Path(course.format_path(earlier, ".", ".")).resolve()
        released.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".release-", dir=released.parent) as scratch:
            # Our own preprocessor, too, takes the folder from these settings.
            course.release_directory = settings.release_directory = str(Path(scratch, "made"))
            try:
                super().start()
            finally:
                course.release_directory = settings.release_directory = earlier
                if not named:
                    del settings["release_directory"]
            for made in sorted(Path(scratch, "made").iterdir()):
                target = released / made.name
                target.parent.mkdir(exist_ok=True)
                if target.exists():
                    os.rename(target, Path(scratch, f"earlier-{made.name}"))
                os.rename(made, target)

    def _require_fresh(self, source: Path) -> None:
        """Refuse to hand out a notebook whose text says something else by now."""
        name = getattr(self.coursedir, "assignment_id", "")
        topic = source / name / name.partition("_")[2]
        text, notebook = topic.with_suffix(".py"), topic.with_suffix(".ipynb")
        if text.is_file() and notebook.is_file():
            about = json.loads(notebook.read_text(encoding="utf-8") or "{}").get("metadata", {})
            made = about.get("classroom", {}).get("text")
            if made and made != hashlib.sha256(text.read_bytes()).hexdigest():
                why = (
                    f"{text.name} has changed since {notebook.name}: run `classroom release {name}`"
                )
                self.log.error(why)
                raise NbGraderException(why)


def switch_on() -> None:
    """Let `nbgrader generate_assignment`, and formgrader's button for it, keep what a class has.

    Raises:
        RuntimeError: If this nbgrader calls its converter in another way.

    """
    for module in (generateassignmentapp, api):
        if not issubclass(getattr(module, "GenerateAssignment", object), GenerateAssignment):
            raise RuntimeError(f"{module.__name__} does not call GenerateAssignment by its name")
    generateassignmentapp.GenerateAssignment = api.GenerateAssignment = KeepingGenerateAssignment
