"""The loop that writes: predict, choose, append, repeat. How to choose is the caller's."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from groundup.cache import KeyValueCache
from groundup.data import source_batch
from groundup.models import DecoderOnly, EncoderDecoder
from groundup.sampling import greedy
from groundup.tokenizers import BOS, EOS, Tokenizer

Choose = Callable[[Float[Tensor, "batch vocab"]], Int[Tensor, " batch"]]
"""Turns the logits of the next token into the next token, as `sampling` does."""


class _Reader:
    """Reads tokens into a model and gives the logits of what comes next.

    It knows what the loop need not: the cache, and where each sequence begins.
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
        # Tokens of padding before each sequence.
        self.padding = None if lengths is None else prompt.shape[1] - lengths
        self.cache: KeyValueCache | None = None

    @torch.no_grad()
    def read(self) -> Float[Tensor, "batch vocab"]:
        """Give the logits after the context."""
        if self.cache is None or self.context.shape[1] > self.max_len:
            return self._read_anew()
        start = self.context.shape[1] - 1
        # A copy whose strides do not tell the length of the text: a compiled step would notice.
        newest = self.context[:, start:].clone(memory_format=torch.contiguous_format)
        return self.step(newest, cache=self.cache, **self._places(start))[:, -1]

    def _read_anew(self) -> Float[Tensor, "batch vocab"]:
        if self.context.shape[1] > self.max_len:
            kept = (self.max_len + 1) // 2
            if self.padding is not None:
                self.padding = (self.padding - self.context.shape[1] + kept).clamp(min=0)
            self.context = self.context[:, -kept:]
        if self.cache_kind is not None:
            is_static = self.cache_kind == "static"
            self.cache = self.model.new_cache(len(self.context), self.max_len, is_static)
        return self.model(self.context, cache=self.cache, **self._places(0))[:, -1]

    def _places(self, start: int) -> dict[str, Tensor]:
        """Say what is padding, and where each token stands from `start` on."""
        if self.padding is None:
            return {}
        end = self.context.shape[1]
        k_len = self.max_len if self.cache is not None and self.cache_kind == "static" else end
        places = torch.arange(k_len, device=self.context.device) - self.padding[:, None]
        mask = (places >= 0)[:, None, None]  # (batch, 1, 1, k_len)
        window = self.model.config.window
        if self.cache is not None and window is not None and self.cache_kind == "growing":
            mask = mask[..., -(min(start, window - 1) + end - start) :]  # what it remembers
        return {"mask": mask, "positions": places[:, start:end].clamp(min=0)}


def stream(
    model: DecoderOnly,
    prompt: Int[Tensor, "batch length"],
    choose: Choose = greedy,
    cache: Literal["growing", "static"] | None = "growing",
    lengths: Int[Tensor, " batch"] | None = None,
    max_len: int | None = None,
    step: Callable[..., Tensor] | None = None,
) -> Iterator[Int[Tensor, " batch"]]:
    """Continue sequences without end, one token of each at a time.

    When the context is full, its older half is forgotten and the newer is read again, as if
    the text began there.

    Args:
        model: Is put into evaluation mode.
        prompt: At least one token.
        choose: Turns logits into tokens.
        cache: How keys and values are kept rather than worked out again, which saves time and
            changes no token: in a room that is read as far as it is filled, or, `static`, as a
            whole, so that every step has the same shapes. None keeps nothing.
        lengths: Number of tokens of each prompt; they come last, and what stands before them is
            padding. By default all of them.
        max_len: How long the context gets before it is cut; by default as long as the model
            can read. A static cache is faster if it is no larger than needed.
        step: What reads one more token into the cache, in place of the model: such as
            `torch.compile(model, mode="reduce-overhead")` with a static cache.

    Yields:
        The next token of each sequence.

    Raises:
        ValueError: If a prompt is empty, or longer than the context.

    """
    max_len = model.config.max_len if max_len is None else max_len
    if not 1 <= max_len <= model.config.max_len:
        raise ValueError(
            "max_len must be from 1 to as many tokens as the model can read, "
            f"got max_len={max_len}, the model's max_len={model.config.max_len}"
        )
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

    def write() -> Iterator[Int[Tensor, " batch"]]:
        reader = _Reader(model, prompt, lengths, cache, max_len, step)
        while True:
            token = choose(reader.read())
            yield token
            reader.context = torch.cat((reader.context, token[:, None]), dim=1)

    return write()  # what is wrong with the arguments shows at once, not at the first token


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
    """Continue sequences up to a length, or until each has ended.

    Args:
        model: Is put into evaluation mode.
        prompt: At least one token.
        max_new_tokens: Most tokens to write after the prompt.
        choose: Turns logits into tokens.
        eos: Token that ends a sequence; what is written behind it is this token again.
        cache: As in `stream`.
        lengths: As in `stream`, for prompts of several lengths, padded on the left.
        max_len: As in `stream`.
        step: As in `stream`.

    Returns:
        The prompt and what follows it.

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
    """Read sources once, and write a target for each until it ends.

    Args:
        model: Is put into evaluation mode.
        source: Token numbers to read.
        source_mask: True on real source tokens, as `padding_mask` makes it.
        bos: Token that begins a target.
        eos: Token that ends one; what is written behind it is this token again.
        choose: Turns logits into tokens.
        use_cache: As in `stream`.

    Returns:
        The targets, without `bos`, up to the model's `max_len`.

    Raises:
        ValueError: If the source is longer than the model allows.

    """
    model.eval()
    start = source.new_full((len(source), 1), bos)
    tokens = _answers(model, source, source_mask, start, choose, use_cache)
    return _collect(tokens, source[:, :0], model.config.max_len, eos)


def translate_texts(
    model: EncoderDecoder,
    sources: Sequence[str],
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    batch_size: int = 256,
    num_beams: int = 1,
) -> list[str]:
    """Translate strings into strings, by the most probable tokens or by a search.

    Args:
        model: Is put into evaluation mode.
        sources: What to read; none may be empty.
        source_tokenizer: Has `PAD`.
        target_tokenizer: Has `BOS` and `EOS`.
        batch_size: Most strings read at a time.
        num_beams: How many beginnings to keep alive, see `translate_beams`; 1 takes the most
            probable token each time.

    Raises:
        ValueError: If a source is empty, too long for the model, or has a character outside
            the vocabulary.

    """
    device = next(model.parameters()).device
    bos, eos = target_tokenizer.id_of(BOS), target_tokenizer.id_of(EOS)
    targets = []
    for i in range(0, len(sources), batch_size):
        source, source_mask = source_batch(sources[i : i + batch_size], source_tokenizer)
        where = (model, source.to(device), source_mask.to(device), bos, eos)
        if num_beams == 1:
            tokens = translate(*where)
        else:
            tokens = translate_beams(*where, num_beams=num_beams).tokens[:, 0]
        targets += [target_tokenizer.decode(row) for row in tokens.tolist()]
    return targets


class Beams(NamedTuple):
    """What a beam search found, the best first."""

    tokens: Int[Tensor, "batch num_beams new"]
    """What was written; behind the end it is filled with the token that ends a sequence."""
    scores: Float[Tensor, "batch num_beams"]
    """Log-probability over length penalty; minus infinity where there were fewer candidates."""


def length_penalty(length: int, alpha: float) -> float:
    """Say by how much a log-probability is divided, so that long answers can win too.

    Every token makes an answer less probable, so a search for the most probable one prefers
    short answers. With `alpha` 0 nothing is divided; with 1 it is nearly the mean per token.

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
    """Look for the most probable continuation, with `num_beams` beginnings kept alive.

    Args:
        model: Is put into evaluation mode.
        prompt: At least one token, and room for what follows in the model's context.
        max_new_tokens: Most tokens to write after the prompt.
        num_beams: How many beginnings are kept; as many as there are gives exhaustive search.
        eos: Token that ends a sequence.
        alpha: See `length_penalty`.
        cache: As in `stream`.
        lengths: As in `stream`.

    Returns:
        What follows the prompt.

    Raises:
        ValueError: If there is no beam, or if prompt and answer do not fit into the context.

    """
    max_len = prompt.shape[1] + max_new_tokens
    if not 1 <= prompt.shape[1] < max_len <= model.config.max_len:
        raise ValueError(
            "a prompt and at least 1 new token must fit into the model's context, got "
            f"{prompt.shape[1]} + {max_new_tokens} tokens, max_len={model.config.max_len}"
        )
    _require_beams(num_beams)
    model.eval()
    prompt = prompt.repeat_interleave(num_beams, dim=0)
    lengths = None if lengths is None else lengths.repeat_interleave(num_beams)
    reader = _Reader(model, prompt, lengths, cache, max_len, None)

    def read(context: Int[Tensor, "rows length"], rows: Int[Tensor, " rows"] | None) -> Tensor:
        if rows is not None and reader.cache is not None:
            reader.cache.reorder(rows)
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
    """Look for the most probable target, with `num_beams` beginnings kept alive.

    Args:
        model: Is put into evaluation mode.
        source: Token numbers to read.
        source_mask: True on real source tokens, as `padding_mask` makes it.
        bos: Token that begins a target.
        eos: Token that ends one.
        num_beams: How many beginnings are kept; as many as there are gives exhaustive search.
        alpha: See `length_penalty`; 0.6 as in the paper.

    Returns:
        The targets, without `bos`, up to the model's `max_len`.

    Raises:
        ValueError: If there is no beam, or if the source is longer than the model allows.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, section 6.1,
        https://arxiv.org/abs/1706.03762; Wu et al. 2016, section 7,
        https://arxiv.org/abs/1609.08144

    """
    _require_beams(num_beams)
    model.eval()
    with torch.no_grad():
        memory = model.encode(source, source_mask).repeat_interleave(num_beams, dim=0)
    mask = None if source_mask is None else source_mask.repeat_interleave(num_beams, dim=0)
    cache = model.new_cache(len(memory))
    start = source.new_full((len(memory), 1), bos)

    @torch.no_grad()
    def read(context: Int[Tensor, "rows length"], rows: Int[Tensor, " rows"] | None) -> Tensor:
        if rows is not None:
            cache.reorder(rows)
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
    """Keep the best beginnings alive, and the best answers that have ended.

    `read` takes what each row has written, and which row each one goes on from.
    """
    logits = read(torch.empty(batch_size * num_beams, 0, dtype=torch.long), None)
    device, vocab_size = logits.device, logits.shape[-1]
    filler = 0 if eos is None else eos
    # All rows begin alike: only the first of each sequence counts, or each would be found
    # `num_beams` times.
    alive_scores = torch.full((batch_size, num_beams), -math.inf, device=device)
    alive_scores[:, 0] = 0.0
    alive = torch.full((batch_size, num_beams, max_new_tokens), filler, device=device)
    ended = alive.clone()
    ended_scores = torch.full_like(alive_scores, -math.inf)
    first_row = torch.arange(batch_size, device=device)[:, None] * num_beams
    for length in range(1, max_new_tokens + 1):
        # 1. Score every way to go on, and keep twice as many as beams: half of them may end.
        gains = logits.float().log_softmax(-1).view(batch_size, num_beams, vocab_size)
        candidates = (alive_scores[..., None] + gains).flatten(1)  # (batch, beams * vocab)
        scores, chosen = candidates.topk(min(2 * num_beams, candidates.shape[1]), dim=1)
        beam, token = chosen // vocab_size, chosen % vocab_size
        written = alive.gather(1, beam[..., None].expand(-1, -1, max_new_tokens)).clone()
        written[..., length - 1] = token
        # 2. What ends here, or has no more room, competes with what ended before.
        is_over = torch.full_like(token, length == max_new_tokens, dtype=torch.bool)
        if eos is not None:
            is_over = is_over | (token == eos)
        final = (scores / length_penalty(length, alpha)).masked_fill(~is_over, -math.inf)
        ended_scores, best = torch.cat((ended_scores, final), dim=1).topk(num_beams, dim=1)
        ended = torch.cat((ended, written), dim=1)
        ended = ended.gather(1, best[..., None].expand(-1, -1, max_new_tokens))
        # 3. The best of the others go on.
        open_scores = scores.masked_fill(is_over, -math.inf)
        missing = num_beams - open_scores.shape[1]
        if missing > 0:  # a vocabulary smaller than the number of beams
            open_scores = torch.nn.functional.pad(open_scores, (0, missing), value=-math.inf)
            beam, written = _repeat_last(beam, missing), _repeat_last(written, missing)
        alive_scores, best = open_scores.topk(num_beams, dim=1)
        alive = written.gather(1, best[..., None].expand(-1, -1, max_new_tokens))
        # 4. A score only falls, and is divided by the penalty of the greatest length at most.
        bound = alive_scores[:, 0] / length_penalty(max_new_tokens, alpha)
        if length == max_new_tokens or bool((bound <= ended_scores[:, -1]).all()):
            break
        rows = (first_row + beam.gather(1, best)).flatten()
        logits = read(alive[..., :length].flatten(0, 1), rows)
    return Beams(ended, ended_scores)


def _repeat_last(x: Tensor, times: int) -> Tensor:
    return torch.cat((x, x[:, -1:].repeat_interleave(times, dim=1)), dim=1)


def _require_beams(num_beams: int) -> None:
    if num_beams < 1:
        raise ValueError(f"num_beams must be at least 1, got num_beams={num_beams}")


def _answers(
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
    unread = target
    while True:
        new = target if cache is None else unread
        with torch.no_grad():
            logits = model.decode(new, memory, source_mask, cache=cache)
        token = choose(logits[:, -1])
        yield token
        unread = token[:, None]
        target = torch.cat((target, unread), dim=1)


def _collect(
    tokens: Iterator[Int[Tensor, " batch"]],
    nothing: Int[Tensor, "batch 0"],
    max_new_tokens: int,
    eos: int | None,
) -> Int[Tensor, "batch new"]:
    """Put tokens side by side until every sequence has ended or there are enough."""
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
