"""The command for a GPU, run to its end without one, so that it cannot fail for silly reasons."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import gpu
import pytest
import torch

from groundup import pretrained
from groundup.generation.loop import generate

SCRIPT = Path(__file__).parent / "gpu.py"
ROWS = {
    "training": 8,
    "attention": 6,
    "decoding": 4,
    "passes": 6,
    "learning": 4,
    "shipped": 1,
}


@pytest.fixture
def run(tmp_path):
    return gpu.Run(torch.device("cpu"), True, tmp_path)


def read(folder):
    return json.loads((folder / "gpu.json").read_text(encoding="utf-8"))


# --- the whole command ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("gpu")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(SCRIPT), "--tiny", "--out", str(out)]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return out, finished.stdout


@pytest.mark.slow
def test_everything_runs_to_its_end_on_a_processor(whole):
    out, said = whole
    record = read(out)
    assert record["failed"] == {} and record["tiny"] and record["peak"] is None
    assert {part: len(record[part]) for part in ROWS} == ROWS
    for part in ROWS:
        assert said.count(f"{part}: ") >= len(record[part]) + 1  # progress
    assert len({row["model"] for row in record["training"]}) == 4
    assert all(row["tokens_per_second"] > 0 and row["mfu"] is None for row in record["training"])
    backends = ("fused", "explicit", "explicit, compiled")
    assert {(row["length"], row["backend"]) for row in record["attention"]} == {
        (length, backend) for length in (24, 48) for backend in backends
    }
    assert all(row["milliseconds"] > 0 for row in record["attention"])
    assert [row["batch_size"] for row in record["decoding"]] == [1, 1, 5, 5]
    assert all(row["tokens_per_second"] > 0 for row in record["decoding"])
    assert all(row["milliseconds"] > 0 < row["num_bytes"] for row in record["passes"])
    for row in record["learning"]:  # a little was learned
        assert row["best_nats"] == min(row["nats"]) < row["nats"][0] and len(row["step"]) == 4


@pytest.mark.slow
def test_the_model_that_it_trains_can_come_with_the_course(whole, monkeypatch):
    out, _ = whole
    monkeypatch.setattr(pretrained, "FOLDER", out)
    assert pretrained.names() == ["llama"]
    model, tokenizer = pretrained.load("llama")
    assert tokenizer.vocab_size == model.config.vocab_size == 300
    (row,), record = read(out)["shipped"], pretrained.record("llama")
    assert record.items() <= row.items()
    assert "--device=auto " in record["command"] and f"--steps={record['steps']} " in row["command"]


# --- one part after the other --------------------------------------------------------------


@pytest.fixture
def measure(run, monkeypatch):
    def use(before=None, **parts):
        monkeypatch.setattr(gpu, "PARTS", parts)
        gpu.measure(run, list(parts), {"failed": {}} | (before or {}))
        return read(run.out)

    return use


def good(run):
    yield {"tokens_per_second": 3.0}


def bad(run):
    yield {"tokens_per_second": 2.0}
    raise RuntimeError("no\nluck")


def test_a_part_that_fails_says_so_in_one_line_and_the_others_run(measure, capsys):
    record = measure(bad=(bad, 5.0), good=(good, 5.0))
    assert record["failed"] == {"bad": "RuntimeError: no luck"}
    assert record["bad"] == [{"tokens_per_second": 2.0}]
    assert record["good"] == [{"tokens_per_second": 3.0}]
    assert "bad: failed, RuntimeError: no luck\n" in capsys.readouterr().out


def test_a_part_that_takes_too_long_is_stopped(measure, monkeypatch):
    # Of a process that has run a thousand tests, garbage is collected for seconds.
    monkeypatch.setattr(gpu, "release", lambda run: None)

    def slow(run):
        try:
            time.sleep(30)
        except Exception:  # as a library might
            time.sleep(30)
        yield {}

    begun = time.monotonic()
    heeded = signal.getsignal(signal.SIGALRM)
    record = measure(slow=(slow, 0.2), good=(good, 5.0))
    assert signal.getsignal(signal.SIGALRM) == heeded
    assert time.monotonic() - begun < 4
    assert record["failed"] == {"slow": "Overtime: it took more than its time"}
    assert record["slow"] == [] and len(record["good"]) == 1


def test_every_row_is_in_the_record_before_the_next_is_measured(measure):
    def watched(run):
        for number in range(3):
            yield {"number": number}
            assert read(run.out)["watched"][-1] == {"number": number}

    assert measure(watched=(watched, 5.0))["failed"] == {}


def test_a_part_measured_again_replaces_its_rows_and_its_failure_alone(measure):
    before = measure(bad=(bad, 5.0), good=(good, 5.0))
    record = measure(before, bad=(good, 5.0))
    assert record == {
        "failed": {},
        "bad": [{"tokens_per_second": 3.0}],
        "good": [{"tokens_per_second": 3.0}],
    }


# --- arguments -----------------------------------------------------------------------------


@pytest.fixture
def refusal(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def of(*arguments):
        with pytest.raises(SystemExit, match="2"):
            gpu.main([str(each) for each in arguments])
        return capsys.readouterr().err.splitlines()[-1]

    return of


def test_bad_arguments_are_refused_in_a_sentence(refusal, tmp_path):
    assert "full sizes need a GPU that torch can use, got none" in refusal("--out", tmp_path)
    assert "invalid choice: 'speed'" in refusal("--tiny", "--only", "speed")
    file = tmp_path / "file"
    file.write_text("")
    assert f"--out must be a folder, got {file}: " in refusal("--tiny", "--out", file)


def test_numbers_of_another_machine_are_not_mixed_in(refusal, tmp_path):
    before = {"machine": {"device": "NVIDIA H100 80GB HBM3"}, "tiny": True, "failed": {}}
    (tmp_path / "gpu.json").write_text(json.dumps(before))
    said = refusal("--tiny", "--out", tmp_path, "--only", "attention")
    assert "--only must add to a record of the same device and sizes" in said


# --- the step that is replayed -------------------------------------------------------------


@torch.compiler.set_stance("force_eager")  # shapes are checked here, which cannot be compiled
def test_a_step_that_is_replayed_writes_what_the_model_does(run):
    model = run.gpt2_small().requires_grad_(False)
    step, how = gpu.GraphedStep(model), {"cache": "static", "max_len": 24}
    for seed in (0, 1):  # the second text has another cache
        prompt = torch.randint(61, (5, 3), generator=torch.Generator().manual_seed(seed))
        texts = generate(model, prompt, 21, step=step, **how)
        assert texts.equal(generate(model, prompt, 21))
        gpu.require_best_tokens(model, texts, 21)


def test_a_text_that_the_model_would_not_write_is_noticed(run):
    model = run.gpt2_small().requires_grad_(False)
    texts = generate(model, torch.tensor([[7, 11, 13]]), 21)
    texts[0, -1] = model(texts[:, :-1])[0, -1].argmin()
    with pytest.raises(ValueError, match="must write what the model would"):
        gpu.require_best_tokens(model, texts, 21)


# --- attention -----------------------------------------------------------------------------


def test_attention_that_does_not_fit_is_a_row_and_not_a_failure(run, monkeypatch):
    cost = gpu.attention_cost

    def scarce(run, backend, *drawn):
        if backend == "explicit":
            raise torch.OutOfMemoryError
        return cost(run, backend, *drawn)

    monkeypatch.setattr(gpu, "attention_cost", scarce)
    fused, explicit = islice(gpu.attention(run), 2)
    assert fused["milliseconds"] > 0
    assert explicit["milliseconds"] is None and explicit["note"] == "out of memory"
