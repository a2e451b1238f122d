# %% [markdown]
# # Inside a transformer: induction heads
#
# This notebook goes with chapter 9 of *Attention from the Ground Up*. First you build a small transformer without training: you write down its weights. Then you look inside a trained one and find the same mechanism in it. In the deeper exercises you assemble your own transformer, train a model of your own, submit it, and analyse it.
#
# **How it works.** First run the code cells above the first exercise. Write your code where it says `YOUR CODE HERE`, run the cell, then run the check under it. A check reports what your code returned, what it expected and, if it recognises the mistake, which one you made. Each line of its report has its own points, so a partly correct answer earns some of them. When your work is graded, the same checks may run on other numbers: compute results, do not hard-code them. Checks mostly pass float64 tensors: keep the dtype of your inputs, and let gradients flow back to them, because models will be trained with your code.
#
# **Conventions.** Vectors are rows: a weight matrix multiplies from the right, `x @ w`. `nn.Linear`, and therefore every saved model, stores its matrix as `(d_out, d_in)`: `F.linear(x, weight, bias)` uses this layout. Attention weights are `(batch, heads, q_len, k_len)`. Layers, heads and positions are counted from 0.
#
# **Files.** The last two exercises are about a model that you train. You submit three files with this notebook: `config.json`, `model.safetensors` and `prediction.json`.

# %%
import hashlib
import json
import math
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

from classroom import check


def attention_only(tokens, weights, vocab_size, max_len):
    """Run two attention layers with one head each, without norms or feed-forward networks.

    A token's vector is the concatenation of four parts: `token` (vocab_size wide) is the token,
    one-hot; `position` (max_len) is its position, one-hot; `before` and `guess` (vocab_size each) are
    initially zero. The final values of `guess` are the logits.

    Shapes: tokens (batch, length); query1, key1, value1, query2, key2, value2 in weights (d_model,
    d_head), output1, output2 (d_head, d_model), with d_model = 3 * vocab_size + max_len and any
    d_head; returns logits (batch, length, vocab_size) and one attention map (batch, length, length)
    per layer.
    """
    token = F.one_hot(tokens, vocab_size).double()
    position = F.one_hot(torch.arange(tokens.shape[1]), max_len).double()
    position = position.expand(len(tokens), -1, -1)
    x = torch.cat([token, position, torch.zeros_like(token), torch.zeros_like(token)], dim=-1)
    is_later = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
    weights = {name: weight.double() for name, weight in weights.items()}
    maps = []
    for layer in ("1", "2"):
        query, key = x @ weights["query" + layer], x @ weights["key" + layer]
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        maps.append(scores.masked_fill(is_later, -math.inf).softmax(dim=-1))
        x = x + maps[-1] @ (x @ weights["value" + layer]) @ weights["output" + layer]
    return x[..., -vocab_size:], maps


# %% [markdown]
# {{exercise induction_weights}}
#
# A text contains `cat sat`, and later `cat` again. What comes next? The simplest prediction needs no grammar: *what came after this token the last time*. A head that predicts in this way is called an **induction head** ([Olsson et al. 2022](https://transformer-circuits.pub/2022/in-context-learning-and-induction-heads/index.html)). A head of the first layer cannot do it: it would have to find a position by the token *before* it, and no vector contains this token yet. Two layers can (see the first section of the chapter; its page “Circuits by hand” sets such weights piece by piece):
#
# 1. the head of layer 1 attends to the previous position, and writes the token at that position into `before`;
# 2. the head of layer 2 attends to the position where `before` equals the current token. It copies the token at that position into `guess`.
#
# You write the weights of both layers. Nothing is trained, and most entries are 0. The model is `attention_only` above; read it first. Each part of a vector is one-hot or 0, so a weight matrix is a wiring diagram: row `i` specifies where feature `i` goes. Note the division by the square root of `d_head`, and that the softmax of small scores is nearly uniform: the size of your weights determines how sharp it is.
#
# Every sequence begins with token 0, which does not occur again: position 0 has no previous position, and whatever it attends to must do no harm. Your model is evaluated wherever a token occurs for the *second* time, and must predict the token that followed the first time. All its predictions must be correct, including for vocabularies and lengths not shown here, up to several hundred tokens.
#
# *Before you code:* the query at position 5 is the one-hot vector of 5, and it should find position 4. What must the key at position 4 be? And with a score of 1 for the correct position and 0 for 199 others, what attention weight does the correct one get?
#
# <details><summary>Answers, after you have tried</summary>
#
# The one-hot vector of 5 (or shift the query instead, as the page does). $e/(e + 199)$, about 1.3 %: far too little.
# </details>
#
# <details><summary>Hint: a matrix by parts</summary>
#
# `w = torch.zeros(d_model, d_head)`, then `w[position] = ...` with `position = slice(vocab_size, vocab_size + max_len)` sets the rows of one part.
# </details>
# <details><summary>Hint: the previous position</summary>
#
# `torch.diag(torch.ones(n - 1), 1)` is the identity with its ones shifted one column to the right: feature `i` goes to `i + 1`.
# </details>
# <details><summary>Hint: sharp</summary>
#
# No score is too large for this softmax. A score of one hundred, after the division, is sharp enough for any text.
# </details>


# %% exercise="induction_weights"
def induction_weights(vocab_size: int, max_len: int) -> dict[str, torch.Tensor]:
    """Return the weights of two layers that predict what followed the last time.

    Returns query1, key1, value1, output1, query2, key2, value2 and output2 for `attention_only`,
    for a d_head of your choice, in float32 or float64.
    """
    ### BEGIN SOLUTION
    d_model = 3 * vocab_size + max_len
    token, position = slice(0, vocab_size), slice(vocab_size, vocab_size + max_len)
    before = slice(vocab_size + max_len, 2 * vocab_size + max_len)
    guess = slice(2 * vocab_size + max_len, d_model)
    same_token = torch.eye(vocab_size, dtype=torch.float64)

    def reading(part, matrix):
        weight = torch.zeros(d_model, matrix.shape[1], dtype=torch.float64)
        weight[part] = matrix
        return weight

    ask = 100 * math.sqrt(max_len) * torch.eye(max_len, dtype=torch.float64)
    answer = torch.diag(torch.ones(max_len - 1, dtype=torch.float64), 1)
    return {
        "query1": reading(position, ask),
        "key1": reading(position, answer),
        "value1": reading(token, same_token),
        "output1": reading(before, same_token).T,
        "query2": reading(token, 100 * math.sqrt(vocab_size) * same_token),
        "key2": reading(before, same_token),
        "value2": reading(token, same_token),
        "output2": reading(guess, same_token).T,
    }
    ### END SOLUTION


# %% [markdown]
# Where do your two heads look? The cell below shows their attention on a sequence of ten tokens, repeated once. Layer 1 should show a line just below the diagonal; layer 2, in the second half, a line at the position *after* the same token. (This cell is not graded.)

# %%
letters = torch.randperm(10, generator=torch.Generator().manual_seed(9)) + 1
repeated = torch.cat([torch.tensor([0]), letters, letters])[None]
logits, maps = attention_only(repeated, induction_weights(11, 24), 11, 24)
figure, axes = plt.subplots(1, 2, figsize=(9, 4.3), sharey=True)
for axis, found, title in zip(axes, maps, ("layer 1", "layer 2"), strict=True):
    axis.imshow(found[0], cmap="Blues", vmin=0, vmax=1)
    axis.set_title(title)
    axis.set_xlabel("attends to")
axes[0].set_ylabel("position")
plt.show()
right = logits[0, 11:-1].argmax(dim=-1) == repeated[0, 12:]
print(f"{int(right.sum())} of {len(right)} predictions in the second half are correct")

# %% [markdown]
# {{exercise look_inside}}
#
# The weights of a trained model are not written by hand, so you need instruments that show what its parts do. Write three of them as functions of tensors, so that they work for any model.
#
# **`induction_score`.** The input is the attention of all heads on a passage of random tokens, repeated once. At a position `t` of the second half, an induction head attends to the position *after* that of the same token in the first half. The score is the attention weight there, averaged over the second half and the batch: one number per head, from 0 to 1.
#
# **`logit_lens`.** The residual stream has the same width at every depth. Decode it at each depth in the same way as after the last block: final norm, unembedding, softmax over the vocabulary. At the last depth, the result is the model's own probabilities; at earlier depths, what it would predict if it ended there. The norm here is a LayerNorm with $\varepsilon = 10^{-5}$.
#
# **`without_head`** and **`bits_lost`.** An attention map does not show what a head is *for*. Ablate the head and measure the effect. The outputs of the heads are concatenated, and the output projection `weight` mixes them. Without head `h`, its features are zero at the input of this projection, and nothing else changes: the bias belongs to no head. Do not change the tensor `mixed`. The effect is the cross-entropy of the model without the head minus that of the model with it, here in **bits** per token; `targets[:, i]` is what `logits[:, i]` should predict.
#
# *Before you code:* a passage of 4 tokens is repeated once, so positions run from 0 to 7. At position 6, which position does an induction head attend to? Which one would show that it only looks for the same token?
#
# <details><summary>Answers, after you have tried</summary>
#
# Position 3, which comes after the same token in the first half. Position 2 would show that the head only looks for the same token.
# </details>
#
# <details><summary>Hint: which diagonal</summary>
#
# Position `t` of the second half attends to `t - half + 1`. `attention.diagonal(offset, -2, -1)` collects `attention[..., i, i + offset]`; a negative offset is below the main diagonal. Does the diagonal begin in the second half? Count: it has `half + 1` entries.
# </details>
# <details><summary>Hint: nats and bits</summary>
#
# `F.cross_entropy` is in nats. A bit is `math.log(2)` nats.
# </details>


# %% exercise="look_inside"
def induction_score(attention: torch.Tensor) -> torch.Tensor:
    """Return each head's mean attention to what followed the last time, in a repeated passage.

    Shapes: attention (batch, heads, length, length) with length = 2 * half; returns (heads,).
    """
    ### BEGIN SOLUTION
    half = attention.shape[-1] // 2
    onward = attention.diagonal(1 - half, dim1=-2, dim2=-1)[..., 1:]  # from position half on
    return onward.mean(dim=(0, 2))
    ### END SOLUTION


def logit_lens(
    streams: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor, unembedding: torch.Tensor
) -> torch.Tensor:
    """Return, for every depth, the probabilities of the next token if the model ended there.

    Shapes: streams (depths, batch, length, d_model), gain and bias of the final norm (d_model,),
    unembedding (vocab_size, d_model); returns (depths, batch, length, vocab_size).
    """
    ### BEGIN SOLUTION
    read = F.layer_norm(streams, gain.shape, gain, bias)
    return (read @ unembedding.T).softmax(dim=-1)
    ### END SOLUTION


def without_head(
    mixed: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, head: int
) -> torch.Tensor:
    """Return the output of attention, after the output projection, without one head.

    Shapes: mixed (batch, heads, length, d_head), the output of each head; weight (d_model, d_model)
    and bias (d_model,) of the output projection, as nn.Linear stores them; returns (batch, length,
    d_model).
    """
    ### BEGIN SOLUTION
    kept = mixed.clone()
    kept[:, head] = 0.0
    return F.linear(kept.transpose(1, 2).flatten(2), weight, bias)
    ### END SOLUTION


def bits_lost(logits: torch.Tensor, ablated: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the increase of a model's loss, in bits per token, when a part is ablated.

    Shapes: logits and ablated, with and without it, (batch, length, vocab_size); targets (batch,
    length); returns a single number, negative if the model is better without the part.
    """
    ### BEGIN SOLUTION
    with_it = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    without_it = F.cross_entropy(ablated.flatten(0, 1), targets.flatten())
    return (without_it - with_it) / math.log(2)
    ### END SOLUTION


# %% [markdown]
# ### In a trained model
#
# `reader` was trained to predict Python code; nothing told it to look back. The cells below show your `induction_score` for all its heads, then the logit lens on a line of Python, then the effect of ablating each head, on real text and on repeated random tokens. Before you run the last cell, write down which head you expect to matter most, and on which of the two texts. (These cells are not graded.)

# %%
from groundup.looking import probes
from groundup.pretrained import load

reader, tokenizer = load("reader")
generator = torch.Generator().manual_seed(3)
page = tokenizer.encode(Path(json.__file__).read_text(encoding="utf-8"))
choices = torch.tensor(sorted(set(page)))
passages = probes.repeated_tokens(choices, 40, 8, generator)
for layer, attention in enumerate(probes.attention_maps(reader, passages)):
    scores = " ".join(f"{score:.2f}" for score in induction_score(attention).tolist())
    print(f"layer {layer}: {scores}")

# %%
line = torch.tensor([tokenizer.encode("for name in names:\n    print(name")])
streams = probes.residual_streams(reader, line)
norm, table = reader.final_norm, reader.unembedding.weight
with torch.no_grad():
    guesses = logit_lens(streams, norm.gain, norm.bias, table)
print(f"{'token':>10} | most probable next token, by depth")
for i, token in enumerate(line[0].tolist()):
    best = [repr(tokenizer.decode([int(row[0, i].argmax())])) for row in guesses]
    print(f"{tokenizer.decode([token])!r:>10} | {' '.join(f'{guess:>10}' for guess in best)}")

# %%
text = torch.tensor(page[: 6 * 200]).view(6, 200)


@torch.no_grad()
def lost(tokens, layer, head, start):
    """Return the increase in bits per token without a head, after position `start`."""
    whole = reader(tokens)
    with probes.without_heads(reader, [(layer, head)]):
        ablated = reader(tokens)
    after = slice(start, -1)
    return bits_lost(whole[:, after], ablated[:, after], tokens[:, start + 1 :])


print(f"{'':16} Python     repeated   (bits per token)")
for layer in range(reader.config.num_layers):
    for head in range(reader.config.num_heads):
        costs = lost(text, layer, head, 0), lost(passages, layer, head, 40)
        print(f"layer {layer}, head {head}: {costs[0]:8.3f} {costs[1]:12.3f}")

# %% [markdown]
# {{deeper}}

# %% [markdown]
# {{exercise language_model}}
#
# Now write a complete model: your own transformer, as one function of a configuration, weights and tokens. If you have worked through the earlier chapters, you have all its parts. `classroom mine` in a terminal collects them from your notebooks into the package `mine`; open its files and copy what you need into the cell below (the grader sees only this notebook, so `import mine` is not enough).
#
# `weights` maps names to tensors as in `model.safetensors`, and `config` is the dict under `config` in `config.json`. You need not support all of the library's models, only this family:
#
# | in `config` | meaning |
# |---|---|
# | `d_model`, `num_layers`, `num_heads` | sizes; `d_head = d_model // num_heads` |
# | `num_kv_heads` | key and value heads (`None` means `num_heads`); query head `h` uses key head `h * num_kv_heads // num_heads` |
# | `positions` | `"learned"`: add row `p` of `embedding.positions.table.weight` to the token at position `p`; `"rotary"`: rotate queries and keys, features `2i` and `2i + 1` of a head by the angle `p / rotary_base ** (2i / d_head)` |
# | `norm`, `norm_eps` | `"layer"`: LayerNorm with `gain` and `bias`; `"rms"`: RMSNorm with `gain` |
# | `activation` | `"gelu"`: `down(gelu(up(x)))`, with the exact GELU; `"swiglu"`: `down(silu(gate(x)) * up(x))` |
#
# All are pre-norm with a final norm, and their weights are tied: the embedding matrix also gives the logits. Block `i` has `blocks.i.attention_norm`, `blocks.i.attention.query`, `.key`, `.value`, `.output`, `blocks.i.feed_forward_norm`, `blocks.i.feed_forward.up`, `.down` and, for SwiGLU, `.gate`; each linear layer has a `.weight` and, if the dict contains it, a `.bias`. The other names are `embedding.tokens.weight` and `final_norm`. The presets `tiny` and `llama` of `groundup train` make such models.
#
# Write two functions. `step` processes *the next* tokens: `cache` is `None` at first, then the cache that your previous `step` returned. The cache may be made of tensors, lists, tuples, dicts and numbers. `language_model` processes all tokens at once. However a text is split into steps, its logits must stay the same.
#
# *Before you code:* five tokens have been processed, and two more come. What is the shape of the mask? What are the positions of the two tokens? Are the keys in your cache already rotated?
#
# <details><summary>Answers, after you have tried</summary>
#
# `(2, 7)`. 5 and 6. The last one is your choice: you can cache rotated keys, since the position of a key never changes, or cache the original keys and rotate all of them at each step. Do not do both.
# </details>
#
# <details><summary>Hint: one function is enough</summary>
#
# `language_model(config, weights, tokens)` is `step(config, weights, tokens, None)[0]`.
# </details>
# <details><summary>Hint: the mask of a step</summary>
#
# New token `i` has position `start + i` and sees every key up to this position: `torch.ones(q_len, k_len, dtype=torch.bool).tril(k_len - q_len)`.
# </details>
# <details><summary>Hint: where to look when logits differ</summary>
#
# The checks begin with learned positions, LayerNorm and GELU, and continue with rotary embeddings, RMSNorm and a gate. The first one that fails shows where the mistake is. If `language_model` is correct but `step` fails, the mistake is in its positions, its mask or its cache.
# </details>


# %% exercise="language_model"
def step(config: dict, weights: dict[str, torch.Tensor], tokens: torch.Tensor, cache=None):
    """Process the next tokens; return their logits and a cache.

    Shapes: tokens (batch, length), those after the last step; returns logits (batch, length,
    vocab_size), and a cache of any format.
    """
    ### BEGIN SOLUTION
    heads = config["num_heads"]
    kv_heads = config["num_kv_heads"] or heads
    start = 0 if cache is None else cache[0][0].shape[2]

    def linear(name, x):
        return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def norm(name, x):
        gain, eps = weights[f"{name}.gain"], config["norm_eps"]
        if config["norm"] == "rms":
            return F.rms_norm(x, gain.shape, gain, eps)
        return F.layer_norm(x, gain.shape, gain, weights[f"{name}.bias"], eps)

    def split(x, number):
        return x.unflatten(-1, (number, -1)).transpose(1, 2)

    def turned(x):
        pairs = torch.arange(0, x.shape[-1], 2, dtype=torch.float64)
        places = torch.arange(start, start + x.shape[2], dtype=torch.float64)
        angles = places[:, None] / config["rotary_base"] ** (pairs / x.shape[-1])
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)

    def attention(name, x, past):
        query = split(linear(f"{name}.query", x), heads)
        key = split(linear(f"{name}.key", x), kv_heads)
        value = split(linear(f"{name}.value", x), kv_heads)
        if config["positions"] == "rotary":
            query, key = turned(query), turned(key)
        if past is not None:
            key, value = torch.cat([past[0], key], dim=2), torch.cat([past[1], value], dim=2)
        q_len, k_len = query.shape[2], key.shape[2]
        mask = torch.ones(q_len, k_len, dtype=torch.bool).tril(k_len - q_len)
        shared = [part.repeat_interleave(heads // kv_heads, dim=1) for part in (key, value)]
        found = F.scaled_dot_product_attention(query, *shared, attn_mask=mask)
        return linear(f"{name}.output", found.transpose(1, 2).flatten(2)), (key, value)

    def feed_forward(name, x):
        if config["activation"] == "swiglu":
            hidden = F.silu(linear(f"{name}.gate", x)) * linear(f"{name}.up", x)
        else:
            hidden = F.gelu(linear(f"{name}.up", x))
        return linear(f"{name}.down", hidden)

    x = weights["embedding.tokens.weight"][tokens]
    if config["positions"] == "learned":
        x = x + weights["embedding.positions.table.weight"][start : start + tokens.shape[1]]
    remembered = []
    for i in range(config["num_layers"]):
        block, past = f"blocks.{i}", None if cache is None else cache[i]
        found, now = attention(f"{block}.attention", norm(f"{block}.attention_norm", x), past)
        x = x + found
        x = x + feed_forward(f"{block}.feed_forward", norm(f"{block}.feed_forward_norm", x))
        remembered.append(now)
    return norm("final_norm", x) @ weights["embedding.tokens.weight"].T, remembered
    ### END SOLUTION


def language_model(config: dict, weights: dict[str, torch.Tensor], tokens: torch.Tensor):
    """Return the logits of the token after each position.

    Shapes: tokens (batch, length); returns (batch, length, vocab_size).
    """
    ### BEGIN SOLUTION
    return step(config, weights, tokens)[0]
    ### END SOLUTION


# %% [markdown]
# Your transformer with trained weights: it generates Python code, one token per step, with your cache. (This cell is not graded.)

# %%
from dataclasses import asdict

settings, trained = asdict(reader.config), dict(reader.named_parameters())
written = tokenizer.encode("import os\n\ndef read")
with torch.no_grad():
    logits, remembered = step(settings, trained, torch.tensor([written]))
    for _ in range(60):
        odds = (logits[0, -1] / 0.7).softmax(dim=-1)
        written.append(int(torch.multinomial(odds, 1, generator=generator)))
        logits, remembered = step(settings, trained, torch.tensor([written[-1:]]), remembered)
print(tokenizer.decode(written))

# %% [markdown]
# {{exercise capstone}}
#
# Train a model of your own on `python-reference`, the reference manual of Python. The last tenth of the text is held out. The budget:
#
# | | at most |
# |---|---|
# | parameters | 1 000 000, with tied weights counted once |
# | `model.safetensors` | 4 MiB, float32 |
# | `config.json` | 256 KiB |
# | tokens | 2 048 in the vocabulary, 512 in the context |
# | layers, `d_model`, `d_ff` | 16, 512, 2 048 |
# | heads | 64, in all layers together (exercise 9.5 ablates each) |
#
# You may use any of the library's tokenizers and decoder-only models. In a terminal, in this folder, run
#
# ```
# groundup train --data python-reference --out capstone
# ```
#
# as a start; it takes a few minutes on one core. `groundup train --help` lists the options: the tokenizer and its size, the preset, steps, batch size, context, optimizer, learning rate and schedule. `--library mine` computes with your own parts. Change one thing at a time: a run with two changes tells you nothing about either. A run with a tenth of the steps shows which of two choices learns faster. When you are satisfied, copy `config.json` and `model.safetensors` from `capstone` to the folder of this notebook.
#
# **How it is graded.** The two files are read outside your notebook, never run. Sizes are checked first. Then bits per byte are measured on passages of the held-out part, drawn at grading time, and compared with a 5-gram model with Kneser-Ney smoothing on the same passages. Your model must beat it; there are more points at 99 % and at 98 % of its bits. If you train on the held-out part, your number is worthless. Each run ends with a measurement on this part, so compare only a few runs.
#
# Last, report your results, for 3 of the points: `capstone()` returns the number of parameters, and the bits per byte on `passage`, the first 3000 characters of the held-out part, as the cell below measures them. Both must match the two files.
#
# *Before you code:* your model predicts bytes, a friend's predicts pieces of four bytes. Whose loss per token is larger? Whose bits per byte? Which of the two numbers can be compared?
#
# <details><summary>Answers, after you have tried</summary>
#
# Your friend's loss per token is probably larger, because a piece carries as much information as four bytes. Only a measurement shows whose bits per byte are larger, and this is the number that can be compared.
# </details>
#
# <details><summary>Hint: what helps most</summary>
#
# The training text is short: about 336 000 characters. How much text 128 tokens contain depends on the tokenizer. How many passes over the text does your run make, and is the loss still falling at its end?
# </details>
# <details><summary>Hint: too many parameters?</summary>
#
# Which parts have the most? An embedding matrix of 1 024 rows of 128 has 131 072 parameters; without weight tying there are two. `groundup.looking.accounting.parameters(config)` counts them by part.
# </details>

# %%
from groundup.data.batches import covering_windows
from groundup.data.texts import python_reference

passage = python_reference().validation[:3000]


@torch.no_grad()
def bits_per_byte(model, tokenizer, text):
    """Measure a model's bits per byte on a text, without its first token."""
    ids = tokenizer.encode(text)
    nats = 0.0
    for batch in covering_windows(torch.tensor(ids), batch_size=32, length=model.config.max_len):
        logits = model(batch.inputs["tokens"]).flatten(0, 1)
        nats += float(F.cross_entropy(logits, batch.targets.flatten(), reduction="sum"))
    num_bytes = len(text.encode()) - len(tokenizer.decode(ids[:1]).encode())
    return nats / math.log(2) / num_bytes


def my_model():
    """Load the model in the folder of this notebook."""
    from groundup.files.checkpoint import load

    found = load(Path.cwd())
    return found.model, found.tokenizers["text"]


if Path("model.safetensors").exists():
    my_transformer, my_tokenizer = my_model()
    print("parameters", sum(p.numel() for p in my_transformer.parameters()))
    print("bits per byte", round(bits_per_byte(my_transformer, my_tokenizer, passage), 4))
else:
    print("there is no model.safetensors in the folder of this notebook yet")


# %% exercise="capstone"
def capstone() -> dict[str, float]:
    """Report `parameters` of the submitted model, and its `bits_per_byte` on `passage`."""
    ### BEGIN SOLUTION
    return {"parameters": 660608, "bits_per_byte": 1.8921}
    ### END SOLUTION


# %% [markdown]
# {{exercise ablation}}
#
# One head of your model matters more than any other. Which one? Afterwards it is easy to say that you knew it, so you write your prediction down first, and seal it:
#
# 1. Examine your model by any method except ablation: its attention maps, its induction scores.
# 2. Predict which head matters most on `passage`, and how many bits per byte its ablation costs. Give the cost as an interval, at most 0.5 bits per byte wide. A good interval is one on which you would bet nine to one.
# 3. `seal` writes the prediction to `prediction.json`, with the SHA-256 of your weights: it is valid only for these weights. If you continue training, you must predict again.
# 4. Then measure. Being wrong costs one point of ten. Measuring wrongly costs more.
#
# Write `most_missed`. It gets `bits_without(heads)`, a function that takes a list of `(layer, head)` pairs and returns the bits per byte of the model without them; for an empty list, of the whole model. `most_missed` returns the layer and the number of the head whose ablation costs most, and this cost. Ablate one head at a time. Some models are better without a head; its cost is then negative.
#
# Then run the cell below the check with your own model, and report your measurement in `ablation`: the `cost`, in bits per byte on `passage`, of the head that you *predicted*.
#
# *Before you code:* two heads do the same job, and each can do it alone. What does the ablation of each one cost? What does ablating both together cost?
#
# <details><summary>Answers, after you have tried</summary>
#
# Each alone costs almost nothing, because the other one does the job. Both together cost the full value of the job.
# </details>
#
# <details><summary>Hint: how often is the model measured?</summary>
#
# Once as a whole, and once for each head.
# </details>


# %%
def seal(layer, head, low, high):
    """Record, before measuring, which head matters most and an interval for its cost."""
    digest = hashlib.sha256(Path("model.safetensors").read_bytes()).hexdigest()
    prediction = {"weights": digest, "layer": layer, "head": head, "low": low, "high": high}
    Path("prediction.json").write_text(json.dumps(prediction, indent=2) + "\n", encoding="utf-8")


# seal(layer=..., head=..., low=..., high=...)


# %% exercise="ablation"
def most_missed(bits_without, num_layers: int, num_heads: int) -> tuple[int, int, float]:
    """Return the layer, the number and the cost of the head whose ablation costs most."""
    ### BEGIN SOLUTION
    whole = bits_without([])
    heads = [(layer, head) for layer in range(num_layers) for head in range(num_heads)]
    costs = {(layer, head): bits_without([(layer, head)]) - whole for layer, head in heads}
    layer, head = max(costs, key=costs.get)
    return layer, head, costs[layer, head]
    ### END SOLUTION


def ablation() -> dict[str, float]:
    """Report the `cost` of ablating the predicted head, in bits per byte on `passage`."""
    ### BEGIN SOLUTION
    return {"cost": 0.1612}
    ### END SOLUTION


# %% [markdown]
# ## Look at what you built
#
# First, your functions measure your model and ablate its heads. Then it generates text. (These cells are not graded.)

# %%
if Path("model.safetensors").exists():

    def bits_without(heads):
        with probes.without_heads(my_transformer, heads):
            return bits_per_byte(my_transformer, my_tokenizer, passage)

    layers, heads = my_transformer.config.num_layers, my_transformer.config.num_heads
    layer, head, cost = most_missed(bits_without, layers, heads)
    print(f"largest cost: layer {layer}, head {head}, {cost:.4f} bits per byte")
    if Path("prediction.json").exists():
        said = json.loads(Path("prediction.json").read_text(encoding="utf-8"))
        measured = bits_without([(said["layer"], said["head"])]) - bits_without([])
        print(
            f"predicted: layer {said['layer']}, head {said['head']}, {said['low']}–{said['high']}"
        )
        print(f"which costs {measured:.4f} bits per byte")

# %%
if Path("model.safetensors").exists():
    from groundup.generation.loop import generate

    def choose(logits):
        return torch.multinomial((logits / 0.7).softmax(dim=-1), 1, generator=generator)[:, 0]

    beginning = torch.tensor([my_tokenizer.encode("The value of ")])
    with torch.no_grad():
        tokens = generate(my_transformer, beginning, 100, choose)
    print(my_tokenizer.decode(tokens[0].tolist()))

# %% [markdown]
# {{question what_an_attention_map_shows}}
#
# An attention map shows that a head puts most of its weight from token B on token A. Somebody concludes that the model uses A to predict what comes after B. Why does the map alone not show this? Which experiment would you do, and which result would make you give up the conclusion? Answer in three to five sentences.

# %% [markdown] written="what_an_attention_map_shows" points=3
# **What earns the points**, one each:
#
# 1. The weight says where values are taken from, not what they contribute: the value may be small, the output projection may ignore it, or later layers may cancel it.
# 2. An intervention: ablate the head, or replace the value at A by that of another run (activation patching), and compare the prediction, with a baseline such as another head or position.
# 3. A result named in advance that would refute it, such as an unchanged loss or logit; or the reservation that other heads may take over, so one ablation without effect proves little.
#
# **Often seen, and wrong:** Another observation (more maps, more heads) offered as the experiment; a probe offered as proof of use, although it shows only that the information is present; no result that could refute.
