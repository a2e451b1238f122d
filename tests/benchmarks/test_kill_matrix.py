"""Which check catches which mistake, in the whole course: the record behind the book's picture.

    classroom matrix

writes it, and runs only exercises that have changed. Here everything runs again. The tests without
a mark hold the record against the assignments in every run.
"""

import pytest
import torch

from classroom.author import kill_matrix
from classroom.course import assignments
from classroom.exercise.answers import load_answers


@pytest.fixture
def root(request):
    return request.config.rootpath


@pytest.fixture
def rows(root):
    return kill_matrix.read(root / kill_matrix.RECORD)


def test_the_record_has_every_mistake_and_every_check_of_the_course(root, rows):
    found = kill_matrix.differences(root, rows)
    assert not found, f"{'; '.join(found)}: run `classroom matrix` and commit what it writes"


def test_the_record_is_of_the_present_checks_and_mistakes(root, rows):
    versions = {
        (row["assignment"], row["exercise"]): row["version"]
        for row in kill_matrix.load(root / kill_matrix.RECORD)["exercises"]
    }
    old = [
        f"{row.number} {row.exercise}"
        for row in rows
        if versions[row.assignment, row.exercise]
        != kill_matrix.version(root / "solutions" / row.assignment, row.exercise)
    ]
    assert old == [], "run `classroom matrix` and commit what it writes"


def test_every_mistake_of_the_record_is_named_and_no_other_beside_it(rows):
    assert [f"{row.number} {name}" for row in rows for name in row.unnamed] == []


def test_no_mistake_of_the_record_gets_past_all_checks(rows):
    passed = [f"{r.number} {name}" for r in rows for name in r.failures if not r.killers(name)]
    assert passed == []


def test_no_check_of_the_record_is_passed_by_all_mistakes(rows):
    passed = [f"{r.number} {c}" for r in rows for i, c in enumerate(r.checks) if not r.caught_by(i)]
    assert passed == []


def test_the_record_says_what_a_run_finds(root, rows):
    """For one mistake of each assignment: the whole matrix takes minutes."""
    for folder in assignments(root / "solutions"):
        mistake = load_answers(folder / "mistakes.py")[0]
        row = next(r for r in rows if (r.assignment, r.exercise) == (folder.name, mistake.exercise))
        report = kill_matrix.run_mistake(folder, mistake, kill_matrix.SEEDS[0])
        for result, count in zip(report.results, row.failures[mistake.name], strict=True):
            if count in (0, len(kill_matrix.SEEDS)):
                assert result.has_failed == (count > 0), (folder.name, mistake.name, result.name)


@pytest.mark.benchmark
def test_every_mistake_against_every_check(root):
    torch.set_num_threads(1)  # the tensors are small: more threads only wait for each other
    kill_matrix.write(root / kill_matrix.RECORD, kill_matrix.measure(root))
    rows = kill_matrix.read(root / kill_matrix.RECORD)
    assert all(row.killers(name) for row in rows for name in row.failures)
