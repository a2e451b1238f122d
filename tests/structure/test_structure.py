import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import structure
from structure import ROOT, circles, code_lines, describe, graphs_of

WITHOUT_CIRCLES = ("groundup", "classroom")
ONE_SITTING = 900
"""Lines of code."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("x = 7\n\n\ny = 11", 2),
        ("# why\nx = 7  # what\n    # where", 1),
        ('"""What it is for.\n\nAnd more.\n"""\nx = 7', 1),
        ('def f():\n    """What it does.\n\n    Why."""\n    return 7\n', 2),
        ('class A:\n    """What it is."""\n\n    x: int\n    """What x is."""', 2),
        ('text = """one\n\ntwo\n"""', 3),
        ("x = f(\n    7,\n    # why\n    11,\n)", 4),
    ],
)
def test_a_line_of_code_is_neither_blank_nor_a_comment_nor_of_a_docstring(text, expected):
    assert code_lines(text) == expected


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project whose package has two rooms, one of them with a room inside, and two modules."""
    monkeypatch.setattr(structure, "PACKAGES", ("tiny_course",))
    monkeypatch.syspath_prepend(tmp_path / "lib")
    for name, text in {
        "lib/tiny_course/__init__.py": "",
        "lib/tiny_course/limits.py": "MOST = 7\n",
        "lib/tiny_course/commands.py": "from tiny_course import limits\nimport tiny_course.core\n",
        "lib/tiny_course/core/__init__.py": "",
        "lib/tiny_course/core/heads.py": "from tiny_course.core.scores import score\n",
        "lib/tiny_course/core/scores.py": "import json\n\n\ndef score(): ...\n",
        "lib/tiny_course/core/template/first.py": "x = 7\n",
        "lib/tiny_course/grader/__init__.py": "",
        "lib/tiny_course/grader/run.py": "def run():\n    from ..core import heads\n",
        "lib/tiny_course/grader/inside/__init__.py": "",
        "lib/tiny_course/grader/inside/shell.py": "from ...limits import MOST\n",
        "book/_ext/quiz.py": "x = 7\ny = 11\n",
        "book/_build/html/copied.py": "x = 7\n",
        "book/parts.py": "x = 7\n",
        "solutions/01_first/mistakes.py": "# a mistake\nx = 7\n",
        "exercises/01_first/checks.py": "x = 7\n",
        "tests/grader/deep/test_run.py": "x = 7\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def arrows(graph):
    """Name the ends of all arrows, without the package."""
    return {
        (importer.removeprefix("tiny_course."), imported.removeprefix("tiny_course."))
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
    }


@pytest.mark.usefixtures("project")
def test_arrows_lead_from_room_to_room_and_not_within_one():
    modules, rooms = graphs_of("tiny_course")
    assert ("core.heads", "core.scores") in arrows(modules)
    assert arrows(rooms) == {
        ("commands", "limits"),
        ("commands", "core"),
        ("grader", "core"),
        ("grader.inside", "limits"),
    }
    assert circles(rooms) == circles(modules) == []


def test_rooms_may_stand_in_a_circle_where_no_modules_do(project):
    (project / "lib/tiny_course/core/scores.py").write_text("import tiny_course.grader.inside\n")
    (project / "lib/tiny_course/grader/inside/shell.py").write_text("import tiny_course.commands\n")
    modules, rooms = graphs_of("tiny_course")
    circle = ["tiny_course.commands", "tiny_course.core", "tiny_course.grader.inside"]
    assert circles(rooms) == [circle]
    assert circles(modules) == []


def test_modules_of_one_room_may_stand_in_a_circle(project):
    (project / "lib/tiny_course/core/scores.py").write_text("import tiny_course.core.heads\n")
    modules, rooms = graphs_of("tiny_course")
    assert circles(modules) == [["tiny_course.core.heads", "tiny_course.core.scores"]]
    assert circles(rooms) == []


def test_folders_and_rooms_are_counted_in_tables(project):
    (project / "lib/tiny_course/limits.py").write_text("from tiny_course import commands\n")
    lines = describe(project).splitlines()
    for line in (
        "| lib/tiny_course | 11 | 10 | 12 |",
        "| book | 1 | 1 | 1 |",
        "| book/_ext | 1 | 2 | 2 |",
        "| **sum** | 2 | 3 | 3 |",
        "| solutions/01_first | 1 | 1 | 2 |",
        "| tests/grader | 1 | 1 | 1 |",
        "| rooms of tiny_course | files | code lines | all lines | imports |",
        "| tiny_course.commands | 1 | 2 | 2 | tiny_course.core, tiny_course.limits |",
        "| tiny_course.core | 4 | 4 | 6 |  |",
        "| tiny_course.grader.inside | 2 | 1 | 1 | tiny_course.limits |",
        "6 rooms, 5 arrows.",
        "Circles of rooms: 1.",
        "- tiny_course.commands, tiny_course.limits",
        "Circles of modules: 1.",
    ):
        assert line in lines
    assert not any("_build" in line for line in lines)


@pytest.mark.parametrize("package", WITHOUT_CIRCLES)
def test_nothing_in_the_library_imports_itself(package):
    modules, rooms = graphs_of(package)
    assert len(modules.modules) > 30
    assert circles(modules) == circles(rooms) == []


def test_the_core_can_be_read_in_one_sitting():
    files = (ROOT / "lib/groundup/core").glob("*.py")
    assert sum(code_lines(file.read_text(encoding="utf-8")) for file in files) <= ONE_SITTING
