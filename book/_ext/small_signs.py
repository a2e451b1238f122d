"""What belongs together stays together, and numbers look alike wherever they come from.

A browser breaks a line between a formula and the full stop behind it, between `95` and `%`, and
after the hyphen of `top-k` or of a word in a heading. A number that a cell has computed comes as
Python writes it, `-0.4` and `95%`, into a sentence that has `−0.4` and `95 %` elsewhere. A short
name, where there is little room, is broken at any letter. All that is mended on the finished page;
the words of code stay as they are.
"""

import re

from docutils import nodes
from sphinx.application import Sphinx

SIGNS = re.compile(r"[.,;:!?)]+")
UNITS = re.compile(r"(?<=\d) (?=(?:%|h|min)(?:\W|$))|(?<=\d h) (?=\d)")
LETTER = re.compile(r"\b(?:[a-z]-\w+|\w+-[a-z])\b")
HYPHENATED = re.compile(r"\b\w+(?:-\w+)+\b")
NO_BREAK = "\N{NO-BREAK SPACE}"
SHORT = 20
"""Letters of what no line breaks: on a phone, half a line."""
CODE = (nodes.literal, nodes.literal_block, nodes.math, nodes.math_block, nodes.raw, nodes.comment)


def as_in_print(text: str, is_computed: bool) -> str:
    """Give a text the spaces that do not break and, if it is a number of a cell, its signs."""
    if is_computed:
        text = re.sub(r"(?<=\d)%", f"{NO_BREAK}%", re.sub(r"^-(?=[\d.])", "\N{MINUS SIGN}", text))
    return UNITS.sub(NO_BREAK, text)


def is_within(node: nodes.Node, kinds: tuple[type, ...]) -> bool:
    """Say whether a node stands in one of these kinds, however deep."""
    while node.parent is not None:
        node = node.parent
        if isinstance(node, kinds):
            return True
    return False


def put_in_place_of(old: nodes.Node, new: list[nodes.Node]) -> None:
    """Replace this very node: `replace` of docutils takes the first text with the same letters."""
    place = next(at for at, child in enumerate(old.parent.children) if child is old)
    old.parent[place : place + 1] = new


def tie_hyphens(text: nodes.Text) -> None:
    """Tie words that no line may break: those with a single letter, short ones of a heading."""
    said, pattern = text.astext(), HYPHENATED if is_within(text, (nodes.title,)) else LETTER
    parts: list[nodes.Node] = []
    end = 0
    for word in pattern.finditer(said):
        if len(word[0]) <= SHORT:
            tied = nodes.inline("", word[0], classes=["tied"])
            parts += [nodes.Text(said[end : word.start()]), tied]
            end = word.end()
    if parts:
        put_in_place_of(text, [*parts, nodes.Text(said[end:])])


def mend(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Mend all texts of a page; tie words, short code, and formulas to the sign behind them."""
    for text in list(doctree.findall(nodes.Text)):
        if text.parent is None:  # an address that the theme has shortened
            continue
        is_computed = "pasted-text" in text.parent.get("classes", [])
        mended = as_in_print(text.astext(), is_computed)
        if mended != text.astext() and not is_within(text, CODE):
            put_in_place_of(text, [nodes.Text(mended)])
    for text in list(doctree.findall(nodes.Text)):
        if text.parent is not None and "-" in text and not is_within(text, CODE):
            tie_hyphens(text)
    for code in doctree.findall(nodes.literal):
        if len(code.astext()) <= SHORT:
            code["classes"].append("tied")
    for formula in list(doctree.findall(nodes.math)):
        place = formula.parent.index(formula) + 1
        after = formula.parent[place] if place < len(formula.parent) else None
        signs = SIGNS.match(after.astext()) if isinstance(after, nodes.Text) else None
        if signs is None:
            continue
        rest = after.astext()[signs.end() :]
        put_in_place_of(after, [nodes.Text(rest)] if rest else [])
        tied = nodes.inline(classes=["tied"])
        put_in_place_of(formula, [tied])
        tied += [formula, nodes.Text(signs[0])]


def setup(app: Sphinx) -> dict:
    app.connect("doctree-resolved", mend)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
