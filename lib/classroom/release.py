"""Makes the students' folders from the solutions, always the same bytes from the same text.

A release is a list of small steps: text to notebook, nbgrader's `generate_assignment` to cut the
solutions out, and a copy of what goes with it. nbgrader works in a scratch copy of the course with
a gradebook of its own, so that releasing never touches a class's grades.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from classroom.notebooks import assignments, build_notebook, text_file, write_notebook

HANDED_OUT = ("checks.py", "mistakes.py")
_TRACES = ("BEGIN SOLUTION", "END SOLUTION")


class ReleaseError(Exception):
    """A release was not made; the text says what to mend."""


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
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "course"
        shutil.copytree(root / "solutions", copy / "solutions", ignore=_generated)
        shutil.copy(root / "nbgrader_config.py", copy)
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


def _generate(root: Path, folder: Path, scratch: Path) -> Path:
    """Run nbgrader on a copy of one assignment; return the folder it made."""
    copy = scratch / "solutions" / folder.name
    copy.mkdir(parents=True)
    for name in (text_file(folder).with_suffix(".ipynb").name, *HANDED_OUT):
        shutil.copy(folder / name, copy)
    shutil.copy(root / "nbgrader_config.py", scratch)
    # nbgrader keeps its settings per process, so each release gets a process of its own.
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "nbgrader", "generate_assignment", folder.name),
            f"--CourseDirectory.root={scratch}",
        ],
        cwd=scratch,
        capture_output=True,
        text=True,
    )
    made = scratch / "exercises" / folder.name
    if finished.returncode != 0 or not made.is_dir():
        raise ReleaseError(f"nbgrader could not release {folder.name}:\n{finished.stderr.strip()}")
    return made


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
