"""What the probes see in models whose weights are known, and that they leave no trace."""

import math

import pytest
import torch
from torch import nn

from groundup import presets
from groundup.core.models import DecoderOnly
from groundup.core.multihead import MultiHeadAttention
from groundup.looking.probes import (
    attention_maps,
    induction_scores,
    logit_lens,
    ov_circuit,
    previous_token_scores,
    qk_circuit,
    repeated_tokens,
    residual_streams,
    without_heads,
)
from groundup.own_parts.assembled import assemble
from groundup.variants.functional import Parts

VOCAB, HALF = 7, 5
NUM_PLACES = 2 * HALF


@pytest.fixture
def tokens():
    return torch.tensor([[3, 1, 6, 0, 4] * 2, [5, 2, 0, 1, 3] * 2])


@pytest.fixture
def look_back():
    """A model that was set by hand to go on as it went on the last time.

    A token's 24 features: which one it is (7), where it stands (10), which one stood before (7).
    Head 1 of layer 0 looks one place back and notes what it finds. Head 0 of layer 1 looks for
    places whose predecessor is its own token, and adds what stands there to what it is itself.
    """
    config = presets.decoder_only(
        "tiny",
        **{"vocab_size": VOCAB, "max_len": NUM_PLACES, "positions": "learned", "norm": "rms"},
        **{"d_model": 2 * VOCAB + NUM_PLACES, "num_layers": 2, "num_heads": 2, "d_ff": 3},
        **{"bias": False, "tie_embeddings": False},
    )
    model = DecoderOnly(config).double().eval()
    name, place, before = slice(0, 7), slice(7, 17), slice(17, 24)
    all_names, all_places = (torch.eye(size, dtype=torch.float64) for size in (VOCAB, NUM_PLACES))
    one_back = all_places.roll(-1, dims=1)  # the key of place t answers to the query of t + 1
    one_back[:, -1] = 0  # nobody stands before the first
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm" not in key:
                parameter.zero_()
        model.embedding.tokens.weight[:, name] = all_names
        model.embedding.positions.table.weight[:, place] = all_places
        model.unembedding.weight[:, name] = all_names

        first, second = (block.attention for block in model.blocks)
        first.query.weight[12:22, place] = 100 * all_places  # d_head is 12: head 1 begins there
        first.key.weight[12:22, place] = one_back
        first.value.weight[12:19, name] = all_names
        first.output.weight[before, 12:19] = all_names
        second.query.weight[0:7, name] = 100 * all_names
        second.key.weight[0:7, before] = all_names
        second.value.weight[0:7, name] = all_names
        second.output.weight[name, 0:7] = all_names
    return model


def random_model(normal, kind=DecoderOnly, **choices):
    """Every weight normal: far from uniform attention, unlike a model before training."""
    sizes = {"vocab_size": 13, "max_len": 11, "d_model": 24, "num_layers": 3, "num_heads": 6}
    config = presets.decoder_only("llama", **sizes | {"num_kv_heads": 2, "d_ff": 5} | choices)
    model = kind(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(normal(*parameter.shape) / 3)
    return model


def numbers(normal, batch_size=2, length=11):
    return (normal(batch_size, length).abs() * 1000).long() % 13


def num_hooks(model):
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules())


# By hand


def test_attention_that_is_uniform_has_the_scores_of_chance(tokens):
    config = presets.decoder_only("llama", vocab_size=VOCAB, max_len=4, num_layers=1)
    model = DecoderOnly(config).double()
    nn.init.zeros_(model.blocks[0].attention.query.weight)
    four = tokens[:, [0, 1, 0, 1]]
    maps = attention_maps(model, four)
    row = torch.tensor([1 / 3, 1 / 3, 1 / 3, 0.0], dtype=torch.float64)
    torch.testing.assert_close(maps[0, 1, 3, 2], row)
    expected = torch.ones(1, 4, dtype=torch.float64)
    torch.testing.assert_close(induction_scores(model, four), expected * (1 / 3 + 1 / 4) / 2)
    torch.testing.assert_close(
        previous_token_scores(model, four), expected * (1 / 2 + 1 / 3 + 1 / 4) / 3
    )


def test_the_two_heads_of_the_look_back_are_found(look_back, tokens):
    """The first token has none before it and takes itself, so the second `3` finds two places."""
    scores = induction_scores(look_back, tokens)
    assert scores.argmax() == 2  # head 0 of layer 1
    torch.testing.assert_close(scores[1, 0].item(), (HALF - 1 + 1 / 2) / HALF)
    scores = previous_token_scores(look_back, tokens)
    assert scores.argmax() == 1  # head 1 of layer 0
    torch.testing.assert_close(scores[0, 1].item(), 1.0)


def test_the_lens_shows_at_which_depth_the_answer_comes(look_back, tokens):
    after_the_second = slice(HALF + 1, NUM_PLACES - 1)
    guesses = logit_lens(look_back, tokens).argmax(dim=-1)[..., after_the_second]
    asked, answer = tokens[:, after_the_second], tokens[:, HALF + 2 :]
    assert guesses.shape[0] == 3
    assert torch.equal(guesses[0], asked)  # a token alone says itself
    assert torch.equal(guesses[1], asked)  # who stood before is known, and is no answer
    assert torch.equal(guesses[2], answer)


@pytest.mark.parametrize(
    ("silent", "goes_on"), [((0, 1), 0), ((1, 0), 0), ((0, 0), 1), ((1, 1), 1)]
)
def test_without_either_of_its_heads_the_look_back_says_nothing(look_back, tokens, silent, goes_on):
    second = slice(HALF + 1, NUM_PLACES - 1)
    with without_heads(look_back, [silent]):
        guesses = look_back(tokens).argmax(dim=-1)[:, second]
    assert (guesses == tokens[:, HALF + 2 :]).double().mean() == goes_on


def test_a_passage_is_random_without_repetition_and_said_twice():
    choices = torch.tensor([2, 3, 5, 7, 11, 13])
    generator = torch.Generator().manual_seed(0)
    passages = repeated_tokens(choices, 5, 200, generator)
    assert passages.shape == (200, 10)
    assert torch.equal(passages[:, :5], passages[:, 5:])
    for passage in passages[:, :5].tolist():
        assert len(set(passage)) == 5
        assert set(passage) < set(choices.tolist())
    counts = torch.stack([(passages[:, 0] == choice).sum() for choice in choices])
    assert counts.min() > 10  # each may come first: 33 times on average
    again = repeated_tokens(choices, 5, 200, torch.Generator().manual_seed(0))
    assert torch.equal(passages, again)


# Laws


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"window": 3},
        {"positions": "alibi"},
        {"positions": "learned", "norm_order": "post", "norm": "layer", "activation": "gelu"},
        {"qk_norm": True},
    ],
    ids=str,
)
def test_maps_and_streams_are_what_the_model_computes_with(normal, choices):
    model, read = random_model(normal, **choices), numbers(normal)
    maps, streams = attention_maps(model, read), residual_streams(model, read)
    assert maps.shape == (3, 2, 6, 11, 11) and streams.shape == (4, 2, 11, 24)
    torch.testing.assert_close(maps.sum(dim=-1), torch.ones_like(maps[..., 0]))
    assert not maps.triu(1).any()
    torch.testing.assert_close(streams[0], model.embedding(read))
    for block, weights, x, after in zip(model.blocks, maps, streams, streams[1:], strict=False):
        attention, is_pre = block.attention, block.norm_order == "pre"
        reads = block.attention_norm(x) if is_pre else x
        value = attention.value(reads).unflatten(-1, (2, -1)).repeat_interleave(3, dim=-2)
        mixed = torch.einsum("bhqk,bkhd->bqhd", weights, value).flatten(-2)
        x = x + attention.output(mixed)
        x = x if is_pre else block.attention_norm(x)
        expected = x + block.feed_forward(block.feed_forward_norm(x) if is_pre else x)
        expected = expected if is_pre else block.feed_forward_norm(expected)
        torch.testing.assert_close(after, expected)


def test_the_lens_begins_with_the_tokens_and_ends_with_the_answer(normal):
    model, read = random_model(normal), numbers(normal)
    depths = logit_lens(model, read)
    assert depths.shape == (4, 2, 11, 13)
    torch.testing.assert_close(depths[-1], model(read))
    alone = logit_lens(model, read[:, :1])[0]
    torch.testing.assert_close(depths[0][:, :1], alone)


def test_a_head_is_taken_away_as_if_its_rows_of_the_output_were_zero(normal):
    model, read = random_model(normal, bias=True), numbers(normal)
    heads = [(0, 5), (2, 0), (2, 3)]
    whole = model(read)
    with without_heads(model, heads):
        silenced = model(read)
    with torch.no_grad():
        for layer, head in heads:
            weight = model.blocks[layer].attention.output.weight  # (d_model, heads * d_head)
            weight.unflatten(1, (6, -1))[:, head] = 0
    torch.testing.assert_close(silenced, model(read))
    assert (silenced - whole).abs().max() > 0.01


def test_heads_are_taken_away_from_within_another_absence_and_from_a_cached_text(normal):
    model, read = random_model(normal), numbers(normal)
    with without_heads(model, [(0, 5)]), without_heads(model, [(0, 2)]):
        nested = model(read)
        cache = model.new_cache(len(read))
        parts = [model(part, cache=cache) for part in read.split(4, dim=1)]
    with without_heads(model, [(0, 2), (0, 5)]):
        torch.testing.assert_close(model(read), nested)
    torch.testing.assert_close(torch.cat(parts, dim=1), nested)


def test_gradients_pass_where_a_head_is_missing_and_not_through_it(normal):
    model, read = random_model(normal), numbers(normal)
    with without_heads(model, [(2, 4)]):
        model(read).square().sum().backward()
    slopes = model.blocks[2].attention.output.weight.grad.unflatten(1, (6, -1))
    assert not slopes[:, 4].any()
    assert all(slopes[:, head].any() for head in (0, 1, 2, 3, 5))


def test_a_library_of_own_parts_is_looked_into_the_same_way(normal):
    read = numbers(normal)
    model = random_model(normal)
    own = assemble(Parts())(model.config).double().eval()
    own.load_state_dict(model.state_dict())
    torch.testing.assert_close(attention_maps(own, read), attention_maps(model, read))
    torch.testing.assert_close(logit_lens(own, read), logit_lens(model, read))
    with without_heads(own, [(1, 2)]), without_heads(model, [(1, 2)]):
        torch.testing.assert_close(own(read), model(read))


def test_a_probe_leaves_no_trace(normal):
    model, read = random_model(normal, dropout=0.5), numbers(normal)
    model.train()
    model.blocks[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    twice = [probe(model, read) for probe in (attention_maps, logit_lens) for _ in range(2)]
    assert torch.equal(twice[0], twice[1]) and torch.equal(twice[2], twice[3])
    assert not any(seen.requires_grad for seen in twice)
    with pytest.raises(KeyError), without_heads(model, [(0, 0)]):
        assert num_hooks(model) == 1
        raise KeyError
    with pytest.raises(ValueError, match="max_len"):
        attention_maps(model, torch.cat([read, read], dim=1))
    assert num_hooks(model) == 0
    assert model.training and model.blocks[0].training and not model.blocks[1].training
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("num_kv_heads", [6, 2])
def test_scores_and_outputs_go_through_two_circuits(normal, shaken, num_kv_heads):
    attention = shaken(MultiHeadAttention(24, 6, num_kv_heads, bias=False))
    x, context = normal(2, 5, 24), normal(2, 7, 24)
    total = torch.zeros_like(x)
    for head in range(6):
        scores = x @ qk_circuit(attention, head) @ context.mT / math.sqrt(4)
        total = total + scores.softmax(-1) @ context @ ov_circuit(attention, head)
        assert torch.linalg.matrix_rank(ov_circuit(attention, head)) == 4
    torch.testing.assert_close(attention(x, context), total)


# Refusals


@pytest.mark.parametrize("head", [(3, 0), (0, 6), (-1, 0), (0, -1)])
def test_a_head_that_is_not_there_is_refused(normal, head):
    model = random_model(normal)
    message = f"one of 3 layers of 6 heads, got layer={head[0]}, head={head[1]}"
    with pytest.raises(ValueError, match=message), without_heads(model, [(1, 1), head]):
        pass
    assert num_hooks(model) == 0


@pytest.mark.parametrize("wrong", [[[1, 2, 3, 1, 2, 4]], [[1, 2, 1, 2, 1]], [[1]]])
def test_a_passage_that_is_not_said_twice_is_refused(normal, wrong):
    message = f"needs repeated passages, got {len(wrong[0])} tokens"
    with pytest.raises(ValueError, match=message):
        induction_scores(random_model(normal), torch.tensor(wrong))


def test_a_token_before_needs_two_tokens(normal):
    with pytest.raises(ValueError, match="length must be at least 2, got length=1"):
        previous_token_scores(random_model(normal), numbers(normal, length=1))


def test_a_passage_is_drawn_at_least_once():
    with pytest.raises(ValueError, match="batch_size must be at least 1, got batch_size=0"):
        repeated_tokens(torch.arange(3), 2, 0, torch.Generator())


@pytest.mark.parametrize("length", [0, 4])
def test_a_passage_cannot_be_longer_than_there_are_tokens(length):
    message = f"from 1 to the number of choices, got length={length}, 3 choices"
    with pytest.raises(ValueError, match=message):
        repeated_tokens(torch.arange(3), length, 2, torch.Generator())
