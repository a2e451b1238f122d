"""The first cell of a notebook, where there is no course, and on a Colab that is not Google's."""

import io
import os
import sys
import tarfile
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from IPython.core.interactiveshell import InteractiveShell

from classroom.author.notebooks import build_notebook
from classroom.exercise.run import ChecksMissing, load_checks
from classroom.student import colab, mine

PYPROJECT = """
[project]
version = "3.1.4"
urls.Repository = "https://github.com/who/what"
"""
ADDRESS = "https://github.com/who/what/archive/refs/tags/v3.1.4.tar.gz"


@pytest.fixture
def first_cell(assignment):
    (assignment.parents[1] / "pyproject.toml").write_text(PYPROJECT)
    return next(cell for cell in build_notebook(assignment).cells if cell.cell_type == "code")


@pytest.fixture
def shell(monkeypatch):
    """A kernel's shell, in which cells run and which says what it showed."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    shell = InteractiveShell()
    shown: list[str] = []
    monkeypatch.setattr(shell, "_showtraceback", lambda kind, error, lines: shown.extend(lines))
    yield lambda source: (shell.run_cell(source), shown)[1]
    InteractiveShell.clear_instance()


@pytest.fixture
def on_colab(monkeypatch, tmp_path):
    """A module `google.colab` whose Drive is a folder here."""
    mounted: list[str] = []
    google, found = ModuleType("google"), ModuleType("google.colab")
    found.drive = SimpleNamespace(mount=mounted.append)
    monkeypatch.setitem(sys.modules, "google", google)
    monkeypatch.setitem(sys.modules, "google.colab", found)
    monkeypatch.setattr(colab, "DRIVE", tmp_path / "drive")
    monkeypatch.chdir(tmp_path)
    return mounted


@contextmanager
def served(folder):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def packed(path, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            about = tarfile.TarInfo(f"what-3.1.4/{name}")
            about.size, about.mtime = len(text), 1_000_000_000
            archive.addfile(about, io.BytesIO(text.encode()))


def test_without_the_course_a_kernel_says_one_sentence(first_cell, shell, monkeypatch):
    monkeypatch.setitem(sys.modules, "classroom", None)
    shown = shell(first_cell.source)
    assert len(shown) == 1
    assert shown[0].startswith("The course is not installed for this kernel. Choose the kernel")
    assert f'"{sys.executable}" -m pip install -e .' in shown[0]


def test_with_the_course_the_first_cell_is_silent_and_folded(first_cell, shell, capsys):
    assert shell(first_cell.source) == []
    assert capsys.readouterr() == ("", "")
    assert first_cell.metadata.jupyter.source_hidden
    assert first_cell.metadata.cellView == "form"


def test_on_colab_the_pinned_version_is_installed_and_begun(
    first_cell, shell, on_colab, monkeypatch
):
    ran: list[tuple[str, ...]] = []
    classroom = sys.modules["classroom"]
    monkeypatch.setattr(colab, "begin", lambda *given: ran.append(given))
    monkeypatch.setitem(sys.modules, "classroom", None)

    def install(shell, name, line):
        ran.append((name, line))
        sys.modules["classroom"] = classroom

    monkeypatch.setattr(InteractiveShell, "run_line_magic", install)
    assert shell(first_cell.source) == []
    assert ran == [("pip", f"install --quiet {ADDRESS}"), ("07_averages", ADDRESS)]


def test_on_colab_the_exercises_are_put_into_drive_and_nothing_written_is_lost(
    on_colab, tmp_path, capfd
):
    made = {
        "exercises/01_attention/attention.ipynb": "blank",
        "exercises/01_attention/checks.py": "new checks",
        "lib/classroom/course.py": "",
    }
    (tmp_path / "server").mkdir()
    packed(tmp_path / "server" / "v3.1.4.tar.gz", made)
    with served(tmp_path / "server") as address:
        colab.begin("01_attention", f"{address}/v3.1.4.tar.gz")
        course = tmp_path / "drive" / "MyDrive" / "attention-from-the-ground-up"
        folder = course / "work" / "01_attention"
        assert on_colab == [str(tmp_path / "drive")]
        assert Path.cwd() == folder
        assert f'classroom mine --root "{course}"' in capfd.readouterr().err
        assert sorted(path.name for path in folder.iterdir()) == ["attention.ipynb", "checks.py"]
        (folder / "attention.ipynb").write_text("written")
        (folder / "checks.py").write_text("old checks")
        colab.begin("01_attention", f"{address}/v3.1.4.tar.gz")
        assert (folder / "attention.ipynb").read_text() == "written"
        assert (folder / "checks.py").read_text() == "new checks"
        with pytest.raises(FileNotFoundError, match="has no exercises/02_masking"):
            colab.begin("02_masking", f"{address}/v3.1.4.tar.gz")


def test_a_newer_copy_that_colab_saved_is_the_students_notebook(tmp_path):
    folder = tmp_path / "course" / "exercises" / "01_attention"
    copies = tmp_path / mine.COLAB_COPIES
    folder.mkdir(parents=True)
    copies.mkdir()
    (folder / "attention.ipynb").touch()
    os.utime(folder / "attention.ipynb", (1_000_000_000,) * 2)
    assert mine.newest_notebook(folder) == folder / "attention.ipynb"
    (copies / "Copy of attention.ipynb").touch()
    assert mine.newest_notebook(folder) == copies / "Copy of attention.ipynb"


def test_a_notebook_in_another_folder_is_told_so_without_a_traceback(tmp_path):
    with pytest.raises(ChecksMissing) as raised:
        load_checks(tmp_path)
    assert raised.value._render_traceback_() == [str(raised.value)]
