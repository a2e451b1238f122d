"""Four things that Sphinx and its extensions do far too often, done less.

A build makes a million objects, the pages as trees, and keeps nearly all of them to the end. Python
goes through them again and again to find some that only refer to each other: two fifths of the CPU
time of a build after a changed sentence, with what it does once more when the process ends.

And sphinxcontrib-bibtex asks pybtex for its plain-text backend at every citation, and pybtex looks
at the entry points of every installed package to find it: a tenth. What was found once is kept. So
is the stem of a word, for the search, which Sphinx finds anew on every page.

For the list of pages at the side of each page, Sphinx copies the sections of all pages and drops
them: half of the time in which pages are written. Here they are dropped once.
"""

import functools
import gc

import pybtex.plugin
import sphinx.builders.html
from docutils.nodes import Element
from sphinx.addnodes import toctree
from sphinx.application import Sphinx
from sphinx.builders import Builder
from sphinx.environment import BuildEnvironment
from sphinx.environment.adapters.toctree import global_toctree_for_doc
from sphinx.search.en import SearchEnglish

OBJECTS = 100_000
"""New ones before Python searches for garbage again; its own choice is 700."""
_find = pybtex.plugin.find_plugin
_stem = SearchEnglish.stem


def without_sections(contents: Element) -> Element:
    """Keep of a page's table of contents its title and the lists of pages below it."""
    contents = contents.deepcopy()
    for item in contents.children:
        for sections in item.children[1:]:
            sections[:] = list(sections.findall(toctree))
            if not sections:
                item.remove(sections)
    return contents


def drop_sections(app: Sphinx, builder: Builder) -> None:
    """Do once for all pages what the list at the side of each would do again.

    Not earlier: chapters get their numbers after all pages have been read.
    """
    titles = {page: without_sections(toc) for page, toc in builder.env.tocs.items()}

    def list_of_pages(env: BuildEnvironment, *about: object, **wanted: object) -> Element | None:
        whole = env.tocs
        env.tocs = titles if wanted.get("titles_only") else whole
        try:
            return global_toctree_for_doc(env, *about, **wanted)
        finally:
            env.tocs = whole

    sphinx.builders.html.global_toctree_for_doc = list_of_pages


def leave_the_rest(app: Sphinx, exception: Exception | None) -> None:
    """Have nothing searched at the end: the system takes all of the memory back anyway."""
    gc.freeze()


def setup(app: Sphinx) -> dict:
    pybtex.plugin.find_plugin = functools.cache(_find)
    SearchEnglish.stem = functools.cache(_stem)
    gc.set_threshold(OBJECTS, 20, 50)
    app.connect("write-started", drop_sections)
    app.connect("build-finished", leave_the_rest, priority=999)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
