"""What a model costs, worked out from its configuration: parameters, operations, bytes.

No tensor is made and nothing is measured. A multiplication and an addition are two operations
(FLOPs). Only products of matrices are counted: the rest is fast where operations are the limit.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch

from groundup.config import (
    AnyConfig,
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    EncoderOnlyConfig,
)

CachedConfig = DecoderOnlyConfig | EncoderDecoderConfig
Shape = tuple[int, ...]
Pairs = Literal["all", "allowed"]
"""Which pairs of a query and a key to count: all, or those that the model's own mask allows."""


# --- parameters ----------------------------------------------------------------------------


def parameter_shapes(config: AnyConfig) -> dict[str, Shape]:
    """List the shape of every parameter under its name in the model, shared tables once."""
    shapes: dict[str, Shape] = {}
    if isinstance(config, EncoderDecoderConfig):
        sizes = (config.source_vocab_size, config.source_max_len)
        shapes |= _embedding("source_embedding", *sizes, config)
        for layer in range(config.num_encoder_layers):
            shapes |= _block(f"encoder.{layer}", config)
        shapes |= _final_norm("encoder_norm", config)
    shapes |= _embedding("embedding", config.vocab_size, config.max_len, config)
    for layer in range(config.num_layers):
        shapes |= _block(f"blocks.{layer}", config)
        if isinstance(config, EncoderDecoderConfig):
            shapes |= _attention(f"blocks.{layer}.cross_attention", config)
            shapes |= _norm(f"blocks.{layer}.cross_attention_norm", config)
    shapes |= _final_norm("final_norm", config)
    shapes["unembedding.weight"] = (_num_outputs(config), config.d_model)
    if isinstance(config, EncoderDecoderConfig) and config.tie_source_embeddings:
        del shapes["embedding.tokens.weight"]  # torch lists it as the source's
    if config.tie_embeddings:
        del shapes["unembedding.weight"]
    return shapes


def parameters(config: AnyConfig) -> dict[str, int]:
    """Count the parameters of each part of a model.

    Returns:
        Numbers for `embedding` (tables of tokens), `positions`, `attention`, `feed_forward`,
        `norms` and `unembedding`, which is 0 where it is the table of tokens. Their sum is the
        number of parameters of the model.

    """
    parts = ("embedding", "positions", "attention", "feed_forward", "norms", "unembedding")
    counts: dict[str, int] = {part: 0 for part in parts}
    for name, shape in parameter_shapes(config).items():
        counts[_part(name)] += math.prod(shape)
    return counts


# --- operations ----------------------------------------------------------------------------


def forward_flops(
    config: AnyConfig,
    batch_size: int,
    length: int,
    source_len: int | None = None,
    pairs: Pairs = "all",
) -> dict[str, int]:
    """Count the operations of one forward pass.

    A matrix of `m` by `k` costs `2 m k` per token. Attention costs `4 d_model` per pair of a
    query and a key: half for the score, half for the average of the values.

    Args:
        config: Sizes and choices.
        batch_size: Number of sequences.
        length: Tokens of each; of each target, if there are sources.
        source_len: Tokens of each source.
        pairs: `all` is what the explicit backend computes, and the fused one for a mask that is
            drawn. A fused kernel that is told that the mask is causal skips the blocks of keys
            that lie wholly in the future, and comes close to `allowed` on long sequences.

    Returns:
        FLOPs of `projections` (queries, keys, values and outputs), `attention` (scores and
        averages), `feed_forward` and `unembedding`, and of `pooling` where there is one answer
        per sequence.

    Raises:
        ValueError: If a number is below 1, or if `source_len` is missing or has no use.

    Source:
        Kaplan et al. 2020, Scaling Laws for Neural Language Models, section 2.1 and table 1,
        https://arxiv.org/abs/2001.08361; skipped blocks: Dao 2023, FlashAttention-2, section
        3.1, https://arxiv.org/abs/2307.08691

    """
    _require_lengths(config, batch_size, source_len, length=length)
    if pairs not in ("all", "allowed"):
        raise ValueError(f"pairs must be all or allowed, got pairs={pairs}")
    target, source = batch_size * length, batch_size * (source_len or 0)
    flops = _matrix_flops(config, target, source)
    if isinstance(config, EncoderOnlyConfig) and config.answers == "sequence":
        flops["unembedding"] = _matrix_flops(config, batch_size, 0)["unembedding"]
        flops["pooling"] = 2 * batch_size * length * config.d_model
    is_causal = pairs == "allowed" and not isinstance(config, EncoderOnlyConfig)
    own = _allowed_pairs(config, length) if is_causal else length**2
    num_pairs = config.num_layers * own
    if isinstance(config, EncoderDecoderConfig) and source_len is not None:
        num_pairs += config.num_encoder_layers * source_len**2
        num_pairs += config.num_layers * length * source_len
    flops["attention"] = 4 * config.d_model * batch_size * num_pairs
    return flops


def training_flops(
    config: AnyConfig,
    batch_size: int,
    length: int,
    source_len: int | None = None,
    pairs: Pairs = "all",
) -> dict[str, int]:
    """Count the operations of one forward and backward pass.

    Each product has two inputs, and the gradient of each takes another product of the same
    size: three times the forward pass. Pooling has one input only that learns. What a kernel
    computes again to save memory is not counted, so that no model looks busier by working twice.

    Args:
        config: Sizes and choices.
        batch_size: Number of sequences.
        length: Tokens of each; of each target, if there are sources.
        source_len: Tokens of each source.
        pairs: As in `forward_flops`.

    Returns:
        FLOPs of each part, as in `forward_flops`.

    Raises:
        ValueError: As in `forward_flops`.

    Source:
        Chowdhery et al. 2022, PaLM, appendix B (recomputation is not counted),
        https://arxiv.org/abs/2204.02311

    """
    flops = forward_flops(config, batch_size, length, source_len, pairs)
    return {part: (2 if part == "pooling" else 3) * number for part, number in flops.items()}


def usual_training_flops_per_token(config: DecoderOnlyConfig, length: int) -> int:
    """Estimate the operations of training per token as most papers do: `6 N + 12 L d_model T`.

    `N` counts the parameters, without tables that are only looked up, `L` the layers and `T` the
    tokens of a sequence. Beside `training_flops` it counts gains and biases as if they were
    matrices: 0.1 % too much at GPT-2 small. It counts all pairs, also those that a causal
    kernel skips.

    Args:
        config: Sizes and choices.
        length: Tokens of a sequence.

    Returns:
        FLOPs per token, forward and backward.

    Source:
        Kaplan et al. 2020, Scaling Laws for Neural Language Models, section 2.1 (`6 N`),
        https://arxiv.org/abs/2001.08361; Chowdhery et al. 2022, PaLM, appendix B,
        https://arxiv.org/abs/2204.02311

    """
    counts = parameters(config)
    looked_up = counts["positions"] + (0 if config.tie_embeddings else counts["embedding"])
    multiplied = sum(counts.values()) - looked_up
    return 6 * multiplied + 12 * config.num_layers * config.d_model * length


def decoding_flops(
    config: CachedConfig,
    batch_size: int,
    context: int,
    source_len: int | None = None,
    room: int | None = None,
) -> dict[str, int]:
    """Count the operations of one more token for each sequence, with keys and values cached.

    Args:
        config: Sizes and choices.
        batch_size: Number of sequences.
        context: Tokens seen before.
        source_len: Tokens of each source, whose keys and values are cached as well.
        room: Tokens that a static cache holds, all of which are scored, empty ones too; None
            for a cache that grows.

    Returns:
        FLOPs of each part, as in `forward_flops`.

    Raises:
        ValueError: If a number is too small, or if `source_len` is missing or has no use.

    """
    _require_context(config, batch_size, context, source_len, room)
    flops = _matrix_flops(config, batch_size, 0)
    keys = _keys_read(config, context, room) + (source_len or 0)
    flops["attention"] = 4 * config.d_model * batch_size * config.num_layers * keys
    return flops


# --- bytes ---------------------------------------------------------------------------------


def weight_bytes(config: AnyConfig, dtype: torch.dtype = torch.float32) -> int:
    """Count the bytes of all parameters."""
    return sum(parameters(config).values()) * dtype.itemsize


def cache_bytes(
    config: CachedConfig,
    batch_size: int,
    max_len: int | None = None,
    dtype: torch.dtype = torch.float32,
    is_static: bool = False,
) -> int:
    """Count the bytes of the cache that the model's `new_cache` makes of the same arguments.

    Each token of each layer takes a key and a value for each key and value head. A cache that
    slides holds one token less than the window.

    Args:
        config: Sizes and choices.
        batch_size: Number of sequences.
        max_len: Most tokens; by default as many as the model can read.
        dtype: What the numbers are stored as.
        is_static: Whether every step has the same shapes; such a cache does not slide.

    """
    tokens = config.max_len if max_len is None else max_len
    if isinstance(config, EncoderDecoderConfig):
        tokens += config.source_max_len
    elif config.window is not None and not is_static:
        tokens = config.window - 1
    return config.num_layers * batch_size * tokens * _key_and_value_bytes(config, dtype)


def training_bytes(
    config: AnyConfig,
    optimizer: Literal["adamw", "muon"] = "adamw",
    precision: Literal["float32", "bfloat16"] = "float32",
) -> dict[str, int]:
    """Count the bytes that training takes whatever the batch: parameters are kept in float32.

    Args:
        config: Sizes and choices.
        optimizer: `adamw` keeps two averages for each parameter and a count for each tensor;
            `muon` keeps one average for the matrices inside blocks, and the rest as AdamW.
        precision: Of the products. `bfloat16` copies each matrix, from its use in the forward
            pass to its use in the backward pass.

    Returns:
        Bytes of `weights`, `gradients`, `optimizer` and `copies`. What the forward pass keeps
        for the backward pass comes on top and grows with the batch.

    """
    shapes = parameter_shapes(config)
    averages = counts = 0
    for name, shape in shapes.items():
        if optimizer == "muon" and len(shape) == 2 and name.startswith(("blocks.", "encoder.")):
            averages += math.prod(shape)
        else:
            averages += 2 * math.prod(shape)
            counts += 1
    weights = weight_bytes(config)
    multiplied = sum(_matrices(config).values()) if precision == "bfloat16" else 0
    return {
        "weights": weights,
        "gradients": weights,
        "optimizer": 4 * averages + 4 * counts,
        "copies": 2 * multiplied,
    }


def activation_bytes(
    config: DecoderOnlyConfig,
    batch_size: int,
    length: int,
    backend: Literal["explicit", "fused"] = "fused",
) -> dict[str, int]:
    """Estimate the bytes that a forward pass keeps for the backward pass, in float32.

    Why does memory, not time, end most experiments with long texts? Explicit attention keeps
    its weights, `num_heads * length` numbers per token and layer; fused attention works them out
    again and keeps one number per head.

    The estimate is for a processor, without dropout and windows, and leaves out what does not
    grow with the batch, such as masks: at batch 16 it is within 2 % of what torch keeps. A GPU's
    kernel for RMSNorm keeps one copy of its input less.

    Args:
        config: Sizes and choices.
        batch_size: Number of sequences.
        length: Tokens of each.
        backend: How attention is computed.

    Returns:
        Bytes of `attention`, `feed_forward`, `norms` (what they read, and what they give to the
        next layer) and `loss` (probabilities, and the numbers of the tokens).

    Raises:
        ValueError: If a number is below 1.

    Source:
        Korthikanti et al. 2022, Reducing Activation Recomputation in Large Transformer Models,
        section 4.1, which counts the same way in half precision and with dropout,
        https://arxiv.org/abs/2205.05198

    """
    _require_lengths(config, batch_size, None, length=length)
    d_model, num_heads, num_kv_heads = config.d_model, config.num_heads, config.kv_heads
    d_kv = num_kv_heads * config.d_head
    attention = 2 * d_model  # queries, and what the heads found
    if backend == "fused":
        attention += 2 * d_kv + num_heads
    else:
        attention += 2 * d_model + num_heads * length  # each query head has a key of its own
    if config.qk_norm:
        attention += 2 * (d_model + d_kv) + num_heads + num_kv_heads
        attention += d_model if backend == "fused" else 0  # what it found, in two orders
    copies = {"relu": 1, "swiglu": 4, "geglu": 4}  # of the width in between; 2 for the others
    norm = 2 * d_model + 2 if config.norm == "layer" else 3 * d_model + 1
    num_norms = 2 * config.num_layers + (config.norm_order == "pre")
    numbers = {
        "attention": config.num_layers * attention,
        "feed_forward": config.num_layers * copies.get(config.activation, 2) * config.d_ff,
        "norms": num_norms * norm + (d_model if config.norm_order == "post" else 0),
        "loss": config.vocab_size + 4,  # a token's number is as wide as two others
    }
    return {part: 4 * batch_size * length * number for part, number in numbers.items()}


def decoding_bytes(
    config: CachedConfig,
    batch_size: int,
    context: int,
    dtype: torch.dtype = torch.float32,
    source_len: int | None = None,
    room: int | None = None,
) -> int:
    """Count the bytes that one more token for each sequence must read.

    All weights are read once, whatever the batch, but of tables that are only looked up a row at
    a time. Each sequence reads its own keys and values.

    Args:
        config: Sizes and choices.
        batch_size: Number of sequences.
        context: Tokens seen before.
        dtype: What weights, keys and values are stored as.
        source_len: Tokens of each source, as in `decoding_flops`.
        room: Tokens that a static cache holds, as in `decoding_flops`.

    Raises:
        ValueError: As in `decoding_flops`.

    """
    _require_context(config, batch_size, context, source_len, room)
    used = sum(
        math.prod(shape)
        for name, shape in parameter_shapes(config).items()
        if _part(name) not in ("embedding", "positions") and not _is_of_source(name)
    )
    if config.tie_embeddings:
        used += config.vocab_size * config.d_model
    rows = batch_size + (config.positions == "learned")  # all stand at the same position
    keys = _keys_read(config, context, room) - 1 + (source_len or 0)  # the newest is at hand
    cached = config.num_layers * keys * _key_and_value_bytes(config, dtype)
    return (used + rows * config.d_model) * dtype.itemsize + batch_size * cached


# --- what a device can do ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Peak:
    """What a device could do at most, by its maker."""

    flops: float | None
    """Dense products in bfloat16, in FLOPs per second; None without instructions for them."""
    bandwidth: float
    """Reading and writing its memory, in bytes per second."""


PEAKS = {
    "NVIDIA H200": Peak(989.4e12, 4.8e12),
    "NVIDIA H100 80GB HBM3": Peak(989.4e12, 3.35e12),
    "NVIDIA H100 PCIe": Peak(756e12, 2.0e12),
    "NVIDIA A100-SXM4-80GB": Peak(312e12, 2.039e12),
    "NVIDIA A100-SXM4-40GB": Peak(312e12, 1.555e12),
    "NVIDIA A100 80GB PCIe": Peak(312e12, 1.935e12),
    "NVIDIA A100-PCIE-40GB": Peak(312e12, 1.555e12),
    "NVIDIA L4": Peak(121e12, 0.3e12),
    "NVIDIA A10": Peak(125e12, 0.6e12),
    "NVIDIA GeForce RTX 4090": Peak(165.2e12, 1.008e12),
    "Tesla T4": Peak(None, 0.32e12),
}
"""By the name that torch gives the device.

Makers print the number for matrices that are half zeros, in a fixed pattern; half of it is the
dense peak.

Source:
    NVIDIA's datasheets: H200 https://www.nvidia.com/en-us/data-center/h200/, H100
    https://www.nvidia.com/en-us/data-center/h100/, A100
    https://www.nvidia.com/en-us/data-center/a100/, L4
    https://www.nvidia.com/en-us/data-center/l4/, A10
    https://www.nvidia.com/en-us/data-center/products/a10-gpu/, T4
    https://www.nvidia.com/en-us/data-center/tesla-t4/; RTX 4090: NVIDIA Ada GPU Architecture,
    appendix A (products summed up in float32)

"""


def peak_of(device_name: str) -> Peak | None:
    """Look up what a device could do at most, or None for one not in `PEAKS`: never a guess."""
    return PEAKS.get(device_name)


def mfu(flops_per_second: float, peak: Peak | None) -> float | None:
    """Give the share of a device's peak that useful operations reach, from 0 to 1.

    Model FLOPs utilisation: operations that the model needs, whatever was really computed.

    Args:
        flops_per_second: From `training_flops` and a clock.
        peak: Of the device; with None, or without a number for its products, so is the result.

    Source:
        Chowdhery et al. 2022, PaLM, section 4.1, https://arxiv.org/abs/2204.02311

    """
    return None if peak is None or peak.flops is None else flops_per_second / peak.flops


def decoding_limit(
    config: CachedConfig,
    batch_size: int,
    context: int,
    bandwidth: float,
    dtype: torch.dtype = torch.float32,
    source_len: int | None = None,
    room: int | None = None,
) -> float:
    """Give the most tokens per second that decoding can reach, all sequences together.

    At small batches a token takes as long as it takes to read what it needs, because each
    weight that comes from memory is used for a few operations only.

    Args:
        config: Sizes and choices.
        batch_size: Number of sequences.
        context: Tokens seen before.
        bandwidth: Of the memory, in bytes per second.
        dtype: What weights, keys and values are stored as.
        source_len: Tokens of each source, as in `decoding_flops`.
        room: Tokens that a static cache holds, as in `decoding_flops`.

    Raises:
        ValueError: As in `decoding_flops`.

    Source:
        Williams et al. 2009, Roofline, https://doi.org/10.1145/1498765.1498785; Pope et al.
        2023, Efficiently Scaling Transformer Inference, section 2,
        https://arxiv.org/abs/2211.05102

    """
    num_bytes = decoding_bytes(config, batch_size, context, dtype, source_len, room)
    return batch_size * bandwidth / num_bytes


# --- the parts -----------------------------------------------------------------------------


def _num_outputs(config: AnyConfig) -> int:
    own = config.num_outputs if isinstance(config, EncoderOnlyConfig) else None
    return config.vocab_size if own is None else own


def _embedding(name: str, vocab_size: int, max_len: int, config: AnyConfig) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {f"{name}.tokens.weight": (vocab_size, config.d_model)}
    if config.positions == "learned":
        shapes[f"{name}.positions.table.weight"] = (max_len, config.d_model)
    return shapes


def _block(name: str, config: AnyConfig) -> dict[str, Shape]:
    ways = ("gate", "up") if config.activation in ("swiglu", "geglu") else ("up",)
    shapes = _attention(f"{name}.attention", config) | _norm(f"{name}.attention_norm", config)
    for way in ways:
        shapes |= _linear(f"{name}.feed_forward.{way}", config.d_ff, config.d_model, config.bias)
    shapes |= _linear(f"{name}.feed_forward.down", config.d_model, config.d_ff, config.bias)
    return shapes | _norm(f"{name}.feed_forward_norm", config)


def _attention(name: str, config: AnyConfig) -> dict[str, Shape]:
    d_model, d_kv = config.d_model, config.kv_heads * config.d_head
    shapes: dict[str, Shape] = {}
    for map_name, width in (("query", d_model), ("key", d_kv), ("value", d_kv)):
        shapes |= _linear(f"{name}.{map_name}", width, d_model, config.bias)
    shapes |= _linear(f"{name}.output", d_model, d_model, config.bias)
    if config.qk_norm:
        for vectors in ("query", "key"):
            shapes[f"{name}.{vectors}_norm.gain"] = (config.d_head,)
    return shapes


def _linear(name: str, d_out: int, d_in: int, bias: bool) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {f"{name}.weight": (d_out, d_in)}
    if bias:
        shapes[f"{name}.bias"] = (d_out,)
    return shapes


def _norm(name: str, config: AnyConfig) -> dict[str, Shape]:
    learned = ("gain", "bias") if config.norm == "layer" else ("gain",)
    return {f"{name}.{vector}": (config.d_model,) for vector in learned}


def _final_norm(name: str, config: AnyConfig) -> dict[str, Shape]:
    return _norm(name, config) if config.norm_order == "pre" else {}


def _key_and_value_bytes(config: AnyConfig, dtype: torch.dtype) -> int:
    """Count what one token takes in the cache of one layer."""
    return 2 * config.kv_heads * config.d_head * dtype.itemsize


def _part(name: str) -> str:
    if ".tokens." in name:
        return "embedding"
    if ".positions." in name:
        return "positions"
    if "attention." in name:
        return "attention"
    if "feed_forward." in name:
        return "feed_forward"
    return "unembedding" if name.startswith("unembedding") else "norms"


def _is_of_source(name: str) -> bool:
    """Tell whether a parameter meets the tokens of the source rather than those of the target."""
    of_memory = "cross_attention.key" in name or "cross_attention.value" in name
    return of_memory or name.startswith(("source_embedding.", "encoder.", "encoder_norm."))


def _matrices(config: AnyConfig) -> dict[str, int]:
    """List how many numbers each matrix has that tokens are multiplied with."""
    matrices = {
        name: math.prod(shape)
        for name, shape in parameter_shapes(config).items()
        if len(shape) == 2 and _part(name) not in ("embedding", "positions")
    }
    return matrices | {"unembedding.weight": _num_outputs(config) * config.d_model}


def _matrix_flops(config: AnyConfig, target: int, source: int) -> dict[str, int]:
    """Count the operations of `target` and `source` tokens in the matrices that they meet."""
    parts = ("projections", "attention", "feed_forward", "unembedding")
    flops: dict[str, int] = {part: 0 for part in parts}
    for name, size in _matrices(config).items():
        part = "projections" if _part(name) == "attention" else _part(name)
        flops[part] += 2 * size * (source if _is_of_source(name) else target)
    return flops


def _allowed_pairs(config: AnyConfig, length: int) -> int:
    window = config.window if isinstance(config, DecoderOnlyConfig) else None
    window = length if window is None else min(window, length)
    return window * (window + 1) // 2 + (length - window) * window


def _keys_read(config: CachedConfig, context: int, room: int | None) -> int:
    if room is not None:
        return room
    window = config.window if isinstance(config, DecoderOnlyConfig) else None
    return context + 1 if window is None else min(context + 1, window)


def _require_lengths(config: AnyConfig, batch_size: int, source_len: int | None, **more) -> None:
    numbers = {"batch_size": batch_size} | more
    if source_len is not None:
        numbers["source_len"] = source_len
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {name}={number}")
    if (source_len is not None) != isinstance(config, EncoderDecoderConfig):
        raise ValueError(
            "source_len must be given for a model that reads a source, and for no other, "
            f"got source_len={source_len} for {type(config).__name__}"
        )


def _require_context(
    config: CachedConfig, batch_size: int, context: int, source_len: int | None, room: int | None
) -> None:
    _require_lengths(config, batch_size, source_len)
    if context < 0:
        raise ValueError(f"context must not be negative, got context={context}")
    if room is not None and room <= context:
        raise ValueError(
            f"room must be for one token more than context, got room={room}, context={context}"
        )
