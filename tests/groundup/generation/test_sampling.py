import math

import pytest
import torch

from groundup.generation.sampling import greedy, sample, temperature, top_k, top_p

INF = math.inf


@pytest.fixture
def logits(normal):
    return normal(3, 7)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# By hand


def test_greedy_takes_the_largest_logit_of_each_row():
    assert greedy(torch.tensor([[0.0, 2.0, 1.0], [-1.0, -3.0, -2.0]])).tolist() == [1, 0]


def test_temperature_divides_the_logits():
    assert temperature(torch.tensor([2.0, -1.0]), 0.5).tolist() == [4.0, -2.0]


def test_top_k_keeps_the_k_largest():
    kept = top_k(torch.tensor([[1.0, 4.0, 2.0, 3.0], [9.0, 6.0, 7.0, 8.0]]), 2)
    assert kept.tolist() == [[-INF, 4.0, -INF, 3.0], [9.0, -INF, -INF, 8.0]]


def test_top_p_keeps_the_fewest_that_reach_p():
    logits = torch.tensor([0.1, 0.5, 0.15, 0.25]).log()
    for p, kept in [(0.3, [1]), (0.5, [1]), (0.6, [1, 3]), (0.76, [1, 2, 3]), (0.95, [0, 1, 2, 3])]:
        assert top_p(logits, p).isfinite().nonzero().flatten().tolist() == kept


def test_of_equal_logits_those_with_lower_ids_stay():
    ties = torch.tensor([[1.0, 1.0, 1.0, 1.0, 1.0], [0.0, 2.0, 1.0, 2.0, 1.0]])
    assert top_k(ties, 3).isfinite().tolist() == [[1, 1, 1, 0, 0], [0, 1, 1, 1, 0]]
    assert top_p(ties[0], 0.5).isfinite().tolist() == [1, 1, 1, 0, 0]


# Laws


@pytest.mark.parametrize(
    "change", [lambda x: temperature(x, 0.7), lambda x: top_k(x, 3), lambda x: top_p(x, 0.6)]
)
def test_each_row_of_a_batch_is_treated_as_if_it_were_alone(logits, change):
    together = change(logits)
    assert torch.equal(together, torch.stack([change(row) for row in logits]))
    assert torch.equal(change(logits.view(1, 3, 7)), together.view(1, 3, 7))


def test_a_filter_leaves_its_input_and_the_kept_logits_as_they_were(logits):
    before = logits.clone()
    for kept in (top_k(logits, 2), top_p(logits, 0.4)):
        assert torch.equal(kept[kept.isfinite()], before[kept.isfinite()])
    assert torch.equal(logits, before)


def test_k_of_one_leaves_only_the_greedy_choice_even_among_ties(logits):
    assert top_k(logits, 1).isfinite().sum(-1).tolist() == [1, 1, 1]
    assert torch.equal(sample(top_k(logits, 1), generator()), greedy(logits))
    assert top_k(torch.zeros(3, 5), 1).isfinite().sum(-1).tolist() == [1, 1, 1]


def test_a_tiny_p_leaves_only_the_greedy_choice(logits):
    assert torch.equal(sample(top_p(logits, 1e-9), generator()), greedy(logits))


def test_filters_that_keep_everything_change_nothing(logits):
    assert torch.equal(top_k(logits, 7), logits)
    assert torch.equal(top_k(logits, 100), logits)
    assert torch.equal(top_p(logits, 1.0), logits)
    assert torch.equal(temperature(logits, 1.0), logits)


def test_p_of_one_keeps_tokens_too_rare_for_rounding():
    logits = torch.tensor([0.0, -40.0, -80.0])
    assert top_p(logits, 1.0).isfinite().all()


def test_what_top_p_keeps_is_enough_and_not_more_than_enough(logits):
    p = 0.6
    probabilities = logits.softmax(-1)
    kept = top_p(logits, p).isfinite()
    total = (probabilities * kept).sum(-1)
    least = probabilities.masked_fill(~kept, INF).amin(-1)
    assert (total >= p).all()
    assert (total - least < p).all()


def test_draws_follow_the_softmax():
    logits = torch.tensor([[0.0, 1.0, -1.0], [2.0, 0.0, 0.5]])
    count, expected = 20_000, logits.softmax(-1)
    draws = sample(logits.repeat(count, 1, 1), generator())
    shares = torch.stack([(draws == token).double().mean(0) for token in range(3)], dim=-1)
    # Five standard errors: a false alarm once in a million, were the seed not fixed.
    bound = 5 * (expected * (1 - expected) / count).sqrt()
    assert ((shares - expected).abs() < bound).all()


def test_what_is_ruled_out_is_never_drawn(logits):
    kept = top_k(logits, 2)
    draws = sample(kept.repeat(500, 1, 1), generator())
    assert kept.expand(500, 3, 7).gather(-1, draws.unsqueeze(-1)).isfinite().all()
    assert draws.unique().numel() > 2


def test_a_single_row_gives_a_single_token(logits):
    assert sample(logits[0], generator()).shape == greedy(logits[0]).shape == ()


def test_a_seed_decides_the_draws(logits):
    many = logits.repeat(50, 1, 1)
    assert torch.equal(sample(many, generator(1)), sample(many, generator(1)))
    assert not torch.equal(sample(many, generator(1)), sample(many, generator(2)))


def test_heat_spreads_and_cold_sharpens(logits):
    def entropy(x):
        return -(x.softmax(-1) * x.log_softmax(-1)).sum(-1)

    assert (entropy(temperature(logits, 2.0)) > entropy(logits)).all()
    assert (entropy(temperature(logits, 0.5)) < entropy(logits)).all()


def test_a_temperature_of_zero_keeps_the_most_probable_token_alone(logits):
    kept = temperature(logits, 0.0).isfinite()
    assert torch.equal(kept.sum(dim=-1), torch.ones(logits.shape[:-1], dtype=torch.long))
    assert torch.equal(kept.long().argmax(dim=-1), greedy(logits))


# Refusals


@pytest.mark.parametrize("value", [-1.0, math.nan])
def test_a_temperature_below_zero_is_refused(logits, value):
    with pytest.raises(ValueError, match=f"temperature must not be negative.*temperature={value}"):
        temperature(logits, value)


def test_a_k_below_one_is_refused(logits):
    with pytest.raises(ValueError, match="k must be at least 1, got k=0"):
        top_k(logits, 0)


@pytest.mark.parametrize("value", [0.0, 1.1, math.nan])
def test_a_p_that_is_no_share_is_refused(logits, value):
    with pytest.raises(ValueError, match=f"p must be above 0 and at most 1, got p={value}"):
        top_p(logits, value)
