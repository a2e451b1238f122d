"""How surely a known mistake is named: every one of every chapter, on many seeds not seen before.

More than an hour of one core, so each check is kept in a line of `build/diagnosis.jsonl` as soon
as it is made, and a run that was stopped goes on where it was. What has changed since, an exercise
or a mistake of it, is checked again. `DIAGNOSIS_SEEDS=5` is a shorter run.

    pytest -o addopts=--import-mode=importlib -m benchmark tests/benchmarks/test_diagnosis.py
"""

import functools
import json
import os
import statistics
import time
from collections import defaultdict
from pathlib import Path

import pytest
import torch

from classroom.author import kill_matrix
from classroom.course import assignments
from classroom.exercise.answers import load_answers
from classroom.exercise.report import MAX_MESSAGE_LINES

pytestmark = pytest.mark.benchmark

ROOT = Path(__file__).parents[2]
FILE = "diagnosis.json"
KEPT = ROOT / "build" / "diagnosis.jsonl"
SEEDS = [f"diagnosis {i}" for i in range(int(os.environ.get("DIAGNOSIS_SEEDS", "20")))]
ENOUGH = 0.95


@functools.cache
def mistakes(folder):
    return load_answers(folder / "mistakes.py")


version = functools.cache(kill_matrix.version)


def check(folder, mistake, seed):
    """Check a mistake as grading does and return what was said, as a line to keep."""
    started = time.process_time()
    report = kill_matrix.run_mistake(folder, mistake, seed)
    seconds = time.process_time() - started
    lines = report.to_text().split("\n")
    said = "\n".join(report.messages)
    return {
        "named": report.mistakes,
        "undecided": [list(r.mistakes) for r in report.results if len(r.mistakes) > 1],
        "earned": report.earned,
        "points": report.points,
        "lines": len(lines),
        "cut": lines[-1].strip().startswith("…"),
        "broken": "check itself broke" in said,
        "stopped": "was stopped" in said,
        "seconds": round(seconds, 3),
    }


@pytest.fixture(scope="module")
def trials():
    """All checks, by assignment, exercise and mistake."""
    kept = {}
    if KEPT.exists():
        for line in KEPT.read_text(encoding="utf-8").splitlines():
            *key, found = json.loads(line)
            kept[tuple(key)] = found
    KEPT.parent.mkdir(exist_ok=True)
    torch.set_num_threads(1)  # the tensors are small: more threads only wait for each other
    found = defaultdict(list)
    with KEPT.open("a", encoding="utf-8") as file:
        for seed in SEEDS:  # outermost: a short run has seen all mistakes, too
            for folder in assignments(ROOT / "solutions"):
                for mistake in mistakes(folder):
                    who = (folder.name, mistake.exercise, mistake.name)
                    key = (*who, seed, version(folder, mistake.exercise))
                    if key not in kept:
                        kept[key] = check(folder, mistake, seed)
                        file.write(json.dumps([*key, kept[key]]) + "\n")
                        file.flush()
                    found[who].append(kept[key])
    return dict(found)


def is_named(mistake, trial):
    return trial["named"] == [mistake]


def by_exercise(trials):
    """Return a row per exercise, for whoever wants to know where diagnosis is weak."""
    together = defaultdict(dict)
    for (assignment, exercise, mistake), found in trials.items():
        together[assignment, exercise][mistake] = found
    return {
        f"{assignment} {exercise}": {
            "mistakes": len(found),
            "named": round(
                statistics.mean(is_named(m, trial) for m in found for trial in found[m]), 4
            ),
            "most_lines": max(trial["lines"] for each in found.values() for trial in each),
            "median_seconds": round(
                statistics.median(trial["seconds"] for each in found.values() for trial in each), 3
            ),
        }
        for (assignment, exercise), found in together.items()
    }


def test_every_mistake_is_caught_and_named_on_nearly_all_seeds(trials, record):
    rates = {
        " ".join(who): statistics.mean(is_named(who[-1], trial) for trial in found)
        for who, found in trials.items()
    }
    below = {who: rate for who, rate in rates.items() if rate < ENOUGH}
    missed = [
        who for who, found in trials.items() if any(t["earned"] == t["points"] for t in found)
    ]
    assert record(
        FILE,
        "mistakes named on at least 95 % of unseen seeds",
        len(rates) - len(below),
        len(rates),
        "all known mistakes",
        round(1 - len(below) / len(rates), 4),
        "every one",
        not below,
        seeds=len(SEEDS),
        named_of_all_checks=round(statistics.mean(rates.values()), 5),
        below=below,
        by_exercise=by_exercise(trials),
    ), below
    assert not missed, "a mistake got full marks"


def test_no_mistake_is_given_the_name_of_another(trials, record):
    wrong = {
        " ".join(who): sorted({name for t in found for name in t["named"]} - {who[-1]})
        for who, found in trials.items()
    }
    wrong = {who: names for who, names in wrong.items() if names}
    checks = sum(map(len, trials.values()))
    assert record(
        FILE,
        "checks that named another mistake",
        sum(bool(set(t["named"]) - {who[-1]}) for who, found in trials.items() for t in found),
        checks,
        "all checks of a known mistake",
        round(len(wrong) / len(trials), 5),
        "none",
        not wrong,
        seeds=len(SEEDS),
        wrong=wrong,
    ), wrong


def test_what_is_said_fits_a_page(trials, record):
    every = [trial for found in trials.values() for trial in found]
    longest = max(trial["lines"] for trial in every)
    cut = sorted({" ".join(who) for who, found in trials.items() if any(t["cut"] for t in found)})
    assert record(
        FILE,
        "lines of the longest report",
        longest,
        MAX_MESSAGE_LINES,
        "the limit",
        round(longest / MAX_MESSAGE_LINES, 3),
        f"at most {MAX_MESSAGE_LINES}",
        longest <= MAX_MESSAGE_LINES,
        seeds=len(SEEDS),
        cut=cut,
        median_seconds=round(statistics.median(trial["seconds"] for trial in every), 3),
        most_seconds=max(trial["seconds"] for trial in every),
    )
    assert not any(trial["broken"] for trial in every)
