"""Shows the progress of a long command: a bar in a terminal, else a line from time to time."""

import sys
import time
from types import TracebackType
from typing import TextIO

from tqdm import tqdm


class Progress:
    """A bar with the rate and the time left, a context manager that is called with each step.

    Where there is no terminal, such as in the log of a job, there is a line every half minute.

    Args:
        command: Begins each line.
        unit: What is counted, in the singular.
        stream: Where it is shown, the standard error by default.
        seconds_between_lines: Where it is no terminal.

    """

    def __init__(
        self,
        command: str,
        unit: str,
        stream: TextIO | None = None,
        seconds_between_lines: float = 30.0,
    ):
        self._stream = stream or sys.stderr
        self._command, self._unit = command, unit
        self._seconds_between_lines = seconds_between_lines
        self._bar: tqdm | None = None
        self._first = self._last_line = 0.0
        self._num_before = 0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, done: int, total: int) -> None:
        """Show how many are done.

        Args:
            done: At the first call, what was done before: it does not count for the rate.
            total: Of how many.

        """
        now = time.monotonic()
        if self._first == 0.0:
            self._first = self._last_line = now
            self._num_before = done
            if self._stream.isatty():
                self._bar = tqdm(
                    initial=done, total=total, unit=f" {self._unit}s", file=self._stream
                )
        elif self._bar is not None:
            self._bar.update(done - self._bar.n)
        elif now - self._last_line >= self._seconds_between_lines:
            self._last_line = now
            rate = (done - self._num_before) / (now - self._first)
            print(
                f"{self._command}: {self._line(done, total, rate)}", file=self._stream, flush=True
            )

    def _line(self, done: int, total: int, rate: float) -> str:
        line = f"{done} of {total} {self._unit}s"
        if not rate:
            return line
        return f"{line}, {60 * rate:.0f} a minute, {_duration((total - done) / rate)} left"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min" if minutes else f"{seconds} s"
