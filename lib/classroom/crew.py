"""What grades on this machine: processes, and the sandbox that they share.

Importing torch takes each of them seconds, and reading a class takes the one who starts them
seconds, too. So they are started first, as soon as it is likely that there is something to grade.
Nothing here imports torch.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from classroom.pool import Process
from classroom.zygote import Zygote

_GRADES = "classroom.grade"


@dataclass(frozen=True)
class Crew:
    """Processes that wait to be told what to grade.

    Attributes:
        door: To the sandbox that they share, see `Zygote`; None if each is to start its own.
        processes: They end with whoever uses them, see `pool.side_by_side`.

    """

    door: int | None = None
    processes: tuple[Process, ...] = ()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Files that are open in all of them."""
        return () if self.door is None else (self.door,)


@contextlib.contextmanager
def shared(workers: int, allow_weaker: bool) -> Iterator[Crew]:
    """Start the sandbox of several, without waiting for it, and none of them."""
    if workers == 1:
        yield Crew()
        return
    with Zygote(allow_weaker).starting() as door:
        yield Crew(door)


@contextlib.contextmanager
def called_early(workers: int, allow_weaker: bool) -> Iterator[Crew]:
    """Start a sandbox and so many processes, without waiting for any of them.

    Raises:
        TooWeak: If no submission can be sealed in here, and that may not be.

    """
    with Zygote(allow_weaker).starting() as door:
        processes = tuple(Process([door], _GRADES) for _ in range(workers))
        try:
            yield Crew(door, processes)
        finally:
            for process in processes:
                process.end()


def is_something_new(submitted: Path, assignment: str, verdicts: Path) -> bool:
    """Guess whether something has been handed in since somebody was graded last.

    A guess, because it costs time if it is wrong, and nothing else.
    """
    try:
        last = verdicts.stat().st_mtime
    except OSError:
        last = 0.0
    return any(
        found.is_dir() and found.lstat().st_ctime > last
        for found in submitted.glob(f"*/{assignment}")
    )
