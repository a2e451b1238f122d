"""Formulas without a network: the built book carries its own copy of MathJax.

Only one bundle and its fonts are copied, 1.7 of the carrier package's 24 MB. The bundle must be
a `-full` one: the others fetch parts of themselves when a page first needs them.
"""

import importlib.util
import shutil
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

BUNDLE = "tex-chtml-full.js"
FONTS = "output/chtml/fonts/woff-v2"
LICENSE = Path(__file__).with_name("mathjax_license.txt")


def carried_files() -> Path:
    """Find MathJax in the package that carries it; its name is not one Python can import."""
    spec = importlib.util.find_spec("sphinx-mathjax-offline")
    if spec is None or spec.origin is None:
        raise ExtensionError(
            "MathJax is missing: python -m pip install -r requirements.txt brings it "
            "(in the package sphinx-mathjax-offline)"
        )
    return Path(spec.origin).parent / "static" / "mathjax"


def copy_mathjax(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None or app.builder.format != "html":
        return
    source, target = carried_files(), Path(app.outdir, "_static", "mathjax")
    shutil.copytree(source / FONTS, target / FONTS, dirs_exist_ok=True)
    shutil.copyfile(source / BUNDLE, target / BUNDLE)
    shutil.copyfile(LICENSE, target / "LICENSE")


def setup(app: Sphinx) -> dict:
    app.connect("build-finished", copy_mathjax)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
