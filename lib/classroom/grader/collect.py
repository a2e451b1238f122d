"""Takes the downloads of a learning platform, folders or ZIP archives, into `submitted/`.

The path of a file shows whose it is. A file that is taken becomes a regular file; one that is not
is reported, and stops nothing else: every student has a budget of files and bytes. Nothing is lost:
an earlier submission moves to `submitted/.earlier/`. Each file gets a line in a ledger, which
records its time of receipt, because copying a file changes all its own dates.
"""

import contextlib
import fcntl
import hashlib
import mmap
import os
import re
import shutil
import stat
import struct
import tempfile
import unicodedata
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from classroom.calls.files import MAX_FILE_BYTES, shown
from classroom.grader.json_lines import append, read
from classroom.grader.submission import MAX_NOTEBOOKS
from classroom.grader.verdicts import FORMULA

LEDGER = "received.jsonl"
_LINE = {"assignment", "student", "file", "sha256", "received", "source"}
EARLIER = ".earlier"
_INCOMING = ".incoming-"
# Of one student.
MAX_FILES = 1000
MAX_BYTES = 128 * 2**20
# A notebook that unpacks to more than this many times its size holds little but zeros.
_MAX_RATIO = 200
_SMALL = 2**20
MAX_NAME = 100
_MAX_PATH = 1000
_CHUNK = 2**20
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar")
# Added by macOS, Windows and editors; not worth a line each.
_DEBRIS = re.compile(
    r"(^|/)(__MACOSX|\.ipynb_checkpoints|__pycache__)/|(^|/)(\.[^./][^/]*|Thumbs\.db)$"
)
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_IS_ENCRYPTED = 1
_IN_UTF_8 = 0x800
# In the directory of an archive: signature, two versions, flags, 18 bytes, length of the name, 16
# bytes, name.
_DIRECTORY_ENTRY = struct.Struct("<4s4xH18xH16x")
_SIGNATURE = b"PK\1\2"
_BAD_NAME = "\1"
_TIME_FIELD = 0x5455
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError)

# How files are named; the first that matches counts. Moodle: mod/assign/classes/downloader.php,
# with and without folders, of version 4 and before. Canvas: lib/content_zipper.rb.
PATTERNS = (
    r"(?P<student>[^/]+?)_(?P<id>\d+)_assignsubmission_file_?/(.*/)?(?P<file>[^/]+)",
    r"(?P<student>[^/]+?)_(?P<id>\d+)_assignsubmission_file_(?P<file>[^/]+)",
    r"(?P<student>anon_[^/_]+)_\d+_(?P<file>[^/]+)",
    r"(?P<student>[^/_]+)(_LATE)?_(?P<id>\d+)_\d+_(?P<file>[^/]+)",
    r"(?P<student>[^/]+)/(.*/)?(?P<file>[^/]+)",
    r"(?P<student>[^/]+)\.ipynb",
)
_PLAIN = 2  # the last ones fit all kinds of names


@dataclass(frozen=True)
class Row:
    """What was done with a file.

    Attributes:
        path: In its source.
        student: Whose it is, as far as it is known.
        outcome: `taken`, `there already`, `left out` or `refused`.
        why: In a sentence, where it was not taken.

    """

    path: str
    student: str
    outcome: str
    why: str = ""


@dataclass(frozen=True)
class Upload:
    """Under which name a learning platform gave out what a student submitted.

    Attributes:
        path: In the platform's archive.
        id: The platform's number of the person, empty if the path has none.

    """

    path: str
    id: str = ""


def collect(
    sources: Sequence[Path],
    submitted: Path,
    assignment: str,
    notebook_name: str,
    pattern: str | None = None,
    times_from_archive: bool = False,
    wanted: Sequence[str] = (),
) -> list[Row]:
    """Take notebooks, and what is wanted beside them, into `submitted/STUDENT/ASSIGNMENT/`.

    Args:
        sources: Folders, ZIP archives and single notebooks.
        submitted: Made if it is not there.
        assignment: Such as `01_attention`.
        notebook_name: What a file is called that has no name of its own, such as
            `attention.ipynb`.
        pattern: Regular expression for a whole path in a source, with a group `student`; maybe
            with a group `file`, and with a group `id` that distinguishes people of the same name.
        times_from_archive: Believe the times in the source, rather than the clock.
        wanted: Names of other files that a submission should hold.

    Returns:
        What was done with each file, in order.

    Raises:
        OSError: If a source is not there, or `submitted` cannot be written.
        ValueError: If the pattern is none, the ledger is damaged, or another `collect` is running.

    """
    patterns = _compiled(pattern)
    rows: list[Row] = []
    now = datetime.now(UTC).replace(microsecond=0)
    for source in sources:
        source.stat()
    submitted.mkdir(parents=True, exist_ok=True)
    with (submitted / LEDGER).open("a+b") as ledger:
        try:
            fcntl.flock(ledger, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another `collect` is writing into {submitted}") from None
        for unfinished in submitted.glob(f"{_INCOMING}*"):
            shutil.rmtree(unfinished)
        known = receipts(submitted, assignment)
        for source in sources:
            with _entries(source) as entries:
                found = list(_assigned(entries, patterns, notebook_name, wanted, rows))
                by_student = _by_student(found, rows)
                for student, files in by_student.items():
                    read = _read(student, files, rows)
                    if not read:
                        continue
                    before = known.get(student, {})
                    new = _NewSubmission(submitted, assignment, student, source.name, read, before)
                    time = now
                    if times_from_archive:
                        times = [each.entry.written for each in read if each.entry.written]
                        time = min(max(times, default=now), now)
                    try:
                        outcome, why = new.keep(time, times_from_archive)
                    except OSError as error:
                        outcome, why = "refused", f"it cannot be kept: {error.strerror}"
                    rows += [Row(each.entry.path, student, outcome, why) for each in read]
    return rows


def receipts(submitted: Path, assignment: str) -> dict[str, dict[str, datetime]]:
    """Return when notebooks of an assignment arrived, by student and by digest.

    Raises:
        ValueError: If a line of the ledger is damaged.

    """
    found: dict[str, dict[str, datetime]] = defaultdict(dict)
    for line in read(submitted / LEDGER, _parsed, "line of the ledger"):
        if line["assignment"] == assignment:
            received = datetime.fromisoformat(line["received"])
            found[line["student"]].setdefault(line["sha256"], received)
    return dict(found)


def uploads(submitted: Path, assignment: str = "") -> dict[str, Upload]:
    """Return as what the last notebook of each student came, by student.

    Args:
        submitted: Holds the ledger.
        assignment: Such as `01_attention`; all by default.

    Raises:
        ValueError: If a line of the ledger is damaged.

    """
    found = {}
    for line in read(submitted / LEDGER, _parsed, "line of the ledger"):
        if assignment in ("", line["assignment"]) and line["file"].endswith(".ipynb"):
            path, student = line["source"].partition(": ")[2], line["student"]
            ways = (_groups(path, [pattern]) for pattern in _compiled(None))
            ids = (way.get("id") or "" for way in ways if _folder_of(way) == student)
            found[student] = Upload(path, next(ids, ""))
    return found


def _parsed(line: dict[str, str]) -> dict[str, str]:
    if set(line) != _LINE or datetime.fromisoformat(line["received"]).tzinfo is None:
        raise ValueError
    return line


def to_table(rows: Sequence[Row]) -> str:
    """Return the rows for a terminal."""
    lines = [("student", "file", "outcome")]
    for row in rows:
        outcome = f"{row.outcome}: {row.why}" if row.why else row.outcome
        lines.append((shown(row.student, 30), shown(row.path, 60), outcome))
    widths = [max(len(line[column]) for line in lines) for column in (0, 1)]
    return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in lines)


# What a source holds


@dataclass(frozen=True)
class _Entry:
    """A file in a source; nothing of it has been read yet."""

    path: str
    read: Callable[[int], bytes]
    written: datetime | None = None
    problem: str = ""


@contextlib.contextmanager
def _entries(source: Path) -> Iterator[list[_Entry]]:
    with contextlib.ExitStack() as stack:
        if source.is_dir():
            found = _of_folder(source)
        elif source.suffix == ".ipynb":
            found = [_of_file(source, source.name)]
        else:
            try:
                archive = stack.enter_context(_archive(source, stack))
                members = [info for info in archive.infolist() if not info.is_dir()]
                found = [_of_member(archive, info) for info in members]
            except (zipfile.BadZipFile, NotImplementedError) as error:
                why = f"this is not a folder, a notebook or a ZIP archive ({error})"
                found = [_Entry(source.name, lambda limit: b"", problem=why)]
        yield found


def _archive(source: Path, stack: contextlib.ExitStack) -> zipfile.ZipFile:
    """Open a ZIP archive, even if a name in it is no UTF-8 and says that it is."""
    try:
        return zipfile.ZipFile(source)
    except UnicodeDecodeError:
        copy = stack.enter_context(tempfile.TemporaryFile())
        with source.open("rb") as file:
            shutil.copyfileobj(file, copy)
        _take_bad_names_for_another_encoding(copy)
        return zipfile.ZipFile(copy)


def _take_bad_names_for_another_encoding(file: IO[bytes]) -> None:
    file.flush()
    with mmap.mmap(file.fileno(), 0) as data:
        at = data.find(_SIGNATURE)
        while 0 <= at <= len(data) - _DIRECTORY_ENTRY.size:
            _, flags, length = _DIRECTORY_ENTRY.unpack_from(data, at)
            start = at + _DIRECTORY_ENTRY.size
            if flags & _IN_UTF_8 and not _is_utf_8(data[start : start + length]):
                data[at + 8 : at + 10] = struct.pack("<H", flags & ~_IN_UTF_8)
                data[start : start + 1] = _BAD_NAME.encode()
            at = data.find(_SIGNATURE, at + 1)


def _is_utf_8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _of_folder(source: Path) -> list[_Entry]:
    found: list[_Entry] = []

    def report(error: OSError) -> None:
        path = Path(error.filename).relative_to(source).as_posix()
        found.append(
            _Entry(path, lambda limit: b"", problem=f"it cannot be read: {error.strerror}")
        )

    for folder, folders, files in os.walk(source, onerror=report):
        folders.sort()
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in sorted([*files, *links]):
            path = Path(folder, name)
            found.append(_of_file(path, path.relative_to(source).as_posix()))
    return found


def _of_file(path: Path, name: str) -> _Entry:
    status = os.lstat(path)

    def read(limit: int) -> bytes:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            return file.read(limit)

    problem = ""
    if stat.S_ISLNK(status.st_mode):
        problem = "it is a link"
    elif not stat.S_ISREG(status.st_mode):
        problem = "it is not a regular file"
    return _Entry(name, read, datetime.fromtimestamp(int(status.st_mtime), UTC), problem)


def _of_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Entry:
    kind = stat.S_IFMT(info.external_attr >> 16)
    problem = ""
    if kind == stat.S_IFLNK:
        problem = "it is a link"
    elif kind not in (0, stat.S_IFREG):
        problem = "it is not a regular file"
    elif info.flag_bits & _IS_ENCRYPTED:
        problem = "it is encrypted"
    elif info.compress_type not in _METHODS:
        # Other methods may unpack a few bytes into any number at once.
        problem = "it is compressed in an unusual way: pack it again as an ordinary ZIP archive"
    elif info.file_size > max(_SMALL, _MAX_RATIO * info.compress_size):
        problem = f"it unpacks to more than {_MAX_RATIO} times its size: clear its outputs"

    def read(limit: int) -> bytes:
        with archive.open(info) as file:
            data = bytearray()
            while len(data) < limit and (more := file.read(min(_CHUNK, limit - len(data)))):
                data += more
            return bytes(data)

    return _Entry(info.filename.replace("\\", "/"), read, _written(info), problem)


def _written(info: zipfile.ZipInfo) -> datetime | None:
    """Return a member's time: in UTC where the archive has that, else by this machine's zone."""
    extra = info.extra
    while len(extra) >= 4:
        field, size = struct.unpack("<HH", extra[:4])
        if field == _TIME_FIELD and size >= 5 and extra[4] & 1 and len(extra) >= 9:
            return datetime.fromtimestamp(struct.unpack("<i", extra[5:9])[0], UTC)
        extra = extra[4 + size :]
    try:
        return datetime(*info.date_time).astimezone(UTC)
    except ValueError:
        return None


# Whose it is


def _compiled(pattern: str | None) -> list[re.Pattern[str]]:
    try:
        compiled = [re.compile(each) for each in ([pattern] if pattern else PATTERNS)]
    except re.error as error:
        raise ValueError(f"--pattern is not a regular expression: {error}, got {pattern}") from None
    if any("student" not in each.groupindex for each in compiled):
        raise ValueError(f"--pattern must have a group (?P<student>…), got {pattern}")
    return compiled


@dataclass(frozen=True)
class _File:
    """A file whose student is known."""

    entry: _Entry
    student: str
    id: str
    name: str
    as_given: str
    """The student's name as it is spelled in the path."""


@dataclass(frozen=True)
class _Read:
    """A file that has been read."""

    entry: _Entry
    name: str
    data: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def _assigned(
    entries: Sequence[_Entry],
    patterns: Sequence[re.Pattern[str]],
    name: str,
    wanted: Sequence[str],
    rows: list[Row],
) -> Iterator[_File]:
    num_files: Counter[str] = Counter()
    entries = [entry for entry in entries if not _DEBRIS.search(entry.path[-_MAX_PATH:])]
    patterns = _fitting([entry.path for entry in entries], patterns)
    for entry in entries:
        groups = _groups(entry.path, patterns)
        student = _folder_of(groups)
        num_files[student] += 1
        if num_files[student] > MAX_FILES:
            if num_files[student] == MAX_FILES + 1:
                why = f"there are more than {MAX_FILES:,} files: all from this one on are refused"
                rows.append(Row(entry.path, student, "refused", why))
            continue
        called, id_ = groups.get("file") or name, groups.get("id") or ""
        why = _why_refused(entry, student, as_given := groups.get("student") or "", id_)
        if why:
            rows.append(Row(entry.path, student, "refused", why))
        elif found := [each for each in wanted if _is_called(called, each)]:
            yield _File(entry, student, id_, found[0], as_given)
        elif not entry.path.lower().endswith(".ipynb"):
            rows.append(Row(entry.path, student, "left out", "it is not a notebook"))
        else:
            yield _File(entry, student, id_, _plain(called), as_given)


def _fitting(
    paths: Sequence[str], patterns: Sequence[re.Pattern[str]]
) -> Sequence[re.Pattern[str]]:
    """Return the patterns, that of the platform first which fits most notebooks of a source.

    A platform names all files alike, and a student chooses the end of a name, which may look like
    the name that another platform gives.
    """
    paths = [path for path in paths if path.lower().endswith(".ipynb") and len(path) <= _MAX_PATH]
    platforms, plain = patterns[:-_PLAIN], patterns[-_PLAIN:]
    return [
        *sorted(platforms, key=lambda each: -sum(map(bool, map(each.fullmatch, paths)))),
        *plain,
    ]


def _folder_of(groups: Mapping[str, str | None]) -> str:
    return unicodedata.normalize("NFC", groups.get("student") or "").strip()


def _groups(path: str, patterns: Sequence[re.Pattern[str]]) -> dict[str, str | None]:
    if len(path) <= _MAX_PATH:
        for pattern in patterns:
            if match := pattern.fullmatch(path):
                return match.groupdict()
    return {}


def _why_refused(entry: _Entry, student: str, as_given: str, id_: str) -> str:
    if entry.problem:
        return entry.problem
    if not id_ and as_given != as_given.strip():
        return "the student's name begins or ends with a space: it could be taken for another's"
    if entry.path.startswith(_BAD_NAME):
        return "its name says that it is UTF-8, and it is not"
    if entry.path.startswith("/") or ".." in entry.path.split("/") or "\0" in entry.path:
        return "its path leads out of the folder or archive"
    if entry.path.lower().endswith(_ARCHIVES):
        return "it is an archive itself: unpack it"
    if not student:
        return "its name does not show whose it is: see --pattern"
    if len(student) > MAX_NAME or not student.isprintable() or "/" in student:
        return "the student's name cannot be the name of a folder"
    if student.startswith(".") or student == LEDGER:
        return "the student's name cannot be the name of a folder"
    if student.startswith(FORMULA):
        return f"the student's name begins with {student[0]}, as formulas in a spreadsheet do"
    return ""


def _is_called(name: str, wanted: str) -> bool:
    """Whether a file has a name, or the name that a second upload gives it."""
    stem, dot, ending = wanted.rpartition(".")
    return (
        re.fullmatch(rf"{re.escape(stem)}(-\d+| ?\(\d+\))?{re.escape(dot + ending)}", name)
        is not None
    )


def _plain(name: str) -> str:
    """Return the name of a file that is harmless wherever it is printed."""
    stem = "".join(c if c.isprintable() and c != "/" else "_" for c in name[: -len(".ipynb")])
    return f"{stem.lstrip('.')[:MAX_NAME] or 'notebook'}.ipynb"


def _by_student(files: Sequence[_File], rows: list[Row]) -> dict[str, list[_File]]:
    by_student: dict[str, list[_File]] = defaultdict(list)
    for file in files:
        by_student[file.student].append(file)
    for student, own in list(by_student.items()):
        people = sorted({file.id or ascii(file.as_given) for file in own})
        if len(people) > 1:
            why = f"several people have this name ({', '.join(people)}): see --pattern"
            rows += [Row(file.entry.path, student, "refused", why) for file in own]
            del by_student[student]
    return dict(by_student)


# What it is


def _read(student: str, files: Sequence[_File], rows: list[Row]) -> list[_Read]:
    """Read a student's files; two notebooks of the same name get different ones."""
    read: list[_Read] = []
    bytes_left = MAX_BYTES
    for file in files:
        data, why, is_notebook = b"", "", file.name.endswith(".ipynb")
        taken = {each.name for each in read}
        if not is_notebook and file.name in taken:
            why = f"there is another {file.name}"
        elif is_notebook and sum(name.endswith(".ipynb") for name in taken) == MAX_NOTEBOOKS:
            why = f"there are more than {MAX_NOTEBOOKS} notebooks"
        elif bytes_left <= 0:
            why = f"all files together are larger than {MAX_BYTES // 2**20} MB"
        else:
            try:
                data = file.entry.read(MAX_FILE_BYTES + 1)
            except _BROKEN as error:
                why = f"it is damaged ({shown(str(error), 60)})"
            bytes_left -= len(data)
            if len(data) > MAX_FILE_BYTES:
                why = f"it is larger than {MAX_FILE_BYTES // 2**20} MB"
        if why:
            rows.append(Row(file.entry.path, student, "refused", why))
            continue
        name, stem, number = file.name, file.name[: -len(".ipynb")], 1
        while name in taken:
            number += 1
            name = f"{stem}-{number}.ipynb"
        read.append(_Read(file.entry, name, data))
    return read


@dataclass(frozen=True)
class _NewSubmission:
    """A student's files on their way into `submitted/`."""

    submitted: Path
    assignment: str
    student: str
    source: str
    files: Sequence[_Read]
    before: Mapping[str, datetime]

    def keep(self, time: datetime, is_from_archive: bool) -> tuple[str, str]:
        """Put it where it is graded from, unless it or a later one is there; say what was done."""
        target = self.submitted / self.student / self.assignment
        if target.is_symlink() or target.parent.is_symlink():
            return "refused", "the student's folder is a link"
        there = _digests(target, {file.name for file in self.files})
        if there == {file.digest for file in self.files}:
            return "there already", ""
        latest = max((self.before[d] for d in there if d in self.before), default=None)
        if is_from_archive and latest is not None and latest > time:
            return "refused", f"a later submission is there, from {latest:%F %T} UTC"
        made = Path(tempfile.mkdtemp(prefix=_INCOMING, dir=self.submitted))
        try:
            for file in self.files:
                with (made / file.name).open("xb") as copy:
                    copy.write(file.data)
                    copy.flush()
                    os.fsync(copy.fileno())
            made.chmod(0o755)
            # The line comes first: a file without one would count from its copying. A file that
            # arrived before, and arrives again, counts from then.
            new = [self._line(file, time) for file in self.files if file.digest not in self.before]
            append(self.submitted / LEDGER, new)
            self._put_aside(target)
            target.parent.mkdir(exist_ok=True)
            os.rename(made, target)
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return "taken", ""

    def _line(self, file: _Read, time: datetime) -> dict[str, str]:
        return {
            "assignment": self.assignment,
            "student": self.student,
            "file": file.name,
            "sha256": file.digest,
            "received": time.isoformat(),
            "source": f"{self.source}: {file.entry.path}",
        }

    def _put_aside(self, target: Path) -> None:
        if not target.exists():
            return
        earlier = self.submitted / EARLIER / self.student / self.assignment
        earlier.mkdir(parents=True, exist_ok=True)
        stamp, number = f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}", 1
        while (earlier / f"{stamp}-{number}").exists():
            number += 1
        os.rename(target, earlier / f"{stamp}-{number}")


def _digests(folder: Path, names: Collection[str]) -> set[str]:
    """Return the digests of what is in a folder already: notebooks, and files of some names."""
    if not folder.is_dir():
        return set()
    found = {*folder.glob("*.ipynb"), *(folder / name for name in names)}
    files = [path for path in found if path.is_file() and not path.is_symlink()]
    return {hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
