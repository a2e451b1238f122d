"""Reference pages made of the docstrings and signatures of the library, as they are written.

    ```{eval-rst}
    .. library:: groundup.variants.scores groundup.core.attention classroom.calls.subject:Subject
    ```

lists every public name of the modules, or those after the colon. Nothing is imported: griffe reads
the source. Sphinx's own autodoc shows the object that an annotation evaluates to, for a shape the
name of a class made for it, and a default of `10_000.0` as `10000.0`. And both napoleon and griffe
take what stands before the first colon of a `Returns:` for a name or a type, where ours is a
sentence: docstrings are read here.

Types link to where they are described. A name that cannot be found in the module that uses it is
an error, as any broken link is; no list of exceptions is needed for it.
"""

import ast
import builtins
import contextlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import griffe
from docutils import nodes
from docutils.statemachine import StringList
from parallel_pages import write_sources_together
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext import viewcode
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

OURS = ("groundup", "classroom")
ENTRIES = {"Args": "param", "Raises": "raises"}
"""The sections of a docstring that list names, and the field that each name becomes."""
PROSE = {"Returns": "returns", "Yields": "Yields", "Source": "Source"}
"""Those that say something, and the field that they become."""
LONGEST_VALUE = 60


class AsWritten(griffe.Extension):
    """Keep types and values as written: griffe would read a shape as the name of a type."""

    def on_module_node(self, *, node: Any, agent: Any, **more: Any) -> None:
        lines = agent.code.encode().splitlines()

        def written(each: Any, is_type: bool = False) -> ast.Name | None:
            """Replace an expression by its text, on one line; a type loses its quotes."""
            if each is None:
                return None
            taken = lines[each.lineno - 1 : each.end_lineno]
            taken[-1] = taken[-1][: each.end_col_offset]
            taken[0] = taken[0][each.col_offset :]
            text = " ".join(b" ".join(taken).decode().split())
            text = re.sub(r"(?<=[\[({]) |,? (?=[\])}])", "", text) if len(taken) > 1 else text
            is_later = is_type and isinstance(getattr(each, "value", None), str)
            return ast.Name(text[1:-1] if is_later else text)

        for each in ast.walk(node):
            if isinstance(each, ast.ClassDef) and "NamedTuple" in map(ast.unparse, each.bases):
                # griffe knows how to make one of these, and the two are called alike
                each.decorator_list.append(ast.parse("dataclasses.dataclass", mode="eval").body)
            elif isinstance(each, ast.FunctionDef):
                each.returns = written(each.returns, is_type=True)
            elif isinstance(each, ast.arguments):
                each.defaults = [written(default) for default in each.defaults]
                each.kw_defaults = [written(default) for default in each.kw_defaults]
            elif isinstance(each, ast.keyword) and each.arg == "default":
                each.value = written(each.value)
            if isinstance(each, ast.arg | ast.AnnAssign) and "ClassVar" not in ast.dump(each):
                each.annotation = written(each.annotation, is_type=True)
            if isinstance(each, ast.Assign | ast.AnnAssign):
                # griffe itself reads lists, because of `__all__`, and the fields of dataclasses
                called = getattr(getattr(each.value, "func", None), "id", "")
                if called != "field" and not isinstance(each.value, ast.List):
                    each.value = written(each.value)


@cache
def library(root: Path) -> griffe.ModulesCollection:
    """Read our packages."""
    extensions = griffe.load_extensions(AsWritten)
    loader = griffe.GriffeLoader(search_paths=[root], extensions=extensions)
    for package in OURS:
        if (root / package).is_dir():
            loader.load(package)
    return loader.modules_collection


def find(name: str, root: Path) -> Any:
    """Find what has this full name in our packages, where it is defined, or give None."""
    with contextlib.suppress(KeyError):
        found = library(root)[name]
        return found.final_target if found.is_alias else found
    return None


def public_names(name: str, root: Path) -> dict[str, Any]:
    """List what a module offers: `__all__` if it has one, else all without an underscore."""
    module = find(name, root)
    defined = [
        each
        for each, found in module.members.items()
        if not each.startswith("_") and not found.is_alias and not found.is_module
    ]
    chosen = defined if module.exports is None else module.exports
    return {each: find(f"{name}.{each}", root) for each in chosen}


def describe(name: str, found: Any, description: str = "") -> list[str]:
    """Write the entry of a name, with those of its members below it.

    Args:
        name: As it is offered.
        found: What it stands for, or None for an attribute of which only its class says something.
        description: Shown where it has no docstring of its own.

    """
    docstring = docstring_of(found) or description
    is_member = found is None or found.parent.is_class
    kind, signature, options, body = "attribute" if is_member else "data", "", [], []
    if found is not None and found.is_function:
        kind = "method" if is_member else "function"
        signature = found.signature(return_type=True).removeprefix(found.name)
        if is_member and "staticmethod" not in found.labels:
            signature = without_self(signature)
        options += ["    :classmethod:"] if "classmethod" in found.labels else []
    elif found is not None and found.is_class:
        kind, signature = "class", without_self(found.signature().removeprefix(found.name))
        bases = [each for each in map(str, found.bases) if not each.startswith(("_", "object"))]
        body += ["Bases: " + ", ".join(f"``{each}``" for each in bases), ""] if bases else []
        for each, (member, text) in members_of(found, docstring).items():
            body += describe(each, member, text)
    elif found is not None:
        kind = "property" if "property" in found.labels else kind
        value = "" if kind == "property" else str(found.value or "")
        options += [f"    :type: {found.annotation}"] if found.annotation else []
        if 0 < len(value) <= LONGEST_VALUE:
            options += [f"    :value: {value}"]
        elif 0 < len(value) <= 6 * LONGEST_VALUE:
            body += [".. code-block:: python", "", f"    {name} = {value}", ""]
    body = ["", *as_rst(docstring), *body]
    shown = (f"    {line}" if line else "" for line in body)
    return [f".. py:{kind}:: {name}{signature}", *options, *shown, ""]


def docstring_of(found: Any) -> str:
    return "" if found is None or found.docstring is None else found.docstring.value


def without_self(signature: str) -> str:
    return re.sub(r"^\((self|cls)(: [^,()]+)?(, )?", "(", signature)


def members_of(found: Any, docstring: str) -> dict[str, tuple[Any, str]]:
    """List the members that are described, also of private bases, each with a description."""
    attributes = split(docstring)[1].get("Attributes", [])
    said = {each: "\n".join(text) for each, text in _entries(attributes)}
    private = [each for each in found.mro() if each.name.startswith("_")]
    members: dict[str, tuple[Any, str]] = {}
    for cls in reversed([found, *private]):
        for name, member in cls.members.items():
            is_hidden = name.startswith("_") and not name.startswith("__")
            if is_hidden or name in ("__init__", "__post_init__") or is_set_in_a_method(member):
                continue
            if member.docstring or name in said:
                members[name] = (member, said.get(name, ""))
    return members | {name: (None, text) for name, text in said.items() if name not in members}


def is_set_in_a_method(member: Any) -> bool:
    """Tell `self.x = 7` in a constructor from a field of the class."""
    return member.labels == {"instance-attribute"} and member.value is not None


def split(docstring: str) -> tuple[list[str], dict[str, list[str]]]:
    """Part a docstring into its description and its sections, each without its indent."""
    description: list[str] = []
    sections: dict[str, list[str]] = {}
    current = description
    for line in docstring.splitlines():
        heading = re.fullmatch(r"(\w+):", line)
        if heading and heading[1] in {*ENTRIES, *PROSE, "Attributes"}:
            current = sections.setdefault(heading[1], [])
        else:
            current.append(line if current is description else line.removeprefix("    "))
    return description, sections


def _entries(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Read `name: what it means`, which may go on in lines that are indented."""
    name, text = "", []
    for line in lines:
        start = re.match(r"(\*{0,2}[\w.]+): ?(.*)", line)
        if start:
            if name:
                yield name, text
            name, text = start[1].lstrip("*"), [start[2]]
        elif line.strip():
            text.append(line.strip())
    if name:
        yield name, text


def as_rst(docstring: str) -> list[str]:
    """Write a docstring in the markup of Sphinx."""
    description, sections = split(docstring)
    lines: list[str] = []
    is_code = False
    for previous, line in zip(["", *description], description, strict=False):
        starts = line.startswith("    ") and not previous.strip()
        if starts and not is_code:
            lines += [".. code-block:: python" if "=" in line else "::", ""]
        is_code = line.startswith("    ") if line.strip() else is_code
        lines.append(line if is_code else literals(line))
    lines.append("")
    for title, body in sections.items():
        if title in ENTRIES:
            for name, text in _entries(body):
                lines += _field(f"{ENTRIES[title]} {name}", text)
        elif title in PROSE:
            lines += _field(PROSE[title], body)
    return [*lines, ""]


def _field(name: str, text: list[str]) -> list[str]:
    first, *rest = literals("\n".join(text).strip()).splitlines() or [""]
    return [f":{name}: {first}", *(f"    {line}" for line in rest)]


def literals(text: str) -> str:
    """Change the quotes of Markdown around code into those that Sphinx knows."""
    return re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", text)


class Library(SphinxDirective):
    """Describe every public name of the modules, in a section for each module."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        root = root_of(self.env)
        sections = []
        for argument in self.arguments[0].split():
            name, _, chosen = argument.partition(":")
            module = find(name, root)
            if module is None or not module.is_module:
                raise self.error(f"library must name modules of ours, got {name!r}")
            self.env.note_dependency(str(module.filepath))
            section = nodes.section(ids=[nodes.make_id(name)], classes=["library"])
            section += nodes.title("", "", nodes.literal(name, name))
            lines = [f".. py:module:: {name}", "", *as_rst(docstring_of(module))]
            for each, found in public_names(name, root).items():
                lines += describe(each, found) if not chosen or each in chosen.split(",") else []
            self.state.nested_parse(StringList(lines, str(module.filepath)), 0, section)
            sections.append(section)
        return sections


def root_of(env: BuildEnvironment) -> Path:
    """Find the folder in which our packages lie."""
    return Path(env.srcdir, env.config.library_root).resolve()


def finish_signature(app: Sphinx, domain: str, kind: str, content: nodes.Element) -> None:
    """Put shapes between the quotes that the source has, and name types in full.

    Of a short name Sphinx would take any entry that ends so.
    """
    if domain != "py" or not isinstance(content.parent, addnodes.desc):
        return
    root = root_of(app.env)
    for signature in content.parent.findall(addnodes.desc_signature):
        for text in list(signature.findall(nodes.Text)):
            quoted = re.sub(r"'([^'\"]*)'", r'"\1"', text)
            if quoted != text:
                text.parent.replace(text, nodes.Text(quoted))
        for reference in signature.findall(addnodes.pending_xref):
            full = _found(reference["reftarget"], signature.get("module"), root)
            if full is not None:
                reference["reftarget"] = reference["full_name"] = full
                reference.attributes.pop("refspecific", None)


def find_type(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, content: nodes.Element
) -> nodes.Element | None:
    """Leave types of torch and Python as they stand. One that is nowhere stays a broken link."""
    if node.get("refdomain") != "py":
        return None
    full = node.get("full_name")
    full = full or _found(node["reftarget"], node.get("py:module"), root_of(env))
    entry = env.get_domain("py").objects.get(full)
    if entry is not None:
        place = (entry.docname, entry.node_id)
        return make_refnode(app.builder, node["refdoc"], *place, content, full)
    return None if full is None else content


def _found(name: str, module: str | None, root: Path) -> str | None:
    """Say what a name stands for where it is used, or None if it stands for nothing there."""
    first, dot, rest = name.partition(".")
    for home in _homes(find(module or "", root)):
        with contextlib.suppress(griffe.NameResolutionError):
            full = home.resolve(first) + dot + rest
            if full.split(".")[0] not in OURS or find(full, root) is not None:
                return full
    return name if hasattr(builtins, name) else None


def _homes(module: Any) -> Iterator[Any]:
    """Give a module, and those of ours that lend it what it offers."""
    if module is not None:
        yield module
        for each in module.exports or ():
            yield module[each].final_target.module


def source_of(app: Sphinx, name: str) -> tuple[str, dict] | None:
    """Give viewcode the source, so that it imports nothing."""
    file = file_of(app, name)
    return None if file is None else _source(name, file)


@cache
def _source(name: str, file: str) -> tuple[str, dict]:
    text = Path(file).read_text(encoding="utf-8")
    return text, ModuleAnalyzer.for_string(text, name).find_tags()


def file_of(app: Sphinx, name: str) -> str | None:
    """Tell viewcode the file of a module, by whose date it knows whether a page is up to date."""
    base = root_of(app.env).joinpath(*name.split("."))
    files = (base.with_suffix(".py"), base / "__init__.py")
    return next((str(file) for file in files if file.is_file()), None)


def where_defined(app: Sphinx, name: str, attribute: str) -> str:
    """Say in which module viewcode finds a name: where we found it, unless it is lent."""
    found = find(f"{name}.{attribute.partition('.')[0]}", root_of(app.env))
    return name if found is None else found.module.path


def setup(app: Sphinx) -> dict:
    for kept in (library, _source):  # from an earlier build of this process
        kept.cache_clear()
    viewcode.collect_pages = write_sources_together
    app.setup_extension("sphinx.ext.viewcode")
    # It imports a module to learn where its file is, and writes a page anew if it cannot.
    viewcode.get_module_filename = file_of
    app.add_config_value("library_root", "../lib", "env")
    app.add_directive("library", Library)
    app.connect("object-description-transform", finish_signature)
    app.connect("missing-reference", find_type)
    app.connect("viewcode-find-source", source_of)
    app.connect("viewcode-follow-imported", where_defined)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
