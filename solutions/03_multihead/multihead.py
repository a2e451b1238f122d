# %% [markdown]
# # Multi-head attention
#
# This notebook goes with chapter 3 of *Attention from the Ground Up*. You build one head, then a loop over heads, then all heads in one product. Then you take the layer apart: what each head writes, which biases matter, what sharing keys and values saves, and how many parameters and operations the layer needs. On the way you write a test for other people's attention, and fix a derivation.
#
# **How it works.** First run the code cells above the first exercise. Write your code where it says `YOUR CODE HERE`, run the cell, then run the check under it. A check reports what your code returned, what it expected and, if it recognises the mistake, which one you made. Each line of its report has its own points, so a partly correct answer earns some of them. When your work is graded, the same checks may run on other numbers: compute results, do not hard-code them. Checks mostly use float64 tensors: keep the dtype of your inputs, and let gradients flow back to them, because models will be trained with your code.
#
# **Conventions.** A token is a row, and a projection matrix multiplies it from the right: `x @ w`. `nn.Linear(d_in, d_out)` stores the transposed matrix, `(d_out, d_in)`, and computes `x @ weight.T + bias`. Tensors of heads have the axes `(batch, heads, length, d_head)`. A mask is boolean and True where attention is allowed; in this notebook every query may attend to at least one key, and a masked key has no weight, however large its score. `num_heads` heads of width `d_head` are concatenated: head 0 has the first `d_head` features, head 1 the next ones, and so on.
#
# **Modules.** Where you write a class, the check builds it with its own arguments, sets its weights by the names given in the exercise, and calls it in training mode, as it was built: add no dropout. How your class initialises its weights is up to you.

# %%
import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import nn

from classroom import check

# %% [markdown]
# {{exercise SelfAttentionHead}}
#
# One head is attention with three learned projections: what does a token look for (`query`), what can it be found by (`key`), and what does it pass on (`value`)? All three read the same tokens, and each projects vectors of width `d_model` to width `d_head`.
#
# The three linear layers have no bias; their parameters are `query.weight`, `key.weight` and `value.weight`. A head returns `d_head` features per token; it does not project them back to `d_model`.
#
# *Before you code:* if a head's query projection is zero, what does the head return for each token? And if the key projection is?
#
# <details><summary>Answers, after you have tried</summary>
#
# In both cases all scores are 0, and each token gets the mean of the values that it may attend to.
# </details>
#
# <details><summary>Hint: three projections</summary>
#
# `self.query = nn.Linear(d_model, d_head, bias=False)` creates a parameter named `query.weight`.
# </details>
# <details><summary>Hint: the mask</summary>
#
# Set masked scores to `-math.inf` before the softmax; then their weights are 0, and the weights of the others sum to 1.
# </details>


# %% exercise="SelfAttentionHead"
class SelfAttentionHead(nn.Module):
    """One head of self-attention."""

    def __init__(self, d_model: int, d_head: int):
        super().__init__()
        ### BEGIN SOLUTION
        self.query = nn.Linear(d_model, d_head, bias=False)
        self.key = nn.Linear(d_model, d_head, bias=False)
        self.value = nn.Linear(d_model, d_head, bias=False)
        self.scale = 1 / math.sqrt(d_head)
        ### END SOLUTION

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return the output of the head for every token.

        Shapes: x (batch, length, d_model), mask (batch, length, length) or (length, length), rows
        are queries; returns (batch, length, d_head).
        """
        ### BEGIN SOLUTION
        query, key, value = self.query(x), self.key(x), self.value(x)
        scores = query @ key.transpose(-2, -1) * self.scale
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return scores.softmax(dim=-1) @ value
        ### END SOLUTION


# %% [markdown]
# {{exercise loop_of_heads}}
#
# A verb may need its subject and its object. One head has one set of weights per token: it can attend to both, but its output is their average, which does not say which was which. So use several heads, and concatenate their outputs:
#
# $$\mathrm{loop}(X) = \big[\,Y_0\;\; Y_1\;\; \cdots\;\; Y_{H-1}\,\big]\; W_O$$
#
# The output projection $W_O$ has one row for each concatenated feature and mixes all of them into a vector of width `d_model`.
#
# Here the projections are plain matrices in the row convention, one for each head: the queries of head `h` are `x @ w_query[h]`. Values may have a different width, `d_value`. (Your module from the last exercise creates its own weights; here they are arguments.)
#
# *Before you code:* if two heads have the same projections, what can the layer do that one head could not? What would be lost if the heads were added instead of concatenated?
#
# <details><summary>Answers, after you have tried</summary>
#
# Nothing more: both heads have the same output, and the two blocks of the output projection could be replaced by one block, their sum. If the heads were added, they would all pass through the same output projection, with no trace of which head found what.
# </details>
#
# <details><summary>Hint: one head</summary>
#
# You may use `F.scaled_dot_product_attention(query, key, value, attn_mask=mask)`; there, too, True means allowed.
# </details>
# <details><summary>Hint: concatenation</summary>
#
# `torch.cat(list_of_tensors, dim=-1)` joins the features of each token.
# </details>


# %% exercise="loop_of_heads"
def loop_of_heads(
    x: torch.Tensor,
    w_query: torch.Tensor,
    w_key: torch.Tensor,
    w_value: torch.Tensor,
    w_output: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Run the heads one after the other and mix their outputs.

    Shapes: x (batch, length, d_model), w_query and w_key (num_heads, d_model, d_head), w_value
    (num_heads, d_model, d_value), w_output (num_heads * d_value, d_model), mask
    (batch, length, length) or (length, length); returns (batch, length, d_model).
    """
    ### BEGIN SOLUTION
    found = []
    for to_query, to_key, to_value in zip(w_query, w_key, w_value, strict=True):
        scores = (x @ to_query) @ (x @ to_key).transpose(-2, -1) / math.sqrt(to_key.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        found.append(scores.softmax(dim=-1) @ (x @ to_value))
    return torch.cat(found, dim=-1) @ w_output
    ### END SOLUTION


# %% [markdown]
# {{exercise MultiHeadAttention}}
#
# A loop over small products leaves the hardware idle between them. Real implementations project for all heads at once, with one matrix of width `num_heads * d_head`, and then split the features into heads. The split is where mistakes happen. Below, token `t` has the features `10 * t`, `10 * t + 1`, and so on. Head 0 of two should get the features 0 and 1 of *every* token. Run the cell and look at the result of `view`:

# %%
x = 10 * torch.arange(3)[:, None] + torch.arange(4)
print(x, "\n")
heads_first = x.view(2, 3, 2)
print("what head 0 gets:\n", heads_first[0])

# %% [markdown]
# The shape is correct, no error is raised, and head 0 gets all of token 0, half of token 1 and nothing of token 2. Only a comparison with the loop shows the mistake.
#
# Write the layer. The parameters are those of four linear layers with biases, `query`, `key`, `value` and `output`, each from `d_model` to `d_model`: `query.weight`, `query.bias`, and so on. With a `context`, the queries come from `x` and the keys and values from `context` (cross-attention); without one, all three come from `x` (self-attention).
#
# A mask has the shape `(q_len, k_len)` if it is the same for all sequences, or `(batch, q_len, k_len)` if each sequence has its own; it is always the same for all heads.
#
# *Before you code:* scores have the shape `(batch, heads, q_len, k_len)`. A mask `(batch, q_len, k_len)` has one axis fewer. With which axis does broadcasting align its first one? When does that raise an error, and when does it not?
#
# <details><summary>Answers, after you have tried</summary>
#
# With the heads. It raises an error if the two sizes differ and neither is 1. If there are as many sequences as heads, it runs, and each head gets the mask of a different sequence.
# </details>
#
# <details><summary>Hint: to heads and back</summary>
#
# `x.unflatten(-1, (num_heads, d_head))` splits the features of each token; then swap two axes. On the way back, undo both steps in reverse order.
# </details>
# <details><summary>Hint: the mask</summary>
#
# Give the mask an axis of size 1 for the heads: `mask.unsqueeze(-3)` works for both shapes.
# </details>


# %% exercise="MultiHeadAttention"
class MultiHeadAttention(nn.Module):
    """All heads at once, for self-attention and cross-attention."""

    def __init__(self, d_model: int, num_heads: int):
        super().__init__()
        ### BEGIN SOLUTION
        self.num_heads, self.d_head = num_heads, d_model // num_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)
        ### END SOLUTION

    def forward(
        self,
        x: torch.Tensor,
        context: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the output of attention for each token of x.

        Shapes: x (batch, q_len, d_model), context (batch, k_len, d_model), mask (q_len, k_len) or
        (batch, q_len, k_len); returns (batch, q_len, d_model).
        """
        ### BEGIN SOLUTION
        source = x if context is None else context
        maps = ((self.query, x), (self.key, source), (self.value, source))
        query, key, value = (
            linear(tokens).unflatten(-1, (self.num_heads, self.d_head)).transpose(1, 2)
            for linear, tokens in maps
        )  # each (batch, heads, length, d_head)
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_head)
        if mask is not None:
            scores = scores.masked_fill(~mask.unsqueeze(-3), -math.inf)
        found = scores.softmax(dim=-1) @ value
        return self.output(found.transpose(1, 2).flatten(2))
        ### END SOLUTION


# %% [markdown]
# {{exercise mended_derivation}}
#
# An article derives attention step by step. New tokens are sums of old ones, $t'_j = \sum_i w_{ij} V(t_i)$. The weights come from two projections: a softmax over the index $i$ of $q_i \cdot k_j / \sqrt{d_{\text{head}}}$. Every step sounds plausible, all shapes fit, and the article ends with the well-known formula $\mathrm{softmax}(QK^\top/\sqrt{d_{\text{head}}})\,V$. But that is not the formula that was derived.
#
# The derivation was then written as code, and later the usual mask was added: entry `[i, j]` of the score matrix is allowed if `j <= i`. The cell below changes one token at a time and prints which outputs change. In a causal model, output 0 may change only if token 0 does.


# %%
def published_derivation(tokens, w_query, w_key, w_value, is_causal):
    query, key, value = tokens @ w_query, tokens @ w_key, tokens @ w_value
    weights = query @ key.T / math.sqrt(query.shape[-1])
    if is_causal:
        allowed = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
        weights = weights.masked_fill(~allowed, -math.inf)
    weights = weights.softmax(dim=0)  # over i
    return torch.stack([weights[:, j] @ value for j in range(len(tokens))])


generator = torch.Generator().manual_seed(0)
tokens = torch.randn(6, 8, generator=generator)
maps = torch.randn(3, 8, 4, generator=generator)
before = published_derivation(tokens, *maps, is_causal=True)
for changed in range(6):
    other = tokens.clone()
    other[changed] += 1.0
    after = published_derivation(other, *maps, is_causal=True)
    differs = (after - before).abs().amax(dim=-1) > 1e-6
    print(f"token {changed} is changed: outputs {differs.nonzero().flatten().tolist()} change")

# %% [markdown]
# The mask is the usual one, but the rows of this matrix are not the rows that the mask expects. Which token provides the query in $w_{ij}$: the one that receives ($j$) or the one that gives ($i$)? And which one should?
#
# Write `mended_derivation`. It returns the new tokens and the weights. Row $j$ of the weights holds the weights of token $j$ over all tokens and sums to 1. With `is_causal`, no token has weight on a later one, however large its score.
#
# *Before you code:* without a mask, is there a choice of `w_query` and `w_key` for which the published function computes attention correctly? What does this say about finding such a bug by training?
#
# <details><summary>Answers, after you have tried</summary>
#
# Yes: swap the two projections, and it is exactly attention. So training simply learns queries in place of keys, and no loss will reveal the bug as long as there is no mask.
# </details>
#
# <details><summary>Hint: three lines</summary>
#
# The dot product, the axis of the softmax, and the sum over values must agree on which index is the query. Transposing only the mask hides the symptom and keeps the bug.
# </details>


# %% exercise="mended_derivation"
def mended_derivation(
    tokens: torch.Tensor,
    w_query: torch.Tensor,
    w_key: torch.Tensor,
    w_value: torch.Tensor,
    is_causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the new tokens, and their weights over the old ones.

    Shapes: tokens (length, d_model), w_query and w_key (d_model, d_head), w_value
    (d_model, d_value); returns (length, d_value) and (length, length), row j for token j.
    """
    ### BEGIN SOLUTION
    query, key, value = tokens @ w_query, tokens @ w_key, tokens @ w_value
    scores = query @ key.T / math.sqrt(query.shape[-1])  # [j, i]: query j, key i
    if is_causal:
        allowed = torch.ones_like(scores, dtype=torch.bool).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    weights = scores.softmax(dim=1)
    return weights @ value, weights
    ### END SOLUTION


# %% [markdown]
# {{deeper}}

# %% [markdown]
# {{exercise grouped_query_attention}}
#
# During generation, a model caches the keys and values of all earlier tokens and loads them again for every new one; for long sequences, loading them takes more time than the arithmetic. Grouped-query attention caches fewer: neighbouring query heads share one key head and one value head. With 6 query heads and 2 key heads, query heads 0, 1, 2 use key head 0, and 3, 4, 5 use key head 1. With a single key head this is multi-query attention; with as many key heads as query heads it is ordinary multi-head attention.
#
# A model that was trained with all its key heads can be converted into a grouped one: each shared head is initialised as the *mean* of the heads that it replaces, and some further training restores the quality ([Ainslie et al. 2023, section 2.1](https://arxiv.org/abs/2305.13245)). Write that too, for a projection matrix `(d_model, num_heads * d_head)`.
#
# *Before you code:* for `t = torch.tensor([0, 1])`, what do `t.repeat(3)` and `t.repeat_interleave(3)` give? Which of them has the order above? With a single key head, would a test detect the wrong one?
#
# <details><summary>Answers, after you have tried</summary>
#
# `[0, 1, 0, 1, 0, 1]` and `[0, 0, 0, 1, 1, 1]`. The second has the order above. With a single key head both are the same, and no test would detect the difference.
# </details>
#
# <details><summary>Hint: which mean</summary>
#
# Split the columns into the axes (shared heads, heads per group, `d_head`), and take the mean over the middle one.
# </details>


# %% exercise="grouped_query_attention"
def grouped_query_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    """Attend with several query heads to each key and value head.

    Shapes: query (batch, num_heads, q_len, d_head), key (batch, num_kv_heads, k_len, d_head),
    value (batch, num_kv_heads, k_len, d_value); returns (batch, num_heads, q_len, d_value).
    """
    ### BEGIN SOLUTION
    num_sharing = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(num_sharing, dim=1)
    value = value.repeat_interleave(num_sharing, dim=1)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    return scores.softmax(dim=-1) @ value
    ### END SOLUTION


def pool_heads(w: torch.Tensor, num_heads: int, num_kv_heads: int) -> torch.Tensor:
    """Return the key or value projection of grouped attention, given one with all heads.

    Shapes: w (d_model, num_heads * d_head); returns (d_model, num_kv_heads * d_head).
    """
    ### BEGIN SOLUTION
    num_sharing = num_heads // num_kv_heads
    return w.unflatten(1, (num_kv_heads, num_sharing, -1)).mean(dim=2).flatten(1)
    ### END SOLUTION


# %% [markdown]
# {{exercise head_circuits}}
#
# The heads are concatenated, then $W_O$ mixes them. Split $W_O$ into one block of rows per head, and the product becomes a sum:
#
# $$\big[\,Y_0\;\cdots\; Y_{H-1}\,\big]\,W_O = \sum_h Y_h\, W_O^{h}, \qquad Y_h = A_h\, X\, W_V^{h}$$
#
# So each head adds its own vectors to the result. And a head's four matrices occur only in two products. Which tokens it attends to depends on $W_Q^h W_K^{h\top}$, its **QK circuit**; what it writes when it attends to a token depends on $W_V^h W_O^h$, its **OV circuit**. Both are `d_model` by `d_model`, and neither can have a rank above `d_head`.
#
# Here the matrices of all heads are concatenated, in the row convention: `w_query`, `w_key` and `w_value` are `(d_model, num_heads * d_head)` and are used as `x @ w_query`; `w_output` is `(num_heads * d_head, d_model)`.
#
# *Before you code:* papers that use column vectors write the circuits as $W_Q^\top W_K$ and $W_O W_V$. Why do both look different here?
#
# <details><summary>Answers, after you have tried</summary>
#
# Each matrix here is the transpose of theirs. So $W_Q^\top W_K$ becomes $W_Q W_K^\top$, and the score of the rows $x$ and $y$ is $x\,W_Q W_K^\top y^\top$. A row vector is multiplied from the right, so the value projection, which comes first, is on the left: $y\,W_V W_O$.
# </details>
#
# <details><summary>Hint: the slices</summary>
#
# Head `h` has the features `h * d_head` to `(h + 1) * d_head - 1`. In `w_query` a feature is a column; in `w_output` it is a row.
# </details>


# %% exercise="head_circuits"
def head_circuits(
    w_query: torch.Tensor,
    w_key: torch.Tensor,
    w_value: torch.Tensor,
    w_output: torch.Tensor,
    num_heads: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the QK circuits and the OV circuits of all heads.

    Shapes: w_query, w_key and w_value (d_model, num_heads * d_head), w_output
    (num_heads * d_head, d_model); returns two of (num_heads, d_model, d_model).
    """
    ### BEGIN SOLUTION
    query, key, value = (
        w.unflatten(1, (num_heads, -1)).transpose(0, 1) for w in (w_query, w_key, w_value)
    )  # each (num_heads, d_model, d_head)
    output = w_output.unflatten(0, (num_heads, -1))
    return query @ key.transpose(-2, -1), value @ output
    ### END SOLUTION


def head_contributions(found: torch.Tensor, w_output: torch.Tensor) -> torch.Tensor:
    """Return the contribution of each head to the output of the layer.

    Shapes: found (batch, num_heads, length, d_head), w_output (num_heads * d_head, d_model);
    returns (batch, num_heads, length, d_model). Summed over the heads, this is the output.
    """
    ### BEGIN SOLUTION
    blocks = w_output.unflatten(0, (found.shape[1], found.shape[3]))
    return torch.einsum("bhtd,hdm->bhtm", found, blocks)
    ### END SOLUTION


# %% [markdown]
# {{exercise count_attention}}
#
# One head of width 64 or eight of width 8: which costs more? Count.
#
# - `count_attention` counts the parameters of a layer: the projections of queries, keys, values and outputs, with or without biases. Queries and outputs have width `d_model`; keys and values have `num_kv_heads` heads of width `d_model // num_heads`.
# - `attention_flops` counts a batch's operations: a multiplication and an addition are two. The product of an `m` by `k` and a `k` by `n` matrix takes `2 * m * k * n`. Return two numbers: one for the four projections, and one for the two products of attention itself, scores and weighted averages. Biases and the softmax are ignored. In cross-attention there are `q_len` queries and `k_len` keys.
# - `break_even_length` is the length at which the two numbers are equal, for self-attention (`q_len = k_len`). Longer sequences spend more on the two products, shorter ones on the projections.
#
# *Before you code:* take `num_kv_heads = num_heads`. If you double the number of heads and halve their width, which counts change?
#
# <details><summary>Answers, after you have tried</summary>
#
# None: only the number of heads times their width matters, and that is `d_model` before and after.
# </details>
#
# <details><summary>Hint: the two products</summary>
#
# Every query head computes `q_len` times `k_len` dot products of width `d_head`; the average of the values costs the same again. `num_heads * d_head` is `d_model`.
# </details>


# %% exercise="count_attention"
def count_attention(d_model: int, num_heads: int, num_kv_heads: int, has_bias: bool) -> int:
    """Return the number of parameters of a layer."""
    ### BEGIN SOLUTION
    d_kv = num_kv_heads * (d_model // num_heads)
    matrices = d_model * (2 * d_model + 2 * d_kv)
    biases = 2 * d_model + 2 * d_kv
    return matrices + has_bias * biases
    ### END SOLUTION


def attention_flops(
    batch: int, q_len: int, k_len: int, d_model: int, num_heads: int, num_kv_heads: int
) -> tuple[int, int]:
    """Return the operations of the four projections and of the two products in a forward pass."""
    ### BEGIN SOLUTION
    d_kv = num_kv_heads * (d_model // num_heads)
    maps = 2 * q_len * d_model * 2 * d_model + 2 * k_len * d_model * 2 * d_kv
    products = 2 * (2 * q_len * k_len * d_model)
    return batch * maps, batch * products
    ### END SOLUTION


def break_even_length(d_model: int, num_heads: int, num_kv_heads: int) -> float:
    """Return the length at which the products of self-attention cost as much as its projections."""
    ### BEGIN SOLUTION
    return d_model + num_kv_heads * d_model / num_heads
    ### END SOLUTION


# %% [markdown]
# {{exercise drop_key_bias}}
#
# There are four projections and four biases. The cell below takes torch's attention layer, sets each bias in turn to zero, and prints how much the output changes.

# %%
with torch.no_grad():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64).eval()
    for parameter in layer.parameters():
        parameter.normal_(std=0.5)
    tokens = torch.randn(2, 7, 12, dtype=torch.float64)
    before = layer(tokens, tokens, tokens)[0]
    biases = {
        "query": layer.in_proj_bias[:12],
        "key": layer.in_proj_bias[12:24],
        "value": layer.in_proj_bias[24:],
        "output": layer.out_proj.bias,
    }
    for name, bias in biases.items():
        kept = bias.clone()
        bias.zero_()
        change = (layer(tokens, tokens, tokens)[0] - before).abs().max()
        print(f"{name:6} bias set to zero: largest change {change:.1e}")
        bias.copy_(kept)

# %% [markdown]
# One of the four has no effect. Find the reason in one line of algebra: expand $(q_i + b_Q)\cdot(k_j + b_K)$, and sort the terms by whether they depend on the query $i$, on the key $j$, or on both. The softmax of row $i$ does not change when a constant is added to all its scores.
#
# 1. `split_score_bias` returns the two terms that the biases of one head add to the scores $q_i\cdot k_j/\sqrt{d_{\text{head}}}$: one number per query and one number per key. Count the constant $b_Q\cdot b_K$ with the numbers per query. The numbers per key say which keys get more weight from every query.
# 2. `drop_key_bias` takes the weights of `MultiHeadAttention` and returns new ones with a key bias of zero that compute the same function.
# 3. `move_value_bias` returns new ones with a value bias of zero that compute the same function: the value bias has an effect, but the output bias can absorb it.
#
# *Before you code:* rows of attention weights sum to 1. If a constant is added to every value, how does the average change? Is this still true for a query that may attend to nothing?
#
# <details><summary>Answers, after you have tried</summary>
#
# By the same constant, because the weights sum to 1. The weights of a query that may attend to nothing sum to 0, so its output does not change.
# </details>
#
# <details><summary>Hint: new weights</summary>
#
# `{**weights, "key.bias": something}` is a new dictionary; the original is not changed.
# </details>
# <details><summary>Hint: where the value bias ends up</summary>
#
# Follow the constant to the output: it passes through the output projection. `output.weight` is stored as `(d_out, d_in)`.
# </details>


# %% exercise="drop_key_bias"
def split_score_bias(
    query: torch.Tensor, key: torch.Tensor, query_bias: torch.Tensor, key_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the terms that the biases of a head add to its scaled scores, per query and per key.

    Shapes: query (batch, q_len, d_head) and key (batch, k_len, d_head), both before the biases
    are added, query_bias and key_bias (d_head,); returns (batch, q_len) and (batch, k_len).
    """
    ### BEGIN SOLUTION
    root = math.sqrt(query.shape[-1])
    return (query + query_bias) @ key_bias / root, key @ query_bias / root
    ### END SOLUTION


def drop_key_bias(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return weights with a key bias of zero that compute the same function.

    The names are those of MultiHeadAttention: query.weight, query.bias, key.weight, and so on.
    """
    ### BEGIN SOLUTION
    return {**weights, "key.bias": torch.zeros_like(weights["key.bias"])}
    ### END SOLUTION


def move_value_bias(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return weights with a value bias of zero that compute the same function."""
    ### BEGIN SOLUTION
    constant = weights["output.weight"] @ weights["value.bias"]
    moved = {
        "value.bias": torch.zeros_like(weights["value.bias"]),
        "output.bias": weights["output.bias"] + constant,
    }
    return weights | moved
    ### END SOLUTION


# %% [markdown]
# {{exercise check_multi_head}}
#
# The test below is of a kind that many repositories have: a fixed seed, small weights as at initialisation, one causal mask. It even compares with torch's own layer. Run the cell: a layer whose heads are split across tokens passes the test. Small weights make every output smaller than the tolerance, so even a layer that returns zeros would pass.

# %%
NAMES = ("query", "key", "value", "output")


def torch_attention(weights, num_heads, x, context=None, mask=None):
    """Torch's own layer. Its masks are True where attention is FORBIDDEN, and there is one for each
    head of each sequence.
    """
    source = x if context is None else context
    layer = nn.MultiheadAttention(x.shape[-1], num_heads, batch_first=True, dtype=x.dtype)
    layer.in_proj_weight.data = torch.cat([weights[f"{name}.weight"] for name in NAMES[:3]])
    layer.in_proj_bias.data = torch.cat([weights[f"{name}.bias"] for name in NAMES[:3]])
    layer.out_proj.weight.data = weights["output.weight"]
    layer.out_proj.bias.data = weights["output.bias"]
    if mask is not None:
        mask = ~mask.expand(len(x), x.shape[1], source.shape[1])
        mask = mask.repeat_interleave(num_heads, dim=0)
    return layer(x, source, source, attn_mask=mask, need_weights=False)[0].detach()


def scrambled_attention(weights, num_heads, x, context=None, mask=None):
    """The heads are split by view, across tokens, and merged in the same way."""
    source = x if context is None else context
    query, key, value = (
        F.linear(tokens, weights[f"{name}.weight"], weights[f"{name}.bias"]).view(
            len(x), num_heads, tokens.shape[1], -1
        )
        for name, tokens in (("query", x), ("key", source), ("value", source))
    )
    attn_mask = None if mask is None else mask.unsqueeze(-3)
    found = F.scaled_dot_product_attention(query, key, value, attn_mask)
    return F.linear(found.reshape(x.shape), weights["output.weight"], weights["output.bias"])


def published_check(attention):
    generator = torch.Generator().manual_seed(1)
    weights = {f"{name}.weight": 0.02 * torch.randn(12, 12, generator=generator) for name in NAMES}
    weights |= {f"{name}.bias": torch.zeros(12) for name in NAMES}
    x = torch.randn(2, 5, 12, generator=generator)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    seen = attention(weights, 3, x, None, mask)
    assert seen.shape == x.shape
    assert torch.allclose(seen, torch_attention(weights, 3, x, None, mask), atol=1e-2)


for attention in (torch_attention, scrambled_attention):
    try:
        published_check(attention)
        print(f"{attention.__name__:20} passes")
    except AssertionError:
        print(f"{attention.__name__:20} is caught")

# %% [markdown]
# Write the test that should have been there. It gets `attention`, a function of `(weights, num_heads, x, context, mask)` with the names and shapes of `MultiHeadAttention`, and raises `AssertionError` if it is wrong. You may compare with `torch_attention`, with your own class, or with properties that attention must have. It is run on nine wrong layers: one splits the heads wrongly, one scales wrongly, one omits the output projection and one the biases, one ignores the context, three use the mask wrongly (one of them only if there are as many sequences as heads), and one gives each sequence the result of another. Correct layers must pass, and one of them computes in `float32` for any input, so a result may be off by a hundred-thousandth of the largest intermediate number: a tolerance of 0.001 leaves room for that. Leave each query at least one key in your masks: where nothing is allowed, correct layers differ. No axis of your inputs may be longer than 256.
#
# *Before you code:* a test can find bugs only in what it varies. Which inputs does the published test never use?
#
# <details><summary>Answers, after you have tried</summary>
#
# A context, no mask at all, a mask for each sequence, biases that are not zero, weights large enough for attention not to be uniform, and as many sequences as heads.
# </details>
#
# <details><summary>Hint: several cases</summary>
#
# Loop over several cases, each with its own `x`, `context` and `mask`. Draw all numbers from a `torch.Generator` with a fixed seed, so that the test gives the same verdict each time.
# </details>


# %% exercise="check_multi_head"
def check_multi_head(attention) -> None:
    """Raise AssertionError if a multi-head attention is wrong.

    attention(weights, num_heads, x, context, mask): weights has query.weight, query.bias and so
    on for query, key, value and output; context and mask may be None; mask is (q_len, k_len) or
    (batch, q_len, k_len), with at least one key allowed in each row.
    """
    ### BEGIN SOLUTION
    generator = torch.Generator().manual_seed(2)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    def head_by_head(weights, x, context, mask):
        source = x if context is None else context

        def cut(name, tokens, rows):
            return tokens @ weights[f"{name}.weight"][rows].T + weights[f"{name}.bias"][rows]

        found = []
        for rows in torch.arange(12).split(4):
            query, key = cut("query", x, rows), cut("key", source, rows)
            value = cut("value", source, rows)
            found.append(F.scaled_dot_product_attention(query, key, value, attn_mask=mask))
        return F.linear(torch.cat(found, dim=-1), weights["output.weight"], weights["output.bias"])

    weights = {}
    for name in ("query", "key", "value", "output"):
        weights |= {f"{name}.weight": 0.5 * draw(12, 12), f"{name}.bias": draw(12)}
    for batch in (2, 3):
        x, context = draw(batch, 5, 12), draw(batch, 7, 12)
        shared, own = draw(5, 7) > 0, draw(batch, 5, 7) > 0
        shared[:, 0] = own[:, :, 0] = True
        for args in (x, None, None), (x, context, None), (x, context, shared), (x, context, own):
            seen, expected = attention(weights, 3, *args), head_by_head(weights, *args)
            assert seen.shape == expected.shape, f"the shape is {tuple(seen.shape)}"
            off = (seen - expected).abs().max()
            assert off < 1e-3, f"off by {off:.2g}"
    ### END SOLUTION


# %% [markdown]
# {{exercise convolution_as_heads}}
#
# Take attention with fixed weights: each token gives weight $c_0$ to itself, $c_1$ to the previous token, $c_2$ to the one before that, whatever the tokens are. The matrix of weights is then constant along its diagonals (a Toeplitz matrix), and attention has become a causal convolution. Write `toeplitz_weights`: entry `[i, j]` is `kernel[i - j]` if `0 <= i - j < width`, else 0. Its rows need not sum to 1.
#
# A convolution of vectors has a *matrix* for each step back, $y_i = \sum_h x_{i-h} K_h$; before the first token the input is zero. Read it as attention heads: head $h$ gives all its weight to the token $h$ positions back, and its OV circuit is $K_h$. So a convolution of width $w$ is one layer of $w$ heads whose weights do not depend on the input. Write `convolution_as_heads`; it returns the output and the weights of each head.
#
# *Before you code:* where does head 2 attend from token 1? What should this row of weights be?
#
# <details><summary>Answers, after you have tried</summary>
#
# To position -1, which does not exist. So its row should be all zeros.
# </details>
#
# <details><summary>Hint: distances</summary>
#
# `torch.arange(length)[:, None] - torch.arange(length)` is a matrix of distances: row `i`, column `j`, entry `i - j`.
# </details>
# <details><summary>Hint: torch's convolution</summary>
#
# `F.conv1d` does not flip its kernel: the last entry multiplies the newest token.
# </details>


# %% exercise="convolution_as_heads"
def toeplitz_weights(kernel: torch.Tensor, length: int) -> torch.Tensor:
    """Return the weights of a causal convolution.

    Shapes: kernel (width,), which may be longer than the sequence; returns (length, length).
    """
    ### BEGIN SOLUTION
    steps_back = torch.arange(length)[:, None] - torch.arange(length)
    inside = (steps_back >= 0) & (steps_back < len(kernel))
    return torch.where(inside, kernel[steps_back.clamp(0, len(kernel) - 1)], 0.0)
    ### END SOLUTION


def convolution_as_heads(
    x: torch.Tensor, kernel: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the convolution of x with the kernel, and the weights of the heads that compute it.

    Shapes: x (batch, length, d_in), kernel (width, d_in, d_out), kernel[0] for the token itself,
    width may be larger than length; returns (batch, length, d_out) and (width, length, length).
    """
    ### BEGIN SOLUTION
    length = x.shape[1]
    steps_back = torch.arange(length)[:, None] - torch.arange(length)
    heads = torch.arange(len(kernel))[:, None, None]
    weights = (steps_back == heads).to(x.dtype)
    return torch.einsum("hts,bsi,hio->bto", weights, x, kernel), weights
    ### END SOLUTION


# %% [markdown]
# {{exercise latent_attention}}
#
# During generation, each layer of multi-head attention caches a key and a value of every head for each token. *Multi-head latent attention* caches one short vector instead, the latent $c = x W_c$ of width `d_latent`, and makes the keys and values of head $h$ from it ([DeepSeek-AI 2024, section 2.1.2](https://arxiv.org/abs/2405.04434)):
#
# $$k_h = c\, W_K^h, \qquad v_h = c\, W_V^h$$
#
# So every head still has keys and values of its own. The queries are projected from the tokens, as always.
#
# 1. `latent_attention` makes the latents, expands them into keys and values, and attends. It returns the outputs of the heads before they are merged.
# 2. For each new token, the keys and values of all cached tokens would have to be made again. They need not be made at all, because $q\,(c\,W_K)^\top = (q\,W_K^\top)\,c^\top$: project the one query instead of the many latents. `absorbed_query` returns $q\,W_K^{h\top}$ without any scaling. `absorbed_attention` takes these queries and the cached latents. It makes no key or value for any token: it returns the output and, as `mixed`, the weighted average of the latents that the output is made from. Both forms must agree to within 1e-5.
# 3. `cached_floats` counts the numbers that a whole model caches per token: with multi-head attention, with grouped-query attention, and with latent attention. Keys and values of all three have width `d_head`. A rotation by position (chapter 5) cannot be absorbed into the query, so in each layer latent attention also caches one rotated key of width `d_rotary`, which all heads share.
#
# *Before you code:* an absorbed query has width `d_latent`. By the square root of which width are its scores divided?
#
# <details><summary>Answers, after you have tried</summary>
#
# Of `d_head`, as before. The scores are the same numbers, computed in another order: they were dot products of `d_head` terms.
# </details>
#
# <details><summary>Hint: all heads at once</summary>
#
# `@` broadcasts: `(batch, 1, length, d_latent)` times `(num_heads, d_latent, d_head)` is `(batch, num_heads, length, d_head)`. All heads share the latents, so they need an axis of size 1 for the heads.
# </details>
# <details><summary>Hint: the values</summary>
#
# $\sum_s a_s\,(c_s W_V) = \big(\sum_s a_s\,c_s\big)\, W_V$: average first, then project once per query.
# </details>


# %% exercise="latent_attention"
def latent_attention(
    x: torch.Tensor,
    w_query: torch.Tensor,
    w_latent: torch.Tensor,
    w_key: torch.Tensor,
    w_value: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend to keys and values that are expanded from one latent per token.

    Shapes: x (batch, length, d_model), w_query (num_heads, d_model, d_head), w_latent
    (d_model, d_latent), w_key (num_heads, d_latent, d_head), w_value
    (num_heads, d_latent, d_value), mask (batch, length, length) or (length, length), the same
    for all heads; returns (batch, num_heads, length, d_value).
    """
    ### BEGIN SOLUTION
    latent = (x @ w_latent).unsqueeze(1)  # for all heads
    query, key, value = x.unsqueeze(1) @ w_query, latent @ w_key, latent @ w_value
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask.unsqueeze(-3), -math.inf)
    return scores.softmax(dim=-1) @ value
    ### END SOLUTION


def absorbed_query(query: torch.Tensor, w_key: torch.Tensor) -> torch.Tensor:
    """Return queries that can be compared with the latents themselves, unscaled.

    Shapes: query (batch, num_heads, q_len, d_head), w_key (num_heads, d_latent, d_head); returns
    (batch, num_heads, q_len, d_latent).
    """
    ### BEGIN SOLUTION
    return query @ w_key.transpose(-2, -1)
    ### END SOLUTION


def absorbed_attention(
    absorbed: torch.Tensor, latent: torch.Tensor, w_value: torch.Tensor, d_head: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend to latents, and return the output and the averages of the latents, as mixed.

    Shapes: absorbed (batch, num_heads, q_len, d_latent), latent (batch, k_len, d_latent), w_value
    (num_heads, d_latent, d_value); returns (batch, num_heads, q_len, d_value) and
    (batch, num_heads, q_len, d_latent). d_head is the width of the queries before absorption.
    """
    ### BEGIN SOLUTION
    latent = latent.unsqueeze(1)
    scores = absorbed @ latent.transpose(-2, -1) / math.sqrt(d_head)
    mixed = scores.softmax(dim=-1) @ latent
    return mixed @ w_value, mixed
    ### END SOLUTION


def cached_floats(
    num_layers: int, num_heads: int, num_kv_heads: int, d_head: int, d_latent: int, d_rotary: int
) -> tuple[int, int, int]:
    """Return how many numbers a model caches per token with three kinds of attention.

    In this order: multi-head attention, grouped-query attention with num_kv_heads key and value
    heads, and latent attention.
    """
    ### BEGIN SOLUTION
    per_head = 2 * d_head  # a key and a value
    per_layer = num_heads * per_head, num_kv_heads * per_head, d_latent + d_rotary
    multi_head, grouped, latent = (num_layers * numbers for numbers in per_layer)
    return multi_head, grouped, latent
    ### END SOLUTION


# %% [markdown]
# ## Look at what you built
#
# The plot takes your own layer with four heads of width 4 and random weights. It shows the singular values of each head's OV circuit, and of the sum of the circuits. Each circuit is 16 by 16, but a head writes in only 4 directions; the other singular values are 0 up to rounding. The sum has full rank. It is also exactly the circuit of one head of width 16 with the same matrices: if all heads attend to the same token, together they write what the wide head writes. That changes if they attend to different tokens, which is their purpose. (This cell is not graded. It uses your `MultiHeadAttention` and `head_circuits`.)

# %%
torch.manual_seed(3)
layer = MultiHeadAttention(d_model=16, num_heads=4)
rows = [linear.weight.detach().T for linear in (layer.query, layer.key, layer.value, layer.output)]
_, narrow = head_circuits(*rows, num_heads=4)
_, wide = head_circuits(*rows, num_heads=1)

for head, circuit in enumerate(narrow):
    plt.plot(torch.linalg.svdvals(circuit), "o-", label=f"head {head} of four")
plt.plot(torch.linalg.svdvals(narrow.sum(dim=0)), "ks", label="sum of the four")
plt.plot(torch.linalg.svdvals(wide[0]), "k--", label="one head of width 16")
plt.xlabel("index of the singular value")
plt.ylabel("singular value of the OV circuit")
plt.legend()
plt.show()

# %% [markdown]
# {{question why_several_heads}}
#
# Two heads with queries and keys of width 32 have as many parameters as one head of width 64. What can the two heads do that the one cannot? Give an example of a sentence, or of a task, in which one position needs this. And what does each of the two lose compared with the one? Answer in three to five sentences.

# %% [markdown] written="why_several_heads" points=3
# **What earns the points**, one each:
#
# 1. One head gives each query one distribution over the keys; two heads give two that are independent of each other.
# 2. An example in which one position needs two things at once, such as a verb that needs its subject and its object, with the reason why a single distribution averages the two.
# 3. Each QK circuit has a lower rank: its scores come from 32 dimensions instead of 64, so it can express fewer patterns of matching.
#
# **Often seen, and wrong:** “They are faster because they run in parallel”; “more heads have more parameters”; the claim that each head sees only a part of the tokens (each sees all tokens, through projections of its own).
