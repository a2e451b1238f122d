"""The way of an assignment through nbgrader's exchange: out, back in, graded, and its page out."""

import getpass
import json
import shutil
import time
from datetime import datetime

import nbformat
import pytest
from nbgrader.tests import run_nbgrader

from classroom.__main__ import main
from classroom.author.notebooks import cell_of
from classroom.nbgrader.gradebook import GradebookWriter

pytestmark = pytest.mark.slow

NAME = "07_averages"
ME = getpass.getuser()
PAGE = f"{NAME}/averages.ipynb"


@pytest.fixture
def exchange(tmp_path):
    folder = tmp_path / "exchange"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


@pytest.fixture
def nbgrader(exchange, tmp_path, monkeypatch):
    """Run a command of nbgrader in a folder; a student's has no settings but the course's name."""
    for kind in ("CONFIG", "DATA", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{kind}_DIR", str(tmp_path / "jupyter" / kind))

    def run(folder, command, *options, status=0):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        course = "--CourseDirectory.course_id=attention_from_the_ground_up"
        where = f"--Exchange.root={exchange}"
        return run_nbgrader([command, NAME, where, course, *options], retcode=status)

    return run


@pytest.fixture
def released(course, handout, exchange, nbgrader):
    """The handout, in the exchange."""
    shutil.copy(handout.folder / "averages.ipynb", course / "solutions" / NAME)
    (handout.folder / "prepared.zip").write_bytes(b"recorded")
    nbgrader(course, "release_assignment")
    return next(exchange.glob(f"*/outbound/{NAME}"))


@pytest.fixture
def inbound(released, exchange):
    return next(exchange.glob("*/inbound"))


def put(inbound, released, name):
    """Put the blank notebook into the exchange without nbgrader, under a name of one's choice."""
    folder = inbound / name
    shutil.copytree(released, folder)
    return folder


def taken(course):
    """Who has a submission, and which files are in it."""
    found = sorted((course / "submitted").glob(f"*/{NAME}"))
    return {folder.parent.name: {path.name for path in folder.iterdir()} for folder in found}


# nbgrader leaves a file open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_assignment_goes_out_comes_back_is_graded_and_its_page_reaches_the_student(
    course, released, nbgrader, tmp_path, here, capsys
):
    home = tmp_path / "home"
    nbgrader(home, "fetch_assignment")
    sent = {path.name for path in (home / NAME).iterdir()}
    assert sent == {"averages.ipynb", "checks.py", "mistakes.py", "prepared.zip"}
    with pytest.MonkeyPatch.context() as at:
        at.chdir(tmp_path)
        assert main(["check", str(home / NAME)]) == 1
    assert "0 of 5 points" in capsys.readouterr().out
    notebook = nbformat.read(home / PAGE, as_version=4)
    cell_of(notebook, "centre").source = "def centre(x):\n    return x - x.mean(dim=0)"
    nbformat.write(notebook, home / PAGE)
    nbgrader(home, "submit")
    nbgrader(course, "collect")
    assert main(["grade", NAME, "--root", str(course), "--feedback"]) == 0
    with GradebookWriter(course, NAME, "averages") as writer:
        assert {who: each.earned for who, each in writer.class_grades().items()} == {ME: 3}
    nbgrader(course, "release_feedback")
    nbgrader(home, "fetch_feedback")
    (page,) = (home / NAME / "feedback").glob("*/averages.html")
    assert "3 of 5 points" in page.read_text()


def test_a_handout_with_an_answer_in_it_is_not_released(course, handout, exchange, nbgrader):
    path = handout.folder / "averages.ipynb"
    notebook = nbformat.read(path, as_version=4)
    cell_of(notebook, "twice").source = "def twice(number):\n    return number + number"
    nbformat.write(notebook, path)
    said = nbgrader(course, "release_assignment", status=1)
    assert "twice is filled in" in said
    assert not list(exchange.glob("*/outbound/*"))


def test_a_submission_is_its_owners_whatever_its_name_says(course, inbound, released, nbgrader):
    put(inbound, released, f"eve+{NAME}+2099-01-01 00:00:00 UTC+x")
    put(inbound, released, f"eve+{NAME}+no time+x")
    nbgrader(course, "collect")
    assert set(taken(course)) == {ME}


def test_where_all_are_one_user_of_the_system_names_count(course, inbound, released, nbgrader):
    put(inbound, released, f"eve+{NAME}+2026-01-01 00:00:00 UTC+x")
    nbgrader(course, "collect", "--ExchangeCollect.check_owner=False")
    assert set(taken(course)) == {"eve"}


def test_no_link_is_followed_with_the_instructors_rights(course, inbound, released, nbgrader):
    secret = course / "solutions" / NAME
    folder = put(inbound, released, f"{ME}+{NAME}+2026-01-01 00:00:00 UTC+x")
    (folder / "averages.ipynb").unlink()
    (folder / "averages.ipynb").symlink_to(secret / "averages.py")
    (folder / "more").symlink_to(secret)
    said = nbgrader(course, "collect")
    assert "averages.ipynb is a link" in said
    assert taken(course) == {ME: {"checks.py", "mistakes.py", "prepared.zip", "timestamp.txt"}}

    (inbound / f"{ME}+{NAME}+2026-01-02 00:00:00 UTC+x").symlink_to(secret)
    said = nbgrader(course, "collect", "--update")
    assert "the folder is a link" in said
    assert "averages.py" not in str(taken(course))


def test_of_two_submissions_within_a_second_the_later_is_taken(course, inbound, released, nbgrader):
    for number in (1, 2):
        folder = put(inbound, released, f"{ME}+{NAME}+2026-01-01 00:00:00 UTC+{number}")
        (folder / "which.txt").write_text(str(number))
        nbgrader(course, "collect", "--update")
        assert (course / "submitted" / ME / NAME / "which.txt").read_text() == str(number)


def test_what_counts_is_when_the_files_arrived(course, inbound, released, nbgrader):
    """Not when they were collected, nor when their author says; weights count as the notebook."""
    folder = put(inbound, released, f"{ME}+{NAME}+1999-01-01 00:00:00 UTC+x")
    (folder / "timestamp.txt").write_text("1999-01-01 00:00:00 UTC")
    (folder / "model.safetensors").write_bytes(b"weights")
    files = ("averages.ipynb", "model.safetensors")
    arrived = {name: int((folder / name).lstat().st_ctime) for name in files}
    time.sleep(1.1)
    nbgrader(course, "collect")
    lines = (course / "submitted" / "received.jsonl").read_text().splitlines()
    noted = {line["file"]: line for line in map(json.loads, lines)}
    assert {line["student"] for line in noted.values()} == {ME}
    for name in files:
        assert datetime.fromisoformat(noted[name]["received"]).timestamp() == arrived[name]
    assert "1999" not in (course / "submitted" / ME / NAME / "timestamp.txt").read_text()
    assert "No newer submission" in nbgrader(course, "collect", "--update")
