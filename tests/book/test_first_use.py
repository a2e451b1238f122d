import pytest
from books import chapters
from bs4 import BeautifulSoup
from first_use import bound_in, cannot_be_a_word, names_by_ending, word_pattern

NAMES = [
    "groundup.core.masks.causal_mask",
    "groundup.a.load",
    "groundup.b.load",
    "groundup.own_parts.parts.swish",
]


def test_an_ending_that_belongs_to_one_name_stands_for_it():
    endings = names_by_ending(tuple(NAMES), ())
    assert (
        endings["causal_mask"] == endings["masks.causal_mask"] == "groundup.core.masks.causal_mask"
    )
    assert "load" not in endings
    assert endings["a.load"] == "groundup.a.load"


def test_names_of_a_module_that_repeats_others_must_name_it():
    endings = names_by_ending(
        (*NAMES, "groundup.own_parts.parts.causal_mask"), ("groundup.own_parts.parts",)
    )
    assert endings["causal_mask"] == "groundup.core.masks.causal_mask"
    assert "swish" not in endings
    assert endings["parts.swish"] == "groundup.own_parts.parts.swish"


@pytest.mark.parametrize(
    ("name", "is_clear"),
    [("causal_mask", True), ("RMSNorm", True), ("FeedForward", True)]
    + [("stream", False), ("Block", False), ("IGNORED", False), ("BOS", False)],
)
def test_a_name_that_may_be_a_word_is_not_clear(name, is_clear):
    assert cannot_be_a_word(name) == is_clear


def test_what_code_imports_and_defines_is_read_from_it():
    code = (
        "%time 1\nfrom groundup.core.masks import causal_mask as c\nimport torch\ndef own(): pass"
    )
    assert bound_in(code) == ({"c": "groundup.core.masks.causal_mask"}, {"own"})
    assert bound_in("not python (") == ({}, set())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a query and", "query"),
        ("Queries differ", "Queries"),
        ("its attention\nweights", "attention\nweights"),
        ("attention is", "attention"),
        ("two losses", "losses"),
        ("self-query", None),
        ("encoder–query", None),
        ("QUERY", None),
        ("nats", "nats"),
        ("natural", None),
    ],
)
def test_a_word_is_found_in_its_forms_and_the_longest_first(text, found):
    pattern = word_pattern(["query", "attention", "attention weight", "loss", "nat"])
    match = pattern.search(text)
    assert (match and match.group()) == found


GLOSSARY = """# Glossary

```{glossary}
query
  What asks.

  See elsewhere.

key
  What answers.

loss
cost
  What falls.
```
"""

LIBRARY = """# Library

```{eval-rst}
.. py:module:: groundup.core.masks
.. py:function:: causal_mask(length)

    See ``length``, ``causal_mask`` and ``padding_mask``.

.. py:function:: padding_mask(length)
.. py:function:: stream(model)
```
"""

PAGE = """---
file_format: mystnb
kernelspec: {name: python3}
---
# The query of `causal_mask`

A *query* is made, and a query again. `causal_mask` is `masks.causal_mask`, and `stream` a word,
`stream()` is not. The cost, the losses, a [query of a link](https://example.org), the key.

## A query

```{code-cell} ipython3
:tags: [skip-execution]
from groundup.core.masks import (
    causal_mask,
    padding_mask as padding,
)
```

| query | `padding_mask` |
|---|---|
| key | `other_mask` |

```{quiz} What does `padding_mask` ask of a key?
- [ ] A query
  > No key.
- [x] Nothing
  > No key.
```
"""


@pytest.mark.slow
def test_names_and_words_are_linked_once_a_page_and_only_in_running_text(small_book):
    book = small_book("first_use", "quiz", other_meanings={"*": ["key"]})
    book.write("glossary.md", GLOSSARY)
    book.write("library.md", LIBRARY)
    book.write("notation.md", "# Notation\n")
    book.write("01_page.md", PAGE)
    book.write("other.md", "# Other\n\nA query without a link, and `causal_mask`.\n")
    built = book.build()
    assert built.returncode == 0, built.stderr

    soup = BeautifulSoup(book.html("01_page"), "html.parser").find(role="main")
    words = [(link.get_text(), link["href"], link["title"]) for link in soup.select("a.word-link")]
    assert words == [
        ("query", "glossary.html#term-query", "What asks."),
        ("cost", "glossary.html#term-loss", "What falls."),
    ]
    place = "library.html#groundup.core.masks."
    names = [(link.get_text(), link["href"]) for link in soup.select("a.name-link")]
    assert names == [
        ("causal_mask", f"{place}causal_mask"),
        ("stream()", f"{place}stream"),
        ("padding_mask", f"{place}padding_mask"),
    ]
    imports = [(link.get_text(), link["href"]) for link in soup.select("a.import-link")]
    assert imports == [(name, f"{place}{name}") for name in ("causal_mask", "padding_mask")]
    lists = soup.select("p.chapter-lists a")
    assert [link["href"] for link in lists] == ["notation.html", "glossary.html"]

    other = BeautifulSoup(book.html("other"), "html.parser").find(role="main")
    assert [link.get_text() for link in other.select("a.word-link, a.name-link")] == ["causal_mask"]
    library = BeautifulSoup(book.html("library"), "html.parser").find(role="main")
    assert [link.get_text() for link in library.select("a.name-link")] == ["padding_mask"]


@pytest.mark.slow
def test_a_page_is_written_again_when_there_is_more_to_link_to(small_book):
    book = small_book("first_use")
    book.write("glossary.md", GLOSSARY)
    book.write("01_page.md", "# Page\n\nA mask.\n")
    assert book.build().returncode == 0
    assert "word-link" not in book.html("01_page")
    book.write("glossary.md", GLOSSARY.replace("key\n", "mask\n"))
    assert book.build().returncode == 0
    assert "glossary.html#term-mask" in book.html("01_page")


CHAPTERS = {core: found for core, found in chapters().items() if core[:2].isdigit()}


def html(site, page):
    return BeautifulSoup((site / f"{page}.html").read_text("utf-8"), "html.parser")


@pytest.mark.parametrize("page", [page for found in CHAPTERS.values() for page in found])
def test_a_page_links_each_word_once_and_its_lists(site, page):
    soup = html(site, page)
    words = [link["href"] for link in soup.select("a.word-link")]
    assert words and len(words) == len(set(words))
    assert all(link["title"] for link in soup.select("a.word-link"))
    assert len(soup.select("p.chapter-lists a")) == 2
    inside = "h1 a, h2 a, h3 a, figcaption a, fieldset a, th a, a a"
    linked = soup.select(inside)
    assert [a for a in linked if {"word-link", "name-link"} & set(a.get("class", ()))] == []


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_links_its_words_and_its_names(site, chapter):
    soups = [html(site, page) for page in CHAPTERS[chapter]]
    assert len(soups[0].select("a.word-link")) > 5
    assert sum(len(soup.select("a.import-link, a.name-link")) for soup in soups) > 3


def test_every_word_of_the_glossary_says_where_it_is_taught(site):
    soup = BeautifulSoup((site / "glossary.html").read_text("utf-8"), "html.parser")
    definitions = soup.select("dl.glossary > dd")
    assert len(definitions) > 60
    for definition in definitions:
        assert len(definition.find("p").get_text()) < 250
        assert definition.select("p a.reference.internal")
