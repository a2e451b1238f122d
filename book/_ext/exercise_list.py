"""The exercises of a chapter, listed from what grades them.

    ```{exercises} 01_attention
    ```

Titles, points, minutes and the number of mistakes known by name come from the classroom's
inventory, so that the page cannot promise anything else than the grader does. Solutions,
checks and the mistakes themselves stay out of the page.

Below that, ways to open the notebook: here, alone, and on machines of others that have a copy of
the repository. Those are plain links; nothing is asked of anybody before they are followed. In
front of each exercise is room for a tick that `progress.js` makes and keeps.

`` {in-all}`exercises` `` says how many there are in the whole course; it counts assignments,
exercises, points and mistakes.
"""

import os
from functools import cache
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from docutils import nodes
from docutils.statemachine import StringList
from remembered import remembered
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective, SphinxRole
from sphinx.writers.html5 import HTML5Translator
from version_shown import version_of


@cache
def assignments(root: Path) -> dict[str, dict[str, Any]]:
    """Ask the classroom what it has, by the name of the assignment."""
    from classroom.author.inventory import inventory  # brings torch, which a build may not need

    return {found["name"]: found for found in inventory(root)["assignments"]}


def find_assignment(name: str, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Look up one assignment.

    Raises:
        ValueError: If the course has no assignment of that name.

    """
    if name not in known:
        raise ValueError(
            f"exercises must name an assignment, got {name!r}, known: {', '.join(sorted(known))}"
        )
    return known[name]


def _counted(number: int, what: str) -> str:
    """Write `1 point` or `3 points`."""
    return f"{number} {what}{'s' * (number != 1)}"


def duration(minutes: int) -> str:
    """Say a time as a person would: `45 minutes`, `2 h 30 min`."""
    hours, rest = divmod(minutes, 60)
    if hours == 0:
        return f"{rest} minutes"
    return f"{hours} h {rest} min" if rest else f"{hours} h"


def count(what: str, known: dict[str, dict[str, Any]]) -> int:
    """Count what the whole course has.

    Raises:
        ValueError: If it is not one of the four things that are counted.

    """
    courses = known.values()
    exercises = [exercise for course in courses for exercise in course["exercises"]]
    counts = {
        "assignments": len(courses),
        "exercises": len(exercises),
        "points": sum(course["points"] for course in courses),
        "mistakes": sum(len(exercise["mistakes"]) for exercise in exercises),
    }
    if what not in counts:
        raise ValueError(f"in-all counts {', '.join(counts)}, got {what!r}")
    return counts[what]


def course_root(app_or_directive: Any) -> Path:
    """Give the folder of the course, which holds `solutions/` and `exercises/`."""
    config, env = app_or_directive.config, app_or_directive.env
    return Path(config.course_root or Path(env.srcdir).parent).resolve()


def elsewhere(repository: str, tag: str, path: str) -> dict[str, str]:
    """Give the addresses at which a notebook of a GitHub repository opens on others' machines.

    Raises:
        ValueError: If the repository is not one of GitHub's, which both services expect.

    """
    address = urlsplit(repository)
    name = address.path.strip("/")
    if address.netloc != "github.com" or name.count("/") != 1:
        raise ValueError(
            f"course_repository must be https://github.com/OWNER/NAME, got {repository!r}"
        )
    return {
        "Colab": f"https://colab.research.google.com/github/{name}/blob/{tag}/{quote(path)}",
        "Binder": f"https://mybinder.org/v2/gh/{name}/{tag}?labpath={quote(path, safe='')}",
    }


class scale_node(nodes.Inline, nodes.Element):
    """Dots out of five, and the words that stand for them."""


class tick_node(nodes.Inline, nodes.Element):
    """Room for a tick where an exercise is done."""


class InAll(SphinxRole):
    """Say a number of the whole course."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        root = course_root(self)
        for file in sorted((root / "solutions").glob("*/*.py")):
            self.env.note_dependency(str(file))
        try:
            known = remembered(self.env, "assignments", root, assignments)
            number = str(count(self.text, known))
        except (ValueError, FileNotFoundError) as error:
            message = self.inliner.reporter.error(str(error), line=self.lineno)
            return [self.inliner.problematic(self.rawtext, self.rawtext, message)], [message]
        return [nodes.Text(number)], []


class Exercises(SphinxDirective):
    """Build the list of one assignment."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        root = course_root(self)
        try:
            known = remembered(self.env, "assignments", root, assignments)
            assignment = find_assignment(self.arguments[0], known)
            opened = self._elsewhere(assignment)
        except (ValueError, FileNotFoundError) as error:
            raise self.error(str(error)) from error
        for file in sorted((root / "solutions" / assignment["name"]).glob("*.py")):
            self.env.note_dependency(str(file))
        notebook = root / "exercises" / assignment["name"] / assignment["notebook"]
        listed = nodes.container(classes=["exercise-list"])
        listed += self._summary(assignment)
        command = f"classroom start {assignment['name']}"
        listed += nodes.literal_block(command, command, language="bash")
        listed += self._download(notebook)
        listed += opened
        listed += nodes.definition_list(
            "",
            *(self._exercise(exercise, assignment["name"]) for exercise in assignment["exercises"]),
        )
        return [listed]

    def _summary(self, assignment: dict[str, Any]) -> nodes.paragraph:
        exercises = assignment["exercises"]
        core = assignment["core"]
        deeper = sum(exercise["deeper"] for exercise in exercises)
        mistakes = sum(len(exercise["mistakes"]) for exercise in exercises)
        text = f"{len(exercises)} exercises"
        text += f", {assignment['points']} points, about {duration(assignment['minutes'])} in all. "
        if deeper:
            time, number = duration(core["minutes"]), len(exercises) - deeper
            text += f"The {number} core exercises are worth {core['points']} points and take about "
            text += f"{time}; the others go deeper and can be left for later. "
        text += f"The checks recognise {mistakes} mistakes and name each one they find. "
        text += "Open the notebook from the course folder:"
        return nodes.paragraph(text, text)

    def _download(self, notebook: Path) -> nodes.paragraph:
        target = "/" + Path(os.path.relpath(notebook, self.env.srcdir)).as_posix()
        reference = addnodes.download_reference(
            "", "", nodes.literal(notebook.name, notebook.name), reftarget=target
        )
        line = nodes.paragraph("", "Download the notebook alone: ", reference)
        line += nodes.Text(". The checks come only with the course.")
        return line

    def _elsewhere(self, assignment: dict[str, Any]) -> list[nodes.Node]:
        theme = self.config.html_theme_options
        repository = self.config.course_repository or theme.get("repository_url")
        if not repository:
            return []
        path = f"exercises/{assignment['name']}/{assignment['notebook']}"
        addresses = elsewhere(repository, f"v{version_of()}", path)
        line = nodes.paragraph("", "Online, on someone else’s machine: ", classes=["elsewhere"])
        for position, (service, address) in enumerate(addresses.items()):
            line += nodes.Text(" " if position else "")
            line += nodes.reference("", f"Open in {service}", refuri=address, classes=["button"])
        return [line]

    def _exercise(self, exercise: dict[str, Any], home: str) -> nodes.definition_list_item:
        title = f"{exercise['number']} {exercise['title']}"
        mistakes = len(exercise["mistakes"])
        facts = nodes.paragraph(classes=["exercise-facts"])
        facts += tick_node(exercise=f"{home}/{exercise['name']}", title=title)
        told: list[list[nodes.Node]] = [
            [nodes.Text(_counted(exercise["points"], "point"))],
            [nodes.Text(f"{exercise['minutes']} minutes")],
            [nodes.Text("goes deeper")] if exercise["deeper"] else [],
            *(
                [nodes.Text(f"{word} "), scale_node(word=word, level=exercise[word])]
                for word in ("difficulty", "importance")
            ),
            [nodes.Text(_counted(mistakes, "known mistake"))] if mistakes else [],
        ]
        told = [each for each in told if each]
        for fact in told:
            comma = [] if fact is told[-1] else [nodes.Text(",")]
            facts += [nodes.inline("", "", *fact, *comma, classes=["tied"]), nodes.Text(" ")]
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


def visit_tick(self: HTML5Translator, node: tick_node) -> None:
    self.body.append(
        f'<span class="exercise-tick" data-exercise="{escape(node["exercise"])}"'
        f' data-title="{escape(node["title"])}"></span>'
    )
    raise nodes.SkipNode


def skip(self: Any, node: nodes.Node) -> None:
    raise nodes.SkipNode


def write_scale(self: Any, node: scale_node) -> None:
    """Write the level in words where there are no dots."""
    self.body.append(f"{node['level']} of 5")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict:
    app.add_config_value("course_root", None, "env")
    app.add_config_value("course_repository", None, "env")
    app.add_role("in-all", InAll())
    app.add_directive("exercises", Exercises)
    app.add_node(
        scale_node,
        html=(visit_scale, depart_scale),
        latex=(write_scale, None),
    )
    app.add_node(tick_node, html=(visit_tick, None), latex=(skip, None), text=(skip, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
