"""The decoder-only model put together from parts that may be somebody else's.

    DecoderOnly = assemble(Parts(layer_norm=my_layer_norm))
    model = DecoderOnly(config)

Constructor, parameters and their names are those of `models.DecoderOnly`, so a trained model's
weights go into either, and everything that takes one takes the other. What no part stands for is
the library's: linear maps, tables, dropout, the cache, first weights, and the order of the whole.

`python -m groundup.assembled FOLDER` tries the parts of a package, see `refusals`.
"""

import copy
import json
import math
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from groundup import blocks, layers, models, multihead
from groundup.attention import repeat_kv_heads
from groundup.cache import AnyLayerCache, KeyValueCache, StaticLayerCache
from groundup.config import DecoderOnlyConfig
from groundup.embedding import InputEmbedding
from groundup.masks import AnyMask, combine_masks
from groundup.parts import Parts
from groundup.positions import LearnedPositions, SinusoidalPositions

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
"""How far a part may take logits and slopes off, or a share of the largest that is above 1."""


class DecoderOnly(models.DecoderOnly):
    """`models.DecoderOnly`, computed by the parts that its class was made for.

    Args:
        config: Sizes and choices.
        generator: Where the initial weights come from; the same generator gives the same weights
            as in `models.DecoderOnly`.

    """

    parts: ClassVar[Parts] = Parts()

    def __init__(self, config: DecoderOnlyConfig, generator: torch.Generator | None = None):
        super().__init__(config, generator)
        for name, child in self.named_children():
            setattr(self, name, _computed_by(self.parts, child))

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        mask: Bool[Tensor, "..."] | None = None,
        cache: KeyValueCache | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
    ) -> Float[Tensor, "batch length vocab"]:
        """Give the logits of the token after each position, as `models.DecoderOnly` does."""
        allowed, start, positions = self._past(tokens, None, cache, positions)
        q_len, device = tokens.shape[1], tokens.device
        with _tensors_are_made_on(device):
            if isinstance(allowed, str):
                # A word stands for the causal mask where every token begins at the first.
                allowed = self.parts.causal_mask(q_len, q_len) if q_len > 1 else None
            allowed = combine_masks(allowed, mask)
            x = self.embedding(tokens, start, positions)
            caches = [None] * len(self.blocks) if cache is None else cache.layers
            for block, own in zip(self.blocks, caches, strict=True):
                x = block(x, allowed, own, positions)
            return self.unembedding(self.final_norm(x))


def assemble(parts: Parts) -> type[DecoderOnly]:
    """Make the class of the models that these parts compute."""
    return type("DecoderOnly", (DecoderOnly,), {"parts": parts, "__module__": __name__})


def load_library(folder: str | Path) -> ModuleType:
    """Import a package that has a class `DecoderOnly` of its own, put together by `assemble`.

    Args:
        folder: The package; what stands beside it can be imported from then on.

    Raises:
        ValueError: If there is no such package, if it cannot be imported, or if it lacks the class.

    """
    folder = Path(folder).resolve()
    if not (folder / "__init__.py").is_file():
        raise ValueError(f"a library must be a Python package, got no file {folder}/__init__.py")
    if str(folder.parent) not in sys.path:
        sys.path.insert(0, str(folder.parent))
    try:
        library = import_module(folder.name)
    except Exception as error:  # whatever somebody's code raises
        raise ValueError(
            f"a library must be importable, got {type(error).__name__}: {error} in {folder}"
        ) from error
    if Path(library.__file__ or "").parent != folder:
        raise ValueError(
            f"a library needs a name of its own, got {folder.name}, which is {library.__file__}"
        )
    found = getattr(library, "DecoderOnly", None)
    if not (isinstance(found, type) and issubclass(found, models.DecoderOnly)):
        raise ValueError(
            "a library must have a class DecoderOnly that groundup.assembled.assemble made, "
            f"got {found!r} in {folder}"
        )
    return library


def rebuilt(model: models.DecoderOnly, library: ModuleType) -> models.DecoderOnly:
    """Give a model of the library's class with the same weights, in the same mode and place."""
    weight = model.embedding.tokens.weight
    with torch.random.fork_rng(devices=[]):  # the weights drawn here are written over
        own = library.DecoderOnly(model.config).to(weight.device, weight.dtype)
    own.load_state_dict(model.state_dict())
    return own.train(model.training)


def refusals(things: Mapping[str, Any]) -> dict[str, str]:
    """Say which parts cannot stand in for the library's own in a model, and why.

    They are tried in small models of several kinds, on logits with and without a cache and on the
    slopes of all weights: all together, and if that is not right, one after the other, each with
    those that were right before it. A part may do what is asked of it alone and yet be refused:
    one that cuts its gradient, or looks into modules that a model replaces.

    Args:
        things: Parts by name; other names do not count.

    """
    expected = {trial: trial.results(models.DecoderOnly) for trial in _trials()}
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


class _Trial:
    """A small model to try a part in: the same weights and tokens for every part."""

    def __init__(self, dtype: torch.dtype, **choices: Any):
        fields = {"norm_order": "pre", "activation": "gelu", "tie_embeddings": True} | choices
        self.config = DecoderOnlyConfig.from_dict(
            {"vocab_size": 11, "max_len": 7, "d_model": 12, "num_layers": 2, "num_heads": 3}
            | {"d_ff": 13, "dropout": 0.0}
            | fields
        )
        self.dtype = dtype

    def results(self, kind: type[models.DecoderOnly]) -> list[Tensor]:
        """Compute logits, slopes of all weights, and logits of three chunks with a cache."""
        generator = torch.Generator().manual_seed(0)
        model = kind(self.config, generator).to(self.dtype)
        with torch.no_grad():
            for parameter in model.parameters():  # gains of 1 and biases of 0 hide mistakes
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter += 0.2 * noise.to(self.dtype)
        tokens = torch.randint(self.config.vocab_size, (2, 7), generator=generator)
        hidden = torch.arange(7) >= torch.tensor([[3], [0]])  # padding on the left of one
        places = (torch.arange(7) - torch.tensor([[3], [0]])).clamp(min=0)
        logits = model(tokens)
        padded = model(tokens, mask=hidden[:, None, None], positions=places)
        padded = torch.where(hidden[..., None], padded, 0.0)
        wanted = torch.randn(logits.shape, generator=generator, dtype=torch.float64)
        total = ((logits + padded) * wanted.to(self.dtype)).sum()
        slopes = torch.autograd.grad(total, list(model.parameters()))
        cache = model.new_cache(2)
        with torch.no_grad():
            chunks = [model(chunk, cache=cache) for chunk in tokens.split((4, 1, 2), dim=1)]
        return [logits.detach(), padded.detach(), *slopes, *chunks]


def _trials() -> list[_Trial]:
    kinds: list[dict[str, Any]] = [
        {"positions": "rotary"},
        {"positions": "rotary", "num_kv_heads": 1, "norm": "rms", "activation": "swiglu"}
        | {"bias": False, "tie_embeddings": False},
        {"positions": "sinusoidal", "norm_order": "post", "activation": "relu"},
        {"positions": "sinusoidal", "norm_order": "post"},
        {"positions": "learned", "activation": "gelu_tanh", "norm_eps": 1e-3, "window": 3},
        {"positions": "alibi", "activation": "relu"},
    ]
    exact = [_Trial(torch.float64, **kind) for kind in kinds]
    return [*exact, *(_Trial(torch.float32, **kind) for kind in kinds[:2])]


def _refusal(given: Mapping[str, Any], expected: Mapping[_Trial, list[Tensor]]) -> str:
    kind = assemble(Parts.among(given))
    for trial, wanted in expected.items():
        about = f"with {trial.config.positions} positions in {str(trial.dtype)[6:]}"
        try:
            seen = trial.results(kind)
        except Exception as error:  # whatever somebody's code raises
            said = str(error).strip().splitlines()
            return f"a model {about} raised {type(error).__name__}: {said[0] if said else ''}"
        limit = TOLERANCES[trial.dtype]
        for one, other in zip(seen, wanted, strict=True):
            # Some slopes are 0 but for rounding, such as those of a bias of all keys.
            off = (one - other).abs().max() / other.abs().max().clamp(min=1.0)
            if not off <= limit:  # NaN as well
                return f"logits or slopes of a model {about} are off by {off:.2g}"
    return ""


# What follows computes what the library's modules do. Each takes over a module as it is, with its
# parameters and settings, and differs in `forward` alone.


class _LayerNorm(layers.LayerNorm):
    parts: Parts

    def forward(self, x: Tensor) -> Tensor:
        return self.parts.layer_norm(x, self.gain, self.bias, self.eps)


class _RMSNorm(layers.RMSNorm):
    parts: Parts

    def forward(self, x: Tensor) -> Tensor:
        return self.parts.rms_norm(x, self.gain, self.eps)


class _FeedForward(layers.FeedForward):
    parts: Parts

    def forward(self, x: Tensor) -> Tensor:
        names = {bend: name for name, bend in self.ACTIVATIONS.items()}
        name = names[self.activation]
        if name not in ("relu", "gelu", "gelu_tanh"):
            return super().forward(x)
        up, down = (_weight_and_bias(linear) for linear in (self.up, self.down))
        return self.parts.feed_forward(x, *up, *down, name)


class _GatedFeedForward(layers.GatedFeedForward):
    parts: Parts

    def forward(self, x: Tensor) -> Tensor:
        if self.activation is not F.silu or self.up.bias is not None:
            return super().forward(x)
        maps = (linear.weight.T for linear in (self.gate, self.up, self.down))
        return self.parts.swiglu(x, *maps)


class _Embedding(InputEmbedding):
    parts: Parts

    def prepare(self) -> None:
        if isinstance(self.positions, SinusoidalPositions):
            table = self.parts.sinusoidal_positions(*self.positions.table.shape)
            self.positions.table = table.to(self.positions.table)

    def forward(self, tokens: Tensor, start: int = 0, positions: Tensor | None = None) -> Tensor:
        if positions is not None or not isinstance(self.positions, LearnedPositions):
            return super().forward(tokens, start, positions)
        table = self.positions.table.weight
        return self.dropout(self.parts.learned_positions(self.tokens(tokens), table, start))


class _Attention(multihead.MultiHeadAttention):
    parts: Parts
    whole: tuple[nn.Module, ...]

    def prepare(self) -> None:
        kind = self.parts.MultiHeadAttention
        # In a tuple, torch does not count its parameters among those of the model.
        self.whole = () if kind is None else (kind(self.query.in_features, self.num_heads),)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        mask: AnyMask | None = None,
        cache: AnyLayerCache | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        assert context is None and not isinstance(mask, str)
        query, key, value = self._heads(x, cache, positions)
        key, value = (repeat_kv_heads(heads, self.num_heads) for heads in (key, value))
        is_dropping = self.attention_dropout > 0 and self.training
        is_own_of_heads = mask is not None and mask.ndim == 4 and mask.shape[1] > 1
        if self.whole and not (self.alibi or is_dropping or is_own_of_heads):
            return self._attend_whole(x, query, key, value, mask)
        bias = self._bias(query, key, cache)
        if mask is None and bias is None and not is_dropping:
            mixed, _ = self.parts.scaled_dot_product_attention(query, key, value)
        else:
            scores = self.parts.head_scores(query, key) / math.sqrt(self.d_head)
            scores = scores if bias is None else scores + bias
            mask = (
                mask if mask is not None else scores.new_ones(scores.shape[-2:], dtype=torch.bool)
            )
            weights = self.parts.masked_softmax(scores, mask)
            mixed = F.dropout(weights, self.attention_dropout, self.training) @ value
        return self.output(self.parts.merge_heads(mixed))

    def _heads(
        self, x: Tensor, cache: AnyLayerCache | None, positions: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Cut the maps of the tokens into heads, turn them, and add what the cache remembers."""
        query = self.parts.split_heads(self.query(x), self.num_heads)
        key = self.parts.split_heads(self.key(x), self.num_kv_heads)
        value = self.parts.split_heads(self.value(x), self.num_kv_heads)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if self.rotary is not None:
            if positions is None:
                start = 0 if cache is None else cache.length
                positions = start + torch.arange(x.shape[1], device=x.device)
            places = positions.expand(len(x), -1)  # (batch, length)
            base = self.rotary.base
            query, key = (self.parts.apply_rotary(heads, places, base) for heads in (query, key))
        return (query, key, value) if cache is None else (query, *cache.append(key, value))

    def _bias(self, query: Tensor, key: Tensor, cache: AnyLayerCache | None) -> Tensor | None:
        if not self.alibi or isinstance(cache, StaticLayerCache):
            return self._score_bias(query, key, cache)
        bias = self.parts.alibi_bias(self.num_heads, query.shape[-2], key.shape[-2]).to(query)
        return bias.masked_fill(bias.isinf(), 0.0)  # later keys are the mask's affair

    def _attend_whole(
        self, x: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Let a whole layer attend, whose three maps give what is there already."""
        query, key, value = (self.parts.merge_heads(heads) for heads in (query, key, value))
        is_empty = None
        if mask is not None:
            mask = mask.squeeze(1) if mask.ndim == 4 else mask  # (batch, q_len, k_len)
            mask = mask.expand(*mask.shape[:-2], query.shape[1], key.shape[1])
            is_empty = ~mask.any(dim=-1, keepdim=True)
            mask = mask | is_empty  # such a layer promises nothing where nothing is allowed
        layer = _with_modules(
            self.whole[0],
            query=_Given(query),
            key=_Given(key),
            value=_Given(value),
            output=self.output,
        )
        found = layer(x, None if key.shape == x.shape else key, mask)
        if is_empty is None:
            return found
        nothing = self.output(torch.zeros_like(x[:, :1]))
        return torch.where(is_empty, nothing, found)


class _Block(blocks.Block):
    parts: Parts
    whole: tuple[nn.Module, ...]

    def prepare(self) -> None:
        kind, feed_forward = self.parts.TransformerBlock, self.feed_forward
        self.whole = ()
        if kind is not None and getattr(feed_forward, "activation", None) is F.gelu:
            sizes = (self.attention.query.in_features, self.attention.num_heads)
            d_ff = feed_forward.up.out_features
            if isinstance(feed_forward, layers.FeedForward):
                self.whole = (kind(*sizes, d_ff, norm=self.norm_order),)

    def forward(
        self,
        x: Tensor,
        mask: AnyMask | None = None,
        cache: AnyLayerCache | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        if not self.whole:
            return super().forward(x, mask, cache, positions)
        attend = partial(self.attention, cache=cache, positions=positions)
        feed_forward = cast(layers.FeedForward, self.feed_forward)
        block = _with_modules(
            self.whole[0],
            attention=_AsTorch(attend, self.dropout),
            attention_norm=self.attention_norm,
            feed_forward_norm=self.feed_forward_norm,
            up=feed_forward.up,
            down=nn.Sequential(feed_forward.down, self.dropout),
        )
        return block(x, mask)


class _Given(nn.Module):
    """In the place of a linear map whose result is known."""

    def __init__(self, result: Tensor):
        super().__init__()
        self.result = result

    def forward(self, _: Tensor) -> Tensor:
        return self.result


class _AsTorch(nn.Module):
    """Our attention, called as torch's own is: its mask is True where attention is forbidden."""

    def __init__(self, attend: Callable[..., Tensor], dropout: nn.Module):
        super().__init__()
        self.attend, self.dropout = attend, dropout

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        assert query is key is value or torch.equal(query, key) and torch.equal(key, value)
        mask = attn_mask
        if mask is not None:
            mask = ~mask if mask.dtype == torch.bool else mask == 0
        return self.dropout(self.attend(query, mask=mask)), None


_KINDS: dict[type[nn.Module], type[nn.Module]] = {
    InputEmbedding: _Embedding,
    blocks.Block: _Block,
    multihead.MultiHeadAttention: _Attention,
    layers.LayerNorm: _LayerNorm,
    layers.RMSNorm: _RMSNorm,
    layers.FeedForward: _FeedForward,
    layers.GatedFeedForward: _GatedFeedForward,
}


def _computed_by(parts: Parts, module: nn.Module) -> nn.Module:
    """Give a module that is the same but for who computes."""
    for name, child in module.named_children():
        setattr(module, name, _computed_by(parts, child))
    kind = _KINDS.get(type(module))
    if kind is None:
        return module
    own = kind.__new__(kind)
    own.__dict__ |= module.__dict__ | {"parts": parts}
    if isinstance(own, _Embedding | _Attention | _Block):
        with torch.random.fork_rng(devices=[]):  # somebody's constructor may draw weights
            own.prepare()
    return own


def _with_modules(module: nn.Module, **others: nn.Module) -> nn.Module:
    """Give a copy that has other modules in places, and leave the module as it is."""
    own = copy.copy(module)
    own.__dict__["_modules"] = module._modules | others
    return own


def _weight_and_bias(linear: nn.Linear) -> tuple[Tensor, Tensor]:
    weight = linear.weight.T
    return weight, weight.new_zeros(weight.shape[1]) if linear.bias is None else linear.bias


def _tensors_are_made_on(device: torch.device) -> AbstractContextManager:
    """Make what a part creates land on the device, without a word about devices in the part."""
    return nullcontext() if device.type == "cpu" else device


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
