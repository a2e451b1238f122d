"""Makes nbgrader's commands for feedback, and formgrader's button, write the course's pages.

`nbgrader_config.py` names the class; the rest of the commands stays nbgrader's own.
"""

from typing import Any

from nbconvert.exporters import Exporter
from nbformat import NotebookNode
from nbgrader.utils import is_grade, is_solution

from classroom.grader.verdicts import Grades, Line
from classroom.nbgrader.feedback import exercise_of, page, reports_in


class FeedbackExporter(Exporter):
    """Makes a page from a graded notebook, into which nbgrader has put scores and comments."""

    output_mimetype = "text/html"

    def _file_extension_default(self) -> str:
        return ".html"

    def from_notebook_node(
        self, nb: NotebookNode, resources: Any = None, **kwargs: Any
    ) -> tuple[str, Any]:
        """Return the page, and the resources that nbconvert passes on."""
        nb, resources = super().from_notebook_node(nb, resources, **kwargs)
        reports, about = reports_in(nb), resources["nbgrader"]
        marked = [cell for cell in nb.cells if is_grade(cell) or is_solution(cell)]
        comments = {
            exercise_of(cell): cell.metadata.nbgrader.get("comment") or "" for cell in marked
        }
        lines = []
        for cell in filter(is_grade, marked):
            name, given = exercise_of(cell), cell.metadata.nbgrader
            earned = reports[name].earned if name in reports else 0
            by_hand = (name in reports or is_solution(cell)) and given.score != earned
            lines.append(Line(name, given.score, given.points, by_hand, comments.get(name, "")))
        penalty = about["late_penalty"]
        grades = Grades(about["student"], about["assignment"], tuple(lines), penalty)
        return page(nb, grades, reports), resources
