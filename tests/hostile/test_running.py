"""Submissions that attack while they run, and honest ones in many styles, one by one.

Every case is held to the same: no points for an attack, all points for the rest, the time kept, a
reason given, nothing outside read or changed, and a neighbour in the same sandbox undisturbed.
"""

import time
from datetime import UTC, datetime

import pytest
from attacks_that_run import RUNNING
from corpus import RIGHT, Came, require_promises
from draws import draw
from exam import LIMITS
from honest_styles import STYLES

from classroom.grader.run import execute
from classroom.grader.submission import Answers, Cell

RECEIVED = datetime(2020, 2, 3, tzinfo=UTC)


@pytest.fixture
def grade(launcher, exam, guarded, neighbour):
    """Grade the cells of a case, say what came of it, and hold it to what is outside."""

    def grade(case):
        cells = [
            *(Cell("code", RIGHT["first"]), Cell("code", "", checks="first")),
            *(Cell("code", source) for source in case.aimed(guarded.words)),
            *(Cell("code", "", checks="attacked"), Cell("code", RIGHT["last"])),
            Cell("code", "", checks="last"),
        ]
        answers = Answers("exam.ipynb", tuple(cells), (), "", RECEIVED)
        started = time.monotonic()
        execution = execute(launcher, exam, answers, "unseen", LIMITS)
        seconds = time.monotonic() - started
        assert execution.seconds <= seconds
        results = [r for report in execution.reports.values() for r in report.results]
        shown = [str(output) for outputs in execution.outputs.values() for output in outputs]
        reasons = (*(r.message for r in results if r.message), *execution.errors.values())
        return Came(
            earned=tuple(execution.reports[name].earned for name in RIGHT),
            reasons=reasons,
            kept="\n".join([*reasons, *shown]),
            seconds=seconds,
            is_neighbour_whole=neighbour() == 7,
        )

    return grade


@pytest.mark.parametrize("name", RUNNING)
def test_an_attack_earns_nothing_and_costs_nothing_else(name, grade):
    require_promises(RUNNING[name], grade(RUNNING[name]), LIMITS.seconds_per_submission)


def drawn(name):
    return draw(name, 2**64, "calls", "exercise", "grader", "sandbox")


@pytest.mark.parametrize("name", sorted(STYLES, key=drawn)[:20])
def test_an_honest_style_loses_nothing(name, grade):
    """Twenty by turns; tests/benchmarks/test_parity.py tries whole notebooks."""
    require_promises(STYLES[name], grade(STYLES[name]), LIMITS.seconds_per_submission)
