import math
import shutil
from functools import partial

import pytest
import torch

from classroom.author.release import release
from classroom.calls.subject import Crashed, TooSlow
from classroom.course import PREPARED, SEED_VARIABLE, folder_for
from classroom.exercise.answers import load_answers
from classroom.exercise.comparing import Sketch, same
from classroom.exercise.diagnosis import answer_to, asking
from classroom.exercise.prepared import (
    NotPrepared,
    Reader,
    Recorder,
    answering,
    known,
    observing,
    oracle,
    write,
)
from classroom.exercise.run import run_checks

MISTAKES = """
    class Wrong(Mistake, exercise="f"):
        '''Wrong.'''
        def f(x, *others):
            return x + 1

        def asks(g):
            return g(torch.ones(2)) + g(torch.zeros(3)).sum()

        def crashes(x):
            raise ValueError("no")

        def endless():
            while True:
                pass
"""


@pytest.fixture
def mistake(write_checks):
    folder = write_checks("@points(1)\ndef test_it(self, subject, case): pass", mistakes=MISTAKES)
    return load_answers(folder / "mistakes.py")[0]


@pytest.fixture
def read_again(tmp_path, mistake):
    """Give a function that runs something twice: recorded, and from what was recorded."""

    def twice(ask):
        recorder = Recorder()
        with answering(recorder):
            first = ask(mistake)
        assert recorder.problems == []
        write(tmp_path / PREPARED, [mistake], {"f": recorder.answers}, [])
        reader = Reader(tmp_path / PREPARED, "f")
        with answering(reader):
            return first, ask(reader.mistakes[0])

    return twice


# Oracles


def test_an_oracle_is_its_function():
    @oracle
    def right(x, factor=2):
        return factor * x

    assert right(torch.ones(2)).tolist() == [2, 2]
    assert [g.tolist() for g in right.gradients((torch.ones(2),), [0], [torch.ones(2)])] == [[2, 2]]


@pytest.mark.parametrize(
    "argument",
    [
        torch.tensor([0.1, -1 / 3, 2 / 7], dtype=torch.float64),
        torch.tensor([math.nan, math.inf, -math.inf, 0.0]),
        torch.tensor([0.57, 0.99, -0.94]).bfloat16(),
        torch.tensor([True, False]),
        torch.arange(3),
        3,
        0.25,
        "word",
        None,
        [torch.ones(1), {"a": (1, None)}],
        partial(max, 3),
        torch.int8,
    ],
    ids=str,
)
def test_a_result_is_found_by_its_arguments(read_again, argument):
    calls = []

    @oracle
    def right(x):
        calls.append(x)
        return torch.ones(2)

    first, again = read_again(lambda mistake: right(argument))
    assert same(first, again)
    assert len(calls) == 1


def test_the_last_digits_of_an_argument_do_not_count_and_others_do(read_again):
    x = torch.randn(50, dtype=torch.float64)
    calls = iter([x, x * (1 + 1e-15)])
    right = oracle(lambda x: 2.0 * x.sum())
    first, again = read_again(lambda mistake: right(next(calls)))
    assert same(first, again)
    calls = iter([x, x * (1 + 1e-5)])
    with pytest.raises(NotPrepared):
        read_again(lambda mistake: right(next(calls)))


def test_an_oracle_that_depends_on_more_than_its_arguments_is_noticed():
    results = iter([torch.zeros(2), torch.ones(2)])
    right = oracle(lambda x: next(results))
    recorder = Recorder()
    with answering(recorder):
        right(1), right(1)
    assert "has two different answers" in recorder.problems[0]


# Known mistakes


def test_what_a_mistake_answers_is_read_as_it_was(read_again):
    x = torch.randn(4, 5, dtype=torch.float64)

    def ask(mistake):
        code = known(mistake)
        return [
            code.call("f", x),
            code.gradients("f", (x,), [0], [torch.ones_like(x)]),
            code.call_and_return_inputs("f", x),
        ]

    first, again = read_again(ask)
    assert same(first, again) and torch.equal(again[2][1][0], x)
    assert again[0].dtype is torch.float64


def test_of_a_large_result_a_sketch_is_kept(read_again):
    x = torch.randn(60, 50, dtype=torch.float64)
    _, again = read_again(lambda mistake: known(mistake).call("f", x))
    assert isinstance(again, Sketch)
    assert same(x + 1, again) and same(again, (x + 1) * (1 + 1e-9)) and same(again, again)
    other = x + 1
    other[7, 7] += 1e-2
    assert not same(other, again) and not same((x + 1).float(), again)
    assert not same((x + 1).T, again) and not same(None, again)


def test_a_mistake_fails_again_as_it_did(read_again, monkeypatch):
    monkeypatch.setattr("classroom.exercise.prepared.SECONDS_TO_RECORD", 0.2)

    def failures(mistake):
        found = []
        for name, args in (("crashes", (1,)), ("endless", ())):
            with pytest.raises((Crashed, TooSlow)) as error:
                known(mistake).call(name, *args)
            found.append((type(error.value), str(error.value), getattr(error.value, "kind", "")))
        return found

    first, again = read_again(failures)
    assert first == again


def test_a_lent_function_that_observes_is_called_again(read_again):
    def ask(mistake):
        seen = []

        @observing
        def lent(x):
            seen.append(len(x))
            return x

        code = known(mistake)
        code.call("asks", code.lend(lent))
        return seen

    first, again = read_again(ask)
    assert first == again == [2, 3]


def test_of_a_request_of_several_calls_what_comes_of_it_is_kept(read_again):
    def request(subject, x, noted):
        first = subject.call("f", x)
        noted.append("asked")
        return subject.call("f", first).sum()

    def ask(mistake):
        noted = []
        return answer_to(asking(request, torch.zeros(30, 30), noted), known(mistake)), noted

    first, again = read_again(ask)
    assert float(first[0]) == float(again[0]) == 1800
    assert first[1] == ["asked"] and again[1] == []


def test_what_a_mistake_was_never_asked_is_no_answer(read_again):
    xs = iter([torch.zeros(1), torch.ones(1)])
    with pytest.raises(NotPrepared):
        read_again(lambda mistake: known(mistake).call("f", next(xs)))


# A handout


@pytest.fixture
def handout(course):
    """An assignment as students get it, without the solutions."""
    release(course)
    shutil.rmtree(course / "solutions")
    return course / "exercises" / "07_averages"


WRONG = {
    "def centre(x): return x": ("NotMoved",),
    "def centre(x): return x - x.mean(dim=1, keepdim=True)": ("MeanOfEachRow",),
    "def centre(x): return x - 2 * x.mean(dim=0)": (),
}


@pytest.mark.parametrize("source", WRONG)
def test_a_handout_names_mistakes_and_shows_a_small_case(handout, student, source):
    report = run_checks(handout, "centre", student(source))
    assert report.results[0].mistakes == WRONG[source]
    assert "A small case to try it on" in report.results[0].message
    assert "  expected " in report.results[0].message


def test_a_handout_gives_full_marks_to_what_is_right(handout, student):
    right = student("def centre(x): return x - x.mean(dim=0)")
    assert run_checks(handout, "centre", right).earned == 3


def test_another_seed_needs_the_solutions(course, student, monkeypatch):
    release(course)
    folder = course / "exercises" / "07_averages"
    right = student("def centre(x): return x - x.mean(dim=0)")
    assert folder_for(folder, "secret") == course / "solutions" / "07_averages"
    assert run_checks(folder, "centre", right, "secret").earned == 3
    shutil.rmtree(course / "solutions")
    monkeypatch.setenv(SEED_VARIABLE, "secret")
    with pytest.raises(ValueError, match="the seed must be 'attention', .* got 'secret'"):
        run_checks(folder, "centre", right)


def test_without_its_results_a_handout_says_so(handout, student):
    (handout / PREPARED).unlink()
    report = run_checks(handout, "centre", student("def centre(x): return x"))
    assert "prepared.zip must be in the folder of checks.py" in report.results[0].message
