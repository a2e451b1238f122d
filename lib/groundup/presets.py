"""Presets: configurations by name.

A preset is a row of a table. Fields that it lacks, such as the size of the vocabulary, must be
passed; fields that it has can be overridden.
"""

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from groundup.core.config import (
    AnyConfig,
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    EncoderOnlyConfig,
    require_choice,
)
from groundup.core.models import AnyModel, DecoderOnly, EncoderDecoder, EncoderOnly

Config = TypeVar("Config", bound=AnyConfig)

_GPT2 = {
    "vocab_size": 50257,
    "max_len": 1024,
    "positions": "learned",
    "norm_order": "pre",
    "activation": "gelu_tanh",
    "dropout": 0.1,
    "tie_embeddings": True,
}

DECODER_ONLY: dict[str, dict[str, Any]] = {
    "tiny": {
        "d_model": 128,
        "num_layers": 3,
        "num_heads": 4,
        "d_ff": 512,
        "positions": "rotary",
        "norm_order": "pre",
        "activation": "gelu",
        "dropout": 0.0,
        "tie_embeddings": True,
    },
    "modern": {
        "d_model": 128,
        "num_layers": 4,
        "num_heads": 4,
        "d_ff": 512,
        "positions": "rotary",
        "norm": "rms",
        "norm_order": "pre",
        "qk_norm": True,
        "activation": "squared_relu",
        "bias": False,
        "dropout": 0.0,
        "tie_embeddings": False,
        "zero_init_outputs": True,
    },
    "llama": {
        "d_model": 128,
        "num_layers": 3,
        "num_heads": 4,
        "num_kv_heads": 2,
        "d_ff": 344,
        "positions": "rotary",
        "norm": "rms",
        "norm_order": "pre",
        "activation": "swiglu",
        "bias": False,
        "dropout": 0.0,
        "tie_embeddings": False,
    },
    "gpt2_small": _GPT2 | {"d_model": 768, "num_layers": 12, "num_heads": 12, "d_ff": 3072},
    "gpt2_xl": _GPT2 | {"d_model": 1600, "num_layers": 48, "num_heads": 25, "d_ff": 6400},
}
"""Models that continue a sequence.

`tiny` trains to a useful model within minutes on two CPU cores.

`modern` has 0.8 million parameters in its blocks, made of the parts that learn fastest: rotary
position embeddings, RMSNorm, normalised queries and keys, squared ReLU, no biases, and sub-layers
whose initial output is zero. Meant for `optimizer="muon"`. Source: Jordan et al. 2024,
modded-nanogpt, https://github.com/KellerJordan/modded-nanogpt

`llama` has the parts of Llama at the size of `tiny`, with two query heads per key-value head.
Source: Touvron et al. 2023, LLaMA, section 2.2, https://arxiv.org/abs/2302.13971 (rotary, RMSNorm,
SwiGLU with two thirds of the width); Touvron et al. 2023, Llama 2, section 2.2,
https://arxiv.org/abs/2307.09288 (grouped queries)

`gpt2_small` and `gpt2_xl` are the smallest GPT-2, with 124 million parameters, and the largest,
with 1.5 billion. Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners,
section 2.3 and table 2
"""

ENCODER_ONLY: dict[str, dict[str, Any]] = {
    "tiny": {
        "d_model": 64,
        "num_layers": 2,
        "num_heads": 4,
        "d_ff": 256,
        "positions": "learned",
        "norm_order": "pre",
        "activation": "gelu",
        "dropout": 0.0,
        "tie_embeddings": False,
    },
    "bert_base": {
        "vocab_size": 30522,
        "max_len": 512,
        "d_model": 768,
        "num_layers": 12,
        "num_heads": 12,
        "d_ff": 3072,
        "positions": "learned",
        "norm_eps": 1e-12,
        "norm_order": "post",
        "activation": "gelu",
        "dropout": 0.1,
        "tie_embeddings": True,
    },
}
"""Models that read a sequence bidirectionally.

`tiny` trains to a useful model within minutes on two CPU cores.

`bert_base` has the sizes and choices of BERT base, without its segment embeddings and its output
layer. BERT also applies dropout to attention weights: add `attention_dropout=0.1`.
Source: Devlin et al. 2019, BERT, section 3 and appendix A.2, https://arxiv.org/abs/1810.04805
"""

ENCODER_DECODER: dict[str, dict[str, Any]] = {
    "tiny": {
        "d_model": 64,
        "num_encoder_layers": 2,
        "num_layers": 2,
        "num_heads": 4,
        "d_ff": 256,
        "positions": "sinusoidal",
        "norm_order": "pre",
        "activation": "relu",
        "dropout": 0.0,
        "tie_embeddings": True,
    },
    "paper_base": {
        "d_model": 512,
        "num_encoder_layers": 6,
        "num_layers": 6,
        "num_heads": 8,
        "d_ff": 2048,
        "positions": "sinusoidal",
        "norm_order": "post",
        "activation": "relu",
        "dropout": 0.1,
        "tie_embeddings": True,
    },
}
"""Models that read one sequence and generate another.

`tiny` trains to a useful model within minutes on two CPU cores.

`paper_base` is the base model of the paper; if both vocabularies have the same size, they share an
embedding table. Source: Vaswani et al. 2017, Attention Is All You Need, table 3 (base) and section
3.4 (shared table), https://arxiv.org/abs/1706.03762
"""


MODELS: dict[type, Callable[..., AnyModel]] = {
    DecoderOnlyConfig: DecoderOnly,
    EncoderOnlyConfig: EncoderOnly,
    EncoderDecoderConfig: EncoderDecoder,
}
"""The class of the model that each configuration describes."""


def decoder_only(name: str, **fields: Any) -> DecoderOnlyConfig:
    """Configure a model that continues a sequence, by a name of `DECODER_ONLY`.

    Args:
        name: Of the preset.
        **fields: Fields that the preset lacks, and those to override.

    Raises:
        ValueError: If there is no such preset or field, or if a field is missing.

    """
    return from_dict(DecoderOnlyConfig, _row(DECODER_ONLY, name) | fields)


def encoder_only(name: str, **fields: Any) -> EncoderOnlyConfig:
    """Configure a bidirectional model by a name of `ENCODER_ONLY`; see `decoder_only`."""
    return from_dict(EncoderOnlyConfig, _row(ENCODER_ONLY, name) | fields)


def encoder_decoder(name: str, **fields: Any) -> EncoderDecoderConfig:
    """Configure a model that translates, by a name of `ENCODER_DECODER`; see `decoder_only`."""
    row = _row(ENCODER_DECODER, name)
    if name == "paper_base":
        is_one_size = fields.get("source_vocab_size") == fields.get("vocab_size")
        row = row | {"tie_source_embeddings": is_one_size}
    return from_dict(EncoderDecoderConfig, row | fields)


def _row(table: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    require_choice(table, preset=name)
    return table[name]


def from_dict(kind: type[Config], values: dict[str, Any]) -> Config:
    """Build a configuration from a dictionary, such as one read from a file.

    It is the inverse of `dataclasses.asdict`, also where a file has turned a tuple into a list.

    Args:
        kind: The class of the configuration.
        values: Its fields by name; those that have a default may be omitted.

    Raises:
        ValueError: If a field is unknown, missing or invalid.

    """
    values = {name: tuple(v) if type(v) is list else v for name, v in values.items()}
    unknown = sorted(values.keys() - {field.name for field in fields(kind)})
    if unknown:
        known = ", ".join(field.name for field in fields(kind))
        raise ValueError(f"{kind.__name__} has no field {', '.join(unknown)}; it has {known}")
    required = {field.name for field in fields(kind) if field.default is MISSING}
    missing = sorted(required - values.keys())
    if missing:
        raise ValueError(f"{kind.__name__} needs the field {', '.join(missing)}")
    for field in fields(kind):
        rule, holds = _RULES.get(field.type, ("", lambda value: True))
        value = values.get(field.name, field.default)
        if not holds(value):
            raise ValueError(f"{field.name} must be {rule}, got {field.name}={value!r}")
    return kind(**values)


_RULES: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    int | None: ("an integer or None", lambda value: value is None or type(value) is int),
    float: ("a number", lambda value: type(value) in (int, float)),
    tuple[float, ...] | None: (
        "numbers or None",
        lambda value: (
            value is None or (type(value) is tuple and set(map(type, value)) <= {int, float})
        ),
    ),
    bool: ("True or False", lambda value: type(value) is bool),
}
"""Values that a field of each type may have; the configuration itself checks sizes and names."""
