"""The cost of a model, computed from its configuration: parameters, operations, bytes.

No tensor is allocated and nothing is measured. A multiplication and an addition are two operations
(FLOPs). Only matrix products are counted, because everything else takes little time when
arithmetic is the bottleneck.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch

from groundup.core.config import (
    AnyConfig,
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    EncoderOnlyConfig,
    require,
)
from groundup.presets import MODELS

CachedConfig = DecoderOnlyConfig | EncoderDecoderConfig
Shape = tuple[int, ...]
Pairs = Literal["all", "allowed"]
"""Which query-key pairs to count: all, or those that the model's own mask allows."""


# --- parameters ----------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)  # the costs of many lengths ask for one model's again and again
def parameter_shapes(config: AnyConfig) -> Mapping[str, Shape]:
    """Return the shape of every parameter by its name in the model; a shared table appears once."""
    with torch.device("meta"):  # tensors with a shape but no memory
        model = MODELS[type(config)](config)
    return MappingProxyType({name: tuple(v.shape) for name, v in model.named_parameters()})


def parameters(config: AnyConfig) -> dict[str, int]:
    """Count the parameters of each part of a model.

    Returns:
        Numbers for `embedding` (token embeddings), `positions`, `attention`, `feed_forward`,
        `norms` and `unembedding`, which is 0 if it is tied to the embedding. Their sum is the
        number of parameters of the model.

    """
    parts = ("embedding", "positions", "attention", "feed_forward", "norms", "unembedding")
    counts: dict[str, int] = dict.fromkeys(parts, 0)
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

    An `m` by `k` matrix costs `2 m k` per token. Attention costs `4 d_model` per query-key pair:
    half for the score, half for the weighted average of the values. (Where heads have a width of
    their own, `num_heads d_head` stands for `d_model`.)

    Args:
        config: Sizes and choices.
        batch_size: Number of sequences.
        length: Tokens per sequence; per target, if there are sources.
        source_len: Tokens per source.
        pairs: `all` is what the explicit backend computes, and the fused one if it gets a mask
            tensor. A fused kernel with `is_causal` skips blocks of keys that lie entirely in the
            future; on long sequences it comes close to `allowed`.

    Returns:
        FLOPs of `projections` (queries, keys, values and outputs), `attention` (scores and
        averages), `feed_forward` and `unembedding`, and of `pooling` if the model has one output
        per sequence.

    Raises:
        ValueError: If a number is below 1, if `pairs` is unknown, or if `source_len` is missing
            or the model reads no source.

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
    flops["attention"] = 4 * _width_of_heads(config) * batch_size * num_pairs
    return flops


def training_flops(
    config: AnyConfig,
    batch_size: int,
    length: int,
    source_len: int | None = None,
    pairs: Pairs = "all",
) -> dict[str, int]:
    """Count the operations of one forward and backward pass.

    Each matrix product has two inputs, and the gradient of each takes another product of the same
    size, so training costs three times the forward pass. Pooling has only one input with a
    gradient. Recomputation, by which kernels save memory, is not counted: it would inflate the MFU.

    Args:
        config: Sizes and choices.
        batch_size: Number of sequences.
        length: Tokens per sequence; per target, if there are sources.
        source_len: Tokens per source.
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
    """Estimate the training operations per token as most papers do: `6 N + 12 L d_model T`.

    `N` is the number of parameters, excluding tables that are only used for lookup, `L` the number
    of layers and `T` the length of a sequence. Unlike `training_flops` it counts gains and biases
    as if they were matrices, which adds 0.1 % for GPT-2 small. It counts all query-key pairs,
    including those that a causal kernel skips.

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
    return 6 * multiplied + 12 * config.num_layers * _width_of_heads(config) * length


def decoding_flops(
    config: CachedConfig,
    batch_size: int,
    context: int,
    source_len: int | None = None,
    buffer_len: int | None = None,
) -> dict[str, int]:
    """Count the operations of generating one more token per sequence with a KV cache.

    Args:
        config: Sizes and choices.
        batch_size: Number of sequences.
        context: Tokens seen before.
        source_len: Tokens per source, whose keys and values are cached as well.
        buffer_len: Length of a static cache, all of which is scored, empty or not; None for a
            cache that grows.

    Returns:
        FLOPs of each part, as in `forward_flops`.

    Raises:
        ValueError: If a number is too small, or if `source_len` is missing or the model reads no
            source.

    """
    _require_context(config, batch_size, context, source_len, buffer_len)
    flops = _matrix_flops(config, batch_size, 0)
    keys = _keys_read(config, context, buffer_len) + (source_len or 0)
    flops["attention"] = 4 * _width_of_heads(config) * batch_size * config.num_layers * keys
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
    """Count the bytes of the cache that `generate` uses for the same arguments.

    Each layer stores a key and a value per token for each key-value head. A sliding cache holds
    one token fewer than the window.

    Args:
        config: Sizes and choices.
        batch_size: Number of sequences.
        max_len: Largest number of tokens; by default the model's.
        dtype: Of keys and values.
        is_static: Whether every step has the same shapes; a static cache does not slide.

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
    """Count the bytes that training needs at any batch size, with parameters in float32.

    Args:
        config: Sizes and choices.
        optimizer: `adamw` keeps two running averages per parameter and a count per tensor; `muon`
            keeps one average per entry of the matrices inside blocks, and treats all other
            parameters as AdamW does.
        precision: Of the matrix products. With `bfloat16` each matrix has a copy from its use in
            the forward pass until its use in the backward pass.

    Returns:
        Bytes of `weights`, `gradients`, `optimizer` and `copies`. Activations saved for the
        backward pass are not included; they grow with the batch.

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
    recompute: bool = False,
) -> dict[str, int]:
    """Estimate the bytes that a forward pass saves for the backward pass, in float32.

    With long sequences, memory usually runs out before time does. Explicit attention saves its
    weights, `num_heads * length` numbers per token and layer; fused attention recomputes them and
    saves one number per token and head.

    The estimate is for a CPU, without dropout and windows, and ignores what does not grow with the
    batch, such as masks: at batch size 16 it is within 2 % of what torch saves. The RMSNorm kernel
    of a GPU saves one copy of its input fewer.

    Args:
        config: Sizes and choices.
        batch_size: Number of sequences.
        length: Tokens per sequence.
        backend: How attention is computed.
        recompute: Whether blocks save only their inputs, as after `training.setup.recompute`. The
            backward pass then holds, besides, what one block saves without it.

    Returns:
        Bytes of `attention`, `feed_forward`, `norms` (their inputs and outputs) and `loss`
        (probabilities and token ids); if blocks are recomputed, of `inputs`, `norms` and
        `loss`.

    Raises:
        ValueError: If a number is below 1.

    Source:
        Korthikanti et al. 2022, Reducing Activation Recomputation in Large Transformer Models,
        section 4.1, which counts the same way in half precision and with dropout,
        https://arxiv.org/abs/2205.05198; Chen et al. 2016, Training Deep Nets with Sublinear
        Memory Cost (recomputation), https://arxiv.org/abs/1604.06174

    """
    _require_lengths(config, batch_size, None, length=length)
    d_model, num_heads, num_kv_heads = config.d_model, config.num_heads, config.kv_heads
    d_query, d_kv = _width_of_heads(config), num_kv_heads * config.d_head
    attention = 2 * d_query  # queries, and the output of the heads
    if backend == "fused":
        attention += 2 * d_kv + num_heads
    else:
        attention += 2 * d_query + num_heads * length  # keys are repeated for each query head
    if config.qk_norm:
        attention += 2 * (d_query + d_kv) + num_heads + num_kv_heads
        attention += d_query if backend == "fused" else 0  # the output of the heads, in two layouts
    # Of width d_ff; 2 for the others.
    copies = {"relu": 1, "swiglu": 4, "geglu": 4, "geglu_tanh": 4}
    norm = 2 * d_model + 2 if config.norm == "layer" else 3 * d_model + 1
    num_norms = 2 * config.num_layers + (config.norm_order == "pre")
    numbers = {
        "attention": config.num_layers * attention,
        "feed_forward": config.num_layers * copies.get(config.activation, 2) * config.d_ff,
        "norms": num_norms * norm + (d_model if config.norm_order == "post" else 0),
        "loss": config.vocab_size + 4,  # a token number takes 8 bytes
    }
    if recompute:
        del numbers["attention"], numbers["feed_forward"]
        numbers["norms"] = norm if config.norm_order == "pre" else d_model
        numbers["inputs"] = config.num_layers * d_model
    return {part: 4 * batch_size * length * number for part, number in numbers.items()}


def decoding_bytes(
    config: CachedConfig,
    batch_size: int,
    context: int,
    dtype: torch.dtype = torch.float32,
    source_len: int | None = None,
    buffer_len: int | None = None,
) -> int:
    """Count the bytes that must be read to generate one more token per sequence.

    All weights are read once whatever the batch size, except lookup tables, of which one row per
    sequence is read. Each sequence reads its own keys and values.

    Args:
        config: Sizes and choices.
        batch_size: Number of sequences.
        context: Tokens seen before.
        dtype: Of weights, keys and values.
        source_len: Tokens per source, as in `decoding_flops`.
        buffer_len: Length of a static cache, as in `decoding_flops`.

    Raises:
        ValueError: As in `decoding_flops`.

    """
    _require_context(config, batch_size, context, source_len, buffer_len)
    used = sum(
        math.prod(shape)
        for name, shape in parameter_shapes(config).items()
        if _part(name) not in ("embedding", "positions") and not _is_of_source(name)
    )
    if config.tie_embeddings:
        used += config.vocab_size * config.d_model
    rows = batch_size + (config.positions == "learned")  # all are at the same position
    # The newest key is not read from the cache.
    keys = _keys_read(config, context, buffer_len) - 1 + (source_len or 0)
    cached = config.num_layers * keys * _key_and_value_bytes(config, dtype)
    return (used + rows * config.d_model) * dtype.itemsize + batch_size * cached


# --- what a device can do ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Peak:
    """Peak rates of a device, as its manufacturer states them."""

    flops: float | None
    """Dense bfloat16 matrix products, in FLOPs per second; None if it has no such instructions."""
    bandwidth: float
    """Memory bandwidth, in bytes per second."""


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
"""By the device name that torch reports.

Manufacturers quote the rate for sparse matrices, half of whose entries are zeros in a fixed
pattern; the dense peak is half of it.

Source:
    NVIDIA's datasheets: H200 https://www.nvidia.com/en-us/data-center/h200/, H100
    https://www.nvidia.com/en-us/data-center/h100/, A100
    https://www.nvidia.com/en-us/data-center/a100/, L4
    https://www.nvidia.com/en-us/data-center/l4/, A10
    https://www.nvidia.com/en-us/data-center/products/a10-gpu/, T4
    https://www.nvidia.com/en-us/data-center/tesla-t4/; RTX 4090: NVIDIA Ada GPU Architecture,
    appendix A (products accumulated in float32)

"""


def peak_of(device_name: str) -> Peak | None:
    """Look up the peak rates of a device; None if it is not in `PEAKS`."""
    return PEAKS.get(device_name)


def mfu(flops_per_second: float, peak: Peak | None) -> float | None:
    """Return the model FLOPs utilisation: the fraction of a device's peak, from 0 to 1.

    It counts the operations that the model needs, not those that were carried out.

    Args:
        flops_per_second: From `training_flops` and a measured time.
        peak: Of the device. The result is None if `peak` or `peak.flops` is None.

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
    buffer_len: int | None = None,
) -> float:
    """Return the largest number of tokens per second that decoding can reach, over all sequences.

    At small batch sizes memory bandwidth limits decoding, because each weight that is read takes
    part in only a few operations.

    Args:
        config: Sizes and choices.
        batch_size: Number of sequences.
        context: Tokens seen before.
        bandwidth: Of the memory, in bytes per second.
        dtype: Of weights, keys and values.
        source_len: Tokens per source, as in `decoding_flops`.
        buffer_len: Length of a static cache, as in `decoding_flops`.

    Raises:
        ValueError: As in `decoding_flops`.

    Source:
        Williams et al. 2009, Roofline, https://doi.org/10.1145/1498765.1498785; Pope et al.
        2023, Efficiently Scaling Transformer Inference, section 2,
        https://arxiv.org/abs/2211.05102

    """
    num_bytes = decoding_bytes(config, batch_size, context, dtype, source_len, buffer_len)
    return batch_size * bandwidth / num_bytes


# --- the parts -----------------------------------------------------------------------------


def _num_outputs(config: AnyConfig) -> int:
    own = config.num_outputs if isinstance(config, EncoderOnlyConfig) else None
    return config.vocab_size if own is None else own


def _width_of_heads(config: AnyConfig) -> int:
    return config.num_heads * config.d_head


def _key_and_value_bytes(config: AnyConfig, dtype: torch.dtype) -> int:
    """Count the bytes of one token in the cache of one layer."""
    return 2 * config.kv_heads * config.d_head * dtype.itemsize


def _part(name: str) -> str:
    for part, mark in (("embedding", ".tokens."), ("unembedding", "unembedding.")):
        if mark in name:
            return part
    named = (p for p in ("positions", "attention", "feed_forward") if f"{p}." in name)
    return next(named, "norms")


def _is_of_source(name: str) -> bool:
    """Return whether a parameter is applied to source tokens rather than to target tokens."""
    of_memory = "cross_attention.key" in name or "cross_attention.value" in name
    return of_memory or name.startswith(("source_embedding.", "encoder.", "encoder_norm."))


def _matrices(config: AnyConfig) -> dict[str, int]:
    """Return the number of entries of each matrix that tokens are multiplied by."""
    matrices = {
        name: math.prod(shape)
        for name, shape in parameter_shapes(config).items()
        if len(shape) == 2 and _part(name) not in ("embedding", "positions")
    }
    return matrices | {"unembedding.weight": _num_outputs(config) * config.d_model}


def _matrix_flops(config: AnyConfig, target: int, source: int) -> dict[str, int]:
    """Count the operations of all matrices for these numbers of target and source tokens."""
    parts = ("projections", "attention", "feed_forward", "unembedding")
    flops: dict[str, int] = dict.fromkeys(parts, 0)
    for name, size in _matrices(config).items():
        part = "projections" if _part(name) == "attention" else _part(name)
        flops[part] += 2 * size * (source if _is_of_source(name) else target)
    return flops


def _allowed_pairs(config: AnyConfig, length: int) -> int:
    window = min(_window(config) or length, length)
    return window * (window + 1) // 2 + (length - window) * window


def _keys_read(config: CachedConfig, context: int, buffer_len: int | None) -> int:
    return min(context + 1, _window(config) or context + 1) if buffer_len is None else buffer_len


def _window(config: AnyConfig) -> int | None:
    return config.window if isinstance(config, DecoderOnlyConfig) else None


def _require_lengths(config: AnyConfig, batch_size: int, source_len: int | None, **more) -> None:
    for name, number in {"batch_size": batch_size, "source_len": source_len, **more}.items():
        require(number is None or number >= 1, f"{name} must be at least 1", **{name: number})
    if (source_len is not None) != isinstance(config, EncoderDecoderConfig):
        raise ValueError(
            "source_len must be given for an encoder-decoder, and for no other model, "
            f"got source_len={source_len} for {type(config).__name__}"
        )


def _require_context(
    config: CachedConfig, batch_size: int, context: int, source_len: int | None, buffer: int | None
) -> None:
    _require_lengths(config, batch_size, source_len)
    require(context >= 0, "context must not be negative", context=context)
    fits = buffer is None or buffer > context
    require(fits, "buffer_len must exceed context", buffer_len=buffer, context=context)
