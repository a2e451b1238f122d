import contextlib
import copy
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import nbformat
import pytest
from nbgrader.api import Gradebook
from nbgrader.utils import determine_grade, is_grade, notebook_hash

from classroom.author.notebooks import build_notebook, write_notebook
from classroom.exercise.report import CheckResult, Report
from classroom.grader.verdicts import Verdict
from classroom.nbgrader.gradebook import GradebookWriter, with_scores

pytestmark = pytest.mark.slow

NOON = datetime(2026, 3, 5, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def known_course(make_course, tmp_path_factory):
    """A course whose gradebook knows the assignment."""
    root = make_course(tmp_path_factory.mktemp("known") / "course")
    assignment = root / "solutions" / "07_averages"
    write_notebook(build_notebook(assignment), assignment / "averages.ipynb")
    with GradebookWriter(root, "07_averages", "averages"):
        return root


@pytest.fixture
def course(known_course, tmp_path):
    return shutil.copytree(known_course, tmp_path / "course")


@pytest.fixture
def notebook(course):
    """What the course hands out; the solutions in it do no harm here."""
    return nbformat.read(course / "solutions" / "07_averages" / "averages.ipynb", as_version=4)


@pytest.fixture
def writer(course):
    with GradebookWriter(course, "07_averages", "averages") as writer:
        yield writer


def report(exercise, *points):
    results = [
        CheckResult(f"check {i}", most, earned, "" if earned else "It is off.")
        for i, (earned, most) in enumerate(points)
    ]
    return Report(exercise, f"7.1 {exercise}", tuple(results))


def verdict(student="ada", received=NOON, centre=(1, 0), twice=2):
    return Verdict(
        assignment="07_averages",
        student=student,
        key="key",
        reports=(
            report("centre", (centre[0], 1), (centre[1], 2)),
            report("twice", (twice, 2)),
        ),
        received=received.isoformat(),
    )


def reports():
    return {report.exercise: report for report in verdict().reports}


def scores(course, student="ada"):
    """Points by exercise, as nbgrader tells them."""
    with opened(course) as gradebook:
        submission = gradebook.find_submission("07_averages", student)
        return {g.name: g.score for n in submission.notebooks for g in n.grades}


def opened(course):
    return Gradebook(f"sqlite:///{course / 'gradebook.db'}", "attention_from_the_ground_up")


def kept(course, student="ada"):
    return course / "autograded" / student / "07_averages"


# What nbgrader reads


def cells_of(notebook):
    return {c.metadata.nbgrader.grade_id: c for c in notebook.cells if "nbgrader" in c.metadata}


@pytest.mark.parametrize(
    "output",
    [
        nbformat.v4.new_output("execute_result", {"text/plain": "198"}),
        nbformat.v4.new_output("execute_result", {"text/plain": "well done"}),
        nbformat.v4.new_output("stream", name="stderr", text="a warning"),
        nbformat.v4.new_output("error", ename="ValueError", evalue="no", traceback=[]),
    ],
    ids=["a number", "no number", "a warning", "an error"],
)
def test_nothing_that_was_printed_counts(notebook, output):
    for cell in filter(is_grade, notebook.cells):
        cell.outputs = [output]
    marked = cells_of(with_scores(notebook, reports()))
    assert determine_grade(marked["centre-check"]) == (1, 3)
    assert determine_grade(marked["twice-check"]) == (2, 2)


def test_what_was_not_checked_earns_nothing(notebook):
    marked = cells_of(with_scores(notebook, {}))
    assert determine_grade(marked["centre-check"]) == (0, 3)
    assert determine_grade(marked["twice-check"]) == (0, 2)


def test_the_report_can_be_read_in_the_notebook(notebook):
    cell = cells_of(with_scores(notebook, reports()))["centre-check"]
    assert "7.1 centre: 1 of 3 points" in cell.outputs[1].data["text/plain"]
    assert "It is off." in cell.outputs[1].data["text/html"]


@pytest.mark.parametrize("earned", [4, -1, float("nan"), 2.5])
def test_impossible_points_are_refused(notebook, earned):
    with pytest.raises(ValueError, match="points of centre must be a whole number from 0 to 3"):
        with_scores(notebook, {"centre": report("centre", (earned, 3))})


def test_the_notebook_given_is_left_alone(notebook):
    before = json.dumps(notebook)
    with_scores(notebook, reports())
    assert json.dumps(notebook) == before


# The gradebook


def test_scores_are_where_nbgrader_keeps_its_own(course, writer, notebook):
    writer.write(verdict(), notebook)
    writer.write(verdict("grace", centre=(1, 2), twice=0), notebook)
    assert scores(course) == {"centre-check": 1, "twice-check": 2}
    assert scores(course, "grace") == {"centre-check": 3, "twice-check": 0}
    with opened(course) as gradebook:
        submission = gradebook.find_submission("07_averages", "ada")
        assert (submission.score, submission.max_score) == (3, 5)
        assert submission.timestamp == NOON.replace(tzinfo=None)
        assert not submission.needs_manual_grade
    assert {path.name for path in kept(course).iterdir()} == {"averages.ipynb", "timestamp.txt"}


def test_a_time_of_another_zone_is_the_same_time(course, writer, notebook):
    zone = datetime.now().astimezone().tzinfo
    writer.write(verdict(received=NOON.astimezone(zone)), notebook)
    with opened(course) as gradebook:
        submission = gradebook.find_submission("07_averages", "ada")
        assert submission.timestamp == NOON.replace(tzinfo=None)
    assert (kept(course) / "timestamp.txt").read_text() == "2026-03-05 12:00:00 UTC\n"


def test_the_time_lies_where_formgrader_looks_for_it(course, writer, notebook):
    """Whatever was there is replaced; a link, or what is no folder, is left alone."""
    folder = course / "submitted" / "ada" / "07_averages"
    folder.mkdir(parents=True)
    (course / "secret").write_text("secret")
    (folder / "timestamp.txt").symlink_to(course / "secret")
    (course / "submitted" / "bo").mkdir()
    (course / "submitted" / "bo" / "07_averages").symlink_to(folder)
    (course / "submitted" / "cy" / "07_averages" / "timestamp.txt").mkdir(parents=True)
    writer.write(verdict(), notebook)
    for student in ("bo", "cy"):
        writer.write(verdict(student, received=NOON - timedelta(hours=1)), notebook)
    assert (folder / "timestamp.txt").read_text() == "2026-03-05 12:00:00 UTC\n"
    assert (course / "secret").read_text() == "secret"
    assert [path.name for path in (course / "submitted" / "cy").iterdir()] == ["07_averages"]


def test_writing_again_replaces_the_scores(course, writer, notebook):
    writer.write(verdict(), notebook)
    writer.write(verdict(centre=(0, 2), twice=0), notebook)
    assert scores(course) == {"centre-check": 2, "twice-check": 0}
    assert [path.name for path in kept(course).parent.iterdir()] == ["07_averages"]


def test_what_was_graded_by_hand_stays(course, writer, notebook):
    writer.write(verdict(), notebook)
    with opened(course) as gradebook:
        grade = gradebook.find_grade("centre-check", "averages", "07_averages", "ada")
        grade.manual_score = 2.5
        gradebook.db.commit()
    writer.write(verdict(centre=(1, 2)), notebook)
    assert scores(course)["centre-check"] == 2.5
    with opened(course) as gradebook:
        assert gradebook.find_submission("07_averages", "ada").needs_manual_grade


def test_a_submission_is_written_wholly_or_not_at_all(course, writer, notebook):
    writer.write(verdict(), notebook)
    changed = copy.deepcopy(notebook)
    cells_of(changed)["twice-check"].metadata.nbgrader.grade_id = "unknown-check"
    with pytest.raises(Exception, match="unknown-check"):
        writer.write(verdict(centre=(0, 2), twice=0), changed)
    assert scores(course) == {"centre-check": 1, "twice-check": 2}
    read = nbformat.read(kept(course) / "averages.ipynb", as_version=4)
    assert determine_grade(cells_of(read)["centre-check"]) == (1, 3)
    assert [path.name for path in kept(course).parent.iterdir()] == ["07_averages"]


@pytest.mark.parametrize("student", ["", ".", "..", "../ada", "a/b", "a\0b"])
def test_a_name_that_leads_elsewhere_is_refused(course, writer, notebook, student):
    with pytest.raises(ValueError, match="student's name must be that of a folder"):
        writer.write(verdict(student), notebook)
    assert not (course / "autograded").exists()


def test_an_environment_need_not_be_active(make_course, tmp_path, monkeypatch):
    """A new gradebook asks for the program `alembic`."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    root = make_course(tmp_path / "other")
    assignment = root / "solutions" / "07_averages"
    write_notebook(build_notebook(assignment), assignment / "averages.ipynb")
    with GradebookWriter(root, "07_averages", "averages"):
        assert os.environ["PATH"] == "/usr/bin:/bin"
    assert (root / "gradebook.db").exists()


def test_an_assignment_that_nbgrader_refuses_is_told(course):
    (course / "gradebook.db").unlink()
    (course / "solutions" / "07_averages" / "averages.ipynb").write_text("no notebook")
    with pytest.raises(ValueError, match="nbgrader cannot add 07_averages to its gradebook"):
        GradebookWriter(course, "07_averages", "averages").__enter__()


def test_telling_nbgrader_of_the_assignment_writes_nothing_else(known_course):
    assert {path.name for path in known_course.iterdir()} == {
        "solutions",
        "nbgrader_config.py",
        "gradebook.db",
    }


# Late


@pytest.fixture
def due(course, writer):
    """The assignment is due an hour before noon, and nothing is given for what comes later."""
    with (course / "nbgrader_config.py").open("a") as config:
        config.write('\nc.LateSubmissionPlugin.penalty_method = "zero"\n')
    with opened(course) as gradebook:
        gradebook.update_or_create_assignment("07_averages", duedate=NOON - timedelta(hours=1))
    with GradebookWriter(course, "07_averages", "averages") as writer:
        yield writer


def penalty(course):
    with opened(course) as gradebook:
        (notebook,) = gradebook.find_submission("07_averages", "ada").notebooks
        return notebook.late_submission_penalty


def test_a_late_submission_gets_the_penalty_of_the_course(course, due, notebook):
    due.write(verdict(), notebook)
    assert penalty(course) == 3


def test_a_penalty_goes_when_the_submission_was_not_late_after_all(course, due, notebook):
    due.write(verdict(), notebook)
    due.write(verdict(received=NOON - timedelta(hours=2)), notebook)
    assert not penalty(course)


# What follows


def test_a_page_tells_points_and_comments_of_people_and_they_outlive_a_regrade(
    course, due, notebook, tmp_path
):
    due.write(verdict(), notebook)
    with opened(course) as gradebook:
        names = ("averages", "07_averages", "ada")
        gradebook.find_grade("centre-check", *names).manual_score = 2.5
        gradebook.find_comment("centre", *names).manual_comment = "Nearly <b>."
        gradebook.db.commit()
    due.write(verdict(centre=(0, 0), twice=0), notebook)
    grades = due.grades("ada")
    assert {(line.exercise, line.earned, line.points, line.by_hand) for line in grades.lines} == {
        ("centre", 2.5, 3, True),
        ("twice", 0, 2, False),
    }
    assert (grades.penalty, grades.earned, grades.points) == (2.5, 0, 5)
    secret = tmp_path / "submitted" / "ada" / "07_averages" / "submission_secret.txt"
    secret.parent.mkdir(parents=True)
    secret.write_text("of the exchange")
    page = due.write_feedback("ada", tmp_path / "submitted").read_text()
    folder = course / "feedback" / "ada" / "07_averages"
    assert {path.name for path in folder.iterdir()} == {
        "averages.html",
        "timestamp.txt",
        "submission_secret.txt",
    }
    words = ["0 of 5 points", "2.5", "points given by a person", "Nearly &lt;b&gt;.", "−2.5"]
    places = [page.index(word) for word in [*words, "It is off."]]
    assert places == sorted(places)
    assert due.graded_students() == ["ada"]


def test_an_answer_in_a_cell_of_ones_own_is_a_response(course, writer, notebook):
    """To nbgrader it is none: the cell that was handed out is unchanged."""
    writer.write(verdict(), notebook)
    with opened(course) as gradebook:
        names = ("averages", "07_averages", "ada")
        gradebook.find_comment("centre", *names).auto_comment = "No response."
        gradebook.db.commit()
    assert [line.comment for line in writer.grades("ada").lines] == ["", ""]
    assert "No response" not in writer.write_feedback("ada").read_text()


def test_a_page_needs_a_submission(writer):
    assert writer.graded_students() == []
    with pytest.raises(
        ValueError, match="the gradebook has no submission of 07_averages by 'nobody'"
    ):
        writer.grades("nobody")


def test_the_stock_command_writes_the_same_page(course, writer, notebook):
    own = nbformat.v4.new_markdown_cell("<script>alert(1)</script><b>mine</b>", id="own-1")
    notebook.cells.insert(2, own)
    writer.write(verdict(), notebook)
    path = writer.write_feedback("ada")
    ours = path.read_text()
    shutil.rmtree(course / "feedback")
    finished = subprocess.run(
        [sys.executable, "-m", "nbgrader", "generate_feedback", "07_averages"],
        cwd=course,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    # nbgrader hands on no time.
    assert path.read_text() == ours.replace(", received on 5 March 2026 at 12:00 UTC", "")
    assert "<b>mine</b>" in ours and "<script" not in ours
    assert "Graded without a sandbox" in ours  # this verdict has no layers


def test_the_exchange_hands_back_what_the_stock_command_wrote(course, writer, notebook, tmp_path):
    submitted = course / "submitted" / "ada" / "07_averages"
    submitted.mkdir(parents=True)
    (submitted / "submission_secret.txt").write_text("of the exchange")
    writer.write(verdict(), notebook)
    exchange = tmp_path / "exchange"
    exchange.mkdir()
    exchange.chmod(0o777)
    for command in ("generate_feedback", "release_feedback"):
        finished = subprocess.run(
            [sys.executable, "-m", "nbgrader", command, "07_averages"]
            + [f"--Exchange.root={exchange}"],
            cwd=course,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert finished.returncode == 0, finished.stderr[-2000:]
    name = notebook_hash(secret="of the exchange", notebook_id="averages")
    (released,) = exchange.glob(f"*/feedback/{name}.html")
    written = course / "feedback" / "ada" / "07_averages" / "averages.html"
    assert released.read_bytes() == written.read_bytes()


def test_a_secret_that_is_a_link_is_not_followed(course, writer, notebook):
    submitted = course / "submitted" / "ada" / "07_averages"
    submitted.mkdir(parents=True)
    (submitted / "submission_secret.txt").symlink_to("/etc/hostname")
    writer.write(verdict(), notebook)
    kept = course / "autograded" / "ada" / "07_averages"
    assert {path.name for path in kept.iterdir()} == {"averages.ipynb", "timestamp.txt"}


def test_a_locked_gradebook_is_reported_in_a_sentence(writer, course, notebook):
    with contextlib.closing(sqlite3.connect(course / "gradebook.db")) as other:
        other.execute("begin exclusive")
        with pytest.raises(BlockingIOError, match="keeps the gradebook locked: close it, and run"):
            writer.write(verdict(), notebook)
        other.rollback()
    writer.write(verdict(), notebook)
    assert writer.graded_students() == ["ada"]
