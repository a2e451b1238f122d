"""Put the pieces in which a cell printed back together as they were printed.

A kernel sends what is printed every fifth of a second, wherever a line happens to be, and
`nb_merge_streams` joins such pieces as if each ended with a line: on a busy machine a table got an
empty row, or a row in two halves. Joined before that, there is one piece and nothing to guess.
"""

from myst_nb.core import render
from nbformat import NotebookNode
from sphinx.application import Sphinx

_merge = render.coalesce_streams


def join_streams(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Join the pieces of each stream, as printed, at the place of the first; then merge as ever."""
    joined: list[NotebookNode] = []
    streams: dict[str, NotebookNode] = {}
    for output in outputs:
        name = output.get("name") if output["output_type"] == "stream" else None
        if name in streams:
            streams[name]["text"] += output["text"]
            continue
        if name is not None:
            output = streams[name] = NotebookNode(output)
        joined.append(output)
    return _merge(joined)


def setup(app: Sphinx) -> dict:
    render.coalesce_streams = join_streams
    return {"parallel_read_safe": True, "parallel_write_safe": True}
