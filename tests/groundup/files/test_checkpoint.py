import itertools
import json

import pytest
import torch

from groundup import presets
from groundup.core.models import DecoderOnly, EncoderDecoder, EncoderOnly
from groundup.data.batches import language_model_batches
from groundup.data.tokenizers import (
    BOS,
    EOS,
    PAD,
    BytePairTokenizer,
    ByteTokenizer,
    CharacterTokenizer,
)
from groundup.files.checkpoint import load, load_training, save, save_training
from groundup.training.loop import TrainingConfig, adamw, train

TEXT = CharacterTokenizer("abcdefghijk")
SMALL = {"vocab_size": 11, "max_len": 7, "d_model": 12, "num_heads": 3, "d_ff": 13}
SETTINGS = TrainingConfig(steps=11, learning_rate=0.01, warmup_steps=2)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def decoder_only(**overrides):
    sizes = SMALL | {"num_layers": 2} | overrides
    return DecoderOnly(presets.decoder_only("tiny", **sizes), generator())


def encoder_decoder(**overrides):
    sizes = SMALL | {"source_vocab_size": 11, "source_max_len": 5} | overrides
    return EncoderDecoder(presets.encoder_decoder("tiny", **sizes), generator())


def batches(state):
    return language_model_batches(torch.arange(99) % 11, 3, 7, state)


@pytest.fixture
def folder(tmp_path):
    save(tmp_path / "run", decoder_only(), {"text": TEXT}, {"seed": 3})
    return tmp_path / "run"


def rewrite(folder, change):
    path = folder / "config.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


# By hand


def test_a_folder_holds_a_readable_configuration_and_the_weights(folder):
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    record = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert record["model"] == "DecoderOnly"
    assert record["config"]["d_model"] == 12
    assert record["tokenizers"]["text"]["characters"] == "abcdefghijk"
    assert record["notes"] == {"seed": 3}


@pytest.mark.parametrize("tied", [True, False])
def test_tied_weights_are_written_once_and_come_back_tied(tmp_path, tied):
    model = decoder_only(tie_embeddings=tied)
    save(tmp_path, model, {"text": TEXT})
    size = sum(p.numel() for p in model.parameters()) * 4
    assert size < (tmp_path / "model.safetensors").stat().st_size < size + 4096
    again = load(tmp_path).model
    assert isinstance(again, DecoderOnly)
    assert (again.unembedding.weight is again.embedding.tokens.weight) == tied


# Laws


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_a_decoder_only_comes_back_the_same(tmp_path, tokens, positions):
    model, read = decoder_only(positions=positions), tokens(11, 3, 5)
    save(tmp_path, model, {"text": TEXT}, {"data": "ünï"})
    again = load(tmp_path)
    assert torch.equal(again.model(read), model.eval()(read))
    assert again.model.config == model.config
    assert again.tokenizers["text"].to_dict() == TEXT.to_dict()
    assert again.notes == {"data": "ünï"}
    assert not again.model.training


@pytest.mark.parametrize("tied", [True, False])
def test_an_encoder_decoder_comes_back_the_same(tmp_path, tokens, tied):
    model = encoder_decoder(tie_source_embeddings=tied)
    source, target = tokens(11, 3, 5), tokens(11, 3, 7)
    special = CharacterTokenizer("xy", [PAD, BOS, EOS])
    save(tmp_path, model, {"source": TEXT, "target": special})
    again = load(tmp_path)
    assert torch.equal(again.model(source, target), model.eval()(source, target))
    assert list(again.tokenizers) == ["source", "target"]
    assert again.tokenizers["target"].special_tokens == (PAD, BOS, EOS)


@pytest.mark.parametrize("answers", ["tokens", "sequence"])
def test_an_encoder_only_comes_back_the_same(tmp_path, tokens, answers):
    config = presets.encoder_only("tiny", **SMALL, num_outputs=3, answers=answers)
    model, read = EncoderOnly(config, generator()), tokens(11, 2, 5)
    save(tmp_path, model, {"text": TEXT})
    again = load(tmp_path).model
    assert isinstance(again, EncoderOnly)
    assert torch.equal(again(read), model.eval()(read))


@pytest.mark.parametrize(
    "tokenizer",
    [
        CharacterTokenizer("xyz", [PAD, BOS, EOS]),
        ByteTokenizer([EOS]),
        BytePairTokenizer.fit(["the cat sat on the mat"], 261, [PAD]),
    ],
)
def test_a_tokenizer_of_any_kind_comes_back_the_same(tmp_path, tokenizer):
    save(tmp_path, decoder_only(), {"text": tokenizer})
    again = load(tmp_path).tokenizers["text"]
    assert type(again) is type(tokenizer)
    assert again.to_dict() == tokenizer.to_dict()


def test_a_file_that_lacks_newer_settings_has_their_defaults(folder):
    """As those written before there were norms, windows and grouped queries to choose from."""
    newer = (
        "rotary_base norm norm_eps qk_norm bias zero_init_outputs window attention_dropout".split()
    )
    expected = load(folder)
    rewrite(folder, lambda record: [record["config"].pop(name) for name in newer])
    again = load(folder)
    assert again.model.config == expected.model.config
    for got, same in zip(again.model.parameters(), expected.model.parameters(), strict=True):
        assert torch.equal(got, same)


def test_loading_leaves_the_random_state_of_torch_alone(folder):
    before = torch.get_rng_state()
    load(folder)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_run_that_was_saved_goes_on_bit_for_bit(tmp_path, dropout):
    torch.manual_seed(1)
    whole, state = decoder_only(dropout=dropout), generator()
    losses = [r.loss for r in train(whole, batches(state), adamw(whole, SETTINGS), SETTINGS)]

    torch.manual_seed(1)
    model, state = decoder_only(dropout=dropout), generator()
    optimizer = adamw(model, SETTINGS)
    records = train(model, batches(state), optimizer, SETTINGS)
    first = [record.loss for record in itertools.islice(records, 5)]
    save_training(tmp_path, model, optimizer, state, step=5)

    torch.manual_seed(2)
    model, state = decoder_only(dropout=dropout), generator(2)
    optimizer = adamw(model, SETTINGS)
    assert load_training(tmp_path, model, optimizer, state) == 5
    second = [r.loss for r in train(model, batches(state), optimizer, SETTINGS, start_step=5)]
    assert first + second == losses
    for got, expected in zip(model.parameters(), whole.parameters(), strict=True):
        assert torch.equal(got, expected)


def test_a_run_can_be_saved_before_its_first_step(tmp_path):
    model = decoder_only()
    save_training(tmp_path, model, adamw(model, SETTINGS), generator(), step=0)
    again = decoder_only()
    assert load_training(tmp_path, again, adamw(again, SETTINGS), generator(5)) == 0


def test_a_save_that_breaks_off_leaves_the_old_files_whole(folder, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full_disk(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("os.replace", full_disk)
    with pytest.raises(OSError, match="no space left"):
        save(folder, decoder_only(d_ff=5), {"text": TEXT})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


# Refusals


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(ValueError, match=f"a checkpoint needs its {name}, got .*{name}"):
        load(folder)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match="needs its config.json, got .*none.*No such file"):
        load(tmp_path / "none")


def test_weights_of_another_shape_are_refused(folder):
    rewrite(folder, lambda record: record["config"].update(d_ff=17))
    message = r"shapes of the configuration, got blocks\.0\..* \(13.*safetensors instead of \(17"
    with pytest.raises(ValueError, match=message):
        load(folder)


@pytest.mark.parametrize(("layers", "problem"), [(1, "has an unknown"), (3, "lacks")])
def test_weights_of_another_depth_are_refused(folder, layers, problem):
    rewrite(folder, lambda record: record["config"].update(num_layers=layers))
    with pytest.raises(ValueError, match=rf"those of the configuration, got .*: {problem} blocks"):
        load(folder)


def test_an_unknown_field_of_the_configuration_is_named(folder):
    rewrite(folder, lambda record: record["config"].update(d_modle=12))
    with pytest.raises(ValueError, match="DecoderOnlyConfig has no field d_modle"):
        load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.pop("tokenizers"), "needs the field tokenizers"),
        (lambda r: r.update(format=2), "must have format 1, got 2"),
        (
            lambda r: r.update(model="Recurrent"),
            "one of DecoderOnly, EncoderOnly, EncoderDecoder, got R",
        ),
    ],
)
def test_a_configuration_of_something_else_is_refused(folder, change, message):
    rewrite(folder, change)
    with pytest.raises(ValueError, match=message):
        load(folder)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "must be JSON in UTF-8"), ("[]", "must hold named fields")]
)
def test_a_configuration_that_cannot_be_read_is_refused(folder, text, message):
    (folder / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        load(folder)


def test_a_damaged_file_of_weights_is_refused(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"must be complete, got .*model\.safetensors"):
        load(folder)


def test_going_on_without_the_training_state_is_refused(folder):
    model = decoder_only()
    with pytest.raises(ValueError, match=r"needs its training\.safetensors, got no file"):
        load_training(folder, model, adamw(model, SETTINGS), generator())


def test_going_on_with_another_model_is_refused(tmp_path):
    model = decoder_only()
    save_training(tmp_path, model, adamw(model, SETTINGS), generator(), step=0)
    other = decoder_only(d_ff=17)
    with pytest.raises(ValueError, match="shapes of the configuration"):
        load_training(tmp_path, other, adamw(other, SETTINGS), generator())
