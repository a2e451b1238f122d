"""Reads who is in a class from a learning platform's CSV file; returns grades and feedback to it.

The file is one that the platform writes itself, and what goes back is the same file with grades in
it, because that is what each platform documents as the format of its import:

- Moodle's grading worksheet: `Identifier` (`Participant 1234`), `Full name`, `Email address`,
  `Grade`, … (mod/assign/feedback/offline/importgradeslib.php);
- Moodle's list of participants or its export of grades: `First name`, `Last name` or `Surname`,
  `ID number`, `Email address`;
- Canvas's export of its gradebook: `Student`, `ID`, … `Section`, and a row `Points Possible`
  (lib/gradebook_importer.rb).

Feedback is matched by the name of its file: Moodle wants `NAME_NUMBER_assignfeedback_file_/…`
(mod/assign/feedback/file/importziplib.php), Canvas the name under which the submission was
downloaded (app/models/assignment.rb, infer_comment_context_from_filename).
"""

import csv
import io
import re
import zipfile
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from classroom.grader.collect import Upload
from classroom.grader.verdicts import Grades

_LAST_NAMES = ("Last name", "Surname", "LastName")
_FIRST_NAMES = ("First name", "FirstName")
_NUMBER = re.compile(r" \(\d+\)$")
_MOODLE_FOLDER = re.compile(r"(?P<name>.+?)_(?P<id>\d+)_assignsubmission_file")


@dataclass(frozen=True)
class Person:
    """Somebody on a roster.

    Attributes:
        id: The platform's number of the person: Canvas's `ID`, Moodle's `Identifier`, which is
            another one in each assignment, or else Moodle's `ID number`. May be empty.
        first_name: May be empty.
        last_name: The whole name where the file does not tell its parts.
        email: May be empty.
        row: In the file, counted from 0 after the heads.

    """

    id: str
    first_name: str
    last_name: str
    email: str
    row: int

    @property
    def name(self) -> str:
        """First name and last name."""
        return f"{self.first_name} {self.last_name}".strip()


@dataclass(frozen=True)
class Roster:
    """A platform's file of a class.

    Attributes:
        platform: `moodle` or `canvas`.
        heads: Of its columns.
        rows: Its cells, row by row.
        people: In the order of the file.
        delimiter: Between its cells.

    """

    platform: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    people: tuple[Person, ...]
    delimiter: str = ","

    def students(
        self, uploads: Mapping[str, Upload], known: Collection[str] = ()
    ) -> dict[Person, str]:
        """Return the name of each person's folder in `submitted/`.

        By the platform's number, if a submission came with it; else by the name, if nobody else on
        the roster has it. Who has submitted nothing gets the name that a submission would get.

        Args:
            uploads: By the name of a folder.
            known: Names of other folders.

        """
        times = Counter(upload.id for upload in uploads.values())
        by_id = {each.id: student for student, each in uploads.items() if times[each.id] == 1}
        by_id.pop("", None)
        by_name = {_letters(student): student for student in (*known, *uploads)}
        names = Counter(_letters(person.name) for person in self.people)
        found = {}
        for person in self.people:
            folder = self._folder(person)
            if names[_letters(person.name)] > 1:
                found[person] = by_id.get(person.id, f"{folder} {person.id or person.email}")
            else:
                found[person] = by_id.get(person.id) or by_name.get(_letters(folder), folder)
        return found

    def _folder(self, person: Person) -> str:
        if self.platform == "canvas":
            return _letters(person.last_name + person.first_name)
        return person.name.replace("/", " ")

    def with_grades(
        self, grades: Mapping[Person, Grades], assignment: str, column: str = "", absent: str = ""
    ) -> str:
        """Return the file with the grades of an assignment, as the platform imports it.

        For Canvas, without the columns of other assignments, which may have changed since.

        Args:
            grades: By person; those who are missing have submitted nothing.
            assignment: Such as `01_attention`.
            column: The head of the column for the grades. By default `Grade` in Moodle's worksheet,
                else the assignment's name; Canvas's number in brackets may follow it.
            absent: What is written for those who have submitted nothing.

        Raises:
            ValueError: If the platform counts to another number of points.

        """
        column = column or ("Grade" if "Identifier" in self.heads else assignment)
        own = [at for at, head in enumerate(self.heads) if column in (head, _NUMBER.sub("", head))]
        kept = [*range(len(self.heads))]
        if self.platform == "canvas":
            kept = [*range(self.heads.index("Section") + 1), *own[:1]]
        heads, *rows = (
            [row[at] if at < len(row) else "" for at in kept] for row in (self.heads, *self.rows)
        )
        if not own:
            for row, cell in zip((heads, *rows), (column, *[""] * len(rows)), strict=True):
                row.append(cell)
        at = kept.index(own[0]) if own else -1
        points = f"{max((each.points for each in grades.values()), default=0):g}"
        for row in rows:
            if self.platform == "canvas" and "Points Possible" in row[0]:
                row[at] = points
            if "Maximum grade" in heads and grades:
                _require_maximum(row[heads.index("Maximum grade")], points)
        for person in self.people:
            found = grades.get(person)
            rows[person.row][at] = f"{round(found.earned, 2):g}" if found else absent
        file = io.StringIO()
        csv.writer(file, delimiter=self.delimiter, lineterminator="\n").writerows([heads, *rows])
        return file.getvalue()


def _require_maximum(text: str, points: str) -> None:
    maximum = text.strip().replace(",", ".")
    if re.fullmatch(r"[\d.]+", maximum) and float(maximum) != float(points):
        raise ValueError(
            f"the assignment is worth {points} points, and Moodle's maximum grade is {maximum}: "
            f"set it to {points} in Moodle, and download the worksheet again"
        )


def _letters(name: str) -> str:
    """Return a name as Canvas puts it into the names of files."""
    return re.sub(r"\W", "", name).lower()


def read_roster(path: Path) -> Roster:
    """Read a CSV file that Moodle or Canvas wrote.

    Raises:
        ValueError: If it is not UTF-8, or has no columns that one of them writes.

    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not UTF-8: download it again, unchanged") from None
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    lines = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if any(row)]
    heads, rows = lines[0] if lines else [], lines[1:]
    is_canvas = "Section" in heads and "ID" in heads
    is_moodle = "Full name" in heads or any(head in heads for head in _FIRST_NAMES)
    if not is_canvas and not is_moodle:
        raise ValueError(
            f"{path.name} is neither Moodle's grading worksheet, participants or grades nor "
            "Canvas's gradebook, or not in English, to which the platform must be set: its columns "
            f"are {', '.join(heads) or 'none'}"
        )
    found = []
    for number, row in enumerate(rows):
        cells = dict(zip(heads, (cell.strip() for cell in row), strict=False))
        person = _person(cells, number, is_canvas)
        if person.name:
            found.append(person)
    platform = "canvas" if is_canvas else "moodle"
    return Roster(platform, tuple(heads), tuple(map(tuple, rows)), tuple(found), delimiter)


def _person(cells: Mapping[str, str], row: int, is_canvas: bool) -> Person:
    def first_of(*names: str) -> str:
        return next((cells[name] for name in names if cells.get(name)), "")

    first, last = first_of(*_FIRST_NAMES), first_of(*_LAST_NAMES)
    if is_canvas:
        if not cells.get("ID"):  # the rows of points and of posting
            return Person("", "", "", "", row)
        if name := cells.get("Student"):
            last, _, first = (part.strip() for part in name.partition(","))
        login = cells.get("SIS Login ID", "")
        return Person(cells["ID"], first, last, login if "@" in login else "", row)
    number = re.search(r"\d+$", cells.get("Identifier", ""))
    id_ = number[0] if number else first_of("ID number")
    return Person(id_, first, last or cells.get("Full name", ""), first_of("Email address"), row)


def feedback_archive(
    pages: Mapping[str, Path], uploads: Mapping[str, Upload], to: str, path: Path
) -> list[str]:
    """Write a ZIP archive of feedback pages, with the names that a platform wants.

    Args:
        pages: By student.
        uploads: By student.
        to: `moodle` or `canvas`.
        path: Of the archive.

    Returns:
        The students whose pages are not in it, because their submissions came by another way.

    """
    left_out = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for student, page in sorted(pages.items()):
            upload = uploads.get(student, Upload(""))
            *folders, name = upload.path.split("/")
            if to == "moodle" and (found := _MOODLE_FOLDER.match(folders[-1] if folders else name)):
                owner = f"{found['name'].replace('_', ' ')}_{found['id']}"
                archive.write(page, f"{owner}_assignfeedback_file_/{page.name}")
            elif to == "canvas" and upload.id and not folders:
                archive.write(page, f"{name.removesuffix('.ipynb')}.html")
            else:
                left_out.append(student)
    return left_out
