"""The same transformers as pure functions of their parameters and of their parts.

The parameters are a tree: nested dictionaries of tensors, named like the modules of
`groundup.core.models`. Unlike a module, a pure function can be differentiated with respect to its
parameters by `torch.func.grad`, mapped over examples by `torch.func.vmap`, and differentiated
again. The models work with or without a batch axis. Dropout can draw from
a generator of its own.

The parts, functions that compute attention, norms and so on, are an argument as well. `Parts` names
them as the exercises of the course do; each can be replaced on its own. `groundup.own_parts` runs
the library's models with a student's parts in this way.
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from groundup.core import attention, layers, multihead
from groundup.core.cache import KeyValueCache, LayerCache
from groundup.core.config import (
    Activation,
    AnyConfig,
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    EncoderOnlyConfig,
    require,
    require_dropout,
)
from groundup.core.layers import FeedForward, GatedFeedForward
from groundup.core.masks import causal_mask, masked_softmax, sliding_window_mask
from groundup.core.positions import alibi_bias as distance_bias
from groundup.core.positions import rotary_cos_sin, rotate, rotate_pairs, sinusoidal_table
from groundup.presets import MODELS

Tree = dict[str, Any]
"""Tensors or trees, by name."""
ACTIVATIONS = FeedForward.ACTIVATIONS | GatedFeedForward.ACTIVATIONS
_NAMES = {"geglu": "gelu", "geglu_tanh": "gelu_tanh", "swiglu": "silu"}
"""The part that is the activation function of a gated network."""


# The parts of a model


def scaled_dot_product_attention(
    query: Float[Tensor, "*batch q_len d_head"],
    key: Float[Tensor, "*batch k_len d_head"],
    value: Float[Tensor, "*batch k_len d_value"],
) -> tuple[Float[Tensor, "*batch q_len d_value"], Float[Tensor, "*batch q_len k_len"]]:
    """Attend without a mask; return the averages of the values and the weights."""
    weights = attention.attention_weights(query, key)
    return weights @ value, weights


def grouped_query_attention(
    query: Float[Tensor, "batch heads q_len d_head"],
    key: Float[Tensor, "batch kv_heads k_len d_head"],
    value: Float[Tensor, "batch kv_heads k_len d_value"],
) -> Float[Tensor, "batch heads q_len d_value"]:
    """Attend without a mask, with key and value heads shared by neighbouring query heads."""
    key, value = (multihead.repeat_kv_heads(heads, query.shape[1]) for heads in (key, value))
    return scaled_dot_product_attention(query, key, value)[0]


def feed_forward(
    x: Float[Tensor, "*batch d_model"],
    w_up: Float[Tensor, "d_model d_ff"],
    b_up: Float[Tensor, " d_ff"],
    w_down: Float[Tensor, "d_ff d_model"],
    b_down: Float[Tensor, " d_model"],
    activation: Activation,
) -> Float[Tensor, "*batch d_model"]:
    """Expand each token, apply a nonlinearity, and project back, as `layers.FeedForward`."""
    return ACTIVATIONS[activation](x @ w_up + b_up) @ w_down + b_down


def swiglu(
    x: Float[Tensor, "*batch d_model"],
    w_gate: Float[Tensor, "d_model d_ff"],
    w_up: Float[Tensor, "d_model d_ff"],
    w_down: Float[Tensor, "d_ff d_model"],
) -> Float[Tensor, "*batch d_model"]:
    """Expand each token, multiply by a gate, and project back, as `layers.GatedFeedForward`."""
    return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down


def learned_positions(
    x: Float[Tensor, "batch length d_model"],
    table: Float[Tensor, "max_len d_model"],
    offset: int = 0,
) -> Float[Tensor, "batch length d_model"]:
    """Add to each token the table's row for its position; the first has position `offset`.

    Raises:
        ValueError: If the table has too few rows.

    """
    length, max_len = x.shape[1], table.shape[0]
    rule = "offset + length must not exceed the rows of the table"
    require(offset + length <= max_len, rule, offset=offset, length=length, rows=max_len)
    return x + table[offset : offset + length]


def apply_rotary(
    x: Float[Tensor, "batch heads length d_head"],
    positions: Int[Tensor, "batch length"],
    base: float = 10_000.0,
) -> Float[Tensor, "batch heads length d_head"]:
    """Rotate neighbouring features by angles that grow with position, as `positions.rotate`."""
    return rotate(x, positions[:, None], base)


def alibi_bias(
    num_heads: int, q_len: int, k_len: int
) -> Float[Tensor, "{num_heads} {q_len} {k_len}"]:
    """Return a bias for the scores: minus a multiple of the distance, and -inf for later keys."""
    bias = distance_bias(num_heads, q_len, k_len).double()
    return bias.masked_fill(~causal_mask(q_len, k_len), -math.inf)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The functions that compute a model, under the names that the exercises use."""

    causal_mask: Callable[..., Tensor] = causal_mask
    """Takes `(q_len, k_len)`; returns which keys each query may attend to."""
    masked_softmax: Callable[..., Tensor] = masked_softmax
    """Takes `(scores, mask)`; returns weights over the allowed keys."""
    split_heads: Callable[..., Tensor] = multihead.split_heads
    """Takes `(x, num_heads)`; returns the features of each token, split into heads."""
    merge_heads: Callable[..., Tensor] = multihead.merge_heads
    """Takes `(heads)`; returns one row of features per token."""
    head_scores: Callable[..., Tensor] = attention.dot_scores
    """Takes `(query, key)`; returns the dot products in each head."""
    scaled_dot_product_attention: Callable[..., tuple[Tensor, Tensor]] = (
        scaled_dot_product_attention
    )
    """Takes `(query, key, value)`; returns averages and weights without a mask."""
    grouped_query_attention: Callable[..., Tensor] = grouped_query_attention
    """Takes `(query, key, value)` with fewer heads of keys and values; returns averages."""
    cached_attention: Callable[..., tuple[Tensor, Any]] | None = None
    """Takes `(query, key, value, cache)` of new tokens, before rotation; returns averages and a
    cache of its own kind. If None, an `OwnLayerCache` acts as a plain `LayerCache`."""
    MultiHeadAttention: type[nn.Module] | nn.Module | None = None
    """Takes `(d_model, num_heads)`; if None, attention is built from the parts above."""
    CrossAttention: type[nn.Module] | nn.Module | None = None
    """Takes `(d_model, num_heads)`; if None, cross-attention is built from the parts above."""
    layer_norm: Callable[..., Tensor] = layers.layer_norm
    """Takes `(x, gain, bias, eps)`."""
    rms_norm: Callable[..., Tensor] = layers.rms_norm
    """Takes `(x, gain, eps)`."""
    feed_forward: Callable[..., Tensor] | None = feed_forward
    """Takes `(x, w_up, b_up, w_down, b_down, activation)`; if None, built from an activation."""
    swiglu: Callable[..., Tensor] | None = swiglu
    """Takes `(x, w_gate, w_up, w_down)`; if None, built from an activation."""
    gelu: Callable[..., Tensor] = ACTIVATIONS["gelu"]
    """Takes `(x)`, as the next two do."""
    gelu_tanh: Callable[..., Tensor] = ACTIVATIONS["gelu_tanh"]
    silu: Callable[..., Tensor] = ACTIVATIONS["swiglu"]
    TransformerBlock: type[nn.Module] | nn.Module | None = None
    """Takes `(d_model, num_heads, d_ff, norm)`. Used if the activation is GELU; if None, blocks are
    built from the parts above."""
    sinusoidal_positions: Callable[..., Tensor] = sinusoidal_table
    """Takes `(length, d_model)`; returns a table of rows to add to tokens."""
    learned_positions: Callable[..., Tensor] = learned_positions
    """Takes `(x, table, offset)`; returns the tokens with their rows added."""
    apply_rotary: Callable[..., Tensor] = apply_rotary
    """Takes `(x, positions, base)`; returns rotated queries or keys."""
    alibi_bias: Callable[..., Tensor] = alibi_bias
    """Takes `(num_heads, q_len, k_len)`; returns what is added to the scores."""

    @classmethod
    def among(cls, things: Mapping[str, Any]) -> "Parts":
        """Take the parts that a mapping has by name, and the library's own for the others."""
        return cls(**{name: things[name] for name in cls.names() if name in things})

    @classmethod
    def names(cls) -> list[str]:
        """List the names of all parts."""
        return [field.name for field in fields(cls)]

    def built(self, config: AnyConfig) -> "Parts":
        """Instantiate the parts that are classes. The parameters they create are never used."""
        sizes = (config.d_model, config.num_heads)
        own: dict[str, nn.Module] = {}
        with torch.random.fork_rng(devices=[]):  # a constructor may draw weights
            for name in ("MultiHeadAttention", "CrossAttention"):
                if isinstance(layer := getattr(self, name), type):
                    own[name] = layer(*sizes)
            if isinstance(self.TransformerBlock, type):
                block = self.TransformerBlock(*sizes, config.d_ff, norm=config.norm_order)
                own["TransformerBlock"] = block
        return replace(self, **own) if own else self

    def of_layer(self, index: int) -> "Parts":
        """Return the parts of a layer, so that three layers use large parts and small ones.

        The first is a whole block, the second computes attention from small parts, the third
        the feed-forward network.
        """
        if index % 3 == 1:
            return replace(self, TransformerBlock=None, MultiHeadAttention=None)
        if index % 3 == 2:
            return replace(self, TransformerBlock=None, feed_forward=None, swiglu=None)
        return self


class OwnLayerCache(LayerCache):
    """Also stores what `Parts.cached_attention` returned, until something else changes the keys."""

    state: Any = None
    """The student's own cache."""
    version = 0
    """Number of changes to the keys that `state` has seen."""


LIBRARY = Parts()
"""The library's own parts."""


class _Pass(NamedTuple):
    """What all blocks of a forward pass share."""

    config: AnyConfig
    positions: Int[Tensor, "*rows length"]
    mask: Bool[Tensor, "..."] | None
    memory: Float[Tensor, "batch src_len d_model"] | None = None
    memory_mask: Bool[Tensor, "..."] | None = None
    parts: Parts = LIBRARY
    training: bool = False
    rows: Int[Tensor, " length"] | slice = slice(None)
    """Indices of the queries among the keys."""
    is_counted: bool = False
    """Whether the mask is the causal one, and positions are counted from the cached tokens on."""
    generator: torch.Generator | None = None

    def dropout(self, x: Tensor, rate: float | None = None) -> Tensor:
        rate = self.config.dropout if rate is None else rate
        if self.generator is not None and rate > 0:
            return dropout(x, rate, self.generator)
        return F.dropout(x, rate, self.training)

    def of_layer(self, index: int) -> "_Pass":
        return self._replace(parts=self.parts.of_layer(index))


# The three models


def decoder_only(
    parameters: Tree,
    tokens: Int[Tensor, "*batch length"],
    config: DecoderOnlyConfig,
    mask: Bool[Tensor, "..."] | None = None,
    parts: Parts = LIBRARY,
    *,
    cache: KeyValueCache | None = None,
    positions: Int[Tensor, "*rows length"] | None = None,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*batch length vocab"]:
    """Return the logits of the token after each position, as `models.DecoderOnly`.

    Args:
        parameters: From `init` or `from_module`.
        tokens: Token ids; with a cache, only those since the last call.
        config: Sizes and choices.
        mask: True where attention is allowed, on top of the causal mask; broadcasts to
            `(*batch, heads, length, length)`.
        parts: The functions that compute the model.
        cache: As in `models.DecoderOnly`, whose `new_cache` makes it.
        positions: Index of each token; by default continuing after the cached tokens.
        training: Whether to apply dropout, which draws from torch's global random state.
        generator: Draws dropout instead; see `dropout`.

    Raises:
        ValueError: If the sequence is longer than `max_len`.

    """
    length, parts = tokens.shape[-1], parts.built(config)
    start = 0 if cache is None else cache.length
    counted = start + torch.arange(length, device=tokens.device)
    offset = start if positions is None and isinstance(start, int) else None
    is_counted = positions is None and mask is None and config.window is None
    positions = counted if positions is None else positions
    kept = 0 if cache is None else cache.layers[0].keys.shape[-2]
    if isinstance(start, int):
        _require_fits(start + length, config.max_len)
        rows, k_len = slice(kept, None), kept + length
    else:  # a static cache: the queries are not the last of the keys
        rows, k_len = counted, kept
    if length > 1 or rows is counted or k_len > (config.window or k_len):
        past = _past(k_len, config.window, parts, tokens.device)[rows]
        mask = past if mask is None else past & mask
    now = _Pass(config, positions, mask, None, None, parts, training, rows, is_counted, generator)
    x = _embed(parameters["embedding"], tokens, config.max_len, now, offset)
    for index, block in enumerate(parameters["blocks"].values()):
        x = _block(block, x, now.of_layer(index), cache and cache.layers[index])
    return _logits(parameters, x, now).reshape(*tokens.shape, -1)


def encoder_only(
    parameters: Tree,
    tokens: Int[Tensor, "*batch length"],
    config: EncoderOnlyConfig,
    mask: Bool[Tensor, "*batch 1 1 length"] | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*answers outputs"]:
    """Return logits, one row per token or per sequence, as `models.EncoderOnly`.

    Args:
        parameters: From `init` or `from_module`.
        tokens: Token ids.
        config: Sizes and choices.
        mask: True on real tokens, as `padding_mask` makes it.
        generator: Draws dropout, which is off without it; see `dropout`.

    Raises:
        ValueError: If the sequence is longer than `max_len`.

    """
    _require_fits(tokens.shape[-1], config.max_len)
    positions = torch.arange(tokens.shape[-1], device=tokens.device)
    now = _Pass(config, positions, mask, generator=generator)
    x = _embed(parameters["embedding"], tokens, config.max_len, now)
    for block in parameters["blocks"].values():
        x = _block(block, x, now)
    if config.answers == "tokens":
        return _logits(parameters, x, now).reshape(*tokens.shape, -1)
    # Average over real tokens before the unembedding, which is linear.
    x = _final_norm(parameters, "final_norm", x, now)
    is_real = torch.ones_like(tokens) if mask is None else mask[..., 0, 0, :]  # (*batch, length)
    fraction = is_real / is_real.sum(dim=-1, keepdim=True).clamp(min=1)
    mean = (fraction.to(x.dtype).unsqueeze(-1) * x).sum(dim=-2)  # (batch, d_model)
    return (mean @ _unembedding(parameters).T).reshape(*tokens.shape[:-1], -1)


def encoder_decoder(
    parameters: Tree,
    source: Int[Tensor, "*batch src_len"],
    target: Int[Tensor, "*batch tgt_len"],
    config: EncoderDecoderConfig,
    source_mask: Bool[Tensor, "..."] | None = None,
    target_mask: Bool[Tensor, "..."] | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*batch tgt_len vocab"]:
    """Return the logits of the token after each target position, as `models.EncoderDecoder`.

    Args:
        parameters: From `init` or `from_module`.
        source: Token ids to read.
        target: Token ids generated so far, from the start token on.
        config: Sizes and choices.
        source_mask: True on source tokens that may be attended to.
        target_mask: True where target tokens may attend to one another, on top of the causal
            mask.
        generator: Draws dropout, which is off without it; see `dropout`.

    Raises:
        ValueError: If either sequence is longer than the model allows.

    """
    memory = encode(parameters, source, config, source_mask, generator=generator)
    masks = (source_mask, target_mask)
    return decode(parameters, target, memory, config, *masks, generator=generator)


def encode(
    parameters: Tree,
    source: Int[Tensor, "*batch src_len"],
    config: EncoderDecoderConfig,
    source_mask: Bool[Tensor, "..."] | None = None,
    parts: Parts = LIBRARY,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "rows src_len d_model"]:
    """Read the source, as `models.EncoderDecoder.encode`; arguments as in `encoder_decoder`."""
    length = source.shape[-1]
    _require_fits(length, config.source_max_len)
    positions = torch.arange(length, device=source.device)
    parts = parts.built(config)
    now = _Pass(config, positions, source_mask, None, None, parts, training, generator=generator)
    memory = _embed(parameters["source_embedding"], source, config.source_max_len, now)
    for index, block in enumerate(parameters["encoder"].values()):
        memory = _block(block, memory, now.of_layer(index))
    return _final_norm(parameters, "encoder_norm", memory, now)


def decode(
    parameters: Tree,
    target: Int[Tensor, "*batch tgt_len"],
    memory: Float[Tensor, "rows src_len d_model"],
    config: EncoderDecoderConfig,
    source_mask: Bool[Tensor, "..."] | None = None,
    target_mask: Bool[Tensor, "..."] | None = None,
    parts: Parts = LIBRARY,
    *,
    cache: KeyValueCache | None = None,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*batch tgt_len vocab"]:
    """Return logits from what `encode` returned, as `models.EncoderDecoder.decode`."""
    length, start = target.shape[-1], 0 if cache is None else int(cache.length)
    _require_fits(start + length, config.max_len)
    positions = start + torch.arange(length, device=target.device)
    parts, mask = parts.built(config), target_mask
    rows = slice(start, None)
    if length > 1:
        past = _past(start + length, None, parts, target.device)[rows]
        mask = past if mask is None else past & mask
    memories = (memory, source_mask)
    now = _Pass(config, positions, mask, *memories, parts, training, rows, generator=generator)
    # A shared embedding table is in the tree once.
    tables = parameters["source_embedding"] | parameters.get("embedding", {})
    x = _embed(tables, target, config.max_len, now, start)
    for index, block in enumerate(parameters["blocks"].values()):
        own, cross = (None, None) if cache is None else (cache.layers[index], cache.cross[index])
        x = _block(block, x, now.of_layer(index), own, cross)
    return _logits(parameters, x, now).reshape(*target.shape, -1)


def cross_entropy(
    logits: Float[Tensor, "*batch vocab"], targets: Int[Tensor, "*batch"]
) -> Float[Tensor, ""]:
    """Average the cross-entropy of the targets, in nats per token."""
    of_target = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return (logits.logsumexp(dim=-1) - of_target).mean()


def loss(
    parameters: Tree,
    tokens: Int[Tensor, "*batch length"],
    targets: Int[Tensor, "*batch length"],
    config: DecoderOnlyConfig,
    generator: torch.Generator | None = None,
) -> Float[Tensor, ""]:
    """Average the cross-entropy of `decoder_only`, in nats per token.

    `torch.func.grad(loss)` returns a tree like `parameters`.

    Args:
        parameters: From `init` or `from_module`.
        tokens: Token ids.
        targets: The token after each.
        config: Sizes and choices.
        generator: Draws dropout, which is off without it; see `dropout`.

    Raises:
        ValueError: As in `decoder_only`.

    """
    return cross_entropy(decoder_only(parameters, tokens, config, generator=generator), targets)


# Layers. Each gets its own branch of the tree.


def dropout(
    x: Float[Tensor, "*shape"], rate: float, generator: torch.Generator
) -> Float[Tensor, "*shape"]:
    """Set each number to 0 with probability `rate`, and scale the others up: the mean stays.

    Unlike torch's, it draws from a generator, which drops the same numbers whenever it is in the
    same state; each call advances it. `torch.func.vmap` must be told how to draw: with
    `randomness="different"` each example drops its own numbers, the same as in a batch; with
    "same", all examples drop the same ones. By default, `vmap` raises an error.

    Args:
        x: Any numbers.
        rate: Probability of 0.
        generator: Draws what is dropped; it must be on the device of `x`.

    Raises:
        ValueError: If `rate` is not at least 0 and below 1.

    Source:
        Srivastava et al. 2014, Dropout, https://jmlr.org/papers/v15/srivastava14a.html

    """
    require_dropout(rate=rate)
    keep = torch.rand(x.shape, generator=generator, device=x.device) >= rate
    return x * keep / (1 - rate)


def _embed(
    parameters: Tree, tokens: Tensor, max_len: int, now: _Pass, offset: int | None = 0
) -> Float[Tensor, "batch length d_model"]:
    """Look up tokens and add their positions, which are counted from `offset` unless None."""
    x = parameters["tokens"]["weight"][tokens.reshape(-1, tokens.shape[-1])]  # one batch axis
    if now.config.positions == "sinusoidal":
        table = now.parts.sinusoidal_positions(max_len, now.config.d_model)
        table = table.to(torch.get_default_dtype()).to(x)  # as the module rounds it
        x = x * math.sqrt(now.config.d_model) + table[now.positions]
    elif now.config.positions == "learned":
        table = parameters["positions"]["table"]["weight"]
        add = now.parts.learned_positions
        x = x + table[now.positions] if offset is None else add(x, table, offset)
    return now.dropout(x)


def _block(
    parameters: Tree, x: Tensor, now: _Pass, cache: Any = None, cross_cache: Any = None
) -> Float[Tensor, "batch length d_model"]:
    is_whole = "cross_attention" not in parameters and now.config.activation == "gelu"
    if now.parts.TransformerBlock is not None and is_whole:
        return _block_by_layer(parameters, x, now, cache)
    sublayers = {
        "attention": lambda x: _attention(parameters["attention"], x, now, now.mask, cache=cache),
        "cross_attention": lambda x: _attention(
            parameters["cross_attention"], x, now, now.memory_mask, now.memory, cross_cache
        ),
        "feed_forward": lambda x: _feed_forward(parameters["feed_forward"], x, now),
    }
    for name, sublayer in sublayers.items():
        if name not in parameters:
            continue
        norm = partial(_norm, parameters[f"{name}_norm"], now)
        if now.config.norm_order == "pre":
            x = x + now.dropout(sublayer(norm(x)))
        else:
            x = norm(x + now.dropout(sublayer(x)))
    return x


def _attention(
    parameters: Tree,
    x: Tensor,
    now: _Pass,
    mask: Tensor | None,
    context: Tensor | None = None,
    cache: Any = None,
) -> Float[Tensor, "batch q_len d_model"]:
    config, parts, positions = now.config, now.parts, now.config.positions
    source = x if context is None else context
    query, key, value = (
        parts.split_heads(_linear(parameters[name], tokens), heads)
        for name, tokens, heads in (
            ("query", x, config.num_heads),
            ("key", source, config.kv_heads),
            ("value", source, config.kv_heads),
        )
    )
    if config.qk_norm:
        query = parts.rms_norm(query, parameters["query_norm"]["gain"], config.norm_eps)
        key = parts.rms_norm(key, parameters["key_norm"]["gain"], config.norm_eps)
    unrotated = query, key, value
    if positions == "rotary" and context is None:
        rows = now.positions.expand(len(x), -1)  # (batch, q_len)
        query, key = (_rotate(h, rows, config, parts) for h in (query, key))
    is_own_cache = _can_cache(cache, now)
    if context is not None and cache is not None and cache.length > 0:
        key, value = cache.keys, cache.values  # an earlier call projected the context
    elif cache is not None:
        key, value = cache.append(key, value)
    if is_own_cache:
        assert cache is not None and parts.cached_attention is not None
        mixed, cache.state = parts.cached_attention(*unrotated, cache.state)
        cache.version = cache.keys._version
        return _linear(parameters["output"], parts.merge_heads(mixed))
    shared = query, key, value
    key, value = (multihead.repeat_kv_heads(heads, config.num_heads) for heads in (key, value))
    bias = _distance_bias(query, key, now) if positions == "alibi" and context is None else None
    rate = config.attention_dropout if now.training or now.generator else 0.0
    if context is None:
        layer, fits = parts.MultiHeadAttention, mask is None or mask.ndim < 4 or mask.shape[1] == 1
    else:
        layer, fits = parts.CrossAttention, mask is None or mask.shape[:-1] == (len(x), 1, 1)
    fits = fits and config.num_heads * config.d_head == config.d_model  # what an exercise assumes
    if layer is not None and fits and bias is None and not rate:
        return _attention_by_layer(layer, parameters, x, now, (query, key, value), mask)
    if mask is None and bias is None and not rate:
        if config.kv_heads < config.num_heads:
            mixed = parts.grouped_query_attention(*shared)
        else:
            mixed, _ = parts.scaled_dot_product_attention(query, key, value)
    else:
        scores = parts.head_scores(query, key) / math.sqrt(config.d_head)
        scores = scores if bias is None else scores + bias
        mask = torch.ones_like(scores[0, 0], dtype=torch.bool) if mask is None else mask
        mixed = now.dropout(parts.masked_softmax(scores, mask), rate) @ value
    return _linear(parameters["output"], parts.merge_heads(mixed))


def _rotate(
    x: Tensor, positions: Tensor, config: AnyConfig, parts: Parts
) -> Float[Tensor, "batch heads length d_head"]:
    if config.rotary_frequencies is None:
        x = parts.apply_rotary(x, positions, config.rotary_base)
    else:  # the exercise knows a base only
        frequencies = torch.tensor(config.rotary_frequencies, dtype=torch.float64, device=x.device)
        dtype = torch.promote_types(x.dtype, torch.float32)
        x = rotate_pairs(x, rotary_cos_sin(positions[:, None], frequencies, dtype))
    return x if config.rotary_scale == 1 else x * config.rotary_scale


def _can_cache(cache: Any, now: _Pass) -> bool:
    """Return whether `cached_attention` can continue: with the positions of its exercise."""
    config = now.config
    return (
        isinstance(cache, OwnLayerCache)
        and now.is_counted
        and now.parts.cached_attention is not None
        and now.parts.MultiHeadAttention is None
        and (config.positions, config.rotary_base) == ("rotary", 10_000.0)
        and (config.rotary_frequencies, config.rotary_scale) == (None, 1.0)
        and config.kv_heads == config.num_heads
        and cache.version == cache.keys._version
    )


def _distance_bias(query: Tensor, key: Tensor, now: _Pass) -> Float[Tensor, "heads q_len k_len"]:
    q_len, k_len, num_heads = query.shape[-2], key.shape[-2], now.config.num_heads
    if isinstance(now.rows, slice):
        bias = now.parts.alibi_bias(num_heads, q_len, k_len).to(query)
    else:
        bias = now.parts.alibi_bias(num_heads, k_len, k_len).to(query)[:, now.rows]
    bias = bias.masked_fill(bias.isinf(), 0.0)  # later keys are left to the mask
    return bias + bias.mT if q_len == k_len else bias  # an encoder attends to them as well


def _feed_forward(parameters: Tree, x: Tensor, now: _Pass) -> Float[Tensor, "*batch d_model"]:
    name, up, down = now.config.activation, parameters["up"], parameters["down"]
    parts = now.parts
    activation = getattr(parts, _NAMES.get(name, name), ACTIVATIONS[name])
    if name == "swiglu" and parts.swiglu is not None and not now.config.bias:
        weights = (parameters[linear]["weight"].T for linear in ("gate", "up", "down"))
        return parts.swiglu(x, *weights)
    if name in GatedFeedForward.ACTIVATIONS:
        return _linear(down, activation(_linear(parameters["gate"], x)) * _linear(up, x))
    if parts.feed_forward is None or name == "squared_relu":
        return _linear(down, activation(_linear(up, x)))
    biases = [linear.get("bias", x.new_zeros(len(linear["weight"]))) for linear in (up, down)]
    weights = (up["weight"].T, biases[0], down["weight"].T, biases[1])
    return parts.feed_forward(x, *weights, name)


def _linear(parameters: Tree, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
    return F.linear(x, parameters["weight"], parameters.get("bias"))


def _norm(parameters: Tree, now: _Pass, x: Tensor) -> Float[Tensor, "*batch d_model"]:
    gain, eps = parameters["gain"], now.config.norm_eps
    if now.config.norm == "rms":
        return now.parts.rms_norm(x, gain, eps)
    return now.parts.layer_norm(x, gain, parameters["bias"], eps)


def _final_norm(parameters: Tree, name: str, x: Tensor, now: _Pass) -> Tensor:
    # The output of a post-norm block is normalised already.
    return _norm(parameters[name], now, x) if name in parameters else x


def _logits(parameters: Tree, x: Tensor, now: _Pass) -> Float[Tensor, "*batch vocab"]:
    return _final_norm(parameters, "final_norm", x, now) @ _unembedding(parameters).T


def _unembedding(parameters: Tree) -> Float[Tensor, "vocab d_model"]:
    """Return the unembedding matrix: its own, or the embedding table that it is tied to."""
    if "unembedding" in parameters:
        return parameters["unembedding"]["weight"]
    tables = parameters.get("source_embedding", {}) | parameters.get("embedding", {})
    return tables["tokens"]["weight"]


def _past(
    length: int, window: int | None, parts: Parts, device: torch.device
) -> Bool[Tensor, "length length"]:
    if window is None:
        return parts.causal_mask(length, length).to(device)
    return sliding_window_mask(length, window, device=device)


def _require_fits(length: int, max_len: int) -> None:
    rule = "a sequence must not be longer than its model allows"
    require(length <= max_len, rule, length=length, max_len=max_len)


# Whole layers. A layer calls its sub-layers by name; ours replace them under these names.


class _Sublayer(nn.Module):
    """Wraps a function where a layer expects a module."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **choices: Any) -> Any:
        return self.function(*args, **choices)


def _with(layer: Any, **functions: Callable[..., Any]) -> nn.Module:
    """Copy a layer, replacing sub-layers by functions."""
    layer = copy.copy(layer)
    sublayers = {name: _Sublayer(function) for name, function in functions.items()}
    layer.__dict__["_modules"] = layer._modules | sublayers
    return layer


def _attention_by_layer(
    layer: Any,
    parameters: Tree,
    x: Tensor,
    now: _Pass,
    heads: tuple[Tensor, ...],
    mask: Tensor | None,
) -> Tensor:
    """Attend with a layer whose projections return heads that are already rotated and cached."""
    query, key, value = (now.parts.merge_heads(vectors) for vectors in heads)
    projections = {"query": lambda _: query, "key": lambda _: key, "value": lambda _: value}
    output = partial(_linear, parameters["output"])
    is_cross = layer is now.parts.CrossAttention
    layer = _with(layer, output=output, **projections)
    context = key if is_cross or key.shape != x.shape else None
    if mask is None:
        return layer(x, context, None)
    mask = mask.squeeze(1) if mask.ndim == 4 else mask  # (batch, q_len, k_len)
    if not is_cross:
        mask = mask.expand(*mask.shape[:-2], query.shape[1], key.shape[1])
    is_empty = ~mask.any(dim=-1, keepdim=True)
    allowed = mask | is_empty  # no exercise defines the output of an empty row
    out = layer(x, context, allowed[:, 0] if is_cross else allowed)
    return torch.where(is_empty, output(torch.zeros_like(x[:, :1])), out)


def _block_by_layer(parameters: Tree, x: Tensor, now: _Pass, cache: Any) -> Tensor:
    """Compute with a whole block, which calls attention as torch's: True means forbidden."""

    def attend(query: Tensor, *_: Tensor, attn_mask: Tensor | None = None, **__: Any):
        mask = None if attn_mask is None else attn_mask == 0  # boolean, or added to the scores
        return now.dropout(_attention(parameters["attention"], query, now, mask, cache=cache)), None

    up, down = (parameters["feed_forward"][name] for name in ("up", "down"))
    block = _with(
        now.parts.TransformerBlock,
        attention=attend,
        attention_norm=partial(_norm, parameters["attention_norm"], now),
        feed_forward_norm=partial(_norm, parameters["feed_forward_norm"], now),
        up=partial(_linear, up),
        down=lambda hidden: now.dropout(_linear(down, hidden)),
    )
    return block(x, now.mask)


# Trees of parameters


def init(config: AnyConfig, generator: torch.Generator | None = None) -> Tree:
    """Draw the initial parameters of a model.

    A table that two layers share is in the tree once, under its first name.

    Args:
        config: Sizes and choices.
        generator: Draws the numbers; by default torch's global generator.

    """
    return from_module(MODELS[type(config)](config, generator))


def from_module(model: nn.Module) -> Tree:
    """Copy the parameters of a model of `groundup.core.models` into a tree.

    A parameter that two modules share appears once, so it has one gradient.
    """
    return unflatten({name: own.detach().clone() for name, own in model.named_parameters()})


def to_module(parameters: Tree, model: nn.Module) -> nn.Module:
    """Copy a tree into a model with the same configuration.

    Returns:
        The same model.

    Raises:
        ValueError: If the names or the shapes differ.

    """
    given, own = flatten(parameters), dict(model.named_parameters())
    if given.keys() != own.keys():
        names = ", ".join(sorted(given.keys() ^ own.keys()))
        raise ValueError(f"tree and model must have the same parameters, got one with {names}")
    for name, values in given.items():
        if values.shape != own[name].shape:
            raise ValueError(
                f"tree and model must have the same shapes, got {name} of shape "
                f"{tuple(values.shape)} for {tuple(own[name].shape)}"
            )
    with torch.no_grad():
        for name, values in given.items():
            own[name].copy_(values)
    return model


def flatten(tree: Tree, prefix: str = "") -> dict[str, Tensor]:
    """List the tensors of a tree by their dotted names, as `named_parameters` does."""
    flat = {}
    for name, branch in tree.items():
        is_tree = isinstance(branch, dict)
        flat |= flatten(branch, f"{prefix}{name}.") if is_tree else {f"{prefix}{name}": branch}
    return flat


def unflatten(flat: Mapping[str, Tensor]) -> Tree:
    """Rebuild a tree from dotted names: the inverse of `flatten`."""
    tree: Tree = {}
    for name, values in flat.items():
        *path, last = name.split(".")
        branch = tree
        for step in path:
            branch = branch.setdefault(step, {})
        branch[last] = values
    return tree


def tree_map(function: Callable[..., Tensor], *trees: Tree) -> Tree:
    """Apply a function to the corresponding tensors of one or more trees.

    Raises:
        ValueError: If the trees have different names.

    """
    first = trees[0]
    if any(tree.keys() != first.keys() for tree in trees):
        raise ValueError(f"trees must have the same names, got {[sorted(tree) for tree in trees]}")
    return {
        name: tree_map(function, *(tree[name] for tree in trees))
        if isinstance(first[name], dict)
        else function(*(tree[name] for tree in trees))
        for name in first
    }


def sgd_step(parameters: Tree, gradients: Tree, learning_rate: float) -> Tree:
    """Take one step of gradient descent; it needs no optimizer object, because it has no state."""
    return tree_map(lambda p, g: p - learning_rate * g, parameters, gradients)
