"""What is graded in chapter 08, generation and inference.

Made by `classroom release`: what is right, and what known mistakes return, comes as data in
prepared.zip.
"""

import functools
import math
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F

from classroom.calls.lending import Refused
from classroom.calls.subject import Crashed
from classroom.exercise.comparing import describe, differs, number, same
from classroom.exercise.diagnosis import asking
from classroom.exercise.expect import (
    drawn_once,
    exercise,
    expect_agrees,
    expect_answer,
    expect_inputs_unchanged,
    expect_law,
    expect_test_judges,
    points,
)
from classroom.exercise.prepared import handed_out, observing, packed


def expect_right(subject, case, draw, request, judge):
    """Expect what a subject answers to a request to be right, and diagnose with fresh inputs.

    Args:
        subject: The code under test.
        case: Where the inputs come from.
        draw: Draws, from a case, what is handed to the two below.
        request: Given a subject and what was drawn, asks it and returns plain values.
        judge: Given the answer and what was drawn, says what is wrong with it, or returns None.

    """
    drawn = [draw(case), draw(case.fresh(0))]
    requests = [asking(request, *given) for given in drawn]
    expect_answer(subject, case, requests, lambda answer: judge(answer, *drawn[0]))


def unnamed(case):
    """Return a case that looks for no known mistakes: others name them, and this one is slow."""
    return replace(case, mistakes=())


def without(case, name):
    """Return a case that does not look for one known mistake, which is already ruled out."""
    return replace(case, mistakes=tuple(m for m in case.mistakes if m.name != name))


def drawn_tokens(case, *shape, vocab_size):
    numbers = [case.integer(0, vocab_size - 1) for _ in range(math.prod(shape))]
    return torch.tensor(numbers).reshape(shape)


# 8.1 ------------------------------------------------------------------------------------------

LOGITS = {"logits": "batch vocab_size"}


def rows_of_logits(case, batch=3, std=2.0, step=3.0):
    """Logits whose rows lie higher and higher by `step`, which no softmax sees."""
    batch, vocab_size = case.size("batch", batch), case.size("vocab_size", 11, smallest=4)
    heights = step * torch.arange(batch, dtype=torch.float64)[:, None]
    if step > 3:  # there are rows below 0 as well
        heights = heights - step
    return case.normal(batch, vocab_size, std=std) + heights


def temperature_inputs(case):
    return rows_of_logits(case), float(case.uniform(low=0.3, high=0.8))


def cold_inputs(case):
    return rows_of_logits(case), 0.0


@handed_out
def temperature_oracle(logits, temperature):
    ...


def top_k_inputs(case):
    return rows_of_logits(case), case.integer(2, 4)


@handed_out
def top_k_oracle(logits, k):
    ...


def tied_inputs(case):
    """The third place is shared by three tokens."""
    logits = rows_of_logits(case)
    for row in logits:
        order = row.argsort(descending=True)
        row[order[3:5]] = row[order[2]].item()
    return logits, 3


@handed_out
def shares(row):
    ...


def top_p_inputs(case, step=3.0):
    """The first row is surer than the others, and fewer of its tokens reach p."""
    logits = rows_of_logits(case, std=1.5, step=step)
    logits[0] = 3 * logits[0]
    return logits, float(case.uniform(low=0.5, high=0.9))


@handed_out
def top_p_oracle(logits, p):
    ...


def level_inputs(case):
    """Rows in which five or eight tokens tie, and p lies between what two numbers of them reach."""
    vocab_size = case.size("vocab_size", 11, smallest=9)
    logits = case.normal(2, vocab_size) - 40
    for row, tied in zip(logits, (5, 8), strict=True):
        row[case.shuffled(range(vocab_size))[:tied]] = case.normal()
    return logits, float(case.uniform(low=0.28, high=0.36))


def only_as_many_as_needed(seen, logits, p):
    if not isinstance(seen, torch.Tensor) or seen.shape != logits.shape:
        return f"logits should be returned; the result is {describe(seen)}"
    for mine, row in zip(seen, logits, strict=True):
        is_best, is_kept = row == row.max(), mine > -math.inf
        tied = int(is_best.sum())
        needed = math.ceil(p * tied)
        if (is_kept & ~is_best).any() or int(is_kept.sum()) != needed:
            return (
                f"of {tied} equally probable tokens {needed} are enough to reach p={p:.2f}, no "
                f"matter which; `top_p` keeps {int(is_kept.sum())} tokens"
            )
        if problem := differs("logits that stay", mine[is_kept], row[is_kept]):
            return problem
    return None


def whole_inputs(case):
    """In one row nearly all probability is on one token, and the rest gets lost in rounding."""
    logits = rows_of_logits(case, batch=2)
    best = case.integer(0, logits.shape[1] - 1)
    others = torch.arange(logits.shape[1]) != best
    logits[0, others] = logits[0, best] - 50 - case.uniform(int(others.sum()))
    return logits, 1.0


def draw_inputs(case, step=3.0):
    """Some tokens are ruled out, the first and the last among them."""
    logits = rows_of_logits(case, batch=7, std=0.5, step=step)
    for row, logit in enumerate(logits):
        logit[0 if row % 2 else -1] = -math.inf
        logit[case.integer(1, logits.shape[1] - 2)] = -math.inf
    u = case.uniform(len(logits))
    u[1:2] = 0.0  # whose first token is ruled out
    return logits, u


@handed_out
def draw_oracle(logits, u):
    ...


def even_inputs(case):
    """One row, again and again, with numbers that lie evenly between 0 and 1."""
    row = case.normal(7)
    times = 400
    u = (torch.arange(times, dtype=torch.float64) + float(case.uniform(low=0.1, high=0.9))) / times
    return row.expand(times, -1).contiguous(), u[torch.randperm(times, generator=case.generator)]


def counts_follow_shares(tokens, logits, u):
    if not isinstance(tokens, torch.Tensor) or tokens.shape != u.shape:
        return (
            f"tokens of shape {tuple(u.shape)} should be returned; the result is {describe(tokens)}"
        )
    expected = [share * len(u) for share in shares(logits[0].tolist())]
    counts = [int((tokens == token).sum()) for token in range(len(expected))]
    # Evenly laid numbers meet an interval as often as its length says, or once more or less.
    off = [abs(count - wanted) for count, wanted in zip(counts, expected, strict=True)]
    if max(off) < 1.5:
        return None
    token = off.index(max(off))
    return (
        f"of {len(u)} evenly spaced numbers u between 0 and 1, {counts[token]} gave token "
        f"{token}; its probability is {expected[token] / len(u):.3f}, so {expected[token]:.0f} "
        "should have"
    )


def repeated_inputs(case, name):
    """One row and one number, again and again: all rows draw the same token."""
    row = case.normal(7, std=0.5)
    u = torch.full((60,), float(case.uniform(low=0.2, high=0.8)), dtype=torch.float64)
    return name, row.expand(len(u), -1).contiguous(), u


def draws_differ(subject, name, logits, u):
    """Draw for all rows, and for all but the last: whether a token is another one."""
    first = subject.call(name, logits, u)
    again = subject.call(name, logits[:-1], u[:-1])
    for tokens, rows in ((first, len(u)), (again, len(u) - 1)):
        if not isinstance(tokens, torch.Tensor) or tokens.shape != (rows,):
            return None
    return bool((first[:-1] != again).any())


def judge_repetition(differ, name, logits, u):
    if not differ:  # None if the result has the wrong form, which the other expectations report
        return None
    return f"`{name}`, called again with the same logits and the same u, returned different tokens"


# So many equal probabilities add up to less than 1 in float64.
EQUAL = (10, 13, 14, 15)


def last_edge_inputs(case):
    """Rows whose sums end below 1, the first token impossible, often the last too; the largest u."""
    vocab_size = case.integer(19, 23)
    logits = torch.full((len(EQUAL), vocab_size), -math.inf, dtype=torch.float64)
    for place, (row, possible) in enumerate(zip(logits, EQUAL, strict=True)):
        last = vocab_size - 1 - place
        row[[*case.shuffled(range(1, last))[: possible - 1], last]] = 0.0
    return logits, torch.full((len(EQUAL),), 1 - 2**-53, dtype=torch.float64)


def drawn(subject, logits, u):
    return subject.call("draw", logits, u)


def judge_last_edge(tokens, logits, u):
    if not isinstance(tokens, torch.Tensor) or tokens.shape != u.shape:
        return (
            f"tokens of shape {tuple(u.shape)} should be returned; the result is {describe(tokens)}"
        )
    for token, possible, row in zip(tokens.tolist(), EQUAL, logits, strict=True):
        last = int(row.isfinite().nonzero()[-1])
        if token != last:
            return (
                f"{possible} of {len(row)} tokens are equally probable, the others impossible. For "
                f"u = 1 - 2**-53, the largest float64 below 1, `draw` returned {token}; it should "
                f"return the last possible id, {last}, whose interval ends at 1"
            )
    return None


def next_token_inputs(case, k=True, p=True):
    # So few tokens and so many rows that the order of the two cuts matters to several of them.
    logits = rows_of_logits(case, batch=150, std=1.2, step=0.0)
    temperature = float(case.uniform(low=0.4, high=0.6))
    p = float(case.uniform(low=0.6, high=0.8)) if p else None
    return logits, case.uniform(len(logits)), temperature, 3 if k else None, p


@handed_out
def next_token_oracle(logits, u, temperature=1.0, k=None, p=None):
    ...


@exercise(
    "next_token",
    number="8.1",
    title="Sampling: temperature, top-k and top-p",
    asks="`with_temperature`, `top_k` and `top_p` return new logits, `draw` turns logits and a "
    "number between 0 and 1 into a token, and `next_token` combines them in order.",
    difficulty=2,
    importance=5,
    minutes=40,
)
class TestNextToken:
    @points(1)
    def test_a_low_temperature_sharpens_the_distribution(self, subject, case):
        self.compare(subject, case, "with_temperature", temperature_inputs, temperature_oracle)

    @points(1)
    def test_a_temperature_of_0_keeps_only_the_most_probable_token(self, subject, case):
        self.compare(subject, case, "with_temperature", cold_inputs, temperature_oracle)

    @points(1)
    def test_top_k_keeps_the_k_most_probable_tokens_of_each_row(self, subject, case):
        self.compare(subject, case, "top_k", top_k_inputs, top_k_oracle)

    @points(1)
    def test_ties_in_top_k_go_to_the_lower_ids(self, subject, case):
        self.compare(subject, case, "top_k", tied_inputs, top_k_oracle)

    @points(1, only_with="test_top_k_keeps_the_k_most_probable_tokens_of_each_row")
    def test_a_k_above_the_vocabulary_size_keeps_all_tokens(self, subject, case):
        def draw(case):
            return rows_of_logits(case), case.integer(12, 40)

        def request(subject, logits, k):
            return subject.call("top_k", logits, k)

        def judge(seen, logits, k):
            if not isinstance(seen, torch.Tensor) or seen.shape != logits.shape:
                return f"logits should be returned; the result is {describe(seen)}"
            problem = differs("logits", seen, logits)
            return problem and f"k={k} of {logits.shape[1]} tokens should keep all: {problem}"

        expect_right(subject, case, draw, request, judge)

    @points(2)
    def test_top_p_keeps_the_fewest_tokens_that_reach_p(self, subject, case):
        self.compare(subject, case, "top_p", top_p_inputs, top_p_oracle)
        # Exponentials of such logits are infinite, or 0.
        inputs = partial(top_p_inputs, step=800.0)
        self.compare(subject, case, "top_p", inputs, top_p_oracle)
        law = level_inputs, only_as_many_as_needed
        expect_law(subject, case, "top_p", *law, correct=top_p_oracle)

    @points(1, only_with="test_top_p_keeps_the_fewest_tokens_that_reach_p")
    def test_a_p_of_1_keeps_all_tokens(self, subject, case):
        self.compare(subject, case, "top_p", whole_inputs, top_p_oracle)

    @points(2)
    def test_the_random_number_selects_the_token_of_its_interval(self, subject, case):
        tokens = {"tokens": "batch"}
        self.repeat(subject, case, "draw")
        for step in (3.0, 800.0):
            inputs = partial(draw_inputs, step=step)
            expect_agrees(subject, case, "draw", inputs, draw_oracle, tokens)
        expect_right(subject, case, last_edge_inputs, drawn, judge_last_edge)

    @points(1)
    def test_tokens_are_drawn_in_proportion_to_their_probabilities(self, subject, case):
        self.repeat(subject, case, "draw")
        expect_law(subject, case, "draw", even_inputs, counts_follow_shares, correct=draw_oracle)

    @points(2)
    def test_next_token_applies_temperature_then_top_k_then_top_p(self, subject, case):
        self.repeat(subject, case, "next_token")
        # From few steps to all, so that a mistake is named by the step that it is in.
        self.compare_tokens(subject, case, partial(next_token_inputs, k=False, p=False))
        # So the draw alone is right. After a sort in `top_k` or `top_p`, it looks like this one.
        case = without(case, "IndexInTheSortedOrder")
        self.compare_tokens(subject, case, partial(next_token_inputs, p=False))
        self.compare_tokens(subject, case, partial(next_token_inputs, k=False))
        self.compare_tokens(subject, case, next_token_inputs)

    @points(
        1,
        only_with=(
            "test_a_low_temperature_sharpens_the_distribution",
            "test_top_k_keeps_the_k_most_probable_tokens_of_each_row",
            "test_top_p_keeps_the_fewest_tokens_that_reach_p",
        ),
    )
    def test_inputs_are_not_modified(self, subject, case):
        expect_inputs_unchanged(subject, case, "with_temperature", temperature_inputs)
        expect_inputs_unchanged(subject, case, "top_k", top_k_inputs)
        expect_inputs_unchanged(subject, case, "top_p", top_p_inputs)

    def compare(self, subject, case, name, inputs, oracle):
        expect_agrees(subject, case, name, inputs, oracle, LOGITS)

    def repeat(self, subject, case, name):
        inputs = partial(repeated_inputs, name=name)
        expect_right(subject, case, inputs, draws_differ, judge_repetition)

    def compare_tokens(self, subject, case, inputs):
        tokens = {"tokens": "batch"}
        expect_agrees(subject, case, "next_token", inputs, next_token_oracle, tokens)


# 8.2 ------------------------------------------------------------------------------------------

LENGTH = 8
CHUNKINGS = [(3, 1, 2, 17), (2, 21), (1, 18, 4)]


exec(packed(__file__, 0), globals())


@handed_out
def uncached(query, key, value):
    ...


def heads_inputs(case, length=LENGTH, size=0.0):
    """Queries, keys and wider values of a whole text; no piece has as many tokens as heads.

    If they have a size, all scores of the first head are very low, and those of the second very high:
    in a feature that hardly turns, the queries are alike, and so are the keys.
    """
    batch, heads = 2, 5
    widths = (6, 6, 10)
    query, key, value = (case.normal(batch, heads, length, width) for width in widths)
    if size > 0:
        query[:, :2, :, 4] += size
        key[:, 0, :, 4] -= 5.0
        key[:, 1, :, 4] += 5.0
    return query, key, value


def one_head_inputs(case, length):
    """One head of a long text."""
    return tuple(case.normal(1, 1, length, width) for width in (6, 6, 10))


def wrong_answer(answer):
    """Say how an answer is no output with a cache; None if it is one."""
    if isinstance(answer, (tuple, list)) and len(answer) == 2:
        return None
    return f"`cached_attention` should return (found, cache); it returned {describe(answer)}"


def read_in_chunks(subject, query, key, value, chunkings):
    """Read a text chunk by chunk, in several ways: what each chunk found."""
    results = []
    for sizes in chunkings:
        cache, found = None, []
        chunks = zip(*(x.split(list(sizes), dim=2) for x in (query, key, value)), strict=True)
        for q, k, v in chunks:
            answer = subject.call("cached_attention", q, k, v, cache)
            if problem := wrong_answer(answer):
                return problem
            found.append(answer[0])
            cache = answer[1]
        results.append(found)
    return results


def judge_chunks(results, query, key, value, chunkings):
    if isinstance(results, str):
        return results
    whole = uncached(query, key, value)
    for sizes, found in zip(chunkings, results, strict=True):
        for place, (seen, expected) in enumerate(
            zip(found, whole.split(list(sizes), dim=2), strict=True)
        ):
            if len(sizes) == 1:
                where = "the whole text read at once"
            elif max(sizes) == 1:
                where = f"read token by token, the token at index {place}"
            else:
                pieces = ", ".join(map(str, sizes))
                where = f"read in pieces of {pieces} tokens, the piece at index {place}"
            if not isinstance(seen, torch.Tensor) or seen.shape != expected.shape:
                return f"{where}: found should have shape {tuple(expected.shape)}; it is {describe(seen)}"
            if problem := differs("found", seen, expected):
                return f"{where}: {problem}"
    return None


def read_branches(subject, query, key, value):
    """Go on from one cache twice: what the second branch finds."""
    first, second, third = zip(
        *(x.split([3, 2, 3], dim=2) for x in (query, key, value)), strict=True
    )
    answer = subject.call("cached_attention", *first, None)
    if problem := wrong_answer(answer):
        return problem
    _, after = subject.call_and_return_inputs("cached_attention", *second, answer[1])
    is_changed = not same(answer[1], after[3])
    answer = subject.call("cached_attention", *third, after[3])
    return wrong_answer(answer) or [answer[0], is_changed]


def judge_branches(answer, query, key, value):
    if isinstance(answer, str):
        return answer
    seen, is_changed = answer
    places = [*range(3), *range(5, 8)]
    expected = uncached(*(x[:, :, places] for x in (query, key, value)))[:, :, 3:]
    problem = (
        differs("found", seen, expected)
        if isinstance(seen, torch.Tensor) and seen.shape == expected.shape
        else f"found should have shape {tuple(expected.shape)}; it is {describe(seen)}"
    )
    if problem:
        return (
            "after one prompt, one continuation and then another one from the same cache: "
            f"{problem}"
        )
    if is_changed:
        return (
            "a call changes the cache that it is given, perhaps unused space at its end: a second "
            "continuation from this cache would overwrite the tokens of the first"
        )
    return None


@functools.cache
def reader():
    """Load the trained model in double precision."""
    from groundup.pretrained import load

    return load("reader")[0].double().requires_grad_(False)


def reader_inputs(case):
    return (drawn_tokens(case, 1, 8, vocab_size=reader().config.vocab_size),)


def read_with(subject, ids):
    """Run the reader chunk by chunk, with the code under test in each of its layers."""
    model, rows = reader(), []
    caches = [None] * len(model.blocks)
    for chunk in ids.split([4, 1, 3], dim=1):
        x = model.embedding(chunk)
        for layer, block in enumerate(model.blocks):
            attention, read = block.attention, block.attention_norm(x)
            heads = (
                project(read).unflatten(-1, (model.config.num_heads, -1)).transpose(1, 2)
                for project in (attention.query, attention.key, attention.value)
            )
            answer = subject.call("cached_attention", *heads, caches[layer])
            if problem := wrong_answer(answer):
                return problem
            found, caches[layer] = answer
            if not isinstance(found, torch.Tensor) or found.shape[::2] != (1, chunk.shape[1]):
                return f"found should have a row for each new token; it is {describe(found)}"
            x = x + attention.output(found.double().transpose(1, 2).flatten(2))
            x = x + block.feed_forward(block.feed_forward_norm(x))
        rows.append(model.unembedding(model.final_norm(x)))
    return torch.cat(rows, dim=1)


def judge_reader(logits, ids):
    if isinstance(logits, str):
        return logits
    return differs("logits of the trained model", logits, reader()(ids))


@exercise(
    "cached_attention",
    number="8.2",
    title="Attention with a KV cache",
    asks="Attend from the new tokens to those in the cache and to themselves, causally, at their "
    "true positions, and return the output and a cache that includes the new tokens.",
    difficulty=4,
    importance=5,
    minutes=35,
)
class TestCachedAttention:
    @points(2)
    def test_a_whole_prompt_in_one_pass_is_correct(self, subject, case):
        self.judge(subject, case, [(LENGTH,)])

    @points(2)
    def test_token_by_token_gives_the_same_output(self, subject, case):
        self.judge(subject, case, [(1,) * LENGTH])

    @points(3)
    def test_other_chunk_sizes_give_the_same_output(self, subject, case):
        self.judge(subject, case, CHUNKINGS)
        self.judge(subject, case, CHUNKINGS, size=2e4)
        self.judge(subject, case, [(1030, 7)], long=True)

    @points(1)
    def test_two_continuations_can_share_one_cache(self, subject, case):
        expect_right(subject, case, heads_inputs, read_branches, judge_branches)

    @points(1)
    def test_the_logits_of_the_trained_model_are_the_same(self, subject, case):
        expect_right(subject, unnamed(case), reader_inputs, read_with, judge_reader)

    def judge(self, subject, case, chunkings, size=0.0, long=False):
        def draw(case):
            length = sum(chunkings[0])
            inputs = one_head_inputs(case, length) if long else heads_inputs(case, length, size)
            return *inputs, chunkings

        expect_right(subject, case, draw, read_in_chunks, judge_chunks)


# 8.4 ------------------------------------------------------------------------------------------


def bytes_inputs(case, group=1, bits=32, window=None):
    """No two factors are alike, so that none stands in for another one."""
    num_layers, batch_size = (3, 5)[case.integer(0, 1)], (7, 11)[case.integer(0, 1)]
    num_kv_heads, d_head = (13, 17)[case.integer(0, 1)], (20, 40)[case.integer(0, 1)]
    length = case.integer(60, 99)
    if window is not None:
        window = length - case.integer(20, 40) if window == "shorter" else length + 31
    heads = group * num_kv_heads, num_kv_heads
    return num_layers, *heads, d_head, length, batch_size, bits, window


@handed_out
def bytes_oracle(
    num_layers, num_heads, num_kv_heads, d_head, length, batch_size, bits, window=None
):
    ...


def ring_inputs(case, start, new, window=5):
    """A ring that has seen `start` tokens, and the `new` ones that come next."""
    batch, heads = case.size("batch", 2), case.size("kv_heads", 3)
    d_head = case.size("d_head", 4)
    keys, values = case.normal(2, batch, heads, window, d_head)
    positions = torch.full((window,), -1)
    for position in range(start):
        positions[position % window] = position
    is_empty = (positions < 0)[:, None]
    keys, values = keys.masked_fill(is_empty, 0.0), values.masked_fill(is_empty, 0.0)
    key, value = case.normal(2, batch, heads, new, d_head)
    return keys, values, positions, key, value, start


@handed_out
def ring_oracle(keys, values, positions, key, value, start):
    ...


RING = {
    "keys": "batch kv_heads window d_head",
    "values": "batch kv_heads window d_head",
    "positions": "window",
}


@exercise(
    "cache_bytes",
    number="8.4",
    title="The size of a KV cache, and a sliding window",
    asks="`cache_bytes` computes the bytes of a cache from its sizes; `sliding_cache` writes new "
    "tokens into a ring buffer of `window` slots, over the oldest.",
    difficulty=3,
    importance=4,
    minutes=25,
    deeper=True,
)
class TestCacheBytes:
    @points(1)
    def test_keys_and_values_of_all_layers_are_counted(self, subject, case):
        self.count(subject, case, bytes_inputs)

    @points(1)
    def test_shared_key_and_value_heads_are_counted_once(self, subject, case):
        self.count(subject, case, partial(bytes_inputs, group=4))

    @points(1)
    def test_lower_precision_takes_fewer_bytes(self, subject, case):
        for bits in (16, 8, 4):
            self.count(subject, case, partial(bytes_inputs, bits=bits))

    @points(1)
    def test_at_most_one_window_of_tokens_is_counted(self, subject, case):
        for window in ("shorter", "longer"):
            self.count(subject, case, partial(bytes_inputs, group=2, bits=16, window=window))

    @points(1)
    def test_the_ring_buffer_is_filled_from_its_first_slot(self, subject, case):
        self.write(subject, case, start=0, new=1)
        self.write(subject, case, start=3, new=1)

    @points(2)
    def test_a_full_ring_buffer_overwrites_its_oldest_token(self, subject, case):
        self.write(subject, case, start=5, new=1)
        self.write(subject, case, start=case.integer(11, 14), new=1)

    @points(1)
    def test_several_tokens_wrap_around_the_end_of_the_buffer(self, subject, case):
        self.write(subject, case, start=8, new=4)
        self.write(subject, case, start=11, new=5, window=7)

    @points(1)
    def test_only_the_end_of_a_long_prompt_is_kept(self, subject, case):
        self.write(subject, case, start=4, new=7)
        self.write(subject, case, start=0, new=12)

    @points(1)
    def test_inputs_are_not_modified(self, subject, case):
        inputs = partial(ring_inputs, start=6, new=2)
        expect_inputs_unchanged(subject, case, "sliding_cache", inputs)
        expect_agrees(subject, case, "sliding_cache", inputs, ring_oracle, RING)

    def count(self, subject, case, inputs):
        expect_agrees(subject, case, "cache_bytes", inputs, bytes_oracle, {"bytes": ""})

    def write(self, subject, case, **sizes):
        inputs = partial(ring_inputs, **sizes)
        also = [partial(ring_inputs, start=s, new=n) for s, n in ((3, 1), (12, 1), (8, 4), (4, 7))]
        expect_agrees(subject, case, "sliding_cache", inputs, ring_oracle, RING, also=also)


# 8.8 ------------------------------------------------------------------------------------------

BOS, EOS, WORDS = 0, 1, 5


def language(case, max_len, end, phase):
    """Draw what a language depends on: every token written, how it likes to end, a rhythm."""
    return case.normal(max_len + 2, WORDS, WORDS, std=1.2), end, phase


def log_probs(table, end, phase, tokens):
    """Give the log-probabilities of the next token, after tokens that begin with BOS."""
    if not isinstance(tokens, torch.Tensor) or tokens.dim() != 2 or tokens.is_floating_point():
        raise Refused(
            "next_log_probs takes tokens of the shape (rows, length), which begin with bos, "
            f"got {describe(tokens)}"
        )
    places = torch.arange(tokens.shape[1]) % len(table)
    weights = 0.7 ** torch.arange(tokens.shape[1], dtype=torch.float64).flip(0)
    logits = (weights[:, None] * table[places, tokens]).sum(dim=1)
    # Every other token is nearly a toss-up, and what comes after it shows which way was better.
    logits = logits * (2.0 if len(places) % 2 == phase else 0.3)
    return (logits + torch.tensor([-9.0, end, 0, 0, 0])).log_softmax(dim=-1)


# What comes after a beginning, of the words a and b and of an end (.); all else shares the rest. In
# each a search with two beams goes another way if an end does something to the places of the others.
# In `CROWDED`, with four beams, all four places go to one beginning, and the last is the best.
STORIES = (
    (
        {
            "": {".": 0.3, "a": 0.44, "b": 0.2},
            "a": {".": 0.34, "a": 0.33, "b": 0.32},
            "b": {".": 0.98},
        },
        2,
    ),
    ({"": {".": 0.3, "a": 0.44, "b": 0.1}, "a": {"a": 0.5, "b": 0.45}, "ab": {".": 0.98}}, 3),
    (
        {
            "": {".": 0.3, "a": 0.44},
            "a": {".": 0.45, "b": 0.4},
            "ab": {"b": 0.98},
            "abb": {".": 0.98},
        },
        4,
    ),
)
CROWDED = {
    "": {"a": 0.9},
    "a": {".": 0.28, "a": 0.25, "c": 0.23, "b": 0.2},
    "ab": {".": 0.98},
}


def tell(story, words, tokens):
    """Give the log-probabilities of the next token, in a language in which a story is told."""
    rows = []
    for row in tokens.tolist():
        named = {words[word]: word for word in "abc"}
        beginning = "".join(named.get(token, "?") for token in row[1:])
        likely = {words[word]: share for word, share in story.get(beginning, {}).items()}
        # All else shares the rest, not quite evenly: a tie may be broken in any way.
        others = {token: 1 + 0.01 * token for token in range(WORDS) if token not in likely}
        rest = (1 - sum(likely.values())) / sum(others.values())
        rows.append([likely.get(token, rest * others.get(token, 0)) for token in range(WORDS)])
    return torch.tensor(rows, dtype=torch.float64).log()


def stories(case):
    """Draw the words of each story, and how much they are liked."""
    return [(told(case, story), 2, max_len, 1.0) for story, max_len in STORIES]


def ended(case, num_beams):
    """Draw two of the stories, for this many beams.

    In the first, a search that stops at the best sum is right, and one that returns the best sum is
    not; in the second, it matters what becomes of the others when a search stops.
    """
    return [(model, num_beams, *rest) for model, _, *rest in stories(case)[:2]]


def told(case, story):
    a = case.integer(2, WORDS - 1)
    words = {".": EOS, "a": a, "b": 2 + (a - 1) % (WORDS - 2), "c": 2 + a % (WORDS - 2)}
    share = float(case.uniform(low=0.98, high=1.0))
    said = {
        beginning: {word: share * liked for word, liked in likely.items()}
        for beginning, likely in story.items()
    }
    return partial(tell, said, words)


@handed_out
def best_of_all(model, max_len, alpha):
    ...


@handed_out
def by_the_rule(model, num_beams, max_len, alpha, one_each=False):
    ...


def searches(case, settings, end=0.0):
    """Draw a language for each setting of (num_beams, max_len, alpha), of both rhythms in turn.

    With a few beams, the languages of the second rhythm tell whether the best of all candidates go
    on, or one of each beginning, or one alone: they are drawn until they do.
    """
    problems = []
    for i, (num_beams, max_len, alpha) in enumerate(settings):
        alpha = round(alpha * float(case.uniform(low=0.8, high=1.2)), 3)
        likes = end + 1.5 * (i % 3 == 2)  # now and then one that likes to end
        asked = None
        while asked is None or (i % 2 and 1 < num_beams < 10 and end > -9 and alike(*asked)):
            model = partial(log_probs, *language(case, max_len, likes, i % 2))
            asked = model, num_beams, max_len, alpha
        problems.append(asked)
    return problems


def alike(model, num_beams, max_len, alpha):
    """Tell whether two of three ways to search find the same."""
    best = by_the_rule(model, num_beams, max_len, alpha)
    alone = by_the_rule(model, 1, max_len, alpha)
    return best == alone or by_the_rule(model, num_beams, max_len, alpha, True) in (best, alone)


def renumbered(model, shift, tokens):
    """Let the ids of a model's language begin at `shift`."""
    if isinstance(tokens, torch.Tensor):
        tokens = (tokens - shift) % WORDS
    return model(tokens).roll(shift, dims=-1)


def search(subject, problems):
    """Return (tokens, score) for each problem, whatever form tokens came in.

    In each problem other ids stand for the beginning and the end.
    """
    found = []
    for shift, (model, num_beams, max_len, alpha) in enumerate(problems):
        lent = subject.lend(partial(renumbered, model, shift))
        bos, eos = (BOS + shift) % WORDS, (EOS + shift) % WORDS
        try:
            answer = subject.call("beam_search", lent, bos, eos, num_beams, max_len, alpha)
        except Crashed as error:
            said = (
                f"{error}. It was called with num_beams={num_beams}, max_len={max_len} and "
                f"alpha={alpha:g}, for a vocabulary of {WORDS} tokens: in the first step there are "
                f"{WORDS} candidates, and never more than {WORDS} for each sequence kept"
            )
            raise Crashed(said, error.kind, error.text, error.where) from error
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            return f"`beam_search` should return (tokens, score); it returned {describe(answer)}"
        tokens, score = answer
        tokens = tokens.tolist() if isinstance(tokens, torch.Tensor) else tokens
        score = score.item() if isinstance(score, torch.Tensor) and score.numel() == 1 else score
        is_list = isinstance(tokens, (tuple, list)) and all(type(token) is int for token in tokens)
        if not is_list or not isinstance(score, (int, float)):
            return (
                "`beam_search` should return a list of integers and a number; it returned "
                f"{describe(tokens)} and {describe(score)}"
            )
        found.append((list(tokens), float(score)))
    return found


def judge_search(found, problems, expected_of=None):
    if isinstance(found, str):
        return found
    for shift, ((tokens, score), asked) in enumerate(zip(found, problems, strict=True)):
        model, num_beams, max_len, alpha = asked
        if expected_of is None:
            wanted, best = by_the_rule(model, num_beams, max_len, alpha)
        else:
            wanted, best = expected_of(model, max_len, alpha)
        wanted = [(token + shift) % WORDS for token in wanted]
        bos, eos = (BOS + shift) % WORDS, (EOS + shift) % WORDS
        told = f"with num_beams={num_beams}, max_len={max_len} and alpha={alpha:g} it"
        if tokens != wanted:
            return (
                f"{told} should find {wanted} with the score {number(best)}; it found {tokens} "
                f"with the score {number(score)} (bos {bos}, eos {eos})"
            )
        if problem := differs("its score", score, best):
            return f"{told} finds the correct tokens, {tokens}, but {problem}"
    return None


@exercise(
    "beam_search",
    number="8.8",
    title="Beam search",
    asks="Keep the `num_beams` most probable prefixes of each length, set aside those that have "
    "ended, and return the sequence with the best score, and that score.",
    difficulty=4,
    importance=3,
    minutes=40,
    deeper=True,
)
class TestBeamSearch:
    @points(1)
    def test_a_single_beam_decodes_greedily(self, subject, case):
        self.judge(subject, case, [(1, 4, 0.0)] * 4)

    @points(2)
    def test_with_enough_beams_the_best_sequence_is_found(self, subject, case):
        self.judge(subject, case, [(100, 3, 0.0)] * 4, best_of_all)

    @points(2)
    def test_scores_are_normalised_by_length(self, subject, case):
        settings = [(100, 3, 0.7), (100, 3, 0.7), (100, 3, 1.0)] * 2

        def draw(case):
            return ([*searches(case, settings), *ended(case, 100)],)

        judge = partial(judge_search, expected_of=best_of_all)
        expect_right(subject, case, draw, search, judge)

    @points(2)
    def test_the_best_candidates_across_all_beams_are_kept(self, subject, case):
        settings = [(2, 4, 0.6), (2, 4, 1.0), (3, 4, 0.8), (2, 5, 0.0)] * 2

        def draw(case):
            crowded = told(case, CROWDED), 4, 3, 1.0
            return ([*searches(case, settings, -0.7), crowded, *ended(case, 2)],)

        expect_right(subject, case, draw, search, judge_search)

    @points(1)
    def test_a_finished_beam_does_not_affect_the_others(self, subject, case):
        def draw(case):
            return ([*stories(case), *searches(case, [(2, 4, 0.6), (2, 4, 1.0)])[1:]],)

        expect_right(subject, case, draw, search, judge_search)

    @points(1)
    def test_a_sequence_without_eos_is_cut_at_the_maximum_length(self, subject, case):
        self.judge(subject, case, [(2, 4, 0.5), (3, 3, 0.0)], end=-30.0)

    def judge(self, subject, case, settings, expected_of=None, end=0.0):
        def draw(case):
            return (searches(case, settings, end),)

        expect_right(subject, case, draw, search, partial(judge_search, expected_of=expected_of))


# 8.5 ------------------------------------------------------------------------------------------

VOCAB = 11


def prompt_inputs(case, with_pad=False):
    """Prompts of one token and more, in any order; `pad` may be a token of theirs."""
    pad, most = case.integer(0, 3), case.size("longest", 13, smallest=4)
    lengths = case.shuffled(range(1, most + 1))[:3]
    prompts = []
    for length in lengths:
        tokens = drawn_tokens(case, length, vocab_size=VOCAB)
        prompts.append(torch.where(tokens == pad, 4 + tokens, tokens))
    if with_pad:
        prompts[0][0] = max(prompts, key=len)[2] = prompts[2][-1] = pad
    return prompts, pad


@handed_out
def padded_oracle(prompts, pad):
    ...


def why_padded(results, prompts, pad, *, part):
    """Say of the first wrong entry whether padding or a token of the prompt stands there."""
    place = list(PADDED).index(part)
    mine, right = results[place], padded_oracle(prompts, pad)[place]
    row, column, *key = (mine != right).nonzero()[0].tolist()
    missing = max(map(len, prompts)) - len(prompts[row])

    def what(at):
        return f"padding (column {at})" if at < missing else f"token {at - missing} of its prompt"

    said = f". For example, in row {row}, of which {missing} columns are padding, {what(column)}"
    if not key:
        return f"{said} should have {int(right[row, column])}, not {int(mine[row, column])}"
    verb = "must see" if right[row, column, *key] else "must not see"
    return f"{said} {verb} {'itself' if key[0] == column else what(key[0])}"


PADDED = {
    "tokens": "batch length",
    "positions": "batch length",
    "mask": "batch length length",
}


def weights_inputs(case, most=3):
    prompts, pad = prompt_inputs(case)
    return prompts[:most], pad, case.normal(VOCAB, 6), case.normal(2, 3, 6, 6, std=0.5)


def small_model(table, layers, tokens, positions, mask):
    """Give logits, with an ordinary softmax: a row of the mask without True gives NaN."""
    if positions.min() < 0:
        raise Refused(f"positions must be 0 or more, got {int(positions.min())}")
    clocks = positions[..., None] * torch.tensor([1.0, 0.6, 0.3, 0.2, 0.1, 0.05]).double()
    x = table[tokens] + clocks.sin()
    for w_query, w_key, w_value in layers:
        scores = (x @ w_query) @ (x @ w_key).transpose(1, 2) / math.sqrt(x.shape[-1])
        x = x + scores.masked_fill(~mask, -math.inf).softmax(dim=-1) @ (x @ w_value)
    return x @ table.T


def ask_for_logits(subject, prompts, pad, table, layers):
    """Ask for the logits, and how often the model was called."""
    calls = [0]

    @observing
    def model(*batch):
        calls[0] += 1
        return small_model(table, layers, *batch)

    return subject.call("next_logits", subject.lend(model), prompts, pad), calls[0]


def judge_logits(answer, prompts, pad, table, layers):
    logits, num_calls = answer
    if num_calls != 1:
        return f"the model was called {num_calls} times; call it once, for all prompts"
    expected = []
    for prompt in prompts:
        places = torch.arange(len(prompt))
        alone = prompt[None], places[None], (places[:, None] >= places)[None]
        expected.append(small_model(table, layers, *alone)[0, -1])
    if not isinstance(logits, torch.Tensor) or logits.shape != (len(prompts), VOCAB):
        return f"logits should have shape {(len(prompts), VOCAB)}; the result is {describe(logits)}"
    for row, (seen, alone) in enumerate(zip(logits, expected, strict=True)):
        if problem := differs("logits", seen, alone):
            return (
                f"prompt {row} has {len(prompts[row])} tokens (longest: {max(map(len, prompts))}); "
                f"compared with the logits for this prompt alone, {problem}"
            )
    return None


@exercise(
    "left_padded",
    number="8.5",
    title="A batch of prompts, padded on the left",
    asks="`left_padded` returns tokens, positions and mask of a batch of prompts, padded on the "
    "left; `next_logits` calls a model for the logits after each of them.",
    difficulty=3,
    importance=4,
    minutes=25,
    deeper=True,
)
class TestLeftPadded:
    @points(1)
    def test_prompts_end_in_the_last_column(self, subject, case):
        self.compare(subject, case, "tokens", prompt_inputs)

    @points(2)
    def test_positions_start_at_the_first_token_of_each_prompt(self, subject, case):
        self.compare(subject, case, "positions", prompt_inputs)

    @points(2)
    def test_padding_attends_only_to_itself_and_is_otherwise_masked(self, subject, case):
        self.compare(subject, case, "mask", prompt_inputs)

    @points(1)
    def test_the_padding_id_may_occur_as_a_token_of_a_prompt(self, subject, case):
        for part in PADDED:
            self.compare(subject, case, part, partial(prompt_inputs, with_pad=True))

    @points(2)
    def test_each_prompt_gets_the_same_logits_as_on_its_own(self, subject, case):
        for most in (3, 1):
            inputs = partial(weights_inputs, most=most)
            expect_right(subject, case, inputs, ask_for_logits, judge_logits)

    def compare(self, subject, case, part, inputs):
        for _ in range(3):
            expect_agrees(
                subject,
                case,
                "left_padded",
                inputs,
                padded_oracle,
                PADDED,
                compare=[part],
                why=partial(why_padded, part=part),
            )


# 8.7 ------------------------------------------------------------------------------------------

SAYS = 5


def distributions(case, rows):
    return (1.3 * case.normal(rows, SAYS)).softmax(dim=-1)


def accepted_inputs(case, at_the_edge=False):
    """The two models agree nearly, so everything is accepted.

    At the edge token 0 cannot follow, and u is 0.
    """
    draft = distributions(case, 3)
    target = torch.cat([0.8 * draft + 0.2 * distributions(case, 3), distributions(case, 1)])
    drafted = drawn_tokens(case, 3, vocab_size=SAYS)
    if at_the_edge:
        target[-1, 0] = 0.0
        target[-1] = target[-1] / target[-1].sum()
    u = 0.0 if at_the_edge else float(case.uniform())
    return target, draft, drafted, case.uniform(3, high=0.75), u


def rejected_inputs(case, at_the_edge=False):
    """The second of four tokens is one that the larger model does not like; the others pass.

    At the edge it is token 0, which the larger model excludes; its number and u are 0.
    """
    draft, target = distributions(case, 4), distributions(case, 5)
    drafted = drawn_tokens(case, 4, vocab_size=SAYS)
    drafted[1] *= not at_the_edge
    unwanted = int(drafted[1])
    draft[1] = 0.3 * draft[1] + 0.7 * F.one_hot(torch.tensor(unwanted), SAYS)
    target[1, unwanted] = (0.0 if at_the_edge else 0.05) * target[1, unwanted]
    target[1] = target[1] / target[1].sum()
    accept = torch.tensor([0.0, 0.0 if at_the_edge else 0.9, 0.0, 0.0], dtype=torch.float64)
    return target, draft, drafted, accept, 0.0 if at_the_edge else float(case.uniform())


def any_inputs(case):
    drafted = drawn_tokens(case, 3, vocab_size=SAYS)
    rows = distributions(case, 4), distributions(case, 3)
    return *rows, drafted, case.uniform(3), float(case.uniform())


@handed_out
def speculative_oracle(target, draft, drafted, accept, u):
    ...


def speculate(subject, problems):
    return [subject.call("speculative", *problem) for problem in problems]


def as_tokens(answer):
    answer = answer.tolist() if isinstance(answer, torch.Tensor) else answer
    return list(answer) if isinstance(answer, (list, tuple)) else None


def judge_speculation(answers, problems):
    for answer, problem in zip(answers, problems, strict=True):
        target, draft, drafted, accept, u = problem
        expected, seen = speculative_oracle(*problem), as_tokens(answer)
        if seen is None:
            return f"tokens should be returned; the result is {describe(answer)}"
        if seen != expected:
            ratios = [
                number(target[i, token] / draft[i, token])
                for i, token in enumerate(drafted.tolist())
            ]
            return (
                f"the drafted tokens are {drafted.tolist()}, target / draft is {', '.join(ratios)}, "
                f"accept is {[round(a, 3) for a in accept.tolist()]} and u {u:.3f}: the result is "
                f"{seen}, expected {expected}. {why_tokens(*problem)}"
            )
    return None


def why_tokens(target, draft, drafted, accept, u):
    """Say how many drafted tokens are accepted, and how the last token is drawn."""

    def row(numbers):
        return f"[{', '.join(f'{n:.3f}' for n in numbers.tolist())}]"

    *accepted, last = speculative_oracle(target, draft, drafted, accept, u)
    at = len(accepted)
    if at == len(drafted):
        said, shares = "All drafted tokens are accepted (accept below target / draft)", target[at]
        said += f", so one more is drawn from the last row of target, {row(shares)}"
    else:
        said = f"The token at index {at} is rejected (its accept is not below target / draft)"
        shares = (target[at] - draft[at]).clamp(min=0)
        said += (
            f", where target is {row(target[at])} and draft {row(draft[at])}. "
            f"max(0, target - draft) is {row(shares)}; its sum, by which it is divided, is "
            f"{float(shares.sum()):.3f}"
        )
    sums = (shares / shares.sum()).cumsum(dim=0)
    return f"{said}. The cumulative sums are {row(sums)}, and {last} is the first one above u"


def even_drafts(case):
    """Each token drafted, with numbers that lie evenly in the unit square."""
    target = torch.tensor([[0.15, 0.25, 0.6], [0.3, 0.3, 0.4]]) + 0.0
    target = (target.double() * case.uniform(2, 3, low=0.9, high=1.1)).contiguous()
    target = target / target.sum(dim=-1, keepdim=True)
    draft = torch.tensor([[0.6, 0.3, 0.1]]).double()
    times, start = 48, float(case.uniform())
    places = (torch.arange(times, dtype=torch.float64) + 0.5) / times
    others = (start + torch.arange(times) * (math.sqrt(5) - 1) / 2) % 1.0
    return target, draft, places, others


def first_tokens(subject, target, draft, places, others):
    """Return, for each token that may be drafted, how often each token comes out first."""
    counts = []
    for drafted in range(3):
        row = [0, 0, 0]
        for accept, u in zip(places, others.tolist(), strict=True):
            given = torch.tensor([drafted]), accept[None], u
            seen = as_tokens(subject.call("speculative", target, draft, *given))
            if seen and type(seen[0]) is not int:
                return f"`speculative` should return ints; the first token is {describe(seen[0])}"
            if seen and 0 <= seen[0] < 3:
                row[seen[0]] += 1
        counts.append(row)
    return counts


def judge_first(counts, target, draft, places, others):
    if isinstance(counts, str):
        return counts
    found = draft[0] @ torch.tensor(counts).double() / len(places)
    if (found - target[0]).abs().max() < 0.07:
        return None
    told = ", ".join(f"{share:.3f}" for share in found)
    wanted = ", ".join(f"{share:.3f}" for share in target[0])
    return (
        f"over all drafted tokens and draws, the tokens 0, 1, 2 have the probabilities "
        f"{told}; the larger model alone gives them {wanted}"
    )


@exercise(
    "speculative",
    number="8.7",
    title="Speculative decoding",
    asks="Accept drafted tokens one after another; replace the first rejected one by a draw from "
    "the residual distribution, or draw one more after the last.",
    difficulty=3,
    importance=3,
    minutes=25,
    deeper=True,
)
class TestSpeculative:
    @points(2)
    def test_one_more_token_follows_if_all_are_accepted(self, subject, case):
        self.judge(subject, case, accepted_inputs)

    @points(3)
    def test_the_first_rejected_token_is_replaced_and_ends_the_draft(self, subject, case):
        self.judge(subject, case, rejected_inputs, problems=15)  # a quarter tells how u is used

    @points(2)
    def test_any_draft_gives_the_correct_tokens(self, subject, case):
        self.judge(subject, case, any_inputs, edge=False)

    @points(1, only_with="test_any_draft_gives_the_correct_tokens")
    def test_the_first_token_follows_the_target_distribution(self, subject, case):
        with subject.together():  # a process for each of its 144 calls would take too long
            expect_right(subject, unnamed(case), even_drafts, first_tokens, judge_first)

    def judge(self, subject, case, inputs, problems=6, edge=True):
        def draw(case):  # u from all parts of its range
            drawn = enumerate(inputs(case) for _ in range(problems))
            asked = [(*rest, (part + u) / problems) for part, (*rest, u) in drawn]
            return ([*asked, inputs(case, at_the_edge=True)] if edge else asked,)

        expect_right(subject, case, draw, speculate, judge_speculation)


# 8.6 ------------------------------------------------------------------------------------------

WIDTH, NAMES = 6, 11


exec(packed(__file__, 1), globals())


@exercise(
    "check_cache",
    number="8.6",
    title="Write a test: does the cache change anything?",
    asks="`check_cache` runs the given step on one text in different chunks, and `assert`s that "
    "all logits equal those of a single pass.",
    difficulty=3,
    importance=5,
    minutes=35,
    deeper=True,
)
class TestCheckCache:
    @points(1)
    def test_repeated_positions_and_repeated_rotations_are_caught(self, subject, case):
        self.judge(subject, case, "each chunk begins at position 0")
        self.judge(subject, case, "tokens of a later chunk share one position")
        self.judge(subject, case, "cached keys are rotated again, in one of many heads")

    @points(1)
    def test_an_offset_that_counts_chunks_is_caught(self, subject, case):
        self.judge(subject, case, "the offset counts chunks")

    @points(1)
    def test_an_offset_that_grows_by_the_prompt_length_is_caught(self, subject, case):
        self.judge(subject, case, "the offset grows by the length of the prompt each time")

    @points(1)
    def test_a_mask_aligned_at_the_wrong_corner_is_caught(self, subject, case):
        self.judge(subject, case, "the mask is aligned at the wrong corner")

    @points(1)
    def test_attention_to_later_tokens_is_caught(self, subject, case):
        self.judge(subject, case, "tokens of a later chunk see ahead")

    @points(1)
    def test_a_cache_overwritten_by_each_chunk_is_caught(self, subject, case):
        self.judge(subject, case, "only the previous chunk is kept")

    @points(1)
    def test_a_cache_that_drops_its_oldest_tokens_is_caught(self, subject, case):
        self.judge(subject, case, "only five tokens are kept")

    @points(1)
    def test_a_change_to_a_few_logits_is_caught(self, subject, case):
        self.judge(subject, case, "tokens in the cache get smaller logits")
        bug = "the two largest logits of each token of a later chunk are exchanged"
        self.judge(subject, case, bug)

    @points(1)
    def test_a_hidden_cache_shared_by_branches_is_caught(self, subject, case):
        self.judge(subject, case, "branches share one hidden cache")

    def judge(self, subject, case, bug):
        expect_test_judges(subject, case, "check_cache", *drawn_once(case, steps), bug)


# 8.3 ------------------------------------------------------------------------------------------


class Reader:
    """A model to read with: its answer depends on every token and on its position.

    It counts the tokens that it is given.
    """

    def __init__(self, table):
        self.table, self.num_read, self.given = table, 0, []

    def logits(self, tokens, positions):
        places = (
            positions[..., None].double() * torch.linspace(0.4, 2.0, VOCAB) + self.table[tokens]
        )
        return places.sin().sum(dim=1) + self.table[tokens[:, -1]]

    def read(self, tokens, positions, cache=None):
        if tokens.dim() != 2 or positions.shape != tokens.shape:
            raise Refused(
                "read takes tokens (batch, new) and a position for each of them, got shapes "
                f"{tuple(tokens.shape)} and {tuple(positions.shape)}"
            )
        self.num_read += tokens.shape[1]
        self.given.append([tokens[0].tolist(), positions[0].tolist()])
        if cache is not None:
            tokens = torch.cat([cache["tokens"], tokens], dim=1)
            positions = torch.cat([cache["positions"], positions], dim=1)
        return self.logits(tokens, positions), {"tokens": tokens, "positions": positions}


def generate_inputs(case, lengths):
    batches = zip((2, 3, 1), lengths, strict=False)
    prompts = [drawn_tokens(case, *shape, vocab_size=VOCAB) for shape in batches]
    numbers = enumerate(prompts)
    return [(prompt, case.normal(VOCAB, VOCAB, std=2.0), 5 + 2 * i) for i, prompt in numbers]


def generated(subject, problems):
    """Return what was written to each prompt, how many tokens were read, and which, where."""
    found = []
    for prompt, table, num_new in problems:
        reader = Reader(table)
        written = subject.call("mended_generate", subject.lend(reader.read), prompt, num_new)
        found.append((written, reader.num_read, reader.given))
    return found


@handed_out
def expected_text(prompt, table, num_new):
    ...


def judge_text(found, problems):
    for (written, _, given), (prompt, table, num_new) in zip(found, problems, strict=True):
        expected = expected_text(prompt, table, num_new)
        if not isinstance(written, torch.Tensor) or written.shape != expected.shape:
            return (
                f"{num_new} new tokens for each of {len(prompt)} prompts should be returned: "
                f"a tensor of shape {tuple(expected.shape)}; it is {describe(written)}"
            )
        wrong = (written != expected).any(dim=0)
        if wrong.any():
            index = int(wrong.nonzero()[0])
            calls = (f"tokens {t} at positions {p}" for t, p in given[: index + 1])
            return (
                f"after a prompt of {prompt.shape[1]} tokens, new token {index} is "
                f"{written[:, index].tolist()}, but without a cache it is "
                f"{expected[:, index].tolist()}. In the first sequence, `read` received "
                f"{'; then '.join(calls)}"
            )
    return None


def judge_reading(found, problems):
    for (_, num_read, _), (prompt, _, num_new) in zip(found, problems, strict=True):
        most = prompt.shape[1] + num_new
        if not most - 1 <= num_read <= most:
            return (
                f"for a prompt of {prompt.shape[1]} tokens and {num_new} new ones, `read` received "
                f"{num_read} tokens in total; each should be read once"
            )
    return None


@exercise(
    "mended_generate",
    number="8.3",
    title="Bug hunt: a KV cache with wrong positions",
    asks="Return the tokens that the loop should generate: every token is read once, at its own "
    "position, for any length of the prompt.",
    difficulty=2,
    importance=4,
    minutes=15,
)
class TestMendedGenerate:
    @points(2)
    def test_generated_tokens_match_those_without_a_cache(self, subject, case):
        self.judge(subject, case, judge_text, [6, 6])

    @points(2)
    def test_prompts_of_any_length_work(self, subject, case):
        self.judge(subject, case, judge_text, [4, 31, 1])

    @points(1, only_with="test_generated_tokens_match_those_without_a_cache")
    def test_every_token_is_processed_once(self, subject, case):
        self.judge(subject, case, judge_reading, [5])

    def judge(self, subject, case, judge, lengths):
        def draw(case):
            return (generate_inputs(case, lengths),)

        expect_right(subject, case, draw, generated, judge)


# 8.9 ------------------------------------------------------------------------------------------

OUTPUT = {"output": "batch num_heads length d_value"}
CHUNKED = {**OUTPUT, "states": "num_chunks batch num_heads d_head d_value"}
STEP = {"output": "batch num_heads d_value", "state": "batch num_heads d_head d_value"}


def retention_inputs(case, length=7, chunk_len=None, batch=2):
    batch, num_heads = case.size("batch", batch), case.size("num_heads", 3)
    length = case.size("length", length)
    d_head, d_value = case.size("d_head", 5), case.size("d_value", 4)
    query, key = case.normal(2, batch, num_heads, length, d_head)
    value = case.normal(batch, num_heads, length, d_value)
    decay = case.uniform(num_heads, low=0.45, high=0.9)
    decay[1:2] = 1.0
    return query, key, value, decay, *(() if chunk_len is None else (chunk_len,))


def long_inputs(case, length=330, low=0.06, high=0.09):
    """Decays whose powers are 0 for the furthest pairs, and infinite if the sign is wrong."""
    query, key = case.normal(2, 1, 2, length, 3)
    return query, key, case.normal(1, 2, length, 1), case.uniform(2, low=low, high=high)


def gradient_of_the_decay(subject, args, slope):
    return subject.gradients("retention_parallel", args, [3], [slope])[0]


def judge_decay(seen, args, slope):
    (expected,) = retention_oracle.gradients(args, [3], [slope])
    if seen is None:
        return "no gradient reaches `decay`: it is cut off"
    problem = differs("the gradient with respect to `decay` in a long sequence", seen, expected)
    if problem and seen.isnan().any():
        problem += (
            ": 0 times infinity. The outputs are correct, but an infinite power that is set to 0 "
            "afterwards still has a gradient; change the exponent before the power"
        )
    return problem


@handed_out
def retention_oracle(query, key, value, decay):
    ...


def step_inputs(case):
    query, key, value, decay = (x[:, :, 0] if x.dim() > 1 else x for x in retention_inputs(case))
    return case.normal(*key.shape, value.shape[-1]), query, key, value, decay


@handed_out
def step_oracle(state, query, key, value, decay):
    ...


@handed_out
def chunked_oracle(query, key, value, decay, chunk_len):
    ...


def twin_inputs(case):
    """Two sequences that begin alike, and how many of their tokens are the same."""
    inputs, others = retention_inputs(case), retention_inputs(case)
    same = case.integer(2, 4)
    twins = [
        torch.cat((x[:, :, :same], other[:, :, same:]), dim=2)
        for x, other in zip(inputs[:3], others[:3], strict=True)
    ]
    return inputs[:3], twins, inputs[3], same


def outputs_of_twins(subject, inputs, twins, decay, same):
    return [subject.call("retention_parallel", *x, decay) for x in (inputs, twins)]


def judge_twins(outputs, inputs, twins, decay, same):
    for seen in outputs:
        if not isinstance(seen, torch.Tensor) or seen.shape != inputs[2].shape:
            wanted = tuple(inputs[2].shape)
            return f"an output of shape {wanted} should be returned; the result is {describe(seen)}"
    before, after = (seen[:, :, :same] for seen in outputs)
    problem = differs("output", after, before)
    return problem and (
        f"two sequences differ only from the token at index {same} on, but earlier outputs "
        f"differ, too; compared with the first sequence, {problem}"
    )


def read_token_by_token(subject, query, key, value, decay):
    """Begin with a state of zeros: each token's output, or what is wrong with what came back."""
    state = torch.zeros(*key.shape[:2], key.shape[-1], value.shape[-1], dtype=key.dtype)
    shape, outputs = state.shape, []
    for t in range(query.shape[2]):
        token = (x[:, :, t] for x in (query, key, value))
        answer = subject.call("retention_step", state, *token, decay)
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            return f"`retention_step` should return (output, state); it returned {describe(answer)}"
        output, state = answer
        if not isinstance(state, torch.Tensor) or state.shape != shape:
            return (
                f"after the token at index {t} the state should have shape {tuple(shape)} = (batch, "
                f"num_heads, d_head, d_value), as after any other; it is {describe(state)}"
            )
        outputs.append(output)
    return outputs


def judge_tokens(outputs, query, key, value, decay):
    if isinstance(outputs, str):
        return outputs
    for t, expected in enumerate(retention_oracle(query, key, value, decay).unbind(dim=2)):
        seen = outputs[t]
        if not isinstance(seen, torch.Tensor) or seen.shape != expected.shape:
            return f"output should have shape {tuple(expected.shape)}; it is {describe(seen)}"
        if problem := differs("output", seen, expected):
            return f"token by token from a state of zeros, at index {t}: {problem}"
    return None


def last_chunk_inputs(case):
    """Three chunks, and a slope for what the last of them returns."""
    args = retention_inputs(case, length=7, chunk_len=3, batch=1)
    slope = case.normal(*args[2].shape)
    slope[:, :, :6] = 0.0
    return args, [slope, torch.zeros(3, 1, *args[1].shape[1:2], 5, 4, dtype=slope.dtype)]


def gradients_of_the_last_chunk(subject, args, slopes):
    return subject.gradients("retention_chunked", args, [1, 2, 3], slopes)


def judge_gradients(seen, args, slopes):
    expected = chunked_oracle.gradients(args, [1, 2, 3], slopes)
    for label, found, right in zip(("key", "value", "decay"), seen, expected, strict=True):
        if found is None:
            return f"no gradient of the last chunk's output reaches `{label}`: it is cut off"
        if label in ("key", "value") and not found[:, :, :6].any():
            return (
                f"the last chunk's output has no gradient with respect to the `{label}` of earlier "
                "chunks: it is cut off at the state (look for .detach(), .data, torch.no_grad())"
            )
        what = f"the gradient of the last chunk's output with respect to `{label}`"
        if problem := differs(what, found, right):
            return problem
    return None


@exercise(
    "retention_chunked",
    number="8.9",
    title="Linear attention: three forms that agree",
    asks="Write linear attention with a decay in three forms: `retention_parallel` computes all "
    "pairs at once, `retention_step` adds one token to a state and reads it, and "
    "`retention_chunked` is parallel within chunks, and returns the states after them, too.",
    difficulty=3,
    importance=3,
    minutes=35,
    deeper=True,
)
class TestRetention:
    @points(1)
    def test_each_output_is_the_weighted_sum_of_the_values_so_far(self, subject, case):
        self.parallel(subject, case, retention_inputs)

    @points(1, only_with="test_each_output_is_the_weighted_sum_of_the_values_so_far")
    def test_no_output_depends_on_a_later_token(self, subject, case):
        expect_right(subject, case, twin_inputs, outputs_of_twins, judge_twins)

    @points(1)
    def test_in_a_long_sequence_distant_weights_are_zero_and_not_nan(self, subject, case):
        self.parallel(subject, case, long_inputs)

        def draw(case):
            args = long_inputs(case, length=120, low=0.001, high=0.002)
            return args, case.normal(*args[2].shape)

        # Those that return NaN were found above.
        case = without(without(case, "NegativePowers"), "DecaySplitIntoTwoPowers")
        expect_right(subject, case, draw, gradient_of_the_decay, judge_decay)

    @points(1)
    def test_a_step_continues_from_a_given_state_and_leaves_it_unchanged(self, subject, case):
        expect_agrees(subject, case, "retention_step", step_inputs, step_oracle, STEP)
        expect_inputs_unchanged(subject, case, "retention_step", step_inputs)

    @points(1, only_with="test_a_step_continues_from_a_given_state_and_leaves_it_unchanged")
    def test_token_by_token_gives_the_same_output_in_constant_memory(self, subject, case):
        expect_right(subject, case, retention_inputs, read_token_by_token, judge_tokens)

    @points(1)
    def test_full_chunks_give_the_same_output(self, subject, case):
        self.chunked(subject, case, "output", length=6, chunk_len=2)

    @points(1)
    def test_any_chunk_length_gives_the_same_output(self, subject, case):
        for chunk_len in (4, 15, 1):
            self.chunked(subject, case, "output", length=9, chunk_len=chunk_len, batch=1)

    @points(1)
    def test_the_state_after_each_chunk_includes_all_tokens_so_far(self, subject, case):
        for chunk_len in (2, 7, 15):
            self.chunked(subject, case, "states", length=9, chunk_len=chunk_len, batch=1)

    @points(1)
    def test_gradients_flow_back_from_the_last_chunk_to_the_first(self, subject, case):
        expect_right(subject, case, last_chunk_inputs, gradients_of_the_last_chunk, judge_gradients)

    def parallel(self, subject, case, inputs):
        expect_agrees(subject, case, "retention_parallel", inputs, retention_oracle, OUTPUT)

    def chunked(self, subject, case, part, **sizes):
        inputs = partial(retention_inputs, **sizes)
        expect_agrees(
            subject, case, "retention_chunked", inputs, chunked_oracle, CHUNKED, compare=[part]
        )
