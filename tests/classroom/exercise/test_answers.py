import textwrap

import pytest
import torch

from classroom.exercise.answers import Answer, load_answers, load_correct


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

        from classroom.exercise.answers import Mistake

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


def test_a_title_has_a_space_before_each_word_of_the_name_be_it_one_letter():
    names = "WithoutAMask", "RootOnXAlone", "KBeyondThree", "TooSmallForFloat16"
    assert [Answer(name, "f", "", "").title for name in names] == [
        "without a mask",
        "root on x alone",
        "k beyond three",
        "too small for float16",
    ]


def test_the_answers_of_an_assignment_come_in_order(assignment):
    answers = load_answers(assignment / "mistakes.py")
    assert [answer.name for answer in answers] == [
        "NotMoved",
        "MeanOfEachRow",
        "Squared",
        "SumOfTheRows",
        "NotDoubled",
        "Thrice",
    ]
    assert answers[1].explanation.endswith("it belongs over the rows (dim=0).")
    variant, *_ = load_answers(assignment / "variants.py")
    moved = variant.namespace["centre"](torch.tensor([[2.0, 3.0], [4.0, 7.0]]))
    assert moved.tolist() == [[-1, -2], [1, 2]]


LOOKUP = """\
import torch

from classroom.exercise.answers import Correct, Mistake


class Lookup(Correct, exercise="lookup"):
    def scores_of(query, key):
        return query @ key.mT

    def lookup(query, key, value, temperature):
        scores = scores_of(query, key)
        if temperature == 0:
            return value[scores.argmax(dim=-1)]
        return (scores / temperature).softmax(dim=-1) @ value


"""


@pytest.mark.parametrize(
    ("row", "there", "gone"),
    [
        ('"scores / temp", "scores * temp"', "(scores * temperature).softmax", "/ temp"),
        ('"dim=-1", "dim=-2", times=2', "softmax(dim=-2)", "dim=-1"),
        ('"(scores / …", "scores"', "\n    return scores\n", "softmax"),
        ('"return value…@ value", "return 2"', "temperature == 0:\n        return 2\n", "softmax"),
        ('"if temp…\\n    return …", ""', "key)\n    return (scores", "argmax"),
        (
            '"return (…", "a = 1\\nif a:\\n    return 2"',
            "\n    if a:\n        return 2\n",
            "softmax",
        ),
        (
            '"return (…",\n    """\n    a = 1\n    if a:\n        return 2\n    """,\n',
            "\n    a = 1\n    if a:\n        return 2\n",
            "softmax",
        ),
        ('"query @", "key @").but("key.mT", "query.mT"', "key @ query.mT", "query @ key"),
    ],
)
def test_a_row_writes_one_text_where_the_correct_cell_has_another(tmp_path, row, there, gone):
    source = LOOKUP + f'Wrong = Lookup.but({row})\n"""It is\nwrong."""\n'
    (wrong,) = load_answers(write(tmp_path, source))
    assert (wrong.name, wrong.exercise, wrong.explanation) == ("Wrong", "lookup", "It is wrong.")
    assert there in wrong.cell and gone not in wrong.cell
    assert "lookup" in wrong.namespace
    exec(source, {"__name__": "mistakes"})  # Python can read the file, too


def test_a_class_writes_out_the_definitions_that_differ(tmp_path):
    source = '''
class AlwaysCold(Lookup):
    """Wrong."""

    swaps = {"query @": "-query @"}

    def lookup(query, key, value, temperature):
        return value[scores_of(query, key).argmax(dim=-1)]
'''
    (cold,) = load_answers(write(tmp_path, LOOKUP + source))
    assert cold.cell == (
        "def scores_of(query, key):\n    return -query @ key.mT\n\n"
        "def lookup(query, key, value, temperature):\n"
        "    return value[scores_of(query, key).argmax(dim=-1)]\n"
    )


def test_a_method_takes_the_place_of_the_one_of_its_name(tmp_path):
    source = '''
from classroom.exercise.answers import Correct

class Layer(Correct, exercise="Layer"):
    size = len
    class Layer(dict):
        @property
        def width(self):
            size = 2
            return size

        def forward(self, x):
            return x + self.width

class Doubled(Layer):
    """Wrong."""
    @property
    def width(self):
        if True:
            return 8
    size = max

class Bare(Layer):
    """It holds nothing."""
    class Layer(list):
        pass
'''
    doubled, bare = load_answers(write(tmp_path, source))
    assert doubled.namespace["Layer"]({1: 2}).forward(3) == 11
    assert doubled.cell.count("@property") == 1 and doubled.cell.startswith("size = max\n")
    assert bare.cell == "size = len\nclass Layer(list):\n    pass\n"


def test_a_mistake_may_start_from_another(tmp_path):
    source = '''
Hot = Lookup.but("scores / temp", "scores * temp")
"""One."""
HotAndWrong = Hot.but("dim=-1", "dim=-2", times=2)
"""Two."""
'''
    hot, both = load_answers(write(tmp_path, LOOKUP + source))
    assert both.cell == hot.cell.replace("dim=-1", "dim=-2")


NOTEBOOK = '''\
# %% exercise="twice_more"
check("twice")

# %% exercise="twice"
def twice(number: int) -> int:
    """Double it."""
    ### BEGIN SOLUTION
    return number + number
    ### END SOLUTION


# %% [markdown]
# The end.
'''


def test_a_correct_cell_may_be_the_solution_itself(tmp_path):
    folder = tmp_path / "07_averages"
    folder.mkdir()
    (folder / "averages.py").write_text(NOTEBOOK)
    path = write(
        folder,
        '''
        from classroom.exercise.answers import Correct, Mistake

        class Twice(Correct, exercise="twice"): ...

        Thrice = Twice.but("number + number", "3 * number")
        """Three times."""

        class Squared(Mistake, exercise="twice"):
            """The number is squared."""

            swaps = {"number + number": "number**2"}
        ''',
    )
    thrice, squared = load_answers(path)
    assert [a.namespace["twice"](5) for a in (thrice, squared)] == [15, 25]
    (correct,) = load_correct(path)
    assert correct.cell == 'def twice(number: int) -> int:\n    """Double it."""\n    ' + (
        "return number + number\n"
    )
    (folder / "averages.py").write_text(NOTEBOOK.replace("number + number", "2 * number"))
    with pytest.raises(
        ValueError, match=r"Thrice replaces 'number \+ number', which occurs 0 times"
    ):
        load_answers(path)


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
        from classroom.exercise.answers import Mistake
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
        from classroom.exercise.answers import Mistake, Variant

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
    assert whole.submitted(right) == right
    assert half.submitted(right) == {"model": b"12", "config": b"5"}
    assert forgotten.submitted(right) == {}
    namespace = {}
    exec((tmp_path / "mistakes.py").read_text(), namespace)  # Python can read the file, too
    assert namespace["Half"].__mro__[1].__name__ == "Mistake"


def test_a_row_may_come_with_other_files_than_the_right_ones(tmp_path):
    source = '''
        from classroom.exercise.answers import Correct

        def none(files):
            return {}

        class F(Correct, exercise="f"):
            def f():
                pass

        Forgotten = F.but(files=none)
        """Not there."""
        '''
    (forgotten,) = load_answers(write(tmp_path, source))
    assert forgotten.submitted({"model": b"12"}) == {}
    assert forgotten.cell == "def f():\n    pass\n"


# Refusals


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            'W = Lookup.but("scores * 2", "")',
            "W replaces 'scores \\* 2', which occurs 0 times, not 1",
        ),
        ('W = Lookup.but("dim=-1", "dim=-2")', "W replaces 'dim=-1', which occurs 2 times, not 1"),
        ('W = Lookup.but("return …", "")', "W replaces 'return …', which occurs 3 times, not 1"),
        ('W = Lookup.but("dim", "a", times=3)', "W replaces 'dim', which occurs 2 times, not 3"),
        (
            'W = Lookup.but("scores /", "scores  /")',
            "W is the same as the cell that it should change",
        ),
        ('W = Lookup.but("(scores /", "scores /")', r"W is not Python: unmatched '\)' in 'return "),
        ('W = Lookup.but("scores /")', "W must have an old and a new text"),
        ("W = Lookup.but()", "W must have an old and a new text"),
        ('W = Lookpu.but("a", "b")', "W derives from Lookpu, which is not defined above it"),
        (
            'class W(Lookup):\n    "Wrong."\n    def lokup(): pass',
            "W defines 'lokup', which its cell defines 0 times, not once",
        ),
        (
            'class W(Lookup):\n    "Wrong."\n    ...',
            "W is the same as the cell that it should change",
        ),
        (
            'class W(Correct, exercise="other"): ...',
            "W changes the solution of other, which is not",
        ),
    ],
)
def test_a_change_that_cannot_be_made_is_refused_by_its_line_and_name(tmp_path, row, message):
    path = write(tmp_path, LOOKUP + row + '\n"""Wrong."""\n')
    line = LOOKUP.count("\n") + 1
    with pytest.raises(ValueError, match=f"^mistakes.py, line {line}: {message}"):
        load_answers(path)


def test_a_row_without_a_sentence_is_refused(tmp_path):
    path = write(tmp_path, LOOKUP + 'W = Lookup.but("scores /", "scores *")\n')
    with pytest.raises(ValueError, match="line 17: W must name its exercise and have a docstring"):
        load_answers(path)


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
    with pytest.raises(ValueError, match="mistakes.py, line 2: A must name its exercise and have"):
        load_answers(path)


def test_a_file_that_is_no_python_is_refused_by_its_line(tmp_path):
    with pytest.raises(ValueError, match="mistakes.py, line 2: invalid syntax"):
        load_answers(write(tmp_path, "x = 2\nclass class\n"))


def test_what_a_cell_changes_is_not_seen_by_the_next_reader(tmp_path):
    path = tmp_path / "mistakes.py"
    path.write_text(
        "from classroom.exercise.answers import Mistake\n\n\n"
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
            "from classroom.exercise.answers import Mistake\n\n\n"
            f"class {name}(Mistake, exercise='f'):\n"
            '    """It is wrong."""\n\n'
            "    def f():\n        pass\n"
        )
        assert [answer.name for answer in load_answers(path)] == [name]
