"""What `groundup train` reaches in three minutes on two CPU cores.

Run by hand, on a machine that does little else: `pytest -m benchmark tests/benchmarks`. Each
test runs the commands of the README in processes of their own and writes its rows to
`records/training.json`.

Time is that of the whole `train` command: imports, data, training, saving, measuring. A model as
small as these is trained by one thread, so three minutes are 180 CPU seconds; they are
bounded instead of the wall clock, which is longer on a machine that is shared with others.
"""

import datetime
import json
import os
import resource
import subprocess
import time
from pathlib import Path

import pytest

from groundup.looking.throughput import machine

pytestmark = pytest.mark.benchmark

RECORDS = Path(__file__).parent / "records" / "training.json"
MAX_CPU_SECONDS = 180


def groundup(*arguments):
    """Run a command; give what it printed, its CPU seconds and its wall-clock seconds."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        ["groundup", *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, cpu, wall


def write(row):
    """Replace the row of the same metric in the record."""
    rows = json.loads(RECORDS.read_text()) if RECORDS.exists() else []
    rows = [old for old in rows if old["metric"] != row["metric"]] + [row]
    RECORDS.write_text(json.dumps(sorted(rows, key=lambda r: r["metric"]), indent=2) + "\n")


def measure(data, out, *evaluate):
    """Train and evaluate; give the results and what the rows of the record have in common."""
    command = f"groundup train --data {data} --out runs/{data}"
    load = os.getloadavg()[0]
    _, cpu, wall = groundup("train", "--data", data, "--out", out)
    printed, _, _ = groundup("evaluate", out, "--json", "--device", "cpu", *evaluate)
    about = machine()
    common = {
        "hardware": f"{os.cpu_count()} cores of {about['processor']}, torch {about['torch']}",
        "load": f"{load:.1f} before the run, {os.cpu_count()} cores",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": command,
        "cpu_seconds": round(cpu, 1),
        "wall_seconds": round(wall, 1),
    }
    return json.loads(printed), common


def test_unseen_dates_are_read_exactly_right(tmp_path):
    results, common = measure("dates", tmp_path / "dates")
    goal = 0.95
    met = results["exact_match"] >= goal and common["cpu_seconds"] <= MAX_CPU_SECONDS
    write(
        {
            "metric": "exact match on unseen dates",
            "ours": results["exact_match"],
            "peer": None,
            "peer_name": None,
            "ratio": None,
            "goal": f"at least {goal}, in at most {MAX_CPU_SECONDS} cpu_seconds",
            "met": met,
            "data": results["data"],
            **common,
        }
    )
    assert met


def test_the_language_model_beats_the_5_gram(tmp_path):
    results, common = measure("python-reference", tmp_path / "text", "--baseline")
    ours, peer = results["bits_per_byte"], results["baseline"]["bits_per_byte"]
    met = ours < peer and common["cpu_seconds"] <= MAX_CPU_SECONDS
    write(
        {
            "metric": "held-out bits per byte of python-reference",
            "ours": round(ours, 4),
            "peer": round(peer, 4),
            "peer_name": results["baseline"]["name"],
            "ratio": round(ours / peer, 4),
            "goal": f"below the peer, in at most {MAX_CPU_SECONDS} cpu_seconds",
            "met": met,
            "data": results["data"],
            **common,
        }
    )
    assert met
