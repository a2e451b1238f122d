import pytest
import torch
from torch import nn

from groundup.core.blocks import Block, DecoderBlock
from groundup.core.masks import causal_mask
from groundup.core.positions import Rotary

# Sizes: batch 2, heads 3, d_model 12, d_ff 11, target length 5, source length 7.

ORDERS = ["pre", "post"]
KINDS = [(order, activation) for order in ORDERS for activation in ("relu", "gelu")]


def torch_layer(kind, norm_order, activation):
    layer = kind(
        12, 3, 11, 0.0, activation, batch_first=True, norm_first=norm_order == "pre"
    ).double()
    return layer.train()  # with dropout 0; in evaluation torch takes other code


@pytest.fixture
def padding():
    """The first sequence has 3 and the second 5 real tokens."""
    return torch.arange(5) < torch.tensor([3, 5])[:, None]


# By hand


def test_a_block_whose_sub_layers_say_nothing_by_hand():
    """Pre-norm: the stream passes untouched. Post-norm: it is normalised, twice."""
    x = torch.tensor([[[1.0, 3.0], [5.0, -5.0]]])
    for norm_order, expected in (("pre", x.tolist()), ("post", [[[-1.0, 1.0], [1.0, -1.0]]])):
        block = Block(2, 1, 3, norm_order=norm_order)
        with torch.no_grad():
            for writer in (block.attention.output, block.feed_forward.down):
                writer.weight.zero_()
                writer.bias.zero_()
        torch.testing.assert_close(block(x), torch.tensor(expected), atol=1e-4, rtol=0)


# Against torch


@pytest.mark.parametrize(("norm_order", "activation"), KINDS)
def test_block_equals_torch_s_encoder_layer(
    normal, shaken, transfer, padding, norm_order, activation
):
    ours = shaken(Block(12, 3, 11, norm_order=norm_order, activation=activation))
    theirs = torch_layer(nn.TransformerEncoderLayer, norm_order, activation)
    transfer(ours, theirs)
    x = 10 * normal(2, 5, 12)
    torch.testing.assert_close(ours(x), theirs(x))
    out = ours(x, causal_mask(5) & padding[:, None, None, :])
    expected = theirs(x, src_mask=~causal_mask(5), src_key_padding_mask=~padding)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize(("norm_order", "activation"), KINDS)
def test_decoder_block_equals_torch_s_decoder_layer(
    normal, shaken, transfer, padding, norm_order, activation
):
    ours = shaken(DecoderBlock(12, 3, 11, norm_order=norm_order, activation=activation))
    theirs = torch_layer(nn.TransformerDecoderLayer, norm_order, activation)
    transfer(ours, theirs)
    x, memory = 10 * normal(2, 5, 12), normal(2, 7, 12)
    source = torch.arange(7) < torch.tensor([4, 6])[:, None]
    out = ours(x, memory, causal_mask(5) & padding[:, None, None, :], source[:, None, None, :])
    expected = theirs(
        x,
        memory,
        tgt_mask=~causal_mask(5),
        tgt_key_padding_mask=~padding,
        memory_key_padding_mask=~source,
    )
    torch.testing.assert_close(out, expected)


# Laws


@pytest.mark.parametrize("norm_order", ORDERS)
def test_without_positions_reordered_tokens_give_reordered_outputs(normal, shaken, norm_order):
    block = shaken(Block(12, 3, 11, norm_order=norm_order, num_kv_heads=1))
    x, order = normal(2, 5, 12), [3, 0, 4, 2, 1]
    torch.testing.assert_close(block(x[:, order]), block(x)[:, order])
    turned = shaken(Block(12, 3, 11, norm_order=norm_order, rotary=Rotary(31, 4)))
    assert not torch.allclose(turned(x[:, order]), turned(x)[:, order])


@pytest.mark.parametrize("norm_order", ORDERS)
@pytest.mark.parametrize("kind", [Block, DecoderBlock])
def test_under_a_causal_mask_the_future_does_not_change_the_past(normal, shaken, kind, norm_order):
    block, memory = shaken(kind(12, 3, 11, norm_order=norm_order)), [normal(2, 7, 12)]
    memory = memory if kind is DecoderBlock else []
    x = normal(2, 5, 12)
    other = torch.cat((x[:, :3], normal(2, 2, 12)), dim=1)
    for mode in (True, False):
        block.train(mode)
        out, changed = (block(y, *memory, mask=causal_mask(5)) for y in (x, other))
        torch.testing.assert_close(out[:, :3], changed[:, :3])
        assert not torch.allclose(out[:, 3:], changed[:, 3:])


def test_hidden_parts_of_the_memory_are_invisible(normal, shaken):
    block, x, memory = shaken(DecoderBlock(12, 3, 11)), normal(2, 5, 12), normal(2, 7, 12)
    mask = torch.arange(7) < torch.tensor([4, 7])[:, None, None, None]
    other = memory.clone()
    other[0, 4:] = normal(3, 12)
    torch.testing.assert_close(
        block(x, memory, memory_mask=mask), block(x, other, memory_mask=mask)
    )
    assert not torch.allclose(block(x, memory), block(x, other))


def test_pre_norm_adds_to_the_stream_and_never_replaces_it(normal, shaken):
    """Ten times the stream, and what is added stays the same: it reads a normalised copy."""
    block, x = shaken(Block(12, 3, 11, norm_order="pre")), 100 * normal(2, 5, 12)
    first = block.attention(block.attention_norm(x))
    added = block(x) - x
    torch.testing.assert_close(
        added, first + block.feed_forward(block.feed_forward_norm(x + first))
    )
    assert added.norm() < x.norm() / 2


def test_every_part_is_trained(normal, shaken):
    for norm_order in ORDERS:
        block = shaken(DecoderBlock(12, 3, 11, norm_order=norm_order))
        (block(normal(2, 5, 12), normal(2, 7, 12)) * normal(2, 5, 12)).sum().backward()
        silent = [name for name, p in block.named_parameters() if p.grad.abs().max() < 1e-9]
        assert silent == ["attention.key.bias", "cross_attention.key.bias"]


@pytest.mark.parametrize("norm_order", ORDERS)
@pytest.mark.parametrize(
    ("kind", "part"),
    [
        (Block, "attention"),
        (Block, "feed_forward"),
        (DecoderBlock, "attention"),
        (DecoderBlock, "cross_attention"),
        (DecoderBlock, "feed_forward"),
    ],
)
def test_dropout_acts_on_a_sub_layer_s_output_before_it_is_added(
    normal, shaken, kind, part, norm_order
):
    """With one sub-layer speaking, each feature of what it adds is dropped or doubled."""
    block, x = shaken(kind(12, 3, 11, dropout=0.5, norm_order=norm_order)), normal(2, 5, 12)
    memory = [normal(2, 7, 12)] if kind is DecoderBlock else []
    for name, sub_layer in list(block.named_children()):
        if name.endswith("_norm"):
            setattr(block, name, nn.Identity())  # leaves the sum as it is, in either order
        elif name not in (part, "dropout"):
            writer = sub_layer.down if name == "feed_forward" else sub_layer.output
            nn.init.zeros_(writer.weight)
            nn.init.zeros_(writer.bias)
    added = block.eval()(x, *memory) - x
    torch.manual_seed(0)
    seen = (block.train()(x, *memory) - x) / added
    is_dropped, is_doubled = seen.abs() < 1e-6, (seen - 2).abs() < 1e-6
    assert (is_dropped | is_doubled).all()
    assert 0.3 < is_dropped.double().mean() < 0.7


@pytest.mark.parametrize("norm_order", ORDERS)
@pytest.mark.parametrize(
    ("kind", "part"),
    [(Block, "attention"), (DecoderBlock, "attention"), (DecoderBlock, "cross_attention")],
)
def test_every_attention_drops_weights_in_training_only(normal, shaken, kind, part, norm_order):
    """Only one attention speaks, so that only what it drops can change the answer."""
    block, x = (
        shaken(kind(12, 3, 11, attention_dropout=0.5, norm_order=norm_order)),
        normal(2, 5, 12),
    )
    plain = shaken(kind(12, 3, 11, norm_order=norm_order))
    memory = [normal(2, 7, 12)] if kind is DecoderBlock else []
    for name in {"attention", "cross_attention"} - {part}:
        if hasattr(block, name):
            nn.init.zeros_(getattr(block, name).output.weight)
    plain.load_state_dict(block.state_dict())
    assert not torch.allclose(block(x, *memory), block(x, *memory))
    assert torch.equal(block.eval()(x, *memory), plain(x, *memory))


def test_dropout_is_silent_after_training(normal, shaken):
    block, x = shaken(Block(12, 3, 11, dropout=0.5)).eval(), normal(2, 5, 12)
    assert torch.equal(block(x), block(x))
    block.train()
    assert not torch.equal(block(x), block(x))


# Refusals


@pytest.mark.parametrize("kind", [Block, DecoderBlock])
def test_an_unknown_norm_order_is_refused(unchecked, kind):
    with pytest.raises(
        ValueError, match="norm_order must be one of pre, post, got norm_order=both"
    ):
        kind(12, 3, 11, norm_order="both")


@pytest.mark.parametrize("kind", [Block, DecoderBlock])
def test_dropping_all_weights_is_refused(kind):
    with pytest.raises(ValueError, match="below 1, got attention_dropout=1.0"):
        kind(12, 3, 11, attention_dropout=1.0)
