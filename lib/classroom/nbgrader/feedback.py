"""Makes a student's feedback page: points, what the checks found, and the notebook.

The page is opened by people who trust it, and a stranger wrote half of it. So it has no script, no
form, no style of the stranger's and nothing that is fetched: text is escaped, HTML and Markdown
pass a sanitiser, pictures are part of the page, and a policy makes the browser refuse anything that
comes through all the same. Long outputs are cut, with a remark.

The checks' own words come from their reports. The source of a cell that grades is never shown.
"""

import base64
import binascii
import functools
import hashlib
import html
import itertools
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nh3
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup
from mdit_py_plugins.dollarmath import dollarmath_plugin
from nbformat import NotebookNode
from nbgrader.utils import is_grade, is_solution
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from classroom.calls.files import shown
from classroom.course import CHECK_SUFFIX, REPORT_TYPE
from classroom.exercise.report import Report, message_html
from classroom.grader.verdicts import Grades

FIRST_WORDS_ID = "graded"
"""Id of the cell in which a graded notebook says how it was graded."""
REMARKS_ID = "remarks"
"""Id of the cell that names what was unusual about a submission."""

MAX_TEXT_LENGTH = 10_000
MAX_SOURCE_LENGTH = 50_000
MAX_IMAGE_LENGTH = 2_000_000
# Nested elements cost a sanitiser the square of their number, and brackets a parser of Markdown
# the square of theirs: of what is rendered, there is little at a time.
MAX_HTML_LENGTH = 20_000
MAX_MARKDOWN_LENGTH = 4_000
MAX_LENGTHS_OF_A_PAGE = {
    "html": 80_000,
    "markdown": 60_000,
    "highlighted": 80_000,
    "images": 8_000_000,
    "texts": 500_000,
}
MAX_OUTPUTS = 50
# A parser that repairs HTML opens elements such as <b> again in every new paragraph.
MAX_ELEMENTS = 100_000
# For each, a lexer looks through all that follow.
MAX_BLANK_LINES = 500

_LEXER, _FORMATTER = PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)
_HERE = Path(__file__).parent
_ESCAPE_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])"
)
_SPACES = re.compile(r"\s+")
_OPENED_AGAIN = re.compile(
    r"<(a|b|big|code|em|font|i|nobr|s|small|strike|strong|tt|u)\b", re.IGNORECASE
)
_PICTURES = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
}
_INLINE = {
    *("a", "abbr", "b", "br", "code", "del", "em", "i", "img", "ins", "kbd", "mark", "q", "s"),
    *("samp", "small", "span", "strong", "sub", "sup", "u", "var", "wbr"),
}
_BLOCKS = {
    *("blockquote", "caption", "dd", "details", "div", "dl", "dt", "figcaption", "figure"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "summary", "table"),
    *("tbody", "td", "tfoot", "th", "thead", "tr", "ul"),
}


# What a page is made from


def reports_in(notebook: NotebookNode) -> dict[str, Report]:
    """Return the reports that a graded notebook holds, by exercise.

    Where students' code ran beside the checks, it may have written them, in any form: one that
    cannot be read is left out.
    """
    reports = {}
    for cell in filter(is_grade, notebook.cells):
        for output in cell.get("outputs", ()):
            try:
                report = Report.from_json(output.data[REPORT_TYPE])
                report.to_text()
            except (AttributeError, KeyError, TypeError, ValueError):
                continue
            reports[exercise_of(cell)] = report
    return reports


# A page


def page(notebook: NotebookNode, grades: Grades, reports: Mapping[str, Report]) -> str:
    """Return a student's feedback page, as HTML.

    Args:
        notebook: As it was graded.
        grades: What it earned.
        reports: What the checks found, by exercise.

    Raises:
        ValueError: If an exercise was worth other points when this was graded.

    """
    for line in grades.lines:
        report = reports.get(line.exercise)
        if report and line.points and report.points != line.points:
            raise ValueError(
                f"{line.exercise} is worth {line.points:g} points now, and was worth "
                f"{report.points} when this was graded: run `classroom grade {grades.assignment}`"
            )
    cells = list(notebook.cells)
    about = {}
    while cells and cells[0].get("id") in (FIRST_WORDS_ID, REMARKS_ID):
        first = cells.pop(0)
        about[first.id] = first.source
    remarks = about.get(REMARKS_ID, "").removeprefix("```text\n").removesuffix("\n```")
    anchors = {line.exercise: f"exercise-{n}" for n, line in enumerate(grades.lines, 1)}
    left = _Allowance()
    return _template().render(
        grades=grades,
        student=shown(grades.student),
        reports=reports,
        anchors=anchors,
        titles={name: report.title for name, report in reports.items()},
        written={exercise_of(cell) for cell in cells if _is_written(cell)},
        comments=any(
            line.comment or line.by_hand for line in grades.lines if line.points or line.earned
        ),
        first_words=_plain(about.get(FIRST_WORDS_ID, "")),
        remarks=_plain(remarks),
        policy=_policy(),
        style=Markup(_style()),
        cells=[_cell(n, cell, anchors, left) for n, cell in enumerate(cells, 1)],
    )


def write_page(folder: Path, notebook_name: str, text: str, goes_with: Iterable[Path] = ()) -> Path:
    """Write a page to where `nbgrader release_feedback` looks for it.

    Args:
        folder: Such as `feedback/ada/01_attention`.
        notebook_name: Of the notebook that was graded, without its ending.
        text: The page.
        goes_with: Files that are copied beside it, if they are there and no links.

    Returns:
        The page's file.

    """
    folder.mkdir(parents=True, exist_ok=True)
    put_beside(folder, goes_with)
    return _write(folder / f"{notebook_name}.html", text.encode(errors="replace"))


def put_beside(folder: Path, files: Iterable[Path]) -> None:
    """Copy files into a folder, those that are there, are no links, and are not huge."""
    for file in files:
        if file.is_file() and not file.is_symlink() and file.stat().st_size < MAX_TEXT_LENGTH:
            _write(folder / file.name, file.read_bytes())


def _write(path: Path, content: bytes) -> Path:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
        file.write(content)
        os.fchmod(file.fileno(), 0o644)
    os.replace(file.name, path)
    return path


@functools.cache
def _template():
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = lambda number: f"{number:g}"
    environment.filters["message"] = lambda message: Markup(message_html(message))
    return environment.get_template("feedback.html.jinja")


@functools.cache
def _style() -> str:
    return (_HERE / "feedback.css").read_text(encoding="utf-8")


@functools.cache
def _policy() -> str:
    """What a browser may do with the page: show it, with our style and the pictures in it."""
    digest = base64.b64encode(hashlib.sha256(_style().encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


# A cell


def _is_written(cell: NotebookNode) -> bool:
    return is_grade(cell) and is_solution(cell)


@dataclass
class _Allowance:
    """How much of each kind a page may still show."""

    left: dict[str, int] = field(default_factory=MAX_LENGTHS_OF_A_PAGE.copy)

    def take(self, kind: str, length: int) -> bool:
        """Use up so much, if there is as much left; return whether there was."""
        if length > self.left[kind]:
            return False
        self.left[kind] -= length
        return True

    def cut(self, text: str, limit: int = MAX_TEXT_LENGTH) -> tuple[str, str]:
        """Return the beginning of a text, made plain, and a remark if that is not all."""
        limit = min(limit, self.left["texts"])
        plain = _plain(text[: 4 * limit])
        beginning = plain[:limit]
        self.left["texts"] -= len(beginning)
        is_all = len(text) <= 4 * limit and len(plain) <= limit
        return beginning, "" if is_all else f"\n… cut here: {len(text):,} characters in all"


def exercise_of(cell: NotebookNode) -> str:
    """Return the exercise that a cell answers or checks."""
    return cell.metadata.nbgrader.grade_id.removesuffix(CHECK_SUFFIX)


def _cell(number: int, cell: NotebookNode, anchors: Mapping[str, str], left: _Allowance) -> dict:
    """Return what the template shows of a cell."""
    about = {"number": number, "type": cell.cell_type, "is_answer": is_solution(cell)}
    about |= {"anchor": "", "checks": "", "html": "", "outputs": []}
    about["is_written"] = _is_written(cell)
    if is_grade(cell) or is_solution(cell):
        about["anchor"] = anchors.get(exercise_of(cell), "")
    if is_grade(cell) and not is_solution(cell):
        return {**about, "checks": exercise_of(cell)}
    if cell.cell_type == "code":
        about["html"] = _code(cell.source, left)
        outputs = cell.get("outputs", [])
        about["outputs"] = [_output(each, number, left) for each in outputs[:MAX_OUTPUTS]]
        if len(outputs) > MAX_OUTPUTS:
            more = f"… cut here: {len(outputs) - MAX_OUTPUTS} more outputs are not shown"
            about["outputs"].append(_preformatted(more, left))
    elif cell.cell_type == "markdown":
        about["html"] = _markdown(cell.source, left)
    else:
        about["html"] = _preformatted(cell.source, left)
    return about


def _output(output: Any, number: int, left: _Allowance) -> Markup:
    """Return an output in the richest of its forms that is harmless."""
    kind = output.get("output_type")
    if kind == "stream":
        return _preformatted(_text(output.get("text", "")), left)
    if kind == "error":
        lines = "\n".join(map(_text, output.get("traceback", ())))
        text = lines or f"{output.get('ename', '')}: {output.get('evalue', '')}"
        return _preformatted(text, left, "error")
    forms = output.get("data", {})
    plain = _text(forms.get("text/plain", ""))
    picture = _picture(forms, number, left)
    if picture:
        return picture
    if "text/html" in forms:
        source = _text(forms["text/html"])
        is_short = len(source) <= MAX_HTML_LENGTH and _size_when_repaired(source) <= MAX_ELEMENTS
        if is_short and left.take("html", len(source)):
            return _framed(_harmless(source), number)
        return _preformatted(f"{plain}\n(its HTML is too long to be shown here)".lstrip(), left)
    if "text/markdown" in forms:
        return _framed(_markdown(_text(forms["text/markdown"]), left), number)
    known = plain or _text(forms.get("text/latex", ""))
    return _preformatted(known or "(an output of a kind that is not shown here)", left)


def _picture(forms: Mapping[str, Any], number: int, left: _Allowance) -> Markup | None:
    for kind, beginning in _PICTURES.items():
        if kind not in forms:
            continue
        try:
            content = base64.b64decode("".join(_text(forms[kind]).split()), validate=True)
        except (binascii.Error, ValueError):
            content = b""
        if not content.startswith(beginning):
            return _preformatted("(a picture that cannot be read)", left)
        break
    else:
        # A picture, other than a part of the page, runs no script and fetches nothing.
        kind, content = "image/svg+xml", _text(forms.get("image/svg+xml", "")).encode()
    if not content:
        return None
    if len(content) > MAX_IMAGE_LENGTH or not left.take("images", len(content)):
        size = f"{len(content):,} bytes"
        return _preformatted(f"(a picture of {size}, too large to be shown here)", left)
    source = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    name = _SPACES.sub(" ", _plain(_text(forms.get("text/plain", ""))[:200]))
    instead = f"What cell {number} shows: {name or 'a picture'}"
    return Markup('<img class="output" src="{}" alt="{}">').format(source, instead)


# Text


def _text(value: Any) -> str:
    """Return what a notebook may keep as one text or as a list of lines."""
    return "".join(map(str, value)) if isinstance(value, list) else str(value)


def _plain(text: str) -> str:
    """Return text as a terminal would leave it standing, without what moves or colours it."""
    text = _ESCAPE_SEQUENCE.sub("", text)
    if "\r" in text:  # a progress bar writes over itself
        lines = text.replace("\r\n", "\n").split("\n")
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)
    if all(line.isprintable() for line in text.replace("\t", "").split("\n")):
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)


def _preformatted(text: str, left: _Allowance, look: str = "text") -> Markup:
    return Markup('<pre class="output {}">{}{}</pre>').format(look, *left.cut(text))


def _framed(content: Markup, number: int) -> Markup:
    frame = Markup('<div class="rich" role="group" tabindex="0" aria-label="{}">{}</div>')
    return frame.format(f"Output of cell {number}", content)


def _code(source: str, left: _Allowance) -> Markup:
    text, remark = left.cut(source, MAX_SOURCE_LENGTH)
    is_coloured = left.take("highlighted", len(text))
    return Markup("{}{}").format(_highlighted(text) if is_coloured else text, remark)


@functools.lru_cache(maxsize=512)
def _highlighted(source: str) -> Markup:
    lines = itertools.groupby(source.split("\n"), lambda line: not line.strip())
    if any(is_blank and len(list(run)) > MAX_BLANK_LINES for is_blank, run in lines):
        return Markup.escape(source)
    return Markup(highlight(source, _LEXER, _FORMATTER))


def _markdown(source: str, left: _Allowance) -> Markup:
    is_short = len(source) <= MAX_MARKDOWN_LENGTH and _size_when_repaired(source) <= MAX_ELEMENTS
    if is_short and left.take("markdown", len(source)):
        return _rendered(source)
    return _preformatted(source, left)


@functools.lru_cache(maxsize=512)
def _rendered(source: str) -> Markup:
    return _harmless(_parser().render(source))


@functools.cache
def _parser() -> MarkdownIt:
    # Formulas stay as they were typed. Link references are of no use in so short a text, and slow.
    parser = MarkdownIt("commonmark").enable("table").use(dollarmath_plugin).disable("reference")

    def formula(mark: str):
        def render(self, tokens, index, options, env):
            text = html.escape(f"{mark}{tokens[index].content}{mark}")
            return f"<code>{text}</code>" if mark == "$" else f"<pre>{text}</pre>"

        return render

    parser.add_render_rule("math_inline", formula("$"))
    parser.add_render_rule("math_inline_double", formula("$$"))
    parser.add_render_rule("math_block", formula("$$"))

    def demote(state) -> None:
        for token in state.tokens:
            if token.type in ("heading_open", "heading_close"):
                token.tag = f"h{min(6, int(token.tag[1]) + 2)}"

    parser.core.ruler.push("demote_headings", demote)
    return parser


def _size_when_repaired(source: str) -> int:
    """Return the most elements that a text of HTML may have after it is repaired."""
    return source.count("<") * (1 + len(_OPENED_AGAIN.findall(source)))


def _harmless(source: str) -> Markup:
    """Return HTML of a stranger's without what could act, fetch, or look like a part of ours."""
    return Markup(_sanitiser().clean(source))


@functools.cache
def _sanitiser() -> nh3.Cleaner:
    def keep(tag: str, attribute: str, value: str) -> str | None:
        if attribute == "src":
            fits = value.startswith(tuple(f"data:{kind};base64," for kind in _PICTURES))
            return value if fits else None
        if attribute == "href":
            return value if value.startswith(("https://", "http://", "mailto:")) else None
        return value

    spans = {"colspan", "rowspan"}
    return nh3.Cleaner(
        tags=_INLINE | _BLOCKS,
        clean_content_tags={"script", "style", "title", "template", "noscript", "iframe"},
        attributes={
            "a": {"href", "title"},
            "abbr": {"title"},
            "details": {"open"},
            "img": {"src", "alt", "title", "width", "height"},
            "ol": {"start"},
            "td": spans,
            "th": spans | {"scope"},
        },
        attribute_filter=keep,
        url_schemes={"https", "http", "mailto", "data"},
        strip_comments=True,
        link_rel="noopener noreferrer",
    )
