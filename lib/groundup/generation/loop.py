"""The decoding loop: predict, choose, append, repeat. The caller decides how to choose."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from groundup.core.cache import KeyValueCache, LayerCache
from groundup.core.config import require
from groundup.core.models import DecoderOnly, EncoderDecoder
from groundup.data.batches import source_batch
from groundup.data.tokenizers import BOS, EOS, Tokenizer
from groundup.generation.caches import SlidingLayerCache, StaticLayerCache, reorder
from groundup.generation.sampling import greedy

Choose = Callable[[Float[Tensor, "batch vocab"]], Int[Tensor, " batch"]]
"""Selects the next token from its logits, such as `greedy` or a function of `sampling`."""


class _Reader:
    """Runs a model on a context and returns the logits of the next token.

    It manages the cache and the padding, so that the loop need not.
    """

    def __init__(
        self,
        model: DecoderOnly,
        prompt: Int[Tensor, "batch length"],
        lengths: Int[Tensor, " batch"] | None,
        cache: Literal["growing", "static"] | None,
        max_len: int,
        step: Callable[..., Tensor] | None,
    ):
        self.model, self.context, self.cache_kind = model, prompt, cache
        self.step: Callable[..., Tensor] = model if step is None else step
        self.max_len = max_len
        # Number of padding tokens before each sequence.
        self.padding = None if lengths is None else prompt.shape[1] - lengths
        self.cache: KeyValueCache | None = None

    @torch.no_grad()
    def read(self) -> Float[Tensor, "batch vocab"]:
        """Return the logits after the context."""
        if self.cache is None or self.context.shape[1] > self.max_len:
            return self._prefill()
        start = self.context.shape[1] - 1
        # A contiguous copy: strides that depend on the length would recompile a compiled step.
        newest = self.context[:, start:].clone(memory_format=torch.contiguous_format)
        return self.step(newest, cache=self.cache, **self._mask_and_positions(start))[:, -1]

    def _prefill(self) -> Float[Tensor, "batch vocab"]:
        if self.context.shape[1] > self.max_len:
            kept = (self.max_len + 1) // 2
            if self.padding is not None:
                self.padding = (self.padding - self.context.shape[1] + kept).clamp(min=0)
            self.context = self.context[:, -kept:]
        if self.cache_kind is not None:
            kind = StaticLayerCache if self.cache_kind == "static" else LayerCache
            if kind is LayerCache and self.model.config.window is not None:
                kind = SlidingLayerCache
            self.cache = self.model.new_cache(len(self.context), self.max_len, kind)
        return self.model(self.context, cache=self.cache, **self._mask_and_positions(0))[:, -1]

    def _mask_and_positions(self, start: int) -> dict[str, Tensor]:
        """Return the padding mask, and the positions of the tokens from `start` on."""
        if self.padding is None:
            return {}
        end = self.context.shape[1]
        k_len = self.max_len if self.cache is not None and self.cache_kind == "static" else end
        positions = torch.arange(k_len, device=self.context.device) - self.padding[:, None]
        mask = (positions >= 0)[:, None, None]  # (batch, 1, 1, k_len)
        window = self.model.config.window
        if self.cache is not None and window is not None and self.cache_kind == "growing":
            mask = mask[..., -(min(start, window - 1) + end - start) :]  # cached and new keys
        return {"mask": mask, "positions": positions[:, start:end].clamp(min=0)}


def stream(
    model: DecoderOnly,
    prompt: Int[Tensor, "batch length"],
    choose: Choose = greedy,
    cache: Literal["growing", "static"] | None = "growing",
    lengths: Int[Tensor, " batch"] | None = None,
    max_len: int | None = None,
    step: Callable[..., Tensor] | None = None,
) -> Iterator[Int[Tensor, " batch"]]:
    """Generate continuations without end, one token of each sequence at a time.

    When the context is full, its older half is dropped and the newer half is read again, as if
    the text began there.

    Args:
        model: Put into evaluation mode.
        prompt: At least one token.
        choose: Selects a token from logits.
        cache: Kind of KV cache, which saves recomputing keys and values. `growing` reads the
            filled part of its buffer, or the sliding window if the model has one; `static` reads
            the whole buffer, so that every step has the same shapes. None recomputes the whole
            context at each step.
        lengths: Number of real tokens in each prompt; they come last, after padding. By default
            there is no padding.
        max_len: Length at which the context is cut; by default the model's `max_len`. A static
            cache is faster if it is no larger than needed.
        step: Replaces the model for single tokens read into the cache, such as
            `torch.compile(model, mode="reduce-overhead")` with a static cache.

    Yields:
        The next token of each sequence.

    Raises:
        ValueError: If `max_len` is out of range, a prompt is empty or longer than the context, or
            `lengths` exceed the length of the batch.

    """
    max_len = model.config.max_len if max_len is None else max_len
    sizes = {"max_len": max_len, "the model's max_len": model.config.max_len}
    fits = 1 <= max_len <= model.config.max_len
    require(fits, "max_len must be from 1 to the model's max_len", **sizes)
    if prompt.shape[1] < 1 or (lengths is not None and lengths.min() < 1):
        raise ValueError("a prompt must have at least 1 token, got none")
    if prompt.shape[1] > max_len:
        raise ValueError(
            f"a prompt must not be longer than the model's context, got {prompt.shape[1]} tokens, "
            f"max_len={max_len}"
        )
    if lengths is not None and lengths.max() > prompt.shape[1]:
        raise ValueError(
            "lengths must not exceed the length of the batch, "
            f"got {int(lengths.max())} of {prompt.shape[1]}"
        )
    model.eval()

    def continue_prompt() -> Iterator[Int[Tensor, " batch"]]:
        reader = _Reader(model, prompt, lengths, cache, max_len, step)
        while True:
            token = choose(reader.read())
            yield token
            reader.context = torch.cat((reader.context, token[:, None]), dim=1)

    return continue_prompt()  # wrong arguments raise at the call, not at the first token


def generate(
    model: DecoderOnly,
    prompt: Int[Tensor, "batch length"],
    max_new_tokens: int,
    choose: Choose = greedy,
    eos: int | None = None,
    cache: Literal["growing", "static"] | None = "growing",
    lengths: Int[Tensor, " batch"] | None = None,
    max_len: int | None = None,
    step: Callable[..., Tensor] | None = None,
) -> Int[Tensor, "batch total"]:
    """Generate continuations up to a length, or until every sequence has ended.

    Args:
        model: Put into evaluation mode.
        prompt: At least one token.
        max_new_tokens: Maximum number of tokens after the prompt.
        choose: Selects a token from logits.
        eos: Token that ends a sequence, and pads it after its end.
        cache: As in `stream`.
        lengths: As in `stream`, for prompts of several lengths, padded on the left.
        max_len: As in `stream`.
        step: As in `stream`.

    Returns:
        The prompt and its continuation.

    Raises:
        ValueError: As in `stream`.

    """
    tokens = stream(model, prompt, choose, cache, lengths, max_len, step)
    return torch.cat((prompt, _collect(tokens, prompt[:, :0], max_new_tokens, eos)), dim=1)


def translate(
    model: EncoderDecoder,
    source: Int[Tensor, "batch src_len"],
    source_mask: Bool[Tensor, "..."] | None,
    bos: int,
    eos: int,
    choose: Choose = greedy,
    use_cache: bool = True,
) -> Int[Tensor, "batch tgt_len"]:
    """Encode sources once, and decode a target for each until it ends.

    Args:
        model: Put into evaluation mode.
        source: Token ids.
        source_mask: True on real source tokens, as `padding_mask` makes it.
        bos: Token that begins a target.
        eos: Token that ends a target, and pads it after its end.
        choose: Selects a token from logits.
        use_cache: Whether to cache keys and values rather than recompute them at each step.

    Returns:
        The targets, without `bos`, up to the model's `max_len`.

    Raises:
        ValueError: If the source is longer than the model allows.

    """
    model.eval()
    start = source.new_full((len(source), 1), bos)
    tokens = _decode(model, source, source_mask, start, choose, use_cache)
    return _collect(tokens, source[:, :0], model.config.max_len, eos)


def translate_texts(
    model: EncoderDecoder,
    sources: Sequence[str],
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    batch_size: int = 256,
    num_beams: int = 1,
) -> list[str]:
    """Translate strings into strings, by greedy decoding or by beam search.

    Args:
        model: Put into evaluation mode.
        sources: Texts to translate; none may be empty.
        source_tokenizer: Has `PAD`.
        target_tokenizer: Has `BOS` and `EOS`.
        batch_size: Maximum number of strings per batch.
        num_beams: Number of beams, see `translate_beams`; 1 is greedy decoding.

    Raises:
        ValueError: If a source is empty, too long for the model, or has a character outside
            the vocabulary, or `num_beams` is below 1.

    """
    device = next(model.parameters()).device
    bos, eos = target_tokenizer.id_of(BOS), target_tokenizer.id_of(EOS)
    targets = []
    for i in range(0, len(sources), batch_size):
        source, source_mask = source_batch(sources[i : i + batch_size], source_tokenizer)
        arguments = (model, source.to(device), source_mask.to(device), bos, eos)
        if num_beams == 1:
            tokens = translate(*arguments)
        else:
            tokens = translate_beams(*arguments, num_beams=num_beams).tokens[:, 0]
        targets += [target_tokenizer.decode(row) for row in tokens.tolist()]
    return targets


class Beams(NamedTuple):
    """Results of a beam search, best first."""

    tokens: Int[Tensor, "batch num_beams new"]
    """Generated tokens; after its end, a sequence is padded with `eos`."""
    scores: Float[Tensor, "batch num_beams"]
    """Log-probability divided by length penalty; minus infinity if there are fewer candidates."""


def length_penalty(length: int, alpha: float) -> float:
    """Return the divisor of a log-probability that keeps beam search from preferring short output.

    Every token makes a sequence less probable, so a search for the most probable one prefers
    short ones. With `alpha` 0 the divisor is 1; with 1 it is nearly proportional to the length.

    Source:
        Wu et al. 2016, Google's Neural Machine Translation System, section 7, equation 14,
        https://arxiv.org/abs/1609.08144

    """
    return ((5 + length) / (5 + 1)) ** alpha


def generate_beams(
    model: DecoderOnly,
    prompt: Int[Tensor, "batch length"],
    max_new_tokens: int,
    num_beams: int,
    eos: int | None = None,
    alpha: float = 0.6,
    cache: Literal["growing", "static"] | None = "growing",
    lengths: Int[Tensor, " batch"] | None = None,
) -> Beams:
    """Search for the most probable continuation by beam search.

    Args:
        model: Put into evaluation mode.
        prompt: At least one token; with the continuation it must fit into the model's context.
        max_new_tokens: Maximum number of tokens after the prompt.
        num_beams: Number of prefixes kept at each step; keeping all of them is exhaustive search.
        eos: Token that ends a sequence.
        alpha: See `length_penalty`.
        cache: As in `stream`.
        lengths: As in `stream`.

    Returns:
        The continuations, without the prompt.

    Raises:
        ValueError: If `num_beams` is below 1, or prompt and continuation do not fit into the
            model's context.

    """
    max_len = prompt.shape[1] + max_new_tokens
    if not 1 <= prompt.shape[1] < max_len <= model.config.max_len:
        raise ValueError(
            "a prompt and at least 1 new token must fit into the model's context, got "
            f"{prompt.shape[1]} + {max_new_tokens} tokens, max_len={model.config.max_len}"
        )
    require(num_beams >= 1, "num_beams must be at least 1", num_beams=num_beams)
    model.eval()
    prompt = prompt.repeat_interleave(num_beams, dim=0)
    lengths = None if lengths is None else lengths.repeat_interleave(num_beams)
    reader = _Reader(model, prompt, lengths, cache, max_len, None)

    def read(context: Int[Tensor, "rows length"], rows: Int[Tensor, " rows"] | None) -> Tensor:
        if rows is not None and reader.cache is not None:
            reorder(reader.cache, rows)
        reader.context = torch.cat((prompt, context), dim=1)
        return reader.read()

    return _search(read, len(prompt) // num_beams, max_new_tokens, num_beams, eos, alpha)


def translate_beams(
    model: EncoderDecoder,
    source: Int[Tensor, "batch src_len"],
    source_mask: Bool[Tensor, "..."] | None,
    bos: int,
    eos: int,
    num_beams: int,
    alpha: float = 0.6,
) -> Beams:
    """Search for the most probable target by beam search.

    Args:
        model: Put into evaluation mode.
        source: Token ids.
        source_mask: True on real source tokens, as `padding_mask` makes it.
        bos: Token that begins a target.
        eos: Token that ends a target.
        num_beams: Number of prefixes kept at each step; keeping all of them is exhaustive search.
        alpha: See `length_penalty`; 0.6 as in the paper.

    Returns:
        The targets, without `bos`, up to the model's `max_len`.

    Raises:
        ValueError: If `num_beams` is below 1, or the source is longer than the model allows.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, section 6.1,
        https://arxiv.org/abs/1706.03762; Wu et al. 2016, section 7,
        https://arxiv.org/abs/1609.08144

    """
    require(num_beams >= 1, "num_beams must be at least 1", num_beams=num_beams)
    model.eval()
    with torch.no_grad():
        memory = model.encode(source, source_mask).repeat_interleave(num_beams, dim=0)
    mask = None if source_mask is None else source_mask.repeat_interleave(num_beams, dim=0)
    cache = model.new_cache(len(memory))
    start = source.new_full((len(memory), 1), bos)

    @torch.no_grad()
    def read(context: Int[Tensor, "rows length"], rows: Int[Tensor, " rows"] | None) -> Tensor:
        if rows is not None:
            reorder(cache, rows)
        unread = torch.cat((start, context), dim=1)[:, -1:]
        return model.decode(unread, memory, mask, cache=cache)[:, -1]

    return _search(read, len(source), model.config.max_len, num_beams, eos, alpha)


def _search(
    read: Callable[[Tensor, Tensor | None], Tensor],
    batch_size: int,
    max_new_tokens: int,
    num_beams: int,
    eos: int | None,
    alpha: float,
) -> Beams:
    """Keep the best open prefixes, and the best finished sequences.

    `read` takes the tokens generated in each row, and the index of the row that each one
    continues (None at the start), and returns the logits of the next tokens.
    """
    logits = read(torch.empty(batch_size * num_beams, 0, dtype=torch.long), None)
    device, vocab_size = logits.device, logits.shape[-1]
    pad = 0 if eos is None else eos
    # All rows start equal: only the first row of each sequence counts, or every prefix would be
    # found `num_beams` times.
    alive_scores = torch.full((batch_size, num_beams), -math.inf, device=device)
    alive_scores[:, 0] = 0.0
    alive = torch.full((batch_size, num_beams, max_new_tokens), pad, device=device)
    ended = alive.clone()
    ended_scores = torch.full_like(alive_scores, -math.inf)
    first_row = torch.arange(batch_size, device=device)[:, None] * num_beams
    for length in range(1, max_new_tokens + 1):
        # 1. Score every next token, and keep twice as many candidates as beams: half may end.
        log_probs = logits.float().log_softmax(-1).view(batch_size, num_beams, vocab_size)
        candidates = (alive_scores[..., None] + log_probs).flatten(1)  # (batch, beams * vocab)
        scores, chosen = candidates.topk(min(2 * num_beams, candidates.shape[1]), dim=1)
        beam, token = chosen // vocab_size, chosen % vocab_size
        sequences = alive.gather(1, beam[..., None].expand(-1, -1, max_new_tokens))
        sequences[..., length - 1] = token
        # 2. Candidates that end here, or reach the maximum length, compete with earlier ones.
        is_over = torch.full_like(token, length == max_new_tokens, dtype=torch.bool)
        if eos is not None:
            is_over = is_over | (token == eos)
        final = (scores / length_penalty(length, alpha)).masked_fill(~is_over, -math.inf)
        ended_scores, best = torch.cat((ended_scores, final), dim=1).topk(num_beams, dim=1)
        ended = torch.cat((ended, sequences), dim=1)
        ended = ended.gather(1, best[..., None].expand(-1, -1, max_new_tokens))
        # 3. The best of the others continue.
        open_scores = scores.masked_fill(is_over, -math.inf)
        alive_scores, best = open_scores.topk(num_beams, dim=1)
        alive = sequences.gather(1, best[..., None].expand(-1, -1, max_new_tokens))
        # 4. Stop if no open prefix can win: log-probabilities only fall, the penalty is bounded.
        bound = alive_scores[:, 0] / length_penalty(max_new_tokens, alpha)
        if length == max_new_tokens or bool((bound <= ended_scores[:, -1]).all()):
            break
        rows = (first_row + beam.gather(1, best)).flatten()
        logits = read(alive[..., :length].flatten(0, 1), rows)
    return Beams(ended, ended_scores)


def _decode(
    model: EncoderDecoder,
    source: Int[Tensor, "batch src_len"],
    source_mask: Bool[Tensor, "..."] | None,
    target: Int[Tensor, "batch 1"],
    choose: Choose,
    use_cache: bool,
) -> Iterator[Int[Tensor, " batch"]]:
    with torch.no_grad():
        memory = model.encode(source, source_mask)
    cache = model.new_cache(len(source)) if use_cache else None
    while True:
        new = target if cache is None else target[:, -1:]
        with torch.no_grad():
            logits = model.decode(new, memory, source_mask, cache=cache)
        token = choose(logits[:, -1])
        yield token
        target = torch.cat((target, token[:, None]), dim=1)


def _collect(
    tokens: Iterator[Int[Tensor, " batch"]],
    nothing: Int[Tensor, "batch 0"],
    max_new_tokens: int,
    eos: int | None,
) -> Int[Tensor, "batch new"]:
    """Concatenate tokens until every sequence has ended or there are `max_new_tokens`."""
    columns = [nothing]
    ended = torch.zeros(len(nothing), dtype=torch.bool, device=nothing.device)
    for token in itertools.islice(tokens, max_new_tokens):
        if eos is not None:
            token = token.masked_fill(ended, eos)
            ended = ended | (token == eos)
        columns.append(token[:, None])
        if ended.all():
            break
    return torch.cat(columns, dim=1)
