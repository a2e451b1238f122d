"""The named mistakes of chapter 06: what a message can name, and what graders are tested with."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from classroom.exercise.answers import Correct


def block(x, mask, weights):
    read = F.layer_norm(x, x.shape[-1:])
    query, key, value = (read @ weights[name] for name in ("query", "key", "value"))
    found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    x = x + found @ weights["output"]
    return x + F.gelu(F.layer_norm(x, x.shape[-1:]) @ weights["up"]) @ weights["down"]


def averaging_logits(parameters, tokens):
    counts = torch.arange(1, tokens.shape[-1] + 1)[:, None]
    x = parameters["embedding"][tokens].cumsum(dim=-2) / counts
    x = x + F.gelu(x @ parameters["ffn"]["up"]) @ parameters["ffn"]["down"]
    return x @ parameters["unembedding"]


# 6.1 --------------------------------------------------------------------------------------------
class Logits(Correct, exercise="decoder_only_logits"):
    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        x = table[tokens]
        if is_scaled:
            x = x * math.sqrt(table.shape[1])
        x = x + positions[: tokens.shape[1]]
        mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1])) == 1
        for weights in layers:
            x = block(x, mask, weights)
        x = F.layer_norm(x, gain.shape, gain, bias)
        return x @ table.T


TableCopied = Logits.but(
    "return x @ table.T", "unembedding = table.detach().clone()\nreturn x @ unembedding.T"
)
"""The logits come from a detached table, so its rows do not learn from the predictions; tied
weights are one tensor that is used twice."""

EmbeddingDetached = Logits.but(
    "table[tokens]", "nn.Embedding.from_pretrained(table.detach())(tokens)"
)
"""The tokens are looked up in a detached table, so its rows do not learn from their use as inputs;
tied weights are one tensor that is used twice."""

SoftmaxOnTheLogits = Logits.but("x @ table.T", "torch.softmax(x @ table.T, dim=-1)")
"""A softmax is applied at the end: return the logits, because the loss applies the softmax
itself."""

ResidualAddedTwice = Logits.but("x = block(", "x = x + block(")
"""The stream is added to what a block returns, which already contains it: `block` itself
adds what its attention and its feed-forward network compute."""

FinalNormMissing = Logits.but("x = F.layer_norm(x, gain.shape, gain, bias)", "")
"""The final norm is missing; a pre-norm stack needs one more norm at its end."""

FinalNormTwice = Logits.but(
    "x = F.layer_norm(x, …", "for _ in range(2):\n    x = F.layer_norm(x, gain.shape, gain, bias)"
)
"""The final norm is applied twice; apply it once, after the last block."""

NormAfterEveryBlock = Logits.but(
    "for weights in layers:…\nx = …",
    "for weights in layers:\n    x = F.layer_norm(block(x, mask, weights), gain.shape, gain, bias)",
)
"""The final norm is applied after every block; apply it only after the last one, and leave the
stream between blocks unchanged."""

NormWithoutGainAndBias = Logits.but(
    "x = F.layer_norm(x, …\nreturn x @ table.T", "return F.layer_norm(x, gain.shape) @ table.T"
)
"""The gain and bias of the final norm are missing."""

PositionsForgotten = Logits.but("x = x + positions[: tokens.shape[1]]", "")
"""The positions are not added to the embeddings."""

PositionsFromOne = Logits.but("positions[: tokens.shape[1]]", "positions[1 : tokens.shape[1] + 1]")
"""The first token gets row 1 of the positions; positions are counted from 0."""

PositionsLookedUpByToken = Logits.but("positions[: tokens.shape[1]]", "positions[tokens]")
"""The rows of the positions are looked up by token; look them up by position, the first row for the
first token."""

PositionsInEveryBlock = Logits.but("x = x + positions[: tokens.shape[1]]", "").but(
    "x, mask", "x + positions[: tokens.shape[1]], mask"
)
"""The positions are added before every block; add them once, to the embeddings."""

TableNotTransposed = Logits.but("table.T", "table")
"""The vectors are multiplied by the table without a transpose, which works only if vocab_size
equals d_model; the logit of a token is the dot product with its row, so transpose the
table."""

PositionsScaledToo = Logits.but("[tokens]", "[tokens] + positions[: tokens.shape[1]]").but(
    "x = x + positions[: tokens.shape[1]]", ""
)
"""The positions are multiplied by the square root of d_model as well; scale only the rows of the
table, before the positions are added."""

ScaleIgnored = Logits.but(
    "x = table[tokens]…\nx = …", "x = table[tokens] + positions[: tokens.shape[1]]"
)
"""`is_scaled` changes nothing: if it is True, multiply the embeddings by the square root of
d_model."""

ScaledByTheWholeWidth = Logits.but("math.sqrt(table.shape[1])", "table.shape[1]")
"""The embeddings are multiplied by d_model; multiply by its square root."""

DividedInsteadOfScaled = Logits.but("x * math", "x / math")
"""The embeddings are divided by the square root of d_model; multiply by it."""

NoCausalMask = Logits.but("mask = …", "").but("mask,", "None,")
"""The blocks see the whole sequence, including the token to predict; pass a causal mask to each."""

TriangleFlipped = Logits.but("torch.tril", "torch.triu")
"""The mask lets each token see itself and later tokens; it must be True on and below the diagonal
(tril)."""

MaskInverted = Logits.but("block(x, mask", "block(x, ~mask")
"""The mask is inverted, so each token sees later ones only; True means that a token may be attended
to."""

FirstBlockRepeated = Logits.but("weights in layers", "_ in layers").but(
    "mask, weights", "mask, layers[0]"
)
"""Every block gets the weights of the first; each has its own."""

MaskOfNumbers = Logits.but(
    "mask = …", "mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1], dtype=x.dtype))"
)
"""The mask is made of ones and zeros, which are added to the scores and hide nothing; use a boolean
mask, True where attention is allowed."""

DiagonalMissing = Logits.but(
    "(tokens.shape[1], tokens.shape[1])", "(tokens.shape[1], tokens.shape[1]), diagonal=-1"
)
"""No token sees itself, so the first sees nothing at all; a causal mask allows each token itself
and all earlier ones."""

OnlyTheLastBlockCounts = Logits.but(
    "for weights in layers:\n    x = block(x, mask, weights)",
    "for weights in layers:\n    y = block(x, mask, weights)\nx = y",
)
"""Every block reads the embeddings, so only the last block counts; each block must read the output
of the one before it."""

AlwaysScaled = Logits.but(
    "x = table[tokens]…\n    x = …", "x = table[tokens] * math.sqrt(table.shape[1])"
)
"""The rows are scaled even if `is_scaled` is False: leave them unchanged."""

LogitsScaledToo = Logits.but("table.T", "table.T * (math.sqrt(table.shape[1]) if is_scaled else 1)")
"""The table is scaled for the logits as well; the factor applies only to the embeddings."""

FirstTokenTakenForPadding = Logits.but("table[tokens]", "F.embedding(tokens, table, padding_idx=0)")
"""Token 0 is declared to be padding (padding_idx), so its row does not learn from its use as an input.
Here no token is padding: look all of them up in the same way."""

PositionsDetachedWhenScaled = Logits.but(
    "x = x * math.sqrt(table.shape[1])",
    "x, positions = x * math.sqrt(table.shape[1]), positions.detach()",
)
"""If `is_scaled` is True, the positions are detached, so they do not learn: scale only the rows of the
table, and add the positions as they are."""


# 6.2 --------------------------------------------------------------------------------------------
class Loss(Correct, exercise="shifted_loss"):
    def shifted_loss(model, targets, bos, pad):
        first = torch.full((len(targets), 1), bos)
        logits = model(torch.cat([first, targets[:, :-1]], dim=1))
        return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad)


LossWithoutGradient = Loss.but("ignore_index=pad)", "ignore_index=pad).item()")
"""The loss is a Python number (.item()): it cannot be used for training, because no gradient flows
through it. Return the tensor, and convert it to a number where you print it."""

ReshapedNotTransposed = Loss.but(
    "logits.transpose(1, 2)", "logits.reshape(len(logits), logits.shape[-1], -1)"
)
"""The logits are reshaped, which mixes positions and vocabulary: exchange these two axes with
transpose."""

NotShifted = Loss.but("first = …\nlogits = …", "logits = model(targets)")
"""The model sees the very tokens that it should predict: shift its input right by one position,
with bos in front."""

ShiftedTwice = Loss.but(
    "logits = model(torch.cat([first, targets[:, :-1]], dim=1))",
    "logits = model(torch.cat([first, targets[:, :-1]], dim=1))\n"
    "logits, targets = logits[:, :-1], targets[:, 1:]",
)
"""The input is shifted, and then logits and targets are shifted against each other once more, so
each prediction is two positions ahead: one shift is enough."""

ShiftedBack = Loss.but(
    "logits = …\nreturn …",
    "inputs = torch.cat([first, targets[:, :-1]], dim=1)\n"
    "logits = model(inputs)\n"
    "return F.cross_entropy(logits.transpose(1, 2), inputs, ignore_index=pad)",
)
"""The input and the targets are both shifted, which cancels: each position sees the token that it
should predict. This also happens if the input is written into the targets themselves: after
`inputs = targets` both are one tensor, so clone it, or join bos and the rest by torch.cat."""

ShiftedLeft = Loss.but(
    "first = torch.full((len(targets), 1), bos)", "last = torch.full((len(targets), 1), pad)"
).but("first, targets[:, :-1]", "targets[:, 1:], last")
"""The input is shifted left, so the model sees later tokens and predicts earlier ones: shift it
right."""

FirstTokenNeverPredicted = Loss.but(
    "first = …\nreturn …",
    "logits = model(targets[:, :-1])\n"
    "return F.cross_entropy(logits.transpose(1, 2), targets[:, 1:], ignore_index=pad)",
)
"""Without bos, nothing comes before the first token, so it is never predicted, and the model does
not learn how to begin: put bos in front."""

LastTokenNeverPredicted = Loss.but(
    "return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad)",
    "nats = F.cross_entropy(\n"
    '    logits[:, :-1].transpose(1, 2), targets[:, :-1], ignore_index=pad, reduction="sum"\n'
    ")\n"
    "return nats / (targets[:, :-1] != pad).sum()",
)
"""The last position is dropped from the loss as well, so the end of a full row is never predicted;
the input has as many positions as the targets, and all of them count."""

RolledAround = Loss.but("first = …\nlogits = …", "logits = model(targets.roll(1, dims=1))")
"""roll moves the last token to the front, where bos belongs."""

BeginsWithPad = Loss.but(
    "first = …\nlogits = …", "logits = model(F.pad(targets[:, :-1], (1, 0), value=pad))"
)
"""The shifted input begins with pad; it must begin with bos."""

PaddingCounted = Loss.but("targets, ignore_index=pad", "targets")
"""Padding counts like any other target: exclude it from the mean."""

PaddingReadFromTheInput = Loss.but(
    "logits = …\nreturn …",
    "tokens = torch.cat([first, targets[:, :-1]], dim=1)\n"
    'nats = F.cross_entropy(model(tokens).transpose(1, 2), targets, reduction="none")\n'
    "return nats[tokens != pad].mean()",
)
"""Padding is recognised in the shifted input, so one pad after each eos counts as a target; exclude
the positions whose *target* is pad."""

DividedByAllPositions = Loss.but(
    "return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad)",
    'nats = F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad, reduction="none")\n'
    "return nats.mean()",
)
"""The loss of padding is excluded, but the sum is divided by the number of all positions, padding
included: divide by the number of real tokens."""

MeanOfMeans = Loss.but(
    "return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad)",
    'nats = F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad, reduction="none")\n'
    "return (nats.sum(dim=1) / (targets != pad).sum(dim=1)).mean()",
)
"""The mean of each sequence is taken first, so tokens of short sequences have more weight; take one
mean over all real tokens of the batch."""

SumInsteadOfMean = Loss.but("ignore_index=pad", 'ignore_index=pad, reduction="sum"')
"""The losses are summed; divide by the number of real tokens."""

SoftmaxTwice = Loss.but("transpose", "softmax(dim=-1).transpose")
"""The logits go through a softmax before cross_entropy, which applies one itself."""

EpsilonInTheLogarithm = Loss.but(
    "return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad)",
    "log_p = torch.log(logits.softmax(dim=-1) + 1e-12)\n"
    "return F.nll_loss(log_p.transpose(1, 2), targets, ignore_index=pad)",
)
"""A small number is added to the probabilities, so the loss of a very improbable target stops growing,
and the model learns nothing from it: compute the logarithm from the logits, by F.cross_entropy or
log_softmax."""

ProbabilityRoundedToZero = Loss.but(
    "return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad)",
    "log_p = torch.log(logits.softmax(dim=-1))\n"
    "return F.nll_loss(log_p.transpose(1, 2), targets, ignore_index=pad)",
)
"""The logarithm is taken of a softmax, where a very small probability is rounded to 0 and its loss is
infinite: compute the logarithm from the logits, by F.cross_entropy or log_softmax."""

ExponentialsOverflow = Loss.but(
    "return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad)",
    "log_p = logits - logits.exp().sum(dim=-1, keepdim=True).log()\n"
    "return F.nll_loss(log_p.transpose(1, 2), targets, ignore_index=pad)",
)
"""The exponentials of large logits overflow: subtract the largest logit first, as torch.logsumexp and
F.cross_entropy do."""

ShiftedInPlace = Loss.but(
    "logits = …",
    "labels = targets.clone()\n"
    "targets[:, 1:] = labels[:, :-1]\n"
    "targets[:, :1] = first\n"
    "logits, targets = model(targets), labels",
)
"""The input is written into the targets that were given, and all later code finds them shifted:
make a new tensor, for example by torch.cat."""


# 6.3 --------------------------------------------------------------------------------------------
class Cross(Correct, exercise="CrossAttention"):
    class CrossAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.num_heads, self.d_head = num_heads, d_model // num_heads
            self.query = nn.Linear(d_model, d_model)
            self.key = nn.Linear(d_model, d_model)
            self.value = nn.Linear(d_model, d_model)
            self.output = nn.Linear(d_model, d_model)

        def split(self, x):
            return x.unflatten(-1, (self.num_heads, self.d_head)).transpose(1, 2)

        def forward(self, x, memory, source_mask=None):
            query = self.split(self.query(x))
            key = self.split(self.key(memory))
            value = self.split(self.value(memory))
            scores = query @ key.transpose(-2, -1) / self.d_head**0.5
            if source_mask is not None:
                hidden = ~source_mask[:, None, None, :]
                scores = scores.masked_fill(hidden, float("-inf"))
            output = scores.softmax(dim=-1) @ value
            return self.output(output.transpose(1, 2).flatten(2))


ArgumentsSwapped = (
    Cross.but("query(x)", "query(memory)")
    .but("key(memory)", "key(x)")
    .but("value(memory)", "value(x)")
    .but(
        "hidden = …\nscores = …",
        "scores = scores.masked_fill(~source_mask[:, None, :, None], -1e9)",
    )
)
"""Queries come from the memory, keys and values from the target, so there is a row per source token
and each of them sees the whole target: exchange the two."""

TargetAttendsToItself = (
    Cross.but("key(memory)", "key(x)")
    .but("value(memory)", "value(x)")
    .but(
        "if …\n    scores = …",
        "if source_mask is not None and source_mask.shape[1] == x.shape[1]:\n"
        "    scores = scores.masked_fill(~source_mask[:, None, None, :], -1e9)",
    )
)
"""Keys and values are computed from the target, which is self-attention without a causal mask;
compute them from the memory."""

ValuesFromTheTarget = Cross.but("value(memory)", "value(x)")
"""Keys come from the memory and values from the target, which works only if both have the same
length: values come from the memory, too."""

CausalMaskApplied = Cross.but(
    "if …\n    scores = …",
    """
    past = torch.ones(x.shape[1], memory.shape[1]).tril() == 1
    scores = scores.masked_fill(~past, float("-inf"))
    if source_mask is not None:
        hidden = ~source_mask[:, None, None, :]
        scores = scores.masked_fill(hidden, -1e9)
    """,
)
"""A causal mask is applied, so the first target token sees only the first source token; the whole
source is known, and cross-attention has no causal mask."""

SourceMaskMissing = Cross.but("if …\n    scores = …", "")
"""The source mask is not used, so the target attends to padding."""

SourceMaskInverted = Cross.but(
    'hidden = ~source_mask[:, None, None, :]\nscores = scores.masked_fill(hidden, float("-inf"))',
    'scores = scores.masked_fill(source_mask[:, None, None, :], float("-inf"))',
)
"""The mask is inverted: it is True where attention is allowed, so scores get minus infinity where
it is False."""

SourceMaskOnTheQueries = Cross.but("hidden = …", "hidden = ~source_mask[:, None, :, None]")
"""The source mask lies along the queries, which are target tokens; the scores are (batch,
num_heads, tgt_len, src_len), and the mask hides source tokens: last axis."""

ZeroInsteadOfMinusInfinity = Cross.but(
    "hidden = …\nscores = …", "scores = scores * source_mask[:, None, None, :]"
)
"""Masked scores are set to 0, which still gives them some weight after the softmax; minus infinity
gives none."""

MaskAfterTheSoftmax = Cross.but(
    "if …\noutput = …",
    "weights = scores.softmax(dim=-1)\n"
    "if source_mask is not None:\n"
    "    weights = weights * source_mask[:, None, None, :]\n"
    "output = weights @ value",
)
"""The mask is applied after the softmax, so the remaining weights do not sum to 1; set the masked
scores to minus infinity before it."""

PaddingAssumedAtTheEnd = Cross.but(
    "hidden = …",
    "lengths = source_mask.sum(dim=1)[:, None]\n"
    "hidden = (torch.arange(memory.shape[1]) >= lengths)[:, None, None, :]",
)
"""The padding is taken to be at the end of the source, wherever the mask is False: use the mask
itself."""

QueriesMasked = Cross.but(
    "source_mask[:, None, None, :]", "source_mask[:, None, : x.shape[1], None]"
).but('float("-inf")', "-1e9")
"""The mask is applied along the queries, which hides target tokens; the padding is in the source,
along the keys: the last axis of the scores."""

ScaledByModelWidth = Cross.but("self.d_head**0", "(self.num_heads * self.d_head) ** 0")
"""The scores are divided by the square root of d_model; a head compares vectors of width d_head, so
use the square root of d_head."""


ScaledByTheNumberOfHeads = Cross.but("self.d_head**0", "self.num_heads**0")
"""The scores are divided by the square root of the number of heads; use the square root of d_head,
the width of the vectors that are compared."""

SoftmaxOverHeads = Cross.but(
    "if …\noutput = …",
    "if source_mask is not None:\n"
    "    scores = scores.masked_fill(~source_mask[:, None, None, :], -1e9)\n"
    "output = scores.softmax(dim=1) @ value",
)
"""The softmax runs over the heads; the weights of each target token must sum to 1 over the source:
dim=-1."""

PaddingSetToZero = Cross.but("if …\n    scores = …", "").but(
    "query = self.split(self.query(x))\n",
    "if source_mask is not None:\n"
    "    memory = memory * source_mask[:, :, None]\n"
    "query = self.split(self.query(x))\n",
)
"""The padding of the memory is set to 0, but its positions still get scores and weights; set their
scores to minus infinity before the softmax."""


class OneHeadOnly(Cross):
    """All features form one head, whatever `num_heads` says; each head has d_model / num_heads of
    them, and a softmax of its own."""

    def forward(self, x, memory, source_mask=None):
        query, key, value = self.query(x), self.key(memory), self.value(memory)
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        if source_mask is not None:
            scores = scores.masked_fill(~source_mask[:, None, :], float("-inf"))
        return self.output(scores.softmax(dim=-1) @ value)


SmallNumberInsteadOfMinusInfinity = Cross.but('float("-inf")', "-100.0")
"""Masked scores are set to a number such as -100 or -1e4. Where the other scores are even lower, the
padding gets all the weight: set masked scores to minus infinity."""

SoftmaxOverflows = Cross.but(
    "scores.softmax(dim=-1)", "(scores.exp() / scores.exp().sum(-1)[..., None])"
)
"""The softmax is computed without subtracting the largest score, so the exponential of a large score
overflows: use torch.softmax."""

NotScaled = Cross.but("(-2, -1) / self.d_head**0.5", "(-2, -1)")
"""The scores are not divided by the square root of d_head."""

SoftmaxOverQueries = Cross.but(
    "if …\noutput = …",
    "if source_mask is not None:\n"
    "    scores = scores.masked_fill(~source_mask[:, None, None, :], -1e9)\n"
    "output = scores.softmax(dim=-2) @ value",
)
"""The softmax runs over the target tokens; the weights of each target token must sum to 1 over the
source: dim=-1."""

HeadsSplitAcrossTokens = Cross.but(
    "return x.unflatten(-1, …", "return x.reshape(len(x), self.num_heads, -1, self.d_head)"
)
"""The heads are split by a reshape to (batch, heads, length, d_head) without a transpose, which
mixes tokens and features: split the features first, then swap two axes."""

HeadsNotMergedBack = Cross.but("transpose(1, 2).flatten(2)", "reshape(x.shape)")
"""The heads are merged without swapping the axes back, which mixes tokens and heads: transpose
before you flatten."""

HeadsNeverTransposed = Cross.but(
    "return x.unflatten(-1, …", "return x.reshape(len(x), self.num_heads, -1, self.d_head)"
).but("transpose(1, 2).flatten(2)", "reshape(x.shape)")
"""The heads are split and merged by view or reshape alone, without a transpose: (batch, length,
d_model) read as (batch, num_heads, length, d_head) mixes tokens and features. Split the last axis
into (num_heads, d_head), then swap two axes; and swap them back before merging."""

HeadsInterleaved = Cross.but(
    "(self.num_heads, self.d_head)).transpose(1, 2", "(self.d_head, self.num_heads)).movedim(-1, 1"
).but("output.transpose(1, 2)", "output.movedim(1, -1)")
"""Head i takes every num_heads-th feature; it must take d_head consecutive features."""

OutputProjectionForgotten = Cross.but(
    "self.output(output.transpose(1, 2).flatten(2))", "output.transpose(1, 2).flatten(2)"
)
"""The heads are returned without the linear layer `output`."""

ResidualAdded = Cross.but("return self", "return x + self")
"""The target is added to the output of attention; the block does this, so return only the
output."""


# 6.4 --------------------------------------------------------------------------------------------
class Greedy(Correct, exercise="greedy_translation"):
    def greedy_translation(encode, decode, source, source_mask, bos, eos, pad, max_len):
        memory = encode(source, source_mask)
        written = torch.full((len(source), 1), bos)
        done = torch.zeros(len(source), dtype=torch.bool)
        while written.shape[1] <= max_len:
            logits = decode(written, memory, source_mask)
            newest = logits[:, -1].argmax(dim=-1)
            newest[done] = pad
            written = torch.cat([written, newest[:, None]], dim=1)
            done |= newest == eos
            if done.all():
                break
        return written[:, 1:]


EncoderInTheLoop = Greedy.but("memory = …", "").but(
    "while …", "while written.shape[1] <= max_len:\n    memory = encode(source, source_mask)"
)
"""The source is encoded again for every generated token; it does not change, so encode it once,
before the loop."""

NeverStops = Greedy.but("if done.all():\n    break", "")
"""Generation continues to max_len although all sequences have ended, which they may do at
different steps: stop once all have."""

ContinuesAfterEos = Greedy.but("newest[done] = pad", "")
"""A sequence that has ended is continued; it must get pad from then on, whatever the model
predicts."""

PadEndsASequence = Greedy.but("newest == eos", "(newest == eos) | (newest == pad)")
"""A sequence also counts as finished if the model predicts `pad` for it: it ends with its first
`eos`, so keep a boolean for each that only `eos` makes True."""

FinishedTokensSetToZero = Greedy.but("newest[done] = pad", "newest = newest * ~done")
"""A finished sequence gets token 0, for example from a product with a mask; `pad` may be another
number."""

CutAfterwards = Greedy.but("[1] <= max_len", "[1] <= 25").but(
    "written[:, 1:]", "written[:, 1 : max_len + 1]"
)
"""Tokens beyond max_len are generated and then cut off: stop after max_len tokens, because a model
may never predict `eos`."""

OnePadOnly = Greedy.but("newest[done] = pad", "newest[written[:, -1] == eos] = pad")
"""Only the token right after eos becomes pad, and then the sequence goes on: remember which
sequences have ended."""

BosTakenForTheEnd = Greedy.but(
    "logits = …\nnewest = …",
    "done = (written == eos).any(dim=1)\nif done.all():\n    break\n"
    "logits = decode(written, memory, source_mask)\nnewest = logits[:, -1].argmax(dim=-1)",
)
"""eos is looked for in the whole input of the decoder, so if bos and eos are the same token, every
sequence ends before it begins: look only at the generated tokens."""

StopsWithTheFirst = Greedy.but("all()", "any()")
"""Generation stops as soon as one sequence has ended; the others have not."""

WaitsForAllToEndAtOnce = (
    Greedy.but("done = torch.zeros(len(source), dtype=torch.bool)", "")
    .but("newest[done] = pad", "")
    .but("done |= newest == eos\nif done.all():", "if (newest == eos).all():")
)
"""Generation stops only when all sequences generate eos in the same step, which sequences of
different lengths never do: keep track of which have ended."""

LogitsAtTheFirstPosition = Greedy.but("logits[:, -1]", "logits[:, 0]")
"""The token is taken from the logits at position 0, which always predict the first token; the last
position predicts the next one."""

LogitsAtTheSecondToLastPosition = Greedy.but(
    "logits[:, -1]", "logits[:, max(-2, -logits.shape[1])]"
)
"""The token is taken from the second-to-last position, which predicts a token that is already
known; the last position predicts the next one."""

BeginsWithPad = Greedy.but("(len(source), 1), bos", "(len(source), 1), pad")
"""The target begins with pad; begin with bos, as in training."""

BeginsWithEos = Greedy.but("(len(source), 1), bos", "(len(source), 1), eos")
"""The target begins with eos; begin with bos, as in training."""

BosReturned = Greedy.but("written[:, 1:]", "written")
"""The result still has bos in front; return only the generated tokens."""

EosCutOff = Greedy.but("written[:, 1:]", "written[:, 1:-1]")
"""The last column is cut off, and with it an eos, which belongs to the result."""

SourceMaskNotPassed = Greedy.but("memory, source_mask", "memory, None")
"""`decode` does not get the source mask, so cross-attention sees padding."""

EncodedWithoutMask = Greedy.but("(source, source_mask)", "(source, None)")
"""`encode` does not get the source mask, so real tokens are mixed with padding before decoding
begins."""

NewestTokenOnly = Greedy.but("written, memory", "written[:, -1:], memory")
"""The model sees only the newest token; without a cache, it needs all tokens from bos on."""

OneTokenTooMany = Greedy.but("[1] <= max_len", "[1] <= max_len + 1")
"""A result without eos is one token longer than max_len."""

OneTokenTooFew = Greedy.but("[1] <= max_len", "[1] < max_len")
"""bos is counted as one of the max_len tokens, so a result without eos is one token short."""

LeastLikelyToken = Greedy.but("argmax", "argmin")
"""The least likely token is taken (argmin); greedy decoding takes the most likely one."""

PaddedWithEos = Greedy.but("[done] = pad", "[done] = eos")
"""Sequences that have ended are padded with eos; use pad."""

EosOverwritten = Greedy.but(
    "newest[done] = pad…\ndone |= newest == eos",
    "done |= newest == eos\n"
    "newest[done] = pad\n"
    "written = torch.cat([written, newest[:, None]], dim=1)",
)
"""The generated eos is overwritten with pad; it belongs to the result, and pad comes after it."""

SequenceBySequence = Greedy.but(
    "memory = …\nreturn written[:, 1:]",
    """
    answers = []
    for row, mask in zip(source.split(1), source_mask.split(1), strict=True):
        memory, written = encode(row, mask), [bos]
        while len(written) <= max_len and written[-1] != eos:
            logits = decode(torch.tensor([written]), memory, mask)
            written.append(int(logits[0, -1].argmax()))
        answers.append(torch.tensor(written[1:]))
    return nn.utils.rnn.pad_sequence(answers, batch_first=True, padding_value=pad)
    """,
)
"""Each sequence is translated separately, with its own calls; run the whole batch through the model
together."""


# 6.9 --------------------------------------------------------------------------------------------
class MaskedTokens(Correct, exercise="masked_tokens"):
    def masked_tokens(tokens, choice, kind, word, num_special, mask_id, vocab_size, share=0.15):
        chosen = (choice < share) & (tokens >= num_special)
        number = vocab_size - num_special
        random_words = num_special + (word * number).floor().long()
        inputs = tokens.clone()
        inputs[chosen & (kind < 0.8)] = mask_id
        swapped = chosen & (kind >= 0.8) & (kind < 0.9)
        inputs[swapped] = random_words[swapped]
        labels = tokens.masked_fill(~chosen, -100)
        return inputs, labels


AllChosenTokensMasked = MaskedTokens.but(
    "inputs[chosen …\ninputs[swapped] = …", "inputs[chosen] = mask_id"
)
"""Every chosen token is masked; a tenth of them should become random words, and a tenth
should stay."""

LossEverywhere = MaskedTokens.but("masked_fill(~chosen, -100)", "clone()")
"""Every token has a label, so the model predicts tokens that it can see; label only the chosen
ones, with -100 elsewhere."""

SpecialTokensChosen = MaskedTokens.but("chosen = …", "chosen = choice < share")
"""Special tokens are chosen like words; tokens below num_special never are."""

FirstPositionNeverChosen = MaskedTokens.but(
    "(tokens >= num_special)", "(tokens >= num_special) & (torch.arange(tokens.shape[1]) > 0)"
)
"""The first position is never chosen, as if a special token always stood there: look at the
tokens."""

FirstWordNeverChosen = MaskedTokens.but("tokens >= num_special", "tokens > num_special")
"""Token num_special is treated as special; it is the first word."""

ChosenAtTheShare = MaskedTokens.but("choice < share", "choice <= share")
"""A token with choice equal to share is chosen, too; choice must be below share."""

MaskedAtTheBoundary = MaskedTokens.but("kind < 0.8", "kind <= 0.8").but("kind >= 0.8", "kind > 0.8")
"""A chosen token with kind equal to 0.8 is masked; from 0.8 on it becomes a random word."""

ReplacedAtTheBoundary = MaskedTokens.but("kind < 0.9", "kind <= 0.9")
"""A chosen token with kind equal to 0.9 becomes a random word; from 0.9 on it stays."""

RandomFromTheWholeVocabulary = MaskedTokens.but("vocab_size - num_special", "vocab_size").but(
    "num_special + (word * number)", "(word * number)"
)
"""Random words are drawn from all ids, special tokens included; words begin at num_special."""

RandomBeyondTheVocabulary = MaskedTokens.but("vocab_size - num_special", "vocab_size")
"""num_special is added to a number from the whole vocabulary, so some ids do not exist; there are
vocab_size - num_special words."""

RandomIdsTooLow = MaskedTokens.but("num_special + (word * number)", "(word * number)")
"""Random ids begin at 0, among the special tokens, and miss the last words: add num_special."""

RandomSpecialTokensRaised = MaskedTokens.but("vocab_size - num_special", "vocab_size").but(
    "num_special + (word * number).floor().long()",
    "(word * number).floor().long().clamp(min=num_special)",
)
"""Random words are drawn from all ids, and special ones are raised to num_special, so this word is
drawn more often than others; each of the vocab_size - num_special words needs an equal part of
the interval from 0 to 1, so scale by their number, then add num_special."""

LastWordNeverDrawn = MaskedTokens.but("vocab_size - num_special", "vocab_size - num_special - 1")
"""The last word is never drawn: there are vocab_size - num_special words, and rounding
down excludes the end anyway."""

RandomWordRounded = MaskedTokens.but("floor", "round")
"""The random word is rounded to the nearest id, so the first has half its probability, and an id
beyond the vocabulary can result; round down."""

KeptTokensNotLabelled = MaskedTokens.but("chosen,", "chosen | (kind >= 0.9),")
"""Chosen tokens that stay unchanged have no label; label them like the others, or the model learns
that an unmasked token is always correct."""

OnlyMaskedTokensLabelled = MaskedTokens.but("~chosen", "inputs != mask_id")
"""Only masked tokens have a label; random and kept ones need one as well."""

LabelsAfterReplacing = MaskedTokens.but("labels = tokens", "labels = inputs")
"""The labels are read from the inputs after tokens were replaced, so the model predicts what it
sees; a label is the original token."""

NeverKept = MaskedTokens.but("(kind >= 0.8) & (kind < 0.9)", "(kind >= 0.8)")
"""A fifth of the chosen tokens become random words and none stays; only 10 % become random, from
0.8 to below 0.9."""

NeverReplaced = MaskedTokens.but("swapped = …\ninputs[swapped] = …", "")
"""No chosen token becomes a random word: it should if `kind` is from 0.8 to below 0.9."""

WordsReplacedByThemselvesNotLabelled = MaskedTokens.but(
    "~chosen, -100", "~chosen | ((inputs == tokens) & (kind < 0.9)), -100"
)
"""A chosen token gets no label if the random word happens to be the same: a chosen token has a
label whether it changes or not."""

EverythingMasked = MaskedTokens.but("chosen & (kind < 0.8)", "kind < 0.8")
"""Tokens that were not chosen are masked as well."""

IgnoredWithZero = MaskedTokens.but("chosen, -100", "chosen, 0")
"""Positions without a prediction have the label 0, which is a token; cross_entropy ignores -100."""

ChoiceInverted = MaskedTokens.but("choice < share", "choice >= share")
"""The tokens with choice >= share are chosen, which reverses the selection: choose where choice is
below share."""

LabelsFirst = MaskedTokens.but("inputs, labels", "labels, inputs")
"""Labels and inputs are returned in the wrong order."""

TokensChanged = (
    MaskedTokens.but("inputs = …", "labels = tokens.masked_fill(~chosen, -100)")
    .but("inputs[chosen & (kind < 0.8)]", "tokens[chosen & (kind < 0.8)]")
    .but(
        "inputs[swapped] = …\nreturn inputs, labels",
        "tokens[swapped] = random_words[swapped]\nreturn tokens, labels",
    )
)
"""The given tokens are changed in place, so the original data are lost, and the next labels are
wrong; change a copy."""


# 6.8 --------------------------------------------------------------------------------------------
class CheckSplit(Correct, exercise="check_prompt_split"):
    def check_prompt_split(predict):
        text = torch.tensor([7, 2, 9, 4, 0, 8, 3, 5, 1, 6])
        expected = predict(text[:1], text[1:])
        for cut in range(2, len(text)):
            seen = predict(text[:cut], text[cut:])
            assert torch.allclose(seen.double(), expected.double(), atol=1e-5)


NothingRejected = CheckSplit.but("expected = …\nfor …", "for cut in range(1, len(text)):").but(
    "torch.allclose(seen.double(), expected.double(), atol=1e-5)", "abs(seen.sum() - 1) < 1e-5"
)
"""Every model passes, wrong ones too: compare the probabilities for the same text, split at
different points, and `assert` that they agree; a test that returns False rejects nothing."""

SmallDifferencesPass = CheckSplit.but("(text[:1], text[1:])", "(text[:1], text[1:]).argmax()").but(
    "seen = …\nassert …", "assert predict(text[:cut], text[cut:]).argmax() == expected"
)
"""Models that read a prefix in both directions pass: the split changes their probabilities by a few
hundredths or less, but not the most likely token. Compare all probabilities, and allow only for
rounding."""

ShortMemoryPasses = CheckSplit.but("tensor([7, 2, 9, 4, 0, 8, 3, 5, 1, 6])", "tensor([7, 2, 9, 4])")
"""A cache that keeps four tokens passes: it loses nothing until the first part has more than four;
use a text of ten tokens or so, and split it late, too."""

FirstSplitMissing = CheckSplit.but("text[:1], text[1:]", "text[:5], text[5:]")
"""A model that is wrong only if the first part is a single token passes: split after the first
token, too."""

FewSplitsTried = CheckSplit.but(
    "expected = …\n    assert …",
    "expected = predict(text[:-1], text[-1:])\n"
    "seen = predict(text[:-2], text[-2:])\n"
    "assert torch.allclose(seen.double(), expected.double(), rtol=0, atol=3e-3)",
)
"""Models that depend weakly on the split, or treat the first part as padding, pass: try every
split, and allow only for rounding."""

WeakDependencePasses = CheckSplit.but(
    "seen = …\nassert …", "assert (predict(text[:cut], text[cut:]) - expected).abs().max() < 0.002"
)
"""A weak dependence on the split passes: a few ten-thousandths in some probabilities. Compare the
largest difference with 1e-5 or so. (An average over all tokens is smaller, and a divergence is about
the square of a difference.)"""

NoToleranceForRounding = CheckSplit.but(
    "seen = …\nassert …", "assert torch.equal(predict(text[:cut], text[cut:]), expected)"
)
"""Correct models whose rounding depends on the split are rejected: allow a small difference."""

EverythingRejected = (
    CheckSplit.but("text[1:]", "text[1:2]")
    .but("(text)", "(text) - 1")
    .but("text[cut:]", "text[cut : cut + 1]")
)
"""Every model is rejected, correct ones too: both parts together must always be the same text, in
the same order, and only the split may differ."""

AssertionInverted = CheckSplit.but(
    "expected = …\n    assert …",
    "first, other = predict(text[:3], text[3:]), predict(text[:6], text[6:])\n"
    "assert (first - other).abs().max() > 1e-5",
)
"""Correct models are rejected, and wrong ones pass: the test must fail if predictions differ, and
pass if they agree."""


# 6.6 --------------------------------------------------------------------------------------------
class OneBlock(Correct, exercise="one_block_three_masks"):
    def three_masks(length, prefix_lens):
        both_ways = torch.ones(length, length) == 1
        causal = torch.ones(length, length).tril() == 1
        in_prefix = prefix_lens[:, None, None] > torch.arange(length)
        prefix = causal | in_prefix
        return both_ways, causal, prefix

    def one_block_three_masks(x, weights, prefix_lens):
        both_ways, causal, prefix = three_masks(x.shape[1], prefix_lens)
        return tuple(block(x, mask, weights) for mask in (both_ways, causal, prefix))


CausalMaskFlipped = OneBlock.but("tril()", "triu()")
"""The causal mask lets each token see later tokens: rows are queries, so it must be True on and
below the diagonal."""

BatchAxisSqueezed = OneBlock.but("causal | in_prefix", "(causal | in_prefix).squeeze()")
"""`squeeze()` removes every axis of size 1, so for a batch of one sequence the mask loses its first
axis: it must be (batch, length, length) for any batch."""

DiagonalMissing = OneBlock.but("tril()", "tril(-1)")
"""In the causal mask a token does not see itself; the diagonal must be True."""

OneTokenAhead = OneBlock.but("tril()", "tril(1)")
"""The causal mask lets each token see one token ahead; it must end at the diagonal."""

AndInsteadOfOr = OneBlock.but("causal | in_prefix", "causal & in_prefix")
"""A key is visible only if it is in the prefix and not later than the query, so nothing after the
prefix is visible; one of the two is enough."""

PrefixOneTooShort = OneBlock.but(
    "prefix_lens[:, None, None] > torch", "prefix_lens[:, None, None] - 1 > torch"
)
"""The prefix ends one token early: positions 0 to prefix_len - 1 belong to it."""

PrefixOneTooLong = OneBlock.but(
    "prefix_lens[:, None, None] > torch", "prefix_lens[:, None, None] >= torch"
)
"""The prefix ends one token late: positions 0 to prefix_len - 1 belong to it."""

PrefixAlongTheRows = OneBlock.but("(length)", "(length)[:, None]")
"""The prefix is applied along the rows, so its tokens see everything, including the answer; apply
it along the columns, the keys."""

PrefixVisibleToItselfOnly = OneBlock.but(
    "causal | in_prefix", "(in_prefix & in_prefix.mT) | (causal & ~in_prefix & ~in_prefix.mT)"
)
"""Only tokens of the prefix see the prefix, and the tokens after it see only one another; they must
see the prefix too."""

PrefixOfTheFirstSequence = OneBlock.but(
    "in_prefix = prefix_lens[:, None, None] > torch.arange(length)",
    "in_prefix = (prefix_lens[:1, None, None] > torch.arange(length)).expand(\n"
    "    len(prefix_lens), -1, -1\n"
    ")",
)
"""All sequences get the prefix of the first one; each has its own length."""

PrefixWrittenIntoTheCausalMask = OneBlock.but(
    "in_prefix = …\nprefix = …",
    """
    prefix = [causal] * len(prefix_lens)
    for mask, prefix_len in zip(prefix, prefix_lens, strict=True):
        mask[:, :prefix_len] = True
    prefix = torch.stack(prefix)
    """,
)
"""The prefixes are written into the causal mask itself, so it is no longer causal, and all
sequences get the longest prefix. `mask = causal` and `[causal] * batch` copy nothing:
clone the mask for each sequence."""

PrefixMaskCausalOnly = OneBlock.but("causal | in_prefix", "causal.expand(len(prefix_lens), -1, -1)")
"""The prefix mask is causal everywhere; tokens of the prefix must see one another in both
directions."""

MasksTrueWhereForbidden = (
    OneBlock.but("return both_ways, causal, prefix", "return ~both_ways, ~causal, ~prefix")
    .but(
        "both_ways, causal, prefix = three_masks(x.shape[1], prefix_lens)",
        "allowed = [~mask for mask in three_masks(x.shape[1], prefix_lens)]",
    )
    .but("(both_ways, causal, prefix)", "allowed")
)
"""The masks are True where attention is not allowed; True means allowed."""

SameMaskForAll = OneBlock.but(
    "both_ways, causal, prefix = …", "_, causal, _ = three_masks(x.shape[1], prefix_lens)"
).but("return tuple(block(x, …", "return tuple(block(x, causal, weights) for _ in range(3))")
"""The block is run three times with the same mask."""

RunsChained = OneBlock.but(
    "both_ways, causal, prefix = …\nreturn …",
    """
    outputs = []
    for mask in three_masks(x.shape[1], prefix_lens):
        x = block(x, mask, weights)
        outputs.append(x)
    return tuple(outputs)
    """,
)
"""Each run takes the output of the previous one; all three must read the same tokens."""

CausalFirst = OneBlock.but("return both_ways, causal", "return causal, both_ways").but(
    "both_ways, causal, prefix = …\nreturn …",
    "return tuple(block(x, mask, weights) for mask in three_masks(x.shape[1], prefix_lens))",
)
"""Exchange the first two: the order is both directions, causal, prefix."""


# 6.10 -------------------------------------------------------------------------------------------
class Smoothed(Correct, exercise="smoothed_loss"):
    def smoothed_loss(logits, targets, smoothing, pad):
        log_p = F.log_softmax(logits, dim=-1)
        vocab_size = logits.shape[-1]
        soft = F.one_hot(targets, vocab_size) * (1 - smoothing) + smoothing / vocab_size
        nats = -(soft * log_p).sum(dim=-1)
        return nats[targets != pad].mean()

    def noam(step, d_model, warmup_steps):
        n = step + 1
        return d_model**-0.5 * min(n**-0.5, n * warmup_steps**-1.5)


EpsilonInTheLogarithmIfSmoothed = Smoothed.but(
    "log_p = …",
    "if smoothing == 0:\n"
    "    return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad)\n"
    "log_p = torch.log(logits.softmax(dim=-1) + 1e-12)",
)
"""A small number is added to the probabilities if there is smoothing, so the loss of improbable tokens
stops growing: compute the logarithm from the logits, by F.log_softmax."""

SmoothingForWrongTokensOnly = Smoothed.but(
    "soft = F.one_hot(targets, vocab_size) * (1 - smoothing) + smoothing / vocab_size",
    "right = F.one_hot(targets, vocab_size) == 1\n"
    "soft = torch.where(right, 1 - smoothing, smoothing / (vocab_size - 1))",
)
"""The smoothing is divided among the vocab_size - 1 wrong tokens; by the rule used here, every
token gets smoothing / vocab_size, the correct one in addition to its 1 - smoothing."""

SmoothingWithoutPadding = Smoothed.but(
    "soft = F.one_hot(targets, vocab_size) * (1 - smoothing) + smoothing / vocab_size",
    "right = F.one_hot(targets, vocab_size) == 1\n"
    "soft = torch.where(right, 1 - smoothing, smoothing / (vocab_size - 2))\n"
    "soft[..., pad] = 0",
)
"""The smoothing is divided among the vocab_size - 2 tokens that are neither correct nor padding; by
the rule used here, every token gets smoothing / vocab_size."""

PaddingWithoutASmoothedPart = Smoothed.but(
    "nats = -(soft * log_p).sum(dim=-1)", "soft[..., pad] = 0\nnats = -(soft * log_p).sum(dim=-1)"
)
"""The padding token gets no part of the smoothing, so the target does not sum to 1; by the rule used
here, every token gets smoothing / vocab_size, padding too."""

SmoothingWithoutTheCorrectToken = Smoothed.but(
    "soft = F.one_hot(targets, vocab_size) * (1 - smoothing) + smoothing / vocab_size",
    "right = F.one_hot(targets, vocab_size) == 1\n"
    "soft = torch.where(right, 1 - smoothing, smoothing / vocab_size)",
)
"""The correct token gets only 1 - smoothing, so the target does not sum to 1: add smoothing /
vocab_size to it."""

SmoothingNotDivided = Smoothed.but(
    "vocab_size = …\nsoft = …",
    "soft = F.one_hot(targets, logits.shape[-1]) * (1 - smoothing) + smoothing",
)
"""Every token gets the whole smoothing; divide it by vocab_size."""

DivergenceInsteadOfCrossEntropy = Smoothed.but(
    "-(soft * log_p)", "(torch.special.xlogy(soft, soft) - soft * log_p)"
)
"""The entropy of the smoothed target is subtracted, which gives a divergence that can reach 0;
return the cross-entropy."""

SmoothingForgotten = Smoothed.but(
    "log_p = …\nreturn …",
    "return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad)",
)
"""The targets are not smoothed at all."""

PaddingCounted = Smoothed.but("nats = …\nreturn …", "return -(soft * log_p).sum(dim=-1).mean()")
"""Padding is counted like any other target: exclude it from the mean."""

PaddingInTheSmoothing = Smoothed.but(
    "vocab_size = …\nreturn …",
    "nats = F.nll_loss(log_p.flatten(0, 1), targets.flatten(), ignore_index=pad)\n"
    "return (1 - smoothing) * nats - smoothing * log_p.mean()",
)
"""Padding is excluded from the usual loss, but not from the smoothing term; exclude it from
both."""

MeanOfMeans = Smoothed.but(
    "return nats[targets != pad].mean()",
    "real = targets != pad\nreturn ((nats * real).sum(dim=1) / real.sum(dim=1)).mean()",
)
"""This averages the sequences' means, so a token of a short sequence weighs more than one of a long
sequence: add up everything, then divide once by the number of targets that count."""

DividedByAllPositions = Smoothed.but("nats[targets != pad]", "(nats * (targets != pad))")
"""The sum over real targets is divided by the number of all positions, padding included."""

SoftmaxTwice = Smoothed.but("logits, dim", "logits.softmax(dim=-1), dim")
"""The logits go through a softmax before log_softmax, which includes one."""

ZeroTakenForPad = Smoothed.but("targets != pad", "targets != 0")
"""Token 0 is ignored instead of `pad`, which is an argument and may be another number."""

DecayBeginsOneUpdateLate = Smoothed.but(
    "min(n**-0.5, n * warmup_steps**-1.5)",
    "(n * warmup_steps**-1.5 if step <= warmup_steps else n**-0.5)",
)
"""The rate still rises at step warmup_steps, which is update warmup_steps + 1: take the minimum of
both terms, or compare the number of the update."""

UpdatesCountedFromZero = Smoothed.but("step + 1", "step").but("n**-0", "max(n, 1) ** -0")
"""`step` is used as the number of the update, at least while the rate rises, so the rate is one
update late: steps are counted from 0, updates from 1."""

WrongWarmupExponent = Smoothed.but("warmup_steps**-1", "warmup_steps**-0")
"""The rise is divided by the square root of warmup_steps; with the exponent -3/2 it meets the decay
at the end of the warm-up."""

MaximumInsteadOfMinimum = Smoothed.but("* min", "* max")
"""The larger of the two terms is taken, which first falls and then grows for ever: take the smaller
one."""

SquareRootOfTheWidthForgotten = Smoothed.but(
    "return d_model**-0.5 …", "return min(n**-0.5, n * warmup_steps**-1.5) / d_model"
)
"""The rate is divided by d_model instead of its square root."""

WidthForgotten = Smoothed.but("d_model**-0.5 * min", "min")
"""The rate does not depend on d_model: divide by its square root."""

DecaysWithoutTheSquareRoot = Smoothed.but("n**-0.5", "1 / n")
"""After the warm-up, the rate decays as 1 / n; it should decay as 1 over the square root of n."""


# 6.5 --------------------------------------------------------------------------------------------
class Mended(Correct, exercise="mended_decoder"):
    def mended_decoder(x, memory, source_mask, weights):
        w_q, w_k, w_v, cross_q, cross_k, cross_v = weights
        scale = math.sqrt(x.shape[-1])

        def attend(query, key, value, mask):
            scores = query @ key.transpose(1, 2) / scale
            return scores.masked_fill(~mask, float("-inf")).softmax(dim=-1) @ value

        past = torch.ones(x.shape[1], x.shape[1]).tril() == 1
        everything = torch.ones(x.shape[1], memory.shape[1]) == 1
        real = source_mask[:, None, :]
        x = x + attend(x @ w_q, x @ w_k, x @ w_v, past)
        return x + attend(x @ cross_q, memory @ cross_k, memory @ cross_v, real)


SmallNumberInsteadOfMinusInfinity = Mended.but('float("-inf")', "-100.0")
"""Masked scores are set to a number such as -100 or -1e4. Where the other scores are even lower, what
is masked gets all the weight: set masked scores to minus infinity."""

StillAsPublished = (
    Mended.but("scale = …", "d_model = x.shape[-1]")
    .but("scores = …", "scores = query.transpose(1, 2) @ key / math.sqrt(d_model)")
    .but('float("-inf")', "-math.inf")
    .but(
        "past = …\nreal = …",
        "past = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()\n"
        "everything = torch.ones(x.shape[1], memory.shape[1], dtype=torch.bool)",
    )
    .but("return x …", "return x + attend(memory @ cross_q, x @ cross_k, x @ cross_v, everything)")
)
"""All three bugs are still there."""

FeaturesStillCompared = Mended.but("query @ key.transpose(1, 2)", "query.transpose(1, 2) @ key")
"""Features are still compared with features, which works only if there are as many tokens as
features: query @ key.transpose(1, 2) compares tokens with tokens."""

SourceAndTargetStillSwapped = Mended.but("real = …", "real = source_mask[:, :, None]").but(
    "return x …", "return x + attend(memory @ cross_q, x @ cross_k, x @ cross_v, everything.mT)"
)
"""Queries still come from the memory, keys and values from the target, so each output sees the
whole target: exchange the two."""

PaddingStillVisible = Mended.but("cross_v, real", "cross_v, everything")
"""The source's padding is still visible: cross-attention needs the source mask."""

PaddingAtTheEndAssumed = Mended.but(
    "real = …",
    "real = (torch.arange(memory.shape[1]) < source_mask.sum(dim=1, keepdim=True))[:, None, :]",
)
"""Only the number of real tokens is read from the mask, as if all padding came at the end: use the
mask itself."""

MaskOfTheFirstSource = Mended.but("real = …", "real = source_mask[:1, None, :]")
"""The mask of the first source is used for all; each source has its own."""

PaddingSetToZero = Mended.but(
    "return x …",
    "memory = memory * real.mT\n"
    "return x + attend(x @ cross_q, memory @ cross_k, memory @ cross_v, everything)",
)
"""The source's padding is set to 0, but its positions still get a score, 0, and with it some
weight: set those scores to minus infinity by the source mask."""

QueriesFromTheOldStream = (
    Mended.but("everything = torch.ones(x.shape[1], memory.shape[1]) == 1", "")
    .but("x = x + attend", "found = attend")
    .but("return x + attend", "return x + found + attend")
)
"""The queries of cross-attention come from the stream before self-attention; compute them from the
sum, with the output of self-attention included."""

CausalMaskOnTheSource = Mended.but(
    "source_mask[:, None, :]",
    "source_mask[:, None, :] & (torch.ones(x.shape[1], memory.shape[1]).tril() == 1)",
)
"""Cross-attention has a causal mask; the whole source is known, and only its padding is hidden."""

CausalMaskLost = Mended.but("w_v, past", "w_v, past | True")
"""The causal mask of self-attention is missing."""

SoftmaxOverQueries = Mended.but("dim=-1", "dim=-2).nan_to_num(")
"""The softmax runs over the queries; the weights of each query must sum to 1 over the keys:
dim=-1."""

NotScaled = Mended.but("math.sqrt(x.shape[-1])", "1.0")
"""The scores are no longer divided by the square root of d_model."""

ResidualLost = Mended.but("return x + attend", "return attend")
"""The output of cross-attention replaces the stream; it must be added to it."""

CrossAttentionDropped = Mended.but("return x + attend", "return x + 0 * attend")
"""Cross-attention is missing."""


# 6.7 --------------------------------------------------------------------------------------------
class Swapped(Correct, exercise="swapped_cross_attention"):
    def swapped_cross_attention(x, memory, source_mask, weights, num_heads):
        def split(tokens):
            return tokens.unflatten(-1, (num_heads, -1)).transpose(1, 2)

        read = F.layer_norm(x, x.shape[-1:], weights["gain"], weights["bias"])
        query = split(read @ weights["query.weight"].T + weights["query.bias"])
        key = split(memory @ weights["key.weight"].T + weights["key.bias"])
        value = split(memory @ weights["value.weight"].T + weights["value.bias"])
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        scores = scores.masked_fill(~source_mask[:, None, None, :], -math.inf)
        merged = (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
        return x + merged @ weights["output.weight"].T + weights["output.bias"]


SmallNumberInsteadOfMinusInfinity = Swapped.but("-math.inf", "-100.0")
"""Masked scores are set to a number such as -100 or -1e4. Where the other scores are even lower, the
padding gets all the weight: set masked scores to minus infinity."""

WidthOfTheTrainedModel = Swapped.but("query.shape[-1] ** 0.5", "(64 // num_heads) ** 0.5")
"""The scale is computed from the width 64, whatever the weights are: use the width of a head, which is
the last axis of the queries."""

ResidualForgotten = Swapped.but("x + merged", "merged")
"""The output of attention replaces the stream; it must be added to it."""

ResidualFromTheNormOutput = Swapped.but("return x", "return read")
"""The output of attention is added to its normalised input; it must be added to the stream."""

NormForgotten = Swapped.but("read = …", "read = x")
"""The queries come from the stream without a norm; in a pre-norm block, the stream is normalised
first."""

UnbiasedVariance = Swapped.but(
    "read = …",
    "mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True)\n"
    'read = (x - mean) / (variance + 1e-5).sqrt() * weights["gain"] + weights["bias"]',
)
"""The norm divides by the unbiased deviation, torch's default; layer normalisation divides the sum
of squares by d_model, not by d_model - 1 (unbiased=False)."""

EpsilonOutsideTheRoot = Swapped.but(
    "read = …",
    "centred = x - x.mean(-1, keepdim=True)\n"
    "deviation = centred.square().mean(-1, keepdim=True).sqrt()\n"
    'read = centred / (deviation + 1e-5) * weights["gain"] + weights["bias"]',
)
"""Epsilon is added to the standard deviation; layer normalisation adds it to the variance, under
the root."""

NormAfterTheSum = Swapped.but(
    "read = …\nquery = …", 'query = split(x @ weights["query.weight"].T + weights["query.bias"])'
).but(
    "return x …",
    'x = x + merged @ weights["output.weight"].T + weights["output.bias"]\n'
    'return F.layer_norm(x, x.shape[-1:], weights["gain"], weights["bias"])',
)
"""The norm comes after the addition, as in a post-norm block; here it comes before the queries, and
the sum is not normalised."""

MemoryNormalisedAgain = Swapped.but(
    "key = …\nvalue = …",
    """
    key = split(
        F.layer_norm(memory, x.shape[-1:], weights["gain"], weights["bias"])
        @ weights["key.weight"].T
        + weights["key.bias"]
    )
    value = split(
        F.layer_norm(memory, x.shape[-1:], weights["gain"], weights["bias"])
        @ weights["value.weight"].T
        + weights["value.bias"]
    )
    """,
)
"""The memory goes through the norm of this sub-layer; it is already normalised, so use it
unchanged."""

GainForgotten = Swapped.but("read = …", 'read = F.layer_norm(x, x.shape[-1:]) + weights["bias"]')
"""The gain of the norm is not applied."""

NormBiasForgotten = Swapped.but('["gain"], weights["bias"]', '["gain"]')
"""The bias of the norm is not added."""

AlwaysFourHeads = Swapped.but("(num_heads, -1)", "(4, -1)")
"""The number of heads is always four, as in this model; use num_heads."""

ScaledByModelWidth = Swapped.but("query.shape", "x.shape")
"""The scores are divided by the square root of d_model; the model was trained with the square root
of d_head. Almost all of its dates stay correct."""

NotScaled = Swapped.but("query.shape[-1] ** 0.5", "1")
"""The scores are not divided by the square root of d_head; the dates stay correct, but the logits
do not."""

PaddingVisible = Swapped.but(
    "scores.masked_fill(~source_mask[:, None, None, :], -math.inf)", "scores"
)
"""The source's padding is visible; it was hidden in training."""

CausalMaskOnTheSource = Swapped.but(
    "source_mask[:, None, None, :], -math.inf",
    "source_mask[:, None, None, :].expand_as(scores).tril(), -1e9",
)
"""Cross-attention has a causal mask; the whole source is known."""

ValueBiasForgotten = Swapped.but('T + weights["value.bias"]', "T")
"""The bias of the values is not added: the loss does not show it, but the logits do."""

PaddingAtTheEndAssumed = Swapped.but(
    "~source_mask[:, None, None, :]",
    "(torch.arange(memory.shape[1]) >= source_mask.sum(dim=1)[:, None])[:, None, None, :]",
)
"""Only the number of real tokens is read from the mask, as if all padding came at the end: use the
mask itself."""

QueryBiasForgotten = Swapped.but('T + weights["query.bias"]', "T")
"""The bias of the queries is not added: the loss does not show it, but the logits do."""

OutputProjectionForgotten = Swapped.but("return x …", "return x + merged")
"""The merged heads are added to the stream without the output projection."""

MatricesNotTransposed = Swapped.but("].T +", "] +", times=4)
"""The matrices are used as they are stored, (d_out, d_in), which raises no error because they are
square: nn.Linear multiplies by the transpose."""


# 6.11 -------------------------------------------------------------------------------------------
class Functions(Correct, exercise="functional_gradients"): ...


TiedInTheTree = Functions.but("length, table = …", "").but(
    "x = table[tokens] …",
    """
    length, table = tokens.shape[-1], parameters["embedding"]["tokens"]
    parameters.setdefault("unembedding", table)
    x = table[tokens] + parameters["embedding"]["positions"][:length]
    """,
)
"""The table is stored in the tree as an unembedding matrix, so the caller's tree is no longer tied:
its next gradient is split between two leaves. Look the table up, and write nothing into
parameters."""

UnembeddingIgnored = Functions.but('parameters.get("unembedding", table)', "table")
"""The logits always come from the embedding table; if the tree has an unembedding matrix, use it:
the weights are not tied."""

TiedToACopy = Functions.but("table).T", "table.detach()).T")
"""The tied matrix is a detached copy of the table, so the gradient of the table lacks its second
use; use the same leaf twice."""

FinalNormNotFromTheTree = Functions.but(
    "norm = …\nx = …",
    "norm = torch.nn.LayerNorm(x.shape[-1], dtype=x.dtype)\nx = norm(x)",
)
"""The final norm is a module made in the function, with a gain of 1 and a bias of 0: take both from
the tree."""

FirstBlockRepeated = Functions.but(
    'for weights in parameters["blocks"].values():\n    x = block(x, past, weights)',
    'for _ in parameters["blocks"]:\n    x = block(x, past, parameters["blocks"]["0"])',
)
"""Every block is computed with the weights of block 0; each has its own branch of the tree."""

BlocksInTheOrderOfWords = Functions.but(
    'for weights in parameters["blocks"].values():\n    x = block(x, past, weights)',
    'for name in sorted(parameters["blocks"]):\n    x = block(x, past, parameters["blocks"][name])',
)
"""The blocks run in the alphabetical order of their names, where "10" comes before "2": with more
than ten blocks, this is wrong. Keep the order of the tree, or sort by int(name)."""

NothingMasked = Functions.but("dtype=torch.bool).tril()", "dtype=torch.bool)")
"""The causal mask hides nothing: each position sees the tokens after it, which it should
predict."""

BatchAxisAssumed = Functions.but("tokens.shape[-1]", "tokens.shape[1]")
"""The length is read from axis 1, which a single sequence does not have: count axes from the right,
tokens.shape[-1]."""

BatchFlattenedAway = Functions.but("logits.flatten(0, -2)", "logits.flatten(0, 1)")
"""The loss merges the first two axes of the logits; for a single sequence these are its length and
the vocabulary: flatten(0, -2) leaves the vocabulary alone in both cases."""

LossSummed = Functions.but("ignore_index=-100", 'reduction="sum"')
"""The loss is a sum over the targets; it should be their mean."""

DividedByAllPositions = Functions.but(
    "return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=-100)",
    'nats = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")\n'
    "return nats.mean()",
)
"""The sum of the losses is divided by the number of all positions; divide by the number of targets
that are not -100."""

IgnoredCountedAsTokenZero = Functions.but("targets.flatten()", "targets.flatten().clamp(min=0)")
"""Targets of -100 become token 0 and count in the loss; ignore them."""

MeanOfMeans = Functions.but(
    "return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=-100)",
    """
    nats = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
    nats, counts = nats.reshape(targets.shape), targets != -100
    return (nats.sum(dim=-1) / counts.sum(dim=-1)).mean()
    """,
)
"""The loss is the mean of each sequence's mean, so a target counts more in a sequence with few of
them; take one mean over all targets of the batch."""

ShiftedTwice = Functions.but(
    "logits.flatten(0, -2), targets.flatten()",
    "logits[..., :-1, :].flatten(0, -2), targets[..., 1:].flatten()",
)
"""The targets are shifted by one position, but they already are the next tokens: the model learns
to predict the token after the next."""

OuterParametersUsed = Functions.but(
    "torch.func.grad(functional_loss)(parameters, tokens, targets)",
    "torch.func.grad(lambda _: functional_loss(parameters, tokens, targets))(parameters)",
)
"""The function that is differentiated computes with the parameters outside it and not with its
argument, so every gradient is 0: a pure function reads nothing but its arguments."""

LeavesWithoutNames = Functions.but(
    "return torch.func.grad(functional_loss)(parameters, tokens, targets)",
    """
    tree = torch.func.grad(functional_loss)(parameters, tokens, targets)

    def leaves(tree):
        if not isinstance(tree, dict):
            return [tree]
        return [leaf for branch in tree.values() for leaf in leaves(branch)]

    return leaves(tree)
    """,
)
"""The gradients are a list without names; return a tree, with the names of the parameters."""

LossReturnedToo = Functions.but("torch.func.grad(", "torch.func.grad_and_value(")
"""The gradients are returned together with the loss; return the tree alone."""

UpdatedInPlace = Functions.but(
    "return parameters - learning_rate * gradients",
    "parameters -= learning_rate * gradients\nreturn parameters",
)
"""The step changes the given tree, so the old parameters are lost: -= changes a tensor, and
`parameters[name] = …` changes the dictionary. Return new tensors in new dictionaries."""

StepUphill = Functions.but("parameters - learning_rate", "parameters + learning_rate")
"""The step follows the gradient, so the loss grows: subtract the gradient."""


class BlocksForgotten(Functions):
    """Only two levels of the tree are updated, but the blocks are one level deeper: they keep their
    old weights, and only the rest of the model learns."""

    def sgd_step(parameters, gradients, learning_rate):
        def moved(leaf, gradient):
            return leaf - learning_rate * gradient if isinstance(leaf, torch.Tensor) else leaf

        new = {}
        for name, part in parameters.items():
            if isinstance(part, torch.Tensor):
                new[name] = moved(part, gradients[name])
            else:
                new[name] = {key: moved(leaf, gradients[name][key]) for key, leaf in part.items()}
        return new


# 6.12 -------------------------------------------------------------------------------------------
class Examples(Correct, exercise="largest_gradient"): ...


class SameGradientForAll(Examples):
    """Each example gets the gradient of the batch, a mean over all examples. Write the loss of one
    example, and map its gradient over the batch."""

    def example_gradients(parameters, tokens, targets):
        def loss(parameters):
            logits = averaging_logits(parameters, tokens)
            return F.cross_entropy(logits.flatten(0, -2), targets.flatten())

        def repeated(tree):
            if isinstance(tree, dict):
                return {name: repeated(branch) for name, branch in tree.items()}
            return tree.expand(len(tokens), *tree.shape)

        return repeated(torch.func.grad(loss)(parameters))


DividedByTheTargetsOfTheBatch = Examples.but(
    "each = …",
    "number = (targets != -100).sum()\n"
    "each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))",
).but("counts.sum().clamp(min=1)", "number")
"""Each example's loss is divided by the number of targets in the whole batch, so long examples get
larger gradients: divide by the number of its own targets."""

FirstTargetsCounted = Examples.but(
    "counts = …", "counts = torch.arange(len(targets)) < (targets != -100).sum()"
)
"""The first targets of each example are counted, as if all -100 came at the end: count those that
are not -100."""

DividedByTheBatchSize = Examples.but("clamp(min=1)", "clamp(min=1) / len(all_targets)").but(
    "each = …",
    "all_targets = targets\neach = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))",
)
"""Each example's gradient is divided by the batch size, as in a mean over the batch; return the
gradient of its own loss."""

DividedByTheLength = Examples.but("counts.sum().clamp(min=1)", "len(targets)")
"""Each example's loss is divided by its length with padding: divide by the number of its targets
that are not -100."""

LossesSummed = Examples.but(
    "(nats * counts).sum() / counts.sum().clamp(min=1)", "(nats * counts).sum()"
)
"""The loss of an example is a sum over its targets; it should be their mean."""

PaddingCounted = Examples.but("counts = targets != -100", "counts = targets >= -100")
"""Targets of -100 count as if they were token 0; ignore them."""

NanForAnEmptyExample = Examples.but("counts.sum().clamp(min=1)", "counts.sum()")
"""The gradient of an example without targets is NaN, from 0 divided by 0, and argmax takes NaN for
the largest: divide by at least 1."""


class GradientsAccumulate(Examples):
    """The gradients of earlier examples are still there when those of the next are added:
    backward() adds to .grad. Set it to None for each example, or use torch.func.grad."""

    def example_gradients(parameters, tokens, targets):
        def copied(tree):
            if isinstance(tree, dict):
                return {name: copied(branch) for name, branch in tree.items()}
            return tree.detach().clone().requires_grad_()

        def read(trees):
            if isinstance(trees[0], dict):
                return {name: read([tree[name] for tree in trees]) for name in trees[0]}
            return torch.stack(trees)

        def gradients(tree):
            if isinstance(tree, dict):
                return {name: gradients(branch) for name, branch in tree.items()}
            return tree.grad.clone()

        tree, found = copied(parameters), []
        for row, row_targets in zip(tokens, targets, strict=True):
            counts = row_targets != -100
            log_p = averaging_logits(tree, row).log_softmax(dim=-1)
            nats = -log_p.gather(-1, row_targets.clamp(min=0)[:, None]).squeeze(-1)
            ((nats * counts).sum() / counts.sum().clamp(min=1)).backward()
            found.append(gradients(tree))
        return read(found)


FirstTargetOnly = Examples.but(
    "counts = …", "counts = (targets != -100) & (torch.arange(len(targets)) == 0)"
)
"""Only the first target of each example counts; its loss is a mean over all that are not -100."""

NormsAdded = Examples.but("square().sum(dim=1)", "norm(dim=1)").but(").sqrt()", ")")
"""The norms of the leaves are added; add their squares, and take the root of the sum."""

RootForgotten = Examples.but(").sqrt()", ")")
"""The sum of the squares is returned; the norm is its square root."""

NestedLeavesForgotten = Examples.but(
    "sum(squares(branch) for branch in tree.values())",
    "sum(squares(leaf) for leaf in tree.values() if not isinstance(leaf, dict))",
)
"""The norm leaves out what is deeper in the tree, here the FFN; it must include all leaves."""

EmbeddingOnly = Examples.but(
    "squares(example_gradients(parameters, tokens, targets))",
    'squares(example_gradients(parameters, tokens, targets)["embedding"])',
)
"""The norm is that of one leaf, the embedding; it must include the whole tree."""

MeanSquare = Examples.but("square().sum(dim=1)", "square().mean(dim=1)")
"""The squares of a leaf are averaged; the norm adds all of them."""

LargestLoss = Examples.but(
    "return norms, norms.argmax()",
    """
    log_p = averaging_logits(parameters, tokens).log_softmax(dim=-1)
    nats = -log_p.gather(-1, targets.clamp(min=0)[..., None]).squeeze(-1)
    counts = targets != -100
    losses = (nats * counts).sum(dim=1) / counts.sum(dim=1).clamp(min=1)
    return norms, losses.argmax()
    """,
)
"""The index is that of the example with the largest loss; return that of the example with the
largest gradient, which is often another one."""

SmallestTaken = Examples.but("norms.argmax()", "norms.argmin()")
"""The index is that of the smallest norm; return that of the largest."""


# 6.13 -------------------------------------------------------------------------------------------
class CheckSets(Correct, exercise="check_set_model"):
    def check_set_model(model):
        tokens, mask = torch.tensor([3, 14, 7, 1, 12, 9, 5, 0, 10]), torch.arange(9) < 6
        orders = [[4, 8, 1, 6, 0, 3, 7, 5, 2], [7, 2, 5, 0, 8, 1, 6, 3, 4]]
        scores = model(tokens, mask)
        for order in map(torch.tensor, orders):
            reordered, real = model(tokens[order], mask[order]), mask[order]
            expected = scores[order]
            assert torch.allclose(reordered[real], expected[real], atol=1e-5)
        alone = model(tokens[mask], mask[mask])
        assert torch.allclose(alone, scores[mask], atol=1e-5)


NothingAsserted = CheckSets.but("assert torch.allclose", "torch.allclose", times=2)
"""Every model passes, wrong ones too: the comparisons are made, but their result is ignored; put
`assert` in front of them."""

InverseOrderExpected = CheckSets.but("scores[order]", "scores[order.argsort()]")
"""Every model is rejected, correct ones too: entry i of the reordered set is token order[i], so its
scores must be scores[order], and not those of the inverse order."""

MaskNotReordered = CheckSets.but("mask[order]), mask[order]", "mask), mask")
"""Correct models are rejected: the tokens are reordered but their mask is not, so other tokens
become padding. Pass mask[order]."""

OnlyReversed = CheckSets.but(
    "[[4, 8, 1, 6, 0, 3, 7, 5, 2], [7, 2, 5, 0, 8, 1, 6, 3, 4]]", "[list(range(9))[::-1]]"
)
"""A model that depends on the distance of tokens passes: a reversal keeps all distances, and so
does a rotation on a circle. Try other orders, such as random ones."""

NoChangeExpected = CheckSets.but("expected = …\nassert", "assert").but(
    "expected[real]", "scores[mask]"
)
"""Correct models are rejected, and one that keeps an order of its own passes: the scores must
be permuted like the tokens. Compare with scores[order]."""

OrderOfScoresIgnored = CheckSets.but(
    "reordered[real], expected[real]", "reordered[real].sort()[0], expected[real].sort()[0]"
)
"""A model that returns the scores in an order of its own passes: sorting, or summing, hides which
token has which score. Compare with scores[order], token by token."""

FirstTokenStays = CheckSets.but(
    "[4, 8, 1, 6, 0, 3, 7, 5, 2], [7, 2, 5, 0, 8, 1, 6, 3, 4]", "[0, 8, 1, 6, 4, 3, 7, 5, 2]"
)
"""A model that compares every token with the first passes: your order leaves the first token where
it is. Try orders that move every token."""

NoPadding = CheckSets.but("torch.arange(9) < 6", "torch.arange(9) < 9")
"""Models that treat padding wrongly pass, because the set has none: let the mask be False at some
tokens."""

PaddingStaysAtTheEnd = CheckSets.but(
    "[[4, 8, 1, 6, 0, 3, 7, 5, 2], [7, 2, 5, 0, 8, 1, 6, 3, 4]]",
    "[[4, 1, 0, 3, 5, 2, 7, 6, 8], [2, 5, 0, 1, 3, 4, 8, 6, 7]]",
)
"""A model that assumes the padding to be at the end passes, because it stays there: reorder the
padding with the tokens."""

PaddingNeverRemoved = CheckSets.but("alone = …\nassert …", "")
"""Models to which padding matters pass: they treat it alike in every order. Also compare with the
set without its padding."""

PaddingOnlyReplaced = CheckSets.but(
    "alone = …\nassert …",
    "alone = model(torch.where(mask, tokens, 15), mask)\n"
    "assert torch.allclose(alone[mask], scores[mask], atol=1e-5)",
)
"""A model whose mean is divided by the length passes: replacing padding does not change the length.
Remove the padding."""

PaddingCompared = CheckSets.but("reordered[real], expected[real]", "reordered, expected")
"""A correct model is rejected for its scores at padding, which have no meaning: compare real tokens
only."""

InfinitiesCompared = CheckSets.but(
    "torch.allclose(reordered[real], expected[real], atol=1e-5)",
    "(reordered - expected).abs().max() < 1e-5",
)
"""Correct models are rejected for their scores at padding, and infinity minus infinity is NaN:
compare real tokens only, which are at mask[order] after they have been reordered."""

OnlyTheOddestCompared = CheckSets.but(
    "torch.allclose(reordered[real], expected[real], atol=1e-5)",
    "reordered[real].argmax() == expected[real].argmax()",
)
"""A model passes if its dependence on the order is too weak to change which token is the oddest:
compare all scores."""

WeakDependencePasses = CheckSets.but("atol=1e-5", "atol=0.01", times=2)
"""A weak dependence on positions passes: it changes a score by a few thousandths. Allow only for
rounding."""

NoToleranceForRounding = CheckSets.but(
    "torch.allclose(reordered[real], expected[real], atol=1e-5)",
    "torch.equal(reordered[real], expected[real])",
)
"""Correct models whose rounding depends on the order are rejected: allow a small difference."""
