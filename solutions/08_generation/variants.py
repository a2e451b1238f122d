"""Right answers of chapter 08, differently written: graders must give each full points."""

import math

import torch
import torch.nn.functional as F

from classroom.exercise.answers import Variant


def turn(x, positions):
    speed = 10_000.0 ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1])
    angle = positions[:, None] * speed
    ahead, aside = x[..., 0::2], x[..., 1::2]
    pairs = (ahead * angle.cos() - aside * angle.sin(), ahead * angle.sin() + aside * angle.cos())
    return torch.stack(pairs, dim=-1).flatten(-2).to(x.dtype)


# 8.1 ------------------------------------------------------------------------------------------


class RowsOfPlainNumbers(Variant, exercise="next_token"):
    """Row after row, in lists and with a loop."""

    def with_temperature(logits, temperature):
        if temperature == 0:
            return top_k(logits, 1)
        return torch.stack([torch.div(row, temperature) for row in logits])

    def top_k(logits, k):
        cut = torch.full_like(logits, float("-inf"))
        for row, kept in zip(logits, cut, strict=True):
            numbers = row.tolist()
            for token in sorted(range(len(numbers)), key=numbers.__getitem__, reverse=True)[:k]:
                kept[token] = row[token]
        return cut

    def top_p(logits, p):
        cut = torch.full_like(logits, float("-inf"))
        for row, kept in zip(logits, cut, strict=True):
            share, total = row.softmax(0), 0.0
            for token in row.sort(descending=True).indices.tolist():
                if total >= p and p < 1:
                    break
                kept[token] = row[token]
                total += share[token].item()
        return cut

    def draw(logits, u):
        tokens = []
        for row, place in zip(logits.softmax(-1), u, strict=True):
            token, edge, last = 0, row[0], int(row.nonzero()[-1])
            while edge <= place and token < last:
                token += 1
                edge = edge + row[token]
            tokens.append(token)
        return torch.tensor(tokens)

    def next_token(logits, u, temperature=1.0, k=None, p=None):
        logits = with_temperature(logits, temperature)
        logits = logits if k is None else top_k(logits, k)
        return draw(logits if p is None else top_p(logits, p), u)


class TopkAndSearch(Variant, exercise="next_token"):
    """torch.topk with ties settled by the ids, and a binary search for the share."""

    def with_temperature(logits, temperature):
        return logits.mul(temperature**-1) if temperature else top_k(logits, 1)

    def top_k(logits, k):
        k = min(k, logits.size(-1))
        least = torch.topk(logits, k).values[..., -1:]
        above = logits > least
        room = k - above.sum(-1, keepdim=True)
        ties = logits == least
        return logits.masked_fill(~(above | ties & (ties.cumsum(-1) <= room)), -torch.inf)

    def top_p(logits, p):
        share = F.softmax(logits, dim=-1)
        # what the tokens that are more probable than each add up to; of equals the earlier one is
        ids = torch.arange(share.shape[-1])
        theirs, own = share[:, None, :], share[:, :, None]
        more = (theirs * ((theirs > own) | ((theirs == own) & (ids < ids[:, None])))).sum(-1)
        return torch.where((more < p) | torch.tensor(p == 1.0), logits, -torch.inf)

    def draw(logits, u):
        edges = torch.softmax(logits, dim=-1).cumsum(-1)
        place = torch.searchsorted(edges, u.unsqueeze(-1), right=True)
        last = (edges < edges[:, -1:]).sum(-1, keepdim=True)
        return torch.minimum(place, last).squeeze(-1)

    def next_token(logits, u, temperature=1.0, k=None, p=None):
        tempered = logits / temperature
        tempered = top_k(tempered, k or tempered.shape[-1])
        return draw(top_p(tempered, 1.0 if p is None else p), u)


class SortedOnce(Variant, exercise="next_token"):
    """Stable sorts of the negative logits; the first share that u does not reach, by argmax."""

    def with_temperature(logits, temperature):
        if temperature == 0:
            best = logits.argmax(-1, keepdim=True)
            return torch.full_like(logits, -math.inf).scatter(-1, best, logits.gather(-1, best))
        return torch.exp(logits.sub(logits.logsumexp(-1, keepdim=True))).log() / temperature + (
            logits.logsumexp(-1, keepdim=True) / temperature
        )

    def top_k(logits, k):
        order = (-logits).sort(dim=-1, stable=True).indices
        is_kept = torch.zeros_like(logits, dtype=torch.bool)
        is_kept.scatter_(-1, order[:, :k], True)
        return torch.where(is_kept, logits, logits.new_tensor(-math.inf))

    def top_p(logits, p):
        if p == 1:
            return logits.clone()
        ordered, order = torch.sort(logits, descending=True)
        reached = ordered.softmax(-1).cumsum(-1)
        number = (reached < p).sum(-1, keepdim=True) + 1
        ordered = ordered.masked_fill(torch.arange(logits.shape[-1]) >= number, -math.inf)
        return ordered.gather(-1, order.argsort(-1))

    def draw(logits, u):
        edges = logits.double().softmax(-1).cumsum(-1)
        return (edges > u[:, None] * edges[:, -1:]).int().argmax(-1)

    def next_token(logits, u, temperature=1.0, k=None, p=None):
        steps = [lambda x: with_temperature(x, temperature)]
        if k is not None:
            steps.append(lambda x: top_k(x, k))
        if p is not None:
            steps.append(lambda x: top_p(x, p))
        for step in steps:
            logits = step(logits)
        return draw(logits, u)


# 8.2 ------------------------------------------------------------------------------------------


class KeptUnturned(Variant, exercise="cached_attention"):
    """Keys are kept as they came, and all are turned each time."""

    def cached_attention(query, key, value, cache=None):
        keys = key if cache is None else torch.cat((cache[0], key), 2)
        values = value if cache is None else torch.cat((cache[1], value), 2)
        length, new = keys.shape[2], query.shape[2]
        places = torch.arange(length)
        scores = turn(query, places[-new:]) @ turn(keys, places).mT / query.shape[3] ** 0.5
        hidden = torch.full((new, length), -math.inf, dtype=scores.dtype).triu(length - new + 1)
        return (scores + hidden).softmax(-1) @ values, [keys, values]


class RoomTakenAtOnce(Variant, exercise="cached_attention"):
    """Keys and values lie in a larger room that is copied before it is written to."""

    def cached_attention(query, key, value, cache=None):
        if cache is None:
            room = torch.zeros(2, *key.shape[:2], 64, max(key.shape[3], value.shape[3]))
            cache = {"room": room.to(key.dtype), "length": 0}
        start = cache["length"]
        end = start + key.shape[2]
        room = cache["room"].clone()
        if end > room.shape[3]:
            room = F.pad(room, (0, 0, 0, 2 * end))
        room[0, :, :, start:end, : key.shape[3]] = turn(key, torch.arange(start, end))
        room[1, :, :, start:end, : value.shape[3]] = value
        keys, values = room[0, :, :, :end, : key.shape[3]], room[1, :, :, :end, : value.shape[3]]
        query = turn(query, torch.arange(start, end))
        allowed = torch.arange(end) <= torch.arange(start, end)[:, None]
        found = F.scaled_dot_product_attention(query, keys, values, attn_mask=allowed)
        return found, {"room": room, "length": end}


class TokenAfterToken(Variant, exercise="cached_attention"):
    """New tokens are read one by one, so no mask is needed; the cache is a list of tokens."""

    def cached_attention(query, key, value, cache=None):
        tokens = [] if cache is None else list(cache)
        rows = []
        for i in range(query.shape[2]):
            place = torch.tensor([len(tokens)])
            q, k = (turn(x[:, :, i : i + 1], place) for x in (query, key))
            tokens.append((k, value[:, :, i : i + 1]))
            keys, values = (torch.cat(parts, dim=2) for parts in zip(*tokens, strict=True))
            rows.append(F.scaled_dot_product_attention(q, keys, values))
        return torch.cat(rows, dim=2), tokens


# 8.4 ------------------------------------------------------------------------------------------


class LoopsAndLists(Variant, exercise="cache_bytes"):
    """Layer by layer, token by token."""

    def cache_bytes(
        num_layers, num_heads, num_kv_heads, d_head, length, batch_size, bits, window=None
    ):
        total = 0
        for _layer in range(num_layers):
            for _what in ("keys", "values"):
                tokens = length if window is None or window > length else window
                total += batch_size * tokens * num_kv_heads * d_head
        return total * (bits / 8)

    def sliding_cache(keys, values, positions, key, value, start):
        window = keys.size(2)
        key_columns, value_columns = list(keys.unbind(2)), list(values.unbind(2))
        where = positions.tolist()
        for offset, (k, v) in enumerate(zip(key.unbind(2), value.unbind(2), strict=True)):
            place = (start + offset) % window
            key_columns[place], value_columns[place] = k, v
            where[place] = start + offset
        return torch.stack(key_columns, 2), torch.stack(value_columns, 2), torch.tensor(where)


class Gathered(Variant, exercise="cache_bytes"):
    """For each place, the newest position that belongs there; then old or new by torch.where."""

    def cache_bytes(
        num_layers, num_heads, num_kv_heads, d_head, length, batch_size, bits, window=None
    ):
        kept = min(length, window or length)
        return (
            torch.tensor([2, num_layers, num_kv_heads, d_head, kept, batch_size, bits]).prod() / 8
        )

    def sliding_cache(keys, values, positions, key, value, start):
        window, end = keys.shape[2], start + key.shape[2]
        places = torch.arange(window)
        newest = end - 1 - (end - 1 - places) % window  # may lie before the chunk
        is_new = newest >= start
        source = (newest - start).clamp(min=0)
        keys = torch.where(is_new[:, None], key[:, :, source], keys)
        values = torch.where(is_new[:, None], value[:, :, source], values)
        return keys, values, torch.where(is_new, newest, positions)


class CopiesWrittenTo(Variant, exercise="cache_bytes"):
    """Copies, and one assignment by an index."""

    def cache_bytes(
        num_layers, num_heads, num_kv_heads, d_head, length, batch_size, bits, window=None
    ):
        per_token = num_layers * num_kv_heads * d_head * bits // 4
        if window is not None and window < length:
            length = window
        return batch_size * length * per_token

    def sliding_cache(keys, values, positions, key, value, start):
        ring = [keys.clone(), values.clone()]
        window = len(positions)
        new = range(start, start + key.shape[2])[-window:]
        places = [t % window for t in new]
        ring[0][:, :, places] = key[:, :, -len(new) :]
        ring[1][:, :, places] = value[:, :, -len(new) :]
        positions = positions.clone()
        positions[places] = torch.tensor(list(new))
        return ring[0], ring[1], positions


# 8.8 ------------------------------------------------------------------------------------------


class TopkOfATensor(Variant, exercise="beam_search"):
    """All sums in one tensor, and topk over its flat form."""

    def beam_search(next_log_probs, bos, eos, num_beams, max_len, alpha=0.0):
        rows, sums = torch.tensor([[bos]]), torch.zeros(1, dtype=torch.float64)
        best, best_score = [], -math.inf
        for length in range(1, max_len + 1):
            candidates = sums[:, None] + next_log_probs(rows)
            vocab_size = candidates.shape[1]
            sums, flat = candidates.flatten().topk(min(num_beams, candidates.numel()))
            rows = torch.cat((rows[flat // vocab_size], (flat % vocab_size)[:, None]), dim=1)
            is_over = (rows[:, -1] == eos) | torch.tensor(length == max_len)
            for row, total in zip(rows[is_over], sums[is_over], strict=True):
                score = float(total) / length**alpha
                if score > best_score:
                    best, best_score = row[1:].tolist(), score
            rows, sums = rows[~is_over], sums[~is_over]
            if not len(rows):
                break
        return best, best_score


class OneCallPerBeginning(Variant, exercise="beam_search"):
    """Each beginning asks for itself; a dictionary of sums; the tokens as a tensor."""

    def beam_search(next_log_probs, bos, eos, num_beams, max_len, alpha=0.0):
        alive, over = {(bos,): 0.0}, {}
        while alive and len(next(iter(alive))) <= max_len:
            sums = {
                (*row, token): total + gain
                for row, total in alive.items()
                for token, gain in enumerate(next_log_probs(torch.tensor([row]))[0].tolist())
            }
            best = sorted(sums, key=sums.get)[-num_beams:]
            over |= {row: sums[row] for row in best if row[-1] == eos}
            alive = {row: sums[row] for row in best if row[-1] != eos}
        scores = {row: total / (len(row) - 1) ** alpha for row, total in (over | alive).items()}
        winner = max(scores, key=scores.get)
        return torch.tensor(winner[1:]), torch.tensor(scores[winner])


class WithAHeap(Variant, exercise="beam_search"):
    """heapq picks the best; costs instead of log-probabilities."""

    def beam_search(next_log_probs, bos, eos, num_beams, max_len, alpha=0.0):
        import heapq

        alive, answers = [(0.0, (bos,))], []
        for _ in range(max_len):
            costs = -next_log_probs(torch.tensor([row for _, row in alive]))
            candidates = (
                (cost + more, (*row, token))
                for (cost, row), own in zip(alive, costs.tolist(), strict=True)
                for token, more in enumerate(own)
            )
            alive = []
            for cost, row in heapq.nsmallest(num_beams, candidates):
                (answers if row[-1] == eos else alive).append((cost, row))
            if not alive:
                break
        cost, row = min(answers + alive, key=lambda pair: pair[0] / (len(pair[1]) - 1) ** alpha)
        return list(row[1:]), -cost / (len(row) - 1) ** alpha


# 8.5 ------------------------------------------------------------------------------------------


class FlippedPadding(Variant, exercise="left_padded"):
    """torch's own padding on the right, of sequences turned around."""

    def left_padded(prompts, pad):
        from torch.nn.utils.rnn import pad_sequence

        around = [prompt.flip(0) for prompt in prompts]
        tokens = pad_sequence(around, batch_first=True, padding_value=pad).flip(1)
        marks = pad_sequence([torch.ones(len(p)) for p in prompts], batch_first=True).flip(1) > 0
        positions = torch.where(marks, marks.cumsum(1) - 1, 0)
        length = tokens.shape[1]
        mask = torch.tril(marks[:, None].expand(-1, length, -1))
        mask[:, range(length), range(length)] = True
        return tokens, positions, mask

    def next_logits(model, prompts, pad):
        logits = model(*left_padded(prompts, pad))
        return logits.select(1, logits.shape[1] - 1)


class ListsOfNumbers(Variant, exercise="left_padded"):
    """Python lists, one place after the other."""

    def left_padded(prompts, pad):
        prompts = [prompt.tolist() for prompt in prompts]
        length = max(len(prompt) for prompt in prompts)
        tokens, positions, masks = [], [], []
        for prompt in prompts:
            first = length - len(prompt)
            tokens.append([pad] * first + prompt)
            positions.append([0] * first + list(range(len(prompt))))
            masks.append(
                [[i == j or first <= j <= i for j in range(length)] for i in range(length)]
            )
        return torch.tensor(tokens), torch.tensor(positions), torch.tensor(masks)

    def next_logits(model, prompts, pad):
        batch = left_padded(prompts, pad)
        return torch.stack([rows[-1] for rows in model(*batch)])


class BySubtraction(Variant, exercise="left_padded"):
    """Everything from the places counted from each prompt's first token."""

    def left_padded(prompts, pad):
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        length = int(lengths.max())
        places = torch.arange(length) - (length - lengths)[:, None]
        tokens = torch.full((len(prompts), length), pad)
        tokens[places >= 0] = torch.cat(prompts)
        query, key = places[:, :, None], places[:, None, :]
        return tokens, places.clamp(min=0), (key >= 0) & (key <= query) | (key == query)

    def next_logits(model, prompts, pad):
        tokens, positions, mask = left_padded(prompts, pad)
        return model(tokens, positions, mask)[:, tokens.shape[1] - 1, :]


# 8.7 ------------------------------------------------------------------------------------------


class AllAtOnce(Variant, exercise="speculative"):
    """All ratios at once; a row of zeros stands in for the draft that the last row lacks."""

    def speculative(target, draft, drafted, accept, u):
        places = torch.arange(len(drafted))
        ratio = target[places, drafted] / draft[places, drafted]
        number = int((accept < ratio).long().cumprod(0).sum())
        left = (target[number] - F.pad(draft, (0, 0, 0, 1))[number]).clamp(min=0)
        edges = (left / left.sum()).cumsum(0)
        last = torch.searchsorted(edges, torch.tensor([u], dtype=edges.dtype), right=True)
        return torch.cat((drafted[:number], last))


class WithoutDivision(Variant, exercise="speculative"):
    """Products instead of ratios, and u scaled instead of the shares."""

    def speculative(target, draft, drafted, accept, u):
        written, left = [], None
        for i, token in enumerate(drafted):
            if accept[i] * draft[i, token] >= target[i, token]:
                left = torch.maximum(target[i] - draft[i], torch.zeros(()))
                break
            written.append(token)
        left = target[len(drafted)] if left is None else left
        reached, total, token = float(left[0]), float(left.sum()), 0
        while reached <= u * total:
            token += 1
            reached += float(left[token])
        return torch.tensor([*written, token])


class PlainNumbers(Variant, exercise="speculative"):
    """Lists and an inner function; the result as a tuple."""

    def speculative(target, draft, drafted, accept, u):
        import itertools

        def drawn(weights):
            edges = itertools.accumulate(weight / sum(weights) for weight in weights)
            return next(token for token, edge in enumerate(edges) if u < edge)

        p, q, x = target.tolist(), draft.tolist(), drafted.tolist()
        for i, token in enumerate(x):
            if not accept[i] < min(1, p[i][token] / q[i][token]):
                rest = [max(a - b, 0) for a, b in zip(p[i], q[i], strict=True)]
                return (*x[:i], drawn(rest))
        return (*x, drawn(p[-1]))


# 8.6 ------------------------------------------------------------------------------------------


class EveryPairOfCuts(Variant, exercise="check_cache"):
    """All ways to cut a text in three, its tokens one by one, and two branches."""

    def check_cache(step):
        text = torch.arange(7)
        whole = step(text, None)[0]

        def compare(*chunks):
            cache, rows = None, []
            for chunk in chunks:
                logits, cache = step(chunk, cache)
                rows.extend(logits)
            torch.testing.assert_close(torch.stack(rows), whole, atol=1e-4, rtol=1e-4)

        for first in range(1, 6):
            for second in range(first + 1, 7):
                compare(text[:first], text[first:second], text[second:])
        compare(*text.split(1))
        cache = step(text[:2], None)[1]
        left, right = step(text[2:4], cache)[1], step(torch.tensor([10]), cache)[1]
        assert left is not right
        logits = step(text[4:], left)[0]
        assert (logits - whole[4:]).abs().max() < 1e-4


class DrawnCuts(Variant, exercise="check_cache"):
    """Random cuts of a random text, and every cache on the way is used twice."""

    def check_cache(step):
        generator = torch.Generator().manual_seed(3)
        for _ in range(8):
            text = torch.randint(11, (12,), generator=generator)
            whole = step(text, None)[0]
            cuts = torch.randperm(11, generator=generator)[:4].add(1).sort().values.tolist()
            cache = None
            for start, end in zip([0, *cuts], [*cuts, 12], strict=True):
                if cache is not None:
                    step((text[start:end] + 1) % 11, cache)
                logits, cache = step(text[start:end], cache)
                for row, expected in zip(logits, whole[start:end], strict=True):
                    off = torch.linalg.vector_norm(row - expected)
                    assert off < 1e-3, f"{off} off after {start} tokens"


class EveryPrefixIsAText(Variant, exercise="check_cache"):
    """Each chunk is compared with reading everything up to its end at once."""

    def check_cache(step):
        text = torch.tensor([5, 0, 10, 2, 2, 8, 1, 9, 4, 7, 3, 6])
        for sizes in ((4, 2, 5, 1), (1, 4, 4, 3), (3,) * 4):
            cache, read = None, 0
            for size in sizes:
                end = read + size
                logits, newer = step(text[read:end], cache)
                again, _ = step(text[read:end], cache)
                at_once = step(text[:end], None)[0][read:]
                logits_after, _ = step(text[read:end], cache)
                for seen in (logits, again, logits_after):
                    assert torch.allclose(seen.double(), at_once.double(), atol=1e-4), (sizes, read)
                if cache is not None:
                    step(text[:3], cache)
                cache, read = newer, end


# 8.3 ------------------------------------------------------------------------------------------


class CountedByTheText(Variant, exercise="mended_generate"):
    """The whole text is kept, and its length tells the newest position."""

    def mended_generate(read, prompt, num_new):
        batch, length = prompt.shape
        places = torch.arange(length + num_new).expand(batch, -1)
        logits, cache = read(prompt, places[:, :length], None)
        text = torch.cat((prompt, logits.argmax(1, keepdim=True)), dim=1)
        while text.shape[1] < length + num_new:
            newest = text.shape[1] - 1
            logits, cache = read(text[:, newest:], places[:, newest : newest + 1], cache)
            text = torch.cat((text, logits.argmax(1, keepdim=True)), dim=1)
        return text[:, length:]


class PromptTokenByToken(Variant, exercise="mended_generate"):
    """The prompt is read one token at a time, too."""

    def mended_generate(read, prompt, num_new):
        columns, cache = list(prompt.T), None
        for place in range(prompt.shape[1] + num_new - 1):
            position = torch.full((len(prompt), 1), place)
            logits, cache = read(columns[place][:, None], position, cache)
            if place >= prompt.shape[1] - 1:
                columns.append(logits.max(dim=1).indices)
        return torch.stack(columns[prompt.shape[1] :], dim=1)


class PositionsCountedUp(Variant, exercise="mended_generate"):
    """The position of the newest token is counted up by one."""

    def mended_generate(read, prompt, num_new):
        positions = torch.ones_like(prompt).cumsum(dim=1) - 1
        tokens, cache, written = prompt, None, prompt[:, :0]
        for _ in range(num_new):
            logits, cache = read(tokens, positions, cache)
            tokens = logits.argmax(dim=-1)[:, None]
            positions = positions[:, -1:] + 1
            written = torch.hstack((written, tokens))
        return written


# 8.9 ------------------------------------------------------------------------------------------


class PairsOneByOne(Variant, exercise="retention_chunked"):
    """Loops over pairs and steps; a chunk adds its own pairs to what the state gives."""

    def retention_parallel(query, key, value, decay):
        outputs = []
        for t in range(query.size(2)):
            output = torch.zeros_like(value[:, :, 0])
            for s in range(t + 1):
                weight = (query[:, :, t] * key[:, :, s]).sum(-1) * decay.pow(t - s)
                output = output + weight.unsqueeze(-1) * value[:, :, s]
            outputs.append(output)
        return torch.stack(outputs, 2)

    def retention_step(state, query, key, value, decay):
        rows = [
            decay[:, None] * state[:, :, i] + key[:, :, i, None] * value
            for i in range(key.size(-1))
        ]
        output = sum(query[:, :, i, None] * row for i, row in enumerate(rows))
        return output, torch.stack(rows, 2)

    def retention_chunked(query, key, value, decay, chunk_len):
        batch, num_heads, length, d_head = query.shape
        state = torch.zeros(batch, num_heads, d_head, value.size(-1)).to(value)
        outputs, states = [None] * length, []
        for start in range(0, length, chunk_len):
            end, past = min(start + chunk_len, length), state
            for t in range(start, end):
                read = (query[:, :, t, :, None] * past).sum(2) * decay[:, None] ** (t - start + 1)
                for s in range(start, t + 1):
                    weight = (query[:, :, t] * key[:, :, s]).sum(-1) * decay ** (t - s)
                    read = read + weight[..., None] * value[:, :, s]
                outputs[t] = read
                state = retention_step(state, query[:, :, t], key[:, :, t], value[:, :, t], decay)[
                    1
                ]
            states.append(state)
        return torch.stack(outputs, dim=2), torch.stack(states)


class Einsums(Variant, exercise="retention_chunked"):
    """Exponentials of distances in the logarithm, minus infinity for the future, and einsum."""

    def retention_parallel(query, key, value, decay):
        index = torch.arange(query.shape[-2], dtype=decay.dtype)
        distance = index[:, None] - index[None, :]
        logs = torch.einsum("h,ts->hts", decay.log(), distance.clamp(min=0.0))
        faded = logs.masked_fill(distance < 0, -math.inf).exp()
        return torch.einsum("bhti,bhsi,hts,bhsj->bhtj", query, key, faded, value)

    def retention_step(state, query, key, value, decay):
        fresh = torch.einsum("h,bhij->bhij", decay, state)
        fresh = fresh + torch.einsum("bhi,bhj->bhij", key, value)
        return torch.einsum("bhi,bhij->bhj", query, fresh), fresh

    def retention_chunked(query, key, value, decay, chunk_len):
        state, outputs, states = None, [], []
        chunks = [x.split(chunk_len, dim=2) for x in (query, key, value)]
        for q, k, v in zip(*chunks, strict=True):
            n = q.shape[2]
            output = retention_parallel(q, k, v, decay)
            kept = torch.einsum(
                "hs,bhsi,bhsj->bhij", decay[:, None] ** torch.arange(n - 1, -1, -1), k, v
            )
            if state is not None:
                seen = decay[:, None] ** torch.arange(1, n + 1)
                output = output + torch.einsum("ht,bhti,bhij->bhtj", seen, q, state)
                kept = kept + decay[:, None, None] ** n * state
            state = kept
            states.append(kept)
            outputs.append(output)
        return torch.cat(outputs, 2), torch.stack(states)


class AllChunksAtOnce(Variant, exercise="retention_chunked"):
    """Padded to full chunks on an axis of their own; the last state is freed from its padding."""

    def retention_parallel(query, key, value, decay):
        return retention_chunked(query, key, value, decay, query.shape[2])[0]

    def retention_step(state, query, key, value, decay):
        shape = (len(decay), 1, 1)
        state = torch.addcmul(state * decay.reshape(shape), key.unsqueeze(-1), value.unsqueeze(-2))
        return torch.matmul(query.unsqueeze(-2), state)[:, :, 0], state

    def retention_chunked(query, key, value, decay, chunk_len):
        missing = -query.shape[2] % chunk_len
        q, k, v = (
            F.pad(x, (0, 0, 0, missing)).unflatten(2, (-1, chunk_len)) for x in (query, key, value)
        )
        gamma = decay.reshape(-1, 1, 1, 1)
        place = torch.arange(chunk_len)
        distance = place[:, None] - place
        faded = torch.where(distance >= 0, gamma ** distance.relu(), 0.0)
        within = (q @ k.mT * faded) @ v
        added = (k * gamma ** (chunk_len - 1 - place)[:, None]).mT @ v
        states = [torch.zeros_like(added[:, :, 0])]
        for one in added.unbind(2):
            states.append(states[-1] * decay[:, None, None] ** chunk_len + one)
        output = within + (q * gamma ** (place + 1)[:, None]) @ torch.stack(states[:-1], 2)
        states[-1] = states[-1] / decay[:, None, None] ** missing
        return output.flatten(2, 3)[:, :, : query.shape[2]], torch.stack(states[1:])


class SplitPowers(Variant, exercise="retention_chunked"):
    """Within short chunks the power of a distance may be split in two; the rest is matrices."""

    def retention_parallel(query, key, value, decay):
        outputs = []
        for head, gamma in enumerate(decay):
            powers = torch.cat([torch.ones(1).to(gamma), gamma.repeat(query.shape[2] - 1)]).cumprod(
                0
            )
            rows = [
                F.pad(powers[: t + 1].flip(0), (0, len(powers) - t - 1)) for t in range(len(powers))
            ]
            weights = torch.stack(rows) * (query[:, head] @ key[:, head].mT)
            outputs.append(weights @ value[:, head])
        return torch.stack(outputs, dim=1)

    def retention_step(state, query, key, value, decay):
        flat = state.transpose(1, -1) * decay
        new = flat.transpose(1, -1) + key[..., None] @ value[..., None, :]
        return (new * query[..., None]).sum(dim=-2), new

    def retention_chunked(query, key, value, decay, chunk_len):
        past, parts = 0.0 * key[:, :, 0, :, None] * value[:, :, 0, None, :], []
        states = []
        while query.shape[2]:
            q, k, v = (x[:, :, :chunk_len] for x in (query, key, value))
            query, key, value = (x[:, :, chunk_len:] for x in (query, key, value))
            power = decay[:, None, None] ** torch.arange(1, q.shape[2] + 1)[:, None]
            q, k = q * power, k / power
            parts.append((q @ k.mT).tril() @ v + q @ past)
            past = (past + k.mT @ v) * power[:, -1:]
            states.append(past)
        return torch.cat(parts, dim=2), torch.stack(states)
