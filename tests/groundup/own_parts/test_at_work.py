import json
import sys

import pytest
from matplotlib.colors import to_hex

from groundup import commands
from groundup.__main__ import main
from groundup.own_parts import at_work
from groundup.own_parts.assembled import count_calls, load_library
from groundup.variants.functional import Parts

PIECES = """
from torch.nn.functional import gelu as theirs
from groundup.own_parts.assembled import assemble
from groundup.own_parts.parts import *
from groundup.own_parts.training_parts import adamw_step, clip_gradients, learning_rate
from groundup.generation.sampling import temperature as with_temperature, top_k, top_p
from groundup.variants import functional
from groundup.variants.functional import *

RENAMED = {"causal_mask": 0}
logsumexp = stable_softmax
softplus = theirs

def gelu(x):
    return theirs(x)

def alibi_slopes(n):
    return n

YOURS = %s
BORROWED = {"swiglu": "it is not written yet", "alibi_slopes": "1 of 5 points: too steep"}
REFUSED = %s
DecoderOnly = assemble(Parts(gelu=gelu, **{
    name: globals()[name]
    for name in YOURS if name in Parts.names() and name not in REFUSED and name != "gelu"
}))
"""
OWN = ["scaled_dot_product_attention", "grouped_query_attention", "feed_forward", "gelu"]
OWN += ["TransformerBlock", "MultiHeadAttention", "CrossAttention", "cached_attention"]
OWN += ["learned_positions", "apply_rotary", "alibi_bias", "shifted_loss", "smoothed_loss", "noam"]
OWN += ["adamw_step", "clip_gradients", "learning_rate", "top_k", "top_p", "stable_softmax"]


@pytest.fixture
def somebodys(tmp_path, monkeypatch):
    """Write packages, go where they are, and forget them again."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.chdir(tmp_path)

    def write(name, yours, refused=None, more=""):
        (tmp_path / name).mkdir()
        text = PIECES % (yours, refused or {}) + more
        (tmp_path / name / "__init__.py").write_text(text)
        return name

    yield write
    for name in [name for name in sys.modules if name.startswith("somebodys")]:
        del sys.modules[name]


@pytest.mark.slow
def test_every_piece_is_called_in_some_model_and_dates_are_read(somebodys):
    library = load_library(somebodys("somebodys_all", OWN))
    runs, said = at_work.where_pieces_run(library)
    assert runs.keys() == set(OWN)
    assert runs["grouped_query_attention"] == ["llama"]
    assert runs["CrossAttention"] == runs["noam"] == ["dates"]
    assert runs["TransformerBlock"] == ["text", "alibi"]
    assert runs["learned_positions"] == ["learned"]
    assert runs["cached_attention"] == ["text"]
    assert said.keys() == {"text", "learned", "alibi", "llama", "dates"}
    assert all("generates the same" in sentence for sentence in said.values())
    assert said["dates"].startswith("3. Mai 2031 → 2031-05-03\n")


@pytest.mark.slow
def test_the_command_trains_with_defaults_and_ends_with_text_and_a_picture(
    somebodys, capfd, monkeypatch
):
    name = somebodys("somebodys_own", OWN, {"apply_rotary": "it is off by 2"})
    arguments = ["train", "--library", name, "--steps", "2", "--device", "cpu"]
    assert main(arguments) == 0
    said = capfd.readouterr().out
    chosen = "chose --out runs/somebodys_own --data python-reference --preset tiny\n"
    assert said.startswith(
        f"{chosen}swiglu is the course's: it is not written yet\n"
        "alibi_slopes is the course's: 1 of 5 points: too steep\n"
        "apply_rotary is the course's: it is off by 2\n"
    )
    assert "\ncalls of your functions: " in said
    assert "clip_gradients 2" in said
    words = " ".join(said.split())
    assert "scaled_dot_product_attention, grouped_query_attention, CrossAttention, " in words
    assert "yours, but not in this model: " in words
    assert " TransformerBlock 4" in words and "apply_rotary 4" not in words
    assert (
        "The course's code generates the same text from these weights, to the last character"
        in said
    )
    assert said.endswith("saved a picture of this: runs/somebodys_own/mine.png\n")
    with open("runs/somebodys_own/mine.png", "rb") as file:
        assert file.read(8) == b"\x89PNG\r\n\x1a\n"
    with open("runs/somebodys_own/config.json") as file:
        assert json.load(file)["notes"]["data"] == "python-reference"
    assert main(arguments) == 2
    assert "--resume continues its training" in capfd.readouterr().err
    monkeypatch.setattr(commands, "_show", lambda *_: None)  # once is enough: it takes long
    assert main([*arguments[:-4], "--steps", "3", "--resume"]) == 0
    assert "made 3 of 3 updates" in capfd.readouterr().out


@pytest.mark.slow
def test_an_encoder_decoder_is_trained_by_a_library(somebodys, capfd):
    name = somebodys("somebodys_dates", OWN)
    arguments = ["train", "--library", name, "--data", "dates", "--steps", "2", "--out", "here"]
    assert main([*arguments, "--schedule", "inverse_root"]) == 0
    said = capfd.readouterr().out
    assert "CrossAttention" in said and "noam 2" in said
    assert "19 Eylül 1961 → " in said
    assert "to the last character" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("yours", "more", "sentence"),
    [
        ([], "", "--library must hold a function of yours, got somebodys_0"),
        (["gelu"], "def gelu(x:", "a library must be importable, got SyntaxError"),
        (
            ["top_k"],
            "def top_k(logits, k):\n    return {}[k]",
            "your top_k raised KeyError: 20",
        ),
    ],
)
def test_what_cannot_be_trained_ends_in_a_sentence(somebodys, capfd, yours, more, sentence):
    name = somebodys(f"somebodys_{len(more)}", yours, more=more)
    assert main(["train", "--library", name, "--steps", "1", "--device", "cpu"]) == 2
    *_, last = capfd.readouterr().err.splitlines()
    assert last.startswith("groundup: ") and sentence in last
    assert main(["train", "--library", "nowhere"]) == 2
    assert "`classroom mine` makes one" in capfd.readouterr().err
    assert main(["train"]) == 2
    assert "--out must be given" in capfd.readouterr().err


def test_a_sample_says_where_two_texts_part():
    verdict = at_work.Sample("abcx", "abcd", (1.0, 2.0)).verdict
    assert "for the first 3 of 4 characters; its loss is 2.000 nats per token, and" in verdict
    assert verdict.endswith("with these functions it is 1.000.")
    assert "for the first 3 of 4" in at_work.Sample("abc", "abcd", (1.0, 1.0)).verdict
    assert "for the first 4 of 4" in at_work.Sample("abcd", "abcd", (1.0, 2.0)).verdict
    assert "to the last character" in at_work.Sample("abcd", "abcd", (1.0, 1.0)).verdict


def test_the_picture_tells_mine_from_the_courses(somebodys):
    library = load_library(somebodys("somebodys_drawn", OWN, {"apply_rotary": "it is off"}))
    count_calls(library).update(["top_k"])
    sample = at_work.Sample("$ x $\n" + "word " * 99, "", (1.0, 1.0))
    figure = at_work.draw(library, [(1, 3.0), (2, 2.0)], sample)
    bricks = figure.axes[0]
    fills = {
        text.get_text(): (to_hex(box.get_facecolor()), to_hex(box.get_edgecolor()))
        for text, box in zip(bricks.texts, bricks.patches, strict=True)
    }
    white, mine, ours = "#ffffff", at_work._MINE, at_work._OURS
    assert fills["top_k"] == (mine, mine)
    assert fills["top_p"] == (white, mine)
    assert fills["swiglu"] == fills["apply_rotary"] == (white, ours)
    assert len(fills) == len(OWN) + 2 + 3
    assert "19 of 22 functions are mine, and 1 of them computed this" in figure.texts[1].get_text()
    assert [*figure.axes[1].lines[0].get_ydata()] == [3.0, 2.0]


def test_a_piece_that_another_one_calls_is_counted_too(somebodys):
    more = "def draw(x):\n    return gelu(x)"
    name = somebodys("somebodys_inner", ["gelu", "draw"], more=more)
    library = load_library(name)
    calls = count_calls(library)
    assert count_calls(library) is calls
    library.draw(library.torch.zeros(1))
    assert calls == {"draw": 1, "gelu": 1}
    assert library.DecoderOnly.parts.gelu is library.gelu
    assert library.DecoderOnly.parts.silu is Parts().silu
