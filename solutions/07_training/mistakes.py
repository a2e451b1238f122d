"""The named mistakes of chapter 07: what a message can name, and what graders are tested with."""

import math
from collections import Counter

import torch
import torch.nn.functional as F

from classroom.answers import Mistake

# 7.0 ------------------------------------------------------------------------------------------


class OverlapsCountedTwice(Mistake, exercise="byte_pairs"):
    """In “aaa” the pair (a, a) is counted twice, although its middle letter can be used once: count
    a pair as often as it can be merged."""

    def joined(pieces, pair):
        done = []
        for piece in pieces:
            if done and (done[-1], piece) == pair:
                done[-1] = [*pair]
            else:
                done.append(piece)
        return ["".join(piece) for piece in done]

    def byte_pairs(words, num_merges):
        spelled, merges = [list(word) for word in words], []
        for _ in range(num_merges):
            counts = Counter(p for word in spelled for p in zip(word, word[1:], strict=False))
            if not counts:
                break
            best = min(counts, key=lambda pair: (-counts[pair], pair))
            merges.append(best)
            spelled = [joined(word, best) for word in spelled]
        return merges

    def encode(word, merges):
        pieces = list(word)
        for pair in merges:
            pieces = joined(pieces, tuple(pair))
        return pieces


class TiesGoToTheFirstSeen(Mistake, exercise="byte_pairs"):
    """Of pairs that are equally frequent the one that was met first is taken; it should be the
    first by alphabet, so that the order of the words does not matter."""

    def joined(pieces, pair):
        done = []
        for piece in pieces:
            if done and (done[-1], piece) == pair:
                done[-1] = [*pair]
            else:
                done.append(piece)
        return ["".join(piece) for piece in done]

    def byte_pairs(words, num_merges):
        spelled, merges = [list(word) for word in words], []
        for _ in range(num_merges):
            counts = Counter()
            for word in spelled:
                for pair in dict.fromkeys(zip(word, word[1:], strict=False)):
                    counts[pair] += len(word) - len(joined(word, pair))
            if not counts:
                break
            best = max(counts, key=counts.get)
            merges.append(best)
            spelled = [joined(word, best) for word in spelled]
        return merges

    def encode(word, merges):
        pieces = list(word)
        for pair in merges:
            pieces = joined(pieces, tuple(pair))
        return pieces


class TiesGoToTheLastByAlphabet(Mistake, exercise="byte_pairs"):
    """Of pairs that are equally frequent the last one by alphabet is taken (max of count and pair);
    it should be the first."""

    def joined(pieces, pair):
        done = []
        for piece in pieces:
            if done and (done[-1], piece) == pair:
                done[-1] = [*pair]
            else:
                done.append(piece)
        return ["".join(piece) for piece in done]

    def byte_pairs(words, num_merges):
        spelled, merges = [list(word) for word in words], []
        for _ in range(num_merges):
            counts = Counter()
            for word in spelled:
                for pair in set(zip(word, word[1:], strict=False)):
                    counts[pair] += len(word) - len(joined(word, pair))
            if not counts:
                break
            best = max(counts, key=lambda pair: (counts[pair], pair))
            merges.append(best)
            spelled = [joined(word, best) for word in spelled]
        return merges

    def encode(word, merges):
        pieces = list(word)
        for pair in merges:
            pieces = joined(pieces, tuple(pair))
        return pieces


class PairsAcrossWords(Mistake, exercise="byte_pairs"):
    """The words are strung together, so that the last letter of one and the first of the next are
    counted as neighbours; count inside each word."""

    def joined(pieces, pair):
        done = []
        for piece in pieces:
            if done and (done[-1], piece) == pair:
                done[-1] = [*pair]
            else:
                done.append(piece)
        return ["".join(piece) for piece in done]

    def byte_pairs(words, num_merges):
        text, merges = list("".join(words)), []
        for _ in range(num_merges):
            counts = Counter()
            for pair in set(zip(text, text[1:], strict=False)):
                counts[pair] += len(text) - len(joined(text, pair))
            if not counts:
                break
            best = min(counts, key=lambda pair: (-counts[pair], pair))
            merges.append(best)
            text = joined(text, best)
        return merges

    def encode(word, merges):
        pieces = list(word)
        for pair in merges:
            pieces = joined(pieces, tuple(pair))
        return pieces


class EachWordCountedOnce(Mistake, exercise="byte_pairs"):
    """A word that occurs several times is counted once; what is frequent in the text has to win, so
    every occurrence counts."""

    def joined(pieces, pair):
        done = []
        for piece in pieces:
            if done and (done[-1], piece) == pair:
                done[-1] = [*pair]
            else:
                done.append(piece)
        return ["".join(piece) for piece in done]

    def byte_pairs(words, num_merges):
        spelled, merges = [list(word) for word in set(words)], []
        for _ in range(num_merges):
            counts = Counter()
            for word in spelled:
                for pair in set(zip(word, word[1:], strict=False)):
                    counts[pair] += len(word) - len(joined(word, pair))
            if not counts:
                break
            best = min(counts, key=lambda pair: (-counts[pair], pair))
            merges.append(best)
            spelled = [joined(word, best) for word in spelled]
        return merges

    def encode(word, merges):
        pieces = list(word)
        for pair in merges:
            pieces = joined(pieces, tuple(pair))
        return pieces


class CountedOnlyOnce(Mistake, exercise="byte_pairs"):
    """The most frequent pairs of letters are taken all at once; after each merge the words have
    other neighbours and must be counted again."""

    def joined(pieces, pair):
        done = []
        for piece in pieces:
            if done and (done[-1], piece) == pair:
                done[-1] = [*pair]
            else:
                done.append(piece)
        return ["".join(piece) for piece in done]

    def byte_pairs(words, num_merges):
        counts = Counter()
        for word in words:
            for pair in set(zip(word, word[1:], strict=False)):
                counts[pair] += len(word) - len(joined(list(word), pair))
        return sorted(counts, key=lambda pair: (-counts[pair], pair))[:num_merges]

    def encode(word, merges):
        pieces = list(word)
        for pair in merges:
            pieces = joined(pieces, tuple(pair))
        return pieces


class OnlyRepeatedPairs(Mistake, exercise="byte_pairs"):
    """Learning stops when no pair occurs twice; it goes on until no pair is left or enough merges
    are learned."""

    def joined(pieces, pair):
        done = []
        for piece in pieces:
            if done and (done[-1], piece) == pair:
                done[-1] = [*pair]
            else:
                done.append(piece)
        return ["".join(piece) for piece in done]

    def byte_pairs(words, num_merges):
        spelled, merges = [list(word) for word in words], []
        for _ in range(num_merges):
            counts = Counter()
            for word in spelled:
                for pair in set(zip(word, word[1:], strict=False)):
                    counts[pair] += len(word) - len(joined(word, pair))
            if not counts or max(counts.values()) < 2:
                break
            best = min(counts, key=lambda pair: (-counts[pair], pair))
            merges.append(best)
            spelled = [joined(word, best) for word in spelled]
        return merges

    def encode(word, merges):
        pieces = list(word)
        for pair in merges:
            pieces = joined(pieces, tuple(pair))
        return pieces


class OnePlaceMergedPerWord(Mistake, exercise="byte_pairs"):
    """A merge joins only the first place in a word where its pair stands; it joins all of them."""

    def joined(pieces, pair):
        for place in range(len(pieces) - 1):
            if tuple(pieces[place : place + 2]) == pair:
                return [*pieces[:place], pair[0] + pair[1], *pieces[place + 2 :]]
        return pieces

    def times(pieces, pair):
        count, place = 0, 0
        while place < len(pieces) - 1:
            found = tuple(pieces[place : place + 2]) == pair
            count += found
            place += 1 + found
        return count

    def byte_pairs(words, num_merges):
        spelled, merges = [list(word) for word in words], []
        for _ in range(num_merges):
            counts = Counter()
            for word in spelled:
                for pair in set(zip(word, word[1:], strict=False)):
                    counts[pair] += times(word, pair)
            if not counts:
                break
            best = min(counts, key=lambda pair: (-counts[pair], pair))
            merges.append(best)
            spelled = [joined(word, best) for word in spelled]
        return merges

    def encode(word, merges):
        pieces = list(word)
        for pair in merges:
            pieces = joined(pieces, tuple(pair))
        return pieces


class JoinedFromTheRight(Mistake, exercise="byte_pairs"):
    """A merge goes through a word from its end, so that “aaa” becomes a, aa; it goes from left to
    right, and “aaa” becomes aa, a."""

    def joined(pieces, pair):
        pieces, place = list(pieces), len(pieces) - 2
        while place >= 0:
            if tuple(pieces[place : place + 2]) == pair:
                pieces[place : place + 2] = ["".join(pair)]
            place -= 1
        return pieces

    def byte_pairs(words, num_merges):
        spelled, merges = [list(word) for word in words], []
        for _ in range(num_merges):
            counts = Counter()
            for word in spelled:
                for pair in set(zip(word, word[1:], strict=False)):
                    counts[pair] += len(word) - len(joined(word, pair))
            if not counts:
                break
            best = min(counts, key=lambda pair: (-counts[pair], pair))
            merges.append(best)
            spelled = [joined(word, best) for word in spelled]
        return merges

    def encode(word, merges):
        pieces = list(word)
        for pair in merges:
            pieces = joined(pieces, tuple(pair))
        return pieces


class LongestPieceFirst(Mistake, exercise="byte_pairs"):
    """`encode` takes the longest piece that it knows from the front of the word; a word is cut by
    the merges in the order in which they were learned."""

    def joined(pieces, pair):
        done = []
        for piece in pieces:
            if done and (done[-1], piece) == pair:
                done[-1] = [*pair]
            else:
                done.append(piece)
        return ["".join(piece) for piece in done]

    def byte_pairs(words, num_merges):
        spelled, merges = [list(word) for word in words], []
        for _ in range(num_merges):
            counts = Counter()
            for word in spelled:
                for pair in set(zip(word, word[1:], strict=False)):
                    counts[pair] += len(word) - len(joined(word, pair))
            if not counts:
                break
            best = min(counts, key=lambda pair: (-counts[pair], pair))
            merges.append(best)
            spelled = [joined(word, best) for word in spelled]
        return merges

    def encode(word, merges):
        known, pieces = {a + b for a, b in merges}, []
        while word:
            length = max((n for n in range(2, len(word) + 1) if word[:n] in known), default=1)
            pieces.append(word[:length])
            word = word[length:]
        return pieces


class LeftmostPairFirst(Mistake, exercise="byte_pairs"):
    """`encode` merges whichever known pair stands furthest to the left; the merge that was learned
    first goes first, wherever it stands."""

    def joined(pieces, pair):
        done = []
        for piece in pieces:
            if done and (done[-1], piece) == pair:
                done[-1] = [*pair]
            else:
                done.append(piece)
        return ["".join(piece) for piece in done]

    def byte_pairs(words, num_merges):
        spelled, merges = [list(word) for word in words], []
        for _ in range(num_merges):
            counts = Counter()
            for word in spelled:
                for pair in set(zip(word, word[1:], strict=False)):
                    counts[pair] += len(word) - len(joined(word, pair))
            if not counts:
                break
            best = min(counts, key=lambda pair: (-counts[pair], pair))
            merges.append(best)
            spelled = [joined(word, best) for word in spelled]
        return merges

    def encode(word, merges):
        known, pieces = {tuple(pair) for pair in merges}, list(word)
        place = 0
        while place < len(pieces) - 1:
            if (pieces[place], pieces[place + 1]) in known:
                pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
                place = 0
            else:
                place += 1
        return pieces


class MostFrequentPairFirst(Mistake, exercise="byte_pairs"):
    """`encode` counts anew in the word and merges the known pair that is most frequent there; what
    counts is the order in which the merges were learned."""

    def joined(pieces, pair):
        done = []
        for piece in pieces:
            if done and (done[-1], piece) == pair:
                done[-1] = [*pair]
            else:
                done.append(piece)
        return ["".join(piece) for piece in done]

    def byte_pairs(words, num_merges):
        spelled, merges = [list(word) for word in words], []
        for _ in range(num_merges):
            counts = Counter()
            for word in spelled:
                for pair in set(zip(word, word[1:], strict=False)):
                    counts[pair] += len(word) - len(joined(word, pair))
            if not counts:
                break
            best = min(counts, key=lambda pair: (-counts[pair], pair))
            merges.append(best)
            spelled = [joined(word, best) for word in spelled]
        return merges

    def encode(word, merges):
        known, pieces = {tuple(pair) for pair in merges}, list(word)
        while True:
            counts = Counter(p for p in zip(pieces, pieces[1:], strict=False) if p in known)
            if not counts:
                return pieces
            pieces = joined(pieces, min(counts, key=lambda pair: (-counts[pair], pair)))


# 7.1 ------------------------------------------------------------------------------------------


class TargetsNotShifted(Mistake, exercise="get_batch"):
    """The targets are the windows themselves, so the model is asked for what it has just been
    given: a target is the token after."""

    def cut(tokens, num_held_out):
        return tokens[:-num_held_out], tokens[-num_held_out:]

    def starts_from(draws, num_tokens, length):
        return (draws * (num_tokens - length)).long()

    def get_batch(tokens, starts, length):
        inputs = torch.stack([tokens[start : start + length] for start in starts.tolist()])
        return inputs, inputs


class TargetsShiftedTwice(Mistake, exercise="get_batch"):
    """The targets are two places ahead: each window skips the token after, and asks for the next
    one but one."""

    def cut(tokens, num_held_out):
        return tokens[:-num_held_out], tokens[-num_held_out:]

    def starts_from(draws, num_tokens, length):
        return (draws * (num_tokens - length)).long()

    def get_batch(tokens, starts, length):
        places = starts[:, None] + torch.arange(length)
        return tokens[places], tokens[(places + 2).clamp(max=len(tokens) - 1)]


class TargetsShiftedBackwards(Mistake, exercise="get_batch"):
    """The targets are the tokens before: the model learns to write backwards, from texts that it
    has seen already."""

    def cut(tokens, num_held_out):
        return tokens[:-num_held_out], tokens[-num_held_out:]

    def starts_from(draws, num_tokens, length):
        return (draws * (num_tokens - length)).long()

    def get_batch(tokens, starts, length):
        places = starts[:, None] + torch.arange(length)
        return tokens[places + 1], tokens[places]


class TargetsRolledAround(Mistake, exercise="get_batch"):
    """The windows are rolled by one, so that the last target of each is its own first token; it
    should be the token behind the window."""

    def cut(tokens, num_held_out):
        return tokens[:-num_held_out], tokens[-num_held_out:]

    def starts_from(draws, num_tokens, length):
        return (draws * (num_tokens - length)).long()

    def get_batch(tokens, starts, length):
        inputs = torch.stack([tokens[start : start + length] for start in starts.tolist()])
        return inputs, inputs.roll(-1, dims=1)


class LastStartNeverDrawn(Mistake, exercise="get_batch"):
    """The last place where a window and its targets fit is never drawn, and the last token of the
    text is never asked for: there are num_tokens - length places."""

    def cut(tokens, num_held_out):
        return tokens[:-num_held_out], tokens[-num_held_out:]

    def starts_from(draws, num_tokens, length):
        return (draws * (num_tokens - length - 1)).long()

    def get_batch(tokens, starts, length):
        places = starts[:, None] + torch.arange(length)
        return tokens[places], tokens[places + 1]


class OneStartTooMany(Mistake, exercise="get_batch"):
    """A window may begin so late that its last target lies behind the end of the text: windows fit
    there, their targets do not."""

    def cut(tokens, num_held_out):
        return tokens[:-num_held_out], tokens[-num_held_out:]

    def starts_from(draws, num_tokens, length):
        return (draws * (num_tokens - length + 1)).long()

    def get_batch(tokens, starts, length):
        places = starts[:, None] + torch.arange(length)
        return tokens[places], tokens[places + 1]


class StartsRounded(Mistake, exercise="get_batch"):
    """The draws are rounded to the nearest place instead of down, so one place too many may come
    out, and both ends are drawn half as often."""

    def cut(tokens, num_held_out):
        return tokens[:-num_held_out], tokens[-num_held_out:]

    def starts_from(draws, num_tokens, length):
        return (draws * (num_tokens - length)).round().long()

    def get_batch(tokens, starts, length):
        places = starts[:, None] + torch.arange(length)
        return tokens[places], tokens[places + 1]


class HeldOutIsLearnedToo(Mistake, exercise="get_batch"):
    """What is learned from is the whole text, the held-out part included: it must end where that
    begins."""

    def cut(tokens, num_held_out):
        return tokens, tokens[-num_held_out:]

    def starts_from(draws, num_tokens, length):
        return (draws * (num_tokens - length)).long()

    def get_batch(tokens, starts, length):
        places = starts[:, None] + torch.arange(length)
        return tokens[places], tokens[places + 1]


class ShuffledBeforeTheCut(Mistake, exercise="get_batch"):
    """The tokens are shuffled before they are cut: a text is its order, and neighbours of what is
    held out would be learned."""

    def cut(tokens, num_held_out):
        order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0))
        shuffled = tokens[order]
        return shuffled[:-num_held_out], shuffled[-num_held_out:]

    def starts_from(draws, num_tokens, length):
        return (draws * (num_tokens - length)).long()

    def get_batch(tokens, starts, length):
        places = starts[:, None] + torch.arange(length)
        return tokens[places], tokens[places + 1]


class TheBeginningHeldOut(Mistake, exercise="get_batch"):
    """The beginning of the text is held out; it should be its end."""

    def cut(tokens, num_held_out):
        return tokens[num_held_out:], tokens[:num_held_out]

    def starts_from(draws, num_tokens, length):
        return (draws * (num_tokens - length)).long()

    def get_batch(tokens, starts, length):
        places = starts[:, None] + torch.arange(length)
        return tokens[places], tokens[places + 1]


# 7.2 ------------------------------------------------------------------------------------------


class DecayInTheGradient(Mistake, exercise="adamw_step"):
    """The decay is added to the gradient, and so it is averaged and divided like one: AdamW pulls
    on the parameter directly, which is the W."""

    def adamw_step(
        parameter, gradient, mean, mean_square, step, lr, beta1, beta2, eps, weight_decay
    ):
        gradient = gradient + weight_decay * parameter
        mean = beta1 * mean + (1 - beta1) * gradient
        mean_square = beta2 * mean_square + (1 - beta2) * gradient**2
        size = (mean_square / (1 - beta2**step)).sqrt() + eps
        return parameter - lr * (mean / (1 - beta1**step)) / size, mean, mean_square


class NoBiasCorrection(Mistake, exercise="adamw_step"):
    """The averages begin at zero and are too small at first: each is divided by 1 - beta**step."""

    def adamw_step(
        parameter, gradient, mean, mean_square, step, lr, beta1, beta2, eps, weight_decay
    ):
        mean = beta1 * mean + (1 - beta1) * gradient
        mean_square = beta2 * mean_square + (1 - beta2) * gradient**2
        parameter = parameter * (1 - lr * weight_decay)
        return parameter - lr * mean / (mean_square.sqrt() + eps), mean, mean_square


class CorrectionCountsFromZero(Mistake, exercise="adamw_step"):
    """The bias correction counts updates from 0, and the first one divides by 0: the first update
    has the number 1."""

    def adamw_step(
        parameter, gradient, mean, mean_square, step, lr, beta1, beta2, eps, weight_decay
    ):
        mean = beta1 * mean + (1 - beta1) * gradient
        mean_square = beta2 * mean_square + (1 - beta2) * gradient**2
        size = (mean_square / (1 - beta2 ** (step - 1))).sqrt() + eps
        parameter = parameter * (1 - lr * weight_decay)
        return parameter - lr * (mean / (1 - beta1 ** (step - 1))) / size, mean, mean_square


class CorrectionOneUpdateLate(Mistake, exercise="adamw_step"):
    """The bias correction counts one update too many: at the first update its power is 1."""

    def adamw_step(
        parameter, gradient, mean, mean_square, step, lr, beta1, beta2, eps, weight_decay
    ):
        mean = beta1 * mean + (1 - beta1) * gradient
        mean_square = beta2 * mean_square + (1 - beta2) * gradient**2
        size = (mean_square / (1 - beta2 ** (step + 1))).sqrt() + eps
        parameter = parameter * (1 - lr * weight_decay)
        return parameter - lr * (mean / (1 - beta1 ** (step + 1))) / size, mean, mean_square


class EpsilonInsideTheRoot(Mistake, exercise="adamw_step"):
    """eps stands under the root; it is added to the root."""

    def adamw_step(
        parameter, gradient, mean, mean_square, step, lr, beta1, beta2, eps, weight_decay
    ):
        mean = beta1 * mean + (1 - beta1) * gradient
        mean_square = beta2 * mean_square + (1 - beta2) * gradient**2
        size = (mean_square / (1 - beta2**step) + eps).sqrt()
        parameter = parameter * (1 - lr * weight_decay)
        return parameter - lr * (mean / (1 - beta1**step)) / size, mean, mean_square


class EpsilonBeforeTheCorrection(Mistake, exercise="adamw_step"):
    """eps is added before the bias correction and corrected along with the root; it is added to the
    corrected root."""

    def adamw_step(
        parameter, gradient, mean, mean_square, step, lr, beta1, beta2, eps, weight_decay
    ):
        mean = beta1 * mean + (1 - beta1) * gradient
        mean_square = beta2 * mean_square + (1 - beta2) * gradient**2
        size = (mean_square.sqrt() + eps) / math.sqrt(1 - beta2**step)
        parameter = parameter * (1 - lr * weight_decay)
        return parameter - lr * (mean / (1 - beta1**step)) / size, mean, mean_square


class EpsilonForgotten(Mistake, exercise="adamw_step"):
    """eps is missing, and where the gradient is zero, zero is divided by zero: it is added to the
    root."""

    def adamw_step(
        parameter, gradient, mean, mean_square, step, lr, beta1, beta2, eps, weight_decay
    ):
        mean = beta1 * mean + (1 - beta1) * gradient
        mean_square = beta2 * mean_square + (1 - beta2) * gradient**2
        size = (mean_square / (1 - beta2**step)).sqrt()
        parameter = parameter * (1 - lr * weight_decay)
        return parameter - lr * (mean / (1 - beta1**step)) / size, mean, mean_square


class ProductInsteadOfPower(Mistake, exercise="adamw_step"):
    """The bias correction multiplies beta by the number of the update; it is the power, beta**step,
    which never exceeds 1."""

    def adamw_step(
        parameter, gradient, mean, mean_square, step, lr, beta1, beta2, eps, weight_decay
    ):
        mean = beta1 * mean + (1 - beta1) * gradient
        mean_square = beta2 * mean_square + (1 - beta2) * gradient**2
        size = (mean_square / (1 - beta2 * step)).sqrt() + eps
        parameter = parameter * (1 - lr * weight_decay)
        return parameter - lr * (mean / (1 - beta1 * step)) / size, mean, mean_square


class SecondAverageNotSquared(Mistake, exercise="adamw_step"):
    """The second average is one of the gradient; it is one of the squared gradient."""

    def adamw_step(
        parameter, gradient, mean, mean_square, step, lr, beta1, beta2, eps, weight_decay
    ):
        mean = beta1 * mean + (1 - beta1) * gradient
        mean_square = beta2 * mean_square + (1 - beta2) * gradient
        size = (mean_square / (1 - beta2**step)).abs().sqrt() + eps
        parameter = parameter * (1 - lr * weight_decay)
        return parameter - lr * (mean / (1 - beta1**step)) / size, mean, mean_square


class RootForgotten(Mistake, exercise="adamw_step"):
    """The mean is divided by the mean square; it is divided by its root."""

    def adamw_step(
        parameter, gradient, mean, mean_square, step, lr, beta1, beta2, eps, weight_decay
    ):
        mean = beta1 * mean + (1 - beta1) * gradient
        mean_square = beta2 * mean_square + (1 - beta2) * gradient**2
        size = mean_square / (1 - beta2**step) + eps
        parameter = parameter * (1 - lr * weight_decay)
        return parameter - lr * (mean / (1 - beta1**step)) / size, mean, mean_square


class DecayWithoutTheRate(Mistake, exercise="adamw_step"):
    """The parameter loses weight_decay of itself at every update; it loses lr * weight_decay, so
    that decay follows the schedule."""

    def adamw_step(
        parameter, gradient, mean, mean_square, step, lr, beta1, beta2, eps, weight_decay
    ):
        mean = beta1 * mean + (1 - beta1) * gradient
        mean_square = beta2 * mean_square + (1 - beta2) * gradient**2
        size = (mean_square / (1 - beta2**step)).sqrt() + eps
        parameter = parameter * (1 - weight_decay)
        return parameter - lr * (mean / (1 - beta1**step)) / size, mean, mean_square


class DecayOfTheUpdatedParameter(Mistake, exercise="adamw_step"):
    """The decay is that of the parameter after its step; it is that of the parameter as it came."""

    def adamw_step(
        parameter, gradient, mean, mean_square, step, lr, beta1, beta2, eps, weight_decay
    ):
        mean = beta1 * mean + (1 - beta1) * gradient
        mean_square = beta2 * mean_square + (1 - beta2) * gradient**2
        size = (mean_square / (1 - beta2**step)).sqrt() + eps
        parameter = parameter - lr * (mean / (1 - beta1**step)) / size
        return parameter - lr * weight_decay * parameter, mean, mean_square


class BetasExchanged(Mistake, exercise="adamw_step"):
    """beta1 and beta2 have changed places: beta1 belongs to the mean, beta2 to the mean square."""

    def adamw_step(
        parameter, gradient, mean, mean_square, step, lr, beta1, beta2, eps, weight_decay
    ):
        beta1, beta2 = beta2, beta1
        mean = beta1 * mean + (1 - beta1) * gradient
        mean_square = beta2 * mean_square + (1 - beta2) * gradient**2
        size = (mean_square / (1 - beta2**step)).sqrt() + eps
        parameter = parameter * (1 - lr * weight_decay)
        return parameter - lr * (mean / (1 - beta1**step)) / size, mean, mean_square


class CorrectedAveragesKept(Mistake, exercise="adamw_step"):
    """The corrected averages are handed back, and would be corrected again next time: the step uses
    them, what is kept are the plain ones."""

    def adamw_step(
        parameter, gradient, mean, mean_square, step, lr, beta1, beta2, eps, weight_decay
    ):
        mean = (beta1 * mean + (1 - beta1) * gradient) / (1 - beta1**step)
        mean_square = (beta2 * mean_square + (1 - beta2) * gradient**2) / (1 - beta2**step)
        parameter = parameter * (1 - lr * weight_decay)
        return parameter - lr * mean / (mean_square.sqrt() + eps), mean, mean_square


class ChangedInPlace(Mistake, exercise="adamw_step"):
    """The tensors that were handed over are changed; return new ones."""

    def adamw_step(
        parameter, gradient, mean, mean_square, step, lr, beta1, beta2, eps, weight_decay
    ):
        mean.mul_(beta1).add_(gradient, alpha=1 - beta1)
        mean_square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        size = (mean_square / (1 - beta2**step)).sqrt() + eps
        parameter.mul_(1 - lr * weight_decay).sub_(lr * (mean / (1 - beta1**step)) / size)
        return parameter, mean, mean_square


# 7.3 ------------------------------------------------------------------------------------------


class FirstUpdateIsLost(Mistake, exercise="learning_rate"):
    """The climb begins at 0, and an update with rate 0 changes nothing: steps are counted from 0,
    so the first one has the rate peak / (warmup_steps + 1)."""

    def learning_rate(step, peak, warmup_steps, total_steps, final):
        if step < warmup_steps:
            return peak * step / warmup_steps
        progress = min(1.0, (step - warmup_steps) / (total_steps - 1 - warmup_steps))
        return final + (peak - final) * (1 + math.cos(math.pi * progress)) / 2


class PeakOneUpdateEarly(Mistake, exercise="learning_rate"):
    """The last update of the warm-up has the peak already; the peak comes with the update after it,
    number warmup_steps."""

    def learning_rate(step, peak, warmup_steps, total_steps, final):
        if step < warmup_steps:
            return peak * (step + 1) / warmup_steps
        progress = min(1.0, (step - warmup_steps) / (total_steps - 1 - warmup_steps))
        return final + (peak - final) * (1 + math.cos(math.pi * progress)) / 2


class CosineFromTheFirstStep(Mistake, exercise="learning_rate"):
    """The cosine is counted from step 0, so the rate drops at once when the warm-up ends: the way
    down takes the steps that are left."""

    def learning_rate(step, peak, warmup_steps, total_steps, final):
        if step < warmup_steps:
            return peak * (step + 1) / (warmup_steps + 1)
        progress = min(1.0, step / (total_steps - 1))
        return final + (peak - final) * (1 + math.cos(math.pi * progress)) / 2


class FloorForgotten(Mistake, exercise="learning_rate"):
    """The rate falls to 0; it ends at `final`."""

    def learning_rate(step, peak, warmup_steps, total_steps, final):
        if step < warmup_steps:
            return peak * (step + 1) / (warmup_steps + 1)
        progress = min(1.0, (step - warmup_steps) / (total_steps - 1 - warmup_steps))
        return peak * (1 + math.cos(math.pi * progress)) / 2


class FloorAdded(Mistake, exercise="learning_rate"):
    """`final` is added to the whole cosine, so that the way down begins above the peak: only peak -
    final is left to go down."""

    def learning_rate(step, peak, warmup_steps, total_steps, final):
        if step < warmup_steps:
            return peak * (step + 1) / (warmup_steps + 1)
        progress = min(1.0, (step - warmup_steps) / (total_steps - 1 - warmup_steps))
        return final + peak * (1 + math.cos(math.pi * progress)) / 2


class AngleInDegrees(Mistake, exercise="learning_rate"):
    """The angle runs to 180; `cos` takes radians, so half a turn is pi."""

    def learning_rate(step, peak, warmup_steps, total_steps, final):
        if step < warmup_steps:
            return peak * (step + 1) / (warmup_steps + 1)
        progress = min(1.0, (step - warmup_steps) / (total_steps - 1 - warmup_steps))
        return final + (peak - final) * (1 + math.cos(180 * progress)) / 2


class EndsOneUpdateLate(Mistake, exercise="learning_rate"):
    """The last update, number total_steps - 1, has not arrived at `final`: the way down is one step
    shorter."""

    def learning_rate(step, peak, warmup_steps, total_steps, final):
        if step < warmup_steps:
            return peak * (step + 1) / (warmup_steps + 1)
        progress = min(1.0, (step - warmup_steps) / (total_steps - warmup_steps))
        return final + (peak - final) * (1 + math.cos(math.pi * progress)) / 2


class ClimbsAgain(Mistake, exercise="learning_rate"):
    """Behind the last update the cosine goes on and the rate climbs again; it stays at `final`."""

    def learning_rate(step, peak, warmup_steps, total_steps, final):
        if step < warmup_steps:
            return peak * (step + 1) / (warmup_steps + 1)
        progress = (step - warmup_steps) / (total_steps - 1 - warmup_steps)
        return final + (peak - final) * (1 + math.cos(math.pi * progress)) / 2


class StraightDown(Mistake, exercise="learning_rate"):
    """The rate falls in a straight line; it follows half a cosine."""

    def learning_rate(step, peak, warmup_steps, total_steps, final):
        if step < warmup_steps:
            return peak * (step + 1) / (warmup_steps + 1)
        progress = min(1.0, (step - warmup_steps) / (total_steps - 1 - warmup_steps))
        return peak + (final - peak) * progress


class QuarterOfACosine(Mistake, exercise="learning_rate"):
    """The angle goes to a quarter of a turn only, and falls fastest at the end: half a cosine goes
    from 1 to -1 and is brought to 1 and 0."""

    def learning_rate(step, peak, warmup_steps, total_steps, final):
        if step < warmup_steps:
            return peak * (step + 1) / (warmup_steps + 1)
        progress = min(1.0, (step - warmup_steps) / (total_steps - 1 - warmup_steps))
        return final + (peak - final) * math.cos(math.pi * progress / 2)


# 7.4 ------------------------------------------------------------------------------------------


class EachTensorByItself(Mistake, exercise="clip_gradients"):
    """Each gradient is clipped by its own norm, and the direction of the step changes: one norm, of
    all entries of all gradients, one factor."""

    def clip_gradients(gradients, max_norm):
        norm = torch.cat([g.flatten() for g in gradients if g is not None]).norm()
        if not norm.isfinite():
            raise ValueError(f"the gradients must be finite, got a norm of {norm}")
        return [
            g if g is None else g * (max_norm / g.norm().clamp(min=max_norm)) for g in gradients
        ], norm


class ClippedByValue(Mistake, exercise="clip_gradients"):
    """Every entry is cut off at max_norm; all entries are scaled by one factor, which keeps the
    direction."""

    def clip_gradients(gradients, max_norm):
        norm = torch.cat([g.flatten() for g in gradients if g is not None]).norm()
        if not norm.isfinite():
            raise ValueError(f"the gradients must be finite, got a norm of {norm}")
        return [g if g is None else g.clamp(-max_norm, max_norm) for g in gradients], norm


class ShortOnesScaledUp(Mistake, exercise="clip_gradients"):
    """Gradients that are shorter than max_norm are scaled up to it; they should stay as they
    are."""

    def clip_gradients(gradients, max_norm):
        norm = torch.cat([g.flatten() for g in gradients if g is not None]).norm()
        if not norm.isfinite():
            raise ValueError(f"the gradients must be finite, got a norm of {norm}")
        return [g if g is None else g * (max_norm / (norm + 1e-12)) for g in gradients], norm


class ZeroDividedByZero(Mistake, exercise="clip_gradients"):
    """Gradients that are all zero are divided by their norm, and zero by zero is NaN: where the norm
    does not exceed max_norm, nothing has to be divided."""

    def clip_gradients(gradients, max_norm):
        norm = torch.cat([g.flatten() for g in gradients if g is not None]).norm()
        if not norm.isfinite():
            raise ValueError(f"the gradients must be finite, got a norm of {norm}")
        return [g if g is None else g / norm * norm.clamp(max=max_norm) for g in gradients], norm


class NormsAddedUp(Mistake, exercise="clip_gradients"):
    """The norms of the gradients are added up; the norm of all is the root of the sum of their
    squares."""

    def clip_gradients(gradients, max_norm):
        norm = sum(g.norm() for g in gradients if g is not None)
        if not norm.isfinite():
            raise ValueError(f"the gradients must be finite, got a norm of {norm}")
        factor = min(1.0, max_norm / norm)
        return [g if g is None else g * factor for g in gradients], norm


class NormNotRooted(Mistake, exercise="clip_gradients"):
    """The sum of the squares is used as it is: the norm is its root."""

    def clip_gradients(gradients, max_norm):
        norm = sum(g.square().sum() for g in gradients if g is not None)
        if not norm.isfinite():
            raise ValueError(f"the gradients must be finite, got a norm of {norm}")
        factor = min(1.0, max_norm / norm)
        return [g if g is None else g * factor for g in gradients], norm


class NormAfterClipping(Mistake, exercise="clip_gradients"):
    """The norm that is returned is the one after clipping, which says nothing: return the one
    before."""

    def clip_gradients(gradients, max_norm):
        norm = torch.cat([g.flatten() for g in gradients if g is not None]).norm()
        if not norm.isfinite():
            raise ValueError(f"the gradients must be finite, got a norm of {norm}")
        factor = min(1.0, max_norm / norm)
        return [g if g is None else g * factor for g in gradients], norm * factor


class FrozenParametersGetZeros(Mistake, exercise="clip_gradients"):
    """A frozen parameter is given a gradient of zeros, and an optimizer would decay it: None stays
    None."""

    def clip_gradients(gradients, max_norm):
        norm = torch.cat([g.flatten() for g in gradients if g is not None]).norm()
        if not norm.isfinite():
            raise ValueError(f"the gradients must be finite, got a norm of {norm}")
        factor = min(1.0, max_norm / norm)
        return [torch.zeros(()) if g is None else g * factor for g in gradients], norm


class FrozenParametersDropped(Mistake, exercise="clip_gradients"):
    """Frozen parameters are left out of the list, and every gradient behind one meets the wrong
    parameter: keep None in its place."""

    def clip_gradients(gradients, max_norm):
        kept = [g for g in gradients if g is not None]
        norm = torch.cat([g.flatten() for g in kept]).norm()
        if not norm.isfinite():
            raise ValueError(f"the gradients must be finite, got a norm of {norm}")
        return [g * min(1.0, max_norm / norm) for g in kept], norm


class NoNumberLetThrough(Mistake, exercise="clip_gradients"):
    """With one NaN or infinite entry the norm is none either, and scaling spreads it to every
    gradient, or makes them all zero: raise ValueError instead."""

    def clip_gradients(gradients, max_norm):
        norm = torch.cat([g.flatten() for g in gradients if g is not None]).norm()
        factor = min(1.0, max_norm / norm)
        return [g if g is None else g * factor for g in gradients], norm


class OnlyInfinityRefused(Mistake, exercise="clip_gradients"):
    """Infinite entries are refused and NaN is not: a comparison with NaN is always false, so test
    for what is finite."""

    def clip_gradients(gradients, max_norm):
        norm = torch.cat([g.flatten() for g in gradients if g is not None]).norm()
        if norm == math.inf:
            raise ValueError(f"the gradients must be finite, got a norm of {norm}")
        factor = min(1.0, max_norm / norm)
        return [g if g is None else g * factor for g in gradients], norm


class GradientsScaledInPlace(Mistake, exercise="clip_gradients"):
    """The gradients that were handed over are scaled; return new tensors."""

    def clip_gradients(gradients, max_norm):
        norm = torch.cat([g.flatten() for g in gradients if g is not None]).norm()
        if not norm.isfinite():
            raise ValueError(f"the gradients must be finite, got a norm of {norm}")
        factor = min(1.0, max_norm / norm)
        return [g if g is None else g.mul_(factor) for g in gradients], norm


# 7.5 ------------------------------------------------------------------------------------------


class MeanOfMeans(Mistake, exercise="accumulated_gradients"):
    """The means of the parts are averaged, so a target counts more in a part where few count:
    divide every sum by the number of all targets that count."""

    def accumulated_gradients(model, weight, parts):
        leaf = weight.clone().requires_grad_()
        gradient, loss = torch.zeros_like(weight), 0.0
        for x, targets in parts:
            part = F.cross_entropy(model(leaf, x).mT, targets, ignore_index=-100) / len(parts)
            gradient = gradient + torch.autograd.grad(part, leaf)[0]
            loss = loss + part.detach()
        return gradient, loss


class MeansAddedUp(Mistake, exercise="accumulated_gradients"):
    """The means of the parts are added up, so the gradient grows with the number of parts: it has
    to be that of one mean over all."""

    def accumulated_gradients(model, weight, parts):
        leaf = weight.clone().requires_grad_()
        gradient, loss = torch.zeros_like(weight), 0.0
        for x, targets in parts:
            part = F.cross_entropy(model(leaf, x).mT, targets, ignore_index=-100)
            gradient = gradient + torch.autograd.grad(part, leaf)[0]
            loss = loss + part.detach()
        return gradient, loss


class NeverDivided(Mistake, exercise="accumulated_gradients"):
    """The losses are summed and never divided: the mean loss divides by the number of targets that
    count."""

    def accumulated_gradients(model, weight, parts):
        leaf = weight.clone().requires_grad_()
        gradient, loss = torch.zeros_like(weight), 0.0
        for x, targets in parts:
            logits = model(leaf, x).mT
            part = F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
            gradient = gradient + torch.autograd.grad(part, leaf)[0]
            loss = loss + part.detach()
        return gradient, loss


class IgnoredTargetsCounted(Mistake, exercise="accumulated_gradients"):
    """The sum is divided by the number of all targets, the ignored ones included: only those that
    count are averaged over."""

    def accumulated_gradients(model, weight, parts):
        leaf = weight.clone().requires_grad_()
        count = sum(targets.numel() for _, targets in parts)
        gradient, loss = torch.zeros_like(weight), 0.0
        for x, targets in parts:
            logits = model(leaf, x).mT
            part = F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum") / count
            gradient = gradient + torch.autograd.grad(part, leaf)[0]
            loss = loss + part.detach()
        return gradient, loss


class GradientOverwritten(Mistake, exercise="accumulated_gradients"):
    """Each part's gradient takes the place of the one before, as if gradients were zeroed inside
    the loop: they are added up, and zeroed after the update."""

    def accumulated_gradients(model, weight, parts):
        leaf = weight.clone().requires_grad_()
        count = sum((targets != -100).sum() for _, targets in parts)
        gradient, loss = torch.zeros_like(weight), 0.0
        for x, targets in parts:
            logits = model(leaf, x).mT
            part = F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum") / count
            gradient = torch.autograd.grad(part, leaf)[0]
            loss = loss + part.detach()
        return gradient, loss


class EarlierPartsCountedAgain(Mistake, exercise="accumulated_gradients"):
    """The gradient of the loss so far is added after each part, so the first part is counted as
    often as there are parts: add the gradient of each part once."""

    def accumulated_gradients(model, weight, parts):
        leaf = weight.clone().requires_grad_()
        count = sum((targets != -100).sum() for _, targets in parts)
        gradient, loss = torch.zeros_like(weight), torch.zeros((), dtype=weight.dtype)
        for x, targets in parts:
            logits = model(leaf, x).mT
            part = F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum") / count
            loss = loss + part
            gradient = gradient + torch.autograd.grad(loss, leaf, retain_graph=True)[0]
        return gradient, loss.detach()


class LastPartDropped(Mistake, exercise="accumulated_gradients"):
    """The last part is left out; every part belongs to the batch."""

    def accumulated_gradients(model, weight, parts):
        leaf = weight.clone().requires_grad_()
        count = sum((targets != -100).sum() for _, targets in parts)
        gradient, loss = torch.zeros_like(weight), 0.0
        for x, targets in parts[:-1]:
            logits = model(leaf, x).mT
            part = F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum") / count
            gradient = gradient + torch.autograd.grad(part, leaf)[0]
            loss = loss + part.detach()
        return gradient, loss


class MeansWeightedByCount(Mistake, exercise="accumulated_gradients"):
    """The mean of each part is weighted by its count, and the mean of nothing is NaN: zero times
    NaN is NaN. Divide sums instead."""

    def accumulated_gradients(model, weight, parts):
        leaf = weight.clone().requires_grad_()
        count = sum((targets != -100).sum() for _, targets in parts)
        gradient, loss = torch.zeros_like(weight), 0.0
        for x, targets in parts:
            part = F.cross_entropy(model(leaf, x).mT, targets, ignore_index=-100)
            part = part * (targets != -100).sum() / count
            gradient = gradient + torch.autograd.grad(part, leaf)[0]
            loss = loss + part.detach()
        return gradient, loss


class AllPartsAtOnce(Mistake, exercise="accumulated_gradients"):
    """The parts are put together again and go through the model at once: the batch was cut because
    it does not fit."""

    def accumulated_gradients(model, weight, parts):
        leaf = weight.clone().requires_grad_()
        x, targets = (torch.cat([part[i] for part in parts]) for i in (0, 1))
        loss = F.cross_entropy(model(leaf, x).mT, targets, ignore_index=-100)
        return torch.autograd.grad(loss, leaf)[0], loss.detach()


# 7.6 ------------------------------------------------------------------------------------------


class StatisticsInHalf(Mistake, exercise="low_precision"):
    """The squares or their mean pass through half precision, which cannot hold them: turn the input
    into float32 before squaring, and back at the end."""

    def rms_norm(x, gain, eps):
        return x * (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * gain.to(x.dtype)

    def token_losses(logits, targets):
        return F.cross_entropy(logits.float().mT, targets, reduction="none")

    def master_step(master, gradient, lr):
        master = master - lr * gradient.float()
        return master, master.bfloat16()


class SquaresInHalf(Mistake, exercise="low_precision"):
    """The mean is taken in float32, of squares that were taken in half precision and are infinite
    or zero already: convert before squaring, not after."""

    def rms_norm(x, gain, eps):
        mean = x.square().float().mean(dim=-1, keepdim=True)
        return (x.float() * (mean + eps).rsqrt() * gain).to(x.dtype)

    def token_losses(logits, targets):
        return F.cross_entropy(logits.float().mT, targets, reduction="none")

    def master_step(master, gradient, lr):
        master = master - lr * gradient.float()
        return master, master.bfloat16()


class NormNotCastBack(Mistake, exercise="low_precision"):
    """The norm returns float32, and everything behind it would be computed in float32 as well: cast
    the result back to the dtype of the input."""

    def rms_norm(x, gain, eps):
        x = x.float()
        return x * (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * gain

    def token_losses(logits, targets):
        return F.cross_entropy(logits.float().mT, targets, reduction="none")

    def master_step(master, gradient, lr):
        master = master - lr * gradient.float()
        return master, master.bfloat16()


class EpsilonBesideTheRoot(Mistake, exercise="low_precision"):
    """eps is added to the root; it is added to the mean of the squares, under the root."""

    def rms_norm(x, gain, eps):
        wide = x.float()
        size = wide.square().mean(dim=-1, keepdim=True).sqrt() + eps
        return (wide / size * gain).to(x.dtype)

    def token_losses(logits, targets):
        return F.cross_entropy(logits.float().mT, targets, reduction="none")

    def master_step(master, gradient, lr):
        master = master - lr * gradient.float()
        return master, master.bfloat16()


class LossInHalf(Mistake, exercise="low_precision"):
    """The logarithms of the probabilities are rounded to bfloat16 and turned into float32 when the
    digits are lost: convert the logits first."""

    def rms_norm(x, gain, eps):
        wide = x.float()
        scale = (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
        return (wide * scale * gain).to(x.dtype)

    def token_losses(logits, targets):
        return F.cross_entropy(logits.mT, targets, reduction="none").float()

    def master_step(master, gradient, lr):
        master = master - lr * gradient.float()
        return master, master.bfloat16()


class ExponentialsOverflow(Mistake, exercise="low_precision"):
    """Exponentials of large logits are more than float32 holds: `log_softmax`, `logsumexp` and
    `cross_entropy` subtract the largest logit first."""

    def rms_norm(x, gain, eps):
        wide = x.float()
        scale = (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
        return (wide * scale * gain).to(x.dtype)

    def token_losses(logits, targets):
        wide = logits.float()
        return wide.exp().sum(dim=-1).log() - wide.gather(-1, targets[..., None])[..., 0]

    def master_step(master, gradient, lr):
        master = master - lr * gradient.float()
        return master, master.bfloat16()


class LossCastBack(Mistake, exercise="low_precision"):
    """The losses are computed in float32 and then rounded to bfloat16: they are averaged and
    compared, and stay in float32."""

    def rms_norm(x, gain, eps):
        wide = x.float()
        scale = (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
        return (wide * scale * gain).to(x.dtype)

    def token_losses(logits, targets):
        losses = F.cross_entropy(logits.float().mT, targets, reduction="none")
        return losses.to(logits.dtype)

    def master_step(master, gradient, lr):
        master = master - lr * gradient.float()
        return master, master.bfloat16()


class MasterMadeFromTheCopy(Mistake, exercise="low_precision"):
    """The new master is made from its bfloat16 copy, and loses at every update what it is kept for:
    round the copy, never the master."""

    def rms_norm(x, gain, eps):
        wide = x.float()
        scale = (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
        return (wide * scale * gain).to(x.dtype)

    def token_losses(logits, targets):
        return F.cross_entropy(logits.float().mT, targets, reduction="none")

    def master_step(master, gradient, lr):
        weight = (master - lr * gradient.float()).bfloat16()
        return weight.float(), weight


class UpdateInHalf(Mistake, exercise="low_precision"):
    """The update is made in bfloat16, where a small one changes nothing: subtract in float32, and
    round only the copy."""

    def rms_norm(x, gain, eps):
        wide = x.float()
        scale = (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
        return (wide * scale * gain).to(x.dtype)

    def token_losses(logits, targets):
        return F.cross_entropy(logits.float().mT, targets, reduction="none")

    def master_step(master, gradient, lr):
        weight = master.bfloat16() - lr * gradient
        return weight.float(), weight


class StepRoundedFirst(Mistake, exercise="low_precision"):
    """Rate times gradient is rounded to bfloat16 before it is subtracted: convert the gradient
    first."""

    def rms_norm(x, gain, eps):
        wide = x.float()
        scale = (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
        return (wide * scale * gain).to(x.dtype)

    def token_losses(logits, targets):
        return F.cross_entropy(logits.float().mT, targets, reduction="none")

    def master_step(master, gradient, lr):
        master = master - lr * gradient
        return master, master.bfloat16()


class MasterChangedInPlace(Mistake, exercise="low_precision"):
    """The master that was handed over is changed: return new weights."""

    def rms_norm(x, gain, eps):
        wide = x.float()
        scale = (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
        return (wide * scale * gain).to(x.dtype)

    def token_losses(logits, targets):
        return F.cross_entropy(logits.float().mT, targets, reduction="none")

    def master_step(master, gradient, lr):
        master -= lr * gradient.float()
        return master, master.bfloat16()


class CopyNotRounded(Mistake, exercise="low_precision"):
    """The second result is the float32 master again; the model computes with a bfloat16 copy of
    it."""

    def rms_norm(x, gain, eps):
        wide = x.float()
        scale = (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
        return (wide * scale * gain).to(x.dtype)

    def token_losses(logits, targets):
        return F.cross_entropy(logits.float().mT, targets, reduction="none")

    def master_step(master, gradient, lr):
        master = master - lr * gradient.float()
        return master, master


# 7.7 ------------------------------------------------------------------------------------------


class ForwardOnly(Mistake, exercise="check_same_attention"):
    """The results are compared and the gradients are not: an attention may be right forward and
    wrong backward, and training needs both."""

    def check_same_attention(attention):
        torch.manual_seed(0)
        query, key = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 11, 4)
        value = torch.randn(2, 3, 11, 6)
        for mask in (None, torch.rand(2, 1, 5, 11) > 0.4):
            expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            assert (attention(query, key, value, mask) - expected).abs().max() < 1e-4


class WithoutAMask(Mistake, exercise="check_same_attention"):
    """No mask is ever handed over, and many mistakes of fast attention are about masks: try
    some."""

    def check_same_attention(attention):
        torch.manual_seed(0)
        tensors = [
            torch.randn(2, 3, n, d, requires_grad=True) for n, d in ((5, 4), (11, 4), (11, 6))
        ]
        seen = attention(*tensors, None)
        expected = F.scaled_dot_product_attention(*tensors)
        slope = torch.randn_like(expected)
        pairs = zip(
            (seen, *torch.autograd.grad(seen, tensors, slope)),
            (expected, *torch.autograd.grad(expected, tensors, slope)),
            strict=True,
        )
        assert all((s - e).abs().max() < 1e-4 for s, e in pairs)


class OneMaskForTheBatch(Mistake, exercise="check_same_attention"):
    """All sequences of the batch have the same mask, so that a mix-up among them goes unnoticed:
    give each its own."""

    def check_same_attention(attention):
        torch.manual_seed(0)
        for is_masked in (False, True):
            tensors = [
                torch.randn(2, 3, n, d, requires_grad=True) for n, d in ((5, 4), (11, 4), (11, 6))
            ]
            mask = torch.ones(5, 11, dtype=torch.bool).tril(3) if is_masked else None
            seen = attention(*tensors, mask)
            expected = F.scaled_dot_product_attention(*tensors, attn_mask=mask)
            slope = torch.randn_like(expected)
            pairs = zip(
                (seen, *torch.autograd.grad(seen, tensors, slope)),
                (expected, *torch.autograd.grad(expected, tensors, slope)),
                strict=True,
            )
            assert all((s - e).abs().max() < 1e-4 for s, e in pairs)


class AsManyQueriesAsKeys(Mistake, exercise="check_same_attention"):
    """There are always as many queries as keys, so nobody notices which of the two counts is used:
    take different ones."""

    def check_same_attention(attention):
        torch.manual_seed(0)
        for is_masked in (False, True):
            tensors = [
                torch.randn(2, 3, n, d, requires_grad=True) for n, d in ((11, 4), (11, 4), (11, 6))
            ]
            mask = torch.rand(2, 1, 11, 11) > 0.4 if is_masked else None
            if mask is not None:
                mask[..., 0] = True
            seen = attention(*tensors, mask)
            expected = F.scaled_dot_product_attention(*tensors, attn_mask=mask)
            slope = torch.randn_like(expected)
            pairs = zip(
                (seen, *torch.autograd.grad(seen, tensors, slope)),
                (expected, *torch.autograd.grad(expected, tensors, slope)),
                strict=True,
            )
            assert all((s - e).abs().max() < 1e-4 for s, e in pairs)


class AllWidthsEqual(Mistake, exercise="check_same_attention"):
    """Values are as wide as keys, so nobody notices whose width the scale takes: take different
    ones."""

    def check_same_attention(attention):
        torch.manual_seed(0)
        for is_masked in (False, True):
            tensors = [
                torch.randn(2, 3, n, d, requires_grad=True) for n, d in ((5, 4), (11, 4), (11, 4))
            ]
            mask = torch.rand(2, 1, 5, 11) > 0.4 if is_masked else None
            if mask is not None:
                mask[..., 0] = True
            seen = attention(*tensors, mask)
            expected = F.scaled_dot_product_attention(*tensors, attn_mask=mask)
            slope = torch.randn_like(expected)
            pairs = zip(
                (seen, *torch.autograd.grad(seen, tensors, slope)),
                (expected, *torch.autograd.grad(expected, tensors, slope)),
                strict=True,
            )
            assert all((s - e).abs().max() < 1e-4 for s, e in pairs)


class OnlyFullBlocks(Mistake, exercise="check_same_attention"):
    """The number of keys is always a multiple of eight, so every block is full; fast attention goes
    wrong where one is not: try a length like 11."""

    def check_same_attention(attention):
        torch.manual_seed(0)
        for is_masked in (False, True):
            tensors = [
                torch.randn(2, 3, n, d, requires_grad=True) for n, d in ((5, 4), (16, 4), (16, 6))
            ]
            mask = torch.rand(2, 1, 5, 16) > 0.4 if is_masked else None
            if mask is not None:
                mask[..., 0] = True
            seen = attention(*tensors, mask)
            expected = F.scaled_dot_product_attention(*tensors, attn_mask=mask)
            slope = torch.randn_like(expected)
            pairs = zip(
                (seen, *torch.autograd.grad(seen, tensors, slope)),
                (expected, *torch.autograd.grad(expected, tensors, slope)),
                strict=True,
            )
            assert all((s - e).abs().max() < 1e-4 for s, e in pairs)


class ToleranceTooTight(Mistake, exercise="check_same_attention"):
    """The numbers have to be equal to the last digit, and float32 sums in another order differ
    there: allow for rounding, 1e-5 or so."""

    def check_same_attention(attention):
        torch.manual_seed(0)
        for is_masked in (False, True):
            tensors = [
                torch.randn(2, 3, n, d, requires_grad=True) for n, d in ((5, 4), (11, 4), (11, 6))
            ]
            mask = torch.rand(2, 1, 5, 11) > 0.4 if is_masked else None
            if mask is not None:
                mask[..., 0] = True
            seen = attention(*tensors, mask)
            expected = F.scaled_dot_product_attention(*tensors, attn_mask=mask)
            slope = torch.randn_like(expected)
            pairs = zip(
                (seen, *torch.autograd.grad(seen, tensors, slope)),
                (expected, *torch.autograd.grad(expected, tensors, slope)),
                strict=True,
            )
            assert all(torch.equal(s, e) for s, e in pairs)


class ToleranceTooLoose(Mistake, exercise="check_same_attention"):
    """Differences of some hundredths are forgiven, and half of the digits may get lost unnoticed:
    rounding in float32 is a matter of 1e-6."""

    def check_same_attention(attention):
        torch.manual_seed(0)
        for is_masked in (False, True):
            tensors = [
                torch.randn(2, 3, n, d, requires_grad=True) for n, d in ((5, 4), (11, 4), (11, 6))
            ]
            mask = torch.rand(2, 1, 5, 11) > 0.4 if is_masked else None
            if mask is not None:
                mask[..., 0] = True
            seen = attention(*tensors, mask)
            expected = F.scaled_dot_product_attention(*tensors, attn_mask=mask)
            slope = torch.randn_like(expected)
            pairs = zip(
                (seen, *torch.autograd.grad(seen, tensors, slope)),
                (expected, *torch.autograd.grad(expected, tensors, slope)),
                strict=True,
            )
            assert all((s - e).abs().max() < 0.1 for s, e in pairs)


class NothingIsNoticed(Mistake, exercise="check_same_attention"):
    """Your test passes whatever is wrong. Every mistake here returns the right shape: compare
    numbers, to 1e-5 or so, by an `assert`; what is only printed or returned raises nothing."""

    def check_same_attention(attention):
        torch.manual_seed(0)
        tensors = [
            torch.randn(2, 3, n, d, requires_grad=True) for n, d in ((5, 4), (11, 4), (11, 6))
        ]
        mask = torch.ones(2, 1, 5, 11, dtype=torch.bool).tril(3)
        seen = attention(*tensors, mask)
        expected = F.scaled_dot_product_attention(*tensors, attn_mask=mask)
        assert seen.shape == expected.shape
        slopes = torch.autograd.grad(seen.sum(), tensors)
        assert all(s.shape == t.shape for s, t in zip(slopes, tensors, strict=True))


# 7.8 ------------------------------------------------------------------------------------------


class OnlyTheForwardPass(Mistake, exercise="training_cost"):
    """Only the forward pass is counted; the backward pass takes two products for each of its
    own."""

    def flops_per_token(num_layers, d_model, d_ff, vocab_size, length):
        matrices = num_layers * (4 * d_model**2 + 2 * d_model * d_ff) + d_model * vocab_size
        return 2 * matrices + 4 * num_layers * d_model * length

    def mfu(tokens_per_second, flops_per_token, peak_teraflops):
        return tokens_per_second * flops_per_token / (peak_teraflops * 1e12)

    def bits_per_byte(nats_per_token, num_tokens, num_bytes):
        return nats_per_token / math.log(2) * num_tokens / num_bytes


class BackwardLikeForward(Mistake, exercise="training_cost"):
    """The backward pass is taken to cost as much as the forward pass; it costs twice as much, a
    product for the gradient of each factor."""

    def flops_per_token(num_layers, d_model, d_ff, vocab_size, length):
        matrices = num_layers * (4 * d_model**2 + 2 * d_model * d_ff) + d_model * vocab_size
        return 4 * matrices + 8 * num_layers * d_model * length

    def mfu(tokens_per_second, flops_per_token, peak_teraflops):
        return tokens_per_second * flops_per_token / (peak_teraflops * 1e12)

    def bits_per_byte(nats_per_token, num_tokens, num_bytes):
        return nats_per_token / math.log(2) * num_tokens / num_bytes


class ProductAndSumAsOne(Mistake, exercise="training_cost"):
    """A multiplication and the addition after it are counted as one operation; they are two."""

    def flops_per_token(num_layers, d_model, d_ff, vocab_size, length):
        matrices = num_layers * (4 * d_model**2 + 2 * d_model * d_ff) + d_model * vocab_size
        return 3 * matrices + 6 * num_layers * d_model * length

    def mfu(tokens_per_second, flops_per_token, peak_teraflops):
        return tokens_per_second * flops_per_token / (peak_teraflops * 1e12)

    def bits_per_byte(nats_per_token, num_tokens, num_bytes):
        return nats_per_token / math.log(2) * num_tokens / num_bytes


class AttentionForgotten(Mistake, exercise="training_cost"):
    """Only products with weights are counted; scores and averages multiply activations with each
    other, and cost more the longer the text."""

    def flops_per_token(num_layers, d_model, d_ff, vocab_size, length):
        matrices = num_layers * (4 * d_model**2 + 2 * d_model * d_ff) + d_model * vocab_size
        return 6 * matrices

    def mfu(tokens_per_second, flops_per_token, peak_teraflops):
        return tokens_per_second * flops_per_token / (peak_teraflops * 1e12)

    def bits_per_byte(nats_per_token, num_tokens, num_bytes):
        return nats_per_token / math.log(2) * num_tokens / num_bytes


class ScoresWithoutAverages(Mistake, exercise="training_cost"):
    """Of attention only the scores are counted; the average of the values costs as much again."""

    def flops_per_token(num_layers, d_model, d_ff, vocab_size, length):
        matrices = num_layers * (4 * d_model**2 + 2 * d_model * d_ff) + d_model * vocab_size
        return 6 * matrices + 6 * num_layers * d_model * length

    def mfu(tokens_per_second, flops_per_token, peak_teraflops):
        return tokens_per_second * flops_per_token / (peak_teraflops * 1e12)

    def bits_per_byte(nats_per_token, num_tokens, num_bytes):
        return nats_per_token / math.log(2) * num_tokens / num_bytes


class LookUpCountedAsAProduct(Mistake, exercise="training_cost"):
    """The table of token vectors is counted as if it were multiplied; a row of it is looked up,
    which takes no operation."""

    def flops_per_token(num_layers, d_model, d_ff, vocab_size, length):
        matrices = num_layers * (4 * d_model**2 + 2 * d_model * d_ff) + 2 * d_model * vocab_size
        return 6 * matrices + 12 * num_layers * d_model * length

    def mfu(tokens_per_second, flops_per_token, peak_teraflops):
        return tokens_per_second * flops_per_token / (peak_teraflops * 1e12)

    def bits_per_byte(nats_per_token, num_tokens, num_bytes):
        return nats_per_token / math.log(2) * num_tokens / num_bytes


class LogitsForgotten(Mistake, exercise="training_cost"):
    """The product that gives the logits is missing; with a large vocabulary it is a large one."""

    def flops_per_token(num_layers, d_model, d_ff, vocab_size, length):
        matrices = num_layers * (4 * d_model**2 + 2 * d_model * d_ff)
        return 6 * matrices + 12 * num_layers * d_model * length

    def mfu(tokens_per_second, flops_per_token, peak_teraflops):
        return tokens_per_second * flops_per_token / (peak_teraflops * 1e12)

    def bits_per_byte(nats_per_token, num_tokens, num_bytes):
        return nats_per_token / math.log(2) * num_tokens / num_bytes


class TeraForgotten(Mistake, exercise="training_cost"):
    """The peak is given in units of 10**12 operations per second and used as if it were in
    operations per second."""

    def flops_per_token(num_layers, d_model, d_ff, vocab_size, length):
        matrices = num_layers * (4 * d_model**2 + 2 * d_model * d_ff) + d_model * vocab_size
        return 6 * matrices + 12 * num_layers * d_model * length

    def mfu(tokens_per_second, flops_per_token, peak_teraflops):
        return tokens_per_second * flops_per_token / peak_teraflops

    def bits_per_byte(nats_per_token, num_tokens, num_bytes):
        return nats_per_token / math.log(2) * num_tokens / num_bytes


class InPercent(Mistake, exercise="training_cost"):
    """The utilisation is given in percent; it is a share, from 0 to 1."""

    def flops_per_token(num_layers, d_model, d_ff, vocab_size, length):
        matrices = num_layers * (4 * d_model**2 + 2 * d_model * d_ff) + d_model * vocab_size
        return 6 * matrices + 12 * num_layers * d_model * length

    def mfu(tokens_per_second, flops_per_token, peak_teraflops):
        return 100 * tokens_per_second * flops_per_token / (peak_teraflops * 1e12)

    def bits_per_byte(nats_per_token, num_tokens, num_bytes):
        return nats_per_token / math.log(2) * num_tokens / num_bytes


class NatsTakenForBits(Mistake, exercise="training_cost"):
    """These are nats per byte: a bit is ln 2 nats, so divide by ln 2."""

    def flops_per_token(num_layers, d_model, d_ff, vocab_size, length):
        matrices = num_layers * (4 * d_model**2 + 2 * d_model * d_ff) + d_model * vocab_size
        return 6 * matrices + 12 * num_layers * d_model * length

    def mfu(tokens_per_second, flops_per_token, peak_teraflops):
        return tokens_per_second * flops_per_token / (peak_teraflops * 1e12)

    def bits_per_byte(nats_per_token, num_tokens, num_bytes):
        return nats_per_token * num_tokens / num_bytes


class TimesLogarithmOfTwo(Mistake, exercise="training_cost"):
    """The nats are multiplied by ln 2; a nat is more than a bit, so there must be more bits than
    nats."""

    def flops_per_token(num_layers, d_model, d_ff, vocab_size, length):
        matrices = num_layers * (4 * d_model**2 + 2 * d_model * d_ff) + d_model * vocab_size
        return 6 * matrices + 12 * num_layers * d_model * length

    def mfu(tokens_per_second, flops_per_token, peak_teraflops):
        return tokens_per_second * flops_per_token / (peak_teraflops * 1e12)

    def bits_per_byte(nats_per_token, num_tokens, num_bytes):
        return nats_per_token * math.log(2) * num_tokens / num_bytes


class BitsPerToken(Mistake, exercise="training_cost"):
    """These are bits per token, and longer tokens need more of them: spread them over the bytes."""

    def flops_per_token(num_layers, d_model, d_ff, vocab_size, length):
        matrices = num_layers * (4 * d_model**2 + 2 * d_model * d_ff) + d_model * vocab_size
        return 6 * matrices + 12 * num_layers * d_model * length

    def mfu(tokens_per_second, flops_per_token, peak_teraflops):
        return tokens_per_second * flops_per_token / (peak_teraflops * 1e12)

    def bits_per_byte(nats_per_token, num_tokens, num_bytes):
        return nats_per_token / math.log(2)


class BytesOverTokens(Mistake, exercise="training_cost"):
    """The quotient stands on its head: the bits of all tokens are shared out among the bytes."""

    def flops_per_token(num_layers, d_model, d_ff, vocab_size, length):
        matrices = num_layers * (4 * d_model**2 + 2 * d_model * d_ff) + d_model * vocab_size
        return 6 * matrices + 12 * num_layers * d_model * length

    def mfu(tokens_per_second, flops_per_token, peak_teraflops):
        return tokens_per_second * flops_per_token / (peak_teraflops * 1e12)

    def bits_per_byte(nats_per_token, num_tokens, num_bytes):
        return nats_per_token / math.log(2) * num_bytes / num_tokens


# 7.9 ------------------------------------------------------------------------------------------


class LeaksNotToldApart(Mistake, exercise="verdicts"):
    """Whatever ends below the best possible loss is called a missing mask; a target that is the
    input itself is found within a few updates, and one that stands a token further on is not."""

    def verdicts(runs):
        def verdict(run):
            learned, unseen = run["train"][-5:].mean(), run["held_out"][-5:].mean()
            if run["norm"][-1] > 5:
                return "gradients never zeroed"
            if run["norm"][0] < 0.4:
                return "softmax twice"
            if run["train"].max() > 2.7:
                return "learning rate too high"
            if unseen < 1.1:
                return "no mask"
            if learned < 1.2:
                return "always the same batch"
            if unseen > 2.25:
                return "learning rate too low"
            return "dropout in evaluation" if learned - unseen < 0.14 else "nothing"

        return {letter: verdict(run) for letter, run in runs.items()}


class EveryLeakIsTheShift(Mistake, exercise="verdicts"):
    """Whatever ends below the best possible loss is called a missing shift; a missing mask gives a
    loss that falls later and less far, because the model has to learn where to look."""

    def verdicts(runs):
        def verdict(run):
            learned, unseen = run["train"][-5:].mean(), run["held_out"][-5:].mean()
            if run["norm"][-1] > 5:
                return "gradients never zeroed"
            if run["norm"][0] < 0.4:
                return "softmax twice"
            if run["train"].max() > 2.7:
                return "learning rate too high"
            if unseen < 1.1:
                return "targets not shifted"
            if learned < 1.2:
                return "always the same batch"
            if unseen > 2.25:
                return "learning rate too low"
            return "dropout in evaluation" if learned - unseen < 0.14 else "nothing"

        return {letter: verdict(run) for letter, run in runs.items()}


class HeldOutLossNeverRead(Mistake, exercise="verdicts"):
    """Only the training loss is read, and a run that learns one batch by heart looks like a leak: a
    leak lowers the held-out loss as well."""

    def verdicts(runs):
        def verdict(run):
            learned, unseen = run["train"][-5:].mean(), run["held_out"][-5:].mean()
            if run["norm"][-1] > 5:
                return "gradients never zeroed"
            if run["norm"][0] < 0.4:
                return "softmax twice"
            if run["train"].max() > 2.7:
                return "learning rate too high"
            if learned < 1.1:
                return "targets not shifted" if run["held_out"][3] < 0.3 else "no mask"
            if learned < 1.2:
                return "always the same batch"
            if unseen > 2.25:
                return "learning rate too low"
            return "dropout in evaluation" if learned - unseen < 0.14 else "nothing"

        return {letter: verdict(run) for letter, run in runs.items()}


class DropoutNotSeen(Mistake, exercise="verdicts"):
    """Nobody compares the two losses of a run that looks sound: with dropout while training only,
    what is held out is read better than what is learned from."""

    def verdicts(runs):
        def verdict(run):
            learned, unseen = run["train"][-5:].mean(), run["held_out"][-5:].mean()
            if run["norm"][-1] > 5:
                return "gradients never zeroed"
            if run["norm"][0] < 0.4:
                return "softmax twice"
            if run["train"].max() > 2.7:
                return "learning rate too high"
            if unseen < 1.1:
                return "targets not shifted" if run["held_out"][3] < 0.3 else "no mask"
            if learned < 1.2:
                return "always the same batch"
            if unseen > 2.25:
                return "learning rate too low"
            return "nothing"

        return {letter: verdict(run) for letter, run in runs.items()}


class SoundRunSuspected(Mistake, exercise="verdicts"):
    """A held-out loss below the training loss is held against a run; where dropout is on in
    training only, that is how it should be."""

    def verdicts(runs):
        def verdict(run):
            learned, unseen = run["train"][-5:].mean(), run["held_out"][-5:].mean()
            if run["norm"][-1] > 5:
                return "gradients never zeroed"
            if run["norm"][0] < 0.4:
                return "softmax twice"
            if run["train"].max() > 2.7:
                return "learning rate too high"
            if unseen < 1.1:
                return "targets not shifted" if run["held_out"][3] < 0.3 else "no mask"
            if learned < 1.2:
                return "always the same batch"
            if unseen > 2.25:
                return "learning rate too low"
            return "dropout in evaluation" if learned - unseen > -1.0 else "nothing"

        return {letter: verdict(run) for letter, run in runs.items()}


class NormNeverRead(Mistake, exercise="verdicts"):
    """The norm of the gradients is not read, and gradients that are never zeroed look like a
    learning rate that is too high: a sum over all updates makes the norm grow without end."""

    def verdicts(runs):
        def verdict(run):
            learned, unseen = run["train"][-5:].mean(), run["held_out"][-5:].mean()
            if run["norm"][0] < 0.4:
                return "softmax twice"
            if run["train"].max() > 2.7:
                return "learning rate too high"
            if unseen < 1.1:
                return "targets not shifted" if run["held_out"][3] < 0.3 else "no mask"
            if learned < 1.2:
                return "always the same batch"
            if unseen > 2.25:
                return "learning rate too low"
            return "dropout in evaluation" if learned - unseen < 0.14 else "nothing"

        return {letter: verdict(run) for letter, run in runs.items()}


class PlateauTakenForSlow(Mistake, exercise="verdicts"):
    """A loss that hangs well above the best possible one is put down to a low learning rate; with a
    low rate it would still be falling, and the gradient would not begin so short."""

    def verdicts(runs):
        def verdict(run):
            learned, unseen = run["train"][-5:].mean(), run["held_out"][-5:].mean()
            if run["norm"][-1] > 5:
                return "gradients never zeroed"
            if run["norm"][0] < 0.4:
                return "learning rate too low"
            if run["train"].max() > 2.7:
                return "learning rate too high"
            if unseen < 1.1:
                return "targets not shifted" if run["held_out"][3] < 0.3 else "no mask"
            if learned < 1.2:
                return "always the same batch"
            if unseen > 2.25:
                return "learning rate too low"
            return "dropout in evaluation" if learned - unseen < 0.14 else "nothing"

        return {letter: verdict(run) for letter, run in runs.items()}


class SlowTakenForBroken(Mistake, exercise="verdicts"):
    """A loss that hardly moves is put down to the softmax; with a softmax too many the norm of the
    gradient is a tenth of what it should be, with a low rate it is as long as ever."""

    def verdicts(runs):
        def verdict(run):
            learned, unseen = run["train"][-5:].mean(), run["held_out"][-5:].mean()
            if run["norm"][-1] > 5:
                return "gradients never zeroed"
            if run["norm"][0] < 0.4:
                return "softmax twice"
            if run["train"].max() > 2.7:
                return "learning rate too high"
            if unseen < 1.1:
                return "targets not shifted" if run["held_out"][3] < 0.3 else "no mask"
            if learned < 1.2:
                return "always the same batch"
            if unseen > 2.25:
                return "softmax twice"
            return "dropout in evaluation" if learned - unseen < 0.14 else "nothing"

        return {letter: verdict(run) for letter, run in runs.items()}


class LettersByHeart(Mistake, exercise="verdicts"):
    """The answer is the order of the runs that were shown; other runs come in another order, so it
    has to be read from the curves."""

    def verdicts(runs):
        names = (
            "nothing",
            "targets not shifted",
            "no mask",
            "learning rate too high",
            "learning rate too low",
            "gradients never zeroed",
            "softmax twice",
            "always the same batch",
            "dropout in evaluation",
        )
        return {letter: names[place % 9] for place, letter in enumerate(runs)}
