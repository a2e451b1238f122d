"""The named mistakes of chapter 02: what a message can name, and what graders are tested with."""

import math

import torch
import torch.nn.functional as F

from classroom.answers import Mistake

# 2.1 ------------------------------------------------------------------------------------------


class TriangleFlipped(Mistake, exercise="causal_mask"):
    """The triangle is the wrong one: each query sees itself and the future, not the past."""

    def causal_mask(q_len, k_len):
        return torch.ones(q_len, k_len, dtype=torch.bool).triu(diagonal=k_len - q_len)


class OneStepAhead(Mistake, exercise="causal_mask"):
    """The diagonal is one too far: each query sees the token that it is supposed to forecast."""

    def causal_mask(q_len, k_len):
        return torch.ones(q_len, k_len, dtype=torch.bool).tril(diagonal=k_len - q_len + 1)


class ItselfHidden(Mistake, exercise="causal_mask"):
    """The diagonal is one too short: a query may see itself. The first one would see nothing at
    all, and a softmax over nothing is NaN."""

    def causal_mask(q_len, k_len):
        return torch.ones(q_len, k_len, dtype=torch.bool).tril(diagonal=k_len - q_len - 1)


class AlignedToTheFirstKey(Mistake, exercise="causal_mask"):
    """The queries are taken for the first positions; they are the last ones, because keys that
    were kept from earlier come first."""

    def causal_mask(q_len, k_len):
        return torch.ones(q_len, k_len, dtype=torch.bool).tril()


class AlwaysSquare(Mistake, exercise="causal_mask"):
    """The mask has a column per query; it needs one per key."""

    def causal_mask(q_len, k_len):
        return torch.ones(q_len, q_len, dtype=torch.bool).tril()


class SquareOfAllKeys(Mistake, exercise="causal_mask"):
    """The mask has a row for each of all positions; only the last q_len of them ask."""

    def causal_mask(q_len, k_len):
        return torch.ones(k_len, k_len, dtype=torch.bool).tril()


class TrueMeansHidden(Mistake, exercise="causal_mask"):
    """True and false are exchanged: here True says that attention is allowed."""

    def causal_mask(q_len, k_len):
        return torch.ones(q_len, k_len, dtype=torch.bool).triu(diagonal=k_len - q_len + 1)


class OnesAndZeros(Mistake, exercise="causal_mask"):
    """The mask holds the numbers 1 and 0 instead of True and False: ~ and & do not work on it."""

    def causal_mask(q_len, k_len):
        return torch.ones(q_len, k_len).tril(diagonal=k_len - q_len)


class ReadyToBeAdded(Mistake, exercise="causal_mask"):
    """This is a mask to add to the scores, 0 and minus infinity; a boolean one is asked for."""

    def causal_mask(q_len, k_len):
        return torch.full((q_len, k_len), -math.inf).triu(diagonal=k_len - q_len + 1)


# 2.2 ------------------------------------------------------------------------------------------


class QueriesMasked(Mistake, exercise="padding_mask"):
    """The mask stands along the queries: it is as a key that padding has to be hidden."""

    def padding_mask(lengths, k_len):
        return (torch.arange(k_len) < lengths[:, None])[:, None, :, None]


class PolarityInverted(Mistake, exercise="padding_mask"):
    """True marks the padding: here True says that attention is allowed."""

    def padding_mask(lengths, k_len):
        return (torch.arange(k_len) >= lengths[:, None])[:, None, None, :]


class OneTooMany(Mistake, exercise="padding_mask"):
    """The first padded position is let through: a sequence of length n has places 0 to n - 1."""

    def padding_mask(lengths, k_len):
        return (torch.arange(k_len) <= lengths[:, None])[:, None, None, :]


class CountedFromOne(Mistake, exercise="padding_mask"):
    """The last real token is hidden: places count from 0."""

    def padding_mask(lengths, k_len):
        return (torch.arange(1, k_len + 1) < lengths[:, None])[:, None, None, :]


class TwoAxesOnly(Mistake, exercise="padding_mask"):
    """The axes of heads and queries are missing: (batch, k_len) meets the scores as (q_len,
    k_len), so the batch is taken for the queries."""

    def padding_mask(lengths, k_len):
        return torch.arange(k_len) < lengths[:, None]


class HeadsForgotten(Mistake, exercise="padding_mask"):
    """An axis is missing: three axes meet scores of (batch, heads, q_len, k_len) as (heads,
    q_len, k_len), so the batch is taken for the heads."""

    def padding_mask(lengths, k_len):
        return (torch.arange(k_len) < lengths[:, None])[:, None, :]


class BatchOnTheAxisOfHeads(Mistake, exercise="padding_mask"):
    """The batch stands on the axis of the heads, so that each head hides another padding."""

    def padding_mask(lengths, k_len):
        return (torch.arange(k_len) < lengths[:, None])[None, :, None, :]


class PaddingInFront(Mistake, exercise="padding_mask"):
    """The mask hides the first places; the padding stands behind the real tokens."""

    def padding_mask(lengths, k_len):
        return (torch.arange(k_len) >= k_len - lengths[:, None])[:, None, None, :]


class AsLongAsTheLongest(Mistake, exercise="padding_mask"):
    """The mask is as long as the longest sequence; the keys may be padded further, to k_len."""

    def padding_mask(lengths, k_len):
        return (torch.arange(int(lengths.max())) < lengths[:, None])[:, None, None, :]


class QueriesMaskedToo(Mistake, exercise="padding_mask"):
    """Padded queries are forbidden everything, which leaves empty rows. Hide padding as a key;
    what a padded query says is read by nobody."""

    def padding_mask(lengths, k_len):
        real = torch.arange(k_len) < lengths[:, None]
        return (real[:, :, None] & real[:, None, :])[:, None]


# 2.3 ------------------------------------------------------------------------------------------


class AnyMaskWillDo(Mistake, exercise="combine_masks"):
    """The masks are joined by “or”: a key is visible only if every mask allows it."""

    def window_mask(length, window):
        place = torch.arange(length)
        return place[:, None] - place < window

    def document_mask(documents):
        return (documents[:, :, None] == documents[:, None, :])[:, None]

    def prefix_mask(prefix_lengths, length):
        place = torch.arange(length)
        return (place <= place[:, None]) | (place < prefix_lengths[:, None, None, None])

    def combine_masks(lengths, prefix_lengths, documents, window):
        length = documents.shape[1]
        real = torch.arange(length) < lengths[:, None, None, None]
        allowed = prefix_mask(prefix_lengths, length) | real
        return allowed | window_mask(length, window) | document_mask(documents)


class PrefixJoinedByAnd(Mistake, exercise="combine_masks"):
    """Prefix and causality are joined by “and”, so that nobody sees more than the prefix: what is
    allowed is the prefix or what came before."""

    def window_mask(length, window):
        place = torch.arange(length)
        return place[:, None] - place < window

    def document_mask(documents):
        return (documents[:, :, None] == documents[:, None, :])[:, None]

    def prefix_mask(prefix_lengths, length):
        place = torch.arange(length)
        return (place <= place[:, None]) & (place < prefix_lengths[:, None, None, None])

    def combine_masks(lengths, prefix_lengths, documents, window):
        length = documents.shape[1]
        real = torch.arange(length) < lengths[:, None, None, None]
        allowed = prefix_mask(prefix_lengths, length) & real
        return allowed & window_mask(length, window) & document_mask(documents)


class PrefixLost(Mistake, exercise="combine_masks"):
    """The prefix mask is causal in the prefix, too; inside it tokens see one another both ways."""

    def window_mask(length, window):
        place = torch.arange(length)
        return place[:, None] - place < window

    def document_mask(documents):
        return (documents[:, :, None] == documents[:, None, :])[:, None]

    def prefix_mask(prefix_lengths, length):
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        return causal.expand(len(prefix_lengths), 1, length, length)

    def combine_masks(lengths, prefix_lengths, documents, window):
        length = documents.shape[1]
        real = torch.arange(length) < lengths[:, None, None, None]
        allowed = prefix_mask(prefix_lengths, length) & real
        return allowed & window_mask(length, window) & document_mask(documents)


class PrefixOneTooLong(Mistake, exercise="combine_masks"):
    """A prefix of n tokens has places 0 to n - 1: the token after it is not given."""

    def window_mask(length, window):
        place = torch.arange(length)
        return place[:, None] - place < window

    def document_mask(documents):
        return (documents[:, :, None] == documents[:, None, :])[:, None]

    def prefix_mask(prefix_lengths, length):
        place = torch.arange(length)
        return (place <= place[:, None]) | (place <= prefix_lengths[:, None, None, None])

    def combine_masks(lengths, prefix_lengths, documents, window):
        length = documents.shape[1]
        real = torch.arange(length) < lengths[:, None, None, None]
        allowed = prefix_mask(prefix_lengths, length) & real
        return allowed & window_mask(length, window) & document_mask(documents)


class PrefixAboveAll(Mistake, exercise="combine_masks"):
    """The prefix is added at the end and shows again what other masks have hidden: join it with
    causality first, then with the others."""

    def window_mask(length, window):
        place = torch.arange(length)
        return place[:, None] - place < window

    def document_mask(documents):
        return (documents[:, :, None] == documents[:, None, :])[:, None]

    def prefix_mask(prefix_lengths, length):
        place = torch.arange(length)
        return (place <= place[:, None]) | (place < prefix_lengths[:, None, None, None])

    def combine_masks(lengths, prefix_lengths, documents, window):
        length = documents.shape[1]
        place = torch.arange(length)
        allowed = (place <= place[:, None]) & (place < lengths[:, None, None, None])
        allowed = allowed & window_mask(length, window) & document_mask(documents)
        return allowed | (place < prefix_lengths[:, None, None, None])


class WindowTooWide(Mistake, exercise="combine_masks"):
    """The window is one too wide: it counts the query itself, so `window` places back is too far."""

    def window_mask(length, window):
        place = torch.arange(length)
        return place[:, None] - place <= window

    def document_mask(documents):
        return (documents[:, :, None] == documents[:, None, :])[:, None]

    def prefix_mask(prefix_lengths, length):
        place = torch.arange(length)
        return (place <= place[:, None]) | (place < prefix_lengths[:, None, None, None])

    def combine_masks(lengths, prefix_lengths, documents, window):
        length = documents.shape[1]
        real = torch.arange(length) < lengths[:, None, None, None]
        allowed = prefix_mask(prefix_lengths, length) & real
        return allowed & window_mask(length, window) & document_mask(documents)


class WindowTooNarrow(Mistake, exercise="combine_masks"):
    """The window is one too narrow: the query and the window - 1 places before it stay visible."""

    def window_mask(length, window):
        place = torch.arange(length)
        return place[:, None] - place < window - 1

    def document_mask(documents):
        return (documents[:, :, None] == documents[:, None, :])[:, None]

    def prefix_mask(prefix_lengths, length):
        place = torch.arange(length)
        return (place <= place[:, None]) | (place < prefix_lengths[:, None, None, None])

    def combine_masks(lengths, prefix_lengths, documents, window):
        length = documents.shape[1]
        real = torch.arange(length) < lengths[:, None, None, None]
        allowed = prefix_mask(prefix_lengths, length) & real
        return allowed & window_mask(length, window) & document_mask(documents)


class WindowOnBothSides(Mistake, exercise="combine_masks"):
    """The window cuts off what lies ahead, too. How far ahead a query may look is the business of
    the prefix mask; the window says only how far back."""

    def window_mask(length, window):
        place = torch.arange(length)
        return (place[:, None] - place).abs() < window

    def document_mask(documents):
        return (documents[:, :, None] == documents[:, None, :])[:, None]

    def prefix_mask(prefix_lengths, length):
        place = torch.arange(length)
        return (place <= place[:, None]) | (place < prefix_lengths[:, None, None, None])

    def combine_masks(lengths, prefix_lengths, documents, window):
        length = documents.shape[1]
        real = torch.arange(length) < lengths[:, None, None, None]
        allowed = prefix_mask(prefix_lengths, length) & real
        return allowed & window_mask(length, window) & document_mask(documents)


class WindowIsCausal(Mistake, exercise="combine_masks"):
    """The window forbids all that lies ahead, so it takes the prefix back: each mask says one
    thing, and the window says how far back."""

    def window_mask(length, window):
        place = torch.arange(length)
        distance = place[:, None] - place
        return (distance >= 0) & (distance < window)

    def document_mask(documents):
        return (documents[:, :, None] == documents[:, None, :])[:, None]

    def prefix_mask(prefix_lengths, length):
        place = torch.arange(length)
        return (place <= place[:, None]) | (place < prefix_lengths[:, None, None, None])

    def combine_masks(lengths, prefix_lengths, documents, window):
        length = documents.shape[1]
        real = torch.arange(length) < lengths[:, None, None, None]
        allowed = prefix_mask(prefix_lengths, length) & real
        return allowed & window_mask(length, window) & document_mask(documents)


class DocumentsComparedWithPlaces(Mistake, exercise="combine_masks"):
    """The number of the key's text is compared with the place of the query: compare it with the
    number of the query's text."""

    def window_mask(length, window):
        place = torch.arange(length)
        return place[:, None] - place < window

    def document_mask(documents):
        place = torch.arange(documents.shape[1])
        return (documents[:, None, :] == place[:, None])[:, None]

    def prefix_mask(prefix_lengths, length):
        place = torch.arange(length)
        return (place <= place[:, None]) | (place < prefix_lengths[:, None, None, None])

    def combine_masks(lengths, prefix_lengths, documents, window):
        length = documents.shape[1]
        real = torch.arange(length) < lengths[:, None, None, None]
        allowed = prefix_mask(prefix_lengths, length) & real
        return allowed & window_mask(length, window) & document_mask(documents)


class LargerNumbersReadSmaller(Mistake, exercise="combine_masks"):
    """A text sees all texts whose number is not larger; it should see itself only, and numbers
    are names, in no order."""

    def window_mask(length, window):
        place = torch.arange(length)
        return place[:, None] - place < window

    def document_mask(documents):
        return (documents[:, :, None] >= documents[:, None, :])[:, None]

    def prefix_mask(prefix_lengths, length):
        place = torch.arange(length)
        return (place <= place[:, None]) | (place < prefix_lengths[:, None, None, None])

    def combine_masks(lengths, prefix_lengths, documents, window):
        length = documents.shape[1]
        real = torch.arange(length) < lengths[:, None, None, None]
        allowed = prefix_mask(prefix_lengths, length) & real
        return allowed & window_mask(length, window) & document_mask(documents)


class NeighboursCompared(Mistake, exercise="combine_masks"):
    """A new text is counted wherever the number changes. A text that goes on after another one is
    still the same text: compare the numbers themselves."""

    def window_mask(length, window):
        place = torch.arange(length)
        return place[:, None] - place < window

    def document_mask(documents):
        changes = (documents[:, 1:] != documents[:, :-1]).cumsum(dim=1)
        counted = F.pad(changes, (1, 0))
        return (counted[:, :, None] == counted[:, None, :])[:, None]

    def prefix_mask(prefix_lengths, length):
        place = torch.arange(length)
        return (place <= place[:, None]) | (place < prefix_lengths[:, None, None, None])

    def combine_masks(lengths, prefix_lengths, documents, window):
        length = documents.shape[1]
        real = torch.arange(length) < lengths[:, None, None, None]
        allowed = prefix_mask(prefix_lengths, length) & real
        return allowed & window_mask(length, window) & document_mask(documents)


class CausalBesides(Mistake, exercise="combine_masks"):
    """A causal mask is joined by "and" as well and takes the prefix back: the prefix mask says
    already what may lie ahead."""

    def window_mask(length, window):
        place = torch.arange(length)
        return place[:, None] - place < window

    def document_mask(documents):
        return (documents[:, :, None] == documents[:, None, :])[:, None]

    def prefix_mask(prefix_lengths, length):
        place = torch.arange(length)
        return (place <= place[:, None]) | (place < prefix_lengths[:, None, None, None])

    def combine_masks(lengths, prefix_lengths, documents, window):
        length = documents.shape[1]
        real = torch.arange(length) < lengths[:, None, None, None]
        allowed = prefix_mask(prefix_lengths, length) & real & document_mask(documents)
        return (allowed & window_mask(length, window)).tril()


class WindowForgotten(Mistake, exercise="combine_masks"):
    """The window is not among what is combined: keys that lie too far back are still visible."""

    def window_mask(length, window):
        place = torch.arange(length)
        return place[:, None] - place < window

    def document_mask(documents):
        return (documents[:, :, None] == documents[:, None, :])[:, None]

    def prefix_mask(prefix_lengths, length):
        place = torch.arange(length)
        return (place <= place[:, None]) | (place < prefix_lengths[:, None, None, None])

    def combine_masks(lengths, prefix_lengths, documents, window):
        length = documents.shape[1]
        real = torch.arange(length) < lengths[:, None, None, None]
        return prefix_mask(prefix_lengths, length) & real & document_mask(documents)


class DocumentsForgotten(Mistake, exercise="combine_masks"):
    """The documents are not among what is combined: texts still see one another."""

    def window_mask(length, window):
        place = torch.arange(length)
        return place[:, None] - place < window

    def document_mask(documents):
        return (documents[:, :, None] == documents[:, None, :])[:, None]

    def prefix_mask(prefix_lengths, length):
        place = torch.arange(length)
        return (place <= place[:, None]) | (place < prefix_lengths[:, None, None, None])

    def combine_masks(lengths, prefix_lengths, documents, window):
        length = documents.shape[1]
        real = torch.arange(length) < lengths[:, None, None, None]
        return prefix_mask(prefix_lengths, length) & real & window_mask(length, window)


class PaddingForgotten(Mistake, exercise="combine_masks"):
    """The padding is still visible as a key."""

    def window_mask(length, window):
        place = torch.arange(length)
        return place[:, None] - place < window

    def document_mask(documents):
        return (documents[:, :, None] == documents[:, None, :])[:, None]

    def prefix_mask(prefix_lengths, length):
        place = torch.arange(length)
        return (place <= place[:, None]) | (place < prefix_lengths[:, None, None, None])

    def combine_masks(lengths, prefix_lengths, documents, window):
        length = documents.shape[1]
        allowed = prefix_mask(prefix_lengths, length) & window_mask(length, window)
        return allowed & document_mask(documents)


# 2.4 ------------------------------------------------------------------------------------------


class MultipliedBefore(Mistake, exercise="masked_softmax"):
    """The scores are multiplied by the mask: a score of 0 is an ordinary score, and its key gets
    its share of the softmax."""

    def masked_softmax(scores, mask):
        weights = (scores * mask).softmax(dim=-1)
        return weights * mask.any(dim=-1, keepdim=True)


class ZeroedAfterwards(Mistake, exercise="masked_softmax"):
    """The weights of hidden keys are set to 0 after the softmax, so the rest no longer sums to
    1."""

    def masked_softmax(scores, mask):
        return scores.softmax(dim=-1).masked_fill(~mask, 0.0)


class DividedAfterwards(Mistake, exercise="masked_softmax"):
    """Hidden keys take part in the softmax and are divided out afterwards: a loud one leaves
    nothing for the others. Hide them before the softmax."""

    def masked_softmax(scores, mask):
        weights = scores.softmax(dim=-1) * mask
        total = weights.sum(dim=-1, keepdim=True)
        return weights / total.masked_fill(total == 0, 1.0)


class NotLowEnough(Mistake, exercise="masked_softmax"):
    """Hidden keys get a fixed score, such as -10,000 or -65,504, which is low enough for most
    scores and not for all: minus infinity is below every score."""

    def masked_softmax(scores, mask):
        return scores.masked_fill(~mask, -1e4).softmax(dim=-1).masked_fill(~mask, 0.0)


class ExponentialsByHand(Mistake, exercise="masked_softmax"):
    """The exponentials of the scores are divided as they are: those of low scores are all 0, those
    of high ones infinite. Use softmax, which subtracts the largest score first."""

    def masked_softmax(scores, mask):
        shares = scores.exp().masked_fill(~mask, 0.0)
        return shares / shares.sum(dim=-1, keepdim=True).clamp_min(1e-30)


class MinusTwenty(Mistake, exercise="masked_softmax"):
    """Hidden keys get the score -20, which is not low enough: a little leaks through always, and
    much where other scores are lower still. Minus infinity is below every score."""

    def masked_softmax(scores, mask):
        weights = scores.masked_fill(~mask, -20.0).softmax(dim=-1)
        return weights * mask.any(dim=-1, keepdim=True)


class NothingSharedOut(Mistake, exercise="masked_softmax"):
    """A row in which nothing is allowed ends as 0/0, which is NaN: be it a softmax over nothing
    but minus infinity or a division by a sum of 0, such a row needs care of its own."""

    def masked_softmax(scores, mask):
        return scores.masked_fill(~mask, -math.inf).softmax(dim=-1)


class EqualSharesOfNothing(Mistake, exercise="masked_softmax"):
    """Where nothing is allowed all scores are made the same number (-1e9, say), so the hidden keys
    share the weight: such a row is all 0."""

    def masked_softmax(scores, mask):
        return scores.masked_fill(~mask, -1e9).softmax(dim=-1)


class MillionSubtracted(Mistake, exercise="masked_softmax"):
    """A million is subtracted from hidden scores. Where nothing is allowed it is subtracted from
    all of them, and the softmax does not notice: the row is as if nothing were hidden."""

    def masked_softmax(scores, mask):
        return (scores + torch.where(mask, 0.0, -1e6).to(scores.dtype)).softmax(dim=-1)


class AllowedScoresRaised(Mistake, exercise="masked_softmax"):
    """Allowed scores are raised by 10,000, where half precision counts in steps of 8 or of 64:
    they are rounded until they are equal. Add nothing to what is allowed."""

    def masked_softmax(scores, mask):
        weights = (scores + 1e4 * mask.to(scores.dtype)).softmax(dim=-1)
        return weights.masked_fill(~mask, 0.0)


class TooSmallForFloat16(Mistake, exercise="masked_softmax"):
    """float16 ends at 65,504, so -1e9 does not exist there: take minus infinity, or the smallest
    number of the scores' own dtype."""

    def masked_softmax(scores, mask):
        return scores.masked_fill(~mask, -1e9).softmax(dim=-1).masked_fill(~mask, 0.0)


class NanRepairedForwardOnly(Mistake, exercise="masked_softmax"):
    """nan_to_num mends the weights and not the gradients: backwards the NaN of the softmax is
    still there. Let no NaN arise."""

    def masked_softmax(scores, mask):
        added = torch.where(mask, 0.0, -math.inf).to(scores.dtype)
        return (scores + added).softmax(dim=-1).nan_to_num(0.0)


class TrueWasHidden(Mistake, exercise="masked_softmax"):
    """What is allowed is hidden, and the other way round: True says that attention is allowed."""

    def masked_softmax(scores, mask):
        weights = scores.masked_fill(mask, torch.finfo(scores.dtype).min).softmax(dim=-1)
        return weights.masked_fill(mask, 0.0)


# 2.5 ------------------------------------------------------------------------------------------


class Transposed(Mistake, exercise="causality_audit"):
    """The picture is transposed: a row belongs to an output, a column to an input."""

    def causality_audit(model, x):
        before = model(x)
        rows = []
        for j in range(len(x)):
            changed = x.clone()
            changed[j] = 2.0 - x[j].flip(0)
            rows.append((model(changed) - before).abs().amax(dim=-1) > 1e-10)
        return torch.stack(rows)


class OutputsAddedUp(Mistake, exercise="causality_audit"):
    """All outputs are added up before they are differentiated, so all rows of the picture are the
    same: each output needs a question of its own."""

    def causality_audit(model, x):
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad((model(x) ** 2).sum(), x)
        return (slope.abs().amax(dim=-1) > 1e-10).expand(len(x), len(x))


class FeaturesAddedUp(Mistake, exercise="causality_audit"):
    """The features of an output are added up before they are differentiated. After a LayerNorm
    their sum is always 0, and the influence has gone: look at each feature."""

    def causality_audit(model, x):
        x = x.clone().requires_grad_()
        rows = []
        for output in model(x):
            (slope,) = torch.autograd.grad(output.sum(), x, retain_graph=True)
            rows.append(slope.abs().amax(dim=-1) > 1e-10)
        return torch.stack(rows)


class LastOutputOnly(Mistake, exercise="causality_audit"):
    """Only the last output is looked at; the future can leak into the others only."""

    def causality_audit(model, x):
        before = model(x)
        row = torch.zeros(len(x), dtype=torch.bool)
        for j in range(len(x)):
            changed = x.clone()
            changed[j] = 2.0 - x[j].flip(0)
            row[j] = (model(changed) - before)[-1].abs().max() > 1e-10
        return row.repeat(len(x), 1)


class FutureNeverTried(Mistake, exercise="causality_audit"):
    """Only inputs up to the output are changed, so the audit finds what it believed before:
    change the later ones, too."""

    def causality_audit(model, x):
        before = model(x)
        found = torch.zeros(len(x), len(x), dtype=torch.bool)
        for i in range(len(x)):
            for j in range(i + 1):
                changed = x.clone()
                changed[j] = 2.0 - x[j].flip(0)
                found[i, j] = (model(changed) - before)[i].abs().max() > 1e-10
        return found


class ZerosForInput(Mistake, exercise="causality_audit"):
    """The model is asked at zeros. There products vanish and everything is symmetric, so
    influences are missed: start from the x that you are given."""

    def causality_audit(model, x):
        x = torch.zeros_like(x)
        before = model(x)
        found = torch.zeros(len(x), len(x), dtype=torch.bool)
        for j in range(len(x)):
            changed = x.clone()
            changed[j] = torch.linspace(-1.0, 1.0, x.shape[1])
            found[:, j] = (model(changed) - before).abs().amax(dim=-1) > 1e-10
        return found


class FirstFeatureOnly(Mistake, exercise="causality_audit"):
    """Only the first feature of each token is changed and looked at; an influence can take the
    way of another one."""

    def causality_audit(model, x):
        before = model(x)
        found = torch.zeros(len(x), len(x), dtype=torch.bool)
        for j in range(len(x)):
            changed = x.clone()
            changed[j, 0] += 1.0
            found[:, j] = (model(changed) - before)[:, 0].abs() > 1e-10
        return found


class AllFeaturesShifted(Mistake, exercise="causality_audit"):
    """The same number is added to all features of a token (or the slopes by its features are added
    up, which asks the same). A LayerNorm takes that away again: change features differently."""

    def causality_audit(model, x):
        before = model(x)
        found = torch.zeros(len(x), len(x), dtype=torch.bool)
        for j in range(len(x)):
            changed = x.clone()
            changed[j] += 1.0
            found[:, j] = (model(changed) - before).abs().amax(dim=-1) > 1e-10
        return found


class OnlyLengthsChanged(Mistake, exercise="causality_audit"):
    """Tokens are multiplied by a number, which changes their length and not their direction. A
    model that hears of directions only does not notice: replace them by other numbers."""

    def causality_audit(model, x):
        before = model(x)
        found = torch.zeros(len(x), len(x), dtype=torch.bool)
        for j in range(len(x)):
            changed = x.clone()
            changed[j] *= 2.0
            found[:, j] = (model(changed) - before).abs().amax(dim=-1) > 1e-10
        return found


class ThresholdTooCoarse(Mistake, exercise="causality_audit"):
    """Small influences are not counted: a faint leak is a leak, and training will find it."""

    def causality_audit(model, x):
        before = model(x)
        found = torch.zeros(len(x), len(x), dtype=torch.bool)
        for j in range(len(x)):
            changed = x.clone()
            changed[j] = 2.0 - x[j].flip(0)
            found[:, j] = (model(changed) - before).abs().amax(dim=-1) > 1e-4
        return found


class RoundingCounted(Mistake, exercise="causality_audit"):
    """Every difference from 0 is counted. Where a sum is formed in another order the last digit
    changes, and that is no influence: allow for rounding."""

    def causality_audit(model, x):
        before = model(x)
        found = torch.zeros(len(x), len(x), dtype=torch.bool)
        for j in range(len(x)):
            changed = x.clone()
            changed[j] = 2.0 - x[j].flip(0)
            found[:, j] = (model(changed) != before).any(dim=-1)
        return found


class ChangesAddUp(Mistake, exercise="causality_audit"):
    """Earlier changes are never taken back, so the last columns show the effect of all of them:
    start from the original x each time."""

    def causality_audit(model, x):
        before = model(x)
        found = torch.zeros(len(x), len(x), dtype=torch.bool)
        for j in range(len(x)):
            x[j] = 2.0 - x[j].flip(0)
            found[:, j] = (model(x) - before).abs().amax(dim=-1) > 1e-10
        return found


# 2.6 ------------------------------------------------------------------------------------------


class PaddingComparedToo(Mistake, exercise="check_padding_invariance"):
    """Results at padded positions are compared, too. What stands there is read by nobody, and
    right models leave different things there."""

    def largest_difference(first, second, lengths):
        shortest = min(first.shape[1], second.shape[1])
        gap = (first[:, :shortest] - second[:, :shortest]).abs()
        return gap.nan_to_num(math.inf).max()

    def check_padding_invariance(model):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(3, 7, 4, generator=generator, dtype=torch.float64)
        longer = torch.cat([x, torch.randn(3, 2, 4, generator=generator).double()], dim=1)
        longer[1, 5:] = 2.0
        longer[2] += 1.0
        lengths = torch.tensor([3, 5, 7])
        first, second = model(x, lengths), model(longer, lengths)
        assert largest_difference(first[:2], second[:2], lengths[:2]) < 1e-4


class PaddingTimesZero(Mistake, exercise="check_padding_invariance"):
    """Differences in the padding are multiplied by 0, and 0 times NaN is NaN: choose the real
    tokens instead, by an index or by masked_fill or where."""

    def largest_difference(first, second, lengths):
        shortest = min(first.shape[1], second.shape[1])
        real = (torch.arange(shortest) < lengths[:, None])[:, :, None]
        gap = (first[:, :shortest] - second[:, :shortest]) * real
        return gap.abs().nan_to_num(math.inf).max()

    def check_padding_invariance(model):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(3, 7, 4, generator=generator, dtype=torch.float64)
        lengths = torch.tensor([7, 4, 2])
        x[1, 4:], x[2, 2:] = 50.0, -50.0
        together = model(x, lengths)
        for row, length in enumerate(lengths.tolist()):
            alone = model(x[row : row + 1, :length], lengths[row : row + 1])
            one = together[row : row + 1]
            assert largest_difference(alone, one, lengths[row : row + 1]) < 1e-4


class NanGoesUnnoticed(Mistake, exercise="check_padding_invariance"):
    """NaN is not larger than any number, so a comparison with > lets it pass: count it as an
    infinite difference."""

    def largest_difference(first, second, lengths):
        largest = 0.0
        for one, other, length in zip(first, second, lengths.tolist(), strict=True):
            for gap in (one[:length] - other[:length]).abs().flatten().tolist():
                if gap > largest:
                    largest = gap
        return largest

    def check_padding_invariance(model):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(3, 9, 4, generator=generator, dtype=torch.float64)
        alone = model(x[:1, :5], torch.tensor([5]))
        together = model(x, torch.tensor([5, 7, 8]))
        assert not largest_difference(alone, together[:1], torch.tensor([5])) > 1e-4


class DifferencesAveraged(Mistake, exercise="check_padding_invariance"):
    """The mean of the differences is taken: one wrong token drowns among the right ones. Take
    the largest."""

    def largest_difference(first, second, lengths):
        gaps = [
            (one[:length] - other[:length]).abs().flatten()
            for one, other, length in zip(first, second, lengths.tolist(), strict=True)
        ]
        return torch.cat(gaps).nan_to_num(math.inf).mean()

    def check_padding_invariance(model):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(3, 9, 4, generator=generator, dtype=torch.float64)
        alone = model(x[:1, :5], torch.tensor([5]))
        together = model(x, torch.tensor([5, 7, 8]))
        assert largest_difference(alone, together[:1], torch.tensor([5])) < 1e-4


class NothingIsCompared(Mistake, exercise="check_padding_invariance"):
    """No wrong number can make this test fail: it has to compare results, and to `assert` what it
    finds (returning False says nothing)."""

    def largest_difference(first, second, lengths):
        real = torch.arange(first.shape[1]) < lengths[:, None]
        gap = (first - second[:, : first.shape[1]]).abs().nan_to_num(math.inf)
        return gap[real].max()

    def check_padding_invariance(model):
        x = torch.randn(3, 9, 4)
        assert model(x, torch.tensor([5, 7, 8])).shape == x.shape


class ComparedExactly(Mistake, exercise="check_padding_invariance"):
    """Results have to be equal to the last digit. That digit depends on the order in which numbers
    are added, so right models fail: leave a tolerance."""

    def largest_difference(first, second, lengths):
        real = torch.arange(first.shape[1]) < lengths[:, None]
        gap = (first - second[:, : first.shape[1]]).abs().nan_to_num(math.inf)
        return gap[real].max()

    def check_padding_invariance(model):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(5, 11, 4, generator=generator, dtype=torch.float64)
        lengths = torch.tensor([7, 3, 11, 5, 8])
        alone = model(x[:1, :7], lengths[:1])
        assert largest_difference(alone, model(x, lengths)[:1], lengths[:1]) == 0


class NanInThePadding(Mistake, exercise="check_padding_invariance"):
    """There is NaN in the padding. 0 times NaN is NaN, so it passes through every weight of 0, and
    right models fail: fill padding with finite numbers."""

    def largest_difference(first, second, lengths):
        real = torch.arange(first.shape[1]) < lengths[:, None]
        gap = (first - second[:, : first.shape[1]]).abs().nan_to_num(math.inf)
        return gap[real].max()

    def check_padding_invariance(model):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(3, 9, 4, generator=generator, dtype=torch.float64)
        alone = model(x[:1, :5], torch.tensor([5]))
        x[0, 5:] = math.nan
        together = model(x, torch.tensor([5, 7, 8]))
        assert largest_difference(alone, together[:1], torch.tensor([5])) < 1e-4


class BatchMatesNeverChange(Mistake, exercise="check_padding_invariance"):
    """Only the padding changes, never the other sequences of the batch: what one hears from
    another goes unnoticed."""

    def largest_difference(first, second, lengths):
        real = torch.arange(first.shape[1]) < lengths[:, None]
        gap = (first - second[:, : first.shape[1]]).abs().nan_to_num(math.inf)
        return gap[real].max()

    def check_padding_invariance(model):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(3, 9, 4, generator=generator, dtype=torch.float64)
        lengths = torch.tensor([4, 5, 7])
        first, second = model(x[:, :7], lengths), model(x, lengths)
        assert largest_difference(first, second, lengths) < 1e-4
        other = x.clone()
        for row, length in enumerate(lengths):
            other[row, length:] = 3.0
        assert largest_difference(second, model(other, lengths), lengths) < 1e-4


class AmountNeverChanges(Mistake, exercise="check_padding_invariance"):
    """What stands in the padding changes, but not how much of it there is: positions that are
    counted from the padded end go unnoticed."""

    def largest_difference(first, second, lengths):
        real = torch.arange(first.shape[1]) < lengths[:, None]
        gap = (first - second[:, : first.shape[1]]).abs().nan_to_num(math.inf)
        return gap[real].max()

    def check_padding_invariance(model):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(3, 9, 4, generator=generator, dtype=torch.float64)
        lengths = torch.tensor([4, 5, 7])
        other = torch.randn(3, 9, 4, generator=generator, dtype=torch.float64)
        other[0, :4] = x[0, :4]
        first, second = model(x, lengths), model(other, lengths)
        assert largest_difference(first[:1], second[:1], lengths[:1]) < 1e-4


class NoPaddingAnywhere(Mistake, exercise="check_padding_invariance"):
    """All sequences have the full length, so there is no padding that could do harm: make them
    of different lengths."""

    def largest_difference(first, second, lengths):
        real = torch.arange(first.shape[1]) < lengths[:, None]
        gap = (first - second[:, : first.shape[1]]).abs().nan_to_num(math.inf)
        return gap[real].max()

    def check_padding_invariance(model):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(3, 9, 4, generator=generator, dtype=torch.float64)
        alone = model(x[:1], torch.tensor([9]))
        together = model(x, torch.tensor([9, 9, 9]))
        assert largest_difference(alone, together[:1], torch.tensor([9])) < 1e-4


# 2.7 ------------------------------------------------------------------------------------------


class OldTotalNotRescaled(Mistake, exercise="online_softmax_attention"):
    """When the maximum rises, the old total has to shrink by the same factor as the old output."""

    def update(highest, total, mixed, scores, value):
        higher = torch.maximum(highest, scores.amax(dim=-1))
        reference = higher.masked_fill(higher.isinf(), 0.0)
        shrink, shares = (highest - reference).exp(), (scores - reference[:, None]).exp()
        return higher, total + shares.sum(-1), mixed * shrink[:, None] + shares @ value

    def online_softmax_attention(query, key, value, mask, block_size):
        state = (
            torch.full((len(query),), -math.inf).to(query.dtype),
            torch.zeros(len(query)).to(query.dtype),
            torch.zeros(len(query), value.shape[1]).to(query.dtype),
        )
        for start in range(0, len(key), block_size):
            block = slice(start, start + block_size)
            scores = query @ key[block].T / math.sqrt(query.shape[1])
            scores = scores.masked_fill(~mask[:, block], -math.inf)
            state = update(*state, scores, value[block])
        return state[2] / state[1].masked_fill(state[1] == 0, 1.0)[:, None]


class OldOutputNotRescaled(Mistake, exercise="online_softmax_attention"):
    """When the maximum rises, what was mixed so far has to shrink by the same factor as the
    total."""

    def update(highest, total, mixed, scores, value):
        higher = torch.maximum(highest, scores.amax(dim=-1))
        reference = higher.masked_fill(higher.isinf(), 0.0)
        shrink, shares = (highest - reference).exp(), (scores - reference[:, None]).exp()
        return higher, total * shrink + shares.sum(-1), mixed + shares @ value

    def online_softmax_attention(query, key, value, mask, block_size):
        state = (
            torch.full((len(query),), -math.inf).to(query.dtype),
            torch.zeros(len(query)).to(query.dtype),
            torch.zeros(len(query), value.shape[1]).to(query.dtype),
        )
        for start in range(0, len(key), block_size):
            block = slice(start, start + block_size)
            scores = query @ key[block].T / math.sqrt(query.shape[1])
            scores = scores.masked_fill(~mask[:, block], -math.inf)
            state = update(*state, scores, value[block])
        return state[2] / state[1].masked_fill(state[1] == 0, 1.0)[:, None]


class NothingRescaled(Mistake, exercise="online_softmax_attention"):
    """What was kept stays as it was when the maximum rises. It was measured from the old one: the
    total and what was mixed have to shrink, both by the same factor."""

    def update(highest, total, mixed, scores, value):
        higher = torch.maximum(highest, scores.amax(dim=-1))
        reference = higher.masked_fill(higher.isinf(), 0.0)
        shares = (scores - reference[:, None]).exp()
        return higher, total + shares.sum(-1), mixed + shares @ value

    def online_softmax_attention(query, key, value, mask, block_size):
        state = (
            torch.full((len(query),), -math.inf).to(query.dtype),
            torch.zeros(len(query)).to(query.dtype),
            torch.zeros(len(query), value.shape[1]).to(query.dtype),
        )
        for start in range(0, len(key), block_size):
            block = slice(start, start + block_size)
            scores = query @ key[block].T / math.sqrt(query.shape[1])
            scores = scores.masked_fill(~mask[:, block], -math.inf)
            state = update(*state, scores, value[block])
        return state[2] / state[1].masked_fill(state[1] == 0, 1.0)[:, None]


class RescaledTheWrongWay(Mistake, exercise="online_softmax_attention"):
    """The factor is upside down: when the maximum rises, what was there shrinks."""

    def update(highest, total, mixed, scores, value):
        higher = torch.maximum(highest, scores.amax(dim=-1))
        reference = higher.masked_fill(higher.isinf(), 0.0)
        grow = (reference - highest.masked_fill(highest.isinf(), 0.0)).exp()
        shares = (scores - reference[:, None]).exp()
        return higher, total * grow + shares.sum(-1), mixed * grow[:, None] + shares @ value

    def online_softmax_attention(query, key, value, mask, block_size):
        state = (
            torch.full((len(query),), -math.inf).to(query.dtype),
            torch.zeros(len(query)).to(query.dtype),
            torch.zeros(len(query), value.shape[1]).to(query.dtype),
        )
        for start in range(0, len(key), block_size):
            block = slice(start, start + block_size)
            scores = query @ key[block].T / math.sqrt(query.shape[1])
            scores = scores.masked_fill(~mask[:, block], -math.inf)
            state = update(*state, scores, value[block])
        return state[2] / state[1].masked_fill(state[1] == 0, 1.0)[:, None]


class MaximumOfTheBlock(Mistake, exercise="online_softmax_attention"):
    """Only the maximum of the new block is kept; if an earlier block had a higher one, its
    exponentials overflow: take the larger of the two."""

    def update(highest, total, mixed, scores, value):
        higher = scores.amax(dim=-1)
        reference = higher.masked_fill(higher.isinf(), 0.0)
        shrink, shares = (highest - reference).exp(), (scores - reference[:, None]).exp()
        return (
            higher,
            total * shrink + shares.sum(-1),
            mixed * shrink[:, None] + shares @ value,
        )

    def online_softmax_attention(query, key, value, mask, block_size):
        state = (
            torch.full((len(query),), -math.inf).to(query.dtype),
            torch.zeros(len(query)).to(query.dtype),
            torch.zeros(len(query), value.shape[1]).to(query.dtype),
        )
        for start in range(0, len(key), block_size):
            block = slice(start, start + block_size)
            scores = query @ key[block].T / math.sqrt(query.shape[1])
            scores = scores.masked_fill(~mask[:, block], -math.inf)
            state = update(*state, scores, value[block])
        return state[2] / state[1].masked_fill(state[1] == 0, 1.0)[:, None]


class DividedInEveryBlock(Mistake, exercise="online_softmax_attention"):
    """What was mixed is divided by the total in every block, and the next block adds to an average
    as if it were a sum: divide once, at the end."""

    def update(highest, total, mixed, scores, value):
        higher = torch.maximum(highest, scores.amax(dim=-1))
        reference = higher.masked_fill(higher.isinf(), 0.0)
        shrink, shares = (highest - reference).exp(), (scores - reference[:, None]).exp()
        total = total * shrink + shares.sum(-1)
        return higher, total, (mixed * shrink[:, None] + shares @ value) / total[:, None]

    def online_softmax_attention(query, key, value, mask, block_size):
        state = (
            torch.full((len(query),), -math.inf).to(query.dtype),
            torch.zeros(len(query)).to(query.dtype),
            torch.zeros(len(query), value.shape[1]).to(query.dtype),
        )
        for start in range(0, len(key), block_size):
            block = slice(start, start + block_size)
            scores = query @ key[block].T / math.sqrt(query.shape[1])
            scores = scores.masked_fill(~mask[:, block], -math.inf)
            state = update(*state, scores, value[block])
        return state[2] / state[1].masked_fill(state[1] == 0, 1.0)[:, None]


class EachBlockDivided(Mistake, exercise="online_softmax_attention"):
    """Each block is divided by its own sum, so every block weighs the same: divide once, at the
    end, by the total of all."""

    def update(highest, total, mixed, scores, value):
        higher = torch.maximum(highest, scores.amax(dim=-1))
        reference = higher.masked_fill(higher.isinf(), 0.0)
        shrink, shares = (highest - reference).exp(), (scores - reference[:, None]).exp()
        own = shares.sum(-1)
        average = shares @ value / own.masked_fill(own == 0, 1.0)[:, None]
        return higher, total * shrink + own, mixed * shrink[:, None] + average

    def online_softmax_attention(query, key, value, mask, block_size):
        state = (
            torch.full((len(query),), -math.inf).to(query.dtype),
            torch.zeros(len(query)).to(query.dtype),
            torch.zeros(len(query), value.shape[1]).to(query.dtype),
        )
        for start in range(0, len(key), block_size):
            block = slice(start, start + block_size)
            scores = query @ key[block].T / math.sqrt(query.shape[1])
            scores = scores.masked_fill(~mask[:, block], -math.inf)
            state = update(*state, scores, value[block])
        return state[2] / state[1].masked_fill(state[1] == 0, 1.0)[:, None]


class InfinityMinusInfinity(Mistake, exercise="online_softmax_attention"):
    """As long as everything is hidden the maximum is minus infinity, and minus infinity minus
    itself is NaN: subtract 0 there instead."""

    def update(highest, total, mixed, scores, value):
        higher = torch.maximum(highest, scores.amax(dim=-1))
        shrink, shares = (highest - higher).exp(), (scores - higher[:, None]).exp()
        return (
            higher,
            total * shrink + shares.sum(-1),
            mixed * shrink[:, None] + shares @ value,
        )

    def online_softmax_attention(query, key, value, mask, block_size):
        state = (
            torch.full((len(query),), -math.inf).to(query.dtype),
            torch.zeros(len(query)).to(query.dtype),
            torch.zeros(len(query), value.shape[1]).to(query.dtype),
        )
        for start in range(0, len(key), block_size):
            block = slice(start, start + block_size)
            scores = query @ key[block].T / math.sqrt(query.shape[1])
            scores = scores.masked_fill(~mask[:, block], -math.inf)
            state = update(*state, scores, value[block])
        return state[2] / state[1].masked_fill(state[1] == 0, 1.0)[:, None]


class LastBlockDropped(Mistake, exercise="online_softmax_attention"):
    """The last block is left out if it is not full: the keys need not divide evenly."""

    def update(highest, total, mixed, scores, value):
        higher = torch.maximum(highest, scores.amax(dim=-1))
        reference = higher.masked_fill(higher.isinf(), 0.0)
        shrink, shares = (highest - reference).exp(), (scores - reference[:, None]).exp()
        return (
            higher,
            total * shrink + shares.sum(-1),
            mixed * shrink[:, None] + shares @ value,
        )

    def online_softmax_attention(query, key, value, mask, block_size):
        state = (
            torch.full((len(query),), -math.inf).to(query.dtype),
            torch.zeros(len(query)).to(query.dtype),
            torch.zeros(len(query), value.shape[1]).to(query.dtype),
        )
        for start in range(0, len(key) - block_size + 1, block_size):
            block = slice(start, start + block_size)
            scores = query @ key[block].T / math.sqrt(query.shape[1])
            scores = scores.masked_fill(~mask[:, block], -math.inf)
            state = update(*state, scores, value[block])
        return state[2] / state[1].masked_fill(state[1] == 0, 1.0)[:, None]


class NeverDivided(Mistake, exercise="online_softmax_attention"):
    """The sum of the values is never divided by the total of the shares."""

    def update(highest, total, mixed, scores, value):
        higher = torch.maximum(highest, scores.amax(dim=-1))
        reference = higher.masked_fill(higher.isinf(), 0.0)
        shrink, shares = (highest - reference).exp(), (scores - reference[:, None]).exp()
        return (
            higher,
            total * shrink + shares.sum(-1),
            mixed * shrink[:, None] + shares @ value,
        )

    def online_softmax_attention(query, key, value, mask, block_size):
        state = (
            torch.full((len(query),), -math.inf).to(query.dtype),
            torch.zeros(len(query)).to(query.dtype),
            torch.zeros(len(query), value.shape[1]).to(query.dtype),
        )
        for start in range(0, len(key), block_size):
            block = slice(start, start + block_size)
            scores = query @ key[block].T / math.sqrt(query.shape[1])
            scores = scores.masked_fill(~mask[:, block], -math.inf)
            state = update(*state, scores, value[block])
        return state[2]


class NothingDividedByNothing(Mistake, exercise="online_softmax_attention"):
    """A query that may see nothing has the total 0, and 0/0 is NaN: its average is 0."""

    def update(highest, total, mixed, scores, value):
        higher = torch.maximum(highest, scores.amax(dim=-1))
        reference = higher.masked_fill(higher.isinf(), 0.0)
        shrink, shares = (highest - reference).exp(), (scores - reference[:, None]).exp()
        return (
            higher,
            total * shrink + shares.sum(-1),
            mixed * shrink[:, None] + shares @ value,
        )

    def online_softmax_attention(query, key, value, mask, block_size):
        state = (
            torch.full((len(query),), -math.inf).to(query.dtype),
            torch.zeros(len(query)).to(query.dtype),
            torch.zeros(len(query), value.shape[1]).to(query.dtype),
        )
        for start in range(0, len(key), block_size):
            block = slice(start, start + block_size)
            scores = query @ key[block].T / math.sqrt(query.shape[1])
            scores = scores.masked_fill(~mask[:, block], -math.inf)
            state = update(*state, scores, value[block])
        return state[2] / state[1][:, None]


class ScaleMissing(Mistake, exercise="online_softmax_attention"):
    """The scores are not divided by the square root of d_head."""

    def update(highest, total, mixed, scores, value):
        higher = torch.maximum(highest, scores.amax(dim=-1))
        reference = higher.masked_fill(higher.isinf(), 0.0)
        shrink, shares = (highest - reference).exp(), (scores - reference[:, None]).exp()
        return (
            higher,
            total * shrink + shares.sum(-1),
            mixed * shrink[:, None] + shares @ value,
        )

    def online_softmax_attention(query, key, value, mask, block_size):
        state = (
            torch.full((len(query),), -math.inf).to(query.dtype),
            torch.zeros(len(query)).to(query.dtype),
            torch.zeros(len(query), value.shape[1]).to(query.dtype),
        )
        for start in range(0, len(key), block_size):
            block = slice(start, start + block_size)
            scores = query @ key[block].T
            scores = scores.masked_fill(~mask[:, block], -math.inf)
            state = update(*state, scores, value[block])
        return state[2] / state[1].masked_fill(state[1] == 0, 1.0)[:, None]


# Bug hunts ------------------------------------------------------------------------------------


class LeftAsPublished(Mistake, exercise="mended_masks"):
    """Nothing changed: a number added to a whole column cancels in a softmax over that column."""

    def mended_masks(query, key, value, lengths):
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        hidden = torch.arange(key.shape[-2]) >= lengths[:, None]
        weights = (scores - 1e6 * hidden[:, None, :]).softmax(dim=-2)
        return weights @ value


class OneRowForAllQueries(Mistake, exercise="mended_masks"):
    """The softmax is right now, but the mask still has one row for all queries: what lies ahead
    differs from query to query, so it needs a row for each."""

    def mended_masks(query, key, value, lengths):
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        hidden = torch.arange(key.shape[-2]) >= lengths[:, None]
        weights = (scores - 1e6 * hidden[:, None, :]).softmax(dim=-1)
        return weights @ value


class StillOverQueries(Mistake, exercise="mended_masks"):
    """The mask is right now, but the softmax still runs over the queries: the weights of a query
    have to sum to 1."""

    def mended_masks(query, key, value, lengths):
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        place = torch.arange(key.shape[-2])
        hidden = (place >= lengths[:, None, None]) | (place > place[:, None])
        weights = scores.masked_fill(hidden, -1e6).softmax(dim=-2)
        return weights @ value


class PaddingMaskLost(Mistake, exercise="mended_masks"):
    """The mask is causal now and no longer hides padding that stands before a query."""

    def mended_masks(query, key, value, lengths):
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        place = torch.arange(key.shape[-2])
        weights = scores.masked_fill(place > place[:, None], -math.inf).softmax(dim=-1)
        return weights @ value


class PaddedQueriesSilenced(Mistake, exercise="mended_masks"):
    """Padded queries are forbidden everything, and a softmax over nothing is NaN: hide padding as
    a key only."""

    def mended_masks(query, key, value, lengths):
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        place = torch.arange(key.shape[-2])
        real = place < lengths[:, None]
        allowed = real[:, :, None] & real[:, None, :] & (place <= place[:, None])
        return scores.masked_fill(~allowed, -math.inf).softmax(dim=-1) @ value


class HiddenByBothOnly(Mistake, exercise="mended_masks"):
    """A key is hidden only if it is padding and lies ahead: each of the two is reason enough."""

    def mended_masks(query, key, value, lengths):
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        place = torch.arange(key.shape[-2])
        hidden = (place >= lengths[:, None, None]) & (place > place[:, None])
        weights = scores.masked_fill(hidden, -math.inf).softmax(dim=-1)
        return weights @ value


class LeftAsItWas(Mistake, exercise="mended_columns"):
    """Nothing changed: with keys as rows, the upper right triangle holds the past of each query."""

    def mended_columns(query, key, value):
        scores = key.T @ query / math.sqrt(query.shape[0])
        hidden = torch.ones_like(scores).triu(diagonal=1).bool()
        return value @ scores.masked_fill(hidden, -math.inf).softmax(dim=0)


class SoftmaxTurnedInstead(Mistake, exercise="mended_columns"):
    """The softmax was turned instead of the mask: with keys as rows it runs down each column."""

    def mended_columns(query, key, value):
        scores = key.T @ query / math.sqrt(query.shape[0])
        hidden = torch.ones_like(scores).triu(diagonal=1).bool()
        return value @ scores.masked_fill(hidden, -math.inf).softmax(dim=1)


class OnlyTheScoresTurned(Mistake, exercise="mended_columns"):
    """The weights have queries as rows now, and are multiplied as if keys were: transpose them
    back."""

    def mended_columns(query, key, value):
        scores = query.T @ key / math.sqrt(query.shape[0])
        hidden = torch.ones_like(scores).triu(diagonal=1).bool()
        return value @ scores.masked_fill(hidden, -math.inf).softmax(dim=1)


class DiagonalHiddenToo(Mistake, exercise="mended_columns"):
    """A token must see itself: with the diagonal hidden the first query sees nothing, which is
    NaN."""

    def mended_columns(query, key, value):
        scores = key.T @ query / math.sqrt(query.shape[0])
        hidden = torch.ones_like(scores).tril().bool()
        return value @ scores.masked_fill(hidden, -math.inf).softmax(dim=0)


class MaskDropped(Mistake, exercise="mended_columns"):
    """There is no mask any more: each token sees the whole text."""

    def mended_columns(query, key, value):
        scores = key.T @ query / math.sqrt(query.shape[0])
        return value @ scores.softmax(dim=0)


class MaskInTrainingOnly(Mistake, exercise="mended_modes"):
    """Nothing changed: in evaluation a whole text comes at once, too, and must not be read
    ahead."""

    def mended_modes(query, key, value, training):
        scores = query @ key.T / math.sqrt(query.shape[1])
        if training:
            allowed = torch.ones_like(scores).tril().bool()
            scores = scores.masked_fill(~allowed, -math.inf)
        return scores.softmax(dim=-1) @ value


class MaskInEvaluationOnly(Mistake, exercise="mended_modes"):
    """The condition was turned round: causality holds in both modes."""

    def mended_modes(query, key, value, training):
        scores = query @ key.T / math.sqrt(query.shape[1])
        if not training:
            allowed = torch.ones_like(scores).tril(diagonal=len(key) - len(query)).bool()
            scores = scores.masked_fill(~allowed, -math.inf)
        return scores.softmax(dim=-1) @ value


class KeptKeysForgotten(Mistake, exercise="mended_modes"):
    """The triangle starts at the first key. Keys that were kept come first, so the queries are
    the last positions."""

    def mended_modes(query, key, value, training):
        scores = query @ key.T / math.sqrt(query.shape[1])
        allowed = torch.ones_like(scores).tril().bool()
        return scores.masked_fill(~allowed, -math.inf).softmax(dim=-1) @ value


class OnlyIfSquare(Mistake, exercise="mended_modes"):
    """Where keys were kept there is no mask at all: several new queries must not see one
    another's future either."""

    def mended_modes(query, key, value, training):
        scores = query @ key.T / math.sqrt(query.shape[1])
        if len(query) == len(key):
            allowed = torch.ones_like(scores).tril().bool()
            scores = scores.masked_fill(~allowed, -math.inf)
        return scores.softmax(dim=-1) @ value


class MaskForTheMapsOnly(Mistake, exercise="mended_maps"):
    """Nothing changed: each map is masked, but the next layer gets what an unmasked layer made."""

    def layer_weights(x, w_query, w_key, mask=None):
        scores = (x @ w_query) @ (x @ w_key).T / math.sqrt(x.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return scores.softmax(dim=-1)

    def mended_maps(x, w_query, w_key, w_value, mask):
        maps = []
        for w_q, w_k, w_v in zip(w_query, w_key, w_value, strict=True):
            maps.append(layer_weights(x, w_q, w_k, mask))
            x = x + layer_weights(x, w_q, w_k) @ (x @ w_v)
        return torch.stack(maps)


class MapsWithoutMask(Mistake, exercise="mended_maps"):
    """The maps are taken without the mask, so they give weight to keys that the model hides."""

    def layer_weights(x, w_query, w_key, mask=None):
        scores = (x @ w_query) @ (x @ w_key).T / math.sqrt(x.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return scores.softmax(dim=-1)

    def mended_maps(x, w_query, w_key, w_value, mask):
        maps = []
        for w_q, w_k, w_v in zip(w_query, w_key, w_value, strict=True):
            maps.append(layer_weights(x, w_q, w_k))
            x = x + maps[-1] @ (x @ w_v)
        return torch.stack(maps)


class MaskedForShow(Mistake, exercise="mended_maps"):
    """The maps are computed without the mask and painted over afterwards: their rows no longer
    sum to 1."""

    def layer_weights(x, w_query, w_key, mask=None):
        scores = (x @ w_query) @ (x @ w_key).T / math.sqrt(x.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return scores.softmax(dim=-1)

    def mended_maps(x, w_query, w_key, w_value, mask):
        maps = []
        for w_q, w_k, w_v in zip(w_query, w_key, w_value, strict=True):
            maps.append(layer_weights(x, w_q, w_k) * mask)
            x = x + layer_weights(x, w_q, w_k, mask) @ (x @ w_v)
        return torch.stack(maps)


class MapsOneLayerLate(Mistake, exercise="mended_maps"):
    """Each map is taken after its layer has changed x: the layer looked at what came in."""

    def layer_weights(x, w_query, w_key, mask=None):
        scores = (x @ w_query) @ (x @ w_key).T / math.sqrt(x.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return scores.softmax(dim=-1)

    def mended_maps(x, w_query, w_key, w_value, mask):
        maps = []
        for w_q, w_k, w_v in zip(w_query, w_key, w_value, strict=True):
            x = x + layer_weights(x, w_q, w_k, mask) @ (x @ w_v)
            maps.append(layer_weights(x, w_q, w_k, mask))
        return torch.stack(maps)


class ResidualDropped(Mistake, exercise="mended_maps"):
    """What a layer computes is added to x; here it replaces x."""

    def layer_weights(x, w_query, w_key, mask=None):
        scores = (x @ w_query) @ (x @ w_key).T / math.sqrt(x.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return scores.softmax(dim=-1)

    def mended_maps(x, w_query, w_key, w_value, mask):
        maps = []
        for w_q, w_k, w_v in zip(w_query, w_key, w_value, strict=True):
            maps.append(layer_weights(x, w_q, w_k, mask))
            x = maps[-1] @ (x @ w_v)
        return torch.stack(maps)
