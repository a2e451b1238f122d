import pytest
import torch

from groundup.cache import KeyValueCache, LayerCache, SlidingLayerCache, StaticLayerCache

# By hand


def test_a_cache_returns_what_was_put_in_oldest_first():
    cache = LayerCache(batch_size=1, num_kv_heads=1, max_len=5, d_head=1)
    assert cache.length == 0 and cache.keys.shape == (1, 1, 0, 1)
    cache.append(torch.tensor([[[[1.0], [2.0]]]]), torch.tensor([[[[10.0], [20.0]]]]))
    cache.append(torch.tensor([[[[3.0]]]]), torch.tensor([[[[30.0]]]]))
    assert cache.length == 3
    assert cache.keys.flatten().tolist() == [1, 2, 3]
    assert cache.values.flatten().tolist() == [10, 20, 30]


def test_a_model_s_cache_has_one_room_for_each_layer():
    cache = KeyValueCache(num_layers=3, batch_size=2, num_kv_heads=5, max_len=11, d_head=7)
    assert len(cache.layers) == 3 and cache.cross == []
    assert (cache.length, cache.max_len) == (0, 11)
    for layer in cache.layers:
        layer.append(torch.ones(2, 5, 4, 7), torch.ones(2, 5, 4, 7))
    assert cache.length == 4


def test_cross_attention_has_room_for_the_source():
    cache = KeyValueCache(3, 2, 5, 11, 7, source_max_len=13, dtype=torch.float64)
    assert [layer.max_len for layer in cache.cross] == [13, 13, 13]
    assert cache.cross[0].keys.dtype == cache.layers[0].values.dtype == torch.float64


def test_a_sliding_cache_forgets_by_hand():
    """A window of 3: the token that asks and the 2 before it."""
    cache = SlidingLayerCache(batch_size=1, num_kv_heads=1, window=3, d_head=1)
    column = torch.arange(1.0, 7.0).view(1, 1, 6, 1)
    keys, values = cache.append(column[:, :, :4], 10 * column[:, :, :4])
    assert keys.flatten().tolist() == [1, 2, 3, 4] and cache.keys.flatten().tolist() == [3, 4]
    keys, values = cache.append(column[:, :, 4:5], 10 * column[:, :, 4:5])
    assert keys.flatten().tolist() == [3, 4, 5] and values.flatten().tolist() == [30, 40, 50]
    assert cache.length == 5 and cache.num_bytes == 2 * 2 * 4


def test_a_static_cache_hands_out_its_whole_room_by_hand():
    cache = StaticLayerCache(batch_size=1, num_kv_heads=1, max_len=4, d_head=1)
    cache.append(torch.tensor([[[[1.0], [2.0]]]]), torch.tensor([[[[10.0], [20.0]]]]))
    assert cache.allowed(1).tolist() == [[True, True, True, False]]
    keys, values = cache.append(torch.tensor([[[[3.0]]]]), torch.tensor([[[[30.0]]]]))
    assert keys.flatten().tolist() == [1, 2, 3, 0] and values.flatten().tolist() == [10, 20, 30, 0]
    assert cache.places(2).tolist() == [3, 4] and cache.num_bytes == 2 * 4 * 4


# Laws


@pytest.mark.parametrize("options", [{}, {"window": 4}, {"is_static": True}])
def test_a_beam_may_go_on_from_another_beam_s_past(normal, options):
    cache = KeyValueCache(2, 3, 5, 11, 7, dtype=torch.float64, **options)
    for layer in cache.layers:
        layer.append(normal(3, 5, 2, 7), normal(3, 5, 2, 7))
    before = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]
    cache.reorder(torch.tensor([2, 0, 0]))
    for layer, (keys, values) in zip(cache.layers, before, strict=True):
        assert torch.equal(layer.keys, keys[[2, 0, 0]])
        assert torch.equal(layer.values, values[[2, 0, 0]])


@pytest.mark.parametrize("options", [{}, {"window": 4}, {"is_static": True}])
def test_bytes_are_those_of_the_tensors(normal, options):
    cache = KeyValueCache(2, 3, 5, 11, 7, source_max_len=13, dtype=torch.float64, **options)
    for layer in cache.layers:
        layer.append(normal(3, 5, 11, 7), normal(3, 5, 11, 7))
    stored = 3 if "window" in options else 11
    assert cache.num_bytes == 2 * 2 * 3 * 5 * 7 * 8 * (stored + 13)
    for layer in cache.layers:
        assert layer.num_bytes == layer.keys.nbytes + layer.values.nbytes


def test_a_step_copies_nothing_that_was_there(normal):
    """The room never moves: what is returned looks into the same memory at every step."""
    cache = LayerCache(2, 3, 5, 7, dtype=torch.float64)
    cache.append(normal(2, 3, 1, 7), normal(2, 3, 1, 7))
    keys, values = cache.keys.data_ptr(), cache.values.data_ptr()
    cache.append(normal(2, 3, 4, 7), normal(2, 3, 4, 7))
    assert (cache.keys.data_ptr(), cache.values.data_ptr()) == (keys, values)


def test_what_is_stored_carries_no_gradient_and_shares_no_memory(normal):
    cache, key = LayerCache(2, 3, 5, 7, dtype=torch.float64), normal(2, 3, 4, 7).requires_grad_()
    cache.append(key, 2 * key)
    assert not cache.keys.requires_grad and not cache.values.requires_grad
    stored = cache.keys.clone()
    with torch.no_grad():
        key.zero_()
    assert torch.equal(cache.keys, stored)


# Refusals


def test_more_tokens_than_fit_are_refused_and_change_nothing(normal):
    cache = LayerCache(2, 3, 5, 7, dtype=torch.float64)
    first = normal(2, 3, 4, 7)
    cache.append(first, first)
    with pytest.raises(ValueError, match="at most max_len=5 tokens, got 2 more after 4"):
        cache.append(normal(2, 3, 2, 7), normal(2, 3, 2, 7))
    assert cache.length == 4 and torch.equal(cache.keys, first)


def test_another_batch_size_is_refused(normal):
    """A single sequence would broadcast over the batch without a word."""
    cache = LayerCache(2, 3, 5, 7, dtype=torch.float64)
    with pytest.raises(ValueError, match="got batch_size=1, made for 2"):
        cache.append(normal(1, 3, 1, 7), normal(1, 3, 1, 7))
