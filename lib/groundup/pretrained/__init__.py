"""Trained models that come with the course, each with a record of how it came to be.

    model, tokenizer = load("reader")

`reader` continues Python: it learned from the source of the standard library, code and docstrings,
in pieces of words. Three layers of four heads were enough for a head that looks at the token
before, and one in the layer above that looks for what came next the last time.

A model is a folder here: `config.json` and `model.safetensors`, as `groundup train` wrote them, so
that `groundup evaluate` and `groundup generate` read it too, and `record.json`, which
`python -m groundup.pretrained` adds. Nothing in them can run when it is read.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from groundup import checkpoint
from groundup.models import DecoderOnly
from groundup.tokenizers import Tokenizer

FOLDER = Path(__file__).parent
FILES = ("config.json", "model.safetensors")
"""What a model is made of; a record lists the SHA-256 of each."""


def names() -> list[str]:
    """List the models that there are."""
    return sorted(path.parent.name for path in FOLDER.glob("*/record.json"))


def load(name: str) -> tuple[DecoderOnly, Tokenizer]:
    """Give a trained model, ready to read and to write, and the tokenizer it was trained with.

    Args:
        name: One of `names()`.

    Returns:
        The model, in float32, on the processor and in evaluation mode; and its tokenizer.

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
    assert isinstance(saved.model, DecoderOnly)
    return saved.model, saved.tokenizers["text"]


def record(name: str) -> dict[str, Any]:
    """Tell how a model came to be.

    Args:
        name: One of `names()`.

    Returns:
        `command`, which trains the model again; the `data`, by name, Python version and SHA-256;
        `seed`, `steps` and `parameters`; the `loss` on the part `held_out` and on the beginning of
        the part to learn from (`train`), each in nats per token and in bits per byte; the
        `hardware`, the `seconds` of training and the `date` of the record; and the `sha256` of each
        file.

    Raises:
        ValueError: If there is no such model.

    """
    if name not in names():
        raise ValueError(f"a trained model must be one of {', '.join(names())}, got {name!r}")
    return json.loads((FOLDER / name / "record.json").read_text(encoding="utf-8"))
