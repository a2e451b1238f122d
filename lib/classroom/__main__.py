"""Do the exercises, or write and release them, grade submissions and return grades."""

import argparse
import contextlib
import errno
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from classroom.startup import skip_the_grammar_of_addresses

_FULL = (errno.ENOSPC, errno.EDQUOT)


def main(argv: list[str] | None = None) -> int:
    """Run a command; a user error is reported in one sentence, with exit status 2."""
    skip_the_grammar_of_addresses()
    args = _parser().parse_args(argv)
    try:
        return args.run(args)
    except KeyboardInterrupt:
        print(f"classroom {args.command}: stopped", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        if str(error.name).startswith("classroom"):
            raise
        needed = f"needs {error.name}: python -m pip install -r requirements.txt"
        print(f"classroom {args.command} {needed}", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        print(f"classroom {args.command}: {_in_a_sentence(error)}", file=sys.stderr)
        return 2


def _in_a_sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        goes_on = "; free some space and run it again to continue" if error.errno in _FULL else ""
        return f"{where}{error.strerror}{goes_on}"
    return str(error)


@contextlib.contextmanager
def _bar(unit: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar in a terminal; yield a function of the numbers done and in total."""
    from tqdm import tqdm

    with tqdm(unit=unit, leave=False, disable=not sys.stderr.isatty()) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield progress


# Each command imports what it needs, because nbgrader and Jupyter take seconds to import.


def _release(args: argparse.Namespace) -> int:
    from classroom.author.release import differences, release

    if args.verify:
        found = differences(args.root)
        for sentence in found:
            print(sentence)
        print(
            "make edits in solutions/, not in exercises/, then run `classroom release` "
            "and commit the files that it writes"
            if found
            else "exercises/ is exactly what solutions/ gives"
        )
        return 1 if found else 0
    for path in release(args.root, args.assignment, progress=print):
        print(f"wrote {path.relative_to(args.root)}")
    return 0


def _new(args: argparse.Namespace) -> int:
    from classroom.author.new import new_assignment

    for path in new_assignment(args.root, args.name):
        print(f"wrote {path.relative_to(args.root)}")
    print(f"change them, then run `classroom release {args.name}`")
    return 0


def _handout(args: argparse.Namespace) -> int:
    from classroom.author.student_copy import student_copy

    names = student_copy(args.root, args.to)
    print(f"wrote {', '.join(names)} to {args.to}, with what students need for them")
    print("forks of public repositories are public: let students work in private copies")
    return 0


def _start(args: argparse.Namespace) -> int:
    from classroom.student.work import WORK, prepare

    is_first = not (args.root / WORK).exists()
    notebooks, stay = prepare(args.root)
    for notebook in stay:
        print(f"kept {notebook} as you left it; the course has a newer version in exercises/")
    named = [each for each in notebooks if args.assignment in (None, each.parent.name)]
    if not named:
        there = ", ".join(each.parent.name for each in notebooks)
        raise ValueError(f"no assignment is called {args.assignment}; there are: {there}")
    opens_one = is_first or args.assignment  # else all that was open the last time
    begin = f"; begin with {named[0]}" if opens_one else ""
    print(f"your notebooks are in {args.root / WORK}{begin}")
    if args.no_lab:
        return 0
    from jupyterlab.labapp import LabApp

    opened = f"/tree/{named[0].relative_to(args.root).as_posix()}" if opens_one else ""
    LabApp.launch_instance(
        [f"--ServerApp.root_dir={args.root.resolve()}", f"--LabApp.default_url=/lab{opened}"]
    )
    return 0


def _check(args: argparse.Namespace) -> int:
    from classroom.student.terminal import check_notebook

    is_full = True
    for path in _notebooks(args.path):
        with _bar("cell") as progress:
            found = check_notebook(path, progress, args.seconds_per_cell)
        is_full = is_full and found.earned == found.points and not found.errors
        if args.json:
            print(
                json.dumps(
                    {
                        "notebook": str(path),
                        "points": found.points,
                        "earned": found.earned,
                        "errors": found.errors,
                        "exercises": [report.to_json() for report in found.reports],
                    }
                )
            )
            continue
        for report in found.reports:
            print(f"{report.summary}, not begun" if report.is_blank else f"{report.to_text()}\n")
        for error in found.errors:
            print(error)
        print(f"{path}: {found.earned} of {found.points} points{found.next_step}")
    return 0 if is_full else 1


def _notebooks(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(path.glob("*.ipynb"))
        if not found:
            raise FileNotFoundError(f"there is no notebook in {path}")
        return found
    return [path]


def _grade(args: argparse.Namespace) -> int:
    from classroom.grader.processes import start_early, with_forks

    kept = (args.kept or args.root / "graded") / args.assignment
    submitted = args.submitted or args.root / "submitted"
    _require_out_of_sight(args.root, submitted, kept)
    with contextlib.ExitStack() as stack:
        started = None
        is_known = (args.root / "exercises" / args.assignment / "checks.py").is_file()
        is_elsewhere = args.prepare or args.scheduler
        if is_known and not is_elsewhere and _is_something_new(submitted, args.assignment, kept):
            started = stack.enter_context(start_early(args.allow_weaker))
        from classroom.grader.progress import Progress
        from classroom.grader.run import Assignment, Run, get_ready
        from classroom.grader.verdicts import to_csv, to_table

        assignment = Assignment(_assignment(args))
        if args.prepare:
            commitment = Run.start(kept).commitment
            print(f"drew the seed of the run; its SHA-256, which may be published: {commitment}")
            return 0
        try:
            if started:
                prepare = partial(get_ready, assignment.folder)
                started = stack.enter_context(with_forks(started, args.workers, prepare))
            with Progress("classroom grade", "submission") as progress:
                result, grades = _graded(args, assignment, submitted, kept, progress, started)
        except KeyboardInterrupt:
            print("classroom grade: stopped; run it again to continue", file=sys.stderr)
            return 130
    order = list(assignment.master.exercises)
    scores = kept / "scores.csv"
    scores.write_text(to_csv([each.in_order(order) for each in grades.values()]), encoding="utf-8")
    if args.json:
        for verdict in result.verdicts:
            print(json.dumps(verdict.to_json()))
    else:
        print(to_table(result.verdicts, grades))
        print(f"\n{result.num_new} graded now; the scores are in {scores}")
        if result.report:
            print(f"the seed of the checks and the record of this run: {result.report}")
    if result.report:
        _report_changes(kept, result.report, is_quiet=args.json)
    for student, why in result.unrecorded.items():
        print(f"classroom grade: {student!a} is not in the gradebook: {why}", file=sys.stderr)
    return 1 if result.failed or result.unrecorded else 0


def _require_out_of_sight(root: Path, *folders: Path) -> None:
    """Refuse a course that submissions could read; `solutions` may be a link."""
    from classroom.sandbox.layers import require_out_of_sight

    if (root / "exercises").is_dir():
        require_out_of_sight(root, root / "solutions", *folders)


def _is_something_new(submitted: Path, assignment: str, kept: Path) -> bool:
    """Guess whether there is something to grade; a wrong guess only costs time."""
    verdicts = kept / "verdicts.jsonl"
    last = verdicts.stat().st_mtime if verdicts.is_file() else 0.0
    folders = submitted.glob(f"*/{assignment}")
    return any(folder.is_dir() and folder.lstat().st_ctime > last for folder in folders)


def _graded(args: argparse.Namespace, assignment, submitted: Path, kept: Path, progress, started):
    """Grade here or on a cluster, as the command says; return also what counts, by student."""
    from classroom.exercise.run import load_checks
    from classroom.grader.run import ThisMachine, grade_folder
    from classroom.grader.submission import students_in
    from classroom.grader.verdicts import Grades
    from classroom.limits import Limits

    there = students_in(submitted, assignment.name)
    if unknown := sorted(set(args.student or ()) - set(there)):
        raise ValueError(f"there is no submission of {assignment.name} by {', '.join(unknown)}")
    exercises = assignment.master.exercises
    checks = load_checks(assignment.folder)
    by_number = {checks[name][0].number: name for name in exercises}
    wanted = [by_number.get(one, one) for one in args.exercise or ()]
    if unknown := sorted(set(wanted) - set(exercises)):
        known = ", ".join(f"{number} {name}" for number, name in by_number.items())
        raise ValueError(f"{assignment.name} has no exercise {', '.join(unknown)}; it has {known}")
    with contextlib.ExitStack() as stack:
        engine = ThisMachine(args.workers, started)
        if args.scheduler:
            from classroom.grader.cluster import Cluster

            engine = stack.enter_context(Cluster(args.scheduler))
        writer = stack.enter_context(_gradebook(args, assignment.master.name))
        result = grade_folder(
            assignment,
            submitted,
            kept,
            gradebook=writer and writer.write,
            limits=Limits(
                seconds_per_cell=args.seconds_per_cell,
                seconds_per_submission=args.seconds_per_submission,
            ),
            allow_weaker=args.allow_weaker,
            progress=progress,
            students=args.student,
            again=(args.student or there) if args.again or wanted else (),
            exercises=wanted,
            engine=engine,
        )
        grades = {verdict.student: Grades.of(verdict) for verdict in result.verdicts}
        if writer:
            recorded = writer.class_grades()
            problems = {verdict.student: verdict.problem for verdict in result.verdicts}
            grades |= {
                student: replace(each, problem=problems.get(student, each.problem))
                for student, each in recorded.items()
            }
        if writer and args.feedback:
            graded = set(writer.graded_students())
            _write_pages(writer, sorted(graded & set(args.student or there)), submitted)
        return result, dict(sorted(grades.items()))


def _report_changes(kept: Path, report: Path, is_quiet: bool) -> None:
    from classroom.grader.verdicts import (
        VERDICTS,
        changes,
        changes_to_csv,
        changes_to_table,
        read_history,
    )

    commitment = json.loads(report.read_text())["seed_commitment"]
    found = changes(read_history(kept / VERDICTS), commitment)
    if not found:
        return
    path = report.with_name(report.stem.replace("run", "changes") + ".csv")
    path.write_text(changes_to_csv(found), encoding="utf-8")
    if not is_quiet:
        print(f"\nchanged scores, also in {path}:\n{changes_to_table(found)}")


def _report(args: argparse.Namespace) -> int:
    from classroom.course import folder_for
    from classroom.exercise.answers import load_answers
    from classroom.grader.class_report import summarise, to_html, to_svg, to_text
    from classroom.grader.verdicts import VERDICTS, read_lines

    assignment = _assignment(args)
    kept = (args.kept or args.root / "graded") / assignment.name
    verdicts = read_lines(kept / VERDICTS)
    if not verdicts:
        raise ValueError(f"no submission of {assignment.name} is graded: see `classroom grade`")
    known = {
        (mistake.exercise, mistake.name): (mistake.title, mistake.explanation)
        for mistake in load_answers(folder_for(assignment, "") / "mistakes.py")
    }
    found = summarise(verdicts, known)
    num_read = sum(not verdict.problem for verdict in verdicts)
    others = f", and {len(verdicts) - num_read} that could not be" * (num_read < len(verdicts))
    print(f"{assignment.name}: {num_read} graded submissions{others}\n\n{to_text(found)}")
    if found:
        page = args.html or kept / "summary.html"
        picture = to_svg(found, num_read)
        page.with_suffix(".svg").write_text(picture, encoding="utf-8")
        page.write_text(to_html(assignment.name, num_read, found, picture), encoding="utf-8")
        print(f"\nas a page: {page}; the figure alone: {page.with_suffix('.svg')}")
    return 0


def _similarity(args: argparse.Namespace) -> int:
    from classroom.grader.run import Assignment
    from classroom.grader.similarity import look_alikes, to_text
    from classroom.grader.submission import Submission, Unreadable, students_in
    from classroom.grader.verdicts import VERDICTS, read_lines

    assignment = Assignment(_assignment(args))
    submitted, master = args.submitted or args.root / "submitted", assignment.master
    answers = {}
    for student in students_in(submitted, assignment.name):
        submission = Submission.read(submitted / student / assignment.name, master, {})
        with contextlib.suppress(Unreadable):
            cells = submission.answers(master).cells
            code = [cell for cell in cells if cell.answers and cell.type == "code"]
            answers[student] = {cell.answers: cell.source for cell in code}
    handed_out = zip(master.roles, master.notebook.cells, strict=True)
    blanks = {role.exercise: cell.source for role, cell in handed_out if role.kind == "answer"}
    verdicts = read_lines((args.kept or args.root / "graded") / assignment.name / VERDICTS)
    titles = {each.exercise: each.title for verdict in verdicts for each in verdict.reports}
    print(to_text(look_alikes(answers, blanks, verdicts), titles))
    if not verdicts:
        print("nothing is graded yet: after `classroom grade`, shared wrong answers count too")
    return 0


def _assignment(args: argparse.Namespace) -> Path:
    from classroom.course import assignments

    folders = {folder.name: folder for folder in assignments(args.root / "exercises")}
    if args.assignment not in folders:
        there = ", ".join(folders) or "none"
        raise ValueError(f"no assignment is called {args.assignment}; there are: {there}")
    return folders[args.assignment]


def _gradebook(args: argparse.Namespace, notebook: str):
    """Return the writer of nbgrader's gradebook, or what stands for none, to be entered."""
    if args.no_gradebook:
        if args.feedback:
            raise ValueError("--feedback needs the gradebook and excludes --no-gradebook")
        return contextlib.nullcontext()
    from classroom.nbgrader.gradebook import GradebookWriter

    return GradebookWriter(args.root, args.assignment, Path(notebook).stem)


def _write_pages(writer, students: Sequence[str], submitted: Path) -> list[Path]:
    """Write the feedback pages of students.

    Raises:
        ValueError: If some could not be written; says why. All others are.

    """
    from tqdm import tqdm

    pages, problems = [], []
    for student in tqdm(students, unit="page", disable=not sys.stderr.isatty()):
        try:
            pages.append(writer.write_feedback(student, submitted))
        except ValueError as error:
            problems.append(f"no page for {student!a}: {error}")
        except Exception as error:  # any: a stranger wrote what the page shows
            problems.append(f"no page for {student!a}: {type(error).__name__}: {error}")
    if problems:
        raise ValueError("; ".join(problems))
    return pages


def _feedback(args: argparse.Namespace) -> int:
    from classroom.course import text_file
    from classroom.nbgrader.gradebook import GradebookWriter

    name = text_file(_assignment(args)).stem
    with GradebookWriter(args.root, args.assignment, name) as writer:
        graded = writer.graded_students()
        students = args.student or graded
        if unknown := sorted(set(students) - set(graded)):
            raise ValueError(
                f"no submission of {args.assignment} by {', '.join(unknown)} is graded"
            )
        if not students:
            raise ValueError(f"no submission of {args.assignment} is graded: see `classroom grade`")
        written = _write_pages(writer, students, args.submitted or args.root / "submitted")
    pages = "1 page" if len(written) == 1 else f"{len(written)} pages"
    print(f"wrote {pages}, such as {written[-1].relative_to(args.root.resolve())}")
    return 0


def _roster(args: argparse.Namespace) -> int:
    from classroom.grader.collect import uploads
    from classroom.grader.roster import read_roster
    from classroom.nbgrader.gradebook import add_people

    submitted = args.submitted or args.root / "submitted"
    people = read_roster(args.file).students(uploads(submitted))
    add_people(args.root, people)
    print(f"people added or updated in the gradebook: {len(people)}")
    return 0


def _return(args: argparse.Namespace) -> int:
    from classroom.course import text_file
    from classroom.grader.collect import uploads
    from classroom.grader.roster import feedback_archive, read_roster
    from classroom.nbgrader.gradebook import GradebookWriter

    assignment, roster = _assignment(args), read_roster(args.roster)
    if roster.platform != args.to:
        came_from = roster.platform.capitalize()
        raise ValueError(f"{args.roster} comes from {came_from}: use --to {roster.platform}")
    submitted = args.submitted or args.root / "submitted"
    came = uploads(submitted, assignment.name)
    kept = (args.kept or args.root / "graded") / assignment.name
    kept.mkdir(mode=0o700, parents=True, exist_ok=True)
    with GradebookWriter(args.root, assignment.name, text_file(assignment).stem) as writer:
        graded = writer.graded_students()
        written = _write_pages(writer, graded, submitted)
        earned = {student: writer.grades(student) for student in graded}
    people = roster.students(came, graded)
    grades = {person: earned[who] for person, who in people.items() if who in earned}
    table = kept / f"grades_{args.to}.csv"
    absent = "0" if args.zeros else ""
    text = roster.with_grades(grades, assignment.name, args.column, absent)
    table.write_text(text, encoding="utf-8")
    archive = kept / f"feedback_{args.to}.zip"
    pages = dict(zip(graded, written, strict=True))
    unnamed = feedback_archive(pages, came, args.to, archive)
    print(f"{len(grades)} of {len(people)} people have a grade: {table}")
    print(f"{len(pages) - len(unnamed)} pages of feedback: {archive}")
    if num_open := sum(each.num_open for each in earned.values()):
        print(f"{num_open} written answers are still to grade and count 0 so far", file=sys.stderr)
    missing = sorted(set(graded) - set(people.values()))
    elsewhere = "not in the archive, as they did not come in the platform's own download"
    for what, students in (("not on the roster", missing), (elsewhere, unnamed)):
        if students:
            names = ", ".join(map(ascii, students))
            print(f"classroom return: {what}: {names}", file=sys.stderr)
    return 1 if missing or unnamed else 0


def _collect(args: argparse.Namespace) -> int:
    from classroom.grader.collect import collect, to_table
    from classroom.grader.run import Assignment

    folder = args.root / "exercises" / args.assignment
    if not (folder / "checks.py").is_file():
        raise ValueError(f"no assignment is called {args.assignment}: there is no {folder}")
    master = Assignment(folder).master
    rows = collect(
        args.source,
        args.submitted or args.root / "submitted",
        args.assignment,
        master.name,
        args.pattern,
        args.times_from_archive,
        master.wanted,
    )
    print(to_table(rows))
    num_taken = sum(row.outcome == "taken" for row in rows)
    num_refused = sum(row.outcome == "refused" for row in rows)
    print(f"\n{num_taken} taken, {num_refused} refused")
    return 1 if num_refused else 0


def _doctor(args: argparse.Namespace) -> int:
    from classroom.sandbox import layers as sandbox

    layers = sandbox.probe()
    lacking = [layer for layer in layers if layer.is_required and not layer.active]
    width = max(len(layer.name) for layer in layers)
    for layer in layers:
        mark = "✓" if layer.active else "✗" if layer.is_required else "–"
        print(f"  {mark} {layer.name:<{width}}  keeps {layer.keeps}")
        if not layer.active:
            needed = "" if layer.is_required else ", and not required"
            print(f"    {'':<{width}}  not active{needed}: {layer.why_not}")
        if not layer.active and layer.name == "control groups":
            print(
                f"    {'':<{width}}  without them, memory in sockets and pipes is estimated, all "
                "memory is measured 20 times a second, and priorities divide the CPU time"
            )
    if lacking:
        names = ", ".join(layer.name for layer in lacking)
        print(f"`classroom grade` refuses to run here without {names} (see --allow-weaker)")
        return 1
    try:
        _require_out_of_sight(args.root, args.root / "submitted", args.root / "graded")
    except sandbox.TooWeak as reason:
        print(f"`classroom grade` refuses to run here: {reason}")
        return 1
    print("`classroom grade` has everything that it needs here")
    return 0


def _inventory(args: argparse.Namespace) -> int:
    from classroom.author.inventory import inventory
    from classroom.calls.subject import count

    found = inventory(args.root)
    if args.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return 0
    for assignment in found["assignments"]:
        print(
            f"{assignment['name']}: {assignment['title']} "
            f"({assignment['points']} points, {assignment['minutes']} minutes; the core: "
            f"{assignment['core']['points']} points, {assignment['core']['minutes']} minutes)"
        )
        for exercise in assignment["exercises"]:
            print(
                f"  {exercise['number']:<4} {exercise['title']}: "
                f"{count(exercise['points'], 'point')}, "
                f"{exercise['minutes']} minutes, difficulty {exercise['difficulty']} of 5, "
                f"{len(exercise['mistakes'])} named mistakes, {len(exercise['variants'])} variants"
                + ", goes deeper"
                * exercise["deeper"]
            )
    return 0


def _matrix(args: argparse.Namespace) -> int:
    from classroom.author import kill_matrix

    path = args.out or args.root / kill_matrix.RECORD
    before = None if args.again else kill_matrix.load(path)
    with _bar("mistake") as progress:
        kill_matrix.write(path, kill_matrix.measure(args.root, before, progress=progress))
    print(kill_matrix.to_table(kill_matrix.read(path)))
    print(f"wrote {path}")
    return 0


def _mine(args: argparse.Namespace) -> int:
    from classroom.student import mine

    if args.what == "status":
        library, changed = mine.status(args.root)
    else:
        with _bar("notebook") as progress:
            library, changed = mine.build(args.root, progress, args.seconds_per_exercise), []
    if args.json:
        print(json.dumps(library.to_json() | {"changed": changed}, ensure_ascii=False))
    else:
        print(library.to_table(changed))
    return 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


# Options with the same meaning in several commands.
_SHARED: dict[str, dict[str, Any]] = {
    "assignment": {"help": "such as 01_attention"},
    "--root": {
        "type": Path,
        "default": Path("."),
        "help": "the course's folder, by default the current one",
    },
    "--submitted": {
        "type": Path,
        "help": "folder with STUDENT/ASSIGNMENT/ for each student, submitted/ by default",
    },
    "--kept": {"type": Path, "help": "folder for verdicts and scores, graded/ by default"},
    "--student": {"action": "append", "help": "only this student; may be repeated"},
    "--seconds-per-cell": {
        "type": _positive,
        "default": 60,
        "help": "interrupt a cell after this many seconds, 60 by default",
    },
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="classroom", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], int], about: str, *shared: str):
        sentence = f"{about[0].upper()}{about[1:]}."
        command = commands.add_parser(name, help=about, description=sentence)
        command.set_defaults(run=run)
        for option in shared:
            command.add_argument(option, **_SHARED[option])
        return command.add_argument

    option = add("release", _release, "make exercises/ from solutions/", "--root")
    option("assignment", nargs="*", help="such as 01_attention; all by default")
    option("--verify", action="store_true", help="write nothing; report what is out of date")

    option = add("new", _new, "write a small assignment to adapt", "--root")
    option("name", help="name of the assignment, such as 11_topic")

    option = add("handout", _handout, "write the repository that students get", "--root")
    option("--to", type=Path, required=True, help="a new or empty folder, or an earlier handout")

    option = add(
        "start", _start, "copy the exercises into work/ and open them in JupyterLab", "--root"
    )
    option(
        "assignment",
        nargs="?",
        help="assignment to open; by default the first, and later what was open last",
    )
    option("--no-lab", action="store_true", help="do not start JupyterLab")

    option = add("check", _check, "run a notebook and report which checks pass")
    option("path", type=Path, help="a notebook, or a folder with notebooks")
    option("--json", action="store_true", help="print one JSON object per notebook")
    option("--seconds-per-cell", **_SHARED["--seconds-per-cell"])

    option = add(
        "grade",
        _grade,
        "grade submissions: run students' code in a sandbox, and the checks outside it",
        *("assignment", "--submitted", "--kept", "--student", "--root"),
    )
    option(
        "--exercise",
        action="append",
        help="grade again, but update only the points of an exercise, such as 1.4; may be repeated",
    )
    option("--again", action="store_true", help="regrade unchanged submissions as well")
    option(
        "--workers", type=_positive, default=1, help="submissions to grade at once, 1 by default"
    )
    option(
        "--scheduler",
        metavar="ADDRESS",
        help="grade on the Dask cluster at this address, such as tcp://10.0.0.7:8786",
    )
    option(
        "--prepare",
        action="store_true",
        help="only draw the seed of the next run and print its SHA-256, which may be published",
    )
    option(
        "--allow-weaker",
        action="store_true",
        help="grade even if this machine lacks a layer of the sandbox; every verdict notes it",
    )
    option("--seconds-per-cell", **_SHARED["--seconds-per-cell"])
    option(
        "--seconds-per-submission",
        type=_positive,
        default=300,
        help="time limit for a whole submission, 300 by default",
    )
    option("--no-gradebook", action="store_true", help="do not write to nbgrader's gradebook")
    option(
        "--feedback", action="store_true", help="also write each student's page, as `feedback` does"
    )
    option("--json", action="store_true", help="print one JSON object per submission")

    option = add(
        "report",
        _report,
        "summarise results: points earned per exercise, and common mistakes",
        *("assignment", "--kept", "--root"),
    )
    option(
        "--html",
        type=Path,
        help="where to write the page, graded/ASSIGNMENT/summary.html by default",
    )

    add(
        "similarity",
        _similarity,
        "list pairs of submissions that look alike: a reason to ask, not a proof",
        *("assignment", "--submitted", "--kept", "--root"),
    )

    add(
        "feedback",
        _feedback,
        "write a page per student into feedback/: points, what the checks found, the notebook",
        *("assignment", "--student", "--submitted", "--root"),
    )

    option = add(
        "collect",
        _collect,
        "copy downloads from a learning platform into submitted/",
        *("--submitted", "--root"),
    )
    option("source", nargs="+", type=Path, help="a folder, a ZIP archive or a notebook")
    option("--assignment", required=True, help="such as 01_attention")
    option(
        "--pattern",
        help="regular expression for paths in a source, with a group (?P<student>…); the default "
        "matches Moodle's and Canvas's, STUDENT/….ipynb and STUDENT.ipynb",
    )
    option(
        "--times-from-archive",
        action="store_true",
        help="take submission times from the source instead of using the current time",
    )

    option = add(
        "roster",
        _roster,
        "add people from a Moodle or Canvas CSV file to the gradebook",
        *("--submitted", "--root"),
    )
    option(
        "file", type=Path, help="Moodle's participants or grading worksheet, or Canvas's gradebook"
    )

    option = add(
        "return",
        _return,
        "write a class's grades and feedback in the form that a platform imports",
        *("assignment", "--submitted", "--kept", "--root"),
    )
    option("--to", choices=("moodle", "canvas"), required=True, help="the learning platform")
    option(
        "--roster",
        type=Path,
        required=True,
        help="Moodle's grading worksheet or Canvas's gradebook, as CSV; a copy gets the grades",
    )
    option(
        "--column",
        default="",
        help="column for grades; by default Grade for Moodle, the assignment's name for Canvas",
    )
    option("--zeros", action="store_true", help="write 0 for students who submitted nothing")

    add(
        "doctor",
        _doctor,
        "report whether this machine can isolate the code that it grades",
        "--root",
    )

    option = add("inventory", _inventory, "list all assignments and exercises", "--root")
    option("--json", action="store_true", help="print one JSON object")

    option = add("matrix", _matrix, "record which check catches which known mistake", "--root")
    option("--again", action="store_true", help="also run exercises that have not changed")
    option(
        "--out",
        type=Path,
        help="output file, tests/benchmarks/records/kill_matrix.json by default",
    )

    option = add(
        "mine", _mine, "make your own library from the answers that pass their checks", "--root"
    )
    option(
        "what",
        nargs="?",
        choices=("build", "status"),
        default="build",
        help="build or update the library (the default), or list which functions are yours",
    )
    option(
        "--seconds-per-exercise",
        type=_positive,
        default=60,
        help="time limit per exercise, 60 by default",
    )
    option("--json", action="store_true", help="print one JSON object")
    return parser


if __name__ == "__main__":
    sys.exit(main())
