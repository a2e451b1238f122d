import dataclasses
import itertools
import math

import pytest
import torch
from torch import nn

from groundup.config import DecoderOnlyConfig
from groundup.data import IGNORED, Batch, covering_windows, language_model_batches
from groundup.models import DecoderOnly
from groundup.training import (
    TrainingConfig,
    adamw,
    bits_per_byte,
    cross_entropy,
    evaluate,
    train,
    train_step,
    warmup_cosine,
)

# Sizes: vocabulary 11, d_model 12, 3 heads, d_ff 13, context 7, batches of 5.


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def tiny_model(**overrides):
    sizes = {"vocab_size": 11, "max_len": 7, "d_model": 12, "num_heads": 3, "d_ff": 13}
    config = DecoderOnlyConfig.tiny(**sizes | {"num_layers": 2} | overrides)
    return DecoderOnly(config, generator())


def settings(**overrides):
    return TrainingConfig(**{"steps": 13, "learning_rate": 0.01, "warmup_steps": 3} | overrides)


TEXT = torch.randint(11, (101,), generator=generator(5))


def text_batches(state):
    return language_model_batches(TEXT, 5, 7, state)


class Constant(nn.Module):
    """A model of one parameter: the same logits whatever it reads."""

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, tokens):
        return self.logits.expand(*tokens.shape, -1)


def answers(*rows):
    targets = torch.tensor(rows)
    return Batch({"tokens": torch.zeros_like(targets)}, targets)


# By hand


def test_the_loss_is_the_average_surprise_in_nats():
    logits = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]).log()
    loss = cross_entropy(logits, torch.tensor([1, 2]))
    assert loss.item() == pytest.approx((math.log(4) - math.log(0.8)) / 2)


def test_ignored_targets_neither_add_nor_divide():
    logits = torch.tensor([[[0.5, 0.5], [0.9, 0.1]], [[0.2, 0.8], [0.7, 0.3]]]).log()
    targets = torch.tensor([[0, IGNORED], [IGNORED, 1]])
    assert cross_entropy(logits, targets).item() == pytest.approx(-math.log(0.5 * 0.3) / 2)


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 0.25),
        (1, 0.5),
        (2, 0.75),
        (3, 1.0),
        (5, 0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2),
        (7, 0.55),
        (9, 0.1 + 0.9 * (1 + math.cos(math.pi * 3 / 4)) / 2),
        (11, 0.1),
        (12, 0.1),
        (1000, 0.1),
    ],
)
def test_the_learning_rate_climbs_a_line_and_comes_down_a_cosine(step, rate):
    got = warmup_cosine(step, peak=1.0, warmup_steps=3, total_steps=12, final=0.1)
    assert got == pytest.approx(rate, abs=1e-12)


def test_without_warm_up_the_first_update_is_at_the_peak():
    assert warmup_cosine(0, peak=2.0, warmup_steps=0, total_steps=5) == 2.0
    assert warmup_cosine(4, peak=2.0, warmup_steps=0, total_steps=5) == 0.0


def test_a_run_shorter_than_its_warm_up_only_climbs():
    rates = [warmup_cosine(s, peak=1.0, warmup_steps=9, total_steps=3) for s in range(3)]
    assert rates == pytest.approx([0.1, 0.2, 0.3])


def test_a_loss_in_nats_per_token_becomes_bits_per_byte():
    # 5 characters in 7 bytes, at log 2 nats each: 5 bits.
    assert bits_per_byte(math.log(2), 5, len("naïvé".encode())) == pytest.approx(5 / 7)


def test_an_average_over_batches_counts_tokens_not_batches():
    model = Constant([math.log(0.5), math.log(0.25), math.log(0.25)])
    batches = [answers([0, 0, 0]), answers([1, IGNORED, IGNORED])]
    nats, num_tokens = evaluate(model, batches)
    assert num_tokens == 4
    assert nats == pytest.approx((3 * math.log(2) + math.log(4)) / 4)


# Against torch


def test_a_step_is_that_of_torch_with_a_clipped_gradient(tokens):
    ours, theirs = tiny_model(), tiny_model()
    batch = Batch({"tokens": tokens(11, 5, 7)}, tokens(11, 5, 7))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.7)
    loss = nn.CrossEntropyLoss()(theirs(batch.inputs["tokens"]).transpose(1, 2), batch.targets)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(theirs.parameters(), 0.01)
    optimizer.step()
    result = train_step(ours, batch, torch.optim.SGD(ours.parameters(), lr=0.7), 0.01)
    torch.testing.assert_close(result, (loss.detach(), norm))
    assert norm > 0.01
    for got, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(got, expected)


def test_matrices_decay_and_vectors_do_not():
    model = tiny_model()
    decayed, plain = adamw(model, settings(weight_decay=0.3)).param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.3, 0.0)
    assert {p.ndim for p in decayed["params"]} == {2}
    assert {p.ndim for p in plain["params"]} == {1}
    assert len(decayed["params"]) + len(plain["params"]) == len(list(model.parameters()))


def test_the_schedule_is_the_one_torch_composes():
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=3.0)
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1 / 6, total_iters=5)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=7, eta_min=0.5)
    theirs = torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, fall], milestones=[5])
    for step in range(13):
        rate = warmup_cosine(step, peak=3.0, warmup_steps=5, total_steps=13, final=0.5)
        assert rate == pytest.approx(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()


# Laws


def test_training_learns_a_text_by_heart():
    model, config = tiny_model(d_model=24), settings(steps=120, learning_rate=0.03)
    records = list(train(model, text_batches(generator()), adamw(model, config), config, 0, 50))
    assert [record.step for record in records] == [50, 100, 120]
    after, num_tokens = evaluate(model, covering_windows(TEXT, 5, 7))
    assert num_tokens == 100
    assert after < math.log(11) * 0.6  # of the surprise of a fair guess


def test_a_record_says_what_happened_since_the_last(monkeypatch):
    clock = itertools.count(0, 2.0)  # seconds between two looks
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    model, config = tiny_model(), settings(steps=5)
    every = list(train(model, text_batches(generator()), adamw(model, config), config))
    model = tiny_model()
    optimizer = adamw(model, config)
    pairs = list(train(model, text_batches(generator()), optimizer, config, record_every=2))
    assert [record.step for record in pairs] == [2, 4, 5]
    losses = [record.loss for record in every]
    averages = [sum(losses[:2]) / 2, sum(losses[2:4]) / 2, losses[4]]
    assert [record.loss for record in pairs] == pytest.approx(averages)
    for one, two in zip(every[1::2], pairs, strict=False):
        assert one.learning_rate == two.learning_rate
        assert one.gradient_norm == pytest.approx(two.gradient_norm)
    assert [record.tokens_per_second for record in pairs] == [35, 35, 17.5]
    assert [record.seconds for record in pairs] == [2, 4, 6]


def test_the_learning_rate_of_a_record_was_used_for_the_update():
    model = Constant([0.0, 0.0])
    config = settings(steps=3, warmup_steps=0, learning_rate=0.5, final_learning_rate=0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=123.0)
    before = model.logits.detach().clone()
    record = next(train(model, itertools.repeat(answers([0, 0])), optimizer, config))
    assert record.learning_rate == 0.5
    expected = before - 0.5 * torch.tensor([-0.5, 0.5])
    torch.testing.assert_close(model.logits.detach(), expected)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_stopping_and_going_on_changes_no_bit(dropout):
    config = settings()

    def run(model, optimizer, state, start, number):
        records = train(model, text_batches(state), optimizer, config, start)
        return [record.loss for record in itertools.islice(records, number)]

    torch.manual_seed(1)
    whole = tiny_model(dropout=dropout)
    losses = run(whole, adamw(whole, config), generator(), 0, 13)

    torch.manual_seed(1)
    first, state = tiny_model(dropout=dropout), generator()
    optimizer = adamw(first, config)
    halves = run(first, optimizer, state, 0, 6)
    random = torch.get_rng_state()
    second, later = tiny_model(dropout=dropout), generator(99)
    second.load_state_dict(first.state_dict())
    other = adamw(second, config)
    other.load_state_dict(optimizer.state_dict())
    later.set_state(state.get_state())
    torch.set_rng_state(random)
    halves += run(second, other, later, 6, 7)

    assert halves == losses
    for got, expected in zip(second.parameters(), whole.parameters(), strict=True):
        assert torch.equal(got, expected)


def test_measuring_changes_neither_the_model_nor_its_mode():
    model = tiny_model(dropout=0.5)
    before = [p.clone() for p in model.parameters()]
    first, second = (evaluate(model.train(), covering_windows(TEXT, 3, 5)) for _ in range(2))
    assert first == second  # no dropout
    assert model.training
    evaluate(model.eval(), covering_windows(TEXT, 3, 5))
    assert not model.training
    for got, expected in zip(model.parameters(), before, strict=True):
        assert torch.equal(got, expected)
        assert got.grad is None


def test_training_mode_is_on_for_each_step():
    model, config = tiny_model(), settings(steps=2)
    records = train(model, text_batches(generator()), adamw(model, config), config)
    next(records)
    model.eval()
    next(records)
    assert model.training


# Refusals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got steps=0"),
        ({"learning_rate": 0.0}, "learning_rate must be positive, got learning_rate=0.0"),
        ({"learning_rate": math.nan}, "learning_rate must be positive"),
        ({"warmup_steps": -1}, "warmup_steps must not be negative, got warmup_steps=-1"),
        ({"max_gradient_norm": 0.0}, "max_gradient_norm must be positive, got"),
    ],
)
def test_impossible_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(settings(), **change)


def test_a_loss_that_is_no_number_stops_the_run():
    model = Constant([math.inf, 0.0])
    config = settings()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(ValueError, match="must stay finite, got nan at step 1 with learning_rate"):
        next(train(model, itertools.repeat(answers([0, 0])), optimizer, config))


def test_an_average_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one target, got none"):
        evaluate(tiny_model(), [])
