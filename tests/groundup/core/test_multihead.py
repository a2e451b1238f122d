import copy

import pytest
import torch
from torch import nn

from groundup.core.attention import scaled_dot_product_attention
from groundup.core.cache import LayerCache
from groundup.core.masks import causal_mask
from groundup.core.multihead import MultiHeadAttention, merge_heads, split_heads
from groundup.core.multihead import repeat_kv_heads as repeat_heads
from groundup.core.positions import Rotary

BACKENDS = ["explicit", "fused"]

# Sizes: batch 2, heads 6 (kv heads 6, 3, 2, 1), d_head 4, d_model 24, queries 5, keys 7.


def make_mask(name, normal):
    if name == "none":
        return None
    if name == "causal":
        return causal_mask(5, 7)
    if name == "padding":
        return torch.arange(7) < torch.tensor([4, 7])[:, None, None, None]
    mask = normal(2, 6, 5, 7) > 0.3  # another one for each head
    mask[..., 0] = True  # torch gives NaN where nothing is allowed
    return mask


def repeat_kv_heads(grouped, num_heads):
    """Build ordinary attention that does the same: each key and value head written out."""
    full = MultiHeadAttention(num_heads * grouped.d_head, num_heads).double()
    weights = grouped.state_dict()
    group = num_heads // grouped.num_kv_heads
    for name in ("key.weight", "key.bias", "value.weight", "value.bias"):
        heads = weights[name].unflatten(0, (grouped.num_kv_heads, grouped.d_head))
        copies = [heads[head // group] for head in range(num_heads)]
        weights[name] = torch.cat(copies)
    full.load_state_dict(weights)
    return full


# By hand


def test_heads_are_neighbouring_features_by_hand():
    """One sentence of two tokens, features 0 to 5 and 6 to 11, cut for three heads."""
    x = torch.arange(12.0).view(1, 2, 6)
    heads = split_heads(x, 3)
    assert heads.tolist() == [[[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5], [10, 11]]]]
    assert torch.equal(merge_heads(heads), x)


def test_two_heads_by_hand():
    """Identity maps. Head one asks nothing and averages; head two picks the token that fits."""
    attention = MultiHeadAttention(4, 2, bias=False)
    with torch.no_grad():
        for weights in attention.parameters():
            weights.copy_(torch.eye(4))
        attention.query.weight[:2] = 0
    x = torch.tensor([[[2.0, 0.0, 90.0, 0.0], [0.0, 4.0, 0.0, 90.0]]])
    expected = torch.tensor([[[1.0, 2.0, 90.0, 0.0], [1.0, 2.0, 0.0, 90.0]]])
    torch.testing.assert_close(attention(x), expected)


# Against torch


@pytest.mark.parametrize("mask_name", ["none", "causal", "padding", "random"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_cross_attention_equals_torch_s(normal, shaken, transfer, mask_name, backend):
    ours = shaken(MultiHeadAttention(24, 6, backend=backend))
    theirs = nn.MultiheadAttention(24, 6, batch_first=True).double()
    transfer.attention(ours, theirs)
    x, context, upstream = normal(2, 5, 24), normal(2, 7, 24), normal(2, 5, 24)
    mask = make_mask(mask_name, normal)
    forbidden = None if mask is None else ~mask.expand(2, 6, 5, 7).flatten(0, 1)
    ours_x, theirs_x = x.clone().requires_grad_(), x.clone().requires_grad_()
    out = ours(ours_x, context, mask)
    expected, weights = theirs(
        theirs_x, context, context, attn_mask=forbidden, average_attn_weights=False
    )
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(ours.weights(x, context, mask), weights)
    torch.testing.assert_close(
        torch.autograd.grad(out, ours_x, upstream),
        torch.autograd.grad(expected, theirs_x, upstream),
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_self_attention_equals_torch_s(normal, shaken, transfer, backend):
    ours = shaken(MultiHeadAttention(24, 6, backend=backend))
    theirs = nn.MultiheadAttention(24, 6, batch_first=True).double()
    transfer.attention(ours, theirs)
    x, mask = normal(2, 5, 24), causal_mask(5)
    torch.testing.assert_close(ours(x, mask=mask), theirs(x, x, x, attn_mask=~mask)[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_training_the_same_weights_are_dropped_as_in_torch_s(normal, shaken, transfer, backend):
    """From one seed, and with gradients for every parameter; in evaluation none is dropped."""
    ours = shaken(MultiHeadAttention(24, 6, backend=backend, attention_dropout=0.4))
    theirs = nn.MultiheadAttention(24, 6, dropout=0.4, batch_first=True).double()
    transfer.attention(ours, theirs)
    x, context = normal(2, 5, 24), normal(2, 7, 24)
    torch.manual_seed(0)
    out = ours(x, context)
    torch.manual_seed(0)
    torch.testing.assert_close(out, theirs(x, context, context, need_weights=False)[0])
    out.sin().sum().backward()
    assert all(
        p.grad.abs().max() > 1e-9 for name, p in ours.named_parameters() if "key.b" not in name
    )
    expected = ours.eval()(x, context)
    assert not torch.allclose(out, expected)
    torch.testing.assert_close(expected, theirs.eval()(x, context, context, need_weights=False)[0])


# Laws


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_that_are_looked_at_are_whole_in_training_too(normal, shaken, backend):
    choices = {"backend": backend, "attention_dropout": 0.4, "is_causal": True}
    attention = shaken(MultiHeadAttention(24, 6, 2, **choices))
    x, before = normal(2, 5, 24), torch.get_rng_state()
    weights = attention.weights(x)
    assert torch.equal(weights, attention.eval().weights(x))
    attention(x)
    assert torch.equal(torch.get_rng_state(), before)


def test_heads_at_once_are_a_loop_of_heads(normal, shaken):
    """Each head has its own rows of the projections, and its own columns of the output map."""
    attention, x, context = shaken(MultiHeadAttention(24, 6)), normal(2, 5, 24), normal(2, 7, 24)
    total = attention.output.bias
    for head in range(6):
        rows = slice(4 * head, 4 * head + 4)
        query, key, value = (
            source @ linear.weight[rows].T + linear.bias[rows]
            for source, linear in (
                (x, attention.query),
                (context, attention.key),
                (context, attention.value),
            )
        )
        found = scaled_dot_product_attention(query, key, value)
        total = total + found @ attention.output.weight[:, rows].T
    torch.testing.assert_close(attention(x, context), total)


@pytest.mark.parametrize("num_kv_heads", [3, 2, 1])
def test_grouped_queries_are_ordinary_heads_with_copied_keys_and_values(
    normal, shaken, num_kv_heads
):
    grouped = shaken(MultiHeadAttention(24, 6, num_kv_heads))
    full = repeat_kv_heads(grouped, 6)
    x, context, mask = normal(2, 5, 24), normal(2, 7, 24), make_mask("random", normal)
    torch.testing.assert_close(grouped(x, context, mask), full(x, context, mask))
    torch.testing.assert_close(grouped.weights(x, context, mask), full.weights(x, context, mask))


@pytest.mark.parametrize("backend", ["explicit", "fused"])
@pytest.mark.parametrize("num_kv_heads", [6, 2])
def test_alibi_lowers_scores_by_distance_times_slope(normal, shaken, backend, num_kv_heads):
    attention = shaken(MultiHeadAttention(24, 6, num_kv_heads, alibi=True, backend=backend))
    plain, x = copy.deepcopy(attention), normal(2, 5, 24)
    plain.alibi = False
    distance = (torch.arange(5)[:, None] - torch.arange(5)).abs()
    slopes = [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]
    weights = plain.weights(x).log() - torch.tensor(slopes).double()[:, None, None] * distance
    expected = weights.softmax(-1)
    torch.testing.assert_close(attention.weights(x), expected)
    value = repeat_heads(split_heads(attention.value(x), num_kv_heads), 6)
    torch.testing.assert_close(attention(x), attention.output(merge_heads(expected @ value)))


def test_normalised_queries_and_keys_bound_the_scores(normal, shaken):
    """Ten times the input, the same weights: only directions of queries and keys are left."""
    attention, x = (
        MultiHeadAttention(24, 6, 2, bias=False, qk_norm=True).double(),
        100 * normal(2, 5, 24),
    )
    torch.testing.assert_close(attention.weights(10 * x), attention.weights(x), atol=1e-4, rtol=0)
    sizes = attention.query_norm(split_heads(attention.query(x), 6)).norm(dim=-1)
    torch.testing.assert_close(sizes, torch.full_like(sizes, 2.0), atol=1e-3, rtol=0)
    plain = MultiHeadAttention(24, 6, 2, bias=False).double()
    assert not torch.allclose(plain.weights(x / 100), plain.weights(x), atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mask_name", ["none", "padding", "random"])
def test_a_causal_layer_is_a_layer_under_the_causal_mask(normal, shaken, backend, mask_name):
    """Whatever another mask allows, and with a cache of the keys before."""
    attention = shaken(MultiHeadAttention(24, 6, 2, backend=backend, is_causal=True))
    plain, x = copy.deepcopy(attention), normal(2, 7, 24)
    plain.is_causal = False
    mask = make_mask(mask_name, normal)
    if mask_name == "random":
        mask = normal(2, 6, 7, 7) > 0.3
    both = causal_mask(7) if mask is None else causal_mask(7) & mask
    torch.testing.assert_close(attention(x, mask=mask), plain(x, mask=both))
    torch.testing.assert_close(attention.weights(x, mask=mask), plain.weights(x, mask=both))
    cache = LayerCache(2, 2, 7, 4, dtype=torch.float64)
    parts = [attention(part, cache=cache) for part in x.split([2, 1, 4], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), plain(x, mask=causal_mask(7)))


def test_fewer_key_and_value_heads_need_fewer_weights():
    counts = [sum(p.numel() for p in MultiHeadAttention(24, 6, n).parameters()) for n in (6, 3, 1)]
    assert counts == [4 * (24 * 24 + 24), 3 * (24 * 24 + 24), 2 * (24 * 24 + 24) + 2 * (24 * 4 + 4)]


@pytest.mark.parametrize("chunks", [[7], [1] * 7, [3, 1, 1, 2], [1, 6]])
@pytest.mark.parametrize("num_kv_heads", [6, 2, 1])
@pytest.mark.parametrize("rotary", [False, True])
def test_cached_attention_equals_uncached(normal, shaken, chunks, num_kv_heads, rotary):
    choices = {"rotary": Rotary(31, 4) if rotary else None, "attention_dropout": 0.4}
    attention = shaken(MultiHeadAttention(24, 6, num_kv_heads, **choices)).eval()
    x, cache = normal(2, 7, 24), LayerCache(2, num_kv_heads, 11, 4, dtype=torch.float64)
    parts = []
    for part in x.split(chunks, dim=1):
        end = cache.length + part.shape[1]
        mask, positions = causal_mask(part.shape[1], end), torch.arange(cache.length, end)
        parts.append(attention(part, mask=mask, cache=cache, positions=positions))
    torch.testing.assert_close(torch.cat(parts, dim=1), attention(x, mask=causal_mask(7)))


def test_a_cached_context_is_projected_once(normal, shaken):
    attention = shaken(MultiHeadAttention(24, 6, 2))
    x, context, calls = normal(2, 5, 24), normal(2, 7, 24), []
    attention.key.register_forward_hook(lambda *_: calls.append("key"))
    attention.value.register_forward_hook(lambda *_: calls.append("value"))
    expected = attention(x, context)
    calls.clear()
    cache = LayerCache(2, 2, 7, 4, dtype=torch.float64)
    parts = [attention(part, context, cache=cache) for part in x.split([1, 3, 1], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), expected)
    assert calls == ["key", "value"]


def test_the_bias_of_the_keys_changes_nothing(normal, shaken):
    """It adds the same number to every score of a query, which the softmax takes out again."""
    attention, x = shaken(MultiHeadAttention(24, 6)), normal(2, 5, 24)
    before = attention(x)
    with torch.no_grad():
        attention.key.bias.add_(normal(24))
    torch.testing.assert_close(attention(x), before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hidden_key_is_invisible(normal, shaken, backend):
    attention = shaken(MultiHeadAttention(24, 6, backend=backend))
    x, context, mask = normal(2, 5, 24), normal(2, 7, 24), make_mask("padding", normal)
    other = context.clone()
    other[0, 4:] = 100 * normal(3, 24)
    torch.testing.assert_close(attention(x, other, mask), attention(x, context, mask))
    assert not torch.allclose(attention(x, other), attention(x, context))


def test_a_sequence_does_not_feel_its_batch_mates(normal, shaken):
    attention, x = shaken(MultiHeadAttention(24, 6)), normal(3, 5, 24)
    torch.testing.assert_close(attention(x)[1:2], attention(x[1:2]))


def test_heads_may_be_wider_or_narrower_than_their_share(normal, shaken):
    """As narrower ones: features of a head whose weights are zero are as if they were not there."""
    wide, x = shaken(MultiHeadAttention(10, 3, 1, d_head=8, bias=False)), normal(2, 5, 10)
    narrow = shaken(MultiHeadAttention(10, 3, 1, d_head=4, bias=False))
    assert wide(x).shape == x.shape and wide.weights(x).shape == (2, 3, 5, 5)
    for name in ("query", "key", "value", "output"):
        axis = 1 if name == "output" else 0
        heads = getattr(wide, name).weight.detach().unflatten(axis, (-1, 8))
        heads.narrow(axis + 1, 4, 4).zero_()
        own = heads.narrow(axis + 1, 0, 4).flatten(axis, axis + 1)
        own = own / 2**0.25 if name in ("query", "key") else own  # the scale is 1 / sqrt(d_head)
        getattr(narrow, name).weight.data.copy_(own)
    for backend in ("explicit", "fused"):
        wide.backend = narrow.backend = backend
        torch.testing.assert_close(wide(x), narrow(x))


def test_reordered_tokens_give_reordered_outputs(normal, shaken):
    attention, x, order = shaken(MultiHeadAttention(24, 6)), normal(2, 5, 24), [3, 0, 4, 2, 1]
    torch.testing.assert_close(attention(x[:, order]), attention(x)[:, order])


def test_rotary_attention_sees_order_and_distance_but_not_place(normal, shaken):
    attention, x = shaken(MultiHeadAttention(24, 6, 2, rotary=Rotary(105, 4))), normal(2, 5, 24)
    here, order = attention(x), [3, 0, 4, 2, 1]
    torch.testing.assert_close(attention(x, positions=torch.arange(100, 105)), here)
    assert not torch.allclose(attention(x[:, order]), here[:, order])
    assert not torch.allclose(attention(x, positions=torch.arange(0, 10, 2)), here)
    weights = attention.weights(x, positions=torch.arange(100, 105))
    torch.testing.assert_close(weights, attention.weights(x))


def test_each_sequence_may_have_its_own_positions(normal, shaken):
    attention, x = shaken(MultiHeadAttention(24, 6, rotary=Rotary(31, 4))), normal(2, 5, 24)
    positions = torch.tensor([[0, 1, 2, 3, 4], [0, 3, 9, 2, 5]])
    both = attention(x, positions=positions)
    for sequence in range(2):
        alone = attention(x[sequence : sequence + 1], positions=positions[sequence])
        torch.testing.assert_close(both[sequence : sequence + 1], alone)


def test_a_call_leaves_nothing_behind(normal, shaken):
    attention, x = shaken(MultiHeadAttention(24, 6, rotary=Rotary(31, 4))), normal(2, 5, 24)
    before, names = x.clone(), set(vars(attention))
    first = attention(x, mask=causal_mask(5))
    attention.weights(normal(2, 5, 24))
    assert set(vars(attention)) == names and not attention.state_dict().keys() - {
        name for name, _ in attention.named_parameters()
    }
    assert torch.equal(x, before)
    assert torch.equal(attention(x, mask=causal_mask(5)), first)


# Refusals


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="d_model must be a multiple of num_heads, .*=10, .*=3"):
        MultiHeadAttention(10, 3)
    with pytest.raises(
        ValueError, match="num_heads must be a multiple of num_kv_heads, .*=6, .*=4"
    ):
        MultiHeadAttention(24, 6, 4)
    with pytest.raises(ValueError, match="num_kv_heads, got num_heads=6, num_kv_heads=0"):
        MultiHeadAttention(24, 6, 0)


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_dropping_less_than_nothing_or_everything_is_refused(share):
    message = f"attention_dropout must be at least 0 and below 1, got attention_dropout={share}"
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(24, 6, attention_dropout=share)


def test_rotations_made_for_other_heads_are_refused():
    with pytest.raises(ValueError, match="rotary must be as wide as d_head, got width=4, d_head=3"):
        MultiHeadAttention(6, 2, rotary=Rotary(31, 4))


@pytest.mark.parametrize("places", [{"rotary": Rotary(31, 4)}, {"alibi": True}])
def test_attention_that_knows_places_refuses_a_context(normal, places):
    attention = MultiHeadAttention(24, 6, **places).double()
    with pytest.raises(ValueError, match="one sequence"):
        attention(normal(2, 5, 24), normal(2, 7, 24))


def test_a_cache_without_positions_is_refused_where_positions_matter(normal):
    """They would start from 0 again at each call."""
    attention = MultiHeadAttention(24, 6, rotary=Rotary(31, 4)).double()
    with pytest.raises(ValueError, match="cached rotary attention needs positions"):
        attention(normal(2, 5, 24), cache=LayerCache(2, 6, 7, 4, dtype=torch.float64))


def test_a_mask_whose_axes_are_a_guess_is_refused(normal):
    """With as many heads as sequences, (batch, q_len, k_len) would broadcast over the heads."""
    attention = MultiHeadAttention(24, 2).double()
    mask = torch.ones(2, 5, 5, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"a mask must be boolean .* shape=\(2, 5, 5\)"):
        attention(normal(2, 5, 24), mask=mask)


def test_a_mask_of_numbers_is_refused(normal, unchecked):
    attention = MultiHeadAttention(24, 2).double()
    with pytest.raises(ValueError, match="a mask must be boolean .* dtype=torch.float64"):
        attention(normal(2, 5, 24), mask=torch.zeros(5, 5, dtype=torch.float64))
