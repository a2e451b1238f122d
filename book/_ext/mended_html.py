"""Mend what the theme and the extensions get wrong in the finished pages.

Most of it is for those who use a keyboard or a screen reader. One pass over the HTML before it is
written, each mend a function of its own with its reason. What an update sets right can go; the
browser tests say whether it may.
"""

import re
from collections.abc import Callable

from bs4 import BeautifulSoup
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ConfigError
from sphinx.jinja2glue import BuiltinTemplateLoader

CODE = re.compile(r"<pre\b[^>]*>.*?</pre>", re.DOTALL)


def name_the_logo(soup: BeautifulSoup) -> None:
    """The link to the start page stood in no landmark, and so in no list of landmarks."""
    for logo in soup.select("div.sidebar-primary-item:has(> a.navbar-brand)"):
        logo.name = "nav"
        logo["aria-label"] = "Start page"


def trust_visible_labels(soup: BeautifulSoup) -> None:
    """Whoever speaks to a computer says what is written, which another name would hide."""
    for labelled in soup.select("summary[aria-label], button.search-button-field[aria-label]"):
        del labelled["aria-label"]
    for icon in soup.select("button[aria-label] i[title]"):
        del icon["title"]


def name_the_sidebar_arrows(soup: BeautifulSoup) -> None:
    """An arrow that folds a chapter says nothing without the chapter's name."""
    for summary in soup.select("nav li > details > summary"):
        chapter = summary.find_parent("li").find("a")
        if not summary.get_text(strip=True) and chapter is not None:
            summary["aria-label"] = f"Sections of {chapter.get_text(strip=True)}"


def list_the_references(soup: BeautifulSoup) -> None:
    """A list must hold list items; the role of each entry is no longer part of the standard."""
    for entry in soup.select("div.citation[role]"):
        entry["role"] = "listitem"
    for label in soup.select("div.citation > span.label"):
        label.decompose()  # entries are cited by author and year, these keys appear nowhere else


def frame_tables(soup: BeautifulSoup) -> None:
    """On a phone a wide table must scroll in a frame of its own, not with the page."""
    for table in soup.select("article table"):
        if "wide" not in table.parent.get("class", []):
            table.wrap(soup.new_tag("div", attrs={"class": "wide"}))


def share_the_description(soup: BeautifulSoup) -> None:
    """A link preview showed the first words of the page, formulas as raw TeX and all."""
    written = soup.find("meta", attrs={"name": "description"})
    shared = soup.find("meta", attrs={"property": "og:description"})
    if written is not None and shared is not None:
        shared["content"] = written["content"]


def set_parameters_in_lines(soup: BeautifulSoup) -> None:
    """Sphinx sets the parameters of a long signature as definitions, of nothing."""
    for parameters in soup.select("dt.sig > dl"):
        for line in parameters.find_all("dd", recursive=False):
            line.name, line["class"] = "span", ["sig-line"]
        parameters.name, parameters["class"] = "span", ["sig-lines"]


def make_margin_notes_notes(soup: BeautifulSoup) -> None:
    """An aside is a landmark, which a page has few of; and its title was an empty paragraph."""
    for aside in soup.select("aside.margin"):
        aside.name, aside["class"], aside["role"] = "div", ["margin"], "note"
        for title in aside.select("p.sidebar-title"):
            title.decompose()


def leave_out_thebe(soup: BeautifulSoup) -> None:
    """No page runs code in the browser; its script stood there twice and stopped with an error."""
    for script in soup.find_all("script"):
        if "sphinx-thebe.js" in script.get("src", "") or "THEBE_JS_URL" in (script.string or ""):
            script.decompose()


MENDS: tuple[Callable[[BeautifulSoup], None], ...] = (
    name_the_logo,
    trust_visible_labels,
    name_the_sidebar_arrows,
    list_the_references,
    frame_tables,
    share_the_description,
    set_parameters_in_lines,
    make_margin_notes_notes,
    leave_out_thebe,
)


def mend(html: str) -> str:
    """Apply every mend to one page.

    Blocks of code are most of the tags of a page, and nothing in them is mended: they are set aside
    while the rest is read.
    """
    aside: list[str] = []

    def put_aside(block: re.Match[str]) -> str:
        aside.append(block[0])
        return f"<pre>{len(aside) - 1}</pre>"

    soup = BeautifulSoup(CODE.sub(put_aside, html), "html.parser")
    for apply in MENDS:
        apply(soup)
    return re.sub(r"<pre>(\d+)</pre>", lambda place: aside[int(place[1])], str(soup))


class MendedTemplates(BuiltinTemplateLoader):
    """Sphinx's own templates, with what comes of them mended where it is a whole page."""

    def render(self, template: str, context: dict) -> str:
        html = super().render(template, context)
        return mend(html) if html.rstrip().endswith("</html>") else html


def mend_what_is_rendered(app: Sphinx, config: Config) -> None:
    """Come between the templates and the files.

    Raises:
        ConfigError: If another extension wants to stand there.

    """
    if config.template_bridge:
        raise ConfigError(f"mended_html needs template_bridge, which is {config.template_bridge}")
    config.template_bridge = f"{__name__}.{MendedTemplates.__name__}"


def setup(app: Sphinx) -> dict:
    app.connect("config-inited", mend_what_is_rendered)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
