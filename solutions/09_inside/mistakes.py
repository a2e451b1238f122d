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
        sizes = {"token": vocab_size, "place": max_len, "before": vocab_size, "guess": vocab_size}
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
            "query1": wiring("place", 200.0 * max_len**0.5 * stay),
            "key1": wiring("place", onward),
            "value1": wiring("token", same),
            "output1": wiring("before", same).T.contiguous(),
            "query2": wiring("token", 200.0 * vocab_size**0.5 * same),
            "key2": wiring("before", same),
            "value2": wiring("token", same),
            "output2": wiring("guess", same).T.contiguous(),
        }


LooksAtItself = Induction.but("onward = stay.roll(1, dims=1)\nonward[-1] = 0", "").but(
    '"place", onward', '"place", stay'
)
"""Layer 1 looks at its own place, so that it notes each token at itself; the place before is to
answer, so its key has to be one place further on."""

LooksAtTheNextPlace = Induction.but("1, dims", "-1, dims").but("onward[-1]", "onward[0]")
"""Layer 1 asks for the place behind, which a causal head never sees; ask for the place before."""

LooksTwoBack = Induction.but("1, dims", "2, dims").but("onward[-1]", "onward[-2:]")
"""Layer 1 looks two places back; the key of a place is what the very next one asks for."""

MatchesTheTokenItself = Induction.but('("before", same),', '("token", same),')
"""Layer 2 compares with the token of a place instead of with what layer 1 noted there, so it finds
the same token, and not what came after it."""

AsksForTheTokenBefore = Induction.but('"token", 200', '"before", 200').but(
    '("before", same),', '("token", same),'
)
"""Layer 2 asks with what layer 1 noted and compares with the tokens, which finds the place before
it again; it is to ask with its token and to compare with the notes."""

TooSoft = Induction.but("200.0 * max_len**0.5 * stay", "stay").but(
    "200.0 * vocab_size**0.5 * same", "same"
)
"""The scores are so small that the softmax spreads over everything; multiply the queries by a large
number."""

OneLayerTooSoft = Induction.but('"token", 200', '"token", 3')
"""The scores of layer 2 are so small that many wrong places outvote the right one; make them as
large as those of layer 1."""

CopiesTheMatchedToken = Induction.but('"value2": wiring("token"', '"value2": wiring("before"')
"""Layer 2 copies the token that it compared with, which is the one that asks; the token of the
place itself is what came next."""

CopiesThePlace = Induction.but(
    '"value2": …', '"value2": wiring("place", torch.eye(max_len, vocab_size, dtype=torch.float64)),'
)
"""Layer 2 copies where the place is instead of which token stands there."""


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


SameTokenScore = Inside.but("half + 1", "half")
"""The score measures how much a head looks at the same token of the first half; what followed it
stands one place further on."""

OneTooFar = Inside.but("half + 1", "half + 2")
"""The score looks two places behind the same token; the one that followed it is one place
behind."""

FirstHalfCounted = Inside.but("half,", "half - 1,")
"""The end of the first half is averaged in, where nothing has come before; begin at the first place
of the second half."""

AveragedOverAllPlaces = Inside.but(
    "return attention[..., places, places - half + 1].mean(dim=(0, 2))",
    "return (\n"
    "    attention[..., places, places - half + 1].sum(dim=(0, 2))\n"
    "    / attention[:, 0, :, 0].numel()\n"
    ")",
)
"""The sum is divided by all places of the sequence; only those of the second half are asked."""

QueriesAndKeysExchanged = Inside.but("places, places - half + 1", "places - half + 1, places")
"""Rows and columns are exchanged: the row is the place that looks, the column the one it looks
at."""

HeadsAveraged = Inside.but("mean(dim=(0, 2))", "mean()")
"""The heads are averaged into one number; every head gets its own."""

LensWithoutNorm = Inside.but(
    "read = …\nreturn …", "return F.linear(streams, unembedding).softmax(dim=-1)"
)
"""The lens leaves the final norm out; the table has learned to read what comes out of that norm."""

LensWithoutGainAndBias = Inside.but("shape, gain, bias", "shape")
"""The lens normalises without the norm's gain and bias, which belong to it."""

LensWithoutEpsilon = Inside.but(
    "read = F.layer_norm(streams, gain.shape, gain, bias)",
    "centred = streams - streams.mean(dim=-1, keepdim=True)\n"
    "read = centred / centred.square().mean(dim=-1, keepdim=True).sqrt() * gain + bias",
)
"""The lens divides by the bare spread; the norm adds 1e-5 to the variance before the root, which is
felt where the stream is small."""

VarianceOfASample = Inside.but(
    "read = F.layer_norm(streams, gain.shape, gain, bias)",
    "mean, variance = streams.mean(dim=-1, keepdim=True), streams.var(dim=-1, keepdim=True)\n"
    "read = (streams - mean) / (variance + 1e-5).sqrt() * gain + bias",
)
"""The variance is divided by one less than the number of features, as `var` and `std` do unless
they are told `correction=0`; the norm divides by the number of features."""

UntransposedTable = Inside.but("F.linear(read, unembedding)", "(read @ unembedding)")
"""The table is multiplied as it is, which fits only if there are as many tokens as features; the
score of a token is a dot product with its row."""

SoftmaxOverPlaces = Inside.but("dim=-1", "dim=-2")
"""The softmax runs over the places of the text; it belongs to the vocabulary, the last axis."""

LogitsLeft = Inside.but("(read, unembedding).softmax(dim=-1)", "(read, unembedding)")
"""The lens returns logits; probabilities are asked for."""

OthersScaledUp = Inside.but(
    "is_kept[:, None, None]", "is_kept[:, None, None] * mixed.shape[1] / (mixed.shape[1] - 1)"
)
"""The heads that are left are scaled up, as dropout would; a head that is taken away leaves the
others as they are."""

HeadHalved = Inside.but("is_kept[:, None, None]", "(0.5 + 0.5 * is_kept[:, None, None])")
"""The head is made weaker instead of taken away; its features have to be 0."""

BiasTakenAwayToo = Inside.but("T + bias", "T")
"""The bias is taken away with the head; it belongs to no head and stays."""

OnlyThisHead = Inside.but("(mixed.shape[1]) != head", "(mixed.shape[1]) == head")
"""This head is kept and the others are taken away; it is the other way round."""

ZeroedBehindTheMap = Inside.but(
    "is_kept = …\nreturn …",
    "output = F.linear(mixed.transpose(1, 2).flatten(2), weight, bias)\n"
    "width = mixed.shape[-1]\n"
    "output[..., head * width : (head + 1) * width] = 0\n"
    "return output",
)
"""Features are set to zero behind the map that joins the heads, where each belongs to all heads; a
head has features of its own only on the way into it."""

RowsOfTheMap = Inside.but(
    "is_kept = …\nreturn …",
    "width = mixed.shape[-1]\n"
    "kept = weight.clone()\n"
    "kept[head * width : (head + 1) * width] = 0\n"
    "return F.linear(mixed.transpose(1, 2).flatten(2), kept, bias)",
)
"""Rows of `weight` are set to zero, which belong to what comes out of the map; a head's features go
into it, so they meet its columns."""

HeadsMergedWrongly = Inside.but(
    "transpose(1, 2).flatten(2)", "reshape(len(kept), kept.shape[2], -1)"
)
"""The heads are flattened before they stand side by side, so that places and features are mixed;
bring the heads behind the places first."""

ChangedInPlace = Inside.but(
    "is_kept = …\nreturn …",
    "mixed[:, head] = 0\nreturn mixed.transpose(1, 2).flatten(2) @ weight.T + bias",
)
"""The head is set to zero in what was handed over, so that the next head is measured without it,
too; work on a copy."""

LostInNats = Inside.but("(losses[1] - losses[0]) / math.log(2)", "losses[1] - losses[0]")
"""The loss is in nats; a bit is ln 2 nats."""

GainInsteadOfLoss = Inside.but("[1] - losses[0]", "[0] - losses[1]")
"""The sign is the other way round: what the model needs more without the head is positive."""

NeverNegative = Inside.but(") / math.log(", ").abs() / math.log(")
"""The size of the difference is returned without its sign; a model may be better off without a
part, and then the number is negative."""

SummedOverTokens = Inside.but("transpose(1, 2), targets", 'mT, targets, reduction="sum"')
"""The losses are summed over the tokens; bits per token are their mean."""


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


NoMask = Model.but("later = …\nscores = …", "")
"""Every token sees the tokens behind it; a token sees itself and what came before."""

BaseOfThePaper = Model.but('config["rotary_base"] **', "10_000.0 **")
"""The base of the rotary positions is 10,000, whatever `config["rotary_base"]` says."""

NotEvenItself = Model.but("past + 1", "past")
"""A token does not see itself, and the first one sees nothing, whose softmax is NaN; a token sees
all up to itself."""

NoFinalNorm = Model.but('norm("final_norm", x)', "x")
"""The logits are read off without the final norm."""

NormAfterTheSum = Model.but(
    "x = x + attend(block, …", 'x = norm(f"{block}.attention_norm", x + attend(block, x))'
).but("x = x + think(block, …", 'x = norm(f"{block}.feed_forward_norm", x + think(block, x))')
"""The norms stand behind the sums; in a pre-norm model they stand in front of attention and
feed-forward, and the stream is left alone."""

ResidualFromTheNorm = Model.but(
    "x = x + attend(block, …\nx = …",
    'x = norm(f"{block}.attention_norm", x)\n'
    "x = x + attend(block, x)\n"
    'x = norm(f"{block}.feed_forward_norm", x)\n'
    "x = x + think(block, x)",
)
"""What attention and feed-forward find is added to the normalised tokens; it is added to the stream
as it was before the norm."""

ValuesTurnedToo = Model.but(
    "key = rotate(query), rotate(key)", "key, value = rotate(query), rotate(key), rotate(value)"
)
"""The values are turned by their places as well; only queries and keys are."""

PairsInHalves = Model.but("unflatten(-1, (-1, 2)).unbind(-1)", "chunk(2, dim=-1)").but(
    "stack((first, second), dim=-1).flatten(-2)", "cat((first, second), dim=-1)"
)
"""Feature i is turned with feature i + d_head / 2; here the pairs are neighbours, 2i and 2i + 1."""

ScaledByDModel = Model.but("d_head**0", "x.shape[-1] ** 0")
"""The scores are divided by the root of d_model; it is the root of d_head, the width that is summed
over."""

NotScaled = Model.but("mT / d_head**0.5", "mT")
"""The scores are not divided by the root of d_head."""

HeadsCutByView = Model.but(
    "unflatten(-1, (-1, d_head)).transpose(1, 2)", "view(len(x), -1, length, d_head)"
)
"""The features are cut into heads by a view that mixes places with features; give each token its
heads first, then bring the heads in front of the places."""

GeluByTanh = Model.but("gelu(up)", 'gelu(up, approximate="tanh")')
"""The GELU is the approximation by tanh; this family has the exact one."""

EpsilonOfItsOwn = Model.but('config["norm_eps"]', "1e-5", times=2)
"""The norms add an epsilon of their own; the configuration says which."""

GateAndUpExchanged = Model.but(
    '(apply(f"{block}.feed_forward.gate", x)) * up', '(up) * apply(f"{block}.feed_forward.gate", x)'
)
"""The SiLU is applied to `up`; it belongs to `gate`."""

HeadsSharedInTurns = Model.but("repeat_interleave(shared, dim=1)", "repeat(1, shared, 1, 1)")
"""Query heads take the key heads in turns, 0 1 0 1; neighbours share one, 0 0 1 1."""

PlacesBeginAgain = Model.but("(past + torch.arange(x.shape[2]))", "torch.arange(x.shape[2])").but(
    '["embedding.positions.table.weight"][past : past + length]',
    '["embedding.positions.table.weight"][:length]',
)
"""Every step counts its places from 0; its first token stands behind all that are in the cache."""

MaskOfTheStepInTheWrongCorner = Model.but("past + 1", "1")
"""The mask of a step begins at the first key, so that new tokens see only the oldest; shift it by
the number of tokens in the cache."""

NewestStepRemembered = (
    Model.but("new[block] = (key, value)", "")
    .but(
        "if cache is not None:\n    key = …",
        "new[block] = (key, value)\n"
        "if cache is not None:\n"
        "    key = torch.cat((cache[block][0], key), dim=2)",
    )
    .but("past + length}", "length}")
)
"""The cache holds the keys and values of the last step only; append them to those before."""

BiasesForgotten = Model.but("x = …\nreturn x + …", 'return x @ weights[name + ".weight"].T')
"""The linear maps leave their biases out where the weights hold some."""


class Capstone(Correct, exercise="capstone"): ...


ModelOfTheCourse = Capstone.but(files=of_the_course)
"""The weights come with the course; train your own."""

TableCountedTwice = Capstone.but('660608, "bits_per_byte"', '726144, "bits_per_byte"')
"""The tied table is counted twice; it is one tensor that is used twice."""

NatsPerByte = Capstone.but("return …", 'return {"parameters": 660608, "bits_per_byte": 1.3115}')
"""The number is in nats; a bit is ln 2 nats."""

BitsPerToken = Capstone.but("return …", 'return {"parameters": 660608, "bits_per_byte": 4.1965}')
"""The bits are divided by the number of tokens; per byte, models with any tokenizer can be
compared."""

NatsPerToken = Capstone.but("return …", 'return {"parameters": 660608, "bits_per_byte": 2.9088}')
"""The number is the loss in nats per token; bits per byte can be compared between tokenizers."""

NotANumber = Capstone.but(files=with_not_a_number)
"""The weights hold NaN or infinity; look at the loss of the run, and hand in a model from before it
broke."""

ConfigurationOfAnotherModel = Capstone.but(files=with_another_configuration)
"""The configuration is that of another run; copy config.json and model.safetensors from one
folder."""

PickleInDisguise = Capstone.but(files=pickled)
"""The weights were saved by torch.save, which writes a pickle; reading one can run any code, so
none is read."""

TextLostInTokens = Capstone.but(files=with_unknown_characters)
"""The tokenizer maps what it does not know to one token; bits per byte count only if the text can
be read again."""


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


LeastMissed = Ablation.but("cost > best", "cost < best")
"""The head with the smallest cost is returned; the one that is missed most has the largest."""

LargestChange = Ablation.but("cost > best[2]", "abs(cost) > abs(best[2])")
"""The head whose removal changes most is returned, also if the model is better off without it; what
is missed is a cost above 0."""

OnlyCostsAboveZero = Ablation.but("best = None", "best = 0, 0, 0.0").but("best is None or ", "")
"""The search starts at a cost of 0, so nothing is found where the model is better off without each
head: start with the first head."""

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
"""All heads but one are taken away; take away one, and leave all others."""

HeadsStayAway = Ablation.but("best = None", "best, gone, before = None, [], whole").but(
    "cost = bits_without([(layer, head)]) - whole",
    "gone.append((layer, head))\nnow = bits_without(gone)\ncost, before = now - before, now",
)
"""The heads that were taken away before stay away, so the later ones are missed in a model that is
broken already: take one away at a time, from the whole model."""

LastHeadForgotten = Ablation.but("(num_heads)", "(num_heads - 1)")
"""The last head of each layer is never taken away."""

WholeModelNotSubtracted = Ablation.but("whole = bits_without([])", "").but(
    "([(layer, head)]) - whole", "([(layer, head)])"
)
"""What the model needs without the head is returned as its cost; subtract what the whole model
needs."""

HeadsTakenAwayTogether = Ablation.but("best = None", "best, gone = None, []").but(
    "cost = …", "gone.append((layer, head))\ncost = bits_without(gone) - whole"
)
"""Heads that were taken away stay away, so that each is measured without those before it; take away
one at a time."""

WholeLayers = Ablation.but("(layer, head)", "(layer, h) for h in range(num_heads)")
"""A whole layer is taken away at once; take away one head at a time."""

LayerAndHeadExchanged = Ablation.but("layer, head,", "head, layer,")
"""Layer and head are returned in the wrong order; the layer comes first."""

WhatIsNeededWithoutIt = Ablation.but('{"cost": 0.1612}', '{"cost": 2.0533}')
"""The report says what the model needs without the head; the cost is how much more that is than
with it."""

CostWithTheWrongSign = Ablation.but('{"cost": 0.1612}', '{"cost": -0.1612}')
"""The report has the sign the other way round: what the model needs more without the head is
positive."""

PredictionForOtherWeights = Ablation.but(files=predicted_for_other_weights)
"""The prediction was sealed for other weights; predict anew after training."""

IntervalUpsideDown = Ablation.but(files=predicted_upside_down)
"""`low` is above `high`; the interval goes from low to high."""

IntervalThatSaysNothing = Ablation.but(files=predicted_anything)
"""The interval is so wide that nothing could have contradicted it; it may have half a bit per
byte."""

AnotherHeadIsMissedMore = Ablation.but(
    '{"cost": 0.1612}', '{"cost": 0.1059}', files=predicted_another_head
)
"""Another head is missed more than the one that was predicted; that was a prediction, and it costs
one point."""
