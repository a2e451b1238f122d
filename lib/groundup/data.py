"""Texts and pairs to learn from, and the batches made of them. Nothing is downloaded.

Two kinds of data. A *text* is one long string: a language model predicts each character from
those before it. *Pairs* are sources with targets: an encoder-decoder reads the one and writes
the other.
"""

import datetime
import itertools
import platform
import re
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import babel
import torch
from babel.dates import format_date, get_date_format
from jaxtyping import Bool, Int
from torch import Tensor

from groundup.masks import padding_mask
from groundup.tokenizers import BOS, EOS, PAD, CharacterTokenizer

IGNORED = -100
"""The target that counts for nothing in the loss: what stands behind the end of a sequence."""


class Batch(NamedTuple):
    """What a model reads and what it should have answered."""

    inputs: dict[str, Tensor]
    """Arguments of the model's `forward`, by name."""
    targets: Int[Tensor, "batch length"]
    """The right next token at each position, or `IGNORED`."""

    def to(self, device: torch.device | str) -> "Batch":
        """Copy every tensor to a device."""
        return Batch({k: v.to(device) for k, v in self.inputs.items()}, self.targets.to(device))


# --- texts ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class TextData:
    """One long text, its last tenth held out."""

    name: str
    """What the text is, with the version it was taken from."""
    train: str
    """What may be learned from."""
    validation: str
    """What is only measured on."""


def split_text(name: str, text: str) -> TextData:
    """Hold out the last tenth of a text.

    The end, not a random tenth: pieces cut out of the middle could be guessed from both sides.

    Raises:
        ValueError: If the text is too short to be cut.

    """
    if len(text) < MIN_TEXT_LENGTH:
        raise ValueError(
            f"a text must have at least {MIN_TEXT_LENGTH} characters, got {len(text)} in {name}"
        )
    cut = len(text) * 9 // 10
    return TextData(name=name, train=text[:cut], validation=text[cut:])


MIN_TEXT_LENGTH = 20
"""Characters, so that both parts of a split hold at least a character and what follows it."""


def python_reference() -> TextData:
    """Read the Python language reference, which comes with every CPython.

    About 370 thousand characters of technical English, from the module that prints `help()`.
    A few of its sections quote one another at length; a paragraph that was there before is
    left out, so that the held-out part is not a copy of the part to learn from.

    Source:
        The Python Language Reference, https://docs.python.org/3/reference/, as the module
        `pydoc_data.topics`; the text differs a little between versions of Python.

    """
    from pydoc_data.topics import topics  # half a megabyte that only this function needs

    split = (re.split(r"\n{2,}", topic.strip("\n")) for topic in topics.values())
    paragraphs = dict.fromkeys(itertools.chain.from_iterable(split))
    name = f"python-reference of Python {platform.python_version()}"
    return split_text(name, "\n\n".join(paragraphs))


def python_source() -> TextData:
    """Read the source of the standard library: its top-level modules, in alphabetical order.

    About 4.7 million characters; the text differs a little between versions of Python.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    modules = sorted(folder.glob("*.py"))
    text = "\n".join(path.read_text(encoding="utf-8") for path in modules)
    return split_text(f"python-source of Python {platform.python_version()}", text)


def text_file(path: str | Path) -> TextData:
    """Read any text file.

    Raises:
        ValueError: If the file is missing, empty, too short, or not UTF-8.

    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"a text file must be UTF-8, got a wrong byte at offset {error.start} of {path}"
        ) from None
    except OSError as error:
        raise ValueError(f"data must be a readable file, got {path}: {error.strerror}") from None
    if not text.strip():
        raise ValueError(f"a text must have characters to learn from, got an empty file: {path}")
    return split_text(str(path), text)


def language_model_batches(
    tokens: Int[Tensor, " total"],
    batch_size: int,
    length: int,
    generator: torch.Generator,
) -> Iterator[Batch]:
    """Cut windows out of a text at random places, for ever.

    Targets are the same windows one token later. The state of the generator after a batch says
    all about the batches to come, so saving it is enough to go on.

    Args:
        tokens: The whole text.
        batch_size: Windows per batch.
        length: Tokens per window.
        generator: Chooses the places.

    Raises:
        ValueError: If the text is shorter than a window and its next token.

    """
    if len(tokens) < length + 1:
        raise ValueError(
            f"a text must be longer than the windows cut from it, got {len(tokens)} tokens, "
            f"length={length}"
        )

    def draw() -> Iterator[Batch]:
        offsets = torch.arange(length + 1)
        while True:
            starts = torch.randint(len(tokens) - length, (batch_size, 1), generator=generator)
            windows = tokens[starts + offsets]  # (batch, length + 1)
            yield Batch({"tokens": windows[:, :-1]}, windows[:, 1:])

    return draw()  # what is wrong with the arguments shows at once, not at the first batch


def covering_windows(
    tokens: Int[Tensor, " total"],
    batch_size: int,
    length: int,
) -> Iterator[Batch]:
    """Cover a text with windows so that every token but the first is predicted once.

    Windows overlap by half: what a window predicts in its first half was predicted better by
    the window before it, with more context, and is ignored. So every prediction but those of
    the very first window sees at least half a window of context.

    Args:
        tokens: The whole text.
        batch_size: Most windows per batch.
        length: Tokens per window, at least 2.

    Raises:
        ValueError: If there are fewer than two tokens, or windows are shorter than two.

    """
    if len(tokens) < 2 or length < 2:
        raise ValueError(
            f"tokens and windows must be at least 2 long, got {len(tokens)} tokens, length={length}"
        )
    length = min(length, len(tokens) - 1)
    stride = max(1, length // 2)
    last = len(tokens) - 1 - length
    starts = [*range(0, last, stride), last]
    predicted = 0  # tokens[1 : predicted + 1] have been targets
    windows, targets = [], []
    for start in starts:
        window = tokens[start : start + length]
        target = tokens[start + 1 : start + length + 1].clone()
        target[: predicted - start] = IGNORED
        predicted = start + length
        windows.append(window)
        targets.append(target)
    for i in range(0, len(windows), batch_size):
        yield Batch(
            {"tokens": torch.stack(windows[i : i + batch_size])},
            torch.stack(targets[i : i + batch_size]),
        )


# --- pairs ---------------------------------------------------------------------------------


class Pair(NamedTuple):
    """A source and the target it should become."""

    source: str
    target: str


class Dates:
    """Dates as people write them, each with its ISO form: `3. Mai 2031` and `2031-05-03`.

    Days of two centuries in 24 locales, in every standard form that shows the whole year: with
    and without the day of the week, with names of months, abbreviations or figures only. No
    two days are ever written the same way, so there is always one right answer; that takes
    reading, since `listopada` is October in Croatian and November in Polish.

    A tenth of the days is held out whole: a model is measured on days that it has not met in
    any language.

    Source:
        Unicode Common Locale Data Repository, https://cldr.unicode.org, as packaged by Babel,
        https://babel.pocoo.org

    """

    LOCALES = tuple(
        "cs da de el en_GB en_US es fi fr hr hu id it ja ko nl pl pt ro ru sv tr vi zh".split()
    )
    """Whose forms are used, by their names in CLDR."""
    FIRST_DAY = datetime.date(1900, 1, 1)
    """The earliest day."""
    LAST_DAY = datetime.date(2099, 12, 31)
    """The latest day."""

    def __init__(self) -> None:
        self.name = f"dates in {len(self.LOCALES)} locales of Babel {babel.__version__}"
        num_days = (self.LAST_DAY - self.FIRST_DAY).days + 1
        # Held out by a fixed draw, so that no choice of seed moves a day across.
        shuffled = torch.randperm(num_days, generator=torch.Generator().manual_seed(0)).tolist()
        days = [self.FIRST_DAY + datetime.timedelta(days=number) for number in shuffled]
        self.train_days = days[num_days // 10 :]
        self.validation_days = days[: num_days // 10]
        patterns = [
            (locale, get_date_format(style, locale).pattern)
            for locale in self.LOCALES
            for style in ("full", "long", "medium", "short")
        ]
        # "yy" leaves the century open. Two styles of a locale may be the same.
        self.forms = [form for form in dict.fromkeys(patterns) if "yy" not in form[1]]

    def write(self, day: datetime.date, form: tuple[str, str]) -> Pair:
        """Write a day in one of the `forms`, a locale and a CLDR pattern."""
        locale, pattern = form
        return Pair(format_date(day, pattern, locale), day.isoformat())

    def draw(
        self, number: int, generator: torch.Generator, days: Sequence[datetime.date]
    ) -> list[Pair]:
        """Draw days and, for each, a form.

        Args:
            number: How many, in pairs.
            generator: Chooses.
            days: What to choose from, `train_days` or `validation_days`.

        """
        which_days = torch.randint(len(days), (number,), generator=generator).tolist()
        which_forms = torch.randint(len(self.forms), (number,), generator=generator).tolist()
        return [
            self.write(days[day], self.forms[form])
            for day, form in zip(which_days, which_forms, strict=True)
        ]

    def tokenizers(self) -> tuple[CharacterTokenizer, CharacterTokenizer]:
        """Make the tokenizers of the sources and of the targets."""
        # Seven days of each month: every name of a month, every name of a day, every digit.
        days = [datetime.date(1980, month, day) for month in range(1, 13) for day in range(1, 8)]
        sources = (self.write(day, form).source for day in days for form in self.forms)
        return (
            CharacterTokenizer.fit(sources, [PAD]),
            CharacterTokenizer("-0123456789", [PAD, BOS, EOS]),
        )


def pair_batches(
    pairs: Iterable[Pair],
    batch_size: int,
    source_tokenizer: CharacterTokenizer,
    target_tokenizer: CharacterTokenizer,
) -> Iterator[Batch]:
    """Pad pairs to rectangles, and shift their targets right.

    The decoder reads `BOS` and the target, and should answer with the target and `EOS`: at
    each position it has seen what came before, never what it is asked for. Behind the end,
    sources are masked, and answers are `IGNORED`; the decoder's input needs no mask there,
    since what comes later is hidden from everything that counts.

    Args:
        pairs: Any number, even without end; the last batch may be smaller.
        batch_size: Pairs per batch.
        source_tokenizer: Has `PAD`.
        target_tokenizer: Has `PAD`, `BOS` and `EOS`.

    """
    bos, eos = [target_tokenizer.id_of(BOS)], [target_tokenizer.id_of(EOS)]
    pairs = iter(pairs)
    while chunk := list(itertools.islice(pairs, batch_size)):
        source, source_mask = source_batch([pair.source for pair in chunk], source_tokenizer)
        answers = [target_tokenizer.encode(pair.target) for pair in chunk]
        target = _rectangle([bos + answer for answer in answers], target_tokenizer.id_of(PAD))
        inputs = {"source": source, "target": target, "source_mask": source_mask}
        yield Batch(inputs, _rectangle([answer + eos for answer in answers], IGNORED))


def source_batch(
    sources: Sequence[str], tokenizer: CharacterTokenizer
) -> tuple[Int[Tensor, "batch src_len"], Bool[Tensor, "batch 1 1 src_len"]]:
    """Encode sources, fill them up to the longest, and say where the real tokens are.

    Raises:
        ValueError: If a source is empty or has a character outside the vocabulary.

    """
    if "" in sources:
        raise ValueError("a source must have at least 1 character, got an empty one")
    ids = [tokenizer.encode(source) for source in sources]
    tokens = _rectangle(ids, tokenizer.id_of(PAD))
    lengths = torch.tensor([len(row) for row in ids])
    return tokens, padding_mask(lengths, tokens.shape[1])


def _rectangle(rows: Sequence[Sequence[int]], fill: int) -> Int[Tensor, "batch length"]:
    length = max(len(row) for row in rows)
    return torch.tensor([[*row, *[fill] * (length - len(row))] for row in rows])
