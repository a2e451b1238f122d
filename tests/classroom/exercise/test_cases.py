import pytest
import torch

from classroom.exercise.cases import Case


def draw(case):
    return (
        case.normal(2, 3),
        case.uniform(5),
        case.integer(0, 10**6),
        case.normal(case.size("width", 7)),
    )


def same(a, b):
    return all(
        torch.equal(torch.as_tensor(x), torch.as_tensor(y)) for x, y in zip(a, b, strict=True)
    )


# By hand


def test_numbers_are_float64_of_the_shape_asked_for():
    case = Case("seed")
    for drawn, shape in (
        (case.normal(2, 3), (2, 3)),
        (case.normal(), ()),
        (case.normal(0, 5), (0, 5)),
        (case.uniform(7), (7,)),
        (case.uniform(), ()),
    ):
        assert drawn.dtype is torch.float64 and drawn.shape == shape


def test_the_spread_and_the_bounds_are_those_asked_for():
    case = Case("seed")
    normal = case.normal(100_000, std=3.0)
    assert float(normal.mean()) == pytest.approx(0, abs=0.05)
    assert float(normal.std()) == pytest.approx(3, abs=0.05)
    uniform = case.uniform(100_000, low=-2.0, high=5.0)
    assert -2 <= float(uniform.min()) < -1.99 and 4.99 < float(uniform.max()) <= 5


def test_both_ends_of_a_range_of_integers_are_drawn():
    case = Case("seed")
    drawn = {case.integer(3, 5) for _ in range(200)}
    assert drawn == {3, 4, 5} and all(type(number) is int for number in drawn)


def test_integers_of_a_small_case_are_small():
    case = Case("seed").smaller({}, rounded=True)
    assert {case.integer(3, 500) for _ in range(200)} == set(range(3, 13))
    assert Case("seed").smaller({}, rounded=False).integer(100, 500) > 109


def test_sizes_can_be_replaced_by_name():
    case = Case("seed", sizes={"length": 2})
    assert case.size("length", 7) == 2 and case.size("width", 5) == 5
    assert case.asked == {"length": 2, "width": 5}


def test_rounded_numbers_have_one_decimal_and_no_negative_zero():
    case = Case("seed", rounded=True)
    drawn = torch.cat([case.normal(500, std=0.1), case.uniform(500, low=-1)])
    assert torch.allclose(drawn * 10, (drawn * 10).round(), atol=1e-12)
    assert not (drawn.signbit() & (drawn == 0)).any() and (drawn == 0).any()
    assert str((case.normal(3) * 0 + 0.3).tolist()) == "[0.3, 0.3, 0.3]"


# Laws


def test_the_same_seed_gives_the_same_numbers():
    assert same(draw(Case("seed")), draw(Case("seed")))
    assert not same(draw(Case("seed")), draw(Case("seed ")))


def test_a_case_never_repeats_itself():
    case = Case("seed")
    assert not same(draw(case), draw(case))


def test_the_global_generator_is_neither_used_nor_moved():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = draw(Case("seed"))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    assert same(first, draw(Case("seed")))


def test_fresh_cases_differ_from_each_other_and_have_the_same_sizes():
    case = Case("seed", mistakes=["a mistake"], sizes={"width": 2})
    drawn = [draw(case), *(draw(case.fresh(number)) for number in range(3))]
    assert all(not same(a, b) for i, a in enumerate(drawn) for b in drawn[:i])
    assert all(len(d[-1]) == 2 for d in drawn)
    assert case.fresh(2).mistakes == ["a mistake"]
    assert same(draw(case.fresh(1)), drawn[2])


def test_a_square_case_has_equal_sizes():
    case = Case("seed")
    sizes = [case.square(["length", "width"]).size(name, 11) for name in ("length", "width")]
    assert sizes[0] == sizes[1]
    assert case.square(["length"]).size("width", 11) == 11


def test_a_case_knows_how_far_each_size_may_shrink():
    case = Case("seed")
    case.size("length", 4)
    case.size("width", 7, smallest=5)
    assert {name: list(sizes) for name, sizes in case.shrinkable().items()} == {
        "length": [1, 2, 3],
        "width": [5, 6],
    }


def test_a_smaller_case_draws_the_same_numbers_for_the_same_sizes():
    case = Case("seed")
    sizes = {"width": 2}
    assert same(draw(case.smaller(sizes, True)), draw(case.smaller(sizes, True)))
    assert case.smaller(sizes, True).rounded and not case.smaller(sizes, False).rounded
    small = case.smaller(sizes, True)
    sizes["width"] = 3
    assert small.size("width", 7) == 2


def test_an_order_is_drawn_from_the_seed_and_loses_nothing():
    first, again, other = (Case(seed).shuffled(range(20)) for seed in ("a", "a", "b"))
    assert first == again != other
    assert sorted(first) == sorted(other) == list(range(20))
