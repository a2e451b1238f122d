"""What a first session on a GPU measures, in one command that ends within ten minutes.

    python tests/benchmarks/gpu.py

measures how much of the GPU's peak GPT-2 small reaches in training, fused attention beside explicit
attention over lengths, and how many tokens per second GPT-2 small writes; then it trains one model
as `groundup.pretrained` wants it. `build/gpu/gpu.json` is written after every row, so whatever stops
the command leaves what came before; `--only decoding model` repeats those parts and keeps the
others. Its keys: `machine`, `peak` (of the GPU, by its manufacturer), `date`, `tiny`, `failed` (a
sentence for each part that failed), and a list of rows for each part.

Nothing is downloaded, and the package need not be installed: `PYTHONPATH=lib` is enough beside
torch, jaxtyping, matplotlib, numpy, safetensors, tokenizers, tqdm and, for the model, babel.
With `--tiny` all of it runs within seconds, also without a GPU; its numbers mean nothing.
"""

import argparse
import contextlib
import copy
import gc
import json
import os
import shlex
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groundup import presets, pretrained
from groundup.core.attention import scaled_dot_product_attention
from groundup.core.cache import KeyValueCache
from groundup.core.models import DecoderOnly
from groundup.data.batches import Batch
from groundup.generation.loop import generate
from groundup.looking.accounting import peak_of, training_flops
from groundup.looking.throughput import machine, measure_decoding, measure_training
from groundup.training.loop import TrainingConfig, cross_entropy, optimizers_for
from groundup.training.setup import Setup, set_up

Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """Where it is measured, at which sizes, and where files go."""

    device: torch.device
    is_tiny: bool
    out: Path

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    def gpt2_small(self) -> DecoderOnly:
        """Make GPT-2 small. Its vocabulary is rounded up to a multiple of 64, for tensor cores."""
        sizes = {"vocab_size": 50304, "dropout": 0.0}
        if self.is_tiny:
            sizes |= {"vocab_size": 61, "max_len": 24, "d_model": 32, "d_ff": 48}
            sizes |= {"num_layers": 2, "num_heads": 4}
        config = presets.decoder_only("gpt2_small", **sizes)
        return DecoderOnly(config, torch.Generator().manual_seed(0)).to(self.device)

    def tokens(self, model: DecoderOnly, *shape: int) -> Tensor:
        """Draw tokens, in which there is nothing to learn: speed does not depend on them."""
        drawn = torch.Generator().manual_seed(1)
        return torch.randint(model.config.vocab_size, shape, generator=drawn).to(self.device)

    def peak_bytes(self, call: Callable[[], Any]) -> int | None:
        """Call, and return the most GPU memory that it took beyond what was taken before."""
        if not self.is_gpu:
            call()
            return None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.max_memory_allocated() - before

    def milliseconds(self, call: Callable[[], Any], number: int) -> float:
        """Time one of `number` calls, on a GPU between two events of its own clock."""
        if self.is_gpu:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(number):
                call()
            end.record()
            end.synchronize()
            return start.elapsed_time(end) / number
        begun = time.perf_counter()
        for _ in range(number):
            call()
        return 1000 * (time.perf_counter() - begun) / number


# --- the parts -------------------------------------------------------------------------------


def training(run: Run) -> Iterator[Row]:
    """Train GPT-2 small in bfloat16, with fused attention; model and loss are compiled.

    `mfu` counts every pair of query and key, as most papers do, and `mfu_allowed` those that the
    mask allows.
    """
    model, rows = run.gpt2_small(), 2 if run.is_tiny else 32
    length = model.config.max_len
    tokens = run.tokens(model, rows, length + 1)
    batch = Batch({"tokens": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous())
    forward = set_up(model, Setup(precision="bfloat16", compiled=run.is_gpu, attention="fused"))
    optimizer = optimizers_for(model, TrainingConfig(steps=1, learning_rate=1e-4))
    speed = measure_training(
        forward,
        batch,
        optimizer,
        precision="bfloat16",
        # Compiled, the logits need not be written down in float32, which is slow for 50304 of them.
        loss=torch.compile(cross_entropy) if run.is_gpu else None,
        seconds=0.0 if run.is_tiny else 15.0,
    )
    allowed, pairs = (
        sum(training_flops(model.config, rows, length, pairs=which).values())
        for which in ("allowed", "all")
    )
    yield {
        "model": "gpt2_small",
        "dtype": "bfloat16",
        "batch_size": rows,
        "length": length,
        "tokens_per_second": speed.tokens_per_second,
        "mfu": speed.mfu,
        "mfu_allowed": None if speed.mfu is None else speed.mfu * allowed / pairs,
        "flops_per_second": speed.flops_per_second,
        "seconds_of_updates": speed.round_seconds,
        "peak_bytes": torch.cuda.max_memory_allocated() if run.is_gpu else None,
    }


def attention(run: Run) -> Iterator[Row]:
    """Attend, forward and backward, to equally many tokens in ever longer sequences."""
    heads, d_head, num_tokens = (2, 8, 96) if run.is_tiny else (12, 64, 2**15)
    for length in (24, 48) if run.is_tiny else (2**power for power in range(8, 15)):
        shape = (4, num_tokens // length, heads, length, d_head)
        generator = torch.Generator(run.device).manual_seed(0)
        drawn = torch.randn(shape, generator=generator, device=run.device, dtype=torch.bfloat16)
        for backend in ("fused", "explicit"):
            row = {"length": length, "backend": backend, "dtype": "bfloat16", "heads": heads}
            row |= {"d_head": d_head, "num_tokens": num_tokens}
            try:
                yield row | _attention_cost(run, backend, drawn)
            except torch.OutOfMemoryError:
                yield row | {"milliseconds": None, "peak_bytes": None, "note": "out of memory"}


def _attention_cost(run: Run, backend: Any, drawn: Tensor) -> Row:
    *inputs, upstream = drawn.unbind()
    inputs = [part.requires_grad_() for part in inputs]

    def call() -> None:
        mixed = scaled_dot_product_attention(*inputs, backend=backend, is_causal=True)
        torch.autograd.grad(mixed, inputs, upstream)

    for _ in range(3):  # warm-up
        call()
    peak_bytes = run.peak_bytes(call)
    number = 1 if run.is_tiny else max(1, round(100 / run.milliseconds(call, 1)))
    rounds = [run.milliseconds(call, number) for _ in range(5)]
    return {"milliseconds": statistics.median(rounds), "peak_bytes": peak_bytes}


class GraphedStep:
    """A step of decoding that a GPU replays from a CUDA graph, so that it never waits for Python.

    The graph reads and writes one cache for ever. The first step with another cache copies that
    one into it. Without a GPU there is no graph, and the model does what it would replay.
    """

    def __init__(self, model: DecoderOnly):
        self.model = copy.deepcopy(model)  # the model itself stays as it is, to compare with
        self.copied: KeyValueCache | None = None
        is_gpu = next(model.parameters()).is_cuda
        for block in self.model.blocks:  # all have the same code, which is compiled once
            block.compile(fullgraph=True, dynamic=False, backend="inductor" if is_gpu else "eager")

    def __call__(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        if self.copied is None:
            self._record(tokens, cache)
        if self.copied is not cache:
            for own, new in zip(self.cache.layers, cache.layers, strict=True):
                own.keys.copy_(new.keys)
                own.values.copy_(new.values)
                own.length.copy_(new.length)
            self.copied = cache
        self.tokens.copy_(tokens)
        self.replay()
        return self.logits

    def _record(self, tokens: Tensor, cache: KeyValueCache) -> None:
        self.tokens, self.cache = tokens.clone(), copy.deepcopy(cache)

        def replay() -> None:
            self.logits = self.model(self.tokens, cache=self.cache)

        self.replay = replay
        if not tokens.is_cuda:
            return
        for _ in range(3):  # warm-up: what compiles or chooses kernels cannot be recorded
            replay()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            replay()
        self.replay = graph.replay


def decoding(run: Run) -> Iterator[Row]:
    """Write with GPT-2 small in bfloat16: one text, and many at once."""
    prompt_len, new_tokens = (3, 21) if run.is_tiny else (16, 240)
    for batch_size in (1, 5) if run.is_tiny else (1, 128):
        model = run.gpt2_small().to(torch.bfloat16).requires_grad_(False)
        prompt = run.tokens(model, batch_size, prompt_len)
        for cache, step in (("growing", None), ("static", GraphedStep(model))):
            speed = measure_decoding(model, prompt, new_tokens, rounds=3, cache=cache, step=step)
            if step is not None:
                how = {"cache": cache, "step": step, "max_len": prompt_len + new_tokens}
                require_best_tokens(model, generate(model, prompt, new_tokens, **how), new_tokens)
            yield {
                "model": "gpt2_small",
                "dtype": "bfloat16",
                "batch_size": batch_size,
                "prompt": prompt_len,
                "new_tokens": new_tokens,
                "cache": cache,
                "step": "eager" if step is None else "CUDA graph of compiled blocks",
                "tokens_per_second": speed.tokens_per_second,
                "bandwidth_fraction": speed.bandwidth_fraction,
                "bytes_per_second": speed.bytes_per_second,
                "seconds_of_texts": speed.round_seconds,
            }


@torch.no_grad()
def require_best_tokens(model: DecoderOnly, context: Tensor, new_tokens: int) -> None:
    """Read again what was written, and compare each token's logit with the best one.

    Raises:
        ValueError: If they differ by more than rounding explains: a step and a whole text use
            other kernels.

    """
    logits = model(context[:4, :-1])[:, -new_tokens:].float()
    written = logits.gather(-1, context[:4, -new_tokens:, None])[..., 0]
    regret, limit = (logits.amax(dim=-1) - written).max().item(), 0.25 * logits.std().item()
    if not regret <= limit:
        raise ValueError(
            "a graph must write what the model would, got a token whose logit is "
            f"{regret:.3f} below the best, more than {limit:.3f}"
        )


def model(run: Run) -> Iterator[Row]:
    """Train `llama`, one of the models that come with the course, on four times as many tokens.

    It makes as many updates as fit into 90 seconds, at most as many as the model's record.
    """
    from groundup.pretrained.__main__ import describe  # needs babel, as `groundup train` does

    words = shlex.split(pretrained.record("llama")["command"])[2:]
    options = dict(word.removeprefix("--").split("=", 1) for word in words)
    options |= {"device": "auto", "attention": "fused", "batch-size": "16"}
    if run.is_tiny:
        options |= {"data": "python-reference", "tokenizer": "byte", "compile": "off"}
        options |= {"steps": "11", "context": "32", "batch-size": "3"}
        del options["vocab-size"]
    if not run.is_tiny:
        with tempfile.TemporaryDirectory() as folder:
            log = _train(options | {"steps": "40"}, Path(folder) / "trial")
        update_tokens = int(options["batch-size"]) * int(options["context"])
        fitting = int(90 * log[-1]["tokens_per_second"] / update_tokens)
        options["steps"] = str(min(int(options["steps"]), fitting))
    folder = run.out / "llama"
    log = _train(options, folder)
    command = ["groundup", "train", *_words(options)]
    record = describe(folder) | {
        "command": shlex.join(command),
        "hardware": machine(run.device),
    }
    (folder / "record.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"to let it come with the course, copy {', '.join(pretrained.FILES)} and record.json")
    print(f"from {folder} to {pretrained.FOLDER / folder.name}")
    yield record | {
        "name": folder.name,
        "dtype": options["precision"],
        "tokens_per_second": statistics.median(line["tokens_per_second"] for line in log),
        "curve": {name: [line[name] for line in log[::10]] for name in ("step", "loss")},
    }


def _train(options: dict[str, str], folder: Path) -> list[Row]:
    """Run `groundup train`, and return the lines of its log."""
    from groundup.__main__ import main as groundup

    if groundup(["train", *_words(options), "--overwrite", f"--out={folder}"]):
        raise RuntimeError("groundup train failed, as said above")
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def _words(options: dict[str, str]) -> list[str]:
    return [f"--{name}={value}" for name, value in options.items()]


# --- the command -----------------------------------------------------------------------------

PARTS: dict[str, tuple[Callable[[Run], Iterator[Row]], float]] = {
    "training": (training, 140),
    "attention": (attention, 60),
    "decoding": (decoding, 140),
    "model": (model, 220),
}
"""What is measured, and the most seconds that it may take; the most important first."""


class Overtime(BaseException):
    """A part has used up its time. Not an `Exception`, which a library might catch."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `Overtime` inside, after so many seconds."""

    def ring(*_: Any) -> None:
        raise Overtime(f"it took more than the {seconds:g} seconds that it had")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def measure(run: Run, names: list[str], record: dict[str, Any]) -> None:
    """Measure the named parts, and write the record after every row."""

    def write() -> None:
        new = run.out / "gpu.json.new"
        new.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(new, run.out / "gpu.json")  # whole at every moment

    for name in names:
        part, seconds = PARTS[name]
        begun = time.monotonic()
        record[name] = []
        record["failed"].pop(name, None)
        try:
            with time_limit(seconds):
                for row in part(run):
                    record[name].append(row)
                    write()
                    print(f"{name}: {in_short(row)}", flush=True)
        except (Exception, Overtime) as error:
            record["failed"][name] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
            print(f"{name}: failed, {record['failed'][name]}", flush=True)
        write()
        print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)
        torch.compiler.reset()
        gc.collect()
        if run.is_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def in_short(row: Row) -> str:
    """Say in one line what is a number or a word in a row."""
    short = {name: value for name, value in row.items() if type(value) in (int, float, str)}
    return ", ".join(
        f"{name} {value:.4g}" if type(value) is float else f"{name} {value}"
        for name, value in short.items()
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure what the arguments ask for; return 1 if a part failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="folder (default: build/gpu or build/gpu-tiny)")
    parser.add_argument("--tiny", action="store_true", help="run through all of it within seconds")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    given = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not given.tiny:
        parser.error("full sizes need a GPU that torch can use, got none: give --tiny")
    out = given.out or Path("build", "gpu-tiny" if given.tiny else "gpu")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out must be a folder that can be written, got {out}: {error.strerror}")
    about = machine(device)
    peak = peak_of(about["device"])
    record: dict[str, Any] = {"failed": {}}
    if given.only and (out / "gpu.json").exists():
        record = json.loads((out / "gpu.json").read_text(encoding="utf-8"))
        before = (record["machine"]["device"], record["tiny"])
        if before != (about["device"], given.tiny):
            parser.error(f"--only must add to a record of the same device and sizes, got {before}")
    record |= {"machine": about, "date": datetime.now(UTC).date().isoformat(), "tiny": given.tiny}
    record["peak"] = peak and asdict(peak) | {
        "dtype": "bfloat16",
        "source": "the manufacturer's data sheet, see PEAKS in groundup.looking.accounting",
    }
    print(f"{about['device']}, torch {about['torch']}, record in {out / 'gpu.json'}", flush=True)
    measure(Run(device, given.tiny, out), given.only or list(PARTS), record)
    return 1 if record["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
