"""A student's library at work: which pieces run in which model, the generated text, a figure.

`python -m groundup.own_parts.at_work FOLDER` tests the parts of a package in models, and counts
which of its pieces run where.
"""

import json
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from os.path import commonprefix
from types import ModuleType
from typing import Any, NamedTuple

import torch

from groundup import pretrained
from groundup.core import masks
from groundup.core.models import AnyModel, DecoderOnly, EncoderDecoder
from groundup.data.batches import source_batch
from groundup.data.tokenizers import BOS, EOS, Tokenizer
from groundup.generation import sampling
from groundup.generation.loop import Choose, stream, translate
from groundup.own_parts import parts
from groundup.own_parts.assembled import assemble, count_calls, load_library, rebuilt, refusals
from groundup.own_parts.training_parts import loss_by, train_by
from groundup.presets import MODELS
from groundup.training.loop import TrainingConfig, optimizers_for, train
from groundup.training.tasks import DatesTask, Task, TextTask
from groundup.variants.functional import Parts

PICTURE = "mine.png"
"""Name of the picture, beside the checkpoint."""
_CHANGES = {
    "text": {},
    "learned": {"positions": "learned", "activation": "gelu_tanh"},
    "alibi": {"positions": "alibi"},
}
"""By model, how it differs from the one that `groundup train --library` trains by default."""
_DATES = ("3. Mai 2031", "19 Eylül 1961", "25 January 1904", "14. veljače 1914.")


class Sample(NamedTuple):
    """What a model generated with a library's pieces and with ours: same weights, same draws."""

    theirs: str
    ours: str
    nats: tuple[float, float]
    """Loss of each on its own output, in nats per token."""

    @property
    def verdict(self) -> str:
        """Whether the two agree, in a sentence."""
        if self.theirs == self.ours and math.isclose(*self.nats, rel_tol=1e-3, abs_tol=1e-4):
            return (
                "The course's code generates the same text from these weights, to the last "
                f"character, and computes the same loss on it: {self.nats[1]:.3f} nats per token."
            )
        same = len(commonprefix([self.theirs, self.ours]))
        return (
            f"The course's code generates the same text from these weights for the first {same} of "
            f"{len(self.ours)} characters; its loss is {self.nats[1]:.3f} nats per token, and with "
            f"these functions it is {self.nats[0]:.3f}."
        )


def chooser(
    library: ModuleType | None,
    generator: torch.Generator,
    temperature: float,
    top_k: int | None,
    top_p: float,
) -> Choose:
    """Make a sampler from a library's functions where it has them, and from ours.

    Raises:
        ValueError: If a setting is invalid.

    """
    things = {} if library is None else vars(library)
    heat = things.get("with_temperature", sampling.temperature)
    most, reach = things.get("top_k", sampling.top_k), things.get("top_p", sampling.top_p)
    softmax = things.get("stable_softmax", torch.softmax)
    log_softmax = things.get("log_softmax", torch.log_softmax)
    # A student's functions need not refuse invalid settings, so they are checked here.
    sampling.top_p(sampling.temperature(torch.zeros(1), temperature), top_p)
    sampling.top_k(torch.zeros(1), 1 if top_k is None else top_k)

    def choose(logits: torch.Tensor) -> torch.Tensor:
        logits = heat(log_softmax(logits, -1), temperature)
        if top_k is not None:
            logits = most(logits, top_k)
        return sampling.sample(softmax(reach(logits, top_p), -1).log(), generator)

    return choose


def write_both(
    model: AnyModel,
    library: ModuleType,
    tokenizers: dict[str, Tokenizer],
    prompts: Sequence[str],
    length: int = 400,
) -> Sample:
    """Generate with a library's pieces and with ours, from the same weights.

    Args:
        model: A decoder-only model, which continues the first prompt, or an encoder-decoder, which
            translates all of them.
        library: From `load_library`.
        tokenizers: As in a checkpoint.
        prompts: Texts.
        length: Tokens to generate.

    """
    plain = MODELS[type(model.config)](model.config).to(next(model.parameters()).device)
    plain.load_state_dict(model.state_dict())
    pairs = ((rebuilt(plain, library), library), (plain, None))
    (theirs, one), (ours, two) = (_written(*pair, tokenizers, prompts, length) for pair in pairs)
    return Sample(theirs, ours, (one, two))


def _written(
    model: Any,
    library: ModuleType | None,
    tokenizers: dict[str, Tokenizer],
    prompts: Sequence[str],
    length: int,
) -> tuple[str, float]:
    """Return what a model generates, and its loss on that."""
    device = next(model.parameters()).device
    loss = getattr(library, "shifted_loss", parts.shifted_loss)
    if isinstance(model, EncoderDecoder):
        ends = tokenizers["target"]
        source, mask = source_batch(prompts, tokenizers["source"])
        padding_mask = getattr(library, "padding_mask", masks.padding_mask)
        mask = padding_mask(mask.sum(dim=-1).flatten(), source.shape[1])
        source, mask = source.to(device), mask.to(device)
        bos, eos = ends.id_of(BOS), ends.id_of(EOS)
        tokens = translate(model, source, mask, bos, eos)
        answers = (ends.decode(row) for row in tokens.tolist())
        text = "\n".join(f"{one} → {other}" for one, other in zip(prompts, answers, strict=True))
        return text, _nats(loss, lambda target: model(source, target, mask), tokens, bos)
    assert isinstance(model, DecoderOnly)
    text = tokenizers["text"]
    generator = torch.Generator(device).manual_seed(0)
    choose = chooser(library, generator, temperature=0.8, top_k=20, top_p=0.95)
    prompt = torch.tensor([text.encode(prompts[0])[: model.config.max_len]], device=device)
    new = [int(token) for token in islice(stream(model, prompt, choose), length)]
    tokens = torch.cat((prompt, torch.tensor([new], device=device)), dim=1)
    tokens = tokens[:, : model.config.max_len + 1]
    nats = _nats(loss, model, tokens[:, 1:], int(tokens[0, 0]))
    return text.decode(prompt[0].tolist()) + "".join(text.decode_stream(new)), nats


@torch.no_grad()
def _nats(loss: Callable[..., Any], model: Any, tokens: torch.Tensor, bos: int) -> float:
    return float(loss(model, tokens, bos, -1))


def prompts_for(task: Task) -> list[str]:
    """Return what to continue or to translate, from the part of the data that was held out."""
    if isinstance(task, TextTask):
        starts = re.findall(r"^[A-Z][a-z].{30}", task.data.validation, re.MULTILINE)
        return [(starts or [task.data.validation])[0][:24]]
    forms = task.data.choose(6, torch.Generator().manual_seed(0), task.data.validation_days)
    return [task.data.write(*form).source for form in forms]


# Which pieces run where -------------------------------------------------------------------------


def where_pieces_run(library: ModuleType) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Train and use a model of each kind briefly, and count calls.

    The models: `text`, which `groundup train --library` trains by default; the same with `learned`
    positions and with `alibi`; the course's trained models `llama` and `dates`.

    Args:
        library: From `load_library`.

    Returns:
        For each piece the models in which it was called, and for each model its output.

    """
    calls, runs, said = count_calls(library), {}, {}
    for name, task, model in _models():
        before = calls.copy()
        try:
            is_text = isinstance(task, TextTask)
            prompts = prompts_for(task) if is_text else _DATES
            sample = write_both(model, library, dict(task.tokenizers), prompts, length=4)
            said[name] = sample.verdict if is_text else f"{sample.theirs}\n{sample.verdict}"
            _learn(library, task, model)
        except ValueError as error:  # of a student's code, which may raise anything
            said[name] = str(error)
        for piece in calls - before:
            runs.setdefault(piece, []).append(name)
    return runs, said


def _models() -> Iterator[tuple[str, Task, AnyModel]]:
    task = TextTask("python-reference")
    for name, changes in _CHANGES.items():
        generator = torch.Generator().manual_seed(0)
        yield name, task, task.new_model("tiny", 32, generator, changes)
    model, tokenizer = pretrained.load("llama")
    yield "llama", TextTask("python-reference", {"text": tokenizer}), model
    model, tokenizers = pretrained.load("dates")
    yield "dates", DatesTask(tokenizers), model


def _learn(library: ModuleType, task: Task, model: AnyModel) -> None:
    """Make three updates of a model with a library's pieces."""
    schedule = "cosine" if isinstance(task, TextTask) else "inverse_root"
    config = TrainingConfig(steps=3, learning_rate=1e-3, warmup_steps=1, schedule=schedule)
    model = rebuilt(model, library)
    optimizer = optimizers_for(model, config)
    optimizer, config, _ = train_by(vars(library), optimizer, config)
    batches = task.batches(2, 16, torch.Generator().manual_seed(0))
    for _ in train(model, batches, optimizer, config, loss=loss_by(vars(library))):
        pass


def borrowed(library: ModuleType) -> list[str]:
    """Say in a line per piece why ours is used instead."""
    reasons = getattr(library, "BORROWED", {}) | getattr(library, "REFUSED", {})
    lines = (f"{name} is the course's: {why}" for name, why in reasons.items())
    return [textwrap.shorten(line, 110) for line in lines]


def counted(library: ModuleType) -> list[str]:
    """Say which pieces have run so far, how often, and which have not."""
    calls = count_calls(library)
    idle = [name for name in getattr(library, "YOURS", []) if name not in calls]
    ran = ", ".join(f"{name} {number:,}" for name, number in calls.items())
    lines = [f"calls of your functions: {ran or 'none'}"]
    if idle:
        lines.append(f"yours, but not in this model: {', '.join(idle)}")
    return [row for line in lines for row in textwrap.wrap(line, 96, subsequent_indent="  ")]


# The picture ------------------------------------------------------------------------------------

_MINE, _OURS, _INK, _MUTED = "#0b6fb8", "#c2570c", "#222832", "#68717c"


def draw(library: ModuleType, losses: Sequence[tuple[int, float]], sample: Sample) -> Any:
    """Plot who wrote each piece, how the loss fell, and what the model generated.

    Args:
        library: From `load_library`, after `count_calls`.
        losses: Steps, each with the loss in nats per token.
        sample: From `write_both`.

    Returns:
        A figure of matplotlib.

    """
    # Other commands do not wait for matplotlib.
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    calls = count_calls(library)
    refused = getattr(library, "REFUSED", {})
    yours = set(getattr(library, "YOURS", calls)) - refused.keys()
    others = {*getattr(library, "BORROWED", {}), *refused}
    names = [name for name in vars(library) if name in yours | others]
    figure = Figure(figsize=(12, 7.5), facecolor="white")
    figure.text(0.03, 0.93, "What my transformer generates", size=26, weight="bold", color=_INK)
    ran = sum(name in calls for name in yours)
    about = f"{len(yours)} of {len(names)} functions are mine, and {ran} of them computed this"
    figure.text(0.03, 0.885, about, size=12, color=_MUTED)

    bricks = figure.add_axes((0.03, 0.03, 0.38, 0.83), xlim=(0, 2), ylim=(0, 1))
    height = 0.94 / math.ceil(len(names) / 2)
    kinds = {  # fill, edge, line, text
        "mine, it ran here": (_MINE, _MINE, "-", "white"),
        "mine, for other models": ("white", _MINE, "-", _MINE),
        "the course's": ("white", _OURS, ":", _OURS),
    }

    def brick(x: float, y: float, width: float, label: str, kind: str) -> None:
        fill, edge, line, ink = kinds[kind]
        size = (width - 0.03, 0.8 * height)
        bricks.add_patch(Rectangle((x, y), *size, fc=fill, ec=edge, ls=line, lw=1.2, clip_on=False))
        middle = (x + size[0] / 2, y + size[1] / 2)
        bricks.text(*middle, label, ha="center", va="center_baseline", size=8.5, color=ink)

    for index, name in enumerate(names):
        mine, idle, ours = kinds
        kind = ours if name not in yours else mine if name in calls else idle
        brick(float(index % 2), 1 - (index // 2 + 1) * height, 1.0, name, kind)
    for index, kind in enumerate(kinds):
        brick(index * 2 / 3, 0.0, 2 / 3, kind, kind)
    bricks.axis("off")

    lines = [row for line in sample.theirs.splitlines() for row in textwrap.wrap(line, 68) or [""]]
    style: dict[str, Any] = {"va": "top", "parse_math": False}
    shown = "\n".join(lines[:13])
    figure.text(
        0.46, 0.86, shown, family="monospace", size=10.5, linespacing=1.35, color=_INK, **style
    )
    figure.text(0.46, 0.43, textwrap.fill(sample.verdict, 92), size=9, color=_MUTED, **style)

    curve = figure.add_axes((0.5, 0.09, 0.47, 0.26))
    curve.plot(*zip(*losses, strict=True), color=_MINE, linewidth=2)
    curve.set_title("how it learned: loss in nats per token, by update", loc="left", size=10)
    curve.spines[["top", "right"]].set_visible(False)
    curve.grid(axis="y", alpha=0.3)
    return figure


def main(arguments: list[str]) -> int:
    """Print, as one JSON object, which parts are refused, which are used, and where pieces run."""
    library = load_library(arguments[0])
    things = {name: vars(library)[name] for name in library.YOURS}
    refused = refusals(things)
    used = [name for name in Parts.names() if name in things and name not in refused]
    vars(library)["DecoderOnly"] = assemble(Parts.among({name: things[name] for name in used}))
    runs, said = where_pieces_run(library)
    print(json.dumps({"used": used, "refused": refused, "runs": runs, "said": said}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
