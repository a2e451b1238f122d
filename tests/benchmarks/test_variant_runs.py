"""The record of the runs of chapters 3 and 4 is what `book/variant_runs.py` computes today.

Run by hand, about half a minute: `pytest -m benchmark tests/benchmarks/test_variant_runs.py`. A
failure means that the record is stale: run `python book/variant_runs.py` and commit the result.

Machines round differently, and differences grow from update to update. The held-out losses are
therefore compared loosely.
"""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.benchmark

SCRIPT = Path(__file__).parents[2] / "book" / "variant_runs.py"


@pytest.fixture(scope="module")
def runs():
    spec = importlib.util.spec_from_file_location("variant_runs", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield module
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def record(runs):
    return json.loads(runs.RECORD.read_text(encoding="utf-8"))


def test_the_record_has_the_models_of_the_script(runs, record):
    assert record["updates"] == runs.RECIPE.steps
    for kinds, models in (("attentions", runs.ATTENTIONS), ("feed_forwards", runs.FEED_FORWARDS)):
        assert list(record[kinds]) == list(models)
        for name, choices in models.items():
            row = record[kinds][name]
            assert row | runs.facts(choices) == row, name
            assert len(row["nats"]) == len(runs.SEEDS)


def test_what_is_compared_has_as_many_parameters(record):
    counts = [row["parameters"] for row in record["attentions"].values()]
    dense, free, balanced, as_many = (row["parameters"] for row in record["feed_forwards"].values())
    assert set(counts) == {dense} and free == balanced == as_many > 2 * dense


@pytest.mark.parametrize("kind", ["latent of 56 + 8", "4 experts, balance loss"])
def test_a_model_learns_what_it_learned_for_the_record(runs, record, kind):
    choices = (runs.ATTENTIONS | runs.FEED_FORWARDS)[kind]
    loss, _ = runs.learn(runs.new_model(0, **choices), 0, choices.get("balance") or 0.0)
    row = (record["attentions"] | record["feed_forwards"])[kind]
    assert loss == pytest.approx(row["nats"][0], rel=2e-2)
