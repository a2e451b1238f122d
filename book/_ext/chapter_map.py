"""The path through the course, with lines that say which chapter builds on which.

    ```{chapter-map}
    01_attention: attention, derived, and tested against its limits
    02_masking: causal, padding and window masks that cannot leak
    ```

One line per chapter, in the order of the course: its page, and what a reader has at the end of it.
Titles and lines are read off the pages, the exercises and the notebooks, so the map cannot claim
what is not so. A later chapter builds on an earlier one

- if its code imports a function or class whose source the earlier one shows, or whose twin is
  written in the earlier one's exercises;
- if its notebook imports a piece of the student's own library that is written there;
- if its text refers to a section, figure or equation there (a thinner line).

The list says all this in words; the drawing beside it is for the eye alone.
"""

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from html import escape
from pathlib import Path

import syllabus
from docutils import nodes
from exercise_list import course_root
from remembered import remembered
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

CODE = re.compile(r"^```\{code-cell\}.*?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(
    r"\{literalinclude\} \.\./lib/groundup/([\w/]+)\.py\n(?::(?!pyobject).*\n)*:pyobject: (\w+)"
)
LABELS = (
    re.compile(r"^\(([\w-]+)\)=$", re.MULTILINE),  # a section
    re.compile(r"^:? *:?name: ([\w-]+)$", re.MULTILINE),  # a figure or question
    re.compile(r"\$\$ \(([\w-]+)\)$", re.MULTILINE),  # an equation
)
REFERENCES = (
    re.compile(r"\]\(#?([\w-]+)\)"),
    re.compile(r"\{(?:ref|numref|eq)\}`(?:[^`<]*<)?([\w-]+)>?`"),
)
PAGES = re.compile(r"\]\(([\w-]+)\.md(?:#[\w-]+)?\)|\{doc\}`(?:[^`<]*<)?/?([\w-]+)>?`")

Name = tuple[str, str]
"""A module of the library and a function or class in it."""


@dataclass(frozen=True)
class Link:
    """That one chapter builds on another.

    Attributes:
        base: The earlier chapter.
        user: The later one.
        names: What of the earlier one's work it computes with; may be empty.
        mentions: How often its text refers there.

    """

    base: str
    user: str
    names: tuple[str, ...] = ()
    mentions: int = 0


@dataclass
class Page:
    """What a chapter's source says about others."""

    title: str
    shows: set[Name] = field(default_factory=set)
    imports: set[Name] = field(default_factory=set)
    labels: set[str] = field(default_factory=set)
    refers: list[str] = field(default_factory=list)


def read_page(text: str) -> Page:
    """Read what a chapter shows, imports and refers to.

    Raises:
        ValueError: If it has no heading.

    """
    prose = CODE.sub("", text)
    title = re.search(r"^# (.+)$", prose, re.MULTILINE)
    if title is None:
        raise ValueError("a chapter must have a heading, `# …`")
    page = Page(title[1], {(file.replace("/", "."), name) for file, name in SHOWN.findall(text)})
    for code in CODE.findall(text):
        lines = (line for line in code.splitlines() if not line.startswith((":", "%", "!")))
        page.imports |= names_imported("\n".join(lines))
    page.labels = {label for pattern in LABELS for label in pattern.findall(text)}
    page.refers = [label for pattern in REFERENCES for label in pattern.findall(prose)]
    page.refers += [one or other for one, other in PAGES.findall(prose)]
    return page


def pages_of(book: Path, chapter: str) -> list[Path]:
    """List the files of a chapter, its core page first: deeper pages begin with the same number."""
    core = book / f"{chapter}.md"
    return [core, *sorted(set(book.glob(f"{chapter[:3]}*.md")) - {core})]


def read_chapter(files: Iterable[Path]) -> Page:
    """Read all pages of a chapter as one; to refer to a deeper page is to refer to its chapter.

    Raises:
        OSError: If a page is not there.
        ValueError: If the core page has no heading.

    """
    core, *deeper = files
    texts = [file.read_text(encoding="utf-8") for file in (core, *deeper)]
    page = read_page("\n".join(texts))
    page.labels |= {file.stem for file in deeper}
    return page


def time_to_read(files: Iterable[Path]) -> str:
    """Say how long a core page takes to read, and how many deeper pages there are below it."""
    core, *deeper = files
    time = syllabus.said(syllabus.reading_minutes(core.read_text(encoding="utf-8")))
    return f"{time} and {len(deeper)} deeper page{'s' * (len(deeper) != 1)}" if deeper else time


def names_imported(code: str, package: str = "groundup") -> set[Name]:
    """List what code takes from modules of a package, `("", name)` if from the package itself."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module:
            root, _, module = node.module.partition(".")
            if root == package and not node.level:
                found |= {(module, alias.name) for alias in node.names}
    return found


def links(
    pages: Mapping[str, Page],
    written: Mapping[str, Iterable[Name]] | None = None,
    taken: Mapping[str, Iterable[Name]] | None = None,
) -> list[Link]:
    """Find out which chapter builds on which.

    Args:
        pages: The chapters by name, in the order of the course.
        written: What each chapter's exercises write, beside what its page shows.
        taken: What each chapter's notebook takes from the exercises of others, beside what its page
            imports.

    """
    written, taken = written or {}, taken or {}
    home: dict[Name, str] = {}
    for chapter, page in pages.items():
        for name in page.shows | set(written.get(chapter, ())):
            home.setdefault(name, chapter)
    places = {label: chapter for chapter, page in pages.items() for label in page.labels}
    places |= {chapter: chapter for chapter in pages}
    order = list(pages)
    found = []
    for number, user in enumerate(order):
        used = pages[user].imports | set(taken.get(user, ()))
        aims = [places.get(label) for label in pages[user].refers]
        for base in order[:number]:
            names = sorted({name for module, name in used if home.get((module, name)) == base})
            mentions = aims.count(base)
            if names or mentions:
                found.append(Link(base, user, tuple(names), mentions))
    return found


@cache
def exercises(root: Path) -> tuple[dict[str, list[Name]], dict[str, list[Name]]]:
    """Say what each assignment writes for the student's library, and what it takes from there."""
    from classroom.student.mine import PIECES  # brings torch, which a build may not need
    from groundup.variants.functional import Parts

    written: dict[str, list[Name]] = {}
    at_home: dict[str, Name] = {}
    for piece in PIECES:
        for own, place in piece.names.items():
            module, _, name = place.removeprefix("groundup.").rpartition(".")
            written.setdefault(piece.assignment, []).extend([(module, name), ("mine", own)])
            at_home[own] = ("mine", own)
    taken: dict[str, list[Name]] = {}
    for folder in sorted((root / "solutions").glob("*/")):
        found = set()
        for notebook in folder.glob("*.py"):
            code = notebook.read_text(encoding="utf-8")
            found |= {at_home[name] for _, name in names_imported(code, "mine") if name in at_home}
            if re.search(r"^ *import mine\b", code, re.MULTILINE):  # a model made of all parts
                found |= {at_home[name] for name in Parts.names() if name in at_home}
        taken[folder.name] = sorted(found)
    return written, taken


def read_lines(lines: Iterable[str]) -> dict[str, str]:
    """Read the chapters and what a reader has at the end of each.

    Raises:
        ValueError: If a line is not of the form `page: words`, or names a page again.

    """
    gains: dict[str, str] = {}
    for line in lines:
        name, _, gain = (part.strip() for part in line.partition(": "))
        if not line.strip():
            continue
        if not gain or name in gains:
            raise ValueError(f"a chapter map holds `page: words`, each page once, got {line!r}")
        gains[name] = gain
    if not gains:
        raise ValueError("a chapter map must name at least one chapter")
    return gains


def draw(order: list[str], found: list[Link]) -> str:
    """Draw an arc from each chapter to each that builds on it, between the tops of their rows."""
    arcs = []
    for link in sorted(found, key=lambda link: bool(link.names)):  # the strong ones on top
        base, user = order.index(link.base), order.index(link.user)
        start, end = 100 * base, 100 * user
        reach = 100 - (16 + 112 * (user - base) / max(1, len(order) - 1))
        kind = "map-code" if link.names else "map-text"
        arcs.append(
            f'<path class="{kind}" data-base="{base}" data-user="{user}"'
            f' d="M100 {start}C{reach:.0f} {start} {reach:.0f} {end} 100 {end}"/>'
        )
    return (
        '<svg class="map-arcs" aria-hidden="true" focusable="false" preserveAspectRatio="none"'
        f' viewBox="0 0 100 {100 * len(order)}">{"".join(arcs)}</svg>'
    )


class page_link(nodes.Inline, nodes.TextElement):
    """A link to a page of the book, whose words may have more than one part."""


class ChapterMap(SphinxDirective):
    """Build the list, the drawing beside it, and what is used by name below it."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        source = Path(self.env.srcdir)
        root = course_root(self)
        try:
            gains = read_lines(self.content)
            pages = {}
            times = {}
            for name in gains:
                files = pages_of(source, name)
                for file in files:
                    self.env.note_dependency(str(file))
                pages[name] = read_chapter(files)
                times[name] = time_to_read(files)
        except (OSError, ValueError) as error:
            raise self.error(str(error)) from error
        has_exercises = (root / "solutions").is_dir()
        written_and_taken = remembered(self.env, "map", root, exercises) if has_exercises else ()
        found = links(pages, *written_and_taken)
        whole = nodes.container(classes=["chapter-map"])
        rows = nodes.enumerated_list(classes=["map-rows"], start=0, enumtype="arabic")
        for name, gain in gains.items():
            bases = [link for link in found if link.user == name]
            rows += self._row(name, gain, pages, bases, times[name])
        whole += nodes.raw("", draw(list(gains), found), format="html")
        whole += rows
        return [whole, *self._names(found, pages)]

    def _row(
        self, name: str, gain: str, pages: dict[str, Page], bases: list[Link], time: str
    ) -> nodes.list_item:
        title = nodes.paragraph(classes=["map-title"])
        number = nodes.inline(str(_number(name)), str(_number(name)), classes=["map-number"])
        words = nodes.inline(pages[name].title, pages[name].title, classes=["map-name"])
        title += page_link("", "", number, nodes.Text(" "), words, page=name)
        gained, messages = self.state.inline_text(gain, self.lineno)
        builds = nodes.paragraph(classes=["map-bases"])
        builds += nodes.Text(f"{time} · builds on " if bases else f"{time} · builds on no other")
        for position, link in enumerate(bases):
            builds += nodes.Text(", " if position else "")
            number = str(_number(link.base))
            builds += page_link("", number, page=link.base)
        return nodes.list_item("", title, nodes.paragraph("", "", *gained, *messages), builds)

    def _names(self, found: list[Link], pages: dict[str, Page]) -> list[nodes.Node]:
        by_name = [link for link in found if link.names]
        if not by_name:
            return []
        listed = nodes.definition_list(classes=["map-names"])
        for user in dict.fromkeys(link.user for link in by_name):
            used = nodes.definition()
            for link in (link for link in by_name if link.user == user):
                line = nodes.paragraph("", f"from {_number(link.base)}: ")
                for position, name in enumerate(link.names):
                    line += nodes.Text(", " if position else "")
                    line += nodes.literal(name, name)
                used += line
            term = f"{_number(user)} {pages[user].title}"
            listed += nodes.definition_list_item("", nodes.term(term, term), used)
        summary = "What a chapter computes with, and where it was built"
        return [
            nodes.raw("", f'<details class="folded"><summary>{summary}</summary>', format="html"),
            listed,
            nodes.raw("", "</details>", format="html"),
        ]


def _number(name: str) -> int:
    """Give a chapter's number, which its file's name begins with."""
    return int(name.split("_")[0])


def visit_link(self: HTML5Translator, node: page_link) -> None:
    target = self.builder.get_relative_uri(self.builder.current_docname, node["page"])
    self.body.append(f'<a class="reference internal" href="{escape(target)}">')


def depart_link(self: HTML5Translator, node: page_link) -> None:
    self.body.append("</a>")


def pass_through(self: object, node: nodes.Node) -> None:
    """Where there are no links, the words are enough."""


def setup(app: Sphinx) -> dict:
    app.setup_extension("exercise_list")  # which course it is
    app.add_directive("chapter-map", ChapterMap)
    plain = (pass_through, pass_through)
    app.add_node(page_link, html=(visit_link, depart_link), latex=plain, text=plain)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
