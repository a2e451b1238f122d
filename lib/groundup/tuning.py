"""Which settings train a model fastest on this machine: tried, not guessed.

They change how numbers are computed, not what is learned: precision of products, compiled or
not, attention explicit or fused. What is fastest differs from one processor to the next, and
with sizes, so a few updates of each are timed on a copy of the model.
"""

import copy
import itertools
import time
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import nn

from groundup.data import Batch
from groundup.multihead import MultiHeadAttention
from groundup.training import (
    Precision,
    TrainingConfig,
    multiplies_bfloat16,
    optimizers_for,
    train_step,
)

Attention = Literal["explicit", "fused"]
COMPILE_SECONDS = 60.0
"""What compiling is expected to take, before it was tried."""
MEASURED_UPDATES = 3
"""Updates that are timed, after a first one that is not; the fastest counts."""
SHARE = 0.1
"""Measuring may take this share of the run that it is for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """How to compute on a machine, and what was tried before it was chosen."""

    precision: Precision
    """Of the products of matrices."""
    compiled: bool
    """Whether the model is compiled."""
    attention: Attention
    """Whether attention is written out or one fused operation."""
    milliseconds: dict[str, float] = field(default_factory=dict)
    """Time of one update in each setup that was measured, by the name of the setup."""

    @property
    def name(self) -> str:
        """Say the three choices in words."""
        kind = "compiled" if self.compiled else "eager"
        return f"{self.precision}, {kind}, {self.attention} attention"


def set_up(model: nn.Module, setup: Setup) -> nn.Module:
    """Make a model compute as a setup says.

    Args:
        model: Its attention is switched over in place.
        setup: Of which the precision is left to `train_step`.

    Returns:
        What to call and train: the model, or a compiled wrapper around it.

    """
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.backend = setup.attention
    return torch.compile(model) if setup.compiled else model  # pyright: ignore[reportReturnType]


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

    On a GPU, nothing is measured: bfloat16, where it has it, compiled, with fused attention. On
    a processor, bfloat16 is tried where there are instructions for it. A setup is tried only if
    that takes less than a tenth of the run, so a short run is not measured at all.

    Args:
        model: On the device to train on. Neither it nor torch's global random state changes.
        batch: One of those to learn from.
        config: How it will be trained, and for how many updates; its precision does not count.
        precision: What to use, or `auto`.
        compiled: Whether to compile, or `auto`.
        attention: What to use, or `auto`.

    """
    device = next(model.parameters()).device
    if device.type == "cuda":
        precisions: list[Precision] = ["bfloat16" if multiplies_bfloat16(device) else "float32"]
        kinds: list[bool] = [True]
        attentions: list[Attention] = ["fused"]
    else:
        precisions = ["float32", "bfloat16"] if multiplies_bfloat16(device) else ["float32"]
        kinds, attentions = [False, True], ["fused", "explicit"]
    precisions = precisions if precision == "auto" else [precision]
    kinds = kinds if compiled == "auto" else [compiled]
    attentions = attentions if attention == "auto" else [attention]
    setups = [
        Setup(precision=chosen, compiled=kind, attention=how)
        for kind, chosen, how in itertools.product(kinds, precisions, attentions)
    ]
    if len(setups) == 1 or config.steps * SHARE < (MEASURED_UPDATES + 1) * len(setups):
        return setups[0]
    return _fastest(model, batch.to(device), config, setups)


def _fastest(model: nn.Module, batch: Batch, config: TrainingConfig, setups: list[Setup]) -> Setup:
    """Measure the setups, compiled ones last and while there is time; give the fastest."""
    seconds: dict[str, float] = {}  # of one update
    run: dict[str, float] = {}  # of the whole run, with what it takes to begin
    failure, start = None, time.perf_counter()
    for setup in setups:
        spent = time.perf_counter() - start
        if setup.compiled and run and spent + COMPILE_SECONDS > SHARE * min(run.values()):
            continue
        try:
            first, seconds[setup.name] = _time_update(model, batch, config, setup)
        except RuntimeError as error:
            if not setup.compiled:
                raise
            failure = error  # there is no compiler here, or it cannot take this model
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
    """Give the seconds of the first update of a copy, and those of a later one."""
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
        torch.compiler.reset()  # forgets the copy
    return seconds[0], min(seconds[1:])
