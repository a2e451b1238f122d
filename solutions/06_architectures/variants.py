"""Right answers of chapter 06, differently written: graders must give each full points."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from classroom.exercise.answers import Variant


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


# 6.1 ------------------------------------------------------------------------------------------


class TorchFunctions(Variant, exercise="decoder_only_logits"):
    """Torch's embedding and linear map; a mask from comparing places."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        places = torch.arange(tokens.size(1))
        scale = table.size(1) ** 0.5 if is_scaled else 1
        x = torch.add(positions[places], F.embedding(tokens, table), alpha=scale)
        for layer in layers:
            x = block(x, places[:, None] >= places[None, :], layer)
        return F.linear(F.layer_norm(x, table.shape[1:], gain, bias), table)


class TiedModules(Variant, exercise="decoder_only_logits"):
    """One matrix for looking up by one-hot rows and for the scores; an additive mask."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        vocab_size, d_model = table.shape
        length = tokens.shape[1]
        x = F.one_hot(tokens, vocab_size).to(table.dtype) @ table
        x = x * (math.sqrt(d_model) if is_scaled else 1.0) + positions.narrow(0, 0, length)
        mask = torch.full((length, length), float("-inf"), dtype=table.dtype).triu(1)
        for layer in layers:
            x = block(x, mask, layer)
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0)
        x = (x - mean) / torch.sqrt(variance + 1e-5) * gain + bias
        return torch.einsum("bld,vd->blv", x, table)


class SequenceBySequence(Variant, exercise="decoder_only_logits"):
    """One sequence after the other, the stack as a recursion."""

    def decoder_only_logits(tokens, table, positions, layers, gain, bias, is_scaled=False):
        def stack(x, rest):
            if not rest:
                return F.layer_norm(x, gain.shape, gain, bias)
            past = ~torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
            return stack(block(x, past, rest[0]), rest[1:])

        rows = []
        for sequence in tokens:
            x = torch.stack([table[int(token)] for token in sequence])
            x = (math.sqrt(x.shape[1]) * x if is_scaled else x) + positions[: len(sequence)]
            rows.append(stack(x[None], list(layers))[0] @ table.mT)
        return torch.stack(rows)


# 6.2 ------------------------------------------------------------------------------------------


class PaddedInFront(Variant, exercise="shifted_loss"):
    """F.pad puts bos in front; the mean by hand."""

    def shifted_loss(model, targets, bos, pad):
        logits = model(F.pad(targets, (1, -1), value=bos))
        nats = -logits.log_softmax(dim=-1).gather(2, targets.unsqueeze(2)).squeeze(2)
        return nats[targets != pad].mean()


class OneTokenMore(Variant, exercise="shifted_loss"):
    """The model reads the last token, too, and its answer to that is dropped."""

    def shifted_loss(model, targets, bos, pad):
        begin = targets.new_full((len(targets), 1), bos)
        logits = model(torch.cat([begin, targets], dim=1))[:, :-1]
        return nn.CrossEntropyLoss(ignore_index=pad)(logits.mT, targets)


class RowByRow(Variant, exercise="shifted_loss"):
    """One sequence after the other, without its padding; a sum of tensors."""

    def shifted_loss(model, targets, bos, pad):
        total, number = 0.0, 0
        for row in targets:
            real = row[row != pad]
            logits = model(torch.cat([torch.tensor([bos]), real[:-1]])[None])[0]
            total += F.cross_entropy(logits, real, reduction="sum")
            number += len(real)
        return total / number


class IgnoredLabels(Variant, exercise="shifted_loss"):
    """Padding gets the label that cross_entropy ignores by itself; a roll, then bos on top."""

    def shifted_loss(model, targets, bos, pad):
        inputs = torch.roll(targets, 1, dims=1)
        inputs[:, 0] = bos
        labels = targets.masked_fill(targets == pad, -100)
        return F.cross_entropy(model(inputs).reshape(labels.numel(), -1), labels.reshape(-1))


# 6.3 ------------------------------------------------------------------------------------------


class TorchAttention(Variant, exercise="CrossAttention"):
    """Torch's fused attention with a boolean mask."""

    class CrossAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.num_heads = num_heads
            for name in ("query", "key", "value", "output"):
                self.add_module(name, nn.Linear(d_model, d_model))

        def forward(self, x, memory, source_mask=None):
            def heads(tokens):
                return tokens.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

            mask = None if source_mask is None else source_mask[:, None, None]
            found = F.scaled_dot_product_attention(
                heads(self.query(x)), heads(self.key(memory)), heads(self.value(memory)), mask
            )
            return self.output(found.transpose(1, 2).flatten(2))


class EinsumOfHeads(Variant, exercise="CrossAttention"):
    """Heads stay where they are; einsum names the axes; an additive mask."""

    class CrossAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.query, self.key, self.value, self.output = (
                nn.Linear(d_model, d_model) for _ in range(4)
            )
            self.shape = (num_heads, d_model // num_heads)

        def forward(self, x, memory, source_mask=None):
            query = self.query(x).unflatten(2, self.shape) * self.shape[1] ** -0.5
            key = self.key(memory).unflatten(2, self.shape)
            value = self.value(memory).unflatten(2, self.shape)
            scores = torch.einsum("bqhd,bkhd->bhqk", query, key)
            if source_mask is not None:
                hidden = torch.zeros(source_mask.shape, dtype=x.dtype)
                hidden[~source_mask] = -torch.inf
                scores = scores + hidden[:, None, None, :]
            mixed = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim=-1), value)
            return self.output(mixed.reshape(x.shape))


class HeadAfterHead(Variant, exercise="CrossAttention"):
    """A loop over heads and sequences, with padding cut off instead of masked."""

    class CrossAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.d_head = d_model // num_heads
            self.query = nn.Linear(d_model, d_model)
            self.key = nn.Linear(d_model, d_model)
            self.value = nn.Linear(d_model, d_model)
            self.output = nn.Linear(d_model, d_model)

        def forward(self, x, memory, source_mask=None):
            rows = []
            for i, (target, source) in enumerate(zip(x, memory, strict=True)):
                if source_mask is not None:
                    source = source[source_mask[i]]
                maps = self.query(target), self.key(source), self.value(source)
                heads = zip(*(m.split(self.d_head, dim=1) for m in maps), strict=True)
                found = [
                    torch.softmax(q @ k.T / math.sqrt(self.d_head), dim=1) @ v for q, k, v in heads
                ]
                rows.append(self.output(torch.cat(found, dim=1)))
            return torch.stack(rows)


# 6.4 ------------------------------------------------------------------------------------------


class ColumnsInAList(Variant, exercise="greedy_translation"):
    """Columns are collected; who has ended is counted."""

    def greedy_translation(encode, decode, source, source_mask, bos, eos, pad, max_len):
        memory, columns = encode(source, source_mask), [torch.full((len(source),), bos)]
        alive = torch.ones(len(source), dtype=torch.long)
        while alive.sum() > 0 and len(columns) <= max_len:
            logits = decode(torch.stack(columns, dim=1), memory, source_mask)[:, -1, :]
            column = logits.argmax(dim=1) * alive + pad * (1 - alive)
            alive = alive * (column != eos)
            columns.append(column)
        return torch.stack(columns[1:], dim=1)


class FilledInPlace(Variant, exercise="greedy_translation"):
    """A rectangle of pad is filled from the left, and cut in the end."""

    def greedy_translation(encode, decode, source, source_mask, bos, eos, pad, max_len):
        target = torch.full((len(source), max_len + 1), pad)
        target[:, 0] = bos
        memory = encode(source, source_mask)
        is_writing = torch.ones(len(source), dtype=torch.bool)
        for i in range(1, max_len + 1):
            logits = decode(target[:, :i], memory, source_mask)
            best = torch.topk(logits[:, i - 1], 1).indices[:, 0]
            target[is_writing, i] = best[is_writing]
            is_writing &= best != eos
            if not is_writing.any():
                return target[:, 1 : i + 1]
        return target[:, 1:]


class ListsOfTokens(Variant, exercise="greedy_translation"):
    """Python lists, with a tensor made for each call; the end is found by looking for eos."""

    def greedy_translation(encode, decode, source, source_mask, bos, eos, pad, max_len):
        memory = encode(source, source_mask)
        rows = [[bos] for _ in source]
        while len(rows[0]) <= max_len and not all(eos in row[1:] for row in rows):
            logits = decode(torch.tensor(rows), memory, source_mask)
            for row, scores in zip(rows, logits[:, -1].tolist(), strict=True):
                row.append(pad if eos in row[1:] else scores.index(max(scores)))
        return torch.tensor([row[1:] for row in rows])


# 6.9 ------------------------------------------------------------------------------------------


class InPlaceOnAClone(Variant, exercise="masked_tokens"):
    """Boolean indexing on copies."""

    def masked_tokens(tokens, choice, kind, word, num_special, mask_id, vocab_size, share=0.15):
        inputs, labels = tokens.clone(), tokens.clone()
        chosen = torch.logical_and(tokens.ge(num_special), choice.lt(share))
        labels[~chosen] = -100
        inputs[chosen & (kind < 0.8)] = mask_id
        swapped = chosen & (kind >= 0.8) & (kind < 0.9)
        words = torch.floor(word[swapped] * (vocab_size - num_special)) + num_special
        inputs[swapped] = words.long()
        return inputs, labels


class TokenByToken(Variant, exercise="masked_tokens"):
    """A loop over places, with Python numbers."""

    def masked_tokens(tokens, choice, kind, word, num_special, mask_id, vocab_size, share=0.15):
        inputs, labels = [], []
        flat = (t.flatten().tolist() for t in (tokens, choice, kind, word))
        for token, c, k, w in zip(*flat, strict=True):
            chosen = token >= num_special and c < share
            seen = token
            if chosen and k < 0.8:
                seen = mask_id
            elif chosen and k < 0.9:
                seen = num_special + int(w * (vocab_size - num_special))
            inputs.append(seen)
            labels.append(token if chosen else -100)
        return torch.tensor(inputs).view_as(tokens), torch.tensor(labels).view_as(tokens)


class KindsByBuckets(Variant, exercise="masked_tokens"):
    """The kind is a bucket, and the three candidates are stacked."""

    def masked_tokens(tokens, choice, kind, word, num_special, mask_id, vocab_size, share=0.15):
        chosen = (choice < share) * (tokens >= num_special)
        bucket = (kind >= 0.8).long() + (kind >= 0.9).long()
        words = torch.arange(num_special, vocab_size)
        random_words = words[(word * len(words)).to(torch.int64)]
        candidates = torch.stack([torch.full_like(tokens, mask_id), random_words, tokens])
        replaced = candidates.gather(0, bucket[None])[0]
        return (
            torch.where(chosen, replaced, tokens),
            torch.where(chosen, tokens, torch.full_like(tokens, -100)),
        )


# 6.8 ------------------------------------------------------------------------------------------


class EveryCutAgainstTheNext(Variant, exercise="check_prompt_split"):
    """Neighbouring cuts are compared; a text of sixteen tokens."""

    def check_prompt_split(predict):
        text = torch.arange(16) * 7 % 11
        before = predict(text[:1], text[1:]).double()
        for cut in range(2, 16):
            after = predict(text[:cut], text[cut:]).double()
            torch.testing.assert_close(after, before, rtol=0, atol=1e-6)
            before = after


class SpreadOverCuts(Variant, exercise="check_prompt_split"):
    """All predictions are stacked, and their spread is asked for; random texts."""

    def check_prompt_split(predict):
        generator = torch.Generator().manual_seed(4)
        for length in (9, 12):
            text = torch.randint(0, 11, (length,), generator=generator)
            seen = torch.stack([predict(*text.tensor_split([cut])) for cut in range(1, length)])
            spread = (seen.amax(dim=0) - seen.amin(dim=0)).max()
            assert spread < 2e-5, f"the cut moves a probability by {spread}"


class InLogarithms(Variant, exercise="check_prompt_split"):
    """Log probabilities are compared; several lengths, short and long."""

    def check_prompt_split(predict):
        for length in range(2, 11):
            text = (torch.arange(length) * 3 + 1) % 11
            nats = [-predict(text[:c], text[c:]).log() for c in range(1, length)]
            for other in nats[1:]:
                if not torch.allclose(other.double(), nats[0].double(), rtol=0, atol=1e-4):
                    raise AssertionError(f"a text of {length} tokens depends on its cut")


# 6.6 ------------------------------------------------------------------------------------------


class PlacesCompared(Variant, exercise="one_block_three_masks"):
    """Masks from comparing places; one stacked call of the block for all three."""

    def three_masks(length, prefix_lens):
        seen, by = torch.arange(length), torch.arange(length).unsqueeze(1)
        causal = seen <= by
        prefix = (seen <= by) | (seen < prefix_lens.view(-1, 1, 1))
        return (seen < length).expand(length, length), causal, prefix

    def one_block_three_masks(x, weights, prefix_lens):
        masks = [m.expand(len(x), -1, -1) for m in three_masks(x.shape[1], prefix_lens)]
        return block(x.repeat(3, 1, 1), torch.cat(masks), weights).chunk(3)


class RowsFilled(Variant, exercise="one_block_three_masks"):
    """Columns of a causal mask are filled up, one sequence after the other; a list."""

    def three_masks(length, prefix_lens):
        both_ways = torch.full((length, length), True)
        causal = ~torch.triu(both_ways, diagonal=1)
        prefix = causal.repeat(len(prefix_lens), 1, 1)
        for mask, prefix_len in zip(prefix, prefix_lens.tolist(), strict=True):
            mask[:, :prefix_len] = True
        return both_ways, causal, prefix

    def one_block_three_masks(x, weights, prefix_lens):
        return [block(x, mask, weights) for mask in three_masks(x.shape[1], prefix_lens)]


class ByTheLastPlaceSeen(Variant, exercise="one_block_three_masks"):
    """For each token the number of tokens that it sees, then one comparison; additive masks."""

    def three_masks(length, prefix_lens):
        def mask(counts):
            return torch.arange(length) < counts.unsqueeze(-1)

        past = torch.arange(1, length + 1)
        prefix = torch.maximum(past, prefix_lens[:, None])
        return mask(torch.full((length,), length)), mask(past), mask(prefix)

    def one_block_three_masks(x, weights, prefix_lens):
        outputs = []
        for mask in three_masks(x.shape[1], prefix_lens):
            bias = torch.zeros(mask.shape, dtype=x.dtype).masked_fill(~mask, -torch.inf)
            outputs.append(block(x, bias, weights))
        return tuple(outputs)


# 6.10 -----------------------------------------------------------------------------------------


class SoftTargets(Variant, exercise="smoothed_loss"):
    """The softened targets written out, as probabilities for cross_entropy; the rate in two
    branches."""

    def smoothed_loss(logits, targets, smoothing, pad):
        real = targets != pad
        vocab_size = logits.shape[-1]
        soft = torch.full_like(logits[real], smoothing / vocab_size)
        rows = torch.arange(len(soft))
        soft[rows, targets[real]] += 1 - smoothing
        return F.cross_entropy(logits[real], soft)

    def noam(step, d_model, warmup_steps):
        number = step + 1
        if number < warmup_steps:
            return number / (math.sqrt(d_model) * warmup_steps**1.5)
        return 1 / math.sqrt(d_model * number)


class TorchSmoothing(Variant, exercise="smoothed_loss"):
    """Torch's own smoothing; the rate as a tensor."""

    def smoothed_loss(logits, targets, smoothing, pad):
        return F.cross_entropy(logits.mT, targets, ignore_index=pad, label_smoothing=smoothing)

    def noam(step, d_model, warmup_steps):
        number = torch.tensor(step + 1.0, dtype=torch.float64)
        return torch.minimum(number.rsqrt(), number * warmup_steps**-1.5) / d_model**0.5


class TokenByTokenSmoothing(Variant, exercise="smoothed_loss"):
    """A loop over targets; the rate relative to its highest."""

    def smoothed_loss(logits, targets, smoothing, pad):
        losses = []
        for scores, target in zip(logits.flatten(0, 1), targets.flatten(), strict=True):
            if target == pad:
                continue
            surprise = torch.logsumexp(scores, dim=0) - scores
            losses.append((1 - smoothing) * surprise[target] + smoothing * surprise.mean())
        return sum(losses) / len(losses)

    def noam(step, d_model, warmup_steps):
        highest = (d_model * warmup_steps) ** -0.5
        share = (step + 1) / warmup_steps
        return highest * min(share, share**-0.5)


# 6.5 ------------------------------------------------------------------------------------------


class ScoresByHand(Variant, exercise="mended_decoder"):
    """The published form with its three lines mended."""

    def mended_decoder(x, memory, source_mask, weights):
        w_q, w_k, w_v, cross_q, cross_k, cross_v = weights
        d_model = x.shape[-1]

        def attend(query, key, value, mask):
            scores = query @ key.transpose(1, 2) / math.sqrt(d_model)
            return scores.masked_fill(~mask, -math.inf).softmax(dim=-1) @ value

        past = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        x = x + attend(x @ w_q, x @ w_k, x @ w_v, past)
        return x + attend(x @ cross_q, memory @ cross_k, memory @ cross_v, source_mask[:, None])


class EinsumAndBias(Variant, exercise="mended_decoder"):
    """Einsum, and masks that are added."""

    def mended_decoder(x, memory, source_mask, weights):
        def attend(tokens, context, maps, bias):
            query = torch.einsum("btd,de->bte", tokens, maps[0])
            key, value = torch.einsum("bsd,mde->mbse", context, maps[1:])
            scores = torch.einsum("bte,bse->bts", query, key) / query.shape[-1] ** 0.5
            return torch.einsum("bts,bse->bte", torch.softmax(scores + bias, dim=2), value)

        length = x.shape[1]
        future = torch.full((length, length), -math.inf, dtype=x.dtype).triu(1)
        padding = torch.zeros_like(memory[..., 0]).masked_fill(~source_mask, -math.inf)
        stream = x + attend(x, x, weights[:3], future)
        return stream + attend(stream, memory, weights[3:], padding[:, None, :])


class SequenceBySequence(Variant, exercise="mended_decoder"):
    """One pair after the other, with padding cut off."""

    def mended_decoder(x, memory, source_mask, weights):
        rows = []
        for target, source, real in zip(x, memory, source_mask, strict=True):
            maps = [m.contiguous() for m in weights]
            own = [target @ m for m in maps[:3]]
            target = target + F.scaled_dot_product_attention(
                *(o[None] for o in own), is_causal=True
            ).squeeze(0)
            kept = source[real]
            query, key, value = target @ maps[3], kept @ maps[4], kept @ maps[5]
            shares = (query @ key.T / math.sqrt(len(maps[0]))).softmax(dim=1)
            rows.append(target + shares @ value)
        return torch.stack(rows)


# 6.7 ------------------------------------------------------------------------------------------


class TorchMultiHead(Variant, exercise="swapped_cross_attention"):
    """Torch's multi-head attention, with the weights put where it keeps them."""

    def swapped_cross_attention(x, memory, source_mask, weights, num_heads):
        d_model = x.shape[-1]
        attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True, dtype=x.dtype)
        names = ("query", "key", "value")
        with torch.no_grad():
            attention.in_proj_weight.copy_(torch.cat([weights[f"{n}.weight"] for n in names]))
            attention.in_proj_bias.copy_(torch.cat([weights[f"{n}.bias"] for n in names]))
            attention.out_proj.weight.copy_(weights["output.weight"])
            attention.out_proj.bias.copy_(weights["output.bias"])
            read = F.layer_norm(x, (d_model,), weights["gain"], weights["bias"])
            found, _ = attention(read, memory, memory, key_padding_mask=~source_mask)
        return x + found


class ModuleWithOtherWeights(Variant, exercise="swapped_cross_attention"):
    """A module of four maps, run with the weights that are handed over."""

    def swapped_cross_attention(x, memory, source_mask, weights, num_heads):
        class Attention(nn.Module):
            def __init__(self, d_model):
                super().__init__()
                self.query, self.key = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
                self.value, self.output = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

            def forward(self, x, memory):
                def heads(tokens):
                    return tokens.unflatten(-1, (num_heads, -1)).transpose(1, 2)

                query, key = heads(self.query(x)), heads(self.key(memory))
                scores = query @ key.mT / math.sqrt(query.shape[-1])
                scores = scores.masked_fill(~source_mask[:, None, None], -math.inf)
                mixed = scores.softmax(dim=-1) @ heads(self.value(memory))
                return self.output(mixed.transpose(1, 2).flatten(2))

        parts = dict(weights)
        read = F.layer_norm(x, x.shape[-1:], parts.pop("gain"), parts.pop("bias"))
        found = torch.func.functional_call(Attention(x.shape[-1]), parts, (read, memory))
        return x + found


class HeadAfterHeadByEinsum(Variant, exercise="swapped_cross_attention"):
    """The norm by hand, the bias of the keys left out because it cannot matter, a sum of heads."""

    def swapped_cross_attention(x, memory, source_mask, weights, num_heads):
        centred = x - x.mean(dim=-1, keepdim=True)
        read = centred / (centred.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()
        read = read * weights["gain"] + weights["bias"]
        query = read @ weights["query.weight"].T + weights["query.bias"]
        key = memory @ weights["key.weight"].T
        value = memory @ weights["value.weight"].T + weights["value.bias"]
        found, d_head = weights["output.bias"], x.shape[-1] // num_heads
        for head in range(num_heads):
            part = slice(head * d_head, (head + 1) * d_head)
            scores = torch.einsum("btd,bsd->bts", query[..., part], key[..., part])
            scores = torch.where(source_mask[:, None], scores / d_head**0.5, -math.inf)
            mixed = scores.softmax(dim=-1) @ value[..., part]
            found = found + mixed @ weights["output.weight"][:, part].T
        return x + found


# 6.11 -----------------------------------------------------------------------------------------


class ReverseModeByAutograd(Variant, exercise="functional_gradients"):
    """Leaves that require gradients, autograd, and a tree put together again from dotted names."""

    def functional_logits(parameters, tokens):
        places = torch.arange(tokens.size(-1))
        embedding = parameters["embedding"]
        x = F.embedding(tokens, embedding["tokens"]) + embedding["positions"][places]
        for i in range(len(parameters["blocks"])):
            x = block(x, places[:, None] >= places, parameters["blocks"][str(i)])
        gain, bias = parameters["final_norm"]["gain"], parameters["final_norm"]["bias"]
        x = F.layer_norm(x, gain.shape, gain, bias)
        is_tied = "unembedding" not in parameters
        return F.linear(x, embedding["tokens"] if is_tied else parameters["unembedding"])

    def functional_loss(parameters, tokens, targets):
        log_p = functional_logits(parameters, tokens).log_softmax(dim=-1)
        counts = targets != -100
        right = log_p.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return -right[counts].mean()

    def functional_gradients(parameters, tokens, targets):
        def copied(tree):
            if isinstance(tree, dict):
                return {name: copied(branch) for name, branch in tree.items()}
            return tree.detach().clone().requires_grad_()

        tree = copied(parameters)
        functional_loss(tree, tokens, targets).backward()

        def read(tree):
            if isinstance(tree, dict):
                return {name: read(branch) for name, branch in tree.items()}
            return tree.grad

        return read(tree)

    def sgd_step(parameters, gradients, learning_rate):
        new = {}
        for name in gradients:
            old, gradient = parameters[name], gradients[name]
            if isinstance(old, torch.Tensor):
                new[name] = old.sub(gradient, alpha=learning_rate)
            else:
                new[name] = sgd_step(old, gradient, learning_rate)
        return new


class TreesByPytree(Variant, exercise="functional_gradients"):
    """Attention by hand with an additive mask, a masked mean, jacrev, and torch's own tree_map."""

    def functional_logits(parameters, tokens):
        length = tokens.shape[-1]
        bias = torch.full((length, length), -math.inf, dtype=torch.float64).triu(1)
        x = parameters["embedding"]["tokens"][tokens]
        x = x + parameters["embedding"]["positions"].narrow(0, 0, length)
        for part in parameters["blocks"].values():
            read = F.layer_norm(x, x.shape[-1:])
            query, key, value = (read @ part[name] for name in ("query", "key", "value"))
            scores = torch.einsum("...qd,...kd->...qk", query, key) / query.shape[-1] ** 0.5
            x = x + (scores + bias.to(x)).softmax(dim=-1) @ value @ part["output"]
            x = x + F.gelu(F.layer_norm(x, x.shape[-1:]) @ part["up"]) @ part["down"]
        x = F.layer_norm(x, x.shape[-1:]) * parameters["final_norm"]["gain"]
        x = x + parameters["final_norm"]["bias"]
        try:
            unembedding = parameters["unembedding"]
        except KeyError:
            unembedding = parameters["embedding"]["tokens"]
        return torch.einsum("...d,vd->...v", x, unembedding)

    def functional_loss(parameters, tokens, targets):
        counts = (targets != -100).to(torch.float64)
        log_p = functional_logits(parameters, tokens).log_softmax(dim=-1)
        chosen = F.one_hot(targets.clamp(min=0), log_p.shape[-1]) * counts[..., None]
        return -(chosen * log_p).sum() / counts.sum()

    def functional_gradients(parameters, tokens, targets):
        return torch.func.jacrev(functional_loss, argnums=0)(parameters, tokens, targets)

    def sgd_step(parameters, gradients, learning_rate):
        from torch.utils._pytree import tree_map

        return tree_map(lambda p, g: p - learning_rate * g, parameters, gradients)


class SequenceBySequence(Variant, exercise="functional_gradients"):
    """One sequence after the other, one target after the other; leaves by their paths."""

    def functional_logits(parameters, tokens):
        if tokens.dim() == 2:
            return torch.stack([functional_logits(parameters, row) for row in tokens])
        embedding = parameters["embedding"]
        rows = [embedding["tokens"][t] + embedding["positions"][i] for i, t in enumerate(tokens)]
        x = torch.stack(rows)[None]
        past = torch.ones(len(tokens), len(tokens)).tril() == 1
        for weights in parameters["blocks"].values():
            x = block(x, past, weights)
        x = F.layer_norm(x, x.shape[-1:], **{"weight": parameters["final_norm"]["gain"]})
        x = x[0] + parameters["final_norm"]["bias"]
        return x @ (parameters | {"tied": embedding["tokens"]})[
            "unembedding" if "unembedding" in parameters else "tied"
        ].transpose(0, 1)

    def functional_loss(parameters, tokens, targets):
        logits = functional_logits(parameters, tokens)
        total, number = 0.0, 0
        for row, target in zip(logits.flatten(0, -2), targets.flatten(), strict=True):
            if target != -100:
                total, number = total + row.logsumexp(dim=0) - row[target], number + 1
        return total / number

    def functional_gradients(parameters, tokens, targets):
        found, _ = torch.func.grad_and_value(functional_loss)(parameters, tokens, targets)
        return found

    def sgd_step(parameters, gradients, learning_rate):
        new = {}
        open_branches = [(new, parameters, gradients)]
        while open_branches:
            into, old, by = open_branches.pop()
            for name, leaf in old.items():
                if isinstance(leaf, dict):
                    into[name] = {}
                    open_branches.append((into[name], leaf, by[name]))
                else:
                    into[name] = torch.lerp(leaf, leaf - by[name], learning_rate)
        return new


# 6.12 -----------------------------------------------------------------------------------------


class CrossEntropyUnderVmap(Variant, exercise="largest_gradient"):
    """Torch's cross-entropy, whose gradient is 0 if all targets are ignored; one long vector."""

    def example_gradients(parameters, tokens, targets):
        def loss(parameters, tokens, targets):
            return F.cross_entropy(averaging_logits(parameters, tokens), targets, ignore_index=-100)

        return torch.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, tokens, targets)

    def largest_gradient(parameters, tokens, targets):
        each, rows = example_gradients(parameters, tokens, targets), []
        open_branches = [each]
        while open_branches:
            branch = open_branches.pop()
            if isinstance(branch, dict):
                open_branches.extend(branch.values())
            else:
                rows.append(branch.reshape(len(tokens), -1))
        norms = torch.cat(rows, dim=1).norm(dim=1)
        return norms, int(norms.max(dim=0).indices)


class ExampleAfterExample(Variant, exercise="largest_gradient"):
    """A loop over the batch, with autograd; pytrees; a sort."""

    def example_gradients(parameters, tokens, targets):
        from torch.utils._pytree import tree_flatten, tree_unflatten

        leaves, form = tree_flatten(parameters)
        found = []
        for row, labels in zip(tokens, targets, strict=True):
            own = [leaf.detach().clone().requires_grad_() for leaf in leaves]
            kept = labels != -100
            logits = averaging_logits(tree_unflatten(own, form), row)
            if not kept.any():
                found.append([torch.zeros_like(leaf) for leaf in leaves])
                continue
            loss = F.cross_entropy(logits[kept], labels[kept])
            found.append(torch.autograd.grad(loss, own))
        return tree_unflatten([torch.stack(each) for each in zip(*found, strict=True)], form)

    def largest_gradient(parameters, tokens, targets):
        from torch.utils._pytree import tree_leaves

        leaves = tree_leaves(example_gradients(parameters, tokens, targets))
        norms = torch.stack([leaf.flatten(1).norm(dim=1) for leaf in leaves]).norm(dim=0)
        return norms, norms.argsort(descending=True)[0]


class JacobianOfTheLosses(Variant, exercise="largest_gradient"):
    """All losses in one vector, and its Jacobian."""

    def example_gradients(parameters, tokens, targets):
        def losses(parameters):
            logits = averaging_logits(parameters, tokens)
            nats = F.cross_entropy(logits.mT, targets, reduction="none")
            return nats.sum(dim=1) / (targets != -100).sum(dim=1).clamp(min=1)

        return torch.func.jacrev(losses)(parameters)

    def largest_gradient(parameters, tokens, targets):
        each = example_gradients(parameters, tokens, targets)
        leaves = [each["embedding"], *each["ffn"].values(), each["unembedding"]]
        norms = sum(torch.einsum("bij,bij->b", leaf, leaf) for leaf in leaves) ** 0.5
        index = max(range(len(norms)), key=lambda i: norms[i].item())
        return norms, torch.tensor(index)


# 6.13 -----------------------------------------------------------------------------------------


class EveryTokenFirst(Variant, exercise="check_set_model"):
    """Random sets with padding anywhere; the padding is removed and the rest reordered at once."""

    def check_set_model(model):
        generator = torch.Generator().manual_seed(5)
        for length in (7, 12, 16):
            tokens = torch.randint(0, 16, (length,), generator=generator)
            mask = torch.rand(length, generator=generator) < 0.7
            mask[:2] = True
            real = mask.nonzero().flatten()
            scores = model(tokens, mask)[real].double()
            for _ in range(3):
                order = torch.randperm(len(real), generator=generator)
                seen = model(tokens[real[order]], torch.ones_like(real, dtype=torch.bool))
                torch.testing.assert_close(seen.double(), scores[order], rtol=0, atol=2e-6)


class BackByTheInverse(Variant, exercise="check_set_model"):
    """The order is undone on the scores, which are zero at padding; two laws, two loops."""

    def check_set_model(model):
        tokens = torch.tensor([2, 15, 4, 8, 11, 6, 1, 13])
        mask = torch.tensor([1, 1, 0, 1, 1, 0, 1, 0]).bool()

        def at_real(tokens, mask):
            return torch.where(mask, model(tokens, mask).double(), 0.0)

        expected = at_real(tokens, mask)
        for seed in range(4):
            order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
            undone = at_real(tokens[order], mask[order])[order.argsort()]
            assert (undone - expected).abs().max() < 1e-5, "the order matters"
        alone = model(tokens[mask], torch.ones(int(mask.sum())) == 1)
        if (alone.double() - expected[mask]).abs().max() > 1e-5:
            raise AssertionError("the padding matters")


class SwapsOfTwo(Variant, exercise="check_set_model"):
    """Every pair of positions is exchanged, which generates all orders; padding is added."""

    def check_set_model(model):
        tokens, everything = torch.tensor([9, 3, 12, 0, 7]), torch.ones(5, dtype=torch.bool)
        alone = model(tokens, everything)
        padded = torch.cat([tokens, torch.tensor([5, 14])])
        mask = torch.cat([everything, torch.tensor([False, False])])
        for i in range(7):
            for j in range(i):
                order = list(range(7))
                order[i], order[j] = j, i
                seen = model(padded[order], mask[order])
                for place, token in enumerate(order):
                    if token < 5:
                        assert abs(float(seen[place]) - float(alone[token])) < 1e-5
