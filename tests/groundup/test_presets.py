import json
import math
from dataclasses import asdict, replace

import pytest

from groundup import presets
from groundup.presets import decoder_only, encoder_decoder, encoder_only

SIZES = {"source_vocab_size": 13, "vocab_size": 11, "source_max_len": 7, "max_len": 5}

# By hand


def test_paper_base_is_the_base_row_of_the_paper_s_table():
    config = encoder_decoder("paper_base", **SIZES)
    assert (config.num_layers, config.num_encoder_layers) == (6, 6)
    assert (config.d_model, config.d_ff, config.num_heads, config.d_head) == (512, 2048, 8, 64)
    assert (config.dropout, config.norm_order) == (0.1, "post")
    assert (config.positions, config.activation) == ("sinusoidal", "relu")


def test_paper_base_shares_one_table_where_there_is_one_vocabulary():
    assert not encoder_decoder("paper_base", **SIZES).tie_source_embeddings
    shared = encoder_decoder("paper_base", **SIZES | {"source_vocab_size": 11})
    assert shared.tie_source_embeddings and shared.tie_embeddings


def test_gpt2_small_is_as_released():
    config = decoder_only("gpt2_small")
    assert (config.vocab_size, config.max_len) == (50257, 1024)
    assert (config.num_layers, config.d_model, config.num_heads, config.d_ff) == (12, 768, 12, 3072)


def test_a_gated_network_of_two_thirds_the_width_has_as_many_parameters():
    """Llama's d_ff: 8 / 3 of d_model, rounded up to a multiple of 8."""
    config = decoder_only("llama", vocab_size=11, max_len=5)
    assert config.d_ff == math.ceil(8 / 3 * config.d_model / 8) * 8
    assert (config.norm, config.activation, config.positions) == ("rms", "swiglu", "rotary")


def test_bert_base_is_as_released():
    config = encoder_only("bert_base")
    assert (config.vocab_size, config.max_len, config.d_model, config.d_ff) == (
        30522,
        512,
        768,
        3072,
    )
    assert (config.num_layers, config.num_heads, config.norm_order) == (12, 12, "post")


# Laws


@pytest.mark.parametrize(
    ("preset", "table", "sizes"),
    [
        (decoder_only, presets.DECODER_ONLY, {"vocab_size": 11, "max_len": 5}),
        (encoder_only, presets.ENCODER_ONLY, {"vocab_size": 11, "max_len": 5}),
        (encoder_decoder, presets.ENCODER_DECODER, SIZES),
    ],
)
def test_every_preset_survives_json_and_takes_overrides(preset, table, sizes):
    for name in table:
        assert preset(name, **sizes).attention_dropout == 0
        config = preset(name, **sizes, num_kv_heads=1, dropout=0.25, attention_dropout=0.5)
        assert config.attention_dropout == 0.5
        assert (config.max_len, config.num_kv_heads, config.dropout) == (5, 1, 0.25)
        frequencies = tuple(1 / (number + 1) for number in range(config.d_head // 2))
        stretched = replace(config, rotary_frequencies=frequencies, rotary_scale=1.3)
        for kept in (config, stretched):
            again = presets.from_dict(type(kept), json.loads(json.dumps(asdict(kept))))
            assert again == kept and hash(again) == hash(kept)


# Refusals


def test_an_unknown_preset_is_refused_with_the_names_that_exist():
    with pytest.raises(ValueError, match="preset must be one of tiny, modern, .*, got preset=huge"):
        decoder_only("huge", vocab_size=11, max_len=5)
    with pytest.raises(
        ValueError, match="preset must be one of tiny, paper_base, got preset=preset"
    ):
        encoder_decoder("preset", **SIZES)


def test_what_a_preset_leaves_open_is_asked_for():
    with pytest.raises(ValueError, match="DecoderOnlyConfig needs the field max_len, vocab_size"):
        decoder_only("tiny")
