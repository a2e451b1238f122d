"""The book, built once, and small books to try its extensions on."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILT = ROOT / "build" / "book"

# The extensions are modules beside the book, as _config.yml tells jupyter-book.
sys.path[:0] = [str(ROOT / "book" / "_ext"), str(ROOT / "book"), str(HERE)]


@pytest.fixture(scope="session")
def site(once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """The book, built once for all processes as its readers build it."""
    failure = once("book", build) / "failure"
    assert not failure.exists(), failure.read_text()
    return BUILT / "_build" / "html"


def build(told: Path) -> None:
    """Build the book with warnings as errors and no way to the network; tell what went wrong.

    Executed pages are kept between runs, nothing else is: a page that is not read again would
    not warn again.
    """
    for leftover in (BUILT / "_build").glob("*"):
        if leftover.name != ".jupyter_cache":
            shutil.rmtree(leftover)
    command = [Path(sys.executable).with_name("jupyter-book"), "build", ROOT / "book"]
    command += ["--path-output", BUILT, "-W", "--keep-going", "-n"]
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    built = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **nowhere},
        capture_output=True,
        text=True,
    )
    if built.returncode != 0:
        (told / "failure").write_text(built.stdout[-2000:] + built.stderr[-6000:])


@pytest.fixture
def small_book(tmp_path: Path) -> Callable:
    """Give a new small book that uses the named extensions."""
    from books import SmallBook

    def make(*extensions: str, **settings: object) -> SmallBook:
        book = SmallBook(tmp_path)
        book.settings["extensions"] += extensions
        book.settings.update(settings)
        return book

    return make


@pytest.fixture
def context(browser: Browser) -> Iterator[Callable[..., BrowserContext]]:
    opened: list[BrowserContext] = []

    def new(**options: object) -> BrowserContext:
        opened.append(browser.new_context(**options))
        return opened[-1]

    yield new
    for each in opened:
        each.close()


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Page:
    return browser.new_page()
