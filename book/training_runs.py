"""Small runs for chapter 7: a healthy one, and eight with one thing done wrong in each.

Everything but the mistake is the same in all of them: text, sizes, seeds, updates. What is
held out is read with the same mistake, as it would be by whoever made it.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from groundup import presets
from groundup.core.models import DecoderOnly
from groundup.data.batches import Batch, language_model_batches
from groundup.data.texts import python_reference
from groundup.data.tokenizers import CharacterTokenizer
from groundup.training.loop import TrainingConfig, evaluate, optimizers_for, train

STEPS, BATCH_SIZE, LENGTH = 160, 6, 64
LITTLE = 2_000
"""Characters of a text that is too short to learn from."""


@functools.cache
def reference() -> tuple[Tensor, Tensor, CharacterTokenizer]:
    """Give what may be learned from, what is held out, and the letters of both."""
    data = python_reference()
    letters = CharacterTokenizer.fit([data.train, data.validation])
    train_part, held_out = (
        torch.tensor(letters.encode(part)) for part in (data.train, data.validation)
    )
    return train_part, held_out, letters


def seeded(seed: int) -> torch.Generator:
    """Make a generator."""
    return torch.Generator().manual_seed(seed)


def new_model(seed: int = 0, **sizes: Any) -> DecoderOnly:
    """Make a model of two blocks, or of other sizes."""
    own = {"d_model": 48, "d_ff": 96, "num_layers": 2, "max_len": LENGTH} | sizes
    config = presets.decoder_only("tiny", vocab_size=reference()[2].vocab_size, **own)
    return DecoderOnly(config, seeded(seed))


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is different from the healthy run, where anything is."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Of the training."""
    change: Callable[[DecoderOnly], object] = lambda model: None
    """What is done to the model before it learns."""
    batch: Callable[[Batch], Batch] = lambda batch: batch
    """What is done to each batch."""
    text: Literal["long", "short", "cut after shuffling"] = "long"
    """What is learned from, and how the part to measure on was held out."""
    clears_gradients: bool = True
    """Whether each update begins with a gradient of zero."""


@dataclass(frozen=True)
class Curve:
    """What was seen of a run, a number each for every few updates."""

    step: list[int] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    """Of the batches learned from, in nats per character."""
    held_out: list[float] = field(default_factory=list)
    """Of the part held out, in nats per character."""
    gradient_norm: list[float] = field(default_factory=list)
    """Length of the last gradient."""


# --- eight mistakes ------------------------------------------------------------------------


def remove_the_mask(model: DecoderOnly) -> None:
    """Let every token see the whole window."""

    for block in model.blocks:
        attention: Any = block.attention
        attention.is_causal = False


def ask_for_what_was_read(batch: Batch) -> Batch:
    """Take the tokens themselves for targets, not those that come next."""
    return Batch(batch.inputs, batch.inputs["tokens"])


def take_the_softmax_early(model: DecoderOnly) -> None:
    """Give the loss, which takes a softmax, numbers that have been through one."""
    model.unembedding.register_forward_hook(lambda _module, _given, x: x.softmax(dim=-1))


def begin_loud(model: DecoderOnly) -> None:
    """Draw every matrix from -1 to 1, whatever its width."""
    random = seeded(3)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            nn.init.uniform_(parameter, -1.0, 1.0, generator=random)


MISTAKES = {
    "the targets are not shifted": Run(batch=ask_for_what_was_read),
    "there is no mask": Run(change=remove_the_mask),
    "the learning rate is too high": Run(settings={"learning_rate": 0.2}),
    "the gradient is never cleared": Run(clears_gradients=False),
    "the softmax is taken twice": Run(change=take_the_softmax_early),
    "the weights begin between −1 and 1": Run(change=begin_loud),
    "there is too little text": Run(text="short"),
    "the text was cut after shuffling": Run(text="cut after shuffling"),
}
"""By what is wrong."""


# --- learning ------------------------------------------------------------------------------


def learn(
    run: Run | None = None,
    model: DecoderOnly | None = None,
    *,
    steps: int = STEPS,
    seed: int = 1,
    record_every: int = 4,
) -> Curve:
    """Train a model, and look at it every few updates.

    Args:
        run: What is different, if anything.
        model: Is trained; by default a new one.
        steps: Number of updates.
        seed: Chooses the windows to learn from.
        record_every: Updates between two looks.

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
    """Give batches to learn from, without end, and some that are held out."""
    train_part, held_out, _ = reference()
    if run.text == "cut after shuffling":
        windows = train_part[:LITTLE].unfold(0, LENGTH + 1, LENGTH // 4)
        windows = windows[torch.randperm(len(windows), generator=seeded(2))]
        cut = len(windows) * 9 // 10
        return drawn_from(windows[:cut], seeded(seed)), [as_batch(windows[cut:])]
    if run.text == "short":
        train_part = train_part[:LITTLE]
    windows = held_out.unfold(0, LENGTH + 1, len(held_out) // 32)
    return language_model_batches(train_part, BATCH_SIZE, LENGTH, seeded(seed)), [as_batch(windows)]


def drawn_from(windows: Tensor, random: torch.Generator) -> Iterator[Batch]:
    """Draw batches from a number of windows, for ever."""
    while True:
        yield as_batch(windows[torch.randint(len(windows), (BATCH_SIZE,), generator=random)])


def as_batch(windows: Tensor) -> Batch:
    """Ask for the next token at each place but the last."""
    return Batch({"tokens": windows[:, :-1]}, windows[:, 1:])
