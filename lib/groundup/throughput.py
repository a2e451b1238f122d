"""How fast a model trains and writes on this machine, and what share of the machine that is.

Times are wall clock, medians over rounds: a median forgets the round in which something else
ran. What a model needs comes from `accounting`; what the device could do, from its maker.
"""

import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor, nn

from groundup.accounting import decoding_bytes, decoding_flops, mfu, peak_of, training_flops
from groundup.data import IGNORED, Batch
from groundup.distributed import bare
from groundup.generation import stream
from groundup.models import DecoderOnly
from groundup.training import Precision, multiplies_bfloat16, train_step


@dataclass(frozen=True, kw_only=True, slots=True)
class Throughput:
    """How fast something went."""

    tokens_per_second: float
    """Of all sequences together: targets learned from, or tokens written."""
    flops_per_second: float
    """Operations that the model needs, per second."""
    mfu: float | None
    """Those as a share of what the device could do in bfloat16; None where that is unknown."""
    bytes_per_second: float | None
    """Bytes that a token written must read, per second; None for training."""
    bandwidth_share: float | None
    """Those as a share of what the device's memory could do; None where that is unknown."""
    round_seconds: tuple[float, ...]
    """Time of one update, or of all tokens, in each round."""


def machine(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Say what a measurement was taken on.

    Args:
        device: Where the model is.

    Returns:
        `processor`, its `cores` that this process may use and the `threads` that torch uses;
        `device`, by its name, and whether it multiplies in `bfloat16`; the version of `torch`;
        and `load`, the average number of processes that wanted to run in the last minute.

    """
    device = torch.device(device)
    processor = _processor()
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "processor": processor,
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": _device_name(device) or processor,
        "bfloat16": multiplies_bfloat16(device),
        "torch": torch.__version__,
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def measure_training(
    model: nn.Module,
    batch: Batch,
    optimizer: torch.optim.Optimizer,
    *,
    precision: Precision = "float32",
    rounds: int = 5,
    seconds: float = 5.0,
) -> Throughput:
    """Train on one batch again and again, and measure how fast that goes.

    Args:
        model: One of ours, compiled or not. It is trained: give a copy if that matters.
        batch: On the model's device.
        optimizer: Of the model.
        precision: As in `train_step`.
        rounds: Number of measurements.
        seconds: Time for all rounds together, about; each makes one update at least. Two
            updates before them are not counted: they compile, and take memory.

    Raises:
        ValueError: If there is no round.

    """
    _require_rounds(rounds)
    device = batch.targets.device

    def updates(number: int) -> float:
        start = time.perf_counter()
        for _ in range(number):
            train_step(model, batch, optimizer, precision=precision)
        _wait(device)
        return (time.perf_counter() - start) / number

    updates(1)
    number = max(1, round(seconds / rounds / updates(1)))
    times = [updates(number) for _ in range(rounds)]
    num_targets = int((batch.targets != IGNORED).sum())
    return _throughput(device, times, num_targets, _batch_flops(model, batch))


def measure_decoding(
    model: DecoderOnly,
    prompt: Int[Tensor, "batch length"],
    new_tokens: int,
    *,
    rounds: int = 5,
    cache: Literal["growing", "static"] = "growing",
    step: Callable[..., Tensor] | None = None,
) -> Throughput:
    """Continue a prompt, and measure how fast that goes once the prompt is read.

    Args:
        model: Is put into evaluation mode.
        prompt: On the model's device.
        new_tokens: Number of tokens of each sequence that are timed. The one before them, which
            the prompt gives, is not.
        rounds: Number of measurements, after one that is not counted.
        cache: As in `generation.stream`.
        step: As there.

    Raises:
        ValueError: If there is no round or no token, or if they do not fit into the model's
            context.

    """
    _require_rounds(rounds)
    batch_size, length = prompt.shape
    max_len = length + new_tokens
    if new_tokens < 1 or max_len > model.config.max_len:
        raise ValueError(
            "new_tokens must be at least 1 and fit behind the prompt, got "
            f"new_tokens={new_tokens}, {length} tokens of prompt, max_len={model.config.max_len}"
        )

    def write() -> float:
        tokens = stream(model, prompt, cache=cache, max_len=max_len, step=step)
        next(tokens)
        _wait(prompt.device)
        start = time.perf_counter()
        for _ in range(new_tokens):
            next(tokens)
        _wait(prompt.device)
        return time.perf_counter() - start

    write()
    times = [write() for _ in range(rounds)]
    room = max_len if cache == "static" else None
    flops = num_bytes = 0
    for context in range(length, max_len):
        flops += sum(decoding_flops(model.config, batch_size, context, room=room).values())
        dtype = model.unembedding.weight.dtype
        num_bytes += decoding_bytes(model.config, batch_size, context, dtype, room=room)
    return _throughput(prompt.device, times, batch_size * new_tokens, flops, num_bytes)


def _throughput(
    device: torch.device,
    times: list[float],
    num_tokens: int,
    flops: int,
    num_bytes: int | None = None,
) -> Throughput:
    seconds, peak = statistics.median(times), peak_of(_device_name(device))
    bytes_per_second = None if num_bytes is None else num_bytes / seconds
    share = None
    if bytes_per_second is not None and peak is not None:
        share = bytes_per_second / peak.bandwidth
    return Throughput(
        tokens_per_second=num_tokens / seconds,
        flops_per_second=flops / seconds,
        mfu=mfu(flops / seconds, peak),
        bytes_per_second=bytes_per_second,
        bandwidth_share=share,
        round_seconds=tuple(times),
    )


def _batch_flops(model: nn.Module, batch: Batch) -> int:
    """Count the operations of one update, padding included: it is computed like the rest."""
    config: Any = bare(model).config
    batch_size, length = batch.inputs["target" if "source" in batch.inputs else "tokens"].shape
    source_len = batch.inputs["source"].shape[1] if "source" in batch.inputs else None
    return sum(training_flops(config, batch_size, length, source_len).values())


def _processor() -> str:
    """Give the name of the processor; the standard library knows it on some systems only."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _device_name(device: torch.device) -> str:
    """Give the name by which torch knows a device, or nothing for the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else ""


def _wait(device: torch.device) -> None:
    """Wait for what a GPU was told to do: it answers before it is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _require_rounds(rounds: int) -> None:
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got rounds={rounds}")
