"""The training loop: loss, learning-rate schedules, optimizer, update step and evaluation.

Nothing is printed or saved here: `train` yields records, which the caller may print or save. With
several workers (see `distributed`), `train` makes the updates that a single process would make on
whole batches; `evaluate` measures only the batches that it is given.

Dropout draws from torch's global random state, because torch's kernels take no generator. To
reproduce a run, call `torch.manual_seed` first; to resume one, restore the state.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Literal, get_args, get_origin

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from groundup.core.config import require, require_choice
from groundup.data.batches import IGNORED, Batch
from groundup.training.distributed import bare, exchange_gradients, num_workers, total, whole
from groundup.training.optimizers import Muon, Together

Precision = Literal["float32", "bfloat16"]
Schedule = Literal["cosine", "inverse_root", "constant", "stable_decay"]
Loss = Callable[[Tensor, Tensor, float, Tensor], Tensor]
"""A function with the arguments and the result of `cross_entropy`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """Training hyperparameters, apart from the model and the data."""

    steps: int
    """Total number of updates, including those before a resumed run."""
    learning_rate: float
    """Peak learning rate of AdamW, reached at the end of the warm-up."""
    warmup_steps: int = 100
    """Updates over which the learning rate rises from near zero."""
    schedule: Schedule = "cosine"
    """Shape of the learning-rate schedule after the warm-up."""
    final_learning_rate: float = 0.02
    """Learning rate at the end of `cosine` and `stable_decay`, as a fraction of the peak."""
    decay_share: float = 0.4
    """Final fraction of the updates, from 0 to 1, over which `stable_decay` decays."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """What updates the weight matrices in the blocks; AdamW updates all other parameters."""
    muon_learning_rate: float = 0.02
    """Peak learning rate of Muon, which follows the same schedule as that of AdamW."""
    muon_momentum: float = 0.95
    """Decay rate per update of Muon's running average of the gradient."""
    weight_decay: float = 0.1
    """Weight decay of matrices per update, before multiplication by the learning rate."""
    beta1: float = 0.9
    """Decay rate per update of AdamW's running average of the gradient."""
    beta2: float = 0.98
    """Decay rate per update of AdamW's running average of the squared gradient."""
    max_gradient_norm: float = 1.0
    """Largest norm of the gradient over all parameters; a larger one is scaled down to it."""
    label_smoothing: float = 0.0
    """Probability mass of each target spread evenly over the vocabulary, from 0 to below 1."""
    micro_batches: int = 1
    """Number of parts of a batch, computed one by one to save memory, for one update."""
    precision: Precision = "float32"
    """Precision of matrix products; parameters, normalisation and the loss stay in float32."""

    def __post_init__(self) -> None:
        values = asdict(self)
        for name in ("steps", "micro_batches"):
            require(values[name] >= 1, f"{name} must be at least 1", **{name: values[name]})
        steps = self.warmup_steps
        require(steps >= 0, "warmup_steps must not be negative", warmup_steps=steps)
        for name in ("learning_rate", "muon_learning_rate", "max_gradient_norm"):
            require(values[name] > 0, f"{name} must be positive", **{name: values[name]})
        for name in ("final_learning_rate", "decay_share"):
            require(0 <= values[name] <= 1, f"{name} must be from 0 to 1", **{name: values[name]})
        for name in ("label_smoothing", "muon_momentum", "beta1", "beta2"):
            rule = f"{name} must be at least 0 and below 1"
            require(0 <= values[name] < 1, rule, **{name: values[name]})
        for field in fields(self):
            if get_origin(field.type) is Literal:
                require_choice(get_args(field.type), **{field.name: values[field.name]})


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Measurements since the previous record."""

    step: int
    """Number of updates made so far."""
    loss: float
    """Average over the updates since the previous record, in nats per token."""
    learning_rate: float
    """Learning rate of AdamW in the last update."""
    gradient_norm: float
    """Norm of the last gradient over all parameters, before clipping."""
    tokens_per_second: float
    """Targets per second of wall-clock time since the previous record."""
    seconds: float
    """Wall-clock time since `train` began, excluding the caller's work between records."""


def cross_entropy(
    logits: Float[Tensor, "*batch vocab"],
    targets: Int[Tensor, "*batch"],
    label_smoothing: float = 0.0,
    num_targets: Int[Tensor, ""] | None = None,
) -> Float[Tensor, ""]:
    """Average the surprisal of the correct tokens, in nats per token.

    Args:
        logits: One row per position. Half precision is converted to float32, which is accurate
            enough to sum over a large vocabulary.
        targets: The correct token at each position. `IGNORED` is excluded from sum and count.
        label_smoothing: Probability mass of each target spread evenly over the vocabulary, so
            that the model is not pushed to certainty. Even a perfect model then has a loss above 0.
        num_targets: Divisor of the sum; by default the number of targets that are not `IGNORED`.
            For a part of a batch, pass the number in the whole batch: parts differ in their
            numbers of targets, so the mean of their means is not the mean of the batch.

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
    """Return the learning rate of an update: linear warm-up, then cosine decay.

    Adam's first steps are the longest and rest on few batches, hence the warm-up; small steps at
    the end average out the noise of the batches.

    Args:
        step: Index of the update, counted from 0.
        peak: The highest learning rate, reached at update `warmup_steps`.
        warmup_steps: Updates below the peak; update 0 has `peak / (warmup_steps + 1)`.
        total_steps: Number of updates; from the last one on, the rate is `final`.
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
    """Return the learning rate of an update: linear warm-up, then inverse-square-root decay.

    The schedule of the original transformer. It needs no total number of updates, so a run may
    be extended at any time. The paper's peak is `(d_model * warmup_steps) ** -0.5`.

    Args:
        step: Index of the update, counted from 0.
        peak: The highest learning rate, that of update `warmup_steps - 1`.
        warmup_steps: Updates up to and including the peak; 0 means 1.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, section 5.3, equation 3, which counts
        updates from 1, https://arxiv.org/abs/1706.03762

    """
    number, warmup_steps = step + 1, max(warmup_steps, 1)
    return peak * min(number / warmup_steps, math.sqrt(warmup_steps / number))


def warmup_constant(step: int, *, peak: float, warmup_steps: int) -> float:
    """Return the learning rate of an update: linear warm-up, then constant.

    Args:
        step: Index of the update, counted from 0.
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
    """Return the learning rate of an update: linear warm-up, constant, linear decay.

    Unlike a cosine, the constant phase does not need to know its length in advance: a run can
    be extended, and decayed from any point to get a good model.

    Args:
        step: Index of the update, counted from 0.
        peak: The highest learning rate.
        warmup_steps: Updates before the peak; update 0 has `peak / (warmup_steps + 1)`.
        decay_steps: Updates after the constant phase; the last has
            `final + (peak - final) / (decay_steps + 1)`.
        total_steps: Number of updates; beyond them the rate is `final`.
        final: The learning rate that the decay would reach one update after the last.

    Source:
        Hu et al. 2024, MiniCPM, section 4, https://arxiv.org/abs/2404.06395; Hägele et al. 2024,
        Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations, section 3
        (linear decay), https://arxiv.org/abs/2405.18392

    """
    remaining = max(0.0, min(1.0, (total_steps - step) / (decay_steps + 1)))
    rate = warmup_constant(step, peak=peak, warmup_steps=warmup_steps)
    return min(rate, final + (peak - final) * remaining)


def fraction_of_peak(config: TrainingConfig, step: int) -> float:
    """Return the learning rate of an update as a fraction of the peak.

    Args:
        config: The schedule and its settings.
        step: Index of the update, counted from 0.

    """
    warmup = {"peak": 1.0, "warmup_steps": config.warmup_steps}
    end = {"total_steps": config.steps, "final": config.final_learning_rate}
    match config.schedule:
        case "cosine":
            return warmup_cosine(step, **warmup, **end)
        case "inverse_root":
            return warmup_inverse_root(step, **warmup)
        case "constant":
            return warmup_constant(step, **warmup)
        case "stable_decay":
            decay_steps = round(config.decay_share * config.steps)
            return warmup_stable_decay(step, **warmup, **end, decay_steps=decay_steps)


def adamw(model: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """Make an AdamW optimizer: Adam with decoupled weight decay of matrices.

    Gains and biases are not decayed: they set scales and thresholds, and there are too few of
    them to overfit.

    Source:
        Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization, algorithm 2,
        https://arxiv.org/abs/1711.05101

    """
    return _adamw(list(model.parameters()), config)


def optimizers_for(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Make the optimizer that the config specifies.

    With `muon`, Muon updates the weight matrices inside the blocks, and AdamW the embedding and
    unembedding matrices, gains and biases: the size of Muon's updates suits a matrix between two
    dense layers. Each parameter group has its own peak learning rate, `peak`; `train` applies
    one schedule to all of them.

    Args:
        model: On the device to train on. Its blocks are in module lists.
        config: Training hyperparameters.

    Raises:
        ValueError: If `muon` is chosen and the model has no matrix inside a block.

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
    in_muon = {id(p) for p in matrices}
    muon = Muon(
        [{"params": matrices, "peak": config.muon_learning_rate}],
        lr=config.muon_learning_rate,
        momentum=config.muon_momentum,
        weight_decay=config.weight_decay,
        dtype=torch.bfloat16 if multiplies_bfloat16(matrices[0].device) else None,
    )
    return Together(_adamw([p for p in model.parameters() if id(p) not in in_muon], config), muon)


def multiplies_bfloat16(device: torch.device) -> bool:
    """Return whether a device has instructions for matrix products in bfloat16.

    Without them, the products are emulated: correct but slow.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return False
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
    loss: Loss | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Make one update: forward pass, loss, backward pass, gradient clipping, optimizer step.

    Args:
        model: Takes the inputs of the batch by name and returns logits. May be compiled, or
            parallelised over workers.
        batch: On the model's device; with several workers, this one's rows.
        optimizer: Holds the model's parameters and the learning rate.
        max_gradient_norm: A gradient with a larger norm is scaled down to this norm.
        label_smoothing: As in `cross_entropy`.
        micro_batches: Number of parts that the rows are split into, computed one by one: less
            memory, the same update.
        precision: Precision of matrix products.
        loss: What to minimise; by default `cross_entropy`.

    Returns:
        The loss before the update, in nats per token, and the norm of the gradient before
        clipping; both of the whole batch, on every worker.

    Raises:
        ValueError: If `micro_batches` is below 1 or above the number of rows.

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
        nats = (loss or cross_entropy)(logits, part.targets, label_smoothing, num_targets)
        (nats * num_workers()).backward()  # the workers' gradients are averaged, not added
        losses.append(nats.detach())
    gradient_norm = nn.utils.clip_grad_norm_(model.parameters(), max_gradient_norm)
    optimizer.step()
    return total(torch.stack(losses).sum()), whole(gradient_norm)


def _parts(batch: Batch, number: int) -> list[Batch]:
    """Split a batch along its rows; an input that all rows share goes to each part."""
    rows = len(batch.targets)
    if not 1 <= number <= rows:
        raise ValueError(
            "micro_batches must be from 1 to the number of rows in a batch, "
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
    loss: Loss | None = None,
) -> Iterator[Record]:
    """Train, and yield a record every few updates.

    Between two records the caller may evaluate, save, print or stop. To resume later, restore
    the model, the optimizer, the generator that draws the batches, torch's random state (if the
    model has dropout) and the step: the updates are then those of an uninterrupted run.

    Args:
        model: On the device to train on. May be compiled, or parallelised over workers.
        batches: Infinite, or at least `config.steps - start_step` of them; with several workers,
            this one's rows of each.
        optimizer: As `optimizers_for` makes it. A parameter group without a `peak` has the peak
            learning rate of `config`.
        config: Training hyperparameters.
        start_step: Number of updates already made.
        record_every: Updates per record; the last update always has one.
        loss: What to minimise; by default `cross_entropy`.

    Yields:
        Measurements since the previous record, over all workers.

    Raises:
        ValueError: If the loss is NaN or infinite, checked at each record.

    """
    device = next(model.parameters()).device
    seconds = 0.0
    losses, num_tokens, start = [], 0, time.perf_counter()
    for step in range(start_step, config.steps):
        fraction = fraction_of_peak(config, step)
        for group in optimizer.param_groups:
            group["lr"] = group.get("peak", config.learning_rate) * fraction
        batch = next(batches)
        num_tokens += int((batch.targets != IGNORED).sum())
        nats, gradient_norm = train_step(
            model,
            batch.to(device),
            optimizer,
            config.max_gradient_norm,
            label_smoothing=config.label_smoothing,
            micro_batches=config.micro_batches,
            precision=config.precision,
            loss=loss,
        )
        losses.append(nats)
        if (step + 1) % record_every and step + 1 < config.steps:
            continue
        mean_loss = torch.stack(losses).mean().item()  # waits for the device
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
            learning_rate=config.learning_rate * fraction,
            gradient_norm=gradient_norm.item(),
            tokens_per_second=all_tokens / elapsed,
            seconds=seconds,
        )
        losses, num_tokens, start = [], 0, time.perf_counter()


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[Batch]) -> tuple[float, int]:
    """Measure the loss without updating the model.

    Args:
        model: Put into evaluation mode, and back into its mode at the end.
        batches: Each is weighted by its number of targets.

    Returns:
        The average loss in nats per token, and the number of tokens it is averaged over.

    Raises:
        ValueError: If there is no target.

    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    nats, num_tokens = 0.0, 0
    for batch in batches:
        num_targets = int((batch.targets != IGNORED).sum())
        batch = batch.to(device)
        nats += cross_entropy(model(**batch.inputs), batch.targets).item() * num_targets
        num_tokens += num_targets
    model.train(was_training)
    if num_tokens == 0:
        raise ValueError("an average needs at least one target, got none")
    return nats / num_tokens, num_tokens


def bits_per_byte(nats_per_token: float, num_tokens: int, num_bytes: int) -> float:
    """Convert a loss to bits per byte: the size of the text if the model compressed it.

    Nats per token depend on the tokenizer. Bits per byte do not, so they compare models with
    different vocabularies, and compressors.

    Args:
        nats_per_token: Average loss.
        num_tokens: Number of tokens that it is averaged over.
        num_bytes: Length of the text of these tokens, in bytes of UTF-8. A first token that is
            not predicted is left out of both counts.

    """
    return nats_per_token * num_tokens / math.log(2) / num_bytes
