"""What an honest notebook earns in a Jupyter kernel, as its author sees it, and in a sandbox.

Both start from the released notebook, cut down to the exercises that a style is about.
"""

import copy
import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import nbformat
from honest_notebooks import CELLS, EDITS, LOSSES, Notebook

from classroom.author.notebooks import cell_of
from classroom.grader.run import Assignment, execute
from classroom.grader.submission import Master, Submission
from classroom.limits import Limits
from classroom.student.terminal import check_notebook

ROOT = Path(__file__).parents[2]
SEED = "honest"


@dataclass(frozen=True)
class Earned:
    """What came of a style: points in the kernel and in the sandbox, and what was said there."""

    points: int
    in_kernel: int
    in_sandbox: int
    said: str


@functools.cache
def _solutions(chapter):
    path = next((ROOT / "solutions" / chapter).glob("*.ipynb"))
    return nbformat.read(path, as_version=4)


def _right(chapter, name):
    source = cell_of(_solutions(chapter), name).source
    return "\n".join(line for line in source.split("\n") if "### " not in line)


def _master(chapter, exercises):
    """Return the released notebook, or of it only the first cells and some exercises."""
    master = Assignment(ROOT / "exercises" / chapter).master
    if not exercises:
        return master
    notebook, kept = copy.deepcopy(master.notebook), []
    first = master.roles.index(next(role for role in master.roles if role.kind == "answer"))
    for index, (cell, role) in enumerate(zip(notebook.cells, master.roles, strict=True)):
        if index < first - 1:
            kept.append(cell)
        elif role.exercise in exercises:
            text = [notebook.cells[index - 1]] if role.kind == "answer" else []
            kept += [*(cell for cell in text if cell.cell_type == "markdown"), cell]
    notebook.cells = kept
    return Master(master.name, notebook, master.wanted)


def _written(master, chapter, edit):
    """Return the notebook with right answers, as somebody has edited it."""
    data = copy.deepcopy(master.notebook)
    blank = {name: cell_of(data, name).source for name in master.exercises}
    for name in master.exercises:
        cell_of(data, name).source = _right(chapter, name)
    edit(Notebook(data, blank))
    return data


def _in_cells(name, text):
    """Return what writes some cells in the place of an answer."""

    def edit(notebook):
        cell, place = notebook.cell(name), notebook.place(name)
        *before, last = text.replace("RIGHT", cell["source"]).split("\n# %%\n")
        cell["source"] = last
        for source in reversed(before):
            notebook.insert(place, source)

    return edit


def _style(style):
    """Return the chapter, the exercises, the edit and the files beside the notebook of a style."""
    if style in EDITS:
        return *EDITS[style], {}
    chapter, exercise, text, *more = (CELLS | LOSSES)[style]
    return chapter, (exercise,), _in_cells(exercise, text), more[0] if more else {}


def measure(launcher, style, folder):
    """Write a style's notebook into an empty folder, run it both ways, and return what it earns.

    Start the kernels as forks, or each takes two seconds (`warm_kernels`).
    """
    chapter, exercises, edit, beside = _style(style)
    graded = Assignment(ROOT / "exercises" / chapter)
    master = _master(chapter, exercises)
    vars(graded)["master"] = master
    here = folder / "ada" / chapter
    here.mkdir(parents=True)
    released = graded.folder
    for file in [*released.glob("*.py"), *released.glob("*.zip")]:
        (here / file.name).symlink_to(file)
    for name, text in beside.items():
        (here / name).write_text(text)
    path = here / master.name
    path.write_text(json.dumps(_written(master, chapter, edit)), encoding="utf-8")

    submission = Submission.read(here, master)  # before the kernel leaves files there
    # The last report of an exercise is what its author sees last.
    with mock.patch.dict(os.environ):
        os.environ.pop(
            "PYTEST_CURRENT_TEST", None
        )  # a kernel that finds it treats stdout otherwise
        seen = {report.exercise: report for report in check_notebook(path).reports}
    answers = submission.answers(master)
    execution = execute(launcher, graded, answers, SEED, Limits())
    found = [execution.reports[name] for name in master.exercises]
    said = [*answers.notes, *execution.error_sentences(), *(r.to_text() for r in found)]
    said += [f"kernel: {r.to_text()}" for r in seen.values() if r.earned < r.points]
    return Earned(
        sum(report.points for report in found),
        sum(seen[name].earned for name in master.exercises if name in seen),
        sum(report.earned for report in found),
        "\n".join(said),
    )
