"""The named mistakes of chapter 06: what a message can name, and what graders are tested with."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from classroom.answers import Mistake


def block(x, mask, weights):
    read = F.layer_norm(x, x.shape[-1:])
    query, key, value = (read @ weights[name] for name in ("query", "key", "value"))
    found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    x = x + found @ weights["output"]
    return x + F.gelu(F.layer_norm(x, x.shape[-1:]) @ weights["up"]) @ weights["down"]


# 6.1 --------------------------------------------------------------------------------------------


class TableCopied(Mistake, exercise="decoder_only_logits"):
    """The logits come from a copy of the table, so its rows do not learn from being predicted;
    tied weights are one tensor that is used twice."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        x = table[tokens]
        if is_scaled:
            x = x * math.sqrt(table.shape[1])
        x = x + positions[: tokens.shape[1]]
        mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1])) == 1
        for weights in layers:
            x = block(x, mask, weights)
        x = F.layer_norm(x, gain.shape, gain, bias)
        unembedding = table.detach().clone()
        return x @ unembedding.T


class EmbeddingCutOff(Mistake, exercise="decoder_only_logits"):
    """The tokens are looked up in a copy of the table, so its rows do not learn from being read;
    tied weights are one tensor that is used twice."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        x = nn.Embedding.from_pretrained(table.detach())(tokens)
        if is_scaled:
            x = x * math.sqrt(table.shape[1])
        x = x + positions[: tokens.shape[1]]
        mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1])) == 1
        for weights in layers:
            x = block(x, mask, weights)
        x = F.layer_norm(x, gain.shape, gain, bias)
        return x @ table.T


class LogitsSoftmaxed(Mistake, exercise="decoder_only_logits"):
    """A softmax is taken at the end: return the logits, the loss takes the softmax itself."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        x = table[tokens]
        if is_scaled:
            x = x * math.sqrt(table.shape[1])
        x = x + positions[: tokens.shape[1]]
        mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1])) == 1
        for weights in layers:
            x = block(x, mask, weights)
        x = F.layer_norm(x, gain.shape, gain, bias)
        return torch.softmax(x @ table.T, dim=-1)


class FinalNormMissing(Mistake, exercise="decoder_only_logits"):
    """The stream is read without the final norm; a pre-norm stack needs one more norm at its
    end."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        x = table[tokens]
        if is_scaled:
            x = x * math.sqrt(table.shape[1])
        x = x + positions[: tokens.shape[1]]
        mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1])) == 1
        for weights in layers:
            x = block(x, mask, weights)
        return x @ table.T


class FinalNormTwice(Mistake, exercise="decoder_only_logits"):
    """The final norm is applied twice; once, behind the last block."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        x = table[tokens]
        if is_scaled:
            x = x * math.sqrt(table.shape[1])
        x = x + positions[: tokens.shape[1]]
        mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1])) == 1
        for weights in layers:
            x = block(x, mask, weights)
        for _ in range(2):
            x = F.layer_norm(x, gain.shape, gain, bias)
        return x @ table.T


class NormBehindEveryBlock(Mistake, exercise="decoder_only_logits"):
    """The final norm stands behind every block; it belongs behind the last one only, the stream
    between blocks is left alone."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        x = table[tokens]
        if is_scaled:
            x = x * math.sqrt(table.shape[1])
        x = x + positions[: tokens.shape[1]]
        mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1])) == 1
        for weights in layers:
            x = F.layer_norm(block(x, mask, weights), gain.shape, gain, bias)
        return x @ table.T


class NormWithoutGainAndBias(Mistake, exercise="decoder_only_logits"):
    """The final norm has lost its gain and bias."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        x = table[tokens]
        if is_scaled:
            x = x * math.sqrt(table.shape[1])
        x = x + positions[: tokens.shape[1]]
        mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1])) == 1
        for weights in layers:
            x = block(x, mask, weights)
        return F.layer_norm(x, gain.shape) @ table.T


class PositionsForgotten(Mistake, exercise="decoder_only_logits"):
    """The positions are not added to the embeddings."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        x = table[tokens]
        if is_scaled:
            x = x * math.sqrt(table.shape[1])
        mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1])) == 1
        for weights in layers:
            x = block(x, mask, weights)
        x = F.layer_norm(x, gain.shape, gain, bias)
        return x @ table.T


class PositionsFromOne(Mistake, exercise="decoder_only_logits"):
    """The first token gets row 1 of the positions; places are counted from 0."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        x = table[tokens]
        if is_scaled:
            x = x * math.sqrt(table.shape[1])
        x = x + positions[1 : tokens.shape[1] + 1]
        mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1])) == 1
        for weights in layers:
            x = block(x, mask, weights)
        x = F.layer_norm(x, gain.shape, gain, bias)
        return x @ table.T


class PositionsOfTheTokens(Mistake, exercise="decoder_only_logits"):
    """The rows of the positions are looked up by token; they belong to places, first row to the
    first token."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        x = table[tokens]
        if is_scaled:
            x = x * math.sqrt(table.shape[1])
        x = x + positions[tokens]
        mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1])) == 1
        for weights in layers:
            x = block(x, mask, weights)
        x = F.layer_norm(x, gain.shape, gain, bias)
        return x @ table.T


class PositionsInEveryBlock(Mistake, exercise="decoder_only_logits"):
    """The positions are added before every block; they are added once, to the embeddings."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        x = table[tokens]
        if is_scaled:
            x = x * math.sqrt(table.shape[1])
        mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1])) == 1
        for weights in layers:
            x = block(x + positions[: tokens.shape[1]], mask, weights)
        x = F.layer_norm(x, gain.shape, gain, bias)
        return x @ table.T


class UntransposedTable(Mistake, exercise="decoder_only_logits"):
    """The vectors are multiplied by the table as it is, which fits only if there are as many
    tokens as features; the score of a token is a dot product with its row, so transpose it."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        x = table[tokens]
        if is_scaled:
            x = x * math.sqrt(table.shape[1])
        x = x + positions[: tokens.shape[1]]
        mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1])) == 1
        for weights in layers:
            x = block(x, mask, weights)
        x = F.layer_norm(x, gain.shape, gain, bias)
        return x @ table


class PositionsScaledToo(Mistake, exercise="decoder_only_logits"):
    """The positions are multiplied by the root of d_model as well; only the rows of the table
    are, before positions are added."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        x = table[tokens] + positions[: tokens.shape[1]]
        if is_scaled:
            x = x * math.sqrt(table.shape[1])
        mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1])) == 1
        for weights in layers:
            x = block(x, mask, weights)
        x = F.layer_norm(x, gain.shape, gain, bias)
        return x @ table.T


class ScaleIgnored(Mistake, exercise="decoder_only_logits"):
    """`is_scaled` changes nothing: it asks for embeddings times the root of d_model."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        x = table[tokens] + positions[: tokens.shape[1]]
        mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1])) == 1
        for weights in layers:
            x = block(x, mask, weights)
        x = F.layer_norm(x, gain.shape, gain, bias)
        return x @ table.T


class DividedInsteadOfScaled(Mistake, exercise="decoder_only_logits"):
    """The embeddings are divided by the root of d_model; they are multiplied by it."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        x = table[tokens]
        if is_scaled:
            x = x / math.sqrt(table.shape[1])
        x = x + positions[: tokens.shape[1]]
        mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1])) == 1
        for weights in layers:
            x = block(x, mask, weights)
        x = F.layer_norm(x, gain.shape, gain, bias)
        return x @ table.T


class NoCausalMask(Mistake, exercise="decoder_only_logits"):
    """The blocks see the whole sequence, the token that is asked for included; pass a causal
    mask to each."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        x = table[tokens]
        if is_scaled:
            x = x * math.sqrt(table.shape[1])
        x = x + positions[: tokens.shape[1]]
        for weights in layers:
            x = block(x, None, weights)
        x = F.layer_norm(x, gain.shape, gain, bias)
        return x @ table.T


class MaskUpsideDown(Mistake, exercise="decoder_only_logits"):
    """The mask lets each token see itself and what comes after it; True belongs on and below the
    diagonal (tril)."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        x = table[tokens]
        if is_scaled:
            x = x * math.sqrt(table.shape[1])
        x = x + positions[: tokens.shape[1]]
        mask = torch.triu(torch.ones(tokens.shape[1], tokens.shape[1])) == 1
        for weights in layers:
            x = block(x, mask, weights)
        x = F.layer_norm(x, gain.shape, gain, bias)
        return x @ table.T


class FirstBlockAgainAndAgain(Mistake, exercise="decoder_only_logits"):
    """Every block gets the weights of the first; each has its own."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        x = table[tokens]
        if is_scaled:
            x = x * math.sqrt(table.shape[1])
        x = x + positions[: tokens.shape[1]]
        mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1])) == 1
        for _ in layers:
            x = block(x, mask, layers[0])
        x = F.layer_norm(x, gain.shape, gain, bias)
        return x @ table.T


class MaskOfNumbers(Mistake, exercise="decoder_only_logits"):
    """The mask is made of ones and zeros, which are added to the scores and hide nothing; a boolean
    mask, True where attention is allowed, hides what it should."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        x = table[tokens]
        if is_scaled:
            x = x * math.sqrt(table.shape[1])
        x = x + positions[: tokens.shape[1]]
        mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1], dtype=x.dtype))
        for weights in layers:
            x = block(x, mask, weights)
        x = F.layer_norm(x, gain.shape, gain, bias)
        return x @ table.T


class DiagonalMissing(Mistake, exercise="decoder_only_logits"):
    """No token sees itself, so the first sees nothing at all; a causal mask allows a token and all
    before it."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        x = table[tokens]
        if is_scaled:
            x = x * math.sqrt(table.shape[1])
        x = x + positions[: tokens.shape[1]]
        mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1]), diagonal=-1) == 1
        for weights in layers:
            x = block(x, mask, weights)
        x = F.layer_norm(x, gain.shape, gain, bias)
        return x @ table.T


class LastBlockAlone(Mistake, exercise="decoder_only_logits"):
    """Every block reads the embeddings, so that of all blocks only the last one counts; each reads
    what the one before it returned."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        x = table[tokens]
        if is_scaled:
            x = x * math.sqrt(table.shape[1])
        x = x + positions[: tokens.shape[1]]
        mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1])) == 1
        for weights in layers:
            y = block(x, mask, weights)
        x = y
        x = F.layer_norm(x, gain.shape, gain, bias)
        return x @ table.T


class ScaledUnasked(Mistake, exercise="decoder_only_logits"):
    """The rows are scaled even if `is_scaled` is False; then they go in as they are."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        x = table[tokens] * math.sqrt(table.shape[1])
        x = x + positions[: tokens.shape[1]]
        mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1])) == 1
        for weights in layers:
            x = block(x, mask, weights)
        x = F.layer_norm(x, gain.shape, gain, bias)
        return x @ table.T


class LogitsScaledToo(Mistake, exercise="decoder_only_logits"):
    """The table is scaled for the logits as well; the factor belongs to the way in alone."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        x = table[tokens]
        if is_scaled:
            x = x * math.sqrt(table.shape[1])
        x = x + positions[: tokens.shape[1]]
        mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1])) == 1
        for weights in layers:
            x = block(x, mask, weights)
        x = F.layer_norm(x, gain.shape, gain, bias)
        return x @ table.T * (math.sqrt(table.shape[1]) if is_scaled else 1)


# 6.2 --------------------------------------------------------------------------------------------


class NotShifted(Mistake, exercise="shifted_loss"):
    """The model is shown the very tokens that it is asked for: move them one place to the right,
    with bos in front."""

    def shifted_loss(model, targets, bos, pad):
        logits = model(targets)
        return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad)


class ShiftedTwice(Mistake, exercise="shifted_loss"):
    """The input is shifted, and then logits and targets are moved against each other once more,
    so each token is predicted two places ahead: one shift is enough."""

    def shifted_loss(model, targets, bos, pad):
        first = torch.full((len(targets), 1), bos)
        logits = model(torch.cat([first, targets[:, :-1]], dim=1))
        logits, targets = logits[:, :-1], targets[:, 1:]
        return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad)


class ShiftedBack(Mistake, exercise="shifted_loss"):
    """The input and the targets are both shifted, which cancels: each place is asked for the
    token that it reads."""

    def shifted_loss(model, targets, bos, pad):
        first = torch.full((len(targets), 1), bos)
        inputs = torch.cat([first, targets[:, :-1]], dim=1)
        logits = model(inputs)
        return F.cross_entropy(logits.transpose(1, 2), inputs, ignore_index=pad)


class ShiftedLeft(Mistake, exercise="shifted_loss"):
    """The input is moved to the left, so the model is shown what comes after and asked for what
    came before: move it to the right."""

    def shifted_loss(model, targets, bos, pad):
        last = torch.full((len(targets), 1), pad)
        logits = model(torch.cat([targets[:, 1:], last], dim=1))
        return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad)


class FirstTokenNeverAsked(Mistake, exercise="shifted_loss"):
    """Without bos nothing stands before the first token, and it is never predicted: the model
    will not know how to begin."""

    def shifted_loss(model, targets, bos, pad):
        logits = model(targets[:, :-1])
        return F.cross_entropy(logits.transpose(1, 2), targets[:, 1:], ignore_index=pad)


class LastTokenNeverAsked(Mistake, exercise="shifted_loss"):
    """The last place is dropped from the loss as well, so the model is not asked for the end of
    a full row; the input has as many places as the targets, and all answer."""

    def shifted_loss(model, targets, bos, pad):
        first = torch.full((len(targets), 1), bos)
        logits = model(torch.cat([first, targets[:, :-1]], dim=1))
        nats = F.cross_entropy(
            logits[:, :-1].transpose(1, 2), targets[:, :-1], ignore_index=pad, reduction="sum"
        )
        return nats / (targets[:, :-1] != pad).sum()


class RolledAround(Mistake, exercise="shifted_loss"):
    """roll puts the last token in front, where bos belongs."""

    def shifted_loss(model, targets, bos, pad):
        logits = model(targets.roll(1, dims=1))
        return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad)


class BeginsWithPad(Mistake, exercise="shifted_loss"):
    """The shifted input begins with pad; it begins with bos."""

    def shifted_loss(model, targets, bos, pad):
        logits = model(F.pad(targets[:, :-1], (1, 0), value=pad))
        return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad)


class PaddingCounted(Mistake, exercise="shifted_loss"):
    """Padding is asked for like any other token: leave it out of the mean."""

    def shifted_loss(model, targets, bos, pad):
        first = torch.full((len(targets), 1), bos)
        logits = model(torch.cat([first, targets[:, :-1]], dim=1))
        return F.cross_entropy(logits.transpose(1, 2), targets)


class PaddingSoughtInTheInput(Mistake, exercise="shifted_loss"):
    """What counts as padding is read off the shifted input, so behind each eos one pad is asked for;
    leave out the places whose *target* is pad."""

    def shifted_loss(model, targets, bos, pad):
        first = torch.full((len(targets), 1), bos)
        tokens = torch.cat([first, targets[:, :-1]], dim=1)
        nats = F.cross_entropy(model(tokens).transpose(1, 2), targets, reduction="none")
        return nats[tokens != pad].mean()


class DividedByAllPlaces(Mistake, exercise="shifted_loss"):
    """The loss of padding is left out, but the sum is divided by all places, padding included:
    divide by the number of real tokens."""

    def shifted_loss(model, targets, bos, pad):
        first = torch.full((len(targets), 1), bos)
        logits = model(torch.cat([first, targets[:, :-1]], dim=1))
        nats = F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad, reduction="none")
        return nats.mean()


class MeanOfMeans(Mistake, exercise="shifted_loss"):
    """The mean of each sequence is taken first, so tokens of short sequences weigh more; take one
    mean over all real tokens of the batch."""

    def shifted_loss(model, targets, bos, pad):
        first = torch.full((len(targets), 1), bos)
        logits = model(torch.cat([first, targets[:, :-1]], dim=1))
        nats = F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad, reduction="none")
        return (nats.sum(dim=1) / (targets != pad).sum(dim=1)).mean()


class SumInsteadOfMean(Mistake, exercise="shifted_loss"):
    """The nats are summed; divide by the number of real tokens."""

    def shifted_loss(model, targets, bos, pad):
        first = torch.full((len(targets), 1), bos)
        logits = model(torch.cat([first, targets[:, :-1]], dim=1))
        return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad, reduction="sum")


class SoftmaxTwice(Mistake, exercise="shifted_loss"):
    """The logits go through a softmax before cross_entropy, which takes one itself."""

    def shifted_loss(model, targets, bos, pad):
        first = torch.full((len(targets), 1), bos)
        logits = model(torch.cat([first, targets[:, :-1]], dim=1))
        return F.cross_entropy(logits.softmax(dim=-1).transpose(1, 2), targets, ignore_index=pad)


# 6.3 --------------------------------------------------------------------------------------------


class ArgumentsSwapped(Mistake, exercise="CrossAttention"):
    """The memory asks and the target answers, so there is a row per source token and each of
    them sees the whole target: queries come from the target, keys and values from the memory."""

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
            query = self.split(self.query(memory))
            key = self.split(self.key(x))
            value = self.split(self.value(x))
            scores = query @ key.transpose(-2, -1) / self.d_head**0.5
            if source_mask is not None:
                scores = scores.masked_fill(~source_mask[:, None, :, None], -1e9)
            output = scores.softmax(dim=-1) @ value
            return self.output(output.transpose(1, 2).flatten(2))


class TargetAsksItself(Mistake, exercise="CrossAttention"):
    """Keys and values are made from the target, which is self attention without a causal mask;
    they are made from the memory."""

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
            key = self.split(self.key(x))
            value = self.split(self.value(x))
            scores = query @ key.transpose(-2, -1) / self.d_head**0.5
            if source_mask is not None and source_mask.shape[1] == x.shape[1]:
                scores = scores.masked_fill(~source_mask[:, None, None, :], -1e9)
            output = scores.softmax(dim=-1) @ value
            return self.output(output.transpose(1, 2).flatten(2))


class ValuesFromTheTarget(Mistake, exercise="CrossAttention"):
    """Keys come from the memory and values from the target, which fits only if both have one
    length: values come from the memory, too."""

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
            value = self.split(self.value(x))
            scores = query @ key.transpose(-2, -1) / self.d_head**0.5
            if source_mask is not None:
                hidden = ~source_mask[:, None, None, :]
                scores = scores.masked_fill(hidden, float("-inf"))
            output = scores.softmax(dim=-1) @ value
            return self.output(output.transpose(1, 2).flatten(2))


class CausalMaskApplied(Mistake, exercise="CrossAttention"):
    """A causal mask is applied, so the first target token sees the first source token only; the
    source is there in full, and cross attention has no causal mask."""

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
            past = torch.ones(x.shape[1], memory.shape[1]).tril() == 1
            scores = scores.masked_fill(~past, float("-inf"))
            if source_mask is not None:
                hidden = ~source_mask[:, None, None, :]
                scores = scores.masked_fill(hidden, -1e9)
            output = scores.softmax(dim=-1) @ value
            return self.output(output.transpose(1, 2).flatten(2))


class SourceMaskMissing(Mistake, exercise="CrossAttention"):
    """The source mask is not used, so the target attends to padding."""

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
            # all of the source is read
            output = scores.softmax(dim=-1) @ value
            return self.output(output.transpose(1, 2).flatten(2))


class SourceMaskInverted(Mistake, exercise="CrossAttention"):
    """The mask is read the wrong way round: it is True where attention is allowed, so what is
    False gets minus infinity."""

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
                scores = scores.masked_fill(source_mask[:, None, None, :], float("-inf"))
            output = scores.softmax(dim=-1) @ value
            return self.output(output.transpose(1, 2).flatten(2))


class ZerosInsteadOfInfinity(Mistake, exercise="CrossAttention"):
    """Masked scores are set to 0, which the softmax still gives a share; minus infinity gives
    none."""

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
                scores = scores * source_mask[:, None, None, :]
            output = scores.softmax(dim=-1) @ value
            return self.output(output.transpose(1, 2).flatten(2))


class MaskBehindTheSoftmax(Mistake, exercise="CrossAttention"):
    """The mask is applied behind the softmax, so the weights of what is left do not sum to 1; put
    minus infinity into the scores before it."""

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
            weights = scores.softmax(dim=-1)
            if source_mask is not None:
                weights = weights * source_mask[:, None, None, :]
            output = weights @ value
            return self.output(output.transpose(1, 2).flatten(2))


class QueriesMasked(Mistake, exercise="CrossAttention"):
    """The mask is laid along the queries, which silences target tokens; padding lies in the
    source, along the keys: the last axis of the scores."""

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
                hidden = ~source_mask[:, None, : x.shape[1], None]
                scores = scores.masked_fill(hidden, -1e9)
            output = scores.softmax(dim=-1) @ value
            return self.output(output.transpose(1, 2).flatten(2))


class ScaledByTheWholeWidth(Mistake, exercise="CrossAttention"):
    """The scores are divided by the root of d_model; a head compares vectors of width d_head, so
    the root of d_head is right."""

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
            scores = query @ key.transpose(-2, -1) / (self.num_heads * self.d_head) ** 0.5
            if source_mask is not None:
                hidden = ~source_mask[:, None, None, :]
                scores = scores.masked_fill(hidden, float("-inf"))
            output = scores.softmax(dim=-1) @ value
            return self.output(output.transpose(1, 2).flatten(2))


class OneHeadOnly(Mistake, exercise="CrossAttention"):
    """All features make one head, whatever `num_heads` says; each head has d_model / num_heads of
    them, and a softmax of its own."""

    class CrossAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.query = nn.Linear(d_model, d_model)
            self.key = nn.Linear(d_model, d_model)
            self.value = nn.Linear(d_model, d_model)
            self.output = nn.Linear(d_model, d_model)

        def forward(self, x, memory, source_mask=None):
            query, key, value = self.query(x), self.key(memory), self.value(memory)
            scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
            if source_mask is not None:
                scores = scores.masked_fill(~source_mask[:, None, :], float("-inf"))
            return self.output(scores.softmax(dim=-1) @ value)


class NotScaled(Mistake, exercise="CrossAttention"):
    """The scores are not divided by the root of d_head."""

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
            scores = query @ key.transpose(-2, -1)
            if source_mask is not None:
                hidden = ~source_mask[:, None, None, :]
                scores = scores.masked_fill(hidden, float("-inf"))
            output = scores.softmax(dim=-1) @ value
            return self.output(output.transpose(1, 2).flatten(2))


class SoftmaxOverQueries(Mistake, exercise="CrossAttention"):
    """The softmax runs over the target tokens; each of them shares out its own weight, over the
    source: dim=-1."""

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
                scores = scores.masked_fill(~source_mask[:, None, None, :], -1e9)
            output = scores.softmax(dim=-2) @ value
            return self.output(output.transpose(1, 2).flatten(2))


class HeadsCutAcrossTokens(Mistake, exercise="CrossAttention"):
    """The heads are cut by a reshape to (batch, heads, length, d_head) without a transpose, which
    mixes tokens and features: cut the features first, then swap two axes."""

    class CrossAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.num_heads, self.d_head = num_heads, d_model // num_heads
            self.query = nn.Linear(d_model, d_model)
            self.key = nn.Linear(d_model, d_model)
            self.value = nn.Linear(d_model, d_model)
            self.output = nn.Linear(d_model, d_model)

        def split(self, x):
            return x.reshape(len(x), self.num_heads, -1, self.d_head)

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


class HeadsNotMergedBack(Mistake, exercise="CrossAttention"):
    """The heads are merged without swapping the axes back, which mixes tokens and heads:
    transpose before you flatten."""

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
            return self.output(output.reshape(x.shape))


class HeadsInterleaved(Mistake, exercise="CrossAttention"):
    """Head i takes every num_heads-th feature; it takes a piece of d_head features in a row."""

    class CrossAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.num_heads, self.d_head = num_heads, d_model // num_heads
            self.query = nn.Linear(d_model, d_model)
            self.key = nn.Linear(d_model, d_model)
            self.value = nn.Linear(d_model, d_model)
            self.output = nn.Linear(d_model, d_model)

        def split(self, x):
            return x.unflatten(-1, (self.d_head, self.num_heads)).movedim(-1, 1)

        def forward(self, x, memory, source_mask=None):
            query = self.split(self.query(x))
            key = self.split(self.key(memory))
            value = self.split(self.value(memory))
            scores = query @ key.transpose(-2, -1) / self.d_head**0.5
            if source_mask is not None:
                hidden = ~source_mask[:, None, None, :]
                scores = scores.masked_fill(hidden, float("-inf"))
            output = scores.softmax(dim=-1) @ value
            return self.output(output.movedim(1, -1).flatten(2))


class OutputMapForgotten(Mistake, exercise="CrossAttention"):
    """What the heads found is returned without the map `output`."""

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
            return output.transpose(1, 2).flatten(2)


class ResidualAdded(Mistake, exercise="CrossAttention"):
    """The target is added to what was found; the block does that, the module returns what was
    found."""

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
            return x + self.output(output.transpose(1, 2).flatten(2))


# 6.4 --------------------------------------------------------------------------------------------


class EncoderInTheLoop(Mistake, exercise="greedy_translation"):
    """The source is read anew for every token that is written; it does not change, so read it once,
    before the loop."""

    def greedy_translation(encode, decode, source, source_mask, bos, eos, pad, max_len):
        written = torch.full((len(source), 1), bos)
        done = torch.zeros(len(source), dtype=torch.bool)
        while written.shape[1] <= max_len:
            memory = encode(source, source_mask)
            logits = decode(written, memory, source_mask)
            newest = logits[:, -1].argmax(dim=-1)
            newest[done] = pad
            written = torch.cat([written, newest[:, None]], dim=1)
            done |= newest == eos
            if done.all():
                break
        return written[:, 1:]


class NeverStops(Mistake, exercise="greedy_translation"):
    """Writing goes on to max_len although all sequences have ended: stop with the last of them."""

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
        return written[:, 1:]


class ContinuesAfterEos(Mistake, exercise="greedy_translation"):
    """A sequence that has ended is written on; it gets pad from then on, whatever the model says."""

    def greedy_translation(encode, decode, source, source_mask, bos, eos, pad, max_len):
        memory = encode(source, source_mask)
        written = torch.full((len(source), 1), bos)
        done = torch.zeros(len(source), dtype=torch.bool)
        while written.shape[1] <= max_len:
            logits = decode(written, memory, source_mask)
            newest = logits[:, -1].argmax(dim=-1)
            written = torch.cat([written, newest[:, None]], dim=1)
            done |= newest == eos
            if done.all():
                break
        return written[:, 1:]


class StopsWithTheFirst(Mistake, exercise="greedy_translation"):
    """Writing stops as soon as one sequence has ended; the others have not."""

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
            if done.any():
                break
        return written[:, 1:]


class WaitsForAllAtOnce(Mistake, exercise="greedy_translation"):
    """Writing stops only when all sequences write eos in the same step, which sequences of different
    lengths never do: remember who has ended."""

    def greedy_translation(encode, decode, source, source_mask, bos, eos, pad, max_len):
        memory = encode(source, source_mask)
        written = torch.full((len(source), 1), bos)
        while written.shape[1] <= max_len:
            logits = decode(written, memory, source_mask)
            newest = logits[:, -1].argmax(dim=-1)
            written = torch.cat([written, newest[:, None]], dim=1)
            if (newest == eos).all():
                break
        return written[:, 1:]


class LogitsOfTheFirstPlace(Mistake, exercise="greedy_translation"):
    """The token is taken from the logits at position 0, which are about the first token for ever; the
    last position is about the next one."""

    def greedy_translation(encode, decode, source, source_mask, bos, eos, pad, max_len):
        memory = encode(source, source_mask)
        written = torch.full((len(source), 1), bos)
        done = torch.zeros(len(source), dtype=torch.bool)
        while written.shape[1] <= max_len:
            logits = decode(written, memory, source_mask)
            newest = logits[:, 0].argmax(dim=-1)
            newest[done] = pad
            written = torch.cat([written, newest[:, None]], dim=1)
            done |= newest == eos
            if done.all():
                break
        return written[:, 1:]


class LogitsOfTheLastButOne(Mistake, exercise="greedy_translation"):
    """The token is taken from the last but one position, which is about a token that is already
    written; the last position is about the next one."""

    def greedy_translation(encode, decode, source, source_mask, bos, eos, pad, max_len):
        memory = encode(source, source_mask)
        written = torch.full((len(source), 1), bos)
        done = torch.zeros(len(source), dtype=torch.bool)
        while written.shape[1] <= max_len:
            logits = decode(written, memory, source_mask)
            newest = logits[:, max(-2, -logits.shape[1])].argmax(dim=-1)
            newest[done] = pad
            written = torch.cat([written, newest[:, None]], dim=1)
            done |= newest == eos
            if done.all():
                break
        return written[:, 1:]


class BeginsWithPad(Mistake, exercise="greedy_translation"):
    """The target begins with pad; it begins with bos, as in training."""

    def greedy_translation(encode, decode, source, source_mask, bos, eos, pad, max_len):
        memory = encode(source, source_mask)
        written = torch.full((len(source), 1), pad)
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


class BeginsWithEos(Mistake, exercise="greedy_translation"):
    """The target begins with eos; it begins with bos, as in training."""

    def greedy_translation(encode, decode, source, source_mask, bos, eos, pad, max_len):
        memory = encode(source, source_mask)
        written = torch.full((len(source), 1), eos)
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


class BosReturned(Mistake, exercise="greedy_translation"):
    """The answer still has bos in front; return what was written."""

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
        return written


class EosCutOff(Mistake, exercise="greedy_translation"):
    """The last column is cut off, and with it an eos; it belongs to the answer."""

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
        return written[:, 1:-1]


class SourceMaskNotPassed(Mistake, exercise="greedy_translation"):
    """`decode` does not get the source mask, so cross attention sees padding."""

    def greedy_translation(encode, decode, source, source_mask, bos, eos, pad, max_len):
        memory = encode(source, source_mask)
        written = torch.full((len(source), 1), bos)
        done = torch.zeros(len(source), dtype=torch.bool)
        while written.shape[1] <= max_len:
            logits = decode(written, memory, None)
            newest = logits[:, -1].argmax(dim=-1)
            newest[done] = pad
            written = torch.cat([written, newest[:, None]], dim=1)
            done |= newest == eos
            if done.all():
                break
        return written[:, 1:]


class EncodedWithoutMask(Mistake, exercise="greedy_translation"):
    """`encode` does not get the source mask, so real tokens are mixed with padding before decoding
    begins."""

    def greedy_translation(encode, decode, source, source_mask, bos, eos, pad, max_len):
        memory = encode(source, None)
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


class NewestTokenOnly(Mistake, exercise="greedy_translation"):
    """The model is shown the newest token only; without a cache it needs everything from bos on."""

    def greedy_translation(encode, decode, source, source_mask, bos, eos, pad, max_len):
        memory = encode(source, source_mask)
        written = torch.full((len(source), 1), bos)
        done = torch.zeros(len(source), dtype=torch.bool)
        while written.shape[1] <= max_len:
            logits = decode(written[:, -1:], memory, source_mask)
            newest = logits[:, -1].argmax(dim=-1)
            newest[done] = pad
            written = torch.cat([written, newest[:, None]], dim=1)
            done |= newest == eos
            if done.all():
                break
        return written[:, 1:]


class OneTokenTooMany(Mistake, exercise="greedy_translation"):
    """An answer without end is one token longer than max_len."""

    def greedy_translation(encode, decode, source, source_mask, bos, eos, pad, max_len):
        memory = encode(source, source_mask)
        written = torch.full((len(source), 1), bos)
        done = torch.zeros(len(source), dtype=torch.bool)
        while written.shape[1] <= max_len + 1:
            logits = decode(written, memory, source_mask)
            newest = logits[:, -1].argmax(dim=-1)
            newest[done] = pad
            written = torch.cat([written, newest[:, None]], dim=1)
            done |= newest == eos
            if done.all():
                break
        return written[:, 1:]


class OneTokenTooFew(Mistake, exercise="greedy_translation"):
    """bos is counted as one of the max_len tokens, so an answer without end is one token short."""

    def greedy_translation(encode, decode, source, source_mask, bos, eos, pad, max_len):
        memory = encode(source, source_mask)
        written = torch.full((len(source), 1), bos)
        done = torch.zeros(len(source), dtype=torch.bool)
        while written.shape[1] < max_len:
            logits = decode(written, memory, source_mask)
            newest = logits[:, -1].argmax(dim=-1)
            newest[done] = pad
            written = torch.cat([written, newest[:, None]], dim=1)
            done |= newest == eos
            if done.all():
                break
        return written[:, 1:]


class LeastLikelyToken(Mistake, exercise="greedy_translation"):
    """The least likely token is taken (argmin); greedy takes the most likely one."""

    def greedy_translation(encode, decode, source, source_mask, bos, eos, pad, max_len):
        memory = encode(source, source_mask)
        written = torch.full((len(source), 1), bos)
        done = torch.zeros(len(source), dtype=torch.bool)
        while written.shape[1] <= max_len:
            logits = decode(written, memory, source_mask)
            newest = logits[:, -1].argmin(dim=-1)
            newest[done] = pad
            written = torch.cat([written, newest[:, None]], dim=1)
            done |= newest == eos
            if done.all():
                break
        return written[:, 1:]


class FilledUpWithEos(Mistake, exercise="greedy_translation"):
    """Sequences that have ended are filled up with eos; fill them up with pad."""

    def greedy_translation(encode, decode, source, source_mask, bos, eos, pad, max_len):
        memory = encode(source, source_mask)
        written = torch.full((len(source), 1), bos)
        done = torch.zeros(len(source), dtype=torch.bool)
        while written.shape[1] <= max_len:
            logits = decode(written, memory, source_mask)
            newest = logits[:, -1].argmax(dim=-1)
            newest[done] = eos
            written = torch.cat([written, newest[:, None]], dim=1)
            done |= newest == eos
            if done.all():
                break
        return written[:, 1:]


class EosOverwritten(Mistake, exercise="greedy_translation"):
    """The eos that a sequence writes is overwritten with pad; it belongs to the answer, and pad comes
    after it."""

    def greedy_translation(encode, decode, source, source_mask, bos, eos, pad, max_len):
        memory = encode(source, source_mask)
        written = torch.full((len(source), 1), bos)
        done = torch.zeros(len(source), dtype=torch.bool)
        while written.shape[1] <= max_len:
            logits = decode(written, memory, source_mask)
            newest = logits[:, -1].argmax(dim=-1)
            done |= newest == eos
            newest[done] = pad
            written = torch.cat([written, newest[:, None]], dim=1)
            if done.all():
                break
        return written[:, 1:]


class SequenceBySequence(Mistake, exercise="greedy_translation"):
    """Each sequence is translated by itself, with calls of its own; the batch goes through the model
    together."""

    def greedy_translation(encode, decode, source, source_mask, bos, eos, pad, max_len):
        answers = []
        for row, mask in zip(source.split(1), source_mask.split(1), strict=True):
            memory, written = encode(row, mask), [bos]
            while len(written) <= max_len and written[-1] != eos:
                logits = decode(torch.tensor([written]), memory, mask)
                written.append(int(logits[0, -1].argmax()))
            answers.append(torch.tensor(written[1:]))
        return nn.utils.rnn.pad_sequence(answers, batch_first=True, padding_value=pad)


# 6.5 --------------------------------------------------------------------------------------------


class AllMasked(Mistake, exercise="masked_tokens"):
    """Every chosen token becomes the mask; a tenth of them become random words, and a tenth stay."""

    def masked_tokens(tokens, choice, kind, word, num_special, mask_id, vocab_size, share=0.15):
        chosen = (choice < share) & (tokens >= num_special)
        number = vocab_size - num_special
        random_words = num_special + (word * number).floor().long()
        inputs = tokens.clone()
        inputs[chosen] = mask_id
        labels = tokens.masked_fill(~chosen, -100)
        return inputs, labels


class LossEverywhere(Mistake, exercise="masked_tokens"):
    """Every token is a label, so the model is asked for tokens that it can see; label the chosen ones,
    -100 elsewhere."""

    def masked_tokens(tokens, choice, kind, word, num_special, mask_id, vocab_size, share=0.15):
        chosen = (choice < share) & (tokens >= num_special)
        number = vocab_size - num_special
        random_words = num_special + (word * number).floor().long()
        inputs = tokens.clone()
        inputs[chosen & (kind < 0.8)] = mask_id
        swapped = chosen & (kind >= 0.8) & (kind < 0.9)
        inputs[swapped] = random_words[swapped]
        labels = tokens.clone()
        return inputs, labels


class SpecialTokensChosen(Mistake, exercise="masked_tokens"):
    """Special tokens are chosen like words; tokens below num_special never are."""

    def masked_tokens(tokens, choice, kind, word, num_special, mask_id, vocab_size, share=0.15):
        chosen = choice < share
        number = vocab_size - num_special
        random_words = num_special + (word * number).floor().long()
        inputs = tokens.clone()
        inputs[chosen & (kind < 0.8)] = mask_id
        swapped = chosen & (kind >= 0.8) & (kind < 0.9)
        inputs[swapped] = random_words[swapped]
        labels = tokens.masked_fill(~chosen, -100)
        return inputs, labels


class FirstWordNeverChosen(Mistake, exercise="masked_tokens"):
    """Token num_special is treated as special; it is the first word."""

    def masked_tokens(tokens, choice, kind, word, num_special, mask_id, vocab_size, share=0.15):
        chosen = (choice < share) & (tokens > num_special)
        number = vocab_size - num_special
        random_words = num_special + (word * number).floor().long()
        inputs = tokens.clone()
        inputs[chosen & (kind < 0.8)] = mask_id
        swapped = chosen & (kind >= 0.8) & (kind < 0.9)
        inputs[swapped] = random_words[swapped]
        labels = tokens.masked_fill(~chosen, -100)
        return inputs, labels


class RandomFromTheWholeVocabulary(Mistake, exercise="masked_tokens"):
    """Random words are drawn from all ids, special tokens included; words begin at num_special."""

    def masked_tokens(tokens, choice, kind, word, num_special, mask_id, vocab_size, share=0.15):
        chosen = (choice < share) & (tokens >= num_special)
        number = vocab_size
        random_words = (word * number).floor().long()
        inputs = tokens.clone()
        inputs[chosen & (kind < 0.8)] = mask_id
        swapped = chosen & (kind >= 0.8) & (kind < 0.9)
        inputs[swapped] = random_words[swapped]
        labels = tokens.masked_fill(~chosen, -100)
        return inputs, labels


class RandomBeyondTheVocabulary(Mistake, exercise="masked_tokens"):
    """num_special is added to a number from the whole vocabulary, so some ids do not exist; there are
    vocab_size - num_special words."""

    def masked_tokens(tokens, choice, kind, word, num_special, mask_id, vocab_size, share=0.15):
        chosen = (choice < share) & (tokens >= num_special)
        number = vocab_size
        random_words = num_special + (word * number).floor().long()
        inputs = tokens.clone()
        inputs[chosen & (kind < 0.8)] = mask_id
        swapped = chosen & (kind >= 0.8) & (kind < 0.9)
        inputs[swapped] = random_words[swapped]
        labels = tokens.masked_fill(~chosen, -100)
        return inputs, labels


class RandomFromTooLow(Mistake, exercise="masked_tokens"):
    """Random ids begin at 0, among the special tokens, and miss the last words: add num_special."""

    def masked_tokens(tokens, choice, kind, word, num_special, mask_id, vocab_size, share=0.15):
        chosen = (choice < share) & (tokens >= num_special)
        number = vocab_size - num_special
        random_words = (word * number).floor().long()
        inputs = tokens.clone()
        inputs[chosen & (kind < 0.8)] = mask_id
        swapped = chosen & (kind >= 0.8) & (kind < 0.9)
        inputs[swapped] = random_words[swapped]
        labels = tokens.masked_fill(~chosen, -100)
        return inputs, labels


class RandomWordRounded(Mistake, exercise="masked_tokens"):
    """The random word is rounded to the nearest id, so the first gets half its share, and one id too
    many can come out; round down."""

    def masked_tokens(tokens, choice, kind, word, num_special, mask_id, vocab_size, share=0.15):
        chosen = (choice < share) & (tokens >= num_special)
        number = vocab_size - num_special
        random_words = num_special + (word * number).round().long()
        inputs = tokens.clone()
        inputs[chosen & (kind < 0.8)] = mask_id
        swapped = chosen & (kind >= 0.8) & (kind < 0.9)
        inputs[swapped] = random_words[swapped]
        labels = tokens.masked_fill(~chosen, -100)
        return inputs, labels


class KeptTokensNotAsked(Mistake, exercise="masked_tokens"):
    """Chosen tokens that stay as they are have no label; they are asked for like the others, or the
    model learns that an unmasked word is always right."""

    def masked_tokens(tokens, choice, kind, word, num_special, mask_id, vocab_size, share=0.15):
        chosen = (choice < share) & (tokens >= num_special)
        number = vocab_size - num_special
        random_words = num_special + (word * number).floor().long()
        inputs = tokens.clone()
        inputs[chosen & (kind < 0.8)] = mask_id
        swapped = chosen & (kind >= 0.8) & (kind < 0.9)
        inputs[swapped] = random_words[swapped]
        labels = tokens.masked_fill(~chosen | (kind >= 0.9), -100)
        return inputs, labels


class OnlyMaskedTokensAsked(Mistake, exercise="masked_tokens"):
    """Only masked tokens have a label; random and kept ones are asked for as well."""

    def masked_tokens(tokens, choice, kind, word, num_special, mask_id, vocab_size, share=0.15):
        chosen = (choice < share) & (tokens >= num_special)
        number = vocab_size - num_special
        random_words = num_special + (word * number).floor().long()
        inputs = tokens.clone()
        inputs[chosen & (kind < 0.8)] = mask_id
        swapped = chosen & (kind >= 0.8) & (kind < 0.9)
        inputs[swapped] = random_words[swapped]
        labels = tokens.masked_fill(inputs != mask_id, -100)
        return inputs, labels


class LabelsAfterReplacing(Mistake, exercise="masked_tokens"):
    """The labels are read from the inputs after tokens were replaced, so the model is asked for what it
    sees; a label is the original token."""

    def masked_tokens(tokens, choice, kind, word, num_special, mask_id, vocab_size, share=0.15):
        chosen = (choice < share) & (tokens >= num_special)
        number = vocab_size - num_special
        random_words = num_special + (word * number).floor().long()
        inputs = tokens.clone()
        inputs[chosen & (kind < 0.8)] = mask_id
        swapped = chosen & (kind >= 0.8) & (kind < 0.9)
        inputs[swapped] = random_words[swapped]
        labels = inputs.masked_fill(~chosen, -100)
        return inputs, labels


class NeverKept(Mistake, exercise="masked_tokens"):
    """A fifth of the chosen tokens become random words and none stays; random is 10 %, from 0.8 to
    below 0.9."""

    def masked_tokens(tokens, choice, kind, word, num_special, mask_id, vocab_size, share=0.15):
        chosen = (choice < share) & (tokens >= num_special)
        number = vocab_size - num_special
        random_words = num_special + (word * number).floor().long()
        inputs = tokens.clone()
        inputs[chosen & (kind < 0.8)] = mask_id
        swapped = chosen & (kind >= 0.8)
        inputs[swapped] = random_words[swapped]
        labels = tokens.masked_fill(~chosen, -100)
        return inputs, labels


class NeverReplaced(Mistake, exercise="masked_tokens"):
    """No chosen token becomes a random word: from 0.8 to below 0.9 it does."""

    def masked_tokens(tokens, choice, kind, word, num_special, mask_id, vocab_size, share=0.15):
        chosen = (choice < share) & (tokens >= num_special)
        number = vocab_size - num_special
        random_words = num_special + (word * number).floor().long()
        inputs = tokens.clone()
        inputs[chosen & (kind < 0.8)] = mask_id
        labels = tokens.masked_fill(~chosen, -100)
        return inputs, labels


class EverythingMasked(Mistake, exercise="masked_tokens"):
    """Tokens that were not chosen are masked as well."""

    def masked_tokens(tokens, choice, kind, word, num_special, mask_id, vocab_size, share=0.15):
        chosen = (choice < share) & (tokens >= num_special)
        number = vocab_size - num_special
        random_words = num_special + (word * number).floor().long()
        inputs = tokens.clone()
        inputs[kind < 0.8] = mask_id
        swapped = chosen & (kind >= 0.8) & (kind < 0.9)
        inputs[swapped] = random_words[swapped]
        labels = tokens.masked_fill(~chosen, -100)
        return inputs, labels


class IgnoredWithZero(Mistake, exercise="masked_tokens"):
    """Places that are not asked for have the label 0, which is a token; cross_entropy ignores -100."""

    def masked_tokens(tokens, choice, kind, word, num_special, mask_id, vocab_size, share=0.15):
        chosen = (choice < share) & (tokens >= num_special)
        number = vocab_size - num_special
        random_words = num_special + (word * number).floor().long()
        inputs = tokens.clone()
        inputs[chosen & (kind < 0.8)] = mask_id
        swapped = chosen & (kind >= 0.8) & (kind < 0.9)
        inputs[swapped] = random_words[swapped]
        labels = tokens.masked_fill(~chosen, 0)
        return inputs, labels


class OthersChosen(Mistake, exercise="masked_tokens"):
    """The tokens with choice >= share are chosen, 85 % of them instead of 15: choose where choice is
    below share."""

    def masked_tokens(tokens, choice, kind, word, num_special, mask_id, vocab_size, share=0.15):
        chosen = (choice >= share) & (tokens >= num_special)
        number = vocab_size - num_special
        random_words = num_special + (word * number).floor().long()
        inputs = tokens.clone()
        inputs[chosen & (kind < 0.8)] = mask_id
        swapped = chosen & (kind >= 0.8) & (kind < 0.9)
        inputs[swapped] = random_words[swapped]
        labels = tokens.masked_fill(~chosen, -100)
        return inputs, labels


class LabelsFirst(Mistake, exercise="masked_tokens"):
    """Labels and inputs are returned in the wrong order."""

    def masked_tokens(tokens, choice, kind, word, num_special, mask_id, vocab_size, share=0.15):
        chosen = (choice < share) & (tokens >= num_special)
        number = vocab_size - num_special
        random_words = num_special + (word * number).floor().long()
        inputs = tokens.clone()
        inputs[chosen & (kind < 0.8)] = mask_id
        swapped = chosen & (kind >= 0.8) & (kind < 0.9)
        inputs[swapped] = random_words[swapped]
        labels = tokens.masked_fill(~chosen, -100)
        return labels, inputs


class TokensChanged(Mistake, exercise="masked_tokens"):
    """The given tokens themselves are hidden, so the data stay hidden for ever, and their labels with
    them when they come again; change a copy."""

    def masked_tokens(tokens, choice, kind, word, num_special, mask_id, vocab_size, share=0.15):
        chosen = (choice < share) & (tokens >= num_special)
        number = vocab_size - num_special
        random_words = num_special + (word * number).floor().long()
        labels = tokens.masked_fill(~chosen, -100)
        tokens[chosen & (kind < 0.8)] = mask_id
        swapped = chosen & (kind >= 0.8) & (kind < 0.9)
        tokens[swapped] = random_words[swapped]
        return tokens, labels


# 6.6 --------------------------------------------------------------------------------------------


class NothingRejected(Mistake, exercise="check_prompt_split"):
    """Every model gets past, wrong ones too: compare the probabilities for the same text, cut in
    different places, and `assert` that they agree; a test that returns False rejects nothing."""

    def check_prompt_split(predict):
        text = torch.tensor([7, 2, 9, 4, 0, 8, 3, 5, 1, 6])
        for cut in range(1, len(text)):
            seen = predict(text[:cut], text[cut:])
            assert abs(seen.sum() - 1) < 1e-5


class SmallChangesPass(Mistake, exercise="check_prompt_split"):
    """Models with a prefix that is read both ways get past: the cut moves their probabilities by a few
    hundredths or less, and not which token is the most likely. Compare all probabilities, and
    allow for rounding only."""

    def check_prompt_split(predict):
        text = torch.tensor([7, 2, 9, 4, 0, 8, 3, 5, 1, 6])
        expected = predict(text[:1], text[1:]).argmax()
        for cut in range(2, len(text)):
            assert predict(text[:cut], text[cut:]).argmax() == expected


class ForgettingPasses(Mistake, exercise="check_prompt_split"):
    """A cache that keeps four tokens gets past: it forgets nothing before the first part has more than
    four; use a text of ten or so, and cut it late, too."""

    def check_prompt_split(predict):
        text = torch.tensor([7, 2, 9, 4])
        expected = predict(text[:1], text[1:])
        for cut in range(2, len(text)):
            seen = predict(text[:cut], text[cut:])
            assert torch.allclose(seen.double(), expected.double(), atol=1e-5)


class FirstCutMissing(Mistake, exercise="check_prompt_split"):
    """One model treats a first part of a single token differently, and gets past: cut behind the first
    token, too."""

    def check_prompt_split(predict):
        text = torch.tensor([7, 2, 9, 4, 0, 8, 3, 5, 1, 6])
        expected = predict(text[:5], text[5:])
        for cut in range(2, len(text)):
            seen = predict(text[:cut], text[cut:])
            assert torch.allclose(seen.double(), expected.double(), atol=1e-5)


class FewCutsTried(Mistake, exercise="check_prompt_split"):
    """Some cuts show neither a faint influence nor a first part that is taken for padding, and both get
    past: try every cut."""

    def check_prompt_split(predict):
        text = torch.tensor([7, 2, 9, 4, 0, 8, 3, 5, 1, 6])
        expected = predict(text[:-1], text[-1:])
        seen = predict(text[:-2], text[-2:])
        assert torch.allclose(seen.double(), expected.double(), atol=1e-5)


class FaintInfluencePasses(Mistake, exercise="check_prompt_split"):
    """A faint influence of the cut gets past: it moves a probability by about a thousandth; allow for
    rounding only, which is a thousand times less."""

    def check_prompt_split(predict):
        text = torch.tensor([7, 2, 9, 4, 0, 8, 3, 5, 1, 6])
        expected = predict(text[:1], text[1:])
        for cut in range(2, len(text)):
            assert (predict(text[:cut], text[cut:]) - expected).abs().max() < 0.02


class RoundingForbidden(Mistake, exercise="check_prompt_split"):
    """Right models that round differently from cut to cut are rejected: allow a small difference."""

    def check_prompt_split(predict):
        text = torch.tensor([7, 2, 9, 4, 0, 8, 3, 5, 1, 6])
        expected = predict(text[:1], text[1:])
        for cut in range(2, len(text)):
            assert torch.equal(predict(text[:cut], text[cut:]), expected)


class EverythingRejected(Mistake, exercise="check_prompt_split"):
    """Every model is rejected, right ones too: for those only the cut may not matter, so both parts
    together must always be the same text, in the same order."""

    def check_prompt_split(predict):
        text = torch.tensor([7, 2, 9, 4, 0, 8, 3, 5, 1, 6])
        expected = predict(text[:1], text[1:2])
        for cut in range(2, len(text) - 1):
            seen = predict(text[:cut], text[cut : cut + 1])
            assert torch.allclose(seen.double(), expected.double(), atol=1e-5)


class WrongWayRound(Mistake, exercise="check_prompt_split"):
    """Right models are rejected, and wrong ones get past: the test must fail where predictions differ,
    and pass where they agree."""

    def check_prompt_split(predict):
        text = torch.tensor([7, 2, 9, 4, 0, 8, 3, 5, 1, 6])
        first, other = predict(text[:3], text[3:]), predict(text[:6], text[6:])
        assert (first - other).abs().max() > 1e-5


# 6.7 --------------------------------------------------------------------------------------------


class CausalMaskTurnedOver(Mistake, exercise="one_block_three_masks"):
    """The causal mask lets each token see what comes after it: rows are those who look, so True belongs
    on and below the diagonal."""

    def three_masks(length, prefix_lens):
        both_ways = torch.ones(length, length) == 1
        causal = torch.ones(length, length).triu() == 1
        in_prefix = prefix_lens[:, None, None] > torch.arange(length)
        prefix = causal | in_prefix
        return both_ways, causal, prefix

    def one_block_three_masks(x, weights, prefix_lens):
        both_ways, causal, prefix = three_masks(x.shape[1], prefix_lens)
        return tuple(block(x, mask, weights) for mask in (both_ways, causal, prefix))


class DiagonalMissing(Mistake, exercise="one_block_three_masks"):
    """A token of the causal mask does not see itself; the diagonal is True."""

    def three_masks(length, prefix_lens):
        both_ways = torch.ones(length, length) == 1
        causal = torch.ones(length, length).tril(-1) == 1
        in_prefix = prefix_lens[:, None, None] > torch.arange(length)
        prefix = causal | in_prefix
        return both_ways, causal, prefix

    def one_block_three_masks(x, weights, prefix_lens):
        both_ways, causal, prefix = three_masks(x.shape[1], prefix_lens)
        return tuple(block(x, mask, weights) for mask in (both_ways, causal, prefix))


class OneTokenAhead(Mistake, exercise="one_block_three_masks"):
    """The causal mask lets each token see one token ahead; it ends at the diagonal."""

    def three_masks(length, prefix_lens):
        both_ways = torch.ones(length, length) == 1
        causal = torch.ones(length, length).tril(1) == 1
        in_prefix = prefix_lens[:, None, None] > torch.arange(length)
        prefix = causal | in_prefix
        return both_ways, causal, prefix

    def one_block_three_masks(x, weights, prefix_lens):
        both_ways, causal, prefix = three_masks(x.shape[1], prefix_lens)
        return tuple(block(x, mask, weights) for mask in (both_ways, causal, prefix))


class AndForOr(Mistake, exercise="one_block_three_masks"):
    """The prefix mask demands that a token lies in the prefix and is not later, so nobody sees what comes
    behind the prefix; one of the two is enough."""

    def three_masks(length, prefix_lens):
        both_ways = torch.ones(length, length) == 1
        causal = torch.ones(length, length).tril() == 1
        in_prefix = prefix_lens[:, None, None] > torch.arange(length)
        prefix = causal & in_prefix
        return both_ways, causal, prefix

    def one_block_three_masks(x, weights, prefix_lens):
        both_ways, causal, prefix = three_masks(x.shape[1], prefix_lens)
        return tuple(block(x, mask, weights) for mask in (both_ways, causal, prefix))


class PrefixOneTooShort(Mistake, exercise="one_block_three_masks"):
    """The prefix ends one token early: places 0 to prefix_len - 1 belong to it."""

    def three_masks(length, prefix_lens):
        both_ways = torch.ones(length, length) == 1
        causal = torch.ones(length, length).tril() == 1
        in_prefix = prefix_lens[:, None, None] - 1 > torch.arange(length)
        prefix = causal | in_prefix
        return both_ways, causal, prefix

    def one_block_three_masks(x, weights, prefix_lens):
        both_ways, causal, prefix = three_masks(x.shape[1], prefix_lens)
        return tuple(block(x, mask, weights) for mask in (both_ways, causal, prefix))


class PrefixOneTooLong(Mistake, exercise="one_block_three_masks"):
    """The prefix ends one token late: places 0 to prefix_len - 1 belong to it."""

    def three_masks(length, prefix_lens):
        both_ways = torch.ones(length, length) == 1
        causal = torch.ones(length, length).tril() == 1
        in_prefix = prefix_lens[:, None, None] >= torch.arange(length)
        prefix = causal | in_prefix
        return both_ways, causal, prefix

    def one_block_three_masks(x, weights, prefix_lens):
        both_ways, causal, prefix = three_masks(x.shape[1], prefix_lens)
        return tuple(block(x, mask, weights) for mask in (both_ways, causal, prefix))


class PrefixAlongTheRows(Mistake, exercise="one_block_three_masks"):
    """The prefix is laid along the rows, so its tokens see everything, the answer too; it is laid along
    the columns, the tokens that are seen."""

    def three_masks(length, prefix_lens):
        both_ways = torch.ones(length, length) == 1
        causal = torch.ones(length, length).tril() == 1
        in_prefix = prefix_lens[:, None, None] > torch.arange(length)[:, None]
        prefix = causal | in_prefix
        return both_ways, causal, prefix

    def one_block_three_masks(x, weights, prefix_lens):
        both_ways, causal, prefix = three_masks(x.shape[1], prefix_lens)
        return tuple(block(x, mask, weights) for mask in (both_ways, causal, prefix))


class PrefixSeenByItselfOnly(Mistake, exercise="one_block_three_masks"):
    """Only tokens of the prefix see all of the prefix, and nobody behind it sees anything but itself and
    the rest; the rest sees the prefix too."""

    def three_masks(length, prefix_lens):
        both_ways = torch.ones(length, length) == 1
        causal = torch.ones(length, length).tril() == 1
        in_prefix = prefix_lens[:, None, None] > torch.arange(length)
        prefix = (in_prefix & in_prefix.mT) | (causal & ~in_prefix & ~in_prefix.mT)
        return both_ways, causal, prefix

    def one_block_three_masks(x, weights, prefix_lens):
        both_ways, causal, prefix = three_masks(x.shape[1], prefix_lens)
        return tuple(block(x, mask, weights) for mask in (both_ways, causal, prefix))


class PrefixOfTheFirstSequence(Mistake, exercise="one_block_three_masks"):
    """All sequences get the prefix of the first one; each has its own length."""

    def three_masks(length, prefix_lens):
        both_ways = torch.ones(length, length) == 1
        causal = torch.ones(length, length).tril() == 1
        in_prefix = (prefix_lens[:1, None, None] > torch.arange(length)).expand(
            len(prefix_lens), -1, -1
        )
        prefix = causal | in_prefix
        return both_ways, causal, prefix

    def one_block_three_masks(x, weights, prefix_lens):
        both_ways, causal, prefix = three_masks(x.shape[1], prefix_lens)
        return tuple(block(x, mask, weights) for mask in (both_ways, causal, prefix))


class PrefixMaskCausalOnly(Mistake, exercise="one_block_three_masks"):
    """The prefix mask is causal everywhere, the prefix is not read both ways."""

    def three_masks(length, prefix_lens):
        both_ways = torch.ones(length, length) == 1
        causal = torch.ones(length, length).tril() == 1
        in_prefix = prefix_lens[:, None, None] > torch.arange(length)
        prefix = causal.expand(len(prefix_lens), -1, -1)
        return both_ways, causal, prefix

    def one_block_three_masks(x, weights, prefix_lens):
        both_ways, causal, prefix = three_masks(x.shape[1], prefix_lens)
        return tuple(block(x, mask, weights) for mask in (both_ways, causal, prefix))


class MasksTrueWhereForbidden(Mistake, exercise="one_block_three_masks"):
    """The masks are True where attention is forbidden; True means allowed."""

    def three_masks(length, prefix_lens):
        both_ways = torch.ones(length, length) == 1
        causal = torch.ones(length, length).tril() == 1
        in_prefix = prefix_lens[:, None, None] > torch.arange(length)
        prefix = causal | in_prefix
        return ~both_ways, ~causal, ~prefix

    def one_block_three_masks(x, weights, prefix_lens):
        allowed = [~mask for mask in three_masks(x.shape[1], prefix_lens)]
        return tuple(block(x, mask, weights) for mask in allowed)


class SameMaskForAll(Mistake, exercise="one_block_three_masks"):
    """The block is run three times with the same mask."""

    def three_masks(length, prefix_lens):
        both_ways = torch.ones(length, length) == 1
        causal = torch.ones(length, length).tril() == 1
        in_prefix = prefix_lens[:, None, None] > torch.arange(length)
        prefix = causal | in_prefix
        return both_ways, causal, prefix

    def one_block_three_masks(x, weights, prefix_lens):
        _, causal, _ = three_masks(x.shape[1], prefix_lens)
        return tuple(block(x, causal, weights) for _ in range(3))


class OneAfterTheOther(Mistake, exercise="one_block_three_masks"):
    """Each run takes the output of the last one; all three read the same tokens."""

    def three_masks(length, prefix_lens):
        both_ways = torch.ones(length, length) == 1
        causal = torch.ones(length, length).tril() == 1
        in_prefix = prefix_lens[:, None, None] > torch.arange(length)
        prefix = causal | in_prefix
        return both_ways, causal, prefix

    def one_block_three_masks(x, weights, prefix_lens):
        outputs = []
        for mask in three_masks(x.shape[1], prefix_lens):
            x = block(x, mask, weights)
            outputs.append(x)
        return tuple(outputs)


class CausalFirst(Mistake, exercise="one_block_three_masks"):
    """The first two are in the wrong order: both ways, causal, prefix."""

    def three_masks(length, prefix_lens):
        both_ways = torch.ones(length, length) == 1
        causal = torch.ones(length, length).tril() == 1
        in_prefix = prefix_lens[:, None, None] > torch.arange(length)
        prefix = causal | in_prefix
        return causal, both_ways, prefix

    def one_block_three_masks(x, weights, prefix_lens):
        return tuple(block(x, mask, weights) for mask in three_masks(x.shape[1], prefix_lens))


# 6.8 --------------------------------------------------------------------------------------------


class SharedByTheOthersOnly(Mistake, exercise="smoothed_loss"):
    """The smoothing is shared by the vocab_size - 1 wrong tokens; by the rule asked for here, every token
    gets smoothing / vocab_size, the right one on top of its 1 - smoothing."""

    def smoothed_loss(logits, targets, smoothing, pad):
        log_p = F.log_softmax(logits, dim=-1)
        vocab_size = logits.shape[-1]
        right = F.one_hot(targets, vocab_size) == 1
        soft = torch.where(right, 1 - smoothing, smoothing / (vocab_size - 1))
        nats = -(soft * log_p).sum(dim=-1)
        return nats[targets != pad].mean()

    def noam(step, d_model, warmup_steps):
        n = step + 1
        return d_model**-0.5 * min(n**-0.5, n * warmup_steps**-1.5)


class SharedWithoutPadding(Mistake, exercise="smoothed_loss"):
    """The smoothing is shared by the vocab_size - 2 tokens that are neither right nor padding; by the rule
    asked for here, every token gets smoothing / vocab_size."""

    def smoothed_loss(logits, targets, smoothing, pad):
        log_p = F.log_softmax(logits, dim=-1)
        vocab_size = logits.shape[-1]
        right = F.one_hot(targets, vocab_size) == 1
        soft = torch.where(right, 1 - smoothing, smoothing / (vocab_size - 2))
        soft[..., pad] = 0
        nats = -(soft * log_p).sum(dim=-1)
        return nats[targets != pad].mean()

    def noam(step, d_model, warmup_steps):
        n = step + 1
        return d_model**-0.5 * min(n**-0.5, n * warmup_steps**-1.5)


class RightTokenLeftOut(Mistake, exercise="smoothed_loss"):
    """The right token gets 1 - smoothing and nothing of what is shared, so the target does not sum to 1:
    it gets smoothing / vocab_size on top."""

    def smoothed_loss(logits, targets, smoothing, pad):
        log_p = F.log_softmax(logits, dim=-1)
        vocab_size = logits.shape[-1]
        right = F.one_hot(targets, vocab_size) == 1
        soft = torch.where(right, 1 - smoothing, smoothing / vocab_size)
        nats = -(soft * log_p).sum(dim=-1)
        return nats[targets != pad].mean()

    def noam(step, d_model, warmup_steps):
        n = step + 1
        return d_model**-0.5 * min(n**-0.5, n * warmup_steps**-1.5)


class EachGetsAllOfIt(Mistake, exercise="smoothed_loss"):
    """Every token gets the whole smoothing; it is divided by vocab_size."""

    def smoothed_loss(logits, targets, smoothing, pad):
        log_p = F.log_softmax(logits, dim=-1)
        soft = F.one_hot(targets, logits.shape[-1]) * (1 - smoothing) + smoothing
        nats = -(soft * log_p).sum(dim=-1)
        return nats[targets != pad].mean()

    def noam(step, d_model, warmup_steps):
        n = step + 1
        return d_model**-0.5 * min(n**-0.5, n * warmup_steps**-1.5)


class DivergenceInstead(Mistake, exercise="smoothed_loss"):
    """The entropy of the softened target is subtracted, which makes it a divergence that can reach 0; the
    cross-entropy is asked for."""

    def smoothed_loss(logits, targets, smoothing, pad):
        log_p = F.log_softmax(logits, dim=-1)
        vocab_size = logits.shape[-1]
        soft = F.one_hot(targets, vocab_size) * (1 - smoothing) + smoothing / vocab_size
        nats = (torch.special.xlogy(soft, soft) - soft * log_p).sum(dim=-1)
        return nats[targets != pad].mean()

    def noam(step, d_model, warmup_steps):
        n = step + 1
        return d_model**-0.5 * min(n**-0.5, n * warmup_steps**-1.5)


class SmoothingForgotten(Mistake, exercise="smoothed_loss"):
    """The targets are not softened at all."""

    def smoothed_loss(logits, targets, smoothing, pad):
        return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad)

    def noam(step, d_model, warmup_steps):
        n = step + 1
        return d_model**-0.5 * min(n**-0.5, n * warmup_steps**-1.5)


class PaddingCounted(Mistake, exercise="smoothed_loss"):
    """Padding is counted like any other target: leave it out of the mean."""

    def smoothed_loss(logits, targets, smoothing, pad):
        log_p = F.log_softmax(logits, dim=-1)
        vocab_size = logits.shape[-1]
        soft = F.one_hot(targets, vocab_size) * (1 - smoothing) + smoothing / vocab_size
        return -(soft * log_p).sum(dim=-1).mean()

    def noam(step, d_model, warmup_steps):
        n = step + 1
        return d_model**-0.5 * min(n**-0.5, n * warmup_steps**-1.5)


class PaddingInTheSpread(Mistake, exercise="smoothed_loss"):
    """Padding is left out of the usual loss, but not of the part that is shared by the vocabulary;
    neither part may count it."""

    def smoothed_loss(logits, targets, smoothing, pad):
        log_p = F.log_softmax(logits, dim=-1)
        nats = F.nll_loss(log_p.flatten(0, 1), targets.flatten(), ignore_index=pad)
        return (1 - smoothing) * nats - smoothing * log_p.mean()

    def noam(step, d_model, warmup_steps):
        n = step + 1
        return d_model**-0.5 * min(n**-0.5, n * warmup_steps**-1.5)


class DividedByAllPlaces(Mistake, exercise="smoothed_loss"):
    """The sum over real targets is divided by all places, padding included."""

    def smoothed_loss(logits, targets, smoothing, pad):
        log_p = F.log_softmax(logits, dim=-1)
        vocab_size = logits.shape[-1]
        soft = F.one_hot(targets, vocab_size) * (1 - smoothing) + smoothing / vocab_size
        nats = -(soft * log_p).sum(dim=-1)
        return (nats * (targets != pad)).mean()

    def noam(step, d_model, warmup_steps):
        n = step + 1
        return d_model**-0.5 * min(n**-0.5, n * warmup_steps**-1.5)


class SoftmaxTwice(Mistake, exercise="smoothed_loss"):
    """The logits go through softmax before log_softmax, which takes one itself."""

    def smoothed_loss(logits, targets, smoothing, pad):
        log_p = F.log_softmax(logits.softmax(dim=-1), dim=-1)
        vocab_size = logits.shape[-1]
        soft = F.one_hot(targets, vocab_size) * (1 - smoothing) + smoothing / vocab_size
        nats = -(soft * log_p).sum(dim=-1)
        return nats[targets != pad].mean()

    def noam(step, d_model, warmup_steps):
        n = step + 1
        return d_model**-0.5 * min(n**-0.5, n * warmup_steps**-1.5)


class StepTakenForTheNumber(Mistake, exercise="smoothed_loss"):
    """`step` is taken for the number of the update, so every rate comes one step late: steps are
    counted from 0, updates from 1."""

    def smoothed_loss(logits, targets, smoothing, pad):
        log_p = F.log_softmax(logits, dim=-1)
        vocab_size = logits.shape[-1]
        soft = F.one_hot(targets, vocab_size) * (1 - smoothing) + smoothing / vocab_size
        nats = -(soft * log_p).sum(dim=-1)
        return nats[targets != pad].mean()

    def noam(step, d_model, warmup_steps):
        n = step
        return d_model**-0.5 * min(max(n, 1) ** -0.5, n * warmup_steps**-1.5)


class WarmupExponent(Mistake, exercise="smoothed_loss"):
    """The rise is divided by the root of warmup_steps; with the exponent -3/2 it meets the fall at the
    end of the warm-up."""

    def smoothed_loss(logits, targets, smoothing, pad):
        log_p = F.log_softmax(logits, dim=-1)
        vocab_size = logits.shape[-1]
        soft = F.one_hot(targets, vocab_size) * (1 - smoothing) + smoothing / vocab_size
        nats = -(soft * log_p).sum(dim=-1)
        return nats[targets != pad].mean()

    def noam(step, d_model, warmup_steps):
        n = step + 1
        return d_model**-0.5 * min(n**-0.5, n * warmup_steps**-0.5)


class MaximumForMinimum(Mistake, exercise="smoothed_loss"):
    """The larger of the two terms is taken, which starts high and never stops growing: take the smaller
    one."""

    def smoothed_loss(logits, targets, smoothing, pad):
        log_p = F.log_softmax(logits, dim=-1)
        vocab_size = logits.shape[-1]
        soft = F.one_hot(targets, vocab_size) * (1 - smoothing) + smoothing / vocab_size
        nats = -(soft * log_p).sum(dim=-1)
        return nats[targets != pad].mean()

    def noam(step, d_model, warmup_steps):
        n = step + 1
        return d_model**-0.5 * max(n**-0.5, n * warmup_steps**-1.5)


class WidthNotRooted(Mistake, exercise="smoothed_loss"):
    """The rate is divided by d_model instead of by its root."""

    def smoothed_loss(logits, targets, smoothing, pad):
        log_p = F.log_softmax(logits, dim=-1)
        vocab_size = logits.shape[-1]
        soft = F.one_hot(targets, vocab_size) * (1 - smoothing) + smoothing / vocab_size
        nats = -(soft * log_p).sum(dim=-1)
        return nats[targets != pad].mean()

    def noam(step, d_model, warmup_steps):
        n = step + 1
        return min(n**-0.5, n * warmup_steps**-1.5) / d_model


class WidthForgotten(Mistake, exercise="smoothed_loss"):
    """The rate does not depend on d_model: divide by its root."""

    def smoothed_loss(logits, targets, smoothing, pad):
        log_p = F.log_softmax(logits, dim=-1)
        vocab_size = logits.shape[-1]
        soft = F.one_hot(targets, vocab_size) * (1 - smoothing) + smoothing / vocab_size
        nats = -(soft * log_p).sum(dim=-1)
        return nats[targets != pad].mean()

    def noam(step, d_model, warmup_steps):
        n = step + 1
        return min(n**-0.5, n * warmup_steps**-1.5)


class FallsLikeTheNumber(Mistake, exercise="smoothed_loss"):
    """Behind the warm-up the rate falls like 1 / n; it falls like 1 over the root of n."""

    def smoothed_loss(logits, targets, smoothing, pad):
        log_p = F.log_softmax(logits, dim=-1)
        vocab_size = logits.shape[-1]
        soft = F.one_hot(targets, vocab_size) * (1 - smoothing) + smoothing / vocab_size
        nats = -(soft * log_p).sum(dim=-1)
        return nats[targets != pad].mean()

    def noam(step, d_model, warmup_steps):
        n = step + 1
        return d_model**-0.5 * min(1 / n, n * warmup_steps**-1.5)


# 6.9 --------------------------------------------------------------------------------------------


class StillAsPublished(Mistake, exercise="mended_decoder"):
    """All three bugs are still there."""

    def mended_decoder(x, memory, source_mask, weights):
        w_q, w_k, w_v, cross_q, cross_k, cross_v = weights
        d_model = x.shape[-1]

        def attend(query, key, value, mask):
            scores = query.transpose(1, 2) @ key / math.sqrt(d_model)
            return scores.masked_fill(~mask, -math.inf).softmax(dim=-1) @ value

        past = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        everything = torch.ones(x.shape[1], memory.shape[1], dtype=torch.bool)
        x = x + attend(x @ w_q, x @ w_k, x @ w_v, past)
        return x + attend(memory @ cross_q, x @ cross_k, x @ cross_v, everything)


class FeaturesStillCompared(Mistake, exercise="mended_decoder"):
    """Features are still compared with features, which fits only if there are as many tokens as features:
    query @ key.transpose(1, 2) compares tokens with tokens."""

    def mended_decoder(x, memory, source_mask, weights):
        w_q, w_k, w_v, cross_q, cross_k, cross_v = weights
        scale = math.sqrt(x.shape[-1])

        def attend(query, key, value, mask):
            scores = query.transpose(1, 2) @ key / scale
            return scores.masked_fill(~mask, float("-inf")).softmax(dim=-1) @ value

        past = torch.ones(x.shape[1], x.shape[1]).tril() == 1
        everything = torch.ones(x.shape[1], memory.shape[1]) == 1
        real = source_mask[:, None, :]
        x = x + attend(x @ w_q, x @ w_k, x @ w_v, past)
        return x + attend(x @ cross_q, memory @ cross_k, memory @ cross_v, real)


class SidesStillSwapped(Mistake, exercise="mended_decoder"):
    """The memory still asks and the target answers, so each output sees the whole target: queries come
    from the target, keys and values from the memory."""

    def mended_decoder(x, memory, source_mask, weights):
        w_q, w_k, w_v, cross_q, cross_k, cross_v = weights
        scale = math.sqrt(x.shape[-1])

        def attend(query, key, value, mask):
            scores = query @ key.transpose(1, 2) / scale
            return scores.masked_fill(~mask, float("-inf")).softmax(dim=-1) @ value

        past = torch.ones(x.shape[1], x.shape[1]).tril() == 1
        everything = torch.ones(x.shape[1], memory.shape[1]) == 1
        real = source_mask[:, :, None]
        x = x + attend(x @ w_q, x @ w_k, x @ w_v, past)
        return attend(memory @ cross_q, x @ cross_k, x @ cross_v, everything.mT)


class PaddingStillSeen(Mistake, exercise="mended_decoder"):
    """The source's padding is still seen: cross attention needs the source mask."""

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
        return x + attend(x @ cross_q, memory @ cross_k, memory @ cross_v, everything)


class OldStreamAsks(Mistake, exercise="mended_decoder"):
    """Cross attention asks with the stream as it was before self attention; it asks with the sum, what
    each token found before it included."""

    def mended_decoder(x, memory, source_mask, weights):
        w_q, w_k, w_v, cross_q, cross_k, cross_v = weights
        scale = math.sqrt(x.shape[-1])

        def attend(query, key, value, mask):
            scores = query @ key.transpose(1, 2) / scale
            return scores.masked_fill(~mask, float("-inf")).softmax(dim=-1) @ value

        past = torch.ones(x.shape[1], x.shape[1]).tril() == 1
        real = source_mask[:, None, :]
        found = attend(x @ w_q, x @ w_k, x @ w_v, past)
        return x + found + attend(x @ cross_q, memory @ cross_k, memory @ cross_v, real)


class CausalMaskOnTheSource(Mistake, exercise="mended_decoder"):
    """Cross attention has a causal mask; the source is there in full, only its padding is hidden."""

    def mended_decoder(x, memory, source_mask, weights):
        w_q, w_k, w_v, cross_q, cross_k, cross_v = weights
        scale = math.sqrt(x.shape[-1])

        def attend(query, key, value, mask):
            scores = query @ key.transpose(1, 2) / scale
            return scores.masked_fill(~mask, float("-inf")).softmax(dim=-1) @ value

        past = torch.ones(x.shape[1], x.shape[1]).tril() == 1
        everything = torch.ones(x.shape[1], memory.shape[1]) == 1
        real = source_mask[:, None, :] & (torch.ones(x.shape[1], memory.shape[1]).tril() == 1)
        x = x + attend(x @ w_q, x @ w_k, x @ w_v, past)
        return x + attend(x @ cross_q, memory @ cross_k, memory @ cross_v, real)


class CausalMaskLost(Mistake, exercise="mended_decoder"):
    """Self attention has lost its causal mask."""

    def mended_decoder(x, memory, source_mask, weights):
        w_q, w_k, w_v, cross_q, cross_k, cross_v = weights
        scale = math.sqrt(x.shape[-1])

        def attend(query, key, value, mask):
            scores = query @ key.transpose(1, 2) / scale
            return scores.masked_fill(~mask, float("-inf")).softmax(dim=-1) @ value

        past = torch.ones(x.shape[1], x.shape[1]).tril() == 1
        everything = torch.ones(x.shape[1], memory.shape[1]) == 1
        real = source_mask[:, None, :]
        x = x + attend(x @ w_q, x @ w_k, x @ w_v, past | True)
        return x + attend(x @ cross_q, memory @ cross_k, memory @ cross_v, real)


class SoftmaxOverQueries(Mistake, exercise="mended_decoder"):
    """The softmax runs over those who ask; each of them shares out its own weight: dim=-1."""

    def mended_decoder(x, memory, source_mask, weights):
        w_q, w_k, w_v, cross_q, cross_k, cross_v = weights
        scale = math.sqrt(x.shape[-1])

        def attend(query, key, value, mask):
            scores = query @ key.transpose(1, 2) / scale
            return scores.masked_fill(~mask, float("-inf")).softmax(dim=-2).nan_to_num() @ value

        past = torch.ones(x.shape[1], x.shape[1]).tril() == 1
        everything = torch.ones(x.shape[1], memory.shape[1]) == 1
        real = source_mask[:, None, :]
        x = x + attend(x @ w_q, x @ w_k, x @ w_v, past)
        return x + attend(x @ cross_q, memory @ cross_k, memory @ cross_v, real)


class NotScaled(Mistake, exercise="mended_decoder"):
    """The scores are not divided by the root of d_model any more."""

    def mended_decoder(x, memory, source_mask, weights):
        w_q, w_k, w_v, cross_q, cross_k, cross_v = weights
        scale = 1.0

        def attend(query, key, value, mask):
            scores = query @ key.transpose(1, 2) / scale
            return scores.masked_fill(~mask, float("-inf")).softmax(dim=-1) @ value

        past = torch.ones(x.shape[1], x.shape[1]).tril() == 1
        everything = torch.ones(x.shape[1], memory.shape[1]) == 1
        real = source_mask[:, None, :]
        x = x + attend(x @ w_q, x @ w_k, x @ w_v, past)
        return x + attend(x @ cross_q, memory @ cross_k, memory @ cross_v, real)


class ResidualLost(Mistake, exercise="mended_decoder"):
    """What is found in the source replaces the stream; it is added to it."""

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
        return attend(x @ cross_q, memory @ cross_k, memory @ cross_v, real)


class CrossAttentionDropped(Mistake, exercise="mended_decoder"):
    """The source is not asked at all."""

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
        return x + 0 * attend(x @ cross_q, memory @ cross_k, memory @ cross_v, real)


# 6.10 -------------------------------------------------------------------------------------------


class ResidualForgotten(Mistake, exercise="swapped_cross_attention"):
    """What was found replaces the stream; it has to be added to it."""

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
        return merged @ weights["output.weight"].T + weights["output.bias"]


class ResidualFromTheNorm(Mistake, exercise="swapped_cross_attention"):
    """What was found is added to what asked, behind the norm; it has to be added to the stream."""

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
        return read + merged @ weights["output.weight"].T + weights["output.bias"]


class NormForgotten(Mistake, exercise="swapped_cross_attention"):
    """The stream asks without a norm; in a pre-norm block what asks is normalised first."""

    def swapped_cross_attention(x, memory, source_mask, weights, num_heads):
        def split(tokens):
            return tokens.unflatten(-1, (num_heads, -1)).transpose(1, 2)

        read = x
        query = split(read @ weights["query.weight"].T + weights["query.bias"])
        key = split(memory @ weights["key.weight"].T + weights["key.bias"])
        value = split(memory @ weights["value.weight"].T + weights["value.bias"])
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        scores = scores.masked_fill(~source_mask[:, None, None, :], -math.inf)
        merged = (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
        return x + merged @ weights["output.weight"].T + weights["output.bias"]


class NormBehindTheSum(Mistake, exercise="swapped_cross_attention"):
    """The norm comes behind the sum, as in a post-norm block; here it comes before the queries, and
    the sum stays as it is."""

    def swapped_cross_attention(x, memory, source_mask, weights, num_heads):
        def split(tokens):
            return tokens.unflatten(-1, (num_heads, -1)).transpose(1, 2)

        query = split(x @ weights["query.weight"].T + weights["query.bias"])
        key = split(memory @ weights["key.weight"].T + weights["key.bias"])
        value = split(memory @ weights["value.weight"].T + weights["value.bias"])
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        scores = scores.masked_fill(~source_mask[:, None, None, :], -math.inf)
        merged = (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
        x = x + merged @ weights["output.weight"].T + weights["output.bias"]
        return F.layer_norm(x, x.shape[-1:], weights["gain"], weights["bias"])


class MemoryNormalisedAgain(Mistake, exercise="swapped_cross_attention"):
    """The memory goes through the norm of this sub-layer; it comes normalised, and is used as it is."""

    def swapped_cross_attention(x, memory, source_mask, weights, num_heads):
        def split(tokens):
            return tokens.unflatten(-1, (num_heads, -1)).transpose(1, 2)

        read = F.layer_norm(x, x.shape[-1:], weights["gain"], weights["bias"])
        query = split(read @ weights["query.weight"].T + weights["query.bias"])
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
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        scores = scores.masked_fill(~source_mask[:, None, None, :], -math.inf)
        merged = (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
        return x + merged @ weights["output.weight"].T + weights["output.bias"]


class GainForgotten(Mistake, exercise="swapped_cross_attention"):
    """The gain of the norm is not applied."""

    def swapped_cross_attention(x, memory, source_mask, weights, num_heads):
        def split(tokens):
            return tokens.unflatten(-1, (num_heads, -1)).transpose(1, 2)

        read = F.layer_norm(x, x.shape[-1:]) + weights["bias"]
        query = split(read @ weights["query.weight"].T + weights["query.bias"])
        key = split(memory @ weights["key.weight"].T + weights["key.bias"])
        value = split(memory @ weights["value.weight"].T + weights["value.bias"])
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        scores = scores.masked_fill(~source_mask[:, None, None, :], -math.inf)
        merged = (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
        return x + merged @ weights["output.weight"].T + weights["output.bias"]


class NormBiasForgotten(Mistake, exercise="swapped_cross_attention"):
    """The bias of the norm is not added."""

    def swapped_cross_attention(x, memory, source_mask, weights, num_heads):
        def split(tokens):
            return tokens.unflatten(-1, (num_heads, -1)).transpose(1, 2)

        read = F.layer_norm(x, x.shape[-1:], weights["gain"])
        query = split(read @ weights["query.weight"].T + weights["query.bias"])
        key = split(memory @ weights["key.weight"].T + weights["key.bias"])
        value = split(memory @ weights["value.weight"].T + weights["value.bias"])
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        scores = scores.masked_fill(~source_mask[:, None, None, :], -math.inf)
        merged = (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
        return x + merged @ weights["output.weight"].T + weights["output.bias"]


class ScaledByTheWholeWidth(Mistake, exercise="swapped_cross_attention"):
    """The scores are divided by the root of d_model; the model learned with the root of d_head. Almost all
    of its dates stay right."""

    def swapped_cross_attention(x, memory, source_mask, weights, num_heads):
        def split(tokens):
            return tokens.unflatten(-1, (num_heads, -1)).transpose(1, 2)

        read = F.layer_norm(x, x.shape[-1:], weights["gain"], weights["bias"])
        query = split(read @ weights["query.weight"].T + weights["query.bias"])
        key = split(memory @ weights["key.weight"].T + weights["key.bias"])
        value = split(memory @ weights["value.weight"].T + weights["value.bias"])
        scores = query @ key.transpose(-2, -1) / x.shape[-1] ** 0.5
        scores = scores.masked_fill(~source_mask[:, None, None, :], -math.inf)
        merged = (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
        return x + merged @ weights["output.weight"].T + weights["output.bias"]


class NotScaled(Mistake, exercise="swapped_cross_attention"):
    """The scores are not divided by the root of d_head; the dates stay right, the logits do not."""

    def swapped_cross_attention(x, memory, source_mask, weights, num_heads):
        def split(tokens):
            return tokens.unflatten(-1, (num_heads, -1)).transpose(1, 2)

        read = F.layer_norm(x, x.shape[-1:], weights["gain"], weights["bias"])
        query = split(read @ weights["query.weight"].T + weights["query.bias"])
        key = split(memory @ weights["key.weight"].T + weights["key.bias"])
        value = split(memory @ weights["value.weight"].T + weights["value.bias"])
        scores = query @ key.transpose(-2, -1) / 1
        scores = scores.masked_fill(~source_mask[:, None, None, :], -math.inf)
        merged = (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
        return x + merged @ weights["output.weight"].T + weights["output.bias"]


class PaddingSeen(Mistake, exercise="swapped_cross_attention"):
    """The source's padding is seen; the model has never met it."""

    def swapped_cross_attention(x, memory, source_mask, weights, num_heads):
        def split(tokens):
            return tokens.unflatten(-1, (num_heads, -1)).transpose(1, 2)

        read = F.layer_norm(x, x.shape[-1:], weights["gain"], weights["bias"])
        query = split(read @ weights["query.weight"].T + weights["query.bias"])
        key = split(memory @ weights["key.weight"].T + weights["key.bias"])
        value = split(memory @ weights["value.weight"].T + weights["value.bias"])
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        scores = scores
        merged = (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
        return x + merged @ weights["output.weight"].T + weights["output.bias"]


class CausalMaskOnTheSource(Mistake, exercise="swapped_cross_attention"):
    """Cross attention has a causal mask; the source is there in full."""

    def swapped_cross_attention(x, memory, source_mask, weights, num_heads):
        def split(tokens):
            return tokens.unflatten(-1, (num_heads, -1)).transpose(1, 2)

        read = F.layer_norm(x, x.shape[-1:], weights["gain"], weights["bias"])
        query = split(read @ weights["query.weight"].T + weights["query.bias"])
        key = split(memory @ weights["key.weight"].T + weights["key.bias"])
        value = split(memory @ weights["value.weight"].T + weights["value.bias"])
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        scores = scores.masked_fill(~source_mask[:, None, None, :].expand_as(scores).tril(), -1e9)
        merged = (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
        return x + merged @ weights["output.weight"].T + weights["output.bias"]


class ValueBiasForgotten(Mistake, exercise="swapped_cross_attention"):
    """The bias of the values is not added: the loss does not show it, the logits do."""

    def swapped_cross_attention(x, memory, source_mask, weights, num_heads):
        def split(tokens):
            return tokens.unflatten(-1, (num_heads, -1)).transpose(1, 2)

        read = F.layer_norm(x, x.shape[-1:], weights["gain"], weights["bias"])
        query = split(read @ weights["query.weight"].T + weights["query.bias"])
        key = split(memory @ weights["key.weight"].T + weights["key.bias"])
        value = split(memory @ weights["value.weight"].T)
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        scores = scores.masked_fill(~source_mask[:, None, None, :], -math.inf)
        merged = (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
        return x + merged @ weights["output.weight"].T + weights["output.bias"]


class QueryBiasForgotten(Mistake, exercise="swapped_cross_attention"):
    """The bias of the queries is not added: the loss does not show it, the logits do."""

    def swapped_cross_attention(x, memory, source_mask, weights, num_heads):
        def split(tokens):
            return tokens.unflatten(-1, (num_heads, -1)).transpose(1, 2)

        read = F.layer_norm(x, x.shape[-1:], weights["gain"], weights["bias"])
        query = split(read @ weights["query.weight"].T)
        key = split(memory @ weights["key.weight"].T + weights["key.bias"])
        value = split(memory @ weights["value.weight"].T + weights["value.bias"])
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        scores = scores.masked_fill(~source_mask[:, None, None, :], -math.inf)
        merged = (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
        return x + merged @ weights["output.weight"].T + weights["output.bias"]


class OutputMapForgotten(Mistake, exercise="swapped_cross_attention"):
    """What the heads found is added without the output map."""

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
        return x + merged


class MatricesNotTransposed(Mistake, exercise="swapped_cross_attention"):
    """The matrices are used as they are kept, (d_out, d_in), and being square they fit: nn.Linear multiplies
    with the transpose."""

    def swapped_cross_attention(x, memory, source_mask, weights, num_heads):
        def split(tokens):
            return tokens.unflatten(-1, (num_heads, -1)).transpose(1, 2)

        read = F.layer_norm(x, x.shape[-1:], weights["gain"], weights["bias"])
        query = split(read @ weights["query.weight"] + weights["query.bias"])
        key = split(memory @ weights["key.weight"] + weights["key.bias"])
        value = split(memory @ weights["value.weight"] + weights["value.bias"])
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        scores = scores.masked_fill(~source_mask[:, None, None, :], -math.inf)
        merged = (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
        return x + merged @ weights["output.weight"] + weights["output.bias"]
