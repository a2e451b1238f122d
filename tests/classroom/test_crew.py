import os
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from classroom import crew
from classroom.crew import called_early, is_something_new, shared
from classroom.pool import side_by_side

NAME = "07_averages"


# What a job of 0 gives is the number of the process that does it: each leads a group of its own.
TELLS = partial(nullcontext, os.getpgid)


@pytest.fixture
def submitted(tmp_path):
    for student in ("ada", "zoe"):
        (tmp_path / "submitted" / student / NAME).mkdir(parents=True)
    return tmp_path / "submitted"


def test_calling_early_imports_no_torch():
    look = "import sys, classroom.crew; assert not {'torch', 'numpy', 'nbformat'} & {*sys.modules}"
    assert subprocess.run([sys.executable, "-c", look]).returncode == 0


def test_those_who_were_called_do_the_jobs_and_end_with_them(sealed):
    with called_early(2, allow_weaker=False) as called:
        numbers = {process.number for process in called.processes}
        assert len(numbers) == 2
        done = side_by_side(TELLS, [0] * 5, 2, called.descriptors, called.processes)
        found = [number for _, number in done]
        assert len(found) == 5 and set(found) <= numbers
        assert not any(Path(f"/proc/{number}").exists() for number in numbers)


def test_those_who_were_called_for_nothing_end(sealed):
    with called_early(2, allow_weaker=False) as called:
        numbers = [process.number for process in called.processes]
        assert all(Path(f"/proc/{number}").exists() for number in numbers)
    assert not any(Path(f"/proc/{number}").exists() for number in numbers)


def test_one_alone_starts_a_sandbox_of_its_own(monkeypatch):
    monkeypatch.setattr(crew, "Zygote", None)
    with shared(1, allow_weaker=False) as alone:
        assert alone.door is None and alone.descriptors == () and alone.processes == ()


def test_something_is_new_if_nobody_was_graded_or_somebody_came_later(submitted, tmp_path):
    verdicts = tmp_path / "verdicts.jsonl"
    assert is_something_new(submitted, NAME, verdicts)
    assert not is_something_new(submitted, "08_more", verdicts)
    verdicts.touch()
    last = max((submitted / s / NAME).lstat().st_ctime for s in ("ada", "zoe"))
    os.utime(verdicts, (last + 1, last + 1))
    assert not is_something_new(submitted, NAME, verdicts)
    os.utime(verdicts, (last - 1, last - 1))
    assert is_something_new(submitted, NAME, verdicts)


def test_nothing_is_new_where_nothing_was_handed_in(tmp_path):
    assert not is_something_new(tmp_path / "submitted", NAME, tmp_path / "verdicts.jsonl")
