"""Right answers to chapter 00 that look different. None of them may lose a point."""

import math

import torch
import torch.nn.functional as F

from classroom.exercise.answers import Variant

# 0.0 ------------------------------------------------------------------------------------------


class SumOverCount(Variant, exercise="mean_of_rows"):
    """The sum over the number of columns."""

    def mean_of_rows(x):
        return x.sum(-1) / x.shape[1]


class RowByRow(Variant, exercise="mean_of_rows"):
    """A loop over the rows."""

    def mean_of_rows(x):
        return torch.stack([sum(row) / len(row) for row in x])


class TimesEvenWeights(Variant, exercise="mean_of_rows"):
    """A weighted average with even weights, as in chapter 1."""

    def mean_of_rows(x):
        columns = x.size(1)
        return x @ torch.full((columns,), 1 / columns, dtype=x.dtype)


# 0.1 ------------------------------------------------------------------------------------------


class ThroughTheLogarithm(Variant, exercise="stable_softmax"):
    """Everything from logsumexp; torch's own, which is right about minus infinity."""

    def logsumexp(scores, dim):
        return torch.logsumexp(scores, dim=dim)

    def log_softmax(scores, dim):
        total = scores.logsumexp(dim=dim, keepdim=True)
        return torch.where(total.isinf(), scores, scores - total)

    def stable_softmax(scores, dim):
        return torch.exp(log_softmax(scores, dim))


class LibraryAndRepair(Variant, exercise="stable_softmax"):
    """Torch's functions, and a repair of the rows that they leave without a number."""

    def stable_softmax(scores, dim):
        forbidden = (scores == float("-inf")).all(dim=dim, keepdim=True)
        return F.softmax(scores, dim=dim).masked_fill(forbidden, 0)

    def log_softmax(scores, dim):
        forbidden = (scores == float("-inf")).all(dim=dim, keepdim=True)
        return F.log_softmax(scores, dim=dim).masked_fill(forbidden, float("-inf"))

    def logsumexp(scores, dim):
        return scores.logsumexp(dim)


class AxisMovedLast(Variant, exercise="stable_softmax"):
    """The axis is moved to the end, and back; a floor below the total."""

    def parts(scores, dim):
        moved = scores.movedim(dim, -1)
        peak = moved.max(dim=-1, keepdim=True)[0].clamp(min=torch.finfo(scores.dtype).min)
        return moved, peak, torch.exp(moved - peak)

    def stable_softmax(scores, dim):
        _, _, e = parts(scores, dim)
        return (e / e.sum(-1, keepdim=True).clamp_min(1e-30)).movedim(-1, dim)

    def logsumexp(scores, dim):
        _, peak, e = parts(scores, dim)
        return peak[..., 0] + e.sum(-1).log()

    def log_softmax(scores, dim):
        moved, peak, e = parts(scores, dim)
        return (moved - peak - e.sum(-1, keepdim=True).clamp_min(1e-30).log()).movedim(-1, dim)


class PairsOfScores(Variant, exercise="stable_softmax"):
    """The logsumexp one score after the other, by logaddexp."""

    def logsumexp(scores, dim):
        total = None
        for part in scores.unbind(dim):
            total = part if total is None else torch.logaddexp(total, part)
        return total

    def log_softmax(scores, dim):
        total = logsumexp(scores, dim).unsqueeze(dim).expand_as(scores)
        return scores - total.masked_fill(total == -math.inf, 0)

    def stable_softmax(scores, dim):
        return log_softmax(scores, dim).exp()


# 0.2 ------------------------------------------------------------------------------------------


class LibraryWithoutReduction(Variant, exercise="cross_entropy"):
    """Torch's loss of each place, which is 0 where the target is ignored."""

    def place_losses(logits, targets, ignore_index):
        return F.cross_entropy(
            logits.transpose(1, 2), targets, ignore_index=ignore_index, reduction="none"
        )

    def cross_entropy(logits, targets, ignore_index):
        counted = max(int((targets != ignore_index).sum()), 1)
        return place_losses(logits, targets, ignore_index).sum() / counted

    def sequence_losses(logits, targets, ignore_index):
        counted = (targets != ignore_index).sum(-1)
        total = place_losses(logits, targets, ignore_index).sum(-1)
        return torch.where(counted > 0, total / counted.clamp(min=1), torch.zeros_like(total))


class PlaceByPlace(Variant, exercise="cross_entropy"):
    """Two loops."""

    def surprisals(logits, targets, ignore_index):
        found = []
        for row, target in zip(logits, targets.tolist(), strict=True):
            if target != ignore_index:
                found.append(torch.logsumexp(row, 0) - row[target])
        return found

    def cross_entropy(logits, targets, ignore_index):
        found = []
        for x, t in zip(logits, targets, strict=True):
            found += surprisals(x, t, ignore_index)
        return sum(found) / len(found) if found else logits.sum() * 0

    def sequence_losses(logits, targets, ignore_index):
        losses = []
        for x, t in zip(logits, targets, strict=True):
            found = surprisals(x, t, ignore_index)
            losses.append(sum(found) / len(found) if found else x.sum() * 0)
        return torch.stack(losses)


class OneHotTargets(Variant, exercise="cross_entropy"):
    """One-hot targets and a mask that multiplies."""

    def terms(logits, targets, ignore_index):
        mask = (targets != ignore_index).to(logits.dtype)
        one_hot = F.one_hot(torch.where(mask > 0, targets, 0), logits.shape[-1])
        return -(torch.log_softmax(logits, -1) * one_hot).sum(-1) * mask, mask

    def cross_entropy(logits, targets, ignore_index):
        loss, mask = terms(logits, targets, ignore_index)
        return loss.sum() / mask.sum().clamp(min=1.0)

    def sequence_losses(logits, targets, ignore_index):
        loss, mask = terms(logits, targets, ignore_index)
        return loss.sum(1) / mask.sum(1).clamp(min=1.0)


# 0.3 ------------------------------------------------------------------------------------------


class ChunksAndStacks(Variant, exercise="split_heads"):
    """Pieces that are stacked and joined, without a view."""

    def split_heads(x, num_heads):
        return torch.stack(torch.chunk(x, num_heads, dim=-1), dim=1)

    def merge_heads(heads):
        return torch.cat([heads[:, i] for i in range(heads.shape[1])], dim=-1)

    def time_first(x):
        return torch.stack([x[:, t] for t in range(x.shape[1])])

    def head_scores(query, key):
        return torch.matmul(query, key.transpose(-1, -2))


class UnflattenAndFlatten(Variant, exercise="split_heads"):
    """unflatten and flatten; swapaxes; mT."""

    def split_heads(x, num_heads):
        return x.unflatten(-1, (num_heads, -1)).swapaxes(1, 2)

    def merge_heads(heads):
        return heads.swapaxes(1, 2).flatten(2)

    def time_first(x):
        return x.swapaxes(0, 1)

    def head_scores(query, key):
        return query @ key.mT


class SumsOfProducts(Variant, exercise="split_heads"):
    """einsum for the exchanges too; the scores as sums of products."""

    def split_heads(x, num_heads):
        pieces = x.reshape(x.shape[0], x.shape[1], num_heads, -1)
        return torch.einsum("blhd->bhld", pieces)

    def merge_heads(heads):
        return torch.einsum("bhld->blhd", heads).reshape(heads.shape[0], heads.shape[2], -1)

    def time_first(x):
        return torch.einsum("blm->lbm", x)

    def head_scores(query, key):
        return (query[:, :, :, None, :] * key[:, :, None, :, :]).sum(dim=-1)


# 0.4 ------------------------------------------------------------------------------------------


class PairByPair(Variant, exercise="bigram"):
    """Loops over pairs."""

    def bigram(documents, vocab_size, smoothing):
        counts = [[float(smoothing)] * vocab_size for _ in range(vocab_size)]
        for document in documents:
            tokens = document.tolist()
            for i in range(len(tokens) - 1):
                counts[tokens[i]][tokens[i + 1]] += 1
        table = torch.tensor(counts, dtype=torch.float64)
        return torch.log(table / table.sum(1, keepdim=True))

    def bigram_loss(log_probs, documents):
        total, pairs = 0.0, 0
        for document in documents:
            for previous, following in zip(document[:-1], document[1:], strict=True):
                total -= float(log_probs[previous, following])
                pairs += 1
        return total / pairs

    def first_loss(vocab_size):
        return -math.log(1 / vocab_size)


class Bincount(Variant, exercise="bigram"):
    """Pairs as single numbers, counted by bincount; the log-softmax of the logarithms of counts."""

    def bigram(documents, vocab_size, smoothing):
        pairs = torch.cat([d[:-1] * vocab_size + d[1:] for d in documents])
        counts = torch.bincount(pairs, minlength=vocab_size**2).reshape(vocab_size, vocab_size)
        return torch.log_softmax((counts.double() + smoothing).log(), dim=1)

    def bigram_loss(log_probs, documents):
        previous = torch.cat([d[:-1] for d in documents])
        following = torch.cat([d[1:] for d in documents])
        return F.nll_loss(log_probs[previous], following)

    def first_loss(vocab_size):
        return F.cross_entropy(torch.zeros(1, vocab_size), torch.tensor([0]))


class OneHotProducts(Variant, exercise="bigram"):
    """Counts as a product of one-hot matrices, in single precision."""

    def bigram(documents, vocab_size, smoothing):
        counts = torch.zeros(vocab_size, vocab_size)
        for document in documents:
            one_hot = F.one_hot(document, vocab_size).float()
            counts += one_hot[:-1].T @ one_hot[1:]
        return F.normalize(counts + smoothing, p=1, dim=1).log()

    def bigram_loss(log_probs, documents):
        sums = [-log_probs[d[:-1]].gather(1, d[1:, None]).sum() for d in documents]
        return sum(sums) / sum(len(d) - 1 for d in documents)

    def first_loss(vocab_size):
        return torch.tensor(vocab_size, dtype=torch.float64).log()


# 0.5 ------------------------------------------------------------------------------------------


class FromTheLibrary(Variant, exercise="activations"):
    """Torch's own where there is one; tanh from two sigmoids."""

    def tanh_by_sigmoid(x):
        return torch.sigmoid(2 * x) - torch.sigmoid(-2 * x)

    def silu(x):
        return F.silu(x)

    def softplus(x):
        return F.softplus(x)

    def gelu(x):
        return F.gelu(x)

    def gelu_tanh(x):
        return F.gelu(x, approximate="tanh")


class OneFromTheOther(Variant, exercise="activations"):
    """tanh from SiLU's gate, softplus from the log-sigmoid, GELU's approximation from a sigmoid."""

    def gate(x):
        return 1 / (1 + torch.exp(-x))

    def tanh_by_sigmoid(x):
        return 1 - 2 * gate(-2 * x)

    def silu(x):
        return x * gate(x)

    def softplus(x):
        return -F.logsigmoid(-x)

    def gelu(x):
        return x * torch.special.ndtr(x)

    def gelu_tanh(x):
        return x * torch.sigmoid(2 * (2 / torch.pi) ** 0.5 * (x + 0.044715 * x.pow(3)))


class LogAddExp(Variant, exercise="activations"):
    """softplus by logaddexp; GELU by erfc."""

    def tanh_by_sigmoid(x):
        return 2 / (1 + torch.exp(-2 * x)) - 1

    def silu(x):
        return x.div(1 + x.neg().exp())

    def softplus(x):
        return torch.logaddexp(torch.zeros((), dtype=x.dtype), x)

    def gelu(x):
        return x * torch.erfc(-x / 2**0.5) / 2

    def gelu_tanh(x):
        cubic = x * (1 + 0.044715 * x * x)
        return x / 2 + x / 2 * torch.tanh(cubic * (2 / math.pi) ** 0.5)


# 0.6 ------------------------------------------------------------------------------------------


class OneLessAtTheLabel(Variant, exercise="gradient_step"):
    """Exponentials by hand; 1 is subtracted from the probability of the label, found by its index."""

    def gradient_step(weights, bias, x, labels, learning_rate):
        probabilities = 1 / (1 + (-(x @ weights + bias)).exp())
        slope = learning_rate * (probabilities - labels) / len(x)
        return weights - slope @ x, bias - slope.sum()

    def classifier_step(weights, bias, x, labels, learning_rate):
        scores = torch.addmm(bias, x, weights)
        shares = (scores - scores.amax(dim=1, keepdim=True)).exp()
        error = shares / shares.sum(dim=1, keepdim=True)
        error[torch.arange(len(x)), labels] -= 1
        slope = learning_rate * error / len(x)
        return weights - x.mT @ slope, bias - slope.sum(dim=0)


class OneExampleAtATime(Variant, exercise="gradient_step"):
    """A loop over the examples; outer products."""

    def gradient_step(weights, bias, x, labels, learning_rate):
        to_weights, to_bias = torch.zeros_like(weights), torch.zeros_like(bias)
        for features, label in zip(x, labels.tolist(), strict=True):
            error = torch.sigmoid(features @ weights + bias) - label
            to_weights = to_weights + error * features
            to_bias = to_bias + error
        rate = learning_rate / len(labels)
        return weights - rate * to_weights, bias - rate * to_bias

    def classifier_step(weights, bias, x, labels, learning_rate):
        to_weights, to_bias = torch.zeros_like(weights), torch.zeros_like(bias)
        for features, label in zip(x, labels.tolist(), strict=True):
            error = torch.softmax(features @ weights + bias, dim=0)
            error[label] -= 1
            to_weights += torch.outer(features, error)
            to_bias += error
        rate = learning_rate / len(labels)
        return [weights - rate * to_weights, bias - rate * to_bias]


class ColumnOfOnes(Variant, exercise="gradient_step"):
    """The bias as one more weight, of a feature that is always 1; einsum."""

    def with_ones(x):
        return torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1)

    def gradient_step(weights, bias, x, labels, learning_rate):
        both = torch.cat([weights, bias.reshape(1)])
        error = torch.sigmoid(with_ones(x) @ both) - labels.to(x.dtype)
        both = both - learning_rate * torch.einsum("n,nd->d", error, with_ones(x)) / len(x)
        return both[:-1], both[-1]

    def classifier_step(weights, bias, x, labels, learning_rate):
        both = torch.cat([weights, bias[None]])
        error = F.softmax(with_ones(x) @ both, dim=-1)
        error = error - torch.eye(bias.numel(), dtype=x.dtype)[labels]
        both = both - learning_rate * torch.einsum("nd,nc->dc", with_ones(x), error) / len(x)
        return both[:-1], both[-1]


# 0.7 ------------------------------------------------------------------------------------------


class ByWhere(Variant, exercise="mended_dropout"):
    """torch.where, with the scale first."""

    def mended_dropout(x, noise, rate, training):
        scaled = x / (1 - rate)
        return torch.where(noise < rate, torch.zeros_like(x), scaled) if training else x


class ByMaskedFill(Variant, exercise="mended_dropout"):
    """In evaluation the rate is 0, and the same line does."""

    def mended_dropout(x, noise, rate, training):
        rate = rate if training else 0.0
        return x.masked_fill(noise < rate, 0.0).div(1.0 - rate)


class CopyAndAssign(Variant, exercise="mended_dropout"):
    """A copy, and an assignment into it."""

    def mended_dropout(x, noise, rate, training):
        y = x.clone()
        if training:
            y[noise < rate] = 0
            y *= 1 / (1 - rate)
        return y


# 0.8 ------------------------------------------------------------------------------------------


class AssertClose(Variant, exercise="check_softmax"):
    """torch.testing for the comparison, in double precision; a block with three axes."""

    def agree(seen, expected):
        try:
            torch.testing.assert_close(seen, expected, rtol=0, atol=1e-5, equal_nan=False)
        except AssertionError:
            return False
        return True

    def check_softmax(softmax):
        torch.manual_seed(1)
        scores = torch.randn(2, 5, 7, dtype=torch.float64) * 3
        scores[1] += torch.tensor([0.0, 1000.0, -1000.0, 5000.0, -5000.0])[:, None]
        scores[0, 0, 0] = 300.0
        scores[0, 1, 1:] = 90.0
        for dim in (-1, 0, 1, -2):
            torch.testing.assert_close(
                softmax(scores, dim), scores.softmax(dim), rtol=1e-3, atol=1e-5
            )


class WithoutAReference(Variant, exercise="check_softmax"):
    """Laws only: ratios, sums and shifts; numbers made by hand."""

    def agree(seen, expected):
        if tuple(seen.shape) != tuple(expected.shape):
            return False
        pairs = zip(seen.flatten().tolist(), expected.flatten().tolist(), strict=True)
        return all(abs(a - b) <= 1e-5 for a, b in pairs)

    def check_softmax(softmax):
        by_hand = torch.tensor([[0.0, math.log(2), math.log(5)], [0.0, 0.0, 0.0]])
        rows = torch.tensor([[1 / 8, 2 / 8, 5 / 8], [1 / 3, 1 / 3, 1 / 3]])
        columns = torch.tensor([[1 / 2, 2 / 3, 5 / 6], [1 / 2, 1 / 3, 1 / 6]])
        for shift in (0.0, 70.0, 1000.0, -1000.0):
            assert agree(softmax(by_hand + shift, -1), rows) or abs(shift) > 500
            assert (softmax(by_hand + shift, 1) - rows).abs().max() <= 1e-3
            assert (softmax(by_hand + shift, 0) - columns).abs().max() <= 1e-3
        far = softmax(torch.stack([by_hand[0] + 3000, by_hand[1] - 3000]), 1)
        assert (far.sum(dim=1) - 1).abs().max() <= 1e-3


class RaisesByHand(Variant, exercise="check_softmax"):
    """allclose after a look at the shapes; AssertionError raised by hand; single rows."""

    def agree(seen, expected):
        same_shape = seen.dim() == expected.dim() and seen.shape == expected.shape
        return same_shape and torch.allclose(seen, expected, rtol=0.0, atol=1e-5)

    def check_softmax(softmax):
        cases = [
            (torch.tensor([1.0, 2.0, 4.0]), 0),
            (torch.tensor([1000.0, 1001.0]), 0),
            (torch.tensor([60.0, 62.0]), -1),
            (torch.tensor([[2000.0, 2001.0], [-2000.0, -2001.0], [0.0, 1.0]]), 1),
            (torch.tensor([[0.0, 1.0], [2.0, -1.0], [0.5, 0.5]]), 0),
        ]
        for scores, dim in cases:
            if not agree(softmax(scores, dim), F.softmax(scores, dim)):
                raise AssertionError(f"not a softmax of {scores.tolist()} along {dim}")
