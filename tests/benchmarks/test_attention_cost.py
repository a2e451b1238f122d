"""How time and memory of attention grow with length: explicit, fused, and with an online softmax.

One head of width 64, causal, forward and backward. Memory is the most bytes of tensors that were
alive at once, beyond the inputs. Run by `make bench`, which also draws
`records/attention_cost.svg`.
"""

import weakref
from pathlib import Path

import matplotlib
import numpy
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from groundup.core.attention import scaled_dot_product_attention
from groundup.variants.online_softmax import online_softmax_attention

matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402

pytestmark = [pytest.mark.benchmark, pytest.mark.filterwarnings("ignore")]  # the peers warn

FILE = "attention_cost.json"
LENGTHS = [128, 256, 512, 1024, 2048, 4096]
WIDTH = 64
KINDS = {
    "explicit": lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True),
    "fused": lambda q, k, v: scaled_dot_product_attention(q, k, v, backend="fused", is_causal=True),
    "online softmax": lambda q, k, v: online_softmax_attention(q, k, v, is_causal=True),
}


class AliveBytes(TorchDispatchMode):
    """Follows every tensor from the operation that makes it to its end."""

    def __init__(self):
        super().__init__()
        self.alive, self.most, self.known = 0, 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.follow(tensor.untyped_storage())
        return out

    def follow(self, storage):
        key = storage._cdata
        if key in self.known:
            return
        self.known.add(key)
        self.alive += storage.nbytes()
        self.most = max(self.most, self.alive)
        weakref.finalize(storage, self.forget, key, storage.nbytes())

    def forget(self, key, num_bytes):
        self.known.discard(key)
        self.alive -= num_bytes


def inputs(length):
    generator = torch.Generator().manual_seed(length)
    return [torch.randn(1, 1, length, WIDTH, generator=generator).requires_grad_() for _ in "qkv"]


def forward_and_backward(kind, length):
    tensors = inputs(length)

    def run():
        out = KINDS[kind](*tensors)
        torch.autograd.grad(out.sum(), tensors)

    return run


def memory(kind, length):
    run = forward_and_backward(kind, length)
    with AliveBytes() as alive:
        run()
    return alive.most


def exponent(values, lengths):
    """Fit a power law: the slope of the logarithms."""
    return float(numpy.polyfit(numpy.log(lengths), numpy.log(values), 1)[0])


def test_the_cost_of_attention_grows_as_it_should(interleaved, record):
    milliseconds = {kind: [] for kind in KINDS}
    megabytes = {kind: [memory(kind, length) / 2**20 for length in LENGTHS] for kind in KINDS}
    for length in LENGTHS:
        candidates = {kind: forward_and_backward(kind, length) for kind in KINDS}
        seconds = interleaved(candidates, calls=max(1, 512 // length))
        for kind in KINDS:
            milliseconds[kind].append(1e3 * seconds[kind])
    long = slice(2, None)  # from 512 on, where fixed costs no longer show
    exponents = {
        kind: {
            "time": round(exponent(milliseconds[kind][long], LENGTHS[long]), 2),
            "memory": round(exponent(megabytes[kind][long], LENGTHS[long]), 2),
        }
        for kind in KINDS
    }
    draw(milliseconds, megabytes, exponents)
    table = {
        "lengths": LENGTHS,
        "milliseconds": {k: [round(x, 3) for x in v] for k, v in milliseconds.items()},
        "megabytes": {k: [round(x, 3) for x in v] for k, v in megabytes.items()},
        "exponents": exponents,
    }
    goals = {"explicit": (1.8, 2.2), "fused": (0.8, 1.2), "online softmax": (0.8, 2.2)}
    for kind, (low, high) in goals.items():
        assert record(
            FILE,
            f"exponent of memory over length, {kind} attention, forward and backward",
            exponents[kind]["memory"],
            exponents["explicit"]["memory"],
            "explicit attention",
            round(megabytes[kind][-1] / megabytes["explicit"][-1], 4),
            f"{low} to {high}",
            low <= exponents[kind]["memory"] <= high,
            **table,
        )
    ratio = milliseconds["explicit"][-1] / milliseconds["fused"][-1]
    assert record(
        FILE,
        f"milliseconds at length {LENGTHS[-1]}, fused against explicit attention",
        round(milliseconds["fused"][-1], 2),
        round(milliseconds["explicit"][-1], 2),
        "explicit attention",
        round(ratio, 3),
        "at least 1.0 times as fast",
        ratio >= 1.0,
    )


def draw(milliseconds, megabytes, exponents):
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for ax, values, what, name in (
        (axes[0], milliseconds, "time", "milliseconds"),
        (axes[1], megabytes, "memory", "megabytes"),
    ):
        for kind, marker in zip(KINDS, "osD", strict=True):
            label = f"{kind}: length$^{{{exponents[kind][what]}}}$"
            ax.loglog(LENGTHS, values[kind], marker=marker, label=label)
        ax.set(xlabel="length in tokens", ylabel=name, title=f"{what}, forward and backward")
        ax.legend()
    figure.savefig(Path(__file__).parent / "records" / "attention_cost.svg")
    pyplot.close(figure)
