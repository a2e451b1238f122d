"""The kill matrix: which checks of an exercise fail for which of its known mistakes.

A good set of checks catches every mistake, and each check is needed, because it catches a mistake
that no other check does. Both can be counted. `measure` runs every mistake against every check and
returns the results as JSON types, `read` converts them to rows, and `differences` lists what has
been added to the assignments or removed since.
"""

import ast
import contextlib
import functools
import hashlib
import json
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from classroom.calls.files import File
from classroom.calls.local import LocalSubject
from classroom.course import PUBLISHED_SEED, all_solutions, assignments
from classroom.exercise.answers import Answer, files_beside, load_answers
from classroom.exercise.report import Report
from classroom.exercise.run import list_checks, load_checks, run_checks
from classroom.limits import SECONDS_PER_EXERCISE

RECORD = Path("tests/benchmarks/records/kill_matrix.json")
"""Where the course keeps its matrix, below its root."""
SEEDS = (PUBLISHED_SEED, "kill matrix 1", "kill matrix 2")
"""Seeds for the inputs of the checks; fewer than ten, because a single digit counts failures."""


@dataclass(frozen=True)
class Kills:
    """The row of one exercise: which of its checks fail for which mistake.

    Attributes:
        assignment: Folder, such as `01_attention`.
        exercise: Name of the exercise.
        number: As printed, such as `1.4`.
        checks: What is checked, in words, in order.
        failures: For each mistake, by the name of its class, with how many seeds each check failed.
        unnamed: The mistakes that were not named, or not alone, with the last of the seeds.

    """

    assignment: str
    exercise: str
    number: str
    checks: tuple[str, ...]
    failures: Mapping[str, tuple[int, ...]]
    unnamed: tuple[str, ...] = ()

    def killers(self, mistake: str) -> list[int]:
        """Return the indices of the checks that fail for a mistake with at least one seed."""
        return [index for index, count in enumerate(self.failures[mistake]) if count]

    def caught_by(self, check: int) -> list[str]:
        """Return the mistakes that a check catches."""
        return [name for name in self.failures if check in self.killers(name)]

    def caught_only_by(self, check: int) -> list[str]:
        """Return the mistakes that a check catches and no other check does."""
        return [name for name in self.failures if self.killers(name) == [check]]


def run_mistake(
    folder: Path,
    mistake: Answer,
    seed: str,
    solutions: Path | None = None,
    seconds: float = SECONDS_PER_EXERCISE,
) -> Report:
    """Run all checks of an exercise against a known mistake, as a self-check would.

    Args:
        folder: The assignment's folder, with `checks.py` and `mistakes.py`.
        mistake: One of its mistakes.
        seed: Determines the inputs.
        solutions: The assignment's folder of solutions, whose `handed_in/` holds the correct files;
            `folder` by default.
        seconds: Time limit for all calls of the checks together.

    """
    submitted = files_beside(solutions or folder, mistake)
    files = {name: File(data) for name, data in submitted.items()}
    # A copy, because an answer caches the namespace of its cell, which calls may change.
    subject = LocalSubject(replace(mistake).namespace, seconds, files)
    return run_checks(folder, mistake.exercise, subject, seed)


def version(folder: Path, exercise: str) -> str:
    """Return a digest of the code and mistakes that an exercise is checked and diagnosed with.

    How a mistake is explained decides about neither.
    """
    own = [str(_structure(node)) for node in _without_neighbours(folder, exercise)]
    mistakes = load_answers(folder / "mistakes.py")
    own += [str(astuple(replace(m, explanation=""))) for m in mistakes if m.exercise == exercise]
    return hashlib.sha256("\n".join(own).encode()).hexdigest()[:16]


def _structure(node: Any) -> Any:
    """Return what `ast.dump` shows, alike in all versions of Python: without empty fields."""
    if isinstance(node, list):
        return [_structure(each) for each in node]
    if not isinstance(node, ast.AST):
        return node
    fields = ((name, value) for name, value in ast.iter_fields(node) if value not in (None, []))
    return type(node).__name__, [(name, _structure(value)) for name, value in fields]


def _without_neighbours(folder: Path, exercise: str) -> Iterator[ast.stmt]:
    """Yield the statements of a file of checks, without the checks of other exercises."""
    others = {test for name, (_, test) in load_checks(folder).items() if name != exercise}
    for node in _parsed(folder / "checks.py", (folder / "checks.py").stat().st_mtime_ns).body:
        if getattr(node, "name", "") not in others:
            yield node


@functools.lru_cache(maxsize=16)
def _parsed(path: Path, changed: int) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def measure(
    root: Path,
    before: Mapping[str, Any] | None = None,
    seeds: Sequence[str] = SEEDS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Run every known mistake of a course against every check of its exercise.

    Args:
        root: The course's folder, which holds `solutions/`.
        before: An earlier result. If its seeds are the same, exercises that have not changed since
            are taken from it.
        seeds: Determine the inputs; all checks run once for each.
        progress: Called with the number of mistakes done and their total.

    Returns:
        `{"seeds", "python", "torch", "date", "exercises"}`, where an exercise has `assignment`,
        `exercise`, `number`, `version`, `checks` in words, `mistakes`: for each a digit per check,
        the number of seeds with which that check failed, and `unnamed`: the mistakes that were not
        named, or not alone, with the last seed.

    Raises:
        FileNotFoundError: If there are no assignments under `root`.

    """
    import torch

    folders = all_solutions(root)
    known = {}
    if before and before["seeds"] == list(seeds):
        known = {_key(row): row for row in before["exercises"]}
    # All files are read before anything runs, so one that is edited meanwhile has a new version.
    plan = [(folder, row, own) for folder in folders for row, own in _rows(folder)]
    total, done = sum(len(own) for _, _, own in plan), 0
    for folder, row, own in plan:
        old = known.get(_key(row), {})
        if old.get("version") == row["version"] and "unnamed" in old:
            row["mistakes"], row["unnamed"] = old["mistakes"], old["unnamed"]
        else:
            with _checks_alone(folder) as alone:
                for number, mistake in enumerate(own):
                    progress(done + number, total)
                    row["mistakes"][mistake.name] = _digits(alone, folder, mistake, seeds)
                    if run_mistake(folder, mistake, seeds[-1]).mistakes != [mistake.name]:
                        row["unnamed"].append(mistake.name)
        done += len(own)
        progress(done, total)
    return {
        "seeds": list(seeds),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": datetime.now(UTC).date().isoformat(),
        "exercises": [row for _, row, _ in plan],
    }


def _rows(folder: Path) -> Iterator[tuple[dict[str, Any], list[Answer]]]:
    """Yield a row for each exercise of an assignment, and the mistakes to run for it."""
    checks = list_checks(folder)
    mistakes = load_answers(folder / "mistakes.py")
    for name, (about, _) in load_checks(folder).items():
        row = {
            "assignment": folder.name,
            "exercise": name,
            "number": about.number,
            "version": version(folder, name),
            "checks": [check for check, _ in checks[name]],
            "mistakes": {},
            "unnamed": [],
        }
        yield row, [mistake for mistake in mistakes if mistake.exercise == name]


def _key(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["assignment"], row["exercise"]


@contextlib.contextmanager
def _checks_alone(folder: Path) -> Iterator[Path]:
    """Yield a folder with the checks but without known mistakes.

    The same checks fail there, without the diagnosis, which takes nine tenths of the time.
    """
    with tempfile.TemporaryDirectory() as temporary:
        shutil.copy(folder / "checks.py", temporary)
        yield Path(temporary)


def _digits(alone: Path, solutions: Path, mistake: Answer, seeds: Sequence[str]) -> str:
    reports = [run_mistake(alone, mistake, seed, solutions) for seed in seeds]
    by_check = zip(*(report.results for report in reports), strict=True)
    return "".join(str(sum(result.has_failed for result in results)) for results in by_check)


def write(path: Path, found: Mapping[str, Any]) -> None:
    """Write what `measure` returned, one line per mistake, so that diffs are small."""
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def load(path: Path) -> dict[str, Any] | None:
    """Read what `write` wrote; return None if there is no such file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def read(path: Path) -> list[Kills]:
    """Read what `write` wrote as rows, one per exercise, in order.

    Raises:
        FileNotFoundError: If there is no such file.

    """
    return [
        Kills(
            row["assignment"],
            row["exercise"],
            row["number"],
            tuple(row["checks"]),
            {name: tuple(map(int, digits)) for name, digits in row["mistakes"].items()},
            tuple(row.get("unnamed", ())),
        )
        for row in json.loads(path.read_text(encoding="utf-8"))["exercises"]
    ]


def differences(root: Path, rows: Sequence[Kills]) -> list[str]:
    """List the mistakes and checks that are in a course but not in a matrix, or the reverse.

    Returns:
        A sentence for each, such as `01_attention 1.4 has a new mistake NoScale`.

    """
    now: dict[tuple[str, str], set[str]] = {}
    for folder in assignments(root / "solutions"):
        mistakes = load_answers(folder / "mistakes.py")
        numbers = {name: about.number for name, (about, _) in load_checks(folder).items()}
        for name, checks in list_checks(folder).items():
            own = {f"mistake {m.name}" for m in mistakes if m.exercise == name}
            own |= {f"check “{check}”" for check, _ in checks}
            now[folder.name, numbers[name]] = own
    then = {
        (row.assignment, row.number): {f"mistake {name}" for name in row.failures}
        | {f"check “{check}”" for check in row.checks}
        for row in rows
    }
    found = []
    for who in sorted(now.keys() | then.keys()):
        has, had = now.get(who, set()), then.get(who, set())
        found += [f"{' '.join(who)} has a new {what}" for what in sorted(has - had)]
        found += [f"{' '.join(who)} no longer has the {what}" for what in sorted(had - has)]
    return found


def to_table(rows: Sequence[Kills]) -> str:
    """Summarise a matrix as a table of counts, one line per assignment."""
    lines = ["assignment            mistakes  checks  by one only  check needed"]
    for name in dict.fromkeys(row.assignment for row in rows):
        lines.append(_line(name, [row for row in rows if row.assignment == name]))
    return "\n".join([*lines, _line("all", rows)])


def _line(name: str, rows: Sequence[Kills]) -> str:
    mistakes = sum(len(row.failures) for row in rows)
    checks = sum(len(row.checks) for row in rows)
    alone = [len(row.caught_only_by(c)) for row in rows for c in range(len(row.checks))]
    needed = sum(count > 0 for count in alone)
    return f"{name:<20}  {mistakes:8}  {checks:6}  {sum(alone):11}  {needed:12}"
