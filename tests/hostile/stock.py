"""Gives hostile cases to stock nbgrader, in a room without doors.

`grade` prepares a course in which some students hand in cases and one, honest, is graded after
them, and starts this file again inside bubblewrap, where nothing but that course can be written
and no network leads out. There nbgrader grades as it does anywhere else. What is asked afterwards
is what an instructor would see: the gradebook, the files, and whether the class was graded to its
end.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from attacks_in_files import HANDED_IN
from attacks_that_run import RUNNING
from corpus import ALL, NAME, RIGHT, SECRET, Case, contents, lay_out
from honest_styles import EDITORS, STYLES

CASES = RUNNING | HANDED_IN | STYLES | EDITORS
HONEST = Case("honest", ALL)
ASSIGNMENT = "09_exam"
NEIGHBOUR = "zoe"
SECONDS_PER_CELL = 60
SECONDS_PER_CASE = 120
CASES_AT_A_TIME = 10
SETTINGS = f"""
c = get_config()
c.CourseDirectory.course_id = "attention_from_the_ground_up"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "exercises"
c.Execute.kernel_name = "python3"
c.Execute.timeout = {SECONDS_PER_CELL}
c.Execute.startup_timeout = 300
c.OverwriteCells.add_missing_cells = True
"""
_SCORES = """
    SELECT base_cell.name, grade.auto_score FROM grade
    JOIN base_cell ON base_cell.id = grade.cell_id
    JOIN submitted_notebook ON submitted_notebook.id = grade.notebook_id
    JOIN submitted_assignment ON submitted_assignment.id = submitted_notebook.assignment_id
    WHERE submitted_assignment.student_id = ?
"""
_SECONDS_FOR_WHAT_RUNS_ON = 3


# Outside


def prepare(course: Path, exam: Path) -> None:
    """Make a course, and tell a gradebook of its exam.

    Args:
        course: An empty folder.
        exam: What is handed out.

    """
    (course / "nbgrader_config.py").write_text(SETTINGS)
    shutil.copytree(exam, course / "solutions" / ASSIGNMENT)
    make = ["nbgrader", "generate_assignment", ASSIGNMENT]
    subprocess.run(make, cwd=course, check=True, capture_output=True)


def grade_all(
    course: Path, known: dict[str, str], kept: Path, workers: int
) -> dict[str, dict[str, Any]]:
    """Let nbgrader grade every case that it can be given.

    Args:
        course: What `prepare` has made. It is copied.
        known: What a class can learn of the exam.
        kept: Where results are kept as they come, a line each: what is there is not done again.
        workers: How many nbgraders to run at a time.

    Returns:
        By case, see `grade`.

    """
    kept.touch()
    rows = dict(json.loads(line) for line in kept.read_text().splitlines())
    given = [n for n, c in CASES.items() if not c.not_for_stock and n not in rows]
    classes = [[name] for name in given if CASES[name].is_alone]
    others = [name for name in given if not CASES[name].is_alone]
    starts = range(0, len(others), CASES_AT_A_TIME)
    classes += [others[start : start + CASES_AT_A_TIME] for start in starts]
    with ThreadPoolExecutor(workers) as pool, kept.open("a") as lines:
        done = [pool.submit(grade, course, names, known) for names in classes]
        for one in as_completed(done):
            rows |= one.result()
            lines.writelines(json.dumps(item) + "\n" for item in one.result().items())
            lines.flush()
    return rows


def grade(course: Path, names: Sequence[str], known: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Let nbgrader grade a class.

    Whoever stops the grading of the others is put aside, and the rest is graded again without.

    Args:
        course: What `prepare` has made. It is copied.
        names: Of cases, each handed in by a student of its own.
        known: What a class can learn of the exam.

    Returns:
        By case: the points of each exercise (None for one without), whether the class was graded
        to its end, and what was harmed outside.

    """
    rows: dict[str, dict[str, Any]] = {}
    waiting = list(names)
    while waiting:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            root = Path(folder) / "course"
            shutil.copytree(course, root)
            found = _in_a_room(root, waiting, known)
        over = {name: row for name, row in found.items() if row.pop("is_over")}
        if not over:  # nbgrader did not begin at all, because of one of them
            half = len(waiting) // 2
            parts = (waiting[:half], waiting[half:])
            return rows | {k: v for part in parts for k, v in grade(course, part, known).items()}
        rows |= over
        waiting = [name for name in waiting if name not in rows]
    return rows


def _in_a_room(root: Path, names: Sequence[str], known: dict[str, str]) -> dict[str, Any]:
    places = [str(root.parent), str(root.parent)]
    room = ["bwrap", "--die-with-parent", "--new-session", "--unshare-pid", "--unshare-net"]
    room += ["--unshare-ipc", "--unshare-uts", "--cap-drop", "ALL", "--ro-bind", "/", "/"]
    room += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/dev/shm"]
    room += ["--bind", *places, "--chdir", str(root), "--"]
    variables = {"PATH": os.environ["PATH"], "HOME": "/tmp", "LANG": "C.UTF-8"}
    variables |= {"OMP_NUM_THREADS": "1", "JUPYTER_ALLOW_INSECURE_WRITES": "1"}
    variables["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *_ours()])
    done = subprocess.run(
        [*room, sys.executable, __file__],
        input=json.dumps({"root": str(root), "names": names, "known": known}),
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.stdout:
        return json.loads(done.stdout)
    if len(names) > 1:
        raise RuntimeError(f"one of these ended its grader and should be alone: {names}")
    nothing = {"earned": [None] * 3, "went_on": False, "harm": ["the grader was killed"]}
    return {names[0]: {**nothing, "is_over": True}}


def _ours() -> list[str]:
    """Return where this process has the checks from."""
    import classroom

    return [str(Path(classroom.__path__[0]).parent)]


# Inside


class _Near:
    """What lies near one student's code: a folder like a course, two servers, a process."""

    def __init__(self, folder: Path, number: int, handout: dict):
        self.folder = folder
        self.is_shared = folder.exists()
        if not self.is_shared:
            folder.mkdir(parents=True)
            lay_out(folder, handout)
        self.words = {
            "FOLDER": str(folder),
            "PORT": str(9000 + number),
            "ABSTRACT": f"{SECRET}-{number}",
        }
        self._tcp = socket.create_server(("127.0.0.1", 9000 + number))
        self._abstract = socket.socket(socket.AF_UNIX)
        self._abstract.bind(f"\0{self.words['ABSTRACT']}")
        self._abstract.listen()
        self._process = subprocess.Popen(["sleep", "3600"], start_new_session=True)
        self.words["PROCESS"] = str(self._process.pid)
        self._before = self._contents()

    def _contents(self) -> dict[str, bytes]:
        """All but what nbgrader itself writes."""
        if not self.is_shared:
            return contents(self.folder)
        parts = ("solutions", "exercises", f"submitted/{NEIGHBOUR}")
        return {k: v for part in parts for k, v in contents(self.folder / part).items()}

    def harm(self) -> Iterator[str]:
        if self._contents() != self._before:
            yield "files were changed"
        for server in (self._tcp, self._abstract):
            server.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                server.accept()
                yield "a server was reached"
        state = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state != "S":
            yield "another process was stopped"
        os.killpg(self._process.pid, signal.SIGKILL)


def _be_inside(root: Path, names: Sequence[str], known: dict[str, str]) -> dict[str, Any]:
    """Hand everything in, let nbgrader grade it, and look at what came of it."""
    handout = json.loads((root / "exercises" / ASSIGNMENT / NAME).read_text())
    students = {CASES[n].student or f"student {i:03}": n for i, n in enumerate(names)}
    for student in (*students, NEIGHBOUR):
        (root / "submitted" / student / ASSIGNMENT).mkdir(parents=True)
    HONEST.hand_in(root / "submitted" / NEIGHBOUR / ASSIGNMENT, handout, {})
    is_alone = len(names) == 1
    near = {}
    for number, (student, name) in enumerate(students.items()):
        outside = root if is_alone else root.parent / "outside" / str(number)
        if is_alone:
            (root / "seed").write_text(f"{SECRET} seed")
        near[student] = _Near(outside, number, handout)
        folder = root / "submitted" / student / ASSIGNMENT
        CASES[name].hand_in(folder, handout, near[student].words | known)
    log, is_killed = _nbgrader("autograde", (1 + len(names)) * SECONDS_PER_CASE)
    time.sleep(_SECONDS_FOR_WHAT_RUNS_ON)
    if any("script" in name for name in names):
        _nbgrader("generate_feedback", SECONDS_PER_CASE)
    begun = [s for s in students if _was_begun(root, s, log)]
    scores = {student: _scores(root, student) for student in (*students, NEIGHBOUR)}
    is_whole = scores[NEIGHBOUR] == list(ALL)
    is_stopped = is_killed or not _was_begun(root, NEIGHBOUR, log)
    stopped_by = max(begun, default="") if is_stopped else ""
    if not (is_whole or is_stopped or is_alone):
        raise RuntimeError(f"one of these harmed its neighbour and should be alone: {names}")
    rows = {}
    for student, name in students.items():
        harm = sorted({*_harm_in_pages(root, student), *near[student].harm()})
        if is_alone and not is_whole:
            harm.append("a neighbour lost points")
        rows[name] = {
            "earned": scores[student],
            "went_on": not is_stopped or (student != stopped_by and not is_alone),
            "harm": harm,
            "is_over": is_alone or not is_stopped or student <= stopped_by,
        }
    return rows


def _nbgrader(command: str, seconds: int) -> tuple[str, bool]:
    """Run a command; return what it said, and whether it had to be killed."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            ["nbgrader", command, ASSIGNMENT],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            process.wait(seconds)
            is_killed = process.returncode < 0
        except subprocess.TimeoutExpired:
            is_killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        said.seek(0)
        return said.read().decode(errors="replace"), is_killed


def _was_begun(root: Path, student: str, log: str) -> bool:
    """Whether nbgrader has come as far as this student."""
    submitted = str(Path("submitted", student, ASSIGNMENT))
    lines = [line for line in log.split("\n") if "No notebooks were matched" not in line]
    return (root / "autograded" / student).exists() or submitted in "\n".join(lines)


def _scores(root: Path, student: str) -> list[float | None]:
    try:
        with contextlib.closing(sqlite3.connect(root / "gradebook.db")) as gradebook:
            found = dict(gradebook.execute(_SCORES, (student,)))
    except (sqlite3.Error, UnicodeEncodeError):
        found = {}
    return [found.get(f"{name}-check") for name in RIGHT]


def _harm_in_pages(root: Path, student: str) -> Iterator[str]:
    """Look through what an instructor opens, and a student gets back."""
    for kind in ("autograded", "feedback"):
        for path in (root / kind / student).rglob("*"):
            if path.is_file():
                text = path.read_text(errors="replace")
                if SECRET in text.replace(f"{SECRET}-", ""):
                    yield f"a secret is in {kind}/"
                if path.suffix == ".html" and "<script>alert(198)" in text:
                    yield f"a script is in {kind}/"


if __name__ == "__main__":
    request = json.load(sys.stdin)
    print(json.dumps(_be_inside(Path(request["root"]), request["names"], request["known"])))
