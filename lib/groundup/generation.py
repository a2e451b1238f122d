"""The loop that writes: predict, choose, append, repeat. How to choose is the caller's."""

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from groundup.data import source_batch
from groundup.models import DecoderOnly, EncoderDecoder
from groundup.sampling import greedy
from groundup.tokenizers import BOS, EOS, CharacterTokenizer

Choose = Callable[[Float[Tensor, "batch vocab"]], Int[Tensor, " batch"]]
"""Turns the logits of the next token into the next token, as `sampling` does."""


def stream(
    model: DecoderOnly,
    prompt: Int[Tensor, "batch length"],
    choose: Choose = greedy,
    use_cache: bool = True,
) -> Iterator[Int[Tensor, " batch"]]:
    """Continue sequences without end, one token of each at a time.

    When the context is full, its older half is forgotten and the newer is read again, as if
    the text began there.

    Args:
        model: Is put into evaluation mode.
        prompt: At least one token.
        choose: Turns logits into tokens.
        use_cache: Whether keys and values are kept rather than worked out again. That saves
            time and changes no token.

    Yields:
        The next token of each sequence.

    Raises:
        ValueError: If the prompt is empty or longer than the model's context.

    """
    max_len = model.config.max_len
    if prompt.shape[1] < 1:
        raise ValueError("a prompt must have at least 1 token, got none")
    if prompt.shape[1] > max_len:
        raise ValueError(
            f"a prompt must not be longer than the model's context, got {prompt.shape[1]} tokens, "
            f"max_len={max_len}"
        )
    model.eval()
    context, unread = prompt, prompt
    cache = model.new_cache(len(prompt)) if use_cache else None
    while True:
        if context.shape[1] > max_len:
            context = unread = context[:, -((max_len + 1) // 2) :]
            cache = model.new_cache(len(prompt)) if use_cache else None
        with torch.no_grad():
            logits = model(context) if cache is None else model(unread, cache=cache)
        token = choose(logits[:, -1])
        yield token
        unread = token[:, None]
        context = torch.cat((context, unread), dim=1)


def generate(
    model: DecoderOnly,
    prompt: Int[Tensor, "batch length"],
    max_new_tokens: int,
    choose: Choose = greedy,
    eos: int | None = None,
    use_cache: bool = True,
) -> Int[Tensor, "batch total"]:
    """Continue sequences up to a length, or until each has ended.

    Args:
        model: Is put into evaluation mode.
        prompt: At least one token.
        max_new_tokens: Most tokens to write after the prompt.
        choose: Turns logits into tokens.
        eos: Token that ends a sequence; what is written behind it is this token again.
        use_cache: As in `stream`.

    Returns:
        The prompt and what follows it.

    Raises:
        ValueError: If the prompt is empty or longer than the model's context.

    """
    tokens = stream(model, prompt, choose, use_cache)
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
    source_tokenizer: CharacterTokenizer,
    target_tokenizer: CharacterTokenizer,
    batch_size: int = 256,
) -> list[str]:
    """Translate strings into strings, always choosing the most probable token.

    Args:
        model: Is put into evaluation mode.
        sources: What to read; none may be empty.
        source_tokenizer: Has `PAD`.
        target_tokenizer: Has `BOS` and `EOS`.
        batch_size: Most strings read at a time.

    Raises:
        ValueError: If a source is empty, too long for the model, or has a character outside
            the vocabulary.

    """
    device = next(model.parameters()).device
    bos, eos = target_tokenizer.id_of(BOS), target_tokenizer.id_of(EOS)
    targets = []
    for i in range(0, len(sources), batch_size):
        source, source_mask = source_batch(sources[i : i + batch_size], source_tokenizer)
        tokens = translate(model, source.to(device), source_mask.to(device), bos, eos)
        targets += [target_tokenizer.decode(row) for row in tokens.tolist()]
    return targets


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
