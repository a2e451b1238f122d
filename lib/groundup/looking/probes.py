"""Probe a decoder-only model: attention maps, residual stream, logit lens, ablation, circuits.

    maps = attention_maps(model, tokens)  # (layers, batch, heads, length, length)
    depths = logit_lens(model, tokens)  # (layers + 1, batch, length, vocab)
    with without_heads(model, [(1, 2)]):  # head 2 of layer 1 adds nothing
        ablated = attention_maps(model, tokens)

Probes use hooks that exist only during a call, so the model needs no code for them. They run it in
evaluation mode and without gradients, and leave it unchanged. Only `without_heads` affects
everything that runs inside its `with` block, in any mode.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from groundup.core.blocks import Block
from groundup.core.config import require
from groundup.core.models import DecoderOnly
from groundup.core.multihead import MultiHeadAttention


@torch.no_grad()
def attention_maps(
    model: DecoderOnly, tokens: Int[Tensor, "batch length"]
) -> Float[Tensor, "layers batch heads length length"]:
    """Return how much each token attends to every other, in each head of each layer.

    A map shows where a head attends, not what effect it has: to measure that, ablate the head with
    `without_heads`.

    Args:
        model: A window in its configuration applies here as well.
        tokens: Token ids.

    Returns:
        Weights from 0 to 1, which sum to 1 over the last axis.

    Raises:
        ValueError: If the sequence is longer than the model allows.

    """
    maps = []

    def save(attention: MultiHeadAttention, inputs: tuple, choices: dict[str, Any]) -> None:
        passed = {name: choices.get(name) for name in ("mask", "positions")}
        maps.append(attention.weights(*inputs, **passed))

    with _evaluating(model), ExitStack() as hooks:
        for block in _blocks(model):
            hooks.enter_context(block.attention.register_forward_pre_hook(save, with_kwargs=True))
        model(tokens)
    return torch.stack(maps)


@torch.no_grad()
def residual_streams(
    model: DecoderOnly, tokens: Int[Tensor, "batch length"]
) -> Float[Tensor, "depths batch length d_model"]:
    """Return the residual stream of each token at every depth: before the blocks, and after each.

    Args:
        model: Any decoder-only model.
        tokens: Token ids.

    Returns:
        `num_layers + 1` depths.

    Raises:
        ValueError: If the sequence is longer than the model allows.

    """
    streams = []

    def enter(block: nn.Module, inputs: tuple) -> None:
        streams.append(inputs[0])

    def leave(block: nn.Module, inputs: tuple, output: Tensor) -> None:
        streams.append(output)

    with _evaluating(model), ExitStack() as hooks:
        hooks.enter_context(model.blocks[0].register_forward_pre_hook(enter))
        for block in model.blocks:
            hooks.enter_context(block.register_forward_hook(leave))
        model(tokens)
    return torch.stack(streams)


@torch.no_grad()
def logit_lens(
    model: DecoderOnly, tokens: Int[Tensor, "batch length"]
) -> Float[Tensor, "depths batch length vocab"]:
    """Return the logits that the model would give if it ended after each block.

    At every depth the residual stream goes through the final norm and the unembedding matrix, which
    were trained for the last depth only. If that works, you can watch the prediction improve with
    depth; if it does not, the model may still hold the information in another form.

    Args:
        model: Any decoder-only model.
        tokens: Token ids.

    Returns:
        At depth 0 the logits from the embeddings alone, at the last depth those of the model.

    Raises:
        ValueError: If the sequence is longer than the model allows.

    Source:
        nostalgebraist 2020, interpreting GPT: the logit lens,
        https://www.lesswrong.com/posts/AcKRB8wDpdaN6v6ru/interpreting-gpt-the-logit-lens

    """
    streams = residual_streams(model, tokens)
    with _evaluating(model):
        return torch.stack([model.unembedding(model.final_norm(stream)) for stream in streams])


@contextmanager
def without_heads(model: DecoderOnly, heads: Iterable[tuple[int, int]]) -> Iterator[None]:
    """Ablate heads: inside the `with` block, they add nothing to the residual stream.

    What gets worse shows what they were for, unless another head does the same: of two redundant
    heads either can be removed without effect, but not both. Zeros are also an input that later
    layers have never seen in training.

    Args:
        model: Is otherwise unaffected: gradients flow, and its parameters do not change. The bias
            of the output projection remains, because it belongs to no head.
        heads: Layer and head of each, both counted from 0.

    Raises:
        ValueError: If there is no such head.

    Source:
        Michel et al. 2019, Are Sixteen Heads Really Better than One?, section 3,
        https://arxiv.org/abs/1905.10650; Voita et al. 2019, Analyzing Multi-Head Self-Attention,
        https://arxiv.org/abs/1905.09418

    """
    ablated: dict[nn.Linear, list[int]] = {}
    for layer, head in heads:
        ablated.setdefault(_attention_of(model, layer, head).output, []).append(head)
    with ExitStack() as hooks:
        for output, numbers in ablated.items():
            hook = _zero_heads(model.config.num_heads, numbers)
            hooks.enter_context(output.register_forward_pre_hook(hook))
        yield


def _attention_of(model: DecoderOnly, layer: int, head: int) -> MultiHeadAttention:
    """Return the attention that a head is in; refuse a head that is not there."""
    num_layers, num_heads = model.config.num_layers, model.config.num_heads
    rule = f"a head must be one of {num_layers} layers of {num_heads} heads"
    require(0 <= layer < num_layers and 0 <= head < num_heads, rule, layer=layer, head=head)
    return _blocks(model)[layer].attention


def _blocks(model: DecoderOnly) -> list[Block]:
    return [cast(Block, block) for block in model.blocks]


def _zero_heads(num_heads: int, numbers: list[int]) -> Callable[..., tuple[Tensor]]:
    """Make a hook that sets the outputs of some heads to 0 before the output projection."""

    def zero(output: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        (mixed,) = inputs
        index = torch.tensor(numbers, device=mixed.device)
        heads = mixed.unflatten(-1, (num_heads, -1))  # (batch, length, heads, d_head)
        return (heads.index_fill(-2, index, 0.0).flatten(-2),)

    return zero


def repeated_tokens(
    choices: Int[Tensor, " vocab"], length: int, batch_size: int, generator: torch.Generator
) -> Int[Tensor, "batch {2*length}"]:
    """Draw passages of random tokens, each followed by a copy of itself.

    The first half of a sequence is unpredictable. The second is fully predictable, but only from
    the first: no token occurs twice in a passage, and none depends on its neighbours.

    Args:
        choices: Token ids to draw from. Exclude those that the model has never seen, such as
            the bytes of a byte-pair tokenizer that its text does not use.
        length: Tokens of a passage, before it is repeated.
        batch_size: Number of passages.
        generator: Draws the passages.

    Raises:
        ValueError: If there are fewer choices than tokens in a passage, or if `length` or
            `batch_size` is below 1.

    """
    require(batch_size >= 1, "batch_size must be at least 1", batch_size=batch_size)
    if not 1 <= length <= len(choices):
        raise ValueError(
            "length must be from 1 to the number of choices, "
            f"got length={length}, {len(choices)} choices"
        )
    orders = [torch.randperm(len(choices), generator=generator)[:length] for _ in range(batch_size)]
    passages = choices[torch.stack(orders)]
    return torch.cat([passages, passages], dim=1)


def induction_scores(
    model: DecoderOnly, tokens: Int[Tensor, "batch length"]
) -> Float[Tensor, "layers heads"]:
    """Return how much each head attends to the token after the previous occurrence of this one.

    In a repeated passage, `a b c a b c`, the second `b` can be continued by copying the token after
    the first `b`. The score of a head is its attention weight on that token, averaged over the
    second half. A head that attends to all tokens equally has a score near 0.

    Args:
        model: Any decoder-only model.
        tokens: Repeated passages, as `repeated_tokens` makes them; real text shows the same heads,
            and others too.

    Returns:
        Scores from 0 to 1.

    Raises:
        ValueError: If a second half is not a copy of the first.

    Source:
        Olsson et al. 2022, In-context Learning and Induction Heads,
        https://transformer-circuits.pub/2022/in-context-learning-and-induction-heads/index.html

    """
    half = tokens.shape[1] // 2
    if half < 1 or not torch.equal(tokens[:, :half], tokens[:, half:]):
        raise ValueError(
            "induction_scores needs repeated passages, "
            f"got {tokens.shape[1]} tokens whose halves differ"
        )
    # From position t in the second half to t - half + 1; the first entry on this diagonal belongs
    # to the last token of the first half, which has no previous occurrence.
    onward = attention_maps(model, tokens).diagonal(1 - half, -2, -1)[..., 1:]
    return onward.mean(dim=(1, 3))


def previous_token_scores(
    model: DecoderOnly, tokens: Int[Tensor, "batch length"]
) -> Float[Tensor, "layers heads"]:
    """Return how much each head attends to the previous token.

    An induction head needs a previous-token head in an earlier layer, which copies to each position
    the token *before* it: that is what the induction head compares with.

    Args:
        model: Any decoder-only model.
        tokens: At least two per row.

    Returns:
        Scores from 0 to 1, averaged over all tokens but the first.

    Raises:
        ValueError: If a row has fewer than two tokens.

    """
    length = tokens.shape[1]
    require(length >= 2, "length must be at least 2", length=length)
    return attention_maps(model, tokens).diagonal(-1, -2, -1).mean(dim=(1, 3))


def qk_circuit(attention: MultiHeadAttention, head: int) -> Float[Tensor, "d_model d_model"]:
    """Return the matrix by which a head scores two tokens: `x circuit yᵀ` before scaling.

    The query and key projections matter only through this product. It ignores biases, rotations
    and norms.

    Source:
        Elhage et al. 2021, A Mathematical Framework for Transformer Circuits,
        https://transformer-circuits.pub/2021/framework/index.html

    """
    query = attention.query.weight.unflatten(0, (attention.num_heads, -1))[head]
    kv_head = head * attention.num_kv_heads // attention.num_heads
    key = attention.key.weight.unflatten(0, (attention.num_kv_heads, -1))[kv_head]
    return query.T @ key  # both (d_head, d_model)


def ov_circuit(attention: MultiHeadAttention, head: int) -> Float[Tensor, "d_model d_model"]:
    """Return the matrix that gives what a head adds when it attends to a token: `x circuit`.

    Its rank is at most `d_head`. It ignores biases. Source as in `qk_circuit`.
    """
    kv_head = head * attention.num_kv_heads // attention.num_heads
    value = attention.value.weight.unflatten(0, (attention.num_kv_heads, -1))[kv_head]
    output = attention.output.weight.unflatten(1, (attention.num_heads, -1))[:, head]
    return value.T @ output.T  # (d_head, d_model) and (d_model, d_head)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation mode, and restore its modes afterwards."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, was_training in modes:
            part.training = was_training
