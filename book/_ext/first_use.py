"""Link what a page names to where it is described, once a page, at its first use.

Code in a sentence that is exactly a name of the library's (`groundup.core.masks.causal_mask`,
`masks.causal_mask`, or `causal_mask` where that is clear) or a command (`classroom mine`); what a
cell imports from the library; and, in running text, the words of the glossary. Nobody has to write
the links, and none is forgotten.

A short name is clear if one public name ends so, and if nobody would take it for a word or for
something of the page's own: it has an underscore or a capital inside, or the page imports it, or it
is followed by `()`. Modules in `full_names_only` repeat names of others, and are meant only where
they are named.

A word is linked on the pages that match `pages_with_words`, but for those on which it means
something else, `other_meanings`, by page, or `"*"` for all.

Left alone: the first page, headings, captions, what is a link already, quizzes, blocks of code, and
for words also tables and what cells give.
"""

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cache

from docutils import nodes
from quiz import quiz_node
from small_signs import is_within
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

GLOSSARY = "glossary"
LISTS = {"notation": "Notation", GLOSSARY: "Glossary"}
Place = tuple[str, str, str]
"""Where something is described: the page, the anchor, and what is said on pointing at the link."""

NO_LINKS_IN = (
    nodes.reference,
    nodes.title,
    nodes.caption,
    nodes.rubric,
    nodes.term,
    nodes.raw,
    nodes.literal_block,
    addnodes.desc_signature,
    addnodes.download_reference,
    quiz_node,
)
NO_WORDS_IN = (*NO_LINKS_IN, nodes.literal, nodes.math, nodes.table, nodes.citation, addnodes.desc)
NO_WORDS_IN_CLASSES = {"cell_output", "exercise-list", "chapter-lists"}

IMPORT = re.compile(
    r'(?P<start><span class="nn">(?P<module>groundup[\w.]*)</span>(?:<span class="w">\s*</span>|\s)'
    r'<span class="kn">import</span>\s)'
    r'(?P<names><span class="p">\(</span>.*?<span class="p">\)</span>|[^\n]*)',
    re.DOTALL,
)
"""An import from the library, as it is coloured."""


@cache
def names_by_ending(full_names: tuple[str, ...], apart: tuple[str, ...]) -> dict[str, str]:
    """Say which name each ending stands for; those that stand for several are left out."""
    found: dict[str, set[str]] = {}
    for full in full_names:
        parts = full.split(".")
        owners = [".".join(parts[:end]) for end in range(1, len(parts))]
        last = len(parts) - 1 if set(owners) & set(apart) else len(parts)
        for start in range(last):
            found.setdefault(".".join(parts[start:]), set()).add(full)
    clear = {ending: names.pop() for ending, names in found.items() if len(names) == 1}
    return clear | {full: full for full in full_names}


def cannot_be_a_word(name: str) -> bool:
    """Say whether nobody would take a name for a word, or for a variable."""
    return bool(re.search(r"[a-z]_[a-z]|[a-z][A-Z]|[A-Z]{2}.*[a-z]", name))


def bound_in(code: str) -> tuple[dict[str, str], set[str]]:
    """Give what code imports from the library, by the name it uses, and what it defines itself."""
    try:
        tree = ast.parse(re.sub(r"(?m)^(\s*)[%!].*", r"\1pass", code))
    except SyntaxError:
        return {}, set()
    imported: dict[str, str] = {}
    defined: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "groundup":
            for alias in node.names:
                imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
    return imported, defined


def word_pattern(words: Iterable[str]) -> re.Pattern[str]:
    """Match any of the words in running text; the number of the group says which.

    Also where a sentence begins with it, in the plural, and across the end of a line. Where several
    match, the longest does.
    """

    def forms(word: str) -> str:
        first = f"[{word[0].upper()}{word[0]}]" if word[0].islower() else re.escape(word[0])
        rest = re.escape(word[1:]).replace(r"\ ", r"\s+")
        return first + (rest[:-1] + "(?:y|ies)" if word.endswith("y") else rest + "(?:s|es)?")

    numbered = sorted(enumerate(words), key=lambda each: len(each[1]), reverse=True)
    either = "|".join(f"(?P<w{number}>{forms(word)})" for number, word in numbered)
    return re.compile(rf"(?<![\w–-])(?:{either})(?![\w–-])")


class LinkFirstUses(SphinxPostTransform):
    """Link names and words of one page."""

    default_priority = 20  # what was linked by hand is a link by now

    def run(self, **kwargs: object) -> None:
        self.page = self.env.docname
        if self.page == self.config.root_doc:
            return
        self.link_names()
        if re.fullmatch(self.config.pages_with_words, self.page):
            self.link_words()
        if re.match(r"\d\d_", self.page):
            self.link_lists()

    def link_names(self) -> None:
        objects = self.env.get_domain("py").objects
        commands = self.env.get_domain("std").labels
        endings = names_by_ending(tuple(objects), tuple(self.config.full_names_only))
        imported: dict[str, str] = {}
        defined: set[str] = set()
        for block in self.document.findall(nodes.literal_block):
            if "python" in block.get("language", ""):
                more, own = bound_in(block.astext())
                imported |= more
                defined |= own

        done: set[tuple[str, str]] = set()
        for literal in list(self.document.findall(nodes.literal)):
            if is_within(literal, NO_LINKS_IN):
                continue
            text = " ".join(literal.astext().split())
            name = text.removesuffix("()")
            entry = entry_of(literal)
            near = names_near(name, entry)
            is_clear = "." in name or name != text or cannot_be_a_word(name)
            is_clear = is_clear and (name not in defined or name in imported)
            known = [imported.get(name, ""), *near, endings.get(name, "") if is_clear else ""]
            full = next((each for each in known if each in objects), "")
            command = " ".join(text.split()[:2])
            if full:
                found = objects[full]
                place = (found.docname, found.node_id, full)
            elif " " in command and command in commands:
                place = (*commands[command][:2], command)
            else:
                continue
            use = (entry[0]["ids"][0] if entry is not None else "", place[1])
            if use in done or (entry is not None and place[1] in entry[0]["ids"]):
                continue
            done.add(use)
            literal.parent.replace(literal, self.link(literal.deepcopy(), place, "name-link"))

    def link(self, content: nodes.Node, place: Place, kind: str) -> nodes.reference:
        page, anchor, said = place
        link = make_refnode(self.app.builder, self.page, page, anchor, content, said)
        link["classes"].append(kind)
        return link

    def link_words(self) -> None:
        pattern, places = glossary_of(self.env)
        others = self.config.other_meanings
        used = {f"term-{word}" for page in ("*", self.page) for word in others.get(page, ())}
        for text in list(self.document.findall(nodes.Text)):
            if places and is_running_text(text):
                pieces = list(self.pieces(text, pattern, places, used))
                parent, place = text.parent, text.parent.index(text)
                parent[place : place + 1] = pieces

    def pieces(
        self, text: nodes.Text, pattern: re.Pattern[str], places: list[Place], used: set[str]
    ) -> Iterator[nodes.Node]:
        """Cut a text into links, for words that the page has not used before, and the rest."""
        end = 0
        for match in pattern.finditer(text):
            place = places[int(str(match.lastgroup)[1:])]
            if place[1] in used:
                continue
            used.add(place[1])
            yield nodes.Text(text[end : match.start()])
            yield self.link(nodes.Text(match.group()), place, "word-link")
            end = match.end()
        yield nodes.Text(text[end:])

    def link_lists(self) -> None:
        """Say below the title of a chapter where its symbols and its words are listed."""
        there = {page: shown for page, shown in LISTS.items() if page in self.env.found_docs}
        title = next(iter(self.document.findall(nodes.title)), None)
        if title is None or not there:
            return
        line = nodes.paragraph(classes=["chapter-lists"])
        for page, shown in there.items():
            line += nodes.Text(" · " if len(line) else "")
            line += make_refnode(self.app.builder, self.page, page, "", nodes.Text(shown))
        title.parent.insert(title.parent.index(title) + 1, line)


def is_running_text(text: nodes.Text) -> bool:
    """Say whether a text is part of a sentence, and of nothing that stands apart."""
    node, is_in_paragraph = text.parent, False
    while node is not None:
        if isinstance(node, NO_WORDS_IN) or NO_WORDS_IN_CLASSES & set(node.get("classes", ())):
            return False
        is_in_paragraph |= isinstance(node, nodes.paragraph)
        node = node.parent
    return is_in_paragraph


def entry_of(node: nodes.Node | None) -> addnodes.desc | None:
    """Find the entry of the reference that a node stands in, the outermost of several."""
    found = None
    while node is not None:
        found = node if isinstance(node, addnodes.desc) else found
        node = node.parent
    return found if found is not None and found[0].get("ids") else None


def names_near(name: str, entry: addnodes.desc | None) -> list[str]:
    """Say what a name in a docstring may stand for in its own class and module."""
    if entry is None or not entry[0].get("module"):
        return []
    parameters = {
        each.astext()
        for parameter in entry.findall(addnodes.desc_parameter)
        for each in list(parameter.findall(addnodes.desc_sig_name))[:1]
    }
    if name in parameters:
        return []
    module, owner = entry[0]["module"], entry[0]["fullname"]
    return [f"{module}.{owner}.{name}", f"{module}.{name}"]


@cache
def glossary_of(env: BuildEnvironment) -> tuple[re.Pattern[str], list[Place]]:
    """Give the words to look for, and for each where it is explained and how.

    Words that share an explanation share a place, so that a page links only the first of them.
    """
    words: list[str] = []
    places: list[Place] = []
    if GLOSSARY in env.found_docs:
        for item in env.get_doctree(GLOSSARY).findall(nodes.definition_list_item):
            terms = list(item.findall(nodes.term))
            said = next(iter(item.findall(nodes.paragraph))).astext()
            place = (GLOSSARY, terms[0]["ids"][0], " ".join(said.split()))
            words += [term.astext() for term in terms]
            places += [place] * len(terms)
    return word_pattern(words), places


def rewrite_when_names_change(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Have every page written again when there is something else to link to than before."""
    objects = env.get_domain("py").objects
    std = env.get_domain("std")
    places = [(name, entry.docname) for name, entry in objects.items()]
    places += [(str(name), page) for name, (page, _) in std.objects.items()]
    places += [(name, page) for name, (page, *_) in std.labels.items()]
    now = hashlib.sha256(repr(sorted(places)).encode()).hexdigest()
    before = getattr(env, "names_to_link", now)
    env.names_to_link = now
    return [] if before == now else sorted(env.found_docs)


def link_imports(app: Sphinx, page: str, template: str, context: dict, doctree: object) -> None:
    """Link what a cell imports from the library, where the page does so first."""
    if doctree is None or page == app.config.root_doc:
        return
    objects = app.env.get_domain("py").objects
    done: set[str] = set()

    def link(full: str, shown: str) -> str:
        if full not in objects or full in done:
            return shown
        done.add(full)
        entry = objects[full]
        address = f"{app.builder.get_relative_uri(page, entry.docname)}#{entry.node_id}"
        return f'<a class="import-link" href="{address}" title="{full}">{shown}</a>'

    def statement(match: re.Match[str]) -> str:
        names = re.sub(
            r'<span class="n">(\w+)</span>',
            lambda name: link(f"{match['module']}.{name[1]}", name[0]),
            match["names"],
        )
        return f"{match['start']}{names}"

    context["body"] = IMPORT.sub(statement, context["body"])


def setup(app: Sphinx) -> dict:
    app.add_config_value("full_names_only", [], "env")
    app.add_config_value("pages_with_words", r"\d\d_\w+", "env")
    app.add_config_value("other_meanings", {}, "env")
    app.add_post_transform(LinkFirstUses)
    app.connect("env-updated", rewrite_when_names_change)
    app.connect("html-page-context", link_imports)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
