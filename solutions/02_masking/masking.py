# %% [markdown]
# # Masking
#
# This notebook goes with chapter 2 of *Attention from the Ground Up*. You write the five masks that people use and join them, build a softmax that survives rows in which nothing is allowed, write the tool that finds leaks, test models for what padding may not do, compute attention in blocks, and mend four programs whose masks did something else than their authors thought.
#
# **How it works.** Write your code where it says `YOUR CODE HERE`, run the cell, then run the check under it. A check tells you what it saw, what it expected, and, if it recognises the mistake, which one you made. It draws new numbers for every test, so there is no answer to hard-code. Points count test by test. Each exercise can be solved by itself. You may call what you wrote in an earlier one, but then its mistakes come with it. Checks mostly pass float64 tensors: keep the dtype of what you are given, and let gradients flow back through it, since what you write is going to be trained.
#
# **Conventions.** A mask is boolean and True where attention is *allowed*. It broadcasts to scores of the shape `(batch, heads, q_len, k_len)`: one row per query, one column per key. A query that may attend to nothing gets weights of zero. Some libraries mean the opposite by True; chapter 2 has the table.

# %%
import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

from classroom import check

# %% [markdown]
# {{exercise causal_mask}}
#
# A model that predicts the next token may not see it. So each position attends to itself and to what came before.
#
# While it writes, a model keeps the keys of earlier tokens and asks with the newest queries only. Then there are fewer queries than keys, and the queries are the *last* `q_len` of the `k_len` positions: the last query sees every key. `k_len` is never smaller than `q_len`.
#
# *Before you code:* with 1 query and 7 keys, how many entries are True? With 4 queries and 4 keys, what would become of the first query if it could not see itself?
#
# <details><summary>Answers, after you have tried</summary>
#
# All seven: nothing is later than the newest query. The first of the four queries would have no key at all, and its softmax would be $0/0$.
# </details>
#
# <details><summary>Hint: places</summary>
#
# Number the positions 0 to `k_len - 1`. Which numbers do the queries have? A comparison of a column with a row gives the whole mask.
# </details>


# %% exercise="causal_mask"
def causal_mask(q_len: int, k_len: int) -> torch.Tensor:
    """Let each query see itself and what came before it.

    Returns a boolean tensor (q_len, k_len), True where the key is not later than the query. The
    queries are the last q_len of the k_len positions.
    """
    ### BEGIN SOLUTION
    query_place = torch.arange(k_len - q_len, k_len)
    key_place = torch.arange(k_len)
    return query_place[:, None] >= key_place
    ### END SOLUTION


# %% [markdown]
# {{exercise padding_mask}}
#
# Sequences of a batch have different lengths and are filled up behind their last token. The filler must not be listened to: it has to be hidden *as a key*. Nobody reads what a padded query says, so its row may stay as it is.
#
# `lengths` holds the number of real tokens of each sequence. Return the shape `(batch, 1, 1, k_len)`: the two axes of size 1 stand for all heads and all queries.
#
# *Before you code:* scores have the shape `(batch, heads, q_len, k_len)`. What would a mask of shape `(batch, 1, k_len)` be taken for? When would torch not even complain?
#
# <details><summary>Answers, after you have tried</summary>
#
# Its first axis would be lined up with the heads: each head would get the padding of another sequence. Torch does not complain if there are as many sequences as heads, nor if there is only one of either.
# </details>
#
# <details><summary>Hint: what meets what</summary>
#
# Broadcasting lines shapes up from the right. `lengths[:, None]` has the shape `(batch, 1)`; new axes can be put in with `None` in the middle, too.
# </details>


# %% exercise="padding_mask"
def padding_mask(lengths: torch.Tensor, k_len: int) -> torch.Tensor:
    """Hide the padding of each sequence, as a key, from all queries of all heads.

    lengths (batch,) holds whole numbers from 0 to k_len. Returns a boolean tensor
    (batch, 1, 1, k_len).
    """
    ### BEGIN SOLUTION
    return torch.arange(k_len) < lengths[:, None, None, None]
    ### END SOLUTION


# %% [markdown]
# {{exercise masked_softmax}}
#
# A mask has to act *before* the softmax. Afterwards it is too late: hidden keys have had their share. But what is the score of a key that is not there? The cell below tries what people write. The second row allows nothing, which happens: a padded query in a window, an empty sequence. Read the output before you go on.

# %%
scores = torch.tensor([[2.0, 1.0, 3.0], [2.0, 1.0, 3.0]])
mask = torch.tensor([[True, True, False], [False, False, False]])
tried = {
    "times the mask": scores * mask,
    "minus infinity": scores.masked_fill(~mask, -math.inf),
    "minus 1e9": scores.masked_fill(~mask, -1e9),
}
for name, hidden in tried.items():
    first, second = hidden.softmax(dim=-1)
    print(
        f"{name:14} {first.numpy().round(2)}, and where nothing is allowed {second.numpy().round(2)}"
    )
try:
    scores.half().masked_fill(~mask, -1e9)
except RuntimeError as error:
    print("-1e9, float16 ", error)

# %% [markdown]
# Write a softmax over the allowed keys that gives exactly 0 to hidden ones and exactly 0 to every key of a row in which nothing is allowed. No NaN may come out, forwards or backwards: one that is replaced afterwards can still come back as a gradient. Keep the dtype of the scores; float16 and bfloat16 must work.
#
# *Before you code:* a softmax does not change when the same number is added to all scores of a row. So what does adding $-10^6$ to every hidden score do to a row in which all are hidden? What is the smallest number of float16?
#
# <details><summary>Answers, after you have tried</summary>
#
# Nothing: the same number was added to all scores of that row, so its hidden keys get weights as if there were no mask. The smallest float16 is -65504; $-10^9$ does not fit.
# </details>
#
# <details><summary>Hint: which number</summary>
#
# `torch.finfo(scores.dtype).min` is the smallest finite number of any dtype, and $-\infty$ exists in each.
# </details>
# <details><summary>Hint: rows in which nothing is allowed</summary>
#
# `mask.any(dim=-1, keepdim=True)` finds them. Give such a row any scores at all that a softmax can digest, and zeros afterwards.
# </details>


# %% exercise="masked_softmax"
def masked_softmax(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Turn scores into weights over the allowed keys; zeros where nothing is allowed.

    Shapes: scores (..., q_len, k_len), mask boolean, broadcasting to it; returns weights of the
    shape and the dtype of the scores.
    """
    ### BEGIN SOLUTION
    empty = ~mask.any(dim=-1, keepdim=True)
    visible = scores.masked_fill(~mask, -math.inf).masked_fill(empty, 0.0)
    return visible.softmax(dim=-1).masked_fill(~mask, 0.0)
    ### END SOLUTION


# %% [markdown]
# {{exercise mended_modes}}
#
# "In training the whole text is there at once, so the future must be hidden. When the model writes, there is no future yet, so no mask is needed." That reasoning is behind this function, and behind well-known ones. It forgets a third case. Which? The cell measures it: every output is compared before and after the last token is changed.
#
# Write the mended function. It has to be right in training, for a whole text in evaluation, and for a few new queries whose earlier keys were kept (the queries are the last of the keys).
#
# *Before you code:* what does a causal mask hide from a single query, the newest? So what would it have cost never to ask for the mode?
#
# <details><summary>Answers, after you have tried</summary>
#
# Nothing: every key is earlier, or its own. So the mask could have been applied always, at no cost.
# </details>


# %%
def published_modes(query, key, value, training):
    scores = query @ key.T / math.sqrt(query.shape[1])
    if training:
        allowed = torch.ones_like(scores).tril().bool()
        scores = scores.masked_fill(~allowed, -math.inf)
    return scores.softmax(dim=-1) @ value


generator = torch.Generator().manual_seed(0)
query, key, value = torch.randn(3, 6, 4, generator=generator)
other = value.clone()
other[-1] += 1.0
for training in (True, False):
    before = published_modes(query, key, value, training)
    moved = (published_modes(query, key, other, training) - before).abs().amax(dim=-1)
    print(f"training={training!s:5}: outputs move by {[f'{m:.2f}' for m in moved]}")


# %% exercise="mended_modes"
def mended_modes(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, training: bool
) -> torch.Tensor:
    """Return the output of causal attention, whatever the mode.

    Shapes: query (q_len, d_head), key (k_len, d_head), value (k_len, d_value); the queries are the
    last q_len of the k_len positions; returns (q_len, d_value).
    """
    ### BEGIN SOLUTION
    scores = query @ key.T / math.sqrt(query.shape[1])
    earlier = len(key) - len(query)
    allowed = torch.ones_like(scores).tril(diagonal=earlier).bool()
    return scores.masked_fill(~allowed, -math.inf).softmax(dim=-1) @ value
    ### END SOLUTION


# %% [markdown]
# {{exercise causality_audit}}
#
# How do you know that a model does not look ahead? Not from its loss: a model that sees the answer has a wonderful loss. Not from its code: the leak may sit in a normalisation that nobody suspects. Ask the model itself. Change one input, and see which outputs move.
#
# `model` takes one sequence `(length, d_model)` and returns one row per token, `(length, d_out)`. Return the picture of what depends on what: True at `(i, j)` if output `i` depends on input `j`. For a causal model it is a lower triangle. The model works in float64 and is given as a function; you cannot look inside, but you can call it as often as you like, and differentiate it.
#
# An influence of a millionth counts. A change in the fourteenth digit is rounding and does not.
#
# *Before you code:* if you differentiate the *sum* of all outputs by the inputs, what have you lost? After a LayerNorm the features of a token sum to 0, always. What is the derivative of that sum? And what does a LayerNorm do to a token to whose features you add 1 each?
#
# <details><summary>Answers, after you have tried</summary>
#
# With the sum you lose which output it was, and influences of opposite sign cancel. The features of a token after a LayerNorm sum to a constant, so the derivative of their sum is 0 although each of them depends on the input. Adding 1 to all features of a token changes nothing behind a LayerNorm: a test that moves inputs that way sees no dependence.
# </details>
#
# Below are two models to try your audit on. The second one subtracts a mean, which looks harmless.
#
# <details><summary>Hint: by small changes</summary>
#
# For each `j`: copy `x`, replace row `j` by other numbers, call the model, compare with the outputs from before. That gives column `j`.
# </details>
# <details><summary>Hint: by gradients</summary>
#
# `torch.autograd.functional.jacobian(model, x)` has the shape `(length, d_out, length, d_model)`. Which two axes have to go, and how?
# </details>


# %%
def running_mean(x):
    return x.cumsum(dim=0) / torch.arange(1, len(x) + 1)[:, None]


def centred_running_mean(x):
    mean_so_far = running_mean(x)
    return mean_so_far - mean_so_far.mean(dim=0)


generator = torch.Generator().manual_seed(0)
x = torch.randn(6, 4, generator=generator, dtype=torch.float64)
other = x.clone()
other[-1] = 0.0
for try_me in (running_mean, centred_running_mean):
    moved = (try_me(other) - try_me(x))[0].abs().max()
    print(f"{try_me.__name__}: the last input moves the first output by {moved:.2f}")


# %% exercise="causality_audit"
def causality_audit(model, x: torch.Tensor) -> torch.Tensor:
    """Find out which outputs of a model depend on which inputs.

    x (length, d_model) is an input in float64; model(x) returns (length, d_out). Returns a boolean
    tensor (length, length): rows are outputs, columns are inputs.
    """
    ### BEGIN SOLUTION
    slopes = torch.autograd.functional.jacobian(model, x)
    return slopes.abs().amax(dim=(1, 3)) > 1e-9
    ### END SOLUTION


# %% [markdown]
# {{deeper}}

# %% [markdown]
# {{exercise mended_masks}}
#
# A published decoder hides padding and the future with "a mask": one number per key, 0 or $-10^6$, added to the scores. It runs and it trains. Run the cell. It asks two questions that every mask should be asked: *does it do anything?* and *does the first query hear the last token?*
#
# There are two bugs. Write the mended function: a query sees the real tokens up to itself. Return the output only.
#
# *Before you code:* take a column of numbers and add a million to all of them. What does a softmax down that column say? And how many different futures are there in a sequence of 7 tokens: can one row of numbers hold them?
#
# <details><summary>Answers, after you have tried</summary>
#
# The same as before: a constant that is added to all numbers of a column cancels. There are seven futures, one for each query, so one row of numbers per sequence cannot hold them.
# </details>


# %%
def published_decoder(query, key, value, lengths, use_mask=True):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if use_mask:
        hidden = torch.arange(key.shape[-2]) >= lengths[:, None]
        scores = scores - 1e6 * hidden[:, None, :]
    weights = scores.softmax(dim=-2)
    return weights @ value


generator = torch.Generator().manual_seed(0)
query, key, value = torch.randn(3, 2, 7, 4, generator=generator, dtype=torch.float64)
lengths = torch.tensor([4, 6])
masked = published_decoder(query, key, value, lengths)
plain = published_decoder(query, key, value, lengths, use_mask=False)
print(f"the mask changes the output by {(masked - plain).abs().max():.1e}")
other = value.clone()
other[:, -1] += 1.0
change = published_decoder(query, key, other, lengths) - masked
print(f"the last token, which is padding, moves the first output by {change[:, 0].abs().max():.2f}")


# %% exercise="mended_masks"
def mended_masks(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Return the output of attention in which a query sees the real tokens up to itself.

    Shapes: query and key (batch, length, d_head), value (batch, length, d_value), lengths
    (batch,), at least 1 each; returns (batch, length, d_value).
    """
    ### BEGIN SOLUTION
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    place = torch.arange(key.shape[-2])
    hidden = (place >= lengths[:, None, None]) | (place > place[:, None])
    return scores.masked_fill(hidden, -math.inf).softmax(dim=-1) @ value
    ### END SOLUTION


# %% [markdown]
# {{exercise combine_masks}}
#
# A mask says one thing. A model needs several things said at once:
#
# - **look-back limit** (`window_mask`): a key may not lie too far back. The query itself counts, so with a window of 3 a query sees itself and the two positions before it. The limit says *nothing* about keys that come later. (What the book calls a *sliding window* is this limit and the causal mask together.)
# - **document**: several texts are packed into one sequence, and none may see another. `documents` holds for each token the number of its text. Numbers are names: their order means nothing, and the same number is the same text, even if another text stands in between.
# - **prefix**: the first tokens are given, such as a question, and may be read both ways. A key is visible if it is not later than the query *or* if it belongs to the prefix.
#
# Write these three, and `combine_masks`: the prefix mask, the padding mask (`lengths`, as in exercise 2.2), the window and the documents, all at once. All tokens are queries and keys: the masks are square.
#
# *Before you code:* two masks say no to different keys. Which of `&` and `|` keeps both promises? And why does a window that hides what comes later take the prefix back?
#
# <details><summary>Answers, after you have tried</summary>
#
# `&`: a key is allowed if both allow it. The prefix mask opens keys that come later; a window that closes them would close these again, since `&` never opens anything.
# </details>
#
# <details><summary>Hint: distance</summary>
#
# With `place = torch.arange(length)`, the matrix `place[:, None] - place` says how far each key lies behind each query. It is negative for keys that come later.
# </details>
# <details><summary>Hint: where "or" belongs</summary>
#
# Only inside the prefix mask, between causality and the prefix. What comes after only takes away.
# </details>


# %% exercise="combine_masks"
def window_mask(length: int, window: int) -> torch.Tensor:
    """Hide keys that lie `window` or more places before the query.

    Returns a boolean tensor (length, length).
    """
    ### BEGIN SOLUTION
    place = torch.arange(length)
    distance = place[:, None] - place
    return distance < window
    ### END SOLUTION


def document_mask(documents: torch.Tensor) -> torch.Tensor:
    """Hide the keys of other texts than the query's.

    documents (batch, length) holds the number of each token's text. Returns a boolean tensor
    (batch, 1, length, length).
    """
    ### BEGIN SOLUTION
    return documents[:, None, :, None] == documents[:, None, None, :]
    ### END SOLUTION


def prefix_mask(prefix_lengths: torch.Tensor, length: int) -> torch.Tensor:
    """Let queries see what came before them, and the whole prefix.

    prefix_lengths (batch,) says how many tokens are given. Returns a boolean tensor
    (batch, 1, length, length).
    """
    ### BEGIN SOLUTION
    place = torch.arange(length)
    causal = place[:, None] >= place
    given = place < prefix_lengths[:, None, None, None]
    return causal | given
    ### END SOLUTION


def combine_masks(
    lengths: torch.Tensor, prefix_lengths: torch.Tensor, documents: torch.Tensor, window: int
) -> torch.Tensor:
    """Allow what the prefix mask, the padding mask, the window and the documents all allow.

    Shapes: lengths (batch,), prefix_lengths (batch,), documents (batch, length); returns a boolean
    tensor (batch, 1, length, length).
    """
    ### BEGIN SOLUTION
    length = documents.shape[1]
    real = torch.arange(length) < lengths[:, None, None, None]
    ordered = prefix_mask(prefix_lengths, length) & window_mask(length, window)
    return ordered & real & document_mask(documents)
    ### END SOLUTION


# %% [markdown]
# {{exercise check_padding_invariance}}
#
# Again you write the test, and it is graded by the bugs that it catches. A model gets `x` of the shape `(batch, length, d_model)` and `lengths` of the shape `(batch,)`, and returns the shape of `x`. What it says about the real tokens of a sequence must not depend on
#
# 1. what stands in the padding (rubbish, but finite),
# 2. how much padding there is,
# 3. which sequences share the batch.
#
# What it returns *at* padded positions is its own business, be it 0, rubbish or NaN.
#
# First write `largest_difference`: how far two results for the same sequences are apart where tokens are real. The two may be padded to different lengths. If there is a NaN at a real token, the difference is infinite. Then write the test: call the model on inputs of your choice and `assert`. Right implementations must pass, however they round (some compute in float32, and the last digit may depend on the batch); wrong ones must not.
#
# *Before you code:* is `float("nan") > 1e-6` true? What does `assert not difference > 1e-6` then say about a model that returns NaN? Which of the three laws would still be tested if all your sequences were of the same length?
#
# <details><summary>Answers, after you have tried</summary>
#
# False, as every comparison with NaN: that assertion lets a model pass that returns NaN. With lengths that are all the same and no padding, only the third law is tested.
# </details>
#
# Below are two models to try your test on: it should let the first one pass and stop the second.
#
# <details><summary>Hint: all laws in one comparison</summary>
#
# Let the model read a sequence alone and without padding. Then let it read the same sequence among others, with rubbish in its padding.
# </details>
# <details><summary>Hint: infinite differences</summary>
#
# `tensor.nan_to_num(math.inf)` replaces NaN by infinity.
# </details>


# %%
def token_by_token(x, lengths):
    return x.sin()


def centred_over_all_places(x, lengths):
    return x - x.mean(dim=1, keepdim=True)


# %% exercise="check_padding_invariance"
def largest_difference(
    first: torch.Tensor, second: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor | float:
    """Return the largest absolute difference of two results at real tokens.

    Shapes: first (batch, length, d_model), second (batch, other_length, d_model), lengths
    (batch,), none larger than length or other_length. Infinite if a real token has a NaN.
    """
    ### BEGIN SOLUTION
    shorter = min(first.shape[1], second.shape[1])
    gap = (first[:, :shorter] - second[:, :shorter]).abs().nan_to_num(math.inf)
    padded = torch.arange(shorter)[:, None] >= lengths[:, None, None]
    return gap.masked_fill(padded, 0.0).max()
    ### END SOLUTION


def check_padding_invariance(model) -> None:
    """Raise AssertionError if padding or batch mates change what model(x, lengths) says about
    real tokens.
    """
    ### BEGIN SOLUTION
    generator = torch.Generator().manual_seed(0)
    batch = 2 * torch.randn(3, 9, 4, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([5, 9, 2])
    alone = model(batch[:1, :5], lengths[:1])
    among_others = model(batch, lengths)[:1]
    difference = largest_difference(alone, among_others, lengths[:1])
    assert difference < 1e-4, f"padding or batch mates move a real token by {difference}"
    ### END SOLUTION


# %% [markdown]
# {{exercise mended_columns}}
#
# Some code, and much of the mathematics, writes tokens as *columns*. Then `key.T @ query` has keys as rows and queries as columns, and the softmax runs down each column. The author of this one knew all that, and took the mask from a text: "set the upper right triangle to minus infinity".
#
# Run the cell. The weights are shown as the code has them, one column per query. Who sees whom?
#
# *Before you code:* the first column belongs to the first query. Which of its entries should be left?
#
# <details><summary>Answers, after you have tried</summary>
#
# The first one only: the first query sees itself and nothing else.
# </details>


# %%
def published_columns(query, key, value):
    scores = key.T @ query / math.sqrt(query.shape[0])
    hidden = torch.ones_like(scores).triu(diagonal=1).bool()
    weights = scores.masked_fill(hidden, -math.inf).softmax(dim=0)
    return value @ weights


generator = torch.Generator().manual_seed(0)
query, key = torch.randn(2, 4, 5, generator=generator)
weights = published_columns(query, key, torch.eye(5))
print((100 * weights).round().int())
print("percent of the weight; rows are keys, columns are queries")


# %% exercise="mended_columns"
def mended_columns(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return the output of causal attention, one column per token.

    Shapes: query and key (d_head, length), value (d_value, length); returns (d_value, length).
    """
    ### BEGIN SOLUTION
    scores = key.T @ query / math.sqrt(query.shape[0])
    place = torch.arange(scores.shape[0])
    hidden = place[:, None] > place
    return value @ scores.masked_fill(hidden, -math.inf).softmax(dim=0)
    ### END SOLUTION


# %% [markdown]
# {{exercise mended_maps}}
#
# A widely read tutorial shows the attention maps of its model. Every map is masked, as the model's are, and they look right. They belong to another model, though: from the second layer on. The cell compares them with the weights that the model used.
#
# Write the mended `mended_maps`. `layer_weights` is given, and right.
#
# *Before you code:* which map cannot be wrong, whatever happens between the layers?
#
# <details><summary>Answers, after you have tried</summary>
#
# The first: what the first layer reads is the same in both models.
# </details>


# %%
def weights_of(x, w_query, w_key, mask=None):
    scores = (x @ w_query) @ (x @ w_key).T / math.sqrt(x.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(dim=-1)


def the_model(x, w_query, w_key, w_value, mask, notebook):
    for w_q, w_k, w_v in zip(w_query, w_key, w_value, strict=True):
        weights = weights_of(x, w_q, w_k, mask)
        notebook.append(weights)
        x = x + weights @ (x @ w_v)
    return x


def published_maps(x, w_query, w_key, w_value, mask):
    maps = []
    for w_q, w_k, w_v in zip(w_query, w_key, w_value, strict=True):
        maps.append(weights_of(x, w_q, w_k, mask))
        x = x + weights_of(x, w_q, w_k) @ (x @ w_v)
    return torch.stack(maps)


generator = torch.Generator().manual_seed(0)
x = torch.randn(6, 4, generator=generator)
w_query, w_key, w_value = 0.8 * torch.randn(3, 3, 4, 4, generator=generator)
mask = torch.ones(6, 6).tril().bool()
used = []
the_model(x, w_query, w_key, w_value, mask, used)
shown = published_maps(x, w_query, w_key, w_value, mask)
for number in range(3):
    gap = (shown[number] - used[number]).abs().max()
    print(f"layer {number}: a weight that is shown is off by up to {gap:.2f}")


# %% exercise="mended_maps"
def layer_weights(x, w_query, w_key, mask=None):
    """Given, and right: the weights (length, length) of one layer."""
    scores = (x @ w_query) @ (x @ w_key).T / math.sqrt(x.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(dim=-1)


def mended_maps(
    x: torch.Tensor,
    w_query: torch.Tensor,
    w_key: torch.Tensor,
    w_value: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    """Return the weights that the model uses, layer by layer.

    Shapes: x (length, d_model), the matrices of all layers (num_layers, d_model, d_model) each,
    mask boolean (length, length); returns (num_layers, length, length). A layer adds
    weights @ (x @ w_value) to x.
    """
    ### BEGIN SOLUTION
    maps = []
    for number in range(len(w_query)):
        weights = layer_weights(x, w_query[number], w_key[number], mask)
        x = x + weights @ (x @ w_value[number])
        maps.append(weights)
    return torch.stack(maps)
    ### END SOLUTION


# %% [markdown]
# {{exercise online_softmax_attention}}
#
# A softmax needs the largest score and the sum of all exponentials, so it seems to need all scores at once: a row of `k_len` numbers for each query. It does not. Go through the keys in blocks and keep three things for each query:
#
# - `highest`: the largest score so far, at first $-\infty$,
# - `total`: the sum of $e^{s - \text{highest}}$ over the scores so far, at first 0,
# - `mixed`: the sum of $e^{s - \text{highest}}\, v$ over the keys so far, at first 0.
#
# At the end `mixed / total` is the average. When a block brings a higher score, all that was kept was measured from a peak that is no longer the peak. By which factor does it change?
#
# Write `update`, which takes one block in. Hidden keys come with the score $-\infty$. Then write the loop: scores of one block at a time, scaled by $1/\sqrt{d_{\text{head}}}$ and masked. A query that may see nothing gets 0. The checks compare numbers; that you never hold all scores at once is something the last cell of this notebook measures.
#
# *Before you code:* as long as all keys of a query were hidden, `highest` is $-\infty$. What is `torch.exp(highest - highest)` then? And is the last block always full?
#
# <details><summary>Answers, after you have tried</summary>
#
# NaN, since $-\infty - (-\infty)$ is NaN. The last block is shorter if the number of keys is no multiple of the block size.
# </details>
#
# <details><summary>Hint: the factor</summary>
#
# $e^{s - \text{new}} = e^{s - \text{old}} \cdot e^{\text{old} - \text{new}}$. The second factor does not depend on the key.
# </details>
# <details><summary>Hint: nothing seen so far</summary>
#
# Subtract 0 instead of the new maximum where that is $-\infty$. All exponentials there are $e^{-\infty} = 0$, as they should be.
# </details>


# %% exercise="online_softmax_attention"
def update(
    highest: torch.Tensor,
    total: torch.Tensor,
    mixed: torch.Tensor,
    scores: torch.Tensor,
    value: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Take one block of keys into the running softmax.

    Shapes: highest (q_len,), total (q_len,), mixed (q_len, d_value); scores (q_len, block), minus
    infinity where hidden; value (block, d_value). Returns the new (highest, total, mixed).
    """
    ### BEGIN SOLUTION
    peak = torch.maximum(highest, scores.max(dim=-1).values)
    # Where nothing was seen yet, every exponential below is exp(-inf - 0) = 0.
    level = peak.where(peak > -math.inf, torch.zeros_like(peak))
    fade = (highest - level).exp()
    shares = (scores - level[:, None]).exp()
    return peak, fade * total + shares.sum(dim=-1), fade[:, None] * mixed + shares @ value
    ### END SOLUTION


def online_softmax_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    block_size: int,
) -> torch.Tensor:
    """Return the averages of masked attention, looking at block_size keys at a time.

    Shapes: query (q_len, d_head), key (k_len, d_head), value (k_len, d_value), mask boolean
    (q_len, k_len); returns (q_len, d_value).
    """
    ### BEGIN SOLUTION
    highest = torch.full_like(query[:, 0], -math.inf)
    state = (highest, torch.zeros_like(highest), torch.zeros_like(query[:, :1] * value[:1]))
    for start in range(0, len(key), block_size):
        stop = start + block_size
        scores = query @ key[start:stop].T / math.sqrt(query.shape[-1])
        scores = scores.masked_fill(~mask[:, start:stop], -math.inf)
        state = update(*state, scores, value[start:stop])
    _, total, mixed = state
    # Where nothing was allowed, 0 / 1 instead of 0 / 0.
    return mixed / torch.where(total > 0, total, 1.0)[:, None]
    ### END SOLUTION


# %% [markdown]
# {{exercise mended_device}}
#
# This function ran on a laptop for a year. On the first day with a GPU it stopped: "expected all tensors to be on the same device". When that was mended, the model was put in `bfloat16`, and it stopped again. Whatever a function makes itself, it makes on the CPU and in float32, unless it is told otherwise.
#
# You need no GPU to find such places. PyTorch has a device called `meta`, whose tensors have a shape and a dtype and no numbers. A tensor on `meta` and one on the CPU do not mix, so a computation on `meta` stops at the line that would stop on a GPU.


# %%
def published_window(query, key, value, window, fade):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    q_len, k_len = scores.shape[-2:]
    places = torch.arange(k_len)
    distance = places[k_len - q_len :, None] - places
    if fade:
        scores = scores - fade * distance
    mask = torch.zeros(q_len, k_len)
    mask[(distance < 0) | (distance >= window)] = -math.inf
    return torch.softmax(scores + mask, dim=-1) @ value


for device, dtype in [("cpu", torch.float32), ("meta", torch.float32), ("cpu", torch.bfloat16)]:
    x = torch.zeros(1, 6, 4, device=device, dtype=dtype)
    try:
        output = published_window(x, x, x, window=3, fade=0.5)
        print(f"{device} {dtype}: {tuple(output.shape)}")
    except RuntimeError as error:
        print(f"{device} {dtype}: {str(error).splitlines()[0]}")

# %% [markdown]
# Write the mended function. It computes the same numbers, wherever its inputs are and in whatever dtype of floating-point numbers they come, and returns a tensor of the same device and dtype. The queries are the last of the keys; `window` says how many keys a query may see, and `fade`, a number, how fast scores fall with the distance.
#
# *Before you code:* which lines make a tensor out of nothing? For each: which device should it have, and which dtype?
#
# <details><summary>Answers, after you have tried</summary>
#
# Two: `torch.arange`, whose whole numbers need the device of the inputs and no dtype of theirs, and `torch.zeros`, which becomes part of the scores and needs both. A boolean mask in its place needs the device alone.
# </details>
#
# <details><summary>Hint: where to take them from</summary>
#
# `query.device` and `query.dtype` are there to be passed on: `torch.arange(n, device=...)`. A method such as `query.new_zeros(...)` passes on both. Whole numbers need no dtype of the inputs: a float tensor keeps its dtype when an integer tensor joins it. Take care: `fade * distance` is a float tensor.
# </details>


# %% exercise="mended_device"
def mended_device(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int, fade: float
) -> torch.Tensor:
    """Attend to the nearest keys, with the device and the dtype of the inputs.

    Shapes: query (batch, q_len, d_head), key (batch, k_len, d_head), value (batch, k_len, d_value);
    returns (batch, q_len, d_value).
    """
    ### BEGIN SOLUTION
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    q_len, k_len = scores.shape[-2:]
    places = torch.arange(k_len, device=query.device)
    distance = places[k_len - q_len :, None] - places
    scores = scores - fade * distance.to(query.dtype)
    is_hidden = (distance < 0) | (distance >= window)
    return torch.softmax(scores.masked_fill(is_hidden, -math.inf), dim=-1) @ value
    ### END SOLUTION


# %% [markdown]
# ## Look at what you built
#
# Above, your masks: a prefix, a window, two documents, and all of them with padding (dark is allowed). Below each, your audit of a model that uses it. The two rows agree if your masks, your softmax and your audit do. Under the figure: the largest tensor that your attention in blocks makes, while the matrix of all scores grows with the square. (This cell is not graded.)

# %%
from torch.utils._python_dispatch import TorchDispatchMode

length, d_model = 12, 4
lengths, prefix_lengths = torch.tensor([10]), torch.tensor([4])
documents = torch.tensor([[7] * 7 + [2] * 5])
masks = {
    "prefix of 4": prefix_mask(prefix_lengths, length)[0, 0],
    "window of 5, causal": window_mask(length, 5) & causal_mask(length, length),
    "two documents": document_mask(documents)[0, 0],
    "all, and padding": combine_masks(lengths, prefix_lengths, documents, 5)[0, 0],
}
generator = torch.Generator().manual_seed(0)
x = torch.randn(length, d_model, generator=generator, dtype=torch.float64)
scores = torch.randn(length, length, generator=generator, dtype=torch.float64)
figure, axes = plt.subplots(2, 4, figsize=(10, 5.5), layout="constrained")
for column, (name, mask) in enumerate(masks.items()):

    def model(x, mask=mask):
        return masked_softmax(scores, mask) @ x.tanh()

    depends = causality_audit(model, x)
    axes[0, column].imshow(mask, cmap="Greys", vmin=0, vmax=1)
    axes[1, column].imshow(depends, cmap="Greys", vmin=0, vmax=1)
    axes[0, column].set_title(name)
    for axis in axes[:, column]:
        axis.set_xticks(range(0, length, 4))
        axis.set_yticks(range(0, length, 4))
    axes[0, column].set_xlabel("key")
    axes[1, column].set_xlabel("input")
axes[0, 0].set_ylabel("mask: query")
axes[1, 0].set_ylabel("audit: output")
plt.show()


class LargestTensor(TorchDispatchMode):
    """Remembers the largest tensor that is made while it is active."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.numbers = max(self.numbers, result.numel())
        return result


for k_len in (256, 1024, 4096):
    query, key, value = torch.randn(3, k_len, 8, generator=generator)
    mask = causal_mask(k_len, k_len)
    with LargestTensor() as largest:
        online_softmax_attention(query, key, value, mask, 32)
    print(f"{k_len:5} keys: largest tensor {largest.numbers:8,}, all scores {k_len**2:12,}")

# %% [markdown]
# {{question why_before_the_softmax}}
#
# A causal mask sets the scores of later positions to minus infinity before the softmax. Somebody sets the weights of later positions to zero after the softmax instead. Which two things go wrong? Would dividing each row by its sum again repair both? Answer in three to five sentences.

# %% [markdown] written="why_before_the_softmax" points=3
# **What earns the points**, one each:
#
# 1. The weights of a row no longer sum to 1, so early positions get outputs of smaller norm.
# 2. The later positions are still in the denominator: the weights that stay depend on later tokens, so the future leaks into the past.
# 3. Dividing by the row's sum cancels the denominator and repairs both in exact arithmetic (both parts of the question need an answer); an excellent answer adds that it fails where all the allowed weights have rounded to 0.
#
# **Often seen, and wrong:** “It is the same, since the weights are zero either way”; only the sum is seen and not the leak; the claim that the values leak, although their weight is 0.
