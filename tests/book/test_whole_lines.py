from myst_nb.core import render
from nbformat.v4 import new_output
from whole_lines import join_streams, setup


def printed(*pieces, name="stdout"):
    return [new_output("stream", name=name, text=piece) for piece in pieces]


def texts(outputs):
    return [output["text"] for output in outputs]


def test_a_line_cut_between_two_pieces_stays_a_line():
    assert texts(join_streams(printed("T  lo", "ss\n2  0.5\n"))) == ["T  loss\n2  0.5\n"]


def test_the_end_of_a_line_that_came_late_is_no_empty_line():
    assert texts(join_streams(printed("T  loss", "\n2  0.5", "\n"))) == ["T  loss\n2  0.5\n"]


def test_an_empty_line_that_was_printed_stays():
    assert texts(join_streams(printed("above\n", "\nbelow\n"))) == ["above\n\nbelow\n"]


def test_streams_are_joined_each_with_its_own_and_other_outputs_stay():
    picture = new_output("display_data", data={"text/plain": "a picture"})
    outputs = [*printed("a"), picture, *printed("oh", name="stderr"), *printed("b\n")]
    found = join_streams(outputs)
    assert [output["output_type"] for output in found] == ["stream", "display_data", "stream"]
    assert texts([found[0], found[2]]) == ["ab\n", "oh\n"]


def test_what_is_kept_in_the_cache_is_not_changed():
    outputs = printed("a", "b\n")
    join_streams(outputs)
    assert texts(outputs) == ["a", "b\n"]


def test_the_book_uses_it(monkeypatch):
    monkeypatch.setattr(render, "coalesce_streams", None)
    setup(None)
    assert render.coalesce_streams is join_streams
