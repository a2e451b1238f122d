"""Plans for a class: what is read and written in how many weeks, from what the assignments say.

An exercise says itself how long it takes, what it is worth, how important it is and whether it may
be left out. How long a page takes to read is estimated from its source. A chapter is its core page
and the deeper pages below it, whose names begin with the same number. A plan keeps what fits its
time, in the order of the course, and cuts it into weeks.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

WORDS_PER_MINUTE = 120
MINUTES_PER_LINE = 1 / 12
MINUTES_PER_PIECE = 1.0
"""Of a displayed formula, a figure, or a question to check oneself."""

TORN_CHAPTER = 45.0
"""As many minutes may weeks differ before a chapter is torn apart to make them alike."""

_BLOCK = re.compile(r"^(```+|:::+)(.*?)^\1[ ]*$", re.MULTILINE | re.DOTALL)
_FORMULA = re.compile(r"\$\$.*?\$\$", re.DOTALL)


@dataclass(frozen=True)
class Piece:
    """Something to do in one go: read a page, or write an exercise."""

    chapter: str
    """Name of its page and of its assignment, such as `01_attention`."""
    minutes: int
    exercise: str = ""
    """Its number, such as `1.4`; empty for a page."""
    points: int = 0
    importance: int = 5
    deeper: bool = False


def reading_minutes(page: str) -> int:
    """Estimate how long somebody studies a page, to five minutes.

    Args:
        page: Its source. Cells that are folded or hidden are not read, unless they draw a figure.

    """
    text = page.split("\n---\n", 1)[-1]
    minutes = 0.0
    for _, block in _BLOCK.findall(text):
        head, _, body = block.partition("\n")
        if "figure:" in block or head.startswith(("{quiz}", "{math}")):
            minutes += MINUTES_PER_PIECE
        if head.startswith("{code-cell}") and not re.search("hide-input|remove-", block):
            lines = [line for line in body.splitlines() if line.strip() and line[0] != ":"]
            minutes += MINUTES_PER_LINE * len(lines)
    prose = _BLOCK.sub(_prose_of, text)
    minutes += MINUTES_PER_PIECE * len(_FORMULA.findall(prose))
    words = re.findall(r"[A-Za-z][\w’'-]*", _FORMULA.sub("", prose))
    return 5 * round((minutes + len(words) / WORDS_PER_MINUTE) / 5)


def first_label(page: str) -> str:
    """Give the first label of a page; a deeper page may have none."""
    found = re.search(r"^\(([\w-]+)\)=$", page, re.MULTILINE)
    return found[1] if found else ""


def what_plans_see(page: str) -> tuple[int, str]:
    """Give all that the plans take from a chapter's source: the book builds them anew for that."""
    return reading_minutes(page), first_label(page)


def _prose_of(block: re.Match[str]) -> str:
    """Give what is to be read as text of a block: notes and boxes, but no code."""
    is_box = re.match(r"\{(?!code|quiz|math|list-table|exercises|bibliography)", block[2])
    return block[2].partition("\n")[2] if is_box else ""


def course(assignments: Iterable[dict[str, Any]], pages: dict[str, str]) -> list[Piece]:
    """List all there is to do, in order.

    Args:
        assignments: As `classroom.author.inventory.inventory` lists them.
        pages: Sources of all pages, by name; a core page has the name of its assignment.

    """
    pieces = []
    for assignment in assignments:
        chapter = assignment["name"]
        pieces.append(Piece(chapter, reading_minutes(pages[chapter])))
        for page, text in pages.items():
            if page != chapter and page[:3] == chapter[:3]:
                pieces.append(Piece(chapter, reading_minutes(text), importance=1, deeper=True))
        for exercise in assignment["exercises"]:
            about = (exercise[key] for key in ("number", "points", "importance", "deeper"))
            pieces.append(Piece(chapter, exercise["minutes"], *about))
    return pieces


def keep(pieces: Sequence[Piece], minutes: int) -> list[Piece]:
    """Leave out what matters least until the rest fits.

    What goes deeper goes first, and what is of little importance before other things; of equals the
    longest, and of those the last. All core pages are read, and what is most important stays.

    Raises:
        ValueError: If the rest does not fit.

    """
    may_go = [piece for piece in pieces if piece.deeper or piece.exercise and piece.importance < 5]
    may_go.reverse()
    may_go.sort(key=lambda piece: (not piece.deeper, piece.importance, -piece.minutes))
    kept = list(pieces)
    for piece in may_go:
        if time(kept) <= minutes:
            break
        kept.remove(piece)
    if time(kept) > minutes:
        raise ValueError(
            f"the core pages and the most important exercises must fit, got minutes={minutes} "
            f"for {time(kept)} minutes of work"
        )
    return kept


def into_weeks(pieces: Sequence[Piece], num_weeks: int) -> list[list[Piece]]:
    """Cut pieces into weeks of about the same length, without tearing chapters where that helps.

    The best of all ways to cut: the squares of how far weeks are from the mean, and the square of
    `TORN_CHAPTER` for each week that begins inside a chapter, add up to the least.

    Raises:
        ValueError: If there are fewer pieces than weeks.

    """
    if not 1 <= num_weeks <= len(pieces):
        raise ValueError(
            "num_weeks must be from 1 to the number of pieces, "
            f"got num_weeks={num_weeks} for {len(pieces)} pieces"
        )
    until = [0, *itertools.accumulate(piece.minutes for piece in pieces)]
    mean = until[-1] / num_weeks
    # The least cost of the first `end` pieces in so many weeks, and where the last week starts.
    best: list[tuple[float, list[int]]] = [(0.0, [])] + [(float("inf"), [])] * len(pieces)
    for week in range(1, num_weeks + 1):
        best = [(float("inf"), [])] * week + [
            min(
                (
                    best[start][0]
                    + (until[end] - until[start] - mean) ** 2
                    + (TORN_CHAPTER**2 if start and pieces[start].exercise else 0.0),
                    [*best[start][1], start],
                )
                for start in range(week - 1, end)
            )
            for end in range(week, len(pieces) + 1)
        ]
    starts = [*best[-1][1], len(pieces)]
    return [list(pieces[start:end]) for start, end in itertools.pairwise(starts)]


def time(pieces: Iterable[Piece]) -> int:
    """Add up minutes."""
    return sum(piece.minutes for piece in pieces)


def said(minutes: int) -> str:
    """Say a time as a person would: `45 min`, `2 h 30`."""
    hours, rest = divmod(minutes, 60)
    if not hours:
        return f"{rest} min"
    return f"{hours} h {rest:02}" if rest else f"{hours} h"


def numbers(pieces: Sequence[Piece], everything: Sequence[Piece]) -> str:
    """Name exercises by their numbers, those that follow each other as `1.1–1.4`.

    Args:
        pieces: What to name; chapters are passed over.
        everything: The course, which says what follows what.

    """
    there = [piece for piece in everything if piece.exercise]
    places = [there.index(piece) for piece in pieces if piece.exercise]
    runs: list[list[int]] = []
    for place in places:
        follows = runs and place == runs[-1][-1] + 1
        if follows and there[place].chapter == there[place - 1].chapter:
            runs[-1].append(place)
        else:
            runs.append([place])
    names = [[there[place].exercise for place in run] for run in runs]
    return ", ".join(", ".join(run) if len(run) < 3 else f"{run[0]}–{run[-1]}" for run in names)
