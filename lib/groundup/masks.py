"""Who may attend to whom. A mask is boolean and True where attention is allowed. Always."""

import math
from functools import reduce
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

AnyMask = Bool[Tensor, "..."] | Literal["causal"]
"""A tensor that is True where attention is allowed, or the word for `causal_mask`."""


def masked_softmax(
    scores: Float[Tensor, "*batch q_len k_len"],
    mask: AnyMask | None = None,
) -> Float[Tensor, "*batch q_len k_len"]:
    """Turn each row of scores into weights that sum to 1 over the allowed keys.

    Masking has to come before the softmax, so that what is hidden takes no share. A row in
    which nothing is allowed gives zeros, not NaN, and passes back a gradient of zero: padding
    then stays silent. The fill value is the smallest number of the dtype, so half precision
    does not overflow.

    Args:
        scores: How well each query matches each key, any real number.
        mask: True where attention is allowed, broadcasting to the shape of `scores`; or the
            word `"causal"`, which takes a third less time than the same mask drawn.

    Returns:
        Weights from 0 to 1. Masked entries are exactly 0.

    Raises:
        ValueError: As in `drawn_mask`.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, section 3.2.3 (masking inside the
        attention), https://arxiv.org/abs/1706.03762

    """
    if isinstance(mask, str):
        causal = drawn_mask(mask, scores.shape[-2], scores.shape[-1], scores.device)
        if causal is not None:
            # Every query sees itself, so no row is empty, and one sum is enough.
            scores = scores + additive_mask(causal, scores.dtype)
        return scores.softmax(dim=-1)
    if mask is None:
        return scores.softmax(dim=-1)
    lowest = torch.finfo(scores.dtype).min
    weights = scores.masked_fill(~mask, lowest).softmax(dim=-1)
    return weights.masked_fill(~mask, 0.0)


def causal_mask(
    q_len: int, k_len: int | None = None, device: torch.device | str | None = None
) -> Bool[Tensor, "q_len k_len"]:
    """Let each position attend to itself and to what came before it.

    The queries are the last `q_len` of `k_len` positions, so that a model that keeps the keys
    of earlier tokens can ask for the newest rows alone.

    Args:
        q_len: Number of queries, in tokens.
        k_len: Number of keys, in tokens; by default `q_len`.
        device: Where the mask is made.

    Returns:
        True at `(i, j)` where key `j` is not later than query `i`.

    Raises:
        ValueError: If there are more queries than keys.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, section 3.2.3,
        https://arxiv.org/abs/1706.03762

    """
    k_len = q_len if k_len is None else k_len
    require_causal("causal", q_len, k_len)
    everything = torch.ones(q_len, k_len, dtype=torch.bool, device=device)
    return everything.tril(diagonal=k_len - q_len)


def sliding_window_mask(
    q_len: int,
    window: int,
    k_len: int | None = None,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "q_len k_len"]:
    """Let each position attend to the newest `window` positions, itself included.

    The cost of a long text then grows with its length and not with the square, and a cache
    need not keep more than `window` keys. What lies further back still arrives, one window per
    layer. The queries are the last of the keys, as in `causal_mask`.

    Args:
        q_len: Number of queries, in tokens.
        window: Number of keys that a query sees, in tokens; near the start there are fewer.
        k_len: Number of keys, in tokens; by default `q_len`.
        device: Where the mask is made.

    Returns:
        True at `(i, j)` where key `j` is among the `window` keys that end with query `i`.

    Raises:
        ValueError: If `window` is below 1, or if there are more queries than keys.

    Source:
        Beltagy et al. 2020, Longformer, section 3.1 (sliding window),
        https://arxiv.org/abs/2004.05150; in causal form: Jiang et al. 2023, Mistral 7B,
        section 2, https://arxiv.org/abs/2310.06825

    """
    if window < 1:
        raise ValueError(f"window must be at least 1, got window={window}")
    past = causal_mask(q_len, k_len, device)
    return past.triu(diagonal=past.shape[-1] - q_len - window + 1)


def padding_mask(
    lengths: Int[Tensor, " batch"], length: int, side: Literal["right", "left"] = "right"
) -> Bool[Tensor, "batch 1 1 {length}"]:
    """Hide the filler of each sequence, as a key, from every query.

    Args:
        lengths: Number of real tokens in each sequence.
        length: Number of tokens that every sequence was filled up to.
        side: Where the filler stands: after the real tokens (`right`), as when training, or
            before them (`left`), so that all sequences of a batch can be continued at the end.

    Returns:
        True on real tokens. The two axes of size 1 stand for heads and queries: combine it
        with another mask by `&`.

    Raises:
        ValueError: If `side` is neither.

    """
    if side not in ("right", "left"):
        raise ValueError(f'side must be "right" or "left", got side="{side}"')
    place = torch.arange(length, device=lengths.device)
    if side == "left":
        place = length - 1 - place
    is_real = place < lengths[:, None]  # (batch, length)
    return is_real[:, None, None, :]


def prefix_mask(
    prefix_lengths: Int[Tensor, " batch"], length: int
) -> Bool[Tensor, "batch 1 {length} {length}"]:
    """Let the first tokens of each sequence see one another both ways; the rest is causal.

    What is given, such as a question, need not be read as if it were being written: one model
    then encodes it and continues it.

    Args:
        prefix_lengths: Number of tokens that are given, in each sequence.
        length: Number of tokens in every sequence.

    Returns:
        True where the key belongs to the prefix or is not later than the query. The axis of
        size 1 stands for heads.

    Source:
        Liu et al. 2018, Generating Wikipedia by Summarizing Long Sequences (one decoder over
        input and output), https://arxiv.org/abs/1801.10198; the mask: Raffel et al. 2020, T5,
        section 3.2.1, https://arxiv.org/abs/1910.10683

    """
    return padding_mask(prefix_lengths, length) | causal_mask(length, device=prefix_lengths.device)


def document_mask(
    documents: Int[Tensor, "batch length"],
) -> Bool[Tensor, "batch 1 length length"]:
    """Keep texts that were packed into one sequence from seeing one another.

    It says nothing about order: a decoder combines it with `causal_mask` by `&`.

    Args:
        documents: For each token the number of the text it belongs to.

    Returns:
        True where query and key belong to the same text. The axis of size 1 stands for heads.

    Source:
        Krell et al. 2021, Efficient Sequence Packing without Cross-contamination,
        https://arxiv.org/abs/2107.02027

    """
    return (documents[:, :, None] == documents[:, None, :])[:, None]


def drawn_mask(
    mask: AnyMask | None, q_len: int, k_len: int, device: torch.device | str | None = None
) -> Bool[Tensor, "..."] | None:
    """Give a mask as a tensor where it is a word, or None where the word hides nothing.

    Args:
        mask: A mask, the word `"causal"`, or None.
        q_len: Number of queries, in tokens.
        k_len: Number of keys, in tokens.
        device: Where the mask is made.

    Raises:
        ValueError: As in `require_causal`.

    """
    if not isinstance(mask, str):
        return mask
    require_causal(mask, q_len, k_len)
    return None if q_len == 1 else causal_mask(q_len, k_len, device)  # the newest sees every key


def combine_masks(*masks: Bool[Tensor, "..."] | None) -> Bool[Tensor, "..."] | None:
    """Allow what every given mask allows.

    Args:
        masks: Masks that broadcast against each other; None allows everything.

    Returns:
        One mask, or None if none was given.

    """
    given = [mask for mask in masks if mask is not None]
    return reduce(torch.logical_and, given) if given else None


def additive_mask(
    mask: Bool[Tensor, "*batch q_len k_len"], dtype: torch.dtype = torch.float32
) -> Float[Tensor, "*batch q_len k_len"]:
    """Write a mask as numbers to add to the scores: 0 where allowed, minus infinity elsewhere.

    It takes one sum where a boolean mask takes a choice. It also speaks to code that knows no
    boolean masks or reads them the other way round, and to kernels that take one term for mask
    and bias together. It has a price: a row of only minus infinity has no largest score to
    subtract, so a plain softmax answers NaN, and so does its gradient. `masked_softmax` gives
    such a row zeros.

    Args:
        mask: True where attention is allowed.
        dtype: Type of the scores. Infinity exists in each; a large number such as -1e9 does
            not exist in float16.

    """
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -math.inf)


def require_causal(word: str, q_len: int, k_len: int) -> None:
    """Refuse a word that names no mask, and queries that cannot be the last of the keys.

    Raises:
        ValueError: If the word is not `causal`, or if there are more queries than keys.

    """
    if word != "causal":
        raise ValueError(f'mask must be a boolean tensor, "causal" or None, got mask="{word}"')
    if q_len > k_len:
        raise ValueError(f"q_len must not exceed k_len, got q_len={q_len}, k_len={k_len}")
