import textwrap

import pytest
import torch

from classroom.answers import load_answers


def write(tmp_path, source):
    path = tmp_path / "mistakes.py"
    path.write_text(textwrap.dedent(source))
    return path


# By hand


def test_an_answer_is_the_cell_that_a_student_would_have_written(tmp_path):
    path = write(
        tmp_path,
        '''\
        """The file."""

        import math

        from classroom.answers import Mistake

        FACTOR = 3

        class NoScale(Mistake, exercise="attention"):
            """The scores are never divided
            by the root."""

            # a comment of the student's
            def attention(x):
                return x * FACTOR

            def helper(x):
                """Inner docstring."""
                return math.sqrt(attention(x))


        class TwiceScaled(Mistake, exercise="attention"):
            """Twice."""
            attention = len
        ''',
    )
    first, second = load_answers(path)
    assert (first.name, first.exercise, first.title) == ("NoScale", "attention", "no scale")
    assert first.explanation == "The scores are never divided by the root."
    assert first.cell == (
        "# a comment of the student's\n"
        "def attention(x):\n    return x * FACTOR\n\n"
        'def helper(x):\n    """Inner docstring."""\n    return math.sqrt(attention(x))\n'
    )
    assert first.namespace["attention"](2) == 6 and first.namespace["helper"](12) == 6
    assert second.title == "twice scaled" and second.cell == "attention = len\n"


def test_the_answers_of_an_assignment_come_in_order(assignment):
    answers = load_answers(assignment / "mistakes.py")
    assert [answer.name for answer in answers] == ["NotMoved", "MeanOfEachRow", "Squared"]
    assert answers[1].explanation.endswith("it belongs over the rows (dim=0).")
    (variant,) = load_answers(assignment / "variants.py")
    moved = variant.namespace["centre"](torch.tensor([[2.0, 3.0], [4.0, 7.0]]))
    assert moved.tolist() == [[-1, -2], [1, 2]]


# Laws


def test_no_file_means_no_answers(tmp_path):
    assert load_answers(tmp_path / "variants.py") == []
    assert load_answers(write(tmp_path, "x = 2")) == []


def test_reading_answers_runs_nothing(tmp_path):
    source = 'raise SystemExit\nclass A(Mistake, exercise="f"):\n    """Wrong."""\n    f = 1 / 0\n'
    (answer,) = load_answers(write(tmp_path, source))
    assert answer.cell == "f = 1 / 0\n"


def test_answers_do_not_share_what_they_define(tmp_path):
    source = '''\
        from classroom.answers import Mistake
        kept = []
        class A(Mistake, exercise="f"):
            """One."""
            kept.append(2)
        class B(Mistake, exercise="f"):
            """Two."""
            kept.append(3)
        '''
    a, b = load_answers(write(tmp_path, source))
    assert a.namespace["kept"] == [2] and b.namespace["kept"] == [3]
    assert "f" not in a.namespace


def test_a_crash_in_an_answer_shows_its_line(tmp_path):
    source = (
        'class A(Mistake, exercise="f"):\n    """Wrong."""\n    def f():\n        return 1 / 0\n'
    )
    (answer,) = load_answers(write(tmp_path, source))
    with pytest.raises(ZeroDivisionError) as raised:
        answer.namespace["f"]()
    assert "return 1 / 0" in str(raised.getrepr(style="native"))


def test_an_answer_may_come_with_other_files_than_the_right_ones(tmp_path):
    source = """\
        from classroom.answers import Mistake, Variant

        def halved(files):
            return {name: data[: len(data) // 2] for name, data in files.items()}

        def none(files):
            return {}

        class Whole(Mistake, exercise="f"):
            'Wrong.'
            pass

        class Half(Mistake, exercise="f", files=halved):
            'Cut.'
            pass

        class Forgotten(Variant, exercise="f", files=none):
            'Not there.'
            pass
        """
    whole, half, forgotten = load_answers(write(tmp_path, source))
    right = {"model": b"1234", "config": b"56"}
    assert whole.handed_in(right) == right
    assert half.handed_in(right) == {"model": b"12", "config": b"5"}
    assert forgotten.handed_in(right) == {}
    namespace = {}
    exec((tmp_path / "mistakes.py").read_text(), namespace)  # Python can read the file, too
    assert namespace["Half"].__mro__[1].__name__ == "Mistake"


# Refusals


@pytest.mark.parametrize(
    "head",
    [
        'class A(Mistake):\n    """Wrong."""',
        'class A(Mistake, exercise="f"):\n    pass',
        'class A(Mistake, exercise=f):\n    """Wrong."""',
        'class A(Mistake, about="f"):\n    """Wrong."""',
        'class A(Mistake, exercise=3):\n    """Wrong."""',
    ],
)
def test_an_answer_says_what_it_answers_and_what_is_special_about_it(tmp_path, head):
    path = write(tmp_path, f"x = 2\n{head}\n    def f(): pass\n")
    with pytest.raises(ValueError, match="mistakes.py, line 2: A must name its exercise and say"):
        load_answers(path)


def test_a_file_that_is_no_python_is_refused_by_its_line(tmp_path):
    with pytest.raises(ValueError, match="mistakes.py, line 2: invalid syntax"):
        load_answers(write(tmp_path, "x = 2\nclass class\n"))


def test_what_a_cell_changes_is_not_seen_by_the_next_reader(tmp_path):
    path = tmp_path / "mistakes.py"
    path.write_text(
        "from classroom.answers import Mistake\n\n\n"
        "class Counts(Mistake, exercise='f'):\n"
        '    """It counts."""\n\n'
        "    calls = []\n\n"
        "    def f():\n"
        "        calls.append(1)\n"
        "        return len(calls)\n"
    )
    for _ in range(2):
        (counts,) = load_answers(path)
        assert counts.namespace["f"]() == 1


def test_a_file_that_changed_is_read_again(tmp_path):
    path = tmp_path / "mistakes.py"
    for name in ("First", "Second"):
        path.write_text(
            "from classroom.answers import Mistake\n\n\n"
            f"class {name}(Mistake, exercise='f'):\n"
            '    """It is wrong."""\n\n'
            "    def f():\n        pass\n"
        )
        assert [answer.name for answer in load_answers(path)] == [name]
