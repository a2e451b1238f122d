"""The kill matrix of the graders, as a picture and a table: which check catches which mistake."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from plotstyle import BLUE, INK, MUTED, ORANGE

from classroom.author.kill_matrix import RECORD, Kills, read

ROOT = Path(__file__).parent.parent


def kills() -> list[Kills]:
    """Read the record of which check catches which mistake."""
    return read(ROOT / RECORD)


@dataclass(frozen=True)
class _Block:
    row: Kills
    left: int
    top: float

    @property
    def width(self) -> int:
        return len(self.row.failures)


WIDTH, GAP, LABEL = 84, 2, 2.6
"""Of a picture: cells across, between blocks, and above a block for its number."""


def _packed(rows: Sequence[Kills]) -> tuple[list[_Block], dict[str, float], float]:
    """Give each exercise a place, chapter by chapter: blocks, chapters' heights, whole height."""
    blocks: list[_Block] = []
    headings: dict[str, float] = {}
    top = 0.0
    for chapter in dict.fromkeys(row.assignment for row in rows):
        headings[chapter] = top
        top += 3.4
        left, tallest = 0, 0
        for row in (row for row in rows if row.assignment == chapter):
            if left and left + len(row.failures) > WIDTH:
                top, left, tallest = top + tallest + LABEL, 0, 0
            blocks.append(_Block(row, left, top + LABEL))
            left += len(row.failures) + GAP
            tallest = max(tallest, len(row.checks))
        top += tallest + LABEL + 1.5
    return blocks, headings, top


def height_of(rows: Sequence[Kills], width: float) -> float:
    """Return how high a picture of some inches of width has to be."""
    return _packed(rows)[2] * width / WIDTH


def draw(ax: Axes, rows: Sequence[Kills], titles: dict[str, str]) -> None:
    """Draw a block for each exercise: a column per mistake, a row per check, filled if it catches.

    Args:
        ax: As wide as the picture, and as high as `height_of` says.
        rows: The matrix.
        titles: What is written above a chapter, by the name of its assignment.

    """
    blocks, headings, height = _packed(rows)
    caught, alone, missed = [], [], []
    for block in blocks:
        # Mistakes with the same fate side by side: what is alike makes one shape.
        names = sorted(block.row.failures, key=lambda name, row=block.row: row.killers(name))
        for x, name in enumerate(names):
            killers = block.row.killers(name)
            for y in range(len(block.row.checks)):
                cell = (block.left + x, block.top + y)
                is_caught = y in killers
                (alone if killers == [y] else caught if is_caught else missed).append(cell)
        ax.text(
            block.left,
            block.top - 0.5,
            block.row.number.split(".")[1],
            fontsize=7.5,
            color=MUTED,
            va="baseline",
        )
    for name, top in headings.items():
        ax.text(0, top + 2.6, titles[name], fontsize=10, color=INK, va="baseline")
    for cells, color, opacity in ((missed, MUTED, 0.14), (caught, BLUE, 1), (alone, ORANGE, 1)):
        ax.add_patch(PathPatch(_squares(cells), facecolor=color, alpha=opacity, linewidth=0))
    ax.set(xlim=(0, WIDTH), ylim=(height, 0), aspect="equal")
    ax.set_axis_off()


def _squares(cells: Sequence[tuple[float, float]], size: float = 0.86) -> Outline:
    """Make one outline of many squares, neighbours in a row joined to one box."""
    boxes: list[list[float]] = []
    for x, y in sorted(cells, key=lambda cell: (cell[1], cell[0])):
        if boxes and boxes[-1][2] == y and boxes[-1][1] == x:
            boxes[-1][1] = x + 1
        else:
            boxes.append([x, x + 1, y])
    corners, codes = [], []
    for left, right, y in boxes:
        right -= 1 - size
        corners += [(left, y), (right, y), (right, y + size), (left, y + size), (left, y)]
        codes += [Outline.MOVETO, *[Outline.LINETO] * 3, Outline.CLOSEPOLY]
    return Outline(corners or [(0, 0)], codes or [Outline.MOVETO])


def table(rows: Sequence[Kills], titles: dict[str, str]) -> str:
    """Return a table in Markdown, with a row for each chapter and the sums below."""
    lines = [
        "| chapter | exercises | known mistakes | caught by one check only | checks | needed |",
        "|:--|--:|--:|--:|--:|--:|",
    ]
    columns = ("exercises", "mistakes", "by_one", "checks", "needed")
    for chapter, title in titles.items():
        facts = summary([row for row in rows if row.assignment == chapter])
        lines.append(f"| {title} | {' | '.join(str(facts[name]) for name in columns)} |")
    facts = summary(rows)
    lines.append(f"| **total** | {' | '.join(f'**{facts[name]:,}**' for name in columns)} |")
    return "\n".join(lines)


def summary(rows: Sequence[Kills]) -> dict[str, int]:
    """Count what the sentences around the picture say."""
    fates = [(row, place) for row in rows for place in range(len(row.checks))]
    return {
        "exercises": len(rows),
        "mistakes": sum(len(row.failures) for row in rows),
        "checks": len(fates),
        "cells": sum(len(row.failures) * len(row.checks) for row in rows),
        "by_one": sum(len(row.killers(name)) == 1 for row in rows for name in row.failures),
        "needed": sum(bool(row.caught_only_by(place)) for row, place in fates),
    }
