"""How large the project is, room by room, and who imports whom: `make structure`.

    python tests/structure/structure.py

prints tables in Markdown. A line of code is one that is neither blank, nor a comment, nor part of a
docstring or of another string that stands by itself. A room is a sub-package; a module that lies in
none is a room of its own. An arrow goes from a room to one that it imports, and a circle is a group
of rooms, or of modules, each of which imports all others, directly or through one another.
"""

import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
PACKAGES = ("groundup", "classroom")
KINDS = ("files", "code lines", "all lines")
FOLDERS = ("lib", "book", "solutions", "exercises", "tests")


def code_lines(text: str) -> int:
    """Count the lines of code in a module."""
    lines = enumerate(text.splitlines(), 1)
    code = {number for number, line in lines if line.strip() and not line.lstrip().startswith("#")}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                code -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(code)


def sizes(files: Iterable[Path], group: Callable[[Path], str]) -> dict[str, Counter[str]]:
    """Count files, lines of code and all lines of each group of files."""
    found: dict[str, Counter[str]] = {}
    for file in files:
        text = file.read_text(encoding="utf-8")
        counted = (1, code_lines(text), len(text.splitlines()))
        found.setdefault(group(file), Counter()).update(dict(zip(KINDS, counted, strict=True)))
    return dict(sorted(found.items()))


def modules_below(folder: Path) -> Iterator[Path]:
    """Find the modules below a folder, without what a build or a hidden folder holds."""
    for file in sorted(folder.rglob("*.py")):
        inner = file.relative_to(folder).parts
        if not any(part.startswith((".", "_build")) for part in inner):
            yield file


def graphs_of(package: str) -> tuple[grimp.ImportGraph, grimp.ImportGraph]:
    """Build two graphs of imports: between the modules of a package, and between its rooms."""
    modules = grimp.build_graph(package, cache_dir=None)
    rooms = grimp.ImportGraph()
    for module in modules.modules:
        rooms.add_module(room_of(module, modules))
    for importer in modules.modules:
        for imported in modules.find_modules_directly_imported_by(importer):
            ends = room_of(importer, modules), room_of(imported, modules)
            if ends[0] != ends[1]:
                rooms.add_import(importer=ends[0], imported=ends[1])
    return modules, rooms


def room_of(module: str, modules: grimp.ImportGraph) -> str:
    """Name the room of a module: the sub-package that holds it, or that it is."""
    above = module.rpartition(".")[0]
    return module if modules.find_children(module) or "." not in above else above


def circles(graph: grimp.ImportGraph) -> list[list[str]]:
    """List the groups whose members import each other, directly or through one another."""
    found = set()
    for each in graph.modules:
        around = graph.find_upstream_modules(each) & graph.find_downstream_modules(each)
        if around:
            found.add(tuple(sorted(around | {each})))
    return [list(group) for group in sorted(found)]


def table(title: str, sizes: dict[str, Counter[str]], **columns: dict[str, str]) -> str:
    """Write a table in Markdown: the sizes, their sum below, and more columns beside them."""
    rows = [[title, *KINDS, *columns], ["---", *["---:"] * len(KINDS), *["---"] * len(columns)]]
    for name, size in (sizes | {"**sum**": sum(sizes.values(), Counter())}).items():
        more = (column.get(name, "") for column in columns.values())
        rows.append([name, *(f"{size[kind]:,}" for kind in KINDS), *more])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def describe_package(package: str, lib: Path) -> str:
    """Show the rooms of a package with what they import, and count arrows and circles."""
    modules, rooms = graphs_of(package)

    def room(file: Path) -> str:
        parts = file.relative_to(lib).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        while name not in modules.modules:  # a text that the package holds, not a module
            name = name.rpartition(".")[0]
        return room_of(name, modules)

    imports = {
        each: ", ".join(sorted(rooms.find_modules_directly_imported_by(each)))
        for each in rooms.modules
    }
    shown = [
        table(f"rooms of {package}", sizes(modules_below(lib / package), room), imports=imports)
    ]
    shown.append(f"{len(rooms.modules)} rooms, {rooms.count_imports()} arrows.")
    for kind, graph in (("rooms", rooms), ("modules", modules)):
        found = circles(graph)
        shown.append(f"Circles of {kind}: {len(found)}.")
        shown += [f"- {', '.join(circle)}" for circle in found]
    return "\n".join(shown) + "\n"


def describe(root: Path) -> str:
    """Describe the folders of a project, and the packages in its folder `lib`."""

    def folder(file: Path) -> str:
        return "/".join(file.relative_to(root).parent.parts[:2])

    shown = [table(each, sizes(modules_below(root / each), folder)) for each in FOLDERS]
    return "\n".join([*shown, *(describe_package(each, root / "lib") for each in PACKAGES)])


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "lib"))  # where grimp looks for the packages
    print(describe(ROOT))
