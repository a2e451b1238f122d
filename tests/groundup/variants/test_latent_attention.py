import pytest
import torch

from groundup.core.attention import attention_weights, scaled_dot_product_attention
from groundup.core.blocks import Block
from groundup.core.masks import causal_mask
from groundup.core.multihead import MultiHeadAttention, merge_heads, split_heads
from groundup.core.positions import Rotary, rotate
from groundup.variants.latent_attention import LatentAttention


@pytest.fixture
def attention(shaken):
    """Every size differs: d_model 12, 3 heads of width 5, latent 7, rotated part 4."""
    return shaken(LatentAttention(12, 3, 5, 7, Rotary(32, 4), is_causal=True))


# By hand


def test_two_tokens_by_hand(unchecked):
    """One head, identity everywhere; only the first of two features is in the latent.

    Tokens (2, 0) and (0, 1): queries 2 and 0, latents 2 and 0. The first token sees itself, and
    the second scores both 0, so it averages: (2 + 0) / 2.
    """
    attention = LatentAttention(2, 1, 1, 1, is_causal=True)
    for layer in (attention.query, attention.latent):
        layer.weight.data = torch.tensor([[1.0, 0.0]])
    for layer in (attention.key, attention.value):
        layer.weight.data = torch.tensor([[1.0]])
    attention.output.weight.data = torch.tensor([[1.0], [3.0]])
    mixed = attention(torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]))
    assert mixed.tolist() == [[[2.0, 6.0], [1.0, 3.0]]]


# Against multi-head attention


def test_with_a_latent_as_wide_as_the_token_it_is_multi_head_attention(normal, shaken):
    """The latent is the token itself, and nothing rotates."""
    ours = shaken(LatentAttention(12, 3, 4, 12, is_causal=True))
    theirs = MultiHeadAttention(12, 3, bias=False, is_causal=True).double()
    ours.latent.weight.data = torch.eye(12, dtype=torch.float64)
    names = ("query", "key", "value", "output")
    theirs.load_state_dict({f"{name}.weight": getattr(ours, name).weight for name in names})
    x = normal(2, 7, 12)
    torch.testing.assert_close(ours(x), theirs(x))


def test_scores_are_those_of_keys_made_head_by_head(attention, normal):
    """The formula of the paper: k = [W c; RoPE(W x)], the second part the same for all heads."""
    x, positions = normal(2, 7, 12), torch.arange(7)
    query = split_heads(attention.query(x), 3)
    latent = attention.latent(x)
    keys = split_heads(attention.key(latent), 3)
    values = split_heads(attention.value(latent), 3)
    rotated_key = rotate(attention.rotated_key(x), positions[None])
    mixed = []
    for head in range(3):
        rotated_query = rotate(query[:, head, :, 5:], positions[None])
        weights = attention_weights(
            torch.cat((query[:, head, :, :5], rotated_query), dim=-1),
            torch.cat((keys[:, head], rotated_key), dim=-1),
            is_causal=True,
        )
        mixed.append(weights @ values[:, head])
    expected = attention.output(merge_heads(torch.stack(mixed, dim=1)))
    torch.testing.assert_close(attention(x), expected)


# Laws


def test_absorbing_the_up_projections_changes_nothing(
    attention, normal, assert_equal_forward_and_backward
):
    def run(absorb):
        def attend(x):
            attention.absorb = absorb
            return attention(x)

        return attend

    assert_equal_forward_and_backward(run(True), run(False), normal(2, 7, 12))


def test_an_absorbed_query_scores_latents_as_the_query_scores_keys(normal):
    query, w_key, latent = normal(3, 2, 5), normal(3, 5, 7), normal(1, 11, 7)
    keys = latent @ w_key.transpose(-2, -1)
    absorbed = (query @ w_key) @ latent.transpose(-2, -1)
    torch.testing.assert_close(absorbed, query @ keys.transpose(-2, -1))


def test_absorbed_it_is_multi_query_attention_with_one_wide_head(normal, shaken):
    """One key head and one value head, both of them the latent itself."""
    ours = shaken(LatentAttention(12, 3, 5, 7, absorb=True))
    x = normal(2, 11, 12)
    query = split_heads(ours.query(x), 3) @ ours.key.weight.unflatten(0, (3, 5))
    latent = ours.latent(x)[:, None].expand(-1, 3, -1, -1)
    mixed = scaled_dot_product_attention(query, latent, latent, scale=5**-0.5)
    values = mixed @ ours.value.weight.unflatten(0, (3, 5)).transpose(-2, -1)
    torch.testing.assert_close(ours(x), ours.output(merge_heads(values)))


@pytest.mark.parametrize("absorb", [False, True])
@pytest.mark.parametrize("rotary", [None, Rotary(32, 4)])
@pytest.mark.parametrize("cuts", [[1] * 11, [5, 1, 3, 2]])
def test_decoding_with_a_cache_equals_the_full_forward_pass(normal, shaken, absorb, rotary, cuts):
    attention = shaken(LatentAttention(12, 3, 5, 7, rotary, is_causal=True, absorb=absorb))
    x, positions = normal(2, 11, 12), torch.arange(11)
    cache = attention.new_cache(2, 13, dtype=torch.float64)
    steps = [
        attention(part, cache=cache, positions=own)
        for part, own in zip(x.split(cuts, dim=1), positions.split(cuts), strict=True)
    ]
    torch.testing.assert_close(torch.cat(steps, dim=1), attention(x))


def test_the_cache_holds_a_latent_and_one_rotated_key_per_token(attention):
    """(7 + 4) numbers of 8 bytes for each of 13 tokens in 2 sequences, whatever the heads."""
    assert attention.new_cache(2, 13, dtype=torch.float64).num_bytes == 2 * 13 * (7 + 4) * 8


def test_future_tokens_do_not_change_the_past(attention, normal):
    x = normal(2, 7, 12)
    changed = torch.cat((x[:, :4], normal(2, 3, 12)), dim=1)
    torch.testing.assert_close(attention(changed)[:, :4], attention(x)[:, :4])
    assert not torch.allclose(attention(changed)[:, 4:], attention(x)[:, 4:])


@pytest.mark.parametrize("absorb", [False, True])
def test_masked_keys_have_no_influence(attention, normal, absorb):
    attention.absorb, attention.is_causal = absorb, False
    x = normal(2, 7, 12)
    mask = (torch.arange(7) < 5)[None, None, None]
    torch.testing.assert_close(attention(x, mask)[:, :5], attention(x[:, :5]))
    attention.is_causal = True
    expected = attention(x, mask)
    attention.is_causal = False
    torch.testing.assert_close(attention(x, mask & causal_mask(7, 7)), expected)


def test_scores_depend_on_distance_and_not_on_the_position(attention, normal):
    x = normal(2, 7, 12)
    torch.testing.assert_close(attention(x, positions=torch.arange(7) + 11), attention(x))
    assert not torch.allclose(attention(x, positions=2 * torch.arange(7)), attention(x))


def test_a_block_takes_it_in_place_of_its_own(attention, normal):
    block = Block(12, 3, 17).double()
    block.attention = attention
    x = normal(2, 7, 12)
    h = x + attention(block.attention_norm(x))
    torch.testing.assert_close(block(x), h + block.feed_forward(block.feed_forward_norm(h)))


# Refusals


def test_a_cache_without_positions_is_refused(attention, normal):
    cache = attention.new_cache(2, 13, dtype=torch.float64)
    with pytest.raises(ValueError, match="cached rotary attention needs positions"):
        attention(normal(2, 1, 12), cache=cache)


def test_more_tokens_than_fit_are_refused(attention, normal):
    cache = attention.new_cache(2, 5, dtype=torch.float64)
    with pytest.raises(ValueError, match="more than max_len tokens, got tokens=7, max_len=5"):
        attention(normal(2, 7, 12), cache=cache, positions=torch.arange(7))
