import copy

import pytest
import torch

from groundup import presets
from groundup.core.models import DecoderOnly, EncoderDecoder
from groundup.data.batches import IGNORED, Batch
from groundup.looking import throughput
from groundup.looking.accounting import PEAKS, decoding_bytes, decoding_flops, training_flops
from groundup.looking.throughput import machine, measure_decoding, measure_training
from groundup.training.loop import TrainingConfig, adamw, cross_entropy

SIZES = {"vocab_size": 11, "max_len": 13, "d_model": 12, "num_heads": 3, "d_ff": 7}


class Clock:
    """A clock that goes on only when told to."""

    def __init__(self, *durations):
        self.now, self.durations = 0.0, list(durations)

    def perf_counter(self):
        return self.now

    def work(self):
        self.now += self.durations.pop(0)


@pytest.fixture
def decoder_only():
    config = presets.decoder_only("tiny", **SIZES, num_layers=2)
    return DecoderOnly(config, torch.Generator().manual_seed(0))


@pytest.fixture
def batch(tokens):
    read, targets = tokens(11, 3, 5), tokens(11, 3, 5)
    targets[1, 2:] = IGNORED
    return Batch({"tokens": read}, targets)


def optimizer_of(model):
    return adamw(model, TrainingConfig(steps=1, learning_rate=0.01))


@pytest.fixture
def clocked(monkeypatch):
    """Let every update, or every token, take a time of our choice on a device of our choice."""

    def use(*durations, device="a processor"):
        clock = Clock(*durations)
        monkeypatch.setattr(throughput, "time", clock)
        monkeypatch.setattr(throughput, "_device_name", lambda _: device)
        monkeypatch.setattr(throughput, "train_step", lambda *_, **__: clock.work())

        def stream(*_, **__):
            while True:
                clock.work()
                yield torch.zeros(3)

        monkeypatch.setattr(throughput, "stream", stream)
        return clock

    return use


# By hand


def test_training_is_timed_by_the_median_of_rounds_after_two_updates(decoder_only, batch, clocked):
    # Two that are not counted, the second of which says that two updates make a round of 4 s.
    clock = clocked(9.0, 2.0, 1.0, 3.0, 50.0, 50.0, 2.0, 2.0)
    result = measure_training(
        decoder_only, batch, optimizer_of(decoder_only), rounds=3, seconds=12.0
    )
    assert clock.durations == []
    assert result.round_seconds == (2.0, 50.0, 2.0)
    assert result.tokens_per_second == (15 - 3) / 2.0
    assert result.flops_per_second == sum(training_flops(decoder_only.config, 3, 5).values()) / 2
    assert result.mfu is None and result.bytes_per_second is result.bandwidth_fraction is None


def test_the_share_of_a_known_device_is_told(decoder_only, batch, clocked):
    clocked(1.0, 1.0, 1e-6, device="NVIDIA L4")
    result = measure_training(
        decoder_only, batch, optimizer_of(decoder_only), rounds=1, seconds=0.0
    )
    assert result.mfu == result.flops_per_second / PEAKS["NVIDIA L4"].flops > 0


def test_writing_is_timed_from_the_second_token_on(decoder_only, tokens, clocked):
    first = [7.0, 1.0, 1.0]  # not counted
    clock = clocked(*first, 70.0, 0.5, 1.5, 80.0, 3.0, 1.0, device="NVIDIA L4")
    result = measure_decoding(decoder_only, tokens(11, 3, 5), 2, rounds=2)
    assert clock.durations == []
    assert result.round_seconds == (2.0, 4.0)
    assert result.tokens_per_second == 3 * 2 / 3.0
    config = decoder_only.config
    flops = [sum(decoding_flops(config, 3, context).values()) for context in (5, 6)]
    assert result.flops_per_second == sum(flops) / 3.0
    read = [decoding_bytes(config, 3, context) for context in (5, 6)]
    assert result.bytes_per_second == sum(read) / 3.0
    assert result.bandwidth_fraction == result.bytes_per_second / PEAKS["NVIDIA L4"].bandwidth


def test_padding_is_computed_but_not_learned_from(clocked, tokens):
    config = presets.encoder_decoder(
        "tiny", **SIZES, source_vocab_size=11, source_max_len=8, num_layers=2, num_encoder_layers=1
    )
    model = EncoderDecoder(config, torch.Generator().manual_seed(0))
    source, target, targets = tokens(11, 3, 7), tokens(11, 3, 5), tokens(11, 3, 5)
    targets[0, 1:] = IGNORED
    clocked(1.0, 1.0, 1.0)
    batch = Batch({"source": source, "target": target}, targets)
    result = measure_training(model, batch, optimizer_of(model), rounds=1, seconds=1.0)
    assert result.tokens_per_second == 15 - 4
    assert result.flops_per_second == sum(training_flops(config, 3, 5, 7).values())


def test_a_machine_is_described_by_what_a_measurement_depends_on():
    here = machine()
    assert list(here) == "processor cores threads device bfloat16 torch load".split()
    assert here["processor"] and here["device"] == here["processor"]
    assert here["cores"] >= 1 and here["threads"] == torch.get_num_threads()
    assert here["torch"] == torch.__version__


# Laws


def test_training_and_writing_can_really_be_measured(decoder_only, batch, tokens):
    before = copy.deepcopy(decoder_only.state_dict())
    optimizer = optimizer_of(decoder_only)
    trained = measure_training(decoder_only, batch, optimizer, rounds=2, seconds=0.02)
    assert any(not torch.equal(before[n], p) for n, p in decoder_only.state_dict().items())
    assert len(trained.round_seconds) == 2 and 0 < trained.tokens_per_second < 1e7
    for cache in ("growing", "static"):
        written = measure_decoding(decoder_only, tokens(11, 2, 3), 10, rounds=3, cache=cache)
        assert len(written.round_seconds) == 3 and 0 < written.tokens_per_second < 1e7


def test_a_compiled_step_is_what_is_measured(decoder_only, tokens):
    calls = []

    def step(*arguments, **choices):
        calls.append(1)
        return decoder_only(*arguments, **choices)

    measure_decoding(decoder_only, tokens(11, 2, 3), 5, rounds=2, cache="static", step=step)
    assert len(calls) == (1 + 2) * 5


def test_the_loss_that_is_given_is_what_is_measured(decoder_only, batch):
    calls = []

    def loss(*arguments):
        calls.append(1)
        return cross_entropy(*arguments)

    optimizer = optimizer_of(decoder_only)
    measure_training(decoder_only, batch, optimizer, loss=loss, rounds=3, seconds=0.0)
    assert len(calls) == 2 + 3


# Refusals


def test_nothing_to_measure_is_refused(decoder_only, batch, tokens):
    with pytest.raises(ValueError, match="rounds must be at least 1, got rounds=0"):
        measure_training(decoder_only, batch, optimizer_of(decoder_only), rounds=0)
    with pytest.raises(ValueError, match="got new_tokens=0, 3 tokens of prompt, max_len=13"):
        measure_decoding(decoder_only, tokens(11, 2, 3), 0)
    with pytest.raises(ValueError, match="fit after the prompt, got new_tokens=11, 3 tokens"):
        measure_decoding(decoder_only, tokens(11, 2, 3), 11)
