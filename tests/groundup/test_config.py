import dataclasses
import json
import math

import pytest

from groundup.config import DecoderOnlyConfig, EncoderDecoderConfig, EncoderOnlyConfig

SIZES = {"source_vocab_size": 13, "vocab_size": 11, "source_max_len": 7, "max_len": 5}


def tiny(**overrides):
    return DecoderOnlyConfig.tiny(**{"vocab_size": 11, "max_len": 5} | overrides)


# By hand


def test_paper_base_is_the_base_row_of_the_paper_s_table():
    config = EncoderDecoderConfig.paper_base(**SIZES)
    assert (config.num_layers, config.num_encoder_layers) == (6, 6)
    assert (config.d_model, config.d_ff, config.num_heads, config.d_head) == (512, 2048, 8, 64)
    assert (config.dropout, config.norm_order) == (0.1, "post")
    assert (config.positions, config.activation) == ("sinusoidal", "relu")


def test_paper_base_shares_one_table_where_there_is_one_vocabulary():
    assert not EncoderDecoderConfig.paper_base(**SIZES).tie_source_embeddings
    shared = EncoderDecoderConfig.paper_base(**SIZES | {"source_vocab_size": 11})
    assert shared.tie_source_embeddings and shared.tie_embeddings


def test_gpt2_small_is_as_released():
    config = DecoderOnlyConfig.gpt2_small()
    assert (config.vocab_size, config.max_len) == (50257, 1024)
    assert (config.num_layers, config.d_model, config.num_heads, config.d_ff) == (12, 768, 12, 3072)


def test_a_gated_network_of_two_thirds_the_width_has_as_many_parameters():
    """Llama's d_ff: 8 / 3 of d_model, rounded up to a multiple of 8."""
    config = DecoderOnlyConfig.llama(vocab_size=11, max_len=5)
    assert config.d_ff == math.ceil(8 / 3 * config.d_model / 8) * 8
    assert (config.norm, config.activation, config.positions) == ("rms", "swiglu", "rotary")


def test_bert_base_is_as_released():
    config = EncoderOnlyConfig.bert_base()
    assert (config.vocab_size, config.max_len, config.d_model, config.d_ff) == (
        30522,
        512,
        768,
        3072,
    )
    assert (config.num_layers, config.num_heads, config.norm_order) == (12, 12, "post")


# Laws


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        (DecoderOnlyConfig, {"vocab_size": 11, "max_len": 5}),
        (EncoderOnlyConfig, {"vocab_size": 11, "max_len": 5}),
        (EncoderDecoderConfig, SIZES),
    ],
)
def test_every_preset_survives_json_and_takes_overrides(kind, sizes):
    for name in kind.PRESETS:
        assert kind.preset(name, **sizes).attention_dropout == 0
        config = kind.preset(name, **sizes, num_kv_heads=1, dropout=0.25, attention_dropout=0.5)
        assert config.attention_dropout == 0.5
        assert (config.max_len, config.num_kv_heads, config.dropout) == (5, 1, 0.25)
        assert kind.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_a_config_cannot_be_changed_and_a_changed_copy_is_checked():
    with pytest.raises(dataclasses.FrozenInstanceError):
        tiny().d_model = 7
    assert dataclasses.replace(tiny(), num_heads=8).d_head == tiny().d_model // 8
    with pytest.raises(ValueError, match="num_heads=7"):
        dataclasses.replace(tiny(), num_heads=7)


def test_key_and_value_heads_follow_the_query_heads_unless_chosen():
    assert tiny().num_kv_heads is None
    assert dataclasses.replace(tiny(), num_heads=2).num_kv_heads is None
    assert dataclasses.replace(tiny(), num_heads=2).kv_heads == 2
    assert dataclasses.replace(tiny(), num_kv_heads=1).kv_heads == 1


# Refusals

REFUSED = [
    ({"d_model": 0}, "d_model must be a positive integer, got d_model=0"),
    ({"num_layers": -1}, "num_layers must be a positive integer, got num_layers=-1"),
    ({"max_len": 2.5}, "max_len must be a positive integer, got max_len=2.5"),
    ({"vocab_size": True}, "vocab_size must be a positive integer, got vocab_size=True"),
    (
        {"d_model": 10, "num_heads": 3},
        "d_model must be a multiple of num_heads, got d_model=10, num_heads=3",
    ),
    (
        {"num_heads": 4, "num_kv_heads": 3},
        "num_heads must be a multiple of num_kv_heads, got num_heads=4, num_kv_heads=3",
    ),
    (
        {"num_heads": 4, "num_kv_heads": 0},
        "num_heads must be a multiple of num_kv_heads, got num_heads=4, num_kv_heads=0",
    ),
    (
        {"d_model": 12, "num_heads": 4, "positions": "rotary"},
        "rotary positions need an even d_head = d_model / num_heads, got d_model=12, num_heads=4",
    ),
    (
        {"d_model": 15, "num_heads": 3, "positions": "sinusoidal"},
        "sinusoidal positions need an even d_model, got d_model=15",
    ),
    (
        {"positions": "relative"},
        "positions must be one of sinusoidal, learned, rotary, alibi, none, got positions=relative",
    ),
    ({"norm_order": "both"}, "norm_order must be one of pre, post, got norm_order=both"),
    (
        {"activation": "tanh"},
        "activation must be one of relu, gelu, gelu_tanh, squared_relu, swiglu, geglu, "
        "got activation=tanh",
    ),
    ({"norm": "batch"}, "norm must be one of layer, rms, got norm=batch"),
    ({"norm_eps": 0.0}, "norm_eps must be positive, got norm_eps=0.0"),
    ({"rotary_base": -1.0}, "rotary_base must be positive, got rotary_base=-1.0"),
    ({"window": 0}, "window must be at least 1, got window=0"),
    ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got dropout=1.0"),
    ({"dropout": -0.1}, "dropout must be at least 0 and below 1, got dropout=-0.1"),
    (
        {"attention_dropout": 1.0},
        "attention_dropout must be at least 0 and below 1, got attention_dropout=1.0",
    ),
    (
        {"attention_dropout": -0.1},
        "attention_dropout must be at least 0 and below 1, got attention_dropout=-0.1",
    ),
    ({"dropuot": 0.1}, "DecoderOnlyConfig has no field dropuot"),
]


@pytest.mark.parametrize(("overrides", "message"), REFUSED)
def test_what_cannot_be_built_is_refused_in_one_sentence(unchecked, overrides, message):
    with pytest.raises(ValueError) as refusal:
        tiny(**overrides)
    assert str(refusal.value) == message


def test_a_model_with_an_encoder_is_checked_as_strictly():
    with pytest.raises(ValueError, match="num_encoder_layers must be a positive integer, got .*=0"):
        EncoderDecoderConfig.tiny(**SIZES, num_encoder_layers=0)
    with pytest.raises(ValueError, match="d_model must be a multiple of num_heads, .*=10, .*=3"):
        EncoderDecoderConfig.tiny(**SIZES, d_model=10, num_heads=3)


def test_one_table_for_two_vocabularies_is_refused():
    message = "tie_source_embeddings needs one vocabulary, got source_vocab_size=13, vocab_size=11"
    with pytest.raises(ValueError, match=message):
        EncoderDecoderConfig.tiny(**SIZES, tie_source_embeddings=True)


def test_an_unknown_preset_is_refused_with_the_names_that_exist():
    with pytest.raises(ValueError, match="preset must be one of tiny, modern, .*, got preset=huge"):
        DecoderOnlyConfig.preset("huge", vocab_size=11, max_len=5)
    with pytest.raises(
        ValueError, match="preset must be one of tiny, paper_base, got preset=preset"
    ):
        EncoderDecoderConfig.preset("preset", **SIZES)


def test_a_missing_field_is_named():
    values = tiny().to_dict()
    del values["d_ff"], values["num_kv_heads"]
    with pytest.raises(ValueError, match="DecoderOnlyConfig needs the field d_ff$"):
        DecoderOnlyConfig.from_dict(values)


def test_answers_that_fit_no_table_are_refused(unchecked):
    with pytest.raises(ValueError, match="num_outputs must be at least 1, got num_outputs=0"):
        EncoderOnlyConfig.tiny(vocab_size=11, max_len=5, num_outputs=0)
    with pytest.raises(
        ValueError, match="tie_embeddings needs .* got num_outputs=3, vocab_size=11"
    ):
        EncoderOnlyConfig.tiny(vocab_size=11, max_len=5, num_outputs=3, tie_embeddings=True)
    with pytest.raises(
        ValueError, match="answers must be one of tokens, sequence, got answers=all"
    ):
        EncoderOnlyConfig.tiny(vocab_size=11, max_len=5, answers="all")
