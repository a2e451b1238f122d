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
"""The logits come from a copy of the table, so its rows do not learn from being predicted; tied
weights are one tensor that is used twice."""

EmbeddingCutOff = Logits.but(
    "table[tokens]", "nn.Embedding.from_pretrained(table.detach())(tokens)"
)
"""The tokens are looked up in a table that is cut off from the gradient, so its rows do not learn
from being read; tied weights are one tensor that is used twice."""

LogitsSoftmaxed = Logits.but("x @ table.T", "torch.softmax(x @ table.T, dim=-1)")
"""A softmax is taken at the end: return the logits, the loss takes the softmax itself."""

FinalNormMissing = Logits.but("x = F.layer_norm(x, gain.shape, gain, bias)", "")
"""The stream is read without the final norm; a pre-norm stack needs one more norm at its end."""

FinalNormTwice = Logits.but(
    "x = F.layer_norm(x, …", "for _ in range(2):\n    x = F.layer_norm(x, gain.shape, gain, bias)"
)
"""The final norm is applied twice; once, behind the last block."""

NormBehindEveryBlock = Logits.but(
    "for weights in layers:…\nx = …",
    "for weights in layers:\n    x = F.layer_norm(block(x, mask, weights), gain.shape, gain, bias)",
)
"""The final norm stands behind every block; it belongs behind the last one only, the stream between
blocks is left alone."""

NormWithoutGainAndBias = Logits.but(
    "x = F.layer_norm(x, …\nreturn x @ table.T", "return F.layer_norm(x, gain.shape) @ table.T"
)
"""The final norm has lost its gain and bias."""

PositionsForgotten = Logits.but("x = x + positions[: tokens.shape[1]]", "")
"""The positions are not added to the embeddings."""

PositionsFromOne = Logits.but("positions[: tokens.shape[1]]", "positions[1 : tokens.shape[1] + 1]")
"""The first token gets row 1 of the positions; places are counted from 0."""

PositionsOfTheTokens = Logits.but("positions[: tokens.shape[1]]", "positions[tokens]")
"""The rows of the positions are looked up by token; they belong to places, first row to the first
token."""

PositionsInEveryBlock = Logits.but("x = x + positions[: tokens.shape[1]]", "").but(
    "x, mask", "x + positions[: tokens.shape[1]], mask"
)
"""The positions are added before every block; they are added once, to the embeddings."""

UntransposedTable = Logits.but("table.T", "table")
"""The vectors are multiplied by the table as it is, which fits only if there are as many tokens as
features; the score of a token is a dot product with its row, so transpose it."""

PositionsScaledToo = Logits.but("[tokens]", "[tokens] + positions[: tokens.shape[1]]").but(
    "x = x + positions[: tokens.shape[1]]", ""
)
"""The positions are multiplied by the root of d_model as well; only the rows of the table are,
before positions are added."""

ScaleIgnored = Logits.but(
    "x = table[tokens]…\nx = …", "x = table[tokens] + positions[: tokens.shape[1]]"
)
"""`is_scaled` changes nothing: it asks for embeddings times the root of d_model."""

DividedInsteadOfScaled = Logits.but("x * math", "x / math")
"""The embeddings are divided by the root of d_model; they are multiplied by it."""

NoCausalMask = Logits.but("mask = …", "").but("mask,", "None,")
"""The blocks see the whole sequence, the token that is asked for included; pass a causal mask to
each."""

MaskUpsideDown = Logits.but("torch.tril", "torch.triu")
"""The mask lets each token see itself and what comes after it; True belongs on and below the
diagonal (tril)."""

FirstBlockAgainAndAgain = Logits.but("weights in layers", "_ in layers").but(
    "mask, weights", "mask, layers[0]"
)
"""Every block gets the weights of the first; each has its own."""

MaskOfNumbers = Logits.but(
    "mask = …", "mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1], dtype=x.dtype))"
)
"""The mask is made of ones and zeros, which are added to the scores and hide nothing; a boolean
mask, True where attention is allowed, hides what it should."""

DiagonalMissing = Logits.but(
    "(tokens.shape[1], tokens.shape[1])", "(tokens.shape[1], tokens.shape[1]), diagonal=-1"
)
"""No token sees itself, so the first sees nothing at all; a causal mask allows a token and all
before it."""

LastBlockAlone = Logits.but(
    "for weights in layers:\n    x = block(x, mask, weights)",
    "for weights in layers:\n    y = block(x, mask, weights)\nx = y",
)
"""Every block reads the embeddings, so that of all blocks only the last one counts; each reads what
the one before it returned."""

ScaledUnasked = Logits.but(
    "x = table[tokens]…\n    x = …", "x = table[tokens] * math.sqrt(table.shape[1])"
)
"""The rows are scaled even if `is_scaled` is False; then they go in as they are."""

LogitsScaledToo = Logits.but("table.T", "table.T * (math.sqrt(table.shape[1]) if is_scaled else 1)")
"""The table is scaled for the logits as well; the factor belongs to the way in alone."""


# 6.2 --------------------------------------------------------------------------------------------
class Loss(Correct, exercise="shifted_loss"):
    def shifted_loss(model, targets, bos, pad):
        first = torch.full((len(targets), 1), bos)
        logits = model(torch.cat([first, targets[:, :-1]], dim=1))
        return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad)


LossWithoutGradient = Loss.but("ignore_index=pad)", "ignore_index=pad).item()")
"""The loss is a Python number (.item()): nothing can be trained by it, because no gradient flows
through a number. Return the tensor, and turn it into a number where you print it."""

NotShifted = Loss.but("first = …\nlogits = …", "logits = model(targets)")
"""The model is shown the very tokens that it is asked for: move them one place to the right, with
bos in front."""

ShiftedTwice = Loss.but(
    "logits = model(torch.cat([first, targets[:, :-1]], dim=1))",
    "logits = model(torch.cat([first, targets[:, :-1]], dim=1))\n"
    "logits, targets = logits[:, :-1], targets[:, 1:]",
)
"""The input is shifted, and then logits and targets are moved against each other once more, so each
token is predicted two places ahead: one shift is enough."""

ShiftedBack = Loss.but(
    "logits = …\nreturn …",
    "inputs = torch.cat([first, targets[:, :-1]], dim=1)\n"
    "logits = model(inputs)\n"
    "return F.cross_entropy(logits.transpose(1, 2), inputs, ignore_index=pad)",
)
"""The input and the targets are both shifted, which cancels: each place is asked for the token that
it reads."""

ShiftedLeft = Loss.but(
    "first = torch.full((len(targets), 1), bos)", "last = torch.full((len(targets), 1), pad)"
).but("first, targets[:, :-1]", "targets[:, 1:], last")
"""The input is moved to the left, so the model is shown what comes after and asked for what came
before: move it to the right."""

FirstTokenNeverAsked = Loss.but(
    "first = …\nreturn …",
    "logits = model(targets[:, :-1])\n"
    "return F.cross_entropy(logits.transpose(1, 2), targets[:, 1:], ignore_index=pad)",
)
"""Without bos nothing stands before the first token, and it is never predicted: the model will not
know how to begin."""

LastTokenNeverAsked = Loss.but(
    "return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad)",
    "nats = F.cross_entropy(\n"
    '    logits[:, :-1].transpose(1, 2), targets[:, :-1], ignore_index=pad, reduction="sum"\n'
    ")\n"
    "return nats / (targets[:, :-1] != pad).sum()",
)
"""The last place is dropped from the loss as well, so the model is not asked for the end of a full
row; the input has as many places as the targets, and all answer."""

RolledAround = Loss.but("first = …\nlogits = …", "logits = model(targets.roll(1, dims=1))")
"""roll puts the last token in front, where bos belongs."""

BeginsWithPad = Loss.but(
    "first = …\nlogits = …", "logits = model(F.pad(targets[:, :-1], (1, 0), value=pad))"
)
"""The shifted input begins with pad; it begins with bos."""

PaddingCounted = Loss.but("targets, ignore_index=pad", "targets")
"""Padding is asked for like any other token: leave it out of the mean."""

PaddingSoughtInTheInput = Loss.but(
    "logits = …\nreturn …",
    "tokens = torch.cat([first, targets[:, :-1]], dim=1)\n"
    'nats = F.cross_entropy(model(tokens).transpose(1, 2), targets, reduction="none")\n'
    "return nats[tokens != pad].mean()",
)
"""What counts as padding is read off the shifted input, so behind each eos one pad is asked for;
leave out the places whose *target* is pad."""

DividedByAllPlaces = Loss.but(
    "return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad)",
    'nats = F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad, reduction="none")\n'
    "return nats.mean()",
)
"""The loss of padding is left out, but the sum is divided by all places, padding included: divide
by the number of real tokens."""

MeanOfMeans = Loss.but(
    "return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad)",
    'nats = F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad, reduction="none")\n'
    "return (nats.sum(dim=1) / (targets != pad).sum(dim=1)).mean()",
)
"""The mean of each sequence is taken first, so tokens of short sequences weigh more; take one mean
over all real tokens of the batch."""

SumInsteadOfMean = Loss.but("ignore_index=pad", 'ignore_index=pad, reduction="sum"')
"""The nats are summed; divide by the number of real tokens."""

SoftmaxTwice = Loss.but("transpose", "softmax(dim=-1).transpose")
"""The logits go through a softmax before cross_entropy, which takes one itself."""


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
"""The memory asks and the target answers, so there is a row per source token and each of them sees
the whole target: queries come from the target, keys and values from the memory."""

TargetAsksItself = (
    Cross.but("key(memory)", "key(x)")
    .but("value(memory)", "value(x)")
    .but(
        "if …\n    scores = …",
        "if source_mask is not None and source_mask.shape[1] == x.shape[1]:\n"
        "    scores = scores.masked_fill(~source_mask[:, None, None, :], -1e9)",
    )
)
"""Keys and values are made from the target, which is self attention without a causal mask; they are
made from the memory."""

ValuesFromTheTarget = Cross.but("value(memory)", "value(x)")
"""Keys come from the memory and values from the target, which fits only if both have one length:
values come from the memory, too."""

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
"""A causal mask is applied, so the first target token sees the first source token only; the source
is there in full, and cross attention has no causal mask."""

SourceMaskMissing = Cross.but("if …\n    scores = …", "")
"""The source mask is not used, so the target attends to padding."""

SourceMaskInverted = Cross.but(
    'hidden = ~source_mask[:, None, None, :]\nscores = scores.masked_fill(hidden, float("-inf"))',
    'scores = scores.masked_fill(source_mask[:, None, None, :], float("-inf"))',
)
"""The mask is read the wrong way round: it is True where attention is allowed, so what is False
gets minus infinity."""

ZerosInsteadOfInfinity = Cross.but(
    "hidden = …\nscores = …", "scores = scores * source_mask[:, None, None, :]"
)
"""Masked scores are set to 0, which the softmax still gives a share; minus infinity gives none."""

MaskBehindTheSoftmax = Cross.but(
    "if …\noutput = …",
    "weights = scores.softmax(dim=-1)\n"
    "if source_mask is not None:\n"
    "    weights = weights * source_mask[:, None, None, :]\n"
    "output = weights @ value",
)
"""The mask is applied behind the softmax, so the weights of what is left do not sum to 1; put minus
infinity into the scores before it."""

QueriesMasked = Cross.but(
    "source_mask[:, None, None, :]", "source_mask[:, None, : x.shape[1], None]"
).but('float("-inf")', "-1e9")
"""The mask is laid along the queries, which silences target tokens; padding lies in the source,
along the keys: the last axis of the scores."""

ScaledByTheWholeWidth = Cross.but("self.d_head**0", "(self.num_heads * self.d_head) ** 0")
"""The scores are divided by the root of d_model; a head compares vectors of width d_head, so the
root of d_head is right."""


class OneHeadOnly(Cross):
    """All features make one head, whatever `num_heads` says; each head has d_model / num_heads of
    them, and a softmax of its own."""

    def forward(self, x, memory, source_mask=None):
        query, key, value = self.query(x), self.key(memory), self.value(memory)
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        if source_mask is not None:
            scores = scores.masked_fill(~source_mask[:, None, :], float("-inf"))
        return self.output(scores.softmax(dim=-1) @ value)


NotScaled = Cross.but("(-2, -1) / self.d_head**0.5", "(-2, -1)")
"""The scores are not divided by the root of d_head."""

SoftmaxOverQueries = Cross.but(
    "if …\noutput = …",
    "if source_mask is not None:\n"
    "    scores = scores.masked_fill(~source_mask[:, None, None, :], -1e9)\n"
    "output = scores.softmax(dim=-2) @ value",
)
"""The softmax runs over the target tokens; each of them shares out its own weight, over the source:
dim=-1."""

HeadsCutAcrossTokens = Cross.but(
    "return x.unflatten(-1, …", "return x.reshape(len(x), self.num_heads, -1, self.d_head)"
)
"""The heads are cut by a reshape to (batch, heads, length, d_head) without a transpose, which mixes
tokens and features: cut the features first, then swap two axes."""

HeadsNotMergedBack = Cross.but("transpose(1, 2).flatten(2)", "reshape(x.shape)")
"""The heads are merged without swapping the axes back, which mixes tokens and heads: transpose
before you flatten."""

HeadsInterleaved = Cross.but(
    "(self.num_heads, self.d_head)).transpose(1, 2", "(self.d_head, self.num_heads)).movedim(-1, 1"
).but("output.transpose(1, 2)", "output.movedim(1, -1)")
"""Head i takes every num_heads-th feature; it takes a piece of d_head features in a row."""

OutputMapForgotten = Cross.but(
    "self.output(output.transpose(1, 2).flatten(2))", "output.transpose(1, 2).flatten(2)"
)
"""What the heads found is returned without the map `output`."""

ResidualAdded = Cross.but("return self", "return x + self")
"""The target is added to what was found; the block does that, the module returns what was found."""


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
"""The source is read anew for every token that is written; it does not change, so read it once,
before the loop."""

NeverStops = Greedy.but("if done.all():\n    break", "")
"""Writing goes on to max_len although all sequences have ended: stop with the last of them."""

ContinuesAfterEos = Greedy.but("newest[done] = pad", "")
"""A sequence that has ended is written on; it gets pad from then on, whatever the model says."""

StopsWithTheFirst = Greedy.but("all()", "any()")
"""Writing stops as soon as one sequence has ended; the others have not."""

WaitsForAllAtOnce = (
    Greedy.but("done = torch.zeros(len(source), dtype=torch.bool)", "")
    .but("newest[done] = pad", "")
    .but("done |= newest == eos\nif done.all():", "if (newest == eos).all():")
)
"""Writing stops only when all sequences write eos in the same step, which sequences of different
lengths never do: remember who has ended."""

LogitsOfTheFirstPlace = Greedy.but("logits[:, -1]", "logits[:, 0]")
"""The token is taken from the logits at position 0, which are about the first token for ever; the
last position is about the next one."""

LogitsOfTheLastButOne = Greedy.but("logits[:, -1]", "logits[:, max(-2, -logits.shape[1])]")
"""The token is taken from the last but one position, which is about a token that is already
written; the last position is about the next one."""

BeginsWithPad = Greedy.but("(len(source), 1), bos", "(len(source), 1), pad")
"""The target begins with pad; it begins with bos, as in training."""

BeginsWithEos = Greedy.but("(len(source), 1), bos", "(len(source), 1), eos")
"""The target begins with eos; it begins with bos, as in training."""

BosReturned = Greedy.but("written[:, 1:]", "written")
"""The answer still has bos in front; return what was written."""

EosCutOff = Greedy.but("written[:, 1:]", "written[:, 1:-1]")
"""The last column is cut off, and with it an eos; it belongs to the answer."""

SourceMaskNotPassed = Greedy.but("memory, source_mask", "memory, None")
"""`decode` does not get the source mask, so cross attention sees padding."""

EncodedWithoutMask = Greedy.but("(source, source_mask)", "(source, None)")
"""`encode` does not get the source mask, so real tokens are mixed with padding before decoding
begins."""

NewestTokenOnly = Greedy.but("written, memory", "written[:, -1:], memory")
"""The model is shown the newest token only; without a cache it needs everything from bos on."""

OneTokenTooMany = Greedy.but("[1] <= max_len", "[1] <= max_len + 1")
"""An answer without end is one token longer than max_len."""

OneTokenTooFew = Greedy.but("[1] <= max_len", "[1] < max_len")
"""bos is counted as one of the max_len tokens, so an answer without end is one token short."""

LeastLikelyToken = Greedy.but("argmax", "argmin")
"""The least likely token is taken (argmin); greedy takes the most likely one."""

FilledUpWithEos = Greedy.but("[done] = pad", "[done] = eos")
"""Sequences that have ended are filled up with eos; fill them up with pad."""

EosOverwritten = Greedy.but(
    "newest[done] = pad…\ndone |= newest == eos",
    "done |= newest == eos\n"
    "newest[done] = pad\n"
    "written = torch.cat([written, newest[:, None]], dim=1)",
)
"""The eos that a sequence writes is overwritten with pad; it belongs to the answer, and pad comes
after it."""

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
"""Each sequence is translated by itself, with calls of its own; the batch goes through the model
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


AllMasked = MaskedTokens.but("inputs[chosen …\ninputs[swapped] = …", "inputs[chosen] = mask_id")
"""Every chosen token becomes the mask; a tenth of them become random words, and a tenth stay."""

LossEverywhere = MaskedTokens.but("masked_fill(~chosen, -100)", "clone()")
"""Every token is a label, so the model is asked for tokens that it can see; label the chosen ones,
-100 elsewhere."""

SpecialTokensChosen = MaskedTokens.but("chosen = …", "chosen = choice < share")
"""Special tokens are chosen like words; tokens below num_special never are."""

FirstWordNeverChosen = MaskedTokens.but("tokens >= num_special", "tokens > num_special")
"""Token num_special is treated as special; it is the first word."""

RandomFromTheWholeVocabulary = MaskedTokens.but("vocab_size - num_special", "vocab_size").but(
    "num_special + (word * number)", "(word * number)"
)
"""Random words are drawn from all ids, special tokens included; words begin at num_special."""

RandomBeyondTheVocabulary = MaskedTokens.but("vocab_size - num_special", "vocab_size")
"""num_special is added to a number from the whole vocabulary, so some ids do not exist; there are
vocab_size - num_special words."""

RandomFromTooLow = MaskedTokens.but("num_special + (word * number)", "(word * number)")
"""Random ids begin at 0, among the special tokens, and miss the last words: add num_special."""

RandomWordRounded = MaskedTokens.but("floor", "round")
"""The random word is rounded to the nearest id, so the first gets half its share, and one id too
many can come out; round down."""

KeptTokensNotAsked = MaskedTokens.but("chosen,", "chosen | (kind >= 0.9),")
"""Chosen tokens that stay as they are have no label; they are asked for like the others, or the
model learns that an unmasked word is always right."""

OnlyMaskedTokensAsked = MaskedTokens.but("~chosen", "inputs != mask_id")
"""Only masked tokens have a label; random and kept ones are asked for as well."""

LabelsAfterReplacing = MaskedTokens.but("labels = tokens", "labels = inputs")
"""The labels are read from the inputs after tokens were replaced, so the model is asked for what it
sees; a label is the original token."""

NeverKept = MaskedTokens.but("(kind >= 0.8) & (kind < 0.9)", "(kind >= 0.8)")
"""A fifth of the chosen tokens become random words and none stays; random is 10 %, from 0.8 to
below 0.9."""

NeverReplaced = MaskedTokens.but("swapped = …\ninputs[swapped] = …", "")
"""No chosen token becomes a random word: from 0.8 to below 0.9 it does."""

EverythingMasked = MaskedTokens.but("chosen & (kind < 0.8)", "kind < 0.8")
"""Tokens that were not chosen are masked as well."""

IgnoredWithZero = MaskedTokens.but("chosen, -100", "chosen, 0")
"""Places that are not asked for have the label 0, which is a token; cross_entropy ignores -100."""

OthersChosen = MaskedTokens.but("choice < share", "choice >= share")
"""The tokens with choice >= share are chosen, 85 % of them instead of 15: choose where choice is
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
"""The given tokens themselves are hidden, so the data stay hidden for ever, and their labels with
them when they come again; change a copy."""


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
"""Every model gets past, wrong ones too: compare the probabilities for the same text, cut in
different places, and `assert` that they agree; a test that returns False rejects nothing."""

SmallChangesPass = CheckSplit.but("(text[:1], text[1:])", "(text[:1], text[1:]).argmax()").but(
    "seen = …\nassert …", "assert predict(text[:cut], text[cut:]).argmax() == expected"
)
"""Models with a prefix that is read both ways get past: the cut moves their probabilities by a few
hundredths or less, and not which token is the most likely. Compare all probabilities, and allow for
rounding only."""

ForgettingPasses = CheckSplit.but("tensor([7, 2, 9, 4, 0, 8, 3, 5, 1, 6])", "tensor([7, 2, 9, 4])")
"""A cache that keeps four tokens gets past: it forgets nothing before the first part has more than
four; use a text of ten or so, and cut it late, too."""

FirstCutMissing = CheckSplit.but("text[:1], text[1:]", "text[:5], text[5:]")
"""One model treats a first part of a single token differently, and gets past: cut behind the first
token, too."""

FewCutsTried = CheckSplit.but(
    "expected = …\n    assert …",
    "expected = predict(text[:-1], text[-1:])\n"
    "seen = predict(text[:-2], text[-2:])\n"
    "assert torch.allclose(seen.double(), expected.double(), atol=1e-5)",
)
"""Some cuts show neither a faint influence nor a first part that is taken for padding, and both get
past: try every cut."""

FaintInfluencePasses = CheckSplit.but(
    "seen = …\nassert …", "assert (predict(text[:cut], text[cut:]) - expected).abs().max() < 0.02"
)
"""A faint influence of the cut gets past: it moves a probability by about a thousandth; allow for
rounding only, which is a thousand times less."""

RoundingForbidden = CheckSplit.but(
    "seen = …\nassert …", "assert torch.equal(predict(text[:cut], text[cut:]), expected)"
)
"""Right models that round differently from cut to cut are rejected: allow a small difference."""

EverythingRejected = (
    CheckSplit.but("text[1:]", "text[1:2]")
    .but("(text)", "(text) - 1")
    .but("text[cut:]", "text[cut : cut + 1]")
)
"""Every model is rejected, right ones too: for those only the cut may not matter, so both parts
together must always be the same text, in the same order."""

WrongWayRound = CheckSplit.but(
    "expected = …\n    assert …",
    "first, other = predict(text[:3], text[3:]), predict(text[:6], text[6:])\n"
    "assert (first - other).abs().max() > 1e-5",
)
"""Right models are rejected, and wrong ones get past: the test must fail where predictions differ,
and pass where they agree."""


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


CausalMaskTurnedOver = OneBlock.but("tril()", "triu()")
"""The causal mask lets each token see what comes after it: rows are those who look, so True belongs
on and below the diagonal."""

DiagonalMissing = OneBlock.but("tril()", "tril(-1)")
"""A token of the causal mask does not see itself; the diagonal is True."""

OneTokenAhead = OneBlock.but("tril()", "tril(1)")
"""The causal mask lets each token see one token ahead; it ends at the diagonal."""

AndForOr = OneBlock.but("causal | in_prefix", "causal & in_prefix")
"""The prefix mask demands that a token lies in the prefix and is not later, so nobody sees what
comes behind the prefix; one of the two is enough."""

PrefixOneTooShort = OneBlock.but(
    "prefix_lens[:, None, None] > torch", "prefix_lens[:, None, None] - 1 > torch"
)
"""The prefix ends one token early: places 0 to prefix_len - 1 belong to it."""

PrefixOneTooLong = OneBlock.but(
    "prefix_lens[:, None, None] > torch", "prefix_lens[:, None, None] >= torch"
)
"""The prefix ends one token late: places 0 to prefix_len - 1 belong to it."""

PrefixAlongTheRows = OneBlock.but("(length)", "(length)[:, None]")
"""The prefix is laid along the rows, so its tokens see everything, the answer too; it is laid along
the columns, the tokens that are seen."""

PrefixSeenByItselfOnly = OneBlock.but(
    "causal | in_prefix", "(in_prefix & in_prefix.mT) | (causal & ~in_prefix & ~in_prefix.mT)"
)
"""Only tokens of the prefix see all of the prefix, and nobody behind it sees anything but itself
and the rest; the rest sees the prefix too."""

PrefixOfTheFirstSequence = OneBlock.but(
    "in_prefix = prefix_lens[:, None, None] > torch.arange(length)",
    "in_prefix = (prefix_lens[:1, None, None] > torch.arange(length)).expand(\n"
    "    len(prefix_lens), -1, -1\n"
    ")",
)
"""All sequences get the prefix of the first one; each has its own length."""

PrefixMaskCausalOnly = OneBlock.but("causal | in_prefix", "causal.expand(len(prefix_lens), -1, -1)")
"""The prefix mask is causal everywhere, the prefix is not read both ways."""

MasksTrueWhereForbidden = (
    OneBlock.but("return both_ways, causal, prefix", "return ~both_ways, ~causal, ~prefix")
    .but(
        "both_ways, causal, prefix = three_masks(x.shape[1], prefix_lens)",
        "allowed = [~mask for mask in three_masks(x.shape[1], prefix_lens)]",
    )
    .but("(both_ways, causal, prefix)", "allowed")
)
"""The masks are True where attention is forbidden; True means allowed."""

SameMaskForAll = OneBlock.but(
    "both_ways, causal, prefix = …", "_, causal, _ = three_masks(x.shape[1], prefix_lens)"
).but("return tuple(block(x, …", "return tuple(block(x, causal, weights) for _ in range(3))")
"""The block is run three times with the same mask."""

OneAfterTheOther = OneBlock.but(
    "both_ways, causal, prefix = …\nreturn …",
    """
    outputs = []
    for mask in three_masks(x.shape[1], prefix_lens):
        x = block(x, mask, weights)
        outputs.append(x)
    return tuple(outputs)
    """,
)
"""Each run takes the output of the last one; all three read the same tokens."""

CausalFirst = OneBlock.but("return both_ways, causal", "return causal, both_ways").but(
    "both_ways, causal, prefix = …\nreturn …",
    "return tuple(block(x, mask, weights) for mask in three_masks(x.shape[1], prefix_lens))",
)
"""The first two are in the wrong order: both ways, causal, prefix."""


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


SharedByTheOthersOnly = Smoothed.but(
    "soft = F.one_hot(targets, vocab_size) * (1 - smoothing) + smoothing / vocab_size",
    "right = F.one_hot(targets, vocab_size) == 1\n"
    "soft = torch.where(right, 1 - smoothing, smoothing / (vocab_size - 1))",
)
"""The smoothing is shared by the vocab_size - 1 wrong tokens; by the rule asked for here, every
token gets smoothing / vocab_size, the right one on top of its 1 - smoothing."""

SharedWithoutPadding = Smoothed.but(
    "soft = F.one_hot(targets, vocab_size) * (1 - smoothing) + smoothing / vocab_size",
    "right = F.one_hot(targets, vocab_size) == 1\n"
    "soft = torch.where(right, 1 - smoothing, smoothing / (vocab_size - 2))\n"
    "soft[..., pad] = 0",
)
"""The smoothing is shared by the vocab_size - 2 tokens that are neither right nor padding; by the
rule asked for here, every token gets smoothing / vocab_size."""

RightTokenLeftOut = Smoothed.but(
    "soft = F.one_hot(targets, vocab_size) * (1 - smoothing) + smoothing / vocab_size",
    "right = F.one_hot(targets, vocab_size) == 1\n"
    "soft = torch.where(right, 1 - smoothing, smoothing / vocab_size)",
)
"""The right token gets 1 - smoothing and nothing of what is shared, so the target does not sum to
1: it gets smoothing / vocab_size on top."""

EachGetsAllOfIt = Smoothed.but(
    "vocab_size = …\nsoft = …",
    "soft = F.one_hot(targets, logits.shape[-1]) * (1 - smoothing) + smoothing",
)
"""Every token gets the whole smoothing; it is divided by vocab_size."""

DivergenceInstead = Smoothed.but(
    "-(soft * log_p)", "(torch.special.xlogy(soft, soft) - soft * log_p)"
)
"""The entropy of the softened target is subtracted, which makes it a divergence that can reach 0;
the cross-entropy is asked for."""

SmoothingForgotten = Smoothed.but(
    "log_p = …\nreturn …",
    "return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad)",
)
"""The targets are not softened at all."""

PaddingCounted = Smoothed.but("nats = …\nreturn …", "return -(soft * log_p).sum(dim=-1).mean()")
"""Padding is counted like any other target: leave it out of the mean."""

PaddingInTheSpread = Smoothed.but(
    "vocab_size = …\nreturn …",
    "nats = F.nll_loss(log_p.flatten(0, 1), targets.flatten(), ignore_index=pad)\n"
    "return (1 - smoothing) * nats - smoothing * log_p.mean()",
)
"""Padding is left out of the usual loss, but not of the part that is shared by the vocabulary;
neither part may count it."""

DividedByAllPlaces = Smoothed.but("nats[targets != pad]", "(nats * (targets != pad))")
"""The sum over real targets is divided by all places, padding included."""

SoftmaxTwice = Smoothed.but("logits, dim", "logits.softmax(dim=-1), dim")
"""The logits go through softmax before log_softmax, which takes one itself."""

StepTakenForTheNumber = Smoothed.but("step + 1", "step").but("n**-0", "max(n, 1) ** -0")
"""`step` is taken for the number of the update, so every rate comes one step late: steps are
counted from 0, updates from 1."""

WarmupExponent = Smoothed.but("warmup_steps**-1", "warmup_steps**-0")
"""The rise is divided by the root of warmup_steps; with the exponent -3/2 it meets the fall at the
end of the warm-up."""

MaximumForMinimum = Smoothed.but("* min", "* max")
"""The larger of the two terms is taken, which starts high and never stops growing: take the smaller
one."""

WidthNotRooted = Smoothed.but(
    "return d_model**-0.5 …", "return min(n**-0.5, n * warmup_steps**-1.5) / d_model"
)
"""The rate is divided by d_model instead of by its root."""

WidthForgotten = Smoothed.but("d_model**-0.5 * min", "min")
"""The rate does not depend on d_model: divide by its root."""

FallsLikeTheNumber = Smoothed.but("n**-0.5", "1 / n")
"""Behind the warm-up the rate falls like 1 / n; it falls like 1 over the root of n."""


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
"""Features are still compared with features, which fits only if there are as many tokens as
features: query @ key.transpose(1, 2) compares tokens with tokens."""

SidesStillSwapped = Mended.but("real = …", "real = source_mask[:, :, None]").but(
    "return x …", "return attend(memory @ cross_q, x @ cross_k, x @ cross_v, everything.mT)"
)
"""The memory still asks and the target answers, so each output sees the whole target: queries come
from the target, keys and values from the memory."""

PaddingStillSeen = Mended.but("cross_v, real", "cross_v, everything")
"""The source's padding is still seen: cross attention needs the source mask."""

OldStreamAsks = (
    Mended.but("everything = torch.ones(x.shape[1], memory.shape[1]) == 1", "")
    .but("x = x + attend", "found = attend")
    .but("return x + attend", "return x + found + attend")
)
"""Cross attention asks with the stream as it was before self attention; it asks with the sum, what
each token found before it included."""

CausalMaskOnTheSource = Mended.but(
    "source_mask[:, None, :]",
    "source_mask[:, None, :] & (torch.ones(x.shape[1], memory.shape[1]).tril() == 1)",
)
"""Cross attention has a causal mask; the source is there in full, only its padding is hidden."""

CausalMaskLost = Mended.but("w_v, past", "w_v, past | True")
"""Self attention has lost its causal mask."""

SoftmaxOverQueries = Mended.but("dim=-1", "dim=-2).nan_to_num(")
"""The softmax runs over those who ask; each of them shares out its own weight: dim=-1."""

NotScaled = Mended.but("math.sqrt(x.shape[-1])", "1.0")
"""The scores are not divided by the root of d_model any more."""

ResidualLost = Mended.but("return x + attend", "return attend")
"""What is found in the source replaces the stream; it is added to it."""

CrossAttentionDropped = Mended.but("return x + attend", "return x + 0 * attend")
"""The source is not asked at all."""


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


ResidualForgotten = Swapped.but("x + merged", "merged")
"""What was found replaces the stream; it has to be added to it."""

ResidualFromTheNorm = Swapped.but("return x", "return read")
"""What was found is added to what asked, behind the norm; it has to be added to the stream."""

NormForgotten = Swapped.but("read = …", "read = x")
"""The stream asks without a norm; in a pre-norm block what asks is normalised first."""

NormBehindTheSum = Swapped.but(
    "read = …\nquery = …", 'query = split(x @ weights["query.weight"].T + weights["query.bias"])'
).but(
    "return x …",
    'x = x + merged @ weights["output.weight"].T + weights["output.bias"]\n'
    'return F.layer_norm(x, x.shape[-1:], weights["gain"], weights["bias"])',
)
"""The norm comes behind the sum, as in a post-norm block; here it comes before the queries, and the
sum stays as it is."""

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
"""The memory goes through the norm of this sub-layer; it comes normalised, and is used as it is."""

GainForgotten = Swapped.but("read = …", 'read = F.layer_norm(x, x.shape[-1:]) + weights["bias"]')
"""The gain of the norm is not applied."""

NormBiasForgotten = Swapped.but('["gain"], weights["bias"]', '["gain"]')
"""The bias of the norm is not added."""

AlwaysFourHeads = Swapped.but("(num_heads, -1)", "(4, -1)")
"""There are always four heads, as this model has; num_heads says how many there are."""

ScaledByTheWholeWidth = Swapped.but("query.shape", "x.shape")
"""The scores are divided by the root of d_model; the model learned with the root of d_head. Almost
all of its dates stay right."""

NotScaled = Swapped.but("query.shape[-1] ** 0.5", "1")
"""The scores are not divided by the root of d_head; the dates stay right, the logits do not."""

PaddingSeen = Swapped.but("scores.masked_fill(~source_mask[:, None, None, :], -math.inf)", "scores")
"""The source's padding is seen; the model has never met it."""

CausalMaskOnTheSource = Swapped.but(
    "source_mask[:, None, None, :], -math.inf",
    "source_mask[:, None, None, :].expand_as(scores).tril(), -1e9",
)
"""Cross attention has a causal mask; the source is there in full."""

ValueBiasForgotten = Swapped.but('T + weights["value.bias"]', "T")
"""The bias of the values is not added: the loss does not show it, the logits do."""

QueryBiasForgotten = Swapped.but('T + weights["query.bias"]', "T")
"""The bias of the queries is not added: the loss does not show it, the logits do."""

OutputMapForgotten = Swapped.but("return x …", "return x + merged")
"""What the heads found is added without the output map."""

MatricesNotTransposed = Swapped.but("].T +", "] +", times=4)
"""The matrices are used as they are kept, (d_out, d_in), and being square they fit: nn.Linear
multiplies with the transpose."""
