"""The tasks of the command line: language modelling of a text, and normalising dates.

A task combines data, tokenizers, a matching model, batches, and an evaluation.
"""

import datetime
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch

from groundup import presets
from groundup.core.models import AnyModel, DecoderOnly, EncoderDecoder
from groundup.data.batches import Batch, covering_windows, language_model_batches, pair_batches
from groundup.data.dates import Dates
from groundup.data.texts import python_reference, python_source, text_file, tiny_shakespeare
from groundup.data.tokenizers import BytePairTokenizer, ByteTokenizer, CharacterTokenizer, Tokenizer
from groundup.generation.loop import translate_texts
from groundup.training.baselines import CharacterNGram
from groundup.training.loop import TrainingConfig, bits_per_byte, evaluate

TEXTS = {
    "python-reference": python_reference,
    "python-source": python_source,
    "tiny-shakespeare": tiny_shakespeare,
}
"""Texts available by name; `tiny-shakespeare` is downloaded."""

VOCAB_SIZE = 1024
"""Default vocabulary size of a byte-pair tokenizer."""

Tokenizers = Mapping[str, Tokenizer]


class Recipe(NamedTuple):
    """Default settings for a preset; each can be overridden."""

    batch_size: int
    context: int
    training: TrainingConfig


class TextTask:
    """Language modelling of one text.

    Args:
        data: One of `TEXTS`, or the path of a text file.
        tokenizers: Those of a saved model; by default new ones are made.
        kind: Kind of new tokenizer.
        vocab_size: Number of tokens of a new byte-pair tokenizer; by default `VOCAB_SIZE`.

    Raises:
        ValueError: If the data cannot be read or is too short, or `vocab_size` is given for
            a kind other than `bpe`.

    """

    PRESET = "modern"
    """Default preset."""
    RECIPES = {
        "tiny": Recipe(4, 128, TrainingConfig(steps=2300, learning_rate=2e-3)),
        "modern": Recipe(
            *(8, 128),
            TrainingConfig(
                steps=750,
                learning_rate=5e-3,
                warmup_steps=10,
                schedule="stable_decay",
                decay_share=0.7,
                final_learning_rate=0.0,
                optimizer="muon",
                muon_learning_rate=0.03,
                muon_momentum=0.9,
                weight_decay=0.0,
                beta2=0.95,
            ),
        ),
    }

    def __init__(
        self,
        data: str,
        tokenizers: Tokenizers | None = None,
        kind: Literal["character", "byte", "bpe"] = "character",
        vocab_size: int | None = None,
    ):
        self.data = TEXTS[data]() if data in TEXTS else text_file(data)
        self.name = self.data.name
        whole = self.data.train + self.data.validation
        self.fingerprint = hashlib.sha256(whole.encode()).hexdigest()
        if vocab_size is not None and kind != "bpe":
            raise ValueError(
                f"--vocab-size must be used with --tokenizer bpe, got --tokenizer {kind}"
            )
        if tokenizers is None:
            tokenizers = {"text": self._tokenizer(kind, vocab_size or VOCAB_SIZE)}
        self.tokenizers = tokenizers

    def _tokenizer(self, kind: Literal["character", "byte", "bpe"], vocab_size: int) -> Tokenizer:
        """Make a new tokenizer; byte-pair merges are learned from the training part only."""
        if kind == "byte":
            return ByteTokenizer()
        if kind == "bpe":
            return BytePairTokenizer.fit(self.data.train, vocab_size)
        return CharacterTokenizer.fit([self.data.train, self.data.validation])

    def new_model(
        self,
        preset: str,
        context: int,
        generator: torch.Generator,
        changes: Mapping[str, Any] | None = None,
    ) -> DecoderOnly:
        """Make a model of a preset for this text, with `changes` to its configuration."""
        sizes = {"vocab_size": self.tokenizers["text"].vocab_size, "max_len": context}
        config = presets.decoder_only(preset, **_with_changes(sizes, changes))
        return DecoderOnly(config, generator)

    def batches(self, batch_size: int, context: int, generator: torch.Generator) -> Iterator[Batch]:
        """Draw batches of random windows from the training part, without end."""
        tokens = torch.tensor(self.tokenizers["text"].encode(self.data.train))
        return language_model_batches(tokens, batch_size, context, generator)

    def evaluate(self, model: AnyModel) -> dict[str, Any]:
        """Evaluate on the whole held-out part; its first token is only context."""
        assert isinstance(model, DecoderOnly)
        tokenizer, text = self.tokenizers["text"], self.data.validation
        ids = tokenizer.encode(text)
        windows = covering_windows(torch.tensor(ids), batch_size=64, length=model.config.max_len)
        nats, num_tokens = evaluate(model, windows)
        num_bytes = _num_bytes_after_first_token(tokenizer, ids, text)
        return {
            "bits_per_byte": bits_per_byte(nats, num_tokens, num_bytes),
            "nats_per_token": nats,
            "num_tokens": num_tokens,
            "num_bytes": num_bytes,
        }

    def baseline(self) -> dict[str, Any]:
        """Evaluate a character 5-gram on the held-out part; its first character is context."""
        text = self.data.validation
        ngram = CharacterNGram(self.data.train, sorted(set(self.data.train + text)), order=5)
        num_bytes = len(text[1:].encode())
        return {
            "name": "5-gram characters, interpolated modified Kneser-Ney",
            "bits_per_byte": ngram.bits_per_character(text) * (len(text) - 1) / num_bytes,
        }


def _num_bytes_after_first_token(tokenizer: Tokenizer, ids: list[int], text: str) -> int:
    first, rest = tokenizer.decode(ids[:1]), tokenizer.decode(ids[1:])
    # If the first token ends inside a character, the start of the character decodes to one
    # U+FFFD, and each of its remaining bytes to another: these are the surplus characters.
    num_remaining = len(first) + len(rest) - len(text)
    return num_remaining + len(text[len(first) :].encode())


class DateAnswer(NamedTuple):
    """A model's output for one date, with the form in which the date was written."""

    locale: str
    """Locale of the form, such as `hr`."""
    style: str
    """One of `Dates.STYLES`."""
    source: str
    """The date as written, which the model read."""
    target: str
    """The date in ISO form."""
    answer: str
    """What the model generated."""

    @property
    def is_correct(self) -> bool:
        """Whether the answer equals the target."""
        return self.answer == self.target


def count_correct(
    answers: Iterable[DateAnswer], part: Literal["locale", "style"]
) -> dict[str, tuple[int, int]]:
    """Count correct answers per locale or per style, which an overall accuracy hides.

    Args:
        answers: Those of `DatesTask.answer`.
        part: What to group by.

    Returns:
        For each locale or style, the number of correct answers and the number of all answers.

    """
    counts: dict[str, tuple[int, int]] = {}
    for answer in answers:
        name = getattr(answer, part)
        correct, total = counts.get(name, (0, 0))
        counts[name] = (correct + answer.is_correct, total + 1)
    return counts


class DatesTask:
    """Translation of dates in many languages into ISO form.

    Args:
        tokenizers: Those of a saved model; by default new ones are made.

    """

    PRESET = "tiny"
    """Default preset."""
    RECIPES = {"tiny": Recipe(64, 64, TrainingConfig(steps=1000, learning_rate=3e-3))}
    TARGET_LEN = len("2031-05-03") + 1  # plus BOS in the input, EOS in the target
    NUM_VALIDATION = 2000

    def __init__(self, tokenizers: Tokenizers | None = None):
        self.data = Dates()
        self.name = self.data.name
        self.fingerprint = self.name
        if tokenizers is None:
            source, target = self.data.tokenizers()
            tokenizers = {"source": source, "target": target}
        self.tokenizers = tokenizers

    def new_model(
        self,
        preset: str,
        context: int,
        generator: torch.Generator,
        changes: Mapping[str, Any] | None = None,
    ) -> EncoderDecoder:
        """Make a model of a preset for dates, with `changes` to its configuration."""
        sizes = {
            "source_vocab_size": self.tokenizers["source"].vocab_size,
            "vocab_size": self.tokenizers["target"].vocab_size,
            "source_max_len": context,
            "max_len": self.TARGET_LEN,
        }
        config = presets.encoder_decoder(preset, **_with_changes(sizes, changes))
        return EncoderDecoder(config, generator)

    def batches(self, batch_size: int, context: int, generator: torch.Generator) -> Iterator[Batch]:
        """Draw batches of training days and their forms, without end."""
        source, target = self.tokenizers["source"], self.tokenizers["target"]
        while True:
            pairs = self.data.draw(batch_size, generator, self.data.train_days)
            yield from pair_batches(pairs, batch_size, source, target)

    def evaluate(self, model: AnyModel) -> dict[str, Any]:
        """Evaluate on held-out days."""
        return self.evaluate_on(model, self.data.validation_days)

    def evaluate_on(self, model: AnyModel, days: Sequence[datetime.date]) -> dict[str, Any]:
        """Evaluate on a fixed sample of `NUM_VALIDATION` of these days, each in one form."""
        assert isinstance(model, EncoderDecoder)
        generator = torch.Generator().manual_seed(0)
        choices = self.data.choose(self.NUM_VALIDATION, generator, days)
        pairs = [self.data.write(day, form) for day, form in choices]
        batches = pair_batches(pairs, 256, self.tokenizers["source"], self.tokenizers["target"])
        nats, num_tokens = evaluate(model, batches)
        answers = self.answer(model, choices)
        return {
            "exact_match": sum(answer.is_correct for answer in answers) / len(answers),
            "nats_per_token": nats,
            "num_tokens": num_tokens,
            "num_examples": len(answers),
        }

    def answer(
        self, model: EncoderDecoder, choices: Sequence[tuple[datetime.date, tuple[str, str]]]
    ) -> list[DateAnswer]:
        """Decode days greedily, and record the locale and style of each.

        To measure accuracy in Croatian, say, count the answers by locale:

            choices = task.data.choose(500, generator, task.data.validation_days)
            count_correct(task.answer(model, choices), "locale")["hr"]  # (correct, total)

        Args:
            model: Trained with this task's tokenizers.
            choices: Days, each with one of the data's `forms`.

        """
        pairs = [self.data.write(day, form) for day, form in choices]
        texts = translate_texts(
            model,
            [pair.source for pair in pairs],
            self.tokenizers["source"],
            self.tokenizers["target"],
        )
        return [
            DateAnswer(form[0], self.data.style_of[form], pair.source, pair.target, text)
            for (_, form), pair, text in zip(choices, pairs, texts, strict=True)
        ]

    def baseline(self) -> dict[str, Any]:
        """Raise a ValueError: there is no n-gram baseline for translation."""
        raise ValueError("--baseline must be used with a text model, got a dates model")


Task = TextTask | DatesTask


def _with_changes(sizes: dict[str, int], changes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Add changes to the sizes, which they must not override."""
    changes = dict(changes or {})
    if overridden := sorted(sizes.keys() & changes.keys()):
        names = ", ".join(overridden)
        raise ValueError(f"{names} must not be set: it follows from the data and the context")
    return sizes | changes


def recall_task(data: str, tokenizers: Tokenizers) -> Task:
    """Make the task of a saved model."""
    return DatesTask(tokenizers) if data == "dates" else TextTask(data, tokenizers)
