"""Training with a student's own optimizer step, gradient clipping or learning-rate schedule.

    optimizer, config, used = train_by(functions, optimizers_for(model, config), config)

Like a model (`assembled`), training has parts that can be replaced: `adamw_step` updates the
parameters that AdamW would update, `clip_gradients` is used in every run, `learning_rate` if the
schedule is a cosine, `noam` if it is `inverse_root`; `loss_by` takes the loss from `smoothed_loss`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from groundup.data.batches import IGNORED
from groundup.own_parts import parts
from groundup.training.loop import Loss, TrainingConfig, warmup_cosine
from groundup.training.optimizers import Together

Update = Callable[..., tuple[Tensor, Tensor, Tensor]]


def learning_rate(
    step: int, peak: float, warmup_steps: int, total_steps: int, final: float
) -> float:
    """Return the learning rate of an update, counted from 0, as `warmup_cosine` does."""
    return warmup_cosine(
        step, peak=peak, warmup_steps=warmup_steps, total_steps=total_steps, final=final
    )


def clip_gradients(
    gradients: list[Tensor | None], max_norm: float
) -> tuple[list[Tensor | None], Float[Tensor, ""]]:
    """Scale gradients to a joint norm of at most `max_norm`; return them and their original norm.

    Args:
        gradients: One for each parameter, or None, which stays None.
        max_norm: Largest norm of all entries of all gradients together.

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
    """Return a parameter and the averages of its gradient and its square after one update.

    Args:
        parameter: Before the update.
        gradient: Of the loss with respect to it.
        mean: Running average of the gradients, without bias correction.
        mean_square: Running average of their squares, likewise.
        step: Number of the update, counted from 1.
        lr: The learning rate.
        beta1: Weight of the past in `mean`.
        beta2: Weight of the past in `mean_square`.
        eps: Added to the root.
        weight_decay: The parameter shrinks by the fraction `lr * weight_decay`.

    Source:
        Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization, algorithm 2,
        https://arxiv.org/abs/1711.05101

    """
    mean = mean.lerp(gradient, 1 - beta1)
    mean_square = mean_square.lerp(gradient.square(), 1 - beta2)
    size = (mean_square / (1 - beta2**step)).sqrt() + eps
    updated = parameter * (1 - lr * weight_decay) - lr / (1 - beta1**step) * mean / size
    return updated, mean, mean_square


_OURS = {f.__name__: f for f in (adamw_step, clip_gradients, learning_rate, parts.noam)}


class AdamW(torch.optim.Optimizer):
    """AdamW that calls a function for the update of each parameter.

    Its state has the same names as that of `torch.optim.AdamW`, so a run can be resumed with
    either.

    Args:
        groups: Parameters with their settings, as in `torch.optim.AdamW.param_groups`.
        update: Has the arguments and results of `adamw_step`.

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
                    averages = (torch.zeros_like(parameter) for _ in range(2))
                    state["exp_avg"], state["exp_avg_sq"] = averages
                    state["step"] = torch.tensor(0.0)
                state["step"] += 1
                averages = state["exp_avg"], state["exp_avg_sq"]
                number = int(state["step"])
                # A copy, so that a function that works in place does not change the weights.
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
    """Make a training run use a student's own functions.

    Args:
        things: Functions by name. One that is missing, or is this module's own, changes nothing;
            other names are ignored.
        optimizer: As `training.loop.optimizers_for` makes it; its state is kept.
        config: How to train.
        start_step: Number of updates made before.

    Returns:
        The optimizer and the settings for `training.loop.train`, and the names of the functions
        that are used.

    """
    own = {name: things[name] for name, ours in _OURS.items() if things.get(name, ours) is not ours}
    # With fewer updates the schedule has no decay, and the exercise does not define its values.
    if config.schedule != "cosine" or config.steps < config.warmup_steps + 2:
        own.pop("learning_rate", None)
    if config.schedule != "inverse_root" or config.warmup_steps < 1:
        own.pop("noam", None)
    if update := own.get("adamw_step"):
        before = optimizer.state_dict()
        optimizer = _updated_by(update, optimizer)
        optimizer.load_state_dict(before)
    if clip := own.get("clip_gradients"):
        max_norm = config.max_gradient_norm
        config = replace(config, max_gradient_norm=float("inf"))
        optimizer.register_step_pre_hook(lambda one, *_: _clip(clip, one, max_norm))
    rate = own.get("learning_rate")
    if noam := own.get("noam"):
        peak = parts.noam(config.warmup_steps - 1, 1, config.warmup_steps)
        rate = lambda step, _, warmup_steps, *__: noam(step, 1, warmup_steps) / peak  # noqa: E731
    if rate:
        steps = iter(range(start_step, config.steps))
        optimizer.register_step_pre_hook(lambda one, *_: _set_rate(rate, one, config, next(steps)))
    return optimizer, config, tuple(own)


def loss_by(things: Mapping[str, Any]) -> Loss | None:
    """Make the loss of a training run from a student's `smoothed_loss`; None if there is none."""
    smoothed_loss = things.get("smoothed_loss", parts.smoothed_loss)
    if smoothed_loss is parts.smoothed_loss:
        return None

    def loss(logits: Tensor, targets: Tensor, smoothing: float, num_targets: Tensor) -> Tensor:
        is_real = targets != IGNORED
        mean = smoothed_loss(logits[is_real][None], targets[is_real][None], smoothing, -1)
        return mean * is_real.sum() / num_targets

    return loss


def _updated_by(update: Update, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    if isinstance(optimizer, torch.optim.AdamW):
        return AdamW(optimizer.param_groups, update)
    if isinstance(optimizer, Together):
        return Together(*(_updated_by(update, one) for one in optimizer.optimizers))
    return optimizer


def _clip(clip: Callable[..., Any], optimizer: torch.optim.Optimizer, max_norm: float) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    with torch.no_grad():
        gradients, _ = clip([p.grad for p in parameters], max_norm)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


def _set_rate(
    rate: Callable[..., float],
    optimizer: torch.optim.Optimizer,
    config: TrainingConfig,
    step: int,
) -> None:
    factor = rate(step, 1.0, config.warmup_steps, config.steps, config.final_learning_rate)
    for group in optimizer.param_groups:
        group["lr"] = group.get("peak", config.learning_rate) * factor
