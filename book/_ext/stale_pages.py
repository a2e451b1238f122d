"""Re-execute a page when something it computes with has changed.

The cache of executed pages knows a page by its code cells alone. It would go on showing numbers
that the library no longer gives. So each cached page gets a fingerprint of what else it depends
on: our own modules that its cells import, directly or through one another, the data files that
lie beside them, the files of the project that its cells name, and the versions of Python, torch,
numpy and matplotlib. A page without a fingerprint, or with another one, runs again.

Not seen: imports and paths by computed names, and files elsewhere that our modules open.
"""

import ast
import hashlib
import importlib.util
import itertools
import json
import os
import platform
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from jupyter_cache import get_cache
from jupyter_cache.cache.main import JupyterCacheBase
from myst_nb.core.read import create_nb_reader
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

OUR_PACKAGES = ("groundup", "classroom")
LIBRARIES = ("torch", "numpy", "matplotlib")
RECORD = "fingerprints.json"

logger = logging.getLogger(__name__)


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


def files_behind(names: Iterable[str], roots: Iterable[Path]) -> set[Path]:
    """Follow imports to the files below `roots` that they read, data beside the code included."""
    roots = list(roots)
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
            waiting += imported_names(module.read_text(encoding="utf-8"), package)
    return found


def files_named(source: str, folders: Iterable[Path]) -> set[Path]:
    """Find the files whose paths stand in Python code, as seen from one of `folders`.

    A path may be one string or several joined by `/`, after anything that is computed. A folder
    stands for the files in it.
    """
    folders = [folder.resolve() for folder in folders]
    found: set[Path] = set()
    for path in _paths(ast.parse(source)):
        for folder in folders:
            place = Path(os.path.normpath(folder / path))
            if not any(place.is_relative_to(allowed) for allowed in folders):
                continue
            found |= {place} if place.is_file() else set()
            found |= {file for file in place.glob("*") if _is_data(file)}
    return found


def _paths(tree: ast.AST) -> Iterator[str]:
    """Give what may be a path: text with a `/` or a `.` in it, other than dots alone."""
    inner: set[ast.AST] = set()
    for node in ast.walk(tree):
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


def fingerprint(source: str, roots: Iterable[Path], folders: Iterable[Path] = ()) -> str:
    """Condense all that a page's code depends on, apart from the code itself.

    Args:
        source: The page's code.
        roots: Where our modules lie.
        folders: From where the paths in the code may start.

    """
    versions = {name: version(name) for name in LIBRARIES}
    digest = hashlib.sha256(json.dumps([platform.python_version(), versions]).encode())
    files = files_behind(imported_names(source), roots) | files_named(source, folders)
    for file in sorted(files):
        digest.update(file.name.encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


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
    roots = [Path(app.srcdir)]
    folders = [Path(app.srcdir), Path(app.srcdir).parent]  # the pages, and the project
    for package in OUR_PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            roots.append(Path(spec.origin).parent.parent)
    pages = {}
    for docname in sorted(app.env.found_docs):
        notebook = read_notebook(app.env, docname)
        if notebook is None:
            continue
        _, key = page_cache(app.env).create_hashed_notebook(notebook)
        try:
            pages[docname] = (key, fingerprint(code_of(notebook), dict.fromkeys(roots), folders))
        except SyntaxError:
            pages[docname] = (key, "not Python; executing it will say where")
    return pages


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
    app.connect("env-get-outdated", forget_stale_pages)
    app.connect("env-updated", remember_fingerprints)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
