"""The course's own diagrams, drawn after the library they are pictures of.

What stands in a diagram, in which order, and what reaches what is found out by running the models
that are drawn: a layer that is moved in the library moves in the picture. Their random weights
leave the page's own random numbers as they were.

    import diagrams
    diagrams.floor(["the", "cat", "sat"])
"""

import functools
from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle
from plotstyle import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, PURPLE
from torch import Tensor, nn

from groundup import presets
from groundup.core.attention import attention_weights
from groundup.core.blocks import Block
from groundup.core.masks import causal_mask
from groundup.core.models import DecoderOnly, EncoderDecoder, EncoderOnly
from groundup.core.multihead import MultiHeadAttention, merge_heads, split_heads

COLORS = {"norm": MUTED, "attention": BLUE, "cross_attention": PURPLE, "feed_forward": GREEN}
SIZE = 9.5
"""Of the letters, in points; on a phone about two thirds of that."""


def apart(draw: Callable[..., None]) -> Callable[..., None]:
    """Let a drawing use random numbers of its own, the same in every build."""

    @functools.wraps(draw)
    def drawn(*args: object, **options: object) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            draw(*args, **options)

    return drawn


def calls(model: nn.Module, *inputs: Tensor, **options: object) -> list[str]:
    """List the children of a model in the order in which it computes by them.

    A child that holds a list of others counts once for each, as `blocks.0`.
    """
    children = {}
    for name, child in model.named_children():
        held = child.named_children() if isinstance(child, nn.ModuleList) else [("", child)]
        children |= {f"{name}.{part}".rstrip("."): module for part, module in held}
    seen: list[str] = []
    hooks = [
        module.register_forward_hook(lambda *_, name=name: seen.append(name))
        for name, module in children.items()
        if not isinstance(module, nn.Dropout)
    ]
    with torch.no_grad():
        model.eval()(*inputs, **options)
    for hook in hooks:
        hook.remove()
    return seen


def mixes_tokens(layer: nn.Module, d_model: int) -> bool:
    """Say whether what a layer gives for one token depends on another, by trying."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 3, d_model, generator=generator)
    changed = x.clone()
    changed[0, 0] = torch.randn(d_model, generator=generator)
    with torch.no_grad():
        return not torch.equal(layer(x)[0, 1:], layer(changed)[0, 1:])


@apart
def floor(tokens: Sequence[str]) -> None:
    """Draw one pre-norm block with its residual streams, one for each token."""
    d_model = 12
    block = Block(d_model, num_heads=3, d_ff=24)
    steps = calls(block, torch.randn(1, len(tokens), d_model))
    pairs = list(zip(steps[::2], steps[1::2], strict=True))
    ax = _sheet(6.4, 5.4)
    gap, height = 3.4, 3.6
    streams = [gap * number for number in range(len(tokens))]
    for x, token in zip(streams, tokens, strict=True):
        top = height * len(pairs) + 0.9
        _wire(ax, (x, -0.5), (x, top), thick=True)
        ax.text(x, -0.75, token, ha="center", va="top", fontsize=SIZE + 1)
    for number, (_, layer) in enumerate(pairs):
        low = height * number
        for x in streams:
            branch = x + 1.5
            _wire(ax, (x, low + 0.2), (branch, low + 0.2), (branch, low + 0.64))
            _wire(ax, (branch, low + 1.26), (branch, low + 1.725))
            _wire(ax, (branch, low + 2.475), (branch, low + 3.1), (x + 0.24, low + 3.1))
            _box(ax, branch, low + 0.95, 1.9, 0.62, "norm", COLORS["norm"])
            _plus(ax, x, low + 3.1)
        if mixes_tokens(getattr(block, layer), d_model):
            width = streams[-1] + 2.3
            _box(ax, 1.5 + streams[-1] / 2, low + 2.1, width, 0.75, _words(layer), COLORS[layer])
            for x in streams[1:]:  # they pass in front of it
                for color, linewidth in ((PAPER, 7.0), (INK, 3.0)):
                    ax.plot(
                        [x, x],
                        [low + 1.6, low + 2.6],
                        color=color,
                        linestyle="-",
                        linewidth=linewidth,
                    )
        else:
            for x in streams:
                _box(ax, x + 1.5, low + 2.1, 2.3, 0.75, _words(layer), COLORS[layer])
    ax.set(xlim=(-0.8, streams[-1] + 2.9), ylim=(-1.3, height * len(pairs) + 1.1))
    plt.show()


@apart
def heads(d_model: int, num_heads: int, length: int) -> None:
    """Draw multi-head attention as a road for numbers, with the shape they have at each step."""
    attention = MultiHeadAttention(d_model, num_heads)
    x = torch.randn(1, length, d_model)
    with torch.no_grad():
        maps = [getattr(attention, name)(x) for name in ("query", "key", "value")]
        query, key, value = (split_heads(each, num_heads) for each in maps)
        weights = attention_weights(query, key)
        found = weights @ value
        merged = merge_heads(found)
        given = attention.output(merged)
        if not torch.allclose(given, attention(x), atol=1e-6):
            raise ValueError("the diagram must show what the layer computes, its steps do not")
    ax = _sheet(6.4, 6.2)
    roads = {"query": 0.0, "key": 3.4, "value": 6.8}
    colors = dict(zip(roads, (BLUE, ORANGE, GREEN), strict=True))
    middle = roads["key"]
    _wire(ax, (middle, -0.4), (middle, 0.4))
    for name, place in roads.items():
        _wire(ax, (middle, 0.4), (place, 0.4), (place, 0.95))
        _wire(ax, (place, 1.65), (place, 2.75))
        _box(ax, place, 1.3, 2.3, 0.7, name, colors[name])
        for slab in reversed(range(num_heads)):
            corner = 0.22 * slab
            _box(ax, place + corner, 3.2 + corner, 2.0, 0.8, "", colors[name])
        ax.text(place, 3.2, "split", ha="center", va="center", fontsize=SIZE)
    _wire(ax, (roads["query"], 3.6 + 0.22 * (num_heads - 1)), (roads["query"], 5.1))
    _wire(ax, (roads["key"], 3.6 + 0.22 * (num_heads - 1)), (roads["key"], 5.1))
    _box(ax, (roads["query"] + roads["key"]) / 2, 5.5, 5.7, 0.8, "softmax of scaled scores", INK)
    _wire(ax, (roads["value"], 3.6 + 0.22 * (num_heads - 1)), (roads["value"], 6.9))
    _wire(ax, (middle, 5.9), (middle, 6.9))
    _box(ax, (middle + roads["value"]) / 2, 7.3, 5.7, 0.8, "weighted average, head by head", INK)
    top = (middle + roads["value"]) / 2
    _wire(ax, (top, 7.7), (top, 8.5))
    _box(ax, top, 8.85, 2.9, 0.7, "merge", INK)
    _wire(ax, (top, 9.2), (top, 10.0))
    _box(ax, top, 10.35, 2.9, 0.7, "output", PURPLE)
    _wire(ax, (top, 10.7), (top, 11.4))
    for place, y, tensor in (
        (middle, -0.25, x),
        (roads["query"], 2.15, maps[0]),
        (roads["query"], 4.6, query),
        (middle, 6.4, weights),
        (top, 8.1, found),
        (top, 9.6, merged),
        (top, 11.1, given),
    ):
        shape = ", ".join(str(size) for size in tensor.shape[1:])
        ax.text(place + 0.2, y, f"({shape})", va="center", fontsize=SIZE, color=MUTED)
    ax.set(xlim=(-1.4, 9.0), ylim=(-0.7, 11.6))
    plt.show()


@apart
def architectures() -> None:
    """Draw the three models side by side, from their inputs at the bottom to their outputs."""
    sizes = {"max_len": 9, "d_model": 12, "num_layers": 2, "num_heads": 3}
    reads = EncoderOnly(presets.encoder_only("tiny", vocab_size=11, **sizes))
    writes = DecoderOnly(presets.decoder_only("tiny", vocab_size=11, **sizes))
    sizes |= {"source_vocab_size": 11, "source_max_len": 9}
    both = EncoderDecoder(presets.encoder_decoder("tiny", vocab_size=13, **sizes))
    ids, target = torch.arange(4)[None], torch.arange(5)[None]
    ax = _sheet(6.4, 5.6)
    full, past = torch.ones(4, 4, dtype=torch.bool), causal_mask(4)
    _stack(ax, 0.0, reads, "blocks", calls(reads, ids), ids, {"attention": full})
    _stack(ax, 4.3, writes, "blocks", calls(writes, ids), ids, {"attention": past})
    steps = calls(both, ids, target)
    turn = steps.index("embedding")  # what comes before belongs to the source
    memory = _stack(ax, 8.6, both, "encoder", steps[:turn], ids, {"attention": full})
    masks = {"attention": past, "cross_attention": full}
    asks = _stack(ax, 12.9, both, "blocks", steps[turn:], target, masks)
    across = 10.7
    _wire(
        ax, (8.6, memory), (8.6, memory + 0.5), (across, memory + 0.5), (across, asks), (11.4, asks)
    )
    for x, title in ((0.0, "encoder-only"), (4.3, "decoder-only"), (10.75, "encoder-decoder")):
        ax.text(x, -2.1, title, ha="center", va="top", fontsize=SIZE + 1, weight="bold")
    for x, name in ((8.6, "source"), (12.9, "target")):
        ax.text(x, -1.1, name, ha="center", va="top", fontsize=SIZE)
    for x in (0.0, 4.3):
        ax.text(x, -1.1, "tokens", ha="center", va="top", fontsize=SIZE)
    ax.set(xlim=(-1.9, 14.8), ylim=(-2.8, 11.6))
    plt.show()


def _stack(
    ax: Axes,
    x: float,
    model: nn.Module,
    blocks: str,
    steps: list[str],
    tokens: Tensor,
    masks: dict[str, Tensor],
) -> float:
    """Draw one stack of blocks with what comes before and after it.

    Returns:
        The height at which the encoder ends or at which cross attention asks.

    """
    first = getattr(model, blocks)[0]
    d_model = first.attention_norm.gain.numel()
    inside = torch.randn(1, tokens.shape[1], d_model)
    memory = (inside,) if hasattr(first, "cross_attention") else ()
    layers = [name for name in calls(first, inside, *memory) if not name.endswith("norm")]
    count = sum(step.startswith(f"{blocks}.") for step in steps)
    before = steps[: steps.index(f"{blocks}.0")]
    after = steps[len(before) + count :]
    y, asks = 0.0, 0.0
    _wire(ax, (x, -0.9), (x, 0.0))
    for name in before:
        y = _floor_of(ax, x, y, name.removeprefix("source_"))
    bottom = y + 0.1
    y += 0.55
    for name in layers:
        height = 1.5 if name == "cross_attention" else 1.15
        _box(ax, x, y + height / 2, 2.9, height, "", COLORS[name])
        ax.text(
            x - 0.55 * (name in masks),
            y + height / 2,
            _words(name, "\n"),
            ha="center",
            va="center",
            fontsize=SIZE - 1,
        )
        if name in masks:
            _mask(ax, x + 0.85, y + height / 2, masks[name], COLORS[name])
        if name == "cross_attention":
            asks = y + height / 2
        _wire(ax, (x, y + height), (x, y + height + 0.35))
        y += height + 0.35
    frame = {"boxstyle": "round,pad=0,rounding_size=0.2", "linestyle": (0, (4, 3))}
    ax.add_patch(
        FancyBboxPatch(
            (x - 1.75, bottom + 0.1),
            3.5,
            y - bottom - 0.2,
            facecolor="none",
            edgecolor=MUTED,
            **frame,
        )
    )
    ax.text(x + 1.7, y + 0.0, f"× {count}", ha="right", va="bottom", fontsize=SIZE, color=MUTED)
    y += 0.8
    _wire(ax, (x, y - 0.9), (x, y))
    for name in after:
        y = _floor_of(ax, x, y, "norm" if name.endswith("norm") else name)
    if after[-1].endswith("norm"):
        return y - 0.35
    ax.text(x, y + 0.1, "logits", ha="center", va="bottom", fontsize=SIZE)
    return asks


def _floor_of(ax: Axes, x: float, y: float, name: str) -> float:
    """Draw one box on the way up, and give the height above it."""
    _box(ax, x, y + 0.4, 2.9, 0.8, _words(name), INK)
    _wire(ax, (x, y + 0.8), (x, y + 1.15))
    return y + 1.15


def _sheet(width: float, height: float) -> Axes:
    _, ax = plt.subplots(figsize=(width, height))
    ax.set_aspect("equal")
    ax.set_axis_off()
    return ax


def _words(name: str, space: str = " ") -> str:
    """Write a name of the library as one says it."""
    return {"feed_forward": "feed-forward"}.get(name, name.replace("_", space))


def _box(ax: Axes, x: float, y: float, width: float, height: float, text: str, color: str) -> None:
    """Draw a box around a middle; it hides what lies behind it."""
    for face in (PAPER, (color, 0.14)):
        ax.add_patch(
            FancyBboxPatch(
                (x - width / 2, y - height / 2),
                width,
                height,
                boxstyle="round,pad=0,rounding_size=0.12",
                facecolor=face,
                edgecolor=color,
                linewidth=1.4,
            )
        )
    ax.text(x, y, text, ha="center", va="center", fontsize=SIZE)


def _wire(ax: Axes, *points: tuple[float, float], thick: bool = False) -> None:
    """Draw a road from the first point to the last, where an arrow says which way it goes."""
    line = {"color": INK, "linestyle": "-", "linewidth": 3.0 if thick else 1.1, "zorder": 0}
    ax.plot(*zip(*points, strict=True), **line)
    head = {
        "arrowstyle": "-|>",
        "color": INK,
        "linewidth": line["linewidth"],
        "shrinkA": 0,
        "shrinkB": 0,
    }
    ax.annotate(
        "", points[-1], points[-2], arrowprops={**head, "mutation_scale": 14 if thick else 9}
    )


def _plus(ax: Axes, x: float, y: float) -> None:
    ax.plot(x, y, marker="o", markersize=12, color=PURPLE, zorder=3)
    ax.text(x, y, "+", ha="center", va="center", fontsize=12, color=PAPER, zorder=4)


def _mask(ax: Axes, x: float, y: float, allowed: Tensor, color: str, side: float = 0.19) -> None:
    """Draw a small table of who sees whom: queries are rows, keys columns."""
    rows, columns = allowed.shape
    for row in range(rows):
        for column in range(columns):
            corner = (x + (column - columns / 2) * side, y + (rows / 2 - row - 1) * side)
            face = color if allowed[row, column] else "none"
            ax.add_patch(
                Rectangle(corner, side, side, facecolor=face, edgecolor=MUTED, linewidth=0.5)
            )
