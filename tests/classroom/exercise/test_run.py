import logging
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from classroom.calls.local import LocalSubject
from classroom.course import PUBLISHED_SEED
from classroom.exercise import run
from classroom.exercise.cases import Case
from classroom.exercise.run import in_words, list_checks, load_checks, run_checks

RIGHT = """
def centre(x): return x - x.mean(dim=0)
def twice(number): return 2 * number
"""
UNMOVED = "def centre(x): return x"
CONTENT = """
@points(2)
def test_it(self, subject, case):
    subject.call("f")
"""


def results(report):
    return [(result.name, result.earned, result.points) for result in report.results]


# By hand


def test_a_right_answer_earns_all_points(assignment, student):
    report = run_checks(assignment, "centre", student(RIGHT))
    assert (report.exercise, report.title) == ("centre", "7.1 Centre the rows")
    assert results(report) == [("rows are moved by their mean", 1, 1), ("the mean is zero", 2, 2)]
    assert (report.earned, report.points) == (3, 3)
    assert report.mistakes == report.messages == []


def test_each_check_earns_its_own_points(assignment, student):
    """Twice the right answer has the mean 0, but is not the right answer."""
    report = run_checks(assignment, "centre", student("def centre(x): return 2 * (x - x.mean(0))"))
    assert [result.earned for result in report.results] == [0, 2]
    assert (report.earned, report.points) == (2, 3)
    assert report.results[0].message.startswith("centred: wrong in 15 of 15 entries")


def test_a_mistake_is_named(assignment, student):
    report = run_checks(assignment, "centre", student(UNMOVED))
    assert report.mistakes == ["NotMoved"]
    assert "“not moved”: The rows are returned as they came." in report.results[0].message


def test_checks_run_in_an_order_drawn_from_the_seed_and_are_reported_in_that_of_the_file(
    write_checks, student
):
    numbers = range(8)
    checks = "".join(
        f"    @points(1)\n    def test_{n}(self, subject, case): subject.call('f', {n})\n\n"
        for n in numbers
    )
    folder, orders = write_checks(checks), []
    for seed in ("a", "a", "b"):
        seen = []
        subject = LocalSubject({"f": seen.append})
        report = run_checks(folder, "f", subject, seed)
        assert [result.name for result in report.results] == [str(n) for n in numbers]
        orders.append(seen)
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == list(numbers)


def test_a_crash_is_shown_with_its_call(write_checks, student):
    checks = """
    @points(1)
    def test_it(self, subject, case):
        expect_answer(subject, case, [lambda s: s.call("f", case.normal(2, 3), 4)], lambda x: None)
    """
    report = run_checks(write_checks(checks), "f", student("def f(x, width): return x[width]"))
    lines = report.results[0].message.split("\n")
    assert "IndexError" in lines[0] and lines[-1] == "It was called with x (2, 3), width 4"


ROUNDED_UP = """
    @points(2)
    def test_halves_go_up(self, subject, case):
        expect(subject.call("f", 2.5) == 3, "2.5 should become 3")

    @points(1, only_with="test_halves_go_up")
    def test_nothing_stays_in_between(self, subject, case):
        expect(subject.call("f", case.uniform().item()) % 1 == 0, "it is not whole")
"""


@pytest.mark.parametrize(
    ("f", "earned"),
    [
        ("lambda x: 7", [0, 0]),
        ("lambda x: int(x + 0.5)", [2, 1]),
        ("lambda x: 3 if x == 2.5 else x", [2, 0]),
    ],
)
def test_a_property_earns_its_point_only_with_what_it_is_a_property_of(
    write_checks, student, f, earned
):
    report = run_checks(write_checks(ROUNDED_UP), "f", student(f"f = {f}"))
    assert [result.earned for result in report.results] == earned
    waits = f == "lambda x: 7"  # which is whole, as it should be
    assert [result.is_waiting for result in report.results] == [False, waits]
    if waits:
        assert report.results[1].message == "2.5 should become 3"
        assert (
            "– nothing stays in between (0/1, counts once another check passes)" in report.to_text()
        )


def test_a_check_that_another_one_needs_must_be_there(write_checks):
    folder = write_checks(ROUNDED_UP.replace('only_with="test_halves', 'only_with="test_all'))
    with pytest.raises(ValueError, match="has no check test_all_go_up"):
        list_checks(folder)


@pytest.mark.parametrize(
    ("middle", "said"),
    [
        ("x.mean(0).detach()", "not all of it reaches `x`"),
        (
            "torch.tensor([c.mean().item() for c in x.T], dtype=x.dtype)",
            "not all of it reaches `x`",
        ),
        ("x.mean(0); x, middle = x.data, middle.detach()", "none flows back"),
        ("torch.tensor(x.numpy().mean(0))", "Can't call numpy() on Tensor that requires grad"),
        ("x.mean(0) if not x.requires_grad else 1 / 0", "raised ZeroDivisionError"),
    ],
)
def test_a_gradient_that_is_cut_costs_the_smallest_check_of_what_is_right(
    assignment, student, middle, said
):
    code = f"import torch\ndef centre(x):\n    middle = {middle}\n    return x - middle"
    report = run_checks(assignment, "centre", student(code))
    assert [result.earned for result in report.results] == [0, 2]
    assert "the gradient is cut: " in report.messages[0] and said in report.messages[0]


@pytest.mark.parametrize(
    "centre",
    [
        "return x - x.mean(0)",
        "middle = x.new_zeros(x.shape[1])\n  middle += x.mean(0)\n  return x - middle",
    ],
    ids=["as asked", "in place, on a tensor of its own"],
)
def test_a_gradient_that_flows_costs_nothing(assignment, student, centre, capfd):
    report = run_checks(assignment, "centre", student(f"import torch\ndef centre(x):\n  {centre}"))
    assert report.earned == report.points, report.to_text()
    assert not any(capfd.readouterr())


def test_an_input_changed_in_place_costs_the_smallest_check_of_what_is_right(assignment, student):
    code = "import torch\ndef centre(x):\n  x -= x.mean(0)\n  return x"
    report = run_checks(assignment, "centre", student(code))
    assert [result.earned for result in report.results] == [0, 2]
    assert report.messages == [
        "`centre` changes its argument `x` in place (an operation that ends in _, an assignment "
        "into it, or +=): work on new tensors"
    ]


def test_a_check_that_breaks_after_all_have_passed_costs_itself_alone(
    assignment, student, monkeypatch
):
    def breaks(*_):
        raise run.BrokenCheck("its oracle has no gradients")

    monkeypatch.setattr(run, "wrong_after_another", breaks)
    report = run_checks(assignment, "centre", student(RIGHT))
    assert len(report.messages) == 1 and report.earned in (1, 2)
    assert report.messages[0].startswith("This check itself broke (BrokenCheck: its oracle has")


class Keeping:
    """Multiplies by the number of its first call."""

    number = 0

    def __call__(self, x, n):
        self.number = self.number or n
        return self.number * x


def test_what_one_check_leaves_and_another_finds_costs_the_one_that_is_run_later(
    write_checks, forked
):
    body = """
    @points(1)
    def test_a(self, subject, case): self.compare(subject, case, 3)

    @points(2)
    def test_b(self, subject, case): self.compare(subject, case, 3)

    @points(4)
    def test_c(self, subject, case): self.compare(subject, case, 5)

    def compare(self, subject, case, n):
        right = lambda x, n: n * x
        expect_agrees(subject, case, "f", lambda case: (case.normal(4), n), right, {"y": "width"})
        if case.seed.startswith("stops") and n == 5:
            expect(False, "this is wrong, too")
    """
    folder, lost = write_checks(body), set()
    for seed in ("one", "two", "three", "four"):
        report = run_checks(folder, "f", forked(Keeping()), seed)
        last = Case(f"{seed}/f").shuffled(["test_a", "test_b", "test_c"])
        later = last[max(last.index("test_c"), 1)]
        failed = [result.name for result in report.results if not result.earned]
        assert failed == [later.removeprefix("test_")]
        assert report.messages[0].startswith("`f` is correct in its first call, but wrong after an")
        lost |= set(failed)
    assert len(lost) > 1
    for number in range(4):
        messages = run_checks(folder, "f", forked(Keeping()), f"stops {number}").messages
        assert "this is wrong, too" in messages


class Forger(LocalSubject):
    """Answers rightly, and then with what no code can return, as a process may that forges it."""

    def __init__(self, code, **forged):
        namespace = {}
        exec(code, namespace)
        super().__init__(namespace)
        vars(self).update({name: lambda *args, value=v: value for name, v in forged.items()})


@pytest.mark.parametrize(
    "forged",
    [
        {"gradients": (torch.ones(1, 2),)},
        {"gradients": (torch.ones(1, 2, device="meta"),)},
        {"gradients": ()},
        {"call_and_return_inputs": (None, ())},
        {"call_and_return_inputs": (None, (object(),))},
    ],
)
def test_a_forged_answer_costs_a_check_and_never_the_report(assignment, forged):
    report = run_checks(assignment, "centre", Forger(RIGHT, **forged))
    assert [result.earned for result in report.results] == [0, 2]


# Each check compares one of two results.
TWO_RESULTS = """
    @points(1)
    def test_a(self, subject, case): self.compare(subject, case, "a")

    @points(1)
    def test_b(self, subject, case): self.compare(subject, case, "b")

    def compare(self, subject, case, part):
        inputs = lambda case: (case.normal(4),)
        right = lambda x: (2 * x, 3 * x)
        returns = {"a": "width", "b": "width"}
        expect_agrees(subject, case, "f", inputs, right, returns, compare=[part])
"""


def test_of_wrong_numbers_nothing_is_said_about_gradients(write_checks, student):
    report = run_checks(write_checks(TWO_RESULTS), "f", student("def f(x): return 2 * x, 4 * x"))
    assert [result.earned for result in report.results] == [1, 0]
    assert "gradient" not in report.to_text()


FLOWING = """
@points(1)
def test_it(self, subject, case):
    inputs = lambda case: (case.normal(4),)
    expect_agrees(subject, case, "f", inputs, lambda x: x * x, {{"y": "width"}})
    {more}
"""


@pytest.mark.parametrize(
    ("about", "more", "said"),
    [
        ("", "", ["`f` returns the correct numbers, but the gradient is cut: none flows back"]),
        ('may_cut=("f",)', "", []),
        ("by_hand=True", "", []),
        ("", 'expect_gradients(subject, case, "f", inputs, lambda x: x * x, ["x"])', ["cut off"]),
    ],
)
def test_an_exercise_may_let_a_gradient_be_cut_or_check_it_itself(
    write_checks, student, about, more, said
):
    folder = write_checks(FLOWING.format(more=more))
    checks = folder / "checks.py"
    checks.write_text(checks.read_text().replace("minutes=", f"{about and about + ', '}minutes="))
    messages = run_checks(folder, "f", student("def f(x): return x.detach() ** 2")).messages
    assert len(messages) == len(said)
    assert all(words in message for words, message in zip(said, messages, strict=True))


def test_a_gradient_is_asked_of_each_function_whatever_the_others_do(write_checks, student):
    body = """
    @points(1)
    def test_doubled(self, subject, case):
        inputs = lambda case: (case.normal(4),)
        expect_agrees(subject, case, "f", inputs, lambda x: 2 * x, {"y": "width"})

    @points(1)
    def test_squared(self, subject, case):
        inputs = lambda case: (case.normal(4),)
        expect_agrees(subject, case, "g", inputs, lambda x: x * x, {"y": "width"})
    """
    cut = "def f(x): return 2 * x.detach()\n"
    for g in ("raise NotImplementedError", "return x", "return x * x"):
        messages = run_checks(write_checks(body), "f", student(f"{cut}def g(x): {g}")).messages
        assert "the gradient is cut" in messages[0]


def test_what_is_to_be_done_by_hand_earns_nothing_by_autograd_and_the_mistake_is_named(
    write_checks, student
):
    body = """
    @points(1)
    def test_it(self, subject, case):
        inputs = lambda case: (case.normal(4),)
        expect_agrees(subject, case, "f", inputs, lambda x: 2 * x, {"slope": "width"})
    """
    by_autograd = """
        x = x.clone().requires_grad_()
        return torch.autograd.grad((x * x).sum(), x)[0]"""
    mistakes = f"""
    import torch

    class ByAutograd(Mistake, exercise="f"):
        'Autograd.'
        def f(x):{by_autograd.replace(chr(10), chr(10) + "    ")}

    class Half(Mistake, exercise="f"):
        'Half.'
        def f(x): return x
    """
    folder = write_checks(body, mistakes=mistakes)
    checks = folder / "checks.py"
    checks.write_text(checks.read_text().replace("minutes=", "by_hand=True, minutes="))
    answer = student(f"import torch\ndef f(x):{by_autograd}")
    report = run_checks(folder, "f", answer)
    assert (report.earned, report.mistakes) == (0, ["ByAutograd"])
    assert report.messages[0].startswith("`f` calls torch.autograd.grad: this exercise is to be ")
    assert run_checks(folder, "f", student("def f(x): return 2 * x")).earned == 1


def test_two_known_mistakes_at_once_are_named_as_two(write_checks, student):
    """Each in a result of its own."""
    mistakes = """
    class WrongSign(Mistake, exercise="f"):
        'A sign.'
        def f(x): return -2 * x, 3 * x

    class Doubled(Mistake, exercise="f"):
        'Twice.'
        def f(x): return 2 * x, 6 * x
    """
    folder = write_checks(TWO_RESULTS, mistakes=mistakes)
    report = run_checks(folder, "f", student("def f(x): return -2 * x, 6 * x"))
    assert report.mistakes == ["WrongSign", "Doubled"]
    assert "“wrong sign”" in report.to_text() and "“doubled”" in report.to_text()


def test_no_failure_is_explained_before_all_checks_are_decided(write_checks):
    body = """
    @points(1)
    def test_one(self, subject, case): self.compare(subject, case)

    @points(1)
    def test_two(self, subject, case): self.compare(subject, case)

    @points(1)
    def test_three(self, subject, case): self.compare(subject, case)

    def compare(self, subject, case):
        inputs = lambda case: (case.normal(case.size("length", 4)),)
        expect_agrees(subject, case, "f", inputs, lambda x: 2 * x, {"y": "length"})
    """

    class Noting(LocalSubject):
        def call(self, name, *args, **kwargs):
            asked.append("call")
            return super().call(name, *args, **kwargs)

        def together(self, one_module=False, explains=False):
            asked.append("explains" if explains else "decides")
            return super().together(one_module, explains)

    folder, asked = write_checks(body), []
    report = run_checks(folder, "f", Noting({"f": lambda x: 3 * x}))
    assert report.earned == 0 and "you return" in report.messages[0]
    assert asked[:4] == ["call"] * 3 + ["explains"]


def test_a_mistake_of_another_exercise_is_not_named(write_checks, student):
    body = """
    @points(1)
    def test_it(self, subject, case):
        expect_agrees(subject, case, "f", lambda case: (), lambda: 3, {"x": ""})
    """
    mistakes = """
    class Four(Mistake, exercise="{}"):
        'Four.'
        def f(): return 4
    """
    for exercise, named in (("f", ["Four"]), ("g", [])):
        folder = write_checks(body, mistakes=mistakes.format(exercise))
        assert run_checks(folder, "f", student("def f(): return 4")).mistakes == named


def test_a_blank_is_told_what_to_write(assignment, student):
    report = run_checks(assignment, "centre", student("def centre(x): raise NotImplementedError()"))
    assert report.earned == 0
    assert report.messages == ["`centre` is not written yet. Return the rows minus their mean."]


def test_an_assignment_lists_its_exercises_and_checks(assignment):
    exercises = load_checks(assignment)
    assert list(exercises) == ["centre", "twice"]
    about, test_class = exercises["twice"]
    assert (about.number, about.deeper, test_class) == ("7.2", True, "TestTwice")
    assert list_checks(assignment) == {
        "centre": [("rows are moved by their mean", 1), ("the mean is zero", 2)],
        "twice": [("two is four", 2)],
    }


def test_a_test_s_name_is_a_sentence():
    assert in_words("test_the_mean_is_zero") == "the mean is zero"


# Seeds


DRAWN = """
@points(1)
def test_drawn(self, subject, case):
    expect(False, str(case.integer(0, 10**9)))
@points(1)
def test_drawn_again(self, subject, case):
    expect(False, str(case.integer(0, 10**9)))
"""


def drawn(folder, student, **kwargs):
    return [r.message for r in run_checks(folder, "f", student(""), **kwargs).results]


def test_every_check_draws_other_numbers_and_always_the_same(write_checks, student):
    folder = write_checks(DRAWN)
    first = drawn(folder, student)
    assert len(set(first)) == 2 and drawn(folder, student) == first


def test_the_seed_changes_the_inputs(write_checks, student, monkeypatch):
    folder = write_checks(DRAWN)
    published = drawn(folder, student)
    assert drawn(folder, student, seed=PUBLISHED_SEED) == published
    monkeypatch.setenv("CLASSROOM_SEED", "secret")
    secret = drawn(folder, student)
    assert set(secret).isdisjoint(published)
    assert drawn(folder, student, seed="secret") == secret
    assert drawn(folder, student, seed=PUBLISHED_SEED) == published
    monkeypatch.setenv("CLASSROOM_SEED", "")
    assert drawn(folder, student) == published


# Noise


NOISY = """
import os, subprocess, sys, warnings
print("top", file=sys.stderr)
def centre(x):
    print("printed")
    print("to stderr", file=sys.stderr)
    os.write(2, b"to the file of stderr")
    os.write(1, b"to the file of stdout")
    warnings.warn("a warning")
    warnings.warn("a deprecation", DeprecationWarning)
    return x - x.mean(dim=0)
"""


def test_noise_costs_nothing_and_is_not_heard(assignment, student, capfd):
    subject = student(NOISY)
    capfd.readouterr()
    report = run_checks(assignment, "centre", subject)
    heard = capfd.readouterr()
    assert report.earned == 3
    assert heard.err == "" and heard.out == ""


def test_streams_of_the_system_that_are_closed_stay_closed(assignment, student):
    """As those of a program that runs without a terminal may be."""
    subject = student(NOISY.replace("    os.write", "    if False: os.write"))
    kept = os.dup(2)
    try:
        os.close(2)
        before = sorted(os.listdir("/proc/self/fd"))
        assert run_checks(assignment, "centre", subject).earned == 3
        assert sorted(os.listdir("/proc/self/fd")) == before
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    before = os.fstat(1), os.fstat(2), sorted(os.listdir("/proc/self/fd"))
    assert run_checks(assignment, "centre", subject).earned == 3
    assert (os.fstat(1), os.fstat(2), sorted(os.listdir("/proc/self/fd"))) == before


def test_a_logger_that_holds_on_to_stderr_is_not_heard(assignment, student, monkeypatch):
    class Stream:
        """As the stderr of a notebook's kernel: no file of the operating system below it."""

        written = ""

        def write(self, text):
            self.written += text

        def flush(self):
            pass

    stream = Stream()
    monkeypatch.setattr(sys, "stderr", stream)
    log = logging.getLogger("of a student")
    handler = logging.StreamHandler()
    monkeypatch.setattr(log, "handlers", [handler])
    subject = student(
        "import logging\n"
        "def centre(x):\n"
        "    logging.getLogger('of a student').warning('hm')\n"
        "    return x - x.mean(dim=0)"
    )
    assert run_checks(assignment, "centre", subject).earned == 3
    assert stream.written == ""
    log.warning("later")
    assert stream.written == "later\n" and sys.stderr is stream


def test_nothing_of_the_process_is_changed(assignment, student, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    monkeypatch.delitem(sys.modules, "checks", raising=False)

    def state():
        return os.getcwd(), dict(os.environ), list(sys.path), set(sys.modules), sys.stderr

    before = state()
    run_checks(assignment, "centre", student(UNMOVED))
    assert state() == before
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "this one")
    assert sorted(path.name for path in assignment.iterdir()) == [
        "averages.py",
        "checks.py",
        "mistakes.py",
        "variants.py",
    ]


# What lies around


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("conftest.py", "raise SystemExit('conftest')"),
        ("pytest.ini", "[pytest]\naddopts = --no-such-option\npython_functions = nothing_*"),
        ("pyproject.toml", "[tool.pytest.ini_options]\naddopts = '--no-such-option'"),
        ("tox.ini", "[pytest]\nminversion = 99"),
        ("sitecustomize.py", "raise SystemExit('sitecustomize')"),
        ("usercustomize.py", "raise SystemExit('usercustomize')"),
        ("__init__.py", "raise SystemExit('package')"),
        ("__pycache__", None),
    ],
)
def test_files_that_lie_around_are_not_used(assignment, student, name, content):
    if content is None:
        (assignment / name).mkdir()
    else:
        (assignment / name).write_text(content)
        (assignment.parent / name).write_text(content)
    report = run_checks(assignment, "centre", student(RIGHT))
    assert (report.earned, report.points) == (3, 3)


def test_no_folder_above_is_listed(assignment, student, monkeypatch):
    """A home with thousands of files would make every check slow."""
    listed = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path=".": listed.append(path) or scandir(path))
    run_checks(assignment, "centre", student(RIGHT))
    above = {str(folder.resolve()) for folder in assignment.parents}
    assert not above & {str(Path(path).resolve()) for path in listed}


@pytest.mark.parametrize("name", ["with space", "with [brackets]", "a::b", "größe", "$HOME"])
def test_a_folder_may_have_any_name(write_checks, student, tmp_path, name):
    folder = write_checks(CONTENT, tmp_path / name)
    assert run_checks(folder, "f", student("def f(): pass")).earned == 2


def test_a_folder_may_be_given_relative_to_here_or_through_a_link(
    write_checks, student, tmp_path, monkeypatch
):
    folder = write_checks(CONTENT, tmp_path / "real")
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    for path in (Path("real"), Path("link"), tmp_path / "link", Path("real/../link")):
        assert run_checks(path, "f", student("def f(): pass")).earned == 2
    assert set(sys.modules) == before


def test_two_assignments_in_one_process_do_not_mix(write_checks, student, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mistakes = 'class {}(Mistake, exercise="f"):\n    """Explained."""\n    def f(): return 7\n'
    for name in ("one", "two"):
        write_checks(
            f"""
            @points(2)
            def test_{name}(self, subject, case):
                expect_law(subject, case, "f", lambda case: (), lambda seen: {name!r})
            """,
            tmp_path / name,
            mistakes=mistakes.format(name.title()),
        )
    subject = student("def f(): return 7")
    for name in ("one", "two", "one"):
        for folder in (tmp_path / name, Path(name)):
            report = run_checks(folder, "f", subject)
            assert results(report) == [(name, 0, 2)]
            assert report.results[0].message.startswith(name)
            assert report.mistakes == [name.title()]


def test_a_module_of_somebody_s_called_checks_is_left_alone(assignment, student, monkeypatch):
    somebodys = type(sys)("checks")
    monkeypatch.setitem(sys.modules, "checks", somebodys)
    assert run_checks(assignment, "centre", student(RIGHT)).earned == 3
    assert sys.modules["checks"] is somebodys


def test_checks_that_were_edited_are_read_anew(write_checks, student, tmp_path):
    folder = write_checks(CONTENT)
    assert run_checks(folder, "f", student("def f(): pass")).points == 2
    write_checks(CONTENT.replace("points(2)", "points(5)"))
    os.utime(folder / "checks.py", ns=(1, 1))
    assert run_checks(folder, "f", student("def f(): pass")).points == 5


def test_checks_of_one_exercise_share_what_is_slow_to_find(write_checks, student):
    folder = write_checks(
        """
        @points(1)
        def test_first(self, subject, case):
            case.memory["found"] = 2
        @points(1)
        def test_second(self, subject, case):
            assert case.memory["found"] == 2
        """
    )
    assert run_checks(folder, "f", student("")).earned == 2
    assert run_checks(folder, "f", student("")).earned == 2


# A check that breaks


BREAKING = {
    "itself": 'raise KeyError("what")',
    "exits": "raise SystemExit(0)",
    "skips": "import pytest; pytest.skip('later')",
    "expects failure": "import pytest; pytest.xfail('known')",
    "oracle": "expect_agrees(subject, case, 'f', lambda c: (), lambda: 1 / 0, {'x': ''})",
    "inputs": "expect_agrees(subject, case, 'f', lambda c: 1 / 0, lambda: 1, {'x': ''})",
    "gradients": "expect_gradients(subject, case, 'f', lambda c: (), lambda: 2, [])",
    "hands over": "subject.call('f', object())",
}


@pytest.mark.parametrize("body", BREAKING.values(), ids=BREAKING)
def test_a_broken_check_fails_closed_and_blames_nobody(write_checks, student, body):
    folder = write_checks(
        f"""
        @points(3)
        def test_broken(self, subject, case):
            {body}
        @points(2)
        def test_sound(self, subject, case):
            subject.call("f")
        """
    )
    report = run_checks(folder, "f", student("def f(): return 2"))
    assert results(report) == [("broken", 0, 3), ("sound", 2, 2)]
    message = report.results[0].message
    assert message.startswith("This check itself broke (")
    assert message.endswith("It is not your fault: please tell your instructor.")


def test_a_check_knows_nothing_of_what_another_one_set(write_checks, student):
    folder = write_checks(
        """
        @points(1)
        def test_first(self, subject, case):
            self.found = 2
        @points(1)
        def test_second(self, subject, case):
            assert not hasattr(self, "found")
        """
    )
    assert run_checks(folder, "f", student("")).earned == 2


def test_a_check_that_asks_for_something_unknown_breaks(write_checks, student):
    folder = write_checks(CONTENT.replace("case", "case, tensor"))
    report = run_checks(folder, "f", student("def f(): return 2"))
    assert results(report) == [("it", 0, 2)] and "tensor" in report.results[0].message


def test_the_stop_button_stops(write_checks, student):
    folder = write_checks(
        """
        @points(3)
        def test_stopped(self, subject, case):
            raise KeyboardInterrupt
        """
    )
    with pytest.raises(KeyboardInterrupt):
        run_checks(folder, "f", student(""))


def test_mistakes_that_cannot_be_run_break_only_the_check(write_checks, student):
    body = """
    @points(3)
    def test_it(self, subject, case):
        expect_agrees(subject, case, "f", lambda case: (), lambda: 3, {"x": ""})
    """
    mistakes = 'class A(Mistake, exercise="f"):\n    """Wrong."""\n    f = 1 / 0\n'
    folder = write_checks(body, mistakes=mistakes)
    assert run_checks(folder, "f", student("def f(): return 3")).earned == 3
    report = run_checks(folder, "f", student("def f(): return 2"))
    assert "This check itself broke (BrokenCheck: ZeroDivisionError" in report.results[0].message


# Refusals


def test_an_unknown_exercise_is_refused(assignment, student):
    with pytest.raises(
        ValueError, match="no exercise is called 'center'; there are: centre, twice"
    ):
        run_checks(assignment, "center", student(RIGHT))


def test_a_notebook_without_its_checks_says_where_it_should_be(tmp_path, student):
    with pytest.raises(FileNotFoundError, match="there is no checks.py in .*: open the notebook"):
        run_checks(tmp_path, "centre", student(RIGHT))


@pytest.mark.parametrize(
    ("body", "before", "said"),
    [
        ("def test_it(self, subject, case): pass", "", "test_it needs @exercise on its class"),
        (
            CONTENT,
            "class TestOther:\n    @points(2)\n    def test_that(self): pass",
            "test_that needs",
        ),
        (CONTENT, "@points(2)\ndef test_outside(subject): pass", "test_outside needs @exercise"),
        (CONTENT, "import no_such_module", "cannot be read: .*no_such_module"),
        (CONTENT, "def broken(:", "cannot be read: .*SyntaxError"),
        ("x = 2", "", "holds no checks"),
        (
            CONTENT,
            "@exercise('f', number='1.1', title='T', asks='A.', difficulty=1, importance=1, "
            "minutes=1)\nclass TestTwin:\n    @points(1)\n    def test_that(self): pass",
            "two classes hold the checks of 'f'",
        ),
    ],
    ids=["points", "exercise", "class", "import", "syntax", "empty", "twins"],
)
def test_checks_that_are_not_whole_are_refused(write_checks, body, before, said):
    folder = write_checks(body, before=before)
    with pytest.raises(ValueError, match=f"(?s)checks.py.*{said}"):
        load_checks(folder)


def test_checks_compute_as_if_a_notebook_had_set_nothing_and_its_code_as_it_has_set(
    write_checks, student
):
    folder = write_checks(
        """
        @points(2)
        def test_it(self, subject, case):
            def lent(x):
                return x, str(torch.get_default_dtype()), torch.is_grad_enabled()

            assert subject.call("f", subject.lend(lent)) == [True, False, "torch.float32", True]
            assert torch.get_default_dtype() == torch.float32 and torch.is_grad_enabled()
            assert not torch.are_deterministic_algorithms_enabled()
            np.sqrt(np.float64(-1))
        """,
        before="import numpy as np\nimport torch",
    )
    settings = (torch.get_default_dtype(), torch.is_grad_enabled(), np.geterr())
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.use_deterministic_algorithms(True)
        np.seterr(all="raise")
        theirs = (
            "import torch\n"
            "def f(lent):\n"
            "    own = [torch.get_default_dtype() == torch.float64, torch.is_grad_enabled()]\n"
            "    return own + list(lent(3)[1:])"
        )
        report = run_checks(folder, "f", student(theirs), "seed")
        assert report.earned == 2, report.to_text()
        assert torch.get_default_dtype() == torch.float64 and not torch.is_grad_enabled()
        assert np.geterr()["invalid"] == "raise"
    finally:
        torch.set_default_dtype(settings[0])
        torch.set_grad_enabled(settings[1])
        torch.use_deterministic_algorithms(False)
        np.seterr(**settings[2])
