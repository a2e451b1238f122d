"""What is graded in chapter 05, positions.

Made by `classroom release`: what is right, and what known mistakes return, comes as data in
prepared.zip.
"""

import functools
import inspect
import math
import textwrap
from dataclasses import replace

import torch
import torch.nn.functional as F

from classroom.calls.subject import Crashed, Died, StudentError, TooSlow
from classroom.exercise.comparing import differs, same, wrong_form
from classroom.exercise.expect import (
    CheckFailed,
    drawn_once,
    exercise,
    expect_agrees,
    expect_gradients,
    expect_law,
    expect_test_judges,
    points,
)
from classroom.exercise.prepared import RecordedSubject, handed_out, known, packed

NEAR = 1e-4
"""Angles computed in float32 are accurate to this, as long as positions are small."""

FAR = 0.02
"""What becomes of that, and of a trained model's logits, at positions in the ten thousands."""

EXACT = 1e-6
"""Without angles, float32 is accurate to this."""


expect_near = functools.partial(expect_agrees, tolerance=NEAR, alike=NEAR)
"""Expect a function to return what an oracle returns, in whatever precision of the two."""


def expect_answer(subject, case, inputs, ask, judge, alike=NEAR, crashes_tell=False):
    """Expect the answer to a request to pass; name the mistakes that answer alike.

    Args:
        subject: The code under test.
        case: Where the inputs come from.
        inputs: Draws the arguments from a case.
        ask: Given a subject and the arguments, returns an answer: one call, or several.
        judge: Given the answer and the arguments, returns None or says what is wrong.
        alike: How far apart the answers of two programs may be that make the same mistake.
        crashes_tell: Whether an exception and what it says count as an answer.

    """
    args = inputs(case)
    problem, crashed = verdict(subject, args, ask, judge, crashes_tell)
    if problem is None:
        return
    if crashed and not crashes_tell:
        raise CheckFailed(problem)

    def explain():
        trials = [args, *(inputs(case.fresh(i)) for i in range(2))]
        seen = [answer_of(subject, trial, ask) for trial in trials]
        named = []
        for mistake in case.mistakes:
            code = known(mistake)
            pairs = zip(seen, trials, strict=True)
            if not all(same(s, answer_of(code, trial, ask), alike) for s, trial in pairs):
                continue  # most are told apart by the first trial
            if verdict(code, args, ask, judge, crashes_tell)[0] is not None:
                named.append(mistake)
        return problem, named, ""

    raise CheckFailed(problem, explain=explain)


def verdict(subject, args, ask, judge, crashes_tell):
    """Return what is wrong with an answer, or None, and whether it is a crash."""
    if isinstance(subject, RecordedSubject):
        return subject.answer(
            ("verdict", ask, args), lambda code: verdict(code, args, ask, judge, crashes_tell)
        )
    try:
        answer = ask(subject, *args)
    except Crashed as error:
        crash = ("crashed", error.kind, error.text)
        return (judge(crash, *args) if crashes_tell else str(error)), True
    except StudentError as error:
        raise CheckFailed(str(error)) from error
    return judge(answer, *args), False


def answer_of(subject, args, ask):
    try:
        if isinstance(subject, RecordedSubject):  # one answer is kept, not all that led to it
            return subject.answer(("answer", ask, args), lambda code: answer_of(code, args, ask))
        return ask(subject, *args)
    except Crashed as error:
        # A refusal may be worded freely; what torch says tells one crash from another.
        return ("crashed", error.kind, "" if error.kind == "ValueError" else error.text)
    except StudentError as error:
        return ("failed", type(error).__name__)


def without(case, name):
    """Return a case that does not look for one known mistake, which is already ruled out."""
    return replace(case, mistakes=tuple(m for m in case.mistakes if m.name != name))


# 5.1 ------------------------------------------------------------------------------------------


exec(packed(__file__, 0), globals())


def counter_inputs(case, widest=40):
    """Projections of a new model of any width."""
    d_model = case.size("d_model", case.integer(widest // 10, widest))
    d_head, d_value = case.size("d_head", 3), 5
    return tuple(case.normal(d_model, n, std=d_model**-0.5) for n in (d_head, d_head, d_value))


def causal_output(x, w_query, w_key, w_value):
    return F.scaled_dot_product_attention(x @ w_query, x @ w_key, x @ w_value, is_causal=True)


@exercise(
    "check_order_blindness",
    number="5.1",
    title="Write a test for order blindness",
    asks="`check_order_blindness` calls the layer that it is given and `assert`s that permuted tokens "
    "give permuted outputs; `order_counter_example` returns two tokens, (2, d_model), whose order "
    "causal attention sees.",
    difficulty=3,
    importance=5,
    minutes=25,
)
class TestCheckOrderBlindness:
    @points(1)
    def test_positions_added_to_the_tokens_are_caught(self, subject, case):
        self.judge(subject, case, "attention with a vector added for each position")
        self.judge(
            subject,
            case,
            "attention with a small number added to the last feature for each position",
        )

    @points(1)
    def test_a_causal_mask_is_caught(self, subject, case):
        self.judge(subject, case, "attention to earlier tokens only")

    @points(1)
    def test_a_bias_that_depends_on_distance_is_caught(self, subject, case):
        self.judge(subject, case, "attention that favours nearby tokens on either side")

    @points(1)
    def test_a_cyclic_dependence_on_the_previous_token_is_caught(self, subject, case):
        self.judge(
            subject, case, "each token sees the one before it, and the first one sees the last"
        )
        self.judge(
            subject,
            case,
            "each token sees the ones on both sides, and the first and the last see each other",
        )
        self.judge(subject, case, "from the fourth token on, outputs have the opposite sign")

    @points(1)
    def test_a_layer_that_marks_the_first_or_last_token_is_caught(self, subject, case):
        self.judge(subject, case, "the features of the first output are shifted by one")
        self.judge(subject, case, "two features of the last output are changed")

    @points(1)
    def test_outputs_in_the_wrong_order_are_caught(self, subject, case):
        self.judge(subject, case, "attention whose outputs are returned in reverse order")

    @points(2)
    def test_causal_attention_distinguishes_the_order_of_the_two_tokens(self, subject, case):
        def law(x, w_query, w_key, w_value):
            if x.shape != (2, len(w_query)):
                return (
                    f"`order_counter_example` returned the shape {tuple(x.shape)}, expected "
                    f"{(2, len(w_query))} = (2, d_model)"
                )
            x = x.double()
            output = causal_output(x, w_query, w_key, w_value)
            swapped = causal_output(x.flip(0), w_query, w_key, w_value)
            difference = float((swapped - output.flip(0)).abs().max())
            if difference > 1e-2:
                return None
            apart = float((x @ w_value).diff(dim=0).abs().max())
            return (
                "your two tokens get the same outputs in both orders, merely swapped (largest "
                f"difference {difference:.2g}, expected more than 0.01). "
            ) + (
                "An output is an average of the values of the tokens that it sees: make the values "
                f"differ more. Yours, `x @ w_value`, differ by at most {apart:.2g}"
                if apart < 0.1
                else "They are so large that each gives nearly all of its weight to itself, even "
                "where it sees both: make them smaller"
            )

        for widest in (40, 400):
            inputs = functools.partial(counter_inputs, widest=widest)
            expect_law(subject, case, "order_counter_example", inputs, law, draws=3)

    def judge(self, subject, case, bug):
        expect_test_judges(subject, case, "check_order_blindness", *drawn_once(case, layers), bug)


# 5.2 ------------------------------------------------------------------------------------------


exec(packed(__file__, 1), globals())


@handed_out
def table_oracle(length, d_model, base=10_000.0):
    ...


@handed_out
def shift_oracle(shift, d_model, base):
    ...


def table_inputs(case):
    base = float(case.uniform(low=20.0, high=200.0))
    return case.size("length", 11), 2 * case.size("pairs", 4), base


TABLE = {"table": "length d_model"}


@exercise(
    "sinusoidal_positions",
    number="5.2",
    title="Sinusoidal positions",
    asks="`sinusoidal_positions` returns the table (length, d_model) of the paper, with the sine "
    "and cosine of one clock as neighbours; `shift_matrix` returns the matrix that shifts "
    "every row.",
    difficulty=3,
    importance=4,
    minutes=25,
)
class TestSinusoidalPositions:
    @points(2)
    def test_the_table_matches_the_formula(self, subject, case):
        expect_near(subject, case, "sinusoidal_positions", table_inputs, table_oracle, TABLE)

    @points(1, only_with="test_the_table_matches_the_formula")
    def test_dot_products_of_rows_depend_only_on_their_distance(self, subject, case):
        def judge(table, length, d_model, base):
            if problem := wrong_form(
                (table,), (table_oracle(length, d_model),), TABLE, "sinusoidal_positions"
            ):
                return problem
            dots = table.double() @ table.double().T
            for step in range(length):
                along = dots.diagonal(step)
                if not along.max() - along.min() < 10 * NEAR:
                    return (
                        f"rows {step} apart have dot products from {along.min():.4g} to "
                        f"{along.max():.4g}, expected one number for each distance"
                    )
            return None

        def ask(subject, *args):
            return subject.call("sinusoidal_positions", *args)

        expect_answer(subject, case, table_inputs, ask, judge)

    @points(1)
    def test_rows_at_large_positions_are_as_accurate_as_the_first(self, subject, case):
        def inputs(case):
            # With two clocks, float32 would do: their frequencies are 1 and 0.01.
            return 5_010 + case.integer(0, 490), 2 * case.integer(4, 5), 10_000.0

        # Programs that round angles to float32 differ from one another, too: by up to 0.001 here.
        expect_near(
            subject,
            case,
            "sinusoidal_positions",
            inputs,
            table_oracle,
            TABLE,
            tolerance=1e-5,
            alike=2e-3,
        )

    @points(2)
    def test_one_matrix_shifts_every_row_by_the_same_offset(self, subject, case):
        def inputs(case, sign, pairs=3):
            # Back by so much that an angle in float32 has no digit left behind the point.
            shift = case.integer(2, 40) if sign > 0 else -case.integer(10**6, 10**7)
            d_model = 2 * case.size("pairs", pairs)
            return shift, d_model, float(case.integer(20, 200))

        returns = {"matrix": "d_model d_model"}
        # So many clocks that the first rows of a table do not tell a matrix for all rows.
        for sign, pairs in ((1, 3), (-1, 3), (1, 40)):
            asked = functools.partial(inputs, sign=sign, pairs=pairs)
            expect_near(subject, case, "shift_matrix", asked, shift_oracle, returns)
            case = without(case, "ShiftedBackwards")  # which is the same if the sign is lost


# 5.5 ------------------------------------------------------------------------------------------


def learned_inputs(case):
    batch, length = case.size("batch", 3), case.size("length", 5)
    d_model, max_len = case.size("d_model", 4), 13
    return case.normal(batch, length, d_model), case.normal(max_len, d_model)


@handed_out
def learned_oracle(x, table, offset=0):
    ...


def ask_learned(subject, *args):
    return subject.call("learned_positions", *args)


def ask_beyond(subject, x, table, offset):
    """Ask at an offset and at the next one, which tells apart what looks alike at the first."""
    answers = []
    for place in (offset, offset + 1):
        try:
            answers.append(ask_learned(subject, x, table, place))
        except Crashed as error:
            answers.append(("crashed", error.kind, error.text))
    return answers


def ask_learned_for_inputs(subject, *args):
    _, (x, table, _) = subject.call_and_return_inputs("learned_positions", *args)
    return x, table


def is_crash(answer):
    return isinstance(answer, tuple) and answer[0] == "crashed"


@exercise(
    "learned_positions",
    number="5.5",
    title="A learned table of positions",
    asks="Add the rows `offset`, `offset + 1`, … of the table to the tokens; if it is too "
    "short, raise a ValueError that states its length and the offset.",
    difficulty=1,
    importance=3,
    minutes=10,
    deeper=True,
)
class TestLearnedPositions:
    @points(1)
    def test_an_offset_of_0_adds_the_first_rows(self, subject, case):
        self.compare(subject, case, lambda case: 0)

    @points(1)
    def test_the_offset_selects_the_rows_that_are_added(self, subject, case):
        self.compare(subject, case, lambda case: case.integer(2, 6))

    @points(1)
    def test_the_last_row_of_the_table_can_be_used(self, subject, case):
        self.compare(subject, case, lambda case: 13 - case.size("length", 5))

    @points(1, only_with="test_an_offset_of_0_adds_the_first_rows")
    def test_inputs_are_not_modified_and_gradients_flow_back_to_them(self, subject, case):
        def inputs(case):
            return *learned_inputs(case), 1

        def judge(answer, x, table, offset):
            for label, before, after in zip(("x", "table"), (x, table), answer, strict=True):
                if not torch.equal(before, after):
                    return f"`learned_positions` changes `{label}` in place: make a new tensor"
            return None

        expect_answer(subject, case, inputs, ask_learned_for_inputs, judge)
        learned_from = ["x", "table"]
        expect_gradients(subject, case, "learned_positions", inputs, learned_oracle, learned_from)

    @points(1, only_with="test_an_offset_of_0_adds_the_first_rows")
    def test_positions_beyond_the_table_raise_an_error(self, subject, case):
        self.refuse(subject, case, lambda case: 14 - case.size("length", 5))

    @points(1, only_with="test_an_offset_of_0_adds_the_first_rows")
    def test_a_single_remaining_row_is_not_broadcast(self, subject, case):
        self.refuse(subject, case, lambda case: 12)

    def compare(self, subject, case, offset_of):
        def inputs(case):
            x, table = learned_inputs(case)
            return x, table, offset_of(case)

        def judge(answer, x, table, offset):
            if is_crash(answer):
                return (
                    f"with {len(table)} rows, offset {offset} and {x.shape[1]} tokens it raised "
                    f"{answer[1]}: {answer[2]}"
                )
            expected = learned_oracle(x, table, offset)
            form = {"output": "batch length d_model"}
            if problem := wrong_form((answer,), (expected,), form, "learned_positions"):
                return problem
            return differs("output", answer, expected, EXACT)

        expect_answer(subject, case, inputs, ask_learned, judge, crashes_tell=True)

    def refuse(self, subject, case, offset_of):
        def inputs(case):
            x, table = learned_inputs(case)
            return x, table, offset_of(case)

        def judge(answers, x, table, offset):
            answer = answers[0]
            situation = f"{len(table)} rows, offset {offset} and {x.shape[1]} tokens"
            if not is_crash(answer):
                return f"with {situation} it returned something, expected a ValueError"
            if answer[1] != "ValueError":
                return f"with {situation} it raised {answer[1]} ({answer[2]}), not a ValueError"
            for number in (len(table), offset):
                if str(number) not in answer[2]:
                    return (
                        f"with {situation} it raised a ValueError whose message does not contain "
                        f"{number}: “{answer[2]}”"
                    )
            return None

        expect_answer(subject, case, inputs, ask_beyond, judge)


# 5.3 ------------------------------------------------------------------------------------------


exec(packed(__file__, 2), globals())


@handed_out
def rotary_oracle(x, positions, base):
    ...


def draw_positions(case, batch, length, farthest=60):
    """Draw positions of several sequences, ascending, with gaps."""
    rows = [torch.randperm(farthest, generator=case.generator)[:length] for _ in range(batch)]
    return torch.stack(rows).sort(dim=-1).values


def rotary_inputs(case):
    batch, heads, length = case.size("batch", 2), case.size("heads", 3), case.size("length", 5)
    d_head = 2 * case.size("pairs", 4)
    base = float(case.integer(20, 200))
    positions = draw_positions(case, batch, length)
    return case.normal(batch, heads, length, d_head), positions, base


def layer_inputs(case):
    batch, length, d_model = 2, case.size("length", 5, smallest=2), 7
    num_heads, d_head = 3, 6  # not 4, whose square root is half of it
    maps = [case.normal(d_model, num_heads * d_head, std=0.6) for _ in range(3)]
    positions = draw_positions(case, batch, length)
    return case.normal(batch, length, d_model), *maps, num_heads, positions


@handed_out
def layer_oracle(x, w_query, w_key, w_value, num_heads, positions):
    ...


@exercise(
    "apply_rotary",
    number="5.3",
    title="Rotary position embeddings (RoPE)",
    asks="`apply_rotary` rotates pairs of neighbouring features by position / base^(2i / "
    "d_head); `rotary_attention` is an attention layer that uses it and returns its "
    "concatenated heads.",
    difficulty=3,
    importance=5,
    minutes=30,
)
class TestApplyRotary:
    @points(3)
    def test_each_pair_of_features_is_rotated_by_its_angle(self, subject, case):
        returns = {"output": "batch heads length d_head"}
        expect_near(subject, case, "apply_rotary", rotary_inputs, rotary_oracle, returns)

    @points(1)
    def test_bfloat16_inputs_at_positions_in_the_thousands_are_rotated_accurately(
        self, subject, case
    ):
        def inputs(case):
            x = case.normal(2, 3, 5, 8).to(torch.bfloat16)
            return x, draw_positions(case, 2, 5) + case.integer(6000, 9000), 10_000.0

        def ask(subject, x, positions, base):
            """Ask whether an index is too large, of whatever size a table is."""
            try:
                subject.call("apply_rotary", x, positions, base)
            except Crashed as error:
                if error.kind == "IndexError":
                    return f"for the positions {positions[0].tolist()} it raised an IndexError"
                raise
            return None

        def law(output, x, positions, base):
            if output.dtype is x.dtype:
                return None
            return f"output has dtype {output.dtype}, expected {x.dtype}"

        form = {"output": "batch heads length d_head"}
        expect_answer(subject, case, inputs, ask, lambda problem, *args: problem)
        expect_near(
            subject, case, "apply_rotary", inputs, rotary_oracle, form, tolerance=0.05, alike=0.05
        )
        expect_law(subject, case, "apply_rotary", inputs, law)

    @points(2)
    def test_rotary_attention_rotates_the_queries_and_keys_of_each_head(self, subject, case):
        form = {"output": "batch length d_model"}

        def ask(subject, *args):
            """Ask for the layer; the turn beside it tells apart what a layer does not show."""
            output = subject.call("rotary_attention", *args)
            x, *_, positions = args
            heads = torch.stack((x[..., :6],) * 3, dim=1)
            try:
                return [output, subject.call("apply_rotary", heads, positions)]
            except StudentError:
                return [output, None]

        def judge(answer, *args):
            expected = layer_oracle(*args)
            problem = wrong_form((answer[0],), (expected,), form, "rotary_attention")
            return problem or differs("output", answer[0], expected, NEAR)

        expect_answer(subject, case, layer_inputs, ask, judge)

    @points(2, only_with="test_rotary_attention_rotates_the_queries_and_keys_of_each_head")
    def test_rotary_attention_depends_only_on_relative_positions(self, subject, case):
        def ask(subject, *args):
            *others, positions = args
            placed = (positions, positions + 11, 2 * positions)
            return [subject.call("rotary_attention", *others, p) for p in placed]

        def judge(answer, *args):
            here, there, apart = answer
            form = {"output": "batch length d_model"}
            expected = layer_oracle(*args)
            if problem := wrong_form((here,), (expected,), form, "rotary_attention"):
                return problem
            if moved := differs("output with all positions shifted by 11", there, here, NEAR):
                return f"{moved.replace('expected', 'before')}: it should be the same"
            if differs("output", apart, here, NEAR) is None:
                return "the output stays the same even if all distances are doubled"
            expected = layer_oracle(*args[:-1], 2 * args[-1])
            return differs("output with all positions doubled", apart, expected, NEAR)

        expect_answer(subject, case, layer_inputs, ask, judge)


# 5.9 ------------------------------------------------------------------------------------------


@handed_out
def convert_oracle(weight, num_heads, to):
    ...


def convert_inputs(to):
    def inputs(case):
        num_heads, d_head = case.size("heads", 3), 2 * case.size("pairs", 4, smallest=3)
        return case.normal(num_heads * d_head, 18), num_heads, to

    return inputs


exec(packed(__file__, 3), globals())


@exercise(
    "convert_rotary",
    number="5.9",
    title="Two layouts, one model",
    asks="Return the rows of a query or key projection, head by head, in the order required by "
    'the layout `to`, "half_split" or "interleaved".',
    difficulty=3,
    importance=3,
    minutes=15,
    deeper=True,
)
class TestConvertRotary:
    @points(1)
    def test_the_interleaved_layout_is_converted_to_half_split(self, subject, case):
        self.compare(subject, case, convert_inputs("half_split"))

    @points(1)
    def test_the_half_split_layout_is_converted_to_interleaved(self, subject, case):
        inputs = convert_inputs("interleaved")
        returns = {"converted": "out d_model"}

        def ask(subject, weight, num_heads, to):
            """Ask for both directions, of which the other one tells mistakes apart."""
            return [
                subject.call("convert_rotary", weight, num_heads, layout)
                for layout in (to, "half_split")
            ]

        def judge(answer, *args):
            expected = convert_oracle(*args)
            if problem := wrong_form((answer[0],), (expected,), returns, "convert_rotary"):
                return problem
            return differs("converted", answer[0], expected, EXACT)

        expect_answer(subject, case, inputs, ask, judge)

    @points(1)
    def test_a_bias_is_reordered_like_the_rows_of_a_weight(self, subject, case):
        def inputs(case):
            weight, num_heads, to = convert_inputs("half_split")(case)
            return weight[:, 0], num_heads, to

        def ask(subject, weight, num_heads, to):
            """Ask for a bias and for the weight, which tells mistakes apart."""
            return [
                subject.call("convert_rotary", rows, num_heads, to)
                for rows in (weight[:, 0], weight)
            ]

        def judge(answer, weight, num_heads, to):
            expected = convert_oracle(weight[:, 0], num_heads, to)
            if problem := wrong_form((answer[0],), (expected,), returns, "convert_rotary"):
                return problem
            return differs("converted", answer[0], expected, EXACT)

        returns = {"converted": "out"}
        self.compare(subject, case, inputs, returns)
        expect_answer(subject, case, convert_inputs("interleaved"), ask, judge)

    @points(2)
    def test_converted_weights_give_the_same_attention_scores(self, subject, case):
        def inputs(case):
            (w_query, num_heads, _), (w_key, *_) = (convert_inputs("")(case) for _ in range(2))
            return case.normal(5, 18), w_query, w_key, num_heads

        def ask(subject, x, w_query, w_key, num_heads):
            weights = (w_query, w_key)
            return [subject.call("convert_rotary", w, num_heads, "half_split") for w in weights]

        def judge(answer, x, w_query, w_key, num_heads):
            form = {"query weight": "out d_model", "key weight": "out d_model"}
            if problem := wrong_form(answer, (w_query, w_key), form, "convert_rotary"):
                return problem
            before = scores_of(x, w_query, w_key, num_heads, turn_pairs)
            after = scores_of(x, *(w.double() for w in answer), num_heads, turn_halves)
            return differs("scores after converting both projections", after, before, EXACT)

        expect_answer(subject, case, inputs, ask, judge)

    def compare(self, subject, case, inputs, returns=None):
        returns = returns or {"converted": "out d_model"}
        expect_agrees(subject, case, "convert_rotary", inputs, convert_oracle, returns)


# 5.6 ------------------------------------------------------------------------------------------


@handed_out
def slopes_oracle(num_heads):
    ...


@handed_out
def bias_oracle(num_heads, q_len, k_len):
    ...


@exercise(
    "alibi_bias",
    number="5.6",
    title="ALiBi: lower the scores of distant keys",
    asks="`alibi_slopes` returns one slope per head; `alibi_bias` returns the bias that is added "
    "to the scores, (num_heads, q_len, k_len): minus slope times distance, and minus "
    "infinity for later keys.",
    difficulty=2,
    importance=3,
    minutes=20,
    deeper=True,
)
class TestAlibiBias:
    @points(1)
    def test_if_num_heads_is_a_power_of_two_the_slopes_are_geometric(self, subject, case):
        self.compare_slopes(subject, case, lambda case: 2 ** case.integer(1, 6))
        self.compare_slopes(subject, case, lambda case: 2 ** case.integer(4, 6))
        self.compare_slopes(subject, case, lambda case: 1)

    @points(1)
    def test_for_other_numbers_of_heads_the_slopes_follow_the_rule(self, subject, case):
        def inputs(case):
            heads = case.integer(5, 100)
            return 2 * (heads + (heads & (heads - 1) == 0))  # no power of two

        self.compare_slopes(subject, case, inputs)
        self.compare_slopes(subject, case, lambda case: 2 * case.integer(8, 100) + 1)

    @points(2)
    def test_the_bias_decreases_with_distance_and_masks_later_keys(self, subject, case):
        def inputs(case):
            length = case.size("length", case.integer(4, 40), smallest=2)
            return case.size("heads", case.integer(3, 6)), length, length

        self.compare_bias(subject, case, inputs)

    @points(1)
    def test_with_cached_keys_the_queries_take_the_last_positions(self, subject, case):
        def inputs(case):
            q_len = case.size("q_len", case.integer(2, 9))
            heads = case.size("heads", case.integer(3, 6))
            return heads, q_len, q_len + case.size("cached", case.integer(3, 40))

        def many_cached(case):
            return case.size("heads", 3), 1, case.size("cached", 1_030)

        self.compare_bias(subject, case, inputs)
        returns = {"bias": "num_heads q_len k_len"}
        expect_near(subject, case, "alibi_bias", many_cached, bias_oracle, returns, tolerance=EXACT)

    def compare_slopes(self, subject, case, num_heads):
        def inputs(case):
            return (num_heads(case),)

        returns = {"slopes": "num_heads"}
        for _ in range(2):
            expect_near(
                subject, case, "alibi_slopes", inputs, slopes_oracle, returns, tolerance=EXACT
            )

    def compare_bias(self, subject, case, inputs):
        returns = {"bias": "num_heads q_len k_len"}
        for _ in range(3):
            expect_near(subject, case, "alibi_bias", inputs, bias_oracle, returns, tolerance=EXACT)


# 5.10 -----------------------------------------------------------------------------------------


@handed_out
def space_oracle(x, coordinates, base):
    ...


def space_inputs(axes, whole=False):
    def inputs(case):
        batch, points_, pairs = case.size("batch", 2), case.size("points", 5), axes
        coordinates = case.uniform(batch, points_, axes, low=-9.0, high=9.0)
        x = case.normal(batch, points_, 2 * pairs * axes)
        return x, coordinates.round() if whole else coordinates, float(case.integer(20, 100))

    return inputs


@handed_out
def patches_oracle(height, width):
    ...


SPACE = {"output": "batch points d_head"}


@exercise(
    "rotary_in_space",
    number="5.10",
    title="RoPE for patches and points",
    asks="`patch_coordinates` returns (row, column) of each patch in reading order; "
    "`rotary_in_space` gives each axis an equal part of the features and rotates it by that "
    "coordinate.",
    difficulty=3,
    importance=3,
    minutes=25,
    deeper=True,
)
class TestRotaryInSpace:
    @points(1)
    def test_patch_coordinates_are_in_reading_order(self, subject, case):
        def inputs(case):
            """Never a square, in which rows and columns are alike."""
            height = case.size("height", case.integer(3, 100), smallest=2)
            width = case.integer(3, 99)
            return height, case.size("width", width + (width >= height), smallest=3)

        returns = {"coordinates": "patches 2"}
        for _ in range(2):
            expect_near(subject, case, "patch_coordinates", inputs, patches_oracle, returns)

    @points(2)
    def test_each_axis_rotates_its_own_part_of_the_features(self, subject, case):
        inputs = space_inputs(axes=2, whole=True)
        expect_near(subject, case, "rotary_in_space", inputs, space_oracle, SPACE)

    @points(1)
    def test_three_axes_and_fractional_coordinates_work(self, subject, case):
        inputs = space_inputs(axes=3)
        expect_near(subject, case, "rotary_in_space", inputs, space_oracle, SPACE)

    @points(2)
    def test_scores_depend_only_on_coordinate_differences(self, subject, case):
        def inputs(case):
            """One query, and keys at the corners of a square around it, all with one content."""
            query, key = case.normal(1, 1, 8), case.normal(1, 1, 8)
            corners = torch.tensor([[3.0, 3.0], [3.0, -3.0], [-3.0, 3.0], [-3.0, -3.0]]).double()
            return query, key.repeat(1, 4, 1), corners[None], case.normal(1, 1, 2)

        def ask(subject, query, key, corners, origin):
            def scores(origin):
                here = origin.double()
                turned = subject.call("rotary_in_space", query, here, 100.0)
                others = subject.call("rotary_in_space", key, here + corners, 100.0)
                return turned, others

            return [scores(origin), scores(origin + 2.7)]

        def judge(answer, query, key, corners, origin):
            form = {"query": "batch points d_head", "keys": "batch points d_head"}
            scores = []
            for turned in answer:
                if problem := wrong_form(turned, (query, key), form, "rotary_in_space"):
                    return problem
                scores.append((turned[0].double() * turned[1].double()).sum(dim=-1)[0])
            if problem := differs("scores after shifting the origin", scores[1], scores[0], NEAR):
                return problem.replace("expected", "before")
            expected = (
                space_oracle(query, origin, 100.0) * space_oracle(key, origin + corners, 100.0)
            ).sum(dim=-1)[0]
            return differs("scores of the keys at four corners", scores[0], expected, NEAR)

        expect_answer(subject, case, inputs, ask, judge)


# 5.8 ------------------------------------------------------------------------------------------


def losses_inputs(case):
    """Losses that start high, settle, have hard and easy tokens, and jump beyond what was trained.

    The last trained token is easy, so a limit that is set by it alone is too low; the first bad
    window does not start at a multiple of a window from where training ended. The first window
    beyond is easy, but for a hard token: too low a limit without tolerance is exceeded later.
    """
    windows, length = case.size("windows", 3), 22
    trained, window, tolerance = 8, 4, 0.7
    curve = 2 + 4 * torch.exp(-torch.arange(length, dtype=torch.float64))
    curve[trained - 1] -= 1.6
    curve[trained : trained + window] -= 1.0
    curve[trained + 2] += 2.0
    curve[length - case.integer(4, 6) :] += 2.0
    losses = curve + 0.1 * (case.uniform(windows, length) - 0.5)
    # Windows are not equally hard, which tells the perplexity of a mean from the mean of them.
    losses = losses + torch.linspace(-0.6, 0.6, windows, dtype=torch.float64)[:, None]
    return losses, trained, window, tolerance


def unbroken_inputs(case):
    """Losses that do not jump; the last token but one is hard, which no whole window minds.

    The last trained token is as hard as those before it, so it makes no difference here whether it
    alone sets the limit.
    """
    losses, *others = losses_inputs(case)
    losses = losses[:, :16].clone()
    losses[:, others[0] - 1] += 1.6
    losses[:, -2] += 1.8
    return losses, *others


def late_inputs(case):
    """Losses of which the last whole window is the only bad one, after a text that is far easier."""
    losses, *others = losses_inputs(case)
    losses = losses[:, :16].clone()
    losses[:, -5:-3] -= torch.tensor([1.0, 3.0], dtype=torch.float64)
    losses[:, -1] += 9.0
    return losses, *others


def early_inputs(case):
    """Losses that jump where training ended, by so much that one bad token spoils a window."""
    losses, *others = losses_inputs(case)
    losses = losses.clone()
    losses[:, others[0] :] += 6.0
    return losses, *others


def level_inputs(case):
    """Losses that are worse by exactly the tolerance, and then by more; no mean is rounded."""
    length, trained, window, tolerance = 16, 8, 4, 0.5
    curve = torch.full((length,), case.integer(4, 12) / 4, dtype=torch.float64)
    curve[trained:] += tolerance
    curve[length - case.integer(2, 4) :] += 4.0
    losses = curve + torch.tensor([[-0.25], [0.25]], dtype=torch.float64)
    return losses, trained, window, tolerance


@handed_out
def extrapolation_oracle(losses, trained_length, window, tolerance):
    ...


def why_broken(results, losses, trained_length, window, tolerance):
    """Say which means of windows decide about the position where the model breaks down."""
    seen = float(results[1])
    expected = int(extrapolation_oracle(losses, trained_length, window, tolerance)[1])

    def mean(start):
        return f"{losses[:, start : start + window].mean():.4g}"

    before, length = trained_length - window, losses.shape[1]
    said = f". The last trained window has mean {mean(before)}; the limit is {tolerance} higher"
    if expected == length:
        return f"{said}, and no whole window after it exceeds that: return the length, {length}"
    said += f", and the first window to exceed that starts at {expected} (mean {mean(expected)})"
    is_a_start = seen.is_integer() and trained_length <= seen <= length - window
    return f"{said}; the one at {int(seen)} has {mean(int(seen))}" if is_a_start else said


EXTRAPOLATION = {"by_position": "length", "breaks_at": "", "perplexity": "length"}


@exercise(
    "extrapolation",
    number="5.8",
    title="Sequences longer than in training",
    asks="Return (by_position, breaks_at, perplexity): the mean loss at each position; the start "
    "of the first window that is worse than the last trained one by more than `tolerance`; and the "
    "perplexity of the first t tokens, for each t.",
    difficulty=2,
    importance=4,
    minutes=20,
    deeper=True,
)
class TestExtrapolation:
    @points(1)
    def test_losses_are_averaged_at_each_position(self, subject, case):
        self.compare(subject, case, losses_inputs, "by_position")

    @points(2, only_with="test_losses_are_averaged_at_each_position")
    def test_the_position_where_the_model_breaks_down_is_found(self, subject, case):
        self.compare(subject, case, losses_inputs, "breaks_at")
        self.compare(subject, case, late_inputs, "breaks_at")
        self.compare(subject, case, early_inputs, "breaks_at")
        self.compare(subject, case, level_inputs, "breaks_at")

    @points(
        1,
        only_with=(
            "test_losses_are_averaged_at_each_position",
            "test_the_position_where_the_model_breaks_down_is_found",
        ),
    )
    def test_a_model_that_never_breaks_down_gets_the_full_length(self, subject, case):
        self.compare(subject, case, unbroken_inputs, "breaks_at")

    @points(2)
    def test_perplexity_is_computed_over_each_prefix(self, subject, case):
        self.compare(subject, case, losses_inputs, "perplexity")

    def compare(self, subject, case, inputs, label):
        expect_agrees(
            subject,
            case,
            "extrapolation",
            inputs,
            extrapolation_oracle,
            EXTRAPOLATION,
            compare=[label],
            why=why_broken if label == "breaks_at" else None,
            also=(losses_inputs, late_inputs, early_inputs, unbroken_inputs)
            if label == "breaks_at"
            else (),
        )


# 5.7 ------------------------------------------------------------------------------------------


@handed_out
def halves_oracle(x, positions):
    ...


@exercise(
    "mended_positions",
    number="5.7",
    title="Bug hunt: two nearly correct formulas",
    asks="`mended_positions` is the published table with both its bugs fixed; `mended_rotary` is "
    "the published rotation of the features i and i + d_head / 2 with its one bug fixed.",
    difficulty=3,
    importance=4,
    minutes=25,
    deeper=True,
)
class TestMendedPositions:
    @points(2)
    def test_the_table_matches_the_formula(self, subject, case):
        def inputs(case):
            pairs = case.size("pairs", case.integer(3, 30))
            return case.size("length", 7) + case.integer(0, 200), 2 * pairs

        for _ in range(2):
            expect_near(subject, case, "mended_positions", inputs, table_oracle, TABLE)

    @points(2)
    def test_the_halves_are_rotated_by_the_angles_of_their_pairs(self, subject, case):
        def inputs(case):
            length = case.size("length", 5)
            positions = draw_positions(case, 1, length)[0]
            return case.normal(length, 2 * case.size("pairs", 3)), positions

        returns = {"output": "length d_head"}
        expect_near(subject, case, "mended_rotary", inputs, halves_oracle, returns)

    @points(1, only_with="test_the_halves_are_rotated_by_the_angles_of_their_pairs")
    def test_the_rotation_preserves_the_norm_of_each_vector(self, subject, case):
        def inputs(case):
            length = 5
            return case.normal(length, 6), draw_positions(case, 1, length)[0]

        def judge(seen, x, positions):
            form = {"output": "length d_head"}
            if problem := wrong_form((seen,), (x,), form, "mended_rotary"):
                return problem
            lengths = seen.double().norm(dim=-1)
            return differs("norms of the rotated vectors", lengths, x.norm(dim=-1), NEAR)

        def ask(subject, *args):
            return subject.call("mended_rotary", *args)

        expect_answer(subject, case, inputs, ask, judge)


# 5.4 ------------------------------------------------------------------------------------------


@functools.cache
def reader():
    """Load the trained model in double precision, and a page of Python as its input."""
    from groundup.pretrained import load

    model, tokenizer = load("reader")
    page = tokenizer.encode(inspect.getsource(textwrap.TextWrapper))
    return model.double().requires_grad_(False), torch.tensor(page)


def logits_with(turn, ids, positions):
    """Run the model with queries and keys rotated by `turn` in each layer."""
    model, _ = reader()
    x = model.embedding(ids)
    for block in model.blocks:
        read, attention = block.attention_norm(x), block.attention
        query, key, value = (
            torch.stack(project(read).chunk(model.config.num_heads, dim=-1), dim=1)
            for project in (attention.query, attention.key, attention.value)
        )
        query, key = turn(query, key, positions)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + attention.output(torch.cat(found.unbind(dim=1), dim=-1))
        x = x + block.feed_forward(block.feed_forward_norm(x))
    return model.unembedding(model.final_norm(x))


@handed_out
def logits_oracle(ids, positions):
    ...


def pair_inputs(case):
    query, positions, _ = rotary_inputs(case)
    return query, case.normal(*query.shape), positions


@handed_out
def pair_oracle(query, key, positions):
    ...


def ask_for_pair(subject, *args):
    return subject.call("swapped_rotary", *args)


def judge_scores(answer, *args):
    """Judge the scores of heads of another width: all positions may be moved on together."""
    expected = pair_oracle(*args)
    form = {label: "batch heads length d_head" for label in ("query", "key")}
    if problem := wrong_form(answer, expected, form, "swapped_rotary"):
        return problem
    seen, right = (query.double() @ key.double().mT for query, key in (answer, expected))
    label = f"with d_head {expected[0].shape[-1]}, scores of rotated queries and keys"
    return differs(label, seen, right, 10 * NEAR)


class WrongForm(Exception):
    """What came back cannot go on through the model."""


def ask_for_logits(subject, ids, positions):
    def turn(query, key, positions):
        turned = subject.call("swapped_rotary", query, key, positions)
        form = {label: "batch heads length d_head" for label in ("query", "key")}
        if problem := wrong_form(turned, (query, key), form, "swapped_rotary"):
            raise WrongForm(problem)
        return [x.double() for x in turned]

    try:
        return logits_with(turn, ids, positions)
    except WrongForm as error:
        return str(error)


def far_pair_inputs(case):
    query, key, positions = pair_inputs(case)
    return query, key, positions + 1_000_000


def ask_for_index(subject, query, key, positions):
    """Ask whether an index is too large, of whatever size a table is."""
    try:
        subject.call("swapped_rotary", query, key, positions)
    except Crashed as error:
        if error.kind != "IndexError":
            raise
        return f"for the positions {positions.min()} to {positions.max()} it raised an IndexError"
    return None


def draw_lines(case, rows, length=12):
    """Draw some lines of the page."""
    _, page = reader()
    starts = [case.integer(0, len(page) - length) for _ in range(rows)]
    return torch.stack([page[start : start + length] for start in starts])


@exercise(
    "swapped_rotary",
    number="5.4",
    title="Your rotation in a trained model",
    asks="Return (query, key), rotated so that a trained model whose rotary embeddings pair "
    "neighbours, with base 10,000, gives the same logits as before.",
    difficulty=2,
    importance=4,
    minutes=10,
)
class TestSwappedRotary:
    @points(3)
    def test_the_logits_of_the_trained_model_are_the_same(self, subject, case):
        def inputs(case):
            ids = draw_lines(case, rows=1)
            return ids, torch.arange(ids.shape[1])[None]

        self.compare(subject, case, inputs)

    @points(2)
    def test_positions_with_offsets_and_gaps_give_the_same_logits(self, subject, case):
        def inputs(case):
            ids = draw_lines(case, rows=2)
            return ids, draw_positions(case, *ids.shape, farthest=200)

        self.compare(subject, case, inputs)

        def far_inputs(case):
            """Sequences that start far away, and apart, as in the middle of long texts."""
            ids, positions = inputs(case)
            return ids, positions + torch.tensor([[case.integer(15_000, 20_000)], [1_100]])

        expect_answer(subject, case, far_pair_inputs, ask_for_index, lambda said, *args: said)
        self.compare(subject, case, far_inputs, FAR)
        expect_answer(subject, case, pair_inputs, ask_for_pair, judge_scores)

    def compare(self, subject, case, inputs, tolerance=NEAR):
        def judge(logits, ids, positions):
            if isinstance(logits, str):
                return logits
            expected = logits_oracle(ids, positions)
            problem = differs("logits of the trained model", logits, expected, tolerance)
            if problem is None:
                return None
            told, wanted = (
                F.cross_entropy(some[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).item()
                for some in (logits, expected)
            )
            return f"{problem}. The loss would be {told:.4f} nats per token instead of {wanted:.4f}"

        try:
            expect_answer(subject, case, inputs, ask_for_logits, judge)
        except CheckFailed as failed:
            # Thousands of logits do not say what a few queries and keys do.
            form = {label: "batch heads length d_head" for label in ("query", "key")}
            asked = subject, case, "swapped_rotary", pair_inputs, pair_oracle, form

            def explain(problem, mistakes, example):
                if mistakes:
                    return problem, mistakes, example
                try:
                    expect_agrees(*asked, tolerance=NEAR)
                except CheckFailed as closer:
                    if not isinstance(closer.__cause__, (Died, TooSlow)):
                        return closer.explained()
                return problem, (), example

            failed.further(explain)
            raise
