"""The exercises of a chapter, listed from what grades them.

    ```{exercises} 01_attention
    ```

Titles, points, minutes and the number of mistakes known by name come from the classroom's
inventory, so that the page cannot promise anything else than the grader does. Solutions,
checks and the mistakes themselves stay out of the page.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator


@cache
def assignments(root: Path) -> dict[str, dict[str, Any]]:
    """Ask the classroom once per build what it has, by the name of the assignment."""
    from classroom.inventory import inventory  # brings torch, which a build may not need

    return {found["name"]: found for found in inventory(root)["assignments"]}


def find_assignment(name: str, root: Path) -> dict[str, Any]:
    """Look up one assignment.

    Raises:
        ValueError: If the course has no assignment of that name.

    """
    known = assignments(root)
    if name not in known:
        raise ValueError(
            f"exercises must name an assignment, got {name!r}, known: {', '.join(sorted(known))}"
        )
    return known[name]


def duration(minutes: int) -> str:
    """Say a time as a person would: `45 minutes`, `2 h 30 min`."""
    hours, rest = divmod(minutes, 60)
    if hours == 0:
        return f"{rest} minutes"
    return f"{hours} h {rest} min" if rest else f"{hours} h"


class scale_node(nodes.Inline, nodes.Element):
    """Dots out of five, and the words that stand for them."""


class Exercises(SphinxDirective):
    """Build the list of one assignment."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        root = Path(self.config.course_root or Path(self.env.srcdir).parent).resolve()
        try:
            assignment = find_assignment(self.arguments[0], root)
        except (ValueError, FileNotFoundError) as error:
            raise self.error(str(error)) from error
        for file in sorted((root / "solutions" / assignment["name"]).glob("*.py")):
            self.env.note_dependency(str(file))
        notebook = root / "exercises" / assignment["name"] / assignment["notebook"]
        listed = nodes.container(classes=["exercise-list"])
        listed += self._summary(assignment)
        command = f"jupyter lab exercises/{assignment['name']}/{assignment['notebook']}"
        listed += nodes.literal_block(command, command, language="bash")
        listed += self._download(notebook)
        listed += nodes.definition_list(
            "", *(self._exercise(exercise) for exercise in assignment["exercises"])
        )
        return [listed]

    def _summary(self, assignment: dict[str, Any]) -> nodes.paragraph:
        exercises = assignment["exercises"]
        optional = sum(exercise["optional"] for exercise in exercises)
        mistakes = sum(len(exercise["mistakes"]) for exercise in exercises)
        text = f"{len(exercises)} exercises"
        text += f" ({optional} of them optional)" if optional else ""
        text += f", {assignment['points']} points, about {duration(assignment['minutes'])} in all. "
        text += f"The checks know {mistakes} mistakes by name, and say so when they meet one. "
        text += "Open the notebook from the folder of the course:"
        return nodes.paragraph(text, text)

    def _download(self, notebook: Path) -> nodes.paragraph:
        target = "/" + Path(os.path.relpath(notebook, self.env.srcdir)).as_posix()
        reference = addnodes.download_reference(
            "", "", nodes.literal(notebook.name, notebook.name), reftarget=target
        )
        return nodes.paragraph("", "", nodes.Text("The notebook alone: "), reference)

    def _exercise(self, exercise: dict[str, Any]) -> nodes.definition_list_item:
        title = f"{exercise['number']} {exercise['title']}"
        mistakes = len(exercise["mistakes"])
        facts = nodes.paragraph(classes=["exercise-facts"])
        facts += nodes.Text(f"{exercise['points']} points, {exercise['minutes']} minutes")
        facts += nodes.Text(", optional" if exercise["optional"] else "")
        for word in ("difficulty", "importance"):
            facts += nodes.Text(f", {word} ")
            facts += scale_node(word=word, level=exercise[word])
        if mistakes:
            facts += nodes.Text(f", {mistakes} known mistakes")
        body = nodes.definition("", facts)
        self.state.nested_parse(StringList([exercise["asks"]]), self.content_offset, body)
        return nodes.definition_list_item("", nodes.term(title, title), body)


def visit_scale(self: HTML5Translator, node: scale_node) -> None:
    level = node["level"]
    self.body.append(
        f'<span class="scale" role="img" aria-label="{level} of 5">{"●" * level}{"○" * (5 - level)}'
    )


def depart_scale(self: HTML5Translator, node: scale_node) -> None:
    self.body.append("</span>")


def write_scale(self: Any, node: scale_node) -> None:
    """Write the level in words where there are no dots."""
    self.body.append(f"{node['level']} of 5")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict:
    app.add_config_value("course_root", None, "env")
    app.add_directive("exercises", Exercises)
    app.add_node(
        scale_node,
        html=(visit_scale, depart_scale),
        latex=(write_scale, None),
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}
