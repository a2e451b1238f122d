# %% [markdown]
# # Masking: causal and padding masks
#
# This notebook goes with chapter 2 of *Attention from the Ground Up*. You write five common masks and combine them, build a softmax that handles rows in which nothing is allowed, write an audit that finds leaks, test that padding does not change a model's outputs, compute attention in blocks, and fix five published programs, most of whose masks did not do what their authors thought.
#
# **How it works.** First run the code cells above the first exercise. Write your code where it says `YOUR CODE HERE`, run the cell, then run the check under it. A check reports what your code returned, what it expected and, if it recognises the mistake, which one you made. Each line of its report has its own points, so a partly correct answer earns some of them. When your work is graded, the same checks may run on other numbers: compute results, do not hard-code them. You may call your code from an earlier exercise, but then its mistakes count again. Checks mostly use float64 tensors: keep the dtype of your inputs, and let gradients flow back to them, because models will be trained with your code.
#
# **Conventions.** A mask is boolean and True where attention is *allowed*. It broadcasts to scores of the shape `(batch, heads, q_len, k_len)`: one row per query, one column per key. The weights of a query that may attend to nothing are all zero. In some libraries True means the opposite; the page on mask conventions has a table.

# %%
import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

from classroom import check

# %% [markdown]
# {{exercise causal_mask}}
#
# A model that predicts the next token must not see it. So each position attends only to itself and to earlier positions.
#
# During generation a model caches the keys of earlier tokens and computes queries for the newest tokens only. Then there are fewer queries than keys, and the queries belong to the *last* `q_len` of the `k_len` positions: the last query sees every key. `k_len` is never smaller than `q_len`, and may be in the thousands.
#
# *Before you code:* with 1 query and 7 keys, how many entries are True? With 4 queries and 4 keys, what would happen to the first query if it could not see itself?
#
# <details><summary>Answers, after you have tried</summary>
#
# All seven: no key is later than the newest query. The first of the four queries would have no key at all, and its softmax would be $0/0$.
# </details>
#
# <details><summary>Hint: positions</summary>
#
# Number the positions 0 to `k_len - 1`. Which numbers belong to the queries? Comparing a column with a row gives the whole mask.
# </details>


# %% exercise="causal_mask"
def causal_mask(q_len: int, k_len: int) -> torch.Tensor:
    """Let each query attend to itself and to earlier positions.

    Returns a boolean tensor (q_len, k_len), True where the key is not later than the query. The
    queries are the last q_len of the k_len positions.
    """
    ### BEGIN SOLUTION
    query_position = torch.arange(k_len - q_len, k_len)
    key_position = torch.arange(k_len)
    return query_position[:, None] >= key_position
    ### END SOLUTION


# %% [markdown]
# {{exercise padding_mask}}
#
# The sequences of a batch have different lengths and are padded after their last token. No query may attend to the padding: it must be masked *as a key*. The output of a padded query is never used, so its row needs no mask of its own.
#
# `lengths` holds the number of real tokens of each sequence. `k_len` may be in the thousands. Return the shape `(batch, 1, 1, k_len)`: the two axes of size 1 stand for all heads and all queries.
#
# *Before you code:* scores have the shape `(batch, heads, q_len, k_len)`. How would a mask of shape `(batch, 1, k_len)` be interpreted? When would torch raise no error?
#
# <details><summary>Answers, after you have tried</summary>
#
# Its first axis would be aligned with the heads: each head would get the padding mask of a different sequence. Torch raises no error if there are as many sequences as heads, or if there is only one of either.
# </details>
#
# <details><summary>Hint: how the axes align</summary>
#
# Broadcasting aligns shapes from the right. `lengths[:, None]` has the shape `(batch, 1)`; `None` can also insert axes in the middle.
# </details>


# %% exercise="padding_mask"
def padding_mask(lengths: torch.Tensor, k_len: int) -> torch.Tensor:
    """Mask the padding of each sequence, as a key, for all queries of all heads.

    lengths (batch,) holds integers from 0 to k_len. Returns a boolean tensor
    (batch, 1, 1, k_len).
    """
    ### BEGIN SOLUTION
    return torch.arange(k_len) < lengths[:, None, None, None]
    ### END SOLUTION


# %% [markdown]
# {{exercise masked_softmax}}
#
# A mask has to act *before* the softmax. After it, masked keys have already contributed to the denominator. But what should the score of a masked key be? The cell below tries common choices. The second row allows nothing, which does happen: for a padded query with a window, or in an empty sequence. Read the output before you go on.

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
    print(f"{name:14} {first.numpy().round(2)}; if nothing is allowed, {second.numpy().round(2)}")
try:
    scores.half().masked_fill(~mask, -1e9)
except RuntimeError as error:
    print("-1e9, float16 ", error)

# %% [markdown]
# Write a softmax over the allowed keys that gives a weight of exactly 0 to masked ones, and to every key of a row in which nothing is allowed. Neither the weights nor the gradient may contain NaN: replacing it after the softmax can leave it in the gradient. Keep the dtype of the scores; float16 and bfloat16 must work.
#
# *Before you code:* a softmax does not change when the same number is added to all scores of a row. So what does adding $-10^6$ to every masked score do to a row in which all keys are masked? What is the most negative finite float16 number?
#
# <details><summary>Answers, after you have tried</summary>
#
# Nothing: the same number was added to all scores of that row, so its masked keys get weights as if there were no mask. The most negative finite float16 number is -65504; $-10^9$ does not fit.
# </details>
#
# <details><summary>Hint: which number</summary>
#
# `torch.finfo(scores.dtype).min` is the most negative finite number of a dtype; each float dtype also has $-\infty$.
# </details>
# <details><summary>Hint: rows in which nothing is allowed</summary>
#
# `mask.any(dim=-1, keepdim=True)` is False for them. Replace the scores of such a row by any finite numbers, and set its weights to zero after the softmax.
# </details>


# %% exercise="masked_softmax"
def masked_softmax(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Turn scores into weights over the allowed keys; all weights of a row that allows nothing are
    0.

    Shapes: scores (..., q_len, k_len), mask boolean, broadcastable to that shape; returns weights
    with the shape and the dtype of the scores.
    """
    ### BEGIN SOLUTION
    empty = ~mask.any(dim=-1, keepdim=True)
    visible = scores.masked_fill(~mask, -math.inf).masked_fill(empty, 0.0)
    return visible.softmax(dim=-1).masked_fill(~mask, 0.0)
    ### END SOLUTION


# %% [markdown]
# {{exercise mended_modes}}
#
# "In training the whole text is given at once, so the future must be hidden. During generation there is no future yet, so no mask is needed." This function, like some well-known ones, follows that reasoning, which overlooks a third case. Which one? The cell measures the effect: it compares every output before and after the last value is changed.
#
# Write the corrected function. It must be correct for scores of any size: in training, for a whole text in evaluation, and for a few new queries with cached earlier keys (the queries are the last of the positions).
#
# *Before you code:* what does a causal mask hide from a single query, the newest? So what would it have cost to ignore the mode?
#
# <details><summary>Answers, after you have tried</summary>
#
# Nothing: every key is earlier than the query, or its own. So the mask could always have been applied, at no cost.
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
    print(f"training={training!s:5}: outputs change by {[f'{m:.2f}' for m in moved]}")


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
# How do you know that a model does not look ahead? Not from its loss: a model that sees the target has an excellent loss. Not from its code: the leak may be in a harmless-looking normalisation. Test the model itself. Change one input, and see which outputs change.
#
# `model` takes one sequence `(length, d_model)` and returns one row per token, `(length, d_out)`. Return the dependency matrix, which is True at `(i, j)` if output `i` depends on input `j`. For a causal model it is lower triangular. The model works in float64 and is given as a function; you cannot look inside, but you can call it as often as you like, and differentiate it.
#
# An influence of one millionth counts. A change in the fourteenth digit is rounding error and does not.
#
# *Before you code:* if you differentiate the *sum* of all outputs with respect to the inputs, what do you lose? A LayerNorm (chapter 4) subtracts the mean of a token's features and divides by their standard deviation, so they always sum to 0. What is the derivative of that sum? And what happens to the LayerNorm of a token if you add 1 to each of its features?
#
# <details><summary>Answers, after you have tried</summary>
#
# The sum does not show which output depends on an input, and influences of opposite sign cancel. After a LayerNorm, the features of a token sum to a constant, so the derivative of their sum is 0 although each of them depends on the input. Adding 1 to all features of a token does not change its LayerNorm: a test that perturbs inputs in this way misses the dependence.
# </details>
#
# Below are two models on which to try your audit. The second one subtracts a mean, which looks harmless.
#
# <details><summary>Hint: by small changes</summary>
#
# For each `j`, copy `x`, replace row `j` with other numbers, call the model, and compare with the original outputs. This gives column `j`.
# </details>
# <details><summary>Hint: by gradients</summary>
#
# `torch.autograd.functional.jacobian(model, x)` has the shape `(length, d_out, length, d_model)`. Which two axes must be reduced, and how?
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
    print(f"{try_me.__name__}: the last input changes the first output by {moved:.2f}")


# %% exercise="causality_audit"
def causality_audit(model, x: torch.Tensor) -> torch.Tensor:
    """Determine which outputs of a model depend on which inputs.

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
# A published decoder hides padding and the future with "a mask": one number per key, 0 or $-10^6$, added to the scores. It runs and it trains. Run the cell, which tests two things that should be tested for every mask: does the mask have any effect, and does the last token influence the first query's output?
#
# There are two bugs. Write the corrected function: a query, padded or not, attends to the real tokens up to itself, however large the other scores. Return the output only.
#
# *Before you code:* take a column of numbers and add a million to all of them. What is the softmax down that column? And how many different futures are there in a sequence of 7 tokens? Can one row of numbers represent them?
#
# <details><summary>Answers, after you have tried</summary>
#
# The same as before: a constant that is added to all numbers of a column cancels. There are seven futures, one for each query, so one row of numbers per sequence cannot represent them.
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
print(f"padding at the end changes the first output by {change[:, 0].abs().max():.2f}")


# %% exercise="mended_masks"
def mended_masks(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Return the output of attention in which a query attends to the real tokens up to itself.

    Shapes: query and key (batch, length, d_head), value (batch, length, d_value), lengths
    (batch,), at least 1 each; returns (batch, length, d_value).
    """
    ### BEGIN SOLUTION
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    position = torch.arange(key.shape[-2])
    hidden = (position >= lengths[:, None, None]) | (position > position[:, None])
    return scores.masked_fill(hidden, -math.inf).softmax(dim=-1) @ value
    ### END SOLUTION


# %% [markdown]
# {{exercise combine_masks}}
#
# Each mask states one rule. A model needs several rules at once:
#
# - **look-back limit** (`window_mask`): a key may not lie too far back. The query's own position counts, so with a window of 3 a query attends to itself and the two positions before it. The limit says *nothing* about later keys. (The book's *sliding window* combines this limit with the causal mask.)
# - **document**: several texts are packed into one sequence, and none may attend to another. `documents` holds the id of each token's text. The order of the ids means nothing, and an equal id means the same text, even with another text in between.
# - **prefix**: the first tokens, such as a prompt, are given and attend to one another in both directions. A key is visible if it is not later than the query *or* if it belongs to the prefix.
#
# Write these three, and `combine_masks`, which applies the prefix mask, the padding mask (`lengths`, as in exercise 2.2), the window and the document mask together. All tokens are both queries and keys: the masks are square.
#
# *Before you code:* two masks forbid different keys. Does `&` or `|` enforce both? And why does a window that hides later keys undo the prefix mask?
#
# <details><summary>Answers, after you have tried</summary>
#
# `&`: a key is allowed if both allow it. The prefix mask allows some later keys; a window that hides later keys would hide these again, because `&` can only remove keys.
# </details>
#
# <details><summary>Hint: distance</summary>
#
# With `position = torch.arange(length)`, the matrix `position[:, None] - position` is the distance from each query back to each key. It is negative for later keys.
# </details>
# <details><summary>Hint: where "or" belongs</summary>
#
# Only inside the prefix mask, between causality and the prefix. All other masks only remove keys.
# </details>


# %% exercise="combine_masks"
def window_mask(length: int, window: int) -> torch.Tensor:
    """Mask keys that lie `window` or more positions before the query.

    Returns a boolean tensor (length, length).
    """
    ### BEGIN SOLUTION
    position = torch.arange(length)
    distance = position[:, None] - position
    return distance < window
    ### END SOLUTION


def document_mask(documents: torch.Tensor) -> torch.Tensor:
    """Mask the keys of all texts but the query's own.

    documents (batch, length) holds the id of each token's text. Returns a boolean tensor
    (batch, 1, length, length).
    """
    ### BEGIN SOLUTION
    return documents[:, None, :, None] == documents[:, None, None, :]
    ### END SOLUTION


def prefix_mask(prefix_lengths: torch.Tensor, length: int) -> torch.Tensor:
    """Let queries attend to themselves, to earlier positions, and to the whole prefix.

    prefix_lengths (batch,) is the number of tokens that are given. Returns a boolean tensor
    (batch, 1, length, length).
    """
    ### BEGIN SOLUTION
    position = torch.arange(length)
    causal = position[:, None] >= position
    given = position < prefix_lengths[:, None, None, None]
    return causal | given
    ### END SOLUTION


def combine_masks(
    lengths: torch.Tensor, prefix_lengths: torch.Tensor, documents: torch.Tensor, window: int
) -> torch.Tensor:
    """Allow what the prefix mask, the padding mask, the window and the document mask all allow.

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
# Again you write the test, and it is graded on the bugs that it catches. A model takes `x` of shape `(batch, length, d_model)` and `lengths` of shape `(batch,)`, and returns a tensor with the shape of `x`. Its outputs at the real tokens of a sequence must not depend on
#
# 1. the contents of the padding (arbitrary, not always 0, but finite),
# 2. the amount of padding,
# 3. the other sequences of the batch.
#
# Its outputs *at* padded positions do not matter: they may be 0, arbitrary or NaN.
#
# First write `largest_difference`: the largest difference, at real tokens, between two results for the same sequences. The two may be padded to different lengths. If there is a NaN at a real token, the difference is infinite. Then write the test: call the model on inputs of your choice and `assert`. Correct implementations must pass, however they round (some compute in float32, and the last digit may depend on the batch); wrong ones must fail.
#
# *Before you code:* is `float("nan") > 1e-6` true? What does `assert not difference > 1e-6` then do for a model that returns NaN? Which of the three properties would still be tested if none of your sequences had padding?
#
# <details><summary>Answers, after you have tried</summary>
#
# No: every comparison with NaN except `!=` is false, so that assertion passes a model that returns NaN. Without padding, only the third property is tested.
# </details>
#
# Below are two models on which to try your test: the first should pass and the second should fail.
#
# <details><summary>Hint: all three in one comparison</summary>
#
# Call the model on a sequence alone and without padding. Then call it on the same sequence in a batch with others, with arbitrary numbers in its padding. Compare every sequence: a model may be right for the first and wrong for the others.
# </details>
# <details><summary>Hint: infinite differences</summary>
#
# `tensor.nan_to_num(math.inf)` replaces NaN by infinity.
# </details>


# %%
def token_by_token(x, lengths):
    return x.sin()


def centred_over_all_positions(x, lengths):
    return x - x.mean(dim=1, keepdim=True)


# %% exercise="check_padding_invariance"
def largest_difference(
    first: torch.Tensor, second: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor | float:
    """Return the largest absolute difference between two results at real tokens.

    Shapes: first (batch, length, d_model), second (batch, other_length, d_model), lengths
    (batch,), none larger than length or other_length. The result is infinite if
    there is a NaN at a real token.
    """
    ### BEGIN SOLUTION
    shorter = min(first.shape[1], second.shape[1])
    gap = (first[:, :shorter] - second[:, :shorter]).abs().nan_to_num(math.inf)
    padded = torch.arange(shorter)[:, None] >= lengths[:, None, None]
    return gap.masked_fill(padded, 0.0).max()
    ### END SOLUTION


def check_padding_invariance(model) -> None:
    """Raise AssertionError if padding or the other sequences of the batch change the output of
    model(x, lengths) at real tokens.
    """
    ### BEGIN SOLUTION
    generator = torch.Generator().manual_seed(0)
    batch = 2 * torch.randn(3, 9, 4, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([5, 9, 2])
    together = model(batch, lengths)
    for i, length in enumerate(lengths.tolist()):
        one = slice(i, i + 1)
        alone = model(batch[one, :length], lengths[one])
        difference = largest_difference(alone, together[one], lengths[one])
        assert difference < 1e-4, f"padding or the batch changes a real token by {difference}"
    ### END SOLUTION


# %% [markdown]
# {{exercise mended_columns}}
#
# Some code, and much of the mathematical literature, writes tokens as *columns*. Then `key.T @ query` has keys as rows and queries as columns, and the softmax runs down each column. The author of this function knew all that, but took the mask from a textbook: "set the upper right triangle to minus infinity".
#
# Run the cell. The weights are shown in the layout of the code, one column per query. Who attends to whom?
#
# *Before you code:* the first column belongs to the first query. Which of its entries should be non-zero? May an allowed score be 0?
#
# <details><summary>Answers, after you have tried</summary>
#
# Only the first: the first query attends to itself and nothing else. Yes: a score of 0 is a score like any other, and so is one of 20,000.
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
    position = torch.arange(scores.shape[0])
    hidden = position[:, None] > position
    return value @ scores.masked_fill(hidden, -math.inf).softmax(dim=0)
    ### END SOLUTION


# %% [markdown]
# {{exercise mended_maps}}
#
# A widely read tutorial shows the attention maps of its model. Every map is masked, like the model's weights, and looks correct. But from the second layer on, the maps are not those of the model. The cell compares them with the weights that the model used.
#
# Write the corrected function, `mended_maps`. `layer_weights` is given, and correct.
#
# *Before you code:* which map must be correct, whatever happens between the layers?
#
# <details><summary>Answers, after you have tried</summary>
#
# The first: the first layer has the same input in both.
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
    print(f"layer {number}: the weights shown are off by up to {gap:.2f}")


# %% exercise="mended_maps"
def layer_weights(x, w_query, w_key, mask=None):
    """Given, and correct: the weights (length, length) of one layer."""
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
# A softmax needs the largest score and the sum of all exponentials, so it seems to need all scores at once: a row of `k_len` numbers for each query. It does not. Process the keys in blocks and keep three things for each query:
#
# - `highest`: the largest score so far, initially $-\infty$,
# - `total`: the sum of $e^{s - \text{highest}}$ over the scores so far, initially 0,
# - `mixed`: the sum of $e^{s - \text{highest}}\, v$ over the keys so far, initially 0.
#
# At the end `mixed / total` is the output. When a block contains a higher score, `total` and `mixed` were computed relative to a maximum that is no longer the maximum. By which factor must they be multiplied?
#
# Write `update`, which adds one block. Masked keys have the score $-\infty$. Then write the loop over blocks: compute the scores of one block at a time, scaled by $1/\sqrt{d_{\text{head}}}$ and masked. The output of a query that may attend to nothing is 0. The checks compare numbers, not gradients, since real implementations compute those in a backward pass of their own, also in blocks. Numbers cannot show whether you ever hold all scores at once: the last code cell measures that, and it earns no points.
#
# *Before you code:* while all keys of a query so far are masked, `highest` is $-\infty$. What is `torch.exp(highest - highest)` then? And is the last block always full?
#
# <details><summary>Answers, after you have tried</summary>
#
# NaN, since $-\infty - (-\infty)$ is NaN. The last block is shorter if the number of keys is not a multiple of the block size.
# </details>
#
# <details><summary>Hint: the factor</summary>
#
# $e^{s - \text{new}} = e^{s - \text{old}} \cdot e^{\text{old} - \text{new}}$. The second factor does not depend on the key.
# </details>
# <details><summary>Hint: nothing seen so far</summary>
#
# Where the new maximum is $-\infty$, subtract 0 instead. All exponentials there are $e^{-\infty} = 0$, as they should be.
# </details>


# %% exercise="online_softmax_attention"
def update(
    highest: torch.Tensor,
    total: torch.Tensor,
    mixed: torch.Tensor,
    scores: torch.Tensor,
    value: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Add one block of keys to the running softmax.

    Shapes: highest (q_len,), total (q_len,), mixed (q_len, d_value); scores (q_len, block), minus
    infinity where masked; value (block, d_value). Returns the new (highest, total, mixed).
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
    """Return the output of masked attention, computed from block_size keys at a time.

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
# This function ran on a laptop for a year. On its first day on a GPU it failed: "expected all tensors to be on the same device". After that was fixed, the model was converted to `bfloat16`, and the function failed again. By default, a tensor made from scratch is on the CPU, and in float32 if it holds neither integers nor booleans.
#
# You do not need a GPU to find such bugs. PyTorch has a device called `meta`, whose tensors have a shape and a dtype but no numbers. A tensor on `meta` cannot be combined with one on the CPU, so a computation on `meta` fails at the line that would fail on a GPU.


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
# Write the corrected function. It computes the same numbers, up to rounding, on any device and in any floating-point dtype, however long the sequence, and returns a tensor with the device and dtype of its inputs. The queries are the last of the positions; a query may attend to at most `window` keys, and `fade`, a number, says how fast scores fall with distance.
#
# *Before you code:* which tensors are made from scratch? Which device and dtype should each have?
#
# <details><summary>Answers, after you have tried</summary>
#
# Two: `torch.arange`, whose integers need the device of the inputs but not their dtype, and `torch.zeros`, which is added to the scores and needs both. A boolean mask in its place needs only the device.
# </details>
#
# <details><summary>Hint: where the device and dtype come from</summary>
#
# Pass `query.device` and `query.dtype` on: `torch.arange(n, device=...)`. A method such as `query.new_zeros(...)` uses both. Integers do not need the dtype of the inputs: a float tensor keeps its dtype when it is combined with an integer tensor. But `fade * distance` is a float tensor, and its dtype is float32.
# </details>


# %% exercise="mended_device"
def mended_device(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int, fade: float
) -> torch.Tensor:
    """Attend to the nearest keys, on the device and in the dtype of the inputs.

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
# The top row shows your masks: a prefix, a window, two documents, and all of them with padding (dark means allowed). Below each mask is your audit of a model that uses it. The two rows agree if your masks, your softmax and your audit are correct. The table under the figure shows the size of the largest tensor in your blockwise attention; the matrix of all scores grows with the square of the length. (This cell is not graded.)

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
    """Records the largest tensor that is created while it is active."""

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
# A causal mask sets the scores of later positions to minus infinity before the softmax. Suppose that you set the weights of later positions to zero after the softmax instead. Which two things go wrong? Would dividing each row by its sum fix both? Answer in three to five sentences.

# %% [markdown] written="why_before_the_softmax" points=3
# **What earns the points**, one each:
#
# 1. The weights of a row no longer sum to 1, so early positions get outputs of smaller norm.
# 2. The later positions are still in the denominator: the remaining weights depend on later tokens, so the future leaks into the past.
# 3. Dividing by the row's sum cancels the denominator and fixes both in exact arithmetic (both parts of the question need an answer); an excellent answer adds that it fails where all the allowed weights have rounded to 0.
#
# **Often seen, and wrong:** “It is the same, since the weights are zero either way”; an answer that names the sum and not the leak; the claim that the values leak, although their weight is 0.
