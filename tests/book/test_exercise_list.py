from pathlib import Path

import pytest
from books import SmallBook
from bs4 import BeautifulSoup
from exercise_list import assignments, count, duration, elsewhere, find_assignment
from version_shown import version_of

from classroom import course

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://github.com/owner/course"
PAGE = "# Page\n\n```{{exercises}} {}\n```\n"


def test_an_unknown_assignment_is_refused_in_one_sentence():
    message = r"exercises must name an assignment, got 'attention', known: .*01_attention"
    with pytest.raises(ValueError, match=message):
        find_assignment("attention", assignments(ROOT))


@pytest.mark.parametrize(
    ("minutes", "said"), [(45, "45 minutes"), (60, "1 h"), (150, "2 h 30 min")]
)
def test_times_are_said_as_a_person_would(minutes, said):
    assert duration(minutes) == said


def test_a_notebook_opens_elsewhere_at_its_place_in_the_repository():
    assert elsewhere(REPOSITORY, "v0.2.0", "exercises/01 a/b.ipynb") == {
        "Colab": "https://colab.research.google.com/github/owner/course/blob/v0.2.0/"
        "exercises/01%20a/b.ipynb",
        "Binder": "https://mybinder.org/v2/gh/owner/course/v0.2.0?labpath=exercises%2F01%20a%2Fb.ipynb",
    }


@pytest.mark.parametrize("address", ["https://gitlab.com/a/b", "https://github.com/a", "a/b"])
def test_a_repository_that_those_services_cannot_read_is_refused(address):
    with pytest.raises(ValueError, match=f"https://github.com/OWNER/NAME, got '{address}'"):
        elsewhere(address, "main", "x.ipynb")


def test_the_course_is_counted_over_all_its_assignments():
    known = assignments(ROOT)
    every = known.values()
    assert count("exercises", known) == sum(len(each["exercises"]) for each in every)
    assert count("points", known) == sum(each["points"] for each in every)
    with pytest.raises(ValueError, match="in-all counts assignments, .*, got 'pages'"):
        count("pages", known)


@pytest.mark.slow
def test_an_unknown_assignment_breaks_the_build(small_book):
    book = small_book("exercise_list", course_root=str(ROOT))
    book.write("page.md", PAGE.format("attention"))
    built = book.build()
    assert built.returncode != 0
    assert "exercises must name an assignment, got 'attention'" in built.stderr
    assert "Traceback" not in built.stderr


@pytest.fixture(scope="module")
def all_lists(tmp_path_factory: pytest.TempPathFactory) -> SmallBook:
    book = SmallBook(tmp_path_factory.mktemp("lists"))
    book.settings["extensions"] += ["exercise_list"]
    book.settings.update(course_root=str(ROOT), course_repository=REPOSITORY)
    for name in assignments(ROOT):
        book.write(f"{name}.md", PAGE.format(name) + "\n{in-all}`assignments` of them.\n")
    built = book.build()
    assert built.returncode == 0, built.stderr
    return book


@pytest.mark.slow
@pytest.mark.parametrize("name", [folder.name for folder in course.assignments(ROOT / "solutions")])
def test_the_list_says_what_the_grader_knows_and_gives_nothing_away(all_lists, name):
    assignment = find_assignment(name, assignments(ROOT))
    soup = BeautifulSoup(all_lists.html(name), "html.parser")
    listed = soup.find(class_="exercise-list")
    text = " ".join(listed.get_text().split())
    assert f"{len(assignment['exercises'])} exercises" in text
    assert f"{assignment['points']} points" in text
    assert f"classroom start {name}" in text
    core = [exercise for exercise in assignment["exercises"] if not exercise["deeper"]]
    worth, minutes = (sum(each[what] for each in core) for what in ("points", "minutes"))
    said = f"The {len(core)} core exercises are worth {worth} points and take about "
    said += duration(minutes)
    assert said in text

    (download,) = listed.find_all("a", class_="download")
    copy = all_lists.folder / "out" / download["href"]
    assert copy.read_bytes() == (ROOT / "exercises" / name / assignment["notebook"]).read_bytes()

    path = f"exercises/{name}/{assignment['notebook']}"
    links = {link["href"] for link in listed.select(".elsewhere a")}
    assert links == set(elsewhere(REPOSITORY, f"v{version_of()}", path).values())
    assert f"{len(assignments(ROOT))} of them." in soup.get_text()
    ticks = [tick["data-exercise"] for tick in listed.select(".exercise-tick")]
    assert ticks == [f"{name}/{exercise['name']}" for exercise in assignment["exercises"]]

    titles = [term.get_text() for term in listed.find_all("dt")]
    assert titles == [f"{e['number']} {e['title']}" for e in assignment["exercises"]]
    for exercise, facts in zip(
        assignment["exercises"], listed.find_all(class_="exercise-facts"), strict=True
    ):
        assert f"{exercise['points']} point" in facts.get_text()
        assert f"{exercise['minutes']} minutes" in facts.get_text()
        assert ("goes deeper" in facts.get_text()) is exercise["deeper"]
        assert f"{len(exercise['mistakes'])} known mistakes" in facts.get_text()
        dots = [scale["aria-label"] for scale in facts.find_all(role="img")]
        assert dots == [f"{exercise['difficulty']} of 5", f"{exercise['importance']} of 5"]
        for mistake in exercise["mistakes"]:
            assert mistake["explanation"] not in text
