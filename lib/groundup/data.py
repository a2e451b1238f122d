"""What to learn from, and the batches made of it. Nothing is downloaded that nobody asked for.

Four kinds of data. A *text* is one long string: a language model predicts each token from those
before it, or the hidden ones from those around them. *Pairs* are sources with targets: an
encoder-decoder reads the one and writes the other. *Symbols* are made up on the spot, for tasks
whose right answer is known exactly. *Word vectors* were learned elsewhere, and spare a model the
start from nothing.
"""

import datetime
import itertools
import logging
import math
import platform
import re
import sysconfig
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import babel
import numpy as np
import torch
from babel.dates import format_date, get_date_format
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from groundup.masks import padding_mask
from groundup.tokenizers import BOS, EOS, PAD, CharacterTokenizer, Tokenizer

IGNORED = -100
"""The target that counts for nothing in the loss: nobody asked what stands there."""


class Batch(NamedTuple):
    """What a model reads and what it should have answered."""

    inputs: dict[str, Tensor]
    """Arguments of the model's `forward`, by name."""
    targets: Int[Tensor, "batch length"]
    """The right answer at each position, mostly the token that comes next, or `IGNORED`."""

    def to(self, device: torch.device | str) -> "Batch":
        """Copy every tensor to a device."""
        return Batch({k: v.to(device) for k, v in self.inputs.items()}, self.targets.to(device))


def shard(batches: Iterable[Batch], rank: int, world_size: int) -> Iterator[Batch]:
    """Give one of several processes its rows of every batch.

    Each process makes the same batches, from generators with the same seed, and keeps every
    `world_size`-th row. Together they see what a single process would have seen.

    Args:
        batches: The same in every process.
        rank: Which process this is, counted from 0.
        world_size: Number of processes.

    Raises:
        ValueError: If there is no such process, or a batch cannot be dealt out evenly.

    """
    if not 0 <= rank < world_size:
        raise ValueError(
            f"rank must be from 0 to world_size - 1, got rank={rank}, world_size={world_size}"
        )

    def deal() -> Iterator[Batch]:
        for inputs, targets in batches:
            if len(targets) % world_size:
                raise ValueError(
                    "the rows of a batch must be a multiple of world_size, "
                    f"got {len(targets)} rows, world_size={world_size}"
                )
            rows = slice(rank, None, world_size)
            yield Batch({name: x[rows] for name, x in inputs.items()}, targets[rows])

    return deal()


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


TINY_SHAKESPEARE_URL = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
"""Where the text is published."""
TINY_SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
"""What tells it from any other: 1,115,394 characters, all of them ASCII."""


def tiny_shakespeare(
    url: str = TINY_SHAKESPEARE_URL,
    sha256: str = TINY_SHAKESPEARE_SHA256,
    folder: str | Path | None = None,
) -> TextData:
    """Read a million characters of Shakespeare, on which small language models are compared.

    The first call downloads the text; later ones find it where the first has kept it.

    Args:
        url: Where the text is, if not where it is published.
        sha256: What its bytes must hash to, in hexadecimal digits.
        folder: Where to keep it; by default the cache folder of `pooch`.

    Raises:
        ValueError: If there is no file to be had, or it is another one. Another one is not kept.

    Source:
        Karpathy 2015, char-rnn, https://github.com/karpathy/char-rnn

    """
    import pooch  # only this function needs it

    if not url.startswith(("http://", "https://")):
        raise ValueError(f"url must begin with http:// or https://, got {url!r}")
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)  # a library does not talk while it works
    try:
        path = pooch.retrieve(url, f"sha256:{sha256}", "tiny-shakespeare.txt", folder)
    except OSError as error:  # every error of the network is one, and so is a full disk
        response = getattr(error, "response", None)
        reason = type(error).__name__ if response is None else f"status {response.status_code}"
        raise ValueError(
            f"tiny-shakespeare must be downloaded once, got {reason} from {url}; where that "
            "cannot be, give the path of your own copy as the data instead (text_file)"
        ) from None
    except ValueError:
        raise ValueError(
            f"the file at {url} must have the SHA256 {sha256}, got another one: it is not kept"
        ) from None
    finally:
        logger.setLevel(level)
    text = Path(path).read_text(encoding="utf-8")
    return split_text(f"tiny-shakespeare of SHA256 {sha256[:8]}", text)


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
        while True:
            windows = _windows(tokens, batch_size, length + 1, generator)
            yield Batch({"tokens": windows[:, :-1]}, windows[:, 1:])

    return draw()  # what is wrong with the arguments shows at once, not at the first batch


def masked_language_model_batches(
    tokens: Int[Tensor, " total"],
    batch_size: int,
    length: int,
    generator: torch.Generator,
    mask_id: int,
    vocab_size: int,
    share: float = 0.15,
) -> Iterator[Batch]:
    """Hide some tokens of each window, to be guessed from both sides, for ever.

    Of the tokens chosen, 80 % are replaced by the mask, 10 % by another token, drawn from the
    whole vocabulary, and 10 % stay: outside training there is no mask, so a model must not
    learn to think only where it sees one. Targets are the tokens chosen; the rest is `IGNORED`.

    Args:
        tokens: The whole text.
        batch_size: Windows per batch.
        length: Tokens per window.
        generator: Chooses the places, the tokens and their fates.
        mask_id: Stands for a hidden token.
        vocab_size: Number of tokens, the mask included.
        share: How many tokens of each window are chosen, from 0 to 1; at least one always is.

    Raises:
        ValueError: If the text is shorter than a window, the share is none, or the mask is
            outside the vocabulary.

    Source:
        Devlin et al. 2019, BERT, section 3.1 (task 1),
        https://arxiv.org/abs/1810.04805

    """
    _require_at_least(1, length=length)
    if len(tokens) < length:
        raise ValueError(
            f"a text must be at least as long as the windows cut from it, got {len(tokens)} "
            f"tokens, length={length}"
        )
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, got share={share}")
    if not 0 <= mask_id < vocab_size or vocab_size < 2:
        raise ValueError(
            "mask_id must be one of at least 2 tokens, "
            f"got mask_id={mask_id}, vocab_size={vocab_size}"
        )
    num_chosen = max(1, round(share * length))

    def draw() -> Iterator[Batch]:
        while True:
            windows = _windows(tokens, batch_size, length, generator)
            chosen = _orders(batch_size, length, generator) < num_chosen
            fate = torch.rand(batch_size, length, generator=generator)
            others = torch.randint(vocab_size - 1, windows.shape, generator=generator)
            others = others + (others >= mask_id)  # every token but the mask
            replaced = torch.where(fate < 0.8, mask_id, torch.where(fate < 0.9, others, windows))
            seen = torch.where(chosen, replaced, windows)
            yield Batch({"tokens": seen}, windows.masked_fill(~chosen, IGNORED))

    return draw()


def _windows(
    tokens: Int[Tensor, " total"], batch_size: int, width: int, generator: torch.Generator
) -> Int[Tensor, "batch {width}"]:
    starts = torch.randint(len(tokens) - width + 1, (batch_size, 1), generator=generator)
    return tokens[starts + torch.arange(width)]


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
    STYLES = ("full", "long", "medium", "short")
    """How much of a date is in words, by the names in CLDR, the most first."""
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
        patterns = {
            (locale, style): get_date_format(style, locale).pattern
            for locale in self.LOCALES
            for style in self.STYLES
        }
        # "yy" leaves the century open. Two styles of a locale may be the same: the longer counts.
        self.style_of: dict[tuple[str, str], str] = {}
        for (locale, style), pattern in patterns.items():
            if "yy" not in pattern:
                self.style_of.setdefault((locale, pattern), style)
        self.forms = list(self.style_of)

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
        return [self.write(day, form) for day, form in self.choose(number, generator, days)]

    def choose(
        self, number: int, generator: torch.Generator, days: Sequence[datetime.date]
    ) -> list[tuple[datetime.date, tuple[str, str]]]:
        """Choose what `draw` would write: days and, for each, a form, not yet as text."""
        which_days = torch.randint(len(days), (number,), generator=generator).tolist()
        which_forms = torch.randint(len(self.forms), (number,), generator=generator).tolist()
        return [
            (days[day], self.forms[form]) for day, form in zip(which_days, which_forms, strict=True)
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
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
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
    sources: Sequence[str], tokenizer: Tokenizer
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


def prompt_batch(
    prompts: Sequence[str], tokenizer: Tokenizer
) -> tuple[Int[Tensor, "batch length"], Int[Tensor, " batch"]]:
    """Encode prompts, and fill them up on the left, so that all of them end at the same place.

    There generation goes on, one token for every prompt at each step. The filler is `PAD`, or
    token 0 where the tokenizer has no `PAD`: it must be masked, so it may be anything.

    Returns:
        The tokens, and how many of each row are real; these come last.

    Raises:
        ValueError: If there is no prompt, one is empty or has a character outside the
            vocabulary.

    """
    if not prompts:
        raise ValueError("a batch must have at least one prompt, got none")
    rows = [tokenizer.encode(prompt) for prompt in prompts]
    if [] in rows:
        raise ValueError(
            f"a prompt must have at least one token, got none in prompt {rows.index([])}"
        )
    fill = tokenizer.id_of(PAD) if PAD in tokenizer.special_tokens else 0
    return _rectangle(rows, fill, "left"), torch.tensor([len(row) for row in rows])


def _rectangle(
    rows: Sequence[Sequence[int]], fill: int, side: Literal["left", "right"] = "right"
) -> Int[Tensor, "batch length"]:
    length = max(len(row) for row in rows)
    filler = ([fill] * (length - len(row)) for row in rows)
    if side == "left":
        return torch.tensor([[*blank, *row] for row, blank in zip(rows, filler, strict=True)])
    return torch.tensor([[*row, *blank] for row, blank in zip(rows, filler, strict=True)])


# --- symbols -------------------------------------------------------------------------------

Task = Literal["copy", "reverse", "sort"]
"""What to do with a row of symbols. Sorting puts the smallest first."""


def task_batches(
    task: Task, num_symbols: int, length: int, batch_size: int, generator: torch.Generator
) -> Iterator[Batch]:
    """Ask a language model to copy, reverse or sort a row of symbols, for ever.

    With `|` for the separator, `4 1 2 | 2 1 4` is an example of reversing: the row, the
    separator, the answer. Symbols are the numbers below `num_symbols`, the separator is
    `num_symbols` itself, so a model needs `vocab_size = num_symbols + 1`. Only the answer is
    asked for; the rest of the targets is `IGNORED`. Inputs have `2 * length` tokens.

    Args:
        task: What to do.
        num_symbols: How many different ones there are.
        length: Symbols per row, drawn independently.
        batch_size: Rows per batch.
        generator: Draws the symbols.

    Raises:
        ValueError: If there is no such task, or a size is too small.

    """
    _require_task(task)
    _require_at_least(1, num_symbols=num_symbols, length=length, batch_size=batch_size)

    def draw() -> Iterator[Batch]:
        separator = torch.full((batch_size, 1), num_symbols)
        while True:
            given = torch.randint(num_symbols, (batch_size, length), generator=generator)
            rows = torch.cat([given, separator, _answer(task, given)], dim=1)
            targets = rows[:, 1:].clone()
            targets[:, :length] = IGNORED  # the row itself, and the separator
            yield Batch({"tokens": rows[:, :-1]}, targets)

    return draw()


def task_pairs(
    task: Task, letters: str, max_len: int, number: int, generator: torch.Generator
) -> list[Pair]:
    """Ask an encoder-decoder to copy, reverse or sort a word: `tea` and `aet`.

    Args:
        task: What to do. Letters are sorted by their places in `letters`.
        letters: What words are made of, each once.
        max_len: Letters in the longest word; the shortest has one.
        number: How many, in pairs.
        generator: Draws lengths and letters.

    Raises:
        ValueError: If there is no such task, no letter or one twice, or a size is too small.

    """
    _require_task(task)
    _require_at_least(1, max_len=max_len)
    if not letters or len(set(letters)) < len(letters):
        raise ValueError(f"letters must be there, each once, got {letters!r}")

    pairs = []
    for length in torch.randint(1, max_len + 1, (number,), generator=generator).tolist():
        given = torch.randint(len(letters), (1, length), generator=generator)
        words = (given, _answer(task, given))
        pairs.append(Pair(*("".join(letters[i] for i in word[0].tolist()) for word in words)))
    return pairs


def induction_batches(
    num_symbols: int, length: int, batch_size: int, generator: torch.Generator
) -> Iterator[Batch]:
    """Repeat a few symbols in the same order: what followed last time follows again. For ever.

    In `7 2 5 7 2 5 7 2` the answer after the last `2` is `5`. Where the repetition starts
    differs from row to row, so it is no use to look a fixed number of places back: one has to
    find where the symbol stood before, and read what came next. Each symbol comes once in a
    round, so that this is always right. The first round cannot be guessed and is `IGNORED`.

    Args:
        num_symbols: How many different ones there are, which is the model's `vocab_size`.
        length: Tokens per row.
        batch_size: Rows per batch.
        generator: Draws the symbols, and from 2 to half the row as the length of a round.

    Raises:
        ValueError: If a size is too small.

    Source:
        Olsson et al. 2022, In-context Learning and Induction Heads,
        https://arxiv.org/abs/2209.11895

    """
    _require_at_least(2, num_symbols=num_symbols)
    _require_at_least(4, length=length)
    _require_at_least(1, batch_size=batch_size)
    longest = min(num_symbols, length // 2)
    places = torch.arange(length + 1)

    def draw() -> Iterator[Batch]:
        while True:
            rounds = torch.randint(2, longest + 1, (batch_size, 1), generator=generator)
            symbols = _orders(batch_size, num_symbols, generator)
            rows = symbols.gather(1, places % rounds)  # (batch, length + 1)
            targets = rows[:, 1:].masked_fill(places[:-1] < rounds, IGNORED)
            yield Batch({"tokens": rows[:, :-1]}, targets)

    return draw()


def anomaly_batches(
    num_kinds: int, num_members: int, length: int, batch_size: int, generator: torch.Generator
) -> Iterator[Batch]:
    """Ask an encoder which token of a set is the odd one out, for ever.

    All tokens of a set are of one kind, but for one. Token `t` is of kind `t // num_members`,
    which a model has to learn; where a token stands says nothing. It is a question to each
    token: the answer is 1 at the odd one and 0 at the others, so a model needs
    `vocab_size = num_kinds * num_members`, two outputs per token, no positions and no mask.

    Args:
        num_kinds: How many kinds there are.
        num_members: Tokens of each kind.
        length: Tokens per set.
        batch_size: Sets per batch.
        generator: Draws the kinds, the tokens and the place of the odd one.

    Raises:
        ValueError: If a size is too small, or a kind has fewer tokens than a set.

    Source:
        Lee et al. 2019, Set Transformer (there with photographs of faces),
        https://arxiv.org/abs/1810.00825

    """
    _require_at_least(2, num_kinds=num_kinds)
    _require_at_least(3, length=length)
    _require_at_least(1, batch_size=batch_size)
    if num_members < length:
        raise ValueError(
            "num_members must be at least length, so that no token comes twice, "
            f"got num_members={num_members}, length={length}"
        )

    def draw() -> Iterator[Batch]:
        while True:
            usual = torch.randint(num_kinds, (batch_size, 1), generator=generator)
            step = torch.randint(1, num_kinds, (batch_size, 1), generator=generator)
            place = torch.randint(length, (batch_size, 1), generator=generator)
            is_odd = torch.arange(length) == place  # (batch, length)
            kinds = torch.where(is_odd, (usual + step) % num_kinds, usual)
            members = _orders(batch_size, num_members, generator)[:, :length]
            yield Batch({"tokens": kinds * num_members + members}, is_odd.long())

    return draw()


def _answer(task: Task, given: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    if task == "copy":
        return given
    return given.flip(-1) if task == "reverse" else given.sort(dim=-1).values


def _orders(
    batch_size: int, length: int, generator: torch.Generator
) -> Int[Tensor, "{batch_size} {length}"]:
    """Put the numbers below `length` in a random order, in each row another."""
    return torch.rand(batch_size, length, generator=generator, dtype=torch.float64).argsort(dim=1)


def _require_task(task: str) -> None:
    if task not in get_args(Task):
        raise ValueError(f"task must be among {' '.join(get_args(Task))}, got {task!r}")


def _require_at_least(least: int, **sizes: int) -> None:
    for name, size in sizes.items():
        if size < least:
            raise ValueError(f"{name} must be at least {least}, got {name}={size}")


# --- word vectors --------------------------------------------------------------------------


class WordVectors:
    """Words, each with a vector that was learned elsewhere.

    Args:
        words: In the order of the rows.
        vectors: One row per word.

    Raises:
        ValueError: If there are not as many rows as words, or a word is there twice.

    """

    def __init__(self, words: Sequence[str], vectors: Float[Tensor, "vocab d_model"]) -> None:
        if len(words) != len(vectors):
            raise ValueError(
                f"every word must have a vector, got {len(words)} words, {len(vectors)} vectors"
            )
        self.words = tuple(words)
        self.vectors = vectors
        self._row_of: dict[str, int] = {}
        for row, word in enumerate(self.words):
            if word in self._row_of:
                raise ValueError(f"every word must be listed once, got {word!r} twice")
            self._row_of[word] = row

    def __len__(self) -> int:
        """Count the words."""
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        """Say whether a word has a vector."""
        return word in self._row_of

    def id_of(self, word: str) -> int:
        """Look up the row of a word.

        Raises:
            ValueError: If it has none.

        """
        if word not in self:
            raise ValueError(f"the word asked for must have a vector, got {word!r}")
        return self._row_of[word]


def read_word_vectors(
    path: str | Path, words: Iterable[str] | None = None, d_model: int | None = None
) -> WordVectors:
    """Read vectors in the text format of GloVe, word2vec and fastText.

    A line is a word and its numbers, with a space between each. The file is read line by line,
    so it may be larger than the memory; of words that were not asked for nothing is kept, and
    their numbers are only counted. A first line of two whole numbers, as word2vec writes it,
    says how many words follow and how wide their vectors are.

    Args:
        path: In UTF-8.
        words: Which words to keep, where the file has them; by default all.
        d_model: Numbers per word; by default as many as the first line has. To be given if the
            word in the first line has a space in it, as a few words of GloVe do.

    Raises:
        ValueError: If the file cannot be read or has no vectors, or a line is wrong: too few or
            too many numbers, what is no finite number, no word or one that was there before,
            bytes that are no UTF-8. Names the file and the line.

    Source:
        Pennington et al. 2014, GloVe: Global Vectors for Word Representation,
        https://nlp.stanford.edu/projects/glove/

    """
    wanted = None if words is None else {word.encode("utf-8", "surrogatepass") for word in words}
    try:
        with open(path, "rb") as file:
            return _parse_word_vectors(file, path, wanted, d_model)
    except OSError as error:
        raise ValueError(
            f"word vectors must be a readable file, got {path}: {error.strerror}"
        ) from None


def embedding_from(
    vectors: WordVectors, words: Sequence[str], frozen: bool, generator: torch.Generator
) -> nn.Embedding:
    """Make the input embedding of a vocabulary from vectors learned elsewhere.

    Words without a vector get a random one, as large as the others: normal, with the mean and
    the standard deviation that each feature has over `vectors`.

    Args:
        vectors: Has at least one word.
        words: The vocabulary: the word of each id.
        frozen: Whether training leaves the embedding as it is. Where half of the words had to be
            drawn, it should not.
        generator: Draws the vectors of unknown words.

    Raises:
        ValueError: If there is not a single vector to begin with.

    """
    if not len(vectors):
        raise ValueError("an embedding must have at least one vector to begin with, got none")
    std, mean = torch.std_mean(vectors.vectors, dim=0, correction=0)
    rows = mean + std * torch.randn(len(words), len(mean), generator=generator)
    for row, word in enumerate(words):
        if word in vectors:
            rows[row] = vectors.vectors[vectors.id_of(word)]
    return nn.Embedding.from_pretrained(rows, freeze=frozen)


def _parse_word_vectors(
    file: Iterator[bytes], path: str | Path, wanted: set[bytes] | None, d_model: int | None
) -> WordVectors:
    # Bytes, not text: some words hold characters that text takes for the end of a line, or for
    # a space, and a word that nobody wants need not be decoded.
    first = next(file, b"")
    promised, d_model = _read_first_line(first, path, d_model)
    lines = file if promised is not None else itertools.chain([first], file)
    start = 1 if promised is None else 2
    number = start - 1
    line_of: dict[str, int] = {}
    numbers = array("f")
    for number, line in enumerate(lines, start):
        place = f"in line {number} of {path}"
        word, fields = _cut_line(line, d_model, place)
        if wanted is not None and word not in wanted:
            continue
        try:
            name = word.decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"a word must be UTF-8, got {word!r} {place}") from None
        if name in line_of:
            raise ValueError(
                f"a word must be listed once, got {name!r} in line {line_of[name]} and {place}"
            )
        line_of[name] = number
        numbers.extend(_finite_numbers(fields, place))
    count = number - start + 1
    if promised not in (None, count):
        raise ValueError(
            f"the first line of {path} must say how many words follow, "
            f"got {promised} there, {count} words"
        )
    vectors = torch.from_numpy(np.array(numbers)).reshape(len(line_of), d_model)
    return WordVectors(list(line_of), vectors)


def _read_first_line(line: bytes, path: str | Path, d_model: int | None) -> tuple[int | None, int]:
    """Give the number of words, where the line says it, and the numbers per word."""
    if not line:
        raise ValueError(f"word vectors must have at least one line, got an empty file: {path}")
    first = line.rstrip(_LINE_END).split(b" ")
    if d_model != 1 and len(first) == 2 and all(part.isdigit() for part in first):
        promised, width = map(int, first)
        if d_model not in (None, width):
            raise ValueError(
                f"d_model must be what the first line of {path} says, "
                f"got d_model={d_model}, there {width}"
            )
        _require_at_least(1, d_model=width)
        return promised, width
    if d_model is None:
        hint = "; if the first word has a space in it, give d_model"
        if len(first) < 2:
            raise ValueError(f"a line must be a word and its numbers, got {line!r} first in {path}")
        _finite_numbers(first[1:], f"in line 1 of {path}{hint}")
        d_model = len(first) - 1
    _require_at_least(1, d_model=d_model)
    return None, d_model


_LINE_END = b" \r\n"
"""word2vec and fastText leave a space at the end of a line."""


def _cut_line(line: bytes, d_model: int, place: str) -> tuple[bytes, list[bytes]]:
    word, *fields = line.rstrip(_LINE_END).rsplit(b" ", d_model)
    # A word may have spaces in it; if its end is a number, that is one number too many.
    has_too_many = b" " in word and _is_number(word.rsplit(b" ", 1)[1])
    if not word or len(fields) < d_model or has_too_many:
        raise ValueError(
            f"a line must be a word and {d_model} numbers, got {len(line.split())} fields {place}"
        )
    return word, fields


def _finite_numbers(fields: list[bytes], place: str) -> array:
    try:
        row = array("f", map(float, fields))
    except ValueError:
        wrong = next(field for field in fields if not _is_number(field))
        raise ValueError(
            f"a vector must be made of numbers, got {wrong.decode(errors='replace')!r} {place}"
        ) from None
    if not all(map(math.isfinite, row)):
        wrong = next(f for f, value in zip(fields, row, strict=True) if not math.isfinite(value))
        raise ValueError(f"a vector must be finite, got {wrong.decode()} {place}")
    return row


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
