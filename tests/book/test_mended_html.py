import pytest
from bs4 import BeautifulSoup
from mended_html import mend

LOGO = '<div class="sidebar-primary-item"><a class="navbar-brand logo" href="#">Course</a></div>'
SEARCH = (
    '<button class="search-button-field" aria-label="Search"><span>Search</span> Ctrl K</button>'
)
ICON = '<button aria-label="Color mode"><i class="fa-moon" title="Dark"></i></button>'
FOLD = '<details><summary aria-label="Toggle hidden content"><p>Show code</p></summary></details>'
ARROW = """<nav><ul><li><a href="a.html">Masks</a>
<details><summary><span></span></summary><ul></ul></details></li></ul></nav>"""
REFERENCES = """<div role="list" class="citation-list"><div class="citation" role="doc-biblioentry">
<span class="label">[VSP17]</span><p>Vaswani</p></div></div>"""
TABLE = "<article><table><tr><td>1</td></tr></table></article>"
PREVIEW = """<meta name="description" content="What it says.">
<meta property="og:description" content="\\softmax(x) first words">"""
MARGIN = """<aside class="margin sidebar"><p class="sidebar-title"></p><p>By the way.</p></aside>"""
THEBE = """<script>const THEBE_JS_URL = "https://unpkg.com/thebe"</script>
<script src="_static/sphinx-thebe.js?v=1"></script><script src="_static/quiz.js"></script>"""


def mended(html):
    return BeautifulSoup(mend(html), "html.parser")


def test_the_logo_stands_in_a_landmark_with_a_name():
    assert mended(LOGO).find("nav", attrs={"aria-label": "Start page"}).a["href"] == "#"


@pytest.mark.parametrize("html", [SEARCH, FOLD])
def test_a_visible_label_is_the_name(html):
    assert mended(html).find(attrs={"aria-label": True}) is None


def test_an_icon_keeps_the_name_of_its_button_and_loses_its_own():
    button = mended(ICON).button
    assert button["aria-label"] == "Color mode"
    assert "title" not in button.i.attrs


def test_an_arrow_in_the_sidebar_says_what_it_unfolds():
    assert mended(ARROW).summary["aria-label"] == "Sections of Masks"


def test_references_are_items_of_a_list_without_keys_that_nobody_cites():
    entry = mended(REFERENCES).find(class_="citation")
    assert entry["role"] == "listitem"
    assert entry.get_text(strip=True) == "Vaswani"


def test_a_table_scrolls_in_a_frame_of_its_own():
    assert mended(TABLE).table.parent["class"] == ["wide"]


def test_a_link_preview_shows_the_description_of_the_page():
    shared = mended(PREVIEW).find("meta", property="og:description")
    assert shared["content"] == "What it says."


def test_a_margin_note_is_a_note_and_no_landmark():
    note = mended(MARGIN).find(attrs={"role": "note"})
    assert note.name == "div"
    assert note["class"] == ["margin"]
    assert [paragraph.get_text() for paragraph in note.find_all("p")] == ["By the way."]


def test_scripts_that_no_page_uses_are_left_out():
    assert [script["src"] for script in mended(THEBE).find_all("script")] == ["_static/quiz.js"]


@pytest.mark.parametrize(
    "html", [LOGO, SEARCH, ICON, FOLD, ARROW, REFERENCES, TABLE, PREVIEW, MARGIN, THEBE]
)
def test_a_page_mended_twice_is_a_page_mended_once(html):
    assert mend(mend(html)) == mend(html)


def test_the_parameters_of_a_signature_are_no_definitions():
    signature = "<dl><dt class='sig'>f(<dl><dd>x,</dd><dd>y,</dd></dl>)</dt><dd>Text.</dd></dl>"
    soup = mended(signature)
    assert [line.get_text() for line in soup.select("dt span.sig-lines > span")] == ["x,", "y,"]
    assert len(soup.find_all("dl")) == len(soup.find_all("dd")) == 1


def test_code_comes_back_as_it_was():
    blocks = ['<pre class="a"><i>a</i>&lt;&amp;\n\n</pre>', "<pre>0</pre>", "<pre>7\\1</pre>"]
    assert mend("".join(f"{block}{TABLE}" for block in blocks)).count("wide") == 3
    assert [block for block in blocks if block not in mend("".join(blocks) + TABLE)] == []


@pytest.mark.slow
def test_a_page_is_mended_before_it_is_written(small_book):
    book = small_book("mended_html")
    book.write("page.md", f"# Page\n\n{TABLE}\n")
    built = book.build()
    assert built.returncode == 0, built.stderr
    assert '<div class="wide"><table>' in book.html("page")
    assert book.html("page").count("<!DOCTYPE html>") == 1


@pytest.mark.slow
def test_another_extension_that_renders_pages_is_named(small_book):
    book = small_book("mended_html", template_bridge="another.Templates")
    built = book.build()
    assert built.returncode != 0
    assert "mended_html needs template_bridge, which is another.Templates" in built.stderr
