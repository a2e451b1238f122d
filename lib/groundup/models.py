"""Whole models: tokens in, one row of logits per position out.

Logits are left as they are: the loss and the sampler each take the softmax that suits them.
"""

import math
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from groundup.blocks import Block, DecoderBlock
from groundup.cache import KeyValueCache
from groundup.config import DecoderOnlyConfig, EncoderDecoderConfig, EncoderOnlyConfig
from groundup.layers import FeedForward, GatedFeedForward, new_norm
from groundup.masks import causal_mask, sliding_window_mask
from groundup.multihead import MultiHeadAttention
from groundup.positions import LearnedPositions, Rotary, SinusoidalPositions

AnyConfig = DecoderOnlyConfig | EncoderOnlyConfig | EncoderDecoderConfig


class InputEmbedding(nn.Module):
    """What a token means plus where it stands. Rotary attention and ALiBi add the second later.

    Beside sinusoids, whose features have size 1, token vectors are scaled up by the root of
    `d_model`, so that neither drowns the other.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, sections 3.4, 3.5 and 5.4,
        https://arxiv.org/abs/1706.03762

    """

    def __init__(self, vocab_size: int, max_len: int, config: AnyConfig, is_shared: bool):
        super().__init__()
        self.is_shared = is_shared
        tables = {"sinusoidal": SinusoidalPositions, "learned": LearnedPositions}
        self.tokens = nn.Embedding(vocab_size, config.d_model)
        self.positions = None
        if config.positions in tables:
            self.positions = tables[config.positions](max_len, config.d_model)
        self.scale = math.sqrt(config.d_model) if config.positions == "sinusoidal" else 1.0
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        start: int = 0,
        positions: Int[Tensor, "*batch length"] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Turn token numbers into vectors.

        Args:
            tokens: Token numbers.
            start: Position of the first token; the others follow.
            positions: Position of each token, instead of `start`.

        """
        x = self.tokens(tokens)
        if self.scale != 1:
            x = x * self.scale
        if self.positions is not None:
            if positions is None:
                positions = torch.arange(start, start + tokens.shape[1], device=tokens.device)
            x = x + self.positions(positions)
        return self.dropout(x)

    def use_table(self, table: nn.Embedding) -> None:
        """Read tokens with vectors from elsewhere, frozen or not, as `data.embedding_from` makes.

        Raises:
            ValueError: If the table is for another vocabulary or another width, or if the
                model's own also predicts tokens or reads another sequence.

        """
        if self.is_shared:
            raise ValueError(
                "word vectors need a table that only reads, got a model with tied embeddings"
            )
        if table.weight.shape != self.tokens.weight.shape:
            raise ValueError(
                "word vectors must have one row per token and be d_model wide, got "
                f"{tuple(table.weight.shape)} instead of {tuple(self.tokens.weight.shape)}"
            )
        self.tokens = table


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
        sizes = (config.vocab_size, config.max_len)
        self.embedding = InputEmbedding(*sizes, config, is_shared=config.tie_embeddings)
        arguments = _block_arguments(config, config.max_len)
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
        allowed, start, positions = _past(tokens, mask, cache, positions, self.config)
        x = self.embedding(tokens, start, positions)
        caches = [None] * len(self.blocks) if cache is None else cache.layers
        for block, own in zip(self.blocks, caches, strict=True):
            x = block(x, allowed, own, positions)
        return self.unembedding(self.final_norm(x))

    def new_cache(
        self, batch_size: int, max_len: int | None = None, is_static: bool = False
    ) -> KeyValueCache:
        """Make an empty cache for `batch_size` sequences of up to `max_len` tokens.

        Args:
            batch_size: Number of sequences.
            max_len: Most tokens; by default as many as the model can read.
            is_static: Whether every step has the same shapes, so that it can be compiled.

        Raises:
            ValueError: If `max_len` is more than the model's own.

        """
        return _new_cache(self, batch_size, max_len, is_static, window=self.config.window)


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
        arguments = _block_arguments(config, config.max_len)
        self.blocks = nn.ModuleList(Block(**arguments) for _ in range(config.num_layers))
        self.final_norm = _final_norm(config)
        num_outputs = config.num_outputs or config.vocab_size
        self.unembedding = nn.Linear(config.d_model, num_outputs, bias=False)
        if config.tie_embeddings:
            self.unembedding.weight = self.embedding.tokens.weight
        _initialise(self, [self.blocks], generator)

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
        ties, source_ties = config.tie_embeddings, config.tie_source_embeddings
        sizes = (config.source_vocab_size, config.source_max_len)
        self.source_embedding = InputEmbedding(*sizes, config, is_shared=source_ties)
        sizes = (config.vocab_size, config.max_len)
        self.embedding = InputEmbedding(*sizes, config, is_shared=ties or source_ties)
        arguments = _block_arguments(config, config.source_max_len)
        self.encoder = nn.ModuleList(Block(**arguments) for _ in range(config.num_encoder_layers))
        self.encoder_norm = _final_norm(config)
        arguments = _block_arguments(config, config.max_len)
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
        mask, start, positions = _past(target, target_mask, cache, None, self.config)
        x = self.embedding(target, start, positions)
        none = [None] * len(self.blocks)
        own, cross = (none, none) if cache is None else (cache.layers, cache.cross)
        for block, own_cache, cross_cache in zip(self.blocks, own, cross, strict=True):
            x = block(x, memory, mask, source_mask, own_cache, cross_cache, positions)
        return self.unembedding(self.final_norm(x))

    def new_cache(
        self, batch_size: int, max_len: int | None = None, is_static: bool = False
    ) -> KeyValueCache:
        """Make an empty cache for `batch_size` targets of up to `max_len` tokens.

        Args:
            batch_size: Number of sequences.
            max_len: Most tokens; by default as many as the model can write.
            is_static: Whether every step has the same shapes, so that it can be compiled.

        Raises:
            ValueError: If `max_len` is more than the model's own.

        """
        return _new_cache(self, batch_size, max_len, is_static, self.config.source_max_len)


AnyModel = DecoderOnly | EncoderOnly | EncoderDecoder


def _block_arguments(config: AnyConfig, max_len: int) -> dict[str, Any]:
    same = (
        "d_model num_heads d_ff num_kv_heads activation norm norm_eps norm_order bias dropout "
        "qk_norm"
    ).split()
    is_rotary = config.positions == "rotary"
    return {name: getattr(config, name) for name in same} | {
        "rotary": Rotary(max_len, config.d_head, config.rotary_base) if is_rotary else None,
        "alibi": config.positions == "alibi",
    }


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


def _past(
    tokens: Int[Tensor, "batch length"],
    mask: Bool[Tensor, "..."] | None,
    cache: KeyValueCache | None,
    positions: Int[Tensor, "*batch length"] | None,
    config: DecoderOnlyConfig | EncoderDecoderConfig,
) -> tuple[Tensor | Literal["causal"] | None, int, Tensor | None]:
    """Say what each token may attend to, and where it stands: from `start` on, or `positions`."""
    length, start = tokens.shape[1], 0
    window = config.window if isinstance(config, DecoderOnlyConfig) else None
    if cache is None:
        _require_fits("max_len", config.max_len, length)
        allowed = "causal"
        if window is not None and window < length:
            allowed = sliding_window_mask(length, window, device=tokens.device)
    else:
        allowed = cache.allowed(length)
        if isinstance(cache.length, int):
            start = cache.length
            _require_fits("max_len", config.max_len, start + length)
        elif positions is None:
            positions = cache.positions(length)
    if mask is None:
        return allowed, start, positions
    if allowed == "causal":
        allowed = causal_mask(length, device=tokens.device)
    return mask if allowed is None else allowed & mask, start, positions


def _new_cache(
    model: DecoderOnly | EncoderDecoder,
    batch_size: int,
    max_len: int | None,
    is_static: bool,
    source_max_len: int | None = None,
    window: int | None = None,
) -> KeyValueCache:
    config, weight = model.config, model.embedding.tokens.weight
    max_len = config.max_len if max_len is None else max_len
    if not 1 <= max_len <= config.max_len:
        raise ValueError(
            "a cache must hold from 1 to as many tokens as the model, "
            f"got max_len={max_len}, the model's max_len={config.max_len}"
        )
    num_kv_heads = config.num_kv_heads or config.num_heads
    sizes = (config.num_layers, batch_size, num_kv_heads, max_len, config.d_head, source_max_len)
    return KeyValueCache(*sizes, window, is_static, device=weight.device, dtype=weight.dtype)


def _initialise(
    model: AnyModel, stacks: list[nn.ModuleList], generator: torch.Generator | None
) -> None:
    """Draw the weights so that no layer starts too loud.

    Linear maps and tables are normal with variance `2 / (5 d_model)`: a standard deviation of
    0.023 at the width of GPT-2 small, whose code has 0.02, and token vectors of variance 2/5 beside
    the sinusoids' 1/2 once they are scaled up. In a pre-norm stack each sum adds variance to
    the residual stream, so a map that writes to it is scaled by one over the root of the number
    of sums, or is zero where the configuration says so. Biases start at 0, gains at 1.

    Source:
        Nguyen and Salazar 2019, Transformers without Tears (SmallInit),
        https://arxiv.org/abs/1910.05895; Radford et al. 2019, Language Models are Unsupervised
        Multitask Learners, section 2.3 (residual scaling); Zhang et al. 2019, Fixup
        Initialization, section 3, https://arxiv.org/abs/1901.09321 (zero)

    """
    config = model.config
    std = math.sqrt(2 / (5 * config.d_model))
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std, generator=generator)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for stack in stacks:
        attentions = [m.output for m in stack.modules() if isinstance(m, MultiHeadAttention)]
        feed_forwards = [
            m.down for m in stack.modules() if isinstance(m, FeedForward | GatedFeedForward)
        ]
        writers = attentions + feed_forwards
        for writer in writers:
            if config.zero_init_outputs:
                nn.init.zeros_(writer.weight)
            elif config.norm_order == "pre":
                own_std = std / math.sqrt(len(writers))
                nn.init.normal_(writer.weight, std=own_std, generator=generator)
