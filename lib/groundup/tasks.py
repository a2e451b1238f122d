"""What the command line can teach a model: a text to continue, dates to read.

A task brings together data, tokenizers, a model that fits, batches, and how it is measured.
"""

import datetime
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch

from groundup.baselines import CharacterNGram
from groundup.config import DecoderOnlyConfig, EncoderDecoderConfig
from groundup.data import (
    Batch,
    Dates,
    covering_windows,
    language_model_batches,
    pair_batches,
    python_reference,
    python_source,
    text_file,
    tiny_shakespeare,
)
from groundup.generation import translate_texts
from groundup.models import AnyModel, DecoderOnly, EncoderDecoder
from groundup.tokenizers import BytePairTokenizer, ByteTokenizer, CharacterTokenizer, Tokenizer
from groundup.training import TrainingConfig, bits_per_byte, evaluate

TEXTS = {
    "python-reference": python_reference,
    "python-source": python_source,
    "tiny-shakespeare": tiny_shakespeare,
}
"""Texts that need no file of the user's; the last one is downloaded."""

VOCAB_SIZE = 1024
"""Tokens of a byte-pair tokenizer, where nothing else is asked for."""

Tokenizers = Mapping[str, Tokenizer]


class Recipe(NamedTuple):
    """Settings that suit a preset; each can be overridden."""

    batch_size: int
    context: int
    training: TrainingConfig


class TextTask:
    """Continue a text.

    Args:
        data: One of `TEXTS`, or the path of a text file.
        tokenizers: Those of a model that was begun before.
        kind: Of tokens, for a model that begins.
        vocab_size: Number of byte-pair tokens.

    """

    PRESET = "modern"
    """What is trained where nothing else is asked for."""
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
        """Learn the tokens; what follows what, as in merges, from the part to learn from only."""
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
        """Make a model of a preset for this text, with some of its fields changed."""
        sizes = {"vocab_size": self.tokenizers["text"].vocab_size, "max_len": context}
        config = DecoderOnlyConfig.preset(preset, **_own(sizes, changes))
        return DecoderOnly(config, generator)

    def batches(self, batch_size: int, context: int, generator: torch.Generator) -> Iterator[Batch]:
        """Cut batches out of the part to learn from."""
        tokens = torch.tensor(self.tokenizers["text"].encode(self.data.train))
        return language_model_batches(tokens, batch_size, context, generator)

    def evaluate(self, model: AnyModel) -> dict[str, Any]:
        """Measure on the part held out: all of it but its first token."""
        assert isinstance(model, DecoderOnly)
        tokenizer, text = self.tokenizers["text"], self.data.validation
        ids = tokenizer.encode(text)
        windows = covering_windows(torch.tensor(ids), batch_size=64, length=model.config.max_len)
        nats, num_tokens = evaluate(model, windows)
        num_bytes = _num_bytes_after_the_first_token(tokenizer, ids, text)
        return {
            "bits_per_byte": bits_per_byte(nats, num_tokens, num_bytes),
            "nats_per_token": nats,
            "num_tokens": num_tokens,
            "num_bytes": num_bytes,
        }

    def baseline(self) -> dict[str, Any]:
        """Measure the 5-gram on the same text, but for its first character."""
        text = self.data.validation
        ngram = CharacterNGram(self.data.train, sorted(set(self.data.train + text)), order=5)
        num_bytes = len(text[1:].encode())
        return {
            "name": "5-gram characters, interpolated modified Kneser-Ney",
            "bits_per_byte": ngram.bits_per_character(text) * (len(text) - 1) / num_bytes,
        }


def _num_bytes_after_the_first_token(tokenizer: Tokenizer, ids: list[int], text: str) -> int:
    first, rest = tokenizer.decode(ids[:1]), tokenizer.decode(ids[1:])
    # Where the first token ends within a character, its beginning reads as one U+FFFD, and so
    # does each byte that is left of it: they are what the two parts have too much.
    num_left = len(first) + len(rest) - len(text)
    return num_left + len(text[len(first) :].encode())


class DateAnswer(NamedTuple):
    """What a model made of a date, and how that date was written."""

    locale: str
    """Whose form it is, such as `hr`."""
    style: str
    """One of `Dates.STYLES`."""
    source: str
    """What was read."""
    target: str
    """What it means, in ISO form."""
    answer: str
    """What the model wrote."""

    @property
    def is_right(self) -> bool:
        """Tell whether every character of the answer is as it should be."""
        return self.answer == self.target


def count_right(
    answers: Iterable[DateAnswer], part: Literal["locale", "style"]
) -> dict[str, tuple[int, int]]:
    """Count right answers for each locale or each style: one number hides who is misread.

    Args:
        answers: Those of `DatesTask.answer`.
        part: What to keep apart.

    Returns:
        By name of the locale or style, the number of right answers and that of all answers.

    """
    counts: dict[str, tuple[int, int]] = {}
    for answer in answers:
        name = answer.locale if part == "locale" else answer.style
        right, in_all = counts.get(name, (0, 0))
        counts[name] = (right + answer.is_right, in_all + 1)
    return counts


class DatesTask:
    """Read a date as people write it, and write it in ISO form.

    Args:
        tokenizers: Those of a model that was begun before.

    """

    PRESET = "tiny"
    """What is trained where nothing else is asked for."""
    RECIPES = {"tiny": Recipe(64, 64, TrainingConfig(steps=1000, learning_rate=3e-3))}
    TARGET_LEN = len("2031-05-03") + 1  # and the token that begins or ends it
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
        """Make a model of a preset for dates, with some of its fields changed."""
        sizes = {
            "source_vocab_size": self.tokenizers["source"].vocab_size,
            "vocab_size": self.tokenizers["target"].vocab_size,
            "source_max_len": context,
            "max_len": self.TARGET_LEN,
        }
        config = EncoderDecoderConfig.preset(preset, **_own(sizes, changes))
        return EncoderDecoder(config, generator)

    def batches(self, batch_size: int, context: int, generator: torch.Generator) -> Iterator[Batch]:
        """Write batches of days to learn from, always new ones."""
        source, target = self.tokenizers["source"], self.tokenizers["target"]
        while True:
            pairs = self.data.draw(batch_size, generator, self.data.train_days)
            yield from pair_batches(pairs, batch_size, source, target)

    def evaluate(self, model: AnyModel) -> dict[str, Any]:
        """Measure on days held out."""
        return self.evaluate_on(model, self.data.validation_days)

    def evaluate_on(self, model: AnyModel, days: Sequence[datetime.date]) -> dict[str, Any]:
        """Measure on some of these days, always the same, each written in one form."""
        assert isinstance(model, EncoderDecoder)
        generator = torch.Generator().manual_seed(0)
        choices = self.data.choose(self.NUM_VALIDATION, generator, days)
        pairs = [self.data.write(day, form) for day, form in choices]
        batches = pair_batches(pairs, 256, self.tokenizers["source"], self.tokenizers["target"])
        nats, num_tokens = evaluate(model, batches)
        answers = self.answer(model, choices)
        return {
            "exact_match": sum(answer.is_right for answer in answers) / len(answers),
            "nats_per_token": nats,
            "num_tokens": num_tokens,
            "num_examples": len(answers),
        }

    def answer(
        self, model: EncoderDecoder, choices: Sequence[tuple[datetime.date, tuple[str, str]]]
    ) -> list[DateAnswer]:
        """Let a model read days, and keep with each answer who writes a day so.

        How often it is right in Croatian, or where a month is a figure, `count_right` tells:

            choices = task.data.choose(500, generator, task.data.validation_days)
            count_right(task.answer(model, choices), "locale")["hr"]  # (right, in all)

        Args:
            model: Reads with this task's tokenizers.
            choices: Days, and for each one of the data's `forms`.

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
        """Refuse: counts cannot translate."""
        raise ValueError("--baseline must be used with a model of text, got one of dates")


Task = TextTask | DatesTask


def _own(sizes: dict[str, int], changes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Put changes beside the sizes that the data decides."""
    changes = dict(changes or {})
    if decided := sorted(sizes.keys() & changes.keys()):
        names = ", ".join(decided)
        raise ValueError(f"{names} must be left to the data, its tokenizer and the context")
    return sizes | changes


def recall_task(data: str, tokenizers: Tokenizers) -> Task:
    """Make the task of a model that was begun before."""
    return DatesTask(tokenizers) if data == "dates" else TextTask(data, tokenizers)
