"""Addresses that last: the anchor of a section is its label, and what has moved can be found.

A section with a label, `(sec-02-empty)=`, has two anchors: the label and its title. Sphinx offers
the title to whoever copies the link beside it, and with the next title that link is dead. Here the
label comes first. Anchors of titles go on working, and are offered only where there is no label.

An anchor that has to go is listed in `moved_anchors`, as `page#old: page#new`. The old address then
leads to the new place, or says where it is if that is on another page. A module or a class of the
reference that has another name is listed in `moved_names`, and stands for all that it holds.
"""

import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

logger = logging.getLogger(__name__)


class LabelsFirst(SphinxTransform):
    """Put the label of a section before the anchor made of its title."""

    default_priority = 600  # labels have been moved into their sections by 260

    def apply(self, **kwargs: object) -> None:
        explicit = {
            self.document.nameids[name]
            for name, is_explicit in self.document.nametypes.items()
            if is_explicit
        }
        for section in self.document.findall(nodes.section):
            section["ids"].sort(key=lambda anchor: anchor not in explicit)


def keep_moved(app: Sphinx, page: str, template: str, context: dict, doctree: object) -> None:
    """Let the old anchors of a page lead on."""
    body = context.get("body", "")
    for old, new in app.config.moved_names.items():
        if new in body:
            place = re.compile(rf'<[^>]*\bid="(module-)?{re.escape(new)}(\.[^"]+)?"[^>]*>')
            body = place.sub(
                lambda mark, old=old: (
                    f'{mark[0]}<span id="{mark[1] or ""}{old}{mark[2] or ""}"></span>'
                ),
                body,
            )
    for old, new in app.config.moved_anchors.items():
        old_page, _, old_anchor = old.partition("#")
        new_page, _, new_anchor = new.partition("#")
        if old_page != page:
            continue
        if new_page == page:
            place = re.compile(rf'<[^>]*\bid="{re.escape(new_anchor)}"[^>]*>')
            marked = place.sub(rf'\g<0><span id="{old_anchor}"></span>', body, count=1)
            if marked == body:
                logger.warning("moved_anchors: there is no %s for %s", new, old)
            body = marked
        else:
            if new_page not in app.env.found_docs:
                logger.warning("moved_anchors: there is no page %s for %s", new_page, old)
                continue
            address = f"{app.builder.get_relative_uri(page, new_page)}#{new_anchor}"
            body += (
                f'<p class="moved" id="{old_anchor}">What stood here is now '
                f'<a href="{address}">on another page</a>.</p>'
            )
    context["body"] = body


def setup(app: Sphinx) -> dict:
    app.add_config_value("moved_anchors", {}, "html")
    app.add_config_value("moved_names", {}, "html")
    app.add_transform(LabelsFirst)
    app.connect("html-page-context", keep_moved)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
