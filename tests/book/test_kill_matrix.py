"""The picture and the table of the kill matrix show what its record says."""

import itertools
from dataclasses import replace

from kill_matrix import WIDTH, _packed, draw, height_of, summary, table
from matplotlib.figure import Figure

from classroom.author.kill_matrix import Kills

ROWS = [
    Kills("00_first", "a", "0.1", ("one", "two"), {"A": (3, 3), "B": (0, 1), "C": (3, 3)}),
    Kills("00_first", "b", "0.2", ("three",), {"D": (3,)}),
    Kills("01_second", "c", "1.1", ("four", "five", "six"), {"E": (3, 0, 0), "F": (3, 0, 3)}),
]


def test_the_picture_has_a_square_for_each_check_of_each_mistake():
    figure = Figure(figsize=(6.4, height_of(ROWS, 6.4)))
    ax = figure.add_axes((0, 0, 1, 1))
    draw(ax, ROWS, {"00_first": "00 first", "01_second": "01 second"})
    assert [text.get_text() for text in ax.texts] == ["1", "2", "1", "00 first", "01 second"]
    missed, caught, alone = (cells(patch.get_path()) for patch in ax.patches)
    assert (missed, caught, alone) == (4, 6, 3)
    assert missed + caught + alone == summary(ROWS)["cells"] == 13


def cells(outline):
    """Count the squares of an outline: neighbours are joined, with a gap at the end only."""
    boxes = outline.vertices.reshape(-1, 5, 2)
    return sum(round(box[1, 0] - box[0, 0] + 0.14) for box in boxes)


def test_no_two_blocks_of_the_picture_overlap_and_all_lie_inside():
    fates = [dict.fromkeys(map(str, range(9 + i)), (1, 0)) for i in range(20)]
    many = [replace(ROWS[0], number=f"0.{i}", failures=fate) for i, fate in enumerate(fates)]
    blocks, _, height = _packed(many + ROWS[2:])
    taken = set()
    for block in blocks:
        places = itertools.product(range(block.width), range(len(block.row.checks)))
        squares = {(block.left + x, round(block.top + y, 3)) for x, y in places}
        assert not squares & taken
        assert max(x for x, _ in squares) < WIDTH and max(y for _, y in squares) < height
        taken |= squares


def test_the_table_counts_by_chapter_and_together():
    lines = table(ROWS, {"00_first": "00 first", "01_second": "01 second"}).splitlines()
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]] == [
        ["00 first", "2", "4", "2", "3", "2"],
        ["01 second", "1", "2", "1", "3", "1"],
        ["**total**", "**3**", "**6**", "**3**", "**6**", "**3**"],
    ]
