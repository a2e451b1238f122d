"""What Moodle and Canvas write is read, filled in, and read again as the same class."""

import csv
import io
import re
import zipfile

import pytest

from classroom.grader.collect import Upload, collect, uploads
from classroom.grader.roster import feedback_archive, read_roster
from classroom.grader.verdicts import Grades, Line

NAME = "07_averages"

# As Moodle's gradingtable writes it.
WORKSHEET = """\
\ufeffIdentifier,"Full name","Email address",Status,Grade,"Maximum grade","Grade can be changed",\
"Last modified (submission)","Last modified (grade)","Feedback comments"
"Participant 411","Ada Lovelace",ada@x.org,"Submitted for grading",,5.00,Yes,"Monday, 5 May",-,
"Participant 97","Bo van_der Berg",bo@x.org,"Submitted for grading",,5.00,Yes,"Monday, 5 May",-,
"Participant 53","Cy Twombly",cy@x.org,"No submission",,5.00,Yes,-,-,
"""
PARTICIPANTS = """\
"First name","Last name","ID number","Email address",Groups
Ada,Lovelace,s-1,ada@x.org,
Bo,van_der Berg,s-2,bo@x.org,"A, B"
"""
# As Canvas's gradebook_exporter writes it.
CANVAS = """\
Student,ID,SIS User ID,SIS Login ID,Section,Quiz (3),07_averages (88),Current Score
,,,,,,Manual Posting,
    Points Possible,,,,,7,10,(read only)
"Lovelace, Ada",4321,s1,ada@x.org,Maths,6,,85
"O'Brien, Zoë",8765,s2,zoe,Maths,,,
"O'Brien, Zoë",19,s3,zoe2,Maths,1,,
"""


def archive(path, *names):
    with zipfile.ZipFile(path, "w") as made:
        for name in names:
            made.writestr(name, f'{{"{name}": 1}}')
    return path


@pytest.fixture
def submitted(tmp_path):
    return tmp_path / "submitted"


@pytest.fixture
def write(tmp_path):
    def write(text):
        (tmp_path / "roster.csv").write_text(text, encoding="utf-8")
        return read_roster(tmp_path / "roster.csv")

    return write


def take(tmp_path, submitted, *names):
    collect([archive(tmp_path / "uploads.zip", *names)], submitted, NAME, "averages.ipynb")
    return uploads(submitted, NAME)


def grades(student, earned, points=5):
    return Grades(student, NAME, (Line("centre", earned, points),))


MOODLE = [
    "Ada Lovelace_411_assignsubmission_file_/averages.ipynb",
    "Bo van_der Berg_97_assignsubmission_file/averages (1).ipynb",
]
FROM_CANVAS = ["lovelaceada_LATE_4321_99_averages.ipynb", "obrienzo_8765_100_averages-1.ipynb"]


def test_a_name_with_an_underscore_stays_whole(tmp_path, submitted):
    found = take(tmp_path, submitted, *MOODLE)
    assert {name: upload.id for name, upload in found.items()} == {
        "Ada Lovelace": "411",
        "Bo van_der Berg": "97",
    }
    flat = "Di d_Este_7_assignsubmission_file_averages.ipynb"
    assert take(tmp_path, submitted, flat)["Di d_Este"].id == "7"


def test_people_of_moodle_are_found_by_their_number_or_their_name(tmp_path, submitted, write):
    found = take(tmp_path, submitted, *MOODLE)
    expected = ["Ada Lovelace", "Bo van_der Berg", "Cy Twombly"]
    assert list(write(WORKSHEET).students(found).values()) == expected
    renamed = write(WORKSHEET.replace("Ada Lovelace", "Ada Byron"))
    assert list(renamed.students(found).values()) == expected
    people = write(PARTICIPANTS).students(found)
    assert list(people.values()) == expected[:2]
    assert [(p.first_name, p.last_name, p.email, p.id) for p in people] == [
        ("Ada", "Lovelace", "ada@x.org", "s-1"),
        ("Bo", "van_der Berg", "bo@x.org", "s-2"),
    ]


def test_two_people_of_one_name_are_told_apart_by_their_numbers(tmp_path, submitted, write):
    found = take(tmp_path, submitted, *FROM_CANVAS)
    people = write(CANVAS).students(found)
    assert list(people.values()) == ["lovelaceada", "obrienzo", "obrienzoë 19"]
    assert [person.name for person in people] == ["Ada Lovelace", "Zoë O'Brien", "Zoë O'Brien"]


def test_moodles_worksheet_comes_back_with_grades_and_nothing_else_changed(write):
    roster = write(WORKSHEET)
    ada, bo, _ = roster.people
    text = roster.with_grades({ada: grades("ada", 4.5), bo: grades("bo", 0)}, NAME)
    assert write(text).people == roster.people
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["Grade"] for row in rows] == ["4.5", "0", ""]
    before = list(csv.DictReader(io.StringIO(WORKSHEET.removeprefix("\ufeff"))))
    assert [{**row, "Grade": ""} for row in rows] == before
    assert '"0"' not in text and roster.with_grades({}, NAME, absent="0").count(",0,5.00") == 3


def test_canvas_gets_its_own_columns_and_those_of_no_other_assignment(write):
    roster = write(CANVAS)
    ada, _, zoe = roster.people
    text = roster.with_grades({ada: grades("a", 3.25), zoe: grades("z", 5)}, NAME, absent="0")
    assert write(text).people == roster.people
    head, posting, points, *rows = csv.reader(io.StringIO(text))
    assert head == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "07_averages (88)"]
    assert (posting[-1], points[-1]) == ("Manual Posting", "5")
    assert [(row[1], row[-1]) for row in rows] == [("4321", "3.25"), ("8765", "0"), ("19", "5")]
    new = roster.with_grades({ada: grades("a", 3)}, NAME, column="Week 7")
    assert new.splitlines()[0].endswith(",Section,Week 7")


def test_another_maximum_in_moodle_is_refused(write):
    roster = write(WORKSHEET.replace("5.00", "100.00"))
    with pytest.raises(ValueError, match="worth 5 points, and Moodle's maximum grade is 100.00"):
        roster.with_grades({roster.people[0]: grades("ada", 3)}, NAME)


def test_semicolons_are_kept_and_another_file_is_refused(write):
    roster = write("First name;Last name;Email address\nAda;Lovelace;ada@x.org\n")
    text = roster.with_grades({roster.people[0]: grades("ada", 3)}, NAME)
    assert text.splitlines()[1] == "Ada;Lovelace;ada@x.org;3"
    with pytest.raises(ValueError, match="roster.csv is neither Moodle's .* are a, b"):
        write("a,b\n1,2\n")


def test_a_file_that_a_spreadsheet_has_saved_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "roster.csv").write_text(WORKSHEET, encoding="utf-16")
    with pytest.raises(ValueError, match="roster.csv is not UTF-8: download it again, unchanged"):
        read_roster(tmp_path / "roster.csv")


def owner_in_moodle(path):
    """Take a participant's number and the file's name from a path as Moodle's importer does."""
    parts = path.split("/")
    while parts:
        info = parts.pop(0).split("_", 4)
        if len(info) >= 4 and info[1].isnumeric() and info[2:4] == ["assignfeedback", "file"]:
            return info[1], "/".join([*info[4:], *parts]).lstrip("/")
    return None


def owner_in_canvas(path):
    """Take the numbers of a person and of a file from a path as Canvas's importer does."""
    return tuple(re.findall(r"(?:(?<=_)|^)\d+(?=_|$)", path)[:2])


def test_each_platform_finds_the_owner_of_each_page(tmp_path, submitted):
    page = tmp_path / "averages.html"
    page.write_text("a page")
    for to, names, owner, expected in (
        (
            "moodle",
            MOODLE,
            owner_in_moodle,
            {("411", "averages.html"), ("97", "averages.html")},
        ),
        ("canvas", FROM_CANVAS, owner_in_canvas, {("4321", "99"), ("8765", "100")}),
    ):
        folder = submitted / to
        found = take(tmp_path, folder, *names, "eve.ipynb")
        made = tmp_path / f"{to}.zip"
        assert feedback_archive(dict.fromkeys(found, page), found, to, made) == ["eve"]
        with zipfile.ZipFile(made) as pages:
            assert {owner(name) for name in pages.namelist()} == expected


def test_a_number_that_two_submissions_claim_is_nobodys(write):
    """Then names count."""
    roster = write(CANVAS)
    found = {"lovelaceada": Upload("a", "4321"), "eve": Upload("b", "4321")}
    assert roster.students(found)[roster.people[0]] == "lovelaceada"
