from xml.etree import ElementTree

from classroom.exercise.report import CheckResult, Report
from classroom.grader.class_report import NamedMistake, summarise, to_html, to_svg, to_text
from classroom.grader.verdicts import Verdict

KNOWN = {
    ("centre", "NotMoved"): ("not moved", "The rows are returned as they came."),
    ("centre", "Squared"): ("squared <b>", "The number is squared."),
}


def verdict(student, *results, problem=""):
    reports = (
        Report("centre", "7.1 Centre", tuple(results)),
        Report("twice", "7.2 Twice", (CheckResult("two is four", 2, 2),)),
    )
    return Verdict(assignment="a", student=student, key="k", reports=reports, problem=problem)


def wrong(*mistakes):
    return CheckResult("moved", 3, 0, "It is off.", mistakes)


RIGHT = CheckResult("moved", 3, 3)
CLASS = [
    verdict("ada", RIGHT),
    verdict("bo", wrong("Squared")),
    verdict("cy", wrong("NotMoved"), wrong("NotMoved")),
    verdict("di", wrong("NotMoved")),
    verdict("el", wrong("NotMoved", "Squared")),
    verdict("unreadable", wrong(), problem="it is damaged"),
]


def test_a_mistake_counts_once_for_a_student_and_only_where_it_is_certain():
    centre, twice = summarise([each for each in CLASS if each.student != "cy"], KNOWN)
    assert centre.mistakes == (
        NamedMistake("not moved", "The rows are returned as they came.", 1),
        NamedMistake("squared <b>", "The number is squared.", 1),
    )
    (again,) = summarise([CLASS[2]], KNOWN)[0].mistakes
    assert again.count == 1
    assert (centre.points, centre.counts, centre.mean) == (3, (3, 0, 0, 1), 0.75)
    assert (twice.counts, twice.mean, twice.mistakes) == ((0, 0, 4), 2, ())


def test_what_could_not_be_read_says_nothing_of_an_exercise():
    assert summarise(CLASS[-1:], KNOWN) == []
    assert to_text([]) == "no graded submission could be read"


def test_a_mistake_that_is_not_known_any_more_goes_by_its_name():
    (made,) = summarise([verdict("ada", wrong("Gone"))], KNOWN)[0].mistakes
    assert made == NamedMistake("Gone", "", 1)


def test_the_table_shows_the_distribution_and_then_the_mistakes():
    found = summarise([verdict("ada", RIGHT), verdict("bo", wrong("Squared"))], KNOWN)
    assert to_text(found) == (
        "exercise    mean  of  full  none  0 … full\n"
        "7.1 Centre   1.5   3     1     1  █··█\n"
        "7.2 Twice    2.0   2     2     0  ··█\n"
        "\n"
        "7.1 Centre\n"
        "    1 × squared <b>: The number is squared."
    )


def test_the_page_and_the_picture_name_the_mistakes_and_no_student():
    found = summarise(CLASS, KNOWN)
    picture = to_svg(found, len(CLASS))
    text = to_html("07_averages", len(CLASS), found, picture)
    assert "<b>squared &lt;b&gt;</b>: The number is squared." in text
    assert "unreadable" not in text and ">ada" not in text
    label = ElementTree.fromstring(picture).attrib["aria-label"]
    assert "7.1 Centre: 20 percent, 2 times not moved, 1 times squared <b>" in label


def test_the_same_class_gives_the_same_picture():
    found = summarise(CLASS, KNOWN)
    assert to_svg(found, 6) == to_svg(found, 6)


def test_a_class_without_mistakes_has_a_picture_too():
    found = summarise(CLASS[:1], KNOWN)
    assert "None was named." in to_html("a", 1, found, to_svg(found, 1))
