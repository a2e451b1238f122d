from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from exercise_list import assignments, duration, find_assignment

ROOT = Path(__file__).parents[2]
PAGE = "# Page\n\n```{{exercises}} {}\n```\n"


def test_an_unknown_assignment_is_refused_in_one_sentence():
    message = r"exercises must name an assignment, got 'attention', known: .*01_attention"
    with pytest.raises(ValueError, match=message):
        find_assignment("attention", ROOT)


@pytest.mark.parametrize(
    ("minutes", "said"), [(45, "45 minutes"), (60, "1 h"), (150, "2 h 30 min")]
)
def test_times_are_said_as_a_person_would(minutes, said):
    assert duration(minutes) == said


@pytest.mark.slow
def test_an_unknown_assignment_breaks_the_build(small_book):
    book = small_book("exercise_list", course_root=str(ROOT))
    book.write("page.md", PAGE.format("attention"))
    built = book.build()
    assert built.returncode != 0
    assert "exercises must name an assignment, got 'attention'" in built.stderr
    assert "Traceback" not in built.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(assignments(ROOT)))
def test_the_list_says_what_the_grader_knows_and_gives_nothing_away(small_book, name):
    book = small_book("exercise_list", course_root=str(ROOT))
    book.write("page.md", PAGE.format(name))
    built = book.build()
    assert built.returncode == 0, built.stderr

    assignment = find_assignment(name, ROOT)
    soup = BeautifulSoup(book.html("page"), "html.parser")
    listed = soup.find(class_="exercise-list")
    text = " ".join(listed.get_text().split())
    assert f"{len(assignment['exercises'])} exercises" in text
    assert f"{assignment['points']} points" in text
    assert f"jupyter lab exercises/{name}/{assignment['notebook']}" in text

    (download,) = listed.find_all("a", class_="download")
    copy = book.folder / "out" / download["href"]
    assert copy.read_bytes() == (ROOT / "exercises" / name / assignment["notebook"]).read_bytes()

    titles = [term.get_text() for term in listed.find_all("dt")]
    assert titles == [f"{e['number']} {e['title']}" for e in assignment["exercises"]]
    for exercise, facts in zip(
        assignment["exercises"], listed.find_all(class_="exercise-facts"), strict=True
    ):
        assert f"{exercise['points']} points" in facts.get_text()
        assert f"{exercise['minutes']} minutes" in facts.get_text()
        assert f"{len(exercise['mistakes'])} known mistakes" in facts.get_text()
        dots = [scale["aria-label"] for scale in facts.find_all(role="img")]
        assert dots == [f"{exercise['difficulty']} of 5", f"{exercise['importance']} of 5"]
        for mistake in exercise["mistakes"]:
            assert mistake["explanation"] not in text
