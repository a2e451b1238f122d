"""Execute the pages side by side, before Sphinx reads them one after the other.

Sphinx then finds their results in the cache. Each page computes on one thread: two pages share
two cores, and sums come out the same whatever the machine. A page that fails here is left to
Sphinx, which executes it again and reports the error where readers of build logs expect it.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.executors.utils import single_nb_execution
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from stale_pages import page_cache, read_notebook
from traitlets.config import Config

# Kernels and the build talk over the loopback network; without this each one warns that it does.
KERNELS = Config({"KernelManager": {"transport_encryption": "auto"}})

logger = logging.getLogger(__name__)


def compute_on_one_thread(app: Sphinx) -> None:
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, "1")


def execute_together(app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
    """Execute the pages that the cache does not know."""
    if env.mystnb_config.execution_mode != "cache":
        return
    cache = page_cache(env)
    cached = {entry.hashkey for entry in cache.list_cache_records()}
    waiting: dict[str, nbformat.NotebookNode] = {}
    for docname in sorted(docnames):
        notebook = read_notebook(env, docname)
        if notebook is None or not any(cell.cell_type == "code" for cell in notebook.cells):
            continue
        if cache.create_hashed_notebook(notebook)[1] not in cached:
            waiting[docname] = notebook

    def execute(docname: str) -> tuple[str, object]:
        try:
            result = single_nb_execution(
                waiting[docname],
                cwd=str(Path(env.doc2path(docname)).parent.resolve()),
                timeout=env.mystnb_config.execution_timeout,
                allow_errors=False,
                config=KERNELS,
                shutdown_kernel="immediate",  # nothing is left to save: a second less per page
            )
        except Exception as error:  # a kernel that died: Sphinx will meet it again, and say so
            logger.info("%s: %s", docname, error)
            return docname, None
        return docname, None if result.err else result

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for docname, result in pool.map(execute, waiting):
            if result is None:
                continue
            logger.info("executed %s in %.1f s", docname, result.time)
            data = {"execution_seconds": result.time}
            bundle = CacheBundleIn(result.nb, env.doc2path(docname), data=data)
            cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)


def setup(app: Sphinx) -> dict:
    app.connect("builder-inited", compute_on_one_thread)
    app.connect("env-before-read-docs", execute_together)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
