"""Turns a student's notebooks into a package, `mine`, that later chapters and models build on.

What an exercise asks for is taken from the notebook with all that it depends on, run apart from the
notebook, and checked. If every check passes, it stands in the package as it was written; if not,
the package borrows it from the reference library and says why. So a mistake in one chapter
does not sink the next, and nobody is told that a borrowed piece is theirs.

For the student alone: grading never looks at the package, and cannot import it.
"""

import ast
import builtins
import contextlib
import hashlib
import json
import linecache
import os
import queue
import shutil
import subprocess
import symtable
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat

from classroom.selfcheck import load_checks, run_checks
from classroom.subjects import LocalSubject

PACKAGE = "mine"
SECONDS_PER_EXERCISE = 60.0
"""Time for one exercise, from running its code to its last check."""
_START_SECONDS = 120.0
"""Time for a process to import torch on a machine that is busy."""
_RECORD = "pieces.json"
_ASSEMBLER = "groundup.assembled"
_BLANKS = ("# YOUR CODE HERE", "### BEGIN SOLUTION", "### END SOLUTION")


@dataclass(frozen=True)
class Piece:
    """What the package takes from one exercise.

    Attributes:
        assignment: Folder of its notebook, such as `04_blocks`.
        exercise: Name of the exercise.
        names: What it defines, each with the place of what is borrowed instead.

    """

    assignment: str
    exercise: str
    names: Mapping[str, str]


def _alike(module: str, *names: str) -> dict[str, str]:
    return {name: f"{module}.{name}" for name in names}


PIECES = (
    Piece(
        "00_preliminaries",
        "stable_softmax",
        _alike("groundup.parts", "stable_softmax", "log_softmax") | _alike("torch", "logsumexp"),
    ),
    Piece(
        "00_preliminaries",
        "split_heads",
        _alike("groundup.multihead", "split_heads", "merge_heads")
        | {"head_scores": "groundup.attention.dot_scores"},
    ),
    Piece(
        "00_preliminaries",
        "activations",
        _alike("torch.nn.functional", "silu", "softplus", "gelu")
        | {"tanh_by_sigmoid": "torch.tanh", "gelu_tanh": "groundup.layers.gelu_tanh"},
    ),
    Piece(
        "01_attention",
        "scaled_dot_product_attention",
        _alike("groundup.parts", "scaled_dot_product_attention"),
    ),
    Piece("02_masking", "causal_mask", _alike("groundup.masks", "causal_mask")),
    Piece("02_masking", "padding_mask", _alike("groundup.masks", "padding_mask")),
    Piece("02_masking", "masked_softmax", _alike("groundup.masks", "masked_softmax")),
    Piece("03_multihead", "MultiHeadAttention", _alike("groundup.parts", "MultiHeadAttention")),
    Piece(
        "03_multihead",
        "grouped_query_attention",
        {"grouped_query_attention": "groundup.attention.scaled_dot_product_attention"},
    ),
    Piece("04_blocks", "layer_norm", _alike("groundup.layers", "layer_norm")),
    Piece("04_blocks", "rms_norm", _alike("groundup.layers", "rms_norm")),
    Piece("04_blocks", "feed_forward", _alike("groundup.parts", "feed_forward", "swiglu")),
    Piece("04_blocks", "TransformerBlock", _alike("groundup.parts", "TransformerBlock")),
    Piece(
        "05_positions",
        "sinusoidal_positions",
        {"sinusoidal_positions": "groundup.positions.sinusoidal_table"},
    ),
    Piece("05_positions", "learned_positions", _alike("groundup.parts", "learned_positions")),
    Piece("05_positions", "apply_rotary", _alike("groundup.parts", "apply_rotary")),
    Piece(
        "05_positions",
        "alibi_bias",
        _alike("groundup.positions", "alibi_slopes") | _alike("groundup.parts", "alibi_bias"),
    ),
    Piece("06_architectures", "shifted_loss", _alike("groundup.parts", "shifted_loss")),
    Piece("06_architectures", "CrossAttention", _alike("groundup.parts", "CrossAttention")),
    Piece("06_architectures", "smoothed_loss", _alike("groundup.parts", "smoothed_loss", "noam")),
    *(
        Piece("07_training", name, _alike("groundup.training_parts", name))
        for name in ("adamw_step", "learning_rate", "clip_gradients")
    ),
    Piece(
        "08_generation",
        "next_token",
        {"with_temperature": "groundup.sampling.temperature"}
        | _alike("groundup.sampling", "top_k", "top_p"),
    ),
)
"""What the package is made of. A new piece is a new entry, in the order of the course."""


@dataclass(frozen=True)
class Outcome:
    """What became of a piece.

    Attributes:
        assignment: Folder of its notebook.
        exercise: Name of its exercise.
        number: Number of the exercise, such as `4.1`; empty if its checks are not there.
        names: What it defines.
        is_yours: Whether it is the student's own; if not, it is borrowed.
        why: Why it is borrowed, or what there is to know about it, in a sentence; may be empty.
        in_model: Those of its names by which the package's models compute.

    """

    assignment: str
    exercise: str
    number: str
    names: tuple[str, ...]
    is_yours: bool
    why: str = ""
    in_model: tuple[str, ...] = ()


@dataclass(frozen=True)
class Library:
    """What the package holds, as its `pieces.json` says.

    Attributes:
        made: When it was made, in ISO form.
        outcomes: What became of each piece.
        notebooks: What was read, by assignment, as a hash of the notebook and its checks.

    """

    made: str
    outcomes: tuple[Outcome, ...]
    notebooks: Mapping[str, str]

    @property
    def num_yours(self) -> int:
        """Number of pieces that are the student's own."""
        return sum(outcome.is_yours for outcome in self.outcomes)

    def to_table(self, changed: Iterable[str] = ()) -> str:
        """Return a table of all pieces, and what to know about them below it.

        Args:
            changed: Assignments whose notebooks are no longer what was read.

        """
        rows = [
            (
                f"{outcome.assignment} {outcome.number}".strip(),
                "yours" if outcome.is_yours else "borrowed",
                ", ".join(outcome.names),
            )
            for outcome in self.outcomes
        ]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines = []
        for outcome, (where, whose, names) in zip(self.outcomes, rows, strict=True):
            lines.append(f"{where:<{widths[0]}}  {whose:<{widths[1]}}  {names}")
            if outcome.why:
                about = textwrap.wrap(outcome.why, 92, break_on_hyphens=False)
                lines += [f"{'':<{widths[0]}}  {line}" for line in about]
        used = [name for outcome in self.outcomes for name in outcome.in_model]
        lines += [
            "",
            f"{self.num_yours} of {len(self.outcomes)} pieces are yours, as of {self.made[:16]}",
            *textwrap.wrap(f"a model computes by your {', '.join(used) or 'code not yet'}", 96),
            *(f"{name} has changed since: run `classroom mine`" for name in changed),
        ]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the library as JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Library":
        """Rebuild what `to_json` returned."""
        outcomes = (
            Outcome(**{**o, "names": tuple(o["names"]), "in_model": tuple(o["in_model"])})
            for o in record["outcomes"]
        )
        return cls(record["made"], tuple(outcomes), record["notebooks"])


def build(
    root: Path | str = ".",
    progress: Callable[[int, int], None] = lambda done, total: None,
    seconds_per_exercise: float = SECONDS_PER_EXERCISE,
    pieces: Iterable[Piece] = PIECES,
) -> Library:
    """Make the package `mine` beside `exercises/` from the notebooks there, or bring it up to date.

    Notebooks that have not changed are not run again.

    Args:
        root: The course's folder, which holds `exercises/`.
        progress: Told the number of notebooks looked at and the number of notebooks.
        seconds_per_exercise: Time after which an exercise is given up, in seconds.
        pieces: What the package is made of.

    Returns:
        What became of each piece.

    Raises:
        FileNotFoundError: If there is no folder `exercises/`.
        ValueError: If there is a `mine/` that was not made here.

    """
    root, pieces = Path(root).resolve(), tuple(pieces)
    exercises, package = root / "exercises", root / PACKAGE
    if not exercises.is_dir():
        raise FileNotFoundError(
            f"there is no folder {exercises}: say with --root where the course is"
        )
    if package.exists() and not (package / _RECORD).is_file():
        raise ValueError(
            f"{package} was not made by `classroom mine`: move it out of the way first"
        )
    before = _read_record(package)
    chapters = [
        _Chapter(exercises / name, [piece for piece in pieces if piece.assignment == name])
        for name in dict.fromkeys(piece.assignment for piece in pieces)
    ]
    with _Checker(seconds_per_exercise) as checker:
        for index, chapter in enumerate(chapters, start=1):
            if not chapter.recall(before):
                chapter.verify(checker)
            # A notebook may import what earlier ones gave, so a package grows beside the checks.
            _write(checker.package, chapters[:index])
            progress(index, len(chapters))
        names = [name for piece in pieces for name in piece.names]
        used, refused = _try_in_models(checker.package, names, seconds_per_exercise)
    made = datetime.now().astimezone().isoformat(timespec="seconds")
    return _write(package, chapters, used, refused, made)


def status(root: Path | str = ".") -> tuple[Library, list[str]]:
    """Say what the package holds, and which notebooks have changed since it was made.

    Args:
        root: The course's folder.

    Raises:
        FileNotFoundError: If there is no package yet.

    """
    root = Path(root).resolve()
    library = _read_record(root / PACKAGE)
    if library is None:
        raise FileNotFoundError(f"there is no {root / PACKAGE} yet: run `classroom mine`")
    now = {
        name: _Chapter(root / "exercises" / name, [p for p in PIECES if p.assignment == name])
        for name in library.notebooks
    }
    changed = [name for name, was in library.notebooks.items() if now[name].fingerprint != was]
    return library, changed


def _read_record(package: Path) -> Library | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return Library.from_json(json.loads((package / _RECORD).read_text(encoding="utf-8")))
    return None


# What a notebook says --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Unit:
    """A statement at the top level of a notebook, with the comment above it."""

    place: tuple[int, int]
    """Number of its cell, and its own number there."""
    text: str
    binds: frozenset[str]
    uses: frozenset[str]
    is_loose: bool
    """Whether what it binds depends on more than its text, as in a loop."""
    adds: bool
    """Whether it changes what is bound already, by `+=`."""


@dataclass
class _Source:
    """The statements of a notebook, and what it lacks."""

    units: list[_Unit] = field(default_factory=list)
    cells: dict[str, int] = field(default_factory=dict)
    """Numbers of the cells that are there, by grade id."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """What is wrong with a cell that is no Python, by grade id."""
    problem: str = ""
    """What is wrong with the whole; empty if it can be read."""

    def defined_in(self, exercise: str) -> list[str]:
        """Return the names that an exercise's own cell defines."""
        units = [u for u in self.units if u.place[0] == self.cells[exercise] and not u.is_loose]
        return sorted({name for unit in units for name in unit.binds})

    def needed(self, names: Iterable[str], borrowed: Iterable[str]) -> tuple[list[_Unit], set[str]]:
        """Return the statements that names depend on, in order, and what of `borrowed` they use.

        Raises:
            _NotFound: If a name is bound nowhere.

        """
        borrowed, wanted = set(borrowed), list(names)
        found: dict[tuple[int, int], _Unit] = {}
        lent, seen = set(), set()
        while wanted:
            name = wanted.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in borrowed:
                lent.add(name)
                continue
            binding = self._binding(name)
            if not binding and not hasattr(builtins, name):
                raise _NotFound(name)
            for unit in binding:
                if unit.is_loose:
                    raise _NotFound(name, is_loose=True)
                found[unit.place] = unit
                wanted.extend(unit.uses)
        return [found[place] for place in sorted(found)], lent

    def _binding(self, name: str) -> list[_Unit]:
        """Return what binds a name when the notebook has run: the last that does, and additions."""
        units = [unit for unit in self.units if name in unit.binds]
        start = max((i for i, unit in enumerate(units) if not unit.adds), default=0)
        if not units:
            return [unit for unit in self.units if "*" in unit.binds]
        return units[start:]


class _NotFound(Exception):
    def __init__(self, name: str, is_loose: bool = False):
        where = (
            "which the notebook sets in a loop, a call or the like"
            if is_loose
            else "which the notebook does not define"
        )
        super().__init__(f"it uses `{name}`, {where}: write it as a function, or pass it in")


def _read(notebook: Path) -> _Source:
    source = _Source()
    if not notebook.is_file():
        source.problem = f"there is no notebook {notebook.name}"
        return source
    try:
        cells = nbformat.read(notebook, as_version=4).cells
    except Exception as error:  # nbformat has many, of several packages
        source.problem = f"{notebook.name} cannot be read: {_first_line(error)}"
        return source
    for number, cell in enumerate(cells):
        about = cell.metadata.get("nbgrader", {})
        grade_id = about.get("grade_id", f"cell {number + 1}")
        source.cells[grade_id] = number
        if cell.cell_type != "code" or about.get("grade"):
            continue
        try:
            source.units += _units(_python(cell.source), number)
        except (SyntaxError, ValueError) as error:
            where = f" in line {error.lineno}" if isinstance(error, SyntaxError) else ""
            said = error.msg if isinstance(error, SyntaxError) else _first_line(error)
            source.unreadable[grade_id] = f"its cell is not Python{where}: {said}"
    return source


def _python(cell: str) -> str:
    """Return a cell without IPython's magics."""
    try:
        ast.parse(cell)
        return cell
    except SyntaxError:
        from IPython.core.inputtransformer2 import TransformerManager

        return TransformerManager().transform_cell(cell)


def _units(text: str, cell: int) -> Iterator[_Unit]:
    lines = text.splitlines()
    statements = ast.parse(text).body
    end = 0
    for index, statement in enumerate(statements):
        decorators = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(decorator.lineno for decorator in decorators)]) - 1
        if first < end:  # on the line of the one before, after a semicolon
            first = end - 1
        last = statement.end_lineno or statement.lineno
        begin = first
        while begin > end and lines[begin - 1].startswith("#"):
            begin -= 1
        shared = any(
            other is not statement and other.lineno <= last and (other.end_lineno or 0) > first
            for other in statements[max(0, index - 1) : index + 2]
        )
        code = ast.unparse(statement) if shared else "\n".join(lines[first:last])
        comment = "" if shared else "".join(f"{line}\n" for line in lines[begin:first])
        kept = [line for line in code.splitlines() if line.strip() not in _BLANKS]
        end = max(end, last)
        binds, uses = _names(ast.unparse(statement))
        if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
            binds = frozenset({"*"})
        yield _Unit(
            (cell, index),
            comment + "\n".join(kept),
            binds,
            uses,
            is_loose=not isinstance(
                statement,
                ast.FunctionDef
                | ast.AsyncFunctionDef
                | ast.ClassDef
                | ast.Import
                | ast.ImportFrom
                | ast.Assign
                | ast.AnnAssign
                | ast.AugAssign
                | ast.If
                | ast.Try,
            ),
            adds=isinstance(statement, ast.AugAssign),
        )


def _names(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that a statement binds, and those that it looks up, at the top level."""
    top = symtable.symtable(text, "cell", "exec")
    binds = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    uses = {s.get_name() for s in top.get_symbols() if s.is_referenced()}
    scopes = list(top.get_children())
    while scopes:
        scope = scopes.pop()
        scopes.extend(scope.get_children())
        uses |= {s.get_name() for s in scope.get_symbols() if s.is_global()}
    return frozenset(binds), frozenset(uses)


def _first_line(error: BaseException) -> str:
    said = str(error).strip().splitlines()
    return said[0].rstrip(".") if said else type(error).__name__


# A chapter of the package ----------------------------------------------------------------------


class _Chapter:
    """The pieces of one notebook on their way into the package."""

    def __init__(self, folder: Path, pieces: list[Piece]):
        self.folder, self.pieces = folder, pieces
        number, _, self.topic = folder.name.partition("_")
        self.notebook = folder / f"{self.topic}.ipynb"
        self.source = _read(self.notebook)
        self.numbers: dict[str, str] = {}
        self.why: dict[str, str] = {}
        """Why a piece is borrowed, by exercise; a piece that is not here is the student's."""

    @property
    def fingerprint(self) -> str:
        """What the outcomes depend on: the notebook's code, its checks, and what is asked of it."""
        source = self.source
        texts = [(unit.place, unit.text) for unit in source.units]
        said = [self.pieces, texts, sorted(source.cells), source.unreadable, source.problem]
        hashed = hashlib.sha256(repr(said).encode())
        for path in (self.folder / "checks.py", self.folder / "mistakes.py", Path(__file__)):
            with contextlib.suppress(OSError):
                hashed.update(path.read_bytes())
        return hashed.hexdigest()

    @property
    def borrowed(self) -> dict[str, str]:
        """The names that are borrowed, each with the place of what is borrowed."""
        return {
            name: place
            for piece in self.pieces
            if piece.exercise in self.why
            for name, place in piece.names.items()
        }

    def recall(self, library: Library | None) -> bool:
        """Take over the outcomes of the last time, if nothing has changed; say whether it has."""
        if library is None or library.notebooks.get(self.folder.name) != self.fingerprint:
            return False
        for outcome in library.outcomes:
            if outcome.assignment == self.folder.name:
                self.numbers[outcome.exercise] = outcome.number
                if not outcome.is_yours:
                    self.why[outcome.exercise] = outcome.why
        return True

    def verify(self, checker: "_Checker") -> None:
        """Find out which pieces are the student's: what passes its checks, as the package has it.

        A piece may use another piece that turns out to be borrowed. It is then checked again,
        with what is borrowed.
        """
        self.why = {p.exercise: why for p in self.pieces if (why := self._problem_of(p))}
        self.numbers = checker.numbers(self.folder)
        passed: dict[str, str] = {}
        while True:
            failed = {}
            for piece in self.pieces:
                if piece.exercise in self.why:
                    continue
                try:
                    code = self.code_of(piece)
                except _NotFound as reason:
                    failed[piece.exercise] = str(reason)
                    continue
                if passed.get(piece.exercise) == code:
                    continue
                if why := checker.check(self.folder, piece.exercise, code):
                    failed[piece.exercise] = why
                else:
                    passed[piece.exercise] = code
            if not failed:
                return
            self.why |= failed

    def code_of(self, piece: Piece) -> str:
        """Return what a piece is checked as: all that its cell defines, and what that depends on.

        Raises:
            _NotFound: If the piece depends on what the notebook does not define.

        """
        names = list(piece.names)
        self.source.needed(names, self.borrowed)
        for name in self.source.defined_in(piece.exercise):
            with contextlib.suppress(_NotFound):  # then its own checks, if it has any, say so
                self.source.needed([name], self.borrowed)
                names.append(name)
        units, lent = self.source.needed(names, self.borrowed)
        borrowed = [_import(name, self.borrowed[name]) for name in sorted(lent)]
        return "\n".join([*borrowed, *_laid_out(units)])

    def module(self, made: str) -> str:
        """Return the chapter as the text of a module."""
        own = [piece for piece in self.pieces if piece.exercise not in self.why]
        place = f"exercises/{self.folder.name}/{self.notebook.name}"
        head = [
            f'"""{self.topic.capitalize()}, from {place}{made and f", {made[:10]}"}.',
            "",
            "Made by `classroom mine`. What you change here is lost the next time.",
            '"""',
        ]
        body = []
        for piece in self.pieces:
            if piece.exercise in self.why:
                number = self.numbers.get(piece.exercise, piece.exercise)
                about = f"Borrowed, exercise {number}: {_printable(self.why[piece.exercise])}"
                body += ["", *(f"# {line}" for line in textwrap.wrap(about, 96))]
                body += [_import(name, place) for name, place in piece.names.items()]
        units, _ = self.source.needed([n for piece in own for n in piece.names], self.borrowed)
        return "\n".join([*head, *body, "", *_laid_out(units)]).rstrip() + "\n"

    def outcomes(self, refused: Mapping[str, str], used: Iterable[str]) -> list[Outcome]:
        """Return what became of each piece."""
        found = []
        for piece in self.pieces:
            why = self.why.get(piece.exercise, "")
            if not why:
                reasons = [
                    f"{n} is not used in models: {refused[n]}" for n in piece.names if n in refused
                ]
                why = "; ".join(reasons)
            found.append(
                Outcome(
                    piece.assignment,
                    piece.exercise,
                    self.numbers.get(piece.exercise, ""),
                    tuple(piece.names),
                    piece.exercise not in self.why,
                    why,
                    tuple(name for name in piece.names if name in used),
                )
            )
        return found

    def _problem_of(self, piece: Piece) -> str:
        if self.source.problem:
            return self.source.problem
        if piece.exercise in self.source.unreadable:
            return self.source.unreadable[piece.exercise]
        if piece.exercise not in self.source.cells:
            return (
                f"{self.notebook.name} has no cell `{piece.exercise}`: "
                "it may come from another release"
            )
        return ""


def _import(name: str, place: str) -> str:
    module, _, theirs = place.rpartition(".")
    return f"from {module} import {theirs}" + (f" as {name}" if theirs != name else "")


def _laid_out(units: Iterable[_Unit]) -> list[str]:
    """Return the lines of statements, with two empty lines around functions and classes."""
    lines: list[str] = []
    was_long = False
    for unit in units:
        is_long = "\n" in unit.text
        lines += [""] * (2 if is_long or was_long else 0) + [unit.text]
        was_long = is_long
    return lines


def _printable(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


# The package ------------------------------------------------------------------------------------


def _write(
    package: Path,
    chapters: list[_Chapter],
    used: Iterable[str] = (),
    refused: Mapping[str, str] | None = None,
    made: str = "",
) -> Library:
    """Write chapters, what holds them together, and last the record."""
    used = tuple(used)
    outcomes = [o for chapter in chapters for o in chapter.outcomes(refused or {}, used)]
    texts = {f"{chapter.topic}.py": chapter.module(made) for chapter in chapters}
    texts["__init__.py"] = _init(chapters, outcomes, used)
    notebooks = {chapter.folder.name: chapter.fingerprint for chapter in chapters}
    library = Library(made, tuple(outcomes), notebooks)
    texts[_RECORD] = json.dumps(library.to_json(), indent=1, ensure_ascii=False) + "\n"
    package.mkdir(exist_ok=True)
    # Two texts of one second and one length are one to Python's cache.
    shutil.rmtree(package / "__pycache__", ignore_errors=True)
    for path in package.glob("*.py"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        (package / name).write_text(text, encoding="utf-8")
    return library


def _init(chapters: list[_Chapter], outcomes: list[Outcome], used: tuple[str, ...]) -> str:
    names = {
        chapter.topic: [name for piece in chapter.pieces for name in piece.names]
        for chapter in chapters
    }
    yours = [name for o in outcomes if o.is_yours for name in o.names]
    borrowed = {name: _printable(o.why) for o in outcomes if not o.is_yours for name in o.names}
    lines = [
        '"""Your own library, made by `classroom mine` from your notebooks.',
        "",
        "A piece that did not pass its checks is borrowed from the reference; `BORROWED` says why.",
        "`DecoderOnly` is a whole model that computes by your pieces. It takes the weights of any",
        "trained model of its kind.",
        '"""',
        "",
        "from groundup.assembled import assemble",
        "from groundup.parts import Parts",
        "",
        *(
            line
            for topic, own in names.items()
            for line in [f"from {PACKAGE}.{topic} import (", *(f"    {name}," for name in own), ")"]
        ),
        "",
        "YOURS = [",
        *(f"    {json.dumps(name)}," for name in yours),
        "]",
        "BORROWED = {",
        *(f"    {name!r}: {why!r}," for name, why in borrowed.items()),
        "}",
        "",
        "DecoderOnly = assemble(",
        *(["    Parts(", *(f"        {name}={name}," for name in used), "    )"] if used else []),
        *([] if used else ["    Parts()  # none of yours yet"]),
        ")",
    ]
    return "\n".join(lines) + "\n"


def _try_in_models(
    package: Path, names: Iterable[str], seconds: float
) -> tuple[list[str], dict[str, str]]:
    """Ask the reference which names of a package its models can compute by, and why not others.

    It is another program, because the classroom does not know what a transformer is.
    """
    command = [sys.executable, "-m", _ASSEMBLER, str(package)]
    # Parts may be tried one after the other, each in the time of an exercise.
    limit = seconds + _START_SECONDS
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, env=_environment()
        )
        found = json.loads(answer.stdout.splitlines()[-1])
        return found["used"], found["refused"]
    except subprocess.TimeoutExpired:
        why = f"a model with your pieces did not answer within {limit:.0f} s"
    except (IndexError, ValueError):
        why = _last_line(answer.stderr)
    return [], dict.fromkeys(names, why)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it ended without a word"


def _environment() -> dict[str, str]:
    # A window would wait for somebody to close it.
    return os.environ | {"MPLBACKEND": "Agg", "PYTHONDONTWRITEBYTECODE": "1"}


# Checks in a process of their own ---------------------------------------------------------------


class _Checker:
    """Runs code and its checks in another process, which is replaced when it does not answer."""

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._folder = tempfile.TemporaryDirectory(prefix="classroom-mine-")
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()

    @property
    def package(self) -> Path:
        """Where the code under check finds the package, as far as it has come."""
        return Path(self._folder.name) / PACKAGE

    def __enter__(self) -> "_Checker":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._folder.cleanup()

    def numbers(self, folder: Path) -> dict[str, str]:
        """Return the number of each exercise, by its name; none if the checks cannot be read."""
        answer = self._ask({"folder": str(folder)}, _START_SECONDS)
        return answer if isinstance(answer, dict) else {}

    def check(self, folder: Path, exercise: str, code: str) -> str:
        """Return what is wrong with the code as an answer to an exercise; empty if nothing is."""
        if self._process is None:
            self.numbers(folder)  # what starts slowly has started before the time counts
        request = {"folder": str(folder), "exercise": exercise, "code": code}
        return str(self._ask(request, self._seconds))

    def _ask(self, request: dict[str, str], seconds: float) -> Any:
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            answer = self._answers.get(timeout=seconds)
        except queue.Empty:
            self._end()
            return f"its code or its checks did not end within {seconds:.0f} s"
        except OSError:
            answer = ""
        if not answer:
            self._end()
            return "it ended the process that checked it"
        return json.loads(answer)

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", "from classroom.mine import serve; serve()"]
        process = subprocess.Popen(
            [*command, self._folder.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env=_environment(),
        )
        self._process, self._answers = process, queue.SimpleQueue()
        threading.Thread(target=_forward, args=(process, self._answers), daemon=True).start()
        with contextlib.suppress(queue.Empty):  # what does not start does not answer either
            self._answers.get(timeout=_START_SECONDS)
        return process

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._process = None


def _forward(process: subprocess.Popen[str], answers: queue.SimpleQueue[str]) -> None:
    assert process.stdout is not None
    with contextlib.suppress(ValueError, OSError):  # closed by the other thread
        for line in process.stdout:
            answers.put(line)
    answers.put("")


def serve() -> None:
    """Answer requests until there are no more: one JSON value in a line for each.

    This is the process in which code is checked. What the code prints goes nowhere.
    """
    sys.path.insert(0, sys.argv[1])
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nowhere, stream)
    print("ready", file=answers, flush=True)
    for line in requests:
        print(json.dumps(_answer(**json.loads(line))), file=answers, flush=True)


def _answer(folder: str, exercise: str = "", code: str = "") -> Any:
    os.chdir(folder)
    try:
        if not exercise:
            return {name: about.number for name, (about, _) in load_checks(Path(folder)).items()}
        return _problem_of_code(Path(folder), exercise, code)
    except (Exception, SystemExit) as error:  # code of a student's may raise anything
        return f"it raised {type(error).__name__}: {_first_line(error)}"


def _problem_of_code(folder: Path, exercise: str, code: str) -> str:
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        del sys.modules[name]  # it has grown since
    module = ModuleType("checked")
    sys.modules[module.__name__] = module
    file = f"<{exercise}>"
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    exec(compile(code, file, "exec"), module.__dict__)
    report = run_checks(folder, exercise, LocalSubject(module.__dict__))
    if report.earned == report.points:
        return ""
    said = report.messages[0].splitlines()[0]
    if report.earned == 0 and "is not written yet" in said:
        return said.partition(". ")[0]
    return textwrap.shorten(f"{report.earned} of {report.points} points: {said}", 200)
