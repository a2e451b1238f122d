import json
import os
import pickle
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from classroom.calls.files import MAX_FILE_BYTES
from classroom.grader import submission
from classroom.grader.submission import (
    MAX_SOURCE_LENGTH,
    Master,
    Submission,
    Unreadable,
    rebuild,
    shown,
)

BLANK = "def {0}(x):\n    raise NotImplementedError"
TWICE, SQUARE = "def twice(x):\n    return x + x", "def square(x):\n    return x * x"


def marked(source, grade_id, **about):
    flags = {"grade": False, "solution": False, "locked": False, "schema_version": 3, **about}
    return new_code_cell(
        source, id=grade_id, metadata={"nbgrader": {"grade_id": grade_id, **flags}}
    )


def exercise(name, points):
    return [
        new_markdown_cell(f"Write {name}.", id=f"text-{name}"),
        marked(BLANK.format(name), name, solution=True),
        marked(f'check("{name}")', f"{name}-check", grade=True, locked=True, points=points),
    ]


@pytest.fixture
def master():
    """Two exercises, an import above them and a plot below."""
    cells = [
        new_markdown_cell("# Numbers", id="title"),
        new_code_cell("import math", id="imports"),
        *exercise("twice", 2),
        *exercise("square", 3),
        new_code_cell("plot(square)", id="plot"),
    ]
    return Master(
        "numbers.ipynb",
        new_notebook(cells=cells, metadata={"kernelspec": {"name": "p", "display_name": "P"}}),
    )


@pytest.fixture
def cells(master):
    """The cells of a student who has answered both exercises, as JSON."""
    found = json.loads(nbformat.writes(master.notebook))["cells"]
    found[3]["source"], found[6]["source"] = TWICE, SQUARE
    return found


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "submitted"
    path.mkdir()
    return path


@pytest.fixture
def read(folder, master):
    """Hand in cells, or bytes, and read what was handed in."""

    def hand_in(cells, name="numbers.ipynb", **changed):
        if isinstance(cells, bytes):
            (folder / name).write_bytes(cells)
        else:
            notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}
            (folder / name).write_text(json.dumps({**notebook, **changed}))
        return answers_in(folder, master)

    return hand_in


def answers_in(folder, master):
    return Submission.read(folder, master).answers(master)


def own(source, **about):
    return {"cell_type": "code", "source": source, "metadata": {}, "outputs": [], **about}


def order(answers, master):
    """What runs and what is checked, in short."""
    names = []
    for cell in answers.cells:
        if cell.checks:
            names.append(f"check {cell.checks}")
        elif cell.type == "code":
            names.append(cell.source)
    return names


USUAL = ["import math", TWICE, "check twice", SQUARE, "check square", "plot(square)"]


# What an honest student hands in


def test_answers_run_in_order_and_are_checked_in_their_places(read, cells, master):
    answers = read(cells)
    assert order(answers, master) == USUAL
    assert answers.notes == ()
    assert answers.file == "numbers.ipynb"
    assert [c.origin for c in answers.cells] == list(range(9))
    assert [c.answers for c in answers.cells if c.answers] == ["twice", "square"]
    assert master.exercises == ("twice", "square")


def test_what_the_student_added_or_changed_stays_in_its_place(read, cells, master):
    cells[1]["source"] = "import math\nimport random"
    cells.insert(3, own("def helper(x): return x"))
    cells.insert(5, {"cell_type": "markdown", "source": ["My ", "answer"], "metadata": {}})
    cells.append(own("twice(3)"))
    answers = read(cells)
    assert order(answers, master) == [
        "import math\nimport random",
        "def helper(x): return x",
        *USUAL[1:],
        "twice(3)",
    ]
    assert [c.source for c in answers.cells if c.type == "markdown"][2] == "My answer"
    assert answers.notes == ()


def test_the_students_own_order_is_kept(read, cells, master):
    twice, square = cells[2:5], cells[5:8]
    answers = read([*cells[:2], *square, *twice, cells[8]])
    assert order(answers, master) == [
        "import math",
        *(SQUARE, "check square"),
        *(TWICE, "check twice"),
        "plot(square)",
    ]


def test_checks_may_stand_at_the_end(read, cells, master):
    answers = read([c for c in cells if "check" not in c["id"]] + [cells[4], cells[7]])
    assert order(answers, master)[-2:] == ["check twice", "check square"]
    assert answers.notes == ()


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_an_editor_of_another_system_does_no_harm(read, cells, master, encoding):
    cells[3]["source"] = TWICE.replace("\n", "\r\n")
    text = json.dumps({"nbformat": 4, "metadata": {}, "cells": cells})
    assert order(read(text.encode(encoding)), master) == USUAL


def test_marks_that_an_editor_dropped_are_not_needed(read, cells, master):
    for cell in cells:
        del cell["id"]
        cell["metadata"] = {}
    answers = read(cells, nbformat_minor=2)
    assert order(answers, master) == USUAL
    assert [c.answers for c in answers.cells if c.answers] == ["twice", "square"]
    assert answers.notes == ()


def test_the_digest_is_of_the_bytes_and_the_date_is_the_machines(read, cells, folder, master):
    first = read(cells)
    os.utime(folder / "numbers.ipynb", (0, 0))
    again = answers_in(folder, master)
    assert again.digest == first.digest
    assert timedelta(0) <= datetime.now(UTC) - again.received < timedelta(minutes=5)
    cells[3]["source"] += " "
    assert read(cells).digest != first.digest


# Cells that were deleted, doubled, moved or changed


def test_what_was_deleted_comes_back(read, cells, master):
    for number in range(len(cells)):
        left = [cell for i, cell in enumerate(cells) if i != number]
        expected = list(USUAL)
        if number in (3, 6):
            name = cells[number]["id"]
            expected[expected.index(cells[number]["source"])] = BLANK.format(name)
        answers = read(left)
        assert order(answers, master) == expected
        assert len(answers.notes) == (number in (3, 4, 6, 7))
    only_one = read([cells[6]])
    assert order(only_one, master) == [USUAL[0], BLANK.format("twice"), *USUAL[2:]]
    assert "the cell of `twice` was missing: it was put back, blank" in only_one.notes


def test_a_check_that_comes_back_stands_below_what_helps_its_answer(read, cells, master):
    left = [*cells[:4], own("def helper(x): return x"), *cells[5:]]
    assert order(read(left), master)[1:4] == [TWICE, "def helper(x): return x", "check twice"]


def test_a_check_above_its_answer_runs_behind_it(read, cells, master):
    cells[3], cells[4] = cells[4], cells[3]
    answers = read(cells)
    assert order(answers, master) == USUAL
    assert answers.notes == (
        "the check of `twice` was missing or above the answer: it ran below it",
    )


def test_an_answer_in_another_cell_is_checked_below_it_and_no_blank_replaces_it(
    read, cells, master
):
    merged = {**cells[6], "source": f"{SQUARE}\n\ntwice: object = lambda x: x + x"}
    answers = read([*cells[:3], cells[4], cells[5], merged, *cells[7:]])
    assert order(answers, master)[1:] == [
        BLANK.format("twice"),
        merged["source"],
        "check twice",
        "check square",
        "plot(square)",
    ]
    assert [cell.source for cell in answers.cells if cell.only_adds] == [BLANK.format("twice")]
    left = read([*cells[:3], own(TWICE), {**cells[3], "source": BLANK.format("twice")}, *cells[4:]])
    assert [cell.source for cell in left.cells if cell.only_adds] == [BLANK.format("twice")]
    assert order(left, master)[1:4] == [TWICE, BLANK.format("twice"), "check twice"]


def test_copies_of_an_answer_all_run_and_the_one_before_the_check_counts(read, cells, master):
    wrong = {**cells[3], "source": "def twice(x):\n    return x"}
    answers = read([*cells[:3], wrong, *cells[3:5], wrong, *cells[5:]])
    assert order(answers, master)[1:5] == [
        wrong["source"],
        TWICE,
        "check twice",
        wrong["source"],
    ]
    assert [c.source for c in answers.cells if c.origin == 3] == [TWICE]
    assert len(answers.notes) == 1 and "there are 3 cells of `twice`" in answers.notes[0]


def test_of_copies_of_a_check_the_last_counts(read, cells, master):
    better = own("def twice(x):\n    return 2 * x")
    answers = read([*cells[:5], better, cells[4], *cells[5:]])
    assert order(answers, master)[1:4] == [TWICE, better["source"], "check twice"]
    assert answers.notes == (
        "the check of `twice` was there more than once: only the last one counts",
    )


def test_a_changed_check_runs_as_it_was_handed_out(read, cells, master):
    cells[4]["source"] = "100"
    cells[4]["metadata"]["nbgrader"].update(points=1000, grade=False, solution=True)
    answers = read(cells)
    assert order(answers, master) == USUAL
    (note,) = answers.notes
    assert note.startswith("the check of `twice` had been changed")


@pytest.mark.parametrize("kind", ["markdown", "raw", "worse", None, 7])
def test_an_answer_of_another_type_runs_all_the_same(read, cells, master, kind):
    cells[3]["cell_type"] = kind
    answers = read(cells)
    assert order(answers, master) == USUAL
    assert "the cell of `twice` had become" in answers.notes[0]


def test_what_the_student_switched_off_stays_off(read, cells, master):
    cells[8]["cell_type"] = "raw"
    assert order(read(cells), master) == USUAL[:-1]


def test_text_that_is_locked_is_as_it_was_handed_out(read, cells, master):
    about = {"grade_id": "rules", "grade": False, "solution": False, "locked": True}
    locked = new_markdown_cell("The rules.", id="rules", metadata={"nbgrader": about})
    master.notebook.cells.insert(1, locked)
    changed = json.loads(json.dumps({**locked, "source": "No rules."}))
    answers = read([cells[0], changed, *cells[1:]])
    assert answers.cells[1].source == "The rules."


@pytest.mark.parametrize(
    "renamed", ["other", "square-check ", "../../etc", "\ud800", ["twice"], {}]
)
def test_a_grade_id_that_is_not_known_is_not_needed(read, cells, master, renamed):
    cells[3]["metadata"]["nbgrader"]["grade_id"] = renamed
    cells[7]["metadata"]["nbgrader"]["grade_id"] = renamed
    assert order(read(cells), master) == USUAL
    cells[3]["id"] = renamed
    assert order(read(cells), master) == USUAL


def test_tags_and_marks_of_the_student_are_not_read(read, cells, master):
    for cell in cells:
        cell["metadata"]["tags"] = ["skip-execution", "raises-exception"]
        if "nbgrader" in cell["metadata"]:
            cell["metadata"]["nbgrader"].update(schema_version=2, solution=True, grade=True)
    answers = read(cells, metadata={"kernelspec": {"name": "bogus"}})
    assert order(answers, master) == USUAL
    made = rebuild(master, answers)
    assert made.metadata == master.notebook.metadata
    assert [c.metadata for c in made.cells] == [c.metadata for c in master.notebook.cells]


# Sizes


def test_of_too_many_cells_the_exercises_are_kept(read, cells, master, monkeypatch):
    monkeypatch.setattr(submission, "MAX_OWN_CELLS", 5)
    answers = read([own(f"x = {i}") for i in range(11)] + cells)
    assert order(answers, master) == [*(f"x = {i}" for i in range(5)), *USUAL]
    assert answers.notes == (
        "there are 11 cells besides those of the handout: those after the first 5 were left out",
    )


def test_empty_cells_do_not_count(read, cells, master, monkeypatch):
    monkeypatch.setattr(submission, "MAX_OWN_CELLS", 0)
    answers = read([own(" \n")] * 3 + cells)
    assert order(answers, master) == USUAL and answers.notes == ()


def test_a_cell_that_is_too_long_is_left_out(read, cells, master):
    cells[3]["source"] = "#" * (submission.MAX_SOURCE_LENGTH + 1)
    answers = read(cells)
    assert order(answers, master) == [USUAL[0], BLANK.format("twice"), *USUAL[2:]]
    assert answers.notes[0].startswith("cell 4 is longer than 262144 characters")


@pytest.mark.parametrize("broken", [None, 3, [], {}, {"source": 7}, {"source": ["a", 7]}])
def test_a_cell_without_text_is_left_out(read, cells, master, broken):
    answers = read([broken, *cells])
    assert order(answers, master) == USUAL
    assert answers.notes == ("cell 1 has no text: it was left out",)


def test_remarks_have_an_end(read, cells, master):
    answers = read([*([None] * 1000), *cells])
    assert len(answers.notes) == submission.MAX_NOTES
    assert answers.notes[-1] == "there are 981 more remarks like these"


def test_half_a_character_becomes_a_mark_and_whole_ones_stay(read, cells, master):
    cells[3]["source"] = TWICE + "  # \ud800 🙂"
    answers = read(cells)
    assert answers.cells[3].source == TWICE + "  # \ufffd 🙂"
    nbformat.writes(rebuild(master, answers)).encode()


def test_pictures_in_text_are_dropped_and_the_author_is_told(read, cells, master):
    cells[0]["attachments"] = {"a.png": {"image/png": "AAAA"}}
    answers = read(cells)
    assert answers.notes == ("pictures that were pasted into text are not kept",)
    assert "attachments" not in rebuild(master, answers).cells[0]


# Which file


def test_a_renamed_notebook_is_found_by_its_exercises(read, cells, master):
    answers = read(cells, name="numbers (1).ipynb")
    assert order(answers, master) == USUAL
    assert answers.notes == (
        "numbers (1).ipynb was graded, recognised by its exercises: it should be called "
        "numbers.ipynb",
    )


def test_the_notebook_of_the_right_name_goes_before_others(read, cells):
    read([*cells, own("1")], name="a.ipynb")
    read([*cells, own("2")], name="z.ipynb")
    answers = read(cells)
    assert answers.file == "numbers.ipynb"
    assert answers.notes == ("numbers.ipynb was graded, not a.ipynb, z.ipynb",)


def test_answers_go_before_the_right_name_and_later_copies_before_earlier(read, cells, master):
    read(json.loads(nbformat.writes(master.notebook))["cells"])
    one_answer = [*cells[:6], *json.loads(nbformat.writes(master.notebook))["cells"][6:]]
    assert read(one_answer, name="numbers (2).ipynb").file == "numbers (2).ipynb"
    assert read(cells, name="numbers (9).ipynb").file == "numbers (9).ipynb"
    assert read(cells, name="numbers (10).ipynb").file == "numbers (10).ipynb"
    assert read(one_answer, name="numbers (11).ipynb").file == "numbers (10).ipynb"
    assert read(one_answer).file == "numbers.ipynb"


def test_a_copy_is_graded_if_the_notebook_is_damaged(read, cells):
    (note, why) = (read(cells, name="copy.ipynb"), read(b"{", name="numbers.ipynb"))[1].notes
    assert note.startswith("copy.ipynb was graded, recognised by its exercises")
    assert why == "numbers.ipynb is damaged: it is not JSON, the format of notebooks"


def test_what_the_exchange_adds_is_no_news_but_says_when_something_came(read, cells, folder):
    before = read(cells).received
    (folder / "submission_secret.txt").write_text("3f")
    later = before.timestamp() + 700
    os.utime(folder / "submission_secret.txt", (later, later))
    answers = read(cells)
    assert answers.notes == ()
    assert answers.received.timestamp() == pytest.approx(later)


def test_other_files_are_named_and_not_used(read, cells, folder):
    for name in ("checks.py", "mistakes.py", "timestamp.txt", "helper.py", "data.csv"):
        (folder / name).write_text("1998-01-01")
    (folder / "torch").mkdir()
    assert read(cells).notes == ("only the notebook is used, not data.csv, helper.py, torch",)


# Refusals: one sentence, whatever lies there


def deep(folder):
    (folder / "numbers.ipynb").write_text('{"cells":' + "[" * 100_000)


def many_brackets(folder):
    (folder / "numbers.ipynb").write_text("[" + "[]," * 500_000 + "[]]")


def many_commas(folder):
    (folder / "numbers.ipynb").write_text("[" + "1," * 5_000_000 + "1]")


def sparse(folder):
    with (folder / "numbers.ipynb").open("wb") as file:
        file.truncate(2**40)


def pipe(folder):
    os.mkfifo(folder / "numbers.ipynb")


def link(folder):
    (folder.parent / "secret.ipynb").write_text("{}")
    (folder / "numbers.ipynb").symlink_to(folder.parent / "secret.ipynb")


def dangling(folder):
    (folder / "numbers.ipynb").symlink_to("/nowhere")


def a_folder(folder):
    (folder / "numbers.ipynb").mkdir()


def many_files(folder):
    for number in range(1001):
        (folder / f"{number}.txt").touch()


def text(words):
    def write(folder):
        (folder / "numbers.ipynb").write_text(words)

    return write


def nothing(folder):
    pass


@pytest.mark.parametrize(
    ("lay", "said"),
    [
        (nothing, "there is no notebook in the folder: numbers.ipynb is expected"),
        (text(""), "numbers.ipynb is empty"),
        (text(" \n"), "numbers.ipynb is empty"),
        (text("{"), "numbers.ipynb is damaged: it is not JSON"),
        (text("\x00" * 7), "numbers.ipynb is damaged"),
        (text("[" + "1" * 5000 + "]"), "numbers.ipynb is damaged"),
        (text("[]"), "numbers.ipynb is not a notebook"),
        (text('"cells"'), "numbers.ipynb is not a notebook"),
        (text("{}"), "numbers.ipynb has no version of the notebook format"),
        (text('{"nbformat": 3, "worksheets": []}'), "has version 3 of the notebook format"),
        (text('{"nbformat": "4"}'), "has no version of the notebook format"),
        (text('{"nbformat": 4}'), "numbers.ipynb has no list of cells"),
        (text('{"nbformat": 4, "cells": {}}'), "numbers.ipynb has no list of cells"),
        (text('{"nbformat": 4, "cells": []}'), "holds no exercise of numbers.ipynb"),
        (text('{"nbformat": 4, "cells": [' + "0, " * 20_000 + "0]}"), "more than 20,000 cells"),
        (deep, "numbers.ipynb is nested too deeply"),
        (many_brackets, "numbers.ipynb holds too much to be a notebook"),
        (many_commas, "numbers.ipynb holds too much to be a notebook"),
        (sparse, "numbers.ipynb is larger than 32 MB: clear its outputs and save it again"),
        (pipe, "numbers.ipynb is not a regular file"),
        (link, "numbers.ipynb is a link: submit the file itself"),
        (dangling, "numbers.ipynb is a link: submit the file itself"),
        (a_folder, "numbers.ipynb is not a regular file"),
        (many_files, "the folder holds more than 1000 files"),
    ],
)
def test_what_cannot_be_graded_is_refused_in_a_sentence(folder, master, lay, said):
    lay(folder)
    with pytest.raises(Unreadable, match=said) as refusal:
        answers_in(folder, master)
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 300


def test_a_folder_that_is_a_link_or_none_is_refused(folder, master, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(Unreadable, match="^the folder is a link: submit the files themselves$"):
        answers_in(tmp_path / "link", master)
    with pytest.raises(Unreadable, match="^the folder cannot be opened: No such file"):
        answers_in(tmp_path / "nowhere", master)


def test_no_file_stays_open(folder, master, read, cells):
    before = len(os.listdir("/proc/self/fd"))
    a_folder(folder)
    for _ in range(3):
        with pytest.raises(Unreadable):
            answers_in(folder, master)
    read(cells, name="good.ipynb")
    assert len(os.listdir("/proc/self/fd")) == before


def test_names_are_shown_on_one_line(read, cells, folder):
    odd = os.fsdecode(b"a\n\xff\x1b[2J.ipynb")
    answers = read(cells, name=odd)
    assert answers.file == "a\\n\\udcff\\x1b[2J.ipynb"
    assert shown("x" * 300) == "x" * 79 + "…"
    assert all(note.isprintable() for note in answers.notes)


# What is made of it


def test_a_rebuilt_notebook_is_the_handout_with_the_students_text(read, cells, master):
    cells[3]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "forged"}]
    cells.insert(4, own("1 + 1", id="../x", metadata={"tags": ["a"], "nbgrader": 7}))
    cells.insert(5, {"cell_type": "raw", "source": "raw", "metadata": {"format": "x"}})
    made = rebuild(master, read(cells))
    nbformat.validate(made)
    assert [c.id for c in made.cells if not c.id.startswith("own-")] == [
        c.id for c in master.notebook.cells
    ]
    mine = [c for c in made.cells if c.id.startswith("own-")]
    assert [(c.id, c.cell_type, c.source, c.metadata) for c in mine] == [
        ("own-1", "code", "1 + 1", {}),
        ("own-2", "raw", "raw", {}),
    ]
    assert made.cells[3].source == TWICE and made.cells[3].outputs == []
    assert made.cells[6].metadata.nbgrader.grade_id == "twice-check"


def test_rebuilding_leaves_the_master_alone(read, cells, master):
    before = nbformat.writes(master.notebook)
    made = rebuild(master, read(cells))
    made.cells[3].metadata.nbgrader["points"] = 1000
    made.metadata["kernelspec"]["name"] = "other"
    assert nbformat.writes(master.notebook) == before


@pytest.mark.parametrize("name", ["00_preliminaries", "03_multihead", "05_positions"])
def test_the_handouts_of_the_course_are_rebuilt_cell_by_cell(name, tmp_path):
    (path,) = (Path(__file__).parents[3] / "exercises" / name).glob("*.ipynb")
    (tmp_path / path.name).write_bytes(path.read_bytes())
    master = Master.read(path)
    answers = answers_in(tmp_path, master)
    assert rebuild(master, answers).cells == master.notebook.cells
    assert answers.notes == () and len(master.exercises) > 8


def test_when_a_folder_came_is_not_when_a_grader_wrote_into_it(master, tmp_path, monkeypatch):
    times = {"notes.txt": 3, "damaged.ipynb": 5, "timestamp.txt": 11, tmp_path.name: 13}
    for name in ("notes.txt", "damaged.ipynb", "timestamp.txt"):
        (tmp_path / name).touch()

    def came(path):
        return datetime.fromtimestamp(times[path.name], UTC)

    monkeypatch.setattr(submission, "_arrived", came)
    assert Submission.read(tmp_path, master).received == datetime.fromtimestamp(5, UTC)
    for path in tmp_path.iterdir():
        path.unlink()
    assert Submission.read(tmp_path, master).received == datetime.fromtimestamp(13, UTC)


# Files that are wanted beside the notebook


@pytest.fixture
def with_weights(master):
    return replace(master, wanted=("model.safetensors",))


def test_a_wanted_file_is_read_as_bytes_and_another_is_only_told_of(
    read, cells, folder, with_weights
):
    (folder / "model.safetensors").write_bytes(b"\x00\x01 weights")
    (folder / "plot.png").write_bytes(b"plot")
    read(cells)
    answers = answers_in(folder, with_weights)
    assert {name: file.data for name, file in answers.others.items()} == {
        "model.safetensors": b"\x00\x01 weights"
    }
    assert answers.notes == ("only the notebook is used, not plot.png",)


def test_another_wanted_file_is_another_hand_in(read, cells, folder, with_weights):
    read(cells)
    digests = {Submission.read(folder, with_weights).digest}
    for content in (b"one", b"two"):
        (folder / "model.safetensors").write_bytes(content)
        digests.add(Submission.read(folder, with_weights).digest)
    assert len(digests) == 3


def test_a_wanted_file_travels(read, cells, folder, with_weights):
    (folder / "model.safetensors").write_bytes(b"\xff weights")
    read(cells)
    here = Submission.read(folder, with_weights)
    there = pickle.loads(pickle.dumps(here))
    assert there == here
    assert there.digest == here.digest
    assert there.answers(with_weights).others["model.safetensors"].data == b"\xff weights"


def test_a_wanted_file_that_is_a_link_a_pipe_or_too_large_is_not_read(
    read, cells, folder, with_weights, tmp_path
):
    secret, path = tmp_path / "secret", folder / "model.safetensors"
    secret.write_text("a key")
    read(cells)
    path.symlink_to(secret)
    found = [answers_in(folder, with_weights).others]
    path.unlink()
    os.mkfifo(path)
    found.append(answers_in(folder, with_weights).others)
    path.unlink()
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    found.append(answers_in(folder, with_weights).others)
    files = [others["model.safetensors"] for others in found]
    assert [file.data for file in files] == [b""] * 3
    assert [file.problem for file in files] == [
        "model.safetensors is a link: submit the file itself",
        "model.safetensors is not a regular file",
        "model.safetensors is larger than 32 MB",
    ]


def test_the_last_of_the_wanted_files_says_when_a_submission_arrived(folder, master, cells, read):
    read(cells)
    (folder / "model.safetensors").write_bytes(b"weights")
    notebook = Submission.read(folder, master).notebooks["numbers.ipynb"]
    wanted = replace(master, wanted=("model.safetensors",))
    digest = Submission.read(folder, wanted).others["model.safetensors"].digest
    late = notebook.received + timedelta(days=1)
    assert Submission.read(folder, wanted, {digest: late}).answers(wanted).received == late
    early = {digest: notebook.received - timedelta(days=1)}
    assert Submission.read(folder, wanted, early).answers(wanted).received == notebook.received


def test_more_code_than_anybody_writes_is_refused_before_it_is_searched(read, cells):
    cells += [own("\n" * (MAX_SOURCE_LENGTH - 9) + f"x = {n}") for n in range(5)]
    with pytest.raises(Unreadable, match="more than 1,048,576 characters of code"):
        read(cells)
