"""One PDF of a whole book, from its built pages."""

import re
import shutil

import pytest
from books import BOOK
from bs4 import BeautifulSoup
from one_pdf import BROWSERS, cover, lead, print_to, reading_order, said_once, stitch

ONE = """# One & first

(sec-end)=
## Exercises

$$
x^2
$$ (eq-one)

[The other's end](sec-other), [the other](b.md), [out](https://example.org/), {eq}`eq-one`.

![a drawing](drawn.svg)
"""
TWO = "(sec-other)=\n# Two\n\n## Exercises\n\nSee [the end of one](sec-end).\n"
DRAWN = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><path d="M0 0h9v9z"/></svg>'


@pytest.fixture
def built(small_book):
    """Two pages in the theme of the book, with formulas and a drawing."""
    book = small_book("offline_math", "mended_html", html_theme="sphinx_book_theme")
    book.settings["mathjax_path"] = "mathjax/tex-chtml-full.js"
    book.settings["mathjax3_config"] = {"tex": {"packages": {"[-]": ["noundefined"]}}}
    book.settings["html_static_path"] = [str(BOOK / "_static")]
    book.settings["html_css_files"] = ["print.css"]
    book.write("a.md", ONE)
    book.write("b.md", TWO)
    book.write("drawn.svg", DRAWN)
    result = book.build()
    assert result.returncode == 0, result.stderr
    return book.folder / "out"


@pytest.mark.parametrize(
    ("href", "leads"),
    [
        ("#end", "#deep-a--end"),
        ("../b.html#end", "#b--end"),
        ("c.html", "#deep-c"),
        ("../_downloads/x.ipynb", "https://book.org/v/_downloads/x.ipynb"),
        ("https://example.org/#end", "https://example.org/#end"),
    ],
)
def test_a_link_leads_into_the_document_or_to_the_published_book(href, leads):
    link = BeautifulSoup(f'<a href="{href}">x</a>', "html.parser").a
    lead(link, "deep/a", {"b", "deep/a", "deep/c"}, "https://book.org/v/")
    assert link["href"] == leads


def test_the_cover_says_what_this_is_as_far_as_the_book_does():
    page = "<h1>The {}</h1><p>Version 7 of a model</p><footer><p>Version 0.3.1, news</p></footer>"
    first = BeautifulSoup(page.format("path &amp; goal"), "html.parser")
    shown = BeautifulSoup(cover("A <book>", first, "https://book.org/"), "html.parser")
    lines = [line.get_text() for line in shown.find_all("p")]
    assert lines == ["A <book>", "The path & goal", "Version 0.3.1", "https://book.org/"]
    bare = BeautifulSoup("<h1>A <em>book</em></h1>", "html.parser")
    lines = BeautifulSoup(cover("A book", bare, None), "html.parser").find_all("p")
    assert [line.get_text() for line in lines] == ["A book"]


@pytest.mark.parametrize(
    ("bookmark", "corrected"),
    [
        ("1. 1. Attention:Attention:queries", "1. Attention: queries"),
        (r"Shapes \(T, d\)Shapes \(T, d\)", r"Shapes \(T, d\)"),
        ("Dropout", "Dropout"),
        ("Another titleAnother title", "Another titleAnother title"),
    ],
)
def test_a_bookmark_says_its_heading_once_and_moves_no_object(bookmark, corrected):
    headings = ["1. Attention: queries", "Shapes (T, d)", "Dropout"]
    printed = f"<</Title ({bookmark})\n/Dest [9 0 R]".encode()
    found = said_once(printed, headings)
    assert found.startswith(f"<</Title ({corrected})".encode())
    assert len(found) == len(printed) and found.endswith(b"\n/Dest [9 0 R]")


@pytest.mark.slow
@pytest.mark.browser
def test_the_pdf_has_every_page_in_order_with_its_links_and_lacks_nothing(built, tmp_path):
    assert [name for name, _ in reading_order(built)] == ["index", "a", "b"]
    soup = BeautifulSoup(stitch(built), "html.parser")
    assert [article["id"] for article in soup.select("article")] == ["index", "a", "b"]
    ids = [tag["id"] for tag in soup.select("[id]")]
    assert len(ids) == len(set(ids))
    links = [link["href"] for link in soup.select("a[href]")]
    assert "https://example.org/" in links
    inside = {link for link in links if link.startswith("#")}
    assert {link[1:] for link in inside} <= set(ids)
    assert {"#b--sec-other", "#b", "#a--sec-end"} <= {link for link in inside}
    listed = [row.get_text() for row in soup.select(".pdf-contents > ul > li > a")]
    assert listed == ["Small book", "1. One & first", "2. Two"]
    assert not soup.select("article script, article button")

    pdf = tmp_path / "deep" / "book.pdf"
    pages, size = print_to(pdf, built)
    printed = pdf.read_bytes()
    assert printed.startswith(b"%PDF-") and size == len(printed)
    assert pages == 5  # cover, contents, and a page each
    assert b"/StructTreeRoot" in printed  # tagged, for screen readers
    titles = re.findall(rb"/Title\s*\((.*?)\)", printed)
    for title in (b"Contents", b"One & first", b"Two"):
        assert any(title in found for found in titles), titles
    assert printed.count(b"/Subtype /Link") >= 7
    assert printed.count(b"example.org") == 1
    assert b"book.invalid" not in printed  # every link of the book's own stays inside

    formula = (built / "a.html").read_text("utf-8")
    (built / "a.html").write_text(formula.replace("x^2", r"\nosuchmacro"), "utf-8")
    with pytest.raises(ValueError, match="every formula must be one that TeX knows"):
        print_to(pdf, built)
    (built / "a.html").write_text(formula, "utf-8")
    next((built / "_images").glob("drawn*.svg")).unlink()
    with pytest.raises(ValueError, match="it lacks http://book.invalid/_images/drawn"):
        print_to(pdf, built)


def test_without_a_built_book_or_a_browser_it_says_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="build the book first, with `make book`"):
        print_to(tmp_path / "book.pdf", tmp_path, browser="any")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError, match=f"needs Chromium, found none of {BROWSERS[0]}"):
        print_to(tmp_path / "book.pdf", tmp_path)
