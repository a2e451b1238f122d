"""Everything that is measured on a GPU, in one command that ends within its time.

    python tests/benchmarks/gpu.py --out build/gpu

writes `build/gpu/gpu.json` after each result, so that whatever stops the command leaves what was
measured before. Each measurement has a time of its own and may fail on its own. The most
important come first, and what there was no time for is named: `--only training_torch attention`
takes those alone. A run replaces the results that it takes again and keeps the others.

The package itself need not be installed, and nothing is downloaded. On a machine without a
network that has torch, jaxtyping, safetensors and tokenizers, one package more must come along
as a file, and Hugging Face's models, if they are there, are measured beside ours:

    pip download --no-deps --dest wheels babel==2.18.0     # where there is a network
    pip install --no-index --no-deps --target site wheels/*.whl   # where there is none
    PYTHONPATH=lib:site python tests/benchmarks/gpu.py --out build/gpu --seconds 480

With `--tiny` everything runs to its end on a processor within a minute: same results in form,
without any meaning as numbers, and so without goals.
"""

import argparse
import contextlib
import copy
import datetime
import functools
import gc
import json
import math
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from groundup import presets
from groundup.core.attention import scaled_dot_product_attention
from groundup.core.blocks import Block
from groundup.core.config import DecoderOnlyConfig
from groundup.core.models import DecoderOnly
from groundup.core.multihead import MultiHeadAttention
from groundup.data.batches import Batch, language_model_batches
from groundup.data.texts import python_reference, python_source
from groundup.data.tokenizers import CharacterTokenizer
from groundup.generation.loop import stream
from groundup.looking.accounting import (
    decoding_bytes,
    mfu,
    peak_of,
    training_flops,
    usual_training_flops_per_token,
)
from groundup.looking.throughput import machine
from groundup.training import loop
from groundup.training.loop import TrainingConfig, optimizers_for, train, train_step

Row = dict[str, Any]
ROUNDS = 5
GPT2_VOCAB_SIZE = 50257


# --- what the measurements share -----------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Run:
    """Where it is measured, and whether the sizes are those that count."""

    device: torch.device
    is_tiny: bool = False

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    def size(self, full: Any, tiny: Any) -> Any:
        """Choose what is computed."""
        return tiny if self.is_tiny else full

    def generator(self, seed: int = 0) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(seed)

    def random_tokens(self, vocab_size: int, *shape: int) -> Tensor:
        return torch.randint(vocab_size, shape, device=self.device, generator=self.generator(1))

    def new_model(self, config: DecoderOnlyConfig, seed: int = 0) -> DecoderOnly:
        """Make a model where it is needed: billions of weights take long on a processor."""
        with torch.device(self.device):
            return DecoderOnly(config, self.generator(seed))

    def compile(self, function: Any, **settings: Any) -> Any:
        """Compile for the device; on a processor, find out whether it could be done."""
        if not self.is_gpu:
            return torch.compile(function, backend="eager", fullgraph=True)
        return torch.compile(function, **settings)

    def wait(self) -> None:
        """Wait for what a GPU was told to do: it answers before it is done."""
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def row(
        self,
        metric: str,
        ours: float | None,
        *,
        unit: str,
        peer: float | None = None,
        peer_name: str | None = None,
        ratio: float | None = None,
        goal: float | None = None,
        of_ratio: bool = False,
        **more: Any,
    ) -> Row:
        """Say a result, and how it came about.

        Args:
            metric: What was measured.
            ours: How much, in `unit`.
            unit: Of `ours` and `peer`.
            peer: The same of something else.
            peer_name: What that is, or why it was not measured.
            ratio: By default `ours` over `peer`.
            goal: What `ours` should be at least; only a GPU and full sizes have goals.
            of_ratio: Whether the goal is for the ratio.
            **more: Anything that helps to understand or to draw the result.

        """
        if ratio is None and ours is not None and peer:
            ratio = ours / peer
        reached = ratio if of_ratio else ours
        goal = goal if self.is_gpu and not self.is_tiny else None
        about = machine(self.device)
        return {
            "metric": metric,
            "ours": ours,
            "peer": peer,
            "peer_name": peer_name,
            "ratio": ratio,
            "goal": goal,
            "met": None if goal is None or reached is None else reached >= goal,
            "unit": unit,
            **more,
            "hardware": f"{'' if self.is_gpu else 'CPU: '}{about['device']}, "
            f"torch {torch.__version__}",
            "load": f"{about['load']} on {about['cores']} cores",
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        }


def in_turns(run: Run, candidates: dict[str, Callable[[], Any]], seconds: float) -> dict[str, list]:
    """Time candidates in turns, about `seconds` for each; give the seconds of a call per round.

    They take turns so that what slows one, such as heat, slows the others as much. Each must
    have been called before, so that it is compiled and has its memory.
    """

    def time_of(call: Callable[[], Any], number: int) -> float:
        run.wait()
        start = time.perf_counter()
        for _ in range(number):
            call()
        run.wait()
        return (time.perf_counter() - start) / number

    number = {
        name: max(1, round(seconds / ROUNDS / time_of(call, 1)))
        for name, call in candidates.items()
    }
    times: dict[str, list] = {name: [] for name in candidates}
    for _ in range(ROUNDS):
        for name, call in candidates.items():
            times[name].append(time_of(call, number[name]))
    return times


def tidy() -> None:
    """Give back memory and forget what was compiled."""
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def first_that_fits(sizes: list[int], build: Callable[[int], Any]) -> tuple[int, Any]:
    """Build with the first size for which the memory is enough."""
    for size in sizes[:-1]:
        with contextlib.suppress(torch.OutOfMemoryError):
            return size, build(size)
        tidy()  # after the error, which holds on to what it interrupted
    return sizes[-1], build(sizes[-1])


@functools.cache
def text(name: str) -> tuple[str, Tensor, Tensor, int]:
    """Give a text by name: what it is, its tokens to learn from and to validate, their number."""
    data = {"reference": python_reference, "source": python_source}[name]()
    tokenizer = CharacterTokenizer.fit([data.train, data.validation])
    tokens = [torch.tensor(tokenizer.encode(part)) for part in (data.train, data.validation)]
    return data.name, tokens[0], tokens[1], tokenizer.vocab_size


# --- training throughput -------------------------------------------------------------------


def gpt2_sizes(run: Run, vocab_size: int) -> DecoderOnlyConfig:
    sizes = {"d_model": 32, "num_layers": 2, "num_heads": 2, "d_ff": 128, "max_len": 16}
    sizes = run.size({}, {**sizes, "vocab_size": vocab_size % 311})
    return presets.decoder_only("gpt2_small", **{"vocab_size": vocab_size, "dropout": 0.0, **sizes})


def padded(vocab_size: int) -> int:
    """Round up to a multiple of 64, as the product's tiles want; the added tokens never occur."""
    return -(-vocab_size // 64) * 64


def hugging_face(config: DecoderOnlyConfig) -> Any:
    import transformers

    sizes = transformers.GPT2Config(
        vocab_size=config.vocab_size,
        n_positions=config.max_len,
        n_embd=config.d_model,
        n_layer=config.num_layers,
        n_head=config.num_heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
        attn_implementation="sdpa",  # pyright: ignore[reportCallIssue]
    )

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = transformers.GPT2LMHeadModel(sizes)

        def forward(self, tokens):
            return self.model(tokens).logits

    return Logits()


class TorchLanguageModel(nn.Module):
    """GPT-2 out of torch's own encoder."""

    def __init__(self, config: DecoderOnlyConfig):
        super().__init__()
        d_model, bend = config.d_model, functools.partial(F.gelu, approximate="tanh")
        layer = nn.TransformerEncoderLayer(
            d_model, config.num_heads, config.d_ff, 0.0, bend, batch_first=True, norm_first=True
        )
        self.tokens = nn.Embedding(config.vocab_size, d_model)
        self.places = nn.Embedding(config.max_len, d_model)
        self.blocks = nn.TransformerEncoder(
            layer, config.num_layers, nn.LayerNorm(d_model), enable_nested_tensor=False
        )
        mask = nn.Transformer.generate_square_subsequent_mask(config.max_len)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return self.blocks(x, mask=self.mask, is_causal=True) @ self.tokens.weight.T


@contextlib.contextmanager
def compiled_loss(run: Run) -> Iterator[None]:
    """Let `train_step` compute its loss compiled.

    With 50 thousand tokens, the logits in float32 are the largest thing that training writes
    and reads; compiled, they are turned into float32 where they are used.
    """
    usual = loop.cross_entropy
    loop.cross_entropy = run.compile(usual)
    try:
        yield
    finally:
        loop.cross_entropy = usual


def updates_of(run: Run, model: nn.Module, batch: Batch, compiled: bool = True) -> Callable:
    """Make a function that trains once more, called often enough to be at speed."""
    optimizer = optimizers_for(model, TrainingConfig(steps=1, learning_rate=1e-4))
    forward = run.compile(model) if compiled else model

    def update() -> Tensor:
        return train_step(forward, batch, optimizer, precision="bfloat16")[0]

    for _ in range(3):
        loss = update()
    if not math.isfinite(loss.item()):
        raise ValueError(f"the loss must stay finite, got {loss.item()}")
    return update


def batch_of(run: Run, config: DecoderOnlyConfig, batch_size: int) -> Batch:
    windows = run.random_tokens(min(config.vocab_size, GPT2_VOCAB_SIZE), batch_size, config.max_len)
    return Batch({"tokens": windows}, windows.roll(-1, dims=1))


def ours_in_training(run: Run, config: DecoderOnlyConfig) -> tuple[int, Callable]:
    return first_that_fits(
        run.size([32, 16, 8], [2]),
        lambda size: updates_of(run, run.new_model(config), batch_of(run, config, size)),
    )


def measure_training_of(run: Run, vocab_size: int, manners: dict[str, list[Any]]) -> Iterator[Row]:
    """GPT-2 small in bfloat16, compiled, with fused attention and the fused AdamW.

    Shares of the peak count what the real vocabulary needs, by the formula of most papers and
    as what is really needed: by that, attention counts only pairs that the mask allows.
    """
    real, config = gpt2_sizes(run, GPT2_VOCAB_SIZE), gpt2_sizes(run, vocab_size)
    peak = peak_of(machine(run.device)["device"])
    usual = usual_training_flops_per_token(real, real.max_len)
    needed = sum(training_flops(real, 1, real.max_len, pairs="allowed").values()) / real.max_len
    failures = []
    for manner, contexts in manners.items():
        try:
            with contextlib.ExitStack() as stack:
                for context in contexts:
                    stack.enter_context(context)
                if run.is_gpu:
                    torch.cuda.reset_peak_memory_stats()
                batch_size, update = ours_in_training(run, config)
                times = in_turns(run, {"ours": update}, run.size(8.0, 0.0))["ours"]
                del update
        except Exception as error:  # the other manners are worth measuring all the same
            failures.append(f"{manner}: {one_line(error)}")
            continue
        finally:
            tidy()
        rate = batch_size * config.max_len / statistics.median(times)
        yield run.row(
            f"training, GPT-2 small, vocabulary of {config.vocab_size}, {manner}",
            rate,
            unit="tokens per second",
            mfu=None if peak is None else mfu(rate * usual, peak),
            mfu_of_needed=None if peak is None else mfu(rate * needed, peak),
            flops_per_token={"usual": usual, "needed": needed},
            batch_size=batch_size,
            length=config.max_len,
            seconds_of_updates=times,
            peak_bytes=torch.cuda.max_memory_allocated() if run.is_gpu else None,
        )
    if failures:
        raise RuntimeError("; ".join(failures))


def measure_training(run: Run) -> Iterator[Row]:
    """As `measure_training_of` says, in several manners, and the best of them."""
    manners: dict[str, list[Any]] = {"compiled loss": [compiled_loss(run)]}
    if run.is_gpu:
        kernel = sdpa_kernel(SDPBackend.CUDNN_ATTENTION)
        manners["compiled loss, attention of cuDNN"] = [compiled_loss(run), kernel]
    manners["eager loss"] = []
    best: Row | None = None
    for row in measure_training_of(run, padded(GPT2_VOCAB_SIZE), manners):
        yield row
        if best is None or row["ours"] > best["ours"]:
            best = row
            yield run.row(
                "training, GPT-2 small: MFU",
                row["mfu"],
                unit="share of peak FLOP/s",
                goal=0.5,
                of=row["metric"],
            )


def measure_training_against(
    run: Run, name: str, build: Callable[[DecoderOnlyConfig], nn.Module], goal: float | None
) -> Iterator[Row]:
    """Train a peer and ours in turns: same sizes, data, optimizer, precision and loss."""
    config = gpt2_sizes(run, padded(GPT2_VOCAB_SIZE))
    with compiled_loss(run):
        batch_size, ours = ours_in_training(run, config)
        batch = batch_of(run, config, batch_size)
        for manner in ("compiled", "eager"):
            with torch.device(run.device):
                model = build(config)
            candidates = {"ours": ours, name: updates_of(run, model, batch, manner == "compiled")}
            times = in_turns(run, candidates, run.size(5.0, 0.0))
            rates = {
                who: batch_size * config.max_len / statistics.median(seconds)
                for who, seconds in times.items()
            }
            yield run.row(
                f"training, GPT-2 small, beside {name}, {manner}",
                rates["ours"],
                unit="tokens per second",
                peer=rates[name],
                peer_name=f"{name}, bfloat16, {manner}",
                goal=goal if manner == "compiled" else None,
                of_ratio=True,
                batch_size=batch_size,
                length=config.max_len,
                seconds_of_updates=times,
            )
            del model, candidates
            gc.collect()


def without_peer(run: Run, metric: str, name: str, unit: str) -> Row:
    return run.row(metric, None, unit=unit, peer_name=f"{name} is not installed")


def measure_training_hugging_face(run: Run) -> Iterator[Row]:
    """As `measure_training_against` says."""
    name = "Hugging Face GPT-2"
    if not has_transformers():
        yield without_peer(
            run, f"training, GPT-2 small, beside {name}, compiled", name, "tokens per second"
        )
        return
    yield from measure_training_against(run, name, hugging_face, goal=1.2)


def measure_training_torch(run: Run) -> Iterator[Row]:
    """As `measure_training_against` says."""
    yield from measure_training_against(
        run, "torch.nn.TransformerEncoder", TorchLanguageModel, goal=None
    )


def measure_training_unpadded(run: Run) -> Iterator[Row]:
    """See what the vocabulary's own size costs, which is no multiple of anything."""
    manners: dict[str, list[Any]] = {"compiled loss": [compiled_loss(run)]}
    yield from measure_training_of(run, GPT2_VOCAB_SIZE, manners)


def has_transformers() -> bool:
    try:
        import transformers  # noqa: F401
    except ImportError:
        return False
    return True


# --- attention -----------------------------------------------------------------------------


def measure_attention(run: Run) -> Iterator[Row]:
    """Time and memory of attention, forward and backward, over lengths of equally many tokens."""
    heads, d_head = run.size((12, 64), (2, 8))
    num_tokens = run.size(16384, 64)
    dtype = torch.bfloat16

    def explicit(query, key, value):
        return scaled_dot_product_attention(query, key, value, backend="explicit", is_causal=True)

    def fused(query, key, value):
        return scaled_dot_product_attention(query, key, value, backend="fused", is_causal=True)

    for length in run.size([256, 512, 1024, 2048, 4096, 8192], [16, 32]):
        shape = (num_tokens // length, heads, length, d_head)
        inputs = [
            torch.randn(
                shape, generator=run.generator(seed), device=run.device, dtype=dtype
            ).requires_grad_()
            for seed in range(3)
        ]
        upstream = torch.randn(shape, generator=run.generator(3), device=run.device, dtype=dtype)
        compiled = run.compile(explicit, dynamic=False)
        milliseconds: dict[str, float | None] = {}
        peak_bytes: dict[str, int | None] = {}
        for name, attend in (("fused", fused), ("compiled", compiled), ("explicit", explicit)):
            call = functools.partial(_forward_and_backward, attend, inputs, upstream)
            milliseconds[name] = peak_bytes[name] = None
            with contextlib.suppress(torch.OutOfMemoryError):
                call()
                if run.is_gpu:
                    torch.cuda.reset_peak_memory_stats()
                    before = torch.cuda.memory_allocated()
                    call()
                    peak_bytes[name] = torch.cuda.max_memory_allocated() - before
                times = in_turns(run, {name: call}, run.size(0.5, 0.0))[name]
                milliseconds[name] = 1000 * statistics.median(times)
            if milliseconds[name] is None:
                tidy()
        ours, peer = milliseconds["fused"], milliseconds["explicit"]
        yield run.row(
            f"attention, forward and backward, length {length}",
            ours,
            unit="milliseconds",
            peer=peer,
            peer_name="explicit" if peer else "explicit, which does not fit into memory",
            ratio=peer / ours if peer and ours else None,
            length=length,
            num_tokens=num_tokens,
            milliseconds=milliseconds,
            peak_bytes=peak_bytes,
        )


def _forward_and_backward(attend: Callable, inputs: list[Tensor], upstream: Tensor) -> None:
    torch.autograd.grad(attend(*inputs), inputs, upstream)


# --- decoding ------------------------------------------------------------------------------


class LastPart(nn.Module):
    """What turns vectors into logits, as one thing that can be compiled."""

    def __init__(self, model: DecoderOnly):
        super().__init__()
        self.norm, self.unembedding = model.final_norm, model.unembedding

    def forward(self, x):
        return self.unembedding(self.norm(x))


class RecordedStep:
    """Reads one more token by replaying a CUDA graph, so that a processor has nothing to do.

    The blocks are compiled, not the model: all have one code, so one is compiled for all of
    them. They share their weights with the model they are made from. On a processor, it is the
    compiled model and no graph.

    Args:
        run: Where.
        model: Whose weights are used.
        attention: Written out, so that the compiler merges it with what stands around it, or
            torch's kernel.

    """

    WARM_UP = 3
    """Steps that compile and choose kernels, before one is recorded."""

    def __init__(self, run: Run, model: DecoderOnly, attention: str):
        self.is_gpu, self.calls, self.graph = run.is_gpu, 0, None
        shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        self.model = copy.deepcopy(model, shared)
        for module in self.model.modules():
            if isinstance(module, MultiHeadAttention):
                module.backend = attention  # pyright: ignore[reportAttributeAccessIssue]
        # Tuning also turns a product with one row into a sum that other steps can join.
        settings: Any = {"fullgraph": True, "dynamic": False}
        settings |= (
            {"options": {"coordinate_descent_tuning": True}} if run.is_gpu else {"backend": "eager"}
        )
        self.model.final_norm = LastPart(self.model)  # pyright: ignore[reportAttributeAccessIssue]
        self.model.unembedding = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
        for part in (*self.model.blocks, self.model.final_norm):
            part.compile(**settings)

    def __call__(self, tokens: Tensor, **given: Any) -> Tensor:
        """Read a token, with the same cache each time."""
        self.calls += 1
        if not self.is_gpu or self.calls <= self.WARM_UP:
            return self.model(tokens, **given)
        if self.graph is None:
            self.tokens = tokens.clone()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.logits = self.model(self.tokens, **given)
        self.tokens.copy_(tokens)
        self.graph.replay()
        return self.logits


def reduce_overhead(run: Run, model: DecoderOnly) -> Callable[..., Tensor]:
    """Compile the whole model and let torch record it."""
    compiled = run.compile(model, mode="reduce-overhead", fullgraph=True, dynamic=False)

    def step(tokens: Tensor, **given: Any) -> Tensor:
        # A column of one row keeps the strides of its table, which would be new for each token.
        return compiled(
            torch.empty_like(tokens, memory_format=torch.contiguous_format).copy_(tokens), **given
        )

    return step


def write(
    run: Run, model: DecoderOnly, cache: Any, step: Callable[..., Tensor] | None, room: int
) -> tuple[list[float], Tensor]:
    """Write one text at full speed; give the seconds per token in each round, and the text."""
    warm_up = run.size(12, 5)
    prompt = run.random_tokens(model.config.vocab_size, 1, run.size(16, 3))
    number = (room - prompt.shape[1] - warm_up) // ROUNDS
    tokens = stream(model, prompt, cache=cache, max_len=room, step=step)
    written = [next(tokens) for _ in range(warm_up)]
    times = []
    for _ in range(ROUNDS):
        run.wait()
        start = time.perf_counter()
        written += [next(tokens) for _ in range(number)]
        run.wait()
        times.append((time.perf_counter() - start) / number)
    return times, torch.cat((prompt, torch.stack(written, dim=1)), dim=1)


@torch.no_grad()
def require_best_tokens(model: DecoderOnly, context: Tensor, num_written: int) -> float:
    """Read a text again at once, and see how far what was written is from the best choice.

    Returns:
        The largest difference between the best logit and that of the token written. Rounding
        makes it differ from 0, because a step and a whole text use other kernels.

    Raises:
        ValueError: If that is more than rounding.

    """
    logits = model(context[:, :-1])[:, -num_written:].float()
    chosen = logits.gather(-1, context[:, -num_written:, None]).squeeze(-1)
    regret = (logits.amax(dim=-1) - chosen).max().item()
    limit = 0.25 * logits.std().item()
    if not regret <= limit:
        raise ValueError(
            "a fast step must write what the model would, got a token whose logit is "
            f"{regret:.3f} below the best, more than {limit:.3f}"
        )
    return regret


def decoding_model(run: Run, preset: str) -> DecoderOnly:
    sizes = {"d_model": 32, "num_layers": 2, "num_heads": 2, "d_ff": 128, "vocab_size": 61}
    sizes = run.size({}, {**sizes, "max_len": 32})
    config = presets.decoder_only(preset, dropout=0.0, **sizes)
    return run.new_model(config).to(torch.bfloat16).requires_grad_(False).eval()


def measure_decoding_of(
    run: Run, preset: str, name: str, goal: float, is_small: bool
) -> Iterator[Row]:
    """Tokens per second of one text, and what share of the memory's speed that is."""
    model = decoding_model(run, preset)
    config, room = model.config, run.size(256, 32)
    peak = peak_of(machine(run.device)["device"])
    manners: dict[str, tuple[str, Callable[[], Any]]] = {
        "growing cache, eager": ("growing", lambda: None),
        "static cache, CUDA graph of compiled blocks, explicit attention": (
            "static",
            lambda: RecordedStep(run, model, "explicit"),
        ),
        "static cache, CUDA graph of compiled blocks, fused attention": (
            "static",
            lambda: RecordedStep(run, model, "fused"),
        ),
    }
    if is_small:  # the whole of a large model takes too long to compile
        manners["static cache, compiled with reduce-overhead"] = (
            "static",
            lambda: reduce_overhead(run, model),
        )
    best: Row | None = None
    baseline = None
    failures = []
    for manner, (cache, new_step) in manners.items():
        try:
            times, context = write(run, model, cache, new_step(), room)
            num_written = context.shape[1] - run.size(16, 3)
            regret = require_best_tokens(model, context, num_written)
        except Exception as error:  # the other manners are worth measuring all the same
            failures.append(f"{manner}: {one_line(error)}")
            continue
        finally:
            tidy()
        seconds = statistics.median(times)
        contexts = range(context.shape[1] - num_written, context.shape[1])
        counts = [
            decoding_bytes(
                config, 1, c - 1, torch.bfloat16, buffer_len=room if cache == "static" else None
            )
            for c in contexts
        ]
        num_bytes = statistics.mean(counts)
        share = None if peak is None else num_bytes / seconds / peak.bandwidth
        baseline = baseline or 1 / seconds
        about = {
            "unit": "tokens per second",
            "peer": baseline,
            "peer_name": "ours, growing cache, eager",
            "bandwidth_share": share,
            "bytes_per_token": num_bytes,
            "room": room,
            "seconds_per_token": times,
            "largest_regret": regret,
        }
        row = run.row(f"decoding, {name}, {manner}", 1 / seconds, **about)
        yield row
        if cache == "static" and (best is None or row["ours"] > best["ours"]):
            best = row
            yield run.row(
                f"decoding, {name}: share of memory bandwidth",
                share,
                unit="share of peak bytes per second",
                goal=goal,
                of=row["metric"],
                tokens_per_second=row["ours"],
                peak_bandwidth=None if peak is None else peak.bandwidth,
            )
    if failures:
        raise RuntimeError("; ".join(failures))


def measure_decoding(run: Run) -> Iterator[Row]:
    """As `measure_decoding_of` says."""
    yield from measure_decoding_of(run, "gpt2_small", "GPT-2 small", goal=0.30, is_small=True)


def measure_decoding_xl(run: Run) -> Iterator[Row]:
    """As `measure_decoding_of` says; random weights are read as fast as any."""
    yield from measure_decoding_of(run, "gpt2_xl", "GPT-2 XL", goal=0.65, is_small=False)


def measure_decoding_hugging_face(run: Run) -> Iterator[Row]:
    """Hugging Face's own loop with its static cache, which compiles itself on a GPU."""
    metric, name = "decoding, GPT-2 small, beside Hugging Face", "Hugging Face GPT-2"
    unit = "tokens per second"
    if not has_transformers():
        yield without_peer(run, metric, name, unit)
        return
    model, room = decoding_model(run, "gpt2_small"), run.size(256, 32)
    ours = statistics.median(
        write(run, model, "static", RecordedStep(run, model, "explicit"), room)[0]
    )
    with torch.device(run.device):
        peer = hugging_face(model.config).model.to(torch.bfloat16).eval()
    prompt = run.random_tokens(model.config.vocab_size, 1, run.size(16, 3))
    number = room - prompt.shape[1] - 1

    def generate() -> None:
        peer.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=number,
            min_new_tokens=number,
            do_sample=False,
            use_cache=True,
            cache_implementation="static",
            pad_token_id=0,
        )

    for _ in range(2):
        generate()
    times = in_turns(run, {"peer": generate}, run.size(4.0, 0.0))["peer"]
    yield run.row(
        metric,
        1 / ours,
        unit=unit,
        peer=number / statistics.median(times),
        peer_name=f"{name}, generate with its static cache",
        room=room,
        seconds_of_texts=times,
    )


# --- learning ------------------------------------------------------------------------------


def small_config(run: Run, vocab_size: int, **choices: Any) -> DecoderOnlyConfig:
    sizes = {"d_model": 128, "num_layers": 6, "num_heads": 4, "d_ff": 512, "max_len": 128}
    tiny = {"d_model": 32, "num_layers": 2, "num_heads": 2, "d_ff": 64, "max_len": 16}
    values = {"vocab_size": vocab_size, "positions": "learned", **run.size(sizes, tiny), **choices}
    return presets.decoder_only("tiny", **values)


def measure_precision(run: Run) -> Iterator[Row]:
    """The same 200 updates in bfloat16 and in float32, from the same weights and data."""
    name, tokens, _, vocab_size = text("reference")
    config = small_config(run, vocab_size)
    steps = run.size(200, 6)
    curves: dict[str, list[float]] = {}
    every = run.size(10, 2)
    torch.set_float32_matmul_precision("highest")
    try:
        for precision in ("float32", "bfloat16"):
            settings = TrainingConfig(
                steps=steps, learning_rate=1e-3, warmup_steps=run.size(50, 2), precision=precision
            )
            model = run.new_model(config)
            batches = language_model_batches(
                tokens, run.size(32, 2), config.max_len, torch.Generator().manual_seed(0)
            )
            optimizer = optimizers_for(model, settings)
            records = train(model, batches, optimizer, settings, record_every=every)
            curves[precision] = [record.loss for record in records]
    finally:
        torch.set_float32_matmul_precision("high")
    gaps = [abs(a - b) for a, b in zip(curves["bfloat16"], curves["float32"], strict=True)]
    yield run.row(
        "precision, loss after training in bfloat16",
        curves["bfloat16"][-1],
        unit="nats per token",
        peer=curves["float32"][-1],
        peer_name="float32",
        largest_gap=max(gaps),
        data=name,
        steps=[min(every * (i + 1), steps) for i in range(len(gaps))],
        curves=curves,
    )


class BlockWithoutResidual(Block):
    """A block that passes on what its sub-layers find, and forgets what it was given."""

    def forward(self, x, mask=None, cache=None, positions=None):
        x = self.attention_norm(self.attention(x, mask=mask, cache=cache, positions=positions))
        return self.feed_forward_norm(self.feed_forward(x))


def remove_residuals(model: DecoderOnly) -> None:
    for block in model.blocks:
        block.__class__ = BlockWithoutResidual


def remove_mask(model: DecoderOnly) -> None:
    for block in model.blocks:
        attention: Any = block.attention
        attention.is_causal = False


def apply_softmax_twice(model: DecoderOnly) -> None:
    model.unembedding.register_forward_hook(lambda module, given, logits: logits.softmax(dim=-1))


def draw_weights_from_minus_one_to_one(model: DecoderOnly) -> None:
    for parameter in model.parameters():
        if parameter.ndim == 2:
            nn.init.uniform_(parameter, -1.0, 1.0)


def do_not_shift_targets(batch: Batch) -> Batch:
    return Batch(batch.inputs, batch.inputs["tokens"])


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """One thing done wrong in an otherwise healthy run."""

    choices: dict[str, Any] = field(default_factory=dict)
    """Of the model's configuration."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the loop."""
    change: Callable[[DecoderOnly], None] = lambda model: None
    """What is done to the model."""
    batch: Callable[[Batch], Batch] = lambda batch: batch
    """What is done to each batch."""


MISTAKES = {
    "none": Mistake(),
    "the mask is missing": Mistake(change=remove_mask),
    "the targets are not shifted": Mistake(batch=do_not_shift_targets),
    "the learning rate is too high": Mistake(settings={"learning_rate": 0.1}),
    "there is no warm-up": Mistake(settings={"warmup_steps": 0}),
    "the residual connections are missing": Mistake(change=remove_residuals),
    "the softmax is applied twice": Mistake(change=apply_softmax_twice),
    "dropout is 0.8": Mistake(choices={"dropout": 0.8}),
    "weights begin between -1 and 1": Mistake(change=draw_weights_from_minus_one_to_one),
}
"""Eight mistakes and one healthy run, whose curves a reader matches."""


def measure_mistakes(run: Run) -> Iterator[Row]:
    """Loss curves of runs that have one thing wrong each, and of one that has nothing wrong."""
    healthy = None
    for name in MISTAKES:
        curve = learn_with(run, MISTAKES[name])
        healthy = healthy or curve["loss"][-1]
        yield run.row(
            f"mistake, {name}",
            curve["loss"][-1] if curve["loss"] else None,
            unit="nats per token",
            peer=healthy,
            peer_name="the run without a mistake",
            **curve,
        )


def learn_with(run: Run, mistake: Mistake) -> dict[str, Any]:
    """Train a post-norm model, for which warm-up matters, with a mistake; give its curves.

    What is held out is read with the same mistake, as it would be by whoever made it.
    """
    name, tokens, held_out, vocab_size = text("reference")
    config = small_config(run, vocab_size, norm_order="post", **mistake.choices)
    values = {
        "steps": run.size(500, 4),
        "learning_rate": 2e-3,
        "warmup_steps": run.size(100, 2),
        "max_gradient_norm": 1e6,  # clipping would hide what some of the mistakes do
    }
    settings = TrainingConfig(**values | mistake.settings)
    torch.manual_seed(0)  # dropout, and the weights of one mistake
    model = run.new_model(config)
    mistake.change(model)
    batch_size = run.size(32, 2)
    drawn = torch.Generator().manual_seed(0)
    batches = language_model_batches(tokens, batch_size, config.max_len, drawn)
    drawn = torch.Generator().manual_seed(1)
    validation = [
        mistake.batch(next(language_model_batches(held_out, batch_size, config.max_len, drawn)))
        for _ in range(4)
    ]
    optimizer = optimizers_for(model, settings)
    curve: dict[str, Any] = {
        "data": name,
        "step": [],
        "loss": [],
        "validation": [],
        "gradient_norm": [],
    }
    records = train(
        model, map(mistake.batch, batches), optimizer, settings, record_every=run.size(10, 2)
    )
    try:
        for record in records:
            curve["step"].append(record.step)
            curve["loss"].append(record.loss)
            curve["gradient_norm"].append(record.gradient_norm)
            held = loop.evaluate(model, validation)[0]
            curve["validation"].append(held if math.isfinite(held) else None)
    except ValueError as error:  # the loss is no longer a number, which is a result
        curve["ended_by"] = str(error)
    return curve


def measure_extrapolation(run: Run) -> Iterator[Row]:
    """Train each position scheme on short windows, and read longer ones."""
    name, tokens, held_out, vocab_size = text(run.size("source", "reference"))
    trained, longest = run.size((256, 2048), (16, 64))
    lengths = [trained * 2**i for i in range(int(math.log2(longest // trained)) + 1)]
    sizes = run.size({"d_model": 256, "d_ff": 1024}, {})
    settings = TrainingConfig(
        steps=run.size(600, 3), learning_rate=1e-3, warmup_steps=run.size(100, 1)
    )
    held_out = held_out[: run.size(2**16, 2**8) + 1]
    for positions in ("sinusoidal", "learned", "rotary", "alibi", "none"):
        config = small_config(run, vocab_size, positions=positions, max_len=trained, **sizes)
        model = run.new_model(config)
        batches = language_model_batches(
            tokens, run.size(32, 2), trained, torch.Generator().manual_seed(0)
        )
        optimizer = optimizers_for(model, settings)
        (*_, last) = train(model, batches, optimizer, settings, record_every=run.size(100, 1))
        can_read = [trained] if positions == "learned" else lengths
        longer = model
        if positions != "learned":  # it has no vector for a place that it never saw
            config = small_config(run, vocab_size, positions=positions, max_len=longest, **sizes)
            longer = run.new_model(config)
            longer.load_state_dict(model.state_dict())
        losses = {length: losses_by_place(run, longer, held_out, length) for length in can_read}
        nats = {str(length): loss.mean().item() for length, loss in losses.items()}
        last_half = {
            str(length): loss[length // 2 :].mean().item() for length, loss in losses.items()
        }
        yield run.row(
            f"extrapolation, positions {positions}",
            nats.get(str(longest)),
            unit="nats per token",
            peer=nats[str(trained)],
            peer_name=f"the same model on the {trained} tokens that it was trained on",
            data=name,
            trained_length=trained,
            training_loss=last.loss,
            nats_per_token=nats,
            nats_per_token_of_last_half=last_half,
            note="cannot read more than it was trained on" if len(can_read) == 1 else None,
        )


@torch.no_grad()
def losses_by_place(run: Run, model: DecoderOnly, tokens: Tensor, length: int) -> Tensor:
    """Read a text in windows side by side; give the average loss at each place of a window."""
    model.eval()
    windows = tokens[:-1].unflatten(0, (-1, length)).to(run.device)
    targets = tokens[1:].unflatten(0, (-1, length)).to(run.device)
    total = torch.zeros(length, device=run.device)
    for some, answers in zip(windows.split(8), targets.split(8), strict=True):
        logits = model(some).float()  # (batch, length, vocab)
        total += F.cross_entropy(logits.mT, answers, reduction="none").sum(dim=0)
    return total / len(windows)


# --- the command ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Measurement:
    """One of the things that are measured."""

    measure: Callable[[Run], Iterator[Row]]
    """Gives rows, one by one."""
    seconds: float
    """The most time it may take; it begins only if half of that is left."""


MEASUREMENTS = {
    "training": Measurement(measure_training, 180),
    "training_hugging_face": Measurement(measure_training_hugging_face, 150),
    "decoding": Measurement(measure_decoding, 120),
    "decoding_xl": Measurement(measure_decoding_xl, 120),
    "attention": Measurement(measure_attention, 90),
    "precision": Measurement(measure_precision, 40),
    "mistakes": Measurement(measure_mistakes, 90),
    "extrapolation": Measurement(measure_extrapolation, 100),
    "training_torch": Measurement(measure_training_torch, 120),
    "decoding_hugging_face": Measurement(measure_decoding_hugging_face, 90),
    "training_unpadded": Measurement(measure_training_unpadded, 120),
    # The models that come with the library are not here: `groundup train` makes them, and writes
    # the record of each beside it.
}
"""By name, the most important first."""


class Overtime(BaseException):
    """A measurement has used up its time. No `Exception`, lest a library catches it."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `Overtime` inside, after so many seconds."""

    def ring(*_: Any) -> None:
        raise Overtime

    previous = signal.signal(signal.SIGALRM, ring)
    # It rings again, because an error inside a finalizer is printed and forgotten.
    signal.setitimer(signal.ITIMER_REAL, seconds, 5.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


class Results:
    """The rows so far, in a file that is whole at every moment."""

    def __init__(self, path: Path):
        self.path = path
        self.rows: list[Row] = json.loads(path.read_text()) if path.exists() else []

    def put(self, row: Row) -> None:
        """Add a row in place of that of the same metric."""
        self._write([old for old in self.rows if old["metric"] != row["metric"]] + [row])

    def forget_failure(self, name: str) -> None:
        """Take out the row that says why a measurement gave nothing."""
        is_failure = {"error", "left_out"}.intersection
        self._write([old for old in self.rows if old["metric"] != name or not is_failure(old)])

    def _write(self, rows: list[Row]) -> None:
        self.rows = rows
        new = self.path.with_name(f"{self.path.name}.new")
        new.write_text(json.dumps(rows, indent=2, allow_nan=False) + "\n")
        os.replace(new, self.path)


def one_line(error: BaseException) -> str:
    """Name an error in one line."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}"[:300]


def measure_all(
    run: Run,
    measurements: dict[str, Measurement],
    results: Results,
    seconds: float,
    say: Callable[[str], None],
) -> int:
    """Take one measurement after the other while there is time; give the number that failed."""
    start = time.monotonic()
    num_failed = 0
    for name, measurement in measurements.items():
        spent = time.monotonic() - start
        limit = min(measurement.seconds, seconds - spent)
        if limit < measurement.seconds / 2:
            reason = f"{seconds - spent:.0f} of {seconds:.0f} seconds were left"
            results.put({**run.row(name, None, unit=""), "left_out": reason})
            say(f"{spent:6.1f} s  {name}: left out, {reason}")
            continue
        try:
            with time_limit(limit):
                for row in measurement.measure(run):
                    results.put(row)
                    say(f"{time.monotonic() - start:6.1f} s  {in_short(row)}")
            results.forget_failure(name)
        except (Exception, Overtime) as error:
            num_failed += 1
            message = one_line(error)
            if isinstance(error, Overtime):
                message = f"it took more than the {limit:.0f} seconds that it had"
            results.put({**run.row(name, None, unit=""), "error": message})
            say(f"{time.monotonic() - start:6.1f} s  {name}: failed, {message}")
        tidy()
    return num_failed


def in_short(row: Row) -> str:
    """Say a row in a line."""
    if row["ours"] is None:
        return f"{row['metric']}: {row.get('note') or row['peer_name'] or 'not known here'}"
    line = f"{row['metric']}: {row['ours']:.4g} {row['unit']}"
    if row["ratio"] is not None:
        line += f", {row['ratio']:.3g} times {row['peer_name']}"
    if row["goal"] is not None:
        line += f" (goal {row['goal']:g}: {'met' if row['met'] else 'missed'})"
    return line


def main(arguments: list[str] | None = None) -> int:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for gpu.json")
    parser.add_argument("--tiny", action="store_true", help="run through everything at tiny sizes")
    parser.add_argument("--device", choices=["cuda", "cpu"], help="by default cuda if there is one")
    parser.add_argument(
        "--only", nargs="+", choices=MEASUREMENTS, metavar="NAME", help=", ".join(MEASUREMENTS)
    )
    parser.add_argument("--seconds", type=float, default=480.0, help="for all together")
    given = parser.parse_args(arguments)
    device = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda needs a GPU that torch can use, got none")
    if device == "cpu" and not given.tiny:
        parser.error("full sizes need a GPU: give --tiny to try everything on a processor")
    torch.set_float32_matmul_precision("high")
    given.out.mkdir(parents=True, exist_ok=True)
    names = given.only or list(MEASUREMENTS)
    chosen = {name: MEASUREMENTS[name] for name in MEASUREMENTS if name in names}
    num_failed = measure_all(
        Run(device=torch.device(device), is_tiny=given.tiny),
        chosen,
        Results(given.out / "gpu.json"),
        given.seconds,
        functools.partial(print, flush=True),
    )
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
