"""Turns a student's notebooks into a package, `mine`, that later chapters and models build on.

What an exercise asks for is taken from the notebook with all that it depends on, run apart from the
notebook, and checked. If every check passes, it is in the package as it was written; if not, the
package borrows it from the reference library and says why. So a mistake in one chapter does not
sink the next, and nothing that is borrowed is ever called the student's own.

For the student alone: grading never looks at the package, and cannot import it.
"""

import ast
import builtins
import contextlib
import hashlib
import importlib
import json
import linecache
import multiprocessing
import os
import re
import shutil
import subprocess
import symtable
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat

from classroom.course import PREPARED
from classroom.student.work import notebooks_of

PACKAGE = "mine"
COLAB_COPIES = "Colab Notebooks"
"""Folder beside the course in which Colab saves copies; the newest of each notebook counts."""
SECONDS_PER_EXERCISE = 60.0
"""Time for one exercise, from running its code to its last check."""
_START_SECONDS = 120.0
"""Time for a process to import torch on a machine that is busy."""
_RECORD = "pieces.json"
_MODELS = "groundup.own_parts.at_work"
_BLANKS = ("# YOUR CODE HERE", "### BEGIN SOLUTION", "### END SOLUTION")


@dataclass(frozen=True)
class Piece:
    """What the package takes from one exercise.

    Attributes:
        assignment: Folder of its notebook, such as `04_blocks`.
        exercise: Name of the exercise.
        names: What it defines, each with the full name of what is borrowed instead.

    """

    assignment: str
    exercise: str
    names: Mapping[str, str]


_BORROWED = {
    "00_preliminaries": {
        "stable_softmax": "from groundup.own_parts.parts import stable_softmax, log_softmax\n"
        "from torch import logsumexp",
        "split_heads": "from groundup.core.multihead import split_heads, merge_heads\n"
        "from groundup.core.attention import dot_scores as head_scores",
        "activations": "from torch.nn.functional import silu, softplus, gelu\n"
        "from torch import tanh as tanh_by_sigmoid\n"
        "from groundup.core.layers import gelu_tanh",
    },
    "01_attention": {
        "scaled_dot_product_attention": "from groundup.variants.functional "
        "import scaled_dot_product_attention"
    },
    "02_masking": {
        name: f"from groundup.core.masks import {name}"
        for name in ("causal_mask", "padding_mask", "masked_softmax")
    },
    "03_multihead": {
        "MultiHeadAttention": "from groundup.own_parts.parts import MultiHeadAttention",
        "grouped_query_attention": "from groundup.variants.functional "
        "import grouped_query_attention",
    },
    "04_blocks": {
        "layer_norm": "from groundup.core.layers import layer_norm",
        "rms_norm": "from groundup.core.layers import rms_norm",
        "feed_forward": "from groundup.variants.functional import feed_forward, swiglu",
        "TransformerBlock": "from groundup.own_parts.parts import TransformerBlock",
    },
    "05_positions": {
        "sinusoidal_positions": "from groundup.core.positions "
        "import sinusoidal_table as sinusoidal_positions",
        "learned_positions": "from groundup.variants.functional import learned_positions",
        "apply_rotary": "from groundup.variants.functional import apply_rotary",
        "alibi_bias": "from groundup.core.positions import alibi_slopes\n"
        "from groundup.variants.functional import alibi_bias",
    },
    "06_architectures": {
        "shifted_loss": "from groundup.own_parts.parts import shifted_loss",
        "CrossAttention": "from groundup.own_parts.parts import CrossAttention",
        "smoothed_loss": "from groundup.own_parts.parts import smoothed_loss, noam",
    },
    "07_training": {
        name: f"from groundup.own_parts.training_parts import {name}"
        for name in ("adamw_step", "learning_rate", "clip_gradients")
    },
    "08_generation": {
        "next_token": "from groundup.generation.sampling "
        "import temperature as with_temperature, top_k, top_p",
        "cached_attention": "from groundup.own_parts.parts import cached_attention",
    },
}
"""By assignment and exercise, what it defines: the imports that do instead."""


def _full_names(imports: str) -> dict[str, str]:
    lines = [line for line in ast.parse(imports).body if isinstance(line, ast.ImportFrom)]
    return {a.asname or a.name: f"{line.module}.{a.name}" for line in lines for a in line.names}


WHERE = {
    "text": "what `groundup train --library mine` trains and then generates with",
    "learned": "the same, and --set positions=learned --set activation=gelu_tanh",
    "alibi": "the same, and --set positions=alibi",
    "llama": "`groundup generate lib/groundup/pretrained/llama --library mine`",
    "dates": "`groundup generate lib/groundup/pretrained/dates --library mine`",
}
"""The models in which pieces are called."""

PIECES = tuple(
    Piece(assignment, exercise, _full_names(imports))
    for assignment, exercises in _BORROWED.items()
    for exercise, imports in exercises.items()
)
"""What the package is made of, in the order of the course."""


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
        runs: The models in which each of its names was called, as `WHERE` describes them.

    """

    assignment: str
    exercise: str
    number: str
    names: tuple[str, ...]
    is_yours: bool
    why: str = ""
    runs: Mapping[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Library:
    """What the package holds, as its `pieces.json` says.

    Attributes:
        made: When it was made, in ISO form.
        outcomes: What became of each piece.
        notebooks: What was read, by assignment, as a hash of the notebook and its checks.
        said: What each model wrote with the student's pieces.

    """

    made: str
    outcomes: tuple[Outcome, ...]
    notebooks: Mapping[str, str]
    said: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_yours(self) -> int:
        """Number of pieces that are the student's own."""
        return sum(outcome.is_yours for outcome in self.outcomes)

    def to_table(self, changed: Iterable[str] = ()) -> str:
        """Return a table of all pieces, and what to know about them below it.

        Args:
            changed: Assignments whose notebooks are no longer what was read.

        """
        rows = [("exercise", "whose", "function", "called in")]
        for one in self.outcomes:
            place = f"{one.assignment} {one.number}".strip()
            for name in one.names:
                runs = ", ".join(one.runs.get(name, ["-"])) if one.is_yours else ""
                rows.append((place, "yours" if one.is_yours else "borrowed", name, runs))
                place = ""
            rows += [("", "", line, "") for line in textwrap.wrap(one.why, 76)]
        width = max(len(row[0]) for row in rows)
        lines = [f"{row[0]:<{width}}  {row[1]:<8}  {row[2]:<28}  {row[3]}".rstrip() for row in rows]
        if self.num_yours:
            lines += ["", *(f"{name:<8} {about}" for name, about in WHERE.items())]
            if said := self.said.get("dates", ""):
                lines += ["", "`dates` with your functions:"]
                lines += [row for line in said.splitlines() for row in textwrap.wrap(line, 96)]
            next_step = "groundup train --library mine"
        else:
            next_step = "solve an exercise of this list, then run `classroom mine` again"
        about = f"{self.num_yours} of {len(self.outcomes)} exercises are yours"
        return "\n".join(
            [
                *lines,
                "",
                f"{about}, as of {self.made[:16]}",
                *(f"{name} has changed since: run `classroom mine`" for name in changed),
                f"next: {next_step}",
            ]
        )

    def to_json(self) -> dict[str, Any]:
        """Return the library as JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Library":
        """Rebuild what `to_json` returned."""
        outcomes = (Outcome(**{**o, "names": tuple(o["names"])}) for o in record["outcomes"])
        return cls(record["made"], tuple(outcomes), record["notebooks"], record["said"])


def build(
    root: Path | str = ".",
    progress: Callable[[int, int], None] = lambda done, total: None,
    seconds_per_exercise: float = SECONDS_PER_EXERCISE,
    pieces: Iterable[Piece] = PIECES,
) -> Library:
    """Make the package `mine` from the notebooks, or bring it up to date.

    They are those in `work/`, if there is one, and else those in `exercises/`. Notebooks that have
    not changed are not run again.

    Args:
        root: The course's folder, which holds `exercises/`.
        progress: Called with the number of notebooks looked at and the number of notebooks.
        seconds_per_exercise: Time after which an exercise is given up, in seconds.
        pieces: What the package is made of.

    Returns:
        What became of each piece.

    Raises:
        FileNotFoundError: If there is no folder `exercises/`.
        ValueError: If there is a `mine/` that was not made here.

    """
    root, pieces = Path(root).resolve(), tuple(pieces)
    notebooks, package = notebooks_of(root), root / PACKAGE
    if not notebooks.is_dir():
        raise FileNotFoundError(
            f"there is no folder {notebooks}: specify with --root where the course is"
        )
    if package.exists() and not (package / _RECORD).is_file():
        raise ValueError(
            f"{package} was not made by `classroom mine`: move it out of the way first"
        )
    before = _read_record(package)
    chapters = [
        _Chapter(notebooks / name, [piece for piece in pieces if piece.assignment == name])
        for name in dict.fromkeys(piece.assignment for piece in pieces)
    ]
    with tempfile.TemporaryDirectory(prefix="classroom-mine-") as folder:
        growing = Path(folder) / PACKAGE
        for index, chapter in enumerate(chapters, start=1):
            if not chapter.recall(before):
                chapter.verify(folder, seconds_per_exercise)
            # A notebook may import what earlier ones defined, so a package grows with the checks.
            _write(growing, chapters[:index])
            progress(index, len(chapters))
        names = [name for piece in pieces for name in piece.names]
        found = _try_in_models(growing, names, seconds_per_exercise)
    made = datetime.now().astimezone().isoformat(timespec="seconds")
    return _write(package, chapters, found, made)


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
        name: _Chapter(notebooks_of(root) / name, [p for p in PIECES if p.assignment == name])
        for name in library.notebooks
    }
    changed = [name for name, was in library.notebooks.items() if now[name].fingerprint != was]
    return library, changed


def _read_record(package: Path) -> Library | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return Library.from_json(json.loads((package / _RECORD).read_text(encoding="utf-8")))
    return None


@dataclass(frozen=True)
class _Found:
    """What the reference found out about a package."""

    used: list[str] = field(default_factory=list)
    """Names with which models compute."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Names with which they cannot, each with the reason."""
    runs: Mapping[str, list[str]] = field(default_factory=dict)
    """The models in which a name was called."""
    said: Mapping[str, str] = field(default_factory=dict)
    """What each model wrote."""


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
        seen: set[str] = set()
        while wanted:
            name = wanted.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in borrowed:
                continue
            binding = self._binding(name)
            if not binding and not hasattr(builtins, name):
                raise _NotFound(name)
            for unit in binding:
                if unit.is_loose:
                    raise _NotFound(name, is_loose=True)
                found[unit.place] = unit
                wanted.extend(unit.uses)
        return [found[place] for place in sorted(found)], seen & borrowed

    def _binding(self, name: str) -> list[_Unit]:
        """Return what binds a name when the notebook has run: the last that does, and additions."""
        units = [unit for unit in self.units if name in unit.binds]
        start = max((i for i, unit in enumerate(units) if not unit.adds), default=0)
        return units[start:] or [unit for unit in self.units if "*" in unit.binds]


class _NotFound(Exception):
    def __init__(self, name: str, is_loose: bool = False):
        where = "sets in a loop, a call or the like" if is_loose else "does not define"
        super().__init__(
            f"it uses `{name}`, which the notebook {where}: write it as a function, or pass it in"
        )


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
            source.unreadable[grade_id] = f"its cell is not valid Python{where}: {said}"
    return source


def _python(cell: str) -> str:
    """Return a cell without IPython's magics."""
    try:
        ast.parse(cell)
        return cell
    except SyntaxError:
        from IPython.core.inputtransformer2 import TransformerManager

        return TransformerManager().transform_cell(cell)


_CERTAIN = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom),
    *(ast.Assign, ast.AnnAssign, ast.AugAssign, ast.If, ast.Try),
)
"""Statements that bind the same whenever they run."""


def _units(text: str, cell: int) -> Iterator[_Unit]:
    # As Python counts lines: for `splitlines` a separator pasted into a comment ends one, too.
    lines, end = re.split(r"\r\n?|\n", text), 0
    for index, statement in enumerate(ast.parse(text).body):
        decorators = getattr(statement, "decorator_list", [])
        first = min(node.lineno for node in (statement, *decorators)) - 1
        begin, last = first, statement.end_lineno or statement.lineno
        code = "\n".join(lines[first:last])
        if not _is_one_statement(code):  # it shares a line with another, after a semicolon
            code = ast.unparse(statement)
        else:
            while begin > end and lines[begin - 1].startswith("#"):
                begin -= 1
        kept = [line for line in code.split("\n") if line.strip() not in _BLANKS]
        end = last
        binds, uses = _names(ast.unparse(statement))
        if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
            binds = frozenset({"*"})
        is_loose = not isinstance(statement, _CERTAIN)
        adds = isinstance(statement, ast.AugAssign)
        own = "\n".join([*lines[begin:first], *kept])
        yield _Unit((cell, index), own, binds, uses, is_loose, adds)


def _is_one_statement(code: str) -> bool:
    try:
        return len(ast.parse(code).body) == 1
    except SyntaxError:
        return False


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


def newest_notebook(folder: Path) -> Path:
    """Return a student's notebook: that of the assignment's folder, or a newer copy of Colab's.

    Args:
        folder: The assignment's folder, `COURSE/exercises/NUMBER_TOPIC`.

    """
    topic = folder.name.partition("_")[2]
    there = folder / f"{topic}.ipynb"
    copies = folder.parents[2].glob(f"{COLAB_COPIES}/*{topic}*.ipynb")
    found = [path for path in (there, *copies) if path.exists()]
    return max(found, key=lambda path: path.stat().st_mtime_ns, default=there)


# A chapter of the package ----------------------------------------------------------------------


class _Chapter:
    """The pieces of one notebook on their way into the package."""

    def __init__(self, folder: Path, pieces: list[Piece]):
        self.folder, self.pieces = folder, pieces
        self.topic = folder.name.partition("_")[2]
        self.notebook = newest_notebook(folder)
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
        for path in (self.folder / "checks.py", self.folder / PREPARED, Path(__file__)):
            with contextlib.suppress(OSError):
                hashed.update(path.read_bytes())
        return hashed.hexdigest()

    @property
    def borrowed(self) -> dict[str, str]:
        """The names that are borrowed, each with the full name of what is borrowed."""
        pieces = [piece for piece in self.pieces if piece.exercise in self.why]
        return {own: theirs for piece in pieces for own, theirs in piece.names.items()}

    def recall(self, library: Library | None) -> bool:
        """Take the outcomes of the last time, if nothing has changed; return whether it has not."""
        if library is None or library.notebooks.get(self.folder.name) != self.fingerprint:
            return False
        for outcome in library.outcomes:
            if outcome.assignment == self.folder.name:
                self.numbers[outcome.exercise] = outcome.number
                if not outcome.is_yours:
                    self.why[outcome.exercise] = outcome.why
        return True

    def verify(self, path: str, seconds: float) -> None:
        """Find out which pieces are the student's: what passes its checks, as the package has it.

        A piece may use another piece that turns out to be borrowed. It is then checked again,
        with what is borrowed.

        Args:
            path: Where the package is, as far as it has come.
            seconds: Time for one exercise.

        """
        from classroom.exercise.run import load_checks

        self.why = {p.exercise: why for p in self.pieces if (why := self._problem_of(p))}
        with contextlib.suppress(FileNotFoundError, ValueError):
            checks = load_checks(self.folder)
            self.numbers = {name: about.number for name, (about, _) in checks.items()}
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
                if why := _problem_of_code(self.folder, piece.exercise, code, path, seconds):
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
        place = "/".join(self.notebook.parts[-3:])
        lines = [
            f'"""{self.topic.capitalize()}, from {place}{made and f", {made[:10]}"}.',
            "",
            "Made by `classroom mine`. What you change here is lost the next time.",
            '"""',
        ]
        own: list[str] = []
        for piece in self.pieces:
            if piece.exercise not in self.why:
                own += piece.names
                continue
            number = self.numbers.get(piece.exercise, piece.exercise)
            about = f"Borrowed, exercise {number}: {_printable(self.why[piece.exercise])}"
            lines += ["", *(f"# {line}" for line in textwrap.wrap(about, 96))]
            lines += [_import(name, theirs) for name, theirs in piece.names.items()]
        units, _ = self.source.needed(own, self.borrowed)
        return "\n".join([*lines, "", *_laid_out(units)]).rstrip() + "\n"

    def outcomes(self, found: _Found) -> Iterator[Outcome]:
        """Return what became of each piece."""
        refused = found.refused
        for piece in self.pieces:
            refusals = [n for n in piece.names if n in refused]
            about = "; ".join(f"{n} is not used in models: {refused[n]}" for n in refusals)
            yield Outcome(
                piece.assignment,
                piece.exercise,
                self.numbers.get(piece.exercise, ""),
                tuple(piece.names),
                piece.exercise not in self.why,
                self.why.get(piece.exercise, about),
                {name: found.runs[name] for name in piece.names if name in found.runs},
            )

    def _problem_of(self, piece: Piece) -> str:
        why = self.source.problem or self.source.unreadable.get(piece.exercise, "")
        if why or piece.exercise in self.source.cells:
            return why
        return (
            f"{self.notebook.name} has no cell `{piece.exercise}`: it may come from another release"
        )


def _import(name: str, full_name: str) -> str:
    module, _, theirs = full_name.rpartition(".")
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
    found: _Found = _Found(),
    made: str = "",
) -> Library:
    """Write chapters, what holds them together, and last the record."""
    outcomes = [o for chapter in chapters for o in chapter.outcomes(found)]
    texts = {f"{chapter.topic}.py": chapter.module(made) for chapter in chapters}
    texts["__init__.py"] = _init(chapters, outcomes, found)
    notebooks = {chapter.folder.name: chapter.fingerprint for chapter in chapters}
    library = Library(made, tuple(outcomes), notebooks, found.said)
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


_INIT = '''"""Your own library, made by `classroom mine` from your notebooks.

A function that did not pass its checks is borrowed from the course; `BORROWED` says why. One that
passed, but gives a model other numbers, is not used in models; `REFUSED` says why.
`DecoderOnly` is a whole model that computes with your functions. It takes the weights of any
trained model of its kind.
"""

from groundup.own_parts.assembled import assemble
from groundup.variants.functional import Parts

{imports}

YOURS = [
{yours}]
BORROWED = {{
{borrowed}}}
REFUSED = {{
{refused}}}

DecoderOnly = assemble(
    Parts({used})
)
'''


def _init(chapters: list[_Chapter], outcomes: list[Outcome], found: _Found) -> str:
    imports = (
        f"from {PACKAGE}.{chapter.topic} import (\n"
        + "".join(f"    {name},\n" for piece in chapter.pieces for name in piece.names)
        + ")"
        for chapter in chapters
    )
    yours = (name for o in outcomes if o.is_yours for name in o.names)
    borrowed = ((name, _printable(o.why)) for o in outcomes if not o.is_yours for name in o.names)
    parts = "".join(f"\n        {name}={name}," for name in found.used)
    return _INIT.format(
        imports="\n".join(imports),
        yours="".join(f"    {json.dumps(name)},\n" for name in yours),
        borrowed="".join(f"    {name!r}: {why!r},\n" for name, why in borrowed),
        refused="".join(f"    {n!r}: {_printable(why)!r},\n" for n, why in found.refused.items()),
        used=f"{parts}\n    " if parts else "",
    )


def _try_in_models(package: Path, names: Iterable[str], seconds: float) -> _Found:
    """Ask the reference which names of a package its models can compute with, and which do.

    It is another program, because the classroom does not know what a transformer is.
    """
    command = [sys.executable, "-m", _MODELS, str(package)]
    # Parts may be tried one after the other, each in the time of an exercise.
    limit = seconds + _START_SECONDS
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, env=os.environ | _QUIET
        )
        return _Found(**json.loads(answer.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        why = f"a model with your functions did not answer within {limit:.0f} s"
    except (IndexError, ValueError):
        *_, why = ["it ended without a message", *answer.stderr.strip().splitlines()]
    return _Found(refused=dict.fromkeys(names, why))


# Checks in processes of their own ---------------------------------------------------------------

_QUIET = {"MPLBACKEND": "Agg", "PYTHONDONTWRITEBYTECODE": "1"}
"""For code of a student's: a window would wait for somebody to close it."""
_METHODS = multiprocessing.get_all_start_methods()
# It imports torch, without which `status` starts at once.
_RUNS = "classroom.exercise.run"
# A copy of a process that has imported torch starts at once, and nothing is left in it.
_PROCESSES: Any = multiprocessing.get_context("forkserver" if "forkserver" in _METHODS else "spawn")


def _problem_of_code(folder: Path, exercise: str, code: str, path: str, seconds: float) -> str:
    """Return what is wrong with the code as an answer to an exercise; empty if nothing is."""
    if _PROCESSES.get_start_method() == "forkserver":
        _PROCESSES.set_forkserver_preload([__name__, _RUNS])
    ours, theirs = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=_check, args=(theirs, folder, exercise, code, path))
    process.start()
    theirs.close()
    try:
        # What starts slowly has started before the time counts.
        if ours.poll(_START_SECONDS) and ours.recv_bytes() and ours.poll(seconds):
            return ours.recv_bytes().decode()
        return f"its code or its checks did not end within {seconds:.0f} s"
    except EOFError:
        return "it ended the process that checked it"
    finally:
        process.kill()
        process.join()
        ours.close()


def _check(answers: Connection, folder: Path, exercise: str, code: str, path: str) -> None:
    """Check code in this process. What the code prints goes nowhere."""
    sys.path.insert(0, path)
    os.environ |= _QUIET
    os.chdir(folder)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    importlib.import_module(_RUNS)
    answers.send_bytes(b"ready")
    try:
        problem = _found_in(code, folder, exercise)
    except (Exception, SystemExit) as error:  # code of a student's may raise anything
        problem = f"it raised {type(error).__name__}: {_first_line(error)}"
    answers.send_bytes(problem.encode())


def _found_in(code: str, folder: Path, exercise: str) -> str:
    from classroom.calls.local import LocalSubject
    from classroom.exercise.run import run_checks

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
