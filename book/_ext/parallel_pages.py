"""Execute the pages side by side, while Sphinx reads one after the other.

Sphinx finds the results of a page in the cache when it comes to it. The longest pages are executed
first, so that no core is left with one at the end, and read in the same order, after those without
code. Kernels are forked from a warm process (`warm_kernels`). Each page computes on one thread: two
pages share two cores, and sums come out the same whatever the machine. A page that fails here is
left to Sphinx, which executes it again and reports the error where readers of build logs expect it.

In the end pages are written side by side, too, and those of the library's source by two processes.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import nbformat
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.executors.utils import ExecutionResult, single_nb_execution
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext import viewcode
from sphinx.util import logging
from sphinx.util.parallel import ParallelTasks
from stale_pages import page_cache, read_notebook
from warm_kernels import WarmKernels

from classroom.student.connections import own_connection

FEW = 5
"""Pages that are written as fast one after the other."""
A_HEAP = 10
"""Pages that one process writes."""

_source_pages = viewcode.collect_pages
logger = logging.getLogger(__name__)


def warm_up(app: Sphinx) -> None:
    """Have torch imported while Sphinx finds out whether any page must be executed."""
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    app.warm_kernels = WarmKernels()


def execute(notebook: nbformat.NotebookNode, cwd: str, timeout: int | None) -> ExecutionResult:
    """Execute a notebook in place, in a kernel of its own."""
    with own_connection() as config:
        return single_nb_execution(
            notebook,
            cwd=cwd,
            timeout=timeout,
            allow_errors=False,
            config=config,
            shutdown_kernel="immediate",  # nothing is left to save: a second less per page
        )


def amount_of_code(notebook: nbformat.NotebookNode) -> int:
    """Guess which page takes longest."""
    return sum(len(cell.source) for cell in notebook.cells if cell.cell_type == "code")


class Pages:
    """Pages that are executed while Sphinx reads others."""

    def __init__(
        self,
        env: BuildEnvironment,
        waiting: dict[str, nbformat.NotebookNode],
        kernels: WarmKernels,
    ) -> None:
        self._env = env
        self._cache = page_cache(env)
        self._kernels = ExitStack()
        self._kernels.enter_context(kernels)
        # Two more than there are cores: while a kernel starts or ends, nobody computes there.
        self._pool = ThreadPoolExecutor(max_workers=2 + (os.cpu_count() or 1))
        self._results = {
            docname: self._pool.submit(self._execute, docname, waiting[docname])
            for docname in sorted(waiting, key=lambda name: -amount_of_code(waiting[name]))
        }

    @property
    def in_turn(self) -> list[str]:
        """Name them in the order in which they are executed."""
        return list(self._results)

    def wait_for(self, docname: str) -> None:
        """Have a page's results in the cache, if it is one of these and did not fail."""
        if docname not in self._results:
            return
        try:
            result = self._results[docname].result()
        except BaseException:  # Ctrl-C: nobody wants to wait for the others
            self.end()
            raise
        if result is None:
            return
        logger.info("executed %s in %.1f s", docname, result.time)
        data = {"execution_seconds": result.time}
        bundle = CacheBundleIn(result.nb, self._env.doc2path(docname), data=data)
        self._cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)

    def end(self) -> None:
        """Begin no other page; kernels that still run end with the process they come from."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._kernels.close()

    def _execute(self, docname: str, notebook: nbformat.NotebookNode) -> ExecutionResult | None:
        try:
            cwd = str(Path(self._env.doc2path(docname)).parent.resolve())
            result = execute(notebook, cwd, self._env.mystnb_config.execution_timeout)
        except Exception as error:  # a kernel that died: Sphinx will meet it again, and say so
            logger.info("%s: %s", docname, error)
            return None
        return None if result.err else result


def execute_together(app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
    """Begin to execute the pages that the cache does not know, and have them read last."""
    app.pages_read = len(docnames)
    if env.mystnb_config.execution_mode != "cache":
        return
    cache = page_cache(env)
    cached = {entry.hashkey for entry in cache.list_cache_records()}
    waiting: dict[str, nbformat.NotebookNode] = {}
    for docname in docnames:
        notebook = read_notebook(env, docname)
        if notebook is None or not any(cell.cell_type == "code" for cell in notebook.cells):
            continue
        if cache.create_hashed_notebook(notebook)[1] not in cached:
            waiting[docname] = notebook
    if waiting:
        app.pages_in_hand = pages = Pages(env, waiting, app.warm_kernels)
        docnames[:] = [name for name in docnames if name not in waiting] + pages.in_turn


def wait_for_page(app: Sphinx, docname: str, source: list[str]) -> None:
    """Let Sphinx read a page only when its results are there."""
    pages = getattr(app, "pages_in_hand", None)
    if pages is not None:
        pages.wait_for(docname)


def end_kernels(app: Sphinx, *about: object) -> None:
    """Leave no process behind, however the build ends."""
    pages = getattr(app, "pages_in_hand", None)
    if pages is not None:
        pages.end()
    app.warm_kernels.end()


def write_together(app: Sphinx, env: BuildEnvironment) -> None:
    """Have many pages written side by side, a heap of them as soon as its links are resolved.

    Sphinx makes as many heaps as it may start processes. Each is a fork of this process, whose
    memory is large: with one for each page, Sphinx took 99 instead of 68 seconds of CPU time.
    """
    if sys.platform == "linux" and app.pages_read > FEW:
        app.parallel = 1 + max(2, app.pages_read // A_HEAP)


def write_sources_together(app: Sphinx) -> list[tuple[str, dict, str]]:
    """Write the pages of source code two at a time, and leave none of them to Sphinx."""
    pages = list(_source_pages(app))
    if app.parallel == 1:
        return pages

    def write(half: list[tuple[str, dict, str]]) -> None:
        for page in half:
            app.builder.handle_page(*page)

    tasks = ParallelTasks(2)
    for half in (pages[::2], pages[1::2]):
        tasks.add_task(write, half)
    tasks.join()
    return []


def setup(app: Sphinx) -> dict:
    app.connect("builder-inited", warm_up)
    app.connect("env-before-read-docs", execute_together)
    app.connect("source-read", wait_for_page)
    app.connect("env-updated", end_kernels)
    app.connect("env-updated", write_together)
    app.connect("build-finished", end_kernels)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
