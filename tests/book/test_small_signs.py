import small_signs
from docutils import nodes
from docutils.utils import new_document
from small_signs import as_in_print


def paragraph(*parts):
    document = new_document("page")
    document += nodes.paragraph("", "", *parts)
    small_signs.mend(None, document, "page")
    return document[0]


def test_a_number_stays_with_its_unit():
    text = as_in_print("95 % of 16 h 25 or of 2 h 30 min, 5 hats and 3 minutes", False)
    assert text == "95\xa0% of 16\xa0h\xa025 or of 2\xa0h\xa030\xa0min, 5 hats and 3 minutes"


def test_what_a_cell_computed_is_written_as_in_the_text_around_it():
    assert as_in_print("-0.4", True) == "−0.4"
    assert as_in_print("97%", True) == "97\xa0%"
    assert as_in_print("a-b", True) == "a-b"
    assert as_in_print("-0.4 and 97%", False) == "-0.4 and 97%"


def test_computed_numbers_are_known_by_the_class_that_glue_gives_them():
    number = nodes.inline("", "", nodes.Text("-3"), classes=["pasted-text"])
    assert paragraph(nodes.Text("From "), number).astext() == "From −3"


def test_code_stays_as_it_is():
    code = nodes.literal("", "", nodes.Text("x = 95 % 7"))
    assert paragraph(code).astext() == "x = 95 % 7"


def test_a_formula_is_tied_to_the_signs_behind_it():
    math = [nodes.math("", "x"), nodes.math("", "y"), nodes.math("", "z")]
    made = paragraph(math[0], nodes.Text("), or "), math[1], nodes.Text(" and "), math[2])
    kinds = [(type(child).__name__, child.astext()) for child in made]
    assert kinds == [
        ("inline", "x),"),
        ("Text", " or "),
        ("math", "y"),
        ("Text", " and "),
        ("math", "z"),
    ]
    assert made[0]["classes"] == ["tied"]


def test_a_formula_at_the_end_of_a_sentence_keeps_its_full_stop():
    (tied,) = paragraph(nodes.math("", "x"), nodes.Text("."))
    assert [type(child).__name__ for child in tied] == ["math", "Text"]


def test_short_code_is_not_broken_and_long_code_may_be():
    short, long = nodes.literal("", "num_heads"), nodes.literal("", "a_name_of_more_than_20")
    paragraph(short, nodes.Text(" "), long)
    assert (short["classes"], long["classes"]) == (["tied"], [])


def test_of_two_equal_texts_the_one_behind_the_formula_moves():
    parts = [nodes.Text("."), nodes.emphasis("", " So "), nodes.math("", "v"), nodes.Text(".")]
    assert [child.astext() for child in paragraph(*parts)] == [".", " So ", "v."]


def test_no_line_breaks_at_the_hyphen_of_a_letter_or_within_a_word_of_a_heading():
    prose = paragraph(nodes.Text("Use top-k, not x-axis or self-attention."))
    assert [tied.astext() for tied in prose.findall(nodes.inline)] == ["top-k", "x-axis"]
    document = new_document("page")
    document += nodes.title("", "", nodes.Text("Multi-head attention"))
    small_signs.mend(None, document, "page")
    (tied,) = document.findall(nodes.inline)
    assert (tied.astext(), tied["classes"]) == ("Multi-head", ["tied"])
    assert document.astext() == "Multi-head attention"
