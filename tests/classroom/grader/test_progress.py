import io
import time

import pytest

from classroom.grader import progress
from classroom.grader.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands until it is set."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_from_time_to_time(clock):
    log = io.StringIO()
    with Progress("classroom grade", "submission", log) as tell:
        tell(40, 1000)
        for seconds, done in ((10, 45), (30, 60), (45, 80), (60, 100)):
            clock[0] = 100.0 + seconds
            tell(done, 1000)
    assert log.getvalue().splitlines() == [
        "classroom grade: 60 of 1000 submissions, 40 a minute, 23 min left",
        "classroom grade: 100 of 1000 submissions, 60 a minute, 15 min left",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (61, "1 min"), (7300, "2 h 1 min")]
)
def test_time_is_said_in_words(seconds, text):
    assert progress._duration(seconds) == text


def test_a_short_run_leaves_no_line(clock):
    log = io.StringIO()
    with Progress("classroom grade", "submission", log) as tell:
        tell(0, 2)
        tell(2, 2)
    assert log.getvalue() == ""


def test_a_terminal_gets_a_bar_with_rate_and_time_left():
    """What was done before says nothing about the rate."""
    terminal = Terminal()
    with Progress("classroom grade", "submission", terminal) as tell:
        tell(500, 1000)
        time.sleep(0.3)
        tell(501, 1000)
    shown = terminal.getvalue()
    assert "501/1000" in shown and "submissions/s" in shown and "<" in shown
    rate = float(shown.rpartition(", ")[2].split()[0])
    assert 0.5 < rate < 4
