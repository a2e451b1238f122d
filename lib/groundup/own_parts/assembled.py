"""The generative models, computed with a student's own parts.

    DecoderOnly = assemble(Parts(layer_norm=my_layer_norm))
    model = DecoderOnly(config)

The constructor, the parameters and their names are those of `models.DecoderOnly`, so both can load
the same weights and replace each other. Everything that is not a part is the library's: linear
layers, embedding tables, dropout, the cache, initial weights, and the forward pass itself, which is
`functional.decoder_only`.

`refusals` tests parts; `count_calls` counts which of them run.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import cache as remembered
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from groundup import presets
from groundup.core import models
from groundup.core.cache import KeyValueCache, LayerCache
from groundup.core.config import DecoderOnlyConfig, EncoderDecoderConfig
from groundup.presets import MODELS
from groundup.variants.functional import (
    OwnLayerCache,
    Parts,
    Tree,
    decode,
    decoder_only,
    encode,
    unflatten,
)

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Largest error of logits and gradients, relative to the largest entry if that is above 1."""
_Trial = tuple[DecoderOnlyConfig | EncoderDecoderConfig, torch.dtype]


class _Assembled(nn.Module):
    """What both models have in common: parts, and modules that only hold the parameters.

    Hooks, such as those of probes and of FSDP, need modules that compute: as long as one is
    registered, the library's own forward pass runs instead.
    """

    parts: ClassVar[Parts] = Parts()

    def __init__(self, config: Any, generator: torch.Generator | None = None):
        super().__init__(config, generator)
        built = self.parts.built(config)
        # The table is made once, because a student's function may loop over its entries.
        self._built = replace(built, sinusoidal_positions=remembered(built.sinusoidal_positions))

    def _is_watched(self) -> bool:
        inner = (module for child in self.children() for module in child.modules())
        return any(module._forward_pre_hooks or module._forward_hooks for module in inner)

    def _tree(self) -> Tree:
        return unflatten(dict(self.named_parameters()))


def _on(device: torch.device) -> Any:
    """Let parts create tensors on a device that they do not specify."""
    return nullcontext() if device.type == "cpu" else device


class DecoderOnly(_Assembled, models.DecoderOnly):
    """`models.DecoderOnly`, computed with the parts of its class.

    Args:
        config: Sizes and choices.
        generator: Draws the initial weights, which are those of `models.DecoderOnly` with the same
            generator.

    """

    def new_cache(
        self, batch_size: int, max_len: int | None = None, kind: type[LayerCache] = LayerCache
    ) -> KeyValueCache:
        """Make an empty cache, as `models.DecoderOnly` does, with room for the student's own."""
        return super().new_cache(batch_size, max_len, OwnLayerCache if kind is LayerCache else kind)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        mask: Bool[Tensor, "..."] | None = None,
        cache: KeyValueCache | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
    ) -> Float[Tensor, "batch length vocab"]:
        """Return the logits of the token after each position, as `models.DecoderOnly` does."""
        if self._is_watched():
            return super().forward(tokens, mask=mask, cache=cache, positions=positions)
        choices = {"cache": cache, "positions": positions, "training": self.training}
        with _on(tokens.device):
            return decoder_only(self._tree(), tokens, self.config, mask, self._built, **choices)


class EncoderDecoder(_Assembled, models.EncoderDecoder):
    """`models.EncoderDecoder`, computed with the parts of its class, as `DecoderOnly` is."""

    def encode(
        self,
        source: Int[Tensor, "batch src_len"],
        source_mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch src_len d_model"]:
        """Read the source, as `models.EncoderDecoder` does."""
        if self._is_watched():
            return super().encode(source, source_mask)
        how = (self.config, source_mask, self._built, self.training)
        with _on(source.device):
            return encode(self._tree(), source, *how)

    def decode(
        self,
        target: Int[Tensor, "batch tgt_len"],
        memory: Float[Tensor, "batch src_len d_model"],
        source_mask: Bool[Tensor, "..."] | None = None,
        target_mask: Bool[Tensor, "..."] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "batch tgt_len vocab"]:
        """Return the logits of the token after each target position, as `models` does."""
        masks = (source_mask, target_mask)
        if self._is_watched():
            return super().decode(target, memory, *masks, cache)
        choices = {"cache": cache, "training": self.training}
        with _on(target.device):
            how = (self.config, *masks, self._built)
            return decode(self._tree(), target, memory, *how, **choices)


def assemble(parts: Parts, kind: type[_Assembled] = DecoderOnly) -> Any:
    """Return the class of the models that are computed with these parts.

    Args:
        parts: The functions and layers.
        kind: `DecoderOnly` or `EncoderDecoder`.

    """
    return type(kind.__name__, (kind,), {"parts": parts, "__module__": __name__})


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
        raise ValueError(
            f"a library must be a Python package, got no file {folder}/__init__.py: "
            "`classroom mine` makes one of your notebooks"
        )
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


def count_calls(library: ModuleType) -> Counter[str]:
    """Let a library count how often each of its pieces is called, from now on.

    A piece that raises an error is named in a ValueError.

    Args:
        library: From `load_library`. Its pieces are the names in `YOURS`; without that, the
            functions and classes that it defines.

    Returns:
        The numbers of calls so far, by name; the same object for the same library.

    """
    if hasattr(library, "CALLS"):
        return library.CALLS
    things, calls = vars(library), Counter()
    own = [name for name, thing in things.items() if _is_defined_in(library, thing)]
    counted = {name: _counted(name, things[name], calls) for name in things.get("YOURS", own)}
    of = {id(things[name]): thing for name, thing in counted.items()}
    for name, thing in counted.items():  # a piece may call another one
        if not isinstance(thing, type) and thing.__module__.split(".")[0] == library.__name__:
            vars(sys.modules[thing.__module__])[name] = thing
    parts = vars(library.DecoderOnly.parts)
    parts = Parts(**{name: of.get(id(part), part) for name, part in parts.items()})
    things |= counted | {"DecoderOnly": assemble(parts), "CALLS": calls}
    return calls


def _is_defined_in(library: ModuleType, thing: Any) -> bool:
    return callable(thing) and getattr(thing, "__module__", "") == library.__name__


def _counted(name: str, thing: Any, calls: Counter[str]) -> Any:
    if isinstance(thing, type):
        inner = {"forward": _counted(name, vars(thing)["forward"], calls)}
        return type(name, (thing,), inner | {"__module__": thing.__module__})

    @wraps(thing)
    def counting(*args: Any, **choices: Any) -> Any:
        calls[name] += 1
        try:
            return thing(*args, **choices)
        except Exception as error:  # a student's code may raise anything
            what = f"{type(error).__name__}: {first_line(error)}"
            raise ValueError(f"your {name} raised {what}") from error

    return counting


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return [*str(error).strip().splitlines(), ""][0]


def rebuilt(model: Any, library: ModuleType) -> Any:
    """Return a decoder-only model or an encoder-decoder, computed with a library's parts.

    It has the same weights, mode and device.
    """
    weight = model.embedding.tokens.weight
    kind = library.DecoderOnly
    if isinstance(model, models.EncoderDecoder):
        kind = assemble(kind.parts, EncoderDecoder)
    with torch.random.fork_rng(devices=[]):  # these initial weights are replaced
        own = kind(model.config).to(weight.device, weight.dtype)
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
    expected = [(trial, _results(MODELS[type(trial[0])], *trial)) for trial in _trials()]
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


def _trials() -> Iterator[_Trial]:
    sizes: dict[str, Any] = {
        "vocab_size": 11,
        "max_len": 7,
        "d_model": 12,
        "num_layers": 3,
        "num_heads": 3,
    }
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
        sizes_of_both = sizes | {"source_vocab_size": 11, "source_max_len": 7, "d_ff": 13}
        yield presets.encoder_decoder("tiny", **sizes_of_both, num_encoder_layers=2), dtype


def _results(
    kind: Callable[..., Any], config: DecoderOnlyConfig | EncoderDecoderConfig, dtype: torch.dtype
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
    mask = is_real[:, None, None]
    if isinstance(config, EncoderDecoderConfig):
        mask = mask.flip(-1)  # on the right
        outputs = [model(tokens, tokens), model(tokens, tokens, mask)]
        with torch.no_grad():
            read = partial(model.decode, memory=model.encode(tokens, mask), source_mask=mask)
    else:
        padded = model(tokens, mask=mask, positions=positions.clamp(min=0))
        outputs = [model(tokens), torch.where(is_real[..., None], padded, 0.0)]
        read = model
    shape = outputs[0].shape
    weights = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    total = (sum(outputs) * weights).sum()
    gradients = torch.autograd.grad(total, list(model.parameters()))
    cache = model.new_cache(2)
    with torch.no_grad():
        chunks = [read(chunk, cache=cache) for chunk in tokens.split((4, 1, 2), dim=1)]
    return [*(output.detach() for output in outputs), *gradients, *chunks]


def _refusal(given: Mapping[str, Any], expected: Iterable[tuple[_Trial, list[Tensor]]]) -> str:
    for (config, dtype), theirs in expected:
        is_decoder = isinstance(config, DecoderOnlyConfig)
        kind = assemble(Parts.among(given), DecoderOnly if is_decoder else EncoderDecoder)
        name = "a model" if is_decoder else "an encoder-decoder"
        about = f"{name} with {config.positions} positions in {str(dtype)[6:]}"
        try:
            ours = _results(kind, config, dtype)
        except Exception as error:  # a student's code may raise anything
            return f"{about} raised {type(error).__name__}: {first_line(error)}"
        for one, other in zip(ours, theirs, strict=True):
            # Some gradients are 0 up to rounding, such as that of the bias of the keys.
            off = (one - other).abs().max() / other.abs().max().clamp(min=1.0)
            if not off <= TOLERANCES[dtype]:  # NaN as well
                return f"logits or gradients of {about} are off by {off:.2g}"
    return ""
