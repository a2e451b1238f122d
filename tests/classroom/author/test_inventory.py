import json

import pytest

from classroom.author.inventory import inventory
from classroom.author.notebooks import build_notebook, is_written
from classroom.exercise.answers import load_answers
from classroom.exercise.run import list_checks


def test_a_course_is_listed_by_hand(course):
    (found,) = inventory(course)["assignments"]
    exercises = found.pop("exercises")
    assert found == {
        "name": "07_averages",
        "title": "Averages",
        "notebook": "averages.ipynb",
        "points": 5,
        "minutes": 15,
        "core": {"points": 3, "minutes": 10},
    }
    assert [exercise["name"] for exercise in exercises] == ["centre", "twice"]
    assert exercises[0] == {
        "name": "centre",
        "number": "7.1",
        "title": "Centre the rows",
        "asks": "Return the rows minus their mean.",
        "points": 3,
        "minutes": 10,
        "difficulty": 2,
        "importance": 3,
        "deeper": False,
        "checks": [
            {"name": "rows are moved by their mean", "points": 1},
            {"name": "the mean is zero", "points": 2},
        ],
        "mistakes": [
            {"name": "not moved", "explanation": "The rows are returned as they came."},
            {
                "name": "mean of each row",
                "explanation": "The mean is taken over each row; it belongs over the rows (dim=0).",
            },
            {
                "name": "sum of the rows",
                "explanation": "The sum is subtracted; divide it by the number of rows.",
            },
        ],
        "variants": ["loop", "divided", "as matrix"],
    }
    assert exercises[1]["deeper"] and len(exercises[1]["variants"]) == 3


def test_the_numbers_agree_with_the_files(request):
    """On the real course: with the checks, the cells of the notebook and the answers."""
    root = request.config.rootpath
    for assignment in inventory(root)["assignments"]:
        folder = root / "solutions" / assignment["name"]
        assert (folder / assignment["notebook"]).is_file()
        exercises = {exercise["name"]: exercise for exercise in assignment["exercises"]}
        worth = {
            cell.metadata.nbgrader.grade_id.removesuffix("-check"): cell.metadata.nbgrader.points
            for cell in build_notebook(folder).cells
            if cell.metadata.get("nbgrader", {}).get("grade") and not is_written(cell)
        }
        assert {name: e["points"] for name, e in exercises.items()} == worth
        assert assignment["points"] == sum(worth.values())
        assert assignment["minutes"] == sum(e["minutes"] for e in exercises.values())
        for name, checks in list_checks(folder).items():
            assert [(c["name"], c["points"]) for c in exercises[name]["checks"]] == checks
        for kind in ("mistakes", "variants"):
            answers = load_answers(folder / f"{kind}.py")
            assert len(answers) == sum(len(e[kind]) for e in exercises.values())
            assert {answer.exercise for answer in answers} <= exercises.keys()


def test_it_is_json(course):
    found = inventory(course)
    assert json.loads(json.dumps(found)) == found
    assert inventory(str(course)) == found


def test_assignments_come_in_order(course, assignment):
    copy = course / "solutions" / "02_averages"
    copy.mkdir()
    for path in assignment.iterdir():
        (copy / path.name).write_text(path.read_text())
    assert [a["name"] for a in inventory(course)["assignments"]] == ["02_averages", "07_averages"]


def test_a_folder_without_assignments_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="there are no assignments under .*solutions"):
        inventory(tmp_path)


def test_a_text_without_a_heading_is_refused(course, assignment):
    text = (assignment / "averages.py").read_text()
    (assignment / "averages.py").write_text(text.replace("# # Averages", "# Averages"))
    with pytest.raises(ValueError, match="averages.py has no heading"):
        inventory(course)
