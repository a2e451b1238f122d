"""The named mistakes of chapter 03: what a message can name, and what graders are tested with."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from classroom.exercise.answers import Correct


# 3.1 ------------------------------------------------------------------------------------------
class Head(Correct, exercise="SelfAttentionHead"):
    class SelfAttentionHead(nn.Module):
        def __init__(self, d_model, d_head):
            super().__init__()
            self.query = nn.Linear(d_model, d_head, bias=False)
            self.key = nn.Linear(d_model, d_head, bias=False)
            self.value = nn.Linear(d_model, d_head, bias=False)
            self.d_head = d_head

        def forward(self, x, mask=None):
            scores = self.query(x) @ self.key(x).transpose(-2, -1) / math.sqrt(self.d_head)
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf)
            return scores.softmax(dim=-1) @ self.value(x)


NoScale = Head.but("self.d_head = d_head", "").but("(-2, -1) / math.sqrt(self.d_head)", "(-2, -1)")
"""The scores are not divided by the square root of d_head."""

ScaledByModelWidth = Head.but("self.d_head = d_head", "").but("(self.d_head)", "(x.shape[-1])")
"""The scores are divided by the square root of d_model; a dot product of this head has d_head
terms."""

MaskIgnored = Head.but("scores = scores", "scores")
"""The mask has no effect: every query still sees every key. (masked_fill does not work in place:
use the result.)"""

MaskInverted = Head.but("~mask", "mask")
"""The mask is inverted; True means that a query may attend to a key."""

MaskAfterSoftmax = Head.but(
    "if mask is not None:…\nreturn …",
    "weights = scores.softmax(dim=-1)\n"
    "if mask is not None:\n"
    "    weights = weights.masked_fill(~mask, 0.0)\n"
    "return weights @ self.value(x)",
)
"""Masked weights are set to zero after the softmax, so the rest no longer sum to 1: mask the scores
instead."""

RenormalisedAfterwards = Head.but(
    "if mask is not None:…\nreturn …",
    "weights = scores.softmax(dim=-1)\n"
    "if mask is not None:\n"
    "    weights = weights * mask\n"
    "    weights = weights / weights.sum(dim=-1, keepdim=True)\n"
    "return weights @ self.value(x)",
)
"""The mask acts after the softmax, and the rows are renormalised: if a masked key has a much higher score,
all other weights have underflowed, and 0/0 is NaN. Mask the scores before the softmax."""

NotLowEnough = Head.but("scores.masked_fill(~mask, -math.inf)", "scores - 1e4 * ~mask")
"""Masked scores are lowered by a finite number, such as 10,000, and one that is higher than the others by
more than that still gets weight: set them to minus infinity."""

FillNotLowEnough = Head.but("-math.inf", "-1e4")
"""Masked scores are set to a number such as -100 or -1e4. Where the other scores are even lower,
masked tokens get all the weight: set masked scores to minus infinity."""

ZeroTakenForMasked = Head.but("masked_fill(~mask, …", "masked_fill(scores * mask == 0, -math.inf)")
"""A score that is 0 after multiplication by the mask is taken for masked, but an allowed score can
be 0, too: use the mask itself to decide what is masked."""

ExponentialsOverflow = Head.but(
    "return …",
    "shares = scores.exp()\nreturn shares / shares.sum(dim=-1, keepdim=True) @ self.value(x)",
)
"""exp() of a large score is infinite, and inf/inf is NaN: use softmax, which subtracts the largest score
first."""

CausalWithoutAMask = Head.but(
    "if mask is not None:",
    "if mask is None:\n"
    "    mask = torch.ones_like(scores, dtype=torch.bool).tril()\n"
    "if mask is not None:",
)
"""Without a mask, the head is causal: no token sees a later one. No mask means that nothing is
masked."""

RootForgotten = Head.but("math.sqrt(self.d_head)", "self.d_head")
"""The scores are divided by d_head; it should be the square root of d_head."""

HalfOfTheWidth = Head.but("math.sqrt(self.d_head)", "(self.d_head / 2)")
"""The scores are divided by half of d_head: `d_head ** 1 / 2` is (d_head ** 1) / 2. Write
`d_head ** 0.5` or math.sqrt(d_head)."""

MaskedScoresSetToZero = Head.but("-math.inf", "0.0")
"""Masked scores become 0, and a softmax gives weight to a score of 0 as to any other: set them to
minus infinity."""

QueryAndKeyExchanged = Head.but("query(x) @ self.key", "key(x) @ self.query")
"""The query projection makes the keys and the key projection the queries: a row of the scores must
belong to a query."""

SoftmaxOverQueries = Head.but("dim=-1", "dim=-2")
"""The softmax runs over the queries (dim=-2); each query distributes its weight over the keys
(dim=-1)."""

TokensAveraged = Head.but("self.value(x)", "x")
"""The weights average the tokens themselves; a head averages their values."""


# 3.2 ------------------------------------------------------------------------------------------
class Loop(Correct, exercise="loop_of_heads"):
    def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):
        found = [
            F.scaled_dot_product_attention(x @ q, x @ k, x @ v, attn_mask=mask)
            for q, k, v in zip(w_query, w_key, w_value, strict=True)
        ]
        return torch.cat(found, dim=-1) @ w_output


HeadsAdded = Loop.but(
    "torch.cat(found, dim=-1) @ w_output", "sum(found) @ w_output[: found[0].shape[-1]]"
)
"""The outputs of the heads are summed; concatenate them, so that the output projection can
distinguish the heads."""

OutputProjectionForgotten = (
    Loop.but("q, x @ k, x @ v", "to_query, x @ to_key, x @ to_value")
    .but("q, k, v", "to_query, to_key, to_value")
    .but("cat(found, dim=-1) @ w_output", "cat(found, dim=-1)")
)
"""The heads are concatenated, but the output projection is missing."""

HeadsInReverseOrder = Loop.but("torch.cat(found", "torch.cat(found[::-1]")
"""The heads are in reverse order; the first rows of the output projection belong to the first
head."""

SameHeadForAll = Loop.but(
    "for q, k, v in zip(…", "for q, k, v in [(w_query[0], w_key[0], w_value[0])] * len(w_query)"
)
"""The same head is run every time; each head has its own projections."""

FeaturesInterleaved = (
    Loop.but("q, x @ k, x @ v", "to_query, x @ to_key, x @ to_value")
    .but("q, k, v", "to_query, to_key, to_value")
    .but("cat(found, dim=-1)", "stack(found, dim=-1).flatten(-2)")
)
"""The features of the heads alternate; all features of a head must be adjacent."""

ScaledByTokenWidth = Loop.but("attn_mask=mask", "attn_mask=mask, scale=x.shape[-1] ** -0.5")
"""The scores are divided by the square root of d_model; the width of a query is d_head."""

ScaledByWidthOfValues = Loop.but("attn_mask=mask", "attn_mask=mask, scale=v.shape[-1] ** -0.5")
"""The scores are divided by the square root of d_value; the dot product has d_head terms."""

HalfOfTheWidth = Loop.but("attn_mask=mask", "attn_mask=mask, scale=2 / q.shape[-1]")
"""The scores are divided by half of d_head: `d_head ** 1 / 2` is (d_head ** 1) / 2. Write
`d_head ** 0.5` or math.sqrt(d_head)."""


class LoopRenormalised(Loop):
    """The mask acts after the softmax, and the rows are renormalised: if a masked key has a much higher
    score, all other weights have underflowed, and 0/0 is NaN. Mask the scores before the softmax."""

    def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):
        found = []
        for q, k, v in zip(w_query, w_key, w_value, strict=True):
            weights = ((x @ q) @ (x @ k).mT / math.sqrt(q.shape[-1])).softmax(dim=-1)
            if mask is not None:
                weights = weights * mask
                weights = weights / weights.sum(dim=-1, keepdim=True)
            found.append(weights @ (x @ v))
        return torch.cat(found, dim=-1) @ w_output


LoopNotLowEnough = Loop.but(
    "def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):",
    "def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):\n"
    "    added = None if mask is None else -1e4 * (~mask).to(x.dtype)",
).but("attn_mask=mask", "attn_mask=added")
"""Masked scores are lowered by a finite number, such as 10,000, and one that is higher than the others by
more than that still gets weight: set them to minus infinity."""

LoopFillNotLowEnough = LoopRenormalised.but(
    "weights = …\nif mask is not None:…\nfound…",
    "scores = (x @ q) @ (x @ k).mT / math.sqrt(q.shape[-1])\n"
    "if mask is not None:\n"
    "    scores = scores.masked_fill(~mask, -1e4)\n"
    "found.append(scores.softmax(dim=-1) @ (x @ v))",
)
"""Masked scores are set to a number such as -100 or -1e4. Where the other scores are even lower,
masked tokens get all the weight: set masked scores to minus infinity."""

CausalWithoutAMask = Loop.but("attn_mask=mask", "attn_mask=mask, is_causal=mask is None")
"""Without a mask, the heads are causal: no token sees a later one. No mask means that nothing is
masked."""

NoMaskAtAll = Loop.but("q, x @ k, x @ v, attn_mask=mask", "to_query, x @ to_key, x @ to_value").but(
    "q, k, v", "to_query, to_key, to_value"
)
"""The mask is not used by any head."""

MaskInverted = Loop.but(
    "def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):",
    "def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):\n"
    "    forbidden = None if mask is None else ~mask",
).but("attn_mask=mask", "attn_mask=forbidden")
"""The heads get the mask with True and False swapped; True means allowed here, as in
scaled_dot_product_attention."""

MaskInvertedInPlace = Loop.but(
    "def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):",
    "def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):\n"
    "    forbidden = None if mask is None else mask.logical_not_()",
).but("attn_mask=mask", "attn_mask=None if forbidden is None else ~forbidden")
"""The mask is inverted in place, and the caller's mask with it; `~mask` makes a new one."""

MaskAsNumbers = Loop.but(
    "def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):",
    "def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):\n"
    "    added = None if mask is None else mask.to(x.dtype)",
).but("attn_mask=mask", "attn_mask=added")
"""The mask is added to the scores as ones and zeros, which masks nothing: pass it as booleans, or
set the scores to minus infinity where it is False."""

StackedAndReshaped = Loop.but("cat(found, dim=-1)", "stack(found, dim=1).reshape(*x.shape[:2], -1)")
"""The heads are stacked before the tokens and then reshaped, which puts features of several tokens
into one row: concatenate the features of each token."""

MaskForTheFirstHeadOnly = Loop.but("attn_mask=mask", "attn_mask=None if number else mask").but(
    "for q, k, v in zip(w_query, w_key, w_value, strict=True)",
    "for number, (q, k, v) in enumerate(zip(w_query, w_key, w_value, strict=True))",
)
"""Only the first head is masked; the others attend to masked keys."""


class MaskTakenForHeads(Loop):
    """A mask per sequence is taken for one per head if there are as many sequences as heads: it has
    no axis for heads, and each head needs the masks of all sequences."""

    def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):
        heads = len(w_query)
        is_own = mask is not None and mask.dim() == 3 and len(mask) == heads
        found = [
            F.scaled_dot_product_attention(x @ q, x @ k, x @ v, attn_mask=own)
            for q, k, v, own in zip(
                w_query, w_key, w_value, mask if is_own else [mask] * heads, strict=True
            )
        ]
        return torch.cat(found, dim=-1) @ w_output


# 3.3 ------------------------------------------------------------------------------------------
class MultiHead(Correct, exercise="MultiHeadAttention"):
    class MultiHeadAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.num_heads, self.d_head = num_heads, d_model // num_heads
            self.query = nn.Linear(d_model, d_model)
            self.key = nn.Linear(d_model, d_model)
            self.value = nn.Linear(d_model, d_model)
            self.output = nn.Linear(d_model, d_model)

        def split(self, x):
            return x.view(len(x), -1, self.num_heads, self.d_head).transpose(1, 2)

        def forward(self, x, context=None, mask=None):
            source = x if context is None else context
            query, key, value = self.query(x), self.key(source), self.value(source)
            query, key, value = self.split(query), self.split(key), self.split(value)
            scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_head)
            if mask is not None:
                scores = scores.masked_fill(~mask.unsqueeze(-3), -math.inf)
            found = scores.softmax(dim=-1) @ value
            return self.output(found.transpose(1, 2).reshape(len(x), x.shape[1], -1))


ViewWithoutTranspose = MultiHead.but(
    "-1, self.num_heads, self.d_head).transpose(1, 2", "self.num_heads, -1, self.d_head"
).but("transpose(1, 2).reshape", "reshape")
"""A view alone puts whole tokens into one head: split the features of each token, then swap the
axes of heads and tokens."""

SplitByAView = MultiHead.but(
    "-1, self.num_heads, self.d_head).transpose(1, 2", "self.num_heads, -1, self.d_head"
)
"""The merge is correct, but the heads are split by a view alone, which puts whole tokens into one
head: split the features of each token, then swap the axes of heads and tokens."""

SoftmaxOverQueries = MultiHead.but("softmax(dim=-1)", "softmax(dim=-2)")
"""The softmax runs over the queries: the weights of each query should sum to 1 over the keys."""

WidthBeforeHeads = MultiHead.but(
    "num_heads, self.d_head).transpose(1", "d_head, self.num_heads).permute(0, 3, 1"
).but("found.transpose(1, 2)", "found.permute(0, 2, 3, 1)")
"""The features are split as (d_head, num_heads), so neighbours go to different heads: the features
of a head must be adjacent."""

SplitIntoEveryNthFeature = MultiHead.but(
    "num_heads, self.d_head).transpose(1", "d_head, self.num_heads).permute(0, 3, 1"
)
"""The merge is correct, but the features are split as (d_head, num_heads), so neighbours go to
different heads: split them as (num_heads, d_head)."""

MergedFeatureByFeature = MultiHead.but("found.transpose(1, 2)", "found.permute(0, 2, 3, 1)")
"""The heads are merged as (d_head, num_heads), so their features alternate: concatenate the heads, each
in one piece."""

TokensAndHeadsNeverSwapped = (
    MultiHead.but("self.d_head).transpose(1, 2)", "self.d_head)")
    .but("mask.unsqueeze(-3)", "mask[..., :1, :1, None].expand(scores.shape)")
    .but("found.transpose(1, 2)", "found")
)
"""The axes of tokens and heads are never swapped, so the heads of one token attend to one another:
swap the axes after the split, and swap them back before the merge."""

MergedWithoutTranspose = MultiHead.but("transpose(1, 2).reshape", "reshape")
"""The heads are split correctly but merged wrongly: swap tokens and heads back before the features
are concatenated."""

ScaledByModelWidth = MultiHead.but("(self.d_head)", "(x.shape[-1])")
"""The scores are divided by the square root of d_model, the width of all heads together; use that
of one head, d_head."""

ScaleForgotten = MultiHead.but("(-2, -1) / math.sqrt(self.d_head)", "(-2, -1)")
"""The scores are not divided by the square root of d_head."""

OutputProjectionUnused = MultiHead.but(
    "self.output(found.transpose(1, 2).reshape(len(x), x.shape[1], -1))",
    "found.transpose(1, 2).reshape(len(x), x.shape[1], -1)",
)
"""The heads are concatenated, but the output projection is never applied."""

HeadsCompete = MultiHead.but("dim=-1", "dim=1")
"""The softmax runs over the heads; each head distributes its own weight over the keys."""

ContextIgnored = MultiHead.but("x if context is None else context", "x").but(
    "if mask is not None:",
    "if mask is not None:\n    mask = F.pad(mask, (0, x.shape[1]), value=True)[..., : x.shape[1]]",
)
"""Keys and values are computed from x even if there is a context: in cross-attention they come from
the context."""

QueriesFromTheContext = MultiHead.but(
    "query, key, value = self.query(x), self.key(source), self.value(source)",
    "mask = None if mask is None else mask.transpose(-2, -1)\n"
    "query, key, value = self.query(source), self.key(x), self.value(x)",
).but("(x), x", "(x), source")
"""The queries are computed from the context and the keys and values from x: it should be the other
way round."""

ValuesFromX = MultiHead.but("value(source)", "value(x)")
"""The values are computed from x although the keys come from the context: keys and values have the
same source."""

CausalWithoutAMask = MultiHead.but(
    "if mask is not None:",
    "if mask is None:\n"
    "    mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()\n"
    "if mask is not None:",
)
"""Without a mask, the layer is causal: no token sees a later one. No mask means that nothing is
masked."""

MaskUnused = MultiHead.but("if mask is not None:\n    scores = …", "")
"""The mask is not used: every query sees every key."""

MaskedAfterTheSoftmax = MultiHead.but(
    "if mask is not None:…\nfound = …",
    "weights = scores.softmax(dim=-1)\n"
    "if mask is not None:\n"
    "    weights = weights * mask.unsqueeze(-3)\n"
    "    weights = weights / weights.sum(dim=-1, keepdim=True)\n"
    "found = weights @ value",
)
"""The mask acts after the softmax, and the rows are renormalised: if a masked key has a much higher score,
all other weights have underflowed, and 0/0 is NaN. Mask the scores before the softmax."""

MaskNotLowEnough = MultiHead.but(
    "scores.masked_fill(~mask.unsqueeze(-3), -math.inf)", "scores - 1e4 * ~mask.unsqueeze(-3)"
)
"""Masked scores are lowered by a finite number, such as 10,000, and one that is higher than the others by
more than that still gets weight: set them to minus infinity."""

MaskFillNotLowEnough = MultiHead.but("-math.inf", "-1e4")
"""Masked scores are set to a number such as -100 or -1e4. Where the other scores are even lower,
masked tokens get all the weight: set masked scores to minus infinity."""

ScoresOfZeroMasked = MultiHead.but(
    "masked_fill(~mask.unsqueeze(-3)", "masked_fill(scores * mask.unsqueeze(-3) == 0"
)
"""A score that is 0 after multiplication by the mask is taken for masked, but an allowed score can
be 0, too: use the mask itself to decide what is masked."""

HeadsOverflow = MultiHead.but(
    "found = …", "shares = scores.exp()\nfound = shares / shares.sum(dim=-1, keepdim=True) @ value"
)
"""exp() of a large score is infinite, and inf/inf is NaN: use softmax, which subtracts the largest score
first."""

MaskInverted = MultiHead.but("~mask", "mask")
"""The mask is inverted; True means that a query may attend to a key."""

SequencesTakenForHeads = MultiHead.but("mask.unsqueeze(-3)", "mask")
"""A mask per sequence is broadcast over the scores as it is, and its sequences are taken for heads:
give it an axis of size 1 for the heads."""

MaskOfAllSequencesPutBehindTheQueries = MultiHead.but("unsqueeze(-3)", "unsqueeze(1)")
"""A mask (q_len, k_len) becomes (q_len, 1, k_len), so its queries are aligned with the heads of the
scores (batch, num_heads, q_len, k_len). The new axis must come first: count it from the right,
`mask.unsqueeze(-3)`."""

MaskTiled = MultiHead.but(
    "scores = scores.masked_fill(~mask.unsqueeze(-3), -math.inf)",
    "tiled = mask.expand(len(x), -1, -1).repeat(self.num_heads, 1, 1)\n"
    "scores = scores.masked_fill(~tiled.view(scores.shape), -math.inf)",
)
"""The masks of the sequences are repeated as (0, 1, 0, 1), but on the shared axis the sequences are
ordered as (0, 0, 1, 1): all heads of a sequence need the mask of that sequence."""

MaskDecidedByItsSizes = MultiHead.but(
    "mask.unsqueeze(-3)", "(mask.unsqueeze(1) if len(mask) == len(x) else mask)"
)
"""A mask is taken for one per sequence if its first size equals the batch size, but q_len may be
the same: the mask's number of axes decides, and `mask.unsqueeze(-3)` works for both kinds."""

MaskSharedByItsSizes = MultiHead.but(
    "mask.unsqueeze(-3)", "(mask if len(mask) == x.shape[1] else mask.unsqueeze(-3))"
)
"""A mask is taken for a shared one if its first size equals q_len, but the batch size may be the
same: the mask's number of axes decides, and `mask.unsqueeze(-3)` works for both kinds."""


# 3.6 ------------------------------------------------------------------------------------------
class Circuits(Correct, exercise="head_circuits"):
    def head_circuits(w_query, w_key, w_value, w_output, num_heads):
        query, key, value = (
            w.unflatten(1, (num_heads, -1)).transpose(0, 1) for w in (w_query, w_key, w_value)
        )
        output = w_output.unflatten(0, (num_heads, -1))
        return query @ key.transpose(-2, -1), value @ output

    def head_contributions(found, w_output):
        blocks = w_output.unflatten(0, (found.shape[1], found.shape[3]))
        return found @ blocks


CircuitsOfAView = Circuits.but(
    "w.unflatten(1, (num_heads, -1)).transpose(0, 1)", "w.view(num_heads, len(w), -1)"
)
"""The projections are split into heads by a view alone, which mixes the rows of a matrix: split its
columns, then move the heads to the front."""

QueriesAndKeysSwapped = Circuits.but("query @ key", "key @ query")
"""The QK circuits are transposed: the row vector that multiplies from the left is the query."""

ScoresScaled = Circuits.but("(-2, -1), value", "(-2, -1) / math.sqrt(query.shape[-1]), value").but(
    "blocks = w_output.unflatten(0, (found.shape[1], found.shape[3]))\nreturn found @ blocks",
    "return found @ w_output.unflatten(0, (found.shape[1], -1))",
)
"""The QK circuit is divided by the square root of d_head; the scaling comes later and is not part
of the product of the two projections."""

OutputBeforeValue = Circuits.but("value @ output", "(value @ output).transpose(-2, -1)")
"""The OV circuits are transposed, as for column vectors: a row vector is multiplied by the value
projection first, then by the output projection."""

ProductsInHeadSpace = Circuits.but(
    "query @ key.transpose(-2, -1), value @ output", "query.transpose(-2, -1) @ key, output @ value"
)
"""The factors are in the wrong order, so the products are d_head by d_head: a circuit is d_model
by d_model."""

ColumnsOfTheOutputProjection = Circuits.but(
    "output = w_output.unflatten", "output = w_output.T.unflatten"
)
"""A head gets columns of the output projection; its output multiplies that matrix from the left, so
it has rows of its own."""

RowsOfTheInputProjections = Circuits.but("w.unflatten", "w.T.unflatten")
"""A head gets rows of the query, key and value matrices, as nn.Linear stores them; here tokens
multiply from the left, so it has columns of its own."""

FeaturesInterleaved = (
    Circuits.but(
        "query, key, value = (…\nreturn …",
        "heads = range(num_heads)\n"
        "qk = [w_query[:, h::num_heads] @ w_key[:, h::num_heads].T for h in heads]\n"
        "ov = [w_value[:, h::num_heads] @ w_output[h::num_heads] for h in heads]\n"
        "return torch.stack(qk), torch.stack(ov)",
    )
    .but("blocks = …", "blocks = [w_output[h :: found.shape[1]] for h in range(found.shape[1])]")
    .but("found @ blocks", "found @ torch.stack(blocks)")
)
"""A head gets every num_heads-th feature; it should get d_head adjacent features."""

AllHeadsTogether = Circuits.but(
    "query, key, value = (…\nreturn …",
    "qk, ov = w_query @ w_key.T, w_value @ w_output\n"
    "return torch.stack([qk] * num_heads), torch.stack([ov] * num_heads)",
)
"""The whole matrices are multiplied: that is the circuit of a single large head, the sum over all
heads."""

FirstRowsForAllHeads = Circuits.but(
    "blocks = …\nreturn found @ blocks", "return found @ w_output[: found.shape[3]]"
)
"""Every head is multiplied by the first rows of the output projection; each has rows of its own."""

OutputDividedEvenly = Circuits.but(
    "blocks = w_output.unflatten(0, (found.shape[1], found.shape[3]))\nreturn found @ blocks",
    "heads = found.shape[1]\n"
    "total = found.transpose(1, 2).flatten(2) @ w_output\n"
    "return (total / heads).unsqueeze(1).expand(-1, heads, -1, -1)",
)
"""The output is divided evenly among the heads: the sum is correct, but not what each of them
adds."""


# 3.8 ------------------------------------------------------------------------------------------
class KeyBias(Correct, exercise="drop_key_bias"):
    def split_score_bias(query, key, query_bias, key_bias):
        root = math.sqrt(query.shape[-1])
        return (query + query_bias) @ key_bias / root, key @ query_bias / root

    def drop_key_bias(weights):
        return {**weights, "key.bias": torch.zeros_like(weights["key.bias"])}

    def move_value_bias(weights):
        constant = weights["output.weight"] @ weights["value.bias"]
        return {
            **weights,
            "value.bias": torch.zeros_like(weights["value.bias"]),
            "output.bias": weights["output.bias"] + constant,
        }


ResultsSwapped = KeyBias.but(
    "return (query …", "return key @ query_bias / root, (query + query_bias) @ key_bias / root"
)
"""The two results are swapped: what the key bias adds depends on the query that it is multiplied
by."""

BiasesOnTheWrongSide = KeyBias.but(
    "return (query + query_bias) @ key_bias / root, key @ query_bias / root",
    "constant = query_bias @ key_bias / root\n"
    "return query @ query_bias / root + constant, key @ key_bias / root",
)
"""Each bias is multiplied by the vectors that it is added to; in the dot product it is multiplied
by those of the other side."""

BiasesNotScaled = KeyBias.but(
    "root = …\nreturn …", "return (query + query_bias) @ key_bias, key @ query_bias"
)
"""The results belong to the scores before scaling; divide the terms of the biases by the square
root of d_head as well."""

HalfOfTheWidth = KeyBias.but("math.sqrt(query.shape[-1])", "query.shape[-1] / 2")
"""The terms of the biases are divided by half of d_head: `d_head ** 1 / 2` is (d_head ** 1) / 2. Write
`d_head ** 0.5` or math.sqrt(d_head)."""

ConstantAddedToTheKeys = KeyBias.but(
    "(query + query_bias) @ key_bias / root, key", "query @ key_bias / root, (key + key_bias)"
)
"""The product of the two biases is added to the numbers per key; add it to the numbers per query,
so that those per key come from the query bias alone."""

ConstantLost = KeyBias.but("(query + query_bias)", "query")
"""The product of the two biases is missing from the numbers per query: it does not change the
softmax, but the biases do add it."""

WeightsChangedInPlace = KeyBias.but(
    'return {**weights, "key.bias": torch.zeros_like(weights["key.bias"])}',
    'weights["key.bias"] = torch.zeros_like(weights["key.bias"])\nreturn weights',
)
"""The key bias is set to zero in the weights that were passed, so the old weights are gone; return
a new dictionary."""

QueryBiasDroppedToo = KeyBias.but(
    'return {**weights, "key.bias": torch.zeros_like(weights["key.bias"])}',
    'zeros = torch.zeros_like(weights["key.bias"])\n'
    'return {**weights, "key.bias": zeros, "query.bias": zeros}',
)
"""The query bias is dropped as well; it adds a different number to the score of each key, which
changes the softmax."""

KeyBiasMovedToTheQueries = KeyBias.but(
    'return {**weights, "key.bias": torch.zeros_like(weights["key.bias"])}',
    """
    return {
        **weights,
        "key.bias": torch.zeros_like(weights["key.bias"]),
        "query.bias": weights["query.bias"] + weights["key.bias"],
    }
    """,
)
"""The key bias is added to the query bias, which changes the function: it can be dropped without a
replacement."""

ValueBiasDropped = KeyBias.but(
    "constant = …\n}", 'return {**weights, "value.bias": torch.zeros_like(weights["value.bias"])}'
)
"""The value bias is dropped and nothing takes its place: averaging does not change a constant, so
the bias does reach the output."""

ValueBiasNotProjected = KeyBias.but("constant = …", "").but("constant,", 'weights["value.bias"],')
"""The value bias is added to the output bias unchanged; it must first pass through the output
projection."""

OutputProjectionTransposed = KeyBias.but(
    '["output.weight"] @ weights["value.bias"]', '["value.bias"] @ weights["output.weight"]'
)
"""The value bias is multiplied by the transposed output projection: nn.Linear stores (d_out, d_in)
and computes x @ weight.T."""

OutputBiasReplaced = KeyBias.but(
    'constant = weights["output.weight"] @ weights["value.bias"]', ""
).but('["output.bias"] + constant', '["output.weight"] @ weights["value.bias"]')
"""The projected value bias replaces the output bias; it must be added to it."""


class ValueBiasCountedTwice(KeyBias):
    """The output bias absorbs the value bias, but the value bias is still there: set it to zero."""

    def move_value_bias(weights):
        constant = weights["output.weight"] @ weights["value.bias"]
        return {**weights, "output.bias": weights["output.bias"] + constant}


# 3.5 ------------------------------------------------------------------------------------------
class Grouped(Correct, exercise="grouped_query_attention"):
    def grouped_query_attention(query, key, value):
        num_sharing = query.shape[1] // key.shape[1]
        key = key.repeat_interleave(num_sharing, dim=1)
        value = value.repeat_interleave(num_sharing, dim=1)
        return F.scaled_dot_product_attention(query, key, value)

    def pool_heads(w, num_heads, num_kv_heads):
        return w.unflatten(1, (num_kv_heads, num_heads // num_kv_heads, -1)).mean(dim=2).flatten(1)


KeyHeadsAlternate = Grouped.but(
    "key = …\nvalue = …",
    "key, value = (heads.repeat(1, num_sharing, 1, 1) for heads in (key, value))",
)
"""The key heads are repeated in the order (0, 1, 0, 1), as `repeat` does; neighbouring query heads
share one, so the order is (0, 0, 1, 1)."""

FirstKeyHeadForAll = Grouped.but(
    "num_sharing = …\nvalue = …",
    "key, value = (heads[:, :1].expand(-1, query.shape[1], -1, -1) for heads in (key, value))",
)
"""All query heads use the first key head; only those of the first group should."""

ValueHeadsInAnotherOrder = Grouped.but("value = …", "value = value.repeat(1, num_sharing, 1, 1)")
"""Keys are shared by neighbours but values are not: a query head must take both from the same
shared head."""

QueriesPooled = Grouped.but(
    "num_sharing = …\nvalue = …", "query = query.unflatten(1, (key.shape[1], -1)).mean(dim=2)"
)
"""The query heads of a group are averaged into one; they share keys and values, but each keeps its
own query."""

ScaledByGroupWidth = Grouped.but(
    "return F.scaled_dot_product_attention(query, key, value)",
    "scores = query @ key.transpose(-2, -1) / math.sqrt(num_sharing * query.shape[-1])\n"
    "return scores.softmax(dim=-1) @ value",
)
"""The scores are divided by the square root of the width of a whole group; sharing does not change
d_head."""

GroupsOverflow = Grouped.but(
    "return F.scaled_dot_product_attention(query, key, value)",
    "shares = (query @ key.mT / math.sqrt(query.shape[-1])).exp()\n"
    "return shares / shares.sum(dim=-1, keepdim=True) @ value",
)
"""exp() of a large score is infinite, and inf/inf is NaN: use softmax, which subtracts the largest score
first."""

HalfOfTheWidth = Grouped.but(
    "return F.scaled_dot_product_attention(query, key, value)",
    "return F.scaled_dot_product_attention(query, key, value, scale=2 / query.shape[-1])",
)
"""The scores are divided by half of d_head: `d_head ** 1 / 2` is (d_head ** 1) / 2. Write
`d_head ** 0.5` or math.sqrt(d_head)."""

PooledAcrossGroups = Grouped.but(
    "(num_kv_heads, num_heads // num_kv_heads, -1)).mean(dim=2",
    "(num_heads // num_kv_heads, num_kv_heads, -1)).mean(dim=1",
)
"""The mean is taken over every num_kv_heads-th head; a shared head replaces neighbours."""

PooledBySum = Grouped.but(").mean(", ").sum(")
"""The heads of a group are summed; a shared head is initialised as their mean."""

FirstOfEachGroup = Grouped.but(").mean(dim=2).flatten(", ")[:, :, 0].flatten(")
"""The first head of each group is kept and the others are discarded; the mean uses all of them."""

NeighbouringFeaturesPooled = Grouped.but(
    "return w.unflatten(1, …", "return w.unflatten(1, (-1, num_heads // num_kv_heads)).mean(dim=2)"
)
"""Neighbouring features are averaged; average whole heads, feature by feature."""


# 3.7 ------------------------------------------------------------------------------------------
class Count(Correct, exercise="count_attention"):
    def count_attention(d_model, num_heads, num_kv_heads, has_bias):
        d_kv = num_kv_heads * d_model // num_heads
        return (d_model + has_bias) * 2 * (d_model + d_kv)

    def attention_flops(batch, q_len, k_len, d_model, num_heads, num_kv_heads):
        d_kv = num_kv_heads * d_model // num_heads
        maps = 4 * d_model * (q_len * d_model + k_len * d_kv)
        return batch * maps, batch * 4 * q_len * k_len * d_model

    def break_even_length(d_model, num_heads, num_kv_heads):
        return d_model + num_kv_heads * d_model // num_heads


SharedHeadsCountedInFull = (
    Count.but(
        "d_kv = …\nreturn (d_model …", "return 4 * d_model * d_model + has_bias * 4 * d_model"
    )
    .but(
        "d_kv = num_kv_heads * d_model // num_heads\n"
        "maps = 4 * d_model * (q_len * d_model + k_len * d_kv)",
        "maps = 4 * (q_len + k_len) * d_model * d_model",
    )
    .but("d_model + num_kv_heads * d_model // num_heads", "2 * d_model")
)
"""Keys and values are counted with as many heads as the queries; they have num_kv_heads."""

BiasesNeverCounted = Count.but("(d_model + has_bias) * 2", "2 * d_model")
"""The biases are left out of the parameters even where the layer has them."""

BiasesAlwaysCounted = Count.but("(d_model + has_bias)", "(d_model + 1)")
"""The biases are counted even where the layer has none."""

BiasesAllOfModelWidth = Count.but(
    "return (d_model …", "return 2 * d_model * (d_model + d_kv) + has_bias * 4 * d_model"
)
"""Every bias is counted as d_model numbers; a bias is as wide as the output of its projection."""

OutputProjectionNotCounted = (
    Count.but("return (d_model …", "return (d_model + has_bias) * (d_model + 2 * d_kv)")
    .but("maps = …", "maps = 2 * d_model * (q_len * d_model + 2 * k_len * d_kv)")
    .but("return d_model …", "return d_model / 2 + num_kv_heads * d_model // num_heads")
)
"""There are four projections: the output projection is missing."""

MultiplyAddCountedOnce = Count.but("maps = 4", "maps = 2").but("4 * q_len", "2 * q_len")
"""A multiplication and the addition after it are counted as one operation; they are two."""

BatchNotCounted = Count.but("batch * maps, batch * 4", "maps, 4")
"""The operations are those of one sequence; multiply by the number of sequences in the batch."""

QueryLengthUsedForTheKeys = Count.but(
    "(q_len * d_model + k_len * d_kv)", "q_len * (d_model + d_kv)"
)
"""The projections of keys and values are counted q_len times; there are k_len keys and values."""

KeyLengthUsedForTheQueries = Count.but(
    "(q_len * d_model + k_len * d_kv)", "k_len * (d_model + d_kv)"
)
"""The projections of queries and outputs are counted k_len times; there are q_len of them."""

SelfAttentionOnly = Count.but("q_len * k_len", "q_len * q_len").but("k_len * d_kv", "q_len * d_kv")
"""Everything is counted for self-attention, with q_len keys; in cross-attention there are k_len."""

HeadsCountedTwice = Count.but("4 * q_len", "num_heads * 4 * q_len").but(
    "return d_model …", "return (d_model + num_kv_heads * d_model / num_heads) / num_heads"
)
"""The products are counted with the width of all heads, and then multiplied by the number of heads
as well; num_heads times d_head is d_model."""

SharingSavesProducts = Count.but("k_len * d_model", "k_len * d_kv").but(
    "return d_model + num_kv_heads * d_model // num_heads",
    "d_kv = num_kv_heads * d_model // num_heads\nreturn d_model * (d_model + d_kv) / d_kv",
)
"""The products are counted once per shared head; every query head still computes all its scores."""

ScoresOnly = Count.but("4 * q_len", "2 * q_len").but(
    "return d_model …", "return 2 * (d_model + num_kv_heads * d_model // num_heads)"
)
"""Only the scores are counted; the average of the values is a product of the same size."""


# 3.9 ------------------------------------------------------------------------------------------
class CheckHeads(Correct, exercise="check_multi_head"):
    def check_multi_head(attention):
        generator = torch.Generator().manual_seed(5)
        names = ("query", "key", "value", "output")
        weights = {}
        for name in names:
            weights[f"{name}.weight"] = 0.5 * torch.randn(12, 12, generator=generator)
            weights[f"{name}.bias"] = torch.randn(12, generator=generator)

        def expected(x, context, mask):
            source = x if context is None else context
            query, key, value = (
                F.linear(tokens, weights[f"{name}.weight"], weights[f"{name}.bias"])
                .unflatten(-1, (3, -1))
                .transpose(1, 2)
                for name, tokens in zip(names, (x, source, source), strict=False)
            )
            mask = None if mask is None else mask.unsqueeze(-3)
            found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            found = found.transpose(1, 2).flatten(2)
            return F.linear(found, weights["output.weight"], weights["output.bias"])

        for batch in (2, 3):
            x = torch.randn(batch, 5, 12, generator=generator)
            context = torch.randn(batch, 7, 12, generator=generator)
            own = torch.rand(batch, 5, 7, generator=generator) < 0.5
            own[:, :, 0] = True
            for args in (
                (x, None, None),
                (x, context, own[0]),
                (x, context, own),
            ):
                seen = attention(weights, 3, *args)
                assert torch.allclose(seen, expected(*args), atol=1e-3)


NoLayerPasses = CheckHeads.but('"output.weight"]', '"output.weight"].T')
"""No layer passes this test, correct or wrong: what it expects is not multi-head attention, or it
leaves no room for rounding. Compare its expected result with that of `torch_attention`."""


class CannotFail(CheckHeads):
    """No wrong layer is caught: `assert` that all numbers, not only shapes, are close to correct ones,
    with a tolerance far below the numbers themselves."""

    def check_multi_head(attention):
        torch.manual_seed(4)
        weights = {}
        for name in ("query", "key", "value", "output"):
            weights[f"{name}.weight"], weights[f"{name}.bias"] = (
                torch.randn(12, 12),
                torch.randn(12),
            )
        x, context = torch.randn(2, 5, 12), torch.randn(2, 7, 12)
        assert attention(weights, 3, x, context, None).shape == x.shape


NoContextTested = CheckHeads.but(
    "for args in (…\n):", "for args in ((x, None, None), (x, None, own[..., :5])):"
)
"""Only self-attention is tested: add a context of a different length."""

NoMaskTested = CheckHeads.but(
    "for args in (…\n):", "for args in ((x, None, None), (x, context, None)):"
)
"""No input has a mask: try one for all sequences and one for each."""

SelfAttentionWithOneMask = CheckHeads.but(
    "for args in (…\n):", "for args in ((x, None, None), (x, None, own[0, :, :5])):"
)
"""Only self-attention is tested, with one mask for all sequences: add a context of a different
length, and a mask for each sequence."""

OnlyCausality = CheckHeads.but(
    "for args in (…\n    assert …",
    "causal, later = torch.ones(5, 5, dtype=torch.bool).tril(), x.clone()\n"
    "later[:, -1] += 1\n"
    "seen, changed = attention(weights, 3, x, None, causal), attention(weights, 3, later, None, causal)\n"
    "assert torch.allclose(seen[:, :-1], changed[:, :-1], atol=1e-4)",
)
"""Only causality is tested: a layer with a wrong scale, wrong heads or no biases is causal, too.
Compare with results that you know are correct."""

OneMaskForAllSequences = CheckHeads.but(
    "for args in (…\n):", "for args in ((x, None, None), (x, context, None), (x, context, own[0])):"
)
"""All sequences share one mask, so masks per sequence are not tested."""

OneSequenceOnly = CheckHeads.but("in (2, 3)", "in (1, 1)")
"""Every batch holds one sequence, so nothing that confuses sequences, or their masks, can show: use
as many sequences as heads, each with a mask of its own."""

NeverAsManySequencesAsHeads = CheckHeads.but("in (2, 3)", "in (2, 5)")
"""The number of sequences never equals the number of heads: this bug shows only if the two are
equal, so that broadcasting confuses them."""

FullyMaskedQueries = CheckHeads.but("own[:, :, 0] = True", "own[:, 1] = False")
"""A mask in this test allows some query no key at all, and there correct layers differ: allow at
least one key in each row."""

BiasesAreZero = CheckHeads.but("randn(12, generator=generator)", "zeros(12)")
"""The biases are zero, as at initialisation: a layer that omits them passes."""

OneHeadOnly = CheckHeads.but("unflatten(-1, (3, -1))", "unflatten(-1, (1, -1))").but(
    "3, *args", "1, *args"
)
"""There is a single head, so heads cannot be confused: use several."""

ToleranceTooLarge = (
    CheckHeads.but("5 * torch", "15 * torch")
    .but('weights[f"{name}.bias"] = torch', 'weights[f"{name}.bias"] = 0.15 * torch')
    .but("atol=1e-3", "atol=0.2")
)
"""The weights are small and the tolerance is large, so that only gross errors show: draw larger
weights, or use a smaller tolerance."""

DifferencesCancel = CheckHeads.but(
    "for args in (…\n    assert …",
    "for args in ((x, None, None), (x, context, None), (x, context, own)):\n"
    "    off = (attention(weights, 3, *args) - expected(*args)).mean()\n"
    "    assert off.abs() < 1e-4",
)
"""The mean of signed differences is small even if each is large: take the mean or the maximum of
their absolute values."""

NoTolerance = CheckHeads.but("assert …", "assert torch.equal(seen, expected(*args))")
"""Numbers are compared exactly, or nearly so: correct layers differ in the last digits, and one of them computes
in float32, so allow a tolerance."""


# 3.4 ------------------------------------------------------------------------------------------
class Derivation(Correct, exercise="mended_derivation"):
    def mended_derivation(tokens, w_query, w_key, w_value, is_causal):
        query, key, value = tokens @ w_query, tokens @ w_key, tokens @ w_value
        weights = query @ key.T / math.sqrt(query.shape[-1])
        if is_causal:
            allowed = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
            weights = weights.masked_fill(~allowed, -math.inf)
        weights = weights.softmax(dim=1)
        return weights @ value, weights


AsPublished = Derivation.but("dim=1", "dim=0").but(
    "weights @ value, weights", "weights.T @ value, weights.T"
)
"""Nothing has changed: the query still comes from the token that is attended to, and with the mask
each token attends to itself and later ones only."""

RolesStillExchanged = (
    Derivation.but("tril()", "triu()")
    .but("dim=1", "dim=0")
    .but("weights @ value, weights", "weights.T @ value, weights.T")
)
"""Mask and matrix now agree and nothing leaks any more, but query and key are still swapped: the
query must come from the token that attends."""

OnlyTheSoftmaxFixed = Derivation.but("weights @ value, weights", "weights.T @ value, weights.T")
"""The softmax now runs along the other axis, but the sum over the values still uses columns, which
do not sum to 1."""

SoftmaxStillOverColumns = Derivation.but("dim=1", "dim=0")
"""The softmax still normalises the columns of the weights: row j must hold the weights of token
j, and sum to 1."""

SumStillOverColumns = Derivation.but("weights @ value", "weights.T @ value")
"""The weights are correct, but the sum over the values still uses their columns, which do not sum
to 1: use their rows."""

CorrectOutputOldWeights = Derivation.but("value, weights", "value, weights.T")
"""The output is correct, but the weights are returned in the old orientation: row j must hold the
weights of token j."""

MaskDropped = Derivation.but(
    "weights = …\nweights = …",
    "weights = (query @ key.T / math.sqrt(query.shape[-1])).softmax(dim=1)",
)
"""The roles are correct, but is_causal is not used."""

WeightsRenormalised = Derivation.but(
    "if is_causal:…\nweights = weights.softmax(dim=1)",
    "weights = weights.softmax(dim=1)\n"
    "if is_causal:\n"
    "    weights = weights.tril()\n"
    "    weights = weights / weights.sum(dim=1, keepdim=True)",
)
"""The mask acts after the softmax, and the rows are renormalised: if a later token has a much higher score,
all other weights have underflowed, and 0/0 is NaN. Mask the scores before the softmax."""

FutureNotLowEnough = Derivation.but("-math.inf", "-1e4")
"""Masked scores are set to a finite number, such as -10,000, and where the allowed scores are lower still,
later tokens get the weight: minus infinity is below every score."""

ScoresOfZeroHidden = Derivation.but(
    "weights.masked_fill(~allowed, -math.inf)",
    "weights.masked_fill(weights.tril() == 0, -math.inf)",
)
"""Masked scores are set to 0 and recognised by that, but an allowed score can be 0, too: make the
mask from positions."""

HalfOfTheWidth = Derivation.but("math.sqrt(query.shape[-1])", "(query.shape[-1] / 2)")
"""The scores are divided by half of d_head: `d_head ** 1 / 2` is (d_head ** 1) / 2. Write
`d_head ** 0.5` or math.sqrt(d_head)."""

ScaleForgotten = Derivation.but("key.T / math.sqrt(query.shape[-1])", "key.T")
"""The scores are not divided by the square root of d_head."""

AlwaysCausal = Derivation.but("if is_causal:", "if True:")
"""The weights are causal even if `is_causal` is False."""


# 3.10 -----------------------------------------------------------------------------------------
class Convolution(Correct, exercise="convolution_as_heads"):
    def toeplitz_weights(kernel, length):
        back = torch.arange(length)[:, None] - torch.arange(length)
        weights = torch.zeros(length, length, dtype=kernel.dtype)
        for j, c in enumerate(kernel):
            weights[back == j] = c
        return weights

    def convolution_as_heads(x, kernel):
        back = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        weights = torch.stack([back == j for j in range(len(kernel))]).to(x.dtype)
        return sum(w @ x @ k for w, k in zip(weights, kernel, strict=True)), weights


KernelReversed = Convolution.but("enumerate(kernel)", "enumerate(kernel.flip(0))").but(
    "kernel, strict", "kernel.flip(0), strict"
)
"""The kernel is reversed: its first entry belongs to the token itself, its last one to the farthest
token."""

LooksAhead = (
    Convolution.but(
        "back = torch.arange(length)[:, None] - torch.arange(length)",
        "ahead = torch.arange(length) - torch.arange(length)[:, None]",
    )
    .but("[back == j]", "[ahead == j]")
    .but(
        "back = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])",
        "ahead = torch.arange(x.shape[1]) - torch.arange(x.shape[1])[:, None]",
    )
    .but("back == j for j in range", "ahead == j for j in range")
)
"""The weights lie above the diagonal: a token attends to later ones instead of earlier ones."""

WrappedAround = (
    Convolution.but(
        "torch.arange(length)[:, None] - torch.arange(length)",
        "(torch.arange(length)[:, None] - torch.arange(length)) % length",
    )
    .but("back = torch.arange(x.shape[1])[:, …", "identity = torch.eye(x.shape[1], dtype=x.dtype)")
    .but(
        "[back == j for j in range(len(kernel))]).to(x.dtype",
        "[identity.roll(j, dims=0) for j in range(len(kernel))]",
    )
)
"""Positions before the first token are taken from the end of the sequence, as torch.roll does;
there is nothing before the first token."""

KernelOffByOne = Convolution.but("- torch.arange(length)", "- torch.arange(length) - 1").but(
    "- torch.arange(x.shape[1])", "- torch.arange(x.shape[1]) - 1"
)
"""The first entry of the kernel is used for the previous token; it belongs to the token itself."""

RowsNormalised = Convolution.but(
    "return weights", "return weights / weights.sum(dim=1, keepdim=True)"
).but(
    "return sum(w @ x @ k for w, k in zip(weights, kernel, strict=True)), weights",
    "total = weights.sum(dim=0).sum(dim=1)[:, None]\n"
    "return sum(w @ x @ k for w, k in zip(weights, kernel, strict=True)) / total, weights",
)
"""The rows are divided by their sums; a convolution uses its kernel unchanged."""

FirstTokenRepeated = (
    Convolution.but("back = torch.arange(length)[:, …", "")
    .but(
        "for …\n    weights[back == j] = c",
        "for t in range(length):\n"
        "    for j, c in enumerate(kernel):\n"
        "        weights[t, max(t - j, 0)] += c",
    )
    .but(
        "back = torch.arange(x.shape[1])[:, …\nweights = …",
        "length = x.shape[1]\n"
        "places = (torch.arange(length) - torch.arange(len(kernel))[:, None]).clamp(min=0)\n"
        "weights = F.one_hot(places, length).to(x.dtype)",
    )
)
"""A head that looks before the first token gets the first token instead; its row should be all
zeros."""


# 3.11 -----------------------------------------------------------------------------------------
class Latent(Correct, exercise="latent_attention"):
    def latent_attention(x, w_query, w_latent, w_key, w_value, mask=None):
        query, latent = x[:, None] @ w_query, (x @ w_latent)[:, None]
        key, value = latent @ w_key, latent @ w_value
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask.unsqueeze(-3), -math.inf)
        return scores.softmax(dim=-1) @ value

    def absorbed_query(query, w_key):
        return query @ w_key.mT

    def absorbed_attention(absorbed, latent, w_value, d_head):
        latent = latent[:, None]
        weights = (absorbed @ latent.mT / math.sqrt(d_head)).softmax(dim=-1)
        mixed = weights @ latent
        return mixed @ w_value, mixed

    def cached_floats(num_layers, num_heads, num_kv_heads, d_head, d_latent, d_rotary):
        per_head = num_layers * 2 * d_head
        return num_heads * per_head, num_kv_heads * per_head, num_layers * (d_latent + d_rotary)


LatentScoresNotScaled = Latent.but(" / math.sqrt(query.shape[-1])", "").but(
    " / math.sqrt(d_head)", ""
)
"""The scores are not scaled: divide them by the square root of d_head, the width of a query before
it is absorbed."""

LatentHalfOfTheWidth = Latent.but("math.sqrt(query.shape[-1])", "(query.shape[-1] / 2)").but(
    "math.sqrt(d_head)", "(d_head / 2)"
)
"""The scores are divided by half of d_head: `d_head ** 1 / 2` is (d_head ** 1) / 2. Write
`d_head ** 0.5` or math.sqrt(d_head)."""

AbsorbedScaledByLatentWidth = Latent.but("math.sqrt(d_head)", "math.sqrt(latent.shape[-1])")
"""The scores of the absorbed form are divided by the square root of d_latent; they are the same
numbers as the scores of width d_head, so divide by the square root of d_head."""

LatentScaledByModelWidth = Latent.but("math.sqrt(query.shape[-1])", "math.sqrt(x.shape[-1])")
"""The scores are divided by the square root of d_model; a dot product of query and key has d_head
terms."""

QueryScaledTwice = Latent.but("query @ w_key.mT", "query @ w_key.mT / query.shape[-1]**0.5")
"""The absorbed query is already divided by the square root of d_head, and the scores are divided
again: scale once, in absorbed_attention."""

FirstUpProjectionForAllHeads = (
    Latent.but("latent @ w_key, latent @ w_value", "latent @ w_key[0], latent @ w_value[0]")
    .but("query @ w_key.mT", "query @ w_key[0].mT")
    .but("mixed @ w_value", "mixed @ w_value[0]")
)
"""Every head uses the up-projections of head 0: the heads share the latents, and each expands them
by its own w_key[h] and w_value[h]."""

KeysUsedAsValues = Latent.but("latent @ w_value", "latent @ w_key")
"""The keys are used as values as well: values are expanded from the latent by w_value."""

ValuesNeverExpanded = Latent.but("latent @ w_value", "latent").but("mixed @ w_value", "mixed")
"""The result is an average of latents; project it to values with w_value."""

ValuesExpandedForEveryToken = Latent.but(
    "mixed = weights @ latent\nreturn …",
    "mixed = weights @ (latent @ w_value)\nreturn mixed, mixed",
)
"""Every latent is expanded to a value, and the values are averaged: average the latents, return
that as mixed, and project once."""

ValuesMadeOfEveryLatent = Latent.but(
    "return mixed @ w_value, mixed", "return weights @ (latent @ w_value), mixed"
)
"""The output is an average of values made from every latent, which costs what absorption
saves, and 0 times a value that overflows is NaN: project mixed, the average of the latents."""

LatentSoftmaxOverQueries = Latent.but("softmax(dim=-1)", "softmax(dim=-2)", times=2)
"""The softmax runs over the queries; the weights of each query over the keys must sum to 1."""

LatentMaskIgnored = Latent.but("scores = scores.masked_fill", "scores.masked_fill")
"""The mask has no effect: every query sees every key. (masked_fill does not work in place:
assign its result.)"""

LatentMaskInverted = Latent.but("~mask", "mask")
"""The mask is inverted; True means that a query may attend to a key."""

LatentMaskWithoutHeads = Latent.but("~mask.unsqueeze(-3)", "~mask")
"""The mask has no axis for the heads, so its axis of sequences is aligned with the heads of the
scores: insert an axis of size 1."""

LatentMaskDecidedByItsSizes = Latent.but(
    "mask.unsqueeze(-3)", "(mask.unsqueeze(1) if len(mask) == len(x) else mask)"
)
"""A mask is taken for one per sequence if its first size equals the batch size, but the length may
be the same: the mask's number of axes decides, and `mask.unsqueeze(-3)` works for both kinds."""

LatentMaskAfterSoftmax = Latent.but(
    "if mask is not None:…\nreturn …",
    "weights = scores.softmax(dim=-1)\n"
    "if mask is not None:\n"
    "    weights = weights.masked_fill(~mask.unsqueeze(-3), 0.0)\n"
    "return weights @ value",
)
"""Masked weights are set to zero after the softmax, so the rest no longer sum to 1: mask the scores
instead."""

LatentRenormalised = Latent.but(
    "if mask is not None:…\nreturn …",
    "weights = scores.softmax(dim=-1)\n"
    "if mask is not None:\n"
    "    weights = weights * mask.unsqueeze(-3)\n"
    "    weights = weights / weights.sum(dim=-1, keepdim=True)\n"
    "return weights @ value",
)
"""The mask acts after the softmax, and the rows are renormalised: if a masked key has a much higher score,
all other weights have underflowed, and 0/0 is NaN. Mask the scores before the softmax."""

LatentMaskNotLowEnough = Latent.but(
    "scores.masked_fill(~mask.unsqueeze(-3), -math.inf)", "scores - 1e4 * ~mask.unsqueeze(-3)"
)
"""Masked scores are lowered by a finite number, such as 10,000, and one that is higher than the others by
more than that still gets weight: set them to minus infinity."""

LatentFillNotLowEnough = Latent.but("-math.inf", "-1e4")
"""Masked scores are set to a number such as -100 or -1e4. Where the other scores are even lower,
masked tokens get all the weight: set masked scores to minus infinity."""

LatentZeroTakenForMasked = Latent.but(
    "masked_fill(~mask.unsqueeze(-3)", "masked_fill(scores * mask.unsqueeze(-3) == 0"
)
"""A score that is 0 after multiplication by the mask is taken for masked, but an allowed score can
be 0, too: use the mask itself to decide what is masked."""

LatentOverflow = Latent.but(
    "return scores.softmax(dim=-1) @ value",
    "shares = scores.exp()\nreturn shares / shares.sum(dim=-1, keepdim=True) @ value",
).but(
    "weights = (absorbed @ latent.mT / math.sqrt(d_head)).softmax(dim=-1)",
    "shares = (absorbed @ latent.mT / math.sqrt(d_head)).exp()\n"
    "weights = shares / shares.sum(dim=-1, keepdim=True)",
)
"""exp() of a large score is infinite, and inf/inf is NaN: use softmax, which subtracts the largest score
first."""

UpProjectionNotTransposed = Latent.but("query @ w_key.mT", "query @ w_key")
"""The query is multiplied by w_key, which takes a latent to a key; to absorb it, multiply by its
transpose."""

HeadsOfTheQuerySummed = Latent.but(
    "query @ w_key.mT", 'torch.einsum("bhqd,hcd->bqc", query, w_key)'
)
"""The absorbed queries of all heads are summed: keep the axis of the heads."""

ValuesNotCounted = Latent.but("num_layers * 2 * d_head", "num_layers * d_head")
"""Only the keys of multi-head and grouped-query attention are counted; their values are cached as
well."""

GroupSizeInsteadOfSharedHeads = Latent.but(
    "num_kv_heads * per_head", "num_heads // num_kv_heads * per_head"
)
"""Grouped-query attention is counted with the number of query heads in a group; num_kv_heads heads
are cached."""

LatentCountedTwice = Latent.but("(d_latent + d_rotary)", "(2 * d_latent + d_rotary)")
"""The latent is counted once for the keys and once for the values; both are made from the same
one."""

LatentCountedForEachHead = Latent.but("(d_latent + d_rotary)", "(num_heads * d_latent + d_rotary)")
"""A latent is counted for each head; all heads share one."""

RotatedKeyCountedForEachHead = Latent.but(
    "(d_latent + d_rotary)", "(d_latent + num_heads * d_rotary)"
)
"""A rotated key is counted for each head; all heads share one."""

RotatedKeyCountedOnce = Latent.but(
    "num_layers * (d_latent + d_rotary)", "num_layers * d_latent + d_rotary"
)
"""The rotated key is counted once for the whole model; every layer caches one of its own."""

RotatedKeyNotCounted = Latent.but("(d_latent + d_rotary)", "d_latent")
"""The rotated key is left out: it is not made from the latent, so it is cached too."""

OnlyOneLayerCounted = Latent.but("num_layers * 2 * d_head", "2 * d_head").but(
    "num_layers * (d_latent + d_rotary)", "d_latent + d_rotary"
)
"""The numbers are those of one layer: multiply by the number of layers, because each has its own
cache."""
