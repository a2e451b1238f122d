"""Lets a check call a student's `nn.Module` class as a function of its settings and weights."""

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from torch import Tensor, nn


class WrongWeights(ValueError):
    """A module does not have the parameters that its exercise specifies."""


def is_module_class(found: Any) -> TypeGuard[type[nn.Module]]:
    """Say whether something is a class of modules, rather than a function."""
    return isinstance(found, type) and issubclass(found, nn.Module)


def as_function(
    module_class: type[nn.Module], kept: dict[Any, nn.Module] | None = None
) -> Callable[..., Any]:
    """Turn a class of modules into a function of its settings, its weights and its inputs.

    A check never relies on how a module draws its initial weights: it passes them, by the names
    that the text of the exercise specifies. The module can then be compared with any other
    implementation, and only values pass between check and module.

    Args:
        module_class: The class; `module_class(**settings)` must build a module.
        kept: Modules by their class and settings, to be called again; by default each call builds
            one.

    Returns:
        A function `(settings, weights, *inputs)`. It builds the module, gives it the dtype of the
        weights, replaces its parameters, and calls it in training mode, as it was built. It raises
        `WrongWeights` if the module's parameters have other names or shapes than the weights.

    """

    def call(settings: Mapping[str, Any], weights: Mapping[str, Tensor], *inputs: Any) -> Any:
        key = (module_class, str(settings))
        module = kept.get(key) if kept is not None else None
        module = module or module_class(**settings)
        if kept is not None:
            kept[key] = module
        parameters = dict(module.named_parameters())
        _require_names(parameters, weights)
        _require_shapes(parameters, weights)
        for weight in weights.values():
            module.to(weight.dtype)
            break
        module.load_state_dict(weights, strict=False)  # buffers are the module's own
        return module.train()(*inputs)  # a dropout is to be seen

    return call


def _require_names(parameters: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
    missing = [name for name in weights if name not in parameters]
    if missing:
        has = _listed(parameters) if parameters else "none at all"
        raise WrongWeights(f"it has no parameter {_listed(missing)}; its parameters are {has}")
    extra = [name for name in parameters if name not in weights]
    if extra:
        raise WrongWeights(
            f"it has a parameter {_listed(extra)} that should not be there; the parameters must be "
            f"{_listed(weights) if weights else 'none at all'}"
        )


def _require_shapes(parameters: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    for name, weight in weights.items():
        if parameters[name].shape != weight.shape:
            raise WrongWeights(
                f"its parameter `{name}` has the shape {tuple(parameters[name].shape)}, expected "
                f"{tuple(weight.shape)}"
            )


def _listed(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)
