"""Tokenizers convert text to token ids and back. Nothing here depends on a model.

There are three vocabularies: the characters of one text, the 256 bytes of any text, and the byte
sequences that are most frequent in a text (byte-pair encoding). A fourth tokenizer reads
its vocabulary and rules from the `tokenizer.json` of a published model.
"""

import codecs
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

PAD, BOS, EOS, UNKNOWN, MASK = "<pad>", "<bos>", "<eos>", "<unknown>", "<mask>"
"""Padding, beginning of sequence, end of sequence, unknown character, masked token."""


@runtime_checkable
class Tokenizer(Protocol):
    """The interface of every tokenizer.

    Special tokens have ids of their own, which no text encodes to: `<eos>` in a prompt is encoded
    as five ordinary characters, not as the end of the sequence.
    """

    special_tokens: tuple[str, ...]

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included; ids count from 0."""
        ...

    def id_of(self, token: str) -> int:
        """Return the id of a special token, or of a text that is one token.

        Raises:
            ValueError: If it is not in the vocabulary.

        """
        ...

    def encode(self, text: str) -> list[int]:
        """Encode text as ids, without `BOS` and `EOS`, which the caller adds."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids; special tokens are omitted, except `UNKNOWN`, which becomes U+FFFD.

        Raises:
            ValueError: If an id is outside the vocabulary.

        """
        ...

    def decode_stream(self, ids: Iterable[int]) -> Iterator[str]:
        """Decode ids one by one; the yielded strings, joined, equal the result of `decode`.

        Nothing is yielded for a token that ends inside a character, until later tokens complete
        the character.
        """
        ...

    def pieces(self, text: str) -> list[str]:
        """Split a text at its token boundaries, for display."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return a description that JSON can store and `from_dict` can read."""
        ...


class CharacterTokenizer:
    """One token per character.

    A small vocabulary that needs no training, and every token can be read. The price is length:
    English text has about four times as many characters as subword tokens.

    Args:
        characters: The characters, whose ids follow those of the special tokens in this order.
        special_tokens: Which of `PAD`, `BOS`, `EOS`, `UNKNOWN`, `MASK` to include; they have
            the first ids.

    Raises:
        ValueError: If there are no characters, an entry is not a single character, a token is
            repeated, or a special token is not one of these.

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
        """Make a tokenizer of the characters of a text, sorted so that ids depend on the set alone.

        Args:
            text: A string, or several.
            special_tokens: Which of `PAD`, `BOS`, `EOS`, `UNKNOWN`, `MASK` to include.

        Raises:
            ValueError: If the text is empty.

        """
        return cls(sorted(set().union(*text)), special_tokens)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included."""
        return len(self._tokens)

    def id_of(self, token: str) -> int:
        """Return the id of a character or of a special token.

        Raises:
            ValueError: If it is not in the vocabulary.

        """
        if token not in self._id_of:
            raise ValueError(f"the vocabulary must contain the token, got {token!r}")
        return self._id_of[token]

    def encode(self, text: str) -> list[int]:
        """Encode text as ids, one per character, without `BOS` and `EOS`.

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
        """Decode ids.

        `PAD`, `BOS`, `EOS` and `MASK` are omitted; `UNKNOWN` becomes the replacement character
        U+FFFD.

        Raises:
            ValueError: If an id is outside the vocabulary.

        """
        return "".join(self.decode_stream(ids))

    def decode_stream(self, ids: Iterable[int]) -> Iterator[str]:
        """Decode ids one by one; the yielded strings, joined, equal the result of `decode`."""
        for index in ids:
            _require_id(index, self.vocab_size)
            if index >= len(self.special_tokens):
                yield self._tokens[index]
            elif self._tokens[index] == UNKNOWN:
                yield "\N{REPLACEMENT CHARACTER}"

    def pieces(self, text: str) -> list[str]:
        """Split a text at its token boundaries, for display."""
        return list(text)

    def to_dict(self) -> dict[str, Any]:
        """Return a description that JSON can store and `from_dict` can read."""
        return {
            "kind": "character",
            "characters": "".join(self.characters),
            "special_tokens": list(self.special_tokens),
        }

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "CharacterTokenizer":
        """Make the tokenizer that `to_dict` described.

        Raises:
            ValueError: If the record is not from such a tokenizer.

        """
        _require_record(record, "character", {"characters", "special_tokens"})
        return cls(record["characters"], record["special_tokens"])


class _ByteLevelTokenizer(ABC):
    """Base of the tokenizers whose tokens are byte strings. Special tokens have the last ids."""

    def __init__(self, pieces: Sequence[bytes], special_tokens: Sequence[str]) -> None:
        # No UNKNOWN: every text consists of bytes, so nothing is unknown.
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
        """Return the id of a special token, or of a text that is one token.

        Raises:
            ValueError: If it is not in the vocabulary.

        """
        index = self._id_of.get(token, self._id_of.get(_utf_8(token)))
        if index is None:
            raise ValueError(f"the vocabulary must contain the token, got {token!r}")
        return index

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Encode text as ids, without `BOS` and `EOS`, which the caller adds."""

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids.

        Special tokens are omitted. Ids that `encode` did not produce, such as those a model
        generates, may not form whole characters; invalid UTF-8 becomes the replacement
        character U+FFFD.

        Raises:
            ValueError: If an id is outside the vocabulary.

        """
        ids = list(ids)
        for index in set(ids):
            _require_id(index, self.vocab_size)
        return b"".join(map(self._bytes_of.__getitem__, ids)).decode("utf-8", errors="replace")

    def decode_stream(self, ids: Iterable[int]) -> Iterator[str]:
        """Decode ids one by one; the yielded strings, joined, equal the result of `decode`.

        The first bytes of a character are buffered until its last byte arrives, so U+FFFD is
        never yielded for a character that is merely incomplete.
        """
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for index in ids:
            if text := decoder.decode(self.to_bytes(index)):
                yield text
        if text := decoder.decode(b"", final=True):
            yield text

    def pieces(self, text: str) -> list[str]:
        r"""Split a text at its token boundaries, for display.

        A token that is part of a character is shown as its bytes, `\xf0\x9f`.
        """
        ids = self.encode(text)
        return [self.to_bytes(i).decode("utf-8", errors="backslashreplace") for i in ids]

    def to_bytes(self, index: int) -> bytes:
        """Return the bytes of a token, which may be a part of a character; none of a special one.

        Raises:
            ValueError: If there is no such token.

        """
        _require_id(index, self.vocab_size)
        return self._bytes_of[index]


class ByteTokenizer(_ByteLevelTokenizer):
    """One token per byte of UTF-8. A byte's id is its value; special tokens have the ids from 256.

    It can encode any text in any script, and needs no training. English takes one byte per
    character, most other scripts two or three.

    Source:
        Xue et al. 2022, ByT5: Towards a Token-Free Future with Pre-trained Byte-to-Byte Models,
        https://arxiv.org/abs/2105.13626

    """

    def __init__(self, special_tokens: Sequence[str] = ()) -> None:
        super().__init__([bytes([value]) for value in range(256)], special_tokens)

    def encode(self, text: str) -> list[int]:
        """Encode text as ids, one per byte, without `BOS` and `EOS`.

        Raises:
            ValueError: If the text has half of a surrogate pair, which UTF-8 cannot encode.

        """
        return list(_utf_8(text))

    def to_dict(self) -> dict[str, Any]:
        """Return a description that JSON can store and `from_dict` can read."""
        return {"kind": "byte", "special_tokens": list(self.special_tokens)}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "ByteTokenizer":
        """Make the tokenizer that `to_dict` described.

        Raises:
            ValueError: If the record is not from such a tokenizer.

        """
        _require_record(record, "byte", {"special_tokens"})
        return cls(record["special_tokens"])


class BytePairTokenizer(_ByteLevelTokenizer):
    """Byte-level byte-pair encoding: frequent sequences of bytes are merged into one token.

    A frequent word becomes one token, a rare one several, and any text can be encoded, since
    every byte is a token too. Text is first split into words, each with the space before it, and
    no token crosses such a boundary.

    Merging is done by the `tokenizers` library. Tokens and merges are written as in GPT-2's
    files, with one printable character per byte: `Ġ` is the space.

    Args:
        pieces: The tokens, by id; each of the 256 bytes is among them.
        merges: Pairs of tokens that are merged into one, by descending priority.
        special_tokens: Which of `PAD`, `BOS`, `EOS`, `MASK` to include; they have the last ids.

    Raises:
        ValueError: If a byte is no token, a token or a merge is repeated, a token is not written
            in GPT-2's characters, or a merge is not of two tokens into a third.

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
                raise ValueError(f"every byte must have a token, got none for byte {value}")
        for piece in pieces:
            if not piece or not _BYTE_OF.keys() >= set(piece):
                raise ValueError(f"a token must be in GPT-2's byte characters, got {piece!r}")
        for merge in merges:
            if len(merge) != 2 or not known >= {*merge, "".join(merge)}:
                raise ValueError(f"a merge must join two tokens to a third, got {list(merge)!r}")
        self._pieces = list(pieces)
        self._merges = [(left, right) for left, right in merges]
        _require_listed_once([" ".join(merge) for merge in self._merges])
        super().__init__([_bytes_of(piece) for piece in pieces], special_tokens)
        self._model = _byte_pair_model({piece: i for i, piece in enumerate(pieces)}, self._merges)

    @classmethod
    def fit(
        cls, text: str | Iterable[str], vocab_size: int, special_tokens: Sequence[str] = ()
    ) -> "BytePairTokenizer":
        """Learn merges: join the most frequent pair of tokens until the vocabulary is full.

        Of pairs that are equally frequent, the one with the smallest ids is joined first. The bytes
        have the first ids, in GPT-2's order: first those that print, then the others. So the same
        text gives the same tokens. A text too short for so many merges gives fewer.

        Args:
            text: A string, or several.
            vocab_size: Number of tokens, the 256 bytes and special tokens included.
            special_tokens: Which of `PAD`, `BOS`, `EOS`, `MASK` to include.

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

        GPT-2 has one special token, `<|endoftext|>`, which separates documents. It becomes `EOS`;
        start a prompt with `EOS` to mark the beginning of a document.

        Args:
            vocab_path: `vocab.json` or `encoder.json`, the id of each token.
            merges_path: `merges.txt` or `vocab.bpe`, one merge per line.

        Raises:
            ValueError: If a file is missing or invalid. Names the file and, where possible, the
                line.

        """
        vocab = _read_vocab(vocab_path)
        merges = _read_merges(merges_path, vocab)
        produced = _BYTE_OF.keys() | {left + right for left, right in merges}
        pieces = [piece for piece in vocab if piece in produced]
        special_tokens = [token for token in vocab if token not in produced]
        if [*pieces, *special_tokens] != vocab:
            raise ValueError(
                f"special tokens, which no merge in {merges_path} makes, must have the last ids, "
                f"got {vocab.index(special_tokens[0])} for {special_tokens[0]!r} in {vocab_path}"
            )
        try:
            return cls(pieces, merges, [EOS if t == "<|endoftext|>" else t for t in special_tokens])
        except ValueError as error:
            raise ValueError(f"{error} in {vocab_path}") from None

    def encode(self, text: str) -> list[int]:
        """Encode text as ids, without `BOS` and `EOS`, which the caller adds.

        Raises:
            ValueError: If the text has half of a surrogate pair, which UTF-8 cannot encode.

        """
        _utf_8(text)
        return self._model.encode(text, add_special_tokens=False).ids

    def to_dict(self) -> dict[str, Any]:
        """Return a description that JSON can store and `from_dict` can read."""
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
            ValueError: If the record is not from such a tokenizer.

        """
        _require_record(record, "byte-pair", {"pieces", "merges", "special_tokens"})
        return cls(record["pieces"], record["merges"], record["special_tokens"])


class PublishedTokenizer:
    """The tokenizer that a published model was trained with, as its `tokenizer.json` describes it.

    Built by the `tokenizers` library from the file alone: how text is split, which tokens there
    are and which of them are special differ from model to model.

    Args:
        description: Contents of `tokenizer.json`.

    Raises:
        ValueError: If it describes no tokenizer.

    """

    def __init__(self, description: str) -> None:
        # Slow to import, so imported only here.
        import tokenizers

        try:
            self._model: Any = tokenizers.Tokenizer.from_str(description)
        except Exception as error:  # that is all the library raises
            raise ValueError(f"tokenizer.json must describe a tokenizer, got {error}") from None
        self._model.encode_special_tokens = True  # `<eos>` in a text is text
        self._model.no_padding()
        self._model.no_truncation()
        added = self._model.get_added_tokens_decoder()
        self.special_tokens = tuple(added[i].content for i in sorted(added) if added[i].special)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included; the model may have room for more."""
        return max(self._model.get_vocab().values()) + 1

    @property
    def prompt_start(self) -> list[int]:
        """Ids that the model expects before a text, such as a start token; often none."""
        return self._model.encode("", add_special_tokens=True).ids

    def id_of(self, token: str) -> int:
        """Return the id of a special token, or of a text that is one token.

        Raises:
            ValueError: If it is not in the vocabulary.

        """
        if token in self.special_tokens:
            return self._model.token_to_id(token)
        ids = self.encode(token)
        if len(ids) != 1:
            raise ValueError(f"the vocabulary must contain the token, got {token!r}")
        return ids[0]

    def encode(self, text: str) -> list[int]:
        """Encode text as ids, without `prompt_start`.

        Raises:
            ValueError: If the text has half of a surrogate pair, which UTF-8 cannot encode.

        """
        _utf_8(text)
        return self._model.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids; special tokens are omitted.

        Raises:
            ValueError: If an id is outside the vocabulary.

        """
        ids = list(ids)
        for index in ids:
            _require_id(index, self.vocab_size)
        return self._model.decode(ids, skip_special_tokens=True)

    def decode_stream(self, ids: Iterable[int]) -> Iterator[str]:
        """Decode ids one by one; the yielded strings, joined, equal the result of `decode`."""
        from tokenizers.decoders import DecodeStream

        stream, so_far, yielded = DecodeStream(skip_special_tokens=True), [], ""
        for index in ids:
            _require_id(index, self.vocab_size)
            so_far.append(index)
            if text := stream.step(self._model, index):
                yielded += text
                yield text
        if text := self.decode(so_far)[len(yielded) :]:
            yield text

    def pieces(self, text: str) -> list[str]:
        """Split a text at its token boundaries, for display.

        Tokens that are parts of one character are each shown as that character.
        """
        _utf_8(text)
        offsets = self._model.encode(text, add_special_tokens=False).offsets
        return [text[start:end] for start, end in offsets]

    def to_dict(self) -> dict[str, Any]:
        """Return a description that JSON can store and `from_dict` can read."""
        return {"kind": "published", "description": self._model.to_str()}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "PublishedTokenizer":
        """Make the tokenizer that `to_dict` described.

        Raises:
            ValueError: If the record is not from such a tokenizer.

        """
        _require_record(record, "published", {"description"})
        return cls(record["description"])


def from_dict(record: dict[str, Any]) -> Tokenizer:
    """Make the tokenizer that its `to_dict` described, of whichever kind.

    Raises:
        ValueError: If the record describes no tokenizer.

    """
    kinds = {
        "character": CharacterTokenizer,
        "byte": ByteTokenizer,
        "byte-pair": BytePairTokenizer,
        "published": PublishedTokenizer,
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
    # Slow to import, so imported only here.
    import tokenizers
    from tokenizers import models, pre_tokenizers

    model = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return model


# --- GPT-2's files -------------------------------------------------------------------------


def _read_vocab(path: str | Path) -> list[str]:
    """Return the tokens, ordered by id."""
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
                f"ids must be integers from 0 to {len(id_of) - 1}, one for each of {len(id_of)} "
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
                f"a merge must be two tokens separated by a space, got {line!r} "
                f"in line {number} of {path}"
            )
        for piece in (*parts, "".join(parts)):
            if piece not in known:
                raise ValueError(
                    f"both parts of a merge and their result must be tokens, got {piece!r} "
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
            f"a tokenizer file must be UTF-8, got an invalid byte at offset {error.start} of {path}"
        ) from None
    except OSError as error:
        raise ValueError(
            f"a tokenizer file must be readable, got {path}: {error.strerror}"
        ) from None


# --- validation ----------------------------------------------------------------------------


def _utf_8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            "a text must be valid Unicode, got half of a surrogate pair "
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
            f"a {kind} tokenizer must have the fields {sorted(expected)}, got {sorted(record)}"
        )
