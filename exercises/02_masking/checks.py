"""What is graded in chapter 02, masking.

Made by `classroom release`: what is right, and what known mistakes return, comes as data in
prepared.zip.
"""

import functools
import math
from dataclasses import replace

import torch
import torch.nn.functional as F

from classroom.calls.subject import Crashed, StudentError
from classroom.exercise.cases import Case
from classroom.exercise.comparing import describe, differs, same, wrong_form
from classroom.exercise.diagnosis import Crash, answer_to, answering_alike, asking, asks_for
from classroom.exercise.expect import (
    CheckFailed,
    drawn_once,
    exercise,
    expect_agrees,
    expect_answer,
    expect_inputs_unchanged,
    expect_test_judges,
    points,
)
from classroom.exercise.prepared import handed_out, known, packed


@handed_out
def masked_oracle(scores, mask):
    ...


@handed_out
def not_later(q_len, k_len):
    ...


def with_a_large_end(query, key):
    """Give the last key scores of about 10 million, the others of minus that, and the first query 0.

    Nothing but minus infinity hides that key, and nothing that is 0 is hidden for that reason.
    """
    query[..., 0] = math.sqrt(query.shape[-1])
    key[..., 0] = -10_000_000.0
    key[..., -1, 0] = 10_000_000.0
    query[..., 0, :] = 0.0


# 2.1 ------------------------------------------------------------------------------------------

MASK = {"mask": "q_len k_len"}


@exercise(
    "causal_mask",
    number="2.1",
    title="The causal mask",
    asks="Return a boolean tensor (q_len, k_len), True where the key is not later than the query; "
    "the queries are the last q_len of the k_len positions.",
    difficulty=1,
    importance=5,
    minutes=10,
)
class TestCausalMask:
    @points(2)
    def test_a_query_attends_to_itself_and_to_earlier_keys(self, subject, case):
        def inputs(case):
            length = case.size("length", case.integer(4, 120))
            return length, length

        expect_agrees(subject, case, "causal_mask", inputs, not_later, MASK, draws=3)

    @points(2)
    def test_with_more_keys_than_queries_the_last_query_attends_to_all(self, subject, case):
        def inputs(case):
            q_len = case.size("q_len", case.integer(2, 13))
            return q_len, q_len + case.size("earlier", case.integer(2, 13))

        def with_a_long_cache(case):
            q_len = case.size("q_len", case.integer(2, 40))
            return q_len, q_len + case.size("earlier", case.integer(2050, 2400))

        expect_agrees(subject, case, "causal_mask", inputs, not_later, MASK, draws=3)
        draw = with_a_long_cache
        expect_agrees(subject, case, "causal_mask", draw, not_later, MASK, also=[inputs])

    @points(1, only_with="test_a_query_attends_to_itself_and_to_earlier_keys")
    def test_a_single_new_query_attends_to_every_key(self, subject, case):
        def inputs(case):
            return 1, case.size("k_len", case.integer(3, 120))

        expect_agrees(subject, case, "causal_mask", inputs, not_later, MASK, draws=3)


# 2.2 ------------------------------------------------------------------------------------------


def draw_lengths(case, batch, longest, shortest=1):
    return torch.tensor([case.integer(shortest, longest) for _ in range(batch)])


@handed_out
def padding_oracle(lengths, k_len):
    ...


PADDING = {"mask": "batch 1 1 k_len"}


@exercise(
    "padding_mask",
    number="2.2",
    title="The padding mask",
    asks="Return a boolean tensor (batch, 1, 1, k_len), True at the first lengths[b] keys of "
    "sequence b and False at its padding.",
    difficulty=1,
    importance=5,
    minutes=10,
)
class TestPaddingMask:
    @points(2)
    def test_only_the_real_tokens_of_each_sequence_are_allowed(self, subject, case):
        def inputs(case):
            batch, k_len = (
                case.size("batch", 3),
                case.size("k_len", case.integer(7, 50), smallest=3),
            )
            lengths = draw_lengths(case, batch, k_len - 2)
            lengths[0] = k_len - 1
            return lengths, k_len

        expect_agrees(subject, case, "padding_mask", inputs, padding_oracle, PADDING)

    @points(1)
    def test_a_batch_may_be_padded_beyond_its_longest_sequence(self, subject, case):
        def inputs(case):
            batch, longest = (
                case.size("batch", 2),
                case.size("longest", case.integer(5, 50), smallest=2),
            )
            extra = case.size("extra", case.integer(2, 30))
            return draw_lengths(case, batch, longest), longest + extra

        def far_beyond(case):
            lengths, k_len = inputs(case)
            return lengths, k_len + case.size("far", 2050)

        for draw in (inputs, far_beyond):
            expect_agrees(subject, case, "padding_mask", draw, padding_oracle, PADDING)

    @points(1)
    def test_full_and_empty_sequences_are_masked_correctly(self, subject, case):
        def inputs(case):
            k_len = case.size("k_len", case.integer(6, 300), smallest=2)
            return torch.tensor([k_len, 0, case.integer(1, k_len - 1)]), k_len

        expect_agrees(subject, case, "padding_mask", inputs, padding_oracle, PADDING, draws=2)


# 2.7 ------------------------------------------------------------------------------------------


@handed_out
def window_oracle(length, window):
    ...


@handed_out
def document_oracle(documents):
    ...


@handed_out
def prefix_oracle(prefix_lengths, length):
    ...


def four_masks(lengths, prefix_lengths, documents, window):
    length = documents.shape[1]
    return (
        prefix_oracle(prefix_lengths, length),
        padding_oracle(lengths, length),
        document_oracle(documents),
        window_oracle(length, window),
    )


@handed_out
def all_oracle(lengths, prefix_lengths, documents, window):
    ...


def draw_documents(case, batch, length):
    """Each sequence holds two or three texts in a row; their ids are in no order."""
    rows = []
    for _ in range(batch):
        numbers = torch.randperm(9, generator=case.generator)[:3]
        numbers = (numbers - numbers.min()).tolist()  # 0 is an id like any other
        first = case.integer(1, max(1, length // 2))
        second = case.integer(1, max(1, length - first))
        row = [numbers[0]] * first + [numbers[1]] * second + [numbers[2]] * length
        rows.append(row[:length])
    return torch.tensor(rows)


def interrupted_documents(case):
    """The first text of the first sequence continues after another one."""
    batch, length = case.size("batch", 2), case.size("length", 7, smallest=3)
    documents = draw_documents(case, batch, length)
    documents[0, -1] = documents[0, 0]
    return (documents,)


def mask_inputs(case):
    """Draw until each mask hides something that no other hides; in a small case that cannot be."""
    batch, length = case.size("batch", 3), case.size("length", 9, smallest=2)
    for _ in range(20):
        lengths = draw_lengths(case, batch, length, shortest=max(1, length - 4))
        prefix_lengths = draw_lengths(case, batch, max(1, length - 3), shortest=length // 3)
        window = case.integer(2, max(2, length // 2))
        drawn = lengths, prefix_lengths, draw_documents(case, batch, length), window
        masks = four_masks(*drawn)
        hiding = sum((~mask).int() for mask in masks)
        if all((~mask & (hiding == 1)).any() for mask in masks):
            break
    return drawn


BATCH_MASK = {"mask": "batch 1 length length"}


@exercise(
    "combine_masks",
    number="2.7",
    title="Five masks and how to combine them",
    asks="`window_mask`, `document_mask` and `prefix_mask` each state one rule; `combine_masks` "
    "allows what the prefix mask, the padding mask, the window and the document mask all allow.",
    difficulty=3,
    importance=4,
    minutes=30,
    deeper=True,
)
class TestCombineMasks:
    @points(1)
    def test_a_window_masks_keys_that_are_too_far_back(self, subject, case):
        def inputs(case):
            length = case.size("length", case.integer(7, 19), smallest=3)
            return length, case.size("window", case.integer(2, 6))

        def long_inputs(case):
            return case.size("length", case.integer(260, 500)), case.integer(101, 250)

        returns = {"mask": "length length"}
        expect_agrees(subject, case, "window_mask", inputs, window_oracle, returns, draws=3)
        expect_agrees(subject, case, "window_mask", long_inputs, window_oracle, returns)

    @points(1)
    def test_documents_in_one_sequence_do_not_attend_to_each_other(self, subject, case):
        expect_agrees(
            subject, case, "document_mask", interrupted_documents, document_oracle, BATCH_MASK
        )

    @points(2)
    def test_the_prefix_is_bidirectional_and_the_rest_is_causal(self, subject, case):
        def inputs(case):
            batch, length = case.size("batch", 3), case.size("length", 7, smallest=3)
            return draw_lengths(case, batch, length - 2, shortest=0), length

        def long_inputs(case):
            length = case.size("length", case.integer(151, 250), smallest=2)
            return draw_lengths(case, 2, 149, shortest=101), length

        for draw in (inputs, long_inputs):
            expect_agrees(subject, case, "prefix_mask", draw, prefix_oracle, BATCH_MASK)

    @points(3)
    def test_a_key_is_allowed_only_if_every_mask_allows_it(self, subject, case):
        try:
            expect_agrees(subject, case, "combine_masks", mask_inputs, all_oracle, BATCH_MASK)
        except CheckFailed as failed:
            # What is wrong with one mask shows in all of them: only the mask itself tells which.
            lengths, prefix_lengths, documents, window = mask_inputs(case.fresh(3))
            length = documents.shape[1]
            parts = [
                asks_for("window_mask", (length, window)),
                asks_for("document_mask", interrupted_documents(case.fresh(4))),
                asks_for("prefix_mask", (prefix_lengths, length)),
            ]

            def explain(problem, mistakes, example):
                alike = mistakes and answering_alike(parts, subject, mistakes)
                return problem, alike, example

            failed.further(explain)
            raise


# 2.3 ------------------------------------------------------------------------------------------


def draw_mask(case, *shape):
    """About half of the keys are allowed: in each row at least one is, and at least one is not."""
    mask = case.uniform(*shape) < 0.5
    mask[..., 0] = True
    mask[..., -1] = False
    return mask


def softmax_inputs(case):
    batch, heads = case.size("batch", 2), case.size("heads", 3)
    q_len, k_len = case.size("q_len", 5, smallest=2), case.size("k_len", 7, smallest=2)
    scores = case.normal(batch, heads, q_len, k_len, std=1.5)
    scores[:, :, 0] -= 12.0  # so low that a hidden score of -20 is not far below
    return scores, draw_mask(case, batch, 1, q_len, k_len)


def inputs_with_a_row_for_all(case):
    """The mask has one row for all heads and queries."""
    scores, mask = softmax_inputs(case)
    return scores, mask[:, :, :1]


def inputs_with_a_small_mask(case):
    """The mask has no axes but those of queries and keys."""
    scores, mask = softmax_inputs(case)
    return scores, mask[0, 0]


def inputs_with_zeros(case):
    """All scores of a row are 0, whether they are hidden or not."""
    scores, mask = softmax_inputs(case)
    scores[:, :, -1] = 0.0
    return scores, mask


def inputs_with_an_empty_row(case):
    scores, mask = softmax_inputs(case)
    mask[:, :, case.integer(0, mask.shape[2] - 1)] = False
    return scores, mask


def inputs_with_large_hidden_keys(case):
    """From row to row lower scores; from the third row on hidden keys have far higher ones."""
    scores, mask = softmax_inputs(case)
    row = torch.arange(scores.shape[2])[:, None]
    low = torch.where(row == 1, 800.0, torch.where(row < 3, 25.0, 250_000.0))
    large = torch.where(row % 2 == 0, 900.0, 40_000.0) * (row > 1) * ~mask
    return scores - low + large, mask


WEIGHTS = {"weights": "batch heads q_len k_len"}


@exercise(
    "masked_softmax",
    number="2.3",
    title="A softmax that ignores masked keys",
    asks="Return weights in the scores' dtype: a softmax over the allowed keys, exactly 0 at "
    "masked keys, and all 0 in a row in which nothing is allowed.",
    difficulty=3,
    importance=5,
    minutes=20,
)
class TestMaskedSoftmax:
    @points(2)
    def test_weights_are_a_softmax_over_the_allowed_keys(self, subject, case):
        for inputs in (
            softmax_inputs,
            inputs_with_a_row_for_all,
            inputs_with_a_small_mask,
            inputs_with_zeros,
        ):
            expect_agrees(subject, case, "masked_softmax", inputs, masked_oracle, WEIGHTS)

    @points(1)
    def test_a_fully_masked_row_gives_zero_weights(self, subject, case):
        def inputs(case):
            scores, mask = inputs_with_an_empty_row(case)
            scores[-1] += 900.0 * ~mask[-1].any(dim=-1, keepdim=True)  # whose exp() is infinite
            return scores, mask

        expect_agrees(subject, case, "masked_softmax", inputs, masked_oracle, WEIGHTS)

    @points(1)
    def test_masked_keys_have_no_effect_even_with_huge_scores(self, subject, case):
        expect_agrees(
            subject, case, "masked_softmax", inputs_with_large_hidden_keys, masked_oracle, WEIGHTS
        )

    @points(2)
    def test_gradients_are_correct_and_never_nan(self, subject, case):
        def request(case):
            scores, mask = inputs_with_an_empty_row(case)
            cotangent = case.normal(*scores.shape)

            def ask(subject):
                return subject.gradients("masked_softmax", (scores, mask), [0], [cotangent])[0]

            (expected,) = masked_oracle.gradients((scores, mask), [0], [cotangent])
            return ask, expected

        ask, expected = request(case)
        others = [request(case.fresh(i))[0] for i in range(2)]
        # What the weights are tells mistakes apart whose gradients are the same.
        forward = asks_for("masked_softmax", inputs_with_large_hidden_keys(case.fresh(2)))

        def judge(seen):
            if seen is None:
                return "no gradient reaches `scores`: part of the computation is cut off from it"
            return differs("the gradient with respect to the scores", seen, expected)

        expect_answer(subject, case, [ask, *others, forward], judge)
        expect_inputs_unchanged(subject, case, "masked_softmax", inputs_with_an_empty_row)

    @points(1)
    def test_float16_scores_give_accurate_float16_weights(self, subject, case):
        self.in_half_precision(subject, case, torch.float16, 5e-3)

    @points(1)
    def test_bfloat16_scores_give_accurate_bfloat16_weights(self, subject, case):
        self.in_half_precision(subject, case, torch.bfloat16, 4e-2)

    def in_half_precision(self, subject, case, dtype, tolerance):
        def draw(case):
            scores, mask = inputs_with_an_empty_row(case)
            return scores.to(dtype), mask

        scores, mask = draw(case)

        def judge(seen):
            if problem := wrong_form((seen,), (scores,), WEIGHTS, "masked_softmax"):
                return f"for {dtype} scores: {problem}"
            if seen.dtype != dtype:
                return f"for {dtype} scores the weights are {seen.dtype}: they should stay {dtype}"
            off = (seen.double() - masked_oracle(scores.double(), mask)).abs()
            if off.isnan().any():
                return f"for {dtype} scores: the weights contain NaN"
            if off.max() > tolerance:
                return f"for {dtype} scores: a weight is off by {float(off.max()):.2g}"
            return None

        trials = [(scores, mask), *(draw(case.fresh(i)) for i in range(2))]
        # In float64, to tell apart what crashes, and what only returns another dtype.
        trials += [inputs_with_an_empty_row(case.fresh(2)), inputs_with_large_hidden_keys(case)]
        requests = [asks_for("masked_softmax", args) for args in trials]
        expect_answer(subject, case, requests, judge)


# 2.5 ------------------------------------------------------------------------------------------

LENGTH, WIDTH = 7, 5
"""The numbers of tokens and features of the models that are audited."""


exec(packed(__file__, 0), globals())


def audited(case, description):
    """Return one of the models, its dependency matrix, and an input drawn from the same seed."""
    case = Case(case.seed)
    model, dependence = audited_models(case)[description]
    return model, dependence, case.normal(LENGTH, WIDTH)


def audit(subject, case, description):
    """Let a subject audit one of the models."""
    model, _, x = audited(case, description)
    model.label = description
    return subject.call("causality_audit", subject.lend(model), x)


def influence(model, x, output, source):
    """Say by how much one row of the output changes with one row of the input."""
    changed, before = x.clone(), model(x)[output]
    changed[source] = 2.0 - x[source].flip(0)
    after = model(changed)[output]
    by = float((after - before).abs().amax())
    said = (
        f"; a new row {source} of x changes row {output} of the output by up to {by:.2g} (its "
        f"largest entry is {float(before.abs().amax()):.2g})"
    )
    if by > 1e-6 and torch.allclose(after, before):
        said += ": more than a millionth, but less than torch.allclose notices by default"
    return said + ": that is rounding error" * (0 < by < 1e-9)


def expect_audit(subject, case, *descriptions):
    """Expect the audit to find what depends on what in these models.

    A mistake is recognised by its results on all models, which are computed once per exercise. One
    more model attends to randomly drawn tokens, which an audit can find only by testing the model.
    """
    descriptions = (*descriptions, "attends to randomly drawn tokens")

    def judge(seen, description):
        model, expected, x = audited(case.fresh(9), description)
        returns = {"dependence": "length length"}
        if problem := wrong_form((seen,), (expected,), returns, "causality_audit"):
            return problem
        wrong = seen != expected
        if not wrong.any():
            return None
        output, source = wrong.nonzero()[0].tolist()
        says, is_so = (
            ("depends", "does not") if seen[output, source] else ("does not depend", "does")
        )
        return (
            f"on a model that {description}: you report that output {output} {says} on input "
            f"{source}, but it {is_so}; wrong in {int(wrong.sum())} of {wrong.numel()} entries"
            f"{influence(model, x, output, source)}"
        )

    for description in descriptions:
        request = functools.partial(audit, case=case.fresh(9), description=description)
        try:
            problem = judge(request(subject), description)
        except Crashed as error:
            problem = str(error)
        except StudentError as error:
            raise CheckFailed(str(error)) from error
        if problem:
            break
    else:
        return

    def explain():
        seen, everywhere = answer_to(request, subject), all_audits(subject, case, "")
        alike = []
        for mistake in case.mistakes:
            code = known(mistake)
            here = same(answer_to(request, code), seen)
            if here and same(all_audits(code, case, mistake.name), everywhere):
                alike.append(mistake)
        return problem, alike, ""

    raise CheckFailed(problem, explain=explain)


def all_audits(subject, case, who):
    """What an audit says of every model, remembered for the other checks of the exercise."""
    drawn = case.memory.setdefault("drawn for diagnosis", case.fresh(0))
    if who not in case.memory:
        requests = [
            functools.partial(audit, case=drawn, description=description)
            for description in audited_models(case.fresh(1))
        ]
        case.memory[who] = [answer_to(request, subject) for request in requests]
    return case.memory[who]


@exercise(
    "causality_audit",
    number="2.5",
    title="Which output depends on which input",
    asks="Return a boolean tensor (length, length), True at (i, j) if row i of model(x) changes "
    "when row j of x does.",
    difficulty=3,
    importance=5,
    minutes=25,
)
class TestCausalityAudit:
    @points(2)
    def test_a_causal_model_gives_a_lower_triangular_matrix(self, subject, case):
        expect_audit(subject, case, "looks back only")

    @points(1)
    def test_a_mask_missing_in_evaluation_mode_is_detected(self, subject, case):
        expect_audit(subject, case, "is masked only in training, and is audited in evaluation")

    @points(1)
    def test_a_dependence_on_the_next_token_is_detected(self, subject, case):
        expect_audit(subject, case, "sees one token ahead")

    @points(1)
    def test_normalisation_over_tokens_is_detected(self, subject, case):
        expect_audit(subject, case, "normalises over the tokens")

    @points(1)
    def test_each_row_shows_exactly_the_inputs_that_its_output_uses(self, subject, case):
        descriptions = ["sees the newest three tokens", "sees only the previous token"]
        expect_audit(subject, case, *descriptions)

    @points(1)
    def test_a_weak_dependence_counts_and_rounding_error_does_not(self, subject, case):
        descriptions = [
            "depends only weakly on earlier tokens",
            "looks back only, but its fourteenth digit depends on all tokens",
        ]
        expect_audit(subject, case, *descriptions)

    @points(2)
    def test_a_dependence_in_any_feature_or_direction_is_detected(self, subject, case):
        expect_audit(
            subject,
            case,
            "passes on one feature of each token",
            "passes on the sum of a token's features",
            "multiplies tokens by earlier ones",
            "depends on the direction of a token, not on its norm",
            "ends with a LayerNorm over the features",
        )


# 2.8 ------------------------------------------------------------------------------------------


exec(packed(__file__, 1), globals())


def difference_inputs(case):
    """Two results of different lengths, nearly equal at real tokens."""
    batch, length = case.size("batch", 3), case.size("length", 5, smallest=2)
    d_model, extra = case.size("d_model", 4), case.size("extra", 2)
    lengths = draw_lengths(case, batch, length, shortest=length // 2)
    lengths[-1] = length - 1  # so that some of the first result is padding
    first = case.normal(batch, length, d_model)
    second = 50.0 * case.normal(batch, length + extra, d_model)
    real = (torch.arange(length) < lengths[:, None])[..., None]
    noise = case.normal(batch, length, d_model)
    second[:, :length] = torch.where(real, first + noise, second[:, :length])
    return first, second, lengths


def with_a_longer_first(case):
    first, second, lengths = difference_inputs(case)
    return second, first, lengths


def with_nan_in_the_padding(case):
    first, second, lengths = difference_inputs(case)
    first[-1, -1, 0] = math.nan
    return first, second, lengths


@handed_out
def difference_oracle(first, second, lengths):
    ...


@exercise(
    "check_padding_invariance",
    number="2.8",
    title="Write the test: padding and the rest of the batch change nothing",
    asks="`largest_difference` compares two results at real tokens; `check_padding_invariance` "
    "calls the model that it is given on batches of your choice, and `assert`s the property that "
    "must hold.",
    difficulty=4,
    importance=5,
    minutes=35,
    deeper=True,
)
class TestCheckPaddingInvariance:
    @points(1)
    def test_results_are_compared_only_at_real_tokens(self, subject, case):
        name, returns = "largest_difference", {"difference": ""}
        for inputs in (with_nan_in_the_padding, with_a_longer_first):
            # Without NaN it shows whether padding is compared, or only excluded badly.
            also = [difference_inputs]
            expect_agrees(subject, case, name, inputs, difference_oracle, returns, also=also)

    @points(1, only_with="test_results_are_compared_only_at_real_tokens")
    def test_nan_at_a_real_token_is_an_infinite_difference(self, subject, case):
        def inputs(case):
            first, second, lengths = difference_inputs(case)
            row = case.integer(1, len(lengths) - 1)  # Python keeps a NaN that is the first number
            place = case.integer(0, max(0, int(lengths[row]) - 1))
            second[row, place, -1] += 99.0
            second[row, place, 0] = math.nan
            return first, second, lengths

        returns = {"difference": ""}
        expect_agrees(subject, case, "largest_difference", inputs, difference_oracle, returns)

    @points(1)
    def test_a_missing_mask_is_caught(self, subject, case):
        self.judge(subject, case, "padding is attended to like any token")

    @points(1)
    def test_an_inverted_mask_is_caught(self, subject, case):
        self.judge(subject, case, "the mask hides the real tokens and shows the padding")

    @points(1)
    def test_a_mask_that_is_one_token_too_long_is_caught(self, subject, case):
        self.judge(subject, case, "the mask lets the first padded position through")

    @points(1)
    def test_one_mask_for_the_whole_batch_is_caught(self, subject, case):
        self.judge(subject, case, "all sequences are masked like the longest in the batch")

    @points(1)
    def test_statistics_that_include_padding_are_caught(self, subject, case):
        self.judge(subject, case, "the mean over all positions, padding included, is subtracted")
        bug = "the sum over all positions, divided by the number of real tokens, is subtracted"
        self.judge(subject, case, bug)

    @points(1)
    def test_positions_that_depend_on_padding_are_caught(self, subject, case):
        self.judge(subject, case, "positions are counted from the padded end")

    @points(1)
    def test_a_dependence_on_the_rest_of_the_batch_is_caught(self, subject, case):
        bug = "each sequence but the first depends on the one before it in its batch"
        self.judge(subject, case, bug)
        self.judge(subject, case, "the mean over the real tokens of the whole batch is subtracted")

    @points(1)
    def test_nan_in_padded_sequences_is_caught(self, subject, case):
        self.judge(subject, case, "sequences with padding give NaN")

    def judge(self, subject, case, bug):
        expect_test_judges(
            subject, case, "check_padding_invariance", *drawn_once(case, padded_models), bug
        )


# 2.11 -----------------------------------------------------------------------------------------


@handed_out
def update_oracle(highest, total, mixed, scores, value):
    ...


def block_inputs(case):
    """A possible state after earlier blocks, and a block; either may hold the maximum."""
    q_len, block = case.size("q_len", 5), case.size("block", 3)
    d_value = case.size("d_value", 6)
    highest, total = case.normal(q_len, std=2.0), case.uniform(q_len, low=1.0, high=5.0)
    mixed = case.normal(q_len, d_value)
    scores, value = case.normal(q_len, block, std=2.0), case.normal(block, d_value)
    scores[0] += 4.0
    scores[-1] -= 4.0
    return highest, total, mixed, scores, value


def masked_block_inputs(case):
    """The block is masked for a third of the queries; for another third, all before it too."""
    highest, total, mixed, scores, value = block_inputs(case)
    for row in range(len(scores)):
        if row % 3 < 2:
            scores[row] = -math.inf
        if row % 3 != 0:
            highest[row], total[row], mixed[row] = -math.inf, 0.0, 0.0
    return highest, total, mixed, scores, value


def online_inputs(case):
    q_len, k_len = case.size("q_len", 5), case.size("k_len", 11, smallest=2)
    d_head, d_value = case.size("d_head", 4), case.size("d_value", 6)
    query = case.normal(q_len, d_head, std=1.5)
    key, value = case.normal(k_len, d_head), case.normal(k_len, d_value)
    mask = draw_mask(case, q_len, k_len)
    mask[..., -1] = True  # the last, shorter block counts
    return query, key, value, mask, case.integer(3, 4)


def one_block_inputs(case):
    *arguments, _ = online_inputs(case)
    return *arguments, len(arguments[1]) + 2


STATE = {"highest": "q_len", "total": "q_len", "mixed": "q_len d_value"}
AVERAGES = {"output": "q_len d_value"}


@handed_out
def online_oracle(query, key, value, mask, block_size):
    ...


@exercise(
    "online_softmax_attention",
    number="2.11",
    title="A softmax that never sees all its scores",
    may_cut=("update", "online_softmax_attention"),
    asks="`update` adds one block of keys to the running (highest, total, mixed); "
    "`online_softmax_attention` processes the keys in blocks and returns the output of attention.",
    difficulty=4,
    importance=4,
    minutes=40,
    deeper=True,
)
class TestOnlineSoftmaxAttention:
    @points(2)
    def test_a_new_block_is_added_at_the_correct_scale(self, subject, case):
        expect_agrees(subject, case, "update", block_inputs, update_oracle, STATE)

    @points(1)
    def test_a_fully_masked_block_has_no_effect(self, subject, case):
        expect_agrees(subject, case, "update", masked_block_inputs, update_oracle, STATE)

    @points(2)
    def test_processing_in_blocks_equals_attention_over_all_keys(self, subject, case):
        for inputs in (online_inputs, one_block_inputs):
            expect_agrees(
                subject, case, "online_softmax_attention", inputs, online_oracle, AVERAGES
            )

    @points(1)
    def test_scores_in_the_thousands_give_no_nan(self, subject, case):
        def inputs(case):
            query, key, value, mask, block_size = online_inputs(case)
            grow = torch.tensor([1.0 if i == 0 else 20_000.0 for i in range(len(query))])
            query = query * grow[:, None].double()
            # All scores of the last query lie below -10,000, those of the one before it are 0.
            key[:, 0] = key[:, 0].abs() + 2.0
            query[-2:] = 0.0
            query[-1, 0] = -20_000.0
            return query, key, value, mask, block_size

        expect_agrees(subject, case, "online_softmax_attention", inputs, online_oracle, AVERAGES)

    @points(1)
    def test_masked_first_blocks_and_fully_masked_rows_give_no_nan(self, subject, case):
        def inputs(case):
            query, key, value, mask, block_size = online_inputs(case)
            mask[:2, :block_size] = False
            mask[-1] = False
            return query, key, value, mask, block_size

        expect_agrees(subject, case, "online_softmax_attention", inputs, online_oracle, AVERAGES)


# Bug hunts ------------------------------------------------------------------------------------


def padded_inputs(case):
    batch, length = case.size("batch", 2), case.size("length", 7, smallest=2)
    d_head, d_value = case.size("d_head", 4), case.size("d_value", 6)
    lengths = draw_lengths(case, batch, length - 1, shortest=max(1, length // 2))
    if batch > 1:  # so that the longest does not stand for all
        lengths[0], lengths[1] = length - 1, max(1, length // 2)
    return (
        case.normal(batch, length, d_head, std=1.5),
        case.normal(batch, length, d_head),
        case.normal(batch, length, d_value),
        lengths,
    )


def large_padded_inputs(case):
    query, key, value, lengths = padded_inputs(case)
    with_a_large_end(query, key)
    return query, key, value, lengths


@handed_out
def padded_causal_oracle(query, key, value, lengths):
    ...


@exercise(
    "mended_masks",
    number="2.6",
    title="Bug hunt: the mask that does nothing",
    asks="Return the output of attention in which a query attends to the real tokens up to itself: "
    "the published function with its two bugs fixed.",
    difficulty=2,
    importance=4,
    minutes=15,
    deeper=True,
)
class TestMendedMasks:
    @points(2)
    def test_a_query_attends_only_to_real_tokens_up_to_itself(self, subject, case):
        returns = {"output": "batch length d_value"}
        for inputs in (padded_inputs, large_padded_inputs):
            expect_agrees(subject, case, "mended_masks", inputs, padded_causal_oracle, returns)

    @points(1)
    def test_attention_without_padding_is_still_causal(self, subject, case):
        def inputs(case):
            query, key, value, lengths = padded_inputs(case)
            return query, key, value, torch.full_like(lengths, query.shape[1])

        returns = {"output": "batch length d_value"}
        expect_agrees(subject, case, "mended_masks", inputs, padded_causal_oracle, returns)


@handed_out
def column_oracle(query, key, value):
    ...


@exercise(
    "mended_columns",
    number="2.9",
    title="Bug hunt: a triangle for another layout",
    asks="Tokens are columns here. Return the output (d_value, length) of causal attention: the "
    "published function with its bug fixed.",
    difficulty=2,
    importance=3,
    minutes=10,
    deeper=True,
)
class TestMendedColumns:
    @points(3)
    def test_each_column_attends_to_itself_and_to_earlier_columns(self, subject, case):
        def inputs(case):
            length = case.size("length", 5, smallest=2)
            d_head, d_value = case.size("d_head", 4), case.size("d_value", 6)
            query, key = case.normal(d_head, length, std=1.5), case.normal(d_head, length)
            return query, key, case.normal(d_value, length)

        def large(case):
            query, key, value = inputs(case)
            with_a_large_end(query.T, key.T)
            return query, key, value

        for draw in (inputs, large):
            expect_agrees(
                subject, case, "mended_columns", draw, column_oracle, {"output": "d_value length"}
            )


@handed_out
def mode_oracle(query, key, value, training):
    ...


def mode_inputs(training, cached, large=False, earlier=3):
    def inputs(case):
        q_len = case.size("q_len", 5, smallest=2)
        k_len = q_len + (case.size("earlier", earlier) if cached else 0)
        d_head, d_value = case.size("d_head", 4), case.size("d_value", 6)
        query, key = case.normal(q_len, d_head, std=1.5), case.normal(k_len, d_head)
        if large:
            with_a_large_end(query, key)
        return query, key, case.normal(k_len, d_value), training

    return inputs


@exercise(
    "mended_modes",
    number="2.4",
    title="Bug hunt: causal only while training",
    asks="Return the output (q_len, d_value) of causal attention in both modes; the queries are "
    "the last of the positions.",
    difficulty=2,
    importance=5,
    minutes=10,
)
class TestMendedModes:
    @points(1)
    def test_attention_is_causal_in_training_mode(self, subject, case):
        for large in (False, True):
            self.compare(subject, case, mode_inputs(training=True, cached=False, large=large))

    @points(2)
    def test_attention_is_causal_in_evaluation_mode(self, subject, case):
        for large in (False, True):
            self.compare(subject, case, mode_inputs(training=False, cached=False, large=large))

    @points(1)
    def test_new_queries_attend_to_the_cached_keys(self, subject, case):
        for training in (False, True):
            self.judge_kept(subject, case, training)
        long = mode_inputs(training=False, cached=True, earlier=2050)
        self.compare(subject, case, long)

    def judge_kept(self, subject, case, training):
        kept, other = (mode_inputs(mode, cached=True) for mode in (training, not training))
        args = kept(case)
        expected = mode_oracle(*args)

        def judge(seen):
            returns = {"output": "q_len d_value"}
            if problem := wrong_form((seen,), (expected,), returns, "mended_modes"):
                return problem
            return differs("output", seen, expected)

        # Without the whole text and the other mode, some mistakes would look alike.
        whole = mode_inputs(False, cached=False)
        trials = [args, kept(case.fresh(0)), whole(case.fresh(1)), other(case.fresh(2))]
        expect_answer(subject, case, [asks_for("mended_modes", trial) for trial in trials], judge)

    def compare(self, subject, case, inputs):
        expect_agrees(
            subject, case, "mended_modes", inputs, mode_oracle, {"output": "q_len d_value"}
        )


def map_inputs(case):
    length, d_model = case.size("length", 5, smallest=2), case.size("d_model", 4)
    num_layers = case.size("num_layers", 3)
    matrices = [case.normal(num_layers, d_model, d_model, std=0.8) for _ in range(3)]
    return case.normal(length, d_model), *matrices, draw_mask(case, length, length)


def large_map_inputs(case):
    """One layer in which the key of the highest score is hidden; the first token's scores are 0."""
    x, w_query, w_key, w_value, mask = map_inputs(case)
    x[0], w_query = 0.0, 20_000.0 * w_query[:1]
    scores = (x @ w_query[0]) @ (x @ w_key[0]).T
    mask.scatter_(1, scores.argmax(dim=1, keepdim=True), False)
    mask.scatter_(1, scores.argmin(dim=1, keepdim=True), True)
    return x, w_query, w_key[:1], w_value[:1], mask


@handed_out
def map_oracle(x, w_query, w_key, w_value, mask):
    ...


@exercise(
    "mended_maps",
    number="2.10",
    title="Bug hunt: attention maps of another model",
    asks="Return the weights (num_layers, length, length) that the model uses, layer by layer.",
    difficulty=2,
    importance=3,
    minutes=15,
    deeper=True,
)
class TestMendedMaps:
    @points(1)
    def test_the_attention_weights_of_the_first_layer_are_correct(self, subject, case):
        def inputs(case):
            x, w_query, w_key, w_value, mask = map_inputs(case)
            return x, w_query[:1], w_key[:1], w_value[:1], mask

        for draw in (inputs, large_map_inputs):
            self.compare(subject, case, draw)

    @points(2)
    def test_the_attention_weights_of_deeper_layers_are_correct(self, subject, case):
        self.compare(subject, case, map_inputs)
        expect_inputs_unchanged(subject, case, "mended_maps", map_inputs)

    def compare(self, subject, case, inputs):
        returns = {"maps": "num_layers length length"}
        expect_agrees(subject, case, "mended_maps", inputs, map_oracle, returns)


def device_inputs(case, fade=0.5):
    batch, q_len = case.size("batch", 2), case.size("q_len", 4, smallest=2)
    k_len = q_len + case.size("earlier", 3)
    d_head, d_value = case.size("d_head", 5), case.size("d_value", 6)
    shapes = (q_len, d_head), (k_len, d_head), (k_len, d_value)
    return *(case.normal(batch, *shape) for shape in shapes), case.integer(2, 3), fade


def large_device_inputs(case):
    query, key, *more = device_inputs(case)
    with_a_large_end(query, key)
    return query, key, *more


@handed_out
def device_oracle(query, key, value, window, fade):
    ...


WINDOW = (2, 4, 6), (2, 7, 6), (2, 7, 5)


def kind_of_output(subject, device, dtype, fade):
    """Describe the result for inputs of a device and a dtype; on `meta` there are no numbers."""
    inputs = (torch.ones(s, dtype=getattr(torch, dtype), device=device) for s in WINDOW)
    found = subject.call("mended_device", *inputs, 3, fade)
    if not isinstance(found, torch.Tensor):
        return describe(found)
    return f"a tensor of shape {tuple(found.shape)} and {found.dtype} on {found.device}"


def expect_kept(subject, case, device, dtype):
    wanted = f"a tensor of shape (2, 4, 5) and torch.{dtype} on {device}"

    def judge(seen):
        if isinstance(seen, Crash):
            seen = f"{seen.kind}: {seen.text}"
        if seen == wanted:
            return None
        said = f"with inputs of {dtype} on the device `{device}`: {seen}; expected {wanted}"
        if device == "meta" and "device" in seen:
            said += (
                ". A tensor that you create is not on the device of the inputs: give "
                "torch.arange, torch.zeros and the like `device=query.device`. (Every machine has "
                "`meta`, whose tensors have no numbers.)"
            )
        return said

    modes = [("meta", "float32"), ("cpu", "bfloat16"), ("meta", "bfloat16")]
    others = [asking(kind_of_output, *mode, fade) for mode in modes for fade in (0.5, 0.0)]
    for fade in (0.5, 0.0):
        requests = [asking(kind_of_output, device, dtype, fade), *others]
        expect_answer(subject, case, requests, judge, may_crash=True)


def long_inputs(case, fade):
    sizes = {"batch": 1, "q_len": 12, "earlier": case.integer(260, 300)}
    *tensors, window, _ = device_inputs(replace(case, sizes=sizes))
    return *(tensor.bfloat16() for tensor in tensors), window, fade


def wide_inputs(case):
    """A window of more than 256 tokens, and for the last query two keys of high score at its edge."""
    sizes = {"batch": 1, "q_len": 12, "earlier": case.integer(290, 300)}
    query, key, value, *_ = device_inputs(replace(case, sizes=sizes))
    window = 257 + 4 * case.integer(0, 6)
    query[:, -1], key[:, -1 - window : 1 - window] = 2.0, 4.0
    value[:, -1 - window], value[:, -window] = -10.0, 10.0
    return query.bfloat16(), key.bfloat16(), value.bfloat16(), window, 0.0


def judge_long(args, seen):
    query, key, value, window, fade = args
    expected = device_oracle(query.double(), key.double(), value.double(), window, fade)
    off = (seen.double() - expected).abs().amax(dim=(0, 2))
    if off.max() < 0.2:
        return None
    k_len, row = key.shape[1], int(off.argmax())
    return (
        f"with {k_len} keys in bfloat16, window={window} and fade={fade}: the output of the query at "
        f"position {k_len - len(off) + row} is off by {float(off.max()):.2g}, more than rounding "
        "explains. Bfloat16 holds every integer up to 256, and only some of the larger ones"
    )


@exercise(
    "mended_device",
    number="2.12",
    title="Bug hunt: it worked on my laptop",
    asks="Return the output of the published windowed attention, on the device and in the dtype of "
    "the inputs.",
    difficulty=2,
    importance=3,
    minutes=10,
    deeper=True,
)
class TestMendedDevice:
    @points(1)
    def test_the_output_values_are_unchanged(self, subject, case):
        returns = {"output": "batch q_len d_value"}
        for fade in (0.5, 0.0):
            inputs = functools.partial(device_inputs, fade=fade)
            expect_agrees(subject, case, "mended_device", inputs, device_oracle, returns)
        inputs = large_device_inputs
        expect_agrees(subject, case, "mended_device", inputs, device_oracle, returns)

    @points(2, only_with="test_the_output_values_are_unchanged")
    def test_it_runs_on_the_device_of_its_inputs(self, subject, case):
        expect_kept(subject, case, "meta", "float32")

    @points(2, only_with="test_the_output_values_are_unchanged")
    def test_it_computes_in_the_dtype_of_its_inputs(self, subject, case):
        expect_kept(subject, case, "cpu", "bfloat16")
        # Integers above 256 are rounded in bfloat16.
        trials = [*(long_inputs(case, fade) for fade in (0.0, 0.5)), wide_inputs(case)]
        requests = [asks_for("mended_device", args) for args in trials]
        for args, request in zip(trials, requests, strict=True):
            judge = functools.partial(judge_long, args)
            expect_answer(subject, case, [request, *requests], judge, tolerance=0.1)
