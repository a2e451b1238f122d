"""A submission is a student's folder, read once; its answers are the cells that are graded.

A notebook is read as data and nothing else: the sources of its cells, their order, and the marks
that identify them. What a file says about points, tags, types, kernels, versions of its schema or
the time it was written is not read. The handout counts instead, so the result is always a notebook
that can be graded.

The student's code runs in the student's order. If an exercise's cell is there more than once, all
copies run, as they would in JupyterLab, and the last definition before the check is the one that is
checked. A check runs where the student has it; one that is missing, or that is above its answer,
runs after the answer. Every other cell that was deleted comes back where it was. An answer may be
in any cell: blanks, and cells that come back, define only what no other cell has defined.
"""

import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from classroom.calls.files import File, opened, read_file, shown
from classroom.course import CHECK_SUFFIX

MAX_FILES = 1000
MAX_NOTEBOOKS = 10
MAX_CELLS = 20_000
MAX_OWN_CELLS = 500
MAX_SOURCE_LENGTH = 2**18
MAX_CODE_LENGTH = 2**20
"""Of a notebook: its code is searched for every exercise, before anything limits the time."""
# A file is bounded before it is parsed, because a list of empty lists then takes twenty times its
# bytes.
MAX_BRACKETS = 400_000
MAX_COMMAS = 4_000_000
MAX_NOTES = 20
_TYPES = ("code", "markdown", "raw")
_COMES_WITH_IT = {
    "checks.py",
    "mistakes.py",
    "prepared.zip",
    "timestamp.txt",
    ".ipynb_checkpoints",
    "__pycache__",
}
_OF_THE_EXCHANGE = "submission_secret.txt"
"""nbgrader's `submit` writes it, so its time is one of those that count."""
# With one dot, as `collect` and editors write them; a student may be called `..a`.
_HIDDEN = re.compile(r"\.[^.]")
_PART_OF_A_NAME = re.compile(r"(\d+)")


class Unreadable(ValueError):
    """Nothing of a submission can be graded; the text says why, in a sentence."""


@dataclass(frozen=True)
class Master:
    """A notebook as it was handed out.

    Attributes:
        name: Of its file, such as `attention.ipynb`.
        notebook: Its cells.
        wanted: Names of other files that a submission should hold.

    """

    name: str
    notebook: NotebookNode
    wanted: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path, wanted: Sequence[str] = ()) -> "Master":
        """Read the notebook of a released assignment."""
        return cls(path.name, nbformat.read(path, as_version=4), tuple(wanted))

    @cached_property
    def roles(self) -> tuple["Role", ...]:
        """The purpose of each of its cells."""
        return tuple(_role(cell) for cell in self.notebook.cells)

    @cached_property
    def exercises(self) -> tuple[str, ...]:
        """The exercises that it checks, in order."""
        return tuple(role.exercise for role in self.roles if role.kind == "check")


@dataclass(frozen=True)
class Role:
    """The purpose of a cell of the handout.

    Attributes:
        kind: `answer` is the student's to write, `check` is where it is graded, `given` may be
            changed and `locked` may not.
        exercise: Of an answer or a check.

    """

    kind: str
    exercise: str = ""


@dataclass(frozen=True)
class Cell:
    """A cell to run, to show, or to check at.

    Attributes:
        type: `code`, `markdown` or `raw`.
        source: Its text.
        origin: Index of the same cell in the handout, None for one of the student's own.
        answers: The exercise that it was written for, if any.
        checks: The exercise that is to be checked here, if any; there is nothing to run then.
        only_adds: Whether names that other cells have defined keep their values. So it is with what
            the student did not write: blanks, and cells that were deleted.

    """

    type: str
    source: str
    origin: int | None = None
    answers: str = ""
    checks: str = ""
    only_adds: bool = False


@dataclass(frozen=True)
class Answers:
    """The cells of a submission that are graded.

    Attributes:
        file: Name of the notebook, fit to print.
        cells: All cells in the order in which they run; each check is there once.
        notes: Sentences for the author on what was unusual.
        digest: Of the bytes of the notebook, sha256 in hexadecimal.
        received: When the notebook arrived on this machine, or the last of the files that are
            wanted beside it. Its author can set every other date.
        others: Files that are wanted beside the notebook, by name; those that are there.

    """

    file: str
    cells: tuple[Cell, ...]
    notes: tuple[str, ...]
    digest: str
    received: datetime
    others: Mapping[str, File] = field(default_factory=dict)

    @classmethod
    def blank(cls, master: Master, received: datetime) -> "Answers":
        """Return the handout itself, for a submission of which nothing can be read."""
        cells = tuple(_handed_out(master, index) for index in range(len(master.roles)))
        return cls("", cells, (), "", received)


@dataclass(frozen=True)
class Submission:
    """A student's folder, read once: all of it that is looked at, as bytes that can travel.

    Attributes:
        student: Name of the folder that holds the student's assignments.
        received: When the last of the files arrived; the folder itself, if it is empty.
        files: Names of what is in it, in natural order.
        notebooks: By name.
        problem: Why nothing of it can be read, in a sentence.
        others: Files that are wanted beside the notebook, by name; those that are there.

    """

    student: str
    received: datetime
    files: tuple[str, ...] = ()
    notebooks: Mapping[str, File] = field(default_factory=dict)
    problem: str = ""
    others: Mapping[str, File] = field(default_factory=dict)

    @classmethod
    def read(
        cls, folder: Path, master: Master, receipts: Mapping[str, datetime] = {}
    ) -> "Submission":
        """Read a student's folder; if that is not possible, what is returned says why.

        Args:
            folder: `STUDENT/ASSIGNMENT`. A link is not followed, and a file is read only if it is
                a notebook or wanted beside it.
            master: The notebook as it was handed out.
            receipts: When a file arrived, by its digest, where the ledger of `collect` says so.

        """
        student, received = folder.parent.name, datetime.now(UTC)
        try:
            received = _arrived(folder)
            if folder.parent.is_symlink():
                raise Unreadable("the student's folder is a link: submit the files themselves")
            files = names_in(folder)
            # What a grader adds is passed over: it would change when the submission arrived.
            times = [_arrived(folder / name) for name in files if name not in _COMES_WITH_IT]
        except OSError as error:
            why = f"the folder cannot be opened: {error.strerror}"
            return cls(student, received, problem=why)
        except Unreadable as reason:
            return cls(student, received, problem=str(reason))
        notebooks = {name: read_file(folder, name) for name in _notebooks(files, master.name)}
        others = {name: read_file(folder, name) for name in master.wanted if name in files}
        for kind in (notebooks, others):
            for name, file in kind.items():
                if file.digest in receipts:
                    kind[name] = replace(file, received=receipts[file.digest])
        return cls(student, max(times, default=received), tuple(files), notebooks, others=others)

    @cached_property
    def digest(self) -> str:
        """Stands for all of it except for the student and the times: sha256 in hexadecimal."""
        names = [name for name in self.files if name not in _COMES_WITH_IT]
        found = [
            [(name, file.digest, file.problem) for name, file in files.items()]
            for files in (self.notebooks, self.others)
        ]
        content = json.dumps([names, *found, self.problem])
        return hashlib.sha256(content.encode()).hexdigest()

    def answers(self, master: Master) -> Answers:
        """Find the cells that are graded.

        The notebook may have any name. If there are several, one with answers goes before one
        without, then the one that is called as it was handed out, then the one with more answers,
        then the last one in natural order, in which 10 comes after 9.

        Raises:
            Unreadable: If there is nothing to grade.

        """
        if self.problem:
            raise Unreadable(self.problem)
        found, reasons = [], {}
        for name, notebook in self.notebooks.items():
            try:
                found.append(_read(name, notebook, master))
            except Unreadable as reason:
                reasons[name] = str(reason)
        if not found:
            if reasons:
                raise Unreadable(next(iter(reasons.values())))
            raise Unreadable(f"there is no notebook in the folder: {master.name} is expected")
        best = max(found, key=lambda candidate: candidate.rank)
        notes = [*_notes_on_files(best, found, self.files, reasons, master), *best.notes]
        if len(notes) > MAX_NOTES:
            num_left = len(notes) - MAX_NOTES + 1
            notes[MAX_NOTES - 1 :] = [f"there are {num_left} more remarks like these"]
        received = max([best.received, *(f.received for f in self.others.values() if f.received)])
        return Answers(
            shown(best.name), best.cells, tuple(notes), best.digest, received, self.others
        )


def students_in(submitted: Path, assignment: str) -> list[str]:
    """Return the students who have a folder `submitted/STUDENT/ASSIGNMENT`, in order.

    Raises:
        FileNotFoundError: If there is no folder `submitted`.

    """
    if not submitted.is_dir():
        raise FileNotFoundError(f"there is no folder {submitted}: see `classroom collect`")
    with os.scandir(submitted) as entries:
        return sorted(
            entry.name
            for entry in entries
            if not _HIDDEN.match(entry.name) and os.path.lexists(Path(entry.path, assignment))
        )


def _arrived(path: Path) -> datetime:
    # The date of the last change of content comes with the file; this one is the machine's own.
    return datetime.fromtimestamp(int(os.lstat(path).st_ctime), UTC)


def rebuild(master: Master, answers: Answers) -> NotebookNode:
    """Make a notebook of a student's answers that is safe to keep, to run and to grade by hand.

    Args:
        master: The notebook as it was handed out: all metadata are its own.
        answers: Gives the sources and their order.

    Returns:
        A notebook without outputs, in which every cell that was handed out is there once.

    """
    cells = []
    number = 0
    for cell in answers.cells:
        make = getattr(nbformat.v4, f"new_{cell.type}_cell")
        if cell.origin is None:
            number += 1
            made = make(cell.source, id=f"own-{number}")
        else:
            handed_out = master.notebook.cells[cell.origin]
            made = make(cell.source, id=handed_out["id"], metadata=deepcopy(handed_out["metadata"]))
        cells.append(made)
    return nbformat.v4.new_notebook(
        cells=cells,
        metadata=deepcopy(master.notebook.metadata),
        nbformat_minor=master.notebook.nbformat_minor,
    )


# The handout


def _role(cell: NotebookNode) -> Role:
    about = cell.metadata.get("nbgrader", {})
    if about.get("solution"):
        return Role("answer", about["grade_id"])
    if about.get("grade"):
        return Role("check", about["grade_id"].removesuffix(CHECK_SUFFIX))
    return Role("locked" if about.get("locked") else "given")


# Files


def names_in(folder: Path) -> list[str]:
    """Return the names of what is in a submission's folder, in natural order.

    Raises:
        Unreadable: If it is no folder that can be opened, or holds too much.

    """
    try:
        with opened(folder, os.O_DIRECTORY) as descriptor, os.scandir(descriptor) as entries:
            names = [entry.name for entry in itertools.islice(entries, MAX_FILES + 1)]
    except OSError as error:
        if folder.is_symlink():
            raise Unreadable("the folder is a link: submit the files themselves") from None
        raise Unreadable(f"the folder cannot be opened: {error.strerror}") from None
    if len(names) > MAX_FILES:
        raise Unreadable(f"the folder holds more than {MAX_FILES} files")
    return sorted(names, key=_in_order)


def _in_order(name: str) -> list[Any]:
    # Numbers have odd indices, so the same index holds the same kind.
    parts = _PART_OF_A_NAME.split(name)
    return [(int(p[:18]), p) if i % 2 else p for i, p in enumerate(parts)]


def _notebooks(files: Sequence[str], proper_name: str) -> list[str]:
    others = [n for n in files if n.lower().endswith(".ipynb") and n != proper_name]
    proper = [proper_name] if proper_name in files else []
    return [*proper, *reversed(others)][:MAX_NOTEBOOKS]


# A notebook's text


@dataclass
class _Raw:
    """A cell as it is in the file."""

    type: str
    source: str
    grade_id: str | None
    id: str | None


def _raw_cells(data: bytes, name: str, notes: list[str]) -> list[_Raw]:
    brackets, commas = data.count(b"[") + data.count(b"{"), data.count(b",")
    if brackets > MAX_BRACKETS or commas > MAX_COMMAS:
        raise Unreadable(f"{shown(name)} holds too much to be a notebook: clear its outputs")
    try:
        # Python's reader has a bound of its own on depth and on the length of a number.
        notebook = json.loads(data)
    except RecursionError:
        raise Unreadable(f"{shown(name)} is nested too deeply to be a notebook") from None
    except ValueError:
        raise Unreadable(_no_json(data, name)) from None
    if not isinstance(notebook, dict):
        raise Unreadable(f"{shown(name)} is not a notebook")
    version, cells = notebook.get("nbformat"), notebook.get("cells")
    if version != 4:
        which = f"version {version}" if type(version) is int and 0 < version < 10 else "no version"
        raise Unreadable(
            f"{shown(name)} has {which} of the notebook format, and version 4 is expected: save "
            "it with JupyterLab"
        )
    if not isinstance(cells, list):
        raise Unreadable(f"{shown(name)} has no list of cells")
    if len(cells) > MAX_CELLS:
        raise Unreadable(f"{shown(name)} holds more than {MAX_CELLS:,} cells")
    found = [_raw_cell(cell, number, notes) for number, cell in enumerate(cells, 1)]
    if sum(len(cell.source) for cell in found if cell and cell.type == "code") > MAX_CODE_LENGTH:
        raise Unreadable(f"{shown(name)} holds more than {MAX_CODE_LENGTH:,} characters of code")
    if any(isinstance(cell, dict) and cell.get("attachments") for cell in cells):
        notes.append("pictures that were pasted into text are not kept")
    return [cell for cell in found if cell is not None]


def _no_json(data: bytes, name: str) -> str:
    if not data.strip():
        return f"{shown(name)} is empty"
    return f"{shown(name)} is damaged: it is not JSON, the format of notebooks"


def _raw_cell(cell: Any, number: int, notes: list[str]) -> _Raw | None:
    source = cell.get("source") if isinstance(cell, dict) else None
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        source = "".join(source)
    if not isinstance(source, str):
        notes.append(f"cell {number} has no text: it was left out")
        return None
    if len(source) > MAX_SOURCE_LENGTH:
        notes.append(
            f"cell {number} is longer than {MAX_SOURCE_LENGTH} characters: it was left out"
        )
        return None
    # Half a character, as JSON can write it, is no text that could be saved again.
    source = source.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    kind = cell.get("cell_type")
    metadata = cell.get("metadata")
    about = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    grade_id = about.get("grade_id") if isinstance(about, dict) else None
    return _Raw(
        kind if isinstance(kind, str) and kind in _TYPES else "raw",
        source.replace("\r\n", "\n"),
        grade_id if isinstance(grade_id, str) else None,
        cell["id"] if isinstance(cell.get("id"), str) else None,
    )


# A notebook


@dataclass(frozen=True)
class _Candidate:
    """A notebook in which exercises of the assignment were found."""

    name: str
    cells: tuple[Cell, ...]
    notes: tuple[str, ...]
    digest: str
    received: datetime
    num_answers: int
    is_proper: bool

    @property
    def rank(self) -> tuple[Any, ...]:
        stem = self.name.rpartition(".")[0]
        return self.num_answers > 0, self.is_proper, self.num_answers, _in_order(stem)


def _read(name: str, notebook: File, master: Master) -> _Candidate:
    if notebook.problem or notebook.received is None:
        raise Unreadable(notebook.problem)
    notes: list[str] = []
    raw = _raw_cells(notebook.data, name, notes)
    origins = _origins(raw, master)
    if not any(origin is not None and master.roles[origin].exercise for origin in origins):
        raise Unreadable(f"{shown(name)} holds no exercise of {master.name}")
    cells = _arranged(raw, origins, master, notes)
    return _Candidate(
        name,
        tuple(cells),
        tuple(notes),
        notebook.digest,
        notebook.received,
        sum(cell.answers != "" and _is_changed(cell, master) for cell in cells),
        name == master.name,
    )


def _is_changed(cell: Cell, master: Master) -> bool:
    return cell.origin is not None and cell.source != master.notebook.cells[cell.origin].source


def _origins(raw: Sequence[_Raw], master: Master) -> list[int | None]:
    """Find for each cell the index of the same cell in the handout.

    By its grade id, which copies share; else by the id that it was handed out with; else by its
    text; and an answer that is still missing by what it defines.
    """
    by_grade_id, by_id = {}, {}
    for index, cell in enumerate(master.notebook.cells):
        by_id[cell["id"]] = index
        if grade_id := cell.metadata.get("nbgrader", {}).get("grade_id"):
            by_grade_id[grade_id] = index
    origins = [by_grade_id.get(cell.grade_id) if cell.grade_id else None for cell in raw]
    taken = {origin for origin in origins if origin is not None}

    def take(number: int, origin: int | None) -> None:
        if origins[number] is None and origin is not None and origin not in taken:
            origins[number] = origin
            taken.add(origin)

    for number, cell in enumerate(raw):
        take(number, by_id.get(cell.id) if cell.id else None)
    by_text: dict[tuple[str, str], list[int]] = {}
    for index, cell in enumerate(master.notebook.cells):
        if index not in taken:
            by_text.setdefault((cell.cell_type, cell.source), []).append(index)
    for number, cell in enumerate(raw):
        same = by_text.get((cell.type, cell.source))
        if same and origins[number] is None:
            take(number, same.pop(0))
    for index, role in enumerate(master.roles):
        if role.kind == "answer" and index not in taken:
            for number in reversed(range(len(raw))):
                if raw[number].type == "code" and _defines(raw[number].source, role.exercise):
                    take(number, index)
    return origins


def _defines(source: str, name: str) -> bool:
    """Return whether a cell's text looks as if it defined a function or class, in whatever way."""
    name = re.escape(name)
    ways = rf"(def|class) +{name}\b|{name} *(:[^=\n]*)?=(?!=)|from +[\w.]+ +import\b.*\b{name}\b"
    return re.search(rf"^({ways})", source, re.MULTILINE) is not None


def _arranged(
    raw: Sequence[_Raw], origins: Sequence[int | None], master: Master, notes: list[str]
) -> list[Cell]:
    """Return all cells in order: the student's, and what is missing of the handout."""
    arranged: list[Cell] = []
    counted = _the_one_that_counts(raw, origins, master, notes)
    for number, (cell, origin) in enumerate(zip(raw, origins, strict=True)):
        if origin is None:
            if cell.source.strip():
                arranged.append(Cell(cell.type, cell.source))
            continue
        role, counts = master.roles[origin], counted.get(origin) == number
        if role.kind in ("check", "locked"):
            if counts:
                arranged.append(_handed_out(master, origin))
            if role.kind == "check" and _differs(cell, master.notebook.cells[origin]):
                notes.append(
                    f"the check of `{role.exercise}` had been changed: it ran as handed out, and "
                    "your version did not"
                )
        elif role.kind == "answer":
            handed_out = master.notebook.cells[origin]
            if cell.type != handed_out.cell_type:
                notes.append(
                    f"the cell of `{role.exercise}` had become {cell.type}: it ran as "
                    f"{handed_out.cell_type}"
                )
            arranged.append(
                Cell(
                    handed_out.cell_type,
                    cell.source,
                    origin if counts else None,
                    role.exercise,
                    only_adds=not _differs(cell, handed_out),
                )
            )
        else:
            arranged.append(Cell(cell.type, cell.source, origin if counts else None))
    _leave_out_what_is_too_much(arranged, notes)
    _put_back(arranged, counted, master, notes)
    return arranged


def _the_one_that_counts(
    raw: Sequence[_Raw], origins: Sequence[int | None], master: Master, notes: list[str]
) -> dict[int, int]:
    """Return, for each cell of the handout that is there, which cell of the notebook it is.

    A check counts only if an answer is above it, or if there is none at all. An answer is what
    defines the exercise, in its own cell or another one.
    """
    all_of: dict[int, list[int]] = {}
    for number, origin in enumerate(origins):
        if origin is not None:
            all_of.setdefault(origin, []).append(number)
    counted = {origin: numbers[-1] for origin, numbers in all_of.items()}
    answer_of = {r.exercise: i for i, r in enumerate(master.roles) if r.kind == "answer"}
    own = [
        number
        for number, (cell, origin) in enumerate(zip(raw, origins, strict=True))
        if origin is None or _differs(cell, master.notebook.cells[origin])
    ]
    for origin, role in enumerate(master.roles):
        if role.kind != "check":
            continue
        answers = all_of.get(answer_of.get(role.exercise, -1), [])
        among_answers = set(answers)
        if len(answers) > 1:
            notes.append(
                f"there are {len(answers)} cells of `{role.exercise}`: all of them ran, in order, "
                "and the last definition before the check was checked"
            )
        if origin not in counted:
            continue
        if len(all_of[origin]) > 1:
            notes.append(
                f"the check of `{role.exercise}` was there more than once: only the last one counts"
            )
        written = [
            number
            for number in own
            if (raw[number].type == "code" or number in among_answers)
            and _defines(raw[number].source, role.exercise)
        ]
        above = [number for number in answers if number < counted[origin]]
        if above:
            counted[answer_of[role.exercise]] = above[-1]
        if counted[origin] < min(written or answers, default=0):
            del counted[origin]
    return counted


def _handed_out(master: Master, origin: int) -> Cell:
    cell, role = master.notebook.cells[origin], master.roles[origin]
    return Cell(
        cell.cell_type,
        cell.source,
        origin,
        answers=role.exercise if role.kind == "answer" else "",
        checks=role.exercise if role.kind == "check" else "",
    )


def _differs(cell: _Raw, handed_out: NotebookNode) -> bool:
    return cell.source.strip() != handed_out.source.strip() and cell.source.strip() != ""


def _leave_out_what_is_too_much(arranged: list[Cell], notes: list[str]) -> None:
    own = [i for i, cell in enumerate(arranged) if cell.origin is None]
    for index in reversed(own[MAX_OWN_CELLS:]):
        del arranged[index]
    if len(own) > MAX_OWN_CELLS:
        notes.append(
            f"there are {len(own)} cells besides those of the handout: those after the first "
            f"{MAX_OWN_CELLS} were left out"
        )


def _put_back(
    arranged: list[Cell], counted: dict[int, int], master: Master, notes: list[str]
) -> None:
    """Insert what is missing after the cell that it followed, and a check after its answer."""
    for origin, role in enumerate(master.roles):
        if origin in counted:
            continue
        index = _index_after(arranged, lambda other, before=origin - 1: other.origin == before)
        if role.kind == "answer":
            notes.append(f"the cell of `{role.exercise}` was missing: it was put back, blank")
        if role.kind == "check":
            notes.append(
                f"the check of `{role.exercise}` was missing or above the answer: it ran below it"
            )
            index = _index_after_answer(arranged, role.exercise) or index
            while index < len(arranged) and arranged[index].origin is None:
                index += 1  # helpers of the answer may be below it
        arranged.insert(index, replace(_handed_out(master, origin), only_adds=role.kind != "check"))


def _index_after_answer(arranged: Sequence[Cell], name: str) -> int:
    """Return the index after the answer to an exercise, 0 if there is none."""

    def is_written(cell: Cell) -> bool:
        return cell.type == "code" and not cell.only_adds and _defines(cell.source, name)

    return (
        _index_after(arranged, lambda cell: cell.answers == name and is_written(cell))
        or _index_after(arranged, is_written)
        or _index_after(arranged, lambda cell: cell.answers == name)
    )


def _index_after(arranged: Sequence[Cell], is_it: Callable[[Cell], bool]) -> int:
    """Return the index after the last cell of a kind, 0 if there is none."""
    return max((index + 1 for index, cell in enumerate(arranged) if is_it(cell)), default=0)


# Notes about files


def _notes_on_files(
    best: _Candidate,
    found: Sequence[_Candidate],
    files: Sequence[str],
    reasons: Mapping[str, str],
    master: Master,
) -> list[str]:
    notes = []
    if not best.is_proper:
        notes.append(
            f"{shown(best.name)} was graded, recognised by its exercises: it should be called "
            f"{master.name}"
        )
    if others := [shown(c.name) for c in found if c is not best]:
        notes.append(f"{shown(best.name)} was graded, not {', '.join(sorted(others))}")
    notes += reasons.values()
    known = {best.name, *_COMES_WITH_IT, _OF_THE_EXCHANGE, *(c.name for c in found), *reasons}
    known |= set(master.wanted)
    if unused := [shown(name) for name in files if name not in known]:
        more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
        notes.append(f"only the notebook is used, not {', '.join(unused[:3])}{more}")
    return notes
