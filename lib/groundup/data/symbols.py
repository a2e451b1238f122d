"""Synthetic tasks, whose correct output is known exactly."""

from collections.abc import Iterator
from typing import Literal, get_args

import torch
from jaxtyping import Int
from torch import Tensor

from groundup.core.config import require
from groundup.data.batches import IGNORED, Batch, Pair, _random_orders, _require_at_least

Task = Literal["copy", "reverse", "sort"]
"""What to do with a sequence of symbols. Sorting puts the smallest first."""


def task_batches(
    task: Task, num_symbols: int, length: int, batch_size: int, generator: torch.Generator
) -> Iterator[Batch]:
    """Draw batches for copying, reversing or sorting with a language model, without end.

    With `|` for the separator, `4 1 2 | 2 1 4` is an example of reversing: the given symbols, the
    separator, the result. Symbols are the numbers below `num_symbols`, the separator is
    `num_symbols` itself, so a model needs `vocab_size = num_symbols + 1`. Only the result is
    predicted; all other targets are `IGNORED`. Inputs have `2 * length` tokens.

    Args:
        task: What to do.
        num_symbols: Number of different symbols.
        length: Number of given symbols per sequence, drawn independently.
        batch_size: Sequences per batch.
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
            rows = torch.cat([given, separator, _result(task, given)], dim=1)
            targets = rows[:, 1:].clone()
            targets[:, :length] = IGNORED  # given symbols and the separator
            yield Batch({"tokens": rows[:, :-1]}, targets)

    return draw()


def task_pairs(
    task: Task, letters: str, max_len: int, number: int, generator: torch.Generator
) -> list[Pair]:
    """Draw words, paired with their copy, reverse or sorted letters: `tea` and `aet`.

    A sequence-to-sequence task for an encoder-decoder.

    Args:
        task: What to do. Letters are sorted by their position in `letters`.
        letters: The alphabet of the words, without repetitions.
        max_len: Letters in the longest word; the shortest has one.
        number: Number of pairs.
        generator: Draws lengths and letters.

    Raises:
        ValueError: If there is no such task, `letters` is empty or repeats a letter, or a size
            is too small.

    """
    _require_task(task)
    _require_at_least(1, max_len=max_len)
    if not letters or len(set(letters)) < len(letters):
        raise ValueError(f"letters must be non-empty and all different, got {letters!r}")

    pairs = []
    for length in torch.randint(1, max_len + 1, (number,), generator=generator).tolist():
        given = torch.randint(len(letters), (1, length), generator=generator)
        words = (given, _result(task, given))
        pairs.append(Pair(*("".join(letters[i] for i in word[0].tolist()) for word in words)))
    return pairs


def induction_batches(
    num_symbols: int, length: int, batch_size: int, generator: torch.Generator
) -> Iterator[Batch]:
    """Draw repeating sequences, which an induction head predicts, without end.

    In `7 2 5 7 2 5 7 2` the next token is `5`. The period differs between sequences, so attending
    a fixed number of positions back does not help: the model has to find the previous occurrence
    of the symbol and predict what followed it. No symbol occurs twice in a period, so this is
    always correct. Targets up to the first repeated symbol are unpredictable and `IGNORED`.

    Args:
        num_symbols: Number of different symbols, which is the model's `vocab_size`.
        length: Tokens per sequence.
        batch_size: Sequences per batch.
        generator: Draws the symbols, and periods from 2 to the smaller of `num_symbols` and half
            the length.

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
    positions = torch.arange(length + 1)

    def draw() -> Iterator[Batch]:
        while True:
            periods = torch.randint(2, longest + 1, (batch_size, 1), generator=generator)
            symbols = _random_orders(batch_size, num_symbols, generator)
            rows = symbols.gather(1, positions % periods)  # (batch, length + 1)
            targets = rows[:, 1:].masked_fill(positions[:-1] < periods, IGNORED)
            yield Batch({"tokens": rows[:, :-1]}, targets)

    return draw()


def anomaly_batches(
    num_kinds: int, num_members: int, length: int, batch_size: int, generator: torch.Generator
) -> Iterator[Batch]:
    """Draw sets with one odd token out, for an encoder to detect, without end.

    All tokens of a set but one are of the same kind. Token `t` is of kind `t // num_members`,
    which a model has to learn; positions carry no information. The target of each token is 1 if
    it is the odd one and 0 otherwise, so a model needs `vocab_size = num_kinds * num_members`,
    two outputs per token, no positions and no mask.

    Args:
        num_kinds: Number of kinds.
        num_members: Number of different tokens of each kind.
        length: Tokens per set.
        batch_size: Sets per batch.
        generator: Draws the kinds, the tokens and the position of the odd one.

    Raises:
        ValueError: If a size is too small, or `num_members` is below `length`.

    Source:
        Lee et al. 2019, Set Transformer (with photographs of faces),
        https://arxiv.org/abs/1810.00825

    """
    _require_at_least(2, num_kinds=num_kinds)
    _require_at_least(3, length=length)
    _require_at_least(1, batch_size=batch_size)
    rule = "num_members must be at least length, so that no token is repeated"
    require(num_members >= length, rule, num_members=num_members, length=length)

    def draw() -> Iterator[Batch]:
        while True:
            usual = torch.randint(num_kinds, (batch_size, 1), generator=generator)
            step = torch.randint(1, num_kinds, (batch_size, 1), generator=generator)
            position = torch.randint(length, (batch_size, 1), generator=generator)
            is_odd = torch.arange(length) == position  # (batch, length)
            kinds = torch.where(is_odd, (usual + step) % num_kinds, usual)
            members = _random_orders(batch_size, num_members, generator)[:, :length]
            yield Batch({"tokens": kinds * num_members + members}, is_odd.long())

    return draw()


def _result(task: Task, given: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    if task == "copy":
        return given
    return given.flip(-1) if task == "reverse" else given.sort(dim=-1).values


def _require_task(task: str) -> None:
    if task not in get_args(Task):
        raise ValueError(f"task must be among {' '.join(get_args(Task))}, got {task!r}")
