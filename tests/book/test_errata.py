"""The museum of mistakes names nothing that is not there, and shows each exhibit once."""

import itertools
import re
from dataclasses import replace

import errata
import pytest
import torch
from books import BOOK, pages
from errata import EXHIBITS, ROOMS, SEEN, Exhibit, card, check, look, month_of, stage_of
from matplotlib.figure import Figure

from classroom.author.kill_matrix import Kills
from groundup.core.blocks import Block

GOOD = Exhibit(
    "A mistake",
    "poke",
    "sec-01-scale",
    "groundup/core/test_masks.py::test_causal_mask_by_hand",
    "scaled_dot_product_attention.NoScale causal_mask.TriangleFlipped",
)
ROWS = [
    Kills("00_first", "a", "0.1", ("one", "two"), {"A": (3, 3), "B": (0, 1), "C": (3, 3)}),
    Kills("00_first", "b", "0.2", ("three",), {"D": (3,)}),
    Kills("01_second", "c", "1.1", ("four", "five", "six"), {"E": (3, 0, 0), "F": (3, 0, 3)}),
]


@pytest.fixture
def page():
    return (BOOK / "errata.md").read_text(encoding="utf-8")


def test_every_section_test_and_mistake_of_the_exhibits_exists():
    check()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"way": "luck"}, "an exhibit must give itself away in one of WAYS"),
        ({"label": "sec-01-scales"}, "one: the book must have the label sec-01-scales"),
        (
            {"tests": "groundup/core/test_masks.py::test_causal_mask_by_foot"},
            "tests/groundup/core/test_masks.py must have test_causal_mask_by_foot",
        ),
        (
            {"tests": "groundup/test_mask.py::test_a"},
            "tests/groundup/test_mask.py must have test_a",
        ),
        ({"mistakes": "raw_scores.NoScal"}, "graders must know the mistake raw_scores.NoScal"),
        ({"mistakes": "raw_scorer.A"}, "graders must know the mistake raw_scorer.A"),
    ],
)
def test_an_exhibit_that_names_what_there_is_not_stops_the_page(change, message, monkeypatch):
    monkeypatch.setattr(errata, "EXHIBITS", {"one": GOOD})
    check()
    monkeypatch.setattr(errata, "EXHIBITS", {"one": replace(GOOD, **change)})
    with pytest.raises(ValueError, match=re.escape(message)):
        check()


def test_a_card_names_the_test_and_the_mistakes_in_words(monkeypatch):
    monkeypatch.setattr(errata, "EXHIBITS", {"one": GOOD})
    assert card("one") == (
        "> **Caught by the test:** *causal mask by hand* (`test_masks.py`); graders call it "
        "*no scale* (1.4) or *triangle flipped* (2.1). **More** in {ref}`sec-01-scale`."
    )


def test_the_page_has_every_room_and_shows_every_exhibit_once_with_its_card(page):
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert headings[: len(ROOMS)] == list(ROOMS)
    shown = re.findall(r"^\(errata-([\w-]+)\)=\n### (.+)$", page, re.MULTILINE)
    assert shown == [(slug, exhibit.title) for slug, exhibit in EXHIBITS.items()]
    assert re.findall(r'errata\.card\("([\w-]+)"\)', page) == list(EXHIBITS)
    looked_at = re.findall(r'^look\("([\w-]+)"', page, re.MULTILINE)
    assert looked_at == [slug for slug in EXHIBITS if slug in looked_at]
    assert "errata" in pages()


def test_every_exhibit_says_how_it_is_mended(page):
    exhibits = re.split(r"^\(errata-[\w-]+\)=$", page, flags=re.MULTILINE)[1:]
    assert len(exhibits) == len(EXHIBITS)
    silent = [text.split("\n")[1] for text in exhibits if "ended** " not in text]
    assert silent == []


def test_a_look_says_what_a_check_of_the_shape_would_have_said(monkeypatch, capsys):
    monkeypatch.setattr(errata, "SEEN", {})
    right = torch.zeros(2, 3)
    look("features", right, right + 0.5)
    look("columns", right, torch.full((2, 3), torch.nan))
    look("exchanged", right, torch.zeros(3, 2))
    look("rank", right, errata.attempt(lambda: right @ right))
    assert errata.SEEN == {
        "features": "numbers",
        "columns": "no number",
        "exchanged": "shape",
        "rank": "error",
    }
    assert capsys.readouterr().out.splitlines() == [
        "same shape, values differ by up to 0.5",
        "same shape, 100% of the values are NaN or infinite",
        "shape (3, 2) instead of (2, 3)",
        "it stops with a RuntimeError",
    ]
    with pytest.raises(ValueError, match="got 'feature'"):
        look("feature", right, right)
    assert SEEN == {}


def test_the_snippets_that_were_never_run_fail_where_the_page_says(page):
    stages = [stage_of(source) for source in errata.SNIPPETS.values()]
    assert stages[:3] == ["Python, reading it"] * 3
    assert stages[3:6] == [
        "the first run (NameError)",
        "the first run (TypeError)",
        "the first run (RuntimeError)",
    ]
    assert stages[6:] == ["neither", "neither"]
    assert "Six of eight" in page


def test_the_dates_of_the_papers_are_those_of_the_bibliography():
    assert month_of("vaswani2017") == 17 * 12 + 6
    papers = ("bahdanau2015", "luong2015", "hu2018", "su2021")
    months = [month_of("vaswani2017") - month_of(paper) for paper in papers]
    assert months == [33, 22, -3, -46]


def test_a_shortcut_hands_on_its_whole_gradient():
    block = Block(8, 2, 16)
    for layer in (block.attention.output, block.feed_forward.down):
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    x = torch.randn(2, 3, 8, requires_grad=True)
    arrives = torch.randn(2, 3, 8)
    block(x).backward(arrives)
    torch.testing.assert_close(x.grad, arrives)


def test_the_picture_has_a_square_for_each_check_of_each_mistake():
    figure = Figure(figsize=(6.4, errata.matrix_height(ROWS, 6.4)))
    ax = figure.add_axes((0, 0, 1, 1))
    errata.draw_matrix(ax, ROWS, {"00_first": "00 first", "01_second": "01 second"})
    assert [text.get_text() for text in ax.texts] == ["1", "2", "1", "00 first", "01 second"]
    missed, caught, alone = (cells(patch.get_path()) for patch in ax.patches)
    assert (missed, caught, alone) == (4, 6, 3)
    assert missed + caught + alone == errata.summary(ROWS)["cells"] == 13


def cells(outline):
    """Count the squares of an outline: neighbours are joined, with a gap at the end only."""
    boxes = outline.vertices.reshape(-1, 5, 2)
    return sum(round(box[1, 0] - box[0, 0] + 0.14) for box in boxes)


def test_no_two_blocks_of_the_picture_overlap_and_all_lie_inside():
    fates = [dict.fromkeys(map(str, range(9 + i)), (1, 0)) for i in range(20)]
    many = [replace(ROWS[0], number=f"0.{i}", failures=fate) for i, fate in enumerate(fates)]
    blocks, _, height = errata._packed(many + ROWS[2:])
    taken = set()
    for block in blocks:
        places = itertools.product(range(block.width), range(len(block.row.checks)))
        squares = {(block.left + x, round(block.top + y, 3)) for x, y in places}
        assert not squares & taken
        assert max(x for x, _ in squares) < errata.WIDTH and max(y for _, y in squares) < height
        taken |= squares


def test_the_tables_name_for_each_check_what_only_it_catches(monkeypatch):
    titles = {"a.B": ("second slip", "0.1"), "b.D": ("slip four", "0.2"), "c.E": ("fifth", "1.1")}
    monkeypatch.setattr(errata, "_answers", lambda: titles)
    table = errata.matrix_tables(ROWS, {"00_first": "00 first", "01_second": "01 second"})
    assert ":::{dropdown} 00 first: 2 of 3 checks are needed" in table
    assert "| 0.1 one | 2/3 | – |" in table
    assert "| 0.1 two | 3/3 | second slip |" in table
    assert "| 1.1 five | 0/2 | – |" in table
    facts = errata.summary(ROWS)
    assert (facts["mistakes"], facts["checks"], facts["by_one"]) == (6, 6, 3)
    assert (facts["needed"], facts["idle"]) == (3, 1)
