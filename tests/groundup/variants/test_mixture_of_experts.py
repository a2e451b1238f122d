import pytest
import torch

from groundup.core.blocks import Block
from groundup.core.layers import FeedForward
from groundup.variants.mixture_of_experts import MixtureOfExperts, balance_loss, balance_losses


@pytest.fixture
def mixture(shaken):
    """Every size differs: d_model 8, d_ff 11, 5 experts, of which each token uses 2."""
    return shaken(MixtureOfExperts(8, 11, 5, 2, "gelu"))


def probabilities_of(rows):
    """Give probabilities, and choose the largest in each row."""
    probabilities = torch.tensor(rows)
    best = probabilities.argmax(dim=-1, keepdim=True)
    return probabilities, torch.zeros_like(probabilities, dtype=torch.bool).scatter(-1, best, True)


# By hand


def test_two_experts_by_hand(unchecked):
    """The router's scores are ln 3 and 0: probabilities 3/4 and 1/4. The experts double and negate.

    A token of 2 goes to the first alone, 3/4 · 4 = 3, or to both, 3 - 1/4 · 2 = 2.5.
    """
    for top_k, expected in ((1, 3.0), (2, 2.5)):
        mixture = MixtureOfExperts(1, 1, 2, top_k, bias=False)
        mixture.router.weight.data = torch.tensor([[0.5 * torch.log(torch.tensor(3.0))], [0.0]])
        for expert, factor in zip(mixture.experts, (2.0, -1.0), strict=True):
            expert.up.weight.data, expert.down.weight.data = (
                torch.ones(1, 1),
                factor * torch.ones(1, 1),
            )
        torch.testing.assert_close(mixture(torch.tensor([[2.0]])), torch.tensor([[expected]]))


def test_balance_loss_by_hand():
    """Expert fractions 3/4 and 1/4, mean probabilities 0.6 and 0.4: 2 (0.45 + 0.1) = 1.1."""
    rows = [[0.9, 0.1], [0.7, 0.3], [0.6, 0.4], [0.2, 0.8]]
    torch.testing.assert_close(balance_loss(*probabilities_of(rows)), torch.tensor(1.1))


def test_the_loss_can_be_below_its_value_at_balance():
    """Three narrow choices of the first and one certain choice of the second."""
    rows = [[0.51, 0.49]] * 3 + [[0.0, 1.0]]
    expected = 2 * (0.75 * 0.3825 + 0.25 * 0.6175)
    torch.testing.assert_close(balance_loss(*probabilities_of(rows)), torch.tensor(expected))
    assert expected < 1


# Laws


@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
def test_one_expert_is_the_feed_forward_network(normal, shaken, activation):
    mixture = shaken(MixtureOfExperts(8, 11, 1, activation=activation))
    x = normal(2, 7, 8)
    torch.testing.assert_close(mixture(x), mixture.experts[0](x))


@pytest.mark.parametrize("top_k", [1, 2, 5])
def test_each_token_uses_its_most_probable_experts_and_no_others(normal, shaken, top_k):
    mixture = shaken(MixtureOfExperts(8, 11, 5, top_k))
    x = normal(2, 7, 8)
    probabilities = mixture.router(x).softmax(dim=-1)
    expected = torch.zeros_like(x)
    for row in range(2):
        for token in range(7):
            ranked = probabilities[row, token].argsort(descending=True)
            for index in ranked[:top_k].tolist():
                own = mixture.experts[index](x[row, token])
                expected[row, token] += probabilities[row, token, index] * own
    torch.testing.assert_close(mixture(x), expected)
    _, chosen = mixture.route(x)
    assert chosen.sum(dim=-1).eq(top_k).all()


def test_the_order_of_the_experts_changes_nothing(mixture, normal):
    x, order = normal(2, 7, 8), torch.tensor([3, 0, 4, 1, 2])
    mixed, balance = mixture(x), balance_loss(*mixture.route(x))
    mixture.router.weight.data = mixture.router.weight.data[order]
    mixture.experts = torch.nn.ModuleList(mixture.experts[index] for index in order.tolist())
    torch.testing.assert_close(mixture(x), mixed)
    torch.testing.assert_close(balance_loss(*mixture.route(x)), balance)


def test_tokens_do_not_influence_each_other(mixture, normal):
    x = normal(2, 7, 8)
    alone = torch.stack([mixture(x[:, token]) for token in range(7)], dim=1)
    torch.testing.assert_close(mixture(x), alone)


def test_gradients_reach_the_router_even_when_a_token_has_one_expert(normal, shaken):
    mixture = shaken(MixtureOfExperts(8, 11, 5, 1))
    mixture(normal(2, 7, 8)).sin().sum().backward()
    assert mixture.router.weight.grad.ne(0).any()


def test_an_expert_without_tokens_has_a_zero_gradient(normal, shaken):
    mixture = shaken(MixtureOfExperts(8, 11, 2))
    mixture.router.weight.data = torch.stack((torch.ones(8), -torch.ones(8))).double()
    mixture(normal(2, 7, 8).abs()).sum().backward()
    used, idle = mixture.experts
    assert used.up.weight.grad.ne(0).any()
    assert idle.up.weight.grad is None or idle.up.weight.grad.eq(0).all()


@pytest.mark.parametrize("top_k", [1, 2])
def test_balance_is_1_when_all_experts_are_equally_probable_whichever_are_chosen(normal, top_k):
    best = normal(13, 5).topk(top_k, dim=-1).indices
    chosen = torch.zeros(13, 5, dtype=torch.bool).scatter(-1, best, True)
    loss = balance_loss(torch.full((13, 5), 0.2, dtype=torch.float64), chosen)
    torch.testing.assert_close(loss, torch.tensor(1.0, dtype=torch.float64))


def test_of_certain_routers_the_balanced_one_has_the_smallest_loss():
    """If each choice is certain the loss is 5 times the sum of the squared fractions."""

    def loss(*counts):
        rows = torch.eye(5).repeat_interleave(torch.tensor(counts), dim=0)
        return balance_loss(rows, rows.bool()).item()

    assert loss(3, 3, 3, 3, 3) == pytest.approx(1)
    assert loss(15, 0, 0, 0, 0) == pytest.approx(5)
    assert 1 < loss(4, 3, 3, 3, 2) < loss(5, 3, 3, 3, 1) < loss(11, 1, 1, 1, 1) < 5


def test_its_gradient_lowers_the_probabilities_of_experts_that_are_used_too_much(normal):
    logits = normal(13, 5) + torch.tensor([3.0, 0.0, 0.0, 0.0, 0.0])
    logits = logits.requires_grad_()
    probabilities = logits.softmax(dim=-1)
    chosen = torch.zeros_like(logits, dtype=torch.bool)
    chosen = chosen.scatter(-1, logits.argmax(dim=-1, keepdim=True), True)
    (gradient,) = torch.autograd.grad(balance_loss(probabilities, chosen), logits)
    assert gradient.mean(dim=0)[0] > 0 > gradient.mean(dim=0)[1:].max()


def test_the_losses_of_all_layers_are_collected_while_the_context_is_open(normal, shaken):
    blocks = torch.nn.Sequential(Block(8, 2, 11), Block(8, 2, 11))
    for block in blocks:
        block.feed_forward = MixtureOfExperts(8, 11, 5)
    shaken(blocks)
    x = normal(2, 7, 8)
    expected, inputs = blocks(x), []
    for block in blocks:
        block.feed_forward_norm.register_forward_hook(lambda *args: inputs.append(args[2]))
    with balance_losses(blocks) as losses:
        torch.testing.assert_close(blocks(x), expected)
    blocks(x)
    assert len(losses) == 2
    for loss, block, own in zip(losses, blocks, inputs[:2], strict=True):
        torch.testing.assert_close(loss, balance_loss(*block.feed_forward.route(own)))
    assert losses[0].requires_grad


def test_a_block_takes_it_in_place_of_its_feed_forward_network(mixture, normal):
    block = Block(8, 2, 11).double()
    assert isinstance(block.feed_forward, FeedForward)
    block.feed_forward = mixture
    x = normal(2, 7, 8)
    h = x + block.attention(block.attention_norm(x))
    torch.testing.assert_close(block(x), h + mixture(block.feed_forward_norm(h)))


# Refusals


@pytest.mark.parametrize("top_k", [0, 6])
def test_more_experts_than_there_are_or_none_are_refused(top_k):
    with pytest.raises(ValueError, match=f"got top_k={top_k}, num_experts=5"):
        MixtureOfExperts(8, 11, 5, top_k)
