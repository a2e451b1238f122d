from types import SimpleNamespace

import pytest
import remembered as module
from remembered import remembered


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course with one exercise, and a package that grades it."""
    for place in ("solutions/01_first/checks.py", "lib/grading/__init__.py"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text("points = 3")
    monkeypatch.syspath_prepend(tmp_path / "lib")
    monkeypatch.setattr(module, "PACKAGES", ("grading", "not_installed"))
    return tmp_path


def test_what_was_found_is_not_looked_for_again(course):
    env, asked = SimpleNamespace(), []
    for _ in range(3):
        assert remembered(env, "points", course, lambda root: asked.append(root) or 7) == 7
    assert asked == [course]


@pytest.mark.parametrize(
    "changed",
    ["solutions/01_first/checks.py", "lib/grading/__init__.py", "solutions/02_second/checks.py"],
)
def test_it_is_looked_for_again_when_an_exercise_or_the_library_has_changed(course, changed):
    env = SimpleNamespace()
    assert remembered(env, "points", course, lambda root: 7) == 7
    (course / changed).parent.mkdir(exist_ok=True)
    (course / changed).write_text("points = 5")
    assert remembered(env, "points", course, lambda root: 11) == 11


def test_two_things_are_remembered_apart(course):
    env = SimpleNamespace()
    assert remembered(env, "points", course, lambda root: 7) == 7
    assert remembered(env, "minutes", course, lambda root: 11) == 11
    assert remembered(env, "points", course, lambda root: 13) == 7
