"""How fast a model trains and generates, absolutely and as a fraction of the device's peak.

Times are wall-clock medians over rounds, so that a round which another program slowed does not
count. The operations that a model needs come from `accounting`, peak rates from the manufacturer.
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

from groundup.core.config import require
from groundup.core.models import DecoderOnly
from groundup.data.batches import IGNORED, Batch
from groundup.generation.loop import stream
from groundup.looking.accounting import decoding_bytes, decoding_flops, mfu, peak_of, training_flops
from groundup.training.distributed import bare
from groundup.training.loop import Loss, Precision, multiplies_bfloat16, train_step


@dataclass(frozen=True, kw_only=True, slots=True)
class Throughput:
    """The measured speed of training or generation."""

    tokens_per_second: float
    """Over all sequences: training targets, or tokens generated."""
    flops_per_second: float
    """Operations that the model needs, per second."""
    mfu: float | None
    """This rate as a fraction of the device's peak in bfloat16; None if the peak is unknown."""
    bytes_per_second: float | None
    """Bytes that generation must read, per second; None for training."""
    bandwidth_fraction: float | None
    """This rate as a fraction of the device's memory bandwidth; None if that is unknown."""
    round_seconds: tuple[float, ...]
    """Time of one update, or of all generated tokens, in each round."""


def machine(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Describe the machine that a measurement is taken on.

    Args:
        device: Where the model is.

    Returns:
        `processor` (the name of the CPU), the `cores` that this process may use and the `threads`
        that torch uses; `device`, by its name, and whether it multiplies in `bfloat16`; the version
        of `torch`; and `load`, the average number of runnable processes over the last minute.

    """
    device = torch.device(device)
    processor = _cpu_name()
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
    loss: Loss | None = None,
    rounds: int = 5,
    seconds: float = 5.0,
) -> Throughput:
    """Measure how fast a model trains, on one batch again and again.

    Args:
        model: One of ours, compiled or not. Its weights are updated: pass a copy if that matters.
        batch: On the model's device.
        optimizer: Of the model.
        precision: As in `train_step`.
        loss: As in `train_step`.
        rounds: Number of measurements.
        seconds: Approximate time for all rounds together; each makes at least one update. Two
            earlier updates, which compile and allocate memory, are not counted.

    Raises:
        ValueError: If `rounds` is below 1.

    """
    require(rounds >= 1, "rounds must be at least 1", rounds=rounds)
    device = batch.targets.device

    def updates(number: int) -> float:
        start = time.perf_counter()
        for _ in range(number):
            train_step(model, batch, optimizer, precision=precision, loss=loss)
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
    """Measure how fast a model continues a prompt once the prompt is read.

    Args:
        model: Is switched to evaluation mode.
        prompt: On the model's device.
        new_tokens: Number of tokens per sequence that are timed. The first one, which comes from
            reading the prompt, is not among them.
        rounds: Number of measurements, after one that is not counted.
        cache: As in `generation.loop.stream`.
        step: As in `generation.loop.stream`.

    Raises:
        ValueError: If `rounds` or `new_tokens` is below 1, or if the tokens do not fit into the
            model's context.

    """
    require(rounds >= 1, "rounds must be at least 1", rounds=rounds)
    batch_size, length = prompt.shape
    max_len = length + new_tokens
    if new_tokens < 1 or max_len > model.config.max_len:
        raise ValueError(
            "new_tokens must be at least 1 and fit after the prompt, got "
            f"new_tokens={new_tokens}, {length} tokens of prompt, max_len={model.config.max_len}"
        )

    def generate() -> float:
        tokens = stream(model, prompt, cache=cache, max_len=max_len, step=step)
        next(tokens)
        _wait(prompt.device)
        start = time.perf_counter()
        for _ in range(new_tokens):
            next(tokens)
        _wait(prompt.device)
        return time.perf_counter() - start

    generate()
    times = [generate() for _ in range(rounds)]
    buffer = {"buffer_len": max_len if cache == "static" else None}
    flops = num_bytes = 0
    for context in range(length, max_len):
        flops += sum(decoding_flops(model.config, batch_size, context, **buffer).values())
        dtype = model.unembedding.weight.dtype
        num_bytes += decoding_bytes(model.config, batch_size, context, dtype, **buffer)
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
    bandwidth_fraction = None
    if bytes_per_second is not None and peak is not None:
        bandwidth_fraction = bytes_per_second / peak.bandwidth
    return Throughput(
        tokens_per_second=num_tokens / seconds,
        flops_per_second=flops / seconds,
        mfu=mfu(flops / seconds, peak),
        bytes_per_second=bytes_per_second,
        bandwidth_fraction=bandwidth_fraction,
        round_seconds=tuple(times),
    )


def _batch_flops(model: nn.Module, batch: Batch) -> int:
    """Count the operations of one update, including those on padding."""
    config: Any = bare(model).config
    batch_size, length = batch.inputs["target" if "source" in batch.inputs else "tokens"].shape
    source_len = batch.inputs["source"].shape[1] if "source" in batch.inputs else None
    return sum(training_flops(config, batch_size, length, source_len).values())


def _cpu_name() -> str:
    """Return the name of the CPU, which the standard library knows on some systems only."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _device_name(device: torch.device) -> str:
    """Return the name that torch reports for a GPU, and an empty string for the CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else ""


def _wait(device: torch.device) -> None:
    """Wait until a GPU has finished; its operations are asynchronous."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    if device.type == "mps":
        torch.mps.synchronize()
