"""Finds submissions that look alike, `classroom similarity`: what to ask about, and no proof.

Two answers are the same if their syntax is, whatever the names of variables, the comments and the
layout. How much that says is counted in bits: the fewer of a class gave an answer, the more. A
short answer says little, since many arrive at it; a wrong one that is no known mistake says much.
"""

import ast
import math
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from classroom.grader.verdicts import Verdict

MIN_BITS = 2.0
"""Of a pair that is reported."""
_SHORT, _LONG = 15, 60
"""Nodes of syntax beyond the blank: up to the first an answer says nothing, from the second all."""


@dataclass(frozen=True)
class LookAlike:
    """Two submissions with answers in common.

    Attributes:
        students: Their names, in order.
        bits: How much it says, summed over exercises.
        exercises: Those with the same answer.
        wrong: Those of them with the same wrong answer that is no known mistake.

    """

    students: tuple[str, str]
    bits: float
    exercises: tuple[str, ...]
    wrong: tuple[str, ...]


def look_alikes(
    answers: Mapping[str, Mapping[str, str]],
    blanks: Mapping[str, str],
    verdicts: Sequence[Verdict] = (),
) -> list[LookAlike]:
    """Return the pairs of submissions that look alike, the most alike first.

    Args:
        answers: The source of each answer, by student and exercise.
        blanks: What was handed out, by exercise.
        verdicts: Of the class, as far as it is graded: they tell which answers are wrong.

    """
    odd = {
        (verdict.student, report.exercise)
        for verdict in verdicts
        for report in verdict.reports
        if report.earned < report.points and not report.mistakes
    }
    bits: dict[tuple[str, str], float] = defaultdict(float)
    same: dict[tuple[str, str], list[str]] = defaultdict(list)
    for exercise, blank in blanks.items():
        handed_out, size_of_blank = _syntax(blank)
        groups: dict[str, list[str]] = defaultdict(list)
        sizes = {}
        for student, own in sorted(answers.items()):
            form, size = _syntax(own.get(exercise, ""))
            if form and form != handed_out:
                groups[form].append(student)
                sizes[form] = size - size_of_blank
        num_answers = sum(map(len, groups.values()))
        for form, students in groups.items():
            rarity = math.log2(num_answers / len(students))
            length = min(1.0, max(0.0, (sizes[form] - _SHORT) / (_LONG - _SHORT)))
            for pair in combinations(students, 2):
                is_odd = all((student, exercise) in odd for student in pair)
                bits[pair] += rarity * (1 + length if is_odd else length)
                same[pair].append(exercise)
    found = [
        LookAlike(
            pair,
            bits[pair],
            tuple(exercises),
            tuple(e for e in exercises if all((student, e) in odd for student in pair)),
        )
        for pair, exercises in same.items()
        if bits[pair] >= MIN_BITS
    ]
    return sorted(found, key=lambda each: (-each.bits, each.students))


def _syntax(source: str) -> tuple[str, int]:
    """Return what stands for the syntax of a cell, and its number of nodes; "" if it has none."""
    try:
        tree = ast.parse(textwrap.dedent(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # What does not parse is the same only word for word.
        return " ".join(source.split()), len(source.split())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_text(each)]  # type: ignore[attr-defined]
    bound = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in bound:
            node.id = names.setdefault(node.id, f"v{len(names)}")
        elif isinstance(node, ast.arg):
            node.arg, node.annotation = names.setdefault(node.arg, f"v{len(names)}"), None
    try:
        return (ast.dump(tree) if tree.body else ""), sum(1 for _ in ast.walk(tree))
    except RecursionError:
        return " ".join(source.split()), len(source.split())


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def to_text(found: Sequence[LookAlike], titles: Mapping[str, str]) -> str:
    """Return the report for a terminal.

    Args:
        found: As `look_alikes` returns it.
        titles: Of exercises, by their names.

    """
    lines = []
    for each in found:
        first, second = map(ascii, each.students)
        lines.append(f"{first} and {second}: {each.bits:.1f} bits of evidence")
        for exercise in each.exercises:
            note = ": the same wrong answer, no known mistake" if exercise in each.wrong else ""
            lines.append(f"  {titles.get(exercise, exercise)}{note}")
    return "\n".join(lines) or "no two submissions look alike"
