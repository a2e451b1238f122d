import copy
import math

import pytest
import torch
from torch import nn

from groundup.training.optimizers import Muon, Together, orthogonalise, orthogonalise_each


def pushed(x, times=5):
    """What happens to one singular value."""
    for _ in range(times):
        x = 3.4445 * x - 4.7750 * x**3 + 2.0315 * x**5
    return x


def with_gradient(matrix, gradient):
    parameter = nn.Parameter(torch.tensor(matrix, dtype=torch.float64))
    parameter.grad = torch.tensor(gradient, dtype=torch.float64)
    return parameter


# By hand


def test_a_polynomial_of_a_matrix_is_that_of_its_singular_values():
    # The length is 10, so the singular values are 0.6 and 0.8 of it.
    got = orthogonalise(torch.tensor([[6.0, 0.0, 0.0], [0.0, 0.0, -8.0]], dtype=torch.float64))
    expected = [[pushed(0.6), 0, 0], [0, 0, -pushed(0.8)]]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64))


def test_an_update_follows_the_average_gradient_looked_at_one_step_ahead():
    # A matrix of one number is orthogonal with 1 or -1, whatever the size of its gradient.
    parameter = with_gradient([[2.0]], [[3.0]])
    optimizer = Muon([parameter], lr=0.1, momentum=0.75)
    optimizer.step()
    assert parameter.item() == pytest.approx(2 - 0.1 * pushed(1.0))
    assert optimizer.state[parameter]["momentum"].item() == pytest.approx(0.25 * 3)
    parameter.grad.fill_(-4.0)
    optimizer.step()  # average 0.75 * 0.75 - 0.25 * 4 = -0.4375, ahead -0.25 * 4 - 0.75 * 0.4375
    assert optimizer.state[parameter]["momentum"].item() == pytest.approx(-0.4375)
    assert parameter.item() == pytest.approx(2.0)


def test_the_gradient_of_now_may_outvote_the_average():
    parameter = with_gradient([[0.0]], [[8.0]])
    optimizer = Muon([parameter], lr=1.0, momentum=0.5)
    optimizer.step()
    parameter.grad.fill_(-5.0)
    optimizer.step()  # average 0.5 * 4 - 0.5 * 5 = -0.5, ahead -2.5 - 0.25
    parameter.grad.fill_(0.25)
    optimizer.step()  # average -0.25 + 0.125 = -0.125, ahead 0.125 - 0.0625: up, so down it goes
    assert parameter.item() == pytest.approx(-pushed(1.0))


def test_a_matrix_decays_apart_from_its_gradient_and_before_it():
    parameter = with_gradient([[2.0]], [[5.0]])
    Muon([parameter], lr=0.1, weight_decay=0.3).step()
    assert parameter.item() == pytest.approx(2 * (1 - 0.1 * 0.3) - 0.1 * pushed(1.0))


@pytest.mark.parametrize(("shape", "size"), [((12, 3), 2.0), ((3, 12), 1.0), ((5, 5), 1.0)])
def test_a_layer_with_more_outputs_than_inputs_takes_longer_steps(normal, shape, size):
    parameter = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
    parameter.grad = normal(*shape)
    Muon([parameter], lr=0.5).step()
    torch.testing.assert_close(parameter.detach(), -0.5 * size * orthogonalise(parameter.grad))


# Against torch


@pytest.mark.parametrize("shape", [(5, 7), (11, 3)])
def test_singular_vectors_stay_and_singular_values_come_near_1(normal, shape):
    matrix = normal(*shape)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    expected = left @ pushed(values / values.norm()).diag() @ right
    torch.testing.assert_close(orthogonalise(matrix), expected)
    assert ((pushed(values / values.norm()) - 0.945).abs() < 0.27).all()


@pytest.mark.parametrize("size", [1.0, 0.01, 1 / 500])
def test_weak_directions_are_raised_as_far_as_the_docstring_says(size):
    matrix = torch.tensor([math.sqrt(1 - size**2), size], dtype=torch.float64).diag()
    values = torch.linalg.svdvals(orthogonalise(matrix))
    assert 0.68 < values[values > 0].min()
    assert values.max() < 1.21


def test_updates_are_those_of_the_muon_of_torch(normal):
    start = {"a": normal(7, 5), "b": normal(3, 11)}
    ours, theirs = ([nn.Parameter(m.float()) for m in start.values()] for _ in range(2))
    one = Muon(ours, lr=0.3, momentum=0.9, weight_decay=0.2, dtype=torch.bfloat16)
    other = torch.optim.Muon(theirs, lr=0.3, momentum=0.9, weight_decay=0.2)
    for _ in range(4):
        for mine, torchs in zip(ours, theirs, strict=True):
            mine.grad = normal(*mine.shape, dtype=torch.float32)
            torchs.grad = mine.grad.clone()
        one.step()
        other.step()
    for mine, torchs in zip(ours, theirs, strict=True):  # bfloat16 has three digits
        torch.testing.assert_close(mine, torchs, atol=0.03, rtol=0)


# Laws


def test_a_stack_of_matrices_is_each_as_if_alone(normal):
    stack = normal(3, 5, 7)
    expected = torch.stack([orthogonalise(matrix) for matrix in stack])
    torch.testing.assert_close(orthogonalise(stack), expected)


@pytest.mark.parametrize("stacked", [False, True])
def test_matrices_of_different_shapes_keep_their_order(normal, stacked):
    matrices = [normal(*shape) for shape in [(5, 7), (3, 2), (5, 7), (2, 3), (5, 7)]]
    results = orthogonalise_each(matrices, stacked)
    for result, matrix in zip(results, matrices, strict=True):
        torch.testing.assert_close(result, orthogonalise(matrix))
    low = orthogonalise_each(matrices, stacked, torch.bfloat16)
    for result, matrix in zip(low, matrices, strict=True):
        assert result.dtype == torch.float64
        expected = orthogonalise(matrix.bfloat16()).double()
        torch.testing.assert_close(result, expected, atol=0.01, rtol=0)


def test_a_matrix_on_its_side_gives_the_same_result_on_its_side(normal):
    matrix = normal(5, 11)
    before = matrix.clone()
    torch.testing.assert_close(orthogonalise(matrix.mT), orthogonalise(matrix).mT)
    assert torch.equal(matrix, before)


def test_the_size_of_the_gradient_does_not_matter_but_a_gradient_of_zero_moves_nothing(normal):
    matrix = normal(3, 5)
    torch.testing.assert_close(orthogonalise(1000 * matrix), orthogonalise(matrix))
    assert torch.equal(orthogonalise(torch.zeros(3, 5)), torch.zeros(3, 5))


def test_bfloat16_is_near_enough(normal):
    matrix = normal(11, 13, dtype=torch.float32)
    low = orthogonalise(matrix.bfloat16())
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), orthogonalise(matrix), atol=0.06, rtol=0)


def test_a_matrix_without_a_gradient_stays_as_it_is(normal):
    still = nn.Parameter(normal(3, 5))
    before = still.detach().clone()
    moving = with_gradient([[2.0]], [[5.0]])
    Muon([still, moving], weight_decay=0.5).step()
    assert torch.equal(still, before)
    assert moving.item() != 2.0


def pair(normal):
    """A matrix for Muon, a matrix and a vector for Adam."""
    return nn.ParameterList([normal(3, 5), normal(7, 2), normal(11)])


def together(parameters, lr=0.1):
    matrix, table, vector = parameters
    groups = [{"params": [table], "weight_decay": 0.3}, {"params": [vector], "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=lr, fused=True)
    return Together(adam, Muon([{"params": [matrix], "peak": 7.0}], lr=lr))


def feed(parameters, normal):
    for parameter in parameters:
        parameter.grad = normal(*parameter.shape)


def test_optimizers_together_do_what_each_does_alone(normal):
    ours = pair(normal)
    theirs = copy.deepcopy(ours)
    optimizer = together(ours)
    adam = torch.optim.AdamW([theirs[1]], lr=0.1, weight_decay=0.3)
    plain = torch.optim.AdamW([theirs[2]], lr=0.1, weight_decay=0.0)
    muon = Muon([theirs[0]], lr=0.1)
    for step in range(3):
        feed(ours, normal)
        for mine, other in zip(ours, theirs, strict=True):
            other.grad = mine.grad.clone()
        for group in optimizer.param_groups:
            group["lr"] = 0.2 / (step + 1)
        for other in (adam, plain, muon):
            other.param_groups[0]["lr"] = 0.2 / (step + 1)
            other.step()
        optimizer.step()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in ours)


def test_what_was_loaded_goes_on_as_what_was_saved(normal):
    ours = pair(normal)
    optimizer = together(ours)
    feed(ours, normal)
    optimizer.step()
    again = copy.deepcopy(ours)
    other = together(again, lr=99.0)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    feed(ours, normal)
    for mine, copied in zip(ours, again, strict=True):
        copied.grad = mine.grad.clone()
    optimizer.step()
    other.step()
    for mine, copied in zip(ours, again, strict=True):
        assert torch.equal(mine, copied)
    assert [group.get("peak") for group in other.param_groups] == [None, None, 7.0]


# Refusals


def test_what_is_no_matrix_is_refused(normal):
    with pytest.raises(
        ValueError, match=r"must be given matrices, got a parameter of shape \(3,\)"
    ):
        Muon([nn.Parameter(normal(3))])
