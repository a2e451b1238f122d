# %% [markdown]
# # Positions: sinusoidal, learned, RoPE and ALiBi
#
# This notebook goes with chapter 5 of *Attention from the Ground Up*. You write a test for whether a layer sees the order of its tokens, and you implement sinusoidal positions and rotary embeddings (RoPE). You then put your own rotation into a trained model. The deeper exercises add a learned table and ALiBi, fix two published formulas, find the position at which a model trained on short sequences fails on long ones, convert weights between two layouts, and extend RoPE to images and points in space.
#
# **How it works.** First run the code cells above the first exercise. Write your code where it says `YOUR CODE HERE`, run the cell, then run the check under it. A check reports what your code returned, what it expected and, if it recognises the mistake, which one you made. Each line of its report has its own points, so a partly correct answer earns some of them. When your work is graded, the same checks may run on other numbers: compute results, do not hard-code them. Checks mostly pass float64 tensors: keep the dtype of your inputs, and let gradients flow back to them, because models will be trained with your code.
#
# **Conventions.** A token is a row. Positions are counted from 0. Queries, keys and values of several heads have the shape `(batch, heads, length, d_head)`. A *clock* is a pair of features that rotates as the position grows: clock $i$ of a vector of width $d$ rotates by $1/\text{base}^{2i/d}$ radians per position. Clock 0 rotates by one radian per position; the last clock needs thousands of positions for a full rotation.

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
# Attention is a weighted average, and an average does not depend on the order of its terms. An attention layer without positions and without a mask is therefore blind to the order: permute its tokens, and its outputs are permuted in the same way, otherwise unchanged. "Dog bites man" and "man bites dog" give the same three vectors.
#
# Write a test for this property, which is called permutation equivariance. `check_order_blindness` gets `layer`, a function of `x` with shape `(length, d_model)` that returns the same shape for any length and width up to 256. Your test calls the layer on tokens of your choice and asserts what holds for an order-blind layer. Every blind layer must pass, despite rounding errors of up to 1e-4. Every layer that depends on the order in any way, even weakly, or gives one token the output of another must fail.
#
# A causal mask makes the order visible: the first token sees only itself, the second one sees both. Write `order_counter_example`: it returns two tokens on which causal attention with the given projections is *not* blind. Some output must change by more than 0.01. The projections are those of a new model of any width: their entries are random, with a mean of 0 and a standard deviation of $1/\sqrt{d_\text{model}}$, so your tokens need not be adapted to them.
#
# *Before you code:* apart from the identity, which permutation of a sequence keeps all distances between its tokens? Which ones keep every token's neighbours, if the last and the first count as neighbours? A layer that uses only the distances, or only the neighbours, would pass a test that tries only such permutations.
#
# *And for the counter-example:* for any projections, what is the output of causal attention for a token of zeros that comes second? And if it comes first?
#
# <details><summary>Answers, after you have tried</summary>
#
# Only reversing the sequence keeps all distances. Shifting all tokens cyclically keeps the neighbours, and so does reversing (with three tokens, any permutation does).
#
# For the counter-example: a token of zeros that comes second has a score of 0 with every key, so its output is half the value of the first token. A token of zeros that comes first sees only itself, and its output is 0.
# </details>
#
# Below are two layers to try your test on: the first one should pass, and the second should fail.
#
# <details><summary>Hint: what to compare</summary>
#
# With `order`, a tensor of indices such as `torch.tensor([3, 0, 4, 1, 2])`, `x[order]` is permuted. Compare `layer(x[order])` with `layer(x)[order]`.
# </details>
# <details><summary>Hint: rounding</summary>
#
# A sum computed in another order differs in the last digits: `torch.allclose(a, b, atol=1e-4)`.
# </details>


# %%
def minus_the_mean(x):
    return x - x.mean(dim=0)


def minus_the_token_before(x):
    return torch.cat((x[:1], x[1:] - x[:-1]))


# %% exercise="check_order_blindness"
def check_order_blindness(layer) -> None:
    """Raise AssertionError unless permuting the tokens only permutes the outputs of the layer."""
    ### BEGIN SOLUTION
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 6, generator=generator, dtype=torch.float64)
    order = torch.tensor([3, 6, 1, 4, 0, 2, 5])
    moved = (layer(x[order]) - layer(x)[order]).abs().max()
    assert moved < 1e-4, f"in another order some output changes by {moved}"
    ### END SOLUTION


def order_counter_example(
    w_query: torch.Tensor, w_key: torch.Tensor, w_value: torch.Tensor
) -> torch.Tensor:
    """Return two tokens, (2, d_model), whose order changes the output of causal attention.

    Shapes: w_query and w_key (d_model, d_head), w_value (d_model, d_value). The attention is
    scaled, has one head and no output projection.
    """
    ### BEGIN SOLUTION
    # Zeros that come second see the average of both values; zeros that come first see zeros.
    something = torch.ones(len(w_value), dtype=w_value.dtype)
    return torch.stack((something, torch.zeros_like(something)))
    ### END SOLUTION


# %% [markdown]
# {{exercise sinusoidal_positions}}
#
# The first transformer added to each token a vector that encodes its position: the hands of $d/2$ clocks, from fast to slow.
#
# $$\text{PE}(p)_{2i} = \sin\frac{p}{\text{base}^{2i/d}}, \qquad \text{PE}(p)_{2i+1} = \cos\frac{p}{\text{base}^{2i/d}}$$
#
# The sine and the cosine of one clock are neighbours. Some programs put all sines before all cosines; either order works, as long as it is the same everywhere. Here they must be neighbours.
#
# Why clocks? A shift by $k$ positions rotates each clock by a fixed angle, whatever the position. One matrix therefore shifts all rows: $\text{PE}(p + k) = \text{PE}(p)\, M_k$. Compute this matrix, too.
#
# An angle of thousands of radians uses four digits before the decimal point, and float32 has seven digits in total. Compute the angles in float64. Results may be float32 or float64.
#
# *Before you code:* what is row 0? What is $M_0$? And what is $M_{-k} M_k$?
#
# <details><summary>Answers, after you have tried</summary>
#
# Row 0 is 0, 1, 0, 1, …: the sines of 0 and the cosines of 0. $M_0$ is the identity, and so is $M_{-k} M_k$: a shift forward and back.
# </details>
#
# <details><summary>Hint: all angles at once</summary>
#
# A column of positions divided by a row of `base ** exponent` has the shape `(length, d_model / 2)`.
# </details>
# <details><summary>Hint: sines and cosines, interleaved</summary>
#
# `torch.stack((sines, cosines), dim=-1).flatten(-2)`.
# </details>
# <details><summary>Hint: the matrix</summary>
#
# $\sin(a + b) = \cos b \sin a + \sin b \cos a$ and $\cos(a + b) = -\sin b \sin a + \cos b \cos a$: one 2 × 2 block for each clock.
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
    """Return the matrix (d_model, d_model) for which row p @ matrix is row p + shift."""
    ### BEGIN SOLUTION
    blocks = []
    for i in range(d_model // 2):
        turned = torch.tensor(shift * base ** (-2 * i / d_model), dtype=torch.float64)
        cos, sin = turned.cos(), turned.sin()
        blocks.append(torch.stack((cos, -sin, sin, cos)).view(2, 2))
    return torch.block_diag(*blocks)
    ### END SOLUTION


# %% [markdown]
# {{exercise apply_rotary}}
#
# Attention should know how far apart two tokens are. Instead of adding something to the tokens, rotary embeddings rotate each pair of features of the queries and keys like the hand of a clock, by an angle proportional to the position. The dot product of two hands depends on the angle *between* them, which depends only on the distance.
#
# Write `apply_rotary` for queries or keys of several heads. Pair $i$ is made of the neighbouring features $2i$ and $2i+1$. At position $p$ the pair $(a, b)$ becomes $(a\cos\theta - b\sin\theta,\; a\sin\theta + b\cos\theta)$ with $\theta = p/\text{base}^{2i/d_\text{head}}$. Each sequence of the batch has its own positions, which need not start at 0 and may have gaps. The result has the dtype of `x`; compute the angles in float32 or float64, even if `x` is in half precision.
#
# Then write `rotary_attention`, a layer without a mask and without an output projection: project, split into heads, apply the rotation where it belongs, attend, and concatenate the heads. Its base is 10,000. It may call your `apply_rotary` and `F.scaled_dot_product_attention`.
#
# *Before you code:* what happens to a query at position 0? If all positions are shifted by 11, which numbers in the layer change, and which do not? Should the values depend on their positions?
#
# <details><summary>Answers, after you have tried</summary>
#
# At position 0 a query stays unchanged. If all positions are shifted by 11, the rotated queries and keys change; their scores, the weights and the output do not. The values should not depend on positions: else their average, the output, would depend on where the sequence starts.
# </details>
#
# <details><summary>Hint: shapes</summary>
#
# `positions[:, None, :, None]` has the shape `(batch, 1, length, 1)`: dividing it by a row of `d_head / 2` numbers gives angles that all heads share.
# </details>
# <details><summary>Hint: pairs</summary>
#
# `x[..., 0::2]` and `x[..., 1::2]` are the first and the second features of all pairs; `torch.stack(..., dim=-1).flatten(-2)` interleaves them again.
# </details>
# <details><summary>Hint: heads</summary>
#
# `(x @ w).unflatten(-1, (num_heads, -1)).transpose(1, 2)` has the shape `(batch, heads, length, d_head)`.
# </details>


# %% exercise="apply_rotary"
def apply_rotary(x: torch.Tensor, positions: torch.Tensor, base: float = 10_000.0) -> torch.Tensor:
    """Rotate pairs of neighbouring features by angles proportional to the position.

    Shapes: x (batch, heads, length, d_head), positions (batch, length), integers; returns
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
    """Attend with rotated queries and keys, every token to every token.

    Shapes: x (batch, length, d_model), the weights (d_model, num_heads * d_head), positions
    (batch, length); returns (batch, length, num_heads * d_head), the concatenated heads.
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
# So far, everything was tested on random numbers. Now use your rotation in a trained model. The course includes a language model for Python code: three layers of four heads, with `d_head` 32. Its rotary embeddings are the ones you wrote in 5.3: neighbours are paired ("interleaved"), and the base is 10,000. The cell below loads the model, passes the queries and keys of each layer to a function, and continues with the queries and keys that it returns.

# %%
import inspect
import textwrap

from groundup.pretrained import load

reader, tokenizer = load("reader")


@torch.no_grad()
def logits_with(turn, ids, positions):
    """Run the model with `query, key = turn(query, key, positions)` in each layer."""
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
    print(f"the original model: {nats_per_token(reader(ids), ids):.4f} nats per token")
unturned = logits_with(lambda query, key, positions: (query, key), ids, places)
print(f"without any rotation: {nats_per_token(unturned, ids):.4f} nats per token")

# %% [markdown]
# Write `swapped_rotary`, for any `d_head`. With it in all layers, the logits must be *those of the original model*, up to rounding. It is not enough that they are close or that the loss is the same. A batch may contain sequences that start at different positions, near or far away, or have gaps: `positions` holds the position of each token. Let the function stand alone, as if it were pasted into the model's own code: copy into it what it needs from your `apply_rotary`. (The check does not test this.)
#
# *Before you code:* which of these would leave every logit unchanged: counting from 1, rotating both backwards, rotating the keys by one position too many, angles in half precision? And which would you notice in the loss?
#
# <details><summary>Answers, after you have tried</summary>
#
# Only counting from 1, because the distances stay the same. The model's loss on the text above is 3.2023 nats per token. With both rotated backwards (4.23) or the keys one position off (4.05), you would notice it, but not with angles in half precision (3.2025 in float16, 3.2010 in bfloat16).
# </details>
#
# <details><summary>Hint: what to copy</summary>
#
# Define an inner function, `def rotated(x): ...`, and call it for the query and for the key.
# </details>


# %% exercise="swapped_rotary"
def swapped_rotary(
    query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate queries and keys as the trained model expects.

    Shapes: query and key (batch, heads, length, d_head), positions (batch, length), integers;
    returns the rotated query and the rotated key, of the same shapes.
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
# Instead of computing the rows, a model can learn them. A learned table has one row for each position up to `max_len - 1` and none beyond it. That is the only difficulty.
#
# When a text is generated token by token, the keys and values of earlier tokens are kept in a cache, and the new tokens do not start at position 0. `offset` is the position of the first new token.
#
# If the table is too short, raise a `ValueError` whose message contains at least the number of rows and the offset.
#
# *Before you code:* what is `table[12:17]` if the table has 13 rows? What does torch do if you add the result to 5 tokens?
#
# <details><summary>Answers, after you have tried</summary>
#
# One row, the last of the table. Adding it to five tokens broadcasts it: all five get the same row, and no error is raised.
# </details>
#
# <details><summary>Hint: slices do not raise</summary>
#
# A slice that runs past the end is silently shorter, and a single row is silently added to every token. Compare `offset + length` with the number of rows first.
# </details>


# %% exercise="learned_positions"
def learned_positions(x: torch.Tensor, table: torch.Tensor, offset: int = 0) -> torch.Tensor:
    """Add to each token the row of its position, in a new tensor.

    Shapes: x (batch, length, d_model), table (max_len, d_model); returns the shape of x. The first
    token has the position `offset`. Raises ValueError if the table is too short.
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
# The simplest way to favour nearby tokens is to subtract from each score a number that grows with distance. This is ALiBi (attention with linear biases); it needs no table and no rotation. Each head has its own slope, so some heads look far and others stay close.
#
# For $n$ heads, a power of two, the slopes are a geometric sequence starting at its ratio: $r, r^2, \dots, r^n$ with $r = 2^{-8/n}$. The authors' rule for other numbers: take the slopes for the largest power of two below $n$, then add the first, third, fifth, … of those for *twice* that power, until there are $n$. For 6 heads, these are the four slopes for 4 heads, then the first and the third for 8.
#
# The bias is for a decoder: $-\text{slope}\cdot(\text{position of the query} - \text{position of the key})$, and $-\infty$ for later keys. The queries are the *last* `q_len` of the `k_len` tokens; the earlier ones may be in a cache.
#
# *Before you code:* what is the last slope, for any power of two? What does a slope of 0 give? With one query and seven keys, what is the position of the query?
#
# <details><summary>Answers, after you have tried</summary>
#
# $2^{-8} = 1/256$. A slope of 0 gives a head without positions, with only the causal mask. The single query is the last of seven tokens: position 6.
# </details>
#
# <details><summary>Hint: the power of two below</summary>
#
# `2 ** (num_heads.bit_length() - 1)`, or a loop that doubles while it can.
# </details>
# <details><summary>Hint: positions</summary>
#
# The positions of the queries are `torch.arange(k_len - q_len, k_len)`, those of the keys `torch.arange(k_len)`.
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
    """Return the bias that is added to the scores: shape (num_heads, q_len, k_len).

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
# Versions of both functions have been published, and both run without an error.
#
# The first one computes a sinusoidal table. All pairs of rows at one distance should have the same dot product. The left plot shows all dot products, and the stripes along the diagonals are missing. The function has **two** bugs: one in the exponent, and one that you can see in row 0.
#
# The second one rotates queries and keys. In its layout, the features $i$ and $i + d_\text{head}/2$ are a pair. A rotation does not change the norm of a vector, and a score does not change when both positions are shifted by the same number. The right plot shows a score that does. The function has **one** bug.
#
# Fix both functions. Keep the layouts: neighbours in the table, halves in the rotation.
#
# *Before you code:* in the first function, `index` counts entries, not pairs: which exponents do entries 0 and 1 get? In the second, print `angle` for four features: which two clocks do features 0 and 2 get their angles from?
#
# <details><summary>Answers, after you have tried</summary>
#
# Entries 0 and 1 get the exponents 0 and $2/d$; as the sine and cosine of one clock, they should have the same one. In the second function, feature 0 gets the angle of clock 0 and feature 2 that of clock 1, although they are one pair.
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
    """Draw the dot products of a table's rows, and a score while both positions are shifted."""
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
    """Rotate the features i and i + d_head / 2 together, with base 10,000.

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
# A model is trained on windows of one length and then evaluated on longer ones. The cell below does this in a few seconds for three kinds of positions: one attention layer learns to predict characters of the Python reference in windows of 32 and is then evaluated on windows of 128. The cell keeps the loss, in nats, of every window at every position. One layer and a hundred steps are enough to see which scheme extrapolates, but not how well it could do.
#
# A table of losses is not yet an answer. Write the function that summarises it. Given `losses` (windows, length), it returns
#
# 1. `by_position`, shape (length,): the loss at each position, averaged over the windows;
# 2. `breaks_at`: the first position `p`, from `trained_length` on, at which the mean of `by_position[p : p + window]` exceeds the mean of the last `window` positions before `trained_length` by more than `tolerance`. (So `window` counts the positions to average: it is not the length of a window of text.) Only whole windows count. If no position qualifies, `breaks_at` is `length`;
# 3. `perplexity`, shape (length,): entry `t - 1` is the perplexity of the first `t` tokens, the exponential of the mean loss over all windows and these `t` tokens.
#
# *Before you code:* why is the first token of a window harder than the thirtieth, for any model? What does that mean for a comparison with the mean over *all* trained positions? And which of the three results hides a failure at position 40 the longest?
#
# <details><summary>Answers, after you have tried</summary>
#
# It has the least context. The mean over all trained positions includes these hard first tokens, so the limit is too high and a failure is detected late. The perplexity hides it the longest: each entry still averages over all the good positions before.
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
    """Summarise the losses of a model on sequences longer than those it was trained on.

    Shapes: losses (windows, length) in nats; returns (by_position, breaks_at, perplexity):
    (length,), an integer, (length,).
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
# Some models pair neighbours ($2i$ with $2i+1$, "interleaved"), others pair feature $i$ with $i + d_\text{head}/2$ ("half_split"). Weights trained in one layout load in the other without an error and give nonsense. They can be converted, because a dot product does not depend on the order of its terms. If the rows of the query and key projections are permuted so that each pair is where the other layout expects it, every score stays the same.
#
# `convert_rotary` permutes the rows of one projection, head by head. `weight` is stored as in `nn.Linear`, outputs first: the rows of head 0, then those of head 1, and so on. A bias, of the shape `(out,)`, is permuted in the same way. `to` names the target layout; the weight is in the other one.
#
# *Before you code:* with 6 features per head, in which order are the features 0 1 2 3 4 5 after the conversion to "half_split"? And after the conversion to "interleaved"? Why are the two conversions the same with 4 features? And why do the values need no conversion?
#
# <details><summary>Answers, after you have tried</summary>
#
# 0 2 4 1 3 5 after the conversion to "half_split", and 0 3 1 4 2 5 after the other one. With four features, both give 0 2 1 3. The values are not rotated, so they have no pairs.
# </details>
#
# <details><summary>Hint: a view and a transpose</summary>
#
# As pairs of neighbours, the rows of a head form a matrix `(d_head / 2, 2)`; as halves, they form `(2, d_head / 2)`. `unflatten` and `flatten` create and remove such axes.
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
# A patch of an image has a row and a column; an atom has three coordinates. RoPE works for both: give each axis an equal part of the features, and rotate that part by its own coordinate. Scores then depend on the differences of the coordinates, axis by axis, and not on the origin.
#
# First write `patch_coordinates`: it returns the row and the column of each of `height * width` patches, in reading order (along the first row, then the second). Then write `rotary_in_space`: with `axes = coordinates.shape[-1]`, the first `d_head / axes` features belong to the first axis, the next ones to the second. Within its part, each axis has its own rotation of width `d_head / axes`: neighbours are paired, and pair $i$ rotates by $\text{coordinate}/\text{base}^{2i/\text{width}}$. Coordinates are real numbers.
#
# *Before you code:* if an image were read as one long sequence of patches, how far apart would a patch and the one below it be? And the last patch of a row and the first one of the next row?
#
# <details><summary>Answers, after you have tried</summary>
#
# As many positions as a row has patches, although they touch. The last patch of a row and the first of the next row would be neighbours, although they are at opposite sides of the image.
# </details>
#
# <details><summary>Hint: reading order</summary>
#
# `torch.cartesian_prod(a, b)` lists all pairs, and the second entry changes fastest.
# </details>
# <details><summary>Hint: one axis after another</summary>
#
# `x.chunk(axes, dim=-1)` gives the parts; rotate each one as in 5.3, by `coordinates[..., axis]`.
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
    """Rotate each axis's part of the features by the coordinate of that axis.

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
# First, see how little the loss alone reveals. Each row but the first changes the rotation, in all three layers of the trained model. A training curve or an evaluation shows only the first column; a comparison of logits shows the second. You would notice most rows if you knew the correct loss. Look for the rows that you would have believed, and for the one that changes nothing. (These cells are not graded.)

# %%
mine = logits_with(swapped_rotary, ids, places)


def wrong_turn(
    base=10_000.0, step=2, sign=1, key_sign=1, moved=0, key_moved=0, dtype=torch.float64
):
    """Rotate both with one change; `key_` applies it to the keys alone."""

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
    "keys one position too far": wrong_turn(key_moved=1),
    "both backwards": wrong_turn(sign=-1),
    "keys backwards": wrong_turn(key_sign=-1),
    "halves for neighbours": halves_for_neighbours,
    "no rotation": lambda query, key, positions: (query, key),
}
print(f"{'':24}  nats per token  largest change of a logit")
print(f"{'yours':24}  {nats_per_token(mine, ids):14.4f}")
for name, turn in wrong.items():
    logits = logits_with(turn, ids, places)
    change = (logits - mine).abs().max()
    print(f"{name:24}  {nats_per_token(logits, ids):14.4f}  {change:.4f}")

# %% [markdown]
# Next come the same plots for the two fixed functions, then your sinusoidal table, a head with ALiBi, and the measured losses, with a dotted line where your function finds the failure.

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
# Attention without a mask and without any information about position cannot tell “dog bites man” from “man bites dog”. Why not? Rotary embeddings rotate queries and keys by angles proportional to their positions. Why does a score then depend on positions only through their difference, and why are the values not rotated? Answer in three to five sentences.

# %% [markdown] written="why_rotations" points=3
# **What earns the points**, one each:
#
# 1. Without positions, permuting the tokens only permutes the outputs: each query sees the same set of keys and values, whatever their order.
# 2. The dot product of two rotated vectors depends on the difference of the angles, hence on the distance, because one rotation's transpose times the other is the rotation by the difference.
# 3. Only scores need to know where tokens are; rotated values would add up in different directions that depend on absolute positions, and the output would have to be rotated back.
#
# **Often seen, and wrong:** “Attention is order-free because of the softmax”; absolute and relative confused; the claim that rotation changes the norms of vectors.
