import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from classroom.author.release import release
from classroom.author.student_copy import student_copy

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def released(make_course, tmp_path_factory):
    """A course with the project's own library and settings."""
    course = make_course(tmp_path_factory.mktemp("staff") / "course")
    release(course)
    for name in ("pyproject.toml", "requirements-learn.txt", "LICENSE"):
        shutil.copy(ROOT / name, course)
    shutil.copytree(ROOT / "lib", course / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    return course


def shell(folder, command):
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", f'classroom() {{ python -m classroom "$@"; }}; {command}'],
        cwd=folder,
        env={**os.environ, "PATH": programs, "PYTHONPATH": str(folder / "lib")},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_what_students_get_checks_itself_and_its_workflow_is_green(released, tmp_path):
    target = tmp_path / "handout"
    assert student_copy(released, target) == ["07_averages"]
    (workflow,) = (target / ".github" / "workflows").iterdir()
    steps = yaml.safe_load(workflow.read_text())["jobs"]["check"]["steps"]
    done = shell(target, steps[-1]["run"])
    assert done.returncode == 0, done.stderr
    assert "0 of 5 points" in done.stdout
    # Where a student works in copies, these are run; and it is not green whatever happens.
    assert shell(target, "classroom start --no-lab").returncode == 0
    (target / "work" / "07_averages" / "averages.ipynb").write_text("{")
    assert shell(target, steps[-1]["run"]).returncode == 1


def test_no_solution_and_no_other_work_of_the_author_is_in_it(released, tmp_path):
    target = tmp_path / "handout"
    (target / ".git").mkdir(parents=True)
    student_copy(released, target)
    student_copy(released, target)  # when something has changed
    assert {path.name for path in target.iterdir()} == {
        *("exercises", "lib", ".github", ".git"),
        *("README.md", "LICENSE", "pyproject.toml", "requirements.txt", ".gitignore"),
    }
    given = {path.name for path in (target / "exercises" / "07_averages").iterdir()}
    assert given == {"averages.ipynb", "checks.py", "prepared.zip"}
    assert not (target / "lib" / "classroom" / "author" / "template").exists()
    readme = (target / "README.md").read_text()
    assert "A fork of a public repository is public" in readme
    for path in re.findall(r"\]\(([^)]+)\)", readme):
        assert (target / path).exists()
    assert "[Averages](exercises/07_averages/averages.ipynb) | 2 | 5 | 15 |" in readme


def test_learners_install_what_the_package_needs_and_nothing_of_a_developers(released, tmp_path):
    student_copy(released, tmp_path / "handout")
    text = (tmp_path / "handout" / "requirements.txt").read_text()
    assert text == (ROOT / "requirements-learn.txt").read_text()
    names = set(re.findall(r"^([\w.-]+)==", text, re.MULTILINE))
    project = tomllib.loads((tmp_path / "handout" / "pyproject.toml").read_text())
    assert names == {*project["project"]["dependencies"], "jupyterlab"}
    assert text.endswith("\n-e .\n")
    assert project["tool"].keys() == {"setuptools"}


def test_a_notebook_that_somebody_filled_in_is_not_handed_out(released, tmp_path):
    course = shutil.copytree(released, tmp_path / "course")
    notebook = course / "exercises" / "07_averages" / "averages.ipynb"
    blank = '"    raise NotImplementedError()"'
    notebook.write_text(notebook.read_text().replace(blank, '"    return x"', 1))
    with pytest.raises(ValueError, match="centre is filled in, in .*averages.ipynb"):
        student_copy(course, tmp_path / "handout")
    assert not (tmp_path / "handout").exists()


def test_a_folder_of_something_else_is_left_alone(released, tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match="holds something else: name an empty folder"):
        student_copy(released, tmp_path)
    with pytest.raises(ValueError, match="must lie outside the course"):
        student_copy(released, released / "handout")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
