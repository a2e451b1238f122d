"""Trained models that come with the course, each with a record of how it came to be.

    model, tokenizer = load("reader")
    model, tokenizer = load("llama")
    model, tokenizer = load("manual")
    model, tokenizers = load("dates")

`reader` continues Python: it learned from the source of the standard library, code and docstrings,
in pieces of words. Three layers of four heads were enough for a head that looks at the token
before, and one in the layer above that looks for what came next the last time.

`llama` learned from the same source and has the parts of Llama: RMSNorm, a gated feed-forward
network, two pairs of query heads that share keys and values, rotary positions, no biases. Its table
of tokens is tied to its output. It read five times as much, predicts better, and has the same two
heads. A run of 5,000 updates had hardly begun to copy; this one, of 12,000, does.

`manual` writes like the language reference of Python, in pieces of words: headings, rules and
examples of a language that does not exist. Its text is small. It has read every part of it five
times, and needs a third fewer bits for what it read than for what was held out. Settings were
compared by their loss on the part held out, so that this loss flatters it a little.

`dates` reads a date as people of 24 locales write it, character by character, and writes it in ISO
form: an encoder and a decoder of two layers each. It has one tokenizer for what it reads and
one for what it writes.

A model is a folder here: `config.json` and `model.safetensors`, as `groundup train` wrote them, so
that `groundup evaluate` and `groundup generate` read it too, and `record.json`, which
`python -m groundup.pretrained` adds. Nothing in them can run when it is read.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, Literal, overload

from groundup import checkpoint
from groundup.models import AnyModel, DecoderOnly, EncoderDecoder
from groundup.tokenizers import Tokenizer

FOLDER = Path(__file__).parent
FILES = ("config.json", "model.safetensors")
"""What a model is made of; a record lists the SHA-256 of each."""


def names() -> list[str]:
    """List the models that there are."""
    return sorted(path.parent.name for path in FOLDER.glob("*/record.json"))


@overload
def load(name: Literal["reader", "llama", "manual"]) -> tuple[DecoderOnly, Tokenizer]: ...
@overload
def load(name: Literal["dates"]) -> tuple[EncoderDecoder, dict[str, Tokenizer]]: ...
@overload
def load(name: str) -> tuple[AnyModel, Tokenizer | dict[str, Tokenizer]]: ...
def load(name: str) -> tuple[AnyModel, Tokenizer | dict[str, Tokenizer]]:
    """Give a trained model, ready to read and to write, and what it was trained to read with.

    Args:
        name: One of `names()`.

    Returns:
        The model, in float32, on the processor and in evaluation mode. With a model of one text its
        tokenizer; with an encoder-decoder two of them, under `source` and `target`, as `DatesTask`
        wants them.

    Raises:
        ValueError: If there is no such model, or if a file is not what it was after training.

    """
    made = record(name)["sha256"]
    for file in FILES:
        path = FOLDER / name / file
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != made[file]:
            raise ValueError(
                f"{file} of {name} must be what its record says it was after training, "
                f"got another content or none: {path}"
            )
    saved = checkpoint.load(FOLDER / name)
    if isinstance(saved.model, EncoderDecoder):
        return saved.model, saved.tokenizers
    return saved.model, saved.tokenizers["text"]


def record(name: str) -> dict[str, Any]:
    """Tell how a model came to be.

    Args:
        name: One of `names()`.

    Returns:
        `command`, which trains the model again; the `data`, by name, with the version of what it
        comes from, Python or Babel, and a text's SHA-256; `seed`, `steps` and `parameters`; the
        `loss` on the part `held_out` and on as much of the part to learn from (`train`), in nats
        per token, for a text also in bits per byte, for dates with the share of answers that are an
        `exact_match`; the `hardware`, the `seconds` of training and the `date` of the record; and
        the `sha256` of each file.

    Raises:
        ValueError: If there is no such model.

    """
    if name not in names():
        raise ValueError(f"a trained model must be one of {', '.join(names())}, got {name!r}")
    return json.loads((FOLDER / name / "record.json").read_text(encoding="utf-8"))
