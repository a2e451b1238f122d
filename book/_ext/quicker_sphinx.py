"""Four things that Sphinx and its extensions do far too often, done less.

A build makes a million objects, the pages as trees, and keeps nearly all of them to the end. Python
goes through them again and again to find some that only refer to each other: two fifths of the CPU
time of a build after a changed sentence, with what it does once more when the process ends.

And sphinxcontrib-bibtex asks pybtex for its plain-text backend at every citation, and pybtex looks
at the entry points of every installed package to find it: a tenth. What was found once is kept. So
is the stem of a word, for the search, which Sphinx finds anew on every page.

Sphinx also makes the list at the side of each page anew, from the sections of all pages: a seventh
of its time. Here it is made once for each folder, and the page is marked in it.
"""

import functools
import gc

import pybtex.plugin
from docutils.nodes import document
from lxml.html import fragment_fromstring, tostring
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.environment.adapters.toctree import global_toctree_for_doc
from sphinx.search.en import SearchEnglish

OBJECTS = 100_000
"""New ones before Python searches for garbage again; its own choice is 700."""
_find = pybtex.plugin.find_plugin
_stem = SearchEnglish.stem


@functools.cache
def list_of_pages(builder: StandaloneHTMLBuilder, reader: str, **wanted: object) -> str:
    """Write the list as a page would show it that is not in it."""
    toctree = global_toctree_for_doc(builder.env, reader, builder, **wanted)
    return builder.render_partial(toctree)["fragment"]


def list_pages_once(
    app: Sphinx, pagename: str, template: str, context: dict, doctree: document | None
) -> None:
    """Let pages of one folder share what stands at their side."""
    toctree, builder = context["toctree"], app.builder
    folders = pagename.split("/")[:-1]
    if doctree is None:  # what only the build makes is in no list, wherever it lies
        folders = ["-"] * len(folders)
    reader = "/".join([*folders, "-"])

    def toctree_marked(**wanted: object) -> str:
        if not wanted.get("titles_only"):
            return toctree(**wanted)
        fragment = list_of_pages(builder, reader, **wanted)
        if doctree is None:
            return fragment
        tree = fragment_fromstring(fragment, create_parent="div")
        here = builder.get_relative_uri(reader, pagename)
        for link in tree.xpath("//a[@href=$here]", here=here):
            link.attrib.update({"class": "current reference internal", "href": "#"})
            for each in link.iterancestors("ul", "li"):
                each.classes.add("current")
        return "".join(tostring(each, encoding="unicode") for each in tree)

    context["toctree"] = toctree_marked


def leave_the_rest(app: Sphinx, exception: Exception | None) -> None:
    """Have nothing searched at the end: the system takes all of the memory back anyway."""
    gc.freeze()


def setup(app: Sphinx) -> dict:
    pybtex.plugin.find_plugin = functools.cache(_find)
    SearchEnglish.stem = functools.cache(_stem)
    gc.set_threshold(OBJECTS, 20, 50)
    app.connect("html-page-context", list_pages_once)
    app.connect("build-finished", leave_the_rest, priority=999)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
