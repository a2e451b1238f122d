# %% [markdown]
# # Generation and inference
#
# This notebook goes with chapter 8 of *Attention from the Ground Up*. A trained model returns logits for the next token. Here you generate text from them. You sample tokens, and you build a KV cache so that no token is processed twice. The deeper exercises count the memory of a cache, batch several prompts, let a small model draft tokens for a large one (speculative decoding), search for the most probable sequence (beam search), and replace the cache by a state of fixed size (linear attention). Mistakes in this chapter rarely raise errors. They give text that is a little worse, or fluent for six tokens and junk from the seventh on.
#
# **How it works.** First run the code cells above the first exercise. Write your code where it says `YOUR CODE HERE`, run the cell, then run the check under it. A check reports what your code returned, what it expected and, if it recognises the mistake, which one you made. Each line of its report has its own points, so a partly correct answer earns some of them. When your work is graded, the same checks may run on other numbers: compute results, do not hard-code them. Checks mostly pass float64 tensors: keep the dtype of your inputs, and let gradients flow back to them, because models will be trained with your code.
#
# **Conventions.** Queries, keys and values of several heads have the shape `(batch, heads, length, d_head)`. Positions are counted from 0. A mask is boolean and True where attention is allowed. `bos` is the token that begins a sequence, `eos` the one that ends it. Random numbers `u`, with 0 ≤ `u` < 1, are arguments, so that the same numbers give the same text.
#
# **Given.** The cell of imports defines `turn`, which applies rotary embeddings to queries and keys, as in chapter 5. The next one loads a model that was trained on the source code of Python's standard library; the bug hunt uses it.

# %%
import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

from classroom import check


def turn(x, positions):
    """Rotate neighbouring features of `x` (..., length, d_head), in proportion to `positions`.

    Shapes: positions (length,), integers; returns the shape of x.
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
    print(f"{text!r} is followed by", ", ".join(says))

# %% [markdown]
# {{exercise next_token}}
#
# The logits define how probable each token is. Always taking the most probable one (greedy decoding) gives text that repeats itself; sampling from all of them sometimes gives one of the thousands of improbable tokens. To sample between these extremes, combine four small functions from logits to logits or tokens. `logits` is `(batch, vocab_size)`, and every row belongs to a separate sequence.
#
# - `with_temperature` divides the logits by the temperature. Below 1 the differences grow, above 1 they shrink. A temperature of 0 stands for its limit: the highest logit of each row stays, and the others become `-inf`.
# - `top_k` keeps the `k` highest logits of each row and sets the others to `-inf`. If tokens tie for the last place, those with the lower ids stay. A `k` larger than the vocabulary keeps everything.
# - `top_p` keeps the smallest number of most probable tokens that *together reach* `p`, so the token that crosses the threshold is the last to stay (nucleus sampling, Holtzman et al. 2020, [section 3.1](https://arxiv.org/abs/1904.09751)). The others become `-inf`. With `p` = 1 everything stays, even the least probable token. Of tokens that tie, only as many stay as are needed, no matter which.
# - `draw` gets one number `u` per row. Place the probabilities side by side from 0 to 1, in the order of the ids, so that each token has an interval. The token whose interval contains `u` is drawn: the first one at which the cumulative probability exceeds `u`. Every `u` has such a token, even the largest float below 1, and its probability is never 0.
#
# `next_token` combines them: temperature, then `top_k`, then `top_p` on the remaining tokens, then the draw. If `k` or `p` is None, skip that step.
#
# *Before you code:* which of `with_temperature`, `top_k` and `top_p` can change which token is the most probable? What does `next_token` return with `k` = 1, for any `u`? And what remains of a batch if all rows share one threshold, and one row's logits are all higher than those of the others?
#
# <details><summary>Answers, after you have tried</summary>
#
# None of them: they keep the order, and the most probable token always stays. With `k` = 1 the result is the most probable token for any `u`. With that row's threshold for all, every token of the other rows becomes `-inf`, and the softmax of such a row is NaN.
# </details>
#
# <details><summary>Hint: exactly k, with ties</summary>
#
# `logits.argsort(dim=-1, descending=True, stable=True)` orders ties by their ids. The ids from index `k` on must get `-inf`; `scatter` writes to the indices in an index tensor.
# </details>
# <details><summary>Hint: the token that crosses</summary>
#
# A token stays if those *before* it, in descending order of probability, have not yet reached `p`. The sum of the probabilities before a token is `cumsum` minus its own probability.
# </details>
# <details><summary>Hint: p = 1</summary>
#
# A sum of probabilities is 1 only up to rounding and may reach 1 before the last ones are included. Handle `p` = 1 as a separate case.
# </details>
# <details><summary>Hint: which interval?</summary>
#
# Count the intervals that end at or below `u`: this is the number of tokens before the one that is drawn. Because of rounding, the last sum may be slightly below 1, and a `u` above it would draw a token that does not exist. Divide the sums by the last one so that they end exactly at 1.
# </details>


# %% exercise="next_token"
def with_temperature(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Sharpen (below 1) or flatten (above 1) each row. Shapes: logits (batch, vocab_size)."""
    ### BEGIN SOLUTION
    if temperature == 0:
        return top_k(logits, 1)
    return logits / temperature
    ### END SOLUTION


def top_k(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Keep the k most probable tokens of each row, the lower ids where they tie."""
    ### BEGIN SOLUTION
    order = torch.argsort(logits, dim=-1, descending=True, stable=True)
    return logits.scatter(-1, order[:, k:], -math.inf)
    ### END SOLUTION


def top_p(logits: torch.Tensor, p: float) -> torch.Tensor:
    """Keep the most probable tokens of each row, only as many as are needed to reach p."""
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
    """Apply temperature, top_k and top_p, then draw. Returns tokens (batch,)."""
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
# To generate token 101, a model needs the keys and values of the 100 tokens before it, and these have not changed since they were computed. They are therefore kept in a **KV cache**, and each new token adds one key and one value. A prompt is processed in one pass, which is called **prefill**; a long one may be processed in chunks; then tokens come one by one. However the text is split, the results must be *the same* as without a cache. This makes a cache easy to test, and most broken caches fail this test.
#
# `cached_attention` gets the queries, keys and values of the new tokens, before any rotation, and a cache. It
#
# 1. rotates the new queries and keys by their *true* positions: the first new token comes after all tokens in the cache;
# 2. appends the new keys and values to the old ones;
# 3. lets each new token attend to all earlier tokens and to itself;
# 4. returns the output of attention, and the cache with the new tokens in it.
#
# The format of the cache is up to you: a tensor, or a tuple, list or dict of tensors and numbers (not a class of your own, because in grading the cache is passed from one process to another). The check passes back the cache that you returned; in the first call it is None. Do not change anything in the cache that you are given, not even unused space in it, because another sequence may continue from the same cache. A text may have any number of tokens. A cache is for generation, where nothing is trained: here gradients need not flow.
#
# *Before you code:* four tokens are in the cache and three come. What is the shape of the mask, and which of its entries are False? How many entries would PyTorch's `is_causal=True` hide?
#
# <details><summary>Answers, after you have tried</summary>
#
# `(3, 7)`, and three entries are False: the first new token does not see the two after it, and the second does not see the last. `is_causal=True` aligns the triangle with the first key, as if the new tokens were at the beginning, and would hide 15 entries.
# </details>
#
# <details><summary>Hint: the mask of a later chunk</summary>
#
# New token `i` sees the `past` old tokens and the new ones up to `i`: the key at index `j` is allowed if `j <= past + i`. `torch.ones(new, past + new).tril(past)` is 1 at these entries.
# </details>
# <details><summary>Hint: rotate once</summary>
#
# The position of a key never changes. Either keep the rotated keys, or keep the original ones and rotate all of them from position 0 each time. Do not do both.
# </details>
# <details><summary>Hint: an unchanged cache</summary>
#
# `torch.cat` returns a new tensor. `append`, `+=` on a list, and writing into a tensor change the old object.
# </details>


# %% exercise="cached_attention"
def cached_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cache=None):
    """Let new tokens attend to those in the cache and, causally, to each other.

    Shapes: query and key (batch, heads, new, d_head), value (batch, heads, new, d_value), none of
    them rotated; cache is None or the result of an earlier call; returns (found, cache), where
    found is the output, (batch, heads, new, d_value).
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
# Below is a generation loop with a cache. `read(tokens, positions, cache)` is a model: it gets new tokens `(batch, new)`, the position of each `(batch, new)`, and a cache; it returns the logits after the last token, `(batch, vocab_size)`, and a new cache. The model itself is correct. The loop has two bugs, both from published code: positions that were hard-coded for one example ([nlp-tutorial#73](https://github.com/graykode/nlp-tutorial/issues/73), [#22](https://github.com/graykode/nlp-tutorial/issues/22)), and an offset that grew too fast ([tiny-llm#46](https://github.com/skyzh/tiny-llm/pull/46)). Look at what it generates.


# %%
@torch.no_grad()
def read(tokens, positions, cache=None):
    """Run the model on new tokens; its cache is a list of keys and values, one pair per layer."""
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
# Write `mended_generate` with the same signature, then run `show_symptoms(mended_generate)` in a cell of your own. It generates `num_new` tokens, each time the most likely one, and passes no token to `read` twice.
#
# *Before you code:* the prompt has 6 tokens. What are the positions of the first and the second new token, and which positions does this loop give them? Why is the first new token always correct?
#
# <details><summary>Answers, after you have tried</summary>
#
# 6 and 7; this loop gives them 6 and 12. The first new token is chosen from the logits of the prompt alone, whose positions are correct.
# </details>
#
# <details><summary>Hint: the offset</summary>
#
# The offset is the number of tokens in the cache. How many tokens does each call add, the first one included?
# </details>


# %% exercise="mended_generate"
def mended_generate(read, prompt: torch.Tensor, num_new: int) -> torch.Tensor:
    """Greedy decoding with a cache. Shapes: prompt (batch, length); returns (batch, num_new).

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
# A cache saves time and costs memory, and this memory limits how many sequences a machine can generate at once. Two techniques make it smaller. Heads that *share* keys and values (grouped-query attention, chapter 3) store them once per group. With a **sliding window**, each token attends only to the newest `window` tokens, itself included, so the cache can drop older ones.
#
# **Size.** `cache_bytes` returns the number of bytes of the keys and values that all layers keep for `batch_size` sequences of `length` tokens. A number takes `bits` bits; eight bits are a byte. With a window, at most `window` tokens of each sequence are kept, and fewer if the sequence is shorter.
#
# **Sliding window.** `sliding_cache` is one layer's cache as a ring buffer of `window` slots: the token at position `t` is written to slot `t % window`, over the token that was there (Jiang et al. 2023, [section 2](https://arxiv.org/abs/2310.06825), call it a rolling buffer). Nothing is moved, and attention does not depend on the order of the slots, as long as the position of each token is known: `positions` holds it, with -1 for an empty slot. Several tokens may come at once, even more than there are slots: then only the newest stay. Return new tensors, and do not change the old ones.
#
# *Before you code:* 32 layers, 32 heads of width 128, 16 bits per number, one sequence of 8192 tokens: how many gibibytes? And with 8 heads for keys and values instead of 32?
#
# <details><summary>Answers, after you have tried</summary>
#
# 4 GiB. With 8 heads for keys and values, 1 GiB.
# </details>
#
# <details><summary>Hint: factors</summary>
#
# Keys *and* values. Only one of the two numbers of heads matters for what is stored.
# </details>
# <details><summary>Hint: around the ring</summary>
#
# The positions of the new tokens are `torch.arange(start, start + new)`. Which of them are the last `window`? Their slots are these positions modulo `window`, and no two of them are equal.
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
    """Count the bytes of the keys and values of all layers. num_heads is that of the queries."""
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
    """Write new tokens into a ring buffer, over the oldest; the first one has position start.

    Shapes: keys and values (batch, kv_heads, window, d_head), positions (window,), the position of
    the token in each slot, -1 where there is none; key and value (batch, kv_heads, new, d_head);
    returns keys, values and positions, with unchanged shapes.
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
# A machine that processes one prompt mostly waits for its memory; it could process twenty in nearly the same time. But prompts have different lengths, and a tensor cannot be ragged. In training, short sequences were padded on the right. For generation, padding on the *left* is better: every prompt ends in the last column, so the logits of all prompts are in this column, and the next token of each goes into the same new column.
#
# The results for a prompt must not depend on the other prompts. The model therefore needs two more inputs besides the tokens. `left_padded` returns
#
# - `tokens` `(batch, length)`, as long as the longest prompt, with `pad` in front of the shorter ones;
# - `positions` `(batch, length)`: 0 for a prompt's first token, in whatever column it is, then 1, 2, 3 …; padding gets 0 too, because no table has negative positions;
# - `mask` `(batch, length, length)`, where rows are queries: a token can see itself and the earlier tokens of its prompt. No token sees padding, with one exception: a padding position sees *itself*. Its output is discarded, but a row without True would make the softmax 0/0, and NaN spreads.
#
# `pad` is only a number. It may also occur as a token *inside* a prompt, for example if a tokenizer has no padding token and uses `eos` instead.
#
# `next_logits` calls `model(tokens, positions, mask)`, which returns `(batch, length, vocab_size)`, once, and returns the logits of the token after each prompt, `(batch, vocab_size)`.
#
# *Before you code:* a layer multiplies the value of a padding position by the weight 0. If this value is NaN, what is the product?
#
# <details><summary>Answers, after you have tried</summary>
#
# NaN. A weight of 0 does not remove a NaN.
# </details>
#
# <details><summary>Hint: what is padding?</summary>
#
# Column `i` of a prompt of `n` tokens is padding if `i < length - n`. This requires lengths, not tokens.
# </details>
# <details><summary>Hint: the mask from three others</summary>
#
# An entry is True if the key is a real token and not later, or if it is on the diagonal. `is_real[:, None, :]` is `(batch, 1, length)`.
# </details>


# %% exercise="left_padded"
def left_padded(
    prompts: list[torch.Tensor], pad: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Put prompts of different lengths into one batch, padded on the left.

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
# Bugs in caches are common, and the symptom is text that is a little worse, or junk after a while ([x-transformers#219](https://github.com/lucidrains/x-transformers/issues/219) shows both kinds of text side by side). Chapter 6 had a test that split a prompt in two. Two pieces are not enough: some bugs need a third, some a long text, some a later piece of more than one token.
#
# Write a test for a complete cache. `check_cache` gets `step(tokens, cache)`. `tokens` is `(new,)`: one or more ids from 0 to 10; `cache` is None at the beginning of a text, later the cache that the previous call returned. `step` returns `(logits, cache)`, with logits `(new, 11)` for *all* new tokens. A call with the whole text and None uses no cache, so it is correct by definition. The test raises `AssertionError` if any other way to process the text gives different logits at any position.
#
# A cache is also a value: two texts may continue from the same cache and must not affect each other.
#
# Your test must reject twelve broken steps: positions that start again with every chunk, one position for all tokens of a chunk, an offset that counts chunks, one that grows by the length of the prompt every time (in [tiny-llm#46](https://github.com/skyzh/tiny-llm/pull/46) it did so once too often), cached keys that are rotated again, a mask aligned at the wrong corner, tokens of a later chunk that see ahead, a cache that keeps only the previous chunk, one that keeps five tokens, one that is hidden inside the model, logits that are a little too low for tokens in the cache, and the two largest logits of a token exchanged. Correct ones must pass, and one of them computes in `float32`: differences below $10^{-5}$ are rounding, those above $10^{-3}$ are not, and two of the twelve change logits by only a few thousandths.
#
# *Before you code:* for each of the twelve, what is the shortest series of chunks that reveals it? Which one is invisible in the logits of the last token of a chunk?
#
# <details><summary>Answers, after you have tried</summary>
#
# Two chunks reveal nine of them, if these chunks are long enough. The offset that grows by the prompt and the cache of one chunk need a third, and the hidden cache needs two continuations of one prompt. With one layer, as here, tokens that see ahead do not change the last token of a chunk.
# </details>
#
# <details><summary>Hint: several chunkings</summary>
#
# `text.split([3, 1, 4, 2])` splits a text into chunks of these sizes. `torch.cat` concatenates the logits again.
# </details>
# <details><summary>Hint: the hidden cache</summary>
#
# Process a prompt. Continue from its cache with some tokens, then from the same cache with others.
# </details>


# %% exercise="check_cache"
def check_cache(step) -> None:
    """Raise AssertionError if the logits of a text depend on how it is split into chunks.

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
# A large model takes about as long for five tokens in one pass as for one, because the time goes into reading its weights, not into computing. In speculative decoding, a small model therefore *drafts* some tokens, and the large one, the *target*, evaluates all of them in one forward pass. Most are easy and are accepted, and the text has exactly the distribution that the target alone would give. It is not approximately the same: it is the same (Leviathan et al. 2023, [section 2.3 and appendix A.1](https://arxiv.org/abs/2211.17192)).
#
# Suppose that token $x$ was drafted with probability $q(x)$, and the target gives it probability $p(x)$.
#
# - It is accepted with probability $\min(1, p(x)/q(x))$: here, if its random number in `accept` is *below* $p(x)/q(x)$.
# - The first token that is rejected is replaced, and all drafted tokens after it are discarded. The replacement is drawn from the residual distribution, where the target gives *more* probability than the draft: $\max(0, p - q)$, divided by its sum.
# - If all are accepted, one more token is drawn from the target's last row, which has already been computed.
#
# Draw as in `draw`: the first token at which the cumulative probability exceeds `u`. Return a tensor or a list.
#
# *Before you code:* what happens if both models agree completely? In a vocabulary of two tokens, the draft gives 0.7 and 0.3, the target 0.4 and 0.6. How often is the first new token 0?
#
# <details><summary>Answers, after you have tried</summary>
#
# Every drafted token is accepted, and one more token is drawn. The result is token 0 with probability $0.7 \cdot 0.4/0.7 = 0.4$: as often as the target alone would draw it.
# </details>
#
# <details><summary>Hint: the last question</summary>
#
# The result is token 0 only if it was drafted (0.7) and accepted (0.4/0.7). If it is rejected, only token 1 can be drawn.
# </details>
# <details><summary>Hint: the rows</summary>
#
# Row `i` of `target` is the prediction at the position of `drafted[i]`. `target` has one more row than `draft`.
# </details>


# %% exercise="speculative"
def speculative(
    target: torch.Tensor,
    draft: torch.Tensor,
    drafted: torch.Tensor,
    accept: torch.Tensor,
    u: float,
) -> list[int]:
    """Return the new tokens: those accepted, and one that is drawn.

    Shapes: target (num_drafted + 1, vocab_size) and draft (num_drafted, vocab_size), probabilities;
    drafted (num_drafted,), tokens; accept (num_drafted,), from 0 to below 1; u, from 0 to below 1,
    is for the single draw.
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
# Taking the most likely token each time need not give the most likely sequence: a good word may lead to a bad sentence. **Beam search** keeps several prefixes alive, and if it keeps all of them, it finds the most likely sequence.
#
# You get `next_log_probs`, a function of tokens `(rows, length)` that begin with `bos`. It returns `(rows, vocab_size)`: the log-probabilities of the token after each row. The probability of a sequence is a product, so its logarithm is a sum. Repeat these steps at most `max_len` times:
#
# 1. Extend every live prefix by every token. (The first time there is only the empty prefix.)
# 2. Of *all* these candidates together, keep the `num_beams` with the highest sums.
# 3. Those of them that end with `eos` are finished and set aside; they are no longer extended. The others are alive.
#
# Stop early if none is alive. Prefixes that are still alive at the end are results too. The **score** of a result is its sum divided by `length ** alpha`, where `length` is the number of generated tokens: with `eos`, without `bos`. Return the result with the best score, and this score. The result is a list of tokens without `bos`; if it has ended, `eos` is its last token.
#
# Why divide? Every token makes the sum smaller, so the sum favours short sequences. With `alpha` 0 the score is the sum; with 1 it is the mean per token. (Other length penalties exist; Wu et al. 2016, [section 7](https://arxiv.org/abs/1609.08144), use `((5 + length) / 6) ** alpha`, and so does this course's library.)
#
# *Before you code:* what does the search do with one beam? How many candidates are there in the second step, with 2 beams and 5 tokens? Why does it not matter in step 2 whether scores or sums are compared?
#
# <details><summary>Answers, after you have tried</summary>
#
# It takes the most likely token each time. Ten, if neither beam has ended. All candidates of a step have the same length, so dividing by a power of the length does not change their order.
# </details>
#
# <details><summary>Hint: what to store for a candidate</summary>
#
# Its tokens and its sum. A list of pairs and `sorted(..., key=..., reverse=True)` are enough.
# </details>
# <details><summary>Hint: one call for all prefixes</summary>
#
# All live prefixes have the same length, so they fit into one tensor: one row each, with `bos` in front.
# </details>


# %% exercise="beam_search"
def beam_search(
    next_log_probs, bos: int, eos: int, num_beams: int, max_len: int, alpha: float = 0.0
) -> tuple[list[int], float]:
    """Return the sequence with the best score, and its score.

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
# {{exercise retention_chunked}}
#
# A KV cache grows with every token. **Linear attention** keeps a state of fixed size instead. It has no softmax: each output is a sum of the values so far, weighted by the dot products themselves. **Retention** (Sun et al. 2023, [section 2.1](https://arxiv.org/abs/2307.08621)) adds a decay $\gamma$, so that older tokens count for less. For one head, with rows $q_t$, $k_t$ and $v_t$ for token $t$, it is
#
# $$o_t = \sum_{s \le t} \gamma^{t-s} \, (q_t k_s^{\top}) \, v_s = q_t S_t, \qquad S_t = \gamma S_{t-1} + k_t^{\top} v_t .$$
#
# That is all: nothing is divided by $\sqrt{d_{\text{head}}}$ or by the sum of the weights. The state $S_t$ is a matrix of shape `(d_head, d_value)` for each head, and it is 0 before the first token. You write the same function in three forms.
#
# - `retention_parallel` computes the weights of all pairs at once, `(length, length)` for each head, then the output.
# - `retention_step` is the recurrent form. It gets the state after the earlier tokens and one new token, and returns that token's output and the new state. Do not change the state that you are given, because another sequence may continue from it.
# - `retention_chunked` is the form for training on long sequences. It cuts the sequence into chunks of `chunk_len` tokens, the last of which may be shorter. Within a chunk it is parallel; what came before the chunk is read from a state, which is updated once per chunk. It returns the output, and the state after each chunk stacked on a new axis 0; `retention_step` can continue from the last.
#
# `decay` holds one number for each head, above 0 and at most 1. Sequences may have hundreds of tokens: $0.1^{400}$ is 0 in float64, $0.1^{-400}$ is infinite, and 0 times infinity is NaN, in an output or in a gradient.
#
# *Before you code:* one head has `d_head` = `d_value` = 1 and the decay ½. The keys are 1, 2, 1, and the values 8, 4, 2. What is the state after each token? The third query is 3: what is the third output, and the weight of the first value in it? By which power of the decay must the first token of a chunk multiply the state of the past, and by which the fifth?
#
# <details><summary>Answers, after you have tried</summary>
#
# 8, then 4 + 8 = 12, then 6 + 2 = 8. The output is 3 · 8 = 24, and the weight of the first value is ½² · 3 · 1 = ¾. The first token multiplies by the decay itself, the fifth by its fifth power.
# </details>
#
# <details><summary>Hint: the decay of each pair</summary>
#
# `index[:, None] - index` is the distance from each key to each query, negative for keys in the future. Set negative distances to 0 before you take the power, then set these weights to 0. `decay[:, None, None]` has one number for each head and broadcasts over `(batch, num_heads, length, length)`.
# </details>
# <details><summary>Hint: an outer product for each head</summary>
#
# `key[..., :, None] * value[..., None, :]` has the shape of the state.
# </details>
# <details><summary>Hint: three powers in a chunk</summary>
#
# Let a chunk have `n` tokens, and count them from 1. Token `i` reads the state of the past times `decay ** i`. At the end of the chunk, the outer product of token `i` has faded by `decay ** (n - i)`, and the state of the past by `decay ** n`. The last chunk has its own `n`.
# </details>


# %% exercise="retention_chunked"
def retention_parallel(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, decay: torch.Tensor
) -> torch.Tensor:
    """Compute the weights of all pairs at once.

    Shapes: query and key (batch, num_heads, length, d_head), value (batch, num_heads, length,
    d_value), decay (num_heads,); returns the output, (batch, num_heads, length, d_value).
    """
    ### BEGIN SOLUTION
    places = torch.arange(query.shape[2])
    distance = places[:, None] - places
    fade = decay[:, None, None] ** distance.clamp(min=0)
    scores = query @ key.transpose(-2, -1)
    return (scores * fade).masked_fill(distance < 0, 0.0) @ value
    ### END SOLUTION


def retention_step(
    state: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add one token to the state of the earlier ones, and read it: (output, new state).

    Shapes: state (batch, num_heads, d_head, d_value), query and key (batch, num_heads, d_head),
    value (batch, num_heads, d_value), decay (num_heads,); returns the output, (batch, num_heads,
    d_value), and a state of the same shape as the given one.
    """
    ### BEGIN SOLUTION
    outer = key.unsqueeze(-1) * value.unsqueeze(-2)
    state = decay[:, None, None] * state + outer
    return (query.unsqueeze(-2) @ state).squeeze(-2), state
    ### END SOLUTION


def retention_chunked(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    chunk_len: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the weights within chunks, and read earlier chunks from a state: (output, states).

    Shapes: as for `retention_parallel`; returns the output, (batch, num_heads, length, d_value),
    and the states after each chunk, (num_chunks, batch, num_heads, d_head, d_value).
    """
    ### BEGIN SOLUTION
    fade = decay[:, None, None]
    state = (key[:, :, :1].transpose(-2, -1) @ value[:, :, :1]) * 0.0
    outputs, states = [], []
    for q, k, v in zip(*(x.split(chunk_len, dim=2) for x in (query, key, value)), strict=True):
        count = q.shape[2]
        number = torch.arange(1, count + 1)[:, None]
        outputs.append(retention_parallel(q, k, v, decay) + (q * fade**number) @ state)
        added = (k * fade ** (count - number)).transpose(-2, -1) @ v
        state = fade**count * state + added
        states.append(state)
    return torch.cat(outputs, dim=2), torch.stack(states)
    ### END SOLUTION


# %% [markdown]
# ## Look at what you built
#
# First, your functions generate text. `cached_attention` runs in each layer of the trained model, and `next_token` chooses the tokens. If you have made your own library with `classroom mine`, the rest of the model below is computed with your parts from earlier chapters. (These cells are not graded.)

# %%
import sys

from groundup.own_parts.assembled import rebuilt

sys.path.append("../..")
try:
    import mine

    model = rebuilt(reader, mine)
    print(f"this model is computed with your own library, {len(mine.YOURS)} names in it are yours")
except ImportError:
    model = reader
    print("the course's own model: `classroom mine` makes a library of your notebooks")


@torch.no_grad()
def read_with_yours(tokens, caches):
    """Process new tokens; return the logits after each, and a cache for each layer."""
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
# With `k` = 1 the text repeats itself; at a high temperature it falls apart. Next, use your other functions with the same model: a batch of prompts with padding on the left, and beam search for the next line. Notice which line has the best sum with many beams, and which one the mean per token favours. Neither is good text: the most probable text need not be the best one.

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
    """Tokens begin with the last one of the prompt; all tokens with a line break count as eos."""
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
# Then, speculative decoding. The draft model is very cheap: it counts which token followed which in the prompt's source. Its predictions are accepted surprisingly often. Left: how many tokens one call of the model gives, with 1 to 6 drafted tokens. Right: your function's cache sizes for a model of 32 layers and 32 heads of width 128, 16 bits per number: keys and values of each head, shared by groups of four, shared by all heads, and in groups with a window of 4096 tokens.

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
right.set(xlabel="tokens", ylabel="gibibytes per sequence", yscale="log")
right.legend()
figure.tight_layout()
plt.show()

# %% [markdown]
# Next, run the fixed loop on the prompts from above, and your test on the model with your cache.

# %%
show_symptoms(mended_generate)
model = model.double()  # so that rounding is far below the tolerance of the test


def step(tokens, caches):
    """Process tokens for `check_cache`; return only the first eleven logits."""
    logits, caches = read_with_yours(tokens[None], caches or [None] * len(model.blocks))
    return logits[0, :, :11], caches


check_cache(step)
print("your test accepts your cache in the trained model")

# %% [markdown]
# Last, compare your three forms of retention on the same 1,000 tokens: how much their outputs differ, how long each takes, and how many numbers each keeps for the next token. A KV cache of the same heads would hold 256,000 numbers.

# %%
import time

random = torch.Generator().manual_seed(9)
q, k, v = (torch.randn(1, 4, 1000, 32, generator=random) / 32**0.5 for _ in "qkv")
decay = 1 - 2.0 ** -torch.arange(5, 9)


def token_by_token():
    """Run the recurrent form; return the outputs and the last state."""
    state, outputs = torch.zeros(1, 4, 32, 32), []
    for t in range(q.shape[2]):
        output, state = retention_step(state, q[:, :, t], k[:, :, t], v[:, :, t], decay)
        outputs.append(output)
    return torch.stack(outputs, dim=2), state


def chunk_by_chunk():
    """Run the chunked form; return the outputs and the last state."""
    output, states = retention_chunked(q, k, v, decay, 64)
    return output, states[-1]


expected = retention_parallel(q, k, v, decay)
for form, run in (
    ("parallel", lambda: (retention_parallel(q, k, v, decay), None)),
    ("recurrent", token_by_token),
    ("chunks of 64", chunk_by_chunk),
):
    began = time.perf_counter()
    output, state = run()
    spent = 1000 * (time.perf_counter() - began)
    kept = "no state" if state is None else f"a state of {state.numel():,} numbers"
    off = (output - expected).abs().max()
    print(f"{form:12} differs by {off:.0e}, {spent:5.0f} ms, {kept}")

# %% [markdown]
# {{question what_a_cache_keeps}}
#
# A KV cache makes generation faster and changes no result. What exactly is kept, and why does it stay valid when a token is added? Why are queries not kept? What does the cache cost, and on what does its size depend? Name one change to a model that would make the cache invalid. Answer in three to five sentences.

# %% [markdown] written="what_a_cache_keeps" points=3
# **What earns the points**, one each:
#
# 1. Keys and values of all earlier tokens in each layer: with a causal mask, they depend on earlier tokens only, so a new token does not change them; each query is used once, by its own token.
# 2. The cost is memory, proportional to layers, key heads, width of a head, length and batch, and the bandwidth to read it at each step.
# 3. A change that makes earlier keys or values depend on later tokens or on the number of tokens, such as no causal mask, or absolute positions that are counted from the end or shifted when a window slides.
#
# **Often seen, and wrong:** “It keeps the attention weights”; “it makes training faster, too”; the claim that each step then costs the same, whatever the length.
