"""Which tokens may attend to which: boolean tensors, True where attention is allowed.

Where a mask is optional, None allows everything. The attention layers of a decoder hide the
future themselves (`is_causal`): no mask has to be passed for that.
"""

import math
from functools import reduce
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from groundup.core.config import require, require_choice


def masked_softmax(
    scores: Float[Tensor, "*batch q_len k_len"], mask: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "*batch q_len k_len"]:
    """Normalise each row of scores to weights that sum to 1 over the allowed keys.

    Masking comes before the softmax, so that hidden keys take no probability. A row in which
    nothing is allowed gives zeros, not NaN, and passes back a gradient of zero. Hidden scores
    become the lowest finite number of the dtype, so half precision does not overflow.

    Args:
        scores: How well each query matches each key, any real number.
        mask: True where attention is allowed, broadcasting to the shape of `scores`.

    Returns:
        Weights from 0 to 1. Masked entries are exactly 0.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, section 3.2.3 (masking inside the
        attention), https://arxiv.org/abs/1706.03762

    """
    if mask is None:
        return scores.softmax(dim=-1)
    lowest = torch.finfo(scores.dtype).min
    weights = scores.masked_fill(~mask, lowest).softmax(dim=-1)
    return weights.masked_fill(~mask, 0.0)


def causal_mask(
    q_len: int, k_len: int | None = None, device: torch.device | str | None = None
) -> Bool[Tensor, "q_len k_len"]:
    """Let each position attend to itself and to those before it (a look-ahead mask).

    The queries are the last `q_len` of `k_len` positions, so that a model that caches the keys
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
    require(q_len <= k_len, "q_len must not exceed k_len", q_len=q_len, k_len=k_len)
    everything = torch.ones(q_len, k_len, dtype=torch.bool, device=device)
    return everything.tril(diagonal=k_len - q_len)


def sliding_window_mask(
    q_len: int, window: int, k_len: int | None = None, device: torch.device | str | None = None
) -> Bool[Tensor, "q_len k_len"]:
    """Let each position attend to the newest `window` positions, itself included.

    A kernel that skips masked keys then takes time linear in the length, and a cache need not
    keep more than `window` keys. Information from further back still arrives,
    `window - 1` positions per layer. The queries are at the last positions of the keys, as in
    `causal_mask`.

    Args:
        q_len: Number of queries, in tokens.
        window: Number of keys that a query sees, in tokens; near the start there are fewer.
        k_len: Number of keys, in tokens; by default `q_len`.
        device: Where the mask is made.

    Returns:
        True at `(i, j)` where key `j` is among the last `window` keys up to query `i`.

    Raises:
        ValueError: If `window` is below 1, or if there are more queries than keys.

    Source:
        Beltagy et al. 2020, Longformer, section 3.1 (sliding window),
        https://arxiv.org/abs/2004.05150; in causal form: Jiang et al. 2023, Mistral 7B,
        section 2, https://arxiv.org/abs/2310.06825

    """
    require(window >= 1, "window must be at least 1", window=window)
    past = causal_mask(q_len, k_len, device)
    return past.triu(diagonal=past.shape[-1] - q_len - window + 1)


def padding_mask(
    lengths: Int[Tensor, " batch"], length: int, side: Literal["right", "left"] = "right"
) -> Bool[Tensor, "batch 1 1 {length}"]:
    """Hide the keys of padding tokens from every query.

    Args:
        lengths: Number of real tokens in each sequence.
        length: Number of tokens that every sequence is padded to.
        side: Where the padding is: after the real tokens (`right`), as in training, or
            before them (`left`), so that all sequences of a batch can be continued at the end.

    Returns:
        True on real tokens. The two axes of size 1 are those of heads and queries: combine it
        with another mask using `&`.

    Raises:
        ValueError: If `side` is neither.

    """
    require_choice(("right", "left"), side=side)
    index = torch.arange(length, device=lengths.device)
    if side == "left":
        index = length - 1 - index
    is_real = index < lengths[:, None]  # (batch, length)
    return is_real[:, None, None, :]


def prefix_mask(
    prefix_lengths: Int[Tensor, " batch"], length: int
) -> Bool[Tensor, "batch 1 {length} {length}"]:
    """Let the first tokens of each sequence see one another in both directions; the rest is causal.

    A given prefix, such as a prompt, need not be processed causally: one model then encodes
    and continues it.

    Args:
        prefix_lengths: Number of tokens that are given, in each sequence.
        length: Number of tokens in every sequence.

    Returns:
        True where the key belongs to the prefix or is not later than the query. The axis of
        size 1 is that of the heads.

    Source:
        Liu et al. 2018, Generating Wikipedia by Summarizing Long Sequences (one decoder over
        input and output), https://arxiv.org/abs/1801.10198; the mask: Raffel et al. 2020, T5,
        section 3.2.1, https://arxiv.org/abs/1910.10683

    """
    return padding_mask(prefix_lengths, length) | causal_mask(length, device=prefix_lengths.device)


def document_mask(
    documents: Int[Tensor, "batch length"],
) -> Bool[Tensor, "batch 1 length length"]:
    """Keep documents that were packed into one sequence from seeing one another.

    It says nothing about order: combine it with `causal_mask` using `&`, or use `is_causal`.

    Args:
        documents: For each token the number of the document it belongs to.

    Returns:
        True where query and key belong to the same document. The axis of size 1 is that of the
        heads.

    Source:
        Krell et al. 2021, Efficient Sequence Packing without Cross-contamination,
        https://arxiv.org/abs/2107.02027

    """
    return (documents[:, :, None] == documents[:, None, :])[:, None]


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

    Adding takes less time than the two selections of `masked_softmax`, and works in libraries
    without boolean masks, or with the opposite meaning of True. But a row of nothing but minus
    infinity has no finite maximum to subtract, so a plain softmax and its gradient are NaN.
    `masked_softmax` gives such a row zeros.

    Args:
        mask: True where attention is allowed.
        dtype: Type of the scores. Even float16 has an infinity, but -1e9 does not fit
            into it.

    """
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -math.inf)
