import json
import math
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors import safe_open

from groundup import commands, presets
from groundup.__main__ import FOR_DATES, FOR_TEXT, NAMED_DATA, _field, main
from groundup.core.models import DecoderOnly
from groundup.data.tokenizers import ByteTokenizer, CharacterTokenizer
from groundup.files.checkpoint import load
from groundup.looking.accounting import training_flops
from groundup.training.baselines import CharacterNGram
from groundup.training.loop import TrainingConfig, fraction_of_peak
from groundup.training.tasks import DatesTask, TextTask, _num_bytes_after_first_token

WORDS = "the cat sat on the mat and the dog sat on the log while the hen ran to the den "
"""A text that a small model learns in seconds."""


@pytest.fixture(scope="module", autouse=True)
def few_validation_dates():
    """Measure on 60 dates; on 2000, as the command does, most of the time would go there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatesTask, "NUM_VALIDATION", 60)
        yield


@pytest.fixture(scope="module")
def text_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "words.txt"
    path.write_text(WORDS * 20, encoding="utf-8")
    return path


@pytest.fixture
def run(capfd):
    """Run a command in this process; give its exit status and what it wrote."""

    def command(*arguments):
        status = main([str(argument) for argument in arguments])
        return status, *capfd.readouterr()

    return command


SHORT = ["--preset", "tiny", "--context", 16, "--batch-size", 4, "--device", "cpu"]


@pytest.fixture(scope="module")
def words(text_path, tmp_path_factory):
    """A model of the words, trained once for all tests that only read it."""
    out = tmp_path_factory.mktemp("runs") / "words"
    arguments = ["train", "--data", text_path, *SHORT, "--steps", 60, "--out", out]
    assert main([str(argument) for argument in arguments]) == 0
    return out


@pytest.fixture(scope="module")
def dates(tmp_path_factory):
    """A model of dates that has hardly learned anything."""
    out = tmp_path_factory.mktemp("runs") / "dates"
    arguments = ["train", "--data", "dates", "--batch-size", 3, "--steps", 11, "--out", out]
    assert main([str(argument) for argument in arguments]) == 0
    return out


# The whole path


def test_training_writes_a_model_a_log_and_a_progress_bar(run, text_path, tmp_path):
    out = tmp_path / "deep" / "folder"
    status, printed, bar = run(
        "train", "--data", text_path, *SHORT, "--steps", 25, "--out", out, "--seed", 5
    )
    assert status == 0
    assert f"made 25 of 25 updates, saved in {out}" in printed
    assert "bits_per_byte: " in printed
    assert "25/25" in bar
    assert "nats per token" in bar
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [record["step"] for record in log] == [10, 20, 25]
    assert log[-1]["loss"] < log[0]["loss"] < 10
    notes = json.loads((out / "config.json").read_text())["notes"]
    assert (notes["data"], notes["seed"], notes["step"]) == (str(text_path), 5, 25)


def test_a_model_of_text_is_measured_on_the_part_held_out(run, words, text_path):
    status, printed, _ = run("evaluate", words, "--json")
    assert status == 0
    results = json.loads(printed)
    num_characters = len(WORDS) * 2 - 1
    assert (results["num_tokens"], results["num_bytes"]) == (num_characters, num_characters)
    assert results["bits_per_byte"] == pytest.approx(results["nats_per_token"] / math.log(2))
    assert results["bits_per_byte"] < math.log2(len(set(WORDS))) / 1.5
    assert (results["data"], results["step"]) == (str(text_path), 60)
    assert "exact_match" not in results


def test_the_baseline_is_the_5_gram_on_the_same_characters(run, words, text_path):
    _, printed, _ = run("evaluate", words, "--json", "--baseline")
    baseline = json.loads(printed)["baseline"]
    text = text_path.read_text()
    ngram = CharacterNGram(text[: len(text) * 9 // 10], set(text), order=5)
    bits = ngram.bits_per_character(text[len(text) * 9 // 10 :])
    assert baseline["bits_per_byte"] == pytest.approx(bits)
    assert "5-gram" in baseline["name"]


def test_results_can_be_read_by_people_too(run, words):
    _, printed, _ = run("evaluate", words, "--baseline")
    names = [line.partition(": ")[0] for line in printed.splitlines()]
    assert names[2:4] == ["bits_per_byte", "nats_per_token"]
    assert names[-1] == "baseline bits_per_byte"


def test_a_model_of_text_goes_on_from_a_prompt(run, words):
    status, printed, _ = run("generate", words, "--prompt", "the cat", "--length", 40)
    assert status == 0
    assert printed.startswith("the cat")
    assert len(printed) == len("the cat") + 40 + 1
    assert set(printed) <= set(WORDS + "\n")
    assert run("generate", words, "--prompt", "the cat", "--length", 40)[1] == printed
    assert run("generate", words, "--prompt", "the cat", "--length", 40, "--seed", 1)[1] != printed


def test_choosing_among_one_token_is_greedy(run, words):
    greedy = run("generate", words, "--prompt", "the", "--length", 20, "--greedy")[1]
    for option in (["--top-k", 1], ["--top-p", 1e-6], ["--temperature", 1e-4]):
        assert run("generate", words, "--prompt", "the", "--length", 20, *option)[1] == greedy


def test_a_prompt_can_be_piped_in(run, words, monkeypatch, tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text("the dog\n")
    with path.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        printed = run("generate", words, "--length", 5, "--greedy")[1]
    assert printed == run("generate", words, "--prompt", "the dog", "--length", 5, "--greedy")[1]


def test_dates_are_measured_by_exact_match(run, dates):
    status, printed, _ = run("evaluate", dates, "--json", "--device", "cpu")
    assert status == 0
    results = json.loads(printed)
    assert results["num_examples"] == 60
    assert results["num_tokens"] == 60 * 11
    assert 0 <= results["exact_match"] <= 1
    assert 0 < results["nats_per_token"] < 4
    assert "bits_per_byte" not in results


def test_each_date_is_answered_on_a_line_of_its_own(run, dates, monkeypatch, tmp_path):
    sources = ["3. Mai 2031", "Saturday, May 3, 2031"]
    status, printed, _ = run("generate", dates, "--prompt", *sources)
    assert status == 0
    assert len(printed.splitlines()) == 2
    path = tmp_path / "dates.txt"
    path.write_text("3. Mai 2031\n\n  Saturday, May 3, 2031  \n")
    with path.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert run("generate", dates)[1] == printed


@pytest.mark.slow
@pytest.mark.parametrize("data", ["text", "dates"])
def test_a_run_cut_short_and_resumed_is_the_run_in_one_go(run, tmp_path, text_path, data):
    data = text_path if data == "text" else "dates"
    arguments = ["train", "--data", data, *SHORT[:2], "--context", 48, "--batch-size", 2]
    run(*arguments, "--steps", 30, "--out", tmp_path / "whole")
    cut = [*arguments, "--steps", 30, "--out", tmp_path / "cut"]
    _, printed, _ = run(*cut, "--seconds", 1e-9)
    assert "made 10 of 30 updates" in printed
    assert f"resume with: groundup train --resume --out {tmp_path / 'cut'}" in printed
    run("train", "--resume", "--out", tmp_path / "cut", "--seconds", 1e-9)
    status, printed, _ = run(*cut, "--resume")
    assert status == 0
    assert "made 30 of 30 updates" in printed
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for name in ("model.safetensors", "training.safetensors", "config.json"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()
    losses = [
        [json.loads(line)["loss"] for line in (out / "log.jsonl").read_text().splitlines()]
        for out in (whole, cut)
    ]
    assert losses[0] == losses[1]


def test_a_run_may_go_on_longer_than_it_was_begun_for(run, text_path, tmp_path):
    run("train", "--data", text_path, *SHORT, "--steps", 10, "--out", tmp_path)
    status, printed, _ = run("train", "--resume", "--out", tmp_path, "--steps", 20)
    assert status == 0
    assert "made 20 of 20 updates" in printed


def test_recomputing_blocks_changes_no_number(run, text_path, tmp_path):
    for name, options in (("stored", []), ("again", ["--recompute"])):
        where = ["--steps", 3, "--set", "dropout=0.2", "--out", tmp_path / name, *options]
        assert run("train", "--data", text_path, *SHORT, *where)[0] == 0
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("stored", "again")]
    assert files[0] == files[1]


def test_updates_that_a_crash_lost_leave_the_log(run, text_path, tmp_path):
    run("train", "--data", text_path, *SHORT, "--steps", 20, "--seconds", 1e-9, "--out", tmp_path)
    log = tmp_path / "log.jsonl"
    log.write_text(log.read_text() + '{"step": 20, "loss": 123.0}\n')
    run("train", "--resume", "--out", tmp_path)
    logged = [json.loads(line) for line in log.read_text().splitlines()]
    assert [each["step"] for each in logged] == [10, 20]
    assert all(each["loss"] < 100 for each in logged)


def test_a_seed_decides_the_model(run, text_path, tmp_path):
    for name, seed in [("a", 1), ("b", 1), ("c", 2)]:
        arguments = ["--steps", 3, "--seed", seed, "--out", tmp_path / name]
        run("train", "--data", text_path, *SHORT, *arguments)
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b
    assert a != c


@pytest.mark.slow
def test_an_interrupted_run_saves_what_it_has_done(text_path, tmp_path):
    arguments = ["train", "--data", text_path, *SHORT, "--steps", 100_000, "--out", tmp_path]
    arguments += ["--compile", "off"]  # or it first measures whether that would pay
    process = subprocess.Popen(
        [sys.executable, "-m", "groundup", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    log = tmp_path / "log.jsonl"
    try:
        while process.poll() is None and not (log.exists() and log.read_text().count("\n") > 0):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    last = json.loads(log.read_text().splitlines()[-1])["step"]
    assert f"made {last} of 100000 updates" in printed
    assert json.loads((tmp_path / "config.json").read_text())["notes"]["step"] == last


def test_overwriting_starts_over(run, text_path, tmp_path):
    for steps in (5, 3):
        status, printed, _ = run(
            "train", "--data", text_path, *SHORT, "--overwrite", "--steps", steps, "--out", tmp_path
        )
        assert status == 0
    assert "made 3 of 3" in printed
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 1


def test_the_alphabet_is_that_of_the_whole_text(tmp_path):
    path = tmp_path / "late.txt"
    path.write_text("ab" * 20 + "abz")
    task = TextTask(str(path))
    assert task.tokenizers["text"].characters == ("a", "b", "z")
    assert len(task.data.validation) == 5


@pytest.mark.parametrize("tokenizer", ["byte", "bpe"])
def test_bits_per_byte_count_the_bytes_that_were_predicted(run, tmp_path, tokenizer):
    path = tmp_path / "text.txt"
    path.write_text("naïve café, " * 9 + "plain words, " * 9 + "€uro, größer, naïve " * 2)
    start = ["train", "--data", path, *SHORT, "--context", 8, "--tokenizer", tokenizer]
    start += ["--vocab-size", 270] if tokenizer == "bpe" else []
    assert run(*start, "--steps", 1, "--out", tmp_path / "out")[0] == 0
    results = json.loads(run("evaluate", tmp_path / "out", "--json")[1])
    tokenizer = load(tmp_path / "out").tokenizers["text"]
    ids = tokenizer.encode(TextTask(str(path)).data.validation)
    assert results["num_tokens"] == len(ids) - 1
    first = len(tokenizer.decode(ids).encode()) - results["num_bytes"]
    assert first == len(tokenizer.to_bytes(ids[0]))
    nats = results["nats_per_token"] * results["num_tokens"]
    assert results["bits_per_byte"] == pytest.approx(nats / math.log(2) / results["num_bytes"])


@pytest.mark.parametrize("first", ["€", "é", "\N{REPLACEMENT CHARACTER}", "a", "😀"])
def test_a_first_token_within_a_character_leaves_the_rest_of_it(first):
    text = first + "\N{REPLACEMENT CHARACTER}b€"
    tokenizer = ByteTokenizer()
    num_bytes = _num_bytes_after_first_token(tokenizer, tokenizer.encode(text), text)
    assert num_bytes == len(text.encode()) - 1
    tokenizer = CharacterTokenizer.fit(text)
    num_bytes = _num_bytes_after_first_token(tokenizer, tokenizer.encode(text), text)
    assert num_bytes == len(text[1:].encode())


def test_byte_pairs_are_learned_from_the_part_to_learn_from(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("ab" * 90 + "xy" * 10)
    tokenizer = TextTask(str(path), kind="bpe", vocab_size=260).tokenizers["text"]
    assert tokenizer.vocab_size == 260
    assert len(tokenizer.encode("abab")) < 4
    assert len(tokenizer.encode("xyxy")) == 4


@pytest.mark.slow
def test_a_text_of_bytes_is_printed_in_whole_characters(run, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("größe €uro " * 40)
    start = ["train", "--data", path, *SHORT, "--tokenizer", "byte", "--learning-rate", 0.02]
    run(*start, "--steps", 150, "--out", tmp_path / "out", "--compile", "off")
    printed = run("generate", tmp_path / "out", "--prompt", "größe", "--length", 23, "--greedy")[1]
    assert printed == "größe €uro größe €uro \n"


def test_how_to_learn_is_noted_and_used(run, text_path, tmp_path):
    options = ["--optimizer", "muon", "--schedule", "stable_decay", "--label-smoothing", 0.1]
    options += ["--accumulate", 2, "--muon-learning-rate", 0.05, "--steps", 20]
    assert run("train", "--data", text_path, *SHORT, *options, "--out", tmp_path)[0] == 0
    training = json.loads((tmp_path / "config.json").read_text())["notes"]["training"]
    expected = {
        **{"optimizer": "muon", "schedule": "stable_decay", "label_smoothing": 0.1},
        **{"micro_batches": 2, "muon_learning_rate": 0.05, "steps": 20, "precision": "float32"},
    }
    assert {name: training[name] for name in expected} == expected
    with safe_open(tmp_path / "training.safetensors", "pt") as file:
        names = {name.rsplit(".", 1)[-1] for name in file.keys() if name.startswith("optimizer")}
    assert names == {"momentum", "exp_avg", "exp_avg_sq", "step"}
    config = TrainingConfig(**training)
    for line in (tmp_path / "log.jsonl").read_text().splitlines():
        record = json.loads(line)
        share = fraction_of_peak(config, record["step"] - 1)
        assert record["learning_rate"] == pytest.approx(training["learning_rate"] * share)


def test_a_long_enough_run_measures_what_is_fastest_and_holds_on_to_it(run, text_path, tmp_path):
    start = ["train", "--data", text_path, *SHORT, "--steps", 200, "--seconds", 1e-9]
    status, printed, _ = run(*start, "--precision", "float32", "--out", tmp_path)
    assert status == 0
    line = printed.splitlines()[0]
    assert re.fullmatch(
        r"chose float32, eager, (fused|explicit) attention; measured per update: "
        r"float32, eager, fused attention [\d.e+]+ ms, float32, eager, explicit attention .* ms",
        line,
    )
    notes = json.loads((tmp_path / "config.json").read_text())["notes"]
    assert f"{notes['setup']['attention']} attention;" in line
    assert len(notes["setup"]["milliseconds"]) == 2
    resume = ["train", "--resume", "--out", tmp_path, "--seconds", 1e-9]
    assert "chose" not in run(*resume)[1]
    assert json.loads((tmp_path / "config.json").read_text())["notes"]["setup"] == notes["setup"]
    assert "chose" not in run(*resume, "--attention", "explicit")[1]
    setup = json.loads((tmp_path / "config.json").read_text())["notes"]["setup"]
    assert setup == {"compiled": False, "attention": "explicit", "milliseconds": {}}


def test_a_run_can_go_on_in_another_precision(run, text_path, tmp_path):
    run("train", "--data", text_path, *SHORT, "--steps", 20, "--seconds", 1e-9, "--out", tmp_path)
    status, _, _ = run("train", "--resume", "--out", tmp_path, "--precision", "bfloat16")
    assert status == 0
    notes = json.loads((tmp_path / "config.json").read_text())["notes"]
    assert notes["training"]["precision"] == "bfloat16"
    losses = [
        json.loads(line)["loss"] for line in (tmp_path / "log.jsonl").read_text().splitlines()
    ]
    assert all(math.isfinite(loss) for loss in losses)


@pytest.mark.slow
def test_a_killed_run_goes_on_bit_for_bit(run, text_path, tmp_path):
    start = ["train", "--data", text_path, *SHORT, "--optimizer", "muon", "--accumulate", 2]
    start += ["--precision", "float32", "--attention", "fused", "--compile", "off", "--steps", 80]
    run(*start, "--out", tmp_path / "whole")
    cut = tmp_path / "cut"
    run(*start, "--out", cut, "--seconds", 1e-9)
    log = cut / "log.jsonl"
    with subprocess.Popen(
        [sys.executable, "-m", "groundup", "train", "--resume", "--out", str(cut)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        while process.poll() is None and log.read_text().count("\n") < 2:
            time.sleep(0.02)
        process.kill()  # between two checkpoints: the updates since the last are lost
    assert process.returncode == -signal.SIGKILL
    assert json.loads((cut / "config.json").read_text())["notes"]["step"] == 10
    assert run("train", "--resume", "--out", cut)[0] == 0
    whole = tmp_path / "whole"
    losses = [
        [json.loads(line)["loss"] for line in (out / "log.jsonl").read_text().splitlines()]
        for out in (whole, cut)
    ]
    assert losses[0] == losses[1]
    for name in ("model.safetensors", "training.safetensors"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.slow
@pytest.mark.compiler
def test_a_compiled_run_leaves_an_ordinary_model(text_path, tmp_path):
    arguments = ["train", "--data", text_path, *SHORT, "--set", "num_layers=1"]
    arguments += ["--compile", "on", "--steps", 10]
    subprocess.run(
        [sys.executable, "-m", "groundup", *map(str, arguments), "--out", tmp_path],
        capture_output=True,
        check=True,
    )
    saved = load(tmp_path)
    assert saved.notes["setup"]["compiled"] is True
    assert "bits_per_byte" in TextTask(str(text_path), saved.tokenizers).evaluate(saved.model)


BENCH = ["bench", "--context", 16, "--batch-size", 2, "--seconds", 0.01, "--device", "cpu"]


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["tiny", "llama"])
def test_bench_says_what_was_measured_on_what(run, preset):
    sizes = ["--preset", preset, "--vocab-size", 19]
    status, printed, _ = run(*BENCH, *sizes, "--compile", "off", "--json")
    assert status == 0
    result = json.loads(printed)
    assert result["machine"].keys() >= {"processor", "cores", "threads", "bfloat16", "torch"}
    config = presets.decoder_only(preset, vocab_size=19, max_len=16, dropout=0.0)
    model = DecoderOnly(config)
    assert result["model"]["parameters"] == sum(p.numel() for p in model.parameters())
    per_token = sum(training_flops(config, 2, 16).values()) / 32
    training, decoding = result["training"], result["decoding"]
    assert training["flops_per_second"] == pytest.approx(per_token * training["tokens_per_second"])
    assert training["shape"] == [2, 16] and training["setup"]["compiled"] is False
    assert training["mfu"] is None or not math.isnan(training["mfu"])
    assert decoding["tokens_per_second"] > 0 and decoding["bytes_per_second"] > 0


def test_bench_prints_machine_model_training_and_decoding(run):
    choices = ["--precision", "float32", "--compile", "off", "--attention", "explicit"]
    status, printed, _ = run(*BENCH, *choices, "--optimizer", "muon")
    assert status == 0
    names = [line.split()[0] for line in printed.splitlines()]
    assert names == ["machine", "model", "training", "decoding"]
    assert "627,840 parameters, 3 layers, d_model 128, vocab_size 256" in printed
    assert "float32, eager, explicit attention, muon" in printed


# Refusals: one sentence, exit status 2, no traceback


@pytest.fixture
def refusal(run):
    def command(*arguments):
        status, _, message = run(*arguments)
        assert status == 2
        assert message.startswith("groundup: ")
        assert message.count("\n") == 1
        return message

    return command


def test_a_missing_file_is_refused(refusal, tmp_path):
    message = refusal("train", "--data", tmp_path / "none.txt", "--out", tmp_path / "out")
    assert "or a text file, got" in message
    assert "none.txt" in message
    assert not (tmp_path / "out").exists()


def test_an_empty_text_is_refused(refusal, tmp_path):
    (tmp_path / "empty.txt").write_text("\n")
    message = refusal("train", "--data", tmp_path / "empty.txt", "--out", tmp_path / "out")
    assert "got an empty file" in message
    assert not (tmp_path / "out").exists()


def test_a_text_shorter_than_the_context_is_refused(refusal, tmp_path):
    (tmp_path / "short.txt").write_text("short" * 6)
    message = refusal("train", "--data", tmp_path / "short.txt", "--out", tmp_path / "out")
    assert "longer than the windows" in message
    assert not (tmp_path / "out").exists()


def test_bench_refuses_what_it_cannot_measure(refusal):
    assert "preset must be one of tiny, " in refusal("bench", "--preset", "huge")
    assert "got new_tokens=0, 1 tokens of prompt, max_len=1" in refusal(
        *BENCH, "--context", 1, "--compile", "off"
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [("false", False), ("False", False), ("true", True), ("True", True)]
    + [("null", None), ("None", None), ("8", 8), ("0.5", 0.5), ("rms", "rms")],
)
def test_a_value_of_a_field_is_read_as_in_json_or_in_python(text, value):
    name, seen = _field(f"name={text}")
    assert (name, seen, type(seen)) == ("name", value, type(value))


def test_a_field_of_the_preset_may_be_set_and_stays(run, refusal, text_path, tmp_path):
    out = tmp_path / "out"
    train = ["train", "--data", text_path, *SHORT, "--steps", 1, "--out", out]
    assert (
        run(*train, "--set", "num_kv_heads=2", "--set", "bias=False", "--set", "norm=rms")[0] == 0
    )
    config = json.loads((out / "config.json").read_text())
    assert config["notes"]["set"] == {"num_kv_heads": 2, "bias": False, "norm": "rms"}
    assert config["config"].items() >= config["notes"]["set"].items()
    assert run("train", "--resume", "--steps", 2, "--out", out, "--device", "cpu")[0] == 0
    other = ["train", "--resume", "--steps", 3, "--out", out, "--set", "bias=true"]
    assert "--set must be what the run was started with" in refusal(*other)
    train[-1] = tmp_path / "other"
    for field, message in (
        ("max_len=5", "max_len must not be set: it follows from the data and the context"),
        ("width=5", "DecoderOnlyConfig has no field width; it has vocab_size, "),
        ("bias=0", "bias must be True or False, got bias=0"),
        ("dropout=much", "dropout must be a number, got dropout='much'"),
        ("window=few", "window must be an integer or None, got window='few'"),
    ):
        assert message in refusal(*train, "--set", field)
    assert not train[-1].exists()
    with pytest.raises(SystemExit, match="2"):
        run(*train, "--set", "bias")


def test_an_unknown_preset_is_refused(refusal, text_path, tmp_path):
    message = refusal("train", "--data", text_path, "--preset", "huge", "--out", tmp_path / "out")
    assert "preset must be one of tiny, " in message
    assert message.endswith("got preset=huge\n")


def test_data_must_be_named(refusal, tmp_path):
    message = refusal("train", "--out", tmp_path / "out")
    assert "--data must be given: dates, python-reference, python-source" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--vocab-size", 300],
            "--vocab-size must be used with --tokenizer bpe, got --tokenizer c",
        ),
        (["--tokenizer", "bpe", "--vocab-size", 7], "vocab_size must be at least 256"),
        (
            ["--optimizer", "adamw", "--muon-learning-rate", 1],
            "must be used with --optimizer muon, got --optimizer adamw",
        ),
        (["--label-smoothing", 1], "label_smoothing must be at least 0 and below 1"),
        (["--batch-size", 2, "--accumulate", 3], "got batch_size=2, workers=1, accumulate=3"),
        (["--parallel", "ddp"], "--parallel ddp needs several processes, got one: start them with"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    refusal, text_path, tmp_path, options, message
):
    out = tmp_path / "out"
    assert message in refusal("train", "--data", text_path, *options, "--out", out)
    assert not out.exists()


@pytest.mark.parametrize("option", [["--tokenizer", "byte"], ["--vocab-size", 300]])
def test_dates_are_always_characters(refusal, tmp_path, option):
    message = refusal("train", "--data", "dates", *option, "--out", tmp_path)
    assert f"{option[0]} must be used with a text, got --data dates" in message


@pytest.mark.parametrize("command", ["evaluate", "generate"])
def test_only_training_is_for_several_processes(run, words, monkeypatch, command):
    for name, value in [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost")]:
        monkeypatch.setenv(name, value)
    status, _, message = run(command, words)
    assert status == 2
    assert message == f"groundup, worker 1: {command} needs one process: run it without torchrun\n"


def test_a_model_is_not_overwritten_by_accident(refusal, words, text_path):
    before = (words / "model.safetensors").read_bytes()
    message = refusal("train", "--data", text_path, "--out", words)
    assert "--out must not hold a model yet" in message
    assert (words / "model.safetensors").read_bytes() == before


def test_nothing_to_resume_is_refused(refusal, tmp_path):
    message = refusal("train", "--resume", "--out", tmp_path / "none")
    assert "a checkpoint needs its config.json" in message


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--data", "dates"),
        ("--preset", "gpt2_small"),
        ("--seed", 1),
        ("--batch-size", 5),
        ("--context", 32),
        ("--learning-rate", 0.5),
        ("--optimizer", "muon"),
        ("--schedule", "constant"),
        ("--label-smoothing", 0.5),
        ("--accumulate", 2),
        ("--tokenizer", "byte"),
        ("--vocab-size", 300),
        ("--muon-learning-rate", 0.5),
    ],
)
def test_resuming_with_other_settings_is_refused(refusal, words, option, value):
    message = refusal("train", "--resume", "--out", words, "--steps", 99, option, value)
    assert f"{option} must be what the run was started with, got {value} instead of" in message


def test_resuming_a_finished_run_is_refused(refusal, words):
    message = refusal("train", "--resume", "--out", words)
    assert "--steps must exceed the number of updates made so far, got steps=60 after 60" in message


def test_resuming_on_a_text_that_changed_is_refused(run, refusal, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(WORDS)
    run("train", "--data", path, *SHORT, "--steps", 3, "--out", tmp_path / "out")
    path.write_text(WORDS.replace("cat", "act"))
    message = refusal("train", "--resume", "--steps", 5, "--out", tmp_path / "out")
    assert "training must resume with the data it started with" in message


def test_measuring_on_a_text_that_changed_is_pointed_out(run, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(WORDS)
    run("train", "--data", path, *SHORT, "--steps", 3, "--out", tmp_path / "out")
    path.write_text(WORDS.replace("cat", "act"))
    status, printed, message = run("evaluate", tmp_path / "out", "--json")
    assert status == 0
    assert json.loads(printed)["num_tokens"] > 0
    assert "whose held-out part it may have seen" in message


def test_a_checkpoint_of_another_shape_is_refused(refusal, run, text_path, tmp_path):
    run("train", "--data", text_path, *SHORT, "--steps", 1, "--out", tmp_path)
    path = tmp_path / "config.json"
    record = json.loads(path.read_text())
    record["config"]["d_ff"] = 77
    path.write_text(json.dumps(record))
    assert "weights must have the shapes" in refusal("evaluate", tmp_path)
    assert "weights must have the shapes" in refusal("generate", tmp_path, "--prompt", "the")
    assert "weights must have the shapes" in refusal("train", "--resume", "--out", tmp_path)


def test_a_prompt_longer_than_the_context_is_refused(refusal, words):
    message = refusal("generate", words, "--prompt", "the cat " * 3)
    assert "got 24 tokens, max_len=16" in message


def test_a_date_longer_than_the_model_reads_is_refused(refusal, dates):
    message = refusal("generate", dates, "--prompt", "3. Mai 2031" * 6)
    assert "length=66, source_max_len=64" in message


def test_a_character_outside_the_vocabulary_is_refused(refusal, words, dates):
    message = refusal("generate", words, "--prompt", "the ☃")
    assert "got '☃' (U+2603) at position 4" in message
    assert "got '☃' (U+2603) at position 3" in refusal("generate", dates, "--prompt", "3. ☃")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--temperature", -1], "temperature must not be negative"),
        (["--top-k", 0], "k must be at least 1"),
        (["--top-p", 2], "p must be above 0 and at most 1"),
    ],
)
def test_impossible_sampling_is_refused(run, words, option, message):
    status, _, printed = run("generate", words, "--prompt", "the", *option)
    assert status == 2
    assert message in printed


def test_an_empty_prompt_is_refused(refusal, words, dates):
    assert "at least 1 token, got none" in refusal("generate", words, "--prompt", "")
    assert "at least 1 character, got an empty" in refusal("generate", dates, "--prompt", "")


def test_dates_have_no_baseline(refusal, dates):
    assert "--baseline must be used with a text model" in refusal("evaluate", dates, "--baseline")


def test_a_missing_gpu_is_refused(refusal, words, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "--device cuda needs a GPU" in refusal("evaluate", words, "--device", "cuda")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert "--device mps needs a GPU" in refusal("evaluate", words, "--device", "mps")


@pytest.mark.parametrize("there, chosen", [({"mps"}, "mps"), ({"cuda", "mps"}, "cuda")])
def test_a_gpu_that_is_there_is_used_nvidias_first(there, chosen, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in there)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in there)
    assert commands._device("auto").type == chosen


def test_workers_do_not_share_apples_gpu(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(commands, "is_worker", lambda: True)
    with pytest.raises(ValueError, match="workers must use --device cpu or cuda, got mps"):
        commands._device("mps")


@pytest.mark.parametrize("arguments", [["fly"], ["train", "--out", "x", "--steps", "0"]])
def test_a_command_line_that_makes_no_sense_is_refused(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_help_does_not_wait_for_torch():
    code = "import sys; from groundup.__main__ import main\ntry: main(['train', '--help'])\n"
    code += "except SystemExit: print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.endswith("False\n")
    assert "--schedule" in shown.stdout


def test_help_names_the_data_that_there_is():
    assert NAMED_DATA == commands.NAMED_DATA
    for said, known in ((FOR_TEXT, presets.DECODER_ONLY), (FOR_DATES, presets.ENCODER_DECODER)):
        assert re.split(", | or ", said) == list(known)


def test_the_command_is_installed():
    shown = subprocess.run(["groundup", "--help"], capture_output=True, text=True, check=True)
    assert "train|evaluate|generate" in shown.stdout


def test_a_small_model_uses_one_thread_and_another_number_can_be_asked_for(
    run, text_path, tmp_path
):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        start = ("train", "--data", text_path, "--steps", 1, "--context", 16, "--device", "cpu")
        assert run(*start, "--out", tmp_path / "a")[0] == 0
        assert torch.get_num_threads() == 1
        assert run(*start, "--out", tmp_path / "b", "--threads", 2)[0] == 0
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
