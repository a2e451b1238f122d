"""Draws the picture that stands beside a shared link: `make preview`.

It shows the figure of the first page, from the weights that the page's own cells compute.
"""

import sys
from pathlib import Path

import jupytext
import matplotlib as mpl
import plotstyle
from matplotlib.figure import Figure

BOOK = Path(__file__).parent
PICTURE = BOOK / "_static" / "preview.png"
INCHES, DOTS_PER_INCH = (12.0, 6.3), 100
"""1200 by 630 dots, the shape in which most programs show a preview."""


def first_page() -> dict:
    """Run the cell of the first page that computes attention; return what it defines."""
    cells = jupytext.read(BOOK / "index.md").cells
    (source,) = [cell.source for cell in cells if "attention_weights(" in cell.source]
    found: dict = {}
    exec(compile(source, "index.md", "exec"), found)
    return found


def draw() -> Figure:
    """Draw the title beside the map of weights."""
    page = first_page()
    text = page["text"]
    with mpl.rc_context():
        plotstyle.use()
        figure = Figure(figsize=INCHES, dpi=DOTS_PER_INCH, facecolor="white", layout="none")
        title = {"color": plotstyle.INK, "ha": "left", "va": "center"}
        figure.text(0.05, 0.66, "Attention", fontsize=46, weight="bold", **title)
        figure.text(0.05, 0.53, "from the Ground Up", fontsize=28, weight="bold", **title)
        lines = "From a weighted average to a transformer\nthat you train yourself.\n\n"
        lines += "A book that computes what it shows,\nexercises that name the mistake."
        figure.text(0.05, 0.3, lines, fontsize=15, linespacing=1.5, **title)
        ax = figure.add_axes((0.5, 0.07, 0.47, 0.87))
        plotstyle.weight_map(ax, page["weights"], list(text), list(text), digits=None)
        ax.set(xlabel="attends to", ylabel="last letter read")
    return figure


def main(path: Path = PICTURE) -> None:
    """Write the picture, without the date of its making."""
    draw().savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None})


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
