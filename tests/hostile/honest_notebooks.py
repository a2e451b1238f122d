"""Right answers in the styles of many hands, over all ten chapters: each should lose nothing.

`CELLS` holds what is written in the place of one answer: `RIGHT` stands for the solution's cell,
and a line `# %%` begins the next cell, of which the last has the answer's metadata. `EDITS` are
functions that change a notebook in which everything is right. `LOSSES` are styles that cannot work.
"""

import ast
import copy

PRELIMINARIES, ATTENTION, MASKING = "00_preliminaries", "01_attention", "02_masking"
MULTIHEAD, BLOCKS, POSITIONS = "03_multihead", "04_blocks", "05_positions"
ARCHITECTURES, TRAINING = "06_architectures", "07_training"
GENERATION, INSIDE = "08_generation", "09_inside"

_MEAN = (PRELIMINARIES, "mean_of_rows")
_LOOKUP = (ATTENTION, "soft_lookup")
_MASK = (MASKING, "causal_mask")
_HEAD = (MULTIHEAD, "SelfAttentionHead")
_NORM = (BLOCKS, "rms_norm")
_TABLE = (POSITIONS, "learned_positions")
_ALIBI = (POSITIONS, "alibi_bias")
_LOSS = (ARCHITECTURES, "shifted_loss")
_RATE = (TRAINING, "learning_rate")
_BYTES = (GENERATION, "cache_bytes")
_TOKEN = (GENERATION, "next_token")
_LENS = (INSIDE, "look_inside")

_ROWS = "def mean_of_rows(x):\n    return x.mean(dim=1)\n"
_CAUSAL = "def causal_mask(q_len, k_len):\n"
_TRIL = "torch.ones(q_len, k_len, dtype=torch.bool).tril(k_len - q_len)"

CELLS = {
    # Threads, processes, and what a fork takes along
    "two threads and a large product": (
        *_MEAN,
        "torch.set_num_threads(2)\nbig = torch.randn(1000, 1000)\nbig @ big\n# %%\n"
        "def mean_of_rows(x):\n    (big @ big).sum()\n    return x.mean(dim=1)",
    ),
    "threads asked for in the answer": (
        *_NORM,
        "before = torch.randn(700, 700) @ torch.randn(700, 700)\n# %%\n"
        "RIGHT\nplain = rms_norm\ndef rms_norm(x, gain, eps=1e-5):\n    torch.set_num_threads(4)\n"
        "    before @ before\n    return plain(x, gain, eps)",
    ),
    "threads between operators": (*_LENS, "torch.set_num_interop_threads(2)\n# %%\nRIGHT"),
    "a backward pass before the answers": (
        *_LOSS,
        "w = torch.randn(300, 300, requires_grad=True)\n(w @ w).sum().backward()\n# %%\nRIGHT",
    ),
    "a pool of threads that stays": (
        *_MEAN,
        "from concurrent.futures import ThreadPoolExecutor\nPOOL = ThreadPoolExecutor(1)\n"
        "list(POOL.map(abs, [-1, 2]))\n# %%\nimport time; time.sleep(0.05)\n"
        "def mean_of_rows(x):\n    return torch.stack(list(POOL.map(torch.mean, x)))",
    ),
    "another pool of threads that stays": (
        *_MEAN,
        "from multiprocessing.pool import ThreadPool\nPOOL = ThreadPool(2)\nPOOL.map(abs, [1])\n"
        "# %%\ndef mean_of_rows(x):\n    return torch.stack(POOL.map(torch.mean, list(x)))",
    ),
    "a pool of processes that stays": (
        *_BYTES,
        "from multiprocessing import Pool\nPOOL = Pool(1)\nPOOL.map(abs, [-1])\n# %%\n"
        "RIGHT\n_plain = cache_bytes\ndef cache_bytes(*args):\n"
        "    return POOL.map(abs, [_plain(*args)])[0]",
    ),
    "a thread that goes on": (
        *_RATE,
        "import threading, time\nthreading.Thread(target=time.sleep, args=(5,), daemon=True).start()"
        "\n# %%\nRIGHT",
    ),
    "a lock": (
        *_LOOKUP,
        "import threading\nLOCK = threading.RLock()\nRIGHT\n_unlocked = soft_lookup\n"
        "def soft_lookup(*args):\n    with LOCK:\n        return _unlocked(*args)",
    ),
    "a tqdm bar over a loop in the answer": (
        *_MEAN,
        "from tqdm.auto import tqdm, trange\nfor _ in trange(3): pass\n# %%\n"
        "def mean_of_rows(x):\n    return torch.stack([row.mean() for row in tqdm(x, leave=False)])",
    ),
    # Files beside the notebook, and names of the machine
    "%%writefile and import": (
        *_MEAN,
        f"%%writefile helpers.py\n{_ROWS}\n# %%\nimport helpers\n# %%\n"
        "mean_of_rows = helpers.mean_of_rows",
    ),
    "a module written by open": (
        *_MEAN,
        f"with open('my_rows.py', 'w') as file:\n    file.write({_ROWS!r})\n# %%\n"
        "from my_rows import mean_of_rows",
    ),
    "a module written and imported in one cell": (
        *_MEAN,
        f"from pathlib import Path\nPath('mine.py').write_text({_ROWS!r})\nimport mine\n"
        "from mine import *",
    ),
    "a package of one's own": (
        *_MEAN,
        "import os\nos.makedirs('parts', exist_ok=True)\nopen('parts/__init__.py', 'w').close()\n"
        f"open('parts/rows.py', 'w').write({_ROWS!r})\n# %%\nfrom parts.rows import mean_of_rows",
    ),
    "a module written twice and loaded again": (
        *_MEAN,
        "%%writefile rows.py\ndef mean_of_rows(x):\n    return x.sum(dim=1)\n# %%\nimport rows\n"
        "# %%\n%%writefile rows.py\ndef mean_of_rows(x):\n    return x.mean(dim=1)\n# %%\n"
        "import importlib\nimportlib.reload(rows)\nmean_of_rows = rows.mean_of_rows",
    ),
    "%run of a file": (
        *_MEAN,
        f"%%writefile part.py\nimport torch\n{_ROWS}\n# %%\n%run part.py",
    ),
    "a cell saved by %%file and read back": (
        *_BYTES,
        "%%file sizes.txt\n2 3 5 7\n# %%\nwith open('sizes.txt') as file:\n"
        "    SIZES = [int(word) for word in file.read().split()]\nassert SIZES == [2, 3, 5, 7]\n"
        "RIGHT",
    ),
    "own data as json, csv and pickle": (
        *_RATE,
        "import csv, json, pickle\njson.dump({'peak': 3}, open('a.json', 'w'))\n"
        "assert json.load(open('a.json'))['peak'] == 3\n"
        "csv.writer(open('a.csv', 'w')).writerow([2, 3])\n"
        "pickle.dump([2, 3], open('a.pickle', 'wb'))\npickle.load(open('a.pickle', 'rb'))\nRIGHT",
    ),
    "tensors saved and loaded": (
        *_MASK,
        "torch.save({'w': torch.ones(3)}, 'w.pt')\nW = torch.load('w.pt')\nRIGHT",
    ),
    "a temporary folder": (
        *_NORM,
        "import tempfile\nwith tempfile.TemporaryDirectory() as folder:\n"
        "    torch.save(torch.ones(2), folder + '/x.pt')\nRIGHT",
    ),
    "the user's name": (
        *_LOOKUP,
        "import os, pwd, getpass\nME = pwd.getpwuid(os.getuid()).pw_name, getpass.getuser()\nRIGHT",
    ),
    "the group and home of the user": (
        *_ALIBI,
        "import grp, os\nfrom pathlib import Path\ngrp.getgrgid(os.getgid())\n"
        "HOME = Path('~').expanduser(), Path.home()\nRIGHT",
    ),
    "the name of localhost": (
        *_LOOKUP,
        "import socket\nassert socket.gethostbyname('localhost') == '127.0.0.1'\nRIGHT",
    ),
    "the machine described": (
        *_BYTES,
        "import os, platform, sys\nprint(platform.platform(), platform.node(), sys.version)\n"
        "print(os.cpu_count(), torch.__version__, os.getcwd(), sys.executable)\nRIGHT",
    ),
    "sys.path made longer": (
        *_HEAD,
        "import sys, os\nsys.path.append('..')\nsys.path.insert(0, os.path.abspath('.'))\nRIGHT",
    ),
    "environment variables": (
        *_RATE,
        "import os\nos.environ['OMP_NUM_THREADS'] = '4'\nos.environ['TOKENIZERS_PARALLELISM'] = '0'\n"
        "%env CUDA_VISIBLE_DEVICES=\nRIGHT",
    ),
    # Settings for everything
    "warnings are errors": (
        *_MEAN,
        "import warnings\nwarnings.simplefilter('error')\n# %%\n"
        "def mean_of_rows(x):\n    return torch.tensor(x).mean(dim=1)",
    ),
    "warnings are off": (*_LENS, "import warnings\nwarnings.filterwarnings('ignore')\nRIGHT"),
    "warnings go to logging": (
        *_MASK,
        "import logging\nlogging.captureWarnings(True)\nimport warnings\nwarnings.warn('x')\nRIGHT",
    ),
    "float64 by default": (*_LOOKUP, "torch.set_default_dtype(torch.float64)\n# %%\nRIGHT"),
    "float64 by default, set in the answer": (
        *_TABLE,
        "RIGHT\ntorch.set_default_dtype(torch.float64)",
    ),
    "the device named": (
        *_NORM,
        "device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')\n"
        "torch.set_default_device(device)\nRIGHT",
    ),
    "no gradients anywhere": (*_NORM, "torch.set_grad_enabled(False)\n# %%\nRIGHT"),
    "deterministic algorithms": (
        *_LENS,
        "torch.use_deterministic_algorithms(True)\ntorch.backends.cudnn.deterministic = True\nRIGHT",
    ),
    "anomalies detected": (*_LOSS, "torch.autograd.set_detect_anomaly(True)\n# %%\nRIGHT"),
    "precision of products": (
        *_LOOKUP,
        "torch.set_float32_matmul_precision('high')\ntorch.backends.mkldnn.enabled = False\nRIGHT",
    ),
    "print options": (
        *_LOOKUP,
        "torch.set_printoptions(precision=2, sci_mode=False)\nimport numpy as np\n"
        "np.set_printoptions(suppress=True)\nRIGHT",
    ),
    "numpy raises": (*_ALIBI, "import numpy as np\nnp.seterr(all='raise')\n# %%\nRIGHT"),
    "seeds for everything": (
        *_TOKEN,
        "import random\nimport numpy as np\nSEED = 42\nrandom.seed(SEED)\nnp.random.seed(SEED)\n"
        "torch.manual_seed(SEED)\ntorch.cuda.manual_seed_all(SEED)\nRIGHT",
    ),
    "a seed in each call": (
        *_MEAN,
        "def mean_of_rows(x):\n    torch.manual_seed(0)\n    torch.randn(3)\n    return x.mean(1)",
    ),
    "logging set up": (
        *_RATE,
        "import logging\nlogging.basicConfig(level=logging.DEBUG, format='%(message)s')\n"
        "log = logging.getLogger(__name__)\nlog.info('here')\n# %%\nRIGHT\n_plain = learning_rate\n"
        "def learning_rate(*args):\n    log.debug('called with %s', args)\n    return _plain(*args)",
    ),
    "logging to a file": (
        *_RATE,
        "import logging\nlogging.basicConfig(filename='run.log', level=10, force=True)\n"
        "logging.info('x')\nRIGHT",
    ),
    "deep recursion allowed": (
        *_MEAN,
        "import sys\nsys.setrecursionlimit(10_000)\ndef total(v, i=0):\n"
        "    return v[i] + total(v, i + 1) if i + 1 < len(v) else v[i]\n"
        "def mean_of_rows(x):\n    return torch.stack([total(r) / len(r) for r in x])",
    ),
    "a locale": (*_RATE, "import locale\nlocale.setlocale(locale.LC_ALL, '')\nRIGHT"),
    "garbage collection by hand": (*_HEAD, "import gc\ngc.disable()\ngc.collect()\nRIGHT"),
    "a timer of one's own": (
        *_MASK,
        "import signal\ndef late(*_): raise TimeoutError\nsignal.signal(signal.SIGALRM, late)\n"
        "signal.alarm(30)\nsignal.alarm(0)\nRIGHT",
    ),
    "the inline backend configured": (
        *_ALIBI,
        "%matplotlib inline\n%config InlineBackend.figure_format = 'retina'\n"
        "plt.rcParams['figure.figsize'] = (3, 2)\nplt.style.use('ggplot')\nRIGHT",
    ),
    # How functions and classes are written
    "type hints and a docstring": (
        *_MEAN,
        "from torch import Tensor\ndef mean_of_rows(x: 'Tensor', /) -> Tensor:\n"
        '    """Mean.\n\n    >>> mean_of_rows(1)\n    """\n    return x.mean(1)',
    ),
    "hints of jaxtyping": (
        *_MEAN,
        "from jaxtyping import Float\nfrom torch import Tensor\n"
        "def mean_of_rows(x: Float[Tensor, 'rows columns']) -> Float[Tensor, 'rows']:\n"
        "    return x.mean(dim=1)",
    ),
    "annotations of the future": (
        *_MEAN,
        "from __future__ import annotations\ndef mean_of_rows(x: NotThere) -> Nor:\n"
        "    return x.mean(1)",
    ),
    "generic hints": (
        *_MEAN,
        "from typing import Callable, Optional, TypeVar, Union\nT = TypeVar('T')\n"
        "def mean_of_rows(x: Union[T, None], how: Optional[Callable] = None):\n"
        "    return x.mean(dim=1)",
    ),
    "a lambda": (*_MEAN, "mean_of_rows = lambda x: x.mean(dim=-1)"),
    "a lambda with a hint": (
        *_MEAN,
        "from collections.abc import Callable\n"
        "mean_of_rows: Callable[..., torch.Tensor] = lambda x: x.mean(dim=-1)",
    ),
    "a partial function": (
        *_MEAN,
        "from functools import partial\nmean_of_rows = partial(torch.mean, dim=1)",
    ),
    "a function of the library": (*_MASK, f"causal_mask = lambda q_len, k_len: {_TRIL}"),
    "a composition": (
        *_MEAN,
        "import operator, functools\ndef compose(*fs):\n"
        "    return functools.reduce(lambda f, g: lambda x: g(f(x)), fs)\n"
        "mean_of_rows = compose(operator.methodcaller('sum', dim=1), lambda x: x)\n"
        "_total = mean_of_rows\nmean_of_rows = lambda x: _total(x) / x.shape[1]",
    ),
    "a closure": (
        *_MEAN,
        "def make(dim):\n    def inner(x):\n        return x.mean(dim=dim)\n    return inner\n"
        "mean_of_rows = make(1)",
    ),
    "a decorator": (
        *_MEAN,
        "import functools, time\ndef timed(f):\n    @functools.wraps(f)\n"
        "    def inner(*args, **kwargs):\n        start = time.perf_counter()\n"
        "        result = f(*args, **kwargs)\n        print(f.__name__, time.perf_counter() - start)\n"
        "        return result\n    return inner\n# %%\n@timed\n" + _ROWS,
    ),
    "a decorator without wraps": (
        *_BYTES,
        "def counted(f):\n    counted.calls = 0\n    def inner(*a, **k):\n"
        "        counted.calls += 1\n        return f(*a, **k)\n    return inner\nRIGHT\n"
        "cache_bytes = counted(cache_bytes)",
    ),
    "no_grad as a decorator": (*_MEAN, "@torch.no_grad()\n" + _ROWS),
    "inference mode": (*_MEAN, "@torch.inference_mode()\n" + _ROWS),
    "a scripted function": (
        *_MEAN,
        "@torch.jit.script\ndef mean_of_rows(x):\n    return x.mean(1)",
    ),
    "vmap": (*_MEAN, "mean_of_rows = torch.vmap(torch.mean)"),
    "gradients by torch.func": (
        *_MEAN,
        "def mean_of_rows(x):\n"
        "    return torch.func.vmap(lambda r: torch.func.grad(lambda s: (s * r).mean())"
        "(torch.ones((), dtype=r.dtype)))(x)",
    ),
    "a class with __call__": (
        *_MEAN,
        "class Mean:\n    def __init__(self, dim): self.dim = dim\n"
        "    def __call__(self, x): return x.mean(dim=self.dim)\nmean_of_rows = Mean(1)",
    ),
    "a static method": (
        *_MEAN,
        "class Rows:\n    @staticmethod\n    def mean(x): return x.mean(dim=1)\n"
        "mean_of_rows = Rows.mean",
    ),
    "a bound method": (
        *_MEAN,
        "class Rows:\n    dim = 1\n    def mean(self, x): return x.mean(dim=self.dim)\n"
        "mean_of_rows = Rows().mean",
    ),
    "a module as a function": (
        *_MEAN,
        "class Mean(torch.nn.Module):\n    def forward(self, x):\n        return x.mean(dim=1)\n"
        "_mean = Mean().eval()\ndef mean_of_rows(x):\n    return _mean(x)",
    ),
    "a dataclass": (
        *_BYTES,
        "from dataclasses import dataclass\n@dataclass(frozen=True, slots=True)\nclass Size:\n"
        "    heads: int\n    length: int\n    @property\n"
        "    def product(self): return self.heads * self.length\n# %%\n"
        "assert Size(2, 3).product == 6\nRIGHT",
    ),
    "named tuples and enums": (
        *_ALIBI,
        "from collections import namedtuple\nfrom enum import Enum\n"
        "Shape = namedtuple('Shape', 'q k')\nKind = Enum('Kind', 'A B')\nRIGHT",
    ),
    "abstract classes": (
        *_HEAD,
        "from abc import ABC, abstractmethod\nclass Layer(ABC):\n    @abstractmethod\n"
        "    def forward(self, x): ...\n# %%\nRIGHT",
    ),
    "a class derived from one in another cell": (
        *_HEAD,
        "class Base(nn.Module):\n    def extra_repr(self): return 'mine'\n# %%\nRIGHT".replace(
            "RIGHT", "RIGHT\nSelfAttentionHead.__doc__ = Base.__doc__"
        ),
    ),
    "a cache of functools": (
        *_MASK,
        "import functools\n@functools.cache\ndef _mask(q_len, k_len):\n"
        f"    return {_TRIL}\n{_CAUSAL}    return _mask(q_len, k_len).clone()",
    ),
    "lru_cache on the answer": (
        *_MASK,
        f"import functools\n@functools.lru_cache(maxsize=None)\n{_CAUSAL}    return {_TRIL}",
    ),
    "einsum": (
        *_MEAN,
        "def mean_of_rows(x):\n    return torch.einsum('rc->r', x) / x.shape[1]",
    ),
    "einsum with lists": (
        *_MEAN,
        "def mean_of_rows(x):\n    return torch.einsum(x, [0, 1], [0]) / x.size(1)",
    ),
    "numpy there and back": (
        *_MEAN,
        "import numpy as np\ndef mean_of_rows(x):\n"
        "    return torch.from_numpy(np.mean(x.detach().numpy(), axis=1))",
    ),
    "lists of numbers": (
        *_MEAN,
        "def mean_of_rows(x):\n"
        "    return torch.tensor([sum(r) / len(r) for r in x.tolist()], dtype=x.dtype)",
    ),
    "loops": (
        *_MASK,
        _CAUSAL + "    mask = torch.zeros(q_len, k_len, dtype=torch.bool)\n"
        "    for i in range(q_len):\n        for j in range(k_len):\n"
        "            if j <= i + k_len - q_len:\n                mask[i, j] = True\n    return mask",
    ),
    "a generator": (
        *_MEAN,
        "def rows(x):\n    for row in x:\n        yield row.mean()\n"
        "def mean_of_rows(x):\n    return torch.stack(list(rows(x)))",
    ),
    "match and a walrus": (
        *_MEAN,
        "def mean_of_rows(x):\n    match x.dim():\n"
        "        case 2 if (total := x.sum(1)).dim() == 1:\n            return total / x.shape[1]",
    ),
    "try, except and finally": (
        *_MEAN,
        "def mean_of_rows(x):\n    try:\n        return x.mean_of_each_row()\n"
        "    except AttributeError as error:\n        print('no:', error)\n"
        "        return x.mean(1)\n    finally:\n        pass",
    ),
    "assertions": (
        *_MEAN,
        "def mean_of_rows(x):\n    assert x.ndim == 2, f'expected 2, got {x.ndim}'\n"
        "    y = x.mean(dim=1)\n    assert y.shape == (x.shape[0],) and not y.isnan().any()\n"
        "    return y\n\nassert mean_of_rows(torch.ones(2, 3)).tolist() == [1, 1]",
    ),
    "a copy changed in place": (
        *_MEAN,
        "def mean_of_rows(x):\n    y = x.clone()\n    y /= y.shape[1]\n    y[:, 0] += y[:, 1:].sum(1)\n"
        "    return y[:, 0]",
    ),
    "float32 parameters that are moved": (
        *_MEAN,
        "def mean_of_rows(x):\n    linear = torch.nn.Linear(x.shape[1], 1, bias=False).to(x.dtype)\n"
        "    torch.nn.init.constant_(linear.weight, 1 / x.shape[1])\n"
        "    with torch.no_grad():\n        return linear(x)[:, 0]",
    ),
    "global constants": (
        *_MEAN,
        "DIM, EPS = 1, 1e-9\nSETTINGS = {'dim': DIM}\n# %%\ndef mean_of_rows(x):\n"
        "    global CALLS\n    CALLS = globals().get('CALLS', 0) + 1\n    return x.mean(**SETTINGS)",
    ),
    "helpers below the answer": (
        *_MEAN,
        "def mean_of_rows(x):\n    return helper(x, dim=1)\n\ndef helper(x, dim):\n"
        "    import statistics\n    return x.mean(dim)",
    ),
    "imports inside functions": (
        *_MEAN,
        "def mean_of_rows(x):\n    import numpy\n    from torch import mean\n    return mean(x, 1)",
    ),
    "star imports": (
        *_MEAN,
        "from math import *\nfrom torch import *\nfrom numpy import array\nimport torch\n" + _ROWS,
    ),
    "an import that is missing, in a try": (
        *_MEAN,
        "try:\n    import google.colab, einops_that_is_missing\n    IN_COLAB = True\n"
        "except ImportError:\n    IN_COLAB = False\n" + _ROWS,
    ),
    "builtins that are overwritten": (
        *_MEAN,
        "sum = 0\nlist = [2, 3]\nid = type = input = 5\nmax = torch.amax\n" + _ROWS,
    ),
    "underscores": (*_MEAN, "for _ in range(3): pass\n_, __ = 2, 3\n_x = 1\n" + _ROWS),
    "names in other alphabets": (
        *_MEAN,
        "# Größe der Zeilen: 行の平均\nβ, größe = 0.9, 3\ndef mean_of_rows(x):\n"
        "    Σ, число = x.sum(1), x.shape[1]\n    return Σ / число",
    ),
    "a very long line": (
        *_MEAN,
        "def mean_of_rows(x): return " + "(" * 40 + "x.mean(dim=1)" + ")" * 40 + " # " + "x" * 9000,
    ),
    "semicolons": (*_MEAN, "def mean_of_rows(x): y = x.sum(1); n = x.size(1); return y / n;"),
    "another name, then an alias": (
        *_MEAN,
        "def my_mean(x):\n    return x.mean(dim=1)\n\nmean_of_rows = my_mean",
    ),
    "an answer begun anew below": (
        *_MEAN,
        "def mean_of_rows(x):\n    return x\n\n" + _ROWS,
    ),
    "comments of the blank left": (
        *_LENS,
        "# YOUR CODE HERE\nRIGHT\n# raise NotImplementedError()",
    ),
    "old attempts as a string": (
        *_HEAD,
        "'''\ndef SelfAttentionHead(x):\n    return 1\n'''\nRIGHT",
    ),
    "if __name__ == '__main__'": (
        *_MEAN,
        _ROWS + "\nif __name__ == '__main__':\n    print(mean_of_rows(torch.ones(2, 3)))",
    ),
    "all of it below if __name__": (
        *_MEAN,
        "if __name__ == '__main__':\n    def mean_of_rows(x):\n        return x.mean(dim=1)",
    ),
    "own tests with unittest": (
        *_MEAN,
        _ROWS + "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n"
        "        self.assertEqual(mean_of_rows(torch.ones(2, 3)).shape, (2,))\n"
        "unittest.main(argv=[''], exit=False)",
    ),
    "doctests": (
        *_MEAN,
        "def mean_of_rows(x):\n    '''\n    >>> mean_of_rows(torch.ones(1, 2))\n    tensor([1.])\n"
        "    '''\n    return x.mean(1)\nimport doctest\ndoctest.testmod()",
    ),
    "source looked at by inspect": (
        *_MEAN,
        _ROWS + "import inspect\nprint(inspect.getsource(mean_of_rows))",
    ),
    "source compiled by exec": (*_MEAN, f"exec(compile({_ROWS!r}, 'mine', 'exec'))"),
    "torch patched for oneself": (
        *_MEAN,
        "torch.Tensor.row_mean = lambda self: self.mean(dim=1)\n# %%\n"
        "def mean_of_rows(x):\n    return x.row_mean()",
    ),
    "another repr for tensors": (
        *_LOOKUP,
        "_plain_repr = torch.Tensor.__repr__\n"
        "torch.Tensor.__repr__ = lambda self, **k: f'{tuple(self.shape)} {_plain_repr(self)}'\n"
        "torch.ones(2)\n# %%\nRIGHT",
    ),
    "print that flushes": (
        *_LENS,
        "import functools\nprint = functools.partial(print, flush=True)\nprint('x')\nRIGHT",
    ),
    # What is shown
    "prints in the answer": (
        *_MEAN,
        "import sys\ndef mean_of_rows(x):\n    print(x.shape, x)\n    print('!', file=sys.stderr)\n"
        "    return x.mean(1)",
    ),
    "a flood of prints in the answer": (
        *_MEAN,
        "def mean_of_rows(x):\n    for _ in range(400): print('x' * 100_000)\n    return x.mean(1)",
    ),
    "streams asked about": (
        *_MEAN,
        "import sys\nprint(sys.stdout.encoding.lower(), sys.stdout.isatty(), sys.stdout.fileno() >= 0)"
        "\nsys.stdout.flush()\n" + _ROWS,
    ),
    "stdout redirected": (
        *_MEAN,
        "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as text:\n"
        "    print('x')\n" + _ROWS,
    ),
    "stdout replaced": (
        *_MEAN,
        "import sys\nsys.stdout = open('out.txt', 'w')\nprint(2)\n" + _ROWS,
    ),
    "a program that prints": (
        *_MEAN,
        "import subprocess, sys\nsubprocess.run(['echo', 'x'], check=True)\n"
        "print(subprocess.run(['ls'], capture_output=True, text=True).stdout)\n"
        "subprocess.run([sys.executable, '-c', 'print(1)'], stdout=sys.stdout)\n" + _ROWS,
    ),
    "faulthandler": (*_MEAN, "import faulthandler\nfaulthandler.enable()\n" + _ROWS),
    "display and Markdown": (
        *_LENS,
        "from IPython.display import HTML, Markdown, clear_output, display\n"
        "handle = display(Markdown('*x*'), display_id=True)\nhandle.update(HTML('y'))\n"
        "clear_output(wait=True)\nRIGHT",
    ),
    "a last expression": (*_LENS, "RIGHT\ninduction_score"),
    "a plot": (
        *_ALIBI,
        "RIGHT\nfig, ax = plt.subplots()\nax.imshow(alibi_bias(2, 3, 5)[0])\n"
        "fig.savefig('bias.png')\nplt.show()",
    ),
    "an interactive plot": (*_MASK, "plt.ion()\nplt.plot([2, 3]);\nplt.pause(0.01)\nRIGHT"),
    "widgets": (
        *_LOOKUP,
        "try:\n    import ipywidgets as widgets\n    widgets.IntSlider(value=3)\n"
        "except ImportError:\n    widgets = None\nRIGHT",
    ),
    "a notebook's progress bar": (
        *_LOOKUP,
        "from tqdm.notebook import tqdm\nfor _ in tqdm(range(3)): pass\nRIGHT",
    ),
    # What IPython understands
    "%timeit": (*_MEAN, _ROWS + "x = torch.ones(2, 3)\n%timeit -n1 -r1 mean_of_rows(x)"),
    "%%time": (*_MEAN, "%%time\n" + _ROWS),
    "%%timeit, then the answer": (*_MEAN, "%%timeit -n1 -r1\ntorch.ones(3)\n# %%\n" + _ROWS),
    "%%capture": (*_MEAN, "%%capture captured\nprint('x')\n" + _ROWS),
    "autoreload": (*_LENS, "%load_ext autoreload\n%autoreload 2\n# %%\nRIGHT"),
    "!ls": (*_LENS, "!ls\nfiles = !ls\nprint(files)\n!pwd && echo {2 + 3}\nRIGHT"),
    "a program that is missing": (*_LENS, "!nvidia-smi\n# %%\nRIGHT"),
    "%%bash": (*_RATE, "%%bash\necho one\ntrue\n# %%\nRIGHT"),
    "%cd and back": (*_RATE, "!mkdir -p deep\n%cd deep\n%cd ..\n%pwd\nRIGHT"),
    "question marks": (*_TABLE, "torch.mean?\nlen??\nRIGHT"),
    "%who and %history": (*_TABLE, "%who\n%whos\n%xmode Verbose\n%precision 3\nRIGHT"),
    "%%html and %%latex": (*_HEAD, "%%html\n<b>x</b>\n# %%\n%%latex\n$x$\n# %%\nRIGHT"),
    "%reset at the top": (
        *_MEAN,
        "%reset -f\n# %%\nimport torch\nfrom classroom import check\n" + _ROWS,
    ),
    "In, Out and _": (*_MEAN, "2 + 3\n# %%\nprint(len(In), _, Out)\n" + _ROWS),
    "await": (
        *_MEAN,
        "import asyncio\nasync def wait():\n    await asyncio.sleep(0)\n    return 3\n"
        "await wait()\n" + _ROWS,
    ),
    "the kernel asked": (*_MEAN, "print(get_ipython().__class__.__name__)\n" + _ROWS),
    "exit at the end": (*_MEAN, _ROWS + "raise SystemExit"),
    "an error below the answer": (*_MEAN, _ROWS + "raise ValueError('unfinished')"),
    "a cell that fails before": (*_MEAN, "undefined_name + 1\n# %%\n" + _ROWS),
    # Less usual, and right
    "builtins of one's own": (
        *_MEAN,
        "import builtins\nbuiltins.row_mean = lambda x: x.mean(dim=1)\n# %%\n"
        "def mean_of_rows(x):\n    return row_mean(x)",
    ),
    "every expression is shown": (
        *_LENS,
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "InteractiveShell.ast_node_interactivity = 'all'\n# %%\n2\n3\nRIGHT",
    ),
    "%config of the shell": (
        *_LENS,
        "%config InteractiveShell.ast_node_interactivity = 'last_expr_or_assign'\n# %%\nx = 2\nRIGHT",
    ),
    "annotations of the future in an earlier cell": (
        *_MEAN,
        "from __future__ import annotations\n# %%\ndef mean_of_rows(x: NotThere) -> Nor:\n"
        "    return x.mean(1)",
    ),
    "checks that are added up": (
        *_MEAN,
        'total = check("mean_of_rows") + 0.0\nprint(f"{total:.1f} points so far")\n' + _ROWS,
    ),
    "a check in the answer's own cell": (*_MEAN, _ROWS + 'check("mean_of_rows")'),
    "models saved whole": (
        *_HEAD,
        "RIGHT\nmodel = SelfAttentionHead(4, 2)\ntorch.save(model, 'head.pt')\n"
        "torch.load('head.pt', weights_only=False)\nimport copy, pickle\n"
        "pickle.loads(pickle.dumps(copy.deepcopy(model)))",
    ),
    "processes that run own functions": (
        *_RATE,
        "from concurrent.futures import ProcessPoolExecutor\ndef square(n): return n * n\n"
        "with ProcessPoolExecutor(2) as pool:\n    assert list(pool.map(square, [2, 3])) == [4, 9]\n"
        "RIGHT",
    ),
    "a data loader with workers": (
        *_NORM,
        "from torch.utils.data import DataLoader, Dataset\nclass Numbers(Dataset):\n"
        "    def __len__(self): return 5\n    def __getitem__(self, i): return torch.ones(3) * i\n"
        "assert len(list(DataLoader(Numbers(), batch_size=2, num_workers=2))) == 3\nRIGHT",
    ),
    "a traced function": (
        *_MEAN,
        "mean_of_rows = torch.jit.trace(lambda x: x.mean(1), torch.ones(2, 3))",
    ),
    "a function of torch.fx": (
        *_MEAN,
        "mean_of_rows = torch.fx.symbolic_trace(lambda x: x.mean(dim=1))",
    ),
    "an autograd function": (
        *_MEAN,
        "class Mean(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        ctx.shape = x.shape\n        return x.mean(1)\n    @staticmethod\n"
        "    def backward(ctx, grad):\n"
        "        return grad[:, None].expand(ctx.shape) / ctx.shape[1]\nmean_of_rows = Mean.apply",
    ),
    "dispatch on types": (
        *_MEAN,
        "from functools import singledispatch\n@singledispatch\ndef mean_of_rows(x):\n"
        "    raise TypeError\n@mean_of_rows.register\ndef _(x: torch.Tensor):\n"
        "    return x.mean(1)",
    ),
    "context managers of one's own": (
        *_MEAN,
        "from contextlib import contextmanager\n@contextmanager\ndef timed():\n    yield 1\n"
        "def mean_of_rows(x):\n    with timed() as dim:\n        return x.mean(dim)",
    ),
    "a method that is patched in from another cell": (
        *_MEAN,
        "class Rows: pass\n# %%\ndef mean(self, x): return x.mean(1)\nRows.mean = mean\n"
        "mean_of_rows = Rows().mean",
    ),
    "hooks and buffers in a class": (
        *_HEAD,
        "RIGHT\nSelfAttentionHead.register_forward_pre_hook\n_head = SelfAttentionHead(3, 2)\n"
        "_head.register_forward_hook(lambda *a: print(a[1][0].shape))\n_head(torch.ones(1, 2, 3))",
    ),
    "autocast": (
        *_MEAN,
        "def mean_of_rows(x):\n    with torch.autocast('cpu', enabled=False):\n"
        "        return x.mean(1)",
    ),
    "a profiler": (
        *_MEAN,
        "from torch.profiler import profile\nwith profile() as seen:\n    torch.ones(3).sum()\n"
        "import cProfile\ncProfile.run('sum(range(9))')\n%prun -q sum(range(9))\n" + _ROWS,
    ),
    "matplotlib without a window": (
        *_ALIBI,
        "import matplotlib\nmatplotlib.use('Agg')\nplt.plot([2, 3])\nplt.savefig('x.pdf')\nRIGHT",
    ),
    "%matplotlib notebook": (*_ALIBI, "%matplotlib notebook\nplt.plot([2, 3])\nplt.show()\nRIGHT"),
    "an animation": (
        *_ALIBI,
        "from matplotlib.animation import FuncAnimation\nfig, ax = plt.subplots(figsize=(1, 1))\n"
        "movie = FuncAnimation(fig, lambda i: ax.plot([i]), frames=2)\nmovie.to_jshtml()\n"
        "plt.close(fig)\nRIGHT",
    ),
    "a sound and a picture": (
        *_ALIBI,
        "from IPython.display import Audio, SVG, display\n"
        "display(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>'))\nRIGHT",
    ),
    "an interactive widget": (
        *_LOOKUP,
        "import ipywidgets\n@ipywidgets.interact(k=(0, 3))\ndef show(k=1): print(k)\nRIGHT",
    ),
    "dates, zones and random names": (
        *_RATE,
        "import datetime, uuid, zoneinfo, secrets\nprint(datetime.datetime.now(), uuid.uuid4())\n"
        "zoneinfo.ZoneInfo('Europe/Berlin')\nRIGHT",
    ),
    "memory and time looked at": (
        *_RATE,
        "import resource, time, tracemalloc\ntracemalloc.start()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time())\n"
        "tracemalloc.stop()\nRIGHT",
    ),
    "a database in memory": (
        *_RATE,
        "import sqlite3\nwith sqlite3.connect('notes.db') as db:\n    db.execute('create table t (x)')"
        "\nRIGHT",
    ),
    "a zip of results": (
        *_RATE,
        "import shutil, os\nos.makedirs('out', exist_ok=True)\nopen('out/a', 'w').write('x')\n"
        "shutil.make_archive('all', 'zip', 'out')\nRIGHT",
    ),
    "a slow cell": (*_RATE, "import time\nfor _ in range(3): time.sleep(0.05)\nRIGHT"),
    "%%python and %%script": (
        *_RATE,
        "%%script bash\necho 2\n# %%\n%%python\nprint(3)\n# %%\nRIGHT",
    ),
    "numbers of numpy returned": (
        *_BYTES,
        "RIGHT\nimport operator\n_exact = cache_bytes\ndef cache_bytes(*args):\n"
        "    return operator.index(__import__('numpy').int64(_exact(*args)))",
    ),
    "keyword names renamed": (
        *_MEAN,
        "def mean_of_rows(the_matrix: torch.Tensor, *unused, axis=1, **more):\n"
        "    return the_matrix.mean(axis)",
    ),
}


class Notebook:
    """A student's notebook, in which every answer is right; `blank` holds the answers' blanks."""

    def __init__(self, data, blank):
        self.data = data
        self.cells = data["cells"]
        self.blank = blank
        self.num_own = 0

    def cell(self, grade_id):
        (found,) = (c for c in self.cells if self.grade_id(c) == grade_id)
        return found

    @staticmethod
    def grade_id(cell):
        return cell["metadata"].get("nbgrader", {}).get("grade_id")

    def place(self, grade_id):
        return self.cells.index(self.cell(grade_id))

    @property
    def answers(self):
        return [c for c in self._code if c["metadata"].get("nbgrader", {}).get("solution")]

    @property
    def checks(self):
        return [c for c in self._code if c["metadata"].get("nbgrader", {}).get("grade")]

    @property
    def imports(self):
        return next(c for c in self._code if "from classroom import check" in c["source"])

    @property
    def _code(self):
        return [c for c in self.cells if c["cell_type"] == "code"]

    def insert(self, place, source, kind="code"):
        self.num_own += 1
        cell = {"cell_type": kind, "source": source, "metadata": {}, "id": f"own-{self.num_own}"}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        self.cells.insert(place, cell)

    def remove(self, *cells):
        for cell in cells:
            self.cells.remove(cell)


EDITS = {}
"""By name: the chapter, the exercises that are checked (none: all), and what is done."""


def edit(chapter, *exercises):
    """Note what somebody does to a notebook of a chapter."""

    def note(do):
        EDITS[do.__name__.replace("_", " ")] = (chapter, exercises, do)
        return do

    return note


_TWO = (ATTENTION, "soft_lookup", "raw_scores")


@edit(ATTENTION)
def all_answers_in_one_cell_and_empty_cells_deleted(notebook):
    text = "\n\n".join(cell["source"] for cell in notebook.answers)
    place = notebook.cells.index(notebook.answers[0])
    notebook.remove(*notebook.answers)
    notebook.insert(place, text)


@edit(MULTIHEAD)
def all_answers_in_one_cell_at_the_top_and_blanks_deleted(notebook):
    text = "\n\n".join(cell["source"] for cell in notebook.answers)
    notebook.remove(*notebook.answers)
    notebook.insert(notebook.cells.index(notebook.imports) + 1, text)


@edit(*_TWO)
def all_in_one_cell_with_its_checks_at_the_end(notebook):
    text = "\n\n".join(cell["source"] for cell in [*notebook.answers, *notebook.checks])
    notebook.remove(*notebook.answers, *notebook.checks)
    notebook.insert(len(notebook.cells), text)
    notebook.insert(len(notebook.cells), 'check("soft_lookup")')


@edit(*_TWO)
def one_cell_of_an_assistant_as_the_whole_notebook(notebook):
    code = [cell["source"] for cell in notebook.cells if cell["cell_type"] == "code"]
    parts = [ast.unparse(ast.parse(source)) for source in code]
    notebook.cells[:] = []
    notebook.insert(0, "\n\n".join(parts))
    notebook.insert(1, "Here is the complete solution.", "markdown")


@edit(*_TWO)
def two_answer_cells_merged(notebook):
    first, second = notebook.answers
    first["source"] += "\n\n" + second["source"]
    notebook.remove(second)


@edit(*_TWO)
def two_answer_cells_merged_into_the_second(notebook):
    first, second = notebook.answers
    second["source"] = first["source"] + "\n\n" + second["source"]
    notebook.remove(first)
    notebook.insert(len(notebook.cells), 'check("soft_lookup")')


@edit(*_TWO)
def answer_and_check_merged(notebook):
    for answer, check in zip(notebook.answers, notebook.checks, strict=True):
        answer["source"] += "\n" + check["source"]
        notebook.remove(check)


@edit(*_TWO)
def answers_moved_to_the_top(notebook):
    answers = notebook.answers
    notebook.remove(*answers)
    place = notebook.cells.index(notebook.imports) + 1
    notebook.cells[place:place] = answers


@edit(*_TWO)
def checks_moved_to_the_end(notebook):
    checks = notebook.checks
    notebook.remove(*checks)
    notebook.cells += checks


@edit(*_TWO)
def exercises_in_the_other_order(notebook):
    start = notebook.place("soft_lookup") - 1
    first, second = notebook.cells[start : start + 3], notebook.cells[start + 3 : start + 6]
    notebook.cells[start : start + 6] = second + first


@edit(MASKING, "masked_softmax")
def an_answer_split_in_two(notebook):
    place, cell = notebook.place("masked_softmax"), notebook.cell("masked_softmax")
    notebook.insert(
        place,
        "LOWEST = -math.inf\n\ndef lowest(scores, keep):\n"
        "    return scores.masked_fill(~keep, LOWEST)",
    )
    cell["source"] = cell["source"].replace(
        "scores.masked_fill(~mask, -math.inf)", "lowest(scores, mask)"
    )


@edit(PRELIMINARIES, "split_heads")
def an_answer_split_by_jupyter_with_its_metadata_twice(notebook):
    place, cell = notebook.place("split_heads"), notebook.cell("split_heads")
    head, tail = cell["source"].split("\n\n\ndef merge_heads")
    cell["source"] = head
    other = copy.deepcopy(cell) | {"source": "def merge_heads" + tail, "id": "split"}
    notebook.cells.insert(place + 1, other)


@edit(PRELIMINARIES, "activations")
def an_answer_in_five_cells(notebook):
    place, cell = notebook.place("activations"), notebook.cell("activations")
    *parts, cell["source"] = cell["source"].split("\n\n\n")
    for part in reversed(parts):
        notebook.insert(place, part)


@edit(TRAINING, "learning_rate")
def the_answer_in_an_own_cell_and_the_blank_below_it_deleted(notebook):
    place, cell = notebook.place("learning_rate"), notebook.cell("learning_rate")
    source = cell["source"]
    notebook.remove(cell)
    notebook.insert(place, source)


@edit(GENERATION, "cache_bytes")
def the_answer_in_an_own_cell_below_the_blank(notebook):
    place, cell = notebook.place("cache_bytes"), notebook.cell("cache_bytes")
    source = cell["source"]
    cell["source"] = notebook.blank["cache_bytes"]
    notebook.insert(place + 1, source)


@edit(GENERATION, "cache_bytes")
def the_answer_at_the_end_and_checked_there_too(notebook):
    cell = notebook.cell("cache_bytes")
    source = cell["source"]
    cell["source"] = notebook.blank["cache_bytes"]
    notebook.insert(len(notebook.cells), source)
    notebook.insert(len(notebook.cells), 'check("cache_bytes")')


@edit(BLOCKS, "rms_norm")
def an_older_attempt_kept_above(notebook):
    place = notebook.place("rms_norm")
    notebook.cells.insert(place, copy.deepcopy(notebook.cell("rms_norm")))
    notebook.cells[place] |= {"source": "def rms_norm(x, gain, eps=1e-5):\n    return x", "id": "x"}


@edit(BLOCKS, "layer_norm")
def an_answer_called_again_below_its_check(notebook):
    place = notebook.place("layer_norm-check")
    notebook.insert(place + 1, "layer_norm(torch.ones(2, 3), torch.ones(3), torch.zeros(3))")


@edit(BLOCKS, "feed_forward")
def all_text_deleted(notebook):
    notebook.cells[:] = [cell for cell in notebook.cells if cell["cell_type"] == "code"]


@edit(POSITIONS, "learned_positions")
def text_edited_and_raw_cells_added(notebook):
    for cell in notebook.cells:
        if cell["cell_type"] == "markdown":
            cell["source"] = "My notes: " + cell["source"][:50]
    notebook.insert(1, "draft = 1 +", "raw")
    notebook.insert(0, "", "code")


@edit(POSITIONS, "alibi_bias")
def metadata_of_another_editor(notebook):
    notebook.data["metadata"] = {
        "colab": {"provenance": []},
        "kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)"},
        "language_info": {"name": "python", "version": "3.12.1"},
        "vscode": {"interpreter": {"hash": "31f2"}},
    }
    for number, cell in enumerate(notebook.cells):
        cell["metadata"] |= {"id": f"aB{number}", "tags": ["mine"], "collapsed": True}


@edit(ARCHITECTURES, "shifted_loss")
def metadata_lost(notebook):
    for cell in notebook.cells:
        cell["metadata"] = {}


@edit(ARCHITECTURES, "masked_tokens")
def an_older_minor_format_without_ids(notebook):
    notebook.data["nbformat_minor"] = 2
    for cell in notebook.cells:
        cell.pop("id", None)


@edit(TRAINING, "get_batch")
def new_ids(notebook):
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"


@edit(GENERATION, "next_token")
def sources_as_lists_of_lines(notebook):
    for cell in notebook.cells:
        cell["source"] = cell["source"].splitlines(keepends=True)


@edit(INSIDE, "look_inside")
def outputs_and_counts_kept(notebook):
    for number, cell in enumerate(notebook.cells):
        if cell["cell_type"] == "code":
            text = {"output_type": "stream", "name": "stdout", "text": "7\n"}
            cell |= {"outputs": [text], "execution_count": 99 - number}


@edit(MULTIHEAD, "MultiHeadAttention")
def lines_end_as_on_windows(notebook):
    for cell in notebook.cells:
        cell["source"] = cell["source"].replace("\n", "\r\n")


@edit(MULTIHEAD, "grouped_query_attention")
def tabs(notebook):
    for cell in notebook.answers:
        cell["source"] = cell["source"].replace("    ", "\t")


@edit(INSIDE, "induction_weights")
def comments_and_docstrings_stripped(notebook):
    for cell in notebook.answers:
        cell["source"] = ast.unparse(ast.parse(cell["source"]))


@edit(MASKING, "causal_mask", "masked_softmax")
def imports_gathered_in_a_cell_of_their_own(notebook):
    notebook.imports["source"] += "\nimport numpy as np\nimport os, sys, random"
    notebook.insert(1, "%matplotlib inline\nimport torch.nn as nn")


@edit(MASKING, "causal_mask")
def imports_deleted_and_made_in_the_answer(notebook):
    notebook.remove(notebook.imports)
    cell = notebook.cell("causal_mask")
    cell["source"] = "import math, torch\nfrom classroom import check\n" + cell["source"]


@edit(PRELIMINARIES)
def a_whole_chapter_of_separate_notes_and_experiments(notebook):
    for cell in list(notebook.answers):
        place = notebook.cells.index(cell)
        notebook.insert(place + 1, "scratch = torch.randn(2, 3)\nscratch @ scratch.T")
        notebook.insert(place, "I think I know this.", "markdown")


@edit(MULTIHEAD)
def a_whole_chapter_without_the_cells_that_were_given(notebook):
    given = [c for c in notebook.cells if c["cell_type"] == "code" and not notebook.grade_id(c)]
    notebook.remove(*(cell for cell in given if cell is not notebook.imports))


LOSSES = {
    "a server on this machine": (
        *_MASK,
        "import socket\nwith socket.socket() as s:\n    s.bind(('localhost', 0))\nRIGHT",
        {},
        "cell 5 (causal_mask) stopped: PermissionError",
    ),
    "a module that lies beside the notebook": (
        *_MEAN,
        "from beside import mean_of_rows",
        {"beside.py": _ROWS},
        "only the notebook is used, not beside.py",
    ),
}
"""Styles that cannot work, with the files beside the notebook and the sentence that says why."""
