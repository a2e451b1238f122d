"""The book, built once, and small books to try its extensions on."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]

# The extensions are modules beside the book, as _config.yml tells jupyter-book.
sys.path[:0] = [str(ROOT / "book" / "_ext"), str(ROOT / "book"), str(HERE)]


@pytest.fixture(scope="session")
def site() -> Path:
    """Build the book as its readers do, with warnings as errors and no way to the network.

    Executed pages are kept between runs, nothing else is: a page that is not read again would
    not warn again.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    target = ROOT / "build" / f"book-{worker}"
    for leftover in (target / "_build").glob("*"):
        if leftover.name != ".jupyter_cache":
            shutil.rmtree(leftover)
    command = [Path(sys.executable).with_name("jupyter-book"), "build", ROOT / "book"]
    command += ["--path-output", target, "-W", "--keep-going", "-n"]
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    built = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **nowhere},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-6000:]
    return target / "_build" / "html"


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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if found is None:
        pytest.fail(
            "the tests of the book need Chromium: install it with `apt-get install chromium`, "
            "`brew install chromium`, or leave these tests out with `pytest -m 'not browser'`",
            pytrace=False,
        )
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[Callable[..., BrowserContext]]:
    opened: list[BrowserContext] = []

    def new(**options: object) -> BrowserContext:
        opened.append(browser.new_context(**options))
        return opened[-1]

    yield new
    for each in opened:
        each.close()
