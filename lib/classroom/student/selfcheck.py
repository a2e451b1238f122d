"""What a notebook calls: `check(name)` runs the checks of an exercise and shows the report.

It looks for `checks.py` and `prepared.zip` beside the notebook, takes the notebook's own variables
as the code under test, shows a table with messages, and returns the points as a number, which is
what nbgrader records.
"""

import os
import sys
from pathlib import Path

from classroom.calls.local import LocalSubject
from classroom.course import REPORT_TYPE
from classroom.exercise.expect import CheckFailed
from classroom.exercise.report import Report
from classroom.exercise.run import run_checks


class Score(float):
    """Points earned, printed as the plain number that nbgrader reads."""


def check(name: str) -> Score:
    """Check an exercise of the notebook that this is called from, and show the result.

    Args:
        name: The exercise, which is the name of the function to write.

    Returns:
        The points earned.

    Raises:
        FileNotFoundError: If `checks.py` is not beside the notebook.
        CheckFailed: Under `nbgrader validate`, which shows text only for errors.

    """
    namespace = sys._getframe(1).f_globals
    report = run_checks(Path.cwd(), name, LocalSubject(namespace))
    if os.environ.get("NBGRADER_EXECUTION") == "validate" and report.earned < report.points:
        raise CheckFailed(report.to_text())
    _show(report)
    return Score(report.earned)


def _show(report: Report) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    if not InteractiveShell.initialized():
        print(report.to_text())
        return
    from IPython.display import display

    forms = {
        "text/plain": report.to_text(),
        "text/html": report.to_html(),
        REPORT_TYPE: report.to_json(),
    }
    display(forms, raw=True)
