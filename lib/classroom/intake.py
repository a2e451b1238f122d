"""The door: what of a folder that was handed in is graded, and in which form.

A notebook is read as data and nothing else: the sources of its cells, their order, and the marks
by which they are found again. Whatever a file says about points, tags, types, kernels, versions of
its schema or the time it was written is not read. What was handed out counts instead, so the
result is always a notebook that can be graded.

The student's code runs in the student's order. Of an exercise's cell that is there more than once
all copies run, as they would in JupyterLab, and the last definition before the check is the one
that is checked. A check runs where the student has it; one that is missing, or that stands above
its answer, runs behind the answer. What else was deleted comes back where it was.
"""

import base64
import contextlib
import hashlib
import itertools
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from classroom.notebooks import CHECK_SUFFIX

MAX_FILE_BYTES = 32 * 2**20
MAX_FILES = 1000
MAX_NOTEBOOKS = 10
MAX_OWN_CELLS = 500
MAX_SOURCE_LENGTH = 2**18
# What a file may hold is bounded before it is read, because a list of empty lists takes twenty
# times its bytes once it is.
MAX_BRACKETS = 400_000
MAX_COMMAS = 4_000_000
MAX_NOTES = 20
MAX_SHOWN = 80
_TYPES = ("code", "markdown", "raw")
_COMES_WITH_IT = {"checks.py", "mistakes.py", "timestamp.txt", ".ipynb_checkpoints", "__pycache__"}
_OF_THE_EXCHANGE = "submission_secret.txt"
"""nbgrader writes it when something is handed in, so its time is one of those that count."""
_PART_OF_A_NAME = re.compile(r"(\d+)")


class Unreadable(ValueError):
    """Nothing that was handed in can be graded; the text says why, in a sentence."""


@dataclass(frozen=True)
class Master:
    """A notebook as it was handed out.

    Attributes:
        name: Of its file, such as `attention.ipynb`.
        notebook: Its cells.
        wanted: Names of other files that are to be handed in with it.

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
        """What each of its cells is for."""
        return tuple(_role(cell) for cell in self.notebook.cells)

    @cached_property
    def exercises(self) -> tuple[str, ...]:
        """The exercises that it checks, in order."""
        return tuple(role.exercise for role in self.roles if role.kind == "check")


@dataclass(frozen=True)
class Role:
    """What a cell of the handout is for.

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
        stands_for: Index of the cell of the handout that it is, None for one of the student's own.
        answers: The exercise that it was written for, if any.
        checks: The exercise that is to be checked here, if any; there is nothing to run then.

    """

    type: str
    source: str
    stands_for: int | None = None
    answers: str = ""
    checks: str = ""


@dataclass(frozen=True)
class Submission:
    """What is graded of what was handed in.

    Attributes:
        file: Name of the notebook, fit to print.
        cells: All cells in the order in which they run; each check is there once.
        notes: Sentences for the author on what was not as it should be.
        digest: Of the bytes of the notebook, sha256 in hexadecimal.
        received: When the file came to lie where it lies. The author can set every other date.
        others: Files that are wanted beside the notebook, by name; those that are there.

    """

    file: str
    cells: tuple[Cell, ...]
    notes: tuple[str, ...]
    digest: str
    received: datetime
    others: Mapping[str, "File"] = field(default_factory=dict)


@dataclass(frozen=True)
class File:
    """A file that may be graded, as bytes.

    Attributes:
        data: Its bytes.
        received: When it came to lie where it lies; None if it cannot be read.
        problem: Why it cannot be read, in a sentence.

    """

    data: bytes = b""
    received: datetime | None = None
    problem: str = ""

    @cached_property
    def digest(self) -> str:
        """Of its bytes, sha256 in hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the file as JSON types."""
        return {
            "data": base64.b64encode(self.data).decode(),
            "received": self.received and self.received.isoformat(),
            "problem": self.problem,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "File":
        """Rebuild a file from what `to_json` returned."""
        received = record["received"] and datetime.fromisoformat(record["received"])
        return cls(base64.b64decode(record["data"]), received, record["problem"])


@dataclass(frozen=True)
class Parcel:
    """All of a student's folder that is looked at, as bytes that can travel.

    Attributes:
        received: When the last of what lies in it came to lie there; the folder itself, if there
            is nothing.
        files: Names of what lies in it, in the order in which people count.
        notebooks: By name.
        problem: Why nothing of it can be read, in a sentence.
        others: Files that are wanted beside the notebook, by name; those that are there.

    """

    received: datetime
    files: tuple[str, ...] = ()
    notebooks: Mapping[str, File] = field(default_factory=dict)
    problem: str = ""
    others: Mapping[str, File] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """Stands for all of it except for the times: sha256 in hexadecimal."""
        names = [name for name in self.files if name not in _COMES_WITH_IT]
        found = [
            [(name, file.digest, file.problem) for name, file in files.items()]
            for files in (self.notebooks, self.others)
        ]
        content = json.dumps([names, *found, self.problem])
        return hashlib.sha256(content.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the parcel as JSON types."""
        return {
            "received": self.received.isoformat(),
            "files": self.files,
            "notebooks": {name: file.to_json() for name, file in self.notebooks.items()},
            "problem": self.problem,
            "others": {name: file.to_json() for name, file in self.others.items()},
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Parcel":
        """Rebuild a parcel from what `to_json` returned."""
        notebooks, others = (
            {name: File.from_json(file) for name, file in record[kind].items()}
            for kind in ("notebooks", "others")
        )
        received = datetime.fromisoformat(record["received"])
        return cls(received, tuple(record["files"]), notebooks, record["problem"], others)


def pack(folder: Path, master: Master) -> Parcel:
    """Read all of a student's folder that is looked at.

    Args:
        folder: What lies in it is not followed if it is a link, and not read if it is neither a
            notebook nor wanted beside it.
        master: The notebook as it was handed out.

    Raises:
        OSError: If there is no such folder.

    """
    try:
        files = _files(folder)
    except Unreadable as reason:
        return Parcel(_came(folder), problem=str(reason))
    # Not what a grader puts beside it: that would change when it came.
    times = [_came(folder / name) for name in files if name not in _COMES_WITH_IT]
    received = max(times, default=_came(folder))
    notebooks = {name: read_file(folder, name) for name in _notebooks(files, master.name)}
    others = {name: read_file(folder, name) for name in master.wanted if name in files}
    return Parcel(received, tuple(files), notebooks, others=others)


def read_file(folder: Path, name: str) -> File:
    """Read a file that was handed in; if that is not possible, what is returned says why."""
    try:
        return File(*_bytes_of(folder, name))
    except Unreadable as reason:
        return File(problem=str(reason))


def _came(path: Path) -> datetime:
    # The date of the last change of content comes with the file; this one is the machine's own.
    return datetime.fromtimestamp(int(os.lstat(path).st_ctime), UTC)


def unpack(parcel: Parcel, master: Master) -> Submission:
    """Find what is graded in what a student handed in.

    The notebook may have any name. If there are several, one with answers goes before one
    without, then the one that is called as it was handed out, then the one with more answers,
    then the last one in the order of their names, in which 10 comes after 9.

    Args:
        parcel: What was handed in.
        master: The notebook as it was handed out.

    Raises:
        Unreadable: If there is nothing to grade.

    """
    if parcel.problem:
        raise Unreadable(parcel.problem)
    found, reasons = [], {}
    for name, notebook in parcel.notebooks.items():
        try:
            found.append(_read(name, notebook, master))
        except Unreadable as reason:
            reasons[name] = str(reason)
    if not found:
        if reasons:
            raise Unreadable(next(iter(reasons.values())))
        raise Unreadable(f"there is no notebook in the folder: {master.name} is expected")
    best = max(found, key=lambda candidate: candidate.rank)
    notes = [*_notes_on_files(best, found, parcel.files, reasons, master), *best.notes]
    if len(notes) > MAX_NOTES:
        notes[MAX_NOTES - 1 :] = [f"there are {len(notes) - MAX_NOTES + 1} more remarks like these"]
    return Submission(
        shown(best.name), best.cells, tuple(notes), best.digest, best.received, parcel.others
    )


def read_submission(folder: Path, master: Master) -> Submission:
    """Read what a student handed in: what `pack` reads and `unpack` finds.

    Raises:
        Unreadable: If there is nothing to grade.

    """
    try:
        parcel = pack(folder, master)
    except FileNotFoundError as error:
        raise Unreadable(f"the folder cannot be opened: {error.strerror}") from None
    return unpack(parcel, master)


def nothing_handed_in(master: Master, received: datetime) -> Submission:
    """Return the handout itself, for a student who handed in nothing that can be read."""
    cells = tuple(_handed_out(master, place) for place in range(len(master.roles)))
    return Submission("", cells, (), "", received)


def rebuild(master: Master, submission: Submission) -> NotebookNode:
    """Make a notebook of a submission that is safe to keep, to run and to grade by hand.

    Args:
        master: The notebook as it was handed out: all metadata are its own.
        submission: Gives the sources and their order.

    Returns:
        A notebook without outputs, in which every cell that was handed out is there once.

    """
    cells = []
    number = 0
    for cell in submission.cells:
        if cell.stands_for is None:
            number += 1
            made = getattr(nbformat.v4, f"new_{cell.type}_cell")(cell.source, id=f"own-{number}")
        else:
            handed_out = master.notebook.cells[cell.stands_for]
            make = getattr(nbformat.v4, f"new_{cell.type}_cell")
            made = make(cell.source, id=handed_out["id"], metadata=deepcopy(handed_out["metadata"]))
        cells.append(made)
    return nbformat.v4.new_notebook(
        cells=cells,
        metadata=deepcopy(master.notebook.metadata),
        nbformat_minor=master.notebook.nbformat_minor,
    )


def shown(name: str, limit: int = MAX_SHOWN) -> str:
    """Return a name from a stranger's file system as text to print: short and on one line."""
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


# The handout


def _role(cell: NotebookNode) -> Role:
    about = cell.metadata.get("nbgrader", {})
    if about.get("solution"):
        return Role("answer", about["grade_id"])
    if about.get("grade"):
        return Role("check", about["grade_id"].removesuffix(CHECK_SUFFIX))
    return Role("locked" if about.get("locked") else "given")


# Files


def _files(folder: Path) -> list[str]:
    """Return the names of what lies in a folder, in the order in which people count."""
    try:
        with _opened(folder, os.O_DIRECTORY) as opened, os.scandir(opened) as entries:
            names = [entry.name for entry in itertools.islice(entries, MAX_FILES + 1)]
    except OSError as error:
        if folder.is_symlink():
            raise Unreadable("the folder is a link: hand in the files themselves") from None
        raise Unreadable(f"the folder cannot be opened: {error.strerror}") from None
    if len(names) > MAX_FILES:
        raise Unreadable(f"the folder holds more than {MAX_FILES} files")
    return sorted(names, key=_in_order)


def _in_order(name: str) -> list[Any]:
    # Numbers stand at the odd places, so equal places hold equal kinds.
    parts = _PART_OF_A_NAME.split(name)
    return [(int(p[:18]), p) if i % 2 else p for i, p in enumerate(parts)]


@contextlib.contextmanager
def _opened(path: str | Path, flags: int, folder: int | None = None) -> Iterator[int]:
    # Opening a link fails, and opening a pipe does not wait for its other end.
    safe = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, safe | flags, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _notebooks(files: Sequence[str], proper_name: str) -> list[str]:
    others = [n for n in files if n.lower().endswith(".ipynb") and n != proper_name]
    proper = [proper_name] if proper_name in files else []
    return [*proper, *reversed(others)][:MAX_NOTEBOOKS]


def _bytes_of(folder: Path, name: str) -> tuple[bytes, datetime]:
    """Return a regular file's bytes, and when it came to lie there."""
    try:
        with _opened(folder, os.O_DIRECTORY) as opened, _opened(name, 0, opened) as descriptor:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise Unreadable(f"{shown(name)} is no ordinary file")
            if status.st_size > MAX_FILE_BYTES:
                raise Unreadable(_too_large(name))
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        if (folder / name).is_symlink():
            raise Unreadable(f"{shown(name)} is a link: hand in the file itself") from None
        raise Unreadable(f"{shown(name)} cannot be opened: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise Unreadable(_too_large(name))
    # The date of the last change of content comes with the file; this one is the machine's own.
    return data, datetime.fromtimestamp(int(status.st_ctime), UTC)


def _too_large(name: str) -> str:
    what_to_do = ": clear its outputs and save it again" if name.lower().endswith(".ipynb") else ""
    return f"{shown(name)} is larger than {MAX_FILE_BYTES // 2**20} MB{what_to_do}"


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
        raise Unreadable(f"{shown(name)} is no notebook")
    version, cells = notebook.get("nbformat"), notebook.get("cells")
    if version != 4:
        which = f"version {version}" if type(version) is int and 0 < version < 10 else "no version"
        raise Unreadable(
            f"{shown(name)} is of {which} of the notebook format, version 4 is expected: save it "
            "with JupyterLab"
        )
    if not isinstance(cells, list):
        raise Unreadable(f"{shown(name)} has no list of cells")
    found = [_raw_cell(cell, place, notes) for place, cell in enumerate(cells, 1)]
    if any(isinstance(cell, dict) and cell.get("attachments") for cell in cells):
        notes.append("pictures that were put into text are not kept")
    return [cell for cell in found if cell is not None]


def _no_json(data: bytes, name: str) -> str:
    if not data.strip():
        return f"{shown(name)} is empty"
    return f"{shown(name)} is damaged: it is no JSON, which a notebook is written in"


def _raw_cell(cell: Any, place: int, notes: list[str]) -> _Raw | None:
    source = cell.get("source") if isinstance(cell, dict) else None
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        source = "".join(source)
    if not isinstance(source, str):
        notes.append(f"cell {place} has no text: it was left out")
        return None
    if len(source) > MAX_SOURCE_LENGTH:
        notes.append(f"cell {place} is longer than {MAX_SOURCE_LENGTH} characters: it was left out")
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
    rank: tuple[Any, ...] = field(init=False)

    def __post_init__(self):
        rank = (
            self.num_answers > 0,
            self.is_proper,
            self.num_answers,
            _in_order(self.name.rpartition(".")[0]),
        )
        object.__setattr__(self, "rank", rank)


def _read(name: str, notebook: File, master: Master) -> _Candidate:
    if notebook.problem or notebook.received is None:
        raise Unreadable(notebook.problem)
    notes: list[str] = []
    raw = _raw_cells(notebook.data, name, notes)
    places = _places(raw, master)
    if not any(place is not None and master.roles[place].exercise for place in places):
        raise Unreadable(f"{shown(name)} holds no exercise of {master.name}")
    cells = _arranged(raw, places, master, notes)
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
    return (
        cell.stands_for is not None and cell.source != master.notebook.cells[cell.stands_for].source
    )


def _places(raw: Sequence[_Raw], master: Master) -> list[int | None]:
    """Say for each cell which cell of the handout it is.

    By its grade id, which copies share; else by the id that it was handed out with; else by its
    text; and an answer that is still missing by what it defines.
    """
    by_grade_id, by_id = {}, {}
    for index, cell in enumerate(master.notebook.cells):
        by_id[cell["id"]] = index
        if grade_id := cell.metadata.get("nbgrader", {}).get("grade_id"):
            by_grade_id[grade_id] = index
    places = [by_grade_id.get(cell.grade_id) if cell.grade_id else None for cell in raw]
    taken = {place for place in places if place is not None}

    def take(number: int, place: int | None) -> None:
        if places[number] is None and place is not None and place not in taken:
            places[number] = place
            taken.add(place)

    for number, cell in enumerate(raw):
        take(number, by_id.get(cell.id) if cell.id else None)
    by_text: dict[tuple[str, str], list[int]] = {}
    for index, cell in enumerate(master.notebook.cells):
        if index not in taken:
            by_text.setdefault((cell.cell_type, cell.source), []).append(index)
    for number, cell in enumerate(raw):
        same = by_text.get((cell.type, cell.source))
        if same and places[number] is None:
            take(number, same.pop(0))
    for index, role in enumerate(master.roles):
        if role.kind == "answer" and index not in taken:
            defines = re.compile(rf"^(def|class)\s+{re.escape(role.exercise)}\b", re.MULTILINE)
            for number in reversed(range(len(raw))):
                if raw[number].type == "code" and defines.search(raw[number].source):
                    take(number, index)
    return places


def _arranged(
    raw: Sequence[_Raw], places: Sequence[int | None], master: Master, notes: list[str]
) -> list[Cell]:
    """Return all cells in order: the student's, and what is missing of the handout."""
    arranged: list[Cell] = []
    counted = _the_one_that_counts(places, master, notes)
    for number, (cell, place) in enumerate(zip(raw, places, strict=True)):
        if place is None:
            if cell.source.strip():
                arranged.append(Cell(cell.type, cell.source))
            continue
        role, counts = master.roles[place], counted.get(place) == number
        if role.kind in ("check", "locked"):
            if counts:
                arranged.append(_handed_out(master, place))
            if role.kind == "check" and _differs(cell, master.notebook.cells[place]):
                notes.append(
                    f"the check of `{role.exercise}` had been changed: it ran as handed out, and "
                    "what stood in its place did not"
                )
        elif role.kind == "answer":
            handed_out = master.notebook.cells[place]
            if cell.type != handed_out.cell_type:
                notes.append(
                    f"the cell of `{role.exercise}` had become {cell.type}: it ran as "
                    f"{handed_out.cell_type}"
                )
            stands_for = place if counts else None
            arranged.append(Cell(handed_out.cell_type, cell.source, stands_for, role.exercise))
        else:
            arranged.append(Cell(cell.type, cell.source, place if counts else None))
    _leave_out_what_is_too_much(arranged, notes)
    _put_back(arranged, counted, master, notes)
    return arranged


def _the_one_that_counts(
    places: Sequence[int | None], master: Master, notes: list[str]
) -> dict[int, int]:
    """Return, for each cell of the handout that is there, which cell of the notebook it is.

    A check counts only if an answer stands above it, or none stands anywhere.
    """
    all_of: dict[int, list[int]] = {}
    for number, place in enumerate(places):
        if place is not None:
            all_of.setdefault(place, []).append(number)
    counted = {place: numbers[-1] for place, numbers in all_of.items()}
    answer_of = {r.exercise: i for i, r in enumerate(master.roles) if r.kind == "answer"}
    for place, role in enumerate(master.roles):
        if role.kind != "check":
            continue
        answers = all_of.get(answer_of.get(role.exercise, -1), [])
        if len(answers) > 1:
            notes.append(
                f"there are {len(answers)} cells of `{role.exercise}`: all of them ran, in order, "
                "and what was defined last before the check was checked"
            )
        if place not in counted:
            continue
        if len(all_of[place]) > 1:
            notes.append(
                f"the check of `{role.exercise}` was there more than once: the last counts"
            )
        if answers and counted[place] < answers[0]:
            del counted[place]
        elif answers:
            counted[answer_of[role.exercise]] = max(a for a in answers if a < counted[place])
    return counted


def _handed_out(master: Master, place: int) -> Cell:
    cell, role = master.notebook.cells[place], master.roles[place]
    return Cell(
        cell.cell_type,
        cell.source,
        place,
        answers=role.exercise if role.kind == "answer" else "",
        checks=role.exercise if role.kind == "check" else "",
    )


def _differs(cell: _Raw, handed_out: NotebookNode) -> bool:
    return cell.source.strip() != handed_out.source.strip() and cell.source.strip() != ""


def _leave_out_what_is_too_much(arranged: list[Cell], notes: list[str]) -> None:
    own = [i for i, cell in enumerate(arranged) if cell.stands_for is None]
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
    """Put what is missing behind what it stood behind, and a check behind its answer."""
    for place, role in enumerate(master.roles):
        if place in counted:
            continue
        index = _behind(arranged, lambda other, before=place - 1: other.stands_for == before)
        if role.kind == "answer":
            notes.append(f"the cell of `{role.exercise}` was missing: it was put back, blank")
        if role.kind == "check":
            notes.append(
                f"the check of `{role.exercise}` was missing or above its answer: it ran behind it"
            )
            name = role.exercise
            index = _behind(arranged, lambda other, name=name: other.answers == name) or index
            while index < len(arranged) and arranged[index].stands_for is None:
                index += 1  # what helps the answer may stand below it
        arranged.insert(index, _handed_out(master, place))


def _behind(arranged: Sequence[Cell], is_it: Callable[[Cell], bool]) -> int:
    """Return the index behind the last cell of a kind, 0 if there is none."""
    return max((index + 1 for index, cell in enumerate(arranged) if is_it(cell)), default=0)


# What is said about files


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
            f"{shown(best.name)} was graded, found by its exercises: it should be called "
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
