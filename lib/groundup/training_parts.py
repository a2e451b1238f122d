"""Training by an update, a clipping and a schedule that may be somebody else's.

    optimizer, config, used = train_by(functions, optimizers_for(model, config), config)

A model has parts (`assembled`), and so has its training: `adamw_step` is used where AdamW is at
work, `clip_gradients` always, `learning_rate` where the schedule is a cosine.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from groundup.optimizers import Together
from groundup.training import TrainingConfig, warmup_cosine

Update = Callable[..., tuple[Tensor, Tensor, Tensor]]


def learning_rate(
    step: int, peak: float, warmup_steps: int, total_steps: int, final: float
) -> float:
    """Give the learning rate of an update, counted from 0, as `warmup_cosine` does."""
    return warmup_cosine(
        step, peak=peak, warmup_steps=warmup_steps, total_steps=total_steps, final=final
    )


def clip_gradients(
    gradients: list[Tensor | None], max_norm: float
) -> tuple[list[Tensor | None], Float[Tensor, ""]]:
    """Give gradients that are together no longer than `max_norm`, and how long they were.

    Args:
        gradients: One for each parameter; None where there is none, and there it stays.
        max_norm: The greatest length of all entries of all gradients together.

    Raises:
        ValueError: If a gradient is not finite.

    Source:
        Pascanu et al. 2013, On the difficulty of training recurrent neural networks, algorithm 1,
        https://arxiv.org/abs/1211.5063

    """
    norm = nn.utils.get_total_norm([gradient for gradient in gradients if gradient is not None])
    if not norm.isfinite():
        raise ValueError(f"gradients must be finite, got a norm of {norm}")
    factor = (max_norm / norm).clamp(max=1.0)
    return [None if gradient is None else factor * gradient for gradient in gradients], norm


def adamw_step(
    parameter: Float[Tensor, "*shape"],
    gradient: Float[Tensor, "*shape"],
    mean: Float[Tensor, "*shape"],
    mean_square: Float[Tensor, "*shape"],
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """Give a parameter and the averages of its gradient and its square after one update.

    Args:
        parameter: As it came.
        gradient: Of the loss.
        mean: Of the gradients before, not corrected for its start at 0; likewise below.
        mean_square: Of their squares.
        step: Which update, counted from 1.
        lr: The learning rate; the pull to 0 is `lr * weight_decay`.
        beta1: Share of the past in `mean`.
        beta2: Share of the past in `mean_square`.
        eps: Added to the root.
        weight_decay: How hard the parameter is pulled to 0.

    Source:
        Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization, algorithm 2,
        https://arxiv.org/abs/1711.05101

    """
    mean = mean.lerp(gradient, 1 - beta1)
    mean_square = mean_square.lerp(gradient.square(), 1 - beta2)
    size = (mean_square / (1 - beta2**step)).sqrt() + eps
    moved = parameter * (1 - lr * weight_decay) - lr / (1 - beta1**step) * mean / size
    return moved, mean, mean_square


_OURS = {f.__name__: f for f in (adamw_step, clip_gradients, learning_rate)}


class AdamW(torch.optim.Optimizer):
    """AdamW, a parameter after the other, by a function that makes one update of one parameter.

    It remembers what `torch.optim.AdamW` does under the same names, so that a run may go on with
    either.

    Args:
        groups: Parameters with their settings, as `torch.optim.AdamW` holds them.
        update: As `adamw_step`.

    """

    def __init__(self, groups: list[dict[str, Any]], update: Update):
        self._update = update
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            settings = (group["lr"], beta1, beta2, group["eps"], group["weight_decay"])
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"] = torch.zeros_like(parameter)
                    state["exp_avg_sq"] = torch.zeros_like(parameter)
                state["step"] += 1
                averages = state["exp_avg"], state["exp_avg_sq"]
                number = int(state["step"])
                # A copy, so that what somebody's function does in place shows in no weight.
                new, state["exp_avg"], state["exp_avg_sq"] = self._update(
                    parameter.clone(), parameter.grad, *averages, number, *settings
                )
                parameter.copy_(new)


def train_by(
    things: Mapping[str, Any],
    optimizer: torch.optim.Optimizer,
    config: TrainingConfig,
    start_step: int = 0,
) -> tuple[torch.optim.Optimizer, TrainingConfig, tuple[str, ...]]:
    """Let a run use what is somebody's own.

    Args:
        things: Functions by name. Where there is none, or it is the one from here, a run does as
            without it; other names do not count.
        optimizer: As `training.optimizers_for` makes it; what it remembers is taken over.
        config: How to train.
        start_step: Updates made before.

    Returns:
        The optimizer and the settings for `training.train`, and the names of what is used.

    """
    own = {name: things[name] for name, ours in _OURS.items() if things.get(name, ours) is not ours}
    used = []
    if update := own.get("adamw_step"):
        before = optimizer.state_dict()
        optimizer = _updated_by(update, optimizer)
        optimizer.load_state_dict(before)
        used.append("adamw_step")
    if clip := own.get("clip_gradients"):
        longest = config.max_gradient_norm
        config = replace(config, max_gradient_norm=float("inf"))
        optimizer.register_step_pre_hook(lambda one, *_: _clip(clip, one, longest))
        used.append("clip_gradients")
    if (rate := own.get("learning_rate")) and _is_cosine(config):
        steps = iter(range(start_step, config.steps))
        optimizer.register_step_pre_hook(lambda one, *_: _set_rate(rate, one, config, next(steps)))
        used.append("learning_rate")
    return optimizer, config, tuple(used)


def _updated_by(update: Update, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    if isinstance(optimizer, torch.optim.AdamW):
        return AdamW(optimizer.param_groups, update)
    if isinstance(optimizer, Together):
        return Together(*(_updated_by(update, one) for one in optimizer.optimizers))
    return optimizer


def _clip(clip: Callable[..., Any], optimizer: torch.optim.Optimizer, longest: float) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    with torch.no_grad():
        gradients, _ = clip([p.grad for p in parameters], longest)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


def _is_cosine(config: TrainingConfig) -> bool:
    # With fewer updates there is no way down, and what a rule for it says is anybody's guess.
    return config.schedule == "cosine" and config.steps >= config.warmup_steps + 2


def _set_rate(
    rate: Callable[..., float],
    optimizer: torch.optim.Optimizer,
    config: TrainingConfig,
    step: int,
) -> None:
    share = rate(step, 1.0, config.warmup_steps, config.steps, config.final_learning_rate)
    for group in optimizer.param_groups:
        group["lr"] = group.get("peak", config.learning_rate) * share
