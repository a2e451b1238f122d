"""Grades what was handed in: students' code runs in a sandbox, the checks of it outside.

A submission costs its author points and nobody else anything. A cell that ends its process, or
does not end itself, is left out and the others run again without it; what the submission's time
does not suffice for earns nothing; all else counts. Each verdict is kept as soon as it is found,
so a run that was stopped goes on where it was.
"""

import hashlib
import json
import os
import platform
import secrets
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import nbformat
import torch
from nbformat import NotebookNode

from classroom.intake import (
    Master,
    Submission,
    Unreadable,
    nothing_handed_in,
    read_submission,
    rebuild,
    shown,
)
from classroom.jobs import Job, JobDied, JobTooSlow, ProtocolError
from classroom.notebooks import text_file
from classroom.pool import side_by_side
from classroom.report import Verdict, append_line, read_lines
from classroom.sandbox import Limits, probe, require
from classroom.selfcheck import CheckResult, Report, list_checks, load_checks, run_checks
from classroom.zygote import Zygote

Gradebook = Callable[[Verdict, NotebookNode], None]

VERDICTS = "verdicts.jsonl"
_UNFINISHED = "unfinished_run.json"
_OUT_OF_TIME = "The time for the whole submission was used up before this was checked."
_STOPPED = "stopped: "
_MAX_ERROR_LENGTH = 300


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
        return Master.read(text_file(self.folder).with_suffix(".ipynb"))

    @cached_property
    def digest(self) -> str:
        """Stands for all that grades: the handout, its checks, this package, torch and Python."""
        files = [*self.folder.glob("*.py"), *self.folder.glob("*.ipynb")]
        files += Path(__file__).parent.glob("*.py")
        contents = [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(files)]
        return _sha256([*contents, torch.__version__, platform.python_version()])

    def unchecked(self, exercise: str, why: str) -> Report:
        """Return the report of an exercise whose checks did not run."""
        about = load_checks(self.folder)[exercise][0]
        checks = list_checks(self.folder)[exercise]
        results = tuple(CheckResult(name, points, 0, why) for name, points in checks)
        return Report(exercise, f"{about.number} {about.title}", results)


@dataclass
class Outcome:
    """What came of running and checking a submission.

    Attributes:
        reports: By exercise.
        errors: By the index of a cell, why it did not run to its end.
        outputs: By the index of a cell, what it showed, as a notebook keeps it.
        seconds: Wall time.

    """

    reports: dict[str, Report] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    outputs: dict[int, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    seconds: float = 0.0


def grade_submission(
    zygote: Zygote, assignment: Assignment, submission: Submission, seed: str, limits: Limits
) -> Outcome:
    """Run a submission in a sandbox and check it from outside.

    Args:
        zygote: Starts the jobs.
        assignment: What is checked.
        submission: What was handed in.
        seed: What the inputs depend on.
        limits: What the submission may use.

    Returns:
        A report for each exercise of the assignment, whatever the submission did.

    Raises:
        JobDied: If the sandbox does not start.

    """
    started = time.monotonic()
    deadline = started + limits.seconds_per_submission
    attempts = _Attempts(assignment, submission, seed, limits)
    is_over = False
    while not is_over and time.monotonic() < deadline:
        try:
            with zygote.start_job(limits, deadline) as job:
                is_over = attempts.go_through(job)
        except JobTooSlow:
            break  # there was no time left to start
    outcome = attempts.outcome
    for exercise in assignment.master.exercises:
        outcome.reports.setdefault(exercise, assignment.unchecked(exercise, _OUT_OF_TIME))
    outcome.seconds = time.monotonic() - started
    return outcome


class _Attempts:
    """Goes through a submission until its job gets to the end, each time with what is still left.

    A cell that ended its job is not run again, and an exercise that was checked is not checked
    again.
    """

    def __init__(self, assignment: Assignment, submission: Submission, seed: str, limits: Limits):
        self.outcome = Outcome()
        self._assignment = assignment
        self._cells = submission.cells
        self._seed = seed
        self._limits = limits
        self._left_out: set[int] = set()

    def go_through(self, job: Job) -> bool:
        """Run and check one cell after the other; return whether the job came to the end."""
        for at, cell in enumerate(self._cells):
            if time.monotonic() >= job.deadline:
                return False
            if cell.checks:
                self._check(job, cell.checks)
            elif cell.type == "code" and at not in self._left_out:
                self._run(job, at, cell.source)
            if not job.is_alive:
                return False
        return True

    def _check(self, job: Job, exercise: str) -> None:
        reports = self.outcome.reports
        if exercise not in reports:
            with job.serving(exercise) as subject:
                reports[exercise] = run_checks(
                    self._assignment.folder, exercise, subject, self._seed
                )

    def _run(self, job: Job, at: int, source: str) -> None:
        errors = self.outcome.errors
        errors.pop(at, None)
        try:
            run = job.run(source)
        except (JobDied, JobTooSlow, ProtocolError) as why:
            errors[at] = f"was left out: {why}"
            self._left_out.add(at)
            return
        self.outcome.outputs[at] = run.outputs
        if run.error and run.seconds >= self._limits.seconds_per_cell:
            errors[at] = f"did not end within {self._limits.seconds_per_cell:g} s"
        elif run.error:
            errors[at] = f"{_STOPPED}{run.error}"


# What is kept of it


def executed(master: Master, submission: Submission, outcome: Outcome) -> NotebookNode:
    """Return the notebook of a submission with the outputs of its cells."""
    notebook = rebuild(master, submission)
    for at, outputs in outcome.outputs.items():
        notebook.cells[at].outputs = [nbformat.from_dict(output) for output in outputs]
    return notebook


def with_remarks(notebook: NotebookNode, remarks: Sequence[str]) -> NotebookNode:
    """Return a notebook that begins with what its author should know.

    The remarks hold words of the author's, so they stand where nothing is taken for markup.
    """
    if remarks:
        text = "\n".join(["```text", *(f"- {remark}" for remark in remarks), "```"])
        notebook.cells.insert(0, nbformat.v4.new_markdown_cell(text, id="remarks"))
    return notebook


def _errors(assignment: Assignment, submission: Submission, outcome: Outcome) -> tuple[str, ...]:
    """Return a sentence for each cell that did not run to its end.

    None for a cell that was handed out like this and stopped: it shows what an answer does that
    is reported on anyway, or it draws with a library that is not there when grades count.
    """
    handed_out = assignment.master.notebook.cells
    sentences = []
    for at, what in sorted(outcome.errors.items()):
        cell = submission.cells[at]
        is_given = cell.stands_for is not None and cell.source == handed_out[cell.stands_for].source
        exercise = cell.answers
        if is_given and not exercise and what.startswith(_STOPPED):
            continue
        where = f"cell {at + 1} ({exercise})" if exercise else f"cell {at + 1}"
        sentences.append(f"{where} {shown(what, _MAX_ERROR_LENGTH)}")
    return tuple(sentences)


# A class


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run is told, and tells its workers.

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
        """Proves afterwards that the seed was not chosen to suit anybody."""
        return hashlib.sha256(self.seed.encode()).hexdigest()


@dataclass(frozen=True)
class HandedIn:
    """A folder to grade.

    Attributes:
        student: Whose it is.
        folder: Where it lies.
        finished: Keys of verdicts that need not be found again.

    """

    student: str
    folder: Path
    finished: str = ""


def handed_in(submitted: Path, assignment: str) -> list[HandedIn]:
    """Return the folders `submitted/STUDENT/ASSIGNMENT`, in order.

    Raises:
        FileNotFoundError: If there is no folder `submitted`.

    """
    found = []
    with os.scandir(submitted) as entries:
        for entry in entries:
            folder = Path(entry.path, assignment)
            if not entry.name.startswith(".") and os.path.lexists(folder):
                found.append(HandedIn(entry.name, folder))
    return sorted(found, key=lambda each: each.student)


@dataclass(frozen=True)
class Judged:
    """What came of a folder.

    Attributes:
        verdict: The scores and why.
        notebook: The submission as it ran, as nbformat writes it.
        is_final: False if it was the grader that failed: the next run tries again.

    """

    verdict: Verdict
    notebook: str
    is_final: bool = True


def grade_class(
    settings: Settings,
    submissions: Sequence[HandedIn],
    keep: Callable[[HandedIn, Judged | None], None],
    workers: int = 1,
) -> None:
    """Grade many submissions, each in a sandbox, several at a time.

    Args:
        settings: The same for all.
        submissions: What to grade.
        keep: Told what came of each one, in the order in which they end; None if it is finished
            already.
        workers: Processes that grade, each with a sandbox of its own.

    Raises:
        TooWeak: If this machine lacks a layer of the sandbox and may not.

    """
    require(probe(), settings.allow_weaker)
    grader = _Grader(settings)
    waiting = list(submissions)
    while waiting:
        for each, judged in side_by_side(grader, tuple(waiting), workers):
            waiting.remove(each)
            keep(each, judged)
        # If a process that grades was killed, by the system for instance, all of them end. One of
        # the first that are left was its last: of these, one after the other, whichever ends it
        # again.
        suspects = waiting[: workers + 1]
        if not suspects:
            return
        for each, judged in side_by_side(grader, tuple(suspects), 1):
            suspects.remove(each)
            waiting.remove(each)
            keep(each, judged)
        if suspects:
            waiting.remove(suspects[0])
            why = "a process of the grader was killed"
            keep(suspects[0], _not_judged(settings, suspects[0], why))


def judge(zygote: Zygote, settings: Settings, each: HandedIn) -> Judged | None:
    """Grade one folder; None if its verdict is among the finished ones.

    Args:
        zygote: Starts the jobs.
        settings: What the run is told.
        each: The folder.

    """
    started = time.monotonic()
    assignment, problem = settings.assignment, ""
    try:
        if each.folder.parent.is_symlink():
            raise Unreadable("the student's folder is a link: hand in the files themselves")
        submission = read_submission(each.folder, assignment.master)
    except Unreadable as reason:
        problem = str(reason)
        received = datetime.fromtimestamp(int(os.lstat(each.folder).st_ctime), UTC)
        submission = nothing_handed_in(assignment.master, received)
    layers = tuple(layer.name for layer in zygote.layers if layer.active)
    limits = asdict(settings.limits)
    key = _sha256([submission.digest or problem, assignment.digest, limits, layers])
    if each.finished == key:
        return None
    if problem:
        outcome = _unchecked(assignment, f"{problem[0].upper()}{problem[1:]}.")
    else:
        outcome = grade_submission(zygote, assignment, submission, settings.seed, settings.limits)
    verdict = Verdict(
        assignment=assignment.name,
        student=each.student,
        key=key,
        reports=tuple(outcome.reports[name] for name in assignment.master.exercises),
        problem=problem,
        errors=_errors(assignment, submission, outcome),
        notes=submission.notes,
        file=submission.file,
        digest=submission.digest,
        received=submission.received.isoformat(),
        layers=layers,
        allow_weaker=settings.allow_weaker,
        seed_commitment=settings.commitment,
        seconds=round(time.monotonic() - started, 3),
    )
    remarks = [*filter(None, [problem]), *verdict.notes, *verdict.errors]
    notebook = with_remarks(executed(assignment.master, submission, outcome), remarks)
    return Judged(verdict, nbformat.writes(notebook))


def _unchecked(assignment: Assignment, why: str) -> Outcome:
    return Outcome({name: assignment.unchecked(name, why) for name in assignment.master.exercises})


def _not_judged(settings: Settings, each: HandedIn, why: str) -> Judged:
    """Return what is shown for a submission at which the grader failed."""
    problem = f"the grader failed, which is not its author's fault ({shown(why, 200)})"
    verdict = Verdict(
        assignment=settings.assignment.name,
        student=each.student,
        key="",
        reports=tuple(_unchecked(settings.assignment, problem).reports.values()),
        problem=problem,
        seed_commitment=settings.commitment,
        allow_weaker=settings.allow_weaker,
    )
    return Judged(verdict, "", is_final=False)


@dataclass(frozen=True)
class _Grader:
    """Starts a process that grades, and grades in it."""

    settings: Settings

    def __call__(self) -> Callable[[HandedIn], Judged | None]:
        torch.set_num_threads(1)
        zygote = Zygote(self.settings.allow_weaker)

        def work(each: HandedIn) -> Judged | None:
            try:
                return judge(zygote, self.settings, each)
            except Exception as error:  # whatever it is, the next submission is not to suffer
                return _not_judged(self.settings, each, f"{type(error).__name__}: {error}")

        return work


# A run


@dataclass(frozen=True)
class Run:
    """A run over a class, which may be stopped and gone on with.

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
        """Go on with the run that was stopped in a folder, else start a new one."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / _UNFINISHED
        if not path.exists():
            state = {"seed": secrets.token_hex(32), "started": _now()}
            # Of a file with a name of its own only the owner can read a word, and it is there
            # whole or not at all.
            with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
                json.dump(state, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(file.name, path)
        state = json.loads(path.read_text())
        return cls(folder, state["seed"], state["started"])

    def finish(self, settings: Settings, verdicts: Sequence[Verdict]) -> Path | None:
        """Reveal the seed in a report on the run; None if there was nothing to do in it."""
        own = [v for v in verdicts if v.key and v.seed_commitment == settings.commitment]
        path = None
        if own:
            report = {
                "assignment": settings.assignment.name,
                "started": self.started,
                "finished": _now(),
                "seed": self.seed,
                "seed_commitment": settings.commitment,
                "checks": settings.assignment.digest,
                "limits": asdict(settings.limits),
                "layers": [asdict(layer) for layer in probe()],
                "allow_weaker": settings.allow_weaker,
                "students": [verdict.student for verdict in own],
            }
            path = self.folder / f"run-{settings.commitment[:12]}.json"
            path.write_text(json.dumps(report, indent=2) + "\n")
        (self.folder / _UNFINISHED).unlink()
        return path


@dataclass(frozen=True)
class Summary:
    """What came of a run.

    Attributes:
        verdicts: One per student who handed something in, also from earlier runs.
        num_new: How many were graded in this run.
        failed: Students at whose submissions the grader failed; they are not graded.
        report: The file that reveals the seed, None if nothing was graded.

    """

    verdicts: tuple[Verdict, ...]
    num_new: int
    failed: tuple[str, ...]
    report: Path | None


def grade_folder(
    assignment: Assignment,
    submitted: Path,
    kept: Path,
    gradebook: Gradebook | None = None,
    limits: Limits | None = None,
    allow_weaker: bool = False,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
    students: Collection[str] | None = None,
    again: Collection[str] = (),
) -> Summary:
    """Grade what a class handed in, and keep it.

    Args:
        assignment: What is graded.
        submitted: Holds `STUDENT/ASSIGNMENT/` for each student.
        kept: Where the verdicts are kept. What is finished there is not graded again, unless it,
            the checks or the limits have changed.
        gradebook: Also told of each verdict, with the notebook as it ran; raises ValueError if it
            cannot keep it.
        limits: What each submission may use.
        allow_weaker: Go on where this machine lacks a layer of the sandbox.
        workers: How many to grade at a time.
        progress: Told how many are done, of how many.
        students: Whose submissions are graded, all by default. What is kept of the others stays.
        again: Students whose submissions are graded although nothing has changed.

    Raises:
        OSError: If files cannot be read or written.
        ValueError: If this machine cannot seal a submission in, or what is kept is damaged.

    """
    everybody = handed_in(submitted, assignment.name)
    submissions = [e for e in everybody if students is None or e.student in students]
    require(probe(), allow_weaker)
    run = Run.start(kept)
    settings = Settings(
        assignment=assignment, limits=limits or Limits(), allow_weaker=allow_weaker, seed=run.seed
    )
    lines = kept / VERDICTS
    verdicts = {verdict.student: verdict for verdict in read_lines(lines)}
    done, num_new, failed = 0, 0, []

    def keep(each: HandedIn, judged: Judged | None) -> None:
        nonlocal done, num_new
        if judged is not None:
            verdict = judged.verdict
            if judged.is_final:
                num_new += 1
                if gradebook is not None:
                    verdict = _written(verdict, judged.notebook, gradebook)
                # Last, because what has a line here is finished.
                append_line(lines, verdict)
            else:
                failed.append(each.student)
            verdicts[each.student] = verdict
        done += 1
        progress(done, len(submissions))

    progress(0, len(submissions))
    is_done = {
        verdict.student: verdict.key
        for verdict in verdicts.values()
        if (verdict.in_gradebook or gradebook is None) and verdict.student not in again
    }
    grade_class(
        settings,
        [replace(each, finished=is_done.get(each.student, "")) for each in submissions],
        keep,
        workers,
    )
    # Of a student who has taken everything back, nothing is shown.
    found = tuple(verdicts[e.student] for e in everybody if e.student in verdicts)
    return Summary(found, num_new, tuple(failed), run.finish(settings, list(verdicts.values())))


def _written(verdict: Verdict, notebook: str, gradebook: Gradebook) -> Verdict:
    """Tell the gradebook of a verdict, and say in it whether that was possible."""
    try:
        gradebook(verdict, nbformat.reads(notebook, as_version=4))
    except ValueError as error:
        why = f"this is not in the gradebook: {shown(str(error), 200)}"
        return replace(verdict, notes=(*verdict.notes, why))
    return replace(verdict, in_gradebook=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
