"""Draws the inputs of checks: the same seed always gives the same numbers."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from classroom.exercise.answers import Answer

_SQUARE = 5
# Of the integers that a small case draws, the highest is as much above the lowest.
_FEW = 9


@dataclass
class Case:
    """Draws the inputs of one check, always the same ones for the same seed.

    Attributes:
        seed: Determines the numbers.
        mistakes: The known mistakes of the exercise, for diagnosis.
        sizes: Sizes that replace the defaults, by name; used to search for a smaller case.
        rounded: Draw numbers with one decimal, which are easy to type.
        memory: Shared by the checks of an exercise during a run, to cache slow results.

    """

    seed: str
    mistakes: Sequence[Answer] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    rounded: bool = False
    memory: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self):
        digest = hashlib.sha256(self.seed.encode()).digest()
        self.generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        self.asked: dict[str, int] = {}
        self._smallest: dict[str, int] = {}

    def size(self, name: str, default: int, smallest: int = 1) -> int:
        """Return the size of an axis; the search for a small case may reduce it to `smallest`."""
        self.asked[name] = self.sizes.get(name, default)
        self._smallest[name] = smallest
        return self.asked[name]

    def normal(self, *shape: int, std: float = 1.0) -> Tensor:
        """Draw independent normal numbers with mean 0 in float64."""
        return self._round(std * torch.randn(shape, generator=self.generator, dtype=torch.float64))

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Draw independent numbers between `low` and `high` in float64."""
        unit = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        return self._round(low + (high - low) * unit)

    def integer(self, low: int, high: int) -> int:
        """Draw an integer from `low` to `high`, both included; in a small case a low one."""
        high = min(high, low + _FEW) if self.rounded else high
        return int(torch.randint(low, high + 1, (), generator=self.generator))

    def shuffled(self, items: Iterable[Any]) -> list[Any]:
        """Draw an order."""
        items = list(items)
        return [items[i] for i in torch.randperm(len(items), generator=self.generator).tolist()]

    def so_far(self) -> "Case":
        """Return a copy that remembers the sizes asked for so far and none that are later."""
        copy = replace(self)
        copy.asked, copy._smallest = dict(self.asked), dict(self._smallest)
        return copy

    def fresh(self, number: int) -> "Case":
        """Return a case with the same sizes and other numbers."""
        return Case(f"{self.seed}/fresh {number}", self.mistakes, self.sizes)

    def square(self, names: Iterable[str]) -> "Case":
        """Return a case in which all sizes with these names are equal."""
        return Case(f"{self.seed}/square", self.mistakes, dict.fromkeys(names, _SQUARE))

    def smaller(self, sizes: Mapping[str, int], rounded: bool) -> "Case":
        """Return a case with these sizes, and optionally rounded numbers."""
        return Case(f"{self.seed}/small", self.mistakes, dict(sizes), rounded)

    def shrinkable(self) -> dict[str, range]:
        """Return, by name, the smaller values that each size used so far may take."""
        return {name: range(self._smallest[name], size) for name, size in self.asked.items()}

    def _round(self, numbers: Tensor) -> Tensor:
        if not self.rounded:
            return numbers
        return (numbers * 10).round() / 10 + 0.0  # no -0.0
