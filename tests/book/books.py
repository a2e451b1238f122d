"""Where the book lies, which pages it has, and small books to try its extensions on."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "book"
EXTENSIONS = BOOK / "_ext"

DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
LOOKS = {
    "light": {"color_scheme": "light", "viewport": DESK},
    "dark": {"color_scheme": "dark", "viewport": DESK},
    "phone": {"color_scheme": "light", "viewport": PHONE},
}
AXE = {
    "resultTypes": ["violations"],
    "preload": False,  # or it fetches style sheets from addresses of its own making
    "rules": {"label-content-name-mismatch": {"enabled": True}},  # off unless asked for
}


def pages() -> list[str]:
    """Name every page of the table of contents, without its ending."""
    contents = yaml.safe_load((BOOK / "_toc.yml").read_text(encoding="utf-8"))
    return [contents["root"], *(page for pages in chapters().values() for page in pages)]


def chapters() -> dict[str, list[str]]:
    """Name the pages of each chapter, its core page first."""
    contents = yaml.safe_load((BOOK / "_toc.yml").read_text(encoding="utf-8"))
    return {
        chapter["file"]: [chapter["file"], *(page["file"] for page in chapter.get("sections", []))]
        for part in contents["parts"]
        for chapter in part["chapters"]
    }


def looks_at(page: str) -> list[str]:
    """Say in which looks a page is opened: all, but generated pages, which are alike, by turns."""
    generated = [each for each in pages() if each.startswith("reference/")]
    return [list(LOOKS)[generated.index(page) % len(LOOKS)]] if page in generated else list(LOOKS)


# Most of the two seconds of a small book are imports, which forks of one process need not repeat.
FORKS = multiprocessing.get_context("forkserver")
IMPORTED = ["sphinx.cmd.build", "sphinx.builders.html", "myst_nb.sphinx_ext"]


def sphinx(folder: Path, environment: Mapping[str, str]) -> None:
    """Build the pages in a folder in this process, whose output goes to files."""
    from sphinx.cmd.build import main

    os.environ.update(environment)
    sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
    os.chdir(folder)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(
            os.open(f"fd{stream.fileno()}", os.O_CREAT | os.O_RDWR | os.O_TRUNC), stream.fileno()
        )
    sys.exit(main(["-W", "--keep-going", "pages", "out"]))


class SmallBook:
    """A few pages built with our extensions by Sphinx alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "pages").mkdir()
        self.settings = {
            "extensions": ["myst_nb"],
            "nb_execution_mode": "cache",
            "nb_execution_show_tb": True,
            "myst_enable_extensions": ["dollarmath"],
        }

    def write(self, name: str, text: str) -> None:
        (self.folder / "pages" / name).write_text(text, encoding="utf-8")

    def write_page(self, name: str, code: str) -> None:
        header = "---\nfile_format: mystnb\nkernelspec: {name: python3}\n---\n"
        self.write(f"{name}.md", f"{header}# {name}\n\n```{{code-cell}}\n{code}\n```\n")

    def build(self) -> subprocess.CompletedProcess[str]:
        settings = "\n".join(f"{name} = {value!r}" for name, value in self.settings.items())
        self.write("conf.py", settings)
        names = {page.stem for page in (self.folder / "pages").glob("*.md")} - {"index"}
        listed = "\n".join(sorted(names))
        self.write("index.md", f"# Small book\n\n```{{toctree}}\n:numbered:\n{listed}\n```\n")
        environment = {
            **os.environ,
            "PYTHONPATH": f"{EXTENSIONS}{os.pathsep}{BOOK}",
            "WARM_KERNELS_IMPORT": "ipykernel.kernelapp ipykernel.ipkernel",
        }
        FORKS.set_forkserver_preload(IMPORTED)
        process = FORKS.Process(target=sphinx, args=(self.folder, environment))
        process.start()
        process.join()
        out, error = ((self.folder / name).read_text(encoding="utf-8") for name in ("fd1", "fd2"))
        return subprocess.CompletedProcess("sphinx", process.exitcode, out, error)

    def html(self, name: str) -> str:
        return (self.folder / "out" / f"{name}.html").read_text(encoding="utf-8")
