"""The named mistakes of chapter 09: what a message can name, and what graders are tested with."""

import json
import math
import struct

import torch
import torch.nn.functional as F

from classroom.answers import Mistake
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


class LooksAtItself(Mistake, exercise="induction_weights"):
    """Layer 1 looks at its own place, so that it notes each token at itself; the place before is
    to answer, so its key has to be one place further on."""

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
        return {
            "query1": wiring("place", 200.0 * max_len**0.5 * stay),
            "key1": wiring("place", stay),
            "value1": wiring("token", same),
            "output1": wiring("before", same).T.contiguous(),
            "query2": wiring("token", 200.0 * vocab_size**0.5 * same),
            "key2": wiring("before", same),
            "value2": wiring("token", same),
            "output2": wiring("guess", same).T.contiguous(),
        }


class LooksAtTheNextPlace(Mistake, exercise="induction_weights"):
    """Layer 1 asks for the place behind, which a causal head never sees; ask for the place
    before."""

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
        onward = stay.roll(-1, dims=1)
        onward[0] = 0
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


class LooksTwoBack(Mistake, exercise="induction_weights"):
    """Layer 1 looks two places back; the key of a place is what the very next one asks for."""

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
        onward = stay.roll(2, dims=1)
        onward[-2:] = 0
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


class MatchesTheTokenItself(Mistake, exercise="induction_weights"):
    """Layer 2 compares with the token of a place instead of with what layer 1 noted there, so it
    finds the same token, and not what came after it."""

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
            "key2": wiring("token", same),
            "value2": wiring("token", same),
            "output2": wiring("guess", same).T.contiguous(),
        }


class AsksForTheTokenBefore(Mistake, exercise="induction_weights"):
    """Layer 2 asks with what layer 1 noted and compares with the tokens, which finds the place before
    it again; it is to ask with its token and to compare with the notes."""

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
            "query2": wiring("before", 200.0 * vocab_size**0.5 * same),
            "key2": wiring("token", same),
            "value2": wiring("token", same),
            "output2": wiring("guess", same).T.contiguous(),
        }


class TooSoft(Mistake, exercise="induction_weights"):
    """The scores are so small that the softmax spreads over everything; multiply the queries by a
    large number."""

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
            "query1": wiring("place", stay),
            "key1": wiring("place", onward),
            "value1": wiring("token", same),
            "output1": wiring("before", same).T.contiguous(),
            "query2": wiring("token", same),
            "key2": wiring("before", same),
            "value2": wiring("token", same),
            "output2": wiring("guess", same).T.contiguous(),
        }


class OneLayerTooSoft(Mistake, exercise="induction_weights"):
    """The scores of layer 2 are so small that many wrong places outvote the right one; make them
    as large as those of layer 1."""

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
            "query2": wiring("token", 3.0 * vocab_size**0.5 * same),
            "key2": wiring("before", same),
            "value2": wiring("token", same),
            "output2": wiring("guess", same).T.contiguous(),
        }


class CopiesTheMatchedToken(Mistake, exercise="induction_weights"):
    """Layer 2 copies the token that it compared with, which is the one that asks; the token of the
    place itself is what came next."""

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
            "value2": wiring("before", same),
            "output2": wiring("guess", same).T.contiguous(),
        }


class CopiesThePlace(Mistake, exercise="induction_weights"):
    """Layer 2 copies where the place is instead of which token stands there."""

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
            "value2": wiring("place", torch.eye(max_len, vocab_size, dtype=torch.float64)),
            "output2": wiring("guess", same).T.contiguous(),
        }


class SameTokenScore(Mistake, exercise="look_inside"):
    """The score measures how much a head looks at the same token of the first half; what followed
    it stands one place further on."""

    def induction_score(attention):
        half = attention.shape[-1] // 2
        places = torch.arange(half, 2 * half)
        return attention[..., places, places - half].mean(dim=(0, 2))

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


class OneTooFar(Mistake, exercise="look_inside"):
    """The score looks two places behind the same token; the one that followed it is one place
    behind."""

    def induction_score(attention):
        half = attention.shape[-1] // 2
        places = torch.arange(half, 2 * half)
        return attention[..., places, places - half + 2].mean(dim=(0, 2))

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


class FirstHalfCounted(Mistake, exercise="look_inside"):
    """The end of the first half is averaged in, where nothing has come before; begin at the first
    place of the second half."""

    def induction_score(attention):
        half = attention.shape[-1] // 2
        places = torch.arange(half - 1, 2 * half)
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


class AveragedOverAllPlaces(Mistake, exercise="look_inside"):
    """The sum is divided by all places of the sequence; only those of the second half are
    asked."""

    def induction_score(attention):
        half = attention.shape[-1] // 2
        places = torch.arange(half, 2 * half)
        return (
            attention[..., places, places - half + 1].sum(dim=(0, 2))
            / attention[:, 0, :, 0].numel()
        )

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


class QueriesAndKeysExchanged(Mistake, exercise="look_inside"):
    """Rows and columns are exchanged: the row is the place that looks, the column the one it looks
    at."""

    def induction_score(attention):
        half = attention.shape[-1] // 2
        places = torch.arange(half, 2 * half)
        return attention[..., places - half + 1, places].mean(dim=(0, 2))

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


class HeadsAveraged(Mistake, exercise="look_inside"):
    """The heads are averaged into one number; every head gets its own."""

    def induction_score(attention):
        half = attention.shape[-1] // 2
        places = torch.arange(half, 2 * half)
        return attention[..., places, places - half + 1].mean()

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


class LensWithoutNorm(Mistake, exercise="look_inside"):
    """The lens leaves the final norm out; the table has learned to read what comes out of that
    norm."""

    def induction_score(attention):
        half = attention.shape[-1] // 2
        places = torch.arange(half, 2 * half)
        return attention[..., places, places - half + 1].mean(dim=(0, 2))

    def logit_lens(streams, gain, bias, unembedding):
        return F.linear(streams, unembedding).softmax(dim=-1)

    def without_head(mixed, weight, bias, head):
        is_kept = torch.arange(mixed.shape[1]) != head
        kept = mixed * is_kept[:, None, None]
        return kept.transpose(1, 2).flatten(2) @ weight.T + bias

    def bits_lost(logits, ablated, targets):
        losses = [F.cross_entropy(x.transpose(1, 2), targets) for x in (logits, ablated)]
        return (losses[1] - losses[0]) / math.log(2)


class LensWithoutGainAndBias(Mistake, exercise="look_inside"):
    """The lens normalises without the norm's gain and bias, which belong to it."""

    def induction_score(attention):
        half = attention.shape[-1] // 2
        places = torch.arange(half, 2 * half)
        return attention[..., places, places - half + 1].mean(dim=(0, 2))

    def logit_lens(streams, gain, bias, unembedding):
        read = F.layer_norm(streams, gain.shape)
        return F.linear(read, unembedding).softmax(dim=-1)

    def without_head(mixed, weight, bias, head):
        is_kept = torch.arange(mixed.shape[1]) != head
        kept = mixed * is_kept[:, None, None]
        return kept.transpose(1, 2).flatten(2) @ weight.T + bias

    def bits_lost(logits, ablated, targets):
        losses = [F.cross_entropy(x.transpose(1, 2), targets) for x in (logits, ablated)]
        return (losses[1] - losses[0]) / math.log(2)


class LensWithoutEpsilon(Mistake, exercise="look_inside"):
    """The lens divides by the bare spread; the norm adds 1e-5 to the variance before the root, which
    is felt where the stream is small."""

    def induction_score(attention):
        half = attention.shape[-1] // 2
        places = torch.arange(half, 2 * half)
        return attention[..., places, places - half + 1].mean(dim=(0, 2))

    def logit_lens(streams, gain, bias, unembedding):
        centred = streams - streams.mean(dim=-1, keepdim=True)
        read = centred / centred.square().mean(dim=-1, keepdim=True).sqrt() * gain + bias
        return F.linear(read, unembedding).softmax(dim=-1)

    def without_head(mixed, weight, bias, head):
        is_kept = torch.arange(mixed.shape[1]) != head
        kept = mixed * is_kept[:, None, None]
        return kept.transpose(1, 2).flatten(2) @ weight.T + bias

    def bits_lost(logits, ablated, targets):
        losses = [F.cross_entropy(x.transpose(1, 2), targets) for x in (logits, ablated)]
        return (losses[1] - losses[0]) / math.log(2)


class VarianceOfASample(Mistake, exercise="look_inside"):
    """The variance is divided by one less than the number of features, as `var` and `std` do unless
    they are told `correction=0`; the norm divides by the number of features."""

    def induction_score(attention):
        half = attention.shape[-1] // 2
        places = torch.arange(half, 2 * half)
        return attention[..., places, places - half + 1].mean(dim=(0, 2))

    def logit_lens(streams, gain, bias, unembedding):
        mean, variance = streams.mean(dim=-1, keepdim=True), streams.var(dim=-1, keepdim=True)
        read = (streams - mean) / (variance + 1e-5).sqrt() * gain + bias
        return F.linear(read, unembedding).softmax(dim=-1)

    def without_head(mixed, weight, bias, head):
        is_kept = torch.arange(mixed.shape[1]) != head
        kept = mixed * is_kept[:, None, None]
        return kept.transpose(1, 2).flatten(2) @ weight.T + bias

    def bits_lost(logits, ablated, targets):
        losses = [F.cross_entropy(x.transpose(1, 2), targets) for x in (logits, ablated)]
        return (losses[1] - losses[0]) / math.log(2)


class UntransposedTable(Mistake, exercise="look_inside"):
    """The table is multiplied as it is, which fits only if there are as many tokens as features;
    the score of a token is a dot product with its row."""

    def induction_score(attention):
        half = attention.shape[-1] // 2
        places = torch.arange(half, 2 * half)
        return attention[..., places, places - half + 1].mean(dim=(0, 2))

    def logit_lens(streams, gain, bias, unembedding):
        read = F.layer_norm(streams, gain.shape, gain, bias)
        return (read @ unembedding).softmax(dim=-1)

    def without_head(mixed, weight, bias, head):
        is_kept = torch.arange(mixed.shape[1]) != head
        kept = mixed * is_kept[:, None, None]
        return kept.transpose(1, 2).flatten(2) @ weight.T + bias

    def bits_lost(logits, ablated, targets):
        losses = [F.cross_entropy(x.transpose(1, 2), targets) for x in (logits, ablated)]
        return (losses[1] - losses[0]) / math.log(2)


class SoftmaxOverPlaces(Mistake, exercise="look_inside"):
    """The softmax runs over the places of the text; it belongs to the vocabulary, the last
    axis."""

    def induction_score(attention):
        half = attention.shape[-1] // 2
        places = torch.arange(half, 2 * half)
        return attention[..., places, places - half + 1].mean(dim=(0, 2))

    def logit_lens(streams, gain, bias, unembedding):
        read = F.layer_norm(streams, gain.shape, gain, bias)
        return F.linear(read, unembedding).softmax(dim=-2)

    def without_head(mixed, weight, bias, head):
        is_kept = torch.arange(mixed.shape[1]) != head
        kept = mixed * is_kept[:, None, None]
        return kept.transpose(1, 2).flatten(2) @ weight.T + bias

    def bits_lost(logits, ablated, targets):
        losses = [F.cross_entropy(x.transpose(1, 2), targets) for x in (logits, ablated)]
        return (losses[1] - losses[0]) / math.log(2)


class LogitsLeft(Mistake, exercise="look_inside"):
    """The lens returns logits; probabilities are asked for."""

    def induction_score(attention):
        half = attention.shape[-1] // 2
        places = torch.arange(half, 2 * half)
        return attention[..., places, places - half + 1].mean(dim=(0, 2))

    def logit_lens(streams, gain, bias, unembedding):
        read = F.layer_norm(streams, gain.shape, gain, bias)
        return F.linear(read, unembedding)

    def without_head(mixed, weight, bias, head):
        is_kept = torch.arange(mixed.shape[1]) != head
        kept = mixed * is_kept[:, None, None]
        return kept.transpose(1, 2).flatten(2) @ weight.T + bias

    def bits_lost(logits, ablated, targets):
        losses = [F.cross_entropy(x.transpose(1, 2), targets) for x in (logits, ablated)]
        return (losses[1] - losses[0]) / math.log(2)


class OthersScaledUp(Mistake, exercise="look_inside"):
    """The heads that are left are scaled up, as dropout would; a head that is taken away leaves
    the others as they are."""

    def induction_score(attention):
        half = attention.shape[-1] // 2
        places = torch.arange(half, 2 * half)
        return attention[..., places, places - half + 1].mean(dim=(0, 2))

    def logit_lens(streams, gain, bias, unembedding):
        read = F.layer_norm(streams, gain.shape, gain, bias)
        return F.linear(read, unembedding).softmax(dim=-1)

    def without_head(mixed, weight, bias, head):
        is_kept = torch.arange(mixed.shape[1]) != head
        kept = mixed * is_kept[:, None, None] * mixed.shape[1] / (mixed.shape[1] - 1)
        return kept.transpose(1, 2).flatten(2) @ weight.T + bias

    def bits_lost(logits, ablated, targets):
        losses = [F.cross_entropy(x.transpose(1, 2), targets) for x in (logits, ablated)]
        return (losses[1] - losses[0]) / math.log(2)


class HeadHalved(Mistake, exercise="look_inside"):
    """The head is made weaker instead of taken away; its features have to be 0."""

    def induction_score(attention):
        half = attention.shape[-1] // 2
        places = torch.arange(half, 2 * half)
        return attention[..., places, places - half + 1].mean(dim=(0, 2))

    def logit_lens(streams, gain, bias, unembedding):
        read = F.layer_norm(streams, gain.shape, gain, bias)
        return F.linear(read, unembedding).softmax(dim=-1)

    def without_head(mixed, weight, bias, head):
        is_kept = torch.arange(mixed.shape[1]) != head
        kept = mixed * (0.5 + 0.5 * is_kept[:, None, None])
        return kept.transpose(1, 2).flatten(2) @ weight.T + bias

    def bits_lost(logits, ablated, targets):
        losses = [F.cross_entropy(x.transpose(1, 2), targets) for x in (logits, ablated)]
        return (losses[1] - losses[0]) / math.log(2)


class BiasTakenAwayToo(Mistake, exercise="look_inside"):
    """The bias is taken away with the head; it belongs to no head and stays."""

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
        return kept.transpose(1, 2).flatten(2) @ weight.T

    def bits_lost(logits, ablated, targets):
        losses = [F.cross_entropy(x.transpose(1, 2), targets) for x in (logits, ablated)]
        return (losses[1] - losses[0]) / math.log(2)


class OnlyThisHead(Mistake, exercise="look_inside"):
    """This head is kept and the others are taken away; it is the other way round."""

    def induction_score(attention):
        half = attention.shape[-1] // 2
        places = torch.arange(half, 2 * half)
        return attention[..., places, places - half + 1].mean(dim=(0, 2))

    def logit_lens(streams, gain, bias, unembedding):
        read = F.layer_norm(streams, gain.shape, gain, bias)
        return F.linear(read, unembedding).softmax(dim=-1)

    def without_head(mixed, weight, bias, head):
        is_kept = torch.arange(mixed.shape[1]) == head
        kept = mixed * is_kept[:, None, None]
        return kept.transpose(1, 2).flatten(2) @ weight.T + bias

    def bits_lost(logits, ablated, targets):
        losses = [F.cross_entropy(x.transpose(1, 2), targets) for x in (logits, ablated)]
        return (losses[1] - losses[0]) / math.log(2)


class ZeroedBehindTheMap(Mistake, exercise="look_inside"):
    """Features are set to zero behind the map that joins the heads, where each belongs to all heads;
    a head has features of its own only on the way into it."""

    def induction_score(attention):
        half = attention.shape[-1] // 2
        places = torch.arange(half, 2 * half)
        return attention[..., places, places - half + 1].mean(dim=(0, 2))

    def logit_lens(streams, gain, bias, unembedding):
        read = F.layer_norm(streams, gain.shape, gain, bias)
        return F.linear(read, unembedding).softmax(dim=-1)

    def without_head(mixed, weight, bias, head):
        output = F.linear(mixed.transpose(1, 2).flatten(2), weight, bias)
        width = mixed.shape[-1]
        output[..., head * width : (head + 1) * width] = 0
        return output

    def bits_lost(logits, ablated, targets):
        losses = [F.cross_entropy(x.transpose(1, 2), targets) for x in (logits, ablated)]
        return (losses[1] - losses[0]) / math.log(2)


class RowsOfTheMap(Mistake, exercise="look_inside"):
    """Rows of `weight` are set to zero, which belong to what comes out of the map; a head's features go
    into it, so they meet its columns."""

    def induction_score(attention):
        half = attention.shape[-1] // 2
        places = torch.arange(half, 2 * half)
        return attention[..., places, places - half + 1].mean(dim=(0, 2))

    def logit_lens(streams, gain, bias, unembedding):
        read = F.layer_norm(streams, gain.shape, gain, bias)
        return F.linear(read, unembedding).softmax(dim=-1)

    def without_head(mixed, weight, bias, head):
        width = mixed.shape[-1]
        kept = weight.clone()
        kept[head * width : (head + 1) * width] = 0
        return F.linear(mixed.transpose(1, 2).flatten(2), kept, bias)

    def bits_lost(logits, ablated, targets):
        losses = [F.cross_entropy(x.transpose(1, 2), targets) for x in (logits, ablated)]
        return (losses[1] - losses[0]) / math.log(2)


class HeadsMergedWrongly(Mistake, exercise="look_inside"):
    """The heads are flattened before they stand side by side, so that places and features are
    mixed; bring the heads behind the places first."""

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
        return kept.reshape(len(kept), kept.shape[2], -1) @ weight.T + bias

    def bits_lost(logits, ablated, targets):
        losses = [F.cross_entropy(x.transpose(1, 2), targets) for x in (logits, ablated)]
        return (losses[1] - losses[0]) / math.log(2)


class ChangedInPlace(Mistake, exercise="look_inside"):
    """The head is set to zero in what was handed over, so that the next head is measured without
    it, too; work on a copy."""

    def induction_score(attention):
        half = attention.shape[-1] // 2
        places = torch.arange(half, 2 * half)
        return attention[..., places, places - half + 1].mean(dim=(0, 2))

    def logit_lens(streams, gain, bias, unembedding):
        read = F.layer_norm(streams, gain.shape, gain, bias)
        return F.linear(read, unembedding).softmax(dim=-1)

    def without_head(mixed, weight, bias, head):
        mixed[:, head] = 0
        return mixed.transpose(1, 2).flatten(2) @ weight.T + bias

    def bits_lost(logits, ablated, targets):
        losses = [F.cross_entropy(x.transpose(1, 2), targets) for x in (logits, ablated)]
        return (losses[1] - losses[0]) / math.log(2)


class LostInNats(Mistake, exercise="look_inside"):
    """The loss is in nats; a bit is ln 2 nats."""

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
        return losses[1] - losses[0]


class GainInsteadOfLoss(Mistake, exercise="look_inside"):
    """The sign is the other way round: what the model needs more without the head is positive."""

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
        return (losses[0] - losses[1]) / math.log(2)


class NeverNegative(Mistake, exercise="look_inside"):
    """The size of the difference is returned without its sign; a model may be better off without a
    part, and then the number is negative."""

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
        return (losses[1] - losses[0]).abs() / math.log(2)


class SummedOverTokens(Mistake, exercise="look_inside"):
    """The losses are summed over the tokens; bits per token are their mean."""

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
        losses = [F.cross_entropy(x.mT, targets, reduction="sum") for x in (logits, ablated)]
        return (losses[1] - losses[0]) / math.log(2)


class NoMask(Mistake, exercise="language_model"):
    """Every token sees the tokens behind it; a token sees itself and what came before."""

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


class NotEvenItself(Mistake, exercise="language_model"):
    """A token does not see itself, and the first one sees nothing, whose softmax is NaN; a token sees
    all up to itself."""

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
            later = torch.ones(length, past + length).triu(past).bool()
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


class NoFinalNorm(Mistake, exercise="language_model"):
    """The logits are read off without the final norm."""

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
        return x @ weights["embedding.tokens.weight"].T, new

    def language_model(config, weights, tokens):
        logits, _ = step(config, weights, tokens)
        return logits


class NormAfterTheSum(Mistake, exercise="language_model"):
    """The norms stand behind the sums; in a pre-norm model they stand in front of attention and
    feed-forward, and the stream is left alone."""

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
            x = norm(f"{block}.attention_norm", x + attend(block, x))
            x = norm(f"{block}.feed_forward_norm", x + think(block, x))
        return norm("final_norm", x) @ weights["embedding.tokens.weight"].T, new

    def language_model(config, weights, tokens):
        logits, _ = step(config, weights, tokens)
        return logits


class ResidualFromTheNorm(Mistake, exercise="language_model"):
    """What attention and feed-forward find is added to the normalised tokens; it is added to the
    stream as it was before the norm."""

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
            x = norm(f"{block}.attention_norm", x)
            x = x + attend(block, x)
            x = norm(f"{block}.feed_forward_norm", x)
            x = x + think(block, x)
        return norm("final_norm", x) @ weights["embedding.tokens.weight"].T, new

    def language_model(config, weights, tokens):
        logits, _ = step(config, weights, tokens)
        return logits


class ValuesTurnedToo(Mistake, exercise="language_model"):
    """The values are turned by their places as well; only queries and keys are."""

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
                query, key, value = rotate(query), rotate(key), rotate(value)
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


class PairsInHalves(Mistake, exercise="language_model"):
    """Feature i is turned with feature i + d_head / 2; here the pairs are neighbours, 2i and 2i +
    1."""

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
            even, odd = x.chunk(2, dim=-1)
            first = even * angle.cos() - odd * angle.sin()
            second = even * angle.sin() + odd * angle.cos()
            return torch.cat((first, second), dim=-1).to(x.dtype)

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


class ScaledByDModel(Mistake, exercise="language_model"):
    """The scores are divided by the root of d_model; it is the root of d_head, the width that is
    summed over."""

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
            scores = query @ key.mT / x.shape[-1] ** 0.5
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


class NotScaled(Mistake, exercise="language_model"):
    """The scores are not divided by the root of d_head."""

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
            scores = query @ key.mT
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


class HeadsCutByView(Mistake, exercise="language_model"):
    """The features are cut into heads by a view that mixes places with features; give each token its
    heads first, then bring the heads in front of the places."""

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
                apply(f"{block}.attention.{part}", x).view(len(x), -1, length, d_head)
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


class GeluByTanh(Mistake, exercise="language_model"):
    """The GELU is the approximation by tanh; this family has the exact one."""

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
                up = F.gelu(up, approximate="tanh")
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


class EpsilonOfItsOwn(Mistake, exercise="language_model"):
    """The norms add an epsilon of their own; the configuration says which."""

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
                x = F.layer_norm(x, x.shape[-1:], eps=1e-5)
                return x * weights[name + ".gain"] + weights[name + ".bias"]
            return F.rms_norm(x, x.shape[-1:], weights[name + ".gain"], 1e-5)

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


class GateAndUpExchanged(Mistake, exercise="language_model"):
    """The SiLU is applied to `up`; it belongs to `gate`."""

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
                up = F.silu(up) * apply(f"{block}.feed_forward.gate", x)
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


class HeadsSharedInTurns(Mistake, exercise="language_model"):
    """Query heads take the key heads in turns, 0 1 0 1; neighbours share one, 0 0 1 1."""

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
            key, value = (part.repeat(1, shared, 1, 1) for part in (key, value))
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


class PlacesBeginAgain(Mistake, exercise="language_model"):
    """Every step counts its places from 0; its first token stands behind all that are in the
    cache."""

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
            angle = torch.arange(x.shape[2]).double()[:, None] * rates
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
            x = x + weights["embedding.positions.table.weight"][:length]
        for i in range(config["num_layers"]):
            block = f"blocks.{i}"
            x = x + attend(block, norm(f"{block}.attention_norm", x))
            x = x + think(block, norm(f"{block}.feed_forward_norm", x))
        return norm("final_norm", x) @ weights["embedding.tokens.weight"].T, new

    def language_model(config, weights, tokens):
        logits, _ = step(config, weights, tokens)
        return logits


class MaskOfTheStepInTheWrongCorner(Mistake, exercise="language_model"):
    """The mask of a step begins at the first key, so that new tokens see only the oldest; shift it
    by the number of tokens in the cache."""

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
            later = torch.ones(length, past + length).triu(1).bool()
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


class NewestStepRemembered(Mistake, exercise="language_model"):
    """The cache holds the keys and values of the last step only; append them to those before."""

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
            new[block] = (key, value)
            if cache is not None:
                key = torch.cat((cache[block][0], key), dim=2)
                value = torch.cat((cache[block][1], value), dim=2)
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

        new = {"length": length}
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


class BiasesForgotten(Mistake, exercise="language_model"):
    """The linear maps leave their biases out where the weights hold some."""

    def step(config, weights, tokens, cache=None):
        heads, d_head = config["num_heads"], config["d_model"] // config["num_heads"]
        shared = heads // (config["num_kv_heads"] or heads)
        past = 0 if cache is None else cache["length"]
        length = tokens.shape[1]

        def apply(name, x):
            return x @ weights[name + ".weight"].T

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


class ModelOfTheCourse(Mistake, exercise="capstone", files=of_the_course):
    """The weights come with the course; train your own."""

    def capstone():
        return {"parameters": 660608, "bits_per_byte": 1.8921}

    # It was there already.


class TableCountedTwice(Mistake, exercise="capstone"):
    """The tied table is counted twice; it is one tensor that is used twice."""

    def capstone():
        return {"parameters": 726144, "bits_per_byte": 1.8921}


class NatsPerByte(Mistake, exercise="capstone"):
    """The number is in nats; a bit is ln 2 nats."""

    def capstone():
        return {"parameters": 660608, "bits_per_byte": 1.3115}


class BitsPerToken(Mistake, exercise="capstone"):
    """The bits are divided by the number of tokens; per byte, models with any tokenizer can be
    compared."""

    def capstone():
        return {"parameters": 660608, "bits_per_byte": 4.1965}


class NatsPerToken(Mistake, exercise="capstone"):
    """The number is the loss in nats per token; bits per byte can be compared between
    tokenizers."""

    def capstone():
        return {"parameters": 660608, "bits_per_byte": 2.9088}


class NotANumber(Mistake, exercise="capstone", files=with_not_a_number):
    """The weights hold NaN or infinity; look at the loss of the run, and hand in a model from
    before it broke."""

    def capstone():
        return {"parameters": 660608, "bits_per_byte": 1.8921}

    # The learning rate was ten times as high.


class ConfigurationOfAnotherModel(Mistake, exercise="capstone", files=with_another_configuration):
    """The configuration is that of another run; copy config.json and model.safetensors from one
    folder."""

    def capstone():
        return {"parameters": 660608, "bits_per_byte": 1.8921}

    # The files come from two folders.


class PickleInDisguise(Mistake, exercise="capstone", files=pickled):
    """The weights were saved by torch.save, which writes a pickle; reading one can run any code,
    so none is read."""

    def capstone():
        return {"parameters": 660608, "bits_per_byte": 1.8921}

    # torch.save(model.state_dict(), "model.safetensors")


class TextLostInTokens(Mistake, exercise="capstone", files=with_unknown_characters):
    """The tokenizer maps what it does not know to one token; bits per byte count only if the text
    can be read again."""

    def capstone():
        return {"parameters": 660608, "bits_per_byte": 1.8921}

    # Most characters are unknown, and easily guessed.


class LeastMissed(Mistake, exercise="ablation"):
    """The head with the smallest cost is returned; the one that is missed most has the largest."""

    def most_missed(bits_without, num_layers, num_heads):
        whole = bits_without([])
        best = None
        for layer in range(num_layers):
            for head in range(num_heads):
                cost = bits_without([(layer, head)]) - whole
                if best is None or cost < best[2]:
                    best = (layer, head, cost)
        return best

    def ablation():
        return {"cost": 0.1612}


class LargestChange(Mistake, exercise="ablation"):
    """The head whose removal changes most is returned, also if the model is better off without it;
    what is missed is a cost above 0."""

    def most_missed(bits_without, num_layers, num_heads):
        whole = bits_without([])
        best = None
        for layer in range(num_layers):
            for head in range(num_heads):
                cost = bits_without([(layer, head)]) - whole
                if best is None or abs(cost) > abs(best[2]):
                    best = (layer, head, cost)
        return best

    def ablation():
        return {"cost": 0.1612}


class LastHeadForgotten(Mistake, exercise="ablation"):
    """The last head of each layer is never taken away."""

    def most_missed(bits_without, num_layers, num_heads):
        whole = bits_without([])
        best = None
        for layer in range(num_layers):
            for head in range(num_heads - 1):
                cost = bits_without([(layer, head)]) - whole
                if best is None or cost > best[2]:
                    best = (layer, head, cost)
        return best

    def ablation():
        return {"cost": 0.1612}


class WholeModelNotSubtracted(Mistake, exercise="ablation"):
    """What the model needs without the head is returned as its cost; subtract what the whole model
    needs."""

    def most_missed(bits_without, num_layers, num_heads):
        best = None
        for layer in range(num_layers):
            for head in range(num_heads):
                cost = bits_without([(layer, head)])
                if best is None or cost > best[2]:
                    best = (layer, head, cost)
        return best

    def ablation():
        return {"cost": 0.1612}


class HeadsTakenAwayTogether(Mistake, exercise="ablation"):
    """Heads that were taken away stay away, so that each is measured without those before it; take
    away one at a time."""

    def most_missed(bits_without, num_layers, num_heads):
        whole = bits_without([])
        best, gone = None, []
        for layer in range(num_layers):
            for head in range(num_heads):
                gone.append((layer, head))
                cost = bits_without(gone) - whole
                if best is None or cost > best[2]:
                    best = (layer, head, cost)
        return best

    def ablation():
        return {"cost": 0.1612}


class WholeLayers(Mistake, exercise="ablation"):
    """A whole layer is taken away at once; take away one head at a time."""

    def most_missed(bits_without, num_layers, num_heads):
        whole = bits_without([])
        best = None
        for layer in range(num_layers):
            for head in range(num_heads):
                cost = bits_without([(layer, h) for h in range(num_heads)]) - whole
                if best is None or cost > best[2]:
                    best = (layer, head, cost)
        return best

    def ablation():
        return {"cost": 0.1612}


class LayerAndHeadExchanged(Mistake, exercise="ablation"):
    """Layer and head are returned in the wrong order; the layer comes first."""

    def most_missed(bits_without, num_layers, num_heads):
        whole = bits_without([])
        best = None
        for layer in range(num_layers):
            for head in range(num_heads):
                cost = bits_without([(layer, head)]) - whole
                if best is None or cost > best[2]:
                    best = (head, layer, cost)
        return best

    def ablation():
        return {"cost": 0.1612}


class WhatIsNeededWithoutIt(Mistake, exercise="ablation"):
    """The report says what the model needs without the head; the cost is how much more that is
    than with it."""

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
        return {"cost": 2.0533}


class CostWithTheWrongSign(Mistake, exercise="ablation"):
    """The report has the sign the other way round: what the model needs more without the head is
    positive."""

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
        return {"cost": -0.1612}


class PredictionForOtherWeights(Mistake, exercise="ablation", files=predicted_for_other_weights):
    """The prediction was sealed for other weights; predict anew after training."""

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

    # Trained on since the prediction.


class IntervalUpsideDown(Mistake, exercise="ablation", files=predicted_upside_down):
    """`low` is above `high`; the interval goes from low to high."""

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

    # From high to low.


class IntervalThatSaysNothing(Mistake, exercise="ablation", files=predicted_anything):
    """The interval is so wide that nothing could have contradicted it; it may have half a bit per
    byte."""

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

    # Surely somewhere in there.


class AnotherHeadIsMissedMore(Mistake, exercise="ablation", files=predicted_another_head):
    """Another head is missed more than the one that was predicted; that was a prediction, and it
    costs one point."""

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
        return {"cost": 0.1059}
