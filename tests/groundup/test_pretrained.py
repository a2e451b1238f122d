"""The models that come with the course are what their records say."""

import json
import platform
import shlex
import shutil

import pytest
import torch

from groundup import checkpoint, pretrained
from groundup.__main__ import main
from groundup.tasks import TextTask, recall_task

NAMES = pretrained.names()


def is_the_same_text(name: str) -> bool:
    """Tell whether this Python comes with the text that the model was trained on."""
    folder = pretrained.FOLDER / name
    saved = checkpoint.load(folder)
    task = recall_task(saved.notes["data"], saved.tokenizers)
    return task.fingerprint == pretrained.record(name)["data"]["sha256"]


def test_there_is_a_reader():
    assert "reader" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_ready_to_read(name):
    model, tokenizer = pretrained.load(name)
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    tokens = torch.tensor([tokenizer.encode("The value of the expression")])
    assert model(tokens).shape == (*tokens.shape, tokenizer.vocab_size)
    assert sum(p.numel() for p in model.parameters()) == pretrained.record(name)["parameters"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_loss_of_the_record_is_found_again(name, capsys):
    told = pretrained.record(name)["loss"]["held_out"]
    assert main(["evaluate", str(pretrained.FOLDER / name), "--json", "--device", "cpu"]) == 0
    measured = json.loads(capsys.readouterr().out)
    # Another Python comes with a slightly other text, so with a slightly other loss.
    tolerance = {"abs": 1e-3} if is_the_same_text(name) else {"rel": 0.2}
    for unit in ("bits_per_byte", "nats_per_token"):
        assert measured[unit] == pytest.approx(told[unit], **tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_a_record_says_how_its_model_came_to_be(name):
    record = pretrained.record(name)
    notes = checkpoint.load(pretrained.FOLDER / name).notes
    assert record["seed"] == notes["seed"]
    assert record["steps"] == notes["step"] == notes["training"]["steps"]
    assert record["data"]["sha256"] == notes["fingerprint"]
    assert record["data"]["name"].endswith(record["data"]["python"])
    assert record["hardware"]["processor"]
    assert record["hardware"]["torch"]
    assert record["seconds"] > 0
    assert record["date"] > "2026"
    # It learned, and a little more of what it saw than of what it did not.
    loss = record["loss"]
    assert loss["train"]["bits_per_byte"] < loss["held_out"]["bits_per_byte"] < 8


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_command_of_the_record_begins_this_model(name, tmp_path, capsys, monkeypatch):
    """The first ten updates of it: the same sizes, tokens and settings, to the last one."""
    monkeypatch.setattr(
        TextTask, "evaluate", lambda self, model: {}
    )  # of ten updates, tells nothing
    program, verb, *options = shlex.split(pretrained.record(name)["command"])
    assert (program, verb) == ("groundup", "train")
    assert main([verb, *options, "--out", str(tmp_path), "--seconds", "0.001"]) == 0
    capsys.readouterr()
    begun = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    kept = json.loads((pretrained.FOLDER / name / "config.json").read_text(encoding="utf-8"))
    assert begun["notes"].pop("step") < kept["notes"].pop("step")
    if not is_the_same_text(name):
        assert platform.python_version() != pretrained.record(name)["data"]["python"]
        for record in (begun, kept):
            del record["tokenizers"], record["notes"]["fingerprint"], record["notes"]["data_name"]
    assert begun == kept


def test_the_reader_looks_at_the_token_before_and_for_what_came_next():
    """What chapter 03 shows on it: on random tokens said twice, only a look back can help."""
    model, tokenizer = pretrained.load("reader")
    half = 53
    generator = torch.Generator().manual_seed(0)
    random = torch.randint(256, tokenizer.vocab_size, (7, half), generator=generator)
    tokens = torch.cat([random, random], dim=1)
    patterns = []
    with torch.no_grad():
        x = model.embedding(tokens)
        for block in model.blocks:
            patterns.append(block.attention.weights(block.attention_norm(x), mask="causal"))
            x = block(x, "causal")
        log_probabilities = model(tokens)[:, :-1].log_softmax(dim=-1)
    weights = torch.stack(patterns)  # (layers, batch, heads, length, length)

    to_the_one_before = weights.diagonal(-1, -2, -1).mean(dim=(1, 3))
    to_what_came_next = weights.diagonal(1 - half, -2, -1)[..., 1:].mean(dim=(1, 3))
    before, after = (
        table.flatten().argmax().item() for table in (to_the_one_before, to_what_came_next)
    )
    assert to_the_one_before.max() > 0.8
    assert to_what_came_next.max() > 0.3
    assert to_what_came_next.flatten().sort().values[-2] < 0.05  # the others do something else
    assert before // model.config.num_heads < after // model.config.num_heads

    nats = -log_probabilities.gather(-1, tokens[:, 1:, None])[..., 0].mean(dim=0)
    assert nats[half:].mean() < nats[: half - 1].mean() - 1.5


def test_a_model_is_small_enough_for_everyone_to_carry():
    for name in NAMES:
        assert (pretrained.FOLDER / name / "model.safetensors").stat().st_size < 4.2e6


def test_nothing_beside_the_models_can_run():
    endings = {path.suffix for path in pretrained.FOLDER.rglob("*") if path.is_file()}
    assert endings - {".py", ".pyc"} == {".json", ".safetensors"}


def test_two_loads_share_nothing():
    first, second = (pretrained.load("reader")[0] for _ in range(2))
    with torch.no_grad():
        first.embedding.tokens.weight.zero_()
    assert second.embedding.tokens.weight.abs().sum() > 0


def test_the_state_of_the_random_numbers_is_left_alone():
    before = torch.get_rng_state()
    pretrained.load("reader")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["write", "", "..", "reader/"])
def test_an_unknown_name_is_refused_with_those_that_are_known(name):
    with pytest.raises(ValueError, match=r"^a trained model must be one of .*reader.*, got '"):
        pretrained.load(name)


@pytest.mark.parametrize("file", pretrained.FILES)
@pytest.mark.parametrize("change", ["one bit", "missing"])
def test_a_file_that_was_tampered_with_is_refused_in_one_sentence(
    file, change, tmp_path, monkeypatch
):
    shutil.copytree(pretrained.FOLDER / "reader", tmp_path / "reader")
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    pretrained.load("reader")
    path = tmp_path / "reader" / file
    if change == "missing":
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        content[-100] ^= 1
        path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{file} of reader must be what its record says"):
        pretrained.load("reader")
