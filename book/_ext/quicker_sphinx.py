"""Three things that Sphinx and its extensions do far too often, done less.

A build makes a million objects, the pages as trees, and keeps nearly all of them to the end. Python
goes through them again and again to find some that only refer to each other: two fifths of the CPU
time of a build after a changed sentence, with what it does once more when the process ends.

And sphinxcontrib-bibtex asks pybtex for its plain-text backend at every citation, and pybtex looks
at the entry points of every installed package to find it: a tenth. What was found once is kept. So
is the stem of a word, for the search, which Sphinx finds anew on every page.
"""

import functools
import gc

import pybtex.plugin
from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish

OBJECTS = 100_000
"""New ones before Python searches for garbage again; its own choice is 700."""
_find = pybtex.plugin.find_plugin
_stem = SearchEnglish.stem


def leave_the_rest(app: Sphinx, exception: Exception | None) -> None:
    """Have nothing searched at the end: the system takes all of the memory back anyway."""
    gc.freeze()


def setup(app: Sphinx) -> dict:
    pybtex.plugin.find_plugin = functools.cache(_find)
    SearchEnglish.stem = functools.cache(_stem)
    gc.set_threshold(OBJECTS, 20, 50)
    app.connect("build-finished", leave_the_rest, priority=999)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
