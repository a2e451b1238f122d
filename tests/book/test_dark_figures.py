import plotstyle
import pytest
from bs4 import BeautifulSoup
from dark_figures import darken

DRAW = """
import matplotlib.pyplot as plt
import plotstyle
plotstyle.use()
plt.plot([1, 2]);
"""


def test_each_colour_of_the_course_is_exchanged_for_its_partner():
    svg = " ".join(f'<path style="stroke: {color}"/>' for color in plotstyle.DARK)
    darker = darken(svg)
    assert not any(light in darker for light in plotstyle.DARK)
    assert all(dark in darker for dark in plotstyle.DARK.values())


def test_other_colours_stay():
    assert darken('<path style="fill: #ffffff"/>') == '<path style="fill: #ffffff"/>'


@pytest.mark.slow
def test_a_figure_stands_on_its_page_twice_and_once_in_each_theme(small_book):
    book = small_book("dark_figures")
    book.write_page("figure", DRAW)
    book.write("drawn.svg", '<svg xmlns="http://www.w3.org/2000/svg"><path fill="#ffffff"/></svg>')
    book.write("other.md", "# Other\n\n![not one of ours](drawn.svg)\n")
    built = book.build()
    assert built.returncode == 0, built.stderr

    light, dark = BeautifulSoup(book.html("figure"), "html.parser").select(".cell_output img")
    assert light["class"] == ["dark-light", "figure-on-light"]
    assert dark["class"] == ["dark-light", "figure-on-dark"]
    drawings = [(book.folder / "out" / image["src"]).read_text() for image in (light, dark)]
    assert plotstyle.INK in drawings[0] and plotstyle.INK not in drawings[1]
    assert drawings[1] == darken(drawings[0])

    (foreign,) = BeautifulSoup(book.html("other"), "html.parser").select(
        "img[alt='not one of ours']"
    )
    assert not foreign.get("class")
