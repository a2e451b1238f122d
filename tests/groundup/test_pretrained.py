"""The models that come with the course are what their records say."""

import json
import platform
import shlex
import shutil

import babel
import pytest
import torch

from groundup import checkpoint, pretrained
from groundup.__main__ import main
from groundup.data import BOS, Dates, source_batch
from groundup.generation import translate_texts
from groundup.tasks import DatesTask, TextTask, recall_task

NAMES = pretrained.names()


def is_the_same_data(name: str) -> bool:
    """Tell whether this Python, or this Babel, comes with what the model was trained on."""
    saved = checkpoint.load(pretrained.FOLDER / name)
    task = recall_task(saved.notes["data"], saved.tokenizers)
    return task.fingerprint == saved.notes["fingerprint"]


def test_there_are_a_reader_of_text_and_one_of_dates():
    assert NAMES == ["dates", "reader"]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_ready_for_use(name):
    model, _ = pretrained.load(name)
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert sum(p.numel() for p in model.parameters()) == pretrained.record(name)["parameters"]


def test_the_reader_comes_with_the_tokenizer_of_its_text():
    model, tokenizer = pretrained.load("reader")
    tokens = torch.tensor([tokenizer.encode("The value of the expression")])
    assert model(tokens).shape == (*tokens.shape, tokenizer.vocab_size)


def test_the_model_of_dates_comes_with_a_tokenizer_of_each_side():
    model, tokenizers = pretrained.load("dates")
    source, target = tokenizers["source"], tokenizers["target"]
    texts = ["Samstag, 3. Mai 2031", "3. listopada 2031.", "3 listopada 2031"]
    answers = ["2031-05-03", "2031-10-03", "2031-11-03"]
    assert translate_texts(model, texts, source, target) == answers


def told_and_measured(name, capsys):
    told = pretrained.record(name)["loss"]["held_out"]
    assert main(["evaluate", str(pretrained.FOLDER / name), "--json", "--device", "cpu"]) == 0
    measured = json.loads(capsys.readouterr().out)
    return told, measured


@pytest.mark.slow
def test_the_loss_of_the_reader_is_found_again(capsys):
    told, measured = told_and_measured("reader", capsys)
    # Another Python comes with a slightly other text, so with a slightly other loss.
    tolerance = {"abs": 1e-3} if is_the_same_data("reader") else {"rel": 0.2}
    for unit in ("bits_per_byte", "nats_per_token"):
        assert measured[unit] == pytest.approx(told[unit], **tolerance)


def test_the_right_answers_and_the_loss_of_the_model_of_dates_are_found_again(capsys):
    told, measured = told_and_measured("dates", capsys)
    # Another Babel may write a day in another way.
    same = is_the_same_data("dates")
    assert measured["num_examples"] == told["num_examples"] == DatesTask.NUM_VALIDATION
    assert measured["exact_match"] == pytest.approx(told["exact_match"], abs=0 if same else 0.1)
    if same:
        assert measured["nats_per_token"] == pytest.approx(told["nats_per_token"], rel=0.05)


@pytest.mark.parametrize("name", NAMES)
def test_a_record_says_how_its_model_came_to_be(name):
    record = pretrained.record(name)
    notes = checkpoint.load(pretrained.FOLDER / name).notes
    assert record["seed"] == notes["seed"]
    assert record["steps"] == notes["step"] == notes["training"]["steps"]
    data = record["data"]
    assert data["name"] == notes["data_name"]
    assert data["name"].endswith(data["babel"] if name == "dates" else data["python"])
    assert notes["fingerprint"] in data.values()
    assert record["hardware"]["processor"]
    assert record["hardware"]["torch"]
    assert record["seconds"] > 0
    assert record["date"] > "2026"


def test_the_reader_learned_a_little_more_of_what_it_saw_than_of_what_it_did_not():
    loss = pretrained.record("reader")["loss"]
    assert loss["train"]["bits_per_byte"] < loss["held_out"]["bits_per_byte"] < 8


def test_hardly_a_date_is_misread_on_days_that_were_met_in_no_language():
    loss = pretrained.record("dates")["loss"]
    for part in ("train", "held_out"):
        assert loss[part]["exact_match"] > 0.999
        assert loss[part]["nats_per_token"] < 0.001


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_command_of_the_record_begins_this_model(name, tmp_path, capsys, monkeypatch):
    """The first ten updates of it: the same sizes, tokens and settings, to the last one."""
    for task in (TextTask, DatesTask):  # a measure after ten updates tells nothing
        monkeypatch.setattr(task, "evaluate", lambda self, model: {})
    program, verb, *options = shlex.split(pretrained.record(name)["command"])
    assert (program, verb) == ("groundup", "train")
    assert main([verb, *options, "--out", str(tmp_path), "--seconds", "0.001"]) == 0
    capsys.readouterr()
    begun = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    kept = json.loads((pretrained.FOLDER / name / "config.json").read_text(encoding="utf-8"))
    kept["config"] = pretrained.load(name)[0].config.to_dict()  # newer fields at their defaults
    assert begun["notes"].pop("step") < kept["notes"].pop("step")
    if not is_the_same_data(name):
        data = pretrained.record(name)["data"]
        assert (babel.__version__, platform.python_version()) != (
            data.get("babel", babel.__version__),
            data.get("python", platform.python_version()),
        )
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


def test_the_model_of_dates_looks_at_what_it_writes():
    """What chapter 06 draws: cross attention of the last block, the heads averaged."""
    model, tokenizers = pretrained.load("dates")
    data = Dates()
    days = data.validation_days[:53]
    pairs = [data.write(day, ("en_US", "MMMM d, y")) for day in days]
    source, source_mask = source_batch([pair.source for pair in pairs], tokenizers["source"])
    target = tokenizers["target"]
    written = torch.tensor([[target.id_of(BOS), *target.encode(pair.target)] for pair in pairs])
    with torch.no_grad():
        memory = model.encode(source, source_mask)
        x = model.embedding(written)
        for block in model.blocks:
            asked = x + block.attention(block.attention_norm(x), mask="causal")
            weights = block.cross_attention.weights(
                block.cross_attention_norm(asked), memory, mask=source_mask
            )
            x = block(x, memory, "causal", source_mask)
    weights = weights.mean(dim=1)  # (batch, tgt_len, src_len), from which each character came

    on_month, on_year, on_day = [], [], []
    for row, pair in zip(weights, pairs, strict=True):
        after_month, comma = pair.source.index(" "), pair.source.index(",")
        on_month.append(row[6, :after_month].sum())  # of 2031-05-03, the 5
        on_year.append(row[2:4, comma + 2 : comma + 6].sum(dim=-1).mean())  # the 31
        on_day.append(row[9, after_month + 1 : comma].sum())  # the 3
    shares = {
        name: torch.stack(share).mean().item()
        for name, share in (("month", on_month), ("year", on_year), ("day", on_day))
    }
    assert min(shares.values()) > 0.9, shares


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
