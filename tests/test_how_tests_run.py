"""What is missing here is left out and told, and several processes make a thing once."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from jaxtyping import TypeCheckError

from groundup.core.attention import dot_scores

TESTS = """
import pytest

def test_of_nothing_special(): pass

@pytest.mark.browser
def test_marked(): raise AssertionError("it ran")

def test_that_takes_a_browser(browser): raise AssertionError("it ran")

def test_that_is_sealed(sealed): raise AssertionError("it ran")

@pytest.mark.skip("needs root")
def test_of_another_need(): pass
"""
SENTENCE = (
    "4 tests were left out: 2 need Chromium (apt-get install chromium), "
    "1 needs a sandbox (apt-get install bubblewrap), 1 needs root."
)


@pytest.fixture
def bare_machine(tmp_path):
    """Run these tests, with the conftest.py of all, where no program can be found."""
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = browser\n    sandbox\n    slow\n")

    def run(*options, ci=""):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
        env = {name: x for name, x in os.environ.items() if not name.startswith("PYTEST_")}
        env |= {"PATH": str(tmp_path), "CI": ci}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [(), ("-q",), ("-qq",), ("-n", "2"), ("-p", "no:xdist")], ids=str
)
def test_what_is_missing_is_left_out_and_told_before_the_last_line(bare_machine, options):
    done = bare_machine(*options)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, told, last = ["", *done.stdout.splitlines(), *([""] if "-qq" in options else [])]
    assert told == SENTENCE
    assert "1 passed, 4 skipped" in last or "-qq" in options


def test_in_continuous_integration_it_is_a_failure(bare_machine):
    done = bare_machine("-q", ci="true")
    assert done.returncode == 1
    assert "it ran" not in done.stdout
    assert done.stdout.count("Failed: needs Chromium (apt-get install chromium)") == 2
    assert done.stdout.count("Failed: needs a sandbox (apt-get install bubblewrap)") == 1
    told, last = done.stdout.splitlines()[-2:]
    assert told == "1 test was left out: 1 needs root."
    assert "1 passed, 1 skipped" in last and "3 errors" in last, done.stdout


def test_where_nothing_is_missing_nothing_is_told(bare_machine):
    done = bare_machine("-q", "-k", "nothing_special")
    assert done.returncode == 0
    assert "left out" not in done.stdout


def test_a_part_that_is_there_but_does_not_work_is_missing(bare_machine, tmp_path):
    (tmp_path / "bwrap").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    done = bare_machine("-q", "-k", "sealed")
    assert "1 needs a sandbox (classroom doctor says what keeps it off)." in done.stdout


@pytest.mark.slow
def test_several_processes_make_a_thing_once(bare_machine, tmp_path):
    test = "def test(once):\n    once('thing', lambda made: (made / 'new').touch(exist_ok=False))"
    for name in ("test_a.py", "test_b.py"):
        (tmp_path / name).write_text(test)
    (tmp_path / "test_some.py").unlink()
    for options in (["-n2", "--dist=each"], ["-n0"]):
        done = bare_machine(f"--basetemp={tmp_path / 'made'}", *options)
        assert done.returncode == 0, done.stdout
        assert len(list((tmp_path / "made").rglob("thing"))) == 1


def test_who_waits_for_the_book_comes_when_it_is_built(bare_machine, tmp_path):
    site = "import pytest\n@pytest.fixture\ndef site(): pass\n"
    (tmp_path / "test_some.py").write_text("def test_short(): pass")
    (tmp_path / "test_some_b.py").write_text(
        f"{site}def test_one(site): pass\ndef test_two(): pass"
    )
    (tmp_path / "test_some_c.py").write_text(f"{site}def test_other(site): pass")
    (tmp_path / "test_some_d.py").write_text(f"{site}@pytest.mark.slow\ndef test_long(): pass")
    done = bare_machine("-v", "-n1", "--dist=loadfile", "--no-loadscope-reorder")
    found = re.findall(r"PASSED .*::(\w+)", done.stdout)
    assert found == ["test_one", "test_two", "test_long", "test_other", "test_short"], done.stdout


@pytest.mark.slow
def test_settings_for_several_processes_are_no_mistake_where_there_is_one():
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "--collect-only", "-q", __file__]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stdout + done.stderr


def test_shapes_are_checked_in_the_first_calls_of_each_test():
    refused_by = []
    for _ in range(600):
        with pytest.raises((TypeCheckError, RuntimeError)) as refused:
            dot_scores(torch.zeros(2, 3), torch.zeros(5, 4))
        refused_by.append(refused.type)
    assert refused_by == [TypeCheckError] * 500 + [RuntimeError] * 100
