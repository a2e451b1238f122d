"""What the benchmarks share: rounds that take turns, and rows that say how a number came about.

Times are processor seconds of one thread. On a machine that others use as well, wall clock and a
second thread mislead; and whatever slows one candidate should slow the others as much, hence
the turns.
"""

import datetime
import json
import os
import statistics
import time
from pathlib import Path

import pytest
import torch

from groundup.core.attention import dot_scores
from groundup.looking.throughput import machine

RECORDS = Path(__file__).parent / "records"
ROUNDS = 7


@pytest.fixture
def one_thread():
    assert not hasattr(dot_scores, "__wrapped__"), "shapes are checked: measure with `make bench`"
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def has_bf16():
    """Whether the processor multiplies bfloat16 numbers by instructions of its own."""
    return bool(machine()["bfloat16"])


@pytest.fixture
def interleaved(one_thread):
    """Time candidates in turns; give the median processor seconds of one call of each."""

    def measure(candidates, rounds=ROUNDS, calls=1):
        for run in candidates.values():
            run()  # compiles, allocates, warms up
        names = list(candidates)
        seconds = {name: [] for name in names}
        for first in range(rounds):
            # Another one begins each round, or the same would always follow the slowest.
            for turn in range(len(names)):
                name = names[(first + turn) % len(names)]
                start = time.process_time()
                for _ in range(calls):
                    candidates[name]()
                seconds[name].append((time.process_time() - start) / calls)
        return {name: statistics.median(times) for name, times in seconds.items()}

    return measure


@pytest.fixture
def record(one_thread):
    """Replace the row of the same metric in a file of `records/`; give whether it met its goal."""

    def write(file, metric, ours, peer, peer_name, ratio, goal, met, **more):
        about = machine()
        instructions = "bf16" if about["bfloat16"] else "no bf16"
        row = {
            "metric": metric,
            "ours": ours,
            "peer": peer,
            "peer_name": peer_name,
            "ratio": ratio,
            "goal": goal,
            "met": bool(met),
            "hardware": f"1 thread of {about['processor']}, {instructions} instructions, "
            f"torch {torch.__version__}",
            "load": f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            **more,
        }
        path = RECORDS / file
        rows = json.loads(path.read_text()) if path.exists() else []
        rows = [old for old in rows if old["metric"] != metric] + [row]
        path.write_text(json.dumps(sorted(rows, key=lambda r: r["metric"]), indent=2) + "\n")
        return met

    return write
