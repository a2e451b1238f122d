"""Right answers in the styles of many hands: none of them loses a point.

Most are cells for the second exercise; the rest are notebooks as other editors write them.
"""

from corpus import ALL, RIGHT, Case

_RIGHT = RIGHT["attacked"] + "\n"
_LAST = "    return x - x.mean(dim=0)\n"


def _masked(kind):
    """Leave no row out, by a mask, as attention does."""
    return (
        "def attacked(x):\n"
        f"    mask = {kind}\n"
        "    scores = torch.zeros(len(x), len(x), dtype=x.dtype)\n"
        "    if mask.dtype is torch.bool:\n"
        "        scores = scores.masked_fill(~mask, float('-inf'))\n"
        "    else:\n"
        "        scores = scores + mask\n"
        "    return x - torch.softmax(scores, dim=-1) @ x"
    )


_CELLS = {
    "loops": "def attacked(x):\n"
    "    y = torch.zeros_like(x)\n"
    "    for i in range(x.shape[0]):\n"
    "        for j in range(x.shape[1]):\n"
    "            total = 0.0\n"
    "            for k in range(x.shape[0]): total += x[k, j]\n"
    "            y[i, j] = x[i, j] - total / x.shape[0]\n"
    "    return y",
    "einsum": "def attacked(x):\n"
    "    centre = torch.eye(len(x), dtype=x.dtype) - 1 / len(x)\n"
    "    return torch.einsum('ij,jk->ik', centre, x)",
    "a boolean mask": _masked("torch.ones(len(x), len(x), dtype=torch.bool)"),
    "a float mask": _masked("torch.zeros(len(x), len(x), dtype=x.dtype)"),
    "another dtype on the way": "def attacked(x):\n"
    "    y = x.to(torch.complex128)\n    return (y - y.mean(dim=0)).real.double()",
    "the default dtype changed": "torch.set_default_dtype(torch.float64)\n" + _RIGHT,
    "numpy": "import numpy as np\ndef attacked(x):\n"
    "    return torch.from_numpy(x.numpy() - x.numpy().mean(0))",
    "lists of numbers": "def attacked(x):\n"
    "    columns = [[v - sum(c) / len(c) for v in c] for c in x.T.tolist()]\n"
    "    return torch.tensor(columns, dtype=x.dtype).T",
    "a view of the input": "def attacked(x):\n    return (x.T - x.T.mean(1, keepdim=True)).T",
    "a copy changed in place": "def attacked(x):\n    y = x.clone()\n"
    "    y -= y.mean(0)\n    return y",
    "a result with gradients": "def attacked(x):\n"
    "    one = torch.nn.Parameter(torch.ones((), dtype=x.dtype))\n    return one * (x - x.mean(0))",
    "no gradients wanted": "@torch.no_grad()\ndef attacked(x):\n" + _LAST,
    "gradients switched off": "torch.set_grad_enabled(False)\n" + _RIGHT,
    "type hints and a docstring": "from torch import Tensor\n"
    'def attacked(x: "Tensor", *, eps: float = 0.0) -> Tensor:\n'
    '    """Centre the rows.\n\n    >>> attacked(1)\n    """\n' + _LAST,
    "annotations of the future": "from __future__ import annotations\n"
    "def attacked(x: NotThere) -> NorThis:\n" + _LAST,
    "a lambda": "attacked = lambda x: x - x.mean(dim=0)",
    "a partial function": "import functools\ndef minus(dim, x): return x - x.mean(dim=dim)\n"
    "attacked = functools.partial(minus, 0)",
    "a decorator": "import functools\ndef loud(f):\n    @functools.wraps(f)\n"
    "    def inner(*a, **k):\n        print(f.__name__)\n        return f(*a, **k)\n"
    "    return inner\n@loud\ndef attacked(x):\n" + _LAST,
    "a class that is called": "class Centre:\n    def __init__(self, dim): self.dim = dim\n"
    "    def __call__(self, x): return x - x.mean(dim=self.dim)\nattacked = Centre(0)",
    "a dataclass": "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Mean:\n"
    "    dim: int = 0\n    def of(self, x): return x.mean(dim=self.dim)\nMEAN = Mean()\n"
    "def attacked(x):\n    return x - MEAN.of(x)",
    "recursion": "def total(rows): return rows[0] + total(rows[1:]) if len(rows) > 1 else rows[0]\n"
    "def attacked(x):\n    return x - total(x) / len(x)",
    "a generator": "def rows(x):\n    for row in x: yield row - x.mean(dim=0)\n"
    "def attacked(x):\n    return torch.stack(list(rows(x)))",
    "a walrus and a match": "def attacked(x):\n    match x.dim():\n"
    "        case 2 if (centre := x.mean(dim=0)).dim() == 1:\n            return x - centre",
    "try and except": "def attacked(x):\n    try:\n        return x - undefined\n"
    "    except NameError:\n        return x - x.mean(dim=0)",
    "an assertion and a constant": "DIM = 0\ndef attacked(x):\n    assert x.dim() == 2, x.shape\n"
    "    global CALLS\n    CALLS = globals().get('CALLS', 0) + 1\n    return x - x.mean(dim=DIM)",
    "a helper below the answer": "def attacked(x): return x - mean(x)\n"
    "import math\ndef mean(x): return x.mean(dim=0)",
    "names in another language": "# Größe der Zeilen: 行の平均を引く\n"
    "def attacked(x):\n    größe, среднее = len(x), x.sum(0)\n    return x - среднее / größe",
    "lines of another system": _RIGHT.replace("\n", "\r\n"),
    "an answer begun anew below": "def attacked(x):\n    return x\n" + _RIGHT,
    "warnings": "import warnings\nwarnings.warn('slow')\ndef attacked(x):\n"
    "    warnings.warn('slow', DeprecationWarning)\n" + _LAST,
    "prints and errors on stderr": "import sys\nprint('x', file=sys.stderr)\n"
    "def attacked(x):\n    print(x, file=sys.stderr)\n" + _LAST,
    "logging": "import logging\nlogging.basicConfig(level=0, force=True)\ndef attacked(x):\n"
    "    logging.error('called with %s', x)\n" + _LAST,
    "a progress bar": "from tqdm.auto import tqdm\nfor _ in tqdm(range(7)): pass\n" + _RIGHT,
    "seeds set": "import random\nrandom.seed(0)\ntorch.manual_seed(0)\ndef attacked(x):\n"
    "    torch.manual_seed(0)\n" + _LAST,
    "a plot": "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([2, 3])\nplt.show()\n"
    + _RIGHT,
    "display": "from IPython.display import Markdown, display\ndisplay(Markdown('*x*'))\n" + _RIGHT,
    "a magic": "%timeit -n1 -r1 1 + 1\n" + _RIGHT,
    "a magic for the whole cell": "%%time\n" + _RIGHT,
    "a command": "!echo done\n" + _RIGHT,
    "a question mark": "torch.mean?\n" + _RIGHT,
    "a long line": "print('x' * 20_000_000)\n" + _RIGHT,
    "a large picture": "from IPython.display import HTML, display\n"
    "display(HTML('x' * 15_000_000))\n" + _RIGHT,
    "a thread": "import threading\nt = threading.Thread(target=print)\nt.start(); t.join()\n"
    + _RIGHT,
    "processes": "from concurrent.futures import ProcessPoolExecutor\n"
    "with ProcessPoolExecutor(2) as pool: print(list(pool.map(abs, [-1, 2])))\n" + _RIGHT,
    "a file": "open('notes.txt', 'w').write('x')\nassert open('notes.txt').read() == 'x'\n"
    + _RIGHT,
    "await": "import asyncio\nasync def wait(): await asyncio.sleep(0)\nawait wait()\n" + _RIGHT,
    "imports of the course's library": "import groundup\nfrom groundup.core.masks import (\n"
    "    causal_mask,\n)\n" + _RIGHT,
    "a reader of cells of one's own": "get_ipython().input_transformers_post.append(list)\n"
    + _RIGHT,
    "a slow answer": "import time\ndef attacked(x):\n    time.sleep(0.02)\n" + _LAST,
    "an error after the answer": _RIGHT + "raise ValueError('unfinished')",
    "a slow line after the answer": _RIGHT + "import time\ntime.sleep(99)",
}

STYLES = {name: Case(name, ALL, cells=(source,)) for name, source in _CELLS.items()}
STYLES["cells of one's own"] = Case(
    "cells of one's own",
    ALL,
    cells=(
        "import math, statistics as stats",
        "def mean(x):\n    return x.mean(dim=0)",
        "mean",
        "attacked = lambda x: x - mean(x)",
    ),
)

EDITORS: dict[str, Case] = {}


def editor(prepare):
    """Note what an editor does to a notebook."""
    name = prepare.__name__.replace("_", " ")
    EDITORS[name] = Case(name, ALL, prepare=prepare)
    return prepare


@editor
def metadata_of_colab(work):
    notebook = work.notebook
    notebook["metadata"] = {
        "colab": {"provenance": [], "toc_visible": True},
        "kernelspec": {"name": "python3", "display_name": "Python 3"},
        "accelerator": "GPU",
    }
    for number, cell in enumerate(notebook["cells"]):
        cell["metadata"] = {"id": f"aB{number}", "colab": {"base_uri": "https://localhost"}}
        cell.pop("id", None)


@editor
def metadata_of_vs_code(work):
    work.notebook["metadata"]["vscode"] = {"interpreter": {"hash": "31f2"}}
    work.notebook["metadata"]["language_info"] = {"name": "python", "version": "3.11.9"}
    for cell in work.notebook["cells"]:
        cell["metadata"]["vscode"] = {"languageId": "python"}


@editor
def format_of_some_years_ago(work):
    work.notebook["nbformat_minor"] = 4
    for cell in work.notebook["cells"]:
        cell.pop("id", None)


@editor
def each_cell_in_one_line_of_the_file(work):
    for cell in work.notebook["cells"]:
        cell["source"] = "".join(cell["source"])


@editor
def outputs_kept(work):
    number = {"output_type": "stream", "name": "stdout", "text": "198"}
    for count, cell in enumerate(work.notebook["cells"]):
        if cell["cell_type"] == "code":
            cell.update(outputs=[number], execution_count=count)


@editor
def byte_order_mark(work):
    work.write()
    path = work.folder / "exam.ipynb"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())


@editor
def lines_end_as_on_windows(work):
    work.write()
    path = work.folder / "exam.ipynb"
    path.write_bytes(path.read_bytes().replace(b"\\n", b"\\r\\n").replace(b"}, ", b"},\r\n"))


@editor
def text_and_empty_cells(work):
    work.insert(0, "# My notes\n\nI tried *this* first.", kind="markdown")
    work.insert(3, "", kind="code")
    work.insert(4, "draft = 1", kind="raw")
