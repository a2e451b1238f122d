"""The named mistakes of chapter 00: what a message can name, and what graders are tested with."""

import math

import torch
import torch.nn.functional as F

from classroom.exercise.answers import Correct


# 0.0 ------------------------------------------------------------------------------------------
class MeanOfRows(Correct, exercise="mean_of_rows"): ...


MeanOfColumns = MeanOfRows.but("dim=1", "dim=0")
"""This is the mean of each column: average over the columns (dim=1), so that one number per row is
left."""

MeanOfEverything = MeanOfRows.but("mean(dim=1)", "mean()")
"""This is one mean over all numbers; each row needs its own."""

SumOfRows = MeanOfRows.but("x.mean", "x.sum")
"""These are the sums: divide by the number of entries in a row."""

DividedByTheNumberOfRows = MeanOfRows.but("mean(dim=1)", "sum(dim=1) / len(x)")
"""The sum of a row is divided by the number of rows: divide by the number of columns."""

AxisLeftOver = MeanOfRows.but("dim=1", "dim=1, keepdim=True")
"""The means are correct, but an axis of size 1 is left over (keepdim=True): one number per row has
the shape (rows,)."""


# 0.1 ------------------------------------------------------------------------------------------
class Softmax(Correct, exercise="stable_softmax"):
    def stable_softmax(scores, dim):
        exponentials = (scores - scores.amax(dim=dim, keepdim=True)).exp()
        weights = exponentials / exponentials.sum(dim=dim, keepdim=True)
        return weights.masked_fill(scores == -math.inf, 0.0)

    def log_softmax(scores, dim):
        return torch.log_softmax(scores, dim).masked_fill(torch.isneginf(scores), -math.inf)

    logsumexp = torch.logsumexp


NoShift = Softmax.but("(scores - scores.amax(dim=dim, keepdim=True))", "scores")
"""exp() of 1000 is infinite and exp() of -1000 is 0, and inf/inf and 0/0 are NaN: subtract the
largest score of the row first."""

AllAxesSqueezed = Softmax.but(
    "logsumexp = torch.logsumexp",
    "def logsumexp(scores, dim):\n"
    "    shift = scores.amax(dim=dim, keepdim=True)\n"
    "    shift = torch.where(shift == -math.inf, 0.0, shift)\n"
    "    return (scores - shift).exp().sum(dim=dim).log() + shift.squeeze()",
)
"""`squeeze()` without an axis removes every axis of size 1, including those of the scores: name the
axis, `squeeze(dim)`."""

ShiftedByTheOverallMaximum = Softmax.but("amax(dim=dim, keepdim=True)", "max()")
"""All rows are shifted by the largest score of all rows: those far below it underflow to 0/0. Every
row needs its own shift."""

OverallMaximumAndNoNan = Softmax.but("amax(dim=dim, keepdim=True)", "max()").but(
    "weights = exponentials / exponentials.sum(dim=dim, keepdim=True)",
    "weights = (exponentials / exponentials.sum(dim=dim, keepdim=True)).nan_to_num(0.0)",
)
"""All rows are shifted by the largest score of all rows: those far below it underflow to 0, and their
weights do not sum to 1. Every row needs its own shift."""

ShiftByTheMean = Softmax.but("scores.amax", "scores.mean")
"""The mean of the row is subtracted: with scores far apart, the largest still overflows.
Subtract the largest score: then no exponential is above 1."""

NormalisedOverEverything = Softmax.but(
    "exponentials = …\nreturn …",
    "exponentials = (scores - scores.amax(dim=dim, keepdim=True)).exp().nan_to_num(0.0)\n"
    "return exponentials / exponentials.sum()",
)
"""The total is taken over the whole tensor; sum along dim only."""

AlwaysTheLastDimension = Softmax.but(
    "exponentials = …\nreturn …",
    "return torch.softmax(scores, -1).masked_fill(torch.isneginf(scores), 0.0)",
)
"""The argument dim is ignored: the softmax always runs along the last dimension."""

AxisNotKept = Softmax.but(
    "exponentials = …\nreturn …",
    "exponentials = (scores - scores.amax(dim=dim)).exp()\n"
    "return exponentials / exponentials.sum(dim=dim)",
)
"""Without keepdim=True the largest scores lose their axis and are broadcast along another one: an
error if you are lucky, wrong weights if the sizes happen to be equal."""

AxisOfTheTotalNotKept = Softmax.but(
    "weights = …\nreturn …", "return exponentials / exponentials.sum(dim=dim)"
)
"""The largest score keeps its axis and the total does not, so the total is broadcast along another
axis: it needs keepdim=True as well."""

LogarithmOfTheSoftmax = Softmax.but(
    "return torch.log_softmax(scores, …", "return stable_softmax(scores, dim).log()"
)
"""The logarithm is taken after the softmax has rounded small weights to 0, and ln 0 is minus
infinity: subtract the logsumexp from the scores."""

LogarithmOfAWeightAndAnEpsilon = Softmax.but(
    "return torch.log_softmax(scores, …", "return (stable_softmax(scores, dim) + 1e-12).log()"
)
"""A small number is added to the weights before the logarithm, so no result is below that number's
own logarithm (-27.6 for 1e-12): subtract the logsumexp from the scores."""

LogsumexpNotShifted = Softmax.but(
    "logsumexp = …", "def logsumexp(scores, dim):\n    return scores.exp().sum(dim=dim).log()"
)
"""`logsumexp` takes exp() of the scores as they are, and exp() of 1000 is infinite: subtract the
largest score of the row first, and add it to the logarithm."""

ShiftNotAddedBack = Softmax.but(
    "logsumexp = …",
    "def logsumexp(scores, dim):\n"
    "    largest = scores.amax(dim=dim, keepdim=True).nan_to_num(neginf=0.0)\n"
    "    return (scores - largest).exp().sum(dim=dim).log()",
)
"""The shift is subtracted in the exponentials and never added back: ln Σ exp(s) is m plus ln Σ
exp(s - m)."""


class NanForAFullyMaskedRow(Softmax):
    """A row of minus infinities gives NaN: -inf - (-inf) is NaN, and so is 0/0. Such a row needs a
    finite shift, and must not be divided by its total, 0."""

    def stable_softmax(scores, dim):
        exponentials = (scores - scores.amax(dim=dim, keepdim=True)).exp()
        return exponentials / exponentials.sum(dim=dim, keepdim=True)

    def log_softmax(scores, dim):
        largest = scores.amax(dim=dim, keepdim=True)
        shifted = scores - largest
        return shifted - shifted.exp().sum(dim=dim, keepdim=True).log()

    def logsumexp(scores, dim):
        largest = scores.amax(dim=dim, keepdim=True)
        return ((scores - largest).exp().sum(dim=dim, keepdim=True).log() + largest).squeeze(dim)


NoShiftBesideAMaskedRow = Softmax.but(
    "exponentials = …\nreturn …",
    "largest = scores.amax(dim=dim, keepdim=True)\n"
    "shift = torch.zeros_like(largest) if largest.isneginf().any() else largest\n"
    "exponentials = (scores - shift).exp()\n"
    "total = exponentials.sum(dim=dim, keepdim=True)\n"
    "return exponentials / total.masked_fill(total == 0, 1.0)",
)
"""A single row of minus infinities switches off the shift of all rows, so rows around 1000 overflow
beside it: shift only that row by 0 (torch.where), and each other row by its largest score."""

NoShiftBesideAMaskedScore = Softmax.but(
    "exponentials = …\nreturn …",
    "some_masked = scores.isneginf().any(dim=dim, keepdim=True)\n"
    "shift = torch.where(some_masked, 0.0, scores.amax(dim=dim, keepdim=True))\n"
    "exponentials = (scores - shift).exp()\n"
    "total = exponentials.sum(dim=dim, keepdim=True)\n"
    "return exponentials / total.masked_fill(total == 0, 1.0)",
)
"""One score of minus infinity switches off the shift of its row, so that the others overflow: shift
by the largest score, and by 0 only where all are minus infinity (`all`, not `any`)."""

AxisOneForTheLogarithms = Softmax.but(
    "return torch.log_softmax(scores, dim)", "return torch.log_softmax(scores, 1)"
).but("logsumexp = …", "def logsumexp(scores, dim):\n    return torch.logsumexp(scores, 1)")
"""The argument dim is ignored, and axis 1 is always used: pass `dim` on."""

MinusInfinityReplaced = Softmax.but(
    "exponentials = …\nreturn …",
    "empty = (scores == -math.inf).all(dim=dim, keepdim=True)\n"
    "finite = scores.masked_fill(scores == -math.inf, -1e4)\n"
    "return torch.softmax(finite, dim).masked_fill(empty, 0.0)",
)
"""A score of minus infinity is replaced by a finite one, such as -10,000. In a row of scores far below
that, its weight is no longer 0: keep minus infinity, whose exponential is exactly 0."""

UniformWeightsForAMaskedRow = Softmax.but(
    "exponentials = …\nreturn …", "return torch.softmax(scores.clamp(min=-1e9), dim)"
)
"""A row of minus infinities gets uniform weights. Every position of it is masked, so all its
weights must be 0."""

ShiftedInPlace = Softmax.but(
    "exponentials = …\nreturn …",
    "largest = scores.max(dim=dim, keepdim=True).values\n"
    "scores -= largest.masked_fill(largest == -math.inf, 0.0)\n"
    "exponentials = scores.exp()\n"
    "return exponentials / exponentials.sum(dim=dim, keepdim=True).clamp(min=1e-300)",
)
"""The shift is written into the caller's scores: `scores -= …` changes that tensor; `scores - …`
makes a new one."""


# 0.2 ------------------------------------------------------------------------------------------
class CrossEntropy(Correct, exercise="cross_entropy"):
    def loss_of(logits, targets, ignore_index):
        counted = targets != ignore_index
        total = F.cross_entropy(logits[counted], targets[counted], reduction="sum")
        return total / counted.sum().clamp(min=1)

    def losses_of(logits, targets, ignore_index):
        pairs = zip(logits, targets, strict=True)
        return torch.stack([loss_of(x, t, ignore_index) for x, t in pairs])

    def cross_entropy(logits, targets, ignore_index):
        return loss_of(logits, targets, ignore_index)

    def sequence_losses(logits, targets, ignore_index):
        return losses_of(logits, targets, ignore_index)


SoftmaxTwice = CrossEntropy.but(
    "return loss_of(logits", "return loss_of(logits.softmax(dim=-1)"
).but("return losses_of(logits", "return losses_of(logits.softmax(dim=-1)")
"""The logits go through a softmax before the log-softmax, which has one inside: cross-entropy
starts from logits, not from probabilities."""

EpsilonInTheLogarithm = CrossEntropy.but(
    "return loss_of(logits, …",
    "counted = targets != ignore_index\n"
    "probabilities = logits.softmax(dim=-1)[counted]\n"
    "right = probabilities.gather(1, targets[counted][:, None])\n"
    "return -(right + 1e-9).log().sum() / counted.sum().clamp(min=1)",
)
"""A small number is added inside the logarithm, so the surprisal has a limit (20.7 for 1e-9), and a
confident wrong prediction gets almost no gradient: take the log-softmax of the logits instead."""

LogarithmOfTheSoftmax = CrossEntropy.but(
    "total = F.cross_entropy(logits[counted], …",
    "right = logits[counted].softmax(dim=-1).gather(1, targets[counted][:, None])\n"
    "total = -right.log().sum()",
)
"""The logarithm is taken of a softmax, torch's or your own, in which small probabilities are rounded
to 0, so that their logarithm is minus infinity: use the log-softmax."""

LossesInBits = CrossEntropy.but("clamp(min=1)", "clamp(min=1) / math.log(2)")
"""The losses are in bits, but nats use the natural logarithm."""

MinusForgotten = CrossEntropy.but("return loss_of", "return -loss_of").but(
    "return losses_of", "return -losses_of"
)
"""The minus sign is missing: ln p is never positive, and a surprisal is never negative."""


class PositionsCompete(CrossEntropy):
    """The softmax runs along the length (dim=1), so positions compete; at each position the tokens
    should compete, along the last axis."""

    def cross_entropy(logits, targets, ignore_index):
        counted = targets != ignore_index
        index = targets.masked_fill(~counted, 0).unsqueeze(-1)
        losses = -logits.log_softmax(dim=1).gather(-1, index).squeeze(-1) * counted
        return losses.sum() / counted.sum().clamp(min=1)

    def sequence_losses(logits, targets, ignore_index):
        counted = targets != ignore_index
        index = targets.masked_fill(~counted, 0).unsqueeze(-1)
        losses = -logits.log_softmax(dim=1).gather(-1, index).squeeze(-1) * counted
        return losses.sum(dim=1) / counted.sum(dim=1).clamp(min=1)


EveryAxisSqueezed = PositionsCompete.but("softmax(dim=1)", "softmax(dim=-1)", times=2).but(
    ".squeeze(-1)", ".squeeze()", times=2
)
"""`squeeze()` without an axis removes every axis of size 1: the length, too, if each sequence is one
token. Name the axis: `squeeze(-1)`."""


BatchSqueezedAway = CrossEntropy.but(
    "return losses_of(…", "return losses_of(logits, targets, ignore_index).squeeze()"
)
"""`squeeze()` without an axis removes the batch axis, too, if there is only one sequence: name the
axis to be removed."""


class TargetsOverwritten(CrossEntropy):
    """The ignored entries of the caller's targets are overwritten (`targets[...] = 0`): use
    `masked_fill`, which makes a new tensor."""

    def cross_entropy(logits, targets, ignore_index):
        counted = targets != ignore_index
        targets[~counted] = 0
        losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        return (losses * counted).sum() / counted.sum().clamp(min=1)


DividedByAllTargets = CrossEntropy.but("counted.sum().clamp(min=1)", "targets.numel()")
"""The sum leaves the ignored targets out, but it is divided by the number of all targets: the more
padding, the smaller the loss. Divide by the number of targets that count."""

IgnoredTermsCounted = CrossEntropy.but(
    "counted = …\nreturn …",
    "right = logits.log_softmax(dim=-1).gather(-1, targets.clamp(min=0)[..., None])\n"
    "return -right.sum() / (targets != ignore_index).sum().clamp(min=1)",
)
"""The ignored targets are replaced by a valid index, so that nothing crashes, but their terms stay
in the sum: set those terms to 0."""

VocabularyOnTheWrongAxis = CrossEntropy.but(
    "return loss_of(…", "return F.cross_entropy(logits, targets, ignore_index=ignore_index)"
)
"""torch's cross_entropy expects the vocabulary on axis 1, and here it is the last axis: flatten
batch and length into one axis first. With equal sizes there would be no error, just a wrong
loss."""

MeanOfMeans = CrossEntropy.but(
    "return loss_of(…", "return losses_of(logits, targets, ignore_index).mean()"
)
"""The means of the sequences are averaged, so a token of a short sequence counts more than one of a
long sequence: add up everything first, and divide once."""

DividedByTheNumberOfSequences = CrossEntropy.but(
    "return loss_of(…",
    "counted = targets != ignore_index\n"
    'total = F.cross_entropy(logits[counted], targets[counted], reduction="sum")\n'
    "return total / len(logits)",
)
"""The loss is divided by the number of sequences only, so it grows with their length: divide by the
number of targets that count."""

IgnoreIndexHardCoded = CrossEntropy.but(
    "return loss_of(…", "return loss_of(logits, targets, -100)"
).but("return losses_of(…", "return losses_of(logits, targets, -100)")
"""`ignore_index` is not used: it is an argument, because targets that do not count are not always
marked by -100; the mark may be the id of the padding token, which is not negative."""

ZeroOverZero = CrossEntropy.but(
    "counted = …\nreturn …",
    "return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=ignore_index)",
)
"""Where no target counts, 0 is divided by 0, and one NaN spoils every average: the loss should be 0
there. Divide the sum by at least 1."""

ZeroOverZeroInTheGradient = CrossEntropy.but(
    "return losses_of(…",
    "counted = targets != ignore_index\n"
    "index = targets.masked_fill(~counted, 0).unsqueeze(-1)\n"
    "right = logits.log_softmax(dim=-1).gather(-1, index).squeeze(-1) * counted\n"
    "number = counted.sum(dim=1)\n"
    "return torch.where(number == 0, 0.0, -right.sum(dim=1) / number)",
)
"""Where no target counts, 0 is divided by 0. Even if the result is replaced afterwards, the gradient
is NaN: 0 times infinity. Divide by at least 1, so that it never happens."""

AsManyFromTheStart = CrossEntropy.but(
    "total = F.cross_entropy(logits[counted], …",
    "first = torch.arange(targets.shape[-1]) < counted.sum(dim=-1, keepdim=True)\n"
    "safe = targets.masked_fill(~counted, 0)\n"
    'total = F.cross_entropy(logits[first], safe[first], reduction="sum")',
)
"""As many positions as count are taken from the start of each sequence. Those that do not count may
be anywhere, and not only at the end: select by `targets != ignore_index`."""

ZeroWithoutAGradient = CrossEntropy.but(
    "return loss_of(…",
    "if (targets == ignore_index).all():\n"
    "    return torch.zeros((), dtype=logits.dtype)\n"
    "return loss_of(logits, targets, ignore_index)",
)
"""If no target counts, a new 0 is returned that does not depend on the logits, so `backward()`
fails: compute the sum of no terms, and divide by at least 1."""

ConvertedToPlainNumbers = CrossEntropy.but(
    "return torch.stack(…",
    "losses = [loss_of(x, t, ignore_index).item() for x, t in pairs]\n"
    "return torch.tensor(losses, dtype=logits.dtype)",
)
"""The losses of the sequences are converted to plain numbers, which have no gradient: torch.stack
joins tensors and keeps their gradients."""


# 0.3 ------------------------------------------------------------------------------------------
class SplitHeads(Correct, exercise="split_heads"):
    def split_heads(x, num_heads):
        return torch.stack(x.chunk(num_heads, dim=2), dim=1)

    def merge_heads(heads):
        return torch.cat(list(heads.unbind(dim=1)), dim=2)

    def time_first(x):
        return torch.stack(list(x.unbind(dim=1)))

    def head_scores(query, key):
        return query @ key.transpose(2, 3)


ViewWithoutTranspose = SplitHeads.but(
    "return torch.stack(x.chunk(num_heads, dim=2), dim=1)",
    "batch, length, d_model = x.shape\n"
    "return x.reshape(batch, num_heads, length, d_model // num_heads)",
)
"""The shape is correct and the numbers are not: a view only regroups the numbers in their order in
memory, so a head gets only a few tokens. Split d_model into heads first, then swap the axes."""

WidthBeforeHeads = SplitHeads.but(
    "return torch.stack(x.chunk(num_heads, dim=2), dim=1)",
    "batch, length, d_model = x.shape\n"
    "return x.reshape(batch, length, d_model // num_heads, num_heads).permute(0, 3, 1, 2)",
)
"""Each head takes every num_heads-th feature; head 0 should get the first d_head features. In the
view, num_heads must come before d_head."""

HeadsBeforeBatch = SplitHeads.but("chunk(num_heads, dim=2), dim=1", "chunk(num_heads, dim=-1)")
"""The heads are on the first axis; the batch must stay first, with the heads second."""

MergedWithoutTranspose = SplitHeads.but(
    "return torch.cat(list(heads.unbind(dim=1)), dim=2)",
    "batch, num_heads, length, d_head = heads.shape\n"
    "return heads.reshape(batch, length, num_heads * d_head)",
)
"""The heads are concatenated as they lie in memory, so a token gets pieces of other tokens: swap
the axes of heads and length before you flatten."""

MergedInterleaved = SplitHeads.but(
    "torch.cat(list(heads.unbind(dim=1)), dim=2)", "heads.permute(0, 2, 3, 1).flatten(2)"
)
"""The heads' features are interleaved: all of head 0 must come first, then all of head 1."""

HeadsAddedUp = SplitHeads.but("torch.cat(list(heads.unbind(dim=1)), dim=2)", "heads.sum(dim=1)")
"""The heads are added up; merging concatenates them, so that d_model is num_heads times d_head
again."""

AxesSwappedByAView = SplitHeads.but(
    "return torch.stack(list(x.unbind(dim=1)))",
    "batch, length, d_model = x.shape\nreturn x.reshape(length, batch, d_model)",
)
"""A view with the two sizes swapped moves no number, so tokens of one sequence end up in another:
swap the axes (transpose), not the sizes."""

KeysInRows = SplitHeads.but("return query …", 'return torch.einsum("bhqd,bhkd->bhkq", query, key)')
"""Rows hold keys and columns hold queries: each row should belong to a query."""

AllAxesReversed = SplitHeads.but("transpose(2, 3)", "permute(3, 2, 1, 0)")
"""All axes of the keys are reversed, batch and heads too (.T does that): swap only the last two."""

KeysSummedOverTheHeads = SplitHeads.but(
    "query @ key.transpose(2, 3)", 'torch.einsum("bhqd,bgkd->bhqk", query, key)'
)
"""The letter for the heads differs between the two inputs, so einsum sums the keys over all heads:
a letter that is in one input only, and not in the output, is summed over."""

FeaturesSummedSeparately = SplitHeads.but(
    "query @ key.transpose(2, 3)", 'torch.einsum("bhqd,bhke->bhqk", query, key)'
)
"""The letter for the features differs between the two inputs, so einsum sums each over its features
and multiplies the sums: a dot product needs the same letter in both."""


# 0.4 ------------------------------------------------------------------------------------------
class Bigram(Correct, exercise="bigram"):
    def pair_counts(documents, vocab_size):
        counts = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
        for document in documents:
            for previous, following in zip(document[:-1], document[1:], strict=True):
                counts[previous, following] += 1
        return counts

    def bigram(documents, vocab_size, smoothing):
        counts = pair_counts(documents, vocab_size) + smoothing
        return (counts / counts.sum(dim=1, keepdim=True)).log()

    def surprisals(log_probs, documents):
        return torch.cat([log_probs[d[:-1], d[1:]] for d in documents])

    def bigram_loss(log_probs, documents):
        return -surprisals(log_probs, documents).mean()

    first_loss = math.log


CountsTransposed = Bigram.but(
    "(documents, vocab_size) + smoothing", "(documents, vocab_size).T + smoothing"
)
"""A row belongs to the token that follows; it should belong to the token before, so that each row
is one prediction."""

NormalisedOverThePreviousToken = Bigram.but("dim=1", "dim=0")
"""The columns sum to 1, so they say which token came before. Given the token before, the
probabilities of the next token must sum to 1: normalise each row."""

ColumnsDividedByTheRowSums = Bigram.but("1, keepdim=True", "1")
"""The row sums have lost their axis, so each column is divided by one of them: keep the axis with
keepdim=True."""

JointProbabilities = Bigram.but("sum(dim=1, keepdim=True)", "sum()")
"""The whole table is normalised to sum to 1, which gives the probability of each pair; each row
needs its own total, to give the probability of the next token."""

RepeatedPairsCountedOnce = Bigram.but(
    "for previous, …\n    counts[previous, …", "counts[document[:-1], document[1:]] += 1"
)
"""`counts[rows, columns] += 1` adds 1 to a pair once, however often it occurs among the indices:
count pair by pair, or with bincount or index_put_(accumulate=True)."""

PairsAcrossDocuments = Bigram.but("in documents", "in [torch.cat(documents)]", times=2)
"""The documents are joined first, so the last token of one and the first of the next make a pair
that is in no document: count within each document."""

LastPairLost = Bigram.but(
    "pair_counts(documents, vocab_size) +", "pair_counts([d[:-1] for d in documents], vocab_size) +"
)
"""The last pair of each document is missing: n tokens make n - 1 pairs."""

DocumentsOfTwoTokensLeftOut = Bigram.but(
    "for document in documents:", "for document in (d for d in documents if len(d) > 2):"
).but("in documents])", "in documents if len(d) > 2])")
"""Documents of two tokens are left out, but each has one pair: only a document of one token has
none."""

LogarithmForgotten = Bigram.but(
    "(counts / counts.sum(dim=1, keepdim=True)).log()", "counts / counts.sum(dim=1, keepdim=True)"
)
"""These are the probabilities; return their logarithms."""

NotSmoothed = Bigram.but("(documents, vocab_size) + smoothing", "(documents, vocab_size)")
"""The smoothing is not used: a pair that was never seen gets probability 0, and its loss is
infinite when it occurs."""

SmoothingForUnseenPairsOnly = Bigram.but(
    "pair_counts(documents, vocab_size) + smoothing",
    "pair_counts(documents, vocab_size)\ncounts = counts.masked_fill(counts == 0, smoothing)",
)
"""Only the pairs that were never seen get the smoothing: add it to every count."""

VocabularyFromTheText = Bigram.but(
    "counts = torch.zeros(vocab_size, …",
    "vocab_size = 1 + max(int(d.max()) for d in documents)\n"
    "counts = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)",
)
"""The largest token in the text sets the size of the table. A token need not occur: the table has
`vocab_size` rows and columns."""

EpsilonInTheLogarithm = Bigram.but("keepdim=True)).log()", "keepdim=True) + 1e-9).log()")
"""A small number is added inside the logarithm; with little smoothing, an unseen pair's
probability is no larger than that number. Leave it out: the smoothing already keeps every
probability above 0."""

SmoothedInTheNumeratorOnly = Bigram.but(
    "counts = pair_counts(documents, …\nreturn …",
    "counts = pair_counts(documents, vocab_size)\n"
    "totals = counts.sum(dim=1, keepdim=True).clamp(min=1)\n"
    "return ((counts + smoothing) / totals).log()",
)
"""The smoothing is added to the counts and not to the row sums, so a row sums to more than 1:
divide by the sum of the smoothed counts."""

SmoothedAfterwards = Bigram.but(
    "counts = pair_counts(documents, …\nreturn …",
    "counts = pair_counts(documents, vocab_size)\n"
    "totals = counts.sum(dim=1, keepdim=True).clamp(min=1)\n"
    "return (counts / totals + smoothing).log()",
)
"""The smoothing is added to the probabilities, so a row sums to more than 1: add it to the counts,
before they are divided by their sum."""

SoftmaxOfCounts = Bigram.but(
    "return (counts / counts.sum(dim=1, keepdim=True)).log()", "return counts.log_softmax(dim=1)"
)
"""A softmax takes exponentials, but counts are already in proportion to the probabilities: divide
each row by its sum."""

BitsInsteadOfNats = Bigram.but(").mean()", ").mean() / math.log(2)").but(
    "math.log\n", "math.log2\n"
)
"""The losses are in bits: nats use the natural logarithm."""

SignForgotten = Bigram.but("-surprisals", "surprisals")
"""The minus sign is missing: log-probabilities are negative, and surprisals are positive."""

SumInsteadOfMean = Bigram.but("documents).mean()", "documents).sum()")
"""The surprisals are summed, so a longer text has a larger loss: take their mean."""

AverageOfAverages = Bigram.but(
    "-surprisals(…", "-torch.stack([surprisals(log_probs, [d]).mean() for d in documents]).mean()"
)
"""The documents' means are averaged, so pairs of short documents count more: take one mean over all
pairs."""

DividedByTheNumberOfTokens = Bigram.but(
    "-surprisals(log_probs, documents).mean()",
    "-surprisals(log_probs, documents).sum() / sum(map(len, documents))",
)
"""The sum is divided by the number of tokens: a document of n tokens has n - 1 pairs."""

LogarithmOfTheMean = Bigram.but("documents).mean()", "documents).exp().mean().log()")
"""This is minus the logarithm of the mean probability; the loss is the mean surprisal, in which
one bad prediction shows."""

ProbabilityInsteadOfLoss = Bigram.but("math.log\n", "lambda vocab_size: 1 / vocab_size\n")
"""This is 1/V, the probability that a uniform prediction gives to the correct token; the loss is
minus its logarithm."""


# 0.5 ------------------------------------------------------------------------------------------
class Activations(Correct, exercise="activations"):
    def tanh_by_sigmoid(x):
        return torch.tanh(x)

    def silu(x):
        return F.silu(x)

    def softplus(x):
        return F.softplus(x)

    def gelu(x):
        return F.gelu(x)

    def gelu_tanh(x):
        return F.gelu(x, approximate="tanh")


HalfTheArgument = Activations.but("torch.tanh(x)", "2 * torch.sigmoid(x) - 1")
"""2σ(x) - 1 is tanh(x/2): double x inside the sigmoid."""

TanhFromExponentials = Activations.but(
    "torch.tanh(x)", "(x.exp() - (-x).exp()) / (x.exp() + (-x).exp())"
)
"""For large |x| one exponential is infinite, and inf/inf is NaN: torch.sigmoid is stable there."""

SiluInsteadOfSoftplus = Activations.but("F.softplus(x)", "x * torch.sigmoid(x)")
"""x·σ(x) is SiLU, which dips below zero; softplus is ln(1 + e^x), which never does."""

SoftplusInsteadOfSilu = Activations.but("F.silu(x)", "F.softplus(x)")
"""This is softplus, a smooth ReLU that is positive everywhere; SiLU is x·σ(x)."""

SoftplusOverflows = Activations.but("F.softplus(x)", "torch.log(1 + torch.exp(x))")
"""e^1000 overflows, so ln(1 + e^x) is infinite and not 1000: compute it as the logsumexp of x and
0."""

SoftplusChosenAfterTheOverflow = Activations.but(
    "F.softplus(x)", "torch.where(x > 50, x, torch.log1p(torch.exp(x)))"
)
"""e^1000 overflows before torch.where discards it, and its gradient is NaN, 0 times infinity: make
the exponent small before exp, as in max(x, 0) + ln(1 + e^-|x|)."""

SiluOverflows = Activations.but("F.silu(x)", "x * (x.exp() / (1 + x.exp()))")
"""e^x / (1 + e^x) is inf/inf for large x: torch.sigmoid is stable there."""

RootOfTwoForgotten = Activations.but("F.gelu(x)", "x * (1 + torch.erf(x)) / 2")
"""The normal distribution function is (1 + erf(x/√2)) / 2: the square root is missing."""

ApproximateGelu = Activations.but("F.gelu(x)", 'F.gelu(x, approximate="tanh")')
"""gelu uses an approximation; it differs from the exact function in the fourth decimal place."""

ExactGelu = Activations.but(', approximate="tanh"', "")
"""gelu_tanh returns the exact GELU; models trained with the approximation need the
approximation."""

CubicTermForgotten = Activations.but(
    "F.gelu(x, …", "0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * x))"
)
"""The cubic term 0.044715·x³ inside the tanh is missing."""

CubicTermTenTimesTooLarge = Activations.but(
    "F.gelu(x, …",
    "0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.44715 * x**3)))",
)
"""The factor of the cubic term should be 0.044715, not 0.44715: a zero is missing."""

CubicTermOutsideTheFactor = Activations.but(
    "F.gelu(x, …", "0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * x + 0.044715 * x**3))"
)
"""Inside the tanh, √(2/π) multiplies x only; it should multiply the cubic term as well: check the
brackets."""

SigmoidInsteadOfTheDistribution = Activations.but("F.gelu(x)", "x * torch.sigmoid(1.702 * x)")
"""This is x·σ(1.702x), an approximation that is wrong in the second decimal place: the normal
distribution function is (1 + erf(x/√2)) / 2."""

SigmoidApproximation = Activations.but("F.gelu(x, …", "x * torch.sigmoid(1.702 * x)")
"""x·σ(1.702x) is another approximation of GELU; use the tanh approximation."""


# 0.6 ------------------------------------------------------------------------------------------
class Step(Correct, exercise="gradient_step"):
    def gradient_step(weights, bias, x, labels, learning_rate):
        error = torch.sigmoid(x @ weights + bias) - labels
        n = len(labels)
        return weights - learning_rate * (error @ x) / n, bias - learning_rate * error.sum() / n

    def classifier_step(weights, bias, x, labels, learning_rate):
        error = (x @ weights + bias).softmax(dim=1) - F.one_hot(labels, len(bias))
        n = len(labels)
        return weights - learning_rate * (x.T @ error) / n, bias - learning_rate * error.sum(0) / n


StepUphill = Step.but("- learning_rate", "+ learning_rate", times=4)
"""The step goes uphill: subtract the gradient, in which the error is prediction minus truth,
not truth minus prediction."""

SumInsteadOfMean = Step.but(" / n", "", times=4)
"""The gradient is summed over the batch: the loss is a mean, so divide by the number of examples,
or the step grows with the batch."""

BiasNotUpdated = Step.but(", bias - …", ", bias", times=2)
"""The bias is returned unchanged. Its gradient is the mean of the errors over the examples only:
over the classes, the errors of an example sum to 0."""

BiasGradientFromNewWeights = Step.but(
    "return weights - learning_rate * (error @ x) / n, …",
    "weights = weights - learning_rate * (error @ x) / n\n"
    "error = torch.sigmoid(x @ weights + bias) - labels\n"
    "return weights, bias - learning_rate * error.sum() / n",
).but(
    "return weights - learning_rate * (x.T @ error) / n, …",
    "weights = weights - learning_rate * (x.T @ error) / n\n"
    "error = (x @ weights + bias).softmax(dim=1) - F.one_hot(labels, len(bias))\n"
    "return weights, bias - learning_rate * error.sum(0) / n",
)
"""The errors are recomputed between the two updates, so the gradient of the bias belongs to the new
weights: compute both gradients first, then update the parameters."""

OneBiasPerExample = Step.but("error.sum() / n", "error").but("error.sum(0) / n", "error")
"""The bias gets one error per example; it has no batch axis, and its gradient is the mean of the
errors."""

ExponentialsOverflow = Step.but(
    "torch.sigmoid(x @ weights + bias)",
    "(x @ weights + bias).exp() / (1 + (x @ weights + bias).exp())",
).but(
    "error = (x @ weights + bias).softmax(dim=1)",
    "shares = (x @ weights + bias).exp()\nerror = shares / shares.sum(dim=1, keepdim=True)",
)
"""exp() of a logit in the thousands is infinite, and inf/inf is NaN: use torch.sigmoid and softmax,
or subtract the largest logit first."""

SquaredError = Step.but(
    "error = torch.sigmoid(…",
    "p = torch.sigmoid(x @ weights + bias)\nerror = (p - labels) * p * (1 - p)",
)
"""This is half the gradient of the squared error, (p - y) times the sigmoid's slope. With
cross-entropy that slope cancels, and the error is p - y."""

LabelsAsNumbers = Step.but("F.one_hot(labels, len(bias))", "labels[:, None]")
"""The class index is subtracted from all probabilities; the label must be one-hot, so that 1 is
subtracted from the probability of the correct class."""

EveryLabelForEveryExample = Step.but(
    "error = (x …", "error = (x @ weights + bias).softmax(dim=1)\nerror[:, labels] -= 1"
)
"""`p[:, labels]` picks the columns of all labels in every row; one label belongs to one row:
`p[torch.arange(n), labels]`, or a one-hot matrix."""

ClassesCountedFromTheLabels = Step.but("labels, len(bias)", "labels")
"""`F.one_hot(labels)` takes the largest label in the batch to be the last class: a batch need not
contain every class, so specify the number of classes."""

ExamplesCompete = Step.but("dim=1", "dim=0")
"""The softmax runs over the examples (dim=0); the classes of one example should compete."""

AlsoDividedByTheNumberOfClasses = Step.but(
    "len(bias))\nn = len(labels)", "len(bias))\nn = len(labels) * len(bias)"
)
"""The gradient is divided by the number of classes as well: the loss is a mean over examples, and
each has one loss, not one per class."""

GradientTransposed = Step.but("x.T @ error", "error.T @ x")
"""The gradient is transposed: give it the shape of the weights, (d_in, classes), one entry for each
input and class."""

UpdatedInPlace = Step.but(
    "return weights - learning_rate * (error @ x) / n, …",
    "weights -= learning_rate * (error @ x) / n\n"
    "bias -= learning_rate * error.sum() / n\n"
    "return weights, bias",
)
"""The caller's parameters are changed (`weights -= …`): return new ones."""


class StepByAutograd(Step):
    """Autograd finds the gradients here: this exercise is to be done by hand. The errors, p - y,
    are all that you need."""

    def gradient_step(weights, bias, x, labels, learning_rate):
        w, b = weights.clone().requires_grad_(), bias.clone().requires_grad_()
        F.binary_cross_entropy_with_logits(x @ w + b, labels.to(x.dtype)).backward()
        return (w - learning_rate * w.grad).detach(), (b - learning_rate * b.grad).detach()

    def classifier_step(weights, bias, x, labels, learning_rate):
        w, b = weights.clone().requires_grad_(), bias.clone().requires_grad_()
        F.cross_entropy(x @ w + b, labels).backward()
        return (w - learning_rate * w.grad).detach(), (b - learning_rate * b.grad).detach()


# 0.7 ------------------------------------------------------------------------------------------
class Dropout(Correct, exercise="mended_dropout"):
    def mended_dropout(x, noise, rate, training):
        return x * (noise >= rate) / (1 - rate) if training else x


ScaledByTheRate = Dropout.but(
    "return …", "if not training:\n    return x\nreturn x * (noise >= rate) / rate"
)
"""The features that are kept are divided by the rate, as in the published function. Divide by the
probability that a feature is kept, 1 - rate."""

RateTakenForTheKeepProbability = Dropout.but(
    "(noise >= rate) / (1 - rate)", "(noise < rate) / rate"
)
"""Both lines now agree, but on the wrong meaning: the rate is the probability of dropping a
feature, and this keeps it with that probability."""

KeptBelowTheRate = Dropout.but("noise >= rate", "noise < rate")
"""The scale is correct, but the wrong features are kept: drop a feature where its noise is below
the rate."""

MultipliedByTheKeptFraction = Dropout.but("/ (1 - rate)", "* (1 - rate)")
"""The features that are kept are multiplied by 1 - rate, which makes them smaller still: divide by
it, so that the mean stays the same."""

NotRescaled = Dropout.but("return …", "return x * (noise >= rate) if training else x")
"""The features that are kept are not scaled up, so sums are smaller in training than in evaluation:
divide by 1 - rate."""

ActiveInEvaluation = Dropout.but("(1 - rate) if training else x", "(1 - rate)")
"""Features are dropped in evaluation too, so predictions become random: in evaluation, return x
unchanged."""

ScaledInEvaluationToo = Dropout.but(
    "(1 - rate) if training else x", "(1 - rate) if training else x * (1 - rate)"
)
"""The features are scaled in training and again in evaluation: one of the two is enough, and here
it is training that scales."""

DividedByTheObservedFraction = Dropout.but(
    "return x * (noise >= rate) / (1 - rate) if training else x",
    "if not training:\n"
    "    return x\n"
    "keep = (noise >= rate).to(x.dtype)\n"
    "return x * keep / keep.mean().clamp(min=1e-9)",
)
"""The scale is the fraction that happened to be kept, so each feature depends on which others were
dropped: divide by the expected fraction, 1 - rate."""

NoiseEqualToTheRateDropped = Dropout.but("noise >= rate", "noise > rate")
"""A feature whose noise is exactly the rate is dropped: drop only where the noise is below the
rate. At rate 0, a noise of 0 would drop a feature."""

DroppedInPlace = Dropout.but(
    "return …", "if training:\n    x[noise < rate] = 0\n    x /= 1 - rate\nreturn x"
)
"""The caller's features are overwritten (`x[...] = 0`, `x /= …`): return a new tensor."""


# 0.8 ------------------------------------------------------------------------------------------
class CheckSoftmax(Correct, exercise="check_softmax"):
    def agree(seen, expected):
        if seen.shape != expected.shape:
            return False
        return bool(((seen - expected).abs() <= 1e-5).all())

    def alike(seen, expected):
        return seen.shape == expected.shape and bool(((seen - expected).abs() <= 1e-5).all())

    def check_softmax(softmax):
        generator = torch.Generator().manual_seed(1)
        scores = torch.randn(3, 4, generator=generator)
        scores = torch.cat([scores, 40 * scores, scores + 1000, scores - 1000])
        for dim in (0, 1):
            assert alike(softmax(scores, dim), torch.softmax(scores, dim)), f"wrong, dim {dim}"


NothingAsserted = CheckSoftmax.but(
    "generator = …\n    assert …",
    "weights = softmax(torch.eye(3, 4), -1)\n"
    "torch.allclose(weights.sum(-1), torch.ones(3))\n"
    'print("shape:", weights.shape)',
)
"""No wrong softmax fails this test: assert that the weights are correct, on scores for which wrong
ones differ, such as rows that lie 1000 apart."""

WrongWeightsThatSumToOne = CheckSoftmax.but("40 * scores, ", "").but(
    "assert …",
    "total = softmax(scores, dim).sum(dim)\nassert alike(total, torch.ones_like(total))",
)
"""Wrong weights that sum to 1 get past: compare each weight with a known one, and not only
in rows where one weight is 1 and the others are 0."""

OnlyOneDimensionTested = CheckSoftmax.but(
    "for …\n    assert …", "assert alike(softmax(scores, -1), torch.softmax(scores, -1))"
)
"""Only one dimension is tested (in a table, -1 and 1 are the same), so a softmax that ignores the
argument goes unnoticed."""

OnlyHarmlessScores = CheckSoftmax.but("scores = torch.cat(…", "")
"""All scores are so near 0 that nothing overflows and nothing is clamped: try scores around 1000
and around -1000 too."""

NearZeroAndAlongOneDimension = OnlyHarmlessScores.but(
    "for …\n    assert …", "assert alike(softmax(scores, -1), torch.softmax(scores, -1))"
)
"""All scores are so near 0 that nothing overflows and nothing is clamped, and only one dimension is
tested: try scores around 1000 and around -1000 too, along both dimensions."""

RowsFarApartNotTested = CheckSoftmax.but("scores = torch.cat(…", "").but(
    "for …\n    assert …",
    "for some in (scores, scores + 1000, scores - 1000):\n"
    "    for dim in (0, 1):\n"
    "        assert alike(softmax(some, dim), torch.softmax(some, dim))",
)
"""One shift for all rows goes unnoticed: put rows around 0, 1000 and -1000 into one tensor, test it
along dim=-1, and reject weights that are too small as well."""

OneRowAlone = CheckSoftmax.but(
    "scores = torch.cat(…\n    assert …",
    "for some in (scores[0], scores[0] + 1000, scores[0] - 1000):\n"
    "    assert alike(softmax(some, 0), torch.softmax(some, 0))",
)
"""Every call has one row, or rows close together, and the same dimension. Only a table with
rows 1000 apart, tested along both dimensions, shows whether each row has its own shift and whether
`dim` is used."""

OnlyTheOrderCompared = CheckSoftmax.but(
    "assert …",
    "weights = softmax(scores, dim)\n"
    "assert (weights.argmax(dim) == torch.softmax(scores, dim).argmax(dim)).all()",
)
"""Wrong weights get past if only their order and their sums are right, as with a base other than e
or another temperature: compare each weight with a known one, to within 0.00001, in rows of scores
around 0."""

OverflowGetsPast = CheckSoftmax.but(
    "assert …",
    "difference = (softmax(scores, dim) - torch.softmax(scores, dim)).abs()\n"
    "assert not (difference > 1e-4).any()",
)
"""An overflow gets past. Either no exponential overflows (add scores around 1000 and -1000), or NaN
passes: NaN > tolerance is False, so test that every difference is small, not that none is large."""

NoToleranceForRounding = (
    CheckSoftmax.but("return bool(…", "return bool((seen == expected).all())")
    .but("assert alike", "assert torch.equal")
    .but("randn(3, 4", "randn(50, 7")
)
"""Correct results fail. Either floats are compared exactly, or nearly so, and rounding makes them
differ: tolerate 0.00001. Or a condition is inverted."""

SumsExactlyOne = CheckSoftmax.but("randn(3, 4", "randn(100, 7").but(
    "scores = torch.cat(…\n    assert …", "assert (softmax(scores, -1).sum(-1) == 1).all()"
)
"""The sums are required to be exactly 1, and after rounding they rarely are: allow a tolerance."""

ZeroWeightsForbidden = CheckSoftmax.but(
    "assert …",
    "weights = softmax(scores, dim)\n"
    "assert (weights > 0).all()\n"
    "assert alike(weights, torch.softmax(scores, dim))",
)
"""Every weight is required to be above 0. If scores lie far apart, the weight of the smaller rounds
to 0, and that is correct: require at least 0."""

TestsUnspecifiedBehaviour = CheckSoftmax.but(
    "generator = …",
    "weights = softmax(torch.full((2, 3), -math.inf), -1)\n"
    "assert alike(weights, torch.zeros(2, 3))\n"
    "generator = torch.Generator().manual_seed(1)",
)
"""The test requires one particular result for a row of minus infinities, on which correct
implementations differ: leave such rows out."""

NanAgrees = CheckSoftmax.but(
    "return bool(…", "return not bool(((seen - expected).abs() > 1e-5).any())"
)
"""`NaN > 0.00001` is False, so a search for large differences finds none: test whether every
difference is small."""

SignedDifference = CheckSoftmax.but(
    "return bool(…", "return bool(((seen - expected) <= 1e-5).all())"
)
"""The difference keeps its sign, so numbers that are too small always agree: take the absolute
value."""

ShapesBroadcast = CheckSoftmax.but("if …\n    return False", "")
"""Subtraction broadcasts one shape to the other, so a single number can agree with a whole table:
compare the shapes first."""

NanEqualsNan = CheckSoftmax.but(
    "return bool(…", "return torch.allclose(seen, expected, rtol=0, atol=1e-5, equal_nan=True)"
)
"""NaN is taken to equal NaN, so a softmax that returns NaN could pass. NaN agrees with nothing
(omit equal_nan=True)."""

RelativeToleranceNotZero = CheckSoftmax.but(
    "return bool(…", "return torch.allclose(seen, expected, atol=1e-5)"
)
"""torch.allclose adds rtol times the expected number to atol, and rtol is not 0 by default: large
numbers may then differ by more."""

ToleranceTooLarge = CheckSoftmax.but(
    "return bool(…", "return bool(((seen - expected).abs() <= 1e-3).all())"
)
"""The comparison is too tolerant: each number must be correct to within 0.00001, and an average
hides a single wrong one."""
