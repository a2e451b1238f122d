"""How a gradient becomes an update, beyond what torch brings along.

Knows parameters and gradients; which of a model's parameters go where is decided in `training`.
"""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from groundup.distributed import sliced_like, whole

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the odd polynomial that pushes singular values towards 1: of x, of its cube, of its fifth."""


Matrices = Float[Tensor, "rows cols"] | Float[Tensor, "stack rows cols"]


def orthogonalise(matrices: Matrices, num_iterations: int = 5) -> Matrices:
    """Bring all singular values of a matrix near 1 and leave its singular vectors alone.

    An odd polynomial of a matrix is that polynomial of its singular values, so products of
    matrices are all it takes. This one climbs steeply from 0 rather than settling at 1: after
    five rounds, singular values above a five-hundredth of the matrix' length lie between 0.68
    and 1.21.

    Args:
        matrices: One, or a stack of them; not changed. Computed in their own precision, of
            which bfloat16 is enough.
        num_iterations: How often the polynomial is applied.

    Source:
        Jordan et al. 2024, Muon: An optimizer for hidden layers in neural networks,
        https://kellerjordan.github.io/posts/muon/

    """
    a, b, c = COEFFICIENTS
    multiply_add = torch.addmm if matrices.ndim == 2 else torch.baddbmm
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices  # the products x @ x.mT are then the small ones
    # No singular value is longer than the root of the sum of their squares.
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(num_iterations):
        gram = x @ x.mT
        x = multiply_add(x, multiply_add(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


def orthogonalise_each(
    matrices: list[Tensor], stacked: bool, dtype: torch.dtype | None = None
) -> list[Tensor]:
    """Orthogonalise matrices of any shapes.

    Args:
        matrices: Not changed.
        stacked: Whether those of one shape are computed as one stack. A GPU is idle between
            small products, and a stack has fewer; a processor gains nothing.
        dtype: Precision of the products; by default that of the matrices.

    """
    cast = [matrix.to(dtype or matrix.dtype) for matrix in matrices]
    if not stacked:
        results = [orthogonalise(matrix) for matrix in cast]
    else:
        by_shape: dict[torch.Size, list[int]] = {}
        for index, matrix in enumerate(cast):
            by_shape.setdefault(matrix.shape, []).append(index)
        results = list(cast)
        for indices in by_shape.values():
            stack = orthogonalise(torch.stack([cast[index] for index in indices]))
            for index, result in zip(indices, stack, strict=True):
                results[index] = result
    return [result.to(matrix.dtype) for result, matrix in zip(results, matrices, strict=True)]


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal: every direction of a matrix moves as far.

    The gradient of a weight matrix is a sum of a few strong directions and many weak ones.
    Plain momentum follows the strong ones; this update gives the weak ones the same weight.
    For weight matrices only: a table of token vectors is looked up, not multiplied with.

    Args:
        params: Matrices, or groups of them.
        lr: Length of a step, times the root of rows over columns where there are more rows, so
            that a layer's output moves equally far whatever its shape.
        momentum: How much of the average gradient is kept per update.
        weight_decay: How strongly a matrix is pulled towards zero, times `lr`, per update.
        dtype: Precision of the products; by default that of the matrices.

    Raises:
        ValueError: If a parameter is not a matrix.

    Source:
        Jordan et al. 2024, Muon: An optimizer for hidden layers in neural networks,
        https://kellerjordan.github.io/posts/muon/; Liu et al. 2025, Muon is Scalable for LLM
        Training, section 2.2 (weight decay), https://arxiv.org/abs/2502.16982

    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.dtype = dtype
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.ndim != 2:
                    raise ValueError(
                        "Muon must be given matrices, got a parameter of shape "
                        f"{tuple(parameter.shape)}"
                    )

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            averages = [self._momentum(p, group["momentum"]) for p in parameters]
            updates = orthogonalise_each(averages, averages[0].is_cuda, self.dtype)
            for parameter, update in zip(parameters, updates, strict=True):
                rows, cols = parameter.shape
                size = group["lr"] * max(1.0, rows / cols) ** 0.5
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(sliced_like(update, parameter), alpha=-size)

    def _momentum(self, parameter: nn.Parameter, momentum: float) -> Tensor:
        """Average the gradient into what is remembered, and look one step ahead of it."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].lerp_(parameter.grad, 1 - momentum)
        return whole(parameter.grad.lerp(state["momentum"], momentum))


class Together(torch.optim.Optimizer):
    """Several optimizers that are used, and saved, as one.

    Args:
        optimizers: Each with parameters of its own.

    """

    def __init__(self, *optimizers: torch.optim.Optimizer):
        self.optimizers = optimizers
        super().__init__([group for one in optimizers for group in one.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Let the parts see the very groups and averages that are changed, saved and loaded."""
        groups = iter(self.param_groups)
        for optimizer in self.optimizers:
            optimizer.param_groups = [next(groups) for _ in optimizer.param_groups]
            optimizer.state = self.state

    def step(self, closure: None = None) -> None:
        """Let each update its parameters."""
        for optimizer in self.optimizers:
            optimizer.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the averages and settings of another."""
        super().load_state_dict(state_dict)
        self._share()
