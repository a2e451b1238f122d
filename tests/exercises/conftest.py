"""Every answer of every assignment, as fixtures."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from draws import draw

from classroom.author.kill_matrix import RECORD, read
from classroom.author.notebooks import cell_of
from classroom.calls.files import File
from classroom.calls.local import LocalSubject
from classroom.course import assignments, text_file
from classroom.exercise.answers import Answer, files_beside, load_answers
from classroom.exercise.report import Report
from classroom.exercise.run import load_checks, run_checks

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Assignment:
    """An assignment as its authors see it (`folder`) and as students get it (`handout`)."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def handout(self) -> Path:
        return ROOT / "exercises" / self.name

    @property
    def notebook_name(self) -> str:
        return text_file(self.folder).with_suffix(".ipynb").name

    @property
    def seed(self) -> str:
        """What no student has seen, another one in each chapter."""
        return f"unseen {self.name}"

    @functools.cached_property
    def exercises(self) -> list[str]:
        return list(load_checks(self.folder))

    @functools.cached_property
    def mistakes(self) -> list[Answer]:
        return load_answers(self.folder / "mistakes.py")

    @functools.cached_property
    def variants(self) -> list[Answer]:
        return load_answers(self.folder / "variants.py")

    @functools.cached_property
    def handed_in(self) -> dict[str, bytes]:
        """What is to be handed in beside the notebook, as its author would; it is not released."""
        return files_beside(self.folder)

    def files(self, *answers: Answer) -> dict[str, File]:
        """What lies beside a notebook with these answers; where two change it, the last does."""
        return {name: File(data) for name, data in files_beside(self.folder, *answers).items()}

    def solution(self, exercise: str) -> Answer:
        return self._cell(self.folder, exercise, "Solution")

    def blank(self, exercise: str) -> Answer:
        return self._cell(self.handout, exercise, "Blank")

    def notebook(self, cells: dict[str, str]) -> nbformat.NotebookNode:
        """The released notebook as a student would hand it in, with these cells filled in."""
        notebook = nbformat.read(self.handout / self.notebook_name, as_version=4)
        for exercise, source in cells.items():
            cell_of(notebook, exercise).source = source
        return notebook

    def _cell(self, folder: Path, exercise: str, name: str) -> Answer:
        notebook = nbformat.read(folder / self.notebook_name, as_version=4)
        first = next(cell for cell in notebook.cells if "import check" in cell.source)
        return Answer(name, exercise, name, cell_of(notebook, exercise).source, first.source)


@functools.cache
def self_check(
    assignment: Assignment, answer: Answer, seed: str | None = None, beside: tuple[Answer, ...] = ()
) -> Report:
    """Return what the self-check of the handout says to an answer, on an unseen seed.

    The files beside the notebook are those that belong to the answer, or to all of `beside`.
    """
    files = assignment.files(*(beside or (answer,)))
    subject = LocalSubject(answer.namespace, files=files)
    report = run_checks(assignment.handout, answer.exercise, subject, seed or assignment.seed)
    assert "check itself broke" not in str(report), report.to_text()
    return report


@functools.cache
def all_assignments() -> list[Assignment]:
    return [Assignment(folder) for folder in assignments(ROOT / "solutions")]


def _each(kind: str) -> Iterator:
    rows = read(ROOT / RECORD) if (ROOT / RECORD).exists() else []
    recorded = {(row.assignment, row.exercise) for row in rows}
    for assignment in all_assignments():
        for answer in getattr(assignment, kind):
            name = f"{assignment.name}-{answer.exercise}-{answer.name}"
            is_known = kind == "mistakes" and (assignment.name, answer.exercise) in recorded
            if not is_known or draw(name, 16, "exercise") == 0:
                yield pytest.param((assignment, answer), id=name)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "assignment" in metafunc.fixturenames:
        found = all_assignments()
        metafunc.parametrize("assignment", found, ids=[a.name for a in found])
    if "exercise" in metafunc.fixturenames:
        pairs = [
            pytest.param((a, exercise), id=f"{a.name}-{exercise}")
            for a in all_assignments()
            for exercise in a.exercises
        ]
        metafunc.parametrize("exercise", pairs)
    for kind in ("mistake", "variant"):
        if kind in metafunc.fixturenames:
            metafunc.parametrize(kind, list(_each(f"{kind}s")))


@pytest.fixture(scope="session")
def every_assignment() -> list[Assignment]:
    return all_assignments()


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session", name="self_check")
def self_check_fixture():
    """Check an answer as in a notebook: once, whichever test asks for it."""
    return self_check
