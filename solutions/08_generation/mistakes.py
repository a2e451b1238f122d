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
        if k is not None:
            logits = top_k(logits, k)
        if p is not None:
            logits = top_p(logits, p)
        return draw(logits, u)


TemperatureMultiplied = NextToken.but("logits / temperature", "logits * temperature")
"""The logits are multiplied by the temperature, so a low one flattens; divide by it."""

TemperatureOnProbabilities = NextToken.but(
    "logits / temperature", "logits.softmax(dim=1) / temperature"
)
"""`with_temperature` takes a softmax and divides the probabilities; it divides logits and returns
logits."""

TemperatureAfterTheCuts = NextToken.but("logits = with_temperature(logits, temperature)", "").but(
    "return draw(logits, u)", "return draw(with_temperature(logits, temperature), u)"
)
"""`next_token` applies the temperature last, so the share p is one of other probabilities; the
temperature comes first, then the cuts."""

ShareCutBeforeK = NextToken.but(
    "if k is not None:…\n    logits = top_p(logits, …",
    "if p is not None:\n"
    "    logits = top_p(logits, p)\n"
    "if k is not None:\n"
    "    logits = top_k(logits, k)",
)
"""`next_token` cuts to the share p before it cuts to k tokens; k comes first, and p is a share of
what k left."""

TiesAllKept = NextToken.but(
    "rank = …\nreturn …",
    "least = logits.topk(min(k, logits.shape[1]), dim=1).values[:, -1:]\n"
    "return torch.where(logits < least, -math.inf, logits)",
)
"""`top_k` keeps everything that is as high as place k, so ties let more than k tokens through; of
those that tie the lower ids stay."""

HigherIdsKept = NextToken.but(
    "argsort(dim=1, descending=True, stable=True).argsort(dim=1)",
    "flip(1).argsort(dim=1, descending=True, stable=True).argsort(dim=1).flip(1)",
)
"""Of tokens that tie for the last place `top_k` keeps those with the higher ids; the lower ones
stay."""

KBeyondTheVocabulary = NextToken.but(
    "rank = …\nreturn …",
    "kept = logits.topk(k, dim=1).values\n"
    "order = logits.argsort(dim=1, descending=True, stable=True)[:, : kept.shape[1]]\n"
    "return torch.full_like(logits, -math.inf).scatter(1, order, kept)",
)
"""`top_k` asks for more places than there are tokens; a k beyond the vocabulary keeps
everything."""

OneCutForTheBatch = NextToken.but(
    "rank = …", "least = logits[0].sort(descending=True).values[min(k, logits.shape[1]) - 1]"
).but("torch.where(rank < k, logits, -math.inf)", "logits.masked_fill(logits < least, -math.inf)")
"""`top_k` takes the k-th logit of the first row as the cut for all rows; each row has its own."""

CutToZero = NextToken.but("logits, -math.inf", "logits, 0.0")
"""What `top_k` cuts gets the logit 0, which is a probability like any other; only minus infinity
rules a token out."""

LogitsChangedInPlace = NextToken.but(
    "return torch.where(rank …", "logits[rank >= k] = -math.inf\nreturn logits"
)
"""`top_k` writes into the logits that it was given, and the caller's are lost; make new ones."""

CrossingTokenCut = NextToken.but("cumsum(share, dim=1) - share >= p", "cumsum(share, dim=1) > p")
"""`top_p` cuts the token that crosses p, so what stays does not reach it; it is the last one to
stay."""

SharesInOrderOfIds = NextToken.but(
    "ordered, order = …\nreturn …",
    "share = F.softmax(logits, dim=1)\n"
    "return logits.masked_fill(share.cumsum(dim=1) - share >= p, -math.inf)",
)
"""`top_p` adds the probabilities up in the order of the ids; sort them first, the most probable
ones stay."""

LeftInTheSortedOrder = NextToken.but(
    "torch.empty_like(logits).scatter(1, order, ordered)", "ordered"
)
"""`top_p` returns the logits in the order of their probability; put each back into the place of its
token."""

FullShareCuts = NextToken.but("if p == 1:\n    return logits", "")
"""With p = 1 `top_p` cuts what is lost in rounding; then everything stays."""

ProbabilitiesReturned = NextToken.but("(1, order, ordered)", "(1, order, ordered).softmax(dim=1)")
"""`top_p` returns probabilities; it turns logits into logits, so that steps can follow each
other."""

AlwaysTheBest = NextToken.but("edges = …\nreturn …", "return logits.argmax(dim=1)")
"""`draw` always takes the most probable token, whatever u is; u decides."""

OneTokenTooEarly = NextToken.but(
    "torch.searchsorted(edges, u[:, None], right=True)",
    "(torch.searchsorted(edges, u[:, None], right=True) - 1).clamp(min=0)",
)
"""`draw` returns the token before the one in whose share u falls: count the shares that end at u or
before it, that is the id."""

EdgeOfTheTokenBefore = NextToken.but("right=True", "right=False")
"""`draw` gives a u on an edge to the token before it; a share begins at its lower edge. With u = 0
a first token comes out that has no share at all: count the shares that end at u, too (`<=`)."""

BestTokenFirst = NextToken.but(
    "edges = …\nreturn …",
    "share, order = logits.softmax(dim=1).sort(dim=1, descending=True)\n"
    "place = torch.searchsorted(share.cumsum(dim=1), u[:, None], right=True)\n"
    "return order.gather(1, place).squeeze(1)",
)
"""`draw` lays the shares out from the most probable token on; they lie in the order of the ids, or
other tokens belong to the same numbers."""

EveryTokenAlike = NextToken.but(
    "logits.softmax", "torch.where(logits > -math.inf, 0.0, logits).softmax"
)
"""`draw` gives every token that is left the same share; its share is its probability."""


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
"""New tokens see the new tokens behind them; mask them, even though old tokens are all in the
past."""

MaskForThePromptOnly = Cached.but(
    "allowed = torch.arange(keys.shape[2]) <= positions[:, None]",
    "allowed = torch.arange(keys.shape[2]) <= positions[:, None]\n"
    "allowed = allowed | torch.tensor(past > 0)",
)
"""Only the first chunk is masked, so tokens of a later chunk see those behind them; a later chunk
needs a mask as well."""

MaskInTheWrongCorner = Cached.but("positions[:, None]", "torch.arange(new)[:, None]")
"""The mask is laid out as if the first new token were the first of the text, so new tokens see the
oldest keys only; shift it by the number of tokens in the cache."""

ScaleForgotten = Cached.but("(2, 3) / math.sqrt(query.shape[-1])", "(2, 3)")
"""The scores are not divided by the root of `d_head`; that is how attention computes them, with a
cache and without."""

OwnTokenHidden = Cached.but(
    "(keys.shape[2]) <= positions[:, None]", "(keys.shape[2]) < positions[:, None].clamp(min=1)"
)
"""A new token does not see itself; its own key is one that it may attend to."""

PositionsBeginAgain = Cached.but("past + torch", "torch").but(
    "positions[:, None]", "past + positions[:, None]"
)
"""Every chunk is turned as if it began at position 0; its first token stands behind those in the
cache."""

QueriesBeginAgain = Cached.but("query, positions", "query, torch.arange(new)")
"""The queries are turned as if the chunk began at position 0, the keys by their true positions;
both stand behind what is in the cache."""

OffsetCountsTheNewTokens = Cached.but(
    "query, key = …", "query, key = (turn(x, positions + new) for x in (query, key))"
)
"""The offset counts the new tokens too, so chunks of different lengths get wrong distances; the
first new token's position is the number of tokens in the cache."""

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
"""The offset grows by one for each chunk; it grows by the number of its tokens."""

KeysTurnedAgain = Cached.but("query, key = …", "query, key = turn(query, positions), key").but(
    "keys = …", "keys = turn(torch.cat([old_keys, key], dim=2), torch.arange(past + new))"
)
"""Keys are kept turned, and turned again whenever they are read; turn each once, or keep them
unturned."""

NewKeysTurnedOnly = Cached.but(
    "query, key = turn(query, positions), turn(key, positions)",
    "query, unturned = turn(query, positions), torch.cat([old_keys, key], dim=2)\n"
    "key = turn(key, positions)",
).but("keys, values", "unturned, values")
"""Keys are kept unturned, and only the new ones are turned before they are used; all of them need
their position."""

NothingTurned = Cached.but("turn(query, positions), turn(key, positions)", "query, key")
"""Queries and keys are used without positions; turn both by their true positions."""

ValuesTurnedToo = Cached.but("old_values, value", "old_values, turn(value, positions)")
"""The values are turned as well; positions belong to queries and keys only."""

CacheOverwritten = Cached.but("keys, values", "keys[:, :, past:], values[:, :, past:]")
"""The cache that is returned holds the new tokens only; it holds the old ones too."""

CacheNeverRead = Cached.but(
    "scores.masked_fill(~allowed, -math.inf)",
    "scores[..., past:].masked_fill(~allowed[:, past:], -math.inf)",
).but("weights @ values", "weights @ value")
"""The cache grows, but the new tokens attend to each other only; they attend to the cached ones as
well."""

NewTokensInFront = Cached.but("old_keys, key", "key, old_keys").but(
    "old_values, value", "value, old_values"
)
"""New keys and values are put in front of the old ones, where the mask takes them for the oldest;
they belong behind."""

ValuesInFront = Cached.but("old_values, value", "value, old_values")
"""New keys are put behind the old ones and new values in front, so that keys and values of
different tokens belong together; put both behind."""

BatchMatesMixed = Cached.but(
    "old_keys, old_values = (key[:, :, :0], value[:, :, :0]) if cache is None else cache",
    "old_keys, old_values = (key[:, :, :0], value[:, :, :0]) if cache is None else cache\n"
    "old_keys, old_values = (old[:1].expand_as(old) for old in (old_keys, old_values))",
)
"""All texts of the batch go on from the first one's cache; each has its own."""

CacheChangedInPlace = Cached.but(
    "old_keys, old_values = (key[:, :, :0], value[:, :, :0]) if cache is None else cache",
    'cache = {"keys": [key[:, :, :0]], "values": [value[:, :, :0]]} if cache is None else cache\n'
    'old_keys, old_values = torch.cat(cache["keys"], 2), torch.cat(cache["values"], 2)',
).but(
    "return weights @ values, (keys, values)",
    'cache["keys"].append(key)\ncache["values"].append(value)\nreturn weights @ values, cache',
)
"""New keys and values go into a cache that another text may go on from as well, and that one sees
them; leave the old cache as it is and make a new one."""


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


QueryHeadsCounted = CacheBytes.but("* num_kv_heads", "* num_heads")
"""`cache_bytes` counts the heads of the queries; only the heads of keys and values are kept."""

KeysOnly = CacheBytes.but("2 * num_layers", "num_layers")
"""`cache_bytes` counts the keys and forgets the values: twice as many numbers."""

WholeBytesPerNumber = CacheBytes.but("one_token * bits // 8", "one_token * (bits // 8)")
"""`cache_bytes` takes a number of 4 bits for 0 bytes: multiply first, divide by 8 last."""

BitsForBytes = CacheBytes.but("bits // 8", "bits")
"""`cache_bytes` returns bits; eight of them are a byte."""

FourBytesAlways = CacheBytes.but("bits // 8", "4")
"""`cache_bytes` takes every number for one of 32 bits; `bits` says how many they have."""

LayersForgotten = CacheBytes.but("num_layers * num_kv_heads", "num_kv_heads")
"""`cache_bytes` counts one layer; every layer has keys and values of its own."""

BatchForgotten = CacheBytes.but(
    "tokens = …", "tokens = length if window is None else min(window, length)"
)
"""`cache_bytes` counts one text; each text of the batch has keys and values of its own."""

WindowIgnored = CacheBytes.but("(length if window is None else min(window, length))", "length")
"""`cache_bytes` counts all tokens although there is a window; no more than `window` are kept."""

WindowAlwaysFull = CacheBytes.but("min(window, length)", "window")
"""`cache_bytes` counts the whole window for a text that does not fill it; fewer tokens take
less."""

OwnTokenNotCounted = CacheBytes.but("window,", "window - 1,")
"""`cache_bytes` counts one token too few: the ring holds `window` tokens, the newest among them."""

ChunkBeginsAtTheFirstPlace = CacheBytes.but("(start + i)", "i")
"""`sliding_cache` writes every chunk from the first place on; the place of a token is its position
modulo the window."""

EverythingMoved = CacheBytes.but(
    "place = (start + i) % window",
    "place = window - 1\n"
    "keys, values, positions = keys.roll(-1, 2), values.roll(-1, 2), positions.roll(-1)",
)
"""`sliding_cache` moves all tokens up and writes at the end; in a ring nothing moves, the token at
position t goes to place t % window."""

NewestOverwritten = CacheBytes.but("(start + i) % window", "min(start + i, window - 1)")
"""When the ring is full, `sliding_cache` keeps writing into the last place, over the newest token;
the oldest has to go."""

RingOneShort = CacheBytes.but("(start + i) % window", "(start + i) % (window - 1)")
"""`sliding_cache` goes round after `window` - 1 places, so the last one stays empty; all places are
used."""

BeginningOfThePromptKept = CacheBytes.but("key.shape[2]", "min(key.shape[2], window)")
"""Of a prompt longer than the ring `sliding_cache` keeps the beginning; the newest tokens stay."""

PlacesForPositions = CacheBytes.but("[place] = start + i", "[place] = place")
"""`positions` says which place it is, not which token stands there; write the token's position in
the text."""

PositionsOfTheChunk = CacheBytes.but("[place] = start + i", "[place] = i")
"""`positions` counts from the beginning of the chunk; write the token's position in the text."""

ValuesNotWritten = CacheBytes.but("values[:, :, place] = value[:, :, i]", "")
"""`sliding_cache` writes the keys and leaves the old values in their places; both belong to the new
token."""

RingChangedInPlace = CacheBytes.but("keys, values, positions = …", "")
"""`sliding_cache` writes into the tensors that it was given; return new ones."""


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
"""Only the best candidate of each round goes on, whatever `num_beams` says: that is greedy."""

OneCandidatePerBeam = Beams.but(
    "longer += [(total + gain, [*tokens, token]) for token, gain in enumerate(row)]",
    "own = sorted(((gain, token) for token, gain in enumerate(row)), reverse=True)\n"
    "own = own[: num_beams if not tokens else 1]\n"
    "longer += [(total + gain, [*tokens, token]) for gain, token in own]",
)
"""Each beginning goes on with its own best tokens, so poor beginnings stay alive; the best of all
candidates together go on."""

FinishedAnswersGoOn = Beams.but("done += …\nbeams = …", "beams = longer")
"""An answer that has ended is extended by more tokens; set it aside with its sum."""

FinishedAnswersLost = Beams.but("done + beams", "beams or done")
"""Answers that have ended are dropped, and only those that never end are compared; keep both."""

UnfinishedAnswersLost = Beams.but("done + beams", "done or beams")
"""What has no `eos` after `max_len` tokens is dropped; it counts as an answer too."""

FirstEndWins = Beams.but("not beams", "done or not beams").but("done + beams", "done or beams")
"""The search stops at the first answer that ends; a better one may still be alive."""

PlacesFilledAgain = Beams.but(
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
"""The place of an answer that has ended goes to the next best beginning; it stays empty in that
round, so that `num_beams` candidates are kept, ended ones among them."""

AnEndTakesABeam = Beams.but("longer[:num_beams]", "longer[: num_beams - len(done)]")
"""Each answer that has ended leaves a beam less for all later rounds; every round keeps `num_beams`
candidates."""

StopsAtEnoughEnds = Beams.but("not beams", "not beams or len(done) >= num_beams")
"""The search stops when `num_beams` answers have ended; a better one may still be alive."""

ProbabilitiesAdded = Beams.but(
    "longer += [(total + gain, [*tokens, token]) for token, gain in enumerate(row)]",
    "longer += [\n"
    "    (total + math.exp(gain), [*tokens, token]) for token, gain in enumerate(row)\n"
    "]",
)
"""Probabilities are added up; they are multiplied, so it is their logarithms that are added."""

LogarithmsMultiplied = Beams.but(
    "longer += [(total + gain, [*tokens, token]) for token, gain in enumerate(row)]",
    "longer += [\n"
    "    ((total * gain if tokens else gain), [*tokens, token])\n"
    "    for token, gain in enumerate(row)\n"
    "]",
)
"""Logarithms are multiplied; the logarithm of a product is a sum."""

BestSumReturned = Beams.but(
    "scores = …\nreturn tokens, score",
    "total, tokens = max(done + beams)\nreturn tokens, total / len(tokens) ** alpha",
)
"""The answer with the best sum is returned, and only its score is divided by the length; compare
what is divided."""

ScoreNotDivided = Beams.but("score,", "_,").but(
    "tokens, score", "tokens, next(total for total, own in done + beams if own == tokens)"
)
"""The right answer is chosen, but its sum is returned; the score is divided by the length, too."""

BosCounted = Beams.but("len(tokens)", "(1 + len(tokens))")
"""The length counts `bos`, which was not written; count the tokens that were."""

EosNotCounted = Beams.but(
    "scores = [(total / len(tokens) ** alpha, tokens) for total, tokens in done + beams]",
    "scores = [\n"
    "    (total / max(1, len(tokens) - (tokens[-1] == eos)) ** alpha, tokens)\n"
    "    for total, tokens in done + beams\n"
    "]",
)
"""The length does not count `eos`; it was written, and it has cost something."""

DividedByTheLongest = Beams.but("len(tokens) ** alpha", "max_len**alpha")
"""Sums are divided by `max_len`, the same for all answers; divide each by its own length."""

BeginningDecides = Beams.but(
    "longer[:num_beams]", "longer[: num_beams if len(longer[0][1]) > 1 else 1]"
)
"""The answer is taken from the beginning that was best after the first token; a poor first token
may lead to the best answer."""


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
"""The padding stands on the right, so the last column is padding for the shorter prompts; it
belongs on the left."""

PositionsCountPadding = LeftPadded.but(
    "positions = …", "positions = torch.arange(length).expand(len(prompts), -1)"
)
"""Positions are counted from the first column, padding included, so a prompt's meaning depends on
its neighbours; its first token is 0."""

PositionsBelowZero = LeftPadded.but(
    "positions = (is_real.cumsum(dim=1) - 1).clamp(min=0)",
    "positions = torch.stack([torch.arange(length) - length + len(p) for p in prompts])",
)
"""Padding gets positions below 0, which no table has; it gets 0."""

PositionsFromOne = LeftPadded.but("positions = …", "positions = is_real.cumsum(dim=1)")
"""A prompt's first token has position 1; it is 0, as when the prompt is alone."""

PaddingSeen = LeftPadded.but(
    "mask = (places[:, …", "mask = (places[:, None] >= places).expand(len(prompts), -1, -1)"
)
"""Tokens attend to the padding before them; only a place with padding sees itself."""

MaskUpsideDown = LeftPadded.but("positions, mask", "positions, ~mask")
"""The mask is True where attention is forbidden; True is where it is allowed."""

EmptyRows = LeftPadded.but("mask = mask | (places[:, None] == places)", "")
"""A place with padding sees nothing at all, the softmax of its row is NaN, and spreads; let it see
itself."""

PaddingDoesNotLook = LeftPadded.but("is_real[:, None, :]", "is_real[:, :, None]")
"""The mask hides rows of padding, not columns: real tokens still see it; hide the keys."""

FutureSeen = LeftPadded.but(
    "mask = (places[:, …", "mask = is_real[:, None, :].expand(-1, length, -1)"
)
"""The mask hides padding only, and tokens see those behind them; it is causal as well."""

PaddingByItsNumber = LeftPadded.but(
    "positions = …", "is_real = tokens != pad\npositions = (is_real.cumsum(dim=1) - 1).clamp(min=0)"
)
"""Whatever has the number `pad` is taken for padding, also inside a prompt; how many tokens are
missing is known from the lengths."""

HiddenByItsNumber = LeftPadded.but("is_real[:, None, :]", "(tokens != pad)[:, None, :]")
"""The mask hides whatever has the number `pad`, also inside a prompt; how many tokens are missing is
known from the lengths."""

CutToTheShortest = LeftPadded.but(
    "length = max(map(len, prompts))",
    "length = min(map(len, prompts))\nprompts = [prompt[-length:] for prompt in prompts]",
)
"""All prompts are cut to the length of the shortest; fill the shorter ones up instead."""

ColumnOfRightPadding = LeftPadded.but(
    "return model(*left_padded(prompts, pad))[:, -1]",
    "lengths = torch.tensor([len(prompt) for prompt in prompts])\n"
    "return model(*left_padded(prompts, pad))[torch.arange(len(prompts)), lengths - 1]",
)
"""`next_logits` looks where each prompt would end if the padding were on the right; on the left all
prompts end in the last column."""


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


RatioUpsideDown = Speculative.but("target[i, token] / draft", "draft[i, token] / target")
"""A token is accepted with the probability draft over target; target over draft."""

AcceptedByTheTarget = Speculative.but("[i, token] / draft[i, token]", "[i, token]")
"""A token is accepted with the probability that the target gives it; what counts is target over
draft."""

DrawnFromTheWholeTarget = Speculative.but("F.relu(target[i] - draft[i])", "target[i]")
"""The replacement is drawn from the target as it is, so tokens that the draft likes come too often;
draw from what the target has more of."""

DifferenceWithoutSign = Speculative.but("more = …", "more = (target[i] - draft[i]).abs()")
"""The replacement is drawn from the size of the difference, whichever way it goes; only where the
target has more than the draft."""

RestThroughASoftmax = Speculative.but("more / more.sum()", "more.softmax(dim=0)")
"""What the target has more of goes through a softmax, which gives every token a share; divide it by
its sum."""

DifferenceTheWrongWay = Speculative.but("target[i] - draft", "draft[i] - target")
"""The replacement is drawn from what the draft has more of; it is the target that must get more."""

RestNotNormalised = Speculative.but(
    "edges = torch.cumsum(more / more.sum(), dim=0)\nreturn [*written, int((u >= edges).sum())]",
    "edges = torch.cumsum(more, dim=0)\n"
    "return [*written, int((u >= edges).sum().clamp(max=len(edges) - 1))]",
)
"""What the target has more of is not divided by its sum, and u is compared with shares that do not
reach 1; divide."""

GoesOnAfterARejection = Speculative.but(
    "edges = torch.cumsum(more / more.sum(), dim=0)\nreturn [*written, int((u >= edges).sum())]",
    "edges = torch.cumsum(more / more.sum(), dim=0)\nwritten.append(int((u >= edges).sum()))",
)
"""After a rejected token the next ones are still looked at, though they were drafted behind it; the
replacement ends the round."""

NoTokenForARejectedOne = Speculative.but("more = …\nreturn …", "return written")
"""A rejected token ends the round and nothing is drawn in its place; draw one."""

NoTokenAfterTheLast = Speculative.but(
    "edges = torch.cumsum(target[len(drafted)], …\nreturn …", "return written"
)
"""When all are accepted nothing more is drawn, though the target's last row is there; draw one more
token from it."""

LastDrawFromTheDraft = Speculative.but("target[len(drafted)]", "draft[-1]")
"""The token after the last is drawn from the draft's last row; it comes from the target's."""

LastRowForEveryDraw = Speculative.but("F.relu(target[i] - draft[i])", "target[-1]")
"""The replacement is drawn from the target's last row, which is about another place; take the row
of the rejected token."""

NextRowOfTheTarget = Speculative.but("target[i", "target[i + 1", times=2)
"""The target's rows are read one place too far; row i is about the token `drafted[i]`."""


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
"""The test cuts the text in two; some bugs show from the third chunk on."""

OneByOneOnly = CheckCache.but("in ([1] * 8, [3, 1, 4], [2, 5, 1])", "in ([1] * 8, [4] + [1] * 4)")
"""After a prompt the test reads token by token only; a later chunk may have several tokens, and
then its mask matters."""

LastLogitsOnly = CheckCache.but(
    "logits, at_once[start : start + size]", "logits[-1], at_once[start + size - 1]"
)
"""The test compares the logits of each chunk's last token; a look ahead shows in the others."""

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
"""The text is so short that a small cache holds all of it; a longer one shows what is forgotten."""

NoBranches = CheckCache.but("_, prompt = …\nassert …", "")
"""The test never goes on from one cache twice, so it does not notice a cache that texts share."""

BestTokensOnly = CheckCache.but(
    "allclose(logits, at_once[start : start + size].to(logits), atol=1e-4)",
    "equal(logits.argmax(1), at_once[start : start + size].argmax(1))",
)
"""The test compares the most likely tokens, which survive most bugs; compare all logits."""

NoRounding = CheckCache.but(
    "allclose(logits, at_once[start : start + size].to(logits), atol=1e-4)",
    "equal(logits, at_once[start : start + size].to(logits))",
).but("allclose(first, again, atol=1e-4)", "equal(first, again)")
"""The test allows no rounding, and so condemns a right cache that computes in float32; differences
below 1e-5 are no mistake."""

ShapesOnly = CheckCache.but(
    "assert torch.allclose(logits, …", "assert logits.shape == at_once[start : start + size].shape"
).but("assert torch.allclose(first, …", "assert first.shape == again.shape")
"""The test looks at shapes only, which are right in nearly all broken caches; compare numbers."""

EqualChunks = CheckCache.but("in ([1] * 8, [3, 1, 4], [2, 5, 1])", "in ([1] * 8, [2] * 4, [4, 4])")
"""All chunks of the test are equally long, and an offset that grows by the first one's length fits
them; try chunks of different lengths."""


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
"""The offset still grows by the length of the prompt in every round; it grows by the number of
tokens that were read."""

PositionsOfTheExample = Mended.but(
    "positions = seen + torch.arange(tokens.shape[1]).repeat(len(tokens), 1)",
    "positions = seen + torch.tensor([[0, 1, 2, 3, 4, 5]])[:, : tokens.shape[1]].repeat(\n"
    "    len(tokens), 1\n"
    ")",
)
"""The positions are still those of the example, a prompt of six tokens; make them from the number
of tokens."""

OffsetStandsStill = Mended.but("seen += tokens", "seen = prompt")
"""All new tokens get the position behind the prompt; each stands one further than the one
before."""

OffsetFromZero = Mended.but("seen += tokens.shape[1]", "seen = len(written)")
"""New tokens get positions from 0 on, as if the prompt were not there; they stand behind it."""

OffsetOneTooFar = Mended.but("seen += tokens.shape[1]", "seen += tokens.shape[1] + (seen == 0)")
"""The first new token stands one place too far; behind a prompt of n tokens, at the positions 0 to
n - 1, comes position n."""

EverythingReadAgain = Mended.but(
    "positions = …\nseen += tokens.shape[1]",
    "positions = torch.arange(tokens.shape[1]).repeat(len(tokens), 1)\n"
    "logits, _ = read(tokens, positions, cache)",
).but("written[-1].unsqueeze(1)", "torch.cat([tokens, written[-1].unsqueeze(1)], dim=1)")
"""The whole text is read again for each token, without the cache; with it each token is read
once."""

TextReadTwice = Mended.but("seen + torch", "torch").but(
    "written[-1].unsqueeze(1)", "torch.cat([tokens, written[-1].unsqueeze(1)], dim=1)"
)
"""The whole text is handed over again although the cache holds it already; hand over the newest
token."""

CacheThrownAway = Mended.but("cache = read", "_ = read")
"""The cache that `read` returns is not handed back, so a new token knows nothing of the text before
it."""

PromptReturned = Mended.but(
    "stack(written, dim=1)", "cat([prompt, torch.stack(written, dim=1)], dim=1)"
)
"""The prompt is returned in front of the new tokens; return the new ones only."""
