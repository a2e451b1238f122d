"""The named mistakes of chapter 08: what a message can name, and what graders are tested with."""

import math

import torch
import torch.nn.functional as F

from classroom.answers import Mistake


def turn(x, positions):
    speed = 10_000.0 ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1])
    angle = positions[:, None] * speed
    ahead, aside = x[..., 0::2], x[..., 1::2]
    pairs = (ahead * angle.cos() - aside * angle.sin(), ahead * angle.sin() + aside * angle.cos())
    return torch.stack(pairs, dim=-1).flatten(-2).to(x.dtype)


# 8.1 ---------------------------------------------------------------------------------------------


class TemperatureMultiplied(Mistake, exercise="next_token"):
    """The logits are multiplied by the temperature, so a low one flattens; divide by it."""

    def with_temperature(logits, temperature):
        return logits * temperature

    def top_k(logits, k):
        rank = logits.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return torch.where(rank < k, logits, -math.inf)

    def top_p(logits, p):
        if p == 1:
            return logits
        ordered, order = torch.sort(logits, dim=1, descending=True)
        share = F.softmax(ordered, dim=1)
        ordered[torch.cumsum(share, dim=1) - share >= p] = -math.inf
        return torch.empty_like(logits).scatter(1, order, ordered)

    def draw(logits, u):
        edges = logits.softmax(dim=1).cumsum(dim=1)
        return torch.searchsorted(edges, u[:, None], right=True).squeeze(1)

    def next_token(logits, u, temperature=1.0, k=None, p=None):
        logits = with_temperature(logits, temperature)
        if k is not None:
            logits = top_k(logits, k)
        if p is not None:
            logits = top_p(logits, p)
        return draw(logits, u)


class TemperatureOnProbabilities(Mistake, exercise="next_token"):
    """`with_temperature` takes a softmax and divides the probabilities; it divides logits and
    returns logits."""

    def with_temperature(logits, temperature):
        return logits.softmax(dim=1) / temperature

    def top_k(logits, k):
        rank = logits.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return torch.where(rank < k, logits, -math.inf)

    def top_p(logits, p):
        if p == 1:
            return logits
        ordered, order = torch.sort(logits, dim=1, descending=True)
        share = F.softmax(ordered, dim=1)
        ordered[torch.cumsum(share, dim=1) - share >= p] = -math.inf
        return torch.empty_like(logits).scatter(1, order, ordered)

    def draw(logits, u):
        edges = logits.softmax(dim=1).cumsum(dim=1)
        return torch.searchsorted(edges, u[:, None], right=True).squeeze(1)

    def next_token(logits, u, temperature=1.0, k=None, p=None):
        logits = with_temperature(logits, temperature)
        if k is not None:
            logits = top_k(logits, k)
        if p is not None:
            logits = top_p(logits, p)
        return draw(logits, u)


class TemperatureAfterTheCuts(Mistake, exercise="next_token"):
    """`next_token` applies the temperature last, so the share p is one of other probabilities;
    the temperature comes first, then the cuts."""

    def with_temperature(logits, temperature):
        return logits / temperature

    def top_k(logits, k):
        rank = logits.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return torch.where(rank < k, logits, -math.inf)

    def top_p(logits, p):
        if p == 1:
            return logits
        ordered, order = torch.sort(logits, dim=1, descending=True)
        share = F.softmax(ordered, dim=1)
        ordered[torch.cumsum(share, dim=1) - share >= p] = -math.inf
        return torch.empty_like(logits).scatter(1, order, ordered)

    def draw(logits, u):
        edges = logits.softmax(dim=1).cumsum(dim=1)
        return torch.searchsorted(edges, u[:, None], right=True).squeeze(1)

    def next_token(logits, u, temperature=1.0, k=None, p=None):
        if k is not None:
            logits = top_k(logits, k)
        if p is not None:
            logits = top_p(logits, p)
        return draw(with_temperature(logits, temperature), u)


class ShareCutBeforeK(Mistake, exercise="next_token"):
    """`next_token` cuts to the share p before it cuts to k tokens; k comes first, and p is a
    share of what k left."""

    def with_temperature(logits, temperature):
        return logits / temperature

    def top_k(logits, k):
        rank = logits.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return torch.where(rank < k, logits, -math.inf)

    def top_p(logits, p):
        if p == 1:
            return logits
        ordered, order = torch.sort(logits, dim=1, descending=True)
        share = F.softmax(ordered, dim=1)
        ordered[torch.cumsum(share, dim=1) - share >= p] = -math.inf
        return torch.empty_like(logits).scatter(1, order, ordered)

    def draw(logits, u):
        edges = logits.softmax(dim=1).cumsum(dim=1)
        return torch.searchsorted(edges, u[:, None], right=True).squeeze(1)

    def next_token(logits, u, temperature=1.0, k=None, p=None):
        logits = with_temperature(logits, temperature)
        if p is not None:
            logits = top_p(logits, p)
        if k is not None:
            logits = top_k(logits, k)
        return draw(logits, u)


class TiesAllKept(Mistake, exercise="next_token"):
    """`top_k` keeps everything that is as high as place k, so ties let more than k tokens
    through; of those that tie the lower ids stay."""

    def with_temperature(logits, temperature):
        return logits / temperature

    def top_k(logits, k):
        least = logits.topk(min(k, logits.shape[1]), dim=1).values[:, -1:]
        return torch.where(logits < least, -math.inf, logits)

    def top_p(logits, p):
        if p == 1:
            return logits
        ordered, order = torch.sort(logits, dim=1, descending=True)
        share = F.softmax(ordered, dim=1)
        ordered[torch.cumsum(share, dim=1) - share >= p] = -math.inf
        return torch.empty_like(logits).scatter(1, order, ordered)

    def draw(logits, u):
        edges = logits.softmax(dim=1).cumsum(dim=1)
        return torch.searchsorted(edges, u[:, None], right=True).squeeze(1)

    def next_token(logits, u, temperature=1.0, k=None, p=None):
        logits = with_temperature(logits, temperature)
        if k is not None:
            logits = top_k(logits, k)
        if p is not None:
            logits = top_p(logits, p)
        return draw(logits, u)


class HigherIdsKept(Mistake, exercise="next_token"):
    """Of tokens that tie for the last place `top_k` keeps those with the higher ids; the lower
    ones stay."""

    def with_temperature(logits, temperature):
        return logits / temperature

    def top_k(logits, k):
        rank = logits.flip(1).argsort(dim=1, descending=True, stable=True).argsort(dim=1).flip(1)
        return torch.where(rank < k, logits, -math.inf)

    def top_p(logits, p):
        if p == 1:
            return logits
        ordered, order = torch.sort(logits, dim=1, descending=True)
        share = F.softmax(ordered, dim=1)
        ordered[torch.cumsum(share, dim=1) - share >= p] = -math.inf
        return torch.empty_like(logits).scatter(1, order, ordered)

    def draw(logits, u):
        edges = logits.softmax(dim=1).cumsum(dim=1)
        return torch.searchsorted(edges, u[:, None], right=True).squeeze(1)

    def next_token(logits, u, temperature=1.0, k=None, p=None):
        logits = with_temperature(logits, temperature)
        if k is not None:
            logits = top_k(logits, k)
        if p is not None:
            logits = top_p(logits, p)
        return draw(logits, u)


class KBeyondTheVocabulary(Mistake, exercise="next_token"):
    """`top_k` asks for more places than there are tokens; a k beyond the vocabulary keeps
    everything."""

    def with_temperature(logits, temperature):
        return logits / temperature

    def top_k(logits, k):
        kept = logits.topk(k, dim=1).values
        order = logits.argsort(dim=1, descending=True, stable=True)[:, : kept.shape[1]]
        return torch.full_like(logits, -math.inf).scatter(1, order, kept)

    def top_p(logits, p):
        if p == 1:
            return logits
        ordered, order = torch.sort(logits, dim=1, descending=True)
        share = F.softmax(ordered, dim=1)
        ordered[torch.cumsum(share, dim=1) - share >= p] = -math.inf
        return torch.empty_like(logits).scatter(1, order, ordered)

    def draw(logits, u):
        edges = logits.softmax(dim=1).cumsum(dim=1)
        return torch.searchsorted(edges, u[:, None], right=True).squeeze(1)

    def next_token(logits, u, temperature=1.0, k=None, p=None):
        logits = with_temperature(logits, temperature)
        if k is not None:
            logits = top_k(logits, k)
        if p is not None:
            logits = top_p(logits, p)
        return draw(logits, u)


class OneCutForTheBatch(Mistake, exercise="next_token"):
    """`top_k` takes the k-th logit of the first row as the cut for all rows; each row has its
    own."""

    def with_temperature(logits, temperature):
        return logits / temperature

    def top_k(logits, k):
        least = logits[0].sort(descending=True).values[min(k, logits.shape[1]) - 1]
        return logits.masked_fill(logits < least, -math.inf)

    def top_p(logits, p):
        if p == 1:
            return logits
        ordered, order = torch.sort(logits, dim=1, descending=True)
        share = F.softmax(ordered, dim=1)
        ordered[torch.cumsum(share, dim=1) - share >= p] = -math.inf
        return torch.empty_like(logits).scatter(1, order, ordered)

    def draw(logits, u):
        edges = logits.softmax(dim=1).cumsum(dim=1)
        return torch.searchsorted(edges, u[:, None], right=True).squeeze(1)

    def next_token(logits, u, temperature=1.0, k=None, p=None):
        logits = with_temperature(logits, temperature)
        if k is not None:
            logits = top_k(logits, k)
        if p is not None:
            logits = top_p(logits, p)
        return draw(logits, u)


class CutToZero(Mistake, exercise="next_token"):
    """What `top_k` cuts gets the logit 0, which is a probability like any other; only minus
    infinity rules a token out."""

    def with_temperature(logits, temperature):
        return logits / temperature

    def top_k(logits, k):
        rank = logits.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return torch.where(rank < k, logits, 0.0)

    def top_p(logits, p):
        if p == 1:
            return logits
        ordered, order = torch.sort(logits, dim=1, descending=True)
        share = F.softmax(ordered, dim=1)
        ordered[torch.cumsum(share, dim=1) - share >= p] = -math.inf
        return torch.empty_like(logits).scatter(1, order, ordered)

    def draw(logits, u):
        edges = logits.softmax(dim=1).cumsum(dim=1)
        return torch.searchsorted(edges, u[:, None], right=True).squeeze(1)

    def next_token(logits, u, temperature=1.0, k=None, p=None):
        logits = with_temperature(logits, temperature)
        if k is not None:
            logits = top_k(logits, k)
        if p is not None:
            logits = top_p(logits, p)
        return draw(logits, u)


class LogitsChangedInPlace(Mistake, exercise="next_token"):
    """`top_k` writes into the logits that it was given, and the caller's are lost; make new
    ones."""

    def with_temperature(logits, temperature):
        return logits / temperature

    def top_k(logits, k):
        rank = logits.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        logits[rank >= k] = -math.inf
        return logits

    def top_p(logits, p):
        if p == 1:
            return logits
        ordered, order = torch.sort(logits, dim=1, descending=True)
        share = F.softmax(ordered, dim=1)
        ordered[torch.cumsum(share, dim=1) - share >= p] = -math.inf
        return torch.empty_like(logits).scatter(1, order, ordered)

    def draw(logits, u):
        edges = logits.softmax(dim=1).cumsum(dim=1)
        return torch.searchsorted(edges, u[:, None], right=True).squeeze(1)

    def next_token(logits, u, temperature=1.0, k=None, p=None):
        logits = with_temperature(logits, temperature)
        if k is not None:
            logits = top_k(logits, k)
        if p is not None:
            logits = top_p(logits, p)
        return draw(logits, u)


class CrossingTokenCut(Mistake, exercise="next_token"):
    """`top_p` cuts the token that crosses p, so what stays does not reach it; it is the last one
    to stay."""

    def with_temperature(logits, temperature):
        return logits / temperature

    def top_k(logits, k):
        rank = logits.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return torch.where(rank < k, logits, -math.inf)

    def top_p(logits, p):
        if p == 1:
            return logits
        ordered, order = torch.sort(logits, dim=1, descending=True)
        share = F.softmax(ordered, dim=1)
        ordered[torch.cumsum(share, dim=1) > p] = -math.inf
        return torch.empty_like(logits).scatter(1, order, ordered)

    def draw(logits, u):
        edges = logits.softmax(dim=1).cumsum(dim=1)
        return torch.searchsorted(edges, u[:, None], right=True).squeeze(1)

    def next_token(logits, u, temperature=1.0, k=None, p=None):
        logits = with_temperature(logits, temperature)
        if k is not None:
            logits = top_k(logits, k)
        if p is not None:
            logits = top_p(logits, p)
        return draw(logits, u)


class SharesInOrderOfIds(Mistake, exercise="next_token"):
    """`top_p` adds the probabilities up in the order of the ids; sort them first, the most
    probable ones stay."""

    def with_temperature(logits, temperature):
        return logits / temperature

    def top_k(logits, k):
        rank = logits.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return torch.where(rank < k, logits, -math.inf)

    def top_p(logits, p):
        if p == 1:
            return logits
        share = F.softmax(logits, dim=1)
        return logits.masked_fill(share.cumsum(dim=1) - share >= p, -math.inf)

    def draw(logits, u):
        edges = logits.softmax(dim=1).cumsum(dim=1)
        return torch.searchsorted(edges, u[:, None], right=True).squeeze(1)

    def next_token(logits, u, temperature=1.0, k=None, p=None):
        logits = with_temperature(logits, temperature)
        if k is not None:
            logits = top_k(logits, k)
        if p is not None:
            logits = top_p(logits, p)
        return draw(logits, u)


class LeftInTheSortedOrder(Mistake, exercise="next_token"):
    """`top_p` returns the logits in the order of their probability; put each back into the place
    of its token."""

    def with_temperature(logits, temperature):
        return logits / temperature

    def top_k(logits, k):
        rank = logits.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return torch.where(rank < k, logits, -math.inf)

    def top_p(logits, p):
        if p == 1:
            return logits
        ordered, order = torch.sort(logits, dim=1, descending=True)
        share = F.softmax(ordered, dim=1)
        ordered[torch.cumsum(share, dim=1) - share >= p] = -math.inf
        return ordered

    def draw(logits, u):
        edges = logits.softmax(dim=1).cumsum(dim=1)
        return torch.searchsorted(edges, u[:, None], right=True).squeeze(1)

    def next_token(logits, u, temperature=1.0, k=None, p=None):
        logits = with_temperature(logits, temperature)
        if k is not None:
            logits = top_k(logits, k)
        if p is not None:
            logits = top_p(logits, p)
        return draw(logits, u)


class FullShareCuts(Mistake, exercise="next_token"):
    """With p = 1 `top_p` cuts what is lost in rounding; then everything stays."""

    def with_temperature(logits, temperature):
        return logits / temperature

    def top_k(logits, k):
        rank = logits.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return torch.where(rank < k, logits, -math.inf)

    def top_p(logits, p):
        ordered, order = torch.sort(logits, dim=1, descending=True)
        share = F.softmax(ordered, dim=1)
        ordered[torch.cumsum(share, dim=1) - share >= p] = -math.inf
        return torch.empty_like(logits).scatter(1, order, ordered)

    def draw(logits, u):
        edges = logits.softmax(dim=1).cumsum(dim=1)
        return torch.searchsorted(edges, u[:, None], right=True).squeeze(1)

    def next_token(logits, u, temperature=1.0, k=None, p=None):
        logits = with_temperature(logits, temperature)
        if k is not None:
            logits = top_k(logits, k)
        if p is not None:
            logits = top_p(logits, p)
        return draw(logits, u)


class ProbabilitiesReturned(Mistake, exercise="next_token"):
    """`top_p` returns probabilities; it turns logits into logits, so that steps can follow each
    other."""

    def with_temperature(logits, temperature):
        return logits / temperature

    def top_k(logits, k):
        rank = logits.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return torch.where(rank < k, logits, -math.inf)

    def top_p(logits, p):
        if p == 1:
            return logits
        ordered, order = torch.sort(logits, dim=1, descending=True)
        share = F.softmax(ordered, dim=1)
        ordered[torch.cumsum(share, dim=1) - share >= p] = -math.inf
        return torch.empty_like(logits).scatter(1, order, ordered).softmax(dim=1)

    def draw(logits, u):
        edges = logits.softmax(dim=1).cumsum(dim=1)
        return torch.searchsorted(edges, u[:, None], right=True).squeeze(1)

    def next_token(logits, u, temperature=1.0, k=None, p=None):
        logits = with_temperature(logits, temperature)
        if k is not None:
            logits = top_k(logits, k)
        if p is not None:
            logits = top_p(logits, p)
        return draw(logits, u)


class AlwaysTheBest(Mistake, exercise="next_token"):
    """`draw` always takes the most probable token, whatever u is; u decides."""

    def with_temperature(logits, temperature):
        return logits / temperature

    def top_k(logits, k):
        rank = logits.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return torch.where(rank < k, logits, -math.inf)

    def top_p(logits, p):
        if p == 1:
            return logits
        ordered, order = torch.sort(logits, dim=1, descending=True)
        share = F.softmax(ordered, dim=1)
        ordered[torch.cumsum(share, dim=1) - share >= p] = -math.inf
        return torch.empty_like(logits).scatter(1, order, ordered)

    def draw(logits, u):
        return logits.argmax(dim=1)

    def next_token(logits, u, temperature=1.0, k=None, p=None):
        logits = with_temperature(logits, temperature)
        if k is not None:
            logits = top_k(logits, k)
        if p is not None:
            logits = top_p(logits, p)
        return draw(logits, u)


class OneTokenTooEarly(Mistake, exercise="next_token"):
    """`draw` returns the token before the one in whose share u falls: count the shares that end
    at u or before it, that is the id."""

    def with_temperature(logits, temperature):
        return logits / temperature

    def top_k(logits, k):
        rank = logits.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return torch.where(rank < k, logits, -math.inf)

    def top_p(logits, p):
        if p == 1:
            return logits
        ordered, order = torch.sort(logits, dim=1, descending=True)
        share = F.softmax(ordered, dim=1)
        ordered[torch.cumsum(share, dim=1) - share >= p] = -math.inf
        return torch.empty_like(logits).scatter(1, order, ordered)

    def draw(logits, u):
        edges = logits.softmax(dim=1).cumsum(dim=1)
        return (torch.searchsorted(edges, u[:, None], right=True) - 1).clamp(min=0).squeeze(1)

    def next_token(logits, u, temperature=1.0, k=None, p=None):
        logits = with_temperature(logits, temperature)
        if k is not None:
            logits = top_k(logits, k)
        if p is not None:
            logits = top_p(logits, p)
        return draw(logits, u)


class BestTokenFirst(Mistake, exercise="next_token"):
    """`draw` lays the shares out from the most probable token on; they lie in the order of the
    ids, or other tokens belong to the same numbers."""

    def with_temperature(logits, temperature):
        return logits / temperature

    def top_k(logits, k):
        rank = logits.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return torch.where(rank < k, logits, -math.inf)

    def top_p(logits, p):
        if p == 1:
            return logits
        ordered, order = torch.sort(logits, dim=1, descending=True)
        share = F.softmax(ordered, dim=1)
        ordered[torch.cumsum(share, dim=1) - share >= p] = -math.inf
        return torch.empty_like(logits).scatter(1, order, ordered)

    def draw(logits, u):
        share, order = logits.softmax(dim=1).sort(dim=1, descending=True)
        place = torch.searchsorted(share.cumsum(dim=1), u[:, None], right=True)
        return order.gather(1, place).squeeze(1)

    def next_token(logits, u, temperature=1.0, k=None, p=None):
        logits = with_temperature(logits, temperature)
        if k is not None:
            logits = top_k(logits, k)
        if p is not None:
            logits = top_p(logits, p)
        return draw(logits, u)


class EveryTokenAlike(Mistake, exercise="next_token"):
    """`draw` gives every token that is left the same share; its share is its probability."""

    def with_temperature(logits, temperature):
        return logits / temperature

    def top_k(logits, k):
        rank = logits.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return torch.where(rank < k, logits, -math.inf)

    def top_p(logits, p):
        if p == 1:
            return logits
        ordered, order = torch.sort(logits, dim=1, descending=True)
        share = F.softmax(ordered, dim=1)
        ordered[torch.cumsum(share, dim=1) - share >= p] = -math.inf
        return torch.empty_like(logits).scatter(1, order, ordered)

    def draw(logits, u):
        edges = torch.where(logits > -math.inf, 0.0, logits).softmax(dim=1).cumsum(dim=1)
        return torch.searchsorted(edges, u[:, None], right=True).squeeze(1)

    def next_token(logits, u, temperature=1.0, k=None, p=None):
        logits = with_temperature(logits, temperature)
        if k is not None:
            logits = top_k(logits, k)
        if p is not None:
            logits = top_p(logits, p)
        return draw(logits, u)


# 8.2 ---------------------------------------------------------------------------------------------


class NoMask(Mistake, exercise="cached_attention"):
    """New tokens see the new tokens behind them; mask them, even though old tokens are all in the
    past."""

    def cached_attention(query, key, value, cache=None):
        old_keys, old_values = (key[:, :, :0], value[:, :, :0]) if cache is None else cache
        past, new = old_keys.shape[2], query.shape[2]
        positions = past + torch.arange(new)
        query, key = turn(query, positions), turn(key, positions)
        keys = torch.cat([old_keys, key], dim=2)
        values = torch.cat([old_values, value], dim=2)
        scores = query @ keys.transpose(2, 3) / math.sqrt(query.shape[-1])
        weights = scores.softmax(dim=-1)
        return weights @ values, (keys, values)


class MaskForThePromptOnly(Mistake, exercise="cached_attention"):
    """Only the first chunk is masked, so tokens of a later chunk see those behind them; a later
    chunk needs a mask as well."""

    def cached_attention(query, key, value, cache=None):
        old_keys, old_values = (key[:, :, :0], value[:, :, :0]) if cache is None else cache
        past, new = old_keys.shape[2], query.shape[2]
        positions = past + torch.arange(new)
        query, key = turn(query, positions), turn(key, positions)
        keys = torch.cat([old_keys, key], dim=2)
        values = torch.cat([old_values, value], dim=2)
        scores = query @ keys.transpose(2, 3) / math.sqrt(query.shape[-1])
        allowed = torch.arange(keys.shape[2]) <= positions[:, None]
        allowed = allowed | torch.tensor(past > 0)
        weights = scores.masked_fill(~allowed, -math.inf).softmax(dim=-1)
        return weights @ values, (keys, values)


class MaskInTheWrongCorner(Mistake, exercise="cached_attention"):
    """The mask is laid out as if the first new token were the first of the text, so new tokens
    see the oldest keys only; shift it by the number of tokens in the cache."""

    def cached_attention(query, key, value, cache=None):
        old_keys, old_values = (key[:, :, :0], value[:, :, :0]) if cache is None else cache
        past, new = old_keys.shape[2], query.shape[2]
        positions = past + torch.arange(new)
        query, key = turn(query, positions), turn(key, positions)
        keys = torch.cat([old_keys, key], dim=2)
        values = torch.cat([old_values, value], dim=2)
        scores = query @ keys.transpose(2, 3) / math.sqrt(query.shape[-1])
        allowed = torch.arange(keys.shape[2]) <= torch.arange(new)[:, None]
        weights = scores.masked_fill(~allowed, -math.inf).softmax(dim=-1)
        return weights @ values, (keys, values)


class ScaleForgotten(Mistake, exercise="cached_attention"):
    """The scores are not divided by the root of `d_head`; that is how attention computes them,
    with a cache and without."""

    def cached_attention(query, key, value, cache=None):
        old_keys, old_values = (key[:, :, :0], value[:, :, :0]) if cache is None else cache
        past, new = old_keys.shape[2], query.shape[2]
        positions = past + torch.arange(new)
        query, key = turn(query, positions), turn(key, positions)
        keys = torch.cat([old_keys, key], dim=2)
        values = torch.cat([old_values, value], dim=2)
        scores = query @ keys.transpose(2, 3)
        allowed = torch.arange(keys.shape[2]) <= positions[:, None]
        weights = scores.masked_fill(~allowed, -math.inf).softmax(dim=-1)
        return weights @ values, (keys, values)


class OwnTokenHidden(Mistake, exercise="cached_attention"):
    """A new token does not see itself; its own key is one that it may attend to."""

    def cached_attention(query, key, value, cache=None):
        old_keys, old_values = (key[:, :, :0], value[:, :, :0]) if cache is None else cache
        past, new = old_keys.shape[2], query.shape[2]
        positions = past + torch.arange(new)
        query, key = turn(query, positions), turn(key, positions)
        keys = torch.cat([old_keys, key], dim=2)
        values = torch.cat([old_values, value], dim=2)
        scores = query @ keys.transpose(2, 3) / math.sqrt(query.shape[-1])
        allowed = torch.arange(keys.shape[2]) < positions[:, None].clamp(min=1)
        weights = scores.masked_fill(~allowed, -math.inf).softmax(dim=-1)
        return weights @ values, (keys, values)


class PositionsBeginAgain(Mistake, exercise="cached_attention"):
    """Every chunk is turned as if it began at position 0; its first token stands behind those in
    the cache."""

    def cached_attention(query, key, value, cache=None):
        old_keys, old_values = (key[:, :, :0], value[:, :, :0]) if cache is None else cache
        past, new = old_keys.shape[2], query.shape[2]
        positions = torch.arange(new)
        query, key = turn(query, positions), turn(key, positions)
        keys = torch.cat([old_keys, key], dim=2)
        values = torch.cat([old_values, value], dim=2)
        scores = query @ keys.transpose(2, 3) / math.sqrt(query.shape[-1])
        allowed = torch.arange(keys.shape[2]) <= past + positions[:, None]
        weights = scores.masked_fill(~allowed, -math.inf).softmax(dim=-1)
        return weights @ values, (keys, values)


class QueriesBeginAgain(Mistake, exercise="cached_attention"):
    """The queries are turned as if the chunk began at position 0, the keys by their true
    positions; both stand behind what is in the cache."""

    def cached_attention(query, key, value, cache=None):
        old_keys, old_values = (key[:, :, :0], value[:, :, :0]) if cache is None else cache
        past, new = old_keys.shape[2], query.shape[2]
        positions = past + torch.arange(new)
        query, key = turn(query, torch.arange(new)), turn(key, positions)
        keys = torch.cat([old_keys, key], dim=2)
        values = torch.cat([old_values, value], dim=2)
        scores = query @ keys.transpose(2, 3) / math.sqrt(query.shape[-1])
        allowed = torch.arange(keys.shape[2]) <= positions[:, None]
        weights = scores.masked_fill(~allowed, -math.inf).softmax(dim=-1)
        return weights @ values, (keys, values)


class OffsetCountsTheNewTokens(Mistake, exercise="cached_attention"):
    """The offset counts the new tokens too, so chunks of different lengths get wrong distances;
    the first new token's position is the number of tokens in the cache."""

    def cached_attention(query, key, value, cache=None):
        old_keys, old_values = (key[:, :, :0], value[:, :, :0]) if cache is None else cache
        past, new = old_keys.shape[2], query.shape[2]
        positions = past + torch.arange(new)
        query, key = (turn(x, positions + new) for x in (query, key))
        keys = torch.cat([old_keys, key], dim=2)
        values = torch.cat([old_values, value], dim=2)
        scores = query @ keys.transpose(2, 3) / math.sqrt(query.shape[-1])
        allowed = torch.arange(keys.shape[2]) <= positions[:, None]
        weights = scores.masked_fill(~allowed, -math.inf).softmax(dim=-1)
        return weights @ values, (keys, values)


class OffsetCountsChunks(Mistake, exercise="cached_attention"):
    """The offset grows by one for each chunk; it grows by the number of its tokens."""

    def cached_attention(query, key, value, cache=None):
        empty = (key[:, :, :0], value[:, :, :0], 0)
        old_keys, old_values, chunks = empty if cache is None else cache
        past, new = old_keys.shape[2], query.shape[2]
        positions = past + torch.arange(new)
        query, key = (turn(x, chunks + torch.arange(new)) for x in (query, key))
        keys = torch.cat([old_keys, key], dim=2)
        values = torch.cat([old_values, value], dim=2)
        scores = query @ keys.transpose(2, 3) / math.sqrt(query.shape[-1])
        allowed = torch.arange(keys.shape[2]) <= positions[:, None]
        weights = scores.masked_fill(~allowed, -math.inf).softmax(dim=-1)
        return weights @ values, (keys, values, chunks + 1)


class KeysTurnedAgain(Mistake, exercise="cached_attention"):
    """Keys are kept turned, and turned again whenever they are read; turn each once, or keep them
    unturned."""

    def cached_attention(query, key, value, cache=None):
        old_keys, old_values = (key[:, :, :0], value[:, :, :0]) if cache is None else cache
        past, new = old_keys.shape[2], query.shape[2]
        positions = past + torch.arange(new)
        query, key = turn(query, positions), key
        keys = turn(torch.cat([old_keys, key], dim=2), torch.arange(past + new))
        values = torch.cat([old_values, value], dim=2)
        scores = query @ keys.transpose(2, 3) / math.sqrt(query.shape[-1])
        allowed = torch.arange(keys.shape[2]) <= positions[:, None]
        weights = scores.masked_fill(~allowed, -math.inf).softmax(dim=-1)
        return weights @ values, (keys, values)


class NewKeysTurnedOnly(Mistake, exercise="cached_attention"):
    """Keys are kept unturned, and only the new ones are turned before they are used; all of them
    need their position."""

    def cached_attention(query, key, value, cache=None):
        old_keys, old_values = (key[:, :, :0], value[:, :, :0]) if cache is None else cache
        past, new = old_keys.shape[2], query.shape[2]
        positions = past + torch.arange(new)
        query, unturned = turn(query, positions), torch.cat([old_keys, key], dim=2)
        key = turn(key, positions)
        keys = torch.cat([old_keys, key], dim=2)
        values = torch.cat([old_values, value], dim=2)
        scores = query @ keys.transpose(2, 3) / math.sqrt(query.shape[-1])
        allowed = torch.arange(keys.shape[2]) <= positions[:, None]
        weights = scores.masked_fill(~allowed, -math.inf).softmax(dim=-1)
        return weights @ values, (unturned, values)


class NothingTurned(Mistake, exercise="cached_attention"):
    """Queries and keys are used without positions; turn both by their true positions."""

    def cached_attention(query, key, value, cache=None):
        old_keys, old_values = (key[:, :, :0], value[:, :, :0]) if cache is None else cache
        past, new = old_keys.shape[2], query.shape[2]
        positions = past + torch.arange(new)
        query, key = query, key
        keys = torch.cat([old_keys, key], dim=2)
        values = torch.cat([old_values, value], dim=2)
        scores = query @ keys.transpose(2, 3) / math.sqrt(query.shape[-1])
        allowed = torch.arange(keys.shape[2]) <= positions[:, None]
        weights = scores.masked_fill(~allowed, -math.inf).softmax(dim=-1)
        return weights @ values, (keys, values)


class ValuesTurnedToo(Mistake, exercise="cached_attention"):
    """The values are turned as well; positions belong to queries and keys only."""

    def cached_attention(query, key, value, cache=None):
        old_keys, old_values = (key[:, :, :0], value[:, :, :0]) if cache is None else cache
        past, new = old_keys.shape[2], query.shape[2]
        positions = past + torch.arange(new)
        query, key = turn(query, positions), turn(key, positions)
        keys = torch.cat([old_keys, key], dim=2)
        values = torch.cat([old_values, turn(value, positions)], dim=2)
        scores = query @ keys.transpose(2, 3) / math.sqrt(query.shape[-1])
        allowed = torch.arange(keys.shape[2]) <= positions[:, None]
        weights = scores.masked_fill(~allowed, -math.inf).softmax(dim=-1)
        return weights @ values, (keys, values)


class CacheOverwritten(Mistake, exercise="cached_attention"):
    """The cache that is returned holds the new tokens only; it holds the old ones too."""

    def cached_attention(query, key, value, cache=None):
        old_keys, old_values = (key[:, :, :0], value[:, :, :0]) if cache is None else cache
        past, new = old_keys.shape[2], query.shape[2]
        positions = past + torch.arange(new)
        query, key = turn(query, positions), turn(key, positions)
        keys = torch.cat([old_keys, key], dim=2)
        values = torch.cat([old_values, value], dim=2)
        scores = query @ keys.transpose(2, 3) / math.sqrt(query.shape[-1])
        allowed = torch.arange(keys.shape[2]) <= positions[:, None]
        weights = scores.masked_fill(~allowed, -math.inf).softmax(dim=-1)
        return weights @ values, (keys[:, :, past:], values[:, :, past:])


class CacheNeverRead(Mistake, exercise="cached_attention"):
    """The cache grows, but the new tokens attend to each other only; they attend to the cached
    ones as well."""

    def cached_attention(query, key, value, cache=None):
        old_keys, old_values = (key[:, :, :0], value[:, :, :0]) if cache is None else cache
        past, new = old_keys.shape[2], query.shape[2]
        positions = past + torch.arange(new)
        query, key = turn(query, positions), turn(key, positions)
        keys = torch.cat([old_keys, key], dim=2)
        values = torch.cat([old_values, value], dim=2)
        scores = query @ keys.transpose(2, 3) / math.sqrt(query.shape[-1])
        allowed = torch.arange(keys.shape[2]) <= positions[:, None]
        weights = scores[..., past:].masked_fill(~allowed[:, past:], -math.inf).softmax(dim=-1)
        return weights @ value, (keys, values)


class NewTokensInFront(Mistake, exercise="cached_attention"):
    """New keys and values are put in front of the old ones, where the mask takes them for the
    oldest; they belong behind."""

    def cached_attention(query, key, value, cache=None):
        old_keys, old_values = (key[:, :, :0], value[:, :, :0]) if cache is None else cache
        past, new = old_keys.shape[2], query.shape[2]
        positions = past + torch.arange(new)
        query, key = turn(query, positions), turn(key, positions)
        keys = torch.cat([key, old_keys], dim=2)
        values = torch.cat([value, old_values], dim=2)
        scores = query @ keys.transpose(2, 3) / math.sqrt(query.shape[-1])
        allowed = torch.arange(keys.shape[2]) <= positions[:, None]
        weights = scores.masked_fill(~allowed, -math.inf).softmax(dim=-1)
        return weights @ values, (keys, values)


class ValuesInFront(Mistake, exercise="cached_attention"):
    """New keys are put behind the old ones and new values in front, so that keys and values of
    different tokens belong together; put both behind."""

    def cached_attention(query, key, value, cache=None):
        old_keys, old_values = (key[:, :, :0], value[:, :, :0]) if cache is None else cache
        past, new = old_keys.shape[2], query.shape[2]
        positions = past + torch.arange(new)
        query, key = turn(query, positions), turn(key, positions)
        keys = torch.cat([old_keys, key], dim=2)
        values = torch.cat([value, old_values], dim=2)
        scores = query @ keys.transpose(2, 3) / math.sqrt(query.shape[-1])
        allowed = torch.arange(keys.shape[2]) <= positions[:, None]
        weights = scores.masked_fill(~allowed, -math.inf).softmax(dim=-1)
        return weights @ values, (keys, values)


class BatchMatesMixed(Mistake, exercise="cached_attention"):
    """All texts of the batch go on from the first one's cache; each has its own."""

    def cached_attention(query, key, value, cache=None):
        old_keys, old_values = (key[:, :, :0], value[:, :, :0]) if cache is None else cache
        old_keys, old_values = (old[:1].expand_as(old) for old in (old_keys, old_values))
        past, new = old_keys.shape[2], query.shape[2]
        positions = past + torch.arange(new)
        query, key = turn(query, positions), turn(key, positions)
        keys = torch.cat([old_keys, key], dim=2)
        values = torch.cat([old_values, value], dim=2)
        scores = query @ keys.transpose(2, 3) / math.sqrt(query.shape[-1])
        allowed = torch.arange(keys.shape[2]) <= positions[:, None]
        weights = scores.masked_fill(~allowed, -math.inf).softmax(dim=-1)
        return weights @ values, (keys, values)


class CacheChangedInPlace(Mistake, exercise="cached_attention"):
    """New keys and values go into a cache that another text may go on from as well, and that one
    sees them; leave the old cache as it is and make a new one."""

    def cached_attention(query, key, value, cache=None):
        cache = {"keys": [key[:, :, :0]], "values": [value[:, :, :0]]} if cache is None else cache
        old_keys, old_values = torch.cat(cache["keys"], 2), torch.cat(cache["values"], 2)
        past, new = old_keys.shape[2], query.shape[2]
        positions = past + torch.arange(new)
        query, key = turn(query, positions), turn(key, positions)
        keys = torch.cat([old_keys, key], dim=2)
        values = torch.cat([old_values, value], dim=2)
        scores = query @ keys.transpose(2, 3) / math.sqrt(query.shape[-1])
        allowed = torch.arange(keys.shape[2]) <= positions[:, None]
        weights = scores.masked_fill(~allowed, -math.inf).softmax(dim=-1)
        cache["keys"].append(key)
        cache["values"].append(value)
        return weights @ values, cache


# 8.3 ---------------------------------------------------------------------------------------------


class QueryHeadsCounted(Mistake, exercise="cache_bytes"):
    """`cache_bytes` counts the heads of the queries; only the heads of keys and values are
    kept."""

    def cache_bytes(
        num_layers, num_heads, num_kv_heads, d_head, length, batch_size, bits, window=None
    ):
        tokens = batch_size * (length if window is None else min(window, length))
        one_token = 2 * num_layers * num_heads * d_head
        return tokens * one_token * bits // 8

    def sliding_cache(keys, values, positions, key, value, start):
        keys, values, positions = keys.clone(), values.clone(), positions.clone()
        window = positions.numel()
        for i in range(key.shape[2]):
            place = (start + i) % window
            keys[:, :, place] = key[:, :, i]
            values[:, :, place] = value[:, :, i]
            positions[place] = start + i
        return keys, values, positions


class KeysOnly(Mistake, exercise="cache_bytes"):
    """`cache_bytes` counts the keys and forgets the values: twice as many numbers."""

    def cache_bytes(
        num_layers, num_heads, num_kv_heads, d_head, length, batch_size, bits, window=None
    ):
        tokens = batch_size * (length if window is None else min(window, length))
        one_token = num_layers * num_kv_heads * d_head
        return tokens * one_token * bits // 8

    def sliding_cache(keys, values, positions, key, value, start):
        keys, values, positions = keys.clone(), values.clone(), positions.clone()
        window = positions.numel()
        for i in range(key.shape[2]):
            place = (start + i) % window
            keys[:, :, place] = key[:, :, i]
            values[:, :, place] = value[:, :, i]
            positions[place] = start + i
        return keys, values, positions


class BitsForBytes(Mistake, exercise="cache_bytes"):
    """`cache_bytes` returns bits; eight of them are a byte."""

    def cache_bytes(
        num_layers, num_heads, num_kv_heads, d_head, length, batch_size, bits, window=None
    ):
        tokens = batch_size * (length if window is None else min(window, length))
        one_token = 2 * num_layers * num_kv_heads * d_head
        return tokens * one_token * bits

    def sliding_cache(keys, values, positions, key, value, start):
        keys, values, positions = keys.clone(), values.clone(), positions.clone()
        window = positions.numel()
        for i in range(key.shape[2]):
            place = (start + i) % window
            keys[:, :, place] = key[:, :, i]
            values[:, :, place] = value[:, :, i]
            positions[place] = start + i
        return keys, values, positions


class FourBytesAlways(Mistake, exercise="cache_bytes"):
    """`cache_bytes` takes every number for one of 32 bits; `bits` says how many they have."""

    def cache_bytes(
        num_layers, num_heads, num_kv_heads, d_head, length, batch_size, bits, window=None
    ):
        tokens = batch_size * (length if window is None else min(window, length))
        one_token = 2 * num_layers * num_kv_heads * d_head
        return tokens * one_token * 4

    def sliding_cache(keys, values, positions, key, value, start):
        keys, values, positions = keys.clone(), values.clone(), positions.clone()
        window = positions.numel()
        for i in range(key.shape[2]):
            place = (start + i) % window
            keys[:, :, place] = key[:, :, i]
            values[:, :, place] = value[:, :, i]
            positions[place] = start + i
        return keys, values, positions


class LayersForgotten(Mistake, exercise="cache_bytes"):
    """`cache_bytes` counts one layer; every layer has keys and values of its own."""

    def cache_bytes(
        num_layers, num_heads, num_kv_heads, d_head, length, batch_size, bits, window=None
    ):
        tokens = batch_size * (length if window is None else min(window, length))
        one_token = 2 * num_kv_heads * d_head
        return tokens * one_token * bits // 8

    def sliding_cache(keys, values, positions, key, value, start):
        keys, values, positions = keys.clone(), values.clone(), positions.clone()
        window = positions.numel()
        for i in range(key.shape[2]):
            place = (start + i) % window
            keys[:, :, place] = key[:, :, i]
            values[:, :, place] = value[:, :, i]
            positions[place] = start + i
        return keys, values, positions


class BatchForgotten(Mistake, exercise="cache_bytes"):
    """`cache_bytes` counts one text; each text of the batch has keys and values of its own."""

    def cache_bytes(
        num_layers, num_heads, num_kv_heads, d_head, length, batch_size, bits, window=None
    ):
        tokens = length if window is None else min(window, length)
        one_token = 2 * num_layers * num_kv_heads * d_head
        return tokens * one_token * bits // 8

    def sliding_cache(keys, values, positions, key, value, start):
        keys, values, positions = keys.clone(), values.clone(), positions.clone()
        window = positions.numel()
        for i in range(key.shape[2]):
            place = (start + i) % window
            keys[:, :, place] = key[:, :, i]
            values[:, :, place] = value[:, :, i]
            positions[place] = start + i
        return keys, values, positions


class WindowIgnored(Mistake, exercise="cache_bytes"):
    """`cache_bytes` counts all tokens although there is a window; no more than `window` are
    kept."""

    def cache_bytes(
        num_layers, num_heads, num_kv_heads, d_head, length, batch_size, bits, window=None
    ):
        tokens = batch_size * length
        one_token = 2 * num_layers * num_kv_heads * d_head
        return tokens * one_token * bits // 8

    def sliding_cache(keys, values, positions, key, value, start):
        keys, values, positions = keys.clone(), values.clone(), positions.clone()
        window = positions.numel()
        for i in range(key.shape[2]):
            place = (start + i) % window
            keys[:, :, place] = key[:, :, i]
            values[:, :, place] = value[:, :, i]
            positions[place] = start + i
        return keys, values, positions


class WindowAlwaysFull(Mistake, exercise="cache_bytes"):
    """`cache_bytes` counts the whole window for a text that does not fill it; fewer tokens take
    less."""

    def cache_bytes(
        num_layers, num_heads, num_kv_heads, d_head, length, batch_size, bits, window=None
    ):
        tokens = batch_size * (length if window is None else window)
        one_token = 2 * num_layers * num_kv_heads * d_head
        return tokens * one_token * bits // 8

    def sliding_cache(keys, values, positions, key, value, start):
        keys, values, positions = keys.clone(), values.clone(), positions.clone()
        window = positions.numel()
        for i in range(key.shape[2]):
            place = (start + i) % window
            keys[:, :, place] = key[:, :, i]
            values[:, :, place] = value[:, :, i]
            positions[place] = start + i
        return keys, values, positions


class OwnTokenNotCounted(Mistake, exercise="cache_bytes"):
    """`cache_bytes` counts one token too few: the ring holds `window` tokens, the newest among
    them."""

    def cache_bytes(
        num_layers, num_heads, num_kv_heads, d_head, length, batch_size, bits, window=None
    ):
        tokens = batch_size * (length if window is None else min(window - 1, length))
        one_token = 2 * num_layers * num_kv_heads * d_head
        return tokens * one_token * bits // 8

    def sliding_cache(keys, values, positions, key, value, start):
        keys, values, positions = keys.clone(), values.clone(), positions.clone()
        window = positions.numel()
        for i in range(key.shape[2]):
            place = (start + i) % window
            keys[:, :, place] = key[:, :, i]
            values[:, :, place] = value[:, :, i]
            positions[place] = start + i
        return keys, values, positions


class ChunkBeginsAtTheFirstPlace(Mistake, exercise="cache_bytes"):
    """`sliding_cache` writes every chunk from the first place on; the place of a token is its
    position modulo the window."""

    def cache_bytes(
        num_layers, num_heads, num_kv_heads, d_head, length, batch_size, bits, window=None
    ):
        tokens = batch_size * (length if window is None else min(window, length))
        one_token = 2 * num_layers * num_kv_heads * d_head
        return tokens * one_token * bits // 8

    def sliding_cache(keys, values, positions, key, value, start):
        keys, values, positions = keys.clone(), values.clone(), positions.clone()
        window = positions.numel()
        for i in range(key.shape[2]):
            place = i % window
            keys[:, :, place] = key[:, :, i]
            values[:, :, place] = value[:, :, i]
            positions[place] = start + i
        return keys, values, positions


class EverythingMoved(Mistake, exercise="cache_bytes"):
    """`sliding_cache` moves all tokens up and writes at the end; in a ring nothing moves, the
    token at position t goes to place t % window."""

    def cache_bytes(
        num_layers, num_heads, num_kv_heads, d_head, length, batch_size, bits, window=None
    ):
        tokens = batch_size * (length if window is None else min(window, length))
        one_token = 2 * num_layers * num_kv_heads * d_head
        return tokens * one_token * bits // 8

    def sliding_cache(keys, values, positions, key, value, start):
        keys, values, positions = keys.clone(), values.clone(), positions.clone()
        window = positions.numel()
        for i in range(key.shape[2]):
            place = window - 1
            keys, values, positions = keys.roll(-1, 2), values.roll(-1, 2), positions.roll(-1)
            keys[:, :, place] = key[:, :, i]
            values[:, :, place] = value[:, :, i]
            positions[place] = start + i
        return keys, values, positions


class NewestOverwritten(Mistake, exercise="cache_bytes"):
    """When the ring is full, `sliding_cache` keeps writing into the last place, over the newest
    token; the oldest has to go."""

    def cache_bytes(
        num_layers, num_heads, num_kv_heads, d_head, length, batch_size, bits, window=None
    ):
        tokens = batch_size * (length if window is None else min(window, length))
        one_token = 2 * num_layers * num_kv_heads * d_head
        return tokens * one_token * bits // 8

    def sliding_cache(keys, values, positions, key, value, start):
        keys, values, positions = keys.clone(), values.clone(), positions.clone()
        window = positions.numel()
        for i in range(key.shape[2]):
            place = min(start + i, window - 1)
            keys[:, :, place] = key[:, :, i]
            values[:, :, place] = value[:, :, i]
            positions[place] = start + i
        return keys, values, positions


class RingOneShort(Mistake, exercise="cache_bytes"):
    """`sliding_cache` goes round after `window` - 1 places, so the last one stays empty; all
    places are used."""

    def cache_bytes(
        num_layers, num_heads, num_kv_heads, d_head, length, batch_size, bits, window=None
    ):
        tokens = batch_size * (length if window is None else min(window, length))
        one_token = 2 * num_layers * num_kv_heads * d_head
        return tokens * one_token * bits // 8

    def sliding_cache(keys, values, positions, key, value, start):
        keys, values, positions = keys.clone(), values.clone(), positions.clone()
        window = positions.numel()
        for i in range(key.shape[2]):
            place = (start + i) % (window - 1)
            keys[:, :, place] = key[:, :, i]
            values[:, :, place] = value[:, :, i]
            positions[place] = start + i
        return keys, values, positions


class BeginningOfThePromptKept(Mistake, exercise="cache_bytes"):
    """Of a prompt longer than the ring `sliding_cache` keeps the beginning; the newest tokens
    stay."""

    def cache_bytes(
        num_layers, num_heads, num_kv_heads, d_head, length, batch_size, bits, window=None
    ):
        tokens = batch_size * (length if window is None else min(window, length))
        one_token = 2 * num_layers * num_kv_heads * d_head
        return tokens * one_token * bits // 8

    def sliding_cache(keys, values, positions, key, value, start):
        keys, values, positions = keys.clone(), values.clone(), positions.clone()
        window = positions.numel()
        for i in range(min(key.shape[2], window)):
            place = (start + i) % window
            keys[:, :, place] = key[:, :, i]
            values[:, :, place] = value[:, :, i]
            positions[place] = start + i
        return keys, values, positions


class PlacesForPositions(Mistake, exercise="cache_bytes"):
    """`positions` says which place it is, not which token stands there; write the token's
    position in the text."""

    def cache_bytes(
        num_layers, num_heads, num_kv_heads, d_head, length, batch_size, bits, window=None
    ):
        tokens = batch_size * (length if window is None else min(window, length))
        one_token = 2 * num_layers * num_kv_heads * d_head
        return tokens * one_token * bits // 8

    def sliding_cache(keys, values, positions, key, value, start):
        keys, values, positions = keys.clone(), values.clone(), positions.clone()
        window = positions.numel()
        for i in range(key.shape[2]):
            place = (start + i) % window
            keys[:, :, place] = key[:, :, i]
            values[:, :, place] = value[:, :, i]
            positions[place] = place
        return keys, values, positions


class PositionsOfTheChunk(Mistake, exercise="cache_bytes"):
    """`positions` counts from the beginning of the chunk; write the token's position in the
    text."""

    def cache_bytes(
        num_layers, num_heads, num_kv_heads, d_head, length, batch_size, bits, window=None
    ):
        tokens = batch_size * (length if window is None else min(window, length))
        one_token = 2 * num_layers * num_kv_heads * d_head
        return tokens * one_token * bits // 8

    def sliding_cache(keys, values, positions, key, value, start):
        keys, values, positions = keys.clone(), values.clone(), positions.clone()
        window = positions.numel()
        for i in range(key.shape[2]):
            place = (start + i) % window
            keys[:, :, place] = key[:, :, i]
            values[:, :, place] = value[:, :, i]
            positions[place] = i
        return keys, values, positions


class ValuesNotWritten(Mistake, exercise="cache_bytes"):
    """`sliding_cache` writes the keys and leaves the old values in their places; both belong to
    the new token."""

    def cache_bytes(
        num_layers, num_heads, num_kv_heads, d_head, length, batch_size, bits, window=None
    ):
        tokens = batch_size * (length if window is None else min(window, length))
        one_token = 2 * num_layers * num_kv_heads * d_head
        return tokens * one_token * bits // 8

    def sliding_cache(keys, values, positions, key, value, start):
        keys, values, positions = keys.clone(), values.clone(), positions.clone()
        window = positions.numel()
        for i in range(key.shape[2]):
            place = (start + i) % window
            keys[:, :, place] = key[:, :, i]
            positions[place] = start + i
        return keys, values, positions


class RingChangedInPlace(Mistake, exercise="cache_bytes"):
    """`sliding_cache` writes into the tensors that it was given; return new ones."""

    def cache_bytes(
        num_layers, num_heads, num_kv_heads, d_head, length, batch_size, bits, window=None
    ):
        tokens = batch_size * (length if window is None else min(window, length))
        one_token = 2 * num_layers * num_kv_heads * d_head
        return tokens * one_token * bits // 8

    def sliding_cache(keys, values, positions, key, value, start):
        window = positions.numel()
        for i in range(key.shape[2]):
            place = (start + i) % window
            keys[:, :, place] = key[:, :, i]
            values[:, :, place] = value[:, :, i]
            positions[place] = start + i
        return keys, values, positions


# 8.4 ---------------------------------------------------------------------------------------------


class AlwaysOneBeam(Mistake, exercise="beam_search"):
    """Only the best candidate of each round goes on, whatever `num_beams` says: that is
    greedy."""

    def beam_search(next_log_probs, bos, eos, num_beams, max_len, alpha=0.0):
        beams, done = [(0.0, [])], []
        for _ in range(max_len):
            rows = next_log_probs(torch.tensor([[bos] + tokens for _, tokens in beams])).tolist()
            longer = []
            for (total, tokens), row in zip(beams, rows, strict=True):
                longer += [(total + gain, [*tokens, token]) for token, gain in enumerate(row)]
            longer.sort(reverse=True)
            longer = longer[:1]
            done += [pair for pair in longer if pair[1][-1] == eos]
            beams = [pair for pair in longer if pair[1][-1] != eos]
            if not beams:
                break
        scores = [(total / len(tokens) ** alpha, tokens) for total, tokens in done + beams]
        score, tokens = max(scores)
        return tokens, score


class OneCandidatePerBeam(Mistake, exercise="beam_search"):
    """Each beginning goes on with its own best tokens, so poor beginnings stay alive; the best of
    all candidates together go on."""

    def beam_search(next_log_probs, bos, eos, num_beams, max_len, alpha=0.0):
        beams, done = [(0.0, [])], []
        for _ in range(max_len):
            rows = next_log_probs(torch.tensor([[bos] + tokens for _, tokens in beams])).tolist()
            longer = []
            for (total, tokens), row in zip(beams, rows, strict=True):
                own = sorted(((gain, token) for token, gain in enumerate(row)), reverse=True)
                own = own[: num_beams if not tokens else 1]
                longer += [(total + gain, [*tokens, token]) for gain, token in own]
            longer.sort(reverse=True)
            longer = longer[:num_beams]
            done += [pair for pair in longer if pair[1][-1] == eos]
            beams = [pair for pair in longer if pair[1][-1] != eos]
            if not beams:
                break
        scores = [(total / len(tokens) ** alpha, tokens) for total, tokens in done + beams]
        score, tokens = max(scores)
        return tokens, score


class FinishedAnswersGoOn(Mistake, exercise="beam_search"):
    """An answer that has ended is extended by more tokens; set it aside with its sum."""

    def beam_search(next_log_probs, bos, eos, num_beams, max_len, alpha=0.0):
        beams, done = [(0.0, [])], []
        for _ in range(max_len):
            rows = next_log_probs(torch.tensor([[bos] + tokens for _, tokens in beams])).tolist()
            longer = []
            for (total, tokens), row in zip(beams, rows, strict=True):
                longer += [(total + gain, [*tokens, token]) for token, gain in enumerate(row)]
            longer.sort(reverse=True)
            longer = longer[:num_beams]
            beams = longer
            if not beams:
                break
        scores = [(total / len(tokens) ** alpha, tokens) for total, tokens in done + beams]
        score, tokens = max(scores)
        return tokens, score


class FinishedAnswersLost(Mistake, exercise="beam_search"):
    """Answers that have ended are dropped, and only those that never end are compared; keep
    both."""

    def beam_search(next_log_probs, bos, eos, num_beams, max_len, alpha=0.0):
        beams, done = [(0.0, [])], []
        for _ in range(max_len):
            rows = next_log_probs(torch.tensor([[bos] + tokens for _, tokens in beams])).tolist()
            longer = []
            for (total, tokens), row in zip(beams, rows, strict=True):
                longer += [(total + gain, [*tokens, token]) for token, gain in enumerate(row)]
            longer.sort(reverse=True)
            longer = longer[:num_beams]
            done += [pair for pair in longer if pair[1][-1] == eos]
            beams = [pair for pair in longer if pair[1][-1] != eos]
            if not beams:
                break
        scores = [(total / len(tokens) ** alpha, tokens) for total, tokens in beams or done]
        score, tokens = max(scores)
        return tokens, score


class UnfinishedAnswersLost(Mistake, exercise="beam_search"):
    """What has no `eos` after `max_len` tokens is dropped; it counts as an answer too."""

    def beam_search(next_log_probs, bos, eos, num_beams, max_len, alpha=0.0):
        beams, done = [(0.0, [])], []
        for _ in range(max_len):
            rows = next_log_probs(torch.tensor([[bos] + tokens for _, tokens in beams])).tolist()
            longer = []
            for (total, tokens), row in zip(beams, rows, strict=True):
                longer += [(total + gain, [*tokens, token]) for token, gain in enumerate(row)]
            longer.sort(reverse=True)
            longer = longer[:num_beams]
            done += [pair for pair in longer if pair[1][-1] == eos]
            beams = [pair for pair in longer if pair[1][-1] != eos]
            if not beams:
                break
        scores = [(total / len(tokens) ** alpha, tokens) for total, tokens in done or beams]
        score, tokens = max(scores)
        return tokens, score


class FirstEndWins(Mistake, exercise="beam_search"):
    """The search stops at the first answer that ends; a better one may still be alive."""

    def beam_search(next_log_probs, bos, eos, num_beams, max_len, alpha=0.0):
        beams, done = [(0.0, [])], []
        for _ in range(max_len):
            rows = next_log_probs(torch.tensor([[bos] + tokens for _, tokens in beams])).tolist()
            longer = []
            for (total, tokens), row in zip(beams, rows, strict=True):
                longer += [(total + gain, [*tokens, token]) for token, gain in enumerate(row)]
            longer.sort(reverse=True)
            longer = longer[:num_beams]
            done += [pair for pair in longer if pair[1][-1] == eos]
            beams = [pair for pair in longer if pair[1][-1] != eos]
            if done or not beams:
                break
        scores = [(total / len(tokens) ** alpha, tokens) for total, tokens in done or beams]
        score, tokens = max(scores)
        return tokens, score


class PlacesFilledAgain(Mistake, exercise="beam_search"):
    """The place of an answer that has ended goes to the next best beginning; it stays empty in that
    round, so that `num_beams` candidates are kept, ended ones among them."""

    def beam_search(next_log_probs, bos, eos, num_beams, max_len, alpha=0.0):
        beams, done = [(0.0, [])], []
        for _ in range(max_len):
            rows = next_log_probs(torch.tensor([[bos] + tokens for _, tokens in beams])).tolist()
            longer = []
            for (total, tokens), row in zip(beams, rows, strict=True):
                longer += [(total + gain, [*tokens, token]) for token, gain in enumerate(row)]
            longer.sort(reverse=True)
            done += [pair for pair in longer[:num_beams] if pair[1][-1] == eos]
            beams = [pair for pair in longer if pair[1][-1] != eos][:num_beams]
        scores = [(total / len(tokens) ** alpha, tokens) for total, tokens in done + beams]
        score, tokens = max(scores)
        return tokens, score


class AnEndTakesABeam(Mistake, exercise="beam_search"):
    """Each answer that has ended leaves a beam less for all later rounds; every round keeps
    `num_beams` candidates."""

    def beam_search(next_log_probs, bos, eos, num_beams, max_len, alpha=0.0):
        beams, done = [(0.0, [])], []
        for _ in range(max_len):
            rows = next_log_probs(torch.tensor([[bos] + tokens for _, tokens in beams])).tolist()
            longer = []
            for (total, tokens), row in zip(beams, rows, strict=True):
                longer += [(total + gain, [*tokens, token]) for token, gain in enumerate(row)]
            longer.sort(reverse=True)
            longer = longer[: num_beams - len(done)]
            done += [pair for pair in longer if pair[1][-1] == eos]
            beams = [pair for pair in longer if pair[1][-1] != eos]
            if not beams:
                break
        scores = [(total / len(tokens) ** alpha, tokens) for total, tokens in done + beams]
        score, tokens = max(scores)
        return tokens, score


class StopsAtEnoughEnds(Mistake, exercise="beam_search"):
    """The search stops when `num_beams` answers have ended; a better one may still be alive."""

    def beam_search(next_log_probs, bos, eos, num_beams, max_len, alpha=0.0):
        beams, done = [(0.0, [])], []
        for _ in range(max_len):
            rows = next_log_probs(torch.tensor([[bos] + tokens for _, tokens in beams])).tolist()
            longer = []
            for (total, tokens), row in zip(beams, rows, strict=True):
                longer += [(total + gain, [*tokens, token]) for token, gain in enumerate(row)]
            longer.sort(reverse=True)
            longer = longer[:num_beams]
            done += [pair for pair in longer if pair[1][-1] == eos]
            beams = [pair for pair in longer if pair[1][-1] != eos]
            if not beams or len(done) >= num_beams:
                break
        scores = [(total / len(tokens) ** alpha, tokens) for total, tokens in done + beams]
        score, tokens = max(scores)
        return tokens, score


class ProbabilitiesAdded(Mistake, exercise="beam_search"):
    """Probabilities are added up; they are multiplied, so it is their logarithms that are
    added."""

    def beam_search(next_log_probs, bos, eos, num_beams, max_len, alpha=0.0):
        beams, done = [(0.0, [])], []
        for _ in range(max_len):
            rows = next_log_probs(torch.tensor([[bos] + tokens for _, tokens in beams])).tolist()
            longer = []
            for (total, tokens), row in zip(beams, rows, strict=True):
                longer += [
                    (total + math.exp(gain), [*tokens, token]) for token, gain in enumerate(row)
                ]
            longer.sort(reverse=True)
            longer = longer[:num_beams]
            done += [pair for pair in longer if pair[1][-1] == eos]
            beams = [pair for pair in longer if pair[1][-1] != eos]
            if not beams:
                break
        scores = [(total / len(tokens) ** alpha, tokens) for total, tokens in done + beams]
        score, tokens = max(scores)
        return tokens, score


class LogarithmsMultiplied(Mistake, exercise="beam_search"):
    """Logarithms are multiplied; the logarithm of a product is a sum."""

    def beam_search(next_log_probs, bos, eos, num_beams, max_len, alpha=0.0):
        beams, done = [(0.0, [])], []
        for _ in range(max_len):
            rows = next_log_probs(torch.tensor([[bos] + tokens for _, tokens in beams])).tolist()
            longer = []
            for (total, tokens), row in zip(beams, rows, strict=True):
                longer += [
                    ((total * gain if tokens else gain), [*tokens, token])
                    for token, gain in enumerate(row)
                ]
            longer.sort(reverse=True)
            longer = longer[:num_beams]
            done += [pair for pair in longer if pair[1][-1] == eos]
            beams = [pair for pair in longer if pair[1][-1] != eos]
            if not beams:
                break
        scores = [(total / len(tokens) ** alpha, tokens) for total, tokens in done + beams]
        score, tokens = max(scores)
        return tokens, score


class BestSumReturned(Mistake, exercise="beam_search"):
    """The answer with the best sum is returned, and only its score is divided by the length;
    compare what is divided."""

    def beam_search(next_log_probs, bos, eos, num_beams, max_len, alpha=0.0):
        beams, done = [(0.0, [])], []
        for _ in range(max_len):
            rows = next_log_probs(torch.tensor([[bos] + tokens for _, tokens in beams])).tolist()
            longer = []
            for (total, tokens), row in zip(beams, rows, strict=True):
                longer += [(total + gain, [*tokens, token]) for token, gain in enumerate(row)]
            longer.sort(reverse=True)
            longer = longer[:num_beams]
            done += [pair for pair in longer if pair[1][-1] == eos]
            beams = [pair for pair in longer if pair[1][-1] != eos]
            if not beams:
                break
        total, tokens = max(done + beams)
        return tokens, total / len(tokens) ** alpha


class ScoreNotDivided(Mistake, exercise="beam_search"):
    """The right answer is chosen, but its sum is returned; the score is divided by the length,
    too."""

    def beam_search(next_log_probs, bos, eos, num_beams, max_len, alpha=0.0):
        beams, done = [(0.0, [])], []
        for _ in range(max_len):
            rows = next_log_probs(torch.tensor([[bos] + tokens for _, tokens in beams])).tolist()
            longer = []
            for (total, tokens), row in zip(beams, rows, strict=True):
                longer += [(total + gain, [*tokens, token]) for token, gain in enumerate(row)]
            longer.sort(reverse=True)
            longer = longer[:num_beams]
            done += [pair for pair in longer if pair[1][-1] == eos]
            beams = [pair for pair in longer if pair[1][-1] != eos]
            if not beams:
                break
        scores = [(total / len(tokens) ** alpha, tokens) for total, tokens in done + beams]
        _, tokens = max(scores)
        return tokens, next(total for total, own in done + beams if own == tokens)


class BosCounted(Mistake, exercise="beam_search"):
    """The length counts `bos`, which was not written; count the tokens that were."""

    def beam_search(next_log_probs, bos, eos, num_beams, max_len, alpha=0.0):
        beams, done = [(0.0, [])], []
        for _ in range(max_len):
            rows = next_log_probs(torch.tensor([[bos] + tokens for _, tokens in beams])).tolist()
            longer = []
            for (total, tokens), row in zip(beams, rows, strict=True):
                longer += [(total + gain, [*tokens, token]) for token, gain in enumerate(row)]
            longer.sort(reverse=True)
            longer = longer[:num_beams]
            done += [pair for pair in longer if pair[1][-1] == eos]
            beams = [pair for pair in longer if pair[1][-1] != eos]
            if not beams:
                break
        scores = [(total / (1 + len(tokens)) ** alpha, tokens) for total, tokens in done + beams]
        score, tokens = max(scores)
        return tokens, score


class EosNotCounted(Mistake, exercise="beam_search"):
    """The length does not count `eos`; it was written, and it has cost something."""

    def beam_search(next_log_probs, bos, eos, num_beams, max_len, alpha=0.0):
        beams, done = [(0.0, [])], []
        for _ in range(max_len):
            rows = next_log_probs(torch.tensor([[bos] + tokens for _, tokens in beams])).tolist()
            longer = []
            for (total, tokens), row in zip(beams, rows, strict=True):
                longer += [(total + gain, [*tokens, token]) for token, gain in enumerate(row)]
            longer.sort(reverse=True)
            longer = longer[:num_beams]
            done += [pair for pair in longer if pair[1][-1] == eos]
            beams = [pair for pair in longer if pair[1][-1] != eos]
            if not beams:
                break
        scores = [
            (total / max(1, len(tokens) - (tokens[-1] == eos)) ** alpha, tokens)
            for total, tokens in done + beams
        ]
        score, tokens = max(scores)
        return tokens, score


class DividedByTheLongest(Mistake, exercise="beam_search"):
    """Sums are divided by `max_len`, the same for all answers; divide each by its own length."""

    def beam_search(next_log_probs, bos, eos, num_beams, max_len, alpha=0.0):
        beams, done = [(0.0, [])], []
        for _ in range(max_len):
            rows = next_log_probs(torch.tensor([[bos] + tokens for _, tokens in beams])).tolist()
            longer = []
            for (total, tokens), row in zip(beams, rows, strict=True):
                longer += [(total + gain, [*tokens, token]) for token, gain in enumerate(row)]
            longer.sort(reverse=True)
            longer = longer[:num_beams]
            done += [pair for pair in longer if pair[1][-1] == eos]
            beams = [pair for pair in longer if pair[1][-1] != eos]
            if not beams:
                break
        scores = [(total / max_len**alpha, tokens) for total, tokens in done + beams]
        score, tokens = max(scores)
        return tokens, score


class BeginningDecides(Mistake, exercise="beam_search"):
    """The answer is taken from the beginning that was best after the first token; a poor first
    token may lead to the best answer."""

    def beam_search(next_log_probs, bos, eos, num_beams, max_len, alpha=0.0):
        beams, done = [(0.0, [])], []
        for _ in range(max_len):
            rows = next_log_probs(torch.tensor([[bos] + tokens for _, tokens in beams])).tolist()
            longer = []
            for (total, tokens), row in zip(beams, rows, strict=True):
                longer += [(total + gain, [*tokens, token]) for token, gain in enumerate(row)]
            longer.sort(reverse=True)
            longer = longer[: num_beams if len(longer[0][1]) > 1 else 1]
            done += [pair for pair in longer if pair[1][-1] == eos]
            beams = [pair for pair in longer if pair[1][-1] != eos]
            if not beams:
                break
        scores = [(total / len(tokens) ** alpha, tokens) for total, tokens in done + beams]
        score, tokens = max(scores)
        return tokens, score


# 8.5 ---------------------------------------------------------------------------------------------


class RightPadded(Mistake, exercise="left_padded"):
    """The padding stands on the right, so the last column is padding for the shorter prompts; it
    belongs on the left."""

    def left_padded(prompts, pad):
        length = max(map(len, prompts))
        tokens = torch.full((len(prompts), length), pad)
        is_real = torch.zeros(len(prompts), length, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = prompt
            is_real[row, : len(prompt)] = True
        positions = (is_real.cumsum(dim=1) - 1) * is_real
        places = torch.arange(length)
        mask = (places[:, None] >= places) & is_real[:, None, :]
        mask = mask | (places[:, None] == places)
        return tokens, positions, mask

    def next_logits(model, prompts, pad):
        return model(*left_padded(prompts, pad))[:, -1]


class PositionsCountPadding(Mistake, exercise="left_padded"):
    """Positions are counted from the first column, padding included, so a prompt's meaning
    depends on its neighbours; its first token is 0."""

    def left_padded(prompts, pad):
        length = max(map(len, prompts))
        tokens = torch.full((len(prompts), length), pad)
        is_real = torch.zeros(len(prompts), length, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            tokens[row, length - len(prompt) :] = prompt
            is_real[row, length - len(prompt) :] = True
        positions = torch.arange(length).expand(len(prompts), -1)
        places = torch.arange(length)
        mask = (places[:, None] >= places) & is_real[:, None, :]
        mask = mask | (places[:, None] == places)
        return tokens, positions, mask

    def next_logits(model, prompts, pad):
        return model(*left_padded(prompts, pad))[:, -1]


class PositionsBelowZero(Mistake, exercise="left_padded"):
    """Padding gets positions below 0, which no table has; it gets 0."""

    def left_padded(prompts, pad):
        length = max(map(len, prompts))
        tokens = torch.full((len(prompts), length), pad)
        is_real = torch.zeros(len(prompts), length, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            tokens[row, length - len(prompt) :] = prompt
            is_real[row, length - len(prompt) :] = True
        positions = torch.stack([torch.arange(length) - length + len(p) for p in prompts])
        places = torch.arange(length)
        mask = (places[:, None] >= places) & is_real[:, None, :]
        mask = mask | (places[:, None] == places)
        return tokens, positions, mask

    def next_logits(model, prompts, pad):
        return model(*left_padded(prompts, pad))[:, -1]


class PositionsFromOne(Mistake, exercise="left_padded"):
    """A prompt's first token has position 1; it is 0, as when the prompt is alone."""

    def left_padded(prompts, pad):
        length = max(map(len, prompts))
        tokens = torch.full((len(prompts), length), pad)
        is_real = torch.zeros(len(prompts), length, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            tokens[row, length - len(prompt) :] = prompt
            is_real[row, length - len(prompt) :] = True
        positions = is_real.cumsum(dim=1)
        places = torch.arange(length)
        mask = (places[:, None] >= places) & is_real[:, None, :]
        mask = mask | (places[:, None] == places)
        return tokens, positions, mask

    def next_logits(model, prompts, pad):
        return model(*left_padded(prompts, pad))[:, -1]


class PaddingSeen(Mistake, exercise="left_padded"):
    """Tokens attend to the padding before them; only a place with padding sees itself."""

    def left_padded(prompts, pad):
        length = max(map(len, prompts))
        tokens = torch.full((len(prompts), length), pad)
        is_real = torch.zeros(len(prompts), length, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            tokens[row, length - len(prompt) :] = prompt
            is_real[row, length - len(prompt) :] = True
        positions = (is_real.cumsum(dim=1) - 1).clamp(min=0)
        places = torch.arange(length)
        mask = (places[:, None] >= places).expand(len(prompts), -1, -1)
        mask = mask | (places[:, None] == places)
        return tokens, positions, mask

    def next_logits(model, prompts, pad):
        return model(*left_padded(prompts, pad))[:, -1]


class MaskUpsideDown(Mistake, exercise="left_padded"):
    """The mask is True where attention is forbidden; True is where it is allowed."""

    def left_padded(prompts, pad):
        length = max(map(len, prompts))
        tokens = torch.full((len(prompts), length), pad)
        is_real = torch.zeros(len(prompts), length, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            tokens[row, length - len(prompt) :] = prompt
            is_real[row, length - len(prompt) :] = True
        positions = (is_real.cumsum(dim=1) - 1).clamp(min=0)
        places = torch.arange(length)
        mask = (places[:, None] >= places) & is_real[:, None, :]
        mask = mask | (places[:, None] == places)
        return tokens, positions, ~mask

    def next_logits(model, prompts, pad):
        return model(*left_padded(prompts, pad))[:, -1]


class EmptyRows(Mistake, exercise="left_padded"):
    """A place with padding sees nothing at all, the softmax of its row is NaN, and spreads; let
    it see itself."""

    def left_padded(prompts, pad):
        length = max(map(len, prompts))
        tokens = torch.full((len(prompts), length), pad)
        is_real = torch.zeros(len(prompts), length, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            tokens[row, length - len(prompt) :] = prompt
            is_real[row, length - len(prompt) :] = True
        positions = (is_real.cumsum(dim=1) - 1).clamp(min=0)
        places = torch.arange(length)
        mask = (places[:, None] >= places) & is_real[:, None, :]
        return tokens, positions, mask

    def next_logits(model, prompts, pad):
        return model(*left_padded(prompts, pad))[:, -1]


class PaddingDoesNotLook(Mistake, exercise="left_padded"):
    """The mask hides rows of padding, not columns: real tokens still see it; hide the keys."""

    def left_padded(prompts, pad):
        length = max(map(len, prompts))
        tokens = torch.full((len(prompts), length), pad)
        is_real = torch.zeros(len(prompts), length, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            tokens[row, length - len(prompt) :] = prompt
            is_real[row, length - len(prompt) :] = True
        positions = (is_real.cumsum(dim=1) - 1).clamp(min=0)
        places = torch.arange(length)
        mask = (places[:, None] >= places) & is_real[:, :, None]
        mask = mask | (places[:, None] == places)
        return tokens, positions, mask

    def next_logits(model, prompts, pad):
        return model(*left_padded(prompts, pad))[:, -1]


class FutureSeen(Mistake, exercise="left_padded"):
    """The mask hides padding only, and tokens see those behind them; it is causal as well."""

    def left_padded(prompts, pad):
        length = max(map(len, prompts))
        tokens = torch.full((len(prompts), length), pad)
        is_real = torch.zeros(len(prompts), length, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            tokens[row, length - len(prompt) :] = prompt
            is_real[row, length - len(prompt) :] = True
        positions = (is_real.cumsum(dim=1) - 1).clamp(min=0)
        places = torch.arange(length)
        mask = is_real[:, None, :].expand(-1, length, -1)
        mask = mask | (places[:, None] == places)
        return tokens, positions, mask

    def next_logits(model, prompts, pad):
        return model(*left_padded(prompts, pad))[:, -1]


class PaddingByItsNumber(Mistake, exercise="left_padded"):
    """Whatever has the number `pad` is taken for padding, also inside a prompt; how many tokens
    are missing is known from the lengths."""

    def left_padded(prompts, pad):
        length = max(map(len, prompts))
        tokens = torch.full((len(prompts), length), pad)
        is_real = torch.zeros(len(prompts), length, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            tokens[row, length - len(prompt) :] = prompt
            is_real[row, length - len(prompt) :] = True
        is_real = tokens != pad
        positions = (is_real.cumsum(dim=1) - 1).clamp(min=0)
        places = torch.arange(length)
        mask = (places[:, None] >= places) & is_real[:, None, :]
        mask = mask | (places[:, None] == places)
        return tokens, positions, mask

    def next_logits(model, prompts, pad):
        return model(*left_padded(prompts, pad))[:, -1]


class CutToTheShortest(Mistake, exercise="left_padded"):
    """All prompts are cut to the length of the shortest; fill the shorter ones up instead."""

    def left_padded(prompts, pad):
        length = min(map(len, prompts))
        prompts = [prompt[-length:] for prompt in prompts]
        tokens = torch.full((len(prompts), length), pad)
        is_real = torch.zeros(len(prompts), length, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            tokens[row, length - len(prompt) :] = prompt
            is_real[row, length - len(prompt) :] = True
        positions = (is_real.cumsum(dim=1) - 1).clamp(min=0)
        places = torch.arange(length)
        mask = (places[:, None] >= places) & is_real[:, None, :]
        mask = mask | (places[:, None] == places)
        return tokens, positions, mask

    def next_logits(model, prompts, pad):
        return model(*left_padded(prompts, pad))[:, -1]


class ColumnOfRightPadding(Mistake, exercise="left_padded"):
    """`next_logits` looks in the column of each prompt's length, as if the padding were on the
    right; on the left all prompts end in the last column."""

    def left_padded(prompts, pad):
        length = max(map(len, prompts))
        tokens = torch.full((len(prompts), length), pad)
        is_real = torch.zeros(len(prompts), length, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            tokens[row, length - len(prompt) :] = prompt
            is_real[row, length - len(prompt) :] = True
        positions = (is_real.cumsum(dim=1) - 1).clamp(min=0)
        places = torch.arange(length)
        mask = (places[:, None] >= places) & is_real[:, None, :]
        mask = mask | (places[:, None] == places)
        return tokens, positions, mask

    def next_logits(model, prompts, pad):
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        return model(*left_padded(prompts, pad))[torch.arange(len(prompts)), lengths - 1]


# 8.6 ---------------------------------------------------------------------------------------------


class RatioUpsideDown(Mistake, exercise="speculative"):
    """A token is accepted with the probability draft over target; target over draft."""

    def speculative(target, draft, drafted, accept, u):
        written = []
        for i in range(len(drafted)):
            token = int(drafted[i])
            if accept[i] < draft[i, token] / target[i, token]:
                written.append(token)
                continue
            more = F.relu(target[i] - draft[i])
            edges = torch.cumsum(more / more.sum(), dim=0)
            return [*written, int((u >= edges).sum())]
        edges = torch.cumsum(target[len(drafted)], dim=0)
        return [*written, int((u >= edges).sum())]


class AcceptedByTheTarget(Mistake, exercise="speculative"):
    """A token is accepted with the probability that the target gives it; what counts is target
    over draft."""

    def speculative(target, draft, drafted, accept, u):
        written = []
        for i in range(len(drafted)):
            token = int(drafted[i])
            if accept[i] < target[i, token]:
                written.append(token)
                continue
            more = F.relu(target[i] - draft[i])
            edges = torch.cumsum(more / more.sum(), dim=0)
            return [*written, int((u >= edges).sum())]
        edges = torch.cumsum(target[len(drafted)], dim=0)
        return [*written, int((u >= edges).sum())]


class DrawnFromTheWholeTarget(Mistake, exercise="speculative"):
    """The replacement is drawn from the target as it is, so tokens that the draft likes come too
    often; draw from what the target has more of."""

    def speculative(target, draft, drafted, accept, u):
        written = []
        for i in range(len(drafted)):
            token = int(drafted[i])
            if accept[i] < target[i, token] / draft[i, token]:
                written.append(token)
                continue
            more = target[i]
            edges = torch.cumsum(more / more.sum(), dim=0)
            return [*written, int((u >= edges).sum())]
        edges = torch.cumsum(target[len(drafted)], dim=0)
        return [*written, int((u >= edges).sum())]


class DifferenceWithoutSign(Mistake, exercise="speculative"):
    """The replacement is drawn from the size of the difference, whichever way it goes; only where
    the target has more than the draft."""

    def speculative(target, draft, drafted, accept, u):
        written = []
        for i in range(len(drafted)):
            token = int(drafted[i])
            if accept[i] < target[i, token] / draft[i, token]:
                written.append(token)
                continue
            more = (target[i] - draft[i]).abs()
            edges = torch.cumsum(more / more.sum(), dim=0)
            return [*written, int((u >= edges).sum())]
        edges = torch.cumsum(target[len(drafted)], dim=0)
        return [*written, int((u >= edges).sum())]


class RestThroughASoftmax(Mistake, exercise="speculative"):
    """What the target has more of goes through a softmax, which gives every token a share; divide
    it by its sum."""

    def speculative(target, draft, drafted, accept, u):
        written = []
        for i in range(len(drafted)):
            token = int(drafted[i])
            if accept[i] < target[i, token] / draft[i, token]:
                written.append(token)
                continue
            more = F.relu(target[i] - draft[i])
            edges = torch.cumsum(more.softmax(dim=0), dim=0)
            return [*written, int((u >= edges).sum())]
        edges = torch.cumsum(target[len(drafted)], dim=0)
        return [*written, int((u >= edges).sum())]


class DifferenceTheWrongWay(Mistake, exercise="speculative"):
    """The replacement is drawn from what the draft has more of; it is the target that must get
    more."""

    def speculative(target, draft, drafted, accept, u):
        written = []
        for i in range(len(drafted)):
            token = int(drafted[i])
            if accept[i] < target[i, token] / draft[i, token]:
                written.append(token)
                continue
            more = F.relu(draft[i] - target[i])
            edges = torch.cumsum(more / more.sum(), dim=0)
            return [*written, int((u >= edges).sum())]
        edges = torch.cumsum(target[len(drafted)], dim=0)
        return [*written, int((u >= edges).sum())]


class RestNotNormalised(Mistake, exercise="speculative"):
    """What the target has more of is not divided by its sum, and u is compared with shares that
    do not reach 1; divide."""

    def speculative(target, draft, drafted, accept, u):
        written = []
        for i in range(len(drafted)):
            token = int(drafted[i])
            if accept[i] < target[i, token] / draft[i, token]:
                written.append(token)
                continue
            more = F.relu(target[i] - draft[i])
            edges = torch.cumsum(more, dim=0)
            return [*written, int((u >= edges).sum().clamp(max=len(edges) - 1))]
        edges = torch.cumsum(target[len(drafted)], dim=0)
        return [*written, int((u >= edges).sum())]


class GoesOnAfterARejection(Mistake, exercise="speculative"):
    """After a rejected token the next ones are still looked at, though they were drafted behind
    it; the replacement ends the round."""

    def speculative(target, draft, drafted, accept, u):
        written = []
        for i in range(len(drafted)):
            token = int(drafted[i])
            if accept[i] < target[i, token] / draft[i, token]:
                written.append(token)
                continue
            more = F.relu(target[i] - draft[i])
            edges = torch.cumsum(more / more.sum(), dim=0)
            written.append(int((u >= edges).sum()))
        edges = torch.cumsum(target[len(drafted)], dim=0)
        return [*written, int((u >= edges).sum())]


class NoTokenForARejectedOne(Mistake, exercise="speculative"):
    """A rejected token ends the round and nothing is drawn in its place; draw one."""

    def speculative(target, draft, drafted, accept, u):
        written = []
        for i in range(len(drafted)):
            token = int(drafted[i])
            if accept[i] < target[i, token] / draft[i, token]:
                written.append(token)
                continue
            return written
        edges = torch.cumsum(target[len(drafted)], dim=0)
        return [*written, int((u >= edges).sum())]


class NoTokenAfterTheLast(Mistake, exercise="speculative"):
    """When all are accepted nothing more is drawn, though the target's last row is there; draw
    one more token from it."""

    def speculative(target, draft, drafted, accept, u):
        written = []
        for i in range(len(drafted)):
            token = int(drafted[i])
            if accept[i] < target[i, token] / draft[i, token]:
                written.append(token)
                continue
            more = F.relu(target[i] - draft[i])
            edges = torch.cumsum(more / more.sum(), dim=0)
            return [*written, int((u >= edges).sum())]
        return written


class LastDrawFromTheDraft(Mistake, exercise="speculative"):
    """The token after the last is drawn from the draft's last row; it comes from the target's."""

    def speculative(target, draft, drafted, accept, u):
        written = []
        for i in range(len(drafted)):
            token = int(drafted[i])
            if accept[i] < target[i, token] / draft[i, token]:
                written.append(token)
                continue
            more = F.relu(target[i] - draft[i])
            edges = torch.cumsum(more / more.sum(), dim=0)
            return [*written, int((u >= edges).sum())]
        edges = torch.cumsum(draft[-1], dim=0)
        return [*written, int((u >= edges).sum())]


class LastRowForEveryDraw(Mistake, exercise="speculative"):
    """The replacement is drawn from the target's last row, which is about another place; take the
    row of the rejected token."""

    def speculative(target, draft, drafted, accept, u):
        written = []
        for i in range(len(drafted)):
            token = int(drafted[i])
            if accept[i] < target[i, token] / draft[i, token]:
                written.append(token)
                continue
            more = target[-1]
            edges = torch.cumsum(more / more.sum(), dim=0)
            return [*written, int((u >= edges).sum())]
        edges = torch.cumsum(target[len(drafted)], dim=0)
        return [*written, int((u >= edges).sum())]


class NextRowOfTheTarget(Mistake, exercise="speculative"):
    """The target's rows are read one place too far; row i is about the token `drafted[i]`."""

    def speculative(target, draft, drafted, accept, u):
        written = []
        for i in range(len(drafted)):
            token = int(drafted[i])
            if accept[i] < target[i + 1, token] / draft[i, token]:
                written.append(token)
                continue
            more = F.relu(target[i + 1] - draft[i])
            edges = torch.cumsum(more / more.sum(), dim=0)
            return [*written, int((u >= edges).sum())]
        edges = torch.cumsum(target[len(drafted)], dim=0)
        return [*written, int((u >= edges).sum())]


# 8.7 ---------------------------------------------------------------------------------------------


class TwoChunksOnly(Mistake, exercise="check_cache"):
    """The test cuts the text in two; some bugs show from the third chunk on."""

    def check_cache(step):
        text = torch.tensor([8, 2, 7, 1, 0, 3, 9, 10])
        at_once, _ = step(text, None)
        for sizes in ([1, 7], [3, 5], [6, 2]):
            cache, start = None, 0
            for size in sizes:
                logits, cache = step(text[start : start + size], cache)
                assert torch.allclose(logits, at_once[start : start + size].to(logits), atol=1e-4)
                start += size
        _, prompt = step(text[:5], None)
        first, _ = step(text[5:], prompt)
        step(text[:3], prompt)
        again, _ = step(text[5:], prompt)
        assert torch.allclose(first, again, atol=1e-4)


class OneByOneOnly(Mistake, exercise="check_cache"):
    """After a prompt the test reads token by token only; a later chunk may have several tokens,
    and then its mask matters."""

    def check_cache(step):
        text = torch.tensor([8, 2, 7, 1, 0, 3, 9, 10])
        at_once, _ = step(text, None)
        for sizes in ([1] * 8, [4] + [1] * 4):
            cache, start = None, 0
            for size in sizes:
                logits, cache = step(text[start : start + size], cache)
                assert torch.allclose(logits, at_once[start : start + size].to(logits), atol=1e-4)
                start += size
        _, prompt = step(text[:5], None)
        first, _ = step(text[5:], prompt)
        step(text[:3], prompt)
        again, _ = step(text[5:], prompt)
        assert torch.allclose(first, again, atol=1e-4)


class LastLogitsOnly(Mistake, exercise="check_cache"):
    """The test compares the logits of each chunk's last token; a look ahead shows in the
    others."""

    def check_cache(step):
        text = torch.tensor([8, 2, 7, 1, 0, 3, 9, 10])
        at_once, _ = step(text, None)
        for sizes in ([1] * 8, [3, 1, 4], [2, 5, 1]):
            cache, start = None, 0
            for size in sizes:
                logits, cache = step(text[start : start + size], cache)
                assert torch.allclose(logits[-1], at_once[start + size - 1].to(logits), atol=1e-4)
                start += size
        _, prompt = step(text[:5], None)
        first, _ = step(text[5:], prompt)
        step(text[:3], prompt)
        again, _ = step(text[5:], prompt)
        assert torch.allclose(first, again, atol=1e-4)


class ShortText(Mistake, exercise="check_cache"):
    """The text is so short that a small cache holds all of it; a longer one shows what is
    forgotten."""

    def check_cache(step):
        text = torch.tensor([8, 2, 7, 1, 0, 3])
        at_once, _ = step(text, None)
        for sizes in ([1] * 6, [2, 1, 3]):
            cache, start = None, 0
            for size in sizes:
                logits, cache = step(text[start : start + size], cache)
                assert torch.allclose(logits, at_once[start : start + size].to(logits), atol=1e-4)
                start += size
        _, prompt = step(text[:3], None)
        first, _ = step(text[3:], prompt)
        step(text[:2], prompt)
        again, _ = step(text[3:], prompt)
        assert torch.allclose(first, again, atol=1e-4)


class NoBranches(Mistake, exercise="check_cache"):
    """The test never goes on from one cache twice, so it does not notice a cache that texts
    share."""

    def check_cache(step):
        text = torch.tensor([8, 2, 7, 1, 0, 3, 9, 10])
        at_once, _ = step(text, None)
        for sizes in ([1] * 8, [3, 1, 4], [2, 5, 1]):
            cache, start = None, 0
            for size in sizes:
                logits, cache = step(text[start : start + size], cache)
                assert torch.allclose(logits, at_once[start : start + size].to(logits), atol=1e-4)
                start += size


class BestTokensOnly(Mistake, exercise="check_cache"):
    """The test compares the most likely tokens, which survive most bugs; compare all logits."""

    def check_cache(step):
        text = torch.tensor([8, 2, 7, 1, 0, 3, 9, 10])
        at_once, _ = step(text, None)
        for sizes in ([1] * 8, [3, 1, 4], [2, 5, 1]):
            cache, start = None, 0
            for size in sizes:
                logits, cache = step(text[start : start + size], cache)
                assert torch.equal(logits.argmax(1), at_once[start : start + size].argmax(1))
                start += size
        _, prompt = step(text[:5], None)
        first, _ = step(text[5:], prompt)
        step(text[:3], prompt)
        again, _ = step(text[5:], prompt)
        assert torch.allclose(first, again, atol=1e-4)


class NoRounding(Mistake, exercise="check_cache"):
    """The test allows no rounding, and so condemns a right cache that computes in float32;
    differences below 1e-5 are no mistake."""

    def check_cache(step):
        text = torch.tensor([8, 2, 7, 1, 0, 3, 9, 10])
        at_once, _ = step(text, None)
        for sizes in ([1] * 8, [3, 1, 4], [2, 5, 1]):
            cache, start = None, 0
            for size in sizes:
                logits, cache = step(text[start : start + size], cache)
                assert torch.equal(logits, at_once[start : start + size].to(logits))
                start += size
        _, prompt = step(text[:5], None)
        first, _ = step(text[5:], prompt)
        step(text[:3], prompt)
        again, _ = step(text[5:], prompt)
        assert torch.equal(first, again)


class ShapesOnly(Mistake, exercise="check_cache"):
    """The test looks at shapes only, which are right in nearly all broken caches; compare
    numbers."""

    def check_cache(step):
        text = torch.tensor([8, 2, 7, 1, 0, 3, 9, 10])
        at_once, _ = step(text, None)
        for sizes in ([1] * 8, [3, 1, 4], [2, 5, 1]):
            cache, start = None, 0
            for size in sizes:
                logits, cache = step(text[start : start + size], cache)
                assert logits.shape == at_once[start : start + size].shape
                start += size
        _, prompt = step(text[:5], None)
        first, _ = step(text[5:], prompt)
        step(text[:3], prompt)
        again, _ = step(text[5:], prompt)
        assert first.shape == again.shape


class EqualChunks(Mistake, exercise="check_cache"):
    """All chunks of the test are equally long, and an offset that grows by the first one's length
    fits them; try chunks of different lengths."""

    def check_cache(step):
        text = torch.tensor([8, 2, 7, 1, 0, 3, 9, 10])
        at_once, _ = step(text, None)
        for sizes in ([1] * 8, [2] * 4, [4, 4]):
            cache, start = None, 0
            for size in sizes:
                logits, cache = step(text[start : start + size], cache)
                assert torch.allclose(logits, at_once[start : start + size].to(logits), atol=1e-4)
                start += size
        _, prompt = step(text[:5], None)
        first, _ = step(text[5:], prompt)
        step(text[:3], prompt)
        again, _ = step(text[5:], prompt)
        assert torch.allclose(first, again, atol=1e-4)


# 8.8 ---------------------------------------------------------------------------------------------


class OffsetGrowsByThePrompt(Mistake, exercise="mended_generate"):
    """The offset still grows by the length of the prompt in every round; it grows by the number
    of tokens that were read."""

    def mended_generate(read, prompt, num_new):
        cache, tokens, seen, written = None, prompt, 0, []
        while len(written) < num_new:
            positions = seen + torch.arange(tokens.shape[1]).repeat(len(tokens), 1)
            logits, cache = read(tokens, positions, cache)
            seen += prompt.shape[1]
            written.append(logits.argmax(dim=-1))
            tokens = written[-1].unsqueeze(1)
        return torch.stack(written, dim=1)


class PositionsOfTheExample(Mistake, exercise="mended_generate"):
    """The positions are still those of the example, a prompt of six tokens; make them from the
    number of tokens."""

    def mended_generate(read, prompt, num_new):
        cache, tokens, seen, written = None, prompt, 0, []
        while len(written) < num_new:
            positions = seen + torch.tensor([[0, 1, 2, 3, 4, 5]])[:, : tokens.shape[1]].repeat(
                len(tokens), 1
            )
            logits, cache = read(tokens, positions, cache)
            seen += tokens.shape[1]
            written.append(logits.argmax(dim=-1))
            tokens = written[-1].unsqueeze(1)
        return torch.stack(written, dim=1)


class OffsetStandsStill(Mistake, exercise="mended_generate"):
    """All new tokens get the position behind the prompt; each stands one further than the one
    before."""

    def mended_generate(read, prompt, num_new):
        cache, tokens, seen, written = None, prompt, 0, []
        while len(written) < num_new:
            positions = seen + torch.arange(tokens.shape[1]).repeat(len(tokens), 1)
            logits, cache = read(tokens, positions, cache)
            seen = prompt.shape[1]
            written.append(logits.argmax(dim=-1))
            tokens = written[-1].unsqueeze(1)
        return torch.stack(written, dim=1)


class OffsetFromZero(Mistake, exercise="mended_generate"):
    """New tokens get positions from 0 on, as if the prompt were not there; they stand behind
    it."""

    def mended_generate(read, prompt, num_new):
        cache, tokens, seen, written = None, prompt, 0, []
        while len(written) < num_new:
            positions = seen + torch.arange(tokens.shape[1]).repeat(len(tokens), 1)
            logits, cache = read(tokens, positions, cache)
            seen = len(written)
            written.append(logits.argmax(dim=-1))
            tokens = written[-1].unsqueeze(1)
        return torch.stack(written, dim=1)


class OffsetOneTooFar(Mistake, exercise="mended_generate"):
    """The first new token stands one place too far; behind a prompt of n tokens, at the positions
    0 to n - 1, comes position n."""

    def mended_generate(read, prompt, num_new):
        cache, tokens, seen, written = None, prompt, 0, []
        while len(written) < num_new:
            positions = seen + torch.arange(tokens.shape[1]).repeat(len(tokens), 1)
            logits, cache = read(tokens, positions, cache)
            seen += tokens.shape[1] + (seen == 0)
            written.append(logits.argmax(dim=-1))
            tokens = written[-1].unsqueeze(1)
        return torch.stack(written, dim=1)


class EverythingReadAgain(Mistake, exercise="mended_generate"):
    """The whole text is read again for each token, without the cache; with it each token is read
    once."""

    def mended_generate(read, prompt, num_new):
        cache, tokens, seen, written = None, prompt, 0, []
        while len(written) < num_new:
            positions = torch.arange(tokens.shape[1]).repeat(len(tokens), 1)
            logits, _ = read(tokens, positions, cache)
            written.append(logits.argmax(dim=-1))
            tokens = torch.cat([tokens, written[-1].unsqueeze(1)], dim=1)
        return torch.stack(written, dim=1)


class TextReadTwice(Mistake, exercise="mended_generate"):
    """The whole text is handed over again although the cache holds it already; hand over the
    newest token."""

    def mended_generate(read, prompt, num_new):
        cache, tokens, seen, written = None, prompt, 0, []
        while len(written) < num_new:
            positions = torch.arange(tokens.shape[1]).repeat(len(tokens), 1)
            logits, cache = read(tokens, positions, cache)
            seen += tokens.shape[1]
            written.append(logits.argmax(dim=-1))
            tokens = torch.cat([tokens, written[-1].unsqueeze(1)], dim=1)
        return torch.stack(written, dim=1)


class CacheThrownAway(Mistake, exercise="mended_generate"):
    """The cache that `read` returns is not handed back, so a new token knows nothing of the text
    before it."""

    def mended_generate(read, prompt, num_new):
        cache, tokens, seen, written = None, prompt, 0, []
        while len(written) < num_new:
            positions = seen + torch.arange(tokens.shape[1]).repeat(len(tokens), 1)
            logits, _ = read(tokens, positions, cache)
            seen += tokens.shape[1]
            written.append(logits.argmax(dim=-1))
            tokens = written[-1].unsqueeze(1)
        return torch.stack(written, dim=1)


class PromptReturned(Mistake, exercise="mended_generate"):
    """The prompt is returned in front of the new tokens; return the new ones only."""

    def mended_generate(read, prompt, num_new):
        cache, tokens, seen, written = None, prompt, 0, []
        while len(written) < num_new:
            positions = seen + torch.arange(tokens.shape[1]).repeat(len(tokens), 1)
            logits, cache = read(tokens, positions, cache)
            seen += tokens.shape[1]
            written.append(logits.argmax(dim=-1))
            tokens = written[-1].unsqueeze(1)
        return torch.cat([prompt, torch.stack(written, dim=1)], dim=1)
