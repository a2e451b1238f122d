"""What reaches a head when one path to it is changed, in models whose weights are known."""

from contextlib import ExitStack

import pytest
import torch
from torch import nn

from groundup import presets
from groundup.core.models import DecoderOnly
from groundup.looking.patching import head_output, patched_head, patched_output, patched_path
from groundup.looking.probes import without_heads

READS = ("query", "key", "value")
PATHS = [(head, reads) for head in (0, 1) for reads in READS]


@pytest.fixture
def tokens(normal):
    return (normal(3, 7).abs() * 1000).long() % 13


@pytest.fixture
def two_layers(normal):
    """Two layers of 2 heads of width 5, and feed-forward networks of width 11 that add nothing."""
    return random_model(normal, has_feed_forward=False)


def random_model(normal, has_feed_forward=True, **choices):
    sizes = {"vocab_size": 13, "max_len": 8, "d_model": 10, "num_layers": 2, "num_heads": 2}
    others = {"d_ff": 11, "positions": "learned", "norm": "layer", "activation": "gelu"}
    config = presets.decoder_only("tiny", **sizes | others | choices)
    model = DecoderOnly(config).double().eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        is_silent = not has_feed_forward and "down" in name
        parameter.copy_(0 * parameter if is_silent else normal(*parameter.shape) / 2)
    return model


# By hand


def test_the_keys_of_one_head_are_made_from_a_stream_without_what_the_sender_wrote(
    two_layers, tokens
):
    """The second attention by hand: head 1's keys from another stream, all else as before."""
    first, second = two_layers.blocks
    x = two_layers.embedding(tokens)
    mixed = []
    with first.attention.output.register_forward_pre_hook(lambda _, inputs: mixed.append(inputs)):
        stream = first(x)
    sent = mixed[0][0][..., :5] @ first.attention.output.weight[:, :5].T  # head 0.0
    read, read_without = (second.attention_norm(y) for y in (stream, stream - sent))

    attention = second.attention
    query, key, value = (getattr(attention, name)(read) for name in READS)
    key = torch.cat((key[..., :5], attention.key(read_without)[..., 5:]), dim=-1)
    heads = [x.unflatten(-1, (2, 5)).transpose(1, 2) for x in (query, key, value)]
    found = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
    stream = stream + attention.output(found.transpose(1, 2).flatten(-2))
    expected = two_layers.unembedding(two_layers.final_norm(stream))

    with patched_path(two_layers, (0, 0), (1, 1), "key"):
        torch.testing.assert_close(two_layers(tokens), expected)
    assert (two_layers(tokens) - expected).abs().max() > 0.01


def test_a_head_writes_what_is_missing_from_the_stream_without_it(two_layers, tokens):
    first, x = two_layers.blocks[0], two_layers.embedding(tokens)
    with without_heads(two_layers, [(0, 1)]):
        without = first(x)
    written = head_output(two_layers, tokens, (0, 1))
    torch.testing.assert_close(written, first(x) - without)


# Laws


@pytest.mark.parametrize("left_out", [None, *PATHS, "direct"], ids=str)
@pytest.mark.parametrize("sender", [0, 1])
def test_all_paths_of_a_head_with_the_direct_one_to_the_output_are_its_ablation(
    two_layers, tokens, sender, left_out
):
    written = head_output(two_layers, tokens, (0, sender))
    with ExitStack() as cuts:
        for head, reads in PATHS:
            if (head, reads) != left_out:
                cuts.enter_context(patched_path(two_layers, (0, sender), (1, head), reads))
        if left_out != "direct":
            cuts.enter_context(patched_output(two_layers.blocks[1], lambda x: x - written))
        cut = two_layers(tokens)
    with without_heads(two_layers, [(0, sender)]):
        assert torch.allclose(two_layers(tokens), cut) == (left_out is None)


@pytest.mark.parametrize("head", [(0, 1), (1, 0)])
def test_a_head_that_writes_zeros_is_ablated(normal, tokens, head):
    model = random_model(normal)
    with patched_head(model, head, torch.zeros_like):
        patched = model(tokens)
    with without_heads(model, [head]):
        torch.testing.assert_close(model(tokens), patched)
    assert (model(tokens) - patched).abs().max() > 0.01


def test_what_another_run_gave_takes_the_place_of_what_this_run_gives(normal, tokens):
    """A block's output decides all that follows; a head's is one term of the stream."""
    model, other = random_model(normal), tokens.flip(0)
    block, x = model.blocks[0], model.embedding(tokens)
    of_other = block(model.embedding(other))
    with patched_output(block, lambda x: of_other):
        torch.testing.assert_close(model(tokens), model(other))
    block.feed_forward.down.weight.zero_()
    own, written = (head_output(model, run, (0, 1)) for run in (tokens, other))
    stream = block(x)
    with patched_head(model, (0, 1), lambda own: written):
        torch.testing.assert_close(block(x), stream - own + written)


@pytest.mark.parametrize("reads", READS)
def test_a_path_that_carries_what_it_carried_changes_nothing(normal, tokens, reads):
    model = random_model(normal, num_layers=3)
    with patched_path(model, (0, 1), (2, 0), reads, lambda written: written):
        torch.testing.assert_close(model(tokens), model(tokens))
    moved = []
    for shift in (0, 7, 1):  # 7 positions further is where it was
        with patched_path(model, (0, 1), (2, 0), reads, lambda x, by=shift: x.roll(by, dims=1)):
            moved.append(model(tokens))
    torch.testing.assert_close(moved[0], moved[1])
    assert (moved[0] - moved[2]).abs().max() > 1e-3


def test_other_heads_read_as_before(normal, tokens):
    """Of 4 heads, 2 share each key: the query of head 3 is its own, its key is also head 2's."""
    choices = {"d_model": 24, "num_heads": 4, "num_kv_heads": 2, "positions": "rotary"}
    model = random_model(normal, **choices)
    found = []

    def keep(part, inputs):
        found.append(inputs[0].unflatten(-1, (4, 6)))

    with model.blocks[1].attention.output.register_forward_pre_hook(keep):
        model(tokens)
        for reads in READS:
            with patched_path(model, (0, 2), (1, 3), reads):
                model(tokens)
    for mixed, changed in zip(found[1:], ([3], [2, 3], [2, 3]), strict=True):
        is_changed = [not torch.equal(mixed[..., i, :], found[0][..., i, :]) for i in range(4)]
        assert [i for i in range(4) if is_changed[i]] == changed


def test_a_patch_leaves_no_trace(normal, tokens):
    model = random_model(normal)
    before, whole = num_hooks(model), model(tokens)
    with pytest.raises(KeyError), patched_path(model, (0, 0), (1, 0), "value"):
        assert num_hooks(model) == before + 3
        raise KeyError
    head_output(model, tokens, (1, 1))
    assert num_hooks(model) == before
    assert torch.equal(model(tokens), whole)


def num_hooks(model):
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules())


# Refusals


@pytest.mark.parametrize("head", [(2, 0), (0, 2), (-1, 0)])
def test_a_head_that_is_not_there_is_refused(normal, tokens, head):
    model = random_model(normal)
    message = f"one of 2 layers of 2 heads, got layer={head[0]}, head={head[1]}"
    for patch in (
        lambda: head_output(model, tokens, head),
        lambda: patched_head(model, head, torch.zeros_like).__enter__(),
        lambda: patched_path(model, head, (1, 0), "key").__enter__(),
        lambda: patched_path(model, (0, 0), head, "key").__enter__(),
    ):
        with pytest.raises(ValueError, match=message):
            patch()


def test_a_path_leads_to_a_later_layer_through_a_stream_that_is_a_sum(normal):
    model = random_model(normal)
    message = r"to a later layer, got sender=\(1, 0\), receiver=\(1, 1\)"
    with pytest.raises(ValueError, match=message), patched_path(model, (1, 0), (1, 1), "key"):
        pass
    model = random_model(normal, norm_order="post")
    message = "a path needs a pre-norm model, got norm_order=post"
    with pytest.raises(ValueError, match=message), patched_path(model, (0, 0), (1, 1), "key"):
        pass
    assert num_hooks(model) == 0
