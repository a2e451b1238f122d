"""Citations without a search through all installed packages for each of them.

sphinxcontrib-bibtex asks pybtex for its plain-text backend at every citation, and pybtex looks at
the entry points of every package to find it. A plugin that was found once is found again.
"""

import functools

import pybtex.plugin
from sphinx.application import Sphinx

_find = pybtex.plugin.find_plugin


def setup(app: Sphinx) -> dict:
    pybtex.plugin.find_plugin = functools.cache(_find)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
