"""At least three correct answers that look different; none of them may lose a point."""

import torch

from classroom.exercise.answers import Variant


class OneAfterTheOther(Variant, exercise="running_mean"):
    """A loop that takes a mean each time."""

    def running_mean(x):
        return torch.stack([x[: position + 1].mean(0) for position in range(len(x))])


class AsAttention(Variant, exercise="running_mean"):
    """Equal weights for all rows up to t, times the rows."""

    def running_mean(x):
        seen = torch.ones(len(x), len(x), dtype=x.dtype).tril()
        return seen / seen.sum(dim=1, keepdim=True) @ x


class StepByStep(Variant, exercise="running_mean"):
    """Each mean computed from the one before."""

    def running_mean(x):
        means = [x[0]]
        for position in range(1, len(x)):
            means.append(means[-1] + (x[position] - means[-1]) / (position + 1))
        return torch.stack(means)
