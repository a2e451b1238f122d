"""A student's way through the course: every notebook solved in order, then graded sealed.

After each chapter the student's own library is built from what is there. In the end it is whole:
the course's trained model computes by it as by the reference, a new model is trained by it and
writes, and all that was handed in earns all points. Run by hand, where a sandbox is there (it takes
some minutes); how long each notebook takes is kept.
"""

import datetime
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from classroom.author.notebooks import cell_of
from classroom.course import assignments
from classroom.exercise.answers import files_beside
from classroom.exercise.run import list_checks
from classroom.grader.verdicts import Verdict
from classroom.student.mine import PIECES
from groundup import pretrained
from groundup.looking.throughput import machine

pytestmark = [pytest.mark.benchmark, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).parent / "records" / "whole_course.json"
STUDENT = "ada"
STEPS = 120  # the rate rises for the first hundred


class Course:
    """A clone of the course in which one student works."""

    def __init__(self, root):
        self.root = root
        for name in ("exercises", "solutions"):
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, root / name, ignore=ignore)
        shutil.copy(ROOT / "nbgrader_config.py", root)

    def run(self, *command):
        started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        found = subprocess.run(
            [sys.executable, "-m", *map(str, command)],
            cwd=self.root,
            capture_output=True,
            text=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        assert found.returncode == 0, f"{command}: {found.stdout[-2000:]}{found.stderr[-2000:]}"
        return found.stdout, time.monotonic() - started, processor

    def solve(self, name):
        """Fill in the released notebook, and lay beside it what the assignment wants there."""
        solved = nbformat.read(next((self.root / "solutions" / name).glob("*.ipynb")), 4)
        path = next((self.root / "exercises" / name).glob("*.ipynb"))
        notebook = nbformat.read(path, as_version=4)
        for exercise in list_checks(path.parent):
            cell_of(notebook, exercise).source = cell_of(solved, exercise).source
        nbformat.write(notebook, path)
        for file, data in files_beside(self.root / "solutions" / name).items():
            (path.parent / file).write_bytes(data)
        return path

    def hand_in(self, path):
        target = self.root / "submitted" / STUDENT / path.parent.name
        target.mkdir(parents=True)
        names = files_beside(self.root / "solutions" / target.name)
        for file in (path, *(path.parent / name for name in names)):
            shutil.copy(file, target)


def test_a_student_solves_the_course_builds_a_library_and_is_graded_sealed(tmp_path):
    course = Course(tmp_path / "course")
    load = os.getloadavg()[0]
    names = [folder.name for folder in assignments(ROOT / "solutions")]
    notebooks, own = {}, []
    for name in names:
        path = course.solve(name)
        said, seconds, processor = course.run("classroom", "check", path.parent, "--json")
        found = json.loads(said)
        assert found["earned"] == found["points"], said
        notebooks[name] = {"seconds": round(seconds, 1), "processor_seconds": round(processor, 1)}
        said, _, _ = course.run("classroom", "mine", "build")
        own.append(int(re.search(r"(\d+) of \d+ pieces are yours", said)[1]))
        course.hand_in(path)
        print(name, notebooks[name], f"{own[-1]} pieces", flush=True)
    assert own == sorted(own) and own[-1] == len(PIECES), own

    nats = []
    for options in ((), ("--library", "mine")):
        folder = pretrained.FOLDER / "reader"
        said, _, _ = course.run("groundup", "evaluate", folder, "--json", *options)
        nats.append(json.loads(said)["nats_per_token"])
    assert nats[1] == pytest.approx(nats[0], rel=1e-5)
    train = ("train", "--data", "python-reference", "--library", "mine", "--preset", "tiny")
    how = ("--schedule", "cosine", "--optimizer", "adamw", "--steps", STEPS, "--out", "own")
    said, _, _ = course.run("groundup", *train, *how)
    assert "made with adamw_step, clip_gradients, learning_rate of mine" in said
    said, _, _ = course.run("groundup", "generate", "own", "--library", "mine", "--prompt", "The ")
    assert said.startswith("The ") and len(said) > 20

    graded = {}
    for name in names:
        said, _, _ = course.run("classroom", "grade", name, "--feedback", "--json")
        verdict = Verdict.from_json(json.loads(said.splitlines()[0]))
        assert not (verdict.problem or verdict.allow_weaker)
        graded[name] = {"earned": verdict.earned, "points": verdict.points}
        assert (course.root / "feedback" / STUDENT / name).is_dir()
    print(graded)
    assert all(points["earned"] == points["points"] > 0 for points in graded.values())
    about = machine()
    record = {
        "notebooks": notebooks,
        "pieces_after_each_chapter": dict(zip(names, own, strict=True)),
        "graded": graded,
        "hardware": f"{about['processor']}, {os.cpu_count()} cores",
        "load_before": round(load, 1),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    RECORD.write_text(json.dumps(record, indent=2) + "\n")
