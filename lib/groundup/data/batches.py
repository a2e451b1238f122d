"""Batches: the inputs of a model, and its targets."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from groundup.core.config import require
from groundup.core.masks import padding_mask
from groundup.data.tokenizers import BOS, EOS, PAD, Tokenizer

IGNORED = -100
"""Target at positions that are left out of the loss."""


class Batch(NamedTuple):
    """Inputs of a model, and its targets."""

    inputs: dict[str, Tensor]
    """Arguments of the model's `forward`, by name."""
    targets: Int[Tensor, "batch length"]
    """Correct output at each position, usually the next token, or `IGNORED`."""

    def to(self, device: torch.device | str) -> "Batch":
        """Copy every tensor to a device; to a GPU from pinned memory, without waiting for it."""
        is_gpu = torch.device(device).type == "cuda"

        def copy(x: Tensor) -> Tensor:  # an ordinary copy would first wait for all earlier work
            pinned = x.pin_memory() if is_gpu and x.device.type == "cpu" else x
            return pinned.to(device, non_blocking=is_gpu)

        return Batch({name: copy(x) for name, x in self.inputs.items()}, copy(self.targets))


def shard(batches: Iterable[Batch], rank: int, world_size: int) -> Iterator[Batch]:
    """Select one process's rows of every batch, for data-parallel training.

    Each process makes the same batches, from generators with the same seed, and keeps every
    `world_size`-th row. Together they train on what a single process would train on.

    Args:
        batches: The same in every process.
        rank: Index of this process, counted from 0.
        world_size: Number of processes.

    Raises:
        ValueError: If `rank` is out of range, or the rows of a batch are not a multiple of
            `world_size`.

    """
    is_rank = 0 <= rank < world_size
    require(is_rank, "rank must be from 0 to world_size - 1", rank=rank, world_size=world_size)

    def select() -> Iterator[Batch]:
        for inputs, targets in batches:
            if len(targets) % world_size:
                raise ValueError(
                    "the number of rows in a batch must be a multiple of world_size, "
                    f"got {len(targets)} rows, world_size={world_size}"
                )
            rows = slice(rank, None, world_size)
            yield Batch({name: x[rows] for name, x in inputs.items()}, targets[rows])

    return select()


def language_model_batches(
    tokens: Int[Tensor, " total"],
    batch_size: int,
    length: int,
    generator: torch.Generator,
) -> Iterator[Batch]:
    """Draw windows at random positions of a text, without end.

    Targets are the same windows shifted by one token. The state of the generator determines all
    later batches, so saving that state is enough to resume.

    Args:
        tokens: The whole text.
        batch_size: Windows per batch.
        length: Tokens per window.
        generator: Draws the positions.

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
            windows = _random_windows(tokens, batch_size, length + 1, generator)
            yield Batch({"tokens": windows[:, :-1]}, windows[:, 1:])

    return draw()  # wrong arguments raise at the call, not at the first batch


def masked_language_model_batches(
    tokens: Int[Tensor, " total"],
    batch_size: int,
    length: int,
    generator: torch.Generator,
    mask_id: int,
    vocab_size: int,
    share: float = 0.15,
) -> Iterator[Batch]:
    """Draw windows and mask some tokens, to be predicted from both sides, without end.

    Of the chosen tokens, 80 % are replaced by the mask token, 10 % by a random token other than
    the mask (which may be the same token), and 10 % stay: the mask does not occur outside
    training, so the model must not learn to predict only there. Other targets are `IGNORED`.

    Args:
        tokens: The whole text.
        batch_size: Windows per batch.
        length: Tokens per window.
        generator: Draws the windows, the chosen tokens and their replacements.
        mask_id: Id of the mask token.
        vocab_size: Number of tokens, the mask included.
        share: Fraction of the tokens of each window to choose, from 0 to 1; at least one is.

    Raises:
        ValueError: If the window is empty or longer than the text, `share` is not above 0 and at
            most 1, or the vocabulary lacks the mask or any other token.

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
            windows = _random_windows(tokens, batch_size, length, generator)
            chosen = _random_orders(batch_size, length, generator) < num_chosen
            fate = torch.rand(batch_size, length, generator=generator)
            others = torch.randint(vocab_size - 1, windows.shape, generator=generator)
            others = others + (others >= mask_id)  # every token but the mask
            replaced = torch.where(fate < 0.8, mask_id, torch.where(fate < 0.9, others, windows))
            seen = torch.where(chosen, replaced, windows)
            yield Batch({"tokens": seen}, windows.masked_fill(~chosen, IGNORED))

    return draw()


def _random_windows(
    tokens: Int[Tensor, " total"], batch_size: int, width: int, generator: torch.Generator
) -> Int[Tensor, "batch {width}"]:
    starts = torch.randint(len(tokens) - width + 1, (batch_size, 1), generator=generator)
    return tokens[starts + torch.arange(width)]


def covering_windows(
    tokens: Int[Tensor, " total"],
    batch_size: int,
    length: int,
) -> Iterator[Batch]:
    """Cover a text with windows so that every token but the first is a target exactly once.

    Windows overlap by at least half. Targets that the previous window has predicted, with more
    context, are `IGNORED`, so every prediction outside the first window has at least half a
    window of context.

    Args:
        tokens: The whole text.
        batch_size: Maximum number of windows per batch.
        length: Tokens per window, at least 2.

    Raises:
        ValueError: If there are fewer than two tokens, or `length` is below 2.

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
    """A source text and its target."""

    source: str
    target: str


def pair_batches(
    pairs: Iterable[Pair],
    batch_size: int,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
) -> Iterator[Batch]:
    """Batch pairs for an encoder-decoder: padded, with the decoder's input shifted right.

    The decoder reads `BOS` and the target, and predicts the target and `EOS`: each position sees
    the tokens before its target, never the target itself. Source padding is masked, and targets
    after `EOS` are `IGNORED`. The decoder's input needs no padding mask: its padding comes last,
    so the causal mask hides it from every position that counts.

    Args:
        pairs: Any number, even infinitely many; the last batch may be smaller.
        batch_size: Pairs per batch.
        source_tokenizer: Has `PAD`.
        target_tokenizer: Has `PAD`, `BOS` and `EOS`.

    """
    bos, eos = [target_tokenizer.id_of(BOS)], [target_tokenizer.id_of(EOS)]
    pairs = iter(pairs)
    while chunk := list(itertools.islice(pairs, batch_size)):
        source, source_mask = source_batch([pair.source for pair in chunk], source_tokenizer)
        targets = [target_tokenizer.encode(pair.target) for pair in chunk]
        target = _padded([bos + ids for ids in targets], target_tokenizer.id_of(PAD))
        inputs = {"source": source, "target": target, "source_mask": source_mask}
        yield Batch(inputs, _padded([ids + eos for ids in targets], IGNORED))


def source_batch(
    sources: Sequence[str], tokenizer: Tokenizer
) -> tuple[Int[Tensor, "batch src_len"], Bool[Tensor, "batch 1 1 src_len"]]:
    """Encode sources, and pad them on the right to the longest.

    Returns:
        The tokens, and the mask: True on real tokens, False on padding.

    Raises:
        ValueError: If a source is empty or has a character outside the vocabulary.

    """
    if "" in sources:
        raise ValueError("a source must have at least 1 character, got an empty one")
    ids = [tokenizer.encode(source) for source in sources]
    tokens = _padded(ids, tokenizer.id_of(PAD))
    lengths = torch.tensor([len(row) for row in ids])
    return tokens, padding_mask(lengths, tokens.shape[1])


def prompt_batch(
    prompts: Sequence[str], tokenizer: Tokenizer
) -> tuple[Int[Tensor, "batch length"], Int[Tensor, " batch"]]:
    """Encode prompts, and pad them on the left, so that all end at the same position.

    Generation then appends one token to every prompt at each step. Padding is `PAD`, or token 0
    if the tokenizer has no `PAD`: it has to be masked anyway, so its value does not matter.

    Returns:
        The tokens, and the number of real tokens in each row, which come last.

    Raises:
        ValueError: If there is no prompt, or one is empty or has a character outside the
            vocabulary.

    """
    if not prompts:
        raise ValueError("a batch must have at least one prompt, got none")
    rows = [tokenizer.encode(prompt) for prompt in prompts]
    if [] in rows:
        raise ValueError(
            f"a prompt must have at least one token, got none in prompt {rows.index([])}"
        )
    pad = tokenizer.id_of(PAD) if PAD in tokenizer.special_tokens else 0
    return _padded(rows, pad, "left"), torch.tensor([len(row) for row in rows])


def _padded(
    rows: Sequence[Sequence[int]], pad: int, side: Literal["left", "right"] = "right"
) -> Int[Tensor, "batch length"]:
    length = max(len(row) for row in rows)
    paddings = ([pad] * (length - len(row)) for row in rows)
    if side == "left":
        return torch.tensor([[*padding, *row] for row, padding in zip(rows, paddings, strict=True)])
    return torch.tensor([[*row, *padding] for row, padding in zip(rows, paddings, strict=True)])


def _random_orders(
    batch_size: int, length: int, generator: torch.Generator
) -> Int[Tensor, "{batch_size} {length}"]:
    """Draw a random permutation of the numbers below `length` for each row."""
    return torch.rand(batch_size, length, generator=generator, dtype=torch.float64).argsort(dim=1)


def _require_at_least(least: int, **sizes: int) -> None:
    for name, size in sizes.items():
        require(size >= least, f"{name} must be at least {least}", **{name: size})
