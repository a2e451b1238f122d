"""Scores of a class: kept as JSON lines, and shown as a table or as CSV.

What a student chose, such as a name or a text in an error, stays text: a terminal does not obey it,
and a spreadsheet does not compute it.
"""

import csv
import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from classroom.calls.files import shown
from classroom.exercise.report import Report
from classroom.grader.json_lines import append, read

TOTAL = "total"
TO_GRADE = "still to grade"
VERDICTS = "verdicts.jsonl"
"""Name of the file in which the verdicts of an assignment are kept."""
# A spreadsheet takes a cell that begins like this for a formula, some also in these wide forms.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one submission earned, and why.

    Attributes:
        assignment: Such as `01_attention`.
        student: Name of the student's folder.
        key: Stands for everything that the scores depend on, except for the seed: sha256 in
            hexadecimal. Empty if the grader failed.
        reports: One per exercise, whatever happened, in the order of the handout.
        problem: Why nothing could be graded, in a sentence; empty if something could.
        errors: A sentence for each cell that did not run to its end.
        notes: Sentences on what was unusual about the submission.
        file: The notebook that was graded.
        digest: Of its bytes, sha256 in hexadecimal.
        received: When it arrived, as ISO 8601 in UTC.
        layers: Names of the sandbox's layers that were active.
        allow_weaker: Whether layers were allowed to be missing.
        seed_commitment: sha256 of the seed that the inputs were drawn from.
        seconds: Wall time.
        in_gradebook: Whether it is in nbgrader's gradebook.
        checked: Exercises whose reports are new with this verdict, empty if all of them are.

    """

    assignment: str
    student: str
    key: str
    reports: tuple[Report, ...]
    problem: str = ""
    errors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    file: str = ""
    digest: str = ""
    received: str = ""
    layers: tuple[str, ...] = ()
    allow_weaker: bool = False
    seed_commitment: str = ""
    seconds: float = 0.0
    in_gradebook: bool = False
    checked: tuple[str, ...] = ()

    @property
    def is_final(self) -> bool:
        """False if it was the grader that failed: the next run tries again."""
        return bool(self.key)

    @property
    def points(self) -> int:
        """The most that can be earned."""
        return sum(report.points for report in self.reports)

    @property
    def earned(self) -> int:
        """What was earned."""
        return sum(report.earned for report in self.reports)

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON types."""
        return {
            **asdict(self),
            "reports": [report.to_json() for report in self.reports],
            "points": self.points,
            "earned": self.earned,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Verdict":
        """Rebuild a verdict from what `to_json` returned."""
        # One that an earlier version has written may lack what was added since.
        fields = {name: record[name] for name in cls.__dataclass_fields__ if name in record}
        for name in ("errors", "notes", "layers", "checked"):
            fields[name] = tuple(fields.get(name, ()))
        fields["reports"] = tuple(Report.from_json(report) for report in record["reports"])
        return cls(**fields)


# What counts


@dataclass(frozen=True)
class Line:
    """What one exercise earned, as the gradebook has it.

    Attributes:
        exercise: Its name.
        earned: Points that count, including those that a person gave.
        points: What it is worth, 0 if it does not count.
        by_hand: Whether a person gave some of these points.
        comment: What a person wrote about it.
        is_open: Whether a person still has to grade it.

    """

    exercise: str
    earned: float
    points: float
    by_hand: bool = False
    comment: str = ""
    is_open: bool = False


@dataclass(frozen=True)
class Grades:
    """What a submission earned, as the gradebook has it.

    Attributes:
        student: Whose it is.
        assignment: Such as `01_attention`.
        lines: One per exercise, in the order of the handout.
        penalty: Points that are subtracted because it was late.
        received: When it was received, None if that is not known.
        problem: Why nothing could be graded, in a sentence; empty if something could.

    """

    student: str
    assignment: str
    lines: tuple[Line, ...]
    penalty: float = 0.0
    received: datetime | None = None
    problem: str = ""

    @classmethod
    def of(cls, verdict: Verdict) -> "Grades":
        """Return what the checks gave, before points of people and penalties."""
        lines = tuple(Line(each.exercise, each.earned, each.points) for each in verdict.reports)
        received = datetime.fromisoformat(verdict.received) if verdict.received else None
        return cls(verdict.student, verdict.assignment, lines, 0.0, received, verdict.problem)

    def in_order(self, exercises: Sequence[str]) -> "Grades":
        """Return the same with the lines in the order of these exercises; others come last."""
        order = {name: at for at, name in enumerate(exercises)}
        lines = sorted(self.lines, key=lambda line: order.get(line.exercise, len(order)))
        return replace(self, lines=tuple(lines))

    @property
    def num_open(self) -> int:
        """How many answers a person still has to grade."""
        return sum(line.is_open and line.points > 0 for line in self.lines)

    @property
    def points(self) -> float:
        """What the assignment is worth."""
        return sum(line.points for line in self.lines)

    @property
    def earned(self) -> float:
        """What counts, after the penalty."""
        return max(0.0, sum(line.earned for line in self.lines) - self.penalty)


# JSON lines


def append_line(path: Path, verdict: Verdict) -> None:
    """Add a verdict to a file so that it is there even if the machine stops now."""
    append(path, [verdict.to_json()])


def read_lines(path: Path) -> list[Verdict]:
    """Read the verdicts of a file, the last one of each student, by the students' names.

    Raises:
        ValueError: If a line is no verdict.

    """
    return [verdicts[-1] for _, verdicts in sorted(read_history(path).items())]


def read_history(path: Path) -> dict[str, list[Verdict]]:
    """Read all verdicts of a file, by student, the oldest first; otherwise as `read_lines`."""
    verdicts: dict[str, list[Verdict]] = {}
    for verdict in read(path, Verdict.from_json, "verdict"):
        verdicts.setdefault(verdict.student, []).append(verdict)
    return verdicts


# What a run has changed


def with_kept(new: Verdict, earlier: Verdict | None, exercises: Collection[str]) -> Verdict:
    """Return a verdict that takes some exercises from a new one and all others from an earlier.

    If the notebook has changed since, the verdict is new as a whole.

    Args:
        new: All exercises, as they are graded now.
        earlier: The verdict so far, if there is one.
        exercises: Which ones are to be new; all of them if there are none here.

    """
    if not exercises or earlier is None or not new.key or new.digest != earlier.digest:
        return new
    before = {report.exercise: report for report in earlier.reports}
    reports = tuple(
        report if report.exercise in exercises else before.get(report.exercise, report)
        for report in new.reports
    )
    # With the earlier key it will not count as finished if the checks have changed.
    return replace(new, reports=reports, key=earlier.key, checked=tuple(sorted(exercises)))


@dataclass(frozen=True)
class Change:
    """A score that a run has changed.

    Attributes:
        student: Whose.
        exercise: Of what; empty for all of the assignment.
        before: Points that an earlier run gave, None if there was no such exercise.
        after: Points now, None if the exercise is gone.

    """

    student: str
    exercise: str
    before: int | None
    after: int | None


def changes(history: Mapping[str, Sequence[Verdict]], commitment: str) -> list[Change]:
    """Return which earlier scores a run has changed.

    A run that was stopped and continued is one run: it is compared with what is older than it.

    Args:
        history: As `read_history` returns it.
        commitment: The run's, as each of its verdicts holds it.

    Returns:
        By student, the exercises in the order of the handout, and then all together, if the sum
        has changed as well.

    """
    found = []
    for student, verdicts in sorted(history.items()):
        earlier = [v for v in verdicts if v.seed_commitment != commitment]
        if verdicts[-1].seed_commitment != commitment or not earlier:
            continue
        before, after = earlier[-1], verdicts[-1]
        was = {report.exercise: report.earned for report in before.reports}
        now = {report.exercise: report.earned for report in after.reports}
        for exercise in [*now, *(each for each in was if each not in now)]:
            pair = was.get(exercise), now.get(exercise)
            if pair[0] != pair[1]:
                found.append(Change(student, exercise, *pair))
        if before.earned != after.earned:
            found.append(Change(student, "", before.earned, after.earned))
    return found


def changes_to_csv(found: Sequence[Change]) -> str:
    """Return changes for a spreadsheet, quoted as `to_csv` quotes."""
    rows: list[Sequence[str | int]] = [("student", "exercise", "before", "after")]
    for change in found:
        points = ("" if number is None else number for number in (change.before, change.after))
        rows.append((change.student, change.exercise or TOTAL, *points))
    return _csv(rows)


def changes_to_table(found: Sequence[Change]) -> str:
    """Return changes for a terminal."""
    rows = [["student", "exercise", "before", "", "after"]]
    for change in found:
        before, after = ("–" if n is None else str(n) for n in (change.before, change.after))
        name = shown(change.student, limit=30)
        rows.append([name, change.exercise or TOTAL, before, "->", after])
    return aligned(rows, left=(0, 1))


# CSV


def to_csv(grades: Sequence[Grades]) -> str:
    """Return the scores for a spreadsheet: one row per student, one column per exercise.

    Every text is quoted, and one that a spreadsheet would compute begins with an apostrophe.
    """
    names = [line.exercise for line in grades[0].lines if line.points] if grades else []
    rows: list[Sequence[str | int | float]] = [
        ("student", *names, "penalty", "earned", "points", "received", "problem")
    ]
    for each in grades:
        lines = {line.exercise: line for line in each.lines}
        cells = [_shown(lines[name]) if name in lines else 0 for name in names]
        numbers = map(_number, (each.penalty, each.earned, each.points))
        received = each.received.isoformat() if each.received else ""
        rows.append((each.student, *cells, *numbers, received, each.problem))
    return _csv(rows)


def _shown(line: Line) -> str | int | float:
    return TO_GRADE if line.is_open else _number(line.earned)


def _number(points: float) -> int | float:
    return int(points) if points == int(points) else round(points, 4)


def _csv(rows: Iterable[Sequence[str | int | float]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerows([harmless(c) if isinstance(c, str) else c for c in row] for row in rows)
    return file.getvalue()


def harmless(text: str) -> str:
    """Return text that a spreadsheet shows and does not compute."""
    text = shown(text, limit=1000)
    return f"'{text}" if text.lstrip().startswith(FORMULA) else text


# Table


def to_table(verdicts: Sequence[Verdict], grades: Mapping[str, Grades] | None = None) -> str:
    """Return the scores for a terminal: a row per student, a column per exercise that counts.

    Args:
        verdicts: One per student.
        grades: What counts, by student; where there is none, what the checks gave.

    """
    if not verdicts:
        return "there are no submissions: see `classroom collect`"
    found = [(grades or {}).get(each.student) or Grades.of(each) for each in verdicts]
    counts = {line.exercise for line in found[0].lines if line.points}
    reports = [report for report in verdicts[0].reports if report.exercise in counts]
    rows = [["student", *(report.title.split()[0] for report in reports), "points", ""]]
    for verdict, each in zip(verdicts, found, strict=True):
        remarks = len(verdict.notes) + len(verdict.errors)
        earned = {line.exercise: line.earned for line in each.lines}
        rows.append(
            [
                shown(verdict.student, limit=30),
                *(f"{earned.get(report.exercise, 0):g}" for report in reports),
                f"{each.earned:g} of {each.points:g}",
                (verdict.problem or ("1 remark" if remarks == 1 else f"{remarks or 'no'} remarks"))
                + (f", {each.num_open} {TO_GRADE}" if each.num_open else ""),
            ]
        )
    return aligned(rows, left=(0, len(rows[0]) - 1))


def aligned(rows: Sequence[Sequence[str]], left: Collection[int]) -> str:
    """Return rows as a table whose columns are flush right, but for some."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            text.ljust(width) if column in left else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
