"""One PDF of the whole book, from its built pages: `python book/one_pdf.py`, or `make pdf`.

The pages are put one after the other into a single document, which Chromium prints: so links lead
from chapter to chapter inside the PDF, formulas and figures are those of the pages, and the
headings become its outline. No page is run again, and nothing is fetched: whatever the document
asks for comes from the built book or not at all.
"""

import argparse
import mimetypes
import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from bs4 import BeautifulSoup, Tag
from playwright.sync_api import Page, Route, sync_playwright

HERE = Path(__file__).parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
ADDRESS = "http://book.invalid/"
"""Where the document seems to lie; every request to it is answered from the built book."""
TEXT_WIDTH = 642
"""Pixels between the margins of a page of paper, 170 mm."""
POINTERS = ("for", "aria-labelledby", "aria-describedby", "aria-controls")
FOOTER = (
    '<div style="width: 100%; font: 8pt sans-serif; color: #555; text-align: center">'
    '<span class="pageNumber"></span></div>'
)
# On paper nothing scrolls: what is wider than the text is made as small as it has to be.
FIT = """() => {
  for (const wide of document.querySelectorAll("mjx-container[display=true], .wide > table")) {
    const room = wide.parentElement.clientWidth;
    const eqno = wide.parentElement.querySelector(".eqno");
    const inner = wide.matches("table") ? wide : wide.querySelector("mjx-math");
    const share = (room - (eqno ? eqno.offsetWidth + 12 : 0)) / inner.scrollWidth;
    if (share < 1) wide.style.fontSize = `${Math.floor(95 * share)}%`;
  }
  return [...document.querySelectorAll("mjx-merror")].map((error) => error.textContent);
}"""


def reading_order(site: Path) -> Iterator[tuple[str, BeautifulSoup]]:
    """Give every page in the order of reading, as each page's link to the next one says.

    Raises:
        FileNotFoundError: If there is no built book.

    """
    name, seen = "index", set()
    while name not in seen:
        seen.add(name)
        file = site / f"{name}.html"
        if not file.is_file():
            raise FileNotFoundError(f"there is no {file}: build the book first, with `make book`")
        soup = BeautifulSoup(file.read_text(encoding="utf-8"), "html.parser")
        yield name, soup
        following = soup.select_one("head link[rel=next]")
        if following is not None:
            name = resolve(unquote(following["href"]), name).removesuffix(".html")


def resolve(address: str, page: str) -> str:
    """Say where in the book a path leads that stands on a page, which may lie in a folder."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), address))


def anchor(page: str, fragment: str = "") -> str:
    """Give the id that a place on a page has in the document."""
    name = page.replace("/", "-")
    return f"{name}--{fragment}" if fragment else name


def stitch(site: Path) -> str:
    """Make one HTML document of all pages, whose links to one another stay inside it."""
    pages = dict(reading_order(site))
    first = pages["index"]
    canonical = first.select_one("head link[rel=canonical]")
    base = urljoin(canonical["href"], ".") if canonical else None
    articles = []
    for name, soup in pages.items():
        article = soup.select_one("article")
        for useless in article.select("script, a.headerlink, button, .toctree-wrapper"):
            useless.decompose()
        for folded in article.select("details:not(.hide)"):
            folded["open"] = ""
        move_ids(article, name)
        for link in article.select("a[href]"):
            lead(link, name, set(pages), base)
        for shown in article.select("[src]"):
            if not urlsplit(shown["src"]).scheme:
                shown["src"] = resolve(shown["src"], name)
        article["id"] = anchor(name)
        articles.append(article)
    title = book_title(first)
    return (
        f'<!DOCTYPE html><html lang="en" data-theme="light"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title>{head(pages)}</head>"
        f'<body class="one-pdf">{cover(title, first, base)}{contents(articles)}'
        f"{''.join(map(str, articles))}</body></html>"
    )


def book_title(first: BeautifulSoup) -> str:
    """Say what the book is called: what stands beside its logo, or else its first heading."""
    shown = first.select_one(".logo__title") or first.select_one("h1")
    return shown.get_text(" ", strip=True)


def head(pages: dict[str, BeautifulSoup]) -> str:
    """Collect the styles of all pages, and what sets their formulas; no other script."""
    needed: dict[str, str] = {}
    for name, soup in pages.items():
        for tag in soup.select("head link[rel=stylesheet], head script"):
            if tag.name == "script" and "mathjax" not in f"{tag.get('src')}{tag.string}".lower():
                continue
            for where in {"href", "src"} & set(tag.attrs):
                tag[where] = resolve(tag[where].partition("?")[0], name)  # ? tells versions apart
            needed[tag.get("href") or tag.get("src") or tag.string] = str(tag)
    return "".join(needed.values())


def move_ids(article: Tag, page: str) -> None:
    """Put the page's name before each id, since two pages may both have a section *Exercises*."""
    for tag in article.select("[id]"):
        tag["id"] = anchor(page, tag["id"])
    for pointer in POINTERS:
        for tag in article.select(f"[{pointer}]"):
            tag[pointer] = " ".join(anchor(page, aim) for aim in tag[pointer].split())


def lead(link: Tag, page: str, pages: set[str], base: str | None) -> None:
    """Let a link lead to a place in the document, to the published book, or to no place."""
    target = urlsplit(link["href"])
    if target.scheme or target.netloc:
        return
    file = resolve(unquote(target.path), page) if target.path else f"{page}.html"
    name = file.removesuffix(".html")
    if name in pages:
        link["href"] = f"#{anchor(name, unquote(target.fragment))}"
    elif base is not None:
        link["href"] = urljoin(base, file)
    else:
        del link["href"]


def cover(title: str, first: BeautifulSoup, base: str | None) -> str:
    """Say what this is: title, first heading, version and address, as far as the book has them."""
    lines = [f'<p class="pdf-title">{escape(title)}</p>']
    heading = " ".join(first.select_one("h1").get_text().split())
    if heading != title:
        lines.append(f'<p class="pdf-subtitle">{escape(heading)}</p>')
    footers = " ".join(footer.get_text(" ") for footer in first.select("footer"))
    version = re.search(r"Version [\w.]*\w", footers)
    if version:
        lines.append(f"<p>{escape(version[0])}</p>")
    if base:
        lines.append(f'<p><a href="{escape(base)}">{escape(base)}</a></p>')
    return f'<section class="pdf-cover">{"".join(lines)}</section>'


def contents(articles: list[Tag]) -> str:
    """List the chapters and their sections, each with a link."""
    rows = []
    for article in articles:
        headings = article.select("h1, h2")
        links = [
            f'<a href="#{escape(heading.find_parent("section")["id"])}">'
            f"{escape(' '.join(heading.get_text().split()))}</a>"
            for heading in headings
        ]
        sections = "".join(f"<li>{link}</li>" for link in links[1:])
        rows.append(f"<li>{links[0]}{f'<ul>{sections}</ul>' if sections else ''}</li>")
    listed = "".join(rows)
    return f'<section class="pdf-contents"><h1>Contents</h1><ul>{listed}</ul></section>'


def print_to(pdf: Path, site: Path, browser: str | None = None) -> tuple[int, int]:
    """Print the whole book.

    Args:
        pdf: The file to write.
        site: The folder of the built pages.
        browser: Chromium's program; by default the first that is found.

    Returns:
        The number of pages and of bytes.

    Raises:
        FileNotFoundError: If there is no built book or no Chromium.
        ValueError: If a file of the book is missing, a script fails or a formula cannot be set.

    """
    browser = browser or next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise FileNotFoundError(f"printing needs Chromium, found none of {', '.join(BROWSERS)}")
    document, missing, failed = stitch(site), [], []

    def answer(route: Route) -> None:
        address = urlsplit(route.request.url)
        file = site / unquote(address.path).lstrip("/")
        if route.request.url == ADDRESS:
            route.fulfill(body=document, content_type="text/html; charset=utf-8")
        elif address.netloc == urlsplit(ADDRESS).netloc and file.is_file():
            kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
            route.fulfill(body=file.read_bytes(), content_type=kind)
        else:
            missing.append(route.request.url)
            route.abort()

    with sync_playwright() as playwright:
        with playwright.chromium.launch(executable_path=browser, args=FLAGS) as opened:
            page = opened.new_page(viewport={"width": TEXT_WIDTH, "height": 900})
            page.set_default_timeout(600_000)
            page.route("**/*", answer)
            page.on("pageerror", lambda error: failed.append(str(error)))
            wrong = _set(page, failed)
            if missing:
                raise ValueError(f"the book must hold all it shows, it lacks {missing[0]}")
            if failed:
                raise ValueError(f"no script of the book may fail, one said: {failed[0]}")
            if wrong:
                raise ValueError(f"every formula must be one that TeX knows, got {wrong[0]}")
            printed = page.pdf(
                format="A4",
                prefer_css_page_size=True,
                print_background=True,
                tagged=True,
                outline=True,
                display_header_footer=True,
                header_template="<span></span>",
                footer_template=FOOTER,
            )
            printed = said_once(printed, page.locator("h1, h2, h3, h4").all_text_contents())
    pdf.parent.mkdir(parents=True, exist_ok=True)
    pdf.write_bytes(printed)
    return len(re.findall(rb"/Type\s*/Page\b", printed)), len(printed)


def said_once(printed: bytes, headings: list[str]) -> bytes:
    """Give bookmarks the words of their headings.

    Chromium repeats each line of a heading that it moves to the next page, and joins lines
    without a space. Every object stays where it was, or readers would not find it.
    """
    known = {re.sub(r"\s", "", heading): heading.strip() for heading in headings}

    def corrected(match: re.Match[bytes]) -> bytes:
        words = re.sub(r"(.{4,})\1", r"\1", re.sub(r"\\|\s", "", match[1].decode("latin1")))
        title = known.get(words) or known.get(re.sub(r"^(\d+\.)\1", r"\1", words), "")
        title = re.sub(r"([()\\])", r"\\\1", title)
        fits = title.isascii() and 0 < len(title) <= len(match[1])
        return f"({title})".ljust(len(match[0])).encode() if fits else match[0]

    return re.sub(rb"(?<=<</Title )\((.*?)\)(?=\n/Dest)", corrected, printed)


def _set(page: Page, failed: list[str]) -> list[str]:
    """Open the document as paper sees it, wait for its formulas, and list those that failed."""
    page.emulate_media(media="print", color_scheme="light")
    page.goto(ADDRESS)
    if failed:
        return []  # formulas may never be ready now
    page.evaluate("() => window.MathJax?.startup?.promise.then(() => true)")
    page.evaluate("() => document.fonts.ready.then(() => true)")
    return page.evaluate(FIT)


def main() -> int:
    parser = argparse.ArgumentParser(description="Print the built book into one PDF.")
    parser.add_argument("--site", type=Path, default=HERE / "_build" / "html")
    parser.add_argument(
        "--to", type=Path, default=HERE / "_build" / "attention-from-the-ground-up.pdf"
    )
    asked = parser.parse_args()
    try:
        pages, size = print_to(asked.to, asked.site)
    except (FileNotFoundError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{asked.to}: {pages} pages, {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
