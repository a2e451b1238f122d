"""Writes scores that were found elsewhere to where nbgrader keeps its own.

What nbgrader reads from a notebook's outputs is put there: the number first, so that nothing that
code printed can be taken for one. Then nbgrader's own pieces carry it into the gradebook and into
`autograded/`, where its feedback, its formgrader and its export find it.
"""

import contextlib
import copy
import glob
import logging
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbgrader.api import (
    BaseCell,
    Comment,
    Grade,
    Gradebook,
    GradeCell,
    MissingEntry,
    TaskCell,
)
from nbgrader.converters import GenerateAssignment, NbGraderException
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import AssignLatePenalties, SaveAutoGrades
from nbgrader.utils import is_grade
from sqlalchemy.exc import SAWarning
from sqlalchemy.orm import scoped_session, sessionmaker
from traitlets.config import Config

from classroom.feedback import (
    FIRST_WORDS_ID,
    Line,
    Standing,
    page,
    put_beside,
    reports_in,
    write_page,
)
from classroom.notebooks import CHECK_SUFFIX
from classroom.release import nbgrader_config
from classroom.report import Verdict
from classroom.selfcheck import REPORT_TYPE, Report

_TIME = "timestamp.txt"
_SECRET = "submission_secret.txt"
"""Which nbgrader's exchange puts into a submission, and by which it hands back its page."""


@dataclass(frozen=True)
class Graded:
    """A submission and what it earned.

    Attributes:
        student: Who handed it in.
        received: When.
        notebook: Its cells, each with the metadata that were handed out.
        reports: What was found, by exercise; one that is missing earns nothing.

    """

    student: str
    received: datetime
    notebook: NotebookNode
    reports: Mapping[str, Report]


def with_scores(notebook: NotebookNode, reports: Mapping[str, Report]) -> NotebookNode:
    """Give each grade cell the outputs of its report, and nothing else.

    Args:
        notebook: Is left as it is.
        reports: By exercise.

    Returns:
        A copy in which each grade cell holds a number: where there is no report, 0, because
        nbgrader gives full marks to a cell that says nothing.

    """
    marked = copy.deepcopy(notebook)
    for cell in filter(is_grade, marked.cells):
        exercise = cell.metadata.nbgrader.grade_id.removesuffix(CHECK_SUFFIX)
        report = reports.get(exercise)
        earned = report.earned if report else 0
        # nbgrader takes what is negative or no number for full marks: neither may come so far.
        if type(earned) is not int or not 0 <= earned <= cell.metadata.nbgrader.points:
            raise ValueError(
                f"the points of {exercise} must be a whole number from 0 to "
                f"{cell.metadata.nbgrader.points}, got {earned!r}"
            )
        number = {"text/plain": str(earned)}
        cell.outputs = [nbformat.v4.new_output("execute_result", number, execution_count=None)]
        cell.execution_count = None
        if report:
            shown = {
                "text/plain": report.to_text(),
                "text/html": report.to_html(),
                REPORT_TYPE: report.to_json(),
            }
            cell.outputs.append(nbformat.v4.new_output("display_data", shown))
    return marked


def with_first_words(notebook: NotebookNode, words: str) -> NotebookNode:
    """Return a notebook that begins with words of ours; one that does already is left as it is."""
    if notebook.cells and notebook.cells[0].source == words:
        return notebook
    cell = nbformat.v4.new_markdown_cell(words, id=FIRST_WORDS_ID)
    if notebook.nbformat_minor < 5:
        del cell["id"]  # not known yet in that version of the format
    begun = copy.copy(notebook)
    begun.cells = [cell, *notebook.cells]
    return begun


class GradebookWriter:
    """The one writer of a course's gradebook.

    Use it as a context manager. Nobody else should write scores of the assignment meanwhile.

    Args:
        root: The course's folder, in which `nbgrader_config.py` lies.
        assignment: Whose scores are written, such as `01_attention`.
        notebook_name: Name of its notebook without the ending, such as `attention`.

    """

    def __init__(self, root: Path, assignment: str, notebook_name: str):
        self._config = nbgrader_config(root)
        self._config.CourseDirectory.root = str(root.resolve())
        self._config.CourseDirectory.assignment_id = assignment
        self._course = CourseDirectory(config=self._config)
        self._assignment = assignment
        self._notebook_name = notebook_name

    def __enter__(self) -> "GradebookWriter":
        with _our_programs():
            self._gradebook = Gradebook(self._course.db_url, self._course.course_id)
            try:
                self._gradebook.find_notebook(self._notebook_name, self._assignment)
            except MissingEntry:
                self._gradebook.close()
                self._tell_of_the_assignment()
                self._gradebook = Gradebook(self._course.db_url, self._course.course_id)
        return self

    def __exit__(self, *exception: object) -> None:
        self._gradebook.close()

    def write(self, graded: Graded) -> None:
        """Put one submission into the gradebook and into `autograded/`, wholly or not at all.

        Scores that were given by hand stay. A late submission gets the course's penalty, from the
        time at which it was received.

        Raises:
            ValueError: If a report holds more points than there are, or the student's name cannot
                be that of a folder.

        """
        marked = with_scores(graded.notebook, graded.reports)
        _require_plain(graded.student)
        self._write_scores(graded, marked)
        self._write_notebook(graded, marked)
        self._write_time_of_receipt(graded)
        self._assign_penalty(graded, marked)

    def write_verdict(self, verdict: Verdict, notebook: NotebookNode) -> None:
        """Put a verdict of `classroom.grade` where `write` puts scores.

        Args:
            verdict: The scores.
            notebook: As it ran; the one that is kept says in its first cell that it was sealed in.

        Raises:
            ValueError: As `write` does.

        """
        words = f"Graded in a sandbox ({', '.join(verdict.layers)}); the checks ran outside of it."
        if verdict.allow_weaker:
            words += " It was allowed to lack layers."
        self.write(
            Graded(
                verdict.student,
                datetime.fromisoformat(verdict.received),
                with_first_words(notebook, words),
                {report.exercise: report for report in verdict.reports},
            )
        )

    def graded_students(self) -> list[str]:
        """Return whose graded notebooks there are in `autograded/`, in order."""
        session = self._gradebook.db
        found: list[Any] = self._gradebook.assignment_submissions(self._assignment)
        students = [each.student_id for each in found]
        session.remove()
        return sorted(each for each in students if self._graded_notebook(each).exists())

    def _graded_notebook(self, student: str) -> Path:
        folder = self._folder(self._course.autograded_directory, student)
        return folder / f"{self._notebook_name}.ipynb"

    def standing(self, student: str) -> Standing:
        """Return what a submission earned, with the points and comments of people.

        Raises:
            ValueError: If the gradebook knows of none.

        """
        names = (self._notebook_name, self._assignment, student)
        session = self._gradebook.db
        try:
            notebook = self._gradebook.find_submission_notebook(*names)
            comments = dict(
                session.query(BaseCell.name, Comment.comment)
                .join(Comment, Comment.cell_id == BaseCell.id)
                .filter(Comment.notebook_id == notebook.id)
            )
            lines = []
            for cell in (GradeCell, TaskCell):
                rows = (
                    session.query(cell.name, cell.max_score, Grade.score, Grade.manual_score)
                    .join(Grade, Grade.cell_id == cell.id)
                    .filter(Grade.notebook_id == notebook.id)
                )
                for name, points, earned, by_hand in rows:
                    exercise = name.removesuffix(CHECK_SUFFIX)
                    comment = comments.get(exercise) or comments.get(name) or ""
                    lines.append(Line(exercise, earned, points, by_hand is not None, comment))
            received = notebook.assignment.timestamp
            late: Any = notebook.late_submission_penalty
        except MissingEntry:
            raise ValueError(
                f"the gradebook knows of no submission of {self._assignment} by {student!r}"
            ) from None
        finally:
            session.remove()
        return Standing(student, self._assignment, tuple(lines), late or 0.0, received)

    def write_feedback(self, student: str, submitted: Path | None = None) -> Path:
        """Write the page on which a student reads what came of the notebook in `autograded/`.

        Args:
            student: Who handed it in.
            submitted: Holds `STUDENT/ASSIGNMENT/`. What nbgrader's exchange has put there is put
                beside the page, because `nbgrader release_feedback` asks for it.

        Returns:
            The page's file, such as `feedback/ada/01_attention/attention.html`.

        Raises:
            FileNotFoundError: If there is no graded notebook.
            ValueError: If the gradebook knows of no submission.

        """
        graded = self._graded_notebook(student)
        # nbgrader or we have written it: to validate it again takes half as long as all the rest.
        notebook = nbformat.v4.reads(graded.read_text(encoding="utf-8"))
        standing = self.standing(student)
        positions = {
            cell.metadata.nbgrader.grade_id.removesuffix(CHECK_SUFFIX): at
            for at, cell in enumerate(notebook.cells)
            if is_grade(cell)
        }
        lines = sorted(
            standing.lines, key=lambda line: positions.get(line.exercise, len(positions))
        )
        text = page(notebook, replace(standing, lines=tuple(lines)), reports_in(notebook))
        goes_with = [graded.with_name(_TIME), graded.with_name(_SECRET)]
        if submitted is not None:
            goes_with.append(submitted / student / self._assignment / _SECRET)
        folder = self._folder(self._course.feedback_directory, student)
        return write_page(folder, self._notebook_name, text, goes_with)

    def _write_scores(self, graded: Graded, marked: NotebookNode) -> None:
        gradebook = self._gradebook
        names = (self._assignment, graded.student)
        # nbgrader commits each score for itself. All of them are one transaction here.
        with (
            warnings.catch_warnings(category=SAWarning, action="ignore"),  # at nbgrader's own code
            gradebook.engine.connect() as connection,
            connection.begin(),
        ):
            sessions, gradebook.db = (
                gradebook.db,
                scoped_session(
                    sessionmaker(
                        bind=connection,
                        join_transaction_mode="rollback_only",
                        expire_on_commit=False,
                    )
                ),
            )
            try:
                gradebook.update_or_create_student(graded.student)
                received: Any = graded.received.astimezone(UTC).replace(tzinfo=None)
                gradebook.update_or_create_submission(*names, timestamp=received)
                saver = SaveAutoGrades(config=self._config)
                saver.gradebook = gradebook
                saver.notebook_id = self._notebook_name
                saver.assignment_id, saver.student_id = names
                for index, cell in enumerate(marked.cells):
                    saver.preprocess_cell(cell, ResourcesDict(), index)
            finally:
                gradebook.db.remove()
                gradebook.db = sessions
        gradebook.db.remove()

    def _write_notebook(self, graded: Graded, marked: NotebookNode) -> None:
        target = self._folder(self._course.autograded_directory, graded.student)
        target.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{target.name}-"
        for left in target.parent.glob(f"{glob.escape(prefix)}*"):
            shutil.rmtree(left)  # by a run that was killed
        made = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
        nbformat.write(marked, made / f"{self._notebook_name}.ipynb")
        (made / _TIME).write_text(_as_nbgrader_writes(graded.received))
        submitted = self._folder(self._course.submitted_directory, graded.student)
        if not submitted.is_symlink() and not submitted.parent.is_symlink():
            put_beside(made, [submitted / _SECRET])
        made.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        os.replace(made, target)

    def _write_time_of_receipt(self, graded: Graded) -> None:
        """Put the time beside what was handed in, where formgrader compares it with the gradebook.

        Without it, or with another one, formgrader lists a graded submission as not graded; with
        one that is no time, it lists nobody.
        """
        folder = self._folder(self._course.submitted_directory, graded.student)
        if not folder.is_dir() or folder.is_symlink() or folder.parent.is_symlink():
            return
        # Whoever may not write there can do without, and a link is replaced, not followed.
        with contextlib.suppress(OSError):
            with tempfile.NamedTemporaryFile("w", dir=folder.parent, delete=False) as file:
                file.write(_as_nbgrader_writes(graded.received))
            os.chmod(file.name, 0o644)
            try:
                os.replace(file.name, folder / _TIME)
            except OSError:
                os.unlink(file.name)

    def _assign_penalty(self, graded: Graded, marked: NotebookNode) -> None:
        names = (self._notebook_name, self._assignment, graded.student)
        submission = self._gradebook.find_submission(*names[1:])
        notebook = self._gradebook.find_submission_notebook(*names)
        was_late = notebook.late_submission_penalty is not None
        is_late = submission.total_seconds_late > 0
        self._gradebook.db.remove()
        if is_late or was_late:
            keys = ("notebook", "assignment", "student")
            about = {**dict(zip(keys, names, strict=True)), "db_url": self._course.db_url}
            resources = ResourcesDict(nbgrader=about)
            AssignLatePenalties(config=self._config, log=_silent()).preprocess(marked, resources)

    def _folder(self, kind: str, student: str) -> Path:
        return Path(self._course.format_path(kind, student, self._assignment))

    def _tell_of_the_assignment(self) -> None:
        """Do what `nbgrader generate_assignment` does to the gradebook, and to nothing else."""
        with tempfile.TemporaryDirectory() as scratch:
            config = Config(self._config)
            config.CourseDirectory.release_directory = scratch
            # Where nbgrader looks for it unless it is told: below the root.
            config.CourseDirectory.db_url = self._course.db_url
            course = CourseDirectory(config=config)
            try:
                GenerateAssignment(coursedir=course, config=config, log=_silent()).start()
            except NbGraderException:
                raise ValueError(
                    f"nbgrader could not be told of {self._assignment}: see what "
                    f"`nbgrader generate_assignment {self._assignment}` says"
                ) from None


@contextlib.contextmanager
def _our_programs() -> Iterator[None]:
    """Let nbgrader find `alembic`, which it calls by its name, where no environment is active."""
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), before])
    try:
        yield
    finally:
        os.environ["PATH"] = before


def _as_nbgrader_writes(time: datetime) -> str:
    return f"{time.astimezone(UTC):%F %T} UTC\n"


def _require_plain(student: str) -> None:
    if not student or student in (".", "..") or os.sep in student or "\0" in student:
        raise ValueError(f"a student's name must be that of a folder, got {student!r}")


def _silent() -> logging.Logger:
    log = logging.Logger("gradebook")
    log.addHandler(logging.NullHandler())
    return log
