"""Answers to exercises, kept as the text of a cell: named mistakes and correct variants.

A mistake is a correct cell with a change, and a sentence that says what is wrong. The correct cell
is written once. A row below it replaces one text of the cell by another:

    class SoftLookup(Correct, exercise="soft_lookup"):
        def soft_lookup(query, key, value, temperature):
            scores = query @ key.mT
            return (scores / temperature).softmax(dim=-1) @ value


    TimesTemperature = SoftLookup.but("scores / temperature", "scores * temperature")
    '''The scores are multiplied by the temperature: divide by it.'''

The old text must occur once in the cell, or as often as `times=` says. A `…` in it stands for the
shortest text that matches, and at its end for the rest of the line. Further lines of a text are
indented like the line on which the old text begins, a text that begins with a line break is
dedented, and indented lines that become empty are removed. `.but(…).but(…)` makes both changes.

For larger changes, a class defines the functions, methods or classes that differ; each replaces the
one with the same name, wherever in the cell it is:

    class AlwaysCold(SoftLookup):
        '''The best key always takes all; only at temperature 0 does it.'''

        def soft_lookup(query, key, value, temperature):
            return value[(query @ key.mT).argmax(dim=-1)]

Such a class may also begin with texts to replace, `swaps = {"old": "new"}`. A class that derives
from `Mistake` itself and has `swaps` changes the cell of the solution, which
`class SoftLookup(Correct, exercise="soft_lookup"): ...` stands for as well. Without `swaps` it is
the whole cell, as a `Variant` always is.

Both files are read as text. The code above the first class runs before each cell, like the first
cell of the notebook. If an exercise requires files with the notebook, `files=` names a function in
the same file: it takes the bytes of the correct files by name, and returns those that are submitted
with this answer.
"""

import ast
import functools
import itertools
import linecache
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

Files = Mapping[str, bytes]
ChangeFiles = Callable[[Files], Files]


class Mistake:
    """A wrong answer that students really give."""

    def __init_subclass__(cls, exercise: str, files: ChangeFiles | None = None):
        super().__init_subclass__()


class Variant:
    """A correct answer that differs from the solution."""

    def __init_subclass__(cls, exercise: str, files: ChangeFiles | None = None):
        super().__init_subclass__()


class Correct:
    """A correct cell from which mistakes are derived."""

    def __init_subclass__(cls, exercise: str = "", files: ChangeFiles | None = None):
        super().__init_subclass__()

    @classmethod
    def but(
        cls, old: str = "", new: str = "", *, times: int = 1, files: ChangeFiles | None = None
    ) -> type["Correct"]:
        """Return a mistake that replaces a text of this cell; the string below it explains it.

        Args:
            old: A text of the cell; omitted if only files change.
            new: Its replacement.
            times: How often the old text occurs.
            files: Changes the files that are submitted with it.

        """
        return type(cls.__name__, (cls,), {}, files=files)


@dataclass(frozen=True)
class Answer:
    """One way to fill in an exercise's cell.

    Attributes:
        name: The class's name, such as `NoScale`.
        exercise: Name of the exercise it answers.
        explanation: What is wrong with it, or what is different, in a sentence.
        cell: Python source of the cell.
        prelude: Python source that runs before it.
        change_files: Name of the function of the prelude that changes the files submitted with it;
            empty if they are the correct ones.

    """

    name: str
    exercise: str
    explanation: str
    cell: str
    prelude: str = ""
    change_files: str = ""

    @property
    def title(self) -> str:
        """The name in words: `NoScale` reads `no scale`."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?=[A-Z][a-z])\B", " ", self.name).lower()

    @functools.cached_property
    def namespace(self) -> dict[str, Any]:
        """What the cell defines, after running it."""
        filename = f"<{self.exercise}: {self.name}>"
        source = f"{self.prelude}\n{self.cell}"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        namespace: dict[str, Any] = {"__name__": self.name}
        exec(compile(source, filename, "exec"), namespace)
        return namespace

    def submitted(self, correct: Files) -> dict[str, bytes]:
        """Return the files submitted with it, by name, given the correct ones."""
        if not self.change_files:
            return dict(correct)
        return dict(self.namespace[self.change_files](correct))


def files_beside(folder: Path, *answers: Answer) -> dict[str, bytes]:
    """Return the files submitted along with a notebook that holds some answers, by name.

    Args:
        folder: The assignment's solutions; the correct files are those in `handed_in/`, which is
            not released.
        answers: Change the files one after the other.

    """
    files = {path.name: path.read_bytes() for path in sorted(folder.glob("handed_in/*"))}
    for answer in answers:
        files = answer.submitted(files)
    return files


def load_answers(path: Path) -> list[Answer]:
    """Read the mistakes or the variants of an assignment.

    Args:
        path: A `mistakes.py` or `variants.py`.

    Returns:
        One answer per class, in the order of the file; none if there is no such file.

    Raises:
        ValueError: If the file is not valid Python, if a class does not name its exercise or has no
            docstring, or if a mistake changes a text that is not there, or changes nothing.

    """
    return _read(path)[0]


def load_correct(path: Path) -> list[Answer]:
    """Read the correct cells from which the mistakes of a file derive, in the order of the file."""
    return _read(path)[1]


def _read(path: Path) -> tuple[list[Answer], list[Answer]]:
    """Read the answers of a file, and the correct cells in it."""
    if not path.exists():
        return [], []
    used = [file for file in (path, _notebook(path)) if file.exists()]
    versions = ((status.st_mtime_ns, status.st_size) for status in map(Path.stat, used))
    # Copies, because an answer caches the namespace of its cell, which calls may change.
    answers, correct = _read_version(path.resolve(), *versions)
    return [replace(answer) for answer in answers], [replace(answer) for answer in correct]


def _notebook(path: Path) -> Path:
    """Return the text of the notebook beside a file: `01_attention` has `attention.py`."""
    return path.parent / f"{path.resolve().parent.name.partition('_')[2]}.py"


@functools.lru_cache(maxsize=64)
def _read_version(path: Path, *_: tuple[int, int]) -> tuple[list[Answer], list[Answer]]:
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    try:
        tree = ast.parse(source, filename=str(path))
    except SyntaxError as error:
        raise ValueError(f"{path.name}, line {error.lineno}: {error.msg}") from None
    first = next((node.lineno for node in tree.body if isinstance(node, ast.ClassDef)), 1)
    prelude = "\n".join(lines[: first - 1])
    known: dict[str, Answer] = {}
    answers, correct = [], []
    for node, below in itertools.zip_longest(tree.body, tree.body[1:]):
        try:
            read = _of_class(node, lines) or _of_row(node, below)
            if read is None:
                continue
            answer, base, swaps = read
            answer = _put_together(replace(answer, prelude=prelude), base, swaps, known, path)
        except ValueError as error:
            where = f"{path.name}, line {node.lineno}: {_defined(node)}"
            raise ValueError(f"{where} {error}") from None
        known[answer.name] = answer
        (correct if base == "Correct" else answers).append(answer)
    return answers, correct


# What a class or a row specifies: an answer whose cell is only what is written there, the name of
# its base, and the texts of the base to replace, with the number of times that each occurs.
_Read = tuple[Answer, str, list[tuple[str, str, int]]]


def _of_class(node: ast.stmt, lines: Sequence[str]) -> _Read | None:
    if not isinstance(node, ast.ClassDef):
        return None
    explanation, body, start, swaps = ast.get_docstring(node), node.body, _first(node.body[0]), {}
    if explanation is not None:
        start, body = body[0].end_lineno, body[1:]
    match body:
        case [ast.Assign(targets=[ast.Name(id="swaps")], value=value) as line, *body]:
            start, swaps = line.end_lineno, ast.literal_eval(value)
        case [ast.Expr(ast.Constant())]:
            body = []
    cell = textwrap.dedent("\n".join(lines[start : node.end_lineno])).strip() + "\n" if body else ""
    exercise = getattr(_named(node, "exercise"), "value", None)
    exercise = exercise if isinstance(exercise, str) else ""
    answer = Answer(node.name, exercise, _one_line(explanation), cell, "", _files(node))
    base = getattr(node.bases[0], "id", "") if node.bases else ""
    return answer, base, [(old, new, 1) for old, new in swaps.items()]


def _of_row(node: ast.stmt, below: ast.stmt | None) -> _Read | None:
    call, steps = getattr(node, "value", None), []
    while isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        steps.insert(0, call)
        call = call.func.value
    if not steps or steps[0].func.attr != "but" or not isinstance(call, ast.Name):
        return None
    swaps, files = [], "".join(map(_files, steps))
    for step in steps:
        texts = [ast.literal_eval(argument) for argument in step.args]
        if len(texts) == 2:
            swaps.append((*texts, getattr(_named(step, "times"), "value", 1)))
        elif texts or not files:
            raise ValueError("must have an old and a new text")
    explanation = getattr(getattr(below, "value", None), "value", "")
    return Answer(_defined(node), "", _one_line(explanation), "", "", files), call.id, swaps


def _named(node: ast.ClassDef | ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in node.keywords if keyword.arg == name), None)


def _files(node: ast.ClassDef | ast.Call) -> str:
    return getattr(_named(node, "files"), "id", "")


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _put_together(
    answer: Answer,
    base: str,
    swaps: Sequence[tuple[str, str, int]],
    known: Mapping[str, Answer],
    path: Path,
) -> Answer:
    """Make the whole cell of an answer from its base and its changes."""
    is_correct, origin = base == "Correct", known.get(base)
    if not origin and base not in ("", "Mistake", "Variant", "Correct"):
        raise ValueError(f"derives from {base}, which is not defined above it")
    exercise = origin.exercise if origin else answer.exercise
    if not exercise or not (is_correct or answer.explanation):
        raise ValueError("must name its exercise and have a docstring that explains it")
    if not (origin or swaps or (is_correct and not answer.cell)):
        return answer
    start = cell = origin.cell if origin else _solution(path, exercise)
    for swap in swaps:
        cell = _with_swap(cell, *swap)
    try:
        cell = _with_definitions(cell, answer.cell)
        is_same = _without_layout(cell) == _without_layout(start)
    except SyntaxError as error:
        raise ValueError(f"is not Python: {error.msg} in {str(error.text).strip()!r}") from None
    if is_same and not (is_correct or answer.change_files):
        raise ValueError("is the same as the cell that it should change")
    return replace(answer, exercise=exercise, cell=cell)


@functools.cache  # most cells are the start of several others
def _without_layout(cell: str) -> str:
    return ast.dump(ast.parse(cell))


def _solution(path: Path, exercise: str) -> str:
    """Return the cell of a solution from the text of the notebook beside a file of answers."""
    notebook = _notebook(path)
    text = notebook.read_text(encoding="utf-8") if notebook.exists() else ""
    for cell in re.split(r"(?m)^# %%", text):
        marker, _, source = cell.partition("\n")
        if f'exercise="{exercise}"' in marker:
            return re.sub(r"(?m)^ *### (BEGIN|END) SOLUTION\n", "", source).strip() + "\n"
    raise ValueError(f"changes the solution of {exercise}, which is not in {notebook.name}")


def _with_swap(cell: str, old: str, new: str, times: int) -> str:
    """Replace a text of a cell."""
    old, new = (textwrap.dedent(t).strip("\n ") if t[:1] == "\n" else t for t in (old, new))
    found = []
    for match in re.finditer(re.escape(re.split("\n|…", old)[0]), cell):
        line = cell[cell.rfind("\n", 0, match.start()) + 1 :]
        indented = "\n" + " " * (len(line) - len(line.lstrip(" ")))
        pattern = re.escape(old.replace("\n", indented))
        pattern = re.sub("…$", ".*", pattern).replace("…", "(?s:.*?)")
        if whole := re.compile(pattern).match(cell, match.start()):
            found.append((whole.start(), whole.end(), indented))
    if len(found) != times:
        raise ValueError(f"replaces {old!r}, which occurs {len(found)} times, not {times}")
    for start, end, indented in reversed(found):
        cell = cell[:start] + new.replace("\n", indented) + cell[end:]
    return re.sub(r"(?m)^ +\n", "", cell)


def _with_definitions(cell: str, definitions: str) -> str:
    """Replace each definition of a cell that has the name of a new one."""
    new = definitions.splitlines()
    for node in ast.parse(definitions).body:
        name, tree = _defined(node), ast.parse(cell)
        found = [n for n in ast.walk(tree) if _defined(n) == name and isinstance(n, ast.stmt)]
        found = [old for old in found if old in tree.body or not isinstance(old, ast.Assign)]
        if not name or len(found) != 1:
            raise ValueError(
                f"defines {name!r}, which its cell defines {len(found)} times, not once"
            )
        old = found[0]
        text = textwrap.indent("\n".join(new[_first(node) : node.end_lineno]), " " * old.col_offset)
        lines = cell.splitlines()
        lines[_first(old) : old.end_lineno] = text.splitlines()
        cell = "\n".join(lines) + "\n"
    return cell


def _defined(node: ast.AST) -> str:
    """Return the name that a statement defines, or an empty string."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name
    return ""


def _first(node: ast.stmt) -> int:
    """Return the index of the first line of a statement, its decorators included."""
    return min(n.lineno for n in [node, *getattr(node, "decorator_list", [])]) - 1
