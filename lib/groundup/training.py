"""The loop that turns a model and batches into a better model.

Nothing is printed or saved here: `train` yields records, and the caller decides. With several
workers (see `distributed`) every function does its share, and the result is that of one.

Dropout draws from torch's global random state, because torch's kernels take no generator: who
wants to repeat a run seeds it with `torch.manual_seed`, who goes on with one restores it.
"""

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from groundup.data import IGNORED, Batch
from groundup.distributed import bare, exchange_gradients, num_workers, total, whole
from groundup.optimizers import Muon, Together

Precision = Literal["float32", "bfloat16"]
Schedule = Literal["cosine", "inverse_root", "constant", "stable_decay"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """How to train, apart from the model and the data."""

    steps: int
    """Number of updates from the first to the last."""
    learning_rate: float
    """The highest learning rate of AdamW, reached after the warm-up."""
    warmup_steps: int = 100
    """Updates over which the learning rate rises from near zero."""
    schedule: Schedule = "cosine"
    """What the learning rate does after the warm-up."""
    final_learning_rate: float = 0.02
    """Learning rate at the end of `cosine` and `stable_decay`, as a share of the highest."""
    decay_share: float = 0.4
    """Share of the updates, the last ones, over which `stable_decay` comes down, from 0 to 1."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """Which one updates the weight matrices of the blocks; the rest is always AdamW's."""
    muon_learning_rate: float = 0.02
    """The highest learning rate of Muon, which goes up and down as that of AdamW does."""
    muon_momentum: float = 0.95
    """How much of the average gradient Muon keeps per update."""
    weight_decay: float = 0.1
    """How strongly matrices are pulled towards zero, times the learning rate, per update."""
    beta1: float = 0.9
    """How much of the average gradient AdamW keeps per update."""
    beta2: float = 0.98
    """How much of the average squared gradient AdamW keeps per update."""
    max_gradient_norm: float = 1.0
    """Gradients longer than this, all parameters together, are scaled down to it."""
    label_smoothing: float = 0.0
    """Share of the target that is spread evenly over the vocabulary, from 0 to below 1."""
    micro_batches: int = 1
    """Parts into which a batch is cut, computed one by one to save memory, for one update."""
    precision: Precision = "float32"
    """Of the products of matrices; parameters, normalisations and the loss stay in float32."""

    def __post_init__(self) -> None:
        for name in ("steps", "micro_batches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {name}={getattr(self, name)}")
        if self.warmup_steps < 0:
            raise ValueError(
                f"warmup_steps must not be negative, got warmup_steps={self.warmup_steps}"
            )
        for name in ("learning_rate", "muon_learning_rate", "max_gradient_norm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {name}={getattr(self, name)}")
        for name in ("final_learning_rate", "decay_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {name}={getattr(self, name)}")
        for name in ("label_smoothing", "muon_momentum", "beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"{name} must be at least 0 and below 1, got {name}={getattr(self, name)}"
                )
        for name, choices in (
            ("schedule", ("cosine", "inverse_root", "constant", "stable_decay")),
            ("optimizer", ("adamw", "muon")),
            ("precision", ("float32", "bfloat16")),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name} must be one of {', '.join(choices)}, got {name}={getattr(self, name)}"
                )


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
    logits: Float[Tensor, "*batch vocab"],
    targets: Int[Tensor, "*batch"],
    label_smoothing: float = 0.0,
    num_targets: Int[Tensor, ""] | None = None,
) -> Float[Tensor, ""]:
    """Average the surprise at the right token, in nats per token that counts.

    Args:
        logits: One row for each position. In half precision they are turned into float32, whose
            sum over a large vocabulary is exact enough.
        targets: The right token there, or `IGNORED`, which neither adds nor divides.
        label_smoothing: Share of each target that is spread evenly over the whole vocabulary, so
            that a model is not pushed to be certain. Raises the loss, also of a perfect model.
        num_targets: What the sum is divided by; by default the targets here that count. Where a
            batch is cut into parts, it is the number of all of them: parts have different
            numbers of targets, and the average of their averages is another number.

    Source:
        Szegedy et al. 2016, Rethinking the Inception Architecture for Computer Vision, section 7
        (label smoothing), https://arxiv.org/abs/1512.00567; Vaswani et al. 2017, Attention Is
        All You Need, section 5.4, https://arxiv.org/abs/1706.03762

    """
    rows = logits.reshape(-1, logits.shape[-1])
    rows = rows.float() if rows.dtype.itemsize < 4 else rows
    settings = {"ignore_index": IGNORED, "label_smoothing": label_smoothing}
    if num_targets is None:
        return F.cross_entropy(rows, targets.reshape(-1), **settings)
    return F.cross_entropy(rows, targets.reshape(-1), reduction="sum", **settings) / num_targets


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


def warmup_inverse_root(step: int, *, peak: float, warmup_steps: int) -> float:
    """Give the learning rate of an update: up a straight line, then down with one over the root.

    The schedule of the original transformer. It has no end, so a run may go on as long as it
    likes. The paper writes its peak as `(d_model * warmup_steps) ** -0.5`.

    Args:
        step: Which update, counted from 0.
        peak: The highest learning rate, that of update `warmup_steps - 1`.
        warmup_steps: Updates up to and including the peak; 0 means 1.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, section 5.3, equation 3, which counts
        updates from 1, https://arxiv.org/abs/1706.03762

    """
    number, warmup_steps = step + 1, max(warmup_steps, 1)
    return peak * min(number / warmup_steps, math.sqrt(warmup_steps / number))


def warmup_constant(step: int, *, peak: float, warmup_steps: int) -> float:
    """Give the learning rate of an update: up a straight line, then level.

    Args:
        step: Which update, counted from 0.
        peak: The highest learning rate, reached at update `warmup_steps`.
        warmup_steps: Updates below the peak; update 0 has `peak / (warmup_steps + 1)`.

    """
    return peak * min(1.0, (step + 1) / (warmup_steps + 1))


def warmup_stable_decay(
    step: int,
    *,
    peak: float,
    warmup_steps: int,
    decay_steps: int,
    total_steps: int,
    final: float = 0.0,
) -> float:
    """Give the learning rate of an update: up a straight line, level, and down a straight line.

    The level part may be as long as one likes, and a good model is always one descent away: its
    end need not be known when it begins, as that of a cosine must be.

    Args:
        step: Which update, counted from 0.
        peak: The highest learning rate.
        warmup_steps: Updates before the peak; update 0 has `peak / (warmup_steps + 1)`.
        decay_steps: Updates after the level part; the last has
            `final + (peak - final) / (decay_steps + 1)`.
        total_steps: Number of updates; from there on the rate is `final`.
        final: What the descent leads to, one update after the last.

    Source:
        Hu et al. 2024, MiniCPM, section 4, https://arxiv.org/abs/2404.06395; Hägele et al. 2024,
        Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations, section 3
        (linear descent), https://arxiv.org/abs/2405.18392

    """
    remaining = max(0.0, min(1.0, (total_steps - step) / (decay_steps + 1)))
    rate = warmup_constant(step, peak=peak, warmup_steps=warmup_steps)
    return min(rate, final + (peak - final) * remaining)


def share_of_peak(config: TrainingConfig, step: int) -> float:
    """Give the learning rate of an update as a share of the highest, by the schedule chosen.

    Args:
        config: Which schedule, and its numbers.
        step: Which update, counted from 0.

    """
    climb = {"peak": 1.0, "warmup_steps": config.warmup_steps}
    end = {"total_steps": config.steps, "final": config.final_learning_rate}
    match config.schedule:
        case "cosine":
            return warmup_cosine(step, **climb, **end)
        case "inverse_root":
            return warmup_inverse_root(step, **climb)
        case "constant":
            return warmup_constant(step, **climb)
        case "stable_decay":
            decay_steps = round(config.decay_share * config.steps)
            return warmup_stable_decay(step, **climb, **end, decay_steps=decay_steps)


def adamw(model: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """Make the optimizer: Adam, with matrices pulled towards zero apart from the gradient.

    Gains and biases are left alone: they set scales and thresholds, and few as they are they
    cannot overfit.

    Source:
        Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization, algorithm 2,
        https://arxiv.org/abs/1711.05101

    """
    return _adamw(list(model.parameters()), config)


def optimizers_for(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Make the optimizer that the settings ask for.

    With `muon`, the weight matrices inside the blocks are Muon's. Tables of token vectors, what
    turns the last vectors into logits, gains and biases are AdamW's: Muon's step has the size
    that suits a matrix between two dense layers. Each group of parameters has its own highest
    learning rate, `peak`; `train` takes all of them along one schedule.

    Args:
        model: Where it will be trained. Its blocks stand in module lists.
        config: How to train.

    Raises:
        ValueError: If Muon is asked for and the model has no matrix inside a block.

    Source:
        Jordan et al. 2024, Muon: An optimizer for hidden layers in neural networks,
        https://kellerjordan.github.io/posts/muon/

    """
    if config.optimizer == "adamw":
        return adamw(model, config)
    stacks = [child for child in bare(model).children() if isinstance(child, nn.ModuleList)]
    matrices = [p for stack in stacks for p in stack.parameters() if p.ndim == 2]
    if not matrices:
        raise ValueError(
            "optimizer=muon needs a model with matrices inside blocks, got none in "
            f"{type(bare(model)).__name__}"
        )
    taken = {id(p) for p in matrices}
    muon = Muon(
        [{"params": matrices, "peak": config.muon_learning_rate}],
        lr=config.muon_learning_rate,
        momentum=config.muon_momentum,
        weight_decay=config.weight_decay,
        dtype=torch.bfloat16 if multiplies_bfloat16(matrices[0].device) else None,
    )
    return Together(_adamw([p for p in model.parameters() if id(p) not in taken], config), muon)


def multiplies_bfloat16(device: torch.device) -> bool:
    """Tell whether a device has instructions for products in bfloat16.

    Without them they are emulated, which is right and slow.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def _adamw(parameters: list[nn.Parameter], config: TrainingConfig) -> torch.optim.AdamW:
    peak = config.learning_rate
    matrices = [p for p in parameters if p.ndim >= 2]
    vectors = [p for p in parameters if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay, "peak": peak},
        {"params": vectors, "weight_decay": 0.0, "peak": peak},
    ]
    return torch.optim.AdamW(groups, lr=peak, betas=(config.beta1, config.beta2), fused=True)


def train_step(
    model: nn.Module,
    batch: Batch,
    optimizer: torch.optim.Optimizer,
    max_gradient_norm: float = 1.0,
    *,
    label_smoothing: float = 0.0,
    micro_batches: int = 1,
    precision: Precision = "float32",
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Learn from one batch.

    Args:
        model: Takes the inputs of the batch by name and gives logits. May be compiled, or
            spread over workers.
        batch: On the model's device; with several workers, this one's rows.
        optimizer: Holds the model's parameters and the learning rate.
        max_gradient_norm: A longer gradient is scaled down to this length.
        label_smoothing: As in `cross_entropy`.
        micro_batches: Parts that the rows are cut into, computed one after the other: less
            memory, the same update.
        precision: Of the products of matrices.

    Returns:
        The loss before the update, in nats per token, and the length of the gradient; both of
        the whole batch, on every worker.

    Raises:
        ValueError: If there are fewer rows than micro batches.

    Source:
        Pascanu et al. 2013, On the difficulty of training recurrent neural networks,
        algorithm 1 (clipping), https://arxiv.org/abs/1211.5063; Micikevicius et al. 2018, Mixed
        Precision Training, section 3, https://arxiv.org/abs/1710.03740

    """
    model.train()
    optimizer.zero_grad()
    device_type = batch.targets.device.type
    num_targets = total((batch.targets != IGNORED).sum())
    parts = _parts(batch, micro_batches)
    losses = []
    for number, part in enumerate(parts, start=1):
        exchange_gradients(model, number == len(parts))
        with torch.autocast(device_type, torch.bfloat16, enabled=precision == "bfloat16"):
            logits = model(**part.inputs)
        loss = cross_entropy(logits, part.targets, label_smoothing, num_targets)
        (loss * num_workers()).backward()  # the workers' gradients are averaged, not added
        losses.append(loss.detach())
    gradient_norm = nn.utils.clip_grad_norm_(model.parameters(), max_gradient_norm)
    optimizer.step()
    return total(torch.stack(losses).sum()), whole(gradient_norm)


def _parts(batch: Batch, number: int) -> list[Batch]:
    """Cut a batch along its rows; an input that is one for all rows goes to each part."""
    rows = len(batch.targets)
    if not 1 <= number <= rows:
        raise ValueError(
            "micro_batches must be from 1 to the rows of a batch, "
            f"got micro_batches={number}, {rows} rows"
        )
    if number == 1:
        return [batch]
    inputs = {
        name: value.tensor_split(number) if len(value) == rows else [value] * number
        for name, value in batch.inputs.items()
    }
    return [
        Batch({name: values[index] for name, values in inputs.items()}, targets)
        for index, targets in enumerate(batch.targets.tensor_split(number))
    ]


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
        model: On the device to train on. May be compiled, or spread over workers.
        batches: Without end, or at least `config.steps - start_step` of them; with several
            workers, this one's rows of each.
        optimizer: As `optimizers_for` makes it. A group of parameters with a `peak` has that as
            its highest learning rate, any other that of `config`.
        config: How to train.
        start_step: Updates made before.
        record_every: Updates per record; the last update always has one.

    Yields:
        What happened since the record before, to all workers together.

    Raises:
        ValueError: If the loss is no longer a number.

    """
    device = next(model.parameters()).device
    seconds = 0.0
    losses, num_tokens, start = [], 0, time.perf_counter()
    for step in range(start_step, config.steps):
        share = share_of_peak(config, step)
        for group in optimizer.param_groups:
            group["lr"] = group.get("peak", config.learning_rate) * share
        batch = next(batches)
        num_tokens += int((batch.targets != IGNORED).sum())
        loss, gradient_norm = train_step(
            model,
            batch.to(device),
            optimizer,
            config.max_gradient_norm,
            label_smoothing=config.label_smoothing,
            micro_batches=config.micro_batches,
            precision=config.precision,
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
        all_tokens = int(total(torch.tensor(num_tokens)))
        yield Record(
            step=step + 1,
            loss=mean_loss,
            learning_rate=config.learning_rate * share,
            gradient_norm=gradient_norm.item(),
            tokens_per_second=all_tokens / elapsed,
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


def bits_per_byte(nats_per_token: float, num_tokens: int, num_bytes: int) -> float:
    """Turn a loss into a size: how many bits the model needs for each byte of a text.

    Nats per token depend on what a token is. Bits per byte do not, so models with different
    vocabularies, and compressors, can be compared.

    Args:
        nats_per_token: Average surprise.
        num_tokens: Number of tokens that it is averaged over.
        num_bytes: What these tokens spell, in bytes of UTF-8. A first token that nothing
            predicted counts neither here nor there.

    """
    return nats_per_token * num_tokens / math.log(2) / num_bytes
