"""What the tools of Jupyter Book 2 make of the pages: each is read as it stands, nothing is lost.

Jupyter Book 2 is mystmd, another program than the one that builds this book, with its own parser.
It reads a copy of the pages here, without executing them, with a theme of nothing, so that it needs
no network once npm has fetched it. The record says, page by page, what it does not know.

    make mystmd
"""

import datetime
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections import Counter
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt
from mdit_py_plugins.front_matter import front_matter_plugin

pytestmark = pytest.mark.benchmark

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "book"
RECORD = Path(__file__).parent / "records" / "jupyter_book_2.json"
MYSTMD = "mystmd@1.8.3"
NOTHING = "jtex: v1\ntitle: Content without a theme\n"
_SAID = re.compile(r"^(⛔️|⚠️|❌) +(\S+\.md)(?::[\d:]+)? (.*)$", re.MULTILINE)
UNKNOWN = {
    "directive: chapter-map": "ours, book/_ext: to be written again as a plugin in JavaScript",
    "directive: exercises": "ours, likewise",
    "directive: quiz": "ours, likewise",
    "directive: container": "of docutils: a div with a class",
    "directive: eval-rst": "of Sphinx: what autodoc lists in the reference",
    "directive: glue:figure": "of myst-nb: an output shown elsewhere on its page",
    "role: glue:text": "of myst-nb: a computed number within a sentence",
}
"""What mystmd does not know, and what it is. Whatever is new here is a step away from it."""
NEEDS_NETWORK = "Could not find DOI"


def contents():
    """List the files of the book in order."""
    toc = yaml.safe_load((BOOK / "_toc.yml").read_text(encoding="utf-8"))
    chapters = [chapter for part in toc["parts"] for chapter in part["chapters"]]
    listed = [page["file"] for c in chapters for page in (c, *c.get("sections", []))]
    return [f"{name}.md" for name in (toc["root"], *listed)]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Fetch mystmd, which is one file."""
    folder = tmp_path_factory.mktemp("npm")
    subprocess.run(["npm", "pack", MYSTMD], cwd=folder, check=True, capture_output=True)
    (archive,) = folder.glob("*.tgz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / "package" / "dist" / "myst.cjs"


@pytest.fixture(scope="module")
def said(program, tmp_path_factory):
    """Let it read the pages; give what it printed, and the pages as it understood them."""
    project = tmp_path_factory.mktemp("project")
    book = project / "book"
    shutil.copytree(BOOK, book, ignore=shutil.ignore_patterns("_build", "__pycache__"))
    for shown in ("lib", "solutions", "tests"):  # pages show pieces of what lies there
        shutil.copytree(
            ROOT / shown, project / shown, ignore=shutil.ignore_patterns("__pycache__", "*.svg")
        )
    (book / "theme").mkdir()
    (book / "theme" / "template.yml").write_text(NOTHING)
    settings = {
        "version": 1,
        "project": {
            "title": "Attention from the Ground Up",
            "toc": [{"file": name} for name in contents()],
            "bibliography": ["references.bib"],
            "math": macros(),
        },
        "site": {"template": "./theme"},
    }
    (book / "myst.yml").write_text(yaml.safe_dump(settings))
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTPS_PROXY"), "http://127.0.0.1:9")
    finished = subprocess.run(
        ["node", program, "build", "--site"],
        cwd=book,
        env={**os.environ, **nowhere},
        capture_output=True,
        text=True,
        timeout=600,
    )
    printed = finished.stdout + finished.stderr
    assert finished.returncode == 0, printed[-3000:]
    understood = {}
    for file in (book / "_build" / "site" / "content").glob("*.json"):
        page = json.loads(file.read_text(encoding="utf-8"))
        understood[page["location"].removeprefix("/")] = page
    return printed, understood


def macros():
    """Give the book's own commands in formulas."""
    settings = yaml.safe_load((BOOK / "_config.yml").read_text(encoding="utf-8"))
    tex = settings["sphinx"]["config"]["mathjax3_config"]["tex"]["macros"]
    return {f"\\{name}": text for name, text in tex.items()}


def nodes(tree):
    """Walk through a page as it was understood."""
    yield tree
    for child in tree.get("children", ()):
        yield from nodes(child)


def counted(page):
    """Count what a reader would miss, as mystmd understood it."""
    found = Counter()
    for node in nodes(page["mdast"]):
        found["code cells"] += node.get("kind") == "notebook-code"
        found["headings"] += node["type"] == "heading"
        found["formulas"] += node["type"] == "math"
    found["headings"] += bool(page["frontmatter"].get("title"))
    return dict(found)


def written(name):
    """Count the same in the source."""
    source = (BOOK / name).read_text(encoding="utf-8")
    tokens = MarkdownIt("commonmark").use(front_matter_plugin).parse(source)
    fences = [token.info for token in tokens if token.type == "fence"]
    prose = "".join(token.content for token in tokens if token.type == "inline")
    return {
        "code cells": sum(info.startswith("{code-cell}") for info in fences),
        "headings": sum(token.type == "heading_open" for token in tokens),
        "formulas": len(re.findall(r"\$\$.+?\$\$", prose, re.DOTALL))
        + sum(info.startswith("{math}") for info in fences),
    }


def without_numbers(message):
    """Bring messages that differ by a place or a name in them to one."""
    return re.sub(r'"[^"]*"', '"…"', message)


def test_every_page_is_read_and_the_record_says_what_is_unknown(said):
    printed, understood = said
    pages = {}
    for name in contents():
        told = [(mark, text) for mark, file, text in _SAID.findall(printed) if file == name]
        unknown = Counter(text for _, text in told if text.startswith("unknown "))
        others = [
            (mark, text) for mark, text in told if not text.startswith(("unknown ", NEEDS_NETWORK))
        ]
        pages[name] = {
            "understood": counted(understood[name]) if name in understood else None,
            "written": written(name),
            "unknown": dict(sorted(unknown.items())),
            "errors": dict(Counter(without_numbers(text) for mark, text in others if mark != "⚠️")),
            "warnings": dict(
                Counter(without_numbers(text) for mark, text in others if mark == "⚠️")
            ),
        }
    found = {text.removeprefix("unknown ") for page in pages.values() for text in page["unknown"]}
    record = {
        "program": MYSTMD,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "unknown": {name: UNKNOWN.get(name, "") for name in sorted(found)},
        "pages": pages,
    }
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    assert all(page["understood"] for page in pages.values())
    assert {n: p["understood"] for n, p in pages.items()} == {
        n: p["written"] for n, p in pages.items()
    }
    assert found == set(UNKNOWN)
