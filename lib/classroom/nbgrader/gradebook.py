"""Writes verdicts to where nbgrader keeps its own scores, and reads grades from there.

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
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import nbformat
from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbgrader.api import (
    Assignment,
    BaseCell,
    Comment,
    Grade,
    Gradebook,
    GradeCell,
    MissingEntry,
    SubmittedAssignment,
    SubmittedNotebook,
    TaskCell,
)
from nbgrader.converters import NbGraderException
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import AssignLatePenalties, SaveAutoGrades
from nbgrader.utils import is_grade, is_solution
from sqlalchemy.exc import OperationalError, SAWarning
from sqlalchemy.orm import scoped_session, sessionmaker
from traitlets.config import Config

from classroom.author.release import nbgrader_config
from classroom.course import CHECK_SUFFIX, REPORT_TYPE
from classroom.exercise.report import Report
from classroom.grader.roster import Person
from classroom.grader.verdicts import Grades, Line, Verdict
from classroom.nbgrader.feedback import (
    FIRST_WORDS_ID,
    exercise_of,
    page,
    put_beside,
    reports_in,
    write_page,
)
from classroom.nbgrader.generate import KeepingGenerateAssignment, leave_to_nobody

_TIME = "timestamp.txt"
_SECRET = "submission_secret.txt"
"""Which nbgrader's exchange puts into a submission, and by which it returns its page."""


def with_scores(
    notebook: NotebookNode, reports: Mapping[str, Report], left_out: Collection[str] = ()
) -> NotebookNode:
    """Give each grade cell the outputs of its report, and nothing else.

    Args:
        notebook: Is left as it is.
        reports: By exercise.
        left_out: Exercises that do not count.

    Returns:
        A copy in which each grade cell holds a number: where there is no report, 0, because
        nbgrader gives full marks to a cell without output.

    """
    marked = copy.deepcopy(notebook)
    for cell in filter(is_grade, marked.cells):
        if is_solution(cell):  # what a person grades has no output
            if cell.metadata.nbgrader.grade_id in left_out:
                leave_to_nobody(cell)
            continue
        exercise = exercise_of(cell)
        report = reports.get(exercise)
        earned = report.earned if report and exercise not in left_out else 0
        # nbgrader gives full marks for a negative or missing number: neither may reach it.
        if type(earned) is not int or not 0 <= earned <= cell.metadata.nbgrader.points:
            raise ValueError(
                f"the points of {exercise} must be a whole number from 0 to "
                f"{cell.metadata.nbgrader.points}, got {earned!r}"
            )
        number = {"text/plain": str(earned)}
        cell.outputs = [nbformat.v4.new_output("execute_result", number, execution_count=None)]
        cell.execution_count = None
        if report:
            forms = {
                "text/plain": report.to_text(),
                "text/html": report.to_html(),
                REPORT_TYPE: report.to_json(),
            }
            cell.outputs.append(nbformat.v4.new_output("display_data", forms))
    return marked


def with_first_words(notebook: NotebookNode, words: str) -> NotebookNode:
    """Return a notebook that begins with these words; one that does already is left as it is."""
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

    Use it as a context manager. Nothing else should write scores of the assignment meanwhile.

    Args:
        root: The course's folder, which holds `nbgrader_config.py`.
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
        with _our_programs(), _unlocked():
            before = self._points()
            self._bring_up_to_date()
            now = self._points()
            self._left_out = {_exercise(name) for name, points in now.items() if not points}
            self._gradebook = Gradebook(self._course.db_url, self._course.course_id)
        both = before.keys() & now.keys()
        if changed := [name for name in both if bool(before[name]) != bool(now[name])]:
            with _unlocked():
                self._count_again(changed, now)
        return self

    def _points(self) -> dict[str, float]:
        """Return what each grade cell is worth in the gradebook; nothing, if it is not there."""
        with Gradebook(self._course.db_url, self._course.course_id) as gradebook:
            try:
                notebook = gradebook.find_notebook(self._notebook_name, self._assignment)
            except MissingEntry:
                return {}
            cells: Any = notebook.grade_cells
            return {cell.name: cell.max_score for cell in cells}

    def _count_again(self, cells: Collection[str], points: Mapping[str, float]) -> None:
        """Let exercises count, or count no longer, in what is graded already."""
        for student in self.graded_students():
            text = self._graded_notebook(student).read_text(encoding="utf-8")
            notebook = nbformat.v4.reads(text)
            found = {
                name: report.earned
                for name, report in reports_in(notebook).items()
                if report.points == points.get(name + CHECK_SUFFIX)
            }
            for cell in cells:
                exercise, names = _exercise(cell), (self._notebook_name, self._assignment, student)
                is_out, is_by_hand = exercise in self._left_out, not cell.endswith(CHECK_SUFFIX)
                if is_out or is_by_hand or exercise in found:
                    grade: Any = self._gradebook.find_grade(cell, *names)
                    grade.auto_score = 0 if is_out else found.get(exercise)
                    if is_by_hand:
                        grade.needs_manual_grade = not is_out and grade.manual_score is None
            self._gradebook.db.commit()
            self._assign_penalty(student, notebook)

    def __exit__(self, *exception: object) -> None:
        self._gradebook.close()

    def write(self, verdict: Verdict, notebook: NotebookNode) -> None:
        """Put a verdict into the gradebook and into `autograded/`, wholly or not at all.

        Scores that were given by hand stay. A late submission gets the course's penalty, from the
        time at which it was received.

        Args:
            verdict: The scores; an exercise without a report earns nothing.
            notebook: As it ran; the one that is kept says in its first cell that it was sealed in.

        Raises:
            ValueError: If a report holds more points than there are, or the student's name cannot
                be that of a folder.
            BlockingIOError: If another program keeps the gradebook locked.

        """
        words = "Graded without a sandbox: none of its layers was active."
        if verdict.layers:
            words = f"Graded in a sandbox ({', '.join(verdict.layers)}); the checks ran outside it."
        if verdict.allow_weaker:
            words += " The person who graded it allowed layers to be missing."
        reports = {report.exercise: report for report in verdict.reports}
        marked = with_scores(with_first_words(notebook, words), reports, self._left_out)
        student, received = verdict.student, datetime.fromisoformat(verdict.received)
        _require_plain(student)
        with _unlocked():
            self._write_scores(student, received, marked)
        self._write_notebook(student, received, marked)
        self._write_time_of_receipt(student, received)
        with _unlocked():
            self._assign_penalty(student, marked)

    def graded_students(self) -> list[str]:
        """Return whose graded notebooks there are in `autograded/`, in order."""
        with self._session():
            found: list[Any] = self._gradebook.assignment_submissions(self._assignment)
            students = [each.student_id for each in found]
        return sorted(each for each in students if self._graded_notebook(each).exists())

    def _graded_notebook(self, student: str) -> Path:
        folder = self._folder(self._course.autograded_directory, student)
        return folder / f"{self._notebook_name}.ipynb"

    def grades(self, student: str) -> Grades:
        """Return what a submission earned, with the points and comments of people.

        Raises:
            ValueError: If the gradebook has none of this student.

        """
        found = self._grades(student)
        if student not in found:
            raise ValueError(
                f"the gradebook has no submission of {self._assignment} by {student!r}"
            )
        return found[student]

    def class_grades(self) -> dict[str, Grades]:
        """Return what everybody in the gradebook earned, by student.

        Who submitted nothing has earned 0, as for `nbgrader export`.
        """
        found = self._grades()
        with self._session():
            known: list[Any] = self._gradebook.students
            students = [student.id for student in known]
            notebook = self._gradebook.find_notebook(self._notebook_name, self._assignment)
            cells = [*notebook.grade_cells, *notebook.task_cells]
            nothing = tuple(Line(_exercise(each.name), 0, each.max_score) for each in cells)
        for student in students:
            if student not in found:
                found[student] = Grades(
                    student, self._assignment, nothing, problem="nothing was submitted"
                )
        return dict(sorted(found.items()))

    def _grades(self, student: str | None = None) -> dict[str, Grades]:
        """Return the grades of all submissions, or of one student's, by student."""
        with self._session() as session:

            def rows(*columns: Any) -> Any:
                query = session.query(SubmittedAssignment.student_id, *columns)
                of: Any = SubmittedNotebook
                query = query.select_from(of).join(of.assignment)
                query = query.join(Assignment).filter(
                    cast(Any, Assignment).name == self._assignment
                )
                own = cast(Any, SubmittedAssignment).student_id == student
                return query if student is None else query.filter(own)

            comments = {
                (who, name): comment
                for who, name, comment in rows(BaseCell.name, Comment.comment)
                .join(Comment, Comment.notebook_id == SubmittedNotebook.id)
                .join(BaseCell, Comment.cell_id == BaseCell.id)
            }
            lines: dict[str, list[Line]] = defaultdict(list)
            grade, kinds = cast(Any, Grade), cast(Any, (GradeCell, TaskCell))
            scores = (grade.score, grade.auto_score, grade.manual_score, grade.extra_credit)
            for cell in kinds:
                graded = rows(cell.name, cell.max_score, *scores)
                graded = graded.join(Grade, Grade.notebook_id == SubmittedNotebook.id)
                for who, name, points, earned, auto, by_hand, extra in graded.join(
                    cell, Grade.cell_id == cell.id
                ):
                    exercise = _exercise(name)
                    comment = comments.get((who, exercise)) or comments.get((who, name)) or ""
                    # nbgrader says so of a blank cell, even if the answer is in another one.
                    if name != exercise and comment == "No response.":
                        comment = ""
                    is_by_hand = by_hand is not None or bool(extra)
                    is_open = name == exercise and auto is None and by_hand is None
                    line = Line(exercise, earned, points, is_by_hand, comment, is_open)
                    lines[who].append(line)
            about = rows(SubmittedNotebook.late_submission_penalty, SubmittedAssignment.timestamp)
            grades = {}
            for who, penalty, received in about:  # nbgrader's times are in UTC and do not say so
                time = received and received.replace(tzinfo=UTC)
                of = tuple(lines[who])
                grades[who] = Grades(who, self._assignment, of, penalty or 0.0, time)
            return grades

    @contextlib.contextmanager
    def _session(self) -> Iterator[Any]:
        """Yield a session that holds on to nothing afterwards."""
        try:
            yield self._gradebook.db
        finally:
            self._gradebook.db.remove()

    def write_feedback(self, student: str, submitted: Path | None = None) -> Path:
        """Write a student's feedback page, from the notebook in `autograded/`.

        Args:
            student: Whose submission it is.
            submitted: Holds `STUDENT/ASSIGNMENT/`. What nbgrader's exchange has put there is copied
                beside the page, because `nbgrader release_feedback` asks for it.

        Returns:
            The page's file, such as `feedback/ada/01_attention/attention.html`.

        Raises:
            FileNotFoundError: If there is no graded notebook.
            ValueError: If the gradebook has no submission of this student.

        """
        graded = self._graded_notebook(student)
        # nbgrader or we have written it: to validate it again takes half as long as all the rest.
        notebook = nbformat.v4.reads(graded.read_text(encoding="utf-8"))
        grades = self.grades(student)
        order = [exercise_of(cell) for cell in notebook.cells if is_grade(cell)]
        text = page(notebook, grades.in_order(order), reports_in(notebook))
        goes_with = [graded.with_name(_TIME), graded.with_name(_SECRET)]
        if submitted is not None:
            goes_with.append(submitted / student / self._assignment / _SECRET)
        folder = self._folder(self._course.feedback_directory, student)
        return write_page(folder, self._notebook_name, text, goes_with)

    def _write_scores(self, student: str, received: datetime, marked: NotebookNode) -> None:
        gradebook = self._gradebook
        names = (self._assignment, student)
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
                gradebook.update_or_create_student(student)
                timestamp: Any = received.astimezone(UTC).replace(tzinfo=None)
                gradebook.update_or_create_submission(*names, timestamp=timestamp)
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

    def _write_notebook(self, student: str, received: datetime, marked: NotebookNode) -> None:
        target = self._folder(self._course.autograded_directory, student)
        target.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{target.name}-"
        for left in target.parent.glob(f"{glob.escape(prefix)}*"):
            shutil.rmtree(left)  # by a run that was killed
        made = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
        nbformat.write(marked, made / f"{self._notebook_name}.ipynb")
        (made / _TIME).write_text(_as_nbgrader_writes(received))
        submitted = self._folder(self._course.submitted_directory, student)
        if not submitted.is_symlink() and not submitted.parent.is_symlink():
            put_beside(made, [submitted / _SECRET])
        made.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        os.replace(made, target)

    def _write_time_of_receipt(self, student: str, received: datetime) -> None:
        """Put the time into the submission, where formgrader compares it with the gradebook.

        If it is missing or differs, formgrader lists a graded submission as not graded; if it is no
        time, formgrader lists no submissions.
        """
        folder = self._folder(self._course.submitted_directory, student)
        if not folder.is_dir() or folder.is_symlink() or folder.parent.is_symlink():
            return
        # Where it cannot be written, grading goes on; a link is replaced, not followed.
        with contextlib.suppress(OSError):
            with tempfile.NamedTemporaryFile("w", dir=folder.parent, delete=False) as file:
                file.write(_as_nbgrader_writes(received))
            os.chmod(file.name, 0o644)
            try:
                os.replace(file.name, folder / _TIME)
            except OSError:
                os.unlink(file.name)

    def _assign_penalty(self, student: str, marked: NotebookNode) -> None:
        names = (self._notebook_name, self._assignment, student)
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

    def _bring_up_to_date(self) -> None:
        """Do what `nbgrader generate_assignment` does to the gradebook, and to nothing else."""
        with tempfile.TemporaryDirectory() as scratch:
            config = Config(self._config)
            config.CourseDirectory.release_directory = str(Path(scratch, "exercises"))
            # Where nbgrader looks for it by default: below the root.
            config.CourseDirectory.db_url = self._course.db_url
            course = CourseDirectory(config=config)
            made = KeepingGenerateAssignment(coursedir=course, config=config, log=_silent())
            made.only_cells = True
            try:
                made.start()
            except NbGraderException:
                raise ValueError(
                    f"nbgrader cannot add {self._assignment} to its gradebook: see what "
                    f"`nbgrader generate_assignment {self._assignment}` says"
                ) from None


def _exercise(cell: str) -> str:
    return cell.removesuffix(CHECK_SUFFIX)


def add_people(root: Path, people: Mapping[Person, str]) -> None:
    """Put the people of a roster into a course's gradebook, or bring what it has up to date.

    Somebody whom a roster added under a name that their submissions do not have is removed, as
    long as nothing of theirs is graded.

    Args:
        root: The course's folder.
        people: With the names of their folders.

    Raises:
        ValueError: If a name cannot be that of a folder.

    """
    config = nbgrader_config(root)
    config.CourseDirectory.root = str(root.resolve())
    course = CourseDirectory(config=config)
    for student in people.values():
        _require_plain(student)
    now = {person.id: student for person, student in people.items() if person.id}
    with _our_programs(), Gradebook(course.db_url, course.course_id) as gradebook:
        there: list[Any] = gradebook.students
        for each in there:
            if each.id != now.get(each.lms_user_id, each.id) and not each.submissions:
                gradebook.remove_student(each.id)
        for person, student in people.items():
            about: dict[str, Any] = {
                "first_name": person.first_name or None,
                "last_name": person.last_name or None,
                "email": person.email or None,
                "lms_user_id": person.id or None,
            }
            gradebook.update_or_create_student(student, **about)


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


@contextlib.contextmanager
def _unlocked() -> Iterator[None]:
    """Say in a sentence that the gradebook is locked."""
    try:
        yield
    except OperationalError as error:
        if "locked" not in str(error):
            raise
        raise BlockingIOError(
            "another program keeps the gradebook locked: close it, and run this again to continue"
        ) from None


def _require_plain(student: str) -> None:
    if not student or student in (".", "..") or os.sep in student or "\0" in student:
        raise ValueError(f"a student's name must be that of a folder, got {student!r}")


def _silent() -> logging.Logger:
    log = logging.Logger("gradebook")
    log.addHandler(logging.NullHandler())
    return log
