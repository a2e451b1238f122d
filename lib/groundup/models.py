"""Whole models: tokens in, one row of logits per position out.

Logits are left as they are: the loss and the sampler each take the softmax that suits them.
"""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from groundup.blocks import Block, DecoderBlock
from groundup.cache import KeyValueCache
from groundup.config import DecoderOnlyConfig, EncoderDecoderConfig
from groundup.layers import FeedForward, LayerNorm
from groundup.masks import causal_mask
from groundup.multihead import MultiHeadAttention
from groundup.positions import LearnedPositions, SinusoidalPositions


class InputEmbedding(nn.Module):
    """What a token means plus where it stands. Rotary attention adds the second part later.

    Beside sinusoids, whose features have size 1, token vectors are scaled up by the root of
    `d_model`, so that neither drowns the other.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, sections 3.4, 3.5 and 5.4,
        https://arxiv.org/abs/1706.03762

    """

    def __init__(
        self, vocab_size: int, max_len: int, config: DecoderOnlyConfig | EncoderDecoderConfig
    ):
        super().__init__()
        tables = {"sinusoidal": SinusoidalPositions, "learned": LearnedPositions}
        self.tokens = nn.Embedding(vocab_size, config.d_model)
        self.positions = None
        if config.positions != "rotary":
            self.positions = tables[config.positions](max_len, config.d_model)
        self.scale = math.sqrt(config.d_model) if config.positions == "sinusoidal" else 1.0
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        start: int = 0,
    ) -> Float[Tensor, "batch length d_model"]:
        """Turn token numbers into vectors; the first stands at position `start`."""
        x = self.tokens(tokens) * self.scale
        if self.positions is not None:
            end = start + tokens.shape[1]
            x = x + self.positions(torch.arange(start, end, device=tokens.device))
        return self.dropout(x)


class DecoderOnly(nn.Module):
    """Predicts each next token from the tokens up to it.

    Args:
        config: Sizes and choices.
        generator: Where the initial weights come from; by default torch's global state.

    Source:
        Radford et al. 2019, Language Models are Unsupervised Multitask Learners, section 2.3

    """

    def __init__(self, config: DecoderOnlyConfig, generator: torch.Generator | None = None):
        super().__init__()
        self.config = config
        self.embedding = InputEmbedding(config.vocab_size, config.max_len, config)
        arguments = _block_arguments(config)
        self.blocks = nn.ModuleList(Block(**arguments) for _ in range(config.num_layers))
        self.final_norm = _final_norm(config)
        self.unembedding = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.unembedding.weight = self.embedding.tokens.weight
        _initialise(self, [self.blocks], generator)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        mask: Bool[Tensor, "..."] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "batch length vocab"]:
        """Give the logits of the token after each position.

        Args:
            tokens: Token numbers; with a cache, only those that came since the last call.
            mask: True where attention is allowed, on top of the causal mask which always holds,
                in training and after it; as in `MultiHeadAttention`.
            cache: From `new_cache`; remembers these tokens for the next call.

        Raises:
            ValueError: If the sequence grows longer than `max_len`.

        """
        start = 0 if cache is None else cache.length
        end = start + tokens.shape[1]
        _require_fits("max_len", self.config.max_len, end)
        mask = _with_causal(mask, start, end, tokens.device)
        x = self.embedding(tokens, start)
        caches = [None] * len(self.blocks) if cache is None else cache.layers
        for block, own in zip(self.blocks, caches, strict=True):
            x = block(x, mask, own)
        return self.unembedding(self.final_norm(x))

    def new_cache(self, batch_size: int, max_len: int | None = None) -> KeyValueCache:
        """Make an empty cache for `batch_size` sequences of up to `max_len` tokens.

        Raises:
            ValueError: If `max_len` is more than the model's own.

        """
        return _new_cache(self, batch_size, max_len)


class EncoderDecoder(nn.Module):
    """Reads a source sequence once, then predicts each next token of a target sequence.

    Args:
        config: Sizes and choices.
        generator: Where the initial weights come from; by default torch's global state.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, section 3,
        https://arxiv.org/abs/1706.03762

    """

    def __init__(self, config: EncoderDecoderConfig, generator: torch.Generator | None = None):
        super().__init__()
        self.config = config
        self.source_embedding = InputEmbedding(
            config.source_vocab_size, config.source_max_len, config
        )
        self.embedding = InputEmbedding(config.vocab_size, config.max_len, config)
        arguments = _block_arguments(config)
        self.encoder = nn.ModuleList(Block(**arguments) for _ in range(config.num_encoder_layers))
        self.encoder_norm = _final_norm(config)
        self.blocks = nn.ModuleList(DecoderBlock(**arguments) for _ in range(config.num_layers))
        self.final_norm = _final_norm(config)
        self.unembedding = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.unembedding.weight = self.embedding.tokens.weight
        if config.tie_source_embeddings:
            self.source_embedding.tokens.weight = self.embedding.tokens.weight
        _initialise(self, [self.encoder, self.blocks], generator)

    def forward(
        self,
        source: Int[Tensor, "batch src_len"],
        target: Int[Tensor, "batch tgt_len"],
        source_mask: Bool[Tensor, "..."] | None = None,
        target_mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch tgt_len vocab"]:
        """Give the logits of the token after each target position.

        Args:
            source: Token numbers to read.
            target: Token numbers written so far, from the start token on.
            source_mask: True on source tokens that may be attended to, by the encoder and by
                cross attention alike, as `padding_mask` makes it: `(batch, 1, 1, src_len)`.
            target_mask: True where target tokens may attend to one another, on top of the
                causal mask.

        Raises:
            ValueError: If either sequence is longer than the model allows.

        """
        return self.decode(target, self.encode(source, source_mask), source_mask, target_mask)

    def encode(
        self,
        source: Int[Tensor, "batch src_len"],
        source_mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch src_len d_model"]:
        """Read the source. What comes out is the memory that `decode` asks."""
        _require_fits("source_max_len", self.config.source_max_len, source.shape[1])
        x = self.source_embedding(source)
        for block in self.encoder:
            x = block(x, source_mask)
        return self.encoder_norm(x)

    def decode(
        self,
        target: Int[Tensor, "batch tgt_len"],
        memory: Float[Tensor, "batch src_len d_model"],
        source_mask: Bool[Tensor, "..."] | None = None,
        target_mask: Bool[Tensor, "..."] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "batch tgt_len vocab"]:
        """Give the logits of the token after each target position, from a source read before.

        Args:
            target: Token numbers; with a cache, only those that came since the last call.
            memory: What `encode` gave. A cache takes its keys and values from it once, at the
                first call.
            source_mask: As in `forward`.
            target_mask: As in `forward`.
            cache: From `new_cache`; remembers these tokens for the next call.

        """
        start = 0 if cache is None else cache.length
        end = start + target.shape[1]
        _require_fits("max_len", self.config.max_len, end)
        mask = _with_causal(target_mask, start, end, target.device)
        x = self.embedding(target, start)
        none = [None] * len(self.blocks)
        own, cross = (none, none) if cache is None else (cache.layers, cache.cross)
        for block, own_cache, cross_cache in zip(self.blocks, own, cross, strict=True):
            x = block(x, memory, mask, source_mask, own_cache, cross_cache)
        return self.unembedding(self.final_norm(x))

    def new_cache(self, batch_size: int, max_len: int | None = None) -> KeyValueCache:
        """Make an empty cache for `batch_size` targets of up to `max_len` tokens.

        Raises:
            ValueError: If `max_len` is more than the model's own.

        """
        return _new_cache(self, batch_size, max_len, self.config.source_max_len)


def _block_arguments(config: DecoderOnlyConfig | EncoderDecoderConfig) -> dict[str, Any]:
    return {
        "d_model": config.d_model,
        "num_heads": config.num_heads,
        "d_ff": config.d_ff,
        "num_kv_heads": config.num_kv_heads,
        "activation": config.activation,
        "norm_order": config.norm_order,
        "dropout": config.dropout,
        "rotary": config.positions == "rotary",
    }


def _final_norm(config: DecoderOnlyConfig | EncoderDecoderConfig) -> nn.Module:
    # A pre-norm stream is never normalised on its way, so it is before it is read.
    return LayerNorm(config.d_model) if config.norm_order == "pre" else nn.Identity()


def _require_fits(name: str, max_len: int, length: int) -> None:
    if length > max_len:
        raise ValueError(
            f"a sequence must not be longer than {name}, got length={length}, {name}={max_len}"
        )


def _with_causal(
    mask: Bool[Tensor, "..."] | None, start: int, end: int, device: torch.device
) -> Bool[Tensor, "..."]:
    causal = causal_mask(end - start, end, device)
    return causal if mask is None else causal & mask


def _new_cache(
    model: DecoderOnly | EncoderDecoder,
    batch_size: int,
    max_len: int | None,
    source_max_len: int | None = None,
) -> KeyValueCache:
    config, weight = model.config, model.unembedding.weight
    max_len = config.max_len if max_len is None else max_len
    if not 1 <= max_len <= config.max_len:
        raise ValueError(
            "a cache must hold from 1 to as many tokens as the model, "
            f"got max_len={max_len}, the model's max_len={config.max_len}"
        )
    num_kv_heads = config.num_kv_heads or config.num_heads
    sizes = (config.num_layers, batch_size, num_kv_heads, max_len, config.d_head, source_max_len)
    return KeyValueCache(*sizes, device=weight.device, dtype=weight.dtype)


def _initialise(
    model: DecoderOnly | EncoderDecoder,
    stacks: list[nn.ModuleList],
    generator: torch.Generator | None,
) -> None:
    """Draw the weights so that no layer starts too loud.

    Linear maps and tables are normal with variance `2 / (5 d_model)`: a standard deviation of
    0.023 at the width of GPT-2 small, whose code has 0.02, and token vectors of variance 2/5 beside
    the sinusoids' 1/2 once they are scaled up. In a pre-norm stack each sum adds variance to
    the residual stream, so a map that writes to it is scaled by one over the root of the number
    of sums. Biases start at 0, gains at 1.

    Source:
        Nguyen and Salazar 2019, Transformers without Tears (SmallInit),
        https://arxiv.org/abs/1910.05895; Radford et al. 2019, Language Models are Unsupervised
        Multitask Learners, section 2.3 (residual scaling)

    """
    d_model = model.config.d_model
    std = math.sqrt(2 / (5 * d_model))
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std, generator=generator)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    if model.config.norm_order == "post":
        return
    for stack in stacks:
        attentions = [m.output for m in stack.modules() if isinstance(m, MultiHeadAttention)]
        feed_forwards = [m.down for m in stack.modules() if isinstance(m, FeedForward)]
        writers = attentions + feed_forwards
        for writer in writers:
            nn.init.normal_(writer.weight, std=std / math.sqrt(len(writers)), generator=generator)
