"""Attention without the softmax: a state of fixed size takes the place of the cache.

Each query still adds up values, weighted by its dot products with the keys so far; with a decay,
older tokens count for less. Without a softmax the products can be taken in a different order:
keys with values first. Three forms of the same function: all pairs at once (parallel), token by
token (recurrent), and chunk by chunk. No form divides by the sum of the weights. To get averages,
make the weights positive by `positive_features`, append a feature of ones to the values, and
divide the output by its last feature.

Source:
    Katharopoulos et al. 2020, Transformers are RNNs, sections 3.2 and 3.4,
    https://arxiv.org/abs/2006.16236; the decay and the chunks: Sun et al. 2023, Retentive
    Network, section 2.1, https://arxiv.org/abs/2307.08621

"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from groundup.core.attention import dot_scores
from groundup.core.config import require

Decay = float | Float[Tensor, "..."]
"""Factor of a token's weight for each token that follows it: above 0, and 1 for no
decay. A tensor broadcasts to the batch axes: one of shape `(heads,)` gives each head its own."""


def positive_features(x: Float[Tensor, "*batch length d"]) -> Float[Tensor, "*batch length d"]:
    """Make queries or keys positive, so that all their dot products are: `elu(x) + 1`."""
    return F.elu(x) + 1


def parallel_linear_attention(
    query: Float[Tensor, "*batch length d_head"],
    key: Float[Tensor, "*batch length d_head"],
    value: Float[Tensor, "*batch length d_value"],
    decay: Decay = 1.0,
) -> Float[Tensor, "*batch length d_value"]:
    """Score all pairs at once: time and memory grow with the square of the length.

    Args:
        query: What each token looks for.
        key: What each token offers for matching.
        value: What each token contributes.
        decay: As in `Decay`.

    Returns:
        For each token the sum of the values up to its own, weighted by
        `decay^distance (query · key)`.

    Raises:
        ValueError: If a decay is not above 0 and at most 1.

    """
    log_decay = _log(decay, query)[..., None, None]
    index = torch.arange(query.shape[-2], device=query.device)
    distance = index[:, None] - index  # (length, length)
    faded = (log_decay * distance.clamp(min=0)).exp() * (distance >= 0)
    return (dot_scores(query, key) * faded) @ value


def recurrent_linear_attention(
    query: Float[Tensor, "*batch length d_head"],
    key: Float[Tensor, "*batch length d_head"],
    value: Float[Tensor, "*batch length d_value"],
    decay: Decay = 1.0,
    state: Float[Tensor, "*batch d_head d_value"] | None = None,
) -> tuple[Float[Tensor, "*batch length d_value"], Float[Tensor, "*batch d_head d_value"]]:
    """Add each token to a state and read it: the cost per token does not depend on the length.

    Args:
        query: What each token looks for.
        key: What each token offers for matching.
        value: What each token contributes.
        decay: As in `Decay`.
        state: Of the tokens before these, from an earlier call; None if there are none.

    Returns:
        The sums, as in `parallel_linear_attention`, and the state after the last token.

    Raises:
        ValueError: If a decay is not above 0 and at most 1.

    """
    fade = _log(decay, query).exp()[..., None, None]
    state = _first(state, key, value)
    outputs = []
    for q, k, v in zip(query.unbind(-2), key.unbind(-2), value.unbind(-2), strict=True):
        state = fade * state + k[..., :, None] * v[..., None, :]  # (d_head, d_value)
        outputs.append((q[..., None, :] @ state).squeeze(-2))
    return torch.stack(outputs, dim=-2), state


def chunked_linear_attention(
    query: Float[Tensor, "*batch length d_head"],
    key: Float[Tensor, "*batch length d_head"],
    value: Float[Tensor, "*batch length d_value"],
    decay: Decay = 1.0,
    state: Float[Tensor, "*batch d_head d_value"] | None = None,
    chunk_size: int = 64,
) -> tuple[Float[Tensor, "*batch length d_value"], Float[Tensor, "*batch d_head d_value"]]:
    """Score pairs within a chunk, and read earlier chunks from the state: for training.

    Time is linear in the length, and there are only as many sequential steps as chunks.

    Args:
        query: What each token looks for.
        key: What each token offers for matching.
        value: What each token contributes.
        decay: As in `Decay`.
        state: As in `recurrent_linear_attention`.
        chunk_size: Number of tokens that are scored together; the last chunk may be shorter.

    Returns:
        As in `recurrent_linear_attention`.

    Raises:
        ValueError: If a decay is not above 0 and at most 1, or `chunk_size` is below 1.

    """
    require(chunk_size >= 1, "chunk_size must be at least 1", chunk_size=chunk_size)
    log_decay = _log(decay, query)[..., None, None]
    past = _first(state, key, value)
    outputs = []
    parts = (x.split(chunk_size, dim=-2) for x in (query, key, value))
    for q, k, v in zip(*parts, strict=True):
        within = parallel_linear_attention(q, k, v, decay)
        step = torch.arange(1, q.shape[-2] + 1, device=q.device)[:, None]  # (chunk, 1)
        outputs.append(within + ((log_decay * step).exp() * q) @ past)
        until_end = (log_decay * (len(step) - step)).exp()  # how far each token fades in its chunk
        added = (until_end * k).transpose(-2, -1) @ v
        past = (log_decay * len(step)).exp() * past + added
    return torch.cat(outputs, dim=-2), past


def _log(decay: Decay, like: Tensor) -> Tensor:
    decay = torch.as_tensor(decay, dtype=like.dtype, device=like.device)
    valid = bool(((decay > 0) & (decay <= 1)).all())
    require(valid, "decay must be above 0 and at most 1", decay=decay.tolist())
    return decay.log()


def _first(state: Tensor | None, key: Tensor, value: Tensor) -> Tensor:
    """Begin with nothing where there is no state."""
    empty = key.new_zeros(*key.shape[:-2], key.shape[-1], value.shape[-1])
    return empty if state is None else state
