"""Small runs of any model, for the pages below chapter 6; dates take a while to import."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def descend(
    model: nn.Module,
    loss_of_a_batch: Callable[[nn.Module], Tensor],
    num_steps: int,
    peak: float,
    warm_up: int = 30,
) -> list[float]:
    """Minimise a loss; the learning rate rises along a line and falls along another."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, betas=(0.9, 0.98), fused=True)
    losses = []
    for step in range(num_steps):
        for group in optimizer.param_groups:
            group["lr"] = peak * min(1, (step + 1) / warm_up) * (1 - 0.95 * step / num_steps)
        loss = loss_of_a_batch(model)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    return losses
