import json
import re

from classroom.exercise.report import MAX_MESSAGE_LINES, MESSAGE_WIDTH, CheckResult, Report
from classroom.exercise.run import MAX_MESSAGE_LENGTH, run_checks

UNMOVED = "def centre(x): return x"


def report_of(*messages, title="1.1 Title"):
    found = (CheckResult(f"check {i}", 2, 0, text) for i, text in enumerate(messages))
    return Report("f", title, tuple(found))


def test_the_text_is_a_table_and_messages():
    found = (CheckResult("one", 1, 1), CheckResult("two", 3, 0, "It is wrong.\n  x = 2"))
    assert Report("f", "1.1 Title", found).to_text().split("\n") == [
        "1.1 Title: 1 of 4 points",
        "  ✓ one (1/1)",
        "  ✗ two (0/3)",
        "",
        "It is wrong.",
        "  x = 2",
    ]


def test_only_the_first_failure_is_told_whole_and_nothing_twice():
    report = report_of("first\n  x = 2", "second\n  x = 3", "first\n  x = 2", "second")
    assert report.messages == ["first\n  x = 2", "second"]


def test_what_differs_in_numbers_only_is_told_once_and_what_is_longer_without_its_case():
    case = "\nA small case to try it on:\n  x = 2"
    first = "weights: seen -1.08, expected 0" + case
    report = report_of(first, "weights: seen 3e-5, expected 0" + case)
    assert report.messages == [first]
    report = report_of(first, "weights: seen 2, expected 0; it is 1 more" + case)
    assert report.messages == [first, "weights: seen 2, expected 0; it is 1 more"]


def test_later_failures_keep_what_they_were_called_with_and_the_name_of_another_mistake():
    """What is long is left out there, and a mistake is not explained twice."""
    called = "It was called with x (2, 3)"
    named = "This is the mistake “no scale”: Nothing is divided."
    other = "This is the mistake “wrong axis”: The softmax runs over the queries."
    long = "A small case to try it on:\n  x = " + "1.0, " * 100
    report = report_of(f"one\n{named}\n{long}", f"two\n{other}\n{long}", f"three\n{called}")
    messages = [f"one\n{named}\n{long}", f"two\n{other}", f"three\n{called}"]
    assert report.messages == messages


def test_a_mistake_that_has_been_named_is_not_named_again_among_others():
    alike = "This is one of 2 mistakes that look alike here: “a”: One; or “b”: Two."
    found = (
        CheckResult("one", 1, 0, f"first\n{alike}", ("A", "B")),
        CheckResult("two", 1, 0, "second\nThis is the mistake “a”: One.", ("A",)),
        CheckResult("three", 1, 0, f"third\n{alike}", ("A", "B")),
        CheckResult("four", 1, 0, f"fourth\n{alike}", ("B", "C")),
    )
    said = [message.split("\n")[0] for message in Report("f", "1.1 Title", found).messages]
    assert said == ["first", "second", "fourth"]


def test_the_text_fits_the_page():
    long = "word " * 500 + "\n" + "\n".join(["  numbers = " + "1.0, " * 200] * 30)
    text = report_of(long, *(f"message {i}" for i in range(30))).to_text()
    lines = text.split("\n")
    assert len(lines) == MAX_MESSAGE_LINES
    assert re.fullmatch(r"  … and \d+ more lines", lines[-3])
    assert all(line.startswith("  numbers") for line in lines[-2:])
    assert all(len(line) <= MESSAGE_WIDTH for line in lines if not line.startswith("  "))
    assert all(len(line) <= 400 for line in lines)


def test_a_case_that_does_not_fit_keeps_what_is_returned_and_expected():
    rows = [f"  input {n} = {n}" for n in range(MAX_MESSAGE_LINES)]
    message = "\n".join(["wrong.", "A small case to try it on:", *rows, "  you return = 1"])
    result = CheckResult("a check", 1, 0, f"{message}\n  expected   = 2")
    lines = Report("f", "1.1 Title", (result,)).to_text().splitlines()
    assert len(lines) == MAX_MESSAGE_LINES and "more lines" in lines[-3]
    assert lines[-2:] == ["  you return = 1", "  expected   = 2"]


def test_the_first_failure_is_told_to_its_end_before_another_begins():
    case = "\n".join(["It is wrong.", *(f"  x{i} = {i}" for i in range(19))])
    *_, last = report_of(case, "second").to_text().split("\n")
    assert last == "  x18 = 18"
    short = case.rsplit("\n", 2)[0]
    assert report_of(short, "second").to_text().endswith("  x16 = 16\n\nsecond")


def test_html_shows_what_code_said_and_does_not_run_it(assignment, student):
    evil = "<script>alert(1)</script><b>&amp;"
    html = report_of(f"raised {evil}\n  x = {evil}", title=evil).to_html()
    assert "<script" not in html and "<b>&amp;amp;" not in html
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;&lt;b&gt;&amp;amp;") == 3
    source = f"def centre(x):\n    print({evil!r})\n    raise ValueError({evil!r})"
    html = run_checks(assignment, "centre", student(source)).to_html()
    assert "&lt;script&gt;" in html and "<script" not in html


def test_what_code_says_cannot_move_the_cursor_or_fill_the_page(assignment, student):
    said = "\x1b[2J\x07\ud800\u202e end"
    report = run_checks(assignment, "centre", student(f"def centre(x): raise ValueError({said!r})"))
    message = report.results[0].message
    assert "ValueError: �[2J��� end" in message
    report.to_text().encode("utf-8")
    endless = f"def centre(x): raise ValueError('x' * {10 * MAX_MESSAGE_LENGTH})"
    report = run_checks(assignment, "centre", student(endless))
    assert all(len(result.message) <= MAX_MESSAGE_LENGTH + 2 for result in report.results)


def test_a_report_survives_json(assignment, student):
    report = run_checks(assignment, "centre", student(UNMOVED))
    record = json.loads(json.dumps(report.to_json()))
    assert Report.from_json(record) == report
    assert (record["points"], record["earned"]) == (report.points, report.earned) == (3, 0)


def test_a_long_message_keeps_its_case():
    case = "A small case to try it on:\n  x          = [1]\n  you return = 2\n  expected   = 3"
    lines = report_of("word " * 500 + "\n" + case).to_text().split("\n")
    assert len(lines) == MAX_MESSAGE_LINES
    assert lines[-4:] == case.split("\n")


def test_a_long_problem_does_not_cost_the_name_of_the_mistake():
    named = "This is the mistake “no scale”: Nothing is divided."
    case = "A small case to try it on:\n  x = 1\n  you return = 1\n  expected   = 2"
    problem = "\n".join(f"problem {n}" for n in range(MAX_MESSAGE_LINES))
    lines = report_of(f"{problem}\n{named}\n{case}").to_text().splitlines()
    assert len(lines) == MAX_MESSAGE_LINES
    assert lines[-5:] == [named, *case.splitlines()]


def test_messages_that_do_not_fit_are_counted():
    report = report_of(*(f"{word} " * 120 for word in ("one", "three", "seventeen")))
    lines = report.to_text().splitlines()
    assert lines[-1] == "(1 more message once this is fixed)"
    assert len(lines) <= MAX_MESSAGE_LINES
    assert "one" in lines[5] and "three" in lines[-3]
