import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from torch import nn

from groundup.__main__ import main
from groundup.training import distributed, loop
from groundup.training.distributed import bare, copy_whole, exchange_gradients, sliced_like, whole

# What only one process can show: it has nobody to wait for


def test_a_process_on_its_own_is_the_first_of_one():
    assert (distributed.rank(), distributed.num_workers()) == (0, 1)


def test_on_its_own_a_process_has_what_all_have(normal):
    numbers = normal(3, 5)
    assert distributed.total(numbers) is numbers
    assert whole(numbers) is numbers
    assert sliced_like(numbers, normal(2)) is numbers
    assert distributed.collected(numbers) == [numbers]
    assert distributed.shared("thing") == "thing"


def test_a_model_is_unpacked_from_its_wrapper():
    model = nn.Linear(3, 5)
    assert bare(model) is model
    wrapped = nn.Module()
    wrapped._orig_mod = model
    assert bare(wrapped) is model
    exchange_gradients(wrapped, False)  # nobody to exchange with


def test_a_whole_model_is_copied_whole(normal):
    ours, theirs = nn.Linear(3, 5), nn.Linear(3, 5)
    copy_whole(ours, theirs)
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.bias, theirs.bias)


# Several processes


@contextmanager
def started(workers, *arguments):
    """Start workers that meet at a free port; they are gone in the end, whatever happens.

    They meet without a name of this machine: not every machine can look up its own.
    """
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=localhost"),
        *("--nproc_per_node", str(workers), *map(str, arguments)),
    ]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    paths = [str(Path(__file__).with_name("in_float32")), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    environment["GLOO_SOCKET_IFNAME"] = next(n for _, n in socket.if_nameindex() if n[:2] == "lo")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, env=environment, start_new_session=True) as process:
        try:
            yield process
        finally:
            children = workers_of(process).values()
            for number in (*children, process.pid):
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)


def torchrun(workers, *arguments):
    """Let workers run to their end; give the exit status and what they wrote."""
    with started(workers, *arguments) as process:
        printed, errors = process.communicate(timeout=100)
    return process.returncode, printed, errors


def workers_of(process):
    """Find the worker processes of torchrun by their rank."""
    workers = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == process.pid:
                environment = (folder / "environ").read_text().split("\0")
                settings = dict(line.split("=", 1) for line in environment if line)
                workers[int(settings["RANK"])] = int(folder.name)
        except (OSError, KeyError):
            continue  # gone, or not a worker
    return workers


TOGETHER = """
import itertools
import sys
import torch
from groundup import presets
from groundup.training import distributed
from groundup.files.checkpoint import load_training, save_training
from groundup.core.config import DecoderOnlyConfig, EncoderDecoderConfig
from groundup.data.batches import IGNORED, Batch, shard
from groundup.core.models import DecoderOnly, EncoderDecoder
from groundup.training.loop import TrainingConfig, optimizers_for, train

folder = sys.argv[1]
torch.set_num_threads(1)

def generator(seed=0):
    return torch.Generator().manual_seed(seed)

def new_model(kind):
    sizes = dict(d_model=12, num_heads=3, d_ff=13, num_layers=2, max_len=7, vocab_size=11)
    if kind == "decoder":
        return DecoderOnly(presets.decoder_only("tiny", **sizes), generator()).double()
    sizes |= dict(source_vocab_size=13, source_max_len=5)
    return EncoderDecoder(presets.encoder_decoder("tiny", **sizes), generator()).double()

def batches(kind, state):
    while True:
        targets = torch.randint(11, (4, 7), generator=state)
        targets[0] = IGNORED  # the workers have very different numbers of targets
        targets[2, 2:] = IGNORED
        inputs = {"tokens": torch.randint(11, (4, 7), generator=state)}
        if kind == "encoder-decoder":
            mask = torch.ones(4, 1, 1, 5, dtype=torch.bool)
            mask[1, ..., 2:] = False
            source = torch.randint(13, (4, 5), generator=state)
            inputs = {"source": source, "target": inputs["tokens"], "source_mask": mask}
        yield Batch(inputs, targets)

def assert_close(got, expected):
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(
            (ours.loss, ours.gradient_norm), (theirs.loss, theirs.gradient_norm),
            rtol=1e-10, atol=0,
        )

class Case:
    def __init__(self, parallel, kind, optimizer, micro_batches):
        self.parallel, self.kind = parallel, kind
        self.folder = f"{folder}/{parallel} {kind}"
        self.config = TrainingConfig(
            steps=6, learning_rate=0.02, warmup_steps=2, max_gradient_norm=0.5,
            optimizer=optimizer, micro_batches=micro_batches, label_smoothing=0.1,
        )

    def run(self, model, state, optimizer, start, stop):
        own = shard(batches(self.kind, state), distributed.rank(), distributed.num_workers())
        records = train(model, own, optimizer, self.config, start)
        return list(itertools.islice(records, stop - start))

    def run_alone(self):
        self.alone = new_model(self.kind)
        optimizer = optimizers_for(self.alone, self.config)
        self.expected = self.run(self.alone, generator(), optimizer, 0, 6)
        assert self.expected[0].gradient_norm > 0.5  # clipped

    def run_together(self):
        model = distributed.parallelise(new_model(self.kind), self.parallel)
        optimizer, state = optimizers_for(model, self.config), generator()
        records = self.run(model, state, optimizer, 0, 3)
        save_training(self.folder, model, optimizer, state, 3)
        records += self.run(model, state, optimizer, 3, 6)
        assert_close(records, self.expected)
        tied = distributed.bare(model)
        assert tied.unembedding.weight is tied.embedding.tokens.weight
        copied = new_model(self.kind)
        distributed.copy_whole(model, copied)
        if distributed.rank() == 0:  # a bias of keys has no gradient but rounding errors
            pairs = zip(copied.parameters(), self.alone.parameters(), strict=True)
            for ours, theirs in pairs:
                torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-8)
        distributed.total(torch.zeros(1))  # the file is there
        self.go_on(distributed.parallelise(new_model(self.kind), self.parallel))

    def go_on(self, model):
        optimizer, state = optimizers_for(model, self.config), generator(9)
        assert load_training(self.folder, model, optimizer, state) == 3
        assert_close(self.run(model, state, optimizer, 3, 6), self.expected[3:])

cases = [
    Case("ddp", "decoder", "muon", 2),
    Case("ddp", "encoder-decoder", "adamw", 1),
    Case("fsdp", "decoder", "adamw", 1),
    Case("fsdp", "encoder-decoder", "muon", 2),
]
for case in cases:
    case.run_alone()
with distributed.join(torch.device("cpu")):
    assert distributed.num_workers() == 2
    for case in cases:
        case.run_together()
for case in cases:  # what two have saved, one goes on with
    case.go_on(new_model(case.kind))
    sys.stdout.write(f"{case.parallel} {case.kind}\\n")  # in one piece: the other writes, too
"""


@pytest.mark.slow
def test_two_workers_learn_what_one_learns(tmp_path):
    script = tmp_path / "together.py"
    script.write_text(TOGETHER)
    status, printed, errors = torchrun(2, script, tmp_path)
    assert status == 0, errors
    combinations = ("ddp decoder", "ddp encoder-decoder", "fsdp decoder", "fsdp encoder-decoder")
    assert sorted(printed.splitlines()) == sorted(2 * combinations)
    assert "Warning" not in errors, errors


ALONE = """
import datetime
import os
import signal
import sys
import time
import torch
from groundup.training import distributed

what = sys.argv[1]
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun ends the others, which first have a say
try:
    with distributed.join(torch.device("cpu"), datetime.timedelta(seconds=3)):
        if distributed.rank() == 1 and what == "sleeps":
            time.sleep(8)
        elif distributed.rank() == 1 and what == "dies":
            os._exit(7)
        elif what == "mistake":
            raise RuntimeError("of its own")
        else:
            distributed.total(torch.zeros(1))
except distributed.WorkerLostError as error:
    print(f"lost: {error}", flush=True)
except RuntimeError as error:
    print(f"error: {error}", flush=True)
os._exit(0)  # whatever happened, torchrun has nothing to end
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("dies", "lost: all workers must run until the end, but worker 1 (process "),
        ("sleeps", "lost: all workers must answer within 0:00:03, one did not"),
        ("mistake", "error: of its own"),
    ],
)
def test_a_worker_says_why_it_cannot_go_on(tmp_path, what, message):
    script = tmp_path / "alone.py"
    script.write_text(ALONE)
    status, printed, errors = torchrun(2, script, what)
    assert (status != 0) == (what == "dies")
    assert message in printed, (printed, errors)


@pytest.fixture
def text_path(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("the cat sat on the mat and the dog sat on the log " * 30)
    return path


START = ["-m", "groundup", "train", "--context", 16, "--batch-size", 4, "--device", "cpu"]
START += ["--precision", "float32", "--compile", "off", "--attention", "fused"]


NEARLY = 1e-5
"""Relative difference of losses: workers add up in another order."""


def losses(folder):
    return [json.loads(line)["loss"] for line in (folder / "log.jsonl").read_text().splitlines()]


def wait_for_lines(path, number, process):
    while not (path.exists() and path.read_text().count("\n") >= number):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)


@pytest.mark.slow
def test_the_command_trains_the_same_model_with_any_number_of_workers(text_path, tmp_path):
    settings = ["--optimizer", "muon", "--accumulate", 2, "--label-smoothing", 0.1, "--steps", 20]
    for name, workers, extra in [("one", 1, []), ("fsdp", 2, ["--parallel", "fsdp"])]:
        arguments = [*START, *settings, *extra, "--data", text_path, "--out", tmp_path / name]
        status, printed, errors = torchrun(workers, *arguments)
        assert status == 0, errors
        assert "20/20" in errors
        assert printed.count("made 20 of 20 updates") == 1  # only one worker tells
        assert printed.count("bits_per_byte") == 1
    assert losses(tmp_path / "fsdp") == pytest.approx(losses(tmp_path / "one"), rel=NEARLY)


@pytest.mark.slow
@pytest.mark.skipif(
    not os.path.exists("/proc/self/environ"), reason="needs Linux, to find workers by /proc"
)
@pytest.mark.parametrize(("parallel", "victim"), [("ddp", 1), ("fsdp", 0)])
def test_a_killed_worker_ends_the_run_which_then_goes_on(
    text_path, tmp_path, parallel, victim, monkeypatch
):
    out = tmp_path / "out"
    start = [*START, "--parallel", parallel, "--data", text_path, "--steps", 100_000]
    with started(2, *start, "--out", out) as process:
        wait_for_lines(out / "log.jsonl", 2, process)
        before = losses(out)
        os.kill(workers_of(process)[victim], signal.SIGKILL)
        began = time.monotonic()
        _, errors = process.communicate(timeout=60)
    assert process.returncode > 0
    assert time.monotonic() - began < 35  # torchrun gives the others half a minute
    sentence = f"worker {1 - victim}: all workers must run until the end, but worker {victim} ("
    assert sentence in errors
    command = f"torchrun --nproc_per_node 2 -m groundup train --resume --out {out}"
    assert f" ended; resume with: {command} --parallel {parallel}" in errors
    # One process goes on from the checkpoint that two have made, and learns the same.
    monkeypatch.setattr(loop, "multiplies_bfloat16", lambda device: False)
    resume = ["train", "--resume", "--out", out, "--seconds", 1e-9]
    assert main([str(argument) for argument in resume]) == 0
    assert losses(out) == pytest.approx(before[:1], rel=NEARLY)


@pytest.mark.slow
def test_a_stopped_run_of_workers_saves_what_it_has_done(text_path, tmp_path):
    with started(2, *START, "--data", text_path, "--steps", 100_000, "--out", tmp_path) as process:
        wait_for_lines(tmp_path / "log.jsonl", 1, process)
        process.send_signal(signal.SIGTERM)
        printed, errors = process.communicate(timeout=60)
    assert f"made {10 * len(losses(tmp_path))} of 100000 updates" in printed
    assert "resume with: torchrun --nproc_per_node 2 -m groundup train --resume" in printed
    assert "gone" not in errors


@pytest.mark.slow
def test_what_workers_cannot_share_is_refused(text_path, tmp_path):
    out = tmp_path / "out"
    status, _, errors = torchrun(2, *START, "--data", text_path, "--out", out, "--batch-size", 3)
    assert status != 0
    assert "worker 0: --batch-size must be a multiple of the number of workers" in errors
    assert "got batch_size=3, workers=2, accumulate=1" in errors
    assert not out.exists()
