"""What is wrong, or only odd, with files: their cells, their format, their names.

Every one of them is a whole folder that a student hands in.
"""

import copy
import json
import os
import re

from corpus import ALL, NAME, NOTHING, REST, RIGHT, WRONG, Case

HANDED_IN: dict[str, Case] = {}
_ENDLESS = "it is copied without end"


def attack(deserved, why="", student="", **about):
    """Say what a way of handing in deserves, and which words its author is told."""

    def note(prepare):
        name = prepare.__name__.replace("_", " ")
        HANDED_IN[name] = Case(
            name, deserved, re.escape(why), prepare=prepare, student=student, **about
        )
        return prepare

    return note


# Cells


@attack(REST, "the check of `attacked` had been changed")
def edited_check(work):
    work.answer(WRONG)
    work.check()["source"] = "from classroom.student.selfcheck import Score\nScore(7)"


@attack(REST)
def worth_a_thousand_points(work):
    work.answer(WRONG)
    work.about("attacked-check")["points"] = 1000


@attack(REST)
def forged_outputs(work):
    work.answer(WRONG)
    data = {"text/plain": "1000"}
    forged = {"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": 1}
    work.check()["outputs"] = [forged]


@attack(REST)
def skipped_check(work):
    work.answer(WRONG)
    work.check()["metadata"]["tags"] = ["skip-execution", "remove-cell"]


@attack(ALL)
def skipped_answer(work):
    work.cell("attacked")["metadata"]["tags"] = ["skip-execution"]


@attack(ALL, "the check of `attacked` was missing or above the answer")
def deleted_check(work):
    work.notebook["cells"].remove(work.check())


@attack(REST, "the cell of `attacked` was missing")
def deleted_answer(work):
    work.notebook["cells"].remove(work.cell("attacked"))


@attack(ALL)
def marks_stripped(work):
    for cell in work.notebook["cells"]:
        cell["metadata"] = {}
        del cell["id"]


@attack(ALL)
def renamed_grade_ids(work):
    for name in ("first", "attacked-check", "last"):
        work.about(name)["grade_id"] = "mine"


@attack(ALL, "the check of `attacked` was there more than once")
def doubled_check(work):
    work.notebook["cells"].insert(3, copy.deepcopy(work.check()))


@attack(REST, "there are 2 cells of `attacked`")
def doubled_answer_of_which_the_last_is_wrong(work):
    again = copy.deepcopy(work.cell("attacked"))
    again["source"] = WRONG
    work.notebook["cells"].insert(work.place(work.check()), again)


@attack(ALL, "the check of `first` was there more than once")
def whole_notebook_pasted_twice(work):
    work.notebook["cells"] += copy.deepcopy(work.notebook["cells"])


@attack(ALL, "above the answer")
def reversed_order(work):
    work.notebook["cells"].reverse()


@attack(ALL)
def flipped_flags(work):
    work.about("attacked").update(grade=True, solution=False, points=5)
    work.about("attacked-check").update(grade=False, solution=True)


@attack(ALL)
def check_turned_into_text(work):
    work.check()["cell_type"] = "markdown"


@attack(ALL, "the cell of `attacked` had become markdown")
def answer_turned_into_text(work):
    work.cell("attacked")["cell_type"] = "markdown"


@attack(ALL)
def old_schema(work):
    for name in RIGHT:
        work.about(name)["schema_version"] = 2
        work.about(f"{name}-check")["schema_version"] = "99"


@attack(REST)
def errors_are_allowed_at_the_check(work):
    work.answer(WRONG)
    work.check()["metadata"]["tags"] = ["raises-exception"]


@attack(ALL, "the check of `attacked` was missing or above the answer")
def check_above_its_answer(work):
    work.notebook["cells"].remove(check := work.check())
    work.notebook["cells"].insert(1, check)


@attack(ALL)
def another_kernel(work):
    work.notebook["metadata"] = {"kernelspec": {"name": "bogus", "display_name": "Bogus"}}


@attack(ALL)
def ids_that_are_paths_and_half_characters(work):
    for number, name in enumerate(("../../gradebook.db", "\ud800", "a" * 99, "", "first")):
        cell = work.insert(number, "1 + 1", id=name)
        cell["metadata"] = {"nbgrader": {"grade_id": name, "grade": True, "points": 50}}
        if name == "first":
            cell["metadata"] = {}


@attack(ALL, "those after the first 500 were left out")
def ten_thousand_cells(work):
    work.notebook["cells"] += [
        {"cell_type": "code", "source": f"x = {i}", "metadata": {}} for i in range(10_000)
    ]


@attack(ALL, "is longer than 262144 characters")
def a_cell_of_twenty_million_characters(work):
    work.insert(1, "#" * 20_000_000, kind="markdown")


@attack(ALL, "has no text")
def cells_that_are_none(work):
    work.notebook["cells"] = [None, 7, [], {"source": {"a": 1}}, *work.notebook["cells"]]


@attack(ALL, "stopped: ")
def a_cell_of_zero_bytes(work):
    work.insert(1, "\0")


@attack(ALL, "pictures that were pasted into text are not kept")
def script_in_a_picture(work):
    attached = {"a.svg": {"image/svg+xml": "<svg onload=alert(1)>"}}
    work.insert(1, "![a](attachment:a.svg)", kind="markdown", attachments=attached)


@attack(ALL)
def large_metadata(work):
    work.notebook["metadata"]["large"] = "x" * 30_000_000


# Files


@attack(ALL, "only the notebook is used, not notes.txt")
def link_beside_the_notebook(work):
    (work.folder / "notes.txt").symlink_to(work.outside["FOLDER"] + "/gradebook.db")


@attack(NOTHING, "is damaged")
def damaged(work):
    work.text(json.dumps(work.notebook)[:-7])


@attack(NOTHING, "is empty")
def empty(work):
    work.text("")


@attack(NOTHING, "has version 3 of the notebook format")
def old_format(work):
    work.text(json.dumps({"nbformat": 3, "worksheets": [{"cells": work.notebook["cells"]}]}))


@attack(NOTHING, "is nested too deeply")
def nested(work):
    work.text('{"metadata":' + "[" * 300_000)


@attack(NOTHING, "holds too much")
def list_bomb(work):
    work.text("[" + "[]," * 5_000_000 + "[]]")


@attack(NOTHING, "is damaged")
def number_bomb(work):
    work.text('{"nbformat": ' + "4" * 10_000_000 + "}")


@attack(NOTHING, "is larger than 32 MB")
def too_large(work):
    work.blank["metadata"]["large"] = "x" * 40_000_000
    work.write(notebook=work.blank)
    del work.blank["metadata"]["large"]


@attack(NOTHING, "is larger than 32 MB", not_for_stock=_ENDLESS)
def a_file_of_holes(work):
    with (work.folder / NAME).open("wb") as file:
        file.truncate(2**42)


@attack(NOTHING, "is a link")
def link_to_the_gradebook(work):
    work.link(work.outside["FOLDER"] + "/gradebook.db")


@attack(NOTHING, "is a link")
def link_to_a_neighbour(work):
    work.link(work.folder.parents[1] / "zoe" / "09_exam" / NAME)


@attack(NOTHING, "is a link", not_for_stock=_ENDLESS)
def link_to_no_end(work):
    work.link("/dev/zero")


@attack(NOTHING, "the folder is a link")
def folder_that_is_a_link(work):
    work.folder.rmdir()
    work.folder.symlink_to(work.folder.parents[1] / "zoe" / "09_exam")


@attack(NOTHING, "the student's folder is a link")
def student_who_is_a_link(work):
    work.folder.rmdir()
    work.folder.parent.rmdir()
    work.folder.parent.symlink_to(work.folder.parents[1] / "zoe")


@attack(NOTHING, "is not a regular file", is_alone=True)
def pipe(work):
    os.mkfifo(work.folder / NAME)


@attack(NOTHING, "is not a regular file")
def folder_with_the_name_of_a_notebook(work):
    (work.folder / NAME).mkdir()


@attack(NOTHING, "the folder cannot be opened")
def file_in_place_of_a_folder(work):
    work.folder.rmdir()
    work.folder.write_text("{}")


@attack(NOTHING, "there is no notebook in the folder")
def nothing_in_it(work):
    work.text("def first(x): ...", name="exam.py")
    work.has_no_notebook = True


@attack(NOTHING, "holds more than 1000 files")
def two_thousand_files(work):
    for number in range(2000):
        (work.folder / f"exam ({number}).ipynb").touch()


@attack(NOTHING, "holds no exercise")
def notebook_of_another_assignment(work):
    work.notebook["cells"] = [{"cell_type": "code", "source": "1", "metadata": {}}]
    work.write()


@attack(ALL, "should be called exam.ipynb")
def renamed_file(work):
    work.write("exam (1).ipynb")


@attack(ALL, "exam-Copy1.ipynb was graded, not exam.ipynb")
def answers_in_a_copy(work):
    work.write(notebook=work.blank)
    work.write("exam-Copy1.ipynb")


@attack(REST, "only the notebook is used, not ")
def packages_that_shadow_others(work):
    work.answer("import math, giveaway\n" + WRONG)
    giveaway = "def oracle(x): return x - x.mean(dim=0)\ndef expect_agrees(*args): pass\n"
    for name in ("math", "torch", "sitecustomize", "nbgrader_config", "conftest", "giveaway"):
        work.text("raise SystemExit('shadowed')", name=f"{name}.py")
    for name in ("checks.py", "mistakes.py"):
        work.text(giveaway, name=name)
    work.write()


@attack(ALL)
def back_dated(work):
    work.text("1999-01-01 00:00:00 UTC", name="timestamp.txt")
    work.write()
    os.utime(work.folder / NAME, (0, 0))


@attack(ALL)
def no_date_at_all(work):
    work.text("not a date", name="timestamp.txt")
    work.write()


@attack(ALL)
def date_that_is_a_link(work):
    (work.folder / "timestamp.txt").symlink_to(work.outside["FOLDER"] + "/seed")


@attack(ALL)
def editor_of_another_system(work):
    data = json.dumps(work.notebook).replace("\\n", "\\r\\n")
    (work.folder / NAME).write_bytes(data.encode("utf-16"))


@attack(ALL, "was graded, not")
def handed_in_twice(work):
    work.write()
    work.write("exam (1).ipynb")


@attack(ALL)
def half_a_character_in_an_answer(work):
    work.answer(RIGHT["attacked"] + "  # \ud800")


@attack(REST)
def script_in_text_and_output(work):
    work.answer(WRONG)
    script = "<script>alert(198)</script>"
    work.insert(1, script + "<img src=x onerror=alert(198)>", kind="markdown")
    work.insert(2, f"from IPython.display import HTML\nHTML({script!r})")


# Names


@attack(ALL, student="a+b")
def plus(work):
    pass


@attack(ALL, student="x\\..\\..\\ada")
def path_of_another_system(work):
    pass


@attack(ALL, student="%2e%2e%2fada")
def path_in_disguise(work):
    pass


@attack(ALL, student="=cmd|calc!A0")
def formula(work):
    pass


@attack(ALL, student="-2+3")
def sum_of_numbers(work):
    pass


@attack(ALL, student='Zoë, née "O\'Brien"; x')
def separators(work):
    pass


@attack(ALL, student="a\n\x1b[2J\x1b[31mb")
def orders_to_the_terminal(work):
    pass


@attack(ALL, "this submission is not in the gradebook", student=os.fsdecode(b"\xff\xfe"))
def no_text(work):
    pass


@attack(ALL, student="<script>alert(1)</script>".replace("/", "|"))
def markup(work):
    work.text("", name="<img src=x onerror=alert(1)>.csv")


@attack(ALL, "\\x1b[2J", student="odd file")
def order_in_the_name_of_a_file(work):
    work.write("\x1b[2J.ipynb")
