"""The loop that turns a model and batches into a better model.

Nothing is printed or saved here: `train` yields records, and the caller decides.
"""

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from groundup.data import IGNORED, Batch


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """How to train, apart from the model and the data."""

    steps: int
    """Number of updates from the first to the last."""
    learning_rate: float
    """The highest learning rate, reached after the warm-up."""
    warmup_steps: int = 100
    """Updates over which the learning rate rises from near zero."""
    final_learning_rate: float = 0.02
    """Learning rate at the last update, as a share of the highest."""
    weight_decay: float = 0.1
    """How strongly AdamW pulls matrices towards zero, times the learning rate, per update."""
    beta1: float = 0.9
    """How much of the average gradient is kept per update."""
    beta2: float = 0.98
    """How much of the average squared gradient is kept per update."""
    max_gradient_norm: float = 1.0
    """Gradients longer than this, all parameters together, are scaled down to it."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got steps={self.steps}")
        if self.warmup_steps < 0:
            raise ValueError(
                f"warmup_steps must not be negative, got warmup_steps={self.warmup_steps}"
            )
        for name in ("learning_rate", "max_gradient_norm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {name}={getattr(self, name)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """What happened since the record before."""

    step: int
    """Number of updates made so far."""
    loss: float
    """Average over the updates since the last record, in nats per token."""
    learning_rate: float
    """Learning rate of the last update."""
    gradient_norm: float
    """Length of the last gradient, all parameters together, before clipping."""
    tokens_per_second: float
    """Targets learned from per second of wall clock since the last record."""
    seconds: float
    """Wall clock since `train` began, without what the caller did between records."""


def cross_entropy(
    logits: Float[Tensor, "*batch vocab"], targets: Int[Tensor, "*batch"]
) -> Float[Tensor, ""]:
    """Average the surprise at the right token, in nats per token that counts.

    Args:
        logits: One row for each position.
        targets: The right token there, or `IGNORED`, which neither adds nor divides.

    """
    rows = logits.reshape(-1, logits.shape[-1])
    return F.cross_entropy(rows, targets.reshape(-1), ignore_index=IGNORED)


def warmup_cosine(
    step: int, *, peak: float, warmup_steps: int, total_steps: int, final: float = 0.0
) -> float:
    """Give the learning rate of an update: up a straight line, then down half a cosine.

    Adam divides by an average over past gradients that is poor at first, hence the slow start;
    small steps at the end average out the noise of the batches.

    Args:
        step: Which update, counted from 0.
        peak: The highest learning rate, reached at update `warmup_steps`.
        warmup_steps: Updates below the peak; update 0 has `peak / (warmup_steps + 1)`.
        total_steps: Number of updates; from the last one on the rate is `final`.
        final: The learning rate at the end.

    Source:
        Loshchilov and Hutter 2017, SGDR, equation 5, https://arxiv.org/abs/1608.03983;
        Goyal et al. 2017, Accurate, Large Minibatch SGD, section 2.2 (warm-up),
        https://arxiv.org/abs/1706.02677

    """
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    last = max(total_steps - 1, warmup_steps + 1)
    progress = min(1.0, (step - warmup_steps) / (last - warmup_steps))
    return final + (peak - final) * (1 + math.cos(math.pi * progress)) / 2


def adamw(model: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """Make the optimizer: Adam, with matrices pulled towards zero apart from the gradient.

    Gains and biases are left alone: they set scales and thresholds, and few as they are they
    cannot overfit.

    Source:
        Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization, algorithm 2,
        https://arxiv.org/abs/1711.05101

    """
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, fused=True)


def train_step(
    model: nn.Module,
    batch: Batch,
    optimizer: torch.optim.Optimizer,
    max_gradient_norm: float = 1.0,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Learn from one batch.

    Args:
        model: Takes the inputs of the batch by name and gives logits.
        batch: On the model's device.
        optimizer: Holds the model's parameters and the learning rate.
        max_gradient_norm: A longer gradient is scaled down to this length.

    Returns:
        The loss before the update, in nats per token, and the length of the gradient.

    Source:
        Pascanu et al. 2013, On the difficulty of training recurrent neural networks,
        algorithm 1 (clipping), https://arxiv.org/abs/1211.5063

    """
    model.train()
    loss = cross_entropy(model(**batch.inputs), batch.targets)
    optimizer.zero_grad()
    loss.backward()
    gradient_norm = nn.utils.clip_grad_norm_(model.parameters(), max_gradient_norm)
    optimizer.step()
    return loss.detach(), gradient_norm


def train(
    model: nn.Module,
    batches: Iterator[Batch],
    optimizer: torch.optim.Optimizer,
    config: TrainingConfig,
    start_step: int = 0,
    record_every: int = 1,
) -> Iterator[Record]:
    """Train, and yield a record every few updates.

    Between two records the caller may do as it likes: evaluate, save, print, stop. To go on
    later, bring the model, the optimizer, the generator behind the batches and the step back
    to where they were; the updates are then those that would have followed.

    Args:
        model: On the device to train on.
        batches: Without end, or at least `config.steps - start_step` of them.
        optimizer: As `adamw` makes it.
        config: How to train.
        start_step: Updates made before.
        record_every: Updates per record; the last update always has one.

    Yields:
        What happened since the record before.

    Raises:
        ValueError: If the loss is no longer a number.

    """
    device = next(model.parameters()).device
    seconds = 0.0
    losses, num_tokens, start = [], 0, time.perf_counter()
    for step in range(start_step, config.steps):
        rate = warmup_cosine(
            step,
            peak=config.learning_rate,
            warmup_steps=config.warmup_steps,
            total_steps=config.steps,
            final=config.learning_rate * config.final_learning_rate,
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = next(batches)
        num_tokens += int((batch.targets != IGNORED).sum())
        loss, gradient_norm = train_step(
            model, batch.to(device), optimizer, config.max_gradient_norm
        )
        losses.append(loss)
        if (step + 1) % record_every and step + 1 < config.steps:
            continue
        mean_loss = torch.stack(losses).mean().item()  # the first look at the device's results
        if not math.isfinite(mean_loss):
            raise ValueError(
                f"the loss must stay finite, got {mean_loss} at step {step + 1} with "
                f"learning_rate={config.learning_rate}"
            )
        elapsed = time.perf_counter() - start
        seconds += elapsed
        yield Record(
            step=step + 1,
            loss=mean_loss,
            learning_rate=rate,
            gradient_norm=gradient_norm.item(),
            tokens_per_second=num_tokens / elapsed,
            seconds=seconds,
        )
        losses, num_tokens, start = [], 0, time.perf_counter()


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[Batch]) -> tuple[float, int]:
    """Measure without learning.

    Args:
        model: Back in training mode, if it was, when this is done.
        batches: Each counts by its number of targets.

    Returns:
        The average surprise in nats per token, and the number of tokens it is averaged over.

    Raises:
        ValueError: If there is no target.

    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    nats, num_tokens = 0.0, 0
    for batch in batches:
        counted = int((batch.targets != IGNORED).sum())
        batch = batch.to(device)
        nats += cross_entropy(model(**batch.inputs), batch.targets).item() * counted
        num_tokens += counted
    model.train(was_training)
    if num_tokens == 0:
        raise ValueError("an average needs at least one target, got none")
    return nats / num_tokens, num_tokens


def bits_per_byte(nats_per_token: float, num_tokens: int, text: str) -> float:
    """Turn a loss into a size: how many bits the model needs for each byte of a text.

    Nats per token depend on what a token is. Bits per byte do not, so models with different
    vocabularies, and compressors, can be compared.

    Args:
        nats_per_token: Average surprise.
        num_tokens: Number of tokens that it is averaged over.
        text: What these tokens spell, in UTF-8.

    """
    return nats_per_token * num_tokens / math.log(2) / len(text.encode())
