"""Makes `nbgrader autograde` grade as `classroom grade` does, and records how it graded.

nbgrader calls its converter by name, and no setting replaces it; so `switch_on`, which
`nbgrader_config.py` calls, does. The converter takes the command's options and leaves the rest to
`classroom.grader.run`. Nothing of a submission is copied, executed or parsed by nbgrader itself: it
follows links, believes a `timestamp.txt`, and stops at metadata that it does not know.
"""

import fnmatch
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_output
from nbgrader.api import Gradebook
from nbgrader.apps import api, autogradeapp
from nbgrader.converters import Autograde, NbGraderException
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor
from nbgrader.utils import is_grade, is_solution
from traitlets import Bool, Integer

from classroom.author.release import nbgrader_config
from classroom.course import SOLUTIONS_VARIABLE
from classroom.nbgrader.generate import leave_to_nobody
from classroom.nbgrader.gradebook import GradebookWriter, with_first_words

_STRUCTURE = os.path.join("{nbgrader_step}", "{student_id}", "{assignment_id}")
_OPEN = (
    "Graded in the open, without a sandbox: the notebook ran in one process with its checks, and "
    "with the rights of the person who graded it."
)


class SealedAutograde(Autograde):
    """Grades in the sandbox, where stock nbgrader executes.

    It takes `--student`, `--force` and `--notebook`, and keeps its verdicts where `classroom
    grade` keeps them, so that either of the two commands goes on with what the other began.
    """

    workers = Integer(1, min=1, help="Submissions to grade at once.").tag(config=True)
    seconds_per_cell = Integer(60, min=1, help="Seconds after which a cell is stopped.").tag(
        config=True
    )
    seconds_per_submission = Integer(300, min=1, help="Seconds for a whole submission.").tag(
        config=True
    )
    allow_weaker = Bool(
        False, help="Grade even if this machine lacks a layer of the sandbox; verdicts say so."
    ).tag(config=True)

    def start(self) -> None:
        """Grade the submissions that the command's options name.

        Raises:
            NbGraderException: If nothing was graded, the grader failed at a submission, or the
                gradebook lacks a verdict; the reason is in the log.

        """
        try:
            failed = self._grade()
        except (OSError, ValueError) as error:
            self._fail(str(error))
        if failed:
            self._fail(f"the grader failed, so run it again for: {', '.join(failed)}")

    @property
    def _course(self) -> CourseDirectory:
        assert isinstance(self.coursedir, CourseDirectory)
        return self.coursedir

    def _grade(self) -> tuple[str, ...]:
        # Here, because torch takes seconds to import, and every nbgrader command imports this file.
        from classroom.grader.run import Assignment, ThisMachine, grade_folder
        from classroom.grader.submission import students_in
        from classroom.limits import Limits

        self._require_plain_course()
        course, name = self._course, self._course.assignment_id
        root = Path(course.root)
        assignment = Assignment(Path(course.format_path(course.release_directory, ".", name)))
        if not (assignment.folder / "checks.py").is_file():
            raise ValueError(f"no assignment is called {name}: there is no {assignment.folder}")
        notebook = Path(assignment.master.name).stem
        if not fnmatch.fnmatchcase(notebook, course.notebook_id):
            raise ValueError(f"{name} has one notebook, {notebook}, got {course.notebook_id}")
        submitted = root / course.submitted_directory
        students = self._chosen(students_in(submitted, name))
        self.log.info("Sealed: students' code runs in a sandbox, the checks outside")
        with GradebookWriter(root, name, notebook) as writer:
            with Gradebook(course.db_url, course.course_id) as gradebook:
                students = self._known(students, gradebook)
                again = self._not_there(students, notebook, gradebook)

            def keep(verdict, executed: NotebookNode) -> None:
                writer.write(verdict, executed)
                points = f"{verdict.earned} of {verdict.points} points"
                why = f", {verdict.problem}" if verdict.problem else ""
                self.log.info("%s: %s%s", ascii(verdict.student), points, why)

            result = grade_folder(
                assignment,
                submitted,
                root / "graded" / name,
                gradebook=keep,
                limits=Limits(
                    seconds_per_cell=self.seconds_per_cell,
                    seconds_per_submission=self.seconds_per_submission,
                ),
                allow_weaker=self.allow_weaker,
                students=students,
                again=students if self.force else again,
                engine=ThisMachine(self.workers),
            )
        self.log.info("%d graded now, of %d", result.num_new, len(students))
        if result.unrecorded:
            reasons = (f"{student!a} ({why})" for student, why in result.unrecorded.items())
            raise ValueError(f"not in the gradebook: {', '.join(reasons)}")
        return result.failed

    def _require_plain_course(self) -> None:
        """Refuse, rather than ignore, settings that sealed grading cannot follow."""
        course = self._course
        if course.directory_structure != _STRUCTURE:
            raise ValueError(f"sealed grading requires the directory structure {_STRUCTURE}")
        if self.config.Execute.get("enabled") is False:
            raise ValueError("sealed grading runs what it grades: there is no --no-execute")
        if self.pre_convert_hook or self.post_convert_hook:
            raise ValueError("sealed grading runs no hooks: unset pre_ and post_convert_hook")
        config = nbgrader_config(Path(course.root))
        config.CourseDirectory.root = course.root
        if CourseDirectory(config=config).db_url != course.db_url:
            raise ValueError("sealed grading takes the gradebook from nbgrader_config.py, not --db")

    def _chosen(self, students: Collection[str]) -> set[str]:
        excluded = self._course.student_id_exclude.split(",")
        wanted = self._course.student_id
        chosen = {s for s in students if fnmatch.fnmatchcase(s, wanted) and s not in excluded}
        if not chosen:
            raise ValueError(f"there is no submission of {self._course.assignment_id} by {wanted}")
        return chosen

    def _known(self, students: set[str], gradebook: Gradebook) -> set[str]:
        """Leave out students who are not in the gradebook, if none are to be added."""
        if self.create_student:
            return students
        known = {student.id for student in gradebook.students}
        for student in sorted(students - known):
            self.log.error("%s is not in the gradebook: not graded", ascii(student))
        return students & known

    def _not_there(self, students: set[str], notebook: str, gradebook: Gradebook) -> set[str]:
        """Return the students whose scores or notebooks are gone, even if verdicts are kept."""
        course, name = self._course, self._course.assignment_id
        scored = {each.student_id for each in gradebook.assignment_submissions(name)}
        folders = {s: course.format_path(course.autograded_directory, s, name) for s in students}
        there = {s for s, path in folders.items() if Path(path, f"{notebook}.ipynb").exists()}
        return students - (scored & there)

    def _fail(self, why: str) -> None:
        self.log.error(why)
        raise NbGraderException(why)


class OpenChecks(NbGraderPreprocessor):
    """nbgrader's first preprocessor: has a notebook checked by the solutions' own checks.

    So nothing that computes an answer is copied beside a submission, from where nbgrader would
    copy it into the feedback.
    """

    def preprocess(
        self, nb: NotebookNode, resources: ResourcesDict
    ) -> tuple[NotebookNode, ResourcesDict]:
        """Name the folder of solutions in the environment, which the kernel inherits."""
        course = CourseDirectory(config=self.config)
        assignment = resources["nbgrader"]["assignment"]
        folder = Path(course.format_path(course.source_directory, ".", assignment))
        os.environ[SOLUTIONS_VARIABLE] = str(folder.resolve().parent)
        return nb, resources


class AddBack(NbGraderPreprocessor):
    """Adds a blank for each answer that a submission lacks; behind it nbgrader puts its check.

    Where both are missing, as below the line in a course of the core, nbgrader itself stops.
    """

    def preprocess(
        self, nb: NotebookNode, resources: ResourcesDict
    ) -> tuple[NotebookNode, ResourcesDict]:
        """Add the blanks at the end."""
        about = resources["nbgrader"]
        there = {cell.metadata.get("nbgrader", {}).get("grade_id") for cell in nb.cells}
        with Gradebook(about["db_url"]) as gradebook:
            known: Any = gradebook.find_notebook(about["notebook"], about["assignment"])
            asked = {cell.name for cell in known.solution_cells}
            asked -= {cell.name for cell in known.grade_cells}  # which nbgrader adds
            for cell in known.source_cells:
                if cell.name in asked - there:
                    marks = {"grade": False, "locked": False, "solution": True, "task": False}
                    marks |= {"grade_id": cell.name, "schema_version": 3}
                    nb.cells.append(new_code_cell(cell.source, metadata={"nbgrader": marks}))
        return nb, resources


class OnlyCounted(NbGraderPreprocessor):
    """Sets the score of exercises that do not count to 0: nbgrader stops at a higher one."""

    def preprocess_cell(
        self, cell: NotebookNode, resources: ResourcesDict, cell_index: int
    ) -> tuple[NotebookNode, ResourcesDict]:
        """Put the number in front of what the cell has shown."""
        if not is_grade(cell) or cell.metadata.nbgrader.points:
            return cell, resources
        if is_solution(cell):
            leave_to_nobody(cell)
        else:
            zero = new_output("execute_result", {"text/plain": "0"}, execution_count=None)
            cell.outputs = [zero, *cell.outputs]
        return cell, resources


class SayOpen(NbGraderPreprocessor):
    """nbgrader's last preprocessor: records in log and notebook that stock nbgrader graded it."""

    def preprocess(
        self, nb: NotebookNode, resources: ResourcesDict
    ) -> tuple[NotebookNode, ResourcesDict]:
        """Add a first cell that says how the notebook was graded."""
        self.log.warning("%s %s", ascii(resources["nbgrader"]["student"]), _OPEN)
        return with_first_words(nb, _OPEN), resources


def switch_on() -> None:
    """Let `nbgrader autograde`, and formgrader's button for it, grade in the sandbox.

    Raises:
        RuntimeError: If this nbgrader calls its converter in another way.

    """
    for module in (autogradeapp, api):
        if not issubclass(getattr(module, "Autograde", object), Autograde):
            raise RuntimeError(f"{module.__name__} does not call Autograde by its name")
    autogradeapp.Autograde = api.Autograde = SealedAutograde
