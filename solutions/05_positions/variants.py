"""Right answers to chapter 05 that look different. None of them may lose a point."""

import math

import torch
import torch.nn.functional as F

from classroom.exercise.answers import Variant

# 5.1 ------------------------------------------------------------------------------------------


class EveryPermutation(Variant, exercise="check_order_blindness"):
    """All permutations of four tokens; the counter-example is two different unit vectors."""

    def check_order_blindness(layer):
        from itertools import permutations

        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(4))
        before = layer(x)
        for order in permutations(range(4)):
            after = layer(x[list(order)])
            for place, token in enumerate(order):
                torch.testing.assert_close(after[place], before[token], rtol=1e-3, atol=1e-4)

    def order_counter_example(w_query, w_key, w_value):
        return torch.eye(2, w_value.shape[0])


class MatrixOfPermutation(Variant, exercise="check_order_blindness"):
    """A permutation matrix from the left, random orders, many tokens; long tokens."""

    def check_order_blindness(layer):
        torch.manual_seed(7)
        x = torch.randn(12, 8, dtype=torch.double)
        for _ in range(5):
            permutation = torch.eye(12, dtype=x.dtype)[torch.randperm(12)]
            gap = (layer(permutation @ x) - permutation @ layer(x)).norm()
            assert gap < 1e-3, gap

    def order_counter_example(w_query, w_key, w_value):
        something = torch.zeros(w_value.shape[0])
        something[-1] = 5
        return torch.stack([0 * something, something])


class SortedBack(Variant, exercise="check_order_blindness"):
    """The outputs are put back into the old order; numpy-like tolerance; plain numbers."""

    def check_order_blindness(layer):
        x = torch.linspace(-1, 1, 40).reshape(8, 5).cos()
        order = torch.tensor([5, 3, 7, 0, 6, 1, 4, 2])
        back = torch.argsort(order)
        if not torch.isclose(layer(x[order])[back], layer(x), atol=1e-4, rtol=1e-3).all():
            raise AssertionError("the order is seen")

    def order_counter_example(w_query, w_key, w_value):
        generator = torch.Generator().manual_seed(5)
        return torch.randn(2, len(w_value), generator=generator, dtype=torch.float64)


# 5.2 ------------------------------------------------------------------------------------------


class NumberByNumber(Variant, exercise="sinusoidal_positions"):
    """Python's own floats, one entry after the other; the matrix entry by entry."""

    def sinusoidal_positions(length, d_model, base=10_000.0):
        rows = []
        for p in range(length):
            row = []
            for i in range(0, d_model, 2):
                angle = p / base ** (i / d_model)
                row += [math.sin(angle), math.cos(angle)]
            rows.append(row)
        return torch.tensor(rows)

    def shift_matrix(shift, d_model, base=10_000.0):
        matrix = torch.eye(d_model)
        for i in range(d_model // 2):
            angle = shift * base ** (-2 * i / d_model)
            matrix[2 * i, 2 * i] = matrix[2 * i + 1, 2 * i + 1] = math.cos(angle)
            matrix[2 * i, 2 * i + 1] = -math.sin(angle)
            matrix[2 * i + 1, 2 * i] = math.sin(angle)
        return matrix


class ByLogarithms(Variant, exercise="sinusoidal_positions"):
    """Exponentials of logarithms, a table that is filled in; rounded to float32 at the end."""

    def sinusoidal_positions(length, d_model, base=10_000.0):
        position = torch.arange(length, dtype=torch.float64).unsqueeze(1)
        even = torch.arange(0, d_model, 2, dtype=torch.float64)
        speed = torch.exp(even * (-math.log(base) / d_model))
        table = torch.zeros(length, d_model)
        table[:, 0::2] = torch.sin(position * speed)
        table[:, 1::2] = torch.cos(position * speed)
        return table

    def shift_matrix(shift, d_model, base=10_000.0):
        even = torch.arange(0, d_model, 2, dtype=torch.float64)
        angle = shift * torch.exp(even * (-math.log(base) / d_model))
        matrix = torch.diag(angle.cos().repeat_interleave(2))
        places = torch.arange(0, d_model, 2)
        matrix[places, places + 1] = -angle.sin()
        matrix[places + 1, places] = angle.sin()
        return matrix


class MatrixFromTheTable(Variant, exercise="sinusoidal_positions"):
    """Turns as complex numbers, and the matrix as the exponential of a generator."""

    def sinusoidal_positions(length, d_model, base=10_000.0):
        speed = base ** -(torch.arange(0, d_model, 2).double() / d_model)
        angle = torch.arange(length).double()[:, None] * speed
        turned = torch.polar(torch.ones_like(angle), math.pi / 2 - angle)
        return torch.view_as_real(turned).reshape(length, d_model)

    def shift_matrix(shift, d_model, base=10_000.0):
        speed = base ** -(torch.arange(0, d_model, 2).double() / d_model)
        quarter = torch.tensor([[0.0, -1.0], [1.0, 0.0]]).double()
        return torch.linalg.matrix_exp(shift * torch.kron(torch.diag(speed), quarter))


# 5.5 ------------------------------------------------------------------------------------------


class Embedded(Variant, exercise="learned_positions"):
    """The rows by an embedding look-up; the check by the last position."""

    def learned_positions(x, table, offset=0):
        positions = torch.arange(x.size(1)) + offset
        if positions[-1] >= table.size(0):
            raise ValueError(
                f"the last position is {int(positions[-1])} (offset {offset}), "
                f"the table has {table.size(0)} rows"
            )
        return x + F.embedding(positions, table)


class TokenByToken(Variant, exercise="learned_positions"):
    """A loop; an IndexError that is turned into a ValueError."""

    def learned_positions(x, table, offset=0):
        result = x.clone()
        try:
            for t in range(x.shape[1]):
                result[:, t] += table[offset + t]
        except IndexError as error:
            raise ValueError(f"offset={offset} is too far for {len(table)} positions") from error
        return result


class CutAndCompared(Variant, exercise="learned_positions"):
    """The slice is taken first, and then looked at."""

    def learned_positions(x, table, offset=0):
        batch, length, d_model = x.shape
        rows = table[offset : offset + length]
        if len(rows) != length:
            raise ValueError(f"{length} tokens from {offset} do not fit into {len(table)} rows")
        return torch.add(x, rows.expand(batch, length, d_model))


# 5.3 ------------------------------------------------------------------------------------------


class ComplexNumbers(Variant, exercise="apply_rotary"):
    """The pairs as complex numbers."""

    def apply_rotary(x, positions, base=10_000.0):
        pairs = torch.view_as_complex(x.double().reshape(*x.shape[:-1], -1, 2))
        speed = 1.0 / base ** (torch.arange(0, x.shape[-1], 2).double() / x.shape[-1])
        angle = torch.einsum("bt,i->bti", positions.double(), speed).unsqueeze(1)
        turned = pairs * torch.exp(1j * angle)
        return torch.view_as_real(turned).reshape(x.shape).to(x.dtype)

    def rotary_attention(x, w_query, w_key, w_value, num_heads, positions):
        heads = []
        blocks = (w.chunk(num_heads, dim=1) for w in (w_query, w_key, w_value))
        for w_q, w_k, w_v in zip(*blocks, strict=True):
            query = apply_rotary((x @ w_q)[:, None], positions)[:, 0]
            key = apply_rotary((x @ w_k)[:, None], positions)[:, 0]
            scores = query @ key.mT / w_q.shape[1] ** 0.5
            heads.append(scores.softmax(-1) @ (x @ w_v))
        return torch.cat(heads, dim=-1)


class InSinglePrecision(Variant, exercise="apply_rotary"):
    """Angles, cosines and sines in float32; the features exchanged by a sign and a flip."""

    def apply_rotary(x, positions, base=10_000.0):
        d_head = x.size(-1)
        inverse = 1.0 / (base ** (torch.arange(0, d_head, 2).float() / d_head))
        angle = (positions.float().unsqueeze(-1) * inverse).repeat_interleave(2, dim=-1)
        cos, sin = angle.cos().unsqueeze(1), angle.sin().unsqueeze(1)
        crossed = x.float().unflatten(-1, (-1, 2)).flip(-1) * torch.tensor([-1.0, 1.0])
        return (x.float() * cos + crossed.flatten(-2) * sin).to(x.dtype)

    def rotary_attention(x, w_query, w_key, w_value, num_heads, positions):
        batch, length, _ = x.shape

        def heads(w):
            return (x @ w).view(batch, length, num_heads, -1).permute(0, 2, 1, 3)

        query, key = (apply_rotary(heads(w), positions) for w in (w_query, w_key))
        weights = (query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])).softmax(dim=3)
        output = weights.to(x.dtype) @ heads(w_value)
        return output.permute(0, 2, 1, 3).reshape(batch, length, -1)


class MatrixForEachToken(Variant, exercise="apply_rotary"):
    """One rotation matrix per token; in the layer the heads are an axis of an einsum."""

    def apply_rotary(x, positions, base=10_000.0):
        d_head = x.shape[-1]
        result = torch.empty_like(x)
        for b in range(x.shape[0]):
            for t in range(x.shape[2]):
                blocks = []
                for i in range(d_head // 2):
                    angle = positions[b, t].item() * base ** (-2 * i / d_head)
                    c, s = math.cos(angle), math.sin(angle)
                    blocks.append(torch.tensor([[c, s], [-s, c]]).double())
                result[b, :, t] = (x[b, :, t].double() @ torch.block_diag(*blocks)).to(x.dtype)
        return result

    def rotary_attention(x, w_query, w_key, w_value, num_heads, positions):
        def heads(w):
            return torch.einsum("btm,mhd->bhtd", x, w.unflatten(1, (num_heads, -1)))

        query, key = (apply_rotary(heads(w), positions) for w in (w_query, w_key))
        scores = torch.einsum("bhqd,bhkd->bhqk", query, key) / query.shape[-1] ** 0.5
        output = torch.einsum("bhqk,bhkd->bqhd", scores.softmax(-1), heads(w_value))
        return output.flatten(2)


# 5.9 ------------------------------------------------------------------------------------------


class RowByRow(Variant, exercise="convert_rotary"):
    """Each row is copied to its place."""

    def convert_rotary(weight, num_heads, to):
        d_head = len(weight) // num_heads
        result = torch.empty_like(weight)
        for head in range(num_heads):
            for i in range(d_head // 2):
                for part in range(2):
                    neighbour = head * d_head + 2 * i + part
                    half = head * d_head + i + part * d_head // 2
                    if to == "half_split":
                        result[half] = weight[neighbour]
                    else:
                        result[neighbour] = weight[half]
        return result


class CutAndJoined(Variant, exercise="convert_rotary"):
    """Every other row in front, or the two halves interleaved."""

    def convert_rotary(weight, num_heads, to):
        heads = []
        for head in weight.chunk(num_heads):
            if to == "half_split":
                heads.append(torch.cat([head[::2], head[1::2]]))
            else:
                heads.append(torch.stack(head.chunk(2), dim=1).flatten(0, 1))
        return torch.cat(heads)


class PermutationMatrix(Variant, exercise="convert_rotary"):
    """A matrix of zeros and ones from the left, and its transpose for the way back."""

    def convert_rotary(weight, num_heads, to):
        d_head = weight.shape[0] // num_heads
        eye = torch.eye(d_head, dtype=weight.dtype)
        move = torch.block_diag(*[torch.cat((eye[0::2], eye[1::2]))] * num_heads)
        return (move if to == "half_split" else move.T) @ weight


# 5.6 ------------------------------------------------------------------------------------------


class Recursive(Variant, exercise="alibi_bias"):
    """The rule calls itself; the bias is filled in by loops."""

    def alibi_slopes(num_heads):
        def slopes(n):
            power = 2 ** math.floor(math.log2(n))
            if power == n:
                start = 2 ** (-8 / n)
                return [start * start**i for i in range(n)]
            return slopes(power) + slopes(2 * power)[::2][: n - power]

        return torch.tensor(slopes(num_heads))

    def alibi_bias(num_heads, q_len, k_len):
        bias = torch.full((num_heads, q_len, k_len), float("-inf"))
        for head, slope in enumerate(alibi_slopes(num_heads)):
            for query in range(q_len):
                for key in range(k_len - q_len + query + 1):
                    bias[head, query, key] = slope * (key - (k_len - q_len + query))
        return bias


class MaskAdded(Variant, exercise="alibi_bias"):
    """Slopes in float32 by exp2; distances both ways and a causal mask added."""

    def alibi_slopes(num_heads):
        power = 1
        while 2 * power <= num_heads:
            power *= 2
        regular = torch.exp2(-8.0 / power * torch.arange(1, power + 1))
        between = torch.exp2(-4.0 / power * torch.arange(1, 2 * power, 2))
        return torch.cat([regular, between[: num_heads - power]])

    def alibi_bias(num_heads, q_len, k_len):
        query = torch.arange(q_len).unsqueeze(1) + (k_len - q_len)
        far = (query - torch.arange(k_len)).abs().float()
        mask = torch.full((q_len, k_len), -torch.inf).triu(k_len - q_len + 1)
        return torch.einsum("h,qk->hqk", -alibi_slopes(num_heads), far) + mask


class CutFromTheSquare(Variant, exercise="alibi_bias"):
    """The bias of all tokens as queries, of which the last rows are kept."""

    def alibi_slopes(num_heads):
        below = 1 << (num_heads.bit_length() - 1)
        rest = num_heads - below
        first = [0.5 ** (8 * (h + 1) / below) for h in range(below)]
        second = [0.5 ** (8 * (2 * h + 1) / (2 * below)) for h in range(rest)]
        return torch.tensor(first + second, dtype=torch.float64)

    def alibi_bias(num_heads, q_len, k_len):
        places = torch.arange(k_len)
        behind = places[None, :] - places[:, None]
        square = alibi_slopes(num_heads)[:, None, None] * behind
        square = square.masked_fill(behind > 0, -math.inf)
        return square[:, -q_len:]


# 5.10 -----------------------------------------------------------------------------------------


class ComplexParts(Variant, exercise="rotary_in_space"):
    """All parts as complex numbers in one product; the patches by two loops."""

    def patch_coordinates(height, width):
        return torch.tensor([[float(r), float(c)] for r in range(height) for c in range(width)])

    def rotary_in_space(x, coordinates, base=100.0):
        axes = coordinates.shape[-1]
        width = x.shape[-1] // axes
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], axes, width // 2, 2))
        speed = torch.exp(-math.log(base) * torch.arange(0, width, 2).double() / width)
        turned = pairs * torch.exp(1j * coordinates[..., None] * speed)
        return torch.view_as_real(turned).reshape(x.shape)


class PairByPair(Variant, exercise="rotary_in_space"):
    """Each pair is looked up: which axis, which clock."""

    def patch_coordinates(height, width):
        grid = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        return torch.stack(grid, dim=-1).reshape(-1, 2).float()

    def rotary_in_space(x, coordinates, base=100.0):
        result = x.clone()
        width = x.shape[-1] // coordinates.shape[-1]
        for first in range(0, x.shape[-1], 2):
            axis, entry = divmod(first, width)
            angle = coordinates[:, :, axis] / base ** (entry / width)
            a, b = x[:, :, first], x[:, :, first + 1]
            result[:, :, first] = a * torch.cos(angle) - b * torch.sin(angle)
            result[:, :, first + 1] = a * torch.sin(angle) + b * torch.cos(angle)
        return result


class OneAngleTable(Variant, exercise="rotary_in_space"):
    """Angles for all features at once, in float32; rows and columns by repeating."""

    def patch_coordinates(height, width):
        rows = torch.arange(height).repeat_interleave(width)
        columns = torch.arange(width).repeat(height)
        return torch.stack([rows, columns], dim=1).to(torch.float32)

    def rotary_in_space(x, coordinates, base=100.0):
        width = x.size(-1) // coordinates.size(-1)
        speed = 1 / base ** (torch.arange(0, width, 2) / width)
        angle = (coordinates.float().unsqueeze(-1) * speed).flatten(-2).repeat_interleave(2, -1)
        crossed = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
        return x * angle.cos() + crossed * angle.sin()


# 5.8 ------------------------------------------------------------------------------------------


class WithLoops(Variant, exercise="extrapolation"):
    """Python's sums, one position after the other."""

    def extrapolation(losses, trained_length, window, tolerance):
        windows, length = losses.shape
        by_position = [float(losses[:, t].sum()) / windows for t in range(length)]
        before = sum(by_position[trained_length - window : trained_length]) / window
        breaks_at = trained_length
        while breaks_at + window <= length:
            if sum(by_position[breaks_at : breaks_at + window]) / window > before + tolerance:
                break
            breaks_at += 1
        else:
            breaks_at = length
        perplexity = [math.exp(float(losses[:, : t + 1].mean())) for t in range(length)]
        return torch.tensor(by_position).double(), breaks_at, torch.tensor(perplexity).double()


class ByConvolution(Variant, exercise="extrapolation"):
    """Moving means by average pooling; the place as a tensor."""

    def extrapolation(losses, trained_length, window, tolerance):
        by_position = torch.mean(losses, 0)
        moving = F.avg_pool1d(by_position[None, None], window, stride=1)[0, 0]
        worse = moving - moving[trained_length - window] > tolerance
        worse[:trained_length] = False
        place = worse.int().argmax() if worse.any() else torch.tensor(losses.shape[1])
        counts = torch.arange(losses.shape[1]) + 1
        return by_position, place, torch.exp(torch.cumsum(by_position, 0) / counts)


class FirstOfMany(Variant, exercise="extrapolation"):
    """The first of all bad starts, by next() with a default."""

    def extrapolation(losses, trained_length, window, tolerance):
        curve = losses.sum(dim=0) / losses.shape[0]
        limit = curve[:trained_length][-window:].mean() + tolerance
        starts = range(trained_length, len(curve) - window + 1)
        bad = (s for s in starts if curve[s : s + window].mean() > limit)
        sizes = [losses[:, :t].mean() for t in range(1, len(curve) + 1)]
        return curve, next(bad, len(curve)), torch.stack(sizes).exp()


# 5.7 ------------------------------------------------------------------------------------------


class WrittenAnew(Variant, exercise="mended_positions"):
    """Both from the formulas, by stacking and by concatenation."""

    def mended_positions(length, d_model):
        clocks = torch.arange(0, d_model, 2).double() / d_model
        angle = torch.arange(length).double()[:, None] * 10_000.0**-clocks
        return torch.stack([angle.sin(), angle.cos()], dim=2).reshape(length, d_model)

    def mended_rotary(x, positions):
        d_head = x.shape[-1]
        clocks = torch.arange(0, d_head, 2).double() / d_head
        angle = positions[:, None] * 10_000.0**-clocks
        left, right = x[:, : d_head // 2], x[:, d_head // 2 :]
        return torch.cat(
            [left * angle.cos() - right * angle.sin(), left * angle.sin() + right * angle.cos()], 1
        )


class FilledIn(Variant, exercise="mended_positions"):
    """A float32 table that is filled in; the turn as one of complex numbers."""

    def mended_positions(length, d_model):
        table = torch.zeros(length, d_model)
        place = torch.arange(length).unsqueeze(1)
        speed = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10_000.0) / d_model))
        table[:, 0::2] = torch.sin(place * speed)
        table[:, 1::2] = torch.cos(place * speed)
        return table

    def mended_rotary(x, positions):
        half = x.shape[1] // 2
        angle = torch.outer(positions.double(), 1e4 ** (-torch.arange(half).double() / half))
        turned = torch.complex(x[:, :half], x[:, half:]) * torch.polar(angle * 0 + 1, angle)
        return torch.cat([turned.real, turned.imag], dim=1)


class RoundedDown(Variant, exercise="mended_positions"):
    """The exponent rounded down to an even number; the angles tiled."""

    def mended_positions(length, d_model):
        place = torch.arange(length, dtype=torch.float64)[:, None]
        index = torch.arange(d_model)
        radians = place / 10_000.0 ** ((index & ~1) / d_model)
        return torch.where(index % 2 == 0, radians.sin(), radians.cos())

    def mended_rotary(x, positions):
        d_head = x.shape[-1]
        speed = 10_000.0 ** (-(torch.arange(d_head) % (d_head // 2)) * 2 / d_head)
        angle = positions[:, None] * speed
        sign = torch.ones(d_head).index_fill(0, torch.arange(d_head // 2), -1.0)
        return x * angle.cos() + sign * x.roll(d_head // 2, dims=1) * angle.sin()


# 5.4 ------------------------------------------------------------------------------------------


class CountedFromOne(Variant, exercise="swapped_rotary"):
    """All places are moved on by one, which no score and so no logit can tell."""

    def swapped_rotary(query, key, positions):
        d_head = query.shape[-1]
        speed = 10_000 ** (-torch.arange(0, d_head, 2).double() / d_head)
        hands = torch.exp(1j * (positions + 1)[:, None, :, None] * speed)
        return tuple(
            torch.view_as_real(torch.complex(x[..., 0::2], x[..., 1::2]) * hands).flatten(-2)
            for x in (query, key)
        )


class MatrixForEachPlace(Variant, exercise="swapped_rotary"):
    """One block-diagonal matrix for each token, a list for the tuple."""

    def swapped_rotary(query, key, positions):
        def matrix(place, d_head):
            blocks = []
            for i in range(0, d_head, 2):
                angle = place * 10_000 ** (-i / d_head)
                c, s = math.cos(angle), math.sin(angle)
                blocks.append(torch.tensor([[c, s], [-s, c]], dtype=torch.float64))
            return torch.block_diag(*blocks)

        turns = torch.stack(
            [torch.stack([matrix(p, query.shape[-1]) for p in row]) for row in positions.tolist()]
        )
        return [torch.einsum("bhld,blde->bhle", x, turns.to(x.dtype)) for x in (query, key)]


class BothAtOnce(Variant, exercise="swapped_rotary"):
    """Query and key stacked and turned together, angles in float32, features doubled."""

    def swapped_rotary(query, key, positions):
        both = torch.stack((query, key)).float()
        d_head = both.shape[-1]
        speed = torch.logspace(0, -4, d_head // 2 + 1)[:-1]
        angle = torch.einsum("bl,i->bli", positions.float(), speed).repeat_interleave(2, dim=-1)
        crossed = torch.stack((-both[..., 1::2], both[..., ::2]), dim=-1).flatten(-2)
        turned = both * angle.cos()[:, None] + crossed * angle.sin()[:, None]
        return turned[0], turned[1]
