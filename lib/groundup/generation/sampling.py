"""Selects tokens from logits. Nothing here depends on models or text.

Filters map logits to logits, so they compose: `sample(top_k(temperature(x, 0.8), 40), g)`. A
token that a filter excludes gets a logit of minus infinity, so its probability is exactly 0.
Each row of a batch is filtered independently.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def greedy(logits: Float[Tensor, "*batch vocab"]) -> Int[Tensor, "*batch"]:
    """Choose the most probable token."""
    return logits.argmax(dim=-1)


def sample(
    logits: Float[Tensor, "*batch vocab"], generator: torch.Generator
) -> Int[Tensor, "*batch"]:
    """Draw a token from the softmax of the logits.

    Args:
        logits: Any real numbers; a token with minus infinity is never drawn.
        generator: Draws the tokens; must be on the same device as the logits.

    """
    probabilities = logits.softmax(dim=-1).reshape(-1, logits.shape[-1])  # (rows, vocab)
    return torch.multinomial(probabilities, 1, generator=generator).view(logits.shape[:-1])


def temperature(
    logits: Float[Tensor, "*batch vocab"], temperature: float
) -> Float[Tensor, "*batch vocab"]:
    """Sharpen (below 1) or flatten (above 1) a distribution, without changing the ranking.

    At 0 the most probable token alone is kept; towards infinity, the distribution becomes uniform.

    Raises:
        ValueError: If the temperature is negative or NaN.

    """
    if not temperature >= 0:
        raise ValueError(f"temperature must not be negative, got temperature={temperature}")
    return logits / temperature if temperature else top_k(logits, 1)


def top_k(logits: Float[Tensor, "*batch vocab"], k: int) -> Float[Tensor, "*batch vocab"]:
    """Keep the `k` most probable tokens. If tokens tie for the last place, lower ids win.

    Args:
        logits: Any real numbers.
        k: Number of tokens to keep; `vocab` or more keeps all.

    Raises:
        ValueError: If `k` is below 1.

    Source:
        Fan et al. 2018, Hierarchical Neural Story Generation,
        https://arxiv.org/abs/1805.04833

    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got k={k}")
    order = logits.argsort(dim=-1, descending=True, stable=True)
    return logits.scatter(-1, order[..., k:], float("-inf"))


def top_p(logits: Float[Tensor, "*batch vocab"], p: float) -> Float[Tensor, "*batch vocab"]:
    """Keep the smallest set of most probable tokens whose total probability is at least `p`.

    Unlike `top_k`, this keeps many tokens if the model is uncertain and few if it is certain.

    Args:
        logits: Any real numbers.
        p: Probability mass to keep, above 0 and at most 1; the most probable token is always
            kept.

    Raises:
        ValueError: If `p` is not above 0 and at most 1.

    Source:
        Holtzman et al. 2020, The Curious Case of Neural Text Degeneration, section 3.1,
        https://arxiv.org/abs/1904.09751

    """
    if not 0 < p <= 1:
        raise ValueError(f"p must be above 0 and at most 1, got p={p}")
    if p == 1:
        return logits  # rounding could otherwise cut the tail
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities  # mass of the more probable tokens
    return logits.scatter(-1, order, ordered.masked_fill(before >= p, float("-inf")))
