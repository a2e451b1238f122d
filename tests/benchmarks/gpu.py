"""What is measured on a GPU, in one command of at most 25 minutes.

    python tests/benchmarks/gpu.py

measures which share of the GPU's peak GPT-2 small reaches in training, beside other libraries;
attention over lengths, explicit and fused; how many tokens per second GPT-2 small writes; how
long a pass takes for more sequences and for more tokens; and what a small model learns in
bfloat16 and in float32 from a text whose published result is known. Then it trains a model as
`groundup.pretrained` wants it. The record, `build/gpu/gpu.json`, is written after every
row, so whatever stops the command leaves what came before. It holds the `machine`, the `peak` of
the GPU by its manufacturer, a list of rows for each part, and a sentence for each that `failed`;
pages draw from it once it lies in `tests/benchmarks/records`. `--only decoding shipped` measures
these parts again and keeps the others.

The package need not be installed: `PYTHONPATH=lib` is enough beside torch, jaxtyping, safetensors,
tokenizers, tqdm, transformers for its peer and babel for the model that it trains. Tiny Shakespeare
is downloaded, unless `TINY_SHAKESPEARE=path` is in the environment. With `--tiny` everything
runs within seconds, also without a GPU; its numbers mean nothing.
"""

import argparse
import copy
import gc
import json
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import peers
import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from groundup import presets, pretrained
from groundup.core.attention import scaled_dot_product_attention
from groundup.core.cache import KeyValueCache
from groundup.core.models import DecoderOnly
from groundup.data.batches import Batch, language_model_batches
from groundup.data.texts import text_file, tiny_shakespeare
from groundup.data.tokenizers import CharacterTokenizer
from groundup.generation.caches import StaticLayerCache
from groundup.generation.loop import generate
from groundup.looking.accounting import decoding_bytes, peak_of, training_flops
from groundup.looking.throughput import machine, measure_decoding, measure_training
from groundup.training.loop import TrainingConfig, cross_entropy, evaluate, optimizers_for, train
from groundup.training.setup import Setup, set_up
from groundup.training.tasks import TextTask

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

    def model(self, preset: str, **sizes: Any) -> DecoderOnly:
        if self.is_tiny:
            sizes |= dict(vocab_size=61, max_len=24, d_model=32, d_ff=48, num_layers=2, num_heads=4)
        config = presets.decoder_only(preset, dropout=0.0, **sizes)
        return DecoderOnly(config, torch.Generator().manual_seed(0)).to(self.device)

    def gpt2_small(self, **choices: Any) -> DecoderOnly:
        """Make GPT-2 small. Its vocabulary is rounded up to a multiple of 64, for tensor cores."""
        return self.model("gpt2_small", vocab_size=50304, **choices)

    def llama_1b(self) -> DecoderOnly:
        """Make a model of the sizes of Llama 3.2 1B, with a shorter context."""
        sizes = dict(d_model=2048, d_ff=8192, num_layers=16, num_heads=32, num_kv_heads=8)
        if self.is_tiny:
            sizes["num_kv_heads"] = 2
        more = dict(vocab_size=128256, max_len=1024, tie_embeddings=True)
        return self.model("llama", **sizes, **more)

    def tokens(self, model: DecoderOnly, *shape: int) -> Tensor:
        """Draw tokens at random: speed does not depend on them."""
        generator = torch.Generator().manual_seed(1)
        return torch.randint(model.config.vocab_size, shape, generator=generator).to(self.device)


# --- training --------------------------------------------------------------------------------


def training(run: Run) -> Iterator[Row]:
    """Train GPT-2 small, ours and that of other libraries, with AdamW on 32 rows of full length.

    `mfu` counts all pairs of query and key, as most papers do, and `mfu_allowed` those that the
    mask allows.
    """
    config = run.gpt2_small().config
    ways: Row = {"attention": "fused", "compiled": True}
    sizes = dict(d_model=config.d_model, num_heads=config.num_heads, num_layers=config.num_layers)
    sizes |= dict(vocab_size=config.vocab_size, length=config.max_len)
    others = peers.PEERS | {"nanoGPT's architecture, without biases": peers.NanoGPT}
    others.pop("x-transformers")
    for name in ("groundup", *others):
        model: Any = run.gpt2_small(activation="gelu")
        if name != "groundup":
            model = others[name](**sizes).to(run.device)
            model.config = config  # by which operations are counted
        yield {"model": name} | ways | trained(run, model, **ways)
    changes: tuple[Row, ...] = (
        {"bias": False},
        {"compiled": False},
        {"attention": "explicit"},
        {"precision": "float32"},
    )
    for changed in changes:
        model = run.gpt2_small(activation="gelu", bias=changed.get("bias", True))
        how: Row = ways | {k: changed[k] for k in changed.keys() - {"bias"}}
        yield {"model": "groundup"} | ways | changed | trained(run, model, **how)


def trained(
    run: Run, model: Any, attention: Any, compiled: bool, precision: Any = "bfloat16"
) -> Row:
    """Measure training of one model, and release its memory."""
    rows, length = 2 if run.is_tiny else 32, model.config.max_len
    tokens = run.tokens(model, rows, length)
    setup = Setup(precision=precision, compiled=compiled and run.is_gpu, attention=attention)
    try:
        speed = measure_training(
            set_up(model, setup),
            Batch({"tokens": tokens}, tokens.roll(-1, dims=1)),
            optimizers_for(model, TrainingConfig(steps=1, learning_rate=1e-4)),
            precision=precision,
            # Compiled, it does not write the logits down in float32, the largest tensor of all.
            loss=torch.compile(cross_entropy) if setup.compiled else None,
            seconds=0.0 if run.is_tiny else 6.0,
        )
    except torch.OutOfMemoryError:
        return {"dtype": precision, "note": "out of memory"}
    finally:
        peak_bytes = torch.cuda.max_memory_allocated() if run.is_gpu else None
        release(run)
    flops, allowed = (
        sum(training_flops(model.config, rows, length, pairs=pairs).values())
        for pairs in ("all", "allowed")
    )
    row: Row = {"dtype": precision, "batch_size": rows, "length": length}
    row["mfu_allowed"] = None if speed.mfu is None else speed.mfu * allowed / flops
    row["peak_bytes"] = peak_bytes
    return row | asdict(speed)


# --- attention -------------------------------------------------------------------------------


def attention(run: Run) -> Iterator[Row]:
    """Attend, forward and backward, to equally many tokens in ever longer sequences."""
    heads, d_head, num_tokens = (2, 8, 96) if run.is_tiny else (12, 64, 2**15)
    for length in (24, 48) if run.is_tiny else (2**power for power in range(8, 15)):
        shape = (4, num_tokens // length, heads, length, d_head)
        generator = torch.Generator(run.device).manual_seed(0)
        drawn = torch.randn(shape, generator=generator, device=run.device, dtype=torch.bfloat16)
        for backend in ("fused", "explicit", "explicit, compiled"):
            try:
                cost = attention_cost(run, backend, *drawn.unbind())
            except torch.OutOfMemoryError:
                cost = {"milliseconds": None, "peak_bytes": None, "note": "out of memory"}
            sizes = {"heads": heads, "d_head": d_head, "num_tokens": num_tokens}
            yield {"length": length, "backend": backend, "dtype": "bfloat16"} | sizes | cost


def attention_cost(run: Run, backend: Any, *drawn: Tensor) -> Row:
    """Measure the median time of a call, and the memory that it takes beside its inputs."""
    (query, key, value), upstream = (part.requires_grad_() for part in drawn[:3]), drawn[3]
    backend, _, compiled = backend.partition(", ")
    attend: Any = scaled_dot_product_attention
    if compiled and run.is_gpu:
        torch.compiler.reset()
        attend = torch.compile(attend, dynamic=False)

    def call() -> None:
        mixed = attend(query, key, value, backend=backend, is_causal=True)
        torch.autograd.grad(mixed, (query, key, value), upstream)

    for _ in range(3):  # warm-up
        call()
    peak_bytes = None
    if run.is_gpu:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        peak_bytes = torch.cuda.max_memory_allocated() - before
    timer = Timer("call()", globals={"call": call})  # which waits for a GPU
    median = timer.blocked_autorange(min_run_time=0.01 if run.is_tiny else 0.5).median
    return {"milliseconds": 1000 * median, "peak_bytes": peak_bytes}


# --- decoding --------------------------------------------------------------------------------


class GraphedStep:
    """A step of decoding that a GPU replays from a CUDA graph, and so never waits for Python.

    A graph knows one cache. The first step with another one copies that into it. Without a GPU
    there is no graph: the model computes what would be replayed.
    """

    def __init__(self, model: DecoderOnly):
        self.model = copy.deepcopy(model)  # the model itself stays as it is, to compare with
        self.copied: KeyValueCache | None = None
        self.logits: Tensor
        backend = "inductor" if next(model.parameters()).is_cuda else "eager"
        for block in self.model.blocks:  # they share their code, so it is compiled once
            block.compile(fullgraph=True, dynamic=False, backend=backend)

    def __call__(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        if self.copied is None:
            self._record(tokens, cache)
        if self.copied is not cache:
            for own, new in zip(self.cache.layers, cache.layers, strict=True):
                for name in ("keys", "values", "length"):
                    getattr(own, name).copy_(getattr(new, name))
            self.copied = cache
        self.tokens.copy_(tokens)
        self.replay()
        return self.logits

    def _record(self, tokens: Tensor, cache: KeyValueCache) -> None:
        self.tokens, self.cache = tokens.clone(), copy.deepcopy(cache)

        def compute() -> None:
            self.logits = self.model(self.tokens, cache=self.cache)

        self.replay = compute
        if tokens.is_cuda:
            for _ in range(3):  # what compiles or chooses kernels cannot be recorded
                compute()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                compute()
            self.replay = graph.replay


def decoding(run: Run) -> Iterator[Row]:
    """Write with GPT-2 small in bfloat16: one text, and many at once."""
    prompt_len, new_tokens = (3, 21) if run.is_tiny else (16, 240)
    for batch_size in (1, 5) if run.is_tiny else (1, 128):
        model = run.gpt2_small().to(torch.bfloat16).requires_grad_(False)
        prompt = run.tokens(model, batch_size, prompt_len)
        ways: Any = (("growing", None), ("static", GraphedStep(model)))
        for cache, step in ways:
            speed = measure_decoding(model, prompt, new_tokens, rounds=3, cache=cache, step=step)
            if step is not None:
                how = {"cache": cache, "step": step, "max_len": prompt_len + new_tokens}
                require_best_tokens(model, generate(model, prompt, new_tokens, **how), new_tokens)
            row = {"model": "gpt2_small", "dtype": "bfloat16", "batch_size": batch_size}
            row |= {"prompt": prompt_len, "new_tokens": new_tokens, "cache": cache}
            row["step"] = "eager" if step is None else "CUDA graph of compiled blocks"
            yield row | asdict(speed)


@torch.no_grad()
def require_best_tokens(model: DecoderOnly, context: Tensor, new_tokens: int) -> None:
    """Refuse texts that the model would not write, beyond what rounding explains."""
    logits = model(context[:4, :-1])[:, -new_tokens:].float()
    written = logits.gather(-1, context[:4, -new_tokens:, None])[..., 0]
    regret, limit = (logits.amax(dim=-1) - written).max().item(), 0.25 * logits.std().item()
    if not regret <= limit:
        rule = "a graph must write what the model would, got a token whose logit is"
        raise ValueError(f"{rule} {regret:.3f} below the best, more than {limit:.3f}")


# --- one pass, of more sequences and of more tokens -----------------------------------------


def passes(run: Run) -> Iterator[Row]:
    """Time one pass of a replayed step in bfloat16: for more sequences, and for more tokens.

    Its static cache has room for 512 tokens, all of which every pass reads.
    """
    shapes = [(1, 1), (1, 5), (4, 1), (16, 1), (64, 1), (256, 1), (1, 2), (1, 8)]
    shapes = [(1, 1), (1, 2), (3, 1)] if run.is_tiny else shapes
    for name, make in (("gpt2_small", run.gpt2_small), ("llama_1b", run.llama_1b)):
        model = make().to(torch.bfloat16).requires_grad_(False)
        room, repeats = (24, 1) if run.is_tiny else (512, 40)
        for batch_size, new in shapes:
            torch.compiler.reset()
            cache = model.new_cache(batch_size, max_len=room, kind=StaticLayerCache)
            model(run.tokens(model, batch_size, 6), cache=cache)
            step = GraphedStep(model)
            step(run.tokens(model, batch_size, new), cache)
            timed = Timer("replay()", globals={"replay": step.replay}).timeit(repeats)
            sizes = (model.config, batch_size, room - 1, torch.bfloat16)
            row: Row = {"model": name, "batch_size": batch_size, "new_tokens": new, "room": room}
            row |= {"milliseconds": 1000 * timed.mean, "num_bytes": decoding_bytes(*sizes)}
            yield row | {"parameters": sum(p.numel() for p in model.parameters())}
            del step, cache
            release(run)
        del model
        release(run)


# --- learning ---------------------------------------------------------------------------------

LEARNED = {"vocab_size": 65, "max_len": 256, "d_model": 384, "num_layers": 6, "num_heads": 6}
"""nanoGPT's small model of characters; its recipe is in `config/train_shakespeare_char.py`."""


def learning(run: Run) -> Iterator[Row]:
    """Train nanoGPT's model of Tiny Shakespeare by its recipe, and ours with modern parts.

    Unlike there, attention weights are not dropped, which may be why the model overfits sooner.
    `nats` is the loss on all of the validation set, at the `step` in the same place. The recipe's
    published loss, 1.4697, is the lowest of its run, estimated on batches drawn from that set.
    """
    path = __file__ if run.is_tiny else os.environ.get("TINY_SHAKESPEARE")
    data = text_file(path) if path else tiny_shakespeare()
    tokenizer = CharacterTokenizer.fit(data.train + data.validation)
    texts = [torch.tensor(tokenizer.encode(part)) for part in (data.train, data.validation)]
    sizes = LEARNED | {"vocab_size": tokenizer.vocab_size}
    if run.is_tiny:
        sizes |= {"max_len": 32, "d_model": 48, "num_layers": 2}
    nano: Row = {"learning_rate": 1e-3, "final_learning_rate": 0.1, "beta2": 0.99}
    recipes = {"gpt2_small": TrainingConfig(steps=1, **nano)}
    recipes["modern"] = TextTask.RECIPES["modern"].training
    for preset, precision, steps in (
        ("gpt2_small", "bfloat16", 5000),
        ("modern", "bfloat16", 2000),
        ("gpt2_small", "bfloat16", 1000),
        ("gpt2_small", "float32", 1000),
    ):
        how = replace(recipes[preset], steps=4 if run.is_tiny else steps, precision=precision)
        yield learned(run, texts, preset, how, sizes)


def learned(run: Run, texts: list[Tensor], preset: Any, how: TrainingConfig, sizes: Row) -> Row:
    """Train once, and measure the loss ten times along the way."""
    parts: Row = {"activation": "gelu", "bias": False} if preset == "gpt2_small" else {}
    config = presets.decoder_only(preset, dropout=0.2, d_ff=4 * sizes["d_model"], **sizes, **parts)
    torch.manual_seed(0)  # dropout
    model = DecoderOnly(config, torch.Generator().manual_seed(0)).to(run.device)
    setup = Setup(precision=how.precision, compiled=run.is_gpu, attention="fused")
    batch_size, length = 3 if run.is_tiny else 64, config.max_len
    generator = torch.Generator().manual_seed(0)
    batches = language_model_batches(texts[0], batch_size, length, generator)
    end = (len(texts[1]) - 1) // length * length
    inputs, targets = (texts[1][i : end + i].view(-1, length) for i in (0, 1))
    rows = zip(inputs.split(batch_size), targets.split(batch_size), strict=True)
    unseen = [Batch({"tokens": tokens}, own) for tokens, own in rows]
    unseen = unseen[: 2 if run.is_tiny else None]
    row: Row = {"preset": preset, "precision": how.precision, "steps": how.steps}
    row |= {"optimizer": how.optimizer, "batch_size": batch_size}
    row |= {"parameters": sum(p.numel() for p in model.parameters()), **sizes}
    curve: Row = {"step": [], "training_nats": [], "nats": []}
    begun = time.monotonic()
    optimizer = optimizers_for(model, how)
    every = max(1, how.steps // 10)
    for now in train(set_up(model, setup), batches, optimizer, how, record_every=every):
        curve["step"].append(now.step)
        curve["training_nats"].append(now.loss)
        curve["nats"].append(evaluate(model, unseen)[0])
    seconds = time.monotonic() - begun
    release(run)
    return row | {"seconds": seconds, "best_nats": min(curve["nats"]), **curve}


# --- a model that comes with the course ------------------------------------------------------


def shipped(run: Run) -> Iterator[Row]:
    """Train `llama` again, by the command of its record, on four times as many tokens.

    It makes as many updates as fit into 80 seconds, but no more than that command.
    """
    from groundup.__main__ import main as groundup
    from groundup.pretrained.__main__ import describe  # needs babel, as `groundup train` does

    words = shlex.split(pretrained.record("llama")["command"])[2:]
    options = dict(word.removeprefix("--").split("=", 1) for word in words)
    options |= {"device": "auto", "attention": "fused", "batch-size": "16"}
    if run.is_tiny:
        options |= {"data": __file__, "vocab-size": "300", "context": "32", "batch-size": "3"}
        options |= {"compile": "off", "precision": "float32"}

    def train(folder: Path, steps: int) -> tuple[list[str], list[Row]]:
        options["steps"] = str(steps)
        command = ["train", *(f"--{name}={value}" for name, value in options.items())]
        if groundup([*command, "--overwrite", f"--out={folder}"]):
            raise RuntimeError("groundup train failed, as it said above")
        log = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
        return command, [json.loads(line) for line in log]

    most, seconds, folder = int(options["steps"]), 0 if run.is_tiny else 80, run.out / "llama"
    with tempfile.TemporaryDirectory() as trial:
        _, log = train(Path(trial), 11 if run.is_tiny else 40)  # the first ten compile
    update = int(options["batch-size"]) * int(options["context"]) / log[-1]["tokens_per_second"]
    command, log = train(folder, max(11, min(most, int(seconds / update))))
    how = {"command": shlex.join(["groundup", *command]), "hardware": machine(run.device)}
    record = describe(folder) | how  # by itself it says that a CPU was used
    (folder / "record.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"shipped: copy config.json, model.safetensors and record.json from {folder} to")
    print(f"shipped: lib/groundup/pretrained/{folder.name}, and it comes with the course")
    curve = {name: [line[name] for line in log[::10]] for name in ("step", "loss")}
    yield {"model": folder.name, **record, "curve": curve}


# --- the command -----------------------------------------------------------------------------

PARTS: dict[str, tuple[Callable[[Run], Iterator[Row]], float]] = {
    "training": (training, 430),
    "attention": (attention, 120),
    "decoding": (decoding, 120),
    "passes": (passes, 300),
    "learning": (learning, 300),
    "shipped": (shipped, 260),
}
"""What is measured, and the most seconds that it may take; the most important first."""


class Overtime(BaseException):
    """A part has used up its time. Not an `Exception`, which a library might catch."""


def measure(run: Run, names: list[str], record: dict[str, Any]) -> None:
    """Measure the named parts, and write the record after every row."""

    def write() -> None:
        text = json.dumps(record, indent=2, allow_nan=False) + "\n"
        (run.out / "gpu.json.new").write_text(text, encoding="utf-8")
        os.replace(run.out / "gpu.json.new", run.out / "gpu.json")  # it is whole at every moment

    def ring(*_: Any) -> None:
        raise Overtime("it took more than its time")

    rung_before = signal.signal(signal.SIGALRM, ring)
    for name in names:
        part, seconds = PARTS[name]
        begun, record[name] = time.monotonic(), []
        record["failed"].pop(name, None)
        try:
            # It rings again, because an error inside a finalizer is printed and forgotten.
            signal.setitimer(signal.ITIMER_REAL, seconds, 5.0)
            for row in part(run):
                record[name].append(row)
                write()
                print(f"{name}: {in_short(row)}", flush=True)
        except (Exception, Overtime) as error:
            record["failed"][name] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
            print(f"{name}: failed, {record['failed'][name]}", flush=True)
        signal.setitimer(signal.ITIMER_REAL, 0)
        write()
        print(f"{name}: took {time.monotonic() - begun:.0f} s", flush=True)
        release(run)
    signal.signal(signal.SIGALRM, rung_before)


def release(run: Run) -> None:
    """Forget what was compiled and free what no one uses, so that the next row starts alike."""
    torch.compiler.reset()
    gc.collect()
    if run.is_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def in_short(row: Row) -> str:
    """Say a row's numbers and words in a line."""
    said = {k: x for k, x in row.items() if type(x) in (int, float, str) and k != "command"}
    return ", ".join(f"{k} {x:.4g}" if type(x) is float else f"{k} {x}" for k, x in said.items())


def main(arguments: list[str] | None = None) -> int:
    """Measure what the arguments ask for; return 1 if a part failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="folder (default: build/gpu or build/gpu-tiny)")
    parser.add_argument("--tiny", action="store_true", help="run through everything in seconds")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    given = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not given.tiny:
        parser.error("full sizes need a GPU that torch can use, got none: try --tiny")
    out = given.out or Path("build", "gpu-tiny" if given.tiny else "gpu")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out must be a folder, got {out}: {error.strerror}")
    about, record = machine(device), {"failed": {}}
    if given.only and (out / "gpu.json").exists():
        record = json.loads((out / "gpu.json").read_text(encoding="utf-8"))
        if (record["machine"]["device"], record["tiny"]) != (about["device"], given.tiny):
            parser.error("--only must add to a record of the same device and sizes: choose --out")
    peak = peak_of(about["device"])
    source = {"dtype": "bfloat16", "source": "groundup.looking.accounting.PEAKS, from data sheets"}
    record |= {"machine": about, "peak": peak and asdict(peak) | source, "tiny": given.tiny}
    record["date"] = datetime.now(UTC).date().isoformat()
    print(f"{about['device']}, torch {about['torch']}; record: {out / 'gpu.json'}", flush=True)
    measure(Run(device, given.tiny, out), given.only or list(PARTS), record)
    return 1 if record["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
