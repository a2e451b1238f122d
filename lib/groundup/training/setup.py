"""Finds the settings that train a model fastest on this machine, by measurement.

The settings change how numbers are computed, not what is learned: precision of matrix products,
eager or compiled, explicit or fused attention. Which is fastest depends on the CPU and on the
model's sizes, so a few updates of each are timed on a copy of the model.
"""

import copy
import functools
import itertools
import time
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from groundup.core.multihead import MultiHeadAttention
from groundup.data.batches import Batch
from groundup.training.loop import (
    Precision,
    TrainingConfig,
    multiplies_bfloat16,
    optimizers_for,
    train_step,
)

Attention = Literal["explicit", "fused"]
COMPILE_SECONDS = 60.0
"""Time that compiling is assumed to take, in seconds."""
MEASURED_UPDATES = 3
"""Updates timed after the first, which includes start-up costs; the fastest counts."""
MAX_FRACTION = 0.1
"""Measuring may take at most about this fraction of the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """How to compute on a machine, and the measurements behind that choice."""

    precision: Precision
    """Precision of matrix products."""
    compiled: bool
    """Whether the model is compiled."""
    attention: Attention
    """Whether attention is computed step by step or by one fused operation."""
    milliseconds: dict[str, float] = field(default_factory=dict)
    """Time of one update in each setup that was measured, by the name of the setup."""

    @property
    def name(self) -> str:
        """The three choices in words."""
        kind = "compiled" if self.compiled else "eager"
        return f"{self.precision}, {kind}, {self.attention} attention"


def set_up(model: nn.Module, setup: Setup) -> nn.Module:
    """Apply a setup to a model, except for its precision, which `train_step` applies.

    Args:
        model: The backend of its attention layers is changed in place.
        setup: As `choose_setup` returns it.

    Returns:
        The module to call and train: the model, or a compiled wrapper around it.

    """
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.backend = setup.attention
    return torch.compile(model) if setup.compiled else model  # pyright: ignore[reportReturnType]


def recompute(model: nn.Module) -> None:
    """Let each block save only its input and compute the rest again in the backward pass.

    Memory for activations shrinks to little more than that of one block, so a longer sequence or a
    larger batch fits; the forward pass of the blocks is computed twice. This is also called
    activation or gradient checkpointing. No number changes: dropout draws the same again.

    Args:
        model: Its stacks of blocks are changed in place, whoever wrote the blocks;
            `activation_bytes` says what is saved.

    Source:
        Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost,
        https://arxiv.org/abs/1604.06174

    """
    for stack in model.children():
        for block in stack if isinstance(stack, nn.ModuleList) else ():
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


def choose_setup(
    model: nn.Module,
    batch: Batch,
    config: TrainingConfig,
    *,
    precision: Precision | Literal["auto"] = "auto",
    compiled: bool | Literal["auto"] = "auto",
    attention: Attention | Literal["auto"] = "auto",
) -> Setup:
    """Find the setup in which a model trains fastest, by timing updates of a copy.

    On a GPU, `auto` measures nothing: it means fused attention, on CUDA also compiled and
    bfloat16 where supported. On a CPU, bfloat16 is tried if there are instructions for it. A run
    too short to spend a tenth of it on measuring uses the first setup, float32 in eager mode
    unless specified; compiled setups are skipped if compiling would exceed that tenth.

    Args:
        model: On the device to train on. Neither it nor torch's global random state changes.
        batch: A training batch.
        config: Training hyperparameters, with the number of updates; its precision is ignored.
        precision: The precision to use, or `auto`.
        compiled: Whether to compile, or `auto`.
        attention: The attention backend to use, or `auto`.

    """
    device = next(model.parameters()).device
    if device.type == "cpu":
        precisions: list[Precision] = ["float32", "bfloat16"]
        precisions = precisions if multiplies_bfloat16(device) else ["float32"]
        kinds: list[bool] = [False, True]
        attentions: list[Attention] = ["fused", "explicit"]
    else:
        precisions = ["bfloat16" if multiplies_bfloat16(device) else "float32"]
        kinds, attentions = [device.type == "cuda"], ["fused"]
    precisions = precisions if precision == "auto" else [precision]
    kinds = kinds if compiled == "auto" else [compiled]
    attentions = attentions if attention == "auto" else [attention]
    setups = [
        Setup(precision=chosen, compiled=kind, attention=how)
        for kind, chosen, how in itertools.product(kinds, precisions, attentions)
    ]
    if len(setups) == 1 or config.steps * MAX_FRACTION < (MEASURED_UPDATES + 1) * len(setups):
        return setups[0]
    return _fastest(model, batch.to(device), config, setups)


def _fastest(model: nn.Module, batch: Batch, config: TrainingConfig, setups: list[Setup]) -> Setup:
    """Measure the setups, compiled ones last and while there is time; return the fastest."""
    seconds: dict[str, float] = {}  # per update
    run: dict[str, float] = {}  # of the whole run, with start-up
    failure, start = None, time.perf_counter()
    for setup in setups:
        spent = time.perf_counter() - start
        if setup.compiled and run and spent + COMPILE_SECONDS > MAX_FRACTION * min(run.values()):
            continue
        try:
            first, seconds[setup.name] = _time_update(model, batch, config, setup)
        except RuntimeError as error:
            if not setup.compiled:
                raise
            failure = error  # no compiler, or it fails on this model
            continue
        run[setup.name] = first + config.steps * seconds[setup.name]
    if failure is not None and not run:
        raise failure
    best = min(run, key=lambda name: run[name])
    milliseconds = {name: round(1000 * value, 3) for name, value in seconds.items()}
    chosen = next(setup for setup in setups if setup.name == best)
    return replace(chosen, milliseconds=milliseconds)


def _time_update(
    model: nn.Module, batch: Batch, config: TrainingConfig, setup: Setup
) -> tuple[float, float]:
    """Return the seconds of the first update of a copy, and of the fastest later one."""
    devices = [batch.targets.device] if batch.targets.is_cuda else []
    with torch.random.fork_rng(devices):
        own = copy.deepcopy(model)
        optimizer = optimizers_for(own, config)
        forward = set_up(own, setup)
        seconds = []
        for _ in range(1 + MEASURED_UPDATES):
            start = time.perf_counter()
            loss, _ = train_step(
                forward,
                batch,
                optimizer,
                config.max_gradient_norm,
                label_smoothing=config.label_smoothing,
                micro_batches=config.micro_batches,
                precision=setup.precision,
            )
            loss.item()  # waits for the device
            seconds.append(time.perf_counter() - start)
    if setup.compiled:
        torch.compiler.reset()  # drops what was compiled for the copy
    return seconds[0], min(seconds[1:])
