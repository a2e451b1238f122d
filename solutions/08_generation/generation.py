# %% [markdown]
# # Generation and inference
#
# This notebook goes with chapter 8 of *Attention from the Ground Up*. A trained model gives one thing: scores for the next token. Here you make text of them. You choose tokens by chance and by plan, you keep keys and values so that no token is read twice, count what that takes, read several prompts in one batch, and let a small model do the guessing for a large one. The mistakes of this chapter rarely crash. They write text that is a little worse, or fluent for six tokens and junk from the seventh on.
#
# **How it works.** Write your code where it says `YOUR CODE HERE`, run the cell, then run the check under it. A check tells you what it saw, what it expected, and, if it recognises the mistake, which one you made. It draws new numbers for every test, so there is no answer to hard-code. Points count test by test: half an exercise earns half its points. When your work is graded, the same checks may run with other numbers. Checks mostly pass float64 tensors: keep the dtype of what you are given, and let gradients flow back through it, since what you write is going to be trained.
#
# **Conventions.** Queries, keys and values of several heads have the shape `(batch, heads, length, d_head)`. Positions are counted from 0. A mask is boolean and True where attention is allowed. `bos` is the token that begins a text, `eos` the one that ends it. What is random is handed in as numbers `u` from 0 to below 1, so that the same numbers give the same text.
#
# **Given.** The first cell defines `turn`, which gives queries and keys their positions, as in chapter 5. The second one loads a model that was trained on the source of Python's standard library; symptoms are shown on it.

# %%
import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

from classroom import check


def turn(x, positions):
    """Turn neighbouring features of `x` (..., length, d_head) by angles that grow with `positions`.

    Shapes: positions (length,), whole numbers; returns the shape of x.
    """
    speed = 10_000.0 ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1])
    angle = positions[:, None] * speed
    ahead, aside = x[..., 0::2], x[..., 1::2]
    pairs = (ahead * angle.cos() - aside * angle.sin(), ahead * angle.sin() + aside * angle.cos())
    return torch.stack(pairs, dim=-1).flatten(-2).to(x.dtype)


# %%
from groundup.pretrained import load

reader, tokenizer = load("reader")


def encode(text):
    """Return the tokens of a text, (1, length)."""
    return torch.tensor([tokenizer.encode(text)])


@torch.no_grad()
def logits_after(text):
    """Return the model's logits of the token after a text, (vocab_size,)."""
    return reader(encode(text))[0, -1]


for text in ("def __init__(self,", "    return"):
    best = logits_after(text).softmax(dim=-1).topk(6)
    says = [
        f"{tokenizer.decode([token])!r} {p:.1%}"
        for p, token in zip(best.values, best.indices.tolist(), strict=True)
    ]
    print(f"{text!r} goes on with", ", ".join(says))

# %% [markdown]
# {{exercise next_token}}
#
# The logits say how probable each token is. Always taking the best one gives text that repeats itself; drawing from all of them lets a thousand improbable tokens have their turn. In between stand four small functions, each from logits to logits or to tokens. `logits` is `(batch, vocab_size)`, and every row is a text of its own.
#
# - `with_temperature` divides the logits by the temperature. Below 1 the differences grow, above 1 they shrink.
# - `top_k` keeps the `k` highest logits of each row and makes the others `-inf`. If tokens tie for the last place, those with the lower ids stay. A `k` beyond the vocabulary keeps everything.
# - `top_p` keeps the fewest most probable tokens that *together reach* `p`, so the one that crosses the line is the last to stay (Holtzman et al. 2020, [section 3.1](https://arxiv.org/abs/1904.09751)). The others become `-inf`. With `p` = 1 everything stays, the most improbable token too. What ties does not matter here.
# - `draw` gets one number `u` per row. Lay the probabilities side by side from 0 to 1, in the order of the ids. The token in whose share `u` falls is drawn: the first one at which the sum of the shares exceeds `u`.
#
# `next_token` does all of it: temperature, then `top_k`, then `top_p` on what `top_k` left, then the draw. A cut that is None is left out.
#
# *Before you code:* which of `with_temperature`, `top_k` and `top_p` can change which token is the most probable? What does `next_token` return with `k` = 1, whatever `u` is? And what is left of a batch if one cut is made for all rows together, and one row's logits are all higher than the others'?
#
# <details><summary>Answers, after you have tried</summary>
#
# None of them: an order is kept, and the best token always stays. With `k` = 1 the most probable token comes out, whatever `u` is. One cut for all rows leaves nothing of the rows with the lower logits, and a softmax of nothing is NaN.
# </details>
#
# <details><summary>Hint: exactly k, with ties</summary>
#
# `logits.argsort(dim=-1, descending=True, stable=True)` orders equals by their ids. What to do with the places `k` and later? `scatter` writes into places that an index tensor names.
# </details>
# <details><summary>Hint: the token that crosses</summary>
#
# A token stays if those *before* it, in the order of probability, have not reached `p` yet. A sum up to and without a token is `cumsum` minus the token itself.
# </details>
# <details><summary>Hint: p = 1</summary>
#
# A sum of probabilities is 1 only up to rounding, and reaches 1 before the last ones are in it. Say what holds for `p` = 1 by itself.
# </details>
# <details><summary>Hint: in which share?</summary>
#
# Count the shares that end at `u` or before it: that many tokens come before the one that is drawn. Rounded sums may end a little below 1, and a `u` behind the last of them draws a token that there is not. Divided by the last sum they end at 1 exactly.
# </details>


# %% exercise="next_token"
def with_temperature(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Sharpen (below 1) or flatten (above 1) each row. Shapes: logits (batch, vocab_size)."""
    ### BEGIN SOLUTION
    return logits / temperature
    ### END SOLUTION


def top_k(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Keep the k most probable tokens of each row, the lower ids where they tie."""
    ### BEGIN SOLUTION
    order = torch.argsort(logits, dim=-1, descending=True, stable=True)
    return logits.scatter(-1, order[:, k:], -math.inf)
    ### END SOLUTION


def top_p(logits: torch.Tensor, p: float) -> torch.Tensor:
    """Keep the fewest most probable tokens of each row that together reach p."""
    ### BEGIN SOLUTION
    if p >= 1:
        return logits
    share, order = logits.softmax(dim=-1).sort(dim=-1, descending=True)
    is_late = share.cumsum(dim=-1) - share >= p
    is_cut = torch.zeros_like(is_late).scatter(-1, order, is_late)
    return logits.masked_fill(is_cut, -math.inf)
    ### END SOLUTION


def draw(logits: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Draw one token per row. Shapes: u (batch,), from 0 to below 1; returns tokens (batch,)."""
    ### BEGIN SOLUTION
    edges = logits.softmax(dim=-1).cumsum(dim=-1)
    edges = edges / edges[:, -1:]  # the last one is 1 exactly, and above every u
    return (edges <= u[:, None]).sum(dim=-1)
    ### END SOLUTION


def next_token(
    logits: torch.Tensor,
    u: torch.Tensor,
    temperature: float = 1.0,
    k: int | None = None,
    p: float | None = None,
) -> torch.Tensor:
    """Draw from the tempered logits, cut to k tokens and to the share p. Returns (batch,)."""
    ### BEGIN SOLUTION
    logits = with_temperature(logits, temperature)
    if k is not None:
        logits = top_k(logits, k)
    if p is not None:
        logits = top_p(logits, p)
    return draw(logits, u)
    ### END SOLUTION


# %% [markdown]
# {{exercise cached_attention}}
#
# To write token 101, a model needs the keys and values of the 100 before it, and those have not changed since they were read. So they are kept, in a **cache**, and each new token brings one key and one value of its own. A prompt is read at once, which is called **prefill**; a long one may be read in chunks; then tokens come one by one. However the text is cut up, the numbers must be *the same* as without a cache. That is what makes a cache easy to test, and what most broken ones fail.
#
# `cached_attention` gets the queries, keys and values of the new tokens, not turned yet, and a cache. It
#
# 1. turns the new queries and keys by their *true* positions: the first new token stands behind all that are in the cache;
# 2. puts the new keys and values behind the old ones;
# 3. lets each new token attend to everything before it and to itself;
# 4. returns what was found, and the cache with the new tokens in it.
#
# What a cache looks like is up to you: a tensor, or a tuple, list or dict of tensors and numbers (no class of your own: when your work is graded, the cache is handed from one process to another). The check hands back what you returned; the first time it is None. Leave the cache that you were given as it is, because somebody may go on from it a second time, with other words.
#
# *Before you code:* four tokens are in the cache and three come. What is the shape of the mask, and which of its entries are False? Which of them would `is_causal=True` of PyTorch hide?
#
# <details><summary>Answers, after you have tried</summary>
#
# `(3, 7)`, and three entries are False: the first new token does not see the two behind it, the second not the last. `is_causal=True` lines the triangle up with the first key, as if the new tokens stood at the beginning, and would hide 15 entries.
# </details>
#
# <details><summary>Hint: the mask of a later chunk</summary>
#
# New token `i` sees the `past` old ones and the new ones up to `i`: a key at place `j` is allowed if `j <= past + i`. `torch.ones(new, past + new).tril(past)` is 1 there.
# </details>
# <details><summary>Hint: turned once</summary>
#
# A key's position never changes. So keep it turned, or keep it unturned and turn all keys each time from position 0. Not both.
# </details>
# <details><summary>Hint: as it was</summary>
#
# `torch.cat` makes a new tensor. `append`, `+=` on a list, and writing into a tensor change the old one.
# </details>


# %% exercise="cached_attention"
def cached_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cache=None):
    """Let new tokens attend to those in the cache and, causally, to each other.

    Shapes: query and key (batch, heads, new, d_head), value (batch, heads, new, d_value), none of
    them turned; cache is None or what an earlier call returned; returns (found, cache), found
    (batch, heads, new, d_value).
    """
    ### BEGIN SOLUTION
    new = query.shape[2]
    past = 0 if cache is None else cache["keys"].shape[2]
    places = torch.arange(past, past + new)
    keys, values = turn(key, places), value
    if cache is not None:
        keys = torch.cat((cache["keys"], keys), dim=2)
        values = torch.cat((cache["values"], values), dim=2)
    allowed = torch.ones(new, past + new, dtype=torch.bool).tril(past)
    found = F.scaled_dot_product_attention(turn(query, places), keys, values, attn_mask=allowed)
    return found, {"keys": keys, "values": values}
    ### END SOLUTION


# %% [markdown]
# {{exercise mended_generate}}
#
# Below is a loop that writes, with a cache. `read(tokens, positions, cache)` is a model: it gets new tokens `(batch, new)`, the position of each `(batch, new)`, and a cache; it returns the logits after the last one, `(batch, vocab_size)`, and a new cache. The model itself is right. The loop has two bugs, both from published code, where positions were written down for the example at hand ([nlp-tutorial#73](https://github.com/graykode/nlp-tutorial/issues/73), [#22](https://github.com/graykode/nlp-tutorial/issues/22)), and where the offset grew too fast ([tiny-llm#46](https://github.com/skyzh/tiny-llm/pull/46)). Look at what it writes.


# %%
@torch.no_grad()
def read(tokens, positions, cache=None):
    """Run the reader on new tokens; its cache is a list of keys and values, one pair per layer."""
    x, kept = reader.embedding(tokens), []
    for layer, part in enumerate(reader.blocks):
        attention, normed = part.attention, part.attention_norm(x)
        query, key, value = (
            project(normed).unflatten(-1, (reader.config.num_heads, -1)).transpose(1, 2)
            for project in (attention.query, attention.key, attention.value)
        )
        query, key = turn(query, positions[0]), turn(key, positions[0])
        if cache is not None:
            key = torch.cat((cache[layer][0], key), dim=2)
            value = torch.cat((cache[layer][1], value), dim=2)
        kept.append((key, value))
        new, length = query.shape[2], key.shape[2]
        allowed = torch.ones(new, length, dtype=torch.bool).tril(length - new)
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed)
        x = x + attention.output(found.transpose(1, 2).flatten(2))
        x = x + part.feed_forward(part.feed_forward_norm(x))
    return reader.unembedding(reader.final_norm(x))[:, -1], kept


def published_generate(read, prompt, num_new):
    places = torch.tensor([[0, 1, 2, 3, 4, 5]])
    cache, offset, tokens, written = None, 0, prompt, []
    while len(written) < num_new:
        positions = places[:, : tokens.shape[1]] + offset
        logits, cache = read(tokens, positions.expand_as(tokens), cache)
        offset += prompt.shape[1]
        written.append(logits.argmax(dim=-1))
        tokens = written[-1][:, None]
    return torch.stack(written, dim=1)


def without_cache(prompt, num_new):
    text = prompt
    for _ in range(num_new):
        with torch.no_grad():
            newest = reader(text)[:, -1].argmax(dim=-1)
        text = torch.cat((text, newest[:, None]), dim=1)
    return text[:, prompt.shape[1] :]


def show_symptoms(generate):
    for text in ("for name, value in", "import os\nimport", "class TestCase(unittest.TestCase):\n"):
        prompt = encode(text)
        print(f"a prompt of {prompt.shape[1]} tokens: {text!r}")
        print(f"  without a cache: {tokenizer.decode(without_cache(prompt, 24)[0].tolist())!r}")
        try:
            written = tokenizer.decode(generate(read, prompt, 24)[0].tolist())
            print(f"  by this loop:    {written!r}")
        except RuntimeError as error:
            print(f"  by this loop:    {str(error).splitlines()[0]}")


show_symptoms(published_generate)

# %% [markdown]
# Write `mended_generate`, of the same form, then run `show_symptoms(mended_generate)` in a cell of your own. The most likely tokens are written, `num_new` of them, and every token is read once.
#
# *Before you code:* the prompt has 6 tokens. Which position does the first new token stand at, which one the second, and which ones does this loop give them? Why is the first new token always right?
#
# <details><summary>Answers, after you have tried</summary>
#
# At 6 and at 7; this loop gives them 6 and 12. The first new token is chosen from the logits of the prompt alone, whose positions are right.
# </details>
#
# <details><summary>Hint: how far are we?</summary>
#
# The offset is the number of tokens that were read. How many are read in each round?
# </details>


# %% exercise="mended_generate"
def mended_generate(read, prompt: torch.Tensor, num_new: int) -> torch.Tensor:
    """Write the most likely tokens, with a cache. Shapes: prompt (batch, length); returns (batch, num_new).

    read(tokens, positions, cache): (batch, new) each; returns logits (batch, vocab_size), a cache.
    """
    ### BEGIN SOLUTION
    cache, start, tokens, written = None, 0, prompt, []
    for _ in range(num_new):
        end = start + tokens.shape[1]
        positions = torch.arange(start, end).expand_as(tokens)
        logits, cache = read(tokens, positions, cache)
        tokens = logits.argmax(dim=-1, keepdim=True)
        written.append(tokens)
        start = end
    return torch.cat(written, dim=1)
    ### END SOLUTION


# %% [markdown]
# {{deeper}}

# %% [markdown]
# {{exercise cache_bytes}}
#
# A cache trades time for memory, and the memory is what limits how many texts a machine can write at once. Two things make it smaller. Heads that *share* keys and values (grouped-query attention, chapter 3) need them once per group. And a **sliding window**, where each token attends to the newest `window` tokens, its own among them, lets the cache forget.
#
# **Count it.** `cache_bytes` returns the bytes of the keys and values that all layers keep of `batch_size` texts of `length` tokens. A number takes `bits` bits; eight bits are a byte. With a window no more than `window` tokens are kept of each text, and fewer while it is shorter.
#
# **Forget.** `sliding_cache` is one layer's cache as a ring of `window` places: the token at position `t` is written into place `t % window`, over the one that stood there (Jiang et al. 2023, [section 2](https://arxiv.org/abs/2310.06825), call it a rolling buffer). Nothing is moved, and the order of places does not matter to attention, as long as it is known who stands where: `positions` says it, with -1 for a place that is still empty. Several tokens may come at once, more than there are places: then the newest of them stay. Return new tensors, and leave the old ones as they are.
#
# (The library's own cache keeps one token less than the window: it hands the newest key on without storing it first.)
#
# *Before you code:* 32 layers, 32 heads of width 128, 16 bits per number, one text of 8192 tokens: how many gibibytes? And with 8 heads for keys and values instead of 32?
#
# <details><summary>Answers, after you have tried</summary>
#
# 4 GiB. With 8 heads for keys and values, 1 GiB.
# </details>
#
# <details><summary>Hint: factors</summary>
#
# Keys *and* values. Of the two numbers of heads only one is about what is stored.
# </details>
# <details><summary>Hint: around the ring</summary>
#
# The new tokens stand at `torch.arange(start, start + new)`. Which of them are the last `window`? Their places are those positions modulo `window`, and no two of them are equal then.
# </details>


# %% exercise="cache_bytes"
def cache_bytes(
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    d_head: int,
    length: int,
    batch_size: int,
    bits: int,
    window: int | None = None,
) -> int:
    """Count the bytes of the keys and values of all layers. num_heads counts queries' heads."""
    ### BEGIN SOLUTION
    kept = length if window is None else min(length, window)
    numbers = 2 * num_layers * num_kv_heads * d_head * kept * batch_size
    return numbers * bits // 8
    ### END SOLUTION


def sliding_cache(
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    start: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Write new tokens into a ring, over the oldest. The first of them stands at position start.

    Shapes: keys and values (batch, kv_heads, window, d_head), positions (window,), the position of
    the token in each place, -1 where there is none; key and value (batch, kv_heads, new, d_head);
    returns keys, values and positions, of the shapes that came in.
    """
    ### BEGIN SOLUTION
    window, new = keys.shape[2], key.shape[2]
    kept = min(new, window)
    fresh = torch.arange(start + new - kept, start + new)
    places = fresh % window
    keys = keys.index_copy(2, places, key[:, :, new - kept :])
    values = values.index_copy(2, places, value[:, :, new - kept :])
    return keys, values, positions.index_copy(0, places, fresh)
    ### END SOLUTION


# %% [markdown]
# {{exercise left_padded}}
#
# A machine that reads one prompt is mostly waiting for its memory; it could read twenty in nearly the same time. But prompts have different lengths, and a tensor has no ragged edge. When you trained, short sequences were filled up on the right. For writing, the *left* is better: then every prompt ends in the last column, the logits of all of them are in one place, and the next token of each goes into the same new column.
#
# Nothing about a prompt may change because of its neighbours. So two things have to be said to the model besides the tokens. `left_padded` returns
#
# - `tokens` `(batch, length)`, as long as the longest prompt, with `pad` in front of the shorter ones;
# - `positions` `(batch, length)`: 0 for a prompt's first token, wherever it stands, then 1, 2, 3 …; padding gets 0, too, because a position below 0 is in no table;
# - `mask` `(batch, length, length)`, rows are those who look: a token may see itself and the tokens of its prompt before it. Padding is seen by nobody, but for one thing: a place with padding sees *itself*. Its output is thrown away, yet a row without True would make the softmax 0/0, and a NaN does not stay where it is.
#
# `pad` is only a number. It may also occur as a token *inside* a prompt, as where a tokenizer has no token of its own for padding and `eos` is taken for it.
#
# Then `next_logits` asks `model(tokens, positions, mask)`, which returns `(batch, length, vocab_size)`, once, and returns the logits of the token after each prompt, `(batch, vocab_size)`.
#
# *Before you code:* a layer multiplies the value of a padding place by the weight 0. If that value is NaN, what is the product?
#
# <details><summary>Answers, after you have tried</summary>
#
# NaN. A weight of 0 does not remove a NaN.
# </details>
#
# <details><summary>Hint: what is padding?</summary>
#
# Column `i` of a prompt of `n` tokens is padding if `i < length - n`. That needs lengths, not tokens.
# </details>
# <details><summary>Hint: the mask from three others</summary>
#
# Causal, and the key is a real token; or it is the diagonal. `is_real[:, None, :]` is `(batch, 1, length)`.
# </details>


# %% exercise="left_padded"
def left_padded(
    prompts: list[torch.Tensor], pad: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Put prompts of different lengths into one batch, flush right.

    Shapes: each prompt (its length,), at least one token; returns tokens (batch, length),
    positions (batch, length) and a boolean mask (batch, length, length).
    """
    ### BEGIN SOLUTION
    length = max(len(prompt) for prompt in prompts)
    missing = torch.tensor([length - len(prompt) for prompt in prompts])[:, None]
    rows = [F.pad(prompt, (length - len(prompt), 0), value=pad) for prompt in prompts]
    places = torch.arange(length)
    is_real = places >= missing  # (batch, length)
    positions = (places - missing).clamp(min=0)
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    mask = (causal & is_real[:, None, :]) | torch.eye(length, dtype=torch.bool)
    return torch.stack(rows), positions, mask
    ### END SOLUTION


def next_logits(model, prompts: list[torch.Tensor], pad: int) -> torch.Tensor:
    """Return the logits of the token after each prompt. Shapes: returns (batch, vocab_size)."""
    ### BEGIN SOLUTION
    tokens, positions, mask = left_padded(prompts, pad)
    return model(tokens, positions, mask)[:, -1]
    ### END SOLUTION


# %% [markdown]
# {{exercise check_cache}}
#
# Caches are broken often, and the symptom is text that is a little worse, or junk after a while ([x-transformers#219](https://github.com/lucidrains/x-transformers/issues/219) shows both kinds of text side by side). Chapter 6 had a test that cut a prompt in two. Two pieces are not enough: some bugs need a third, some a long text, some a piece of more than one token behind the first.
#
# Write the test for a whole cache. `check_cache` gets `step(tokens, cache)`. `tokens` is `(new,)`, at least one, numbers from 0 to 10; `cache` is None at the beginning of a text, later what the call before returned. It returns `(logits, cache)`, with logits `(new, 11)`: those of *all* new tokens. A call with the whole text and None uses no cache, so it is right by definition. The test raises `AssertionError` if anything else gives other logits, anywhere.
#
# And a cache is a value: two texts may go on from the same one, and must not notice each other.
#
# Ten steps are broken: positions that begin again with every chunk, one position for all tokens of a chunk, an offset that counts chunks, one that grows by the length of the prompt every time (in [tiny-llm#46](https://github.com/skyzh/tiny-llm/pull/46) it did so once too often), cached keys that are turned again, a mask in the wrong corner, tokens of a later chunk that see ahead, a cache that keeps only the chunk before, one of five tokens, and one that is hidden inside the model. Right ones must pass, and one of them computes in `float32`: differences below $10^{-5}$ are rounding, those above $10^{-3}$ are not.
#
# *Before you code:* for each of the ten, which is the shortest series of chunks in which it shows? Which one does not show in the logits of the last token of a chunk?
#
# <details><summary>Answers, after you have tried</summary>
#
# Seven show with two chunks, if these are long enough. The offset that grows by the prompt and the cache of one chunk need a third, and the hidden cache needs two continuations of one prompt. Tokens that see ahead do not show in the last token of a chunk: nothing is ahead of it.
# </details>
#
# <details><summary>Hint: several chunkings</summary>
#
# `text.split([3, 1, 4, 2])` cuts a text into chunks of these sizes. `torch.cat` puts logits together again.
# </details>
# <details><summary>Hint: the hidden cache</summary>
#
# Read a prompt. Go on from its cache with some tokens, then from the same cache with others.
# </details>


# %% exercise="check_cache"
def check_cache(step) -> None:
    """Raise AssertionError if reading in chunks gives other logits than reading at once.

    step(tokens, cache): tokens (new,); returns logits (new, 11) and a cache.
    """
    ### BEGIN SOLUTION
    text = torch.tensor([3, 1, 4, 5, 9, 2, 6, 10])
    expected, _ = step(text, None)
    for sizes in ([1] * 8, [3, 1, 4], [1, 2, 5]):
        cache, logits = None, []
        for chunk in text.split(sizes):
            seen, cache = step(chunk, cache)
            logits.append(seen)
        off = (torch.cat(logits) - expected).abs().max()
        assert off < 1e-4, f"chunks of {sizes} tokens: a logit moves by {off:.2g}"
    _, cache = step(text[:4], None)
    step(torch.tensor([7, 8]), cache)
    off = (step(text[4:], cache)[0] - expected[4:]).abs().max()
    assert off < 1e-4, f"after another continuation of one prompt, a logit moves by {off:.2g}"
    ### END SOLUTION


# %% [markdown]
# {{exercise speculative}}
#
# A large model takes as long for one token as for five, if it is given all five at once: then it is not computing that costs, but reading its weights. So let a small model *draft* some tokens, and let the large one, the *target*, say in one go what it thinks of each. Most of them are easy and accepted, and the text comes out with exactly the distribution that the target would have given it alone. Not about the same: the same (Leviathan et al. 2023, [section 2.3 and appendix A.1](https://arxiv.org/abs/2211.17192)).
#
# Say that token $x$ was drafted, with probability $q(x)$, and the target gives it $p(x)$.
#
# - It is accepted with probability $\min(1, p(x)/q(x))$: here, if the number `accept` that was drawn for it is *below* $p(x)/q(x)$.
# - The first one that is not accepted is replaced, and whatever was drafted behind it is forgotten. The replacement is drawn from what the target has *more* of than the draft: $\max(0, p - q)$, divided by its sum.
# - If all are accepted, one more token is drawn from the target's last row: it is there anyway.
#
# Drawing works as in `draw`: with the number `u`, the first token at which the sum of the shares exceeds `u`.
#
# *Before you code:* what happens if both models agree completely? Draft says 0.7 and 0.3 of two tokens, target 0.4 and 0.6. How often does token 0 come out?
#
# <details><summary>Answers, after you have tried</summary>
#
# Every draft is accepted, and one more token is drawn. Token 0 comes out with probability $0.7 \cdot 0.4/0.7 = 0.4$: as often as the target alone would draw it.
# </details>
#
# <details><summary>Hint: that last question</summary>
#
# Token 0 comes out only if it was drafted (0.7) and accepted (0.4/0.7). When it is rejected, all that is left to draw is token 1.
# </details>
# <details><summary>Hint: the rows</summary>
#
# Row `i` of `target` is about the place where `drafted[i]` stands. It has one row more than `draft`.
# </details>


# %% exercise="speculative"
def speculative(
    target: torch.Tensor,
    draft: torch.Tensor,
    drafted: torch.Tensor,
    accept: torch.Tensor,
    u: float,
) -> list[int]:
    """Return the tokens to write: those accepted, and one that is drawn.

    Shapes: target (num_drafted + 1, vocab_size) and draft (num_drafted, vocab_size),
    probabilities; drafted (num_drafted,), tokens; accept (num_drafted,), from 0 to below 1; u from
    0 to below 1 is for the one draw.
    """
    ### BEGIN SOLUTION
    tokens, left = [], target[-1]
    for p, q, token, chance in zip(target, draft, drafted.tolist(), accept, strict=False):
        if chance >= p[token] / q[token]:
            left = (p - q).clamp(min=0)
            break
        tokens.append(token)
    edges = left.cumsum(dim=0)
    return [*tokens, int((edges / edges[-1] <= u).sum())]
    ### END SOLUTION


# %% [markdown]
# {{exercise beam_search}}
#
# Taking the most likely token each time need not give the most likely text: a good word may lead into a bad sentence. **Beam search** keeps several beginnings alive, and if it keeps all of them it finds the best text there is.
#
# You get `next_log_probs`, a function of tokens `(rows, length)` that begin with `bos`. It returns `(rows, vocab_size)`: the log-probabilities of the token after each row. The probability of an answer is a product, so its logarithm is a sum. Do this, at most `max_len` times:
#
# 1. Extend every beginning that is alive by every token. (The first time that is only the empty one.)
# 2. Of *all* these candidates together, keep the `num_beams` with the highest sums.
# 3. Those of them that end with `eos` are finished and set aside; they are not extended any more. The others are alive.
#
# Stop early if none is alive. Those still alive at the end count as answers too. The **score** of an answer is its sum divided by `length ** alpha`, where `length` counts what was written: with `eos`, without `bos`. Return the answer with the best score, as a list of tokens without `bos`, and the score.
#
# Why divide? Every token costs something, so the sum prefers short answers. With `alpha` 0 nothing is divided, with 1 it is the mean per token. (Others divide by other powers; Wu et al. 2016, [section 7](https://arxiv.org/abs/1609.08144), take `((5 + length) / 6) ** alpha`, and so does this course's library.)
#
# *Before you code:* what does the search do with one beam? How many candidates are there in the second round, with 2 beams and 5 tokens? Why does it not matter in step 2 whether scores or sums are compared?
#
# <details><summary>Answers, after you have tried</summary>
#
# It takes the most likely token each time. Ten, if neither beam has ended. All candidates of a round are equally long, so dividing by a power of the length does not change their order.
# </details>
#
# <details><summary>Hint: what to keep of a candidate</summary>
#
# Its tokens and its sum. A list of pairs and `sorted(..., key=..., reverse=True)` will do.
# </details>
# <details><summary>Hint: one call for all beginnings</summary>
#
# All beginnings that are alive have the same length, so they fit into one tensor: one row each, `bos` in front.
# </details>


# %% exercise="beam_search"
def beam_search(
    next_log_probs, bos: int, eos: int, num_beams: int, max_len: int, alpha: float = 0.0
) -> tuple[list[int], float]:
    """Return the best answer that was found, and its score.

    next_log_probs(tokens): tokens (rows, length), each row begins with bos; returns
    (rows, vocab_size).
    """
    ### BEGIN SOLUTION
    alive, finished = [([], 0.0)], []
    for _ in range(max_len):
        rows = torch.tensor([[bos, *tokens] for tokens, _ in alive])
        candidates = []
        for (tokens, total), gains in zip(alive, next_log_probs(rows).tolist(), strict=True):
            candidates += [(tokens + [token], total + gain) for token, gain in enumerate(gains)]
        candidates = sorted(candidates, key=lambda candidate: candidate[1], reverse=True)
        best = candidates[:num_beams]
        finished += [candidate for candidate in best if candidate[0][-1] == eos]
        alive = [candidate for candidate in best if candidate[0][-1] != eos]
        if not alive:
            break
    answers = [(tokens, total / len(tokens) ** alpha) for tokens, total in finished + alive]
    return max(answers, key=lambda answer: answer[1])
    ### END SOLUTION


# %% [markdown]
# ## Look at what you built
#
# First, your functions generate. `cached_attention` computes in each layer of the trained model, `next_token` chooses. If you have made your own library with `classroom mine`, the model that is called as a whole below is computed with your pieces from earlier chapters. (These cells are not graded.)

# %%
import sys

from groundup.own_parts.assembled import rebuilt

sys.path.append("../..")
try:
    import mine

    model = rebuilt(reader, mine)
    print(f"a model that computes by your own library, {len(mine.YOURS)} names in it are yours")
except ImportError:
    model = reader
    print("the course's own model: `classroom mine` makes a library of your notebooks")


@torch.no_grad()
def read_with_yours(tokens, caches):
    """Read new tokens; return the logits after each, and a cache for each layer."""
    x, kept = model.embedding(tokens), []
    for part, cache in zip(model.blocks, caches, strict=True):
        attention, normed = part.attention, part.attention_norm(x)
        query, key, value = (
            project(normed).unflatten(-1, (model.config.num_heads, -1)).transpose(1, 2)
            for project in (attention.query, attention.key, attention.value)
        )
        found, cache = cached_attention(query, key, value, cache)
        kept.append(cache)
        x = x + attention.output(found.transpose(1, 2).flatten(2))
        x = x + part.feed_forward(part.feed_forward_norm(x))
    return model.unembedding(model.final_norm(x)), kept


def write(text, num_new, generator, **settings):
    """Continue a text with your cache and your choice of tokens."""
    tokens, caches, written = encode(text), [None] * len(model.blocks), []
    for _ in range(num_new):
        logits, caches = read_with_yours(tokens, caches)
        tokens = next_token(logits[:, -1], torch.rand(1, generator=generator), **settings)[:, None]
        written.append(tokens.item())
    return text + tokenizer.decode(written)


start = "def read_lines(path):\n"
for settings in (
    {"k": 1},
    {"temperature": 0.7, "p": 0.95},
    {"temperature": 1.0},
    {"temperature": 1.6},
):
    print(f"--- {settings}")
    print(write(start, 80, torch.Generator().manual_seed(8), **settings))

# %% [markdown]
# With `k` = 1 it repeats itself; at a high temperature it falls apart. Next, what your other functions make of the same model: a batch of prompts with padding on the left, and beams, which look for the best line to go on with. Mind what the best sum is with many beams, and what the mean per token likes. Neither is good writing: the most probable text need not be the best one.

# %%
texts = ["import ", "for index, item in ", "if x is not None:\n        return "]
prompts = [encode(text)[0] for text in texts]
with torch.no_grad():
    together = next_logits(
        lambda tokens, positions, mask: model(tokens, mask[:, None], positions=positions),
        prompts,
        0,
    )
    alone = torch.stack([model(prompt[None])[0, -1] for prompt in prompts])
print(f"in a batch and alone, logits differ by {(together - alone).abs().max():.1e} at most\n")

prompt = encode("    for name in")
ends = [i for i in range(reader.config.vocab_size) if "\n" in tokenizer.decode([i])]


@torch.no_grad()
def log_probs_of_a_line(tokens):
    """Tokens begin with the last one of the prompt; whatever holds a line break is one end."""
    context = prompt[:, :-1].expand(len(tokens), -1)
    log_p = model(torch.cat((context, tokens), dim=1))[:, -1].log_softmax(dim=-1)
    log_p[:, ends[0]] = log_p[:, ends].logsumexp(dim=-1)
    return log_p.index_fill(1, torch.tensor(ends[1:]), -math.inf)


print(tokenizer.decode(prompt[0].tolist()))
for num_beams in (1, 4, 16):
    for alpha in (0.0, 1.0):
        line, score = beam_search(
            log_probs_of_a_line, prompt[0, -1].item(), ends[0], num_beams, 16, alpha
        )
        print(f"{num_beams:3} beams, alpha {alpha}: {score:6.2f}  {tokenizer.decode(line)!r}")

# %% [markdown]
# Then speculative decoding. The draft is as cheap as can be: which token followed which in a text that the model reads first. Where it has a guess, it is surprisingly often good enough. Left: how many tokens one call of the model gives, with 1 to 6 tokens drafted. Right: what a cache takes, by your count: a model of 32 layers and 32 heads of width 128, 16 bits per number, with keys and values for every head, for groups of four heads, for all heads together, and with a window of 4096 tokens.

# %%
import inspect
import textwrap

source = encode(inspect.getsource(textwrap))[0]
vocab_size = model.config.vocab_size
counts = torch.full((vocab_size, vocab_size), 0.02)
for before, after in zip(source, source[1:], strict=False):
    counts[before, after] += 1
bigram = counts / counts.sum(dim=1, keepdim=True)


@torch.no_grad()
def tokens_per_call(num_drafted, generator, num_calls=24):
    text = source[:40]
    for _ in range(num_calls):
        drafted, newest = [], int(text[-1])
        for _ in range(num_drafted):
            newest = draw(bigram[[newest]].log(), torch.rand(1, generator=generator)).item()
            drafted.append(newest)
        drafted = torch.tensor(drafted)
        target = model(torch.cat((text, drafted))[None])[0, -num_drafted - 1 :].softmax(dim=-1)
        draft = bigram[torch.cat((text[-1:], drafted[:-1]))]
        chances = torch.rand(num_drafted + 1, generator=generator)
        new = speculative(target, draft, drafted, chances[:-1], float(chances[-1]))
        text = torch.cat((text, torch.tensor(new)))
    return (len(text) - 40) / num_calls


figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
generator = torch.Generator().manual_seed(0)
numbers = range(1, 7)
left.plot(numbers, [tokens_per_call(number, generator) for number in numbers], marker="o")
left.axhline(1, color="grey", linewidth=1)
left.set(xlabel="tokens drafted", ylabel="tokens per call", ylim=(0, None))
lengths = range(1024, 32 * 1024 + 1, 1024)
for label, num_kv_heads, window in (
    ("32 heads, each its own", 32, None),
    ("8 groups", 8, None),
    ("all share one", 1, None),
    ("8 groups, window", 8, 4096),
):
    sizes = [cache_bytes(32, 32, num_kv_heads, 128, n, 1, 16, window) / 2**30 for n in lengths]
    right.plot(lengths, sizes, label=label)
right.set(xlabel="tokens", ylabel="gibibytes per text", yscale="log")
right.legend()
figure.tight_layout()
plt.show()

# %% [markdown]
# Last, the mended loop on the prompts from above, and your test on the model, with your cache in it.

# %%
show_symptoms(mended_generate)
model = model.double()  # so that rounding is far below what the test forgives


def step(tokens, caches):
    """Read tokens as `check_cache` hands them over; of the logits, the first eleven."""
    logits, caches = read_with_yours(tokens[None], caches or [None] * len(model.blocks))
    return logits[0, :, :11], caches


check_cache(step)
print("your test finds nothing wrong with your cache in the trained model")

# %% [markdown]
# {{question what_a_cache_keeps}}
#
# A KV cache makes generation faster and changes no result. What exactly is kept, and why may it be kept when a token is added? Why are queries not kept? What does the cache cost, and on what does its size depend? Name one change to a model that would make keeping it wrong. Answer in three to five sentences.

# %% [markdown] written="what_a_cache_keeps" points=3
# **What earns the points**, one each:
#
# 1. Keys and values of all earlier tokens in each layer: with a causal mask, they depend on earlier tokens only, so a new token does not change them; each query is used once, by its own token.
# 2. The cost is memory, proportional to layers, key heads, width of a head, length and batch, and the bandwidth to read it at each step.
# 3. A change that makes earlier keys or values depend on later tokens or on the number of tokens, such as no causal mask, or absolute positions that are counted from the end or shifted when a window slides.
#
# **Often seen, and wrong:** “It keeps the attention weights”; “it makes training faster, too”; the claim that each step then costs the same, whatever the length.
