"""Lets `nbgrader generate_feedback`, and formgrader's button for it, write our pages.

`nbgrader_config.py` names the exporter; the rest of the command stays nbgrader's own.
"""

from typing import Any

from nbconvert.exporters import Exporter
from nbformat import NotebookNode
from nbgrader.utils import is_grade, is_solution

from classroom.feedback import Line, Standing, exercise_of, page, reports_in


class FeedbackExporter(Exporter):
    """Makes a page from a graded notebook, into which nbgrader has put scores and comments."""

    output_mimetype = "text/html"

    def _file_extension_default(self) -> str:
        return ".html"

    def from_notebook_node(
        self, nb: NotebookNode, resources: Any = None, **kwargs: Any
    ) -> tuple[str, Any]:
        """Return the page, and the resources that nbconvert hands on."""
        nb, resources = super().from_notebook_node(nb, resources, **kwargs)
        reports, about = reports_in(nb), resources["nbgrader"]
        marked = [cell for cell in nb.cells if is_grade(cell) or is_solution(cell)]
        comments = {
            exercise_of(cell): cell.metadata.nbgrader.get("comment") or "" for cell in marked
        }
        lines = []
        for cell in filter(is_grade, marked):
            name, given = exercise_of(cell), cell.metadata.nbgrader
            by_hand = name in reports and given.score != reports[name].earned
            lines.append(Line(name, given.score, given.points, by_hand, comments.get(name, "")))
        penalty = about["late_penalty"]
        standing = Standing(about["student"], about["assignment"], tuple(lines), penalty)
        return page(nb, standing, reports), resources
