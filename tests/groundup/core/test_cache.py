import pytest
import torch

from groundup.core.cache import KeyValueCache, LayerCache
from groundup.presets import decoder_only, encoder_decoder

# Five heads of seven features, and up to 17 tokens.
SIZES = {"vocab_size": 19, "max_len": 17, "d_model": 35, "num_heads": 5, "positions": "learned"}

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
    cache = KeyValueCache(decoder_only("tiny", **SIZES, num_layers=3), batch_size=2, max_len=11)
    assert len(cache.layers) == 3 and cache.cross == []
    assert cache.length == 0 and [layer.max_len for layer in cache.layers] == [11, 11, 11]
    for layer in cache.layers:
        layer.append(torch.ones(2, 5, 4, 7), torch.ones(2, 5, 4, 7))
    assert cache.length == 4


def test_cross_attention_has_room_for_the_source():
    source = {"source_vocab_size": 23, "source_max_len": 13, "num_encoder_layers": 1}
    config = encoder_decoder("tiny", **SIZES, **source, num_layers=3)
    cache = KeyValueCache(config, 2, dtype=torch.float64)
    assert [layer.max_len for layer in cache.cross] == [13, 13, 13]
    assert cache.cross[0].keys.dtype == cache.layers[0].values.dtype == torch.float64


# Laws


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
    with pytest.raises(ValueError, match="more than max_len tokens, got tokens=6, max_len=5"):
        cache.append(normal(2, 3, 2, 7), normal(2, 3, 2, 7))
    assert cache.length == 4 and torch.equal(cache.keys, first)


def test_another_batch_size_is_refused(normal):
    """A single sequence would broadcast over the batch without a word."""
    cache = LayerCache(2, 3, 5, 7, dtype=torch.float64)
    with pytest.raises(ValueError, match="got batch_size=1, cache.batch_size=2"):
        cache.append(normal(1, 3, 1, 7), normal(1, 3, 1, 7))
