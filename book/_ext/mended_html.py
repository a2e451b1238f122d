"""Mend what the theme and the extensions get wrong in the finished pages.

Most of it is for those who use a keyboard or a screen reader. One pass over the HTML before it is
written, each mend a function of its own with its reason. What an update sets right can go; the
browser tests say whether it may.
"""

import re
from collections.abc import Callable

from lxml.html import HtmlElement, document_fromstring, tostring
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ConfigError
from sphinx.jinja2glue import BuiltinTemplateLoader

SIGNATURE = re.compile(r"<dt\b[^>]*class=.sig\b.*?</dt>", re.DOTALL)


def of_class(name: str) -> str:
    """Write in XPath that an element has a class."""
    return f"contains(concat(' ', normalize-space(@class), ' '), ' {name} ')"


def name_the_logo(page: HtmlElement) -> None:
    """The link to the start page stood in no landmark, and so in no list of landmarks."""
    item, brand = of_class("sidebar-primary-item"), of_class("navbar-brand")
    for logo in page.xpath(f"//div[{item}][a[{brand}]]"):
        logo.tag = "nav"
        logo.set("aria-label", "Start page")


def trust_visible_labels(page: HtmlElement) -> None:
    """Whoever speaks to a computer says what is written, which another name would hide."""
    for labelled in page.xpath(f"//summary | //button[{of_class('search-button-field')}]"):
        labelled.attrib.pop("aria-label", None)
    for icon in page.xpath("//button[@aria-label]//i[@title]"):
        del icon.attrib["title"]


def name_the_sidebar_arrows(page: HtmlElement) -> None:
    """An arrow that folds a chapter says nothing without the chapter's name."""
    for summary in page.xpath("//nav//li/details/summary[not(normalize-space())]"):
        for chapter in summary.xpath("(ancestor::li[1]//a)[1]"):
            summary.set("aria-label", f"Sections of {chapter.text_content().strip()}")


def list_the_references(page: HtmlElement) -> None:
    """A list must hold list items; the role of each entry is no longer part of the standard."""
    for entry in page.xpath(f"//div[@role][{of_class('citation')}]"):
        entry.set("role", "listitem")
    for label in page.xpath(f"//div[{of_class('citation')}]/span[{of_class('label')}]"):
        label.drop_tree()  # entries are cited by author and year, these keys appear nowhere else


def frame_tables(page: HtmlElement) -> None:
    """On a phone a wide table must scroll in a frame of its own, not with the page."""
    for table in page.xpath(f"//article//table[not(parent::*[{of_class('wide')}])]"):
        frame = table.makeelement("div", {"class": "wide"})
        frame.tail, table.tail = table.tail, None
        table.getparent().replace(table, frame)
        frame.append(table)


def share_the_description(page: HtmlElement) -> None:
    """A link preview showed the first words of the page, formulas as raw TeX and all."""
    for written in page.xpath("//meta[@name='description']/@content"):
        for shared in page.xpath("//meta[@property='og:description']"):
            shared.set("content", written)


def make_margin_notes_notes(page: HtmlElement) -> None:
    """An aside is a landmark, which a page has few of; and its title was an empty paragraph."""
    for aside in page.xpath(f"//aside[{of_class('margin')}]"):
        aside.tag = "div"
        aside.set("class", "margin")
        aside.set("role", "note")
        for title in aside.xpath(f".//p[{of_class('sidebar-title')}]"):
            title.drop_tree()


def leave_out_thebe(page: HtmlElement) -> None:
    """No page runs code in the browser; its script stood there twice and stopped with an error."""
    unused = "contains(@src, 'sphinx-thebe.js') or contains(., 'THEBE_JS_URL')"
    for script in page.xpath(f"//script[{unused}]"):
        script.drop_tree()


MENDS: tuple[Callable[[HtmlElement], None], ...] = (
    name_the_logo,
    trust_visible_labels,
    name_the_sidebar_arrows,
    list_the_references,
    frame_tables,
    share_the_description,
    make_margin_notes_notes,
    leave_out_thebe,
)


def set_parameters_in_lines(signature: re.Match[str]) -> str:
    """Sphinx sets the parameters of a long signature as definitions, of nothing.

    To lxml a list in a term ends the term, so this comes first.
    """
    text = signature[0]
    for tag, name in ("dl", "sig-lines"), ("dd", "sig-line"):
        text = text.replace(f"<{tag}>", f'<span class="{name}">').replace(f"</{tag}>", "</span>")
    return text


def mend(html: str) -> str:
    """Apply every mend to one page."""
    page = document_fromstring(SIGNATURE.sub(set_parameters_in_lines, html))
    for apply in MENDS:
        apply(page)
    return tostring(page, encoding="unicode", doctype="<!DOCTYPE html>")


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
