"""The named mistakes of chapter 08: what a message can name, and what graders are tested with."""

import math

import torch
import torch.nn.functional as F

from classroom.exercise.answers import Correct


def turn(x, positions):
    speed = 10_000.0 ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1])
    angle = positions[:, None] * speed
    ahead, aside = x[..., 0::2], x[..., 1::2]
    pairs = (ahead * angle.cos() - aside * angle.sin(), ahead * angle.sin() + aside * angle.cos())
    return torch.stack(pairs, dim=-1).flatten(-2).to(x.dtype)


# 8.1 ---------------------------------------------------------------------------------------------
class NextToken(Correct, exercise="next_token"):
    def with_temperature(logits, temperature):
        if temperature == 0:
            return logits.masked_fill(logits < logits.amax(dim=1, keepdim=True), -math.inf)
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
        return torch.searchsorted(edges / edges[:, -1:], u[:, None], right=True).squeeze(1)

    def next_token(logits, u, temperature=1.0, k=None, p=None):
        logits = with_temperature(logits, temperature)
        if k is not None:
            logits = top_k(logits, k)
        if p is not None:
            logits = top_p(logits, p)
        return draw(logits, u)


TemperatureMultiplied = NextToken.but("logits / temperature", "logits * temperature")
"""The logits are multiplied by the temperature, so a low one flattens the distribution; divide by
it."""

ZeroDivides = NextToken.but("if temperature == 0:\n    return …", "")
"""`with_temperature` divides by a temperature of 0; with 0, the highest logit of each row stays and
the others become minus infinity."""

ZeroReplacedByASmallNumber = NextToken.but(
    "if temperature == 0:\n    return …", "temperature = max(temperature, 1e-8)"
)
"""A temperature of 0 is replaced by a small number, so the other logits stay finite; with 0, they
become minus infinity."""

TemperatureOnProbabilities = NextToken.but(
    "logits / temperature", "logits.softmax(dim=1) / temperature"
)
"""`with_temperature` applies a softmax and divides the probabilities; divide the logits, and return
logits."""

TemperatureAppliedLast = NextToken.but("logits = with_temperature(logits, temperature)", "").but(
    "return draw(logits, u)", "return draw(with_temperature(logits, temperature), u)"
)
"""`next_token` applies the temperature after `top_p`, which therefore uses other probabilities; the
temperature comes first, then `top_k` and `top_p`."""

ForgetsK = NextToken.but("if k is not None:\n    logits = top_k(logits, k)", "")
"""`next_token` does not use `k`: `top_k` comes after the temperature, if `k` is not None."""

ForgetsP = NextToken.but("if p is not None:\n    logits = top_p(logits, p)", "")
"""`next_token` does not use `p`: `top_p` comes after `top_k`, if `p` is not None."""

TopPBeforeTopK = NextToken.but(
    "if k is not None:…\n    logits = top_p(logits, …",
    "if p is not None:\n"
    "    logits = top_p(logits, p)\n"
    "if k is not None:\n"
    "    logits = top_k(logits, k)",
)
"""`next_token` applies `top_p` before `top_k`; `top_k` comes first, and `top_p` uses the
probabilities of the remaining tokens."""

TiesAllKept = NextToken.but(
    "rank = …\nreturn …",
    "least = logits.topk(min(k, logits.shape[1]), dim=1).values[:, -1:]\n"
    "return torch.where(logits < least, -math.inf, logits)",
)
"""`top_k` keeps every logit that equals the k-th highest, so with ties more than k tokens stay;
among ties, keep the lower ids."""

HigherIdsKept = NextToken.but(
    "argsort(dim=1, descending=True, stable=True).argsort(dim=1)",
    "flip(1).argsort(dim=1, descending=True, stable=True).argsort(dim=1).flip(1)",
)
"""Among tokens that tie for the last place, `top_k` keeps those with the higher ids; keep the lower
ones."""

KBeyondTheVocabulary = NextToken.but(
    "rank = …\nreturn …",
    "kept = logits.topk(k, dim=1).values\n"
    "order = logits.argsort(dim=1, descending=True, stable=True)[:, : kept.shape[1]]\n"
    "return torch.full_like(logits, -math.inf).scatter(1, order, kept)",
)
"""`top_k` asks for more tokens than exist; if k exceeds the vocabulary size, keep everything."""

OneThresholdForTheBatch = NextToken.but(
    "rank = …", "least = logits[0].sort(descending=True).values[min(k, logits.shape[1]) - 1]"
).but("torch.where(rank < k, logits, -math.inf)", "logits.masked_fill(logits < least, -math.inf)")
"""`top_k` uses the first row's k-th highest logit as the threshold for all rows; each has its
own."""

OneArgsortTakenAsRanks = NextToken.but("stable=True).argsort(dim=1)", "stable=True)")
"""`top_k` takes the result of one argsort as the rank of each token, but entry i of it is the id of
the token with rank i: `argsort` it again to get the rank of each token."""

RemovedLogitsSetToZero = NextToken.but("logits, -math.inf", "logits, 0.0")
"""Removed tokens get the logit 0 from `top_k`, which gives them some probability; only minus
infinity excludes a token."""

LogitsChangedInPlace = NextToken.but(
    "return torch.where(rank …", "logits[rank >= k] = -math.inf\nreturn logits"
)
"""`top_k` changes the given logits in place; return new ones."""

CrossingTokenRemoved = NextToken.but(
    "cumsum(share, dim=1) - share >= p", "cumsum(share, dim=1) > p"
)
"""`top_p` removes the token that crosses p, so the remaining ones do not reach p; keep this token,
as the last one."""

AllTiedWithTheCrossingTokenKept = NextToken.but(
    "ordered, order = …\nreturn …",
    "share = F.softmax(logits, dim=1)\n"
    "ordered = share.sort(dim=1, descending=True).values\n"
    "last = (ordered.cumsum(dim=1) - ordered < p).sum(dim=1, keepdim=True).clamp(min=1) - 1\n"
    "return logits.masked_fill(share < ordered.gather(1, last), -math.inf)",
)
"""`top_p` keeps every token that is as probable as the one that crosses p, which is more than the
smallest number: remove tokens by their rank in the sorted order, not by a threshold."""

ProbabilitiesInTheOrderOfIds = NextToken.but(
    "ordered, order = …\nreturn …",
    "share = F.softmax(logits, dim=1)\n"
    "return logits.masked_fill(share.cumsum(dim=1) - share >= p, -math.inf)",
)
"""`top_p` adds up the probabilities in the order of the ids; sort them first, in descending
order."""

ExponentialsOverflow = NextToken.but(
    "share = F.softmax(ordered, dim=1)",
    "share = ordered.exp() / ordered.exp().sum(dim=1, keepdim=True)",
)
"""`top_p` computes the softmax from the exponentials of the logits, which overflow if logits are
large and are all 0 if they are very low: use torch.softmax, which subtracts the largest logit."""

DrawOverflows = NextToken.but(
    "edges = …", "edges = (logits.exp() / logits.exp().sum(dim=1, keepdim=True)).cumsum(dim=1)"
)
"""`draw` computes the softmax from the exponentials of the logits, which overflow if logits are
large and are all 0 if they are very low: use torch.softmax, which subtracts the largest logit."""

LeftInTheSortedOrder = NextToken.but(
    "torch.empty_like(logits).scatter(1, order, ordered)", "ordered"
)
"""`top_p` returns the logits in the order of their probability; put each back at the index of its
token."""

MaskLeftInTheSortedOrder = NextToken.but(
    "ordered, order = …\nreturn …",
    "share, order = F.softmax(logits, dim=1).sort(dim=1, descending=True)\n"
    "return logits.masked_fill(share.cumsum(dim=1) - share >= p, -math.inf)",
)
"""`top_p` decides in sorted order which tokens to remove, but applies this mask to the logits in
the order of the ids; scatter the mask back with `order` first."""

MaskGatheredByTheOrder = NextToken.but(
    "ordered, order = …\nreturn …",
    "share, order = F.softmax(logits, dim=1).sort(dim=1, descending=True)\n"
    "is_late = share.cumsum(dim=1) - share >= p\n"
    "return logits.masked_fill(is_late.gather(1, order), -math.inf)",
)
"""`top_p` maps its mask from the sorted order to ids by `gather` with `order`, which is the wrong
direction; `scatter` with `order`, or `gather` with `order.argsort()`, maps it back."""

HighestLogitsInTheSortedOrder = NextToken.but(
    "rank = …\nreturn …",
    "ordered = logits.sort(dim=1, descending=True).values\n"
    "return torch.where(torch.arange(logits.shape[1]) < k, ordered, -math.inf)",
)
"""`top_k` returns the logits in the order of their size, so they belong to other tokens; put each
back at the index of its token."""

FirstIdsKept = NextToken.but("rank = …", "rank = torch.arange(logits.shape[1])")
"""`top_k` keeps the tokens with the ids 0 to k - 1 instead of those with the k highest logits; map
the indices of the sorted order back to ids, for example by `scatter` with `order`."""

TokensRemovedWhenPIsOne = NextToken.but("if p == 1:\n    return logits", "")
"""With p = 1, `top_p` removes tokens because of rounding; everything must stay."""

ProbabilitiesReturned = NextToken.but("(1, order, ordered)", "(1, order, ordered).softmax(dim=1)")
"""`top_p` returns probabilities; return logits, so that the steps can be combined."""

ColdestOfTheWholeBatch = NextToken.but("logits.amax(dim=1, keepdim=True)", "logits.max()")
"""At temperature 0, only the highest logit of the whole batch stays, and the other rows lose all
their tokens: take the maximum of each row."""

AlwaysTheMostProbable = NextToken.but("edges = …\nreturn …", "return logits.argmax(dim=1)")
"""`draw` always takes the most probable token; let u choose one."""

OneTokenTooEarly = NextToken.but(
    "torch.searchsorted(edges / edges[:, -1:], u[:, None], right=True)",
    "(torch.searchsorted(edges / edges[:, -1:], u[:, None], right=True) - 1).clamp(min=0)",
)
"""`draw` returns the token before the one whose interval contains u: the id is the number of
intervals that end at or below u."""

BoundaryGivenToTheTokenBefore = NextToken.but("right=True", "right=False")
"""If u is on a boundary, `draw` returns the token below it, but an interval includes its lower
boundary. With u = 0, the first token is drawn even if its probability is 0: count the intervals
that end at u, too (`<=`)."""

IntervalsOrderedByProbability = NextToken.but(
    "edges = …\nreturn …",
    "share, order = logits.softmax(dim=1).sort(dim=1, descending=True)\n"
    "place = torch.searchsorted(share.cumsum(dim=1), u[:, None], right=True)\n"
    "return order.gather(1, place).squeeze(1)",
)
"""`draw` orders the intervals by probability; order them by id, or the same u gives other
tokens."""

IndexInTheSortedOrder = NextToken.but(
    "edges = logits.softmax(dim=1)", "edges = logits.softmax(dim=1).sort(descending=True).values"
)
"""`draw` sorts the probabilities and returns an index in the sorted order, which is not an id; keep
the intervals in the order of the ids."""

OwnRandomNumbersInsteadOfU = NextToken.but(
    "edges = …\nreturn …",
    "numbers = torch.Generator().manual_seed(len(u))\n"
    "return torch.multinomial(logits.softmax(dim=1), 1, generator=numbers).squeeze(1)",
)
"""The token is drawn with other random numbers, such as those of `torch.multinomial` or
`torch.rand`, and not with u. Use u: the token is the first one at which the cumulative probability
exceeds u."""

LastSumIsNotExactlyOne = NextToken.but("edges / edges[:, -1:]", "edges")
"""The last cumulative sum is not exactly 1: rounding can leave it slightly below, and for a u above
it, `draw` returns the id `vocab_size`, which does not exist. Divide the sums by the last one."""

NoSumAboveU = NextToken.but(
    "return torch.searchsorted(edges …", "return (edges > u[:, None]).int().argmax(dim=1)"
)
"""The last cumulative sum is not exactly 1: rounding can leave it slightly below. If u is above it,
no sum exceeds u, and `argmax` of a row without True is 0, so `draw` returns the first token instead
of the last possible one. Divide the sums by the last one."""

LastIdIfNoSumExceedsU = NextToken.but(
    "edges / edges[:, -1:], u[:, None], right=True).squeeze(1)",
    "edges, u[:, None], right=True).squeeze(1).clamp(max=logits.shape[1] - 1)",
)
"""The last cumulative sum is not exactly 1, and if u is above it, `draw` returns the last id, even
if this token is impossible. Divide the sums by the last one."""

EveryTokenEquallyProbable = NextToken.but(
    "logits.softmax", "torch.where(logits > -math.inf, 0.0, logits).softmax"
)
"""`draw` gives every remaining token the same probability; use the softmax of the logits."""


# 8.2 ---------------------------------------------------------------------------------------------
class Cached(Correct, exercise="cached_attention"):
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
        return weights @ values, (keys, values)


NoMask = Cached.but("allowed = …\nweights = …", "weights = scores.softmax(dim=-1)")
"""New tokens see the new tokens after them; mask these. Only the old tokens are all in the
past."""

HeadsTakenForThePast = Cached.but(
    "old_keys.shape[2], query", "old_keys.shape[1] * (cache is not None), query"
)
"""The number of heads is taken for the number of cached tokens: keys are (batch, heads, length,
d_head), so axis 2 counts the tokens."""

HeadsTakenForThePosition = Cached.but(
    "query, key = …",
    "first = old_keys.shape[1] * (cache is not None)\n"
    "query, key = (turn(x, first + torch.arange(new)) for x in (query, key))",
)
"""The first new token is rotated as if its position were the number of heads: keys are (batch,
heads, length, d_head), so axis 2 counts the tokens."""

SmallNumberInsteadOfMinusInfinity = Cached.but("-math.inf", "-100.0")
"""Masked scores are set to a number such as -100 or -1e4. Where the other scores are even lower,
later tokens get all the weight: set masked scores to minus infinity."""

SoftmaxOverflows = Cached.but(
    "weights = …",
    "shares = scores.masked_fill(~allowed, -math.inf).exp()\n"
    "weights = shares / shares.sum(dim=-1, keepdim=True)",
)
"""The softmax is computed without subtracting the largest score, so exponentials of large scores
overflow and those of very low ones are all 0: use torch.softmax."""

CacheOfFixedSize = Cached.but("past + torch.arange(new)", "torch.arange(64)[past : past + new]")
"""The cache or the table of positions has a fixed size, but a text may be longer: let it grow with
the number of tokens."""

BufferSharedByContinuations = (
    Cached.but(
        "old_keys, old_values = (key[:, :, :0], value[:, :, :0]) if cache is None else cache",
        "room = (key[:, :, :0], value[:, :, :0], 0) if cache is None else cache\n"
        "old_keys, old_values = room[0][:, :, : room[2]], room[1][:, :, : room[2]]",
    )
    .but(
        "keys = …\nvalues = …",
        "end = past + new\n"
        "rooms = []\n"
        "for full, more in zip(room, (key, value)):\n"
        "    if full.shape[2] < end:\n"
        "        free = more.new_zeros(*more.shape[:2], 2 * end, more.shape[3])\n"
        "        full = torch.cat([full[:, :, :past], free], dim=2)\n"
        "    full[:, :, past:end] = more\n"
        "    rooms.append(full)\n"
        "keys, values = (full[:, :, :end] for full in rooms)",
    )
    .but("keys, values)", "*rooms, end)", times=1)
)
"""New keys and values are written into unused space of the given cache. Two continuations of one
cache share this space, and the second overwrites the tokens of the first: copy the cache before you
write to it, or join old and new with torch.cat."""

MaskForThePromptOnly = Cached.but(
    "allowed = torch.arange(keys.shape[2]) <= positions[:, None]",
    "allowed = torch.arange(keys.shape[2]) <= positions[:, None]\n"
    "allowed = allowed | torch.tensor(past > 0)",
)
"""Only the first chunk is masked, so tokens of a later chunk see those after them; every chunk
needs a mask."""

MaskAlignedAtTheWrongCorner = Cached.but("positions[:, None]", "torch.arange(new)[:, None]")
"""The mask is built as if the first new token were the first of the text, so new tokens see only
the oldest keys; shift it by the number of tokens in the cache."""

ScaleForgotten = Cached.but("(2, 3) / math.sqrt(query.shape[-1])", "(2, 3)")
"""The scores are not divided by the square root of `d_head`; a cache does not change the scale."""

ScaledByWidthOfValues = Cached.but("sqrt(query.shape[-1])", "sqrt(value.shape[-1])")
"""The scores are divided by the square root of d_value; the dot product has d_head terms, the width
of queries and keys."""

MaskOfOnesAdded = Cached.but(
    "scores.masked_fill(~allowed, -math.inf)", "(scores + allowed.to(scores.dtype))"
)
"""A mask of 1 and 0 is added to the scores, as `scaled_dot_product_attention` does with a mask of
floats, so later tokens still get weight; use a boolean mask, or add minus infinity instead of 0 and
0 instead of 1."""

OwnTokenMasked = Cached.but(
    "(keys.shape[2]) <= positions[:, None]", "(keys.shape[2]) < positions[:, None].clamp(min=1)"
)
"""A new token does not see itself; it must also attend to its own key."""

PositionsRestart = Cached.but("past + torch", "torch").but(
    "positions[:, None]", "past + positions[:, None]"
)
"""Every chunk is rotated as if it began at position 0; its first token comes after those in the
cache."""

QueryPositionsRestart = Cached.but("query, positions", "query, torch.arange(new)")
"""The queries are rotated as if the chunk began at position 0, the keys by their true positions;
both come after the tokens in the cache."""

OffsetCountsTheNewTokens = Cached.but(
    "query, key = …", "query, key = (turn(x, positions + new) for x in (query, key))"
)
"""The offset counts the new tokens too, so chunks of different lengths get wrong distances; the
position of the first new token is the number of tokens in the cache."""

OffsetCountsChunks = (
    Cached.but(
        "old_keys, old_values = …",
        "empty = (key[:, :, :0], value[:, :, :0], 0)\n"
        "old_keys, old_values, chunks = empty if cache is None else cache",
    )
    .but(
        "query, key = …", "query, key = (turn(x, chunks + torch.arange(new)) for x in (query, key))"
    )
    .but("keys, values", "keys, values, chunks + 1")
)
"""The offset grows by one for each chunk; it must grow by the number of tokens in the chunk."""

KeysRotatedAgain = Cached.but("query, key = …", "query, key = turn(query, positions), key").but(
    "keys = …", "keys = turn(torch.cat([old_keys, key], dim=2), torch.arange(past + new))"
)
"""Cached keys are already rotated and are rotated again in each call; rotate each once, or cache
them without rotation."""

OnlyNewKeysRotated = Cached.but(
    "query, key = turn(query, positions), turn(key, positions)",
    "query, unturned = turn(query, positions), torch.cat([old_keys, key], dim=2)\n"
    "key = turn(key, positions)",
).but("keys, values", "unturned, values")
"""Keys are cached without rotation, and only the new ones are rotated before use; rotate all of
them."""

NothingRotated = Cached.but("turn(query, positions), turn(key, positions)", "query, key")
"""Queries and keys are used without positions; rotate both by their true positions."""

ValuesRotatedToo = Cached.but("old_values, value", "old_values, turn(value, positions)")
"""The values are rotated as well; rotate only queries and keys."""

CacheOverwritten = Cached.but("keys, values", "keys[:, :, past:], values[:, :, past:]")
"""The returned cache contains only the new tokens; it must contain the old ones too."""

OldestTokensDropped = Cached.but("(keys, values)", "(keys[:, :, -8:], values[:, :, -8:])")
"""The returned cache contains only the newest tokens, so a long text loses its beginning; keep all
of them."""

CacheNeverRead = Cached.but(
    "scores.masked_fill(~allowed, -math.inf)",
    "scores[..., past:].masked_fill(~allowed[:, past:], -math.inf)",
).but("weights @ values", "weights @ value")
"""The cache grows, but the new tokens attend only to each other; they must attend to the cached
ones as well."""

NewTokensInFront = Cached.but("old_keys, key", "key, old_keys").but(
    "old_values, value", "value, old_values"
)
"""New keys and values are put before the old ones, where the mask treats them as the oldest; append
them."""

NewValuesInFront = Cached.but("old_values, value", "value, old_values")
"""New keys are put after the old ones and new values before them, so keys are paired with values of
other tokens; append both."""

CacheOfTheFirstSequenceForAll = Cached.but(
    "old_keys, old_values = (key[:, :, :0], value[:, :, :0]) if cache is None else cache",
    "old_keys, old_values = (key[:, :, :0], value[:, :, :0]) if cache is None else cache\n"
    "old_keys, old_values = (old[:1].expand_as(old) for old in (old_keys, old_values))",
)
"""All sequences of the batch continue from the cache of the first one; each has its own."""

CacheChangedInPlace = Cached.but(
    "old_keys, old_values = (key[:, :, :0], value[:, :, :0]) if cache is None else cache",
    'cache = {"keys": [key[:, :, :0]], "values": [value[:, :, :0]]} if cache is None else cache\n'
    'old_keys, old_values = torch.cat(cache["keys"], 2), torch.cat(cache["values"], 2)',
).but(
    "return weights @ values, (keys, values)",
    'cache["keys"].append(key)\ncache["values"].append(value)\nreturn weights @ values, cache',
)
"""The given cache is changed in place, so another text that continues from it sees the new tokens;
leave the old cache unchanged and return a new one."""


# 8.4 ---------------------------------------------------------------------------------------------
class CacheBytes(Correct, exercise="cache_bytes"):
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
            positions[place] = start + i
        return keys, values, positions


NewestNumberedFromTheStart = CacheBytes.but(
    "window = positions.numel()",
    "window = positions.numel()\nkey, value = key[:, :, -window:], value[:, :, -window:]",
)
"""If there are more new tokens than slots, the newest are kept, but numbered from `start`: the
first of them comes after the dropped ones, and its position determines its slot."""

FirstTokensOfALongPromptKept = CacheBytes.but(
    "key[:, :, i]", "key[:, :, i - max(key.shape[2] - window, 0)]"
).but("value[:, :, i]", "value[:, :, i - max(key.shape[2] - window, 0)]")
"""If there are more new tokens than slots, `sliding_cache` stores the first `window` keys and
values, at the positions of the last: keep the newest."""

QueryHeadsCounted = CacheBytes.but("* num_kv_heads", "* num_heads")
"""`cache_bytes` uses the number of query heads; only the heads of keys and values are stored."""

KeysOnly = CacheBytes.but("2 * num_layers", "num_layers")
"""`cache_bytes` counts the keys but not the values: there are twice as many numbers."""

WholeBytesPerNumber = CacheBytes.but("one_token * bits // 8", "one_token * (bits // 8)")
"""`cache_bytes` counts a number of 4 bits as 0 bytes: multiply first, divide by 8 last."""

BitsInsteadOfBytes = CacheBytes.but("bits // 8", "bits")
"""`cache_bytes` returns bits; divide by 8."""

FourBytesAlways = CacheBytes.but("bits // 8", "4")
"""`cache_bytes` counts 32 bits for every number; use `bits`."""

LayersForgotten = CacheBytes.but("num_layers * num_kv_heads", "num_kv_heads")
"""`cache_bytes` counts one layer; every layer has its own keys and values."""

BatchForgotten = CacheBytes.but(
    "tokens = …", "tokens = length if window is None else min(window, length)"
)
"""`cache_bytes` counts one sequence; each sequence of the batch has its own keys and values."""

WindowIgnored = CacheBytes.but("(length if window is None else min(window, length))", "length")
"""`cache_bytes` counts all tokens although there is a window; at most `window` are kept."""

WindowAlwaysFull = CacheBytes.but("min(window, length)", "window")
"""`cache_bytes` counts the whole window for a sequence that does not fill it; count only the tokens
that exist."""

OwnTokenNotCounted = CacheBytes.but("window,", "window - 1,")
"""`cache_bytes` counts one token too few: the ring buffer holds `window` tokens, including the
newest."""

ChunkWrittenFromTheFirstSlot = CacheBytes.but("(start + i)", "i")
"""`sliding_cache` writes every chunk from the first slot on; the slot of a token is its position
modulo the window."""

SlotsByTheirAge = CacheBytes.but(
    "window = positions.numel()",
    "window = positions.numel()\n"
    "slots = positions.argsort(stable=True).tolist()\n"
    "dropped = max(key.shape[2] - window, 0)",
).but(
    "place = (start + i) % window",
    "if i < dropped:\n    continue\nplace = slots[i - dropped]",
)
"""`sliding_cache` writes to the empty or oldest slots, whatever the new tokens' positions; the
token at position t goes to slot t % window."""

SlotsHardCoded = CacheBytes.but("positions.numel()", "5")
"""The number of slots is hard-coded in `sliding_cache`; it is the length of axis 2 of `keys`."""

EverythingMoved = CacheBytes.but(
    "place = (start + i) % window",
    "place = window - 1\n"
    "keys, values, positions = keys.roll(-1, 2), values.roll(-1, 2), positions.roll(-1)",
)
"""`sliding_cache` moves all tokens and writes at the end; in a ring buffer nothing moves: the token
at position t goes to slot t % window."""

NewestOverwritten = CacheBytes.but("(start + i) % window", "min(start + i, window - 1)")
"""When the ring buffer is full, `sliding_cache` keeps writing to the last slot, over the newest
token; overwrite the oldest."""

RingOneSlotShort = CacheBytes.but("(start + i) % window", "(start + i) % (window - 1)")
"""`sliding_cache` starts again after `window` - 1 slots, so the last one stays empty; use all
slots."""

BeginningOfThePromptKept = CacheBytes.but("key.shape[2]", "min(key.shape[2], window)")
"""If a prompt is longer than the ring buffer, `sliding_cache` keeps its beginning; keep the newest
tokens."""

SlotsInsteadOfPositions = CacheBytes.but("[place] = start + i", "[place] = place")
"""`positions` contains the indices of the slots; it must contain each token's position in the
text."""

PositionsWithinTheChunk = CacheBytes.but("[place] = start + i", "[place] = i")
"""`positions` counts from the beginning of the chunk; it must contain each token's position in the
text."""

ValuesNotWritten = CacheBytes.but("values[:, :, place] = value[:, :, i]", "")
"""`sliding_cache` writes the keys but leaves the old values in their slots; write both."""

RingChangedInPlace = CacheBytes.but("keys, values, positions = …", "")
"""`sliding_cache` changes the given tensors in place; return new ones."""


# 8.8 ---------------------------------------------------------------------------------------------
class Beams(Correct, exercise="beam_search"):
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
        score, tokens = max(scores)
        return tokens, score


AlwaysOneBeam = Beams.but("longer[:num_beams]", "longer[:1]")
"""Only the best candidate of each step is kept, for any `num_beams`: this is greedy decoding."""

MoreBeamsThanCandidates = Beams.but(
    "longer.sort(reverse=True)\nlonger = longer[:num_beams]",
    "totals = torch.tensor([total for total, _ in longer], dtype=torch.float64)\n"
    "longer = [longer[i] for i in totals.topk(num_beams).indices.tolist()]",
)
"""`topk` is asked for more candidates than there are, which can happen in the first steps; take
`min(num_beams, …)` of them, so that all are kept if there are fewer."""

OneCandidatePerBeam = Beams.but(
    "longer += [(total + gain, [*tokens, token]) for token, gain in enumerate(row)]",
    "own = sorted(((gain, token) for token, gain in enumerate(row)), reverse=True)\n"
    "own = own[: num_beams if not tokens else 1]\n"
    "longer += [(total + gain, [*tokens, token]) for gain, token in own]",
)
"""Each prefix is extended only by its own best token, so poor prefixes stay alive; keep the best of
all candidates."""

AFewCandidatesPerBeam = Beams.but(
    "longer += [(total + gain, [*tokens, token]) for token, gain in enumerate(row)]",
    "own = sorted(((gain, token) for token, gain in enumerate(row)), reverse=True)\n"
    "own = own[: max(2, num_beams // 2)] if tokens else own\n"
    "longer += [(total + gain, [*tokens, token]) for gain, token in own]",
)
"""Only some candidates of each prefix are considered, but all beams of a step may come from one
prefix: extend every prefix by every token."""

FinishedSequencesExtended = Beams.but("done += …\nbeams = …", "beams = longer")
"""A finished sequence is extended by more tokens; set it aside with its sum."""

FinishedSequencesDropped = Beams.but("done + beams", "beams or done")
"""Finished sequences are dropped, and only unfinished ones are compared; compare both."""

UnfinishedSequencesDropped = Beams.but("done + beams", "done or beams")
"""Sequences without `eos` after `max_len` tokens are dropped; they are results too."""

StopsAtTheFirstEnd = Beams.but("not beams", "done or not beams").but(
    "done + beams", "done or beams"
)
"""The search stops at the first finished sequence; a better one may still be alive."""

FinishedSequencesReplaced = Beams.but(
    """
    longer = longer[:num_beams]
    done += [pair for pair in longer if pair[1][-1] == eos]
    beams = [pair for pair in longer if pair[1][-1] != eos]
    if not beams:
        break
    """,
    "done += [pair for pair in longer[:num_beams] if pair[1][-1] == eos]\n"
    "beams = [pair for pair in longer if pair[1][-1] != eos][:num_beams]",
)
"""Finished sequences are replaced by the next best prefixes in the same step; keep exactly
`num_beams` candidates, finished ones included."""

OneBeamFewerAfterEachEnd = Beams.but("longer[:num_beams]", "longer[: num_beams - len(done)]")
"""Each finished sequence leaves one beam fewer for all later steps; every step keeps `num_beams`
candidates."""

StopsAtEnoughEnds = Beams.but("not beams", "not beams or len(done) >= num_beams")
"""The search stops too early, for example when `num_beams` sequences have ended, and a prefix that
is still alive may get a better score: stop only after `max_len` steps, or if none is alive."""

StopsIfNoSumIsHigher = Beams.but("not beams", "not beams or (done and max(done)[0] >= beams[0][0])")
"""The search stops when no live prefix has a higher sum than a finished sequence. Sums only fall,
but with `alpha` above 0 a longer sequence with a lower sum can have a better score: go on to
`max_len`."""

StopsAndForgetsTheAlive = Beams.but(
    "if not beams:\n    break",
    "if done and max(done)[0] > max(beams, default=(-math.inf, []))[0]:\n    beams = []\n"
    "if not beams:\n    break",
)
"""The search stops when a finished sum is higher than those of all live prefixes, and drops them.
With `alpha` above 0 a longer sequence with a lower sum can have a better score: go on to
`max_len`."""

ProbabilitiesAdded = Beams.but(
    "longer += [(total + gain, [*tokens, token]) for token, gain in enumerate(row)]",
    "longer += [\n"
    "    (total + math.exp(gain), [*tokens, token]) for token, gain in enumerate(row)\n"
    "]",
)
"""Probabilities are added up; add up their logarithms, because probabilities are multiplied."""

LogarithmsMultiplied = Beams.but(
    "longer += [(total + gain, [*tokens, token]) for token, gain in enumerate(row)]",
    "longer += [\n"
    "    ((total * gain if tokens else gain), [*tokens, token])\n"
    "    for token, gain in enumerate(row)\n"
    "]",
)
"""Log-probabilities are multiplied; add them up."""

BestSumReturned = Beams.but(
    "scores = …\nreturn tokens, score",
    "total, tokens = max(done + beams)\nreturn tokens, total / len(tokens) ** alpha",
)
"""The sequence with the best sum is returned, and only its score is divided by the length; compare
the divided scores."""

ScoreNotDivided = Beams.but("score,", "_,").but(
    "tokens, score", "tokens, next(total for total, own in done + beams if own == tokens)"
)
"""The correct sequence is chosen, but its sum is returned; return the score divided by the power of
the length."""

BosCounted = Beams.but("len(tokens)", "(1 + len(tokens))")
"""The length includes `bos`; count only the generated tokens."""

EosNotCounted = Beams.but(
    "scores = [(total / len(tokens) ** alpha, tokens) for total, tokens in done + beams]",
    "scores = [\n"
    "    (total / max(1, len(tokens) - (tokens[-1] == eos)) ** alpha, tokens)\n"
    "    for total, tokens in done + beams\n"
    "]",
)
"""The length does not include `eos`; it is a generated token, and its log-probability is in the
sum."""

DividedByTheLongest = Beams.but("len(tokens) ** alpha", "max_len**alpha")
"""Sums are divided by `max_len`, the same for all sequences; divide each by its own length."""

FirstTokenDecides = Beams.but(
    "longer[:num_beams]", "longer[: num_beams if len(longer[0][1]) > 1 else 1]"
)
"""Only the best prefix is kept after the first step; a less probable first token may lead to the
best sequence."""

IdsHardCoded = Beams.but("eos]", "1]", times=2).but("[bos]", "[0]")
"""The ids of `bos` and `eos` are hard-coded; use the arguments."""


# 8.5 ---------------------------------------------------------------------------------------------
class LeftPadded(Correct, exercise="left_padded"):
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
        return model(*left_padded(prompts, pad))[:, -1]


RightPadded = (
    LeftPadded.but("tokens[row, length - len(prompt) :]", "tokens[row, : len(prompt)]")
    .but("is_real[row, length - len(prompt) :]", "is_real[row, : len(prompt)]")
    .but("(is_real.cumsum(dim=1) - 1).clamp(min=0)", "(is_real.cumsum(dim=1) - 1) * is_real")
)
"""The padding is on the right, so the last column is padding for the shorter prompts; pad on the
left."""

PositionsCountPadding = LeftPadded.but(
    "positions = …", "positions = torch.arange(length).expand(len(prompts), -1)"
)
"""Positions are counted from the first column, padding included, so the results depend on the other
prompts; the first token of each prompt has position 0."""

NegativePositions = LeftPadded.but(
    "positions = (is_real.cumsum(dim=1) - 1).clamp(min=0)",
    "positions = torch.stack([torch.arange(length) - length + len(p) for p in prompts])",
)
"""Padding gets negative positions, for which no table has rows; use 0."""

PositionsFromOne = LeftPadded.but("positions = …", "positions = is_real.cumsum(dim=1)")
"""A prompt's first token has position 1; it should be 0, as without padding."""

PaddingVisible = LeftPadded.but(
    "mask = (places[:, …", "mask = (places[:, None] >= places).expand(len(prompts), -1, -1)"
)
"""Tokens attend to the padding before them; only a padding position may see itself."""

PaddingSeesEverything = LeftPadded.but(
    "mask = mask | (places[:, None] == places)", "mask = mask | ~is_real[:, :, None]"
)
"""The rows of padding positions are True everywhere; a padding position should see only itself: add
the diagonal to the mask, not whole rows."""

PaddingSeesPadding = LeftPadded.but(
    "mask = mask | (places[:, None] == places)",
    "mask = mask | ((places[:, None] >= places) & ~is_real[:, :, None])",
)
"""A padding position sees all padding up to itself; it should see only itself: add the diagonal to
the mask."""

MaskInverted = LeftPadded.but("positions, mask", "positions, ~mask")
"""The mask is True where attention is not allowed; True means allowed."""

EmptyRows = LeftPadded.but("mask = mask | (places[:, None] == places)", "")
"""A padding position sees nothing at all, so the softmax of its row is NaN, which spreads; let it
see itself."""

PaddingMaskedAsQueries = LeftPadded.but("is_real[:, None, :]", "is_real[:, :, None]")
"""The mask hides rows of padding, not columns: real tokens still see it; hide the keys."""

FutureVisible = LeftPadded.but(
    "mask = (places[:, …", "mask = is_real[:, None, :].expand(-1, length, -1)"
)
"""The mask hides only padding, so tokens see later ones; it must also be causal."""

PaddingRecognisedById = LeftPadded.but(
    "positions = …", "is_real = tokens != pad\npositions = (is_real.cumsum(dim=1) - 1).clamp(min=0)"
)
"""Every token with the id `pad` is treated as padding, even inside a prompt; use the lengths of the
prompts."""

MaskedById = LeftPadded.but("is_real[:, None, :]", "(tokens != pad)[:, None, :]")
"""The mask hides every token with the id `pad`, even inside a prompt; use the lengths of the
prompts."""

TruncatedToTheShortest = LeftPadded.but(
    "length = max(map(len, prompts))",
    "length = min(map(len, prompts))\nprompts = [prompt[-length:] for prompt in prompts]",
)
"""All prompts are truncated to the length of the shortest; pad the shorter ones instead."""

ColumnOfRightPadding = LeftPadded.but(
    "return model(*left_padded(prompts, pad))[:, -1]",
    "lengths = torch.tensor([len(prompt) for prompt in prompts])\n"
    "return model(*left_padded(prompts, pad))[torch.arange(len(prompts)), lengths - 1]",
)
"""`next_logits` reads the column in which each prompt would end with padding on the right; with
padding on the left, all prompts end in the last column."""

AxisOfOnePromptDropped = LeftPadded.but("[:, -1]", "[:, -1].squeeze()")
"""`squeeze` removes the batch axis if there is a single prompt; return (batch, vocab_size) for one
prompt, too."""


# 8.7 ---------------------------------------------------------------------------------------------
class Speculative(Correct, exercise="speculative"):
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
        edges = torch.cumsum(target[len(drafted)], dim=0)
        return [*written, int((u >= edges).sum())]


RatioInverted = Speculative.but("target[i, token] / draft", "draft[i, token] / target")
"""A token is accepted with the probability draft / target; use target / draft."""

AcceptedWithTheTargetProbability = Speculative.but("[i, token] / draft[i, token]", "[i, token]")
"""A token is accepted with its target probability; use target / draft."""

AcceptedAtTheRatio = Speculative.but("accept[i] < target", "accept[i] <= target")
"""A token is accepted if its number equals target / draft: a number of 0 accepts even a token that
the target excludes; it must be below."""

DrawnFromTheWholeTarget = Speculative.but("F.relu(target[i] - draft[i])", "target[i]")
"""The replacement is drawn from the target itself, so tokens that the draft favours are too
frequent; draw from max(0, target - draft), divided by its sum."""

AbsoluteDifference = Speculative.but("more = …", "more = (target[i] - draft[i]).abs()")
"""The replacement is drawn from the absolute difference; use only the part where the target is
larger than the draft."""

ResidualThroughASoftmax = Speculative.but("more / more.sum()", "more.softmax(dim=0)")
"""The residual goes through a softmax, which gives every token some probability; divide it by its
sum."""

DifferenceReversed = Speculative.but("target[i] - draft", "draft[i] - target")
"""The replacement is drawn from max(0, draft - target); exchange the two."""

ResidualNotNormalised = Speculative.but(
    "edges = torch.cumsum(more / more.sum(), dim=0)\nreturn [*written, int((u >= edges).sum())]",
    "edges = torch.cumsum(more, dim=0)\n"
    "return [*written, int((u >= edges).sum().clamp(max=len(edges) - 1))]",
)
"""The residual is not divided by its sum, so its cumulative sum does not reach 1; divide it."""

FirstTokenIfNoSumExceeds = Speculative.but(
    "edges = torch.cumsum(more / more.sum(), dim=0)\nreturn [*written, int((u >= edges).sum())]",
    "edges = torch.cumsum(more, dim=0)\nreturn [*written, int((edges > u).int().argmax())]",
)
"""The residual is not divided by its sum, so for a large u no cumulative sum exceeds it, and argmax
returns 0, as for any row that is all False; divide the residual by its sum."""

BoundaryGivenToTheTokenBefore = Speculative.but("(u >= edges)", "(u > edges)", times=2)
"""If u is on a boundary, the token below it is drawn (for u = 0 even an impossible one); draw
the first token at which the cumulative probability exceeds u."""

LaterAcceptancesCounted = Speculative.but(
    "written = []",
    "places = torch.arange(len(drafted))\n"
    "ratios = target[places, drafted] / draft[places, drafted]\n"
    "number = int((accept < ratios).sum())\n"
    "written = []",
).but("accept[i] < target[i, token] / draft[i, token]", "i < number")
"""All tokens whose number is below target / draft are counted, even those after a rejected one;
only the tokens before the first rejected one are accepted."""

ContinuesAfterARejection = Speculative.but(
    "edges = torch.cumsum(more / more.sum(), dim=0)\nreturn [*written, int((u >= edges).sum())]",
    "edges = torch.cumsum(more / more.sum(), dim=0)\nwritten.append(int((u >= edges).sum()))",
)
"""After a rejected token, later ones are still considered, although they depend on it; the
replacement must be the last token."""

RejectedTokenNotReplaced = Speculative.but("more = …\nreturn …", "return written")
"""A rejected token is not replaced; draw one token in its place."""

NoExtraToken = Speculative.but(
    "edges = torch.cumsum(target[len(drafted)], …\nreturn …", "return written"
)
"""If all drafted tokens are accepted, no further token is drawn; draw one more from the target's
last row."""

ExtraTokenFromTheDraft = Speculative.but("target[len(drafted)]", "draft[-1]")
"""The extra token is drawn from the draft's last row; draw it from the target's."""

LastRowForEveryReplacement = Speculative.but("F.relu(target[i] - draft[i])", "target[-1]")
"""The replacement is drawn from the target's last row, which belongs to another position; use the
row of the rejected token."""

TargetRowsShifted = Speculative.but("target[i", "target[i + 1", times=2)
"""The target's rows are shifted by one; row i is the prediction for `drafted[i]`."""


# 8.6 ---------------------------------------------------------------------------------------------
class CheckCache(Correct, exercise="check_cache"):
    def check_cache(step):
        text = torch.tensor([8, 2, 7, 1, 0, 3, 9, 10])
        at_once, _ = step(text, None)
        for sizes in ([1] * 8, [3, 1, 4], [2, 5, 1]):
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


TwoChunksOnly = CheckCache.but("in ([1] * 8, [3, 1, 4], [2, 5, 1])", "in ([1, 7], [3, 5], [6, 2])")
"""The test splits the text in two; some bugs appear only from the third chunk on."""

SingleTokensOnly = CheckCache.but(
    "in ([1] * 8, [3, 1, 4], [2, 5, 1])", "in ([1] * 8, [4] + [1] * 4)"
)
"""After the prompt, the test reads only single tokens; a later chunk may have several tokens, and
then its mask matters."""

OnlyLastLogitsCompared = CheckCache.but(
    "logits, at_once[start : start + size]", "logits[-1], at_once[start + size - 1]"
)
"""The test compares only the logits of each chunk's last token, and here seeing ahead changes only
the others: compare all."""

ShortText = CheckCache.but(
    "text = …\nagain, _ = …",
    """
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
    """,
)
"""No chunk of the test comes after more than five tokens, so a cache that keeps only five still
holds all of them: use a longer text, or more chunks."""

NoBranches = CheckCache.but("_, prompt = …\nassert …", "")
"""The test never continues from one cache twice, or does not compare what the second continuation
returns, so it does not detect a cache that is shared between texts."""

OnlyBestTokensCompared = CheckCache.but(
    "allclose(logits, at_once[start : start + size].to(logits), atol=1e-4)",
    "equal(logits.argmax(1), at_once[start : start + size].argmax(1))",
)
"""The test compares the most likely tokens, which most bugs do not change; compare all logits."""

ToleranceTooLarge = CheckCache.but("atol=1e-4", "atol=3.2e-3", times=2)
"""Bugs with a small effect pass: the tolerance, absolute or relative (`rtol`), is too large, or a
sum or mean is compared, in which differences cancel. A difference above 1e-3 in any logit is not
rounding: compare each of them, with `rtol=0`."""

NoToleranceForRounding = CheckCache.but(
    "allclose(logits, at_once[start : start + size].to(logits), atol=1e-4)",
    "equal(logits, at_once[start : start + size].to(logits))",
).but("allclose(first, again, atol=1e-4)", "equal(first, again)")
"""The test does not allow for rounding, so it rejects a correct cache that computes in float32;
allow differences below 1e-5."""

CacheNotPassedOn = CheckCache.but("logits, cache = step(", "logits, _ = step(")
"""Correct caches are rejected: each chunk is read with the cache None, as if a new text began. Pass
the cache that the previous call returned."""

OnlyShapesCompared = CheckCache.but(
    "assert torch.allclose(logits, …", "assert logits.shape == at_once[start : start + size].shape"
).but("assert torch.allclose(first, …", "assert first.shape == again.shape")
"""The test compares only shapes, which are correct in nearly all broken caches; compare numbers."""

OneSidedDifference = CheckCache.but(
    "torch.allclose(logits, at_once[start : start + size].to(logits), atol=1e-4)",
    "(logits - at_once[start : start + size]).max() < 1e-4",
)
"""The test notices logits that are too large, not those that are too small: take the absolute
difference."""

NormsCompared = CheckCache.but(
    "logits, at_once[start : start + size].to(logits)",
    "logits.norm(dim=1), at_once[start : start + size].norm(dim=1).to(logits)",
)
"""The test compares the norms of the logits, or other numbers that stay the same when two logits
are exchanged; compare the logits one by one."""

ProbabilitiesCompared = CheckCache.but(
    "logits, at_once[start : start + size].to(logits), atol=1e-4",
    "logits.softmax(1), at_once[start : start + size].to(logits).softmax(1), rtol=0, atol=4e-3",
)
"""The test compares probabilities, which hardly change if one logit changes by a few thousandths,
and not at all if all change alike: compare the logits."""

EqualChunks = CheckCache.but("in ([1] * 8, [3, 1, 4], [2, 5, 1])", "in ([1] * 8, [2] * 4, [4, 4])")
"""Where the test uses three or more chunks, all but the last have the same length, so an offset
that grows by the length of the first one passes: let the second differ from the first."""


# 8.3 ---------------------------------------------------------------------------------------------
class Mended(Correct, exercise="mended_generate"):
    def mended_generate(read, prompt, num_new):
        cache, tokens, seen, written = None, prompt, 0, []
        while len(written) < num_new:
            positions = seen + torch.arange(tokens.shape[1]).repeat(len(tokens), 1)
            logits, cache = read(tokens, positions, cache)
            seen += tokens.shape[1]
            written.append(logits.argmax(dim=-1))
            tokens = written[-1].unsqueeze(1)
        return torch.stack(written, dim=1)


OffsetGrowsByThePrompt = Mended.but("seen += tokens", "seen += prompt")
"""The offset still grows by the length of the prompt in every step; it must grow by the number of
tokens that were read."""

PositionsHardCoded = Mended.but(
    "positions = seen + torch.arange(tokens.shape[1]).repeat(len(tokens), 1)",
    "positions = seen + torch.tensor([[0, 1, 2, 3, 4, 5]])[:, : tokens.shape[1]].repeat(\n"
    "    len(tokens), 1\n"
    ")",
)
"""The positions are still hard-coded for a prompt of six tokens; compute them from the number of
tokens."""

OneRowOfPositions = Mended.but(
    "torch.arange(tokens.shape[1]).repeat(len(tokens), 1)", "torch.arange(tokens.shape[1])[None]"
)
"""The positions have the shape (1, new), or have no batch axis at all; `read` takes one for each
token of each prompt, (batch, new)."""

SixPositionsExpanded = Mended.but(
    "positions = seen + torch.arange(tokens.shape[1]).repeat(len(tokens), 1)",
    "positions = seen + torch.tensor([[0, 1, 2, 3, 4, 5]])[:, : tokens.shape[1]]\n"
    "positions = positions.expand_as(tokens)",
)
"""The six hard-coded positions are still there, and a longer prompt needs more, so `expand_as`
fails; compute as many positions as there are new tokens."""

TableOfPositionsTooShort = Mended.but(
    "torch.arange(tokens.shape[1])", "torch.arange(20)[: tokens.shape[1]]"
)
"""The positions come from a table of fixed length, and a longer prompt needs more; compute as many
positions as there are new tokens."""

NumberOfNewTokensHardCoded = Mended.but("len(written) < num_new", "len(written) < 5")
"""The number of new tokens is hard-coded; generate `num_new` tokens."""

OffsetGrowsByOne = Mended.but("seen += tokens.shape[1]", "seen += 1")
"""The offset grows by one in every call, or counts the generated tokens. The first call adds the
whole prompt to the cache: the offset must grow by the number of tokens that were read."""

OffsetGrowsByTheBatch = Mended.but("seen += tokens.shape[1]", "seen += tokens.shape[0]")
"""The offset grows by the number of prompts in the batch; it must grow by `tokens.shape[1]`, the
number of new tokens."""

NoOffset = Mended.but("seen + torch", "torch")
"""The offset is not added, so every new token gets position 0; the first one comes after the
prompt, and the others follow."""

OffsetNeverGrows = Mended.but("seen += tokens", "seen = prompt")
"""All new tokens get the first position after the prompt; it must grow by 1 for each."""

OffsetFromZero = Mended.but("seen += tokens.shape[1]", "seen = len(written)")
"""New tokens get positions from 0 on, as if there were no prompt; they come after it."""

OffsetOneTooFar = Mended.but("seen += tokens.shape[1]", "seen += tokens.shape[1] + (seen == 0)")
"""The position of the first new token is one too large; a prompt of n tokens has positions 0 to n -
1, so the next one is n."""

EverythingReadAgain = Mended.but(
    "positions = …\nseen += tokens.shape[1]",
    "positions = torch.arange(tokens.shape[1]).repeat(len(tokens), 1)\n"
    "logits, _ = read(tokens, positions, cache)",
).but("written[-1].unsqueeze(1)", "torch.cat([tokens, written[-1].unsqueeze(1)], dim=1)")
"""The whole text is read again for each token, without the cache; read each token once."""

TextReadTwice = Mended.but("seen + torch", "torch").but(
    "written[-1].unsqueeze(1)", "torch.cat([tokens, written[-1].unsqueeze(1)], dim=1)"
)
"""The whole text is passed again although the cache already contains it; pass only the newest
token."""

CacheDiscarded = Mended.but("cache = read", "_ = read")
"""The cache that `read` returns is not passed back, so a new token does not see the earlier
text."""

PromptReturned = Mended.but(
    "stack(written, dim=1)", "cat([prompt, torch.stack(written, dim=1)], dim=1)"
)
"""The prompt is returned in front of the new tokens; return only the new ones."""


# 8.9 ---------------------------------------------------------------------------------------------
class Retention(Correct, exercise="retention_chunked"):
    def retention_parallel(query, key, value, decay):
        index = torch.arange(query.shape[2])
        distance = index[:, None] - index
        faded = (decay[:, None, None] ** distance.clamp(min=0)).tril()
        weights = query @ key.mT * faded
        return weights @ value

    def retention_step(state, query, key, value, decay):
        fade = decay[:, None, None]
        outer = key[..., :, None] * value[..., None, :]
        state = fade * state + outer
        output = (query[..., None, :] @ state).squeeze(-2)
        return output, state

    def retention_chunked(query, key, value, decay, chunk_len):
        fade = decay[:, None, None]
        state = key.new_zeros(*key.shape[:2], key.shape[-1], value.shape[-1])
        outputs, states = [], []
        for start in range(0, query.shape[2], chunk_len):
            q, k, v = (x[:, :, start : start + chunk_len] for x in (query, key, value))
            n = q.shape[2]
            i = torch.arange(1, n + 1)[:, None]
            before = fade**i * (q @ state)
            outputs.append(before + retention_parallel(q, k, v, decay))
            state = fade**n * state + (fade ** (n - i) * k).mT @ v
            states.append(state)
        return torch.cat(outputs, dim=2), torch.stack(states)


FutureIncluded = Retention.but("distance.clamp(min=0)).tril()", "distance.abs())")
"""Later tokens get a weight as well, faded by their distance; a token may use only those up to
itself, so the weights above the diagonal must be 0."""

FutureNotFaded = Retention.but("distance.clamp(min=0)).tril()", "distance.clamp(min=0))")
"""Later tokens get a weight that has not faded at all: setting the distance to 0 does not set the
weight to 0; mask the weights above the diagonal."""

OwnTokenLeftOut = Retention.but(".tril()", ".tril(-1)")
"""The parallel form leaves out the token itself; the sum includes it, with the weight `query ·
key`."""

OwnTokenFades = Retention.but("distance.clamp(min=0)", "(distance + 1).clamp(min=0)")
"""In the parallel form every weight fades by one step too many; the token itself has the distance
0, so it does not fade."""

FadedFromTheStart = Retention.but("distance.clamp(min=0)", "index")
"""A value fades by its position in the sequence, so the newest fades most; use the distance from
the query's token to the key's."""

FadedTwice = Retention.but("distance.clamp(min=0)", "(2 * distance).clamp(min=0)")
"""The weights fade twice as fast as they should: the decay is applied once for each step of the
distance."""

NoDecay = Retention.but("decay[:, None, None] ** distance.clamp(min=0)", "distance + 0.0 >= 0").but(
    "query @ key.mT * faded", "(query @ key.mT) * faded"
)
"""The parallel form does not use the decay; a token that is n steps back counts `decay ** n` times
as much."""

SoftmaxKept = Retention.but(
    "query @ key.mT * faded",
    "(query @ key.mT).masked_fill(faded == 0, -math.inf).softmax(dim=-1) * faded",
)
"""The parallel form applies a softmax to the dot products; linear attention has none."""

ScaleKept = Retention.but("key.mT * faded", "key.mT / query.shape[-1] ** 0.5 * faded")
"""The parallel form divides the dot products by the square root of `d_head`; use them as they
are."""

WeightsSumToOne = Retention.but(
    "return weights @ value", "return weights @ value / weights.sum(dim=-1, keepdim=True)"
)
"""The parallel form divides by the sum of the weights, which may even be negative; retention is a
sum, not an average."""

QueriesAndKeysExchanged = Retention.but("query @ key.mT * faded", "key @ query.mT * faded")
"""In the parallel form queries and keys are swapped, so each row of weights belongs to a key; rows
are queries: `query @ key.mT`."""

OneDecayForAll = Retention.but("faded = (decay[:, None, None]", "faded = (decay[0]")
"""The parallel form uses the first head's decay for all heads; each head has its own."""

DecayAlongTheBatch = Retention.but(
    "faded = (decay[:, None, None]", "faded = (decay[:, None, None, None]"
)
"""The parallel form broadcasts the decays along the batch; they belong to the heads, the third axis
from the end of the scores: `decay[:, None, None]`."""

NegativePowers = Retention.but("distance.clamp(min=0)).tril()", "distance) * (distance >= 0)")
"""For later tokens the exponent is negative, the power infinite in long sequences, and infinity
times 0 is NaN; set the distance to at least 0 before taking the power, then mask."""

InfinitePowersMasked = Retention.but("distance.clamp(min=0)", "distance")
"""For later tokens the exponent is negative: in a long sequence the power is infinite. It is set
to 0 afterwards, but the gradient of `decay` is 0 times infinity, which is NaN; set the distance to
at least 0 before taking the power, then mask."""

DecaySplitIntoTwoPowers = Retention.but(
    "faded = (…\nweights = …",
    "fade = decay[:, None, None]\n"
    "weights = ((query * fade ** index[:, None]) @ (key / fade ** index[:, None]).mT).tril()",
)
"""The decay is split into `decay ** t` for the query and `decay ** -s` for the key; in a long
sequence the first becomes 0 and the second infinite. Use `decay ** distance`, which is
between 0 and 1."""

ReadBeforeTheUpdate = Retention.but(
    "state = fade * state + outer\noutput = (query[..., None, :] @ state).squeeze(-2)",
    "output = (query[..., None, :] @ state).squeeze(-2)\nstate = fade * state + outer",
)
"""`retention_step` reads the old state, so a token does not see itself; update first, then read."""

NewTokenFades = Retention.but("fade * state + outer", "fade * (state + outer)")
"""`retention_step` adds the new token before the state fades, so the token fades immediately; fade
the old state, then add."""

StateDoesNotFade = Retention.but("fade * state + outer", "state + outer")
"""`retention_step` does not use the decay; multiply the old state by it before the token is
added."""

NewTokenFadesInsteadOfTheState = Retention.but("fade * state + outer", "state + fade * outer")
"""`retention_step` multiplies the new token by the decay instead of the old state; the old state
must fade."""

MovingAverage = Retention.but("fade * state + outer", "fade * state + (1 - fade) * outer")
"""`retention_step` takes a moving average: the new token is multiplied by `1 - decay`; add it as it
is."""

OldStateForgotten = Retention.but("fade * state + outer", "outer + 0.0 * state")
"""`retention_step` replaces the state by the new token; add the token to the faded state."""

OldStateReturned = Retention.but("return output, state", "return output, (state - outer) / fade")
"""`retention_step` returns the state that it was given, so the next token does not see this one;
return the new state."""

ValuesInTheRows = Retention.but("outer = …", "outer = value[..., :, None] * key[..., None, :]").but(
    "(query[..., None, :] @ state).squeeze(-2)", "(state @ query[..., :, None]).squeeze(-1)"
)
"""`retention_step` builds the outer product with rows for values and columns for keys; the state is
`(d_head, d_value)`: keys in the rows, `key[..., :, None] * value[..., None, :]`."""

StateGrows = Retention.but(
    "state = fade * state + outer\noutput = …",
    "state = torch.cat([fade * state, outer], dim=2)\n"
    "parts = state.unflatten(2, (-1, key.shape[-1])).sum(dim=2)\n"
    "output = (query[..., None, :] @ parts).squeeze(-2)",
)
"""`retention_step` appends the token's outer product to the state, which grows with each token like
a cache; add it to the state, whose shape stays the same."""

StateChangedInPlace = Retention.but(
    "state = fade * state + outer\noutput", "state *= fade\nstate += outer\noutput"
)
"""`retention_step` changes the given state in place, so another sequence that continues from it
sees this token; return a new state."""

ChunksIgnoreThePast = Retention.but("before + retention", "retention")
"""The output of a chunk does not include what came before it; read it from the state, faded."""

PastDoesNotFade = Retention.but("fade**i * (q @ state)", "q @ state")
"""Within a chunk, the past state is read as it was at the beginning of the chunk; for token i,
counted from 1, it has faded by `decay ** i`."""

PastFadesTooLate = Retention.but("fade**i * (q", "fade ** (i - 1) * (q")
"""Every token of a chunk reads the past state with one decay too few: the first token must already
multiply it by the decay."""

PastFadesByTheWholeChunk = Retention.but("fade**i * (q", "fade**n * (q")
"""Every token of a chunk reads the past state faded by the whole chunk; for token i, counted from
1, it is `decay ** i`."""

StateFadesOnce = Retention.but("fade**n * state", "fade * state")
"""The state between chunks fades once per chunk; it must fade once for each token of the chunk."""

StateNeverFades = Retention.but("fade**n * state", "state")
"""The state between chunks does not fade when a chunk is added; multiply it by `decay ** n` for a
chunk of n tokens."""

OnlyTheLastChunkIsKept = Retention.but("fade**n * state + (fade", "(fade")
"""The state keeps only the newest chunk; add it to the faded state of those before."""

TokensOfAChunkDoNotFade = Retention.but("(fade ** (n - i) * k).mT", "k.mT")
"""The tokens of a chunk enter the state without a decay; token i of n, counted from 1, has faded by
`decay ** (n - i)` when the chunk ends."""

TokensFadeOnceTooOften = Retention.but("fade ** (n - i)", "fade ** (n - i + 1)")
"""The tokens of a chunk enter the state with one decay too many; the last one does not fade: token
i of n, counted from 1, fades by `decay ** (n - i)`."""

OldestTokenFadesLeast = Retention.but("fade ** (n - i)", "fade ** (i - 1)")
"""Of the tokens that enter the state, the newest fades most; it is the oldest of the chunk that
fades most: `decay ** (n - i)`, with i counted from 1."""

StateReadAfterTheUpdate = Retention.but(
    "before = …\noutputs.append(before + retention_parallel(q, k, v, decay))\nstate = …",
    "state = fade**n * state + (fade ** (n - i) * k).mT @ v\n"
    "outputs.append(fade**i * (q @ state) + retention_parallel(q, k, v, decay))",
)
"""A chunk reads the state after its own tokens were added, so they count twice; read first, then
update."""

ShortChunkDropped = Retention.but(
    "range(0, query.shape[2], chunk_len)",
    "range(0, max(query.shape[2] - chunk_len, 0) + 1, chunk_len)",
)
"""The tokens after the last full chunk are dropped; the last chunk may be shorter than the
others."""

ShortChunkFadesAsAFullOne = Retention.but("fade**n * state", "fade**chunk_len * state")
"""After a last chunk that is not full, the state of the past has faded by `chunk_len` steps; it
fades once for each token that the chunk really has."""

OneChunkForAll = Retention.but("in range(0, query.shape[2], chunk_len)", "in [0]").but(
    "start + chunk_len", "query.shape[2]"
)
"""The whole sequence is one chunk, so `chunk_len` is not used, and there is one state instead of
one for each chunk."""

TokensFadeAsInAFullChunk = Retention.but("fade ** (n - i)", "fade ** (chunk_len - i)")
"""In a last chunk that is not full, the tokens enter the state faded as if it were: token i of n,
counted from 1, fades by `decay ** (n - i)`, with the chunk's own n."""

StatesBeforeTheChunks = Retention.but(
    "state = fade**n * state + (fade ** (n - i) * k).mT @ v\nstates.append(state)",
    "states.append(state)\nstate = fade**n * state + (fade ** (n - i) * k).mT @ v",
)
"""The states before each chunk are returned; append a state after the chunk has been added to
it."""

PaddingFades = Retention.but(
    "states.append(state)", "states.append(fade ** (chunk_len - n) * state)"
)
"""The state fades during the padding of the last chunk; it must be the state after the last
real token."""

StateDetached = Retention.but("(q @ state)", "(q @ state.detach())")
"""The state is detached between chunks, so later chunks send no gradients to earlier keys and
values; leave it in the graph."""
