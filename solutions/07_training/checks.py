"""What is graded in chapter 07, training.

The oracles are torch's own optimizer, losses and counter of operations, and rules worked out one
step at a time. The curves of the last exercise are those of small models that are trained while the
check runs: nobody has seen them before, and no file holds an answer.
"""

import functools
import itertools
import math
import re
from collections import Counter
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch.optim.adamw import adamw
from torch.utils.flop_counter import FlopCounterMode

from classroom.calls.lending import Refused
from classroom.calls.subject import Crashed
from classroom.exercise.comparing import describe, differs
from classroom.exercise.diagnosis import Crash, asking, asks_for
from classroom.exercise.expect import (
    CheckFailed,
    exercise,
    expect,
    expect_agrees,
    expect_answer,
    expect_inputs_unchanged,
    expect_law,
    expect_test_judges,
    points,
)
from classroom.exercise.prepared import observing, oracle

# 7.10 -----------------------------------------------------------------------------------------


def bytes_of(word):
    return [bytes([byte]) for byte in word]


def merge(pieces, pair):
    """Join a pair of neighbours wherever it stands, from left to right."""
    joined, place = [], 0
    while place < len(pieces):
        width = 2 if tuple(pieces[place : place + 2]) == pair else 1
        joined.append(b"".join(pieces[place : place + width]))
        place += width
    return joined


@oracle
def merges_oracle(words, num_merges):
    """Give each merge, and how often each pair can be merged at that point."""
    spelled, merges = [bytes_of(word) for word in words], []
    for _ in range(num_merges):
        counts = Counter()
        for pieces in spelled:
            for pair in set(zip(pieces, pieces[1:], strict=False)):
                counts[pair] += len(pieces) - len(merge(pieces, pair))
        if not counts:
            break
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        merges.append((best, sorted(counts.items())))
        spelled = [merge(pieces, best) for pieces in spelled]
    return merges


def learned(words, num_merges):
    return [best for best, _ in merges_oracle(words, num_merges)]


def judge_merges(seen, words, num_merges):
    if not isinstance(seen, (list, tuple)) or any(len(pair) != 2 for pair in seen):
        return f"`byte_pairs` should return a list of pairs; it returned {describe(seen)}"
    expected = merges_oracle(words, num_merges)
    for place, (pair, (right, counts)) in enumerate(zip(seen, expected, strict=False)):
        if tuple(pair) != right:
            times = dict(counts)
            why = f"these can be merged {times.get(tuple(pair), 0)} and {times[right]} times here"
            return f"merge {place} is {tuple(pair)}, expected {right}: {why}"
    if len(seen) != len(expected):
        return f"there are {len(seen)} merges, expected {len(expected)}"
    return None


@oracle
def words_oracle(text):
    return [word.encode() for word in re.findall(r" ?\w+| ?[^\w\s]+|\s", text)]


def judge_words(seen, text):
    expected = words_oracle(text)
    if not isinstance(seen, (list, tuple)) or not all(isinstance(word, bytes) for word in seen):
        return f"`split_words` should return a list of bytes; it returned {describe(seen)}"
    if list(seen) != expected:
        return f"the text {text!r} is split into {list(seen)}, expected {expected}"
    return None


@oracle
def ids_oracle(text, merges, special_tokens=()):
    id_of = {token: number for number, token in enumerate(vocabulary(merges, special_tokens))}
    ids = []
    listed = "|".join(map(re.escape, special_tokens))
    for part in re.split(f"({listed})", text) if listed else [text]:
        if part in special_tokens:
            ids.append(id_of[part.encode()])
            continue
        for word in words_oracle(part):
            ids += [id_of[piece] for piece in pieces_oracle(word, merges)]
    return ids


def vocabulary(merges, special_tokens=()):
    """Return the bytes of each token: all bytes, the merges, the special tokens."""
    merged = [first + second for first, second in merges]
    return [*bytes_of(range(256)), *merged, *(token.encode() for token in special_tokens)]


def judge_ids(seen, text, merges, special_tokens=()):
    expected, tokens = ids_oracle(text, merges, special_tokens), vocabulary(merges, special_tokens)

    def named(ids):
        names = {i: f"{i} ({token})" for i, token in enumerate(tokens)}
        return f"[{', '.join(names.get(i, str(i)) for i in ids)}]"

    if not isinstance(seen, (list, tuple)) or not all(type(i) is int for i in seen):
        return f"`encode` should return a list of ids; it returned {describe(seen)}"
    if list(seen) != expected:
        asked = f" with the special tokens {list(special_tokens)}" if special_tokens else ""
        return f"the text {text!r} is encoded{asked} as {named(seen)}, expected {named(expected)}"
    return None


@oracle
def text_oracle(ids, merges, special_tokens=()):
    tokens = vocabulary(merges, special_tokens)
    return b"".join(tokens[i] for i in ids).decode(errors="replace")


def judge_text(seen, ids, merges, special_tokens=()):
    expected, tokens = text_oracle(ids, merges, special_tokens), vocabulary(merges, special_tokens)
    if seen != expected:
        return (
            f"the tokens {[tokens[i] for i in ids]} are decoded as {seen!r}, expected {expected!r}"
        )
    return None


@oracle
def pieces_oracle(word, merges):
    return functools.reduce(merge, merges, bytes_of(word))


def judge_pieces(seen, word, merges):
    expected = pieces_oracle(word, merges)
    if not isinstance(seen, (list, tuple)):
        return f"`apply_merges` should return a list of pieces; it returned {describe(seen)}"
    if list(seen) != expected:
        return f"the word {word} is split into {list(seen)}, expected {expected}"
    return None


def letters(case, count):
    """Draw different letters, in no order."""
    rest = list("abcdefghijklmnopqrstuvwxyz")
    return [rest.pop(case.integer(0, len(rest) - 1)) for _ in range(count)]


def drawn_words(case):
    (*alphabet, y, z), longest = letters(case, 5), case.size("longest", 9, smallest=2)
    words = [
        "".join(alphabet[case.integer(0, 2)] for _ in range(case.integer(min(4, longest), longest)))
        for _ in range(case.size("words", 10, smallest=1))
    ]
    return as_bytes([*words, *words[:2], *[y + z] * 3 * len(words)])


def as_bytes(words):
    return [word.encode() for word in words]


SCRIPTS = ["naïve", "日本", "🙂", "e\u0301", "Ж", "it's", "42", "_", "—!", "x"]
SPACES = [" ", "  ", "\n", "\t", "\r\n"]
SPECIAL_TOKENS = ["<|end|>", "<|pad|>"]


def drawn_text(case):
    """Draw words of several scripts with different spaces, and a special token between them."""
    drawn = case.shuffled(SCRIPTS)[: case.size("pieces", 6, smallest=2)]
    gaps = [*case.shuffled(SPACES), *case.shuffled(SPACES)]
    drawn = [part for pair in zip(drawn, gaps, strict=False) for part in pair]
    return "".join([*drawn, SPECIAL_TOKENS[case.integer(0, 1)], *drawn[:2]])


def drawn_merges(case):
    """Draw merges of characters, and of bytes that are no character."""
    pairs = ["🙂".encode()[1:3], "Ж".encode(), b" x", b"42", b"na", "日".encode()[:2], b"it", b" n"]
    return [(pair[:1], pair[1:]) for pair in case.shuffled(pairs)]


@exercise(
    "byte_pairs",
    number="7.10",
    title="Byte-pair encoding",
    asks="Write a tokenizer: `split_words` cuts a text into words of bytes, `byte_pairs` learns "
    "which pairs of neighbours to merge, the most frequent one first, `apply_merges` applies them "
    "to a word, `encode` turns any text into ids, and `decode` turns ids into text.",
    difficulty=3,
    importance=2,
    minutes=60,
    deeper=True,
)
class TestBytePairs:
    @points(2)
    def test_the_most_frequent_pair_is_merged_and_counts_are_updated(self, subject, case):
        def inputs(case):
            return drawn_words(case), case.size("num_merges", 6)

        def twice_in_a_word(case):
            v, w, x, y, z = letters(case, 5)
            often = case.integer(3, 5)
            others = [y + z] * case.integer(often + 1, 2 * often - 1)
            return as_bytes([w + x + v + w + x] * often + others), 1

        expect_law(subject, case, "byte_pairs", inputs, judge_merges, correct=learned)
        expect_law(subject, case, "byte_pairs", twice_in_a_word, judge_merges, correct=learned)

    @points(1)
    def test_overlapping_pairs_are_not_counted_twice(self, subject, case):
        def inputs(case):
            y, z, x = sorted(letters(case, 3))  # a tie would go to y, z
            often = case.integer(3, 5)
            others = [y + z] * case.integer(often + 1, 2 * often - 1)
            return as_bytes([3 * x] * often + others + [z + y]), 1

        def longer_runs(case, length):
            """Two runs in each word, and pairs that tell several wrong counts of theirs from right.

            Once for each word, once for each run, or half of all neighbours, rounded.
            """
            v, w, x, y, z, t, u = letters(case, 7)
            often = case.integer(3, 5)
            others = [v + w] * case.integer(often + 1, 2 * often - 1)
            others += [t + u] * case.integer(2 * often + 1, 3 * often - 1)
            others += [y + z] * case.integer(3 * often + 1, 4 * often - 1)
            return as_bytes([length * x + z + length * x] * often + others), 3

        expect_law(subject, case, "byte_pairs", inputs, judge_merges, correct=learned)
        for length in (4, 5):
            draw = partial(longer_runs, length=length)
            expect_law(subject, case, "byte_pairs", draw, judge_merges, correct=learned)

    @points(1)
    def test_ties_go_to_the_alphabetically_first_pair(self, subject, case):
        def inputs(case):
            a, b, c, *others = sorted(letters(case, 6))
            often = case.integer(2, 4)
            words = [b + others[0], a + others[1], c + others[2]]
            return as_bytes(words * often), 2

        def inputs_of_two_lengths(case):
            a, b, c, z = sorted(letters(case, 4))
            return as_bytes([a + z, a + b + c] * case.integer(2, 4)), 2

        expect_law(subject, case, "byte_pairs", inputs, judge_merges, correct=learned)
        expect_law(
            subject, case, "byte_pairs", inputs_of_two_lengths, judge_merges, correct=learned
        )

    @points(1)
    def test_pairs_do_not_cross_word_boundaries(self, subject, case):
        def inputs(case):
            first, last, *middle = letters(case, 3 + case.size("words", 4, smallest=3))
            return as_bytes(2 * [first + letter + last for letter in middle]), 2

        expect_law(subject, case, "byte_pairs", inputs, judge_merges, correct=learned)

    @points(1)
    def test_merging_stops_when_no_pair_is_left(self, subject, case):
        def inputs(case):
            word = "".join(letters(case, 4))
            return as_bytes([word, word[:2], "".join(letters(case, 3))]), 20

        expect_law(subject, case, "byte_pairs", inputs, judge_merges, correct=learned)

    @points(1)
    def test_words_keep_the_space_before_them(self, subject, case):
        def inputs(case):
            first, second, *rest = letters(case, 5)
            word = first + str(case.integer(10, 99))
            return (f"{word} {second}_{first}  {''.join(rest)}, ({first}!)\n\t{word} ",)

        expect_law(subject, case, "split_words", inputs, judge_words, correct=words_oracle)

    @points(2)
    def test_merges_are_applied_in_the_order_learned(self, subject, case):
        def inputs(case):
            w, x, y, z = as_bytes(letters(case, 4))
            merges = [(y, z), (x, y + z), (x, y), (w, x), (z, w), (w, w)]
            # What is merged here depends on whether one goes by the order, by places, by lengths
            # or, with what is at the end, by what is frequent, and from which side one begins.
            word = x + y + z + w + x + y + z + z + w + x
            tail = b"".join([w, x, y, z][case.integer(0, 3)] for _ in range(6))
            return word + tail + 6 * (w + x) + 3 * w, merges

        expect_law(subject, case, "apply_merges", inputs, judge_pieces, correct=pieces_oracle)

    @points(1)
    def test_encoding_merges_inside_words_only(self, subject, case):
        def inputs(case):
            x, y, z = as_bytes(letters(case, 3))
            merges = [(b" ", x), (x, b"!"), (y, b" "), (z, b" "), (b"!", y)]
            return (case.size("times", 3) * (y + b" " + x + b"!" + z + b" ")).decode(), merges

        expect_law(subject, case, "encode", inputs, judge_ids, correct=ids_oracle)

    @points(1)
    def test_special_tokens_get_their_own_ids_only_when_listed(self, subject, case):
        def inputs(case):
            x, y, z = letters(case, 3)
            end, pad = case.shuffled(SPECIAL_TOKENS)
            merges = [(b"<", b"|"), (x.encode(), y.encode()), (b"|", b">"), (b">", z.encode())]
            return f"{pad}{x}{y} {end}{z}{end}{end} {x}", merges, [end, pad]

        def unlisted(case):
            text, merges, special_tokens = inputs(case)
            return text, merges, special_tokens[:1]

        expect_law(subject, case, "encode", inputs, judge_ids, correct=ids_oracle)
        expect_law(subject, case, "encode", unlisted, judge_ids, correct=ids_oracle)

    @points(1)
    def test_decoding_joins_the_bytes_of_all_tokens_first(self, subject, case):
        def inputs(case):
            merges = drawn_merges(case)
            return ids_oracle(drawn_text(case), merges, SPECIAL_TOKENS), merges, SPECIAL_TOKENS

        expect_law(subject, case, "decode", inputs, judge_text, correct=text_oracle)

    @points(1)
    def test_bytes_that_are_no_character_are_decoded_too(self, subject, case):
        ids = [*"Ж日🙂é".encode()]
        cut = case.integer(1, len(ids) - 1)
        args = [*ids[cut:], case.integer(97, 122), *ids[:cut], 255], drawn_merges(case)

        def judge(seen):
            if isinstance(seen, Crash):
                return f"for ids that are invalid UTF-8, `decode` raised {seen.kind}: {seen.text}"
            return judge_text(seen, *args)

        expect_answer(subject, case, [asks_for("decode", args)], judge, may_crash=True)

    @points(1)
    def test_any_text_is_restored_from_its_ids(self, subject, case):
        def inputs(case):
            return drawn_text(case), drawn_merges(case), SPECIAL_TOKENS[: case.integer(0, 2)]

        def ids(case):
            text, *others = inputs(case)
            return ids_oracle(text, *others), *others

        expect_law(subject, case, "encode", inputs, judge_ids, correct=ids_oracle)
        expect_law(subject, case, "decode", ids, judge_text, correct=text_oracle)
        for name, empty, judge in (("encode", "", judge_ids), ("decode", [], judge_text)):
            args = empty, drawn_merges(case), SPECIAL_TOKENS

            def judge_empty(seen, name=name, args=args, judge=judge):
                if isinstance(seen, Crash):
                    return f"for {args[0]!r}, `{name}` raised {seen.kind}: {seen.text}"
                return judge(seen, *args)

            expect_answer(subject, case, [asks_for(name, args)], judge_empty, may_crash=True)


# 7.1 ------------------------------------------------------------------------------------------


def whole_numbers(case, count, highest):
    return torch.tensor([case.integer(0, highest) for _ in range(count)])


def nothing_held_out(case):
    return whole_numbers(case, case.size("num_tokens", 29, smallest=4), 96), 0


def cut_inputs(case):
    num_tokens = case.size("num_tokens", 29, smallest=4)
    return whole_numbers(case, num_tokens, 96), case.integer(2, max(2, num_tokens // 3))


@oracle
def cut_oracle(tokens, num_held_out):
    return tokens.split([len(tokens) - num_held_out, num_held_out])


def judge_nothing_held_out(seen, tokens, num_held_out):
    if not isinstance(seen, (tuple, list)) or len(seen) != 2:
        return f"`cut` should return (train, held_out); it returned {describe(seen)}"
    labels = ("train", "held_out")
    for label, part, right in zip(labels, seen, cut_oracle(tokens, num_held_out), strict=True):
        if len(part) != len(right):
            return (
                f"with num_held_out = 0, {label} has {len(part)} of the {len(tokens)} tokens, "
                f"expected {len(right)}"
            )
        if problem := differs(label, part, right):
            return problem
    return None


def start_inputs(case):
    length, extra = case.size("length", 5), case.size("extra", 8)
    # Rounded to one decimal in a small case, and printed with four digits, all are still below 1.
    inner = case.uniform(case.size("batch", 7), high=0.94)
    # The third still gives position 0, and the nearest one is 1.
    edges = torch.tensor([0.0, 0.9999, 0.9 / extra], dtype=torch.float64)
    return torch.cat([edges, inner]), length + extra, length


@oracle
def start_oracle(draws, num_tokens, length):
    possible = [s for s in range(num_tokens) if s + length <= num_tokens - 1]
    return torch.tensor([possible[int(draw * len(possible))] for draw in draws.tolist()])


def batch_inputs(case):
    """Draw windows that end before the text does: targets too far ahead still exist."""
    length, extra = case.size("length", 5), case.size("extra", 24, smallest=2)
    starts = whole_numbers(case, case.size("batch", 3), extra - 2)
    return whole_numbers(case, length + extra, 96), starts, length


def batch_inputs_with_the_last_window(case):
    tokens, starts, length = batch_inputs(case)
    starts[-1] = case.asked["extra"] - 1
    return tokens, starts, length


@oracle
def batch_oracle(tokens, starts, length):
    windows = tokens.unfold(0, length + 1, 1)[starts]
    return windows[:, :-1], windows[:, 1:]


BATCH = {"inputs": "batch length", "targets": "batch length"}


@exercise(
    "get_batch",
    number="7.1",
    title="Batches without leaks",
    asks="`cut` splits a text into a training part and a held-out part; `starts_from` turns "
    "random numbers into positions where windows can begin; `get_batch` returns the windows "
    "and the token after each of their tokens.",
    difficulty=1,
    importance=5,
    minutes=20,
)
class TestGetBatch:
    @points(2)
    def test_exactly_the_end_of_the_text_is_held_out(self, subject, case):
        returns = {"train": "num_train", "held_out": "num_held_out"}
        expect_agrees(subject, case, "cut", cut_inputs, cut_oracle, returns)
        expect_law(
            subject, case, "cut", nothing_held_out, judge_nothing_held_out, correct=cut_oracle
        )

    @points(2)
    def test_windows_may_start_wherever_they_and_their_targets_fit(self, subject, case):
        returns = {"starts": "batch"}
        expect_agrees(subject, case, "starts_from", start_inputs, start_oracle, returns)

    @points(1)
    def test_windows_start_at_the_given_positions(self, subject, case):
        expect_agrees(
            subject, case, "get_batch", batch_inputs, batch_oracle, BATCH, compare=["inputs"]
        )

    @points(3)
    def test_each_target_is_the_next_token(self, subject, case):
        for inputs in (batch_inputs, batch_inputs_with_the_last_window):
            expect_agrees(subject, case, "get_batch", inputs, batch_oracle, BATCH)


# 7.2 ------------------------------------------------------------------------------------------


def settings(case):
    # Whole numbers of hundredths and thousandths, which stay what they are in a small case: with one
    # decimal, a beta would be 1 and a rate 0.
    return (
        case.integer(10, 100) / 1000,
        case.integer(80, 95) / 100,
        case.integer(960, 990) / 1000,
        case.integer(1, 10) / 1000,
        case.integer(10, 50) / 100,
    )


def shape_of(case):
    return case.size("rows", 3), case.size("columns", 5)


def first_update(case):
    shape = shape_of(case)
    zeros = torch.zeros(shape, dtype=torch.float64)
    return case.normal(*shape), case.normal(*shape), zeros, zeros.clone(), 1, *settings(case)


def later_update(case):
    shape = shape_of(case)
    mean_square = case.uniform(*shape, low=0.5, high=2.0)
    tensors = case.normal(*shape), case.normal(*shape), case.normal(*shape), mean_square
    tensors[1][-1, -1] = 0.0  # what was averaged before moves this entry
    return *tensors, case.integer(11, 30), *settings(case)


@oracle
def update_oracle(
    parameter, gradient, mean, mean_square, step, lr, beta1, beta2, eps, weight_decay
):
    weight, mean, mean_square = parameter.clone(), mean.clone(), mean_square.clone()
    # What torch's optimizer calls in the end. Making the optimizer itself takes seconds once,
    # because it imports the compiler.
    adamw(
        *([tensor] for tensor in (weight, gradient, mean, mean_square)),
        [],
        [torch.tensor(step - 1.0)],
        foreach=False,
        amsgrad=False,
        maximize=False,
        beta1=beta1,
        beta2=beta2,
        lr=lr,
        eps=eps,
        weight_decay=weight_decay,
    )
    return weight, mean, mean_square


@oracle
def torch_run(parameter, gradients, rates, *constants):
    """Update a parameter by each gradient in turn, from averages of zero on."""
    values = (parameter, torch.zeros_like(parameter), torch.zeros_like(parameter))
    for step, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        values = update_oracle(values[0], gradient, *values[1:], step, rate, *constants)
    return values[0]


def run_of_updates(given):
    """Ask a subject for the same, one update after the other."""
    parameter, gradients, rates, *constants = given

    def request(subject):
        values = (parameter, torch.zeros_like(parameter), torch.zeros_like(parameter))
        for step, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
            now, *moments = values
            values = subject.call("adamw_step", now, gradient, *moments, step, rate, *constants)
            if not isinstance(values, (tuple, list)) or len(values) != 3:
                return values
        return values[0]

    return request


UPDATED = {"parameter": "rows columns", "mean": "rows columns", "mean_square": "rows columns"}


@exercise(
    "adamw_step",
    number="7.2",
    title="AdamW by hand",
    by_hand=True,
    asks="Return (parameter, mean, mean_square) after one AdamW update, without torch.optim.",
    difficulty=3,
    importance=5,
    minutes=20,
)
class TestAdamwStep:
    @points(2)
    def test_the_first_update_matches_torch(self, subject, case):
        expect_agrees(subject, case, "adamw_step", first_update, update_oracle, UPDATED)

    @points(1)
    def test_both_moving_averages_are_updated_correctly(self, subject, case):
        averages = ["mean", "mean_square"]
        expect_agrees(
            subject, case, "adamw_step", later_update, update_oracle, UPDATED, compare=averages
        )

    @points(2)
    def test_a_later_update_matches_torch(self, subject, case):
        expect_agrees(
            subject, case, "adamw_step", later_update, update_oracle, UPDATED, compare=["parameter"]
        )

    @points(1)
    def test_a_zero_gradient_leaves_only_weight_decay(self, subject, case):
        def inputs(case):
            parameter, gradient, *rest = first_update(case)
            return parameter, torch.zeros_like(gradient), *rest

        expect_agrees(subject, case, "adamw_step", inputs, update_oracle, UPDATED)

    @points(2)
    def test_six_updates_in_a_row_match_torch(self, subject, case):
        def draw(case):
            shape = shape_of(case)[1:]  # a vector, such as a bias
            rates = case.uniform(6, low=0.01, high=0.1).tolist()
            _, *constants = settings(case)
            return case.normal(*shape), list(case.normal(6, *shape)), rates, *constants

        given = draw(case)

        def judge(seen):
            if not isinstance(seen, torch.Tensor):
                return f"`adamw_step` should return three tensors; it returned {describe(seen)}"
            return differs("the parameter after six updates", seen, torch_run(*given))

        others = [draw(case.fresh(i)) for i in range(2)]
        expect_answer(subject, case, [run_of_updates(g) for g in (given, *others)], judge)

    @points(1, only_with="test_a_later_update_matches_torch")
    def test_inputs_are_not_modified(self, subject, case):
        expect_inputs_unchanged(subject, case, "adamw_step", later_update)


# 7.3 ------------------------------------------------------------------------------------------


@oracle
def rate_oracle(step, peak, warmup_steps, total_steps, final):
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    gone = min((step - warmup_steps) / (total_steps - 1 - warmup_steps), 1.0)
    return final + (peak - final) * 0.5 * (1.0 + math.cos(math.pi * gone))


def schedule(case):
    """Draw a peak, both numbers of steps and a final rate."""
    peak, share = float(case.uniform(low=0.5, high=2.0)), float(case.uniform(low=0.05, high=0.3))
    warmup_steps = case.integer(4, 9)
    return peak, warmup_steps, warmup_steps + case.integer(8, 20), share * peak


def at(place, case):
    """Draw a schedule, and give the step that `place` finds in it."""
    peak, warmup_steps, total_steps, final = schedule(case)
    return place(case, warmup_steps, total_steps), peak, warmup_steps, total_steps, final


@exercise(
    "learning_rate",
    number="7.3",
    title="Warm-up and cosine decay",
    asks="Return the learning rate of one update: a linear rise, then a decay along half a cosine.",
    difficulty=2,
    importance=4,
    minutes=15,
)
class TestLearningRate:
    @points(2)
    def test_the_learning_rate_rises_linearly_during_warmup(self, subject, case):
        self.compare(subject, case, lambda case, warmup, total: case.integer(0, warmup - 1))

    @points(1)
    def test_the_first_update_has_a_small_nonzero_learning_rate(self, subject, case):
        def inputs(case):
            peak, warmup_steps, total_steps, _ = schedule(case)
            return 0, peak, warmup_steps, total_steps, peak / 2  # lower than the final rate

        expect_agrees(subject, case, "learning_rate", inputs, rate_oracle, {"rate": ""})

    @points(1, only_with="test_the_learning_rate_rises_linearly_during_warmup")
    def test_the_learning_rate_peaks_right_after_warmup(self, subject, case):
        self.compare(subject, case, lambda case, warmup, total: warmup)

    @points(2)
    def test_the_learning_rate_decays_along_half_a_cosine(self, subject, case):
        self.compare(subject, case, lambda case, warmup, total: total - 2)
        self.compare(subject, case, lambda case, warmup, total: case.integer(warmup + 1, total - 2))

    @points(1, only_with="test_the_learning_rate_decays_along_half_a_cosine")
    def test_the_last_update_has_the_final_learning_rate(self, subject, case):
        self.compare(subject, case, lambda case, warmup, total: total - 1)

    @points(1, only_with="test_the_learning_rate_decays_along_half_a_cosine")
    def test_after_the_last_update_the_learning_rate_stays_constant(self, subject, case):
        self.compare(
            subject, case, lambda case, warmup, total: total + case.integer(1, total - warmup - 2)
        )
        # A rate that goes on along the cosine is ruled out; here it may end one step later.
        others = tuple(m for m in case.mistakes if m.name != "RateRisesAgain")
        case = replace(case, mistakes=others)
        self.compare(subject, case, lambda case, warmup, total: total)

    @points(1, only_with="test_the_learning_rate_decays_along_half_a_cosine")
    def test_without_warmup_the_decay_begins_at_step_0(self, subject, case):
        def inputs(case):
            peak, _, total_steps, final = schedule(case)
            return case.integer(0, 2), peak, 0, total_steps, final

        expect_agrees(subject, case, "learning_rate", inputs, rate_oracle, {"rate": ""})

    def compare(self, subject, case, place):
        inputs = partial(at, place)
        expect_agrees(subject, case, "learning_rate", inputs, rate_oracle, {"rate": ""})


# 7.4 ------------------------------------------------------------------------------------------


def drawn_gradients(case):
    """Draw gradients of different sizes, whose global norm is between 5 and 14."""
    rows, columns = case.size("rows", 3), case.size("columns", 5)
    return [
        case.normal(rows, columns, std=2.0),
        case.normal(case.size("features", 7)),
        case.normal(2, columns, rows, std=0.1),  # shorter by itself than any max_norm
    ]


@oracle
def length_of(gradients):
    return float(torch.cat([g.flatten() for g in gradients if g is not None]).norm())


def to_be_clipped(case):
    return drawn_gradients(case), float(case.uniform(low=1.0, high=3.0))


def short_enough(case):
    return drawn_gradients(case), float(case.uniform(low=15.0, high=20.0))


def with_a_frozen_parameter(case):
    (first, *others), max_norm = to_be_clipped(case)
    return [first, None, *others], max_norm


def with_a_frozen_parameter_and_short(case):
    (first, *others), max_norm = short_enough(case)
    return [first, None, *others], max_norm


# How torch's own function divides, by a norm that is larger by 1e-6, passes as well.
ROUNDING = 1e-5


def judge_form(seen, gradients):
    if not isinstance(seen, (tuple, list)) or len(seen) != 2:
        return f"`clip_gradients` should return (clipped, norm); it returned {describe(seen)}"
    clipped = seen[0]
    if not isinstance(clipped, (tuple, list)) or len(clipped) != len(gradients):
        return f"clipped should have length {len(gradients)}; it is {describe(clipped)}"
    return None


@oracle
def clipped_oracle(gradients, max_norm):
    norm = length_of(gradients)
    factor = min(1.0, max_norm / norm) if norm > 0 else 1.0
    return [gradient if gradient is None else gradient * factor for gradient in gradients]


def both_oracle(gradients, max_norm):
    return clipped_oracle(gradients, max_norm), length_of(gradients)


def judge_clipped(seen, gradients, max_norm):
    if problem := judge_form(seen, gradients):
        return problem
    norm, right = length_of(gradients), clipped_oracle(gradients, max_norm)
    for place, (s, gradient) in enumerate(zip(seen[0], gradients, strict=True)):
        if gradient is None:
            continue
        label = f"gradient {place} of {len(gradients)}"
        if not isinstance(s, torch.Tensor) or s.shape != gradient.shape:
            return f"{label} should be a tensor of shape {tuple(gradient.shape)}"
        if problem := differs(label, s, right[place], ROUNDING):
            return f"{problem} (the global norm is {norm:.4g}, max_norm {max_norm:.4g})"
    return None


def judge_norm(seen, gradients, max_norm):
    if problem := judge_form(seen, gradients):
        return problem
    if isinstance(seen[1], torch.Tensor) and seen[1].dtype != gradients[0].dtype:
        return f"norm has dtype {seen[1].dtype}, but the gradients have {gradients[0].dtype}"
    return differs("norm", seen[1], length_of(gradients), ROUNDING)


CRASHED = "it raised an error"


def clipped_or_crashed(subject, gradients, max_norm):
    """Ask for the result, or for whether there is one: None can be stumbled over in many ways."""
    try:
        return subject.call("clip_gradients", gradients, max_norm)
    except Crashed:
        return CRASHED


REFUSED = "it raised a ValueError"


def clipped_or_refused(subject, gradients, max_norm):
    """Ask for the result, or for whether it is refused, in whatever words."""
    try:
        return subject.call("clip_gradients", gradients, max_norm)
    except Crashed as error:
        if error.kind != "ValueError":
            raise
        return REFUSED


def judge_frozen(seen, gradients, max_norm):
    if problem := judge_form(seen, gradients):
        return problem
    for place, (s, gradient) in enumerate(zip(seen[0], gradients, strict=True)):
        if gradient is None and s is not None:
            return f"parameter {place} is frozen, so its gradient is None, but you return " + (
                describe(s)
            )
    return judge_clipped(seen, gradients, max_norm)


@exercise(
    "clip_gradients",
    number="7.4",
    title="Gradient clipping by the global norm",
    asks="Return (clipped, norm): all gradients scaled down together if their global norm "
    "exceeds max_norm, and the norm before clipping.",
    difficulty=2,
    importance=4,
    minutes=15,
)
class TestClipGradients:
    @points(2)
    def test_large_gradients_keep_their_direction_and_get_max_norm(self, subject, case):
        expect_law(
            subject, case, "clip_gradients", to_be_clipped, judge_clipped, correct=both_oracle
        )

    @points(1, only_with="test_large_gradients_keep_their_direction_and_get_max_norm")
    def test_gradients_below_the_maximum_norm_are_unchanged(self, subject, case):
        expect_law(
            subject, case, "clip_gradients", short_enough, judge_clipped, correct=both_oracle
        )

    @points(1)
    def test_the_returned_norm_is_the_global_norm_before_clipping(self, subject, case):
        expect_law(subject, case, "clip_gradients", to_be_clipped, judge_norm, correct=both_oracle)

    @points(1, only_with="test_large_gradients_keep_their_direction_and_get_max_norm")
    def test_the_gradient_of_a_frozen_parameter_stays_none(self, subject, case):
        draws = with_a_frozen_parameter, with_a_frozen_parameter_and_short
        for draw, other in (draws, draws[::-1]):
            self.compare_frozen(subject, case, draw, other)

    def compare_frozen(self, subject, case, draw, other):
        given = draw(case)

        def judge(seen):
            raised = "it raised an error for a frozen parameter, whose gradient is None"
            return raised if seen == CRASHED else judge_frozen(seen, *given)

        def explain(problem, mistakes, example):
            try:
                subject.call("clip_gradients", *given)
            except Crashed as error:
                problem = str(error)
                if "None" in error.text:
                    problem = "parameter 1 is frozen, so its gradient is None, and `clip_gradients`"
                    problem += f" raised {error.kind}: {error.text}{error.where}"
            return problem, mistakes, example

        # Code that crashes on None is recognised if it is right without one.
        others = [draw(case.fresh(0)), other(case.fresh(1))]
        others += [to_be_clipped(case.fresh(i)) for i in range(2)]
        requests = [asking(clipped_or_crashed, *one) for one in (given, *others)]
        try:
            expect_answer(subject, case, requests, judge)
        except CheckFailed as failed:
            failed.further(explain)
            raise

    @points(1, only_with="test_large_gradients_keep_their_direction_and_get_max_norm")
    def test_zero_gradients_stay_zero(self, subject, case):
        def inputs(case):
            return [0 * gradient for gradient in drawn_gradients(case)], 2.5

        expect_law(subject, case, "clip_gradients", inputs, judge_clipped, correct=both_oracle)

    @points(1, only_with="test_large_gradients_keep_their_direction_and_get_max_norm")
    def test_nan_or_infinite_gradients_raise_an_error(self, subject, case):
        requests = []
        # The first gradient, which is all that some look at, only tells such mistakes apart.
        places = *case.shuffled((1, 2)), 0
        for place, bad in zip(places, (math.nan, math.inf, math.nan), strict=True):
            gradients = drawn_gradients(case)
            gradients[place].view(-1)[case.integer(1, 6)] = bad
            requests.append(asking(clipped_or_refused, gradients, 1.0))

        for first, held in enumerate(("NaN", "infinite")):

            def judge(seen, held=held):
                said = f"one entry of a gradient is {held}, but "
                if isinstance(seen, Crash):
                    text = f": {seen.text}" if seen.text else ""
                    return f"{said}{seen.kind} was raised instead of ValueError{text}"
                return None if seen == REFUSED else f"{said}no ValueError was raised"

            expect_answer(subject, case, requests[first:] + requests[:first], judge, may_crash=True)

    @points(1, only_with="test_large_gradients_keep_their_direction_and_get_max_norm")
    def test_inputs_are_not_modified(self, subject, case):
        expect_inputs_unchanged(subject, case, "clip_gradients", to_be_clipped)


# 7.5 ------------------------------------------------------------------------------------------

IGNORED = -100


def drawn_parts(case):
    """Draw the maps of a model, a weight, and parts in which more or fewer targets count."""
    d_model, vocab_size, length, hidden = 4, 7, 5, 64
    parts = []
    for batch, share in ((3, 0.2), (2, 0.9), (4, 0.5)):
        targets = whole_numbers(case, batch * length, vocab_size - 1)
        keep = case.uniform(batch * length) < share
        keep[case.integer(0, batch * length - 1)] = True
        targets = targets.where(keep, IGNORED).view(batch, length)
        parts.append((case.normal(batch, length, d_model), targets))
    maps = case.normal(vocab_size, hidden, std=0.2), case.normal(hidden, vocab_size, std=0.2)
    return maps, case.normal(d_model, vocab_size), parts


def with_a_part_that_is_ignored(case):
    """In the part before the ignored one, all that counts is token 0."""
    maps, weight, parts = drawn_parts(case)
    (first, few), (x, targets) = parts[:2]
    ignored = x, torch.full_like(targets, IGNORED)
    return maps, weight, [(first, few.clamp(max=0)), ignored, parts[2]]


def with_ignored_parts_around(case):
    """Of four parts, the first and the last are ignored."""
    maps, weight, (few, ignored, others) = with_a_part_that_is_ignored(case)
    x, targets = drawn_parts(case)[2][2]
    return maps, weight, [ignored, few, others, (x[:1], torch.full_like(targets[:1], IGNORED))]


def with_large_logits(case):
    """Nearly all probabilities are rounded to 0, and the exponentials of logits overflow."""
    (inner, outer), weight, parts = drawn_parts(case)
    return (inner, 400 * outer), weight, parts


def logits_of(maps, weight, x):
    """Apply a model that nobody knows who does not call it: no argument tells its maps."""
    inner, outer = maps
    return (x @ weight @ inner).tanh() @ outer


@oracle
def big_batch(maps, weight, parts):
    """Give the gradient and the loss of all parts at once."""
    x, targets = (torch.cat([part[i].flatten(0, 1) for part in parts]) for i in (0, 1))
    leaf = weight.clone().requires_grad_()
    loss = F.cross_entropy(logits_of(maps, leaf, x), targets, ignore_index=IGNORED)
    return torch.autograd.grad(loss, leaf)[0], loss.detach()


def accumulation(maps, weight, parts, noted=None):
    """Ask for the gradient, the loss, and the most tokens that the model saw at once.

    The calls of the model go to `noted`, in order: of how many tokens, 0 if there was no gradient.
    """

    def request(subject):
        sizes = [0]

        @observing
        def model(weight, x):
            sizes.append(x[..., 0].numel())
            if noted is not None:
                noted.append(sizes[-1] * weight.requires_grad)
            return logits_of(maps, weight, x)

        found = subject.call("accumulated_gradients", subject.lend(model), weight, parts)
        return found, max(sizes)

    return request


def expect_accumulates(subject, case, draw, judge, noted=None):
    """Expect what is found, and the tokens seen at once, to pass `judge`."""
    given = [draw(case), *(draw(case.fresh(i)) for i in range(2))]

    def judge_first(answer):
        found, most = answer
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            return f"`accumulated_gradients` should return (gradient, loss), not {describe(found)}"
        return judge(found, most, *given[0])

    others = [accumulation(*one) for one in given[1:]]
    expect_answer(subject, case, [accumulation(*given[0], noted), *others], judge_first)


def judge_gradient(found, most, maps, weight, parts):
    gradient, _ = found
    if not isinstance(gradient, torch.Tensor) or gradient.shape != weight.shape:
        return f"the gradient should be a tensor of shape {tuple(weight.shape)}"
    return differs("the gradient", gradient, big_batch(maps, weight, parts)[0])


def judge_loss(found, most, maps, weight, parts):
    return differs("the loss", found[1], big_batch(maps, weight, parts)[1])


@exercise(
    "accumulated_gradients",
    number="7.5",
    title="Gradient accumulation",
    asks="Return (gradient, loss) of the mean loss over all targets that count in all parts, "
    "with one part in the model at a time.",
    difficulty=3,
    importance=4,
    minutes=30,
    deeper=True,
)
class TestAccumulatedGradients:
    @points(3)
    def test_the_gradient_equals_that_of_the_full_batch(self, subject, case):
        expect_accumulates(subject, case, drawn_parts, judge_gradient)

    @points(2)
    def test_the_loss_equals_that_of_the_full_batch(self, subject, case):
        expect_accumulates(subject, case, drawn_parts, judge_loss)
        expect_accumulates(subject, case, with_large_logits, judge_loss)

    @points(1, only_with="test_the_gradient_equals_that_of_the_full_batch")
    def test_the_model_processes_one_part_at_a_time(self, subject, case):
        noted = []

        def judge(found, most, maps, weight, parts):
            largest = max(x[..., 0].numel() for x, _ in parts)
            if 0 < most <= largest:
                return None
            return f"the largest part has {largest} tokens, but the model received {most} at once"

        expect_accumulates(subject, case, drawn_parts, judge, noted)
        expect(
            all(one or other for one, other in itertools.pairwise(noted)),
            "the model received a part before the backward pass of the previous one, so the "
            "activations of both were kept in memory: run the backward pass after each part",
        )
        expect(
            not any(one and other for one, other in itertools.pairwise(noted)),
            "the backward pass of a part came right after that of another part, so its "
            "activations were kept in memory until then",
        )
        number = sum(x[..., 0].numel() for x, _ in drawn_parts(case.fresh(0))[2])
        expect(
            sum(noted) >= number,
            f"the parts have {number} tokens, but the model received only {sum(noted)} "
            "with a weight that requires a gradient",
        )

    @points(2)
    def test_a_part_with_only_ignored_targets_adds_nothing(self, subject, case):
        def judge(found, most, *given):
            return judge_gradient(found, most, *given) or judge_loss(found, most, *given)

        expect_accumulates(subject, case, with_a_part_that_is_ignored, judge)
        expect_accumulates(subject, case, with_ignored_parts_around, judge)

    @points(1, only_with="test_the_gradient_equals_that_of_the_full_batch")
    def test_inputs_are_not_modified(self, subject, case):
        model = observing(partial(logits_of, drawn_parts(case.fresh(0))[0]))

        def weight_and_parts(case):
            return drawn_parts(case)[1:]

        expect_inputs_unchanged(subject, case, "accumulated_gradients", weight_and_parts, [model])


# 7.6 ------------------------------------------------------------------------------------------

HALF_DIGITS = 0.012
"""What three roundings to bfloat16 may do, relatively: an answer may round on its way."""


def norm_inputs(dtype, size, case, eps=1e-12):
    batch, length, d_model = case.size("batch", 2), case.size("length", 3), case.size("d_model", 7)
    x = (size * case.normal(batch, length, d_model)).to(dtype)
    return x, (1.0 + case.uniform(d_model)).float(), eps


@oracle
def norm_oracle(x, gain, eps):
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * gain.double()


def rounded_norm(x, gain, eps):
    return norm_oracle(x, gain, eps).to(x.dtype)


def judge_norm_of(seen, x, gain, eps):
    if not isinstance(seen, torch.Tensor) or seen.shape != x.shape:
        return f"`rms_norm` should return a tensor of shape {tuple(x.shape)}, not {describe(seen)}"
    expected = norm_oracle(x, gain, eps)
    if seen.dtype != x.dtype:
        return f"the result has dtype {seen.dtype}, but the input has {x.dtype}"
    problem = differs("the normalised vector", seen, expected, HALF_DIGITS)
    if problem and x.dtype == torch.float16:
        lost = "infinite" if x.square().isinf().any() else "0"
        problem += f" (squares of such entries, taken in float16, would be {lost})"
    return problem


def loss_inputs(case):
    batch, length = case.size("batch", 2), case.size("length", 13)
    vocab_size = case.size("vocab_size", 101, smallest=5)
    # The exponentials of such logits are more than float32 holds.
    logits = case.normal(batch, length, vocab_size, std=50.0).bfloat16()
    return logits, whole_numbers(case, batch * length, vocab_size - 1).view(batch, length)


@oracle
def losses_oracle(logits, targets):
    return F.cross_entropy(logits.double().mT, targets, reduction="none")


def judge_losses(seen, logits, targets):
    if not isinstance(seen, torch.Tensor) or seen.shape != targets.shape:
        shape = tuple(targets.shape)
        return f"`token_losses` should return a tensor of shape {shape}, not {describe(seen)}"
    expected = losses_oracle(logits, targets)
    if problem := differs("the losses", seen, expected, 1e-5):
        return problem
    return (
        None
        if seen.dtype == torch.float32
        else f"the losses should have dtype torch.float32, not {seen.dtype}"
    )


def master_inputs(case):
    shape = case.size("rows", 3), case.size("columns", 5)
    rate = float(case.uniform(low=0.01, high=0.05))
    return case.normal(*shape).float(), case.normal(*shape).bfloat16(), rate


@oracle
def master_oracle(master, gradient, lr):
    return master.double() - lr * gradient.double()


def both_weights(master, gradient, lr):
    new = master_oracle(master, gradient, lr)
    return new.float(), new.bfloat16()


def judge_master(seen, master, gradient, lr):
    if not isinstance(seen, (tuple, list)) or len(seen) != 2:
        return f"`master_step` should return (master, weight); it returned {describe(seen)}"
    expected = master_oracle(master, gradient, lr)
    for label, tensor, dtype, digits in (
        ("master", seen[0], torch.float32, 1e-6),
        ("weight", seen[1], torch.bfloat16, 2.0**-8),
    ):
        if not isinstance(tensor, torch.Tensor) or tensor.shape != master.shape:
            return f"{label} should be a tensor of shape {tuple(master.shape)}"
        if tensor.dtype != dtype:
            return f"{label} has dtype {tensor.dtype}, expected {dtype}"
        if problem := differs(label, tensor, expected, digits):
            return problem
    if problem := differs("weight", seen[1], seen[0].bfloat16(), 1e-3):
        return f"{problem} (expected is the new master that you return, rounded to bfloat16)"
    return None


NUM_TINY_UPDATES = 64


def tiny_updates(master, gradient, lr):
    """Ask for many updates in a row, each of which is lost if it is rounded to bfloat16."""

    def request(subject):
        now = master
        for _ in range(NUM_TINY_UPDATES):
            answer = subject.call("master_step", now, gradient, lr)
            if not isinstance(answer, (tuple, list)) or not isinstance(answer[0], torch.Tensor):
                return answer
            now = answer[0]
        return now

    return request


@exercise(
    "low_precision",
    number="7.6",
    title="Mixed precision: where float32 must stay",
    asks="`rms_norm` computes its mean in float32 and returns the dtype of its input; "
    "`token_losses` computes and returns float32; `master_step` updates weights "
    "that are stored in float32.",
    difficulty=3,
    importance=4,
    minutes=25,
    deeper=True,
)
class TestLowPrecision:
    @points(1)
    def test_rms_norm_handles_squares_that_overflow_float16(self, subject, case):
        inputs = partial(norm_inputs, torch.float16, 900.0)
        expect_law(subject, case, "rms_norm", inputs, judge_norm_of, correct=rounded_norm)

    @points(1)
    def test_rms_norm_handles_squares_that_underflow_in_float16(self, subject, case):
        inputs = partial(norm_inputs, torch.float16, 1e-4)
        expect_law(subject, case, "rms_norm", inputs, judge_norm_of, correct=rounded_norm)

    @points(1)
    def test_rms_norm_adds_eps_under_the_root_and_keeps_the_dtype(self, subject, case):
        inputs = partial(norm_inputs, torch.bfloat16, 1.0, eps=0.5)
        expect_law(subject, case, "rms_norm", inputs, judge_norm_of, correct=rounded_norm)

    @points(2)
    def test_losses_have_full_float32_precision(self, subject, case):
        expect_law(subject, case, "token_losses", loss_inputs, judge_losses, correct=losses_oracle)

    @points(1)
    def test_the_update_is_applied_to_the_float32_weights(self, subject, case):
        expect_law(subject, case, "master_step", master_inputs, judge_master, correct=both_weights)

    @points(1, only_with="test_the_update_is_applied_to_the_float32_weights")
    def test_inputs_are_not_modified(self, subject, case):
        expect_inputs_unchanged(subject, case, "master_step", master_inputs)

    @points(1)
    def test_many_tiny_updates_add_up(self, subject, case):
        def draw(case):
            shape = case.size("rows", 3), case.size("columns", 5)
            # Between two neighbours in bfloat16 that are at least 2**-8 apart.
            return (
                1.0 + case.uniform(*shape).float(),
                (0.5 + case.uniform(*shape)).bfloat16(),
                2.0**-12,
            )

        given = draw(case)

        def judge(seen):
            master, gradient, lr = given
            if not isinstance(seen, torch.Tensor) or seen.shape != master.shape:
                return f"`master_step` should return (master, weight); it returned {describe(seen)}"
            expected = master_oracle(master, gradient, NUM_TINY_UPDATES * lr)
            return differs(f"the master after {NUM_TINY_UPDATES} updates", seen, expected, 1e-4)

        others = [draw(case.fresh(i)) for i in range(2)]
        expect_answer(subject, case, [tiny_updates(*g) for g in (given, *others)], judge)


# 7.9 ------------------------------------------------------------------------------------------


### BEGIN PACKED
def explicit(query, key, value, mask, scale=None):
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(dim=-1) @ value


def fused(query, key, value, mask):
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def in_float64(query, key, value, mask):
    return explicit(query.double(), key.double(), value.double(), mask).to(query.dtype)


def in_float32(query, key, value, mask):
    return fused(query.float(), key.float(), value.float(), mask)


def by_blocks(query, key, value, mask, width=4, keep_last=True, rescale=True):
    """Attend to a few keys at a time, with a running maximum and a running sum."""
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e30)
    highest = torch.full_like(scores[..., :1], -1e30)
    total, mixed = torch.zeros_like(highest), 0.0
    end = key.shape[-2] if keep_last else max(width, key.shape[-2] // width * width)
    for start in range(0, end, width):
        block = scores[..., start : start + width]
        now = torch.maximum(highest, block.amax(dim=-1, keepdim=True))
        weights = (block - now).exp()
        old = (highest - now).exp()
        total = total * old + weights.sum(dim=-1, keepdim=True)
        mixed = mixed * (old if rescale else 1.0) + weights @ value[..., start : start + width, :]
        highest = now
    return mixed / total


def mask_of_the_first(query, key, value, mask):
    if mask is not None and mask.dim() > 2:
        mask = mask[:1]
    return fused(query, key, value, mask)


def as_many_keys_as_queries(query, key, value, mask):
    kept = query.shape[-2]
    mask = mask if mask is None else mask[..., :kept]
    return by_blocks(query, key[..., :kept, :], value[..., :kept, :], mask)


def slope_of_the_keys_doubled(query, key, value, mask):
    return fused(query, 2 * key - key.detach(), value, mask)


def half_precision(query, key, value, mask):
    query, key, value = (tensor.bfloat16().float() for tensor in (query, key, value))
    return explicit(query, key, value, mask)


def where_every_query_sees_a_key(attention):
    """Refuse what is not promised: what a query gets that sees nothing is nowhere agreed upon."""

    def checked(query, key, value, mask):
        if mask is not None and not mask.any(dim=-1).all():
            text = "a query in your mask sees no key; every query must see at least one"
            raise Refused(text, AssertionError)
        return attention(query, key, value, mask)

    return checked


SAME = {
    "written out": explicit,
    "torch's fused attention": fused,
    "in blocks of keys": by_blocks,
    "in float64, and rounded at the end": in_float64,
    "in float32, also of float64 inputs": in_float32,
}
NOT_SAME = {
    "the mask is ignored": lambda query, key, value, mask: explicit(query, key, value, None),
    "every sequence gets the mask of the first": mask_of_the_first,
    "the scale uses the width of the values": lambda query, key, value, mask: explicit(
        query, key, value, mask, value.shape[-1] ** -0.5
    ),
    "only as many keys are used as there are queries": as_many_keys_as_queries,
    "the last block of keys is omitted if it is not full": partial(by_blocks, keep_last=False),
    "the running sum is not rescaled when a larger score comes": partial(by_blocks, rescale=False),
    "inputs are rounded to bfloat16": half_precision,
    "the result is correct, but the gradient with respect to the keys is doubled": (
        slope_of_the_keys_doubled
    ),
}
SAME = {name: where_every_query_sees_a_key(attention) for name, attention in SAME.items()}
NOT_SAME = {name: where_every_query_sees_a_key(attention) for name, attention in NOT_SAME.items()}
### END PACKED


TO_COMPARE = (
    "compare the gradients with respect to query, key and value, too; use torch.autograd.grad, "
    "because `.grad` is accumulated in place"
)


@exercise(
    "check_same_attention",
    number="7.9",
    title="Write a test: does fast attention give the same numbers?",
    asks="`check_same_attention` calls the given attention on inputs of your choice, and "
    "`assert`s that results and gradients are those of naive attention.",
    difficulty=4,
    importance=4,
    minutes=40,
    deeper=True,
)
class TestCheckSameAttention:
    @points(1)
    def test_a_mask_that_is_ignored_is_caught(self, subject, case):
        self.judge(subject, case, "the mask is ignored")

    @points(1)
    def test_one_mask_for_the_whole_batch_is_caught(self, subject, case):
        self.judge(subject, case, "every sequence gets the mask of the first")

    @points(1)
    def test_a_wrong_scale_is_caught(self, subject, case):
        self.judge(subject, case, "the scale uses the width of the values")

    @points(1)
    def test_keys_that_are_ignored_are_caught(self, subject, case):
        self.judge(subject, case, "only as many keys are used as there are queries")

    @points(1)
    def test_an_omitted_last_block_is_caught(self, subject, case):
        self.judge(subject, case, "the last block of keys is omitted if it is not full")

    @points(1)
    def test_a_running_sum_that_is_not_rescaled_is_caught(self, subject, case):
        self.judge(subject, case, "the running sum is not rescaled when a larger score comes")

    @points(1)
    def test_lost_precision_is_caught(self, subject, case):
        self.judge(subject, case, "inputs are rounded to bfloat16")

    @points(1)
    def test_a_wrong_gradient_is_caught(self, subject, case):
        bug = "the result is correct, but the gradient with respect to the keys is doubled"
        self.judge(subject, case, bug, lambda expected: TO_COMPARE)

    def judge(self, subject, case, bug, *why):
        expect_test_judges(subject, case, "check_same_attention", SAME, NOT_SAME, bug, *why)


# 7.7 ------------------------------------------------------------------------------------------


def model_sizes(case):
    return tuple(
        case.size(name, default) + case.integer(0, 5)
        for name, default in (
            ("num_layers", 2),
            ("d_model", 11),
            ("d_ff", 29),
            ("vocab_size", 37),
            ("length", 17),
        )
    )


@oracle
@functools.lru_cache(maxsize=2048)
def counted_flops(num_layers, d_model, d_ff, vocab_size, length):
    """Let torch count while it trains a model without numbers: on "meta" nothing is computed."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:

        def weight(rows, columns):
            return torch.empty(rows, columns, requires_grad=True)

        x = weight(vocab_size, d_model)[torch.zeros(length, dtype=torch.int64)]
        for _ in range(num_layers):
            query, key, value = (x @ weight(d_model, d_model) for _ in range(3))
            x = x + (query @ key.T).softmax(dim=-1) @ value @ weight(d_model, d_model)
            x = x + (x @ weight(d_model, d_ff)).relu() @ weight(d_ff, d_model)
        (x @ weight(d_model, vocab_size)).sum().backward()
    return counter.get_total_flops() // length


@oracle
def use_oracle(tokens_per_second, flops_per_token, peak_teraflops):
    return (tokens_per_second * flops_per_token) / (peak_teraflops * 10**12)


@oracle
def bits_oracle(nats_per_token, num_tokens, num_bytes):
    return nats_per_token * num_tokens * math.log2(math.e) / num_bytes


@exercise(
    "training_cost",
    number="7.7",
    title="The cost of training, and bits per byte",
    asks="`flops_per_token` counts the operations of training; `mfu` returns the fraction of a "
    "device's peak that they use; `bits_per_byte` makes losses comparable across "
    "tokenizers.",
    difficulty=2,
    importance=4,
    minutes=25,
    deeper=True,
)
class TestTrainingCost:
    @points(4)
    def test_the_operation_count_matches_torch(self, subject, case):
        name = "flops_per_token"
        expect_agrees(subject, case, name, model_sizes, counted_flops, {"operations": ""})

    @points(2)
    def test_mfu_is_the_fraction_of_the_peak_that_is_used(self, subject, case):
        def inputs(case):
            flops = case.integer(10**8, 10**9)
            return float(case.integer(10_000, 400_000)), flops, float(case.integer(100, 990))

        expect_agrees(subject, case, "mfu", inputs, use_oracle, {"utilisation": ""})

    @points(2)
    def test_losses_in_nats_per_token_become_bits_per_byte(self, subject, case):
        def inputs(case):
            num_tokens = case.integer(1000, 2000)
            nats = float(case.uniform(low=1.0, high=4.0))
            return nats, num_tokens, num_tokens * case.integer(2, 5) + case.integer(1, 99)

        expect_agrees(subject, case, "bits_per_byte", inputs, bits_oracle, {"bits": ""})


# 7.8 ------------------------------------------------------------------------------------------

# What follows, up to the end of `train_side_by_side`, stands in the notebook as well, where readers
# make curves of their own.
MISTAKES = (
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

VOCAB_SIZE, LENGTH, WIDTH = 12, 8, 16
SHAPES = {
    "tokens": (VOCAB_SIZE, WIDTH),
    "places": (LENGTH, WIDTH),
    "read": (WIDTH, 3 * WIDTH),
    "up": (WIDTH, 2 * WIDTH),
    "down": (2 * WIDTH, WIDTH),
    "logits": (WIDTH, VOCAB_SIZE),
}


def language():
    """Return next-token probabilities: one is likely, the others in proportion to frequency."""
    common = 1 / torch.arange(1.0, VOCAB_SIZE + 1)
    likely = torch.eye(VOCAB_SIZE)[torch.arange(VOCAB_SIZE) * 5 % VOCAB_SIZE]
    return 0.6 * likely + 0.4 * common / common.sum()


def texts_of(shape, generator):
    """Draw texts of the language in the given shape, LENGTH + 1 tokens each."""
    thresholds = language().cumsum(dim=-1)[:, :-1]
    draws = torch.rand(LENGTH + 1, *shape, 1, generator=generator)
    tokens = [(draws[0, ..., 0] * VOCAB_SIZE).long()]
    for draw in draws[1:]:
        tokens.append((draw > thresholds[tokens[-1]]).sum(dim=-1))
    return torch.stack(tokens, dim=-1)


def normed(x):
    return F.rms_norm(x, x.shape[-1:])


def train_side_by_side(mistakes, seed, num_steps=100, batch=16, dropout=0.6):
    """Train one small model per mistake, all in parallel, and return the curves of each.

    Returns one dict per mistake: `train` and `held_out` losses in nats per token, and the `norm`
    of the gradient, each with one number per ten updates. Everything is computed in float64 and
    rounded, weights after each update, so that the curves are the same on every CPU.
    """
    generator = torch.Generator().manual_seed(seed)
    num_runs = len(mistakes)

    def if_made(mistake, yes, no):
        """Choose `yes` in the runs with this mistake; the first axis of all tensors is runs."""
        is_made = torch.tensor([made == mistake for made in mistakes])
        return torch.where(is_made[:, None, None], torch.as_tensor(yes), torch.as_tensor(no))

    def drawn(name, rows, columns):
        size = {"tokens": 1.0, "places": 1.0, "logits": 0.03}.get(name, 0.25)
        # Uniform numbers, of variance 1: torch's normal ones have other last digits on other CPUs.
        draws = torch.rand(num_runs, 1, rows * columns, generator=generator).double()
        return size * 12**0.5 * (draws - 0.5)

    weights = torch.cat([drawn(name, *shape) for name, shape in SHAPES.items()], dim=-1)
    weights = weights.requires_grad_()  # (runs, 1, weights)
    past = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    mask = if_made("no mask", True, past)[:, None]

    def losses(texts, is_dropping):
        parts = weights.split([rows * columns for rows, columns in SHAPES.values()], dim=-1)
        w = {
            name: part.view(num_runs, *shape)
            for (name, shape), part in zip(SHAPES.items(), parts, strict=True)
        }
        given = texts[..., :-1]
        targets = if_made("targets not shifted", given, texts[..., 1:])
        x = F.one_hot(given, VOCAB_SIZE).double().flatten(1, 2) @ w["tokens"]
        x = x + w["places"].repeat(1, texts.shape[1], 1)
        read = (normed(x) @ w["read"]).unflatten(1, (-1, LENGTH))
        query, key, value = read.chunk(3, dim=-1)
        scores = (query @ key.mT / WIDTH**0.5).masked_fill(~mask, -math.inf)
        x = x + (scores.softmax(dim=-1) @ value).flatten(1, 2)
        x = normed(x + (normed(x) @ w["up"]).relu() @ w["down"])
        is_kept = torch.rand(x.shape, generator=generator) >= dropout
        x = torch.where(is_dropping, x * is_kept / (1 - dropout), x)
        logits = x @ w["logits"]
        logits = if_made("softmax twice", logits.softmax(dim=-1), logits)
        log_chances = logits.log_softmax(dim=-1)
        return -log_chances.gather(-1, targets.flatten(1)[..., None]).mean(dim=(1, 2))

    batches = texts_of((num_steps, num_runs, batch), generator)
    batches = if_made("always the same batch", batches[:1], batches)
    held_out = texts_of((num_runs, 320), generator)
    peak = if_made("learning rate too high", 1.0, if_made("learning rate too low", 1e-4, 0.03))
    kept = if_made("gradients never zeroed", 1.0, 0.0)
    gradient, mean, mean_square = (torch.zeros_like(weights) for _ in range(3))
    curves = {"train": [], "held_out": [], "norm": []}
    for step in range(num_steps):
        loss = losses(batches[step], torch.tensor(True))
        (slope,) = torch.autograd.grad(loss.sum(), weights)
        gradient = kept * gradient + slope
        mean = 0.9 * mean + 0.1 * gradient
        mean_square = 0.98 * mean_square + 0.02 * gradient.square()
        size = (mean_square / (1 - 0.98 ** (step + 1))).sqrt() + 1e-8
        descent = max(0, step - 15) / (num_steps - 15)
        rate = peak * min(1.0, (step + 1) / 16) * (1 + math.cos(math.pi * descent)) / 2
        with torch.no_grad():
            weights -= rate * mean / (1 - 0.9 ** (step + 1)) / size
            weights.round_(decimals=7)
        curves["train"].append(loss.detach())
        curves["norm"].append(gradient.norm(dim=(1, 2)))
        if (step + 1) % 10 == 0:
            with torch.no_grad():
                seen = losses(held_out, if_made("dropout in evaluation", True, False))
            curves["held_out"].append(seen)
    whole = {name: torch.stack(rows, dim=1) for name, rows in curves.items()}
    whole |= {n: whole[n].unflatten(1, (-1, 10)).mean(dim=2) for n in ("train", "norm")}
    whole = {name: rows.round(decimals=6) for name, rows in whole.items()}
    return [{name: rows[run] for name, rows in whole.items()} for run in range(num_runs)]


NUM_RUNS = 12


@oracle
@functools.lru_cache(maxsize=8)
def trained(mistakes, seed):
    return train_side_by_side(mistakes, seed)


def drawn_runs(case):
    """Train runs with each mistake and some mistakes twice, in any order; name them by letters.

    The runs are the same for all checks of an exercise.
    """
    if "runs" not in case.memory:
        more = [MISTAKES[case.integer(0, 8)] for _ in range(NUM_RUNS - len(MISTAKES))]
        order = case.uniform(NUM_RUNS).argsort().tolist()
        mistakes = tuple([*MISTAKES, *more][place] for place in order)
        curves = trained(mistakes, case.integer(0, 10**9))
        letters = "ABCDEFGHIJKL"
        case.memory["runs"] = (
            dict(zip(letters, curves, strict=True)),
            dict(zip(letters, mistakes, strict=True)),
        )
    return case.memory["runs"]


def course_of(curves):
    """Say where the curves of a run begin and end."""
    ends = {name: (float(curve[0]), float(curve[-1])) for name, curve in curves.items()}
    return ", ".join(
        f"{name} from {first:.2g} to {last:.2g}" for name, (first, last) in ends.items()
    )


@exercise(
    "verdicts",
    number="7.8",
    title="Which curve has which mistake?",
    asks="`verdicts` gets the curves of some runs and returns, for each run, its mistake.",
    difficulty=4,
    importance=4,
    minutes=50,
    deeper=True,
)
class TestVerdicts:
    @points(2, only_with="test_the_two_leaks_are_found_and_distinguished")
    def test_exactly_the_correct_runs_are_called_correct(self, subject, case):
        self.judge(subject, case, "nothing")

    @points(2)
    def test_the_two_leaks_are_found_and_distinguished(self, subject, case):
        self.judge(subject, case, "targets not shifted", "no mask")

    @points(2)
    def test_wrong_learning_rates_are_found(self, subject, case):
        self.judge(subject, case, "learning rate too high", "learning rate too low")

    @points(2)
    def test_unzeroed_gradients_and_a_double_softmax_are_found(self, subject, case):
        self.judge(subject, case, "gradients never zeroed", "softmax twice")

    @points(2)
    def test_mistakes_visible_only_on_held_out_text_are_found(self, subject, case):
        self.judge(subject, case, "always the same batch", "dropout in evaluation")

    def judge(self, subject, case, *group):
        curves, right = drawn_runs(case)

        def judge(seen):
            if not isinstance(seen, dict) or seen.keys() != right.keys():
                letters = ", ".join(right)
                return f"`verdicts` should return a dict with the keys {letters}, not " + (
                    f"{', '.join(map(str, seen))}" if isinstance(seen, dict) else describe(seen)
                )
            for letter, told in seen.items():
                if told not in MISTAKES:
                    return f"you return {told!r} for run {letter}, which is not a name in the table"
            wrong = [letter for letter in right if seen[letter] != right[letter]]
            if missed := [letter for letter in wrong if right[letter] in group]:
                said = "; ".join(
                    f"the mistake of run {letter} is “{right[letter]}”, but you return "
                    f"“{seen[letter]}” ({course_of(curves[letter])})"
                    for letter in missed
                )
                named = sorted(told for told in seen.values() if told != "nothing")
                if named == sorted(MISTAKES[1:]):
                    said += ". You return each mistake once; several runs may have the same one"
                return said
            # What their mistakes are is said once, where it is missed.
            alarms = [f"{letter} (“{seen[letter]}”)" for letter in wrong if seen[letter] in group]
            named = ", ".join(alarms)
            return f"your verdict is wrong for: {named}" if alarms else None

        expect_answer(subject, case, [asks_for("verdicts", (curves,))], judge)
