import copy

import pytest
import torch

from groundup import presets
from groundup.core.models import DecoderOnly
from groundup.data.batches import IGNORED, language_model_batches
from groundup.own_parts import parts, training_parts
from groundup.own_parts.training_parts import (
    AdamW,
    adamw_step,
    clip_gradients,
    learning_rate,
    loss_by,
    train_by,
)
from groundup.training import loop
from groundup.training.loop import TrainingConfig, optimizers_for, train

SIZES = {"vocab_size": 11, "max_len": 7, "d_model": 12, "num_layers": 2, "num_heads": 3, "d_ff": 17}


@pytest.fixture
def model():
    return DecoderOnly(
        presets.decoder_only("tiny", **SIZES), torch.Generator().manual_seed(5)
    ).double()


@pytest.fixture
def own():
    """The three functions as somebody else's, and the calls of each."""
    calls = {"adamw_step": [], "clip_gradients": [], "learning_rate": []}

    def of_somebody(ours):
        def function(*given):
            calls[ours.__name__].append(given)
            return ours(*given)

        return function

    return {name: of_somebody(getattr(training_parts, name)) for name in calls}, calls


def batches():
    tokens = torch.randint(11, (200,), generator=torch.Generator().manual_seed(3))
    return language_model_batches(tokens, 2, 7, torch.Generator().manual_seed(13))


def settings(**changes):
    usual = {"steps": 8, "learning_rate": 0.02, "warmup_steps": 2, "schedule": "cosine"}
    return TrainingConfig(**usual | changes)


def run(model, optimizer, config, source, start=0):
    return [(r.loss, r.gradient_norm) for r in train(model, source, optimizer, config, start)]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_by_somebodys_parts_is_the_run_by_torch(model, own, optimizer, monkeypatch):
    # Else Muon rounds to sixteen bits, and what differs in the last digit differs in the third.
    monkeypatch.setattr(loop, "multiplies_bfloat16", lambda device: False)
    config = settings(optimizer=optimizer, learning_rate=0.03, max_gradient_norm=0.7)
    other = copy.deepcopy(model)
    expected = run(model, optimizers_for(model, config), config, batches())
    functions, calls = own
    changed, by_parts, used = train_by(functions, optimizers_for(other, config), config)
    seen = run(other, changed, by_parts, batches())
    assert used == ("adamw_step", "clip_gradients", "learning_rate")
    assert seen == [pytest.approx(pair, rel=1e-5) for pair in expected]
    assert any(norm > 0.7 for _, norm in expected), "something is clipped"
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-5)
    assert [given[0] for given in calls["learning_rate"]] == list(range(8))
    assert {given[1] for given in calls["clip_gradients"]} == {0.7}
    matrices = sum(p.ndim == 2 for p in model.blocks.parameters()) if optimizer == "muon" else 0
    assert len(calls["adamw_step"]) == 8 * (len(list(model.parameters())) - matrices)


def test_what_a_function_returns_is_what_happens(model):
    before = copy.deepcopy(model)
    own = {"adamw_step": lambda p, g, mean, square, *_: (p.mul_(2), mean, square)}
    optimizer, config, used = train_by(own, optimizers_for(model, settings()), settings())
    run(model, optimizer, config, batches())
    assert used == ("adamw_step",)
    for old, new in zip(before.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(new, 2**8 * old)


def test_what_was_remembered_is_taken_over(model, own):
    config = settings()
    other = copy.deepcopy(model)
    expected = run(model, optimizers_for(model, config), config, batches())
    source = batches()
    optimizer = optimizers_for(other, config)
    first = train(other, source, optimizer, config)
    seen = [(r.loss, r.gradient_norm) for _, r in zip(range(5), first, strict=False)]
    changed, by_parts, _ = train_by(own[0], optimizer, config, start_step=5)
    seen += run(other, changed, by_parts, source, start=5)
    assert seen == [pytest.approx(pair, rel=1e-5) for pair in expected]
    assert isinstance(changed, AdamW)
    saved = changed.state_dict()
    again = optimizers_for(other, config)
    again.load_state_dict(saved)
    assert again.state_dict()["state"][0].keys() == saved["state"][0].keys()


def test_the_schedule_is_somebodys_where_it_is_a_cosine_and_long_enough(model, own):
    for config, is_used in (
        (settings(), True),
        (settings(schedule="constant"), False),
        (settings(steps=3), False),
    ):
        _, _, used = train_by(own[0], optimizers_for(model, config), config)
        assert ("learning_rate" in used) == is_used


def test_what_is_borrowed_from_here_counts_as_nobodys(model):
    config = settings()
    optimizer = optimizers_for(model, config)
    borrowed = {"adamw_step": adamw_step, "clip_gradients": clip_gradients}
    things = borrowed | {"learning_rate": learning_rate, "another": 7}
    assert train_by(things, optimizer, config) == (optimizer, config, ())


def test_gradients_that_are_not_finite_are_refused_and_missing_ones_stay_missing():
    clipped, norm = clip_gradients([torch.tensor([3.0]), None, torch.tensor([[4.0]])], 1.0)
    assert norm == 5 and clipped[1] is None
    torch.testing.assert_close(clipped[2], torch.tensor([[0.8]]))
    with pytest.raises(ValueError, match="gradients must be finite, got a norm of nan"):
        clip_gradients([torch.tensor([torch.nan])], 1.0)


def test_a_loss_of_ones_own_is_that_of_the_library_without_ignored_targets():
    assert loss_by({}) is loss_by({"smoothed_loss": parts.smoothed_loss}) is None
    own = loss_by({"smoothed_loss": lambda *about: parts.smoothed_loss(*about)})
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 7, generator=generator, dtype=torch.float64)
    targets = torch.randint(7, (2, 5), generator=generator)
    targets[1, 3:] = IGNORED
    for smoothing, number in ((0.0, 8), (0.1, 8), (0.1, 11)):
        given = (logits, targets, smoothing, torch.tensor(number))
        torch.testing.assert_close(own(*given), loop.cross_entropy(*given))


def test_noam_sets_the_rate_of_the_schedule_that_is_named_after_it(model):
    config = TrainingConfig(
        steps=9, learning_rate=0.01, warmup_steps=3, schedule="inverse_root", micro_batches=1
    )
    rates = []
    noam = {"noam": lambda *about: parts.noam(*about)}
    optimizer, config, used = train_by(noam, optimizers_for(model, config), config)
    assert used == ("noam",)
    optimizer.register_step_pre_hook(lambda one, *_: rates.append(one.param_groups[0]["lr"]))
    tokens = torch.randint(11, (50,), generator=torch.Generator().manual_seed(1))
    batches = language_model_batches(tokens, 2, 7, torch.Generator().manual_seed(1))
    list(train(model, batches, optimizer, config))
    assert rates == pytest.approx([0.01 * loop.fraction_of_peak(config, step) for step in range(9)])
