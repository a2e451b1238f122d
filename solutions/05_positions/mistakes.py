"""The named mistakes of chapter 05: what a message can name, and what graders are tested with."""

import math

import torch
import torch.nn.functional as F

from classroom.exercise.answers import Correct


# 5.1 ----------------------------------------------------------------------------------------------
class CheckOrder(Correct, exercise="check_order_blindness"):
    def check_order_blindness(layer):
        x = torch.randn(7, 6, generator=torch.Generator().manual_seed(2))
        order = torch.tensor([4, 0, 5, 1, 6, 3, 2])
        assert torch.allclose(layer(x[order]), layer(x)[order], atol=1e-4)

    def order_counter_example(w_query, w_key, w_value):
        x = torch.zeros(2, len(w_value), dtype=w_value.dtype)
        x[0, 0] = 3.0
        return x


NothingAsserted = CheckOrder.but(
    "x = …\nassert …",
    "torch.manual_seed(4)\nx = torch.randn(7, 6)\n"
    "assert layer(x[torch.randperm(7)]).shape == layer(x).shape",
)
"""The test lets every layer pass: its assertion, if there is one, holds whether or not the layer
sees the order (a comparison of shapes, for example). Returning a value asserts nothing."""

AllTokensEqual = CheckOrder.but(
    "randn(7, 6, generator=torch.Generator().manual_seed(2))", "ones(7, 6)"
).but("tensor([4, 0, 5, 1, 6, 3, 2])", "tensor([4, 0, 2, 1, 6, 3, 5])")
"""All tokens are equal, so you cannot see which of them a layer mixes: use different tokens."""

OnlyReversed = CheckOrder.but(
    "order = …\nassert …", "assert torch.allclose(layer(x.flip(0)), layer(x).flip(0), atol=1e-4)"
)
"""Only the reversed order is tried, and reversing keeps every distance: try a permutation that
separates neighbours."""

OnlyRolled = CheckOrder.but(
    "order = …\nassert …",
    "assert torch.allclose(layer(x.roll(3, 0)), layer(x).roll(3, 0), atol=1e-4)",
)
"""The tokens are only shifted cyclically, and in a ring all keep their neighbours: try a
permutation that separates neighbours."""

FirstTokenStays = CheckOrder.but("tensor([4, 0, 5, 1, 6, 3, 2])", "tensor([0, 4, 2, 1, 6, 3, 5])")
"""The first token keeps its position in every permutation that is tried, so a layer that treats it
differently passes: move every token."""

OutputsInAnotherOrder = CheckOrder.but("(x)[order]", "(x)")
"""The two compared outputs are in different orders: those of permuted tokens are in the new order,
so permute the others in the same way."""

AssertsTheOpposite = CheckOrder.but("assert torch", "assert not torch")
"""The assertion requires that the layer sees the order; it must hold for layers that are blind to
it."""

ExactComparison = (
    CheckOrder.but("7, 6, generator", "60, 6, generator")
    .but("order = …", "order = torch.randperm(60, generator=torch.Generator().manual_seed(3))")
    .but("assert …", "assert torch.equal(layer(x[order]), layer(x)[order])")
)
"""Floating-point numbers are compared exactly: a sum computed in another order differs in its last
digits, so allow a tolerance."""

TwoEqualTokens = CheckOrder.but(
    "x = …\norder = …",
    "generator = torch.Generator().manual_seed(1)\n"
    "x = torch.randn(9, 6, generator=generator)\n"
    "order = torch.tensor([4, 0, 7, 2, 8, 1, 6, 3, 5])",
).but("x = torch.zeros(2, …\nreturn x", "return torch.ones(2, len(w_value), dtype=w_value.dtype)")
"""The two tokens are equal, so there is no order to see: use two different tokens."""

LastTokenStays = CheckOrder.but("tensor([4, 0, 5, 1, 6, 3, 2])", "tensor([1, 0, 2, 3, 4, 5, 6])")
"""The last token keeps its position in every permutation that is tried, so a layer that treats it
differently passes: move every token."""

OnlySumsCompared = CheckOrder.but(
    "(x[order]), layer(x)[order]", "(x[order]).sum(0), layer(x).sum(0)"
)
"""Only the sum over all tokens is compared, and it stays the same when tokens exchange their
outputs: compare token by token."""

ToleranceTooWide = CheckOrder.but("atol=1e-4", "atol=0.25")
"""The tolerance is so large that a real difference passes: rounding changes an output by far less
than 0.001."""

FeaturesPermuted = CheckOrder.but(
    "tensor([4, 0, 5, 1, 6, 3, 2])", "tensor([4, 0, 5, 1, 3, 2])"
).but("(x[order]), layer(x)[order]", "(x[:, order]), layer(x)[:, order]")
"""The features of each token are permuted instead of the tokens: a token is a row of `x`."""

ValuesWithoutTheirFeatures = CheckOrder.but(
    "(x[order]), layer(x)[order]", "(x[order]).norm(dim=-1), layer(x)[order].norm(dim=-1)"
)
"""Only one number for each token is compared, such as the norm of its output, and different outputs
can have the same one: compare all features."""

ThreeTokensOnly = CheckOrder.but("randn(7, 6", "randn(3, 6").but(
    "order = …\nassert …",
    "for order in ([0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]):\n"
    "    assert torch.allclose(layer(x[order]), layer(x)[order], atol=1e-4)",
)
"""Only three tokens are tried: all of them are neighbours on a circle, and none is the fourth or
later. Use more tokens."""

FirstFeatureOnly = CheckOrder.but(
    "(x[order]), layer(x)[order]", "(x[order])[:, 0], layer(x)[order, 0]"
)
"""Only the first feature of each output is compared, although the others may depend on the order:
compare all features."""

FirstOutputOnly = CheckOrder.but("(x[order]), layer(x)[order]", "(x[order])[0], layer(x)[order[0]]")
"""Only one token's output is compared, and a layer may give another token a wrong one: compare
all."""


# 5.2 ----------------------------------------------------------------------------------------------
class Sinusoids(Correct, exercise="sinusoidal_positions"):
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


ExponentPerEntry = Sinusoids.but(
    "exponent = …\nreturn …",
    "entry = torch.arange(d_model, dtype=torch.float64)\n"
    "angle = torch.arange(length)[:, None] / base ** (2 * entry / d_model)\n"
    "return torch.where(entry % 2 == 0, angle.sin(), angle.cos())",
)
"""The exponent grows from entry to entry, so a sine and its cosine belong to two different clocks:
entries 2i and 2i + 1 share the exponent 2i / d_model."""

FactorTwoForgotten = Sinusoids.but("0, d_model, 2,", "d_model // 2,")
"""The exponent is half as large as it should be: clock i has the exponent 2i / d_model, because i
counts pairs and d_model counts features."""

CountedFromOne = Sinusoids.but("(length)", "(1, length + 1)")
"""The first row is that of position 1; positions are counted from 0, where all sines are 0 and all
cosines 1."""

CosineFirst = Sinusoids.but("sin(), angle.cos", "cos(), angle.sin")
"""Even entries hold the cosine and odd ones the sine; exchange them."""

SinesInOneBlock = Sinusoids.but(
    "return torch.stack((angle.sin(), …", "return torch.cat((angle.sin(), angle.cos()), dim=-1)"
)
"""All sines come first and all cosines after them; here the sine and the cosine of one clock must
be neighbours."""

TableOfFewRows = Sinusoids.but("torch.arange(length)[:, None]", "torch.arange(5000)[:length, None]")
"""The rows come from a table of a fixed length, such as 5,000, so longer tables are cut off: compute
`length` rows."""

BaseIgnored = Sinusoids.but("base**exponent", "10_000**exponent")
"""The base is fixed at 10,000: use `base`."""

AnglesInSinglePrecision = Sinusoids.but(
    "exponent = …\nangle = …",
    "speed = base ** (-torch.arange(0, d_model, 2) / d_model)\n"
    "angle = torch.arange(length, dtype=torch.float32)[:, None] * speed",
)
"""The angles are rounded to float32. At positions in the thousands, the full rotations use up
several of its seven digits: compute the angles in float64 and round the result."""

ShiftedBackwards = Sinusoids.but("[c, -s], [s, c]", "[c, s], [-s, c]")
"""The matrix shifts rows back instead of forward: it is transposed, which rotates every clock the
other way."""

SignOfTheShiftLost = Sinusoids.but("= shift / base", "= abs(shift) / base")
"""A negative shift moves rows forward, like a positive one: keep its sign in the angle."""

NegativeShiftIgnored = Sinusoids.but("= shift / base", "= max(shift, 0) / base")
"""A negative shift gives the identity, as a loop over range(shift) does: it must move rows back,
so compute the angle from the shift, whatever its sign."""

ShiftInSinglePrecision = Sinusoids.but(
    "angle = shift / base ** (i / d_model)",
    "angle = float(torch.tensor(float(shift)) / torch.tensor(float(base)) ** (i / d_model))",
)
"""The angle of a large shift is rounded to float32, which has seven digits for all its full
rotations: compute it in float64."""

SpeedsInSinglePrecision = Sinusoids.but(
    "angle = shift / base ** (i / d_model)",
    "angle = float(shift / base ** torch.tensor(i / d_model, dtype=torch.float32))",
)
"""The exponents are float32 (as torch.arange divided by an integer is), and so is all that follows:
the angle of a large shift is wrong. Compute them in float64."""

OneAngleForAll = Sinusoids.but("shift / base ** (i / d_model)", "shift")
"""Every clock is rotated by the angle of the fastest; each has its own angle, shift / base^(2i /
d_model)."""

MultipliedInsteadOfDivided = Sinusoids.but("(length)[:, None] / base", "(length)[:, None] * base")
"""The position is multiplied by base^(2i / d_model), so the clocks get faster instead of slower:
divide by it."""

DoubledTwice = Sinusoids.but("exponent = torch", "exponent = 2 * torch")
"""The exponent is twice as large as it should be: an index that runs over the even entries is
already 2i."""

LastClockAtTheBase = Sinusoids.but(
    "exponent = …", "exponent = torch.linspace(0, 1, d_model // 2, dtype=torch.float64)"
)
"""The exponents run from 0 to 1, with 1 included; they should grow in steps of 2 / d_model and stop
one step before 1."""


# 5.5 ----------------------------------------------------------------------------------------------
class Learned(Correct, exercise="learned_positions"):
    def learned_positions(x, table, offset=0):
        end = offset + x.shape[1]
        if end > len(table):
            raise ValueError(
                f"offset + length must not exceed {len(table)} rows, got offset={offset}"
            )
        return x + table[offset:end]


OffsetIgnored = Learned.but("table[offset:end]", "table[: x.shape[1]]")
"""The first rows are added whatever the offset: the first token needs row number `offset`."""

WholeTableAdded = Learned.but("end = …\nreturn …", "return x + table")
"""The whole table is added, which works only for sequences as long as the table: take the rows that
the tokens need."""

SliceTooShort = Learned.but("end = …\nreturn …", "return x + table[offset : offset + x.shape[1]]")
"""The slice stops at the end of the table, so it has fewer rows than there are tokens, and if one
row is left, it is silently added to every token. Compare offset + length with the number of rows
first, and raise a ValueError."""

LastRowRepeated = Learned.but(
    "end = …\nreturn …",
    "places = torch.arange(offset, offset + x.shape[1]).clamp(max=len(table) - 1)\n"
    "return x + table[places]",
)
"""Tokens beyond the table get its last row, as if they all had the same position; raise a
ValueError instead."""

WrapsAroundAtTheEnd = Learned.but(
    "end = …\nreturn …",
    "places = torch.arange(offset, offset + x.shape[1]) % len(table)\nreturn x + table[places]",
)
"""Tokens beyond the table get its first rows again, as if the sequence started over; raise a
ValueError instead."""

OneRowBeyondTheTable = Learned.but("end > len", "end > 1 + len")
"""A sequence that needs one row more than the table has is not rejected: the last position that it
needs is offset + length - 1, and the last row is number len(table) - 1."""

LastRowRejected = Learned.but("end > len", "end >= len")
"""A sequence that ends exactly at the last row is rejected, but it fits."""

IndexErrorFromTorch = Learned.but(
    "end = …\nreturn …", "return x + table[torch.arange(offset, offset + x.shape[1])]"
)
"""The rows are selected by index, and torch raises its own error; raise a ValueError that states
the number of rows and the offset."""

AddedInPlace = Learned.but("return x + table[offset:end]", "x += table[offset:end]\nreturn x")
"""The rows are added to the input in place, which changes it for all later code: return a new
tensor."""

RowsAlongTheBatch = Learned.but("table[offset:end]", "table[offset : offset + x.shape[0], None]")
"""The rows run along the batch, so all tokens of a sequence get the same one: the tokens are the
second axis of x."""

RowBefore = Learned.but("table[offset:end]", "table[torch.arange(offset, end) - 1]")
"""Each token gets the row before its own, and position 0 gets the last (index -1): positions are
counted from 0, and `offset` is the position of the first token."""

OneRowForAll = Learned.but("offset:end", "offset")
"""All tokens get the row of the first one: each token needs the row of its own position."""

CountedFromOne = Learned.but("table[offset:end]", "table[offset + 1 : end + 1]")
"""The first token gets the row after its own: positions are counted from 0, and the first token has
the position `offset`."""


# 5.3 ----------------------------------------------------------------------------------------------
class Rotary(Correct, exercise="apply_rotary"):
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
        query, key = apply_rotary(query, positions), apply_rotary(key, positions)
        output = F.scaled_dot_product_attention(query, key, value)
        return output.transpose(1, 2).flatten(-2)


TableOfFewPositions = Rotary.but(
    "angle = …", "angle = (torch.arange(4096)[:, None] / base**exponent)[positions][:, None]"
)
"""The angles come from a table with a fixed number of rows, and positions may lie beyond its last
row: compute the angles from `positions`."""

PositionsIgnored = Rotary.but(
    "angle = …", "angle = torch.arange(x.shape[-2])[:, None] / base**exponent"
)
"""The positions are assumed to be 0, 1, 2, …: use the positions that are passed."""

FirstSequenceForAll = Rotary.but("angle = …", "angle = positions[0][:, None] / base**exponent")
"""The positions of the first sequence are used for the whole batch; each sequence has its own."""

BaseIgnored = Rotary.but("base**exponent", "10_000**exponent")
"""The base is fixed at 10,000: use `base`."""

FactorTwoForgotten = Rotary.but("0, x.shape[-1], 2", "x.shape[-1] // 2")
"""The exponent is half as large as it should be: pair i has the exponent 2i / d_head, because i
counts pairs and d_head counts features."""

RotatedBackwards = Rotary.but(
    "(even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()), dim=-1",
    "(even * angle.cos() - odd * -angle.sin(), even * -angle.sin() + odd * angle.cos()),\ndim=-1,",
)
"""The pairs are rotated the other way: in this exercise (a, b) becomes (a cos − b sin, a sin + b
cos)."""

HalvesPairedInsteadOfNeighbours = (
    Rotary.but("x[..., 0::2], x[..., 1::2]", "x.chunk(2, dim=-1)")
    .but("stack", "cat")
    .but("flatten(-2).to", "to")
)
"""The features i and i + d_head / 2 are paired; in this layout, the neighbours 2i and 2i + 1
are."""

HeadsTakenForPositions = Rotary.but(
    "angle = …", "angle = (torch.arange(x.shape[1])[:, None] / base**exponent)[None, :, None]"
)
"""The angles run along the axis of the heads instead of that of the tokens: in (batch, heads,
length, d_head) the tokens are the second-to-last axis."""

HeadsSplitAcrossTokens = Rotary.but(
    "(x @ w).unflatten(-1, (num_heads, -1)).transpose(1, 2)",
    "(x @ w).reshape(len(x), num_heads, x.shape[1], -1)",
)
"""The heads are split by view or reshape to (batch, heads, length, d_head) without a transpose,
which mixes tokens and features: split the features first, then swap two axes."""

HeadsMergedWithoutATranspose = Rotary.but(
    "output.transpose(1, 2).flatten(-2)", "output.reshape(*x.shape[:2], -1)"
)
"""The heads are concatenated without swapping the axes back, which mixes tokens and heads:
transpose before you flatten."""

HeadsNeverTransposed = Rotary.but(
    "(x @ w).unflatten(-1, (num_heads, -1)).transpose(1, 2)",
    "(x @ w).reshape(len(x), num_heads, x.shape[1], -1)",
).but("output.transpose(1, 2).flatten(-2)", "output.reshape(*x.shape[:2], -1)")
"""The heads are split and concatenated by view or reshape alone, which mixes tokens and features:
split the last axis into (num_heads, d_head) and swap two axes; swap them back at the end."""

AnglesInHalfPrecision = Rotary.but(
    "angle = (positions[..., None] / base**exponent)[:, None]",
    "speed = (1 / base**exponent).to(x.dtype)\n"
    "angle = (positions[..., None].to(x.dtype) * speed)[:, None]",
)
"""The angles are rounded to the half precision of x, which keeps 2 or 3 digits: beyond a few
hundred tokens, the angles are far from correct. Compute the angles in float32 or
float64."""

ValuesRotatedToo = Rotary.but(
    "key = apply_rotary(query, positions), apply_rotary(key, positions)",
    "key, value = (apply_rotary(heads, positions) for heads in (query, key, value))",
)
"""The values are rotated too, so the output depends on absolute positions: positions are for the
scores, so rotate only queries and keys."""

KeysNotRotated = Rotary.but("query, key = …", "query = apply_rotary(query, positions)")
"""Only the queries are rotated: a score then depends on the position of the query, not on its
distance from the key. Rotate both."""

RotatedBeforeTheSplit = Rotary.but(
    "query, key, value = (…\nquery, key = …",
    """
    query, key = (apply_rotary((x @ w)[:, None], positions)[:, 0] for w in (w_query, w_key))
    query, key, value = (
        heads.unflatten(-1, (num_heads, -1)).transpose(1, 2)
        for heads in (query, key, x @ w_value)
    )
    """,
)
"""Queries and keys are rotated before they are split into heads, so the first heads get all the
fast clocks and the last heads the slow ones: split first, so that each head has all clocks."""

AnglesOfTheOtherLayout = Rotary.but(
    "even, odd = …\nreturn …",
    "angle = angle.repeat(1, 1, 1, 2)\n"
    "crossed = torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)\n"
    "return (x * angle.cos() + crossed * angle.sin()).to(x.dtype)",
)
"""Neighbours are paired, but the angles are arranged for halves, so the two features of a pair get
different angles: place each angle twice, side by side."""

SecondFromTheRotatedFirst = Rotary.but(
    "even, odd = …\nreturn …",
    "x = x.clone()\n"
    "x[..., 0::2] = x[..., 0::2] * angle.cos() - x[..., 1::2] * angle.sin()\n"
    "x[..., 1::2] = x[..., 0::2] * angle.sin() + x[..., 1::2] * angle.cos()\n"
    "return x",
)
"""The second feature of a pair is computed from the already rotated first one: compute both from
the original pair."""

PairsNotInterleavedAgain = Rotary.but("turned = torch.stack", "return torch.cat").but(
    ")\nreturn turned.flatten(-2).to(x.dtype)", ").to(x.dtype)"
)
"""The rotated features are arranged in two halves, all first features before all second ones: put
each pair back at its original indices, side by side."""

OneAngleForAll = Rotary.but(
    "angle = …", "angle = positions[:, None, :, None].double() + 0 * exponent"
)
"""All pairs are rotated by the angle of the fastest one, p radians at position p; pair i rotates
by p / base^(2i / d_head)."""

ExponentTwiceAsLarge = Rotary.but("torch.arange", "2 * torch.arange")
"""The exponent is twice as large as it should be: an index that runs over the even features is
already 2i, and it is divided by the full d_head."""

CountedFromTheFirstToken = Rotary.but(
    "positions[..., None]", "(positions - positions[:, :1])[..., None]"
)
"""Positions are counted from the first token of each sequence. Scores within that sequence do not
change, but scores with keys from an earlier call do: use the positions that are passed."""

NothingRotated = Rotary.but("query, key = …", "")
"""The layer attends without any rotation: rotate queries and keys by their positions."""


# 5.9 ----------------------------------------------------------------------------------------------
class Convert(Correct, exercise="convert_rotary"):
    def convert_rotary(weight, num_heads, to):
        shape = (2, -1) if to == "interleaved" else (-1, 2)
        heads = weight.unflatten(0, (num_heads, *shape))
        return heads.transpose(1, 2).flatten(0, 2)


HeadsForgotten = Convert.but(
    "heads = …\nreturn …", "return weight.unflatten(0, shape).transpose(0, 1).flatten(0, 1)"
)
"""The rows are permuted as if all heads were one, which mixes heads: permute the rows of each head
separately."""

DirectionsExchanged = Convert.but('"interleaved"', '"half_split"')
"""The two directions are exchanged: neighbours become halves when `to` is “half_split”. With four
features per head, you would not notice it."""

OneDirectionOnly = Convert.but(
    "shape = …\nheads = …", "heads = weight.unflatten(0, (num_heads, -1, 2))"
)
"""The rows go from neighbours to halves for both values of `to`; the way back is another
permutation."""

ColumnsPermuted = Convert.but("0, (num_heads, *shape)", "-1, (num_heads, *shape)").but(
    "1, 2).flatten(0, 2", "-2, -1).flatten(-3"
)
"""The columns, the input features of the projection, are permuted; the pairs are among its outputs,
the rows."""

SecondFeaturesFirst = Convert.but(
    "shape = …\nreturn …",
    """
    if to == "interleaved":
        first, second = weight.unflatten(0, (num_heads, 2, -1)).unbind(1)
        return torch.stack((second, first), dim=2).flatten(0, 2)
    pairs = weight.unflatten(0, (num_heads, -1, 2))
    return torch.cat((pairs[:, :, 1], pairs[:, :, 0]), dim=1).flatten(0, 1)
    """,
)
"""The odd features come before the even ones; the first feature of each pair should come
first."""

BiasAlwaysToHalfSplit = Convert.but(
    "heads = …",
    "if weight.dim() == 1:\n    shape = (-1, 2)\nheads = weight.unflatten(0, (num_heads, *shape))",
)
"""A bias goes from neighbours to halves for both values of `to`: permute it like the rows of its
weight."""

HeadsInterleaved = Convert.but("num_heads, *shape", "*shape, num_heads").but(
    "1, 2).flatten(", "0, 1).flatten("
)
"""The rows are treated as if the heads alternated; head 0 has the first d_head rows, head 1 the
next."""

NothingMoved = Convert.but(
    "shape = …\nreturn …", "return weight.unflatten(0, (num_heads, 2, -1)).flatten(0, 2)"
)
"""The rows come back in their original order: creating and removing axes moves nothing unless they
are exchanged in between."""


# 5.6 ----------------------------------------------------------------------------------------------
class Alibi(Correct, exercise="alibi_bias"):
    def alibi_slopes(num_heads):
        below = 2 ** (num_heads.bit_length() - 1)
        slopes = [2 ** (-8 * h / below) for h in range(1, below + 1)]
        slopes += [2 ** (-4 * h / below) for h in range(1, 2 * below, 2)]
        return torch.tensor(slopes[:num_heads], dtype=torch.float64)

    def alibi_bias(num_heads, q_len, k_len):
        distance = torch.arange(k_len - q_len, k_len)[:, None] - torch.arange(k_len)
        bias = -alibi_slopes(num_heads)[:, None, None] * distance
        return bias.masked_fill(distance < 0, -math.inf)


DistancesCutOff = Alibi.but("None] * distance", "None] * distance.clamp(max=511)")
"""All distances beyond some number count as that number, as with a table of a fixed size: the bias
must keep falling."""

DistanceRewarded = Alibi.but("-alibi_slopes", "alibi_slopes")
"""The sign is wrong: the farther away a key, the more its score rises. Subtract instead."""

LaterKeysVisible = Alibi.but("* distance", "* distance.abs()").but(
    "bias.masked_fill(distance < 0, -math.inf)", "bias"
)
"""The scores of later keys are lowered by their distance, like those of earlier keys, so the future
is visible: use minus infinity."""

LaterKeysPreferred = Alibi.but("bias.masked_fill(distance < 0, -math.inf)", "bias")
"""Keys after the query have a negative distance, so their score is raised: use minus infinity."""

QueriesAlignedWithTheFirstKeys = Alibi.but("k_len - q_len, k_len", "q_len")
"""The queries are aligned with the first keys; if keys come from a cache, the queries are the last
tokens."""

EvenSlopesAdded = Alibi.but("range(1, 2 * below, 2)", "range(2, 2 * below + 1, 2)")
"""The second, fourth, … slopes of the longer list are added, which are those of the shorter one
again: add the first, third, fifth, …, which lie between them."""

SlopesSorted = Alibi.but(
    "return torch.tensor(slopes[:num_heads], dtype=torch.float64)",
    "slopes = sorted(slopes[:num_heads], reverse=True)\n"
    "return torch.tensor(slopes, dtype=torch.float64)",
)
"""The slopes are sorted; by the rule, those of the power of two come first, then the added ones."""

KeysInRows = Alibi.but(
    "return bias.masked_fill(distance < 0, -math.inf)",
    "bias = bias.masked_fill(distance < 0, -math.inf)\nreturn bias.transpose(-2, -1)",
)
"""Rows and columns are exchanged: a row belongs to a query."""

FirstSlopeIsOne = Alibi.but("1, below + 1", "below").but("1, 2 * below", "0, 2 * below")
"""The slopes start with 1: count heads from 1 in the exponent, so that the first slope is the
ratio."""

RatioIsAlwaysHalf = Alibi.but(
    "below = …\nreturn …", "return 2.0 ** -torch.arange(1, num_heads + 1, dtype=torch.float64)"
)
"""The slopes are 1/2, 1/4, 1/8, … for any number of heads, which is correct for eight: with n heads
the ratio is 2^(−8/n), so that the last slope is 2^(−8)."""

EvenlySpacedSlopes = Alibi.but(
    "below = …\nreturn …", "return torch.arange(num_heads, 0, -1, dtype=torch.float64) / num_heads"
)
"""The slopes are evenly spaced; they should be geometric, each the same fraction of the one
before."""

OneFormulaForAnyNumberOfHeads = Alibi.but(
    "below = …\nreturn …",
    "return 2.0 ** (-8 * torch.arange(1, num_heads + 1, dtype=torch.float64) / num_heads)",
)
"""The formula for powers of two is used for any number of heads; for other numbers, take the slopes
for the power of two below and add every other slope for the power of two above."""

PowerStrictlyBelow = Alibi.but(
    "below = …", "below = 1\nwhile 2 * below < num_heads:\n    below *= 2"
)
"""The power of two is below num_heads even if num_heads is itself a power of two, so the heads get
one another's slopes: take the largest power of two that is not above num_heads."""

SlopesCutFromThePowerAbove = Alibi.but(
    "below = …\nreturn …",
    "above = 2 ** math.ceil(math.log2(num_heads))\n"
    "return 2.0 ** (-8 * torch.arange(1, num_heads + 1, dtype=torch.float64) / above)",
)
"""For other numbers of heads, the slopes for the power of two above are truncated; take those for
the power below, then add every other one for the power above."""

FilledWithoutSkipping = Alibi.but("range(1, 2 * below, 2)", "range(1, 2 * below)")
"""The missing slopes are taken one after another from the list for twice the power; every other one
is already there, so take the first, third, …"""

ExponentCutOff = Alibi.but("2 ** (-8 * h / below)", "2.0 ** (-(8 // below) * h)").but(
    "2 ** (-4 * h / below)", "2.0 ** (-(4 // below) * h)"
)
"""8 / n is computed by integer division, which gives 0 from 16 heads on, and all slopes are 1: use
/ instead of //."""

AtLeastTwoHeads = Alibi.but("below = …", "below = 2\nwhile 2 * below <= num_heads:\n    below *= 2")
"""The power of two starts at 2, so a single head gets the first of two slopes: 1 is a power of two,
too."""

LargeNumberForInfinity = Alibi.but("-math.inf", "-1e9")
"""Later keys get a large negative number, which hides them only as long as scores are small: use
minus infinity."""

MaskIgnoresTheCache = Alibi.but(
    "distance < 0", "torch.ones(q_len, k_len, dtype=torch.bool).triu(1)"
)
"""Distances use the positions of the queries, but the mask is that of queries whose positions start
at 0: use the positions of the queries for both."""

DistanceFromTheLastKey = Alibi.but("None] * distance", "None] * (k_len - 1 - torch.arange(k_len))")
"""Distances are counted from the last key in every row. The softmax would give the same weights,
as each row is off by a constant, but the exercise counts from each query's position."""


# 5.10 ---------------------------------------------------------------------------------------------
class InSpace(Correct, exercise="rotary_in_space"):
    def patch_coordinates(height, width):
        rows, columns = torch.arange(height), torch.arange(width)
        return torch.cartesian_prod(rows, columns).double()

    def rotary_in_space(x, coordinates, base=100.0):
        axes = coordinates.shape[-1]
        width = x.shape[-1] // axes
        exponent = torch.arange(0, width, 2, dtype=torch.float64) / width
        angle = (coordinates[..., None] / base**exponent).flatten(-2)
        even, odd = x[..., 0::2], x[..., 1::2]
        cos, sin = angle.cos(), angle.sin()
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


ColumnByColumn = InSpace.but("(rows, columns)", "(columns, rows).flip(-1)")
"""The patches are numbered down the columns; in reading order, the column changes fastest."""

ColumnBeforeRow = InSpace.but("double", "flip(-1).double")
"""The two coordinates of a patch are exchanged: the row comes first."""

DividedByTheHeight = InSpace.but(
    "rows, columns = …\nreturn …",
    "index = torch.arange(height * width)\n"
    "return torch.stack((index // height, index % height), dim=-1).double()",
)
"""The index of a patch is divided by the height; a row holds as many patches as the image is wide,
so divide by the width."""

IndicesInsteadOfCoordinates = InSpace.but(
    "angle = (coordinates[..., None] / base**exponent).flatten(-2)",
    "angle = (\n"
    "    torch.arange(x.shape[-2])[:, None, None].expand(*coordinates.shape[-2:], 1)\n"
    "    / base**exponent\n"
    ").flatten(-2)",
)
"""The points are rotated by their index in the sequence, as tokens are; use their coordinates."""

EveryOtherFeature = InSpace.but(
    "even, odd = …",
    "x = x.unflatten(-1, (width, axes)).mT.flatten(-2)\neven, odd = x[..., 0::2], x[..., 1::2]",
)
"""Each axis takes every axes-th feature (x[..., axis::axes]); the first d_head / axes features
belong to the first axis, the next ones to the second."""

CoordinatesAdded = InSpace.but(
    "angle = (coordinates[..., None] / base**exponent).flatten(-2)",
    "angle = (\n"
    "    coordinates.sum(-1, keepdim=True)[..., None].expand(*coordinates.shape, 1)\n"
    "    / base**exponent\n"
    ").flatten(-2)",
)
"""The coordinates are added up, so points on one diagonal get the same rotation: each axis rotates
its own part."""

FirstAxisOnly = InSpace.but(
    "angle = (coordinates[..., None] / base**exponent).flatten(-2)",
    "angle = (coordinates[..., :1, None].expand(*coordinates.shape, 1) / base**exponent).flatten(\n"
    "    -2\n"
    ")",
)
"""All parts are rotated by the first coordinate: each part has its own."""

ClocksOfTheWholeHead = InSpace.but(
    "exponent = torch.arange(0, width, 2, dtype=torch.float64) / width",
    "exponent = torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]\n"
    "exponent = exponent.unflatten(0, (axes, -1))",
)
"""The exponents run through the whole head, so the first axis gets the fast clocks and the last
axis the slow ones: each axis starts with the fastest clock, and 2i is divided by the width of a
part."""

DividedByTheWholeHead = InSpace.but(
    "exponent = …", "exponent = torch.arange(0, width, 2, dtype=torch.float64) / x.shape[-1]"
)
"""The exponent is divided by the width of the whole head; divide it by the width of the axis's
part."""

CoordinatesTruncated = InSpace.but("coordinates[..., None]", "coordinates.long()[..., None]")
"""The coordinates are truncated to integers; coordinates are real numbers, and a clock can have any
angle."""

AxesInterleaved = InSpace.but("exponent).flatten(", "exponent).transpose(-2, -1).flatten(")
"""Neighbouring pairs belong to different axes; each axis has one block of neighbouring features."""

LastAxisFirst = InSpace.but("coordinates[..., None]", "coordinates.flip(-1)[..., None]")
"""The first part of the features is rotated by the last coordinate: parts and coordinates are in
the same order."""

HalvesPairedInAPart = InSpace.but(
    "axes = …\nreturn …",
    """
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
    """,
)
"""Within the part of an axis, the features i and i + width / 2 are paired; pair neighbours
instead."""

DistanceFromTheOrigin = InSpace.but(
    "axes = …\nangle = …",
    "exponent = torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]\n"
    "angle = coordinates.norm(dim=-1, keepdim=True) / base**exponent",
)
"""All features are rotated by the distance from the origin, so the scores depend on the origin:
rotate each part by one coordinate."""


# 5.8 ----------------------------------------------------------------------------------------------
class Extrapolation(Correct, exercise="extrapolation"):
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
        return by_position, breaks_at, perplexity


ToleranceAsAFraction = Extrapolation.but("before + tolerance", "before * (1 + tolerance)")
"""The tolerance is treated as a fraction of the loss; it is in nats: add it."""

AveragedOverPositions = Extrapolation.but("by_position,", "losses.mean(dim=1),")
"""The mean is taken over the positions of each window, so the positions are lost: average over the
windows, which are axis 0."""

PerplexityAveraged = Extrapolation.but(
    "by_position.cumsum(0) / torch.arange(1, length + 1)).exp(",
    "losses.exp().mean(dim=0)).cumsum(0) / torch.arange(1, length + 1",
)
"""The exponential is taken before the mean: a perplexity is the exponential of the mean loss."""

PerplexityOfOnePosition = Extrapolation.but("perplexity = …", "perplexity = by_position.exp()")
"""This is the perplexity of each position alone; the perplexity of t tokens uses the mean loss of
the first t tokens."""

PerplexitiesOfWindowsAveraged = Extrapolation.but(
    "(by_position.cumsum(0) / torch.arange(1, length + 1)).exp()",
    "(losses.cumsum(1) / torch.arange(1, length + 1)).exp().mean(dim=0)",
)
"""The perplexity is computed for each window and then averaged over the windows: take the mean loss
over all windows first, and its exponential last."""

TwoToTheLoss = Extrapolation.but(
    "perplexity = …", "perplexity = 2 ** (by_position.cumsum(0) / torch.arange(1, length + 1))"
)
"""The losses are in nats, so the base of the perplexity is e; 2 is for bits."""

OneHardTokenCountsAsABreak = Extrapolation.but(
    "if …", "if by_position[start] > before + tolerance:"
)
"""A single position above the limit counts as the break, and one hard token is enough for that: use
the mean of a whole window."""

ComparedWithAllTrainedPositions = Extrapolation.but(
    "by_position[trained_length - window : trained_length]", "by_position[:trained_length]"
)
"""The limit is set by the mean over all trained positions; the first tokens have little context and
raise it. Compare with the last trained window."""

ZeroForNoBreak = Extrapolation.but("breaks_at = length", "breaks_at = 0")
"""If the limit is never exceeded, 0 is returned, which would mean an immediate failure: return the
length."""

TrainedLengthForNoBreak = Extrapolation.but("breaks_at = length", "breaks_at = trained_length")
"""If the limit is never exceeded, the trained length is returned, which would mean that the model
breaks at once (argmax of flags that are all False is 0): return the length of the sequences."""

CountedFromTheTrainedLength = Extrapolation.but(
    "breaks_at = start", "breaks_at = start - trained_length"
)
"""The position is counted from the end of the trained length; count from the first token."""

LastInsteadOfFirst = Extrapolation.but("breaks_at = start\nbreak", "breaks_at = start")
"""The last bad window is returned; return the first one."""

ComparedWithTheLastToken = Extrapolation.but(
    "before = …", "before = by_position[trained_length - 1]"
)
"""The limit is set by the last trained position alone, and one easy or hard token changes it: take
the mean of a whole window there, too."""

ComparedWithTheWindowBefore = Extrapolation.but(
    "before + tolerance", "by_position[start - window : start].mean() + tolerance"
)
"""Each window is compared with the window before it, which may itself be bad already, or happen to
be easy: compare all with the last trained window."""

WindowsAcrossTheTrainedLength = Extrapolation.but(
    "range(trained_length, length", "range(trained_length - window + 1, length"
)
"""Windows that begin before the trained length are tried, too, and their last tokens may already be
bad: begin with the window that starts at trained_length."""

FirstWindowSkipped = Extrapolation.but(
    "range(trained_length, length", "range(trained_length + 1, length"
)
"""The window that starts at trained_length is not tried; a model may fail at once."""

EasierTextCountsAsABreak = Extrapolation.but(
    "if …", "if (by_position[start : start + window].mean() - before).abs() > tolerance:"
)
"""A loss that falls by more than the tolerance counts as a break: only a higher loss does."""

ExactlyTheToleranceCounts = Extrapolation.but("> before + tolerance", ">= before + tolerance")
"""A window that is worse by exactly the tolerance counts as a failure: it must be worse by more."""

ToleranceForgotten = Extrapolation.but("before + tolerance", "before")
"""The limit is the mean of the last trained window alone, which the next hard text exceeds: add the
tolerance to it."""

OnlyAdjacentWindows = Extrapolation.but("window + 1", "window + 1, window")
"""Only windows that do not overlap are examined, so the failure may be found too late: a window may
start at any position."""

IncompleteWindowsCounted = Extrapolation.but("length - window + 1", "length")
"""At the end, incomplete windows are examined, where one hard token is enough: only whole windows
count."""

LastWindowForgotten = Extrapolation.but("window + 1", "window")
"""The last whole window is omitted: it starts at length - window, and a range excludes its end."""


# 5.7 ----------------------------------------------------------------------------------------------
class Mended(Correct, exercise="mended_positions"):
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
        return x * angle.cos() + torch.cat((-second, first), dim=-1) * angle.sin()


StillCountedFromOne = Mended.but("(length)", "(1, length + 1)")
"""The exponent is fixed, but the first row is still that of position 1: count from 0."""

ExponentStillPerEntry = Mended.but("(entry - entry % 2)", "2 * entry")
"""The rows start at 0 now, but the exponent still grows from entry to entry: a sine and its cosine
need the same exponent."""

TwoDroppedFloorForgotten = Mended.but("(entry - entry % 2)", "entry")
"""Entry j now has the exponent j / d_model, right for the sines; each cosine needs the exponent
of the sine before it, so round j down to an even number."""

FloorWithoutDoubling = Mended.but("entry - entry % 2", "entry // 2")
"""The exponent is ⌊j / 2⌋ / d_model, half of what it should be: pair i has 2i / d_model."""

AnglesStillRepeatedInPairs = Mended.but("repeat(1, 2)", "repeat_interleave(2, dim=-1)")
"""The angles are still arranged for neighbours, while the features are paired by halves: the two
features of a pair need the same angle."""

MovedToTheOtherLayout = (
    Mended.but("repeat(1, 2)", "repeat_interleave(2, dim=-1)")
    .but("x.chunk(2, dim=-1)", "x[:, 0::2], x[:, 1::2]")
    .but("cat((-second, first), dim=-1)", "stack((-second, first), dim=-1).flatten(1)")
)
"""Neighbours are now rotated together, which is correct in the other layout: this layout pairs the
features i and i + d_head / 2."""

SignOfTheOtherHalf = Mended.but("-second, first", "second, -first")
"""The minus sign has moved to the other half, so every pair is rotated backwards."""

NothingFixed = Mended.but("(entry - entry % 2)", "2 * entry").but("(length)", "(1, length + 1)")
"""The table is unchanged: the exponent grows from entry to entry, and the first row is that of
position 1."""

SinesMovedToTheFront = Mended.but(
    "entry = …\nexponent = …", "exponent = torch.arange(0, d_model, 2).double() / d_model"
).but("where(entry % 2 == 0, angle.sin(), angle.cos())", "cat((angle.sin(), angle.cos()), dim=1)")
"""The numbers are correct, but in another order: all sines now come first; in this table each sine
is beside its cosine."""


# 5.4 --------------------------------------------------------------------------------------------
class Swapped(Correct, exercise="swapped_rotary"):
    def swapped_rotary(query, key, positions):
        d_head = query.shape[-1]
        speed = 10_000 ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
        angle = positions[:, None, :, None] * speed

        def turned(x):
            a, b = x[..., 0::2], x[..., 1::2]
            cos, sin = angle.cos(), angle.sin()
            return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)

        return turned(query), turned(key)


NothingRotated = Swapped.but(
    "def …\n    return turned(query), …",
    "def swapped_rotary(query, key, positions):\n    return query, key",
)
"""Queries and keys come back unchanged, so the model no longer sees how far apart tokens are."""

BaseTooSmall = Swapped.but("10_000 **", "1_000.0 **")
"""The base is 1,000, so all pairs but the first rotate too fast: the model was trained with
10,000."""

KeysNotRotated = Swapped.but("turned(key)", "key")
"""Only the queries are rotated: a score then depends on the position of the query, not on its
distance from the key. Rotate both."""

KeysRotatedTheOtherWay = Swapped.but("turned(x)", "turned(x, angle=angle)").but(
    "query), turned(key", "query, angle), turned(key, -angle"
)
"""The keys are rotated the other way, so a score depends on the sum of the two positions, not on
their difference: rotate both the same way."""

KeysOnePositionTooFar = Swapped.but("turned(x)", "turned(x, angle=angle)").but(
    "query), turned(key", "query, angle), turned(key, angle + speed"
)
"""The keys are rotated by one position more than the queries, so each distance is off by one: the
query and the key of a token have the same position."""

KeyReturnedFirst = Swapped.but("query), turned(key", "key), turned(query")
"""The two results are exchanged: return the query first."""

RotatedBackwards = Swapped.but("angle = positions", "angle = -positions")
"""Both are rotated the other way, so earlier tokens look like later ones: this model was trained
with (a, b) becoming (a cos − b sin, a sin + b cos)."""

WidthOfTheTrainedModel = Swapped.but(
    "speed = …",
    "speed = 10_000 ** (-torch.arange(0, 32, 2, dtype=torch.float64) / 32)\n"
    "speed = speed[: d_head // 2]",
)
"""The speeds are those of heads with 32 features, whatever the width is: compute them from the last
axis of the query."""

TableOfFewPositions = Swapped.but(
    "angle = …", "angle = (torch.arange(512)[:, None] * speed)[positions][:, None]"
)
"""The angles come from a table with a fixed number of rows, and a sequence may start anywhere, even
beyond the last row: compute the angles from `positions`."""

HalvesPairedInsteadOfNeighbours = Swapped.but("a, b = …", "a, b = x.chunk(2, dim=-1)").but(
    "return torch.stack((a …", "return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)"
)
"""The features i and i + d_head / 2 are paired; this model was trained with neighbours."""

AnglesOfTheOtherLayout = Swapped.but(
    "angle = …", "angle = (positions[:, None, :, None] * speed).repeat(1, 1, 1, 2)"
).but(
    "a, b = …\nreturn …",
    "crossed = torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)\n"
    "return x * angle.cos() + crossed * angle.sin()",
)
"""Neighbours are paired, but the angles are arranged for halves, so the two features of a pair get
different angles: place each angle twice, side by side."""

BaseOfAnotherModel = Swapped.but("speed = 10_000", "speed = 500_000")
"""The base is 500,000, as in some larger models; this one was trained with 10,000."""

FactorTwoForgotten = Swapped.but("0, d_head, 2", "d_head // 2")
"""The exponent is half as large as it should be: pair i has the exponent 2i / d_head, because i
counts pairs and d_head counts features."""

AnglesInHalfPrecision = Swapped.but(
    "angle = …", "angle = (positions[:, None, :, None].bfloat16() * speed.bfloat16()).double()"
)
"""The angles are rounded to half precision. The loss hardly shows it, but the logits do: compute
the angles in float32 or float64."""

PositionsIgnored = Swapped.but(
    "positions[:, None, :, None]", "torch.arange(query.shape[-2])[:, None]"
)
"""The positions are assumed to be 0, 1, 2, …: use those that are passed, which may have
gaps."""

FirstSequenceForAll = Swapped.but("positions[:, None, :, None]", "positions[0][:, None]")
"""The positions of the first sequence are used for the whole batch; each sequence has its own."""
