"""One look for every figure of the course, in light and in dark.

A page starts with

    import plotstyle

    plotstyle.use()

and then draws with plain matplotlib. What that gives:

- SVG with a transparent background and the same bytes in every build.
- Colours by name: `BLUE`, `ORANGE`, `GREEN`, `PURPLE` for data, `INK` for what must be read
  (text, axes), `MUTED` for what may stay behind (grids, reference lines), `PAPER` for text on a
  filled bar or box and for what hides the things behind it. They differ for
  readers who confuse red with green, and lines also differ by dash, so colour never carries
  the meaning alone.
- The colour map `"weights"` for what runs from 0 up (clear to blue) and `"scores"` for what
  has a sign (orange, clear, blue; give it equal limits, as in `vmin=-3, vmax=3`).
- `weight_map(ax, weights, queries, keys)` for a table of attention weights with its numbers.

Use these colours and no others: the build makes a dark twin of every figure by exchanging each
of them for the partner in `DARK`, and a page shows the one that fits.

Draw at most 6.4 inches wide, with panels below each other where they have many labels: a phone
shows that width on 350 points. A figure has a caption that says what to see and a text that
stands in for it:

    ```{code-cell} ipython3
    :tags: [hide-input]
    :mystnb:
    :  figure:
    :    caption: What to see.
    :    name: fig-short-name
    :  image:
    :    alt: What someone who cannot see it would need to know.
    ```

"""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.image import AxesImage

BLUE = "#0b6fb8"
ORANGE = "#c2570c"
GREEN = "#0a8a66"
PURPLE = "#7d1f6a"
INK = "#222832"
MUTED = "#68717c"
PAPER = "#fefefe"

DARK = {
    BLUE: "#58a9ea",
    ORANGE: "#f0924a",
    GREEN: "#3cc79c",
    PURPLE: "#d14fa6",
    INK: "#ced6dd",
    MUTED: "#98a2ae",
    PAPER: "#121212",
}
"""What stands for each colour on a dark page."""

LIGHT_PAGE = "#ffffff"
DARK_PAGE = "#121212"
"""The two backgrounds, as the book's theme sets them."""

FULL = to_rgba("#2a7fc4", 0.7)
OPPOSITE = to_rgba("#b9601a", 0.7)
"""Ends of the colour maps. A raster has no dark twin: clear enough for `INK` on either page."""


def use() -> None:
    """Make the course's look the default of matplotlib in this kernel."""
    mpl.rcParams.update(
        {
            "axes.prop_cycle": mpl.cycler(
                color=[BLUE, ORANGE, GREEN, PURPLE], linestyle=["-", "--", "-.", ":"]
            ),
            "axes.edgecolor": MUTED,
            "axes.facecolor": "none",
            "axes.grid": False,
            "axes.labelcolor": INK,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlecolor": INK,
            "axes.titlelocation": "left",
            "axes.titlesize": "medium",
            "figure.constrained_layout.use": True,
            "figure.facecolor": "none",
            "figure.figsize": (6.4, 3.4),
            "font.size": 10.5,
            "grid.color": MUTED,
            "grid.alpha": 0.3,
            "image.cmap": "weights",
            "legend.frameon": False,
            "legend.labelcolor": INK,
            "lines.linewidth": 1.8,
            "savefig.facecolor": "none",
            "svg.fonttype": "path",
            "svg.hashsalt": "attention from the ground up",
            "text.color": INK,
            "xtick.color": MUTED,
            "xtick.labelcolor": INK,
            "ytick.color": MUTED,
            "ytick.labelcolor": INK,
        }
    )
    _show_figures_as_svg()


def weight_map(
    ax: Axes,
    weights: Sequence[Sequence[float]] | np.ndarray,
    queries: Sequence[str],
    keys: Sequence[str],
    digits: int | None = 2,
) -> AxesImage:
    """Draw attention weights as a table: one row per query, one column per key.

    Args:
        ax: Where to draw.
        weights: A matrix, each row summing to 1 (or to 0 where nothing may be attended to);
            anything `numpy.asarray` takes, so a detached tensor will do.
        queries: One label per row.
        keys: One label per column.
        digits: Decimals written into the cells, or None to leave the cells bare.

    Returns:
        The image, for those who want a colour bar.

    Raises:
        ValueError: If the labels do not fit the matrix.

    """
    matrix = np.asarray(weights)
    if matrix.shape != (len(queries), len(keys)):
        raise ValueError(
            f"weights must have one row per query and one column per key, got shape {matrix.shape}"
            f" with {len(queries)} queries and {len(keys)} keys"
        )
    image = ax.imshow(matrix, cmap="weights", vmin=0, vmax=1)
    ax.set_xticks(range(len(keys)), keys)
    ax.set_yticks(range(len(queries)), queries)
    ax.tick_params(length=0)
    ax.set(xlabel="key", ylabel="query")
    ax.spines[:].set_visible(True)
    if digits is not None:
        for row, column in np.ndindex(*matrix.shape):
            weight = float(matrix[row, column])
            ax.text(column, row, f"{weight:.{digits}f}", ha="center", va="center")
    return image


def _show_figures_as_svg() -> None:
    """Ask the notebook, if there is one, for SVG without the date of its making."""
    try:
        from IPython.core.getipython import get_ipython
        from matplotlib_inline.backend_inline import set_matplotlib_formats
    except ImportError:
        return
    if get_ipython() is not None:
        set_matplotlib_formats("svg", metadata={"Date": None})


def _register_colormaps() -> None:
    """Clear where there is nothing, so that the page's own background shows through."""
    clear, clear_opposite = (*FULL[:3], 0.0), (*OPPOSITE[:3], 0.0)
    weights = [clear, FULL]
    scores = [(0.0, OPPOSITE), (0.5, clear_opposite), (0.5, clear), (1.0, FULL)]
    for name, colors in {"weights": weights, "scores": scores}.items():
        colormap = LinearSegmentedColormap.from_list(name, colors)
        mpl.colormaps.register(colormap, name=name, force=True)


_register_colormaps()
