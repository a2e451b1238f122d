import shutil

import nbformat
import pytest

from classroom.notebooks import cell_of
from classroom.release import ReleaseError, differences, release


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
        "exercises/07_averages/averages.ipynb",
        "exercises/07_averages/checks.py",
        "exercises/07_averages/mistakes.py",
    ]
    assert steps == ["07_averages: text to notebook", "07_averages: cut the solutions out"]
    after = snapshot(course)
    assert after.keys() - before.keys() == {str(path.relative_to(course)) for path in written}
    assert all(after[path] == content for path, content in before.items())
    for name in ("checks.py", "mistakes.py"):
        assert after[f"exercises/07_averages/{name}"] == before[f"solutions/07_averages/{name}"]


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
        if path.endswith(".ipynb")
    )
    for line in (b"middle", b"return x - ", b"number + number", b"SOLUTION"):
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
    shutil.copytree(released / "solutions/07_averages", released / "solutions/08_averages")
    (released / "exercises" / "07_averages" / "checks.py").write_text("left as it is")
    written = release(released, ["08_averages"])
    assert {path.parent.name for path in written} == {"08_averages"}
    assert (released / "exercises/07_averages/checks.py").read_text() == "left as it is"
    same = [
        released / "exercises" / name / "averages.ipynb" for name in ("07_averages", "08_averages")
    ]
    assert same[0].read_bytes() == same[1].read_bytes()


# Verifying


def test_a_fresh_release_has_no_differences_and_looking_changes_nothing(released):
    before = snapshot(released)
    assert differences(released) == []
    assert snapshot(released) == before


def test_missing_left_over_and_edited_files_are_found(released):
    exercises, solutions = released / "exercises/07_averages", released / "solutions/07_averages"
    (exercises / "mistakes.py").unlink()
    (exercises / "checks.py").write_text("check = lambda name: 100")
    (exercises / "notes.txt").write_text("left over")
    (released / "exercises/06_dropped").mkdir()
    (released / "exercises/06_dropped/dropped.ipynb").touch()
    edited = solutions / "averages.ipynb"
    edited.write_text(edited.read_text().replace("x - middle", "x"))
    assert differences(released) == [
        "exercises/06_dropped/dropped.ipynb belongs to no assignment",
        "exercises/07_averages/checks.py is not what its solution gives",
        "exercises/07_averages/mistakes.py is missing",
        "exercises/07_averages/notes.txt belongs to no assignment",
        "solutions/07_averages/averages.ipynb is not what its solution gives",
    ]


def test_a_solution_that_was_edited_is_found(released):
    text = released / "solutions/07_averages/averages.py"
    text.write_text(text.read_text().replace("Two exercises.", "Both exercises."))
    assert differences(released) == [
        "exercises/07_averages/averages.ipynb is not what its solution gives",
        "solutions/07_averages/averages.ipynb is not what its solution gives",
    ]


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
    with pytest.raises(ReleaseError, match="there are no assignments under .*solutions"):
        release(tmp_path)


@pytest.mark.parametrize("make", [release, differences])
@pytest.mark.parametrize(
    "name",
    ["nbgrader_config.py", *(f"solutions/07_averages/{n}.py" for n in ("averages", "mistakes"))],
)
def test_a_release_needs_its_files(course, make, name):
    (course / name).unlink()
    with pytest.raises(ReleaseError, match=f"a release needs .*{name}"):
        make(course)
    assert not (course / "exercises").exists()


def test_what_nbgrader_refuses_is_told_in_a_sentence(course, assignment, capfd):
    text = (assignment / "averages.py").read_text()
    (assignment / "averages.py").write_text(text.replace("    ### END SOLUTION\n", "", 1))
    with pytest.raises(ReleaseError) as raised:
        release(course)
    assert str(raised.value) == (
        "nbgrader could not release 07_averages: RuntimeError: no end solution statement found"
    )
    assert not (course / "exercises").exists()
    assert capfd.readouterr().err == ""


def test_a_solution_that_would_be_handed_out_is_refused(course, assignment):
    for text in ("### BEGIN SOLUTION", "### END SOLUTION"):
        mistakes = assignment / "mistakes.py"
        mistakes.write_text(f"# {text}\n")
        with pytest.raises(ReleaseError, match="mistakes.py still holds a solution"):
            release(course)
        assert not (course / "exercises").exists()


def test_the_text_must_fit_its_checks(course, assignment):
    text = (assignment / "averages.py").read_text()
    (assignment / "averages.py").write_text(text.replace('"points": 2', '"points": 7'))
    with pytest.raises(ValueError, match="twice-check is worth 7 points, its checks add up to 2"):
        release(course)
