import shutil
import subprocess
import sys

import nbformat
import pytest

from classroom.author.notebooks import cell_of
from classroom.author.release import ReleaseError, differences, release


def snapshot(root):
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def released(course):
    """The course, released."""
    release(course)
    return course


# By hand


def test_a_release_writes_the_notebook_twice_and_hands_out_what_goes_with_it(course):
    before = snapshot(course)
    steps = []
    written = release(course, progress=steps.append)
    assert [str(path.relative_to(course)) for path in written] == [
        "solutions/07_averages/averages.ipynb",
        "solutions/07_averages/prepared.zip",
        "solutions/07_averages/made_from.json",
        "exercises/07_averages/averages.ipynb",
        "exercises/07_averages/checks.py",
        "exercises/07_averages/prepared.zip",
    ]
    assert steps == [
        "07_averages: text to notebook",
        "07_averages: results of centre",
        "07_averages: results of twice",
        "07_averages: remove the solutions",
    ]
    after = snapshot(course)
    assert after.keys() - before.keys() == {str(path.relative_to(course)) for path in written}
    assert all(after[path] == content for path, content in before.items())
    made = after["solutions/07_averages/prepared.zip"]
    assert after["exercises/07_averages/prepared.zip"] == made


def test_solutions_become_blanks_and_checks_are_locked(released):
    handed_out = nbformat.read(released / "exercises/07_averages/averages.ipynb", as_version=4)
    assert cell_of(handed_out, "centre").source == (
        "def centre(x: torch.Tensor) -> torch.Tensor:\n"
        '    """Subtract the mean of the rows."""\n'
        "    # YOUR CODE HERE\n"
        "    raise NotImplementedError()"
    )
    check = cell_of(handed_out, "centre-check")
    assert check.source == 'check("centre")'
    assert check.metadata.editable is False and check.metadata.deletable is False


def test_no_line_of_a_solution_is_handed_out(released):
    everything = b"".join(
        content
        for path, content in snapshot(released / "exercises").items()
        if not path.endswith(".zip")
    )
    for line in (b"middle", b"return x - ", b"number + number", b"n + n", b"SOLUTION"):
        assert line not in everything
    assert "averages.py" not in str(list((released / "exercises").rglob("*")))
    assert "variants.py" not in str(list((released / "exercises").rglob("*")))


# Laws


def test_releasing_twice_gives_the_same_bytes(released):
    before = snapshot(released)
    release(released)
    assert snapshot(released) == before


def test_releasing_elsewhere_gives_the_same_bytes(released, tmp_path, monkeypatch):
    shutil.copytree(released / "solutions", tmp_path / "other" / "solutions")
    shutil.copy(released / "nbgrader_config.py", tmp_path / "other")
    monkeypatch.chdir(tmp_path / "other")
    release(tmp_path / "other")
    assert snapshot(tmp_path / "other") == snapshot(released)


def test_what_lay_in_an_exercise_before_is_gone(released):
    before = snapshot(released)
    (released / "exercises" / "07_averages" / "old.py").touch()
    release(released)
    assert snapshot(released) == before


def test_the_gradebook_of_a_class_is_not_touched(course, tmp_path):
    """Neither the one beside the course, nor one that the settings put elsewhere."""
    (course / "gradebook.db").write_bytes(b"grades of a class")
    elsewhere = tmp_path / "elsewhere.db"
    config = course / "nbgrader_config.py"
    config.write_text(
        config.read_text() + f'\nc.CourseDirectory.db_url = "sqlite:///{elsewhere}"\n'
    )
    release(course)
    assert (course / "gradebook.db").read_bytes() == b"grades of a class"
    assert not elsewhere.exists()
    assert sorted(path.name for path in course.iterdir()) == [
        "exercises",
        "gradebook.db",
        "nbgrader_config.py",
        "solutions",
    ]


def test_only_the_assignments_named_are_released(released):
    copy = shutil.copytree(released / "solutions/07_averages", released / "solutions/08_averages")
    (copy / "checks.py").write_text((copy / "checks.py").read_text().replace('"7.', '"8.'))
    (released / "exercises" / "07_averages" / "checks.py").write_text("left as it is")
    written = release(released, ["08_averages"])
    assert {path.parent.name for path in written} == {"08_averages"}
    assert (released / "exercises/07_averages/checks.py").read_text() == "left as it is"


# Verifying


def test_a_fresh_release_has_no_differences_and_looking_changes_nothing(released):
    before = snapshot(released)
    assert differences(released) == []
    assert snapshot(released) == before


def test_missing_left_over_and_edited_files_are_found(released):
    exercises, solutions = released / "exercises/07_averages", released / "solutions/07_averages"
    (exercises / "prepared.zip").unlink()
    (exercises / "checks.py").write_text("check = lambda name: 100")
    (exercises / "notes.txt").write_text("left over")
    (released / "exercises/06_dropped").mkdir()
    (released / "exercises/06_dropped/dropped.ipynb").touch()
    edited = solutions / "averages.ipynb"
    edited.write_text(edited.read_text().replace("x - middle", "x"))
    assert differences(released) == [
        "exercises/06_dropped/dropped.ipynb belongs to no assignment",
        "exercises/07_averages/checks.py is not what its solution gives",
        "exercises/07_averages/notes.txt belongs to no assignment",
        "exercises/07_averages/prepared.zip is missing",
        "solutions/07_averages/averages.ipynb is not what its solution gives",
    ]


def test_a_solution_that_was_edited_is_found(released):
    text = released / "solutions/07_averages/averages.py"
    text.write_text(text.read_text().replace("Two exercises.", "Both exercises."))
    assert differences(released) == [
        "exercises/07_averages/averages.ipynb is not what its solution gives",
        "solutions/07_averages/averages.ipynb is not what its solution gives",
    ]


def test_a_mistake_that_was_edited_is_found(released):
    folder = released / "solutions" / "07_averages"
    for name, old, new in (
        ("mistakes.py", "number * number", "number - number"),
        ("mistakes.py", "return x\n", "return x + 1\n"),
    ):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace(old, new))
        assert differences(released) == [
            "exercises/07_averages/prepared.zip is not what its solution gives",
            "solutions/07_averages/made_from.json is not what its solution gives",
            "solutions/07_averages/prepared.zip is not what its solution gives",
        ]
        (folder / name).write_text(text)


def test_only_exercises_that_changed_are_run_again_and_all_without_the_record(released):
    def run_again():
        steps = []
        release(released, progress=steps.append)
        return [step.split()[-1] for step in steps if "results of" in step]

    before = snapshot(released)
    assert run_again() == [] and snapshot(released) == before
    for name, old, new, changed in (
        ("mistakes.py", "number * number", "number * number * 1", ["twice"]),
        ("variants.py", "number * 4 / 2", "number * 6 / 3", ["twice"]),
        ("averages.py", "mean(dim=0)", "mean(dim=-2)", ["centre"]),
        ("checks.py", "import torch", "import math, torch", ["centre", "twice"]),
    ):
        path = released / "solutions" / "07_averages" / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
        assert run_again() == changed, name
    (released / "solutions" / "07_averages" / "made_from.json").unlink()
    assert run_again() == ["centre", "twice"]


def test_results_that_differ_by_rounding_stay_as_they_are(released):
    before = snapshot(released)
    checks = released / "solutions" / "07_averages" / "checks.py"
    text = checks.read_text()
    checks.write_text(text.replace("x - x.mean(dim=0)", "(x - x.mean(dim=0)) * (1 + 1e-12)"))
    release(released)
    assert snapshot(released / "exercises") == {
        path.removeprefix("exercises/"): content
        for path, content in before.items()
        if path.startswith("exercises/")
    }


@pytest.mark.slow
def test_stock_nbgrader_hands_out_the_same(released):
    before = snapshot(released / "exercises")
    command = [sys.executable, "-m", "nbgrader", "generate_assignment", "07_averages"]
    subprocess.run(command, cwd=released, check=True, capture_output=True)
    assert snapshot(released / "exercises") == before


def test_an_oracle_without_a_mark_is_refused(course, assignment):
    checks = assignment / "checks.py"
    checks.write_text(checks.read_text().replace("@oracle\ndef doubled", "def doubled"))
    with pytest.raises(ReleaseError, match="twice: doubled is an oracle: mark it with @oracle"):
        release(course)
    assert not (course / "exercises").exists()


def test_a_mistake_that_does_not_run_is_refused(course, assignment):
    mistakes = assignment / "mistakes.py"
    text = mistakes.read_text()
    mistakes.write_text(
        text.replace("    def twice(number):", "    x = y\n\n    def twice(number):", 1)
    )
    with pytest.raises(
        ReleaseError, match="mistakes.py: Squared does not run: NameError: name 'y'"
    ):
        release(course)


def test_what_editors_and_runs_leave_behind_is_no_difference(released):
    for folder in ("__pycache__", ".ipynb_checkpoints"):
        (released / "exercises/07_averages" / folder).mkdir()
        (released / "exercises/07_averages" / folder / "averages.ipynb").touch()
    assert differences(released) == []


# Refusals


def test_an_unknown_assignment_is_refused(course):
    with pytest.raises(
        ReleaseError, match="no assignment is called 08_x, 9; there are: 07_averages"
    ):
        release(course, ["07_averages", "08_x", "9"])
    assert not (course / "exercises").exists()


def test_a_course_without_assignments_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="there are no assignments under .*solutions"):
        release(tmp_path)


@pytest.mark.parametrize("make", [release, differences])
@pytest.mark.parametrize(
    "name",
    [
        "nbgrader_config.py",
        *(f"solutions/07_averages/{n}.py" for n in ("averages", "mistakes", "variants")),
    ],
)
def test_a_release_needs_its_files(course, make, name):
    (course / name).unlink()
    with pytest.raises(ReleaseError, match=f"a release needs .*{name}"):
        make(course)
    assert not (course / "exercises").exists()


def test_what_nbgrader_refuses_is_told_in_a_sentence(course, assignment, capfd):
    text = (assignment / "averages.py").read_text()
    nested = text.replace("    middle =", "    ### BEGIN SOLUTION\n    middle =")
    (assignment / "averages.py").write_text(nested)
    with pytest.raises(ReleaseError) as raised:
        release(course)
    assert str(raised.value) == (
        "nbgrader could not release 07_averages: RuntimeError: encountered nested begin solution "
        "statements"
    )
    assert not (course / "exercises").exists()
    assert capfd.readouterr().err == ""


def test_a_solution_that_would_be_handed_out_is_refused(course, assignment):
    checks = assignment / "checks.py"
    source = checks.read_text()
    for text in ("### BEGIN SOLUTION", "### END SOLUTION"):
        checks.write_text(f"{source}\n# {text}\n")
        with pytest.raises(ReleaseError, match="checks.py still contains a solution"):
            release(course)
        assert not (course / "exercises").exists()


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (
            "mistakes.py",
            'exercise="twice"):\n    """The number is sq',
            'exercise="thrice"):\n    """The number is sq',
            "Squared answers 'thrice'; the ex",
        ),
        ("mistakes.py", "class Squared", "class squared", "squared must have a name like NoScale"),
        ("mistakes.py", "class MeanOfEachRow", "class NotMoved", "NotMoved is there twice for cen"),
        (
            "variants.py",
            '(Variant, exercise="centre"):\n    """A loop',
            '(Variant, exercise="center"):\n    """A loop',
            "Loop answers 'center'; the exe",
        ),
    ],
)
def test_answers_have_names_and_exercises_of_the_assignment(
    course, assignment, file, old, new, said
):
    text = (assignment / file).read_text()
    assert old in text
    (assignment / file).write_text(text.replace(old, new))
    with pytest.raises(ReleaseError, match=said):
        release(course)
    assert not (course / "exercises").exists()


def test_a_notebook_that_was_edited_is_not_overwritten(released, assignment):
    path = assignment / "averages.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[1].outputs = [nbformat.v4.new_output("stream", text="it ran")]
    nbformat.write(notebook, path)
    release(released)  # running it is no edit
    notebook.cells[0].source += " A remark."
    nbformat.write(notebook, path)
    before = snapshot(released)
    with pytest.raises(ReleaseError, match="averages.ipynb was edited since it was made from aver"):
        release(released)
    assert snapshot(released) == before
    path.unlink()
    release(released)
    assert (
        "classroom"
        not in (released / "exercises/07_averages/averages.ipynb")
        .read_text()
        .rpartition("metadata")[2]
    )


def test_stock_nbgrader_hands_out_no_notebook_that_is_older_than_its_text(released, assignment):
    before = snapshot(released / "exercises")
    text = assignment / "averages.py"
    text.write_text(text.read_text().replace("Two exercises.", "Both exercises."))
    command = [sys.executable, "-m", "nbgrader", "generate_assignment", "07_averages"]
    finished = subprocess.run(command, cwd=released, capture_output=True, text=True)
    assert finished.returncode != 0
    assert "averages.py has changed since averages.ipynb" in finished.stderr
    assert snapshot(released / "exercises") == before
