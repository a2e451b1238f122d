"""Takes what a learning platform gives out, a folder or a ZIP archive, into `submitted/`.

A file is somebody's because of where it lies or what it is called. What is taken becomes a regular
file; what is not is told, and stops nothing else. Nothing is lost: an earlier hand-in moves to
`submitted/.earlier/`. Each file gets a line in a ledger, which is where its time of receipt counts
from, because copying a file changes every date that the file has itself.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import struct
import tempfile
import unicodedata
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from classroom.intake import MAX_FILE_BYTES, MAX_NOTEBOOKS, shown

LEDGER = "received.jsonl"
EARLIER = ".earlier"
_INCOMING = ".incoming-"
MAX_ENTRIES = 20_000
MAX_TOTAL_BYTES = 4 * 2**30
MAX_NAME = 100
_MAX_PATH = 1000
_CHUNK = 2**20
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar")
# What macOS and Windows add, and editors leave; not worth a line each.
_DEBRIS = re.compile(r"(^|/)(__MACOSX|\.ipynb_checkpoints|__pycache__)/|(^|/)(\.[^/]*|Thumbs\.db)$")
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_IS_ENCRYPTED = 1
_TIME_FIELD = 0x5455
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError)

# How files are called, the first that fits counts. Moodle: mod/assign/classes/downloader.php, with
# and without folders, of version 4 and before. Canvas: lib/content_zipper.rb.
PATTERNS = (
    r"(?P<student>[^/_]+)_(?P<id>\d+)_assignsubmission_file_?/(.*/)?(?P<file>[^/]+)",
    r"(?P<student>[^/_]+)_(?P<id>\d+)_assignsubmission_file_(?P<file>[^/]+)",
    r"(?P<student>anon_[^/_]+)_\d+_(?P<file>[^/]+)",
    r"(?P<student>[^/_]+)(_LATE)?_(?P<id>\d+)_\d+_(?P<file>[^/]+)",
    r"(?P<student>[^/]+)/(.*/)?(?P<file>[^/]+)",
    r"(?P<student>[^/]+)\.ipynb",
)


@dataclass(frozen=True)
class Row:
    """What became of a file.

    Attributes:
        path: Where it lies in its source.
        student: Whose it is, as far as it is known.
        outcome: `taken`, `there already`, `left out` or `refused`.
        why: In a sentence, where it was not taken.

    """

    path: str
    student: str
    outcome: str
    why: str = ""


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
            with a group `file`, and with a group `id` that tells people of one name apart.
        times_from_archive: Believe the times that the source gives, rather than the clock.
        wanted: Names of other files that are to be handed in with a notebook.

    Returns:
        What became of each file, in order.

    Raises:
        OSError: If a source is not there, or `submitted` cannot be written.
        ValueError: If the pattern is none, the ledger is damaged, or somebody else is collecting.

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
            raise ValueError(f"somebody else is collecting into {submitted}") from None
        _mend(ledger.fileno())
        for unfinished in submitted.glob(f"{_INCOMING}*"):
            shutil.rmtree(unfinished)
        known = receipts(submitted, assignment)
        for source in sources:
            with _entries(source) as entries:
                found = list(_assigned(entries, patterns, notebook_name, wanted, rows))
                by_student = _by_student(found, rows)
                budget = [MAX_TOTAL_BYTES]
                for student, files in by_student.items():
                    read = _read(student, files, budget, rows)
                    if not read:
                        continue
                    before = known.get(student, {})
                    hand_in = _HandIn(submitted, assignment, student, source.name, read, before)
                    time = now
                    if times_from_archive:
                        times = [each.entry.written for each in read if each.entry.written]
                        time = min(max(times, default=now), now)
                    try:
                        outcome, why = hand_in.keep(time, ledger.fileno(), times_from_archive)
                    except OSError as error:
                        outcome, why = "refused", f"it cannot be kept: {error.strerror}"
                    rows += [Row(each.entry.path, student, outcome, why) for each in read]
    return rows


def receipts(submitted: Path, assignment: str) -> dict[str, dict[str, datetime]]:
    """Return when notebooks of an assignment came in, by student and by digest.

    Raises:
        ValueError: If a line of the ledger is damaged.

    """
    found: dict[str, dict[str, datetime]] = defaultdict(dict)
    for line in _lines(submitted / LEDGER):
        if line["assignment"] == assignment:
            received = datetime.fromisoformat(line["received"])
            found[line["student"]].setdefault(line["sha256"], received)
    return dict(found)


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
                archive = stack.enter_context(zipfile.ZipFile(source))
                found = _of_archive(archive)
            except (zipfile.BadZipFile, NotImplementedError) as error:
                why = f"this is no folder, no notebook and no ZIP archive ({error})"
                found = [_Entry(source.name, lambda limit: b"", problem=why)]
        yield found


def _of_folder(source: Path) -> list[_Entry]:
    found: list[_Entry] = []

    def tell(error: OSError) -> None:
        path = Path(error.filename).relative_to(source).as_posix()
        found.append(
            _Entry(path, lambda limit: b"", problem=f"it cannot be read: {error.strerror}")
        )

    for folder, folders, files in os.walk(source, onerror=tell):
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
        problem = "it is no ordinary file"
    return _Entry(name, read, datetime.fromtimestamp(int(status.st_mtime), UTC), problem)


def _of_archive(archive: zipfile.ZipFile) -> list[_Entry]:
    return [_of_member(archive, info) for info in archive.infolist() if not info.is_dir()]


def _of_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Entry:
    kind = stat.S_IFMT(info.external_attr >> 16)
    problem = ""
    if kind == stat.S_IFLNK:
        problem = "it is a link"
    elif kind not in (0, stat.S_IFREG):
        problem = "it is no ordinary file"
    elif info.flag_bits & _IS_ENCRYPTED:
        problem = "it is encrypted"
    elif info.compress_type not in _METHODS:
        # Others unpack a few bytes into any number at once.
        problem = "it is compressed in an unusual way"

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
        raise ValueError(f"the pattern is no regular expression: {error}, got {pattern}") from None
    if any("student" not in each.groupindex for each in compiled):
        raise ValueError(f"the pattern must have a group (?P<student>…), got {pattern}")
    return compiled


@dataclass(frozen=True)
class _File:
    """A notebook that is somebody's."""

    entry: _Entry
    student: str
    id: str
    name: str


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
    for number, entry in enumerate(entries):
        if _DEBRIS.search(entry.path[-_MAX_PATH:]):
            continue
        groups = _groups(entry.path, patterns)
        student = unicodedata.normalize("NFC", groups.get("student") or "").strip()
        why = _why_refused(entry, student) if number < MAX_ENTRIES else "there are too many files"
        called, id_ = groups.get("file") or name, groups.get("id") or ""
        if why:
            rows.append(Row(entry.path, student, "refused", why))
        elif found := [each for each in wanted if _is_called(called, each)]:
            yield _File(entry, student, id_, found[0])
        elif not entry.path.lower().endswith(".ipynb"):
            rows.append(Row(entry.path, student, "left out", "it is no notebook"))
        else:
            yield _File(entry, student, id_, _plain(called))


def _groups(path: str, patterns: Sequence[re.Pattern[str]]) -> dict[str, str | None]:
    if len(path) <= _MAX_PATH:
        for pattern in patterns:
            if match := pattern.fullmatch(path):
                return match.groupdict()
    return {}


def _why_refused(entry: _Entry, student: str) -> str:
    if entry.problem:
        return entry.problem
    if entry.path.startswith("/") or ".." in entry.path.split("/") or "\0" in entry.path:
        return "its name leads elsewhere"
    if entry.path.lower().endswith(_ARCHIVES):
        return "it is an archive itself: unpack it"
    if not student:
        return "its name does not say whose it is: see --pattern"
    if len(student) > MAX_NAME or not student.isprintable() or "/" in student:
        return "its student's name cannot be that of a folder"
    if student.startswith(".") or student == LEDGER:
        return "its student's name cannot be that of a folder"
    return ""


def _is_called(name: str, wanted: str) -> bool:
    """Whether a file has a name, or what becomes of it when somebody uploads it again."""
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
        ids = sorted({file.id for file in own})
        if len(ids) > 1:
            why = f"there are several people of this name ({', '.join(ids)}): see --pattern"
            rows += [Row(file.entry.path, student, "refused", why) for file in own]
            del by_student[student]
    return dict(by_student)


# What it is


def _read(student: str, files: Sequence[_File], budget: list[int], rows: list[Row]) -> list[_Read]:
    """Read somebody's files; two notebooks of one name get names of their own."""
    read: list[_Read] = []
    for file in files:
        data, why, is_notebook = b"", "", file.name.endswith(".ipynb")
        taken = {each.name for each in read}
        if not is_notebook and file.name in taken:
            why = f"there is another {file.name}"
        elif is_notebook and sum(name.endswith(".ipynb") for name in taken) == MAX_NOTEBOOKS:
            why = f"there are more than {MAX_NOTEBOOKS} notebooks"
        elif budget[0] <= 0:
            why = f"all files together are larger than {MAX_TOTAL_BYTES // 2**30} GB"
        else:
            try:
                data = file.entry.read(MAX_FILE_BYTES + 1)
            except _BROKEN as error:
                why = f"it is damaged ({shown(str(error), 60)})"
            budget[0] -= len(data)
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
class _HandIn:
    """What one student handed in, on its way to its place."""

    submitted: Path
    assignment: str
    student: str
    source: str
    files: Sequence[_Read]
    before: Mapping[str, datetime]

    def keep(self, time: datetime, ledger: int, is_from_archive: bool) -> tuple[str, str]:
        """Put it where it is graded from, unless it is there or a later one is."""
        target = self.submitted / self.student / self.assignment
        if target.is_symlink() or target.parent.is_symlink():
            return "refused", "the student's folder is a link"
        new = {file.digest for file in self.files}
        there = _digests(target, {file.name for file in self.files})
        if there == new:
            return "there already", ""
        latest = max((self.before[d] for d in there if d in self.before), default=None)
        if is_from_archive and latest is not None and latest > time:
            return "refused", f"what is there is later, of {latest:%F %T} UTC"
        made = Path(tempfile.mkdtemp(prefix=_INCOMING, dir=self.submitted))
        try:
            for file in self.files:
                with (made / file.name).open("xb") as copy:
                    copy.write(file.data)
                    copy.flush()
                    os.fsync(copy.fileno())
            made.chmod(0o755)
            # The line comes first: a file that has none would count from its copying. What came in
            # before, and comes again, counts from then.
            _append(
                ledger, [self._line(f, time) for f in self.files if f.digest not in self.before]
            )
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
    """Return the digests of what lies in a folder already: notebooks, and files of some names."""
    if not folder.is_dir():
        return set()
    found = {*folder.glob("*.ipynb"), *(folder / name for name in names)}
    files = [path for path in found if path.is_file() and not path.is_symlink()]
    return {hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


# The ledger


def _mend(ledger: int) -> None:
    """Cut off the half line of whoever was stopped while writing."""
    whole, _, half = os.pread(ledger, os.fstat(ledger).st_size, 0).rpartition(b"\n")
    if half:
        os.ftruncate(ledger, len(whole) + 1 if whole else 0)


def _append(ledger: int, lines: Sequence[dict[str, str]]) -> None:
    os.write(ledger, b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    os.fsync(ledger)


def _lines(path: Path) -> Iterator[dict[str, str]]:
    if not path.exists():
        return
    keys = {"assignment", "student", "file", "sha256", "received", "source"}
    whole = path.read_bytes().rpartition(b"\n")[0]
    for number, text in enumerate(whole.splitlines(), 1):
        try:
            line = json.loads(text)
            if set(line) != keys or datetime.fromisoformat(line["received"]).tzinfo is None:
                raise ValueError
        except (ValueError, TypeError):
            raise ValueError(f"{path}, line {number}: this is no line of the ledger") from None
        yield line
