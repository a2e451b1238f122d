"""A real Dask scheduler and two real workers; one of these is killed while it grades."""

import json
import pickle
import shutil
import signal
from pathlib import Path

import psutil
import pytest

from classroom.grader import cluster
from classroom.grader.cluster import Cluster
from classroom.grader.run import Assignment, Settings, ThisMachine, grade_folder
from classroom.grader.submission import Submission
from classroom.grader.verdicts import Grades, Verdict, to_csv
from classroom.limits import Limits

SLOW = "import time\ntime.sleep(1.5)\ndef twice(number):\n    return number + number"
NUM_STUDENTS = 8
ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_a_killed_worker_of_a_cluster_costs_nobody_anything(
    here, dask, handout, hand_in, submitted, tmp_path
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
    assert here == []
    near = grade_folder(handout, submitted, tmp_path / "near", engine=ThisMachine())
    assert len(here) == NUM_STUDENTS + 1
    far, here = ([*map(Grades.of, each.verdicts)] for each in (found, near))
    assert to_csv(far) == to_csv(here)
    assert {v.layers for v in found.verdicts} == {v.layers for v in near.verdicts}
    assert below(killed[0]) == [], "a grader outlived its worker"


def below(parent):
    """Return processes whose parent was this one: they name it among their arguments."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if str(parent) in words and any("classroom.grader.processes" in word for word in words):
            found.append(process.pid)
    return found


def test_a_cluster_that_is_not_there_is_told_in_a_sentence(monkeypatch):
    monkeypatch.setattr("classroom.grader.cluster._SECONDS_TO_ANSWER", 1)
    with pytest.raises(OSError, match="no scheduler answers at tcp://127.0.0.1:9"):
        Cluster("tcp://127.0.0.1:9")


# A folder's name as some old systems wrote it, which is no UTF-8.
STRANGE = b"\xe9mile".decode("utf-8", "surrogateescape")


def test_what_travels_arrives_as_it_was(hand_in, handout):
    folder = hand_in("ada")
    (folder / STRANGE).touch()
    (folder / "second.ipynb").symlink_to("averages.ipynb")
    submission = Submission.read(folder, handout.master)
    sent = pickle.loads(pickle.dumps(submission))
    assert sent == submission
    assert sent.digest == submission.digest
    assert submission.notebooks["second.ipynb"].problem.startswith("second.ipynb is a link")


@pytest.mark.slow
def test_a_worker_judges_a_released_assignment_by_its_solutions(sealed, tmp_path):
    released = Assignment(ROOT / "exercises" / "01_attention")
    shutil.copy(ROOT / "solutions" / "01_attention" / "attention.ipynb", tmp_path)
    submission = Submission.read(tmp_path, released.master)
    settings = Settings(assignment=released, limits=Limits(), allow_weaker=True, seed="secret")
    answer = cluster.grade_on_worker(cluster._order(settings), pickle.dumps(submission))
    grades = Grades.of(Verdict.from_json(json.loads(answer)["verdict"]))
    assert grades.earned == grades.points > 0


def test_a_worker_of_another_version_refuses(handout, hand_in):
    here = Assignment(handout.folder)
    here.__dict__["digest"] = "another"
    settings = Settings(assignment=here, limits=Limits(), allow_weaker=False, seed="secret")
    submission = pickle.dumps(Submission.read(hand_in("ada"), handout.master))
    answer = json.loads(cluster.grade_on_worker(cluster._order(settings), submission))
    assert "different versions of Python, torch or this package" in answer["refused"]
