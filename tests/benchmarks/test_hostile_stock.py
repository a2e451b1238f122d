"""Every hostile, broken and honest submission, graded by stock nbgrader and by `classroom grade`.

What stock nbgrader is given runs inside bubblewrap, where it can harm nothing but its own course;
what would use up the machine is left out. Sealed grading is given everything, as one class. It
takes an hour; what is done is kept in `build/`, so it can be stopped and gone on with.
"""

import datetime
import json
import os
import socket
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
import stock
from corpus import NAME, SECRET, contents, lay_out
from exam import LIMITS, known, write_exam

from classroom.grader.run import Assignment, ThisMachine, grade_folder
from classroom.grader.verdicts import Grades
from classroom.nbgrader.feedback import page
from groundup.looking.throughput import machine

RECORD = Path(__file__).parent / "records" / "hostile.json"
KEPT = Path(__file__).parents[2] / "build" / "hostile_stock.jsonl"
KINDS = {
    "while it runs": stock.RUNNING,
    "in its files": stock.HANDED_IN,
    "honest": stock.STYLES | stock.EDITORS,
}
WORKERS = 2


@pytest.fixture
def exam(tmp_path):
    folder = tmp_path / "handed_out" / stock.ASSIGNMENT
    folder.mkdir(parents=True)
    write_exam(folder)
    return folder


@pytest.fixture
def stock_rows(exam, tmp_path):
    """What nbgrader makes of each case, by its name."""
    course = tmp_path / "course"
    course.mkdir()
    stock.prepare(course, exam)
    KEPT.parent.mkdir(exist_ok=True)
    return stock.grade_all(course, known(exam), KEPT, WORKERS)


@pytest.fixture
def outside(exam, tmp_path):
    """What no case may touch: files, servers and a process."""
    folder = tmp_path / "outside"
    folder.mkdir()
    lay_out(folder, json.loads((exam / NAME).read_text()))
    before = contents(folder)
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("\0outside-benchmark")
    abstract.listen()
    process = subprocess.Popen(["sleep", "36000"])
    with socket.create_server(("127.0.0.1", 0)) as tcp, abstract:
        yield {
            "FOLDER": str(folder),
            "PORT": str(tcp.getsockname()[1]),
            "ABSTRACT": "outside-benchmark",
            "PROCESS": str(process.pid),
            **known(exam),
        }
        for server in (tcp, abstract):
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.accept()
        assert process.poll() is None
        process.kill()
        process.wait()
    assert contents(folder) == before


@pytest.fixture
def our_rows(exam, outside, tmp_path):
    """What sealed grading makes of each case, by its name; all of them are one class."""
    handout = json.loads((exam / NAME).read_text())
    students = {case.student or f"student {i:03}": n for i, (n, case) in enumerate(_cases())}
    honest = ("ada", stock.NEIGHBOUR)
    for student in (*students, *honest):
        folder = tmp_path / "submitted" / student / stock.ASSIGNMENT
        folder.mkdir(parents=True)
        case = stock.HONEST if student in honest else stock.CASES[students[student]]
        case.hand_in(folder, handout, outside)
    rows = {}

    def keep(verdict, notebook):
        reports = {report.exercise: report for report in verdict.reports}
        shown = page(notebook, Grades(verdict.student, stock.ASSIGNMENT, ()), reports)
        harm = ["a secret is in the page"] if SECRET in shown else []
        harm += ["a script is in the page"] if "<script>alert(198)" in shown else []
        said = [verdict.problem, *verdict.notes, *verdict.errors]
        said += [result.message for report in verdict.reports for result in report.results]
        rows[verdict.student] = {
            "earned": [report.earned for report in verdict.reports],
            "harm": harm,
            "told": next((words.split("\n")[0] for words in said if words), ""),
            "seconds": verdict.seconds,
        }

    assignment = Assignment(exam)
    kept = tmp_path / "graded"
    grade_folder(
        assignment, tmp_path / "submitted", kept, keep, LIMITS, engine=ThisMachine(WORKERS)
    )
    assert all(rows[student]["earned"] == [2, 7, 2] for student in honest)
    return {name: rows[student] for student, name in students.items()}


def _cases():
    return [(name, case) for cases in KINDS.values() for name, case in cases.items()]


def _total(earned):
    return None if all(points is None for points in earned) else sum(p or 0 for p in earned)


def _row(kind, name, stock_rows, our_rows):
    case, theirs, ours = stock.CASES[name], stock_rows.get(name), our_rows[name]
    return {
        "kind": kind,
        "case": name,
        "deserved": sum(case.deserved),
        "stock": _total(theirs["earned"]) if theirs else None,
        "stock_went_on": theirs["went_on"] if theirs else None,
        "stock_harm": theirs["harm"] if theirs else None,
        "not_for_stock": case.not_for_stock,
        "ours": _total(ours["earned"]),
        "ours_went_on": True,
        "ours_harm": ours["harm"],
        "told": ours["told"],
        "seconds": ours["seconds"],
    }


@pytest.mark.benchmark
def test_sealed_grading_gives_what_is_deserved_where_stock_grading_may_not(stock_rows, our_rows):
    rows = [
        _row(kind, name, stock_rows, our_rows) for kind, cases in KINDS.items() for name in cases
    ]
    record = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "hardware": f"{os.cpu_count()} cores of {machine()['processor']}",
        "load": f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
        "nbgrader": version("nbgrader"),
        "stock_seconds_per_cell": stock.SECONDS_PER_CELL,
        "points": sum(stock.ALL),
        "cases": rows,
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    KEPT.unlink()
    print(f"\n{'':60} deserved  stock  ours")
    for row in rows:
        given = "–" if row["stock"] is None else f"{row['stock']:g}"
        given += "" if row["stock_went_on"] in (True, None) else ", and stopped the class"
        harm = "".join(f"; {what}" for what in row["stock_harm"] or [row["not_for_stock"]] if what)
        print(f"{row['case']:60} {row['deserved']:8} {given:>6} {row['ours']:5}{harm}")
    for row in rows:
        assert (row["ours"], row["ours_harm"]) == (row["deserved"], []), row
        assert row["told"] or row["deserved"] == record["points"], row
        assert row["seconds"] <= LIMITS.seconds_per_submission + 1, row
