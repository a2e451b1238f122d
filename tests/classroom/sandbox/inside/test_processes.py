import os
import signal
import time
from pathlib import Path

import pytest

from classroom.sandbox.control_groups import cpu_seconds_below
from classroom.sandbox.inside import processes


@pytest.mark.parametrize(
    ("lists", "states", "expected"),
    [
        ([{1, 5}, {1, 6}, {1, 6}, {1, 6}], {5: "X", 6: "R"}, [6]),
        ([{1, 5}, {1, 5}, {1, 5, 6}, {1, 5, 6}, {1, 5, 6}], {5: "R", 6: "R"}, [5, 6]),
    ],
    ids=["it has ended before its state is asked for", "its fork ends after it was stopped"],
)
def test_a_process_that_forks_while_it_is_looked_for_hides_nobody(
    monkeypatch, lists, states, expected
):
    made = iter(lists)
    stopped = []

    def stop(process, number):
        stopped.append((process, number))
        states[process] = "T"

    monkeypatch.setattr(processes, "listed", lambda: next(made))
    monkeypatch.setattr(processes, "_state", states.get)
    monkeypatch.setattr(processes.os, "kill", stop)
    processes.send_to_all_but({1}, signal.SIGSTOP, "ZXT")
    assert stopped == [(process, signal.SIGSTOP) for process in expected]


def test_what_was_ended_is_gone_before_anything_else_starts(monkeypatch):
    """Linux counts an ended process against the limit until its parent has waited for it."""
    receive, send = os.pipe()
    own = processes.fork(signal.pause)

    def be_slow_to_take_note():
        child = processes.fork(signal.pause)
        os.write(send, str(child).encode())
        time.sleep(0.3)
        os.waitpid(child, 0)

    other = processes.fork(be_slow_to_take_note)
    started = {own, int(os.read(receive, 20))}

    def there():
        return {process for process in started if Path(f"/proc/{process}").exists()}

    monkeypatch.setattr(processes, "listed", there)
    processes.end_all_but(set())
    assert not there()
    os.waitpid(other, 0)


@pytest.mark.parametrize("look", [processes.weigh_as_one, lambda: cpu_seconds_below(os.getpid())])
def test_a_process_that_ends_while_it_is_looked_at_ends_nobody_else(monkeypatch, look):
    """It was there when its folder was found, and is gone by the time that the folder is read."""
    list_folder = os.scandir

    def gone(folder="."):
        if str(folder).endswith("/task"):
            raise FileNotFoundError(folder)
        return list_folder(folder)

    monkeypatch.setattr(os, "scandir", gone)
    look()
