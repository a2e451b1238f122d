"""Scores of a class: kept as JSON lines, and shown as a table or as CSV.

What a student chose, such as a name or a text in an error, never becomes more than text: a
terminal does not obey it, and a spreadsheet does not compute it.
"""

import csv
import io
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from classroom.intake import shown
from classroom.selfcheck import Report

TOGETHER = "together"
# Programs take a cell that begins so for a formula, some also in these wide forms.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of one submission.

    Attributes:
        assignment: Such as `01_attention`.
        student: Name of the folder that was handed in.
        key: Stands for everything that the scores depend on, except for the seed: sha256 in
            hexadecimal.
        reports: One per exercise, whatever happened, in the order of the handout.
        problem: Why nothing could be graded, in a sentence; empty if something could.
        errors: A sentence for each cell that did not run to its end.
        notes: Sentences on what was not as it should be in what was handed in.
        file: The notebook that was graded.
        digest: Of its bytes, sha256 in hexadecimal.
        received: When it came to lie where it lies, as ISO 8601 in UTC.
        layers: Names of the layers that kept it in.
        allow_weaker: Whether layers were allowed to be missing.
        seed_commitment: sha256 of the seed that the inputs were drawn from.
        seconds: Wall time.
        in_gradebook: Whether nbgrader's gradebook was told.
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
    def points(self) -> int:
        """What the assignment is worth."""
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


# JSON lines


def append_line(path: Path, verdict: Verdict) -> None:
    """Add a verdict to a file so that it is there even if the machine stops now.

    Whoever was stopped while writing has left half a line, which is cut off. Nobody else may write
    meanwhile.
    """
    with path.open("ab+") as file:
        _cut_off_half_a_line(file)
        file.write(json.dumps(verdict.to_json()).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _cut_off_half_a_line(file: BinaryIO) -> None:
    end = file.seek(0, os.SEEK_END)
    if end:
        file.seek(end - 1)
        if file.read(1) != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


def read_lines(path: Path) -> list[Verdict]:
    """Read the verdicts of a file, the last one of each student.

    Half a line at its end is passed over: somebody may be writing it.

    Returns:
        Verdicts by the names of the students; none if there is no such file.

    Raises:
        ValueError: If another line is no verdict.

    """
    return in_order(verdicts[-1] for verdicts in read_history(path).values())


def read_history(path: Path) -> dict[str, list[Verdict]]:
    """Read all verdicts of a file, by student, the oldest first; otherwise as `read_lines`."""
    if not path.exists():
        return {}
    whole = path.read_bytes().rpartition(b"\n")[0]
    verdicts: dict[str, list[Verdict]] = {}
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            verdict = Verdict.from_json(json.loads(line))
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path}, line {number}: this is no verdict") from None
        verdicts.setdefault(verdict.student, []).append(verdict)
    return verdicts


def in_order(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return verdicts by the names of the students, however they came in."""
    return sorted(verdicts, key=lambda verdict: verdict.student)


# What a run has changed


def with_kept(new: Verdict, earlier: Verdict | None, exercises: Collection[str]) -> Verdict:
    """Return a verdict that takes some exercises from a new one and all others from an earlier.

    What was handed in again meanwhile is another submission: its verdict is new as a whole.

    Args:
        new: All exercises, as they are graded now.
        earlier: What stood so far, if anything did.
        exercises: Which ones are to be new; all of them if there are none here.

    """
    if not exercises or earlier is None or not new.key or new.digest != earlier.digest:
        return new
    before = {report.exercise: report for report in earlier.reports}
    reports = tuple(
        report if report.exercise in exercises else before.get(report.exercise, report)
        for report in new.reports
    )
    # With the earlier key it does not stand for good if the checks are others now.
    return replace(new, reports=reports, key=earlier.key, checked=tuple(sorted(exercises)))


@dataclass(frozen=True)
class Change:
    """A score that is another than it was.

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

    A run that was stopped and gone on with is one run: what it is compared with is older than it.

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
    file = io.StringIO()
    writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerow(["student", "exercise", "before", "after"])
    for change in found:
        words = harmless(change.student), harmless(change.exercise or TOGETHER)
        points = ("" if number is None else number for number in (change.before, change.after))
        writer.writerow([*words, *points])
    return file.getvalue()


def changes_to_table(found: Sequence[Change]) -> str:
    """Return changes for a terminal."""
    rows = [["student", "exercise", "before", "", "after"]]
    for change in found:
        before, after = ("–" if n is None else str(n) for n in (change.before, change.after))
        name = shown(change.student, limit=30)
        rows.append([name, change.exercise or TOGETHER, before, "->", after])
    return aligned(rows, left=(0, 1))


# CSV


def to_csv(verdicts: Sequence[Verdict]) -> str:
    """Return the scores for a spreadsheet: one row per student, one column per exercise.

    Every text is quoted, and one that a spreadsheet would compute begins with an apostrophe.
    """
    file = io.StringIO()
    writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    exercises = [report.exercise for report in verdicts[0].reports] if verdicts else []
    ends = ("earned", "points", "received", "problem")
    writer.writerow([harmless(word) for word in ("student", *exercises, *ends)])
    for verdict in verdicts:
        writer.writerow(
            [
                harmless(verdict.student),
                *(report.earned for report in verdict.reports),
                verdict.earned,
                verdict.points,
                harmless(verdict.received),
                harmless(verdict.problem),
            ]
        )
    return file.getvalue()


def harmless(text: str) -> str:
    """Return text that a spreadsheet shows and does not compute."""
    text = shown(text, limit=1000)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text


# Table


def to_table(verdicts: Sequence[Verdict]) -> str:
    """Return the scores for a terminal: a row per student, a column per exercise."""
    if not verdicts:
        return "nothing was handed in"
    numbers = [report.title.split()[0] for report in verdicts[0].reports]
    rows = [["student", *numbers, "points", ""]]
    for verdict in verdicts:
        remarks = len(verdict.notes) + len(verdict.errors)
        rows.append(
            [
                shown(verdict.student, limit=30),
                *(str(report.earned) for report in verdict.reports),
                f"{verdict.earned} of {verdict.points}",
                verdict.problem or ("1 remark" if remarks == 1 else f"{remarks or 'no'} remarks"),
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
