"""Converts models between our layout and Hugging Face's: GPT-2, Llama and Llama's family.

The family is Mistral, Qwen2, Qwen3 and Gemma, and models that call themselves Llama in their
`config.json`, such as TinyLlama and SmolLM2. Names, axes and the order of features differ; the
numbers are the same, except for Gemma. `counterparts` lists which tensors correspond. This module
works on dictionaries: `checkpoint` reads and writes the files.

Source:
    Their model code, https://github.com/huggingface/transformers/tree/main/src/transformers/models
    in `gpt2`, `llama`, `mistral`, `qwen2`, `qwen3` and `gemma`

"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from groundup.core.config import DecoderOnlyConfig, require, require_choice, require_multiple
from groundup.core.positions import rotate
from groundup.files.rotary_scaling import from_hugging_face_rotary, to_hugging_face_rotary
from groundup.looking.accounting import parameter_shapes

_GPT2_ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "relu2": "squared_relu",
}
_LLAMA_ACTIVATIONS = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_pytorch_tanh": "geglu_tanh",
    "gelu_new": "geglu_tanh",
}
"""By their name; if two of theirs mean one of ours, the first is written."""
_LLAMA_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"num_key_value_heads": 32},
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128},
    "gemma": {
        "num_key_value_heads": 16,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    },
}
"""What a missing field means in each model of Llama's family."""


@dataclass(frozen=True, slots=True)
class Counterpart:
    """One of their tensors, and those of ours that it consists of."""

    theirs: str
    """Its name."""
    ours: tuple[str, ...]
    """Names of ours; several are concatenated in theirs along the last axis."""
    is_transposed: bool = False
    """Whether theirs has the shape `(inputs, outputs)`, while ours has `(outputs, inputs)`."""
    half_split_heads: int | None = None
    """Number of heads whose features they pair as `i, i + d_head / 2` and we as `2i, 2i + 1`."""


def counterparts(config: DecoderOnlyConfig) -> list[Counterpart]:
    """List which of their tensors correspond to which of ours.

    A model with learned positions becomes a GPT-2, one with rotary positions and a window a
    Mistral, one with normalised queries and keys a Qwen3, one with rotary positions only a Llama.

    Raises:
        ValueError: If none of them supports the configuration.

    """
    _require_expressible(config)
    entries = _gpt2(config) if _is_gpt2(config) else _llama(config)
    shapes = parameter_shapes(config)
    return [entry for entry in entries if entry.ours[0] in shapes]


def from_hugging_face_weights(
    tensors: Mapping[str, Tensor], config: DecoderOnlyConfig
) -> dict[str, Tensor]:
    """Convert their tensors to ours.

    Names may lack the prefix `transformer.` or `model.`, as they do in a model without its output
    layer. Tensors that are not learned, such as masks, are dropped. A Qwen2 has biases for
    queries, keys and values only: our other biases become zero, which gives the same logits.

    Args:
        tensors: By their names. A Gemma's go through `gemma_as_llama` first.
        config: From `from_hugging_face_config`.

    Returns:
        Tensors by our names in the layout of `DecoderOnly`, shared ones once.

    Raises:
        ValueError: If a tensor is missing or unknown, if its shape does not match the
            configuration, or if tied tensors differ.

    """
    theirs = _cleaned(tensors, config)
    entries, shapes = counterparts(config), parameter_shapes(config)
    theirs |= _zero_biases(theirs, entries, shapes)
    for name in sorted({entry.theirs for entry in entries} ^ theirs.keys()):
        problem = "has an unknown" if name in theirs else "lacks"
        raise ValueError(f"weights must be those of the configuration, which {problem} {name}")
    ours = {}
    for entry in entries:
        tensor, expected = theirs[entry.theirs], _their_shape(entry, shapes)
        if tensor.shape != expected:
            raise ValueError(
                "weights must have the shapes of the configuration, got "
                f"{entry.theirs} {tuple(tensor.shape)} instead of {tuple(expected)}"
            )
        for name, part in zip(entry.ours, tensor.chunk(len(entry.ours), dim=-1), strict=True):
            part = part.T if entry.is_transposed else part
            if entry.half_split_heads is not None:
                part = permute_projection(part, entry.half_split_heads, to="interleaved")
            ours[name] = part
    return ours


def to_hugging_face_weights(
    tensors: Mapping[str, Tensor], config: DecoderOnlyConfig
) -> dict[str, Tensor]:
    """Convert our tensors to theirs: the exact inverse of `from_hugging_face_weights`.

    Args:
        tensors: By our names, as the model's `named_parameters` gives them.
        config: Of the model.

    Raises:
        ValueError: If neither GPT-2 nor one of Llama's family supports the configuration.

    """
    theirs = {}
    for entry in counterparts(config):
        parts = [tensors[name] for name in entry.ours]
        if entry.half_split_heads is not None:
            heads = entry.half_split_heads
            parts = [permute_projection(part, heads, to="half_split") for part in parts]
        if entry.is_transposed:
            parts = [part.T for part in parts]
        theirs[entry.theirs] = torch.cat(parts, dim=-1)
    return theirs


def gemma_as_llama(
    tensors: Mapping[str, Tensor], dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Rewrite the tensors of a Gemma so that a Llama computes the same.

    A Gemma scales up token vectors by the root of `d_model`, but not the unembedding matrix that
    is tied to them, and it stores each gain minus 1. Here both matrices are scaled up, and the
    gain before the second one is scaled down.

    Args:
        tensors: By their names.
        dtype: What to compute in; by default that of each tensor. Half precision rounds.

    """
    table = next(t for name, t in tensors.items() if name.endswith("embed_tokens.weight"))
    scale = math.sqrt(table.shape[-1])
    theirs = {name: tensor.to(dtype or tensor.dtype) for name, tensor in tensors.items()}
    for name, tensor in theirs.items():
        if name.endswith("norm.weight"):
            is_last = name in ("norm.weight", "model.norm.weight")
            theirs[name] = (tensor + 1) / (scale if is_last else 1)
        if name.endswith(("embed_tokens.weight", "lm_head.weight")):
            theirs[name] = tensor * scale
    return theirs


def from_hugging_face_config(fields: Mapping[str, Any]) -> DecoderOnlyConfig:
    """Convert their `config.json` to our configuration.

    GPT-2 has separate dropout rates for embeddings and for the outputs of sub-layers; we use the
    rate of the outputs for both. Stretched rotary positions are read by `rotary_scaling`.

    Args:
        fields: Contents of the file. A missing field has their default.

    Raises:
        ValueError: If it describes another kind of model, lacks a size, or needs something that
            our model does not have.

    """
    kind = fields.get("model_type")
    if kind == "gpt2":
        return _from_gpt2_config(fields)
    if kind in _LLAMA_DEFAULTS:
        return _from_llama_config(_LLAMA_DEFAULTS[kind] | dict(fields))
    kinds = ", ".join(("gpt2", *_LLAMA_DEFAULTS))
    raise ValueError(f"model_type must be one of {kinds}, got model_type={kind}")


def to_hugging_face_config(config: DecoderOnlyConfig) -> dict[str, Any]:
    """Convert our configuration to their `config.json`.

    Llama and its family apply dropout to attention weights only, so `dropout`, which matters only
    in training, is omitted there.

    Raises:
        ValueError: If neither GPT-2 nor one of Llama's family supports the configuration.

    """
    _require_expressible(config)
    shared = {
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": None,  # their defaults belong to one particular vocabulary
        "eos_token_id": None,
    }
    if _is_gpt2(config):
        return shared | {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "n_positions": config.max_len,
            "n_embd": config.d_model,
            "n_layer": config.num_layers,
            "n_head": config.num_heads,
            "n_inner": config.d_ff,
            "activation_function": _key_of(config.activation, _GPT2_ACTIVATIONS),
            "layer_norm_epsilon": config.norm_eps,
            "embd_pdrop": config.dropout,
            "resid_pdrop": config.dropout,
            "attn_pdrop": config.attention_dropout,
        }
    kind = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    if config.window is not None:
        kind = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
        kind["sliding_window"] = config.window
    if config.qk_norm:
        kind = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    return {
        **shared,
        **kind,
        "max_position_embeddings": config.max_len,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.d_head,
        "intermediate_size": config.d_ff,
        "hidden_act": _key_of(config.activation, _LLAMA_ACTIVATIONS),
        "rms_norm_eps": config.norm_eps,
        **to_hugging_face_rotary(config),
        "attention_bias": config.bias,
        "attention_dropout": config.attention_dropout,
        "mlp_bias": config.bias,
    }


# --- rotary layouts ------------------------------------------------------------------------

Layout = Literal["interleaved", "half_split"]
"""Which features of a head are rotated together: `2i` and `2i + 1`, or `i` and `i + d_head / 2`."""


def rotate_half_split(
    x: Float[Tensor, "*batch length d_head"],
    positions: Int[Tensor, "*#batch length"],
    base: float = 10_000.0,
) -> Float[Tensor, "*batch length d_head"]:
    """Rotate pairs of features `i, i + d_head / 2`, as many checkpoints do; see `rotate`.

    Raises:
        ValueError: If `d_head` is odd.

    """
    return to_half_split(rotate(to_interleaved(x), positions, base))


def to_half_split(x: Float[Tensor, "*batch d_head"]) -> Float[Tensor, "*batch d_head"]:
    """Reorder the features of a head so that pairs of neighbours become pairs `i, i + d_head / 2`.

    From `a0 b0 a1 b1` to `a0 a1 b0 b1`. Rotation in the matching layout then gives the same
    numbers in the new order.

    Raises:
        ValueError: If `d_head` is odd.

    """
    _require_pairs(x.shape[-1])
    return x.unflatten(-1, (-1, 2)).transpose(-2, -1).flatten(-2)


def to_interleaved(x: Float[Tensor, "*batch d_head"]) -> Float[Tensor, "*batch d_head"]:
    """Undo `to_half_split`.

    Raises:
        ValueError: If `d_head` is odd.

    """
    _require_pairs(x.shape[-1])
    return x.unflatten(-1, (2, -1)).transpose(-2, -1).flatten(-2)


def _require_pairs(d_head: int) -> None:
    require(d_head % 2 == 0, "d_head must be even to be rotated in pairs", d_head=d_head)


def permute_projection(
    weight: Float[Tensor, "out *rest"], num_heads: int, to: Layout
) -> Float[Tensor, "out *rest"]:
    """Reorder the rows of a query or key projection from one rotary layout to the other.

    If both the query and the key projections are reordered and the model rotates in the other
    layout, the scores stay the same, because a dot product does not depend on the order of its
    terms. The value and output projections do not change.

    Args:
        weight: Weight or bias of the projection, as `nn.Linear` stores it: outputs first, head
            by head.
        num_heads: Number of heads among the outputs; for keys the number of key heads.
        to: The target layout. The weight must be in the other one.

    Returns:
        The same rows in another order.

    Raises:
        ValueError: If the outputs do not divide into heads of even width, or if `to` is not a
            layout.

    """
    if to not in get_args(Layout):
        raise ValueError(f'layout must be "interleaved" or "half_split", got layout="{to}"')
    fits = num_heads >= 1 and weight.shape[0] % (2 * num_heads) == 0
    rule = "out must be a multiple of twice num_heads"
    require(fits, rule, out=weight.shape[0], num_heads=num_heads)
    reorder = to_half_split if to == "half_split" else to_interleaved
    heads = weight.unflatten(0, (num_heads, -1))  # (heads, d_head, *rest)
    return reorder(heads.movedim(1, -1)).movedim(-1, 1).flatten(0, 1)


# --- tensors -------------------------------------------------------------------------------


def _gpt2(config: DecoderOnlyConfig) -> Iterator[Counterpart]:
    yield Counterpart("transformer.wte.weight", ("embedding.tokens.weight",))
    yield Counterpart("transformer.wpe.weight", ("embedding.positions.table.weight",))
    for layer in range(config.num_layers):
        theirs, ours = f"transformer.h.{layer}", f"blocks.{layer}"
        yield from _layer_norm(f"{theirs}.ln_1", f"{ours}.attention_norm")
        for kind in ("weight", "bias"):
            projections = ("query", "key", "value")
            names = tuple(f"{ours}.attention.{name}.{kind}" for name in projections)
            yield Counterpart(f"{theirs}.attn.c_attn.{kind}", names, kind == "weight")
        yield from _conv1d(f"{theirs}.attn.c_proj", f"{ours}.attention.output")
        yield from _layer_norm(f"{theirs}.ln_2", f"{ours}.feed_forward_norm")
        yield from _conv1d(f"{theirs}.mlp.c_fc", f"{ours}.feed_forward.up")
        yield from _conv1d(f"{theirs}.mlp.c_proj", f"{ours}.feed_forward.down")
    yield from _layer_norm("transformer.ln_f", "final_norm")
    yield Counterpart("lm_head.weight", ("unembedding.weight",))


def _layer_norm(theirs: str, ours: str) -> Iterator[Counterpart]:
    yield Counterpart(f"{theirs}.weight", (f"{ours}.gain",))
    yield Counterpart(f"{theirs}.bias", (f"{ours}.bias",))


def _conv1d(theirs: str, ours: str) -> Iterator[Counterpart]:
    """Yield the parameters of a `Conv1D`, their linear layer with a transposed weight."""
    yield Counterpart(f"{theirs}.weight", (f"{ours}.weight",), is_transposed=True)
    yield Counterpart(f"{theirs}.bias", (f"{ours}.bias",))


def _llama(config: DecoderOnlyConfig) -> Iterator[Counterpart]:
    yield Counterpart("model.embed_tokens.weight", ("embedding.tokens.weight",))
    for layer in range(config.num_layers):
        theirs, ours = f"model.layers.{layer}", f"blocks.{layer}"
        yield Counterpart(f"{theirs}.input_layernorm.weight", (f"{ours}.attention_norm.gain",))
        for kind in ("weight", "bias"):
            rotated = {"query": config.num_heads, "key": config.kv_heads}
            for name in ("query", "key", "value", "output"):
                yield Counterpart(
                    f"{theirs}.self_attn.{name[0]}_proj.{kind}",
                    (f"{ours}.attention.{name}.{kind}",),
                    half_split_heads=rotated.get(name),
                )
            for name in ("gate", "up", "down"):
                own = f"{ours}.feed_forward.{name}.{kind}"
                yield Counterpart(f"{theirs}.mlp.{name}_proj.{kind}", (own,))
        for name in ("query", "key"):
            own = f"{ours}.attention.{name}_norm.gain"
            norm = f"{theirs}.self_attn.{name[0]}_norm.weight"  # one gain for all heads
            yield Counterpart(norm, (own,), half_split_heads=1)
        norm = f"{theirs}.post_attention_layernorm.weight"  # after attention, before the next
        yield Counterpart(norm, (f"{ours}.feed_forward_norm.gain",))
    yield Counterpart("model.norm.weight", ("final_norm.gain",))
    yield Counterpart("lm_head.weight", ("unembedding.weight",))


def _cleaned(tensors: Mapping[str, Tensor], config: DecoderOnlyConfig) -> dict[str, Tensor]:
    """Add missing prefixes to names; drop tensors that are not learned or are duplicates."""
    prefix = "transformer." if _is_gpt2(config) else "model."
    not_learned = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
    theirs = {
        name if name.startswith((prefix, "lm_head.")) else prefix + name: tensor
        for name, tensor in tensors.items()
        if not name.endswith(not_learned)
    }
    table = theirs.get(prefix + ("wte.weight" if _is_gpt2(config) else "embed_tokens.weight"))
    if config.tie_embeddings and table is not None and "lm_head.weight" in theirs:
        if not torch.equal(theirs.pop("lm_head.weight"), table):
            raise ValueError(
                "tie_word_embeddings needs one table, got an lm_head.weight that differs from it"
            )
    return theirs


def _zero_biases(
    theirs: Mapping[str, Tensor],
    entries: list[Counterpart],
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, Tensor]:
    """Make the biases that ours has and theirs lacks in every layer, as in a Qwen2."""
    extra = {
        entry.theirs: shapes[entry.ours[0]]
        for entry in entries
        if entry.theirs.endswith(
            ("o_proj.bias", "gate_proj.bias", "up_proj.bias", "down_proj.bias")
        )
    }
    if extra.keys() & theirs.keys():
        return {}
    table = theirs.get("model.embed_tokens.weight", torch.empty(0))
    return {name: table.new_zeros(shape) for name, shape in extra.items()}


def _their_shape(entry: Counterpart, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    shape = shapes[entry.ours[0]]
    *rows, width = reversed(shape) if entry.is_transposed else shape
    return (*rows, width * len(entry.ours))  # concatenated tensors have the same shape


# --- settings ------------------------------------------------------------------------------


def _is_gpt2(config: DecoderOnlyConfig) -> bool:
    return config.positions == "learned"


def _require_expressible(config: DecoderOnlyConfig) -> None:
    is_known = config.positions in ("learned", "rotary")
    rule = "positions must be learned, as in GPT-2, or rotary, as in Llama"
    require(is_known, rule, positions=config.positions)
    is_qwen3 = config.qk_norm and not _is_gpt2(config)
    plain = "Mistral" if config.window else "Llama"
    family = "GPT-2" if _is_gpt2(config) else "Qwen3" if is_qwen3 else plain
    allowed: dict[str, tuple[Any, ...]] = {"norm_order": ("pre",), "qk_norm": (is_qwen3,)}
    if family in ("Mistral", "Qwen3"):
        allowed["bias"] = (False,)
    if family == "Qwen3":
        allowed["window"] = (None,)
    if family == "Llama":
        require_multiple(d_model=config.d_model, num_heads=config.num_heads)  # their rule
    if _is_gpt2(config):
        allowed |= {
            "window": (None,),
            "norm": ("layer",),
            "num_kv_heads": (None, config.num_heads),
            "head_width": (None, config.d_model // config.num_heads),
            "activation": tuple(_GPT2_ACTIVATIONS.values()),
            "bias": (True,),
        }
    else:
        allowed |= {"norm": ("rms",), "activation": tuple(_LLAMA_ACTIVATIONS.values())}
    for name, values in allowed.items():
        value = getattr(config, name)
        if value not in values:
            choices = " or ".join(str(choice) for choice in dict.fromkeys(values))
            raise ValueError(f"{name} must be {choices} in {family}, got {name}={value}")


def _from_gpt2_config(fields: Mapping[str, Any]) -> DecoderOnlyConfig:
    _require_fields(fields, "vocab_size", "n_positions", "n_embd", "n_layer", "n_head")
    _require_values(
        fields,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False,
    )
    d_ff = fields.get("n_inner")
    return DecoderOnlyConfig(
        vocab_size=fields["vocab_size"],
        max_len=fields["n_positions"],
        d_model=fields["n_embd"],
        num_layers=fields["n_layer"],
        num_heads=fields["n_head"],
        d_ff=4 * fields["n_embd"] if d_ff is None else d_ff,
        positions="learned",
        norm="layer",
        norm_eps=fields.get("layer_norm_epsilon", 1e-5),
        norm_order="pre",
        activation=_activation("activation_function", "gelu_new", fields, _GPT2_ACTIVATIONS),
        bias=True,
        dropout=fields.get("resid_pdrop", 0.1),
        attention_dropout=fields.get("attn_pdrop", 0.1),
        tie_embeddings=fields.get("tie_word_embeddings", True),
    )


def _from_llama_config(fields: Mapping[str, Any]) -> DecoderOnlyConfig:
    sizes = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads"
    _require_fields(fields, *sizes.split(), "max_position_embeddings")
    _require_values(fields, use_sliding_window=False, use_bidirectional_attention=False)
    kind, num_heads = fields["model_type"], fields["num_attention_heads"]
    d_head = fields.get("head_dim") or fields["hidden_size"] // num_heads
    biases = [fields.get(name, False) for name in ("attention_bias", "mlp_bias")]
    if kind in ("qwen3", "gemma"):
        _require_values(fields, attention_bias=False)  # their other layers have none
    if kind == "llama" and biases[0] != biases[1]:
        raise ValueError(
            "all linear layers must have a bias, or none, "
            f"got attention_bias={biases[0]}, mlp_bias={biases[1]}"
        )
    # The first Gemmas were published as gelu and meant its approximation.
    activations = _LLAMA_ACTIVATIONS | ({"gelu": "geglu_tanh"} if kind == "gemma" else {})
    return DecoderOnlyConfig(
        vocab_size=fields["vocab_size"],
        d_model=fields["hidden_size"],
        num_layers=fields["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=fields.get("num_key_value_heads"),
        head_width=None if d_head * num_heads == fields["hidden_size"] else d_head,
        d_ff=fields["intermediate_size"],
        positions="rotary",
        **from_hugging_face_rotary(fields, d_head),
        norm="rms",
        norm_eps=fields.get("rms_norm_eps", 1e-6),
        norm_order="pre",
        qk_norm=kind == "qwen3",
        activation=_activation("hidden_act", "silu", fields, activations),
        bias=kind == "qwen2" or (kind == "llama" and biases[0]),
        window=fields.get("sliding_window") if kind == "mistral" else None,
        dropout=0.0,
        attention_dropout=fields.get("attention_dropout", 0.0),
        tie_embeddings=fields.get("tie_word_embeddings", False),
    )


def _activation(field: str, default: str, fields: Mapping[str, Any], choices: dict) -> Any:
    value = fields.get(field, default)
    require_choice(choices, **{field: value})
    return choices[value]


def _require_fields(fields: Mapping[str, Any], *names: str) -> None:
    missing = [name for name in names if name not in fields]
    if missing:
        raise ValueError(f"config.json of {fields['model_type']} needs the field {missing[0]}")


def _require_values(fields: Mapping[str, Any], **values: Any) -> None:
    for name, value in values.items():
        if fields.get(name) not in (None, value):
            raise ValueError(f"{name} must be {value}, got {name}={fields[name]}")


def _key_of(value: str, choices: Mapping[str, str]) -> str:
    return next(key for key, choice in choices.items() if choice == value)
