"""Look into a trained decoder-only model: who attends to what, what is known when, who is missed.

    maps = attention_maps(model, tokens)  # (layers, batch, heads, length, length)
    depths = logit_lens(model, tokens)  # (layers + 1, batch, length, vocab)
    with without_heads(model, [(1, 2)]):  # head 2 of layer 1 adds nothing
        alone = attention_maps(model, tokens)

Everything is seen from outside, by hooks that are there only while a probe looks: a model that
nobody looks into runs as it always does. A probe looks in evaluation mode and without gradients,
and leaves the model as it was.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from groundup.blocks import Block
from groundup.models import DecoderOnly
from groundup.multihead import MultiHeadAttention


@torch.no_grad()
def attention_maps(
    model: DecoderOnly, tokens: Int[Tensor, "batch length"]
) -> Float[Tensor, "layers batch heads length length"]:
    """Say how much each token attends to each other, in every head of every layer.

    A map tells where a head looks. It does not tell what the head makes of what it finds there:
    for that, take the head away (`without_heads`).

    Args:
        model: A window in its configuration holds here as well.
        tokens: Token numbers.

    Returns:
        Weights from 0 to 1; in each row of the last axis they sum to 1.

    Raises:
        ValueError: If the sequence is longer than the model allows.

    """
    maps = []

    def look(attention: MultiHeadAttention, inputs: tuple, choices: dict[str, Any]) -> None:
        asked = {name: choices.get(name) for name in ("mask", "positions")}
        maps.append(attention.weights(*inputs, **asked))

    with _evaluating(model), ExitStack() as hooks:
        for block in _blocks(model):
            hooks.enter_context(block.attention.register_forward_pre_hook(look, with_kwargs=True))
        model(tokens)
    return torch.stack(maps)


@torch.no_grad()
def residual_streams(
    model: DecoderOnly, tokens: Int[Tensor, "batch length"]
) -> Float[Tensor, "depths batch length d_model"]:
    """Give each token's features at every depth: as it comes in, then after each block.

    Args:
        model: Any.
        tokens: Token numbers.

    Returns:
        One more depth than there are layers.

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
    """Give the logits that would come out if the model ended after each block.

    The residual stream is read at every depth by the norm and the table that were trained to read
    it at the end. Where that makes sense, one sees a guess grow better; where it does not, one
    sees nothing, and the model may know all the same.

    Args:
        model: Any.
        tokens: Token numbers.

    Returns:
        At depth 0 what the tokens say before any block, at the last depth the model's own logits.

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
    """Let some heads add nothing to the residual stream, for a while.

    What is missed tells what they were good for, as long as nobody else does the same job: two
    heads that can stand in for each other are each dispensable, and not both. A head that is
    zeroed is also an input that the layers above have never met.

    Args:
        model: Computes as ever in every other respect: gradients pass, and nothing is written to
            its parameters. A bias of the output map stays, because it belongs to no head.
        heads: Layer and head of each, both counted from 0.

    Raises:
        ValueError: If there is no such head.

    Source:
        Michel et al. 2019, Are Sixteen Heads Really Better than One?, section 3,
        https://arxiv.org/abs/1905.10650; Voita et al. 2019, Analyzing Multi-Head Self-Attention,
        https://arxiv.org/abs/1905.09418

    """
    num_layers, num_heads = model.config.num_layers, model.config.num_heads
    silent: dict[int, list[int]] = {}
    for layer, head in heads:
        if not (0 <= layer < num_layers and 0 <= head < num_heads):
            raise ValueError(
                f"a head must be one of {num_layers} layers of {num_heads} heads, "
                f"got layer={layer}, head={head}"
            )
        silent.setdefault(layer, []).append(head)
    with ExitStack() as hooks:
        for layer, numbers in silent.items():
            output = _blocks(model)[layer].attention.output
            hooks.enter_context(output.register_forward_pre_hook(_silence(num_heads, numbers)))
        yield


def _blocks(model: DecoderOnly) -> list[Block]:
    return [cast(Block, block) for block in model.blocks]


def _silence(num_heads: int, numbers: list[int]) -> Callable[..., tuple[Tensor]]:
    """Make a hook that sets to 0 what some heads hand to the map that joins them."""

    def silence(output: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        (mixed,) = inputs
        index = torch.tensor(numbers, device=mixed.device)
        heads = mixed.unflatten(-1, (num_heads, -1))  # (batch, length, heads, d_head)
        return (heads.index_fill(-2, index, 0.0).flatten(-2),)

    return silence


def repeated_tokens(
    choices: Int[Tensor, " vocab"], length: int, batch_size: int, generator: torch.Generator
) -> Int[Tensor, "batch {2*length}"]:
    """Draw passages of random tokens, and say each of them twice.

    In its first half nothing can be guessed. In the second, everything can, and only by looking
    back: no token comes twice in a passage, and none has to do with its neighbours.

    Args:
        choices: Token numbers to draw from. Leave out those that the model has never met, such as
            the bytes of a byte-pair tokenizer that its text does not use.
        length: Tokens of a passage, before it is repeated.
        batch_size: Number of passages.
        generator: Decides.

    Raises:
        ValueError: If there are fewer choices than tokens in a passage, or nothing is asked for.

    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got batch_size={batch_size}")
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
    """Say how much each head attends to what followed the last time.

    In a passage said twice, `a b c a b c`, the second `b` knows what comes next from the place
    after the first `b`. The score of a head is the weight that it gives to that place, averaged
    over the tokens of the second half. A head that looks everywhere alike gets next to nothing.

    Args:
        model: Any.
        tokens: Passages said twice, as `repeated_tokens` makes them; real text shows the same
            heads, and more besides.

    Returns:
        Scores from 0 to 1.

    Raises:
        ValueError: If a second half is not its first half again.

    Source:
        Olsson et al. 2022, In-context Learning and Induction Heads,
        https://transformer-circuits.pub/2022/in-context-learning-and-induction-heads/index.html

    """
    half = tokens.shape[1] // 2
    if half < 1 or not torch.equal(tokens[:, :half], tokens[:, half:]):
        raise ValueError(
            "induction_scores needs passages said twice, "
            f"got {tokens.shape[1]} tokens whose halves differ"
        )
    # From place t of the second half to place t - half + 1; the first on this line is the end of
    # the first half, which has nothing to look back to.
    onward = attention_maps(model, tokens).diagonal(1 - half, -2, -1)[..., 1:]
    return onward.mean(dim=(1, 3))


def previous_token_scores(
    model: DecoderOnly, tokens: Int[Tensor, "batch length"]
) -> Float[Tensor, "layers heads"]:
    """Say how much each head attends to the token before.

    An induction head needs such a head in a layer below: it compares with what stood *before* a
    place, and somebody has to have written that there.

    Args:
        model: Any.
        tokens: At least two per row.

    Returns:
        Scores from 0 to 1, averaged over all tokens but the first.

    Raises:
        ValueError: If a row has a single token.

    """
    if tokens.shape[1] < 2:
        raise ValueError(f"a token before needs at least 2 tokens, got {tokens.shape[1]}")
    return attention_maps(model, tokens).diagonal(-1, -2, -1).mean(dim=(1, 3))


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Switch dropout off for a while."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, was_training in modes:
            part.training = was_training
