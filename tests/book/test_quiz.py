import pytest
from bs4 import BeautifulSoup
from quiz import Option, read_options

LINES = ["- [ ] Zeros", "  > The weights sum to 1.", "- [x] The mean", "  > All", "  > equal."]

PAGE = """# Page

~~~{quiz} What is `softmax` of equal $s_i$?
:name: quiz-equal
- [ ] Zeros
  > The weights sum to 1.
- [x] The same weight for *every* key
  > All scores are equal, and so are their exponentials.
~~~
"""


def test_options_are_read_with_their_explanations():
    assert read_options(LINES) == [
        Option("Zeros", False, ["The weights sum to 1."]),
        Option("The mean", True, ["All", "equal."]),
    ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["Zeros"], "a quiz holds options .* got 'Zeros'"),
        (["> Because."], "a quiz holds options .* got '> Because.'"),
        ([*LINES, "- [ ] Ones"], "every option of a quiz needs an explanation, none for 'Ones'"),
        (LINES[:2], "got 1 options with 0 right"),
        (LINES[2:], "got 1 options with 1 right"),
        (LINES + LINES[2:], "got 3 options with 2 right"),
    ],
)
def test_a_quiz_that_cannot_be_answered_is_refused(lines, message):
    with pytest.raises(ValueError, match=message):
        read_options(lines)


@pytest.mark.slow
def test_a_quiz_becomes_a_group_of_radio_buttons_with_labels(small_book):
    book = small_book("quiz")
    book.write("page.md", PAGE)
    built = book.build()
    assert built.returncode == 0, built.stderr

    quiz = BeautifulSoup(book.html("page"), "html.parser").find("fieldset", id="quiz-equal")
    assert "What is" in quiz.legend.get_text() and quiz.legend.find("code") is not None
    buttons = quiz.find_all("input", type="radio")
    labels = quiz.find_all("label")
    assert [button["id"] for button in buttons] == [label["for"] for label in labels]
    assert {button["name"] for button in buttons} == {"quiz-equal"}
    assert labels[1].find("em") is not None

    verdicts = [why.find(class_="quiz-verdict").get_text() for why in quiz.select("[data-option]")]
    assert verdicts == ["Not quite.", "Right."]
    assert "exponentials" in quiz.find("details").get_text()
    assert quiz.find(attrs={"role": "status"}).get_text() == ""


@pytest.mark.slow
def test_a_quiz_without_a_right_answer_breaks_the_build_with_one_sentence(small_book):
    book = small_book("quiz")
    book.write("page.md", PAGE.replace("[x]", "[ ]"))
    built = book.build()
    assert built.returncode != 0
    assert "a quiz needs at least two options, exactly one of them right" in built.stderr
    assert "Traceback" not in built.stderr
