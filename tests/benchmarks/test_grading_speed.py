"""A class graded end to end, sealed on two cores and by stock nbgrader: gradebook and feedback.

A class for each chapter, with its plots, and one with notebooks of five cells, in which the
machinery is all there is to wait for. Each candidate gets its own copy of the course with a
gradebook that knows the assignment and nobody in it; they take turns, ours first and last. Stock
nbgrader gets a part of the class, since a student takes it as long as the next. Run by `make bench`
(it takes most of an hour), where a sandbox is there, on a machine that does nothing else.
"""

import contextlib
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pytest

from classroom.author.notebooks import build_notebook, cell_of
from classroom.calls.local import LocalSubject
from classroom.exercise.run import run_checks
from classroom.grader import run as grading
from classroom.grader.run import Assignment, execute
from classroom.grader.submission import Submission
from classroom.grader.verdicts import Verdict
from classroom.limits import Limits
from classroom.nbgrader.gradebook import GradebookWriter
from classroom.sandbox.job import Job
from classroom.sandbox.launcher import Launcher
from groundup.looking.throughput import machine

pytestmark = [pytest.mark.benchmark, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).parent / "records" / "grading_speed.json"
WORKERS = 2
TIMES_ONE, TIMES_TWO = 20, 12
FIVE = "09_five"
CHAPTERS = sorted(folder.parent.name for folder in (ROOT / "solutions").glob("*/checks.py"))
# With few, what is measured of ours is how long torch takes to be imported four times.
STUDENTS = {name: {"sealed": 24, "stock": 6} for name in CHAPTERS}
STUDENTS[FIVE] = {"sealed": 96, "stock": 16}

TEXT = """\
# %%
import torch

from classroom import check

# %% [markdown]
# {{exercise weights}}

# %% exercise="weights"
def weights(scores):
    ### BEGIN SOLUTION
    return torch.softmax(scores, dim=-1)
    ### END SOLUTION

# %% [markdown]
# {{exercise mix}}

# %% exercise="mix"
def mix(scores, value):
    ### BEGIN SOLUTION
    return weights(scores) @ value
    ### END SOLUTION
"""

CHECKS = '''\
"""What is graded."""

import torch

from classroom.exercise.expect import exercise, expect_agrees, expect_law, points

about = dict(title="Mix", asks="Write it.", difficulty=1, importance=1, minutes=1)


def scores(case):
    return (case.normal(case.size("queries", 5), case.size("keys", 7)),)


def scores_and_values(case):
    return (*scores(case), case.normal(case.size("keys", 7), case.size("width", 3)))


@exercise("weights", number="9.1", **about)
class TestWeights:
    @points(1)
    def test_each_row_is_a_softmax(self, subject, case):
        oracle = lambda scores: scores.softmax(-1)
        expect_agrees(subject, case, "weights", scores, oracle, {"weights": "queries keys"})

    @points(1)
    def test_the_weights_of_a_row_sum_to_one(self, subject, case):
        def law(seen, scores):
            return None if (seen.sum(-1) - 1).abs().max() < 1e-9 else "a row does not sum to 1"

        expect_law(subject, case, "weights", scores, law)


@exercise("mix", number="9.2", **about)
class TestMix:
    @points(2)
    def test_values_are_averaged(self, subject, case):
        oracle = lambda scores, value: scores.softmax(-1) @ value
        outputs = {"output": "queries width"}
        expect_agrees(subject, case, "mix", scores_and_values, oracle, outputs)
'''

MISTAKES = '''\
"""What goes wrong."""

import torch

from classroom.exercise.answers import Mistake


class OverQueries(Mistake, exercise="weights"):
    """The softmax runs over the queries."""

    def weights(scores):
        return torch.softmax(scores, dim=0)


class NoWeights(Mistake, exercise="mix"):
    """The scores are taken for weights."""

    def mix(scores, value):
        return scores @ value
'''

BY_HAND = {
    "weights": "def weights(scores):\n    up = scores.exp()\n    return up / up.sum(-1, True)",
    "mix": "def mix(scores, value):\n"
    "    return torch.stack([(w[:, None] * value).sum(0) for w in weights(scores)])",
}


def answers_of(folder, names):
    """Return the cells of the solution, of the mistakes and of the variants of an assignment."""
    from classroom.exercise.answers import load_answers

    notebook = nbformat.read(next(folder.glob("*.ipynb")), as_version=4)
    solution = {name: cell_of(notebook, name).source for name in names}
    kinds = [solution, {}]
    for file in ("mistakes.py", "variants.py"):
        by_exercise = {name: [] for name in names}
        for answer in load_answers(folder / file):
            by_exercise[answer.exercise].append(answer.cell)
        for i in range(max(map(len, by_exercise.values()), default=0)):
            found = {name: cells[i] for name, cells in by_exercise.items() if i < len(cells)}
            kinds.append({**solution, **found})
    return kinds


class Course:
    """A course with one assignment, a class that has handed it in, and copies to grade.

    Args:
        folder: Where it is made.
        name: Of the assignment; one of ours, or the one of five cells.

    """

    def __init__(self, folder, name):
        self.name = name
        self.root = folder / "course"
        self.solution = self.root / "solutions" / name
        if name == FIVE:
            self.solution.mkdir(parents=True)
            (self.solution / "five.py").write_text(TEXT)
            (self.solution / "checks.py").write_text(CHECKS)
            (self.solution / "mistakes.py").write_text(MISTAKES)
            nbformat.write(build_notebook(self.solution), self.solution / "five.ipynb")
        else:
            shutil.copytree(ROOT / "solutions" / name, self.solution)
        shutil.copy(ROOT / "nbgrader_config.py", self.root)
        self.run([*NBGRADER, "generate_assignment", name], self.root)
        self.handout = self.root / "exercises" / name
        self.file = next(self.handout.glob("*.ipynb")).name
        self.assignment = Assignment(self.handout)
        kinds = answers_of(self.solution, self.assignment.master.exercises)
        if name == FIVE:
            kinds.append(BY_HAND)
        for number in range(STUDENTS[name]["sealed"]):
            # Two stock processes share the class by the first letter.
            target = self.submitted / f"{'ab'[number % 2]}{number:03}" / name
            shutil.copytree(self.handout, target)
            notebook = nbformat.read(target / self.file, as_version=4)
            for exercise, source in kinds[number % len(kinds)].items():
                cell_of(notebook, exercise).source = source
            nbformat.write(notebook, target / self.file)

    @property
    def submitted(self):
        return self.root / "submitted"

    def copy(self, students=None):
        """Return a copy in which nobody is graded, with the first students alone."""
        shutil.rmtree(copy := self.root.with_name("copy"), ignore_errors=True)
        shutil.copytree(self.root, copy)
        if students is not None:
            for folder in sorted((copy / "submitted").iterdir(), key=lambda f: f.name[1:])[
                students:
            ]:
                shutil.rmtree(folder)
        return copy

    @staticmethod
    def run(*commands_and_root, may_fail=False):
        *commands, root = commands_and_root
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CLASSROOM_SEALED": "0"}
        running = [
            subprocess.Popen(
                command,
                cwd=root,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for command in commands
        ]
        for each in running:
            said, _ = each.communicate()
            if each.returncode and not may_fail:
                raise AssertionError(said[-3000:])
            if each.returncode:
                errors = [line for line in said.splitlines() if "rror" in line]
                print(root, each.args, *errors[:20], sep="\n")


NBGRADER = [sys.executable, "-m", "nbgrader"]
# Of what our configuration gives to nbgrader's own commands, stock nbgrader gets nothing. It takes
# the files beside a notebook, its checks among them, from the handout.
WITHOUT_OURS = """
c.CourseDirectory.source_directory = "exercises"
c.CourseDirectory.ignore = [".ipynb_checkpoints", "__pycache__"]
c.Autograde.pop("sanitize_preprocessors", None)
c.Autograde.pop("autograde_preprocessors", None)
c.GenerateFeedback.pop("exporter_class", None)
"""


def leave_ours_out(root):
    with (root / "nbgrader_config.py").open("a") as file:
        file.write(WITHOUT_OURS)


def stock(course, root):
    leave_ours_out(root)
    for step in ("autograde", "generate_feedback"):
        course.run([*NBGRADER, step, course.name], root, may_fail=True)


def two_stock(course, root):
    leave_ours_out(root)
    for step in ("autograde", "generate_feedback"):
        halves = [[*NBGRADER, step, course.name, "--student", f"{half}*"] for half in "ab"]
        course.run(*halves, root, may_fail=True)


def sealed(course, root):
    command = [sys.executable, "-m", "classroom", "grade", course.name, "--root", "."]
    course.run([*command, "--workers", str(WORKERS), "--feedback"], root)


CANDIDATES = {
    "sealed": sealed,
    "one stock process": stock,
    "two stock processes": two_stock,
}


def solved(root, name):
    """Return the exercises with all their points in a gradebook, by student.

    What a wrong answer still earns may depend on the inputs, and sealed grading draws its own.
    """
    from nbgrader.api import Gradebook

    database = f"sqlite:///{root / 'gradebook.db'}"
    with Gradebook(database, "attention_from_the_ground_up") as gradebook:
        return {
            s.student_id: {
                g.name for nb in s.notebooks for g in nb.grades if g.score == g.max_score
            }
            for s in gradebook.assignment_submissions(name)
        }


def pages(root, name):
    return {page.parent.parent.name for page in root.glob(f"feedback/*/{name}/*.html")}


class Accounting:
    """The kernel's account of a group of processes, living and gone; for root."""

    def __init__(self):
        old = Path("/sys/fs/cgroup/cpuacct")
        self.folder = (old if old.is_dir() else old.parent) / f"grading-speed-{os.getpid()}"
        self.folder.mkdir()

    def seconds(self):
        with contextlib.suppress(FileNotFoundError):
            return int((self.folder / "cpuacct.usage").read_text()) / 1e9
        return int((self.folder / "cpu.stat").read_text().split()[1]) / 1e6

    @contextlib.contextmanager
    def of_children(self):
        """Count processes that are started in the block."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:
            (self.folder.parent / "cgroup.procs").write_text(str(os.getpid()))


@pytest.fixture(scope="module")
def accounting():
    try:
        group = Accounting()
    except OSError as error:
        pytest.skip(f"processor seconds are counted by the kernel, for root: {error}")
    yield group
    for _ in range(100):
        with contextlib.suppress(OSError):
            group.folder.rmdir()
            return
        time.sleep(0.05)


@pytest.fixture(scope="module", params=[FIVE, *CHAPTERS])
def course(request, tmp_path_factory):
    return Course(tmp_path_factory.mktemp("class"), request.param)


def test_a_class_is_graded_many_times_faster_than_by_stock_nbgrader(course, accounting):
    seconds = {name: [] for name in CANDIDATES}
    processor = {name: [] for name in CANDIDATES}
    loads, found, lost = [], {}, {}
    by_stock = dict.fromkeys(CANDIDATES, STUDENTS[course.name]["stock"])
    students = by_stock | {"sealed": STUDENTS[course.name]["sealed"]}
    for name in ["sealed", "one stock process", "two stock processes", "sealed"]:
        root = course.copy(students[name])
        loads.append(os.getloadavg()[0])
        started, used = time.monotonic(), accounting.seconds()
        with accounting.of_children():
            CANDIDATES[name](course, root)
        seconds[name].append(time.monotonic() - started)
        processor[name].append(accounting.seconds() - used)
        found[name] = solved(root, course.name)
        print(name, seconds[name], processor[name], loads[-1], flush=True)
        # Now and then, stock nbgrader loses a submission to an error of its own.
        whole = found[name].keys() & pages(root, course.name)
        lost[name] = lost.get(name, 0) + students[name] - len(whole)
        differing = {s: found[name][s] ^ found["sealed"][s] for s in whole}
        assert not any(differing.values()), f"{name}: {differing}"
    assert lost["sealed"] == 0 and max(lost.values()) <= 1
    rate = {
        name: round(60 * students[name] / statistics.median(times), 1)
        for name, times in seconds.items()
    }
    times = {name: round(rate["sealed"] / rate[name], 1) for name in rate if name != "sealed"}
    goals = {"one stock process": TIMES_ONE, "two stock processes": TIMES_TWO}
    write(
        f"{course.name}: submissions per minute",
        students=students,
        workers=WORKERS,
        rate=rate,
        seconds=rounded(seconds),
        processor_seconds=rounded(processor),
        times_faster_than=times,
        goals=goals,
        met={name: times[name] >= goal for name, goal in goals.items()},
        submissions_lost=lost,
        load=[round(load, 1) for load in loads],
    )
    assert times["one stock process"] > 1


def rounded(seconds):
    return {name: [round(s, 1) for s in times] for name, times in seconds.items()}


class Spent:
    """Processor seconds of this process and of a sandbox, by phase."""

    def __init__(self, group):
        self.group = group
        self.phases = {}

    @contextlib.contextmanager
    def on(self, phase):
        ours, theirs = time.process_time(), self.group.seconds()
        yield
        here, there = self.phases.get(phase, (0.0, 0.0))
        there += self.group.seconds() - theirs
        self.phases[phase] = here + time.process_time() - ours, there

    def watch(self, monkeypatch, owner, name, phase):
        function = getattr(owner, name)

        def watched(*args, **kwargs):
            with self.on(phase):
                return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, watched)


def floor(course, answers):
    """Run cells and checks in this process, with nothing around them."""
    namespace = {"__name__": "__main__"}
    for cell in answers.cells:
        if cell.checks:
            run_checks(course.handout, cell.checks, LocalSubject(namespace), "unseen")
        elif cell.type == "code":
            with contextlib.suppress(Exception), contextlib.redirect_stdout(None):
                exec(cell.source, namespace)
    plt.close("all")


def test_where_the_time_of_a_submission_goes(course, accounting, one_thread, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    plt.switch_backend("agg")
    spent = Spent(accounting)
    used, sandbox = accounting.seconds(), contextlib.ExitStack()
    with accounting.of_children():
        launcher = sandbox.enter_context(Launcher())
    starting = accounting.seconds() - used
    folders = sorted(folder / course.name for folder in course.submitted.iterdir())[:25]
    root = course.copy()
    with (
        sandbox,
        GradebookWriter(root, course.name, Path(course.file).stem) as writer,
    ):

        def all_of_it(folder):
            with spent.on("intake"):
                answers = Submission.read(folder, course.assignment.master).answers(
                    course.assignment.master
                )
            execution = execute(launcher, course.assignment, answers, "unseen", Limits())
            with spent.on("rebuild"):
                notebook = execution.notebook()
            student = folder.parent.name
            with spent.on("gradebook"):
                verdict = Verdict(
                    assignment=course.name,
                    student=student,
                    key="key",
                    reports=tuple(execution.reports.values()),
                    received=answers.received.isoformat(),
                )
                writer.write(verdict, notebook)
            with spent.on("feedback"):
                writer.write_feedback(student, course.submitted)
            with spent.on("floor"):
                floor(course, answers)

        # It would hide what is spent: a submission is judged in a fork.
        monkeypatch.setattr(grading, "in_a_fork", lambda steps, *limits: steps())
        spent.watch(monkeypatch, Launcher, "start_job", "start of the job")
        spent.watch(monkeypatch, Job, "run", "cells")
        spent.watch(monkeypatch, Job, "_connect", "forks")
        spent.watch(monkeypatch, Job, "_disconnect", "forks")
        spent.watch(monkeypatch, Job, "kill", "end of the job")
        spent.watch(monkeypatch, grading, "run_checks", "checks, forks among them")
        all_of_it(folders[0])
        spent.phases.clear()
        for folder in folders[1:]:
            all_of_it(folder)
    per_submission = {
        phase: {
            "grader": round(ours / (len(folders) - 1), 4),
            "sandbox": round(theirs / (len(folders) - 1), 4),
        }
        for phase, (ours, theirs) in spent.phases.items()
    }
    write(
        f"{course.name}: processor seconds per submission",
        students=len(folders) - 1,
        phases=per_submission,
        start_of_the_sandbox=round(starting, 2),
        load=round(os.getloadavg()[0], 1),
    )
    assert set(per_submission) >= {"cells", "forks", "gradebook", "feedback", "floor"}


def write(metric, **found):
    about = machine()
    row = {
        "metric": metric,
        **found,
        "hardware": f"{os.cpu_count()} cores of {about['processor']}",
        "versions": {name: version(name) for name in ("nbgrader", "nbclient", "ipykernel", "torch")}
        | {"python": platform.python_version()},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    rows = json.loads(RECORD.read_text()) if RECORD.exists() else []
    rows = [old for old in rows if old["metric"] != metric] + [row]
    RECORD.write_text(json.dumps(sorted(rows, key=lambda r: r["metric"]), indent=2) + "\n")
