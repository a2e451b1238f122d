import pytest
import torch

from groundup.core.cache import KeyValueCache, LayerCache
from groundup.generation.caches import SlidingLayerCache, StaticLayerCache, reorder
from groundup.presets import decoder_only, encoder_decoder

# Two layers, five heads of seven features, and up to 11 tokens.
SIZES = {"vocab_size": 19, "max_len": 11, "d_model": 35, "num_heads": 5, "num_layers": 2}
KINDS = [LayerCache, SlidingLayerCache, StaticLayerCache]

# By hand


def test_a_sliding_cache_forgets_by_hand():
    """A window of 3: the token that asks and the 2 before it."""
    cache = SlidingLayerCache(batch_size=1, num_kv_heads=1, max_len=9, d_head=1, window=3)
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
    assert cache.num_kept == cache.length == 3 and cache.num_bytes == 2 * 4 * 4


# Laws


@pytest.mark.parametrize("kind", KINDS)
def test_a_beam_may_go_on_from_another_beam_s_past(normal, kind):
    window = 4 if kind is SlidingLayerCache else None
    config = decoder_only("tiny", **SIZES, positions="learned", window=window)
    cache = KeyValueCache(config, 3, kind=kind, dtype=torch.float64)
    for layer in cache.layers:
        layer.append(normal(3, 5, 2, 7), normal(3, 5, 2, 7))
    before = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]
    reorder(cache, torch.tensor([2, 0, 0]))
    for layer, (keys, values) in zip(cache.layers, before, strict=True):
        assert torch.equal(layer.keys, keys[[2, 0, 0]])
        assert torch.equal(layer.values, values[[2, 0, 0]])


def test_a_beam_takes_its_source_along(normal):
    """The cross-attention's keys and values belong to a sequence, too."""
    source = {"source_vocab_size": 23, "source_max_len": 13}
    cache = KeyValueCache(encoder_decoder("tiny", **SIZES | source, positions="learned"), 2)
    for layer in (*cache.layers, *cache.cross):
        layer.append(*normal(2, 2, 5, 3, 7, dtype=torch.float32))
    before = [layer.keys.clone() for layer in cache.cross]
    reorder(cache, torch.tensor([1, 1]))
    for layer, keys in zip(cache.cross, before, strict=True):
        assert torch.equal(layer.keys, keys[[1, 1]])


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_those_of_the_tensors(normal, kind):
    window = 4 if kind is SlidingLayerCache else None
    config = decoder_only("tiny", **SIZES, positions="learned", window=window)
    cache = KeyValueCache(config, 3, kind=kind, dtype=torch.float64)
    for layer in cache.layers:
        layer.append(normal(3, 5, 11, 7), normal(3, 5, 11, 7))
    stored = 3 if kind is SlidingLayerCache else 11
    assert cache.num_bytes == 2 * 2 * 3 * 5 * 7 * 8 * stored
    for layer in cache.layers:
        assert layer.num_bytes == layer.keys.nbytes + layer.values.nbytes


def test_the_bytes_of_the_source_count(normal):
    source = {"source_vocab_size": 23, "source_max_len": 13}
    config = encoder_decoder("tiny", **SIZES | source, positions="learned")
    assert KeyValueCache(config, 3).num_bytes == 2 * 2 * 3 * 5 * 7 * 4 * (11 + 13)


# Refusals


def test_a_sliding_cache_without_a_window_is_refused():
    with pytest.raises(ValueError, match="a sliding cache needs a window, got window=None"):
        KeyValueCache(decoder_only("tiny", **SIZES, positions="learned"), 3, kind=SlidingLayerCache)


def test_another_batch_size_is_refused_by_a_sliding_cache(normal):
    cache = SlidingLayerCache(2, 3, 5, 7, window=4, dtype=torch.float64)
    with pytest.raises(ValueError, match="got batch_size=1, cache.batch_size=2"):
        cache.append(normal(1, 3, 1, 7), normal(1, 3, 1, 7))
