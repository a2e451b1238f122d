"""A run that is killed and interrupted again and again gives what an undisturbed one gives.

The same is done with a whole class in tests/benchmarks/test_grading_scale.py.
"""

import json
import random
import shutil
from pathlib import Path

import pytest
from corpus import NAME, POINTS, Case
from drill import Drill, orphans_come_here

CONFIG = Path(__file__).parents[2] / "nbgrader_config.py"
NUM_STUDENTS = 24  # enough for some to be left when it is stopped
NUM_KILLS = 3


@pytest.fixture
def drill(exam, tmp_path):
    """A class, two of which have handed in something else than the others."""
    root = tmp_path / "course"
    for kind in ("solutions", "exercises"):
        shutil.copytree(exam.folder, root / kind / exam.name)
    shutil.copy(CONFIG, root)
    handout = json.loads((exam.folder / NAME).read_text())
    for number in range(NUM_STUDENTS):
        folder = root / "submitted" / f"student {number}" / exam.name
        folder.mkdir(parents=True)
        Case("honest", POINTS).hand_in(folder, handout, {})
    (root / "submitted" / "student 2" / exam.name / NAME).write_text("{")
    (root / "submitted" / "student 5" / exam.name / NAME).write_text(json.dumps(handout))
    return Drill(root, exam.name)


@pytest.mark.slow
def test_a_run_that_is_killed_and_interrupted_gives_what_an_undisturbed_one_gives(
    sealed, drill, tmp_path
):
    moments = random.Random(0)
    with orphans_come_here():
        for _ in range(NUM_KILLS):
            drill.kill(moments.randint(0, 1), seconds=moments.uniform(0, 0.3))
        status, shown = drill.press_ctrl_c(1)
        assert drill.num_lines() < NUM_STUDENTS, "there was nothing left to stop"
        assert status == 130 and "Traceback" not in shown
        assert shown.count("stopped; run it again to continue") == 1
        assert "submissions/s" in shown, "a terminal gets a bar"
        scores = drill.run()
    assert drill.num_kills == NUM_KILLS
    assert drill.times_judged() == {f"student {i}": 1 for i in range(NUM_STUDENTS)}
    drill.require_gradebook_as(scores)
    assert scores == drill.run("--kept", str(tmp_path / "undisturbed"), "--no-gradebook")
