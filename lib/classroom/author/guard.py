"""What an author must keep to, checked by `classroom release` before anything is written.

`require_sound` reads the files of an assignment; `Trial` looks at how the checks of an exercise
treat its solution, its variants and its known mistakes, which a release runs anyway.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from classroom.course import text_file
from classroom.exercise.answers import Answer, load_answers
from classroom.exercise.expect import Exercise
from classroom.exercise.report import Report
from classroom.exercise.run import list_checks, load_checks
from classroom.sandbox.inside.terms import HIDDEN_PACKAGES

FILES = ("checks.py", "mistakes.py", "variants.py")
"""What an assignment consists of, besides the text of its notebook."""
AT_LEAST = 3
"""Mistakes and variants of each exercise."""
OTHER_SEED = "another seed than the published one"
_DRAWS = re.compile(
    r"torch\.(rand|randn|randint|randperm|normal|bernoulli|multinomial|manual_seed)"
    r"|random\.\w+|(np|numpy)\.random\.\w+"
)
_EMPTY_HINT = re.compile(r"<summary>([^<]*)</summary>\s*</details>")
_CUT = re.compile(r"(?ms)^ *### BEGIN SOLUTION$.*^ *### END SOLUTION$")


def require_sound(folder: Path) -> None:
    """Require that the files of an assignment keep to the rules that can be read from them.

    Raises:
        ValueError: If they do not; says in a line for each problem which file, what, and why.

    """
    for rules in (_syntax, _checks, _answers, _text):
        if problems := dict.fromkeys(rules(folder)):
            raise ValueError("\n".join(problems))


def _syntax(folder: Path) -> Iterator[str]:
    for path in (text_file(folder), *(folder / name for name in FILES)):
        try:
            ast.parse(path.read_text(encoding="utf-8"))
        except SyntaxError as error:
            yield f"{path.name}, line {error.lineno}: {error.msg}"


# Checks ----------------------------------------------------------------------------------------


def _checks(folder: Path) -> Iterator[str]:
    tree = ast.parse((folder / "checks.py").read_text(encoding="utf-8"))
    yield from (f"checks.py, line {line}: {problem}" for line, problem in _tests(tree))
    yield from (f"checks.py, line {line}: {problem}" for line, problem in _inputs(tree))
    numbers: dict[str, str] = {}
    chapter = f"{int(folder.name.partition('_')[0])}."
    for name, (about, _) in load_checks(folder).items():
        yield from (f"checks.py: {name}: {problem}" for problem in _about(about, chapter))
        if about.number in numbers:
            yield f"checks.py: {numbers[about.number]} and {name} are both number {about.number}"
        numbers[about.number] = name
        for check, points in list_checks(folder)[name]:
            if type(points) is not int or points < 1:
                yield f"checks.py: {name}: “{check}” must have at least 1 point, got {points!r}"
        for file in about.files:
            if not (folder / "handed_in" / file).is_file():
                yield f"checks.py: {name}: students submit {file}, which handed_in/ does not hold"


def _about(about: Exercise, chapter: str) -> Iterator[str]:
    if not about.number.startswith(chapter):
        yield f"its number must begin with {chapter}, got {about.number!r}"
    for what in ("difficulty", "importance"):
        if getattr(about, what) not in range(1, 6):
            yield f"{what} must be from 1 to 5, got {getattr(about, what)!r}"
    if about.minutes < 1:
        yield f"minutes must be at least 1, got {about.minutes!r}"
    for what in ("title", "asks"):
        if not getattr(about, what).strip():
            yield f"{what} must say something, got {getattr(about, what)!r}"


def _tests(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Find checks that would be lost without a word."""
    for group in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        methods = [node for node in group.body if isinstance(node, ast.FunctionDef)]
        for name, count in Counter(method.name for method in methods).items():
            if count > 1:
                yield group.lineno, f"{group.name} has {count} checks called {name}"
        for method in methods:
            marks = [ast.unparse(mark) for mark in method.decorator_list]
            is_marked = any(mark.startswith("points(") for mark in marks)
            if is_marked and not method.name.startswith("test_"):
                yield method.lineno, f"{method.name} has points, and must be called test_…"


def _inputs(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Find inputs on which mistakes go unseen, or that no seed determines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            sizes: dict[int, str] = {}
            for call in ast.walk(node):
                match call:
                    case ast.Call(
                        func=ast.Attribute(attr="size"),
                        args=[ast.Constant(value=str(name)), ast.Constant(value=int(size)), *_],
                    ):
                        if sizes.setdefault(size, name) != name:
                            yield (
                                call.lineno,
                                f"{sizes[size]} and {name} are both of size {size}: a mistake that "
                                "exchanges two axes would go unseen",
                            )
        elif isinstance(node, ast.Call) and _DRAWS.fullmatch(ast.unparse(node.func)):
            if not any(keyword.arg == "generator" for keyword in node.keywords):
                yield (
                    node.lineno,
                    f"{ast.unparse(node.func)} draws other numbers each time: use case.normal, "
                    "case.uniform or case.integer, or generator=case.generator",
                )


# Mistakes, variants and the text ---------------------------------------------------------------


def _answers(folder: Path) -> Iterator[str]:
    exercises = list_checks(folder)
    for file in ("mistakes.py", "variants.py"):
        answers = load_answers(folder / file)
        names: set[tuple[str, str]] = set()
        for answer in answers:
            who = f"{file}: {answer.name}"
            if answer.exercise not in exercises:
                there = ", ".join(exercises)
                yield f"{who} answers {answer.exercise!r}; the exercises are: {there}"
            if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", answer.name):
                yield f"{who} must have a name like NoScale, with a capital for each word"
            if (answer.exercise, answer.title) in names:
                yield f"{who} is there twice for {answer.exercise}"
            names.add((answer.exercise, answer.title))
        counts = Counter(answer.exercise for answer in answers)
        for name in exercises:
            if counts[name] < AT_LEAST:
                yield f"{file}: {name} needs at least {AT_LEAST}, got {counts[name]}"
    for answer in load_answers(folder / "variants.py"):
        yield from _imports(f"variants.py: {answer.name}", answer.cell)


def _text(folder: Path) -> Iterator[str]:
    text = text_file(folder)
    for cell in re.split(r"(?m)^# %%", text.read_text(encoding="utf-8")):
        marker, _, source = cell.partition("\n")
        if found := re.search(r'exercise="(\w+)"', marker):
            who = f"{text.name}: the solution of {found[1]}"
            yield from _imports(who, source)
            if not _CUT.search(source):
                yield (
                    f"{who} needs a line ### BEGIN SOLUTION and below it a line ### END SOLUTION: "
                    "what is between them is removed"
                )
        for hint in _EMPTY_HINT.finditer(re.sub(r"(?m)^# ?", "", source)):
            yield f"{text.name}: the hint “{hint[1]}” is empty"


def _imports(who: str, cell: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(cell)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            if name.partition(".")[0] in HIDDEN_PACKAGES:
                yield f"{who} imports {name}, which is not available during grading"


# Runs ------------------------------------------------------------------------------------------


class Trial:
    """Whether the checks of one exercise treat its answers as they should.

    Args:
        folder: The assignment's folder.
        exercise: Name of the exercise.

    Attributes:
        problems: One sentence for each problem so far.

    """

    def __init__(self, folder: Path, exercise: str):
        self.problems: list[str] = []
        self._exercise = exercise
        self._text = text_file(folder)
        self._points = dict(list_checks(folder)[exercise])
        self._failed: set[str] = set()

    def solution(self, report: Report, seed: str = "") -> None:
        """Require that the solution passes; a seed that is not the published one is named."""
        where = f" with the inputs of {seed}" if seed else ""
        self._require_full(f"{self._text.name}: the solution of {self._exercise}", report, where)

    def variant(self, variant: Answer, report: Report) -> None:
        """Require that a correct answer passes."""
        self._require_full(f"variants.py: {variant.name}", report)

    def mistake(self, mistake: Answer, report: Report) -> None:
        """Require that a mistake fails a check, and remember which failed by themselves."""
        failed = {result.name for result in report.results if result.has_failed}
        self._failed |= failed
        if not failed:
            self.problems.append(
                f"mistakes.py: {mistake.name} passes all checks of {self._exercise}"
            )

    def words(self, words: set[str]) -> None:
        """Require that students know the words for the axes of what they return."""
        known = set(re.findall(r"\w+", self._text.read_text(encoding="utf-8")))
        for word in sorted(words):
            if not known.issuperset(re.findall(r"\w+", word)):
                self.problems.append(
                    f"checks.py: {self._exercise}: the word {word!r} for an axis is nowhere in "
                    f"{self._text.name}, where students read what it is"
                )

    def require_sound(self) -> None:
        """Require that there was no problem, and that every check was failed by some mistake.

        Raises:
            ValueError: If there was one; says which.

        """
        problems = list(dict.fromkeys(self.problems))
        for check in self._points if not problems else ():
            if check not in self._failed:
                problems.append(
                    f"checks.py: {self._exercise}: no mistake in mistakes.py fails the check "
                    f"“{check}” ({self._points[check]} points): add one that does, and see whether "
                    "the check can fail at all; a law that returns nothing accepts everything"
                )
        if problems:
            raise ValueError("\n".join(problems))

    def _require_full(self, who: str, report: Report, where: str = "") -> None:
        for result in report.results:
            if not result.earned:
                why = result.message.partition("\n")[0]
                self.problems.append(f"{who} fails the check “{result.name}”{where}: {why}")
