"""The record of the runs of chapter 07 is what `book/training_runs.py` computes today.

Run by hand, about five seconds: `pytest -m benchmark tests/benchmarks/test_training_runs.py`. A
failure means that the record is stale: run `python book/training_runs.py` and commit the result.

Machines round differently, and differences grow from update to update. The first updates are
therefore compared closely, and the end of the run loosely.
"""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.benchmark

SCRIPT = Path(__file__).parents[2] / "book" / "training_runs.py"


@pytest.fixture(scope="module")
def runs():
    spec = importlib.util.spec_from_file_location("training_runs", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield module
    torch.set_num_threads(num_threads)
    del sys.modules[spec.name]


def test_the_healthy_run_is_that_of_the_record(runs):
    curve, recorded = runs.learn(), runs.load()["curves"][runs.HEALTHY]
    assert curve.step == recorded.step
    for name in ("loss", "held_out", "gradient_norm"):
        now, then = getattr(curve, name), getattr(recorded, name)
        assert now[:5] == pytest.approx(then[:5], rel=2e-3), name
        assert sum(now[-8:]) / 8 == pytest.approx(sum(then[-8:]) / 8, rel=2e-2), name


def test_the_record_has_the_runs_of_the_script(runs):
    recorded = runs.load()
    assert list(recorded["curves"]) == [runs.HEALTHY, *runs.MISTAKES]
    assert list(recorded["schedules"]) == list(runs.SCHEDULES)
    assert recorded["schedules"]["cosine"][0] == recorded["curves"][runs.HEALTHY]
    assert list(recorded["decay"]) == ["long", "short"]


def test_each_run_memorises_as_in_the_record(runs):
    for name, losses in runs.load()["memorised"].items():
        run = runs.MISTAKES.get(name)
        assert runs.memorise(run, steps=1)[0] == pytest.approx(losses[0], abs=2e-3), name


def test_the_record_is_written_as_it_would_be_now(runs):
    text = runs.RECORD.read_text(encoding="utf-8")
    assert runs.in_lines(json.loads(text)) + "\n" == text
