"""What cells show, and how much of it is kept."""

import importlib.util
import json
import sys

import pytest

from classroom.sandbox.inside import shell
from classroom.sandbox.inside.shell import Collected


def length(outputs):
    return len(json.dumps(outputs))


@pytest.mark.parametrize("text", ["a", "\n", "é", "漢", "😀", "\x00", "\udcff"])
def test_text_is_cut_to_its_room_whatever_its_characters_take(text):
    collected = Collected(3000)
    collected.text("stdout", text * 5000)
    collected.text("stdout", "more")
    assert length(collected.outputs) < 3500
    assert collected.outputs[0]["text"].endswith("the rest was cut off\n")


def test_many_small_pieces_are_cut_as_well():
    collected = Collected(3000)
    for _ in range(5000):
        collected.text("stdout", "é")
    assert length(collected.outputs) < 3500


def test_text_within_its_room_is_kept_in_one_piece_for_each_stream():
    collected = Collected(3000)
    for stream, text in [("stdout", "2"), ("stdout", "3"), ("stderr", "5"), ("stdout", "7")]:
        collected.text(stream, text)
    assert [(o["name"], o["text"]) for o in collected.outputs] == [
        ("stdout", "23"),
        ("stderr", "5"),
        ("stdout", "7"),
    ]


def test_the_last_byte_of_room_is_no_trap():
    collected = Collected(300)
    collected.text("stdout", "x" * 297)
    collected.text("stdout", "yy")
    collected.text("stdout", "zz")
    assert length(collected.outputs) < 500


def test_a_picture_that_is_too_long_is_left_out():
    collected = Collected(3000)
    collected.data("display_data", {"image/png": "x" * 5000})
    assert "left out" in collected.outputs[0]["data"]["text/plain"]


def test_empty_outputs_do_not_pile_up():
    collected = Collected(3000)
    for _ in range(5000):
        collected.data("display_data", {})
        collected.error("E", "", [])
    assert len(collected.outputs) < 20


def test_what_is_shown_as_data_becomes_text():
    collected = Collected(3000)
    collected.data("display_data", {"application/json": {"number": 5}})
    assert collected.outputs[0]["data"] == {"application/json": '{"number": 5}'}


def test_clearing_makes_room():
    collected = Collected(3000)
    collected.text("stdout", "x" * 5000)
    collected.clear()
    collected.text("stdout", "new")
    assert [output["text"] for output in collected.outputs] == ["new"]


def test_an_import_of_a_library_that_is_hidden_says_that_it_is(monkeypatch):
    monkeypatch.setattr(shell, "HIDDEN_PACKAGES", ("kept",))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, shell.NotHere])
    with pytest.raises(ModuleNotFoundError, match="'kept': the course's library is not"):
        importlib.import_module("kept.masks")
    with pytest.raises(ModuleNotFoundError, match="No module named 'absent'$"):
        importlib.import_module("absent")
    assert importlib.util.find_spec("kept") is None
