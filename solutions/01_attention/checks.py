"""What is graded in chapter 01, attention.

The oracles are torch's own attention, torch's autograd, or numbers made by hand.
"""

import math
from functools import partial

import torch
import torch.nn.functional as F

from classroom.exercise.comparing import differs
from classroom.exercise.diagnosis import asks_for
from classroom.exercise.expect import (
    drawn_once,
    exercise,
    expect_agrees,
    expect_answer,
    expect_gradients,
    expect_inputs_unchanged,
    expect_law,
    expect_test_judges,
    points,
)
from classroom.exercise.prepared import oracle


@oracle
def output_oracle(query, key, value):
    return F.scaled_dot_product_attention(query, key, value)


def attention_inputs(case):
    # The root of d_head is neither half of it nor a root of another size.
    batch, q_len, k_len = case.size("batch", 2), case.size("q_len", 4), case.size("k_len", 7)
    d_head, d_value = case.size("d_head", 5), case.size("d_value", 6)
    query = case.normal(batch, q_len, d_head, std=1.5)
    return query, case.normal(batch, k_len, d_head), case.normal(batch, k_len, d_value)


def large_inputs(case):
    """Scores in the thousands, except those of the first query."""
    query, key, value = attention_inputs(case)
    return with_large_queries(query), key, value


def with_large_queries(query):
    """Make all queries but the first so large that exp() of their scores is infinite."""
    grow = torch.tensor([1.0 if i == 0 else 2000.0 for i in range(query.shape[-2])])
    return query * grow[:, None].double()


OUTPUT = {"output": "batch q_len d_value"}


# 1.1 ------------------------------------------------------------------------------------------


@oracle
def gaussian_oracle(query, key, value, bandwidth):
    """Torch's attention, with minus half the squared distance as an additive mask."""
    distance = torch.cdist(query, key, compute_mode="donot_use_mm_for_euclid_dist")
    bias = -distance.square() / (2 * bandwidth**2)
    return F.scaled_dot_product_attention(0 * query, key, value, attn_mask=bias)


def near_inputs(case):
    return *attention_inputs(case), 1.3


def meeting_inputs(case):
    """One query of each sequence is equal to a key, so their distance is 0."""
    query, key, value, bandwidth = near_inputs(case)
    query[:, -1] = key[:, 0]
    return query, key, value, bandwidth


def far_inputs(case):
    """The first query is among the keys, the others are hundreds of bandwidths away."""
    query, key, value, bandwidth = near_inputs(case)
    away = torch.arange(query.shape[1], dtype=query.dtype)[:, None] * 100.0
    return query + away, key, value, bandwidth


@exercise(
    "kernel_regression",
    number="1.1",
    title="Kernel regression is attention",
    asks="`kernel_regression` averages the values, with weights that are a Gaussian function of "
    "the distance from query to key; `scale_for` returns the scale for which dot products give "
    "the same weights.",
    difficulty=2,
    importance=4,
    minutes=15,
)
class TestKernelRegression:
    @points(2)
    def test_values_are_averaged_with_gaussian_weights(self, subject, case):
        expect_agrees(subject, case, "kernel_regression", near_inputs, gaussian_oracle, OUTPUT)
        self.judge_gradient(subject, case)

    @points(1)
    def test_a_query_far_from_every_key_still_gets_an_average(self, subject, case):
        expect_agrees(subject, case, "kernel_regression", far_inputs, gaussian_oracle, OUTPUT)

    @points(1)
    def test_for_keys_of_equal_norm_the_scale_gives_the_same_weights(self, subject, case):
        def inputs(case):
            return (0.5 + float(case.uniform(high=4.0)),)

        @oracle
        def right_scale(bandwidth):
            return bandwidth**-2

        expect_agrees(subject, case, "scale_for", inputs, right_scale, {"scale": ""})

    def judge_gradient(self, subject, case):
        args = meeting_inputs(case)
        cotangent = case.normal(*args[0].shape[:2], args[2].shape[2])
        (expected,) = gaussian_oracle.gradients(args, [0], [cotangent])

        def ask(subject):
            return subject.gradients("kernel_regression", args, [0], [cotangent])[0]

        def judge(seen):
            if seen is None:
                return "no gradient reaches `query`: part of the computation is cut off from it"
            said = "where a query equals a key, the gradient with respect to the queries"
            return differs(said, seen, expected)

        others = [asks_for("kernel_regression", near_inputs(case.fresh(0)))]
        expect_answer(subject, case, [ask, *others], judge)


# 1.2 ------------------------------------------------------------------------------------------


@oracle
def lookup_oracle(query, key, value, temperature):
    if temperature == 0:
        # In the limit only the best key counts: an arbitrarily large scale gives just that.
        temperature = 1e-12
    return F.scaled_dot_product_attention(query, key, value, scale=1 / temperature)


def some_queries_short(case):
    """Draw a query, key and value; the scores of the first two queries lie close together.

    No two keys are equal, not even when they are rounded.
    """
    query, key, value = attention_inputs(case)
    key[..., 0] += 0.35 * torch.arange(key.shape[1])
    shrink = torch.tensor([1e-3 if i < 2 else 1.0 for i in range(query.shape[1])])
    return query * shrink[:, None].double(), key, value


@exercise(
    "soft_lookup",
    number="1.2",
    title="A soft dictionary",
    asks="Return the average of the values, weighted by the softmax of query · key / temperature; "
    "at temperature 0, the value of the best matching key.",
    difficulty=2,
    importance=4,
    minutes=15,
)
class TestSoftLookup:
    @points(2)
    def test_values_are_averaged_with_softmax_weights(self, subject, case):
        def inputs(case):
            return *attention_inputs(case), 0.7

        expect_agrees(subject, case, "soft_lookup", inputs, lookup_oracle, OUTPUT)

    @points(1)
    def test_a_high_temperature_gives_nearly_the_plain_mean(self, subject, case):
        def inputs(case):
            return *attention_inputs(case), 30.0

        expect_agrees(subject, case, "soft_lookup", inputs, lookup_oracle, OUTPUT)

    @points(1)
    def test_a_low_temperature_does_not_overflow(self, subject, case):
        def inputs(case):
            # The first queries are so short that even the cold softmax stays soft.
            return *some_queries_short(case), 1e-3

        expect_agrees(subject, case, "soft_lookup", inputs, lookup_oracle, OUTPUT)

    @points(1)
    def test_temperature_zero_returns_the_value_of_the_best_key(self, subject, case):
        def inputs(case):
            return *some_queries_short(case), 0.0

        def the_same_twice(case):
            query, key, value, _ = inputs(case)
            return query, torch.cat([key, key], dim=1), torch.cat([value, value], dim=1), 0.0

        def nearly_the_same_twice(case):
            """The scores of the best two keys differ in the seventh digit."""
            query, key, value = attention_inputs(case)
            keys, values = torch.cat([key, (1 + 1e-7) * key], dim=1), torch.cat([value, -value], 1)
            return query, keys, values, 0.0

        for draw in (inputs, the_same_twice, nearly_the_same_twice):
            expect_agrees(subject, case, "soft_lookup", draw, lookup_oracle, OUTPUT)


# 1.3 ------------------------------------------------------------------------------------------


def score_inputs(case):
    batch, length = case.size("batch", 2), case.size("length", 5)
    d_model, d_head = case.size("d_model", 6, smallest=2), case.size("d_head", 3)
    return (
        case.normal(batch, length, d_model),
        case.normal(d_model, d_head),
        case.normal(d_model, d_head),
    )


@exercise(
    "raw_scores",
    number="1.3",
    title="Who attends to whom: symmetric and asymmetric scores",
    may_cut=("asymmetry",),
    asks="`raw_scores` scores every query against every key, `mixing_matrix` returns the one "
    "matrix behind the scores, and `asymmetry` measures how far they are from symmetric.",
    difficulty=2,
    importance=4,
    minutes=15,
)
class TestRawScores:
    @points(2)
    def test_rows_are_queries_and_columns_are_keys(self, subject, case):
        @oracle
        def right(x, w_query, w_key):
            return torch.einsum("btd,dh,eh,bse->bts", x, w_query, w_key, x)

        expect_agrees(
            subject, case, "raw_scores", score_inputs, right, {"scores": "batch length length"}
        )

    @points(1)
    def test_the_mixing_matrix_alone_determines_the_scores(self, subject, case):
        @oracle
        def right(w_query, w_key):
            return torch.einsum("dh,eh->de", w_query, w_key)

        expect_agrees(
            subject,
            case,
            "mixing_matrix",
            lambda case: score_inputs(case)[1:],
            right,
            {"matrix": "d_model d_model"},
        )

    @points(1)
    def test_asymmetry_is_relative_to_the_norm_of_the_scores(self, subject, case):
        def inputs(case, size=3.0):
            length = case.size("length", 5, smallest=2)
            return (size * case.normal(length, length),)

        @oracle
        def right(scores):
            return torch.dist(scores, scores.T) / torch.linalg.matrix_norm(scores)

        for size in (3.0, 1e-6, 1e6):
            given = partial(inputs, size=size)
            returns = {"asymmetry": ""}
            expect_agrees(subject, case, "asymmetry", given, right, returns, also=[inputs])


# 1.4 ------------------------------------------------------------------------------------------


@oracle
def attention_oracle(query, key, value):
    """Torch's attention; with the identity matrix as values it returns the weights."""
    identity = torch.eye(key.shape[-2], dtype=key.dtype).expand(*key.shape[:-1], key.shape[-2])
    return (
        F.scaled_dot_product_attention(query, key, value),
        F.scaled_dot_product_attention(query, key, identity),
    )


def head_inputs(case):
    batch, heads = case.size("batch", 2), case.size("heads", 3)
    q_len, k_len = case.size("q_len", 4), case.size("k_len", 7)
    d_head, d_value = case.size("d_head", 5), case.size("d_value", 6)
    return (
        case.normal(batch, heads, q_len, d_head, std=1.5),
        case.normal(batch, heads, k_len, d_head),
        case.normal(batch, heads, k_len, d_value),
    )


HEADS = {"output": "batch heads q_len d_value", "weights": "batch heads q_len k_len"}


@exercise(
    "scaled_dot_product_attention",
    number="1.4",
    title="Scaled dot-product attention",
    asks="Return (output, weights): the weights of every query over the keys, and the weighted "
    "averages of the values.",
    difficulty=2,
    importance=5,
    minutes=15,
)
class TestScaledDotProductAttention:
    @points(3)
    def test_weights_are_a_softmax_over_keys_of_scaled_scores(self, subject, case):
        expect_agrees(
            subject,
            case,
            "scaled_dot_product_attention",
            head_inputs,
            attention_oracle,
            HEADS,
            compare=["weights"],
        )

    @points(2)
    def test_output_is_the_weighted_average_of_the_values(self, subject, case):
        expect_agrees(
            subject, case, "scaled_dot_product_attention", head_inputs, attention_oracle, HEADS
        )

    @points(1)
    def test_any_number_of_leading_axes_works(self, subject, case):
        def inputs(case):
            return tuple(tensor[0, 0] for tensor in head_inputs(case))

        returns = {"output": "q_len d_value", "weights": "q_len k_len"}
        expect_agrees(
            subject, case, "scaled_dot_product_attention", inputs, attention_oracle, returns
        )

    @points(1)
    def test_scores_in_the_thousands_give_no_nan(self, subject, case):
        def inputs(case):
            query, key, value = head_inputs(case)
            # The first query stays small, so that correct and wrong softmaxes both show there.
            return with_large_queries(query), key, value

        expect_agrees(
            subject, case, "scaled_dot_product_attention", inputs, attention_oracle, HEADS
        )

    @points(1)
    def test_inputs_are_not_modified_and_gradients_flow_back_to_them(self, subject, case):
        expect_gradients(
            subject,
            case,
            "scaled_dot_product_attention",
            head_inputs,
            attention_oracle,
            wrt=["query", "key", "value"],
            returns=["the output", "the weights"],
        )
        expect_inputs_unchanged(subject, case, "scaled_dot_product_attention", head_inputs)


# 1.7 ------------------------------------------------------------------------------------------


def weight_rows(case):
    rows, k_len = case.size("rows", 3), case.size("k_len", 7, smallest=2)
    return case.normal(rows, k_len, std=2.0).softmax(dim=-1)


def with_many_small_weights(case):
    """Forty weights of about 1e-5 and 1e-7, which together add to the entropy."""
    weights = weight_rows(case)
    small = case.uniform(len(weights), 40, low=2.0, high=6.0)
    small[:, :20] *= 1e-5
    small[:, 20:] *= 1e-7
    rest = 1.0 - small.sum(dim=-1, keepdim=True)
    return (torch.cat([rest * weights, small], dim=-1),)


@oracle
def entropy_oracle(weights):
    return torch.special.entr(weights).sum(dim=-1)


@exercise(
    "logit_std",
    number="1.7",
    title="How large does a dot product get?",
    may_cut=("entropy",),
    asks="`logit_std` and `excess_kurtosis` describe the distribution of dot products of "
    "independent normal entries; `entropy` returns the entropy of each row of weights.",
    difficulty=3,
    importance=4,
    minutes=20,
    deeper=True,
)
class TestLogitStd:
    @points(1)
    def test_the_standard_deviation_grows_with_the_root_of_d_head(self, subject, case):
        def inputs(case):
            # 1 would hide a missing scale.
            return case.integer(2, 200), float(case.uniform(low=1.1, high=3.0))

        @oracle
        def right(d_head, scale):
            return math.sqrt(d_head) * scale

        expect_agrees(subject, case, "logit_std", inputs, right, {"standard deviation": ""})

    @points(1)
    def test_excess_kurtosis_is_positive_and_depends_on_d_head(self, subject, case):
        def inputs(case):
            return (case.integer(1, 200),)

        def wide(case):
            return (case.integer(1, 100_000),)

        @oracle
        def right_kurtosis(d_head):
            return 6 / d_head

        for draw in (inputs, wide):
            returns = {"excess kurtosis": ""}
            expect_agrees(subject, case, "excess_kurtosis", draw, right_kurtosis, returns)

    @points(1)
    def test_entropy_is_in_nats_and_computed_for_each_row(self, subject, case):
        def few(case):
            return (weight_rows(case),)

        returns, many = {"entropy": "rows"}, with_many_small_weights
        # One of a few weights may happen to be small, too.
        expect_agrees(subject, case, "entropy", few, entropy_oracle, returns, also=[many])
        expect_agrees(subject, case, "entropy", many, entropy_oracle, returns)

    @points(1)
    def test_a_weight_of_zero_adds_nothing_to_the_entropy(self, subject, case):
        def inputs(case):
            weights = weight_rows(case)
            weights[-1] = 0.0
            weights[-1, -1] = 1.0
            return (weights,)

        expect_agrees(subject, case, "entropy", inputs, entropy_oracle, {"entropy": "rows"})


# 1.6 ------------------------------------------------------------------------------------------

# Printed in a widely read introduction to decoder-only transformers, for the six tokens
# "The sun dipped below the horizon" and the query of the last one.
PRINTED_QUERY = [0.9100, 0.3448]
PRINTED_KEYS = [
    [0.0921, 0.9907],
    [0.5637, 0.7303],
    [0.1860, 0.4071],
    [0.8067, 0.1776],
    [0.7002, 0.6632],
    [0.9094, 0.3594],
]
PRINTED_VALUES = [
    [0.5637, 0.4056],
    [0.9803, 0.0100],
    [0.4111, 0.3980],
    [0.6882, 0.9797],
    [0.5551, 0.7583],
    [0.3060, 0.2141],
]


@oracle
def row_oracle(query, keys, values):
    output, weights = attention_oracle(query[None], keys, values)
    scores = torch.mv(keys, query) / math.sqrt(len(query))
    return scores, weights[0], output[0]


@oracle
def rankings_oracle(query, keys):
    similarity = F.cosine_similarity(keys, query[None], dim=-1)
    return torch.mv(keys, query).argsort(descending=True), similarity.argsort(descending=True)


ROW = {"scores": "k_len", "weights": "k_len", "output": "d_value"}


@exercise(
    "worked_row",
    number="1.6",
    title="Correct a printed example",
    may_cut=("worked_row",),
    asks="`worked_row` returns (scores, weights, output) of one query, with scaled scores; "
    "`rankings` orders the keys by dot product and by cosine, the best first.",
    difficulty=2,
    importance=3,
    minutes=15,
    deeper=True,
)
class TestWorkedRow:
    @points(2, only_with="test_other_rows_are_computed_correctly")
    def test_the_printed_row_is_computed_correctly(self, subject, case):
        def inputs(case):
            return tuple(
                torch.tensor(numbers, dtype=torch.float64)
                for numbers in (PRINTED_QUERY, PRINTED_KEYS, PRINTED_VALUES)
            )

        expect_agrees(subject, case, "worked_row", inputs, row_oracle, ROW)

    @points(1)
    def test_other_rows_are_computed_correctly(self, subject, case):
        def inputs(case):
            k_len, d_head, d_value = case.size("k_len", 6), case.size("d_head", 3), 5
            return case.normal(d_head), case.normal(k_len, d_head), case.normal(k_len, d_value)

        def large(case):
            query, keys, values = inputs(case)
            return 1e5 * query * (keys[-1] @ query).sign(), keys, values

        for draw in (inputs, large):
            expect_agrees(subject, case, "worked_row", draw, row_oracle, ROW)

    @points(2)
    def test_keys_are_ranked_by_dot_product_and_by_cosine_similarity(self, subject, case):
        def inputs(case):
            k_len, d_head = case.size("k_len", 11, smallest=3), case.size("d_head", 3, smallest=2)
            lengths = case.uniform(k_len, 1, low=0.2, high=3.0)
            return case.normal(d_head), case.normal(k_len, d_head) * lengths

        returns = {"by_dot_product": "k_len", "by_cosine": "k_len"}
        expect_agrees(subject, case, "rankings", inputs, rankings_oracle, returns)


# 1.9 ------------------------------------------------------------------------------------------


### BEGIN PACKED
def largest_of_all(query, key, value):
    """Nothing that compares all features with one range notices it."""
    return value.amax().expand(*query.shape[:-1], value.shape[-1])


def best_value(query, key, value):
    """The only average that is never rounded: a test of equality accepts it."""
    best = (query @ key.transpose(-2, -1)).argmax(dim=-1, keepdim=True)
    return value.gather(-2, best.expand(*best.shape[:-1], value.shape[-1]))


def averages(draw):
    """Draw what correct attention prefers; return correct ones, no averages, and no linear ones."""
    sharpness, first, step = draw.uniform(3, low=0.7, high=1.4).tolist()
    more, less, added = draw.uniform(3, low=0.4, high=0.6).tolist()

    def averaging(weights_of, prefers=True):
        """Return an attention function whose weights are made from the scores by `weights_of`."""

        def attention(query, key, value):
            scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
            if prefers:  # keys by their places, so that no weight is known beforehand
                scores = sharpness * scores + torch.sin(first + step * torch.arange(key.shape[-2]))
            return weights_of(scores) @ value

        return attention

    def around(before=lambda value: value, after=lambda output: output):
        """Return correct attention with a change to its values or to its output."""
        correct = averaging(lambda scores: scores.softmax(dim=-1))
        return lambda query, key, value: after(correct(query, key, before(value)))

    correct_ones = {
        "attention as in 1.4": averaging(lambda scores: scores.softmax(dim=-1), prefers=False),
        "torch's own attention": F.scaled_dot_product_attention,
        "attention that prefers some keys by their positions": around(),
        "a softmax at a very low temperature": averaging(
            lambda scores: (50 * scores).softmax(dim=-1)
        ),
        "one whose weights sum to 1 up to rounding": averaging(
            lambda scores: scores.softmax(dim=-1) * (1 + 2 * torch.finfo(scores.dtype).eps)
        ),
        "the plain mean of the values": averaging(lambda scores: (0 * scores).softmax(dim=-1)),
        "the value of the best key, unchanged": best_value,
    }
    no_averages = {
        "the weights of a query sum to more than 1": averaging(
            lambda scores: (1 + more) * scores.softmax(dim=-1)
        ),
        "the weights of a query sum to less than 1": averaging(
            lambda scores: (1 - less) * scores.softmax(dim=-1)
        ),
        "the weights sum to 1, and some are negative": averaging(
            lambda scores: (
                (1.5 + more) * (3 * scores).softmax(dim=-1) - (0.5 + more) * scores.softmax(dim=-1)
            ),
            prefers=False,
        ),
        "every feature of the output is the largest number of all features": largest_of_all,
    }
    not_linear = {
        "negative features of the values are clamped to 0": around(before=torch.relu),
        "every value is rescaled to norm 1": around(before=lambda v: F.normalize(v, dim=-1)),
        "a constant is added to the output": around(after=lambda output: output + added),
        "the features of the output are in reverse order": around(
            after=lambda output: output.flip(-1)
        ),
    }
    return correct_ones, no_averages, not_linear


### END PACKED


@exercise(
    "check_convex_hull",
    number="1.9",
    title="Write the tests: what averaging can and cannot do",
    asks="`check_convex_hull` and `check_value_map_commutes` call the attention function that they "
    "are given on inputs of your choice, and `assert` the property that must hold.",
    difficulty=4,
    importance=4,
    minutes=35,
    deeper=True,
)
class TestCheckConvexHull:
    @points(1)
    def test_weights_that_sum_to_more_than_one_are_caught(self, subject, case):
        self.judge_hull(subject, case, "the weights of a query sum to more than 1")

    @points(1)
    def test_weights_that_sum_to_less_than_one_are_caught(self, subject, case):
        self.judge_hull(subject, case, "the weights of a query sum to less than 1")

    @points(1)
    def test_negative_weights_are_caught(self, subject, case):
        self.judge_hull(subject, case, "the weights sum to 1, and some are negative")

    @points(1)
    def test_features_outside_their_own_range_are_caught(self, subject, case):
        self.judge_hull(
            subject, case, "every feature of the output is the largest number of all features"
        )

    @points(1)
    def test_clamped_values_are_caught(self, subject, case):
        self.judge_map(subject, case, "negative features of the values are clamped to 0")

    @points(1)
    def test_normalised_values_are_caught(self, subject, case):
        self.judge_map(subject, case, "every value is rescaled to norm 1")

    @points(1)
    def test_a_constant_added_to_the_output_is_caught(self, subject, case):
        self.judge_map(subject, case, "a constant is added to the output")

    @points(1)
    def test_features_in_another_order_are_caught(self, subject, case):
        self.judge_map(subject, case, "the features of the output are in reverse order")

    def judge_hull(self, subject, case, bug):
        right, wrong, _ = drawn_once(case, averages)
        expect_test_judges(subject, case, "check_convex_hull", right, wrong, bug)

    def judge_map(self, subject, case, bug):
        right, _, wrong = drawn_once(case, averages)
        expect_test_judges(subject, case, "check_value_map_commutes", right, wrong, bug)


# 1.10 -----------------------------------------------------------------------------------------


def backward_inputs(case):
    query, key, value = attention_inputs(case)
    return query, key, value, case.normal(*query.shape[:-1], value.shape[-1])


def large_backward_inputs(case):
    query, *rest = backward_inputs(case)
    return with_large_queries(query), *rest


@oracle
def backward_oracle(query, key, value, grad_output):
    leaves = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    output = F.scaled_dot_product_attention(*leaves)
    return torch.autograd.grad(output, leaves, grad_output)


@oracle
def jacobian_oracle(query, key, value):
    def output(query):
        return F.scaled_dot_product_attention(query[None, :], key, value)[0]

    return torch.autograd.functional.jacobian(output, query)


GRADIENTS = {
    "grad_query": "batch q_len d_head",
    "grad_key": "batch k_len d_head",
    "grad_value": "batch k_len d_value",
}


@exercise(
    "attention_backward",
    number="1.10",
    title="Backward by hand",
    by_hand=True,
    asks="`attention_backward` returns (grad_query, grad_key, grad_value), given the gradient with "
    "respect to the output; `output_jacobian` returns the derivative of the output of one query "
    "with respect to that query. Do not use autograd in either.",
    difficulty=5,
    importance=3,
    minutes=45,
    deeper=True,
)
class TestAttentionBackward:
    @points(1)
    def test_the_gradient_with_respect_to_the_values_is_correct(self, subject, case):
        self.compare(subject, case, "grad_value")

    @points(2)
    def test_the_gradient_with_respect_to_the_queries_is_correct(self, subject, case):
        self.compare(subject, case, "grad_query")

    @points(2)
    def test_the_gradient_with_respect_to_the_keys_is_correct(self, subject, case):
        self.compare(subject, case, "grad_key")

    @points(2)
    def test_the_jacobian_with_respect_to_the_query_is_correct(self, subject, case):
        def inputs(case):
            return tuple(tensor[0] for tensor in attention_inputs(case))

        def one_query(case):
            query, key, value = inputs(case)
            return query[0], key, value

        def large(case):
            query, key, value = one_query(case)
            return 1e5 * query, key, value

        returns = {"jacobian": "d_value d_head"}
        for draw in (one_query, large):
            expect_agrees(subject, case, "output_jacobian", draw, jacobian_oracle, returns)

    def compare(self, subject, case, gradient):
        for inputs in (backward_inputs, large_backward_inputs):
            expect_agrees(
                subject,
                case,
                "attention_backward",
                inputs,
                backward_oracle,
                GRADIENTS,
                compare=[gradient],
            )


# Bug hunts ------------------------------------------------------------------------------------


@exercise(
    "mended_attention",
    number="1.5",
    title="Bug hunt: a scale that is computed and never used",
    asks="Return the output of attention: the published function with its two bugs fixed.",
    difficulty=1,
    importance=4,
    minutes=10,
)
class TestMendedAttention:
    @points(2)
    def test_the_output_equals_scaled_dot_product_attention(self, subject, case):
        for inputs in (attention_inputs, large_inputs):
            expect_agrees(subject, case, "mended_attention", inputs, output_oracle, OUTPUT)

    @points(1)
    def test_the_softmax_does_not_saturate_in_wide_heads(self, subject, case):
        def inputs(case):
            q_len, k_len, d_head = case.size("q_len", 3), case.size("k_len", 11), 256
            return (
                case.normal(1, q_len, d_head),
                case.normal(1, k_len, d_head),
                # wider than there are keys: neither number may be taken for the other
                F.pad(torch.eye(k_len, dtype=torch.float64), (0, 3))[None],
            )

        def law(output, query, key, value):
            expected = output_oracle(query, key, value)
            if output.shape != expected.shape:
                return f"output has shape {tuple(output.shape)}, expected {tuple(expected.shape)}"
            largest, right = float(output.max()), float(expected.max())
            if not abs(largest - right) < 1e-6:
                return (
                    f"with d_head = 256 the largest weight is {largest:.3f}, expected {right:.3f}"
                )
            return None

        expect_law(subject, case, "mended_attention", inputs, law)


def mixing_inputs(case):
    q_len, k_len = case.size("q_len", 5), case.size("k_len", 7)
    d_model, d_value = case.size("d_model", 4), case.size("d_value", 6)
    weights = case.uniform(q_len, k_len, low=0.1)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    return (
        weights,
        case.normal(k_len, d_model),
        case.normal(d_model, d_value),
        case.normal(d_value),
    )


@oracle
def mixing_oracle(weights, tokens, w_value, b_value):
    """The result of the old function, in an order in which nothing overflows."""
    mixed = torch.einsum("qk,kd->qd", weights, tokens)
    return torch.addmm(torch.outer(weights.sum(dim=1), b_value), mixed, w_value)


@exercise(
    "project_after_mixing",
    number="1.8",
    title="Bug hunt: the value projection that was moved",
    asks="Return the average of the projected values, but project only once per query: fix the "
    "fast function for rows that do not sum to 1.",
    difficulty=2,
    importance=3,
    minutes=10,
    deeper=True,
)
class TestProjectAfterMixing:
    @points(1)
    def test_rows_that_sum_to_one_give_the_original_output(self, subject, case):
        expect_agrees(
            subject,
            case,
            "project_after_mixing",
            mixing_inputs,
            mixing_oracle,
            {"output": "q_len d_value"},
        )

    @points(2)
    def test_a_row_that_sums_to_less_than_one_gets_less_of_the_bias(self, subject, case):
        def inputs(case):
            weights, *rest = mixing_inputs(case)
            keep = torch.linspace(1.0, 0.0, len(weights), dtype=torch.float64)
            return weights * keep[:, None], *rest

        def overflowing_inputs(case):
            """The last feature is infinite of a projected token, not of a projected average."""
            weights, tokens, w_value, b_value = mixing_inputs(case)
            w_value[:, -1] = 1e160 * w_value[:, -1].abs()
            return 1e-160 * weights, 1e160 * tokens.abs(), w_value, b_value

        for draw in (inputs, overflowing_inputs):
            expect_agrees(
                subject,
                case,
                "project_after_mixing",
                draw,
                mixing_oracle,
                {"output": "q_len d_value"},
            )
