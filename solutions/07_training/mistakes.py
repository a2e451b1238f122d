"""The named mistakes of chapter 07: what a message can name, and what graders are tested with."""

import math
from collections import Counter

import torch
import torch.nn.functional as F

from classroom.exercise.answers import Correct


# 7.10 -----------------------------------------------------------------------------------------
class BytePairs(Correct, exercise="byte_pairs"):
    def joined(pieces, pair):
        done = []
        for piece in pieces:
            if done and (done[-1], piece) == pair:
                done[-1] = [*pair]
            else:
                done.append(piece)
        return ["".join(piece) for piece in done]

    def byte_pairs(words, num_merges):
        spelled, merges = [list(word) for word in words], []
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

    def encode(word, merges):
        pieces = list(word)
        for pair in merges:
            pieces = joined(pieces, tuple(pair))
        return pieces


OverlapsCountedTwice = BytePairs.but(
    "counts = Counter()…\n        counts[pair] += …",
    "counts = Counter(p for word in spelled for p in zip(word, word[1:], strict=False))",
)
"""In “aaa” the pair (a, a) is counted twice, although its middle letter can be used once: count a
pair as often as it can be merged."""

MergedAsText = BytePairs.but(
    "pieces = list(word)\nfor pair in merges:\n    pieces = joined(pieces, tuple(pair))\nreturn pieces",
    'text = " ".join(word)\n'
    "for first, second in merges:\n"
    '    text = text.replace(f"{first} {second}", first + second)\n'
    'return text.split(" ")',
)
"""`encode` replaces text, and “b g” is found in “ab g” too: a pair is two whole pieces, not the end of
one and the beginning of the next."""

TiesGoToTheFirstSeen = BytePairs.but("pair in set", "pair in dict.fromkeys").but(
    "min(counts, key=lambda pair: (-counts[pair], pair))", "max(counts, key=counts.get)"
)
"""Of pairs that are equally frequent the one that was met first is taken; it should be the first by
alphabet, so that the order of the words does not matter."""

TiesGoToTheLastByAlphabet = BytePairs.but(
    "best = …", "best = max(counts, key=lambda pair: (counts[pair], pair))"
)
"""Of pairs that are equally frequent the last one by alphabet is taken (max of count and pair); it
should be the first."""

PairsAcrossWords = (
    BytePairs.but("spelled, merges = …", 'text, merges = list("".join(words)), []')
    .but(
        "for word in spelled:…\n        counts[pair] += …",
        "for pair in set(zip(text, text[1:], strict=False)):\n"
        "    counts[pair] += len(text) - len(joined(text, pair))",
    )
    .but("spelled = …", "text = joined(text, best)")
)
"""The words are strung together, so that the last letter of one and the first of the next are
counted as neighbours; count inside each word."""

EachWordCountedOnce = BytePairs.but("word in words", "word in set(words)")
"""A word that occurs several times is counted once; what is frequent in the text has to win, so
every occurrence counts."""

CountedOnlyOnce = BytePairs.but(
    "spelled, merges = …\nreturn merges",
    """
    counts = Counter()
    for word in words:
        for pair in set(zip(word, word[1:], strict=False)):
            counts[pair] += len(word) - len(joined(list(word), pair))
    return sorted(counts, key=lambda pair: (-counts[pair], pair))[:num_merges]
    """,
)
"""The most frequent pairs of letters are taken all at once; after each merge the words have other
neighbours and must be counted again."""

OnlyRepeatedPairs = BytePairs.but("not counts", "not counts or max(counts.values()) < 2")
"""Learning stops when no pair occurs twice; it goes on until no pair is left or enough merges are
learned."""

OnePlaceMergedPerWord = BytePairs.but(
    'def …\n    return ["".join(piece) …',
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
"""A merge joins only the first place in a word where its pair stands; it joins all of them."""

JoinedFromTheRight = BytePairs.but(
    "done = []…\nreturn …",
    """
    pieces, place = list(pieces), len(pieces) - 2
    while place >= 0:
        if tuple(pieces[place : place + 2]) == pair:
            pieces[place : place + 2] = ["".join(pair)]
        place -= 1
    return pieces
    """,
)
"""A merge goes through a word from its end, so that “aaa” becomes a, aa; it goes from left to
right, and “aaa” becomes aa, a."""

LongestPieceFirst = BytePairs.but(
    "pieces = list(word)\nfor pair in merges:\n    pieces = joined(pieces, tuple(pair))",
    """
    known, pieces = {a + b for a, b in merges}, []
    while word:
        length = max((n for n in range(2, len(word) + 1) if word[:n] in known), default=1)
        pieces.append(word[:length])
        word = word[length:]
    """,
)
"""`encode` takes the longest piece that it knows from the front of the word; a word is cut by the
merges in the order in which they were learned."""

LeftmostPairFirst = BytePairs.but(
    "pieces = list(word)\nfor pair in merges:\n    pieces = joined(pieces, tuple(pair))",
    """
    known, pieces = {tuple(pair) for pair in merges}, list(word)
    place = 0
    while place < len(pieces) - 1:
        if (pieces[place], pieces[place + 1]) in known:
            pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
            place = 0
        else:
            place += 1
    """,
)
"""`encode` merges whichever known pair stands furthest to the left; the merge that was learned
first goes first, wherever it stands."""

MostFrequentPairFirst = BytePairs.but(
    "pieces = list(word)…\nreturn pieces",
    """
    known, pieces = {tuple(pair) for pair in merges}, list(word)
    while True:
        counts = Counter(p for p in zip(pieces, pieces[1:], strict=False) if p in known)
        if not counts:
            return pieces
        pieces = joined(pieces, min(counts, key=lambda pair: (-counts[pair], pair)))
    """,
)
"""`encode` counts anew in the word and merges the known pair that is most frequent there; what
counts is the order in which the merges were learned."""


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
"""The targets are the windows themselves, so the model is asked for what it has just been given: a
target is the token after."""

TargetsShiftedTwice = Batch.but("places + 1", "(places + 2).clamp(max=len(tokens) - 1)")
"""The targets are two places ahead: each window skips the token after, and asks for the next one
but one."""

TargetsShiftedBackwards = Batch.but("[places], tokens[places + 1]", "[places + 1], tokens[places]")
"""The targets are the tokens before: the model learns to write backwards, from texts that it has
seen already."""

TargetsRolledAround = Batch.but(
    "places = starts[:, None] + torch.arange(length)\nreturn tokens[places], tokens[places + 1]",
    "inputs = torch.stack([tokens[start : start + length] for start in starts.tolist()])\n"
    "return inputs, inputs.roll(-1, dims=1)",
)
"""The windows are rolled by one, so that the last target of each is its own first token; it should
be the token behind the window."""

LastStartNeverDrawn = Batch.but("- length", "- length - 1")
"""The last place where a window and its targets fit is never drawn, and the last token of the text
is never asked for: there are num_tokens - length places."""

OneStartTooMany = Batch.but("- length", "- length + 1")
"""A window may begin so late that its last target lies behind the end of the text: windows fit
there, their targets do not."""

StartsRounded = Batch.but("long()", "round().long()")
"""The draws are rounded to the nearest place instead of down, so one place too many may come out,
and both ends are drawn half as often."""

RoundedToTheNearestStart = Batch.but(
    "(draws * (num_tokens - length)).long()", "(draws * (num_tokens - length - 1)).round().long()"
)
"""The draws are rounded to the nearest start, so the first and the last come half as often as the
others: multiply by the number of starts and round down."""

MinusNothing = Batch.but(
    "num_train = …\nreturn …", "return tokens[:-num_held_out], tokens[-num_held_out:]"
)
"""Where nothing is held out, `tokens[:-0]` is `tokens[:0]`, and nothing is left to learn from: count
from the beginning of the text."""

HeldOutIsLearnedToo = Batch.but("tokens[:num_train]", "tokens")
"""What is learned from is the whole text, the held-out part included: it must end where that
begins."""

ShuffledBeforeTheCut = Batch.but(
    "return tokens[:num_train], tokens[num_train:]",
    "order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0))\n"
    "shuffled = tokens[order]\n"
    "return shuffled[:num_train], shuffled[num_train:]",
)
"""The tokens are shuffled before they are cut: a text is its order, and neighbours of what is held
out would be learned."""

TheBeginningHeldOut = Batch.but(
    "tokens[:num_train], tokens[num_train:]", "tokens[num_held_out:], tokens[:num_held_out]"
)
"""The beginning of the text is held out; it should be its end."""


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
"""The decay is added to the gradient, and so it is averaged and divided like one: AdamW pulls on
the parameter directly, which is the W."""

NoBiasCorrection = AdamW.but("size = (mean_square / (1 - beta2**step)).sqrt() + eps", "").but(
    "(mean / (1 - beta1**step)) / size", "mean / (mean_square.sqrt() + eps)"
)
"""The averages begin at zero and are too small at first: each is divided by 1 - beta**step."""

CorrectionCountsFromZero = AdamW.but("beta2**step", "beta2 ** (step - 1)").but(
    "beta1**step", "beta1 ** (step - 1)"
)
"""The bias correction counts updates from 0, and the first one divides by 0: the first update has
the number 1."""

CorrectionOneUpdateLate = AdamW.but("beta2**step", "beta2 ** (step + 1)").but(
    "beta1**step", "beta1 ** (step + 1)"
)
"""The bias correction counts one update too many: at the first update its power is 1."""

EpsilonInsideTheRoot = AdamW.but(
    "size = …", "size = (mean_square / (1 - beta2**step) + eps).sqrt()"
)
"""eps stands under the root; it is added to the root."""

EpsilonBeforeTheCorrection = AdamW.but(
    "size = …", "size = (mean_square.sqrt() + eps) / math.sqrt(1 - beta2**step)"
)
"""eps is added before the bias correction and corrected along with the root; it is added to the
corrected root."""

EpsilonForgotten = AdamW.but("() + eps", "()")
"""eps is missing, and where the gradient is zero, zero is divided by zero: it is added to the
root."""

ProductInsteadOfPower = AdamW.but("beta2**step", "beta2 * step").but("beta1**step", "beta1 * step")
"""The bias correction multiplies beta by the number of the update; it is the power, beta**step,
which never exceeds 1."""

SecondAverageNotSquared = AdamW.but("gradient**2", "gradient").but("sqrt()", "abs().sqrt()")
"""The second average is one of the gradient; it is one of the squared gradient."""

RootForgotten = AdamW.but("size = …", "size = mean_square / (1 - beta2**step) + eps")
"""The mean is divided by the mean square; it is divided by its root."""

DecayWithoutTheRate = AdamW.but("lr * weight_decay", "weight_decay")
"""The parameter loses weight_decay of itself at every update; it loses lr * weight_decay, so that
decay follows the schedule."""

DecayOfTheUpdatedParameter = AdamW.but(
    "parameter = …", "parameter = parameter - lr * (mean / (1 - beta1**step)) / size"
).but("return …", "return parameter - lr * weight_decay * parameter, mean, mean_square")
"""The decay is that of the parameter after its step; it is that of the parameter as it came."""

BetasExchanged = AdamW.but("):", "):\n    beta1, beta2 = beta2, beta1")
"""beta1 and beta2 have changed places: beta1 belongs to the mean, beta2 to the mean square."""

CorrectedAveragesKept = AdamW.but(
    "mean = …\nsize = …",
    "mean = (beta1 * mean + (1 - beta1) * gradient) / (1 - beta1**step)\n"
    "mean_square = (beta2 * mean_square + (1 - beta2) * gradient**2) / (1 - beta2**step)",
).but("(mean / (1 - beta1**step)) / size", "mean / (mean_square.sqrt() + eps)")
"""The corrected averages are handed back, and would be corrected again next time: the step uses
them, what is kept are the plain ones."""

ChangedInPlace = (
    AdamW.but("mean = …", "mean.mul_(beta1).add_(gradient, alpha=1 - beta1)")
    .but("mean_square = …", "mean_square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)")
    .but(
        "parameter = …",
        "parameter.mul_(1 - lr * weight_decay).sub_(lr * (mean / (1 - beta1**step)) / size)",
    )
    .but("parameter - lr * (mean / (1 - beta1**step)) / size", "parameter")
)
"""The tensors that were handed over are changed; return new ones."""


# 7.3 ------------------------------------------------------------------------------------------
class Rate(Correct, exercise="learning_rate"):
    def learning_rate(step, peak, warmup_steps, total_steps, final):
        if step < warmup_steps:
            return peak * (step + 1) / (warmup_steps + 1)
        progress = min(1.0, (step - warmup_steps) / (total_steps - 1 - warmup_steps))
        return final + (peak - final) * (1 + math.cos(math.pi * progress)) / 2


FirstUpdateIsLost = Rate.but("(step + 1) / (warmup_steps + 1)", "step / warmup_steps")
"""The climb begins at 0, and an update with rate 0 changes nothing: steps are counted from 0, so
the first one has the rate peak / (warmup_steps + 1)."""

PeakOneUpdateEarly = Rate.but("(warmup_steps + 1)", "warmup_steps")
"""The last update of the warm-up has the peak already; the peak comes with the update after it,
number warmup_steps."""

CosineFromTheFirstStep = Rate.but("progress = …", "progress = min(1.0, step / (total_steps - 1))")
"""The cosine is counted from step 0, so the rate drops at once when the warm-up ends: the way down
takes the steps that are left."""

FloorForgotten = Rate.but("final + (peak - final)", "peak")
"""The rate falls to 0; it ends at `final`."""

FloorAdded = Rate.but("(peak - final)", "peak")
"""`final` is added to the whole cosine, so that the way down begins above the peak: only peak -
final is left to go down."""

AngleInDegrees = Rate.but("math.pi", "180")
"""The angle runs to 180; `cos` takes radians, so half a turn is pi."""

EndsOneUpdateLate = Rate.but("1 - warmup_steps", "warmup_steps")
"""The last update, number total_steps - 1, has not arrived at `final`: the way down is one step
shorter."""

ClimbsAgain = Rate.but(
    "progress = …", "progress = (step - warmup_steps) / (total_steps - 1 - warmup_steps)"
)
"""Behind the last update the cosine goes on and the rate climbs again; it stays at `final`."""

StraightDown = Rate.but("return final …", "return peak + (final - peak) * progress")
"""The rate falls in a straight line; it follows half a cosine."""

QuarterOfACosine = Rate.but(
    "(1 + math.cos(math.pi * progress)) / 2", "math.cos(math.pi * progress / 2)"
)
"""The angle goes to a quarter of a turn only, and falls fastest at the end: half a cosine goes from
1 to -1 and is brought to 1 and 0."""


# 7.4 ------------------------------------------------------------------------------------------
class Clip(Correct, exercise="clip_gradients"):
    def clip_gradients(gradients, max_norm):
        norm = torch.cat([g.flatten() for g in gradients if g is not None]).norm()
        if not norm.isfinite():
            raise ValueError(f"the gradients must be finite, got a norm of {norm}")
        factor = min(1.0, max_norm / norm)
        return [g if g is None else g * factor for g in gradients], norm


EachTensorByItself = Clip.but(
    "factor = …\nreturn …",
    "return [\n"
    "    g if g is None else g * (max_norm / g.norm().clamp(min=max_norm)) for g in gradients\n"
    "], norm",
)
"""Each gradient is clipped by its own norm, and the direction of the step changes: one norm, of all
entries of all gradients, one factor."""

ClippedByValue = Clip.but(
    "factor = …\nreturn …",
    "return [g if g is None else g.clamp(-max_norm, max_norm) for g in gradients], norm",
)
"""Every entry is cut off at max_norm; all entries are scaled by one factor, which keeps the
direction."""

ShortOnesScaledUp = Clip.but(
    "factor = …\nreturn …",
    "return [g if g is None else g * (max_norm / (norm + 1e-12)) for g in gradients], norm",
)
"""Gradients that are shorter than max_norm are scaled up to it; they should stay as they are."""

ZeroDividedByZero = Clip.but(
    "factor = …\nreturn …",
    "return [g if g is None else g / norm * norm.clamp(max=max_norm) for g in gradients], norm",
)
"""Gradients that are all zero are divided by their norm, and zero by zero is NaN: where the norm
does not exceed max_norm, nothing has to be divided."""

NormsAddedUp = Clip.but("norm = …", "norm = sum(g.norm() for g in gradients if g is not None)")
"""The norms of the gradients are added up; the norm of all is the root of the sum of their
squares."""

NormNotRooted = Clip.but(
    "norm = …", "norm = sum(g.square().sum() for g in gradients if g is not None)"
)
"""The sum of the squares is used as it is: the norm is its root."""

NormAfterClipping = Clip.but(
    "return …", "return [g if g is None else g * factor for g in gradients], norm * factor"
)
"""The norm that is returned is the one after clipping, which says nothing: return the one
before."""

FrozenParametersGetZeros = Clip.but("g if g is None else g", "torch.zeros(()) if g is None else g")
"""A frozen parameter is given a gradient of zeros, and an optimizer would decay it: None stays
None."""

FrozenParametersDropped = Clip.but(
    "norm = …",
    "kept = [g for g in gradients if g is not None]\n"
    "norm = torch.cat([g.flatten() for g in kept]).norm()",
).but("factor = …\nreturn …", "return [g * min(1.0, max_norm / norm) for g in kept], norm")
"""Frozen parameters are left out of the list, and every gradient behind one meets the wrong
parameter: keep None in its place."""

NoNumberLetThrough = Clip.but("if not norm.isfinite():\n    raise …", "")
"""With one NaN or infinite entry the norm is none either, and scaling spreads it to every gradient,
or makes them all zero: raise ValueError instead."""

OnlyInfinityRefused = Clip.but("not norm.isfinite()", "norm == math.inf")
"""Infinite entries are refused and NaN is not: a comparison with NaN is always false, so test for
what is finite."""

GradientsScaledInPlace = Clip.but("g * factor", "g.mul_(factor)")
"""The gradients that were handed over are scaled; return new tensors."""


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
"""The means of the parts are averaged, so a target counts more in a part where few count: divide
every sum by the number of all targets that count."""

MeansAddedUp = Accumulated.but("count = …", "").but(
    "logits = …\npart = …", "part = F.cross_entropy(model(leaf, x).mT, targets, ignore_index=-100)"
)
"""The means of the parts are added up, so the gradient grows with the number of parts: it has to be
that of one mean over all."""

NeverDivided = Accumulated.but("count = …", "").but(
    "part = …", 'part = F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")'
)
"""The losses are summed and never divided: the mean loss divides by the number of targets that
count."""

IgnoredTargetsCounted = Accumulated.but("(targets != -100).sum", "targets.numel")
"""The sum is divided by the number of all targets, the ignored ones included: only those that count
are averaged over."""

GradientOverwritten = Accumulated.but("gradient + torch", "torch")
"""Each part's gradient takes the place of the one before, as if gradients were zeroed inside the
loop: they are added up, and zeroed after the update."""

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
"""The gradient of the loss so far is added after each part, so the first part is counted as often
as there are parts: add the gradient of each part once."""

LastPartDropped = Accumulated.but("x, targets in parts", "x, targets in parts[:-1]")
"""The last part is left out; every part belongs to the batch."""

MeansWeightedByCount = Accumulated.but(
    "logits = …\npart = …",
    "part = F.cross_entropy(model(leaf, x).mT, targets, ignore_index=-100)\n"
    "part = part * (targets != -100).sum() / count",
)
"""The mean of each part is weighted by its count, and the mean of nothing is NaN: zero times NaN is
NaN. Divide sums instead."""

AllPartsAtOnce = Accumulated.but(
    "count = …\nreturn gradient, loss",
    "x, targets = (torch.cat([part[i] for part in parts]) for i in (0, 1))\n"
    "loss = F.cross_entropy(model(leaf, x).mT, targets, ignore_index=-100)\n"
    "return torch.autograd.grad(loss, leaf)[0], loss.detach()",
)
"""The parts are put together again and go through the model at once: the batch was cut because it
does not fit."""


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


StatisticsInHalf = LowPrecision.but(
    "wide = x.float()…\nreturn …",
    "return x * (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * gain.to(x.dtype)",
)
"""The squares or their mean pass through half precision, which cannot hold them: turn the input
into float32 before squaring, and back at the end."""

SquaresInHalf = LowPrecision.but(
    "wide = x.float()…\nreturn …",
    "mean = x.square().float().mean(dim=-1, keepdim=True)\n"
    "return (x.float() * (mean + eps).rsqrt() * gain).to(x.dtype)",
)
"""The mean is taken in float32, of squares that were taken in half precision and are infinite or
zero already: convert before squaring, not after."""

NormNotCastBack = LowPrecision.but(
    "wide = x.float()…\nreturn …",
    "x = x.float()\nreturn x * (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * gain",
)
"""The norm returns float32, and everything behind it would be computed in float32 as well: cast the
result back to the dtype of the input."""

EpsilonBesideTheRoot = LowPrecision.but(
    "scale = …", "size = wide.square().mean(dim=-1, keepdim=True).sqrt() + eps"
).but("wide * scale", "wide / size")
"""eps is added to the root; it is added to the mean of the squares, under the root."""

LossInHalf = LowPrecision.but(
    'float().mT, targets, reduction="none"', 'mT, targets, reduction="none").float('
)
"""The logarithms of the probabilities are rounded to bfloat16 and turned into float32 when the
digits are lost: convert the logits first."""

ExponentialsOverflow = LowPrecision.but(
    'return F.cross_entropy(logits.float().mT, targets, reduction="none")',
    "wide = logits.float()\n"
    "return wide.exp().sum(dim=-1).log() - wide.gather(-1, targets[..., None])[..., 0]",
)
"""Exponentials of large logits are more than float32 holds: `log_softmax`, `logsumexp` and
`cross_entropy` subtract the largest logit first."""

LossCastBack = LowPrecision.but(
    'return F.cross_entropy(logits.float().mT, targets, reduction="none")',
    'losses = F.cross_entropy(logits.float().mT, targets, reduction="none")\n'
    "return losses.to(logits.dtype)",
)
"""The losses are computed in float32 and then rounded to bfloat16: they are averaged and compared,
and stay in float32."""

MasterMadeFromTheCopy = LowPrecision.but(
    "master = master - lr * gradient.float", "weight = (master - lr * gradient.float()).bfloat16"
).but("master, master.bfloat16()", "weight.float(), weight")
"""The new master is made from its bfloat16 copy, and loses at every update what it is kept for:
round the copy, never the master."""

UpdateInHalf = LowPrecision.but(
    "master = master - lr * gradient.float()", "weight = master.bfloat16() - lr * gradient"
).but("master, master.bfloat16()", "weight.float(), weight")
"""The update is made in bfloat16, where a small one changes nothing: subtract in float32, and round
only the copy."""

StepRoundedFirst = LowPrecision.but("gradient.float()", "gradient")
"""Rate times gradient is rounded to bfloat16 before it is subtracted: convert the gradient
first."""

MasterChangedInPlace = LowPrecision.but("master = master - lr", "master -= lr")
"""The master that was handed over is changed: return new weights."""

CopyNotRounded = LowPrecision.but("master.bfloat16()", "master")
"""The second result is the float32 master again; the model computes with a bfloat16 copy of it."""


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
"""The results are compared and not all gradients are: an attention may be right forward and wrong
backward, and training needs both."""

WithoutAMask = CheckSame.but("(False, True)", "(False,)")
"""No mask is ever handed over, and many mistakes of fast attention are about masks: try some."""

OneMaskForTheBatch = CheckSame.but(
    "mask = …\n    mask[..., 0] = True",
    "mask = torch.ones(5, 11, dtype=torch.bool).tril(3) if is_masked else None",
)
"""All sequences of the batch have the same mask, so that a mix-up among them goes unnoticed: give
each its own."""

AsManyQueriesAsKeys = CheckSame.but(
    "in ((5, 4), (11, 4), (11, 6))", "in ((11, 4), (11, 4), (11, 6))"
).but("rand(2, 1, 5, 11)", "rand(2, 1, 11, 11)")
"""There are always as many queries as keys, so nobody notices which of the two counts is used: take
different ones."""

AllWidthsEqual = CheckSame.but("in ((5, 4), (11, 4), (11, 6))", "in ((5, 4), (11, 4), (11, 4))")
"""Values are as wide as keys, so nobody notices whose width the scale takes: take different
ones."""

OnlyFullBlocks = CheckSame.but(
    "in ((5, 4), (11, 4), (11, 6))", "in ((5, 4), (16, 4), (16, 6))"
).but("rand(2, 1, 5, 11)", "rand(2, 1, 5, 16)")
"""The number of keys is always a multiple of eight, so every block is full; fast attention goes
wrong where one is not: try a length like 11."""

ToleranceTooTight = CheckSame.but("(s - e).abs().max() < 1e-4", "torch.equal(s, e)")
"""The numbers have to be equal to the last digit, and float32 sums in another order differ there:
allow for rounding, 1e-5 or so."""

ToleranceTooLoose = CheckSame.but("() < 1e-4", "() < 0.1")
"""Differences of some hundredths are forgiven, and half of the digits may get lost unnoticed:
rounding in float32 is a matter of 1e-6."""

NothingIsNoticed = CheckSame.but("slope = …\nassert …", "assert seen.shape == expected.shape")
"""Your test passes whatever is wrong. Every mistake here returns the right shape: compare numbers,
to 1e-5 or so, by an `assert`; what is only printed or returned raises nothing."""


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
"""Only the forward pass is counted; the backward pass takes two products for each of its own."""

BackwardLikeForward = Cost.but("6 * matrices + 12", "4 * matrices + 8")
"""The backward pass is taken to cost as much as the forward pass; it costs twice as much, a product
for the gradient of each factor."""

ProductAndSumAsOne = Cost.but("6 * matrices + 12", "3 * matrices + 6")
"""A multiplication and the addition after it are counted as one operation; they are two."""

AttentionForgotten = Cost.but("matrices + 12 * num_layers * d_model * length", "matrices")
"""Only products with weights are counted; scores and averages multiply activations with each other,
and cost more the longer the text."""

ScoresWithoutAverages = Cost.but("matrices + 12", "matrices + 6")
"""Half of attention is missing: the average of the values costs as much as the scores, and a causal
mask saves neither, since all scores are computed before it hides some."""

LookUpCountedAsAProduct = Cost.but("+ d_model", "+ 2 * d_model")
"""The table of token vectors is counted as if it were multiplied; a row of it is looked up, which
takes no operation."""

LogitsForgotten = Cost.but(
    "matrices = …", "matrices = num_layers * (4 * d_model**2 + 2 * d_model * d_ff)"
)
"""The product that gives the logits is missing; with a large vocabulary it is a large one."""

TeraForgotten = Cost.but("(peak_teraflops * 1e12)", "peak_teraflops")
"""The peak is given in units of 10**12 operations per second and used as if it were in operations
per second."""

InPercent = Cost.but("return tokens_per_second", "return 100 * tokens_per_second")
"""The utilisation is given in percent; it is a share, from 0 to 1."""

NatsTakenForBits = Cost.but(
    "nats_per_token / math.log(2) * num_tokens", "nats_per_token * num_tokens"
)
"""These are nats per byte: a bit is ln 2 nats, so divide by ln 2."""

TimesLogarithmOfTwo = Cost.but("nats_per_token / math", "nats_per_token * math")
"""The nats are multiplied by ln 2; a nat is more than a bit, so there must be more bits than
nats."""

BitsPerToken = Cost.but("(2) * num_tokens / num_bytes", "(2)")
"""These are bits per token, and longer tokens need more of them: spread them over the bytes."""

BytesOverTokens = Cost.but("num_tokens / num_bytes", "num_bytes / num_tokens")
"""The quotient stands on its head: the bits of all tokens are shared out among the bytes."""


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


LeaksNotToldApart = Verdicts.but('return "targets not shifted" …', 'return "no mask"')
"""Whatever ends below the best possible loss is called a missing mask; a target that is the input
itself is found within a few updates, and one that stands a token further on is not."""

EveryLeakIsTheShift = Verdicts.but('return "targets not shifted" …', 'return "targets not shifted"')
"""Whatever ends below the best possible loss is called a missing shift; a missing mask gives a loss
that falls later and less far, because the model has to learn where to look."""

HeldOutLossNeverRead = Verdicts.but("unseen < 1", "learned < 1")
"""Only the training loss is read, and a run that learns one batch by heart looks like a leak: a
leak lowers the held-out loss as well."""

DropoutNotSeen = Verdicts.but('return "dropout in evaluation" …', 'return "nothing"')
"""Nobody compares the two losses of a run that looks sound: with dropout while training only, what
is held out is read better than what is learned from."""

SoundRunSuspected = Verdicts.but("unseen < 0.14", "unseen > -1.0")
"""A held-out loss below the training loss is held against a run; where dropout is on in training
only, that is how it should be."""

NormNeverRead = Verdicts.but('if run["norm"][-1] > 5:\n    return "gradients never zeroed"', "")
"""The norm of the gradients is not read, and gradients that are never zeroed look like a learning
rate that is too high: a sum over all updates makes the norm grow without end."""

PlateauTakenForSlow = Verdicts.but('"softmax twice"', '"learning rate too low"')
"""A loss that hangs well above the best possible one is put down to a low learning rate; with a low
rate it would still be falling, and the gradient would not begin so short."""

SlowTakenForBroken = Verdicts.but('"learning rate too low"', '"softmax twice"')
"""A loss that hardly moves is put down to the softmax; with a softmax too many the norm of the
gradient is a tenth of what it should be, with a low rate it is as long as ever."""


class LettersByHeart(Verdicts):
    """The answer is the order of the runs that were shown; other runs come in another order, so it
    has to be read from the curves."""

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
