import logging
import math

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from groundup import presets
from groundup.core.models import DecoderOnly
from groundup.files.checkpoint import from_hugging_face, load, save, to_hugging_face
from groundup.files.conversion import from_hugging_face_config, to_hugging_face_config
from groundup.files.rotary_scaling import from_hugging_face_rotary

SIZES = {
    "vocab_size": 29,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 19,
    "head_dim": 8,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LLAMA3 = {"factor": 4.0, "low_freq_factor": 0.5, "high_freq_factor": 2.5}
LLAMA3 |= {"rope_type": "llama3", "original_max_position_embeddings": 17}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 17}
FACTORS = [1.0, 1.5, 2.5, 4.0]
LONG = {"rope_type": "longrope", "short_factor": FACTORS, "long_factor": FACTORS}
LONG |= {"attention_factor": 1.3, "factor": 4.0, "original_max_position_embeddings": 17}
RECIPES = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn, few turns": YARN | {"beta_fast": 2.0, "beta_slow": 0.5, "truncate": False},
    "yarn, attention": YARN | {"factor": 4, "attention_factor": 0.8},
    "longrope": LONG,
}
MODELS = {
    "Llama": LlamaConfig,
    "Mistral": MistralConfig,
    "Qwen2": Qwen2Config,
    "Qwen3": Qwen3Config,
    "Gemma": GemmaConfig,
}


def fields(rope=None, **more):
    """Give what a `config.json` says, with 68 positions of which 17 were trained."""
    sizes = SIZES | {"model_type": "llama", "max_position_embeddings": 68}
    return sizes | ({} if rope is None else {"rope_parameters": rope | {"rope_theta": 77.0}}) | more


def old(rope):
    """Give the same as versions before 5 of their library wrote it."""
    rest = {name: value for name, value in rope.items() if name != "rope_type"}
    return {"rope_theta": 77.0, "rope_scaling": {"type": rope["rope_type"]} | rest}


@pytest.fixture
def their_model(shaken):
    """Make one of their models with random numbers in every place; a warning of theirs fails."""
    said = []
    listener = logging.Handler(logging.WARNING)
    listener.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("transformers").addHandler(listener)

    def make(kind=LlamaConfig, **fields):
        fields.pop("model_type", None)
        return shaken(AutoModelForCausalLM.from_config(kind(**fields), dtype=torch.float64)).eval()

    yield make
    logging.getLogger("transformers").removeHandler(listener)
    assert said == []


@pytest.fixture
def logits():
    """Compute the logits of one of their models and of ours, read from its folder."""

    def both(theirs, folder, tokens):
        theirs.save_pretrained(folder)
        with torch.no_grad():
            return from_hugging_face(folder)(tokens), theirs(tokens).logits

    return both


# By hand


def test_each_recipe_says_which_pairs_turn_more_slowly():
    """The base is 16, so 4 pairs turn by 1, 1/2, 1/4 and 1/8; 50 tokens were trained."""
    turns = [50 / (2 * math.pi * 2**pair) for pair in range(4)]

    def read(kind, **rope):
        fields = {"rope_theta": 16, "rope_scaling": {"type": kind, "factor": 5} | rope}
        got = from_hugging_face_rotary(fields | {"max_position_embeddings": 50}, 8)
        assert got["rotary_base"] == 16
        return [pytest.approx(frequency) for frequency in got["rotary_frequencies"]], got

    half = (1 / 2 + 1 / 10) / 2
    frequencies, _ = read("linear")
    assert frequencies == [1 / 5, 1 / 10, 1 / 20, 1 / 40]
    # The turns of pair 1 are half-way from those of pair 2 to three times as many.
    frequencies, _ = read("llama3", low_freq_factor=turns[2], high_freq_factor=3 * turns[2])
    assert frequencies == [1, half, 1 / 20, 1 / 40]
    # The number 1 is half-way from pair 0 to pair 2.
    frequencies, got = read("yarn", beta_fast=turns[0], beta_slow=turns[2], truncate=False)
    assert frequencies == [1, half, 1 / 20, 1 / 40]
    assert got["rotary_scale"] == pytest.approx(0.1 * math.log(5) + 1)
    assert got["max_len"] == 250


# Against their models


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("is_old", [False, True])
def test_longer_texts_than_trained_get_their_logits(
    recipe, is_old, their_model, logits, tokens, tmp_path
):
    rope, read = RECIPES[recipe], tokens(29, 3, 61)
    theirs = their_model(**fields() | old(rope) if is_old else fields(rope))
    ours, expected = logits(theirs, tmp_path, read)
    torch.testing.assert_close(ours, expected, rtol=0, atol=5e-5)
    unscaled = their_model(**fields({"rope_type": "default"}))
    with torch.no_grad():
        assert (unscaled(read).logits - expected)[:, -1].abs().max() > 0.01


@pytest.mark.parametrize("recipe", ["llama3", "yarn"])
@pytest.mark.parametrize("kind", MODELS)
def test_all_of_llama_s_family_can_be_stretched(
    kind, recipe, their_model, logits, tokens, tmp_path
):
    theirs = their_model(MODELS[kind], **fields(RECIPES[recipe]))
    ours, expected = logits(theirs, tmp_path, tokens(29, 3, 61))
    torch.testing.assert_close(ours, expected, rtol=0, atol=5e-5)


def test_up_to_its_length_a_dynamic_model_is_the_usual_one_and_there_ours_ends(
    their_model, logits, tokens, tmp_path
):
    rope = {"rope_type": "dynamic", "factor": 4.0}
    theirs = their_model(**fields(rope, max_position_embeddings=17))
    ours, expected = logits(theirs, tmp_path, tokens(29, 3, 17))
    torch.testing.assert_close(ours, expected, rtol=0, atol=5e-5)
    with pytest.raises(ValueError, match="must not be longer than max_len, got length=18"):
        from_hugging_face(tmp_path)(tokens(29, 3, 18))


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_we_write_of_a_stretched_model_is_read_by_their_library(
    recipe, their_model, logits, tokens, tmp_path
):
    read = tokens(29, 3, 61)
    ours, _ = logits(their_model(**fields(RECIPES[recipe])), tmp_path / "theirs", read)
    to_hugging_face(from_hugging_face(tmp_path / "theirs"), tmp_path / "ours")
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")(read).logits
        again = from_hugging_face(tmp_path / "ours")(read)
    torch.testing.assert_close(theirs, ours, rtol=0, atol=5e-5)
    torch.testing.assert_close(again, ours, rtol=0, atol=5e-5)


# Laws


@pytest.mark.parametrize("recipe", RECIPES)
def test_frequencies_and_scale_come_back_from_what_is_written(recipe):
    config = from_hugging_face_config(fields(RECIPES[recipe]))
    again = from_hugging_face_config(to_hugging_face_config(config))
    assert again.rotary_frequencies == pytest.approx(config.rotary_frequencies, rel=1e-14)
    assert (again.rotary_scale, again.max_len) == (config.rotary_scale, config.max_len)


def test_a_scale_alone_comes_back_with_the_usual_frequencies():
    config = presets.decoder_only("llama", vocab_size=29, max_len=17, rotary_scale=1.3)
    again = from_hugging_face_config(to_hugging_face_config(config))
    usual = from_hugging_face_rotary({"max_position_embeddings": 17}, config.d_head)
    assert usual["rotary_frequencies"] is None and again.rotary_scale == 1.3
    expected = [10_000 ** (-2 * pair / config.d_head) for pair in range(config.d_head // 2)]
    assert again.rotary_frequencies == pytest.approx(expected)


def test_a_yarn_model_ends_where_its_factor_says():
    unmentioned = {"rope_type": "yarn", "factor": 2.5}  # then all positions were trained
    assert from_hugging_face_config(fields(unmentioned)).max_len == 170
    assert from_hugging_face_config(fields(YARN)).max_len == 68
    assert from_hugging_face_config(fields(YARN | {"factor": 2})).max_len == 68
    assert from_hugging_face_config(fields(LLAMA3)).max_len == 68
    assert from_hugging_face_config(fields(RECIPES["linear"])).max_len == 68


def test_a_stretched_model_is_saved_and_loaded_as_it_is(their_model, tokens, tmp_path):
    their_model(**fields(YARN)).save_pretrained(tmp_path / "theirs")
    model, read = from_hugging_face(tmp_path / "theirs", torch.float32), tokens(29, 3, 61)
    save(tmp_path / "ours", model, {})
    again = load(tmp_path / "ours").model
    assert isinstance(again, DecoderOnly) and again.config == model.config
    assert torch.equal(again(read), model(read))


# Refusals


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"rope_scaling": {"type": "su"}},
            "rope_type must be one of default, dynamic, .*, got rope_type=su",
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "mscale": 0.7}},
            "rope_parameters of rope_type=yarn must not have mscale, got mscale=0.7",
        ),
        (
            {"rope_parameters": {"mrope_section": [2, 1, 1]}},
            r"rope_parameters of rope_type=default must not have mrope_section, got .*=\[2, 1, 1\]",
        ),
        (
            {"rope_scaling": {"type": "linear"}},
            "rope_scaling of rope_type=linear needs factor, got factor=None",
        ),
        (
            {"rope_scaling": LLAMA3 | {"low_freq_factor": None}},
            "rope_scaling of rope_type=llama3 needs low_freq_factor, got low_freq_factor=None",
        ),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 0.5}},
            "factor in rope_scaling must be a number of at least 1, got factor=0.5",
        ),
        (
            {"rope_parameters": LLAMA3 | {"low_freq_factor": 2.5}},
            "must be less than high_freq_factor, got low_freq_factor=2.5, high_freq_factor=2.5",
        ),
        (
            {"rope_parameters": LONG | {"short_factor": [1.0, 1.0, 1.0, 1.0]}},
            r"short_factor must equal long_factor: .*, got short_factor=\[1.0, 1.0, 1.0, 1.0\]",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "partial_rotary_factor must be 1: .*, got partial_rotary_factor=0.5",
        ),
        (
            {"partial_rotary_factor": 0.25},
            "partial_rotary_factor must be 1: .*, got partial_rotary_factor=0.25",
        ),
    ],
)
def test_other_ways_to_rotate_are_refused_in_a_sentence(more, message):
    with pytest.raises(ValueError, match=message):
        from_hugging_face_config(fields(**more))
