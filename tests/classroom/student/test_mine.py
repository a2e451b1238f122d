import json
import shutil
import sys
from multiprocessing.forkserver import _forkserver
from pathlib import Path

import nbformat
import pytest
import torch
from nbformat.v4 import new_code_cell, new_notebook

from classroom.__main__ import main
from classroom.author.notebooks import build_notebook, cell_of
from classroom.calls.local import LocalSubject
from classroom.exercise.answers import load_answers
from classroom.exercise.run import run_checks
from classroom.student import mine
from classroom.student.mine import PIECES, Piece, build
from groundup import pretrained
from groundup.generation.loop import generate
from groundup.generation.sampling import greedy
from groundup.looking.audit import causality_audit
from groundup.own_parts.assembled import load_library, rebuilt
from groundup.variants.functional import Parts

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module", autouse=True)
def forks_with_what_is_needed():
    """Have no server of forks that lacks torch, which others have started; leave them none."""
    _forkserver._stop()
    yield
    _forkserver._stop()


@pytest.fixture
def imported():
    """Import a package called `mine`, and forget it again."""
    paths = sys.path[:]

    def forget():
        sys.path[:] = paths
        for name in [name for name in sys.modules if name.split(".")[0] == mine.PACKAGE]:
            del sys.modules[name]

    def load(root):
        forget()
        return load_library(root / mine.PACKAGE)

    yield load
    forget()


def edit(notebook, **sources):
    """Give cells another source, by grade id; None takes a cell away."""
    nb = nbformat.read(notebook, as_version=4)
    for grade_id, source in sources.items():
        cell = cell_of(nb, grade_id)
        if source is None:
            nb.cells.remove(cell)
        else:
            cell.source = source
    nbformat.write(nb, notebook)


def answer(assignment, exercise, name):
    answers = load_answers(ROOT / "solutions" / assignment / "mistakes.py")
    return next(a.cell for a in answers if (a.exercise, a.name) == (exercise, name))


def computes_as_the_reference(library):
    model, tokenizer = pretrained.load("reader")
    prompt = torch.tensor([tokenizer.encode('def add(a, b):\n    """Return')])
    for dtype in (torch.float64, torch.float32):
        other = rebuilt(model.to(dtype), library)
        with torch.no_grad():
            torch.testing.assert_close(other(prompt), model(prompt), rtol=1e-5, atol=1e-5)
    assert generate(other, prompt, 7, greedy).equal(generate(model, prompt, 7, greedy))
    return causality_audit(other, prompt[:, :7], tokenizer.vocab_size).holds


@pytest.mark.slow
def test_a_course_from_blank_to_solved_to_mistaken_is_what_the_library_says(
    tmp_path, imported, capsys, monkeypatch
):
    # Blank: all is borrowed, and works.
    exercises = tmp_path / "exercises"
    shutil.copytree(ROOT / "exercises", exercises, ignore=shutil.ignore_patterns("__pycache__"))
    assert main(["mine", "--root", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"0 of {len(PIECES)} exercises are yours" in said
    assert said.endswith("next: solve an exercise of this list, then run `classroom mine` again\n")
    assert "04_blocks 4.1          borrowed  layer_norm\n" in said
    assert said.count("is not written yet") == len(PIECES)
    library = imported(tmp_path)
    assert library.DecoderOnly.parts == Parts()
    assert library.YOURS == []
    assert computes_as_the_reference(library)

    # Solved: all is the student's, down to every part of a model.
    notebooks = {}
    for folder in sorted((ROOT / "solutions").glob("[0-9]*_*")):
        solved = next(folder.glob("*.ipynb"))
        notebooks[folder.name] = shutil.copy(solved, exercises / folder.name)
    built = build(tmp_path)
    assert [o for o in built.outcomes if not o.is_yours or o.why] == []
    runs = {name: models for o in built.outcomes for name, models in o.runs.items()}
    asked = {name for piece in PIECES for name in piece.names}
    assert set(Parts.names()) <= asked
    assert asked - runs.keys() == {"softplus", "tanh_by_sigmoid"}, "in no model"
    assert runs["CrossAttention"] == ["dates"] and runs["cached_attention"] == ["text"]
    assert all("generates the same" in sentence for sentence in built.said.values())
    assert "\n`dates` with your functions:\n3. Mai 2031 → 2031-05-03\n" in built.to_table()
    assert built.to_table().endswith("\nnext: groundup train --library mine")
    library = imported(tmp_path)
    assert library.BORROWED == {}
    assert {f.__module__ for f in vars(library.DecoderOnly.parts).values()} == {
        f"mine.{topic}" for topic in "preliminaries attention masking multihead".split()
    } | {f"mine.{topic}" for topic in "blocks positions architectures generation".split()}
    assert library.adamw_step.__module__ == library.clip_gradients.__module__ == "mine.training"
    assert computes_as_the_reference(library)
    text = (tmp_path / "mine" / "blocks.py").read_text()
    assert text.startswith('"""Blocks, from exercises/04_blocks/blocks.ipynb, 20')
    assert "BEGIN SOLUTION" not in text

    # Mistaken, in one notebook of each kind; the others are not run again.
    def only_changed(folder, *about, check=mine._problem_of_code):
        assert folder.name in changed
        return check(folder, *about)

    changed = ("02_masking", "03_multihead", "04_blocks", "05_positions")
    monkeypatch.setattr(mine, "_problem_of_code", only_changed)
    mistake = answer("04_blocks", "layer_norm", "StatisticsOverTokens")
    loop = "def spin():\n    while True:\n        pass\n\n\nready = spin()\n\n\n"
    loop += "def causal_mask(q_len, k_len):\n    return ready"
    edit(notebooks["02_masking"], causal_mask=loop)
    edit(notebooks["03_multihead"], MultiHeadAttention="class MultiHeadAttention(nn.Module:")
    edit(notebooks["04_blocks"], layer_norm=mistake)
    edit(notebooks["05_positions"], apply_rotary=None)
    assert main(["mine", "status", "--root", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.count("has changed since: run `classroom mine`") == len(changed)
    assert all(f"{name} has changed since" in said for name in changed)
    built = build(tmp_path, seconds_per_exercise=10)
    borrowed = {o.exercise: o.why for o in built.outcomes if not o.is_yours}
    assert borrowed.keys() == {"causal_mask", "MultiHeadAttention", "layer_norm", "apply_rotary"}
    assert borrowed["causal_mask"] == "its code or its checks did not end within 10 s"
    assert (
        borrowed["MultiHeadAttention"] == "its cell is not valid Python in line 1: invalid syntax"
    )
    assert " points: " in borrowed["layer_norm"]
    assert borrowed["apply_rotary"] == (
        "positions.ipynb has no cell `apply_rotary`: it may come from another release"
    )
    library = imported(tmp_path)
    assert library.BORROWED == {
        name: borrowed[piece.exercise]
        for piece in PIECES
        if piece.exercise in borrowed
        for name in piece.names
    }
    assert "MultiHeadAttention" not in library.YOURS
    assert library.DecoderOnly.parts.MultiHeadAttention is None
    assert library.MultiHeadAttention.__module__ == "groundup.own_parts.parts"
    assert computes_as_the_reference(library)
    assert main(["mine", "status", "--json", "--root", str(tmp_path)]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["changed"] == []
    assert sum(outcome["is_yours"] for outcome in record["outcomes"]) == len(PIECES) - 4


@pytest.mark.slow
@pytest.mark.parametrize("assignment", sorted({piece.assignment for piece in PIECES}))
def test_what_is_borrowed_passes_the_checks_of_its_exercise(assignment):
    notebook = next((ROOT / "solutions" / assignment).glob("*.ipynb"))
    cells = nbformat.read(notebook, as_version=4).cells
    for piece in PIECES:
        if piece.assignment != assignment:
            continue
        namespace = {}
        for cell in cells:
            about = cell.metadata.get("nbgrader", {})
            # The setup, and what else its own cell defines, which is not borrowed.
            if (
                "from classroom import check" in cell.source
                or about.get("grade_id") == piece.exercise
            ):
                exec(cell.source, namespace)
        for name, place in piece.names.items():
            exec(mine._import(name, place), namespace)
        folder = ROOT / "exercises" / assignment
        report = run_checks(folder, piece.exercise, LocalSubject(namespace))
        assert report.earned == report.points, report.to_text()


# A course of many exercises that ask for the same: return the number, doubled.

SETUP = """
%matplotlib inline
from math import *
import math as m, operator

# A constant,
# and why it is what it is.
TWO = 1
TWO += 1; THREE = 3
scale = {"by": TWO}
for late in (2,):
    pass
"""
CELLS = {
    "plain": "def plain(n): return n + n",
    "helped": "def helper(n):\n    # A reason.\n    return times(n)\n\n\n"
    "def helped(n):\n    # YOUR CODE HERE\n    return helper(n)",
    "times": "@m.lru_cache if hasattr(m, 'lru_cache') else (lambda f: f)\n"
    "def times(n):\n    return operator.mul(n, scale['by'])",
    "from_star": "def from_star(n):\n    return n * int(sqrt(4))",
    "from_loop": "def from_loop(n):\n    return n * late",
    "from_nowhere": "def from_nowhere(n):\n    return n * nowhere",
    "forgotten": "def forgoten(n):\n    return n * 2",
    "on_wrong": "def on_wrong(n):\n    return wrong(n)",
    "wrong": "def wrong(n):\n    return n + 1",
    "at_once": "raise_at_once = 1 / 0\ndef at_once(n):\n    return raise_at_once",
    "ending": "import os\ndef ending(n):\n    os._exit(3)",
    "endless": "def spin():\n    while True:\n        pass\nready = spin()\n"
    "def endless(n):\n    return ready",
    "printing": "def printing(n):\n    print('{}' * 1000)\n    return 2 * n",
}
LATER = {"later": "from mine import plain\ndef later(n):\n    return plain(n)"}
CHECKS = "from classroom.exercise.expect import exercise, expect_agrees, points\n"
EXERCISE = """

@exercise(
    "NAME", number="3.1", title="T", asks="Double it.", difficulty=1, importance=1, minutes=1
)
class TestNAME:
    @points(2)
    def test_the_number_is_doubled(self, subject, case):
        inputs = lambda case: (case.integer(5, 1000),)
        expect_agrees(subject, case, "NAME", inputs, lambda n: n + n, {"double": ""})
"""


@pytest.fixture
def twice(tmp_path):
    """A course whose exercises are the cells above; and its pieces, which borrow what negates."""
    pieces = []
    for folder, setup, own in (("03_twice", SETUP, CELLS), ("04_again", "", LATER)):
        cells = [new_code_cell(setup)]
        for name, source in own.items():
            about = {"grade_id": name, "grade": False, "solution": True, "locked": False}
            cells.append(new_code_cell(source, metadata={"nbgrader": about}))
            pieces.append(Piece(folder, name, {name: "operator.neg"}))
        path = tmp_path / "exercises" / folder / f"{folder[3:]}.ipynb"
        path.parent.mkdir(parents=True)
        nbformat.write(new_notebook(cells=cells), path)
        checks = CHECKS + "".join(EXERCISE.replace("NAME", name) for name in own)
        path.with_name("checks.py").write_text(checks)
        path.with_name("mistakes.py").write_text("")
    return tmp_path, pieces


@pytest.mark.slow
def test_what_a_piece_depends_on_comes_along_or_is_named(twice, imported, capsys):
    root, pieces = twice
    seen = []
    built = build(root, lambda *done: seen.append(done), 5, pieces)
    assert seen == [(1, 2), (2, 2)]
    yours = {o.exercise for o in built.outcomes if o.is_yours}
    assert yours == {"plain", "helped", "times", "from_star", "printing", "later"}
    why = {o.exercise: o.why for o in built.outcomes if not o.is_yours}
    assert why["from_loop"] == (
        "it uses `late`, which the notebook sets in a loop, a call or the like: "
        "write it as a function, or pass it in"
    )
    assert "NameError: name 'nowhere' is not defined" in why["from_nowhere"]
    assert "there is a `forgoten`: is that its name?" in why["forgotten"]
    assert why["wrong"].startswith("0 of 2 points: ")
    # Checked with what is borrowed in the place of `wrong`, which gives something else.
    assert why["on_wrong"].startswith("0 of 2 points: ")
    assert why["at_once"] == "it raised ZeroDivisionError: division by zero"
    assert why["ending"] == "it ended the process that checked it"
    assert why["endless"] == "its code or its checks did not end within 5 s"
    text = (root / "mine" / "twice.py").read_text()
    assert "# A constant,\n# and why it is what it is.\nTWO = 1\n" in text
    assert "    # A reason.\n" in text
    assert "# Borrowed, exercise 3.1: it raised ZeroDivisionError: division by zero\n" in text
    for left_out in ("matplotlib", "YOUR CODE HERE", "THREE", "1 / 0", "_exit", "late in"):
        assert left_out not in text
    library = imported(root)
    assert [library.helped(7), library.from_star(7), library.wrong(7)] == [14, 14, -7]
    assert library.YOURS == [name for name in (*CELLS, *LATER) if name in yours]
    assert library.later.__globals__["plain"] is library.plain
    # Nothing has changed: nothing is run, and the same comes out.
    again = build(root, seconds_per_exercise=0.001, pieces=pieces)
    assert again.outcomes == built.outcomes
    assert mine.status(root)[0].outcomes == built.outcomes


def test_a_name_that_is_defined_nowhere_is_told_where_no_import_hides_it(twice):
    path = twice[0] / "exercises" / "03_twice" / "twice.ipynb"
    source = mine._read(path)
    source.units = [unit for unit in source.units if "*" not in unit.binds]
    with pytest.raises(mine._NotFound, match="uses `nowhere`, which the notebook does not define"):
        source.needed(["from_nowhere"], [])


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("pasted", ["\u2028", "\x85", "\x0c"])
def test_what_ends_a_line_in_other_programs_does_not_cut_a_statement(end, pasted):
    cell = f"# see{pasted}note\nTWO = 2\n\ndef twice(x):\n    # a{pasted}b\n    return TWO * x"
    texts = [unit.text for unit in mine._units(cell.replace("\n", end), 0)]
    assert texts == cell.split("\n\n")


def test_a_notebook_that_cannot_be_read_is_told_in_a_sentence(twice):
    root, pieces = twice
    path = root / "exercises" / "03_twice" / "twice.ipynb"
    path.write_text("{")
    assert mine._read(path).problem.startswith("twice.ipynb cannot be read: ")
    path.unlink()
    assert mine._read(path).problem == "there is no notebook twice.ipynb"


def test_what_was_made_otherwise_is_not_written_over(tmp_path, capsys):
    assert main(["mine", "--root", str(tmp_path)]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main(["mine", "status", "--root", str(tmp_path)]) == 2
    assert "run `classroom mine`" in capsys.readouterr().err
    (tmp_path / "exercises").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.py").write_text("")
    assert main(["mine", "--root", str(tmp_path)]) == 2
    assert "was not made by `classroom mine`" in capsys.readouterr().err


@pytest.mark.slow
def test_grading_neither_sees_nor_takes_the_package(sealed, course, capsys):
    right = "def centre(x):\n    return x - x.mean(dim=0)"
    looks = f"""
import os, sys
for place in (".", "..", "../..", {str(course)!r}):
    sys.path.insert(0, place)
try:
    from mine import centre
except ImportError as error:
    assert error.name == "mine"
    def centre(x):
        return 0 * x
"""
    solutions, exercises = (course / name / "07_averages" for name in ("solutions", "exercises"))
    exercises.mkdir(parents=True)
    notebook = build_notebook(solutions)
    cell_of(notebook, "centre").source = looks
    nbformat.write(notebook, exercises / "averages.ipynb")
    for name in ("checks.py", "mistakes.py"):
        shutil.copy(solutions / name, exercises)
    handed_in = course / "submitted" / "ada" / "07_averages"
    handed_in.mkdir(parents=True)
    shutil.copy(exercises / "averages.ipynb", handed_in)
    for place in (course, handed_in, exercises):
        (place / "mine").mkdir()
        (place / "mine" / "__init__.py").write_text(right)
    status = main(["grade", "07_averages", "--root", str(course), "--no-gradebook", "--json"])
    assert status == 0
    verdict = json.loads(capsys.readouterr().out.splitlines()[0])
    earned = {
        report["exercise"]: sum(result["earned"] for result in report["results"])
        for report in verdict["reports"]
    }
    assert earned == {"centre": 2, "twice": 2}  # the mean of zeros is zero, they are not moved
