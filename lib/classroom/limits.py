"""What code from a student may use, in a notebook and where grades count."""

from dataclasses import dataclass

SECONDS_PER_EXERCISE = 10.0
"""CPU time of all calls that the checks of one exercise make."""
WALL_PER_CPU = 6.0
"""Wall time of an exercise, in multiples of its CPU time: a busy machine makes it wait."""
_MAX_OUTPUT_BYTES = 2**21


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one submission may use."""

    seconds_per_cell: float = 60.0
    """Wall time of a cell; then it is interrupted."""

    seconds_per_exercise: float = SECONDS_PER_EXERCISE
    """CPU time of all calls that the checks of one exercise make; see `WALL_PER_CPU`."""

    seconds_per_submission: float = 300.0
    """Wall time of the whole submission."""

    memory_bytes: int = 2 * 2**30
    """Memory of all its processes together, beyond what Python and torch take."""

    processes: int = 64
    """Processes and threads at a time."""

    file_bytes: int = 64 * 2**20
    """Size of a file, and of all files in each of its two private folders."""

    output_bytes: int = 2**20
    """What each cell may print and plot."""

    output_bytes_together: int = 2**23
    """What all cells together may print and plot."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.output_bytes > _MAX_OUTPUT_BYTES:
            raise ValueError(
                f"output_bytes must be at most {_MAX_OUTPUT_BYTES}, got {self.output_bytes}"
            )
