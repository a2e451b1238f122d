"""What takes long to find out about the exercises, kept from one build to the next.

To ask the classroom means to import torch. A build after a changed sentence would mostly wait for
that. What was found is kept in Sphinx's environment, until a file of the exercises or of the
library changes.
"""

import hashlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sphinx.environment import BuildEnvironment

PACKAGES = ("classroom", "groundup")
Found = TypeVar("Found")


def package_folders() -> list[Path]:
    """Find the folders of our packages, of those that are installed."""
    specs = map(importlib.util.find_spec, PACKAGES)
    return [Path(spec.origin).parent for spec in specs if spec is not None and spec.origin]


def state_of(root: Path) -> str:
    """Condense all that the classroom's answers can depend on: every module, every exercise."""
    digest = hashlib.sha256()
    for folder in (root / "solutions", *package_folders()):
        for file in sorted(folder.rglob("*.py")):
            digest.update(file.relative_to(folder).as_posix().encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def remembered(
    env: BuildEnvironment, name: str, root: Path, find: Callable[[Path], Found]
) -> Found:
    """Give what `find` finds out about the course under `root`, or has found in an earlier build.

    Args:
        env: Where it is kept.
        name: Under which name.
        root: The folder of the course.
        find: Called if nothing is kept, or not of these files.

    """
    kept = env.__dict__.setdefault("remembered", {})
    now = (str(root), state_of(root))
    if kept.get(name, (None,))[0] != now:
        kept[name] = (now, find(root))
    return kept[name][1]
