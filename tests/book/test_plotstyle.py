import io
import re
from itertools import combinations

import matplotlib as mpl
import numpy as np
import plotstyle
import pytest
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

DATA = (plotstyle.BLUE, plotstyle.ORANGE, plotstyle.GREEN, plotstyle.PURPLE)
PAGES = {"light": plotstyle.LIGHT_PAGE, "dark": plotstyle.DARK_PAGE}

# What a full colour-vision deficiency leaves of linear RGB. Machado, Oliveira and Fernandes 2009,
# A Physiologically-based Model for Simulation of Color Vision Deficiency, table 1.
VISION = {
    "full": np.eye(3),
    "no red cones": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "no green cones": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
}


@pytest.fixture(autouse=True)
def _in_the_course_style():
    with mpl.rc_context():
        plotstyle.use()
        yield


def on(page, color):
    return color if page == "light" else plotstyle.DARK[color]


def linear(color):
    channel = np.array(to_rgb(color))
    return np.where(channel <= 0.04045, channel / 12.92, ((channel + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    bright, dim = sorted((linear(c) @ [0.2126, 0.7152, 0.0722] for c in (one, other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def lab(rgb):
    """Coordinates in which distances are how different two colours look (CIE 1976)."""
    xyz = np.clip(rgb, 0, 1) @ np.array(
        [[0.4124, 0.2126, 0.0193], [0.3576, 0.7152, 0.1192], [0.1805, 0.0722, 0.9505]]
    )
    ratio = xyz / [0.9505, 1.0, 1.089]
    root = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


def drawing():
    fig = Figure()
    FigureCanvasSVG(fig)
    above, below = fig.subplots(2, 1)
    above.plot([0, 1], [0, 1], label="up")
    above.plot([0, 1], [1, 0], label="down")
    above.set(xlabel="x", title="lines")
    above.legend()
    plotstyle.weight_map(below, [[1.0, 0.0], [0.25, 0.75]], ["to", "be"], ["to", "be"])
    file = io.StringIO()
    fig.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("color", [plotstyle.INK, plotstyle.MUTED])
def test_text_can_be_read_on_both_pages(page, color):
    assert contrast(on(page, color), PAGES[page]) >= 4.5


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("color", DATA)
def test_data_stand_out_from_both_pages(page, color):
    assert contrast(on(page, color), PAGES[page]) >= 3


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("color", [plotstyle.BLUE, plotstyle.PURPLE])
def test_text_can_be_read_on_what_is_filled(page, color):
    assert contrast(on(page, plotstyle.PAPER), on(page, color)) >= 4.5


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("ends", [plotstyle.FULL, plotstyle.OPPOSITE])
def test_ink_can_be_read_on_a_full_cell(page, ends):
    *rgb, alpha = ends
    cell = alpha * np.array(rgb) + (1 - alpha) * np.array(to_rgb(PAGES[page]))
    assert contrast(on(page, plotstyle.INK), cell) >= 4.5


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("vision", VISION)
def test_data_colours_differ_for_readers_who_confuse_red_and_green(page, vision):
    seen = {c: lab(VISION[vision] @ linear(on(page, c))) for c in DATA}
    for one, other in combinations(DATA, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 20, (one, other)


def test_lines_differ_by_dash_as_well():
    cycle = list(mpl.rcParams["axes.prop_cycle"])
    assert len({style["linestyle"] for style in cycle}) == len(cycle) == len(DATA)


def test_a_figure_uses_the_course_colours_and_leaves_the_page_behind_it_clear():
    svg = drawing()
    used = set(re.findall(r"#[0-9a-f]{6}\b", svg))
    assert used <= set(plotstyle.DARK)
    assert {plotstyle.INK, plotstyle.BLUE} <= used


def test_two_drawings_have_the_same_bytes():
    assert drawing() == drawing()


def test_a_weight_map_writes_each_weight_into_its_cell():
    ax = Figure().subplots()
    plotstyle.weight_map(ax, [[0.5, 0.25, 0.25]], ["query"], ["a", "b", "c"], digits=2)
    assert [text.get_text() for text in ax.texts] == ["0.50", "0.25", "0.25"]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["a", "b", "c"]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["query"]


def test_a_weight_map_can_leave_its_cells_bare():
    ax = Figure().subplots()
    plotstyle.weight_map(ax, [[0.5, 0.5]], ["query"], ["a", "b"], digits=None)
    assert not ax.texts


def test_nothing_is_drawn_where_the_weight_is_zero():
    assert mpl.colormaps["weights"](0.0)[3] == 0
    assert mpl.colormaps["scores"](0.5)[3] < 0.01


def test_a_weight_map_refuses_labels_that_do_not_fit():
    message = r"got shape \(1, 2\) with 1 queries and 3 keys"
    with pytest.raises(ValueError, match=message):
        plotstyle.weight_map(Figure().subplots(), [[0.5, 0.5]], ["query"], ["a", "b", "c"])
