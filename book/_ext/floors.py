"""The two floors of a chapter: a core page, and deeper pages below it that can be skipped.

A page says in its front matter what it is:

    floor: core
    shows: [groundup.core.attention.attention_weights]   # what is printed whole on it

    floor: deeper
    needs: [01_attention]                                # what to read first

Below its title it then says how long it takes to read and what it needs; a core page also lists its
deeper pages. `tests/book/test_floors.py` holds pages to the limits of their floor.
"""

from pathlib import Path
from typing import Any

import syllabus
import yaml
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util.nodes import make_refnode

FLOORS = ("core", "deeper")


def front_matter(page: str) -> dict[str, Any]:
    """Read what a page's source says about itself.

    Raises:
        ValueError: If it names a floor that does not exist, or is a deeper page that does not say
            what to read first.

    """
    told = page.split("\n---\n", 1)[0].removeprefix("---\n") if page.startswith("---\n") else ""
    about = yaml.safe_load(told) or {}
    floor, needs = about.get("floor"), about.get("needs", [])
    if floor is not None and floor not in FLOORS:
        raise ValueError(f"floor must be one of {', '.join(FLOORS)}, got {floor!r}")
    if floor == "deeper" and not needs:
        raise ValueError("a deeper page must name what to read first, `needs: [page]`, got none")
    return about


def look_up(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Learn about all pages; name those whose line below the title is not what it was."""
    pages = {}
    for page in sorted(env.found_docs):
        text = Path(env.doc2path(page)).read_text(encoding="utf-8")
        try:
            about = front_matter(text)
        except ValueError as error:
            raise ExtensionError(f"{page}: {error}") from error
        if "floor" in about:
            needs = about.get("needs", [])
            missing = [name for name in needs if name not in env.found_docs]
            if missing:
                raise ExtensionError(f"{page} needs {', '.join(missing)}, which is no page")
            minutes = syllabus.reading_minutes(text)
            pages[page] = (about["floor"], minutes, needs, env.titles[page].astext())
    before = getattr(env, "floors", {})
    env.floors = pages
    if before == pages:
        return []
    return sorted({*before, *pages})  # one that is new changes the line of another


def say_below_title(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Write the line."""
    pages = app.env.floors
    title = next(iter(doctree.findall(nodes.title)), None)
    if page not in pages or title is None:
        return

    def link(name: str) -> nodes.Node:
        words = nodes.Text(app.env.titles[name].astext())
        return make_refnode(app.builder, page, name, "", words)

    floor, minutes, needs, _ = pages[page]
    line = nodes.paragraph(classes=["chapter-floor"])
    line += nodes.strong("", f"{floor.capitalize()} page")
    line += nodes.Text(f" · {syllabus.said(minutes)} to read")
    line += [nodes.Text(" · needs ")] * bool(needs)
    for number, name in enumerate(needs):
        line += [nodes.Text(", ")] * bool(number) + [link(name)]
    lines = [line]
    below = [name for name in app.env.toctree_includes.get(page, []) if name in pages]
    if below:
        deeper = nodes.paragraph(classes=["chapter-floor"])
        deeper += nodes.Text("Go deeper, now or later: ")
        for number, name in enumerate(below):
            deeper += [nodes.Text(" · ")] * bool(number)
            deeper += [link(name), nodes.Text(f" ({syllabus.said(pages[name][1])})")]
        lines.append(deeper)
    title.parent[title.parent.index(title) + 1 : title.parent.index(title) + 1] = lines


def setup(app: Sphinx) -> dict:
    app.connect("env-updated", look_up)
    app.connect("doctree-resolved", say_below_title)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
