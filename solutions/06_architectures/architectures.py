# %% [markdown]
# # Encoder-decoder and decoder-only
#
# This notebook goes with chapter 6 of *Attention from the Ground Up*. You have all the parts. Here they become models: one that continues a text, one that reads a sequence and writes another, and one that fills gaps. What turns blocks into models is little code, and almost all of it is about *who may see what*: which token is asked for, which one has been given, which mask holds, and where a sequence ends. Mistakes there do not crash. The loss even looks better.
#
# **How it works.** Write your code where it says `YOUR CODE HERE`, run the cell, then run the check under it. A check tells you what it saw, what it expected, and, if it recognises the mistake, which one you made. It draws new numbers for every test, so there is no answer to hard-code. Points count test by test: half an exercise earns half its points. When your work is graded, the same checks may run with other numbers. Checks mostly pass float64 tensors: keep the dtype of what you are given, and let gradients flow back through it, since what you write is going to be trained.
#
# **Conventions.** Tokens are whole numbers of the shape `(batch, length)`. `bos` is the token that begins a sequence, `eos` the one that ends it, `pad` the one that fills up shorter sequences of a batch. A mask is boolean and True where attention is allowed. A map multiplies from the right, `x @ w`; `nn.Linear` and the tables of a trained model keep their matrices as `(d_out, d_in)`.
#
# **Given.** The first cell defines `block`, a pre-norm block with one head and without gains and biases. Where an exercise stacks blocks, use it as it is.

# %%
import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import nn

from classroom import check


def block(x, mask, weights):
    """Let tokens talk where `mask` (length, length) or (batch, length, length) allows, then think.

    Shapes: x (batch, length, d_model); weights is a dict of matrices: query, key, value, output
    (d_model, d_model), up (d_model, d_ff), down (d_ff, d_model).
    """
    read = F.layer_norm(x, x.shape[-1:])
    query, key, value = (read @ weights[name] for name in ("query", "key", "value"))
    found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    x = x + found @ weights["output"]
    return x + F.gelu(F.layer_norm(x, x.shape[-1:]) @ weights["up"]) @ weights["down"]


# %% [markdown]
# {{exercise decoder_only_logits}}
#
# A decoder-only model is a stack of blocks between two tables. The first one turns each token into a vector: row `v` of `table` for token `v`. The last one turns each vector into one score per token of the vocabulary. If both are the *same* table, the weights are **tied**: the score of token `v` is the dot product of the last vector with row `v`. That saves `vocab_size * d_model` numbers, and a row learns from two sides: from where its token is read, and from where it is predicted.
#
# The steps, in order:
#
# 1. look up the tokens in `table`; if `is_scaled`, multiply these rows by $\sqrt{d_\text{model}}$, as the 2017 paper does (section 3.4);
# 2. add the rows of `positions`, from its first row on;
# 3. run every block, with a causal mask;
# 4. a final norm, `F.layer_norm` with `gain` and `bias`;
# 5. the logits, by the tied table. They stay logits: loss and sampling take a softmax that suits them.
#
# *Before you code:* two tokens have the same row in a tied table. What do you know about their logits? And which part of a table's gradient is lost if the second table is a copy of the first?
#
# <details><summary>Answers, after you have tried</summary>
#
# They are equal, in every context. The copy receives the gradient of one use only, so a row no longer learns from both where its token is read and where it is predicted.
# </details>
#
# <details><summary>Hint: shapes</summary>
#
# `table` is `(vocab_size, d_model)`. A vector of width `d_model` times its transpose gives `vocab_size` scores.
# </details>
# <details><summary>Hint: tied means shared</summary>
#
# Use `table` itself twice. `detach`, `clone().detach()`, `.data` and `torch.tensor(table)` make a second table that only starts out equal. In a module the same holds: `unembedding.weight = embedding.weight` ties, `nn.Parameter(embedding.weight.clone())` does not.
# </details>


# %% exercise="decoder_only_logits"
def decoder_only_logits(
    tokens: torch.Tensor,
    table: torch.Tensor,
    positions: torch.Tensor,
    layers: list[dict[str, torch.Tensor]],
    gain: torch.Tensor,
    bias: torch.Tensor,
    is_scaled: bool = False,
) -> torch.Tensor:
    """Give the logits of the token after each position, with tied tables.

    Shapes: tokens (batch, length), table (vocab_size, d_model), positions (max_len, d_model) with
    max_len >= length, gain and bias (d_model,); layers has the weights of one block each; returns
    (batch, length, vocab_size).
    """
    ### BEGIN SOLUTION
    length, d_model = tokens.shape[1], table.shape[1]
    x = table[tokens]
    if is_scaled:
        x = x * math.sqrt(d_model)
    x = x + positions[:length]
    past = torch.ones(length, length, dtype=torch.bool).tril()
    for weights in layers:
        x = block(x, past, weights)
    return F.layer_norm(x, (d_model,), gain, bias) @ table.T
    ### END SOLUTION


# %% [markdown]
# {{exercise shifted_loss}}
#
# A model that writes is asked, at every position, for a token that it has not been given. During training the whole target is known, so all positions are asked at once, and the causal mask sees to it that none looks ahead. One thing is left for you to do: the model's input is the target, *moved one place to the right*, with `bos` in front. Position 0 sees `bos` and is asked for token 0; position 1 sees `bos` and token 0, and is asked for token 1. Feeding true tokens instead of the model's own is called **teacher forcing**.
#
# What if the shift is forgotten? Then every position is given the very token that it is asked for. The cell below has a "model" that does nothing but repeat its input. Without the shift its loss is next to nothing. This has happened in published code, in libraries too ([transformers#3711](https://github.com/huggingface/transformers/issues/3711)), and training looks wonderful.


# %%
def copying_model(tokens):
    """Bet everything on the token that was just read."""
    return 20.0 * F.one_hot(tokens, 8).double()


sentence = torch.tensor([[3, 5, 2, 7, 4, 6, 3]])
unshifted = F.cross_entropy(copying_model(sentence)[0], sentence[0])
print(f"a model that copies, without the shift: {unshifted:.6f} nats per token")
print(f"a model that knows nothing: {math.log(8):.3f} nats per token")

# %% [markdown]
# Write `shifted_loss`. It gets `model`, a function from tokens `(batch, length)` to logits `(batch, length, vocab_size)`, and `targets` that end in `eos` and are filled up with `pad`. It calls the model once, on the shifted targets, and returns the mean cross-entropy in nats over all tokens of the batch that are not `pad`.
#
# The logits at position `i` answer for `targets[:, i]`: after the shift, nothing else has to be moved.
#
# *Before you code:* targets are `[5, 6, eos, pad]`. What does the model read? At how many places is it asked?
#
# <details><summary>Answers, after you have tried</summary>
#
# `[bos, 5, 6, eos]`. At three places: the answer at the fourth would be `pad`, which does not count.
# </details>
#
# <details><summary>Hint: one row in front, one off the end</summary>
#
# The last token of a target is asked for and never read. So the input has the length of the target.
# </details>
# <details><summary>Hint: one mean</summary>
#
# `F.cross_entropy(..., ignore_index=pad)` takes the mean over what is left of the whole batch. It wants the vocabulary on axis 1, or everything before it flattened.
# </details>


# %% exercise="shifted_loss"
def shifted_loss(model, targets: torch.Tensor, bos: int, pad: int) -> torch.Tensor:
    """Return how many nats per token a model needs for the targets, each given those before it.

    Shapes: targets (batch, length), filled up with pad on the right; returns a single number.
    """
    ### BEGIN SOLUTION
    begin = torch.full_like(targets[:, :1], bos)
    logits = model(torch.cat([begin, targets[:, :-1]], dim=1))
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=pad)
    ### END SOLUTION


# %% [markdown]
# {{exercise CrossAttention}}
#
# In an encoder-decoder two sequences meet. The encoder has read the source and left one vector per source token, the **memory**. Each token of the target may look at all of it. So queries are made from the target, keys and values from the memory, and the result has a row per *target* token: it goes back into the target's stream.
#
# Two masks are easily confused here. The causal mask has no business in cross attention: the source is there in full before the first word is written. The source's padding has: a target token must not look at `pad`.
#
# Write the module with `num_heads` heads. The parts and their names: `query`, `key`, `value` and `output`, each `nn.Linear(d_model, d_model)`. Head `i` uses the features from `i * d_head` to `(i + 1) * d_head` of queries, keys and values, with `d_head = d_model // num_heads`.
#
# *Before you code:* the source has 7 tokens and the target 5. What is the shape of one head's scores? In which direction does the softmax run, and along which axis does the padding lie?
#
# <details><summary>Answers, after you have tried</summary>
#
# `(5, 7)` for each sequence. The softmax runs over the 7 source tokens, and the padding lies along the same axis.
# </details>
#
# <details><summary>Hint: heads</summary>
#
# `self.query(x).unflatten(-1, (num_heads, -1)).transpose(1, 2)` is `(batch, heads, tgt_len, d_head)`. After attention, take the way back: `transpose(1, 2).flatten(2)`.
# </details>
# <details><summary>Hint: the mask</summary>
#
# `source_mask` is `(batch, src_len)`. Scores are `(batch, heads, tgt_len, src_len)`. `source_mask[:, None, None, :]` fits.
# </details>


# %% exercise="CrossAttention"
class CrossAttention(nn.Module):
    """Let each target token collect from the memory of a source."""

    def __init__(self, d_model: int, num_heads: int):
        super().__init__()
        ### BEGIN SOLUTION
        self.num_heads = num_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)
        ### END SOLUTION

    def forward(
        self, x: torch.Tensor, memory: torch.Tensor, source_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return what each target token found.

        Shapes: x (batch, tgt_len, d_model), memory (batch, src_len, d_model), source_mask
        (batch, src_len), True on real tokens; returns (batch, tgt_len, d_model).
        """
        ### BEGIN SOLUTION
        heads = (self.num_heads, x.shape[-1] // self.num_heads)
        query = self.query(x).unflatten(-1, heads).transpose(1, 2)
        key = self.key(memory).unflatten(-1, heads).transpose(1, 2)
        value = self.value(memory).unflatten(-1, heads).transpose(1, 2)
        scores = query @ key.transpose(-2, -1) / math.sqrt(heads[1])
        if source_mask is not None:
            scores = scores.masked_fill(~source_mask[:, None, None, :], -math.inf)
        mixed = scores.softmax(dim=-1) @ value
        return self.output(mixed.transpose(1, 2).flatten(2))
        ### END SOLUTION


# %% [markdown]
# {{exercise greedy_translation}}
#
# After training nobody knows the target, and the model has to write it. It reads the source **once**. Then, step by step, it is shown what it has written so far, from `bos` on, and the most likely next token is appended. A sequence is done with its first `eos`.
#
# In a batch sequences end at different times. Those that are done get `pad` from then on, whatever the model says about them, until the last one is done as well. A model that never writes `eos` is stopped after `max_len` tokens.
#
# You get the two halves of a model as functions:
#
# - `encode(source, source_mask)` returns the memory,
# - `decode(target, memory, source_mask)` returns logits `(batch, tgt_len, vocab_size)`; those at position `i` are about the token *after* `target[:, i]`.
#
# Return the tokens that were written: without `bos`, with `eos`, then `pad`, and no column more than the longest answer needs.
#
# *Before you code:* the answers of a batch have 3 and 5 tokens, `eos` included. How often is `decode` called, how often `encode`? What does the first row look like?
#
# <details><summary>Answers, after you have tried</summary>
#
# `decode` five times, `encode` once. The first row holds its three tokens, the last of them `eos`, and then `pad` twice.
# </details>
#
# <details><summary>Hint: who is done?</summary>
#
# Keep a boolean per sequence. A test like `(newest == eos).all()` waits for a moment in which all end at once.
# </details>
# <details><summary>Hint: which logits?</summary>
#
# There is one row of logits per token written so far. Only the last one is about the token that does not exist yet.
# </details>


# %% exercise="greedy_translation"
def greedy_translation(
    encode,
    decode,
    source: torch.Tensor,
    source_mask: torch.Tensor,
    bos: int,
    eos: int,
    pad: int,
    max_len: int,
) -> torch.Tensor:
    """Write the most likely next token, again and again, until every sequence has ended.

    Shapes: source (batch, src_len), source_mask (batch, src_len), True on real tokens; returns
    (batch, tgt_len) with tgt_len <= max_len.
    """
    ### BEGIN SOLUTION
    memory = encode(source, source_mask)
    written = torch.full_like(source[:, :1], bos)
    has_ended = torch.zeros(len(source), dtype=torch.bool)
    for _ in range(max_len):
        newest = decode(written, memory, source_mask)[:, -1].argmax(dim=-1)
        newest = torch.where(has_ended, pad, newest)
        written = torch.cat([written, newest[:, None]], dim=1)
        has_ended = has_ended | (newest == eos)
        if has_ended.all():
            break
    return written[:, 1:]
    ### END SOLUTION


# %% [markdown]
# {{deeper}}

# %% [markdown]
# {{exercise mended_decoder}}
#
# Below is the heart of a decoder: causal self attention, then cross attention, each added to the stream. (One head, no norms, no feed-forward network, to keep it short.) It has three bugs, all of them seen in published texts and programs ([one of them here](https://github.com/keras-team/keras-io/pull/1046), with its repair). It runs, because the cell tries it on 6 target tokens, 6 source tokens and 6 features. Look at what it does there.


# %%
def published_decoder(x, memory, source_mask, weights):
    w_q, w_k, w_v, cross_q, cross_k, cross_v = weights
    d_model = x.shape[-1]

    def attend(query, key, value, mask):
        scores = query.transpose(1, 2) @ key / math.sqrt(d_model)
        return scores.masked_fill(~mask, -math.inf).softmax(dim=-1) @ value

    past = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    everything = torch.ones(x.shape[1], memory.shape[1], dtype=torch.bool)
    x = x + attend(x @ w_q, x @ w_k, x @ w_v, past)
    return x + attend(memory @ cross_q, x @ cross_k, x @ cross_v, everything)


def loss_on_noise(decoder, steps=150):
    """Train on random tokens: nobody can predict those, so the loss cannot fall below ln 8."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    table, positions = draw(8, 6), draw(6, 6)
    weights, unembedding = 0.5 * draw(6, 6, 6), draw(6, 8)
    memory, real = draw(1, 6, 6).expand(64, 6, 6), torch.ones(64, 6, dtype=torch.bool)
    learned = [w.requires_grad_() for w in (table, positions, weights, unembedding)]
    optimizer = torch.optim.Adam(learned, lr=0.03)
    losses = []
    for _ in range(steps):
        targets = torch.randint(8, (64, 6), generator=generator)
        inputs = F.pad(targets[:, :-1], (1, 0))  # shifted, token 0 begins
        x = decoder(table[inputs] + positions, memory, real, weights)
        loss = F.cross_entropy((x @ unembedding).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-20:]) / 20


def show_symptoms(decoder):
    print(
        f"loss on random tokens: {loss_on_noise(decoder):.2f} (at best {math.log(8):.2f} without the answers)"
    )
    generator = torch.Generator().manual_seed(1)
    x, memory = torch.randn(2, 1, 6, 6, generator=generator)
    weights = torch.randn(6, 6, 6, generator=generator)
    source_mask = torch.tensor([[True] * 4 + [False] * 2])

    def run(x=x, memory=memory):
        return decoder(x, memory, source_mask, weights)

    later = x.clone()
    later[:, -1] += 1
    notice = ((run(later) - run()).abs().amax(dim=-1) > 1e-5)[0].nonzero().flatten().tolist()
    print(f"the last of 6 target tokens is changed: outputs {notice} notice")
    padding = memory.clone()
    padding[:, 4:] += 1
    change = (run(memory=padding) - run()).abs().max()
    print(f"what lies in the source's padding is changed: largest change {change:.3f}")
    try:
        print(f"5 target tokens give {tuple(run(x[:, :5]).shape)}")
    except RuntimeError as error:
        print(f"5 target tokens: {str(error).splitlines()[0]}")


show_symptoms(published_decoder)

# %% [markdown]
# A loss below what is possible is not good news: the answer got in. Only the last output may notice the last token. Padding must not matter at all. And a decoder that takes as many tokens as it has features, and no other number, has compared the wrong things.
#
# Write `mended_decoder`, of the same form, then run `show_symptoms(mended_decoder)` in a cell of your own.
#
# *Before you code:* what are the axes of `query.transpose(1, 2) @ key`: which things are compared with each other there?
#
# <details><summary>Answers, after you have tried</summary>
#
# Features by features: what one feature is over all tokens of the query is compared with what another is over all tokens of the key. Tokens are not compared with each other at all.
# </details>
#
# <details><summary>Hint: where they are</summary>
#
# One in `attend`. Two in what the last line hands over.
# </details>
# <details><summary>Hint: the mask of a batch</summary>
#
# Without heads, scores are `(batch, tgt_len, src_len)`. `source_mask` is `(batch, src_len)`.
# </details>


# %% exercise="mended_decoder"
def mended_decoder(
    x: torch.Tensor, memory: torch.Tensor, source_mask: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Add to each target token what it finds before it, then what it finds in the source.

    Shapes: x (batch, tgt_len, d_model), memory (batch, src_len, d_model), source_mask
    (batch, src_len), True on real tokens; weights (6, d_model, d_model): query, key and value of
    self attention, then those of cross attention; returns (batch, tgt_len, d_model).
    """
    ### BEGIN SOLUTION
    w_q, w_k, w_v, cross_q, cross_k, cross_v = weights
    attend = F.scaled_dot_product_attention
    x = x + attend(x @ w_q, x @ w_k, x @ w_v, is_causal=True)
    keys, values = memory @ cross_k, memory @ cross_v
    return x + attend(x @ cross_q, keys, values, attn_mask=source_mask[:, None, :])
    ### END SOLUTION


# %% [markdown]
# {{exercise one_block_three_masks}}
#
# What makes a block an encoder's or a decoder's? Not its weights: the mask. The same block, with the same weights, reads
#
# - **both ways** (an encoder): every token sees every token;
# - **causally** (a decoder): every token sees itself and those before it;
# - **with a prefix**: the first `prefix_len` tokens see each other both ways, like a source; the rest is causal. Everyone sees the prefix, nobody in the prefix sees what comes behind it.
#
# The third is what you would want where a question is there in full and the answer is not. Each sequence of a batch has a prefix of its own length.
#
# Write `three_masks`, and `one_block_three_masks`, which runs the given `block` once with each.
#
# *Before you code:* what is the third mask if `prefix_len` is 0? If it is 1? If it is the whole length?
#
# <details><summary>Answers, after you have tried</summary>
#
# With 0 the causal mask. With 1 too: everybody sees the first token anyway. With the whole length every token sees every token.
# </details>
#
# <details><summary>Hint: or</summary>
#
# A token may be seen if it is not later *or* if it lies in the prefix. Columns are the tokens that are seen.
# </details>
# <details><summary>Hint: one mask per sequence</summary>
#
# `prefix_lens[:, None, None]` is `(batch, 1, 1)`, and broadcasts against `(length,)` and `(length, length)`.
# </details>


# %% exercise="one_block_three_masks"
def three_masks(
    length: int, prefix_lens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the masks that make a block read both ways, causally, and with a prefix.

    Shapes: prefix_lens (batch,), whole numbers from 0 to length; returns boolean masks
    (length, length), (length, length) and (batch, length, length): rows are those who look,
    columns those who are looked at, True where it is allowed.
    """
    ### BEGIN SOLUTION
    both_ways = torch.ones(length, length, dtype=torch.bool)
    causal = both_ways.tril()
    is_prefix = torch.arange(length) < prefix_lens[:, None, None]
    return both_ways, causal, causal | is_prefix
    ### END SOLUTION


def one_block_three_masks(
    x: torch.Tensor, weights: dict[str, torch.Tensor], prefix_lens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the given block on the same tokens: both ways, causally, and with a prefix.

    Shapes: x (batch, length, d_model), prefix_lens (batch,); returns three outputs of the shape
    of x.
    """
    ### BEGIN SOLUTION
    both_ways, causal, prefix = three_masks(x.shape[1], prefix_lens)
    return block(x, both_ways, weights), block(x, causal, weights), block(x, prefix, weights)
    ### END SOLUTION


# %% [markdown]
# {{exercise swapped_cross_attention}}
#
# So far your parts have run with random numbers. The course comes with an encoder-decoder that has learned something: it reads a date as people of 24 locales write it, character by character, and writes it in ISO form. Two blocks read, two write; `d_model` is 64, there are 4 heads, every norm has $\varepsilon = 10^{-5}$. The cell below loads it, takes its decoder apart at the right place, and measures it on dates of days that it has never met.

# %%
from groundup.data.batches import pair_batches
from groundup.data.dates import Dates
from groundup.data.tokenizers import BOS, EOS, PAD
from groundup.pretrained import load

translator, tokenizers = load("dates")
dates = Dates()
pairs = dates.draw(200, torch.Generator().manual_seed(6), dates.validation_days)
inputs, labels = next(pair_batches(pairs, len(pairs), tokenizers["source"], tokenizers["target"]))
source, target = inputs["source"], inputs["target"]
source_mask = inputs["source_mask"][:, 0, 0]  # (batch, src_len), as in this notebook


def sublayer_weights(block):
    """Return what a cross-attention sub-layer has learned; matrices in the layout of nn.Linear."""
    weights = {"gain": block.cross_attention_norm.gain, "bias": block.cross_attention_norm.bias}
    return weights | dict(block.cross_attention.named_parameters())


@torch.no_grad()
def encode(source, source_mask):
    return translator.encode(source, source_mask[:, None, None, :])


@torch.no_grad()
def decode_with(sublayer, target, memory, source_mask):
    """Run the decoder with `sublayer` in place of each cross-attention sub-layer."""
    x = translator.embedding(target)
    for part in translator.blocks:
        x = x + part.attention(part.attention_norm(x))
        x = sublayer(x, memory, source_mask, sublayer_weights(part), 4)
        x = x + part.feed_forward(part.feed_forward_norm(x))
    return translator.unembedding(translator.final_norm(x))


memory = encode(source, source_mask)
with torch.no_grad():
    original = translator.decode(target, memory, source_mask[:, None, None, :])


def nats_per_token(logits):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten()).item()


for pair in pairs[:5]:
    print(f"{pair.target}   {pair.source}")
print(f"the model as it is: {nats_per_token(original):.6f} nats per character")
without = decode_with(lambda x, *rest: x, target, memory, source_mask)
print(f"without cross attention: {nats_per_token(without):.4f} nats per character")

# %% [markdown]
# Write `swapped_cross_attention`: norm, cross attention and sum, with the weights that are handed over. With it in place of the model's own in any layer, the logits must be *the same*, up to rounding. Not nearly the same, and not the same loss.
#
# *Before you code:* which of these would you notice in the loss of a trained model: a causal mask, padding that is seen, the wrong root in the scale, a bias of the keys that is forgotten?
#
# <details><summary>Answers, after you have tried</summary>
#
# The causal mask (2.50 instead of 0.00004 nats per character) and the padding (0.28). The root of `d_model` in place of that of `d_head` gives 0.001, and 99.5 % of the dates are still right. The forgotten bias of the keys changes nothing at all: chapter 3 says why.
# </details>
#
# <details><summary>Hint: the layout</summary>
#
# `F.linear(x, weights["query.weight"], weights["query.bias"])` multiplies with the matrix as `nn.Linear` keeps it.
# </details>
# <details><summary>Hint: what you have</summary>
#
# Your `CrossAttention` has parameters of the same names. `torch.func.functional_call(module, weights, inputs)` runs a module with other weights.
# </details>


# %% exercise="swapped_cross_attention"
def swapped_cross_attention(
    x: torch.Tensor,
    memory: torch.Tensor,
    source_mask: torch.Tensor,
    weights: dict[str, torch.Tensor],
    num_heads: int,
) -> torch.Tensor:
    """Do what the cross-attention sub-layer of a trained pre-norm decoder does.

    Shapes: x (batch, tgt_len, d_model), the stream before the sub-layer; memory (batch, src_len,
    d_model), normalised already; source_mask (batch, src_len), True on real tokens; weights has
    gain and bias of the norm (d_model,), and query.weight, key.weight, value.weight, output.weight
    (d_model, d_model) with query.bias, key.bias, value.bias, output.bias (d_model,); returns the
    stream after it.
    """

    ### BEGIN SOLUTION
    def apply(name, tokens):
        return F.linear(tokens, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def heads(name, tokens):
        return apply(name, tokens).unflatten(-1, (num_heads, -1)).transpose(1, 2)

    read = F.layer_norm(x, x.shape[-1:], weights["gain"], weights["bias"])
    query, key, value = heads("query", read), heads("key", memory), heads("value", memory)
    mask = source_mask[:, None, None, :]
    found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return x + apply("output", found.transpose(1, 2).flatten(2))
    ### END SOLUTION


# %% [markdown]
# {{exercise check_prompt_split}}
#
# What is P(the | the cat sat on)? To an encoder-decoder it matters how you ask. "The cat" may be the source and "sat on" the beginning of the target, or "the" the source and "cat sat on" the target: the words are the same, and the numbers are not, because the source is read both ways and by other weights. A decoder-only model has one text and one rule, and where you cut the text must not matter. That is how a prompt may be read in pieces, with a cache that keeps what was read. And it is a test: a cache with a mistake in it usually betrays itself by caring where the pieces end.
#
# Write that test. `check_prompt_split` gets `predict(first, rest)`. Both are tensors of tokens, `(length,)`, at least one token each, with numbers from 0 to 10 and 16 tokens at most together. It returns the probabilities `(11,)` of the token after both. The test raises `AssertionError` if they depend on where the text is cut.
#
# Eight models that depend on it are waiting, among them an encoder-decoder, a model that reads its prefix both ways, one that does so only faintly, and five broken caches: one counts positions from 0 again, one has its mask in the wrong corner, one keeps four tokens only, one keeps of what comes second only the newest token, and one takes the first piece for padding when it is a single token. Right models must pass, and one of them computes in `float32`: differences below $10^{-6}$ are rounding, those above $10^{-4}$ are not.
#
# *Before you code:* a cache keeps four tokens. Your text has five. At which cuts can you notice?
#
# <details><summary>Answers, after you have tried</summary>
#
# At none: of five tokens at most four are in the first piece, and all of them are kept. Six tokens show it, if they are cut after the fifth.
# </details>
#
# <details><summary>Hint: how many cuts?</summary>
#
# A text of ten tokens can be cut in nine places. Trying them all costs a loop.
# </details>
# <details><summary>Hint: what to compare</summary>
#
# All eleven probabilities, not the most likely token: it survives most bugs.
# </details>


# %% exercise="check_prompt_split"
def check_prompt_split(predict) -> None:
    """Raise AssertionError if a model's prediction depends on where its prompt was split.

    predict(first, rest): two tensors of tokens; returns probabilities (11,).
    """
    ### BEGIN SOLUTION
    text = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 10, 0])
    expected = predict(text[:1], text[1:])
    for cut in range(2, len(text)):
        seen = predict(text[:cut], text[cut:])
        off = (seen - expected).abs().max()
        assert off < 1e-5, f"cut before token {cut}, a probability moves by {off:.2g}"
    ### END SOLUTION


# %% [markdown]
# {{exercise masked_tokens}}
#
# An encoder-only model sees both ways, so it cannot be asked for the next token: it can see it. Instead some tokens are chosen, hidden, and asked for. BERT (Devlin et al. 2019, section 3.1 and appendix A.1) chooses 15 % of the tokens. Of these, 80 % are replaced by a mask token, 10 % by a random word, and 10 % stay as they are. Why not all by the mask token? Because after training there are none, and the model would have learned to work only where it sees one. Since some words are wrong and nobody says which, it has to keep an opinion on *every* word.
#
# Randomness comes in from outside here, as numbers between 0 and 1, so that there is one right answer. For each place:
#
# - it is **chosen** if `choice < share`, unless its token is special: tokens `0` to `num_special - 1` are (padding, begin, end, mask …) and are never chosen;
# - a chosen token becomes `mask_id` if `kind < 0.8`; if `0.8 <= kind < 0.9`, a random *word*: the ids `num_special` to `vocab_size - 1` are the words, and `word` says which, each getting an equally long piece of the interval from 0 to 1; else it stays.
#
# Return the inputs and the labels. A label is the *original* token where a token was chosen, whatever became of it, and `-100` everywhere else: that is what `F.cross_entropy` ignores. Leave `tokens` itself as it is: it is your data, and will be hidden anew, in other places, when it comes again.
#
# *Before you code:* which share of all ordinary tokens ends up as `mask_id`? And how many places does a batch of 1000 ordinary tokens learn from?
#
# <details><summary>Answers, after you have tried</summary>
#
# 12 %: 0.8 of 15 %. From about 150, whatever became of them.
# </details>
#
# <details><summary>Hint: a random word</summary>
#
# `num_special + floor(word * number_of_words)`, and there are `vocab_size - num_special` words. `.long()` rounds down for numbers that are not negative.
# </details>
# <details><summary>Hint: three cases</summary>
#
# `torch.where(condition, a, b)`, twice. Nothing has to be drawn, looped over or changed in place.
# </details>


# %% exercise="masked_tokens"
def masked_tokens(
    tokens: torch.Tensor,
    choice: torch.Tensor,
    kind: torch.Tensor,
    word: torch.Tensor,
    num_special: int,
    mask_id: int,
    vocab_size: int,
    share: float = 0.15,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Hide some tokens as BERT does, and say which are to be predicted.

    Shapes: tokens (batch, length); choice, kind and word (batch, length), from 0 to below 1;
    returns inputs and labels, (batch, length) each.
    """
    ### BEGIN SOLUTION
    is_chosen = (choice < share) & (tokens >= num_special)
    random_word = num_special + (word * (vocab_size - num_special)).long()
    hidden = torch.where(kind < 0.8, mask_id, torch.where(kind < 0.9, random_word, tokens))
    inputs = torch.where(is_chosen, hidden, tokens)
    labels = torch.where(is_chosen, tokens, -100)
    return inputs, labels
    ### END SOLUTION


# %% [markdown]
# {{exercise smoothed_loss}}
#
# Two things of the 2017 recipe are more often wrong than right in code that people share.
#
# **Label smoothing.** Cross-entropy asks for all the probability on one token, which no finite logits give. Smoothing asks for a little less: the target distribution is $1 - \varepsilon$ on the right token, *plus* $\varepsilon / V$ on every one of the $V$ tokens, the right one and `pad` included. That is the rule of the paper that is cited for it (Szegedy et al. 2016, section 7) and of PyTorch. Others divide $\varepsilon$ among the $V - 1$ wrong tokens ([one author explains his choice](https://github.com/jadore801120/attention-is-all-you-need-pytorch/issues/50)), or leave out padding as well ([annotated-transformer#39](https://github.com/harvardnlp/annotated-transformer/issues/39) works through an example). Each rule trains; losses under different rules cannot be compared. Write the first one, as a mean over all targets that are not `pad`.
#
# **The schedule**, called Noam after one of the authors: the learning rate of update number $n$ is
#
# $$d_\text{model}^{-1/2}\,\min\left(n^{-1/2},\; n\, w^{-3/2}\right)$$
#
# It rises in a line for $w$ = `warmup_steps` updates, then falls like $1/\sqrt n$. Updates are numbered from 1, `step` of a training loop from 0. So `noam(0)` belongs to update number 1. Whoever takes `step` for $n$ divides by 0 at the start, or multiplies by it and [throws the first batch away](https://github.com/ruotianluo/self-critical.pytorch/issues/171).
#
# *Before you code:* with smoothing, what is the smallest loss that can be reached, and is it 0? At which `step` are the two terms of the minimum equal?
#
# <details><summary>Answers, after you have tried</summary>
#
# The entropy of the softened target, which is larger than 0. They are equal at update number `warmup_steps`, which is `step = warmup_steps - 1`.
# </details>
#
# <details><summary>Hint: two losses</summary>
#
# The smoothed loss is $(1-\varepsilon)$ times the usual one, plus $\varepsilon$ times the mean of $-\log p_v$ over the whole vocabulary.
# </details>


# %% exercise="smoothed_loss"
def smoothed_loss(
    logits: torch.Tensor, targets: torch.Tensor, smoothing: float, pad: int
) -> torch.Tensor:
    """Return the mean cross-entropy, in nats, with targets that are softened over the vocabulary.

    Shapes: logits (batch, length, vocab_size), targets (batch, length); returns a single number.
    Write it from log_softmax, without cross_entropy's own label_smoothing.
    """
    ### BEGIN SOLUTION
    log_p = logits.log_softmax(dim=-1)
    right = log_p.gather(-1, targets[..., None]).squeeze(-1)
    nats = -(1 - smoothing) * right - smoothing * log_p.mean(dim=-1)
    return nats[targets != pad].mean()
    ### END SOLUTION


def noam(step: int, d_model: int, warmup_steps: int) -> float:
    """Return the learning rate of a step; steps are counted from 0."""
    ### BEGIN SOLUTION
    number = step + 1
    return d_model**-0.5 * min(number**-0.5, number * warmup_steps**-1.5)
    ### END SOLUTION


# %% [markdown]
# ## Look at what you built
#
# Your loop, your cross attention, trained weights: dates that the model has never met, translated by `greedy_translation` with `swapped_cross_attention` inside. (These cells are not graded.)

# %%
bos, eos, pad = (tokenizers["target"].id_of(name) for name in (BOS, EOS, PAD))


def translate_with(sublayer):
    def decode(target, memory, source_mask):
        return decode_with(sublayer, target, memory, source_mask)

    written = greedy_translation(encode, decode, source, source_mask, bos, eos, pad, max_len=11)
    return [tokenizers["target"].decode(row) for row in written.tolist()]


def share_right(answers):
    return sum(a == pair.target for a, pair in zip(answers, pairs, strict=True)) / len(pairs)


answers = translate_with(swapped_cross_attention)
for pair, answer in list(zip(pairs, answers, strict=True))[:8]:
    print(f"{answer}   {pair.source}")
print(f"{share_right(answers):.1%} of {len(pairs)} are right")

# %% [markdown]
# Next, what the loss alone would have told you. Each row swaps one wrong part into both layers: yours, handed something that makes it wrong. The first two columns are all that a training log shows; the third is what a comparison of logits shows. Look for the rows that you would have believed. One wrong part is not wrong at all, and chapter 3 said why: a bias of the keys adds the same number to all scores of a query, and the softmax does not see it.


# %%
def changing(names, change):
    """Run your part with changed weights, as a part that forgets or scales something would."""

    def sublayer(x, memory, source_mask, weights, num_heads):
        changed = weights | {name: change(weights[name]) for name in names}
        return swapped_cross_attention(x, memory, source_mask, changed, num_heads)

    return sublayer


def forgetting(name, value=0.0):
    return changing([name], lambda weight: torch.full_like(weight, value))


def scaling(factor):
    return changing(["query.weight", "query.bias"], lambda weight: factor * weight)


def padding_seen(x, memory, source_mask, *rest):
    return swapped_cross_attention(x, memory, torch.ones_like(source_mask), *rest)


def causal_on_the_source(x, memory, source_mask, *rest):
    """Let target token i see the first i + 1 source tokens only."""
    places = torch.arange(memory.shape[1])
    columns = [
        swapped_cross_attention(column, memory, source_mask & (places <= i), *rest)
        for i, column in enumerate(x.split(1, dim=1))
    ]
    return torch.cat(columns, dim=1)


wrong = {
    "bias of the keys forgotten": forgetting("key.bias"),
    "padding seen": padding_seen,
    "root of d_model as scale": scaling((16 / 64) ** 0.5),
    "no scale": scaling(16**0.5),
    "norm's gain forgotten": forgetting("gain", 1.0),
    "bias of the values forgotten": forgetting("value.bias"),
    "norm's bias forgotten": forgetting("bias"),
    "bias of the queries forgotten": forgetting("query.bias"),
    "causal mask on the source": causal_on_the_source,
}
mine = decode_with(swapped_cross_attention, target, memory, source_mask)
print(f"{'':30} nats per character  right   largest change of a logit")
print(f"{'yours':30} {nats_per_token(mine):18.6f} {share_right(answers):6.1%}")
for name, sublayer in wrong.items():
    logits = decode_with(sublayer, target, memory, source_mask)
    change = (logits - original).abs().max()
    right = share_right(translate_with(sublayer))
    print(f"{name:30} {nats_per_token(logits):18.6f} {right:6.1%}   {change:.5f}")

# %% [markdown]
# Last, where your decoder looks. For one date, how much each character that is written attends to each character of the source, in the second layer, for each of the four heads. The heads go from the year to the month to the day, wherever the source has them.

# %%
which = max(range(len(pairs)), key=lambda i: len(set(pairs[i].source)))
shown, part = pairs[which], translator.blocks[1]
alone = torch.tensor([tokenizers["source"].encode(shown.source)])
with torch.no_grad():
    memory_alone = translator.encode(alone)
    x = translator.embedding(target[which : which + 1])
    x = translator.blocks[0](x, memory_alone)
    x = x + part.attention(part.attention_norm(x))
    attention = part.cross_attention.weights(part.cross_attention_norm(x), memory_alone)
figure, axes = plt.subplots(1, 4, figsize=(13, 4), sharey=True)
for head, axis in enumerate(axes):
    axis.imshow(attention[0, head].T, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axis.set_title(f"head {head}")
    axis.set_xticks(range(11), [*shown.target, "end"], fontsize=8)
axes[0].set_yticks(range(len(shown.source)), list(shown.source), fontsize=8)
figure.supxlabel("written")
figure.supylabel("read")
figure.tight_layout()
plt.show()

# %% [markdown]
# {{question why_three_attentions}}
#
# An encoder-decoder has three kinds of attention. For each: where do the queries come from, where the keys and values, and which mask does it need, in training and in generation? Why can the decoder be trained on all positions of a target in one forward pass, although it generates one token at a time? Answer in three to five sentences.

# %% [markdown] written="why_three_attentions" points=3
# **What earns the points**, one each:
#
# 1. Encoder: all from the source, padding mask. Decoder self-attention: all from the target, causal mask and padding. Cross-attention: queries from the target, keys and values from the encoder's output, the source's padding mask.
# 2. In training the target is known and is the decoder's input, shifted by one position (teacher forcing).
# 3. The causal mask makes the output at each position depend on earlier inputs only, so all positions give the predictions that they would give one after the other.
#
# **Often seen, and wrong:** A causal mask in the cross-attention; no padding mask there; “the model sees the target in training, so it learns to copy it”, which the shift and the mask prevent.
