import pytest
import torch
from torch.nn import functional as F

from classroom.calls.local import LocalSubject
from classroom.calls.subject import TooSlow
from classroom.exercise.answers import Answer
from classroom.exercise.cases import Case
from classroom.exercise.diagnosis import smallest_example
from classroom.exercise.expect import CheckFailed, expect_agrees, expect_law


def mistake(name, cell, explanation="Explained."):
    return Answer(name, "f", explanation, cell, prelude="import torch")


NO_SCALE = mistake("NoScale", "def f(q, k): return q @ k.T")
OVER_ROWS = mistake("OverRows", "def f(q, k): return (q @ k.T / k.shape[1] ** 0.5).softmax(0)")
DOUBLED = mistake("Doubled", "def f(q, k): return 2 * (q @ k.T) / k.shape[1] ** 0.5")
BLANK_ROW = mistake("BlankRow", "def f(q, k): return q @ k.T / k.shape[1] ** 0.5 * float('nan')")
NO_TRANSPOSE = mistake("NoTranspose", "def f(q, k): return q @ k / k.shape[1] ** 0.5")
BY_ROOT_OF_ROWS = mistake("ByRootOfRows", "def f(q, k): return q @ k.T / k.shape[0] ** 0.5")
ALL = [NO_SCALE, OVER_ROWS, DOUBLED, BLANK_ROW, NO_TRANSPOSE, BY_ROOT_OF_ROWS]


def oracle(q, k):
    return torch.einsum("qd,kd->qk", q, k) / k.shape[1] ** 0.5


def inputs(case):
    rows, columns = case.size("q_len", 5), case.size("k_len", 7)
    width = case.size("d_head", 3)
    return case.normal(rows, width), case.normal(columns, width)


def failure(
    function, mistakes=ALL, inputs=inputs, oracle=oracle, compare=None, returns=None, **namespace
):
    """Return how the check of a function fails."""
    case = Case("seed", mistakes)
    subject = LocalSubject({"f": function, **namespace})
    with pytest.raises(CheckFailed) as raised:
        returns = returns or {"scores": "q_len k_len"}
        expect_agrees(subject, case, "f", inputs, oracle, returns, compare)
    return raised.value


def names(failed):
    return [known.name for known in failed.mistakes]


# A known mistake is named


@pytest.mark.parametrize("known", [NO_SCALE, OVER_ROWS, DOUBLED, BY_ROOT_OF_ROWS])
def test_a_mistake_is_named(known):
    failed = failure(known.namespace["f"])
    assert names(failed) == [known.name]
    assert failed.diagnosis == f"This is the mistake “{known.title}”: Explained."


def test_a_mistake_is_named_however_it_is_written():
    def f(q, k):
        return torch.stack([torch.stack([(a * b).sum() for b in k]) for a in q])

    assert names(failure(f)) == ["NoScale"]


@pytest.mark.parametrize("kind", [float, int, torch.tensor])
def test_a_mistake_is_named_whether_a_number_is_an_integer_a_float_or_a_tensor(kind):
    counted = mistake("Counted", "def f(q, k): return 3 * (len(q) + 2), len(k)")
    count = lambda q, k: (len(q) + 2, len(k))  # noqa: E731
    wrong = lambda q, k: (kind(3 * (len(q) + 2)), kind(len(k)))  # noqa: E731
    returns = {"queries": "", "keys": ""}
    assert names(failure(wrong, [counted], oracle=count, returns=returns)) == ["Counted"]
    other = lambda q, k: (kind(3 * (len(q) + 3)), kind(len(k)))  # noqa: E731
    assert names(failure(other, [counted], oracle=count, returns=returns)) == []


def test_a_few_whole_numbers_must_agree_on_more_cases_and_other_inputs():
    one = mistake("AlwaysOne", "def f(x): return 1")

    def numbers(case):
        return (case.uniform(1),)

    def negative(case):
        return (-numbers(case)[0],)

    def named(f, also=()):
        with pytest.raises(CheckFailed) as raised:
            given = LocalSubject({"f": f}), Case("seed", [one]), "f", numbers, lambda x: 2
            expect_agrees(*given, {"number": ""}, also=also)
        return names(raised.value)

    assert named(lambda x: 1, [negative]) == ["AlwaysOne"]
    assert named(lambda x: int(x > 0)) == ["AlwaysOne"]
    assert named(lambda x: int(x > 0), [negative]) == []
    calls = iter(range(100))
    assert named(lambda x: 1 if next(calls) < 8 else 3) == []


def test_a_mistake_in_one_result_is_not_named_for_the_form_of_another():
    both = lambda x: (x, x.T)  # noqa: E731
    summed = mistake("Summed", "def f(x): return x, x.sum()")

    def drawn(case):
        return (case.normal(3, 2),)

    returns = {"same": "rows columns", "turned": "columns rows"}
    wrong = lambda x: (x, x.T[None])  # noqa: E731
    given = {"inputs": drawn, "oracle": both, "compare": ["same"], "returns": returns}
    assert names(failure(wrong, [summed], **given)) == []
    assert names(failure(lambda x: (x, x.sum()), [summed], **given)) == ["Summed"]


def test_a_mistake_that_nobody_knows_is_not_named():
    failed = failure(lambda q, k: 1.5 * oracle(q, k))
    assert failed.mistakes == () and failed.diagnosis == ""


def test_nearly_a_mistake_is_not_that_mistake():
    assert names(failure(lambda q, k: q @ k.T * 1.001)) == []
    assert names(failure(lambda q, k: (q @ k.T).float().half())) == []


def test_two_mistakes_that_are_alike_are_never_named_for_certain():
    twin = mistake("Twin", "def f(q, k): return torch.einsum('qd,kd->qk', q, k)", "Another.")
    failed = failure(NO_SCALE.namespace["f"], [OVER_ROWS, NO_SCALE, twin])
    assert names(failed) == ["NoScale", "Twin"]
    assert failed.diagnosis == (
        "This is one of 2 mistakes that look alike here: “no scale”: Explained; or “twin”: Another."
    )


def test_mistakes_that_only_these_sizes_make_alike_are_both_held_possible():
    """With a single key the root of the number of keys is no scale at all."""

    def one_key(case):
        return case.normal(5, 3), case.normal(1, 3)

    assert names(failure(BY_ROOT_OF_ROWS.namespace["f"])) == ["ByRootOfRows"]
    failed = failure(BY_ROOT_OF_ROWS.namespace["f"], inputs=one_key)
    assert names(failed) == ["NoScale", "ByRootOfRows"]


def test_a_mistake_that_is_right_on_these_inputs_is_not_named():
    """On inputs where a forgotten scale changes nothing, something else must have gone wrong."""

    def one_feature(case):
        return case.normal(5, 1), case.normal(7, 1)

    def f(q, k):
        return q @ k.T + next(shifts)

    shifts = iter([1.0] + [0.0] * 100)
    failed = failure(f, [NO_SCALE], one_feature)
    assert "wrong in 35 of 35 entries" in failed.problem and names(failed) == []


def test_a_mistake_is_not_named_when_it_agrees_on_one_fresh_case_only():
    calls = iter(range(1000))

    def f(q, k):
        return q @ k.T if next(calls) < 3 else 3 * q @ k.T

    assert names(failure(f)) == []


def test_nothing_but_nan_tells_nothing():
    failed = failure(lambda q, k: oracle(q, k) * float("nan"))
    assert "holds NaN in 35 of 35 entries" in failed.problem and names(failed) == []


def test_some_nan_among_numbers_can_be_recognised():
    cell = "def f(q, k):\n    s = q @ k.T\n    s[0] = float('nan')\n    return s"
    known = mistake("NanInFirstRow", cell)
    assert names(failure(known.namespace["f"], [NO_SCALE, known])) == ["NanInFirstRow"]


def test_nothing_returned_tells_nothing():
    known = mistake("NoReturn", "def f(q, k): q @ k.T")
    failed = failure(known.namespace["f"], [known])
    assert failed.problem == "scores should be a tensor; it is None (is there a return?)"
    assert names(failed) == []


# Crashes


def test_a_crash_is_recognised_by_what_it_does_where_shapes_fit():
    failed = failure(lambda q, k: q.matmul(k) / k.shape[1] ** 0.5)
    assert "raised RuntimeError" in failed.problem
    assert names(failed) == ["NoTranspose"]


def test_sizes_are_made_equal_only_for_code_that_crashes():
    def never_square(case):
        q, k = inputs(case)
        assert len(q) != len(k), "no inputs of equal sizes"
        return q, k

    assert names(failure(NO_SCALE.namespace["f"], inputs=never_square)) == ["NoScale"]


def test_a_crash_is_not_recognised_by_its_text():
    """The text is that of the known mistake; where shapes fit, the numbers are not."""
    failed = failure(lambda q, k: q @ k / k.shape[1])
    assert "raised RuntimeError" in failed.problem and names(failed) == []


def test_a_crash_everywhere_tells_nothing():
    known = mistake("Raises", "def f(q, k): raise ValueError('always')")

    def f(q, k):
        raise ValueError("always")

    failed = failure(f, [known])
    assert "raised ValueError: always" in failed.problem and names(failed) == []


def test_a_known_mistake_that_does_not_end_holds_nobody_up(monkeypatch):
    monkeypatch.setattr("classroom.exercise.prepared.SECONDS_PER_MISTAKE", 0.05)
    endless = mistake("Endless", "def f(q, k):\n    while True: pass")
    assert names(failure(NO_SCALE.namespace["f"], [endless, NO_SCALE])) == ["NoScale"]


def test_a_crash_is_told_with_the_shapes_that_went_in():
    failed = failure(lambda q, k: q @ k)
    assert failed.example == "It was called with q (5, 3), k (7, 3)"


# The smallest case


def lines(failed):
    title, *rest = failed.example.split("\n")
    assert title == "A small case to try it on:"
    return dict((part.strip() for part in line.split("=")) for line in rest)


def test_a_case_shrinks_to_the_smallest():
    shown = lines(failure(DOUBLED.namespace["f"]))
    assert list(shown) == ["q", "k", "you return", "expected"]
    numbers = {label: torch.tensor(eval(text)) for label, text in shown.items()}
    assert all(tensor.shape == (1, 1) for tensor in numbers.values())
    torch.testing.assert_close(numbers["you return"], 2 * numbers["expected"])
    torch.testing.assert_close(numbers["q"] * numbers["k"], numbers["expected"])


def test_a_case_shrinks_only_as_far_as_it_still_fails():
    """A forgotten scale cannot be seen at width 1; two features are enough."""
    shown = lines(failure(NO_SCALE.namespace["f"]))
    assert torch.tensor(eval(shown["q"])).shape == (1, 2)


def test_numbers_have_one_decimal():
    shown = lines(failure(NO_SCALE.namespace["f"]))
    drawn = torch.tensor([eval(shown["q"]), eval(shown["k"])], dtype=torch.float64)
    assert torch.allclose(drawn * 10, (drawn * 10).round(), atol=1e-9)
    assert all(len(text.strip("-")) == 3 for text in shown["q"].strip("[]").split(", "))


def test_what_is_shown_is_what_happens():
    """Whoever types the case in sees the numbers that are printed."""
    shown = lines(failure(OVER_ROWS.namespace["f"]))
    q, k = (torch.tensor(eval(shown[label]), dtype=torch.float64) for label in "qk")
    returned = torch.tensor(eval(shown["you return"]), dtype=torch.float64)
    torch.testing.assert_close(OVER_ROWS.namespace["f"](q, k), returned, rtol=1e-3, atol=1e-9)
    expected = torch.tensor(eval(shown["expected"]), dtype=torch.float64)
    torch.testing.assert_close(oracle(q, k), expected, rtol=1e-3, atol=1e-9)


def test_of_several_results_only_those_that_are_wrong_are_shown():
    case, x = Case("seed"), torch.ones(3)

    def shown(*parts):
        subject = LocalSubject({"f": lambda x: parts})
        judge = lambda seen, x: "wrong"  # noqa: E731
        given = lambda case: (x,)  # noqa: E731
        example = smallest_example(subject, case, "f", (x,), given, judge, lambda x: (x, x, 7))
        return [line.split("=")[0].strip() for line in example.split("\n")[1:]]

    assert shown(x, 2 * x, 7) == ["x", "you return[1]", "expected[1]"]
    assert shown(2 * x, x, 8) == [
        *("x", "you return[0]", "expected[0]", "you return[2]", "expected[2]"),
    ]
    assert shown(2 * x, 2 * x, 8) == shown(x, 2 * x) == ["x", "you return", "expected"]


def test_many_settings_take_few_lines_that_can_be_typed_in():
    settings = (3, 0.5, None, True, "mean", 7, 11, 13)

    def scaled(q, k, s0, s1, s2, s3, s4, s5, s6, s7):
        return oracle(q, k) * s7

    failed = failure(
        lambda q, k, *settings: 2 * scaled(q, k, *settings),
        inputs=lambda case: (*inputs(case), *settings),
        oracle=scaled,
    )
    _, q, _, *together, returned, _ = failed.example.split("\n")
    assert q.startswith("  q          = [[")
    assert together == [
        "  s0, s1, s2, s3, s4, s5 = 3, 0.5, None, True, 'mean', 7",
        "  s6         = 11",
        "  s7         = 13",
    ]
    assert returned.startswith("  you return = [[")


def test_sizes_that_the_inputs_or_the_oracle_cannot_have_are_passed_over():
    def at_least_two(case):
        q, k = inputs(case)
        if len(q) < 2:
            raise AssertionError("no inputs of this size")
        return q, k

    def wide_oracle(q, k):
        if len(k) < 3:
            raise KeyError("no oracle for this size")
        return oracle(q, k)

    shown = lines(failure(DOUBLED.namespace["f"], inputs=at_least_two, oracle=wide_oracle))
    assert torch.tensor(eval(shown["q"])).shape == (2, 1)
    assert torch.tensor(eval(shown["k"])).shape == (3, 1)


def test_a_smallest_size_is_respected():
    def no_less(case):
        return case.normal(case.size("q_len", 5, smallest=3), 2), case.normal(2, 2)

    shown = lines(failure(DOUBLED.namespace["f"], inputs=no_less))
    assert torch.tensor(eval(shown["q"])).shape == (3, 2)


def test_numbers_stay_odd_where_round_ones_are_right():
    def f(q, k):
        round_numbers = torch.equal(q, (q * 10).round() / 10)
        return oracle(q, k) * (1 if round_numbers else 2)

    shown = lines(failure(f, []))
    assert len(shown["q"].strip("[]-")) > 3


def test_a_mistake_that_no_smaller_case_shows_is_shown_with_what_was_called():
    calls = iter(range(1000))
    failed = failure(lambda q, k: oracle(q, k) * (2 if next(calls) == 0 else 1), [])
    assert "wrong in 35 of 35 entries" in failed.problem
    assert failed.example == "It was called with q (5, 3), k (7, 3)"


def test_what_is_wrong_can_be_seen_in_the_case_that_is_shown():
    """In one row nothing hides a thousandth; with a third row the mistake is plain."""

    def barely(q, k):
        return oracle(q, k) * torch.where(torch.arange(len(q))[:, None] < 2, 1.001, 3.0)

    shown = lines(failure(barely))
    assert len(eval(shown["q"])) == 3
    assert len(eval(lines(failure(lambda q, k: 1.001 * oracle(q, k)))["q"])) == 1
    assert len(eval(lines(failure(lambda q, k: 1.5 * oracle(q, k)))["q"])) == 1


def test_results_that_look_alike_are_shown_with_more_digits_or_in_all_rows():
    shown = lines(failure(lambda q, k: oracle(q, k) * 1.000002))
    returned, expected = (eval(shown[label])[0][0] for label in ("you return", "expected"))
    assert returned != expected and returned == pytest.approx(expected, rel=1e-5)

    def in_the_last_row(q, k):
        return oracle(q, k) * torch.where(torch.arange(len(q))[:, None] < 4, 1.000002, 3.0)

    assert len(eval(lines(failure(in_the_last_row))["q"])) == 5
    both = lambda q, k: (oracle(q, k).sum().item(), len(q))  # noqa: E731
    wrong = lambda q, k: (both(q, k)[0] + 1e-5, len(q))  # noqa: E731
    shown = lines(failure(wrong, oracle=both, returns={"sum": "", "rows": ""}))
    assert len(set(list(shown.values())[-2:])) == 2


def test_the_largest_number_is_not_shown_as_infinity():
    infinite = lambda q, k: oracle(q, k) * torch.inf  # noqa: E731
    shown = lines(failure(lambda q, k: infinite(q, k).nan_to_num(), oracle=infinite))
    assert "inf" in shown["expected"] and "inf" not in shown["you return"]


def test_a_result_of_another_shape_can_be_seen():
    shown = lines(failure(lambda q, k: oracle(q, k)[:-1]))
    assert shown["you return"] == "[]" and shown["expected"] != "[]"
    both = lambda q, k: (oracle(q, k), len(q))  # noqa: E731
    for other in (None, {"q": 2}, "text", 7, torch.ones(3)):
        said = failure(lambda q, k, other=other: other, oracle=both, returns=BOTH).example
        assert "you return" in said


BOTH = {"scores": "q_len k_len", "rows": ""}


def test_what_is_shown_of_a_call_is_the_call_that_failed():
    def drawn(case):
        return case.integer(100, 999), case.integer(3, 7)

    def product(a, b):
        return a * b

    once = drawn(Case("seed"))
    failed = failure(lambda a, b: 0 if a == once[0] else a * b, inputs=drawn, oracle=product)
    assert failed.example == "It was called with a {}, b {}".format(*once)


def test_a_case_that_fills_the_page_is_not_shown():
    def large(case):
        return case.normal(40, 20), case.normal(30, 20)

    assert failure(DOUBLED.namespace["f"], inputs=large).example == ""


def test_an_oracle_without_a_signature_has_numbered_arguments():
    def three(case):
        return tuple(case.normal(1, 2, 2) for _ in range(3))

    case = Case("seed")
    subject = LocalSubject({"f": lambda q, k, v: v})

    def judge(seen, *args):
        return None if torch.allclose(seen, F.scaled_dot_product_attention(*args)) else "no"

    oracle = F.scaled_dot_product_attention
    shown = smallest_example(subject, case, "f", (), three, judge, oracle)
    assert "  argument 1 = [[[" in shown and "  expected   = [[[" in shown


def test_a_law_shows_no_expected_result():
    case = Case("seed")
    subject = LocalSubject({"f": lambda q, k: (q.sum().item(), "text", 3)})
    with pytest.raises(CheckFailed) as raised:
        expect_law(subject, case, "f", inputs, lambda seen, q, k: "is not right")
    shown = lines(raised.value)
    assert list(shown) == ["q", "k", "you return"]
    assert shown["you return"].endswith(", 'text', 3)")


def test_a_law_shows_one_correct_result_if_it_can_be_computed():
    def said(correct):
        subject = LocalSubject({"f": lambda q, k: 2 * oracle(q, k)})
        with pytest.raises(CheckFailed) as raised:
            expect_law(subject, Case("seed"), "f", inputs, judge_of_law, correct=correct)
        return list(lines(raised.value))

    def judge_of_law(seen, q, k):
        return None if torch.equal(seen, oracle(q, k)) else "is not right"

    def not_recorded(q, k):
        raise KeyError

    assert said(oracle) == ["q", "k", "you return", "correct is"]
    assert said(not_recorded) == ["q", "k", "you return"]


def test_a_long_dict_takes_several_lines():
    weights = {f"map_{n}.weight": torch.ones(2, 3) for n in range(3)}
    failed = failure(
        lambda q, k, weights: oracle(q, k) * 2,
        inputs=lambda case: (*inputs(case), weights),
        oracle=lambda q, k, weights: oracle(q, k),
    )
    first, _, last = failed.example.split("\n")[3:6]
    assert first.startswith("  weights    = {map_0.weight: [[1.0,") and first.endswith("],")
    assert last.startswith("                map_2.weight: [[") and last.endswith("]}")


def test_a_law_that_takes_its_arguments_together_numbers_them():
    subject = LocalSubject({"f": lambda q, k: q.sum()})
    with pytest.raises(CheckFailed) as raised:
        expect_law(subject, Case("seed"), "f", inputs, lambda seen, *args: "is not right")
    assert list(lines(raised.value)) == ["argument 1", "argument 2", "you return"]


def test_a_crash_tells_the_shapes_of_tensors_in_lists_and_dictionaries():
    def nested(case):
        tensors = case.normal(2, 3), case.normal(5)
        return tensors, {"weight": tensors[1], "count": 7}

    subject = LocalSubject({"f": lambda tensors, named: 1 / 0})
    with pytest.raises(CheckFailed) as raised:
        expect_law(subject, Case("seed"), "f", nested, lambda seen, tensors, named: None)
    shapes = "tensors ((2, 3), (5,)), named {weight (5,), count 7}"
    assert str(raised.value).endswith(f"It was called with {shapes}")


@pytest.mark.parametrize("calls", [0, 1, 2])
def test_looking_for_a_small_case_ends_when_the_time_is_up(calls):
    class Tired:
        """Answers so many calls."""

        def __init__(self):
            self.left = calls

        def call(self, name, *args):
            self.left -= 1
            if self.left < 0:
                raise TooSlow("enough")
            return torch.zeros(5, 7).double()

    def judge(seen, q, k):
        return "wrong"

    def fixed(case):
        return case.normal(5, 3), case.normal(7, 3)

    shown = smallest_example(Tired(), Case("seed"), "f", (), fixed, judge, oracle)
    assert ("A small case" in shown) == (calls == 2)
