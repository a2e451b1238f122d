"""What a student's folder gives away: answers taken from it mechanically, on an unseen seed.

Three attacks on `exercises/`: paste the known mistake that earns most; let all definitions of a
name that are found there vote, and paste the one that occurs most; answer with the function of the
checks that earns most. Each is scored with the whole checks, beside what the blanks earn, and what
the last attack earns for somebody who unpacks `prepared.zip`. Run by `make bench`.
"""

import ast
import base64
import datetime
import functools
import json
import os
import shutil
import zipfile
import zlib
from collections import Counter
from pathlib import Path

import nbformat
import pytest

from classroom.author.notebooks import cell_of
from classroom.calls.local import LocalSubject
from classroom.calls.wire import unpack
from classroom.course import PREPARED, assignments
from classroom.exercise.answers import Answer, load_answers
from classroom.exercise.run import list_checks, run_checks

pytestmark = [pytest.mark.benchmark, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).parent / "records" / "giveaway.json"
HANDED_OUT = Path(os.environ.get("HANDED_OUT", ROOT / "exercises"))
"""What is attacked; another version's folder, to compare."""
SEED = "what no student has seen"
GIVEN_BY_LAWS = 0.02
"""The share of the points that the text of laws may give away."""


class Attack:
    """A chapter as a student gets it, and the whole checks, without mistakes, to score with."""

    def __init__(self, handout, scratch):
        self.folder, self.scoring = handout, scratch / handout.name
        self.scoring.mkdir()
        shutil.copy(ROOT / "solutions" / handout.name / "checks.py", self.scoring)
        self.notebook = nbformat.read(next(handout.glob("*.ipynb")), as_version=4)
        self.prelude = next(c.source for c in self.notebook.cells if "import check" in c.source)
        self.checks = (handout / "checks.py").read_text()
        self.mistakes = load_answers(handout / "mistakes.py")
        self.earned = functools.cache(self.earned)

    @property
    def unpacked(self):
        """The checks with the code that travels packed in its place."""
        if not (self.folder / PREPARED).exists():
            return self.checks
        with zipfile.ZipFile(self.folder / PREPARED) as file:
            pieces = unpack(file.read("packed.py"))
        text = self.checks
        for number, piece in enumerate(pieces):
            source = zlib.decompress(base64.b85decode(piece)).decode()
            text = text.replace(f"exec(packed(__file__, {number}), globals())", source)
        return text

    def earned(self, exercise, source, prelude=""):
        answer = Answer("Attack", exercise, "", source, prelude or self.prelude)
        try:
            subject = LocalSubject(answer.namespace, seconds=20.0, files={})
        except Exception:  # a text that is no program
            return 0
        return run_checks(self.scoring, exercise, subject, SEED).earned

    def blank(self, exercise):
        return cell_of(self.notebook, exercise).source

    def wanted(self, exercise):
        """What the cell of an exercise is to define, with the number of its arguments."""
        for node in ast.parse(self.blank(exercise)).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield node.name, len(node.args.args) if isinstance(node, ast.FunctionDef) else None

    def best_mistake(self, exercise):
        own = [m for m in self.mistakes if m.exercise == exercise]
        return max([self.earned(exercise, m.cell, m.prelude) for m in own], default=0)

    def majority(self, exercise):
        trees = [ast.parse(m.cell) for m in self.mistakes if m.exercise == exercise]
        source = self.blank(exercise)
        for name, _ in self.wanted(exercise):
            found = Counter(
                ast.unparse(node)
                for node in (*definitions(*trees), *definitions(ast.parse(self.checks)))
                if node.name == name
            )
            if found:
                source += f"\n\n{found.most_common(1)[0][0]}\n"
        prelude = self.mistakes[0].prelude if self.mistakes else ""
        return self.earned(exercise, source, prelude)

    def oracle(self, exercise, checks=None):
        """Let each function that is wanted be the one of the checks that earns most."""
        tree = ast.parse(checks or self.checks)
        tests = [n for n in tree.body if getattr(n, "name", "").startswith("Test")]
        own = next(n for n in tests if f"'{exercise}'" in ast.unparse(n.decorator_list[0]))
        inner = [n for n in ast.walk(own) if isinstance(n, ast.FunctionDef) and not is_method(n)]
        lambdas = [n for n in ast.walk(own) if isinstance(n, ast.Lambda)]
        there = {
            f"lambda_{i}": (n, f"lambda_{i} = {ast.unparse(n)}") for i, n in enumerate(lambdas)
        }
        there |= {n.name: (n, ast.unparse(n)) for n in inner}
        source = "\n".join(ast.unparse(n) for n in tree.body if n not in tests)
        source = "\n".join([self.blank(exercise), source, *(text for _, text in there.values())])
        asked = {n.id for n in ast.walk(own) if isinstance(n, ast.Name)}
        if checks:  # what was unpacked is tried for everything
            asked |= {n.name for n in definitions(tree) if n.name not in self.checks}
        there |= {n.name: (n, "") for n in definitions(tree) if n.name in asked}
        best = self.earned(exercise, source)
        for name, count in self.wanted(exercise):
            for candidate, (node, _) in there.items():
                if isinstance(node, ast.ClassDef) or not fits(node, count):
                    continue
                bound = f"{source}\n{name} = {candidate}\n"
                if (earned := self.earned(exercise, bound)) > best:
                    best, source = earned, bound
        return best


def is_method(node):
    return any(argument.arg == "self" for argument in node.args.args)


def fits(node, count):
    """Say whether a function can be called with as many arguments; a class takes any number."""
    return count is None or count <= len(node.args.args) or node.args.vararg is not None


def definitions(*trees):
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield node


def test_a_handout_gives_no_answers_away(tmp_path):
    rows = []
    for handout in assignments(HANDED_OUT):
        attack = Attack(handout, tmp_path)
        for exercise, checks in list_checks(attack.scoring).items():
            row = {
                "exercise": exercise,
                "points": sum(points for _, points in checks),
                "blank": attack.earned(exercise, attack.blank(exercise)),
                "best mistake": attack.best_mistake(exercise),
                "majority": attack.majority(exercise),
                "oracle": attack.oracle(exercise),
                "oracle, unpacked": attack.oracle(exercise, attack.unpacked),
            }
            row["best of three"] = max(row[a] for a in ("best mistake", "majority", "oracle"))
            rows.append(row)
    total = {name: sum(row[name] for row in rows) for name in rows[0] if name != "exercise"}
    before = json.loads(RECORD.read_text())["before"] if RECORD.exists() else total
    found = {
        "metric": "points earned by what is found in a handout, on an unseen seed",
        "before": before,
        "now": total,
        "given": {r["exercise"]: r["best of three"] for r in rows if r["best of three"]},
        "given to who unpacks": {
            r["exercise"]: r["oracle, unpacked"] for r in rows if r["oracle, unpacked"]
        },
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    RECORD.write_text(json.dumps(found, indent=2) + "\n")
    assert total["best of three"] <= total["blank"] + GIVEN_BY_LAWS * total["points"]
