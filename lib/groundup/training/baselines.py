"""An n-gram baseline: what a language model should beat."""

import math
from collections import Counter
from collections.abc import Iterable


class CharacterNGram:
    """Character n-gram model with interpolated, modified Kneser-Ney smoothing.

    Counts after the longest context are discounted, and the probability mass this frees is
    distributed by the next shorter context, down to a uniform distribution. Shorter contexts
    use continuation counts: not how often a character follows, but after how many different
    contexts, since a character that is frequent in a single context is a poor prediction for
    a new one. Counts of 1, 2, and 3 or more have separate discounts (the "modified" form),
    which did best of all smoothing methods in the comparison cited below.

    Args:
        text: The training text.
        vocabulary: Every character that may be queried; those that the text lacks get a small
            probability too.
        order: Length of the longest n-gram: the character and `order - 1` before it.

    Raises:
        ValueError: If `order` is below 1, the text is shorter than `order`, or one of its
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
        # From the empty context to the longest.
        self._levels: list[_Level] = []
        counts = Counter(text[i : i + order] for i in range(len(text) - order + 1))
        for _ in range(order):
            self._levels.insert(0, _Level(counts))
            # The number of different characters before the shorter n-gram, not its frequency.
            counts = Counter(ngram[1:] for ngram in counts)

    def probability(self, character: str, context: str = "") -> float:
        """Return the probability of a character after a context (its last `order - 1` characters).

        Raises:
            ValueError: If the character is not in the vocabulary.

        """
        if character not in self.vocabulary:
            raise ValueError(f"a character must be in the vocabulary, got {character!r}")
        probability, followers = 1 / len(self.vocabulary), self._levels[0].counts
        for length, level in enumerate(self._levels[: len(context) + 1]):
            # What follows a context also follows a shorter one.
            followers, total, freed = level.after(context[len(context) - length :], followers)
            if not followers:
                break
            count = followers.get(character, 0)
            kept = count - level.discount(count)
            probability = (kept + freed * probability) / total
        return probability

    def bits_per_character(self, text: str) -> float:
        """Return the average surprisal of all characters but the first, in bits per character.

        The first is only context, as it is for a language model without a start token.

        Raises:
            ValueError: If the text has fewer than two characters.

        """
        if len(text) < 2:
            raise ValueError(f"a text must have at least 2 characters, got {len(text)}")
        # What occurs several times is computed once.
        ngrams = Counter(text[max(0, i - self.order + 1) : i + 1] for i in range(1, len(text)))
        bits = math.fsum(
            -count * math.log2(self.probability(ngram[-1], ngram[:-1]))
            for ngram, count in ngrams.items()
        )
        return bits / (len(text) - 1)


class _Level:
    """The n-grams of one length, and the count that discounting frees after each context."""

    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts
        self._discounts = _modified_discounts(Counter(counts.values()))
        self._known: dict[str, tuple[dict[str, int], int, float]] = {}

    def after(self, context: str, candidates: Iterable[str]) -> tuple[dict[str, int], int, float]:
        """Return how often each candidate follows a context, the sum, and what is freed."""
        if context not in self._known:
            ngrams = ((character, context + character) for character in candidates)
            counts = {last: self.counts[ngram] for last, ngram in ngrams if ngram in self.counts}
            freed = math.fsum(map(self.discount, counts.values()))
            self._known[context] = counts, sum(counts.values()), freed
        return self._known[context]

    def discount(self, count: int) -> float:
        """Return what is subtracted from a count, to be redistributed."""
        return self._discounts[min(count, 3)]


def _modified_discounts(num_ngrams: Counter[int]) -> tuple[float, float, float, float]:
    """Estimate the discounts of counts 0, 1, 2, 3+ from how many n-grams have each count."""
    n1, n2, n3, n4 = (num_ngrams[count] for count in (1, 2, 3, 4))
    if n1 and n2 and n3:
        y = n1 / (n1 + 2 * n2)
        discounts = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
        if min(discounts) > 0:
            return 0.0, *discounts
    return 0.0, 0.5, 0.5, 0.5  # too few n-grams for an estimate
