import dataclasses

import pytest

from groundup import presets
from groundup.core.config import DecoderOnlyConfig
from groundup.presets import decoder_only, encoder_decoder, encoder_only

FIELDS = ", ".join(field.name for field in dataclasses.fields(DecoderOnlyConfig))
SIZES = {"source_vocab_size": 13, "vocab_size": 11, "source_max_len": 7, "max_len": 5}


def tiny(**overrides):
    return decoder_only("tiny", **{"vocab_size": 11, "max_len": 5} | overrides)


# Laws


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


def test_the_width_of_a_head_follows_d_model_unless_chosen():
    assert tiny(d_model=12, num_heads=3).d_head == 4
    chosen = tiny(d_model=11, num_heads=3, head_width=8)
    assert (chosen.d_head, dataclasses.replace(chosen, num_heads=2).d_head) == (8, 8)


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
        "num_kv_heads must be a positive integer, got num_kv_heads=0",
    ),
    (
        {"d_model": 12, "num_heads": 4, "positions": "rotary"},
        "rotary positions need an even d_head, got d_head=3",
    ),
    (
        {"d_model": 15, "num_heads": 3, "positions": "sinusoidal"},
        "sinusoidal positions need an even d_model, got d_model=15",
    ),
    ({"head_width": 0}, "head_width must be a positive integer, got head_width=0"),
    (
        {"head_width": 5, "positions": "rotary"},
        "rotary positions need an even d_head, got d_head=5",
    ),
    (
        {"d_model": 12, "num_heads": 2, "rotary_frequencies": [0.7, 0.2]},
        "each pair needs its frequency, got rotary_frequencies=(0.7, 0.2), d_head=6",
    ),
    (
        {"rotary_frequencies": ["fast"]},
        "rotary_frequencies must be numbers or None, got rotary_frequencies=('fast',)",
    ),
    (
        {"positions": "relative"},
        "positions must be one of sinusoidal, learned, rotary, alibi, none, got positions=relative",
    ),
    ({"norm_order": "both"}, "norm_order must be one of pre, post, got norm_order=both"),
    (
        {"activation": "tanh"},
        "activation must be one of relu, gelu, gelu_tanh, squared_relu, swiglu, geglu, geglu_tanh, "
        "got activation=tanh",
    ),
    ({"norm": "batch"}, "norm must be one of layer, rms, got norm=batch"),
    ({"norm_eps": 0.0}, "norm_eps must be positive, got norm_eps=0.0"),
    ({"rotary_base": -1.0}, "rotary_base must be positive, got rotary_base=-1.0"),
    ({"window": 0}, "window must be a positive integer, got window=0"),
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
    ({"dropuot": 0.1}, f"DecoderOnlyConfig has no field dropuot; it has {FIELDS}"),
]


@pytest.mark.parametrize(("overrides", "message"), REFUSED)
def test_what_cannot_be_built_is_refused_in_one_sentence(unchecked, overrides, message):
    with pytest.raises(ValueError) as refusal:
        tiny(**overrides)
    assert str(refusal.value) == message


def test_a_model_with_an_encoder_is_checked_as_strictly():
    with pytest.raises(ValueError, match="num_encoder_layers must be a positive integer, got .*=0"):
        encoder_decoder("tiny", **SIZES, num_encoder_layers=0)
    with pytest.raises(ValueError, match="d_model must be a multiple of num_heads, .*=10, .*=3"):
        encoder_decoder("tiny", **SIZES, d_model=10, num_heads=3)


def test_one_table_for_two_vocabularies_is_refused():
    message = "tie_source_embeddings needs one vocabulary, got source_vocab_size=13, vocab_size=11"
    with pytest.raises(ValueError, match=message):
        encoder_decoder("tiny", **SIZES, tie_source_embeddings=True)


def test_a_missing_field_is_named():
    values = dataclasses.asdict(tiny())
    del values["d_ff"], values["num_kv_heads"]
    with pytest.raises(ValueError, match="DecoderOnlyConfig needs the field d_ff$"):
        presets.from_dict(DecoderOnlyConfig, values)


def test_answers_that_fit_no_table_are_refused(unchecked):
    with pytest.raises(
        ValueError, match="num_outputs must be a positive integer, got num_outputs=0"
    ):
        encoder_only("tiny", vocab_size=11, max_len=5, num_outputs=0)
    with pytest.raises(
        ValueError, match="tie_embeddings needs .* got num_outputs=3, vocab_size=11"
    ):
        encoder_only("tiny", vocab_size=11, max_len=5, num_outputs=3, tie_embeddings=True)
    with pytest.raises(
        ValueError, match="answers must be one of tokens, sequence, got answers=all"
    ):
        encoder_only("tiny", vocab_size=11, max_len=5, answers="all")
