"""Replace what one part of a model sends: to all parts that read it, or to one head alone.

    with patched_head(model, (1, 2), lambda written: other):  # activation patching
        logits = model(tokens)
    with patched_path(model, (1, 2), (2, 0), "key"):  # for the keys of head 2.0 alone
        logits = model(tokens)

A function of the part's output in this run gives the replacement: zeros, the output at another
position, or one recorded in another run. Layers and heads are counted from 0.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from groundup.core.config import require
from groundup.core.models import DecoderOnly
from groundup.looking.probes import _attention_of, _blocks, _evaluating

Change = Callable[[Tensor], Tensor]
"""A function from a part's output to what replaces it."""
Head = tuple[int, int]
"""Index of a layer, and of a head in it."""
Input = Literal["query", "key", "value"]
"""What a head computes from the stream."""


@torch.no_grad()
def head_output(
    model: DecoderOnly, tokens: Int[Tensor, "batch length"], head: Head
) -> Float[Tensor, "batch length d_model"]:
    """Return what a head adds to the residual stream, without the bias of the output projection.

    Raises:
        ValueError: If there is no such head.

    """
    written: list[Tensor] = []
    with _evaluating(model), patched_head(model, head, lambda own: written.append(own) or own):
        model(tokens)
    return written[0]


@contextmanager
def patched_output(part: nn.Module, change: Change) -> Iterator[None]:
    """Replace the output of a module, such as a block or a feed-forward network, in a `with` block.

    Source:
        Vig et al. 2020, Investigating Gender Bias in Language Models Using Causal Mediation
        Analysis, https://arxiv.org/abs/2004.12265; Meng et al. 2022, Locating and Editing Factual
        Associations in GPT, section 2.1, https://arxiv.org/abs/2202.05262

    """

    def replace(part: nn.Module, inputs: tuple, result: Tensor) -> Tensor:
        return change(result)

    with part.register_forward_hook(replace):
        yield


@contextmanager
def patched_head(model: DecoderOnly, head: Head, change: Change) -> Iterator[None]:
    """Replace what a head adds to the residual stream, for all that read it, in a `with` block.

    With `torch.zeros_like` as `change`, the head is ablated, as by `without_heads`.

    Raises:
        ValueError: If there is no such head.

    """
    layer, number = head
    output = _attention_of(model, layer, number).output

    def replace(output: nn.Linear, inputs: tuple[Tensor], result: Tensor) -> Tensor:
        written = _written(output, inputs[0], number, model.config.d_head)
        return result - written + change(written)

    with output.register_forward_hook(replace):
        yield


@contextmanager
def patched_path(
    model: DecoderOnly, sender: Head, receiver: Head, into: Input, change: Change = torch.zeros_like
) -> Iterator[None]:
    """Replace what one head sends to one input of a later head, in a `with` block.

    The receiver computes its query, its key or its value from a stream in which the sender's output
    is replaced. The stream itself is not changed: what other parts make of the sender's output
    reaches the receiver as before.

    Args:
        model: Its blocks are pre-norm. In training mode, dropout would scale what is sent.
        sender: The head whose output is replaced. Of two senders to the same input, only the one
            entered last counts.
        receiver: A head of a later layer. If it shares its keys and values with other heads,
            their input changes too.
        into: Which input is changed. To change several, use one `with` for each.
        change: By default the path is cut.

    Raises:
        ValueError: If there is no such head, the receiver's layer is not later than the sender's,
            or the model is post-norm.

    Source:
        Wang et al. 2022, Interpretability in the Wild, https://arxiv.org/abs/2211.00593, who also
        change what feed-forward networks between the two heads pass on; one path at a time:
        Goldowsky-Dill et al. 2023, Localizing Model Behavior with Path Patching,
        https://arxiv.org/abs/2304.05969

    """
    (layer, number), (later, head) = sender, receiver
    lower, upper = _attention_of(model, layer, number), _attention_of(model, later, head)
    require(layer < later, "a path leads to a later layer", sender=sender, receiver=receiver)
    order = model.config.norm_order
    require(order == "pre", "a path needs a pre-norm model", norm_order=order)
    norm, projection = _blocks(model)[later].attention_norm, getattr(upper, into)
    shared = model.config.d_model // projection.out_features  # heads that share a key or a value
    own = slice(head // shared * upper.d_head, (head // shared + 1) * upper.d_head)
    seen: dict[str, Tensor] = {}

    def save_written(output: nn.Linear, inputs: tuple[Tensor]) -> None:
        seen["written"] = _written(output, inputs[0], number, lower.d_head)

    def save_stream(norm: nn.Module, inputs: tuple[Tensor]) -> None:
        seen["stream"] = inputs[0]

    def read_again(projection: nn.Linear, inputs: tuple[Tensor], result: Tensor) -> Tensor:
        stream = seen["stream"] - seen["written"] + change(seen["written"])
        again = projection.forward(norm.forward(stream))  # `forward` calls no hooks
        return torch.cat((result[..., : own.start], again[..., own], result[..., own.stop :]), -1)

    with ExitStack() as hooks:
        hooks.enter_context(lower.output.register_forward_pre_hook(save_written))
        hooks.enter_context(norm.register_forward_pre_hook(save_stream))
        hooks.enter_context(projection.register_forward_hook(read_again))
        yield


def _written(output: nn.Linear, mixed: Tensor, head: int, d_head: int) -> Tensor:
    """Give what one head adds to the stream, from the outputs of all heads side by side."""
    own = slice(head * d_head, (head + 1) * d_head)
    return mixed[..., own] @ output.weight[:, own].T
