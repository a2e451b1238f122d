"""What a notebook calls: `check(name)` runs the checks of an exercise and shows the report.

It looks for `checks.py` and `prepared.zip` beside the notebook, takes the notebook's own variables
as the code under test, shows a table with messages, and returns the points as a number, which is
what nbgrader records.
"""

import ast
import html
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from classroom.calls.local import LocalSubject
from classroom.course import (
    CHECK_SUFFIX,
    PUBLISHED_SEED,
    REPORT_TYPE,
    SEED_VARIABLE,
    folder_for,
)
from classroom.exercise.expect import CheckFailed
from classroom.exercise.report import Report, next_step
from classroom.exercise.run import list_checks, load_checks, run_checks

_earned: dict[tuple[Path, str], int] = {}
"""What was earned since this Jupyter kernel started, by assignment and exercise."""


class Score(float):
    """Points earned, printed as the plain number that nbgrader reads.

    Attributes:
        so_far: What JupyterLab shows in its place.

    """

    so_far = ""

    def _repr_html_(self) -> str:
        return html.escape(self.so_far)


def check(name: str) -> Score:
    """Check an exercise of the notebook that this is called from, and show the result.

    What the student's functions print or warn of is shown too, from the first call that does, and
    whether a function is older than the last cell that defines it.

    Args:
        name: The exercise, which is the name of the function to write.

    Returns:
        The points earned.

    Raises:
        FileNotFoundError: If `checks.py` is not beside the notebook.
        CheckFailed: Under `nbgrader validate`, which shows text only for errors.

    """
    namespace = sys._getframe(1).f_globals
    subject = LocalSubject(namespace, listens=True)
    seed = os.environ.get(SEED_VARIABLE) or PUBLISHED_SEED
    # VS Code may run a notebook in another folder, and says where the notebook lies.
    notebook = Path(namespace.get("__vsc_ipynb_file__", Path.cwd() / "notebook"))
    folder = folder_for(notebook.parent, seed)  # under nbgrader the checks lie elsewhere
    report = run_checks(folder, name, subject, seed)
    if os.environ.get("NBGRADER_EXECUTION") == "validate" and report.earned < report.points:
        raise CheckFailed(report.to_text())
    old = _older_than_their_cells(namespace, subject.called)
    empty = [each for each in sorted(subject.called) if _asserts_a_tuple(namespace.get(each))]
    remarks = [*(_OLD.format(name=each) for each in old), *(_TUPLE.format(name=e) for e in empty)]
    _show(report, remarks, subject.heard)
    _earned[folder, name] = report.earned
    score = Score(report.earned)
    score.so_far = _so_far(folder, notebook.parent)
    return score


_OLD = (
    "The last cell that defines `{name}` did not run to the end: the definition before it "
    "was checked."
)

_TUPLE = (
    "`{name}` has `assert (condition, message)`, which never fails: the parentheses make a tuple, "
    "which always counts as true. Write `assert condition, message`."
)


def _show(report: Report, remarks: list[str], heard: str) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    text, shown = "\n".join([*remarks, report.to_text()]), report.to_html()
    shown = "".join(f"<p><b>{html.escape(remark)}</b></p>" for remark in remarks) + shown
    if heard:
        text += f"\n\nYour code printed, in the first call that printed anything:\n{heard}"
        said = html.escape(heard)
        shown += (
            f"<p>Your code printed, in the first call that printed anything:</p><pre>{said}</pre>"
        )
    if not InteractiveShell.initialized():
        print(text)
        return
    from IPython.display import display

    display({"text/plain": text, "text/html": shown, REPORT_TYPE: report.to_json()}, raw=True)


def _older_than_their_cells(namespace: Mapping[str, Any], names: Collection[str]) -> list[str]:
    """Return the functions and classes of a notebook that a later cell failed to define anew."""
    cells = namespace.get("In", ())
    return [name for name in sorted(names) if _is_old(namespace.get(name), name, cells)]


def _is_old(found: Any, name: str, cells: Any) -> bool:
    if inspect.isclass(found):
        found = next(filter(inspect.isfunction, vars(found).values()), None)
    try:
        source = inspect.getsource(inspect.unwrap(found)).strip()
    except (OSError, TypeError):
        return False
    defines = re.compile(rf"^(def|class) {re.escape(name)}\b", re.MULTILINE)
    holding = [at for at, cell in enumerate(cells) if source in cell]
    defining = [at for at, cell in enumerate(cells) if defines.search(cell)]
    return bool(holding and defining) and holding[-1] < defining[-1]


def _asserts_a_tuple(found: Any) -> bool:
    try:
        nodes = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(found)))))
    except (OSError, TypeError, SyntaxError):
        return False
    return any(isinstance(n, ast.Assert) and isinstance(n.test, ast.Tuple) for n in nodes)


def _so_far(folder: Path, place: Path) -> str:
    """Say what has been earned in the notebook at `place`, and what comes next."""
    points = {name: sum(p for _, p in found) for name, found in list_checks(folder).items()}
    text = "".join(path.read_text(encoding="utf-8") for path in place.glob("*.ipynb"))
    if text:  # a handout of the core ends before the others
        points = {name: p for name, p in points.items() if f'"{name}{CHECK_SUFFIX}"' in text}
    earned = {name: _earned.get((folder, name), 0) for name in points}
    total = f"{sum(earned.values())} of {sum(points.values())} points of this notebook so far"
    exercises = {name: a for name, (a, _) in load_checks(folder).items() if name in points}
    unfinished = [about for name, about in exercises.items() if earned[name] < points[name]]
    if not unfinished:
        return total
    core = sum(points[name] for name, about in exercises.items() if not about.deeper)
    then = f"{unfinished[0].number} {unfinished[0].title}"
    return f"{total}; {next_step(then, core if unfinished[0].deeper else None)}"
