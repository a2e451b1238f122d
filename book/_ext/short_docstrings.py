"""Print what the library consists of with the first paragraph of each docstring.

A reader wants to see what a function does; the page has said why. What each
argument may be, what is raised and where the idea comes from fill as many lines as the code, and
stand in the library's reference. So `literalinclude` with `:pyobject:` leaves them out.
"""

import ast
from textwrap import dedent

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.directives.code import LiteralInclude


def with_short_docstrings(code: str) -> str:
    """Keep of every docstring its first paragraph."""
    lines = code.splitlines()
    parts = ast.walk(ast.parse(dedent(code)))
    documented = [part for part in parts if isinstance(part, ast.FunctionDef | ast.ClassDef)]
    for node in sorted(documented, key=lambda node: -node.lineno):
        text = ast.get_docstring(node, clean=False) or ""
        first, _, more = text.partition("\n\n")
        if more:
            docstring = node.body[0]
            end = docstring.lineno + first.count("\n")
            lines[end - 1 : docstring.end_lineno] = [lines[end - 1] + '"""']
    return "\n".join(lines) + "\n"


class ShortDocstrings(LiteralInclude):
    """Includes a file, or a function of it, with little said about the function."""

    def run(self) -> list[nodes.Node]:
        found = super().run()
        if "pyobject" in self.options and "lines" not in self.options:
            for block in (each for node in found for each in node.findall(nodes.literal_block)):
                block.rawsource = with_short_docstrings(block.astext())
                block.children[:] = []
                block += nodes.Text(block.rawsource)
        return found


def setup(app: Sphinx) -> dict:
    app.add_directive("literalinclude", ShortDocstrings, override=True)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
