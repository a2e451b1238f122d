"""The command for a GPU, run to its end without one, so that it cannot fail for silly reasons."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

SCRIPT = Path(__file__).parent / "gpu.py"
FIELDS = {"metric", "ours", "peer", "peer_name", "ratio", "goal", "met"}
FIELDS |= {"hardware", "load", "date", "unit"}


@pytest.fixture(scope="module")
def gpu():
    spec = importlib.util.spec_from_file_location("benchmarks_gpu", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def run(gpu):
    return gpu.Run(device=torch.device("cpu"), is_tiny=True)


@pytest.fixture
def results(gpu, tmp_path):
    return gpu.Results(tmp_path / "gpu.json")


def command(folder, *more):
    return [sys.executable, str(SCRIPT), "--tiny", "--device", "cpu", "--out", str(folder), *more]


ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def read(folder):
    return json.loads((folder / "gpu.json").read_text())


# --- the whole command ---------------------------------------------------------------------


@pytest.mark.slow
def test_everything_runs_to_its_end_on_a_processor(gpu, tmp_path):
    finished = subprocess.run(
        command(tmp_path), env=ENVIRONMENT, capture_output=True, text=True, timeout=300
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    rows = read(tmp_path)
    assert not [row for row in rows if "error" in row or "left_out" in row]
    assert all(row.keys() >= FIELDS for row in rows)
    assert all(row["goal"] is None and row["met"] is None for row in rows)  # sizes without meaning
    assert all(row["hardware"].startswith("CPU: ") for row in rows)
    metrics = [row["metric"] for row in rows]
    assert len(set(metrics)) == len(metrics)
    for part in (
        "MFU",
        "beside Hugging Face GPT-2, compiled",
        "beside torch.nn",
        "XL",
        "attention",
    ):
        assert any(part in metric for metric in metrics), part
    assert sum(metric.startswith("mistake, ") for metric in metrics) == len(gpu.MISTAKES) == 9
    assert sum(metric.startswith("extrapolation, ") for metric in metrics) == 5
    assert finished.stdout.count("\n") >= len(rows)  # progress


@pytest.mark.slow
def test_a_command_that_is_killed_leaves_what_it_has_measured(tmp_path):
    process = subprocess.Popen(
        command(tmp_path, "--only", "attention", "mistakes"),
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 120
        while not (tmp_path / "gpu.json").exists() and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    rows = read(tmp_path)
    assert rows and all(row.keys() >= FIELDS for row in rows)


def test_a_gpu_that_is_not_there_is_refused(gpu, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        gpu.main(["--out", str(tmp_path), "--device", "cuda"])
    assert "--device cuda needs a GPU that torch can use" in capsys.readouterr().err


def test_full_sizes_on_a_processor_are_refused(gpu, tmp_path, capsys):
    with pytest.raises(SystemExit):
        gpu.main(["--out", str(tmp_path), "--device", "cpu"])
    assert "full sizes need a GPU" in capsys.readouterr().err


# --- one measurement after the other -------------------------------------------------------


def measure(gpu, run, results, measurements, seconds=60.0):
    said = []
    measurements = {
        name: gpu.Measurement(function, limit) for name, (function, limit) in measurements.items()
    }
    return gpu.measure_all(run, measurements, results, seconds, said.append), said


def good(run):
    yield run.row("good", 3.0, unit="lots", peer=2.0, peer_name="other")


def test_a_measurement_that_fails_is_recorded_and_the_others_go_on(gpu, run, results, tmp_path):
    def bad(run):
        yield run.row("bad, first part", 1.0, unit="lots")
        raise RuntimeError("no\nluck")

    num_failed, said = measure(gpu, run, results, {"bad": (bad, 5.0), "good": (good, 5.0)})
    rows = {row["metric"]: row for row in read(tmp_path)}
    assert num_failed == 1
    assert list(rows) == ["bad, first part", "bad", "good"]
    assert rows["bad"]["error"] == "RuntimeError: no luck"
    assert rows["good"]["ratio"] == 1.5
    assert any("bad: failed" in line for line in said)
    assert all(row.keys() >= FIELDS for row in rows.values())


def test_a_measurement_that_takes_too_long_is_stopped(gpu, run, results, tmp_path):
    def slow(run):
        yield run.row("slow, first part", 1.0, unit="lots")
        try:
            time.sleep(30)
        except Exception:  # as a library might
            time.sleep(30)

    start = time.monotonic()
    num_failed, _ = measure(gpu, run, results, {"slow": (slow, 0.2), "good": (good, 5.0)})
    rows = {row["metric"]: row for row in read(tmp_path)}
    assert time.monotonic() - start < 4
    assert num_failed == 1
    assert "more than the 0 seconds" in rows["slow"]["error"]
    assert {"slow, first part", "good"} <= rows.keys()


def test_what_there_is_no_time_for_is_named_and_not_begun(gpu, run, results, tmp_path):
    def unwanted(run):
        raise AssertionError("it was begun")
        yield

    num_failed, _ = measure(
        gpu, run, results, {"good": (good, 8.0), "long": (unwanted, 300.0)}, seconds=20.0
    )
    rows = {row["metric"]: row for row in read(tmp_path)}
    assert num_failed == 0
    assert "of 20 seconds were left" in rows["long"]["left_out"]
    assert rows["long"].keys() >= FIELDS and "good" in rows


def test_a_second_run_replaces_its_own_rows_and_keeps_the_others(gpu, run, results, tmp_path):
    def bad(run):
        raise RuntimeError
        yield

    def better(run):
        yield run.row("good", 5.0, unit="lots")

    measure(gpu, run, results, {"first": (bad, 5.0), "second": (good, 5.0)})
    results.put(run.row("other", 7.0, unit="lots"))
    again = gpu.Results(tmp_path / "gpu.json")
    measure(gpu, run, again, {"first": (better, 5.0)})
    assert {row["metric"]: row["ours"] for row in read(tmp_path)} == {"other": 7.0, "good": 5.0}


def test_an_interrupted_write_leaves_the_file_as_it_was(gpu, run, results, tmp_path, monkeypatch):
    results.put(run.row("first", 2.0, unit="lots"))
    write_text = Path.write_text

    def half(path, content):
        write_text(path, content[: len(content) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(KeyboardInterrupt):
        results.put(run.row("second", 3.0, unit="lots"))
    assert [row["metric"] for row in read(tmp_path)] == ["first"]


def test_goals_count_on_a_gpu_and_at_full_sizes_only(gpu, monkeypatch):
    about = {"device": "a GPU", "load": 1.0, "cores": 2}
    monkeypatch.setattr(gpu, "machine", lambda device: about)
    full = gpu.Run(device=torch.device("cuda"))
    assert full.row("m", 0.6, unit="share", goal=0.5)["met"] is True
    assert full.row("m", 0.4, unit="share", goal=0.5)["met"] is False
    assert full.row("m", None, unit="share", goal=0.5)["met"] is None
    row = full.row("m", 3.0, unit="x", peer=2.0, goal=1.6, of_ratio=True)
    assert (row["ratio"], row["met"]) == (1.5, False)
    assert full.row("m", 3.0, unit="x")["met"] is None
    for run in (
        gpu.Run(device=torch.device("cuda"), is_tiny=True),
        gpu.Run(device=torch.device("cpu")),
    ):
        assert run.row("m", 0.6, unit="share", goal=0.5)["met"] is None


# --- the parts -----------------------------------------------------------------------------


def test_the_largest_size_that_fits_is_taken(gpu):
    tried = []

    def build(size):
        tried.append(size)
        if size > 8:
            raise torch.OutOfMemoryError
        return f"built with {size}"

    assert gpu.first_that_fits([32, 16, 8, 4], build) == (8, "built with 8")
    assert tried == [32, 16, 8]
    with pytest.raises(torch.OutOfMemoryError):
        gpu.first_that_fits([32, 16], build)


def test_a_token_that_the_model_would_not_write_is_noticed(gpu, run):
    model = gpu.decoding_model(run, "gpt2_small").float()
    _, context = gpu.write(run, model, "growing", None, room=32)
    num_written = context.shape[1] - 3
    assert gpu.require_best_tokens(model, context, num_written) < 1e-4
    wrong = context.clone()
    wrong[0, -1] = model(context[:, :-1])[0, -1].argmin()
    with pytest.raises(ValueError, match="must write what the model would"):
        gpu.require_best_tokens(model, wrong, num_written)


def test_losses_by_place_are_those_of_the_whole_windows(gpu, run):
    model = run.new_model(gpu.small_config(run, 13))
    tokens = torch.randint(13, (7 * 11 + 1,), generator=torch.Generator().manual_seed(0))
    losses = gpu.losses_by_place(run, model, tokens, 7)
    logits = model(tokens[:-1].view(11, 7))
    expected = F.cross_entropy(logits.flatten(0, 1), tokens[1:], reduction="none").view(11, 7)
    torch.testing.assert_close(losses, expected.mean(dim=0))


def mistaken(gpu, run, name):
    mistake = gpu.MISTAKES[name]
    model = run.new_model(gpu.small_config(run, 13, norm_order="post", **mistake.choices))
    mistake.change(model)
    return model.eval()


TOKENS = torch.tensor([[1, 5, 2, 11, 7]])
OTHER_END = torch.tensor([[1, 5, 2, 11, 3]])


def test_without_a_mistake_the_future_is_hidden(gpu, run):
    model = mistaken(gpu, run, "none")
    assert model(TOKENS)[:, :-1].equal(model(OTHER_END)[:, :-1])


def test_without_the_mask_the_future_is_seen(gpu, run):
    model = mistaken(gpu, run, "the mask is missing")
    assert not torch.allclose(model(TOKENS)[:, 0], model(OTHER_END)[:, 0])


def test_targets_that_are_not_shifted_are_the_tokens_read(gpu):
    batch = gpu.Batch({"tokens": TOKENS}, OTHER_END)
    assert gpu.MISTAKES["the targets are not shifted"].batch(batch).targets.equal(TOKENS)


def test_without_residual_connections_silent_sub_layers_forget_the_tokens(gpu, run):
    def spread(name):
        model = mistaken(gpu, run, name)
        for block in model.blocks:
            for layer in (block.attention.output, block.feed_forward.down):
                torch.nn.init.zeros_(layer.weight)
        return model(TOKENS).std(dim=1).max().item()

    assert spread("the residual connections are missing") < 1e-6 < 1e-2 < spread("none")


def test_a_softmax_that_is_applied_twice_gives_logits_from_0_to_1(gpu, run):
    logits = mistaken(gpu, run, "the softmax is applied twice")(TOKENS)
    torch.testing.assert_close(logits.sum(dim=-1), torch.ones(1, 5))


def test_weights_from_minus_one_to_one_are_that_large(gpu, run):
    model = mistaken(gpu, run, "weights begin between -1 and 1")
    largest = max(p.abs().max().item() for p in model.parameters() if p.ndim == 2)
    assert 0.9 < largest <= 1
