"""The page that sets every part of five texts beside ours names nothing that is not there."""

import re
from dataclasses import replace

import parts
import pytest
from books import BOOK
from parts import GROUPS, MARKS, TEXTS, Part, check, show

GOOD = Part(
    "A part",
    "rws-r",
    "sec-01-scale",
    "core.attention.attention_weights",
    "1.4",
    {"walk-through": "Something does not hold."},
)


def test_every_label_name_and_exercise_of_the_tables_exists():
    check()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"marks": "rws-"}, "one mark for each text, got 'rws-' for A part"),
        ({"marks": "rws-x"}, "one mark for each text, got 'rws-x' for A part"),
        ({"marks": "rwws-"}, "what goes wrong must be told"),  # of the draft, nothing is said
        ({"marks": "r-s-r"}, "nothing of what is absent"),
        ({"notes": {"walk-through": "It.", "book": "It."}}, "what goes wrong must be told"),
        ({"label": "sec-01-scales"}, "got no label sec-01-scales: A part"),
        (
            {"objects": "core.attention.attention_weight"},
            "have groundup.core.attention.attention_weight: A",
        ),
        (
            {"objects": "core.masks.causal_mask core.blocks.Blok"},
            "the library must have groundup.core.blocks.Blok",
        ),
        ({"exercises": "1.4 1.99"}, "exercises must exist, got 1.99: A part"),
    ],
)
def test_a_row_that_names_what_there_is_not_stops_the_page(change, message, monkeypatch):
    monkeypatch.setattr(parts, "GROUPS", {"Good": [GOOD]})
    check()
    monkeypatch.setattr(parts, "GROUPS", {"Bad": [replace(GOOD, **change)]})
    with pytest.raises(ValueError, match=re.escape(message)):
        check()


def test_no_part_is_listed_twice_and_each_is_in_at_least_one_text():
    listed = [part for group in GROUPS.values() for part in group]
    assert len({part.name for part in listed}) == len(listed)
    assert [part.name for part in listed if set(part.marks) == {"-"}] == []


def test_a_row_shows_every_mark_in_words_too(monkeypatch):
    monkeypatch.setattr(parts, "GROUPS", {"Good": [GOOD], "Less": [replace(GOOD, left_out=True)]})
    words = r'role="img" aria-label="([^"]+)"'
    assert re.findall(words, show("Good")) == [MARKS[mark][1] for mark in "rws-rr"]
    assert re.findall(words, show("Less")) == [MARKS[mark][1] for mark in "rws-r-"]
    head, rule, row, _, note, _ = show("Good").split("\n")
    assert head.count("|") == rule.count("|") == row.count("|") == len(TEXTS) + 3
    assert "{ref}`sec-01-scale`" in row
    assert "attention_weights" in row.replace("<wbr>", "")
    assert "exercise&nbsp;1.4" in row
    assert note == "- **A part.** *walk-through:* Something does not hold."


def test_the_page_explains_every_mark_and_every_text_and_shows_each_group_once():
    page = (BOOK / "parts.md").read_text(encoding="utf-8")
    for sign, word in MARKS.values():
        assert f'aria-label="{word}">{sign}</span> {word} |' in page
    for text in TEXTS:
        assert re.search(rf"^{text}\n: ", page, re.MULTILINE)
    assert re.findall(r'parts\.show\("([^"]+)"\)', page) == list(GROUPS)
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert headings[: len(GROUPS)] == list(GROUPS)
