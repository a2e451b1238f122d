"""A course of one small assignment, as its author would write it."""

import contextlib
import copy
import functools
import re
import shutil
import textwrap
from contextlib import nullcontext
from pathlib import Path

import nbformat
import nbgrader.api
import pytest
from nbformat.v4 import new_code_cell

from classroom.author.notebooks import build_notebook, cell_of
from classroom.calls.local import LocalSubject
from classroom.grader import processes, run
from classroom.grader.run import Assignment, grade

# A new gradebook asks a program of a second's start which form of database this version has.
nbgrader.api.get_alembic_version = functools.cache(nbgrader.api.get_alembic_version)

TEXT = '''\
# %% [markdown]
# # Averages
#
# Two exercises.

# %%
import torch

from classroom import check

# %% [markdown]
# {{exercise centre}}
#
# Move the rows of x, (rows, width), so that their mean is zero.


# %% exercise="centre"
def centre(x: torch.Tensor) -> torch.Tensor:
    """Subtract the mean of the rows."""
    ### BEGIN SOLUTION
    middle = x.mean(dim=0)
    return x - middle
    ### END SOLUTION


# %%
print("one is done")

# %% [markdown]
# {{deeper}}

# %% [markdown]
# {{exercise twice}}


# %% exercise="twice"
def twice(number: float) -> float:
    """Return the number, doubled."""
    ### BEGIN SOLUTION
    return number + number
    ### END SOLUTION
'''

CHECKS = '''\
"""What is graded."""

import torch

from classroom.exercise.expect import exercise, expect_agrees, expect_law, points
from classroom.exercise.prepared import oracle


def rows(case):
    num_rows, width = case.size("rows", 5), case.size("width", 3)
    return (case.normal(num_rows, width),)


@exercise(
    "centre",
    number="7.1",
    title="Centre the rows",
    asks="Return the rows minus their mean.",
    difficulty=2,
    importance=3,
    minutes=10,
)
class TestCentre:
    @points(1)
    def test_rows_are_moved_by_their_mean(self, subject, case):
        @oracle
        def right(x):
            return x - x.mean(dim=0)

        expect_agrees(subject, case, "centre", rows, right, {"centred": "rows width"})

    @points(2)
    def test_the_mean_is_zero(self, subject, case):
        def law(seen, x):
            return None if seen.mean(dim=0).abs().max() < 1e-9 else "the mean is not zero"

        expect_law(subject, case, "centre", rows, law)


@oracle
def doubled(n):
    return n + n


@exercise(
    "twice",
    number="7.2",
    title="Twice",
    asks="Return the number plus itself.",
    difficulty=1,
    importance=1,
    minutes=5,
    deeper=True,
)
class TestTwice:
    @points(2)
    def test_two_is_four(self, subject, case):
        inputs = lambda case: (case.integer(1, 1000),)
        expect_agrees(subject, case, "twice", inputs, doubled, {"double": ""})
'''

MISTAKES = '''\
"""What goes wrong."""

import torch

from classroom.exercise.answers import Mistake


class NotMoved(Mistake, exercise="centre"):
    """The rows are returned as they came."""

    def centre(x):
        return x


class MeanOfEachRow(Mistake, exercise="centre"):
    """The mean is taken over each row; it belongs
    over the rows (dim=0)."""

    def centre(x):
        return x - x.mean(dim=1, keepdim=True)


class Squared(Mistake, exercise="twice"):
    """The number is squared."""

    def twice(number):
        return number * number


class SumOfTheRows(Mistake, exercise="centre"):
    """The sum is subtracted; divide it by the number of rows."""

    def centre(x):
        return x - x.sum(dim=0)


class NotDoubled(Mistake, exercise="twice"):
    """The number is returned as it came."""

    def twice(number):
        return number


class Thrice(Mistake, exercise="twice"):
    """The number is added once too often."""

    def twice(number):
        return number + number + number
'''

VARIANTS = '''\
"""Other right answers."""

import torch

from classroom.exercise.answers import Variant


class Loop(Variant, exercise="centre"):
    """A loop over the columns."""

    def centre(x):
        return torch.stack([column - column.mean() for column in x.T], dim=1)


class Divided(Variant, exercise="centre"):
    """The sum, divided."""

    def centre(x):
        return x - x.sum(dim=0) / len(x)


class AsMatrix(Variant, exercise="centre"):
    """A matrix that subtracts the mean."""

    def centre(x):
        return (torch.eye(len(x), dtype=x.dtype) - 1 / len(x)) @ x


class TimesTwo(Variant, exercise="twice"):
    """A product."""

    def twice(number):
        return 2 * number


class Summed(Variant, exercise="twice"):
    """The sum of a list."""

    def twice(number):
        return sum([number] * 2)


class Quartered(Variant, exercise="twice"):
    """A half of four times the number."""

    def twice(number):
        return number * 4 / 2
'''

CONFIG = Path(__file__).parents[2] / "nbgrader_config.py"


@pytest.fixture(scope="session")
def make_course():
    """Give a function that makes a course: solutions/07_averages and nbgrader's configuration."""

    def make(root):
        folder = root / "solutions" / "07_averages"
        folder.mkdir(parents=True)
        (folder / "averages.py").write_text(TEXT)
        (folder / "checks.py").write_text(CHECKS)
        (folder / "mistakes.py").write_text(MISTAKES)
        (folder / "variants.py").write_text(VARIANTS)
        shutil.copy(CONFIG, root)
        return root

    return make


@pytest.fixture
def course(tmp_path, make_course):
    """Such a course's folder."""
    return make_course(tmp_path / "course")


@pytest.fixture
def assignment(course):
    """The folder solutions/07_averages of that course."""
    return course / "solutions" / "07_averages"


@pytest.fixture
def write_checks(tmp_path):
    """Write the checks of an exercise called `f` from the body of its test class."""

    def write(body, folder=tmp_path, before="", mistakes=""):
        folder.mkdir(exist_ok=True)
        checks = (
            "from classroom.exercise.expect import *\n"
            "from classroom.exercise.expect import points, exercise\n"
            f"{textwrap.dedent(before)}\n"
            "@exercise('f', number='1.1', title='Title', asks='Write it.', difficulty=1, "
            "importance=1, minutes=1)\n"
            "class TestF:\n"
        )
        (folder / "checks.py").write_text(checks + textwrap.indent(textwrap.dedent(body), "    "))
        if mistakes:
            imports = "import torch\nfrom classroom.exercise.answers import Mistake\n"
            (folder / "mistakes.py").write_text(imports + textwrap.dedent(mistakes))
        return folder

    return write


class Forked(LocalSubject):
    """Calls a function as if each call came first, or each block of calls."""

    _is_together = False

    def _find(self, name):
        found = super()._find(name)
        return found if self._is_together else copy.deepcopy(found)

    @contextlib.contextmanager
    def together(self, one_module=False, explains=False):
        kept, self._namespace = self._namespace, copy.deepcopy(self._namespace)
        self._is_together = True
        try:
            yield
        finally:
            self._namespace, self._is_together = kept, False


@pytest.fixture
def forked():
    """Return a function `f` as code under test of which each call runs in a fork."""
    return lambda function: Forked({"f": function})


@pytest.fixture
def student():
    """Run the source of a cell and return it as code under test."""

    def define(source, **options):
        namespace = {}
        exec(textwrap.dedent(source), namespace)
        return LocalSubject(namespace, **options)

    return define


# What is handed in to it, and graded


CENTRE = "def centre(x):\n    return x - x.mean(dim=0)"
TWICE = "def twice(number):\n    return number + number"
SOLUTION = re.compile(r"### BEGIN SOLUTION.*### END SOLUTION", re.DOTALL)


@pytest.fixture
def handout(course):
    """The assignment as students get it: centre for 3 points, twice for 2."""
    folder = course / "exercises" / "07_averages"
    folder.mkdir(parents=True)
    notebook = build_notebook(course / "solutions" / "07_averages")
    for cell in notebook.cells:
        cell.source = SOLUTION.sub("raise NotImplementedError", cell.source)
    nbformat.write(notebook, folder / "averages.ipynb")
    for name in ("checks.py", "mistakes.py"):
        shutil.copy(course / "solutions" / "07_averages" / name, folder)
    return Assignment(folder)


@pytest.fixture
def submitted(course):
    return course / "submitted"


@pytest.fixture
def kept(tmp_path):
    return tmp_path / "graded"


@pytest.fixture
def hand_in(handout, submitted):
    """Hand in the notebook with these answers, and cells of the student's own in places."""

    def write(student="ada", centre=CENTRE, twice=TWICE, own=()):
        notebook = nbformat.read(handout.folder / "averages.ipynb", as_version=4)
        for name, source in (("centre", centre), ("twice", twice)):
            if source is not None:
                cell_of(notebook, name).source = source
        for place, source in sorted(dict(own).items()):
            notebook.cells.insert(place, new_code_cell(source))
        folder = submitted / student / "07_averages"
        folder.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, folder / "averages.ipynb")
        return folder

    return write


@pytest.fixture
def here(launcher, monkeypatch):
    """Grade in this process, which spares the tests the start of others and their torch."""
    graded = []
    for start in ("start_early", "with_forks"):
        monkeypatch.setattr(processes, start, lambda *for_whom: nullcontext(processes.Started()))

    def side_by_side(grader, submissions, workers, started):
        for submission in submissions:
            graded.append(submission.student)
            yield submission, grade(launcher, grader.settings, submission)

    monkeypatch.setattr(run, "side_by_side", side_by_side)
    return graded
