"""A class of a thousand on one machine: its memory, its rate, and twenty kills in between.

A chapter's notebooks, of twelve kinds: the solution, mistakes, a blank one and a hostile one. Run
by hand, where a sandbox is there and nobody else is at work; SCALE_STUDENTS sets another size.
"""

import contextlib
import csv
import datetime
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from drill import Drill, orphans_come_here

from classroom.author.notebooks import cell_of
from classroom.exercise.answers import load_answers
from groundup.looking.throughput import machine

pytestmark = [pytest.mark.benchmark, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).parent / "records" / "grading_scale.json"
NAME, FILE = "01_attention", "attention.ipynb"
WORKERS, NUM_MISTAKES, NUM_KINDS = 2, 9, 12
NUM_STUDENTS = int(os.environ.get("SCALE_STUDENTS", 1000))
NUM_EARLY = NUM_STUDENTS // 10
NUM_NOTHING_NEW = 10 * NUM_STUDENTS
NUM_DRILLED, NUM_KILLS = max(NUM_STUDENTS // 5, 8), 20
HOSTILE = "import os\nos._exit(0)"
MAX_GROWTH = 1.25
SECONDS_FOR_NOTHING = 60


@pytest.fixture(scope="module")
def kinds():
    """Twelve notebooks, as text."""
    solution = nbformat.read(ROOT / "solutions" / NAME / FILE, as_version=4)
    handout = (ROOT / "exercises" / NAME / FILE).read_text()
    mistakes = load_answers(ROOT / "solutions" / NAME / "mistakes.py")
    cells = [{}, *({m.exercise: m.cell} for m in mistakes[:: len(mistakes) // NUM_MISTAKES])]
    cells = cells[: NUM_MISTAKES + 1]
    cells.append({mistakes[0].exercise: HOSTILE})
    found = [handout]
    for changed in cells:
        notebook = nbformat.from_dict(json.loads(nbformat.writes(solution)))
        for exercise, source in changed.items():
            cell_of(notebook, exercise).source = source
        found.append(nbformat.writes(notebook))
    assert len(set(found)) == NUM_KINDS
    return found


@pytest.fixture
def hand_in(kinds):
    """Make a course's folder, in which so many have handed in."""

    def make(root, num_students):
        for kind in ("solutions", "exercises"):
            shutil.copytree(ROOT / kind / NAME, root / kind / NAME)
        shutil.copy(ROOT / "nbgrader_config.py", root)
        for number in range(num_students):
            folder = root / "submitted" / f"student {number:05}" / NAME
            folder.mkdir(parents=True)
            (folder / FILE).write_text(kinds[number % len(kinds)])
        return Drill(root, NAME, WORKERS)

    return make


def write_record(name, found):
    about = machine()
    found |= {
        "hardware": f"{about['processor']}, {os.cpu_count()} cores",
        "load_before": found.pop("load"),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    rows = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    RECORD.write_text(json.dumps(rows | {name: found}, indent=2, sort_keys=True) + "\n")


def resident(process):
    """Return the MiB of a run's first process, and the most of any that grades or waits."""
    below = [process.memory_info().rss]
    for child in process.children(recursive=True):
        try:
            below.append(child.memory_info().rss)
        except psutil.NoSuchProcess:
            continue
    first, *others = (rss / 2**20 for rss in below)
    return first, max(others, default=0.0)


def grade_and_watch(drill, log, options, processes=()):
    """Grade; return the seconds, and the most MiB up to a tenth of the class and after that."""
    argv = [sys.executable, "-m", "classroom", "grade", NAME, *options]
    started, most = time.monotonic(), {"early": (0.0, 0.0), "late": (0.0, 0.0)}
    with log.open("w") as file:
        with subprocess.Popen(argv, cwd=drill.root, stdout=file, stderr=file) as head:
            watched = [psutil.Process(head.pid), *processes]
            while head.poll() is None:
                when = "early" if drill.num_lines() <= NUM_EARLY else "late"
                with contextlib.suppress(psutil.NoSuchProcess):
                    most[when] = tuple(map(max, most[when], *map(resident, watched)))
                time.sleep(1)
    seconds = time.monotonic() - started
    assert head.returncode == 0, log.read_text()[-3000:]
    assert set(drill.times_judged().values()) == {1}
    return seconds, *most.values()


def scores(csv_bytes):
    """Return the rows of a CSV without what differs: the student, and when it was received."""
    rows = csv.DictReader(csv_bytes.decode().splitlines())
    return [row | {"student": "", "received": ""} for row in rows]


def record_memory(name, seconds, early, late, load, **more):
    write_record(
        name,
        {
            "students": NUM_STUDENTS,
            "workers": WORKERS,
            "a_minute": round(60 * NUM_STUDENTS / seconds, 1),
            "mib_up_to_a_tenth": {"first": round(early[0]), "largest_other": round(early[1])},
            "mib_after_that": {"first": round(late[0]), "largest_other": round(late[1])},
            "load": load,
            **more,
        },
    )
    assert late[0] < MAX_GROWTH * early[0] and late[1] < MAX_GROWTH * early[1]


def test_memory_does_not_grow_with_the_class(hand_in, tmp_path):
    drill = hand_in(tmp_path / "course", NUM_STUDENTS)
    load, log = os.getloadavg()[0], tmp_path / "log"
    found = grade_and_watch(drill, log, ["--workers", str(WORKERS)])
    assert len(drill.times_judged()) == NUM_STUDENTS
    lines = sum(" a minute, " in line for line in log.read_text().splitlines())
    record_memory("memory", *found, load, lines_on_progress=lines)


def test_a_cluster_gives_the_same_scores_in_as_little_memory(hand_in, dask, tmp_path):
    address, workers = dask
    here = scores(hand_in(tmp_path / "few", NUM_KINDS).run("--no-gradebook"))
    drill, load = hand_in(tmp_path / "course", NUM_STUDENTS), os.getloadavg()[0]
    processes = [psutil.Process(worker.pid) for worker in workers]
    found = grade_and_watch(drill, tmp_path / "log", ["--scheduler", address], processes)
    there = scores((drill.kept / "scores.csv").read_bytes())
    assert there == [here[number % NUM_KINDS] for number in range(NUM_STUDENTS)]
    record_memory("cluster", *found, load, scores_as_on_one_machine=True)


def test_a_run_without_anything_new_ends_in_seconds(hand_in, tmp_path):
    """Verdicts are made by copying: what is timed is finding that each of them stands."""
    drill = hand_in(tmp_path / "course", NUM_KINDS)
    drill.run("--no-gradebook")
    records = [json.loads(x) for x in (drill.kept / "verdicts.jsonl").read_text().splitlines()]
    by_student = {record["student"]: record for record in records}
    submitted = drill.root / "submitted"
    with (drill.kept / "verdicts.jsonl").open("w") as file:
        for number in range(NUM_NOTHING_NEW):
            student, like = f"student {number:05}", f"student {number % NUM_KINDS:05}"
            file.write(json.dumps({**by_student[like], "student": student}) + "\n")
            if number >= NUM_KINDS:
                shutil.copytree(submitted / like, submitted / student)
    load, started = os.getloadavg()[0], time.monotonic()
    drill.run("--no-gradebook")
    seconds = time.monotonic() - started
    assert drill.num_lines() == NUM_NOTHING_NEW, "somebody was graded again"
    found = {"students": NUM_NOTHING_NEW, "seconds": round(seconds, 1), "load": load}
    write_record("nothing_new", found)
    assert seconds < SECONDS_FOR_NOTHING


def test_twenty_kills_change_no_score(hand_in, tmp_path):
    drill = hand_in(tmp_path / "course", NUM_DRILLED)
    load, moments = os.getloadavg()[0], random.Random(0)
    most = max(NUM_DRILLED // (2 * NUM_KILLS), 1)
    with orphans_come_here():
        for _ in range(NUM_KILLS):
            drill.kill(moments.randint(0, most), seconds=moments.uniform(0, 2))
        scores = drill.run()
    times = drill.times_judged()
    assert len(times) == NUM_DRILLED and set(times.values()) == {1}
    drill.require_gradebook_as(scores)
    undisturbed = drill.run("--kept", str(tmp_path / "undisturbed"), "--no-gradebook")
    is_same = scores == undisturbed
    write_record(
        "crash_drill",
        {
            "students": NUM_DRILLED,
            "kills": drill.num_kills,
            "same_scores_byte_for_byte": is_same,
            "jobs_run_again_after_they_were_finished": sum(times.values()) - NUM_DRILLED,
            "load": load,
        },
    )
    assert is_same
