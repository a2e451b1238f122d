"""The models that come with the course are what their records say."""

import json
import platform
import re
import shlex
import shutil
from dataclasses import asdict

import babel
import pytest
import torch

from groundup import pretrained
from groundup.__main__ import main
from groundup.data.batches import source_batch
from groundup.data.dates import Dates
from groundup.data.tokenizers import BOS
from groundup.files import checkpoint
from groundup.generation import sampling
from groundup.generation.loop import generate, translate_texts
from groundup.looking.probes import (
    induction_scores,
    logit_lens,
    previous_token_scores,
    repeated_tokens,
    without_heads,
)
from groundup.training.tasks import DatesTask, TextTask, recall_task

NAMES = pretrained.names()
TEXT_NAMES = ["llama", "manual", "reader"]
LOOK_BACK = ["llama", "reader"]
"""Those in which training made heads that look back."""


def is_the_same_data(name: str) -> bool:
    """Tell whether this Python, or this Babel, comes with what the model was trained on."""
    saved = checkpoint.load(pretrained.FOLDER / name)
    task = recall_task(saved.notes["data"], saved.tokenizers)
    return task.fingerprint == saved.notes["fingerprint"]


def test_there_are_models_of_text_and_one_of_dates():
    assert NAMES == ["dates", *TEXT_NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_ready_for_use(name):
    model, _ = pretrained.load(name)
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert sum(p.numel() for p in model.parameters()) == pretrained.record(name)["parameters"]


@pytest.mark.parametrize("name", TEXT_NAMES)
def test_a_model_of_text_comes_with_the_tokenizer_of_its_text(name):
    model, tokenizer = pretrained.load(name)
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
@pytest.mark.parametrize("name", TEXT_NAMES)
def test_the_loss_of_a_model_of_text_is_found_again(name, capsys):
    told, measured = told_and_measured(name, capsys)
    # Another Python comes with a slightly other text, so with a slightly other loss.
    tolerance = {"abs": 1e-3} if is_the_same_data(name) else {"rel": 0.2}
    for unit in ("bits_per_byte", "nats_per_token"):
        assert measured[unit] == pytest.approx(told[unit], **tolerance)


@pytest.mark.slow
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


@pytest.mark.parametrize("name", TEXT_NAMES)
def test_a_model_of_text_learned_more_of_what_it_saw_than_of_what_it_did_not(name):
    loss = pretrained.record(name)["loss"]
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
    options += ["--compile", "off"]  # to compile takes longer than ten updates
    assert main([verb, *options, "--out", str(tmp_path), "--seconds", "0.001"]) == 0
    capsys.readouterr()
    begun = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    kept = json.loads((pretrained.FOLDER / name / "config.json").read_text(encoding="utf-8"))
    kept["notes"]["setup"]["compiled"] = False
    kept["config"] = asdict(pretrained.load(name)[0].config)  # newer fields at their defaults
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


@pytest.mark.parametrize("name", LOOK_BACK)
def test_one_head_looks_at_the_token_before_and_one_above_it_for_what_came_next(name):
    """What chapters 03 and 09 show: on random tokens said twice, only a look back can help."""
    model, tokenizer = pretrained.load(name)
    half = 53
    generator = torch.Generator().manual_seed(0)
    pieces = torch.arange(256, tokenizer.vocab_size)  # some of the bytes below are never used
    tokens = repeated_tokens(pieces, half, 7, generator)
    before, onward = (score(model, tokens) for score in (previous_token_scores, induction_scores))
    places = [divmod(int(table.argmax()), model.config.num_heads) for table in (before, onward)]
    assert before.max() > 0.8
    assert onward.max() > 0.3
    assert onward.flatten().sort().values[-2] < 0.05  # the others do something else
    assert places[0][0] < places[1][0]

    def nats_saved():
        """By how much the second time is easier than the first, in nats per token."""
        with torch.no_grad():
            log_probabilities = model(tokens)[:, :-1].log_softmax(dim=-1)
        nats = -log_probabilities.gather(-1, tokens[:, 1:, None])[..., 0].mean(dim=0)
        return nats[: half - 1].mean() - nats[half:].mean()

    assert nats_saved() > 1.5
    for head in places:
        with without_heads(model, [head]):
            assert nats_saved() < 0.5


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
            asked = x + block.attention(block.attention_norm(x))
            weights = block.cross_attention.weights(
                block.cross_attention_norm(asked), memory, mask=source_mask
            )
            x = block(x, memory, None, source_mask)
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


@pytest.mark.parametrize("name", TEXT_NAMES)
def test_a_guess_grows_better_with_every_layer_above_the_first(name):
    """What chapter 09 shows: the logit lens on text held out."""
    model, tokenizer = pretrained.load(name)
    saved = checkpoint.load(pretrained.FOLDER / name)
    text = recall_task(saved.notes["data"], saved.tokenizers).data.validation[:4000]
    length = model.config.max_len
    ids = torch.tensor(tokenizer.encode(text))
    tokens = ids[: len(ids) // length * length].view(-1, length)
    log_probabilities = logit_lens(model, tokens)[:, :, :-1].log_softmax(dim=-1)
    targets = tokens[:, 1:, None].expand(len(log_probabilities), -1, -1, 1)
    nats = -log_probabilities.gather(-1, targets).mean(dim=(1, 2, 3))
    assert (nats[2:] < nats[1:-1]).all(), nats


def test_what_the_manual_writes_is_made_of_words():
    model, tokenizer = pretrained.load("manual")
    saved = checkpoint.load(pretrained.FOLDER / "manual")
    data = recall_task(saved.notes["data"], saved.tokenizers).data
    words = set(re.findall("[a-z]+", (data.train + data.validation).lower()))
    prompts = torch.tensor([tokenizer.encode("The statement")] * 7)
    generator = torch.Generator().manual_seed(0)
    written = generate(
        model, prompts, 40, lambda x: sampling.sample(sampling.temperature(x, 0.7), generator)
    )
    texts = [tokenizer.decode(row).lower() for row in written.tolist()]
    found = [word for text in texts for word in re.findall("[a-z]+", text)[:-1]]  # the last is cut
    assert len(set(found)) > 50  # it does not go in circles
    assert sum(word in words for word in found) / len(found) > 0.9


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
