"""A learner's copies of the notebooks, and a learner's installation."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from classroom.__main__ import main
from classroom.author.release import release
from classroom.student.work import notebooks_of, prepare

ROOT = Path(__file__).parents[3]
BROUGHT = {"beautifulsoup4", "filelock", "jinja2", "jsonschema", "pygments"}
"""What both lists need: JupyterLab, IPython and torch bring it."""
REFUSING = """\
import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refusing())
"""


def write(path, said):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(said)


@pytest.fixture
def root(tmp_path):
    """Two assignments, as they are released."""
    for name in ("01_one", "02_two"):
        write(tmp_path / "exercises" / name / f"{name[3:]}.ipynb", "blank")
        write(tmp_path / "exercises" / name / "checks.py", "checks")
    return tmp_path


def texts(folder):
    return {path.parent.name: path.read_text() for path in sorted(folder.rglob("*.ipynb"))}


def test_notebooks_are_copied_with_their_checks_and_worked_on_there(root):
    assert notebooks_of(root) == root / "exercises"
    notebooks, stay = prepare(root)
    assert [str(path.relative_to(root)) for path in notebooks] == [
        "work/01_one/one.ipynb",
        "work/02_two/two.ipynb",
    ]
    assert stay == []
    assert (root / "work" / "01_one" / "checks.py").read_text() == "checks"
    assert notebooks_of(root) == root / "work"


def test_what_a_learner_wrote_stays_and_all_else_is_brought_up_to_date(root):
    prepare(root)
    mine = root / "work" / "01_one" / "one.ipynb"
    write(mine, "my answer")
    write(root / "work" / "01_one" / "notes.txt", "my notes")
    assert prepare(root)[1] == []
    for name in ("01_one", "02_two"):
        write(root / "exercises" / name / f"{name[3:]}.ipynb", "newer")
        write(root / "exercises" / name / "checks.py", "newer checks")
    assert prepare(root)[1] == [mine]
    assert texts(root / "work") == {"01_one": "my answer", "02_two": "newer"}
    assert (root / "work" / "01_one" / "notes.txt").exists()
    assert (root / "work" / "01_one" / "checks.py").read_text() == "newer checks"
    assert prepare(root)[1] == []  # it is said once


def test_without_a_record_nothing_is_replaced(root):
    prepare(root)
    write(root / "work" / "01_one" / "one.ipynb", "my answer")
    (root / "work" / "released.json").unlink()
    prepare(root)
    assert texts(root / "work") == {"01_one": "my answer", "02_two": "blank"}


def test_a_start_elsewhere_or_with_an_unknown_name_is_refused(root, capsys):
    assert main(["start", "--no-lab", "--root", str(root / "exercises")]) == 2
    assert "there are no exercises in" in capsys.readouterr().err
    assert main(["start", "03_three", "--no-lab", "--root", str(root)]) == 2
    assert "no assignment is called 03_three; there are: 01_one, 02_two" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("times", "words", "page"),
    [
        (1, [], "/lab/tree/work/01_one/one.ipynb"),
        (2, [], "/lab"),
        (2, ["02_two"], "/lab/tree/work/02_two/two.ipynb"),
    ],
    ids=["first", "again", "named"],
)
def test_lab_is_rooted_at_the_course_and_opens_where_to_begin(
    root, monkeypatch, capsys, times, words, page
):
    opened = []
    monkeypatch.setattr("jupyterlab.labapp.LabApp.launch_instance", opened.append)
    for _ in range(times):
        assert main(["start", *words, "--root", str(root)]) == 0
    assert opened[-1] == [f"--ServerApp.root_dir={root}", f"--LabApp.default_url={page}"]
    begin = page.replace("/lab/tree", f"; begin with {root}") if page != "/lab" else ""
    assert capsys.readouterr().out.endswith(f"your notebooks are in {root / 'work'}{begin}\n")


@pytest.mark.git
def test_a_pull_loses_nothing(root, tmp_path):
    def git(*words, at):
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        done = subprocess.run(["git", *who, *words], cwd=at, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    write(root / ".gitignore", (ROOT / ".gitignore").read_text())
    git("init", "-q", at=root)
    git("add", ".", at=root)
    git("commit", "-qm", "released", at=root)
    clone = tmp_path / "clone"
    git("clone", "-q", str(root), str(clone), at=root)
    prepare(clone)
    write(clone / "work" / "01_one" / "one.ipynb", "my answer")
    assert git("status", "--porcelain", at=clone) == ""
    write(root / "exercises" / "01_one" / "one.ipynb", "newer")
    git("commit", "-qam", "a better text", at=root)
    git("pull", "-q", at=clone)
    assert [path.name for path in prepare(clone)[1]] == ["one.ipynb"]
    assert texts(clone / "work")["01_one"] == "my answer"


@pytest.fixture(scope="module")
def learner(make_course, tmp_path_factory):
    """A released course, and a shell without what `requirements.txt` adds to a learner's list."""
    course = make_course(tmp_path_factory.mktemp("learner") / "course")
    release(course)
    listed = re.findall(r"^([\w.-]+)==", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    added = {name.lower() for name in listed} - BROUGHT
    names = {m for m, found in packages_distributions().items() if added & {*map(str.lower, found)}}
    assert {"nbgrader", "jupytext", "sphinx", "transformers", "mdit_py_plugins"} <= names
    folder = tmp_path_factory.mktemp("refusing")
    (folder / "sitecustomize.py").write_text(REFUSING.format(names=names))
    path = os.pathsep.join([str(folder), str(ROOT / "lib")])

    def run(*words):
        return subprocess.run(
            [sys.executable, "-m", *words],
            cwd=course,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )

    return run


@pytest.mark.slow
def test_a_learner_needs_nothing_of_an_instructor(learner):
    assert learner("classroom", "start", "--no-lab").returncode == 0
    checked = learner("classroom", "check", "work/07_averages")
    assert "7.1 Centre the rows: 0 of 3 points, not begun" in checked.stdout, checked.stderr
    mine = learner("classroom", "mine", "--json")
    assert json.loads(mine.stdout)["outcomes"], mine.stderr
    assert "--library" in learner("groundup", "train", "--help").stdout


@pytest.mark.slow
def test_an_instructors_command_says_what_it_needs(learner):
    done = learner("classroom", "release", "--verify")
    needs = "classroom release needs nbgrader: python -m pip install -r requirements.txt"
    assert (done.returncode, done.stderr.strip().splitlines()[-1]) == (2, needs)
    assert "Traceback" not in done.stderr
