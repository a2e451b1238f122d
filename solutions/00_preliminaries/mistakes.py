"""The named mistakes of chapter 00: what a message can name, and what graders are tested with."""

import math

import torch
import torch.nn.functional as F

from classroom.answers import Mistake

# 0.0 ------------------------------------------------------------------------------------------


class MeanOfColumns(Mistake, exercise="mean_of_rows"):
    """This is the mean of each column: the axis that is averaged away must be that of the
    columns (dim=1), so that one number per row is left."""

    def mean_of_rows(x):
        return x.mean(dim=0)


class MeanOfEverything(Mistake, exercise="mean_of_rows"):
    """This is one mean over all numbers; each row has its own."""

    def mean_of_rows(x):
        return x.mean()


class SumOfRows(Mistake, exercise="mean_of_rows"):
    """These are the sums: a mean is divided by how many numbers the row has."""

    def mean_of_rows(x):
        return x.sum(dim=1)


class DividedByTheRows(Mistake, exercise="mean_of_rows"):
    """The sum of a row is divided by the number of rows; a row has as many numbers as there are
    columns."""

    def mean_of_rows(x):
        return x.sum(dim=1) / len(x)


class AxisLeftOver(Mistake, exercise="mean_of_rows"):
    """The means are right, but an axis of size 1 is left over (keepdim=True): one number per row
    has the shape (rows,)."""

    def mean_of_rows(x):
        return x.mean(dim=1, keepdim=True)


# 0.1 ------------------------------------------------------------------------------------------


class NoShift(Mistake, exercise="stable_softmax"):
    """exp() of 1000 is infinite and exp() of -1000 is 0, and neither inf/inf nor 0/0 is a number:
    subtract the largest score of the row first."""

    def stable_softmax(scores, dim):
        exponentials = scores.exp()
        weights = exponentials / exponentials.sum(dim=dim, keepdim=True)
        return weights.masked_fill(scores == -math.inf, 0.0)

    def log_softmax(scores, dim):
        return torch.log_softmax(scores, dim).masked_fill(torch.isneginf(scores), -math.inf)

    logsumexp = torch.logsumexp


class LargestOfAll(Mistake, exercise="stable_softmax"):
    """One shift for all rows, by the largest score of all: rows that lie far below it underflow
    to 0/0. Every row needs its own shift."""

    def stable_softmax(scores, dim):
        exponentials = (scores - scores.max()).exp()
        weights = exponentials / exponentials.sum(dim=dim, keepdim=True)
        return weights.masked_fill(scores == -math.inf, 0.0)

    def log_softmax(scores, dim):
        return torch.log_softmax(scores, dim).masked_fill(torch.isneginf(scores), -math.inf)

    logsumexp = torch.logsumexp


class ShiftByTheMean(Mistake, exercise="stable_softmax"):
    """The mean of the row is subtracted: with scores far apart, the largest still overflows. Only
    below the largest score is every exponential at most 1."""

    def stable_softmax(scores, dim):
        exponentials = (scores - scores.mean(dim=dim, keepdim=True)).exp()
        weights = exponentials / exponentials.sum(dim=dim, keepdim=True)
        return weights.masked_fill(scores == -math.inf, 0.0)

    def log_softmax(scores, dim):
        return torch.log_softmax(scores, dim).masked_fill(torch.isneginf(scores), -math.inf)

    logsumexp = torch.logsumexp


class NormalisedOverEverything(Mistake, exercise="stable_softmax"):
    """The total runs over the whole tensor; it must run along dim only."""

    def stable_softmax(scores, dim):
        exponentials = (scores - scores.amax(dim=dim, keepdim=True)).exp().nan_to_num(0.0)
        return exponentials / exponentials.sum()

    def log_softmax(scores, dim):
        return torch.log_softmax(scores, dim).masked_fill(torch.isneginf(scores), -math.inf)

    logsumexp = torch.logsumexp


class AlwaysTheLastDimension(Mistake, exercise="stable_softmax"):
    """The argument dim is ignored: the softmax always runs along the last dimension."""

    def softmax_of(scores, dim):
        return torch.softmax(scores, dim).masked_fill(torch.isneginf(scores), 0.0)

    def stable_softmax(scores, dim):
        return softmax_of(scores, -1)

    def log_softmax(scores, dim):
        return torch.log_softmax(scores, dim).masked_fill(torch.isneginf(scores), -math.inf)

    logsumexp = torch.logsumexp


class AxisNotKept(Mistake, exercise="stable_softmax"):
    """Without keepdim=True the largest scores lose their axis, and are then lined up with another
    one: an error if you are lucky, wrong weights if the sizes happen to be equal."""

    def stable_softmax(scores, dim):
        exponentials = (scores - scores.amax(dim=dim)).exp()
        return exponentials / exponentials.sum(dim=dim)

    def log_softmax(scores, dim):
        return torch.log_softmax(scores, dim).masked_fill(torch.isneginf(scores), -math.inf)

    logsumexp = torch.logsumexp


class TotalNotKept(Mistake, exercise="stable_softmax"):
    """The largest score keeps its axis and the total does not, so the total is lined up with
    another axis: it needs keepdim=True as well."""

    def stable_softmax(scores, dim):
        exponentials = (scores - scores.amax(dim=dim, keepdim=True)).exp()
        return exponentials / exponentials.sum(dim=dim)

    def log_softmax(scores, dim):
        return torch.log_softmax(scores, dim).masked_fill(torch.isneginf(scores), -math.inf)

    logsumexp = torch.logsumexp


class LogarithmOfTheSoftmax(Mistake, exercise="stable_softmax"):
    """The logarithm is taken after the softmax has rounded small weights to 0, and ln 0 is minus
    infinity: subtract the logarithm of the total from the scores."""

    def softmax_of(scores, dim):
        return torch.softmax(scores, dim).masked_fill(torch.isneginf(scores), 0.0)

    stable_softmax = softmax_of

    def log_softmax(scores, dim):
        return softmax_of(scores, dim).log()

    logsumexp = torch.logsumexp


class LargestNotAddedBack(Mistake, exercise="stable_softmax"):
    """The shift is taken out of the exponentials and never added again: ln Σ exp(s) is m plus
    ln Σ exp(s - m)."""

    def stable_softmax(scores, dim):
        return torch.softmax(scores, dim).masked_fill(torch.isneginf(scores), 0.0)

    def log_softmax(scores, dim):
        return torch.log_softmax(scores, dim).masked_fill(torch.isneginf(scores), -math.inf)

    def logsumexp(scores, dim):
        largest = scores.amax(dim=dim, keepdim=True).nan_to_num(neginf=0.0)
        return (scores - largest).exp().sum(dim=dim).log()


class NothingOverNothing(Mistake, exercise="stable_softmax"):
    """A row of minus infinities gives NaN: its largest score is minus infinity as well, and
    -inf - (-inf) is no number. Such a row needs a shift that is finite, and then a total that is
    not divided by while it is 0."""

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


class EvenShareOfNothing(Mistake, exercise="stable_softmax"):
    """A row of minus infinities gets even weights. It forbids every place, so no place may get
    anything: its weights are 0."""

    def stable_softmax(scores, dim):
        return torch.softmax(scores.clamp(min=-1e9), dim)

    def log_softmax(scores, dim):
        return torch.log_softmax(scores, dim).masked_fill(torch.isneginf(scores), -math.inf)

    logsumexp = torch.logsumexp


class ShiftedInPlace(Mistake, exercise="stable_softmax"):
    """The shift is written into the scores of whoever called: `scores -= …` changes their tensor,
    `scores - …` makes a new one."""

    def stable_softmax(scores, dim):
        largest = scores.max(dim=dim, keepdim=True).values
        scores -= largest.masked_fill(largest == -math.inf, 0.0)
        exponentials = scores.exp()
        return exponentials / exponentials.sum(dim=dim, keepdim=True).clamp(min=1e-300)

    def log_softmax(scores, dim):
        return torch.log_softmax(scores, dim).masked_fill(torch.isneginf(scores), -math.inf)

    logsumexp = torch.logsumexp


# 0.2 ------------------------------------------------------------------------------------------


class SoftmaxTwice(Mistake, exercise="cross_entropy"):
    """The logits go through a softmax before the log-softmax, which has one inside: cross-entropy
    starts from logits, not from probabilities."""

    def loss_of(logits, targets, ignore_index):
        counted = targets != ignore_index
        total = F.cross_entropy(logits[counted], targets[counted], reduction="sum")
        return total / counted.sum().clamp(min=1)

    def losses_of(logits, targets, ignore_index):
        pairs = zip(logits, targets, strict=True)
        return torch.stack([loss_of(x, t, ignore_index) for x, t in pairs])

    def cross_entropy(logits, targets, ignore_index):
        return loss_of(logits.softmax(dim=-1), targets, ignore_index)

    def sequence_losses(logits, targets, ignore_index):
        return losses_of(logits.softmax(dim=-1), targets, ignore_index)


class EpsilonInTheLogarithm(Mistake, exercise="cross_entropy"):
    """A small number is added inside the logarithm, so no surprise is larger than about 20 nats,
    and being sure and wrong teaches nothing: take the log-softmax of the logits instead."""

    def loss_of(logits, targets, ignore_index):
        counted = targets != ignore_index
        total = F.cross_entropy(logits[counted], targets[counted], reduction="sum")
        return total / counted.sum().clamp(min=1)

    def cross_entropy(logits, targets, ignore_index):
        counted = targets != ignore_index
        probabilities = logits.softmax(dim=-1)[counted]
        right = probabilities.gather(1, targets[counted][:, None])
        return -(right + 1e-9).log().sum() / counted.sum().clamp(min=1)

    def sequence_losses(logits, targets, ignore_index):
        pairs = zip(logits, targets, strict=True)
        return torch.stack([loss_of(x, t, ignore_index) for x, t in pairs])


class MinusForgotten(Mistake, exercise="cross_entropy"):
    """The minus is missing: ln p is never positive, and a surprise is never negative."""

    def loss_of(logits, targets, ignore_index):
        counted = targets != ignore_index
        total = F.cross_entropy(logits[counted], targets[counted], reduction="sum")
        return total / counted.sum().clamp(min=1)

    def losses_of(logits, targets, ignore_index):
        pairs = zip(logits, targets, strict=True)
        return torch.stack([loss_of(x, t, ignore_index) for x, t in pairs])

    def cross_entropy(logits, targets, ignore_index):
        return -loss_of(logits, targets, ignore_index)

    def sequence_losses(logits, targets, ignore_index):
        return -losses_of(logits, targets, ignore_index)


class TimesCompete(Mistake, exercise="cross_entropy"):
    """The softmax runs along the length (dim=1), so that places compete; at each place it is the
    tokens of the vocabulary that do, along the last axis."""

    def terms(logits, targets, ignore_index):
        counted = targets != ignore_index
        index = targets.masked_fill(~counted, 0).unsqueeze(-1)
        return -logits.log_softmax(dim=1).gather(-1, index).squeeze(-1) * counted, counted

    def cross_entropy(logits, targets, ignore_index):
        losses, counted = terms(logits, targets, ignore_index)
        return losses.sum() / counted.sum().clamp(min=1)

    def sequence_losses(logits, targets, ignore_index):
        losses, counted = terms(logits, targets, ignore_index)
        return losses.sum(dim=1) / counted.sum(dim=1).clamp(min=1)


class MeanOverIgnoredToo(Mistake, exercise="cross_entropy"):
    """The sum leaves the ignored targets out, but it is divided by the number of all targets:
    the more padding, the smaller the loss. Divide by how many count."""

    def cross_entropy(logits, targets, ignore_index):
        counted = targets != ignore_index
        total = F.cross_entropy(logits[counted], targets[counted], reduction="sum")
        return total / targets.numel()

    def sequence_losses(logits, targets, ignore_index):
        return torch.stack(
            [cross_entropy(x, t, ignore_index) for x, t in zip(logits, targets, strict=True)]
        )


class IgnoredTermsStay(Mistake, exercise="cross_entropy"):
    """The ignored targets are turned into an index that exists, so that nothing crashes, and then
    their terms stay in the sum: set those terms to 0."""

    def cross_entropy(logits, targets, ignore_index):
        right = logits.log_softmax(dim=-1).gather(-1, targets.clamp(min=0)[..., None])
        return -right.sum() / (targets != ignore_index).sum().clamp(min=1)

    def sequence_losses(logits, targets, ignore_index):
        return torch.stack(
            [cross_entropy(x, t, ignore_index) for x, t in zip(logits, targets, strict=True)]
        )


class VocabularyOnTheWrongAxis(Mistake, exercise="cross_entropy"):
    """torch's cross_entropy looks for the vocabulary on axis 1, and here it is the last: join
    batch and length to one axis first. With equal sizes there would be no error, just a wrong
    loss."""

    def loss_of(logits, targets, ignore_index):
        counted = targets != ignore_index
        total = F.cross_entropy(logits[counted], targets[counted], reduction="sum")
        return total / counted.sum().clamp(min=1)

    def cross_entropy(logits, targets, ignore_index):
        return F.cross_entropy(logits, targets, ignore_index=ignore_index)

    def sequence_losses(logits, targets, ignore_index):
        pairs = zip(logits, targets, strict=True)
        return torch.stack([loss_of(x, t, ignore_index) for x, t in pairs])


class MeanOfMeans(Mistake, exercise="cross_entropy"):
    """The means of the sequences are averaged, so a token of a short sequence counts more than
    one of a long sequence: add up everything first, and divide once."""

    def loss_of(logits, targets, ignore_index):
        counted = targets != ignore_index
        total = F.cross_entropy(logits[counted], targets[counted], reduction="sum")
        return total / counted.sum().clamp(min=1)

    def losses_of(logits, targets, ignore_index):
        pairs = zip(logits, targets, strict=True)
        return torch.stack([loss_of(x, t, ignore_index) for x, t in pairs])

    def cross_entropy(logits, targets, ignore_index):
        return losses_of(logits, targets, ignore_index).mean()

    sequence_losses = losses_of


class AddedUpOverTime(Mistake, exercise="cross_entropy"):
    """The loss is divided by the number of sequences only, so it grows with their length: divide
    by the number of targets that count."""

    def loss_of(logits, targets, ignore_index):
        counted = targets != ignore_index
        total = F.cross_entropy(logits[counted], targets[counted], reduction="sum")
        return total / counted.sum().clamp(min=1)

    def cross_entropy(logits, targets, ignore_index):
        counted = targets != ignore_index
        total = F.cross_entropy(logits[counted], targets[counted], reduction="sum")
        return total / len(logits)

    def sequence_losses(logits, targets, ignore_index):
        pairs = zip(logits, targets, strict=True)
        return torch.stack([loss_of(x, t, ignore_index) for x, t in pairs])


class OnlyMinusHundred(Mistake, exercise="cross_entropy"):
    """Only -100 is ignored, whatever ignore_index says; it is an argument because others ignore,
    for instance, the number of their padding token."""

    def loss_of(logits, targets, ignore_index):
        counted = targets != ignore_index
        total = F.cross_entropy(logits[counted], targets[counted], reduction="sum")
        return total / counted.sum().clamp(min=1)

    def losses_of(logits, targets, ignore_index):
        pairs = zip(logits, targets, strict=True)
        return torch.stack([loss_of(x, t, ignore_index) for x, t in pairs])

    def cross_entropy(logits, targets, ignore_index):
        return loss_of(logits, targets, -100)

    def sequence_losses(logits, targets, ignore_index):
        return losses_of(logits, targets, -100)


class ZeroOverZero(Mistake, exercise="cross_entropy"):
    """A sequence without a target divides 0 by 0, and one NaN spoils every average it gets into:
    its loss is 0 here."""

    def cross_entropy(logits, targets, ignore_index):
        return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=ignore_index)

    def sequence_losses(logits, targets, ignore_index):
        return torch.stack(
            [cross_entropy(x, t, ignore_index) for x, t in zip(logits, targets, strict=True)]
        )


class DividedAndThenReplaced(Mistake, exercise="cross_entropy"):
    """The 0/0 is replaced after it has happened, and its gradient stays NaN: 0 times infinity.
    Divide by at least 1, so that it never happens."""

    def loss_of(logits, targets, ignore_index):
        counted = targets != ignore_index
        total = F.cross_entropy(logits[counted], targets[counted], reduction="sum")
        return total / counted.sum().clamp(min=1)

    def cross_entropy(logits, targets, ignore_index):
        return loss_of(logits, targets, ignore_index)

    def sequence_losses(logits, targets, ignore_index):
        counted = targets != ignore_index
        index = targets.masked_fill(~counted, 0).unsqueeze(-1)
        right = logits.log_softmax(dim=-1).gather(-1, index).squeeze(-1) * counted
        number = counted.sum(dim=1)
        return torch.where(number == 0, 0.0, -right.sum(dim=1) / number)


class TakenOutAsNumbers(Mistake, exercise="cross_entropy"):
    """The losses of the sequences are copied as plain numbers, and nothing can be learned from
    those: torch.stack joins tensors and keeps their gradients."""

    def loss_of(logits, targets, ignore_index):
        counted = targets != ignore_index
        total = F.cross_entropy(logits[counted], targets[counted], reduction="sum")
        return total / counted.sum().clamp(min=1)

    def cross_entropy(logits, targets, ignore_index):
        return loss_of(logits, targets, ignore_index)

    def sequence_losses(logits, targets, ignore_index):
        pairs = zip(logits, targets, strict=True)
        losses = [loss_of(x, t, ignore_index).item() for x, t in pairs]
        return torch.tensor(losses, dtype=logits.dtype)


# 0.3 ------------------------------------------------------------------------------------------


class ViewWithoutTranspose(Mistake, exercise="split_heads"):
    """The shape is right and the numbers are not: a view only cuts the row of numbers anew, so a
    head gets neighbouring tokens whole. Cut d_model into heads first, then exchange axes."""

    def split_heads(x, num_heads):
        batch, length, d_model = x.shape
        return x.reshape(batch, num_heads, length, d_model // num_heads)

    def merge_heads(heads):
        return torch.cat(list(heads.unbind(dim=1)), dim=2)

    def time_first(x):
        return torch.stack(list(x.unbind(dim=1)))

    def head_scores(query, key):
        return query @ key.transpose(2, 3)


class WidthBeforeHeads(Mistake, exercise="split_heads"):
    """Each head takes every num_heads-th feature; head 0 should get the first d_head features,
    side by side. In the cut, num_heads comes before d_head."""

    def split_heads(x, num_heads):
        batch, length, d_model = x.shape
        return x.reshape(batch, length, d_model // num_heads, num_heads).permute(0, 3, 1, 2)

    def merge_heads(heads):
        return torch.cat(list(heads.unbind(dim=1)), dim=2)

    def time_first(x):
        return torch.stack(list(x.unbind(dim=1)))

    def head_scores(query, key):
        return query @ key.transpose(2, 3)


class HeadsBeforeBatch(Mistake, exercise="split_heads"):
    """The heads are the first axis; batch stays the first, heads are the second."""

    def split_heads(x, num_heads):
        return torch.stack(x.chunk(num_heads, dim=-1))

    def merge_heads(heads):
        return torch.cat(list(heads.unbind(dim=1)), dim=2)

    def time_first(x):
        return torch.stack(list(x.unbind(dim=1)))

    def head_scores(query, key):
        return query @ key.transpose(2, 3)


class MergedWithoutTranspose(Mistake, exercise="split_heads"):
    """The heads are glued together as they lie in memory, so a token gets pieces of other tokens:
    exchange the axes of heads and length before you flatten."""

    def split_heads(x, num_heads):
        return torch.stack(x.chunk(num_heads, dim=2), dim=1)

    def merge_heads(heads):
        batch, num_heads, length, d_head = heads.shape
        return heads.reshape(batch, length, num_heads * d_head)

    def time_first(x):
        return torch.stack(list(x.unbind(dim=1)))

    def head_scores(query, key):
        return query @ key.transpose(2, 3)


class MergedInterleaved(Mistake, exercise="split_heads"):
    """The heads' features are shuffled like cards: all of head 0 comes first, then all of
    head 1."""

    def split_heads(x, num_heads):
        return torch.stack(x.chunk(num_heads, dim=2), dim=1)

    def merge_heads(heads):
        return heads.permute(0, 2, 3, 1).flatten(2)

    def time_first(x):
        return torch.stack(list(x.unbind(dim=1)))

    def head_scores(query, key):
        return query @ key.transpose(2, 3)


class HeadsAddedUp(Mistake, exercise="split_heads"):
    """The heads are added up; merging puts them side by side, so that d_model is num_heads times
    d_head again."""

    def split_heads(x, num_heads):
        return torch.stack(x.chunk(num_heads, dim=2), dim=1)

    def merge_heads(heads):
        return heads.sum(dim=1)

    def time_first(x):
        return torch.stack(list(x.unbind(dim=1)))

    def head_scores(query, key):
        return query @ key.transpose(2, 3)


class TimeByView(Mistake, exercise="split_heads"):
    """A view with the two sizes exchanged moves no number, so tokens of one sequence land in
    another: exchange the axes (transpose), not the sizes."""

    def split_heads(x, num_heads):
        return torch.stack(x.chunk(num_heads, dim=2), dim=1)

    def merge_heads(heads):
        return torch.cat(list(heads.unbind(dim=1)), dim=2)

    def time_first(x):
        batch, length, d_model = x.shape
        return x.reshape(length, batch, d_model)

    def head_scores(query, key):
        return query @ key.transpose(2, 3)


class KeysInRows(Mistake, exercise="split_heads"):
    """Rows hold keys and columns hold queries: each row should belong to a query."""

    def split_heads(x, num_heads):
        return torch.stack(x.chunk(num_heads, dim=2), dim=1)

    def merge_heads(heads):
        return torch.cat(list(heads.unbind(dim=1)), dim=2)

    def time_first(x):
        return torch.stack(list(x.unbind(dim=1)))

    def head_scores(query, key):
        return torch.einsum("bhqd,bhkd->bhkq", query, key)


class AllAxesReversed(Mistake, exercise="split_heads"):
    """All axes of the keys are turned round, batch and heads too (.T does that): exchange only
    the last two."""

    def split_heads(x, num_heads):
        return torch.stack(x.chunk(num_heads, dim=2), dim=1)

    def merge_heads(heads):
        return torch.cat(list(heads.unbind(dim=1)), dim=2)

    def time_first(x):
        return torch.stack(list(x.unbind(dim=1)))

    def head_scores(query, key):
        return query @ key.permute(3, 2, 1, 0)


class KeysOfAllHeads(Mistake, exercise="split_heads"):
    """The letter of the heads differs between the two inputs, so einsum adds up the keys of all
    heads: a letter that is in one input only, and not in the output, is summed over."""

    def split_heads(x, num_heads):
        return torch.stack(x.chunk(num_heads, dim=2), dim=1)

    def merge_heads(heads):
        return torch.cat(list(heads.unbind(dim=1)), dim=2)

    def time_first(x):
        return torch.stack(list(x.unbind(dim=1)))

    def head_scores(query, key):
        return torch.einsum("bhqd,bgkd->bhqk", query, key)


# 0.4 ------------------------------------------------------------------------------------------


class CountsTransposed(Mistake, exercise="bigram"):
    """A row belongs to the token that follows; it should belong to the token before, so that each
    row is one forecast."""

    def pair_counts(documents, vocab_size):
        counts = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
        for document in documents:
            for previous, following in zip(document[:-1], document[1:], strict=True):
                counts[previous, following] += 1
        return counts

    def bigram(documents, vocab_size, smoothing):
        counts = pair_counts(documents, vocab_size).T + smoothing
        return (counts / counts.sum(dim=1, keepdim=True)).log()

    def bigram_loss(log_probs, documents):
        return -torch.cat([log_probs[d[:-1], d[1:]] for d in documents]).mean()

    first_loss = math.log


class NormalisedOverThePrevious(Mistake, exercise="bigram"):
    """The columns sum to 1: that says which token came before. Given the token before, the
    probabilities of what follows must sum to 1, and they are a row."""

    def pair_counts(documents, vocab_size):
        counts = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
        for document in documents:
            for previous, following in zip(document[:-1], document[1:], strict=True):
                counts[previous, following] += 1
        return counts

    def bigram(documents, vocab_size, smoothing):
        counts = pair_counts(documents, vocab_size) + smoothing
        return (counts / counts.sum(dim=0, keepdim=True)).log()

    def bigram_loss(log_probs, documents):
        return -torch.cat([log_probs[d[:-1], d[1:]] for d in documents]).mean()

    first_loss = math.log


class SumsLaidAlongTheColumns(Mistake, exercise="bigram"):
    """The sums of the rows have lost their axis, and each column is divided by one of them: with
    keepdim=True each row is."""

    def pair_counts(documents, vocab_size):
        counts = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
        for document in documents:
            for previous, following in zip(document[:-1], document[1:], strict=True):
                counts[previous, following] += 1
        return counts

    def bigram(documents, vocab_size, smoothing):
        counts = pair_counts(documents, vocab_size) + smoothing
        return (counts / counts.sum(dim=1)).log()

    def bigram_loss(log_probs, documents):
        return -torch.cat([log_probs[d[:-1], d[1:]] for d in documents]).mean()

    first_loss = math.log


class PairsOfAllRows(Mistake, exercise="bigram"):
    """All counts together are made to sum to 1, which gives the probability of the pair; each row
    needs its own total, to give that of the next token."""

    def pair_counts(documents, vocab_size):
        counts = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
        for document in documents:
            for previous, following in zip(document[:-1], document[1:], strict=True):
                counts[previous, following] += 1
        return counts

    def bigram(documents, vocab_size, smoothing):
        counts = pair_counts(documents, vocab_size) + smoothing
        return (counts / counts.sum()).log()

    def bigram_loss(log_probs, documents):
        return -torch.cat([log_probs[d[:-1], d[1:]] for d in documents]).mean()

    first_loss = math.log


class RepeatedPairsCountOnce(Mistake, exercise="bigram"):
    """`counts[rows, columns] += 1` adds 1 to a pair once, however often it stands among the
    indices: count pair by pair, or with bincount or index_put_(accumulate=True)."""

    def bigram(documents, vocab_size, smoothing):
        counts = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
        for document in documents:
            counts[document[:-1], document[1:]] += 1
        counts = counts + smoothing
        return (counts / counts.sum(dim=1, keepdim=True)).log()

    def bigram_loss(log_probs, documents):
        return -torch.cat([log_probs[d[:-1], d[1:]] for d in documents]).mean()

    first_loss = math.log


class AcrossTheEnds(Mistake, exercise="bigram"):
    """The documents are joined first, so the last token of one and the first of the next make a
    pair that nobody wrote: count inside each document."""

    def pair_counts(documents, vocab_size):
        counts = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
        for document in documents:
            for previous, following in zip(document[:-1], document[1:], strict=True):
                counts[previous, following] += 1
        return counts

    def model_of(documents, vocab_size, smoothing):
        counts = pair_counts(documents, vocab_size) + smoothing
        return (counts / counts.sum(dim=1, keepdim=True)).log()

    def mean_surprise(log_probs, documents):
        return -torch.cat([log_probs[d[:-1], d[1:]] for d in documents]).mean()

    def bigram(documents, vocab_size, smoothing):
        return model_of([torch.cat(documents)], vocab_size, smoothing)

    def bigram_loss(log_probs, documents):
        return mean_surprise(log_probs, [torch.cat(documents)])

    first_loss = math.log


class LastPairLost(Mistake, exercise="bigram"):
    """The last pair of each document is missing: n tokens make n - 1 pairs."""

    def pair_counts(documents, vocab_size):
        counts = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
        for document in documents:
            for previous, following in zip(document[:-1], document[1:], strict=True):
                counts[previous, following] += 1
        return counts

    def model_of(documents, vocab_size, smoothing):
        counts = pair_counts(documents, vocab_size) + smoothing
        return (counts / counts.sum(dim=1, keepdim=True)).log()

    def bigram(documents, vocab_size, smoothing):
        return model_of([document[:-1] for document in documents], vocab_size, smoothing)

    def bigram_loss(log_probs, documents):
        return -torch.cat([log_probs[d[:-1], d[1:]] for d in documents]).mean()

    first_loss = math.log


class LogarithmForgotten(Mistake, exercise="bigram"):
    """These are the probabilities; asked for are their logarithms."""

    def pair_counts(documents, vocab_size):
        counts = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
        for document in documents:
            for previous, following in zip(document[:-1], document[1:], strict=True):
                counts[previous, following] += 1
        return counts

    def bigram(documents, vocab_size, smoothing):
        counts = pair_counts(documents, vocab_size) + smoothing
        return counts / counts.sum(dim=1, keepdim=True)

    def bigram_loss(log_probs, documents):
        return -torch.cat([log_probs[d[:-1], d[1:]] for d in documents]).mean()

    first_loss = math.log


class NotSmoothed(Mistake, exercise="bigram"):
    """The smoothing is not used: a pair that was never seen gets probability 0, and costs an
    infinite loss when it turns up."""

    def pair_counts(documents, vocab_size):
        counts = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
        for document in documents:
            for previous, following in zip(document[:-1], document[1:], strict=True):
                counts[previous, following] += 1
        return counts

    def bigram(documents, vocab_size, smoothing):
        counts = pair_counts(documents, vocab_size)
        return (counts / counts.sum(dim=1, keepdim=True)).log()

    def bigram_loss(log_probs, documents):
        return -torch.cat([log_probs[d[:-1], d[1:]] for d in documents]).mean()

    first_loss = math.log


class SmoothedAboveTheLineOnly(Mistake, exercise="bigram"):
    """The smoothing is added to the counts and not to what they are divided by, so a row sums to
    more than 1: divide by the sum of the smoothed counts."""

    def pair_counts(documents, vocab_size):
        counts = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
        for document in documents:
            for previous, following in zip(document[:-1], document[1:], strict=True):
                counts[previous, following] += 1
        return counts

    def bigram(documents, vocab_size, smoothing):
        counts = pair_counts(documents, vocab_size)
        totals = counts.sum(dim=1, keepdim=True).clamp(min=1)
        return ((counts + smoothing) / totals).log()

    def bigram_loss(log_probs, documents):
        return -torch.cat([log_probs[d[:-1], d[1:]] for d in documents]).mean()

    first_loss = math.log


class BitsForNats(Mistake, exercise="bigram"):
    """The losses are in bits: nats use the natural logarithm."""

    def mean_surprise(log_probs, documents):
        return -torch.cat([log_probs[d[:-1], d[1:]] for d in documents]).mean()

    def pair_counts(documents, vocab_size):
        counts = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
        for document in documents:
            for previous, following in zip(document[:-1], document[1:], strict=True):
                counts[previous, following] += 1
        return counts

    def bigram(documents, vocab_size, smoothing):
        counts = pair_counts(documents, vocab_size) + smoothing
        return (counts / counts.sum(dim=1, keepdim=True)).log()

    def bigram_loss(log_probs, documents):
        return mean_surprise(log_probs, documents) / math.log(2)

    def first_loss(vocab_size):
        return math.log2(vocab_size)


class SignForgotten(Mistake, exercise="bigram"):
    """The sign is missing: logarithms of probabilities are negative, a surprise is positive."""

    def pair_counts(documents, vocab_size):
        counts = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
        for document in documents:
            for previous, following in zip(document[:-1], document[1:], strict=True):
                counts[previous, following] += 1
        return counts

    def surprises(log_probs, documents):
        return torch.cat([log_probs[d[:-1], d[1:]] for d in documents])

    def bigram(documents, vocab_size, smoothing):
        counts = pair_counts(documents, vocab_size) + smoothing
        return (counts / counts.sum(dim=1, keepdim=True)).log()

    def bigram_loss(log_probs, documents):
        return surprises(log_probs, documents).mean()

    first_loss = math.log


class PairsAddedUp(Mistake, exercise="bigram"):
    """The surprises are added up, so a longer text has a larger loss: take their mean."""

    def pair_counts(documents, vocab_size):
        counts = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
        for document in documents:
            for previous, following in zip(document[:-1], document[1:], strict=True):
                counts[previous, following] += 1
        return counts

    def surprises(log_probs, documents):
        return torch.cat([log_probs[d[:-1], d[1:]] for d in documents])

    def bigram(documents, vocab_size, smoothing):
        counts = pair_counts(documents, vocab_size) + smoothing
        return (counts / counts.sum(dim=1, keepdim=True)).log()

    def bigram_loss(log_probs, documents):
        return -surprises(log_probs, documents).sum()

    first_loss = math.log


class AverageOfAverages(Mistake, exercise="bigram"):
    """The documents' means are averaged, so pairs of short documents count more: take one mean
    over all pairs."""

    def pair_counts(documents, vocab_size):
        counts = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
        for document in documents:
            for previous, following in zip(document[:-1], document[1:], strict=True):
                counts[previous, following] += 1
        return counts

    def surprises(log_probs, documents):
        return torch.cat([log_probs[d[:-1], d[1:]] for d in documents])

    def bigram(documents, vocab_size, smoothing):
        counts = pair_counts(documents, vocab_size) + smoothing
        return (counts / counts.sum(dim=1, keepdim=True)).log()

    def bigram_loss(log_probs, documents):
        return -torch.stack([surprises(log_probs, [d]).mean() for d in documents]).mean()

    first_loss = math.log


class LogarithmOfTheMean(Mistake, exercise="bigram"):
    """The probabilities are averaged and the logarithm taken of that; the loss is the mean of the
    logarithms, and one bad forecast then shows."""

    def pair_counts(documents, vocab_size):
        counts = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
        for document in documents:
            for previous, following in zip(document[:-1], document[1:], strict=True):
                counts[previous, following] += 1
        return counts

    def surprises(log_probs, documents):
        return torch.cat([log_probs[d[:-1], d[1:]] for d in documents])

    def bigram(documents, vocab_size, smoothing):
        counts = pair_counts(documents, vocab_size) + smoothing
        return (counts / counts.sum(dim=1, keepdim=True)).log()

    def bigram_loss(log_probs, documents):
        return -surprises(log_probs, documents).exp().mean().log()

    first_loss = math.log


class ProbabilityForLoss(Mistake, exercise="bigram"):
    """This is the probability of the right token for a model that knows nothing, 1/V; the loss is
    minus its logarithm."""

    def pair_counts(documents, vocab_size):
        counts = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
        for document in documents:
            for previous, following in zip(document[:-1], document[1:], strict=True):
                counts[previous, following] += 1
        return counts

    def bigram(documents, vocab_size, smoothing):
        counts = pair_counts(documents, vocab_size) + smoothing
        return (counts / counts.sum(dim=1, keepdim=True)).log()

    def bigram_loss(log_probs, documents):
        return -torch.cat([log_probs[d[:-1], d[1:]] for d in documents]).mean()

    def first_loss(vocab_size):
        return 1 / vocab_size


# 0.5 ------------------------------------------------------------------------------------------


class HalfTheArgument(Mistake, exercise="activations"):
    """2σ(x) - 1 is tanh(x/2), although it has been printed as tanh(x): double x inside the
    sigmoid."""

    def tanh_by_sigmoid(x):
        return 2 * torch.sigmoid(x) - 1

    silu = F.silu
    softplus = F.softplus
    gelu = F.gelu

    def gelu_tanh(x):
        return F.gelu(x, approximate="tanh")


class TanhByExponentials(Mistake, exercise="activations"):
    """Far out the exponentials are infinite, and inf/inf is NaN: a sigmoid that is computed with
    care does not have that trouble."""

    def tanh_by_sigmoid(x):
        return (x.exp() - (-x).exp()) / (x.exp() + (-x).exp())

    silu = F.silu
    softplus = F.softplus
    gelu = F.gelu

    def gelu_tanh(x):
        return F.gelu(x, approximate="tanh")


class SiluForSoftplus(Mistake, exercise="activations"):
    """x·σ(x) is SiLU, which dips below zero; softplus is ln(1 + e^x), which never does."""

    tanh_by_sigmoid = torch.tanh
    silu = F.silu

    def softplus(x):
        return x * torch.sigmoid(x)

    gelu = F.gelu

    def gelu_tanh(x):
        return F.gelu(x, approximate="tanh")


class SoftplusForSilu(Mistake, exercise="activations"):
    """This is softplus, a smooth ReLU that is positive everywhere; SiLU is x·σ(x)."""

    tanh_by_sigmoid = torch.tanh

    def silu(x):
        return F.softplus(x)

    softplus = F.softplus
    gelu = F.gelu

    def gelu_tanh(x):
        return F.gelu(x, approximate="tanh")


class SoftplusOverflows(Mistake, exercise="activations"):
    """e^1000 is infinite, so ln(1 + e^x) is too, and should be 1000: it is the logarithm of a sum
    of exponentials, of x and 0."""

    tanh_by_sigmoid = torch.tanh
    silu = F.silu

    def softplus(x):
        return torch.log(1 + torch.exp(x))

    gelu = F.gelu

    def gelu_tanh(x):
        return F.gelu(x, approximate="tanh")


class SiluOverflows(Mistake, exercise="activations"):
    """e^x / (1 + e^x) is inf/inf for large x: use 1 / (1 + e^-x), or torch.sigmoid."""

    tanh_by_sigmoid = torch.tanh

    def silu(x):
        return x * (x.exp() / (1 + x.exp()))

    softplus = F.softplus
    gelu = F.gelu

    def gelu_tanh(x):
        return F.gelu(x, approximate="tanh")


class RootOfTwoForgotten(Mistake, exercise="activations"):
    """The normal distribution function is (1 + erf(x/√2)) / 2: the root is missing."""

    tanh_by_sigmoid = torch.tanh
    silu = F.silu
    softplus = F.softplus

    def gelu(x):
        return x * (1 + torch.erf(x)) / 2

    def gelu_tanh(x):
        return F.gelu(x, approximate="tanh")


class ApproximationForTheExact(Mistake, exercise="activations"):
    """gelu uses an approximation; it differs in the third digit from the one with erf."""

    tanh_by_sigmoid = torch.tanh
    silu = F.silu
    softplus = F.softplus

    def gelu(x):
        return F.gelu(x, approximate="tanh")

    def gelu_tanh(x):
        return F.gelu(x, approximate="tanh")


class ExactForTheApproximation(Mistake, exercise="activations"):
    """gelu_tanh is the exact function; models that were trained with the approximation want the
    approximation."""

    tanh_by_sigmoid = torch.tanh
    silu = F.silu
    softplus = F.softplus
    gelu = F.gelu

    def gelu_tanh(x):
        return F.gelu(x)


class CubeForgotten(Mistake, exercise="activations"):
    """The cubic term 0.044715·x³ inside the tanh is missing."""

    tanh_by_sigmoid = torch.tanh
    silu = F.silu
    softplus = F.softplus
    gelu = F.gelu

    def gelu_tanh(x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * x))


class RootOnXAlone(Mistake, exercise="activations"):
    """Inside the tanh, √(2/π) multiplies x only; it multiplies the cubic term as well: mind the
    bracket."""

    tanh_by_sigmoid = torch.tanh
    silu = F.silu
    softplus = F.softplus
    gelu = F.gelu

    def gelu_tanh(x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * x + 0.044715 * x**3))


class SigmoidApproximation(Mistake, exercise="activations"):
    """x·σ(1.702x) is another approximation of GELU; asked for is the one by tanh."""

    tanh_by_sigmoid = torch.tanh
    silu = F.silu
    softplus = F.softplus
    gelu = F.gelu

    def gelu_tanh(x):
        return x * torch.sigmoid(1.702 * x)


# 0.6 ------------------------------------------------------------------------------------------


class Uphill(Mistake, exercise="gradient_step"):
    """The step goes along the gradient, which is the way up: subtract it."""

    def one_step(weights, bias, x, labels, learning_rate):
        error = torch.sigmoid(x @ weights + bias) - labels
        n = len(labels)
        return weights - learning_rate * (error @ x) / n, bias - learning_rate * error.sum() / n

    def class_error(weights, bias, x, labels):
        return (x @ weights + bias).softmax(dim=1) - F.one_hot(labels, len(bias))

    def one_classifier_step(weights, bias, x, labels, learning_rate):
        error = class_error(weights, bias, x, labels)
        n = len(labels)
        return weights - learning_rate * (x.T @ error) / n, bias - learning_rate * error.sum(0) / n

    def gradient_step(weights, bias, x, labels, learning_rate):
        return one_step(weights, bias, x, labels, -learning_rate)

    def classifier_step(weights, bias, x, labels, learning_rate):
        return one_classifier_step(weights, bias, x, labels, -learning_rate)


class SumForMean(Mistake, exercise="gradient_step"):
    """The gradient is added up over the batch: the loss is a mean, so divide by the number of
    examples, or the step grows with the batch."""

    def one_step(weights, bias, x, labels, learning_rate):
        error = torch.sigmoid(x @ weights + bias) - labels
        n = len(labels)
        return weights - learning_rate * (error @ x) / n, bias - learning_rate * error.sum() / n

    def class_error(weights, bias, x, labels):
        return (x @ weights + bias).softmax(dim=1) - F.one_hot(labels, len(bias))

    def one_classifier_step(weights, bias, x, labels, learning_rate):
        error = class_error(weights, bias, x, labels)
        n = len(labels)
        return weights - learning_rate * (x.T @ error) / n, bias - learning_rate * error.sum(0) / n

    def gradient_step(weights, bias, x, labels, learning_rate):
        return one_step(weights, bias, x, labels, learning_rate * len(x))

    def classifier_step(weights, bias, x, labels, learning_rate):
        return one_classifier_step(weights, bias, x, labels, learning_rate * len(x))


class BiasLeftAlone(Mistake, exercise="gradient_step"):
    """The bias comes back as it was. It is a parameter and has a gradient too: the mean of the
    errors over the examples. (Over the classes, the errors of an example sum to 0.)"""

    def one_step(weights, bias, x, labels, learning_rate):
        error = torch.sigmoid(x @ weights + bias) - labels
        n = len(labels)
        return weights - learning_rate * (error @ x) / n, bias - learning_rate * error.sum() / n

    def class_error(weights, bias, x, labels):
        return (x @ weights + bias).softmax(dim=1) - F.one_hot(labels, len(bias))

    def one_classifier_step(weights, bias, x, labels, learning_rate):
        error = class_error(weights, bias, x, labels)
        n = len(labels)
        return weights - learning_rate * (x.T @ error) / n, bias - learning_rate * error.sum(0) / n

    def gradient_step(weights, bias, x, labels, learning_rate):
        return one_step(weights, bias, x, labels, learning_rate)[0], bias

    def classifier_step(weights, bias, x, labels, learning_rate):
        return one_classifier_step(weights, bias, x, labels, learning_rate)[0], bias


class BiasSeesNewWeights(Mistake, exercise="gradient_step"):
    """The errors are computed anew between the two updates, so the bias steps from another point:
    find both gradients first, then change the parameters."""

    def one_step(weights, bias, x, labels, learning_rate):
        error = torch.sigmoid(x @ weights + bias) - labels
        n = len(labels)
        return weights - learning_rate * (error @ x) / n, bias - learning_rate * error.sum() / n

    def class_error(weights, bias, x, labels):
        return (x @ weights + bias).softmax(dim=1) - F.one_hot(labels, len(bias))

    def one_classifier_step(weights, bias, x, labels, learning_rate):
        error = class_error(weights, bias, x, labels)
        n = len(labels)
        return weights - learning_rate * (x.T @ error) / n, bias - learning_rate * error.sum(0) / n

    def gradient_step(weights, bias, x, labels, learning_rate):
        weights = one_step(weights, bias, x, labels, learning_rate)[0]
        return weights, one_step(weights, bias, x, labels, learning_rate)[1]

    def classifier_step(weights, bias, x, labels, learning_rate):
        weights = one_classifier_step(weights, bias, x, labels, learning_rate)[0]
        return weights, one_classifier_step(weights, bias, x, labels, learning_rate)[1]


class OneBiasPerExample(Mistake, exercise="gradient_step"):
    """The bias gets one error per example; it is a single number, and its gradient is the mean of
    the errors."""

    def class_error(weights, bias, x, labels):
        return (x @ weights + bias).softmax(dim=1) - F.one_hot(labels, len(bias))

    def gradient_step(weights, bias, x, labels, learning_rate):
        error = torch.sigmoid(x @ weights + bias) - labels
        return weights - learning_rate * x.T @ error / len(x), bias - learning_rate * error

    def classifier_step(weights, bias, x, labels, learning_rate):
        error = class_error(weights, bias, x, labels)
        return weights - learning_rate * x.T @ error / len(x), bias - learning_rate * error


class SquaredError(Mistake, exercise="gradient_step"):
    """This is half the gradient of the squared error, p - y times the slope of the sigmoid. With
    cross-entropy that slope cancels, and the error is p - y."""

    def class_error(weights, bias, x, labels):
        return (x @ weights + bias).softmax(dim=1) - F.one_hot(labels, len(bias))

    def gradient_step(weights, bias, x, labels, learning_rate):
        p = torch.sigmoid(x @ weights + bias)
        error = (p - labels) * p * (1 - p) / len(labels)
        return weights - learning_rate * x.T @ error, bias - learning_rate * error.sum()

    def classifier_step(weights, bias, x, labels, learning_rate):
        error = class_error(weights, bias, x, labels)
        n = len(labels)
        return weights - learning_rate * (x.T @ error) / n, bias - learning_rate * error.sum(0) / n


class LabelsAsNumbers(Mistake, exercise="gradient_step"):
    """The number of the class is subtracted from all its probabilities; the label has to be
    one-hot, so that 1 is subtracted from the right one."""

    def gradient_step(weights, bias, x, labels, learning_rate):
        error = torch.sigmoid(x @ weights + bias) - labels
        n = len(labels)
        return weights - learning_rate * (error @ x) / n, bias - learning_rate * error.sum() / n

    def classifier_step(weights, bias, x, labels, learning_rate):
        error = (x @ weights + bias).softmax(dim=1) - labels[:, None]
        step = learning_rate / len(labels)
        return weights - step * x.T @ error, bias - step * error.sum(dim=0)


class EveryLabelForEveryExample(Mistake, exercise="gradient_step"):
    """`p[:, labels]` picks the columns of all labels in every row; one label belongs to one row:
    `p[torch.arange(n), labels]`, or a one-hot matrix."""

    def gradient_step(weights, bias, x, labels, learning_rate):
        error = torch.sigmoid(x @ weights + bias) - labels
        n = len(labels)
        return weights - learning_rate * (error @ x) / n, bias - learning_rate * error.sum() / n

    def classifier_step(weights, bias, x, labels, learning_rate):
        error = (x @ weights + bias).softmax(dim=1)
        error[:, labels] -= 1
        step = learning_rate / len(labels)
        return weights - step * x.T @ error, bias - step * error.sum(dim=0)


class ClassesCountedFromTheLabels(Mistake, exercise="gradient_step"):
    """`F.one_hot(labels)` takes the largest label of the batch for the last class: a batch need
    not hold every class, so say how many there are."""

    def gradient_step(weights, bias, x, labels, learning_rate):
        error = torch.sigmoid(x @ weights + bias) - labels
        n = len(labels)
        return weights - learning_rate * (error @ x) / n, bias - learning_rate * error.sum() / n

    def classifier_step(weights, bias, x, labels, learning_rate):
        error = (x @ weights + bias).softmax(dim=1) - F.one_hot(labels)
        step = learning_rate / len(labels)
        return weights - step * x.T @ error, bias - step * error.sum(dim=0)


class ExamplesCompete(Mistake, exercise="gradient_step"):
    """The softmax runs over the examples (dim=0); for one example the classes compete."""

    def gradient_step(weights, bias, x, labels, learning_rate):
        error = torch.sigmoid(x @ weights + bias) - labels
        n = len(labels)
        return weights - learning_rate * (error @ x) / n, bias - learning_rate * error.sum() / n

    def classifier_step(weights, bias, x, labels, learning_rate):
        error = (x @ weights + bias).softmax(dim=0) - F.one_hot(labels, len(bias))
        step = learning_rate / len(labels)
        return weights - step * x.T @ error, bias - step * error.sum(dim=0)


class DividedByTheClassesToo(Mistake, exercise="gradient_step"):
    """The gradient is divided by the number of classes as well: the loss is a mean over examples,
    and each has one loss, not one per class."""

    def class_error(weights, bias, x, labels):
        return (x @ weights + bias).softmax(dim=1) - F.one_hot(labels, len(bias))

    def one_classifier_step(weights, bias, x, labels, learning_rate):
        error = class_error(weights, bias, x, labels)
        n = len(labels)
        return weights - learning_rate * (x.T @ error) / n, bias - learning_rate * error.sum(0) / n

    def gradient_step(weights, bias, x, labels, learning_rate):
        error = torch.sigmoid(x @ weights + bias) - labels
        n = len(labels)
        return weights - learning_rate * (error @ x) / n, bias - learning_rate * error.sum() / n

    def classifier_step(weights, bias, x, labels, learning_rate):
        return one_classifier_step(weights, bias, x, labels, learning_rate / len(bias))


class GradientTransposed(Mistake, exercise="gradient_step"):
    """The gradient is transposed: it has the shape of the weights, (d_in, classes), because
    each input meets each error."""

    def class_error(weights, bias, x, labels):
        return (x @ weights + bias).softmax(dim=1) - F.one_hot(labels, len(bias))

    def gradient_step(weights, bias, x, labels, learning_rate):
        error = torch.sigmoid(x @ weights + bias) - labels
        n = len(labels)
        return weights - learning_rate * (error @ x) / n, bias - learning_rate * error.sum() / n

    def classifier_step(weights, bias, x, labels, learning_rate):
        error = class_error(weights, bias, x, labels)
        step = learning_rate / len(labels)
        return weights - step * error.T @ x, bias - step * error.sum(dim=0)


class UpdatedInPlace(Mistake, exercise="gradient_step"):
    """The parameters of whoever called are changed (`weights -= …`): return new ones."""

    def class_error(weights, bias, x, labels):
        return (x @ weights + bias).softmax(dim=1) - F.one_hot(labels, len(bias))

    def gradient_step(weights, bias, x, labels, learning_rate):
        error = (torch.sigmoid(x @ weights + bias) - labels) / len(labels)
        weights -= learning_rate * x.T @ error
        bias -= learning_rate * error.sum()
        return weights, bias

    def classifier_step(weights, bias, x, labels, learning_rate):
        error = class_error(weights, bias, x, labels)
        n = len(labels)
        return weights - learning_rate * (x.T @ error) / n, bias - learning_rate * error.sum(0) / n


# 0.7 ------------------------------------------------------------------------------------------


class ScaledByTheRate(Mistake, exercise="mended_dropout"):
    """What is left is divided by the rate, as in the published function: that is the share that
    was dropped. Divide by the share that is kept, 1 - rate."""

    def mended_dropout(x, noise, rate, training):
        if not training:
            return x
        return x * (noise >= rate) / rate


class RateIsTheShareKept(Mistake, exercise="mended_dropout"):
    """Both places now agree, but on the other meaning: the rate is the share to drop, and this
    keeps that share."""

    def mended_dropout(x, noise, rate, training):
        return x * (noise < rate) / rate if training else x


class BelowTheRateIsKept(Mistake, exercise="mended_dropout"):
    """The scale is right, and the wrong features are kept: where the noise is below the rate, a
    feature is dropped."""

    def mended_dropout(x, noise, rate, training):
        return x * (noise < rate) / (1 - rate) if training else x


class NotRescaled(Mistake, exercise="mended_dropout"):
    """What is left is not scaled up, so sums shrink in training and jump back in evaluation:
    divide by the share that is kept."""

    def mended_dropout(x, noise, rate, training):
        return x * (noise >= rate) if training else x


class ActiveInEvaluation(Mistake, exercise="mended_dropout"):
    """Features are dropped in evaluation too, and a forecast becomes a matter of luck: there x is
    returned as it is."""

    def mended_dropout(x, noise, rate, training):
        return x * (noise >= rate) / (1 - rate)


class ScaledInEvaluationToo(Mistake, exercise="mended_dropout"):
    """Evaluation scales down what training had scaled up already: one of the two is enough, and
    here it is training that scales."""

    def mended_dropout(x, noise, rate, training):
        return x * (noise >= rate) / (1 - rate) if training else x * (1 - rate)


class DividedByTheShareFound(Mistake, exercise="mended_dropout"):
    """The scale is the share that happened to be kept, so each feature depends on the luck of the
    others: divide by the share expected, 1 - rate."""

    def mended_dropout(x, noise, rate, training):
        if not training:
            return x
        keep = (noise >= rate).to(x.dtype)
        return x * keep / keep.mean().clamp(min=1e-9)


class DroppedInPlace(Mistake, exercise="mended_dropout"):
    """The features of whoever called are overwritten (`x[...] = 0`, `x /= …`): return a new
    tensor."""

    def mended_dropout(x, noise, rate, training):
        if training:
            x[noise < rate] = 0
            x /= 1 - rate
        return x


# 0.8 ------------------------------------------------------------------------------------------


class NothingAsserted(Mistake, exercise="check_softmax"):
    """Something is computed and printed, and nothing is asserted: no softmax can fail this."""

    def agree(seen, expected):
        if seen.shape != expected.shape:
            return False
        return bool(((seen - expected).abs() <= 1e-5).all())

    def check_softmax(softmax):
        weights = softmax(torch.randn(3, 4), -1)
        torch.allclose(weights.sum(-1), torch.ones(3))
        print("shape:", weights.shape)


class OnlyTheSum(Mistake, exercise="check_softmax"):
    """Only the sums are looked at, and many wrong weights sum to 1: compare the weights with ones
    you know."""

    def agree(seen, expected):
        if seen.shape != expected.shape:
            return False
        return bool(((seen - expected).abs() <= 1e-5).all())

    def check_softmax(softmax):
        generator = torch.Generator().manual_seed(2)
        scores = torch.randn(5, 7, generator=generator)
        scores = torch.cat([scores, scores + 1000, scores - 1000])
        for dim in (0, 1):
            total = softmax(scores, dim).sum(dim)
            assert agree(total, torch.ones_like(total))


class OnlyOneDimension(Mistake, exercise="check_softmax"):
    """Only one dimension is ever asked for, so an argument that is ignored goes unnoticed."""

    def agree(seen, expected):
        if seen.shape != expected.shape:
            return False
        return bool(((seen - expected).abs() <= 1e-5).all())

    def check_softmax(softmax):
        generator = torch.Generator().manual_seed(3)
        scores = torch.randn(5, 7, generator=generator)
        scores = torch.cat([scores, 40 * scores, scores + 1000, scores - 1000])
        assert agree(softmax(scores, -1), torch.softmax(scores, -1))


class OnlyHarmlessScores(Mistake, exercise="check_softmax"):
    """All scores are between -3 and 3, where nothing overflows and nothing is cut off: try scores
    around 1000 and around -1000 too."""

    def agree(seen, expected):
        if seen.shape != expected.shape:
            return False
        return bool(((seen - expected).abs() <= 1e-5).all())

    def check_softmax(softmax):
        generator = torch.Generator().manual_seed(4)
        scores = torch.randn(5, 7, generator=generator)
        for dim in (0, 1):
            assert agree(softmax(scores, dim), torch.softmax(scores, dim))


class NoNumberGetsPast(Mistake, exercise="check_softmax"):
    """NaN > tolerance is False, so a softmax full of NaN passes: ask whether every difference is
    small, not whether one is large."""

    def agree(seen, expected):
        if seen.shape != expected.shape:
            return False
        return bool(((seen - expected).abs() <= 1e-5).all())

    def check_softmax(softmax):
        generator = torch.Generator().manual_seed(5)
        scores = torch.randn(5, 7, generator=generator)
        scores = torch.cat([scores, 40 * scores, scores + 1000, scores - 1000])
        for dim in (0, 1):
            difference = (softmax(scores, dim) - torch.softmax(scores, dim)).abs()
            assert not (difference > 1e-4).any()


class RoundingForbidden(Mistake, exercise="check_softmax"):
    """Floats are compared with ==, which condemns right answers for their rounding: leave a
    tolerance."""

    def agree(seen, expected):
        return seen.shape == expected.shape and bool((seen == expected).all())

    def check_softmax(softmax):
        generator = torch.Generator().manual_seed(6)
        scores = torch.randn(50, 7, generator=generator)
        for dim in (0, 1):
            assert torch.equal(softmax(scores, dim), torch.softmax(scores, dim))


class SumsExactlyOne(Mistake, exercise="check_softmax"):
    """The sums are asked to be 1 exactly, and after rounding they rarely are: leave a
    tolerance."""

    def agree(seen, expected):
        if seen.shape != expected.shape:
            return False
        return bool(((seen - expected).abs() <= 1e-5).all())

    def check_softmax(softmax):
        generator = torch.Generator().manual_seed(7)
        scores = torch.randn(100, 7, generator=generator)
        assert (softmax(scores, -1).sum(-1) == 1).all()


class AsksForMoreThanWasAgreed(Mistake, exercise="check_softmax"):
    """It demands a certain answer for a row of minus infinities, on which right implementations
    differ: torch's returns NaN there."""

    def agree(seen, expected):
        if seen.shape != expected.shape:
            return False
        return bool(((seen - expected).abs() <= 1e-5).all())

    def compare_with_torch(softmax):
        generator = torch.Generator().manual_seed(1)
        scores = torch.randn(3, 4, generator=generator)
        scores = torch.cat([scores, 40 * scores, scores + 1000, scores - 1000])
        for dim in (0, 1):
            assert agree(softmax(scores, dim), torch.softmax(scores, dim)), f"wrong, dim {dim}"

    def check_softmax(softmax):
        compare_with_torch(softmax)
        weights = softmax(torch.full((2, 3), -math.inf), -1)
        assert agree(weights, torch.zeros(2, 3))


class NoNumberAgrees(Mistake, exercise="check_softmax"):
    """Comparing NaN with anything gives False, so a search for large differences finds none: ask
    whether every difference is small."""

    def alike(seen, expected):
        if seen.shape != expected.shape:
            return False
        return bool(((seen - expected).abs() <= 1e-5).all())

    def agree(seen, expected):
        if seen.shape != expected.shape:
            return False
        return not bool(((seen - expected).abs() > 1e-5).any())

    def check_softmax(softmax):
        generator = torch.Generator().manual_seed(1)
        scores = torch.randn(3, 4, generator=generator)
        scores = torch.cat([scores, 40 * scores, scores + 1000, scores - 1000])
        for dim in (0, 1):
            assert alike(softmax(scores, dim), torch.softmax(scores, dim)), f"wrong, dim {dim}"


class TooSmallIsFine(Mistake, exercise="check_softmax"):
    """The sign of the difference is kept, so numbers that are too small always agree: take the
    absolute value."""

    def alike(seen, expected):
        if seen.shape != expected.shape:
            return False
        return bool(((seen - expected).abs() <= 1e-5).all())

    def agree(seen, expected):
        return seen.shape == expected.shape and bool(((seen - expected) <= 1e-5).all())

    def check_softmax(softmax):
        generator = torch.Generator().manual_seed(1)
        scores = torch.randn(3, 4, generator=generator)
        scores = torch.cat([scores, 40 * scores, scores + 1000, scores - 1000])
        for dim in (0, 1):
            assert alike(softmax(scores, dim), torch.softmax(scores, dim)), f"wrong, dim {dim}"


class ShapesStretched(Mistake, exercise="check_softmax"):
    """A subtraction stretches one shape to fit the other, so a single number can agree with a
    whole table: compare the shapes first."""

    def alike(seen, expected):
        if seen.shape != expected.shape:
            return False
        return bool(((seen - expected).abs() <= 1e-5).all())

    def agree(seen, expected):
        return bool(((seen - expected).abs() <= 1e-5).all())

    def check_softmax(softmax):
        generator = torch.Generator().manual_seed(1)
        scores = torch.randn(3, 4, generator=generator)
        scores = torch.cat([scores, 40 * scores, scores + 1000, scores - 1000])
        for dim in (0, 1):
            assert alike(softmax(scores, dim), torch.softmax(scores, dim)), f"wrong, dim {dim}"


class NoNumberEqualsItself(Mistake, exercise="check_softmax"):
    """NaN is taken to equal NaN: a softmax that returns it would then pass against another that does.
    It agrees with nothing (leave out equal_nan=True)."""

    def alike(seen, expected):
        if seen.shape != expected.shape:
            return False
        return bool(((seen - expected).abs() <= 1e-5).all())

    def agree(seen, expected):
        return seen.shape == expected.shape and torch.allclose(
            seen, expected, rtol=0, atol=1e-5, equal_nan=True
        )

    def check_softmax(softmax):
        generator = torch.Generator().manual_seed(1)
        scores = torch.randn(3, 4, generator=generator)
        scores = torch.cat([scores, 40 * scores, scores + 1000, scores - 1000])
        for dim in (0, 1):
            assert alike(softmax(scores, dim), torch.softmax(scores, dim)), f"wrong, dim {dim}"


class RelativeToleranceLeft(Mistake, exercise="check_softmax"):
    """torch.allclose adds to atol a share of the expected number, rtol, which is not 0 unless you
    say so: large numbers may then differ by more."""

    def alike(seen, expected):
        if seen.shape != expected.shape:
            return False
        return bool(((seen - expected).abs() <= 1e-5).all())

    def agree(seen, expected):
        return seen.shape == expected.shape and torch.allclose(seen, expected, atol=1e-5)

    def check_softmax(softmax):
        generator = torch.Generator().manual_seed(1)
        scores = torch.randn(3, 4, generator=generator)
        scores = torch.cat([scores, 40 * scores, scores + 1000, scores - 1000])
        for dim in (0, 1):
            assert alike(softmax(scores, dim), torch.softmax(scores, dim)), f"wrong, dim {dim}"


class TooMuchIsForgiven(Mistake, exercise="check_softmax"):
    """Too much is forgiven: each single number has to be right to within 0.00001, and in an average
    a wrong one hides."""

    def alike(seen, expected):
        if seen.shape != expected.shape:
            return False
        return bool(((seen - expected).abs() <= 1e-5).all())

    def agree(seen, expected):
        return seen.shape == expected.shape and bool(((seen - expected).abs() <= 1e-3).all())

    def check_softmax(softmax):
        generator = torch.Generator().manual_seed(1)
        scores = torch.randn(3, 4, generator=generator)
        scores = torch.cat([scores, 40 * scores, scores + 1000, scores - 1000])
        for dim in (0, 1):
            assert alike(softmax(scores, dim), torch.softmax(scores, dim)), f"wrong, dim {dim}"
