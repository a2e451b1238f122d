"""A real Dask scheduler and two real workers; one of these is killed while it grades."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from classroom.cluster import Cluster
from classroom.grade import ThisMachine, grade_folder
from classroom.report import to_csv

SLOW = "import time\ntime.sleep(1.5)\ndef twice(number):\n    return number + number"
NUM_STUDENTS = 8


@pytest.fixture
def dask(tmp_path):
    """Start a scheduler and two workers of one thread each; give its address and the workers."""
    pytest.importorskip("distributed")
    log = (tmp_path / "dask.log").open("w")
    options = {"stdout": log, "stderr": log, "cwd": tmp_path}
    file = tmp_path / "scheduler.json"
    local = ["--no-dashboard", "--scheduler-file", file]
    scheduler = subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", *local]
        + ["--port", "0"],
        **options,
    )
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--no-nanny", "--nthreads", "1"]
    worker += ["--host", "127.0.0.1", *local]
    workers = [subprocess.Popen(worker, **options) for _ in range(2)]
    try:
        deadline = time.monotonic() + 60
        while not file.exists() or not file.read_text():
            assert time.monotonic() < deadline, (tmp_path / "dask.log").read_text()
            time.sleep(0.1)
        yield json.loads(file.read_text())["address"], workers
    finally:
        for process in (*workers, scheduler):
            process.kill()
            process.wait()
        log.close()


@pytest.mark.slow
def test_a_killed_worker_of_a_cluster_costs_nobody_anything(
    sealed, dask, handout, hand_in, submitted, tmp_path
):
    address, workers = dask
    for number in range(NUM_STUDENTS):
        hand_in(f"student {number}", twice=None if number % 3 == 0 else SLOW)
    (hand_in("damaged") / "averages.ipynb").write_text("{")
    killed, came = [], []

    def kill_one(done, total):
        came.append(done)
        if done == 2:
            killed.append(workers[0].pid)
            workers[0].send_signal(signal.SIGKILL)

    with Cluster(address) as cluster:
        # Whatever a worker answers is data.
        assert "pickle" not in cluster._client._deserializers
        found = grade_folder(
            handout, submitted, tmp_path / "far", engine=cluster, progress=kill_one
        )
    assert killed and found.failed == () and came[-1] == NUM_STUDENTS + 1
    here = grade_folder(handout, submitted, tmp_path / "near", engine=ThisMachine(2))
    assert to_csv(found.verdicts) == to_csv(here.verdicts)
    assert {v.layers for v in found.verdicts} == {v.layers for v in here.verdicts}
    assert below(killed[0]) == [], "a grader outlived its worker"


def below(parent):
    """Return processes whose parent was this one: they name it among their arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(b"classroom.pool" in word for word in words) and str(parent).encode() in words:
            found.append(int(path.parent.name))
    return found


def test_a_cluster_that_is_not_there_is_told_in_a_sentence(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("classroom.cluster._SECONDS_TO_ANSWER", 1)
    with pytest.raises(OSError, match="no scheduler answers at tcp://127.0.0.1:9"):
        Cluster("tcp://127.0.0.1:9")
