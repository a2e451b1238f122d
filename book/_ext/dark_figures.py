"""A dark twin for every figure drawn with `plotstyle`.

A figure is a file of its own, so the page's style cannot reach its ink. Each SVG that uses the
course's colours is therefore written twice, the second time with each colour exchanged for its
partner, and the style sheet shows the one that fits the page.
"""

from pathlib import Path

import plotstyle
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform


def darken(svg: str) -> str:
    """Exchange each colour of the course for the one that stands for it on a dark page."""
    for light, dark in plotstyle.DARK.items():
        svg = svg.replace(light, dark)
    return svg


class AddDarkTwins(SphinxTransform):
    """Put the twin beside each figure, before Sphinx collects the images of a page."""

    default_priority = 600

    def apply(self, **kwargs: object) -> None:
        for image in list(self.document.findall(nodes.image)):
            path = Path(self.env.srcdir, self.env.relfn2path(image["uri"])[1])
            if path.suffix != ".svg" or not path.is_file():
                continue
            drawing = path.read_text(encoding="utf-8")
            darker = darken(drawing)
            if darker == drawing:
                continue
            twin_path = path.with_name(f"{path.stem}-dark.svg")
            twin_path.write_text(darker, encoding="utf-8")
            twin = image.deepcopy()
            twin["uri"] = str(Path(image["uri"]).with_name(twin_path.name))
            # dark-light tells the theme to leave an image as it is; the theme's own pair of
            # classes, only-light and only-dark, would hide the caption in both.
            image["classes"] += ["dark-light", "figure-on-light"]
            twin["classes"] += ["dark-light", "figure-on-dark"]
            image.parent.insert(image.parent.index(image) + 1, twin)


def setup(app: Sphinx) -> dict:
    app.add_transform(AddDarkTwins)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
