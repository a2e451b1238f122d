"""Writes what students get, `classroom handout`: a repository of its own, without any solution.

It holds the released exercises, the library that checks them, what a learner installs, a README of
its own, and a workflow that needs neither tests nor solutions.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbgrader.utils import is_solution

from classroom.author.inventory import inventory

_DEBRIS = ("__pycache__", ".ipynb_checkpoints", "*.egg-info", "*.pyc")
_FOR_AUTHORS = ("template",)
"""A small assignment with its solution, which `classroom new` copies."""
_BLANKS = ("raise NotImplementedError", "YOUR ANSWER HERE")
_TRACES = ("BEGIN SOLUTION", "END SOLUTION")

_README = """\
# Exercises

{table}

You need Python 3.11 or newer. Make an environment (on Windows, activate it by
`.venv\\Scripts\\activate`) and install what the exercises need. On Linux without a GPU, add
`--extra-index-url https://download.pytorch.org/whl/cpu` to the second line, which saves gigabytes:

```
python -m venv .venv && . .venv/bin/activate
python -m pip install -r requirements.txt
```

Then start:

```
classroom start
```

This copies the notebooks into `work/` and opens the first one in JupyterLab. Fill in a cell, run
it, and run the check below it. Type the command again after an update of this folder: what you have
written stays. Without JupyterLab, `classroom start --no-lab` copies
them, and `classroom check work/{first}` checks one in a terminal.

**A fork of a public repository is public**, and so is what you push to it. Work in a copy
of your own that is private: download the folder, or make a private repository from it. Submit
as your instructor specified.
"""

_WORKFLOW = """\
# Opens each notebook and runs its checks. A blank is no error; a notebook that cannot be
# run is one. It asks for no rights and no secrets, so that it may run in a fork.
name: exercises

on: [push, pull_request]

permissions:
  contents: read

jobs:
  check:
    runs-on: ubuntu-24.04
    timeout-minutes: 60
    env:
      PIP_EXTRA_INDEX_URL: https://download.pytorch.org/whl/cpu
    steps:
      - uses: actions/checkout@v7
        with:
          persist-credentials: false
      - uses: actions/setup-python@v7
        with:
          python-version: "3.11"
      - run: python -m pip install -r requirements.txt
      - run: |
          folder=exercises; test ! -d work || folder=work
          for each in "$folder"/*/; do classroom check "$each" || test $? -eq 1; done
"""

_IGNORED = "__pycache__/\n*.egg-info/\n.ipynb_checkpoints/\n.venv/\nmine/\nruns/\n"


def student_copy(root: Path, target: Path) -> list[str]:
    """Write what students get into a folder, in place of what it wrote there before.

    Args:
        root: The course's folder.
        target: Made if it is not there. Files of other names, such as `.git`, stay.

    Returns:
        The names of the assignments in it.

    Raises:
        ValueError: If the folder is a part of the course or holds something else, or if a released
            notebook is filled in.

    """
    found = inventory(root)["assignments"]
    names = [each["name"] for each in found if (root / "exercises" / each["name"]).is_dir()]
    if not names:
        raise ValueError(f"there is nothing in {root / 'exercises'}: see `classroom release`")
    if target.resolve() == root.resolve() or root.resolve() in target.resolve().parents:
        raise ValueError(f"--to must lie outside the course, got {target}")
    there = {path.name for path in target.iterdir()} if target.exists() else set()
    if there - {".git"} and "exercises" not in there or "solutions" in there:
        raise ValueError(f"{target} holds something else: name an empty folder")
    for name in names:
        require_blank(root / "exercises" / name)
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    for folder in ("exercises", "lib"):
        shutil.rmtree(target / folder, ignore_errors=True)
    for name in names:
        shutil.copytree(root / "exercises" / name, target / "exercises" / name, ignore=left_out())
    shutil.copytree(root / "lib", target / "lib", ignore=left_out(*_FOR_AUTHORS))
    shutil.copy(root / "LICENSE", target)
    shutil.copy(root / "requirements-learn.txt", target / "requirements.txt")
    rows = [
        f"| [{each['title']}](exercises/{each['name']}/{each['notebook']}) | "
        f"{len(each['exercises'])} | {each['points']} | {each['minutes']} |"
        for each in found
        if each["name"] in names
    ]
    table = "\n".join(["| notebook | exercises | points | minutes |", "|---|--:|--:|--:|", *rows])
    workflow = target / ".github" / "workflows" / "exercises.yml"
    workflow.parent.mkdir(parents=True, exist_ok=True)
    for path, text in (
        (target / "README.md", _README.format(table=table, first=names[0])),
        (target / "pyproject.toml", _installed(project)),
        (target / ".gitignore", _IGNORED),
        (workflow, _WORKFLOW),
    ):
        path.write_text(text, encoding="utf-8")
    return names


def left_out(*more: str) -> Callable[[str, list[str]], set[str]]:
    """Return what `shutil.copytree` is to ignore: the debris of runs and editors, and `more`."""
    return shutil.ignore_patterns(*_DEBRIS, *more)


def require_blank(folder: Path) -> None:
    """Raise ValueError if an exercise of a released notebook is filled in."""
    for path in folder.glob("*.ipynb"):
        for cell in filter(is_solution, nbformat.read(path, as_version=4).cells):
            is_blank = any(blank in cell.source for blank in _BLANKS)
            if not is_blank or any(trace in cell.source for trace in _TRACES):
                raise ValueError(
                    f"{cell.metadata.nbgrader.grade_id} is filled in, in {path}: "
                    f"run `classroom release {folder.name}`"
                )


def _installed(project: str) -> str:
    """Return what of a project's settings says how it is installed."""
    sections = re.split(r"(?m)^(?=\[)", project)
    kept = ("[build-system", "[project]", "[project.scripts", "[tool.setuptools")
    return "".join(section for section in sections if section.startswith(kept))
