"""Makes the checks that students get: recorded results replace the code that computes answers.

The released `checks.py` has no bodies of oracles, nothing that stood between `### BEGIN PACKED` and
`### END PACKED`, and nothing that only these used. What oracles and known mistakes return for the
published seed is recorded once, by running everything, and released in `prepared.zip`, which holds
the packed code too.
"""

import ast
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import torch
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor

from classroom.author.guard import OTHER_SEED, Trial
from classroom.author.kill_matrix import run_mistake, version
from classroom.author.notebooks import build_notebook, cell_of
from classroom.calls.files import File
from classroom.calls.local import LocalSubject
from classroom.course import MADE_FROM, PREPARED, PUBLISHED_SEED, is_line, text_file
from classroom.exercise import prepared
from classroom.exercise.answers import Answer, files_beside, load_answers
from classroom.exercise.prepared import SECONDS_TO_RECORD, Recorder
from classroom.exercise.report import Report
from classroom.exercise.run import list_checks, run_checks

_BEGIN, _END = "### BEGIN PACKED", "### END PACKED"
_RUN_PACKED = "exec(packed(__file__, {}), globals())"
_NOTE = (
    "Made by `classroom release`: what is right, and what known mistakes return, comes as data in\n"
    "prepared.zip."
)


# The text --------------------------------------------------------------------------------------


def released_text(source: str) -> tuple[str, list[str]]:
    """Remove the code that computes answers from a file of checks.

    Returns:
        The text to release, and the pieces of code to pack.

    Raises:
        ValueError: If packed code calls an oracle, whose body would then have to be released.

    """
    source, pieces = _without_packed(source)
    source, oracles = _without_bodies(source)
    for piece in pieces:
        if called := _used(ast.parse(piece)) & oracles:
            raise ValueError(f"packed code calls the oracle {', '.join(sorted(called))}")
    return _without_unused(source, pieces), pieces


def _without_packed(source: str) -> tuple[str, list[str]]:
    kept: list[str] = []
    pieces: list[list[str]] = []
    inside = False
    for line in source.splitlines():
        if line == _BEGIN:
            kept.append(_RUN_PACKED.format(len(pieces)))
            pieces.append([])
            inside = True
        elif line == _END:
            inside = False
        else:
            (pieces[-1] if inside else kept).append(line)
    return "\n".join(kept) + "\n", ["\n".join(lines).strip() + "\n" for lines in pieces]


def _without_bodies(source: str) -> tuple[str, set[str]]:
    lines, names = source.splitlines(), set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef):
            continue
        for decorator in node.decorator_list:
            if ast.unparse(decorator) == "oracle":
                names.add(node.name)
                mark = lines[decorator.lineno - 1]
                lines[decorator.lineno - 1] = mark.replace("@oracle", "@handed_out")
                indent = " " * node.body[0].col_offset
                lines[node.body[0].lineno - 1] = f"{indent}..."
                for number in _comment_above(lines, decorator.lineno - 1):
                    lines[number] = "\0"
                for number in range(node.body[0].lineno, node.end_lineno or 0):
                    lines[number] = "\0"
    return "\n".join(line for line in lines if line != "\0") + "\n", names


def _without_unused(source: str, pieces: Sequence[str]) -> str:
    """Remove definitions and imports that are no longer used, with the comments above them."""
    lines, tree = source.splitlines(), ast.parse(source)
    wanted = {name for piece in pieces for name in _used(ast.parse(piece))}
    before = None
    while before != wanted:
        before = set(wanted)
        for node in tree.body:
            if not _defines(node) or _defines(node) & wanted or _is_test(node):
                wanted |= set() if isinstance(node, ast.Import | ast.ImportFrom) else _used(node)
    is_kept = True
    for number, node in enumerate(tree.body):
        first, last = _first_line(node) - 1, node.end_lineno or 0
        if isinstance(node, ast.Import | ast.ImportFrom):
            lines[first:last] = [_import(node, wanted, bool(pieces)), *["\0"] * (last - first - 1)]
            continue
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if number == 0 and is_docstring:
            docstring = [*lines[first : last - 1], lines[last - 1].removesuffix('"""')]
            summary = docstring[: docstring.index("")] if "" in docstring else docstring
            lines[first:last] = [
                "\n".join([*summary, "", _NOTE, '"""']),
                *["\0"] * (last - first - 1),
            ]
            continue
        if not is_docstring:  # the docstring of a constant goes with it
            is_kept = not _defines(node) or bool(_defines(node) & wanted) or _is_test(node)
        if not is_kept:
            first = min([first, *_comment_above(lines, first)])
            lines[first:last] = ["\0"] * (last - first)
    text = "\n".join(line for line in lines if line != "\0") + "\n"
    return re.sub(r"\n{4,}", "\n\n\n", text)


def _comment_above(lines: Sequence[str], index: int) -> range:
    """Return the indices of the comment lines right above a statement, without headings."""
    first = index
    while first > 0 and lines[first - 1].lstrip().startswith("#") and "---" not in lines[first - 1]:
        first -= 1
    return range(first, index)


def _import(node: ast.Import | ast.ImportFrom, wanted: set[str], has_pieces: bool) -> str:
    if isinstance(node, ast.ImportFrom) and node.module == "classroom.exercise.prepared":
        names = {alias.name for alias in node.names} - {"oracle"} & wanted
        names |= {"handed_out"} | ({"packed"} if has_pieces else set())
        node.names = [ast.alias(name) for name in sorted(names)]
    else:
        node.names = [a for a in node.names if (a.asname or a.name).split(".")[0] in wanted]
    if not node.names:
        return "\0"
    text = ast.unparse(node)
    if len(text) > 100:
        head, names = text.split(" import ")
        text = f"{head} import (\n    " + ",\n    ".join(names.split(", ")) + ",\n)"
    return text


def _defines(node: ast.stmt) -> set[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {(alias.asname or alias.name).split(".")[0] for alias in names}
        case _:
            return set()


def _is_test(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef) and node.name.startswith("Test")


def _used(tree: ast.AST) -> set[str]:
    return {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])


# The results -----------------------------------------------------------------------------------


class _Perturbed(LocalSubject):
    """The solution with every result changed, so that the search for a small case is recorded."""

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return _perturbed(super().call(name, *args, **kwargs))


def _perturbed(value: Any) -> Any:
    match value:
        case torch.Tensor():
            return ~value if value.dtype is torch.bool else value + 1
        case bool() | None | str():
            return value
        case int() | float():
            return value + 1
        case list() | tuple():
            return type(value)(map(_perturbed, value))
        case _:
            return value


def record(folder: Path, names: Sequence[str] | None = None) -> Iterator[tuple[str, Recorder]]:
    """Run an assignment's checks against its solutions and known mistakes, and record the results.

    Each mistake is checked as if it were the only known one, so only the checks that it fails
    itself record the answers by which it is recognised. Variants, and solutions with other inputs,
    run too, without being recorded.

    Args:
        folder: The assignment's solutions.
        names: Exercises, all by default.

    Yields:
        The name of an exercise and its recorder.

    Raises:
        ValueError: If the cell of an answer does not run, or if the checks accept a mistake or
            reject a correct answer.

    """
    mistakes, notebook = load_answers(folder / "mistakes.py"), build_notebook(folder)
    variants = load_answers(folder / "variants.py")
    prelude = next(cell.source for cell in notebook.cells if "import check" in cell.source)

    def run(answer: Answer, kind: type[LocalSubject], seed: str = PUBLISHED_SEED) -> Report:
        files = {path: File(data) for path, data in files_beside(folder, answer).items()}
        subject = kind(replace(answer).namespace, SECONDS_TO_RECORD, files)
        return run_checks(folder, answer.exercise, subject, seed)

    for name in list_checks(folder) if names is None else names:
        recorder, trial = Recorder(), Trial(folder, name)
        solution = Answer("Solution", name, "", cell_of(notebook, name).source, prelude)
        with prepared.answering(recorder):
            _require_runs(text_file(folder), solution)
            trial.solution(run(solution, LocalSubject))
            run(solution, _Perturbed)
            for mistake in mistakes:
                if mistake.exercise == name:
                    _require_runs(folder / "mistakes.py", mistake)
                    recorder.mistakes = [mistake]
                    trial.mistake(
                        mistake,
                        run_mistake(folder, mistake, PUBLISHED_SEED, seconds=SECONDS_TO_RECORD),
                    )
        if recorder.problems:
            problems = "; ".join(dict.fromkeys(recorder.problems))
            raise ValueError(f"checks.py: {name}: {problems[:2000]}")
        trial.words(recorder.words)
        if not trial.problems:
            trial.solution(run(solution, LocalSubject, OTHER_SEED), OTHER_SEED)
            for variant in variants:
                if variant.exercise == name:
                    _require_runs(folder / "variants.py", variant)
                    trial.variant(variant, run(variant, LocalSubject))
        trial.require_sound()
        yield name, recorder


def _require_runs(file: Path, answer: Answer) -> None:
    try:
        _ = replace(answer).namespace
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{file.name}: {answer.name} does not run: {why}") from None


def made_from(folder: Path) -> dict[str, str]:
    """Return for each exercise a digest of its checks and of all answers that are run for it."""
    notebook = build_notebook(folder)
    prelude = next(cell.source for cell in notebook.cells if "import check" in cell.source)
    variants = load_answers(folder / "variants.py")
    beside = [f"{path} {data!r}" for path, data in sorted(files_beside(folder).items())]
    found = {}
    for name in list_checks(folder):
        parts = [version(folder, name), prelude, cell_of(notebook, name).source]
        parts += [str(astuple(variant)) for variant in variants if variant.exercise == name]
        parts += beside
        found[name] = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return found


def prepare(
    folder: Path, target: Path, progress: Callable[[str], None] = lambda step: None
) -> None:
    """Write the prepared results of an assignment, and from what they were made.

    An exercise of which nothing has changed keeps its results. If new ones differ from those in the
    folder only in their last digits, as they do on another CPU, these are written again.

    Args:
        folder: The assignment's solutions.
        target: The folder to write to.
        progress: Called with a description of each step before it starts.

    Raises:
        ValueError: If a result cannot be recorded, or as for `record`.

    """
    earlier, known, made = folder / PREPARED, folder / MADE_FROM, target / PREPARED
    _, pieces = released_text((folder / "checks.py").read_text(encoding="utf-8"))
    is_known = earlier.exists() and known.exists()
    before = json.loads(known.read_text(encoding="utf-8")) if is_known else {}
    now = made_from(folder)
    answers = {
        name: prepared.recorded(earlier, name) for name in now if before.get(name) == now[name]
    }
    for name, recorder in record(folder, [name for name in now if name not in answers]):
        progress(f"{folder.name}: results of {name}")
        answers[name] = recorder.answers
    prepared.write(made, load_answers(folder / "mistakes.py"), answers, pieces)
    if earlier.exists() and prepared.alike(earlier, made):
        shutil.copy(earlier, made)
    (target / MADE_FROM).write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")


class Handout(NbGraderPreprocessor):
    """Makes nbgrader release the checks without their answers.

    With `c.UpdateCells.core` the notebook ends where the core does.
    """

    def preprocess(self, nb: Any, resources: Any) -> tuple[Any, Any]:
        """Write the released checks next to the notebook; nbgrader itself copies no Python file."""
        name = resources["nbgrader"]["assignment"]
        course = CourseDirectory(config=self.config)
        folders = (
            Path(course.format_path(place, ".", name))
            for place in (course.source_directory, course.release_directory)
        )
        source, made = folders
        if (source / "checks.py").exists():  # to fill a gradebook, nbgrader gets the notebook only
            text, _ = released_text((source / "checks.py").read_text(encoding="utf-8"))
            made.mkdir(parents=True, exist_ok=True)
            (made / "checks.py").write_text(text, encoding="utf-8")
        if self.config.UpdateCells.get("core", False):
            lines = (at for at, cell in enumerate(nb.cells) if is_line(cell))
            nb.cells = nb.cells[: next(lines, None)]
        nb.metadata.pop("classroom", None)  # by which an author's edits are found
        return nb, resources
