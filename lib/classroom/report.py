"""Scores of a class: kept as JSON lines, and shown as a table or as CSV.

What a student chose, such as a name or a text in an error, never becomes more than text: a
terminal does not obey it, and a spreadsheet does not compute it.
"""

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from classroom.intake import shown
from classroom.selfcheck import Report

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
        fields = {name: record[name] for name in cls.__dataclass_fields__}
        for name in ("errors", "notes", "layers"):
            fields[name] = tuple(fields[name])
        fields["reports"] = tuple(Report.from_json(report) for report in record["reports"])
        return cls(**fields)


# JSON lines


def append_line(path: Path, verdict: Verdict) -> None:
    """Add a verdict to a file so that it is there even if the machine stops now."""
    with path.open("ab") as file:
        file.write(json.dumps(verdict.to_json()).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[Verdict]:
    """Read the verdicts of a file, the last one of each student, and mend the file's end.

    Whoever was stopped while writing has left half a line, which is cut off.

    Returns:
        Verdicts by the names of the students; none if there is no such file.

    Raises:
        ValueError: If another line is no verdict.

    """
    if not path.exists():
        return []
    with path.open("rb+") as file:
        whole, newline, half = file.read().rpartition(b"\n")
        if half:
            file.truncate(len(whole) + len(newline))
    verdicts = {}
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            verdict = Verdict.from_json(json.loads(line))
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path}, line {number}: this is no verdict") from None
        verdicts[verdict.student] = verdict
    return in_order(verdicts.values())


def in_order(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return verdicts by the names of the students, however they came in."""
    return sorted(verdicts, key=lambda verdict: verdict.student)


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
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    first, last = 0, len(widths) - 1
    return "\n".join(
        "  ".join(
            text.ljust(width) if column in (first, last) else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
