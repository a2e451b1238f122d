import cmath
import math

import pytest
import torch

from groundup.positions import LearnedPositions, SinusoidalPositions, rotate, sinusoidal_table

# By hand


def test_sinusoidal_table_by_hand():
    """Two clocks: one radian per token, and a hundredth of one. Position 0 comes first."""
    expected = [
        [0, 1, 0, 1],
        [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)],
        [math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)],
    ]
    torch.testing.assert_close(sinusoidal_table(3, 4), torch.tensor(expected))


def test_rotation_by_hand():
    """Token 1 turns by one radian, token 2 by two; the slow pair by a hundredth of that."""
    x = torch.tensor([[1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 1.0]])
    expected = [
        [math.cos(1), math.sin(1), -math.sin(0.01), math.cos(0.01)],
        [math.cos(2), math.sin(2), -math.sin(0.02), math.cos(0.02)],
    ]
    torch.testing.assert_close(rotate(x, torch.tensor([1, 2])), torch.tensor(expected))


def test_learned_positions_are_rows_of_their_table():
    positions = LearnedPositions(max_len=7, d_model=3)
    rows = torch.tensor([[5, 0], [2, 6]])
    assert torch.equal(positions(rows), positions.table.weight[rows])


def test_sinusoidal_positions_are_rows_of_the_table():
    positions = SinusoidalPositions(max_len=7, d_model=4)
    found = positions(torch.tensor([5, 0, 2]))
    assert torch.equal(found, sinusoidal_table(7, 4)[[5, 0, 2]])


# Against the formulas, entry by entry, with Python's own arithmetic


def test_every_entry_of_the_table_follows_the_paper():
    table = sinusoidal_table(11, 6)
    for position in range(11):
        for i in range(3):
            angle = position / 10_000 ** (2 * i / 6)
            assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-7)
            assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-7)


def test_late_positions_are_as_exact_as_early_ones():
    late = 100_003
    angle = late / 10_000 ** (2 / 6)
    row = sinusoidal_table(late + 1, 6)[late]
    assert row[0].item() == pytest.approx(math.sin(late), abs=1e-7)
    assert row[3].item() == pytest.approx(math.cos(angle), abs=1e-7)


@pytest.mark.parametrize("base", [10_000.0, 7.0])
def test_rotation_is_multiplication_by_a_complex_number(normal, base):
    x, positions = normal(3, 6), torch.tensor([13, 0, 4])
    turned = rotate(x, positions, base)
    for token, position in enumerate(positions.tolist()):
        for i in range(3):
            number = complex(*x[token, 2 * i : 2 * i + 2].tolist())
            number *= cmath.exp(1j * position / base ** (2 * i / 6))
            assert turned[token, 2 * i].item() == pytest.approx(number.real)
            assert turned[token, 2 * i + 1].item() == pytest.approx(number.imag)


# Laws


def test_products_of_table_rows_depend_on_distance_alone():
    """P Pᵀ is Toeplitz: constant along each diagonal, and different between diagonals."""
    table = sinusoidal_table(13, 8).double()
    products = table @ table.T
    torch.testing.assert_close(products[1:, 1:], products[:-1, :-1], atol=1e-6, rtol=0)
    assert products[0].diff().abs().min() > 1e-3


def test_a_shift_is_the_same_rotation_everywhere():
    table, shift = sinusoidal_table(13, 6).double(), 5
    for i in range(3):
        angle = shift / 10_000 ** (2 * i / 6)
        turn = torch.tensor(
            [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]],
            dtype=torch.float64,
        )
        clock = table[:, 2 * i : 2 * i + 2]  # (sine, cosine) of every position
        torch.testing.assert_close(clock[shift:], clock[:-shift] @ turn, atol=1e-6, rtol=0)


def test_rotated_scores_depend_on_distance_alone(normal):
    query, key = normal(2, 5, 6), normal(2, 5, 6)
    positions = torch.arange(5)

    def scores(query_positions, key_positions):
        return rotate(query, query_positions) @ rotate(key, key_positions).transpose(-2, -1)

    here = scores(positions, positions)
    torch.testing.assert_close(scores(positions + 1009, positions + 1009), here)
    assert not torch.allclose(scores(positions + 1, positions), here)


def test_rotation_keeps_lengths_and_leaves_position_zero_alone(normal):
    x = normal(2, 3, 7, 4)
    turned = rotate(x, torch.arange(7))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(turned[:, :, 0], x[:, :, 0])
    assert (turned[:, :, 1:] - x[:, :, 1:]).abs().amax(dim=-1).min() > 0.01


def test_each_sequence_may_have_its_own_positions(normal):
    x = normal(2, 3, 5, 4)
    positions = torch.tensor([[0, 1, 2, 3, 4], [7, 3, 11, 2, 2]])
    turned = rotate(x, positions[:, None, :])
    for sequence in range(2):
        torch.testing.assert_close(turned[sequence], rotate(x[sequence], positions[sequence]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_does_not_blur_late_positions(normal, dtype):
    """The nearest number in bfloat16 to 4001 is 4000: an angle worked out there is a radian off."""
    x, positions = normal(3, 6, dtype=dtype), torch.tensor([4001, 2003, 997])
    turned = rotate(x, positions)
    assert turned.dtype == dtype
    exact = rotate(x.double(), positions)
    torch.testing.assert_close(turned.double(), exact, atol=2e-2, rtol=2e-2)


def test_nothing_of_the_sinusoids_is_saved_or_trained():
    positions = SinusoidalPositions(max_len=7, d_model=4)
    assert not positions.state_dict() and not list(positions.parameters())


def test_inputs_are_left_alone(normal):
    x, positions = normal(5, 4), torch.arange(5)
    before = x.clone()
    rotate(x, positions)
    assert torch.equal(x, before) and torch.equal(positions, torch.arange(5))


# Refusals


@pytest.mark.parametrize("kind", [SinusoidalPositions, LearnedPositions])
def test_more_positions_than_the_table_has_are_refused(kind):
    positions = kind(max_len=5, d_model=4)
    with pytest.raises(ValueError, match="length must not exceed max_len, got length=7, max_len=5"):
        positions(torch.arange(7))


def test_odd_widths_are_refused(normal):
    with pytest.raises(ValueError, match="d_model must be even .* got d_model=5"):
        sinusoidal_table(3, 5)
    with pytest.raises(ValueError, match="d_head must be even .* got d_head=5"):
        rotate(normal(3, 5), torch.arange(3))
