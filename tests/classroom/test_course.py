"""What ties the course together, and what starts without torch."""

import subprocess
import sys

import pytest

from classroom.course import assignments


@pytest.mark.parametrize(
    "name",
    [
        "classroom.course",
        "classroom.limits",
        "classroom.calls.files",
        "classroom.grader.submission",
        "classroom.grader.collect",
        "classroom.sandbox.launcher",
        "classroom.exercise.answers",
        "classroom.grader.class_report",
        "classroom.grader.verdicts",
        "classroom.student.mine",
    ],
)
def test_what_reads_files_or_starts_a_sandbox_starts_without_torch(name):
    code = f"import sys, {name}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_assignments_are_the_numbered_folders_with_checks_in_order(tmp_path):
    for name in ("10_last", "02_second", "notes", "03_without_checks"):
        (tmp_path / name).mkdir()
        if name != "03_without_checks":
            (tmp_path / name / "checks.py").touch()
    assert [folder.name for folder in assignments(tmp_path)] == ["02_second", "10_last"]
