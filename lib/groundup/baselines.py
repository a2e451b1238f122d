"""What a model has to beat: counting, done well."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable


class CharacterNGram:
    """Predicts a character from the few before it, by counts and interpolated Kneser-Ney.

    The counts of the longest context are discounted, and what that sets aside is spread by
    the next shorter context, down to all characters alike. Shorter contexts do not count how
    often a character followed them, but in how many different ways it came to: a character
    common in one place only is no guess for a new place. Discounts are estimated apart for
    counts of 1, 2, and 3 or more (the "modified" form), which did best of all smoothing
    methods in the comparison cited below.

    Args:
        text: What to count.
        vocabulary: Every character that may ever be asked for; those that the text lacks get
            a small probability too.
        order: Length of the longest piece counted: the character and `order - 1` before it.

    Raises:
        ValueError: If `order` is below 1, the text is shorter than that, or one of its
            characters is not in the vocabulary.

    Source:
        Chen and Goodman 1999, An empirical study of smoothing techniques for language modeling,
        Computer Speech & Language 13(4), section 3, https://doi.org/10.1006/csla.1999.0128

    """

    def __init__(self, text: str, vocabulary: Iterable[str], order: int = 5) -> None:
        if order < 1:
            raise ValueError(f"order must be at least 1, got order={order}")
        if len(text) < order:
            raise ValueError(
                f"a text must be at least as long as order, got {len(text)} characters, "
                f"order={order}"
            )
        self.order = order
        self.vocabulary = frozenset(vocabulary)
        if missing := set(text) - self.vocabulary:
            raise ValueError(
                f"every character of the text must be in the vocabulary, got {min(missing)!r}"
            )
        # Levels from the shortest context, of no character, to the longest.
        self._levels: list[_Level] = []
        counts = Counter(text[i : i + order] for i in range(len(text) - order + 1))
        for _ in range(order):
            self._levels.insert(0, _Level(counts))
            # In how many ways a shorter piece continues a longer one, not how often.
            counts = Counter(piece[1:] for piece in counts)

    def probability(self, character: str, context: str = "") -> float:
        """Say how probable a character is after a context, of which the end counts.

        Raises:
            ValueError: If the character is not in the vocabulary.

        """
        if character not in self.vocabulary:
            raise ValueError(f"a character must be in the vocabulary, got {character!r}")
        probability = 1 / len(self.vocabulary)
        for length, level in enumerate(self._levels[: len(context) + 1]):
            seen = level.contexts.get(context[len(context) - length :])
            if seen is None:
                break
            total, set_aside = seen
            count = level.counts.get(context[len(context) - length :] + character, 0)
            kept = count - level.discount(count)
            probability = (kept + set_aside * probability) / total
        return probability

    def bits_per_character(self, text: str) -> float:
        """Give the average surprise at each character of a text but the first, in bits.

        The first is only context, as it is for a language model without a start token.

        Raises:
            ValueError: If the text has fewer than two characters.

        """
        if len(text) < 2:
            raise ValueError(f"a text must have at least 2 characters, got {len(text)}")
        bits = 0.0
        for i in range(1, len(text)):
            bits -= math.log2(self.probability(text[i], text[max(0, i - self.order + 1) : i]))
        return bits / (len(text) - 1)


class _Level:
    """The pieces of one length, and what is set aside after each context."""

    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts
        self._discounts = _modified_discounts(Counter(counts.values()))
        totals: defaultdict[str, int] = defaultdict(int)
        set_aside: defaultdict[str, float] = defaultdict(float)
        for piece, count in counts.items():
            totals[piece[:-1]] += count
            set_aside[piece[:-1]] += self.discount(count)
        self.contexts = {context: (totals[context], set_aside[context]) for context in totals}

    def discount(self, count: int) -> float:
        """Say how much of a count is set aside for what was not counted."""
        return self._discounts[min(count, 3)]


def _modified_discounts(num_pieces: Counter[int]) -> tuple[float, float, float, float]:
    """Estimate the discounts of counts 0, 1, 2, 3+ from how many pieces have each count."""
    n1, n2, n3, n4 = (num_pieces[count] for count in (1, 2, 3, 4))
    if n1 and n2 and n3:
        y = n1 / (n1 + 2 * n2)
        discounts = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
        if min(discounts) > 0:
            return 0.0, *discounts
    return 0.0, 0.5, 0.5, 0.5  # too few pieces to estimate from
