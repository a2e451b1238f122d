"""What hostile, broken and honest submissions have in common: what is handed in, and what is due.

Nothing here is run against anything. The tests give every case to the sealed grader; the benchmark
`test_hostile_stock.py` gives them to stock nbgrader as well.
"""

import copy
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

SECRET = "canary-b3a17c55"
NAME = "exam.ipynb"
RIGHT = {
    "first": "import torch\n\ndef first(x):\n    return x - x.mean(dim=0)",
    "attacked": "def attacked(x):\n    return x - x.mean(dim=0)",
    "last": "def last(number):\n    return number + number",
}
WRONG = "def attacked(x):\n    return x"
POINTS = (2, 7, 2)
ALL, REST, NOTHING = POINTS, (2, 0, 2), (0, 0, 0)
MAX_SENTENCE = 1000


@dataclass(frozen=True)
class Case:
    """A way to hand in the exam, and what should come of it.

    Attributes:
        name: Says what is wrong, or odd.
        deserved: Points that its honest parts are worth, by exercise.
        why: Pattern of the words in which its author is told.
        cells: What is written for the second exercise, the last one in the place of the answer.
            Words in capitals such as FOLDER stand for what is outside, see `aimed`.
        prepare: Does something to a folder in which everything is answered rightly.
        student: Name of the folder that is handed in, if it matters.
        not_for_stock: Why a grader without limits is spared it; empty if it is not.
        is_alone: Whether it reaches for what all the submissions beside it share.

    """

    name: str
    deserved: tuple[int, int, int]
    why: str = ""
    cells: tuple[str, ...] = ()
    prepare: Callable[["Work"], None] | None = None
    student: str = ""
    not_for_stock: str = ""
    is_alone: bool = False

    def aimed(self, outside: Mapping[str, str]) -> list[str]:
        """Return the cells with what is outside in the place of the words that stand for it."""
        cells = list(self.cells)
        for word, thing in outside.items():
            cells = [cell.replace(word, thing) for cell in cells]
        return cells

    def hand_in(self, folder: Path, handout: dict, outside: Mapping[str, str]) -> None:
        """Write what is handed in into an empty folder, or into its place."""
        work = Work(folder, handout, outside)
        if self.cells:
            *before, answer = self.aimed(outside)
            work.answer(answer)
            place = work.place(work.cell("attacked"))
            for number, source in enumerate(before):
                work.insert(place + number, source)
        if self.prepare:
            self.prepare(work)
        is_there = folder.is_symlink() or not folder.is_dir() or any(folder.glob("*.ipynb"))
        if not is_there and not work.has_no_notebook:
            work.write()


class Work:
    """A student's folder, and a notebook in which everything is answered rightly."""

    def __init__(self, folder: Path, handout: dict, outside: Mapping[str, str]):
        self.folder = folder
        self.outside = outside
        self.blank = handout
        self.notebook = copy.deepcopy(handout)
        self.has_no_notebook = False
        for name, source in RIGHT.items():
            self.cell(name)["source"] = source

    def cell(self, grade_id):
        (found,) = (c for c in self.notebook["cells"] if self.grade_id(c) == grade_id)
        return found

    def about(self, grade_id):
        return self.cell(grade_id)["metadata"]["nbgrader"]

    def check(self):
        return self.cell("attacked-check")

    @staticmethod
    def grade_id(cell):
        return cell["metadata"].get("nbgrader", {}).get("grade_id")

    def place(self, cell):
        return self.notebook["cells"].index(cell)

    def insert(self, place, source, kind="code", **about):
        cell = {"cell_type": kind, "source": source, "metadata": {}, **about}
        if kind == "code":
            cell = {"execution_count": None, "outputs": [], **cell}
        self.notebook["cells"].insert(place, cell)
        return cell

    def answer(self, source):
        self.cell("attacked")["source"] = source

    def write(self, name=NAME, notebook=None):
        self.data(json.dumps(notebook or self.notebook).encode(), name)

    def text(self, words, name=NAME):
        self.data(words.encode(), name)

    def data(self, data, name=NAME):
        (self.folder / name).write_bytes(data)

    def link(self, target):
        (self.folder / NAME).symlink_to(target)


@dataclass(frozen=True)
class Came:
    """What came of a case.

    Attributes:
        earned: Points, by exercise; None if the exercise was not graded.
        reasons: What its author is told on what was not right, sentence by sentence.
        kept: All that was kept of it, with what its cells showed.
        seconds: It took, of the grader's own clock.
        is_neighbour_whole: Whether honest work beside it was graded, and got all of its points.

    """

    earned: tuple[int | None, ...]
    reasons: tuple[str, ...]
    kept: str
    seconds: float
    is_neighbour_whole: bool


def require_promises(case: Case, came: Came, budget: float) -> None:
    """Hold what came of a case to what is promised for every submission, of whatever kind.

    That nothing outside was changed, reached or left running is for the caller to look at, who
    knows what is outside.

    Args:
        case: What was handed in.
        came: What came of it.
        budget: Seconds that it may take.

    """
    said = "\n".join(came.reasons)
    assert came.earned == case.deserved, said
    assert came.is_neighbour_whole, "a neighbour lost points"
    assert came.seconds <= budget + 1
    assert re.search(case.why, said), said
    if case.deserved != ALL:
        assert came.reasons, "its author is not told why"
    for sentence in came.reasons:
        assert all(len(line) < MAX_SENTENCE for line in sentence.split("\n"))
    assert SECRET not in came.kept, "something was read that should be out of sight"


def lay_out(folder: Path, handout: dict) -> None:
    """Make what looks like a course to whoever breaks out: all of it can be read and written."""
    answered = copy.deepcopy(handout)
    for cell in answered["cells"]:
        name = Work.grade_id(cell)
        cell["source"] = RIGHT.get(name, cell["source"])
    text = {"cell_type": "markdown", "id": "secret", "metadata": {}, "source": SECRET}
    answered["cells"].append(text)
    files = {
        "gradebook.db": f"{SECRET} gradebook",
        "seed": f"{SECRET} seed",
        f"solutions/09_exam/{NAME}": json.dumps(answered),
        f"submitted/zoe/09_exam/{NAME}": json.dumps(answered),
    }
    folder.chmod(0o777)
    for name, words in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(words)
        path.chmod(0o666)
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o777)


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder."""
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
