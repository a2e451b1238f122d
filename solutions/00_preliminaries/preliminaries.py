# %% [markdown]
# # Warm-up: a language model in five lines
#
# This notebook goes with chapter 0 of *Attention from the Ground Up*. Nothing in it is about attention yet. You write the pieces that attention is built from. Each of them can be wrong without an error: the shapes are correct, the loss falls, and the numbers are not what you think.
#
# **How it works.** First run the code cells above the first exercise. Write your code where it says `YOUR CODE HERE`, run the cell, then run the check under it. A check reports what your code returned, what it expected and, if it recognises the mistake, which one you made. Each line of its report has its own points, so a partly correct answer earns some of them. When your work is graded, the same checks may run on other numbers: compute results, do not hard-code them. Checks mostly use float64 tensors: keep the dtype of your inputs, and let gradients flow back to them, because models will be trained with your code.
#
# **Conventions.** Tokens are rows. Names such as `(batch, length, d_model)` list the axes of a tensor in order. Losses are in nats: the logarithms have base e. The sizes in the checks are all different, so that swapped axes do not fit by accident.

# %%
import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

from classroom import check

# %% [markdown]
# {{exercise mean_of_rows}}
#
# First see what a check does. Run the check below *without writing anything*: it says what it expects. Then make a mistake on purpose, such as `return x.mean()`, run both cells, and read the message. Then write the correct version.
#
# *Before you code:* `x` has 3 rows and 5 columns. How many numbers do you return?
#
# <details><summary>Answers, after you have tried</summary>
#
# Three: one for each row.
# </details>
#
# <details><summary>Hint</summary>
#
# `x.mean(dim=...)` averages over the axis that you name, and removes it. Axis 0 counts the rows, axis 1 the columns.
# </details>


# %% exercise="mean_of_rows"
def mean_of_rows(x: torch.Tensor) -> torch.Tensor:
    """Average each row.

    Shapes: x (rows, columns); returns (rows,).
    """
    ### BEGIN SOLUTION
    return x.mean(dim=1)
    ### END SOLUTION


# %% [markdown]
# {{exercise stable_softmax}}
#
# The softmax turns scores of any size into weights:
#
# $$\mathrm{softmax}(s)_i = \frac{e^{s_i}}{\sum_j e^{s_j}}, \qquad \mathrm{logsumexp}(s) = \ln \sum_j e^{s_j}, \qquad \ln \mathrm{softmax}(s)_i = s_i - \mathrm{logsumexp}(s).$$
#
# The formula is correct, but a program that follows it literally is not. Look at what it returns for three harmless rows, and at the logarithms.

# %%
rows = torch.tensor([[1.0, 2.0, 3.0], [1001.0, 1002.0, 1003.0], [0.0, -200.0, -1000.0]])
naive = rows.exp() / rows.exp().sum(dim=-1, keepdim=True)
print("by the formula\n", naive)
print("its logarithm\n", naive.log())

# %% [markdown]
# The first two rows differ by a constant, so their weights should be equal. Subtracting a constant from all scores of a row changes nothing, because its exponential cancels in the fraction: choose the constant so that nothing can overflow.
#
# One more case will matter in chapter 2. A score of $-\infty$ masks a position. If *every* position of a row is masked, the formula gives 0/0, and torch returns NaN. In this course such a row has no weight at all: its weights are all 0, their logarithms and the logsumexp all $-\infty$ (the logarithm of an empty sum). Chapter 2 treats the gradient through such a row; it is not tested here.
#
# Write the three functions with `exp`, `log`, `sum` and `amax`. (`torch.softmax` handles rows of finite scores, but not a row that is all $-\infty$.)
#
# *Before you code:* after the shift by the largest score, how large is the largest exponential, and what is the smallest possible total? What is $-\infty - (-\infty)$?
#
# <details><summary>Answers, after you have tried</summary>
#
# The largest exponential is $e^0 = 1$, so the total is at least 1: nothing overflows, and nothing is divided by 0. $-\infty - (-\infty)$ is NaN, which is why a row that is all $-\infty$ needs a different shift.
# </details>
#
# <details><summary>Hint: any dimension</summary>
#
# `scores.amax(dim=dim, keepdim=True)` keeps the axis, with size 1, so that the result lines up with `scores` again.
# </details>
# <details><summary>Hint: the logarithms</summary>
#
# With $m$ the largest score, $\ln\sum_j e^{s_j} = m + \ln\sum_j e^{s_j - m}$. Never take the logarithm of a softmax: a weight that was rounded to 0 cannot be recovered.
# </details>
# <details><summary>Hint: a row of minus infinity</summary>
#
# Shift by 0 where the largest score is minus infinity: `torch.where`, or `masked_fill`. Then the exponentials are all 0; just avoid dividing by their total.
# </details>


# %% exercise="stable_softmax"
def stable_softmax(scores: torch.Tensor, dim: int) -> torch.Tensor:
    """Turn scores of any size into weights that sum to 1 along `dim`.

    Shapes: scores of any shape; returns the same shape. Where all scores along `dim` are minus
    infinity, the weights are 0.
    """
    ### BEGIN SOLUTION
    largest = scores.amax(dim=dim, keepdim=True)
    exponentials = (scores - torch.where(largest == -math.inf, 0.0, largest)).exp()
    total = exponentials.sum(dim=dim, keepdim=True)
    return exponentials / torch.where(total == 0, 1.0, total)
    ### END SOLUTION


def logsumexp(scores: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the logarithm of the sum of the exponentials along `dim`, and drop that axis.

    Shapes: scores of any shape; returns that shape without `dim`. Where all scores along `dim`
    are minus infinity, so is the result.
    """
    ### BEGIN SOLUTION
    largest = scores.amax(dim=dim, keepdim=True)
    shift = torch.where(largest == -math.inf, 0.0, largest)
    return (scores - shift).exp().sum(dim=dim).log() + shift.squeeze(dim)
    ### END SOLUTION


def log_softmax(scores: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the logarithms of the weights.

    Shapes: scores of any shape; returns the same shape. Where all scores along `dim` are minus
    infinity, so are the results.
    """
    ### BEGIN SOLUTION
    total = logsumexp(scores, dim).unsqueeze(dim)
    return scores - torch.where(total == -math.inf, 0.0, total)
    ### END SOLUTION


# %% [markdown]
# {{exercise cross_entropy}}
#
# A language model gives a score, called a logit, to each token of its vocabulary. Its loss at one position is its surprisal at the actual next token: $-\ln p(\text{target})$, where $p$ is the softmax of the logits. The loss of a batch is the mean over all positions *that count*. Sequences have different lengths and a batch is a rectangle, so some of its positions are padding. There the target is `ignore_index`. Any position with this target does not count, at the end of a sequence or anywhere else in it.
#
# Write the loss of the batch, and the loss of each sequence by itself. If no target counts, the loss is 0: there was nothing to predict, so there is nothing to learn. (torch returns NaN, and one NaN spoils every sum it enters.) Both losses must be differentiable: gradients flow back to the logits, and at a position that does not count they are 0.
#
# *Before you code:* a batch has one sequence of 100 tokens and one of 2 tokens. How much should each token weigh in the loss of the batch? And what is the loss of a model that gives each of $V$ tokens the same logit?
#
# <details><summary>Answers, after you have tried</summary>
#
# $1/102$ each: the mean is over tokens. Averaging the two sequences' means would give each token of the short sequence fifty times the weight of a token of the long one. With equal logits each token has probability $1/V$, so the loss is $\ln V$.
# </details>
#
# <details><summary>Hint: from logits</summary>
#
# Start from your `log_softmax`, or from `logits - logsumexp`. You may use `torch.log_softmax`: you wrote that function in exercise 0.1.
# </details>
# <details><summary>Hint: pick the targets</summary>
#
# `log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)` picks one number per position. The index must be valid, and `ignore_index` may be -100: first select the positions that count (`logits[counted]`), or use another index there and discard its term afterwards.
# </details>


# %% exercise="cross_entropy"
def cross_entropy(logits: torch.Tensor, targets: torch.Tensor, ignore_index: int) -> torch.Tensor:
    """Return the mean surprisal, in nats, over all targets that are not `ignore_index`.

    Shapes: logits (batch, length, vocab), targets (batch, length) of integers; returns a single
    number, shape (). It is 0 if no target counts.
    """
    ### BEGIN SOLUTION
    counted = targets != ignore_index
    log_probs = logits[counted].log_softmax(dim=-1)
    right = log_probs.gather(1, targets[counted].unsqueeze(1))
    return -right.sum() / max(len(right), 1)
    ### END SOLUTION


def sequence_losses(logits: torch.Tensor, targets: torch.Tensor, ignore_index: int) -> torch.Tensor:
    """Return the mean surprisal, in nats, over the targets of each sequence.

    Shapes: as in `cross_entropy`; returns (batch,). A sequence in which no target counts has a loss
    of 0.
    """
    ### BEGIN SOLUTION
    sequences = zip(logits.split(1), targets.split(1), strict=True)
    return torch.stack([cross_entropy(x, t, ignore_index) for x, t in sequences])
    ### END SOLUTION


# %% [markdown]
# {{exercise split_heads}}
#
# A tensor is a row of numbers in memory, with a rule for indexing it. `view` and `reshape` regroup the numbers; `transpose` and `permute` swap axes. Both can give you the shape that you want, but only one of them puts the right numbers in it.

# %%
letters = ["a0", "a1", "a2", "b0", "b1", "b2"]
x = torch.arange(6).reshape(2, 3)  # two sequences, a and b, of three tokens each
for name, y in {"transpose": x.transpose(0, 1), "reshape": x.reshape(3, 2)}.items():
    print(f"{name:9} {tuple(y.shape)}", [[letters[i] for i in row] for row in y])

# %% [markdown]
# Both results have the shape `(3, 2)`. In the first, row 0 holds the first token of each sequence. In the second, the sequences are torn apart, without an error.
#
# Multi-head attention depends on such operations. Write four of them:
#
# 1. `split_heads`: each token of width `d_model` is split into `num_heads` pieces of width `d_head`: head 0 gets the first `d_head` features, head 1 the next, and so on. Then the axis of heads moves in front of the axis of tokens.
# 2. `merge_heads`: the inverse of `split_heads`.
# 3. `time_first`: from `(batch, length, d_model)` to `(length, batch, d_model)`, the order that recurrent networks use.
# 4. `head_scores`: in each head, the dot product of every query with every key.
#
# *Before you code:* which axes of `(batch, length, d_model)` can a `view` split, and which neighbouring axes can it merge, without moving a number? After `split_heads`, are `length` and `d_head` neighbours in memory?
#
# <details><summary>Answers, after you have tried</summary>
#
# A view can split any axis, and can merge `batch` with `length` or `length` with `d_model`, as long as no axes have been swapped. After `split_heads`, `length` and `d_head` are neighbours in the shape but not in memory: from one token of a head to the next the stride is `d_model` numbers.
# </details>
#
# <details><summary>Hint: split and merge</summary>
#
# Split the last axis with a `view` to `(batch, length, num_heads, d_head)`; only then swap the two axes in the middle. To merge, do the same in reverse. If torch says that a view is not possible, the axes have been swapped and the numbers in memory have not: `reshape` and `flatten` copy where they must.
# </details>
# <details><summary>Hint: einsum</summary>
#
# In `torch.einsum("...", a, b)` each letter names an axis. A letter that appears in both inputs and in the output is a batch axis. A letter that does not appear in the output is summed over.
# </details>


# %% exercise="split_heads"
def split_heads(x: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Split every token into heads, and move the heads in front of the tokens.

    Shapes: x (batch, length, d_model); returns (batch, num_heads, length, d_head), where
    num_heads * d_head = d_model.
    """
    ### BEGIN SOLUTION
    batch, length, d_model = x.shape
    return x.view(batch, length, num_heads, d_model // num_heads).permute(0, 2, 1, 3)
    ### END SOLUTION


def merge_heads(heads: torch.Tensor) -> torch.Tensor:
    """Concatenate the pieces of every token again.

    Shapes: heads (batch, num_heads, length, d_head); returns (batch, length, d_model).
    """
    ### BEGIN SOLUTION
    batch, num_heads, length, d_head = heads.shape
    return heads.permute(0, 2, 1, 3).reshape(batch, length, num_heads * d_head)
    ### END SOLUTION


def time_first(x: torch.Tensor) -> torch.Tensor:
    """Put time in front of batch.

    Shapes: x (batch, length, d_model); returns (length, batch, d_model).
    """
    ### BEGIN SOLUTION
    return x.permute(1, 0, 2)
    ### END SOLUTION


def head_scores(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Take the dot product of every query with every key of the same sequence and head.

    Shapes: query (batch, num_heads, q_len, d_head), key (batch, num_heads, k_len, d_head);
    returns (batch, num_heads, q_len, k_len).
    """
    ### BEGIN SOLUTION
    return torch.einsum("bhqd,bhkd->bhqk", query, key)
    ### END SOLUTION


# %% [markdown]
# {{exercise bigram}}
#
# A very small language model looks at one token and predicts the next, from counts of what followed that token in a text. Add a `smoothing`, such as 1 or a billionth, to every count, because a pair that you have not seen is not impossible. Then divide each row of counts by its sum, and return the logarithms.
#
# A text is given as a list of documents, each a tensor of token ids. A pair is a token and the one after it *in the same document*. Evaluate the model on documents that were not counted: the loss is the mean of $-\ln p(\text{next} \mid \text{previous})$ over all their pairs, in nats.
#
# Last, `first_loss`: the loss of a model whose logits are all zero, on any text. A network whose initial outputs are near zero starts training at this loss. Compare it with the first number of every training run.
#
# *Before you code:* how many pairs does a document of $n$ tokens have? And a document of one token? What does the row of a token that was never seen look like? And what happens to the predictions if `smoothing` is huge?
#
# <details><summary>Answers, after you have tried</summary>
#
# $n - 1$, so a document of one token has none. A row whose token was never seen gives $1/V$ to every token. A huge smoothing swamps the counts: all rows become nearly uniform.
# </details>
#
# <details><summary>Hint: counting</summary>
#
# `zip(document[:-1].tolist(), document[1:].tolist())` iterates over the pairs of a document. Use float64 for the table.
# </details>
# <details><summary>Hint: many pairs at once</summary>
#
# `table[rows, columns]` with two tensors of equal length picks one entry for each pair.
# </details>


# %% exercise="bigram"
def bigram(documents: list[torch.Tensor], vocab_size: int, smoothing: float) -> torch.Tensor:
    """Return ln p(next | previous), from smoothed counts.

    Shapes: each document (length,) of integers below vocab_size;
    returns (vocab_size, vocab_size): one row for each previous token.
    """
    ### BEGIN SOLUTION
    counts = torch.full((vocab_size, vocab_size), float(smoothing), dtype=torch.float64)
    for document in documents:
        one = torch.ones(len(document) - 1, dtype=torch.float64)
        counts.index_put_((document[:-1], document[1:]), one, accumulate=True)
    return counts.log() - counts.sum(dim=1, keepdim=True).log()
    ### END SOLUTION


def bigram_loss(log_probs: torch.Tensor, documents: list[torch.Tensor]) -> torch.Tensor:
    """Return the mean of -ln p(next | previous) over all pairs of all documents.

    Shapes: log_probs (vocab_size, vocab_size), one row for each previous token; each document
    (length,); returns a single number, shape ().
    """
    ### BEGIN SOLUTION
    picked = [log_probs[document[:-1], document[1:]] for document in documents]
    return -torch.cat(picked).mean()
    ### END SOLUTION


def first_loss(vocab_size: int) -> float:
    """Return the loss, in nats, of a model that gives every token the logit 0."""
    ### BEGIN SOLUTION
    return math.log(vocab_size)
    ### END SOLUTION


# %% [markdown]
# {{deeper}}

# %% [markdown]
# {{exercise activations}}
#
# One published introduction to transformers defines, in one paragraph, a "softrelu" and a tanh made from a sigmoid. Here they are, next to torch's `tanh` and `softplus`. See where the curves differ.


# %%
def published_tanh(x):
    return 2 * torch.sigmoid(x) - 1


def published_softrelu(x):
    return x * torch.sigmoid(x)


x = torch.linspace(-4, 4, 200)
figure, axes = plt.subplots(1, 2, figsize=(10, 3))
axes[0].plot(x, published_tanh(x), label="published tanh")
axes[0].plot(x, torch.tanh(x), "--", label="torch.tanh")
axes[1].plot(x, published_softrelu(x), label="published softrelu")
axes[1].plot(x, F.softplus(x), "--", label="F.softplus")
for panel in axes:
    panel.legend()
plt.show()

# %% [markdown]
# Write five functions, using `exp`, `log1p`, `sigmoid`, `erf` and `tanh` where you need them:
#
# | function | definition |
# |---|---|
# | `tanh_by_sigmoid` | $\tanh x$, using the sigmoid $\sigma$ and no exponential of your own |
# | `silu` | $x\,\sigma(x)$, also called swish |
# | `softplus` | $\ln(1 + e^x)$ |
# | `gelu` | $x\,\Phi(x)$, with $\Phi(x) = \frac12\left(1 + \operatorname{erf}(x/\sqrt2)\right)$ the cumulative distribution function of the standard normal distribution |
# | `gelu_tanh` | $\frac x2\left(1 + \tanh\left(\sqrt{2/\pi}\,(x + 0.044715\,x^3)\right)\right)$, which GPT-2 uses |
#
# Values must be correct at $x = \pm 1000$, and so must the gradient of `softplus`.
#
# *Before you code:* what should each of the five be at 1000, and at -1000? Which are negative somewhere? With $\sigma(x) = 1/(1 + e^{-x})$, the sigmoid of what, rescaled, is $\tanh x = (e^x - e^{-x})/(e^x + e^{-x})$?
#
# <details><summary>Answers, after you have tried</summary>
#
# At 1000 the tanh is 1, and the other four are 1000. At -1000 the tanh is -1, and the other four are 0. The tanh, silu and both gelus are negative somewhere, softplus nowhere. Divide numerator and denominator by $e^x$: $e^{-2x}$ appears, so tanh is a sigmoid of $2x$, rescaled to the range from -1 to 1.
# </details>
#
# <details><summary>Hint: softplus at 1000</summary>
#
# $\ln(1 + e^x) = \ln(e^0 + e^x)$ is a logsumexp of the two numbers 0 and $x$. Shift by the larger one; the result is $\max(x, 0) + \ln(1 + e^{-|x|})$.
# </details>


# %% exercise="activations"
def tanh_by_sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Return tanh(x), for x of any shape."""
    ### BEGIN SOLUTION
    return 2 * torch.sigmoid(2 * x) - 1
    ### END SOLUTION


def silu(x: torch.Tensor) -> torch.Tensor:
    """Return x times its own sigmoid."""
    ### BEGIN SOLUTION
    return x * torch.sigmoid(x)
    ### END SOLUTION


def softplus(x: torch.Tensor) -> torch.Tensor:
    """Return ln(1 + exp(x)), for x of any size."""
    ### BEGIN SOLUTION
    return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))
    ### END SOLUTION


def gelu(x: torch.Tensor) -> torch.Tensor:
    """Return x times the cumulative distribution function of the standard normal at x."""
    ### BEGIN SOLUTION
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    ### END SOLUTION


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """Return the tanh approximation of gelu."""
    ### BEGIN SOLUTION
    inside = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + torch.tanh(inside))
    ### END SOLUTION


# %% [markdown]
# {{exercise gradient_step}}
#
# Training repeats one step, many thousands of times: compute the loss of a batch, compute its derivative with respect to each parameter, and move every parameter a little in the opposite direction. Do it once without autograd.
#
# Logistic regression first. Each example has `d_in` features and a label $y$ that is 0 or 1. The model predicts $p = \sigma(x\cdot w + b)$, and the loss is the mean over the batch of $-\ln p$ where $y = 1$ and $-\ln(1-p)$ where $y = 0$. Logits may lie in the thousands. Then do the same for any number of classes: $p = \mathrm{softmax}(xW + b)$, and the loss is the mean of $-\ln p_{y}$.
#
# For both, the derivative of one example's loss with respect to the logits has the same simple form, the *error*: prediction minus truth. Derive it, and continue from there by the chain rule.
#
# *Before you code:* if the model is right and certain on every example, what is the step? If every feature of every example is 0, which parameters still change? If you double the batch by repeating every example, what should happen to the step?
#
# <details><summary>Answers, after you have tried</summary>
#
# Nothing changes: prediction minus truth is 0. With features of 0 only the bias changes, because the gradient with respect to the weights is a product with the features. Repeating every example changes nothing, because the loss is a mean.
# </details>
#
# <details><summary>Hint: the labels of many classes</summary>
#
# The truth has the shape of the probabilities: 1 for the correct class, 0 for the others. `F.one_hot(labels, num_classes)`.
# </details>
# <details><summary>Hint: back to the weights</summary>
#
# If $z = xW + b$, the gradient with respect to $W$ is $x^\top$ times the gradient with respect to $z$, a product that sums over the examples. The gradient with respect to $b$ is the sum over the examples of the gradient with respect to $z$. Because the loss is a mean, both are divided by the batch size.
# </details>


# %% exercise="gradient_step"
def gradient_step(
    weights: torch.Tensor,
    bias: torch.Tensor,
    x: torch.Tensor,
    labels: torch.Tensor,
    learning_rate: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights and bias of a logistic regression after one step of gradient descent.

    Shapes: weights (d_in,), bias (), x (batch, d_in), labels (batch,) of 0 and 1, as int64;
    returns new tensors (d_in,) and ().
    """
    ### BEGIN SOLUTION
    error = torch.sigmoid(x @ weights + bias) - labels
    new_weights = weights - learning_rate * (error[:, None] * x).mean(dim=0)
    return new_weights, bias - learning_rate * error.mean()
    ### END SOLUTION


def classifier_step(
    weights: torch.Tensor,
    bias: torch.Tensor,
    x: torch.Tensor,
    labels: torch.Tensor,
    learning_rate: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights and bias of a softmax classifier after one step of gradient descent.

    Shapes: weights (d_in, classes), bias (classes,), x (batch, d_in), labels (batch,) of class
    indices, as int64; returns new tensors (d_in, classes) and (classes,).
    """
    ### BEGIN SOLUTION
    truth = F.one_hot(labels, num_classes=len(bias))
    error = (x @ weights + bias).softmax(dim=-1) - truth
    new_weights = weights - learning_rate * (x.T @ error) / len(x)
    return new_weights, bias - learning_rate * error.mean(dim=0)
    ### END SOLUTION


# %% [markdown]
# {{exercise mended_dropout}}
#
# Dropout sets randomly chosen features to 0, in training only, so that a network cannot rely on any one of them. The remaining features are scaled up, so that the next layer gets the same sum on average.
#
# Some libraries ask for the probability of *keeping* a feature, others for that of *dropping* it. The function below was converted from one convention to the other, but not completely. Its randomness is an argument: `noise` holds a number between 0 and 1 for each feature. The cell shows what the function does to a million ones, whose mean should stay 1.


# %%
def published_dropout(x, noise, rate, training):
    keep = noise >= rate
    return x * keep / rate


ones = torch.ones(1_000_000)
noise = torch.rand(1_000_000, generator=torch.Generator().manual_seed(0))
for rate in (0.1, 0.5, 0.8):
    for training in (True, False):
        y = published_dropout(ones, noise, rate, training)
        print(
            f"rate {rate}, training {training!s:5}: "
            f"kept {(y != 0).double().mean():.2f}, mean {y.mean():.2f}"
        )

# %% [markdown]
# At rate 0.5 the mean looks correct, and 0.5 is the rate that most people try first. Write the corrected function. The rate is the probability of *dropping* a feature: a feature is dropped where its noise is below the rate. Do not modify `x`.
#
# *Before you code:* at which rate do the two conventions agree, so that no test at that rate can distinguish them? What should the result be at rate 0?
#
# <details><summary>Answers, after you have tried</summary>
#
# At 0.5, where the two probabilities are equal. At rate 0 nothing is dropped and nothing is scaled: the result is `x`.
# </details>
#
# <details><summary>Hint: how many bugs</summary>
#
# Two: the meaning of the rate in one of the two lines, which makes the mean wrong, and an argument that is never used.
# </details>


# %% exercise="mended_dropout"
def mended_dropout(
    x: torch.Tensor, noise: torch.Tensor, rate: float, training: bool
) -> torch.Tensor:
    """Drop a fraction of the features in training, and scale up the rest.

    Shapes: x and noise have the same shape, any; noise lies in [0, 1), rate in [0, 1); returns
    the shape of x.
    """
    ### BEGIN SOLUTION
    if not training:
        return x
    keep = noise >= rate
    return x * keep / (1 - rate)
    ### END SOLUTION


# %% [markdown]
# {{exercise check_softmax}}
#
# Now the roles are reversed: you write the test. Here is a published one, and its verdict on a "softmax" that returns zeros.


# %%
def published_test(softmax):
    scores = torch.randn(3, 4)
    weights = softmax(scores, -1)
    right_shape = weights.shape == (3, 4)
    torch.allclose(weights.sum(dim=-1), torch.ones(3))
    print("softmax works, shape", weights.shape)


published_test(lambda scores, dim: 0 * scores)

# %% [markdown]
# This test cannot fail: it makes two comparisons, discards their results, and prints a message. There are more like it. A test that you have never seen fail is not a test yet.
#
# First write `agree`, the comparison that a test rests on. Two tensors agree if they have the same shape and no number differs by more than 0.00001. NaN agrees with nothing, not even with NaN. (If you use `torch.allclose`, find out what it adds to `atol`.)
#
# Then write `check_softmax`. It gets `softmax`, a function of `(scores, dim)`, calls it on scores of your choice, and uses `assert`. Softmaxes whose weights are wrong, such as one with a base other than e, must fail; correct ones must pass. You may compare with `torch.softmax`. Be fair: a correct softmax may compute in single precision and be off by up to 0.00001; its result has the dtype of the scores. Correct softmaxes differ on a row that is all minus infinity (you know two conventions from exercise 0.1), so do not test such rows.
#
# *Before you code:* what is `float("nan") > 0.1`? And `not (float("nan") <= 0.1)`? Which inputs would reveal each possible mistake in 0.1?
#
# <details><summary>Answers, after you have tried</summary>
#
# The first is False, the second True: every comparison with NaN except `!=` is False. Scores near 1000 reveal an overflow, scores near -1000 a division of 0 by 0, and a non-square table, tested along both axes, a wrong axis. A base other than e, or a temperature, leaves the sums and the order of the weights as they should be: only a comparison with correct weights reveals it.
# </details>
#
# <details><summary>Hint: comparing</summary>
#
# A tensor of shape `(3, 1)` minus one of shape `(3,)` has the shape `(3, 3)`: torch broadcasts them. So check `seen.shape == expected.shape` first. Then ask whether *all* differences are small, rather than whether *any* is large.
# </details>
# <details><summary>Hint: inputs that reveal bugs</summary>
#
# Scores around 0, around 1000 and around -1000, in different rows of one tensor; scores far apart in one row; more than one `dim`; a non-square table.
# </details>


# %% exercise="check_softmax"
def agree(seen: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether two float tensors have the same shape and, up to 0.00001, the same numbers."""
    ### BEGIN SOLUTION
    if seen.shape != expected.shape:
        return False
    difference = (seen - expected).abs()
    return bool((difference <= 1e-5).all())
    ### END SOLUTION


def check_softmax(softmax) -> None:
    """Raise AssertionError if softmax(scores, dim) is not a softmax along dim.

    A correct softmax takes float32 and float64 scores of any shape.
    """
    ### BEGIN SOLUTION
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(3, 5, generator=generator)
    scores = torch.cat([plain, plain + 1000, plain - 1000, 60 * plain])
    for dim in (0, 1):
        assert agree(softmax(scores, dim), torch.softmax(scores, dim)), f"wrong along dim={dim}"
    ### END SOLUTION


# %% [markdown]
# ## Look at what you built
#
# Your bigram model on a real text: the Python reference manual, split into paragraphs, with characters as tokens. The dotted line is the loss of a uniform prediction; the distance from it down to the loss on held-out paragraphs is what character frequencies and one character of context are worth. Below the figure is text that the model generated. (This cell is not graded.)

# %%
from groundup.data.texts import python_reference

text = python_reference()
read, unread = text.train[:20_000], text.validation[:5_000]
characters = sorted(set(read + unread))
number = {character: i for i, character in enumerate(characters)}


def encode(text):
    return [torch.tensor([number[c] for c in p]) for p in text.split("\n\n") if len(p) > 1]


learned, held_out = encode(read), encode(unread)
smoothings = [0.01, 0.1, 1, 10, 100, 1000, 10_000]
losses = [float(bigram_loss(bigram(learned, len(number), s), held_out)) for s in smoothings]
plt.figure(figsize=(6, 3))
plt.plot(smoothings, losses, "o-", label="bigram, held-out text")
plt.axhline(first_loss(len(number)), linestyle=":", color="k", label="uniform prediction: ln V")
plt.xscale("log")
plt.xlabel("smoothing")
plt.ylabel("nats per character")
plt.legend()
plt.show()

probabilities = bigram(learned, len(number), 0.01).exp()
generator, token, written = torch.Generator().manual_seed(0), number["T"], "T"
for _ in range(200):
    token = int(torch.multinomial(probabilities[token], 1, generator=generator))
    written += characters[token]
print(written)

# %% [markdown]
# {{question why_subtract_the_maximum}}
#
# In exact arithmetic, a softmax does not change when you subtract the largest score from all scores. Why? And why does every implementation subtract it anyway? Give a list of scores for which it makes a difference, and say what the result is without it. Answer in three to five sentences.

# %% [markdown] written="why_subtract_the_maximum" points=3
# **What earns the points**, one each:
#
# 1. Subtracting a constant divides numerator and denominator by the same factor, e to that constant, which cancels.
# 2. Without it, large scores overflow: the exponential is infinite, and infinity divided by infinity is NaN. (Or: very negative scores all become 0, and 0 divided by 0 is NaN.) With it, the largest exponential is 1.
# 3. An example that does overflow in the dtype named, such as 1000 and 0 in float32 (e to the 89 is already too large), or all scores at -1000.
#
# **Often seen, and wrong:** “It makes the numbers smaller” without saying that the result stays the same; an example such as 10 and 20, which does not overflow; the claim that it makes the softmax flatter, which is what dividing by a temperature does.
