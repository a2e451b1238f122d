"""Trained models that come with the course, each with a record of how it was trained.

    model, tokenizer = load("reader")
    model, tokenizer = load("llama")
    model, tokenizer = load("manual")
    model, tokenizers = load("dates")

`reader` continues Python code. It was trained on the source of the standard library, code and
docstrings, with a byte-pair tokenizer. Its three layers of four heads contain a previous-token head
and, in the next layer, an induction head.

`llama` was trained on the same source and has the parts of Llama: RMSNorm, a gated feed-forward
network, grouped-query attention, rotary position embeddings, no biases. Unlike Llama's, its
unembedding is tied. It was trained on five times as many tokens, predicts better, and has the same
two kinds of head. After 5,000 updates it had hardly begun to copy; after all 12,000 it does.

`manual` generates text in the style of the Python language reference: headings, rules and examples
of a language that does not exist. Its training text is small and was seen five times, and the model
needs a third fewer bits for it than for held-out text. Settings were chosen by the held-out loss,
which is therefore slightly optimistic.

`dates` translates dates, as people write them in 24 locales, into ISO form, character by character.
Its encoder and its decoder have two layers each, and a tokenizer each.

Each model is a folder here with `config.json` and `model.safetensors`, as `groundup train` wrote
them, so `groundup evaluate` and `groundup generate` can read it too. `record.json` was added by
`python -m groundup.pretrained`. Reading these files runs no code.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, Literal, overload

from groundup.core.models import AnyModel, DecoderOnly, EncoderDecoder
from groundup.data.tokenizers import Tokenizer
from groundup.files import checkpoint

FOLDER = Path(__file__).parent
FILES = ("config.json", "model.safetensors")
"""The files of a model; its record lists the SHA-256 of each."""


def names() -> list[str]:
    """List the available models."""
    return sorted(path.parent.name for path in FOLDER.glob("*/record.json"))


@overload
def load(name: Literal["reader", "llama", "manual"]) -> tuple[DecoderOnly, Tokenizer]: ...
@overload
def load(name: Literal["dates"]) -> tuple[EncoderDecoder, dict[str, Tokenizer]]: ...
@overload
def load(name: str) -> tuple[AnyModel, Tokenizer | dict[str, Tokenizer]]: ...
def load(name: str) -> tuple[AnyModel, Tokenizer | dict[str, Tokenizer]]:
    """Load a trained model and its tokenizer.

    Args:
        name: One of `names()`.

    Returns:
        The model, in float32, on the CPU and in evaluation mode; and its tokenizer or, for an
        encoder-decoder, a dictionary of two, `source` and `target`, as `DatesTask` expects.

    Raises:
        ValueError: If there is no such model, or if a file has changed since training.

    """
    made = record(name)["sha256"]
    for file in FILES:
        path = FOLDER / name / file
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != made[file]:
            raise ValueError(
                f"{file} of {name} must be what its record says it was after training, "
                f"got a different file or none: {path}"
            )
    saved = checkpoint.load(FOLDER / name)
    if isinstance(saved.model, EncoderDecoder):
        return saved.model, saved.tokenizers
    return saved.model, saved.tokenizers["text"]


def record(name: str) -> dict[str, Any]:
    """Return how a model was trained.

    Args:
        name: One of `names()`.

    Returns:
        `command`, which trains the model again; the `data`, by name, with the version of its
        source, Python or Babel, and the SHA-256 of a text; `seed`, `steps` and `parameters`; the
        `loss` on `held_out` data and on as much training data (`train`), in nats per token, for a
        text also in bits per byte, for dates with the fraction of outputs that are an
        `exact_match`; the `hardware`, the `seconds` of training and the `date` of the record; and
        the `sha256` of each file.

    Raises:
        ValueError: If there is no such model.

    """
    if name not in names():
        raise ValueError(f"a trained model must be one of {', '.join(names())}, got {name!r}")
    return json.loads((FOLDER / name / "record.json").read_text(encoding="utf-8"))
