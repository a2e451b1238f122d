"""One run over a class on several machines: shards that grade apart, and what puts them together.

A shard grades its part of a class into a folder of its own and touches nothing else, so shards
share no file that two of them write. Who belongs to which shard follows from the student's name
alone: a place in a list would shift when somebody hands in between two shards, and a student in
the middle would be graded twice or not at all.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import nbformat

from classroom.grade import (
    SHARD,
    VERDICTS,
    Assignment,
    Gradebook,
    HandedIn,
    Run,
    Settings,
    Summary,
    ThisMachine,
    alone_in,
    grade_rest,
    handed_in,
    key_of,
    told,
)
from classroom.intake import Parcel, shown
from classroom.report import Verdict, append_line, read_lines
from classroom.sandbox import Limits

_NOTEBOOKS = "notebooks"
_WRITTEN = re.compile(r"(\d{1,6})/(\d{1,6})")
_MAX_NAMED = 20


class Incomplete(ValueError):
    """Shards do not make a class yet.

    Attributes:
        sentences: What is missing, one sentence each.

    """

    def __init__(self, sentences: Sequence[str]):
        super().__init__("\n".join(sentences))
        self.sentences = tuple(sentences)


@dataclass(frozen=True)
class Shard:
    """A part of a class.

    Attributes:
        number: From 1.
        of: How many there are.

    """

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise ValueError(f"a shard i/n has an i from 1 to n, got {self.number}/{self.of}")

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read what is written as `3/8`."""
        written = _WRITTEN.fullmatch(text)
        if written is None:
            raise ValueError(f"a shard is written i/n, such as 3/8, got {text!r}")
        return cls(int(written[1]), int(written[2]))

    @classmethod
    def of_student(cls, student: str, of: int) -> "Shard":
        """Return the one of several shards that a student belongs to."""
        digest = hashlib.sha256(os.fsencode(student)).digest()
        return cls(int.from_bytes(digest, "big") % of + 1, of)

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @property
    def folder_name(self) -> str:
        """Of what it writes."""
        return f"shard-{self.number}-of-{self.of}"

    def holds(self, each: HandedIn) -> bool:
        """Say whether a submission belongs to it."""
        return Shard.of_student(each.student, self.of) == self


# Grading one


def grade_shard(
    shard: Shard,
    assignment: Assignment,
    submitted: Path,
    kept: Path,
    limits: Limits | None = None,
    allow_weaker: bool = False,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Summary:
    """Grade the part of a class that belongs to a shard, and keep it in the shard's own folder.

    All shards of a run need one seed. Where they share `kept`, whichever is first draws it; where
    they do not, `Run.start` draws it beforehand, and the file is copied.

    Args:
        shard: Which part.
        assignment: What is graded.
        submitted: Holds `STUDENT/ASSIGNMENT/` for each student, also for those of other shards.
        kept: Where the run is kept; the shard's folder is made in it.
        limits: As for all arguments that follow: see `grade_folder`.
        allow_weaker: See there.
        workers: See there.
        progress: See there.

    Returns:
        What came of its students.

    Raises:
        OSError: If files cannot be read or written.
        ValueError: If no submission can be sealed in, or what is kept is damaged.

    """
    engine = ThisMachine(workers)
    layers = engine.layers(allow_weaker)
    submissions = [each for each in handed_in(submitted, assignment.name) if shard.holds(each)]
    run = Run.start(kept)
    settings = Settings(
        assignment=assignment, limits=limits or Limits(), allow_weaker=allow_weaker, seed=run.seed
    )
    folder = kept / shard.folder_name
    with alone_in(folder):
        about = {"number": shard.number, "of": shard.of, "started": run.started}
        _write_whole(folder / SHARD, json.dumps({**about, **settings.about()}, indent=2))
        lines = folder / VERDICTS
        own = {v.student: v for v in read_lines(lines) if v.seed_commitment == settings.commitment}
        verdicts = {v.student: v for v in read_lines(kept / VERDICTS)} | own
        finished = {s: v for s, v in verdicts.items() if layers <= set(v.layers)}

        def keep(verdict: Verdict, notebook: str) -> Verdict:
            (folder / _NOTEBOOKS).mkdir(exist_ok=True)
            _write_whole(_notebook(folder, verdict.student), notebook)
            return verdict

        new = grade_rest(settings, submissions, finished, lines, engine, keep, progress)
    verdicts |= {verdict.student: verdict for verdict in new}
    failed = tuple(verdict.student for verdict in new if not verdict.key)
    found = tuple(verdicts[each.student] for each in submissions)
    return Summary(found, len(new) - len(failed), failed, None)


def _notebook(folder: Path, student: str) -> Path:
    # A student's name may be too long for that of a file with an ending.
    return folder / _NOTEBOOKS / f"{hashlib.sha256(os.fsencode(student)).hexdigest()}.ipynb"


def _write_whole(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all, even if the machine stops now."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)


# Putting them together


@dataclass(frozen=True)
class Part:
    """What a shard has left.

    Attributes:
        folder: Where.
        about: What it was told, see `Settings.about`, which of how many it is, and when its run
            was started.

    """

    folder: Path
    about: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "Part":
        """Read a shard's folder.

        Raises:
            ValueError: If it is none.

        """
        path = folder / SHARD
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
            part = cls(folder, about)
            _ = part.shard, [about[name] for name in _SAME], about["started"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path}: this says nothing about a shard") from None
        return part

    @property
    def shard(self) -> Shard:
        """Which it is."""
        return Shard(self.about["number"], self.about["of"])

    @cached_property
    def verdicts(self) -> dict[str, Verdict]:
        """What it found, by student."""
        return {verdict.student: verdict for verdict in read_lines(self.folder / VERDICTS)}


# What shards must have in common, and how it is called.
_SAME = {
    "assignment": "assignments",
    "of": "numbers of shards",
    "seed_commitment": "seeds",
    "checks": "checks, or versions of Python, torch or this package",
    "limits": "limits",
    "allow_weaker": "answers to whether the sandbox may lack a layer",
}


def merge(
    assignment: Assignment,
    submitted: Path,
    kept: Path,
    folders: Sequence[Path] = (),
    gradebook: Gradebook | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Summary:
    """Put the shards of a run together as if one machine had graded the class.

    Nothing is written before everybody who has handed in is accounted for. A merge that was
    stopped goes on when it is called again.

    Args:
        assignment: What was graded.
        submitted: Holds `STUDENT/ASSIGNMENT/` for each student. Times of receipt are taken from
            here, because a copy on another machine is as old as the copying.
        kept: Where the run is kept.
        folders: Shards' folders, or folders that hold some; by default those in `kept`.
        gradebook: See `grade_folder`.
        progress: See there.

    Raises:
        Incomplete: If a shard or a student is missing.
        OSError: If files cannot be read or written.
        ValueError: If the shards do not belong together, or to the run in `kept`.

    """
    parts = _parts(assignment, kept, folders)
    about = next(iter(parts.values())).about
    with alone_in(kept):
        run = Run.unfinished(kept)
        is_over = Run.report(kept, about["seed_commitment"]).exists()
        if not is_over and (run is None or run.commitment != about["seed_commitment"]):
            raise ValueError(
                f"the seed of these shards is not in {kept}: copy the file unfinished_run.json "
                "that they were graded with to there"
            )
        lines = kept / VERDICTS
        verdicts = {verdict.student: verdict for verdict in read_lines(lines)}
        everybody = handed_in(submitted, assignment.name)
        missing, news = [], []
        for each in everybody:
            parcel = each.parcel(assignment.master)
            key = key_of(parcel, about["checks"], about["limits"])
            known = verdicts.get(each.student)
            if known and known.key == key and (known.in_gradebook or gradebook is None):
                continue
            part = parts[Shard.of_student(each.student, about["of"])]
            verdict = part.verdicts.get(each.student)
            if verdict is None or verdict.seed_commitment != about["seed_commitment"]:
                missing.append(_sentence(each.student, "is not graded yet", part.shard))
            elif verdict.key != key:
                missing.append(_sentence(each.student, "has handed in again", part.shard))
            else:
                verdict = replace(verdict, received=_received(parcel, verdict).isoformat())
                news.append((verdict, part.folder))
        if missing:
            rest = [f"and {len(missing) - _MAX_NAMED} more"] if len(missing) > _MAX_NAMED else []
            raise Incomplete([*missing[:_MAX_NAMED], *rest])
        for num_done, (verdict, folder) in enumerate(news):
            progress(num_done, len(news))
            if gradebook is not None:
                notebook = _notebook(folder, verdict.student).read_text(encoding="utf-8")
                verdict = told(verdict, nbformat.reads(notebook, as_version=4), gradebook)
            append_line(lines, verdict)
            verdicts[verdict.student] = verdict
        progress(len(news), len(news))
        if run is not None and not is_over:
            report = run.finish(about, list(verdicts.values()))
        else:
            report = Run.report(kept, about["seed_commitment"])
    found = tuple(verdicts[each.student] for each in everybody)
    return Summary(found, len(news), (), report)


def _parts(assignment: Assignment, kept: Path, folders: Sequence[Path]) -> dict[Shard, Part]:
    """Return the shards of one run, all of them."""
    paths = [path for folder in folders or [kept] for path in _shard_folders(folder)]
    parts = [Part.read(path) for path in paths]
    if not parts:
        raise ValueError(f"there is no shard in {', '.join(map(str, folders or [kept]))}")
    if not folders:
        # Those of an earlier run lie beside them.
        last = max(part.about["started"] for part in parts)
        parts = [part for part in parts if part.about["started"] == last]
    first = parts[0]
    for part in parts:
        for name, word in _SAME.items():
            if part.about[name] != first.about[name]:
                raise ValueError(
                    f"{first.folder} and {part.folder} do not belong together: they have different "
                    f"{word}"
                )
    if first.about["assignment"] != assignment.name:
        raise ValueError(f"{first.folder} is of {first.about['assignment']}, not {assignment.name}")
    found: dict[Shard, Part] = {}
    for part in parts:
        if part.shard in found:
            raise ValueError(
                f"shard {part.shard} is there twice: {found[part.shard].folder} and {part.folder}"
            )
        found[part.shard] = part
        with alone_in(part.folder):
            pass  # it is not at work any more
    of = first.about["of"]
    missing = [Shard(i, of) for i in range(1, of + 1) if Shard(i, of) not in found]
    if missing:
        raise Incomplete([f"shard {shard} is missing" for shard in missing])
    return found


def _shard_folders(folder: Path) -> list[Path]:
    if (folder / SHARD).exists():
        return [folder]
    return sorted(path.parent for path in folder.glob(f"shard-*-of-*/{SHARD}"))


def _sentence(student: str, what: str, shard: Shard) -> str:
    return f"{shown(student)} {what}: run shard {shard} again"


def _received(parcel: Parcel, verdict: Verdict) -> datetime:
    for name, notebook in parcel.notebooks.items():
        if shown(name) == verdict.file and notebook.received is not None:
            return notebook.received
    return parcel.received
