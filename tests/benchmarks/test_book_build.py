"""How long the book takes to build, beside what Jupyter Book does with the same pages by itself.

Three builds of each: from nothing, again without a change, and after a sentence of one page was
changed. Beside ours stands the same book without the extensions that make it faster, of which
`parallel_pages` executes pages side by side in kernels that start at once. Wall clock, since the
point is to use both cores: the two take turns, and nothing else should run. Then every page is
opened in a browser, its bytes are counted and its first paint is timed.

    pytest -o addopts=--import-mode=importlib -m benchmark tests/benchmarks/test_book_build.py
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import sync_playwright

from groundup.looking.throughput import machine

pytestmark = pytest.mark.benchmark

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).parent / "records" / "book_build.json"
FASTER = ("parallel_pages", "quicker_sphinx", "stale_pages")
CHANGED = "02_masking.md"
GOAL_COLD, GOAL_CHANGED_SECONDS = 2.0, 10.0
VISITS = 5


class Copy:
    """The repository, as git knows it, with a book to build in it."""

    def __init__(self, root, without=()):
        self.root = root
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for name in filter(None, listed.split("\0")):
            target = root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
        config = root / "book" / "_config.yml"
        settings = yaml.safe_load(config.read_text(encoding="utf-8"))
        for extension in without:
            del settings["sphinx"]["local_extensions"][extension]
        dumped = yaml.safe_dump(settings, allow_unicode=True, sort_keys=False)
        config.write_text(dumped, encoding="utf-8")

    def build(self):
        """Build the book; give the seconds of wall clock."""
        program = Path(sys.executable).with_name("jupyter-book")
        started = time.monotonic()
        done = subprocess.run(
            [program, "build", "book"],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root / "lib")},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return time.monotonic() - started

    def change(self):
        """Add a sentence to a page; no code of it changes."""
        page = self.root / "book" / CHANGED
        page.write_text(page.read_text(encoding="utf-8") + "\nOne more sentence.\n")


def keep(**rows):
    """Replace rows of the record."""
    about = machine()
    kept = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    for row in rows.values():
        row["hardware"] = f"{about['processor']}, {os.cpu_count()} cores"
        row["load"] = f"{os.getloadavg()[0]:.1f}"
        row["date"] = datetime.now(UTC).date().isoformat()
    kept = dict(sorted((kept | rows).items()))
    RECORD.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    """Ours and the plain one, built from nothing, and then twice more."""
    folder = tmp_path_factory.mktemp("books")
    ours, plain = Copy(folder / "ours"), Copy(folder / "plain", without=FASTER)
    seconds = {"ours": [], "plain": []}
    for step in ("cold", "warm", "changed"):
        for name, book in (("ours", ours), ("plain", plain)):
            if step == "changed":
                book.change()
            seconds[name].append(round(book.build(), 1))
            print(step, name, seconds[name][-1], flush=True)
    return ours, seconds


def test_the_book_is_built_faster_than_by_jupyter_book_alone(books):
    _, seconds = books
    rows = {}
    for number, step in enumerate(("cold", "warm", "one page changed")):
        ours, plain = seconds["ours"][number], seconds["plain"][number]
        rows[f"build, {step}"] = {"seconds": ours, "plain": plain, "ratio": round(plain / ours, 2)}
    cold, changed = rows["build, cold"], rows["build, one page changed"]
    cold |= {"goal": f"at least {GOAL_COLD}", "met": cold["ratio"] >= GOAL_COLD}
    changed |= {
        "goal": f"at most {GOAL_CHANGED_SECONDS} s",
        "met": changed["seconds"] <= GOAL_CHANGED_SECONDS,
    }
    keep(**rows)
    assert cold["ratio"] > 1.0


def bodies(html):
    """Give what each page shows, without the digests of the files that it fetches."""
    texts = {page.relative_to(html): page.read_text("utf-8") for page in html.rglob("*.html")}
    return {
        page: re.sub(r"\?v=\w+", "", text.partition("<body")[2]) for page, text in texts.items()
    }


def test_what_makes_the_build_faster_changes_no_page(books, tmp_path):
    """What pages have computed is kept, and with it what finds it: pages also measure times."""
    ours, plain = books[0], Copy(tmp_path, without=set(FASTER) - {"stale_pages"})
    plain.change()
    cache = Path("book", "_build", ".jupyter_cache")
    shutil.copytree(ours.root / cache, plain.root / cache)
    plain.build()
    built, expected = (bodies(book.root / "book" / "_build" / "html") for book in (ours, plain))
    assert len(expected) > 100
    assert [page for page in expected if built[page] != expected[page]] == []


def test_what_a_page_weighs_and_when_it_is_seen(books):
    html = books[0].root / "book" / "_build" / "html"
    found = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for page in sorted(html.glob("[0-9]*.html")) + [html / "index.html"]:
            paints = []
            for _ in range(VISITS):
                context = browser.new_context(viewport={"width": 1280, "height": 900})
                tab = context.new_page()
                files = set()
                tab.on("requestfinished", lambda request, into=files: into.add(request.url))
                tab.goto(page.as_uri(), wait_until="load")
                tab.wait_for_timeout(300)
                paints.append(
                    tab.evaluate(
                        "performance.getEntriesByName('first-contentful-paint')[0].startTime"
                    )
                )
                context.close()
            sizes = {
                url: Path(url.removeprefix("file://").split("?")[0].split("#")[0]).stat().st_size
                for url in files
                if url.startswith("file://")
            }
            found[page.stem] = {
                "kilobytes": round(sum(sizes.values()) / 1000),
                "of the page itself": round(page.stat().st_size / 1000),
                "files": len(sizes),
                "first paint ms": round(statistics.median(paints)),
            }
        browser.close()
    heaviest = max(found, key=lambda name: found[name]["kilobytes"])
    slowest = max(found, key=lambda name: found[name]["first paint ms"])
    keep(pages={"heaviest": heaviest, "slowest": slowest, "found": found})
    assert found[heaviest]["kilobytes"] < 10_000
    assert found[slowest]["first paint ms"] < 3000
