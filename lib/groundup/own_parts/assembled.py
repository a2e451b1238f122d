"""The decoder-only model, computed with a student's own parts.

    DecoderOnly = assemble(Parts(layer_norm=my_layer_norm))
    model = DecoderOnly(config)

The constructor, the parameters and their names are those of `models.DecoderOnly`, so both can load
the same weights and replace each other. Everything that is not a part is the library's: linear
layers, embedding tables, dropout, the cache, initial weights, and the forward pass itself, which is
`functional.decoder_only`.

`python -m groundup.own_parts.assembled FOLDER` tests the parts of a package; see `refusals`.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import cache as remembered
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from groundup import presets
from groundup.core import models
from groundup.core.cache import KeyValueCache
from groundup.core.config import DecoderOnlyConfig
from groundup.variants.functional import Parts, decoder_only, unflatten

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Largest error of logits and gradients, relative to the largest entry if that is above 1."""
_Trial = tuple[DecoderOnlyConfig, torch.dtype]


class DecoderOnly(models.DecoderOnly):
    """`models.DecoderOnly`, computed with the parts of its class.

    Its modules only hold the parameters. Hooks, such as those of probes and of FSDP, need modules
    that compute: as long as one is registered, `models.DecoderOnly.forward` runs instead.

    Args:
        config: Sizes and choices.
        generator: Draws the initial weights, which are those of `models.DecoderOnly` with the same
            generator.

    """

    parts: ClassVar[Parts] = Parts()

    def __init__(self, config: DecoderOnlyConfig, generator: torch.Generator | None = None):
        super().__init__(config, generator)
        built = self.parts.built(config)
        # The table is made once, because a student's function may loop over its entries.
        self._built = replace(built, sinusoidal_positions=remembered(built.sinusoidal_positions))

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        mask: Bool[Tensor, "..."] | None = None,
        cache: KeyValueCache | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
    ) -> Float[Tensor, "batch length vocab"]:
        """Return the logits of the token after each position, as `models.DecoderOnly` does."""
        inner = (module for child in self.children() for module in child.modules())
        if any(module._forward_pre_hooks or module._forward_hooks for module in inner):
            return super().forward(tokens, mask=mask, cache=cache, positions=positions)
        # Parts create tensors without specifying a device.
        with nullcontext() if tokens.device.type == "cpu" else tokens.device:
            return decoder_only(
                unflatten(dict(self.named_parameters())),
                tokens,
                self.config,
                mask,
                self._built,
                cache=cache,
                positions=positions,
                training=self.training,
            )


def assemble(parts: Parts) -> type[DecoderOnly]:
    """Return the class of the models that are computed with these parts."""
    return type("DecoderOnly", (DecoderOnly,), {"parts": parts, "__module__": __name__})


def load_library(folder: str | Path) -> ModuleType:
    """Import a package with its own class `DecoderOnly`, made by `assemble`.

    Args:
        folder: The package. Its parent folder is added to `sys.path`.

    Raises:
        ValueError: If there is no such package, if it cannot be imported, if another module has its
            name, or if it lacks the class.

    """
    folder = Path(folder).resolve()
    if not (folder / "__init__.py").is_file():
        raise ValueError(f"a library must be a Python package, got no file {folder}/__init__.py")
    if str(folder.parent) not in sys.path:
        sys.path.insert(0, str(folder.parent))
    try:
        library = import_module(folder.name)
    except Exception as error:  # a student's code may raise anything
        raise ValueError(
            f"a library must be importable, got {type(error).__name__}: {error} in {folder}"
        ) from error
    if Path(library.__file__ or "").parent != folder:
        raise ValueError(
            f"a library must have a unique name, got {folder.name}, which is {library.__file__}"
        )
    found = getattr(library, "DecoderOnly", None)
    if not (isinstance(found, type) and issubclass(found, models.DecoderOnly)):
        raise ValueError(
            "a library must have a class DecoderOnly that "
            "groundup.own_parts.assembled.assemble made, "
            f"got {found!r} in {folder}"
        )
    return library


def rebuilt(model: models.DecoderOnly, library: ModuleType) -> models.DecoderOnly:
    """Return a model of the library's class with the same weights, mode and device."""
    weight = model.embedding.tokens.weight
    with torch.random.fork_rng(devices=[]):  # these initial weights are replaced
        own = library.DecoderOnly(model.config).to(weight.device, weight.dtype)
    own.load_state_dict(model.state_dict())
    return own.train(model.training)


def refusals(things: Mapping[str, Any]) -> dict[str, str]:
    """Report which parts cannot replace the library's own in a model, and why.

    They are tested in small models of several kinds, by comparing logits, with and without a cache,
    and the gradients of all weights. All parts are tested together; if that fails, they are added
    one by one, and those that fail are dropped. A part may pass the checks of its exercise and
    still be refused, for example if it detaches its gradient, or reads sub-layers that a model
    replaces.

    Args:
        things: Parts by name; other names are ignored.

    Returns:
        A reason for each part that is refused.

    """
    expected = [(trial, _results(models.DecoderOnly, *trial)) for trial in _trials()]
    given = {name: things[name] for name in Parts.names() if name in things}
    if not _refusal(given, expected):
        return {}
    found, kept = {}, {}
    for name, part in given.items():
        if reason := _refusal(kept | {name: part}, expected):
            found[name] = reason
        else:
            kept[name] = part
    return found


def _trials() -> Iterator[tuple[DecoderOnlyConfig, torch.dtype]]:
    sizes = {"vocab_size": 11, "max_len": 7, "d_model": 12, "num_layers": 2, "num_heads": 3}
    usual = {"norm_order": "pre", "activation": "gelu", "tie_embeddings": True}
    kinds: list[dict[str, Any]] = [
        {"positions": "rotary"},
        {"positions": "rotary", "num_kv_heads": 1, "norm": "rms", "activation": "swiglu"}
        | {"bias": False, "tie_embeddings": False},
        {"positions": "sinusoidal", "norm_order": "post", "activation": "relu"},
        {"positions": "sinusoidal", "norm_order": "post"},
        {"positions": "learned", "activation": "gelu_tanh", "norm_eps": 1e-3, "window": 3},
        {"positions": "alibi", "activation": "relu"},
    ]
    for dtype, chosen in ((torch.float64, kinds), (torch.float32, kinds[:2])):
        for kind in chosen:
            fields = sizes | {"d_ff": 13, "dropout": 0.0} | usual | kind
            yield presets.from_dict(DecoderOnlyConfig, fields), dtype


def _results(
    kind: type[models.DecoderOnly], config: DecoderOnlyConfig, dtype: torch.dtype
) -> list[Tensor]:
    """Compute logits, gradients of all weights, and logits of three chunks with a cache."""
    generator = torch.Generator().manual_seed(0)
    model = kind(config, generator).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():  # gains of 1 and biases of 0 hide mistakes
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += 0.2 * noise.to(dtype)
    tokens = torch.randint(config.vocab_size, (2, 7), generator=generator)
    positions = torch.arange(7) - torch.tensor([[3], [0]])  # padding on the left of one
    is_real = positions >= 0
    logits = model(tokens)
    padded = model(tokens, mask=is_real[:, None, None], positions=positions.clamp(min=0))
    padded = torch.where(is_real[..., None], padded, 0.0)
    weights = torch.randn(logits.shape, generator=generator, dtype=torch.float64).to(dtype)
    total = ((logits + padded) * weights).sum()
    gradients = torch.autograd.grad(total, list(model.parameters()))
    cache = model.new_cache(2)
    with torch.no_grad():
        chunks = [model(chunk, cache=cache) for chunk in tokens.split((4, 1, 2), dim=1)]
    return [logits.detach(), padded.detach(), *gradients, *chunks]


def _refusal(given: Mapping[str, Any], expected: Iterable[tuple[_Trial, list[Tensor]]]) -> str:
    kind = assemble(Parts.among(given))
    for (config, dtype), theirs in expected:
        about = f"with {config.positions} positions in {str(dtype)[6:]}"
        try:
            ours = _results(kind, config, dtype)
        except Exception as error:  # a student's code may raise anything
            first, *_ = [*str(error).strip().splitlines(), ""]
            return f"a model {about} raised {type(error).__name__}: {first}"
        for one, other in zip(ours, theirs, strict=True):
            # Some gradients are 0 up to rounding, such as that of the bias of the keys.
            off = (one - other).abs().max() / other.abs().max().clamp(min=1.0)
            if not off <= TOLERANCES[dtype]:  # NaN as well
                return f"logits or gradients of a model {about} are off by {off:.2g}"
    return ""


def main(arguments: list[str]) -> int:
    """Print, as one JSON object, which parts of a package are refused and which are used."""
    library = load_library(arguments[0])
    things = {name: vars(library)[name] for name in library.YOURS}
    refused = refusals(things)
    used = [name for name in Parts.names() if name in things and name not in refused]
    print(json.dumps({"used": used, "refused": refused}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
