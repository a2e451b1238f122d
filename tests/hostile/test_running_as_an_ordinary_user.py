"""The same sandbox for who is not root: the attacks on the system again, by an ordinary user.

What attacks nothing but Python meets the same Python whoever grades it, and is left out here.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from attacks_that_run import RUNNING

from classroom.sandbox import layers as sandbox

ROOT = Path(__file__).parents[2]
TEST = "test_running.py::test_an_attack_earns_nothing_and_costs_nothing_else"
SYSTEM = re.compile(r"\b(os|subprocess|socket|ctypes|signal|threading|open|atexit)\b|^[!%]", re.M)
# These only wait for the same limits on time as others that are here.
WAITING = ("a loop", "a sleep", "an answer that is slow", "output", "pictures", "it stops itself")

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root, who can become somebody else"
)


def reachable(places):
    """Return bubblewrap's options for a system in which every user can reach these places.

    Only for that: root's own files, Python among them, often lie where nobody else may look.
    """
    options = ["bwrap", "--die-with-parent", "--bind", "/proc", "/proc", "--dev", "/dev"]
    for folder in ("/tmp", "/var/tmp"):
        options += (
            ["--perms", "0755", "--dir", str(Path(folder).parent)] if folder != "/tmp" else []
        )
        options += ["--perms", "1777", "--tmpfs", folder]
    for place in places:
        for parent in [*Path(place).parents][-2::-1]:
            if not any(str(parent) == system for system in ("/tmp", "/var", "/usr")):
                options += ["--perms", "0755", "--dir", str(parent)]
        options += ["--ro-bind", place, place]
    return options


@pytest.fixture
def as_somebody_else(sealed):
    """Run a module of Python as an ordinary user, from the root of the course."""

    def run(*arguments, rights=("--bounding-set=-all",)):
        become = [f"--reuid={sandbox.NOBODY}", f"--regid={sandbox.NOBODY}", "--clear-groups"]
        return subprocess.run(
            [
                *reachable([*sandbox.readable(), *sandbox.for_everybody(str(ROOT))]),
                *("--chdir", str(ROOT), "--", "setpriv", *become, *rights, "--"),
                *(sys.executable, "-m", *arguments),
            ],
            env={
                "PATH": os.environ["PATH"],
                "HOME": "/tmp",
                "OMP_NUM_THREADS": "1",
                "PYTHONDONTWRITEBYTECODE": "1",
                "CI": "true",
            },
            capture_output=True,
            text=True,
            timeout=600,
        )

    return run


def test_attacks_on_an_ordinary_user_earn_nothing_either(as_somebody_else):
    names = [
        name
        for name, case in RUNNING.items()
        if not name.startswith(WAITING) and any(map(SYSTEM.search, case.cells))
    ]
    assert len(names) >= 40
    tests = [f"{Path(__file__).with_name(TEST)}[{name}]" for name in names]
    done = as_somebody_else("pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *tests)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = done.stdout.strip().splitlines()[-1]
    assert int(passed.split()[0]) == len(names), passed


def test_a_user_who_can_never_gain_a_right_can_seal_in_as_well(as_somebody_else):
    """As in the container of compose.yaml."""
    done = as_somebody_else("classroom", "doctor", rights=("--bounding-set=-all", "--no-new-privs"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("✓") >= 4
