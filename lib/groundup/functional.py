"""The same transformer once more, as pure functions: numbers in, numbers out, no object between.

A model is a tree, a dictionary of dictionaries with tensors at the ends, named like the modules
of `groundup.models`. What can be said of such a function that cannot be said of a module? It can
be differentiated by its parameters with `torch.func.grad`, mapped over examples with
`torch.func.vmap`, differentiated again. All of it works with or without a batch axis. Dropout
plays no part: the outputs are those of the modules in evaluation mode.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from groundup.attention import scaled_dot_product_attention
from groundup.config import (
    AnyConfig,
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    EncoderOnlyConfig,
)
from groundup.layers import FeedForward, GatedFeedForward, layer_norm, rms_norm
from groundup.masks import causal_mask, sliding_window_mask
from groundup.positions import alibi_bias, rotate, sinusoidal_table

Tree = dict[str, Any]
"""Tensors, or trees again, by name."""
ACTIVATIONS = FeedForward.ACTIVATIONS | GatedFeedForward.ACTIVATIONS


# The three models


def decoder_only(
    parameters: Tree,
    tokens: Int[Tensor, "*batch length"],
    config: DecoderOnlyConfig,
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*batch length vocab"]:
    """Give the logits of the token after each position, as `models.DecoderOnly`.

    Args:
        parameters: From `init` or `from_module`.
        tokens: Token numbers.
        config: Sizes and choices.
        mask: True where attention is allowed, on top of the causal mask; broadcasts to
            `(*batch, heads, length, length)`.

    Raises:
        ValueError: If the sequence is longer than `max_len`.

    """
    x = _embed(parameters["embedding"], tokens, config.max_len, config)
    mask = _past(tokens.shape[-1], config.window, mask, tokens.device)
    for block in parameters["blocks"].values():
        x = _block(block, x, config, mask)
    return _logits(parameters, x, config)


def encoder_only(
    parameters: Tree,
    tokens: Int[Tensor, "*batch length"],
    config: EncoderOnlyConfig,
    mask: Bool[Tensor, "*batch 1 1 length"] | None = None,
) -> Float[Tensor, "*answers outputs"]:
    """Give the logits of the answers, one row per token or per sequence, as `models.EncoderOnly`.

    Args:
        parameters: From `init` or `from_module`.
        tokens: Token numbers.
        config: Sizes and choices.
        mask: True on real tokens, as `padding_mask` makes it.

    Raises:
        ValueError: If the sequence is longer than `max_len`.

    """
    x = _embed(parameters["embedding"], tokens, config.max_len, config)
    for block in parameters["blocks"].values():
        x = _block(block, x, config, mask)
    if config.answers == "tokens":
        return _logits(parameters, x, config)
    # The mean over real tokens; everything after it is linear or works on each token alone.
    x = _final_norm(parameters, "final_norm", x, config)
    is_real = torch.ones_like(tokens) if mask is None else mask[..., 0, 0, :]  # (*batch, length)
    share = is_real / is_real.sum(dim=-1, keepdim=True).clamp(min=1)
    mean = (share.to(x.dtype).unsqueeze(-1) * x).sum(dim=-2)  # (*batch, d_model)
    return mean @ _output_table(parameters, config).T


def encoder_decoder(
    parameters: Tree,
    source: Int[Tensor, "*batch src_len"],
    target: Int[Tensor, "*batch tgt_len"],
    config: EncoderDecoderConfig,
    source_mask: Bool[Tensor, "..."] | None = None,
    target_mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*batch tgt_len vocab"]:
    """Give the logits of the token after each target position, as `models.EncoderDecoder`.

    Args:
        parameters: From `init` or `from_module`.
        source: Token numbers to read.
        target: Token numbers written so far, from the start token on.
        config: Sizes and choices.
        source_mask: True on source tokens that may be attended to.
        target_mask: True where target tokens may attend to one another, on top of the causal
            mask.

    Raises:
        ValueError: If either sequence is longer than the model allows.

    """
    memory = _embed(parameters["source_embedding"], source, config.source_max_len, config)
    for block in parameters["encoder"].values():
        memory = _block(block, memory, config, source_mask)
    memory = _final_norm(parameters, "encoder_norm", memory, config)
    embedding = parameters.get("embedding", {})
    if config.tie_source_embeddings:
        embedding = embedding | {"tokens": parameters["source_embedding"]["tokens"]}
    x = _embed(embedding, target, config.max_len, config)
    mask = _past(target.shape[-1], None, target_mask, target.device)
    for block in parameters["blocks"].values():
        x = _block(block, x, config, mask, memory, source_mask)
    return _logits(parameters, x, config)


def cross_entropy(
    logits: Float[Tensor, "*batch vocab"], targets: Int[Tensor, "*batch"]
) -> Float[Tensor, ""]:
    """Average the surprise at the right token, in nats per token."""
    right = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return (logits.logsumexp(dim=-1) - right).mean()


def loss(
    parameters: Tree,
    tokens: Int[Tensor, "*batch length"],
    targets: Int[Tensor, "*batch length"],
    config: DecoderOnlyConfig,
) -> Float[Tensor, ""]:
    """Average the surprise of `decoder_only` at the right tokens, in nats per token.

    `torch.func.grad(loss)` gives a tree like `parameters`.

    Args:
        parameters: From `init` or `from_module`.
        tokens: Token numbers.
        targets: The token after each.
        config: Sizes and choices.

    Raises:
        ValueError: As in `decoder_only`.

    """
    return cross_entropy(decoder_only(parameters, tokens, config), targets)


# Their parts


def _embed(
    parameters: Tree,
    tokens: Int[Tensor, "*batch length"],
    max_len: int,
    config: AnyConfig,
) -> Float[Tensor, "*batch length d_model"]:
    length = tokens.shape[-1]
    if length > max_len:
        raise ValueError(
            f"a sequence must not be longer than its model allows, got length={length}, "
            f"longest={max_len}"
        )
    x = parameters["tokens"]["weight"][tokens]
    if config.positions == "sinusoidal":
        table = sinusoidal_table(length, config.d_model).to(x)
        return x * math.sqrt(config.d_model) + table
    if config.positions == "learned":
        return x + parameters["positions"]["table"]["weight"][:length]
    return x


def _block(
    parameters: Tree,
    x: Float[Tensor, "*batch length d_model"],
    config: AnyConfig,
    mask: Bool[Tensor, "..."] | None,
    memory: Float[Tensor, "*batch src_len d_model"] | None = None,
    memory_mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*batch length d_model"]:
    sublayers = {
        "attention": lambda x: _attention(parameters["attention"], x, x, config, mask, True)
    }
    if memory is not None:
        sublayers["cross_attention"] = lambda x: _attention(
            parameters["cross_attention"], x, memory, config, memory_mask, False
        )
    sublayers["feed_forward"] = lambda x: _feed_forward(parameters["feed_forward"], x, config)
    for name, sublayer in sublayers.items():
        own = parameters[f"{name}_norm"]
        if config.norm_order == "pre":
            x = x + sublayer(_norm(own, x, config))
        else:
            x = _norm(own, x + sublayer(x), config)
    return x


def _attention(
    parameters: Tree,
    x: Float[Tensor, "*batch q_len d_model"],
    context: Float[Tensor, "*batch k_len d_model"],
    config: AnyConfig,
    mask: Bool[Tensor, "..."] | None,
    is_self: bool,
) -> Float[Tensor, "*batch q_len d_model"]:
    def heads(name: str, x: Tensor) -> Tensor:  # (*batch, heads, length, d_head)
        return _linear(parameters[name], x).unflatten(-1, (-1, config.d_head)).transpose(-3, -2)

    query, key, value = heads("query", x), heads("key", context), heads("value", context)
    bias = None
    if config.qk_norm:
        query = rms_norm(query, parameters["query_norm"]["gain"])
        key = rms_norm(key, parameters["key_norm"]["gain"])
    if is_self and config.positions == "rotary":
        positions = torch.arange(x.shape[-2], device=x.device)
        query, key = (rotate(turned, positions, config.rotary_base) for turned in (query, key))
    if is_self and config.positions == "alibi":
        bias = alibi_bias(config.num_heads, x.shape[-2], device=x.device, dtype=x.dtype)
    mixed = scaled_dot_product_attention(query, key, value, mask, score_bias=bias)
    return _linear(parameters["output"], mixed.transpose(-3, -2).flatten(-2))


def _feed_forward(
    parameters: Tree, x: Float[Tensor, "*batch d_model"], config: AnyConfig
) -> Float[Tensor, "*batch d_model"]:
    bend = ACTIVATIONS[config.activation]
    hidden = _linear(parameters["up"], x)
    if config.activation in GatedFeedForward.ACTIVATIONS:
        return _linear(parameters["down"], bend(_linear(parameters["gate"], x)) * hidden)
    return _linear(parameters["down"], bend(hidden))


def _linear(parameters: Tree, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
    out = x @ parameters["weight"].T
    return out + parameters["bias"] if "bias" in parameters else out


def _norm(
    parameters: Tree, x: Float[Tensor, "*batch d_model"], config: AnyConfig
) -> Float[Tensor, "*batch d_model"]:
    if config.norm == "rms":
        return rms_norm(x, parameters["gain"], config.norm_eps)
    return layer_norm(x, parameters["gain"], parameters["bias"], config.norm_eps)


def _final_norm(parameters: Tree, name: str, x: Tensor, config: AnyConfig) -> Tensor:
    # What leaves a post-norm block is normalised already.
    return x if config.norm_order == "post" else _norm(parameters[name], x, config)


def _logits(
    parameters: Tree, x: Float[Tensor, "*batch d_model"], config: AnyConfig
) -> Float[Tensor, "*batch vocab"]:
    return _final_norm(parameters, "final_norm", x, config) @ _output_table(parameters, config).T


def _output_table(parameters: Tree, config: AnyConfig) -> Float[Tensor, "vocab d_model"]:
    """Find the table that predicts tokens: its own, or the one that reads what it writes."""
    if not config.tie_embeddings:
        return parameters["unembedding"]["weight"]
    is_shared = isinstance(config, EncoderDecoderConfig) and config.tie_source_embeddings
    return parameters["source_embedding" if is_shared else "embedding"]["tokens"]["weight"]


def _past(
    length: int, window: int | None, mask: Tensor | None, device: torch.device
) -> Bool[Tensor, "..."]:
    if window is None:
        allowed = causal_mask(length, device=device)
    else:
        allowed = sliding_window_mask(length, window, device=device)
    return allowed if mask is None else allowed & mask


# Where parameters come from, and where they go


def init(config: AnyConfig, generator: torch.Generator | None = None) -> Tree:
    """Draw the parameters of a model, distributed as those of the modules.

    A table that two layers share stands in the tree once, where it is first read.

    Args:
        config: Sizes and choices.
        generator: Where the numbers come from; by default torch's global state.

    Returns:
        A tree of float32 tensors.

    """
    d_model, d_kv = config.d_model, config.kv_heads * config.d_head
    std = math.sqrt(2 / (5 * d_model))

    def normal(*shape: int, std: float = std) -> Tree:
        return {"weight": std * torch.randn(shape, generator=generator)}

    def linear(d_out: int, d_in: int, std: float = std) -> Tree:
        return normal(d_out, d_in, std=std) | ({"bias": torch.zeros(d_out)} if config.bias else {})

    def norm() -> Tree:
        gain = {"gain": torch.ones(d_model)}
        return gain if config.norm == "rms" else gain | {"bias": torch.zeros(d_model)}

    def attention(output_std: float) -> Tree:
        sizes = {"query": d_model, "key": d_kv, "value": d_kv}
        own = {name: linear(size, d_model) for name, size in sizes.items()}
        own |= {"output": linear(d_model, d_model, output_std)}
        gains = ("query_norm", "key_norm") if config.qk_norm else ()
        return own | {name: {"gain": torch.ones(config.d_head)} for name in gains}

    def stack(num_layers: int, attentions: tuple[str, ...]) -> Tree:
        # Each sum into a pre-norm stream adds variance, so all together add what one would.
        num_sums = num_layers * (len(attentions) + 1) if config.norm_order == "pre" else 1
        output_std = 0.0 if config.zero_init_outputs else std / math.sqrt(num_sums)
        names = ("gate", "up") if config.activation in GatedFeedForward.ACTIVATIONS else ("up",)

        def block() -> Tree:
            own: Tree = {name: attention(output_std) for name in attentions}
            own["feed_forward"] = {name: linear(config.d_ff, d_model) for name in names}
            own["feed_forward"]["down"] = linear(d_model, config.d_ff, output_std)
            return own | {f"{name}_norm": norm() for name in (*attentions, "feed_forward")}

        return {str(number): block() for number in range(num_layers)}

    def embedding(vocab_size: int, max_len: int) -> Tree:
        own: Tree = {"tokens": normal(vocab_size, d_model)}
        if config.positions == "learned":
            own["positions"] = {"table": normal(max_len, d_model)}
        return own

    tree: Tree = {}
    cross = ()
    if isinstance(config, EncoderDecoderConfig):
        cross = ("cross_attention",)
        tree["source_embedding"] = embedding(config.source_vocab_size, config.source_max_len)
        tree["encoder"] = stack(config.num_encoder_layers, ("attention",))
        if config.norm_order == "pre":
            tree["encoder_norm"] = norm()
    own = embedding(config.vocab_size, config.max_len)
    if isinstance(config, EncoderDecoderConfig) and config.tie_source_embeddings:
        del own["tokens"]
    tree |= {"embedding": own} if own else {}
    tree["blocks"] = stack(config.num_layers, ("attention", *cross))
    if config.norm_order == "pre":
        tree["final_norm"] = norm()
    if not config.tie_embeddings:
        is_reader = isinstance(config, EncoderOnlyConfig)
        num_outputs = config.num_outputs if is_reader else None
        tree["unembedding"] = normal(num_outputs or config.vocab_size, d_model)
    return tree


def from_module(model: nn.Module) -> Tree:
    """Copy the parameters of a model of `groundup.models` into a tree.

    A parameter that two modules share stands there once, so that its gradient is a single one.
    """
    tree: Tree = {}
    for name, values in model.named_parameters():
        *path, last = name.split(".")
        branch = tree
        for step in path:
            branch = branch.setdefault(step, {})
        branch[last] = values.detach().clone()
    return tree


def to_module(parameters: Tree, model: nn.Module) -> nn.Module:
    """Write a tree into a model that was made with the same configuration.

    Returns:
        The model that was given.

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


def tree_map(function: Callable[..., Tensor], *trees: Tree) -> Tree:
    """Apply a function to the tensors that stand in the same place of each tree.

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
    """Take one step downhill: all that training needs, without an object that remembers."""
    return tree_map(lambda p, g: p - learning_rate * g, parameters, gradients)
