"""The named mistakes of chapter 09: what a message can name, and what graders are tested with."""

import json
import math
import struct

import torch
import torch.nn.functional as F

from classroom.exercise.answers import Correct
from groundup import pretrained


def changed_config(files, change):
    """Return the files with another configuration."""
    record = json.loads(files["config.json"])
    change(record)
    return {**files, "config.json": json.dumps(record).encode()}


def with_another_configuration(files):
    def wider(record):
        record["config"]["d_ff"] += 8

    return changed_config(files, wider)


def with_unknown_characters(files):
    """Return the files with a tokenizer that knows the letter e, and others that nobody uses."""

    def forget(record):
        others = [chr(0xE000 + i) for i in range(record["config"]["vocab_size"] - 2)]
        record["tokenizers"]["text"] = {
            "kind": "character",
            "characters": "".join(["e", *others]),
            "special_tokens": ["<unknown>"],
        }

    return changed_config(files, forget)


def with_not_a_number(files):
    """Return the files with weights of which the last number is NaN."""
    return {
        **files,
        "model.safetensors": files["model.safetensors"][:-4] + struct.pack("<f", math.nan),
    }


def of_the_course(files):
    folder = pretrained.FOLDER / "manual"
    shipped = {name: (folder / name).read_bytes() for name in pretrained.FILES}
    return {**files, **shipped}


def pickled(files):
    return {**files, "model.safetensors": b"PK\x03\x04" + bytes(60)}


def changed_prediction(files, **fields):
    """Return the files with another prediction."""
    record = json.loads(files["prediction.json"]) | fields
    return {**files, "prediction.json": json.dumps(record).encode()}


def predicted_for_other_weights(files):
    return changed_prediction(files, weights="0" * 64)


def predicted_upside_down(files):
    return changed_prediction(files, low=0.3, high=0.1)


def predicted_anything(files):
    return changed_prediction(files, low=-5, high=5)


def predicted_another_head(files):
    return changed_prediction(files, layer=0, head=2)


class Induction(Correct, exercise="induction_weights"):
    def induction_weights(vocab_size, max_len):
        d_model = 3 * vocab_size + max_len
        sizes = {
            "token": vocab_size,
            "position": max_len,
            "before": vocab_size,
            "guess": vocab_size,
        }
        parts, start = {}, 0
        for name, size in sizes.items():
            parts[name] = slice(start, start + size)
            start += size

        def wiring(part, matrix):
            weight = torch.zeros(d_model, matrix.shape[1], dtype=torch.float64)
            weight[parts[part]] = matrix
            return weight

        same = torch.eye(vocab_size, dtype=torch.float64)
        stay = torch.eye(max_len, dtype=torch.float64)
        onward = stay.roll(1, dims=1)
        onward[-1] = 0
        return {
            "query1": wiring("position", 200.0 * max_len**0.5 * stay),
            "key1": wiring("position", onward),
            "value1": wiring("token", same),
            "output1": wiring("before", same).T.contiguous(),
            "query2": wiring("token", 200.0 * vocab_size**0.5 * same),
            "key2": wiring("before", same),
            "value2": wiring("token", same),
            "output2": wiring("guess", same).T.contiguous(),
        }


LooksAtItself = Induction.but("onward = stay.roll(1, dims=1)\nonward[-1] = 0", "").but(
    '"position", onward', '"position", stay'
)
"""Layer 1 attends to its own position, so `before` holds the current token; it should attend to the
previous position: the key of a position must match the query of the next one."""

LooksAtTheNextPosition = Induction.but("1, dims", "-1, dims").but("onward[-1]", "onward[0]")
"""The query of layer 1 matches the next position, which causal attention hides; match the previous
position."""

LooksTwoBack = Induction.but("1, dims", "2, dims").but("onward[-1]", "onward[-2:]")
"""Layer 1 attends two positions back; the key of a position must match the query of the next
one."""

MatchesTheTokenItself = Induction.but('("before", same),', '("token", same),')
"""The keys of layer 2 come from `token` instead of `before`, so it finds the same token instead of
the one after it."""

QueryReadsBefore = Induction.but('"token", 200', '"before", 200')
"""The queries of layer 2 come from `before`, as its keys do, so both hold a previous token;
take the queries from `token`."""

QueriesAndKeysSwapped = Induction.but('"token", 200', '"before", 200').but(
    '("before", same),', '("token", same),'
)
"""The queries of layer 2 come from `before` and its keys from `token`, which finds the previous
position again; take queries from `token` and keys from `before`."""

TooSoft = Induction.but("200.0 * max_len**0.5 * stay", "stay").but(
    "200.0 * vocab_size**0.5 * same", "same"
)
"""The scores are so small that the softmax is nearly uniform; multiply the queries by a large
number."""

TooSoftForALongText = Induction.but('"token", 200', '"token", 3')
"""The scores of a layer, or of both, are large enough for short texts only: in a long one, many
wrong positions together outweigh the correct one. Make each correct score about 100 after the
division by the square root of d_head."""

PositionOutweighsTheMatch = Induction.but(
    "return {",
    "recent = torch.zeros(d_model, 1, dtype=torch.float64)\n"
    'recent[parts["position"], 0] = torch.arange(max_len, dtype=torch.float64)\n'
    "ones = torch.zeros_like(recent)\n"
    'ones[parts["position"]] = (vocab_size + 1) ** 0.5\n'
    "return {",
).but(
    '"query2": …\n"key2": …',
    '"query2": torch.cat(\n'
    '    (wiring("token", 100.0 * (vocab_size + 1) ** 0.5 * same), ones), dim=1\n'
    "),\n"
    '"key2": torch.cat((wiring("before", same), recent), dim=1),',
)
"""Layer 2 also prefers later positions, and over a long distance this outweighs the match; its
scores should depend on the token alone."""

HeadsAsWideAsTheContext = Induction.but(
    "same = torch.eye(vocab_size, dtype", "same = torch.eye(vocab_size, max_len, dtype"
)
"""The heads that read tokens have a d_head of `max_len`, so if there are more tokens than positions,
those from `max_len` on have no feature; d_head need not be the same in all layers: take
`vocab_size`."""

CopiesTheMatchedToken = Induction.but('"value2": wiring("token"', '"value2": wiring("before"')
"""Layer 2 copies `before`, which equals the current token; copy `token`, which is what came
next."""

CopiesThePosition = Induction.but(
    '"value2": …',
    '"value2": wiring("position", torch.eye(max_len, vocab_size, dtype=torch.float64)),',
)
"""Layer 2 copies `position`; copy `token`."""


class Inside(Correct, exercise="look_inside"):
    def induction_score(attention):
        half = attention.shape[-1] // 2
        places = torch.arange(half, 2 * half)
        return attention[..., places, places - half + 1].mean(dim=(0, 2))

    def logit_lens(streams, gain, bias, unembedding):
        read = F.layer_norm(streams, gain.shape, gain, bias)
        return F.linear(read, unembedding).softmax(dim=-1)

    def without_head(mixed, weight, bias, head):
        is_kept = torch.arange(mixed.shape[1]) != head
        kept = mixed * is_kept[:, None, None]
        return kept.transpose(1, 2).flatten(2) @ weight.T + bias

    def bits_lost(logits, ablated, targets):
        losses = [F.cross_entropy(x.transpose(1, 2), targets) for x in (logits, ablated)]
        return (losses[1] - losses[0]) / math.log(2)


PositionZeroed = Inside.but(
    "is_kept = torch.arange(mixed.shape[1]) != head\nkept = mixed * is_kept[:, None, None]",
    "is_kept = torch.arange(mixed.shape[2]) != head\nkept = mixed * is_kept[:, None]",
)
"""`without_head` sets a position of all heads to zero, not a head: in `mixed`, heads are on the
second axis, before the length."""

LensOverflows = Inside.but(
    "return F.linear(read, unembedding).softmax(dim=-1)",
    "shares = F.linear(read, unembedding).exp()\nreturn shares / shares.sum(dim=-1, keepdim=True)",
)
"""`logit_lens` computes the softmax without subtracting the largest logit, so the exponentials of
large logits overflow: use torch.softmax."""

ExponentialsOverflow = Inside.but(
    "losses = …",
    "losses = [\n"
    "    F.nll_loss((x - x.exp().sum(dim=-1, keepdim=True).log()).transpose(1, 2), targets)\n"
    "    for x in (logits, ablated)\n"
    "]",
)
"""`bits_lost` adds up the exponentials of the logits, which overflow if they are large: subtract the
largest logit first, as torch.logsumexp and F.cross_entropy do."""

LastDepthTakenAsNormalised = Inside.but(
    "read = F.layer_norm(streams, gain.shape, gain, bias)",
    "read = F.layer_norm(streams[:-1], gain.shape, gain, bias)\n"
    "read = torch.cat([read, streams[-1:]])",
)
"""The last depth is decoded without the norm, as if it had been applied already. Here every depth
is a residual stream before the final norm, the last one too."""

NormOmitted = Inside.but("read = …", "read = streams * gain + bias")
"""Gain and bias are applied without normalising first: subtract each vector's mean, and divide by
the root of its variance plus 1e-5."""

WeightNotTransposed = Inside.but("weight.T", "weight")
"""The matrix multiplies from the right as it is stored; nn.Linear stores (d_out, d_in): multiply by
its transpose."""

SameTokenScore = Inside.but("half + 1", "half")
"""The score measures attention to the same token of the first half; the token that followed is one
position later."""

OnePositionTooFar = Inside.but("half + 1", "half + 2")
"""The score uses the position two after the same token; use the one directly after it."""

FirstHalfCounted = Inside.but("half,", "half - 1,")
"""The average includes the last position of the first half, where nothing is repeated yet; start at
the first position of the second half."""

LastPositionLeftOut = Inside.but("2 * half)", "2 * half - 1)")
"""The average leaves out the last position; the second half includes position 2 * half - 1."""

AveragedOverAllPositions = Inside.but(
    "return attention[..., places, places - half + 1].mean(dim=(0, 2))",
    "return (\n"
    "    attention[..., places, places - half + 1].sum(dim=(0, 2))\n"
    "    / attention[:, 0, :, 0].numel()\n"
    ")",
)
"""The sum is divided by the number of all positions; divide by those of the second half."""

CountedFromTheOtherEnd = Inside.but(
    "torch.arange(half, 2 * half)", "torch.arange(half - 1, 2 * half - 1)"
)
"""The diagonal begins one position before the second half, so it has one entry too many, and the
last one was left out: leave out the first."""

QueriesAndKeysExchanged = Inside.but("places, places - half + 1", "places - half + 1, places")
"""Rows and columns are exchanged: rows are queries, columns are keys."""

HeadsAveraged = Inside.but("mean(dim=(0, 2))", "mean()")
"""The heads are averaged into one number; return one number per head."""

LensWithoutNorm = Inside.but(
    "read = …\nreturn …", "return F.linear(streams, unembedding).softmax(dim=-1)"
)
"""The lens omits the final norm; the unembedding was trained on the output of this norm."""

LensWithoutGainAndBias = Inside.but("shape, gain, bias", "shape")
"""The lens normalises without the gain and bias of the norm; apply both."""

LensWithoutEpsilon = Inside.but(
    "read = F.layer_norm(streams, gain.shape, gain, bias)",
    "centred = streams - streams.mean(dim=-1, keepdim=True)\n"
    "read = centred / centred.square().mean(dim=-1, keepdim=True).sqrt() * gain + bias",
)
"""The lens divides by the standard deviation without epsilon; the norm adds 1e-5 to the variance
before the square root, which matters where the stream is small."""

LensEpsilonOutsideTheRoot = Inside.but(
    "read = F.layer_norm(streams, gain.shape, gain, bias)",
    "centred = streams - streams.mean(dim=-1, keepdim=True)\n"
    "deviation = centred.square().mean(dim=-1, keepdim=True).sqrt()\n"
    "read = centred / (deviation + 1e-5) * gain + bias",
)
"""The lens adds epsilon to the standard deviation; the norm adds 1e-5 to the variance, under the
root, which matters where the stream is small."""

DeviationOfASample = Inside.but(
    "read = F.layer_norm(streams, gain.shape, gain, bias)",
    "centred = streams - streams.mean(dim=-1, keepdim=True)\n"
    "read = centred / (streams.std(dim=-1, keepdim=True) + 1e-5) * gain + bias",
)
"""The lens divides by torch's std plus epsilon; std divides by d_model - 1, and a LayerNorm by
d_model, with epsilon added to the variance under the root: use F.layer_norm."""

VarianceOfASample = Inside.but(
    "read = F.layer_norm(streams, gain.shape, gain, bias)",
    "mean, variance = streams.mean(dim=-1, keepdim=True), streams.var(dim=-1, keepdim=True)\n"
    "read = (streams - mean) / (variance + 1e-5).sqrt() * gain + bias",
)
"""The variance is divided by one less than the number of features, as `var` and `std` do by
default; the norm divides by the number of features (`correction=0`)."""

UnembeddingNotTransposed = Inside.but("F.linear(read, unembedding)", "(read @ unembedding)")
"""The unembedding matrix is not transposed, which works only if there are as many tokens as
features; the logit of a token is a dot product with its row."""

SoftmaxOverPositions = Inside.but("dim=-1", "dim=-2")
"""The softmax runs over the positions; apply it over the vocabulary, the last axis."""

LogitsReturned = Inside.but("(read, unembedding).softmax(dim=-1)", "(read, unembedding)")
"""The lens returns logits; return probabilities."""

OthersScaledUp = Inside.but(
    "is_kept[:, None, None]", "is_kept[:, None, None] * mixed.shape[1] / (mixed.shape[1] - 1)"
)
"""The other heads are scaled up, as in dropout; ablating a head must not change them."""

HeadHalved = Inside.but("is_kept[:, None, None]", "(0.5 + 0.5 * is_kept[:, None, None])")
"""The head is weakened instead of ablated; its features must be 0."""

BiasRemovedToo = Inside.but("T + bias", "T")
"""The bias is removed with the head; it belongs to no head and stays."""

OnlyThisHeadKept = Inside.but("(mixed.shape[1]) != head", "(mixed.shape[1]) == head")
"""This head is kept and the others are ablated; ablate this head and keep the others."""

ZeroedAfterTheProjection = Inside.but(
    "is_kept = …\nreturn …",
    "output = F.linear(mixed.transpose(1, 2).flatten(2), weight, bias)\n"
    "width = mixed.shape[-1]\n"
    "output[..., head * width : (head + 1) * width] = 0\n"
    "return output",
)
"""Features are set to zero after the output projection, where all heads are mixed; a head has its
own features only before this projection."""

RowsZeroedInsteadOfColumns = Inside.but(
    "is_kept = …\nreturn …",
    "width = mixed.shape[-1]\n"
    "kept = weight.clone()\n"
    "kept[head * width : (head + 1) * width] = 0\n"
    "return F.linear(mixed.transpose(1, 2).flatten(2), kept, bias)",
)
"""Rows of `weight`, the outputs of the projection, are set to zero; a head's features are
inputs, so they belong to columns."""

HeadsMergedWrongly = Inside.but(
    "transpose(1, 2).flatten(2)", "reshape(len(kept), kept.shape[2], -1)"
)
"""The heads are flattened without a transpose, which mixes positions and features; move the heads
after the positions first."""

ChangedInPlace = Inside.but(
    "is_kept = …\nreturn …",
    "mixed[:, head] = 0\nreturn mixed.transpose(1, 2).flatten(2) @ weight.T + bias",
)
"""The head is set to zero in place, so the next head is measured without it as well; work on a
copy."""

NatsInsteadOfBits = Inside.but("(losses[1] - losses[0]) / math.log(2)", "losses[1] - losses[0]")
"""The loss is in nats; divide by ln 2."""

SignInverted = Inside.but("[1] - losses[0]", "[0] - losses[1]")
"""The sign is inverted: an increase of the loss without the head must be positive."""

NeverNegative = Inside.but(") / math.log(", ").abs() / math.log(")
"""The absolute difference is returned; a model may be better without a part, and then the number is
negative."""

SummedOverTokens = Inside.but("transpose(1, 2), targets", 'mT, targets, reduction="sum"')
"""The losses are summed over the tokens; bits per token are their mean."""

LogarithmOfTheMeanProbability = Inside.but(
    "losses = …",
    "losses = [\n"
    "    -x.softmax(dim=-1).gather(-1, targets[..., None]).mean().log()\n"
    "    for x in (logits, ablated)\n"
    "]",
)
"""The probabilities of the targets are averaged before the logarithm; a cross-entropy averages
negative logarithms, to which an improbable token contributes most."""


EpsilonInTheLogarithm = Inside.but(
    "losses = …",
    "losses = [\n"
    "    -(x.softmax(dim=-1).gather(-1, targets[..., None]) + 1e-9).log().mean()\n"
    "    for x in (logits, ablated)\n"
    "]",
)
"""A small number, 1e-9, is added to the probabilities before the logarithm, so the loss of an
improbable token is too small; use log_softmax or F.cross_entropy on the logits."""

LogarithmOfZero = Inside.but(
    "losses = …",
    "losses = [\n"
    "    -x.softmax(dim=-1).gather(-1, targets[..., None]).log().mean()\n"
    "    for x in (logits, ablated)\n"
    "]",
)
"""The loss is the logarithm of a softmax, which rounds a very small probability to 0, so the loss is
infinite; use log_softmax or F.cross_entropy on the logits."""


class Model(Correct, exercise="language_model"):
    def step(config, weights, tokens, cache=None):
        heads, d_head = config["num_heads"], config["d_model"] // config["num_heads"]
        shared = heads // (config["num_kv_heads"] or heads)
        past = 0 if cache is None else cache["length"]
        length = tokens.shape[1]

        def apply(name, x):
            x = x @ weights[name + ".weight"].T
            return x + weights[name + ".bias"] if name + ".bias" in weights else x

        def norm(name, x):
            if config["norm"] == "layer":
                x = F.layer_norm(x, x.shape[-1:], eps=config["norm_eps"])
                return x * weights[name + ".gain"] + weights[name + ".bias"]
            return F.rms_norm(x, x.shape[-1:], weights[name + ".gain"], config["norm_eps"])

        def rotate(x):
            rates = config["rotary_base"] ** -(torch.arange(0, d_head, 2).double() / d_head)
            angle = (past + torch.arange(x.shape[2])).double()[:, None] * rates
            even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
            first = even * angle.cos() - odd * angle.sin()
            second = even * angle.sin() + odd * angle.cos()
            return torch.stack((first, second), dim=-1).flatten(-2).to(x.dtype)

        def attend(block, x):
            query, key, value = (
                apply(f"{block}.attention.{part}", x).unflatten(-1, (-1, d_head)).transpose(1, 2)
                for part in ("query", "key", "value")
            )
            if config["positions"] == "rotary":
                query, key = rotate(query), rotate(key)
            if cache is not None:
                key = torch.cat((cache[block][0], key), dim=2)
                value = torch.cat((cache[block][1], value), dim=2)
            new[block] = (key, value)
            key, value = (part.repeat_interleave(shared, dim=1) for part in (key, value))
            scores = query @ key.mT / d_head**0.5
            later = torch.ones(length, past + length).triu(past + 1).bool()
            scores = scores.masked_fill(later, -math.inf)
            found = scores.softmax(dim=-1) @ value
            return apply(f"{block}.attention.output", found.transpose(1, 2).flatten(2))

        def think(block, x):
            up = apply(f"{block}.feed_forward.up", x)
            if config["activation"] == "swiglu":
                up = F.silu(apply(f"{block}.feed_forward.gate", x)) * up
            else:
                up = F.gelu(up)
            return apply(f"{block}.feed_forward.down", up)

        new = {"length": past + length}
        x = weights["embedding.tokens.weight"][tokens]
        if config["positions"] == "learned":
            x = x + weights["embedding.positions.table.weight"][past : past + length]
        for i in range(config["num_layers"]):
            block = f"blocks.{i}"
            x = x + attend(block, norm(f"{block}.attention_norm", x))
            x = x + think(block, norm(f"{block}.feed_forward_norm", x))
        return norm("final_norm", x) @ weights["embedding.tokens.weight"].T, new

    def language_model(config, weights, tokens):
        logits, _ = step(config, weights, tokens)
        return logits


SmallNumberInsteadOfMinusInfinity = Model.but("(later, -math.inf)", "(later, -100.0)")
"""Masked scores are set to a number such as -100 or -1e4. Where the other scores are even lower,
later tokens get all the weight: set masked scores to minus infinity."""

NoMask = Model.but("later = …\nscores = …", "")
"""Every token sees later tokens; a token must see only itself and earlier ones."""

RotaryBaseHardCoded = Model.but('config["rotary_base"] **', "10_000.0 **")
"""The base of the rotary embeddings is fixed at 10,000; use `config["rotary_base"]`."""

RotaryExponentByDModel = Model.but(
    "torch.arange(0, d_head, 2).double() / d_head",
    'torch.arange(0, d_head, 2).double() / config["d_model"]',
)
"""The exponent of the rotary embeddings is 2i / d_model; it should be 2i / d_head, because each
head rotates its own d_head features."""

MaskOfOnesAdded = Model.but(
    "later = …\nscores = …", "scores = scores + torch.ones(length, past + length).tril(past)"
)
"""A mask of 1 and 0 is added to the scores, as `scaled_dot_product_attention` does with a mask of
floats, so later tokens still get weight; use a boolean mask, or add minus infinity instead of 0 and
0 instead of 1."""

OwnTokenMasked = Model.but("past + 1", "past")
"""A token does not see itself, so the first one sees nothing, and its softmax is NaN; each token
must also see itself."""

NoFinalNorm = Model.but('norm("final_norm", x)', "x")
"""The final norm is missing before the logits."""

NormAfterTheSum = Model.but(
    "x = x + attend(block, …", 'x = norm(f"{block}.attention_norm", x + attend(block, x))'
).but("x = x + think(block, …", 'x = norm(f"{block}.feed_forward_norm", x + think(block, x))')
"""The norms come after the residual connections; in a pre-norm model, they come before attention
and feed-forward, and the stream is not normalised."""

ResidualFromTheNormOutput = Model.but(
    "x = x + attend(block, …\nx = …",
    'x = norm(f"{block}.attention_norm", x)\n'
    "x = x + attend(block, x)\n"
    'x = norm(f"{block}.feed_forward_norm", x)\n'
    "x = x + think(block, x)",
)
"""The outputs of attention and feed-forward are added to the normalised stream; add them to the
stream before the norm."""

ValuesRotatedToo = Model.but(
    "key = rotate(query), rotate(key)", "key, value = rotate(query), rotate(key), rotate(value)"
)
"""The values are rotated as well; rotate only queries and keys."""

HalvesPairedInsteadOfNeighbours = Model.but(
    "unflatten(-1, (-1, 2)).unbind(-1)", "chunk(2, dim=-1)"
).but("stack((first, second), dim=-1).flatten(-2)", "cat((first, second), dim=-1)")
"""Feature i is paired with feature i + d_head / 2; the pairs should be neighbours, 2i and
2i + 1."""

ScaledByDModel = Model.but("d_head**0", "x.shape[-1] ** 0")
"""The scores are divided by the square root of d_model; use the square root of d_head, the width of
a query."""

NotScaled = Model.but("mT / d_head**0.5", "mT")
"""The scores are not divided by the square root of d_head."""

HeadsSplitByAView = Model.but(
    "unflatten(-1, (-1, d_head)).transpose(1, 2)", "view(len(x), -1, length, d_head)"
)
"""The features are split into heads by a view that mixes positions with features; split the
features of each token first, then move the heads before the positions."""

ReluInsteadOfGelu = Model.but("F.gelu(up)", "F.relu(up)")
"""The activation function is ReLU; this family uses GELU or SwiGLU, as `config` says."""

GeluByTanh = Model.but("gelu(up)", 'gelu(up, approximate="tanh")')
"""The GELU is the tanh approximation; this family uses the exact one."""

EpsilonHardCoded = Model.but('config["norm_eps"]', "1e-5", times=2)
"""The epsilon of the norms is hard-coded; use `config["norm_eps"]`."""

FinalNormWithTheDefault = Model.but(
    'config["norm_eps"]', '(1e-5 if name == "final_norm" else config["norm_eps"])', times=2
)
"""The final norm uses 1e-5 as its epsilon; use `config["norm_eps"]`, as for the others."""

GateAndUpExchanged = Model.but(
    '(apply(f"{block}.feed_forward.gate", x)) * up', '(up) * apply(f"{block}.feed_forward.gate", x)'
)
"""The SiLU is applied to `up`; apply it to `gate`."""

KeyHeadsAlternate = Model.but("repeat_interleave(shared, dim=1)", "repeat(1, shared, 1, 1)")
"""Query heads use the key heads in the order 0 1 0 1; neighbours must share one, 0 0 1 1."""

PositionsRestart = Model.but("(past + torch.arange(x.shape[2]))", "torch.arange(x.shape[2])").but(
    '["embedding.positions.table.weight"][past : past + length]',
    '["embedding.positions.table.weight"][:length]',
)
"""Every step counts its positions from 0; its first token comes after all tokens in the cache."""

MaskForTheFirstStepOnly = Model.but(
    "scores = scores.masked_fill(later, -math.inf)",
    "scores = scores.masked_fill(later & (cache is None), -math.inf)",
)
"""Only the first step is masked, so in a later step a token sees the new tokens after it; every
step needs a mask."""

StepMaskAlignedAtTheWrongCorner = Model.but("past + 1", "1")
"""The mask of a step begins at the first key, so new tokens see only the oldest keys; shift it by
the number of tokens in the cache."""

OnlyTheLastStepCached = (
    Model.but("new[block] = (key, value)", "")
    .but(
        "if cache is not None:\n    key = …",
        "new[block] = (key, value)\n"
        "if cache is not None:\n"
        "    key = torch.cat((cache[block][0], key), dim=2)",
    )
    .but("past + length}", "length}")
)
"""The cache contains only the keys and values of the last step; append them to the earlier ones."""

BiasesForgotten = Model.but("x = …\nreturn x + …", 'return x @ weights[name + ".weight"].T')
"""The biases of the linear layers are not added; add them if the weights contain any."""


BiasesByTheNorm = Model.but(
    'if name + ".bias" in weights else x', 'if config["norm"] == "layer" else x'
)
"""The biases of the linear layers are added if the norm is `layer`; this does not follow: add a
bias wherever the weights contain one."""

BiasesByOneLayer = Model.but(
    'if name + ".bias" in weights else x',
    'if name[:9] + "attention.output.bias" in weights else x',
).but('weights[name + ".bias"] if', 'weights.get(name + ".bias", 0.0) if')
"""One layer of a block decides whether all add their biases; check for each layer whether the
weights contain one."""


BiasesByTheFirstLayer = Model.but(
    'if name + ".bias" in weights else x', 'if "blocks.0.attention.query.bias" in weights else x'
)
"""The first linear layer decides whether all of them add a bias; some may have none: check
for each layer whether the weights contain one."""


class Capstone(Correct, exercise="capstone"): ...


ModelOfTheCourse = Capstone.but(files=of_the_course)
"""The weights come with the course; train your own."""

TiedMatrixCountedTwice = Capstone.but('660608, "bits_per_byte"', '726144, "bits_per_byte"')
"""The tied matrix is counted twice; it is one tensor that is used twice."""

NatsPerByte = Capstone.but("return …", 'return {"parameters": 660608, "bits_per_byte": 1.3115}')
"""The number is in nats; divide by ln 2."""

BitsPerToken = Capstone.but("return …", 'return {"parameters": 660608, "bits_per_byte": 4.1965}')
"""The bits are divided by the number of tokens; divide by the number of bytes, so that models with
different tokenizers can be compared."""

NatsPerToken = Capstone.but("return …", 'return {"parameters": 660608, "bits_per_byte": 2.9088}')
"""The number is the loss in nats per token; return bits per byte, which can be compared across
tokenizers."""

WholeHeldOutPart = Capstone.but("return …", 'return {"parameters": 660608, "bits_per_byte": 1.762}')
"""The number is for the whole held-out part; measure on `passage`, its first 3000 characters."""

WeightsNotFinite = Capstone.but(files=with_not_a_number)
"""The weights contain NaN or infinity; look at the loss of the run, and submit a model from before
it diverged."""

ConfigurationOfAnotherModel = Capstone.but(files=with_another_configuration)
"""The configuration is that of another run; copy config.json and model.safetensors from the same
folder."""

PickleInDisguise = Capstone.but(files=pickled)
"""The weights were saved by torch.save, which writes a pickle; loading a pickle can run any code,
so it is rejected."""

TextLostInTokens = Capstone.but(files=with_unknown_characters)
"""The tokenizer maps all unknown characters to one token; bits per byte are meaningful only if the
text can be decoded again."""


class Ablation(Correct, exercise="ablation"):
    def most_missed(bits_without, num_layers, num_heads):
        whole = bits_without([])
        best = None
        for layer in range(num_layers):
            for head in range(num_heads):
                cost = bits_without([(layer, head)]) - whole
                if best is None or cost > best[2]:
                    best = (layer, head, cost)
        return best

    def ablation():
        return {"cost": 0.1612}


SmallestCostReturned = Ablation.but("cost > best", "cost < best")
"""The head with the smallest cost is returned; return the one with the largest."""

LargestAbsoluteChange = Ablation.but("cost > best[2]", "abs(cost) > abs(best[2])")
"""The head with the largest absolute change is returned, even if the model is better without it;
return the one with the largest cost."""

OnlyCostsAboveZero = Ablation.but("best = None", "best = 0, 0, 0.0").but("best is None or ", "")
"""The search starts at a cost of 0, so no head is found if all the costs are negative:
start with the first head."""

AllOtherHeads = Ablation.but(
    "bits_without([(layer, head)])",
    "bits_without(\n"
    "    [\n"
    "        (i, h)\n"
    "        for i in range(num_layers)\n"
    "        for h in range(num_heads)\n"
    "        if (i, h) != (layer, head)\n"
    "    ]\n"
    ")",
)
"""All heads but one are ablated; ablate one, and keep all others."""

OnlyTheCostliestLayer = Ablation.but(
    "for layer in range(num_layers):",
    "layers = range(num_layers)\n"
    "by_layer = [bits_without([(i, h) for h in range(num_heads)]) for i in layers]\n"
    "for layer in [by_layer.index(max(by_layer))]:",
)
"""Only the layer that costs most as a whole is searched; the head that costs most may be in
another: ablate every head of every layer, one at a time."""

HeadsStayAblated = Ablation.but("best = None", "best, gone, before = None, [], whole").but(
    "cost = bits_without([(layer, head)]) - whole",
    "gone.append((layer, head))\nnow = bits_without(gone)\ncost, before = now - before, now",
)
"""The earlier heads stay ablated, so the later ones are measured in a model that is already
damaged: ablate one at a time, in the whole model."""

LastHeadForgotten = Ablation.but("(num_heads)", "(num_heads - 1)")
"""The last head of each layer is never ablated; ablate all `num_heads`."""

WholeModelNotSubtracted = Ablation.but("whole = bits_without([])", "").but(
    "([(layer, head)]) - whole", "([(layer, head)])"
)
"""The bits without the head are returned as its cost; subtract the bits of the whole model."""

HeadsAblatedTogether = Ablation.but("best = None", "best, gone = None, []").but(
    "cost = …", "gone.append((layer, head))\ncost = bits_without(gone) - whole"
)
"""Heads stay ablated, so each is measured without those before it; ablate one at a time."""

WholeLayers = Ablation.but("(layer, head)", "(layer, h) for h in range(num_heads)")
"""A whole layer is ablated at once; ablate one head at a time."""

LayerAndHeadExchanged = Ablation.but("layer, head,", "head, layer,")
"""Layer and head are returned in the wrong order; the layer comes first."""

IndexDividedByTheLayers = Ablation.but(
    "return best", "return *divmod(best[0] * num_heads + best[1], num_layers), best[2]"
)
"""The index in a list of all heads is divided by the number of layers; a layer has `num_heads` of
them, so layer and head are `divmod(index, num_heads)`."""

BitsWithoutTheHead = Ablation.but('{"cost": 0.1612}', '{"cost": 2.0533}')
"""The report gives the bits without the head; the cost is the difference from the bits of the whole
model."""

CostWithTheWrongSign = Ablation.but('{"cost": 0.1612}', '{"cost": -0.1612}')
"""The sign in the report is inverted: an increase of the loss must be positive."""

PredictionForOtherWeights = Ablation.but(files=predicted_for_other_weights)
"""The prediction was sealed for other weights; predict again after training."""

IntervalUpsideDown = Ablation.but(files=predicted_upside_down)
"""`low` is above `high`; the interval goes from low to high."""

IntervalTooWide = Ablation.but(files=predicted_anything)
"""The interval is too wide to be a useful prediction; it may be at most half a bit per byte
wide."""

AnotherHeadCostsMore = Ablation.but(
    '{"cost": 0.1612}', '{"cost": 0.1059}', files=predicted_another_head
)
"""Another head costs more than the predicted one; a wrong prediction costs one point."""
