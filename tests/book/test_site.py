"""What can be said about the built pages without opening a browser."""

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from books import BOOK, ROOT, chapters, pages
from bs4 import BeautifulSoup

from classroom.exercise.answers import load_answers

REPOSITORY = "https://github.com/attention-from-the-ground-up/attention-from-the-ground-up"
PAGES = pages()


@cache
def parsed(page: Path) -> BeautifulSoup:
    return BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")


@cache
def anchors(page: Path) -> set[str]:
    return {element["id"] for element in parsed(page).find_all(id=True)}


def squeezed(text: str) -> str:
    return " ".join(text.split())


THROWN_AWAY = "mean_of_rows"
"""The exercise on which chapter 00 shows how grading works, with a wrong answer and its name."""


@cache
def solutions() -> dict[str, str]:
    """Name each piece of text that would give an exercise away."""
    found = {}
    for notebook in sorted((ROOT / "solutions").glob("*/*.py")):
        source = notebook.read_text(encoding="utf-8")
        for count, block in enumerate(
            re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", source, re.DOTALL)
        ):
            found[f"{notebook.parent.name} solution {count}"] = squeezed(block)
        for mistake in load_answers(notebook) if notebook.name == "mistakes.py" else ():
            if mistake.exercise != THROWN_AWAY:
                found[f"{notebook.parent.name} {mistake.name}"] = squeezed(mistake.explanation)
    return {name: text for name, text in found.items() if len(text) > 60}


def test_exactly_the_pages_of_the_contents_are_built(site):
    built = {page.relative_to(site).with_suffix("").as_posix() for page in site.rglob("*.html")}
    written = {page for page in built if not page.startswith("_")}  # nor the library's source
    assert written - {"search", "genindex"} == set(PAGES)


def test_the_front_page_links_the_chapters_that_exist_and_promises_no_other(site):
    rows = parsed(site / "index.html").select("section .map-rows > li")
    numbers = [row.select_one(".map-number").get_text() for row in rows]
    assert numbers == [str(number) for number in range(10)]
    for number, row in enumerate(rows):
        written = [f"{page}.md" for page in chapters() if page.startswith(f"{number:02}_")]
        linked = [Path(link["href"]).with_suffix(".md").name for link in row.select(".map-title a")]
        assert linked == written


@pytest.mark.parametrize("page", PAGES)
def test_every_link_inside_the_book_leads_somewhere(site, page):
    for link in parsed(site / f"{page}.html").find_all("a", href=True):
        target = urlsplit(link["href"])
        if target.scheme or target.netloc:
            continue
        here = site / f"{page}.html"
        file = here.parent / unquote(target.path) if target.path else here
        assert file.is_file(), link["href"]
        if target.fragment and file.suffix == ".html":
            anchor = unquote(target.fragment)
            assert anchor in anchors(file) | {"main-content"}, link["href"]


@pytest.mark.parametrize("page", PAGES)
def test_the_buttons_for_editing_point_to_files_that_exist(site, page):
    soup = parsed(site / f"{page}.html")
    edits = [a["href"] for a in soup.find_all("a", href=True) if "/edit/" in a["href"]]
    assert edits
    for address in edits:
        assert address.startswith(f"{REPOSITORY}/edit/main/")
        assert (ROOT / address.removeprefix(f"{REPOSITORY}/edit/main/")).is_file()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_loads_no_script_style_or_image_from_elsewhere(site, page):
    soup = parsed(site / f"{page}.html")
    loaded = [tag["src"] for tag in soup.find_all(src=True)]
    loaded += [tag["href"] for tag in soup.select("link[rel=stylesheet], link[rel=preload]")]
    assert loaded
    assert not [address for address in loaded if urlsplit(address).netloc]


@pytest.mark.parametrize("page", PAGES)
def test_a_link_to_the_page_is_previewed_with_words_and_not_with_tex(site, page):
    soup = parsed(site / f"{page}.html")
    shared = soup.find("meta", property="og:description")["content"]
    assert len(shared) > 40
    assert "\\" not in shared
    assert soup.find("meta", property="og:site_name")["content"] == "Attention from the Ground Up"
    assert soup.find("meta", property="og:url")["content"].startswith("https://")


@pytest.mark.parametrize("page", PAGES)
def test_no_page_gives_a_solution_away(site, page):
    text = squeezed(parsed(site / f"{page}.html").get_text())
    assert [name for name, solution in solutions().items() if solution in text] == []
    # Instructors are shown how a solution is marked, on one that is nobody's exercise.
    assert ("BEGIN SOLUTION" in text) == (page == "teaching")


def test_there_are_solutions_to_look_for():
    assert len(solutions()) > 1000


@pytest.mark.parametrize("look", ["", "-dark"])
def test_the_picture_of_the_readme_is_the_one_that_the_first_page_computes(site, look):
    (figure,) = parsed(site / "index.html").select(f"img.figure-on-{look[1:] or 'light'}")
    computed = (site / figure["src"]).read_text("utf-8")
    kept = (BOOK / "_static" / f"look-back{look}.svg").read_text("utf-8")
    raster = re.compile(r"base64,[^\"]*")  # its compression may differ between machines
    assert raster.sub("", computed) == raster.sub("", kept)


def test_the_references_are_sorted_by_their_keys():
    keys = re.findall(r"^@\w+\{([^,]+),", (BOOK / "references.bib").read_text("utf-8"), re.M)
    assert keys == sorted(keys)


def test_mathjax_comes_with_its_licence(site):
    assert "Apache License" in (site / "_static" / "mathjax" / "LICENSE").read_text("utf-8")


def test_the_site_map_lists_the_pages_to_read_and_no_others(site):
    listed = re.findall(r"<loc>(.*?)\.html</loc>", (site / "sitemap.xml").read_text())
    home = "https://attention-from-the-ground-up.github.io/attention-from-the-ground-up/"
    assert sorted(listed) == sorted(home + page for page in PAGES)
