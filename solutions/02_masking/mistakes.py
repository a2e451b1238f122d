"""The named mistakes of chapter 02: what a message can name, and what graders are tested with."""

import math

import torch
import torch.nn.functional as F

from classroom.exercise.answers import Correct


# 2.1 ------------------------------------------------------------------------------------------
class Causal(Correct, exercise="causal_mask"):
    def causal_mask(q_len, k_len):
        return torch.ones(q_len, k_len, dtype=torch.bool).tril(diagonal=k_len - q_len)


TriangleFlipped = Causal.but(").tril(", ").triu(")
"""This is the wrong triangle: each query sees itself and the future, not the past."""

OneStepAhead = Causal.but("- q_len", "- q_len + 1")
"""The diagonal is off by one: each query sees the token that it is supposed to predict."""

DiagonalMasked = Causal.but("- q_len", "- q_len - 1")
"""The diagonal is off by one: a query must see itself. Otherwise position 0 sees nothing, and a
softmax over nothing is NaN."""

AlignedToTheFirstKey = Causal.but("tril(diagonal=k_len - q_len)", "tril()")
"""The queries are taken for the first positions; they are the last ones, because the cached keys
come first."""

LengthsExchanged = Causal.but("k_len - q_len", "q_len - k_len")
"""The diagonal is moved in the wrong direction: with more keys than queries it must start further
to the right, at k_len - q_len."""

AlwaysSquare = Causal.but("return …", "return torch.ones(q_len, q_len, dtype=torch.bool).tril()")
"""The mask has a column per query; it needs one per key."""

SquareOfAllKeys = Causal.but("return …", "return torch.ones(k_len, k_len, dtype=torch.bool).tril()")
"""The mask has a row for every position; only the last q_len of them are queries."""

TrueMeansHidden = Causal.but("tril(diagonal=k_len - q_len)", "triu(diagonal=k_len - q_len + 1)")
"""True and False are swapped: here True means that attention is allowed."""

CutFromATable = Causal.but(
    "return …",
    "table = torch.ones(128, 128, dtype=torch.bool).tril()\nreturn table[k_len - q_len : k_len, :k_len]",
)
"""The mask is cut out of a table of fixed size, such as 128, and a slice beyond its end is silently
shorter: make the mask for the lengths that you are given."""

OnesAndZeros = Causal.but("k_len, dtype=torch.bool", "k_len")
"""The mask holds the numbers 1 and 0 instead of True and False: ~ and & do not work on it."""

AdditiveMask = Causal.but(
    "return …", "return torch.full((q_len, k_len), -math.inf).triu(diagonal=k_len - q_len + 1)"
)
"""This is an additive mask of 0 and minus infinity; return a boolean one."""


# 2.2 ------------------------------------------------------------------------------------------
class Padding(Correct, exercise="padding_mask"):
    def padding_mask(lengths, k_len):
        return (torch.arange(k_len) < lengths[:, None])[:, None, None, :]


QueriesMasked = Padding.but(
    "return …", "return (torch.arange(k_len) < lengths[:, None])[:, None, :, None]"
)
"""The mask is along the queries: padding must be masked as a key."""

PolarityInverted = Padding.but("(k_len) < lengths", "(k_len) >= lengths")
"""True marks the padding: here True means that attention is allowed."""

OneKeyTooMany = Padding.but("(k_len) < lengths", "(k_len) <= lengths")
"""The first padded position is not masked: a sequence of length n has positions 0 to n - 1."""

CountedFromOne = Padding.but("(k_len)", "(1, k_len + 1)")
"""The last real token is masked: positions start at 0."""

TwoAxesOnly = Padding.but("return …", "return torch.arange(k_len) < lengths[:, None]")
"""The axes of heads and queries are missing: (batch, k_len) is broadcast as (q_len, k_len), so the
batch is taken for the queries."""

HeadAxisForgotten = Padding.but(
    "return …", "return (torch.arange(k_len) < lengths[:, None])[:, None, :]"
)
"""An axis is missing: three axes are aligned with the last three of (batch, heads, q_len, k_len),
so the batch is taken for the heads."""

BatchOnTheHeadAxis = Padding.but(
    "return …", "return (torch.arange(k_len) < lengths[:, None])[None, :, None, :]"
)
"""The batch is on the axis of the heads, so each head masks the padding of a different sequence."""

PaddingOnTheLeft = Padding.but("(k_len) < lengths", "(k_len) >= k_len - lengths")
"""The mask hides the first positions; the padding comes after the real tokens."""

AsLongAsTheLongest = Padding.but("(k_len)", "(int(lengths.max()))")
"""The mask is as long as the longest sequence; the keys may be padded further, to k_len."""

PaddingCutFromATable = Padding.but("torch.arange(k_len)", "torch.arange(512)[:k_len]")
"""The positions are cut out of a table of fixed size, such as 512, and a slice beyond its end is
silently shorter: count as many positions as there are keys."""

EmptySequenceGetsAKey = Padding.but("lengths[:, None]", "lengths.clamp(min=1)[:, None]")
"""An empty sequence is treated like one of length 1, so that its padding is attended to: a length of 0
allows no key."""

PaddedQueriesMaskedToo = Padding.but(
    "return (torch.arange(k_len) < lengths[:, None])[:, None, None, :]",
    "real = torch.arange(k_len) < lengths[:, None]\n"
    "return (real[:, :, None] & real[:, None, :])[:, None]",
)
"""Padded queries may attend to nothing, which leaves empty rows. Mask padding as a key only; the
output of a padded query is never used."""


# 2.7 ------------------------------------------------------------------------------------------
class Combined(Correct, exercise="combine_masks"):
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
        allowed = prefix_mask(prefix_lengths, length) & real
        return allowed & window_mask(length, window) & document_mask(documents)


MasksCombinedByOr = Combined.but(
    "allowed = …", "allowed = prefix_mask(prefix_lengths, length) | real"
).but("return allowed …", "return allowed | window_mask(length, window) | document_mask(documents)")
"""The masks are combined by “or”: use “and”, as every mask has to allow a key."""

PrefixJoinedByAnd = Combined.but(") | (place", ") & (place")
"""Prefix and causality are combined by “and”, so that no query sees more than the prefix: allow a
key for either reason."""

PrefixMaskCausal = Combined.but(
    "def prefix_mask(prefix_lengths, …\n    place = …",
    "def prefix_mask(prefix_lengths, length):\n"
    "    causal = torch.ones(length, length, dtype=torch.bool).tril()",
).but("return (place …", "return causal.expand(len(prefix_lengths), 1, length, length)")
"""The prefix mask is causal within the prefix, too; there tokens must see one another in both
directions."""

PrefixOneTooLong = Combined.but("place < prefix_lengths", "place <= prefix_lengths")
"""A prefix of n tokens has positions 0 to n - 1: the token after it does not belong to it."""

PrefixOverridesOtherMasks = Combined.but(
    "real = …\nreturn …",
    "place = torch.arange(length)\n"
    "allowed = (place <= place[:, None]) & (place < lengths[:, None, None, None])\n"
    "allowed = allowed & window_mask(length, window) & document_mask(documents)\n"
    "return allowed | (place < prefix_lengths[:, None, None, None])",
)
"""The prefix is allowed last, by “or”, so keys that other masks hide are visible again: combine it
with causality first, then with the others."""

PrefixOutsideTheWindow = Combined.but(
    "allowed = …\nreturn …",
    """
    near = prefix_mask(0 * prefix_lengths, length) & window_mask(length, window)
    prefix = torch.arange(length) < prefix_lengths[:, None, None, None]
    return (near | prefix) & real & document_mask(documents)
    """,
)
"""The prefix stays visible beyond the window: the window hides keys that are too far back, whether
they belong to the prefix or not."""

WindowTooWide = Combined.but("place < window", "place <= window")
"""The window is one too wide: it counts the query itself, so `window` positions back is too far."""

WindowTooNarrow = Combined.but("place < window", "place < window - 1")
"""The window is one too narrow: a query should see itself and the window - 1 keys before it."""

MasksCutFromATable = Combined.but(
    "place = torch.arange(length)", "place = torch.arange(128)[:length]", times=2
)
"""The positions are cut out of a table of fixed size, such as 128, and a slice beyond its end is
silently shorter: count as many positions as there are tokens."""

WindowOnBothSides = Combined.but("place[:, None] - place", "(place[:, None] - place).abs()")
"""The window also hides keys far ahead. The prefix mask decides how far ahead a query may look;
the window limits only how far back."""

WindowIsCausal = Combined.but(
    "return place[:, None] - place < window",
    "distance = place[:, None] - place\nreturn (distance >= 0) & (distance < window)",
)
"""The window hides all later keys, so it undoes the prefix: each mask states one rule, and the
window limits only how far back."""

DocumentComparedWithPosition = Combined.but(
    "return (documents[:, :, None] == documents[:, None, :])[:, None]",
    "place = torch.arange(documents.shape[1])\n"
    "return (documents[:, None, :] == place[:, None])[:, None]",
)
"""The id of the key's document is compared with the query's position: compare it with the id of the
query's document."""

SmallerIdsVisible = Combined.but(
    "documents[:, :, None] == documents", "documents[:, :, None] >= documents"
)
"""A document sees all documents whose id is not larger; it should see only itself, because the
order of the ids means nothing."""

DocumentZeroIsPadding = Combined.but(
    "documents[:, None, :])[:, None]",
    "documents[:, None, :])[:, None] & (documents != 0)[:, None, None, :]",
)
"""The id 0 is taken for padding, so a text with that id is hidden from itself: an id is only a name,
and `lengths` says what is padding."""

NewDocumentAtEveryIdChange = Combined.but(
    "return (documents[:, :, None] == documents[:, None, :])[:, None]",
    "changes = (documents[:, 1:] != documents[:, :-1]).cumsum(dim=1)\n"
    "counted = F.pad(changes, (1, 0))\n"
    "return (counted[:, :, None] == counted[:, None, :])[:, None]",
)
"""A new document is counted wherever the id changes. A document that continues after another one is
still the same: compare the ids themselves."""

CausalMaskCombinedToo = Combined.but(
    "allowed = …", "allowed = prefix_mask(prefix_lengths, length) & real & document_mask(documents)"
).but("return allowed …", "return (allowed & window_mask(length, window)).tril()")
"""A causal mask is used as well as the prefix mask, or instead of it, and hides the later keys of
the prefix: the prefix mask alone says which later keys are allowed."""

WindowForgotten = Combined.but(
    "allowed = …\nreturn …",
    "return prefix_mask(prefix_lengths, length) & real & document_mask(documents)",
)
"""The window is not combined with the others: keys that lie too far back are still visible."""

DocumentsForgotten = Combined.but(
    "allowed = …\nreturn …",
    "return prefix_mask(prefix_lengths, length) & real & window_mask(length, window)",
)
"""The document mask is not combined with the others: documents still see one another."""

PaddingForgotten = Combined.but(
    "real = …\nreturn …",
    "allowed = prefix_mask(prefix_lengths, length) & window_mask(length, window)\n"
    "return allowed & document_mask(documents)",
)
"""Padded keys are still visible: mask them, too."""


# 2.3 ------------------------------------------------------------------------------------------
class Masked(Correct, exercise="masked_softmax"):
    def masked_softmax(scores, mask):
        weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1)
        return weights.masked_fill(~mask, 0.0)


TenThousandSubtracted = Masked.but(
    "weights = …", "weights = (scores + -1e4 * ~mask).softmax(dim=-1)"
)
"""Masked scores are reduced by a number such as 10,000, and one that is higher by even more still
gets weight: no finite number is enough, so replace the score."""

SoftmaxOverQueries = Masked.but("softmax(dim=-1)", "softmax(dim=-2)")
"""The softmax runs over the queries: each row, of one query, should sum to 1 over the keys."""

ZeroTakenForMasked = Masked.but(
    "scores.masked_fill(~mask, torch.finfo(scores.dtype).min)",
    "scores.masked_fill(scores * mask == 0, torch.finfo(scores.dtype).min)",
)
"""The scores are multiplied by the mask, and every 0 is then taken for masked, but an allowed score can
be 0, too: use the mask itself to say what is masked."""

ScoresMultipliedByTheMask = Masked.but(
    "scores.masked_fill(~mask, torch.finfo(scores.dtype).min)", "(scores * mask)"
).but("weights.masked_fill(~mask, 0.0)", "weights * mask.any(dim=-1, keepdim=True)")
"""Masked scores become 0, but a key with a score of 0 still gets weight: use minus infinity."""

ZeroedAfterwards = Masked.but(
    "weights = …\nreturn …", "return scores.softmax(dim=-1).masked_fill(~mask, 0.0)"
)
"""The weights of masked keys are set to 0 after the softmax, so the rest do not sum to 1: mask the
scores."""

RenormalisedAfterwards = Masked.but(
    "weights = …\nreturn …",
    "weights = scores.softmax(dim=-1) * mask\n"
    "total = weights.sum(dim=-1, keepdim=True)\n"
    "return weights / total.masked_fill(total == 0, 1.0)",
)
"""Masked keys take part in the softmax (or in the largest score, which is subtracted), and the other
weights are renormalised afterwards: a masked key with a large score makes them underflow to 0. Mask
the scores first."""

NotLowEnough = Masked.but(
    "weights = …\nreturn …",
    "return scores.masked_fill(~mask, -1e4).softmax(dim=-1).masked_fill(~mask, 0.0)",
)
"""Masked keys get a fixed score, such as -10,000 or -65,504, which is low enough for most scores
but not for all: minus infinity is below every score."""

ExponentialsByHand = Masked.but("weights = …", "shares = scores.exp().masked_fill(~mask, 0.0)").but(
    "weights.masked_fill(~mask, 0.0)", "shares / shares.sum(dim=-1, keepdim=True).clamp_min(1e-30)"
)
"""The exponentials are taken of unshifted scores: for low scores they are all 0, for high ones
infinite. Use softmax, which subtracts the largest score first."""

MaskedScoresOverflow = Masked.but(
    "weights = …\nreturn …",
    "top = scores.masked_fill(~mask, -math.inf).amax(dim=-1, keepdim=True)\n"
    "shares = (scores - top.masked_fill(top == -math.inf, 0.0)).exp() * mask\n"
    "total = shares.sum(dim=-1, keepdim=True)\n"
    "return shares / total.masked_fill(total == 0, 1.0)",
)
"""Masked scores are exponentiated, too, and the result is multiplied by 0: exp of a high score is
infinite, and infinity times 0 is NaN. Replace masked scores before exp."""

MinusTwenty = Masked.but("torch.finfo(scores.dtype).min", "-20.0").but(
    "weights.masked_fill(~mask, 0.0)", "weights * mask.any(dim=-1, keepdim=True)"
)
"""Masked keys get the score -20, which is not low enough: a little always leaks through, and more
where other scores are lower still. Minus infinity is below every score."""

NanForAFullyMaskedRow = Masked.but(
    "weights = …\nreturn …", "return scores.masked_fill(~mask, -math.inf).softmax(dim=-1)"
)
"""A row in which nothing is allowed becomes 0/0, which is NaN, whether in a softmax of minus
infinities or in a division by a sum of 0: handle such rows separately."""

UniformWeightsForAMaskedRow = Masked.but(
    "weights = …\nreturn …", "return scores.masked_fill(~mask, -1e9).softmax(dim=-1)"
)
"""Where nothing is allowed, all scores are set to the same number (-1e9, say), so the masked keys
share the weight: the weights of such a row should all be 0."""

MillionSubtracted = Masked.but(
    "weights = …\nreturn …",
    "return (scores + torch.where(mask, 0.0, -1e6).to(scores.dtype)).softmax(dim=-1)",
)
"""A million is subtracted from masked scores. Where nothing is allowed it is subtracted from all of
them, which does not change the softmax: the row is as if nothing were masked."""

AllowedScoresRaised = Masked.but(
    "weights = …", "weights = (scores + 1e4 * mask.to(scores.dtype)).softmax(dim=-1)"
)
"""Allowed scores are raised by 10,000 or so: a masked one may be higher still, and half precision
rounds in steps of 8 or 64. Leave allowed scores unchanged."""

TooSmallForFloat16 = Masked.but(
    "weights = …\nreturn …",
    "return scores.masked_fill(~mask, -1e9).softmax(dim=-1).masked_fill(~mask, 0.0)",
)
"""The largest float16 is 65,504, so -1e9 does not exist there: use minus infinity, or the lowest
number of the scores' own dtype."""

NanRepairedForwardOnly = Masked.but(
    "weights = …", "added = torch.where(mask, 0.0, -math.inf).to(scores.dtype)"
).but("weights.masked_fill(~mask, 0.0)", "(scores + added).softmax(dim=-1).nan_to_num(0.0)")
"""The softmax gives NaN, which stays in the gradients even if the weights are repaired, say by
nan_to_num. Do not let a NaN arise."""

MaskInverted = Masked.but("~mask", "mask", times=2)
"""Allowed keys are masked, and masked ones are allowed: True means that attention is allowed."""


# 2.5 ------------------------------------------------------------------------------------------
class Audit(Correct, exercise="causality_audit"):
    def causality_audit(model, x):
        before = model(x)
        found = torch.zeros(len(x), len(x), dtype=torch.bool)
        for j in range(len(x)):
            changed = x.clone()
            changed[j] = 2.0 - x[j].flip(0)
            found[:, j] = (model(changed) - before).abs().amax(dim=-1) > 1e-10
        return found


Transposed = (
    Audit.but("found = …", "rows = []")
    .but("found[:, j] = …", "rows.append((model(changed) - before).abs().amax(dim=-1) > 1e-10)")
    .but("return found", "return torch.stack(rows)")
)
"""The matrix is transposed: a row belongs to an output, a column to an input."""

OnlyTheSignChanges = Audit.but("2.0 - x[j].flip(0)", "-x[j]")
"""Only the sign of a token is changed, so what depends on its squares or absolute values does not
change: draw other numbers for it."""

AllFeaturesShiftedInPlace = Audit.but("changed = x.clone()", "changed = x").but(
    "changed[j] = 2.0 - x[j].flip(0)", "changed[j] += 1"
)
"""Two mistakes: the input itself is changed (x[j] += 1) and stays changed for the next token, so
change a clone; and the same number is added to all features, which a LayerNorm removes."""

OutputsAddedUp = Audit.but(
    "before = model(x)…\nreturn found",
    "x = x.clone().requires_grad_()\n"
    "(slope,) = torch.autograd.grad((model(x) ** 2).sum(), x)\n"
    "return (slope.abs().amax(dim=-1) > 1e-10).expand(len(x), len(x))",
)
"""All outputs are summed before they are differentiated, so all rows of the matrix are the same:
differentiate each output separately."""

FeaturesAddedUp = Audit.but(
    "before = model(x)…\nreturn found",
    """
    x = x.clone().requires_grad_()
    rows = []
    for output in model(x):
        (slope,) = torch.autograd.grad(output.sum(), x, retain_graph=True)
        rows.append(slope.abs().amax(dim=-1) > 1e-10)
    return torch.stack(rows)
    """,
)
"""The features of an output are summed before they are differentiated. After a LayerNorm their sum
is always 0, so no influence shows: look at each feature."""

LastOutputOnly = (
    Audit.but("found = …", "row = torch.zeros(len(x), dtype=torch.bool)")
    .but("found[:, j] = …", "row[j] = (model(changed) - before)[-1].abs().max() > 1e-10")
    .but("return …", "return row.repeat(len(x), 1)")
)
"""Only the last output is tested; the future can leak only into the others."""

FutureNeverTested = Audit.but(
    "for j in range(len(x)):…\n    found[:, j] = …",
    """
    for i in range(len(x)):
        for j in range(i + 1):
            changed = x.clone()
            changed[j] = 2.0 - x[j].flip(0)
            found[i, j] = (model(changed) - before)[i].abs().max() > 1e-10
    """,
)
"""Only inputs up to the output are changed, so the audit cannot find a leak: change the later ones,
too."""

ZerosAsInput = Audit.but(
    "def causality_audit(model, x):", "def causality_audit(model, x):\n    x = torch.zeros_like(x)"
).but("2.0 - x[j].flip(0)", "torch.linspace(-1.0, 1.0, x.shape[1])")
"""The model is called on zeros. Products with zeros vanish and all tokens are equal, so
influences are missed: start from the given x."""

FirstFeatureOnly = Audit.but("changed[j] = 2.0 - x[j].flip(0)", "changed[j, 0] += 1.0").but(
    ").abs().amax(dim=-1", ")[:, 0].abs("
)
"""Only the first feature of each token is changed and compared; an influence can pass through
another one."""

AllFeaturesShifted = Audit.but("changed[j] = 2.0 - x[j].flip(0)", "changed[j] += 1.0")
"""The same number is added to all features of a token (or the derivatives with respect to its
features are summed, which is the same test). A LayerNorm removes such a change: change the features
by different numbers."""

FeaturesReordered = Audit.but("2.0 - x[j].flip(0)", "x[j].flip(0)")
"""The features of a token are only put in another order, so their sum, mean and norm stay the same,
and a dependence on these is missed: replace them by other numbers."""

OneFeatureOfEveryToken = Audit.but("changed[j] = 2.0 - x[j].flip(0)", "changed[j, -1] += 1.0")
"""Only the last feature of each token is changed; an influence can pass through another one: change
all of them, by different numbers."""

OnlyNormsChanged = Audit.but("changed[j] = 2.0 - x[j].flip(0)", "changed[j] *= 2.0")
"""Tokens are multiplied by a number, which changes their norm and not their direction. A model that
uses only directions does not notice it: replace tokens by other ones."""

ThresholdTooHigh = Audit.but("1e-10", "1e-4")
"""Small influences are not counted: a small leak is a leak, and training will find it."""

RoundingCounted = Audit.but(
    "(model(changed) - before).abs().amax(dim=-1) > 1e-10", "(model(changed) != before).any(dim=-1)"
)
"""Every non-zero change is counted. If a sum is computed in another order, the last digit
changes, which is not an influence: allow for rounding."""

ChangesAddUp = Audit.but(
    "changed = x.clone()…\nfound[:, j] = …",
    "x[j] = 2.0 - x[j].flip(0)\nfound[:, j] = (model(x) - before).abs().amax(dim=-1) > 1e-10",
)
"""Earlier changes are never undone, so the last columns show the effect of all of them: start from
the original x each time, and change a clone of it."""


# 2.8 ------------------------------------------------------------------------------------------
class CheckPadding(Correct, exercise="check_padding_invariance"):
    def largest_difference(first, second, lengths):
        shortest = min(first.shape[1], second.shape[1])
        real = torch.arange(shortest) < lengths[:, None]
        gap = (first[:, :shortest] - second[:, :shortest]).abs().nan_to_num(math.inf)
        return gap[real].max()

    def check_padding_invariance(model):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(3, 9, 4, generator=generator, dtype=torch.float64)
        alone = model(x[-1:, :5], torch.tensor([5]))
        together = model(x, torch.tensor([8, 7, 5]))
        assert largest_difference(alone, together[-1:], torch.tensor([5])) < 1e-4


PaddingComparedToo = (
    CheckPadding.but("real = …", "")
    .but("gap[real]", "gap")
    .but(
        "x = …\nassert …",
        """
    x = torch.randn(3, 7, 4, generator=generator, dtype=torch.float64)
    longer = torch.cat([x, torch.randn(3, 2, 4, generator=generator).double()], dim=1)
    longer[1, 5:] = 2.0
    longer[0] += 1.0
    lengths = torch.tensor([7, 5, 3])
    first, second = model(x, lengths), model(longer, lengths)
    assert largest_difference(first[1:], second[1:], lengths[1:]) < 1e-4
    """,
    )
)
"""Results at padded positions are compared, too. They are never used, and correct models return
different numbers there."""

PaddingTimesZero = CheckPadding.but(
    "shortest = …\nreturn gap[real].max()",
    "shortest = min(first.shape[1], second.shape[1])\n"
    "real = (torch.arange(shortest) < lengths[:, None])[:, :, None]\n"
    "gap = (first[:, :shortest] - second[:, :shortest]) * real\n"
    "return gap.abs().nan_to_num(math.inf).max()",
).but(
    "x = …\nassert …",
    """
    x = torch.randn(3, 7, 4, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([7, 4, 2])
    x[1, 4:], x[2, 2:] = 50.0, -50.0
    together = model(x, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = model(x[row : row + 1, :length], lengths[row : row + 1])
        one = together[row : row + 1]
        assert largest_difference(alone, one, lengths[row : row + 1]) < 1e-4
    """,
)
"""Differences in the padding are multiplied by 0, and 0 times NaN is NaN: select the real tokens
instead, with an index, masked_fill or where."""

InfinityTimesZero = CheckPadding.but(
    "return gap[real].max()", "return (gap * real[:, :, None]).max()"
)
"""A NaN in the padding becomes infinity, which is then multiplied by 0, and that is NaN again: select
the real tokens instead, with an index, masked_fill or where."""

NanGoesUnnoticed = CheckPadding.but(
    "shortest = …\nreturn gap[real].max()",
    """
    largest = 0.0
    for one, other, length in zip(first, second, lengths.tolist(), strict=True):
        for gap in (one[:length] - other[:length]).abs().flatten().tolist():
            if gap > largest:
                largest = gap
    return largest
    """,
).but("assert …", "assert not largest_difference(alone, together[-1:], torch.tensor([5])) > 1e-4")
"""NaN is not larger than any number, so a comparison with > lets it pass: count it as an infinite
difference."""

NanLostInAMaximum = CheckPadding.but(
    "shortest = …\nreturn gap[real].max()",
    """
    rows = zip(first, second, lengths.tolist(), strict=True)
    largest = max(float((one[:n] - other[:n]).abs().max()) for one, other, n in rows if n)
    return math.inf if math.isnan(largest) else largest
    """,
)
"""Python's `max` drops a NaN that is not the first number: look for NaN before the maximum, or take
torch's `max`, which keeps it."""

DifferencesAveraged = CheckPadding.but(
    "shortest = …\nreturn gap[real].max()",
    """
    gaps = [
        (one[:length] - other[:length]).abs().flatten()
        for one, other, length in zip(first, second, lengths.tolist(), strict=True)
    ]
    return torch.cat(gaps).nan_to_num(math.inf).mean()
    """,
)
"""The mean of the differences is taken, which hides one wrong token among many correct ones. Take
the largest."""

BatchOnlyReordered = CheckPadding.but(
    "alone = …\nassert …",
    """
    lengths, order = torch.tensor([8, 7, 5]), torch.tensor([1, 2, 0])
    x[0, 8:], x[1, 7:], x[2, 5:] = 3.0, -4.0, 5.0
    padded = torch.cat([x, torch.randn(3, 2, 4, generator=generator).double()], dim=1)
    padded[0, 8:], padded[1, 7:], padded[2, 5:] = -9.0, 8.0, 7.0
    moved = model(padded[order], lengths[order])
    assert largest_difference(model(x, lengths)[order], moved, lengths[order]) < 1e-4
    """,
)
"""The sequences are only put in another order, so a statistic of the whole batch stays the same.
Compare the results for one alone and among others."""

NothingIsCompared = CheckPadding.but(
    "generator = …\nassert …",
    "torch.manual_seed(4)\nx = torch.randn(3, 9, 4)\nassert model(x, torch.tensor([5, 7, 8])).shape == x.shape",
)
"""No wrong number can make this test fail: it must compare results and `assert` (returning False
has no effect)."""

ComparedExactly = (
    CheckPadding.but("3, 9, 4, generator", "5, 11, 4, generator")
    .but("alone = …", "lengths = torch.tensor([8, 3, 11, 5, 7])")
    .but("together = …", "alone = model(x[-1:, :7], lengths[-1:])")
    .but("assert …", "assert largest_difference(alone, model(x, lengths)[-1:], lengths[-1:]) == 0")
)
"""The test requires results that are equal down to the last digit, or nearly. That digit depends
on the order in which numbers are added, so correct models fail: allow a tolerance."""

NanInThePadding = CheckPadding.but(
    "alone = …", "alone = model(x[-1:, :5], torch.tensor([5]))\nx[-1, 5:] = math.nan"
)
"""There is NaN in the padding. 0 times NaN is NaN, so it passes through every weight of 0, and
correct models fail: fill the padding with finite numbers."""

OtherSequencesNeverChange = CheckPadding.but(
    "alone = …\nassert …",
    """
    lengths = torch.tensor([4, 5, 7])
    first, second = model(x[:, :7], lengths), model(x, lengths)
    assert largest_difference(first, second, lengths) < 1e-4
    other = x.clone()
    for row, length in enumerate(lengths):
        other[row, length:] = 3.0
    assert largest_difference(second, model(other, lengths), lengths) < 1e-4
    """,
)
"""Either the other sequences never change, or only the first sequence is compared, which a model
may happen to get right: compare each with what the model returns for it alone."""

OneSequenceByItself = CheckPadding.but("x, torch.tensor([8, 7, 5])", "x[-1:], torch.tensor([5])")
"""Both calls get the same sequences: a mask as long as the longest of them, and a dependence between
them, go unnoticed. Compare a sequence by itself with the same one in a batch with longer ones."""

OnlyValuesInThePaddingChange = CheckPadding.but(
    "alone = …\nassert …",
    """
    lengths, other = torch.tensor([4, 5, 7]), x.clone()
    for row, length in enumerate(lengths):
        other[row, length:] = 3.0
    assert largest_difference(model(x, lengths), model(other, lengths), lengths) < 1e-4
    """,
)
"""Only the values in the padding change, neither its amount nor the other sequences: positions
counted from the padded end, and a dependence between sequences, go unnoticed."""

EqualLengthsWithOtherPadding = OnlyValuesInThePaddingChange.but("[4, 5, 7]", "[5, 5, 5]")
"""All sequences of a batch are equally long, and only the values in their padding change: vary the
lengths within a batch, the amount of padding, and the other sequences."""

OnlyTheOrderOfSequencesChanges = CheckPadding.but(
    "alone = …\nassert …",
    """
    lengths, order = torch.tensor([4, 5, 7]), torch.tensor([2, 0, 1])
    first, second = model(x, lengths)[order], model(x[order], lengths[order])
    assert largest_difference(first, second, lengths[order]) < 1e-4
    """,
)
"""Only the order of the sequences changes: nearly every model passes, with a mask or without. Change
the padding, and the other sequences."""

ZerosInThePaddingExpected = CheckPadding.but(
    "alone = …\nassert …",
    "lengths = torch.tensor([4, 5, 7])\nassert (model(x, lengths)[0, 4:] == 0).all()",
)
"""Results at padded positions are required to be 0. They are never used, and may be anything in
correct models: test the real tokens."""

PaddingStaysTheSame = CheckPadding.but("x[-1:, :5]", "x[-1:]")
"""Both calls get the same padding after the sequence that is compared, so only the rest of the
batch changes: cut off the padding in one call, or fill it with other numbers."""

PaddingIsAlwaysZero = CheckPadding.but(
    "x = …\nassert …",
    """
    lengths = torch.tensor([7, 9, 5])
    x = torch.randn(3, 9, 4, generator=generator, dtype=torch.float64)
    x[0, 7:], x[2, 5:] = 0.0, 0.0
    together = model(x, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = model(x[row : row + 1, :length], lengths[row : row + 1])
        one = together[row : row + 1]
        assert largest_difference(alone, one, lengths[row : row + 1]) < 1e-4
    """,
)
"""The padding holds only zeros, which add nothing to a sum, so a model that sums over the padding
passes: fill it with arbitrary numbers."""

AmountOfPaddingNeverChanges = CheckPadding.but(
    "alone = …\nassert …",
    """
    lengths = torch.tensor([4, 5, 7])
    other = torch.randn(3, 9, 4, generator=generator, dtype=torch.float64)
    other[1, :5] = x[1, :5]
    first, second = model(x, lengths), model(other, lengths)
    assert largest_difference(first[1:2], second[1:2], lengths[1:2]) < 1e-4
    """,
)
"""The contents of the padding change, but not its amount: positions that are counted from the
padded end go unnoticed."""

NoPaddingWhereCompared = (
    CheckPadding.but("x[-1:, :5], torch.tensor([5])", "x[-1:], torch.tensor([9])")
    .but("tensor([8, 7, 5])", "tensor([9, 9, 9])")
    .but("together[-1:], torch.tensor([5])", "together[-1:], torch.tensor([9])")
)
"""No sequence that is compared has padding, in either call: compare one that is shorter than
others, with and without its padding."""


# 2.11 -----------------------------------------------------------------------------------------
class Online(Correct, exercise="online_softmax_attention"):
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
        return state[2] / state[1].masked_fill(state[1] == 0, 1.0)[:, None]


HighestStartsAtZero = Online.but("torch.full((len(query),), -math.inf)", "torch.zeros(len(query))")
"""The largest score so far starts at 0, so if all scores are far below 0, every exponential is 0,
and so is the output: start at minus infinity."""

OldTotalNotRescaled = Online.but(
    "return (…\n)",
    "return higher, total + shares.sum(-1), mixed * shrink[:, None] + shares @ value",
)
"""When the maximum rises, the old total has to shrink by the same factor as `mixed`."""

OldOutputNotRescaled = Online.but(
    "return (…\n)", "return higher, total * shrink + shares.sum(-1), mixed + shares @ value"
)
"""When the maximum rises, `mixed` has to shrink by the same factor as the total."""

NothingRescaled = Online.but(
    "shrink, shares = …\n)",
    "shares = (scores - reference[:, None]).exp()\n"
    "return higher, total + shares.sum(-1), mixed + shares @ value",
)
"""`total` and `mixed` stay unchanged when the maximum rises. They were computed relative to the old
maximum: both have to shrink by the same factor."""

RescaledTheWrongWay = Online.but(
    "shrink, shares = …\n)",
    "grow = (reference - highest.masked_fill(highest.isinf(), 0.0)).exp()\n"
    "shares = (scores - reference[:, None]).exp()\n"
    "return higher, total * grow + shares.sum(-1), mixed * grow[:, None] + shares @ value",
)
"""The factor is inverted: when the maximum rises, the old sums must shrink."""

MaximumOfTheBlockAlone = Online.but(
    "torch.maximum(highest, scores.amax(dim=-1))", "scores.amax(dim=-1)"
)
"""Only the maximum of the new block is kept; if an earlier block had a higher one, its exponentials
can overflow: take the larger one."""

DividedInEveryBlock = Online.but(
    "return (…\n)",
    "total = total * shrink + shares.sum(-1)\n"
    "return higher, total, (mixed * shrink[:, None] + shares @ value) / total[:, None]",
)
"""`mixed` is divided by the total in every block, and the next block adds to an average as if it
were a sum: divide once, at the end."""

EachBlockDivided = Online.but(
    "return (…\n)",
    "own = shares.sum(-1)\n"
    "average = shares @ value / own.masked_fill(own == 0, 1.0)[:, None]\n"
    "return higher, total * shrink + own, mixed * shrink[:, None] + average",
)
"""Each block is divided by its own sum, so its proportion of the total is lost: divide once, at
the end, by the total over all blocks."""

InfinityMinusInfinity = Online.but(
    "reference = …\nshrink, shares = …",
    "shrink, shares = (highest - higher).exp(), (scores - higher[:, None]).exp()",
)
"""While every key so far is masked, the maximum is minus infinity, and minus infinity minus itself
is NaN: subtract 0 instead."""

LastBlockDropped = Online.but("(key)", "(key) - block_size + 1")
"""The last block is skipped, at least if it is not full: the number of keys need not be a
multiple of the block size."""

NeverDivided = Online.but("[2] / state[1].masked_fill(state[1] == 0, 1.0)[:, None]", "[2]")
"""The weighted sum of the values is never divided by the total: divide once, at the end."""

MaskedScoresNotLowEnough = Online.but("~mask[:, block], -math.inf", "~mask[:, block], -1e4").but(
    "return state[2] / state[1].masked_fill(state[1] == 0, 1.0)[:, None]",
    "return (state[2] / state[1][:, None]).masked_fill(~mask.any(dim=-1, keepdim=True), 0.0)",
)
"""Masked keys get a finite score, such as -10,000, and where the allowed scores are lower still, masked
keys get the weight: minus infinity is below every score."""

ZeroDividedByZero = Online.but("[1].masked_fill(state[1] == 0, 1.0)", "[1]")
"""If a query may attend to nothing, its total is 0, and 0/0 is NaN: the output should be 0."""

ScaleMissing = Online.but("T / math.sqrt(query.shape[1])", "T")
"""The scores are not divided by the square root of d_head."""


# Bug hunts ------------------------------------------------------------------------------------
class Masks(Correct, exercise="mended_masks"):
    def mended_masks(query, key, value, lengths):
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        place = torch.arange(key.shape[-2])
        hidden = (place >= lengths[:, None, None]) | (place > place[:, None])
        weights = scores.masked_fill(hidden, -math.inf).softmax(dim=-1)
        return weights @ value


LeftAsPublished = Masks.but(
    "place = …\nweights = …",
    "hidden = torch.arange(key.shape[-2]) >= lengths[:, None]\n"
    "weights = (scores - 1e6 * hidden[:, None, :]).softmax(dim=-2)",
)
"""Nothing has changed: a number added to a whole column cancels in a softmax over that column."""

OneRowForAllQueries = Masks.but(
    "place = …\nweights = …",
    "hidden = torch.arange(key.shape[-2]) >= lengths[:, None]\n"
    "weights = (scores - 1e6 * hidden[:, None, :]).softmax(dim=-1)",
)
"""The softmax is now correct, but the mask still has one row for all queries: the future differs
from query to query, so the mask needs a row for each."""

SoftmaxStillOverQueries = Masks.but("math.inf).softmax(dim=-1", "1e6).softmax(dim=-2")
"""The mask is now correct, but the softmax still runs over the queries: the weights of a query must
sum to 1."""

DiagonalHidden = Masks.but("place > place", "place >= place")
"""Each token is hidden from itself, so the first query sees nothing, and its softmax is NaN: hide
only later tokens."""

PaddingMaskLost = Masks.but(
    "hidden = …\nweights = …",
    "weights = scores.masked_fill(place > place[:, None], -math.inf).softmax(dim=-1)",
)
"""The mask is now causal, but it no longer hides padding that comes before a query."""

PaddingOfTheLongest = Masks.but("lengths[:, None, None]", "lengths.max()")
"""Every sequence is masked like the longest in the batch, so queries attend to the padding of the
shorter ones: each sequence has its own length."""

PaddedQueriesMasked = Masks.but(
    "hidden = …\nreturn weights @ value",
    "real = place < lengths[:, None]\n"
    "allowed = real[:, :, None] & real[:, None, :] & (place <= place[:, None])\n"
    "return scores.masked_fill(~allowed, -math.inf).softmax(dim=-1) @ value",
)
"""Padded queries may attend to nothing, and a softmax over nothing is NaN: mask padding as a key
only."""

FirstPaddingTokenAllowed = Masks.but("place >= lengths", "place > lengths")
"""The first padding token of a sequence is not masked: the real tokens have the positions 0 to
lengths - 1."""

MaskedOnlyForBothReasons = Masks.but(") | (place", ") & (place")
"""A key is masked only if it is padding and lies ahead; either reason alone is enough to mask
it."""


RenormalisedAfterwards = Masks.but(
    "weights = …",
    "weights = scores.softmax(dim=-1) * ~hidden\nweights = weights / weights.sum(dim=-1, keepdim=True)",
)
"""The mask acts after the softmax, and the rows are renormalised: if a hidden key has a much higher score,
all other weights have underflowed, and 0/0 is NaN. Mask the scores before the softmax."""

HundredSubtracted = Masks.but("scores.masked_fill(hidden, -math.inf)", "(scores - 100.0 * hidden)")
"""A number such as 100 or 1e6 is subtracted from hidden scores, and one that is higher than the
others by more than that still gets weight: hide keys with minus infinity."""

ZeroTakenForHidden = Masks.but(
    "weights = …",
    "scores = scores * ~hidden\n"
    "weights = scores.masked_fill(scores == 0, -math.inf).softmax(dim=-1)",
)
"""Scores are multiplied by the mask, and 0 is taken for hidden, but allowed ones can be 0, too:
use the mask itself to say what is hidden."""


class Columns(Correct, exercise="mended_columns"):
    def mended_columns(query, key, value):
        scores = key.T @ query / math.sqrt(query.shape[0])
        hidden = torch.ones_like(scores).tril(diagonal=-1).bool()
        return value @ scores.masked_fill(hidden, -math.inf).softmax(dim=0)


LeftAsItWas = Columns.but("tril(diagonal=-1)", "triu(diagonal=1)")
"""Nothing has changed: with keys as rows, the upper right triangle holds the past of each query."""

SoftmaxChangedInstead = Columns.but("tril(diagonal=-1)", "triu(diagonal=1)").but("dim=0", "dim=1")
"""The softmax was changed, not the mask: with keys as rows it must run down each column."""

OnlyTheScoresTransposed = (
    Columns.but("key.T @ query", "query.T @ key")
    .but("tril(diagonal=-1)", "triu(diagonal=1)")
    .but("dim=0", "dim=1")
)
"""The weights now have queries as rows, but are multiplied as if rows were keys: transpose them
back."""

DiagonalMaskedToo = Columns.but("tril(diagonal=-1)", "tril()")
"""A token must see itself: with the diagonal masked, the first query sees nothing and its output is
NaN."""

ScaledByLength = Columns.but("query.shape[0]", "query.shape[1]")
"""The scores are divided by the square root of the length; with one column per token, the width of a
query is shape[0]."""

MaskDropped = Columns.but("hidden = …\nreturn …", "return value @ scores.softmax(dim=0)")
"""There is no mask any more: each token sees the whole text."""


ZeroScoresHidden = Columns.but(
    "hidden = …",
    "scores = scores.triu()\nhidden = scores == 0",
)
"""Hidden scores are set to 0 and recognised by that, but an allowed score can be 0, too (if a query
or key is zero): make the mask from positions."""

ColumnsRenormalised = Columns.but(
    "hidden = …\nreturn …",
    "weights = scores.softmax(dim=0).triu()\nreturn value @ (weights / weights.sum(dim=0))",
)
"""The mask acts after the softmax, and the columns are renormalised: if a later token has a much higher
score, all other weights have underflowed, and 0/0 is NaN. Mask the scores before the softmax."""


class Modes(Correct, exercise="mended_modes"):
    def mended_modes(query, key, value, training):
        scores = query @ key.T / math.sqrt(query.shape[1])
        allowed = torch.ones_like(scores).tril(diagonal=len(key) - len(query)).bool()
        return scores.masked_fill(~allowed, -math.inf).softmax(dim=-1) @ value


MaskInTrainingOnly = Modes.but(
    "allowed = …\nreturn …",
    "if training:\n"
    "    allowed = torch.ones_like(scores).tril().bool()\n"
    "    scores = scores.masked_fill(~allowed, -math.inf)\n"
    "return scores.softmax(dim=-1) @ value",
)
"""No later key is hidden in evaluation: there, too, a whole text may be given at once, and a query
must not look ahead."""

MaskInEvaluationOnly = Modes.but(
    "allowed = …\nreturn …",
    "if not training:\n"
    "    allowed = torch.ones_like(scores).tril(diagonal=len(key) - len(query)).bool()\n"
    "    scores = scores.masked_fill(~allowed, -math.inf)\n"
    "return scores.softmax(dim=-1) @ value",
)
"""No later key is hidden in training: causality must hold in both modes."""

CachedKeysForgotten = Modes.but("tril(diagonal=len(key) - len(query))", "tril()")
"""The triangle starts at the first key. Cached keys come first, so the queries are the last
positions."""

OffsetInEvaluationOnly = Modes.but(
    "diagonal=len(key) - len(query)", "diagonal=0 if training else len(key) - len(query)"
)
"""In training, the triangle starts at the first key: the queries are the last positions in both
modes."""

NoMaskWithACache = Modes.but(
    "allowed = …\nreturn …",
    "if len(query) == len(key):\n"
    "    allowed = torch.ones_like(scores).tril().bool()\n"
    "    scores = scores.masked_fill(~allowed, -math.inf)\n"
    "return scores.softmax(dim=-1) @ value",
)
"""With cached keys there is no mask at all; new queries must not see one another's future
either."""


MaskedAfterTheSoftmax = Modes.but(
    "allowed = …\nreturn …",
    "weights = scores.softmax(dim=-1).tril(diagonal=len(key) - len(query))\n"
    "return weights / weights.sum(dim=-1, keepdim=True) @ value",
)
"""The mask acts after the softmax, and the rows are renormalised: if a later key has a much higher score,
all other weights have underflowed, and 0/0 is NaN. Mask the scores before the softmax."""

MaskNotLowEnough = Modes.but("-math.inf", "-1e4")
"""Hidden scores are set to a finite number, such as -10,000, and where the allowed scores are lower still,
the future gets the weight: minus infinity is below every score."""


LoweredNotLowEnough = Modes.but(
    "scores.masked_fill(~allowed, -math.inf)", "(scores - 1e4 * ~allowed)"
)
"""Hidden scores are lowered by a finite number, such as 10,000, and a later key whose score is higher
than the others by more than that still gets the weight: set them to minus infinity."""


class Maps(Correct, exercise="mended_maps"):
    def layer_weights(x, w_query, w_key, mask=None):
        scores = (x @ w_query) @ (x @ w_key).T / math.sqrt(x.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return scores.softmax(dim=-1)

    def mended_maps(x, w_query, w_key, w_value, mask):
        maps = []
        for w_q, w_k, w_v in zip(w_query, w_key, w_value, strict=True):
            maps.append(layer_weights(x, w_q, w_k, mask))
            x = x + maps[-1] @ (x @ w_v)
        return torch.stack(maps)


MaskForTheMapsOnly = Maps.but("maps[-1]", "layer_weights(x, w_q, w_k)")
"""Nothing has changed: each map is masked, but the next layer gets the output of an unmasked
layer."""

MapsWithoutMask = Maps.but("w_k, mask", "w_k")
"""The maps are taken without the mask, so they give weight to keys that the model hides."""

MapsMaskedAfterTheSoftmax = Maps.but("(x, w_q, w_k, mask)", "(x, w_q, w_k) * mask").but(
    "maps[-1]", "layer_weights(x, w_q, w_k, mask)"
)
"""The maps are computed without the mask and masked afterwards: their rows no longer sum to
1."""

MapsRenormalised = Maps.but(
    "maps.append(layer_weights(x, w_q, w_k, mask))\nx = x + maps[-1] @ (x @ w_v)",
    "shares = layer_weights(x, w_q, w_k) * mask\n"
    "maps.append(shares / shares.sum(dim=-1, keepdim=True))\n"
    "x = x + layer_weights(x, w_q, w_k, mask) @ (x @ w_v)",
)
"""The maps are computed without the mask and renormalised afterwards: if a hidden key has a much higher
score, all other weights have underflowed, and 0/0 is NaN. Pass the mask."""

MapsOneLayerLate = Maps.but(
    "maps.append(layer_weights(x, w_q, w_k, mask))\nx = x + maps[-1] @ (x @ w_v)",
    "x = x + layer_weights(x, w_q, w_k, mask) @ (x @ w_v)\n"
    "maps.append(layer_weights(x, w_q, w_k, mask))",
)
"""Each map is computed after its layer has changed x: use the input of the layer."""

StreamChangedInPlace = Maps.but("x = x + maps", "x += maps")
"""`x += …` changes the caller's x: `x = x + …` makes a new tensor."""

ResidualDropped = Maps.but("x + maps", "maps")
"""What a layer computes is added to x; here it replaces x."""


# 2.12 -------------------------------------------------------------------------------------------
class Window(Correct, exercise="mended_device"):
    def mended_device(query, key, value, window, fade):
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        q_len, k_len = scores.shape[-2:]
        places = torch.arange(k_len, device=query.device)
        distance = places[k_len - q_len :, None] - places
        if fade:
            scores = scores - (fade * distance).to(scores.dtype)
        mask = torch.zeros(q_len, k_len, device=query.device, dtype=query.dtype)
        mask[(distance < 0) | (distance >= window)] = -math.inf
        return torch.softmax(scores + mask, dim=-1) @ value


PositionsOnTheCpu = Window.but("k_len, device=query.device)", "k_len)")
"""The positions are created on the CPU, wherever the inputs are: torch.arange needs a device,
too."""

PositionsRounded = Window.but(
    "k_len, device=query.device)", "k_len, device=query.device, dtype=query.dtype)"
)
"""The positions have the dtype of the inputs, and bfloat16 rounds integers above 256, so distances
are wrong in a long sequence: compute with integers, and convert the result."""

DistancesRounded = Window.but(
    "places[k_len - q_len :, None] - places",
    "(places[k_len - q_len :, None] - places).to(query.dtype)",
)
"""The distances have the dtype of the inputs before they are compared with the window, and bfloat16
rounds integers above 256: compare integers, and convert the fade."""

TensorOnTheCpu = Window.but("device=query.device, dtype=query.dtype", "dtype=query.dtype")
"""The mask, or the positions that it is made from, is created on the CPU: pass the device of the
inputs."""

TensorInFloat32 = Window.but(", dtype=query.dtype", "")
"""The mask, or `fade * distance`, is in float32, whatever the inputs are: scores in bfloat16
then become float32, too, and their dtype does not match that of the values."""

FadeInFloat32 = Window.but("(fade * distance).to(scores.dtype)", "fade * distance")
"""A float times an integer tensor is a float32 tensor: scores in bfloat16 become float32 when it is
subtracted, and then their dtype does not match that of the values."""

EverythingInFloat32 = Window.but(
    "scores = query …",
    "query, key, value = query.float(), key.float(), value.float()\n"
    "scores = query @ key.mT / math.sqrt(query.shape[-1])",
)
"""The inputs are converted to float32, and the output stays in float32: return the dtype of the
inputs."""

CopiedToTheCpu = Window.but(
    "scores = query …",
    "query, key, value = query.cpu(), key.cpu(), value.cpu()\n"
    "scores = query @ key.mT / math.sqrt(query.shape[-1])",
)
"""The inputs are copied to the CPU, so the device computes nothing: leave them where they are."""

AsPublished = (
    Window.but("k_len, device=query.device)", "k_len)")
    .but(", device=query.device, dtype=query.dtype", "")
    .but("(fade * distance).to(scores.dtype)", "fade * distance")
)
"""As in the published function, tensors are created on the CPU and in float32: pass the device of
the inputs, and convert floats to their dtype."""

WindowNotLowEnough = Window.but("= -math.inf", "= -1e4")
"""A finite number, such as 10,000, is subtracted from hidden scores, and one that is higher than
the others by more still gets weight: add minus infinity."""

WindowOneTooWide = Window.but("distance >= window", "distance > window")
"""A query sees window + 1 keys; it should see those at the distances 0 to window - 1."""

QueriesCountedFromZero = Window.but("places[k_len - q_len :, None]", "places[:q_len, None]")
"""The queries are taken for the first positions; they are the last."""
