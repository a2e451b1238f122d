"""At least three mistakes, each with what you would tell a student."""

import torch

from classroom.exercise.answers import Correct


# A mistake is a correct cell with a change. `...` stands for the notebook's solution.
class RunningMean(Correct, exercise="running_mean"): ...


class SeesTheFuture(RunningMean):
    """Every row is the mean of all rows; row t may use the rows 0 to t only."""

    def running_mean(x):
        return x.mean(dim=0).expand_as(x)


NeverDivided = RunningMean.but(" / counts[:, None]", "")
"""The rows are added up, but the sum is never divided by their number."""

LeavesItselfOut = RunningMean.but("x.cumsum(dim=0)", "(x.cumsum(dim=0) - x)").but(
    "torch.arange(1, len(x) + 1, dtype=x.dtype)",
    "torch.arange(len(x), dtype=x.dtype).clamp_min(1)",
)
"""Row t is the mean of the rows before it, but must include the row itself."""
