"""Turns text into token ids and back. Knows nothing about models."""

from collections.abc import Iterable, Sequence
from typing import Any

PAD, BOS, EOS, UNKNOWN = "<pad>", "<bos>", "<eos>", "<unknown>"
"""Fills up a batch; begins a sequence; ends one; stands for a character never seen."""


class CharacterTokenizer:
    """One token per character.

    The smallest vocabulary that can write everything: nothing to train, and a model's
    mistakes can be read letter by letter. The price is length, about four times that of
    word pieces.

    Special tokens take the first ids, characters the ones after, in the order given.
    """

    def __init__(self, characters: Sequence[str], special_tokens: Sequence[str] = ()) -> None:
        if not characters:
            raise ValueError("a tokenizer needs at least one character, got none")
        for character in characters:
            if len(character) != 1:
                raise ValueError(f"every token must be one character, got {character!r}")
        for token in special_tokens:
            if token not in (PAD, BOS, EOS, UNKNOWN):
                raise ValueError(
                    f"special tokens must be among {PAD} {BOS} {EOS} {UNKNOWN}, got {token!r}"
                )
        self.characters = tuple(characters)
        self.special_tokens = tuple(special_tokens)
        self._tokens = self.special_tokens + self.characters
        self._id_of = {token: index for index, token in enumerate(self._tokens)}
        if len(self._id_of) < len(self._tokens):
            twice = next(t for i, t in enumerate(self._tokens) if t in self._tokens[:i])
            raise ValueError(f"every token must be listed once, got {twice!r} twice")

    @classmethod
    def fit(cls, text: Iterable[str], special_tokens: Sequence[str] = ()) -> "CharacterTokenizer":
        """Collect the characters of a text, sorted, so that equal texts give equal ids.

        Args:
            text: A string, or several.
            special_tokens: Which of `PAD`, `BOS`, `EOS`, `UNKNOWN` to have.

        Raises:
            ValueError: If the text is empty.

        """
        return cls(sorted(set().union(*text)), special_tokens)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included."""
        return len(self._tokens)

    def id_of(self, token: str) -> int:
        """Look up the id of a character or of a special token.

        Raises:
            ValueError: If the vocabulary does not have it.

        """
        if token not in self._id_of:
            raise ValueError(f"the vocabulary must hold the token asked for, got {token!r}")
        return self._id_of[token]

    def encode(self, text: str) -> list[int]:
        """Turn text into ids, one per character; `BOS` and `EOS` are left to the caller.

        Raises:
            ValueError: If a character is not in the vocabulary and there is no `UNKNOWN`.

        """
        unknown = self._id_of[UNKNOWN] if UNKNOWN in self.special_tokens else None
        ids = []
        for position, character in enumerate(text):
            index = self._id_of.get(character, unknown)
            if index is None:
                raise ValueError(
                    f"every character must be in the vocabulary of {len(self.characters)} "
                    f"characters, got {character!r} (U+{ord(character):04X}) at position {position}"
                )
            ids.append(index)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Turn ids into text.

        `PAD`, `BOS` and `EOS` give nothing, `UNKNOWN` gives the replacement character U+FFFD.

        Raises:
            ValueError: If an id is outside the vocabulary.

        """
        pieces = []
        for index in ids:
            if not 0 <= index < self.vocab_size:
                raise ValueError(f"ids must be from 0 to {self.vocab_size - 1}, got {index}")
            if index >= len(self.special_tokens):
                pieces.append(self._tokens[index])
            elif self._tokens[index] == UNKNOWN:
                pieces.append("\N{REPLACEMENT CHARACTER}")
        return "".join(pieces)

    def to_dict(self) -> dict[str, Any]:
        """Give what JSON can hold and `from_dict` can read."""
        return {
            "kind": "character",
            "characters": "".join(self.characters),
            "special_tokens": list(self.special_tokens),
        }

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "CharacterTokenizer":
        """Make the tokenizer that `to_dict` described.

        Raises:
            ValueError: If the record describes something else.

        """
        if record.get("kind") != "character":
            raise ValueError(f"the kind of tokenizer must be character, got {record.get('kind')!r}")
        expected = {"kind", "characters", "special_tokens"}
        if set(record) != expected:
            raise ValueError(
                f"a character tokenizer has the fields {sorted(expected)}, got {sorted(record)}"
            )
        return cls(record["characters"], record["special_tokens"])
