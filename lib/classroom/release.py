"""Makes the students' folders from the solutions, always the same bytes from the same text.

A release is a list of small steps: text to notebook, nbgrader's `generate_assignment` to cut the
solutions out, and a copy of what goes with it. nbgrader works in a scratch copy of the course and
without a gradebook, so that releasing never touches a class's grades.
"""

import logging
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from nbgrader.converters import GenerateAssignment, NbGraderException
from nbgrader.coursedir import CourseDirectory
from traitlets.config.loader import Config, PyFileConfigLoader

from classroom.notebooks import assignments, build_notebook, text_file, write_notebook

HANDED_OUT = ("checks.py", "mistakes.py")
CONFIG = "nbgrader_config.py"
_TRACES = ("BEGIN SOLUTION", "END SOLUTION")


class ReleaseError(ValueError):
    """A release was not made; the text says what to mend."""


def nbgrader_config(root: Path) -> Config:
    """Read the settings with which nbgrader works in a course's folder."""
    return PyFileConfigLoader(CONFIG, str(root.resolve())).load_config()


def release(
    root: Path,
    names: list[str] | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> list[Path]:
    """Write the notebooks of `solutions/` and the folders of `exercises/`.

    Args:
        root: The course's folder, which holds `solutions/` and `nbgrader_config.py`.
        names: Assignments to release, all by default.
        progress: Told each step before it is taken.

    Returns:
        The files written.

    Raises:
        ReleaseError: If there is no such assignment, or nbgrader refuses one.

    """
    folders = _chosen(root, names)
    _require_files(root, folders)
    written = []
    for folder in folders:
        progress(f"{folder.name}: text to notebook")
        notebook = text_file(folder).with_suffix(".ipynb")
        write_notebook(build_notebook(folder), notebook)
        written.append(notebook)
    with tempfile.TemporaryDirectory() as scratch:
        for folder in folders:
            progress(f"{folder.name}: cut the solutions out")
            made = _generate(root, folder, Path(scratch))
            _require_no_solution(made)
            target = root / "exercises" / folder.name
            if target.exists():
                shutil.rmtree(target)
            shutil.copytree(made, target)
            written.extend(sorted(path for path in target.rglob("*") if path.is_file()))
    return written


def differences(root: Path) -> list[str]:
    """Release a scratch copy and say how it differs from what lies under `root`.

    Returns:
        One sentence per file that is missing, left over or different; none if the released
        exercises are exactly what their solutions give.

    """
    _require_files(root, _chosen(root, None))
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "course"
        shutil.copytree(root / "solutions", copy / "solutions", ignore=_generated)
        shutil.copy(root / CONFIG, copy)
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
    folders = {folder.name: folder for folder in assignments(root / "solutions")}
    if not folders:
        raise ReleaseError(f"there are no assignments under {root / 'solutions'}")
    unknown = [name for name in names or () if name not in folders]
    if unknown:
        raise ReleaseError(
            f"no assignment is called {', '.join(unknown)}; there are: {', '.join(folders)}"
        )
    return [folders[name] for name in names] if names else list(folders.values())


def _require_files(root: Path, folders: list[Path]) -> None:
    needed = [root / CONFIG]
    for folder in folders:
        needed += [text_file(folder), *(folder / name for name in HANDED_OUT)]
    if missing := [str(path) for path in needed if not path.is_file()]:
        raise ReleaseError(f"a release needs {', '.join(missing)}")


def _generate(root: Path, folder: Path, scratch: Path) -> Path:
    """Run nbgrader on a copy of one assignment; return the folder it made."""
    copy = scratch / "solutions" / folder.name
    copy.mkdir(parents=True)
    for name in (text_file(folder).with_suffix(".ipynb").name, *HANDED_OUT):
        shutil.copy(folder / name, copy)
    config = nbgrader_config(root)
    config.CourseDirectory.root = str(scratch)
    config.CourseDirectory.assignment_id = folder.name
    # No gradebook, as by `nbgrader generate_assignment --no-db`, whatever the settings name.
    config.SaveCells.enabled = False
    config.GenerateAssignment.no_database = True
    said: list[str] = []
    try:
        GenerateAssignment(
            coursedir=CourseDirectory(config=config), config=config, log=_log_into(said)
        ).start()
    except NbGraderException:
        tracebacks = [text for text in said if "Traceback" in text]
        reason = (tracebacks or said or ["no reason given"])[0].strip().splitlines()[-1]
        raise ReleaseError(f"nbgrader could not release {folder.name}: {reason}") from None
    return scratch / "exercises" / folder.name


def _log_into(said: list[str]) -> logging.Logger:
    """Return a logger that prints nothing and keeps what is said of errors."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    log = logging.Logger("release", logging.ERROR)
    log.addHandler(Handler())
    return log


def _require_no_solution(made: Path) -> None:
    for path in made.rglob("*"):
        if path.is_file() and any(trace in path.read_text("utf-8") for trace in _TRACES):
            raise ReleaseError(f"{path.name} still holds a solution")


def _generated(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name.endswith(".ipynb") or name == "__pycache__"]


def _files(root: Path) -> dict[str, bytes]:
    """Return the generated files under a course by their path in it."""
    found = [*(root / "solutions").glob("*/*.ipynb"), *(root / "exercises").rglob("*")]
    hidden = ("__pycache__", ".ipynb_checkpoints")
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in found
        if path.is_file() and not any(part in hidden for part in path.parts)
    }
