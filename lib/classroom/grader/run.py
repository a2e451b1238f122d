"""Grades submissions: students' code runs in a sandbox, its checks run outside.

On its way, a student's folder is a `Submission`; the cells of it that are graded are its `Answers`;
their `Execution` shows what they do; a `Verdict` is what they earned, exercise by exercise.

A submission can lose points for its author, and for no other student. A cell that ends its process
or never ends is left out, and the others run again without it; an exercise that is not checked
within the submission's time earns nothing; all else counts. What the sandbox sends is read and
judged in a process of this submission's own, which has limits: what it leaves in memory meets no
other submission. What was too slow beside others is tried again alone. Each verdict is kept as soon
as it is found, so a run that was stopped continues.
"""

import contextlib
import fcntl
import functools
import gc
import hashlib
import itertools
import json
import os
import platform
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import nbformat
import torch
from nbformat import NotebookNode

from classroom.calls.files import File, shown
from classroom.calls.local import LocalSubject
from classroom.course import folder_for, text_file
from classroom.exercise.answers import files_beside, load_answers, load_correct
from classroom.exercise.report import CheckResult, Report
from classroom.exercise.run import list_checks, load_checks, run_checks
from classroom.grader.collect import receipts
from classroom.grader.processes import (
    ALONE,
    Ended,
    Killed,
    Started,
    Turns,
    in_a_fork,
    side_by_side,
    start_early,
)
from classroom.grader.submission import (
    Answers,
    Cell,
    Master,
    Submission,
    Unreadable,
    rebuild,
    students_in,
)
from classroom.grader.verdicts import VERDICTS, Verdict, append_line, read_lines, with_kept
from classroom.limits import Limits
from classroom.sandbox.inside import memory
from classroom.sandbox.job import CellRun, Job, JobDied, JobTooSlow, ProtocolError
from classroom.sandbox.launcher import Launcher
from classroom.sandbox.layers import probe, require

Gradebook = Callable[[Verdict, NotebookNode], None]
Graded = tuple[Verdict, str]
"""A verdict, and the notebook as it ran, as nbformat writes it; "" if nothing ran."""

_UNFINISHED = "unfinished_run.json"
_LOCK = ".lock"
_OUT_OF_TIME = "The time for the whole submission was used up before this was checked."
_STOPPED = "stopped: "
_MENDED = "changed how later cells are run, which was undone"
_MAX_ERROR_LENGTH = 300
# At the first use of these, torch imports its compiler, or sympy for it.
_OF_THE_COMPILER = re.compile(
    r"\b(optim|testing|func|compile|checkpoint|gradcheck|vectorize|use_deterministic_algorithms)\b"
)
# What judging one submission may use: known mistakes run there, too, to be compared.
_JUDGING_BYTES = 2**30
_JUDGING_SECONDS = 60.0
_GRACE_SECONDS = 2.0
_ANY_SEED = "to get ready"


# One submission


@dataclass(frozen=True)
class Assignment:
    """What the grader knows of an assignment.

    Attributes:
        folder: As it was handed out, such as `exercises/01_attention`.

    """

    folder: Path

    @property
    def name(self) -> str:
        """Such as `01_attention`."""
        return self.folder.name

    @cached_property
    def master(self) -> Master:
        """Its notebook as it was handed out."""
        exercises = [exercise for exercise, _ in load_checks(self.folder).values()]
        wanted = sorted({name for exercise in exercises for name in exercise.files})
        return Master.read(text_file(self.folder).with_suffix(".ipynb"), wanted)

    @cached_property
    def digest(self) -> str:
        """Stands for all that grades: the handout, its checks, this package, torch and Python."""
        # In an order that does not depend on where the folders are.
        files = [*sorted(self.folder.glob("*.py")), *sorted(self.folder.glob("*.ipynb"))]
        files += sorted(Path(__file__).parents[1].rglob("*.py"))
        if (whole := folder_for(self.folder, "")) != self.folder:
            files += sorted(whole.glob("*.py"))
        contents = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
        return _sha256([*contents, torch.__version__, platform.python_version()])


@dataclass(frozen=True)
class Step:
    """The result of one cell; empty when the cell begins.

    Attributes:
        at: Index of the cell.
        report: If it is a check.
        run: If it ran.
        why_not: Why it is left out from now on.
        is_slow: Whether it did not end in its time.

    """

    at: int
    report: Report | None = None
    run: CellRun | None = None
    why_not: str = ""
    is_slow: bool = False


class Execution:
    """Answers at work: what their cells showed, where they stopped, and what the checks found.

    A cell that ended its job is not run again, and an exercise that was checked is not checked
    again. What comes after the last check is not run: nothing depends on it.

    Attributes:
        reports: By exercise.
        errors: By the index of a cell, why it did not run to its end.
        outputs: By the index of a cell, what it showed, as a notebook keeps it.
        seconds: Wall time.
        slow: Indices of the cells that did not end in their time, or were not reached in it.
        needs_compiler: Whether they may use what makes torch import its compiler.

    """

    def __init__(self, assignment: Assignment, answers: Answers, limits: Limits | None = None):
        self.reports: dict[str, Report] = {}
        self.errors: dict[int, str] = {}
        self.outputs: dict[int, Sequence[Mapping[str, Any]]] = {}
        self.seconds = 0.0
        self.slow: set[int] = set()
        self._assignment = assignment
        self._answers = answers
        self._limits = limits or Limits()
        self._left_out: set[int] = set()
        self._bytes: dict[int, int] = {}
        self._at: int | None = None
        checks = [at for at, cell in enumerate(answers.cells) if cell.checks]
        self._last_check = max(checks, default=-1)
        self.needs_compiler = need_compiler(answers.cells[: self._last_check + 1])

    def steps(self, launcher: Launcher, seed: str, deadline: float) -> Iterator[Step]:
        """Run and check what is left, cell by cell, in a job of its own, until that ends."""
        torch.set_num_threads(1)  # a fork would wait for ever for threads it lacks
        with launcher.start_job(self._limits, deadline) as job:
            if self.needs_compiler:
                job.import_compiler()
            for at, cell in enumerate(self._answers.cells):
                if time.monotonic() >= job.deadline or not job.is_alive:
                    return
                if self._is_done(at):
                    continue
                yield Step(at)
                step = self._check(job, at, seed) if cell.checks else self._run(job, at)
                self.take(step)
                yield step
            if job.is_alive:
                yield Step(len(self._answers.cells))

    def take(self, step: Step) -> None:
        """Keep the result of a cell."""
        at = self._at = step.at
        if step.is_slow:
            self.slow.add(at)
        if step.report:
            self.reports[step.report.exercise] = step.report
        if step.why_not:
            self.errors[at] = f"was left out: {step.why_not}"
            self._left_out.add(at)
        if step.run:
            self._keep(at, step.run)

    @property
    def is_over(self) -> bool:
        """Whether a job came to the end."""
        return self._at == len(self._answers.cells)

    def give_up_a_step(self, how: str) -> None:
        """Leave out the cell at which judging it was ended."""
        assert self._at is not None
        exercise = self._answers.cells[self._at].checks
        if exercise:
            self.leave_unchecked(
                "This check was stopped: with what your code returned or asked for, it took "
                f"more than {_JUDGING_BYTES // 2**20:,} MiB or {_JUDGING_SECONDS:g} s ({how}).",
                [exercise],
            )
        else:
            self.take(Step(self._at, why_not=f"what it showed could not be read ({how})"))

    def try_the_slow_again(self) -> None:
        """Forget what was too slow, so that it is run and checked again."""
        for at in self.slow:
            self.reports.pop(self._answers.cells[at].checks, None)
        self._left_out -= self.slow
        self.slow.clear()
        self._at = None

    def _is_done(self, at: int) -> bool:
        cell = self._answers.cells[at]
        if cell.checks:
            return cell.checks in self.reports
        return cell.type != "code" or at in self._left_out or at > self._last_check

    def _check(self, job: Job, at: int, seed: str) -> Step:
        name = self._answers.cells[at].checks
        with job.serving(self._answers.others) as subject:
            report = run_checks(self._assignment.folder, name, subject, seed)
        return Step(at, report, is_slow=subject.was_too_slow)

    def _run(self, job: Job, at: int) -> Step:
        cell = self._answers.cells[at]
        others = sum(size for each, size in self._bytes.items() if each != at)
        most_bytes = max(self._limits.output_bytes_together - others, 1)
        try:
            run = job.run(cell.source, cell.only_adds, most_bytes)
        except (JobDied, JobTooSlow, ProtocolError) as why:
            return Step(at, why_not=str(why), is_slow=isinstance(why, JobTooSlow))
        is_slow = bool(run.error) and run.seconds >= self._limits.seconds_per_cell
        return Step(at, run=run, is_slow=is_slow)

    def _keep(self, at: int, run: CellRun) -> None:
        self.errors.pop(at, None)
        self.outputs[at], self._bytes[at] = run.outputs, run.num_bytes
        error = f"{_STOPPED}{run.error}" if run.error else ""
        if at in self.slow:
            error = f"did not end within {self._limits.seconds_per_cell:g} s"
        if run.is_restored:
            error = f"{error}; it also {_MENDED}" if error else _MENDED
        if error:
            self.errors[at] = error

    def leave_unchecked(self, why: str, exercises: Iterable[str] = ()) -> None:
        """Give exercises that have no report one that says why they were not checked.

        Args:
            why: In a sentence.
            exercises: Their names; all of the assignment by default.

        """
        about, checks = load_checks(self._assignment.folder), list_checks(self._assignment.folder)
        for name in exercises or self._assignment.master.exercises:
            title = f"{about[name][0].number} {about[name][0].title}"
            results = tuple(CheckResult(check, points, 0, why) for check, points in checks[name])
            self.reports.setdefault(name, Report(name, title, results))

    def leave_the_rest(self) -> None:
        """Give exercises for which no time was left a report that says so."""
        self.slow |= {
            at
            for at, cell in enumerate(self._answers.cells)
            if cell.checks and not self._is_done(at)
        }
        self.leave_unchecked(_OUT_OF_TIME)

    def error_sentences(self) -> tuple[str, ...]:
        """Return a sentence for each cell that did not run to its end.

        None for a cell that was handed out like this and stopped: it shows what an answer does that
        is reported on anyway, or it draws with a library that is not in the sandbox.
        """
        handed_out = self._assignment.master.notebook.cells
        sentences = []
        for at, what in sorted(self.errors.items()):
            cell = self._answers.cells[at]
            is_given = cell.origin is not None and cell.source == handed_out[cell.origin].source
            if is_given and not cell.answers and what.startswith(_STOPPED):
                continue
            where = f"cell {at + 1} ({cell.answers})" if cell.answers else f"cell {at + 1}"
            sentences.append(f"{where} {shown(what, _MAX_ERROR_LENGTH)}")
        return tuple(sentences)

    def notebook(self, remarks: Sequence[str] = ()) -> NotebookNode:
        """Return the notebook with the outputs of its cells.

        Args:
            remarks: What its author should know, put at the top. They may quote the author, so they
                are not rendered as markup.

        """
        notebook = rebuild(self._assignment.master, self._answers)
        for at, outputs in self.outputs.items():
            notebook.cells[at].outputs = [nbformat.from_dict(output) for output in outputs]
        if remarks:
            text = "\n".join(["```text", *(f"- {remark}" for remark in remarks), "```"])
            notebook.cells.insert(0, nbformat.v4.new_markdown_cell(text, id="remarks"))
        return notebook


def need_compiler(cells: Iterable[Cell]) -> bool:
    """Return whether cells may use what makes torch import its compiler."""
    return any(cell.type == "code" and _OF_THE_COMPILER.search(cell.source) for cell in cells)


def execute(
    launcher: Launcher,
    assignment: Assignment,
    answers: Answers,
    seed: str,
    limits: Limits,
    turns: Turns = ALONE,
) -> Execution:
    """Run answers in a sandbox and check them from outside.

    What was too slow beside others is tried again alone; for that there is as much time again.

    Args:
        launcher: Starts the jobs.
        assignment: What is checked.
        answers: Of one submission.
        seed: What the inputs depend on.
        limits: What the submission may use.
        turns: Who else grades on this machine.

    Returns:
        A report for each exercise of the assignment, whatever the answers did.

    Raises:
        JobDied: If the sandbox does not start.
        Ended: If it is ended before the first cell, with which the answers have nothing to do.

    """
    execution = Execution(assignment, answers, limits)
    with turns.taken():
        _go_through(execution, launcher, seed, limits)
    if execution.slow and turns.path is not None:
        execution.try_the_slow_again()
        with turns.taken(alone=True):
            _go_through(execution, launcher, seed, limits)
    return execution


def _go_through(execution: Execution, launcher: Launcher, seed: str, limits: Limits) -> None:
    """Run and check what is left, within the time of a submission."""
    started = time.monotonic()
    deadline = started + limits.seconds_per_submission
    while not execution.is_over and time.monotonic() < deadline:
        launcher.be_ready()
        steps = partial(execution.steps, launcher, seed, deadline)
        is_begun = False
        try:
            for step in in_a_fork(
                steps, _JUDGING_BYTES, _JUDGING_SECONDS, deadline + _GRACE_SECONDS
            ):
                is_begun = True
                execution.take(step)
        except JobTooSlow:
            break  # there was no time left to start
        except Ended as how:
            if not is_begun:
                raise
            if time.monotonic() < deadline and not execution.is_over:
                execution.give_up_a_step(str(how))
    execution.leave_the_rest()
    execution.seconds += time.monotonic() - started


# A class


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is the same for all submissions of a run.

    Attributes:
        assignment: What is graded.
        limits: What each submission may use.
        allow_weaker: Go on where this machine lacks a layer of the sandbox.
        seed: Secret until the run is over.

    """

    assignment: Assignment
    limits: Limits
    allow_weaker: bool
    seed: str

    @property
    def commitment(self) -> str:
        """Proves afterwards that the seed was not changed, or chosen in anyone's favour."""
        return _sha256_of(self.seed)

    def about(self) -> dict[str, Any]:
        """Return what may be known of them while the run goes on, as JSON types."""
        return {
            "assignment": self.assignment.name,
            "seed_commitment": self.commitment,
            "checks": self.assignment.digest,
            "limits": asdict(self.limits),
            "allow_weaker": self.allow_weaker,
        }

    def key(self, submission: Submission) -> str:
        """Stand for everything that the scores of a submission depend on, except for the seed."""
        return _sha256([submission.digest, self.assignment.digest, asdict(self.limits)])


class Engine(Protocol):
    """Where submissions are graded."""

    def layers(self, allow_weaker: bool) -> frozenset[str]:
        """Return the names of the layers without which no verdict stands.

        Raises:
            TooWeak: If one is lacking and may not.

        """
        ...

    def grade_all(self, settings: Settings, submissions: Iterable[Submission]) -> Iterator[Graded]:
        """Grade submissions, in any order; yield each verdict as soon as it is found."""
        ...


@dataclass(frozen=True)
class ThisMachine:
    """Grades in processes of this machine, which share a sandbox.

    Attributes:
        num_workers: How many processes.
        started: Processes that were started before, and their sandbox.

    """

    num_workers: int = 1
    started: Started | None = None

    def layers(self, allow_weaker: bool) -> frozenset[str]:
        """Return what must be active here, as far as it is."""
        found = probe()
        require(found, allow_weaker)
        return frozenset(layer.name for layer in found if layer.is_required and layer.active)

    def grade_all(self, settings: Settings, submissions: Iterable[Submission]) -> Iterator[Graded]:
        """Grade submissions; only those at work, and one more per process, are in memory."""
        with contextlib.ExitStack() as stack:
            started = self.started or stack.enter_context(start_early(settings.allow_weaker))
            turns = ALONE
            if self.num_workers > 1:
                turns = Turns(Path(stack.enter_context(tempfile.NamedTemporaryFile()).name))
            grader = Grader(settings, started.sandbox, turns)
            for submission, graded in side_by_side(grader, submissions, self.num_workers, started):
                if isinstance(graded, Killed):
                    why = f"a process of the grader was killed {graded.how}"
                    graded = grader_failed(settings, submission.student, why)
                yield graded


@dataclass(frozen=True)
class Grader:
    """What a process that grades is started with, see `processes.Process`.

    Attributes:
        settings: Of the run.
        sandbox: Descriptor of a socket to a sandbox that several processes share, see `Launcher`;
            None to start one for this process alone.
        turns: Who else grades on this machine.

    """

    settings: Settings
    sandbox: int | None = None
    turns: Turns = ALONE

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Callable[[Submission], Graded]]:
        """Wait for a sandbox; yield what grades a submission in it."""
        get_ready(self.settings.assignment.folder)
        handed_out = Answers.blank(self.settings.assignment.master, datetime.now(UTC)).cells
        with Launcher(self.settings.allow_weaker, self.sandbox) as launcher:
            launcher.be_ready(need_compiler(handed_out))

            def work(submission: Submission) -> Graded:
                try:
                    return grade(launcher, self.settings, submission, self.turns)
                except Exception as error:  # any: the next submission must not suffer from it
                    why = f"{type(error).__name__}: {error}"
                    return grader_failed(self.settings, submission.student, why)

            yield work


@functools.cache
def get_ready(folder: Path) -> None:
    """Check a correct cell and a known mistake of each exercise of an assignment.

    What that loads and computes would take each submission as long again: its forks share it. They
    are made in a tenth of the time if the memory is in large pages.
    """
    torch.set_num_threads(1)  # others grade beside it
    whole = folder_for(folder, _ANY_SEED)
    for load in (load_correct, load_answers):
        first = {each.exercise: each for each in reversed(load(whole / "mistakes.py"))}
        for name, answer in first.items():
            beside = {name: File(data) for name, data in files_beside(whole, answer).items()}
            run_checks(folder, name, LocalSubject(answer.namespace, files=beside), _ANY_SEED)
    gc.collect()
    gc.freeze()
    memory.gather()


def grade(
    launcher: Launcher, settings: Settings, submission: Submission, turns: Turns = ALONE
) -> Graded:
    """Grade one submission.

    Args:
        launcher: Starts the jobs.
        settings: Of the run.
        submission: What a student's folder held.
        turns: Who else grades on this machine.

    """
    started = time.monotonic()
    assignment, problem = settings.assignment, ""
    try:
        answers = submission.answers(assignment.master)
        execution = execute(launcher, assignment, answers, settings.seed, settings.limits, turns)
    except Unreadable as reason:
        problem = str(reason)
        answers = Answers.blank(assignment.master, submission.received)
        execution = Execution(assignment, answers)
        execution.leave_unchecked(f"Nothing was checked: {problem}.")
    verdict = Verdict(
        assignment=assignment.name,
        student=submission.student,
        key=settings.key(submission),
        reports=tuple(execution.reports[name] for name in assignment.master.exercises),
        problem=problem,
        errors=execution.error_sentences(),
        notes=answers.notes,
        file=answers.file,
        digest=answers.digest,
        received=answers.received.isoformat(),
        layers=tuple(layer.name for layer in launcher.layers if layer.active),
        allow_weaker=settings.allow_weaker,
        seed_commitment=settings.commitment,
        seconds=round(time.monotonic() - started, 3),
    )
    remarks = [*filter(None, [problem]), *verdict.notes, *verdict.errors]
    return verdict, nbformat.writes(execution.notebook(remarks))


def grader_failed(settings: Settings, student: str, why: str) -> Graded:
    """Return a verdict that is not final: the grader failed, and the next run tries again."""
    assignment = settings.assignment
    problem = f"the grader failed, which is not the student's fault ({shown(why, 200)})"
    execution = Execution(assignment, Answers.blank(assignment.master, datetime.now(UTC)))
    execution.leave_unchecked(problem)
    verdict = Verdict(
        assignment=assignment.name,
        student=student,
        key="",
        reports=tuple(execution.reports.values()),
        problem=problem,
        seed_commitment=settings.commitment,
        allow_weaker=settings.allow_weaker,
    )
    return verdict, ""


# A run


@dataclass(frozen=True)
class Run:
    """A run over a class, which may be stopped and continued.

    Attributes:
        folder: Where its verdicts are kept.
        seed: Drawn for it; in a file that only its owner can read, until the run is over.
        started: As ISO 8601 in UTC.

    """

    folder: Path
    seed: str
    started: str

    @classmethod
    def start(cls, folder: Path) -> "Run":
        """Continue the run that was stopped in a folder, else start a new one."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / _UNFINISHED
        if not path.exists():
            state = {"seed": secrets.token_hex(32), "started": _now()}
            # A temporary file, which only its owner can read, is linked to its name: the file is
            # there whole or not at all, and of several runs that start at once, one wins.
            with tempfile.NamedTemporaryFile("w", dir=folder) as file:
                json.dump(state, file)
                file.flush()
                os.fsync(file.fileno())
                with contextlib.suppress(FileExistsError):
                    os.link(file.name, path)
        return cls(folder, **json.loads(path.read_text()))

    @property
    def commitment(self) -> str:
        """SHA-256 of the seed, which may be published from the start."""
        return _sha256_of(self.seed)

    def finish(self, about: Mapping[str, Any], verdicts: Sequence[Verdict]) -> Path | None:
        """Reveal the seed in a report on the run; None if there was nothing to do in it.

        Args:
            about: See `Settings.about`.
            verdicts: Those found in it, and maybe others.

        """
        own = [v for v in verdicts if v.key and v.seed_commitment == self.commitment]
        path = None
        if own:
            report = {
                "started": self.started,
                "finished": _now(),
                "seed": self.seed,
                **about,
                "layers": sorted({verdict.layers for verdict in own}),
                "students": [verdict.student for verdict in own],
            }
            path = self.folder / f"run-{self.commitment[:12]}.json"
            path.write_text(json.dumps(report, indent=2) + "\n")
        (self.folder / _UNFINISHED).unlink()
        return path


@dataclass(frozen=True)
class RunResult:
    """The result of a run over a class.

    Attributes:
        verdicts: One per student with a submission, also from earlier runs.
        num_new: How many were graded in this run.
        failed: Students at whose submissions the grader failed; they are not graded.
        unrecorded: By student, why the gradebook does not hold a verdict of this run.
        report: The file that reveals the seed, None if nothing was graded.

    """

    verdicts: tuple[Verdict, ...]
    num_new: int
    failed: tuple[str, ...]
    unrecorded: Mapping[str, str]
    report: Path | None


def grade_folder(
    assignment: Assignment,
    submitted: Path,
    kept: Path,
    gradebook: Gradebook | None = None,
    limits: Limits | None = None,
    allow_weaker: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
    students: Collection[str] | None = None,
    again: Collection[str] = (),
    exercises: Collection[str] = (),
    engine: Engine | None = None,
) -> RunResult:
    """Grade the submissions of a class, and keep the verdicts.

    Args:
        assignment: What is graded.
        submitted: Holds `STUDENT/ASSIGNMENT/` for each student.
        kept: Where the verdicts are kept. What is finished there is not graded again, unless it,
            the checks or the limits have changed.
        gradebook: Also gets each verdict, with the notebook as it ran; raises ValueError if it
            cannot keep it, and OSError if it can keep nothing now, which ends the run.
        limits: What each submission may use.
        allow_weaker: Go on where this machine lacks a layer of the sandbox.
        progress: Called with how many are done, of how many; first, with how many are found to
            need no grading before the first that does.
        students: Whose submissions are graded, all by default. What is kept of the others stays.
        again: Students whose submissions are graded although nothing has changed.
        exercises: Whose scores are to be new, all by default; see `with_kept`.
        engine: Where they are graded, in one process of this machine by default.

    Raises:
        OSError: If files cannot be read or written.
        ValueError: If no submission can be sealed in, if what is kept is damaged, or if another
            run is at work there.

    """
    received = receipts(submitted, assignment.name)
    everybody = students_in(submitted, assignment.name)
    chosen = [student for student in everybody if students is None or student in students]
    engine = engine or ThisMachine()
    layers = engine.layers(allow_weaker)
    with alone_in(kept):
        run = Run.start(kept)
        settings = Settings(
            assignment=assignment,
            limits=limits or Limits(),
            allow_weaker=allow_weaker,
            seed=run.seed,
        )
        verdicts = {verdict.student: verdict for verdict in read_lines(kept / VERDICTS)}
        new: list[Verdict] = []
        unrecorded: dict[str, str] = {}
        num_finished = 0

        def is_finished(submission: Submission) -> bool:
            verdict = verdicts.get(submission.student)
            return (
                verdict is not None
                and (verdict.in_gradebook or gradebook is None)
                and submission.student not in again
                and layers <= set(verdict.layers)
                and verdict.key == settings.key(submission)
            )

        def unfinished() -> Iterator[Submission]:
            nonlocal num_finished
            # Those with a verdict first: how many are finished says nothing about the rate.
            for student in sorted(chosen, key=lambda student: student not in verdicts):
                folder = submitted / student / assignment.name
                submission = Submission.read(folder, assignment.master, received.get(student, {}))
                if is_finished(submission):
                    num_finished += 1
                else:
                    yield submission

        waiting = unfinished()
        first = next(waiting, None)
        progress(num_finished, len(chosen))
        graded = engine.grade_all(settings, itertools.chain([first], waiting)) if first else ()
        for verdict, notebook in graded:
            if verdict.is_final:
                verdict = with_kept(verdict, verdicts.get(verdict.student), exercises)
                try:
                    if gradebook is not None:
                        verdict, why = _in_gradebook(verdict, notebook, gradebook)
                        unrecorded |= {verdict.student: why} if why else {}
                except Exception:  # it can take nothing: the scores are kept all the same
                    append_line(kept / VERDICTS, verdict)
                    raise
                append_line(kept / VERDICTS, verdict)  # last: what has a line here is finished
            new.append(verdict)
            progress(num_finished + len(new), len(chosen))
        verdicts |= {verdict.student: verdict for verdict in new}
        # Of a student who has taken everything back, nothing is shown.
        found = tuple(verdicts[student] for student in everybody if student in verdicts)
        failed = tuple(verdict.student for verdict in new if not verdict.is_final)
        report = run.finish(settings.about(), list(verdicts.values()))
        return RunResult(found, len(new) - len(failed), failed, unrecorded, report)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other runs from grading into a folder meanwhile; made if it is not there.

    Raises:
        BlockingIOError: If another run does.

    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / _LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(f"another run is at work in {folder}: wait for it") from None
        yield


def _in_gradebook(verdict: Verdict, notebook: str, gradebook: Gradebook) -> tuple[Verdict, str]:
    """Put a verdict into the gradebook; return it, with a note and why if that was not possible."""
    try:
        gradebook(verdict, nbformat.reads(notebook, as_version=4))
    except ValueError as error:
        why = shown(str(error), 200)
        note = f"this submission is not in the gradebook: {why}"
        return replace(verdict, notes=(*verdict.notes, note)), why
    return replace(verdict, in_gradebook=True), ""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _sha256(value: Any) -> str:
    return _sha256_of(json.dumps(value))


def _sha256_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
