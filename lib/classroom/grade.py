"""Grades what was handed in: students' code runs in a sandbox, the checks of it outside.

A submission costs its author points and nobody else anything. A cell that ends its process, or
does not end itself, is left out and the others run again without it; what the submission's time
does not suffice for earns nothing; all else counts. Each verdict is kept as soon as it is found,
so a run that was stopped goes on where it was.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import secrets
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import nbformat
import torch
from nbformat import NotebookNode

from classroom.collect import receipts
from classroom.crew import Crew, shared
from classroom.intake import (
    Master,
    Parcel,
    Submission,
    Unreadable,
    nothing_handed_in,
    pack,
    rebuild,
    shown,
    unpack,
)
from classroom.jobs import Job, JobDied, JobTooSlow, ProtocolError
from classroom.notebooks import text_file
from classroom.pool import Killed, side_by_side
from classroom.report import Verdict, append_line, read_lines, with_kept
from classroom.sandbox import Limits, probe, require
from classroom.selfcheck import CheckResult, Report, list_checks, load_checks, run_checks
from classroom.zygote import Zygote

Gradebook = Callable[[Verdict, NotebookNode], None]

VERDICTS = "verdicts.jsonl"
SHARD = "shard.json"
_UNFINISHED = "unfinished_run.json"
_LOCK = ".lock"
_OUT_OF_TIME = "The time for the whole submission was used up before this was checked."
_STOPPED = "stopped: "
_MENDED = "changed how later cells are run, which was undone"
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
        exercises = [exercise for exercise, _ in load_checks(self.folder).values()]
        wanted = sorted({name for exercise in exercises for name in exercise.files})
        return Master.read(text_file(self.folder).with_suffix(".ipynb"), wanted)

    @cached_property
    def digest(self) -> str:
        """Stands for all that grades: the handout, its checks, this package, torch and Python."""
        # In an order that is the same wherever the folders lie.
        files = [*sorted(self.folder.glob("*.py")), *sorted(self.folder.glob("*.ipynb"))]
        files += sorted(Path(__file__).parent.glob("*.py"))
        contents = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
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
        self._files = submission.others
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
            with job.serving(exercise, self._files) as subject:
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
        if run.is_mended:
            errors[at] = f"{errors[at]}; it also {_MENDED}" if at in errors else _MENDED


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
        return commitment_to(self.seed)

    def about(self) -> dict[str, Any]:
        """Return what may be known of them while the run goes on, as JSON types."""
        return {
            "assignment": self.assignment.name,
            "seed_commitment": self.commitment,
            "checks": self.assignment.digest,
            "limits": asdict(self.limits),
            "allow_weaker": self.allow_weaker,
        }

    def key(self, parcel: Parcel) -> str:
        """Stand for everything that the scores of a submission depend on, except for the seed."""
        return key_of(parcel, self.assignment.digest, asdict(self.limits))


@dataclass(frozen=True)
class HandedIn:
    """A folder to grade.

    Attributes:
        student: Whose it is.
        folder: Where it lies.
        receipts: When a notebook came in, by its digest, where the ledger of `collect` says so.

    """

    student: str
    folder: Path
    receipts: Mapping[str, datetime] = field(default_factory=dict, compare=False)

    def parcel(self, master: Master) -> Parcel:
        """Read what is graded of it.

        Raises:
            OSError: If it is not there any more.

        """
        if self.folder.parent.is_symlink():
            received = datetime.fromtimestamp(int(os.lstat(self.folder).st_ctime), UTC)
            why = "the student's folder is a link: hand in the files themselves"
            return Parcel(received, problem=why)
        parcel = pack(self.folder, master)
        notebooks = {
            name: replace(found, received=self.receipts.get(found.digest, found.received))
            for name, found in parcel.notebooks.items()
        }
        return replace(parcel, notebooks=notebooks)


def handed_in(submitted: Path, assignment: str) -> list[HandedIn]:
    """Return the folders `submitted/STUDENT/ASSIGNMENT`, in order.

    Raises:
        FileNotFoundError: If there is no folder `submitted`.
        ValueError: If the ledger in it is damaged.

    """
    found, received = [], receipts(submitted, assignment)
    with os.scandir(submitted) as entries:
        for entry in entries:
            folder = Path(entry.path, assignment)
            if not entry.name.startswith(".") and os.path.lexists(folder):
                found.append(HandedIn(entry.name, folder, received.get(entry.name, {})))
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


class Engine(Protocol):
    """Where submissions are graded."""

    def layers(self, allow_weaker: bool) -> frozenset[str]:
        """Return the names of the layers without which no verdict stands.

        Raises:
            TooWeak: If one is lacking and may not.

        """
        ...

    def judge_all(self, settings: Settings, submissions: Iterable[HandedIn]) -> Iterator[Judged]:
        """Grade submissions; give what came of each when it is done."""
        ...


@dataclass(frozen=True)
class ThisMachine:
    """Grades in processes of this machine, each with a sandbox of its own.

    Attributes:
        workers: How many.
        crew: Those who have been called already.

    """

    workers: int = 1
    crew: Crew | None = None

    def layers(self, allow_weaker: bool) -> frozenset[str]:
        """Return what must be active here, as far as it is."""
        found = probe()
        require(found, allow_weaker)
        return frozenset(layer.name for layer in found if layer.is_required and layer.active)

    def judge_all(self, settings: Settings, submissions: Iterable[HandedIn]) -> Iterator[Judged]:
        """Grade submissions; no more of them is held in memory than is being graded."""
        with contextlib.ExitStack() as stack:
            crew = self.crew or stack.enter_context(shared(self.workers, settings.allow_weaker))
            grader = Grader(settings, crew.door)
            done = side_by_side(grader, submissions, self.workers, crew.descriptors, crew.processes)
            for each, judged in done:
                if isinstance(judged, Killed):
                    why = f"a process of the grader was killed {judged.how}"
                    judged = not_judged(settings, each.student, why)
                yield judged


def judge(zygote: Zygote, settings: Settings, student: str, parcel: Parcel) -> Judged:
    """Grade what one student handed in.

    Args:
        zygote: Starts the jobs.
        settings: What the run is told.
        student: Whose it is.
        parcel: What was handed in.

    """
    started = time.monotonic()
    assignment, problem = settings.assignment, ""
    try:
        submission = unpack(parcel, assignment.master)
    except Unreadable as reason:
        problem = str(reason)
        submission = nothing_handed_in(assignment.master, parcel.received)
        outcome = _unchecked(assignment, f"{problem[0].upper()}{problem[1:]}.")
    else:
        outcome = grade_submission(zygote, assignment, submission, settings.seed, settings.limits)
    verdict = Verdict(
        assignment=assignment.name,
        student=student,
        key=settings.key(parcel),
        reports=tuple(outcome.reports[name] for name in assignment.master.exercises),
        problem=problem,
        errors=_errors(assignment, submission, outcome),
        notes=submission.notes,
        file=submission.file,
        digest=submission.digest,
        received=submission.received.isoformat(),
        layers=tuple(layer.name for layer in zygote.layers if layer.active),
        allow_weaker=settings.allow_weaker,
        seed_commitment=settings.commitment,
        seconds=round(time.monotonic() - started, 3),
    )
    remarks = [*filter(None, [problem]), *verdict.notes, *verdict.errors]
    notebook = with_remarks(executed(assignment.master, submission, outcome), remarks)
    return Judged(verdict, nbformat.writes(notebook))


def _unchecked(assignment: Assignment, why: str) -> Outcome:
    return Outcome({name: assignment.unchecked(name, why) for name in assignment.master.exercises})


def not_judged(settings: Settings, student: str, why: str) -> Judged:
    """Return what is shown for a submission at which the grader failed."""
    problem = f"the grader failed, which is not its author's fault ({shown(why, 200)})"
    verdict = Verdict(
        assignment=settings.assignment.name,
        student=student,
        key="",
        reports=tuple(_unchecked(settings.assignment, problem).reports.values()),
        problem=problem,
        seed_commitment=settings.commitment,
        allow_weaker=settings.allow_weaker,
    )
    return Judged(verdict, "", is_final=False)


@dataclass(frozen=True)
class Grader:
    """Called in a process that grades, see `pool.Process`: finds or starts a sandbox to grade in.

    Attributes:
        settings: What the run is told.
        door: To a zygote that several share, see `Zygote`; one of its own is started otherwise.

    """

    settings: Settings
    door: int | None = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Callable[[Any], Judged]]:
        """Give what grades anything that has a student and a parcel, such as `HandedIn`."""
        torch.set_num_threads(1)
        settings = self.settings
        with Zygote(settings.allow_weaker, self.door) as zygote:

            def work(each: HandedIn) -> Judged:
                try:
                    parcel = each.parcel(settings.assignment.master)
                    return judge(zygote, settings, each.student, parcel)
                except Exception as error:  # whatever it is, the next submission is not to suffer
                    return not_judged(settings, each.student, f"{type(error).__name__}: {error}")

            yield work


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
        path = cls.path(folder)
        if not path.exists():
            state = {"seed": secrets.token_hex(32), "started": _now()}
            # Of a file with a name of its own only the owner can read a word. It is there whole or
            # not at all, and of several who start at a time, one wins.
            with tempfile.NamedTemporaryFile("w", dir=folder) as file:
                json.dump(state, file)
                file.flush()
                os.fsync(file.fileno())
                with contextlib.suppress(FileExistsError):
                    os.link(file.name, path)
        run = cls.unfinished(folder)
        assert run is not None
        return run

    @classmethod
    def unfinished(cls, folder: Path) -> "Run | None":
        """Return the run that goes on in a folder, if one does."""
        path = cls.path(folder)
        if not path.exists():
            return None
        state = json.loads(path.read_text())
        return cls(folder, state["seed"], state["started"])

    @staticmethod
    def path(folder: Path) -> Path:
        """Return where the seed of a run in a folder lies until the run is over."""
        return folder / _UNFINISHED

    @staticmethod
    def report(folder: Path, commitment: str) -> Path:
        """Return where a run in a folder reveals its seed when it is over."""
        return folder / f"run-{commitment[:12]}.json"

    @property
    def commitment(self) -> str:
        """What may be known of the seed from the start."""
        return commitment_to(self.seed)

    def finish(self, about: Mapping[str, Any], verdicts: Sequence[Verdict]) -> Path | None:
        """Reveal the seed in a report on the run; None if there was nothing to do in it.

        Args:
            about: See `Settings.about`.
            verdicts: What was found in it, and maybe before.

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
            path = self.report(self.folder, self.commitment)
            path.write_text(json.dumps(report, indent=2) + "\n")
        self.path(self.folder).unlink()
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
    exercises: Collection[str] = (),
    engine: Engine | None = None,
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
        exercises: Whose scores are to be new, all by default; see `with_kept`.
        engine: Where they are graded, on this machine by default.

    Raises:
        OSError: If files cannot be read or written.
        ValueError: If no submission can be sealed in, if what is kept is damaged, or if another
            run is at work there.

    """
    everybody = handed_in(submitted, assignment.name)
    submissions = [e for e in everybody if students is None or e.student in students]
    engine = engine or ThisMachine(workers)
    layers = engine.layers(allow_weaker)
    with alone_in(kept):
        run = Run.start(kept)
        _require_no_shards(kept, run)
        settings = Settings(
            assignment=assignment,
            limits=limits or Limits(),
            allow_weaker=allow_weaker,
            seed=run.seed,
        )
        lines = kept / VERDICTS
        verdicts = {verdict.student: verdict for verdict in read_lines(lines)}
        finished = {
            student: verdict
            for student, verdict in verdicts.items()
            if (verdict.in_gradebook or gradebook is None)
            and student not in again
            and layers <= set(verdict.layers)
        }

        def keep(verdict: Verdict, notebook: str) -> Verdict:
            verdict = with_kept(verdict, verdicts.get(verdict.student), exercises)
            if gradebook is None:
                return verdict
            return told(verdict, nbformat.reads(notebook, as_version=4), gradebook)

        new = grade_rest(settings, submissions, finished, lines, engine, keep, progress)
        verdicts |= {verdict.student: verdict for verdict in new}
        # Of a student who has taken everything back, nothing is shown.
        found = tuple(verdicts[e.student] for e in everybody if e.student in verdicts)
        failed = tuple(verdict.student for verdict in new if not verdict.key)
        report = run.finish(settings.about(), list(verdicts.values()))
        return Summary(found, len(new) - len(failed), failed, report)


def grade_rest(
    settings: Settings,
    submissions: Sequence[HandedIn],
    finished: Mapping[str, Verdict],
    lines: Path,
    engine: Engine,
    keep: Callable[[Verdict, str], Verdict],
    progress: Callable[[int, int], None],
) -> list[Verdict]:
    """Grade the submissions that have no verdict yet, or not as they are now.

    Args:
        settings: The same for all.
        submissions: All that are to have a verdict in the end.
        finished: Verdicts, by student, that stand if nothing has changed.
        lines: Where verdicts are added, each as soon as it is found.
        engine: Where they are graded.
        keep: Keeps a verdict, with the notebook as it ran, wherever else it belongs, before it is
            added; returns it, with what there is to say on that.
        progress: Told how many are done, of how many; first, how many need not be graded.

    Returns:
        The new verdicts. Those without a key say that the grader failed, and are not kept.

    """
    rest = [each for each in submissions if not _stands(finished.get(each.student), settings, each)]
    num_done = len(submissions) - len(rest)
    progress(num_done, len(submissions))
    new = []
    for judged in engine.judge_all(settings, rest) if rest else ():
        verdict = judged.verdict
        if judged.is_final:
            verdict = keep(verdict, judged.notebook)
            # Last, because what has a line here is finished.
            append_line(lines, verdict)
        new.append(verdict)
        num_done += 1
        progress(num_done, len(submissions))
    return new


def _stands(verdict: Verdict | None, settings: Settings, each: HandedIn) -> bool:
    if verdict is None:
        return False
    try:
        return verdict.key == settings.key(each.parcel(settings.assignment.master))
    except OSError:
        return False  # whoever grades it will say why


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Let nobody else grade into a folder meanwhile; made if it is not there.

    Raises:
        BlockingIOError: If somebody does.

    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / _LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(f"another run is at work in {folder}") from None
        yield


def _require_no_shards(kept: Path, run: Run) -> None:
    """Keep one who grades alone from ending a run that others grade in parts."""
    for path in sorted(kept.glob(f"shard-*-of-*/{SHARD}")):
        if json.loads(path.read_text())["seed_commitment"] == run.commitment:
            raise ValueError(
                f"this run was begun in shards: grade and --merge them, or delete {path.parent} "
                "and those beside it"
            )


def told(verdict: Verdict, notebook: NotebookNode, gradebook: Gradebook) -> Verdict:
    """Tell the gradebook of a verdict, and say in it whether that was possible."""
    try:
        gradebook(verdict, notebook)
    except ValueError as error:
        why = f"this is not in the gradebook: {shown(str(error), 200)}"
        return replace(verdict, notes=(*verdict.notes, why))
    return replace(verdict, in_gradebook=True)


def commitment_to(seed: str) -> str:
    """Return what can be published before a seed is."""
    return hashlib.sha256(seed.encode()).hexdigest()


def key_of(parcel: Parcel, checks: str, limits: Mapping[str, Any]) -> str:
    """Stand for what was handed in, the digest of what grades, and what may be used."""
    return _sha256([parcel.digest, checks, limits])


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
