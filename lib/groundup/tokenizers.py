"""Turns text into token ids and back. Knows nothing about models.

Three vocabularies, from the shortest to the longest: the characters of one text, the 256 bytes
of any text, and bytes merged into the pieces that a text repeats most.
"""

import codecs
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

PAD, BOS, EOS, UNKNOWN, MASK = "<pad>", "<bos>", "<eos>", "<unknown>", "<mask>"
"""Fills up a batch; begins a sequence; ends one; stands for a character never seen; hides one."""


@runtime_checkable
class Tokenizer(Protocol):
    """What every tokenizer offers.

    Special tokens have ids of their own, which no text encodes to: whoever writes `<eos>` into
    a prompt gets five characters, not the end of the sequence.
    """

    special_tokens: tuple[str, ...]

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included; ids count from 0."""
        ...

    def id_of(self, token: str) -> int:
        """Look up the id of a special token, or of a text that is one token.

        Raises:
            ValueError: If the vocabulary does not have it.

        """
        ...

    def encode(self, text: str) -> list[int]:
        """Turn text into ids; `BOS` and `EOS` are left to the caller."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Turn ids into text; special tokens give nothing, but for `UNKNOWN`, which gives U+FFFD.

        Raises:
            ValueError: If an id is outside the vocabulary.

        """
        ...

    def decode_stream(self, ids: Iterable[int]) -> Iterator[str]:
        """Turn ids into text as they come; joined, what is yielded equals `decode`.

        Nothing is yielded for a token that ends in the middle of a character: the tokens after
        it complete it.
        """
        ...

    def pieces(self, text: str) -> list[str]:
        """Cut a text at the borders of its tokens, to show."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Give what JSON can hold and `from_dict` can read."""
        ...


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
        _require_special_tokens(special_tokens, (PAD, BOS, EOS, UNKNOWN, MASK))
        self.characters = tuple(characters)
        self.special_tokens = tuple(special_tokens)
        self._tokens = self.special_tokens + self.characters
        _require_listed_once(self._tokens)
        self._id_of = {token: index for index, token in enumerate(self._tokens)}

    @classmethod
    def fit(cls, text: Iterable[str], special_tokens: Sequence[str] = ()) -> "CharacterTokenizer":
        """Collect the characters of a text, sorted, so that equal texts give equal ids.

        Args:
            text: A string, or several.
            special_tokens: Which of `PAD`, `BOS`, `EOS`, `UNKNOWN`, `MASK` to have.

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

        `PAD`, `BOS`, `EOS` and `MASK` give nothing, `UNKNOWN` gives the replacement character
        U+FFFD.

        Raises:
            ValueError: If an id is outside the vocabulary.

        """
        return "".join(self.decode_stream(ids))

    def decode_stream(self, ids: Iterable[int]) -> Iterator[str]:
        """Turn ids into text as they come; joined, what is yielded equals `decode`."""
        for index in ids:
            _require_id(index, self.vocab_size)
            if index >= len(self.special_tokens):
                yield self._tokens[index]
            elif self._tokens[index] == UNKNOWN:
                yield "\N{REPLACEMENT CHARACTER}"

    def pieces(self, text: str) -> list[str]:
        """Cut a text at the borders of its tokens, to show."""
        return list(text)

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
        _require_record(record, "character", {"characters", "special_tokens"})
        return cls(record["characters"], record["special_tokens"])


class _ByteLevelTokenizer(ABC):
    """What tokenizers share whose tokens are strings of bytes. Special tokens come last."""

    def __init__(self, pieces: Sequence[bytes], special_tokens: Sequence[str]) -> None:
        # No UNKNOWN: every text has bytes, so there is nothing that it could stand for.
        _require_special_tokens(special_tokens, (PAD, BOS, EOS, MASK))
        _require_listed_once(special_tokens)
        self.special_tokens = tuple(special_tokens)
        self._bytes_of = [*pieces, *(b"" for _ in special_tokens)]
        self._id_of: dict[str | bytes, int] = {piece: i for i, piece in enumerate(pieces)}
        self._id_of |= {token: len(pieces) + i for i, token in enumerate(special_tokens)}

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included."""
        return len(self._bytes_of)

    def id_of(self, token: str) -> int:
        """Look up the id of a special token, or of a text that is one token.

        Raises:
            ValueError: If the vocabulary does not have it.

        """
        index = self._id_of.get(token, self._id_of.get(_utf_8(token)))
        if index is None:
            raise ValueError(f"the vocabulary must hold the token asked for, got {token!r}")
        return index

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Turn text into ids; `BOS` and `EOS` are left to the caller."""

    def decode(self, ids: Iterable[int]) -> str:
        """Turn ids into text.

        Special tokens give nothing. Ids in another order than `encode` gave them may not spell
        whole characters; what is no UTF-8 becomes the replacement character U+FFFD.

        Raises:
            ValueError: If an id is outside the vocabulary.

        """
        return b"".join(map(self._spell, ids)).decode("utf-8", errors="replace")

    def decode_stream(self, ids: Iterable[int]) -> Iterator[str]:
        """Turn ids into text as they come; joined, what is yielded equals `decode`.

        The first bytes of a character are held back until the last one has come, so a reader
        never sees U+FFFD where a whole character is on its way.
        """
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for index in ids:
            if text := decoder.decode(self._spell(index)):
                yield text
        if text := decoder.decode(b"", final=True):
            yield text

    def pieces(self, text: str) -> list[str]:
        r"""Cut a text at the borders of its tokens, to show.

        A piece that is part of a character is shown as its bytes, `\xf0\x9f`.
        """
        ids = self.encode(text)
        return [self._spell(i).decode("utf-8", errors="backslashreplace") for i in ids]

    def _spell(self, index: int) -> bytes:
        _require_id(index, self.vocab_size)
        return self._bytes_of[index]


class ByteTokenizer(_ByteLevelTokenizer):
    """One token per byte of UTF-8. A byte's id is its value; special tokens follow from 256.

    No text is unknown to it, whatever its script, and there is nothing to train. English takes
    a byte per character, most other scripts two or three.

    Source:
        Xue et al. 2022, ByT5: Towards a Token-Free Future with Pre-trained Byte-to-Byte Models,
        https://arxiv.org/abs/2105.13626

    """

    def __init__(self, special_tokens: Sequence[str] = ()) -> None:
        super().__init__([bytes([value]) for value in range(256)], special_tokens)

    def encode(self, text: str) -> list[int]:
        """Turn text into ids, one per byte; `BOS` and `EOS` are left to the caller.

        Raises:
            ValueError: If the text holds half of a surrogate pair, which UTF-8 cannot write.

        """
        return list(_utf_8(text))

    def to_dict(self) -> dict[str, Any]:
        """Give what JSON can hold and `from_dict` can read."""
        return {"kind": "byte", "special_tokens": list(self.special_tokens)}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "ByteTokenizer":
        """Make the tokenizer that `to_dict` described.

        Raises:
            ValueError: If the record describes something else.

        """
        _require_record(record, "byte", {"special_tokens"})
        return cls(record["special_tokens"])


class BytePairTokenizer(_ByteLevelTokenizer):
    """Pieces of words: single bytes, joined pair by pair as often as a text repeats them.

    A frequent word becomes one token, a rare one several, and no text is unknown, since every
    byte has a token too. Text is first cut into words, each with the space before it, and no
    token reaches across such a cut.

    Merging is done by the `tokenizers` library. Pieces and merges are spelled as in GPT-2's
    files, with one printable character per byte: `Ġ` is the space.

    Args:
        pieces: The tokens, by id; each of the 256 bytes is among them.
        merges: Which two pieces are joined to one, the most urgent pair first.
        special_tokens: Which of `PAD`, `BOS`, `EOS`, `MASK` to have; they take the last ids.

    Raises:
        ValueError: If a byte has no piece, a piece is there twice or no spelling of bytes, or a
            merge joins what are not two pieces to what is no piece.

    Source:
        Sennrich et al. 2016, Neural Machine Translation of Rare Words with Subword Units,
        section 3.2, https://arxiv.org/abs/1508.07909; Radford et al. 2019, Language Models are
        Unsupervised Multitask Learners, section 2.2 (bytes)

    """

    def __init__(
        self,
        pieces: Sequence[str],
        merges: Sequence[Sequence[str]],
        special_tokens: Sequence[str] = (),
    ) -> None:
        _require_listed_once(pieces)
        known = set(pieces)
        for character, value in _BYTE_OF.items():
            if character not in known:
                raise ValueError(f"every byte must be a piece, got none for byte {value}")
        for piece in pieces:
            if not piece or not _BYTE_OF.keys() >= set(piece):
                raise ValueError(f"a piece must be spelled in bytes, as by GPT-2, got {piece!r}")
        for merge in merges:
            if len(merge) != 2 or not known >= {*merge, "".join(merge)}:
                raise ValueError(f"a merge must join two pieces to a third, got {list(merge)!r}")
        self._pieces = list(pieces)
        self._merges = [(left, right) for left, right in merges]
        _require_listed_once([" ".join(merge) for merge in self._merges])
        super().__init__([_bytes_of(piece) for piece in pieces], special_tokens)
        self._model = _byte_pair_model({piece: i for i, piece in enumerate(pieces)}, self._merges)

    @classmethod
    def fit(
        cls, text: str | Iterable[str], vocab_size: int, special_tokens: Sequence[str] = ()
    ) -> "BytePairTokenizer":
        """Join the most frequent pair of tokens, again and again, until there are enough.

        The same text gives the same tokens. A text too short to have so many pairs gives fewer.

        Args:
            text: A string, or several.
            vocab_size: Tokens to have in the end, the 256 bytes and special ones included.
            special_tokens: Which of `PAD`, `BOS`, `EOS`, `MASK` to have.

        Raises:
            ValueError: If the text is empty or the vocabulary too small to hold all bytes.

        """
        from tokenizers import trainers

        texts = [text] if isinstance(text, str) else list(text)
        if not any(texts):
            raise ValueError("a tokenizer needs at least one character to learn from, got none")
        for one in texts:
            _utf_8(one)
        smallest = 256 + len(special_tokens)
        if vocab_size < smallest:
            raise ValueError(
                f"vocab_size must be at least 256 + {len(special_tokens)} = {smallest} to hold "
                f"all bytes and special tokens, got vocab_size={vocab_size}"
            )
        model = _byte_pair_model()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - len(special_tokens),
            min_frequency=0,
            show_progress=False,
            special_tokens=[],
            initial_alphabet=list(_BYTE_OF),
        )
        model.train_from_iterator(texts, trainer)
        record = json.loads(model.to_str())["model"]
        pieces = sorted(record["vocab"], key=record["vocab"].get)
        return cls(pieces, record["merges"], special_tokens)

    @classmethod
    def from_gpt2_files(
        cls, vocab_path: str | Path, merges_path: str | Path
    ) -> "BytePairTokenizer":
        """Read the two files in which GPT-2's tokenizer is published.

        GPT-2 has one special token, `<|endoftext|>`, which stands between two texts. It becomes
        `EOS`; to begin a text as GPT-2 has learned to, begin it with `EOS`.

        Args:
            vocab_path: `vocab.json` or `encoder.json`, the id of each piece.
            merges_path: `merges.txt` or `vocab.bpe`, one merge on each line.

        Raises:
            ValueError: If a file is missing or says something else; names the file and, where
                there is one, the line.

        """
        vocab = _read_vocab(vocab_path)
        merges = _read_merges(merges_path, vocab)
        made = _BYTE_OF.keys() | {left + right for left, right in merges}
        pieces = [piece for piece in vocab if piece in made]
        special_tokens = [token for token in vocab if token not in made]
        if [*pieces, *special_tokens] != vocab:
            raise ValueError(
                f"what no merge of {merges_path} makes must have the last ids, as special tokens "
                f"have, got id {vocab.index(special_tokens[0])} for {special_tokens[0]!r} "
                f"in {vocab_path}"
            )
        try:
            return cls(pieces, merges, [EOS if t == "<|endoftext|>" else t for t in special_tokens])
        except ValueError as error:
            raise ValueError(f"{error} in {vocab_path}") from None

    def encode(self, text: str) -> list[int]:
        """Turn text into ids; `BOS` and `EOS` are left to the caller.

        Raises:
            ValueError: If the text holds half of a surrogate pair, which UTF-8 cannot write.

        """
        _utf_8(text)
        return self._model.encode(text, add_special_tokens=False).ids

    def to_dict(self) -> dict[str, Any]:
        """Give what JSON can hold and `from_dict` can read."""
        return {
            "kind": "byte-pair",
            "pieces": list(self._pieces),
            "merges": [list(merge) for merge in self._merges],
            "special_tokens": list(self.special_tokens),
        }

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "BytePairTokenizer":
        """Make the tokenizer that `to_dict` described.

        Raises:
            ValueError: If the record describes something else.

        """
        _require_record(record, "byte-pair", {"pieces", "merges", "special_tokens"})
        return cls(record["pieces"], record["merges"], record["special_tokens"])


def from_dict(record: dict[str, Any]) -> Tokenizer:
    """Make the tokenizer that its `to_dict` described, of whichever kind.

    Raises:
        ValueError: If the record describes no tokenizer.

    """
    kinds = {
        "character": CharacterTokenizer,
        "byte": ByteTokenizer,
        "byte-pair": BytePairTokenizer,
    }
    if record.get("kind") not in kinds:
        raise ValueError(
            f"the kind of tokenizer must be among {', '.join(kinds)}, got {record.get('kind')!r}"
        )
    return kinds[record["kind"]].from_dict(record)


# --- bytes as printable characters ---------------------------------------------------------


def _byte_characters() -> dict[str, int]:
    # A byte is spelled by the character of its own number where that leaves a mark on paper;
    # the others (controls, spaces, the soft hyphen) by the characters from U+0100 on, in order.
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [value for value in range(256) if value not in visible]
    return {chr(value): value for value in sorted(visible)} | {
        chr(0x100 + number): value for number, value in enumerate(hidden)
    }


_BYTE_OF = _byte_characters()


def _bytes_of(piece: str) -> bytes:
    return bytes(_BYTE_OF[character] for character in piece)


def _byte_pair_model(vocab: dict[str, int] | None = None, merges: Any = None) -> Any:
    # Imported only where it is needed: it takes longer than the rest of this module together.
    import tokenizers
    from tokenizers import models, pre_tokenizers

    model = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return model


# --- GPT-2's files -------------------------------------------------------------------------


def _read_vocab(path: str | Path) -> list[str]:
    """Give the tokens by id."""
    try:
        id_of = json.loads(_read(path))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"a vocabulary must be JSON, got {error.msg} in line {error.lineno} of {path}"
        ) from None
    if not isinstance(id_of, dict):
        raise ValueError(f"a vocabulary must map tokens to ids, got no mapping in {path}")
    token_of = {}
    for token, index in id_of.items():
        if type(index) is not int or not 0 <= index < len(id_of):
            raise ValueError(
                f"ids must be numbers from 0 to {len(id_of) - 1}, one for each of {len(id_of)} "
                f"tokens, got {index!r} for {token!r} in {path}"
            )
        if index in token_of:
            raise ValueError(
                f"every token must have its own id, got {index} for {token_of[index]!r} and "
                f"{token!r} in {path}"
            )
        token_of[index] = token
    return [token_of[index] for index in range(len(token_of))]


def _read_merges(path: str | Path, vocab: Sequence[str]) -> list[tuple[str, str]]:
    lines = _read(path).removesuffix("\n").split("\n")
    known = set(vocab)
    merges = {}
    for number, line in enumerate(lines, start=1):
        if number == 1 and line.startswith("#version"):
            continue
        parts = line.split(" ")
        if len(parts) != 2 or not all(parts):
            raise ValueError(
                f"a merge must be two pieces with a space between, got {line!r} "
                f"in line {number} of {path}"
            )
        for piece in (*parts, "".join(parts)):
            if piece not in known:
                raise ValueError(
                    f"what is merged must be in the vocabulary, before and after, got {piece!r} "
                    f"in line {number} of {path}"
                )
        merge = (parts[0], parts[1])
        if merge in merges:
            raise ValueError(
                f"a merge must be listed once, got {line!r} in lines {merges[merge]} and {number} "
                f"of {path}"
            )
        merges[merge] = number
    return list(merges)


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"a tokenizer's file must be UTF-8, got a wrong byte at offset {error.start} of {path}"
        ) from None
    except OSError as error:
        raise ValueError(
            f"a tokenizer's file must be readable, got {path}: {error.strerror}"
        ) from None


# --- at the door ---------------------------------------------------------------------------


def _utf_8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            "a text must be whole characters, got half of a surrogate pair "
            f"(U+{ord(text[error.start]):04X}) at position {error.start}"
        ) from None


def _require_special_tokens(special_tokens: Sequence[str], allowed: Sequence[str]) -> None:
    for token in special_tokens:
        if token not in allowed:
            raise ValueError(f"special tokens must be among {' '.join(allowed)}, got {token!r}")


def _require_listed_once(tokens: Sequence[str]) -> None:
    seen = set()
    for token in tokens:
        if token in seen:
            raise ValueError(f"every token must be listed once, got {token!r} twice")
        seen.add(token)


def _require_id(index: int, vocab_size: int) -> None:
    if not 0 <= index < vocab_size:
        raise ValueError(f"ids must be from 0 to {vocab_size - 1}, got {index}")


def _require_record(record: dict[str, Any], kind: str, fields: set[str]) -> None:
    if record.get("kind") != kind:
        raise ValueError(f"the kind of tokenizer must be {kind}, got {record.get('kind')!r}")
    expected = {"kind"} | fields
    if set(record) != expected:
        raise ValueError(
            f"a {kind} tokenizer has the fields {sorted(expected)}, got {sorted(record)}"
        )
