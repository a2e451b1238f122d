"""Muon, written out, and several optimizers combined into one.

`loop.optimizers_for` decides which of a model's parameters each optimizer updates.
"""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from groundup.training.distributed import sliced_like, whole

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of x, x**3 and x**5, in the odd polynomial that pushes singular values towards 1."""


Matrices = Float[Tensor, "rows cols"] | Float[Tensor, "stack rows cols"]


def orthogonalise(matrices: Matrices, num_iterations: int = 5) -> Matrices:
    """Bring the singular values of a matrix close to 1 and keep its singular vectors.

    An odd polynomial of a matrix applies that polynomial to its singular values, so matrix
    products suffice (a Newton-Schulz iteration). This polynomial is steep at 0 and does not
    converge to 1: after five iterations, singular values above 1/500 of the matrix's Frobenius
    norm lie between 0.68 and 1.21. A singular value of 0 stays 0.

    Args:
        matrices: One matrix or a stack; not changed. Computed in their own precision; bfloat16
            is enough.
        num_iterations: How often the polynomial is applied.

    Source:
        Jordan et al. 2024, Muon: An optimizer for hidden layers in neural networks,
        https://kellerjordan.github.io/posts/muon/

    """
    a, b, c = COEFFICIENTS
    multiply_add = torch.addmm if matrices.ndim == 2 else torch.baddbmm
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices  # makes x @ x.mT the smaller product
    # The Frobenius norm bounds every singular value.
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
        stacked: Whether to stack matrices of equal shape. On a GPU fewer, larger products are
            faster; a CPU gains nothing.
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
    """Nesterov momentum with orthogonalised updates: all singular values of an update are near 1.

    The gradient of a weight matrix is dominated by a few directions with large singular values.
    Plain momentum follows those; this update gives the small ones the same weight. For weight
    matrices only: an embedding matrix is indexed, not multiplied with.

    Args:
        params: Matrices, or parameter groups of them.
        lr: Learning rate. It is scaled by the square root of rows / columns if there are more
            rows, so that a layer's output changes by the same amount whatever its shape.
        momentum: Decay rate per update of the running average of the gradient.
        weight_decay: Weight decay per update, before multiplication by `lr`.
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
        """Update the running average of the gradient, and return its Nesterov look-ahead."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].lerp_(parameter.grad, 1 - momentum)
        return whole(parameter.grad.lerp(state["momentum"], momentum))


class Together(torch.optim.Optimizer):
    """Several optimizers, stepped, saved and loaded as one.

    Args:
        optimizers: No two have a parameter in common.

    """

    def __init__(self, *optimizers: torch.optim.Optimizer):
        self.optimizers = optimizers
        super().__init__([group for one in optimizers for group in one.param_groups], {})
        self._link_state()

    def _link_state(self) -> None:
        """Make the optimizers use the parameter groups and the state of the combined one."""
        groups = iter(self.param_groups)
        for optimizer in self.optimizers:
            optimizer.param_groups = [next(groups) for _ in optimizer.param_groups]
            optimizer.state = self.state

    def step(self, closure: None = None) -> None:
        """Step every optimizer."""
        for optimizer in self.optimizers:
            optimizer.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state and the settings of all optimizers."""
        super().load_state_dict(state_dict)
        self._link_state()
