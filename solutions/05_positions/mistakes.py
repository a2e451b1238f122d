"""The named mistakes of chapter 05: what a message can name, and what graders are tested with."""

import math

import torch
import torch.nn.functional as F

from classroom.answers import Mistake

# 5.1 ----------------------------------------------------------------------------------------------


class NothingAsserted(Mistake, exercise="check_order_blindness"):
    """The test lets every layer pass: what it asserts, if anything, holds whether the order is seen or
    not, as it does for a shape; and a value that is returned asserts nothing."""

    def check_order_blindness(layer):
        x = torch.randn(7, 6)
        assert layer(x[torch.randperm(7)]).shape == layer(x).shape

    def order_counter_example(w_query, w_key, w_value):
        x = torch.zeros(2, len(w_value), dtype=w_value.dtype)
        x[0, 0] = 3.0
        return x


class AllTokensEqual(Mistake, exercise="check_order_blindness"):
    """All tokens are alike, so permuting them changes nothing, whatever the layer does with them:
    take different ones."""

    def check_order_blindness(layer):
        x = torch.ones(7, 6)
        order = torch.tensor([4, 0, 2, 1, 6, 3, 5])
        assert torch.allclose(layer(x[order]), layer(x)[order], atol=1e-4)

    def order_counter_example(w_query, w_key, w_value):
        x = torch.zeros(2, len(w_value), dtype=w_value.dtype)
        x[0, 0] = 3.0
        return x


class OnlyReversed(Mistake, exercise="check_order_blindness"):
    """Only the reversed order is tried, and reversing keeps every distance: try a permutation that
    tears neighbours apart."""

    def check_order_blindness(layer):
        x = torch.randn(7, 6, generator=torch.Generator().manual_seed(2))
        assert torch.allclose(layer(x.flip(0)), layer(x).flip(0), atol=1e-4)

    def order_counter_example(w_query, w_key, w_value):
        x = torch.zeros(2, len(w_value), dtype=w_value.dtype)
        x[0, 0] = 3.0
        return x


class OnlyRolled(Mistake, exercise="check_order_blindness"):
    """The tokens are only rolled around, and in a ring all keep their neighbours: try a permutation
    that tears neighbours apart."""

    def check_order_blindness(layer):
        x = torch.randn(7, 6, generator=torch.Generator().manual_seed(2))
        assert torch.allclose(layer(x.roll(3, 0)), layer(x).roll(3, 0), atol=1e-4)

    def order_counter_example(w_query, w_key, w_value):
        x = torch.zeros(2, len(w_value), dtype=w_value.dtype)
        x[0, 0] = 3.0
        return x


class FirstTokenStays(Mistake, exercise="check_order_blindness"):
    """The first token keeps its place in every permutation that is tried, so a layer that treats it
    differently gets past: move every token."""

    def check_order_blindness(layer):
        x = torch.randn(7, 6, generator=torch.Generator().manual_seed(2))
        order = torch.tensor([0, 4, 2, 1, 6, 3, 5])
        assert torch.allclose(layer(x[order]), layer(x)[order], atol=1e-4)

    def order_counter_example(w_query, w_key, w_value):
        x = torch.zeros(2, len(w_value), dtype=w_value.dtype)
        x[0, 0] = 3.0
        return x


class OutputsInAnotherOrder(Mistake, exercise="check_order_blindness"):
    """The two outputs that are compared stand in different orders: those of permuted tokens come in
    the new order, so the others have to be brought into the same."""

    def check_order_blindness(layer):
        x = torch.randn(7, 6, generator=torch.Generator().manual_seed(2))
        order = torch.tensor([4, 0, 5, 1, 6, 3, 2])
        assert torch.allclose(layer(x[order]), layer(x), atol=1e-4)

    def order_counter_example(w_query, w_key, w_value):
        x = torch.zeros(2, len(w_value), dtype=w_value.dtype)
        x[0, 0] = 3.0
        return x


class AssertsTheOpposite(Mistake, exercise="check_order_blindness"):
    """The assertion demands that the order is seen; it has to hold for layers that are blind to it."""

    def check_order_blindness(layer):
        x = torch.randn(7, 6, generator=torch.Generator().manual_seed(2))
        order = torch.tensor([4, 0, 5, 1, 6, 3, 2])
        assert not torch.allclose(layer(x[order]), layer(x)[order], atol=1e-4)

    def order_counter_example(w_query, w_key, w_value):
        x = torch.zeros(2, len(w_value), dtype=w_value.dtype)
        x[0, 0] = 3.0
        return x


class ExactComparison(Mistake, exercise="check_order_blindness"):
    """Floating-point numbers are compared exactly: a sum taken in another order differs in its last
    digit, so leave a tolerance."""

    def check_order_blindness(layer):
        x = torch.randn(60, 6, generator=torch.Generator().manual_seed(2))
        order = torch.randperm(60, generator=torch.Generator().manual_seed(3))
        assert torch.equal(layer(x[order]), layer(x)[order])

    def order_counter_example(w_query, w_key, w_value):
        x = torch.zeros(2, len(w_value), dtype=w_value.dtype)
        x[0, 0] = 3.0
        return x


class TwoEqualTokens(Mistake, exercise="check_order_blindness"):
    """The two tokens are equal, so there is no order to see: take two with different values."""

    def check_order_blindness(layer):
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(9, 6, generator=generator)
        order = torch.tensor([4, 0, 7, 2, 8, 1, 6, 3, 5])
        assert torch.allclose(layer(x[order]), layer(x)[order], atol=1e-4)

    def order_counter_example(w_query, w_key, w_value):
        return torch.ones(2, len(w_value), dtype=w_value.dtype)


class LastTokenStays(Mistake, exercise="check_order_blindness"):
    """The last token keeps its place in every permutation that is tried, so a layer that treats it
    differently gets past: move every token."""

    def check_order_blindness(layer):
        x = torch.randn(7, 6, generator=torch.Generator().manual_seed(2))
        order = torch.tensor([1, 0, 2, 3, 4, 5, 6])
        assert torch.allclose(layer(x[order]), layer(x)[order], atol=1e-4)

    def order_counter_example(w_query, w_key, w_value):
        x = torch.zeros(2, len(w_value), dtype=w_value.dtype)
        x[0, 0] = 3.0
        return x


class OnlySumsCompared(Mistake, exercise="check_order_blindness"):
    """Only the sum over all tokens is compared, and it stays the same when tokens get one another's
    outputs: compare token by token."""

    def check_order_blindness(layer):
        x = torch.randn(7, 6, generator=torch.Generator().manual_seed(2))
        order = torch.tensor([4, 0, 5, 1, 6, 3, 2])
        assert torch.allclose(layer(x[order]).sum(0), layer(x).sum(0), atol=1e-4)

    def order_counter_example(w_query, w_key, w_value):
        x = torch.zeros(2, len(w_value), dtype=w_value.dtype)
        x[0, 0] = 3.0
        return x


class ToleranceTooWide(Mistake, exercise="check_order_blindness"):
    """The tolerance is so wide that a real difference gets past: rounding moves an output by far less
    than 0.001."""

    def check_order_blindness(layer):
        x = torch.randn(7, 6, generator=torch.Generator().manual_seed(2))
        order = torch.tensor([4, 0, 5, 1, 6, 3, 2])
        assert torch.allclose(layer(x[order]), layer(x)[order], atol=0.25)

    def order_counter_example(w_query, w_key, w_value):
        x = torch.zeros(2, len(w_value), dtype=w_value.dtype)
        x[0, 0] = 3.0
        return x


class FeaturesPermuted(Mistake, exercise="check_order_blindness"):
    """The features of each token are permuted instead of the tokens: a token is a row of `x`."""

    def check_order_blindness(layer):
        x = torch.randn(7, 6, generator=torch.Generator().manual_seed(2))
        order = torch.tensor([4, 0, 5, 1, 3, 2])
        assert torch.allclose(layer(x[:, order]), layer(x)[:, order], atol=1e-4)

    def order_counter_example(w_query, w_key, w_value):
        x = torch.zeros(2, len(w_value), dtype=w_value.dtype)
        x[0, 0] = 3.0
        return x


# 5.2 ----------------------------------------------------------------------------------------------


class ExponentOfTheEntry(Mistake, exercise="sinusoidal_positions"):
    """The exponent grows from entry to entry, so a sine and its cosine belong to two different
    clocks: entries 2i and 2i + 1 share the exponent 2i / d_model."""

    def sinusoidal_positions(length, d_model, base=10_000.0):
        entry = torch.arange(d_model, dtype=torch.float64)
        angle = torch.arange(length)[:, None] / base ** (2 * entry / d_model)
        return torch.where(entry % 2 == 0, angle.sin(), angle.cos())

    def shift_matrix(shift, d_model, base=10_000.0):
        matrix = torch.zeros(d_model, d_model, dtype=torch.float64)
        for i in range(0, d_model, 2):
            angle = shift / base ** (i / d_model)
            c, s = math.cos(angle), math.sin(angle)
            matrix[i : i + 2, i : i + 2] = torch.tensor([[c, s], [-s, c]]).double()
        return matrix


class FactorTwoForgotten(Mistake, exercise="sinusoidal_positions"):
    """The exponent is half as large as it should be: clock i has the exponent 2i / d_model, because i
    counts pairs and d_model counts features."""

    def sinusoidal_positions(length, d_model, base=10_000.0):
        exponent = torch.arange(d_model // 2, dtype=torch.float64) / d_model
        angle = torch.arange(length)[:, None] / base**exponent
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)

    def shift_matrix(shift, d_model, base=10_000.0):
        matrix = torch.zeros(d_model, d_model, dtype=torch.float64)
        for i in range(0, d_model, 2):
            angle = shift / base ** (i / d_model)
            c, s = math.cos(angle), math.sin(angle)
            matrix[i : i + 2, i : i + 2] = torch.tensor([[c, s], [-s, c]]).double()
        return matrix


class CountedFromOne(Mistake, exercise="sinusoidal_positions"):
    """The first row is that of position 1; positions are counted from 0, where all sines are 0 and
    all cosines 1."""

    def sinusoidal_positions(length, d_model, base=10_000.0):
        exponent = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
        angle = torch.arange(1, length + 1)[:, None] / base**exponent
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)

    def shift_matrix(shift, d_model, base=10_000.0):
        matrix = torch.zeros(d_model, d_model, dtype=torch.float64)
        for i in range(0, d_model, 2):
            angle = shift / base ** (i / d_model)
            c, s = math.cos(angle), math.sin(angle)
            matrix[i : i + 2, i : i + 2] = torch.tensor([[c, s], [-s, c]]).double()
        return matrix


class CosineFirst(Mistake, exercise="sinusoidal_positions"):
    """Even entries hold the cosine and odd ones the sine; it is the other way round."""

    def sinusoidal_positions(length, d_model, base=10_000.0):
        exponent = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
        angle = torch.arange(length)[:, None] / base**exponent
        return torch.stack((angle.cos(), angle.sin()), dim=-1).flatten(-2)

    def shift_matrix(shift, d_model, base=10_000.0):
        matrix = torch.zeros(d_model, d_model, dtype=torch.float64)
        for i in range(0, d_model, 2):
            angle = shift / base ** (i / d_model)
            c, s = math.cos(angle), math.sin(angle)
            matrix[i : i + 2, i : i + 2] = torch.tensor([[c, s], [-s, c]]).double()
        return matrix


class SinesInOneBlock(Mistake, exercise="sinusoidal_positions"):
    """All sines come first and all cosines after them; here the sine and the cosine of one clock are
    neighbours."""

    def sinusoidal_positions(length, d_model, base=10_000.0):
        exponent = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
        angle = torch.arange(length)[:, None] / base**exponent
        return torch.cat((angle.sin(), angle.cos()), dim=-1)

    def shift_matrix(shift, d_model, base=10_000.0):
        matrix = torch.zeros(d_model, d_model, dtype=torch.float64)
        for i in range(0, d_model, 2):
            angle = shift / base ** (i / d_model)
            c, s = math.cos(angle), math.sin(angle)
            matrix[i : i + 2, i : i + 2] = torch.tensor([[c, s], [-s, c]]).double()
        return matrix


class BaseIgnored(Mistake, exercise="sinusoidal_positions"):
    """The base is fixed at 10,000; it is an argument."""

    def sinusoidal_positions(length, d_model, base=10_000.0):
        exponent = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
        angle = torch.arange(length)[:, None] / 10_000**exponent
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)

    def shift_matrix(shift, d_model, base=10_000.0):
        matrix = torch.zeros(d_model, d_model, dtype=torch.float64)
        for i in range(0, d_model, 2):
            angle = shift / base ** (i / d_model)
            c, s = math.cos(angle), math.sin(angle)
            matrix[i : i + 2, i : i + 2] = torch.tensor([[c, s], [-s, c]]).double()
        return matrix


class AnglesInSinglePrecision(Mistake, exercise="sinusoidal_positions"):
    """The angles are rounded to float32, whose seven digits are used up by the whole turns when
    positions are in the thousands: work the angles out in float64 and round the result."""

    def sinusoidal_positions(length, d_model, base=10_000.0):
        speed = base ** (-torch.arange(0, d_model, 2) / d_model)
        angle = torch.arange(length, dtype=torch.float32)[:, None] * speed
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)

    def shift_matrix(shift, d_model, base=10_000.0):
        matrix = torch.zeros(d_model, d_model, dtype=torch.float64)
        for i in range(0, d_model, 2):
            angle = shift / base ** (i / d_model)
            c, s = math.cos(angle), math.sin(angle)
            matrix[i : i + 2, i : i + 2] = torch.tensor([[c, s], [-s, c]]).double()
        return matrix


class ShiftedBackwards(Mistake, exercise="sinusoidal_positions"):
    """The matrix moves rows back instead of on: it is transposed, which turns every clock the other
    way."""

    def sinusoidal_positions(length, d_model, base=10_000.0):
        exponent = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
        angle = torch.arange(length)[:, None] / base**exponent
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)

    def shift_matrix(shift, d_model, base=10_000.0):
        matrix = torch.zeros(d_model, d_model, dtype=torch.float64)
        for i in range(0, d_model, 2):
            angle = shift / base ** (i / d_model)
            c, s = math.cos(angle), math.sin(angle)
            matrix[i : i + 2, i : i + 2] = torch.tensor([[c, -s], [s, c]]).double()
        return matrix


class OneAngleForAll(Mistake, exercise="sinusoidal_positions"):
    """Every clock is turned by the angle of the fastest; each has its own angle, shift / base^(2i /
    d_model)."""

    def sinusoidal_positions(length, d_model, base=10_000.0):
        exponent = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
        angle = torch.arange(length)[:, None] / base**exponent
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)

    def shift_matrix(shift, d_model, base=10_000.0):
        matrix = torch.zeros(d_model, d_model, dtype=torch.float64)
        for i in range(0, d_model, 2):
            angle = shift
            c, s = math.cos(angle), math.sin(angle)
            matrix[i : i + 2, i : i + 2] = torch.tensor([[c, s], [-s, c]]).double()
        return matrix


class MultipliedInsteadOfDivided(Mistake, exercise="sinusoidal_positions"):
    """The position is multiplied by base^(2i / d_model), so the clocks get faster instead of slower:
    divide by it."""

    def sinusoidal_positions(length, d_model, base=10_000.0):
        exponent = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
        angle = torch.arange(length)[:, None] * base**exponent
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)

    def shift_matrix(shift, d_model, base=10_000.0):
        matrix = torch.zeros(d_model, d_model, dtype=torch.float64)
        for i in range(0, d_model, 2):
            angle = shift / base ** (i / d_model)
            c, s = math.cos(angle), math.sin(angle)
            matrix[i : i + 2, i : i + 2] = torch.tensor([[c, s], [-s, c]]).double()
        return matrix


class DoubledTwice(Mistake, exercise="sinusoidal_positions"):
    """The exponent is twice as large as it should be: an index that runs over the even entries is 2i
    already."""

    def sinusoidal_positions(length, d_model, base=10_000.0):
        exponent = 2 * torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
        angle = torch.arange(length)[:, None] / base**exponent
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)

    def shift_matrix(shift, d_model, base=10_000.0):
        matrix = torch.zeros(d_model, d_model, dtype=torch.float64)
        for i in range(0, d_model, 2):
            angle = shift / base ** (i / d_model)
            c, s = math.cos(angle), math.sin(angle)
            matrix[i : i + 2, i : i + 2] = torch.tensor([[c, s], [-s, c]]).double()
        return matrix


class LastClockAtTheBase(Mistake, exercise="sinusoidal_positions"):
    """The exponents run from 0 to 1 and include the 1; they grow in steps of 2 / d_model and stop one
    step before it."""

    def sinusoidal_positions(length, d_model, base=10_000.0):
        exponent = torch.linspace(0, 1, d_model // 2, dtype=torch.float64)
        angle = torch.arange(length)[:, None] / base**exponent
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)

    def shift_matrix(shift, d_model, base=10_000.0):
        matrix = torch.zeros(d_model, d_model, dtype=torch.float64)
        for i in range(0, d_model, 2):
            angle = shift / base ** (i / d_model)
            c, s = math.cos(angle), math.sin(angle)
            matrix[i : i + 2, i : i + 2] = torch.tensor([[c, s], [-s, c]]).double()
        return matrix


# 5.3 ----------------------------------------------------------------------------------------------


class OffsetIgnored(Mistake, exercise="learned_positions"):
    """The first rows are added whatever the offset: tokens that follow a cache stand behind it."""

    def learned_positions(x, table, offset=0):
        end = offset + x.shape[1]
        if end > len(table):
            raise ValueError(
                f"offset + length must not exceed {len(table)} rows, got offset={offset}"
            )
        return x + table[: x.shape[1]]


class WholeTableAdded(Mistake, exercise="learned_positions"):
    """The whole table is added, which fits only texts as long as the table: take the rows that the
    tokens need."""

    def learned_positions(x, table, offset=0):
        return x + table


class SliceRunsOut(Mistake, exercise="learned_positions"):
    """The slice ends with the table, before the tokens do: it is too short, and if one row is left it
    is silently added to every token. Compare with the end of the tokens first, and raise a
    ValueError."""

    def learned_positions(x, table, offset=0):
        return x + table[offset : offset + x.shape[1]]


class LastRowRepeated(Mistake, exercise="learned_positions"):
    """Tokens beyond the table get its last row, as if they all stood in one place; raise a ValueError
    instead."""

    def learned_positions(x, table, offset=0):
        places = torch.arange(offset, offset + x.shape[1]).clamp(max=len(table) - 1)
        return x + table[places]


class StartsOverAtTheEnd(Mistake, exercise="learned_positions"):
    """Tokens beyond the table get its first rows again, as if the text began anew; raise a ValueError
    instead."""

    def learned_positions(x, table, offset=0):
        places = torch.arange(offset, offset + x.shape[1]) % len(table)
        return x + table[places]


class LastRowForbidden(Mistake, exercise="learned_positions"):
    """A text that ends exactly with the last row is refused: it fits."""

    def learned_positions(x, table, offset=0):
        end = offset + x.shape[1]
        if end >= len(table):
            raise ValueError(
                f"offset + length must not exceed {len(table)} rows, got offset={offset}"
            )
        return x + table[offset:end]


class ErrorOfTheIndex(Mistake, exercise="learned_positions"):
    """The rows are fetched by index and torch complains in its own words; say in a ValueError how
    many rows there are and how many were needed."""

    def learned_positions(x, table, offset=0):
        return x + table[torch.arange(offset, offset + x.shape[1])]


class AddedInPlace(Mistake, exercise="learned_positions"):
    """The rows are added into the tokens that were handed over, which changes them for whoever uses
    them next: make a new tensor."""

    def learned_positions(x, table, offset=0):
        end = offset + x.shape[1]
        if end > len(table):
            raise ValueError(
                f"offset + length must not exceed {len(table)} rows, got offset={offset}"
            )
        x += table[offset:end]
        return x


class RowsForTheBatch(Mistake, exercise="learned_positions"):
    """The rows run along the batch, so all tokens of a text get the same one: the tokens are the
    second axis of x."""

    def learned_positions(x, table, offset=0):
        end = offset + x.shape[1]
        if end > len(table):
            raise ValueError(
                f"offset + length must not exceed {len(table)} rows, got offset={offset}"
            )
        return x + table[offset : offset + x.shape[0], None]


class OneRowForAll(Mistake, exercise="learned_positions"):
    """All tokens get the row of the first one: the next token stands one place further on."""

    def learned_positions(x, table, offset=0):
        end = offset + x.shape[1]
        if end > len(table):
            raise ValueError(
                f"offset + length must not exceed {len(table)} rows, got offset={offset}"
            )
        return x + table[offset]


class CountedFromOne(Mistake, exercise="learned_positions"):
    """The first token gets the row after its own: positions are counted from 0, and the first token
    stands at `offset`."""

    def learned_positions(x, table, offset=0):
        end = offset + x.shape[1]
        if end > len(table):
            raise ValueError(
                f"offset + length must not exceed {len(table)} rows, got offset={offset}"
            )
        return x + table[offset + 1 : end + 1]


# 5.4 ----------------------------------------------------------------------------------------------


class PositionsIgnored(Mistake, exercise="apply_rotary"):
    """The positions are taken to be 0, 1, 2, … whatever was passed: use the positions that you are
    given."""

    def apply_rotary(x, positions, base=10_000.0):
        exponent = torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]
        angle = torch.arange(x.shape[-2])[:, None] / base**exponent
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = torch.stack(
            (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()), dim=-1
        )
        return turned.flatten(-2).to(x.dtype)

    def rotary_attention(x, w_query, w_key, w_value, num_heads, positions):
        query, key, value = (
            (x @ w).unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for w in (w_query, w_key, w_value)
        )
        query, key = apply_rotary(query, positions), apply_rotary(key, positions)
        output = F.scaled_dot_product_attention(query, key, value)
        return output.transpose(1, 2).flatten(-2)


class FirstSequenceForAll(Mistake, exercise="apply_rotary"):
    """The positions of the first sequence are used for the whole batch; each sequence has its own."""

    def apply_rotary(x, positions, base=10_000.0):
        exponent = torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]
        angle = positions[0][:, None] / base**exponent
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = torch.stack(
            (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()), dim=-1
        )
        return turned.flatten(-2).to(x.dtype)

    def rotary_attention(x, w_query, w_key, w_value, num_heads, positions):
        query, key, value = (
            (x @ w).unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for w in (w_query, w_key, w_value)
        )
        query, key = apply_rotary(query, positions), apply_rotary(key, positions)
        output = F.scaled_dot_product_attention(query, key, value)
        return output.transpose(1, 2).flatten(-2)


class BaseIgnored(Mistake, exercise="apply_rotary"):
    """The base is fixed at 10,000; it is an argument."""

    def apply_rotary(x, positions, base=10_000.0):
        exponent = torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]
        angle = (positions[..., None] / 10_000**exponent)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = torch.stack(
            (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()), dim=-1
        )
        return turned.flatten(-2).to(x.dtype)

    def rotary_attention(x, w_query, w_key, w_value, num_heads, positions):
        query, key, value = (
            (x @ w).unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for w in (w_query, w_key, w_value)
        )
        query, key = apply_rotary(query, positions), apply_rotary(key, positions)
        output = F.scaled_dot_product_attention(query, key, value)
        return output.transpose(1, 2).flatten(-2)


class FactorTwoForgotten(Mistake, exercise="apply_rotary"):
    """The exponent is half as large as it should be: pair i has the exponent 2i / d_head, because i
    counts pairs and d_head counts features."""

    def apply_rotary(x, positions, base=10_000.0):
        exponent = torch.arange(x.shape[-1] // 2, dtype=torch.float64) / x.shape[-1]
        angle = (positions[..., None] / base**exponent)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = torch.stack(
            (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()), dim=-1
        )
        return turned.flatten(-2).to(x.dtype)

    def rotary_attention(x, w_query, w_key, w_value, num_heads, positions):
        query, key, value = (
            (x @ w).unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for w in (w_query, w_key, w_value)
        )
        query, key = apply_rotary(query, positions), apply_rotary(key, positions)
        output = F.scaled_dot_product_attention(query, key, value)
        return output.transpose(1, 2).flatten(-2)


class TurnedBackwards(Mistake, exercise="apply_rotary"):
    """The pairs are turned the other way: from (a, b) to (a cos − b sin, a sin + b cos) is the way
    that is asked for."""

    def apply_rotary(x, positions, base=10_000.0):
        exponent = torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]
        angle = (positions[..., None] / base**exponent)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = torch.stack(
            (even * angle.cos() - odd * -angle.sin(), even * -angle.sin() + odd * angle.cos()),
            dim=-1,
        )
        return turned.flatten(-2).to(x.dtype)

    def rotary_attention(x, w_query, w_key, w_value, num_heads, positions):
        query, key, value = (
            (x @ w).unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for w in (w_query, w_key, w_value)
        )
        query, key = apply_rotary(query, positions), apply_rotary(key, positions)
        output = F.scaled_dot_product_attention(query, key, value)
        return output.transpose(1, 2).flatten(-2)


class PairsOfHalves(Mistake, exercise="apply_rotary"):
    """The features i and i + d_head / 2 are paired; in this layout neighbours 2i and 2i + 1 are."""

    def apply_rotary(x, positions, base=10_000.0):
        exponent = torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]
        angle = (positions[..., None] / base**exponent)[:, None]
        even, odd = x.chunk(2, dim=-1)
        turned = torch.cat(
            (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()), dim=-1
        )
        return turned.to(x.dtype)

    def rotary_attention(x, w_query, w_key, w_value, num_heads, positions):
        query, key, value = (
            (x @ w).unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for w in (w_query, w_key, w_value)
        )
        query, key = apply_rotary(query, positions), apply_rotary(key, positions)
        output = F.scaled_dot_product_attention(query, key, value)
        return output.transpose(1, 2).flatten(-2)


class HeadsTakenForPlaces(Mistake, exercise="apply_rotary"):
    """The angles run along the axis of the heads instead of that of the tokens: in (batch, heads,
    length, d_head) the tokens are the last axis but one."""

    def apply_rotary(x, positions, base=10_000.0):
        exponent = torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]
        angle = (torch.arange(x.shape[1])[:, None] / base**exponent)[None, :, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = torch.stack(
            (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()), dim=-1
        )
        return turned.flatten(-2).to(x.dtype)

    def rotary_attention(x, w_query, w_key, w_value, num_heads, positions):
        query, key, value = (
            (x @ w).unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for w in (w_query, w_key, w_value)
        )
        query, key = apply_rotary(query, positions), apply_rotary(key, positions)
        output = F.scaled_dot_product_attention(query, key, value)
        return output.transpose(1, 2).flatten(-2)


class AnglesInHalfPrecision(Mistake, exercise="apply_rotary"):
    """The angles are rounded to the half precision of x, which keeps three digits: beyond a few
    hundred tokens neighbours are told apart no more. Work the angles out in float32 or better."""

    def apply_rotary(x, positions, base=10_000.0):
        exponent = torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]
        speed = (1 / base**exponent).to(x.dtype)
        angle = (positions[..., None].to(x.dtype) * speed)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = torch.stack(
            (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()), dim=-1
        )
        return turned.flatten(-2).to(x.dtype)

    def rotary_attention(x, w_query, w_key, w_value, num_heads, positions):
        query, key, value = (
            (x @ w).unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for w in (w_query, w_key, w_value)
        )
        query, key = apply_rotary(query, positions), apply_rotary(key, positions)
        output = F.scaled_dot_product_attention(query, key, value)
        return output.transpose(1, 2).flatten(-2)


class ValuesTurnedToo(Mistake, exercise="apply_rotary"):
    """The values are turned too, so what is handed over depends on where it stands: positions are for
    the scores, turn queries and keys only."""

    def apply_rotary(x, positions, base=10_000.0):
        exponent = torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]
        angle = (positions[..., None] / base**exponent)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = torch.stack(
            (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()), dim=-1
        )
        return turned.flatten(-2).to(x.dtype)

    def rotary_attention(x, w_query, w_key, w_value, num_heads, positions):
        query, key, value = (
            (x @ w).unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for w in (w_query, w_key, w_value)
        )
        query, key, value = (apply_rotary(heads, positions) for heads in (query, key, value))
        output = F.scaled_dot_product_attention(query, key, value)
        return output.transpose(1, 2).flatten(-2)


class KeysNotTurned(Mistake, exercise="apply_rotary"):
    """Only the queries are turned: a score then depends on the place of the query, not on its
    distance from the key. Turn both."""

    def apply_rotary(x, positions, base=10_000.0):
        exponent = torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]
        angle = (positions[..., None] / base**exponent)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = torch.stack(
            (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()), dim=-1
        )
        return turned.flatten(-2).to(x.dtype)

    def rotary_attention(x, w_query, w_key, w_value, num_heads, positions):
        query, key, value = (
            (x @ w).unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for w in (w_query, w_key, w_value)
        )
        query = apply_rotary(query, positions)
        output = F.scaled_dot_product_attention(query, key, value)
        return output.transpose(1, 2).flatten(-2)


class TurnedBeforeTheSplit(Mistake, exercise="apply_rotary"):
    """Queries and keys are turned before they are split into heads, so the first heads get all the
    fast clocks and the last ones the slow: split first, each head has all clocks."""

    def apply_rotary(x, positions, base=10_000.0):
        exponent = torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]
        angle = (positions[..., None] / base**exponent)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = torch.stack(
            (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()), dim=-1
        )
        return turned.flatten(-2).to(x.dtype)

    def rotary_attention(x, w_query, w_key, w_value, num_heads, positions):
        query, key = (apply_rotary((x @ w)[:, None], positions)[:, 0] for w in (w_query, w_key))
        query, key, value = (
            heads.unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for heads in (query, key, x @ w_value)
        )
        output = F.scaled_dot_product_attention(query, key, value)
        return output.transpose(1, 2).flatten(-2)


class AnglesOfTheOtherLayout(Mistake, exercise="apply_rotary"):
    """Neighbours are paired, but the angles are laid out for halves, so the two features of a pair get
    different angles: each angle stands twice, side by side."""

    def apply_rotary(x, positions, base=10_000.0):
        exponent = torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]
        angle = (positions[..., None] / base**exponent)[:, None]
        angle = angle.repeat(1, 1, 1, 2)
        crossed = torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)
        return (x * angle.cos() + crossed * angle.sin()).to(x.dtype)

    def rotary_attention(x, w_query, w_key, w_value, num_heads, positions):
        query, key, value = (
            (x @ w).unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for w in (w_query, w_key, w_value)
        )
        query, key = apply_rotary(query, positions), apply_rotary(key, positions)
        output = F.scaled_dot_product_attention(query, key, value)
        return output.transpose(1, 2).flatten(-2)


class SecondFromTheTurnedFirst(Mistake, exercise="apply_rotary"):
    """The second feature of a pair is worked out from the first one after it was turned: both come
    from the pair as it was."""

    def apply_rotary(x, positions, base=10_000.0):
        exponent = torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]
        angle = (positions[..., None] / base**exponent)[:, None]
        x = x.clone()
        x[..., 0::2] = x[..., 0::2] * angle.cos() - x[..., 1::2] * angle.sin()
        x[..., 1::2] = x[..., 0::2] * angle.sin() + x[..., 1::2] * angle.cos()
        return x

    def rotary_attention(x, w_query, w_key, w_value, num_heads, positions):
        query, key, value = (
            (x @ w).unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for w in (w_query, w_key, w_value)
        )
        query, key = apply_rotary(query, positions), apply_rotary(key, positions)
        output = F.scaled_dot_product_attention(query, key, value)
        return output.transpose(1, 2).flatten(-2)


class PairsNotBroughtBack(Mistake, exercise="apply_rotary"):
    """The turned features are put in two halves, all first ones before all second ones: bring them
    back to where they stood, side by side."""

    def apply_rotary(x, positions, base=10_000.0):
        exponent = torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]
        angle = (positions[..., None] / base**exponent)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.cat(
            (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()), dim=-1
        ).to(x.dtype)

    def rotary_attention(x, w_query, w_key, w_value, num_heads, positions):
        query, key, value = (
            (x @ w).unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for w in (w_query, w_key, w_value)
        )
        query, key = apply_rotary(query, positions), apply_rotary(key, positions)
        output = F.scaled_dot_product_attention(query, key, value)
        return output.transpose(1, 2).flatten(-2)


class OneAngleForAll(Mistake, exercise="apply_rotary"):
    """All pairs turn by the angle of the fastest one, position radians; pair i turns by position /
    base^(2i / d_head)."""

    def apply_rotary(x, positions, base=10_000.0):
        exponent = torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]
        angle = positions[:, None, :, None].double() + 0 * exponent
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = torch.stack(
            (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()), dim=-1
        )
        return turned.flatten(-2).to(x.dtype)

    def rotary_attention(x, w_query, w_key, w_value, num_heads, positions):
        query, key, value = (
            (x @ w).unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for w in (w_query, w_key, w_value)
        )
        query, key = apply_rotary(query, positions), apply_rotary(key, positions)
        output = F.scaled_dot_product_attention(query, key, value)
        return output.transpose(1, 2).flatten(-2)


class ExponentTwiceAsLarge(Mistake, exercise="apply_rotary"):
    """The exponent is twice as large as it should be: an index that runs over the even features is 2i
    already, and it is divided by the whole d_head."""

    def apply_rotary(x, positions, base=10_000.0):
        exponent = 2 * torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]
        angle = (positions[..., None] / base**exponent)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = torch.stack(
            (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()), dim=-1
        )
        return turned.flatten(-2).to(x.dtype)

    def rotary_attention(x, w_query, w_key, w_value, num_heads, positions):
        query, key, value = (
            (x @ w).unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for w in (w_query, w_key, w_value)
        )
        query, key = apply_rotary(query, positions), apply_rotary(key, positions)
        output = F.scaled_dot_product_attention(query, key, value)
        return output.transpose(1, 2).flatten(-2)


class CountedFromTheFirstToken(Mistake, exercise="apply_rotary"):
    """Positions are counted from the first token of each sequence. The scores within a sequence do not
    notice, but keys in a cache were turned by the positions as they were given: use those."""

    def apply_rotary(x, positions, base=10_000.0):
        exponent = torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]
        angle = ((positions - positions[:, :1])[..., None] / base**exponent)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = torch.stack(
            (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()), dim=-1
        )
        return turned.flatten(-2).to(x.dtype)

    def rotary_attention(x, w_query, w_key, w_value, num_heads, positions):
        query, key, value = (
            (x @ w).unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for w in (w_query, w_key, w_value)
        )
        query, key = apply_rotary(query, positions), apply_rotary(key, positions)
        output = F.scaled_dot_product_attention(query, key, value)
        return output.transpose(1, 2).flatten(-2)


class NothingTurned(Mistake, exercise="apply_rotary"):
    """The layer attends without turning anything: queries and keys are to be turned by their
    positions."""

    def apply_rotary(x, positions, base=10_000.0):
        exponent = torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]
        angle = (positions[..., None] / base**exponent)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = torch.stack(
            (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()), dim=-1
        )
        return turned.flatten(-2).to(x.dtype)

    def rotary_attention(x, w_query, w_key, w_value, num_heads, positions):
        query, key, value = (
            (x @ w).unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for w in (w_query, w_key, w_value)
        )
        output = F.scaled_dot_product_attention(query, key, value)
        return output.transpose(1, 2).flatten(-2)


# 5.5 ----------------------------------------------------------------------------------------------


class HeadsForgotten(Mistake, exercise="convert_rotary"):
    """The rows are sorted as if all heads were one, which mixes heads: sort the rows of each head by
    themselves."""

    def convert_rotary(weight, num_heads, to):
        shape = (2, -1) if to == "interleaved" else (-1, 2)
        return weight.unflatten(0, shape).transpose(0, 1).flatten(0, 1)


class DirectionsExchanged(Mistake, exercise="convert_rotary"):
    """The two directions are exchanged: neighbours become halves when `to` is “half_split”. With four
    features per head you would not notice."""

    def convert_rotary(weight, num_heads, to):
        shape = (2, -1) if to == "half_split" else (-1, 2)
        heads = weight.unflatten(0, (num_heads, *shape))
        return heads.transpose(1, 2).flatten(0, 2)


class OneDirectionOnly(Mistake, exercise="convert_rotary"):
    """The rows go from neighbours to halves whatever `to` says; the way back is another permutation."""

    def convert_rotary(weight, num_heads, to):
        heads = weight.unflatten(0, (num_heads, -1, 2))
        return heads.transpose(1, 2).flatten(0, 2)


class ColumnsMoved(Mistake, exercise="convert_rotary"):
    """The columns are moved, which are the features that the projection reads; the pairs are among
    what it writes, the rows."""

    def convert_rotary(weight, num_heads, to):
        shape = (2, -1) if to == "interleaved" else (-1, 2)
        heads = weight.unflatten(-1, (num_heads, *shape))
        return heads.transpose(-2, -1).flatten(-3)


class SecondFeaturesFirst(Mistake, exercise="convert_rotary"):
    """The odd features come before the even ones: the first half holds the first feature of each
    pair."""

    def convert_rotary(weight, num_heads, to):
        if to == "interleaved":
            first, second = weight.unflatten(0, (num_heads, 2, -1)).unbind(1)
            return torch.stack((second, first), dim=2).flatten(0, 2)
        pairs = weight.unflatten(0, (num_heads, -1, 2))
        return torch.cat((pairs[:, :, 1], pairs[:, :, 0]), dim=1).flatten(0, 1)


class HeadsInTurns(Mistake, exercise="convert_rotary"):
    """The rows are read as if the heads took turns; head 0 owns the first d_head rows, head 1 the
    next."""

    def convert_rotary(weight, num_heads, to):
        shape = (2, -1) if to == "interleaved" else (-1, 2)
        heads = weight.unflatten(0, (*shape, num_heads))
        return heads.transpose(0, 1).flatten(0, 2)


class NothingMoved(Mistake, exercise="convert_rotary"):
    """The rows come back in the order that they had: axes that are made and undone move nothing, as
    long as they are not exchanged in between."""

    def convert_rotary(weight, num_heads, to):
        return weight.unflatten(0, (num_heads, 2, -1)).flatten(0, 2)


# 5.6 ----------------------------------------------------------------------------------------------


class DistanceRewarded(Mistake, exercise="alibi_bias"):
    """The sign is wrong: the farther a key, the more is added to its score. What is far away has to
    lose."""

    def alibi_slopes(num_heads):
        below = 2 ** (num_heads.bit_length() - 1)
        slopes = [2 ** (-8 * h / below) for h in range(1, below + 1)]
        slopes += [2 ** (-4 * h / below) for h in range(1, 2 * below, 2)]
        return torch.tensor(slopes[:num_heads], dtype=torch.float64)

    def alibi_bias(num_heads, q_len, k_len):
        distance = torch.arange(k_len - q_len, k_len)[:, None] - torch.arange(k_len)
        bias = alibi_slopes(num_heads)[:, None, None] * distance
        return bias.masked_fill(distance < 0, -math.inf)


class LaterKeysReachable(Mistake, exercise="alibi_bias"):
    """Keys behind the query are lowered by their distance like those before it, so the future can be
    read: they get minus infinity."""

    def alibi_slopes(num_heads):
        below = 2 ** (num_heads.bit_length() - 1)
        slopes = [2 ** (-8 * h / below) for h in range(1, below + 1)]
        slopes += [2 ** (-4 * h / below) for h in range(1, 2 * below, 2)]
        return torch.tensor(slopes[:num_heads], dtype=torch.float64)

    def alibi_bias(num_heads, q_len, k_len):
        distance = torch.arange(k_len - q_len, k_len)[:, None] - torch.arange(k_len)
        bias = -alibi_slopes(num_heads)[:, None, None] * distance.abs()
        return bias


class LaterKeysPreferred(Mistake, exercise="alibi_bias"):
    """Keys behind the query have a negative distance, so their score is raised: they get minus
    infinity."""

    def alibi_slopes(num_heads):
        below = 2 ** (num_heads.bit_length() - 1)
        slopes = [2 ** (-8 * h / below) for h in range(1, below + 1)]
        slopes += [2 ** (-4 * h / below) for h in range(1, 2 * below, 2)]
        return torch.tensor(slopes[:num_heads], dtype=torch.float64)

    def alibi_bias(num_heads, q_len, k_len):
        distance = torch.arange(k_len - q_len, k_len)[:, None] - torch.arange(k_len)
        bias = -alibi_slopes(num_heads)[:, None, None] * distance
        return bias


class QueriesAreTheFirstKeys(Mistake, exercise="alibi_bias"):
    """The queries are placed at the first keys; when keys come from a cache, the queries are the last
    ones."""

    def alibi_slopes(num_heads):
        below = 2 ** (num_heads.bit_length() - 1)
        slopes = [2 ** (-8 * h / below) for h in range(1, below + 1)]
        slopes += [2 ** (-4 * h / below) for h in range(1, 2 * below, 2)]
        return torch.tensor(slopes[:num_heads], dtype=torch.float64)

    def alibi_bias(num_heads, q_len, k_len):
        distance = torch.arange(q_len)[:, None] - torch.arange(k_len)
        bias = -alibi_slopes(num_heads)[:, None, None] * distance
        return bias.masked_fill(distance < 0, -math.inf)


class KeysInRows(Mistake, exercise="alibi_bias"):
    """Rows and columns are exchanged: a row belongs to a query."""

    def alibi_slopes(num_heads):
        below = 2 ** (num_heads.bit_length() - 1)
        slopes = [2 ** (-8 * h / below) for h in range(1, below + 1)]
        slopes += [2 ** (-4 * h / below) for h in range(1, 2 * below, 2)]
        return torch.tensor(slopes[:num_heads], dtype=torch.float64)

    def alibi_bias(num_heads, q_len, k_len):
        distance = torch.arange(k_len - q_len, k_len)[:, None] - torch.arange(k_len)
        bias = -alibi_slopes(num_heads)[:, None, None] * distance
        bias = bias.masked_fill(distance < 0, -math.inf)
        return bias.transpose(-2, -1)


class FirstSlopeIsOne(Mistake, exercise="alibi_bias"):
    """The series starts with slope 1: heads are counted from 1 in the exponent, so the first slope is
    the ratio itself."""

    def alibi_slopes(num_heads):
        below = 2 ** (num_heads.bit_length() - 1)
        slopes = [2 ** (-8 * h / below) for h in range(below)]
        slopes += [2 ** (-4 * h / below) for h in range(0, 2 * below, 2)]
        return torch.tensor(slopes[:num_heads], dtype=torch.float64)

    def alibi_bias(num_heads, q_len, k_len):
        distance = torch.arange(k_len - q_len, k_len)[:, None] - torch.arange(k_len)
        bias = -alibi_slopes(num_heads)[:, None, None] * distance
        return bias.masked_fill(distance < 0, -math.inf)


class RatioIsAlwaysHalf(Mistake, exercise="alibi_bias"):
    """The slopes are 1/2, 1/4, 1/8, … for any number of heads, which is right for eight: with n heads
    the ratio is 2^(−8/n), so that the last slope is 2^(−8)."""

    def alibi_slopes(num_heads):
        return 2.0 ** -torch.arange(1, num_heads + 1, dtype=torch.float64)

    def alibi_bias(num_heads, q_len, k_len):
        distance = torch.arange(k_len - q_len, k_len)[:, None] - torch.arange(k_len)
        bias = -alibi_slopes(num_heads)[:, None, None] * distance
        return bias.masked_fill(distance < 0, -math.inf)


class EvenlySpacedSlopes(Mistake, exercise="alibi_bias"):
    """The slopes are evenly spaced; they are a geometric series, each the same part of the one
    before."""

    def alibi_slopes(num_heads):
        return torch.arange(num_heads, 0, -1, dtype=torch.float64) / num_heads

    def alibi_bias(num_heads, q_len, k_len):
        distance = torch.arange(k_len - q_len, k_len)[:, None] - torch.arange(k_len)
        bias = -alibi_slopes(num_heads)[:, None, None] * distance
        return bias.masked_fill(distance < 0, -math.inf)


class OneFormulaForAnyNumber(Mistake, exercise="alibi_bias"):
    """The formula for powers of two is used for any number of heads; the rule for others takes the
    slopes of the power of two below and fills up with every other slope of the power of two above."""

    def alibi_slopes(num_heads):
        return 2.0 ** (-8 * torch.arange(1, num_heads + 1, dtype=torch.float64) / num_heads)

    def alibi_bias(num_heads, q_len, k_len):
        distance = torch.arange(k_len - q_len, k_len)[:, None] - torch.arange(k_len)
        bias = -alibi_slopes(num_heads)[:, None, None] * distance
        return bias.masked_fill(distance < 0, -math.inf)


class CutFromThePowerAbove(Mistake, exercise="alibi_bias"):
    """For other numbers of heads the slopes of the power of two above are cut off; take those of the
    power of two below first, and fill up with every other one of the power above."""

    def alibi_slopes(num_heads):
        above = 2 ** math.ceil(math.log2(num_heads))
        return 2.0 ** (-8 * torch.arange(1, num_heads + 1, dtype=torch.float64) / above)

    def alibi_bias(num_heads, q_len, k_len):
        distance = torch.arange(k_len - q_len, k_len)[:, None] - torch.arange(k_len)
        bias = -alibi_slopes(num_heads)[:, None, None] * distance
        return bias.masked_fill(distance < 0, -math.inf)


class FilledWithoutSkipping(Mistake, exercise="alibi_bias"):
    """The slopes that are missing are taken from the finer series one after the other; every other one
    is there already, so take the first, third, fifth."""

    def alibi_slopes(num_heads):
        power = 2 ** int(math.log2(num_heads))
        slopes = [2 ** (-8 * i / power) for i in range(1, power + 1)]
        slopes += [2 ** (-4 * i / power) for i in range(1, 2 * power)]
        return torch.tensor(slopes[:num_heads], dtype=torch.float64)

    def alibi_bias(num_heads, q_len, k_len):
        query = torch.arange(k_len - q_len, k_len)[:, None]
        key = torch.arange(k_len)
        bias = -alibi_slopes(num_heads)[:, None, None] * (query - key)
        return bias.masked_fill(key > query, -math.inf)


class LargeNumberForInfinity(Mistake, exercise="alibi_bias"):
    """Later keys get a large negative number; a row in which everything is hidden then attends to
    hidden keys. Here minus infinity is asked for."""

    def alibi_slopes(num_heads):
        power = 2 ** int(math.log2(num_heads))
        slopes = [2 ** (-8 * i / power) for i in range(1, power + 1)]
        slopes += [2 ** (-4 * i / power) for i in range(1, 2 * power, 2)]
        return torch.tensor(slopes[:num_heads], dtype=torch.float64)

    def alibi_bias(num_heads, q_len, k_len):
        query = torch.arange(k_len - q_len, k_len)[:, None]
        key = torch.arange(k_len)
        bias = -alibi_slopes(num_heads)[:, None, None] * (query - key)
        return bias.masked_fill(key > query, -1e9)


class HiddenAsIfNothingWereCached(Mistake, exercise="alibi_bias"):
    """Distances start where the queries stand, but the keys are hidden as if the first query stood at
    0: both go by the places of the queries."""

    def alibi_slopes(num_heads):
        power = 2 ** int(math.log2(num_heads))
        slopes = [2 ** (-8 * i / power) for i in range(1, power + 1)]
        slopes += [2 ** (-4 * i / power) for i in range(1, 2 * power, 2)]
        return torch.tensor(slopes[:num_heads], dtype=torch.float64)

    def alibi_bias(num_heads, q_len, k_len):
        query = torch.arange(k_len - q_len, k_len)[:, None]
        key = torch.arange(k_len)
        bias = -alibi_slopes(num_heads)[:, None, None] * (query - key)
        later = torch.ones(q_len, k_len, dtype=torch.bool).triu(1)
        return bias.masked_fill(later, -math.inf)


class DistanceFromTheLastKey(Mistake, exercise="alibi_bias"):
    """Distances are counted from the last key in every row. The softmax would not mind, for a row is
    off by one number, but here each query's own place is asked for."""

    def alibi_slopes(num_heads):
        power = 2 ** int(math.log2(num_heads))
        slopes = [2 ** (-8 * i / power) for i in range(1, power + 1)]
        slopes += [2 ** (-4 * i / power) for i in range(1, 2 * power, 2)]
        return torch.tensor(slopes[:num_heads], dtype=torch.float64)

    def alibi_bias(num_heads, q_len, k_len):
        query = torch.arange(k_len - q_len, k_len)[:, None]
        key = torch.arange(k_len)
        bias = -alibi_slopes(num_heads)[:, None, None] * (k_len - 1 - key)
        return bias.expand(-1, q_len, -1).masked_fill(key > query, -math.inf)


# 5.7 ----------------------------------------------------------------------------------------------


class ColumnByColumn(Mistake, exercise="rotary_in_space"):
    """The patches are numbered down the columns; words on a page run along the rows, so the column
    changes fastest."""

    def patch_coordinates(height, width):
        rows, columns = torch.arange(height), torch.arange(width)
        return torch.cartesian_prod(columns, rows).flip(-1).double()

    def rotary_in_space(x, coordinates, base=100.0):
        axes = coordinates.shape[-1]
        width = x.shape[-1] // axes
        exponent = torch.arange(0, width, 2, dtype=torch.float64) / width
        angle = (coordinates[..., None] / base**exponent).flatten(-2)
        even, odd = x[..., 0::2], x[..., 1::2]
        cos, sin = angle.cos(), angle.sin()
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class ColumnBeforeRow(Mistake, exercise="rotary_in_space"):
    """The two coordinates of a patch are exchanged: the row comes first."""

    def patch_coordinates(height, width):
        rows, columns = torch.arange(height), torch.arange(width)
        return torch.cartesian_prod(rows, columns).flip(-1).double()

    def rotary_in_space(x, coordinates, base=100.0):
        axes = coordinates.shape[-1]
        width = x.shape[-1] // axes
        exponent = torch.arange(0, width, 2, dtype=torch.float64) / width
        angle = (coordinates[..., None] / base**exponent).flatten(-2)
        even, odd = x[..., 0::2], x[..., 1::2]
        cos, sin = angle.cos(), angle.sin()
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class CountedInsteadOfPlaced(Mistake, exercise="rotary_in_space"):
    """The points are turned by their number in the list, as words are; what counts is where they lie."""

    def patch_coordinates(height, width):
        rows, columns = torch.arange(height), torch.arange(width)
        return torch.cartesian_prod(rows, columns).double()

    def rotary_in_space(x, coordinates, base=100.0):
        axes = coordinates.shape[-1]
        width = x.shape[-1] // axes
        exponent = torch.arange(0, width, 2, dtype=torch.float64) / width
        angle = (
            torch.arange(x.shape[-2])[:, None, None].expand(*coordinates.shape[-2:], 1)
            / base**exponent
        ).flatten(-2)
        even, odd = x[..., 0::2], x[..., 1::2]
        cos, sin = angle.cos(), angle.sin()
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class CoordinatesAdded(Mistake, exercise="rotary_in_space"):
    """The coordinates are added up, so points on one diagonal are in the same place for it: each axis
    turns a part of its own."""

    def patch_coordinates(height, width):
        rows, columns = torch.arange(height), torch.arange(width)
        return torch.cartesian_prod(rows, columns).double()

    def rotary_in_space(x, coordinates, base=100.0):
        axes = coordinates.shape[-1]
        width = x.shape[-1] // axes
        exponent = torch.arange(0, width, 2, dtype=torch.float64) / width
        angle = (
            coordinates.sum(-1, keepdim=True)[..., None].expand(*coordinates.shape, 1)
            / base**exponent
        ).flatten(-2)
        even, odd = x[..., 0::2], x[..., 1::2]
        cos, sin = angle.cos(), angle.sin()
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class FirstAxisOnly(Mistake, exercise="rotary_in_space"):
    """All parts are turned by the first coordinate: each part has its own."""

    def patch_coordinates(height, width):
        rows, columns = torch.arange(height), torch.arange(width)
        return torch.cartesian_prod(rows, columns).double()

    def rotary_in_space(x, coordinates, base=100.0):
        axes = coordinates.shape[-1]
        width = x.shape[-1] // axes
        exponent = torch.arange(0, width, 2, dtype=torch.float64) / width
        angle = (coordinates[..., :1, None].expand(*coordinates.shape, 1) / base**exponent).flatten(
            -2
        )
        even, odd = x[..., 0::2], x[..., 1::2]
        cos, sin = angle.cos(), angle.sin()
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class ClocksOfTheWholeHead(Mistake, exercise="rotary_in_space"):
    """The exponents run through the whole head, so the first axis gets the fast clocks and the last
    one the slow: each axis starts with its own fastest, and 2i is divided by the width of a part."""

    def patch_coordinates(height, width):
        rows, columns = torch.arange(height), torch.arange(width)
        return torch.cartesian_prod(rows, columns).double()

    def rotary_in_space(x, coordinates, base=100.0):
        axes = coordinates.shape[-1]
        width = x.shape[-1] // axes
        exponent = torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]
        exponent = exponent.unflatten(0, (axes, -1))
        angle = (coordinates[..., None] / base**exponent).flatten(-2)
        even, odd = x[..., 0::2], x[..., 1::2]
        cos, sin = angle.cos(), angle.sin()
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class DividedByTheWholeHead(Mistake, exercise="rotary_in_space"):
    """The exponent is divided by the width of the whole head; the pairs of one axis are counted
    within its part."""

    def patch_coordinates(height, width):
        rows, columns = torch.arange(height), torch.arange(width)
        return torch.cartesian_prod(rows, columns).double()

    def rotary_in_space(x, coordinates, base=100.0):
        axes = coordinates.shape[-1]
        width = x.shape[-1] // axes
        exponent = torch.arange(0, width, 2, dtype=torch.float64) / x.shape[-1]
        angle = (coordinates[..., None] / base**exponent).flatten(-2)
        even, odd = x[..., 0::2], x[..., 1::2]
        cos, sin = angle.cos(), angle.sin()
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class PlacesRounded(Mistake, exercise="rotary_in_space"):
    """The coordinates are cut to whole numbers; points lie anywhere, and a clock can stand at any
    angle."""

    def patch_coordinates(height, width):
        rows, columns = torch.arange(height), torch.arange(width)
        return torch.cartesian_prod(rows, columns).double()

    def rotary_in_space(x, coordinates, base=100.0):
        axes = coordinates.shape[-1]
        width = x.shape[-1] // axes
        exponent = torch.arange(0, width, 2, dtype=torch.float64) / width
        angle = (coordinates.long()[..., None] / base**exponent).flatten(-2)
        even, odd = x[..., 0::2], x[..., 1::2]
        cos, sin = angle.cos(), angle.sin()
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class AxesInTurns(Mistake, exercise="rotary_in_space"):
    """Neighbouring pairs belong to different axes; each axis has one block of neighbouring features."""

    def patch_coordinates(height, width):
        rows, columns = torch.arange(height), torch.arange(width)
        return torch.cartesian_prod(rows, columns).double()

    def rotary_in_space(x, coordinates, base=100.0):
        axes = coordinates.shape[-1]
        width = x.shape[-1] // axes
        exponent = torch.arange(0, width, 2, dtype=torch.float64) / width
        angle = (coordinates[..., None] / base**exponent).transpose(-2, -1).flatten(-2)
        even, odd = x[..., 0::2], x[..., 1::2]
        cos, sin = angle.cos(), angle.sin()
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class LastAxisFirst(Mistake, exercise="rotary_in_space"):
    """The first part of the features is turned by the last coordinate: parts and coordinates stand in
    the same order."""

    def patch_coordinates(height, width):
        rows, columns = torch.arange(height), torch.arange(width)
        return torch.cartesian_prod(rows, columns).double()

    def rotary_in_space(x, coordinates, base=100.0):
        axes = coordinates.shape[-1]
        width = x.shape[-1] // axes
        exponent = torch.arange(0, width, 2, dtype=torch.float64) / width
        angle = (coordinates.flip(-1)[..., None] / base**exponent).flatten(-2)
        even, odd = x[..., 0::2], x[..., 1::2]
        cos, sin = angle.cos(), angle.sin()
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class HalvesPairedInAPart(Mistake, exercise="rotary_in_space"):
    """Within the part of an axis the features i and i + width / 2 are paired; here neighbours are."""

    def patch_coordinates(height, width):
        rows, columns = torch.arange(height), torch.arange(width)
        return torch.cartesian_prod(rows, columns).double()

    def rotary_in_space(x, coordinates, base=100.0):
        parts = []
        for part, places in zip(
            x.chunk(coordinates.shape[-1], -1), coordinates.unbind(-1), strict=True
        ):
            width = part.shape[-1]
            exponent = torch.arange(0, width, 2, dtype=torch.float64) / width
            angle = places[..., None] / base**exponent
            first, second = part.chunk(2, dim=-1)
            cos, sin = angle.cos(), angle.sin()
            parts += [first * cos - second * sin, first * sin + second * cos]
        return torch.cat(parts, dim=-1)


class DistanceFromTheOrigin(Mistake, exercise="rotary_in_space"):
    """Everything is turned by the distance from the origin, so the scores depend on where the origin
    lies: turn each part by one coordinate."""

    def patch_coordinates(height, width):
        rows, columns = torch.arange(height), torch.arange(width)
        return torch.cartesian_prod(rows, columns).double()

    def rotary_in_space(x, coordinates, base=100.0):
        exponent = torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]
        angle = coordinates.norm(dim=-1, keepdim=True) / base**exponent
        even, odd = x[..., 0::2], x[..., 1::2]
        cos, sin = angle.cos(), angle.sin()
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


# 5.8 ----------------------------------------------------------------------------------------------


class AveragedOverPositions(Mistake, exercise="extrapolation"):
    """The mean runs over the positions of each window, and the positions are what you want to see:
    average over the windows."""

    def extrapolation(losses, trained_length, window, tolerance):
        length = losses.shape[1]
        by_position = losses.mean(dim=0)
        before = by_position[trained_length - window : trained_length].mean()
        breaks_at = length
        for start in range(trained_length, length - window + 1):
            if by_position[start : start + window].mean() > before + tolerance:
                breaks_at = start
                break
        perplexity = (by_position.cumsum(0) / torch.arange(1, length + 1)).exp()
        return losses.mean(dim=1), breaks_at, perplexity


class PerplexityAveraged(Mistake, exercise="extrapolation"):
    """The exponential is taken before the mean: a perplexity is the exponential of the mean loss."""

    def extrapolation(losses, trained_length, window, tolerance):
        length = losses.shape[1]
        by_position = losses.mean(dim=0)
        before = by_position[trained_length - window : trained_length].mean()
        breaks_at = length
        for start in range(trained_length, length - window + 1):
            if by_position[start : start + window].mean() > before + tolerance:
                breaks_at = start
                break
        perplexity = (losses.exp().mean(dim=0)).cumsum(0) / torch.arange(1, length + 1)
        return by_position, breaks_at, perplexity


class PerplexityOfOnePosition(Mistake, exercise="extrapolation"):
    """This is the perplexity of each position by itself; that of a text of t tokens takes the mean
    loss of its first t tokens."""

    def extrapolation(losses, trained_length, window, tolerance):
        length = losses.shape[1]
        by_position = losses.mean(dim=0)
        before = by_position[trained_length - window : trained_length].mean()
        breaks_at = length
        for start in range(trained_length, length - window + 1):
            if by_position[start : start + window].mean() > before + tolerance:
                breaks_at = start
                break
        perplexity = by_position.exp()
        return by_position, breaks_at, perplexity


class TwoToTheLoss(Mistake, exercise="extrapolation"):
    """The losses are in nats, so the base of the perplexity is e; 2 is for bits."""

    def extrapolation(losses, trained_length, window, tolerance):
        length = losses.shape[1]
        by_position = losses.mean(dim=0)
        before = by_position[trained_length - window : trained_length].mean()
        breaks_at = length
        for start in range(trained_length, length - window + 1):
            if by_position[start : start + window].mean() > before + tolerance:
                breaks_at = start
                break
        perplexity = 2 ** (by_position.cumsum(0) / torch.arange(1, length + 1))
        return by_position, breaks_at, perplexity


class OneHardTokenIsNoBreak(Mistake, exercise="extrapolation"):
    """A single position above the limit counts as the break, and one hard token is enough for that:
    look at the mean of a whole window."""

    def extrapolation(losses, trained_length, window, tolerance):
        length = losses.shape[1]
        by_position = losses.mean(dim=0)
        before = by_position[trained_length - window : trained_length].mean()
        breaks_at = length
        for start in range(trained_length, length - window + 1):
            if by_position[start] > before + tolerance:
                breaks_at = start
                break
        perplexity = (by_position.cumsum(0) / torch.arange(1, length + 1)).exp()
        return by_position, breaks_at, perplexity


class ComparedWithAllThatWasTrained(Mistake, exercise="extrapolation"):
    """The limit is set by the mean over all trained positions; the first tokens are hard for want of
    context and raise it. Compare with the last window before training ended."""

    def extrapolation(losses, trained_length, window, tolerance):
        length = losses.shape[1]
        by_position = losses.mean(dim=0)
        before = by_position[:trained_length].mean()
        breaks_at = length
        for start in range(trained_length, length - window + 1):
            if by_position[start : start + window].mean() > before + tolerance:
                breaks_at = start
                break
        perplexity = (by_position.cumsum(0) / torch.arange(1, length + 1)).exp()
        return by_position, breaks_at, perplexity


class NoBreakIsZero(Mistake, exercise="extrapolation"):
    """Where nothing breaks, 0 is returned, which reads as if it broke at once: return the whole
    length."""

    def extrapolation(losses, trained_length, window, tolerance):
        length = losses.shape[1]
        by_position = losses.mean(dim=0)
        before = by_position[trained_length - window : trained_length].mean()
        breaks_at = 0
        for start in range(trained_length, length - window + 1):
            if by_position[start : start + window].mean() > before + tolerance:
                breaks_at = start
                break
        perplexity = (by_position.cumsum(0) / torch.arange(1, length + 1)).exp()
        return by_position, breaks_at, perplexity


class CountedFromTheTrainedLength(Mistake, exercise="extrapolation"):
    """The place is counted from where training ended; positions are counted from the start of the
    text."""

    def extrapolation(losses, trained_length, window, tolerance):
        length = losses.shape[1]
        by_position = losses.mean(dim=0)
        before = by_position[trained_length - window : trained_length].mean()
        breaks_at = length
        for start in range(trained_length, length - window + 1):
            if by_position[start : start + window].mean() > before + tolerance:
                breaks_at = start - trained_length
                break
        perplexity = (by_position.cumsum(0) / torch.arange(1, length + 1)).exp()
        return by_position, breaks_at, perplexity


class LastInsteadOfFirst(Mistake, exercise="extrapolation"):
    """The last bad window is returned; the first one says where it breaks."""

    def extrapolation(losses, trained_length, window, tolerance):
        length = losses.shape[1]
        by_position = losses.mean(dim=0)
        before = by_position[trained_length - window : trained_length].mean()
        breaks_at = length
        for start in range(trained_length, length - window + 1):
            if by_position[start : start + window].mean() > before + tolerance:
                breaks_at = start
        perplexity = (by_position.cumsum(0) / torch.arange(1, length + 1)).exp()
        return by_position, breaks_at, perplexity


class ComparedWithTheLastToken(Mistake, exercise="extrapolation"):
    """The limit is set by the last trained position alone, and one easy or hard token moves it: take
    the mean of a whole window there, too."""

    def extrapolation(losses, trained_length, window, tolerance):
        length = losses.shape[1]
        by_position = losses.mean(dim=0)
        before = by_position[trained_length - 1]
        breaks_at = length
        for start in range(trained_length, length - window + 1):
            if by_position[start : start + window].mean() > before + tolerance:
                breaks_at = start
                break
        perplexity = (by_position.cumsum(0) / torch.arange(1, length + 1)).exp()
        return by_position, breaks_at, perplexity


class WindowsSideBySide(Mistake, exercise="extrapolation"):
    """Only windows side by side are looked at, so the break is found up to a window too late: a window
    may start at any position."""

    def extrapolation(losses, trained_length, window, tolerance):
        length = losses.shape[1]
        by_position = losses.mean(dim=0)
        before = by_position[trained_length - window : trained_length].mean()
        breaks_at = length
        for start in range(trained_length, length - window + 1, window):
            if by_position[start : start + window].mean() > before + tolerance:
                breaks_at = start
                break
        perplexity = (by_position.cumsum(0) / torch.arange(1, length + 1)).exp()
        return by_position, breaks_at, perplexity


class PartOfAWindowCounts(Mistake, exercise="extrapolation"):
    """At the end of the text parts of a window are looked at, and one hard token is enough there: only
    whole windows count."""

    def extrapolation(losses, trained_length, window, tolerance):
        length = losses.shape[1]
        by_position = losses.mean(dim=0)
        before = by_position[trained_length - window : trained_length].mean()
        breaks_at = length
        for start in range(trained_length, length):
            if by_position[start : start + window].mean() > before + tolerance:
                breaks_at = start
                break
        perplexity = (by_position.cumsum(0) / torch.arange(1, length + 1)).exp()
        return by_position, breaks_at, perplexity


class LastWindowForgotten(Mistake, exercise="extrapolation"):
    """The last whole window is left out: it starts at length - window, and a range ends one before its
    end."""

    def extrapolation(losses, trained_length, window, tolerance):
        length = losses.shape[1]
        by_position = losses.mean(dim=0)
        before = by_position[trained_length - window : trained_length].mean()
        breaks_at = length
        for start in range(trained_length, length - window):
            if by_position[start : start + window].mean() > before + tolerance:
                breaks_at = start
                break
        perplexity = (by_position.cumsum(0) / torch.arange(1, length + 1)).exp()
        return by_position, breaks_at, perplexity


# 5.9 ----------------------------------------------------------------------------------------------


class StillFromOne(Mistake, exercise="mended_positions"):
    """The exponent is mended, but the first row is still that of position 1: count from 0."""

    def mended_positions(length, d_model):
        entry = torch.arange(d_model)
        exponent = (entry - entry % 2).double() / d_model
        angle = torch.arange(1, length + 1)[:, None] / 10_000**exponent
        return torch.where(entry % 2 == 0, angle.sin(), angle.cos())

    def mended_rotary(x, positions):
        d_head = x.shape[-1]
        speed = 10_000 ** (-torch.arange(0, d_head, 2).double() / d_head)
        angle = (positions[:, None] * speed).repeat(1, 2)
        first, second = x.chunk(2, dim=-1)
        return x * angle.cos() + torch.cat((-second, first), dim=-1) * angle.sin()


class ExponentStillOfTheEntry(Mistake, exercise="mended_positions"):
    """The rows start at 0 now, but the exponent still grows from entry to entry: a sine and its
    cosine need the same one."""

    def mended_positions(length, d_model):
        entry = torch.arange(d_model)
        exponent = 2 * entry.double() / d_model
        angle = torch.arange(length)[:, None] / 10_000**exponent
        return torch.where(entry % 2 == 0, angle.sin(), angle.cos())

    def mended_rotary(x, positions):
        d_head = x.shape[-1]
        speed = 10_000 ** (-torch.arange(0, d_head, 2).double() / d_head)
        angle = (positions[:, None] * speed).repeat(1, 2)
        first, second = x.chunk(2, dim=-1)
        return x * angle.cos() + torch.cat((-second, first), dim=-1) * angle.sin()


class TwoDroppedFloorForgotten(Mistake, exercise="mended_positions"):
    """The exponent is j / d_model now, right for the sines; the cosine beside a sine needs the
    exponent of its neighbour, rounded down to an even number."""

    def mended_positions(length, d_model):
        entry = torch.arange(d_model)
        exponent = entry.double() / d_model
        angle = torch.arange(length)[:, None] / 10_000**exponent
        return torch.where(entry % 2 == 0, angle.sin(), angle.cos())

    def mended_rotary(x, positions):
        d_head = x.shape[-1]
        speed = 10_000 ** (-torch.arange(0, d_head, 2).double() / d_head)
        angle = (positions[:, None] * speed).repeat(1, 2)
        first, second = x.chunk(2, dim=-1)
        return x * angle.cos() + torch.cat((-second, first), dim=-1) * angle.sin()


class FloorWithoutDoubling(Mistake, exercise="mended_positions"):
    """The exponent is ⌊j / 2⌋ / d_model, half of what it should be: the pair i has 2i / d_model."""

    def mended_positions(length, d_model):
        entry = torch.arange(d_model)
        exponent = (entry // 2).double() / d_model
        angle = torch.arange(length)[:, None] / 10_000**exponent
        return torch.where(entry % 2 == 0, angle.sin(), angle.cos())

    def mended_rotary(x, positions):
        d_head = x.shape[-1]
        speed = 10_000 ** (-torch.arange(0, d_head, 2).double() / d_head)
        angle = (positions[:, None] * speed).repeat(1, 2)
        first, second = x.chunk(2, dim=-1)
        return x * angle.cos() + torch.cat((-second, first), dim=-1) * angle.sin()


class AnglesStillRepeatedInPairs(Mistake, exercise="mended_positions"):
    """The angles are still laid out for neighbours while the features are paired by halves: the two
    features of a pair need one angle."""

    def mended_positions(length, d_model):
        entry = torch.arange(d_model)
        exponent = (entry - entry % 2).double() / d_model
        angle = torch.arange(length)[:, None] / 10_000**exponent
        return torch.where(entry % 2 == 0, angle.sin(), angle.cos())

    def mended_rotary(x, positions):
        d_head = x.shape[-1]
        speed = 10_000 ** (-torch.arange(0, d_head, 2).double() / d_head)
        angle = (positions[:, None] * speed).repeat_interleave(2, dim=-1)
        first, second = x.chunk(2, dim=-1)
        return x * angle.cos() + torch.cat((-second, first), dim=-1) * angle.sin()


class MovedToTheOtherLayout(Mistake, exercise="mended_positions"):
    """Neighbours are turned now, which is a right turn in the other layout: the weights of this model
    pair the features i and i + d_head / 2."""

    def mended_positions(length, d_model):
        entry = torch.arange(d_model)
        exponent = (entry - entry % 2).double() / d_model
        angle = torch.arange(length)[:, None] / 10_000**exponent
        return torch.where(entry % 2 == 0, angle.sin(), angle.cos())

    def mended_rotary(x, positions):
        d_head = x.shape[-1]
        speed = 10_000 ** (-torch.arange(0, d_head, 2).double() / d_head)
        angle = (positions[:, None] * speed).repeat_interleave(2, dim=-1)
        first, second = x[:, 0::2], x[:, 1::2]
        return x * angle.cos() + torch.stack((-second, first), dim=-1).flatten(1) * angle.sin()


class SignOfTheOtherHalf(Mistake, exercise="mended_positions"):
    """The minus has moved to the other half, which turns every pair backwards."""

    def mended_positions(length, d_model):
        entry = torch.arange(d_model)
        exponent = (entry - entry % 2).double() / d_model
        angle = torch.arange(length)[:, None] / 10_000**exponent
        return torch.where(entry % 2 == 0, angle.sin(), angle.cos())

    def mended_rotary(x, positions):
        d_head = x.shape[-1]
        speed = 10_000 ** (-torch.arange(0, d_head, 2).double() / d_head)
        angle = (positions[:, None] * speed).repeat(1, 2)
        first, second = x.chunk(2, dim=-1)
        return x * angle.cos() + torch.cat((second, -first), dim=-1) * angle.sin()


class NothingMended(Mistake, exercise="mended_positions"):
    """The table is as it was published: the exponent grows from entry to entry, and the first row is
    that of position 1."""

    def mended_positions(length, d_model):
        entry = torch.arange(d_model)
        exponent = 2 * entry.double() / d_model
        angle = torch.arange(1, length + 1)[:, None] / 10_000**exponent
        return torch.where(entry % 2 == 0, angle.sin(), angle.cos())

    def mended_rotary(x, positions):
        d_head = x.shape[-1]
        speed = 10_000 ** (-torch.arange(0, d_head, 2).double() / d_head)
        angle = (positions[:, None] * speed).repeat(1, 2)
        first, second = x.chunk(2, dim=-1)
        return x * angle.cos() + torch.cat((-second, first), dim=-1) * angle.sin()


class SinesMovedToTheFront(Mistake, exercise="mended_positions"):
    """The numbers are right and stand in another order: all sines come first now, and this table has
    each sine beside its cosine."""

    def mended_positions(length, d_model):
        exponent = torch.arange(0, d_model, 2).double() / d_model
        angle = torch.arange(length)[:, None] / 10_000**exponent
        return torch.cat((angle.sin(), angle.cos()), dim=1)

    def mended_rotary(x, positions):
        d_head = x.shape[-1]
        speed = 10_000 ** (-torch.arange(0, d_head, 2).double() / d_head)
        angle = (positions[:, None] * speed).repeat(1, 2)
        first, second = x.chunk(2, dim=-1)
        return x * angle.cos() + torch.cat((-second, first), dim=-1) * angle.sin()


# 5.10 -------------------------------------------------------------------------------------------


class NothingTurned(Mistake, exercise="swapped_rotary"):
    """Queries and keys come back as they were, and the model no longer sees how far apart tokens
    stand."""

    def swapped_rotary(query, key, positions):
        return query, key


class KeysNotTurned(Mistake, exercise="swapped_rotary"):
    """Only the queries are turned: a score then depends on the place of the query, not on its
    distance from the key. Turn both."""

    def swapped_rotary(query, key, positions):
        d_head = query.shape[-1]
        speed = 10_000 ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
        angle = positions[:, None, :, None] * speed

        def turned(x):
            a, b = x[..., 0::2], x[..., 1::2]
            cos, sin = angle.cos(), angle.sin()
            return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)

        return turned(query), key


class KeysTurnedTheOtherWay(Mistake, exercise="swapped_rotary"):
    """The keys are turned the other way, so a score depends on the sum of the two places, not on their
    difference: turn both the same way."""

    def swapped_rotary(query, key, positions):
        d_head = query.shape[-1]
        speed = 10_000 ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
        angle = positions[:, None, :, None] * speed

        def turned(x, angle=angle):
            a, b = x[..., 0::2], x[..., 1::2]
            cos, sin = angle.cos(), angle.sin()
            return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)

        return turned(query, angle), turned(key, -angle)


class KeysOnePlaceTooFar(Mistake, exercise="swapped_rotary"):
    """The keys are turned by one place more than the queries, so each distance is off by one: a token
    has one position."""

    def swapped_rotary(query, key, positions):
        d_head = query.shape[-1]
        speed = 10_000 ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
        angle = positions[:, None, :, None] * speed

        def turned(x, angle=angle):
            a, b = x[..., 0::2], x[..., 1::2]
            cos, sin = angle.cos(), angle.sin()
            return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)

        return turned(query, angle), turned(key, angle + speed)


class KeyReturnedFirst(Mistake, exercise="swapped_rotary"):
    """The two come back exchanged: the query is expected first."""

    def swapped_rotary(query, key, positions):
        d_head = query.shape[-1]
        speed = 10_000 ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
        angle = positions[:, None, :, None] * speed

        def turned(x):
            a, b = x[..., 0::2], x[..., 1::2]
            cos, sin = angle.cos(), angle.sin()
            return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)

        return turned(key), turned(query)


class TurnedBackwards(Mistake, exercise="swapped_rotary"):
    """Both are turned the other way, so what lies behind looks as if it lay ahead: from (a, b) to
    (a cos − b sin, a sin + b cos) is the way that this model was trained with."""

    def swapped_rotary(query, key, positions):
        d_head = query.shape[-1]
        speed = 10_000 ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
        angle = -positions[:, None, :, None] * speed

        def turned(x):
            a, b = x[..., 0::2], x[..., 1::2]
            cos, sin = angle.cos(), angle.sin()
            return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)

        return turned(query), turned(key)


class PairsOfHalves(Mistake, exercise="swapped_rotary"):
    """The features i and i + d_head / 2 are paired; this model was trained with neighbours."""

    def swapped_rotary(query, key, positions):
        d_head = query.shape[-1]
        speed = 10_000 ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
        angle = positions[:, None, :, None] * speed

        def turned(x):
            a, b = x.chunk(2, dim=-1)
            cos, sin = angle.cos(), angle.sin()
            return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)

        return turned(query), turned(key)


class AnglesOfTheOtherLayout(Mistake, exercise="swapped_rotary"):
    """Neighbours are paired, but the angles are laid out for halves, so the two features of a pair get
    different angles: each angle stands twice, side by side."""

    def swapped_rotary(query, key, positions):
        d_head = query.shape[-1]
        speed = 10_000 ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
        angle = (positions[:, None, :, None] * speed).repeat(1, 1, 1, 2)

        def turned(x):
            crossed = torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)
            return x * angle.cos() + crossed * angle.sin()

        return turned(query), turned(key)


class BaseOfAnotherModel(Mistake, exercise="swapped_rotary"):
    """The base is 500,000, as in some larger models; this one was trained with 10,000."""

    def swapped_rotary(query, key, positions):
        d_head = query.shape[-1]
        speed = 500_000 ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
        angle = positions[:, None, :, None] * speed

        def turned(x):
            a, b = x[..., 0::2], x[..., 1::2]
            cos, sin = angle.cos(), angle.sin()
            return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)

        return turned(query), turned(key)


class FactorTwoForgotten(Mistake, exercise="swapped_rotary"):
    """The exponent is half as large as it should be: pair i has the exponent 2i / d_head, because i
    counts pairs and d_head counts features."""

    def swapped_rotary(query, key, positions):
        d_head = query.shape[-1]
        speed = 10_000 ** (-torch.arange(d_head // 2, dtype=torch.float64) / d_head)
        angle = positions[:, None, :, None] * speed

        def turned(x):
            a, b = x[..., 0::2], x[..., 1::2]
            cos, sin = angle.cos(), angle.sin()
            return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)

        return turned(query), turned(key)


class AnglesInHalfPrecision(Mistake, exercise="swapped_rotary"):
    """The angles are rounded to half precision. The loss hardly shows it, the logits do: work the angles
    out in float32 or better."""

    def swapped_rotary(query, key, positions):
        d_head = query.shape[-1]
        speed = 10_000 ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
        angle = (positions[:, None, :, None].bfloat16() * speed.bfloat16()).double()

        def turned(x):
            a, b = x[..., 0::2], x[..., 1::2]
            cos, sin = angle.cos(), angle.sin()
            return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)

        return turned(query), turned(key)


class PositionsIgnored(Mistake, exercise="swapped_rotary"):
    """The positions are taken to be 0, 1, 2, … whatever was passed: a text with gaps is then read as if
    it had none."""

    def swapped_rotary(query, key, positions):
        d_head = query.shape[-1]
        speed = 10_000 ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
        angle = torch.arange(query.shape[-2])[:, None] * speed

        def turned(x):
            a, b = x[..., 0::2], x[..., 1::2]
            cos, sin = angle.cos(), angle.sin()
            return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)

        return turned(query), turned(key)


class FirstSequenceForAll(Mistake, exercise="swapped_rotary"):
    """The positions of the first sequence are used for the whole batch; each sequence has its own."""

    def swapped_rotary(query, key, positions):
        d_head = query.shape[-1]
        speed = 10_000 ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
        angle = positions[0][:, None] * speed

        def turned(x):
            a, b = x[..., 0::2], x[..., 1::2]
            cos, sin = angle.cos(), angle.sin()
            return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)

        return turned(query), turned(key)
