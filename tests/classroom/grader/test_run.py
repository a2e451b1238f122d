import contextlib
import hashlib
import json
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
import torch
from nbgrader.api import Gradebook

from classroom.__main__ import main
from classroom.author.notebooks import build_notebook, cell_of, write_notebook
from classroom.exercise.run import run_checks
from classroom.grader import run
from classroom.grader.processes import Killed, Turns
from classroom.grader.run import (
    Assignment,
    Execution,
    Settings,
    ThisMachine,
    execute,
    grade,
    grade_folder,
)
from classroom.grader.submission import Submission, students_in
from classroom.grader.verdicts import VERDICTS, read_history, read_lines
from classroom.limits import Limits
from classroom.sandbox.job import Job
from classroom.sandbox.layers import probe

CENTRE = "def centre(x):\n    return x - x.mean(dim=0)"
SEED = "secret"


@pytest.fixture
def graded(launcher, handout, hand_in):
    """Hand in and run; return the points by exercise, and the execution."""

    def work(limits=None, **cells):
        answers = answers_in(hand_in(**cells), handout.master)
        execution = execute(launcher, handout, answers, SEED, limits or Limits())
        return {name: report.earned for name, report in execution.reports.items()}, execution

    return work


def answers_in(folder, master):
    return Submission.read(folder, master).answers(master)


def said(execution, exercise):
    return "\n".join(execution.reports[exercise].messages)


# One submission


def test_right_answers_earn_all_and_blanks_nothing(graded):
    assert graded()[0] == {"centre": 3, "twice": 2}
    points, execution = graded(centre=None, twice=None)
    assert points == {"centre": 0, "twice": 0}
    assert said(execution, "centre") == (
        "`centre` is not written yet. Return the rows minus their mean."
    )


def test_a_mistake_is_named_and_a_half_right_answer_earns_its_part(graded):
    points, execution = graded(centre="def centre(x):\n    return x - x.mean(1, keepdim=True)")
    assert points == {"centre": 0, "twice": 2}
    assert execution.reports["centre"].mistakes == ["MeanOfEachRow"]
    half = "def centre(x):\n    return (x - x.mean(0)) * torch.ones(1, 1).double() * 2"
    assert graded(centre=half)[0] == {"centre": 2, "twice": 2}


def test_a_process_that_computes_with_several_threads_can_grade(graded):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.ones(500, 500).softmax(-1)  # starts them
        points, execution = graded(centre="def centre(x):\n    return x - x.mean(1, keepdim=True)")
    finally:
        torch.set_num_threads(before)
    assert points == {"centre": 0, "twice": 2}
    assert execution.reports["centre"].mistakes == ["MeanOfEachRow"]


def test_a_report_is_that_of_the_self_check(graded, handout, student):
    wrong = "def centre(x):\n    return x.mean(dim=0)"
    _, execution = graded(centre=wrong)
    local = run_checks(handout.folder, "centre", student(wrong), SEED)
    assert execution.reports["centre"].to_json() == local.to_json()


def test_helpers_imports_and_magics_of_the_student_work(graded, handout, hand_in):
    own = {
        1: "%matplotlib inline\nimport numpy as np",
        2: "np.zeros(3)",
        4: "def mean(x):\n    return x.mean(dim=0)",
        9: "2 + 3",
    }
    points, execution = graded(centre="def centre(x):\n    return x - mean(x)", own=own)
    assert points == {"centre": 3, "twice": 2} and execution.errors == {}


def test_the_executed_notebook_shows_what_the_cells_showed(graded):
    _, execution = graded(own={2: "print('hello')\n6 * 7", 3: "1 / 0"})
    notebook = execution.notebook()
    nbformat.validate(notebook)
    shown, failed = notebook.cells[2].outputs, notebook.cells[3].outputs
    assert [o.output_type for o in shown] == ["stream", "execute_result"]
    assert failed[0].ename == "ZeroDivisionError"
    assert cell_of(notebook, "centre-check").outputs == []
    assert notebook.cells[-5].outputs[0].text == "one is done\n"
    assert execution.errors == {3: "stopped: ZeroDivisionError: division by zero"}


@pytest.mark.parametrize(
    "line",
    [
        "torch.optim.SGD([x], lr=1.0)",
        "from torch.testing import assert_close",
        "torch.func.jacrev(torch.sin)(x)",
        "torch.autograd.gradcheck(torch.sin, x)",
        "torch.autograd.functional.jacobian(torch.sin, x, vectorize=True)",
        "from torch.utils.checkpoint import checkpoint",
        "torch.use_deterministic_algorithms(True)",
        "torch.compile(torch.sin)(x)",
    ],
)
def test_torchs_compiler_is_imported_before_the_job_of_answers_that_need_it(line, handout, hand_in):
    def needs_it(**own):
        return Execution(handout, answers_in(hand_in(**own), handout.master)).needs_compiler

    assert not needs_it(own={11: line})  # which is not run
    assert needs_it(own={2: line})


def test_nothing_after_the_last_check_is_run(graded):
    points, execution = graded(own={8: "print('seen')", 11: "while True: pass"})
    assert points == {"centre": 3, "twice": 2}
    assert execution.errors == {} and set(execution.outputs) == {1, 3, 5, 8, 9}
    assert execution.notebook().cells[11].outputs == []


def test_a_file_beside_the_notebook_reaches_the_checks_and_not_the_code(launcher, handout, hand_in):
    path = handout.folder / "checks.py"
    checks = path.read_text().replace("deeper=True,", "deeper=True, files=('number.txt',),")
    path.write_text(checks.replace("case.integer(1, 1000)", "int(subject.file('number.txt'))"))
    assignment, reports = Assignment(handout.folder), []
    reads_it = "def twice(number):\n    return 2 * int(open('number.txt').read())"
    for cells, number in (({}, None), ({}, "17"), ({"twice": reads_it}, "17")):
        folder = hand_in(**cells)
        if number:
            (folder / "number.txt").write_text(number)
        answers = answers_in(folder, assignment.master)
        assert answers.notes == ()
        execution = execute(launcher, assignment, answers, SEED, Limits())
        reports.append(execution.reports["twice"])
    assert [report.earned for report in reports] == [0, 2, 0]
    assert "`number.txt` is not beside the notebook" in reports[0].messages[0]
    assert "FileNotFoundError" in reports[2].messages[0]


def test_a_cell_that_ends_its_process_is_left_out_and_nothing_else_is(
    graded, monkeypatch, tmp_path
):
    checked = tmp_path / "checked"

    def count(folder, exercise, *rest):
        with checked.open("a") as file:  # by a fork
            file.write(f"{exercise}\n")
        return run_checks(folder, exercise, *rest)

    monkeypatch.setattr(run, "run_checks", count)
    own = {1: "import os", 5: "os._exit(3)", 6: "os.kill(os.getpid(), 9)"}
    points, execution = graded(own=own)
    assert points == {"centre": 3, "twice": 2}
    assert execution.errors == {
        5: "was left out: it ended its own process with the status 3",
        6: "was left out: its process was ended by the signal SIGKILL",
    }
    assert checked.read_text().split() == ["centre", "twice"]
    assert execution.outputs[8][0]["text"] == "one is done\n"


def test_what_was_too_slow_beside_others_is_tried_again_alone(
    launcher, handout, hand_in, tmp_path, monkeypatch
):
    taken = []

    class Watched(Turns):
        @contextlib.contextmanager
        def taken(self, alone=False):
            taken.append(alone)
            yield

    # Beside others, everything counts ten thousand times.
    monkeypatch.setattr(
        Job, "cpu_seconds", lambda job: time.monotonic() * (1 if taken[-1] else 10_000)
    )
    slow = "import time\ndef twice(number):\n    time.sleep(0.2)\n    return number + number"
    answers = answers_in(hand_in(twice=slow), handout.master)
    found = execute(launcher, handout, answers, SEED, Limits(), Watched(tmp_path))
    assert taken == [False, True]
    assert [found.reports[name].earned for name in ("centre", "twice")] == [3, 2]
    assert found.errors == {}
    taken.clear()
    found = execute(launcher, handout, answers, SEED, Limits(), Watched())
    assert taken == [False] and found.reports["twice"].earned == 0


def test_scores_are_kept_although_the_gradebook_is_locked(here, handout, hand_in, submitted, kept):
    for student in ("ada", "zoe"):
        hand_in(student)

    def locked(verdict, notebook):
        raise BlockingIOError("the gradebook is locked")

    with pytest.raises(BlockingIOError, match="the gradebook is locked"):
        grade_folder(handout, submitted, kept, locked)
    assert [(v.student, v.earned) for v in read_lines(kept / VERDICTS)] == [("ada", 5)]
    assert grade_folder(handout, submitted, kept, lambda *graded: None).num_new == 2
    assert all(verdict.in_gradebook for verdict in read_lines(kept / VERDICTS))


def test_a_stop_while_the_gradebook_is_written_leaves_no_line(
    here, handout, hand_in, submitted, kept
):
    hand_in("ada")

    def stop(verdict, notebook):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grade_folder(handout, submitted, kept, stop)
    grade_folder(handout, submitted, kept, lambda *graded: None)
    assert [verdict.in_gradebook for verdict in read_history(kept / VERDICTS)["ada"]] == [True]


def test_an_answer_that_ends_its_process_costs_its_own_exercise(graded):
    points, execution = graded(centre="import os\ndef centre(x):\n    os._exit(0)")
    assert points == {"centre": 0, "twice": 2}
    assert "`centre` ended the process that it ran in" in said(execution, "centre")


def test_an_answer_that_ends_the_whole_job_costs_its_own_exercise(graded):
    killer = "import os\ndef centre(x):\n    os.kill(os.getppid(), 9)\n    os._exit(0)"
    points, execution = graded(centre=killer, own={1: "1 + 1"})
    assert points == {"centre": 0, "twice": 2} and execution.errors == {}


def test_a_cell_without_an_end_is_told_so_and_nothing_else_is_lost(graded):
    stubborn = "sum(range(10**12))"  # in C, where no interrupt is heard
    own = {1: "import time\ntime.sleep(60)", 2: stubborn}
    points, execution = graded(Limits(seconds_per_cell=1.5), own=own)
    assert points == {"centre": 3, "twice": 2}
    assert execution.errors[1] == "did not end within 1.5 s"
    assert execution.errors[2].startswith("was left out: it did not end in time")


def test_the_time_of_a_submission_is_kept_and_what_was_checked_in_it_counts(graded):
    sleep = "import time\ntime.sleep(60)"
    points, execution = graded(Limits(seconds_per_submission=6.0), own={5: sleep, 6: sleep})
    assert points == {"centre": 3, "twice": 0}
    assert execution.seconds < 7
    assert said(execution, "twice") == (
        "The time for the whole submission was used up before this was checked."
    )


# One folder


@pytest.fixture
def settings(handout):
    return Settings(assignment=handout, limits=Limits(), allow_weaker=False, seed=SEED)


@pytest.fixture
def judged(launcher, settings, submitted):
    def work(student="ada"):
        folder = submitted / student / "07_averages"
        return grade(launcher, settings, Submission.read(folder, settings.assignment.master))

    return work


def test_a_verdict_says_what_was_graded_and_how(judged, hand_in, settings):
    folder = hand_in(own={2: "1 / 0"})
    (folder / "data.csv").touch()
    verdict, _ = judged()
    assert (verdict.student, verdict.assignment) == ("ada", "07_averages")
    assert (verdict.earned, verdict.points) == (5, 5)
    assert [report.exercise for report in verdict.reports] == ["centre", "twice"]
    assert verdict.errors == ("cell 3 stopped: ZeroDivisionError: division by zero",)
    assert verdict.notes == ("only the notebook is used, not data.csv",)
    data = (folder / "averages.ipynb").read_bytes()
    assert verdict.digest == hashlib.sha256(data).hexdigest()
    assert verdict.seed_commitment == hashlib.sha256(SEED.encode()).hexdigest()
    assert verdict.layers == ("bubblewrap", "namespaces", "Landlock", "seccomp")
    assert not verdict.allow_weaker
    assert SEED not in json.dumps(verdict.to_json())


def test_a_given_cell_that_stops_is_no_remark(judged, hand_in):
    """A given cell prints; what broke it is the student's, and told where it is checked."""
    hand_in(own={2: "def print(*args):\n    raise ValueError('no')"})
    verdict, notebook = judged()
    assert verdict.errors == ()
    notebook = nbformat.reads(notebook, as_version=4)
    assert notebook.cells[-5].outputs[0].ename == "ValueError"


def test_remarks_stand_at_the_top_of_the_notebook_as_plain_text(judged, hand_in):
    folder = hand_in(own={2: "raise ValueError('<script>```</script>\\n```\\n# big')"})
    (folder / "<img src=x>.csv").touch()
    notebook = nbformat.reads(judged()[1], as_version=4)
    nbformat.validate(notebook)
    lines = notebook.cells[0].source.splitlines()
    assert (lines[0], lines[-1]) == ("```text", "```")
    assert lines[1:-1] == [
        "- only the notebook is used, not <img src=x>.csv",
        "- cell 3 stopped: ValueError: <script>```</script>",
    ]


def test_what_cannot_be_read_earns_nothing_and_is_told_why(judged, hand_in):
    folder = hand_in()
    (folder / "averages.ipynb").write_text("{")
    verdict, notebook = judged()
    assert verdict.problem.startswith("averages.ipynb is damaged")
    assert [(r.earned, r.points) for r in verdict.reports] == [(0, 3), (0, 2)]
    assert verdict.reports[0].messages[0].startswith("Nothing was checked: averages.ipynb is")
    notebook = nbformat.reads(notebook, as_version=4)
    assert "is damaged" in notebook.cells[0].source
    assert "raise NotImplementedError" in cell_of(notebook, "centre").source


def test_a_link_to_anothers_folder_is_not_followed(judged, hand_in, submitted):
    hand_in("ada")
    (submitted / "eve").symlink_to(submitted / "ada")
    (submitted / "mallory").mkdir()
    (submitted / "mallory" / "07_averages").symlink_to(submitted / "ada" / "07_averages")
    for student in ("eve", "mallory"):
        verdict, _ = judged(student)
        assert verdict.earned == 0 and "folder is a link" in verdict.problem


def test_a_verdict_stands_as_long_as_nothing_has_changed(here, hand_in, handout, submitted, kept):
    folder = hand_in()
    limits = Limits(processes=7)
    for change, is_graded in {
        "nothing": True,
        "nothing more": False,
        "what was handed in": True,
        "what comes with it": False,
        "limits": True,
        "checks": True,
    }.items():
        if change == "what was handed in":
            hand_in(twice=None)
        if change == "what comes with it":
            (folder / ".ipynb_checkpoints").mkdir()
        if change == "checks":
            with (handout.folder / "checks.py").open("a") as file:
                file.write("\n# changed\n")
        del here[:]
        used = limits if change in ("limits", "checks") else None
        summary = grade_folder(Assignment(handout.folder), submitted, kept, limits=used)
        assert here == ["ada"] * is_graded and summary.num_new == is_graded, change


def test_a_verdict_of_a_weaker_sandbox_stands_only_as_long_as_there_is_no_better(
    here, hand_in, handout, submitted, kept, monkeypatch
):
    hand_in()
    grade_folder(handout, submitted, kept)
    lines = (kept / VERDICTS).read_text()
    assert '"seccomp"' in lines
    (kept / VERDICTS).write_text(lines.replace(', "seccomp"', ""))
    layers = [replace(x, active=x.name != "seccomp", why_not="gone") for x in probe()]
    with monkeypatch.context() as patch:
        patch.setattr(run, "probe", lambda: tuple(layers))
        grade_folder(handout, submitted, kept, allow_weaker=True)
    assert here == ["ada"]
    grade_folder(handout, submitted, kept)
    assert here == ["ada", "ada"]


def test_only_folders_of_the_assignment_are_found(hand_in, submitted):
    for student in ("zoe", "=cmd|calc!A0", "Zoë, née O'Brien", "a+b"):
        hand_in(student)
    hand_in(".hidden")
    (submitted / "late").mkdir()
    (submitted / ".DS_Store").touch()
    assert students_in(submitted, "07_averages") == [
        "=cmd|calc!A0",
        "Zoë, née O'Brien",
        "a+b",
        "zoe",
    ]


# A class


def test_a_class_is_graded_kept_and_not_graded_again(here, hand_in, handout, submitted, tmp_path):
    kept, seen = tmp_path / "graded", []
    hand_in("bo", twice=None)
    hand_in("ada")
    first = grade_folder(handout, submitted, kept, progress=lambda *at: seen.append(at))
    assert [(v.student, v.earned) for v in first.verdicts] == [("ada", 5), ("bo", 3)]
    assert seen == [(0, 2), (1, 2), (2, 2)] and first.num_new == 2 and first.failed == ()
    assert read_lines(kept / VERDICTS) == list(first.verdicts)
    assert kept.stat().st_mode & 0o777 == 0o700
    hand_in("cy", centre=None)
    again = grade_folder(handout, submitted, kept)
    assert here == ["ada", "bo", "cy"]
    assert again.verdicts[:2] == first.verdicts and again.num_new == 1
    assert grade_folder(handout, submitted, kept).report is None
    shutil.rmtree(submitted / "bo")
    assert len(grade_folder(handout, submitted, kept).verdicts) == 2


def test_some_are_graded_and_some_again_and_the_others_keep_their_scores(
    here, hand_in, handout, submitted, tmp_path
):
    kept = tmp_path / "graded"
    for student in ("ada", "bo", "cy"):
        hand_in(student)
    few = grade_folder(handout, submitted, kept, students={"ada", "bo"})
    assert here == ["ada", "bo"] and [v.student for v in few.verdicts] == ["ada", "bo"]
    hand_in("ada", twice=None)
    hand_in("bo", twice=None)
    again = grade_folder(handout, submitted, kept, students={"bo", "cy"}, again={"cy", "ada"})
    assert here[2:] == ["bo", "cy"]
    assert [(v.student, v.earned) for v in again.verdicts] == [("ada", 5), ("bo", 3), ("cy", 5)]
    grade_folder(handout, submitted, kept, students={"cy"}, again={"cy"})
    assert here[4:] == ["cy"]


def test_the_seed_is_secret_and_new_for_each_run_and_then_revealed(
    here, hand_in, handout, submitted, tmp_path
):
    kept, during = tmp_path / "graded", []

    def look(done, total):
        during.append([p.name for p in kept.iterdir() if p.stat().st_mode & 0o077 == 0])

    hand_in("ada")
    first = grade_folder(handout, submitted, kept, progress=look)
    assert all("unfinished_run.json" in names for names in during)
    assert not (kept / "unfinished_run.json").exists()
    report = json.loads(first.report.read_text())
    assert hashlib.sha256(report["seed"].encode()).hexdigest() == report["seed_commitment"]
    assert first.verdicts[0].seed_commitment == report["seed_commitment"]
    assert report["students"] == ["ada"] and len(report["seed"]) == 64
    hand_in("bo")
    second = grade_folder(handout, submitted, kept)
    assert json.loads(second.report.read_text())["seed"] != report["seed"]
    assert json.loads(second.report.read_text())["students"] == ["bo"]


def test_a_stopped_run_goes_on_with_its_seed(here, hand_in, handout, submitted, tmp_path):
    kept = tmp_path / "graded"
    for student in ("ada", "bo", "cy"):
        hand_in(student)

    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grade_folder(handout, submitted, kept, progress=stop)
    with (kept / VERDICTS).open("a") as file:
        file.write('{"half a')
    summary = grade_folder(handout, submitted, kept)
    assert here == ["ada", "bo", "cy"] and summary.num_new == 1
    assert len({verdict.seed_commitment for verdict in summary.verdicts}) == 1
    assert json.loads(summary.report.read_text())["students"] == ["ada", "bo", "cy"]


def test_the_gradebook_is_told_before_a_verdict_is_finished(
    here, hand_in, handout, submitted, tmp_path
):
    kept, told = tmp_path / "graded", []

    def gradebook(verdict, notebook):
        lines = kept / VERDICTS
        told.append((verdict.student, verdict.earned, lines.exists()))
        assert cell_of(notebook, "centre").source == CENTRE
        if verdict.student == "bo":
            raise ValueError("no such name")

    hand_in("ada")
    hand_in("bo")
    summary = grade_folder(handout, submitted, kept, gradebook)
    assert told == [("ada", 5, False), ("bo", 5, True)]
    assert [v.in_gradebook for v in summary.verdicts] == [True, False]
    assert summary.verdicts[1].notes == ("this submission is not in the gradebook: no such name",)
    assert summary.unrecorded == {"bo": "no such name"}
    grade_folder(handout, submitted, kept, gradebook)
    assert [name for name, *_ in told] == ["ada", "bo", "bo"]
    grade_folder(handout, submitted, kept)
    assert here == ["ada", "bo", "bo"]


def test_a_grader_that_fails_is_no_verdict(
    sealed, hand_in, handout, submitted, tmp_path, monkeypatch
):
    kept = tmp_path / "graded"
    hand_in("ada")

    def fails(launcher, settings, submission, turns):
        raise MemoryError("\x1b[2J")

    def side_by_side(grader, submissions, workers, started):
        with replace(grader, sandbox=None)() as work:
            return [(each, work(each)) for each in submissions]

    monkeypatch.setattr(run, "grade", fails)
    monkeypatch.setattr(run, "side_by_side", side_by_side)
    summary = grade_folder(handout, submitted, kept)
    assert summary.failed == ("ada",) and summary.verdicts[0].earned == 0
    assert summary.verdicts[0].problem == (
        "the grader failed, which is not the student's fault (MemoryError: \\x1b[2J)"
    )
    assert not (kept / VERDICTS).exists() and summary.report is None


# Several processes


@pytest.mark.slow
def test_a_killed_grader_costs_nobody_anything(sealed, hand_in, settings):
    """Whoever is graded while it is killed is graded again, and the others go on."""
    master = settings.assignment.master
    submissions = [Submission.read(hand_in(f"student {i}"), master) for i in range(3)]
    came, killed = [], []
    for verdict, _ in ThisMachine(num_workers=2).grade_all(settings, submissions):
        came.append((verdict.student, verdict.earned, verdict.is_final))
        if not killed:
            killed.append(kill_a_child())
    assert killed and sorted(came) == [(f"student {i}", 5, True) for i in range(3)]


def kill_a_child():
    for path in Path(f"/proc/{os.getpid()}/task/{os.getpid()}").glob("children"):
        for child in path.read_text().split():
            if b"classroom.grader.processes" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(int(child), signal.SIGKILL)
                return child
    raise AssertionError("there is no child to kill")


def test_a_submission_that_kills_its_grader_each_time_is_named(
    launcher, hand_in, settings, monkeypatch
):
    master = settings.assignment.master
    submissions = [Submission.read(hand_in(name), master) for name in ("ada", "poison", "zoe")]

    def side_by_side(grader, submissions, workers, started):
        for each in submissions:
            poisoned = each.student == "poison"
            yield (
                each,
                Killed("by the signal SIGKILL") if poisoned else grade(launcher, settings, each),
            )

    monkeypatch.setattr(run, "side_by_side", side_by_side)
    found = ThisMachine().grade_all(settings, submissions)
    came = {verdict.student: verdict for verdict, _ in found}
    earned = {student: verdict.earned for student, verdict in came.items()}
    assert earned == {"ada": 5, "poison": 0, "zoe": 5}
    why = "a process of the grader was killed by the signal SIGKILL"
    assert why in came["poison"].problem
    assert [name for name, verdict in came.items() if not verdict.is_final] == ["poison"]


def test_nothing_is_started_where_there_is_nothing_to_grade(
    here, hand_in, handout, submitted, kept, monkeypatch
):
    hand_in()
    grade_folder(handout, submitted, kept)
    monkeypatch.setattr(run, "side_by_side", None)
    assert grade_folder(handout, submitted, kept).num_new == 0


def test_two_runs_do_not_grade_into_one_folder(here, hand_in, handout, submitted, kept):
    hand_in()
    with run.alone_in(kept):
        with pytest.raises(BlockingIOError, match="another run is at work in"):
            grade_folder(handout, submitted, kept)
    assert here == [] and grade_folder(handout, submitted, kept).num_new == 1


# The command


def command(capsys, *argv):
    status = main([str(word) for word in argv])
    wrote = capsys.readouterr()
    return status, wrote.out, wrote.err


def test_the_command_shows_a_table_and_writes_scores(here, hand_in, course, capsys):
    hand_in("ada")
    hand_in("=1+1", centre=None)
    status, out, err = command(
        capsys, "grade", "07_averages", "--root", course, "--no-gradebook", "--workers", 2
    )
    assert (status, err) == (0, "")
    assert out.splitlines()[:4] == [
        "student  7.1  7.2  points",
        "=1+1       0    2  2 of 5  no remarks",
        "ada        3    2  5 of 5  no remarks",
        "",
    ]
    kept = course / "graded" / "07_averages"
    assert out.splitlines()[4] == f"2 graded now; the scores are in {kept / 'scores.csv'}"
    rows = (kept / "scores.csv").read_text().splitlines()
    assert rows[1].startswith('"\'=1+1",0,2,0,2,5,')
    status, out, _ = command(
        capsys, "grade", "07_averages", "--root", course, "--no-gradebook", "--json"
    )
    records = [json.loads(line) for line in out.splitlines()]
    assert [(r["student"], r["earned"], r["points"]) for r in records] == [
        ("=1+1", 2, 5),
        ("ada", 5, 5),
    ]
    assert len(here) == 2


def test_the_command_sets_how_long_a_cell_may_take(here, hand_in, course, capsys):
    hand_in(own={1: "import time\nstarted = 'yes'\ntime.sleep(30)\nended = 'yes'"})
    grading = ("grade", "07_averages", "--root", course, "--no-gradebook", "--json")
    _, out, _ = command(capsys, *grading, "--seconds-per-cell", 1)
    verdict = json.loads(out)
    assert verdict["errors"] == ["cell 2 did not end within 1 s"]
    assert verdict["earned"] == 5 and verdict["seconds"] < 10
    with pytest.raises(SystemExit):
        command(capsys, *grading, "--seconds-per-cell", 0)


def test_the_hash_of_a_seed_can_be_published_before_anybody_is_graded(
    here, hand_in, course, kept, capsys
):
    grading = ("grade", "07_averages", "--root", course, "--kept", kept, "--no-gradebook")
    _, out, _ = command(capsys, *grading, "--prepare")
    commitment = out.split()[-1]
    assert len(commitment) == 64 and here == []
    hand_in("ada")
    _, out, _ = command(capsys, *grading, "--json")
    assert json.loads(out)["seed_commitment"] == commitment


def test_the_command_fills_nbgraders_gradebook(here, hand_in, course, capsys):
    folder = course / "solutions" / "07_averages"
    write_notebook(build_notebook(folder), folder / "averages.ipynb")
    hand_in("ada", centre=None, own={2: "1 / 0"})
    (hand_in("bo") / "averages.ipynb").write_text("{")
    status, out, err = command(capsys, "grade", "07_averages", "--root", course)
    assert (status, err) == (0, ""), err
    database = f"sqlite:///{course / 'gradebook.db'}"
    with Gradebook(database, "attention_from_the_ground_up") as gradebook:
        scores = {s: gradebook.find_submission("07_averages", s).score for s in ("ada", "bo")}
    assert scores == {"ada": 2, "bo": 0}
    kept = course / "autograded" / "ada" / "07_averages" / "averages.ipynb"
    notebook = nbformat.read(kept, as_version=4)
    assert any("ZeroDivisionError" in cell.source for cell in notebook.cells[:2])
    assert cell_of(notebook, "centre-check").outputs[0].data["text/plain"] == "0"


def test_a_verdict_that_is_not_in_the_gradebook_is_an_error(
    here, hand_in, course, capsys, monkeypatch
):
    folder = course / "solutions" / "07_averages"
    write_notebook(build_notebook(folder), folder / "averages.ipynb")
    hand_in("ada")
    hand_in("bo")

    def write(self, verdict, notebook):
        if verdict.student == "bo":
            raise ValueError("no such cell")

    monkeypatch.setattr("classroom.nbgrader.gradebook.GradebookWriter.write", write)
    status, out, err = command(capsys, "grade", "07_averages", "--root", course)
    assert status == 1 and "2 graded now" in out
    assert err == "classroom grade: 'bo' is not in the gradebook: no such cell\n"


def test_a_command_that_cannot_go_on_says_so_in_a_sentence(handout, course, capsys, monkeypatch):
    grading = ("grade", "07_averages", "--root", course, "--no-gradebook")
    status, out, err = command(capsys, *grading)
    assert (status, out) == (2, "")
    folder = course / "submitted"
    assert err == f"classroom grade: there is no folder {folder}: see `classroom collect`\n"
    status, _, err = command(capsys, "grade", "08_more", "--root", course)
    assert status == 2
    assert err == "classroom grade: no assignment is called 08_more; there are: 07_averages\n"
    (course / "submitted").mkdir()
    weak = (replace(probe()[0], active=False, why_not="there is none"), *probe()[1:])
    monkeypatch.setattr(run, "probe", lambda: weak)
    status, _, err = command(capsys, *grading)
    assert status == 2 and not (course / "graded").exists()
    assert err.startswith("classroom grade: this machine cannot isolate a submission: bubblewrap")
    status, out, _ = command(capsys, *grading, "--allow-weaker")
    assert status == 0 and out.startswith("there are no submissions: see `classroom collect`")
