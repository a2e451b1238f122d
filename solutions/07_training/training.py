# %% [markdown]
# # Training
#
# This notebook goes with chapter 7 of *Attention from the Ground Up*. You write the parts of a training program: batches, the optimizer, the learning-rate schedule and gradient clipping. The deeper exercises add gradient accumulation, mixed precision, the cost of training, a diagnosis of loss curves, a test for fast attention, and byte-pair encoding. Nothing here needs a GPU: everything runs in seconds on a CPU.
#
# **How it works.** First run the code cells above the first exercise. Write your code where it says `YOUR CODE HERE`, run the cell, then run the check under it. A check reports what your code returned, what it expected and, if it recognises the mistake, which one you made. Each line of its report has its own points, so a partly correct answer earns some of them. When your work is graded, the same checks may run on other numbers: compute results, do not hard-code them. Checks mostly pass float64 tensors: keep the dtype of your inputs, and let gradients flow back to them, because models will be trained with your code.
#
# **Conventions.** Tokens are integers. Losses are in nats per token. Steps, or updates, are counted from 0 unless an exercise says otherwise. Functions return new tensors and do not change their inputs.

# %%
import math
import re
from collections import Counter
from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import nn

from classroom import check

# %% [markdown]
# {{exercise get_batch}}
#
# A language model is trained on windows of a long text. Three small functions prepare them, and a mistake in any of them can give a loss that is too good:
#
# - `cut` holds out the last `num_held_out` tokens of the text, none if that is 0. The text is split once, before any window is drawn, so no window of one part can reach into the other.
# - `starts_from` returns the positions at which windows begin. It gets random numbers from 0 to below 1 and divides that range equally among all positions at which a window of `length` tokens *and the token after it* fit: the lowest numbers give position 0, the highest the last such position.
# - `get_batch` returns the windows that begin at `starts`, and the targets: for each token of each window, the token that comes after it in the text.
#
# *Before you code:* a text has 6 tokens, windows have 4. Where can they begin? Which token of the text is never an input, and which is never a target?
#
# <details><summary>Answers, after you have tried</summary>
#
# At 0 and at 1: a window of 4 needs the token after it. The last token is never an input; the first is never a target.
# </details>
#
# <details><summary>Hint: how many positions</summary>
#
# A window that begins at `s` needs the tokens from `s` to `s + length`, the last one only as a target. Therefore `s + length` is at most `num_tokens - 1`.
# </details>
# <details><summary>Hint: all windows at once</summary>
#
# `starts[:, None] + torch.arange(length)` holds the positions of all inputs, `(batch, length)`. You can index a tensor with it.
# </details>


# %% exercise="get_batch"
def cut(tokens: torch.Tensor, num_held_out: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Split a text into the training part, (num_train,), and the held-out end, (num_held_out,)."""
    ### BEGIN SOLUTION
    num_train = len(tokens) - num_held_out
    return tokens[:num_train], tokens[num_train:]
    ### END SOLUTION


def starts_from(draws: torch.Tensor, num_tokens: int, length: int) -> torch.Tensor:
    """Turn numbers from 0 to below 1 into positions (batch,) where windows can begin."""
    ### BEGIN SOLUTION
    num_places = num_tokens - length
    return (draws * num_places).long()
    ### END SOLUTION


def get_batch(
    tokens: torch.Tensor, starts: torch.Tensor, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return windows of a text and their targets.

    Shapes: tokens (num_tokens,), starts (batch,); returns inputs and targets (batch, length).
    """
    ### BEGIN SOLUTION
    inputs = starts[:, None] + torch.arange(length)
    return tokens[inputs], tokens[inputs + 1]
    ### END SOLUTION


# %% [markdown]
# {{exercise adamw_step}}
#
# Gradient descent uses the same learning rate for every parameter. Adam (Kingma and Ba 2015, [algorithm 1](https://arxiv.org/abs/1412.6980)) keeps two running averages for each parameter: of the gradient $g$, and of its square,
#
# $$m \leftarrow \beta_1 m + (1-\beta_1)\, g, \qquad v \leftarrow \beta_2 v + (1-\beta_2)\, g^2,$$
#
# and divides the first by the square root of the second. Both averages begin at 0 and are too small at first, so each is divided by the value that a constant input of 1 would have reached: $\hat m = m / (1-\beta_1^{t})$ and $\hat v = v/(1-\beta_2^{t})$, where $t$ is the number of the update, **counted from 1**.
#
# Weight decay pulls parameters towards 0. If it were added to the gradient, it would be averaged and divided like the gradient, with little effect on parameters with large gradients. AdamW (Loshchilov and Hutter 2019, [algorithm 2](https://arxiv.org/abs/1711.05101)) applies the decay to the parameter itself:
#
# $$\theta \leftarrow \theta - \mathrm{lr}\left(\frac{\hat m}{\sqrt{\hat v} + \epsilon} + \lambda\,\theta\right).$$
#
# Here the learning rate multiplies the decay, as it does in torch. The $\theta$ on the right is the parameter before the update. Write it by hand: `torch.optim` is not allowed here.
#
# *Before you code:* at the first update, what is $\hat m/\sqrt{\hat v}$, for any betas? How far does a parameter then move if its gradient is 0.001, and if it is 1000?
#
# <details><summary>Answers, after you have tried</summary>
#
# The sign of the gradient, 1 or -1 (apart from $\epsilon$). Apart from decay, it moves by the learning rate both times.
# </details>
#
# <details><summary>Hint: what to return</summary>
#
# The averages *without* the correction: the correction is for this update only.
# </details>


# %% exercise="adamw_step"
def adamw_step(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    mean: torch.Tensor,
    mean_square: torch.Tensor,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the parameter and both averages after update `step`, counted from 1.

    All tensors have the shape of the parameter.
    """
    ### BEGIN SOLUTION
    mean = beta1 * mean + (1 - beta1) * gradient
    mean_square = beta2 * mean_square + (1 - beta2) * gradient.square()
    direction = mean / (1 - beta1**step)
    size = (mean_square / (1 - beta2**step)).sqrt()
    move = direction / (size + eps) + weight_decay * parameter
    return parameter - lr * move, mean, mean_square
    ### END SOLUTION


# %% [markdown]
# {{exercise learning_rate}}
#
# Adam divides by the root of a mean of squared gradients, and at first there are few of them. The learning rate therefore rises slowly to its peak; this is the warm-up. At the end, small steps average out the noise of the batches. The learning rate therefore decays again, usually as half a cosine (Loshchilov and Hutter 2017, [equation 5](https://arxiv.org/abs/1608.03983)). The rule, with steps counted from 0:
#
# - in steps 0 to `warmup_steps - 1` the rate rises linearly: step 0 has $\text{peak}/(\text{warmup\_steps}+1)$, the next step twice that, and so on;
# - step `warmup_steps` has the peak;
# - from there, the rate decays along half a cosine to `final`, which it reaches at the last step, `total_steps - 1`;
# - after the last step, the rate stays at `final`.
#
# `total_steps` is at least `warmup_steps + 2`.
#
# *Before you code:* which rate does the first step have without a warm-up? What is the rate exactly in the middle of the decay?
#
# <details><summary>Answers, after you have tried</summary>
#
# The peak. In the middle of the decay, the mean of `peak` and `final`.
# </details>
#
# <details><summary>Hint: half a cosine</summary>
#
# Let `progress` run from 0 at the peak to 1 at the last step. Then `(1 + math.cos(math.pi * progress)) / 2` runs from 1 to 0.
# </details>


# %% exercise="learning_rate"
def learning_rate(
    step: int, peak: float, warmup_steps: int, total_steps: int, final: float
) -> float:
    """Return the learning rate of one update, counted from 0."""
    ### BEGIN SOLUTION
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    last = total_steps - 1
    progress = (min(step, last) - warmup_steps) / (last - warmup_steps)
    return final + (peak - final) * (1 + math.cos(math.pi * progress)) / 2
    ### END SOLUTION


# %% [markdown]
# {{exercise clip_gradients}}
#
# Occasionally a batch has a gradient with far too large a norm, and one step along it can undo hours of training. Gradient clipping (Pascanu et al. 2013, [algorithm 1](https://arxiv.org/abs/1211.5063)) keeps the direction and shortens the step: compute the norm of **all** entries of **all** gradients together, and if it exceeds `max_norm`, multiply every gradient by $\text{max\_norm}/\text{norm}$.
#
# The list has one entry per parameter. A frozen parameter has no gradient: its entry is `None` and stays `None`. Also return the norm before clipping, as a Python number or as a tensor with the dtype of the gradients: it is the best early warning of trouble. If the norm is not finite, because a gradient contains NaN or infinity, raise `ValueError`: a step along it would ruin the weights.
#
# *Before you code:* two gradients have norms 3 and 4. What is the norm of both together? With `max_norm` 1, what are their norms after clipping?
#
# <details><summary>Answers, after you have tried</summary>
#
# 5, since $3^2 + 4^2 = 5^2$. After clipping, 0.6 and 0.8.
# </details>
#
# <details><summary>Hint: one norm</summary>
#
# The square of the global norm is the sum of the squares of the norms.
# </details>
# <details><summary>Hint: one factor</summary>
#
# `min(1.0, max_norm / norm)` leaves small gradients unchanged. (Dividing by `norm + 1e-6`, as PyTorch does, is accepted.) What if all gradients are 0? In Python, dividing a float by 0.0 raises an error; with tensors, it gives infinity.
# </details>


# %% exercise="clip_gradients"
def clip_gradients(
    gradients: list[torch.Tensor | None], max_norm: float
) -> tuple[list[torch.Tensor | None], torch.Tensor]:
    """Return gradients with a global norm of at most max_norm, and the norm before clipping."""
    ### BEGIN SOLUTION
    squares = [gradient.square().sum() for gradient in gradients if gradient is not None]
    norm = torch.stack(squares).sum().sqrt()
    if not norm.isfinite():
        raise ValueError(f"gradients must be finite, their norm is {norm}")
    factor = (max_norm / norm).clamp(max=1.0)
    clipped = [None if gradient is None else factor * gradient for gradient in gradients]
    return clipped, norm
    ### END SOLUTION


# %% [markdown]
# {{deeper}}

# %% [markdown]
# {{exercise accumulated_gradients}}
#
# A batch that does not fit in memory is split into parts. They go through the model one after another, their gradients are added up, and one update follows. This is gradient accumulation; done correctly, it gives the same gradient as the whole batch. The usual recipe was to divide the mean loss of each part by the number of parts. It gives a different gradient if the parts have different numbers of targets that count (those not ignored). This was reported for a widely used library in 2023 ([transformers#24725](https://github.com/huggingface/transformers/issues/24725)) and fixed in October 2024 ([transformers#34191](https://github.com/huggingface/transformers/pull/34191)). The cell below shows it on a batch split in two.

# %%
generator = torch.Generator().manual_seed(0)
logits = torch.randn(2, 6, 5, generator=generator)
targets = torch.randint(0, 5, (2, 6), generator=generator)
targets[0, 1:] = -100  # the first part has one target that counts, the second part six
losses = [F.cross_entropy(logits[i], targets[i], ignore_index=-100) for i in range(2)]
whole = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
print(f"the parts: {losses[0]:.4f} and {losses[1]:.4f}, the mean of both: {sum(losses) / 2:.4f}")
print(f"all targets that count at once: {whole:.4f}")

# %% [markdown]
# Write `accumulated_gradients`. `model(weight, x)` returns logits `(batch, length, vocab_size)`, and each part is a pair `(x, targets)`. Targets `-100` do not count. Return the gradient with respect to `weight` of the mean cross-entropy over all targets that count in all parts, and this mean. `weight` must not change, nor require or keep a gradient afterwards. The model must never see more than one part at a time, and the backward pass of a part must come before the next part: one backward pass at the end gives the same numbers but keeps the activations of every part in memory. Some parts, but not all, may lack targets that count.
#
# *Before you code:* what does `F.cross_entropy` return for a part in which every target is ignored? What is 0 times that?
#
# <details><summary>Answers, after you have tried</summary>
#
# NaN: a mean over nothing. 0 times NaN is NaN, so weighting this part by 0 does not help.
# </details>
#
# <details><summary>Hint: divide by what?</summary>
#
# Targets need little memory: you can examine them all before a part goes through the model. Count first, then use `reduction="sum"` and one division.
# </details>
# <details><summary>Hint: gradients</summary>
#
# `leaf = weight.clone().requires_grad_()` is a tensor to differentiate with respect to. `torch.autograd.grad(loss, leaf)` returns a tuple of one; `loss.backward()` adds to `leaf.grad`.
# </details>


# %% exercise="accumulated_gradients"
def accumulated_gradients(
    model, weight: torch.Tensor, parts: list[tuple[torch.Tensor, torch.Tensor]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient of the mean loss of a batch in parts, and the loss.

    Shapes: weight (d_model, vocab_size); of each part, x (batch, length, d_model) and targets
    (batch, length), -100 where a target does not count. Returns the gradient, in the shape of
    weight, and a single number.
    """
    ### BEGIN SOLUTION
    num_targets = sum((targets != -100).sum() for _, targets in parts)
    gradient = torch.zeros_like(weight)
    loss = torch.zeros((), dtype=weight.dtype)
    for x, targets in parts:
        leaf = weight.clone().requires_grad_()
        logits = model(leaf, x).flatten(0, 1)
        surprise = F.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum")
        (slope,) = torch.autograd.grad(surprise / num_targets, leaf)
        gradient = gradient + slope
        loss = loss + surprise.detach() / num_targets
    return gradient, loss
    ### END SOLUTION


# %% [markdown]
# {{exercise low_precision}}
#
# A GPU multiplies matrices many times faster in half precision than in float32. `bfloat16` has the range of float32 and 8 significant bits, two to three decimal digits. `float16` has 11 significant bits; its largest number is 65504, its smallest positive one about 0.00000006. This is enough for matrix products. In three other computations it is not:

# %%
x = torch.tensor([300.0, 400.0], dtype=torch.float16)
print(f"float16: the mean of the squares of 300 and 400 is {x.square().mean().item()}")
weight, update = torch.tensor(1.0, dtype=torch.bfloat16), 0.001
for _ in range(1000):
    weight = weight - torch.tensor(update, dtype=torch.bfloat16)
print(f"bfloat16: 1 minus a thousand times 0.001 is {weight.item()}")
logits = torch.linspace(-3, 3, 1000).bfloat16()
half = logits.log_softmax(dim=-1)[10].item()
full = logits.float().log_softmax(dim=-1)[10].item()
print(f"a log probability among a thousand: {half:.5f} in bfloat16, {full:.5f} in float32")

# %% [markdown]
# Write the three functions:
#
# - `rms_norm` normalises vectors that are stored in half precision, $x / \sqrt{\mathrm{mean}(x^2) + \epsilon}$ times a gain. Squares, mean and square root are computed in float32, and the result has the dtype of `x`, so that the next product is fast.
# - `token_losses` returns the cross-entropy of every token in nats. The logits are in bfloat16 and may be large; the losses are computed and returned in float32.
# - `master_step` is a step of plain gradient descent, $w - \mathrm{lr}\cdot g$. The weights are stored twice: a float32 **master** copy, to which updates are added, and a bfloat16 copy of it for the products. Given the master and a gradient in bfloat16, return the new master and this new master rounded to bfloat16.
#
# *Before you code:* between 0.5 and 1, neighbours in bfloat16 are $2^{-8}$ apart. Why did the weight in the cell above never change? How large must an update be to change it?
#
# <details><summary>Answers, after you have tried</summary>
#
# 0.001 is less than half the distance to the next number below 1, so the difference is rounded back to 1 each time. An update must be larger than $2^{-9}$, about 0.00195.
# </details>
#
# <details><summary>Hint: the order of two steps</summary>
#
# `x.square().float()` squares in half precision and converts the result when its digits are already lost. `x.float().square()` squares in float32.
# </details>
# <details><summary>Hint: a Python number times a tensor</summary>
#
# `lr * gradient` has the dtype of `gradient`.
# </details>


# %% exercise="low_precision"
def rms_norm(x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    """Divide each vector by its root mean square; the result has the dtype of x.

    Shapes: x (batch, length, d_model) in half precision, gain (d_model,) in float32.
    """
    ### BEGIN SOLUTION
    wide = x.float()
    root = (wide.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    return (wide / root * gain).to(x.dtype)
    ### END SOLUTION


def token_losses(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of each token in nats, in float32.

    Shapes: logits (batch, length, vocab_size) in bfloat16, targets (batch, length); returns
    (batch, length).
    """
    ### BEGIN SOLUTION
    rows = logits.float().flatten(0, 1)
    return F.cross_entropy(rows, targets.flatten(), reduction="none").view(targets.shape)
    ### END SOLUTION


def master_step(
    master: torch.Tensor, gradient: torch.Tensor, lr: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the updated weights in float32, and their copy in bfloat16.

    All tensors have the same shape; master is in float32, gradient in bfloat16.
    """
    ### BEGIN SOLUTION
    updated = master - lr * gradient.float()
    return updated, updated.bfloat16()
    ### END SOLUTION


# %% [markdown]
# {{exercise training_cost}}
#
# How many operations does training need, how well does it use a device, and how do you compare models with different tokenizers? Three short formulas answer these questions.
#
# - `flops_per_token`: the operations per token of **training** a decoder-only model, forward and backward. Count only matrix products; a multiplication and the addition after it are two operations. Each layer has four matrices `(d_model, d_model)`, for query, key, value and output, and a feed-forward network with two, from `d_model` to `d_ff` and back. Every token is scored against all `length` tokens of the sequence, masked or not, and averages all of their values. At the end, one matrix gives `vocab_size` logits. Looking up a row of the embedding matrix costs nothing.
# - `mfu`, model FLOPs utilisation: the operations per second of that training, as a fraction of the device's peak. Data sheets give the peak in TFLOP/s, $10^{12}$ operations per second (Chowdhery et al. 2022, [appendix B](https://arxiv.org/abs/2204.02311)).
# - `bits_per_byte`: two models with different tokenizers cannot be compared by their loss per token, since their tokens differ in length. But the number of bytes of a text does not depend on the tokenizer: add up the nats of all its tokens, convert them to bits, and divide by the number of bytes.
#
# *Before you code:* a forward product `x @ w` needs two more in the backward pass, one for the gradient of `x`, one for that of `w`. How many times as much as a forward pass does training then cost? At which `length` do scores and averages cost as much as the four matrices?
#
# <details><summary>Answers, after you have tried</summary>
#
# Three times. At `length` $= 2\,d_\text{model}$.
# </details>
#
# <details><summary>Hint: one token and one matrix</summary>
#
# A row of `m` numbers times an `(m, n)` matrix: `n` results, each a sum of `m` products.
# </details>
# <details><summary>Hint: one token and all the others</summary>
#
# A query is multiplied by `length` keys of width `d_model`, all heads together; then `length` values of the same width are weighted and added.
# </details>


# %% exercise="training_cost"
def flops_per_token(num_layers: int, d_model: int, d_ff: int, vocab_size: int, length: int) -> int:
    """Count the operations that training takes per token, forward and backward."""
    ### BEGIN SOLUTION
    maps = 4 * d_model * d_model + 2 * d_model * d_ff
    scores_and_averages = 2 * length * d_model
    products = num_layers * (maps + scores_and_averages) + d_model * vocab_size
    forward = 2 * products
    return 3 * forward
    ### END SOLUTION


def mfu(tokens_per_second: float, flops_per_token: int, peak_teraflops: float) -> float:
    """Return the fraction of a device's peak, from 0 to 1, that training uses."""
    ### BEGIN SOLUTION
    return tokens_per_second * flops_per_token / (peak_teraflops * 1e12)
    ### END SOLUTION


def bits_per_byte(nats_per_token: float, num_tokens: int, num_bytes: int) -> float:
    """Return a model's loss in bits per byte of a text of num_tokens tokens and num_bytes bytes."""
    ### BEGIN SOLUTION
    return nats_per_token * num_tokens / math.log(2) / num_bytes
    ### END SOLUTION


# %% [markdown]
# {{exercise verdicts}}
#
# A wrong training run rarely crashes. It gives a curve, and from the curve you can often name the mistake. The next cell trains one small model per mistake, all in parallel, on a language of twelve tokens whose best possible loss is known. You need not read the program to do the exercise, but you can look for the eight mistakes in it. One model is trained without a mistake; its name is `nothing`:
#
# | name | what is wrong |
# |---|---|
# | `nothing` | nothing |
# | `targets not shifted` | the target of each position is its own input token |
# | `no mask` | every token sees the later tokens, including the one to predict |
# | `learning rate too high` | 33 times too high |
# | `learning rate too low` | 300 times too low |
# | `gradients never zeroed` | the gradients of all updates are added up |
# | `softmax twice` | the loss gets probabilities instead of logits |
# | `always the same batch` | the loader always returns the first batch |
# | `dropout in evaluation` | the held-out loss is computed with dropout, as in training |

# %%
MISTAKES = (
    "nothing",
    "targets not shifted",
    "no mask",
    "learning rate too high",
    "learning rate too low",
    "gradients never zeroed",
    "softmax twice",
    "always the same batch",
    "dropout in evaluation",
)

VOCAB_SIZE, LENGTH, WIDTH = 12, 8, 16
SHAPES = {
    "tokens": (VOCAB_SIZE, WIDTH),
    "places": (LENGTH, WIDTH),
    "read": (WIDTH, 3 * WIDTH),
    "up": (WIDTH, 2 * WIDTH),
    "down": (2 * WIDTH, WIDTH),
    "logits": (WIDTH, VOCAB_SIZE),
}


def language():
    """Return next-token probabilities: one is likely, the others in proportion to frequency."""
    common = 1 / torch.arange(1.0, VOCAB_SIZE + 1)
    likely = torch.eye(VOCAB_SIZE)[torch.arange(VOCAB_SIZE) * 5 % VOCAB_SIZE]
    return 0.6 * likely + 0.4 * common / common.sum()


def texts_of(shape, generator):
    """Draw texts of the language in the given shape, LENGTH + 1 tokens each."""
    thresholds = language().cumsum(dim=-1)[:, :-1]
    draws = torch.rand(LENGTH + 1, *shape, 1, generator=generator)
    tokens = [(draws[0, ..., 0] * VOCAB_SIZE).long()]
    for draw in draws[1:]:
        tokens.append((draw > thresholds[tokens[-1]]).sum(dim=-1))
    return torch.stack(tokens, dim=-1)


def norm(x):
    return F.rms_norm(x, x.shape[-1:])


def train_side_by_side(mistakes, seed, num_steps=100, batch=16, dropout=0.6):
    """Train one small model per mistake, all in parallel, and return the curves of each.

    Returns one dict per mistake: `train` and `held_out` losses in nats per token, and the `norm`
    of the gradient, each with one number per ten updates. Everything is computed in float64 and
    rounded, weights after each update, so that the curves are the same on every CPU.
    """
    generator = torch.Generator().manual_seed(seed)
    num_runs = len(mistakes)

    def if_made(mistake, yes, no):
        """Choose `yes` in the runs with this mistake; the first axis of all tensors is runs."""
        is_made = torch.tensor([made == mistake for made in mistakes])
        return torch.where(is_made[:, None, None], torch.as_tensor(yes), torch.as_tensor(no))

    def drawn(name, rows, columns):
        size = {"tokens": 1.0, "places": 1.0, "logits": 0.03}.get(name, 0.25)
        # Uniform numbers, of variance 1: torch's normal ones have other last digits on other CPUs.
        draws = torch.rand(num_runs, 1, rows * columns, generator=generator).double()
        return size * 12**0.5 * (draws - 0.5)

    weights = torch.cat([drawn(name, *shape) for name, shape in SHAPES.items()], dim=-1)
    weights = weights.requires_grad_()  # (runs, 1, weights)
    past = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    mask = if_made("no mask", True, past)[:, None]

    def losses(texts, is_dropping):
        parts = weights.split([rows * columns for rows, columns in SHAPES.values()], dim=-1)
        w = {
            name: part.view(num_runs, *shape)
            for (name, shape), part in zip(SHAPES.items(), parts, strict=True)
        }
        given = texts[..., :-1]
        targets = if_made("targets not shifted", given, texts[..., 1:])
        x = F.one_hot(given, VOCAB_SIZE).double().flatten(1, 2) @ w["tokens"]
        x = x + w["places"].repeat(1, texts.shape[1], 1)
        read = (norm(x) @ w["read"]).unflatten(1, (-1, LENGTH))
        query, key, value = read.chunk(3, dim=-1)
        scores = (query @ key.mT / WIDTH**0.5).masked_fill(~mask, -math.inf)
        x = x + (scores.softmax(dim=-1) @ value).flatten(1, 2)
        x = norm(x + (norm(x) @ w["up"]).relu() @ w["down"])
        is_kept = torch.rand(x.shape, generator=generator) >= dropout
        x = torch.where(is_dropping, x * is_kept / (1 - dropout), x)
        logits = x @ w["logits"]
        logits = if_made("softmax twice", logits.softmax(dim=-1), logits)
        log_chances = logits.log_softmax(dim=-1)
        return -log_chances.gather(-1, targets.flatten(1)[..., None]).mean(dim=(1, 2))

    batches = texts_of((num_steps, num_runs, batch), generator)
    batches = if_made("always the same batch", batches[:1], batches)
    held_out = texts_of((num_runs, 320), generator)
    peak = if_made("learning rate too high", 1.0, if_made("learning rate too low", 1e-4, 0.03))
    kept = if_made("gradients never zeroed", 1.0, 0.0)
    gradient, mean, mean_square = (torch.zeros_like(weights) for _ in range(3))
    curves = {"train": [], "held_out": [], "norm": []}
    for step in range(num_steps):
        loss = losses(batches[step], torch.tensor(True))
        (slope,) = torch.autograd.grad(loss.sum(), weights)
        gradient = kept * gradient + slope
        mean = 0.9 * mean + 0.1 * gradient
        mean_square = 0.98 * mean_square + 0.02 * gradient.square()
        size = (mean_square / (1 - 0.98 ** (step + 1))).sqrt() + 1e-8
        descent = max(0, step - 15) / (num_steps - 15)
        rate = peak * min(1.0, (step + 1) / 16) * (1 + math.cos(math.pi * descent)) / 2
        with torch.no_grad():
            weights -= rate * mean / (1 - 0.9 ** (step + 1)) / size
            weights.round_(decimals=7)
        curves["train"].append(loss.detach())
        curves["norm"].append(gradient.norm(dim=(1, 2)))
        if (step + 1) % 10 == 0:
            with torch.no_grad():
                seen = losses(held_out, if_made("dropout in evaluation", True, False))
            curves["held_out"].append(seen)
    whole = {name: torch.stack(rows, dim=1) for name, rows in curves.items()}
    whole |= {n: whole[n].unflatten(1, (-1, 10)).mean(dim=2) for n in ("train", "norm")}
    whole = {name: rows.round(decimals=6) for name, rows in whole.items()}
    return [{name: rows[run] for name, rows in whole.items()} for run in range(num_runs)]


# %% [markdown]
# Here are the curves. The dotted horizontal lines are the losses of a model that knows nothing, of one that knows how common each token is, and of one that knows the language. On held-out texts, no correct model gets below the lowest line.

# %%
chances = language()
common = torch.linalg.matrix_power(chances, 100)[0]
levels = {
    "knows nothing": math.log(VOCAB_SIZE),
    "knows what is common": -(common * common.log()).sum().item(),
    "knows the language": -(common[:, None] * chances * chances.log()).sum().item(),
}
print({name: round(level, 3) for name, level in levels.items()})
figure, axes = plt.subplots(3, 3, figsize=(12, 9), sharex=True, sharey=True)
for axis, mistake, run in zip(
    axes.flat, MISTAKES, train_side_by_side(MISTAKES, seed=0), strict=True
):
    updates = 10 * torch.arange(1, len(run["train"]) + 1)
    for name, style in (("train", "-"), ("held_out", "--"), ("norm", ":")):
        axis.plot(updates, run[name].clamp(max=6), style, label=name)
    for level in levels.values():
        axis.axhline(level, color="gray", linewidth=0.5, linestyle=":")
    axis.set_title(mistake)
axes[0, 0].legend()
figure.supxlabel("updates")
figure.supylabel("nats per token, and the norm of the gradient (cut off at 6)")
figure.tight_layout()
plt.show()

# %% [markdown]
# Now write down how you distinguish them. `verdicts` gets a dict of runs, named by letters. A run is a dict with `train` and `held_out`, the losses in nats per token, and `norm`, the norm of the gradient that the optimizer received: tensors of ten numbers, one per ten updates. `train` and `norm` are means over the ten updates; dropout is on in training. Return a dict from letters to names.
#
# The check trains its own runs, with other seeds. Several of them may have the same mistake. Look for what *must* differ, not for what happens to differ: a rule with a reason will also hold for the next seed.
#
# *Before you code:* which mistakes are invisible in the training loss alone? With which of the nine can the held-out loss end below the lowest horizontal line? Why is the initial gradient norm so small if the softmax is applied twice?
#
# <details><summary>Answers, after you have tried</summary>
#
# Dropout in evaluation, because the training is the same with and without it. Always the same batch also looks like wonderful training until you see the held-out loss. The runs that see their targets end below the lowest line: targets not shifted, and no mask. On its way back, the gradient is multiplied by the probabilities of the superfluous softmax. At first, each of the twelve is about 1/12, so only about a twelfth of it gets through.
# </details>
#
# <details><summary>Hint: begin with the certain cases</summary>
#
# First, a norm ten times as large as that of the others, or a tenth of it. Then impossible losses. The size and gap of the losses distinguish the rest: with dropout only in training, the held-out loss should be below the training loss.
# </details>
# <details><summary>Hint: noise</summary>
#
# A single number varies from seed to seed. The mean of the last five varies less.
# </details>
# <details><summary>Hint: try it</summary>
#
# `train_side_by_side(MISTAKES, seed)` trains as many runs as you like, and you know what is wrong with them.
# </details>


# %% exercise="verdicts"
def verdicts(runs: dict[str, dict[str, torch.Tensor]]) -> dict[str, str]:
    """Return the mistake in each run."""

    ### BEGIN SOLUTION
    def verdict(train, held_out, norm):
        learned, unseen = train[-5:].mean(), held_out[-5:].mean()
        if norm[-1] > 5:  # a sum over all updates grows on
            return "gradients never zeroed"
        if norm[0] < 0.4:  # probabilities differ little, whatever the weights
            return "softmax twice"
        if train.max() > 2.7:  # worse than knowing nothing
            return "learning rate too high"
        if unseen < 1.1:  # better than knowing the language
            return "targets not shifted" if held_out[3] < 0.3 else "no mask"
        if learned < 1.2:
            return "always the same batch"
        if unseen > 2.25:
            return "learning rate too low"
        if learned - unseen < 0.14:  # without dropout, reading is easier
            return "dropout in evaluation"
        return "nothing"

    return {letter: verdict(**run) for letter, run in runs.items()}
    ### END SOLUTION


# %% [markdown]
# {{exercise check_same_attention}}
#
# Naive attention keeps all scores in memory. Fast attention (FlashAttention) goes through the keys block by block and never stores all scores. A compiler may fuse, reorder and split operations. All of them promise the same numbers, up to rounding. Do they keep the promise?
#
# Write a test. `check_same_attention` gets a function `attention(query, key, value, mask)` and raises `AssertionError` if its results are not those of attention. Shapes are `(batch, heads, q_len, d_head)`, `(batch, heads, k_len, d_head)` and `(batch, heads, k_len, d_value)`; the scale is one over the square root of `d_head`. `mask` is `None`, or boolean and broadcastable to `(batch, heads, q_len, k_len)`, True where attention is allowed; every query can see at least one key. The functions work in float32 and are differentiable by `torch.autograd`. The inputs of one call may take at most 256 KiB, and no axis may be longer than 256: far more than you need.
#
# Your test must reject eight wrong functions: one ignores the mask; one uses the mask of the first sequence for all; one scales by the width of the values; one reads only as many keys as there are queries; one omits the last block of four keys if it is not full; one does not rescale its running sum when a larger score comes; one rounds its inputs to bfloat16; and one has a correct forward pass and a wrong backward pass. It must accept five correct functions. For normally distributed inputs, the correct ones agree to about $10^{-6}$; the wrong ones differ by $10^{-3}$ or more.
#
# *Before you code:* which of the eight does a test detect with `torch.randn(2, 3, 8, 4)` for query, key and value, and no mask?
#
# <details><summary>Answers, after you have tried</summary>
#
# The one that does not rescale its running sum, and, with a small tolerance, the one that rounds to bfloat16. All others agree on such inputs: nothing is masked, all widths are 4, the eight keys are two full blocks and as many as the queries, and no gradient is compared.
# </details>
#
# <details><summary>Hint: what to compare with</summary>
#
# Write attention yourself, or use `F.scaled_dot_product_attention(query, key, value, attn_mask=mask)`.
# </details>
# <details><summary>Hint: gradients</summary>
#
# Make the three inputs with `requires_grad=True`, weight the output by random numbers `slope`, and compare `torch.autograd.grad((output * slope).sum(), [query, key, value])` of both.
# </details>
# <details><summary>Hint: sizes</summary>
#
# Use different sizes for everything, and a number of keys that is not a multiple of four.
# </details>


# %% exercise="check_same_attention"
def check_same_attention(attention) -> None:
    """Raise AssertionError unless a function computes attention, forward and backward.

    attention(query, key, value, mask): returns (batch, heads, q_len, d_value).
    """
    ### BEGIN SOLUTION
    generator = torch.Generator().manual_seed(7)
    batch, heads, q_len, k_len, d_head, d_value = 2, 3, 5, 11, 4, 6
    masks = torch.rand(2, batch, 1, q_len, k_len, generator=generator) < 0.5
    masks[..., 0] = True
    for mask in (None, *masks):
        leaves = [
            torch.randn(batch, heads, *shape, generator=generator).requires_grad_()
            for shape in ((q_len, d_head), (k_len, d_head), (k_len, d_value))
        ]
        slope = torch.randn(batch, heads, q_len, d_value, generator=generator)
        found = []
        for compute in (attention, F.scaled_dot_product_attention):
            output = compute(*leaves, mask)
            found.append([output, *torch.autograd.grad((output * slope).sum(), leaves)])
        labels = ("the output", "the gradient by query", "by key", "by value")
        for label, seen, expected in zip(labels, *found, strict=True):
            off = (seen - expected).abs().max()
            assert off < 1e-4, f"{label} is off by {off:.2g}"
    ### END SOLUTION


# %% [markdown]
# {{exercise byte_pairs}}
#
# A model reads tokens, so someone must decide what a token is. Characters make sequences long; a vocabulary of words has no token for a new word. Byte-pair encoding (BPE) starts with small pieces and repeatedly merges the most frequent pair of neighbours. Sennrich et al. 2016 ([section 3.2](https://arxiv.org/abs/1508.07909)) brought it to translation. GPT-2 starts with bytes instead of characters (Radford et al. 2019, section 2.2): there are only 256, and every text in every script consists of them. You write the whole tokenizer.
#
# `split_words` cuts a text into words, because no token should reach from one word into the next (pre-tokenisation). A word is a run of letters, digits and underscores, or a run of other visible characters, together with the *one* space before it, if there is one. Every other white-space character is a word by itself. Words are returned as `bytes`, encoded as UTF-8.
#
# `apply_merges` splits one word into pieces: it begins with single bytes and applies each merge to the whole word, from left to right, in the order in which the merges were learned.
#
# `byte_pairs` learns the merges. It gets the words of a text, each as often as it occurs, and a number of merges:
#
# 1. each word is a list of pieces, at first its single bytes;
# 2. count all pairs of neighbouring pieces, inside each word. A pair counts **as often as it can be merged**: in `aaa`, the pair `a, a` counts once, because the middle byte can be used only once. (Many programs count two here, and learn a different vocabulary.)
# 3. take the pair with the largest count; if several have the same count, the one that comes **first in alphabetical order**, as Python sorts tuples of bytes;
# 4. merge every occurrence of it, in all words, from left to right; go back to 2.
#
# Learning ends after `num_merges` merges, or when no pair is left. Return the merges, a list of pairs, in the order learned.
#
# `encode` turns any text into ids: it splits the text into words, and the words into pieces. The bytes have the ids 0 to 255, the results of the merges the ids from 256 on, in their order, and the special tokens the ids after these, in the order in which they are listed. (Assume that no two merges give the same bytes.) A special token, such as `<|end|>`, marks something that is not text; none is part of another. Each occurrence of a token of `special_tokens` becomes its one id, and what stands before and after it is encoded separately. A special token that is not listed is ordinary text, so a stranger's text cannot end a document.
#
# `decode` turns ids into text: it joins the bytes of all tokens, special ones included, and decodes the result as UTF-8. A token may end inside a character. Bytes that are invalid UTF-8 become `�`, Python's replacement character, because a model may generate any sequence of ids. An empty text has no ids.
#
# *Before you code:* which merges do `[b"aaab", b"ab"]` give? Why must `apply_merges` keep the order, instead of taking the longest piece that fits?
#
# <details><summary>Answers, after you have tried</summary>
#
# `(a, b)`, which counts two; then `(a, a)`, which ties with `(a, ab)` and comes first in alphabetical order; then `(aa, ab)`. A later merge consists of pieces that earlier merges have made, and the longest piece that fits may cross their boundaries: the model would get pieces that it never saw in such contexts.
# </details>
#
# <details><summary>Hint: words</summary>
#
# In a pattern for `re.findall`, `|` separates alternatives, tried from left to right. One of three is ` ?\w+`, an optional space and a run of letters, digits and underscores. Any other visible character is `[^\w\s]`.
# </details>
# <details><summary>Hint: bytes</summary>
#
# One byte of `word` is `word[i : i + 1]`, or `bytes([word[i]])`; `word[i]` alone is an integer. Bytes are joined like strings: `first + second`, `b"".join(pieces)`.
# </details>
# <details><summary>Hint: use one function in the others</summary>
#
# `apply_merges(word, merges)` gives the pieces of a word after the merges so far. The number of pieces that disappear with one more merge tells you how often its pair could be merged.
# </details>
# <details><summary>Hint: ties</summary>
#
# `min(counts, key=lambda pair: (-counts[pair], pair))` finds the largest count and, among equal counts, the smallest pair.
# </details>
# <details><summary>Hint: special tokens</summary>
#
# `re.split` keeps what it splits at if the pattern is in parentheses: `re.split("(<a>|<b>)", text)`. In patterns `|` and `.` are special, so put each token through `re.escape`.
# </details>


# %% exercise="byte_pairs"
def split_words(text: str) -> list[bytes]:
    """Cut a text into words, each with the space before it, as bytes of UTF-8."""
    ### BEGIN SOLUTION
    return [word.encode() for word in re.findall(r" ?\w+| ?[^\w\s]+|\s", text)]
    ### END SOLUTION


def apply_merges(word: bytes, merges: list[tuple[bytes, bytes]]) -> list[bytes]:
    """Split a word into pieces by applying the merges in order."""
    ### BEGIN SOLUTION
    pieces = [bytes([byte]) for byte in word]
    for first, second in merges:
        place = 0
        while place < len(pieces):
            if pieces[place : place + 2] == [first, second]:
                pieces[place : place + 2] = [first + second]
            place += 1
    return pieces
    ### END SOLUTION


def byte_pairs(words: list[bytes], num_merges: int) -> list[tuple[bytes, bytes]]:
    """Learn which pairs of pieces to merge, and return them in their order."""
    ### BEGIN SOLUTION
    merges = []
    for _ in range(num_merges):
        counts = Counter()
        for word in words:
            pieces = apply_merges(word, merges)
            for pair in set(zip(pieces, pieces[1:], strict=False)):
                counts[pair] += len(pieces) - len(apply_merges(word, [*merges, pair]))
        if not counts:
            break
        merges.append(min(counts, key=lambda pair: (-counts[pair], pair)))
    return merges
    ### END SOLUTION


def encode(
    text: str, merges: list[tuple[bytes, bytes]], special_tokens: Sequence[str] = ()
) -> list[int]:
    """Turn a text into ids; only the special tokens that are listed count as such."""
    ### BEGIN SOLUTION
    pieces = [bytes([byte]) for byte in range(256)] + [first + second for first, second in merges]
    id_of = {piece: i for i, piece in enumerate(pieces)}
    listed = "|".join(re.escape(token) for token in special_tokens)
    ids = []
    for part in re.split(f"({listed})", text) if listed else [text]:
        if part in special_tokens:
            ids.append(len(pieces) + special_tokens.index(part))
        else:
            for word in split_words(part):
                ids += [id_of[piece] for piece in apply_merges(word, merges)]
    return ids
    ### END SOLUTION


def decode(
    ids: list[int], merges: list[tuple[bytes, bytes]], special_tokens: Sequence[str] = ()
) -> str:
    """Turn ids into text; bytes that are invalid UTF-8 become replacement characters."""
    ### BEGIN SOLUTION
    tokens = [bytes([byte]) for byte in range(256)] + [first + second for first, second in merges]
    tokens += [token.encode() for token in special_tokens]
    return b"".join(tokens[i] for i in ids).decode(errors="replace")
    ### END SOLUTION


# %% [markdown]
# ## Look at what you built
#
# First, a training run with your own parts: your batches, your AdamW, your schedule and your clipping, on the text of Python's own documentation. The blocks are those that you built in chapter 4 if you have run `classroom mine`; otherwise they come from the course. (These cells are not graded.)

# %%
import sys

from groundup.data.texts import python_reference
from groundup.data.tokenizers import CharacterTokenizer

sys.path.append("../..")
try:
    from mine import TransformerBlock

    print("the blocks come from your own library")
except ImportError:
    from groundup.own_parts.parts import TransformerBlock

    print("the blocks come from the course")

text = python_reference().train[:100_000]
tokenizer = CharacterTokenizer.fit(text)
tokens = torch.tensor(tokenizer.encode(text))
train_tokens, held_out_tokens = cut(tokens, num_held_out=10_000)


class SmallModel(nn.Module):
    def __init__(self, vocab_size, length, d_model):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.places = nn.Embedding(length, d_model)
        self.blocks = nn.ModuleList(TransformerBlock(d_model, 4, 4 * d_model) for _ in range(2))
        self.norm = nn.LayerNorm(d_model)
        self.logits = nn.Linear(d_model, vocab_size, bias=False)

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        x = self.tokens(tokens) + self.places(torch.arange(length))
        for block in self.blocks:
            x = block(x, mask)
        return self.logits(self.norm(x))


def train_with(update, num_steps, peak=0.01, length=48, batch=12):
    """Train a model; `update(model, step, lr)` changes its weights. Yields (loss, model)."""
    torch.manual_seed(0)
    model = SmallModel(tokenizer.vocab_size, length, d_model=48)
    generator = torch.Generator().manual_seed(0)
    for step in range(num_steps):
        draws = torch.rand(batch, generator=generator)
        starts = starts_from(draws, len(train_tokens), length)
        inputs, targets = get_batch(train_tokens, starts, length)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        model.zero_grad()
        loss.backward()
        update(model, step, learning_rate(step, peak, num_steps // 10, num_steps, 0.1 * peak))
        yield loss.item(), model


averages = {}


def my_update(model, step, lr):
    parameters = list(model.parameters())
    gradients, norm = clip_gradients([p.grad for p in parameters], max_norm=1.0)
    for place, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        if step == 0:
            averages[place] = [torch.zeros_like(parameter), torch.zeros_like(parameter)]
        with torch.no_grad():
            new, *averages[place] = adamw_step(
                parameter, gradient, *averages[place], step + 1, lr, 0.9, 0.98, 1e-8, 0.1
            )
            parameter.copy_(new)


def torch_update(model, step, lr):
    if step == 0:
        averages["torch"] = torch.optim.AdamW(
            model.parameters(), betas=(0.9, 0.98), eps=1e-8, weight_decay=0.1
        )
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    averages["torch"].param_groups[0]["lr"] = lr
    averages["torch"].step()


mine = [loss for loss, _ in train_with(my_update, num_steps=25)]
torchs = [loss for loss, _ in train_with(torch_update, num_steps=25)]
off = max(abs(a - b) for a, b in zip(mine, torchs, strict=True))
print(f"25 updates with your parts and with torch's: the losses differ by {off:.1g} at most")

# %% [markdown]
# With the same model and the same batches, the two programs must have the same losses, up to rounding. This tests your AdamW and your clipping together. Next, a longer run.

# %%
import time

started = time.perf_counter()
*losses, (last, model) = train_with(my_update, num_steps=150)
seconds = time.perf_counter() - started
losses = [loss for loss, _ in losses] + [last]

with torch.no_grad():
    starts = torch.arange(0, len(held_out_tokens) - 48, 48)
    inputs, targets = get_batch(held_out_tokens, starts, 48)
    nats = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).item()
print(f"held out: {nats:.3f} nats per character")
plt.figure(figsize=(7, 3))
plt.plot(losses, label="training")
plt.axhline(nats, linestyle="--", color="C1", label="held out, at the end")
plt.axhline(math.log(tokenizer.vocab_size), linestyle=":", color="gray", label="knows nothing")
plt.xlabel("updates")
plt.ylabel("nats per character")
plt.legend()
plt.show()

# %% [markdown]
# What did this run cost, and what is its loss in bits per byte? The functions for it are those of the deeper exercise 7.7. Until you have written them, the cell only prints how fast the run was.

# %%
asked = tokenizer.decode(targets.flatten().tolist())
num_bytes = len(asked.encode())
tokens_per_second = 150 * 12 * 48 / seconds
try:
    flops = flops_per_token(2, 48, 4 * 48, tokenizer.vocab_size, 48)
    bits = bits_per_byte(nats, targets.numel(), num_bytes)
    fraction = mfu(tokens_per_second, flops, 1.0)
except (NameError, NotImplementedError):
    print(f"{tokens_per_second:,.0f} tokens per second; the rest needs exercise 7.7")
else:
    print(f"held out: {bits:.3f} bits per byte")
    print(f"{tokens_per_second:,.0f} tokens per second, {flops:,} operations per token", end=": ")
    print(f"{fraction:.1%} of one TFLOP/s")

# %% [markdown]
# {{question what_the_first_loss_says}}
#
# A language model has a vocabulary of V tokens. Before the first step its loss should be about ln V. Why? What do you look for if it is much larger, and what if it is much smaller? And what does it mean if it falls to nearly 0 within a few hundred steps? Answer in three to five sentences.

# %% [markdown] written="what_the_first_loss_says" points=3
# **What earns the points**, one each:
#
# 1. With small random weights all tokens are about equally likely: each has probability 1/V, whose negative logarithm is ln V.
# 2. Much larger: the model is confidently wrong, so the initial logits are too large (initialisation, a missing norm or scale). Much smaller: it has information that it should not have, or the sum of the losses is divided by too many targets, such as ignored ones.
# 3. Nearly 0: a leak (a missing causal mask, targets that are not shifted), or a data set so small that it is memorised; the held-out loss distinguishes the two.
#
# **Often seen, and wrong:** “The loss starts high because the model has learned nothing”, without a number; base 2 and base e confused; a small initial loss taken for good luck.
