"""Makes the students' folders from the solutions; the same text always gives the same bytes.

A release is a list of small steps: convert text to a notebook, record results, remove the solutions
with nbgrader's `generate_assignment`, and copy the other files. nbgrader works in a temporary copy
of the course without a gradebook, so a release never changes grades.
"""

import logging
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from nbgrader.converters import GenerateAssignment, NbGraderException
from nbgrader.coursedir import CourseDirectory
from traitlets.config.loader import Config, PyFileConfigLoader

from classroom.author.guard import FILES, require_sound
from classroom.author.handout import prepare
from classroom.author.notebooks import build_notebook, require_unedited, write_notebook
from classroom.course import MADE_FROM, PREPARED, all_solutions, text_file

CONFIG = "nbgrader_config.py"
_TRACES = ("BEGIN SOLUTION", "END SOLUTION")


class ReleaseError(ValueError):
    """A release failed; the message says what to fix."""


def nbgrader_config(root: Path) -> Config:
    """Read the settings with which nbgrader works in a course's folder."""
    return PyFileConfigLoader(CONFIG, str(root.resolve())).load_config()


def release(
    root: Path,
    names: list[str] | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> list[Path]:
    """Write the notebooks of `solutions/` and the folders of `exercises/`.

    Results of exercises that have not changed are kept. `made_from.json` beside them says what they
    were made from; without that file, all are made anew.

    Args:
        root: The course's folder, which holds `solutions/` and `nbgrader_config.py`.
        names: Assignments to release, all by default.
        progress: Called with a description of each step before it starts.

    Returns:
        The files written.

    Raises:
        ReleaseError: If there is no such assignment, a file is missing, the files of an assignment
            do not keep to the rules of `guard`, or nbgrader fails; nothing is written then.
        FileNotFoundError: If there are no assignments.

    """
    folders = _chosen(root, names)
    _require_files(root, folders)
    written = []
    with tempfile.TemporaryDirectory() as scratch:
        for folder in folders:
            _make(root, folder, Path(scratch), progress)
        for folder in folders:
            for name in (text_file(folder).with_suffix(".ipynb").name, PREPARED, MADE_FROM):
                written += _renewed(Path(scratch, "solutions", folder.name, name), folder / name)
            target = root / "exercises" / folder.name
            if target.exists():
                shutil.rmtree(target)
            shutil.copytree(Path(scratch, "exercises", folder.name), target)
            written.extend(sorted(path for path in target.rglob("*") if path.is_file()))
    return written


def _make(root: Path, folder: Path, scratch: Path, progress: Callable[[str], None]) -> None:
    """Make in a temporary course what belongs to one assignment."""
    progress(f"{folder.name}: text to notebook")
    text = text_file(folder)
    notebook = text.with_suffix(".ipynb")
    made = scratch / "solutions" / folder.name
    made.mkdir(parents=True)
    try:
        require_unedited(notebook, text)
        require_sound(folder)
        write_notebook(build_notebook(folder), made / notebook.name)
        prepare(folder, made, progress)
    except ValueError as error:
        lines = str(error).splitlines()
        raise ReleaseError("\n".join(f"{folder.name}: {line}" for line in lines)) from None
    shutil.copy(folder / "checks.py", made)
    progress(f"{folder.name}: remove the solutions")
    _generate(root, folder.name, scratch)
    _require_no_solution(scratch / "exercises" / folder.name)


def _renewed(made: Path, target: Path) -> list[Path]:
    """Copy a file if it is not there or differs; return it then."""
    if target.exists() and made.read_bytes() == target.read_bytes():
        return []
    shutil.copy(made, target)
    return [target]


def differences(root: Path) -> list[str]:
    """Make a release in a temporary folder, and compare it with the one under `root`.

    Returns:
        One sentence per file that is missing, superfluous or different; none if the released
        exercises are exactly what their solutions give.

    """
    _require_files(root, _chosen(root, None))
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "course"
        shutil.copytree(root / "solutions", copy / "solutions", ignore=_generated)
        for name in (CONFIG, "pyproject.toml"):
            if (root / name).exists():
                shutil.copy(root / name, copy)
        release(copy)
        made = _files(copy)
    there = _files(root)
    sentences = []
    for path in sorted(made.keys() | there.keys()):
        if path not in there:
            sentences.append(f"{path} is missing")
        elif path not in made:
            sentences.append(f"{path} belongs to no assignment")
        elif made[path] != there[path]:
            sentences.append(f"{path} is not what its solution gives")
    return sentences


def _chosen(root: Path, names: list[str] | None) -> list[Path]:
    folders = {folder.name: folder for folder in all_solutions(root)}
    unknown = [name for name in names or () if name not in folders]
    if unknown:
        raise ReleaseError(
            f"no assignment is called {', '.join(unknown)}; there are: {', '.join(folders)}"
        )
    return [folders[name] for name in names] if names else list(folders.values())


def _require_files(root: Path, folders: list[Path]) -> None:
    needed = [root / CONFIG]
    for folder in folders:
        needed += [text_file(folder), *(folder / name for name in FILES)]
    if missing := [str(path) for path in needed if not path.is_file()]:
        raise ReleaseError(f"a release needs {', '.join(missing)}")


def _generate(root: Path, name: str, scratch: Path) -> None:
    """Run nbgrader on one assignment of a temporary course."""
    config = nbgrader_config(root)
    config.CourseDirectory.root = str(scratch)
    config.CourseDirectory.assignment_id = name
    # No gradebook, as with `nbgrader generate_assignment --no-db`, whatever the settings say.
    config.SaveCells.enabled = False
    config.GenerateAssignment.no_database = True
    errors: list[str] = []
    try:
        GenerateAssignment(
            coursedir=CourseDirectory(config=config), config=config, log=_log_into(errors)
        ).start()
    except NbGraderException:
        tracebacks = [text for text in errors if "Traceback" in text]
        reason = (tracebacks or errors or ["no reason given"])[0].strip().splitlines()[-1]
        raise ReleaseError(f"nbgrader could not release {name}: {reason}") from None


def _log_into(errors: list[str]) -> logging.Logger:
    """Return a logger that appends the messages of errors to a list and prints nothing."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            errors.append(record.getMessage())

    log = logging.Logger("release", logging.ERROR)
    log.addHandler(Handler())
    return log


def _require_no_solution(made: Path) -> None:
    for path in made.rglob("*"):
        is_text = path.is_file() and path.name != PREPARED
        if is_text and any(trace in path.read_text("utf-8") for trace in _TRACES):
            raise ReleaseError(f"{path.name} still contains a solution")


def _generated(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name.endswith(".ipynb") or name == "__pycache__"]


def _files(root: Path) -> dict[str, bytes]:
    """Return the contents of the generated files of a course by their path in it."""
    made = (root / "solutions").glob
    found = [*made("*/*.ipynb"), *made(f"*/{PREPARED}"), *made(f"*/{MADE_FROM}")]
    found += (root / "exercises").rglob("*")
    hidden = ("__pycache__", ".ipynb_checkpoints")
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in found
        if path.is_file() and not any(part in hidden for part in path.parts)
    }
