import dataclasses
import itertools
import math
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from groundup import presets
from groundup.core.models import DecoderOnly, EncoderDecoder
from groundup.core.multihead import MultiHeadAttention
from groundup.data.batches import IGNORED, Batch, covering_windows, language_model_batches
from groundup.files.checkpoint import load_training, save_training
from groundup.training.loop import (
    TrainingConfig,
    adamw,
    bits_per_byte,
    cross_entropy,
    evaluate,
    fraction_of_peak,
    optimizers_for,
    train,
    train_step,
    warmup_constant,
    warmup_cosine,
    warmup_inverse_root,
    warmup_stable_decay,
)

# Sizes: vocabulary 11, d_model 12, 3 heads, d_ff 13, context 7, batches of 5.


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def tiny_model(**overrides):
    sizes = {"vocab_size": 11, "max_len": 7, "d_model": 12, "num_heads": 3, "d_ff": 13}
    config = presets.decoder_only("tiny", **sizes | {"num_layers": 2} | overrides)
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


def test_a_smoothed_target_is_mostly_the_right_token_and_a_little_of_each():
    logits = torch.tensor([[0.5, 0.25, 0.25]]).log()
    loss = cross_entropy(logits, torch.tensor([0]), label_smoothing=0.3)
    # 0.7 of the right one, and 0.1 of each of the three
    expected = -(0.8 * math.log(0.5) + 0.1 * math.log(0.25) + 0.1 * math.log(0.25))
    assert loss.item() == pytest.approx(expected)


def test_smoothing_leaves_ignored_targets_out_too():
    logits = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()
    loss = cross_entropy(logits, torch.tensor([IGNORED, 0]), label_smoothing=0.2)
    assert loss.item() == pytest.approx(-(0.9 * math.log(0.9) + 0.1 * math.log(0.1)))


def test_a_part_of_a_batch_is_divided_by_the_targets_of_the_whole():
    logits = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()
    loss = cross_entropy(logits, torch.tensor([0, IGNORED]), num_targets=torch.tensor(5))
    assert loss.item() == pytest.approx(math.log(2) / 5)


def test_the_loss_of_half_precision_logits_is_worked_out_in_float32(normal):
    logits = normal(3, 5, 1009).bfloat16()
    targets = torch.arange(15).reshape(3, 5)
    loss = cross_entropy(logits, targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, cross_entropy(logits.float(), targets))


@pytest.mark.parametrize(
    ("step", "rate"),
    [(0, 0.5), (1, 1.0), (2, 1.5), (3, 2.0), (15, 1.0), (35, 2 / 3), (63, 0.5)],
)
def test_the_schedule_of_the_paper_falls_with_one_over_the_root(step, rate):
    assert warmup_inverse_root(step, peak=2.0, warmup_steps=4) == pytest.approx(rate)


def test_the_schedule_of_the_paper_is_its_equation():
    d_model, warmup_steps = 512, 4000
    peak = (d_model * warmup_steps) ** -0.5
    for number in (1, 2, 100, 3999, 4000, 4001, 16_000, 100_000):
        expected = d_model**-0.5 * min(number**-0.5, number * warmup_steps**-1.5)
        got = warmup_inverse_root(number - 1, peak=peak, warmup_steps=warmup_steps)
        assert got == pytest.approx(expected, rel=1e-12)
    assert warmup_inverse_root(3999, peak=peak, warmup_steps=4000) == pytest.approx(6.9877e-4, 1e-5)


def test_without_warm_up_the_root_falls_from_the_first_update():
    rates = [warmup_inverse_root(step, peak=3.0, warmup_steps=0) for step in (0, 3, 8)]
    assert rates == pytest.approx([3, 1.5, 1])


def test_a_constant_learning_rate_only_climbs():
    rates = [warmup_constant(step, peak=2.0, warmup_steps=3) for step in (0, 1, 2, 3, 99)]
    assert rates == pytest.approx([0.5, 1, 1.5, 2, 2])


def test_a_stable_learning_rate_comes_down_a_line_at_the_end():
    ends = {"warmup_steps": 1, "decay_steps": 3, "total_steps": 8}
    rates = [warmup_stable_decay(step, peak=2.0, **ends) for step in range(10)]
    assert rates == pytest.approx([1, 2, 2, 2, 2, 1.5, 1, 0.5, 0, 0])
    rates = [warmup_stable_decay(step, peak=2.0, **ends, final=1.0) for step in range(10)]
    assert rates == pytest.approx([1, 2, 2, 2, 2, 1.75, 1.5, 1.25, 1, 1])


def test_a_climb_that_meets_the_descent_turns_into_it():
    ends = {"warmup_steps": 3, "decay_steps": 3, "total_steps": 5}
    rates = [warmup_stable_decay(step, peak=4.0, **ends) for step in range(5)]
    assert rates == pytest.approx([1, 2, 3, 2, 1])


@pytest.mark.parametrize(
    ("schedule", "shares"),
    [
        ("cosine", [0.25, 1.0, 0.1 + 0.9 * (1 + math.cos(math.pi * 4 / 9)) / 2, 0.1]),
        ("inverse_root", [1 / 3, math.sqrt(3 / 4), math.sqrt(3 / 8), math.sqrt(3 / 13)]),
        ("constant", [0.25, 1.0, 1.0, 1.0]),
        ("stable_decay", [0.25, 1.0, 1.0, 0.1 + 0.9 / 5]),
    ],
)
def test_the_settings_choose_the_schedule(schedule, shares):
    config = settings(schedule=schedule, final_learning_rate=0.1, decay_share=0.3)
    got = [fraction_of_peak(config, step) for step in (0, 3, 7, 12)]
    assert got == pytest.approx(shares)


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


@pytest.mark.parametrize("label_smoothing", [0.0, 0.3])
def test_the_loss_is_that_of_torch(normal, label_smoothing):
    logits, targets = normal(3, 7, 11), torch.randint(11, (3, 7), generator=generator())
    targets[1, 2:] = IGNORED
    theirs = nn.CrossEntropyLoss(label_smoothing=label_smoothing)(logits.mT, targets)
    counted = (targets != IGNORED).sum()
    torch.testing.assert_close(cross_entropy(logits, targets, label_smoothing), theirs)
    torch.testing.assert_close(cross_entropy(logits, targets, label_smoothing, counted), theirs)


# Laws


def uneven_batch(tokens, rows=5):
    """Rows in which different numbers of targets count; in one, none."""
    targets = tokens(11, rows, 7)
    for row, kept in enumerate((7, 1, 0, 3, 5)[:rows]):
        targets[row, kept:] = IGNORED
    return Batch({"tokens": tokens(11, rows, 7)}, targets)


@pytest.mark.parametrize("micro_batches", [2, 3, 5])
def test_a_batch_in_parts_gives_the_update_of_the_batch_in_one(tokens, micro_batches):
    batch = uneven_batch(tokens)
    results = []
    for number in (1, micro_batches):
        model = tiny_model().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.7)
        result = train_step(model, batch, optimizer, 0.5, micro_batches=number, label_smoothing=0.1)
        results.append((*result, *[p.detach() for p in model.parameters()]))
    torch.testing.assert_close(*results)
    assert results[0][1] > 0.5  # the gradient was clipped, all parts together


def test_the_average_of_the_parts_averages_would_be_another_number(tokens):
    batch, model = uneven_batch(tokens), tiny_model()
    rows = [
        Batch({"tokens": batch.inputs["tokens"][i, None]}, batch.targets[i, None])
        for i in (0, 1, 3, 4)
    ]
    losses = [evaluate(model, [row])[0] for row in rows]
    whole, num_targets = evaluate(model, [batch])
    assert num_targets == 16
    assert abs(sum(losses) / 4 - whole) > 1e-3
    loss, _ = train_step(model, batch, adamw(model, settings()), micro_batches=5)
    assert loss.item() == pytest.approx(whole, rel=1e-5)


def test_a_mask_that_all_rows_share_goes_to_every_part(tokens):
    batch = uneven_batch(tokens)
    mask = torch.ones(7, 7, dtype=torch.bool)[None, None]
    mask[..., 1:4, 1] = False
    batch.inputs["mask"] = mask
    losses = []
    for number in (1, 2):
        model = tiny_model()
        losses.append(train_step(model, batch, adamw(model, settings()), micro_batches=number)[0])
    torch.testing.assert_close(*losses)


def test_muon_gets_the_matrices_inside_blocks_and_adam_the_rest():
    model = tiny_model(tie_embeddings=False)
    config = settings(optimizer="muon", muon_learning_rate=0.5, weight_decay=0.3)
    optimizer = optimizers_for(model, config)
    names = {id(p): name for name, p in model.named_parameters()}
    groups = [{names[id(p)] for p in group["params"]} for group in optimizer.param_groups]
    matrices, vectors, muon = groups
    assert matrices == {"embedding.tokens.weight", "unembedding.weight"}
    assert all(name.startswith("blocks.") for name in muon)
    assert {p.ndim for p in optimizer.param_groups[2]["params"]} == {2}
    assert {p.ndim for p in optimizer.param_groups[1]["params"]} == {1}
    assert sum(map(len, groups)) == len(names)
    assert [group["peak"] for group in optimizer.param_groups] == [0.01, 0.01, 0.5]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.0, 0.3]
    assert not any("blocks" in name for name in matrices)


def test_both_stacks_of_an_encoder_decoder_are_for_muon():
    sizes = {"source_vocab_size": 13, "vocab_size": 11, "source_max_len": 5, "max_len": 7}
    model = EncoderDecoder(
        presets.encoder_decoder("tiny", **sizes, d_model=12, num_heads=3), generator()
    )
    optimizer = optimizers_for(model, settings(optimizer="muon"))
    muon = {id(p) for p in optimizer.param_groups[-1]["params"]}
    for stack in (model.encoder, model.blocks):
        assert {id(p) for p in stack.parameters() if p.ndim == 2} <= muon
    assert id(model.embedding.tokens.weight) not in muon
    assert id(model.source_embedding.tokens.weight) not in muon


def test_each_group_follows_the_schedule_from_its_own_peak():
    model = tiny_model()
    config = settings(optimizer="muon", muon_learning_rate=0.5, schedule="constant", steps=5)
    optimizer = optimizers_for(model, config)
    for record in train(model, text_batches(generator()), optimizer, config):
        share = fraction_of_peak(config, record.step - 1)
        rates = [group["lr"] for group in optimizer.param_groups]
        assert rates == pytest.approx([0.01 * share, 0.01 * share, 0.5 * share])
        assert record.learning_rate == pytest.approx(0.01 * share)


def test_muon_learns_a_text_by_heart_too():
    config = settings(steps=60, learning_rate=0.03, optimizer="muon", muon_learning_rate=0.05)
    model = tiny_model(d_model=24)
    list(train(model, text_batches(generator()), optimizers_for(model, config), config))
    assert evaluate(model, covering_windows(TEXT, 5, 7))[0] < math.log(11) * 0.6


def test_measuring_smooths_no_labels():
    model = Constant([math.log(0.5), math.log(0.25), math.log(0.25)])
    config = settings(steps=1, label_smoothing=0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    smoothed = next(train(model, itertools.repeat(answers([0])), optimizer, config)).loss
    model = Constant([math.log(0.5), math.log(0.25), math.log(0.25)])
    assert evaluate(model, [answers([0])])[0] == pytest.approx(math.log(2))
    assert smoothed == pytest.approx(0.8 * math.log(2) + 0.2 * math.log(4))


def test_in_bfloat16_only_products_are(tokens):
    model, seen = tiny_model(), {}
    for name, module in model.named_modules():
        module.register_forward_hook(
            lambda _, __, output, name=name: seen.update({name: output.dtype})
        )
    batch = uneven_batch(tokens)
    loss, norm = train_step(model, batch, adamw(model, settings()), precision="bfloat16")
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | MultiHeadAttention | nn.Identity):
            assert seen[name] == torch.bfloat16, name
        elif name.endswith("norm") or name in ("embedding", "blocks.0", "blocks.1"):
            assert seen[name] == torch.float32, name
    assert (loss.dtype, norm.dtype) == (torch.float32, torch.float32)
    for parameter in model.parameters():
        assert (parameter.dtype, parameter.grad.dtype) == (torch.float32, torch.float32)
    reference = tiny_model()
    expected, _ = train_step(reference, batch, adamw(reference, settings()))
    assert loss != expected
    torch.testing.assert_close(loss, expected, atol=0.02, rtol=0)


RECIPES = [
    {"optimizer": "muon", "schedule": "stable_decay"},
    {"optimizer": "muon", "micro_batches": 3, "label_smoothing": 0.1},
    {"optimizer": "adamw", "precision": "bfloat16", "micro_batches": 2},
]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: " ".join(map(str, recipe.values())))
def test_going_on_from_a_file_changes_no_bit_with_any_recipe(tmp_path, recipe):
    config = settings(**recipe)

    def run(model, optimizer, state, start, number):
        records = train(model, text_batches(state), optimizer, config, start)
        return [record.loss for record in itertools.islice(records, number)]

    torch.manual_seed(1)
    whole = tiny_model(dropout=0.3)
    losses = run(whole, optimizers_for(whole, config), generator(), 0, 13)

    torch.manual_seed(1)
    first, state = tiny_model(dropout=0.3), generator()
    optimizer = optimizers_for(first, config)
    halves = run(first, optimizer, state, 0, 6)
    save_training(tmp_path, first, optimizer, state, 6)
    torch.manual_seed(99)
    second, later = tiny_model(dropout=0.3), generator(99)
    other = optimizers_for(second, config)
    assert load_training(tmp_path, second, other, later) == 6
    halves += run(second, other, later, 6, 7)

    assert halves == losses
    for got, expected in zip(second.parameters(), whole.parameters(), strict=True):
        assert torch.equal(got, expected)


COMPILED = """
import sys
import torch
from groundup import presets
from groundup.files.checkpoint import load_training, save_training
from groundup.core.config import DecoderOnlyConfig
from groundup.data.batches import language_model_batches
from groundup.core.models import DecoderOnly
from groundup.training.loop import TrainingConfig, optimizers_for, train

def generator(seed=0):
    return torch.Generator().manual_seed(seed)

def model():
    sizes = dict(vocab_size=11, max_len=7, d_model=12, num_heads=3, d_ff=13, num_layers=1)
    return DecoderOnly(presets.decoder_only("tiny", **sizes), generator())

text = torch.randint(11, (101,), generator=generator(5))
config = TrainingConfig(steps=6, learning_rate=0.01, warmup_steps=2, optimizer="muon")

def losses(compiled, state, optimizer, start, stop):
    records = train(compiled, language_model_batches(text, 5, 7, state), optimizer, config, start)
    return [next(records).loss for _ in range(start, stop)]

plain = model()
expected = losses(plain, generator(), optimizers_for(plain, config), 0, 6)
first = torch.compile(model())
optimizer, state = optimizers_for(first, config), generator()
whole = losses(first, state, optimizer, 0, 3)
save_training(sys.argv[1], first, optimizer, state, 3)
whole += losses(first, state, optimizer, 3, 6)
assert max(abs(a - b) for a, b in zip(whole, expected)) < 1e-4, (whole, expected)
second = torch.compile(model())
optimizer, state = optimizers_for(second, config), generator(9)
assert load_training(sys.argv[1], second, optimizer, state) == 3
later = losses(second, state, optimizer, 3, 6)
assert later == whole[3:], (later, whole)
plain = model()  # nothing in the file says that it was compiled
load_training(sys.argv[1], plain, optimizers_for(plain, config), generator())
print("equal")
"""


@pytest.mark.slow
@pytest.mark.compiler
def test_a_compiled_model_learns_the_same_and_goes_on_bit_for_bit(tmp_path):
    # The type checker of the tests and the compiler do not go together.
    environment = os.environ | {"JAXTYPING_DISABLE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, tmp_path], capture_output=True, text=True, env=environment
    )
    assert done.stdout == "equal\n", done.stderr


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
        ({"muon_learning_rate": -1.0}, "muon_learning_rate must be positive, got"),
        ({"micro_batches": 0}, "micro_batches must be at least 1, got micro_batches=0"),
        ({"label_smoothing": 1.0}, "label_smoothing must be at least 0 and below 1, got"),
        ({"beta2": 1.0}, "beta2 must be at least 0 and below 1, got beta2=1.0"),
        ({"decay_share": 1.5}, "decay_share must be from 0 to 1, got decay_share=1.5"),
    ],
)
def test_impossible_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(settings(), **change)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schedule": "linear"}, "schedule must be one of cosine, inverse_root, constant, stable"),
        ({"optimizer": "sgd"}, "optimizer must be one of adamw, muon, got optimizer=sgd"),
        ({"precision": "float16"}, "precision must be one of float32, bfloat16, got precision=fl"),
    ],
)
def test_unknown_choices_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(settings(), **change)


@pytest.mark.parametrize("number", [0, 6])
def test_more_parts_than_rows_are_refused(tokens, number):
    model = tiny_model()
    message = f"from 1 to the number of rows in a batch, got micro_batches={number}, 5 rows"
    with pytest.raises(ValueError, match=message):
        train_step(model, uneven_batch(tokens), adamw(model, settings()), micro_batches=number)


def test_muon_without_blocks_is_refused():
    with pytest.raises(ValueError, match="needs a model with matrices inside blocks, got none in"):
        optimizers_for(nn.Linear(3, 5), settings(optimizer="muon"))


def test_a_loss_that_is_no_number_stops_the_run():
    model = Constant([math.inf, 0.0])
    config = settings()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(ValueError, match="must stay finite, got nan at step 1 with learning_rate"):
        next(train(model, itertools.repeat(answers([0, 0])), optimizer, config))


def test_an_average_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one target, got none"):
        evaluate(tiny_model(), [])
