import csv
import io
import json

import pytest

from classroom.exercise.report import CheckResult, Report
from classroom.grader.verdicts import (
    Change,
    Grades,
    Line,
    Verdict,
    append_line,
    changes,
    changes_to_csv,
    changes_to_table,
    harmless,
    read_history,
    read_lines,
    to_csv,
    to_table,
    with_kept,
)


def verdict(student, centre=3, twice=2, **about):
    reports = (
        Report("centre", "7.1 Centre the rows", (CheckResult("moved", 3, centre),)),
        Report("twice", "7.2 Twice", (CheckResult("two is four", 2, twice, "", ("Squared",)),)),
    )
    given = {"assignment": "07_averages", "key": "k", "received": "2026-03-05T12:00:00+00:00"}
    return Verdict(**{**given, "student": student, "reports": reports, **about})


CLASS = [verdict("ada"), verdict("bo", 0, problem="it is damaged", notes=("a", "b"))]


# JSON lines


def test_a_verdict_survives_its_line(tmp_path):
    path = tmp_path / "verdicts.jsonl"
    told = verdict("Zoë\udcff\n", errors=("cell 1 stopped",), layers=("one", "two"), seconds=1.5)
    append_line(path, told)
    append_line(path, CLASS[1])
    assert read_lines(path) == [told, CLASS[1]]
    assert path.read_bytes().count(b"\n") == 2 and path.read_bytes().isascii()


def test_a_line_says_the_points():
    record = json.loads(json.dumps(CLASS[1].to_json()))
    assert (record["earned"], record["points"]) == (2, 5)
    assert [(r["exercise"], r["earned"], r["points"]) for r in record["reports"]] == [
        ("centre", 0, 3),
        ("twice", 2, 2),
    ]


def test_the_last_line_of_a_student_counts_and_the_order_is_by_name(tmp_path):
    path = tmp_path / "verdicts.jsonl"
    for each in (verdict("zoe"), verdict("ada", 0), verdict("ada", 3)):
        append_line(path, each)
    assert [(v.student, v.earned) for v in read_lines(path)] == [("ada", 5), ("zoe", 5)]


@pytest.mark.parametrize("num_lost", [1, 7])
def test_half_a_line_is_cut_off_and_the_file_goes_on(tmp_path, num_lost):
    path = tmp_path / "verdicts.jsonl"
    append_line(path, CLASS[0])
    append_line(path, CLASS[1])
    path.write_bytes(path.read_bytes()[:-num_lost])
    assert read_lines(path) == CLASS[:1]
    append_line(path, CLASS[1])
    assert read_lines(path) == CLASS


@pytest.mark.parametrize("line", ["{}", "[]", "no", '{"assignment": 3}'])
def test_a_damaged_line_is_not_passed_over(tmp_path, line):
    path = tmp_path / "verdicts.jsonl"
    append_line(path, CLASS[0])
    with path.open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(ValueError, match="verdicts.jsonl, line 2: this is not a verdict"):
        read_lines(path)


def test_where_nothing_is_kept_there_are_no_verdicts(tmp_path):
    assert read_lines(tmp_path / "nowhere.jsonl") == []


# CSV


def test_csv_holds_a_row_per_student_and_a_column_per_exercise():
    assert to_csv(list(map(Grades.of, CLASS))).splitlines() == [
        '"student","centre","twice","penalty","earned","points","received","problem"',
        '"ada",3,2,0,5,5,"2026-03-05T12:00:00+00:00",""',
        '"bo",0,2,0,2,5,"2026-03-05T12:00:00+00:00","it is damaged"',
    ]
    assert to_csv([]).startswith('"student","penalty"')


def test_scores_hold_what_people_gave_the_penalty_and_only_what_counts():
    lines = (Line("centre", 4.5, 3, by_hand=True), Line("gone", 0, 0), Line("twice", 1, 2))
    late = Grades("ada", "07_averages", lines, penalty=1.1)
    assert to_csv([late]).splitlines() == [
        '"student","centre","twice","penalty","earned","points","received","problem"',
        '"ada",4.5,1,1.1,4.4,5,"",""',
    ]
    assert to_table(CLASS[:1], {"ada": late}).splitlines() == [
        "student  7.1  7.2    points",
        "ada      4.5    1  4.4 of 5  no remarks",
    ]


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("+1+1", "'+1+1"),
        ("-2", "'-2"),
        ("@SUM(1)", "'@SUM(1)"),
        ("  =1", "'  =1"),
        ("＝1", "'＝1"),
        ("\t=1", "\\t=1"),
        ('a";=1', 'a";=1'),
        ("O'Brien, Zoë", "O'Brien, Zoë"),
        ("a\r\n=1", "a\\r\\n=1"),
    ],
)
def test_a_spreadsheet_does_not_compute_a_name(name, cell):
    assert harmless(name) == cell
    text = to_csv([Grades.of(verdict(name, problem=name))])
    row = list(csv.reader(io.StringIO(text)))[1]
    assert (row[0], row[-1], len(row)) == (cell, cell, 8)
    # Whatever separates columns where it is opened: quotes keep a cell together.
    assert text.splitlines()[1].startswith('"')


# Table


def test_the_table_shows_numbers_of_exercises_points_and_what_there_is_to_say():
    assert to_table([*CLASS, verdict("cy", errors=("cell 3 stopped",))]).splitlines() == [
        "student  7.1  7.2  points",
        "ada        3    2  5 of 5  no remarks",
        "bo         0    2  2 of 5  it is damaged",
        "cy         3    2  5 of 5  1 remark",
    ]
    assert to_table([]) == "there are no submissions: see `classroom collect`"


def test_a_terminal_does_not_obey_a_name():
    table = to_table([verdict("\x1b[2J\nada" + "a" * 300)])
    assert len(table.splitlines()) == 2 and "\\x1b[2J\\nada" in table and "\x1b" not in table
    assert all(len(line) < 80 for line in table.splitlines())


# What a run has changed


def test_a_run_is_compared_with_what_is_older_than_it(tmp_path):
    path = tmp_path / "verdicts.jsonl"
    for each in (
        verdict("ada", 1, 2, seed_commitment="first"),
        verdict("bo", 1, 2, seed_commitment="first"),
        verdict("cy", 1, 2, seed_commitment="first"),
        verdict("ada", 0, 2, seed_commitment="second"),
        verdict("bo", 2, 1, seed_commitment="second"),
        verdict("new", 3, 2, seed_commitment="second"),
        verdict("ada", 3, 2, seed_commitment="second"),  # the run was stopped and gone on with
    ):
        append_line(path, each)
    assert changes(read_history(path), "second") == [
        Change("ada", "centre", 1, 3),
        Change("ada", "", 3, 5),
        Change("bo", "centre", 1, 2),
        Change("bo", "twice", 2, 1),
    ]
    assert changes(read_history(path), "first") == []


def test_an_exercise_that_came_or_went_is_a_change():
    before, after = verdict("ada", seed_commitment="a"), verdict("ada", seed_commitment="b")
    gone = Report("twice", "7.2 Twice", ())
    gone = verdict("ada", seed_commitment="a", reports=(before.reports[0], gone))
    fewer = verdict("ada", seed_commitment="b", reports=after.reports[:1])
    assert changes({"ada": [gone, after]}, "b") == [
        Change("ada", "twice", 0, 2),
        Change("ada", "", 3, 5),
    ]
    assert changes({"ada": [before, fewer]}, "b") == [
        Change("ada", "twice", 2, None),
        Change("ada", "", 5, 3),
    ]


def test_of_a_regraded_exercise_the_report_is_new_and_all_others_are_as_they_were():
    earlier = verdict("ada", 1, 1, key="old", digest="d", seed_commitment="a", layers=("one",))
    new = verdict("ada", 3, 2, key="new", digest="d", seed_commitment="b", layers=("two",))
    kept = with_kept(new, earlier, ["twice"])
    assert kept.reports == (earlier.reports[0], new.reports[1])
    assert (kept.key, kept.seed_commitment, kept.checked) == ("old", "b", ("twice",))
    assert kept.layers == ("two",)


@pytest.mark.parametrize(
    "earlier, exercises",
    [
        (None, ["twice"]),
        (verdict("ada", 1, 1, digest="d"), []),
        (verdict("ada", 1, 1, digest="handed in before"), ["twice"]),
    ],
)
def test_a_verdict_is_new_as_a_whole_where_nothing_can_be_kept(earlier, exercises):
    new = verdict("ada", 3, 2, digest="d")
    assert with_kept(new, earlier, exercises) is new


def test_changes_are_shown_as_text_that_nothing_obeys():
    found = [Change("=cmd()", "centre", None, 3), Change("a\x1b[2J", "", 2, 5)]
    rows = list(csv.reader(io.StringIO(changes_to_csv(found))))
    assert rows[1:] == [["'=cmd()", "centre", "", "3"], ["a\\x1b[2J", "total", "2", "5"]]
    assert changes_to_table(found) == (
        "student   exercise  before      after\n"
        "=cmd()    centre         –  ->      3\n"
        "a\\x1b[2J  total          2  ->      5"
    )


def test_a_line_of_an_earlier_version_is_read(tmp_path):
    record = verdict("ada").to_json()
    for name in ("layers", "notes", "allow_weaker", "seconds", "in_gradebook", "digest"):
        del record[name]
    path = tmp_path / "verdicts.jsonl"
    path.write_text(json.dumps({**record, "added_since": 1}) + "\n")
    assert read_lines(path) == [verdict("ada")]
