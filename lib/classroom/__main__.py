"""The command line of the course machinery: `classroom release|check|inventory`."""

import argparse
import json
import sys
from pathlib import Path


def main(argv: list[str] | None = None) -> int:
    """Run a command; user errors end with one sentence and the status 2."""
    args = _parser().parse_args(argv)
    # If this is there, jsonschema, which checks notebooks, compiles a grammar of web addresses
    # for seconds when it is imported. Notebooks have none to check.
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    try:
        return args.run(args)
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


def _seconds(text: str) -> int:
    seconds = int(text)
    if seconds < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {seconds}")
    return seconds


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
        type=_seconds,
        default=60,
        help="interrupt a cell after this time, 60 by default",
    )
    command.set_defaults(run=_check)

    command = commands.add_parser("inventory", help="list all assignments and exercises")
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.add_argument("--root", type=Path, default=Path("."), help="the course's folder")
    command.set_defaults(run=_inventory)
    return parser


if __name__ == "__main__":
    sys.exit(main())
