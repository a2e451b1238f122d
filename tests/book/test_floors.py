"""Core pages are short and whole, deeper pages can be skipped."""

import ast
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from books import BOOK, ROOT, chapters, pages
from chapter_map import names_imported
from floors import front_matter

sys.path.insert(0, str(ROOT / "tests" / "structure"))
from structure import code_lines  # noqa: E402

MAX_WORDS = 2800
MAX_CODE_LINES = 200
REMOVED = re.compile(r"^:tags: \[.*remove-(cell|input)", re.MULTILINE)
FOLDED = re.compile(r"^:tags: \[.*(hide-(input|cell)|remove-)", re.MULTILINE)

BLOCK = re.compile(r"^(```+|:::+)(.*?)^\1[ ]*$", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(r"\$\$.*?\$\$|\$[^$\n]+\$", re.DOTALL)
CAPTION = re.compile(r":\s*caption: \|\n((?::\s{5,}.*\n)+)")
NO_PROSE = "quiz math exercises bibliography glue:figure raw literalinclude".split()

TEXTS = {page: (BOOK / f"{page}.md").read_text("utf-8") for page in pages() if "/" not in page}
ABOUT = {page: front_matter(text) for page, text in TEXTS.items()}
CORE = [page for page in TEXTS if ABOUT[page].get("floor") == "core"]
DEEPER = [page for page in TEXTS if ABOUT[page].get("floor") == "deeper"]
ORDER = [page for page in TEXTS if page in CORE + DEEPER]


def prose_words(page: str) -> int:
    """Count what is read as text: paragraphs, boxes, tables and captions."""

    def prose_of(block: re.Match[str]) -> str:
        head, _, body = block[2].partition("\n")
        if head.startswith("{code-cell}"):
            caption = CAPTION.search(body)
            return caption[1] if caption else ""
        is_read = head.startswith("{") and not head[1:].startswith(tuple(NO_PROSE))
        return BLOCK.sub(prose_of, body) if is_read else ""

    prose = FORMULA.sub("", BLOCK.sub(prose_of, page.split("\n---\n", 1)[-1]))
    return len(re.findall(r"[A-Za-z][\w’'-]*", prose))


def cells(page: str) -> list[str]:
    """Give the code cells of a page, each with its options."""
    return re.findall(r"^```\{code-cell\}[^\n]*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def python(cell: str) -> str:
    """Give the code of a cell."""
    return "\n".join(line for line in cell.splitlines() if not line.startswith((":", "%", "!")))


def printed(page: str) -> dict[str, str]:
    """Give what a page prints whole of the library, by name: `groundup.core.masks.causal_mask`."""
    found = {}
    for file, options in re.findall(r"\{literalinclude\} \.\./lib/(\S+)\.py\n((?::.*\n)*)", page):
        name = re.search(r"^:pyobject: (\S+)$", options, re.MULTILINE)
        if name and not re.search(r"^:(lines|start|end)", options, re.MULTILINE):
            source = source_of(ROOT / "lib" / f"{file}.py", name[1])
            found[f"{file.replace('/', '.')}.{name[1]}"] = source
    return found


def source_of(file: Path, name: str) -> str:
    """Give the source of a function or class, or of one in a class, `Class.method`."""
    source = file.read_text(encoding="utf-8")
    scope: Any = ast.parse(source)
    for part in name.split("."):
        scope = next(node for node in scope.body if getattr(node, "name", None) == part)
    return textwrap.dedent("\n".join(source.splitlines()[scope.lineno - 1 : scope.end_lineno]))


def visible_code(page: str) -> int:
    """Count lines of code that are shown: of cells that are not folded, and of the library."""
    shown = [python(cell) for cell in cells(page) if not FOLDED.search(cell)]
    return sum(code_lines(code) for code in [*shown, *printed(page).values()])


def results(cell: str) -> set[str]:
    """Name what a cell computes for others to see: its variables, and what it prints or keeps.

    Imports, definitions and assertions give nothing to see.
    """
    found = set()
    for node in ast.parse(python(cell)).body:
        if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef):
            continue
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                found.add(part.id)
            is_call = isinstance(part, ast.Call) and isinstance(part.func, ast.Name)
            if is_call and part.func.id in ("glue", "remember", "print", "display"):
                found.add(ast.unparse(part))
    return found


PAGE = """---
floor: core
---
(ch-any)=
# Two words

Three more words, and $x$ or

$$
y
$$

:::{note}
Words in a box.
:::

```{code-cell} ipython3
:tags: [remove-cell]
import math
size = 3
print(size)
```

```{code-cell} ipython3
def f(x):
    "Say what."
    return x  # shown

# a comment
f(1)
```

```{code-cell} ipython3
:tags: [hide-input]
:mystnb:
:  figure:
:    caption: |
:      A caption.
:    name: fig-x
draw()
```

```{literalinclude} ../lib/groundup/core/attention.py
:language: python
:pyobject: attention_weights
```

```{literalinclude} ../lib/groundup/core/masks.py
:pyobject: causal_mask
:lines: 1-3
```
"""


def test_words_and_lines_are_counted_where_they_are_read():
    assert prose_words(PAGE) == 2 + 5 + 4 + 2 + 1  # and the letters of the label
    name = "groundup.core.attention.attention_weights"
    assert list(printed(PAGE)) == [name]
    assert visible_code(PAGE) == 3 + code_lines(printed(PAGE)[name])
    assert results(cells(PAGE)[0]) == {"size", "print(size)"}


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ("floor: cellar", "floor must be one of core, deeper, got 'cellar'"),
        ("floor: deeper", "a deeper page must name what to read first"),
    ],
)
def test_a_floor_that_does_not_exist_or_hangs_in_the_air_is_refused(told, message):
    with pytest.raises(ValueError, match=message):
        front_matter(f"---\n{told}\n---\n# Page\n")


def test_deeper_pages_lie_below_their_core_page_and_need_earlier_ones():
    assert [page for _, *below in chapters().values() for page in below] == DEEPER
    for page in DEEPER:
        later = [name for name in ABOUT[page]["needs"] if ORDER.index(name) >= ORDER.index(page)]
        assert not later, page


@pytest.mark.parametrize("page", CORE)
def test_a_core_page_is_read_in_one_sitting(page):
    assert prose_words(TEXTS[page]) <= MAX_WORDS
    assert visible_code(TEXTS[page]) <= MAX_CODE_LINES


@pytest.mark.parametrize("page", CORE)
def test_a_core_page_prints_what_it_is_about(page):
    assert ABOUT[page]["shows"]
    assert set(ABOUT[page]["shows"]) <= set(printed(TEXTS[page]))


@pytest.mark.parametrize("page", CORE + DEEPER)
def test_no_cell_that_a_reader_cannot_see_computes_what_is_shown(page):
    removed = [cell for cell in cells(TEXTS[page]) if REMOVED.search(cell)]
    shown = "\n".join(python(c) for c in cells(TEXTS[page]) if not REMOVED.search(c))
    names = [node for node in ast.walk(ast.parse(shown)) if isinstance(node, ast.Name)]
    read, computed = ({n.id for n in names if isinstance(n.ctx, k)} for k in (ast.Load, ast.Store))
    hidden = set().union(*map(results, removed))
    assert not {result for result in hidden if "(" in result or result in read - computed}


@pytest.mark.parametrize("page", CORE)
def test_a_core_page_imports_nothing_of_a_later_chapter(page):
    later = CORE[CORE.index(page) + 1 :]
    taught = {name for other in later for name in ABOUT[other]["shows"]}
    taught -= {name for other in CORE[: CORE.index(page) + 1] for name in ABOUT[other]["shows"]}
    code = "\n".join(python(cell) for cell in cells(TEXTS[page]))
    imported = {f"groundup.{module}.{name}" for module, name in names_imported(code)}
    assert not imported & taught
