"""Small runs for chapter 7: a healthy one, and eight with a mistake.

Everything but the mistake is the same in all of them: text, sizes, seeds, number of updates. Only
the one that was split after shuffling also has little text, or its leak would not show. The
held-out part is measured with the same mistake, as its author would measure it. From the root of
the project,

    python book/training_runs.py

trains all of them, and the runs with other schedules, optimizers, precisions and sizes, in about
one minute of CPU time, and writes `tests/benchmarks/records/training_runs.json`. `load` reads that
record.
"""

import datetime
import functools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groundup import presets
from groundup.core.models import DecoderOnly
from groundup.data.batches import IGNORED, Batch, covering_windows, language_model_batches
from groundup.data.texts import python_reference
from groundup.data.tokenizers import CharacterTokenizer
from groundup.looking.accounting import parameters
from groundup.looking.throughput import machine
from groundup.training.loop import TrainingConfig, evaluate, optimizers_for, train, train_step

STEPS, BATCH_SIZE, LENGTH = 160, 6, 64
LITTLE = 2_000
"""Number of characters in a training text that is too short."""
HEALTHY = "nothing is wrong"
"""Name of the run without a mistake."""
SCHEDULES = {
    "cosine": {},
    "constant": {"schedule": "constant"},
    "stable, then decay": {"schedule": "stable_decay", "final_learning_rate": 0.0},
}
"""Settings of the runs that differ in their schedule."""
RECORD = Path(__file__).parents[1] / "tests" / "benchmarks" / "records" / "training_runs.json"


@functools.cache
def reference() -> tuple[Tensor, Tensor, CharacterTokenizer]:
    """Return the training tokens, the held-out tokens, and the tokenizer of both."""
    data = python_reference()
    tokenizer = CharacterTokenizer.fit([data.train, data.validation])
    train_part, held_out = (
        torch.tensor(tokenizer.encode(part)) for part in (data.train, data.validation)
    )
    return train_part, held_out, tokenizer


def seeded(seed: int) -> torch.Generator:
    """Make a generator."""
    return torch.Generator().manual_seed(seed)


def new_model(seed: int = 0, **sizes: Any) -> DecoderOnly:
    """Make a model of two blocks with random weights."""
    own = {"d_model": 48, "d_ff": 96, "num_layers": 2, "max_len": LENGTH} | sizes
    config = presets.decoder_only("tiny", vocab_size=reference()[2].vocab_size, **own)
    return DecoderOnly(config, seeded(seed))


@dataclass(frozen=True, kw_only=True)
class Run:
    """How a run differs from the healthy one."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Training hyperparameters."""
    change: Callable[[DecoderOnly], object] = lambda model: None
    """Applied to the model before training."""
    batch: Callable[[Batch], Batch] = lambda batch: batch
    """Applied to each batch."""
    text: Literal["long", "short", "split after shuffling"] = "long"
    """The training text, and how the held-out part was split off."""
    clears_gradients: bool = True
    """Whether each update begins with a gradient of zero."""


@dataclass(frozen=True)
class Curve:
    """Measurements of a run, one every few updates."""

    step: list[int] = field(default_factory=list)
    """Number of updates so far."""
    loss: list[float] = field(default_factory=list)
    """Mean over the training batches since the last measurement, in nats per character."""
    held_out: list[float] = field(default_factory=list)
    """Loss on the held-out part, in nats per character."""
    gradient_norm: list[float] = field(default_factory=list)
    """Norm of the last gradient."""


# --- eight mistakes ------------------------------------------------------------------------


def remove_the_mask(model: DecoderOnly) -> None:
    """Let every token attend to the whole window."""
    for block in model.blocks:
        attention: Any = block.attention
        attention.is_causal = False


def do_not_shift(batch: Batch) -> Batch:
    """Use the input tokens as targets, instead of the tokens that follow."""
    return Batch(batch.inputs, batch.inputs["tokens"])


def apply_softmax_early(model: DecoderOnly) -> None:
    """Return probabilities to the loss, which applies a softmax itself."""
    model.unembedding.register_forward_hook(lambda _module, _given, x: x.softmax(dim=-1))


def start_large(model: DecoderOnly) -> None:
    """Draw every matrix uniformly from -1 to 1, whatever its width."""
    random = seeded(3)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            nn.init.uniform_(parameter, -1.0, 1.0, generator=random)


MISTAKES = {
    "the targets are not shifted": Run(batch=do_not_shift),
    "the causal mask is missing": Run(change=remove_the_mask),
    "the learning rate is too high": Run(settings={"learning_rate": 0.2}),
    "the gradient is never cleared": Run(clears_gradients=False),
    "the softmax is applied twice": Run(change=apply_softmax_early),
    "the initial weights are too large": Run(change=start_large),
    "there is too little text": Run(text="short"),
    "the text was split after shuffling": Run(text="split after shuffling"),
}
"""The eight runs with a mistake, by its name."""


# --- training ------------------------------------------------------------------------------


def learn(
    run: Run | None = None,
    model: DecoderOnly | None = None,
    *,
    steps: int = STEPS,
    seed: int = 1,
    record_every: int = 4,
) -> Curve:
    """Train a model, and measure it every few updates.

    Args:
        run: How it differs from the healthy run; by default not at all.
        model: The model to train; by default a new one.
        steps: Number of updates.
        seed: Seed of the training windows.
        record_every: Updates between two measurements.

    """
    run, model = run or Run(), model or new_model()
    values = {"learning_rate": 6e-3, "warmup_steps": 20, "beta2": 0.98, "max_gradient_norm": 1e6}
    settings = TrainingConfig(steps=steps, **values | run.settings)
    batches, held_out = data_of(run, seed)
    run.change(model)
    optimizer = optimizers_for(model, settings)
    if not run.clears_gradients:
        optimizer.zero_grad = lambda set_to_none=True: None
    curve = Curve()
    records = train(model, map(run.batch, batches), optimizer, settings, record_every=record_every)
    try:
        for record in records:
            curve.step.append(record.step)
            curve.loss.append(record.loss)
            curve.gradient_norm.append(record.gradient_norm)
            curve.held_out.append(evaluate(model, map(run.batch, held_out))[0])
    except ValueError:  # the loss is no longer a number: the curve ends here
        assert not math.isfinite(sum(p.sum().item() for p in model.parameters()))
    return curve


def data_of(run: Run, seed: int) -> tuple[Iterator[Batch], list[Batch]]:
    """Return an endless iterator over training batches, and the held-out batches."""
    train_part, held_out, _ = reference()
    if run.text == "split after shuffling":
        windows = train_part[:LITTLE].unfold(0, LENGTH + 1, LENGTH // 4)
        windows = windows[torch.randperm(len(windows), generator=seeded(2))]
        cut = len(windows) * 9 // 10
        return drawn_from(windows[:cut], seeded(seed)), [as_batch(windows[cut:])]
    if run.text == "short":
        train_part = train_part[:LITTLE]
    windows = held_out.unfold(0, LENGTH + 1, len(held_out) // 32)
    return language_model_batches(train_part, BATCH_SIZE, LENGTH, seeded(seed)), [as_batch(windows)]


def drawn_from(windows: Tensor, random: torch.Generator) -> Iterator[Batch]:
    """Draw batches from the given windows, without end."""
    while True:
        yield as_batch(windows[torch.randint(len(windows), (BATCH_SIZE,), generator=random)])


def as_batch(windows: Tensor) -> Batch:
    """Split windows into inputs and the tokens that follow."""
    return Batch({"tokens": windows[:, :-1]}, windows[:, 1:])


def memorise(run: Run | None = None, *, steps: int = 60) -> tuple[float, float]:
    """Train a new model on a single batch of 4 windows of 32 characters; no schedule, no clipping.

    Args:
        run: How it differs from the healthy run; by default not at all.
        steps: Number of updates.

    Returns:
        The loss before the first update and before the last.

    """
    run, model = run or Run(), new_model()
    batch = run.batch(next(language_model_batches(reference()[0], 4, 32, seeded(5))))
    run.change(model)
    settings = TrainingConfig(steps=steps, **{"learning_rate": 6e-3} | run.settings)
    optimizer = optimizers_for(model, settings)
    if not run.clears_gradients:
        optimizer.zero_grad = lambda set_to_none=True: None
    unclipped = functools.partial(train_step, max_gradient_norm=1e6)
    losses = [unclipped(model, batch, optimizer)[0].item() for _ in range(steps)]
    return losses[0], losses[-1]


@torch.no_grad()
def surprisals(model: DecoderOnly, tokens: Tensor) -> Tensor:
    """Return the nats of each token but the first, from windows of `LENGTH`."""
    model.eval()
    found = []
    for batch in covering_windows(tokens, LENGTH, LENGTH):
        nats = F.cross_entropy(model(**batch.inputs).mT, batch.targets, reduction="none")
        found.append(nats[batch.targets != IGNORED])
    return torch.cat(found)


def loss_of_width(width: int, seed: int) -> tuple[int, float]:
    """Train a model of another width; its learning rate falls with the square root of the width.

    Returns:
        The number of parameters in its blocks, and its loss on 12,000 held-out characters.

    """
    settings = SCHEDULES["stable, then decay"] | {"learning_rate": 0.04 / width**0.5}
    model = new_model(seed, d_model=width, d_ff=2 * width)
    learn(Run(settings=settings), model, record_every=STEPS)
    counts = parameters(model.config)
    in_blocks = counts["attention"] + counts["feed_forward"] + counts["norms"]
    return in_blocks, surprisals(model, reference()[1][:12_000]).mean().item()


# --- the record ----------------------------------------------------------------------------


def load(file: str | Path = RECORD) -> dict[str, Any]:
    """Read the committed record of these runs. Losses are in nats per character.

    Args:
        file: The record. A page that names it in its code runs again when the record changes.

    Returns:
        hardware, date, command: Where, when and how the runs were made.
        curves: `Curve` of each of the nine runs, by name: `HEALTHY` and the names in `MISTAKES`.
        memorised: By the same names but those of the two mistakes in the text, the loss on one
            batch before the first and before the 60th update on it.
        schedules: For each name in `SCHEDULES`, a list of `Curve`, one for each of the seeds
            1, 2 and 3 of the training windows. Seed 1 of the cosine is the healthy run.
        muon: `Curve` of the healthy run with Muon, without weight decay.
        bfloat16: `Curve` of the healthy run with matrix products in bfloat16.
        decay: For the texts `long` and `short`, `Curve` of a run with a weight decay of 3.
        scaling: A list of rows `width`, `seed`, `parameters` (in the blocks), `loss` (on 12,000
            held-out characters): four widths, two seeds of the initial weights.

    """
    record = json.loads(Path(file).read_text(encoding="utf-8"))
    record["curves"] = {name: Curve(**curve) for name, curve in record["curves"].items()}
    record["schedules"] = {
        name: [Curve(**curve) for curve in curves] for name, curves in record["schedules"].items()
    }
    record["decay"] = {text: Curve(**curve) for text, curve in record["decay"].items()}
    for name in ("muon", "bfloat16"):
        record[name] = Curve(**record[name])
    return record


def rounded(curve: Curve) -> dict[str, list[float]]:
    """Keep five significant digits."""
    return {
        name: [float(f"{value:.5g}") for value in values] if name != "step" else values
        for name, values in asdict(curve).items()
    }


def main() -> None:
    """Make all runs, and write the record."""
    torch.set_num_threads(1)
    runs = {HEALTHY: Run(), **MISTAKES}
    record: dict[str, Any] = {
        "hardware": f"1 thread of {machine()['processor']}, torch {torch.__version__}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": "python book/training_runs.py",
        "curves": {name: rounded(learn(run)) for name, run in runs.items()},
        "memorised": {
            name: [round(loss, 3) for loss in memorise(run)]
            for name, run in runs.items()
            if run.text == "long"
        },
        "schedules": {
            name: [rounded(learn(Run(settings=settings), seed=seed)) for seed in (1, 2, 3)]
            for name, settings in SCHEDULES.items()
        },
        "muon": rounded(learn(Run(settings={"optimizer": "muon", "weight_decay": 0.0}))),
        "bfloat16": rounded(learn(Run(settings={"precision": "bfloat16"}))),
        "decay": {
            text: rounded(learn(Run(text=text, settings={"weight_decay": 3.0})))
            for text in ("long", "short")
        },
        "scaling": [],
    }
    for width in (8, 16, 32, 64):
        for seed in (0, 1):
            size, loss = loss_of_width(width, seed)
            row = {"width": width, "seed": seed, "parameters": size, "loss": round(loss, 4)}
            record["scaling"].append(row)
    RECORD.write_text(in_lines(record) + "\n", encoding="utf-8")


def in_lines(record: dict[str, Any]) -> str:
    """Write JSON with one list of numbers per line."""

    def written(value: Any, indent: str) -> str:
        inner = indent + " "
        if isinstance(value, dict) and any(isinstance(v, dict | list) for v in value.values()):
            lines = (f"{inner}{json.dumps(k)}: {written(v, inner)}" for k, v in value.items())
            return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
        if isinstance(value, list) and any(isinstance(v, dict) for v in value):
            return "[\n" + ",\n".join(inner + written(v, inner) for v in value) + f"\n{indent}]"
        return json.dumps(value, ensure_ascii=False)

    return written(record, "")


if __name__ == "__main__":
    main()
