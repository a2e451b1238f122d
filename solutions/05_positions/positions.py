# %% [markdown]
# # Positions
#
# This notebook goes with chapter 5 of *Attention from the Ground Up*. You write a test for whether a layer sees the order of its tokens, give tokens a place in four ways (clocks, a learned table, turned queries and keys, scores lowered by distance), carry the third way over to pictures and points in space, find the place where a model trained on short texts breaks on long ones, mend two published formulas, and put your own turn into a trained model.
#
# **How it works.** Write your code where it says `YOUR CODE HERE`, run the cell, then run the check under it. A check tells you what it saw, what it expected, and, if it recognises the mistake, which one you made. It draws new numbers for every test, so there is no answer to hard-code. Points count test by test: half an exercise earns half its points. When your work is graded, the same checks may run with other numbers. Checks mostly pass float64 tensors: keep the dtype of what you are given, and let gradients flow back through it, since what you write is going to be trained.
#
# **Conventions.** A token is a row. Positions are counted from 0. Queries, keys and values of several heads have the shape `(batch, heads, length, d_head)`. A *clock* is a pair of features that turns with the position: clock $i$ of a vector of width $d$ turns by $1/\text{base}^{2i/d}$ radians per position, so clock 0 turns by one radian and the last one takes thousands of positions for a round.

# %%
import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import nn

from classroom import check

# %% [markdown]
# {{exercise check_order_blindness}}
#
# Attention is a weighted average, and an average does not care in which order its terms come. So a layer of attention without positions is blind to the order: permute its tokens, and its outputs come out permuted the same way, otherwise unchanged. Of "dog bites man" and "man bites dog" it makes the same three vectors.
#
# Write the test for that. `check_order_blindness` gets `layer`, a function of `x` of the shape `(length, d_model)` that returns the same shape; any length and width will do. It calls the layer on tokens of your choice, and asserts what holds for a layer that is blind. It must let every blind layer pass, however it rounds, and stop each one that sees the order in some way, however faintly, or hands one token the output of another.
#
# A causal mask is a way to see it: the first token sees itself, the second one both. Write `order_counter_example`: two tokens on which causal attention with the maps that you are given is *not* blind. Some output must move by more than 0.01.
#
# *Before you code:* which permutation of three tokens keeps all distances between them? Which one keeps every token's neighbours, if the last and the first count as neighbours? A layer that reads only such things would get past a test that tries only such permutations.
#
# *And for the counter-example:* what is the output of causal attention for a token of zeros that comes second, whatever the maps? And if it comes first?
#
# <details><summary>Answers, after you have tried</summary>
#
# Reversing them keeps all distances. Moving all on by one, the last one to the front, keeps the neighbours (of three tokens, any permutation does).
#
# For the counter-example: zeros that come second ask every key with score 0, and get half the value of the first token. Zeros that come first see only themselves and get 0.
# </details>
#
# Below are two layers to try your test on: it should let the first one pass and stop the second.
#
# <details><summary>Hint: what to compare</summary>
#
# With `order`, a tensor of indices such as `torch.tensor([2, 0, 1])`, `x[order]` is permuted. Compare `layer(x[order])` with `layer(x)[order]`.
# </details>
# <details><summary>Hint: rounding</summary>
#
# A sum taken in another order differs in the last digit: `torch.allclose(a, b, atol=1e-4)`.
# </details>


# %%
def minus_the_mean(x):
    return x - x.mean(dim=0)


def minus_the_token_before(x):
    return torch.cat((x[:1], x[1:] - x[:-1]))


# %% exercise="check_order_blindness"
def check_order_blindness(layer) -> None:
    """Raise AssertionError if the layer does more to permuted tokens than permute its outputs."""
    ### BEGIN SOLUTION
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 6, generator=generator, dtype=torch.float64)
    order = torch.tensor([3, 6, 1, 4, 0, 2, 5])
    moved = (layer(x[order]) - layer(x)[order]).abs().max()
    assert moved < 1e-4, f"in another order some output moves by {moved}"
    ### END SOLUTION


def order_counter_example(
    w_query: torch.Tensor, w_key: torch.Tensor, w_value: torch.Tensor
) -> torch.Tensor:
    """Return two tokens, (2, d_model), whose order causal attention with these maps sees.

    Shapes: w_query and w_key (d_model, d_head), w_value (d_model, d_value). The attention is
    scaled, has one head and no output map.
    """
    ### BEGIN SOLUTION
    # Zeros that come second see the average of both values; zeros that come first see zeros.
    something = torch.ones(len(w_value), dtype=w_value.dtype)
    return torch.stack((something, torch.zeros_like(something)))
    ### END SOLUTION


# %% [markdown]
# {{exercise sinusoidal_positions}}
#
# The first transformer added to each token a row of numbers that says where it stands: the hands of $d/2$ clocks, from fast to slow.
#
# $$\text{PE}(p)_{2i} = \sin\frac{p}{\text{base}^{2i/d}}, \qquad \text{PE}(p)_{2i+1} = \cos\frac{p}{\text{base}^{2i/d}}$$
#
# Sine and cosine of one clock are neighbours. Some programs put all sines in front of all cosines; a model does not mind, as long as it is the same everywhere. Here neighbours are asked for.
#
# Why clocks? Because moving on by $k$ positions turns each clock by a fixed angle, wherever it stood. So one matrix does it for all positions: $\text{PE}(p + k) = M_k\, \text{PE}(p)$ (with PE as a column). Write it as well.
#
# Angles in the thousands of radians need digits before the decimal point, and float32 has seven in all. Work the angles out in float64. What you return may be float32 or float64.
#
# *Before you code:* what is row 0? What is $M_0$? And what is $M_{-k} M_k$?
#
# <details><summary>Answers, after you have tried</summary>
#
# Row 0 is 0, 1, 0, 1, …: all sines of 0, all cosines of 0. $M_0$ is the identity, and so is $M_{-k} M_k$: there and back.
# </details>
#
# <details><summary>Hint: all angles at once</summary>
#
# A column of positions divided by a row of `base ** exponent` has the shape `(length, d_model / 2)`.
# </details>
# <details><summary>Hint: sines and cosines in turns</summary>
#
# `torch.stack((sines, cosines), dim=-1).flatten(-2)`.
# </details>
# <details><summary>Hint: the matrix</summary>
#
# $\sin(a + b) = \cos b \sin a + \sin b \cos a$ and $\cos(a + b) = -\sin b \sin a + \cos b \cos a$: a block of 2 × 2 for each clock.
# </details>


# %% exercise="sinusoidal_positions"
def sinusoidal_positions(length: int, d_model: int, base: float = 10_000.0) -> torch.Tensor:
    """Return the rows of the positions 0, 1, …, length - 1: shape (length, d_model)."""
    ### BEGIN SOLUTION
    pairs = torch.arange(d_model // 2, dtype=torch.float64)
    turns = torch.outer(torch.arange(length).double(), base ** (-2 * pairs / d_model))
    table = torch.empty(length, d_model, dtype=torch.float64)
    table[:, 0::2], table[:, 1::2] = turns.sin(), turns.cos()
    return table
    ### END SOLUTION


def shift_matrix(shift: int, d_model: int, base: float = 10_000.0) -> torch.Tensor:
    """Return the matrix (d_model, d_model) for which shift_matrix(k) @ row p is row p + k."""
    ### BEGIN SOLUTION
    blocks = []
    for i in range(d_model // 2):
        turned = torch.tensor(shift * base ** (-2 * i / d_model), dtype=torch.float64)
        cos, sin = turned.cos(), turned.sin()
        blocks.append(torch.stack((cos, sin, -sin, cos)).view(2, 2))
    return torch.block_diag(*blocks)
    ### END SOLUTION


# %% [markdown]
# {{exercise apply_rotary}}
#
# What attention should know is how far apart two tokens are. So instead of adding something to the tokens, turn the queries and keys: turn each pair of features like a clock's hand, by an angle that grows with the position. The dot product of two hands depends on the angle *between* them, and that depends on the distance alone.
#
# Write `apply_rotary` for queries or keys of several heads. Pair $i$ is made of the neighbouring features $2i$ and $2i+1$. At position $p$ the pair $(a, b)$ becomes $(a\cos\theta - b\sin\theta,\; a\sin\theta + b\cos\theta)$ with $\theta = p/\text{base}^{2i/d_\text{head}}$. Each sequence of the batch has positions of its own, which need not start at 0 or come without gaps. What is returned has the dtype of `x`; the angles are worked out in float32 at least, even if `x` is in half precision.
#
# Then write `rotary_attention`, a layer without mask and without output map: project, split into heads, turn what has to be turned, attend, put the heads side by side. It may call your `apply_rotary` (base 10,000) and `F.scaled_dot_product_attention`.
#
# *Before you code:* what does a token at position 0 become? If all positions are moved on by 11, which numbers in the layer change, and which do not? Should the values know where they stand?
#
# <details><summary>Answers, after you have tried</summary>
#
# At position 0 a token stays as it is. If all move on by 11, the turned queries and keys change; their scores, the weights and the output do not. The values should not: they are averaged, and the output would depend on where the text begins.
# </details>
#
# <details><summary>Hint: shapes</summary>
#
# `positions[:, None, :, None]` has the shape `(batch, 1, length, 1)`: divided by a row of `d_head / 2` numbers it gives angles that all heads share.
# </details>
# <details><summary>Hint: pairs</summary>
#
# `x[..., 0::2]` and `x[..., 1::2]` are the two features of all pairs; `torch.stack(..., dim=-1).flatten(-2)` brings them back.
# </details>
# <details><summary>Hint: heads</summary>
#
# `(x @ w).unflatten(-1, (num_heads, -1)).transpose(1, 2)` has the shape `(batch, heads, length, d_head)`.
# </details>


# %% exercise="apply_rotary"
def apply_rotary(x: torch.Tensor, positions: torch.Tensor, base: float = 10_000.0) -> torch.Tensor:
    """Turn neighbouring features of queries or keys by angles that grow with position.

    Shapes: x (batch, heads, length, d_head), positions (batch, length), whole numbers; returns
    the shape and dtype of x.
    """
    ### BEGIN SOLUTION
    d_head = x.shape[-1]
    speed = base ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
    theta = positions[:, None, :, None] * speed
    a, b = x.unflatten(-1, (d_head // 2, 2)).unbind(-1)
    hands = (a * theta.cos() - b * theta.sin(), a * theta.sin() + b * theta.cos())
    return torch.stack(hands, dim=-1).flatten(-2).to(x.dtype)
    ### END SOLUTION


def rotary_attention(
    x: torch.Tensor,
    w_query: torch.Tensor,
    w_key: torch.Tensor,
    w_value: torch.Tensor,
    num_heads: int,
    positions: torch.Tensor,
) -> torch.Tensor:
    """Attend with turned queries and keys, every token to every token.

    Shapes: x (batch, length, d_model), the maps (d_model, num_heads * d_head), positions
    (batch, length); returns (batch, length, num_heads * d_head), the heads side by side.
    """

    ### BEGIN SOLUTION
    def split(w):
        return (x @ w).unflatten(-1, (num_heads, -1)).transpose(1, 2)

    query = apply_rotary(split(w_query), positions)
    key = apply_rotary(split(w_key), positions)
    found = F.scaled_dot_product_attention(query, key, split(w_value))
    return found.transpose(1, 2).flatten(-2)
    ### END SOLUTION


# %% [markdown]
# {{exercise swapped_rotary}}
#
# Everything so far was tested with random numbers. Now let your turn work in a model that has learned something. The course comes with one that continues Python: three layers of four heads, `d_head` 32. Its rotary positions are of the kind that you wrote in 5.3: neighbours are paired ("interleaved"), the base is 10,000. The cell below loads it, hands the queries and keys of each layer to a function, and goes on with what comes back.

# %%
import inspect
import textwrap

from groundup.pretrained import load

reader, tokenizer = load("reader")


@torch.no_grad()
def logits_with(turn, ids, positions):
    """Run the reader with `query, key = turn(query, key, positions)` in each layer."""
    x = reader.embedding(ids)
    for block in reader.blocks:
        read, attention = block.attention_norm(x), block.attention
        query, key, value = (
            project(read).unflatten(-1, (reader.config.num_heads, -1)).transpose(1, 2)
            for project in (attention.query, attention.key, attention.value)
        )
        query, key = turn(query, key, positions)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + attention.output(found.transpose(1, 2).flatten(2))
        x = x + block.feed_forward(block.feed_forward_norm(x))
    return reader.unembedding(reader.final_norm(x))


def nats_per_token(logits, ids):
    return F.cross_entropy(logits[0, :-1], ids[0, 1:]).item()


ids = torch.tensor([tokenizer.encode(inspect.getsource(textwrap.TextWrapper))[:240]])
places = torch.arange(240)[None]
with torch.no_grad():
    print(f"the reader as it is: {nats_per_token(reader(ids), ids):.4f} nats per token")
unturned = logits_with(lambda query, key, positions: (query, key), ids, places)
print(f"with nothing turned: {nats_per_token(unturned, ids):.4f} nats per token")

# %% [markdown]
# Write `swapped_rotary`. With it in all layers the logits must be *the same*, up to rounding. Not nearly the same, and not the same loss. A batch may hold texts that begin at different places, or of which tokens were left out: the positions say where each token stands. Stand-alone, please: it is put into the model without your other functions, so take along what it needs from your `apply_rotary`.
#
# *Before you code:* which of these would leave every logit as it is: counting from 1, turning both backwards, turning the keys one place too far, angles in half precision? And which would you notice in the loss?
#
# <details><summary>Answers, after you have tried</summary>
#
# Only counting from 1: distances stay. On the text above the reader needs 3.2023 nats per token. Both backwards (4.23) and keys one place too far (4.05) would be noticed; angles in half precision (3.2025 in float16, 3.2010 in bfloat16) would not.
# </details>
#
# <details><summary>Hint: what to take along</summary>
#
# The function may be defined inside: `def turned(x): ...`, called for the query and for the key.
# </details>


# %% exercise="swapped_rotary"
def swapped_rotary(
    query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn queries and keys as the trained model learned to expect them.

    Shapes: query and key (batch, heads, length, d_head), positions (batch, length), whole
    numbers; returns the turned query and the turned key, of the same shapes.
    """
    ### BEGIN SOLUTION
    d_head = query.shape[-1]
    speed = 10_000.0 ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
    angle = positions[:, None, :, None] * speed

    def turned(x):
        ahead, aside = x[..., 0::2], x[..., 1::2]
        first = ahead * angle.cos() - aside * angle.sin()
        second = ahead * angle.sin() + aside * angle.cos()
        return torch.stack((first, second), dim=-1).flatten(-2).to(x.dtype)

    return turned(query), turned(key)
    ### END SOLUTION


# %% [markdown]
# {{deeper}}

# %% [markdown]
# {{exercise learned_positions}}
#
# Or let training find the rows. A learned table has one row for each position up to a largest one, and none beyond: that is the whole difficulty.
#
# When a text is written token by token, earlier tokens are kept in a cache, and the new ones do not stand at 0. Then `offset` says where the first of them stands.
#
# If the table ends before the tokens do, raise a `ValueError` whose sentence names the numbers: at least the number of rows and the offset.
#
# *Before you code:* what is `table[12:17]` if the table has 13 rows? What does torch do if you add the result to 5 tokens?
#
# <details><summary>Answers, after you have tried</summary>
#
# One row, the last of the table. Added to five tokens it is broadcast: all five get the same row, and nothing is said.
# </details>
#
# <details><summary>Hint: slices forgive</summary>
#
# A slice that runs over the end is silently shorter, and one row is silently added to every token. Compare `offset + length` with the number of rows first.
# </details>


# %% exercise="learned_positions"
def learned_positions(x: torch.Tensor, table: torch.Tensor, offset: int = 0) -> torch.Tensor:
    """Add to each token the row of its position, in a new tensor.

    Shapes: x (batch, length, d_model), table (max_len, d_model); returns the shape of x. The
    first token stands at the position `offset`. Raises ValueError if the table is too short.
    """
    ### BEGIN SOLUTION
    length, max_len = x.shape[1], table.shape[0]
    if offset + length > max_len:
        got = f"offset={offset}, length={length}, rows={max_len}"
        raise ValueError(f"offset + length must not exceed the rows of the table, got {got}")
    return x + table.narrow(0, offset, length)
    ### END SOLUTION


# %% [markdown]
# {{exercise alibi_bias}}
#
# The shortest way to say that near tokens matter more: subtract from each score a number that grows with the distance. No table, no turn. Each head has its own slope, so some heads look far and others stay close.
#
# For $n$ heads, a power of two, the slopes are a geometric series that starts at its own ratio: $r, r^2, \dots, r^n$ with $r = 2^{-8/n}$. The authors' rule for other numbers: take the slopes of the largest power of two below $n$, then fill up with the first, third, fifth, … of the series for *twice* that power, until there are $n$. (For 6 heads: the four of 4, then the first and the third of 8.)
#
# The bias is for a decoder: $-\text{slope}\cdot(\text{place of the query} - \text{place of the key})$, and $-\infty$ for keys that come later. The queries are the *last* `q_len` of the `k_len` tokens; the earlier ones may lie in a cache.
#
# *Before you code:* what is the last slope, for any power of two? What does a slope of 0 give? With one query and seven keys, at which place is the query?
#
# <details><summary>Answers, after you have tried</summary>
#
# $2^{-8} = 1/256$. A slope of 0 gives a head without positions, with nothing but the causal mask. The one query is the last of seven: place 6.
# </details>
#
# <details><summary>Hint: the power of two below</summary>
#
# `2 ** (num_heads.bit_length() - 1)`, or a loop that doubles while it can.
# </details>
# <details><summary>Hint: places</summary>
#
# The queries stand at `torch.arange(k_len - q_len, k_len)`, the keys at `torch.arange(k_len)`.
# </details>


# %% exercise="alibi_bias"
def alibi_slopes(num_heads: int) -> torch.Tensor:
    """Return the slope of each head, shape (num_heads,)."""

    ### BEGIN SOLUTION
    def series(n):
        return 2.0 ** (-8 * torch.arange(1, n + 1, dtype=torch.float64) / n)

    power = 2 ** int(math.log2(num_heads))
    return torch.cat((series(power), series(2 * power)[::2]))[:num_heads]
    ### END SOLUTION


def alibi_bias(num_heads: int, q_len: int, k_len: int) -> torch.Tensor:
    """Return what is added to the scores: shape (num_heads, q_len, k_len).

    The queries are the last q_len of the k_len tokens.
    """
    ### BEGIN SOLUTION
    query_places, key_places = torch.arange(k_len)[k_len - q_len :], torch.arange(k_len)
    back = query_places[:, None] - key_places
    lowered = -alibi_slopes(num_heads).view(-1, 1, 1) * back
    return torch.where(back >= 0, lowered, -math.inf)
    ### END SOLUTION


# %% [markdown]
# {{exercise mended_positions}}
#
# Two functions, both published in some form, both running without an error.
#
# The first makes a sinusoidal table. Rows that are equally far apart should have the same dot product, wherever they stand; the left picture shows all dot products, and the stripes along the diagonals are missing. It has **two** bugs: one in the exponent, and one that you see by looking at row 0.
#
# The second turns queries and keys. In its model the features $i$ and $i + d_\text{head}/2$ are a pair. A turn changes no vector's length, and a score does not change when both positions move on by the same number. The right picture shows a score that does. It has **one** bug.
#
# Write both mended. Keep the layouts: neighbours in the table, halves in the turn.
#
# *Before you code:* `index` in the first function counts entries, not pairs: which exponents do the entries 0 and 1 get? In the second, print `angle` for four features: which two entries of a row belong to the features 0 and 2?
#
# <details><summary>Answers, after you have tried</summary>
#
# 0 and $2/d$; as sine and cosine of one clock they should have the same. In the second, the entries 0 and 2 of a row, which hold angles of two different clocks, although 0 and 2 are one pair.
# </details>


# %%
def published_positions(length, d_model):
    place = torch.arange(1, length + 1, dtype=torch.float64)[:, None]
    index = torch.arange(d_model)
    radians = place / 10_000.0 ** (2 * index / d_model)
    return torch.where(index % 2 == 0, torch.sin(radians), torch.cos(radians))


def published_rotary(x, positions):
    speed = 1 / 10_000.0 ** (torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    angle = torch.repeat_interleave(positions[:, None] * speed, 2, dim=1)
    left, right = x.chunk(2, dim=1)
    crossed = torch.cat((-right, left), dim=1)
    return x * torch.cos(angle) + crossed * torch.sin(angle)


def picture_symptoms(table_of, turn):
    """Draw the dot products of a table's rows, and a score while both positions move on."""
    table = table_of(64, 32)
    _, (left, right) = plt.subplots(1, 2, figsize=(10, 3.5))
    left.imshow(table @ table.T, cmap="viridis")
    left.set(title="dot products of rows", xlabel="position", ylabel="position")
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 16, generator=generator)
    moved = torch.arange(100)
    queries, keys = turn(query.repeat(100, 1), moved + 3), turn(key.repeat(100, 1), moved)
    right.plot(moved, (queries * keys).sum(dim=1))
    right.set(title="score of two tokens 3 apart", xlabel="position of the key")
    plt.show()


picture_symptoms(published_positions, published_rotary)


# %% exercise="mended_positions"
def mended_positions(length: int, d_model: int) -> torch.Tensor:
    """Return the sinusoidal table, shape (length, d_model), with base 10,000."""
    ### BEGIN SOLUTION
    place = torch.arange(length, dtype=torch.float64)[:, None]
    index = torch.arange(d_model)
    radians = place / 10_000.0 ** (2 * (index // 2) / d_model)
    return torch.where(index % 2 == 0, torch.sin(radians), torch.cos(radians))
    ### END SOLUTION


def mended_rotary(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Turn the features i and i + d_head / 2 together, with base 10,000.

    Shapes: x (length, d_head), positions (length,); returns the shape of x.
    """
    ### BEGIN SOLUTION
    speed = 1 / 10_000.0 ** (torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    angle = torch.cat((positions[:, None] * speed,) * 2, dim=1)
    left, right = x.chunk(2, dim=1)
    crossed = torch.cat((-right, left), dim=1)
    return x * torch.cos(angle) + crossed * torch.sin(angle)
    ### END SOLUTION


# %% [markdown]
# {{exercise extrapolation}}
#
# A model is trained on windows of one length and then given longer ones. The cell below does that in a few seconds for three ways of telling positions: one layer of attention learns to write Python's reference in windows of 32 characters and is then read out on windows of 128. It keeps the loss, in nats, of every window at every position. (One layer and a hundred steps: enough to see which way holds, not how good it can be.)
#
# A table of losses is not an answer yet. Write the function that makes one of it. Given `losses` (windows, length) it returns
#
# 1. `by_position`, shape (length,): the loss at each position, averaged over the windows;
# 2. `breaks_at`: the first position `p`, from `trained_length` on, at which the mean of `by_position[p : p + window]` is larger by more than `tolerance` than its mean over the last `window` positions before `trained_length`. Only whole windows count; if there is no such place, the length;
# 3. `perplexity`, shape (length,): entry `t - 1` is the perplexity of the first `t` tokens, the exponential of the mean loss over all windows and these `t` tokens.
#
# *Before you code:* why is the first token of a window harder than the thirtieth, for any model? What does that mean for a comparison with the mean over *all* trained positions? And which of the three answers hides a break at position 40 longest?
#
# <details><summary>Answers, after you have tried</summary>
#
# It has the least to go by. The mean over all trained positions includes those hard first tokens, so it is too high a limit and a break is seen late. The perplexity hides it longest: each entry still averages over all the good positions before.
# </details>
#
# <details><summary>Hint: means of growing lengths</summary>
#
# `by_position.cumsum(dim=0)` divided by 1, 2, 3, ….
# </details>
# <details><summary>Hint: whole windows only</summary>
#
# The last start is `length - window`.
# </details>

# %%
from groundup.core.positions import alibi_bias as library_bias
from groundup.core.positions import rotate, sinusoidal_table
from groundup.data.texts import python_reference

text = python_reference().train
symbols = sorted(set(text))
number_of = {symbol: i for i, symbol in enumerate(symbols)}
data = torch.tensor([number_of[symbol] for symbol in text])
trained_length, full_length = 32, 128


class OneLayer(nn.Module):
    def __init__(self, scheme, d_model=32, num_heads=2):
        super().__init__()
        self.scheme, self.num_heads = scheme, num_heads
        self.embedding = nn.Embedding(len(symbols), d_model)
        self.maps = nn.Linear(d_model, 3 * d_model)
        self.feed_forward = nn.Sequential(
            nn.Linear(d_model, 64), nn.GELU(), nn.Linear(64, len(symbols))
        )

    def forward(self, tokens):
        x, length = self.embedding(tokens), tokens.shape[1]
        if self.scheme == "sinusoidal":
            x = x + sinusoidal_table(length, x.shape[-1])
        heads = self.maps(x).unflatten(-1, (3, self.num_heads, -1)).transpose(1, 3)
        query, key, value = heads.unbind(2)
        if self.scheme == "rotary":
            query, key = (rotate(t, torch.arange(length)) for t in (query, key))
        bias = torch.full((length, length), -math.inf).triu(1)
        if self.scheme == "ALiBi":
            bias = bias + library_bias(self.num_heads, length)
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        return self.feed_forward(x + found.transpose(1, 2).flatten(2))


def windows(number, length, generator):
    starts = torch.randint(len(data) - length, (number, 1), generator=generator)
    rows = data[starts + torch.arange(length + 1)]
    return rows[:, :-1], rows[:, 1:]


def measure(scheme):
    """Train on short windows; return the losses on long ones, (windows, full_length)."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = OneLayer(scheme)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(100):
        tokens, targets = windows(32, trained_length, generator)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        tokens, targets = windows(300, full_length, generator)
        logits = model(tokens).transpose(1, 2)
    return F.cross_entropy(logits, targets, reduction="none").double()


measured = {scheme: measure(scheme) for scheme in ("sinusoidal", "rotary", "ALiBi")}
for scheme, losses in measured.items():
    parts = losses.split(trained_length, dim=1)
    print(f"{scheme:10}", "  ".join(f"{part.mean():.2f}" for part in parts))


# %% exercise="extrapolation"
def extrapolation(
    losses: torch.Tensor, trained_length: int, window: int, tolerance: float
) -> tuple[torch.Tensor, int, torch.Tensor]:
    """Say how a model does on texts longer than it was trained on.

    Shapes: losses (windows, length) in nats; returns (by_position, breaks_at, perplexity):
    (length,), a whole number, (length,).
    """
    ### BEGIN SOLUTION
    by_position = losses.mean(dim=0)
    means = by_position.unfold(0, window, 1).mean(dim=-1)  # one for each start of a window
    limit = means[trained_length - window] + tolerance
    broken = (means[trained_length:] > limit).nonzero().flatten()
    breaks_at = trained_length + int(broken[0]) if len(broken) else len(by_position)
    tokens_so_far = torch.arange(1, len(by_position) + 1)
    return by_position, breaks_at, torch.exp(by_position.cumsum(dim=0) / tokens_so_far)
    ### END SOLUTION


# %% [markdown]
# {{exercise convert_rotary}}
#
# Half of the world pairs neighbours ($2i$ with $2i+1$, "interleaved"), the other half pairs the feature $i$ with $i + d_\text{head}/2$ ("half_split"). Weights trained in one layout and run in the other load without an error and give nonsense. But nothing is lost: a dot product does not care for the order of its terms. If the rows of the query and the key projection are moved so that each pair comes to stand where the other layout looks for it, every score stays what it was.
#
# `convert_rotary` moves the rows of one projection, head by head. `weight` is stored as `nn.Linear` stores it, outputs first: the rows of head 0, then those of head 1, and so on. A bias, of the shape `(out,)`, moves the same way. `to` names the layout to arrive at; the weight is in the other one.
#
# *Before you code:* with 6 features per head, where do the features 0 1 2 3 4 5 go on the way to "half_split"? Where do they go on the way back? With 4 features, why can the two ways not be told apart? And why need the values not be moved?
#
# <details><summary>Answers, after you have tried</summary>
#
# In the order 0 2 4 1 3 5 on the way to "half_split", and 0 3 1 4 2 5 on the way back. With four features both are 0 2 1 3. The values are not turned, so nothing pairs them.
# </details>
#
# <details><summary>Hint: a view and a transpose</summary>
#
# The rows of a head in pairs of neighbours are a matrix `(d_head / 2, 2)`; in halves they are `(2, d_head / 2)`. `unflatten` and `flatten` make such axes and undo them.
# </details>


# %% exercise="convert_rotary"
def convert_rotary(weight: torch.Tensor, num_heads: int, to: str) -> torch.Tensor:
    """Return the rows of a query or key projection in the order of the layout `to`.

    Shapes: weight (num_heads * d_head, d_model) or (num_heads * d_head,); returns the same shape.
    `to` is "half_split" or "interleaved".
    """
    ### BEGIN SOLUTION
    d_head = weight.shape[0] // num_heads
    order = torch.arange(d_head).view(-1, 2).T.flatten()  # from neighbours to halves
    if to == "interleaved":
        order = order.argsort()
    return weight.unflatten(0, (num_heads, d_head))[:, order].flatten(0, 1)
    ### END SOLUTION


# %% [markdown]
# {{exercise rotary_in_space}}
#
# A patch of a picture has a row and a column, an atom has three coordinates. Turning works there as well: give each axis an equal part of the features, and turn that part by its own coordinate. Scores then depend on the differences of the coordinates, axis by axis, and not on where the origin lies.
#
# First `patch_coordinates`: row and column of each patch of a picture, in reading order (along the first row, then along the second). Then `rotary_in_space`: with `axes` axes, the first `d_head / axes` features belong to the first axis, the next ones to the second. Within its part, an axis has a rotary turn of its own, of width `d_head / axes`: neighbours are paired, and pair $i$ turns by $\text{coordinate}/\text{base}^{2i/\text{width}}$. Coordinates are real numbers.
#
# *Before you code:* if a picture were read as one long line of patches, how far apart would a patch and the one below it be? And the last patch of a row and the first one of the next?
#
# <details><summary>Answers, after you have tried</summary>
#
# As far as a row is long, although they touch. The last patch of a row and the first of the next would be neighbours, although they are at opposite sides.
# </details>
#
# <details><summary>Hint: reading order</summary>
#
# `torch.cartesian_prod(a, b)` runs through all pairs, and the second changes fastest.
# </details>
# <details><summary>Hint: one axis after the other</summary>
#
# `x.chunk(axes, dim=-1)` gives the parts; turn each one as in 5.3, by `coordinates[..., axis]`.
# </details>


# %% exercise="rotary_in_space"
def patch_coordinates(height: int, width: int) -> torch.Tensor:
    """Return (row, column) of each patch in reading order, shape (height * width, 2), floats."""
    ### BEGIN SOLUTION
    places = torch.arange(height * width)
    return torch.stack((places // width, places % width), dim=-1).double()
    ### END SOLUTION


def rotary_in_space(
    x: torch.Tensor, coordinates: torch.Tensor, base: float = 100.0
) -> torch.Tensor:
    """Turn the part of the features that belongs to each axis by that coordinate.

    Shapes: x (batch, points, d_head), coordinates (batch, points, axes); returns the shape of x.
    """
    ### BEGIN SOLUTION
    num_axes = coordinates.shape[-1]
    turned = []
    for axis, part in enumerate(x.chunk(num_axes, dim=-1)):
        width = part.shape[-1]
        speed = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        theta = coordinates[..., axis, None] * speed
        a, b = part[..., 0::2], part[..., 1::2]
        hands = (a * theta.cos() - b * theta.sin(), a * theta.sin() + b * theta.cos())
        turned.append(torch.stack(hands, dim=-1).flatten(-2))
    return torch.cat(turned, dim=-1)
    ### END SOLUTION


# %% [markdown]
# ## Look at what you built
#
# First, what the loss alone would have told you about the trained model. Each row below turns in a wrong way, in all three layers. The first column is all that a training curve or an evaluation shows; the second is what a comparison of logits shows. Most rows would have been noticed, by somebody who knows what the loss should be. Look for those that you would have believed, and for the one that changes nothing. (These cells are not graded.)

# %%
mine = logits_with(swapped_rotary, ids, places)


def wrong_turn(
    base=10_000.0, step=2, sign=1, key_sign=1, moved=0, key_moved=0, dtype=torch.float64
):
    """Turn both with one thing changed; `key_` changes it for the keys alone."""

    def turned(x, positions, sign):
        speed = base ** (-step * torch.arange(x.shape[-1] // 2, dtype=torch.float64) / x.shape[-1])
        angle = (positions[:, None, :, None].to(dtype) * speed.to(dtype) * sign).float()
        a, b = x[..., 0::2], x[..., 1::2]
        pairs = (a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos())
        return torch.stack(pairs, dim=-1).flatten(-2)

    def turn(query, key, positions):
        query = turned(query, positions + moved, sign)
        return query, turned(key, positions + moved + key_moved, sign * key_sign)

    return turn


def halves_for_neighbours(query, key, positions):
    return tuple(
        torch.stack([mended_rotary(h, positions[0]) for h in x[0]])[None] for x in (query, key)
    )


wrong = {
    "counted from 1": wrong_turn(moved=1),
    "angles in float16": wrong_turn(dtype=torch.float16),
    "angles in bfloat16": wrong_turn(dtype=torch.bfloat16),
    "base 20,000": wrong_turn(base=20_000.0),
    "base 500,000": wrong_turn(base=500_000.0),
    "exponent half as large": wrong_turn(step=1),
    "keys one place too far": wrong_turn(key_moved=1),
    "both backwards": wrong_turn(sign=-1),
    "keys backwards": wrong_turn(key_sign=-1),
    "halves for neighbours": halves_for_neighbours,
    "nothing turned": lambda query, key, positions: (query, key),
}
print(f"{'':24}  nats per token  largest change of a logit")
print(f"{'yours':24}  {nats_per_token(mine, ids):14.4f}")
for name, turn in wrong.items():
    logits = logits_with(turn, ids, places)
    change = (logits - mine).abs().max()
    print(f"{name:24}  {nats_per_token(logits, ids):14.4f}  {change:.4f}")

# %% [markdown]
# Then the mended functions, drawn as their symptoms were, a head with ALiBi beside your clocks, and the losses that were measured, with a mark where your function says that they break.

# %%
picture_symptoms(mended_positions, mended_rotary)

# %%
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 3.5))
left.imshow(sinusoidal_positions(64, 32).T, cmap="RdBu", aspect="auto")
left.set(title="clocks", xlabel="position", ylabel="feature")
middle.imshow(alibi_bias(4, 64, 64)[1].exp(), cmap="viridis")
middle.set(title="ALiBi: weights of equal keys", xlabel="key", ylabel="query")
for scheme, losses in measured.items():
    by_position, breaks_at, perplexity = extrapolation(losses, trained_length, 16, 0.15)
    smooth = by_position.unfold(0, 16, 1).mean(dim=-1)
    (line,) = right.plot(range(8, 8 + len(smooth)), smooth, label=scheme)
    if breaks_at < full_length:
        right.axvline(breaks_at, color=line.get_color(), linestyle=":")
    print(
        f"{scheme:10} breaks at {breaks_at:3}; perplexity of {trained_length} tokens "
        f"{perplexity[trained_length - 1]:.1f}, of {full_length} {perplexity[-1]:.1f}"
    )
right.set(title="loss by position", xlabel="position", ylabel="nats")
right.legend()
plt.show()

# %% [markdown]
# {{question why_rotations}}
#
# Attention without any information about position cannot tell “dog bites man” from “man bites dog”. Why not? Rotary embeddings rotate queries and keys by angles proportional to their positions. Why does a score then depend on the distance between two positions alone, and why are the values not rotated? Answer in three to five sentences.

# %% [markdown] written="why_rotations" points=3
# **What earns the points**, one each:
#
# 1. Without positions, permuting the tokens only permutes the outputs: each query sees the same set of keys and values, whatever their order.
# 2. The dot product of two rotated vectors depends on the difference of the angles, because one rotation's transpose times the other is the rotation by the difference, hence on the distance.
# 3. Only scores need to know where tokens are; rotated values would add up in different directions that depend on absolute positions, and the output would have to be rotated back.
#
# **Often seen, and wrong:** “Attention is order-free because of the softmax”; absolute and relative confused; the claim that rotation changes the norms of vectors.
