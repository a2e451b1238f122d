import contextlib
import itertools
import linecache
import re
import time

import pytest
import torch
from torch.nn import functional as F

from classroom.calls.local import LocalSubject
from classroom.calls.subject import NotWritten
from classroom.exercise import expect as expect_module
from classroom.exercise.answers import Answer
from classroom.exercise.cases import Case
from classroom.exercise.diagnosis import Crash, asks_for
from classroom.exercise.expect import (
    CheckFailed,
    exercise,
    expect,
    expect_agrees,
    expect_answer,
    expect_any_sizes,
    expect_gradients,
    expect_inputs_unchanged,
    expect_law,
    expect_test_judges,
    points,
    wrong_after_another,
)
from classroom.exercise.prepared import BrokenCheck
from classroom.exercise.report import DIAGNOSIS
from classroom.exercise.usage import CALLS

PAIR = {"total": "rows", "scale": ""}


def inputs(case):
    return case.normal(case.size("rows", 5), case.size("width", 3)), case.integer(2, 9)


def oracle(x, n):
    return x.sum(dim=1), n / 2


def failed(expectation, function, *args, mistakes=(), seconds=10.0, **kwargs):
    """Return the failure of an expectation that should not be met."""
    subject = LocalSubject({"f": function} if function else {}, seconds=seconds)
    with pytest.raises(CheckFailed) as raised:
        expectation(subject, Case("seed", mistakes), "f", *args, **kwargs)
    return raised.value


def passes(expectation, function, *args, **kwargs):
    subject = LocalSubject({"f": function})
    assert expectation(subject, Case("seed"), "f", *args, **kwargs) is None


# Marks


def test_a_class_and_its_tests_carry_what_is_known_about_them():
    @exercise("f", number="1.1", title="T", asks="A.", difficulty=2, importance=3, minutes=5)
    class TestF:
        @points(3)
        def test_it(self):
            pass

    about = TestF.exercise
    assert (about.name, about.number, about.difficulty, about.deeper) == ("f", "1.1", 2, False)
    assert TestF.test_it.points == 3


def test_an_unknown_or_missing_detail_is_refused():
    with pytest.raises(TypeError, match="minutes"):
        exercise("f", number="1.1", title="T", asks="A.", difficulty=2, importance=3)(object)
    with pytest.raises(TypeError, match="length"):
        exercise("f", length=3)(object)


# Agreeing with an oracle


def both_inputs(case):
    return case.normal(5), case.normal(5), {"gain": case.normal(5), "bias": case.normal(5)}


def both(x, y, weights):
    return (x - 2 * y).sin() * weights["gain"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            lambda x, y, w: x.sin() * w["gain"],
            "it does not depend on `y`: is `y` used?",
        ),
        (
            lambda x, y, w: (x - 2 * y).sin() * w["bias"],
            "it does not depend on `gain`: is `gain` used?",
        ),
        (
            lambda x, y, w: (x - 2 * y).sin() * w["gain"] + w["bias"],
            "it changes with `bias`, but should not",
        ),
    ],
)
def test_an_input_that_is_not_used_or_should_not_be_is_named(wrong, said):
    failure = failed(expect_agrees, wrong, both_inputs, both, {"output": "width"})
    assert failure.problem.endswith(f"; {said}")


def test_an_input_that_is_changed_in_place_is_named_as_the_cause():
    def wrong(x, y, w):
        half = x[:3]
        half += y[:3]
        return both(x, y, w)

    failure = failed(expect_agrees, wrong, both_inputs, both, {"output": "width"})
    assert "; it changes its argument `x` in place, so what it reads from it" in failure.problem


def test_a_check_may_say_why_an_entry_should_be_another():
    def why(seen, x, n):
        total, half = seen
        return f". Rows are added, and half of {n} is {n / 2}, not {half}" if half != n / 2 else ""

    said = failed(expect_agrees, lambda x, n: (x.sum(1), n / 3), inputs, oracle, PAIR, why=why)
    assert ". Rows are added, and half of " in said.problem
    said = failed(expect_agrees, lambda x, n: (-x.sum(1), n / 2), inputs, oracle, PAIR, why=why)
    assert "Rows are added" not in said.problem


def test_an_input_that_is_added_is_named():
    wrong = lambda x, y, w: both(x, y, w) + x  # noqa: E731
    failure = failed(expect_agrees, wrong, both_inputs, both, {"output": "width"})
    assert failure.problem.endswith("; `x` is added, and should not be")


def test_of_a_result_that_depends_on_what_it_should_nothing_is_said_about_inputs():
    wrong = lambda x, y, w: (x + 2 * y).sin() * w["gain"]  # noqa: E731
    failure = failed(expect_agrees, wrong, both_inputs, both, {"output": "width"})
    assert "`" not in failure.problem


def expect_sizes(subject, case, name, *asked, **about):
    expect_agrees(subject, case, name, *asked)
    expect_any_sizes(subject, case.memory[CALLS][name][0], **about)


class Keeping:
    """Adds up rows with the ones that its first call has made, which fit one width."""

    def __init__(self):
        self.ones = None

    def __call__(self, x, n):
        if self.ones is None:
            self.ones = torch.ones_like(x[0])
        return x @ self.ones, n / 2


def test_what_is_kept_from_call_to_call_is_found_though_no_check_changes_the_sizes(forked):
    """Where calls share a process, and where each has one of its own."""
    said = str(failed(expect_sizes, Keeping(), inputs, oracle, PAIR))
    assert said.startswith("`f` is correct for some sizes, but not for rows 4, width 2: does it")
    with pytest.raises(CheckFailed, match="correct in its first call, but wrong after a call"):
        expect_sizes(forked(Keeping()), Case("seed"), "f", inputs, oracle, PAIR)


def test_no_cause_is_suggested_where_another_check_has_failed_too():
    asked = inputs, oracle, PAIR
    said = str(failed(expect_sizes, Keeping(), *asked, is_wrong_elsewhere=True))
    sizes = "`f` is correct for some sizes, but not for rows 4, width 2"
    assert said.startswith(f"{sizes}. With those sizes: ")
    said = str(failed(expect_sizes, Keeping(), *asked))
    assert said.startswith(f"{sizes}: does it rely on one of them, or keep state from an earlier ")
    assert " call? With those sizes: " in said


def test_what_is_kept_is_found_where_the_sizes_are_fixed():
    def fixed(case):
        return case.normal(5, 3), case.integer(1, 99)

    said = str(failed(expect_sizes, KeepingAll(), fixed, oracle, PAIR))
    assert said.startswith("`f` is correct for some numbers, but not for others of the same sizes")
    assert "keep state between calls" in said


def test_what_is_correct_for_some_numbers_only_is_shown_on_a_small_case():
    def given(case):
        return inputs(case)[:1]

    (first,) = given(Case("seed"))
    by_chance = lambda x: x if torch.equal(x, first) else x + 1  # noqa: E731
    failure = failed(expect_sizes, by_chance, given, lambda x: x, {"x": "rows width"})
    assert "is a case forgotten" in failure.problem
    assert "you return" in failure.example


@pytest.mark.parametrize(
    ("uses_n", "said"),
    [
        (True, "it does not depend on `x`: is `x` used in each call?"),
        (False, "with other numbers, it returned the same result"),
    ],
)
def test_an_input_may_be_kept_from_a_right_call_that_was_to_do_the_same(uses_n, said):
    def problem(changes_sign):
        keeping = KeepingAll()
        f = lambda x, n, sign: keeping(x, n)[0] * n**uses_n  # noqa: E731
        subject, memory = LocalSubject({"f": f}), {}

        def ask(seed, sign):
            given = lambda case: (case.normal(5, 3), case.integer(2, 99), sign)  # noqa: E731
            right = lambda x, n, sign: (-1) ** sign * x.sum(1) * n**uses_n  # noqa: E731
            case = Case(seed, memory=memory)
            expect_agrees(subject, case, "f", given, right, {"total": "rows"})

        ask("seed", sign=False)
        with pytest.raises(CheckFailed) as raised:
            ask("another seed", changes_sign)
        return raised.value.problem

    assert problem(changes_sign=False).endswith(said)
    assert problem(changes_sign=True).endswith(said) is not uses_n


@pytest.mark.parametrize(
    ("wrong", "given", "is_said"),
    [
        (lambda x: torch.zeros(5), lambda case: (case.normal(5, 3),), True),
        (lambda x: torch.tensor([0, torch.nan, 0, 0, 0]), lambda case: (case.normal(5, 3),), False),
        (lambda x: x.mean(1), lambda case: (torch.arange(15.0).reshape(5, 3),), False),
    ],
    ids=["a constant", "one beside NaN", "always asked the same"],
)
def test_the_same_result_is_no_surprise_for_the_same_numbers_or_beside_nan(wrong, given, is_said):
    told = failed(expect_agrees, wrong, given, lambda x: x.sum(1), {"total": "rows"}).problem
    assert ("with other numbers, it returned the same result" in told) is is_said


class KeepingAll:
    """Returns the sums of the rows that it was given first."""

    def __init__(self):
        self.sums = None

    def __call__(self, x, n):
        if self.sums is None:
            self.sums = x.sum(1)
        return self.sums, n / 2


def test_a_function_that_counts_on_a_size_is_found():
    def f(x, n):
        return sum(x[:, i] for i in range(3)), n / 2

    said = str(failed(expect_sizes, f, inputs, oracle, PAIR))
    assert "not for rows 4, width 2" in said and "raised IndexError" in said


def test_a_function_that_never_ends_for_other_sizes_is_found(monkeypatch):
    def f(x, n):
        while x.shape[1] != 3:
            pass
        return x.sum(1), n / 2

    monkeypatch.setattr(expect_module, "_TOO_LONG", 1.0)
    subject, case = LocalSubject({"f": f}, seconds=1.5), Case("seed")
    with pytest.raises(CheckFailed, match="correct for some inputs only: `f` was stopped"):
        expect_sizes(subject, case, "f", inputs, oracle, PAIR)


def test_who_has_no_time_left_is_not_said_to_be_wrong_for_other_sizes():
    subject, case = LocalSubject({"f": oracle}), Case("seed")
    expect_agrees(subject, case, "f", inputs, oracle, PAIR)
    (call,) = case.memory[CALLS]["f"]
    expect_any_sizes(LocalSubject({"f": oracle}, seconds=0.0), call)


def test_other_sizes_are_those_of_the_call_and_not_of_a_later_one():
    subject, case = LocalSubject({"f": oracle}), Case("seed")
    expect_agrees(subject, case, "f", inputs, oracle, PAIR)
    before = case.memory[CALLS]["f"][0].case.shrinkable()
    case.size("rows", 50)
    assert case.memory[CALLS]["f"][0].case.shrinkable() == before != case.shrinkable()


def test_all_draws_are_asked_for_though_the_first_is_wrong():
    asked = []
    with pytest.raises(CheckFailed):
        wrong = lambda x, n: asked.append(n)  # noqa: E731
        expect_agrees(LocalSubject({"f": wrong}), Case("seed"), "f", inputs, oracle, PAIR, draws=3)
    assert len(asked) == 3


def test_a_result_that_is_the_same_for_all_inputs_or_another_for_the_same_says_so():
    stuck = failed(expect_agrees, lambda x, n: (torch.ones(5), n / 2), inputs, oracle, PAIR)
    assert "; with other numbers, it returned the same result" not in stuck.problem  # n differs
    total = {"total": "rows"}
    args = lambda case: inputs(case)[:1]  # noqa: E731
    right = lambda x: x.sum(dim=1)  # noqa: E731
    stuck = failed(expect_agrees, lambda x: torch.ones(5).double(), args, right, total)
    assert stuck.problem.endswith("; with other numbers, it returned the same result")
    lost = failed(expect_agrees, lambda x: torch.full_like(x[:, 0], torch.nan), args, right, total)
    assert "NaN" in lost.problem and "same result" not in lost.problem
    loose = failed(expect_agrees, lambda x: torch.rand(5).double(), args, right, total)
    assert "; called again with the same inputs, it returns something else" in loose.problem


def test_a_right_function_agrees():
    passes(expect_agrees, lambda x, n: (x @ torch.ones_like(x[0]), n * 0.5), inputs, oracle, PAIR)
    passes(expect_agrees, lambda x, n: [x.sum(1), torch.tensor(n / 2)], inputs, oracle, PAIR)


def test_a_single_result_needs_no_tuple():
    total = {"total": "rows"}
    passes(expect_agrees, lambda x, n: x.sum(1), inputs, lambda x, n: x.sum(1), total)
    failure = failed(expect_agrees, lambda x, n: x.sum(0), inputs, lambda x, n: x.sum(1), total)
    assert failure.problem == "total has shape (3,), expected (5,) = (rows)"


def test_what_differs_is_told():
    failure = failed(expect_agrees, lambda x, n: (x.sum(1), n), inputs, oracle, PAIR)
    assert failure.problem.startswith("scale is ") and ", expected " in failure.problem
    assert str(failure) == f"{failure.problem}\n{failure.example}"


def test_only_what_is_compared_can_be_wrong_in_its_numbers():
    def total_wrong(x, n):
        return 2 * x.sum(1), n / 2

    passes(expect_agrees, total_wrong, inputs, oracle, PAIR, compare=["scale"])
    assert "total: wrong" in str(
        failed(expect_agrees, total_wrong, inputs, oracle, PAIR, compare=["total"])
    )


def test_every_result_is_asked_for_its_form():
    def total_misshapen(x, n):
        return x.sum(0), n / 2

    failure = failed(expect_agrees, total_misshapen, inputs, oracle, PAIR, compare=["scale"])
    assert failure.problem == "total has shape (3,), expected (5,) = (rows)"


def test_a_function_that_is_missing_blank_or_endless_says_so():
    def blank(x, n):
        raise NotImplementedError()

    def endless(x, n):
        while True:
            pass

    missing = failed(expect_agrees, None, inputs, oracle, PAIR)
    assert "`f` is not defined" in missing.problem
    failure = failed(expect_agrees, blank, inputs, oracle, PAIR)
    assert failure.problem == "`f` is not written yet"
    assert isinstance(failure.__cause__, NotWritten)
    assert (
        "was stopped" in failed(expect_agrees, endless, inputs, oracle, PAIR, seconds=0.05).problem
    )


def test_a_check_whose_oracle_fails_blames_nobody_else():
    def broken(x, n):
        raise RuntimeError("shapes")

    subject = LocalSubject({"f": lambda x, n: x})
    with pytest.raises(BrokenCheck, match="its oracle raised RuntimeError: shapes"):
        expect_agrees(subject, Case("seed"), "f", inputs, broken, {"total": "rows"})
    with pytest.raises(ZeroDivisionError):
        expect_agrees(subject, Case("seed"), "f", lambda case: 1 / 0, broken, {"total": "rows"})


# Laws


def test_a_law_that_holds_is_met_and_one_that_does_not_is_told():
    def law(seen, x, n):
        return None if seen == n else f"{seen} is not {n}"

    passes(expect_law, lambda x, n: n, inputs, law)
    failure = failed(expect_law, lambda x, n: 0, inputs, law)
    assert failure.problem.startswith("0 is not ")
    assert "you return = 0" in failure.example


@pytest.mark.parametrize("seen", [None, "text", [2], {"a": 2}, torch.ones(7)])
def test_a_result_that_a_law_cannot_read_has_the_wrong_form(seen):
    def law(seen, x, n):
        return None if seen["total"].shape == x.shape and 1 / seen["total"].sum() else "no"

    failure = failed(expect_law, lambda x, n: seen, inputs, law)
    assert failure.problem.startswith("`f` returned ")
    assert failure.problem.endswith(", which has the wrong form")


def test_dividing_by_what_was_returned_may_fail():
    failure = failed(expect_law, lambda x, n: 0, inputs, lambda seen, x, n: str(1 / seen))
    assert failure.problem == "`f` returned int 0, which has the wrong form"


def test_a_law_is_diagnosed_too():
    mistake = Answer("Negative", "f", "The sign is wrong.", "def f(x, n): return -x.sum().item()")

    def law(seen, x, n):
        return None if abs(seen - x.sum()) < 1e-9 else "is not the sum"

    failure = failed(expect_law, lambda x, n: -x.sum()[None], inputs, law, mistakes=[mistake])
    assert failure.mistakes == ()  # a tensor with an axis is not a number
    for wrong in (lambda x, n: -x.sum(), lambda x, n: float(-x.sum())):
        failure = failed(expect_law, wrong, inputs, law, mistakes=[mistake])
        assert failure.mistakes == (mistake,)


# Gradients


def three(case):
    return case.normal(5, 3), case.normal(7, 3), case.normal(7, 2)


def attention(query, key, value):
    weights = (query @ key.T / 3**0.5).softmax(-1)
    return weights @ value, weights.sum()


WRT = ["query", "value"]
RESULTS = ["the output", "the total"]


def test_right_gradients_pass():
    def by_hand(query, key, value):
        weights = torch.exp(query @ key.T / 3**0.5)
        weights = weights / weights.sum(-1, keepdim=True)
        return [torch.einsum("qk,kv->qv", weights, value), weights.sum()]

    passes(expect_gradients, by_hand, three, attention, WRT, RESULTS)
    passes(
        expect_gradients,
        lambda query, key, value: by_hand(query, key, value)[0],
        three,
        lambda query, key, value: F.scaled_dot_product_attention(query, key, value),
        ["key"],
    )


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            lambda q, k, v: (attention(q, k, v.detach())[0], attention(q, k, v)[1]),
            "no gradient flows from the output back to `value`: part of the computation is cut off",
        ),
        (
            lambda q, k, v: (attention(q, k, v)[0].detach(), attention(q, k, v)[1]),
            "no gradient flows from the output back to `query` and `value`: part of",
        ),
        (
            lambda q, k, v: tuple(o.detach() for o in attention(q, k, v)),
            "the result of `f` is cut off from its inputs: no gradient can flow back "
            "(look for .detach(), .data, torch.no_grad() or a new torch.tensor(...))",
        ),
        (
            lambda q, k, v: attention(q.detach() + (q - q.detach()) / 2, k, v),
            "the gradient of the output with respect to query: wrong in 15 of 15 entries",
        ),
        (lambda q, k, v: attention(q, k, v)[0], "`f` should return 2 tensors"),
        (
            lambda q, k, v: (attention(q, k, v)[0].T, attention(q, k, v)[1]),
            "`f` returned a tensor of shape (2, 5), expected (5, 2)",
        ),
    ],
    ids=["cut off from one", "one cut off", "cut off", "halved", "too few", "misshapen"],
)
def test_wrong_gradients_are_told_apart(function, said):
    said_to_be = failed(expect_gradients, function, three, attention, WRT, RESULTS).problem
    assert said_to_be.startswith(said)


def test_gradients_of_nan_do_not_pass():
    def nan_backward(query, key, value):
        output, total = attention(query, key, value)
        return output + (0 * (query - query).pow(2).sum().sqrt()), total

    failure = failed(expect_gradients, nan_backward, three, attention, WRT)
    assert failure.problem.startswith(
        "the gradient of the result with respect to query holds NaN in 15 of 15 entries"
    )
    assert "Change the number before it is used" in failure.problem


def test_a_blank_has_no_gradients():
    def blank(query, key, value):
        raise NotImplementedError()

    failure = failed(expect_gradients, blank, three, attention, WRT)
    assert failure.problem == "`f` is not written yet"
    assert isinstance(failure.__cause__, NotWritten)


def test_an_oracle_without_gradients_blames_nobody_else():
    subject = LocalSubject({"f": attention})
    for wrong in (lambda query, key, value: query.detach(), lambda query, key, value: 1 / 0):
        with pytest.raises(BrokenCheck, match="its oracle has no gradients"):
            expect_gradients(subject, Case("seed"), "f", three, wrong, ["query"])


# Inputs


def mixed(case):
    return case.normal(2, 3), [case.normal(5)], torch.tensor([float("nan")]), 7


def test_inputs_left_alone_pass():
    passes(expect_inputs_unchanged, lambda x, ys, z, n: x + 1, mixed)


@pytest.mark.parametrize(
    ("change", "which"),
    [
        (lambda x, ys, z, n: x.add_(1e-12), "x"),
        (lambda x, ys, z, n: x.resize_(3, 2).sum(), "x"),
        (lambda x, ys, z, n: setattr(x, "data", x.data.float()), "x"),
        (lambda x, ys, z, n: ys[0].zero_(), "ys"),
        (lambda x, ys, z, n: ys.append(2), "ys"),
        (lambda x, ys, z, n: z.zero_(), "z"),
        (lambda x, ys, z, n: x.requires_grad_().sum().backward(), "x"),
    ],
    ids=["numbers", "shape", "dtype", "in a list", "a list", "nan", "a gradient"],
)
def test_inputs_changed_in_place_are_told_by_their_name(change, which):
    failure = failed(expect_inputs_unchanged, change, mixed)
    assert failure.problem.startswith(f"`f` changes its argument `{which}` in place")


def test_inputs_are_compared_where_a_function_comes_before_them(forked):
    draw = lambda case: (case.normal(2, 3),)  # noqa: E731
    for subject in (lambda f: LocalSubject({"f": f}), forked):
        expect_inputs_unchanged(subject(lambda g, x: g(x)), Case("s"), "f", draw, [torch.sum])
        with pytest.raises(CheckFailed, match="changes its argument"):
            wrong = subject(lambda g, x: g(x.add_(1)))
            expect_inputs_unchanged(wrong, Case("s"), "f", draw, [torch.sum])


def test_an_input_changed_in_place_by_code_without_names_is_told_by_its_number():
    failure = failed(expect_inputs_unchanged, lambda *args: args[2].zero_(), mixed)
    assert failure.problem.startswith("`f` changes its argument number 3 in place")


def test_a_mistake_that_changes_the_same_input_is_named():
    cell = "def f(x, ys, z, n): return {}"
    known = [
        Answer("AddsInPlace", "f", "It adds into x.", cell.format("x.add_(1)")),
        Answer("ClearsTheLast", "f", "It clears z.", cell.format("z.zero_()")),
        Answer("ChangesNothing", "f", "It is slow.", cell.format("x + 1")),
        Answer("Breaks", "f", "It crashes.", cell.format("1 / 0")),
    ]
    subject = LocalSubject({"f": lambda x, ys, z, n: x.mul_(2)})
    with pytest.raises(CheckFailed) as raised:
        expect_inputs_unchanged(subject, Case("seed", known), "f", mixed)
    assert [mistake.name for mistake in raised.value.mistakes] == ["AddsInPlace"]


def test_precision_may_be_left_to_the_student():
    def single(x):
        return x.half().sum(dim=1)

    def half_off(x):
        return single(x) / 2

    def summed(x):
        return x.sum(dim=1)

    def rows(case):
        return (inputs(case)[0],)

    known = [Answer("Half", "f", "Half is missing.", "def f(x): return x.sum(dim=1) / 2")]
    returns = {"total": "rows"}
    passes(expect_agrees, single, rows, summed, returns, tolerance=0.02)
    assert "wrong in" in failed(expect_agrees, single, rows, summed, returns).problem
    failure = failed(expect_agrees, half_off, rows, summed, returns, mistakes=known)
    assert failure.mistakes == ()
    for tolerances in ({"tolerance": 0.02}, {"tolerance": 1e-9, "alike": 0.02}):
        failure = failed(
            expect_agrees, half_off, rows, summed, returns, mistakes=known, **tolerances
        )
        assert [mistake.name for mistake in failure.mistakes] == ["Half"]


# Answers to requests of any kind


KNOWN = [
    Answer("Doubles", "f", "It doubles.", "def f(x): return 2 * x"),
    Answer("Refuses", "f", "It refuses.", "def f(x): raise ValueError('no twos')"),
    Answer("RefusesAll", "f", "It refuses all.", "def f(x): raise ValueError('none')"),
]
REQUESTS = [asks_for("f", (2,)), asks_for("f", (3,))]


def asked(function, judge, **kwargs):
    """Return what is wrong and the names of the mistakes that it may be."""
    with pytest.raises(CheckFailed) as raised:
        expect_answer(
            LocalSubject({"f": function} if function else {}),
            Case("seed", KNOWN),
            REQUESTS,
            judge,
            **kwargs,
        )
    return raised.value.problem, [mistake.name for mistake in raised.value.mistakes]


def is_two(answer):
    return None if answer == 2 else f"it is {answer}, expected 2"


def test_the_first_answer_decides_and_all_of_them_name_the_mistake():
    subject = LocalSubject({"f": lambda x: 2 if x == 2 else 1 / 0})
    assert expect_answer(subject, Case("seed", KNOWN), REQUESTS, is_two) is None
    assert asked(lambda x: x + x, is_two) == ("it is 4, expected 2", ["Doubles"])
    assert asked(lambda x: 4, is_two) == ("it is 4, expected 2", [])


def test_crashes_are_told_apart_by_what_they_say():
    def refuses(x):
        raise ValueError("none")

    said, named = asked(refuses, is_two)
    assert said.startswith("`f` raised ValueError: none")
    assert named == ["RefusesAll"]


def test_an_exception_may_be_what_is_asked_for():
    def is_refused(answer):
        return None if isinstance(answer, Crash) else f"it is {answer}, expected a ValueError"

    def refuses(x):
        raise ValueError("no")

    subject = LocalSubject({"f": refuses})
    assert expect_answer(subject, Case("seed"), REQUESTS, is_refused, may_crash=True) is None
    assert asked(lambda x: 2 * x, is_refused, may_crash=True)[1] == ["Doubles"]


def test_what_is_missing_is_no_answer():
    said, named = asked(None, is_two, may_crash=True)
    assert "`f` is not defined" in said and named == []


# Tests that students write


RIGHT = {"the mean": lambda x: x.mean(), "the mean, another way": lambda x: x.sum() / len(x)}
WRONG = {"the sum": lambda x: x.sum(), "the first": lambda x: x[0]}


def good(mean):
    numbers = torch.tensor([2.0, 3.0, 7.0])
    assert abs(float(mean(numbers)) - 4) < 1e-4, "not the mean"


def judged(test, bug, mistakes=(), case=None, right=RIGHT, wrong=WRONG, **more):
    subject = LocalSubject({"f": test})
    expect_test_judges(subject, case or Case("seed", mistakes), "f", right, wrong, bug, **more)


def test_a_test_that_catches_the_bug_and_lets_right_ones_pass_is_good():
    for bug in WRONG:
        judged(good, bug)


def test_a_test_that_rejects_everything_is_called_as_often_as_a_good_one():
    def counted(test):
        calls = []
        with contextlib.suppress(CheckFailed):
            judged(lambda mean: (calls.append(mean), test(mean)), "the sum")
        return len(calls)

    def rejecting(mean):
        raise AssertionError

    assert counted(good) == counted(rejecting) > 4


def test_a_bug_that_gets_past_is_named():
    def blind_to_the_first(mean):
        assert mean(torch.ones(3)) == 1

    judged(blind_to_the_first, "the sum")
    with pytest.raises(CheckFailed, match="`f` lets a wrong implementation pass: the first"):
        judged(blind_to_the_first, "the first")


def test_a_false_alarm_without_words_is_told_by_its_line():
    source = "def test(mean):\n    assert mean(1) == 2\n"
    linecache.cache["<cell>"] = (len(source), None, source.splitlines(True), "<cell>")
    namespace = {}
    exec(compile(source, "<cell>", "exec"), namespace)
    with pytest.raises(CheckFailed) as raised:
        expect_test_judges(
            LocalSubject(namespace),
            Case("seed"),
            "test",
            {"the mean": lambda x: 3},
            {"the sum": lambda x: 5},
            "the sum",
        )
    assert raised.value.problem == (
        "`test` rejects a correct implementation (the mean). It stopped in line 2: "
        "assert mean(1) == 2"
    )


def test_a_false_alarm_earns_nothing_and_is_quoted():
    def never_content(mean):
        if mean(torch.ones(3)) != 2:
            raise AssertionError("I expected two")

    for bug in WRONG:
        with pytest.raises(CheckFailed) as raised:
            judged(never_content, bug)
        said = raised.value.problem
        assert said.startswith("`f` rejects a correct implementation (the mean). It stopped")
        assert 'I expected two")' in said and said.endswith("or of another shape, dtype or input?")


def said_of(test, bug="the first", **more):
    with pytest.raises(CheckFailed) as raised:
        judged(test, bug, **more)
    return raised.value.problem


def test_a_bug_that_gets_past_is_compared_with_right_ones_on_the_inputs_of_the_test():
    numbers = torch.tensor([2.0, 3.0, 7.0])

    def all_alike(mean):
        assert mean(torch.ones(3)) == 1

    def wide(mean):
        assert mean(numbers) < 5

    def undefined(mean):
        mean(torch.tensor([float("inf"), 1.0]))

    assert "it returns what a correct one returns" in said_of(all_alike)
    assert "are off by up to 2 (the largest correct one is 4)" in said_of(wide)
    assert "what you assert holds for these wrong numbers" in said_of(wide)
    right = {**RIGHT, "the middle for two": lambda x: x.median() if len(x) == 2 else x.mean()}
    assert "off by" not in said_of(undefined, right=right)
    assert "never calls the function" in said_of(lambda mean: None)


def test_who_could_not_see_a_bug_more_closely_is_told_why_or_to_choose_other_inputs():
    def nearly_equal(mean):
        assert abs(mean(torch.tensor([1.0, 1 + 1e-5]).double()) - 1) < 1e-3

    def apart(mean):
        assert abs(mean(torch.tensor([1.02, 1.03])) - 1) < 1

    def why(means):
        return "all are about 1" if max(float(m) for m in means) < 1.01 else ""

    assert said_of(nearly_equal).endswith("fails: choose inputs for which this bug changes more")
    assert "more closely" in said_of(apart)
    assert said_of(nearly_equal, why=why).endswith("and no assertion fails: all are about 1")
    assert "more closely" in said_of(apart, why=why)


def test_what_is_right_up_to_rounding_is_told_by_how_much():
    right = {**RIGHT, "the mean in half precision": lambda x: x.half().mean().float()}

    def exact(mean):
        assert abs(mean(torch.tensor([0.1, 0.2])) - 0.15) < 1e-6

    said = said_of(exact, right=right)
    assert "(the mean in half precision)" in said and "allow for rounding" in said
    assert "differ by up to 9.766e-05 from" in said

    def by_default(mean):
        assert torch.allclose(mean(torch.tensor([0.1, 0.2])), torch.tensor(0.15))

    assert said_of(by_default, right=right).endswith("is too small for entries near 0)")


def test_dicts_in_results_are_compared_whatever_the_order_of_their_keys():
    def mean_and_cache(x):
        return x.mean(), {"sum": x.sum(), "seen": [x, None]}

    def in_another_order(x):
        return x.mean(), dict(reversed(mean_and_cache(x)[1].items()))

    def only_the_mean(f):
        assert f(torch.tensor([2.0, 3.0, 7.0]))[0] == 4

    right = {"one": mean_and_cache, "another": in_another_order}
    wrong = {"the first": lambda x: (x.mean(), {"sum": x[0], "seen": [x, None]})}
    said = said_of(only_the_mean, right=right, wrong=wrong)
    assert "are off by up to 10 (the largest correct one is 12)" in said


def test_a_correct_one_that_does_something_else_does_not_hide_a_bug():
    def last_is_right(sums):
        assert sums(torch.tensor([2.0, 3.0, 7.0, 9.0]))[-1] in (21, 9)

    right = {
        "sums so far": lambda x: x.cumsum(0),
        "each alone": lambda x: x,
    }
    wrong = {"the first": lambda x: x.cumsum(0) + torch.tensor([0.0, 6.0, 0.0, 0.0])}
    assert "are off by up to 6 (" in said_of(last_is_right, right=right, wrong=wrong)


def test_a_test_that_changes_its_mind_is_told_so():
    calls = itertools.count()

    def strict_now_and_then(mean):
        good(mean)
        assert next(calls) % 3 < 2, "not today"

    def blind_now_and_then(mean):
        value = float(mean(torch.tensor([2.0, 3.0, 7.0])))
        assert abs(value - 4) < 1e-4 or (value == 2 and next(calls) % 2)

    for test, bug in ((strict_now_and_then, "the sum"), (blind_now_and_then, "the first")):
        with pytest.raises(CheckFailed, match="Your test is not deterministic: called again"):
            judged(test, bug)


def test_a_test_that_returns_its_verdict_is_told_to_assert_it():
    with pytest.raises(CheckFailed) as raised:
        judged(lambda mean: bool(mean(torch.tensor([2.0, 4.0])) == 3), "the sum")
    assert "It returned bool False, which is ignored: `assert` what must hold" in str(raised.value)


def test_a_test_that_breaks_is_no_verdict():
    def broken(mean):
        raise ValueError("no idea")

    with pytest.raises(CheckFailed) as raised:
        judged(broken, "the sum")
    assert "`f` raised ValueError: no idea" in str(raised.value)
    assert "A test reports a bug by a failed `assert`" in str(raised.value)


def test_a_blank_test_is_not_written_yet():
    def blank(mean):
        raise NotImplementedError()

    with pytest.raises(CheckFailed, match="`f` is not written yet"):
        judged(blank, "the sum")


NOTHING = Answer("Nothing", "f", "It compares nothing.", "def f(mean): pass")
ALSO_NOTHING = Answer("AlsoNothing", "f", "It asserts True.", "def f(mean): assert True")
SCEPTIC = Answer("Sceptic", "f", "It believes nothing.", "def f(mean): assert False")
SLEEPY = Answer("Sleepy", "f", "It breaks.", "def f(mean): raise ValueError")


def test_a_way_to_judge_badly_is_named():
    with pytest.raises(CheckFailed) as raised:
        judged(lambda mean: None, "the sum", [SLEEPY, SCEPTIC, NOTHING])
    assert raised.value.mistakes == (NOTHING,)
    with pytest.raises(CheckFailed) as raised:
        judged(lambda mean: None, "the sum", [NOTHING, ALSO_NOTHING])
    assert raised.value.mistakes == (NOTHING, ALSO_NOTHING)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(1, "Operation not permitted"), "a test cannot change files"),
        (RuntimeError("can't start new thread"), "a test cannot change files"),
        (RuntimeError("no"), "reports a bug by a failed `assert`"),
    ],
)
def test_a_test_that_may_not_do_something_while_it_is_judged_is_told_so(error, said):
    def stopped(mean):
        raise error

    with pytest.raises(CheckFailed, match=said):
        judged(stopped, "the sum")


def test_a_slow_test_is_asked_no_more_by_the_checks_after_the_first():
    calls = []

    def counted(mean):
        calls.append(mean)
        good(mean)

    case = Case("seed")
    judged(counted, "the sum", case=case)
    num_calls = len(calls)
    judged(counted, "the first", case=case)
    assert len(calls) == num_calls
    assert num_calls <= 4 * (len(RIGHT) + len(WRONG))


def earned_by(test, seed):
    """Count the bugs that a test is paid for."""
    earned = 0
    case = Case(seed)
    for bug in WRONG:
        with contextlib.suppress(CheckFailed):
            judged(test, bug, case=case)
            earned += 1
    return earned


@pytest.mark.parametrize("wrong_at", [{2, 3}, {0, 1}, {3}, {0}, set(range(2, 99)), set(range(99))])
def test_verdicts_by_the_number_of_the_call_earn_nothing(wrong_at):
    for seed in ("one", "two", "three", "four", "five"):
        numbers = itertools.count()

        def by_number(mean, numbers=numbers):
            assert next(numbers) not in wrong_at

        assert earned_by(by_number, seed) == 0


def test_verdicts_played_again_earn_nothing_on_another_seed():
    verdicts = []

    def recorded(mean):
        verdicts.append(False)
        good(mean)
        verdicts[-1] = True

    assert earned_by(recorded, "published") == len(WRONG)
    for seed in ("two", "three", "five"):
        numbers = itertools.cycle(verdicts)

        def again(mean, numbers=numbers):
            assert next(numbers)

        assert earned_by(again, seed) == 0


def test_as_many_right_ones_come_as_wrong_ones_and_some_twice():
    right = {"the mean": lambda x: x.mean()}
    wrong = {"2 times": lambda x: x * 2, "3 times": lambda x: x * 3}
    seen = []

    def look(mean):
        seen.append(float(mean(torch.ones(()))))
        assert seen[-1] == 1

    judged(look, "2 times", right=right, wrong=wrong)
    assert 0.5 * len(seen) == seen.count(1.0) >= 2


def test_implementations_are_called_by_one_signature():
    def with_mask(x, mask=None):
        return x.mean()

    def accepts_a_mask(mean):
        """Right ones are told from wrong ones by their parameters alone."""
        try:
            mean(torch.ones(3), None)
        except RuntimeError:
            raise AssertionError from None

    with pytest.raises(CheckFailed, match="rejects a correct implementation"):
        judged(accepts_a_mask, "the sum", right={"the mean": with_mask})


def test_another_set_of_implementations_is_judged_anew():
    case = Case("seed")
    judged(good, "the sum", case=case)
    judged(good, "the last", case=case, wrong={"the last": lambda x: x[-1]})
    with pytest.raises(CheckFailed, match="rejects a correct implementation"):
        judged(good, "the sum", case=case, right={"the middle": lambda x: x.median() * 2})


# Words


def test_an_expectation_that_is_not_met_says_its_sentence():
    expect(True, "never said")
    with pytest.raises(CheckFailed, match="^the weights sum to 2$"):
        expect(False, "the weights sum to 2")


def test_a_failure_reads_from_what_was_seen_to_a_case_to_try():
    failure = CheckFailed("2 is not 3", [NOTHING], "A small case")
    assert str(failure).split("\n") == [
        "2 is not 3",
        "This is the mistake “nothing”: It compares nothing.",
        "A small case",
    ]
    assert isinstance(failure, AssertionError)


def test_the_sentence_that_names_mistakes_can_be_found():
    for mistakes in ([NOTHING], [NOTHING, ALSO_NOTHING]):
        assert DIAGNOSIS.match(CheckFailed("problem", mistakes).diagnosis)
    assert not DIAGNOSIS.match("This is not a mistake")


# What is used in place of what


def stacked(case):
    layers, width = case.size("layers", 3), case.size("width", 4)
    x, gain = case.normal(case.size("rows", 5), width), case.normal(width)
    w, bias = case.normal(layers, width, width), case.normal(width)
    rates = {"keep": case.normal(width), "drop": case.normal(width)}
    return x, w, gain, bias, case.integer(0, 2), float(case.uniform(low=0.1, high=0.4)), rates


def stack(x, w, gain, bias, first, rate, rates):
    for layer in w:
        x = (x @ layer).tanh() * rate * gain + bias
    return x[:, first:] * rates["keep"][first:] + rates["drop"][first:].sin()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda x, w, *rest: stack(x, w.flip(0), *rest), "`w` in reverse order along axis 0"),
        (lambda x, w, *rest: stack(x, w.roll(1, 0), *rest), "`w` shifted by 2 along axis 0"),
        (lambda x, w, *rest: stack(x, w[[1, 0, 2]], *rest), "`w` with 0 and 1 exchanged along"),
        (lambda x, w, g, b, *rest: stack(x, w, b, g, *rest), "`gain` and `bias` exchanged"),
        (lambda *a: stack(*a[:5], 1 - a[5], a[6]), "1 - `rate`"),
        (
            lambda *a: stack(*a[:6], {"keep": a[6]["drop"], "drop": a[6]["keep"]}),
            "`keep` and `drop` of `rates` exchanged",
        ),
    ],
)
def test_what_would_make_a_wrong_result_right_is_said(wrong, said):
    failure = failed(expect_agrees, wrong, stacked, stack, {"output": "rows width"})
    assert f"; called with {said}" in failure.problem
    assert failure.problem.endswith(", it gives the correct result: how is that used?")


def test_a_number_that_is_counted_from_another_end_is_named():
    def chosen(x, n):
        return x[n].sin()

    def inputs(case):
        return case.normal(case.size("rows", 6), case.size("width", 3)), case.integer(0, 5)

    failure = failed(expect_agrees, lambda x, n: x[-1 - n].sin(), inputs, chosen, {"row": "width"})
    number = inputs(Case("seed"))[1]
    assert f"; called with {5 - number} for `n` = {number}, it gives" in failure.problem


@pytest.mark.parametrize(("size", "is_said"), [(9, True), (2, False)])
def test_a_few_whole_numbers_are_right_by_chance_and_say_nothing_of_the_inputs(size, is_said):
    def counted(x, n):
        return (torch.arange(size) + n) % 5 + 0 * x.long()

    def inputs(case):
        return case.normal(size), case.integer(1, 3)

    failure = failed(
        expect_agrees, lambda x, n: counted(x, n + 1), inputs, counted, {"counts": "length"}
    )
    assert ("it gives the correct result" in failure.problem) == is_said


def test_parts_of_an_input_that_are_not_used_are_named():
    first_again = lambda x, w, *rest: stack(x, w[:1].expand_as(w), *rest)  # noqa: E731
    failure = failed(expect_agrees, first_again, stacked, stack, {"output": "rows width"})
    assert failure.problem.endswith("it does not depend on `w[1]`, `w[2]`: are they used?")


def test_a_result_of_whole_numbers_may_stay_the_same_by_chance():
    """The sign of one product rarely changes with a scale that is drawn anew."""

    def signs(x, scale):
        return (x * scale).sign().long()

    def inputs(case):
        return case.normal(case.size("rows", 3)), float(case.uniform(low=0.5, high=2.0))

    failure = failed(expect_agrees, lambda x, s: signs(x, s) + 1, inputs, signs, {"sign": "rows"})
    assert "depend" not in failure.problem and "changes with" not in failure.problem


def test_a_known_mistake_is_not_hidden_by_what_would_be_right():
    code = "def f(x, w, gain, bias, *rest):\n  return stack(x, w, bias, gain, *rest)"
    mistake = Answer("Exchanged", "f", "They have changed places.", code)
    mistake.namespace["stack"] = stack
    failure = failed(
        expect_agrees,
        mistake.namespace["f"],
        stacked,
        stack,
        {"output": "rows width"},
        mistakes=[mistake],
    )
    assert failure.mistakes == (mistake,) and "called with" not in failure.problem


def test_what_a_nearly_correct_result_may_come_from_is_asked_only_if_it_is_not_known():
    code = "def f(x, n):\n  return x.sum(1) + 1e-4 * x.sum(1).cos()"
    mistake = Answer("Added", "f", "A small number is added.", code)
    told = [
        failed(
            expect_agrees,
            mistake.namespace["f"],
            inputs,
            lambda x, n: x.sum(dim=1),
            {"sum": "rows"},
            mistakes=known,
            why=lambda *seen_and_given: ". Rows are added",
        )
        for known in ([], [mistake])
    ]
    assert ["nearly correct" in failure.problem for failure in told] == [True, False]
    assert told[0].problem.endswith("or approximated? Rows are added")
    assert told[1].mistakes == (mistake,) and "furthest off" in told[1].problem
    assert re.search(r"expected [\d.-]+\d\. Rows are added$", told[1].problem)


@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize("sign", [1, -1])
def test_what_a_call_keeps_is_found_with_the_inputs_of_two_checks_whichever_comes_first(
    forked, which, sign
):
    class Keeping:
        """Is wrong if the number of the first call, or of the one before, is larger or smaller."""

        def __init__(self):
            self.numbers = []

        def __call__(self, x, n):
            kept = (self.numbers or [n])[which]
            self.numbers.append(n)
            return x.sum(dim=1) + max(sign * (kept - n), 0)

    subject, memory = forked(Keeping()), {}
    for place, number in enumerate([3, 3, 7, 5]):
        case = Case(f"seed {place}", memory=memory)
        given = lambda case, n=number: (inputs(case)[0], n)  # noqa: E731
        expect_agrees(subject, case, "f", given, lambda x, n: x.sum(dim=1), {"total": "rows"})
    calls = memory[CALLS]["f"]
    seed, problem = wrong_after_another(subject, calls)
    assert seed == "seed 2"  # not the last one
    assert problem.startswith("`f` is correct in its first call, but wrong after another one with ")
    assert wrong_after_another(subject, calls[:2]) is None


@pytest.mark.parametrize("pause", [0.4, 6.0])
def test_a_pause_spares_no_function_the_question_of_other_sizes(pause, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def f(x, n):
        clock[0] += pause
        return sum(x[:, i] for i in range(3)), n / 2

    said = str(failed(expect_sizes, f, inputs, oracle, PAIR))
    assert "not for rows 4, width 2" in said


def test_a_kept_argument_is_named_that_only_the_earlier_call_had(forked):
    class Keeping:
        mask = 1.0

        def __call__(self, x, mask=None):
            self.mask = self.mask if mask is None else mask
            return x * self.mask

    subject, memory = forked(Keeping()), {}

    def masked(case):
        return *inputs(case)[:1], case.uniform(1)

    for seed, given in (("a", lambda case: inputs(case)[:1]), ("b", masked)):
        case = Case(seed, memory=memory)
        expected = lambda x, mask=None: x if mask is None else x * mask  # noqa: E731
        expect_agrees(subject, case, "f", given, expected, {"product": "rows width"})
    _, problem = wrong_after_another(subject, memory[CALLS]["f"])
    assert "calls. The earlier call had `mask`, this one has none. In that call: product" in problem


def test_what_is_wrong_for_other_numbers_of_a_call_is_not_said_to_keep_state(forked):
    """A check that draws several times has asked with numbers that a call drawn anew lacks."""
    subject, memory = forked(lambda x, n: x.sum(dim=1) + (n == 7)), {}
    numbers = iter([3, 3, 7, 5])  # of each pair the second is asked first
    for place in range(2):
        case = Case(f"seed {place}", memory=memory)
        given = lambda case: (inputs(case)[0], next(numbers))  # noqa: E731
        expect_agrees(subject, case, "f", given, lambda x, n: x.sum(dim=1), {"total": "rows"})
    seed, problem = wrong_after_another(subject, memory[CALLS]["f"])
    assert seed == "seed 1"
    assert problem.startswith("total: wrong in ")
