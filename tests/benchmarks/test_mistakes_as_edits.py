"""Mistakes written as changes of a correct cell are what they were as whole cells.

Where the two cells are the same program, so is all that follows from it. The others are run in both
forms: each fails the same checks, earns the same points and is given the same name.

    MISTAKES_BEFORE=v0.1.0 pytest -o addopts=--import-mode=importlib -m benchmark \
        tests/benchmarks/test_mistakes_as_edits.py

compares with the mistakes of that commit.
"""

import ast
import os
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from classroom.author import kill_matrix
from classroom.course import assignments
from classroom.exercise.answers import load_answers

pytestmark = pytest.mark.benchmark

ROOT = Path(__file__).parents[2]
FILE = "mistakes_as_edits.json"


@pytest.fixture
def before(tmp_path):
    """The folders of all assignments, each with its checks and the mistakes of before."""
    commit = os.environ.get("MISTAKES_BEFORE")
    if not commit:
        pytest.skip("MISTAKES_BEFORE names the commit to compare with")
    for folder in assignments(ROOT / "solutions"):
        path = f"{commit}:solutions/{folder.name}/mistakes.py"
        text = subprocess.run(["git", "show", path], cwd=ROOT, capture_output=True, check=True)
        (tmp_path / folder.name).mkdir()
        (tmp_path / folder.name / "mistakes.py").write_bytes(text.stdout)
        shutil.copy(folder / "checks.py", tmp_path / folder.name)
    return tmp_path


def said_of(mistake):
    return mistake.exercise, mistake.name, mistake.explanation, mistake.change_files


def program(mistake):
    """Return the cell without what means nothing to Python, docstrings or annotations."""
    tree = ast.parse(mistake.cell)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            if ast.get_docstring(node) is not None:
                del node.body[0]
        elif isinstance(node, ast.arg):
            node.annotation = None
    return ast.dump(tree)


def outcome(folder, mistake, solutions):
    """Run a mistake on three seeds; return what each check gives and how the mistake is called."""
    reports = [
        kill_matrix.run_mistake(folder, mistake, seed, solutions) for seed in kill_matrix.SEEDS
    ]
    return [([result.earned for result in r.results], r.mistakes) for r in reports]


def lines(root):
    return sum(len(path.read_text().splitlines()) for path in root.glob("*/mistakes.py"))


def test_each_mistake_is_the_one_that_it_was(before, record):
    counts, different = defaultdict(lambda: {"mistakes": 0, "run": 0}), []
    for solutions in assignments(ROOT / "solutions"):
        old = load_answers(before / solutions.name / "mistakes.py")
        new = load_answers(solutions / "mistakes.py")
        assert [said_of(mistake) for mistake in new] == [said_of(mistake) for mistake in old]
        for was, now in zip(old, new, strict=True):
            count = counts[f"{solutions.name} {now.exercise}"]
            count["mistakes"] += 1
            if program(was) != program(now):
                count["run"] += 1
                then = outcome(before / solutions.name, was, solutions)
                if then != outcome(solutions, now, solutions):
                    different.append(f"{solutions.name} {now.exercise} {now.name}")
    mistakes = sum(count["mistakes"] for count in counts.values())
    assert record(
        FILE,
        "mistakes that fail other checks, earn other points or get another name",
        len(different),
        mistakes,
        "the same mistakes as whole cells",
        round(len(different) / mistakes, 5),
        "none",
        not different,
        seeds=list(kill_matrix.SEEDS),
        lines={"whole cells": lines(before), "changes": lines(ROOT / "solutions")},
        same_program=mistakes - sum(count["run"] for count in counts.values()),
        by_exercise=counts,
    ), different
