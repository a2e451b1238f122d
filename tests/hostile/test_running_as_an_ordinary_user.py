"""The same sandbox for who is not root: some of the attacks again, graded by an ordinary user."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from classroom import sandbox

ROOT = Path(__file__).parents[2]
SOME = (
    "NaN or forged or (reply and gigabytes) or parent or heed or (fork and bomb) or many or disk "
    "or written or network or calls or root or SIGSEGV or (loop and signals)"
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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_attacks_on_an_ordinary_user_earn_nothing_either(zygote):
    become = [f"--reuid={sandbox.NOBODY}", f"--regid={sandbox.NOBODY}", "--clear-groups"]
    tests = str(Path(__file__).with_name("test_running.py"))
    done = subprocess.run(
        [
            *reachable([*sandbox.readable(), *sandbox.for_everybody(str(ROOT))]),
            *("--chdir", str(ROOT), "--", "setpriv", *become, "--bounding-set=-all", "--"),
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests, "-k", SOME),
        ],
        env={
            "PATH": os.environ["PATH"],
            "HOME": "/tmp",
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "CLASSROOM_SANDBOX": "required",
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = done.stdout.strip().splitlines()[-1]
    assert int(passed.split()[0]) >= 15, passed
