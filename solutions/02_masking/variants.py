"""Right answers to chapter 02 that look different. None of them may lose a point."""

import math

import torch
import torch.nn.functional as F

from classroom.exercise.answers import Variant

# 2.1 ------------------------------------------------------------------------------------------


class ByPlaces(Variant, exercise="causal_mask"):
    """Places of queries and keys, compared."""

    def causal_mask(q_len, k_len):
        places = torch.arange(k_len)
        return places <= places[k_len - q_len :].unsqueeze(-1)


class NumberByNumber(Variant, exercise="causal_mask"):
    """Two loops and Python's own truths."""

    def causal_mask(q_len, k_len):
        rows = []
        for i in range(q_len):
            rows.append([j - (k_len - q_len) <= i for j in range(k_len)])
        return torch.tensor(rows)


class LastRowsOfASquare(Variant, exercise="causal_mask"):
    """A square over all positions, of which the last rows are taken."""

    def causal_mask(q_len, k_len):
        return torch.tril(torch.ones(k_len, k_len)).bool()[-q_len:]


class NotTheFuture(Variant, exercise="causal_mask"):
    """What is left when the future is taken away."""

    def causal_mask(q_len, k_len):
        future = torch.triu(torch.ones((q_len, k_len)), k_len - q_len + 1) == 1
        return torch.logical_not(future)


# 2.2 ------------------------------------------------------------------------------------------


class WrittenRowByRow(Variant, exercise="padding_mask"):
    """An assignment per sequence."""

    def padding_mask(lengths, k_len):
        mask = torch.zeros(len(lengths), 1, 1, k_len, dtype=torch.bool)
        for row, length in enumerate(lengths):
            mask[row, ..., :length] = True
        return mask


class CountedDown(Variant, exercise="padding_mask"):
    """How many tokens are left at each place."""

    def padding_mask(lengths, k_len):
        left = lengths.reshape(-1, 1, 1, 1) - torch.arange(k_len)
        return left > 0


class BroadcastAndViewed(Variant, exercise="padding_mask"):
    """torch.lt and view; an expanded tensor."""

    def padding_mask(lengths, k_len):
        batch = lengths.size(0)
        place = torch.arange(k_len).expand(batch, k_len)
        return torch.lt(place, lengths.view(batch, 1)).view(batch, 1, 1, k_len)


class RowsOfATriangle(Variant, exercise="padding_mask"):
    """Row n of a strict lower triangle has n ones."""

    def padding_mask(lengths, k_len):
        triangle = torch.ones(k_len + 1, k_len).tril(-1).bool()
        return triangle[lengths][:, None, None]


# 2.7 ------------------------------------------------------------------------------------------


class BlocksAssigned(Variant, exercise="combine_masks"):
    """A block of True for each prefix; triangles for the window."""

    def window_mask(length, window):
        return torch.ones(length, length).triu(1 - window).bool()

    def document_mask(documents):
        return torch.stack([torch.eq(row[:, None], row[None]) for row in documents])[:, None]

    def prefix_mask(prefix_lengths, length):
        masks = []
        for prefix in prefix_lengths.tolist():
            mask = torch.ones(length, length).tril().bool()
            mask[:prefix, :prefix] = True
            masks.append(mask)
        return torch.stack(masks).unsqueeze(1)

    def combine_masks(lengths, prefix_lengths, documents, window):
        batch, length = documents.shape
        mask = prefix_mask(prefix_lengths, length).clone()
        for row in range(batch):
            mask[row, :, :, lengths[row] :] = False
        return torch.logical_and(mask, window_mask(length, window)) & document_mask(documents)


class PairByPair(Variant, exercise="combine_masks"):
    """Loops over pairs of places."""

    def window_mask(length, window):
        return torch.tensor([[k > q - window for k in range(length)] for q in range(length)])

    def document_mask(documents):
        rows = documents.tolist()
        return torch.tensor([[[[a == b for b in row] for a in row]] for row in rows])

    def prefix_mask(prefix_lengths, length):
        return torch.tensor(
            [
                [[[k < max(q + 1, int(n)) for k in range(length)] for q in range(length)]]
                for n in prefix_lengths
            ]
        )

    def combine_masks(lengths, prefix_lengths, documents, window):
        batch, length = documents.shape
        mask = torch.zeros(batch, 1, length, length, dtype=torch.bool)
        for b in range(batch):
            for q in range(length):
                for k in range(length):
                    seen = k <= q or k < prefix_lengths[b]
                    near = q - k < window
                    mask[b, 0, q, k] = bool(
                        seen and near and k < lengths[b] and documents[b, q] == documents[b, k]
                    )
        return mask


class Hidden(Variant, exercise="combine_masks"):
    """What is hidden, joined by “or” and inverted at the end."""

    def window_mask(length, window):
        place = torch.arange(length)
        return ~(place[None, :] <= place[:, None] - window)

    def document_mask(documents):
        difference = documents.unsqueeze(1).unsqueeze(-1) - documents.unsqueeze(1).unsqueeze(-2)
        return difference == 0

    def prefix_mask(prefix_lengths, length):
        place = torch.arange(length)
        ahead = place > place[:, None]
        outside = place >= prefix_lengths.view(-1, 1, 1, 1)
        return ~(ahead & outside)

    def combine_masks(lengths, prefix_lengths, documents, window):
        length = documents.shape[-1]
        hidden = torch.arange(length) >= lengths.view(-1, 1, 1, 1)
        hidden = hidden | ~prefix_mask(prefix_lengths, length)
        hidden = hidden | ~window_mask(length, window) | ~document_mask(documents)
        return ~hidden


class Multiplied(Variant, exercise="combine_masks"):
    """Ones and zeros multiplied; one-hot documents."""

    def window_mask(length, window):
        return (torch.ones(length, length).tril(-window) == 0).bool()

    def document_mask(documents):
        one_hot = F.one_hot(documents, int(documents.max()) + 1)
        return torch.einsum("bqn,bkn->bqk", one_hot, one_hot)[:, None].bool()

    def prefix_mask(prefix_lengths, length):
        place = torch.arange(length)
        last_seen = torch.maximum(place, prefix_lengths[:, None] - 1)
        return place <= last_seen[:, None, :, None]

    def combine_masks(lengths, prefix_lengths, documents, window):
        length = documents.shape[1]
        product = prefix_mask(prefix_lengths, length).int() * document_mask(documents).int()
        product = product * window_mask(length, window).int()
        return (product * (torch.arange(length) < lengths[:, None, None, None]).int()) > 0


# 2.3 ------------------------------------------------------------------------------------------


class SmallestNumber(Variant, exercise="masked_softmax"):
    """The smallest number of the dtype, zeros afterwards."""

    def masked_softmax(scores, mask):
        smallest = torch.finfo(scores.dtype).min
        weights = torch.where(mask, scores, smallest).softmax(-1)
        return torch.where(mask, weights, torch.zeros_like(weights))


class WrittenOut(Variant, exercise="masked_softmax"):
    """Exponentials by hand, in float32 where the scores are in half precision."""

    def masked_softmax(scores, mask):
        wide = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
        hidden = wide.masked_fill(mask.logical_not(), float("-inf"))
        top = hidden.amax(-1, keepdim=True).clamp_min(torch.finfo(wide.dtype).min)
        shares = (hidden - top.detach()).exp()
        return (shares / shares.sum(-1, keepdim=True).clamp_min(1e-30)).to(scores.dtype)


class EmptyRowsSetAside(Variant, exercise="masked_softmax"):
    """Empty rows are left unmasked for the softmax and zeroed afterwards."""

    def masked_softmax(scores, mask):
        some = mask.any(dim=-1, keepdim=True)
        hidden = scores.masked_fill(~(mask | ~some), -math.inf)
        return F.softmax(hidden, dim=-1) * some


class NanReplacedBothWays(Variant, exercise="masked_softmax"):
    """masked_fill cuts the gradient of hidden scores, so here nan_to_num is enough."""

    def masked_softmax(scores, mask):
        return scores.masked_fill(~mask, -torch.inf).softmax(dim=-1).nan_to_num(nan=0.0)


class ByLogarithms(Variant, exercise="masked_softmax"):
    """The exponential of a log-softmax, with half the smallest number for what is hidden."""

    def masked_softmax(scores, mask):
        low = torch.finfo(scores.dtype).min / 2
        hidden = torch.where(mask, scores, torch.full_like(scores, low))
        return torch.log_softmax(hidden, dim=-1).exp() * mask.to(scores.dtype)


# 2.5 ------------------------------------------------------------------------------------------


class OneChangeAtATime(Variant, exercise="causality_audit"):
    """Each token replaced by random numbers."""

    def causality_audit(model, x):
        generator = torch.Generator().manual_seed(3)
        before = model(x)
        found = torch.zeros(len(x), len(x), dtype=torch.bool)
        for j in range(len(x)):
            changed = x.clone()
            changed[j] = torch.randn(x.shape[1], generator=generator, dtype=x.dtype)
            found[:, j] = (model(changed) - before).abs().max(dim=1).values > 1e-10
        return found


class SeveralTries(Variant, exercise="causality_audit"):
    """Several changes per token, stacked as columns; all calls in one list."""

    def causality_audit(model, x):
        torch.manual_seed(0)
        seen = torch.zeros(len(x), len(x), dtype=x.dtype)
        before = model(x)
        for _ in range(3):
            columns = []
            for j in range(len(x)):
                keep = (torch.arange(len(x)) != j)[:, None]
                changed = torch.where(keep, x, x + torch.randn_like(x))
                columns.append((model(changed) - before).abs().amax(-1))
            seen = torch.maximum(seen, torch.stack(columns, dim=1))
        return seen > 1e-9


class FiniteDifferences(Variant, exercise="causality_audit"):
    """A small step in each feature, slopes from both sides."""

    def causality_audit(model, x):
        length, d_model = x.shape
        step = 1e-3
        slopes = torch.zeros(length, length)
        for j in range(length):
            for feature in range(d_model):
                up, down = x.clone(), x.clone()
                up[j, feature] += step
                down[j, feature] -= step
                slope = (model(up) - model(down)).abs().amax(dim=1) / (2 * step)
                slopes[:, j] = torch.maximum(slopes[:, j], slope.float())
        return slopes > 1e-9


class RandomDirections(Variant, exercise="causality_audit"):
    """Gradients of each output in a random direction."""

    def causality_audit(model, x):
        generator = torch.Generator().manual_seed(1)
        x = x.detach().clone().requires_grad_(True)
        output = model(x)
        direction = torch.randn(output.shape[-1], generator=generator, dtype=x.dtype)
        rows = []
        for i in range(len(x)):
            (output[i] @ direction).backward(retain_graph=True)
            rows.append(x.grad.abs().amax(dim=-1) > 1e-10)
            x.grad = None
        return torch.stack(rows)


class JacobianByRows(Variant, exercise="causality_audit"):
    """torch.func's Jacobian; the slopes of a pair of tokens, squared and added up."""

    def causality_audit(model, x):
        jacobian = torch.func.jacrev(model)(x)
        return (jacobian**2).sum(dim=3).sum(dim=1).sqrt() > 1e-11


# 2.8 ------------------------------------------------------------------------------------------


class AloneAndInABatch(Variant, exercise="check_padding_invariance"):
    """Each sequence alone and unpadded, against the batch; a loop."""

    def largest_difference(first, second, lengths):
        largest = 0.0
        for b in range(len(lengths)):
            n = int(lengths[b])
            gap = (first[b, :n] - second[b, :n]).abs()
            if gap.isnan().any():
                return math.inf
            if n:
                largest = max(largest, float(gap.max()))
        return largest

    def check_padding_invariance(model):
        torch.manual_seed(0)
        x, lengths = 2 * torch.randn(4, 11, 6), torch.tensor([3, 8, 1, 6])
        together = model(x, lengths)
        for b, length in enumerate(lengths.tolist()):
            alone = model(x[b : b + 1, :length], lengths[b : b + 1])
            gap = largest_difference(alone, together[b : b + 1], lengths[b : b + 1])
            assert gap < 1e-3, f"sequence {b} is off by {gap}"


class TwoQuestions(Variant, exercise="check_padding_invariance"):
    """Padding and batch mates one after the other; assert_close on what is real."""

    def largest_difference(first, second, lengths):
        shortest = min(first.shape[1], second.shape[1])
        real = (torch.arange(shortest)[None] < lengths[:, None]).unsqueeze(-1)
        gap = torch.where(
            real, (first[:, :shortest] - second[:, :shortest]).abs(), torch.tensor(0.0).double()
        )
        return torch.nan_to_num(gap, nan=math.inf).amax()

    def check_padding_invariance(model):
        generator = torch.Generator().manual_seed(4)
        x = torch.randn(2, 5, 4, generator=generator).double()
        lengths = torch.tensor([3, 5])
        base = model(x, lengths)
        padded = torch.cat([x, 9 * torch.randn(2, 3, 4, generator=generator).double()], dim=1)
        padded[0, 3:5] = -4.0
        after = model(padded, lengths)
        for b, length in enumerate([3, 5]):
            torch.testing.assert_close(after[b, :length], base[b, :length], rtol=1e-4, atol=1e-4)
        for row, mate in ((0, 1), (1, 0)):
            swapped, shorter = x.clone(), lengths.clone()
            swapped[mate] = torch.randn(5, 4, generator=generator).double()
            shorter[mate] -= 1
            mates, length = model(swapped, shorter), int(lengths[row])
            same = mates[row, :length], base[row, :length]
            torch.testing.assert_close(*same, rtol=1e-4, atol=1e-4)


class ByHandRaised(Variant, exercise="check_padding_invariance"):
    """Permuted batches with more padding; AssertionError raised by hand."""

    def largest_difference(first, second, lengths):
        pairs = zip(first, second, lengths, strict=True)
        gaps = [(one[:n] - other[:n]).abs().nan_to_num(math.inf) for one, other, n in pairs]
        return torch.cat([gap.flatten() for gap in gaps]).max()

    def check_padding_invariance(model):
        torch.manual_seed(7)
        lengths = torch.tensor([2, 7, 4])
        x = torch.randn(3, 7, 5)
        other = torch.randn(2, 12, 5)
        other[1, :2] = x[0, :2]
        gap = largest_difference(
            model(x, lengths)[:1], model(other, torch.tensor([9, 2]))[1:], lengths[:1]
        )
        if not gap < 1e-3:
            raise AssertionError(f"off by {gap}")


# 2.11 -----------------------------------------------------------------------------------------


class MaskedTwice(Variant, exercise="online_softmax_attention"):
    """torch.where wherever minus infinity could meet itself."""

    def update(highest, total, mixed, scores, value):
        higher = torch.cat([highest[:, None], scores], 1).max(1).values
        shares = torch.where(scores == -math.inf, 0.0, torch.exp(scores - higher[:, None]))
        shrink = torch.where(highest == -math.inf, 0.0, torch.exp(highest - higher))
        total = total * shrink + shares.sum(1)
        return higher, total, torch.einsum("q,qv->qv", shrink, mixed) + shares.mm(value)

    def online_softmax_attention(query, key, value, mask, block_size):
        q_len = query.shape[0]
        highest = query.new_full((q_len,), -math.inf)
        total, mixed = query.new_zeros(q_len), query.new_zeros(q_len, value.shape[1])
        scaled = query * query.shape[-1] ** -0.5
        blocks = zip(
            key.split(block_size), value.split(block_size), mask.split(block_size, 1), strict=True
        )
        for keys, values, allowed in blocks:
            scores = torch.where(allowed, scaled @ keys.T, -math.inf)
            highest, total, mixed = update(highest, total, mixed, scores, values)
        return torch.where(total[:, None] > 0, mixed / total[:, None], 0.0)


class QueryByQuery(Variant, exercise="online_softmax_attention"):
    """Loops over queries and over keys, with Python's own exponential."""

    def update(highest, total, mixed, scores, value):
        highest, total, mixed = highest.clone(), total.clone(), mixed.clone()
        for q in range(len(scores)):
            for k in range(scores.shape[1]):
                score = float(scores[q, k])
                if score == -math.inf:
                    continue
                if score > float(highest[q]):
                    shrink = math.exp(float(highest[q]) - score)
                    total[q], mixed[q] = total[q] * shrink, mixed[q] * shrink
                    highest[q] = score
                share = math.exp(score - float(highest[q]))
                total[q] += share
                mixed[q] += share * value[k]
        return highest, total, mixed

    def online_softmax_attention(query, key, value, mask, block_size):
        q_len, k_len = mask.shape
        state = [
            torch.full([q_len], -math.inf, dtype=query.dtype),
            torch.zeros(q_len, dtype=query.dtype),
            torch.zeros(q_len, value.shape[1], dtype=query.dtype),
        ]
        for start in range(0, k_len, block_size):
            end = min(start + block_size, k_len)
            scores = query @ key[start:end].T / math.sqrt(query.shape[1])
            scores = scores.masked_fill(~mask[:, start:end], -math.inf)
            state = update(*state, scores, value[start:end])
        output = torch.zeros_like(state[2])
        for q in range(q_len):
            if state[1][q] > 0:
                output[q] = state[2][q] / state[1][q]
        return output


class ByLogSumExp(Variant, exercise="online_softmax_attention"):
    """The loop keeps the average and the logarithm of the total."""

    def update(highest, total, mixed, scores, value):
        higher = torch.maximum(highest, scores.max(dim=-1).values)
        finite = torch.nan_to_num(higher, neginf=0.0)
        shrink = torch.exp(highest - finite)
        shares = torch.exp(scores - finite.unsqueeze(-1))
        return [
            higher,
            shrink * total + shares.sum(-1),
            shrink.unsqueeze(-1) * mixed + shares @ value,
        ]

    def online_softmax_attention(query, key, value, mask, block_size):
        average = torch.zeros(len(query), value.shape[1], dtype=query.dtype)
        log_total = torch.full((len(query), 1), -1e300, dtype=query.dtype)
        for start in range(0, len(key), block_size):
            block = slice(start, start + block_size)
            scores = query @ key[block].T / query.shape[1] ** 0.5
            scores = scores.masked_fill(~mask[:, block], -math.inf)
            joint = torch.cat([log_total, scores], dim=1).logsumexp(dim=1, keepdim=True)
            average = average * (log_total - joint).exp() + (scores - joint).exp() @ value[block]
            log_total = joint
        return average


# Bug hunts ------------------------------------------------------------------------------------


class BooleanAndKernel(Variant, exercise="mended_masks"):
    """Torch's attention with a boolean mask."""

    def mended_masks(query, key, value, lengths):
        length = query.shape[1]
        causal = torch.ones(length, length).tril().bool()
        real = torch.arange(length)[None, None] < lengths[:, None, None]
        return F.scaled_dot_product_attention(query, key, value, attn_mask=causal & real)


class SequenceBySequence(Variant, exercise="mended_masks"):
    """A loop over the batch and over the queries."""

    def mended_masks(query, key, value, lengths):
        output = torch.zeros(*query.shape[:2], value.shape[-1], dtype=value.dtype)
        for b in range(len(query)):
            for q in range(query.shape[1]):
                end = min(q + 1, int(lengths[b]))
                scores = key[b, :end] @ query[b, q] / math.sqrt(query.shape[-1])
                output[b, q] = scores.softmax(0) @ value[b, :end]
        return output


class TwoAdditiveMasks(Variant, exercise="mended_masks"):
    """Minus a trillion for each reason to hide; queries as columns."""

    def mended_masks(query, key, value, lengths):
        place = torch.arange(query.shape[1])
        scores = key @ query.transpose(1, 2) / query.shape[-1] ** 0.5  # (batch, k_len, q_len)
        scores = scores - 1e12 * (place[:, None] > place)
        scores = scores - 1e12 * (place[:, None] >= lengths[:, None, None])
        return scores.softmax(dim=1).transpose(1, 2) @ value


class OtherTriangle(Variant, exercise="mended_columns"):
    """The triangle below the diagonal is hidden."""

    def mended_columns(query, key, value):
        scores = key.T @ query / math.sqrt(query.shape[0])
        hidden = torch.ones_like(scores).tril(diagonal=-1).bool()
        return value @ scores.masked_fill(hidden, -math.inf).softmax(dim=0)


class TurnedAndTurnedBack(Variant, exercise="mended_columns"):
    """Rows for tokens, torch's attention, and back."""

    def mended_columns(query, key, value):
        return F.scaled_dot_product_attention(query.T, key.T, value.T, is_causal=True).T


class ColumnByColumn(Variant, exercise="mended_columns"):
    """One column after the other."""

    def mended_columns(query, key, value):
        columns = []
        for t in range(query.shape[1]):
            scores = key[:, : t + 1].T @ query[:, t] / len(query) ** 0.5
            columns.append(value[:, : t + 1] @ torch.softmax(scores, 0))
        return torch.stack(columns, dim=1)


class PlacesCompared(Variant, exercise="mended_modes"):
    """The mode is ignored."""

    def mended_modes(query, key, value, training):
        place = torch.arange(len(key))
        allowed = place <= place[-len(query) :, None]
        return F.scaled_dot_product_attention(query, key, value, attn_mask=allowed)


class NoMaskForASingleQuery(Variant, exercise="mended_modes"):
    """The newest query needs no mask; the others do."""

    def mended_modes(query, key, value, training):
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        if len(query) > 1:
            later = torch.ones_like(scores).triu(1 + len(key) - len(query)).bool()
            scores[later] = -math.inf
        return torch.softmax(scores, dim=-1) @ value


class PrefixByPrefix(Variant, exercise="mended_modes"):
    """Each query gets the keys up to itself."""

    def mended_modes(query, key, value, training):
        earlier = key.shape[0] - query.shape[0]
        rows = []
        for i, q in enumerate(query):
            end = earlier + i + 1
            weights = F.softmax(key[:end] @ q * len(q) ** -0.5, dim=0)
            rows.append(weights @ value[:end])
        return torch.stack(rows)


class WeightsUsedTwice(Variant, exercise="mended_maps"):
    """The weights are computed once, shown and used."""

    def mended_maps(x, w_query, w_key, w_value, mask):
        maps = x.new_zeros(len(w_query), len(x), len(x))
        for i in range(len(w_query)):
            scores = (x @ w_query[i]) @ (x @ w_key[i]).mT / math.sqrt(x.shape[-1])
            maps[i] = torch.where(mask, scores, -math.inf).softmax(dim=-1)
            x = x + maps[i] @ x @ w_value[i]
        return maps


class ThroughTheIdentity(Variant, exercise="mended_maps"):
    """Torch's attention, for the maps and for the layer."""

    def mended_maps(x, w_query, w_key, w_value, mask):
        maps = []
        for matrices in torch.stack([w_query, w_key, w_value], dim=1):
            q, k, v = x @ matrices
            eye = torch.eye(len(x), dtype=x.dtype)
            maps.append(F.scaled_dot_product_attention(q, k, eye, attn_mask=mask))
            x = x + F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return torch.stack(maps)


class Recursive(Variant, exercise="mended_maps"):
    """The first map, then the maps of what is left."""

    def mended_maps(x, w_query, w_key, w_value, mask):
        scores = torch.einsum("td,dh,eh,se->ts", x, w_query[0], w_key[0], x) / x.shape[1] ** 0.5
        weights = torch.softmax(scores + torch.where(mask, 0.0, -math.inf), dim=-1)
        if len(w_query) == 1:
            return weights[None]
        x = x + weights @ (x @ w_value[0])
        deeper = mended_maps(x, w_query[1:], w_key[1:], w_value[1:], mask)
        return torch.cat([weights[None], deeper])


# 2.12 -----------------------------------------------------------------------------------------


class OnesOfTheScores(Variant, exercise="mended_device"):
    """Masks from triangles of ones like the scores; torch.where."""

    def mended_device(query, key, value, window, fade):
        scores = torch.einsum("bqd,bkd->bqk", query, key) * query.shape[-1] ** -0.5
        first = key.shape[1] - query.shape[1]
        ones = torch.ones_like(scores, dtype=torch.bool)
        near = ones.tril(first) & ones.triu(first - window + 1)
        distance = (ones.cumsum(1) - ones.cumsum(2) + first).to(scores.dtype)
        scores = torch.where(near, scores - fade * distance, -math.inf)
        return scores.softmax(dim=-1) @ value


class TorchAttention(Variant, exercise="mended_device"):
    """Torch's attention, with a bias made by new_tensor and lists."""

    def mended_device(query, key, value, window, fade):
        q_len, k_len = query.shape[-2], key.shape[-2]
        rows = [[k_len - q_len + q - k for k in range(k_len)] for q in range(q_len)]
        bias = [[-fade * d if 0 <= d < window else -math.inf for d in row] for row in rows]
        bias = torch.tensor(bias, dtype=query.dtype, device=query.device)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias)


class DefaultDevice(Variant, exercise="mended_device"):
    """Everything is made on the inputs' device by default; the dtype by type_as."""

    def mended_device(query, key, value, window, fade):
        with torch.device(query.device):
            places = torch.arange(key.shape[-2])
            distance = places[-query.shape[-2] :].unsqueeze(1) - places.unsqueeze(0)
            bias = torch.full(distance.shape, float("-inf")).type_as(query)
            allowed = (distance >= 0) * (distance < window)
            bias = torch.where(allowed, (-fade * distance).type_as(query), bias)
        scores = query.matmul(key.swapaxes(1, 2)) / query.shape[-1] ** 0.5
        return (scores + bias).softmax(-1).matmul(value)
