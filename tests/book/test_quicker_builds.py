import gc
from types import SimpleNamespace

import pybtex.plugin
import pytest
import quicker_sphinx
import warm_kernels
from jupyter_client.provisioning import KernelProvisionerFactory

APP = SimpleNamespace(connect=lambda *about, **more: None)


@pytest.fixture
def as_before():
    """Leave Python's search for garbage as it was."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("as_before")
def test_a_plugin_for_citations_is_searched_for_once(monkeypatch):
    searched = []

    def find(group, name):
        searched.append(name)
        return f"{group}.{name}"

    monkeypatch.setattr(quicker_sphinx, "_find", find)
    monkeypatch.setattr(pybtex.plugin, "find_plugin", None)
    quicker_sphinx.setup(APP)
    asked = [pybtex.plugin.find_plugin("backends", name) for name in ("text", "html", "text")]
    assert asked == ["backends.text", "backends.html", "backends.text"]
    assert searched == ["text", "html"]


def test_elsewhere_than_on_linux_no_process_waits_and_kernels_start_as_ever(monkeypatch):
    monkeypatch.setattr(warm_kernels.sys, "platform", "darwin")
    monkeypatch.setattr(warm_kernels.subprocess, "Popen", None)
    usual = KernelProvisionerFactory.instance().default_provisioner_name
    kernels = warm_kernels.WarmKernels()
    with kernels:
        assert KernelProvisionerFactory.instance().default_provisioner_name == usual
    kernels.end()


@pytest.mark.usefixtures("as_before")
def test_a_build_searches_seldom_for_garbage_and_not_at_its_end():
    quicker_sphinx.setup(APP)
    assert gc.get_threshold()[0] > 100 * 700
    kept = [[] for _ in range(1000)]
    quicker_sphinx.leave_the_rest(None, None)
    assert gc.get_freeze_count() > len(kept)
    assert all(kept is not each for each in gc.get_objects())


def test_the_list_of_pages_beside_each_is_the_one_that_sphinx_makes(small_book):
    book = small_book(html_theme="sphinx_book_theme")
    book.write(
        "chapter.md", "# A chapter\n\n## Section\n\n### Part\n\n```{toctree}\nbelow/deeper\n```\n"
    )
    book.write("other.md", "# Another\n\n## Its section\n")
    (book.folder / "pages" / "below").mkdir()
    book.write("below/deeper.md", "# A deeper page\n\n## Its end\n\n```{toctree}\nlast\n```\n")
    book.write("below/last.md", "# The last\n")
    names = ("index", "chapter", "other", "below/deeper", "below/last")
    assert book.build().returncode == 0
    usual = [book.html(name).partition("<body")[2] for name in names]
    assert ">1.1.1.1.1.1. The last<" in usual[2], "the list has all pages and numbers"
    book.settings["extensions"] += ["quicker_sphinx"]
    assert book.build().returncode == 0
    assert [book.html(name).partition("<body")[2] for name in names] == usual
