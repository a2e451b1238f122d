"""Pretrained word vectors: read from a file, and used as a model's embedding."""

import itertools
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from groundup.core.models import AnyModel
from groundup.data.batches import _require_at_least


class WordVectors:
    """Words, each with a pretrained vector.

    Args:
        words: In the order of the rows.
        vectors: One row per word.

    Raises:
        ValueError: If the numbers of rows and words differ, or a word is repeated.

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
        """Return the number of words."""
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        """Return whether a word has a vector."""
        return word in self._row_of

    def id_of(self, word: str) -> int:
        """Return the row of a word.

        Raises:
            ValueError: If the word has no vector.

        """
        if word not in self:
            raise ValueError(f"the word must have a vector, got {word!r}")
        return self._row_of[word]


def read_word_vectors(
    path: str | Path, words: Iterable[str] | None = None, d_model: int | None = None
) -> WordVectors:
    """Read vectors in the text format of GloVe, word2vec and fastText.

    Each line is a word and its numbers, separated by spaces. The file is read line by line, so it
    may be larger than memory. Vectors of words not in `words` are not kept; their numbers are
    only counted. A first line of two integers, as word2vec writes it, gives the number of
    words and the width of their vectors.

    Args:
        path: A file in UTF-8.
        words: Which words to keep, if the file has them; by default all.
        d_model: Numbers per word; by default as many as in the first line. Required if the word
            in the first line contains a space, as a few words of GloVe do.

    Raises:
        ValueError: If the file cannot be read or is empty, or a line is invalid: too few or too
            many numbers, a number that is not finite, no word, a repeated word, or invalid UTF-8.
            Names the file and the line.

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
    """Make the input embedding of a vocabulary from pretrained vectors.

    Words without a vector get a random one of similar norm: normal, with the mean and the
    standard deviation that each feature has over `vectors`.

    Args:
        vectors: Has at least one word.
        words: The vocabulary: the word of each id.
        frozen: Whether to exclude the embedding from training. Do not freeze it if many words
            have random vectors.
        generator: Draws the vectors of unknown words.

    Raises:
        ValueError: If `vectors` is empty.

    """
    if not len(vectors):
        raise ValueError("an embedding must be made from at least one vector, got none")
    std, mean = torch.std_mean(vectors.vectors, dim=0, correction=0)
    rows = mean + std * torch.randn(len(words), len(mean), generator=generator)
    for row, word in enumerate(words):
        if word in vectors:
            rows[row] = vectors.vectors[vectors.id_of(word)]
    return nn.Embedding.from_pretrained(rows, freeze=frozen)


def replace_embedding(
    model: AnyModel,
    embedding: nn.Embedding,
    name: Literal["embedding", "source_embedding"] = "embedding",
) -> None:
    """Replace a model's token embedding, for example by pretrained word vectors.

    Args:
        model: Changed in place.
        embedding: One row per token, as `embedding_from` makes it; frozen or not.
        name: Which embedding of the model to replace.

    Raises:
        ValueError: If the shape differs from the model's own embedding, or the model's own is
            tied to the unembedding or to another embedding.

    """
    layer = getattr(model, name)
    own = layer.tokens.weight
    if sum(getattr(part, "weight", None) is own for part in model.modules()) > 1:
        raise ValueError(
            "word vectors must replace an untied embedding, got a model with tied embeddings"
        )
    if embedding.weight.shape != own.shape:
        raise ValueError(
            "word vectors must have one row per token and be d_model wide, got "
            f"{tuple(embedding.weight.shape)} instead of {tuple(own.shape)}"
        )
    layer.tokens = embedding


def _parse_word_vectors(
    file: Iterator[bytes], path: str | Path, wanted: set[bytes] | None, d_model: int | None
) -> WordVectors:
    # Bytes, not text: some words contain characters that text mode treats as line ends or as
    # spaces, and words that are not kept need not be decoded.
    first = next(file, b"")
    promised, d_model = _read_first_line(first, path, d_model)
    lines = file if promised is not None else itertools.chain([first], file)
    start = 1 if promised is None else 2
    number = start - 1
    line_of: dict[str, int] = {}
    numbers = array("f")
    for number, line in enumerate(lines, start):
        where = f"in line {number} of {path}"
        word, fields = _split_line(line, d_model, where)
        if wanted is not None and word not in wanted:
            continue
        try:
            name = word.decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"a word must be UTF-8, got {word!r} {where}") from None
        if name in line_of:
            raise ValueError(
                f"a word must be listed once, got {name!r} in line {line_of[name]} and {where}"
            )
        line_of[name] = number
        numbers.extend(_finite_numbers(fields, where))
    count = number - start + 1
    if promised not in (None, count):
        raise ValueError(
            f"the first line of {path} must give the number of words that follow, "
            f"got {promised} for {count} words"
        )
    vectors = torch.from_numpy(np.array(numbers)).reshape(len(line_of), d_model)
    return WordVectors(list(line_of), vectors)


def _read_first_line(line: bytes, path: str | Path, d_model: int | None) -> tuple[int | None, int]:
    """Return the number of words, if the line has it, and the numbers per word."""
    if not line:
        raise ValueError(f"word vectors must have at least one line, got an empty file: {path}")
    first = line.rstrip(_LINE_END).split(b" ")
    if d_model != 1 and len(first) == 2 and all(part.isdigit() for part in first):
        promised, width = map(int, first)
        if d_model not in (None, width):
            raise ValueError(
                f"d_model must match the first line of {path}, "
                f"got d_model={d_model}, in the file {width}"
            )
        _require_at_least(1, d_model=width)
        return promised, width
    if d_model is None:
        hint = "; if the first word contains a space, set d_model"
        if len(first) < 2:
            raise ValueError(f"a line must be a word and its numbers, got {line!r} first in {path}")
        _finite_numbers(first[1:], f"in line 1 of {path}{hint}")
        d_model = len(first) - 1
    _require_at_least(1, d_model=d_model)
    return None, d_model


_LINE_END = b" \r\n"
"""word2vec and fastText write a space at the end of each line."""


def _split_line(line: bytes, d_model: int, where: str) -> tuple[bytes, list[bytes]]:
    word, *fields = line.rstrip(_LINE_END).rsplit(b" ", d_model)
    # A word may contain spaces; if it ends in a number, that is one number too many.
    has_too_many = b" " in word and _is_number(word.rsplit(b" ", 1)[1])
    if not word or len(fields) < d_model or has_too_many:
        raise ValueError(
            f"a line must be a word and {d_model} numbers, got {len(line.split())} fields {where}"
        )
    return word, fields


def _finite_numbers(fields: list[bytes], where: str) -> array:
    try:
        row = array("f", map(float, fields))
    except ValueError:
        wrong = next(field for field in fields if not _is_number(field))
        raise ValueError(
            f"a vector must be made of numbers, got {wrong.decode(errors='replace')!r} {where}"
        ) from None
    if not all(map(math.isfinite, row)):
        wrong = next(f for f, value in zip(fields, row, strict=True) if not math.isfinite(value))
        raise ValueError(f"a vector must be finite, got {wrong.decode()} {where}")
    return row


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
