"""Right answers of chapter 07 that look different; none may lose a point."""

import math
import re
from collections import Counter

import torch
import torch.nn.functional as F
from torch import nn

from classroom.exercise.answers import Variant

# 7.10 -----------------------------------------------------------------------------------------


class WordsWithCounts(Variant, exercise="byte_pairs"):
    """Different words are kept once, with their counts; special tokens are found by hand."""

    def split_words(text):
        return [
            match.group().encode("utf-8") for match in re.finditer(r" ?(\w+|[^\w\s]+)|\s", text)
        ]

    def merged(spelling, pair):
        pieces, place = [], 0
        while place < len(spelling):
            is_pair = spelling[place : place + 2] == pair
            pieces.append(b"".join(spelling[place : place + 1 + is_pair]))
            place += 1 + is_pair
        return tuple(pieces)

    def byte_pairs(words, num_merges):
        vocabulary = {
            tuple(word[i : i + 1] for i in range(len(word))): n
            for word, n in Counter(words).items()
        }
        merges = []
        while len(merges) < num_merges:
            scores = Counter()
            for spelling, count in vocabulary.items():
                free = {}
                for place, pair in enumerate(zip(spelling[:-1], spelling[1:], strict=True)):
                    if free.get(pair, 0) <= place:
                        scores[pair] += count
                        free[pair] = place + 2
            if not scores:
                return merges
            highest = max(scores.values())
            merges.append(min(pair for pair, score in scores.items() if score == highest))
            renewed = Counter()
            for spelling, count in vocabulary.items():
                renewed[merged(spelling, merges[-1])] += count
            vocabulary = renewed
        return merges

    def apply_merges(word, merges):
        spelling = tuple(word[i : i + 1] for i in range(len(word)))
        for pair in merges:
            spelling = merged(spelling, tuple(pair))
        return list(spelling)

    def encode(text, merges, special_tokens=()):
        for number, token in enumerate(special_tokens):
            before, found, after = text.partition(token)
            if found:
                return [
                    *encode(before, merges, special_tokens),
                    256 + len(merges) + number,
                    *encode(after, merges, special_tokens),
                ]
        order = {first + second: 256 + i for i, (first, second) in enumerate(merges)}
        return [
            piece[0] if len(piece) == 1 else order[piece]
            for word in split_words(text)
            for piece in apply_merges(word, merges)
        ]

    def decode(ids, merges, special_tokens=()):
        buffer = bytearray()
        for i in ids:
            if i < 256:
                buffer.append(i)
            elif i < 256 + len(merges):
                buffer += merges[i - 256][0] + merges[i - 256][1]
            else:
                buffer += special_tokens[i - 256 - len(merges)].encode()
        return str(bytes(buffer), "utf-8", "replace")


class LowestRankFirst(Variant, exercise="byte_pairs"):
    """The pair with the lowest rank is merged until none is known; words are found by groups."""

    def split_words(text):
        words, kinds = [], []
        for character in text:
            kind = (
                "space" if character.isspace() else "word" if re.match(r"\w", character) else "sign"
            )
            if kind != "space" and kinds and (kinds[-1] == kind or words[-1] == " "):
                words[-1] += character
                kinds[-1] = kind
            else:
                words.append(character)
                kinds.append(kind)
        return [word.encode() for word in words]

    def apply_merges(word, merges):
        ranks = {tuple(pair): rank for rank, pair in enumerate(merges)}
        pieces = [bytes([byte]) for byte in word]
        while len(pieces) > 1:
            rank, a, b = min(
                (ranks.get(pair, math.inf), *pair) for pair in zip(pieces, pieces[1:], strict=False)
            )
            if rank == math.inf:
                break
            place = 0
            while place < len(pieces) - 1:
                if pieces[place] == a and pieces[place + 1] == b:
                    pieces[place : place + 2] = [a + b]
                place += 1
        return pieces

    def byte_pairs(words, num_merges):
        merges = []
        for _ in range(num_merges):
            counts = {}
            for word in words:
                last = None
                pieces = apply_merges(word, merges)
                for pair in zip(pieces, pieces[1:], strict=False):
                    if pair[0] == pair[1] and pair == last:
                        last = None  # its first byte is used up
                        continue
                    counts[pair] = counts.get(pair, 0) + 1
                    last = pair
            ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
            if not ordered:
                break
            merges.append(ordered[0][0])
        return merges

    def tokens(merges, special_tokens):
        yield from (bytes([byte]) for byte in range(256))
        yield from (b"".join(pair) for pair in merges)
        yield from (token.encode() for token in special_tokens)

    def encode(text, merges, special_tokens=()):
        id_of = {token: i for i, token in enumerate(tokens(merges, special_tokens))}
        ids, rest = [], text
        while rest:
            starts = {token: rest.find(token) for token in special_tokens if token in rest}
            token = min(starts, key=starts.get, default="")
            start = starts.get(token, len(rest))
            for word in split_words(rest[:start]):
                ids.extend(id_of[piece] for piece in apply_merges(word, merges))
            ids.extend([id_of[token.encode()]] if token else [])
            rest = rest[start + len(token) :]
        return ids

    def decode(ids, merges, special_tokens=()):
        known = list(tokens(merges, special_tokens))
        return b"".join(map(known.__getitem__, ids)).decode("utf-8", "replace")


class BetweenMarks(Variant, exercise="byte_pairs"):
    """Pieces stand in a string between marks, one character a byte; pairs are lists."""

    def split_words(text):
        return [w.encode() for w in re.split(r"( ?[^\W]+| ?[^\w\s]+|\s)", text) if w]

    def spelled(word):
        return "||".join(chr(200 + byte) for byte in word)

    def joined(text, pair):
        a, b = ("".join(chr(200 + byte) for byte in piece) for piece in pair)
        return f"||{text}||".replace(f"|{a}||{b}|", f"|{a}{b}|").strip("|")

    def pieces(text):
        return [bytes(ord(c) - 200 for c in piece) for piece in text.split("||")]

    def byte_pairs(words, num_merges):
        texts, merges = [spelled(word) for word in words], []
        for _ in range(num_merges):
            pairs = sorted({p for t in texts for p in zip(pieces(t), pieces(t)[1:], strict=False)})
            if not pairs:
                break
            gains = [
                sum(len(pieces(t)) - len(pieces(joined(t, pair))) for t in texts) for pair in pairs
            ]
            merges.append(list(pairs[gains.index(max(gains))]))
            texts = [joined(t, merges[-1]) for t in texts]
        return merges

    def apply_merges(word, merges):
        text = spelled(word)
        for pair in merges:
            text = joined(text, pair)
        return pieces(text)

    def encode(text, merges, special_tokens=()):
        listed = [b"%c" % byte for byte in range(256)] + [a + b for a, b in merges]
        if not special_tokens:
            found = (piece for word in split_words(text) for piece in apply_merges(word, merges))
            return [listed.index(piece) for piece in found]
        *others, last = special_tokens
        parts = [encode(part, merges, others) for part in text.split(last)]
        number = len(listed) + len(others)
        return parts[0] + [i for part in parts[1:] for i in (number, *part)]

    def decode(ids, merges, special_tokens=()):
        listed = [b"%c" % byte for byte in range(256)] + [a + b for a, b in merges]
        listed += [bytes(token, "utf-8") for token in special_tokens]
        text = b""
        for i in ids:
            text += listed[i]
        return text.decode(errors="replace")


# 7.1 ------------------------------------------------------------------------------------------


class SlicesAndStack(Variant, exercise="get_batch"):
    """Slices in a loop; Python numbers for the starts."""

    def cut(tokens, num_held_out):
        num_train = tokens.numel() - num_held_out
        return tokens[:num_train], tokens[num_train:]

    def starts_from(draws, num_tokens, length):
        return torch.tensor([math.floor(d * (num_tokens - length)) for d in draws.tolist()])

    def get_batch(tokens, starts, length):
        inputs, targets = [], []
        for start in starts:
            inputs.append(tokens[start : start + length])
            targets.append(tokens[start + 1 : start + length + 1])
        return torch.stack(inputs), torch.stack(targets)


class UnfoldedWindows(Variant, exercise="get_batch"):
    """All windows of one token more are laid out, and cut at both ends."""

    def cut(tokens, num_held_out):
        return tuple(tokens.split((len(tokens) - num_held_out, num_held_out)))

    def starts_from(draws, num_tokens, length):
        return torch.floor(draws * (num_tokens - length)).to(torch.int32)

    def get_batch(tokens, starts, length):
        windows = tokens.unfold(0, length + 1, 1).index_select(0, starts)
        return windows.narrow(1, 0, length), windows.narrow(1, 1, length)


class TwoTexts(Variant, exercise="get_batch"):
    """The text is shifted once, and both texts are read at the same places; lists are returned."""

    def cut(tokens, num_held_out):
        is_train = torch.arange(len(tokens)) < len(tokens) - num_held_out
        return [tokens[is_train], tokens[~is_train]]

    def starts_from(draws, num_tokens, length):
        count = torch.arange(num_tokens).unfold(0, length + 1, 1).shape[0]
        return (draws * count).trunc().to(torch.int64)

    def get_batch(tokens, starts, length):
        now, later = tokens[:-1], tokens[1:]
        places = torch.stack([torch.arange(s, s + length) for s in starts.tolist()])
        return [now[places], later[places]]


# 7.2 ------------------------------------------------------------------------------------------


class StepSizeForm(Variant, exercise="adamw_step"):
    """Both corrections are folded into the step size and into eps."""

    def adamw_step(
        parameter, gradient, mean, mean_square, step, lr, beta1, beta2, eps, weight_decay
    ):
        mean = torch.lerp(mean, gradient, 1 - beta1)
        mean_square = torch.lerp(mean_square, gradient.square(), 1 - beta2)
        root = math.sqrt(1 - beta2**step)
        step_size = lr * root / (1 - beta1**step)
        decayed = parameter - lr * weight_decay * parameter
        return decayed - step_size * mean / (mean_square.sqrt() + eps * root), mean, mean_square


class AveragesByLerp(Variant, exercise="adamw_step"):
    """Averages by lerp and addcmul, the division by addcdiv, on tensors of its own."""

    def adamw_step(
        parameter, gradient, mean, mean_square, step, lr, beta1, beta2, eps, weight_decay
    ):
        mean = mean.lerp(gradient, 1 - beta1)
        mean_square = (beta2 * mean_square).addcmul(gradient, gradient, value=1 - beta2)
        size = mean_square.div(1 - beta2**step).sqrt().add(eps)
        decayed = parameter.clone().mul_(1 - lr * weight_decay)
        return decayed.addcdiv_(mean, size, value=-lr / (1 - beta1**step)), mean, mean_square


class EntryByEntry(Variant, exercise="adamw_step"):
    """A loop over single numbers; clones changed in place."""

    def adamw_step(
        parameter, gradient, mean, mean_square, step, lr, beta1, beta2, eps, weight_decay
    ):
        new = [tensor.clone() for tensor in (parameter, mean, mean_square)]
        flat = [tensor.view(-1) for tensor in new]
        for w, m, v, g in zip(*flat, gradient.flatten(), strict=True):
            m += (1 - beta1) * (g - m)
            v += (1 - beta2) * (g * g - v)
            direction = m / (1 - beta1**step) / ((v / (1 - beta2**step)) ** 0.5 + eps)
            w -= lr * (direction + weight_decay * w)
        return new


# 7.3 ------------------------------------------------------------------------------------------


class WithTensors(Variant, exercise="learning_rate"):
    """Tensors, and the whole course of the rate of which one is taken."""

    def learning_rate(step, peak, warmup_steps, total_steps, final):
        climb = torch.arange(1, warmup_steps + 1, dtype=torch.float64) / (warmup_steps + 1) * peak
        angle = torch.linspace(0, math.pi, total_steps - warmup_steps, dtype=torch.float64)
        descent = final + (peak - final) * (0.5 + 0.5 * angle.cos())
        return torch.cat([climb, descent])[min(step, total_steps - 1)]


class SquaredHalfAngle(Variant, exercise="learning_rate"):
    """Half a cosine as the square of a cosine of half the angle; clamped on both sides."""

    def learning_rate(step, peak, warmup_steps, total_steps, final):
        if step >= total_steps:
            return final
        gone = max(0, step - warmup_steps) / (total_steps - warmup_steps - 1)
        rate = final + (peak - final) * math.cos(gone * math.pi / 2) ** 2
        return rate * min(1, (step + 1) / (warmup_steps + 1))


class WholeCourse(Variant, exercise="learning_rate"):
    """The rates of all updates in a list, the way down as the real part of a turning number."""

    def learning_rate(step, peak, warmup_steps, total_steps, final):
        rates = [peak * number / (warmup_steps + 1) for number in range(1, warmup_steps + 1)]
        num_left = total_steps - warmup_steps
        middle, half = (peak + final) / 2, (peak - final) / 2
        for number in range(num_left):
            turn = (-1 + 0j) ** (number / (num_left - 1))
            rates.append(middle + half * turn.real)
        return rates[step] if step < total_steps else rates[-1]


# 7.4 ------------------------------------------------------------------------------------------


class TorchClipping(Variant, exercise="clip_gradients"):
    """Torch's own function, on parameters made for the purpose."""

    def clip_gradients(gradients, max_norm):
        parameters = []
        for gradient in gradients:
            shape = () if gradient is None else gradient.shape
            parameters.append(nn.Parameter(torch.zeros(shape, dtype=torch.float64)))
            parameters[-1].grad = None if gradient is None else gradient.clone()
        try:
            norm = nn.utils.clip_grad_norm_(parameters, max_norm, error_if_nonfinite=True)
        except RuntimeError as error:
            raise ValueError("the gradients must be finite") from error
        return [p.grad for p in parameters], norm


class SquaresAddedUp(Variant, exercise="clip_gradients"):
    """A sum of squares as a Python number, two branches, clones."""

    def clip_gradients(gradients, max_norm):
        total = 0.0
        for gradient in gradients:
            if gradient is not None:
                total += float((gradient * gradient).sum())
        norm = math.sqrt(total) if total == total else math.nan
        if math.isnan(norm) or math.isinf(norm):
            raise ValueError(f"gradients must be finite, their norm is {norm}")
        if norm <= max_norm:
            return [None if g is None else g.clone() for g in gradients], norm
        return [None if g is None else g / norm * max_norm for g in gradients], norm


class NormOfNorms(Variant, exercise="clip_gradients"):
    """The norm of the norms; entries are tested before anything else; a tuple of tensors."""

    def clip_gradients(gradients, max_norm):
        present = [g for g in gradients if g is not None]
        if any(not torch.isfinite(g).all() for g in present):
            raise ValueError("a gradient holds NaN or infinity")
        norm = torch.stack([torch.linalg.vector_norm(g) for g in present]).norm()
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        return tuple(g if g is None else factor * g for g in gradients), norm.item()


# 7.5 ------------------------------------------------------------------------------------------


class BackwardAndGrad(Variant, exercise="accumulated_gradients"):
    """`backward` adds up in `grad`; losses as Python numbers."""

    def accumulated_gradients(model, weight, parts):
        weight = nn.Parameter(weight)
        num_targets = sum(int((targets >= 0).sum()) for _, targets in parts)
        total = 0.0
        for x, targets in parts:
            rows = model(weight, x).flatten(0, 1)
            loss = nn.CrossEntropyLoss(reduction="sum", ignore_index=-100)(rows, targets.flatten())
            (loss / num_targets).backward()
            total += loss.item()
        return weight.grad, total / num_targets


class DividedAtTheEnd(Variant, exercise="accumulated_gradients"):
    """Sums are added up and divided once; only places that count are read."""

    def accumulated_gradients(model, weight, parts):
        gradient, loss, count = 0.0, 0.0, 0
        for x, targets in parts:
            leaf = weight.detach().requires_grad_()
            counts = targets.ne(-100)
            chances = model(leaf, x).log_softmax(dim=-1)[counts]
            part = -chances.gather(1, targets[counts][:, None]).sum()
            part.backward()
            gradient = gradient + leaf.grad
            loss, count = loss + part.detach(), count + counts.sum()
        return gradient / count, loss / count


class SequenceBySequence(Variant, exercise="accumulated_gradients"):
    """The parts are cut further, one sequence at a time."""

    def accumulated_gradients(model, weight, parts):
        rows = [(x[i : i + 1], t[i]) for x, t in parts for i in range(len(x))]
        count = sum((t != -100).sum() for _, t in rows).item()
        leaf = weight.clone().requires_grad_(True)
        gradients, losses = [], []
        for x, targets in rows:
            losses.append(F.cross_entropy(model(leaf, x)[0], targets, reduction="sum") / count)
            gradients += torch.autograd.grad(losses[-1], [leaf])
        return sum(gradients), sum(losses).detach()


# 7.6 ------------------------------------------------------------------------------------------


class WideAllTheWay(Variant, exercise="low_precision"):
    """float64 inside; a loss by log_softmax and gather; an update by add."""

    def rms_norm(x, gain, eps):
        wide = x.double()
        root = torch.sqrt(torch.mean(wide**2, dim=-1, keepdim=True) + eps)
        return (wide / root * gain.double()).type_as(x)

    def token_losses(logits, targets):
        chances = logits.float().log_softmax(dim=-1)
        return -chances.gather(-1, targets.unsqueeze(-1)).squeeze(-1)

    def master_step(master, gradient, lr):
        master = torch.add(master, gradient.float(), alpha=-lr)
        return master, master.to(torch.bfloat16)


class RoundedBeforeTheGain(Variant, exercise="low_precision"):
    """The normalised vector is rounded before the gain, as some models do; torch's logsumexp."""

    def rms_norm(x, gain, eps):
        wide = x.to(torch.float32)
        normalised = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        return normalised.to(x.dtype) * gain.to(x.dtype)

    def token_losses(logits, targets):
        logits = logits.to(torch.float32)
        chosen = torch.take_along_dim(logits, targets[..., None], dim=-1)[..., 0]
        return torch.logsumexp(logits, dim=-1) - chosen

    def master_step(master, gradient, lr):
        updated = master.clone()
        updated -= lr * gradient.to(updated.dtype)
        return [updated, updated.clone().bfloat16()]


class TorchFunctions(Variant, exercise="low_precision"):
    """Torch's own norm, in float32; flattened losses; float64 for the update."""

    def rms_norm(x, gain, eps):
        return F.rms_norm(x.float(), (x.shape[-1],), gain, eps).to(x.dtype)

    def token_losses(logits, targets):
        rows = logits.reshape(-1, logits.shape[-1]).to(torch.float64)
        losses = F.cross_entropy(rows, targets.reshape(-1), reduction="none")
        return losses.reshape(targets.shape).float()

    def master_step(master, gradient, lr):
        master = (master.double() - lr * gradient.double()).float()
        return master, master.bfloat16()


# 7.9 ------------------------------------------------------------------------------------------


class RandomShapes(Variant, exercise="check_same_attention"):
    """Several random shapes and masks against attention in float64."""

    def check_same_attention(attention):
        generator = torch.Generator().manual_seed(3)
        for q_len, k_len, d_head, d_value in ((3, 9, 5, 2), (7, 13, 2, 3), (1, 6, 4, 5)):
            for share in (None, 0.3, 0.6):
                shapes = (q_len, d_head), (k_len, d_head), (k_len, d_value)
                given = [torch.randn(3, 2, *s, generator=generator) for s in shapes]
                mask = None
                if share is not None:
                    mask = torch.rand(3, 2, q_len, k_len, generator=generator) > share
                    mask[..., -1] = True
                slope = torch.randn(3, 2, q_len, d_value, generator=generator)
                results = []
                for compute, dtype in (
                    (attention, torch.float32),
                    (F.scaled_dot_product_attention, torch.float64),
                ):
                    leaves = [g.clone().to(dtype).requires_grad_() for g in given]
                    output = compute(*leaves, mask)
                    (output * slope).sum().backward()
                    results.append([output.detach(), *(leaf.grad for leaf in leaves)])
                for seen, expected in zip(*results, strict=True):
                    torch.testing.assert_close(seen.double(), expected, rtol=1e-4, atol=1e-4)


class WrittenOut(Variant, exercise="check_same_attention"):
    """Attention written out in float32, with einsum; one long case."""

    def check_same_attention(attention):
        torch.manual_seed(11)
        query = torch.randn(2, 1, 4, 3, requires_grad=True)
        key = torch.randn(2, 1, 23, 3, requires_grad=True)
        value = torch.randn(2, 1, 23, 7, requires_grad=True)
        masks = [torch.ones(2, 1, 4, 23, dtype=torch.bool), torch.rand(2, 1, 4, 23) < 0.5]
        masks[1][..., :2] = True
        for mask in masks:
            scores = torch.einsum("bhqd,bhkd->bhqk", query, key) / math.sqrt(3)
            weights = torch.softmax(scores.masked_fill(~mask, -math.inf), dim=-1)
            expected = torch.einsum("bhqk,bhkd->bhqd", weights, value)
            seen = attention(query, key, value, mask)
            assert torch.allclose(seen, expected, atol=1e-4), "the results differ"
            inputs = (query, key, value)
            slopes = torch.autograd.grad(seen.square().sum(), inputs)
            right = torch.autograd.grad(expected.square().sum(), inputs)
            for name, s, r in zip(("query", "key", "value"), slopes, right, strict=True):
                assert torch.allclose(s, r, atol=2e-4), f"the gradients by {name} differ"


class DifferenceQuotients(Variant, exercise="check_same_attention"):
    """Values against torch's own; slopes against each other along random directions."""

    def check_same_attention(attention):
        torch.manual_seed(5)

        def off(a, b):
            return float((a - b).norm() / b.norm())

        for k_len in (5, 10):
            q, k, v = (
                torch.randn(2, 2, 3, 6),
                torch.randn(2, 2, k_len, 6),
                torch.randn(2, 2, k_len, 4),
            )
            mask = torch.rand(2, 1, 3, k_len) > 0.5
            mask = mask | ~mask.any(dim=-1, keepdim=True)
            for m in (None, mask, mask.roll(1, dims=0)):
                leaves = [t.clone().requires_grad_() for t in (q, k, v)]
                seen = attention(*leaves, m)
                right = F.scaled_dot_product_attention(*leaves, attn_mask=m)
                assert off(seen, right) < 1e-5
                direction = torch.randn_like(right)
                mine = torch.autograd.grad((seen * direction).sum(), leaves)
                theirs = torch.autograd.grad((right * direction).sum(), leaves)
                assert max(map(off, mine, theirs)) < 1e-5


# 7.7 ------------------------------------------------------------------------------------------


class ProductByProduct(Variant, exercise="training_cost"):
    """A list of all products of a layer, per token; bits by log2."""

    def flops_per_token(num_layers, d_model, d_ff, vocab_size, length):
        products = [(d_model, d_model)] * 4 + [(d_model, d_ff), (d_ff, d_model)]
        products += [(d_model, length), (length, d_model)]
        layer = sum(2 * rows * columns for rows, columns in products)
        forward = num_layers * layer + 2 * d_model * vocab_size
        return forward + 2 * forward

    def mfu(tokens_per_second, flops_per_token, peak_teraflops):
        achieved = tokens_per_second * flops_per_token / 1e12
        return achieved / peak_teraflops

    def bits_per_byte(nats_per_token, num_tokens, num_bytes):
        bits = nats_per_token * num_tokens * math.log2(math.e)
        return bits / num_bytes


class SixNPlusTwelve(Variant, exercise="training_cost"):
    """Six per weight, and twelve times layers, width and length, as floats."""

    def flops_per_token(num_layers, d_model, d_ff, vocab_size, length):
        per_layer = 4.0 * d_model * d_model + 2.0 * d_model * d_ff
        num_weights = num_layers * per_layer + vocab_size * d_model
        return 6.0 * num_weights + 12.0 * num_layers * d_model * length

    def mfu(tokens_per_second, flops_per_token, peak_teraflops):
        fastest = peak_teraflops * 10**12 / flops_per_token
        return tokens_per_second / fastest

    def bits_per_byte(nats_per_token, num_tokens, num_bytes):
        return nats_per_token * (num_tokens / num_bytes) / math.log(2)


class ShapesOfTensors(Variant, exercise="training_cost"):
    """The weights are counted as tensors without numbers; results are tensors."""

    def flops_per_token(num_layers, d_model, d_ff, vocab_size, length):
        with torch.device("meta"):
            layer = nn.ModuleList([nn.Linear(d_model, d_model, bias=False) for _ in range(4)])
            layer.append(nn.Linear(d_model, d_ff, bias=False))
            layer.append(nn.Linear(d_ff, d_model, bias=False))
            last = nn.Linear(d_model, vocab_size, bias=False)
        weights = num_layers * sum(p.numel() for p in layer.parameters()) + last.weight.numel()
        pairs = num_layers * length * 2 * d_model
        return 3 * 2 * (weights + pairs)

    def mfu(tokens_per_second, flops_per_token, peak_teraflops):
        return torch.tensor(tokens_per_second * flops_per_token / peak_teraflops).double() / 1e12

    def bits_per_byte(nats_per_token, num_tokens, num_bytes):
        perplexity = math.exp(nats_per_token)
        return num_tokens * math.log2(perplexity) / num_bytes


# 7.8 ------------------------------------------------------------------------------------------


class DistancesToExamples(Variant, exercise="verdicts"):
    """Each run is compared with typical ones of each kind by a summary; the gap decides the rest."""

    def verdicts(runs):
        typical = [  # how both losses end, the highest loss, and the norm at both ends
            ("nothing", 1.72, 1.46, 2.37, 0.80, 0.50),
            ("targets not shifted", 0.20, 0.01, 2.27, 1.0, 0.14),
            ("no mask", 0.80, 0.45, 2.34, 0.85, 0.40),
            ("no mask", 1.20, 0.90, 2.34, 0.85, 0.40),
            ("learning rate too high", 2.2, 1.95, 3.6, 1.0, 0.65),
            ("learning rate too low", 2.47, 2.46, 2.49, 0.9, 0.85),
            ("gradients never zeroed", 3.3, 2.4, 3.7, 3.4, 35.0),
            ("softmax twice", 2.07, 1.99, 2.46, 0.10, 0.06),
            ("always the same batch", 0.65, 3.0, 2.3, 0.85, 0.38),
        ]
        found = {}
        for letter, run in runs.items():
            train, held_out, norm = (run[name] for name in ("train", "held_out", "norm"))
            losses = [train[-5:].mean(), held_out[-5:].mean(), train.max()]
            seen = torch.stack([*losses, norm[0].log(), norm[-3:].mean().log()])

            def distance(example, seen=seen):
                _, *losses, begin, end = example
                return (seen - torch.tensor([*losses, math.log(begin), math.log(end)])).norm()

            nearest = min(typical, key=distance)[0]
            gap = losses[0] - losses[1]
            is_dropping = nearest == "nothing" and gap < 0.14
            found[letter] = "dropout in evaluation" if is_dropping else nearest
        return found


class EvidenceInOrder(Variant, exercise="verdicts"):
    """A list of rules, the first that holds counts; levels worked out, lists of Python numbers."""

    def verdicts(runs):
        nothing_known, best = math.log(12), 1.344
        rules = [
            ("softmax twice", lambda t, h, n: max(n[:3]) < 0.5),
            ("gradients never zeroed", lambda t, h, n: n[-1] > 3 * n[0] and n[0] > 2),
            ("targets not shifted", lambda t, h, n: max(t[-2:] + h[4:]) < 0.3),
            ("always the same batch", lambda t, h, n: t[-1] < 1.2 and h[-1] > nothing_known - 0.3),
            ("no mask", lambda t, h, n: h[-1] < 0.8 * best),
            ("learning rate too high", lambda t, h, n: max(t + h) > nothing_known + 0.15),
            ("learning rate too low", lambda t, h, n: h[-1] > 0.93 * nothing_known),
            ("dropout in evaluation", lambda t, h, n: sum(t[5:]) / 5 < sum(h[5:]) / 5 + 0.14),
            ("nothing", lambda t, h, n: True),
        ]
        return {
            letter: next(
                name
                for name, holds in rules
                if holds(*(run[k].tolist() for k in ("train", "held_out", "norm")))
            )
            for letter, run in runs.items()
        }


class QuestionByQuestion(Variant, exercise="verdicts"):
    """A tree of questions, numbers with numpy's help, keys in another order."""

    def verdicts(runs):
        found = {}
        for letter in sorted(runs, reverse=True):
            train, held_out, norm = (runs[letter][k].numpy() for k in ("train", "held_out", "norm"))
            ends_at = held_out[-3:].mean()
            if ends_at < 1.15:
                is_instant = held_out[:4].min() < 0.3
                name = "targets not shifted" if is_instant else "no mask"
            elif train[-3:].mean() < 1.2:
                name = "always the same batch"
            elif norm.max() > 5:
                name = "gradients never zeroed"
            elif norm.max() < 0.5:
                name = "softmax twice"
            elif train[0] - train.min() < 0.2:
                name = "learning rate too low"
            elif train[1:4].max() > 2.7:
                name = "learning rate too high"
            else:
                is_easier = (train - held_out)[4:].mean() > 0.14
                name = "nothing" if is_easier else "dropout in evaluation"
            found[letter] = name
        return found
