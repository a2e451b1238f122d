"""The command line of the course machinery: `classroom --help` lists its commands."""

import argparse
import contextlib
import json
import sys
from pathlib import Path

from classroom.startup import skip_the_grammar_of_addresses


def main(argv: list[str] | None = None) -> int:
    """Run a command; user errors end with one sentence and the status 2."""
    skip_the_grammar_of_addresses()
    args = _parser().parse_args(argv)
    try:
        return args.run(args)
    except KeyboardInterrupt:
        print(f"classroom {args.command}: stopped", file=sys.stderr)
        return 130
    except (OSError, ValueError) as error:
        print(f"classroom {args.command}: {_in_a_sentence(error)}", file=sys.stderr)
        return 2


def _in_a_sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


# Each command imports what it needs, because nbgrader and Jupyter take seconds to import.


def _release(args: argparse.Namespace) -> int:
    from classroom.release import differences, release

    if args.verify:
        found = differences(args.root)
        for sentence in found:
            print(sentence)
        print(
            "run `classroom release` and commit what it writes"
            if found
            else "exercises/ is exactly what solutions/ gives"
        )
        return 1 if found else 0
    for path in release(args.root, args.assignment, progress=print):
        print(f"wrote {path.relative_to(args.root)}")
    return 0


def _check(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from classroom.terminal import check_notebook

    notebooks = _notebooks(args.path)
    full = True
    for path in notebooks:
        with tqdm(unit="cell", leave=False, disable=not sys.stderr.isatty()) as bar:

            def progress(done: int, cells: int, bar: tqdm = bar) -> None:
                bar.total = cells
                bar.update(done - bar.n)

            found = check_notebook(path, progress, args.seconds_per_cell)
        full = full and found.earned == found.points and not found.errors
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
            print(report.to_text(), end="\n\n")
        for error in found.errors:
            print(error)
        print(f"{path}: {found.earned} of {found.points} points")
    return 0 if full else 1


def _notebooks(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(path.glob("*.ipynb"))
        if not found:
            raise FileNotFoundError(f"there is no notebook in {path}")
        return found
    return [path]


def _grade(args: argparse.Namespace) -> int:
    with _crew(args) as crew:
        return _grade_with(crew, args)


@contextlib.contextmanager
def _crew(args: argparse.Namespace):
    """Call those who will grade here, if there is likely to be something for them to do."""
    from classroom.crew import called_early, is_something_new

    kept = (args.kept or args.root / "graded") / args.assignment
    submitted = args.submitted or args.root / "submitted"
    elsewhere = args.prepare or args.merge is not None or args.scheduler or args.shard
    is_known = (args.root / "exercises" / args.assignment / "checks.py").is_file()
    verdicts = kept / "verdicts.jsonl"
    if elsewhere or not is_known or not is_something_new(submitted, args.assignment, verdicts):
        yield None
        return
    with called_early(args.workers, args.allow_weaker) as crew:
        yield crew


def _grade_with(crew, args: argparse.Namespace) -> int:
    from classroom.grade import Assignment, Run
    from classroom.progress import Progress
    from classroom.report import to_csv, to_table

    assignment = Assignment(_assignment(args))
    kept = (args.kept or args.root / "graded") / assignment.name
    if args.prepare:
        run = Run.start(kept)
        print(
            f"the seed of the run is drawn; its SHA-256, which may be published: {run.commitment}"
        )
        print(f"for machines that do not share {kept}, copy {Run.path(kept)} to there")
        return 0
    try:
        with Progress("classroom grade", "submission") as progress:
            summary = _graded(args, assignment, kept, progress, crew)
    except KeyboardInterrupt:
        print("classroom grade: stopped; run it again, and it goes on", file=sys.stderr)
        return 130
    scores = kept / "scores.csv"
    if not args.shard:
        scores.write_text(to_csv(summary.verdicts), encoding="utf-8")
    if args.json:
        for verdict in summary.verdicts:
            print(json.dumps(verdict.to_json()))
    else:
        print(to_table(summary.verdicts))
        done = f"{summary.num_new} {'taken over' if args.merge is not None else 'graded'} now"
        if args.shard:
            print(f"\n{done} in shard {args.shard}; after the last one: classroom grade --merge")
        else:
            print(f"\n{done}; the scores are in {scores}")
        if summary.report:
            print(f"the seed of the checks and what it was used for: {summary.report}")
    if summary.report:
        _tell_of_changes(kept, summary.report, is_quiet=args.json)
    return 1 if summary.failed else 0


def _graded(args: argparse.Namespace, assignment, kept: Path, progress, crew):
    """Grade here, on a cluster or in a shard, or merge shards, as the command says."""
    from classroom.grade import ThisMachine, grade_folder, handed_in
    from classroom.sandbox import Limits
    from classroom.scale import grade_shard, merge

    submitted = args.submitted or args.root / "submitted"
    how = {
        "limits": Limits(seconds_per_submission=args.seconds_per_submission),
        "allow_weaker": args.allow_weaker,
        "progress": progress,
    }
    is_some = args.student or args.again or args.exercise
    if (args.shard or args.merge is not None) and is_some:
        raise ValueError(
            "--student, --exercise and --again are for a run on one machine or one cluster"
        )
    if args.shard:
        if args.feedback:
            raise ValueError("--feedback is for --merge: a shard writes no gradebook")
        return grade_shard(args.shard, assignment, submitted, kept, workers=args.workers, **how)
    there = [each.student for each in handed_in(submitted, assignment.name)]
    if unknown := sorted(set(args.student or ()) - set(there)):
        raise ValueError(f"nothing of {assignment.name} was handed in by {', '.join(unknown)}")
    exercises = assignment.master.exercises
    if unknown := sorted(set(args.exercise or ()) - set(exercises)):
        raise ValueError(
            f"{assignment.name} has no exercise {', '.join(unknown)}; there are: "
            f"{', '.join(exercises)}"
        )
    with contextlib.ExitStack() as stack:
        engine = ThisMachine(args.workers, crew)
        if args.scheduler:
            from classroom.cluster import Cluster

            engine = stack.enter_context(Cluster(args.scheduler))
        gradebook = stack.enter_context(_gradebook(args, assignment.master.name))
        if args.merge is not None:
            return merge(assignment, submitted, kept, args.merge, gradebook, progress)
        return grade_folder(
            assignment,
            submitted,
            kept,
            gradebook=gradebook,
            students=args.student,
            again=(args.student or there) if args.again or args.exercise else (),
            exercises=args.exercise or (),
            engine=engine,
            **how,
        )


def _tell_of_changes(kept: Path, report: Path, is_quiet: bool) -> None:
    from classroom.grade import VERDICTS
    from classroom.report import changes, changes_to_csv, changes_to_table, read_history

    commitment = json.loads(report.read_text())["seed_commitment"]
    found = changes(read_history(kept / VERDICTS), commitment)
    if not found:
        return
    path = report.with_name(report.stem.replace("run", "changes") + ".csv")
    path.write_text(changes_to_csv(found), encoding="utf-8")
    if not is_quiet:
        print(f"\nearlier scores that are others now, also in {path}:\n{changes_to_table(found)}")


def _report(args: argparse.Namespace) -> int:
    from classroom.answers import load_answers
    from classroom.grade import VERDICTS
    from classroom.report import read_lines
    from classroom.summary import summarise, to_html, to_svg, to_text

    assignment = _assignment(args)
    kept = (args.kept or args.root / "graded") / assignment.name
    verdicts = read_lines(kept / VERDICTS)
    if not verdicts:
        raise ValueError(f"nothing of {assignment.name} is graded: see `classroom grade`")
    known = {
        (mistake.exercise, mistake.name): (mistake.title, mistake.explanation)
        for mistake in load_answers(assignment / "mistakes.py")
    }
    found = summarise(verdicts, known)
    print(f"{assignment.name}: {len(verdicts)} handed in\n\n{to_text(found)}")
    if found:
        page = args.html or kept / "summary.html"
        picture = to_svg(found, len(verdicts))
        page.with_suffix(".svg").write_text(picture, encoding="utf-8")
        page.write_text(to_html(assignment.name, len(verdicts), found, picture), encoding="utf-8")
        print(f"\nas a page: {page}; the picture alone: {page.with_suffix('.svg')}")
    return 0


def _assignment(args: argparse.Namespace) -> Path:
    from classroom.notebooks import assignments

    folders = {folder.name: folder for folder in assignments(args.root / "exercises")}
    if args.assignment not in folders:
        there = ", ".join(folders) or "none"
        raise ValueError(f"no assignment is called {args.assignment}; there are: {there}")
    return folders[args.assignment]


@contextlib.contextmanager
def _gradebook(args: argparse.Namespace, notebook: str):
    """Give what writes into nbgrader's gradebook, or None."""
    if args.no_gradebook:
        if args.feedback:
            raise ValueError("--feedback takes points from the gradebook: leave --no-gradebook out")
        yield None
        return
    from classroom.gradebook import GradebookWriter

    submitted = args.submitted or args.root / "submitted"
    with GradebookWriter(args.root, args.assignment, Path(notebook).stem) as writer:

        def write(verdict, notebook):
            writer.write_verdict(verdict, notebook)
            if args.feedback:
                writer.write_feedback(verdict.student, submitted)

        yield write


def _feedback(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from classroom.gradebook import GradebookWriter
    from classroom.notebooks import text_file

    name = text_file(_assignment(args)).stem
    with GradebookWriter(args.root, args.assignment, name) as writer:
        graded = writer.graded_students()
        students = args.student or graded
        if unknown := sorted(set(students) - set(graded)):
            raise ValueError(f"nothing of {args.assignment} is graded of {', '.join(unknown)}")
        for student in tqdm(students, unit="page", disable=not sys.stderr.isatty()):
            page = writer.write_feedback(student, args.submitted or args.root / "submitted")
    if not students:
        raise ValueError(f"nothing of {args.assignment} is graded: see `classroom grade`")
    pages = "1 page" if len(students) == 1 else f"{len(students)} pages"
    print(f"wrote {pages}, such as {page.relative_to(args.root.resolve())}")
    return 0


def _collect(args: argparse.Namespace) -> int:
    from classroom.collect import collect, to_table
    from classroom.grade import Assignment

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
    from classroom import sandbox

    layers = sandbox.probe()
    lacking = [layer for layer in layers if layer.is_required and not layer.active]
    width = max(len(layer.name) for layer in layers)
    for layer in layers:
        mark = "✓" if layer.active else "✗" if layer.is_required else "–"
        print(f"  {mark} {layer.name:<{width}}  keeps {layer.keeps}")
        if not layer.active:
            needed = "" if layer.is_required else ", and not required"
            print(f"    {'':<{width}}  not active{needed}: {layer.why_not}")
    if lacking:
        names = ", ".join(layer.name for layer in lacking)
        print(f"`classroom grade` refuses to work here without {names} (see --allow-weaker)")
        return 1
    print("`classroom grade` has all that it needs here")
    return 0


def _inventory(args: argparse.Namespace) -> int:
    from classroom.inventory import inventory

    found = inventory(args.root)
    if args.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return 0
    for assignment in found["assignments"]:
        print(
            f"{assignment['name']}: {assignment['title']} "
            f"({assignment['points']} points, {assignment['minutes']} minutes)"
        )
        for exercise in assignment["exercises"]:
            print(
                f"  {exercise['number']:<4} {exercise['title']}: {exercise['points']} points, "
                f"{exercise['minutes']} minutes, difficulty {exercise['difficulty']} of 5, "
                f"{len(exercise['mistakes'])} named mistakes, {len(exercise['variants'])} variants"
            )
    return 0


def _matrix(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from classroom import matrix

    path = args.out or args.root / matrix.RECORD
    before = None if args.again else matrix.load(path)
    with tqdm(unit="mistake", leave=False, disable=not sys.stderr.isatty()) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        matrix.write(path, matrix.measure(args.root, before, progress=progress))
    print(matrix.to_table(matrix.read(path)))
    print(f"wrote {path}")
    return 0


def _mine(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from classroom import mine

    if args.what == "status":
        library, changed = mine.status(args.root)
    else:
        with tqdm(unit="notebook", leave=False, disable=not sys.stderr.isatty()) as bar:

            def progress(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)

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


def _shard(text: str):
    from classroom.scale import Shard

    try:
        return Shard.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="classroom", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    command = commands.add_parser("release", help="make exercises/ from solutions/")
    command.add_argument("assignment", nargs="*", help="such as 01_attention; all by default")
    command.add_argument(
        "--verify", action="store_true", help="write nothing; say whether exercises/ is up to date"
    )
    command.add_argument("--root", type=Path, default=Path("."), help="the course's folder")
    command.set_defaults(run=_release)

    command = commands.add_parser("check", help="run a notebook and say what is right and wrong")
    command.add_argument("path", type=Path, help="a notebook, or the folder it is in")
    command.add_argument("--json", action="store_true", help="print one JSON object per notebook")
    command.add_argument(
        "--seconds-per-cell",
        type=_positive,
        default=60,
        help="interrupt a cell after this time, 60 by default",
    )
    command.set_defaults(run=_check)

    command = commands.add_parser(
        "grade",
        help="grade what a class handed in: students' code in a sandbox, the checks outside",
    )
    command.add_argument("assignment", help="such as 01_attention")
    command.add_argument(
        "--submitted",
        type=Path,
        help="holds STUDENT/ASSIGNMENT/ for each student, submitted/ by default",
    )
    command.add_argument(
        "--kept", type=Path, help="where verdicts and scores are kept, graded/ by default"
    )
    command.add_argument(
        "--workers", type=_positive, default=1, help="submissions to grade at a time, 1 by default"
    )
    command.add_argument(
        "--allow-weaker",
        action="store_true",
        help="go on where this machine lacks a layer of the sandbox; every verdict says so",
    )
    command.add_argument(
        "--seconds-per-submission",
        type=_positive,
        default=300,
        help="time for all of a submission, 300 by default",
    )
    where = command.add_mutually_exclusive_group()
    where.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="grade on a Dask cluster, such as tcp://10.0.0.7:8786",
    )
    where.add_argument(
        "--shard",
        type=_shard,
        metavar="I/N",
        help="grade one of N parts of the class, into a folder of its own",
    )
    where.add_argument(
        "--merge",
        nargs="*",
        type=Path,
        metavar="FOLDER",
        help="put shards together, those in --kept by default: gradebook and scores",
    )
    where.add_argument(
        "--prepare",
        action="store_true",
        help="only draw the seed of the run, and say what may be published of it",
    )
    command.add_argument(
        "--student", action="append", help="only this one; may be given several times"
    )
    command.add_argument(
        "--exercise",
        action="append",
        help="grade again, and take only the points of this one; may be given several times",
    )
    command.add_argument(
        "--again", action="store_true", help="also what is graded already and has not changed"
    )
    command.add_argument(
        "--no-gradebook", action="store_true", help="leave nbgrader's gradebook alone"
    )
    command.add_argument(
        "--feedback", action="store_true", help="also write each student's page, as `feedback` does"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object per submission")
    command.add_argument("--root", type=Path, default=Path("."), help="the course's folder")
    command.set_defaults(run=_grade)

    command = commands.add_parser(
        "report", help="say what the class made of an assignment, and which mistakes are common"
    )
    command.add_argument("assignment", help="such as 01_attention")
    command.add_argument("--kept", type=Path, help="where verdicts are kept, graded/ by default")
    command.add_argument(
        "--html",
        type=Path,
        help="where to write the page, graded/ASSIGNMENT/summary.html by default",
    )
    command.add_argument("--root", type=Path, default=Path("."), help="the course's folder")
    command.set_defaults(run=_report)

    command = commands.add_parser(
        "feedback",
        help="write a page for each student: points, what the checks found, the notebook",
    )
    command.add_argument("assignment", help="such as 01_attention")
    command.add_argument(
        "--student", action="append", help="only this one; may be given several times"
    )
    command.add_argument(
        "--submitted",
        type=Path,
        help="holds STUDENT/ASSIGNMENT/ for each student, submitted/ by default",
    )
    command.add_argument("--root", type=Path, default=Path("."), help="the course's folder")
    command.set_defaults(run=_feedback)

    command = commands.add_parser(
        "collect", help="take what a learning platform gives out into submitted/"
    )
    command.add_argument(
        "source", nargs="+", type=Path, help="a folder, a ZIP archive or a notebook"
    )
    command.add_argument("--assignment", required=True, help="such as 01_attention")
    command.add_argument(
        "--pattern",
        help="regular expression for a path in a source, with a group (?P<student>…); by default "
        "those of Moodle and Canvas, STUDENT/….ipynb and STUDENT.ipynb",
    )
    command.add_argument(
        "--times-from-archive",
        action="store_true",
        help="count lateness from the times in the source, not from now",
    )
    command.add_argument(
        "--submitted", type=Path, help="where to put STUDENT/ASSIGNMENT/, submitted/ by default"
    )
    command.add_argument("--root", type=Path, default=Path("."), help="the course's folder")
    command.set_defaults(run=_collect)

    command = commands.add_parser(
        "doctor", help="say whether this machine can seal off the code that it grades"
    )
    command.set_defaults(run=_doctor)

    command = commands.add_parser("inventory", help="list all assignments and exercises")
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.add_argument("--root", type=Path, default=Path("."), help="the course's folder")
    command.set_defaults(run=_inventory)

    command = commands.add_parser(
        "matrix", help="run every known mistake against every check: which check catches which"
    )
    command.add_argument(
        "--again", action="store_true", help="also exercises that have not changed since"
    )
    command.add_argument(
        "--out",
        type=Path,
        help="where to write it, tests/benchmarks/records/kill_matrix.json by default",
    )
    command.add_argument("--root", type=Path, default=Path("."), help="the course's folder")
    command.set_defaults(run=_matrix)

    command = commands.add_parser(
        "mine", help="make a library of your own from your notebooks: what passes its checks"
    )
    command.add_argument(
        "what",
        nargs="?",
        choices=("build", "status"),
        default="build",
        help="build or bring up to date (the default), or say what is yours and what is borrowed",
    )
    command.add_argument(
        "--seconds-per-exercise",
        type=_positive,
        default=60,
        help="give an exercise up after this time, 60 by default",
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.add_argument("--root", type=Path, default=Path("."), help="the course's folder")
    command.set_defaults(run=_mine)
    return parser


if __name__ == "__main__":
    sys.exit(main())
