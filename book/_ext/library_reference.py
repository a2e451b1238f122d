"""Reference pages made of the docstrings and signatures of the library, as they are written.

    ```{eval-rst}
    .. library:: groundup.scores groundup.attention classroom.subjects:Subject
    ```

lists every public name of the modules, or those after the colon. Nothing is imported: the source is
read. What Sphinx's own autodoc shows of an annotation is the object behind it, and of a shape that
is the name of a class made for it; a default of `10_000.0` becomes `10000.0`. And napoleon takes
what stands before the first colon of a `Returns:` for a type, where ours is a sentence.

Types link to where they are described. A name that cannot be found in the module that uses it is
an error, as any broken link is; no list of exceptions is needed for it.
"""

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
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


@dataclass(frozen=True)
class Name:
    """A public name: what it is, how it is written down, and what is said about it."""

    kind: str
    """The directive that describes it: `function`, `class`, `data`, `method`, ..."""
    name: str
    signature: str = ""
    type: str = ""
    value: str = ""
    is_of_class: bool = False
    docstring: str = ""
    bases: tuple[str, ...] = ()
    members: tuple["Name", ...] = ()


@dataclass(frozen=True)
class Module:
    """A module, read and not run."""

    name: str
    path: Path
    tree: ast.Module
    lines: tuple[bytes, ...]
    imports: dict[str, str] = field(default_factory=dict)
    """What each imported name stands for: `Tensor` for `torch.Tensor`."""

    def written(self, node: ast.expr) -> str:
        """Give an expression as it is written, on one line."""
        first, last = node.lineno - 1, node.end_lineno
        lines = list(self.lines[first:last])
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        text = " ".join(b" ".join(lines).decode().split())
        return re.sub(r"(?<=[\[({]) |,? (?=[\])}])", "", text) if len(lines) > 1 else text

    def annotation(self, node: ast.expr | None) -> str:
        """Give a type; one in quotes, because it is defined later, without them."""
        if isinstance(node, ast.BinOp):
            return f"{self.annotation(node.left)} | {self.annotation(node.right)}"
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        return "" if node is None else self.written(node)


@cache
def read_module(name: str, root: Path) -> Module | None:
    """Read one of our modules, or give None if there is none of that name."""
    base = root.joinpath(*name.split("."))
    path = next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()), None)
    if path is None:
        return None
    text = path.read_bytes()
    tree = ast.parse(text)
    imports = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                imports[bound] = alias.name if alias.asname else bound
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return Module(name, path, tree, tuple(text.splitlines()), imports)


def module_names(package: str, root: Path) -> list[str]:
    """List the modules of a package that others may import."""
    found = []
    for path in sorted((root / package).rglob("*.py")):
        *folders, file = path.relative_to(root).with_suffix("").parts
        if not any(part.startswith("_") for part in (*folders, file)) or file == "__init__":
            found.append(".".join(folders if file == "__init__" else (*folders, file)))
    return sorted(found)


def public_names(module: Module, root: Path) -> list[Name]:
    """Read what a module offers: `__all__` if it has one, else all without an underscore."""
    defined = _definitions(module.tree)
    chosen = [name for name in defined if not name.startswith("_")]
    if "__all__" in defined:
        chosen = ast.literal_eval(defined["__all__"][0].value)
    found = []
    for name in chosen:
        if name in defined:
            found.append(_read(name, *defined[name], module, root))
        else:  # another module's, offered here as well
            origin, _, original = module.imports[name].rpartition(".")
            there = read_module(origin, root)
            assert there is not None, f"{module.name} must offer what is ours, got {name}"
            found.append(_read(name, *_definitions(there.tree)[original], there, root))
    return found


@cache
def _definitions(tree: ast.Module | ast.ClassDef) -> dict[str, tuple[Any, str]]:
    """List what is defined, each with the string that stands below it, as a docstring may."""
    found: dict[str, tuple[Any, str]] = {}
    for node, below in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if "setter" not in _decorators(node):
                found[node.name] = (node, ast.get_docstring(node) or "")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            doc = below.value if isinstance(below, ast.Expr) else None
            is_said = isinstance(doc, ast.Constant) and isinstance(doc.value, str)
            for target in targets:
                if isinstance(target, ast.Name):
                    found[target.id] = (node, doc.value if is_said else "")
    return found


def _decorators(node: ast.FunctionDef | ast.ClassDef) -> set[str]:
    """Name the decorators, without what they are called with and where they come from."""
    found = set()
    for each in node.decorator_list:
        called = each.func if isinstance(each, ast.Call) else each
        found.add(called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", ""))
    return found


def _read(name: str, node: Any, docstring: str, module: Module, root: Path) -> Name:
    if isinstance(node, ast.FunctionDef):
        returns = module.annotation(node.returns)
        signature = _signature(node, module) + (f" -> {returns}" if returns else "")
        return Name("function", name, signature, docstring=docstring)
    if isinstance(node, ast.ClassDef):
        return _read_class(name, node, docstring, module, root)
    annotation = module.annotation(getattr(node, "annotation", None))
    value = "" if node.value is None else module.written(node.value)
    return Name("data", name, type=annotation, value=value, docstring=docstring)


def _read_class(name: str, node: ast.ClassDef, doc: str, module: Module, root: Path) -> Name:
    family = list(_family(node, module, root))
    description, sections = split(doc)
    said = dict(_entries(sections.pop("Attributes", [])))
    members: dict[str, Name] = {}
    private = [each for each in family[1:] if each[0].name.startswith("_")]
    for cls, home in reversed([family[0], *private]):
        for each, (definition, text) in _definitions(cls).items():
            if (each.startswith("_") and not each.startswith("__")) or each == "__init__":
                continue
            text = text or "\n".join(said.get(each, ()))
            if text and each != "__post_init__":
                members[each] = _read_member(each, definition, text, home, root)
    for each, text in said.items():
        members.setdefault(each, Name("attribute", each, docstring="\n".join(text)))
    bases = [module.written(base) for base in node.bases]
    return Name(
        "class",
        name,
        _constructor(family, module),
        docstring=_joined(description, sections),
        bases=tuple(base for base in bases if not base.startswith(("_", "object"))),
        members=tuple(members.values()),
    )


def _read_member(name: str, node: Any, docstring: str, module: Module, root: Path) -> Name:
    found = _read(name, node, docstring, module, root)
    if found.kind == "data":
        return replace(found, kind="attribute")
    if not isinstance(node, ast.FunctionDef):
        return found
    decorators = _decorators(node)
    if decorators & {"property", "cached_property"}:
        returns = module.annotation(node.returns)
        return replace(found, kind="property", signature="", type=returns)
    is_of_class = "classmethod" in decorators
    if "staticmethod" not in decorators:
        bare = re.sub(r"^\((self|cls)(: [^,()]+)?(, )?", "(", found.signature)
        found = replace(found, signature=bare)
    return replace(found, kind="method", is_of_class=is_of_class)


def _family(
    node: ast.ClassDef, module: Module, root: Path
) -> Iterator[tuple[ast.ClassDef, Module]]:
    """Give a class and those of ours that it inherits from, nearest first."""
    yield node, module
    for base in node.bases:
        full = full_name(module.written(base), module)
        origin, _, name = full.rpartition(".")
        there = read_module(origin, root) if origin.split(".")[0] in OURS else None
        found = _definitions(there.tree).get(name, (None, ""))[0] if there else None
        if there is not None and isinstance(found, ast.ClassDef):
            yield from _family(found, there, root)


def _constructor(family: list[tuple[ast.ClassDef, Module]], module: Module) -> str:
    """Say how an object of a class is made, or nothing where there is nothing to say."""
    fields: dict[str, str] = {}
    is_keyword_only = False
    for cls, home in family:
        written = {home.written(base) for base in cls.bases}
        own = _definitions(cls)
        if "__init__" in own:
            return re.sub(r"^\(self(, )?", "(", _signature(own["__init__"][0], home))
        if "dataclass" not in _decorators(cls) and "NamedTuple" not in written:
            continue
        is_keyword_only |= any("kw_only=True" in home.written(d) for d in cls.decorator_list)
        here = {}
        for name, (node, _) in own.items():
            if isinstance(node, ast.AnnAssign) and "ClassVar" not in home.written(node.annotation):
                here[name] = _parameter(name, home.annotation(node.annotation), node.value, home)
        fields = here | fields
    if not fields:
        return ""
    return f"({'*, ' if is_keyword_only else ''}{', '.join(filter(None, fields.values()))})"


def _signature(node: ast.FunctionDef, module: Module) -> str:
    """Give the parameters of a function as they are written."""
    given = node.args
    named = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(named) - len(given.defaults)) + given.defaults
    shown = [
        _argument(each, default, module) for each, default in zip(named, defaults, strict=True)
    ]
    if given.posonlyargs:
        shown.insert(len(given.posonlyargs), "/")
    if given.vararg:
        shown.append(f"*{_argument(given.vararg, None, module)}")
    elif given.kwonlyargs:
        shown.append("*")
    by_name = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    shown += [_argument(each, default, module) for each, default in by_name]
    if given.kwarg:
        shown.append(f"**{_argument(given.kwarg, None, module)}")
    return f"({', '.join(shown)})"


def _argument(argument: ast.arg, default: ast.expr | None, module: Module) -> str:
    return _parameter(argument.arg, module.annotation(argument.annotation), default, module)


def _parameter(name: str, annotation: str, default: ast.expr | None, module: Module) -> str:
    """Show one parameter; a field of a dataclass that is no parameter gives nothing."""
    value = "" if default is None else module.written(default)
    if isinstance(default, ast.Call) and getattr(default.func, "id", "") == "field":
        options = {each.arg: each.value for each in default.keywords}
        if "init" in options and module.written(options["init"]) == "False":
            return ""
        made = options.get("default_factory")
        value = module.written(options["default"]) if "default" in options else ""
        value = f"{module.written(made)}()" if isinstance(made, ast.Name) else value
    shown = f"{name}: {annotation}" if annotation else name
    return f"{shown} = {value}" if value else shown


def full_name(name: str, module: Module) -> str:
    """Say what a name stands for in a module: `layers.Norm` for `groundup.layers.Norm`."""
    first, dot, rest = name.partition(".")
    if first in _definitions(module.tree):
        return f"{module.name}.{name}"
    return f"{module.imports[first]}{dot}{rest}" if first in module.imports else name


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


def _joined(description: list[str], sections: dict[str, list[str]]) -> str:
    lines = list(description)
    for title, body in sections.items():
        lines += [f"{title}:", *(f"    {line}" if line else "" for line in body)]
    return "\n".join(lines)


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
        else:
            lines += _field(PROSE[title], body)
    return [*lines, ""]


def _field(name: str, text: list[str]) -> list[str]:
    first, *rest = literals("\n".join(text).strip()).splitlines() or [""]
    return [f":{name}: {first}", *(f"    {line}" for line in rest)]


def literals(text: str) -> str:
    """Turn the quotes of Markdown around code into those that Sphinx knows."""
    return re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", text)


def describe(name: Name) -> list[str]:
    """Write the entry of a name, with those of its members below it."""
    lines = [f".. py:{name.kind}:: {name.name}{name.signature}"]
    lines += [f"    :type: {name.type}"] if name.type else []
    lines += ["    :classmethod:"] if name.is_of_class else []
    is_short = len(name.value) <= LONGEST_VALUE
    lines += [f"    :value: {name.value}"] if name.value and is_short else []
    body = ["", *as_rst(name.docstring)]
    if name.value and not is_short and len(name.value) <= 6 * LONGEST_VALUE:
        body += [".. code-block:: python", "", f"    {name.name} = {name.value}", ""]
    if name.bases:
        body += ["Bases: " + ", ".join(f"``{base}``" for base in name.bases), ""]
    for member in name.members:
        body += describe(member)
    return [*lines, *(f"    {line}" if line else "" for line in body), ""]


class Library(SphinxDirective):
    """Describe every public name of the modules, in a section for each module."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        root = root_of(self.env)
        sections = []
        for argument in self.arguments[0].split():
            name, _, chosen = argument.partition(":")
            module = read_module(name, root)
            if module is None:
                raise self.error(f"library must name modules of ours, got {name!r}")
            self.env.note_dependency(str(module.path))
            section = nodes.section(ids=[nodes.make_id(name)], classes=["library"])
            section += nodes.title("", "", nodes.literal(name, name))
            lines = [f".. py:module:: {name}", ""]
            lines += as_rst(ast.get_docstring(module.tree) or "")
            for each in public_names(module, root):
                lines += describe(each) if not chosen or each.name in chosen.split(",") else []
            self.state.nested_parse(StringList(lines, str(module.path)), 0, section)
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
    for home in _homes(module or "", root):
        full = full_name(name, home)
        is_known = full != name or name.partition(".")[0] in home.imports or hasattr(builtins, name)
        if is_known and _is_there(full, root):
            return full
    return None


def _homes(name: str, root: Path) -> Iterator[Module]:
    """Give a module, and those of ours that lend it what it offers."""
    module = read_module(name, root)
    if module is None:
        return
    yield module
    if "__all__" in _definitions(module.tree):
        for origin in sorted({full.rpartition(".")[0] for full in module.imports.values()}):
            lender = read_module(origin, root) if origin.split(".")[0] in OURS else None
            if lender is not None:
                yield lender


def _is_there(full: str, root: Path) -> bool:
    """Say whether a name of ours is defined where it is said to be; others are taken on trust."""
    origin, _, name = full.rpartition(".")
    if full.split(".")[0] not in OURS:
        return True
    module = read_module(origin, root)
    return module is not None and name in _definitions(module.tree)


def source_of(app: Sphinx, name: str) -> tuple[str, dict] | None:
    """Give viewcode the source, so that it imports nothing."""
    return _source(name, root_of(app.env))


@cache
def _source(name: str, root: Path) -> tuple[str, dict] | None:
    module = read_module(name, root)
    if module is None:
        return None
    text = module.path.read_text(encoding="utf-8")
    return text, ModuleAnalyzer.for_string(text, name).find_tags()


def file_of(app: Sphinx, name: str) -> str | None:
    """Tell viewcode the file of a module, by whose date it knows whether a page is up to date."""
    module = read_module(name, root_of(app.env))
    return None if module is None else str(module.path)


def where_defined(app: Sphinx, name: str, attribute: str) -> str:
    """Say in which module viewcode finds a name: where we found it, unless it is lent."""
    module = read_module(name, root_of(app.env))
    first = attribute.partition(".")[0]
    if module is None or first in _definitions(module.tree) or first not in module.imports:
        return name
    return module.imports[first].rpartition(".")[0]


def setup(app: Sphinx) -> dict:
    for kept in (read_module, _definitions, _source):  # from an earlier build of this process
        kept.cache_clear()
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
