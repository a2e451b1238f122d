"""The museum of mistakes names nothing that is not there, and shows each exhibit once."""

import re
from dataclasses import replace

import errata
import pytest
import torch
from books import BOOK, pages
from errata import EXHIBITS, ROOMS, SEEN, Exhibit, card, check, look, month_of, stage_of

from groundup.core.blocks import Block

GOOD = Exhibit(
    "A mistake",
    "perturb",
    "sec-01-scale",
    "groundup/core/test_masks.py::test_causal_mask_by_hand",
    "scaled_dot_product_attention.NoScale causal_mask.TriangleFlipped",
)


@pytest.fixture
def page():
    return (BOOK / "errata.md").read_text(encoding="utf-8")


def test_every_section_test_and_mistake_of_the_exhibits_exists():
    check()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"way": "luck"}, "an exhibit must be exposed in one of WAYS"),
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
        "> **Caught by the test:** *causal mask by hand* (`test_masks.py`); the grader calls the "
        "mistake *no scale* (1.4) or *triangle flipped* (2.1). **More** in {ref}`sec-01-scale`."
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


def test_every_exhibit_shows_both_sides_its_fix_and_a_public_example_or_that_none_is_known(page):
    exhibits = dict(
        zip(
            EXHIBITS,
            re.split(r"^\(errata-[\w-]+\)=$", page, flags=re.MULTILINE)[1:],
            strict=True,
        )
    )
    for slug, text in exhibits.items():
        sides = re.search(r"^\|(.+)\|(.+)\|\n\|---\|---\|\n((?:\|.+\|\n)+)", text, re.MULTILINE)
        assert sides, slug
        heads, rows = sides.group(1, 2), sides[3].splitlines()
        assert heads[0].split()[0].strip(",") in {"wrong", "printed", "naive", "claimed"}, slug
        assert heads[1].split()[0].strip(",") in {"right", "true"}, slug
        assert any(row.split("|")[1].strip() != row.split("|")[2].strip() for row in rows), slug
        assert "**Fixed** " in text, slug
        found = " ".join(text.split("**Elsewhere:**")[1].split("\n\n")[0].split())
        assert "https://github.com/" in found or "no public example known" in found, slug


def test_a_look_says_what_a_check_of_the_shape_would_have_said(monkeypatch, capsys):
    monkeypatch.setattr(errata, "SEEN", {})
    right = torch.zeros(2, 3)
    look("features", right, right + 0.5)
    look("columns", right, torch.full((2, 3), torch.nan))
    look("exchanged", right, torch.zeros(3, 2))
    look("rank", right, errata.attempt(lambda: right @ right))
    assert errata.SEEN == {
        "features": "numbers",
        "columns": "NaN",
        "exchanged": "shape",
        "rank": "error",
    }
    assert capsys.readouterr().out.splitlines() == [
        "same shape, values differ by up to 0.5",
        "same shape, 100% of the values are NaN or infinite",
        "shape (3, 2) instead of (2, 3)",
        "it stops with a RuntimeError",
    ]
    assert set(errata.SEEN.values()) == set(errata.KINDS)
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


def test_a_shortcut_passes_on_its_whole_gradient():
    block = Block(8, 2, 16)
    for layer in (block.attention.output, block.feed_forward.down):
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    x = torch.randn(2, 3, 8, requires_grad=True)
    arrives = torch.randn(2, 3, 8)
    block(x).backward(arrives)
    torch.testing.assert_close(x.grad, arrives)
