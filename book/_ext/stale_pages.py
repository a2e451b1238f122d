"""Re-execute a page when something it computes with has changed.

The cache of executed pages knows a page by its code cells alone. It would go on showing numbers
that the library no longer gives. So each cached page gets a fingerprint of what else it depends
on: our own modules that its cells import, directly or through one another, the data files that
lie beside them, the files of the project that its cells name, and the versions of Python, torch,
numpy and matplotlib. A page without a fingerprint, or with another one, runs again.

A page that sees of a file only what a function makes of it says so in `seen_through`, and does not
run again for the rest: how long chapters take to read does not change with each of their words.

Not seen: imports and paths by computed names, and files elsewhere that our modules open.
"""

import ast
import contextlib
import functools
import hashlib
import itertools
import json
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from jupyter_cache import get_cache
from jupyter_cache.cache.main import JupyterCacheBase
from myst_nb.core.read import create_nb_reader
from remembered import package_folders
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import import_object, logging

LIBRARIES = ("torch", "numpy", "matplotlib")
RECORD, MEMORY = "fingerprints.json", "texts.json"
SELF = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
"""What this module finds in a text holds as long as it reads texts the same way."""
Found = TypeVar("Found")

logger = logging.getLogger(__name__)


class Memory:
    """What was found out about texts, by what they say; kept in a file from build to build."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._before: dict[str, Any] = {}
        # Not there, or cut off because a build was killed: then all is found out again.
        with contextlib.suppress(FileNotFoundError, ValueError):
            self._before = json.loads(file.read_text(encoding="utf-8")) if file else {}
        self._used: dict[str, Any] = {}

    def recall(self, about: str, text: str, find: Callable[[], Found]) -> Found:
        """Give what `find` finds in a text, as JSON knows it, or has found in it before."""
        key = hashlib.sha256("\n".join((SELF, about, text)).encode()).hexdigest()
        if key not in self._used:
            self._used[key] = self._before[key] if key in self._before else find()
        return self._used[key]

    def keep(self) -> None:
        """Write down what was asked for; the rest is about texts that are gone."""
        if self._file is not None and self._used != self._before:
            self._file.write_text(json.dumps(self._used), encoding="utf-8")


def imported_names(source: str, package: str = "") -> set[str]:
    """Name every module that Python code may import.

    `from a import b` gives both `a` and `a.b`, since only the file system tells whether `b` is
    a module. `package` is where relative imports start.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            names |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return names


def files_behind(
    names: Iterable[str], roots: Iterable[Path], memory: Memory | None = None
) -> set[Path]:
    """Follow imports to the files below `roots` that they read, data beside the code included."""
    roots, memory = list(roots), memory or Memory()
    found: set[Path] = set()
    waiting = list(names)
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        waiting += [name.rpartition(".")[0]] if "." in name else []
        for root in roots:
            base = root.joinpath(*name.split("."))
            if base.with_suffix(".py").is_file():
                module, package = base.with_suffix(".py"), name.rpartition(".")[0]
            elif (base / "__init__.py").is_file():
                module, package = base / "__init__.py", name
                found |= _data_of(base)
            else:
                continue
            found.add(module)
            text = module.read_text(encoding="utf-8")
            find = functools.partial(_sorted_imports, text, package)
            waiting += memory.recall(f"imports {package}", text, find)
    return found


def _sorted_imports(source: str, package: str) -> list[str]:
    return sorted(imported_names(source, package))


def files_at(paths: Iterable[str], folders: Iterable[Path]) -> set[Path]:
    """Find the files that paths lead to, from one of `folders`; a folder stands for its files."""
    folders = [folder.resolve() for folder in folders]
    found: set[Path] = set()
    for path in paths:
        for folder in folders:
            place = Path(os.path.normpath(folder / path))
            if not any(place.is_relative_to(allowed) for allowed in folders):
                continue
            found |= {place} if place.is_file() else set()
            found |= {file for file in place.glob("*") if _is_data(file)}
    return found


def named_paths(source: str) -> Iterator[str]:
    """Give what may be a path in Python code: text with a `/` or a `.`, other than dots alone.

    A path may be one string or several joined by `/`, after anything that is computed.
    """
    inner: set[ast.AST] = set()
    for node in ast.walk(ast.parse(source)):
        if node in inner:
            continue
        parts: list[str | None] = []
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            inner |= {node.left, node.right}
            parts, node = [_text(node.right), *parts], node.left
        parts = [_text(node), *parts]
        for is_known, run in itertools.groupby(parts, key=lambda part: part is not None):
            path = "/".join(run) if is_known else ""
            if {"/", "."} & set(path) and path.strip("./"):
                yield path


def _text(node: ast.AST) -> str | None:
    """Read a string, also where it is made a path, or give None for what is computed."""
    if isinstance(node, ast.Call) and len(node.args) == 1:
        node = node.args[0]
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        return None
    return node.value if len(node.value) < 200 and node.value.isprintable() else None


def fingerprint(
    names: Iterable[str],
    paths: Iterable[str],
    roots: Iterable[Path],
    folders: Iterable[Path],
    memory: Memory | None = None,
    seen: Mapping[str, Callable[[str], object]] | None = None,
) -> str:
    """Condense all that a page's code depends on, apart from the code itself.

    Args:
        names: The modules that it imports.
        paths: The paths that it names.
        roots: Where our modules lie.
        folders: From where the paths may start.
        memory: Of what our modules import.
        seen: Functions through which alone the page sees files, by the ending of their names.

    """

    def content(file: Path) -> bytes:
        if seen is None or file.suffix not in seen:
            return file.read_bytes()
        return repr(seen[file.suffix](file.read_text(encoding="utf-8"))).encode()

    versions = {name: version(name) for name in LIBRARIES}
    files = files_behind(names, roots, memory) | files_at(paths, folders)
    # In an order that is the same wherever the project lies.
    known = sorted((file.name, hashlib.sha256(content(file)).hexdigest()) for file in files)
    behind = json.dumps([platform.python_version(), versions, known])
    return hashlib.sha256(behind.encode()).hexdigest()


def code_of(notebook: nbformat.NotebookNode) -> str:
    """Join the code cells as plain Python, with what only a notebook understands translated."""
    to_python = TransformerManager().transform_cell
    return "\n".join(to_python(c.source) for c in notebook.cells if c.cell_type == "code")


def read_notebook(env: BuildEnvironment, docname: str) -> nbformat.NotebookNode | None:
    """Read a page as the notebook that the build will execute, or None if it has no code."""
    path = env.doc2path(docname)
    text = Path(path).read_text(encoding="utf-8")
    reader = create_nb_reader(path, env.myst_config, env.mystnb_config, text)
    return None if reader is None else reader.read(text)


def page_cache(env: BuildEnvironment) -> JupyterCacheBase:
    return get_cache(env.mystnb_config.execution_cache_path)


def fingerprints_of_pages(app: Sphinx) -> dict[str, tuple[str, str]]:
    """Give for each page with code its key in the cache and its fingerprint as of now."""
    folders = [Path(app.srcdir), Path(app.srcdir).parent]  # the pages, and the project
    roots = dict.fromkeys([Path(app.srcdir), *(each.parent for each in package_folders())])
    memory = Memory(Path(page_cache(app.env).path, MEMORY))
    pages = {}
    for docname in sorted(app.env.found_docs):
        text = Path(app.env.doc2path(docname)).read_text(encoding="utf-8")
        page = memory.recall(f"page {docname}", text, functools.partial(_about, app.env, docname))
        if page is None:
            continue
        now = "not Python; executing it will say where"
        if page["imports"] is not None:
            views = app.config.seen_through.get(docname, {})
            seen = {ending: import_object(place) for ending, place in views.items()}
            now = fingerprint(page["imports"], page["paths"], roots, folders, memory, seen)
        pages[docname] = (page["key"], now)
    memory.keep()
    return pages


def _about(env: BuildEnvironment, docname: str) -> dict[str, Any] | None:
    """Find out what a page's code is known by, imports and names, or None if it has none."""
    notebook = read_notebook(env, docname)
    if notebook is None:
        return None
    _, key = page_cache(env).create_hashed_notebook(notebook)
    source = code_of(notebook)
    try:
        imports, paths = sorted(imported_names(source)), sorted(named_paths(source))
    except SyntaxError:
        imports = paths = None
    return {"key": key, "imports": imports, "paths": paths}


def forget_stale_pages(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Drop from the cache what no longer holds, and have those pages read again.

    So is a page that is not in the cache: it failed last time, and would not fail again unread.
    """
    if env.mystnb_config.execution_mode != "cache":
        return []
    cache = page_cache(env)
    known = _read_record(cache)
    app.page_fingerprints = fingerprints_of_pages(app)
    cached = {entry.hashkey: entry.pk for entry in cache.list_cache_records()}
    stale, missing = [], []
    for docname, (key, now) in app.page_fingerprints.items():
        if key not in cached:
            missing.append(docname)
        elif known.get(key) != now:
            cache.remove_cache(cached.pop(key))
            stale.append(docname)
    if stale:
        logger.info("computed with something that changed since: %s", ", ".join(stale))
    return stale + missing


def remember_fingerprints(app: Sphinx, env: BuildEnvironment) -> None:
    """Record what each page in the cache was computed with."""
    pages = getattr(app, "page_fingerprints", None)
    if pages is None:
        return
    cache = page_cache(env)
    cached = {entry.hashkey for entry in cache.list_cache_records()}
    known = _read_record(cache) | dict(pages.values())
    kept = {key: known[key] for key in sorted(known) if key in cached}
    Path(cache.path, RECORD).write_text(json.dumps(kept, indent=1), encoding="utf-8")


def _read_record(cache: JupyterCacheBase) -> dict[str, str]:
    path = Path(cache.path, RECORD)
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _data_of(package: Path) -> set[Path]:
    """Find the data files of a package, without those of packages inside it."""
    found: set[Path] = set()
    for path in package.iterdir():
        if path.is_dir() and not (path / "__init__.py").is_file():
            found |= _data_of(path)
        elif _is_data(path):
            found.add(path)
    return found


def _is_data(path: Path) -> bool:
    return path.is_file() and path.suffix not in {".py", ".pyc"}


def setup(app: Sphinx) -> dict:
    app.add_config_value("seen_through", {}, "env")
    app.connect("env-get-outdated", forget_stale_pages)
    app.connect("env-updated", remember_fingerprints)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
