"""Lists the exercises of a course, with their checks, mistakes and variants."""

from pathlib import Path
from typing import Any

from classroom.course import all_solutions, text_file
from classroom.exercise.answers import load_answers
from classroom.exercise.run import list_checks, load_checks


def inventory(root: Path | str = ".") -> dict[str, Any]:
    """List the assignments of a course as JSON types.

    It is read from the files that grade, so it always agrees with them. The book's lists of
    exercises are made from it.

    Args:
        root: The course's folder, which holds `solutions/`.

    Returns:
        `{"assignments": [...]}`. Each has name, title, notebook, points, minutes, core (points and
        minutes of the exercises above the line) and exercises.
        Each exercise has name, number, title, asks, points, minutes, difficulty and importance
        (from 1 to 5), deeper, checks (name and points), mistakes (name and explanation) and
        variants (names).

    Raises:
        FileNotFoundError: If there are no assignments under `root`.

    """
    return {"assignments": [_assignment(folder) for folder in all_solutions(Path(root))]}


def _assignment(folder: Path) -> dict[str, Any]:
    exercises = _exercises(folder)
    core = [exercise for exercise in exercises if not exercise["deeper"]]
    notebook = text_file(folder).with_suffix(".ipynb")
    return {
        "name": folder.name,
        "title": _title(text_file(folder)),
        "notebook": notebook.name,
        "points": sum(exercise["points"] for exercise in exercises),
        "minutes": sum(exercise["minutes"] for exercise in exercises),
        "core": {what: sum(each[what] for each in core) for what in ("points", "minutes")},
        "exercises": exercises,
    }


def _exercises(folder: Path) -> list[dict[str, Any]]:
    checks = list_checks(folder)
    mistakes = load_answers(folder / "mistakes.py")
    variants = load_answers(folder / "variants.py")
    return [
        {
            "name": name,
            "number": about.number,
            "title": about.title,
            "asks": about.asks,
            "points": sum(points for _, points in checks[name]),
            "minutes": about.minutes,
            "difficulty": about.difficulty,
            "importance": about.importance,
            "deeper": about.deeper,
            "checks": [{"name": check, "points": points} for check, points in checks[name]],
            "mistakes": [
                {"name": mistake.title, "explanation": mistake.explanation}
                for mistake in mistakes
                if mistake.exercise == name
            ],
            "variants": [variant.title for variant in variants if variant.exercise == name],
        }
        for name, (about, _) in load_checks(folder).items()
    ]


def _title(text: Path) -> str:
    for line in text.read_text(encoding="utf-8").splitlines():
        if line.startswith("# # "):
            return line.removeprefix("# # ").strip()
    raise ValueError(f"{text} has no heading")
