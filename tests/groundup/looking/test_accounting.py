import gc
import random
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from groundup import presets
from groundup.core.cache import LayerCache
from groundup.core.config import DecoderOnlyConfig, EncoderDecoderConfig, EncoderOnlyConfig
from groundup.core.models import DecoderOnly, EncoderDecoder, EncoderOnly
from groundup.core.multihead import MultiHeadAttention
from groundup.generation.caches import SlidingLayerCache, StaticLayerCache
from groundup.looking.accounting import (
    PEAKS,
    Peak,
    activation_bytes,
    cache_bytes,
    decoding_bytes,
    decoding_flops,
    decoding_limit,
    forward_flops,
    mfu,
    parameter_shapes,
    parameters,
    peak_of,
    training_bytes,
    training_flops,
    usual_training_flops_per_token,
    weight_bytes,
)
from groundup.training.loop import TrainingConfig, cross_entropy, optimizers_for
from groundup.training.setup import recompute

MODELS = {
    DecoderOnlyConfig: DecoderOnly,
    EncoderOnlyConfig: EncoderOnly,
    EncoderDecoderConfig: EncoderDecoder,
}
COMMON = {
    "vocab_size": [11, 23],
    "max_len": [13, 17],
    "d_model": [12, 24],
    "num_layers": [1, 2, 3],
    "num_heads": [2, 6],
    "num_kv_heads": [None, 1, 2],
    "head_width": [None, 8],
    "d_ff": [5, 19],
    "positions": ["sinusoidal", "learned", "rotary", "alibi", "none"],
    "norm": ["layer", "rms"],
    "norm_order": ["pre", "post"],
    "qk_norm": [False, True],
    "activation": ["relu", "gelu", "gelu_tanh", "squared_relu", "swiglu", "geglu", "geglu_tanh"],
    "bias": [False, True],
    "dropout": [0.0],
    "tie_embeddings": [False, True],
}
OWN = {
    DecoderOnlyConfig: {"window": [None, 4, 40]},
    EncoderOnlyConfig: {"num_outputs": [None, 7], "answers": ["tokens", "sequence"]},
    EncoderDecoderConfig: {
        "source_vocab_size": [29],
        "source_max_len": [16, 7],
        "num_encoder_layers": [1, 2],
        "tie_source_embeddings": [False, True],
    },
}


def drawn(kind, number):
    """Draw configurations in which every choice is met, alone and with others."""
    chance = random.Random(number)
    choices = {name: chance.choice(values) for name, values in (COMMON | OWN[kind]).items()}
    if choices.get("num_outputs") and choices["tie_embeddings"]:
        choices["num_outputs"] = choices["vocab_size"]
    if choices.get("tie_source_embeddings"):
        choices["source_vocab_size"] = choices["vocab_size"]
    return kind(**choices)


EVERY_KIND = pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
CACHED_KIND = pytest.mark.parametrize(
    "kind", [DecoderOnlyConfig, EncoderDecoderConfig], ids=lambda kind: kind.__name__
)


def new_model(config):
    """Make the model, with attention whose products torch's counter can see."""
    model = MODELS[type(config)](config, torch.Generator().manual_seed(0))
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.backend = "explicit"
    return model


def inputs(config, tokens, batch_size, length, source_len):
    target = tokens(config.vocab_size, batch_size, length)
    if isinstance(config, EncoderDecoderConfig):
        return tokens(config.source_vocab_size, batch_size, source_len), target
    return (target,)


def source_len_of(config, source_len):
    return source_len if isinstance(config, EncoderDecoderConfig) else None


# By hand


def test_gpt2_small_has_124_million_parameters_of_which_a_third_are_its_vocabulary():
    counts = parameters(presets.decoder_only("gpt2_small"))
    assert sum(counts.values()) == 124_439_808
    assert counts["embedding"] == 50257 * 768 and counts["unembedding"] == 0
    assert counts["positions"] == 1024 * 768
    assert counts["attention"] == 12 * 4 * (768 * 768 + 768)
    assert counts["feed_forward"] == 12 * (2 * 768 * 3072 + 3072 + 768)
    assert counts["norms"] == 25 * 2 * 768


def test_gpt2_small_takes_855_million_operations_per_token_to_train():
    config = presets.decoder_only("gpt2_small")
    assert usual_training_flops_per_token(config, 1024) == 855_166_464
    exact = sum(training_flops(config, 1, 1024).values()) / 1024
    assert exact == 854_438_400
    assert 855_166_464 / exact == pytest.approx(1.00085, abs=5e-6)


def test_the_pairs_that_a_causal_mask_allows_are_a_little_more_than_half():
    config = presets.decoder_only("gpt2_small")
    everything = forward_flops(config, 2, 1024)
    allowed = forward_flops(config, 2, 1024, pairs="allowed")
    assert allowed["attention"] / everything["attention"] == 1025 / 2048
    assert allowed | {"attention": 0} == everything | {"attention": 0}


def test_a_window_allows_each_token_the_newest_ones_only():
    config = presets.decoder_only(
        "tiny", vocab_size=11, max_len=7, window=3, d_model=8, num_layers=1
    )
    pairs = 1 + 2 + 3 + 3 + 3
    assert forward_flops(config, 1, 5, pairs="allowed")["attention"] == 4 * 8 * pairs
    assert forward_flops(config, 1, 2, pairs="allowed")["attention"] == 4 * 8 * (1 + 2)
    assert decoding_flops(config, 1, 1)["attention"] == 4 * 8 * 2
    assert decoding_flops(config, 1, 6)["attention"] == 4 * 8 * 3


def test_grouped_queries_shrink_the_cache_in_proportion():
    sizes = {"vocab_size": 11, "max_len": 13, "num_heads": 4}
    whole = cache_bytes(presets.decoder_only("tiny", **sizes), 3)
    assert whole == 3 * 2 * 3 * 13 * 128 * 4  # layers, key and value, batch, tokens, width, bytes
    assert cache_bytes(presets.decoder_only("tiny", **sizes, num_kv_heads=1), 3) == whole // 4
    assert cache_bytes(presets.decoder_only("tiny", **sizes), 3, dtype=torch.bfloat16) == whole // 2


def test_the_limit_of_decoding_is_bandwidth_over_bytes():
    config = presets.decoder_only("gpt2_small")
    read = decoding_bytes(config, 1, 99, torch.bfloat16)
    positions, rows, cached = 1024 * 768, 2 * 768, 12 * 2 * 99 * 768
    assert read == 2 * (124_439_808 - positions + rows + cached)
    assert decoding_limit(config, 1, 99, 3.35e12, torch.bfloat16) == 3.35e12 / read
    assert decoding_limit(config, 8, 99, 3.35e12) > 6 * decoding_limit(config, 1, 99, 3.35e12)


def test_utilisation_is_a_share_of_the_peak_and_unknown_for_an_unknown_device():
    assert mfu(494.7e12, peak_of("NVIDIA H100 80GB HBM3")) == pytest.approx(0.5)
    assert peak_of("NVIDIA H100 80GB HBM3 MIG 1g.10gb") is None
    assert mfu(1e12, peak_of("a processor")) is None
    assert mfu(1e12, Peak(None, 1e12)) is None
    assert all(peak.flops is None or peak.flops > peak.bandwidth for peak in PEAKS.values())


# Against torch


@pytest.mark.slow
@EVERY_KIND
@pytest.mark.parametrize("number", range(40))
def test_every_parameter_is_listed_with_its_shape(kind, number):
    config = drawn(kind, number)
    model = MODELS[kind](config, torch.Generator())
    assert parameter_shapes(config) == {n: tuple(p.shape) for n, p in model.named_parameters()}
    assert sum(parameters(config).values()) == sum(p.numel() for p in model.parameters())
    assert weight_bytes(config) == sum(p.numel() * p.element_size() for p in model.parameters())
    assert weight_bytes(config, torch.bfloat16) == weight_bytes(config) // 2


@pytest.mark.slow
@EVERY_KIND
@pytest.mark.parametrize("number", range(12))
def test_operations_are_those_that_torch_counts_forward_and_backward(kind, number, tokens):
    config = drawn(kind, number)
    model, lengths = new_model(config), (3, 5, source_len_of(config, 7))
    with FlopCounterMode(display=False) as counter:
        logits = model(*inputs(config, tokens, 3, 5, 7))
    assert counter.get_total_flops() == sum(forward_flops(config, *lengths).values())
    with FlopCounterMode(display=False) as counter:
        logits.sum().backward()
    both = sum(training_flops(config, *lengths).values())
    assert counter.get_total_flops() == both - sum(forward_flops(config, *lengths).values())


def cache_kind(config, is_static):
    """Choose as `generate` does."""
    if is_static:
        return StaticLayerCache
    return SlidingLayerCache if getattr(config, "window", None) else LayerCache


@CACHED_KIND
@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("is_static", [False, True])
def test_operations_of_one_more_token_are_those_that_torch_counts(kind, number, is_static, tokens):
    config = drawn(kind, number)
    model = new_model(config).eval()
    *source, target = inputs(config, tokens, 3, 7, 5)
    cache = model.new_cache(3, 11, cache_kind(config, is_static))
    memory = [model.encode(*source)] if source else []
    step = model.decode if source else model
    with torch.no_grad():
        step(target[:, :6], *memory, cache=cache)
        with FlopCounterMode(display=False) as counter:
            step(target[:, 6:], *memory, cache=cache)
    room = 11 if is_static else None
    expected = decoding_flops(config, 3, 6, source_len_of(config, 5), room)
    assert counter.get_total_flops() == sum(expected.values())


@CACHED_KIND
@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("is_static", [False, True])
@pytest.mark.parametrize("max_len", [None, 11])
def test_a_cache_takes_the_bytes_that_were_predicted(kind, number, is_static, max_len):
    config = drawn(kind, number)
    model = MODELS[kind](config, torch.Generator())
    cache = model.new_cache(3, max_len, cache_kind(config, is_static))
    assert cache.num_bytes == cache_bytes(config, 3, max_len, is_static=is_static)


@EVERY_KIND
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("number", range(3))
def test_training_keeps_the_bytes_that_were_predicted(kind, optimizer, number, tokens):
    config = drawn(kind, number)
    model = new_model(config)
    settings = TrainingConfig(steps=1, learning_rate=1e-3, optimizer=optimizer)
    optimizers = optimizers_for(model, settings)
    model(*inputs(config, tokens, 3, 5, 7)).sum().backward()
    optimizers.step()
    states = [t for state in optimizers.state.values() for t in state.values()]

    def num_bytes(tensors):
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    assert training_bytes(config, optimizer) == {
        "weights": num_bytes(model.parameters()),
        "gradients": num_bytes(p.grad for p in model.parameters()),
        "optimizer": num_bytes(states),
        "copies": 0,
    }


@pytest.mark.parametrize("tied", [False, True])
def test_bfloat16_keeps_one_copy_of_each_matrix_for_the_backward_pass(tied, tokens):
    layer_norms = {"norm": "layer", "qk_norm": False}  # RMSNorm warns of the two dtypes
    config = replace(drawn(DecoderOnlyConfig, 0), tie_embeddings=tied, **layer_norms)
    model, kept = new_model(config), {}

    def keep(tensor):
        if tensor.dtype == torch.bfloat16:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autocast("cpu", torch.bfloat16):
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(tokens(config.vocab_size, 3, 5))
    copies = 0
    for matrix in (p for p in model.parameters() if p.ndim == 2):
        for tensor in kept.values():
            storage = torch.tensor([], dtype=torch.bfloat16).set_(tensor.untyped_storage())
            if torch.equal(storage, matrix.bfloat16().flatten()):
                copies += storage.nbytes
    assert training_bytes(config, precision="bfloat16")["copies"] == copies > 0


@pytest.mark.parametrize("backend", ["explicit", "fused"])
@pytest.mark.parametrize("number", range(16))
def test_a_forward_pass_keeps_about_the_bytes_that_were_predicted(backend, number, tokens):
    config = replace(drawn(DecoderOnlyConfig, number), max_len=31, window=None)
    if config.positions == "alibi" and backend == "fused":
        config = replace(config, positions="learned")  # its biases are drawn, and kept
    model, kept = new_model(config), {}
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.backend = backend
    owned = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            kept[storage.data_ptr()] = storage.nbytes(), tensor  # alive, or its place is reused
        return tensor

    read = tokens(config.vocab_size, 16, 31)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(read)
        cross_entropy(logits, torch.zeros(logits.shape[:-1], dtype=torch.long))
    predicted = sum(activation_bytes(config, 16, 31, backend).values())
    assert predicted == pytest.approx(sum(size for size, _ in kept.values()), rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(8))
def test_recomputing_leaves_the_inputs_of_blocks_as_predicted(number, tokens):
    config = replace(drawn(DecoderOnlyConfig, number), max_len=31, window=None, num_layers=5)
    model, read = new_model(config), tokens(config.vocab_size, 128, 31)
    answers = torch.zeros(128 * 31, dtype=torch.long)

    def kept():
        cross_entropy(model(read).flatten(0, 1), answers)
        gc.collect()  # what earlier tests left behind must not be freed within
        with torch.profiler.profile(profile_memory=True) as profile:
            loss = cross_entropy(model(read).flatten(0, 1), answers)
        loss.backward()
        return sum(event.self_cpu_memory_usage for event in profile.key_averages())

    before = kept()
    recompute(model)
    predicted = sum(activation_bytes(config, 128, 31, recompute=True).values())
    assert kept() == pytest.approx(predicted, rel=0.05)
    assert predicted < before / 3


class Reads(TorchDispatchMode):
    """Counts the numbers of the parameters that are read, of tables that are looked up by row."""

    def __init__(self, model):
        super().__init__()
        self.size_of = {p.data_ptr(): p.numel() for p in model.parameters()}
        self.read, self.rows = set(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.embedding.default:  # of a table that is learned
            self.rows += result.numel() if args[0].data_ptr() in self.size_of else 0
        else:
            addresses = {a.data_ptr() for a in args if isinstance(a, torch.Tensor)}
            self.read |= addresses & self.size_of.keys()
        return result

    def total(self):
        return self.rows + sum(self.size_of[address] for address in self.read)


@CACHED_KIND
@pytest.mark.parametrize("number", range(12))
def test_one_more_token_reads_the_bytes_that_were_predicted(kind, number, tokens):
    config = drawn(kind, number)
    model = new_model(config).eval()
    *source, target = inputs(config, tokens, 3, 7, 5)
    cache = model.new_cache(3, kind=cache_kind(config, is_static=False))
    memory = [model.encode(*source)] if source else []
    step = model.decode if source else model
    with torch.no_grad():
        step(target[:, :6], *memory, cache=cache)
        cached = sum(2 * layer.keys.numel() for layer in (*cache.layers, *cache.cross))
        with Reads(model) as reads:
            step(target[:, 6:], *memory, cache=cache)
    expected = decoding_bytes(config, 3, 6, source_len=source_len_of(config, 5))
    assert 4 * (reads.total() + cached) == expected


# Refusals


def test_lengths_that_make_no_sense_are_refused():
    decoder_only = presets.decoder_only("tiny", vocab_size=11, max_len=7)
    both = presets.encoder_decoder(
        "tiny", source_vocab_size=11, vocab_size=13, source_max_len=5, max_len=7
    )
    with pytest.raises(ValueError, match="length must be at least 1, got length=0"):
        forward_flops(decoder_only, 2, 0)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got batch_size=0"):
        training_flops(decoder_only, 0, 5)
    with pytest.raises(ValueError, match="source_len must be given .*got source_len=None for Enc"):
        forward_flops(both, 2, 5)
    with pytest.raises(
        ValueError, match="for no other model, got source_len=3 for DecoderOnlyConfig"
    ):
        decoding_flops(decoder_only, 2, 5, source_len=3)
    with pytest.raises(ValueError, match="context must not be negative, got context=-1"):
        decoding_bytes(decoder_only, 2, -1)
    with pytest.raises(ValueError, match="must exceed context, got buffer_len=5, context=5"):
        decoding_limit(decoder_only, 2, 5, 1e9, buffer_len=5)
    with pytest.raises(ValueError, match="source_len must be at least 1, got source_len=0"):
        decoding_flops(both, 2, 5, source_len=0)


def test_other_pairs_are_refused(unchecked):
    config = presets.decoder_only("tiny", vocab_size=11, max_len=7)
    with pytest.raises(ValueError, match="pairs must be all or allowed, got pairs=half"):
        forward_flops(config, 2, 5, pairs="half")
