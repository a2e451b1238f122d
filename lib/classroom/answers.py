"""Answers to exercises, kept as the text of a cell: named mistakes and other right ways.

A mistake is a class whose body is the cell that a student who makes it would have written, and
whose docstring says in a sentence what is wrong. A variant is the same for a right answer that
looks different. Both files are read as text; what stands above the first class runs before each
cell, as the first cell of the notebook does.

    class NoScale(Mistake, exercise="scaled_dot_product_attention"):
        '''The scores are never divided by the square root of d_head.'''

        def scaled_dot_product_attention(query, key, value):
            ...

Where an exercise wants files beside the notebook, `files=` names a function of the same file: given
the bytes of the right files by name, it returns those that are handed in with this answer instead.

    class NoWeights(Mistake, exercise="capstone", files=without_weights):
        ...
"""

import ast
import functools
import linecache
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

Files = Mapping[str, bytes]
ChangeFiles = Callable[[Files], Files]


class Mistake:
    """A wrong answer that people really give."""

    def __init_subclass__(cls, exercise: str, files: ChangeFiles | None = None):
        super().__init_subclass__()


class Variant:
    """A right answer, differently written."""

    def __init_subclass__(cls, exercise: str, files: ChangeFiles | None = None):
        super().__init_subclass__()


@dataclass(frozen=True)
class Answer:
    """One way to fill in an exercise's cell.

    Attributes:
        name: The class's name, such as `NoScale`.
        exercise: Name of the exercise it answers.
        explanation: What is wrong with it, or what is different, in a sentence.
        cell: Python source of the cell.
        prelude: Python source that runs before it.
        change_files: Name of the function of the prelude that changes the files which are handed in
            with it; empty if they are the right ones.

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
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", self.name).lower()

    @functools.cached_property
    def namespace(self) -> dict[str, Any]:
        """What the cell defines, after running it."""
        filename = f"<{self.exercise}: {self.name}>"
        source = f"{self.prelude}\n{self.cell}"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        namespace: dict[str, Any] = {"__name__": self.name}
        exec(compile(source, filename, "exec"), namespace)
        return namespace

    def handed_in(self, right: Files) -> dict[str, bytes]:
        """Return the files that are handed in with it, by name, given the right ones."""
        if not self.change_files:
            return dict(right)
        return dict(self.namespace[self.change_files](right))


def files_beside(folder: Path, *answers: Answer) -> dict[str, bytes]:
    """Return what is handed in beside a notebook with some answers, by name.

    Args:
        folder: The assignment's solutions; the right files are those in `handed_in/`, which is not
            released.
        answers: Where two of them change a file, the last does.

    """
    files = {path.name: path.read_bytes() for path in sorted(folder.glob("handed_in/*"))}
    for answer in answers:
        files = answer.handed_in(files)
    return files


def load_answers(path: Path) -> list[Answer]:
    """Read the mistakes or the variants of an assignment.

    Args:
        path: A `mistakes.py` or `variants.py`.

    Returns:
        One answer per class, in the order of the file; none if there is no such file.

    Raises:
        ValueError: If the file is no Python, or if a class does not say which exercise it
            answers, or has no docstring.

    """
    if not path.exists():
        return []
    status = path.stat()
    found = _read_answers(path.resolve(), status.st_mtime_ns, status.st_size)
    # Copies, because an answer keeps what its cell defined, and what that changed since.
    return [replace(answer) for answer in found]


@functools.lru_cache(maxsize=64)
def _read_answers(path: Path, changed: int, size: int) -> tuple[Answer, ...]:
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    try:
        tree = ast.parse(source, filename=str(path))
    except SyntaxError as error:
        raise ValueError(f"{path.name}, line {error.lineno}: {error.msg}") from None
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    prelude = "\n".join(lines[: classes[0].lineno - 1]) if classes else ""
    return tuple(_read_answer(node, lines, prelude, path) for node in classes)


def _read_answer(node: ast.ClassDef, lines: list[str], prelude: str, path: Path) -> Answer:
    named = {keyword.arg: keyword.value for keyword in node.keywords}
    exercise = getattr(named.get("exercise"), "value", None)
    explanation = ast.get_docstring(node)
    if not isinstance(exercise, str) or not explanation:
        raise ValueError(
            f"{path.name}, line {node.lineno}: {node.name} must name its exercise and say in a "
            "docstring what is special about it"
        )
    after_docstring = node.body[0].end_lineno
    cell = textwrap.dedent("\n".join(lines[after_docstring : node.end_lineno])).strip() + "\n"
    change_files = getattr(named.get("files"), "id", "")
    return Answer(node.name, exercise, " ".join(explanation.split()), cell, prelude, change_files)
