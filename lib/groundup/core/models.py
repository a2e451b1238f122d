"""Whole models: tokens in, logits out.

A decoder gives one row of logits per position, for the token after it; an encoder gives one per
token or one per sequence. Logits are not normalised: the loss and the sampler each apply their
own softmax.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from groundup.core.blocks import Block, DecoderBlock
from groundup.core.cache import KeyValueCache, LayerCache
from groundup.core.config import (
    AnyConfig,
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    EncoderOnlyConfig,
    require,
)
from groundup.core.embedding import InputEmbedding
from groundup.core.layers import new_norm
from groundup.core.masks import combine_masks, sliding_window_mask
from groundup.core.positions import Rotary


class _Autoregressive(nn.Module):
    """What the two models that generate have in common: a cache."""

    config: DecoderOnlyConfig | EncoderDecoderConfig
    embedding: InputEmbedding

    def new_cache(
        self, batch_size: int, max_len: int | None = None, kind: type[LayerCache] = LayerCache
    ) -> KeyValueCache:
        """Make an empty cache on the model's device; arguments as in `KeyValueCache`."""
        weight = self.embedding.tokens.weight
        return KeyValueCache(self.config, batch_size, max_len, kind, weight.device, weight.dtype)


class DecoderOnly(_Autoregressive):
    """Predicts each token from the tokens before it.

    Args:
        config: The model's configuration.
        generator: Where the initial weights come from; by default torch's global generator.

    Source:
        Radford et al. 2019, Language Models are Unsupervised Multitask Learners, section 2.3

    """

    def __init__(self, config: DecoderOnlyConfig, generator: torch.Generator | None = None):
        super().__init__()
        self.config: DecoderOnlyConfig = config
        self.embedding = InputEmbedding(config.vocab_size, config.max_len, config)
        self.blocks = _stack(Block, config.num_layers, config, config.max_len, causal=True)
        self.final_norm = _final_norm(config)
        self.unembedding = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.unembedding.weight = self.embedding.tokens.weight
        initialise(self, config, generator, self.blocks)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        mask: Bool[Tensor, "..."] | None = None,
        cache: KeyValueCache | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
    ) -> Float[Tensor, "batch length vocab"]:
        """Return the logits of the token after each position.

        Args:
            tokens: Token ids; with a cache, only those since the last call.
            mask: True where attention is allowed, as in `MultiHeadAttention`. Later tokens are
                hidden in any case, in training and in evaluation.
            cache: From `new_cache`; stores keys and values of these tokens for the next call.
            positions: Index of each token; by default continuing after the cached tokens. Needed
                in a batch that is padded on the left.

        Raises:
            ValueError: If the sequence grows longer than `max_len`. A static cache does not check.

        """
        length, window = tokens.shape[1], self.config.window
        counted = _positions_within(tokens, "max_len", self.config.max_len, cache)
        positions = counted if positions is None else positions
        if cache is not None:
            mask = combine_masks(cache.allowed(length), mask)  # the cache applies the window
        elif window is not None and window < length:
            mask = combine_masks(sliding_window_mask(length, window, device=tokens.device), mask)

        x = self.embedding(tokens, positions)
        caches = [None] * len(self.blocks) if cache is None else cache.layers
        for block, layer_cache in zip(self.blocks, caches, strict=True):
            x = block(x, mask, layer_cache, positions)
        return self.unembedding(self.final_norm(x))


def _stack(
    kind: type[Block], num_layers: int, config: AnyConfig, max_len: int, causal: bool
) -> nn.ModuleList:
    names = "d_model num_heads d_ff activation norm norm_eps norm_order bias dropout".split()
    names += "num_kv_heads d_head attention_dropout qk_norm".split()  # passed on to attention
    choices = {name: getattr(config, name) for name in names}
    if config.positions == "rotary":  # one table serves all blocks
        how = (config.rotary_base, config.rotary_frequencies, config.rotary_scale)
        choices["rotary"] = Rotary(max_len, config.d_head, *how)
    choices |= {"alibi": config.positions == "alibi", "is_causal": causal}
    return nn.ModuleList(kind(**choices) for _ in range(num_layers))


def _final_norm(config: AnyConfig) -> nn.Module:
    # Pre-norm blocks leave the residual stream itself unnormalised, so it is normalised at its end.
    if config.norm_order == "post":
        return nn.Identity()
    return new_norm(config.norm, config.d_model, config.norm_eps)


def _positions_within(
    tokens: Tensor, name: str, max_len: int, cache: KeyValueCache | None = None
) -> Int[Tensor, " length"]:
    """Count the tokens, on from those in the cache; refuse more than `max_len` in all."""
    start = 0 if cache is None else cache.length
    if isinstance(start, int):  # a static cache has a tensor: reading it would wait for the device
        end = start + tokens.shape[1]
        rule = f"a sequence must not be longer than {name}"
        require(end <= max_len, rule, **{"length": end, name: max_len})
    return start + torch.arange(tokens.shape[1], device=tokens.device)


class EncoderOnly(nn.Module):
    """Reads a sequence in both directions, and gives logits for each token or for the whole.

    Args:
        config: The model's configuration.
        generator: Where the initial weights come from; by default torch's global generator.

    Source:
        Devlin et al. 2019, BERT, section 3, https://arxiv.org/abs/1810.04805

    """

    def __init__(self, config: EncoderOnlyConfig, generator: torch.Generator | None = None):
        super().__init__()
        self.config = config
        self.embedding = InputEmbedding(config.vocab_size, config.max_len, config)
        self.blocks = _stack(Block, config.num_layers, config, config.max_len, causal=False)
        self.final_norm = _final_norm(config)
        num_outputs = config.num_outputs or config.vocab_size
        self.unembedding = nn.Linear(config.d_model, num_outputs, bias=False)
        if config.tie_embeddings:
            self.unembedding.weight = self.embedding.tokens.weight
        initialise(self, config, generator, self.blocks)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        mask: Bool[Tensor, "batch 1 1 length"] | None = None,
    ) -> Float[Tensor, "batch length outputs"] | Float[Tensor, "batch outputs"]:
        """Return the logits of the answers, one row per token or one per sequence.

        Args:
            tokens: Token ids.
            mask: True on real tokens, as `padding_mask` makes it. An answer for the whole
                sequence is taken from the mean over these.

        Raises:
            ValueError: If the sequence is longer than `max_len`.

        """
        positions = _positions_within(tokens, "max_len", self.config.max_len)
        x = self.embedding(tokens, positions)
        for block in self.blocks:
            x = block(x, mask, positions=positions)
        x = self.final_norm(x)
        if self.config.answers == "sequence":  # the mean over real tokens, as a matrix product
            is_real = torch.ones_like(tokens) if mask is None else mask[:, 0, 0]  # (batch, length)
            weights = is_real / is_real.sum(dim=-1, keepdim=True).clamp(min=1)
            x = (weights.to(x.dtype).unsqueeze(-2) @ x).squeeze(-2)  # (batch, d_model)
        return self.unembedding(x)


class EncoderDecoder(_Autoregressive):
    """Reads a source sequence once, then predicts each next token of a target sequence.

    Args:
        config: The model's configuration.
        generator: Where the initial weights come from; by default torch's global generator.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, section 3,
        https://arxiv.org/abs/1706.03762

    """

    def __init__(self, config: EncoderDecoderConfig, generator: torch.Generator | None = None):
        super().__init__()
        self.config: EncoderDecoderConfig = config
        source_max_len, num_encoder_layers = config.source_max_len, config.num_encoder_layers
        self.source_embedding = InputEmbedding(config.source_vocab_size, source_max_len, config)
        self.embedding = InputEmbedding(config.vocab_size, config.max_len, config)
        self.encoder = _stack(Block, num_encoder_layers, config, source_max_len, causal=False)
        self.encoder_norm = _final_norm(config)
        self.blocks = _stack(DecoderBlock, config.num_layers, config, config.max_len, causal=True)
        self.final_norm = _final_norm(config)
        self.unembedding = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.unembedding.weight = self.embedding.tokens.weight
        if config.tie_source_embeddings:
            self.source_embedding.tokens.weight = self.embedding.tokens.weight
        initialise(self, config, generator, self.encoder, self.blocks)

    def forward(
        self,
        source: Int[Tensor, "batch src_len"],
        target: Int[Tensor, "batch tgt_len"],
        source_mask: Bool[Tensor, "..."] | None = None,
        target_mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch tgt_len vocab"]:
        """Return the logits of the token after each target position.

        Args:
            source: Token ids to read.
            target: Token ids generated so far, from the start token on.
            source_mask: True on source tokens that may be attended to, by the encoder and by
                cross-attention alike, as `padding_mask` makes it: `(batch, 1, 1, src_len)`.
            target_mask: True where target tokens may attend to one another. Later tokens are
                hidden in any case.

        Raises:
            ValueError: If either sequence is longer than the model allows.

        """
        return self.decode(target, self.encode(source, source_mask), source_mask, target_mask)

    def encode(
        self,
        source: Int[Tensor, "batch src_len"],
        source_mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch src_len d_model"]:
        """Read the source. The result is the memory that `decode` attends to."""
        positions = _positions_within(source, "source_max_len", self.config.source_max_len)
        x = self.source_embedding(source, positions)
        for block in self.encoder:
            x = block(x, source_mask, positions=positions)
        return self.encoder_norm(x)

    def decode(
        self,
        target: Int[Tensor, "batch tgt_len"],
        memory: Float[Tensor, "batch src_len d_model"],
        source_mask: Bool[Tensor, "..."] | None = None,
        target_mask: Bool[Tensor, "..."] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "batch tgt_len vocab"]:
        """Return the logits of the token after each target position, given an encoded source.

        Args:
            target: Token ids; with a cache, only those since the last call.
            memory: What `encode` returned. With a cache, only the first call reads it: the keys
                and values that cross-attention computes from it are stored.
            source_mask: As in `forward`.
            target_mask: As in `forward`.
            cache: From `new_cache`; stores keys and values of these tokens for the next call.

        """
        positions = _positions_within(target, "max_len", self.config.max_len, cache)
        own, cross = [None] * len(self.blocks), [None] * len(self.blocks)  # no caches
        if cache is not None:
            target_mask = combine_masks(cache.allowed(target.shape[1]), target_mask)
            own, cross = cache.layers, cache.cross  # of self-attention, of cross-attention

        x = self.embedding(target, positions)
        for block, own_cache, cross_cache in zip(self.blocks, own, cross, strict=True):
            x = block(x, memory, target_mask, source_mask, own_cache, cross_cache, positions)
        return self.unembedding(self.final_norm(x))


AnyModel = DecoderOnly | EncoderOnly | EncoderDecoder


def initialise(
    model: nn.Module, config: AnyConfig, generator: torch.Generator | None, *stacks: nn.ModuleList
) -> None:
    """Draw the initial weights, on a scale that suits the model's width and depth.

    Weights and embeddings are normal with variance `2 / (5 d_model)`: at the width of GPT-2 small
    a standard deviation of 0.023, where its code has 0.02. Scaled up, token vectors have variance
    2/5, close to the sinusoids' 1/2. In a pre-norm stack each residual connection adds variance to
    the stream, so the weights of a layer that writes to it are divided by the square root of the
    number of connections. With `zero_init_outputs` they are zero, whatever the order of the norms.
    Biases start at 0, gains at 1.

    Args:
        model: What was just built; its parameters are overwritten.
        config: The model's configuration.
        generator: Where the numbers come from; None for torch's global generator.
        *stacks: Its stacks of blocks, each with a residual stream of its own.

    Source:
        Nguyen and Salazar 2019, Transformers without Tears (SmallInit),
        https://arxiv.org/abs/1910.05895; Radford et al. 2019, Language Models are Unsupervised
        Multitask Learners, section 2.3 (residual scaling); Zhang et al. 2019, Fixup
        Initialization, section 3, https://arxiv.org/abs/1901.09321 (zero)

    """
    std = math.sqrt(2 / (5 * config.d_model))
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std, generator=generator)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for stack in stacks:
        weights = dict(stack.named_parameters())
        writers = [name for name in weights if name.endswith("output.weight")]  # attention
        writers += [name for name in weights if name.endswith("down.weight")]  # feed-forward
        for name in writers:
            if config.zero_init_outputs:
                nn.init.zeros_(weights[name])
            elif config.norm_order == "pre":
                own_std = std / math.sqrt(len(writers))
                nn.init.normal_(weights[name], std=own_std, generator=generator)
