"""Checks that need no right answer: change the input in a known way and see what else changes.

What should a language model say after "the cat"? Nobody knows the number. But it must not change
when the words that follow do. Such a law can be tested on any model: most checks here take a
callable that turns token numbers `(batch, length)` into one row of logits per token.

Give a whole `torch.nn.Module`, or say by `module` which one stands behind the callable: it is
then examined in training and in evaluation mode, because a mask that holds in one may be
forgotten in the other. Its mode, its buffers and torch's random state are put back afterwards.

Source:
    Chen et al. 1998, Metamorphic Testing, https://arxiv.org/abs/2002.12543

"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

Model = Callable[[Tensor], Tensor]
"""Token numbers `(batch, length)` to logits `(batch, out_len, ...)`."""


@dataclass(frozen=True)
class Link:
    """An output position, an input position, and how much the one changed with the other."""

    mode: str
    """`train` or `eval`, as in `DependenceAudit.changes`."""
    output: int
    """Counted from 0."""
    input: int
    """Counted from 0."""
    change: float
    """Largest change seen, in the unit of the outputs; per unit of input if by gradients."""


@dataclass(frozen=True, eq=False)
class DependenceAudit:
    """Which outputs depend on which inputs, beside which may.

    `holds` alone can mislead. A model that looks at nothing, because its weights are zero, say,
    leaks nothing either: look at `unused` as well.
    """

    changes: dict[str, Float[Tensor, "out_len length"]]
    """Largest change of each output (row) when an input (column) changes, mode by mode."""
    allowed: Bool[Tensor, "out_len length"]
    """True where an output may depend on an input."""
    tolerance: float
    """Largest change that is not counted, because it is put down to rounding."""

    @property
    def dependence(self) -> dict[str, Bool[Tensor, "out_len length"]]:
        """True where an output was seen to depend on an input, mode by mode."""
        return {mode: change > self.tolerance for mode, change in self.changes.items()}

    @property
    def leaks(self) -> tuple[Link, ...]:
        """Every dependence that is not allowed."""
        return self._links({mode: seen & ~self.allowed for mode, seen in self.dependence.items()})

    @property
    def unused(self) -> tuple[Link, ...]:
        """Every dependence that is allowed and was not seen."""
        return self._links({mode: ~seen & self.allowed for mode, seen in self.dependence.items()})

    @property
    def holds(self) -> bool:
        """Whether nothing leaks in any mode."""
        return not self.leaks

    def __str__(self) -> str:
        """List the first leak of each mode in words."""
        first = {link.mode: link for link in reversed(self.leaks)}
        lines = [
            f"{mode}: output {first[mode].output} depends on input {first[mode].input}, "
            f"changed by {first[mode].change:.3g}; "
            f"leaks in all: {sum(link.mode == mode for link in self.leaks)}"
            if mode in first
            else f"{mode}: no leak"
            for mode in self.changes
        ]
        return "\n".join(lines)

    def _links(self, chosen: dict[str, Tensor]) -> tuple[Link, ...]:
        return tuple(
            Link(mode, output, source, self.changes[mode][output, source].item())
            for mode, pairs in chosen.items()
            for output, source in pairs.nonzero().tolist()
        )


@dataclass(frozen=True)
class Check:
    """How far two results that should be equal are apart."""

    law: str
    """What was checked."""
    difference: float
    """Largest absolute difference seen; infinite where one result is NaN and the other is not."""
    tolerance: float
    """Largest difference that is put down to rounding."""
    where: str
    """The case with the largest difference."""

    @property
    def holds(self) -> bool:
        """Whether the difference is within the tolerance."""
        return self.difference <= self.tolerance

    def __str__(self) -> str:
        """Say it in words."""
        verdict = "holds" if self.holds else "broken"
        return f"{self.law}: {verdict}, off by {self.difference:.3g} ({self.where})"


# What depends on what


def dependence(
    model: Model,
    tokens: Int[Tensor, "batch length"],
    vocab_size: int,
    *,
    module: nn.Module | None = None,
    mode: str = "eval",
    num_replacements: int = 3,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "out_len length"]:
    """Measure how much each output changes when a single input token is replaced.

    Each call replaces one position in all rows and is compared with a call that replaced none.
    Rows that influence one another, as in batch normalisation, can then not be mistaken for
    positions that do. Dropout draws the same in both calls.

    Args:
        model: What is examined.
        tokens: Token numbers to start from. More rows see more.
        vocab_size: Number of different tokens.
        module: The module behind `model`; by default `model` itself if it is one.
        mode: `train` or `eval`, which `module` is switched to.
        num_replacements: Different tokens tried at each place, so that a dead unit or a rounding
            to the same number does not hide anything.
        generator: Where they come from; by default a new one, the same at every call.

    Returns:
        Largest absolute change of output `i` (row) when input `j` (column) is replaced, over all
        rows, replacements and logits; infinite if it became NaN or ceased to be.

    Raises:
        ValueError: If there are fewer than two tokens to choose from or no replacement is made,
            or if the model does not answer the same tokens the same way twice.

    """
    ask = _Question(model, _module(model, module), mode)
    others = _replacements(tokens, vocab_size, num_replacements, generator)
    before = _answer_twice(ask, tokens)
    columns = []
    for place in range(tokens.shape[1]):
        changed = tokens.repeat(num_replacements, 1, 1)  # (num_replacements, batch, length)
        changed[..., place] = others[..., place]
        change = torch.stack([_difference(ask(numbers), before) for numbers in changed])
        columns.append(change.flatten(3).amax(dim=(0, 1, 3)))
    return torch.stack(columns, dim=-1)


def gradient_dependence(
    model: Model,
    tokens: Int[Tensor, "batch length"],
    embedding: nn.Module,
    *,
    module: nn.Module | None = None,
    mode: str = "eval",
    generator: torch.Generator | None = None,
) -> Float[Tensor, "out_len length"]:
    """Measure how steeply each output changes with each input vector.

    Replaced tokens show large influences whatever their form; gradients show small ones, far
    below what rounding would hide. Each misses something: a gradient cannot see through a
    comparison or a `detach`.

    Args:
        model: What is examined.
        tokens: Token numbers to start from.
        embedding: The part of the model that turns tokens into vectors `(batch, length, width)`,
            called once.
        module: As in `dependence`.
        mode: As in `dependence`.
        generator: Draws the direction in which the logits of a token are added up; by default a
            new one, the same at every call.

    Returns:
        Largest absolute derivative of output `i` (row) by a feature of input `j` (column).

    Raises:
        ValueError: If `embedding` is not called exactly once, or no gradient comes back.

    """
    generator = _or_new(generator)
    ask = _Question(model, _module(model, module), mode)
    with torch.enable_grad():
        logits, vectors = ask.with_vectors(tokens, embedding, lambda vectors: vectors)
        if not logits.requires_grad:
            raise ValueError("the outputs must have a gradient, got none: is the model detached?")
        direction = torch.randn(logits.shape[2:], generator=generator).to(logits)
        # A plain sum would not do: that of a normalised vector never changes.
        projected = (logits * direction).flatten(2).sum(dim=(0, 2))  # (out_len,)
        slopes = [
            torch.autograd.grad(out, vectors, retain_graph=True, materialize_grads=True)[0]
            for out in projected
        ]
    return torch.stack([_steepest(slope) for slope in slopes])


def nan_reach(
    model: Model,
    tokens: Int[Tensor, "batch length"],
    embedding: nn.Module,
    *,
    module: nn.Module | None = None,
    mode: str = "eval",
) -> Bool[Tensor, "out_len length"]:
    """Tell which outputs a NaN reaches from each input.

    A NaN survives every sum and product, even one with zero. So an output that stays clean is
    not computed from that input at all, where the other two measures saw no effect on the
    numbers tried. The reverse does not hold: attention that multiplies a hidden value by a weight
    of zero lets the NaN through and leaks nothing. Comparisons stop a NaN.

    Args:
        model: What is examined.
        tokens: Token numbers to start from.
        embedding: As in `gradient_dependence`.
        module: As in `dependence`.
        mode: As in `dependence`.

    Returns:
        True at `(i, j)` where output `i` has a NaN when the vector of input `j` is NaN.

    Raises:
        ValueError: If `embedding` is not called exactly once.

    """
    ask = _Question(model, _module(model, module), mode)

    columns = []
    for place in range(tokens.shape[1]):
        index = torch.tensor([place], device=tokens.device)
        with torch.no_grad():
            logits, _ = ask.with_vectors(tokens, embedding, partial(_poison, index=index))
        columns.append(logits.isnan().flatten(2).any(dim=-1).any(dim=0))
    return torch.stack(columns, dim=-1)


def dependence_audit(
    model: Model,
    tokens: Int[Tensor, "batch length"],
    vocab_size: int,
    allowed: Bool[Tensor, "out_len length"],
    *,
    module: nn.Module | None = None,
    embedding: nn.Module | None = None,
    num_replacements: int = 3,
    tolerance: float = 0.0,
    generator: torch.Generator | None = None,
) -> DependenceAudit:
    """Hold what each output depends on against what it may depend on.

    Args:
        model: What is examined. A model that reads a source and writes a target is examined
            with one of the two held fixed.
        tokens: Token numbers to start from.
        vocab_size: Number of different tokens.
        allowed: True where an output (row) may depend on an input (column).
        module: The module behind `model`, examined in both modes; by default `model` itself.
            If there is none, the model is taken in the mode it is in, named `as given`.
        embedding: Where given, gradients are taken as well, see `gradient_dependence`.
        num_replacements: As in `dependence`.
        tolerance: Largest change that does not count. Zero is right for most models: a hidden
            token has weight zero, and all else is computed as before.
        generator: As in `dependence`.

    Raises:
        ValueError: As in `dependence`, or if `allowed` has another shape than what was seen.

    """
    module, generator = _module(model, module), _or_new(generator)
    changes = {}
    for mode in ("as given",) if module is None else ("train", "eval"):
        changes[mode] = dependence(
            model,
            tokens,
            vocab_size,
            module=module,
            mode=mode,
            num_replacements=num_replacements,
            generator=generator,
        )
        if embedding is not None:
            changes[f"{mode}, by gradients"] = gradient_dependence(
                model, tokens, embedding, module=module, mode=mode, generator=generator
            )
    for change in changes.values():
        if change.shape != allowed.shape:
            raise ValueError(
                "allowed must have a row per output and a column per input, "
                f"got {tuple(allowed.shape)} for {tuple(change.shape)}"
            )
    allowed = allowed.to(tokens.device)
    return DependenceAudit(changes, allowed, tolerance)


def causality_audit(
    model: Model,
    tokens: Int[Tensor, "batch length"],
    vocab_size: int,
    *,
    module: nn.Module | None = None,
    embedding: nn.Module | None = None,
    num_replacements: int = 3,
    tolerance: float = 0.0,
    generator: torch.Generator | None = None,
) -> DependenceAudit:
    """See whether any output depends on a later input, in training and in evaluation.

    A model that looks ahead learns to copy, and its loss says nothing. Two ways into published
    code: a mask that is applied in one of the two modes only, and statistics over positions.

    Args:
        model: What is examined.
        tokens: Token numbers to start from.
        vocab_size: Number of different tokens.
        module: As in `dependence_audit`.
        embedding: As in `dependence_audit`.
        num_replacements: As in `dependence`.
        tolerance: As in `dependence_audit`.
        generator: As in `dependence`.

    Raises:
        ValueError: As in `dependence`, or if there is not one output per token.

    Source:
        A mask in training only: https://github.com/d2l-ai/d2l-en/issues/2057 and
        https://github.com/shiyu-coder/Kronos/issues/199

    """
    length = tokens.shape[1]
    return dependence_audit(
        model,
        tokens,
        vocab_size,
        torch.ones(length, length, dtype=torch.bool).tril(),
        module=module,
        embedding=embedding,
        num_replacements=num_replacements,
        tolerance=tolerance,
        generator=generator,
    )


def batch_audit(
    model: Model,
    tokens: Int[Tensor, "batch length"],
    vocab_size: int,
    *,
    module: nn.Module | None = None,
    tolerance: float = 0.0,
    generator: torch.Generator | None = None,
) -> DependenceAudit:
    """See whether any sequence depends on what it happens to share a batch with.

    Args:
        model: What is examined.
        tokens: Token numbers to start from, at least two rows.
        vocab_size: Number of different tokens.
        module: As in `dependence_audit`.
        tolerance: As in `dependence_audit`.
        generator: As in `dependence`.

    Returns:
        An audit whose outputs and inputs are rows of the batch rather than positions.

    Raises:
        ValueError: As in `dependence`, or if there is a single row.

    """
    batch = len(tokens)
    if batch < 2:
        raise ValueError(f"a batch must have at least 2 rows to leak, got batch={batch}")
    module = _module(model, module)
    other = _replacements(tokens, vocab_size, 1, generator)[0]
    changes = {}
    for mode in ("as given",) if module is None else ("train", "eval"):
        ask = _Question(model, module, mode)
        before = _answer_twice(ask, tokens)
        columns = []
        for row in range(batch):
            changed = tokens.clone()
            changed[row] = other[row]
            columns.append(_difference(ask(changed), before).flatten(1).amax(dim=1))
        changes[mode] = torch.stack(columns, dim=-1)
    allowed = torch.eye(batch, dtype=torch.bool, device=tokens.device)
    return DependenceAudit(changes, allowed, tolerance)


# What must come out equal


def prefix_invariance(
    model: Model,
    tokens: Int[Tensor, "batch length"],
    *,
    module: nn.Module | None = None,
    tolerance: float = 1e-5,
) -> Check:
    """See whether the outputs for the first tokens are the same when nothing follows.

    Stricter than causality: a model that counts positions from the end, or divides by the
    length, knows how much text is still to come even if it cannot read it.

    Args:
        model: What is examined, in evaluation mode.
        tokens: Token numbers; all their beginnings are tried.
        module: As in `dependence`.
        tolerance: Largest difference put down to rounding, in the unit of the outputs.

    """
    ask = _Question(model, _module(model, module), "eval")
    whole = ask(tokens)
    pairs = {
        f"the first {length} of {tokens.shape[1]} tokens": (
            ask(tokens[:, :length]),
            whole[:, :length],
        )
        for length in range(1, tokens.shape[1])
    }
    return _check("a beginning does not depend on the length", pairs, tolerance)


def padding_invariance(
    model: Callable[[Tensor, Tensor], Tensor],
    tokens: Int[Tensor, "batch length"],
    lengths: Int[Tensor, " batch"],
    *,
    module: nn.Module | None = None,
    tolerance: float = 1e-5,
) -> Check:
    """See whether each padded sequence gives what it gives alone, without padding.

    Args:
        model: Takes tokens, padded at the end, and the number of real tokens of each sequence,
            from which it makes its mask.
        tokens: Token numbers. What stands in the padding is arbitrary and should not be always
            the same token, which a model may have learned to ignore.
        lengths: Number of real tokens of each sequence.
        module: The module behind `model`, taken in evaluation mode.
        tolerance: As in `prefix_invariance`.

    """
    module = _module(model, module)

    def ask(tokens: Tensor, lengths: Tensor) -> Tensor:
        return _Question(lambda numbers: model(numbers, lengths), module, "eval")(tokens)

    together = ask(tokens, lengths)
    pairs = {}
    for row, length in enumerate(lengths.tolist()):
        alone = ask(tokens[row : row + 1, :length], lengths[row : row + 1])
        pairs[f"row {row} of length {length}"] = (together[row : row + 1, :length], alone)
    return _check("padding does not change a sequence", pairs, tolerance)


def cache_equality(
    model: Model,
    step: Callable[[Tensor, Any], Tensor],
    new_cache: Callable[[], Any],
    tokens: Int[Tensor, "batch length"],
    *,
    module: nn.Module | None = None,
    num_chunkings: int = 5,
    tolerance: float = 1e-5,
    generator: torch.Generator | None = None,
) -> Check:
    """See whether a text read piece by piece, with a cache, gives what it gives at once.

    Args:
        model: Reads it at once.
        step: Takes the next tokens and the cache, gives the outputs of these tokens.
        new_cache: Makes an empty cache.
        tokens: Token numbers.
        module: The module behind `model` and `step`, taken in evaluation mode.
        num_chunkings: Number of ways to cut the text, drawn at random, on top of two: token by
            token, and not at all.
        tolerance: As in `prefix_invariance`.
        generator: Draws the cuts; by default a new one, the same at every call.

    """
    length, generator = tokens.shape[1], _or_new(generator)
    module = _module(model, module)
    whole = _Question(model, module, "eval")(tokens)
    chunkings = [[1] * length, [length]]
    for _ in range(num_chunkings):
        is_cut = torch.rand(length - 1, generator=generator) < 0.5
        cuts = [0, *(is_cut.nonzero().flatten() + 1).tolist(), length]
        chunkings.append([end - start for start, end in zip(cuts, cuts[1:], strict=False)])
    pairs = {}
    for sizes in chunkings:
        cache = new_cache()
        ask = _Question(lambda chunk, cache=cache: step(chunk, cache), module, "eval")
        outputs = [ask(chunk) for chunk in tokens.split(sizes, dim=1)]
        pairs[f"pieces of {sizes} tokens"] = (torch.cat(outputs, dim=1), whole)
    return _check("a cache does not change the outputs", pairs, tolerance)


def permutation_equivariance(
    layer: Model,
    x: Float[Tensor, "batch length width"],
    *,
    module: nn.Module | None = None,
    num_permutations: int = 3,
    tolerance: float = 1e-5,
    generator: torch.Generator | None = None,
) -> Check:
    """See whether shuffled vectors give the same outputs, shuffled: whether `layer` sees a set.

    Args:
        layer: Takes vectors and gives one output each.
        x: The vectors.
        module: The module behind `layer`, taken in evaluation mode.
        num_permutations: Number of orders tried.
        tolerance: As in `prefix_invariance`.
        generator: Draws the orders; by default a new one, the same at every call.

    Raises:
        ValueError: If there is only one vector, which has one order.

    """
    if x.shape[1] < 2:
        raise ValueError(f"there must be at least 2 vectors to shuffle, got length={x.shape[1]}")
    ask, generator = _Question(layer, _module(layer, module), "eval"), _or_new(generator)
    out, pairs = ask(x), {}
    for _ in range(num_permutations):
        order = torch.randperm(x.shape[1], generator=generator)
        if torch.equal(order, order.sort().values):
            order = order.roll(1)  # leaving all in place would test nothing
        pairs[f"order {order.tolist()}"] = (ask(x[:, order]), out[:, order])
    return _check("shuffled inputs give shuffled outputs", pairs, tolerance)


def shift_invariance(
    scores: Callable[[Tensor], Tensor],
    positions: Int[Tensor, " length"],
    *,
    shifts: Sequence[int] = (1, 7, 100),
    tolerance: float = 1e-5,
) -> Check:
    """See whether scores depend on how far apart tokens stand, and not on where they stand.

    Args:
        scores: Takes the positions of the same tokens and gives their attention scores.
        positions: Where the tokens stand at first.
        shifts: By how many positions all tokens move on.
        tolerance: As in `prefix_invariance`, in the unit of the scores.

    """
    before = scores(positions)
    pairs = {f"{shift} positions on": (scores(positions + shift), before) for shift in shifts}
    return _check("scores do not depend on where the text stands", pairs, tolerance)


def repeatability(
    model: Model,
    tokens: Int[Tensor, "batch length"],
    *,
    module: nn.Module | None = None,
) -> Check:
    """See whether a model in evaluation mode answers the same, whatever the random state.

    Args:
        model: What is examined.
        tokens: Token numbers.
        module: As in `dependence`.

    """
    ask = _Question(model, _module(model, module), "eval")
    pairs = {f"random seed {seed}": (ask(tokens, seed), ask(tokens, 0)) for seed in (0, 1, 2)}
    return _check("the same tokens give the same outputs", pairs, 0.0)


def purity(
    model: Model,
    tokens: Int[Tensor, "batch length"],
    *,
    module: nn.Module | None = None,
) -> Check:
    """See whether a model in evaluation mode leaves its input and its own numbers alone.

    Args:
        model: What is examined.
        tokens: Token numbers.
        module: As in `dependence`.

    """
    module, given = _module(model, module), tokens.clone()
    pairs = {"tokens": (given, tokens)}

    def own() -> dict[str, Tensor]:
        numbers = [] if module is None else [*module.named_parameters(), *module.named_buffers()]
        return {name: values.clone() for name, values in numbers}

    def look(_: Tensor) -> Tensor:
        before = own()
        out = model(given)
        after = own()
        pairs.update({name: (after[name], values) for name, values in before.items()})
        return out

    _Question(look, module, "eval")(tokens)
    return _check("a call changes neither the input nor the model", pairs, 0.0)


def finite_in(
    module: nn.Module,
    tokens: Int[Tensor, "batch length"],
    dtype: torch.dtype,
    *,
    call: Callable[[nn.Module, Tensor], Tensor] | None = None,
) -> Check:
    """Count the outputs and gradients that are NaN or infinite in a dtype.

    Args:
        module: What is examined; a copy of it is converted.
        tokens: Token numbers.
        dtype: Floating-point type of all parameters.
        call: How to call the copy; by default with the tokens alone.

    Returns:
        A check whose difference is the number of entries that are not finite.

    """
    cast = copy.deepcopy(module).to(dtype).eval()
    with torch.enable_grad():
        logits = cast(tokens) if call is None else call(cast, tokens)
        logits.to(torch.promote_types(dtype, torch.float32)).logsumexp(dim=-1).mean().backward()
    counted = {"outputs": logits.detach()}
    counted |= {
        f"gradient of {n}": p.grad for n, p in cast.named_parameters() if p.grad is not None
    }
    counts = {name: int((~values.isfinite()).sum()) for name, values in counted.items()}
    where = max(counts, key=counts.__getitem__)
    return Check(f"numbers stay finite in {dtype}", float(sum(counts.values())), 0.0, where)


# How a model is asked


class _Question:
    """A model called so that equal inputs give equal outputs and no call leaves a trace."""

    def __init__(self, model: Model, module: nn.Module | None, mode: str):
        if module is not None and mode not in ("train", "eval"):
            raise ValueError(f"mode must be train or eval, got mode={mode}")
        self.model, self.module, self.mode = model, module, mode

    @torch.no_grad()
    def __call__(self, tokens: Tensor, seed: int = 0) -> Tensor:
        with _undisturbed(self.module), _seeded(seed):
            if self.module is not None:
                self.module.train(self.mode == "train")
            # A copy, in case it is overwritten: `purity` is there to find that out.
            out = self.model(tokens.clone())
        if out.ndim < 2 or len(out) != len(tokens):
            raise ValueError(
                "a model must give outputs for each row and position, "
                f"got {tuple(out.shape)} for tokens of shape {tuple(tokens.shape)}"
            )
        return out.clone()  # the next call may write to the same place

    def with_vectors(
        self, tokens: Tensor, embedding: nn.Module, change: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Ask with changed input vectors; give the outputs and the vectors."""
        seen = []

        def take_over(_module: nn.Module, _inputs: tuple, vectors: Tensor) -> Tensor:
            seen.append(change(vectors.detach()).requires_grad_(torch.is_grad_enabled()))
            return seen[-1]

        handle = embedding.register_forward_hook(take_over)
        try:
            with _undisturbed(self.module), _seeded(0):
                if self.module is not None:
                    self.module.train(self.mode == "train")
                out = self.model(tokens.clone())
        finally:
            handle.remove()
        if len(seen) != 1:
            raise ValueError(f"embedding must be called exactly once, got {len(seen)} calls")
        return out, seen[0]


@contextmanager
def _undisturbed(module: nn.Module | None) -> Iterator[None]:
    """Lend a module copies of its buffers, such as running statistics; put back its modes."""
    parts = [] if module is None else list(module.modules())
    modes = [part.training for part in parts]
    buffers = [(part, *named) for part in parts for named in part.named_buffers(recurse=False)]
    for part, name, buffer in buffers:
        setattr(part, name, buffer.clone())
    try:
        yield
    finally:
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode
        for part, name, buffer in buffers:
            setattr(part, name, buffer)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Let dropout draw the same at every call, and give the random state back."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(list(devices)):
        torch.manual_seed(seed)
        yield


def _module(model: Callable, module: nn.Module | None) -> nn.Module | None:
    return model if module is None and isinstance(model, nn.Module) else module


def _poison(vectors: Tensor, index: Tensor) -> Tensor:
    return vectors.index_fill(1, index, torch.nan)


def _or_new(generator: torch.Generator | None) -> torch.Generator:
    return torch.Generator().manual_seed(0) if generator is None else generator


def _replacements(
    tokens: Tensor, vocab_size: int, number: int, generator: torch.Generator | None
) -> Tensor:
    """Give `number` other tokens for every one, each different from it."""
    if vocab_size < 2:
        raise ValueError(f"vocab_size must be at least 2 to replace, got vocab_size={vocab_size}")
    if number < 1:
        raise ValueError(f"num_replacements must be at least 1, got num_replacements={number}")
    steps = torch.randint(1, vocab_size, (number, *tokens.shape), generator=_or_new(generator))
    return (tokens + steps.to(tokens)) % vocab_size


def _answer_twice(ask: _Question, tokens: Tensor) -> Tensor:
    first, second = ask(tokens), ask(tokens)
    change = _difference(first, second).max().item()
    if change > 0:
        raise ValueError(
            "a model must answer the same tokens the same way twice to be examined, got a change "
            f"of {change:.3g} ({ask.mode}): does it keep a state, or a generator of its own?"
        )
    return first


def _difference(one: Tensor, other: Tensor) -> Tensor:
    is_same = (one == other) | (one.isnan() & other.isnan())
    apart = (one.double() - other.double()).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    return apart.masked_fill(is_same, 0.0)


def _steepest(slope: Tensor) -> Tensor:
    """Give the largest entry for each position of `(batch, length, width)`."""
    return slope.abs().nan_to_num(nan=torch.inf, posinf=torch.inf).amax(dim=(0, 2)).double()


def _check(law: str, pairs: dict[str, tuple[Tensor, Tensor]], tolerance: float) -> Check:
    for where, (one, other) in pairs.items():
        if one.shape != other.shape:
            raise ValueError(
                "results must have one shape to be compared, "
                f"got {tuple(one.shape)} and {tuple(other.shape)} ({where})"
            )
    apart = {where: _difference(*pair).max().item() for where, pair in pairs.items()}
    worst = max(apart, key=apart.__getitem__)
    return Check(law, apart[worst], tolerance, worst)
