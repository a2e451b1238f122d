"""An exam of three exercises: small, and with checks that draw every size from the seed.

Beside it stand what a class can learn of it: the published inputs and their shapes.
"""

from collections.abc import Sequence
from pathlib import Path

import nbformat
import torch

from classroom.author.notebooks import build_notebook
from classroom.calls.local import LocalSubject
from classroom.course import PUBLISHED_SEED
from classroom.exercise.run import run_checks
from classroom.limits import Limits

LIMITS = Limits(
    seconds_per_cell=2.0,
    seconds_per_exercise=1.0,
    seconds_per_submission=20.0,
    memory_bytes=2**29,
    processes=24,
    file_bytes=2**23,
    output_bytes=2**18,
)
"""Enough for every honest answer, and soon used up by the others."""


_EXERCISE = """
# %% [markdown]
# {{{{exercise {name}}}}}

# %% exercise="{name}"
def {name}(x):
    raise NotImplementedError
"""

_CHECKS = '''\
"""What is graded."""

import torch

from classroom.exercise.expect import exercise, expect_agrees, expect_inputs_unchanged, points


def rows(case):
    num_rows, width = case.integer(4, 12), case.integer(2, 24)
    num_rows, width = case.size("rows", num_rows), case.size("width", width)
    return (case.normal(num_rows, width),)


def oracle(x):
    return x - x.mean(dim=0)


def number(case):
    return (case.integer(2, 1000),)


def about(name, number):
    return exercise(
        name, number=number, title=name, asks="Write it.", difficulty=1, importance=1, minutes=1,
        may_cut=("attacked",),
    )


@about("first", "9.1")
class TestFirst:
    @points(2)
    def test_rows_are_moved_by_their_mean(self, subject, case):
        expect_agrees(subject, case, "first", rows, oracle, {"centred": "rows width"})


@about("attacked", "9.2")
class TestAttacked:
    @points(3)
    def test_rows_are_moved_by_their_mean(self, subject, case):
        expect_agrees(subject, case, "attacked", rows, oracle, {"centred": "rows width"})
        expect_inputs_unchanged(subject, case, "attacked", rows)

    @points(4)
    def test_nothing_is_added_to_more_rows(self, subject, case):
        def more(case):
            (x,) = rows(case)
            return (torch.cat([x, case.normal(*x.shape)]),)

        expect_agrees(subject, case, "attacked", more, oracle, {"centred": "many width"})


@about("last", "9.3")
class TestLast:
    @points(2)
    def test_two_is_four(self, subject, case):
        expect_agrees(subject, case, "last", number, lambda n: n + n, {"double": ""})
'''


def write_exam(
    folder: Path, exercises: Sequence[str] = ("first", "attacked", "last"), checks: str = _CHECKS
) -> None:
    """Write what is handed out; by default first for 2 points, attacked for 7, last for 2."""
    name = folder.name.partition("_")[2]
    text = [f"# %% [markdown]\n# # {name.title()}\n", "# %%\nfrom classroom import check\n"]
    text += [_EXERCISE.format(name=exercise) for exercise in exercises]
    (folder / f"{name}.py").write_text("\n".join(text))
    (folder / "checks.py").write_text(checks)
    (folder / "mistakes.py").write_text("")
    nbformat.write(build_notebook(folder), folder / f"{name}.ipynb")


def known(folder: Path) -> dict[str, str]:
    """Return what a class can learn by heart, for `Case.aimed`: inputs with results, and shapes."""
    answers = {}

    def attacked(x: torch.Tensor) -> torch.Tensor:
        answers[str(x.tolist())] = (x - x.mean(dim=0)).tolist()
        return x - x.mean(dim=0)

    report = run_checks(folder, "attacked", LocalSubject({"attacked": attacked}), PUBLISHED_SEED)
    assert report.earned == report.points, report.to_text()
    shapes = [[len(rows), len(rows[0])] for rows in answers.values()]
    return {"INPUTS_KNOWN": repr(answers), "SHAPES_KNOWN": repr(shapes)}
