# %% [markdown]
# # Transformer blocks
#
# This notebook goes with chapter 4 of *Attention from the Ground Up*. Attention moves information between tokens. A transformer block makes it possible to stack ninety-six attention layers. It adds three things: a residual stream that is changed only by addition, a norm that fixes the scale of every sub-layer's input, and a feed-forward network that works on each token alone. Small initial weights keep a deep stack stable. You build all of this, write a test for LayerNorm, fix a block with four bugs, and put your own sub-layer into a trained model.
#
# **How it works.** First run the code cells above the first exercise. Write your code where it says `YOUR CODE HERE`, run the cell, then run the check under it. A check reports what your code returned, what it expected and, if it recognises the mistake, which one you made. Each line of its report has its own points, so a partly correct answer earns some of them. When your work is graded, the same checks may run on other numbers: compute results, do not hard-code them. Checks mostly pass float64 tensors: keep the dtype of your inputs, and let gradients flow back to them, because models will be trained with your code.
#
# **Conventions.** A token is a row of `d_model` features, and a weight matrix multiplies it from the right: `x @ w`. `nn.Linear(d_in, d_out)` stores the transposed matrix, `(d_out, d_in)`, and computes `x @ weight.T + bias`; exercises that use this layout say so. A norm's scale is called `gain` and its shift `bias` (also $\gamma$ and $\beta$; `nn.LayerNorm` calls the first one `weight`). A mask is boolean and True where attention is allowed.
#
# **Modules.** Where you write a class, the check builds it with its own arguments, sets its weights by the names given in the exercise, and calls it in training mode (the default): add no dropout. How your class initialises its weights is up to you.

# %%
import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import nn

from classroom import check

# %% [markdown]
# {{exercise layer_norm}}
#
# In a deep network, vectors grow with every residual connection, and each layer would have to cope with inputs of any scale. LayerNorm removes the scale: it brings the features of *one token* to mean 0 and variance 1, then applies a learned scale and shift to each feature:
#
# $$y_i = \gamma_i\,\frac{x_i - m}{\sqrt{v + \varepsilon}} + \beta_i, \qquad m = \frac1d\sum_i x_i, \qquad v = \frac1d\sum_i (x_i - m)^2$$
#
# Three details decide whether your numbers agree with those of other implementations. The mean and the variance are those of one token: not of a sequence, not of a batch. The variance divides by $d$. And $\varepsilon$ is under the square root. Compute in the precision of `x`: rounding to `float32` on the way loses the digits of tokens that are far from 0, and shows in the gradients.
#
# *Before you code:* what is the LayerNorm of a token whose features are all equal? And of a token with two features, whatever they are?
#
# <details><summary>Answers, after you have tried</summary>
#
# If the features are equal, the normalised token is 0, so the result is the bias. Of two features, the larger becomes nearly 1 and the smaller nearly -1 (before gain and bias), however far apart they were, unless the difference is as small as $\sqrt\varepsilon$.
# </details>
#
# <details><summary>Hint: one number per token</summary>
#
# `x.mean(dim=-1, keepdim=True)` keeps the axis, so that the mean can be subtracted from `x` for any number of leading axes.
# </details>
# <details><summary>Hint: the variance</summary>
#
# `x.var(dim=-1)` divides by $d - 1$ by default (`correction=0` changes that). With four features the variance is then too large by a third. The mean of the squares minus the square of the mean is the variance on paper only: if the mean is large, the two are nearly equal, and rounding is all that is left of their difference.
# </details>


# %% exercise="layer_norm"
def layer_norm(
    x: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5
) -> torch.Tensor:
    """Bring each token to mean 0 and variance 1, then scale and shift its features.

    Shapes: x (..., d_model), gain and bias (d_model,); returns (..., d_model).
    """
    ### BEGIN SOLUTION
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    return centred / torch.sqrt(variance + eps) * gain + bias
    ### END SOLUTION


# %% [markdown]
# {{exercise feed_forward}}
#
# Attention averages: for fixed weights it is linear in the values. The feed-forward network adds a nonlinearity, and it works on each token separately. It expands `d_model` features to `d_ff`, usually four times as many, applies an activation function to each, and projects back:
#
# $$\mathrm{FFN}(x) = \phi(x W_\text{up} + b_\text{up})\,W_\text{down} + b_\text{down}$$
#
# Because of the second matrix, the result has width `d_model` and may be negative, so that it can be added to the residual stream. `activation` selects $\phi$:
#
# - `"relu"`: $\max(0, z)$
# - `"gelu"`: $z\,\Phi(z)$, where $\Phi$ is the cumulative distribution function of the standard normal distribution
# - `"gelu_tanh"`: the approximation $\tfrac12 z\left(1 + \tanh\!\left(\sqrt{2/\pi}\,(z + 0.044715\, z^3)\right)\right)$, which GPT-2 was trained with. The two differ by less than 0.0005, enough to change a model's logits and too little to be seen in a loss.
#
# In many newer models, a gate scales the expanded features. The most common form is **SwiGLU**, here without biases:
#
# $$\mathrm{SwiGLU}(x) = \big(\mathrm{silu}(x W_\text{gate}) \odot x W_\text{up}\big)\,W_\text{down}, \qquad \mathrm{silu}(z) = z\,\sigma(z)$$
#
# It has three matrices, not two. For the same number of parameters, its width $w$ must be smaller: $3\,d\,w = 2\,d\,d_\text{ff}$. This width is then rounded *up* to a multiple of a number that suits the hardware. `gated_width` returns the rounded width.
#
# *Before you code:* if $\phi$ were the identity, how many matrices would be enough to replace the two? With $d_\text{ff} = 4d$, what is the gated width as a multiple of $d$?
#
# <details><summary>Answers, after you have tried</summary>
#
# One: the product of two matrices is a matrix. $\tfrac83\,d$, about 2.67 times $d$.
# </details>
#
# <details><summary>Hint: the distribution function</summary>
#
# $\Phi(z) = \tfrac12\left(1 + \mathrm{erf}(z/\sqrt2)\right)$. Torch's `F.gelu` computes both forms; with `approximate="tanh"`, the second.
# </details>
# <details><summary>Hint: rounding up</summary>
#
# For integers, `-(-a // b)` is `a / b` rounded up, and stays an integer.
# </details>


# %% exercise="feed_forward"
def feed_forward(
    x: torch.Tensor,
    w_up: torch.Tensor,
    b_up: torch.Tensor,
    w_down: torch.Tensor,
    b_down: torch.Tensor,
    activation: str,
) -> torch.Tensor:
    """Expand each token, apply the activation function, and project back.

    Shapes: x (batch, length, d_model), w_up (d_model, d_ff), b_up (d_ff,), w_down (d_ff, d_model),
    b_down (d_model,); returns (batch, length, d_model). activation is relu, gelu or gelu_tanh.
    """
    ### BEGIN SOLUTION
    hidden = x @ w_up + b_up
    if activation == "relu":
        hidden = hidden.clamp(min=0)
    elif activation == "gelu":
        hidden = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
    else:
        inner = math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)
        hidden = hidden * (1 + torch.tanh(inner)) / 2
    return hidden @ w_down + b_down
    ### END SOLUTION


def swiglu(
    x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, w_down: torch.Tensor
) -> torch.Tensor:
    """Multiply the expanded token by a gate, feature by feature, and project back.

    Shapes: x (batch, length, d_model), w_gate and w_up (d_model, d_ff), w_down (d_ff, d_model);
    returns (batch, length, d_model).
    """
    ### BEGIN SOLUTION
    gate = x @ w_gate
    return (gate * torch.sigmoid(gate) * (x @ w_up)) @ w_down
    ### END SOLUTION


def gated_width(d_ff: int, multiple: int) -> int:
    """Return the width of a gated network with at least as many weights as a plain one of width
    d_ff.

    It is the smallest multiple of `multiple` for which this holds.
    """
    ### BEGIN SOLUTION
    return -(-2 * d_ff // (3 * multiple)) * multiple
    ### END SOLUTION


# %% [markdown]
# {{exercise TransformerBlock}}
#
# A block has two sub-layers, attention and feed-forward, and each of them *adds* its output to its input. Where does the norm go? There are two answers:
#
# | | each sub-layer computes | the residual stream |
# |---|---|---|
# | **post-norm** (the 2017 paper) | `x = norm(x + f(x))` | is normalised after every addition |
# | **pre-norm** (GPT-2 and most since) | `x = x + f(norm(x))` | is never normalised, only read through a norm |
#
# And there is a third kind, `x = norm(x) + f(norm(x))`, which lecture notes and libraries have published as pre-norm ([PyTorch](https://github.com/pytorch/pytorch/issues/61165) among them, but not in a release). It runs, it trains, and every shape fits. But its stream passes through every norm, so it is post-norm with its brackets moved, and it lacks the direct path from the last layer to the embeddings, which is the reason for pre-norm. The cell below sends tokens of three sizes through all three kinds.

# %%
generator = torch.Generator().manual_seed(0)
matrix = torch.randn(64, 64, generator=generator) / 8
tokens = torch.randn(1, 64, generator=generator)


def norm(x):
    return F.layer_norm(x, (64,))


def sublayer(x):
    return torch.tanh(x @ matrix)


print("root mean square of a token before and after one sub-layer")
for size in (1, 10, 100):
    x = size * tokens
    after = {
        "pre": x + sublayer(norm(x)),
        "post": norm(x + sublayer(x)),
        "third kind": norm(x) + sublayer(norm(x)),
    }
    sizes = ", ".join(f"{k} {v.square().mean().sqrt():6.2f}" for k, v in after.items())
    print(f"{x.square().mean().sqrt():6.2f} -> {sizes}")

# %% [markdown]
# Write the block for `norm="pre"` and `"post"`. The parts and their names: `attention_norm` and `feed_forward_norm` are `nn.LayerNorm(d_model)`, `attention` is `nn.MultiheadAttention(d_model, num_heads, batch_first=True)`, `up` and `down` are `nn.Linear`, to `d_ff` and back, with an exact GELU between them. Both sub-layers have the same order of norm and addition, and each has its own norm. (You built attention yourself in chapter 3; here, use torch's, because the check sets its weights by torch's names. Note its mask: True means that attention is *forbidden*.)
#
# *Before you code:* in the pre-norm block, set `attention.out_proj` and `down` to zero. What does the block compute? And the post-norm block?
#
# <details><summary>Answers, after you have tried</summary>
#
# If the biases of these layers are zero as well, the pre-norm block is the identity. In the post-norm block the tokens still pass through both norms.
# </details>
#
# <details><summary>Hint: torch's attention</summary>
#
# `self.attention(x, x, x, attn_mask=~mask, need_weights=False)` returns a tuple; its first entry is the output. `attn_mask=None` means no mask.
# </details>
# <details><summary>Hint: the order</summary>
#
# In pre-norm, the tensor on the left of the plus sign has not passed through any norm of this block.
# </details>


# %% exercise="TransformerBlock"
class TransformerBlock(nn.Module):
    """Self-attention, then feed-forward, each added to the residual stream."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int, norm: str = "pre"):
        super().__init__()
        ### BEGIN SOLUTION
        self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
        self.attention_norm = nn.LayerNorm(d_model)
        self.up = nn.Linear(d_model, d_ff)
        self.down = nn.Linear(d_ff, d_model)
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.is_pre_norm = norm == "pre"
        ### END SOLUTION

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return the residual stream after both sub-layers.

        Shapes: x (batch, length, d_model), mask (length, length), rows are queries, True where
        attention is allowed; returns (batch, length, d_model).
        """
        ### BEGIN SOLUTION
        forbidden = None if mask is None else ~mask

        def attend(tokens):
            return self.attention(tokens, tokens, tokens, attn_mask=forbidden)[0]

        def think(tokens):
            return self.down(F.gelu(self.up(tokens)))

        if self.is_pre_norm:
            x = x + attend(self.attention_norm(x))
            return x + think(self.feed_forward_norm(x))
        x = self.attention_norm(x + attend(x))
        return self.feed_forward_norm(x + think(x))
        ### END SOLUTION


# %% [markdown]
# {{exercise swapped_sublayer}}
#
# So far everything was tested with random weights. Now put your own sub-layer into a trained model. The course comes with one that generates Python code: three pre-norm blocks, `d_model` 128, `d_ff` 512, exact GELU, $\varepsilon = 10^{-5}$. The cell below loads it, defines functions that replace its feed-forward sub-layers, and computes its loss on a piece of Python.

# %%
import inspect
import textwrap

from groundup.pretrained import load

reader, tokenizer = load("reader")


def sublayer_weights(block):
    """Return the weights of a feed-forward sub-layer, in the layout of nn.Linear."""
    weights = {"gain": block.feed_forward_norm.gain, "bias": block.feed_forward_norm.bias}
    for name, part in (("up", block.feed_forward.up), ("down", block.feed_forward.down)):
        weights |= {f"{name}.weight": part.weight, f"{name}.bias": part.bias}
    return weights


@torch.no_grad()
def logits_with(sublayer, ids):
    """Run the model with `sublayer(x, weights)` in place of each feed-forward sub-layer."""
    x = reader.embedding(ids)
    for block in reader.blocks:
        x = x + block.attention(block.attention_norm(x))
        x = sublayer(x, sublayer_weights(block))
    return reader.unembedding(reader.final_norm(x))


def nats_per_token(logits, ids):
    return F.cross_entropy(logits[0, :-1], ids[0, 1:]).item()


ids = torch.tensor([tokenizer.encode(inspect.getsource(textwrap.TextWrapper))[:240]])
with torch.no_grad():
    print(f"the unchanged model: {nats_per_token(reader(ids), ids):.4f} nats per token")
without = logits_with(lambda x, weights: x, ids)
print(f"without feed-forward: {nats_per_token(without, ids):.4f} nats per token")

# %% [markdown]
# Write `swapped_sublayer`: norm, feed-forward network and residual connection, with the given weights, of any width. If it replaces the model's own sub-layer in any block, the logits must be *those of the original model*, up to rounding. It is not enough that they are close or that the loss is the same.
#
# *Before you code:* which of these mistakes would you notice in the loss: no residual connection, ReLU instead of GELU, the approximate GELU instead of the exact one, $d - 1$ instead of $d$ in the variance of 128 features?
#
# <details><summary>Answers, after you have tried</summary>
#
# On the text above the model has a loss of 3.2023 nats per token. Without the residual connection it is 8.75. With ReLU it is 3.38, which you notice only if you know the correct value. With the approximate GELU it is 3.2022, and with $d - 1$ it is 3.2030; you would notice neither.
# </details>
#
# <details><summary>Hint: the layout</summary>
#
# `F.linear(x, weight, bias)` expects `weight` in the layout of `nn.Linear`: `up.weight` is `(512, 128)`.
# </details>


# %% exercise="swapped_sublayer"
def swapped_sublayer(x: torch.Tensor, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    """Compute the feed-forward sub-layer of a trained pre-norm model.

    Shapes: x (batch, length, d_model), the stream before the sub-layer; weights has gain and bias
    (d_model,), up.weight (d_ff, d_model), up.bias (d_ff,), down.weight (d_model, d_ff) and
    down.bias (d_model,); returns the stream after it.
    """
    ### BEGIN SOLUTION
    read = F.layer_norm(x, x.shape[-1:], weights["gain"], weights["bias"])
    hidden = F.gelu(F.linear(read, weights["up.weight"], weights["up.bias"]))
    return x + F.linear(hidden, weights["down.weight"], weights["down.bias"])
    ### END SOLUTION


# %% [markdown]
# {{deeper}}

# %% [markdown]
# {{exercise rms_norm}}
#
# RMSNorm keeps one half of LayerNorm and drops the other. It does not subtract the mean, divides by the root mean *square*, and has no shift:
#
# $$y_i = \gamma_i\,\frac{x_i}{\sqrt{\frac1d\sum_j x_j^2 + \varepsilon}}$$
#
# The centring, $x_i - m$, is dropped. It is a linear map, so there is a matrix $C$ such that $x C$ is `x` minus its mean. A linear map can be merged into the linear layer before it and then costs nothing. So, up to the bias, LayerNorm is RMSNorm of $xC$, and in a network whose stream is always centred the two are the same.
#
# Write `rms_norm`, and `centring_matrix`, which returns $C$.
#
# *Before you code:* what is $xC$ for a token $x$ with equal features? What is $CC$?
#
# <details><summary>Answers, after you have tried</summary>
#
# A row of zeros. $CC = C$: centring does not change a token that is already centred.
# </details>
#
# <details><summary>Hint: the matrix</summary>
#
# Row `i` of the identity matrix is a token with feature `i` equal to 1 and the others 0. Subtract its mean, and you have row `i` of $C$.
# </details>


# %% exercise="rms_norm"
def rms_norm(x: torch.Tensor, gain: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """Bring each token to a mean square of 1, then scale its features.

    Shapes: x (..., d_model), gain (d_model,); returns (..., d_model).
    """
    ### BEGIN SOLUTION
    mean_square = x.square().mean(dim=-1, keepdim=True)
    return x / torch.sqrt(mean_square + eps) * gain
    ### END SOLUTION


def centring_matrix(d_model: int) -> torch.Tensor:
    """Return the float64 matrix (d_model, d_model) for which `x @ matrix` is x minus its mean."""
    ### BEGIN SOLUTION
    return torch.eye(d_model, dtype=torch.float64) - 1 / d_model
    ### END SOLUTION


# %% [markdown]
# {{exercise stack_with_final_norm}}
#
# No norm in a pre-norm stack acts on the stream itself. Each sub-layer adds its output to the stream; if this output has mean 0 and is independent of the stream, the mean *squares* of the two add. This does not harm the layers, which read through a norm. But the unembedding matrix would get inputs that grow with depth. So a pre-norm stack ends with one more norm, the **final norm**. A post-norm stack needs none: its last operation is already a norm.
#
# Stack feed-forward sub-layers with ReLU: `x + relu(norm(x) @ w_up) @ w_down`. Only the norms have biases. There are `num_layers` of them and `num_layers + 1` norms; the last row of `gains` and `biases` belongs to the final norm. Return the output of the final norm, and the size of the stream, before the first layer and after each one: the root mean square of all its numbers.
#
# *Before you code:* suppose that every sub-layer adds independent vectors of mean 0 and mean square 1. What is the size of the stream after 48 of them, if it starts at 1?
#
# <details><summary>Answers, after you have tried</summary>
#
# It is 7: the mean squares add up to $1 + 48 = 49$.
# </details>
#
# <details><summary>Hint: a norm</summary>
#
# `F.layer_norm(x, gain.shape, gain, bias)`, or your own.
# </details>


# %% exercise="stack_with_final_norm"
def stack_with_final_norm(
    x: torch.Tensor,
    gains: torch.Tensor,
    biases: torch.Tensor,
    w_up: torch.Tensor,
    w_down: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run a pre-norm stack of feed-forward sub-layers, and measure its stream.

    Shapes: x (batch, length, d_model), gains and biases (num_layers + 1, d_model), w_up
    (num_layers, d_model, d_ff), w_down (num_layers, d_ff, d_model); returns the output
    (batch, length, d_model) and the sizes (num_layers + 1,) of the stream.
    """
    ### BEGIN SOLUTION
    width = gains.shape[1:]
    sizes = [x.square().mean().sqrt()]
    for gain, bias, up, down in zip(gains[:-1], biases[:-1], w_up, w_down, strict=True):
        x = x + (F.layer_norm(x, width, gain, bias) @ up).relu() @ down
        sizes.append(x.square().mean().sqrt())
    return F.layer_norm(x, width, gains[-1], biases[-1]), torch.stack(sizes)
    ### END SOLUTION


# %% [markdown]
# {{exercise init_std}}
#
# A program, published with the remark that it had not been run yet, draws all weights uniformly between −1 and 1. Here is what happens to vectors of width 512 in linear layers with ReLU:

# %%
generator = torch.Generator().manual_seed(0)
x = torch.randn(64, 512, generator=generator)
for layer in range(1, 7):
    x = F.relu(x @ (2 * torch.rand(512, 512, generator=generator) - 1))
    print(f"after layer {layer}: standard deviation {x.std():.3g}")

# %% [markdown]
# Each output is a sum of 512 products, one for each input; the number of inputs is called `fan_in`. If the products are independent with mean 0, their variances add: each layer multiplies the mean square by `fan_in` times the variance of a weight (and ReLU halves it, because it removes one side of a symmetric distribution). The scale of the weights can compensate for that. Write four formulas, for independent weights of mean 0:
#
# 1. `linear_std(fan_in)`: the standard deviation of weights for which a linear layer preserves the mean square of its input.
# 2. `uniform_bound(fan_in)`: the $a$ for which weights drawn uniformly between $-a$ and $a$ preserve the mean square through `relu(x @ w)`.
# 3. `init_std(fan_in, num_layers)`: a pre-norm stack has `num_layers` blocks, each with *two* sub-layers, and in each sub-layer the matrix that writes to the stream has `fan_in` inputs of mean square 1. Return the standard deviation of its weights for which a stream that starts with variance 1 ends with variance 2, at any depth.
# 4. `stream_variance(fan_in, num_layers, std)`: the variance at the end of that stream, if the weights have the standard deviation `std`.
#
# *Before you code:* what do 2 and 3 give for one input and one block? How much does the stream grow in 48 blocks if depth is ignored, with `std = linear_std(fan_in)`?
#
# <details><summary>Answers, after you have tried</summary>
#
# $\sqrt6 \approx 2.45$ and $1/\sqrt2 \approx 0.71$. If depth is ignored, each of 96 sub-layers adds a variance of 1: the stream ends with variance 97, so its standard deviation is nearly ten times the initial one.
# </details>
#
# <details><summary>Hint: uniform numbers</summary>
#
# Numbers drawn uniformly between $-a$ and $a$ have variance $a^2/3$.
# </details>
# <details><summary>Hint: sharing one unit of variance</summary>
#
# 48 blocks have 96 sub-layers. Each may add 1/96.
# </details>


# %% exercise="init_std"
def linear_std(fan_in: int) -> float:
    """Return the standard deviation of weights that preserve the mean square of the input."""
    ### BEGIN SOLUTION
    return fan_in**-0.5
    ### END SOLUTION


def uniform_bound(fan_in: int) -> float:
    """Return the bound of uniform weights that preserve the mean square through relu(x @ w)."""
    ### BEGIN SOLUTION
    return math.sqrt(6 / fan_in)
    ### END SOLUTION


def init_std(fan_in: int, num_layers: int) -> float:
    """Return the standard deviation of weights that write to the stream of num_layers blocks."""
    ### BEGIN SOLUTION
    num_writers = 2 * num_layers
    return linear_std(fan_in) / math.sqrt(num_writers)
    ### END SOLUTION


def stream_variance(fan_in: int, num_layers: int, std: float) -> float:
    """Return the variance of a stream after num_layers blocks; it starts with 1."""
    ### BEGIN SOLUTION
    return 1 + 2 * num_layers * fan_in * std**2
    ### END SOLUTION


# %% [markdown]
# {{exercise dropout_block}}
#
# Dropout sets features to zero at random, so that the network cannot rely on any single one. Four details often go wrong:
#
# - A **rate** of 0.1 drops a tenth. (In one program 0.8 was meant as the probability of keeping a feature; it kept a fifth.)
# - The features that are kept are divided by the probability of being kept, *in training*. Then a feature has the same mean as without dropout, and evaluation needs no correction.
# - In **evaluation**, dropout does nothing at all.
# - In a block it acts on the output of a sub-layer, **before the addition**. After the addition it would erase features of the stream itself, which no later layer could restore.
#
# Write `dropout`, and one pre-norm feed-forward sub-layer with it, `x + dropout(relu(norm(x) @ w_up) @ w_down)`. To make the result reproducible, the random choice is an argument: `keep` is True where a feature is kept.
#
# *Before you code:* a feature is 3 and the rate 0.25. Which two values can it have after dropout, and what is their mean? What happens at rate 1?
#
# <details><summary>Answers, after you have tried</summary>
#
# 0, or $3/0.75 = 4$, and the mean is $0.75 \cdot 4 = 3$. At rate 1 nothing is kept, and the factor would be $1/0$.
# </details>
#
# <details><summary>Hint: in evaluation</summary>
#
# `keep` is also passed if `training` is False. Ignore it then.
# </details>


# %% exercise="dropout_block"
def dropout(x: torch.Tensor, keep: torch.Tensor, rate: float, training: bool) -> torch.Tensor:
    """Drop the features where `keep` is False, and preserve their mean.

    Shapes: x and keep (batch, length, d_model); returns the same. rate is the probability of
    dropping one, below 1.
    """
    ### BEGIN SOLUTION
    if not training:
        return x
    return torch.where(keep, x / (1 - rate), 0.0)
    ### END SOLUTION


def dropout_block(
    x: torch.Tensor,
    keep: torch.Tensor,
    rate: float,
    gain: torch.Tensor,
    bias: torch.Tensor,
    w_up: torch.Tensor,
    w_down: torch.Tensor,
    training: bool,
) -> torch.Tensor:
    """Add the output of a feed-forward network to the stream, after dropout.

    Shapes: x and keep (batch, length, d_model), gain and bias (d_model,), w_up (d_model, d_ff),
    w_down (d_ff, d_model); returns (batch, length, d_model).
    """
    ### BEGIN SOLUTION
    read = F.layer_norm(x, gain.shape, gain, bias)
    return x + dropout((read @ w_up).relu() @ w_down, keep, rate, training)
    ### END SOLUTION


# %% [markdown]
# {{exercise mended_block}}
#
# Below is the pre-norm block of a decoder, with three sub-layers: causal self-attention, cross-attention to the `memory` (the output of an encoder), and a feed-forward network. The projections of attention are omitted for brevity; all four bugs occur in published programs and lecture notes. Norm `i` has the gain `gains[i]` and the bias `biases[i]`, one for each sub-layer in order; the memory is already normalised and is used unchanged.
#
# The block has four bugs, and each has a symptom. Run the cell.


# %%
def published_block(x, memory, gains, biases, w_up, w_down):
    def norm(tokens, i):
        mean = tokens.mean(dim=1, keepdim=True)
        variance = (tokens - mean).square().mean(dim=1, keepdim=True)
        return (tokens - mean) / torch.sqrt(variance + 1e-5) * gains[i] + biases[i]

    attend = F.scaled_dot_product_attention
    y1 = norm(x, 0)
    y2 = y1 + attend(y1, y1, y1, is_causal=True)
    y3 = norm(y2, 1)
    y4 = y2 + attend(y3, memory, memory)
    y5 = torch.relu(norm(y2, 0) @ w_up) @ w_down
    return y4 + y5


def show_symptoms(block):
    generator = torch.Generator().manual_seed(0)
    x, memory = torch.randn(2, 1, 6, 8, generator=generator)
    gains, biases = torch.randn(2, 3, 8, generator=generator)
    w_up = torch.randn(8, 16, generator=generator)
    w_down = torch.randn(16, 8, generator=generator)

    def run(x=x, memory=memory, gains=gains, w_down=w_down):
        return block(x, memory, gains, biases, w_up, w_down)

    later = x.clone()
    later[:, -1] += 1.0
    differ = ((run(x=later) - run()).abs().amax(dim=-1) > 1e-5)[0].nonzero().flatten().tolist()
    print(f"the last of 6 tokens is changed: outputs {differ} change")

    size = run(x=1000 * x).abs().mean() / (1000 * x).abs().mean()
    print(f"the tokens are scaled by 1000: the outputs are {size:.4f} times as large as the tokens")

    no_gain = gains * torch.tensor([1.0, 1.0, 0.0])[:, None]
    print(f"the gain of norm 2 is 0: largest change {(run(gains=no_gain) - run()).abs().max():.3f}")

    def added(memory):
        return run(memory=memory) - run(memory=memory, w_down=0 * w_down)

    change = (added(memory.flip(1) + memory) - added(memory)).abs().max()
    print(f"another memory: the output of feed-forward changes by {change:.3f}")


show_symptoms(published_block)

# %% [markdown]
# In a causal model only output 5 may change. A stream that is changed only by additions keeps about the same norm if it is large. A norm that can be switched off without a change is not used. And the output of the feed-forward network should depend on the memory, because it reads what cross-attention has written.
#
# Write `mended_block`. Then run `show_symptoms(mended_block)` in a cell of your own.
#
# *Before you code:* attention has its causal mask. What else in a block could carry information from one token to another? And which of the four bugs would a falling loss have revealed?
#
# <details><summary>Answers, after you have tried</summary>
#
# A norm whose mean and variance are taken over more than one token. None of the four: the loss falls in spite of them, and the leak makes it fall further.
# </details>
#
# <details><summary>Hint: where they are</summary>
#
# One is in the norm, one in the line of the first addition, and two in the line of the feed-forward network.
# </details>


# %% exercise="mended_block"
def mended_block(
    x: torch.Tensor,
    memory: torch.Tensor,
    gains: torch.Tensor,
    biases: torch.Tensor,
    w_up: torch.Tensor,
    w_down: torch.Tensor,
) -> torch.Tensor:
    """Run a decoder's pre-norm block: causal self-attention, cross-attention, feed-forward.

    Shapes: x (batch, length, d_model), memory (batch, source_len, d_model), gains and biases
    (3, d_model), w_up (d_model, d_ff), w_down (d_ff, d_model); returns (batch, length, d_model).
    """

    ### BEGIN SOLUTION
    def norm(tokens, i):
        return F.layer_norm(tokens, gains[i].shape, gains[i], biases[i])

    attend = F.scaled_dot_product_attention
    read = norm(x, 0)
    x = x + attend(read, read, read, is_causal=True)
    x = x + attend(norm(x, 1), memory, memory)
    return x + torch.relu(norm(x, 2) @ w_up) @ w_down
    ### END SOLUTION


# %% [markdown]
# {{exercise check_layer_norm}}
#
# Here is a common kind of test. It draws a token, normalises it, and checks the mean and the standard deviation. Run the cell: a norm that lets the future leak into the past passes the test.


# %%
def norm_over_everything(x, gain, bias, eps):
    centred = x - x.mean()
    return centred / torch.sqrt(centred.square().mean() + eps) * gain + bias


def published_check(layer_norm):
    torch.manual_seed(0)
    y = layer_norm(torch.randn(1, 512), torch.ones(512), torch.zeros(512), 1e-5)
    assert y.shape == (1, 512)
    assert abs(y.mean()) < 1e-2 and abs(y.std() - 1) < 1e-2


published_check(norm_over_everything)
print("passes")

# %% [markdown]
# Write a test that catches such bugs. It gets `layer_norm`, a function of `(x, gain, bias, eps)` with the shapes of your own, and raises `AssertionError` if it is wrong. It is run on eight wrong ones: three take their statistics from the wrong axes, one divides by $d - 1$, one has no $\varepsilon$, one has it outside the square root, one has no gain and one no bias. Correct ones must pass, and one of these computes in `float32` for any input: a tolerance of 0.001 leaves room for that. `x` has the axes `(batch, length, d_model)`, none longer than 256 (the test above has 512 features: too many here).
#
# *Before you code:* why does the test above not detect a variance that was divided by 511? On which tokens does $\varepsilon$ matter, and is a difference of $10^{-3}$ there large or small?
#
# <details><summary>Answers, after you have tried</summary>
#
# `y.std()` divides by 511 too: this norm gives 1, a correct one 1.001. $\varepsilon$ matters where the variance of a token is about as small as $\varepsilon$. If it is in the wrong place, the output of such tokens changes by tenths: $10^{-3}$ is a small difference there. On ordinary tokens its whole effect is about $10^{-5}$.
# </details>
#
# <details><summary>Hint: what to compare with</summary>
#
# Use four features, three tokens, two sequences of very different scale, and a gain and a bias that are not constant. `F.layer_norm` is a good reference; so is a token that you worked out by hand.
# </details>
# <details><summary>Hint: ε</summary>
#
# Choose `eps` and `x` yourself. If `eps` is 1.0, a wrong place for it makes a large difference.
# </details>


# %% exercise="check_layer_norm"
def check_layer_norm(layer_norm) -> None:
    """Raise AssertionError if a LayerNorm is wrong.

    layer_norm(x, gain, bias, eps): x (batch, length, d_model), gain and bias (d_model,).
    """
    ### BEGIN SOLUTION
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 4, generator=generator)
    x = x * torch.tensor([0.5, 4.0])[:, None, None] + torch.tensor([1.0, -2.0, 3.0])[:, None]
    gain, bias = torch.randn(2, 4, generator=generator)
    for eps in (1e-5, 1.0):
        seen = layer_norm(x, gain, bias, eps)
        expected = F.layer_norm(x, (4,), gain, bias, eps)
        assert seen.shape == expected.shape, f"the shape is {tuple(seen.shape)}"
        off = (seen - expected).abs().max()
        assert off < 1e-3, f"off by {off:.2g} at eps={eps}"
    ### END SOLUTION


# %% [markdown]
# {{exercise fold_norm}}
#
# A norm ends with a gain and a bias, and the next operation is a linear layer. Two linear maps in a row are one linear map. So a trained model can be rewritten: fold the gain and the bias into that linear layer, and the remaining norm has no parameters. The function does not change, and the weights are easier to study: there is one thing less between the stream and the layers that read it.
#
# Write `fold_norm`. For every token, the new layer after the bare norm (gain 1, bias 0) must have the same output as the old layer after the full norm. The layout is that of `nn.Linear`: `weight` is `(d_out, d_in)`.
#
# Then use the centring matrix. `centre_writer` changes a linear layer that *writes* to the stream so that all its outputs have mean 0 over the features. If all such layers are changed and the embeddings are centred, the stream of a pre-norm model is always centred, and every LayerNorm without a bias can be replaced by an RMSNorm.
#
# *Before you code:* in `weight`, `(d_out, d_in)`, do the features of the norm belong to the rows or to the columns? And the features of the stream, for a layer that writes?
#
# <details><summary>Answers, after you have tried</summary>
#
# To the columns: `weight` reads the features of the norm, and its inputs are columns. The features of the stream are the outputs of a layer that writes, so they are its rows.
# </details>
#
# <details><summary>Hint: expand the product</summary>
#
# $(\hat x \odot \gamma + \beta)\,W^\top + b = \hat x\,(W\text{, columns times }\gamma)^\top + \text{a constant}$.
# </details>


# %% exercise="fold_norm"
def fold_norm(
    gain: torch.Tensor, bias: torch.Tensor, weight: torch.Tensor, linear_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weight and bias that give the same output after the bare norm as the old ones
    after the full norm.

    Shapes: gain and bias (d_model,), weight (d_out, d_model), linear_bias (d_out,); returns a new
    weight and bias of the same shapes.
    """
    ### BEGIN SOLUTION
    return weight * gain, linear_bias + weight @ bias
    ### END SOLUTION


def centre_writer(
    weight: torch.Tensor, linear_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weight and bias whose output is that of the old ones minus its mean.

    Shapes: weight (d_model, d_in), linear_bias (d_model,); returns a new weight and bias of the
    same shapes.
    """
    ### BEGIN SOLUTION
    return weight - weight.mean(dim=0), linear_bias - linear_bias.mean()
    ### END SOLUTION


# %% [markdown]
# {{exercise mixture_of_experts}}
#
# Every token uses all parameters of a feed-forward network, and these are most of a block's. A *mixture of experts* has many feed-forward networks, the *experts*, and a *router*, which picks `top_k` of them for each token ([Shazeer et al. 2017, section 2](https://arxiv.org/abs/1701.06538)). The router is one matrix that gives a token a score for each expert. A softmax over the scores of *all* experts turns them into probabilities $p_i$, and the outputs of the chosen experts are added up, each multiplied by its probability:
#
# $$y = \sum_{i\,\in\,\text{top-}k} p_i\,E_i(x), \qquad E_i(x) = \mathrm{relu}(x\,U_i)\,D_i$$
#
# As in the Switch Transformer ([Fedus et al. 2021, section 2.1](https://arxiv.org/abs/2101.03961)), the probabilities of the chosen experts are not rescaled to sum to 1. Other models do rescale them.
#
# 1. `route` returns each token's probability for every expert, and the experts that it uses: a boolean tensor with `top_k` True entries for each token.
# 2. `mixture_of_experts` takes both and returns the sum. Run an expert only on the tokens that use it. Running all experts on all tokens and multiplying by 0 costs everything that was to be saved, and it is wrong as soon as an unused expert overflows: 0 times infinity is NaN.
# 3. An expert that is chosen more often is trained more often, becomes better, and is chosen more often still, until most experts are idle. A second loss, added with a small factor, prevents that (section 2.2 of Fedus et al.). For $N$ experts, let $f_i$ be the fraction of all choices in the batch that went to expert $i$ (each token makes `top_k` choices), and $P_i$ the average probability of expert $i$ over all tokens of the batch, whatever they chose. Write `balance_loss`:
#
# $$L_{\text{balance}} = N \sum_i f_i\,P_i$$
#
# *Before you code:* let `top_k` be 1. What is the balance loss if all experts are used equally, and what if all tokens choose one expert with probability 1? If the probability is rescaled, what can the router learn from the loss of the model?
#
# <details><summary>Answers, after you have tried</summary>
#
# 1 and $N$. Nothing: the rescaled probability is 1 for every token, whatever the scores are, so no gradient reaches the router.
# </details>
#
# <details><summary>Hint: from indices to a boolean tensor</summary>
#
# `topk(...).indices` are the experts of each token. `scatter(-1, indices, True)` sets these entries of a tensor of False.
# </details>
# <details><summary>Hint: the tokens of one expert</summary>
#
# `own = chosen[..., i]` is True for the tokens that use expert `i`; `x[own]` is a matrix of them, perhaps with no rows; and `y[own] += ...` adds to these tokens only.
# </details>


# %% exercise="mixture_of_experts"
def route(x: torch.Tensor, w_router: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each token's probability for every expert, and which top_k of them it uses.

    Shapes: x (batch, length, d_model), w_router (d_model, num_experts); returns two of
    (batch, length, num_experts), probabilities and chosen, which is boolean.
    """
    ### BEGIN SOLUTION
    probabilities = (x @ w_router).softmax(dim=-1)
    indices = probabilities.topk(top_k, dim=-1).indices
    nothing = torch.zeros_like(probabilities, dtype=torch.bool)
    return probabilities, nothing.scatter(-1, indices, True)
    ### END SOLUTION


def mixture_of_experts(
    x: torch.Tensor,
    probabilities: torch.Tensor,
    chosen: torch.Tensor,
    w_up: torch.Tensor,
    w_down: torch.Tensor,
) -> torch.Tensor:
    """Return for each token the sum of its experts' outputs, weighted by their probabilities.

    Shapes: x (batch, length, d_model), probabilities and chosen (batch, length, num_experts),
    w_up (num_experts, d_model, d_ff), w_down (num_experts, d_ff, d_model); returns
    (batch, length, d_model).
    """
    ### BEGIN SOLUTION
    mixed = torch.zeros_like(x)
    for index, (up, down) in enumerate(zip(w_up, w_down, strict=True)):
        own = chosen[..., index]  # (batch, length)
        output = F.relu(x[own] @ up) @ down
        mixed[own] += probabilities[..., index, None][own] * output
    return mixed
    ### END SOLUTION


def balance_loss(probabilities: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Return the load-balancing loss of a batch, a tensor with one number.

    Shapes: probabilities and chosen (batch, length, num_experts); returns ().
    """
    ### BEGIN SOLUTION
    num_experts = probabilities.shape[-1]
    counts = chosen.flatten(0, 1).sum(dim=0)
    fractions = counts / counts.sum()
    return num_experts * (fractions * probabilities.flatten(0, 1).mean(dim=0)).sum()
    ### END SOLUTION


# %% [markdown]
# ## Look at what you built
#
# First, see what the loss alone would have told you. Each row but the first puts one wrong sub-layer into all three blocks. The first column is all that a training curve shows; the second compares the logits. Look for the rows whose loss you would have believed. A wrong sub-layer may even have a slightly lower loss on this text than the correct one. (These cells are not graded. They also use your `rms_norm` and `init_std` from beyond the core.)

# %%
mine = logits_with(swapped_sublayer, ids)


def wrong_sublayer(norm=None, activation=F.gelu, residual=lambda x, read: x):
    def sublayer(x, weights):
        gain, bias = weights["gain"], weights["bias"]
        read = norm(x, gain, bias) if norm else layer_norm(x, gain, bias)
        hidden = activation(F.linear(read, weights["up.weight"], weights["up.bias"]))
        return residual(x, read) + F.linear(hidden, weights["down.weight"], weights["down.bias"])

    return sublayer


def divided_by_one_less(x, gain, bias):
    deviation = torch.sqrt(x.var(dim=-1, keepdim=True) + 1e-5)
    return (x - x.mean(dim=-1, keepdim=True)) / deviation * gain + bias


wrong = {
    "approximate GELU": wrong_sublayer(activation=lambda z: F.gelu(z, approximate="tanh")),
    "d - 1 in the variance": wrong_sublayer(norm=divided_by_one_less),
    "mean not subtracted": wrong_sublayer(norm=lambda x, g, b: rms_norm(x, g) + b),
    "no bias in the norm": wrong_sublayer(norm=lambda x, g, b: layer_norm(x, g, 0 * b)),
    "no gain in the norm": wrong_sublayer(norm=lambda x, g, b: layer_norm(x, 1 + 0 * g, b)),
    "ReLU instead of GELU": wrong_sublayer(activation=F.relu),
    "residual from the norm": wrong_sublayer(residual=lambda x, read: read),
    "no residual": wrong_sublayer(residual=lambda x, read: 0),
}
print(f"{'':24}  nats per token  largest change of a logit")
print(f"{'yours':24}  {nats_per_token(mine, ids):14.4f}")
for name, sublayer in wrong.items():
    logits = logits_with(sublayer, ids)
    change = (logits - mine).abs().max()
    print(f"{name:24}  {nats_per_token(logits, ids):14.4f}  {change:.4f}")

# %% [markdown]
# Second, see the effect of depth. The cell below stacks forty-eight of your own pre-norm blocks with random weights. The matrices that write to the stream are initialised with `init_std`, and then with `linear_std`, which ignores depth. Left: the size of the stream. Right: the norm of the gradient at each block's input. With your `init_std` the stream stays below $\sqrt2$ (the inputs of these matrices, averages and activations, are smaller than the formula assumes), and every block gets about the same gradient. With `linear_std` the stream grows, and the first blocks get many times the gradient of the last ones.

# %%
depth, width = 48, 32
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
for label, std_for in (
    ("init_std", lambda fan_in: init_std(fan_in, depth)),
    ("linear_std", linear_std),
):
    torch.manual_seed(0)
    blocks = [TransformerBlock(width, 4, 4 * width) for _ in range(depth)]
    stream = [torch.randn(2, 16, width).requires_grad_()]
    for block in blocks:
        with torch.no_grad():
            for writer in (block.attention.out_proj, block.down):
                writer.weight.normal_(std=std_for(writer.in_features))
        stream.append(block(stream[-1]))
    gradients = torch.autograd.grad(stream[-1].square().mean().sqrt(), stream[:-1])
    left.plot([x.detach().square().mean().sqrt() for x in stream], label=label)
    right.semilogy([gradient.norm() for gradient in gradients], label=label)
left.set_xlabel("blocks")
left.set_ylabel("size of the stream")
right.set_xlabel("block")
right.set_ylabel("norm of the gradient")
left.legend()
figure.tight_layout()
plt.show()

# %% [markdown]
# {{question why_norm_before}}
#
# A pre-norm block computes x + f(norm(x)); a post-norm block, norm(x + f(x)). Follow a gradient from the last layer of a deep stack back to the first. What does it pass through in each case? Why can a deep pre-norm stack be trained with less warm-up, or none, and why does it need one more norm at the end? Answer in three to five sentences.

# %% [markdown] written="why_norm_before" points=3
# **What earns the points**, one each:
#
# 1. Pre-norm: the residual connection is an identity, so the gradient reaches each layer unchanged along one path, plus the gradient through the sub-layers.
# 2. Post-norm: the gradient passes through a norm at each layer, which rescales it each time, so its size depends on depth, and early steps need small learning rates.
# 3. The residual stream of a pre-norm stack grows with depth and is never normalised, so the stack needs a final norm before the logits.
#
# **Often seen, and wrong:** “The norm prevents vanishing gradients” without saying which path the gradient takes; pre- and post-norm swapped; the claim that the two compute the same function.
