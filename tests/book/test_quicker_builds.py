import gc
from types import SimpleNamespace

import less_collecting
import pybtex.plugin
import pytest
import quick_citations

APP = SimpleNamespace(connect=lambda *about, **more: None)


def test_a_plugin_for_citations_is_searched_for_once(monkeypatch):
    searched = []

    def find(group, name):
        searched.append(name)
        return f"{group}.{name}"

    monkeypatch.setattr(quick_citations, "_find", find)
    monkeypatch.setattr(pybtex.plugin, "find_plugin", None)
    quick_citations.setup(APP)
    asked = [pybtex.plugin.find_plugin("backends", name) for name in ("text", "html", "text")]
    assert asked == ["backends.text", "backends.html", "backends.text"]
    assert searched == ["text", "html"]


@pytest.fixture
def as_before():
    """Leave Python's search for garbage as it was."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("as_before")
def test_a_build_searches_seldom_for_garbage_and_not_at_its_end():
    less_collecting.setup(APP)
    assert gc.get_threshold()[0] > 100 * 700
    kept = [[] for _ in range(1000)]
    less_collecting.leave_the_rest(None, None)
    assert gc.get_freeze_count() > len(kept)
    assert all(kept is not each for each in gc.get_objects())
