# %% [markdown]
# # Inside a transformer, and the capstone
#
# This notebook goes with chapter 9 of *Attention from the Ground Up*. First you build a small transformer that nobody has trained: you write down its weights. Then you look into one that was trained, and find the same machine in it. Then you put your own transformer together, train a model of your own, hand it in, and take it apart.
#
# **How it works.** Write your code where it says `YOUR CODE HERE`, run the cell, then run the check under it. A check tells you what it saw, what it expected, and, if it recognises the mistake, which one you made. It draws new numbers for every test, so there is no answer to hard-code. Points count test by test: half an exercise earns half its points. When your work is graded, the same checks may run with other numbers. Checks mostly pass float64 tensors: keep the dtype of what you are given, and let gradients flow back through it, since what you write is going to be trained.
#
# **Conventions.** Row vectors: a map multiplies from the right, `x @ w`. `nn.Linear`, and so every saved model, keeps its matrix as `(d_out, d_in)`: `F.linear(x, weight, bias)` multiplies with it. Attention weights are `(batch, heads, q_len, k_len)`. Layers, heads and places count from 0.
#
# **Files.** The last two exercises are about a model that you train. Three files are handed in beside this notebook: `config.json`, `model.safetensors` and `prediction.json`.

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
    """Run two layers of attention, one head each, and nothing else: no norm, no feed-forward.

    A token's vector has four parts, side by side: `token` (vocab_size wide) says which token it
    is, one-hot; `place` (max_len) says where it stands, one-hot; `before` and `guess` (vocab_size
    each) begin as zeros. What is in `guess` at the end are the logits.

    Shapes: tokens (batch, length); query1, key1, value1, query2, key2, value2 in weights
    (d_model, d_head), output1, output2 (d_head, d_model), with d_model = 3 * vocab_size + max_len
    and any d_head; returns logits (batch, length, vocab_size) and one map (batch, length, length)
    per layer.
    """
    token = F.one_hot(tokens, vocab_size).double()
    place = F.one_hot(torch.arange(tokens.shape[1]), max_len).double().expand(len(tokens), -1, -1)
    x = torch.cat([token, place, torch.zeros_like(token), torch.zeros_like(token)], dim=-1)
    is_later = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
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
# A text says `… cat si…`, and the model has seen `cat sat` before. What comes next? The simplest answer needs no grammar: *what came after this the last time*. A head that answers so is called an **induction head** ([Olsson et al. 2022](https://transformer-circuits.pub/2022/in-context-learning-and-induction-heads/index.html)). One layer cannot do it, because a place would have to be found by what stands *before* it, and no vector knows that. Two layers can:
#
# 1. the head of layer 1 looks at the place before, and notes in `before` which token it found there;
# 2. the head of layer 2 asks: where does `before` hold the token that I am? It copies the token of that place into `guess`.
#
# You write the weights of both layers. Nothing is trained, and most entries are 0. The model is `attention_only` above; read it first. Its vectors are one-hot, so a matrix of weights is a wiring plan: row `i` says where feature `i` goes. Note the division by the root of `d_head`, and that a softmax of small scores spreads over everything: the weights decide how sharp it is.
#
# Every sequence begins with token 0, which never comes again: place 0 has nothing before it, and whatever it finds there must do no harm. Your model is asked wherever a token stands for the *second* time, and must name what followed the first time. It must be right every time, for other alphabets and lengths than those shown here, up to several hundred tokens.
#
# *Before you code:* place 5 asks with the one-hot vector of 5, and is to find place 4. What must the key of place 4 be? And with a score of 1 for the right place and 0 for 199 others, how much of the attention does the right one get?
#
# <details><summary>Answers, after you have tried</summary>
#
# The one-hot vector of 5. $e/(e + 199)$, about 1.3 %: far too little.
# </details>
#
# <details><summary>Hint: a matrix by parts</summary>
#
# `w = torch.zeros(d_model, d_head)`, then `w[place] = ...` with `place = slice(vocab_size, vocab_size + max_len)` fills the rows of one part.
# </details>
# <details><summary>Hint: one step to the left</summary>
#
# `torch.diag(torch.ones(n - 1), 1)` is the identity with its ones moved one column to the right: feature `i` goes to `i + 1`.
# </details>
# <details><summary>Hint: sharp</summary>
#
# A softmax has no largest score that is too large. A hundred, after the division, is sharp enough for any text.
# </details>


# %% exercise="induction_weights"
def induction_weights(vocab_size: int, max_len: int) -> dict[str, torch.Tensor]:
    """Write down the weights of two layers that repeat what followed the last time.

    Returns query1, key1, value1, output1, query2, key2, value2 and output2 for `attention_only`,
    of whatever d_head you choose, in float32 or float64.
    """
    ### BEGIN SOLUTION
    d_model = 3 * vocab_size + max_len
    token, place = slice(0, vocab_size), slice(vocab_size, vocab_size + max_len)
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
        "query1": reading(place, ask),
        "key1": reading(place, answer),
        "value1": reading(token, same_token),
        "output1": reading(before, same_token).T,
        "query2": reading(token, 100 * math.sqrt(vocab_size) * same_token),
        "key2": reading(before, same_token),
        "value2": reading(token, same_token),
        "output2": reading(guess, same_token).T,
    }
    ### END SOLUTION


# %% [markdown]
# Where do your two heads look? Below, a text of ten letters, said twice. Layer 1 should show one line under the diagonal; layer 2, in the second half, a line that points to the place *after* the same letter. (This cell is not graded.)

# %%
letters = torch.randperm(10, generator=torch.Generator().manual_seed(9)) + 1
said_twice = torch.cat([torch.tensor([0]), letters, letters])[None]
logits, maps = attention_only(said_twice, induction_weights(11, 24), 11, 24)
figure, axes = plt.subplots(1, 2, figsize=(9, 4.3), sharey=True)
for axis, found, title in zip(axes, maps, ("layer 1", "layer 2"), strict=True):
    axis.imshow(found[0], cmap="Blues", vmin=0, vmax=1)
    axis.set_title(title)
    axis.set_xlabel("attends to")
axes[0].set_ylabel("place")
plt.show()
right = logits[0, 11:-1].argmax(dim=-1) == said_twice[0, 12:]
print(f"{int(right.sum())} of {len(right)} guesses in the second half are right")

# %% [markdown]
# {{exercise look_inside}}
#
# Nobody wrote down the weights of a trained model. Three instruments tell what its parts do. Write them for arrays, so that they fit any model.
#
# **`induction_score`.** Let a model read a passage of random tokens twice. In the second half, at place `t`, an induction head looks at what came *after* this token in the first half. How much attention goes there, on average over the second half and the batch? One number per head, from 0 to 1.
#
# **`logit_lens`.** The residual stream at every depth has the width of the last one. Read it as the last one is read: final norm, table, softmax over the vocabulary. At the last depth these are the model's own probabilities; before, what it would say if it ended there. The norm here is a LayerNorm with $\varepsilon = 10^{-5}$.
#
# **`without_head`** and **`bits_lost`.** What a head is *for* is not seen in its map. Take it away and see what is missed. The heads' results stand side by side, one map `weight` joins them. Without head `h`, its features are zero on their way into that map, and nothing else changes: the bias belongs to no head. What is missed is the difference in cross-entropy between the model without and the model with the head, here in **bits** per token.
#
# *Before you code:* a passage of 4 tokens is said twice, so places run from 0 to 7. At place 6, which place does an induction head look at? Which one would show that it only looks for the same token?
#
# <details><summary>Answers, after you have tried</summary>
#
# At place 3, which comes after the same token in the first half. Place 2 would show that the head looks for the same token only.
# </details>
#
# <details><summary>Hint: which diagonal</summary>
#
# Place `t` of the second half looks at `t - half + 1`. `attention.diagonal(offset, -2, -1)` collects `attention[..., i, i + offset]`; a negative offset lies below the main diagonal. Does it begin in the second half? Count: the line has `half + 1` entries.
# </details>
# <details><summary>Hint: nats and bits</summary>
#
# `F.cross_entropy` speaks in nats. A bit is `math.log(2)` nats.
# </details>


# %% exercise="look_inside"
def induction_score(attention: torch.Tensor) -> torch.Tensor:
    """Say how much each head looks at what followed the last time, in a passage said twice.

    Shapes: attention (batch, heads, length, length) with length = 2 * half; returns (heads,).
    """
    ### BEGIN SOLUTION
    half = attention.shape[-1] // 2
    onward = attention.diagonal(1 - half, dim1=-2, dim2=-1)[..., 1:]  # from place half on
    return onward.mean(dim=(0, 2))
    ### END SOLUTION


def logit_lens(
    streams: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor, unembedding: torch.Tensor
) -> torch.Tensor:
    """Give, for every depth, the probabilities of the next token as if the model ended there.

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
    """Give what attention adds to the stream if one head is taken away.

    Shapes: mixed (batch, heads, length, d_head), what each head found; weight (d_model, d_model)
    and bias (d_model,) of the map that joins them, as nn.Linear keeps them; returns (batch,
    length, d_model).
    """
    ### BEGIN SOLUTION
    kept = mixed.clone()
    kept[:, head] = 0.0
    return F.linear(kept.transpose(1, 2).flatten(2), weight, bias)
    ### END SOLUTION


def bits_lost(logits: torch.Tensor, ablated: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Say how many bits per token a model needs more without the part that was taken away.

    Shapes: logits and ablated, with and without it, (batch, length, vocab_size); targets (batch,
    length); returns a single number, negative if the model is better off without.
    """
    ### BEGIN SOLUTION
    with_it = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    without_it = F.cross_entropy(ablated.flatten(0, 1), targets.flatten())
    return (without_it - with_it) / math.log(2)
    ### END SOLUTION


# %% [markdown]
# ### In a model that was trained
#
# `reader` learned to continue Python. Nobody told it to look back. Below, your `induction_score` for all its heads; then the lens on a line of Python; then what the whole model misses without each head, on text and on random tokens said twice. Before you run the last cell, write down which head you expect to be missed most, and on which of the two texts. (These cells are not graded.)

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
print(f"{'read':>10} | best guess for what comes next, by depth")
for i, token in enumerate(line[0].tolist()):
    best = [repr(tokenizer.decode([int(row[0, i].argmax())])) for row in guesses]
    print(f"{tokenizer.decode([token])!r:>10} | {' '.join(f'{guess:>10}' for guess in best)}")

# %%
text = torch.tensor(page[: 6 * 200]).view(6, 200)


@torch.no_grad()
def lost(tokens, layer, head, start):
    """Bits per token that are lost without a head, on what comes after place `start`."""
    whole = reader(tokens)
    with probes.without_heads(reader, [(layer, head)]):
        ablated = reader(tokens)
    after = slice(start, -1)
    return bits_lost(whole[:, after], ablated[:, after], tokens[:, start + 1 :])


print(f"{'':16} Python   said twice   (bits per token)")
for layer in range(reader.config.num_layers):
    for head in range(reader.config.num_heads):
        costs = lost(text, layer, head, 0), lost(passages, layer, head, 40)
        print(f"layer {layer}, head {head}: {costs[0]:8.3f} {costs[1]:12.3f}")

# %% [markdown]
# {{deeper}}

# %% [markdown]
# {{exercise language_model}}
#
# Now the whole thing: your own transformer, as one function of a configuration, weights and tokens. If you have worked through the chapters before, you have all its parts. `classroom mine` in a terminal collects them from your notebooks into the package `mine`; open its files and copy what you need into the cell below (the grader sees this notebook only, so an `import mine` will not do).
#
# The weights come as they lie in `model.safetensors`, by name, and `config` is the dict `config.json` has under `config`. Not all of the library's models are asked for, but this family:
#
# | in `config` | what it says |
# |---|---|
# | `d_model`, `num_layers`, `num_heads` | sizes; `d_head = d_model // num_heads` |
# | `num_kv_heads` | key and value heads, `None` for `num_heads`; query head `h` uses key head `h * num_kv_heads // num_heads` |
# | `positions` | `"learned"`: add row `p` of `embedding.positions.table.weight` to the token at place `p`; `"rotary"`: turn queries and keys, features `2i` and `2i + 1` of a head by the angle `p / rotary_base ** (2i / d_head)` |
# | `norm`, `norm_eps` | `"layer"`: LayerNorm with `gain` and `bias`; `"rms"`: RMSNorm with `gain` |
# | `activation` | `"gelu"`: `down(gelu(up(x)))`; `"swiglu"`: `down(silu(gate(x)) * up(x))` |
#
# All are pre-norm with a final norm, and the table of tokens is tied: it gives the logits, too. Block `i` has `blocks.i.attention_norm`, `blocks.i.attention.query`, `.key`, `.value`, `.output`, `blocks.i.feed_forward_norm`, `blocks.i.feed_forward.up`, `.down` and perhaps `.gate`; a linear map has a `.weight` and, where the weights hold one, a `.bias`. The rest is `embedding.tokens.weight` and `final_norm`. The presets `tiny` and `llama` of `groundup train` make such models.
#
# Write two functions. `step` reads *the next* tokens: `cache` is `None` at first, then what your last `step` returned. It may be of any form, made of tensors, lists, tuples, dicts and numbers. `language_model` reads all tokens at once. However a text is cut into steps, its logits must stay the same.
#
# *Before you code:* five tokens have been read, two more come. What shape has the mask? At which places do the two stand? Are the keys in your cache turned already?
#
# <details><summary>Answers, after you have tried</summary>
#
# `(2, 7)`. At 5 and 6. That is for you to choose: keys may be kept turned, once and for all, since a key's place never changes, or unturned and be turned at each step. Not both.
# </details>
#
# <details><summary>Hint: one function is enough</summary>
#
# `language_model(config, weights, tokens)` is the first half of `step(config, weights, tokens, None)`.
# </details>
# <details><summary>Hint: the mask of a step</summary>
#
# Token `i` of the new ones stands at place `start + i` and sees every key up to that place: `torch.ones(q_len, k_len, dtype=torch.bool).tril(k_len - q_len)`.
# </details>
# <details><summary>Hint: where to look when logits differ</summary>
#
# The checks begin with learned positions, LayerNorm and GELU, and go on to rotary positions, RMSNorm and a gate. Which of them fail tells where the mistake is. A step that fails while the whole is right has its places, its mask or its cache wrong.
# </details>


# %% exercise="language_model"
def step(config: dict, weights: dict[str, torch.Tensor], tokens: torch.Tensor, cache=None):
    """Read the next tokens: return their logits and what to remember.

    Shapes: tokens (batch, length), those that came since the last step; returns logits (batch,
    length, vocab_size), and a cache of any form.
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
    """Give the logits of the token after each position.

    Shapes: tokens (batch, length); returns (batch, length, vocab_size).
    """
    ### BEGIN SOLUTION
    return step(config, weights, tokens)[0]
    ### END SOLUTION


# %% [markdown]
# Your transformer with trained weights: it writes Python, one token per step, with your cache. (This cell is not graded.)

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
# Train a model of your own on `python-reference`, the reference manual of Python as every Python carries it. The last tenth of the text is held out. The budget:
#
# | | at most |
# |---|---|
# | parameters | 1 000 000, a tied table counted once |
# | `model.safetensors` | 4 MiB, float32 |
# | `config.json` | 256 KiB |
# | tokens | 2 048 in the vocabulary, 512 read at once |
# | layers, `d_model`, `d_ff` | 16, 512, 2 048 |
#
# Any of the library's tokenizers and decoder-only models will do. In a terminal, in this folder:
#
# ```
# groundup train --data python-reference --out capstone
# ```
#
# is a beginning that takes a few minutes of one core. `groundup train --help` lists what can be chosen: the tokenizer and its size, the preset, steps, batch size, context, optimizer, learning rate and schedule. `--library mine` lets your own parts compute. One run that changes two things tells you nothing about either, and a run of a tenth of the steps tells which of two choices learns faster. When you are content, copy `config.json` and `model.safetensors` from `capstone` to the folder of this notebook.
#
# **How it is graded.** Not by what you report: the two files are read, never run, outside your notebook. Sizes are checked first. Then bits per byte are measured on passages of the held-out part which are drawn when it is graded, and compared with a 5-gram model with Kneser-Ney smoothing on the same passages. It must be beaten; more points wait at 99 % and at 98 % of its bits. Learning from the held-out part would be noticed by nobody but you, and would make the number worthless. The honest way is to look at it once.
#
# Last, report what you have: `capstone()` returns the number of parameters, and the bits per byte on `passage`, the first 3000 characters of the held-out part, as the cell below measures them.
#
# *Before you code:* your model predicts bytes, a friend's predicts pieces of four bytes. Whose loss per token is larger? Whose bits per byte? Which of the two may be compared?
#
# <details><summary>Answers, after you have tried</summary>
#
# Your friend's loss per token is probably larger, because a piece says as much as four bytes. Which of you needs more bits per byte, only measuring tells, and that is the number which may be compared.
# </details>
#
# <details><summary>Hint: what helps most</summary>
#
# The text is short: about 336 000 characters to learn from. What a model sees in 128 tokens depends on the tokenizer. How many passes over the text does your run make, and is the loss on the held-out part still falling?
# </details>
# <details><summary>Hint: too many parameters?</summary>
#
# Where do they go? A table of 1 024 rows of 128 is 131 072 parameters, twice as many if it is not tied. `groundup.looking.accounting.parameters(config)` counts by part.
# </details>

# %%
from groundup.data.batches import covering_windows
from groundup.data.texts import python_reference

passage = python_reference().validation[:3000]


@torch.no_grad()
def bits_per_byte(model, tokenizer, text):
    """Measure how many bits a model needs per byte of a text, but for its first token."""
    ids = tokenizer.encode(text)
    nats = 0.0
    for batch in covering_windows(torch.tensor(ids), batch_size=32, length=model.config.max_len):
        logits = model(batch.inputs["tokens"]).flatten(0, 1)
        nats += float(F.cross_entropy(logits, batch.targets.flatten(), reduction="sum"))
    num_bytes = len(text.encode()) - len(tokenizer.decode(ids[:1]).encode())
    return nats / math.log(2) / num_bytes


def my_model():
    """Load what lies beside this notebook."""
    from groundup.files.checkpoint import load

    found = load(Path.cwd())
    return found.model, found.tokenizers["text"]


if Path("model.safetensors").exists():
    my_transformer, my_tokenizer = my_model()
    print("parameters", sum(p.numel() for p in my_transformer.parameters()))
    print("bits per byte", round(bits_per_byte(my_transformer, my_tokenizer, passage), 4))
else:
    print("no model.safetensors beside this notebook yet")


# %% exercise="capstone"
def capstone() -> dict[str, float]:
    """Report about the model that is handed in: `parameters`, and `bits_per_byte` on `passage`."""
    ### BEGIN SOLUTION
    return {"parameters": 660608, "bits_per_byte": 1.8921}
    ### END SOLUTION


# %% [markdown]
# {{exercise ablation}}
#
# One head of your model is missed more than any other. Which? It is easy to have known it all along, so you write it down first, and seal it:
#
# 1. Look at your model with whatever you like, except for taking heads away: its maps, its induction scores.
# 2. Predict: which head is missed most on `passage`, and how many bits per byte does its removal cost? The cost is an interval, not wider than 0.5 bits per byte. A good interval is one that you would bet nine to one on.
# 3. `seal` writes the prediction into `prediction.json`, with the SHA-256 of your weights: it holds for these weights and no others. Train on, and you predict anew.
# 4. Then measure. Being wrong costs one point of ten. Measuring wrongly costs more.
#
# Write `most_missed`. It gets `bits_without(heads)`, a function that takes a list of `(layer, head)` pairs and returns the bits per byte of the model without them; for an empty list, of the whole model. It returns the layer and the head that is missed most, and what its removal costs. Heads are taken away one at a time. Some models are better off without a head: then its cost is negative.
#
# Then run the cell below the check with your own model, and report in `ablation` what you measured: `cost`, in bits per byte on `passage`, of the head that you *predicted*.
#
# *Before you code:* two heads do the same job, and either can do it alone. What does each cost? What do both cost together?
#
# <details><summary>Answers, after you have tried</summary>
#
# Each alone costs next to nothing, because the other one does the job. Both together cost all that the job is worth.
# </details>
#
# <details><summary>Hint: how often is the model measured?</summary>
#
# Once whole, and once for each head.
# </details>


# %%
def seal(layer, head, low, high):
    """Write down, before measuring, which head is missed most and between what its cost lies."""
    digest = hashlib.sha256(Path("model.safetensors").read_bytes()).hexdigest()
    prediction = {"weights": digest, "layer": layer, "head": head, "low": low, "high": high}
    Path("prediction.json").write_text(json.dumps(prediction, indent=2) + "\n", encoding="utf-8")


# seal(layer=..., head=..., low=..., high=...)


# %% exercise="ablation"
def most_missed(bits_without, num_layers: int, num_heads: int) -> tuple[int, int, float]:
    """Find the head that is missed most: return its layer, its number and what it costs."""
    ### BEGIN SOLUTION
    whole = bits_without([])
    heads = [(layer, head) for layer in range(num_layers) for head in range(num_heads)]
    costs = {(layer, head): bits_without([(layer, head)]) - whole for layer, head in heads}
    layer, head = max(costs, key=costs.get)
    return layer, head, costs[layer, head]
    ### END SOLUTION


def ablation() -> dict[str, float]:
    """Report the `cost` of removing the predicted head, in bits per byte on `passage`."""
    ### BEGIN SOLUTION
    return {"cost": 0.1612}
    ### END SOLUTION


# %% [markdown]
# ## Look at what you built
#
# Your model, measured and taken apart by your own functions. Then it writes. (These cells are not graded.)

# %%
if Path("model.safetensors").exists():

    def bits_without(heads):
        with probes.without_heads(my_transformer, heads):
            return bits_per_byte(my_transformer, my_tokenizer, passage)

    layers, heads = my_transformer.config.num_layers, my_transformer.config.num_heads
    layer, head, cost = most_missed(bits_without, layers, heads)
    print(f"missed most: layer {layer}, head {head}, {cost:.4f} bits per byte")
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
# 1. The weight says from where values are taken, not what they contribute: the value may be small, the output projection may ignore it, or later layers may cancel it.
# 2. An intervention: ablate the head, or replace the value at A by that of another run (activation patching), and compare the prediction, with a baseline such as another head or position.
# 3. A result named in advance that would refute it, such as an unchanged loss or logit; or the reservation that other heads may take over, so that no change in one ablation is not final.
#
# **Often seen, and wrong:** Another observation (more maps, more heads) offered as the experiment; a probe offered as proof of use, although it shows only that the information is present; no result that could refute.
