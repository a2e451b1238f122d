"""Where a learner works: copies of the notebooks in `work/`, which git leaves alone."""

import hashlib
import json
import shutil
from pathlib import Path

from classroom.course import assignments, text_file

WORK = "work"
_RECORD = "released.json"


def notebooks_of(root: Path) -> Path:
    """Return the folder in which notebooks are filled in: `work/`, or `exercises/` without one."""
    return root / WORK if (root / WORK).is_dir() else root / "exercises"


def prepare(root: Path) -> tuple[list[Path], list[Path]]:
    """Copy the exercises into `work/`, or bring up to date what is there.

    Checks are always those of the course. A notebook is replaced only if nobody has changed it.

    Args:
        root: The course's folder, which holds `exercises/`.

    Returns:
        The notebooks, and those that stay as they are although the course has changed its own.

    Raises:
        FileNotFoundError: If there are no exercises.

    """
    released = assignments(root / "exercises")
    if not released:
        raise FileNotFoundError(
            f"there are no exercises in {root.resolve()}: specify with --root where the course is"
        )
    record = root / WORK / _RECORD
    before = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    now, notebooks, stay = {}, [], []
    for folder in released:
        given = text_file(folder).with_suffix(".ipynb")
        own = root / WORK / folder.name / given.name
        was, now[folder.name] = before.get(folder.name), _hash(given)
        is_changed = own.is_file() and _hash(own) not in (was, now[folder.name])
        if is_changed and now[folder.name] != was:
            stay.append(own)
        left_out = shutil.ignore_patterns("__pycache__", ".*", given.name if is_changed else "")
        shutil.copytree(folder, own.parent, ignore=left_out, dirs_exist_ok=True)
        notebooks.append(own)
    record.write_text(json.dumps(now, indent=2) + "\n", encoding="utf-8")
    return notebooks, stay


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
