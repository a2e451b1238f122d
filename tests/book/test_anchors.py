import pytest
from anchors import offered, present, recorded
from bs4 import BeautifulSoup

PAGE = """# Page

(sec-kept)=
## A title that will change

Text.

## One without a label

```{math}
:label: eq-kept
x
```
"""


@pytest.mark.slow
def test_a_section_offers_its_label_and_keeps_the_anchor_of_its_title(small_book):
    book = small_book("lasting_anchors")
    book.write("page.md", PAGE)
    built = book.build()
    assert built.returncode == 0, built.stderr

    soup = BeautifulSoup(book.html("page"), "html.parser")
    heading = soup.find(id="sec-kept").find("h2")
    assert heading.select_one("a.headerlink")["href"] == "#sec-kept"
    assert soup.find(id="a-title-that-will-change").find_parent("section")["id"] == "sec-kept"
    assert soup.find(id="one-without-a-label").name == "section"
    assert "page#sec-kept" in offered(book.folder / "out")


@pytest.mark.slow
def test_what_has_moved_is_found_by_its_old_address(small_book):
    moved = {"page#sec-old": "page#sec-kept", "page#sec-gone": "other#there"}
    book = small_book("lasting_anchors", moved_anchors=moved)
    book.write("page.md", PAGE)
    book.write("other.md", "# Other\n\n## There\n")
    built = book.build()
    assert built.returncode == 0, built.stderr

    soup = BeautifulSoup(book.html("page"), "html.parser")
    assert soup.find(id="sec-old").find_parent("section")["id"] == "sec-kept"
    assert soup.find(id="sec-gone").a["href"] == "other.html#there"
    assert {"page#sec-old", "page#sec-gone"} <= present(book.folder / "out")


@pytest.mark.slow
def test_a_class_with_a_new_name_takes_what_it_holds_along(small_book):
    book = small_book("lasting_anchors", moved_names={"old.Box": "new.room.Box"})
    lines = ["```{eval-rst}", ".. py:class:: new.room.Box", "", "   .. py:method:: open", "```"]
    book.write("page.md", "# Page\n\n" + "\n".join(lines) + "\n")
    built = book.build()
    assert built.returncode == 0, built.stderr
    assert {"page#old.Box", "page#old.Box.open"} <= present(book.folder / "out")


@pytest.mark.slow
def test_what_has_moved_to_nowhere_breaks_the_build(small_book):
    moved = {"page#sec-old": "page#sec-none", "page#sec-gone": "none#there"}
    book = small_book("lasting_anchors", moved_anchors=moved)
    book.write("page.md", PAGE)
    built = book.build()
    assert built.returncode != 0
    assert "there is no page#sec-none for page#sec-old" in built.stderr
    assert "there is no page none for page#sec-gone" in built.stderr


def test_no_address_that_a_reader_may_have_kept_is_lost(site):
    lost = sorted(recorded() - present(site))
    assert not lost, f"list each in moved_anchors in book/_config.yml: {lost}"


def test_the_record_is_of_this_book(site):
    """Or nothing could be lost."""
    assert len(recorded() & offered(site)) > 500
