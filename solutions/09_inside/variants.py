"""Right answers to chapter 09, written in other ways: graders must give them all points."""

import math

import torch
import torch.nn.functional as F

from classroom.exercise.answers import Variant


class EntryByEntry(Variant, exercise="induction_weights"):
    """Every entry is set on its own."""

    def induction_weights(vocab_size, max_len):
        d_model = 3 * vocab_size + max_len
        names = ["query1", "key1", "value1", "query2", "key2", "value2"]
        w = {name: torch.zeros(d_model, d_model, dtype=torch.float64) for name in names}
        w["output1"], w["output2"] = w["query1"].clone(), w["query1"].clone()
        before = vocab_size + max_len
        guess = before + vocab_size
        for p in range(max_len):
            w["query1"][vocab_size + p, p] = 1e4
            if p + 1 < max_len:
                w["key1"][vocab_size + p, p + 1] = 1
        for t in range(vocab_size):
            w["value1"][t, t] = w["output1"][t, before + t] = 1
            w["query2"][t, t], w["key2"][before + t, t] = 1e4, 1
            w["value2"][t, t] = w["output2"][t, guess + t] = 1
        return w


class SharpKeys(Variant, exercise="induction_weights"):
    """The keys are large, and the queries are ones."""

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
            "query1": wiring("position", stay),
            "key1": wiring("position", 90.0 * max_len * onward),
            "value1": wiring("token", same),
            "output1": wiring("before", same).T.contiguous(),
            "query2": wiring("token", same),
            "key2": wiring("before", 90.0 * vocab_size * same),
            "value2": wiring("token", same),
            "output2": wiring("guess", same).T.contiguous(),
        }


class InFloat32(Variant, exercise="induction_weights"):
    """The weights are float32, and the guess is three times as sure."""

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
            weight = torch.zeros(d_model, matrix.shape[1], dtype=torch.float32)
            weight[parts[part]] = matrix
            return weight

        same = torch.eye(vocab_size, dtype=torch.float32)
        stay = torch.eye(max_len, dtype=torch.float32)
        onward = stay.roll(1, dims=1)
        onward[-1].zero_()
        return {
            "query1": wiring("position", 200.0 * max_len**0.5 * stay),
            "key1": wiring("position", onward),
            "value1": wiring("token", same),
            "output1": wiring("before", same).T.contiguous(),
            "query2": wiring("token", 200.0 * vocab_size**0.5 * same),
            "key2": wiring("before", same),
            "value2": wiring("token", same),
            "output2": wiring("guess", 3 * same).T.contiguous(),
        }


class LoopsAllTheWay(Variant, exercise="look_inside"):
    """Loops over places and heads."""

    def induction_score(attention):
        _, heads, length, _ = attention.shape
        scores = []
        for head in range(heads):
            places = range(length // 2, length)
            found = [attention[:, head, p, p + 1 - length // 2].mean() for p in places]
            scores.append(torch.stack(found).mean())
        return torch.stack(scores)

    def logit_lens(streams, gain, bias, unembedding):
        centred = streams - streams.mean(dim=-1, keepdim=True)
        size = (centred.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()
        return torch.softmax((centred / size * gain + bias) @ unembedding.mT, dim=-1)

    def without_head(mixed, weight, bias, head):
        columns = weight.chunk(mixed.shape[1], dim=1)
        added = [mixed[:, h] @ c.T for h, c in enumerate(columns) if h != head]
        return sum(added) + bias

    def bits_lost(logits, ablated, targets):
        odds = [x.log_softmax(-1).gather(-1, targets[..., None]).mean() for x in (logits, ablated)]
        return float((odds[0] - odds[1]) / torch.tensor(2.0, dtype=torch.float64).log())


class DiagonalsAndEinsum(Variant, exercise="look_inside"):
    """A diagonal of the lower left quarter, and einsum."""

    def induction_score(attention):
        half = attention.shape[-1] // 2
        quarter = attention[..., half:, 1 : half + 1]
        return torch.einsum("bhii->h", quarter) / (len(attention) * half)

    def logit_lens(streams, gain, bias, unembedding):
        norm = torch.nn.LayerNorm(len(gain)).to(streams)
        with torch.no_grad():
            norm.weight.copy_(gain)
            norm.bias.copy_(bias)
            logits = torch.einsum("...d,vd->...v", norm(streams), unembedding)
        return (logits - logits.logsumexp(dim=-1, keepdim=True)).exp()

    def without_head(mixed, weight, bias, head):
        heads = mixed.shape[1]
        keep = [h for h in range(heads) if h != head]
        joined = weight.unflatten(1, (heads, -1))[:, keep]
        return torch.einsum("bhld,ohd->blo", mixed[:, keep], joined) + bias

    def bits_lost(logits, ablated, targets):
        def bits(scores):
            return F.nll_loss(scores.log_softmax(-1).movedim(-1, 1), targets) / math.log(2)

        return bits(ablated) - bits(logits)


class SubtractsTheHead(Variant, exercise="look_inside"):
    """Takes away what the head writes, and masks the map."""

    def induction_score(attention):
        length = attention.shape[-1]
        mask = torch.zeros(length, length, dtype=attention.dtype)
        for place in range(length // 2, length):
            mask[place, place - length // 2 + 1] = 2 / length
        return (attention * mask).sum(dim=(-2, -1)).mean(dim=0)

    def logit_lens(streams, gain, bias, unembedding):
        depths = []
        for stream in streams:
            read = F.layer_norm(stream, (len(bias),), weight=gain, bias=bias, eps=1e-5)
            depths.append(F.softmax(read.matmul(unembedding.t()), dim=2))
        return torch.stack(depths)

    def without_head(mixed, weight, bias, head):
        width = mixed.shape[-1]
        whole = F.linear(mixed.transpose(1, 2).flatten(2), weight, bias)
        return whole - mixed[:, head] @ weight[:, head * width : (head + 1) * width].T

    def bits_lost(logits, ablated, targets):
        rows = targets.reshape(-1)
        before = F.cross_entropy(logits.reshape(len(rows), -1), rows, reduction="sum")
        after = F.cross_entropy(ablated.reshape(len(rows), -1), rows, reduction="sum")
        return (after - before) / len(rows) / torch.log(torch.tensor(2.0)).double()


class TorchAttention(Variant, exercise="language_model"):
    """Torch's own attention, with a cache of stacked tensors."""

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
            seen = torch.ones(length, past + length).tril(past).bool()
            found = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
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


class ReadsEverythingAgain(Variant, exercise="language_model"):
    """The cache is the text itself, which is read again at every step: slow, and right."""

    def read_all(config, weights, tokens, cache=None):
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
        return read_all(config, weights, tokens)[0]

    def step(config, weights, tokens, cache=None):
        text = tokens if cache is None else torch.cat([cache, tokens], dim=1)
        return language_model(config, weights, text)[:, -tokens.shape[1] :], text


class TokenByToken(Variant, exercise="language_model"):
    """The whole is read token by token, and the mask adds numbers."""

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
            later = torch.full((length, past + length), -1e30, dtype=scores.dtype)
            scores = scores + later.triu(past + 1)
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
        logits, cache = [], None
        for token in tokens.split(1, dim=1):
            found, cache = step(config, weights, token, cache)
            logits.append(found)
        return torch.cat(logits, dim=1)


class RoundedReport(Variant, exercise="capstone"):
    """The number is rounded to three digits."""

    def capstone():
        return {"parameters": 660608, "bits_per_byte": 1.892}


class ReportFromConstants(Variant, exercise="capstone"):
    """The report is put together elsewhere."""

    NUM_PARAMETERS = 660608
    MEASURED = 1.8921

    def capstone():
        return dict(parameters=NUM_PARAMETERS, bits_per_byte=MEASURED)


class ReportInATensor(Variant, exercise="capstone"):
    """The number is computed from nats."""

    def capstone():
        nats_per_byte = 1.31151
        return {"bits_per_byte": nats_per_byte / math.log(2), "parameters": 660608}


class SortedCosts(Variant, exercise="ablation"):
    """All costs are sorted."""

    def most_missed(bits_without, num_layers, num_heads):
        found = [
            (bits_without([[layer, head]]), layer, head)
            for layer in range(num_layers)
            for head in range(num_heads)
        ]
        needed, layer, head = sorted(found)[-1]
        return layer, head, needed - bits_without([])

    def ablation():
        return {"cost": 0.1612}


class CostsInATensor(Variant, exercise="ablation"):
    """The costs are kept in a tensor."""

    import numpy as np

    def most_missed(bits_without, num_layers, num_heads):
        whole = bits_without([])
        costs = torch.zeros(num_layers, num_heads, dtype=torch.float64)
        for layer, head in np.ndindex(num_layers, num_heads):
            costs[layer, head] = bits_without([(layer, head)]) - whole
        layer, head = divmod(int(costs.argmax()), num_heads)
        return [layer, head, float(costs.max())]

    def ablation():
        return {"cost": 0.1612}


class RoundedCost(Variant, exercise="ablation"):
    """The report is rounded to three digits."""

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
        return {"cost": 0.161}
