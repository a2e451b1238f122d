"""Reads and writes the rotary scaling of published models, for texts longer than in training.

A model trained with rotary positions on short texts can process longer ones if some of its pairs
rotate more slowly. Hugging Face's `config.json` holds a recipe's name, `rope_type`, and parameters;
our configuration holds the result: the frequency of each pair, and a factor for queries and keys.

Source:
    Their recipes,
    https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_rope_utils.py

"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from groundup.core.config import DecoderOnlyConfig, require, require_choice
from groundup.core.positions import pair_frequencies
from groundup.variants.positions import by_parts, yarn_frequencies

_FIELDS = {
    "default": "",
    "dynamic": "factor",
    "linear": "factor",
    "llama3": "factor low_freq_factor high_freq_factor original_max_position_embeddings",
    "yarn": "factor attention_factor beta_fast beta_slow truncate original_max_position_embeddings",
    "longrope": "short_factor long_factor attention_factor factor original_max_position_embeddings",
}
"""What each recipe that we read may have besides its base."""
_NEEDED = {"llama3": "factor low_freq_factor high_freq_factor"} | {
    "longrope": "short_factor long_factor attention_factor",
    **dict.fromkeys(("dynamic", "linear", "yarn"), "factor"),
}


def from_hugging_face_rotary(fields: Mapping[str, Any], d_head: int) -> dict[str, Any]:
    """Convert their rotary positions to the equivalent fields of our configuration.

    `linear` divides all frequencies by a factor, `llama3` and `yarn` only those of slow pairs,
    and `longrope` each by its own; YaRN also sharpens attention. `dynamic` changes nothing up to
    `max_position_embeddings`, and our models end there. For YaRN, `max_len` is the length
    in training times the factor, if that is more.

    Args:
        fields: Contents of their `config.json`. Versions before 5 have `rope_theta` and
            `rope_scaling`, later ones `rope_parameters`.
        d_head: Width of a head.

    Returns:
        `max_len`, `rotary_base`, `rotary_frequencies` and `rotary_scale`.

    Raises:
        ValueError: If it is another recipe, if a number is missing, unknown or too small, if not
            all features are rotated, or if `longrope` has other factors for short texts.

    Source:
        `linear`: Chen et al. 2023, Extending Context Window of Large Language Models via
        Positional Interpolation, section 2.3, https://arxiv.org/abs/2306.15595; `yarn`: Peng et
        al. 2023, YaRN, section 3, https://arxiv.org/abs/2309.00071; `longrope`: Ding et al. 2024,
        LongRoPE, section 3, https://arxiv.org/abs/2402.13753; `llama3`, `dynamic`: their code

    """
    name = "rope_scaling" if fields.get("rope_scaling") else "rope_parameters"
    rope = {
        key: float(value) if type(value) is int else value
        for key, value in (fields.get(name) or {}).items()
        if value is not None
    }
    kind, base, factor = _checked(name, rope, fields)
    max_len = fields["max_position_embeddings"]
    trained_len = rope.get("original_max_position_embeddings", max_len)
    trained_len = int(fields.get("original_max_position_embeddings") or trained_len)
    usual, scale = pair_frequencies(d_head, base), 1.0
    if kind in ("default", "dynamic"):
        frequencies = None
    elif kind == "linear":
        frequencies = usual / factor
    elif kind == "llama3":
        turns = (rope["low_freq_factor"], rope["high_freq_factor"])
        frequencies = by_parts(usual, factor, trained_len, *turns)
    elif kind == "yarn":
        turns = (rope.get("beta_slow") or 1.0, rope.get("beta_fast") or 32.0)
        truncate = bool(rope.get("truncate", True))
        frequencies = yarn_frequencies(d_head, base, factor, trained_len, *turns, truncate)
        scale = rope.get("attention_factor", 0.1 * math.log(factor) + 1)
        max_len = max(max_len, round(factor * trained_len))
    else:
        frequencies = usual / torch.tensor(rope["long_factor"], dtype=usual.dtype)
        scale = rope["attention_factor"]
    return {
        "max_len": max_len,
        "rotary_base": base,
        "rotary_frequencies": None if frequencies is None else tuple(frequencies.tolist()),
        "rotary_scale": scale,
    }


def to_hugging_face_rotary(config: DecoderOnlyConfig) -> dict[str, Any]:
    """Convert our rotary positions to theirs: the inverse of `from_hugging_face_rotary`.

    The recipe is `default`, or `longrope`, which has a factor for each pair and so can express any
    frequencies; the recipe that they came from is not kept.
    """
    theirs: dict[str, Any] = {"rope_theta": config.rotary_base}  # where versions before 5 look
    rope = {"rope_type": "default"}
    if config.rotary_frequencies is not None or config.rotary_scale != 1:
        usual = pair_frequencies(config.d_head, config.rotary_base).tolist()
        own = config.rotary_frequencies or usual
        factors = [frequency / of for frequency, of in zip(usual, own, strict=True)]
        rope = {
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "factor": 1.0,
            "attention_factor": float(config.rotary_scale),
            "original_max_position_embeddings": config.max_len,
        }
        theirs["rope_scaling"] = rope
    return theirs | {"rope_parameters": rope | {"rope_theta": config.rotary_base}}


def _checked(name: str, rope: Mapping[str, Any], fields: Mapping[str, Any]) -> tuple:
    """Return recipe, base and factor, if we can read them."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    require_choice(_FIELDS, rope_type=kind)
    rotated = rope.get("partial_rotary_factor", fields.get("partial_rotary_factor")) or 1
    rule = "partial_rotary_factor must be 1: all features of a head are rotated"
    require(rotated == 1, rule, partial_rotary_factor=rotated)
    known = {"rope_type", "type", "rope_theta", "partial_rotary_factor", *_FIELDS[kind].split()}
    for key, value in rope.items():
        require(key in known, f"{name} of rope_type={kind} must not have {key}", **{key: value})
    for key in _NEEDED.get(kind, "").split():
        require(key in rope, f"{name} of rope_type={kind} needs {key}", **{key: None})
    factor = rope.get("factor", 1.0)
    is_factor = isinstance(factor, float) and factor >= 1
    require(is_factor, f"factor in {name} must be a number of at least 1", factor=factor)
    if kind == "llama3":
        low, high = (rope[key] for key in ("low_freq_factor", "high_freq_factor"))
        rule = "low_freq_factor must be less than high_freq_factor"
        require(low < high, rule, low_freq_factor=low, high_freq_factor=high)
    if kind == "longrope":
        short, long = (rope[key] for key in ("short_factor", "long_factor"))
        rule = "short_factor must equal long_factor: our frequencies are the same for all lengths"
        require(short == long, rule, short_factor=short, long_factor=long)
    return kind, float(rope.get("rope_theta") or fields.get("rope_theta") or 10_000.0), factor
