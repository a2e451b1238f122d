import math

import pytest
import torch

from classroom.exercise.comparing import (
    describe,
    differs,
    loses_precision,
    number,
    same,
    wrong_form,
)


def f64(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


# By hand


def test_the_furthest_place_is_shown():
    expected = torch.zeros(2, 3, 5)
    seen = expected.clone()
    seen[1, 2, 4], seen[0, 1, 3] = -0.75, 0.5
    assert differs("output", seen, expected) == (
        "output: wrong in 2 of 30 entries; furthest off at [1, 2, 4]: seen -0.75, expected 0"
        "; along axis 1, only the entries at 0 are correct"
    )


def test_a_single_number_is_told_without_a_place():
    assert differs("scale", 2, 3.0) == "scale is 2, expected 3"
    assert differs("scale", math.nan, 3.0) == "scale is nan, expected 3"
    assert differs("scale", torch.tensor([[2.0]]), 3.0) == "scale is 2, expected 3"
    assert differs("scale", torch.tensor(2), f64(3)[0]) == "scale is 2, expected 3"


def test_nan_is_told_as_nan():
    seen = f64(2, math.nan, math.nan)
    assert (
        differs("output", seen, f64(2, 3, 5)) == "output holds NaN in 2 of 3 entries, first at [1]"
    )
    grid = torch.zeros(2, 3)
    grid[1, 2] = math.nan
    assert "1 of 6 entries, first at [1, 2]" in differs("output", grid, torch.zeros(2, 3))


def test_numbers_that_look_alike_get_more_digits():
    told = differs("scale", 0.12345001, 0.12345602)
    assert told.startswith("scale is 0.12345001, expected 0.12345602; nearly correct")
    assert "seen 1.00001, expected 1" in differs("output", f64(1.00001, 2), f64(1, 2))


def test_where_both_are_infinite_nothing_is_wrong():
    """As in masked scores: the hidden places hold -inf, one other place is wrong."""
    inf = math.inf
    expected = f64(-inf, 1, inf, math.nan, 2)
    assert differs("scores", expected.clone(), expected) is None
    seen = f64(-inf, 1, inf, math.nan, 2.5)
    assert differs("scores", seen, expected) == (
        "scores: wrong in 1 of 5 entries; furthest off at [4]: seen 2.5, expected 2"
    )


def test_infinity_is_further_than_any_number():
    told = differs("scores", f64(1e300, 3, -math.inf), f64(0, 3, 5))
    assert told.endswith("furthest off at [2]: seen -inf, expected 5")
    told = differs("scores", f64(0, 3, 5), f64(0, 4, math.nan))
    assert told.endswith("wrong in 2 of 3 entries; furthest off at [2]: seen 5, expected nan")


# Laws


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_equal_numbers_do_not_differ(dtype):
    numbers = torch.arange(6).reshape(2, 3).to(dtype)
    assert differs("output", numbers, numbers.double()) is None
    assert differs("output", torch.empty(0, 3).to(dtype), torch.empty(0, 3)) is None


def test_a_result_that_loses_the_precision_of_its_inputs_is_told():
    wide, narrow = f64(1, 2, 3), torch.tensor([1.0, 2.0, 3.0])
    said = "output has dtype torch.float32, but the inputs have torch.float64: keep their dtype"
    assert loses_precision("output", narrow, [wide, narrow.long(), 2]) == said
    for seen, args in [
        (wide, [wide]),
        (narrow, [wide, narrow]),
        (narrow, [2]),
        (narrow[0], [wide]),
        (3.5, [wide]),
    ]:
        assert loses_precision("output", seen, args) is None


WEIGHTS = torch.tensor([[0.1, 0.2, 0.7], [0.3, 0.6, 0.1], [0.25, 0.35, 0.4]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (-WEIGHTS, "every sign is wrong"),
        (WEIGHTS / 4, "every entry is 0.25 times what is expected"),
        (WEIGHTS + 3, "every entry is 3 more than what is expected"),
        (WEIGHTS - 3, "every entry is 3 less than what is expected"),
        (WEIGHTS.flip(0), "in reverse order along axis 0, it is correct"),
        (WEIGHTS.flip(1), "in reverse order along axis 1, it is correct"),
        (WEIGHTS.mT, "with its last two axes exchanged, it is correct"),
        (WEIGHTS.roll(1, 0).mT, "it sums to 1 along axis 0, but should along the last one"),
        (WEIGHTS.square() / 2, "along the last axis it should sum to 1, and sums to 0.1725"),
        (WEIGHTS.square(), "it is the square of what is expected"),
        (WEIGHTS.sqrt(), "it is the square root of what is expected"),
        (WEIGHTS.log(), "it is the logarithm of what is expected"),
        (WEIGHTS.log() + 3, "a softmax along the last axis makes it correct"),
        (1 - WEIGHTS, "it is 1 minus what is expected"),
        (1 / WEIGHTS, "it is 1 divided by what is expected"),
        (WEIGHTS * f64(2, 3, 7)[:, None], "divided by its sum along the last axis, it is correct"),
        (WEIGHTS.roll(1, 0), "one position too late along axis 0, and the last is first"),
        (WEIGHTS.roll(-1, 0), "one position too early along axis 0, and the first is last"),
    ],
)
def test_wrong_numbers_say_what_would_make_them_right_if_it_is_simple(seen, said):
    assert differs("weights", seen, WEIGHTS).endswith(said)


@pytest.mark.parametrize(("place", "by"), [((1, 2), 1.1e-3), ((0, 2), 1.8e-3)])
def test_one_wrong_entry_among_correct_ones_is_not_called_every_entry(place, by):
    wrong = WEIGHTS.clone()
    wrong[place] += by
    told = differs("weights", wrong, WEIGHTS, tolerance=1e-3)
    assert "wrong in 1 of 9 entries" in told and "every entry" not in told


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (WEIGHTS.roll(1, 0).roll(1, 1) + 0.05 * WEIGHTS.log().sin(), WEIGHTS.sin()),
        (f64(-1, -2, -3), f64(1, 2, 3)),  # so few are alike by chance
    ],
)
def test_other_wrong_numbers_say_nothing_more(seen, expected):
    assert differs("weights", seen, expected).count(";") == 1


def test_rounding_is_no_difference_and_more_is():
    expected = f64(1000.0, 1e-9, 0.0)
    assert differs("output", expected * (1 + 1e-7) + 1e-9, expected) is None
    assert differs("output", expected * (1 + 3e-6), expected) is not None
    assert differs("output", expected + f64(0, 3e-8, 0), expected) is not None


def test_nan_never_passes_for_a_number():
    assert differs("output", f64(math.nan), f64(0)) is not None
    assert differs("output", f64(0, math.nan), f64(0, 0)) is not None
    assert differs("output", f64(0), f64(math.nan)) is not None


def test_same_is_reflexive_and_symmetric_and_tells_kinds_apart():
    things = [
        f64(1, 2),
        f64(1, 2)[None],
        f64(1, 2).float(),
        f64(1, math.nan),
        torch.tensor([1, 2]),
        2,
        2.0,
        True,
        1e300,
        2e300,
        math.nan,
        "2",
        None,
        [f64(1, 2)],
        [f64(1, 3)],
        [f64(1, 2), 2],
        {"a": 2},
        {"b": 2},
        {"a": 3},
    ]
    for i, a in enumerate(things):
        for j, b in enumerate(things):
            assert same(a, b) == (i == j), (a, b)


def test_same_ignores_rounding_and_whether_results_are_a_list_or_a_tuple():
    assert same([2.0, f64(3)], (2.0 + 1e-12, f64(3 + 1e-12)))
    assert not same(2.0, 2.0001)


# The form of results


def form(seen, expected, returns):
    return wrong_form(seen, expected, returns, "f")


def test_results_of_the_right_form_pass():
    output = torch.zeros(2, 3)
    assert form((output,), [output.double()], {"output": "batch width"}) is None
    assert form([output, 2], (output, 0.5), {"output": "batch width", "scale": ""}) is None
    for scalar in (2, 2.5, torch.tensor(2.0), torch.ones(1, 1)):
        assert form((scalar,), [3.0], {"scale": ""}) is None
    assert form((2.5,), [torch.tensor(3.0)], {"scale": ""}) is None


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (torch.zeros(2), "`f` should return (output, scale); it returned a tensor of shape (2,)"),
        ([torch.zeros(2, 3)], "`f` should return (output, scale); it returned a list of 1"),
        (None, "`f` should return (output, scale); it returned None (is there a return?)"),
        (([1], 2), "output should be a tensor; it is a list of 1"),
        ((2.0, 2), "output should be a tensor; it is float 2.0"),
        (
            (torch.zeros(3, 2), 2),
            "output has shape (3, 2), expected (2, 3) = (batch, width): the axes are in another "
            "order",
        ),
        (
            (torch.zeros(2, 3, dtype=torch.int64), 2),
            "output has dtype torch.int64, expected torch.float64",
        ),
        (
            (torch.zeros(2, 3), torch.zeros(2)),
            "scale should be a number; it is a tensor of shape (2,)",
        ),
        ((torch.zeros(2, 3), "2"), "scale should be a number; it is str '2'"),
        ((torch.zeros(2, 3), None), "scale should be a number; it is None (is there a return?)"),
    ],
)
def test_a_wrong_form_is_told_by_name(seen, said):
    expected = (torch.zeros(2, 3, dtype=torch.float64), 0.5)
    assert form(seen, expected, {"output": "batch width", "scale": ""}) == said


def test_a_scalar_has_no_axes_to_name():
    assert form((torch.zeros(1),), [torch.tensor(2.0)], {"loss": ""}) == (
        "loss has shape (1,), expected (): an axis of size 1 is left over (is keepdim=True, or "
        "None in an index, needed?)"
    )


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (lambda x: x.mean(2), "averaged along axis 0 (2 is the size of batch), it is correct"),
        (lambda x: x.sum(2) / 8, "summed along axis 0 (2 is the size of batch), it is correct"),
        (lambda x: x, "averaged along the axes 0 and 2 (2 is the size of batch), it is correct"),
        (lambda x: 2 * x.mean(2), "axis 0 should not be there (2 is the size of batch); reduce "),
    ],
)
def test_an_axis_that_was_kept_is_named(seen, said):
    x = torch.arange(24.0).reshape(2, 3, 4).square()
    sizes = {"batch": 2, "heads": 3}
    told = wrong_form((seen(x),), (x.mean((0, 2)),), {"scores": "heads"}, "f", sizes)
    assert f"expected (3,) = (heads): {said}" in told


def test_a_mask_of_numbers_is_no_mask():
    mask = torch.ones(2, 2, dtype=torch.bool)
    for dtype in (torch.int64, torch.float32):
        told = form((mask.to(dtype),), [mask], {"mask": "q_len k_len"})
        assert told.startswith(f"mask has dtype {dtype}, expected torch.bool: True and False")
    ranks = torch.ones(2, dtype=torch.int64)
    assert form((ranks.to(torch.int32),), [ranks], {"ranks": "k_len"}) is None
    assert form((ranks.bool(),), [ranks], {"ranks": "k_len"}) is not None


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (
            (2, 1, 5),
            "an axis of size 1 is left over (is keepdim=True, or None in an index, needed?)",
        ),
        ((5, 2), "the axes are in another order"),
        ((2,), "there is no axis for width (was it summed or averaged away, or indexed?)"),
        ((5,), "there is no axis for batch (was it summed or averaged away, or indexed?)"),
        ((), "a single number (was everything summed or averaged?)"),
        ((2, 6), "one too many along width"),
        ((1, 5), "one too few along batch"),
    ],
)
def test_a_wrong_shape_says_what_is_simple_about_it(seen, said):
    told = form((torch.zeros(seen),), [torch.zeros(2, 5)], {"output": "batch width"})
    assert told.endswith(f"(batch, width): {said}")


def test_another_wrong_shape_says_nothing_more():
    told = form((torch.zeros(3, 4, 4),), [torch.zeros(2, 5)], {"output": "batch width"})
    assert told.endswith("(batch, width)")


def test_right_results_in_another_order_are_told_apart():
    output, weights = f64(1, 2, 3), f64(0.5, 0.5, 0)
    returns = {"output": "width", "weights": "width"}
    assert form((weights, output), [output, weights], returns) == (
        "`f` should return (output, weights), but returns them as (weights, output)"
    )
    assert form((output, output), [output, output], returns) is None


def test_a_factor_that_is_a_size_is_told_as_one():
    expected = f64(0.1, 0.7, 3, -2)
    for factor, said in {
        4: "which is d_head",
        0.5: "which is 1 / the square root of d_head",
        1 / 7: "which is 1 / batch",
    }.items():
        for seen, right in ((factor * expected, expected), (factor * 0.3, 0.3)):
            told = differs("output", seen, right, sizes={"d_head": 4, "batch": 7})
            assert told.endswith(f"({said})")
    assert "which is" not in differs("output", 5 * expected, expected, sizes={"batch": 7})
    told = differs("output", expected / 2, expected, sizes={"d_head": 4, "batch": 2})
    assert told.endswith("(which is 1 / the square root of d_head, or 1 / batch)")


def test_a_single_number_says_what_it_is_to_the_right_one():
    for seen, said in {
        -0.3: "the sign is wrong",
        0.3 / math.log(2): "it is counted in bits",
        0.09: "it is the square of what is expected",
        0.7: "it is 1 minus what is expected",
    }.items():
        assert differs("loss", seen, 0.3).endswith(f"; {said}")


def test_three_fractions_are_enough_for_a_factor_and_three_integers_are_not():
    assert differs("bias", f64(0.2, 0.5, 0.9), f64(0.1, 0.25, 0.45)).endswith(
        "; every entry is 2 times what is expected"
    )
    assert "times" not in differs("counts", f64(2, 4, 6), f64(1, 2, 3))


def test_ranks_in_place_of_an_order_are_recognised():
    order = torch.tensor([[2, 0, 3, 1], [1, 2, 0, 3]])
    assert "; it is the inverse permutation" in differs("order", order.argsort(-1), order)
    assert "inverse" not in differs("order", order.flip(0), order)
    assert "inverse" not in differs("order", order.argsort(-1)[:, :3], order[:, :3])


def test_a_wrong_place_is_named_by_its_axis():
    expected = torch.arange(20, dtype=torch.float64).reshape(4, 5).sin()
    seen = expected.clone()
    seen[2] = 5
    told = differs("output", seen, expected, axes=("length", "width"))
    assert told.endswith("; along length, only the entries at 2 are wrong")
    seen[:3] = 5
    told = differs("output", seen, expected, axes=("length", "width"))
    assert told.endswith("; along length, only the entries at 3 are correct")


def test_rows_that_stand_where_others_belong_are_told():
    right = torch.arange(20, dtype=torch.float64).sin().reshape(4, 5)
    told = differs("output", right[[0, 2, 1, 3]], right, axes=["batch", "width"])
    assert told.endswith("; along batch, 1 holds what belongs at 2, 2 holds what belongs at 1")
    told = differs("output", right[:, [0, 1, 1, 3, 4]], right)
    assert told.endswith("; along axis 1, 2 holds what belongs at 1")
    told = differs("losses", right[0, [1, 0, 2]], right[0, :3])
    assert told.endswith("; along axis 0, 0 holds what belongs at 1, 1 holds what belongs at 0")
    assert "belongs" not in differs("ranks", f64(2, 1, 3), f64(1, 2, 3))  # by chance, perhaps


def test_a_single_number_that_is_a_simple_part_of_the_right_one_says_so():
    assert differs("ratio", 0.31, 0.62).endswith("; it is 1/2 of what is expected")
    assert differs("ratio", 2.79, 0.93).endswith("; it is 3 times what is expected")
    assert ";" not in differs("count", 2, 6)
    told = differs("count", 5472, 16416, given={"num_heads": 3, "d_head": 7})
    assert told.endswith("; 0.3333 times as much (which is 1 / num_heads)")


def test_rows_with_a_factor_of_their_own_are_recognised():
    expected = torch.arange(1, 21, dtype=torch.float64).reshape(4, 5).sin()
    told = differs("output", expected * f64(2, 3, 5, 7)[:, None], expected)
    assert told.endswith("it is correct up to a factor for each line along axis 1")
    told = differs("output", expected + f64(2, 3, 5, 7)[:, None], expected)
    assert told.endswith("it is correct up to a constant added to each line along axis 1")


def test_rows_that_hold_infinity_have_no_summand_of_their_own():
    hidden = torch.ones(4, 5).triu(1).bool()
    expected = (
        torch.arange(20, dtype=torch.float64).reshape(4, 5).sin().masked_fill(hidden, -math.inf)
    )
    assert "summand" not in differs("bias", torch.zeros(4, 5), expected)


def test_nearly_right_numbers_are_called_so():
    expected = torch.arange(1, 21, dtype=torch.float64).sin()
    assert "nearly correct" in differs("output", expected + 1e-4 * expected.cos(), expected)
    assert "nearly correct" not in differs("output", expected + 0.1 * expected.cos(), expected)
    beside_a_large_one = torch.cat((expected, f64(1000))), torch.cat((expected * 1.4, f64(1000)))
    assert "nearly correct" not in differs("output", *beside_a_large_one)
    hidden = torch.cat((expected, f64(-math.inf)))
    assert "nearly correct" not in differs("output", torch.cat((expected, f64(3))), hidden)


def test_a_wrong_count_is_not_called_nearly_right_however_large_it_is():
    assert differs("size", 1_185_984, 1_185_856) == "size is 1185984, expected 1185856"
    counts = torch.arange(11, 31, dtype=torch.float64).square()
    told = differs("sizes", counts + (counts > 400), counts)
    assert told is not None
    assert "nearly correct" not in told


def test_a_wrong_mask_says_how_it_is_wrong():
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    assert differs("mask", ~mask, mask).endswith("; True and False are exchanged")
    assert differs("mask", mask.mT, mask).endswith(
        "with its last two axes exchanged, it is correct"
    )
    told = differs("mask", torch.ones(4, 4, dtype=torch.bool).tril(1), mask)
    assert told.endswith(
        "seen True, expected False; all of these are True instead of False; row [0] is 1 1 0 0, "
        "expected 1 0 0 0"
    )
    told = differs("mask", mask.roll(1, 0), mask)
    assert "; 3 entries are True instead of False, 3 are False instead of True; row [0]" in told
    wide = torch.ones(40, 40, dtype=torch.bool)
    assert "row" not in differs("mask", wide.tril(), wide.tril(2))


RIGHT = torch.arange(1, 21, dtype=torch.float64).reshape(4, 5).sin() * 3


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (RIGHT.softmax(-1), "it is the softmax along the last axis of what is expected"),
        (RIGHT.relu(), "it is the positive part (negative numbers set to 0) of what is expected"),
        (RIGHT.abs(), "it is the absolute value of what is expected"),
        (RIGHT.cumsum(-1), "it is the running sum along the last axis of what is expected"),
        (RIGHT * 0 + 2, "every entry is 2"),
        (
            RIGHT.flatten().roll(7).reshape(4, 5).flip(1),
            "the numbers are correct, but in the wrong positions",
        ),
        (
            (RIGHT + 0.5).tril(),
            "10 of 20 entries are exactly 0 above the diagonal, and should not be: masked, cut "
            "off, or never written?",
        ),
        (RIGHT**3, "the entries are in the correct order of size, but their values are wrong"),
        (RIGHT.sin() / (RIGHT - RIGHT[0, 0]), "1 of 20 entries are infinite, and should not be"),
    ],
)
def test_wrong_numbers_say_what_is_striking_about_them(seen, said):
    assert f"; {said}" in differs("output", seen, RIGHT)


def test_of_numbers_that_stand_for_something_no_zeros_are_counted():
    tokens = torch.arange(12).reshape(3, 4)
    assert "exactly 0" not in differs("tokens", tokens * (tokens % 2), tokens)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_largest_number_in_place_of_an_infinity_is_told(dtype):
    expected = torch.tensor([[-math.inf, 0.5, 2.0], [math.inf, -3.0, 7.0]], dtype=dtype)
    told = differs("logs", expected.nan_to_num(), expected)
    assert f"is the largest number of {dtype}, not infinity: nan_to_num writes" in told
    assert "nan_to_num" in differs("log", expected.nan_to_num()[0, 0], expected[0, 0])
    assert "nan_to_num" not in differs("logs", expected.clamp(min=-1e4), expected)


def test_entries_that_should_be_zero_are_counted():
    told = differs("output", RIGHT + 0.1 * RIGHT.cos(), RIGHT.tril())
    assert "; 10 of 20 entries should be exactly 0, and are not" in told


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (lambda x, w: x, "it is `x` itself"),
        (lambda x, w: RIGHT + x, "`x` is added, and should not be"),
        (lambda x, w: RIGHT - x, "`x` is not added, and should be"),
        (lambda x, w: RIGHT * w, "`gain` is multiplied once too often"),
        (lambda x, w: RIGHT / w, "it is not multiplied by `gain`, and should be"),
        (
            lambda x, w: x + 3 * (RIGHT - x),
            "what is added to `x` is 3 times what is expected (which is n)",
        ),
    ],
)
def test_an_input_that_is_one_too_many_or_missing_is_named(seen, said):
    x, gain = RIGHT.cos() + 1, f64(2, 3, 5, 7, 11)
    given = {"x": x, "n": 3, "weights": {"gain": gain}}
    assert differs("output", seen(x, gain), RIGHT, given=given).endswith(f"; {said}")


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (RIGHT.sum(0), "the numbers are correct, but summed along axis 0"),
        (RIGHT.mean(1), "the numbers are correct, but averaged along axis 1"),
        (RIGHT[0], "the numbers are correct, but reduced to the first entry along axis 0"),
        (RIGHT[:, -1], "the numbers are correct, but reduced to the last entry along axis 1"),
        (RIGHT.mean(), "the numbers are correct, but averaged over everything"),
        (RIGHT.flatten(), "the numbers are correct, but in another shape"),
    ],
)
def test_right_numbers_in_a_wrong_shape_say_what_was_done_to_them(seen, said):
    assert form((seen,), [RIGHT], {"output": "batch width"}).endswith(f": {said}")


# Words


def test_numbers_have_four_digits_and_whole_numbers_all_of_them():
    assert [number(x) for x in (1 / 3, 123456.0, 123456, f64(2)[0], -0.000012345)] == [
        "0.3333",
        "123456",
        "123456",
        "2",
        "-1.234e-05",
    ]


def test_a_long_result_is_described_in_a_line():
    assert describe((1, 2)) == "a tuple of 2"
    assert len(describe("x" * 10_000)) == 80
    assert "\n" not in describe("a\nb")


# Where precision is free


def test_a_tolerance_forgives_precision_and_nothing_else():
    exact = f64(1000, 0.5)
    assert same(exact, exact.float() + 0.01, tolerance=0.03)
    assert same([exact, "a"], (exact + 0.02, "a"), tolerance=0.03)
    assert not same(exact, exact.float())
    assert not same(exact, exact + f64(0, 0.1), tolerance=0.03)
    assert not same(exact, exact[:1], tolerance=0.03)
    assert not same(exact, f64(1000, math.nan), tolerance=0.03)
    assert same({"x": 2.0}, {"x": 2.01}, tolerance=0.03)
    assert not same({"x": 2}, {"x": 2.0}, tolerance=0.03)


def test_what_is_off_by_less_than_the_tolerance_is_not_counted():
    assert differs("output", f64(2.01, 3, 5), f64(2, 3, 5), tolerance=0.03) is None
    assert differs("output", f64(2.01, 3, 6), f64(2, 3, 5), tolerance=0.03).startswith(
        "output: wrong in 1 of 3 entries; furthest off at [2]"
    )
    assert "NaN in 1 of 3" in differs("output", f64(2, 3, math.nan), f64(2, 3, 5), tolerance=9.0)
