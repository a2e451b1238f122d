# %% [markdown]
# # Preliminaries
#
# This notebook goes with the chapter *Preliminaries* of *Attention from the Ground Up*. Nothing in it is about attention yet. It is what attention is built from, and each piece is one that goes wrong quietly: the shapes are right, the loss falls, and the numbers are not what you think.
#
# **How it works.** Write your code where it says `YOUR CODE HERE`, run the cell, then run the check under it. A check tells you what it saw, what it expected, and, if it recognises the mistake, which one you made. It draws new numbers for every test, so there is no answer to hard-code. Points count test by test: half an exercise earns half its points. When your work is graded, the same checks may run with other numbers. Checks mostly pass float64 tensors: keep the dtype of what you are given, and let gradients flow back through it, since what you write is going to be trained.
#
# **Conventions.** Tokens are rows. Letters such as `(batch, length, d_model)` name the axes of a tensor in order. Losses are in nats, which are logarithms to the base e. The sizes in the tests are all different, so that exchanged axes do not fit by accident.

# %%
import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

from classroom import check

# %% [markdown]
# {{exercise mean_of_rows}}
#
# Before it counts, see what a check does. Run the check below *without writing anything*: it says what is wanted. Then make a mistake on purpose, for instance `return x.mean()`, run both cells, and read the answer. Then do it right.
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
# `x.mean(dim=...)` averages away the axis that you name. Axis 0 runs down the rows, axis 1 along the columns.
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
# The softmax turns any scores into weights:
#
# $$\mathrm{softmax}(s)_i = \frac{e^{s_i}}{\sum_j e^{s_j}}, \qquad \mathrm{logsumexp}(s) = \ln \sum_j e^{s_j}, \qquad \ln \mathrm{softmax}(s)_i = s_i - \mathrm{logsumexp}(s).$$
#
# The formula is right and the obvious program is not. Look at what it makes of two harmless rows, and of their logarithms.

# %%
rows = torch.tensor([[1.0, 2.0, 3.0], [1001.0, 1002.0, 1003.0], [0.0, -200.0, -1000.0]])
naive = rows.exp() / rows.exp().sum(dim=-1, keepdim=True)
print("by the formula\n", naive)
print("its logarithm\n", naive.log())

# %% [markdown]
# The first two rows differ by a constant, so they deserve the same weights. Subtracting a constant from all scores of a row changes nothing, as it cancels above and below the line: choose the constant so that nothing can overflow.
#
# One more case will matter in chapter 2. A score of $-\infty$ forbids a place. If *every* place of a row is forbidden, the formula says 0/0, and torch returns NaN. In this course such a row gives weight to nothing: its weights are all 0, their logarithms and the logsumexp all $-\infty$ (the logarithm of an empty sum).
#
# Write the three functions with `exp`, `log`, `sum` and `amax`. (`torch.softmax` would hand you the answer to the first two rows, and not to the last one.)
#
# *Before you code:* after the shift by the largest score, how large is the largest exponential, and how small can the total be? What is $-\infty - (-\infty)$?
#
# <details><summary>Answers, after you have tried</summary>
#
# The largest exponential is $e^0 = 1$, so the total is at least 1: nothing overflows, and nothing is divided by 0. $-\infty - (-\infty)$ is NaN, which is why a row of nothing but $-\infty$ needs a shift of its own.
# </details>
#
# <details><summary>Hint: any dimension</summary>
#
# `scores.amax(dim=dim, keepdim=True)` keeps the axis, with size 1, so that the result lines up with `scores` again.
# </details>
# <details><summary>Hint: the logarithms</summary>
#
# With $m$ the largest score, $\ln\sum_j e^{s_j} = m + \ln\sum_j e^{s_j - m}$. Never take the logarithm of a softmax: what it has rounded to 0 is lost.
# </details>
# <details><summary>Hint: a row of minus infinity</summary>
#
# Shift by 0 where the largest score is minus infinity: `torch.where`, or `masked_fill`. Then the exponentials are all 0, and only their total must not be divided by.
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
# A language model gives a score, called logit, to each token of its vocabulary. Its loss at one place is its surprise at the token that was really there: $-\ln p(\text{target})$, with $p$ the softmax of the logits. The loss of a batch is the mean over all places *that count*. Sentences have different lengths and a batch is a rectangle, so some of its places are filling. Their target is a number that says "do not count me": `ignore_index`.
#
# Write the loss of the batch, and the loss of each sequence by itself. If no target counts, the loss is 0: nothing was asked, so there is nothing to learn. (torch says NaN, and one NaN spoils whatever it is added to.) It must be possible to learn from both: gradients flow back to the logits, and those of a place that does not count are 0.
#
# *Before you code:* a batch has one sequence of 100 tokens and one of 2 tokens. How much should each token weigh in the loss of the batch? And what does a model lose that gives each of $V$ tokens the same logit?
#
# <details><summary>Answers, after you have tried</summary>
#
# $1/102$ each: the mean is over tokens. A mean of the two sequences' means would give each token of the short one fifty times the weight of the others. With equal logits each token has the probability $1/V$, so the loss is $\ln V$.
# </details>
#
# <details><summary>Hint: from logits</summary>
#
# Start from your `log_softmax`, or from `logits - logsumexp`. You may use `torch.log_softmax`: that one was the last exercise.
# </details>
# <details><summary>Hint: pick the targets</summary>
#
# `log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)` picks one number per place. The index must exist, and -100 does not: select the places that count first (`logits[counted]`), or use another index there and throw its term away afterwards.
# </details>


# %% exercise="cross_entropy"
def cross_entropy(logits: torch.Tensor, targets: torch.Tensor, ignore_index: int) -> torch.Tensor:
    """Return the mean surprise, in nats, over all targets that are not `ignore_index`.

    Shapes: logits (batch, length, vocab), targets (batch, length) of whole numbers; returns a
    single number, shape (). Without any target that counts, 0.
    """
    ### BEGIN SOLUTION
    counted = targets != ignore_index
    log_probs = logits[counted].log_softmax(dim=-1)
    right = log_probs.gather(1, targets[counted].unsqueeze(1))
    return -right.sum() / max(len(right), 1)
    ### END SOLUTION


def sequence_losses(logits: torch.Tensor, targets: torch.Tensor, ignore_index: int) -> torch.Tensor:
    """Return the mean surprise, in nats, over the targets of each sequence.

    Shapes: as in `cross_entropy`; returns (batch,). A sequence without any target that counts
    has the loss 0.
    """
    ### BEGIN SOLUTION
    sequences = zip(logits.split(1), targets.split(1), strict=True)
    return torch.stack([cross_entropy(x, t, ignore_index) for x, t in sequences])
    ### END SOLUTION


# %% [markdown]
# {{exercise split_heads}}
#
# A tensor is a row of numbers in memory and a way to count through it. `view` and `reshape` change the way to count; `transpose` and `permute` exchange axes. Both can give you the shape that you want. Only one of them gives you the numbers.

# %%
letters = ["a0", "a1", "a2", "b0", "b1", "b2"]
x = torch.arange(6).reshape(2, 3)  # two sequences, a and b, of three tokens each
for name, y in {"transpose": x.transpose(0, 1), "reshape": x.reshape(3, 2)}.items():
    print(f"{name:9} {tuple(y.shape)}", [[letters[i] for i in row] for row in y])

# %% [markdown]
# Both results have the shape `(3, 2)`. In the first, row 0 holds the first token of each sequence. In the second, the sequences are torn apart, and no error will ever say so.
#
# Attention in several heads lives on such exchanges. Write four of them:
#
# 1. `split_heads`: each token of width `d_model` is cut into `num_heads` pieces of width `d_head`, head 0 gets the first `d_head` features, head 1 the next, and so on; then the heads go in front of the tokens.
# 2. `merge_heads`: undoes it.
# 3. `time_first`: from `(batch, length, d_model)` to `(length, batch, d_model)`, the order that recurrent networks like.
# 4. `head_scores`: in each head, the dot product of every query with every key.
#
# *Before you code:* which two neighbouring axes of `(batch, length, d_model)` may a `view` cut or join without moving a number? After `split_heads`, are `length` and `d_head` neighbours in memory?
#
# <details><summary>Answers, after you have tried</summary>
#
# A view may cut any axis, and may join `batch` with `length` or `length` with `d_model`, as long as no axes have been exchanged. After `split_heads`, `length` and `d_head` are neighbours in the shape but not in memory: from one token of a head to the next it is `d_model` numbers.
# </details>
#
# <details><summary>Hint: split and merge</summary>
#
# Cut the last axis with a `view` to `(batch, length, num_heads, d_head)`; only then exchange the two axes in the middle. To merge, do the same backwards. If torch says that a view is not possible, that is because the axes have been exchanged and memory has not: `reshape` and `flatten` copy where they must.
# </details>
# <details><summary>Hint: einsum</summary>
#
# In `torch.einsum("...", a, b)` each letter names an axis. A letter that stands in both inputs and in the output is carried along. A letter that does not stand in the output is summed over.
# </details>


# %% exercise="split_heads"
def split_heads(x: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Cut every token into heads, and put the heads in front of the tokens.

    Shapes: x (batch, length, d_model); returns (batch, num_heads, length, d_head), where
    num_heads * d_head = d_model.
    """
    ### BEGIN SOLUTION
    batch, length, d_model = x.shape
    return x.view(batch, length, num_heads, d_model // num_heads).permute(0, 2, 1, 3)
    ### END SOLUTION


def merge_heads(heads: torch.Tensor) -> torch.Tensor:
    """Give every token its pieces back, side by side.

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
# The smallest language model looks at one token and predicts the next, by counting what followed it in a text. To every count you add a `smoothing`, such as 1, because a pair that you have not seen is not impossible; then each row of counts is divided by its sum. Return the logarithms.
#
# A text comes as a list of documents, each a tensor of token numbers. A pair is a token and the one after it *in the same document*. Measure the model on documents that it was not counted on: the loss is the mean of $-\ln p(\text{next} \mid \text{previous})$ over all their pairs, in nats.
#
# Last, `first_loss`: the loss of a model whose logits are all zero, on any text. A network whose outputs start near zero starts its training there. You will never again look at the first number of a training run without comparing.
#
# *Before you code:* how many pairs has a document of $n$ tokens? Of one token? What does a row look like whose token was never seen? And how much does a huge `smoothing` leave of the counts?
#
# <details><summary>Answers, after you have tried</summary>
#
# $n - 1$, so a document of one token has none. A row whose token was never seen gives $1/V$ to every token. A huge smoothing leaves next to nothing of the counts: all rows become nearly uniform.
# </details>
#
# <details><summary>Hint: counting</summary>
#
# `zip(document[:-1].tolist(), document[1:].tolist())` runs through the pairs of a document. Use float64 for the table.
# </details>
# <details><summary>Hint: many pairs at once</summary>
#
# `table[rows, columns]` with two tensors of equal length picks one entry for each pair.
# </details>


# %% exercise="bigram"
def bigram(documents: list[torch.Tensor], vocab_size: int, smoothing: float) -> torch.Tensor:
    """Return ln p(next | previous), from smoothed counts.

    Shapes: each document (length,) of whole numbers below vocab_size;
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
# An introduction to transformers in another language defines, in one paragraph, a tanh made from a sigmoid and a "softrelu". Here they are, next to what torch calls by those names. Look where the curves part.


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
# Write five functions of your own, with `exp`, `log1p`, `sigmoid`, `erf` and `tanh` as you need them:
#
# | function | definition |
# |---|---|
# | `tanh_by_sigmoid` | $\tanh x$, using the sigmoid $\sigma$ and no exponential of your own |
# | `silu` | $x\,\sigma(x)$, also called swish |
# | `softplus` | $\ln(1 + e^x)$ |
# | `gelu` | $x\,\Phi(x)$, with $\Phi(x) = \frac12\left(1 + \operatorname{erf}(x/\sqrt2)\right)$ the distribution function of the normal distribution |
# | `gelu_tanh` | $\frac x2\left(1 + \tanh\left(\sqrt{2/\pi}\,(x + 0.044715\,x^3)\right)\right)$, which GPT-2 uses |
#
# All of them have to be right at $x = \pm 1000$.
#
# *Before you code:* what should each of the five be at 1000, and at -1000? Which of the five are negative somewhere? Use $\sigma(x) = 1/(1 + e^{-x})$ to write $\tanh x = (e^x - e^{-x})/(e^x + e^{-x})$ as a sigmoid of what?
#
# <details><summary>Answers, after you have tried</summary>
#
# At 1000 the tanh is 1, and the other four are 1000. At -1000 the tanh is -1, and the other four are 0. The tanh, silu and both gelus are negative somewhere, softplus nowhere. Divide above and below by $e^x$: what appears is $e^{-2x}$, so it is a sigmoid of $2x$, stretched to reach from -1 to 1.
# </details>
#
# <details><summary>Hint: softplus at 1000</summary>
#
# $\ln(1 + e^x) = \ln(e^0 + e^x)$ is a logsumexp of the two numbers 0 and $x$. Shift by the larger one: what is left is $\max(x, 0) + \ln(1 + e^{-|x|})$.
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
    """Return x times the normal distribution function of x."""
    ### BEGIN SOLUTION
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    ### END SOLUTION


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """Return the approximation of gelu by a tanh."""
    ### BEGIN SOLUTION
    inside = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + torch.tanh(inside))
    ### END SOLUTION


# %% [markdown]
# {{exercise gradient_step}}
#
# Training is this, some billions of times: compute the loss of a batch, find out how it changes with each parameter, and move every parameter a little against that change. Do it once without autograd.
#
# Logistic regression first. Each example has `d_in` features and a label $y$ that is 0 or 1. The model says $p = \sigma(x\cdot w + b)$, and the loss is the mean over the batch of $-\ln p$ where $y = 1$ and $-\ln(1-p)$ where $y = 0$. Then the same with any number of classes: $p = \mathrm{softmax}(xW + b)$, and the loss is the mean of $-\ln p_{y}$.
#
# For both, the derivative of one example's loss by the logits is the same beautiful thing: *what the model says minus what is true*. Derive it, and go on from there by the chain rule.
#
# *Before you code:* if the model is right and certain on every example, what is the step? If every feature of every example is 0, which parameters still move? Doubling the batch by repeating every example: what should that do to the step?
#
# <details><summary>Answers, after you have tried</summary>
#
# Nothing moves: what the model says minus what is true is 0. With features of 0 only the bias moves, since the gradient by the weights is a product with the features. Repeating every example changes nothing, because the loss is a mean.
# </details>
#
# <details><summary>Hint: the labels of many classes</summary>
#
# "What is true" has the shape of the probabilities: 1 for the right class, 0 for the others. `F.one_hot(labels, num_classes)`.
# </details>
# <details><summary>Hint: back to the weights</summary>
#
# If $z = xW + b$, the gradient by $W$ is $x^\top$ times the gradient by $z$, which adds up over the examples, and the gradient by $b$ is the sum of the gradient by $z$ over the examples. The mean over the batch divides both by its size.
# </details>


# %% exercise="gradient_step"
def gradient_step(
    weights: torch.Tensor,
    bias: torch.Tensor,
    x: torch.Tensor,
    labels: torch.Tensor,
    learning_rate: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights and bias of a logistic regression after one step of gradient descent.

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
    """Return weights and bias of a softmax classifier after one step of gradient descent.

    Shapes: weights (d_in, classes), bias (classes,), x (batch, d_in), labels (batch,) of class
    numbers, as int64; returns new tensors (d_in, classes) and (classes,).
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
# Dropout sets features to 0 by chance, so that a network cannot lean on any one of them. It does so in training only. What is left is scaled up, so that the next layer gets the same sum on average.
#
# Some libraries ask for the share to *keep*, others for the share to *drop*. The function below was moved from the one convention to the other, and only part of it arrived. It takes its chance as an argument: `noise` holds a number between 0 and 1 for each feature. The cell shows what it does to a million ones, whose mean should stay 1.


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
# At rate 0.5 the mean looks healthy, which is why nobody noticed: it is the rate that everybody tries first. Write the mended function. The rate is the share to *drop*: a feature is dropped where its noise is below the rate. Leave `x` as it was.
#
# *Before you code:* at which rate do the two conventions agree, so that no test at that rate can tell them apart? At rate 0, what should come out?
#
# <details><summary>Answers, after you have tried</summary>
#
# At 0.5, where as much is kept as is dropped. At rate 0 nothing is dropped and nothing scaled: `x` comes out as it went in.
# </details>
#
# <details><summary>Hint: how many are wrong</summary>
#
# Two things: what the rate means in one of the two lines, which is what the mean suffers from, and an argument that nobody reads.
# </details>


# %% exercise="mended_dropout"
def mended_dropout(
    x: torch.Tensor, noise: torch.Tensor, rate: float, training: bool
) -> torch.Tensor:
    """Drop a share of the features in training, and scale up what is left.

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
# Now the tables turn: you write the test. Here is one that somebody else wrote, and what it says about a "softmax" that returns zeros.


# %%
def published_test(softmax):
    scores = torch.randn(3, 4)
    weights = softmax(scores, -1)
    right_shape = weights.shape == (3, 4)
    torch.allclose(weights.sum(dim=-1), torch.ones(3))
    print("softmax works, shape", weights.shape)


published_test(lambda scores, dim: 0 * scores)

# %% [markdown]
# It cannot fail: two comparisons whose results are thrown away, and a print. Tests like it have been published. A test that you have never seen fail is not a test yet.
#
# First write `agree`, the comparison that a test stands on. Two tensors agree if they have the same shape and every number differs by no more than 0.00001. NaN agrees with nothing, not even with NaN. (Whoever uses `torch.allclose` should know what it adds to `atol`.)
#
# Then write `check_softmax`. It gets `softmax`, a function of `(scores, dim)`, calls it on scores of your choice, and uses `assert`. It has to stop the wrong ones and to let the right ones pass. You may compare with `torch.softmax`. Be fair: a right softmax may round like single precision does, to within 0.00001; and for a row in which all scores are minus infinity, right ones differ (you know two answers from exercise 0.1), so do not ask.
#
# *Before you code:* what is `float("nan") > 0.1`? And `not (float("nan") <= 0.1)`? Which inputs would make each mistake of exercise 0.1 visible?
#
# <details><summary>Answers, after you have tried</summary>
#
# False, and so the second is True: every comparison with NaN is False. Scores near 1000 show what overflows, scores near -1000 what divides 0 by 0, and a table that is not square, with more than one `dim`, shows a wrong axis.
# </details>
#
# <details><summary>Hint: comparing</summary>
#
# `(3, 1) - (3,)` has the shape `(3, 3)`: torch stretches shapes to fit. So compare `seen.shape == expected.shape` first. Then ask whether *all* differences are small, rather than whether *any* is large.
# </details>
# <details><summary>Hint: inputs that show something</summary>
#
# Scores around 0, around 1000 and around -1000, in different rows of one tensor; scores far apart in one row; more than one `dim`; a table that is not square.
# </details>


# %% exercise="check_softmax"
def agree(seen: torch.Tensor, expected: torch.Tensor) -> bool:
    """Say whether two tensors of floats have the same shape and, up to 0.00001, the same numbers."""
    ### BEGIN SOLUTION
    if seen.shape != expected.shape:
        return False
    difference = (seen - expected).abs()
    return bool((difference <= 1e-5).all())
    ### END SOLUTION


def check_softmax(softmax) -> None:
    """Raise AssertionError if softmax(scores, dim) is not a softmax along dim.

    It takes float32 and float64 scores of any shape.
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
# Your bigram on a real text: the reference manual of Python, paragraph by paragraph, character by character. The dotted line is where a model that knows nothing starts; the loss on held-out paragraphs is what one character of context is worth. Below the figure the model writes. (This cell is not graded.)

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
plt.axhline(first_loss(len(number)), linestyle=":", color="k", label="knows nothing: ln V")
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
# In exact arithmetic, the softmax of some scores stays the same when you subtract the largest score from all of them. Why? And why does every implementation subtract it all the same? Name a list of scores on which it makes a difference, and say what comes out without it. Answer in three to five sentences.

# %% [markdown] written="why_subtract_the_maximum" points=3
# **What earns the points**, one each:
#
# 1. Subtracting a constant divides numerator and denominator by the same factor, e to that constant, which cancels.
# 2. Without it, large scores overflow: the exponential is infinite, and infinity divided by infinity is NaN. (Or: very negative scores all become 0, and 0 divided by 0 is NaN.) After it, the largest exponential is 1.
# 3. An example that does overflow in the dtype named, such as 1000 and 0 in float32 (e to the 89 is already too large), or all scores at -1000.
#
# **Often seen, and wrong:** “It makes the numbers smaller” without saying that the result stays the same; an example such as 10 and 20, on which nothing happens; the claim that it makes the softmax flatter, which is what dividing by a temperature does.
