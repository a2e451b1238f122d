"""Whole models: tokens in, one row of logits per position out.

Logits are left as they are: the loss and the sampler each take the softmax that suits them.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from groundup.blocks import Block, DecoderBlock
from groundup.cache import KeyValueCache
from groundup.config import AnyConfig, DecoderOnlyConfig, EncoderDecoderConfig, EncoderOnlyConfig
from groundup.embedding import InputEmbedding
from groundup.initialisation import initialise
from groundup.layers import new_norm
from groundup.masks import AnyMask, combine_masks, drawn_mask, sliding_window_mask
from groundup.positions import Rotary


class _Writer(nn.Module):
    """What the two models that write have in common: a token sees its past, cached or not."""

    config: DecoderOnlyConfig | EncoderDecoderConfig
    embedding: InputEmbedding

    def new_cache(
        self, batch_size: int, max_len: int | None = None, is_static: bool = False
    ) -> KeyValueCache:
        """Make an empty cache for `batch_size` sequences of up to `max_len` tokens.

        Args:
            batch_size: Number of sequences.
            max_len: Most tokens; by default as many as the model allows.
            is_static: Whether every step has the same shapes, so that it can be compiled.

        Raises:
            ValueError: If `max_len` is more than the model's own.

        """
        config, weight = self.config, self.embedding.tokens.weight
        max_len = config.max_len if max_len is None else max_len
        if not 1 <= max_len <= config.max_len:
            raise ValueError(
                "a cache must hold from 1 to as many tokens as the model, "
                f"got max_len={max_len}, the model's max_len={config.max_len}"
            )
        source_max_len = getattr(config, "source_max_len", None)
        sizes = (batch_size, config.kv_heads, max_len, config.d_head, source_max_len, self._window)
        return KeyValueCache(
            config.num_layers, *sizes, is_static, device=weight.device, dtype=weight.dtype
        )

    @property
    def _window(self) -> int | None:
        return getattr(self.config, "window", None)

    def _past(
        self,
        tokens: Int[Tensor, "batch length"],
        mask: Bool[Tensor, "..."] | None,
        cache: KeyValueCache | None,
        positions: Int[Tensor, "*batch length"] | None = None,
    ) -> tuple[AnyMask | None, int, Int[Tensor, "*batch length"] | None]:
        """Say what each token may attend to, and where it stands: from `start`, or `positions`."""
        length, window, start = tokens.shape[1], self._window, 0
        allowed: AnyMask | None = "causal"
        if cache is not None:
            allowed = cache.allowed(length)
            if isinstance(cache.length, int):
                start = cache.length
            elif positions is None:
                positions = cache.positions(length)
        elif window is not None and window < length:
            allowed = sliding_window_mask(length, window, device=tokens.device)
        _require_fits("max_len", self.config.max_len, start + length)
        if mask is not None:
            allowed = combine_masks(drawn_mask(allowed, length, length, tokens.device), mask)
        return allowed, start, positions


class DecoderOnly(_Writer):
    """Predicts each next token from the tokens up to it.

    Args:
        config: Sizes and choices.
        generator: Where the initial weights come from; by default torch's global state.

    Source:
        Radford et al. 2019, Language Models are Unsupervised Multitask Learners, section 2.3

    """

    def __init__(self, config: DecoderOnlyConfig, generator: torch.Generator | None = None):
        super().__init__()
        self.config: DecoderOnlyConfig = config
        sizes = (config.vocab_size, config.max_len)
        self.embedding = InputEmbedding(*sizes, config, is_shared=config.tie_embeddings)
        self.blocks = _new_blocks(Block, config.num_layers, config, config.max_len)
        self.final_norm = _final_norm(config)
        self.unembedding = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.unembedding.weight = self.embedding.tokens.weight
        initialise(self, [self.blocks], config, generator)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        mask: Bool[Tensor, "..."] | None = None,
        cache: KeyValueCache | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
    ) -> Float[Tensor, "batch length vocab"]:
        """Give the logits of the token after each position.

        Args:
            tokens: Token numbers; with a cache, only those that came since the last call.
            mask: True where attention is allowed, on top of the causal mask which always holds,
                in training and after it; as in `MultiHeadAttention`.
            cache: From `new_cache`; remembers these tokens for the next call.
            positions: Index of each token, where they are not simply counted: in a batch that
                is padded on the left.

        Raises:
            ValueError: If the sequence grows longer than `max_len`.

        """
        allowed, start, positions = self._past(tokens, mask, cache, positions)
        x = self.embedding(tokens, start, positions)
        caches = [None] * len(self.blocks) if cache is None else cache.layers
        for block, own in zip(self.blocks, caches, strict=True):
            x = block(x, allowed, own, positions)
        return self.unembedding(self.final_norm(x))


class EncoderOnly(nn.Module):
    """Reads a sequence both ways and answers for each of its tokens, or for the whole.

    Args:
        config: Sizes and choices.
        generator: Where the initial weights come from; by default torch's global state.

    Source:
        Devlin et al. 2019, BERT, section 3, https://arxiv.org/abs/1810.04805

    """

    def __init__(self, config: EncoderOnlyConfig, generator: torch.Generator | None = None):
        super().__init__()
        self.config = config
        sizes = (config.vocab_size, config.max_len)
        self.embedding = InputEmbedding(*sizes, config, is_shared=config.tie_embeddings)
        self.blocks = _new_blocks(Block, config.num_layers, config, config.max_len)
        self.final_norm = _final_norm(config)
        num_outputs = config.num_outputs or config.vocab_size
        self.unembedding = nn.Linear(config.d_model, num_outputs, bias=False)
        if config.tie_embeddings:
            self.unembedding.weight = self.embedding.tokens.weight
        initialise(self, [self.blocks], config, generator)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        mask: Bool[Tensor, "batch 1 1 length"] | None = None,
    ) -> Float[Tensor, "batch length outputs"] | Float[Tensor, "batch outputs"]:
        """Give the logits of the answers, one row per token or one per sequence.

        Args:
            tokens: Token numbers.
            mask: True on real tokens, as `padding_mask` makes it. An answer for the whole
                sequence is taken from the mean over these.

        Raises:
            ValueError: If the sequence is longer than `max_len`.

        """
        _require_fits("max_len", self.config.max_len, tokens.shape[1])
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, mask)
        x = self.final_norm(x)
        if self.config.answers == "sequence":
            is_real = torch.ones_like(tokens) if mask is None else mask[:, 0, 0]  # (batch, length)
            share = is_real / is_real.sum(dim=-1, keepdim=True).clamp(min=1)
            x = (share.to(x.dtype).unsqueeze(-2) @ x).squeeze(-2)  # (batch, d_model)
        return self.unembedding(x)


class EncoderDecoder(_Writer):
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
        self.config: EncoderDecoderConfig = config
        ties, source_ties = config.tie_embeddings, config.tie_source_embeddings
        sizes = (config.source_vocab_size, config.source_max_len)
        self.source_embedding = InputEmbedding(*sizes, config, is_shared=source_ties)
        sizes = (config.vocab_size, config.max_len)
        self.embedding = InputEmbedding(*sizes, config, is_shared=ties or source_ties)
        num_layers, max_len = config.num_encoder_layers, config.source_max_len
        self.encoder = _new_blocks(Block, num_layers, config, max_len)
        self.encoder_norm = _final_norm(config)
        self.blocks = _new_blocks(DecoderBlock, config.num_layers, config, config.max_len)
        self.final_norm = _final_norm(config)
        self.unembedding = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.unembedding.weight = self.embedding.tokens.weight
        if config.tie_source_embeddings:
            self.source_embedding.tokens.weight = self.embedding.tokens.weight
        initialise(self, [self.encoder, self.blocks], config, generator)

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
        mask, start, positions = self._past(target, target_mask, cache)
        x = self.embedding(target, start, positions)
        none = [None] * len(self.blocks)
        own, cross = (none, none) if cache is None else (cache.layers, cache.cross)
        for block, own_cache, cross_cache in zip(self.blocks, own, cross, strict=True):
            x = block(x, memory, mask, source_mask, own_cache, cross_cache, positions)
        return self.unembedding(self.final_norm(x))


AnyModel = DecoderOnly | EncoderOnly | EncoderDecoder


def _new_blocks(
    kind: type[Block], num_layers: int, config: AnyConfig, max_len: int
) -> nn.ModuleList:
    names = (
        "d_model num_heads d_ff num_kv_heads activation norm norm_eps norm_order bias dropout "
        "attention_dropout qk_norm"
    ).split()
    choices: dict[str, Any] = {name: getattr(config, name) for name in names}
    choices["alibi"] = config.positions == "alibi"
    if config.positions == "rotary":  # one table of turns serves all blocks
        choices["rotary"] = Rotary(max_len, config.d_head, config.rotary_base)
    return nn.ModuleList(kind(**choices) for _ in range(num_layers))


def _final_norm(config: AnyConfig) -> nn.Module:
    # A pre-norm stream is never normalised on its way, so it is before it is read.
    if config.norm_order == "post":
        return nn.Identity()
    return new_norm(config.norm, config.d_model, config.norm_eps)


def _require_fits(name: str, max_len: int, length: int) -> None:
    if length > max_len:
        raise ValueError(
            f"a sequence must not be longer than {name}, got length={length}, {name}={max_len}"
        )
