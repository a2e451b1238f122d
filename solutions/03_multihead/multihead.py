# %% [markdown]
# # Many heads
#
# This notebook goes with chapter 3 of *Attention from the Ground Up*. You build one head, then a list of them, then all of them in one product, and take the result apart again: what each head writes, which of the biases does anything, what shared keys and values cost, how many numbers and operations there are. On the way you write a test that other people's attention has to pass, and mend a derivation.
#
# **How it works.** Write your code where it says `YOUR CODE HERE`, run the cell, then run the check under it. A check tells you what it saw, what it expected, and, if it recognises the mistake, which one you made. It draws new numbers for every test, so there is no answer to hard-code. Points count test by test: half an exercise earns half its points. When your work is graded, the same checks may run with other numbers. Checks mostly pass float64 tensors: keep the dtype of what you are given, and let gradients flow back through it, since what you write is going to be trained.
#
# **Conventions.** A token is a row, and a map multiplies it from the right: `x @ w`. `nn.Linear(d_in, d_out)` keeps its matrix the other way round, as `(d_out, d_in)`, and computes `x @ weight.T + bias`. Tensors of heads have the axes `(batch, heads, length, d_head)`. A mask is boolean and True where attention is allowed; in this notebook every query may attend to at least one key. `num_heads` heads of width `d_head` lie side by side: head 0 owns the first `d_head` features, head 1 the next ones, and so on.
#
# **Modules.** Where you write a class, the check builds it with settings of its own, gives it weights by the names that the exercise fixes, and calls it. How your class draws its first weights is up to you.

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
# One head is attention with three maps of its own: what does this token look for (`query`), what does it answer to (`key`), what does it hand over (`value`)? All three read the same tokens, and each makes vectors of width `d_head` from vectors of width `d_model`.
#
# The parameters are called `query.weight`, `key.weight` and `value.weight`, three linear maps without bias. A head returns what it found, `d_head` features per token; bringing it back to `d_model` is not its job.
#
# *Before you code:* a head whose query map is all zeros: what does it return for each token? And one whose key map is?
#
# <details><summary>Answers, after you have tried</summary>
#
# In both cases all scores are 0, and each token gets the plain mean of the values that it may see.
# </details>
#
# <details><summary>Hint: three maps</summary>
#
# `self.query = nn.Linear(d_model, d_head, bias=False)` makes a parameter with the name `query.weight`.
# </details>
# <details><summary>Hint: the mask</summary>
#
# Forbidden scores become `-math.inf` before the softmax; then the softmax makes zeros of them and shares the rest out.
# </details>


# %% exercise="SelfAttentionHead"
class SelfAttentionHead(nn.Module):
    """One head of self attention."""

    def __init__(self, d_model: int, d_head: int):
        super().__init__()
        ### BEGIN SOLUTION
        self.query = nn.Linear(d_model, d_head, bias=False)
        self.key = nn.Linear(d_model, d_head, bias=False)
        self.value = nn.Linear(d_model, d_head, bias=False)
        self.scale = 1 / math.sqrt(d_head)
        ### END SOLUTION

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Let every token collect what it looks for.

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
# A verb may need its subject and its object. One head has one set of weights per token: it can look at both, but what it brings home is their average, and an average does not say which was which. So use several heads, and lay what they found side by side:
#
# $$\mathrm{loop}(X) = \big[\,Y_0\;\; Y_1\;\; \cdots\;\; Y_{H-1}\,\big]\; W_O$$
#
# The output map $W_O$ has one row per feature found and mixes all of them into a vector of width `d_model`.
#
# Here the maps are plain matrices in the row convention, one for each head: head `h` makes its queries by `x @ w_query[h]`. Values may have a width of their own, `d_value`. (Your module from the last exercise makes its own weights; here they are handed over.)
#
# *Before you code:* two heads with the same maps: what can the layer do that one of them could not? What would be lost if the heads were added instead of laid side by side?
#
# <details><summary>Answers, after you have tried</summary>
#
# Nothing more: both find the same, and the two blocks of the output map might as well be one block, their sum. Added instead of laid side by side, the heads would all be read by the same output map, and which of them found what would be lost.
# </details>
#
# <details><summary>Hint: one head</summary>
#
# You may use `F.scaled_dot_product_attention(query, key, value, attn_mask=mask)`; for it, too, True means allowed.
# </details>
# <details><summary>Hint: side by side</summary>
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
    """Run the heads one after the other and mix what they found.

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
# A loop of small products keeps a processor waiting between them. Real implementations map all heads at once, with one matrix of width `num_heads * d_head`, and then cut the features into heads. The cut is where it goes wrong. Below, token `t` holds the features `10 * t`, `10 * t + 1`, and so on. Head 0 of two should get the features 0 and 1 of *every* token. Run the cell and look at what `view` makes of it:

# %%
x = 10 * torch.arange(3)[:, None] + torch.arange(4)
print(x, "\n")
heads_first = x.view(2, 3, 2)
print("what head 0 gets:\n", heads_first[0])

# %% [markdown]
# The shape is right, no error is raised, and head 0 sees two tokens in pieces instead of three. Nothing will tell you, except a comparison with the loop.
#
# Write the layer. The parameters are those of four linear maps with biases, `query`, `key`, `value` and `output`, each from `d_model` to `d_model`: `query.weight`, `query.bias`, and so on. With a `context`, the tokens of `x` ask and those of `context` answer (cross attention); without, `x` asks itself.
#
# A mask has the shape `(q_len, k_len)`, the same for all sequences, or `(batch, q_len, k_len)`, one for each sequence and the same for all its heads.
#
# *Before you code:* scores have the shape `(batch, heads, q_len, k_len)`. A mask `(batch, q_len, k_len)` has one axis less. To which axis does broadcasting align its first one? When does that raise an error, and when does it not?
#
# <details><summary>Answers, after you have tried</summary>
#
# To the heads. It raises an error if the numbers differ and neither is 1. If there are as many sequences as heads, it runs, and each head of a sequence gets the mask of another sequence.
# </details>
#
# <details><summary>Hint: to heads and back</summary>
#
# `x.unflatten(-1, (num_heads, d_head))` cuts the features of each token; then two axes have to change places. On the way back, undo both steps in the opposite order.
# </details>
# <details><summary>Hint: the mask</summary>
#
# Give the mask an axis of size 1 where the heads are: `mask.unsqueeze(-3)` does it for both shapes.
# </details>


# %% exercise="MultiHeadAttention"
class MultiHeadAttention(nn.Module):
    """All heads at once, for self and cross attention."""

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
        """Give each token of x what its heads found.

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
# An article derives attention step by step. New tokens are sums of old ones, $t'_j = \sum_i w_{ij} V(t_i)$. The weights come from two maps: a softmax over the index $i$ of $q_i \cdot k_j / \sqrt{d_{\text{head}}}$. Every step sounds right, all shapes fit, and the article ends with the famous formula $\mathrm{softmax}(QK^\top/\sqrt{d_{\text{head}}})\,V$. But that formula is not what was derived.
#
# Somebody wrote the derivation down as code, and later added the usual mask: entry `[i, j]` of the score matrix is allowed if `j <= i`. Below, one token is changed at a time, and the cell prints which outputs notice. In a causal model, output 0 must not notice anything but a change of token 0.


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
    notice = (after - before).abs().amax(dim=-1) > 1e-6
    print(f"token {changed} is changed: outputs {notice.nonzero().flatten().tolist()} notice")

# %% [markdown]
# The mask was copied rightly; the matrix it was laid on has other rows than it expects. Which token asks in $w_{ij}$, the one that receives ($j$) or the one that gives ($i$)?
#
# Write `mended_derivation`. It returns the new tokens and the weights, so that row $j$ of the weights says what token $j$ takes from each token, and sums to 1; and with `is_causal`, no token takes from a later one.
#
# *Before you code:* without a mask, is there a choice of `w_query` and `w_key` for which the published function computes right attention? What does this say about finding such a bug by training?
#
# <details><summary>Answers, after you have tried</summary>
#
# Yes: exchange the two maps, and it is exactly attention. So training simply learns queries in place of keys, and no loss will show the bug as long as there is no mask.
# </details>
#
# <details><summary>Hint: three places</summary>
#
# The dot product, the axis of the softmax, and the sum over values must agree on which index asks. Turning the mask alone hides the symptom and keeps the bug.
# </details>


# %% exercise="mended_derivation"
def mended_derivation(
    tokens: torch.Tensor,
    w_query: torch.Tensor,
    w_key: torch.Tensor,
    w_value: torch.Tensor,
    is_causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the new tokens, and the weights by which they take from the old ones.

    Shapes: tokens (length, d_model), w_query and w_key (d_model, d_head), w_value
    (d_model, d_value); returns (length, d_value) and (length, length), row j for token j.
    """
    ### BEGIN SOLUTION
    query, key, value = tokens @ w_query, tokens @ w_key, tokens @ w_value
    scores = query @ key.T / math.sqrt(query.shape[-1])  # [j, i]: how much j asks of i
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
# While a model writes, it keeps the keys and values of all earlier tokens and loads them again for every new one; on long texts this takes more time than the arithmetic. Grouped-query attention keeps fewer: neighbouring query heads share one key head and one value head. With 6 query heads and 2 key heads, the query heads 0, 1, 2 read key head 0, and 3, 4, 5 read key head 1. With a single key head this is multi-query attention; with as many as query heads, the attention you know.
#
# A model that was trained with all its key heads can be turned into a grouped one: each shared head starts as the *mean* of the heads that it replaces, and some more training mends the rest ([Ainslie et al. 2023, section 2.1](https://arxiv.org/abs/2305.13245)). Write that too, for a map `(d_model, num_heads * d_head)`.
#
# *Before you code:* for `t = torch.tensor([0, 1])`, what do `t.repeat(3)` and `t.repeat_interleave(3)` give? Which of them is the order above? With a single key head, would a test notice the wrong one?
#
# <details><summary>Answers, after you have tried</summary>
#
# `[0, 1, 0, 1, 0, 1]` and `[0, 0, 0, 1, 1, 1]`. The second is the order above. With a single key head both are the same, and no test would notice.
# </details>
#
# <details><summary>Hint: which mean</summary>
#
# Cut the columns into the axes (shared heads, heads that share one, `d_head`): the mean is taken over the middle one.
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
    """Return the key or value map of grouped attention that starts from a map with all heads.

    Shapes: w (d_model, num_heads * d_head); returns (d_model, num_kv_heads * d_head).
    """
    ### BEGIN SOLUTION
    num_sharing = num_heads // num_kv_heads
    return w.unflatten(1, (num_kv_heads, num_sharing, -1)).mean(dim=2).flatten(1)
    ### END SOLUTION


# %% [markdown]
# {{exercise head_circuits}}
#
# The heads are laid side by side, then $W_O$ mixes them. Cut $W_O$ into one block of rows per head, and the product falls apart into a sum:
#
# $$\big[\,Y_0\;\cdots\; Y_{H-1}\,\big]\,W_O = \sum_h Y_h\, W_O^{h}, \qquad Y_h = A_h\, X\, W_V^{h}$$
#
# So heads do not share an output: each adds its own vectors to the result. And a head's four matrices come in two products only. Which tokens it looks at depends on $W_Q^h W_K^{h\top}$, its **QK circuit**; what it writes when it looks at a token depends on $W_V^h W_O^h$, its **OV circuit**. Both are `d_model` by `d_model`, and neither can have a rank above `d_head`.
#
# Here all heads' maps lie side by side, as in the last exercise but in the row convention: `w_query`, `w_key` and `w_value` are `(d_model, num_heads * d_head)` and are used as `x @ w_query`; `w_output` is `(num_heads * d_head, d_model)`.
#
# *Before you code:* with row vectors, the score of token $x$ on token $y$, before it is scaled, is $x\,C\,y^\top$, and a head that looks at $y$ writes $y\,C'$. In which order do the two factors of each circuit stand?
#
# <details><summary>Answers, after you have tried</summary>
#
# The token on the left of a product meets its own map first: a query's map stands left of a key's transposed, and a value's map left of the output's.
# </details>
#
# <details><summary>Hint: the slices</summary>
#
# Head `h` owns the features `h * d_head` to `(h + 1) * d_head - 1`. In `x @ w_query` a feature is a column; for `found @ w_output` it is a row.
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
    """Return what each head adds to the output of the layer.

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
# One head of width 64 or eight of width 8: which costs more? Do not guess; count.
#
# - `count_attention` counts the numbers that a layer learns: the maps of queries, keys, values and outputs, with or without biases. Queries and outputs are `d_model` wide; keys and values have `num_kv_heads` heads of the width `d_model // num_heads`.
# - `attention_flops` counts operations, a multiplication and an addition as two. A product of an `m` by `k` with a `k` by `n` matrix takes `2 * m * k * n`. Return two numbers: for the four maps, and for the two products between queries, keys and values. Additions of biases and the softmax are left out, as usual. In cross attention `q_len` tokens ask and `k_len` answer.
# - `break_even_length` is the length at which the two numbers are equal, for self attention (`q_len = k_len`). Longer texts pay mostly for looking at each other, shorter ones mostly for the maps.
#
# *Before you code:* take `num_kv_heads = num_heads`. If you double the number of heads and halve their width, which of the counts change?
#
# <details><summary>Answers, after you have tried</summary>
#
# None: only the number of heads times their width counts, and that is `d_model` before and after.
# </details>
#
# <details><summary>Hint: the two products</summary>
#
# Every query head scores `q_len` times `k_len` pairs, each with a dot product of width `d_head`; the average of the values costs the same again. `num_heads * d_head` is `d_model`.
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
    """Return the operations of a forward pass: of the four maps, and of the two products."""
    ### BEGIN SOLUTION
    d_kv = num_kv_heads * (d_model // num_heads)
    maps = 2 * q_len * d_model * 2 * d_model + 2 * k_len * d_model * 2 * d_kv
    products = 2 * (2 * q_len * k_len * d_model)
    return batch * maps, batch * products
    ### END SOLUTION


def break_even_length(d_model: int, num_heads: int, num_kv_heads: int) -> float:
    """Return the length at which self attention spends as much on its products as on its maps."""
    ### BEGIN SOLUTION
    return d_model + num_kv_heads * d_model / num_heads
    ### END SOLUTION


# %% [markdown]
# {{exercise drop_key_bias}}
#
# Four maps, four biases. The cell below takes torch's own attention, sets each bias in turn to zero, and prints how much the output changes.

# %%
with torch.no_grad():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64).eval()
    for parameter in layer.parameters():
        parameter.normal_(std=0.5)
    tokens = torch.randn(2, 7, 12, dtype=torch.float64)
    before = layer(tokens, tokens, tokens)[0]
    places = {
        "query": layer.in_proj_bias[:12],
        "key": layer.in_proj_bias[12:24],
        "value": layer.in_proj_bias[24:],
        "output": layer.out_proj.bias,
    }
    for name, bias in places.items():
        kept = bias.clone()
        bias.zero_()
        change = (layer(tokens, tokens, tokens)[0] - before).abs().max()
        print(f"{name:6} bias set to zero: largest change {change:.1e}")
        bias.copy_(kept)

# %% [markdown]
# One of the four does nothing. Find the reason in one line of algebra: multiply $(q_t + b_Q)\cdot(k_s + b_K)$ out, and sort the terms by whether they depend on the query $t$, on the key $s$, or on both. The softmax of row $t$ does not see what all its scores have in common.
#
# 1. `split_score_bias` returns the two sums that the biases of one head add to the scores $q_t\cdot k_s/\sqrt{d_{\text{head}}}$: one number per query and one number per key. The constant $b_Q\cdot b_K$ goes to the numbers per query. The numbers per key are a popularity contest: they say which keys are looked at more, whoever asks.
# 2. `drop_key_bias` takes the weights of `MultiHeadAttention` and returns new ones with a key bias of zero that compute the same function.
# 3. `move_value_bias` returns new ones with a value bias of zero that compute the same function: this bias does something, but another one can do it.
#
# *Before you code:* rows of attention weights sum to 1. What does averaging make of a constant that is added to every value? Would it still be so for a query that may attend to nothing?
#
# <details><summary>Answers, after you have tried</summary>
#
# The same constant: weights that sum to 1 hand it through unchanged. A query that may attend to nothing has weights that sum to 0, and gets none of it.
# </details>
#
# <details><summary>Hint: new weights</summary>
#
# `{**weights, "key.bias": something}` is a new dictionary; the one that you were given stays as it is.
# </details>
# <details><summary>Hint: where the value bias goes</summary>
#
# Follow the constant on its way out: it meets the output map. `output.weight` is stored as `(d_out, d_in)`.
# </details>


# %% exercise="drop_key_bias"
def split_score_bias(
    query: torch.Tensor, key: torch.Tensor, query_bias: torch.Tensor, key_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the biases of a head add to its scaled scores: per query, and per key.

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
# The test below is of a kind that many repositories have: fixed seed, small weights as at the start of training, one causal mask. It even compares with torch's own layer. Run the cell: it is happy with a layer whose heads are cut across tokens, because small weights make attention nearly uniform, and its tolerance is larger than what is left.

# %%
NAMES = ("query", "key", "value", "output")


def torch_attention(weights, num_heads, x, context=None, mask=None):
    """Torch's own layer. It wants masks that are True where attention is FORBIDDEN, and one for
    each head of each sequence.
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
    """The heads are cut by view, across tokens, and put together the same way."""
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
# Write the test that should have been there. It gets `attention`, a function of `(weights, num_heads, x, context, mask)` with the names and shapes of `MultiHeadAttention`, and raises `AssertionError` if it is wrong. You may compare with `torch_attention`, with your own class, or with properties that attention must have. Nine wrong layers are waiting: one cuts the heads wrongly, one scales wrongly, three forget something, three get a mask wrong, one of these only if there happen to be as many sequences as heads, and one gives each sequence the result of another. Right layers must pass, and one of these computes in `float32` whatever it is given. Leave each query at least one key in your masks: where nothing is allowed, right layers differ.
#
# *Before you code:* a test finds only what it varies. Which inputs does the published one never use?
#
# <details><summary>Answers, after you have tried</summary>
#
# A context, no mask at all, a mask for each sequence, biases that are not zero, weights large enough for attention to be anything but uniform, and as many sequences as heads.
# </details>
#
# <details><summary>Hint: what to vary</summary>
#
# With and without a context of another length; without a mask, with one mask for all, with one mask per sequence; as many sequences as heads, and not; biases that are not zero.
# </details>


# %% exercise="check_multi_head"
def check_multi_head(attention) -> None:
    """Raise AssertionError if a multi-head attention is wrong.

    attention(weights, num_heads, x, context, mask): weights has query.weight, query.bias and so
    on for query, key, value and output; context and mask may be None; mask is (q_len, k_len) or
    (batch, q_len, k_len), with something allowed in each row.
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
# Take attention, and fix the weights: each token gives weight $c_0$ to itself, $c_1$ to the token before, $c_2$ to the one before that, whatever the tokens are. The matrix of weights is then constant along its diagonals (a Toeplitz matrix), and attention has become a convolution that looks back. Write `toeplitz_weights`: entry `[t, s]` is `kernel[t - s]` where there is such an entry, and 0 elsewhere. Its rows need not sum to 1.
#
# A convolution of vectors has a *matrix* for each step back, $y_t = \sum_j x_{t-j} K_j$; before the first token there is nothing. Read it as heads: head $j$ gives all its weight to the token $j$ places back, and its OV circuit is $K_j$. So one convolution of width $w$ is one layer of $w$ heads that do not look at their input. Write `convolution_as_heads`; it returns the output and the weights of each head.
#
# *Before you code:* to which token does head 2 of token 1 attend? What should its row of weights be?
#
# <details><summary>Answers, after you have tried</summary>
#
# To position -1, which does not exist. Its row is all zeros.
# </details>
#
# <details><summary>Hint: who is how far back</summary>
#
# `torch.arange(length)[:, None] - torch.arange(length)` is a matrix of distances: row `t`, column `s`, entry `t - s`.
# </details>
# <details><summary>Hint: torch's convolution</summary>
#
# `F.conv1d` slides its kernel without turning it round: its last entry meets the newest token.
# </details>


# %% exercise="convolution_as_heads"
def toeplitz_weights(kernel: torch.Tensor, length: int) -> torch.Tensor:
    """Return the weights of a convolution that looks back.

    Shapes: kernel (width,), which may be longer than the text; returns (length, length).
    """
    ### BEGIN SOLUTION
    steps_back = torch.arange(length)[:, None] - torch.arange(length)
    inside = (steps_back >= 0) & (steps_back < len(kernel))
    return torch.where(inside, kernel[steps_back.clamp(0, len(kernel) - 1)], 0.0)
    ### END SOLUTION


def convolution_as_heads(
    x: torch.Tensor, kernel: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the convolution of x with the kernel, and the weights of the heads that do it.

    Shapes: x (batch, length, d_in), kernel (width, d_in, d_out), kernel[0] for the token itself;
    returns (batch, length, d_out) and (width, length, length).
    """
    ### BEGIN SOLUTION
    length = x.shape[1]
    steps_back = torch.arange(length)[:, None] - torch.arange(length)
    heads = torch.arange(len(kernel))[:, None, None]
    weights = (steps_back == heads).to(x.dtype)
    return torch.einsum("hts,bsi,hio->bto", weights, x, kernel), weights
    ### END SOLUTION


# %% [markdown]
# ## Look at what you built
#
# Four heads of width 4 from your own layer, with random weights: the singular values of each head's OV circuit, and of their sum. Each circuit is 16 by 16, but a head writes into 4 directions only; the other singular values are 0 up to rounding. The sum fills the space. It is also exactly the circuit of one head of width 16 with the same maps: if all heads look at the same token, they write together what the wide head writes. They differ when they look at different tokens, which is what they are for. (This cell is not graded.)

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
plt.xlabel("number of the singular value")
plt.ylabel("singular value of the OV circuit")
plt.legend()
plt.show()

# %% [markdown]
# {{question why_several_heads}}
#
# Two heads with queries and keys of width 32 have as many parameters as one head of width 64. What can the two heads do that the one cannot? Give an example of a sentence, or of a task, in which one position needs it. And what does each of the two lose? Answer in three to five sentences.

# %% [markdown] written="why_several_heads" points=3
# **What earns the points**, one each:
#
# 1. One head gives each query one distribution over the keys; two heads give two that are independent of each other.
# 2. An example in which one position needs two things at once, such as a verb that needs its subject and its object, and why one averaged distribution mixes the two.
# 3. Each head has a lower rank: its scores come from 32 dimensions instead of 64, so it can express fewer patterns of matching.
#
# **Often seen, and wrong:** “They are faster because they run in parallel”; “more heads have more parameters”; the claim that each head sees only a part of the tokens (each sees all tokens, through projections of its own).
