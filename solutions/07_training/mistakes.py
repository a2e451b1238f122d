"""The named mistakes of chapter 07: what a message can name, and what graders are tested with."""

import math
import re
from collections import Counter

import torch
import torch.nn.functional as F

from classroom.exercise.answers import Correct


# 7.10 -----------------------------------------------------------------------------------------
class BytePairs(Correct, exercise="byte_pairs"):
    def split_words(text):
        return [word.encode() for word in re.findall(r" ?\w+| ?[^\w\s]+|\s", text)]

    def bytes_of(word):
        return [bytes([byte]) for byte in word]

    def joined(pieces, pair):
        done = []
        for piece in pieces:
            if done and (done[-1], piece) == pair:
                done[-1] = [*pair]
            else:
                done.append(piece)
        return [b"".join(piece) if isinstance(piece, list) else piece for piece in done]

    def byte_pairs(words, num_merges):
        spelled, merges = [bytes_of(word) for word in words], []
        for _ in range(num_merges):
            counts = Counter()
            for word in spelled:
                for pair in set(zip(word, word[1:], strict=False)):
                    counts[pair] += len(word) - len(joined(word, pair))
            if not counts:
                break
            best = min(counts, key=lambda pair: (-counts[pair], pair))
            merges.append(best)
            spelled = [joined(word, best) for word in spelled]
        return merges

    def apply_merges(word, merges):
        pieces = bytes_of(word)
        for pair in merges:
            pieces = joined(pieces, tuple(pair))
        return pieces

    def vocabulary(merges):
        return [*bytes_of(range(256)), *(first + second for first, second in merges)]

    def encode(text, merges, special_tokens=()):
        tokens, ids = vocabulary(merges), []
        listed = "|".join(re.escape(token) for token in special_tokens)
        for part in re.split(f"({listed})", text) if listed else [text]:
            if part in special_tokens:
                ids.append(len(tokens) + special_tokens.index(part))
                continue
            for word in split_words(part):
                ids += [tokens.index(piece) for piece in apply_merges(word, merges)]
        return ids

    def decode(ids, merges, special_tokens=()):
        tokens = vocabulary(merges) + [token.encode() for token in special_tokens]
        return b"".join(tokens[i] for i in ids).decode(errors="replace")


EmptyListOfIds = BytePairs.but(
    'return b"".join(tokens[i] for i in ids).decode(errors="replace")',
    "whole = tokens[ids[0]]\n"
    "for i in ids[1:]:\n"
    "    whole += tokens[i]\n"
    'return whole.decode(errors="replace")',
)
"""`decode` begins with the first id, but the empty list of an empty text has none: begin with b"",
or use b"".join."""

OverlapsCountedTwice = BytePairs.but(
    "counts = Counter()…\n        counts[pair] += …",
    "counts = Counter(p for word in spelled for p in zip(word, word[1:], strict=False))",
)
"""In “aaa” the pair (a, a) is counted twice, although its middle character can be used only once:
count a pair as often as it can be merged."""

EqualNeighboursHalved = BytePairs.but(
    "for pair in set(zip(word, word[1:], strict=False)):\n    counts[pair] += …",
    """
    for pair, times in Counter(zip(word, word[1:], strict=False)).items():
        counts[pair] += (times + 1) // 2 if pair[0] == pair[1] else times
    """,
)
"""A pair of equal pieces is counted as half of its occurrences in the whole word, rounded, which
fits one run only: `aabaa` has two runs, and (a, a) can be merged in each. Count run by run, or by
merging."""

MergedAsText = BytePairs.but(
    "pieces = bytes_of(word)\nfor pair in merges:\n    pieces = joined(pieces, tuple(pair))\nreturn pieces",
    'text = b" ".join(bytes_of(word))\n'
    "for first, second in merges:\n"
    '    text = text.replace(first + b" " + second, first + second)\n'
    'return text.split(b" ")',
)
"""`apply_merges` replaces text, so “b g” is also found in “ab g”: a pair is two whole pieces, not
the end of one and the beginning of the next."""

TiesByJoinedBytes = BytePairs.but("-counts[pair], pair)", "-counts[pair], pair[0] + pair[1])")
"""Ties are decided by the joined bytes, first + second; compare the pairs as tuples, by their first
pieces first: (b"a", b"z") comes before (b"ab", b"c")."""

TiesGoToTheFirstSeen = BytePairs.but("pair in set", "pair in dict.fromkeys").but(
    "min(counts, key=lambda pair: (-counts[pair], pair))", "max(counts, key=counts.get)"
)
"""Among equally frequent pairs, the first one in the text is taken; take the first in alphabetical
order, so that the order of the words does not matter."""

TiesGoToTheLastPair = BytePairs.but(
    "best = …", "best = max(counts, key=lambda pair: (counts[pair], pair))"
)
"""Among equally frequent pairs, the last one in alphabetical order is taken (max of count and
pair); take the first."""

PairsAcrossWords = (
    BytePairs.but("spelled, merges = …", 'text, merges = bytes_of(b"".join(words)), []')
    .but(
        "for word in spelled:…\n        counts[pair] += …",
        "for pair in set(zip(text, text[1:], strict=False)):\n"
        "    counts[pair] += len(text) - len(joined(text, pair))",
    )
    .but("spelled = …", "text = joined(text, best)")
)
"""The words are concatenated, so the last character of one and the first of the next are counted as
neighbours; count inside each word."""

EachWordCountedOnce = BytePairs.but("word in words", "word in set(words)")
"""A word that occurs several times is counted once; count every occurrence."""

RunsCountedOnce = BytePairs.but(
    "for pair in set(zip(word, word[1:], strict=False)):\n    counts[pair] += …",
    """
    previous = None
    for pair in zip(word, word[1:], strict=False):
        counts[pair] += pair != previous
        previous = pair
    """,
)
"""A pair is not counted again if it follows itself at once: in `aaaa`, the pair `a, a`
can be merged twice."""

PairsCountedOncePerWord = BytePairs.but("len(word) - len(joined(word, pair))", "1")
"""A pair is counted once in each word; count it as often as it can be merged there."""

PairsNeverRecounted = BytePairs.but(
    "spelled, merges = …\nreturn merges",
    """
    counts = Counter()
    for word in words:
        for pair in set(zip(bytes_of(word), bytes_of(word)[1:], strict=False)):
            counts[pair] += len(word) - len(joined(bytes_of(word), pair))
    return sorted(counts, key=lambda pair: (-counts[pair], pair))[:num_merges]
    """,
)
"""The most frequent pairs of characters are taken all at once; after each merge, the pieces have
new neighbours and must be counted again."""

OnlyRepeatedPairs = BytePairs.but("not counts", "not counts or max(counts.values()) < 2")
"""Learning stops when no pair occurs twice; continue until no pair is left or enough merges are
learned."""

OneMergePerWord = BytePairs.but(
    'def joined…\n    return [b"".join(piece) …',
    """
    def joined(pieces, pair):
        for place in range(len(pieces) - 1):
            if tuple(pieces[place : place + 2]) == pair:
                return [*pieces[:place], pair[0] + pair[1], *pieces[place + 2 :]]
        return pieces

    def times(pieces, pair):
        count, place = 0, 0
        while place < len(pieces) - 1:
            found = tuple(pieces[place : place + 2]) == pair
            count += found
            place += 1 + found
        return count
    """,
).but("len(word) - len(joined(word, pair))", "times(word, pair)")
"""A merge is applied only to the first occurrence of its pair in a word; apply it to all of
them."""

MergedFromTheRight = BytePairs.but(
    "done = []…\nreturn …",
    """
    pieces, place = list(pieces), len(pieces) - 2
    while place >= 0:
        if tuple(pieces[place : place + 2]) == pair:
            pieces[place : place + 2] = [b"".join(pair)]
        place -= 1
    return pieces
    """,
)
"""A merge goes through a word from its end, so “aaa” becomes a, aa; go from left to right, so that
“aaa” becomes aa, a."""

LongestPieceFirst = BytePairs.but(
    "pieces = bytes_of(word)\nfor pair in merges:\n    pieces = joined(pieces, tuple(pair))",
    """
    known, pieces = {a + b for a, b in merges}, []
    while word:
        length = max((n for n in range(2, len(word) + 1) if word[:n] in known), default=1)
        pieces.append(word[:length])
        word = word[length:]
    """,
)
"""`apply_merges` takes the longest known piece from the front of the word; apply the merges in the
order in which they were learned."""

LeftmostPairFirst = BytePairs.but(
    "pieces = bytes_of(word)\nfor pair in merges:\n    pieces = joined(pieces, tuple(pair))",
    """
    known, pieces = {tuple(pair) for pair in merges}, bytes_of(word)
    place = 0
    while place < len(pieces) - 1:
        if (pieces[place], pieces[place + 1]) in known:
            pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
            place = 0
        else:
            place += 1
    """,
)
"""`apply_merges` merges the leftmost known pair; apply the merge that was learned first, wherever
its pair is."""

MostFrequentPairFirst = BytePairs.but(
    "pieces = bytes_of(word)…\nreturn pieces",
    """
    known, pieces = {tuple(pair) for pair in merges}, bytes_of(word)
    while True:
        counts = Counter(p for p in zip(pieces, pieces[1:], strict=False) if p in known)
        if not counts:
            return pieces
        pieces = joined(pieces, min(counts, key=lambda pair: (-counts[pair], pair)))
    """,
)
"""`apply_merges` counts pairs in the word and merges the most frequent known one; apply the merges
in the order in which they were learned."""

SpacesDropped = BytePairs.but("re.findall(…)", "text.split()")
"""The spaces between words are dropped, so the text cannot be restored: a word keeps the space
before it, and every other space is a word."""

SpacesAfterWords = BytePairs.but("re.findall(…)", r"""re.findall(r"\w+ ?|[^\w\s]+ ?|\s", text)""")
"""Words keep the space after them; they should keep the one before them."""

ManySpacesInAWord = BytePairs.but(
    "re.findall(…)", r"""re.findall(r"\s*\w+|\s*[^\w\s]+|\s", text)"""
)
"""A word takes all spaces before it; it should take one at most, and every other space is a
word."""

PunctuationInWords = BytePairs.but("re.findall(…)", r"""re.findall(r" ?\S+|\s", text)""")
"""Punctuation stays in the same word as the letters beside it; letters, digits and underscores are
one kind of word, other visible characters another."""

EncodedAcrossWords = BytePairs.but("in split_words(part)", "in [part.encode()]")
"""`encode` applies the merges to the whole text, so tokens reach from one word into the next: split
the text into words first."""

SpecialTokensSpelledOut = BytePairs.but(
    'in re.split(f"({listed})", text) if listed else [text]', "in [text]"
)
"""Special tokens inside the text are split into bytes; each one that is listed has one id."""

SpecialTokensNotEscaped = BytePairs.but("re.escape(token)", "token")
"""Special tokens are used as patterns, in which “|” means “or”: put each through `re.escape`."""

SplitAtAnEmptyPattern = BytePairs.but(" if listed else [text]", "")
"""Without special tokens the pattern is empty, and `re.split` cuts at every character, so nothing
is merged: split only if there are special tokens."""

SpecialTokensBeforeMerges = (
    BytePairs.but("len(tokens) + special_tokens.index(part)", "256 + special_tokens.index(part)")
    .but(
        "tokens.index(piece) for",
        "tokens.index(piece) + len(special_tokens) * (len(piece) > 1) for",
    )
    .but(
        "tokens = vocabulary(merges) + [token.encode() for token in special_tokens]",
        "tokens = vocabulary(merges)\n"
        "tokens[256:256] = [token.encode() for token in special_tokens]",
    )
)
"""Special tokens have the ids from 256 on; the merges come first, and the special tokens have the
last ids."""

SpecialTokensNotDecoded = BytePairs.but("[token.encode() for token in special_tokens]", "[b''] * 9")
"""`decode` omits special tokens; it should return them as text."""

TokensDecodedAlone = BytePairs.but(
    'return b"".join(tokens[i] for i in ids).decode(errors="replace")',
    'return "".join(tokens[i].decode(errors="replace") for i in ids)',
)
"""Each token is decoded alone, although it may end inside a character: join the bytes of all tokens
first."""

InvalidBytesRefused = BytePairs.but('decode(errors="replace")', "decode()")
"""`decode` raises an error for bytes that are invalid UTF-8; they should become replacement
characters, as a model may generate any ids."""

InvalidBytesDropped = BytePairs.but('errors="replace"', 'errors="ignore"')
"""Bytes that are invalid UTF-8 are dropped; they should become replacement characters."""


# 7.1 ------------------------------------------------------------------------------------------
class Batch(Correct, exercise="get_batch"):
    def cut(tokens, num_held_out):
        num_train = len(tokens) - num_held_out
        return tokens[:num_train], tokens[num_train:]

    def starts_from(draws, num_tokens, length):
        return (draws * (num_tokens - length)).long()

    def get_batch(tokens, starts, length):
        places = starts[:, None] + torch.arange(length)
        return tokens[places], tokens[places + 1]


TargetsNotShifted = Batch.but(
    "places = starts[:, None] + torch.arange(length)\nreturn tokens[places], tokens[places + 1]",
    "inputs = torch.stack([tokens[start : start + length] for start in starts.tolist()])\n"
    "return inputs, inputs",
)
"""The targets are the windows themselves, so the model predicts its own input: each target
should be the next token."""

OneStartTooManyThenClamped = Batch.but(
    "return (draws * (num_tokens - length)).long()",
    "starts = (draws * (num_tokens - length + 1)).long()\n"
    "return starts.clamp(max=num_tokens - length - 1)",
)
"""One position too many is counted and then clamped to the last one, which is drawn twice as often:
multiply by the number of possible positions."""

TargetsShiftedTwice = Batch.but("places + 1", "places + 2")
"""The targets are two positions ahead, and beyond the end of the text for the last window: each
target should be the next token."""

TargetsShiftedBackwards = Batch.but("[places], tokens[places + 1]", "[places + 1], tokens[places]")
"""The targets are the previous tokens, which the model has already seen: each target should be the
next token."""

TargetsRolledAround = Batch.but(
    "places = starts[:, None] + torch.arange(length)\nreturn tokens[places], tokens[places + 1]",
    "inputs = torch.stack([tokens[start : start + length] for start in starts.tolist()])\n"
    "return inputs, inputs.roll(-1, dims=1)",
)
"""The windows are rolled by one, so the last target of each is its own first token; it should be
the token after the window."""

LastStartNeverDrawn = Batch.but("- length", "- length - 1")
"""The last position where a window and its targets fit is never drawn, so the last token of the
text is never a target: there are num_tokens - length positions."""

OneStartTooMany = Batch.but("- length", "- length + 1")
"""A window may begin so late that its last target is beyond the end of the text: the window fits
there, but its targets do not."""

StartAnywhere = Batch.but("(num_tokens - length)", "num_tokens")
"""The draws are multiplied by num_tokens, so a window may begin at any token, and the last windows
do not fit: there are num_tokens - length positions."""

StartAtAnyTokenWithTarget = Batch.but("(num_tokens - length)", "(num_tokens - 1)")
"""A window may begin at any token but the last, as if windows had length 1: the token after the
whole window must exist, so there are num_tokens - length positions."""

StartsRounded = Batch.but("long()", "round().long()")
"""The draws are rounded to the nearest position instead of down, so one position too many is
possible, and both ends are drawn half as often."""

RoundedToTheNearestStart = Batch.but(
    "(draws * (num_tokens - length)).long()", "(draws * (num_tokens - length - 1)).round().long()"
)
"""The draws are rounded to the nearest start, so the first and the last are drawn half as often as
the others: multiply by the number of starts and round down."""

SliceToMinusZero = Batch.but(
    "num_train = …\nreturn …", "return tokens[:-num_held_out], tokens[-num_held_out:]"
)
"""With nothing held out, `tokens[:-0]` is `tokens[:0]`, so the training part is empty: count from
the beginning of the text."""

TrainedOnTheHeldOutPart = Batch.but("tokens[:num_train]", "tokens")
"""The training part is the whole text, including the held-out part: it must end where the held-out
part begins."""

ShuffledBeforeTheCut = Batch.but(
    "return tokens[:num_train], tokens[num_train:]",
    "order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0))\n"
    "shuffled = tokens[order]\n"
    "return shuffled[:num_train], shuffled[num_train:]",
)
"""The tokens are shuffled before the split: this destroys the order of the text, and the training
part would contain neighbours of held-out tokens."""

TheBeginningHeldOut = Batch.but(
    "tokens[:num_train], tokens[num_train:]", "tokens[num_held_out:], tokens[:num_held_out]"
)
"""The beginning of the text is held out; hold out its end."""


# 7.2 ------------------------------------------------------------------------------------------
class AdamW(Correct, exercise="adamw_step"):
    def adamw_step(
        parameter, gradient, mean, mean_square, step, lr, beta1, beta2, eps, weight_decay
    ):
        mean = beta1 * mean + (1 - beta1) * gradient
        mean_square = beta2 * mean_square + (1 - beta2) * gradient**2
        size = (mean_square / (1 - beta2**step)).sqrt() + eps
        parameter = parameter * (1 - lr * weight_decay)
        return parameter - lr * (mean / (1 - beta1**step)) / size, mean, mean_square


class UpdateByTorch(AdamW):
    """Torch's optimizer makes the update here: this exercise is to be done by hand."""

    def adamw_step(
        parameter, gradient, mean, mean_square, step, lr, beta1, beta2, eps, weight_decay
    ):
        from torch.optim.adamw import adamw

        values = [tensor.clone() for tensor in (parameter, gradient, mean, mean_square)]
        options = {"amsgrad": False, "maximize": False, "foreach": False}
        options |= {"beta1": beta1, "beta2": beta2, "lr": lr, "eps": eps}
        steps = [torch.tensor(step - 1.0)]
        adamw(*([v] for v in values), [], steps, weight_decay=weight_decay, **options)
        return values[0], values[2], values[3]


DecayInTheGradient = AdamW.but("):", "):\n    gradient = gradient + weight_decay * parameter").but(
    "parameter = parameter * (1 - lr * weight_decay)", ""
)
"""The decay is added to the gradient, so it is averaged and divided like the gradient: AdamW
applies the decay directly to the parameter, which is what the W stands for."""

NoBiasCorrection = AdamW.but("size = (mean_square / (1 - beta2**step)).sqrt() + eps", "").but(
    "(mean / (1 - beta1**step)) / size", "mean / (mean_square.sqrt() + eps)"
)
"""The bias correction is missing. The averages start at zero and are too small: divide each by 1 -
beta**step."""

SquaresCorrectedWithBeta1 = AdamW.but("beta2**step", "beta1**step")
"""The bias correction of the squares uses beta1; each average is corrected with its own beta."""

CorrectionCountsFromZero = AdamW.but("beta2**step", "beta2 ** (step - 1)").but(
    "beta1**step", "beta1 ** (step - 1)"
)
"""The bias correction counts updates from 0, so the first one divides by 0: use `step` as it is,
because it counts from 1."""

CorrectionOneUpdateLate = AdamW.but("beta2**step", "beta2 ** (step + 1)").but(
    "beta1**step", "beta1 ** (step + 1)"
)
"""The bias correction counts one update too many: use `step` as it is, because it counts from
1."""

EpsilonInsideTheRoot = AdamW.but(
    "size = …", "size = (mean_square / (1 - beta2**step) + eps).sqrt()"
)
"""eps is added under the square root; add it to the square root."""

EpsilonBeforeTheCorrection = AdamW.but(
    "size = …", "size = (mean_square.sqrt() + eps) / math.sqrt(1 - beta2**step)"
)
"""eps is added before the bias correction and divided along with the square root; add it to the
corrected square root."""

EpsilonForgotten = AdamW.but("() + eps", "()")
"""eps is missing, so where all gradients were zero, 0 is divided by 0: add it to the square
root."""

ProductInsteadOfPower = AdamW.but("beta2**step", "beta2 * step").but("beta1**step", "beta1 * step")
"""The bias correction multiplies beta by the number of the update; use the power, beta**step, which
never exceeds 1."""

SecondAverageNotSquared = AdamW.but("gradient**2", "gradient").but("sqrt()", "abs().sqrt()")
"""The second average is of the gradient; it must be of the squared gradient."""

MagnitudeInsteadOfSquare = AdamW.but("gradient**2", "gradient.abs()")
"""The second average is of the magnitude of the gradient, |g|; it must be of its square, because a
square root follows."""

RootForgotten = AdamW.but("size = …", "size = mean_square / (1 - beta2**step) + eps")
"""The mean is divided by the mean square; divide by its square root."""

DecayWithoutTheRate = AdamW.but("lr * weight_decay", "weight_decay")
"""The parameter shrinks by the fraction weight_decay at every update; it should shrink by lr *
weight_decay, so that the decay follows the schedule."""

DecayWithTheWrongSign = AdamW.but("1 - lr * weight_decay", "1 + lr * weight_decay")
"""The decay makes the parameter larger: subtract lr * weight_decay * parameter, which pulls it
towards 0."""

ZeroGradientTakenForNoUpdate = AdamW.but(
    "return parameter - lr * (mean / (1 - beta1**step)) / size, mean",
    "moved = parameter - lr * (mean / (1 - beta1**step)) / size\n"
    "return torch.where(gradient == 0, parameter, moved), mean",
)
"""Entries with gradient 0 do not move; the mean of earlier gradients should still move them."""

VectorsNotDecayed = AdamW.but(
    "(1 - lr * weight_decay)", "(1 - lr * weight_decay * (parameter.dim() > 1))"
)
"""Only matrices decay here; the caller chooses which parameters decay, so apply the decay to any
shape."""

StepUphill = AdamW.but("parameter - lr * (mean", "parameter + lr * (mean")
"""The step along the gradient is added, so the loss rises: subtract it."""

WholeUpdateAdded = AdamW.but("1 - lr * weight_decay", "1 + lr * weight_decay").but(
    "parameter - lr * (mean", "parameter + lr * (mean"
)
"""The whole update is added, the decay included: subtract lr times both, so that the loss falls and
the parameter is pulled towards 0."""

DecayOfTheUpdatedParameter = AdamW.but(
    "parameter = …", "parameter = parameter - lr * (mean / (1 - beta1**step)) / size"
).but("return …", "return parameter - lr * weight_decay * parameter, mean, mean_square")
"""The decay is computed from the updated parameter; compute it from the parameter before the
update."""

BetasExchanged = AdamW.but("):", "):\n    beta1, beta2 = beta2, beta1")
"""beta1 and beta2 are exchanged: beta1 belongs to the mean, beta2 to the mean square."""

CorrectedAveragesKept = AdamW.but(
    "mean = …\nsize = …",
    "mean = (beta1 * mean + (1 - beta1) * gradient) / (1 - beta1**step)\n"
    "mean_square = (beta2 * mean_square + (1 - beta2) * gradient**2) / (1 - beta2**step)",
).but("(mean / (1 - beta1**step)) / size", "mean / (mean_square.sqrt() + eps)")
"""The corrected averages are returned, and would be corrected again at the next update: use them
for the step, but return the uncorrected ones."""

ChangedInPlace = (
    AdamW.but("mean = …", "mean.mul_(beta1).add_(gradient, alpha=1 - beta1)")
    .but("mean_square = …", "mean_square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)")
    .but(
        "parameter = …",
        "parameter.mul_(1 - lr * weight_decay).sub_(lr * (mean / (1 - beta1**step)) / size)",
    )
    .but("parameter - lr * (mean / (1 - beta1**step)) / size", "parameter")
)
"""The inputs are changed in place; return new tensors."""


# 7.3 ------------------------------------------------------------------------------------------
class Rate(Correct, exercise="learning_rate"):
    def learning_rate(step, peak, warmup_steps, total_steps, final):
        if step < warmup_steps:
            return peak * (step + 1) / (warmup_steps + 1)
        progress = min(1.0, (step - warmup_steps) / (total_steps - 1 - warmup_steps))
        return final + (peak - final) * (1 + math.cos(math.pi * progress)) / 2


FirstUpdateHasRateZero = Rate.but("(step + 1) / (warmup_steps + 1)", "step / warmup_steps")
"""The warm-up begins at 0, and an update with rate 0 changes nothing: steps are counted from 0, so
the first one has the rate peak / (warmup_steps + 1)."""

PeakOneUpdateEarly = Rate.but("(warmup_steps + 1)", "warmup_steps")
"""The last update of the warm-up already has the peak; the peak comes at the next update, step
warmup_steps."""

CosineFromTheFirstStep = Rate.but("progress = …", "progress = min(1.0, step / (total_steps - 1))")
"""The cosine is counted from step 0, so the rate drops suddenly when the warm-up ends: the decay
takes only the steps after the warm-up."""

FinalRateForgotten = Rate.but("final + (peak - final)", "peak")
"""The rate falls to 0; it should end at `final`."""

FinalRateAsALowerBound = Rate.but(
    "return final …", "return max(final, peak * (1 + math.cos(math.pi * progress)) / 2)"
)
"""The cosine falls to 0 and is cut off at `final`; it should itself end at `final`: scale it by
peak - final."""

NeverBelowFinal = Rate.but(
    "return peak * (step + 1) / (warmup_steps + 1)",
    "return max(final, peak * (step + 1) / (warmup_steps + 1))",
)
"""The rate is never below `final`, not even in the warm-up: the warm-up begins at
peak / (warmup_steps + 1), however high `final` is."""

FinalRateAddedToTheCosine = Rate.but("(peak - final)", "peak")
"""`final` is added to the whole cosine, so the decay begins above the peak: scale the cosine by
peak - final."""

FinalAsFraction = Rate.but(
    "progress = …\nreturn …",
    "progress = (step - warmup_steps) / (total_steps - 1 - warmup_steps)\n"
    "return peak * (final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2)",
)
"""`final` is treated as a fraction of the peak, but it is itself a learning rate: go from `peak` to
`final`, and stay there after the last step."""

IntegerDivision = Rate.but("(step - warmup_steps) / (total", "(step - warmup_steps) // (total")
"""The progress is an integer division, so it stays at 0, and the rate at the peak, until the last
step: divide with /."""

PiForgotten = Rate.but("math.pi * progress", "progress")
"""The angle is the progress alone, so it ends at 1: half a period is pi."""

WholePeriod = Rate.but("math.pi * progress", "2 * math.pi * progress")
"""The angle runs to 2 pi, a whole period, so the rate falls and rises again before the end: half a
period is pi."""

CosineUpsideDown = Rate.but("(1 + math.cos", "(1 - math.cos")
"""The cosine is upside down, so the rate begins at `final` and rises: 1 + cos goes from 2 to 0."""

AngleInDegrees = Rate.but("math.pi", "180")
"""The angle runs to 180; `cos` takes radians, so half a period is pi."""

EndsOneUpdateLate = Rate.but("1 - warmup_steps", "warmup_steps")
"""The last update, step total_steps - 1, does not reach `final`: shorten the decay by one step."""

FinalOneStepLate = Rate.but(
    "progress = …",
    "if step > total_steps:\n    return final\n"
    "progress = (step - warmup_steps) / (total_steps - 1 - warmup_steps)",
)
"""Step total_steps still follows the cosine, which rises again there: the last step of the decay is
total_steps - 1, and all steps after it have `final`."""

RateRisesAgain = Rate.but(
    "progress = …", "progress = (step - warmup_steps) / (total_steps - 1 - warmup_steps)"
)
"""After the last update, the cosine continues and the rate rises again; it should stay at
`final`."""

LinearDecay = Rate.but("return final …", "return peak + (final - peak) * progress")
"""The rate falls linearly; it should follow half a cosine."""

QuarterOfACosine = Rate.but(
    "(1 + math.cos(math.pi * progress)) / 2", "math.cos(math.pi * progress / 2)"
)
"""The angle covers only a quarter of a period, so the rate falls fastest at the end: half a cosine
goes from 1 to -1 and is rescaled to go from 1 to 0."""


# 7.4 ------------------------------------------------------------------------------------------
class Clip(Correct, exercise="clip_gradients"):
    def clip_gradients(gradients, max_norm):
        norm = torch.cat([g.flatten() for g in gradients if g is not None]).norm()
        if not norm.isfinite():
            raise ValueError(f"the gradients must be finite, got a norm of {norm}")
        factor = min(1.0, max_norm / norm)
        return [g if g is None else g * factor for g in gradients], norm


EachTensorClippedByItself = Clip.but(
    "factor = …\nreturn …",
    "return [\n"
    "    g if g is None else g * (max_norm / g.norm().clamp(min=max_norm)) for g in gradients\n"
    "], norm",
)
"""Each gradient is clipped by its own norm, which changes the direction of the step: use one norm,
of all entries of all gradients, and one factor."""

SmallTensorsNotScaled = Clip.but(
    "factor = …\nreturn …",
    "factor = min(1.0, max_norm / norm)\n"
    "return [g if g is None or g.norm() <= max_norm else g * factor for g in gradients], norm",
)
"""Only gradients whose own norm exceeds max_norm are scaled, which changes the direction and leaves
the global norm too large: multiply all of them by the same factor."""

ClippedByValue = Clip.but(
    "factor = …\nreturn …",
    "return [g if g is None else g.clamp(-max_norm, max_norm) for g in gradients], norm",
)
"""Every entry is clamped to max_norm, which changes the direction; scale all entries by one
factor."""

SmallGradientsScaledUp = Clip.but(
    "factor = …\nreturn …",
    "return [g if g is None else g * (max_norm / (norm + 1e-12)) for g in gradients], norm",
)
"""Gradients with a norm below max_norm are scaled up to it; they should stay unchanged."""

ZeroDividedByZero = Clip.but(
    "factor = …\nreturn …",
    "return [g if g is None else g / norm * norm.clamp(max=max_norm) for g in gradients], norm",
)
"""Gradients that are all zero are divided by their norm, and zero divided by zero is NaN: if the
norm does not exceed max_norm, do not divide."""

NormsAddedUp = Clip.but("norm = …", "norm = sum(g.norm() for g in gradients if g is not None)")
"""The norms of the gradients are added up; the global norm is the square root of the sum of their
squares."""

SquareRootForgotten = Clip.but(
    "norm = …", "norm = sum(g.square().sum() for g in gradients if g is not None)"
)
"""The sum of the squares is used as the norm: take its square root."""

RootOfTheMeanSquare = Clip.but(".norm()", ".square().mean().sqrt()")
"""The root of the mean square (RMS) is used as the norm: add up the squares of all entries; do not
average them."""

MeanOfNorms = Clip.but(
    "norm = …", "norm = torch.stack([g.norm() for g in gradients if g is not None]).mean()"
)
"""The norms of the gradients are averaged; the global norm is the square root of the sum of their
squares."""

LargestNorm = Clip.but("norm = …", "norm = max(g.norm() for g in gradients if g is not None)")
"""The largest norm of a gradient is used; the global norm is the square root of the sum of the
squares of all of them."""

NormInFloat32 = Clip.but("], norm", "], torch.tensor(float(norm))")
"""The norm goes through a Python number and comes back as float32; keep the dtype of the gradients,
or return the number."""

NormAfterClipping = Clip.but(
    "return …", "return [g if g is None else g * factor for g in gradients], norm * factor"
)
"""The returned norm is the one after clipping, which is not informative: return the norm before
clipping."""

FrozenParametersGetZeros = Clip.but("g if g is None else g", "torch.zeros(()) if g is None else g")
"""A frozen parameter gets a gradient of zeros, so an optimizer would apply weight decay to it:
return None for None."""

FrozenParametersDropped = Clip.but(
    "norm = …",
    "kept = [g for g in gradients if g is not None]\n"
    "norm = torch.cat([g.flatten() for g in kept]).norm()",
).but("factor = …\nreturn …", "return [g * min(1.0, max_norm / norm) for g in kept], norm")
"""Frozen parameters are omitted from the list, so every later gradient goes to the wrong parameter:
keep None in its place."""

FrozenParametersDroppedBelowTheMaximum = Clip.but(
    "factor = …",
    "if norm <= max_norm:\n    return [g for g in gradients if g is not None], norm\nfactor = max_norm / norm",
)
"""If nothing needs clipping, frozen parameters are omitted from the list: keep None in its
place."""

CrashesOnNone = Clip.but(" for g in gradients if g is not None", " for g in gradients").but(
    "g if g is None else g * factor", "g * factor"
)
"""The gradient of a frozen parameter is None, which has no norm and cannot be multiplied: skip None
in the norm, and return it as it is, in its place."""

NonFiniteGradientsLetThrough = Clip.but("if not norm.isfinite():\n    raise …", "")
"""With one NaN or infinite entry, the norm is not finite either, and scaling makes every gradient
NaN or zero: raise ValueError instead."""

NanLetThrough = Clip.but("not norm.isfinite()", "norm == math.inf")
"""Infinite entries are rejected, but NaN is not: a comparison with NaN is always false, so test
with isfinite."""

OnlyTheFirstGradientTested = Clip.but("norm.isfinite()", "gradients[0].isfinite().all()")
"""Only the first gradient is tested for NaN and infinity: test the norm, which one bad entry of any
gradient makes NaN or infinite."""

InfinityLetThrough = Clip.but("not norm.isfinite()", "norm.isnan()")
"""NaN is rejected, but an infinite entry is not, and it scales every other one to zero: test with
isfinite."""

GradientsScaledInPlace = Clip.but("g * factor", "g.mul_(factor)")
"""The input gradients are scaled in place; return new tensors."""


# 7.5 ------------------------------------------------------------------------------------------
class Accumulated(Correct, exercise="accumulated_gradients"):
    def accumulated_gradients(model, weight, parts):
        leaf = weight.clone().requires_grad_()
        count = sum((targets != -100).sum() for _, targets in parts)
        gradient, loss = torch.zeros_like(weight), 0.0
        for x, targets in parts:
            logits = model(leaf, x).mT
            part = F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum") / count
            gradient = gradient + torch.autograd.grad(part, leaf)[0]
            loss = loss + part.detach()
        return gradient, loss


MeanOfMeans = Accumulated.but("count = …", "").but(
    "logits = …\npart = …",
    "part = F.cross_entropy(model(leaf, x).mT, targets, ignore_index=-100) / len(parts)",
)
"""The means of the parts are averaged, so a target has more weight in a part with few targets that
count: add up sums, and divide by the number of targets that count in all parts."""

MeansAddedUp = Accumulated.but("count = …", "").but(
    "logits = …\npart = …", "part = F.cross_entropy(model(leaf, x).mT, targets, ignore_index=-100)"
)
"""The means of the parts are added up, so the gradient grows with the number of parts: return the
gradient of one mean over all targets."""

NeverDivided = Accumulated.but("count = …", "").but(
    "part = …", 'part = F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")'
)
"""The losses are summed and never divided: the mean loss divides by the number of targets that
count."""

MeansWeightedBySequences = Accumulated.but(
    "count = …", "count = sum(len(targets) for _, targets in parts)"
).but(
    "part = …",
    "part = F.cross_entropy(logits, targets, ignore_index=-100) * len(targets) / count",
)
"""The means of the parts are weighted by their numbers of sequences; weight them by their numbers
of targets that count, or add sums and divide once."""

TokenZeroNotCounted = Accumulated.but("targets != -100", "targets > 0")
"""Targets of token 0 are in the sum but not in the number by which it is divided: count what is not
-100."""

GradientLeftOnTheWeight = Accumulated.but(
    "weight.clone().requires_grad_()", "weight.requires_grad_()"
).but(
    "gradient = gradient + torch.autograd.grad(part, leaf)[0]",
    "part.backward()\ngradient = leaf.grad",
)
"""The gradient is accumulated in `weight` itself, which belongs to the caller: a second call would
add to it. Differentiate with respect to a clone."""

RunningMeanFromAnIgnoredPart = Accumulated.but(
    "count = …\nreturn gradient, loss",
    """
    gradient, loss, seen = torch.zeros_like(weight), 0.0, 0
    for x, targets in parts:
        count = (targets != -100).sum()
        total = F.cross_entropy(model(leaf, x).mT, targets, ignore_index=-100, reduction="sum")
        part = total / count.clamp(min=1)
        seen = seen + count
        gradient = gradient + count / seen * (torch.autograd.grad(part, leaf)[0] - gradient)
        loss = loss + count / seen * (part.detach() - loss)
    return gradient, loss
    """,
)
"""A running mean divides by the number of targets seen so far, which is 0 until a target counts,
and 0 / 0 is NaN: divide sums by the number of targets that count in all parts."""

EpsilonInTheLogarithm = Accumulated.but(
    "part = …",
    "log_p = torch.log(logits.softmax(dim=1) + 1e-12)\n"
    'part = F.nll_loss(log_p, targets, ignore_index=-100, reduction="sum") / count',
)
"""A small number is added to the probabilities, so the loss of a very improbable target stops
growing: compute the logarithm from the logits, by F.cross_entropy or log_softmax."""

IgnoredTargetsCounted = Accumulated.but("(targets != -100).sum", "targets.numel")
"""The sum is divided by the number of all targets, the ignored ones included: average only over
those that count."""

GradientOverwritten = Accumulated.but("gradient + torch", "torch")
"""Each part's gradient replaces the previous one, as if gradients were zeroed inside the loop: add
them up, and zero them after the update."""

EarlierPartsCountedAgain = Accumulated.but(
    "gradient, loss = …\nreturn gradient, loss",
    """
    gradient, loss = torch.zeros_like(weight), torch.zeros((), dtype=weight.dtype)
    for x, targets in parts:
        logits = model(leaf, x).mT
        part = F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum") / count
        loss = loss + part
        gradient = gradient + torch.autograd.grad(loss, leaf, retain_graph=True)[0]
    return gradient, loss.detach()
    """,
)
"""The gradient of the accumulated loss is added after each part, so the first part is counted as
often as there are parts: add the gradient of each part once."""

PartOfTokenZeroSkipped = Accumulated.but(
    "logits = …", "if targets.max() <= 0:\n    continue\nlogits = model(leaf, x).mT"
)
"""A part is skipped if no target in it is larger than 0, as if token 0 did not count: skip it only
if every target is -100, or not at all."""

LastPartDropped = Accumulated.but("x, targets in parts", "x, targets in parts[:-1]")
"""The last part is omitted; every part belongs to the batch."""

MeansWeightedByCount = Accumulated.but(
    "logits = …\npart = …",
    "part = F.cross_entropy(model(leaf, x).mT, targets, ignore_index=-100)\n"
    "part = part * (targets != -100).sum() / count",
)
"""The mean of each part is weighted by its count, but the mean of nothing is NaN, and zero times
NaN is NaN. Divide sums instead."""


class AllPartsAtOnce(Accumulated):
    """The parts are concatenated and go through the model at once, but the batch was split because
    it does not fit in memory."""

    def accumulated_gradients(model, weight, parts):
        leaf = weight.clone().requires_grad_()
        x = torch.cat([x.flatten(0, 1) for x, _ in parts])[None]
        targets = torch.cat([targets.flatten() for _, targets in parts])[None]
        loss = F.cross_entropy(model(leaf, x).mT, targets, ignore_index=-100)
        return torch.autograd.grad(loss, leaf)[0], loss.detach()


# 7.6 ------------------------------------------------------------------------------------------
class LowPrecision(Correct, exercise="low_precision"):
    def rms_norm(x, gain, eps):
        wide = x.float()
        scale = (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
        return (wide * scale * gain).to(x.dtype)

    def token_losses(logits, targets):
        return F.cross_entropy(logits.float().mT, targets, reduction="none")

    def master_step(master, gradient, lr):
        master = master - lr * gradient.float()
        return master, master.bfloat16()


StatisticsInHalfPrecision = LowPrecision.but(
    "wide = x.float()…\nreturn …",
    "return x * (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * gain.to(x.dtype)",
)
"""The squares or their mean are in half precision, which cannot represent them: convert the input
to float32 before squaring, and back at the end."""

SquaresInHalfPrecision = LowPrecision.but(
    "wide = x.float()…\nreturn …",
    "mean = x.square().float().mean(dim=-1, keepdim=True)\n"
    "return (x.float() * (mean + eps).rsqrt() * gain).to(x.dtype)",
)
"""The mean is computed in float32, but from squares in half precision, which are already infinite
or zero: convert before squaring, not after."""

NormNotCastBack = LowPrecision.but(
    "wide = x.float()…\nreturn …",
    "x = x.float()\nreturn x * (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * gain",
)
"""The norm returns float32, so everything after it would be computed in float32 as well: cast the
result back to the dtype of the input."""

EpsilonOutsideTheRoot = LowPrecision.but(
    "scale = …", "size = wide.square().mean(dim=-1, keepdim=True).sqrt() + eps"
).but("wide * scale", "wide / size")
"""eps is added to the square root; add it to the mean of the squares, under the root."""

MaximumSubtractedInHalfPrecision = LowPrecision.but(
    "return F.cross_entropy(logits.float().mT",
    "logits = logits - logits.amax(dim=-1, keepdim=True)\nreturn F.cross_entropy(logits.float().mT",
)
"""The largest logit is subtracted in bfloat16, which rounds the differences, and only then are they
converted to float32: convert the logits first."""

LossInHalfPrecision = LowPrecision.but(
    'float().mT, targets, reduction="none"', 'mT, targets, reduction="none").float('
)
"""The log-probabilities are rounded to bfloat16 and converted to float32 only after the digits are
lost: convert the logits first."""

ExponentialsOverflow = LowPrecision.but(
    'return F.cross_entropy(logits.float().mT, targets, reduction="none")',
    "wide = logits.float()\n"
    "return wide.exp().sum(dim=-1).log() - wide.gather(-1, targets[..., None])[..., 0]",
)
"""Exponentials of large logits overflow in float32: `log_softmax`, `logsumexp` and `cross_entropy`
subtract the largest logit first."""

LossCastBack = LowPrecision.but(
    'return F.cross_entropy(logits.float().mT, targets, reduction="none")',
    'losses = F.cross_entropy(logits.float().mT, targets, reduction="none")\n'
    "return losses.to(logits.dtype)",
)
"""The losses are computed in float32 and then rounded to bfloat16: return them in float32, because
they will be averaged and compared."""

MasterMadeFromTheCopy = LowPrecision.but(
    "master = master - lr * gradient.float", "weight = (master - lr * gradient.float()).bfloat16"
).but("master, master.bfloat16()", "weight.float(), weight")
"""The new master is computed from its bfloat16 copy, so every update loses the extra digits: round
the copy, never the master."""

UpdateInHalfPrecision = LowPrecision.but(
    "master = master - lr * gradient.float()", "weight = master.bfloat16() - lr * gradient"
).but("master, master.bfloat16()", "weight.float(), weight")
"""The update is computed in bfloat16, where a small update changes nothing: subtract in float32,
and round only the copy."""

StepRoundedFirst = LowPrecision.but("gradient.float()", "gradient")
"""The product of learning rate and gradient is rounded to bfloat16 before it is subtracted: convert
the gradient first."""

MasterChangedInPlace = LowPrecision.but("master = master - lr", "master -= lr")
"""The given master is changed in place: return new weights."""

CopyUpdatedByItself = LowPrecision.but(
    "master = master - lr * gradient.float()",
    "weight = master.bfloat16() - lr * gradient\nmaster = master - lr * gradient.float()",
).but("master, master.bfloat16()", "master, weight")
"""The bfloat16 copy is updated by itself, in bfloat16, so it drifts away from the master: round the
new master instead."""

CopyNotRounded = LowPrecision.but("master.bfloat16()", "master")
"""The second result is the float32 master again; return a bfloat16 copy of it."""


# 7.9 ------------------------------------------------------------------------------------------
class CheckSame(Correct, exercise="check_same_attention"):
    def check_same_attention(attention):
        torch.manual_seed(0)
        for is_masked in (False, True):
            tensors = [
                torch.randn(2, 3, n, d, requires_grad=True) for n, d in ((5, 4), (11, 4), (11, 6))
            ]
            mask = torch.rand(2, 1, 5, 11) > 0.4 if is_masked else None
            if mask is not None:
                mask[..., 0] = True
            seen = attention(*tensors, mask)
            expected = F.scaled_dot_product_attention(*tensors, attn_mask=mask)
            slope = torch.randn_like(expected)
            pairs = zip(
                (seen, *torch.autograd.grad(seen, tensors, slope)),
                (expected, *torch.autograd.grad(expected, tensors, slope)),
                strict=True,
            )
            assert all((s - e).abs().max() < 1e-4 for s, e in pairs)


ForwardOnly = CheckSame.but("slope = …\nassert …", "assert (seen - expected).abs().max() < 1e-4")
"""Results are compared, but not the gradients with respect to query, key and value, or not all
three: the forward pass may be correct and the backward pass wrong. If you read `.grad`, clone it:
the next backward pass changes it in place, and then you compare it with itself."""

NoMaskTested = CheckSame.but("(False, True)", "(False,)")
"""No mask is ever passed, but many mistakes of fast attention are about masks: try some."""

OneMaskForTheBatch = CheckSame.but(
    "mask = …\n    mask[..., 0] = True",
    "mask = torch.ones(5, 11, dtype=torch.bool).tril(3) if is_masked else None",
)
"""All sequences have the same mask, or the batch has only one sequence, so using the wrong mask
goes unnoticed: use several sequences, each with its own mask."""

NeverMoreKeysThanQueries = CheckSame.but(
    "in ((5, 4), (11, 4), (11, 6))", "in ((11, 4), (11, 4), (11, 6))"
).but("rand(2, 1, 5, 11)", "rand(2, 1, 11, 11)")
"""There are never more keys than queries, so a function that ignores all further keys goes
unnoticed: use more keys than queries."""

AllWidthsEqual = CheckSame.but("in ((5, 4), (11, 4), (11, 6))", "in ((5, 4), (11, 4), (11, 4))")
"""Values are as wide as keys, so a scale by the wrong width goes unnoticed: use different
widths."""

OnlyFullBlocks = CheckSame.but(
    "in ((5, 4), (11, 4), (11, 6))", "in ((5, 4), (16, 4), (16, 6))"
).but("rand(2, 1, 5, 11)", "rand(2, 1, 5, 16)")
"""The number of keys is always a multiple of four, so every block is full; fast attention may fail
if one is not: try a length like 11."""

ToleranceTooTight = CheckSame.but("(s - e).abs().max() < 1e-4", "torch.equal(s, e)")
"""The numbers are compared exactly, but float32 sums in another order differ in their last digits:
allow for rounding, 1e-5 or so."""

ToleranceTooLoose = CheckSame.but("() < 1e-4", "() < 0.1")
"""Differences of a few hundredths are allowed, so half of the digits may be lost without notice:
rounding errors in float32 are about 1e-6."""

TriedInFloat64 = CheckSame.but("n, d, requires", "n, d, dtype=torch.float64, requires").but(
    "(s - e).abs().max() < 1e-4", "(s - e).abs().max() < 1e-9"
)
"""The test passes float64 tensors, as `gradcheck` needs, and expects float64 precision. The
functions work in float32: pass float32, compare with the gradients of naive attention, and allow
differences of 1e-5."""

NothingCaught = CheckSame.but("slope = …\nassert …", "assert seen.shape == expected.shape")
"""Your test accepts every function. All wrong functions here return the correct shape: compare
numbers, to 1e-5 or so, with an `assert`; printing or returning the result raises nothing."""


# 7.7 ------------------------------------------------------------------------------------------
class Cost(Correct, exercise="training_cost"):
    def flops_per_token(num_layers, d_model, d_ff, vocab_size, length):
        matrices = num_layers * (4 * d_model**2 + 2 * d_model * d_ff) + d_model * vocab_size
        return 6 * matrices + 12 * num_layers * d_model * length

    def mfu(tokens_per_second, flops_per_token, peak_teraflops):
        return tokens_per_second * flops_per_token / (peak_teraflops * 1e12)

    def bits_per_byte(nats_per_token, num_tokens, num_bytes):
        return nats_per_token / math.log(2) * num_tokens / num_bytes


OnlyTheForwardPass = Cost.but("6 * matrices + 12", "2 * matrices + 4")
"""Only the forward pass is counted; the backward pass takes two products for each product of the
forward pass."""

BackwardLikeForward = Cost.but("6 * matrices + 12", "4 * matrices + 8")
"""The backward pass is counted like the forward pass; it costs twice as much, one product for the
gradient of each factor."""

LogitsWithoutBackward = Cost.but(
    "return 6 * matrices", "return 6 * matrices - 4 * d_model * vocab_size"
)
"""The product that gives the logits is counted without its backward pass, which costs twice as
much."""

MultiplyAddCountedOnce = Cost.but("6 * matrices + 12", "3 * matrices + 6")
"""A multiplication and the addition after it are counted as one operation; they are two."""

AttentionForgotten = Cost.but("matrices + 12 * num_layers * d_model * length", "matrices")
"""Only products with weights are counted; scores and averages multiply activations with each other,
and cost more for longer sequences."""

ScoresWithoutAverages = Cost.but("matrices + 12", "matrices + 6")
"""Half of attention is missing: the average of the values costs as much as the scores, and a causal
mask saves neither, since all scores are computed before it hides any."""

LookUpCountedAsAProduct = Cost.but("+ d_model", "+ 2 * d_model")
"""The embedding matrix is counted as if it were multiplied; looking up one of its rows takes no
operation."""

LogitsForgotten = Cost.but(
    "matrices = …", "matrices = num_layers * (4 * d_model**2 + 2 * d_model * d_ff)"
)
"""The product that gives the logits is missing; with a large vocabulary, it is expensive."""

TeraForgotten = Cost.but("(peak_teraflops * 1e12)", "peak_teraflops")
"""The peak is given in units of 10**12 operations per second and used as if it were in operations
per second."""

InPercent = Cost.but("return tokens_per_second", "return 100 * tokens_per_second")
"""The utilisation is returned in percent; it should be a fraction, from 0 to 1."""

ShareRounded = Cost.but(
    "tokens_per_second * flops_per_token / (peak_teraflops * 1e12)",
    "round(tokens_per_second * flops_per_token / (peak_teraflops * 1e12), 2)",
)
"""The utilisation is rounded to two decimals, and a small one to 0: return it unrounded."""

NatsTakenForBits = Cost.but(
    "nats_per_token / math.log(2) * num_tokens", "nats_per_token * num_tokens"
)
"""These are nats per byte: a bit is ln 2 nats, so divide by ln 2."""

TimesLogarithmOfTwo = Cost.but("nats_per_token / math", "nats_per_token * math")
"""The nats are multiplied by ln 2; a nat is more than a bit, so there must be more bits than nats:
divide."""

BitsPerToken = Cost.but("(2) * num_tokens / num_bytes", "(2)")
"""These are bits per token: multiply by the number of tokens, divide by the number of bytes."""

QuotientInverted = Cost.but("num_tokens / num_bytes", "num_bytes / num_tokens")
"""The quotient is inverted: divide the bits of all tokens by the number of bytes."""


# 7.8 ------------------------------------------------------------------------------------------
class Verdicts(Correct, exercise="verdicts"):
    def verdicts(runs):
        def verdict(run):
            learned, unseen = run["train"][-5:].mean(), run["held_out"][-5:].mean()
            if run["norm"][-1] > 5:
                return "gradients never zeroed"
            if run["norm"][0] < 0.4:
                return "softmax twice"
            if run["train"].max() > 2.7:
                return "learning rate too high"
            if unseen < 1.1:
                return "targets not shifted" if run["held_out"][3] < 0.3 else "no mask"
            if learned < 1.2:
                return "always the same batch"
            if unseen > 2.25:
                return "learning rate too low"
            return "dropout in evaluation" if learned - unseen < 0.14 else "nothing"

        return {letter: verdict(run) for letter, run in runs.items()}


LeaksNotDistinguished = Verdicts.but('return "targets not shifted" …', 'return "no mask"')
"""Every run that ends below the best possible loss is called “no mask”. If the targets are not
shifted, each target equals its input and is learned within a few updates; a leak through the mask
takes longer."""

EveryLeakCalledAMissingShift = Verdicts.but(
    'return "targets not shifted" …', 'return "targets not shifted"'
)
"""Every run that ends below the best possible loss is called “targets not shifted”. With no mask,
the loss falls later and less far, because the model has to learn where to look."""

HeldOutLossIgnored = Verdicts.but("unseen < 1", "learned < 1")
"""Only the training loss is used, so a run that memorises one batch looks like a leak: a leak
lowers the held-out loss as well."""

DropoutMissed = Verdicts.but('return "dropout in evaluation" …', 'return "nothing"')
"""The two losses of a run that looks correct are not compared: with dropout only in training, the
held-out loss is below the training loss."""

CorrectRunSuspected = Verdicts.but("unseen < 0.14", "unseen > -1.0")
"""A held-out loss below the training loss is treated as a mistake; with dropout only in training,
this is expected."""

GradientNormIgnored = Verdicts.but(
    'if run["norm"][-1] > 5:\n    return "gradients never zeroed"', ""
)
"""The norm of the gradients is not used, so gradients that are never zeroed look like a learning
rate that is too high: a sum over all updates makes the norm grow without limit."""

PlateauTakenForALowRate = Verdicts.but('"softmax twice"', '"learning rate too low"')
"""A loss that stays well above the best possible one is attributed to a low learning rate; with a
low rate it would hardly fall, and the initial gradient norm would not be so small."""

LowRateTakenForSoftmaxTwice = Verdicts.but('"learning rate too low"', '"softmax twice"')
"""A loss that hardly changes is attributed to the softmax; with a second softmax, the norm of the
gradient is a tenth of what it should be, while with a low rate it is normal."""


class LettersMemorised(Verdicts):
    """The answer is the order of the runs that were shown; other runs come in another order, so the
    answer must depend on the curves."""

    def verdicts(runs):
        names = (
            "nothing",
            "targets not shifted",
            "no mask",
            "learning rate too high",
            "learning rate too low",
            "gradients never zeroed",
            "softmax twice",
            "always the same batch",
            "dropout in evaluation",
        )
        return {letter: names[place % 9] for place, letter in enumerate(runs)}
