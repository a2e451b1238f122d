"""Checks that need no reference output: change the input in a known way and see what else changes.

Which logits should a language model give after "the cat"? No numbers are correct as such, but they
must not change when later words do. Such a law can be tested on any model: most checks here take a
callable that turns token ids `(batch, length)` into one row of logits per token.

Pass a whole `torch.nn.Module`, or pass the one that the callable uses as `module`: it is then
tested in training and in evaluation mode, because a mask may be applied in only one of them. Its
mode, its buffers and torch's random state are restored afterwards.

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
"""Token ids `(batch, length)` to logits `(batch, out_len, ...)`."""


@dataclass(frozen=True)
class Link:
    """An output position, an input position, and how much the output changed with the input."""

    mode: str
    """`train` or `eval`, as in `DependenceAudit.changes`."""
    output: int
    """Counted from 0."""
    input: int
    """Counted from 0."""
    change: float
    """Largest change seen, in the unit of the outputs; a derivative if measured by gradients."""


@dataclass(frozen=True, eq=False)
class DependenceAudit:
    """Which outputs depend on which inputs, and which are allowed to.

    `holds` alone can mislead: a model that ignores its inputs, because its weights are zero for
    example, leaks nothing either. Look at `unused` as well.
    """

    changes: dict[str, Float[Tensor, "out_len length"]]
    """Largest change of each output (row) when an input (column) changes, by mode."""
    allowed: Bool[Tensor, "out_len length"]
    """True where an output may depend on an input."""
    tolerance: float
    """Largest change that is attributed to rounding."""

    @property
    def dependence(self) -> dict[str, Bool[Tensor, "out_len length"]]:
        """True where an output was found to depend on an input, by mode."""
        return {mode: change > self.tolerance for mode, change in self.changes.items()}

    @property
    def leaks(self) -> tuple[Link, ...]:
        """Every dependence that is not allowed."""
        return self._links({mode: seen & ~self.allowed for mode, seen in self.dependence.items()})

    @property
    def unused(self) -> tuple[Link, ...]:
        """Every dependence that is allowed and was not found."""
        return self._links({mode: ~seen & self.allowed for mode, seen in self.dependence.items()})

    @property
    def holds(self) -> bool:
        """Whether nothing leaks in any mode."""
        return not self.leaks

    def __str__(self) -> str:
        """Describe the first leak of each mode."""
        first = {link.mode: link for link in reversed(self.leaks)}
        lines = [
            f"{mode}: output {first[mode].output} depends on input {first[mode].input}, "
            f"changed by {first[mode].change:.3g}; "
            f"leaks in total: {sum(link.mode == mode for link in self.leaks)}"
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
    """How far apart two results are that should be equal."""

    law: str
    """What was checked."""
    difference: float
    """Largest absolute difference seen; infinite where one result is NaN and the other is not."""
    tolerance: float
    """Largest difference that is attributed to rounding."""
    where: str
    """The case with the largest difference."""

    @property
    def holds(self) -> bool:
        """Whether the difference is within the tolerance."""
        return self.difference <= self.tolerance

    def __str__(self) -> str:
        """Describe the result in a line."""
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

    Each call replaces one position in all rows and is compared with a call that replaces none.
    Rows that influence each other, as in batch normalisation, therefore cannot be mistaken for
    positions that do. Dropout masks are the same in both calls.

    Args:
        model: What is tested.
        tokens: Token ids to start from. More rows find more dependences.
        vocab_size: Number of different tokens.
        module: The module that `model` uses; by default `model` itself if it is one.
        mode: `train` or `eval`, which `module` is switched to.
        num_replacements: Different tokens tried at each position, because one may change nothing
            that is visible, through a dead unit or rounding.
        generator: Draws the replacements; by default a new one with the same seed in each call.

    Returns:
        Largest absolute change of output `i` (row) when input `j` (column) is replaced, over all
        rows, replacements and logits; infinite if an output becomes NaN or stops being NaN.

    Raises:
        ValueError: If there are fewer than two tokens to choose from or no replacement is made,
            or if two calls with the same tokens give different outputs.

    """
    run = _Runner(model, _module(model, module), mode)
    others = _replacements(tokens, vocab_size, num_replacements, generator)
    before = _run_twice(run, tokens)
    columns = []
    for position in range(tokens.shape[1]):
        changed = tokens.repeat(num_replacements, 1, 1)  # (num_replacements, batch, length)
        changed[..., position] = others[..., position]
        change = torch.stack([_difference(run(numbers), before) for numbers in changed])
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
    """Measure the derivative of each output with respect to each input vector.

    Replacing tokens finds large influences of any kind; gradients find small ones, far below
    rounding error. Each misses something: no gradient passes through a comparison or a `detach`.

    Args:
        model: What is tested.
        tokens: Token ids to start from.
        embedding: The part of the model that turns tokens into vectors `(batch, length, width)`,
            called once.
        module: As in `dependence`.
        mode: As in `dependence`.
        generator: Draws the direction onto which the logits of a token are projected; by default a
            new one with the same seed in each call.

    Returns:
        Largest absolute derivative of output `i` (row) with respect to a feature of input `j`
        (column), over all rows of the batch.

    Raises:
        ValueError: If `embedding` is not called exactly once, or the outputs have no gradient.

    """
    generator = _or_new(generator)
    run = _Runner(model, _module(model, module), mode)
    with torch.enable_grad():
        logits, vectors = run.with_vectors(tokens, embedding, lambda vectors: vectors)
        if not logits.requires_grad:
            raise ValueError("the outputs must have a gradient, got none: is the model detached?")
        direction = torch.randn(logits.shape[2:], generator=generator).to(logits)
        # A plain sum would not do: the sum of a normalised vector is constant.
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
    """Find which outputs become NaN when an input vector is NaN.

    A NaN survives every sum and product, even a product with zero. An output without NaN is
    therefore not computed from that input at all; the other two measures only show that the inputs
    tried had no effect. The converse fails: attention that multiplies a masked value by a weight of
    zero passes the NaN on and leaks nothing. Comparisons stop a NaN.

    Args:
        model: What is tested.
        tokens: Token ids to start from.
        embedding: As in `gradient_dependence`.
        module: As in `dependence`.
        mode: As in `dependence`.

    Returns:
        True at `(i, j)` where output `i` has a NaN when the vector of input `j` is NaN.

    Raises:
        ValueError: If `embedding` is not called exactly once.

    """
    run = _Runner(model, _module(model, module), mode)
    columns = []
    for position in range(tokens.shape[1]):
        index = torch.tensor([position], device=tokens.device)
        fill = partial(Tensor.index_fill, dim=1, index=index, value=torch.nan)
        with torch.no_grad():
            logits, _ = run.with_vectors(tokens, embedding, fill)
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
    """Compare what each output depends on with what it is allowed to depend on.

    Args:
        model: What is tested. An encoder-decoder is tested with its source or its target held
            fixed.
        tokens: Token ids to start from.
        vocab_size: Number of different tokens.
        allowed: True where an output (row) may depend on an input (column).
        module: The module that `model` uses, tested in both modes; by default `model` itself. If
            there is none, the model is tested in its present mode, named `as given`.
        embedding: If given, gradients are measured as well; see `gradient_dependence`.
        num_replacements: As in `dependence`.
        tolerance: Largest change that does not count. Zero suits most models: a masked token has
            weight zero, and everything else is computed as before.
        generator: As in `dependence`.

    Raises:
        ValueError: As in `dependence` and `gradient_dependence`, or if `allowed` does not have one
            row per output and one column per input.

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
    """Test whether any output depends on a later input, in training and in evaluation mode.

    A model that can look ahead learns to copy, and its loss is meaningless. Published code has
    leaked through a mask that was applied in only one mode, and through statistics over positions.

    Args:
        model: What is tested.
        tokens: Token ids to start from.
        vocab_size: Number of different tokens.
        module: As in `dependence_audit`.
        embedding: As in `dependence_audit`.
        num_replacements: As in `dependence`.
        tolerance: As in `dependence_audit`.
        generator: As in `dependence`.

    Raises:
        ValueError: As in `dependence`, or if there is not one output per token.

    Source:
        A mask in training mode only: https://github.com/d2l-ai/d2l-en/issues/2057 and
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
    """Test whether any sequence depends on the others in its batch.

    Args:
        model: What is tested.
        tokens: Token ids to start from, at least two rows.
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
        run = _Runner(model, module, mode)
        before = _run_twice(run, tokens)
        columns = []
        for row in range(batch):
            changed = tokens.clone()
            changed[row] = other[row]
            columns.append(_difference(run(changed), before).flatten(1).amax(dim=1))
        changes[mode] = torch.stack(columns, dim=-1)
    allowed = torch.eye(batch, dtype=torch.bool, device=tokens.device)
    return DependenceAudit(changes, allowed, tolerance)


# Results that must be equal


def prefix_invariance(
    model: Model,
    tokens: Int[Tensor, "batch length"],
    *,
    module: nn.Module | None = None,
    tolerance: float = 1e-5,
) -> Check:
    """Test whether the outputs for a prefix are the same when nothing follows it.

    Stricter than causality: a model that counts positions from the end, or divides by the length,
    knows how many tokens follow even if it cannot read them.

    Args:
        model: What is tested, in evaluation mode.
        tokens: Token ids; all prefixes are tried.
        module: As in `dependence`.
        tolerance: Largest difference attributed to rounding, in the unit of the outputs.

    """
    run = _Runner(model, _module(model, module), "eval")
    whole = run(tokens)
    pairs = {
        f"the first {length} of {tokens.shape[1]} tokens": (
            run(tokens[:, :length]),
            whole[:, :length],
        )
        for length in range(1, tokens.shape[1])
    }
    return _check("a prefix does not depend on the length", pairs, tolerance)


def padding_invariance(
    model: Callable[[Tensor, Tensor], Tensor],
    tokens: Int[Tensor, "batch length"],
    lengths: Int[Tensor, " batch"],
    *,
    module: nn.Module | None = None,
    tolerance: float = 1e-5,
) -> Check:
    """Test whether each padded sequence has the same outputs as alone, without padding.

    Args:
        model: Takes tokens, padded at the end, and the number of real tokens of each sequence,
            from which it makes its mask.
        tokens: Token ids. The padding should be arbitrary tokens rather than a single one,
            which a model may have learned to ignore.
        lengths: Number of real tokens of each sequence.
        module: The module that `model` uses, switched to evaluation mode.
        tolerance: As in `prefix_invariance`.

    """
    module = _module(model, module)

    def run(tokens: Tensor, lengths: Tensor) -> Tensor:
        return _Runner(lambda numbers: model(numbers, lengths), module, "eval")(tokens)

    together = run(tokens, lengths)
    pairs = {}
    for row, length in enumerate(lengths.tolist()):
        alone = run(tokens[row : row + 1, :length], lengths[row : row + 1])
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
    """Test whether a sequence read in chunks, with a cache, has the same outputs as read at once.

    Args:
        model: Reads the whole sequence.
        step: Takes the next tokens and the cache; returns the outputs of these tokens.
        new_cache: Makes an empty cache.
        tokens: Token ids.
        module: The module that `model` and `step` use, switched to evaluation mode.
        num_chunkings: Number of random ways to cut the sequence, in addition to two: token by
            token, and not at all.
        tolerance: As in `prefix_invariance`.
        generator: Draws the cuts; by default a new one with the same seed in each call.

    """
    length, generator = tokens.shape[1], _or_new(generator)
    module = _module(model, module)
    whole = _Runner(model, module, "eval")(tokens)
    chunkings = [[1] * length, [length]]
    for _ in range(num_chunkings):
        is_cut = torch.rand(length - 1, generator=generator) < 0.5
        cuts = [0, *(is_cut.nonzero().flatten() + 1).tolist(), length]
        chunkings.append([end - start for start, end in zip(cuts, cuts[1:], strict=False)])
    pairs = {}
    for sizes in chunkings:
        cache = new_cache()
        run = _Runner(lambda chunk, cache=cache: step(chunk, cache), module, "eval")
        outputs = [run(chunk) for chunk in tokens.split(sizes, dim=1)]
        pairs[f"chunks of {sizes} tokens"] = (torch.cat(outputs, dim=1), whole)
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
    """Test whether permuted inputs give the outputs in the same permutation.

    If so, the layer treats its inputs as a set.

    Args:
        layer: Takes vectors and returns one output for each.
        x: The vectors.
        module: The module that `layer` uses, switched to evaluation mode.
        num_permutations: Number of permutations tried.
        tolerance: As in `prefix_invariance`.
        generator: Draws the permutations; by default a new one with the same seed in each call.

    Raises:
        ValueError: If there is only one vector.

    """
    if x.shape[1] < 2:
        raise ValueError(f"there must be at least 2 vectors to shuffle, got length={x.shape[1]}")
    run, generator = _Runner(layer, _module(layer, module), "eval"), _or_new(generator)
    out, pairs = run(x), {}
    for _ in range(num_permutations):
        order = torch.randperm(x.shape[1], generator=generator)
        if torch.equal(order, order.sort().values):
            order = order.roll(1)  # the identity would test nothing
        pairs[f"order {order.tolist()}"] = (run(x[:, order]), out[:, order])
    return _check("permuted inputs give permuted outputs", pairs, tolerance)


def shift_invariance(
    scores: Callable[[Tensor], Tensor],
    positions: Int[Tensor, " length"],
    *,
    shifts: Sequence[int] = (1, 7, 100),
    tolerance: float = 1e-5,
) -> Check:
    """Test whether scores depend only on the distances between positions.

    Args:
        scores: Takes the positions of fixed tokens and returns their attention scores.
        positions: The initial positions of the tokens.
        shifts: Numbers of positions by which all tokens are shifted.
        tolerance: As in `prefix_invariance`, in the unit of the scores.

    """
    before = scores(positions)
    pairs = {f"shifted by {shift}": (scores(positions + shift), before) for shift in shifts}
    return _check("scores do not depend on absolute position", pairs, tolerance)


def repeatability(
    model: Model,
    tokens: Int[Tensor, "batch length"],
    *,
    module: nn.Module | None = None,
) -> Check:
    """Test whether the outputs in evaluation mode are independent of torch's random state.

    Args:
        model: What is tested.
        tokens: Token ids.
        module: As in `dependence`.

    """
    run = _Runner(model, _module(model, module), "eval")
    pairs = {f"random seed {seed}": (run(tokens, seed), run(tokens, 0)) for seed in (0, 1, 2)}
    return _check("the same tokens give the same outputs", pairs, 0.0)


def purity(
    model: Model,
    tokens: Int[Tensor, "batch length"],
    *,
    module: nn.Module | None = None,
) -> Check:
    """Test whether a call in evaluation mode leaves the input, parameters and buffers unchanged.

    Args:
        model: What is tested.
        tokens: Token ids.
        module: As in `dependence`.

    """
    module, given = _module(model, module), tokens.clone()
    pairs = {"tokens": (given, tokens)}

    def own() -> dict[str, Tensor]:
        numbers = [] if module is None else [*module.named_parameters(), *module.named_buffers()]
        return {name: values.clone() for name, values in numbers}

    def call(_: Tensor) -> Tensor:
        before = own()
        out = model(given)
        after = own()
        pairs.update({name: (after[name], values) for name, values in before.items()})
        return out

    _Runner(call, module, "eval")(tokens)
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
        module: What is tested; a copy of it is converted.
        tokens: Token ids.
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


# How a model is called


class _Runner:
    """Calls a model with a fixed random state, and restores the modes and buffers of its module."""

    def __init__(self, model: Model, module: nn.Module | None, mode: str):
        if module is not None and mode not in ("train", "eval"):
            raise ValueError(f"mode must be train or eval, got mode={mode}")
        self.model, self.module, self.mode = model, module, mode

    def _run(self, tokens: Tensor, seed: int = 0) -> Tensor:
        with _undisturbed(self.module), _seeded(seed):
            if self.module is not None:
                self.module.train(self.mode == "train")
            # A copy, in case it is overwritten: detecting that is the task of `purity`.
            return self.model(tokens.clone())

    @torch.no_grad()
    def __call__(self, tokens: Tensor, seed: int = 0) -> Tensor:
        out = self._run(tokens, seed)
        if out.ndim < 2 or len(out) != len(tokens):
            raise ValueError(
                "a model must give outputs for each row and position, "
                f"got {tuple(out.shape)} for tokens of shape {tuple(tokens.shape)}"
            )
        return out.clone()  # the next call may write to the same memory

    def with_vectors(
        self, tokens: Tensor, embedding: nn.Module, change: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Call the model with changed input vectors; return the outputs and the vectors."""
        seen = []

        def replace(_module: nn.Module, _inputs: tuple, vectors: Tensor) -> Tensor:
            seen.append(change(vectors.detach()).requires_grad_(torch.is_grad_enabled()))
            return seen[-1]

        with embedding.register_forward_hook(replace):
            out = self._run(tokens)
        if len(seen) != 1:
            raise ValueError(f"embedding must be called exactly once, got {len(seen)} calls")
        return out, seen[0]


@contextmanager
def _undisturbed(module: nn.Module | None) -> Iterator[None]:
    """Restore a module's modes and its buffers, such as running statistics, afterwards."""
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
    """Seed torch, so that dropout is the same in every call; restore the random state."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(list(devices)):
        torch.manual_seed(seed)
        yield


def _module(model: Callable, module: nn.Module | None) -> nn.Module | None:
    return model if module is None and isinstance(model, nn.Module) else module


def _or_new(generator: torch.Generator | None) -> torch.Generator:
    return torch.Generator().manual_seed(0) if generator is None else generator


def _replacements(
    tokens: Tensor, vocab_size: int, number: int, generator: torch.Generator | None
) -> Tensor:
    """Draw `number` replacements for every token, each different from it."""
    if vocab_size < 2:
        raise ValueError(f"vocab_size must be at least 2 to replace, got vocab_size={vocab_size}")
    if number < 1:
        raise ValueError(f"num_replacements must be at least 1, got num_replacements={number}")
    steps = torch.randint(1, vocab_size, (number, *tokens.shape), generator=_or_new(generator))
    return (tokens + steps.to(tokens)) % vocab_size


def _run_twice(run: _Runner, tokens: Tensor) -> Tensor:
    first, second = run(tokens), run(tokens)
    change = _difference(first, second).max().item()
    if change > 0:
        raise ValueError(
            "a model must give equal outputs for equal tokens to be tested, got a change of "
            f"{change:.3g} ({run.mode}): does it keep a state, or a generator of its own?"
        )
    return first


def _difference(one: Tensor, other: Tensor) -> Tensor:
    is_same = (one == other) | (one.isnan() & other.isnan())
    apart = (one.double() - other.double()).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    return apart.masked_fill(is_same, 0.0)


def _steepest(slope: Tensor) -> Tensor:
    """Return the largest absolute entry for each position of `(batch, length, width)`."""
    return slope.abs().nan_to_num(nan=torch.inf, posinf=torch.inf).amax(dim=(0, 2)).double()


def _check(law: str, pairs: dict[str, tuple[Tensor, Tensor]], tolerance: float) -> Check:
    for where, (one, other) in pairs.items():
        if one.shape != other.shape:
            raise ValueError(
                "results must have the same shape to be compared, "
                f"got {tuple(one.shape)} and {tuple(other.shape)} ({where})"
            )
    apart = {where: _difference(*pair).max().item() for where, pair in pairs.items()}
    worst = max(apart, key=apart.__getitem__)
    return Check(law, apart[worst], tolerance, worst)
