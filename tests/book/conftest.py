"""The book, built once, and small books to try its extensions on."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "book"
EXTENSIONS = BOOK / "_ext"

# The extensions are modules beside the book, as _config.yml tells jupyter-book.
sys.path[:0] = [str(EXTENSIONS), str(BOOK)]


def pages() -> list[str]:
    """Name every page of the table of contents, without its ending."""
    contents = yaml.safe_load((BOOK / "_toc.yml").read_text(encoding="utf-8"))
    chapters = [chapter["file"] for part in contents["parts"] for chapter in part["chapters"]]
    return [contents["root"], *chapters]


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
    command = [Path(sys.executable).with_name("jupyter-book"), "build", BOOK]
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


class SmallBook:
    """A few pages built with our extensions by Sphinx alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = {
            "extensions": ["myst_nb"],
            "nb_execution_mode": "cache",
            "nb_execution_show_tb": True,
            "myst_enable_extensions": ["dollarmath"],
        }

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    def write_page(self, name: str, code: str) -> None:
        header = "---\nfile_format: mystnb\nkernelspec: {name: python3}\n---\n"
        self.write(f"{name}.md", f"{header}# {name}\n\n```{{code-cell}}\n{code}\n```\n")

    def build(self) -> subprocess.CompletedProcess[str]:
        settings = "\n".join(f"{name} = {value!r}" for name, value in self.settings.items())
        self.write("conf.py", settings)
        names = sorted(page.stem for page in self.folder.glob("*.md") if page.stem != "index")
        listed = "\n".join(names)
        self.write("index.md", f"# Small book\n\n```{{toctree}}\n{listed}\n```\n")
        return subprocess.run(
            [sys.executable, "-m", "sphinx", "-W", "--keep-going", ".", "out"],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": f"{EXTENSIONS}{os.pathsep}{BOOK}"},
            capture_output=True,
            text=True,
        )

    def html(self, name: str) -> str:
        return (self.folder / "out" / f"{name}.html").read_text(encoding="utf-8")


@pytest.fixture
def small_book(tmp_path: Path) -> Callable[..., SmallBook]:
    """Give a new small book that uses the named extensions."""

    def make(*extensions: str, **settings: object) -> SmallBook:
        book = SmallBook(tmp_path)
        book.settings["extensions"] += extensions
        book.settings.update(settings)
        return book

    return make
