"""An author's typical errors: each is stopped by a release, in a sentence, before it writes."""

import re
import shutil

import pytest

from classroom.__main__ import main
from classroom.author.guard import require_sound
from classroom.course import assignments

LAW = 'return None if seen.mean(dim=0).abs().max() < 1e-9 else "the mean is not zero"'
CHECK = """@points(2)
    def test_the_mean_is_zero(self, subject, case):
        def law(seen, x):
            return None"""
VARIANT_OF_TWICE = '''

class Quartered(Variant, exercise="twice"):
    """A half of four times the number."""

    def twice(number):
        return number * 4 / 2
'''
MISTAKE_IN_TWICE = '''

class Thrice(Mistake, exercise="twice"):
    """The number is added once too often."""

    def twice(number):
        return number + number + number
'''

# What the author did: the file, the text that was there, the text that is there now; and what
# `classroom release` says.
ERRORS = {
    "a header is missing": (
        *("averages.py", "# {{exercise twice}}\n", "# Twice\n"),
        "averages.py: no line {{exercise twice}} heads its exercise",
    ),
    "a law returns None": (
        *("checks.py", LAW, "return None"),
        "checks.py: centre: no mistake in mistakes.py fails the check “the mean is zero” (2 points)"
        ": add one that does, and see whether the check can fail at all; a law that returns nothing"
        " accepts everything",
    ),
    "a law forgets to return": (
        *("checks.py", LAW, LAW.removeprefix("return ")),
        "checks.py: centre: no mistake in mistakes.py fails the check “the mean is zero” (2 points)"
        ": add one that does, and see whether the check can fail at all; a law that returns nothing"
        " accepts everything",
    ),
    "a law that needs another check returns None": (
        *("checks.py", f"{CHECK} if seen.mean(dim=0).abs().max() < 1e-9 else"),
        CHECK.replace("(2)", '(2, only_with="test_rows_are_moved_by_their_mean")') + " or None and",
        "checks.py: centre: no mistake in mistakes.py fails the check “the mean is zero” (2 points)"
        ": add one that does, and see whether the check can fail at all; a law that returns nothing"
        " accepts everything",
    ),
    "the words for the axes are exchanged": (
        *("checks.py", '"rows width"', '"width rows"'),
        "checks.py: centre: 'width rows' are no words for the axes of centred, whose shape is "
        "(5, 3)",
    ),
    "a word for an axis is unknown to students": (
        *("checks.py", '"rows width"', '"rows depth"'),
        "checks.py: centre: the word 'depth' for an axis is nowhere in averages.py, where students "
        "read what it is",
    ),
    "two sizes are equal": (
        *("checks.py", 'case.size("width", 3)', 'case.size("width", 5)'),
        "checks.py, line 10: rows and width are both of size 5: a mistake that exchanges two axes "
        "would go unseen",
    ),
    "the solution imports the library": (
        *("averages.py", "    middle = x", "    import groundup.core\n\n    middle = x"),
        "averages.py: the solution of centre imports groundup.core, which is not available during "
        "grading",
    ),
    "a number is used twice": (
        *("checks.py", 'number="7.2"', 'number="7.1"'),
        "checks.py: centre and twice are both number 7.1",
    ),
    "a check has the name of another": (
        *("checks.py", "test_the_mean_is_zero", "test_rows_are_moved_by_their_mean"),
        "checks.py, line 23: TestCentre has 2 checks called test_rows_are_moved_by_their_mean",
    ),
    "a check is not called a test": (
        *("checks.py", "test_the_mean_is_zero", "the_mean_is_zero"),
        "checks.py, line 33: the_mean_is_zero has points, and must be called test_…",
    ),
    "the solution fails": (
        *("averages.py", "return number + number", "return number + number + 1"),
        "averages.py: the solution of twice fails the check “two is four”: double is ",
    ),
    "the solution defines another name": (
        *("averages.py", "def twice(", "def double("),
        "averages.py: the solution of twice fails the check “two is four”: `twice` is not defined: "
        "its cell has not run to the end (run it, and look for an error below it)",
    ),
    "a law raises an error": (
        *("checks.py", LAW, f"seen = seen.means\n            {LAW}"),
        "averages.py: the solution of centre fails the check “the mean is zero”: `centre` returned "
        "a tensor of shape (5, 3), which has the wrong form",
    ),
    "a check depends on the seed": (
        *("checks.py", LAW, 'return None if abs(x[0, 0] - FIRST) < 1e-6 else "moved"'),
        "averages.py: the solution of centre fails the check “the mean is zero” with the inputs of "
        "another seed than the published one: moved",
    ),
    "inputs come from no seed": (
        *("checks.py", "case.normal(num_rows, width)", "torch.randn(num_rows, width)"),
        "checks.py, line 11: torch.randn draws other numbers each time: use case.normal, "
        "case.uniform or case.integer, or generator=case.generator",
    ),
    "a mistake passes": (
        *("mistakes.py", "number * number", "number + number"),
        "mistakes.py: Squared passes all checks of twice",
    ),
    "a mistake changes a text that is not there": (
        "mistakes.py",
        MISTAKE_IN_TWICE,
        MISTAKE_IN_TWICE.replace(
            "    def twice(number):\n        return number + number + number\n",
            '    swaps = {"number - number": "0"}\n',
        ),
        "mistakes.py, line 44: Thrice replaces 'number - number', which occurs 0 times, not 1",
    ),
    "a mistake is not explained": (
        *("mistakes.py", '    """The number is squared."""\n', ""),
        "mistakes.py, line 23: Squared must name its exercise and have a docstring that explains "
        "it",
    ),
    "there are too few mistakes": (
        *("mistakes.py", MISTAKE_IN_TWICE, ""),
        "mistakes.py: twice needs at least 3, got 2",
    ),
    "there are too few variants": (
        *("variants.py", VARIANT_OF_TWICE, ""),
        "variants.py: twice needs at least 3, got 2",
    ),
    "a variant fails": (
        *("variants.py", "return 2 * number", "return 2 + number"),
        "variants.py: TimesTwo fails the check “two is four”: double is ",
    ),
    "the cell of a solution is not marked": (
        *("averages.py", '# %% exercise="twice"', "# %%"),
        'averages.py: no cell begins with # %% exercise="twice"',
    ),
    "the cell of a solution is there twice": (
        *("averages.py", '# %% exercise="twice"', '# %% exercise="centre"'),
        "averages.py: two cells are the solution of 'centre'",
    ),
    "the end of a solution is missing": (
        *(
            "averages.py",
            "    return x - middle\n    ### END SOLUTION\n",
            "    return x - middle\n",
        ),
        "averages.py: the solution of centre needs a line ### BEGIN SOLUTION and below it a line "
        "### END SOLUTION: what is between them is removed",
    ),
    "a file to submit is missing": (
        *("checks.py", "    deeper=True,\n", '    files=("model.pt",),\n'),
        "checks.py: twice: students submit model.pt, which handed_in/ does not hold",
    ),
    "a hint is empty": (
        *(
            "averages.py",
            "# {{exercise twice}}\n",
            "# {{exercise twice}}\n#\n" + "# <details>"
            "<summary>Hint: a sum</summary>\n#\n# </details>\n",
        ),
        "averages.py: the hint “Hint: a sum” is empty",
    ),
    "a difficulty is out of range": (
        *("checks.py", "difficulty=2", "difficulty=7"),
        "checks.py: centre: difficulty must be from 1 to 5, got 7",
    ),
    "an oracle is not marked": (
        *("checks.py", "@oracle\ndef doubled", "def doubled"),
        "checks.py: twice: doubled is an oracle: mark it with @oracle",
    ),
    "a demonstration is no Python": (
        *("averages.py", 'print("one is done")', 'print("one is done"'),
        "averages.py, line 27: '(' was never closed",
    ),
    "the checks are no Python": (
        *("checks.py", "return n + n", "return n +"),
        "checks.py, line 42: invalid syntax",
    ),
    "the mistakes are no Python": (
        *("mistakes.py", "return number * number", "return number *"),
        "mistakes.py, line 27: invalid syntax",
    ),
    "the variants are no Python": (
        *("variants.py", "return 2 * number", "return 2 *"),
        "variants.py, line 33: invalid syntax",
    ),
}


def contents(root):
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("error", ERRORS)
def test_a_typical_error_of_an_author_is_said_in_a_sentence_before_anything_is_written(
    course, assignment, capsys, error
):
    name, old, new, said = ERRORS[error]
    text = (assignment / name).read_text()
    assert text.count(old) == 1, "what the author changes is there once"
    if "FIRST" in new:  # what the law sees with the published seed
        new = new.replace("FIRST", first_number(course))
    (assignment / name).write_text(text.replace(old, new))
    before = contents(course)
    assert main(["release", "--root", str(course)]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert (
        re.sub(r"is -?\d+, expected -?\d+$", "is ", sentence)
        == f"classroom release: 07_averages: {said}"
    )
    assert contents(course) == before


def first_number(course):
    """Return the first input of the check of the mean, as the published seed draws it."""
    from classroom.course import PUBLISHED_SEED
    from classroom.exercise.cases import Case

    case = Case(f"{PUBLISHED_SEED}/centre/test_the_mean_is_zero")
    return repr(float(case.normal(5, 3)[0, 0]))


def test_problems_that_can_be_read_are_listed_together(course, assignment):
    for name, old, new, _ in (
        ERRORS["a difficulty is out of range"],
        ERRORS["two sizes are equal"],
    ):
        text = (assignment / name).read_text()
        (assignment / name).write_text(text.replace(old, new))
    with pytest.raises(ValueError) as raised:
        require_sound(assignment)
    assert len(str(raised.value).splitlines()) == 2


def test_an_error_in_one_assignment_stops_the_release_of_all(course, assignment, capsys):
    other = shutil.copytree(assignment, assignment.with_name("08_averages"))
    (other / "checks.py").write_text((other / "checks.py").read_text().replace('"7.', '"8.'))
    (other / "variants.py").write_text("")
    assert main(["release", "--root", str(course)]) == 2
    assert not (course / "exercises").exists()
    assert not list(course.rglob("*.ipynb"))


def test_the_course_keeps_to_the_rules_that_can_be_read(request):
    for folder in assignments(request.config.rootpath / "solutions"):
        require_sound(folder)
