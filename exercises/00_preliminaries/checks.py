"""What is graded in chapter 00, the warm-up.

Made by `classroom release`: what is right, and what known mistakes return, comes as data in
prepared.zip.
"""

import math
from dataclasses import replace
from functools import partial

import torch

from classroom.exercise.expect import (
    CheckFailed,
    exercise,
    expect_agrees,
    expect_gradients,
    expect_inputs_unchanged,
    expect_law,
    expect_test_judges,
    points,
)
from classroom.exercise.prepared import handed_out, known, packed

INFINITY = float("inf")


def expect_named_gradients(subject, case, name, inputs, oracle, wrt):
    """Expect the gradients of `oracle`; name the mistakes that have the same wrong gradients."""
    problem = gradient_problem(subject, case, name, inputs, oracle, wrt)
    if problem:
        alike = [
            mistake
            for mistake in case.mistakes
            if gradient_problem(known(mistake), case, name, inputs, oracle, wrt) == problem
        ]
        raise CheckFailed(problem, alike)


def gradient_problem(subject, case, name, inputs, oracle, wrt):
    """Describe what is wrong with the gradients, on the same inputs each time."""
    try:
        expect_gradients(subject, case.fresh(0), name, inputs, oracle, wrt)
    except CheckFailed as failure:
        return failure.problem
    return None


def integers(case, high, *shape):
    """Draw integers from 0 to `high` - 1."""
    return torch.randint(high, shape, generator=case.generator)


# 0.0 ------------------------------------------------------------------------------------------


@exercise(
    "mean_of_rows",
    number="0.0",
    title="How this works: an easy example",
    may_cut=("mean_of_rows",),
    asks="Return the mean of each row of x.",
    difficulty=1,
    importance=1,
    minutes=5,
)
class TestMeanOfRows:
    @points(1)
    def test_each_entry_is_the_mean_of_its_row(self, subject, case):
        def inputs(case):
            return (case.normal(case.size("rows", 3), case.size("columns", 5)),)

        @handed_out
        def right(x):
            ...

        expect_agrees(subject, case, "mean_of_rows", inputs, right, {"means": "rows"})


# 0.1 ------------------------------------------------------------------------------------------


@handed_out
def softmax_oracle(scores, dim):
    ...


@handed_out
def log_softmax_oracle(scores, dim):
    ...


@handed_out
def logsumexp_oracle(scores, dim):
    ...


def block_along(dim):
    """Return a function that draws a block of scores, to be normalised along `dim`."""

    def inputs(case):
        shape = case.size("batch", 2), case.size("rows", 5), case.size("columns", 7)
        return case.normal(*shape, std=2.0), dim

    return inputs


def one_column(case):
    """Draw a block of scores whose last axis has size 1."""
    return case.normal(case.size("batch", 2), case.size("rows", 5), 1), 1


def far_inputs(case):
    """Rows around 0, around 1000, around -1000, and so on."""
    rows, columns = case.size("rows", 3), case.size("columns", 7)
    offsets = torch.tensor([0.0, 1000.0, -1000.0]).repeat(rows)[:rows]
    return case.normal(rows, columns) + offsets[:, None].double(), -1


def spread_inputs(case):
    """Rows in which the scores lie about a thousand apart."""
    rows, columns = case.size("rows", 3), case.size("columns", 7)
    steps = 1000.0 * torch.arange(columns, dtype=torch.float64)
    return case.normal(rows, columns) - steps, -1


def forbidden_inputs(case):
    """The first row is all minus infinity, the second partly, the others not at all."""
    rows, columns = case.size("rows", 5, smallest=2), case.size("columns", 7, smallest=2)
    scores = case.normal(rows, columns)
    scores[0] = -INFINITY
    scores[1, : columns // 2] = -INFINITY
    return scores, -1


def far_beside_forbidden(case):
    """The first row is all minus infinity, the others lie around 1000, around -1000, around 0."""
    rows, columns = case.size("rows", 4, smallest=2), case.size("columns", 7)
    offsets = torch.tensor([-INFINITY, 1000.0, -1000.0, 0.0]).repeat(rows)[:rows]
    return case.normal(rows, columns) + offsets[:, None].double(), -1


def far_and_partly_forbidden(case):
    """Rows around 0, around 1000, around -50,000; some scores of the later ones are minus infinity."""
    rows, columns = case.size("rows", 3, smallest=2), case.size("columns", 7, smallest=2)
    scores = far_inputs(replace(case, sizes={"rows": rows, "columns": columns}))[0]
    scores[1:, : columns // 2] = -INFINITY
    scores[2:] -= 49_000.0
    return scores, -1


WEIGHTS = {"weights": "batch rows columns"}
ROW_WEIGHTS = {"weights": "rows columns"}
ROW_LOGS = {"log_weights": "rows columns"}
ROW_TOTALS = {"totals": "rows"}


@exercise(
    "stable_softmax",
    number="0.1",
    title="A softmax that survives 1000",
    asks="`stable_softmax`, `log_softmax` and `logsumexp` work along the dimension they are given, "
    "for scores of any size, even where a whole row is minus infinity.",
    difficulty=3,
    importance=5,
    minutes=25,
)
class TestStableSoftmax:
    @points(2)
    def test_weights_are_a_softmax_along_the_given_dimension(self, subject, case):
        for dim in (0, 1, -1):
            expect_agrees(
                subject, case, "stable_softmax", block_along(dim), softmax_oracle, WEIGHTS
            )

    @points(1, only_with="test_weights_are_a_softmax_along_the_given_dimension")
    def test_scores_in_the_thousands_give_no_nan(self, subject, case):
        for inputs in (far_inputs, spread_inputs):
            expect_agrees(subject, case, "stable_softmax", inputs, softmax_oracle, ROW_WEIGHTS)

    @points(1)
    def test_log_softmax_is_accurate_even_where_softmax_underflows(self, subject, case):
        returns = {"log_weights": "batch rows columns"}
        for dim in (1, 0, -1):
            inputs = block_along(dim)
            expect_agrees(subject, case, "log_softmax", inputs, log_softmax_oracle, returns)
        expect_agrees(subject, case, "log_softmax", spread_inputs, log_softmax_oracle, ROW_LOGS)

    @points(1)
    def test_logsumexp_is_correct_for_scores_of_any_size(self, subject, case):
        returns = {"totals": "batch columns"}
        for dim, axes in ((1, "batch columns"), (0, "rows columns"), (-1, "batch rows")):
            inputs = block_along(dim)
            expect_agrees(subject, case, "logsumexp", inputs, logsumexp_oracle, {"totals": axes})
        expect_agrees(subject, case, "logsumexp", far_inputs, logsumexp_oracle, ROW_TOTALS)
        expect_agrees(subject, case, "logsumexp", one_column, logsumexp_oracle, returns)

    @points(2)
    def test_rows_of_only_minus_infinity_give_zero_weights_and_no_nan(self, subject, case):
        for name, right, returns in (
            ("stable_softmax", softmax_oracle, ROW_WEIGHTS),
            ("log_softmax", log_softmax_oracle, ROW_LOGS),
            ("logsumexp", logsumexp_oracle, ROW_TOTALS),
        ):
            # Only who shifts far rows by themselves can forget it beside such a row.
            for inputs in (
                forbidden_inputs,
                far_inputs,
                far_beside_forbidden,
                far_and_partly_forbidden,
            ):
                expect_agrees(subject, case, name, inputs, right, returns)

    @points(1)
    def test_inputs_are_not_modified_and_gradients_flow_back_to_them(self, subject, case):
        functions = {
            "stable_softmax": softmax_oracle,
            "log_softmax": log_softmax_oracle,
            "logsumexp": logsumexp_oracle,
        }
        for name, right in functions.items():
            expect_inputs_unchanged(subject, case, name, block_along(1))
            expect_gradients(subject, case, name, block_along(1), right, wrt=["scores"])


# 0.2 ------------------------------------------------------------------------------------------


@handed_out
def loss_oracle(logits, targets, ignore_index):
    ...


@handed_out
def sequence_oracle(logits, targets, ignore_index):
    ...


def loss_inputs(
    case,
    ignored=lambda sequence, length: 0,
    ignore_index=-100,
    std=2.0,
    length=None,
    batch=None,
):
    """Draw logits and targets; `ignored` targets of each sequence do not count.

    They are its first, its last, and others in between: neither end holds only targets that count.
    """
    batch, length = batch or case.size("batch", 3), length or case.size("length", 5)
    vocab = case.size("vocab", 7, smallest=2)
    logits = case.normal(batch, length, vocab, std=std)
    targets = integers(case, vocab, batch, length)
    for sequence in range(batch):
        between = 1 + torch.randperm(max(0, length - 2), generator=case.generator)
        places = [0, length - 1, *between.tolist()][: ignored(sequence, length)]
        targets[sequence, places] = ignore_index
    return logits, targets, ignore_index


def padded_inputs(case):
    """5, 3 and 1 of the targets count."""
    return loss_inputs(case, lambda sequence, length: min(2 * sequence, length - 1))


def with_an_empty_sequence(case):
    """5, 2 and none of the targets count."""
    return loss_inputs(case, lambda sequence, length: min(3 * sequence, length))


one_token_each = partial(loss_inputs, length=1)
one_sequence = partial(loss_inputs, batch=1)
LOSS = {"loss": ""}


@exercise(
    "cross_entropy",
    number="0.2",
    title="Cross-entropy, and targets that do not count",
    asks="`cross_entropy` returns the mean of -ln p over all targets that count; `sequence_losses` "
    "returns this mean for each sequence.",
    difficulty=3,
    importance=5,
    minutes=20,
)
class TestCrossEntropy:
    @points(2)
    def test_the_loss_is_the_mean_surprisal_of_the_targets(self, subject, case):
        for inputs in (loss_inputs, one_token_each):
            expect_agrees(subject, case, "cross_entropy", inputs, loss_oracle, LOSS)

    @points(2)
    def test_ignored_targets_are_excluded_from_the_sum_and_the_count(self, subject, case):
        expect_agrees(subject, case, "cross_entropy", padded_inputs, loss_oracle, LOSS)
        inputs = with_an_empty_sequence
        expect_agrees(subject, case, "cross_entropy", inputs, loss_oracle, LOSS)

    @points(1)
    def test_the_ignore_index_may_be_a_token_id(self, subject, case):
        for index in (1, 99):  # a token, and a number that is none
            inputs = partial(loss_inputs, ignored=lambda sequence, _: sequence, ignore_index=index)
            expect_agrees(subject, case, "cross_entropy", inputs, loss_oracle, LOSS)

    @points(1)
    def test_a_confident_wrong_prediction_costs_its_full_loss(self, subject, case):
        def inputs(case):
            logits, targets, ignore_index = loss_inputs(case, std=200.0)
            # Beyond what an exponential can hold. NaN, which has many reasons, would not be named.
            logits[:, 0] = 1000.0
            logits[:, 0].scatter_(1, targets[:, :1], -100.0)
            return logits, targets, ignore_index

        expect_agrees(subject, case, "cross_entropy", inputs, loss_oracle, LOSS)
        returns = {"losses": "batch"}
        expect_agrees(subject, case, "sequence_losses", inputs, sequence_oracle, returns)

    @points(1)
    def test_each_sequence_loss_is_averaged_over_its_own_targets(self, subject, case):
        returns = {"losses": "batch"}
        for inputs in (with_an_empty_sequence, one_token_each, one_sequence):
            expect_agrees(subject, case, "sequence_losses", inputs, sequence_oracle, returns)

    @points(1)
    def test_without_targets_the_loss_is_zero_and_gradients_are_correct(self, subject, case):
        def inputs(case):
            return loss_inputs(case, lambda sequence, length: length)

        expect_agrees(subject, case, "cross_entropy", inputs, loss_oracle, LOSS)
        for name, given, right in (
            ("cross_entropy", padded_inputs, loss_oracle),
            ("sequence_losses", with_an_empty_sequence, sequence_oracle),
            ("cross_entropy", inputs, loss_oracle),
        ):
            expect_named_gradients(subject, case, name, given, right, wrt=["logits"])
            expect_inputs_unchanged(subject, case, name, given)


# 0.3 ------------------------------------------------------------------------------------------


@handed_out
def split_oracle(x, num_heads):
    ...


@handed_out
def merge_oracle(heads):
    ...


@handed_out
def transposed_oracle(x):
    ...


@handed_out
def scores_oracle(query, key):
    ...


@exercise(
    "split_heads",
    number="0.3",
    title="View versus transpose",
    asks="`split_heads` splits each token into heads, `merge_heads` is its inverse, `time_first` "
    "moves the length before the batch, and `head_scores` returns the dot products of queries and "
    "keys in each head.",
    difficulty=2,
    importance=5,
    minutes=20,
)
class TestSplitHeads:
    @points(2)
    def test_each_head_gets_its_slice_of_the_features_of_every_token(self, subject, case):
        def inputs(case):
            batch, length = case.size("batch", 2), case.size("length", 5)
            num_heads, d_head = case.size("num_heads", 3), case.size("d_head", 4)
            return case.normal(batch, length, num_heads * d_head), num_heads

        returns = {"heads": "batch num_heads length d_head"}
        expect_agrees(subject, case, "split_heads", inputs, split_oracle, returns)

    @points(2)
    def test_the_heads_of_each_token_are_concatenated(self, subject, case):
        def inputs(case):
            batch, num_heads = case.size("batch", 2), case.size("num_heads", 3)
            return (case.normal(batch, num_heads, case.size("length", 5), case.size("d_head", 4)),)

        returns = {"merged": "batch length d_model"}
        expect_agrees(subject, case, "merge_heads", inputs, merge_oracle, returns)

    @points(1)
    def test_length_comes_before_batch_and_no_sequences_are_mixed(self, subject, case):
        def inputs(case):
            batch, length = case.size("batch", 2), case.size("length", 5)
            return (case.normal(batch, length, case.size("d_model", 3)),)

        returns = {"swapped": "length batch d_model"}
        expect_agrees(subject, case, "time_first", inputs, transposed_oracle, returns)

    @points(2)
    def test_each_head_scores_its_own_queries_against_its_own_keys(self, subject, case):
        def inputs(case):
            batch, heads = case.size("batch", 2), case.size("num_heads", 3)
            d_head = case.size("d_head", 4)
            return (
                case.normal(batch, heads, case.size("q_len", 5), d_head),
                case.normal(batch, heads, case.size("k_len", 7), d_head),
            )

        returns = {"scores": "batch num_heads q_len k_len"}
        expect_agrees(subject, case, "head_scores", inputs, scores_oracle, returns)


# 0.4 ------------------------------------------------------------------------------------------


def drawn_documents(case, vocab, *more):
    """Draw documents, one of two tokens, which has one pair; `more` are lengths of others."""
    lengths = case.size("first_len", 11, smallest=2), case.size("second_len", 5, smallest=2)
    return [integers(case, vocab, length) for length in (*lengths, 2, *more)]


def training_inputs(case):
    """Three documents, one with a repeated pair, and one with a single token, which has no pair."""
    vocab = case.size("vocab_size", 7, smallest=2)
    documents = drawn_documents(case, vocab, 1)
    documents[0][-2:] = documents[0][:2].clone()
    return documents, vocab, (2 * case.integer(1, 4) + 1) / 4  # never 1


def training_inputs_hardly_smoothed(case):
    """So little is added that a pair that was not seen has a probability of about a billionth.

    Some tokens of the vocabulary do not occur, not even the last.
    """
    documents, vocab, smoothing = training_inputs(case)
    return documents, vocab + 4, 1e-9 * smoothing


@handed_out
def bigram_oracle(documents, vocab_size, smoothing):
    ...


def other_denominator(log_probs, documents, vocab_size, smoothing):
    """Say by what a row of smoothed counts was divided, if by one number that is not their sum."""
    quotient = (bigram_oracle(documents, vocab_size, smoothing) - log_probs).exp()
    one = quotient[:, :1]
    if not quotient.isfinite().all() or not torch.allclose(quotient, one.expand_as(quotient)):
        return ""
    row = int((one - 1).abs().argmax())
    pairs = sum(int((document[:-1] == row).sum()) for document in documents)
    total = pairs + vocab_size * smoothing
    return (
        f". In row {row}, the smoothed counts are divided by {total * float(one[row]):.4g}, but "
        f"they sum to {total:.4g}: {pairs} of the pairs begin with token {row}, and the smoothing "
        f"is added for each of the {vocab_size} tokens that may follow"
    )


def held_out_inputs(case, *more):
    vocab = case.size("vocab_size", 7, smallest=2)
    documents = drawn_documents(case, vocab, *more)
    return case.normal(vocab, vocab, std=1.5).log_softmax(dim=-1), documents


def with_a_single_token(case):
    """The last document has one token, and no pair."""
    return held_out_inputs(case, 1)


@handed_out
def held_out_oracle(log_probs, documents):
    ...


@exercise(
    "bigram",
    number="0.4",
    title="A language model from counts",
    may_cut=("bigram_loss",),
    asks="`bigram` returns ln p(next | previous) from smoothed counts, one row for each previous "
    "token; `bigram_loss` evaluates it on other documents; `first_loss` returns the loss at which "
    "training starts.",
    difficulty=2,
    importance=4,
    minutes=20,
)
class TestBigram:
    @points(3)
    def test_each_row_holds_smoothed_log_probabilities_of_the_next_token(self, subject, case):
        returns, why = {"log_probs": "vocab_size vocab_size"}, other_denominator
        name, given, hardly = "bigram", training_inputs, training_inputs_hardly_smoothed
        expect_agrees(subject, case, name, given, bigram_oracle, returns, why=why, also=[hardly])
        # In single precision a count hides what is added to it.
        off = 1e-5
        expect_agrees(subject, case, name, hardly, bigram_oracle, returns, tolerance=off, why=why)

    @points(2)
    def test_the_loss_is_the_mean_over_all_bigrams_in_nats(self, subject, case):
        for inputs in (held_out_inputs, with_a_single_token):
            expect_agrees(subject, case, "bigram_loss", inputs, held_out_oracle, LOSS)

    @points(1)
    def test_an_untrained_model_has_the_expected_initial_loss(self, subject, case):
        def inputs(case):
            return (case.integer(3, 60_000),)

        @handed_out
        def right(vocab_size):
            ...

        expect_agrees(subject, case, "first_loss", inputs, right, LOSS)


# 0.5 ------------------------------------------------------------------------------------------


@handed_out
def tanh_oracle(x):
    ...


@handed_out
def silu_oracle(x):
    ...


@handed_out
def softplus_oracle(x):
    ...


@handed_out
def gelu_oracle(x):
    ...


@handed_out
def gelu_tanh_oracle(x):
    ...


def features(case):
    return (case.normal(case.size("rows", 3), case.size("columns", 5), std=2.0),)


def large_features(case):
    """Where softplus is nearly x, and not yet x."""
    return (case.uniform(case.size("rows", 3), case.size("columns", 5), low=4.0, high=12.0),)


def extreme_features(case):
    x = case.normal(case.size("width", 7, smallest=2), std=2.0)
    x[0], x[-1] = -1000.0, 1000.0
    return (x,)


FEATURES = {"y": "rows columns"}


@exercise(
    "activations",
    number="0.5",
    title="Activation functions and their lookalikes",
    asks="`tanh_by_sigmoid`, `silu`, `softplus`, `gelu` and `gelu_tanh` each apply a function to "
    "x, element by element.",
    difficulty=2,
    importance=3,
    minutes=20,
    deeper=True,
)
class TestActivations:
    @points(1)
    def test_tanh_by_sigmoid_equals_tanh(self, subject, case):
        expect_agrees(subject, case, "tanh_by_sigmoid", features, tanh_oracle, FEATURES)

    @points(1)
    def test_silu_is_x_gated_by_its_own_sigmoid(self, subject, case):
        expect_agrees(subject, case, "silu", features, silu_oracle, FEATURES)

    @points(1)
    def test_softplus_is_a_smooth_relu(self, subject, case):
        for inputs in (features, large_features):
            expect_agrees(subject, case, "softplus", inputs, softplus_oracle, FEATURES)

    @points(1)
    def test_gelu_is_x_weighted_by_the_normal_distribution_function(self, subject, case):
        expect_agrees(subject, case, "gelu", features, gelu_oracle, FEATURES)

    @points(1)
    def test_gelu_tanh_is_the_tanh_approximation_of_gelu(self, subject, case):
        expect_agrees(subject, case, "gelu_tanh", features, gelu_tanh_oracle, FEATURES)

    @points(1)
    def test_softplus_does_not_overflow_at_1000_or_minus_1000(self, subject, case):
        right = softplus_oracle
        expect_agrees(subject, case, "softplus", extreme_features, right, {"y": "width"})
        # At this point the function has returned 1000.
        others = [mistake for mistake in case.mistakes if mistake.name != "SoftplusOverflows"]
        case = replace(case, mistakes=others)
        expect_named_gradients(subject, case, "softplus", extreme_features, right, ["x"])

    @points(1)
    def test_the_other_functions_do_not_overflow_at_1000_or_minus_1000(self, subject, case):
        functions = {
            "tanh_by_sigmoid": tanh_oracle,
            "silu": silu_oracle,
            "gelu": gelu_oracle,
            "gelu_tanh": gelu_tanh_oracle,
        }
        for name, right in functions.items():
            expect_agrees(subject, case, name, extreme_features, right, {"y": "width"})


# 0.6 ------------------------------------------------------------------------------------------


@handed_out
def logistic_oracle(weights, bias, x, labels, learning_rate):
    ...


@handed_out
def classifier_oracle(weights, bias, x, labels, learning_rate):
    ...


def logistic_inputs(case):
    batch, d_in = case.size("batch", 5, smallest=2), case.size("d_in", 4)
    return (
        case.normal(d_in),
        case.normal(),
        case.normal(batch, d_in),
        integers(case, 2, batch),
        case.integer(3, 9) / 10,
    )


def classifier_inputs(case):
    batch, d_in = case.size("batch", 5, smallest=2), case.size("d_in", 4)
    classes = case.size("classes", 3, smallest=2)
    labels = integers(case, classes, batch)
    labels[-1] = classes - 1  # never without it by chance: see below
    return (
        case.normal(d_in, classes),
        case.normal(classes),
        case.normal(batch, d_in),
        labels,
        case.integer(3, 9) / 10,
    )


def without_the_last_class(case):
    """Two classes, where all examples belong to the first."""
    batch, d_in, classes = case.size("batch", 5, smallest=2), case.size("d_in", 4), 2
    return (
        case.normal(d_in, classes),
        case.normal(classes),
        case.normal(batch, d_in),
        torch.zeros(batch, dtype=torch.int64),
        case.integer(3, 9) / 10,
    )


def with_large_logits(inputs):
    """Return inputs whose logits lie in the thousands; those of the first example are small."""

    def draw(case):
        weights, bias, x, labels, learning_rate = inputs(case)
        x[1:] *= 4000.0
        x[1] *= (x[1] @ weights.view(x.shape[1], -1)[:, 0]).sign()  # one is positive
        return weights, bias, x, labels, learning_rate

    return draw


LOGISTIC = {"weights": "d_in", "bias": ""}
CLASSIFIER = {"weights": "d_in classes", "bias": "classes"}


@exercise(
    "gradient_step",
    number="0.6",
    title="One step of gradient descent by hand",
    by_hand=True,
    asks="`gradient_step` (two classes) and `classifier_step` (any number) return (weights, bias) "
    "after one step on the mean loss of the batch, without autograd.",
    difficulty=3,
    importance=4,
    minutes=30,
    deeper=True,
)
class TestGradientStep:
    @points(2)
    def test_logistic_regression_weights_take_one_gradient_step(self, subject, case):
        for inputs in (logistic_inputs, with_large_logits(logistic_inputs)):
            expect_agrees(
                subject,
                case,
                "gradient_step",
                inputs,
                logistic_oracle,
                LOGISTIC,
                compare=["weights"],
                also=[logistic_inputs],  # where an overflow has not left only NaN
            )

    @points(1)
    def test_the_logistic_regression_bias_takes_one_gradient_step(self, subject, case):
        expect_agrees(subject, case, "gradient_step", logistic_inputs, logistic_oracle, LOGISTIC)

    @points(2)
    def test_softmax_classifier_weights_take_one_gradient_step(self, subject, case):
        large = with_large_logits(classifier_inputs)
        for inputs in (classifier_inputs, without_the_last_class, large):
            expect_agrees(
                subject,
                case,
                "classifier_step",
                inputs,
                classifier_oracle,
                CLASSIFIER,
                compare=["weights"],
                also=[classifier_inputs],
            )

    @points(1)
    def test_softmax_classifier_biases_take_one_gradient_step(self, subject, case):
        expect_agrees(
            subject, case, "classifier_step", classifier_inputs, classifier_oracle, CLASSIFIER
        )

    @points(
        1,
        only_with=(
            "test_the_logistic_regression_bias_takes_one_gradient_step",
            "test_softmax_classifier_biases_take_one_gradient_step",
        ),
    )
    def test_inputs_are_not_modified(self, subject, case):
        expect_inputs_unchanged(subject, case, "gradient_step", logistic_inputs)
        expect_inputs_unchanged(subject, case, "classifier_step", classifier_inputs)


# 0.7 ------------------------------------------------------------------------------------------


def uneven_rate(case):
    """Draw a rate, never one half: there, dropping and keeping are the same."""
    return (1, 2, 3, 4, 6, 7, 8)[case.integer(0, 6)] / 10


def dropout_inputs(case, training=True):
    # Of 77 features no tenth is a whole number: chance never gives the expected fraction.
    shape = case.size("length", 7), case.size("d_model", 11)
    return case.normal(*shape), case.uniform(*shape), uneven_rate(case), training


def ones_and_even_noise(case):
    """Evenly spaced noise in a random order: exactly the expected fraction lies below the rate.

    One feature's noise is 0, another's is the rate.
    """
    width = 10 * case.size("tens", 2)
    order = torch.randperm(width, generator=case.generator)
    return torch.ones(width).double(), order.double() / width, uneven_rate(case), True


@handed_out
def dropout_oracle(x, noise, rate, training):
    ...


@exercise(
    "mended_dropout",
    number="0.7",
    title="Bug hunt: dropout that changes the mean",
    asks="In training, return x with a fraction `rate` of its features dropped and the others "
    "scaled up; in evaluation, return x itself.",
    difficulty=2,
    importance=3,
    minutes=15,
    deeper=True,
)
class TestMendedDropout:
    @points(1, only_with="test_the_noise_decides_which_features_are_dropped")
    def test_the_rate_is_the_fraction_of_features_dropped(self, subject, case):
        def law(output, x, noise, rate, training):
            if output.shape != x.shape:
                return f"output has shape {tuple(output.shape)}, expected {tuple(x.shape)}"
            dropped, expected = int((output == 0).sum()), int((noise < rate).sum())
            if dropped != expected:
                return (
                    f"at rate {rate} in training, {dropped} of {len(x)} features were dropped, "
                    f"expected {expected}"
                )
            return None

        inputs = ones_and_even_noise
        expect_law(subject, case, "mended_dropout", inputs, law, correct=dropout_oracle)

    @points(1, only_with="test_the_noise_decides_which_features_are_dropped")
    def test_the_expected_value_is_preserved(self, subject, case):
        def law(output, x, noise, rate, training):
            mean = float(output.mean())
            if not abs(mean - 1) < 1e-6:
                return f"at rate {rate} in training, ones become {mean:.4g} on average, expected 1"
            return None

        inputs = ones_and_even_noise
        expect_law(subject, case, "mended_dropout", inputs, law, correct=dropout_oracle)

    @points(1)
    def test_the_noise_decides_which_features_are_dropped(self, subject, case):
        expect_agrees(
            subject,
            case,
            "mended_dropout",
            dropout_inputs,
            dropout_oracle,
            {"output": "length d_model"},
        )

    @points(1, only_with="test_the_noise_decides_which_features_are_dropped")
    def test_inputs_are_not_modified(self, subject, case):
        expect_inputs_unchanged(subject, case, "mended_dropout", dropout_inputs)

    @points(1, only_with="test_the_noise_decides_which_features_are_dropped")
    def test_in_evaluation_mode_the_output_equals_the_input(self, subject, case):
        def inputs(case):
            return dropout_inputs(case, training=False)

        expect_agrees(
            subject, case, "mended_dropout", inputs, dropout_oracle, {"output": "length d_model"}
        )


# 0.8 ------------------------------------------------------------------------------------------


exec(packed(__file__, 0), globals())


@handed_out
def agreement(seen, expected):
    ...


def gap(seen, expected):
    """Describe the largest difference between two tensors."""
    if seen.shape != expected.shape:
        return f"the shapes are {tuple(seen.shape)} and {tuple(expected.shape)}"
    difference = seen - expected
    if difference.isnan().any():
        return "one of the numbers is NaN"
    return f"one number is off by {float(difference.flatten()[difference.abs().argmax()]):.2g}"


def numbers(case):
    return case.normal(case.size("rows", 3, smallest=2), case.size("columns", 5, smallest=2))


def off_by(amount):
    """Return a function that draws a tensor and a copy with one wrong number."""

    def inputs(case):
        expected = numbers(case)
        seen = expected.clone()
        seen[-1, 0] += amount
        return seen, expected

    return inputs


def with_nan_in_both(case):
    """The same tensor twice, with a NaN in it."""
    expected = numbers(case)
    expected[-1, 0] = float("nan")
    return expected.clone(), expected


def large_and_off(case):
    """Numbers around 1000, one of them off by less than a part in 100,000."""
    expected = numbers(case) + 1000.0
    seen = expected.clone()
    seen[-1, 0] += 0.005
    return seen, expected


def of_broadcasting_shapes(case):
    """All numbers are equal, but there are more of one."""
    seen = case.normal(1, 1).repeat(case.size("rows", 3, smallest=2), 1)
    return seen, seen[0].clone()


def of_one_axis_more(case):
    """The same numbers, as many of both."""
    seen = numbers(case)
    return seen, seen[None].clone()


@exercise(
    "check_softmax",
    number="0.8",
    title="Write the test: one that can fail",
    asks="`agree` says whether two tensors hold the same numbers; `check_softmax` calls the "
    "given softmax on scores of your choice and `assert`s that the results are correct.",
    difficulty=4,
    importance=5,
    minutes=30,
    deeper=True,
)
class TestCheckSoftmax:
    @points(1)
    def test_agree_accepts_rounding_errors_and_rejects_wrong_numbers(self, subject, case):
        for inputs in (*map(off_by, (5e-6, 1e-4, 0.01, -0.01, -1e-4)), large_and_off):
            self.judge_agreement(subject, case, inputs)
        # In random order, so that answers which ignore the numbers are wrong.
        for inputs in case.shuffled(5 * [off_by(5e-6), off_by(0.01)]):
            self.judge_agreement(subject, case, inputs)

    @points(1, only_with="test_agree_accepts_rounding_errors_and_rejects_wrong_numbers")
    def test_agree_rejects_nan_and_different_shapes(self, subject, case):
        self.judge_agreement(subject, case, off_by(float("nan")))
        # At this point the function has returned False for a single NaN.
        others = [mistake for mistake in case.mistakes if mistake.name != "NanAgrees"]
        self.judge_agreement(subject, replace(case, mistakes=others), with_nan_in_both)
        for inputs in (of_broadcasting_shapes, of_one_axis_more):
            self.judge_agreement(subject, case, inputs)

    @points(1)
    def test_a_softmax_without_a_shift_is_caught(self, subject, case):
        self.judge(subject, case, "there is no shift: a score of 1000 gives NaN")

    @points(1)
    def test_one_shift_for_all_rows_is_caught(self, subject, case):
        self.judge(
            subject, case, "the shift is the largest score of all rows, so rows far below give 0"
        )

    @points(1)
    def test_clamped_scores_are_caught(self, subject, case):
        self.judge(subject, case, "large scores are clamped at 50")

    @points(1)
    def test_an_ignored_dim_argument_is_caught(self, subject, case):
        self.judge(subject, case, "dim is ignored: the last axis is always used")

    @points(1)
    def test_a_softmax_with_a_base_other_than_e_is_caught(self, subject, case):
        def nearly_one_hot(weights):
            if all(bool((w * (1 - w) < 1e-4).all()) for w in weights):
                return "every row is nearly one-hot, in any base: add rows of scores around 0"
            return ""

        self.judge(subject, case, "2 is raised to the scores instead of e", why=nearly_one_hot)
        for bug in ("the scores are doubled", "the scores are halved"):
            self.judge(subject, case, bug, why=nearly_one_hot)

    def judge(self, subject, case, bug, **more):
        expect_test_judges(subject, case, "check_softmax", RIGHT, WRONG, bug, **more)

    def judge_agreement(self, subject, case, inputs):
        def law(answer, seen, expected):
            right = agreement(seen, expected)
            if isinstance(answer, torch.Tensor) and answer.dim() > 0:
                shape = tuple(answer.shape)
                return f"`agree` should return True or False; it returned a tensor of shape {shape}"
            if answer not in (True, False):
                return f"`agree` should return True or False; it returned {answer!r}"
            if bool(answer) == right:
                return None
            return (
                f"`agree` returned {bool(answer)}; it should return {right}: {gap(seen, expected)}"
            )

        expect_law(subject, case, "agree", inputs, law)
