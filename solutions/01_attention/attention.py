# %% [markdown]
# # Attention: queries, keys and values
#
# This notebook goes with chapter 1 of *Attention from the Ground Up*. You build attention from a weighted average, find out how large its scores get, test what it can and cannot do, differentiate it by hand, and fix two published mistakes.
#
# **How it works.** First run the code cells above the first exercise. Write your code where it says `YOUR CODE HERE`, run the cell, then run the check under it. A check reports what your code returned, what it expected and, if it recognises the mistake, which one you made. Each line of its report has its own points, so a partly correct answer earns some of them. When your work is graded, the same checks may run on other numbers: compute results, do not hard-code them. Checks mostly use float64 tensors: keep the dtype of your inputs, and let gradients flow back to them, because models will be trained with your code.
#
# **Conventions.** A token is a row. `query` has the shape `(..., q_len, d_head)`, `key` `(..., k_len, d_head)`, `value` `(..., k_len, d_value)`, and weights `(..., q_len, k_len)`: one row per query, one column per key. The dots stand for any number of leading axes, such as batch and heads. The lengths and widths in the checks are all different, so a product that needs square matrices raises an error.

# %%
import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

from classroom import check

# %% [markdown]
# {{exercise kernel_regression}}
#
# You have observed values $v_j$ at points $k_j$ and want to predict the value at a point $q$ that you have not observed. Nearby observations should count more. Kernel regression, sixty years old, takes the average
#
# $$\hat v(q) = \frac{\sum_j K(q, k_j)\, v_j}{\sum_j K(q, k_j)}, \qquad K(q, k) = \exp\left(-\frac{\lVert q - k\rVert^2}{2\sigma^2}\right)$$
#
# with a bandwidth $\sigma$. Implement it for many queries at once.
#
# *Before you code:* what does the formula give when the bandwidth is huge? And what should it give for a query that is a thousand bandwidths from every key? What does `torch.exp(torch.tensor(-500_000.0))` return, and what is $0/0$? What is the slope of a square root at 0, where a query equals a key?
#
# <details><summary>Answers, after you have tried</summary>
#
# With a huge bandwidth all weights are equal, and the result is the mean of the values. Far away it should be the value of the nearest key, which has nearly all the weight; but `exp(-500_000)` is exactly 0 in floating point, so the formula becomes $0/0$, which is NaN. The slope of the root is infinite at 0, and its gradient NaN even if you square it again: the formula needs no root.
# </details>
#
# Now expand the square: $-\lVert q-k\rVert^2 = 2\,q\cdot k - \lVert q\rVert^2 - \lVert k\rVert^2$. If all keys have the same norm, two of the three terms cancel in the quotient: the weights are a softmax of `scale * (q · k)`. Which scale?
#
# <details><summary>Hint: the shapes</summary>
#
# `query.unsqueeze(-2) - key.unsqueeze(-3)` has the shape `(batch, q_len, k_len, d_head)`.
# </details>
# <details><summary>Hint: far away</summary>
#
# The softmax of $-\lVert q-k\rVert^2/2\sigma^2$ over the keys is the same quotient, and `softmax` never divides zero by zero.
# </details>


# %% exercise="kernel_regression"
def kernel_regression(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bandwidth: float
) -> torch.Tensor:
    """Average the values, with weights that are a Gaussian function of the distance from query to
    key.

    Shapes: query (batch, q_len, d_head), key (batch, k_len, d_head), value (batch, k_len, d_value);
    returns (batch, q_len, d_value).
    """
    ### BEGIN SOLUTION
    difference = query.unsqueeze(-2) - key.unsqueeze(-3)
    exponent = -difference.square().sum(dim=-1) / (2 * bandwidth**2)
    return exponent.softmax(dim=-1) @ value
    ### END SOLUTION


def scale_for(bandwidth: float) -> float:
    """Return the scale for which softmax(scale * query · key) gives the same weights, if all keys
    have the same norm.
    """
    ### BEGIN SOLUTION
    return 1 / bandwidth**2
    ### END SOLUTION


# %% [markdown]
# {{exercise soft_lookup}}
#
# A Python dictionary finds the one key that is equal to your query and returns its value. Attention is a soft dictionary: it returns a mixture of all values, with weights $\mathrm{softmax}(q\cdot k_j/\tau)$. The temperature $\tau$ determines how soft.
#
# *Before you code:* which weights does the query $q = 0$ get? What happens to them as $\tau$ grows, and as $\tau \to 0$? At $\tau = 10^{-3}$ a score of 2 becomes 2000: will your code handle that?
#
# <details><summary>Answers, after you have tried</summary>
#
# $q = 0$ has the same score with every key, so the weights are equal. As $\tau$ grows, they become more equal, and as $\tau \to 0$ the key with the largest score takes all the weight. $e^{2000}$ is infinite in floating point: only a softmax that subtracts the largest score first survives.
# </details>
#
# At temperature exactly 0, return the value of the key with the largest score, which is the limit. If several tie, return the value of any of them, or their mean.
#
# <details><summary>Hint: temperature 0</summary>
#
# `scores.argmax(dim=-1)` is the index of the best key for each query. Its value: `torch.take_along_dim(value, best, dim=-2)`, where `best` is this index with `keepdim=True`.
# </details>


# %% exercise="soft_lookup"
def soft_lookup(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Look the queries up among the keys and return mixtures of the values.

    Shapes: query (batch, q_len, d_head), key (batch, k_len, d_head), value (batch, k_len, d_value);
    returns (batch, q_len, d_value).
    """
    ### BEGIN SOLUTION
    scores = query @ key.transpose(-2, -1)
    if temperature == 0:
        weights = F.one_hot(scores.argmax(dim=-1), scores.shape[-1]).to(value.dtype)
    else:
        weights = (scores / temperature).softmax(dim=-1)
    return weights @ value
    ### END SOLUTION


# %% [markdown]
# {{exercise raw_scores}}
#
# If the tokens themselves are the queries and keys, the score of query $i$ and key $j$ is $x_i\cdot x_j$, the same as that of query $j$ and key $i$. But "cat" may need "the" more than "the" needs "cat". Two learned projections break the symmetry: $q_i = x_i W_q$ and $k_j = x_j W_k$.
#
# Write three small functions: the matrix of raw scores (no scale, no softmax); the single matrix $M$ for which $s_{ij} = x_i M x_j^\top$; and a measure of asymmetry, $\lVert S - S^\top\rVert / \lVert S\rVert$, which is 0 for symmetric scores ($\lVert S\rVert$ is the root of the sum of all squared entries). Scores a million times larger or smaller have the same asymmetry.
#
# *Before you code:* what is the shape of $M$, and what is the highest rank it can have? For which $W_q, W_k$ are the scores symmetric for every input?
#
# <details><summary>Answers, after you have tried</summary>
#
# $M$ is `(d_model, d_model)`, and its rank is at most `d_head`, the width of both projections. The scores are symmetric for every input if and only if $M$ is symmetric, for instance if $W_q = W_k$.
# </details>
#
# <details><summary>Hint: which one is transposed</summary>
#
# $x_i W_q (x_j W_k)^\top = x_i\, W_q W_k^\top\, x_j^\top$.
# </details>


# %% exercise="raw_scores"
def raw_scores(x: torch.Tensor, w_query: torch.Tensor, w_key: torch.Tensor) -> torch.Tensor:
    """Score every token as a query against every token as a key.

    Shapes: x (batch, length, d_model), w_query and w_key (d_model, d_head);
    returns (batch, length, length), rows are queries.
    """
    ### BEGIN SOLUTION
    return (x @ w_query) @ (x @ w_key).transpose(-2, -1)
    ### END SOLUTION


def mixing_matrix(w_query: torch.Tensor, w_key: torch.Tensor) -> torch.Tensor:
    """Return the matrix (d_model, d_model) behind the scores."""
    ### BEGIN SOLUTION
    return w_query @ w_key.T
    ### END SOLUTION


def asymmetry(scores: torch.Tensor) -> torch.Tensor:
    """Measure how far a (length, length) matrix is from symmetric, relative to its norm."""
    ### BEGIN SOLUTION
    return (scores - scores.T).norm() / scores.norm()
    ### END SOLUTION


# %% [markdown]
# {{exercise scaled_dot_product_attention}}
#
# The operation that the rest of the course builds on:
#
# $$\mathrm{attention}(Q, K, V) = \mathrm{softmax}\!\left(\frac{Q K^\top}{\sqrt{d_{\text{head}}}}\right) V$$
#
# The softmax runs over the keys. $d_{\text{head}}$ is the width of one query or key: not of the values, and not of all heads together. Return the output *and* the weights; you will want to look at them.
#
# *Before you code:* with a single key, what is the output, whatever the query? If all keys are equal?
#
# <details><summary>Answers, after you have tried</summary>
#
# With one key its weight is 1, so the output is its value. With equal keys all weights are equal: the output is the mean of the values. In neither case does the query matter.
# </details>
#
# <details><summary>Hint: any number of leading axes</summary>
#
# `key.transpose(-2, -1)` swaps the last two axes and leaves the others unchanged; `@` multiplies matrices on the last two axes and treats the others as batch axes.
# </details>
# <details><summary>Hint: scores in the thousands</summary>
#
# `softmax` subtracts the largest score before taking exponentials. If you take the exponentials yourself, do the same.
# </details>


# %% exercise="scaled_dot_product_attention"
def scaled_dot_product_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Average the values with weights that say how well each key matches the query.

    Shapes: query (..., q_len, d_head), key (..., k_len, d_head), value (..., k_len, d_value);
    returns output (..., q_len, d_value) and weights (..., q_len, k_len).
    """
    ### BEGIN SOLUTION
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    weights = scores.softmax(dim=-1)
    return weights @ value, weights
    ### END SOLUTION


# %% [markdown]
# {{exercise mended_attention}}
#
# The function below was published, ran without error, and could be trained. It does compute a scale. Run it: the wider the head, the more weight goes to a single key, although the inputs are pure noise.
#
# The function has two bugs. Write a corrected one; it returns the output only.
#
# *Before you code:* if `scaled` had been used as it is, would the largest weight grow or shrink with the width?
#
# <details><summary>Answers, after you have tried</summary>
#
# Shrink: dot products grow like $\sqrt{d}$, so divided by $d$ they fall like $1/\sqrt{d}$, and all weights would approach $1/32$.
# </details>


# %%
def published_attention(query, key, value):
    scores = query @ key.transpose(-2, -1)
    scaled = scores / key.shape[-1]
    weights = scores.softmax(dim=-1)
    return weights @ value


generator = torch.Generator().manual_seed(0)
for d_head in (4, 64, 1024):
    query, key = torch.randn(2, 32, d_head, generator=generator)
    largest = published_attention(query, key, torch.eye(32)).amax(dim=-1).mean()
    print(f"d_head {d_head:4}: the largest of 32 weights is {largest:.2f} on average")


# %% exercise="mended_attention"
def mended_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return the output of scaled dot-product attention.

    Shapes: query (batch, q_len, d_head), key (batch, k_len, d_head), value (batch, k_len, d_value);
    returns (batch, q_len, d_value).
    """
    ### BEGIN SOLUTION
    scores = query @ key.transpose(-2, -1)
    scaled = scores / math.sqrt(key.shape[-1])
    weights = scaled.softmax(dim=-1)
    return weights @ value
    ### END SOLUTION


# %% [markdown]
# {{deeper}}

# %% [markdown]
# {{exercise worked_row}}
#
# A widely read introduction to decoder-only transformers works out one row of attention by hand: the sentence is "The sun dipped below the horizon", the query that of its last token, and `d_head` 2. It explains the scale, and then prints these numbers:
#
# | | The | sun | dipped | below | the | horizon |
# |---|---|---|---|---|---|---|
# | printed scores | 0.4254 | 0.7648 | 0.3096 | 0.7953 | 0.8659 | 0.9515 |
# | printed weights | 0.1252 | 0.1758 | 0.1115 | 0.1812 | 0.1945 | 0.2119 |
#
# and the output `(0.5863, 0.4673)`. The query, the keys and the values are in the cell below. The introduction forgot one step. Write `worked_row` so that it is correct.
#
# The text also says that a dot product measures how much two vectors "point in the same direction". Write `rankings`: the indices of the keys from best to worst, once by dot product, once by the cosine of the angle. Then compare the ranks of "dipped".
#
# *Before you code:* if every key were twice as long, which of the two rankings would change? If only one key were?
#
# <details><summary>Answers, after you have tried</summary>
#
# Neither, if all of them are doubled: every dot product doubles, and the cosine does not depend on length. If one key is doubled, its rank by dot product may change: it can rise if the score is positive and fall if the score is negative. Its rank by cosine stays the same.
# </details>

# %%
tokens = ["The", "sun", "dipped", "below", "the", "horizon"]
query = torch.tensor([0.9100, 0.3448])
keys = torch.tensor(
    [
        [0.0921, 0.9907],
        [0.5637, 0.7303],
        [0.1860, 0.4071],
        [0.8067, 0.1776],
        [0.7002, 0.6632],
        [0.9094, 0.3594],
    ]
)
values = torch.tensor(
    [
        [0.5637, 0.4056],
        [0.9803, 0.0100],
        [0.4111, 0.3980],
        [0.6882, 0.9797],
        [0.5551, 0.7583],
        [0.3060, 0.2141],
    ]
)


# %% exercise="worked_row"
def worked_row(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Work out one row of attention.

    Shapes: query (d_head,), keys (k_len, d_head), values (k_len, d_value); returns the scaled
    scores (k_len,), the weights (k_len,) and the output (d_value,).
    """
    ### BEGIN SOLUTION
    scores = keys @ query / math.sqrt(len(query))
    weights = scores.softmax(dim=-1)
    return scores, weights, weights @ values
    ### END SOLUTION


def rankings(query: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rank the keys from best to worst, by dot product and by cosine: two (k_len,) index
    tensors."""
    ### BEGIN SOLUTION
    by_dot_product = (keys @ query).argsort(descending=True)
    by_cosine = F.cosine_similarity(keys, query[None], dim=-1).argsort(descending=True)
    return by_dot_product, by_cosine
    ### END SOLUTION


# %% [markdown]
# {{exercise logit_std}}
#
# Why divide by $\sqrt{d_{\text{head}}}$, and not by $d_{\text{head}}$, or not at all? Measure first. The cell below draws queries and keys with independent entries of mean 0 and variance 1, and prints the standard deviation and the excess kurtosis of their dot products (the excess kurtosis is 0 for a normal distribution, and larger if extreme values are more common).

# %%
generator = torch.Generator().manual_seed(0)
for d_head in (1, 4, 16, 64, 256):
    query, key = torch.randn(2, 1_000_000 // d_head, d_head, generator=generator)
    dots = (query * key).sum(dim=-1)
    kurtosis = ((dots / dots.std()) ** 4).mean() - 3
    print(
        f"d_head {d_head:3}: standard deviation {dots.std():5.2f}, excess kurtosis {kurtosis:5.2f}"
    )

# %% [markdown]
# Now explain the table. Write the standard deviation of `scale * (query · key)` and the excess kurtosis of `query · key` as formulas in `d_head`, for *normal* entries. (One product of two standard normals has variance 1 and fourth moment 9.)
#
# Then write the entropy of each row of weights, $-\sum_j p_j \ln p_j$, in nats: it is $\ln n$ for $n$ equal weights, however small these are, and 0 if one key has all the weight. The chapter uses it to show that unscaled attention saturates.
#
# *Before you code:* what is the entropy of the row $(1, 0, 0)$, and what does `0 * math.log(0)` give?
#
# <details><summary>Answers, after you have tried</summary>
#
# The entropy is 0: there is no uncertainty. `math.log(0)` raises an error, and with torch $0 \cdot (-\infty)$ is NaN.
# </details>
#
# <details><summary>Hint: the kurtosis of a sum</summary>
#
# For independent terms the fourth cumulants add, as variances do. The fourth cumulant of one product is $9 - 3\cdot 1^2 = 6$; divide the sum of $d$ of them by the squared variance of the sum.
# </details>
# <details><summary>Hint: zero weights</summary>
#
# `torch.xlogy` and `torch.special.entr` define $0 \ln 0 = 0$.
# </details>


# %% exercise="logit_std"
def logit_std(d_head: int, scale: float) -> float:
    """Return the standard deviation of scale * (query · key)."""
    ### BEGIN SOLUTION
    return math.sqrt(d_head) * scale
    ### END SOLUTION


def excess_kurtosis(d_head: int) -> float:
    """Return the excess kurtosis of query · key for normal entries."""
    ### BEGIN SOLUTION
    return 6 / d_head
    ### END SOLUTION


def entropy(weights: torch.Tensor) -> torch.Tensor:
    """Return the entropy of each row of weights (rows, k_len) in nats, shape (rows,)."""
    ### BEGIN SOLUTION
    return -torch.xlogy(weights, weights).sum(dim=-1)
    ### END SOLUTION


# %% [markdown]
# {{exercise project_after_mixing}}
#
# A programmer read that "the value projection gives attention its nonlinearity" and rightly doubted it: for weights $A$, tokens $T$ and a matrix $W$, $A(TW) = (AT)W$. So they moved the projection after the average, where it runs once per query instead of once per key, and the tests still passed. Months later, padding was added: the rows of weights for padded queries became zero. Now the outputs at padded positions are not zero.
#
# `projected_first` below is the old version, `projected_last` the fast one. Find out when they differ, and write `project_after_mixing`, which is fast and agrees with the old version for *any* weights. The projection has a bias.
#
# *Before you code:* what is the average of a constant under a row of weights that sums to one half?
#
# <details><summary>Answers, after you have tried</summary>
#
# Half of it. So a bias that was added to every token is halved, while one that is added after the average is not.
# </details>


# %%
def projected_first(weights, tokens, w_value, b_value):
    return weights @ (tokens @ w_value + b_value)


def projected_last(weights, tokens, w_value, b_value):
    return (weights @ tokens) @ w_value + b_value


# %% exercise="project_after_mixing"
def project_after_mixing(
    weights: torch.Tensor, tokens: torch.Tensor, w_value: torch.Tensor, b_value: torch.Tensor
) -> torch.Tensor:
    """Average first, then project; return the same result as projecting first.

    Shapes: weights (q_len, k_len), tokens (k_len, d_model), w_value (d_model, d_value),
    b_value (d_value,); returns (q_len, d_value).
    """
    ### BEGIN SOLUTION
    row_sums = weights.sum(dim=-1, keepdim=True)
    return (weights @ tokens) @ w_value + row_sums * b_value
    ### END SOLUTION


# %% [markdown]
# {{exercise check_convex_hull}}
#
# Now the roles are reversed: you write the tests, and they are graded on the bugs that they catch. Each of your two functions takes `attention`, a function of `(query, key, value)` that returns only the output, calls it on inputs of your choice, and uses `assert`. Every function that averages the values must pass, however it computes the weights from queries, keys and positions, and however it rounds, so do not compare with torch's attention. Wrong ones must fail.
#
# 1. **An average stays inside.** An average with positive weights that sum to 1 cannot leave the convex hull of the values. Test it feature by feature, on features with different ranges: every output lies between the smallest and the largest value of that feature.
# 2. **A linear map may be applied before or after.** Averaging projected values gives the same result as projecting averaged values: $A(VW) = (AV)W$. So for given weights attention is linear in the values; its nonlinearity is in the weights.
#
# *Before you code:* which inputs reveal a bug? If all values lie around zero, will an output that is half as large as it should be leave the hull? If all values are equal, can a negative weight be detected? If the map only rescales, which bugs go unnoticed?
#
# <details><summary>Answers, after you have tried</summary>
#
# Values far from zero and close together, but different. If the values lie around zero, the hull contains 0, so half of an output is still inside; and if all values are equal, weights that sum to 1 give the same output whatever their signs. A map that only rescales by a positive factor commutes with swapping features, with a maximum in place of the mean, and with much else.
# </details>
#
# <details><summary>Hint: values that leave no room</summary>
#
# Put the values far from zero and close together, such as between 10 and 11, and different from each other.
# </details>
# <details><summary>Hint: comparing floats</summary>
#
# Use `torch.allclose(a, b, atol=...)`, or double precision and a small tolerance. Correct implementations may differ in the last digits.
# </details>


# %% exercise="check_convex_hull"
def check_convex_hull(attention) -> None:
    """Raise AssertionError if an output of attention lies outside the range of its values."""
    ### BEGIN SOLUTION
    generator = torch.Generator().manual_seed(0)
    query = 2 * torch.randn(11, 4, generator=generator)
    key = torch.randn(7, 4, generator=generator)
    value = 10 + torch.rand(7, 6, generator=generator)
    output = attention(query, key, value)
    assert (output >= value.amin(dim=0) - 1e-4).all(), "some output is smaller than every value"
    assert (output <= value.amax(dim=0) + 1e-4).all(), "some output is larger than every value"
    ### END SOLUTION


def check_value_map_commutes(attention) -> None:
    """Raise AssertionError if a linear map before and after averaging gives different
    results.
    """
    ### BEGIN SOLUTION
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(5, 4, generator=generator)
    key = torch.randn(7, 4, generator=generator)
    value = torch.randn(7, 6, generator=generator)
    matrix = torch.randn(6, 3, generator=generator)
    mapped_before = attention(query, key, value @ matrix)
    mapped_after = attention(query, key, value) @ matrix
    assert torch.allclose(mapped_before, mapped_after, atol=1e-4), "the map does not commute"
    ### END SOLUTION


# %% [markdown]
# {{exercise attention_backward}}
#
# Autograd will do this for you from now on. Do it once by hand, and you will know what a kernel such as FlashAttention has to compute.
#
# Given $G = \partial L/\partial\,\text{output}$, work backwards through `output = weights @ value`, `weights = softmax(scores)`, `scores = scale * query @ keyᵀ`, with `scale` $= 1/\sqrt{d_{\text{head}}}$. Return the gradients with respect to query, key and value.
#
# Then look at a single query. Write $\partial\,\text{output}_a/\partial q_b$ as a matrix `(d_value, d_head)`, with $a$ and $b$ numbering features. It is `scale` times the covariance of values and keys under the weights. If the keys that have weight do not vary, the query gets no gradient: that is why saturated attention stops learning.
#
# *Before you code:* if one key has all the weight, what are the gradients with respect to the query and the keys? What is the gradient with respect to that key's value?
#
# <details><summary>Answers, after you have tried</summary>
#
# For the query and the keys they are 0: the gradient of each score is its weight times the deviation of that weight's gradient from the weighted mean, and one of the two factors is 0 for every key. The gradient with respect to the value of that key is the whole gradient of the output, summed over the queries.
# </details>
#
# <details><summary>Hint: through the softmax</summary>
#
# For one row, $\partial L/\partial s_j = p_j\,(g_j - \sum_l p_l g_l)$ with $g = \partial L/\partial p$: each gradient minus the weighted mean of its row.
# </details>
# <details><summary>Hint: through a product</summary>
#
# If $C = AB$ and $G$ is the gradient with respect to $C$, the gradient with respect to $A$ is $G B^\top$ and the gradient with respect to $B$ is $A^\top G$. No other products have the right shapes.
# </details>


# %% exercise="attention_backward"
def attention_backward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, grad_output: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of the loss with respect to query, key and value, without autograd.

    Shapes: query (batch, q_len, d_head), key (batch, k_len, d_head), value (batch, k_len, d_value),
    grad_output (batch, q_len, d_value); each gradient has the shape of its tensor.
    """
    ### BEGIN SOLUTION
    scale = 1 / math.sqrt(query.shape[-1])
    weights = (query @ key.transpose(-2, -1) * scale).softmax(dim=-1)
    grad_value = weights.transpose(-2, -1) @ grad_output
    grad_weights = grad_output @ value.transpose(-2, -1)
    row_mean = (weights * grad_weights).sum(dim=-1, keepdim=True)
    grad_scores = weights * (grad_weights - row_mean) * scale
    return grad_scores @ key, grad_scores.transpose(-2, -1) @ query, grad_value
    ### END SOLUTION


def output_jacobian(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return the Jacobian of the output of one query with respect to that query.

    Shapes: query (d_head,), key (k_len, d_head), value (k_len, d_value);
    returns (d_value, d_head).
    """
    ### BEGIN SOLUTION
    scale = 1 / math.sqrt(len(query))
    weights = (key @ query * scale).softmax(dim=-1)
    centred = value - weights @ value
    return scale * centred.T @ (weights[:, None] * key)
    ### END SOLUTION


# %% [markdown]
# ## Look at what you built
#
# Left: your own attention on the printed sentence, with the keys as queries; brighter means more weight. Right: your kernel regression through a few noisy observations, with bandwidths from narrow to wide. (This cell is not graded.)

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
_, weights = scaled_dot_product_attention(keys, keys, values)
left.imshow(weights, cmap="viridis", vmin=0)
left.set_xticks(range(6), tokens, rotation=45)
left.set_yticks(range(6), tokens)
left.set_xlabel("key")
left.set_ylabel("query")

generator = torch.Generator().manual_seed(0)
points = torch.rand(1, 30, 1, generator=generator) * 6
observed = torch.sin(points) + 0.2 * torch.randn(points.shape, generator=generator)
grid = torch.linspace(0, 6, 200)[None, :, None]
right.plot(points.flatten(), observed.flatten(), "k.", label="observed")
for bandwidth in (0.1, 0.4, 2.0):
    curve = kernel_regression(grid, points, observed, bandwidth)
    right.plot(grid.flatten(), curve.flatten(), label=f"bandwidth {bandwidth}")
right.legend()
plt.show()

# %% [markdown]
# {{question why_scale}}
#
# Scores are divided by the square root of d_head before the softmax. Suppose you forget this in a model with d_head = 64, whose queries and keys have independent entries of mean 0 and variance 1. What happens to the scores, to the attention weights, and to the gradients? Why the square root, and not d_head itself? Answer in three to five sentences.

# %% [markdown] written="why_scale" points=3
# **What earns the points**, one each:
#
# 1. The score is a sum of d_head products of variance 1, so its variance is d_head = 64 and its standard deviation is 8.
# 2. Differences of this size put nearly all weight on one key: the softmax saturates.
# 3. Where the softmax saturates its derivative is nearly 0, so queries and keys hardly learn. The square root makes the standard deviation 1; dividing by d_head would make it 1/8, and the weights nearly equal.
#
# **Often seen, and wrong:** “To avoid overflow” (scores around 8 do not overflow); “so that the weights sum to 1” (they do in any case); variance and standard deviation confused.
