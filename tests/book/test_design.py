"""The first page, the map of the chapters, the diagrams and the boxes."""

import re

import diagrams
import matplotlib.pyplot as plt
import plotstyle
import pytest
import torch
from books import BOOK, ROOT, chapters
from bs4 import BeautifulSoup
from chapter_map import (
    Link,
    Page,
    draw,
    exercises,
    links,
    names_imported,
    pages_of,
    read_chapter,
    read_lines,
    read_page,
)

from groundup.core.blocks import Block, DecoderBlock
from groundup.core.layers import FeedForward
from groundup.core.multihead import MultiHeadAttention

CHAPTERS = [BOOK / f"{page}.md" for page in chapters() if page[:2].isdigit()]

# The map -------------------------------------------------------------------------------------

CHAPTER = """---
title: not this
---

(ch-masks)=
# Masks

```{code-cell} ipython3
:tags: [hide-input]
# not a heading
from groundup.core.attention import attention_weights as weights
from classroom import check
```

See [the one before](ch-first), {numref}`fig-one`, {eq}`eq-one` and [](01_first.md).

```{literalinclude} ../lib/groundup/core/masks.py
:language: python
:pyobject: Mask.forward
```

$$
x
$$ (eq-two)

:    name: fig-two
"""


def test_a_page_is_read_for_what_it_shows_takes_and_names():
    page = read_page(CHAPTER)
    assert page.title == "Masks"
    assert page.shows == {("core.masks", "Mask")}
    assert page.imports == {("core.attention", "attention_weights")}
    assert page.labels == {"ch-masks", "eq-two", "fig-two"}
    assert sorted(page.refers) == ["01_first", "ch-first", "eq-one", "fig-one"]


def test_imports_are_those_of_the_package_that_is_asked_for():
    code = "import mine\nfrom mine import a, b as c\nfrom other import d\nfrom . import e"
    assert names_imported(code, "mine") == {("", "a"), ("", "b")}


def test_a_chapter_builds_on_what_it_computes_with_and_on_what_it_refers_to():
    pages = {
        "01_a": Page("A", shows={("m", "f")}, labels={"sec-a"}),
        "02_b": Page("B", shows={("m", "f"), ("m", "g")}, imports={("m", "f"), ("m", "h")}),
        "03_c": Page("C", imports={("m", "g")}, refers=["sec-a", "sec-a", "01_a", "elsewhere"]),
    }
    assert links(pages) == [
        Link("01_a", "02_b", ("f",)),
        Link("01_a", "03_c", (), 3),
        Link("02_b", "03_c", ("g",)),
    ]


def test_exercises_count_as_much_as_pages():
    pages = {"01_a": Page("A"), "02_b": Page("B", imports={("m", "f")}), "03_c": Page("C")}
    found = links(pages, {"01_a": [("m", "f"), ("mine", "g")]}, {"03_c": [("mine", "g")]})
    assert found == [Link("01_a", "02_b", ("f",)), Link("01_a", "03_c", ("g",))]


def test_nothing_builds_on_a_later_chapter():
    pages = {
        "01_a": Page("A", imports={("m", "f")}, refers=["sec-b"]),
        "02_b": Page("B", shows={("m", "f")}, labels={"sec-b"}),
    }
    assert links(pages) == []


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["01_a"], "holds `page: words`, each page once, got '01_a'"),
        (["01_a: x", "01_a: y"], "each page once, got '01_a: y'"),
        ([""], "must name at least one chapter"),
    ],
)
def test_a_map_that_says_nothing_of_a_chapter_is_refused(lines, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read_lines(lines)


def test_strong_lines_are_drawn_over_weak_ones_and_each_once():
    found = [Link("a", "b", ("f",)), Link("a", "c", (), 2), Link("b", "c", ("g",))]
    arcs = BeautifulSoup(draw(["a", "b", "c"], found), "html.parser").find_all("path")
    assert [arc["class"] for arc in arcs] == [["map-text"], ["map-code"], ["map-code"]]
    assert [(arc["data-base"], arc["data-user"]) for arc in arcs] == [
        ("0", "2"),
        ("0", "1"),
        ("1", "2"),
    ]


def test_the_map_of_the_course_says_what_its_files_say():
    pages = {page.stem: read_chapter(pages_of(BOOK, page.stem)) for page in CHAPTERS}
    found = {(link.base, link.user): link for link in links(pages, *exercises(ROOT))}
    assert "causal_mask" in found["02_masking", "06_architectures"].names
    assert "TransformerBlock" in found["04_blocks", "07_training"].names  # its notebook's import
    assert "apply_rotary" in found["05_positions", "08_generation"].names  # of all of `mine`
    for (base, user), link in found.items():
        assert base < user
        for name in link.names:
            sources = [*pages_of(BOOK, user), *(ROOT / "solutions" / user).glob("*.py")]
            text = "".join(source.read_text("utf-8") for source in sources)
            assert re.search(rf"import [^\n]*\b{name}\b|^ +{name},$|^ *import mine\b", text, re.M)


@pytest.mark.slow
def test_the_map_is_a_list_that_says_in_words_what_is_drawn(small_book):
    book = small_book("chapter_map", course_root="nowhere")
    book.write("01_a.md", "(ch-a)=\n# Beginnings\n\n```python\nx\n```\n")
    book.write("02_b.md", "# Ends\n\nSee [](ch-a).\n")
    book.write("map.md", "# Map\n\n```{chapter-map}\n01_a: a *start*\n02_b: an end\n```\n")
    built = book.build()
    assert built.returncode == 0, built.stderr
    whole = BeautifulSoup(book.html("map"), "html.parser").select_one(".chapter-map")
    rows = whole.select("ol.map-rows > li")
    assert [row.get_text(" ", strip=True) for row in rows] == [
        "1 Beginnings a start 0 min · builds on no other",
        "2 Ends an end 0 min · builds on 1",
    ]
    assert [link["href"] for link in rows[1].find_all("a")] == ["02_b.html", "01_a.html"]
    assert whole.svg["aria-hidden"] == "true" and len(whole.svg.find_all("path")) == 1


# The diagrams ---------------------------------------------------------------------------------


@pytest.fixture
def words(monkeypatch):
    """Draw, and give all that is written in the drawing."""
    monkeypatch.setattr(plt, "show", lambda: None)

    def drawn(draw, *args, **options) -> list[str]:
        plt.close("all")
        draw(*args, **options)
        (axes,) = plt.gcf().axes
        written = [text.get_text() for text in axes.texts if text.get_text()]
        plt.close("all")
        return written

    return drawn


def test_layers_are_drawn_in_the_order_in_which_a_block_computes():
    x = torch.zeros(1, 5, 6)
    order = ["attention_norm", "attention", "feed_forward_norm", "feed_forward"]
    assert diagrams.calls(Block(6, 3, 7), x) == order
    assert diagrams.calls(Block(6, 3, 7, norm_order="post"), x) == [
        *("attention", "attention_norm", "feed_forward", "feed_forward_norm"),
    ]
    middle = ["cross_attention_norm", "cross_attention"]
    assert diagrams.calls(DecoderBlock(6, 3, 7), x, x) == [*order[:2], *middle, *order[2:]]


def test_only_attention_is_found_to_carry_something_from_token_to_token():
    assert diagrams.mixes_tokens(MultiHeadAttention(6, 3), 6)
    assert not diagrams.mixes_tokens(FeedForward(6, 7), 6)


def test_the_floor_shares_its_attention_and_nothing_else(words):
    written = words(diagrams.floor, ["the", "cat", "sat"])
    assert written.count("attention") == 1
    assert written.count("feed-forward") == 3
    assert written.count("norm") == written.count("+") == 6


def test_the_shapes_in_the_diagram_of_heads_are_those_of_its_layer(words):
    written = words(diagrams.heads, d_model=10, num_heads=5, length=3)
    shapes = [text for text in written if text.startswith("(")]
    assert shapes == [
        *("(3, 10)", "(3, 10)", "(5, 3, 2)", "(5, 3, 3)", "(5, 3, 2)", "(3, 10)", "(3, 10)")
    ]


def test_the_three_architectures_have_their_parts(words):
    written = words(diagrams.architectures)
    for name, times in {
        "attention": 4,
        "cross\nattention": 1,
        "feed-forward": 4,
        "embedding": 4,
        "unembedding": 3,
        "norm": 4,
        "× 2": 4,
    }.items():
        assert written.count(name) == times, name


def test_a_drawing_leaves_the_random_numbers_of_its_page_alone(words):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    words(diagrams.heads, d_model=6, num_heads=3, length=2)
    assert torch.equal(torch.get_rng_state(), before)


# The boxes ------------------------------------------------------------------------------------

KINDS = {"question", "result", "wild", "warning", "note"}
"""One look each, in course.css."""


def boxes(text: str) -> list[tuple[str, str]]:
    """Give the kind and the title of each box of a page."""
    titled = re.findall(r"^[:`]{3,}\{admonition\} (.+)\n:class: (\S+)$", text, re.M)
    untitled = re.findall(r"^[:`]{3,}\{(note|warning|tip|important)\}", text, re.M)
    return [(kind, title) for title, kind in titled] + [(kind, "") for kind in untitled]


@pytest.mark.parametrize("page", sorted(BOOK.glob("*.md")), ids=lambda page: page.stem)
def test_every_box_is_of_a_kind_that_has_a_look(page):
    text = page.read_text(encoding="utf-8")
    assert {kind for kind, _ in boxes(text)} <= KINDS
    assert len(re.findall(r"\{admonition\}", text)) == len([1 for _, title in boxes(text) if title])


@pytest.mark.parametrize("page", CHAPTERS, ids=lambda page: page.stem)
def test_a_chapter_asks_one_question_and_shows_mistakes_seen_in_the_wild(page):
    core, *deeper = [boxes(file.read_text("utf-8")) for file in pages_of(BOOK, page.stem)]
    questions = [title for kind, title in core if kind == "question"]
    assert questions == ["The question of this chapter"]
    wild = [title for found in (core, *deeper) for kind, title in found if kind == "wild"]
    assert wild == ["Seen in the wild"]


def test_the_style_sheet_has_the_colours_of_the_figures():
    css = (BOOK / "_static" / "course.css").read_text(encoding="utf-8")
    colors = [plotstyle.BLUE, plotstyle.ORANGE, plotstyle.GREEN, plotstyle.PURPLE]
    written = re.findall(r"--course-\w+: (#\w+);", css)
    assert written == [*colors, *(plotstyle.DARK[color] for color in colors)]


# The first page, in a browser -------------------------------------------------------------------


def test_the_first_screen_says_what_this_is_and_shows_its_figure(site, context):
    page = context(viewport={"width": 1280, "height": 800}).new_page()
    page.goto((site / "index.html").as_uri())
    for part in ("h1", ".front-lead", "#fig-look-back .figure-on-light"):
        box = page.locator(f"article {part}").bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= 800, part
    for name in ("Read", "Learn", "Teach"):
        box = page.locator(".front-doors").get_by_role("link", name=name).bounding_box()
        assert box["y"] + box["height"] <= 800
    phone = context(viewport={"width": 390, "height": 844}).new_page()
    phone.goto((site / "index.html").as_uri())
    box = phone.locator("#fig-look-back .figure-on-light").bounding_box()
    assert box["width"] > 300 and box["y"] + 0.9 * box["height"] <= 844


def test_the_map_brings_out_the_lines_of_the_chapter_that_is_focused(site, context):
    page = context(viewport={"width": 390, "height": 844}).new_page()
    page.goto((site / "index.html").as_uri())
    chosen = page.locator(".map-rows > li").nth(4)
    chosen.locator(".map-title a").focus()
    lit = page.locator(".map-arcs .map-lit")
    ends = lit.evaluate_all("arcs => arcs.map((arc) => [arc.dataset.base, arc.dataset.user])")
    assert ends and all("4" in end for end in ends)
    assert len(chosen.locator(".map-bases a").all()) == sum(user == "4" for _, user in ends)
    page.locator(".front-doors a").first.focus()
    assert lit.count() == 0
    # Each arc ends at the middle of the rows that it joins.
    gap = page.evaluate(
        """() => {
          const rows = [...document.querySelectorAll(".map-rows > li")];
          const heights = rows.map((row) => row.getBoundingClientRect().height);
          return Math.max(...heights) - Math.min(...heights);
        }"""
    )
    assert gap < 1
