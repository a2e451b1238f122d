# %% [markdown]
# # Encoder-decoder and decoder-only transformers
#
# This notebook goes with chapter 6 of *Attention from the Ground Up*. You have all the parts. Here they become models: one that continues a text, one that reads a sequence and generates another, and one that fills in masked tokens. Turning blocks into models takes little code, and almost all of it is about *which token may see which*, which token is the target, and where a sequence ends. Mistakes there do not crash; the loss may even improve.
#
# **How it works.** First run the code cells above the first exercise. Write your code where it says `YOUR CODE HERE`, run the cell, then run the check under it. A check reports what your code returned, what it expected and, if it recognises the mistake, which one you made. Each line of its report has its own points, so a partly correct answer earns some of them. When your work is graded, the same checks may run on other numbers: compute results, do not hard-code them. Checks mostly pass float64 tensors: keep the dtype of your inputs, and let gradients flow back to them, because models will be trained with your code.
#
# **Conventions.** Tokens are integers of shape `(batch, length)`. `bos` is the token that begins a sequence, `eos` the one that ends it, and `pad` the padding of shorter sequences in a batch. A mask is boolean and True where attention is allowed. A weight matrix multiplies from the right, `x @ w`; `nn.Linear` stores the transposed matrix, `(d_out, d_in)`, and so does a trained model.
#
# **Given.** The cell of imports defines `block`, a pre-norm block with one head and without gains and biases. Use it unchanged where an exercise stacks blocks. It also defines `averaging_logits`, the small model of exercise 6.12.

# %%
import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import nn

from classroom import check


def block(x, mask, weights):
    """Attend where `mask` (length, length) or (batch, length, length) is True, then apply an FFN.

    Shapes: x (batch, length, d_model); weights is a dict of matrices: query, key, value, output
    (d_model, d_model), up (d_model, d_ff), down (d_ff, d_model).
    """
    read = F.layer_norm(x, x.shape[-1:])
    query, key, value = (read @ weights[name] for name in ("query", "key", "value"))
    found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    x = x + found @ weights["output"]
    return x + F.gelu(F.layer_norm(x, x.shape[-1:]) @ weights["up"]) @ weights["down"]


def averaging_logits(parameters, tokens):
    """Average the vectors up to each position, apply an FFN, and return the logits.

    Shapes: tokens (batch, length) or (length,); returns (batch, length, vocab_size) or
    (length, vocab_size). The leaves are embedding (vocab_size, d_model), ffn["up"]
    (d_model, d_ff), ffn["down"] (d_ff, d_model) and unembedding (d_model, vocab_size).
    """
    counts = torch.arange(1, tokens.shape[-1] + 1)[:, None]
    x = parameters["embedding"][tokens].cumsum(dim=-2) / counts
    x = x + F.gelu(x @ parameters["ffn"]["up"]) @ parameters["ffn"]["down"]
    return x @ parameters["unembedding"]


# %% [markdown]
# {{exercise decoder_only_logits}}
#
# A decoder-only model is a stack of blocks between two matrices. The embedding matrix turns each token into a vector: row `v` of `table` for token `v`. The unembedding matrix turns each final vector into one logit per token of the vocabulary. If both are the *same* matrix, the weights are **tied**: the logit of token `v` is the dot product of the final vector with row `v`. This saves `vocab_size * d_model` parameters, and each row learns in two ways: where its token is an input, and in every prediction.
#
# The steps, in order:
#
# 1. look up the tokens in `table`; if `is_scaled`, multiply these rows by $\sqrt{d_\text{model}}$, as the 2017 paper does (section 3.4);
# 2. add the first `length` rows of `positions`;
# 3. run every block, with a causal mask (a lower triangle of True, chapter 2);
# 4. a final norm, `F.layer_norm(x, x.shape[-1:], gain, bias)`;
# 5. the logits, with the tied matrix. Return logits: the loss and the sampler apply the softmax themselves.
#
# *Before you code:* two tokens have the same row in a tied matrix. What do you know about their logits? And which part of the gradient of `table` is lost if the logits come from `table.detach()`?
#
# <details><summary>Answers, after you have tried</summary>
#
# They are equal in every context. `table` then receives only the gradient of the embedding: its rows no longer learn from the predictions.
# </details>
#
# <details><summary>Hint: shapes</summary>
#
# `table` is `(vocab_size, d_model)`: a vector of width `d_model` times the transposed table gives `vocab_size` logits.
# </details>
# <details><summary>Hint: tied means shared</summary>
#
# Use `table` itself twice. No gradient flows through `detach()`, `clone().detach()`, `.data` or `torch.tensor(table)`. In a module, `unembedding.weight = embedding.weight` ties the weights; `nn.Parameter(embedding.weight.clone())` is only initially equal.
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
    """Return the logits of the token after each position, with tied weights.

    Shapes: tokens (batch, length), table (vocab_size, d_model), positions (max_len, d_model) with
    max_len >= length, gain and bias (d_model,); each entry of layers has the weights of one block;
    returns (batch, length, vocab_size).
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
# At every position, a language model predicts a token that it has not seen. In training the whole target is known, so all positions are predicted in one forward pass, and the causal mask prevents them from looking ahead. One step is left for you: the model's input is the target, *shifted right by one position*, with `bos` in front. Position 0 sees `bos` and predicts token 0; position 1 sees `bos` and token 0, and predicts token 1. Using the true tokens as input, instead of the model's own predictions, is called **teacher forcing**.
#
# What if the shift is forgotten? Then every position sees the very token that it should predict. The cell below has a "model" that only repeats its input. Without the shift, its loss is almost zero. This mistake has been made in published code, even in libraries ([transformers#3711](https://github.com/huggingface/transformers/issues/3711)), and training looks wonderful.


# %%
def copying_model(tokens):
    """Give almost all probability to the current token."""
    return 20.0 * F.one_hot(tokens, 8).double()


sentence = torch.tensor([[3, 5, 2, 7, 4, 6, 3]])
unshifted = F.cross_entropy(copying_model(sentence)[0], sentence[0])
print(f"a model that copies, without the shift: {unshifted:.6f} nats per token")
print(f"a model that knows nothing: {math.log(8):.3f} nats per token")

# %% [markdown]
# Write `shifted_loss`. It gets `model`, a function from tokens `(batch, length)` to logits `(batch, length, vocab_size)`, and `targets` that end in `eos` and are padded with `pad`. It calls the model on the shifted targets, and returns the mean cross-entropy in nats over all targets of the batch that are not `pad`, exact even if logits differ by hundreds. Do not modify `targets`.
#
# The logits at position `i` are the prediction of `targets[:, i]`: after the shift, nothing else needs to be shifted.
#
# *Before you code:* targets are `[5, 6, eos, pad]`. What is the input of the model? How many positions count in the loss?
#
# <details><summary>Answers, after you have tried</summary>
#
# `[bos, 5, 6, eos]`. Three positions: the target at the fourth is `pad`, which does not count.
# </details>
#
# <details><summary>Hint: one token in front, one removed at the end</summary>
#
# The last column of `targets` is predicted but never an input, so the input is as long as `targets`.
# </details>
# <details><summary>Hint: one mean</summary>
#
# `F.cross_entropy(..., ignore_index=pad)` takes the mean over the other targets of the whole batch. It needs the vocabulary on axis 1, or all axes before it flattened.
# </details>


# %% exercise="shifted_loss"
def shifted_loss(model, targets: torch.Tensor, bos: int, pad: int) -> torch.Tensor:
    """Return the mean loss of a model in nats per token, each target given those before it.

    Shapes: targets (batch, length), padded with pad on the right; returns a single number.
    """
    ### BEGIN SOLUTION
    begin = torch.full_like(targets[:, :1], bos)
    logits = model(torch.cat([begin, targets[:, :-1]], dim=1))
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=pad)
    ### END SOLUTION


# %% [markdown]
# {{exercise CrossAttention}}
#
# An encoder-decoder works on two sequences. The encoder turns the source into one vector per source token, the **memory**. Each target token may attend to the whole memory. Queries are therefore computed from the target, keys and values from the memory, and the result has one row per *target* token. (The block, not this module, adds it to the target's residual stream.)
#
# Two masks are easily confused here. Cross-attention has no causal mask: the whole source is known before the first token is generated. It does need the padding mask of the source: a target token must not attend to `pad`.
#
# Write the module with `num_heads` heads. Its four linear layers are called `query`, `key`, `value` and `output`, each `nn.Linear(d_model, d_model)`. Head `i` uses the features `i * d_head : (i + 1) * d_head` of queries, keys and values, with `d_head = d_model // num_heads`.
#
# *Before you code:* the source has 7 tokens and the target 5. What is the shape of one head's scores? Over which axis does the softmax run, and along which axis is the padding?
#
# <details><summary>Answers, after you have tried</summary>
#
# `(5, 7)` for each sequence. The softmax runs over the 7 source tokens, and the padding is along the same axis.
# </details>
#
# <details><summary>Hint: heads</summary>
#
# `self.query(x).unflatten(-1, (num_heads, -1)).transpose(1, 2)` is `(batch, heads, tgt_len, d_head)`. After attention, undo it: `transpose(1, 2).flatten(2)`.
# </details>
# <details><summary>Hint: the mask</summary>
#
# `source_mask` is `(batch, src_len)`. Scores are `(batch, heads, tgt_len, src_len)`. `source_mask[:, None, None, :]` broadcasts to them.
# </details>


# %% exercise="CrossAttention"
class CrossAttention(nn.Module):
    """Let each target token attend to the memory of a source."""

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
        """Return the output for each target token.

        Shapes: x (batch, tgt_len, d_model), memory (batch, src_len, d_model), source_mask
        (batch, src_len), True at real tokens; returns (batch, tgt_len, d_model).
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
# After training, the target is unknown, and the model has to generate it. It encodes the source **once**. Then, at each step, its input is `bos` followed by the tokens generated so far, and the most likely next token is appended. This is greedy decoding. A sequence ends with the first `eos` that is generated; `bos` may equal `eos`, as in BART's decoder.
#
# In a batch, sequences end at different times. A finished sequence gets `pad` from then on, whatever the model predicts for it, until all sequences are finished. Generation stops after `max_len` tokens even if the model has not generated `eos`.
#
# You get the two halves of a model as functions:
#
# - `encode(source, source_mask)` returns the memory,
# - `decode(target, memory, source_mask)` returns logits `(batch, tgt_len, vocab_size)`; those at position `i` predict the token *after* `target[:, i]`.
#
# Return the generated tokens: without `bos`, with `eos`, then `pad`, and with no more columns than the longest result needs.
#
# *Before you code:* the results of a batch have 3 and 5 tokens, `eos` included. How often is `decode` called, how often `encode`? What does the first row look like?
#
# <details><summary>Answers, after you have tried</summary>
#
# `decode` five times, `encode` once. The first row contains its three tokens, the last of which is `eos`, and then `pad` twice.
# </details>
#
# <details><summary>Hint: which sequences are finished?</summary>
#
# Keep a boolean per sequence. A test like `(newest == eos).all()` waits for a step at which all sequences end at once.
# </details>
# <details><summary>Hint: which logits?</summary>
#
# There is one row of logits per input token. Only the last one predicts the token that does not exist yet.
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
    """Append the most likely next token repeatedly until every sequence has ended.

    Shapes: source (batch, src_len), source_mask (batch, src_len), True at real tokens; returns
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
# Below are the two attention sub-layers of a decoder: causal self-attention, then cross-attention, each added to the stream. To keep it short, there is one head, no norm and no feed-forward network. The code has three bugs, all of them found in published texts and programs ([one of them here](https://github.com/keras-team/keras-io/pull/1046), with its fix). It runs without an error, because the cell tries it on 6 target tokens, 6 source tokens and 6 features. Look at the symptoms that the cell prints.


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
    """Train on random tokens: they are unpredictable, so the loss cannot fall below ln 8."""
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
        f"loss on random tokens: {loss_on_noise(decoder):.2f} (at best {math.log(8):.2f} without a leak)"
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
    print(f"the last of 6 target tokens is changed: outputs {notice} change")
    padding = memory.clone()
    padding[:, 4:] += 1
    change = (run(memory=padding) - run()).abs().max()
    print(f"the source's padding is changed: largest change {change:.3f}")
    try:
        print(f"5 target tokens give {tuple(run(x[:, :5]).shape)}")
    except RuntimeError as error:
        print(f"5 target tokens: {str(error).splitlines()[0]}")


show_symptoms(published_decoder)

# %% [markdown]
# A loss below the possible minimum is not good news: the outputs see their targets. Only the last output may depend on the last token. Padding must have no effect. And a decoder that works only if there are as many tokens as features computes dot products along the wrong axis.
#
# Write `mended_decoder` with the same signature, then run `show_symptoms(mended_decoder)` in a cell of your own.
#
# *Before you code:* what are the axes of `query.transpose(1, 2) @ key`: what does it compare with what?
#
# <details><summary>Answers, after you have tried</summary>
#
# Features with features: one feature of the queries, over all tokens, is compared with one of the keys, over all tokens. Tokens are not compared with each other at all.
# </details>
#
# <details><summary>Hint: where they are</summary>
#
# One is in `attend`. Two are in the arguments of the last line.
# </details>
# <details><summary>Hint: the mask of a batch</summary>
#
# Without heads, scores are `(batch, tgt_len, src_len)`. `source_mask` is `(batch, src_len)`.
# </details>


# %% exercise="mended_decoder"
def mended_decoder(
    x: torch.Tensor, memory: torch.Tensor, source_mask: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Add the output of causal self-attention to the stream, then that of cross-attention.

    Shapes: x (batch, tgt_len, d_model), memory (batch, src_len, d_model), source_mask
    (batch, src_len), True at real tokens; weights (6, d_model, d_model): query, key and value of
    self-attention, then those of cross-attention; returns (batch, tgt_len, d_model).
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
# Apart from cross-attention, encoder and decoder blocks differ only in the mask. The same block, with the same weights, can attend
#
# - **in both directions** (an encoder): every token sees every token;
# - **causally** (a decoder): every token sees itself and those before it;
# - **with a prefix**: the first `prefix_len` tokens see each other both ways, like a source; the rest is causal. Every token sees the prefix, and no token of the prefix sees the tokens after it.
#
# The third mask suits a task in which the prompt is complete and the answer is still to be generated. Each sequence of a batch has its own prefix length.
#
# Write `three_masks`, and `one_block_three_masks`, which runs the given `block` once with each.
#
# *Before you code:* what is the third mask if `prefix_len` is 0? If it is 1? If it is the whole length?
#
# <details><summary>Answers, after you have tried</summary>
#
# With 0, the causal mask. With 1, the causal mask too, because every token sees the first one anyway. With the whole length, every token sees every token.
# </details>
#
# <details><summary>Hint: or</summary>
#
# A token is visible if it is not later *or* if it is in the prefix. Rows are queries, columns are keys.
# </details>
# <details><summary>Hint: one mask per sequence</summary>
#
# `prefix_lens[:, None, None]` is `(batch, 1, 1)`, and broadcasts against `(length,)` and `(length, length)`.
# </details>


# %% exercise="one_block_three_masks"
def three_masks(
    length: int, prefix_lens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the masks for attention in both directions, causal, and with a prefix.

    Shapes: prefix_lens (batch,), integers from 0 to length; returns boolean masks (length, length),
    (length, length) and (batch, length, length): rows are queries, columns are keys, True where
    attention is allowed.
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
    """Run the given block on the same tokens: in both directions, causally, and with a prefix.

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
# So far, your parts have run on random numbers. The course includes a trained encoder-decoder: it reads a date in a format of one of 24 locales, character by character, and outputs it in ISO form. It has two encoder blocks and two decoder blocks; `d_model` is 64, there are 4 heads, and every norm has $\varepsilon = 10^{-5}$. The cell below loads it, opens its decoder at the cross-attention sub-layer, and measures its loss on dates that were not in the training data.

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
    """Return the weights of a cross-attention sub-layer; matrices in the layout of nn.Linear."""
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
print(f"the original model: {nats_per_token(original):.6f} nats per character")
without = decode_with(lambda x, *rest: x, target, memory, source_mask)
print(f"without cross-attention: {nats_per_token(without):.4f} nats per character")

# %% [markdown]
# Write `swapped_cross_attention`: the norm, cross-attention and the residual connection, with the given weights, of any width. If it replaces the model's own sub-layer in any layer, the logits must be *those of the original model*, up to rounding. It is not enough that they are close or that the loss is the same.
#
# *Before you code:* which of these would you notice in the loss of a trained model: a causal mask, visible padding, the wrong square root in the scale, a missing bias of the keys?
#
# <details><summary>Answers, after you have tried</summary>
#
# The causal mask (2.50 instead of 0.00004 nats per character) and the padding (0.28). The square root of `d_model` instead of `d_head` gives 0.001, and 99.5 % of the dates are still correct. The missing bias of the keys changes nothing at all; chapter 3 explains why.
# </details>
#
# <details><summary>Hint: the layout</summary>
#
# `F.linear(x, weights["query.weight"], weights["query.bias"])` multiplies by the matrix as `nn.Linear` stores it.
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
    """Compute the cross-attention sub-layer of a trained pre-norm decoder.

    Shapes: x (batch, tgt_len, d_model), the stream before the sub-layer; memory (batch, src_len,
    d_model), already normalised; source_mask (batch, src_len), True at real tokens; weights has
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
# What is P(the | the cat sat on)? For an encoder-decoder, it depends on how you split the words. "The cat" may be the source and "sat on" the beginning of the target, or "the" the source and "cat sat on" the target: the words are the same, but the probabilities are not, because the source is read in both directions and with different weights. A decoder-only model has a single sequence, so the split must not matter. This is why a prompt can be processed in pieces, with the keys and values of the earlier ones kept in a cache. It is also a test: with a bug in its cache, a model's predictions usually depend on where the pieces end.
#
# Write this test. `check_prompt_split` gets `predict(first, rest)`. Both arguments are tensors of tokens from 0 to 10, `(length,)`, with at least one token each and at most 16 tokens together. `predict` returns the probabilities `(11,)` of the token after both. The test raises `AssertionError` if they depend on where the text is split.
#
# Your test must reject nine models that depend on the split: an encoder-decoder, a model that reads its prefix in both directions, one that does so only weakly, one in which the split changes two probabilities slightly, and five broken caches. One cache counts positions from 0 again, one aligns its mask at the wrong corner, one keeps only four tokens, one keeps only the newest token of the second piece, and one treats the first piece as padding if it is a single token. Correct models must pass, and one of them computes in `float32`: differences below $10^{-6}$ are rounding, those above $10^{-4}$ are not.
#
# *Before you code:* a cache keeps four tokens. Your text has five. At which splits can you notice it?
#
# <details><summary>Answers, after you have tried</summary>
#
# At none: at most four of the five tokens are in the first piece, and all of them are kept. Six tokens show it if they are split after the fifth.
# </details>
#
# <details><summary>Hint: how many splits?</summary>
#
# A text of ten tokens can be split at nine points. A loop tries them all.
# </details>
# <details><summary>Hint: what to compare</summary>
#
# All eleven probabilities, not the most likely token, which many bugs do not change.
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
        assert off < 1e-5, f"split before token {cut}, a probability changes by {off:.2g}"
    ### END SOLUTION


# %% [markdown]
# {{exercise masked_tokens}}
#
# An encoder-only model attends in both directions, so it cannot be trained on next-token prediction: it sees the next token. Instead, some tokens are chosen, hidden and predicted. This is masked language modelling. BERT (Devlin et al. 2019, section 3.1 and appendix A.1) chooses 15 % of the tokens. Of these, 80 % are replaced by a mask token, 10 % by a random word, and 10 % stay unchanged. Why not replace all of them by the mask token? After training there are no mask tokens, and the model would have learned to work only where it sees one. Since some words are wrong and the input does not show which, the model has to represent *every* word well.
#
# Here the random numbers, between 0 and 1, are arguments, so that there is one correct result. For each position:
#
# - it is **chosen** if `choice < share`, unless its token is special: the tokens `0` to `num_special - 1` (padding, begin, end, mask …) are never chosen;
# - a chosen token becomes `mask_id` if `kind < 0.8`; if `0.8 <= kind < 0.9`, a random *word*: the ids `num_special` to `vocab_size - 1` are the words, and `word` selects one of them, each with an equal part of the interval from 0 to 1; otherwise the token stays.
#
# Return the inputs and the labels. A label is the *original* token where a token was chosen, even if it stays or becomes a random word, and `-100` everywhere else, which `F.cross_entropy` ignores. Do not change `tokens` itself: it is your data, and in the next epoch other positions will be masked.
#
# *Before you code:* which fraction of all ordinary tokens becomes `mask_id`? And how many positions of a batch of 1000 ordinary tokens count in the loss?
#
# <details><summary>Answers, after you have tried</summary>
#
# 12 %: 0.8 of 15 %. About 150: all the chosen ones.
# </details>
#
# <details><summary>Hint: a random word</summary>
#
# `num_special + floor(word * number_of_words)`, and there are `vocab_size - num_special` words. `.long()` rounds non-negative numbers down.
# </details>
# <details><summary>Hint: three cases</summary>
#
# `torch.where(condition, a, b)`, twice. You need no random numbers of your own, no loop and no change in place.
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
    """Mask some tokens as BERT does, and return the labels to predict.

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
# Published code often departs from two parts of the 2017 training recipe.
#
# **Label smoothing.** The cross-entropy is minimal if the correct token has probability 1, which no finite logits give. Smoothing requires a little less: the target distribution is $1 - \varepsilon$ on the correct token, *plus* $\varepsilon / V$ on each of the $V$ tokens, the correct one and `pad` included. This is the rule of the original paper (Szegedy et al. 2016, section 7) and of PyTorch. Others divide $\varepsilon$ among the $V - 1$ wrong tokens ([one author explains his choice](https://github.com/jadore801120/attention-is-all-you-need-pytorch/issues/50)), or exclude `pad` as well ([annotated-transformer#39](https://github.com/harvardnlp/annotated-transformer/issues/39) works through an example). All these rules work, but losses under different rules cannot be compared. Write the first one, as a mean over all targets that are not `pad`.
#
# **The schedule**, called Noam after one of the authors: the learning rate of update $n$ is
#
# $$d_\text{model}^{-1/2}\,\min\left(n^{-1/2},\; n\, w^{-3/2}\right)$$
#
# It rises linearly for $w$ = `warmup_steps` updates, then falls like $1/\sqrt n$. Updates are numbered from 1, but `step` in a training loop from 0, so `noam(0)` is the learning rate of update 1. If you use `step` as $n$, you divide by 0 at the start, or multiply by 0 and [waste the first batch](https://github.com/ruotianluo/self-critical.pytorch/issues/171).
#
# *Before you code:* with smoothing, what is the smallest possible loss, and is it 0? At which `step` are the two terms of the minimum equal?
#
# <details><summary>Answers, after you have tried</summary>
#
# The entropy of the smoothed target, which is larger than 0. They are equal at update `warmup_steps`, which is `step = warmup_steps - 1`.
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
    """Return the mean cross-entropy, in nats, with targets smoothed over the vocabulary.

    Shapes: logits (batch, length, vocab_size), targets (batch, length); returns a single number.
    Begin with log_softmax; cross_entropy's own label_smoothing is there to compare with.
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
# {{exercise functional_gradients}}
#
# A module keeps its parameters inside. Written as a function, the same model takes them as an argument: a **tree**, that is, nested dictionaries whose leaves are tensors. A function that depends on its arguments alone and changes none of them is called *pure*. Other functions can transform such a function. `torch.func.grad` turns it into a function that returns the gradient with respect to its first argument, here the whole tree, and `torch.func.vmap` maps it over the examples of a batch.
#
# | leaf of the tree | shape |
# |---|---|
# | `parameters["embedding"]["tokens"]` | `(vocab_size, d_model)` |
# | `parameters["embedding"]["positions"]` | `(max_len, d_model)` |
# | `parameters["blocks"]["0"]`, then `"1"` … | the dictionary of weights that the given `block` takes, one for each block, in order |
# | `parameters["final_norm"]["gain"]` and `["bias"]` | `(d_model,)` |
# | `parameters["unembedding"]` | `(vocab_size, d_model)`; not in the tree if the weights are tied |
#
# Write four pure functions:
#
# - `functional_logits`: the decoder-only model of exercise 6.1, without the scale. Embeddings plus positions, every block with a causal mask, the final norm, the logits. If the tree has no `"unembedding"`, the table of the tokens is used twice.
# - `functional_loss`: the mean cross-entropy in nats over all targets that are not `-100`. The targets are the next tokens already: nothing has to be shifted.
# - `functional_gradients`: the gradient of the loss, as a tree with the same names and shapes as `parameters`.
# - `sgd_step`: a *new* tree, in which every leaf has moved against its gradient by `learning_rate` times that gradient.
#
# Tokens and targets are `(batch, length)`, or `(length,)` for a single sequence: mapped by `vmap`, a function sees one example without the batch axis. The given `block` works with both.
#
# *Before you code:* in a tree without `"unembedding"`, how many gradients does the table of the tokens get? And what goes wrong if `functional_logits` writes `parameters["unembedding"] = parameters["embedding"]["tokens"]` first?
#
# <details><summary>Answers, after you have tried</summary>
#
# One: the sum over both of its uses. The caller's tree has changed: from then on it has one more leaf, each of the two gets a part of the gradient, and after one step of gradient descent they differ. The weights are no longer tied, and nothing crashes.
# </details>
#
# <details><summary>Hint: with or without a batch axis</summary>
#
# Count axes from the right: `tokens.shape[-1]` is the length in both cases, and `logits.flatten(0, -2)` has one row per target in both.
# </details>
# <details><summary>Hint: a gradient of a tree</summary>
#
# `torch.func.grad(function)` is a function. It takes the arguments of `function`, and returns a tree like the first one.
# </details>
# <details><summary>Hint: a step for every leaf</summary>
#
# `sgd_step` can call itself: on a dictionary it returns a dictionary of the results for its entries, on a tensor a new tensor.
# </details>


# %% exercise="functional_gradients"
def functional_logits(parameters: dict, tokens: torch.Tensor) -> torch.Tensor:
    """Return the logits of the token after each position, computed from a tree of parameters.

    Shapes: tokens (batch, length) or (length,); returns (batch, length, vocab_size) or
    (length, vocab_size).
    """
    ### BEGIN SOLUTION
    length, table = tokens.shape[-1], parameters["embedding"]["tokens"]
    x = table[tokens] + parameters["embedding"]["positions"][:length]
    past = torch.ones(length, length, dtype=torch.bool).tril()
    for weights in parameters["blocks"].values():
        x = block(x, past, weights)
    norm = parameters["final_norm"]
    x = F.layer_norm(x, x.shape[-1:], norm["gain"], norm["bias"])
    return x @ parameters.get("unembedding", table).T
    ### END SOLUTION


def functional_loss(parameters: dict, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy in nats over the targets that are not -100."""
    ### BEGIN SOLUTION
    logits = functional_logits(parameters, tokens)
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=-100)
    ### END SOLUTION


def functional_gradients(parameters: dict, tokens: torch.Tensor, targets: torch.Tensor) -> dict:
    """Return the gradient of the loss with respect to each leaf, as a tree like parameters."""
    ### BEGIN SOLUTION
    return torch.func.grad(functional_loss)(parameters, tokens, targets)
    ### END SOLUTION


def sgd_step(parameters: dict, gradients: dict, learning_rate: float) -> dict:
    """Return a new tree after one step of gradient descent."""
    ### BEGIN SOLUTION
    if isinstance(parameters, dict):
        return {
            name: sgd_step(leaf, gradients[name], learning_rate)
            for name, leaf in parameters.items()
        }
    return parameters - learning_rate * gradients
    ### END SOLUTION


# %% [markdown]
# {{exercise largest_gradient}}
#
# `backward()` gives the gradient of a batch. But which of its examples pulls hardest? A wrong label, a sequence in another language or a broken file often shows as one very large gradient. Clipping each example's gradient instead of the batch's, as differentially private training does, needs the same numbers. With pure functions they are cheap: `torch.func.grad(loss)` gives the gradient of *one* example, and `torch.func.vmap` maps that over the batch. Every leaf of the result then has the examples as its first axis.
#
# The model here is `averaging_logits` from the cell of imports, a function of a tree with four leaves: `parameters["embedding"]`, `["ffn"]["up"]`, `["ffn"]["down"]` and `["unembedding"]`. It has no attention: every position takes the average of the vectors up to its own, so it sees no later token either. Use it unchanged.
#
# Write two functions:
#
# - `example_gradients`: the gradient of each example's loss, as a tree like `parameters` in which every leaf has the batch as its first axis. The loss of an example is the mean cross-entropy over *its own* targets, without those that are `-100`. If all targets of an example are `-100`, its loss is 0.
# - `largest_gradient`: the norm of each example's gradient, and the index of the example with the largest. The norm is that of the whole tree, as if all its entries stood in one long vector.
#
# *Before you code:* one example of a batch has 3 targets, another has 30, and the rest is padding. Instead of the mean of each, you differentiate each example's share of the batch mean: its summed loss, divided by 33. How does that change the comparison?
#
# <details><summary>Answers, after you have tried</summary>
#
# The gradient of the first becomes 11 times smaller, that of the second only 1.1 times. Long examples then look hard because they are long.
# </details>
#
# <details><summary>Hint: one example</summary>
#
# Write the loss of one example first: a function of `parameters`, `tokens` of shape `(length,)` and `targets` of shape `(length,)`. `vmap(..., in_dims=(None, 0, 0))` passes the same parameters to all examples and one row of the tokens and of the targets to each.
# </details>
# <details><summary>Hint: padding under vmap</summary>
#
# `nats[targets != -100]` differs in size between examples, which `vmap` does not allow. Multiply by the mask, sum, and divide by the number of targets, which must not be 0.
# </details>
# <details><summary>Hint: the norm of a tree</summary>
#
# The square root of a sum over all leaves. `leaf.flatten(1).square().sum(dim=1)` is what one leaf adds for each example.
# </details>


# %% exercise="largest_gradient"
def example_gradients(parameters: dict, tokens: torch.Tensor, targets: torch.Tensor) -> dict:
    """Return the gradient of each example's loss, as a tree with the batch as first axis.

    Shapes: tokens and targets (batch, length); a leaf of parameters of shape (...) becomes one of
    shape (batch, ...).
    """

    ### BEGIN SOLUTION
    def loss(parameters, tokens, targets):
        counts = targets != -100
        log_p = averaging_logits(parameters, tokens).log_softmax(dim=-1)
        nats = -log_p.gather(-1, targets.clamp(min=0)[:, None]).squeeze(-1)
        return (nats * counts).sum() / counts.sum().clamp(min=1)

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    return each(parameters, tokens, targets)
    ### END SOLUTION


def largest_gradient(
    parameters: dict, tokens: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the norm of each example's gradient, and the index of the largest.

    Shapes: tokens and targets (batch, length); returns norms (batch,) and the index, a single
    number.
    """

    ### BEGIN SOLUTION
    def squares(tree):
        if isinstance(tree, dict):
            return sum(squares(branch) for branch in tree.values())
        return tree.flatten(1).square().sum(dim=1)

    norms = squares(example_gradients(parameters, tokens, targets)).sqrt()
    return norms, norms.argmax()
    ### END SOLUTION


# %% [markdown]
# {{exercise check_set_model}}
#
# Which token of a set does not belong? All of them are of one kind, except one. The order of the tokens means nothing here, so a model that finds the odd one must not depend on it. An encoder without positions has this property, called **permutation equivariance**: if the tokens are reordered, the scores are the same numbers, reordered in the same way. Padding lets sets of different sizes share a batch, and it must not matter either.
#
# Both properties are easy to lose: by positions that a library adds by default, by a mask that is causal, by code that expects padding only at the end. The loss shows none of this. A test does.
#
# Write this test. `check_set_model` gets `model(tokens, mask)`. `tokens` and `mask` are `(length,)`, with at most 16 tokens from 0 to 15; the mask is True at real tokens, of which there must be at least one, and padding may be anywhere. The model returns a score for each token, `(length,)`: how odd it is. The scores at padding have no meaning. The test raises `AssertionError` if one of these does not hold:
#
# 1. with the tokens and their mask reordered, the model returns the scores in the new order;
# 2. without the padding, the model returns the same scores for the real tokens.
#
# Your test must reject nine models: one with positions, one with a very weak dependence on positions, one with a causal mask, one that attends less to distant tokens (on a circle, where the last token is a neighbour of the first), one that compares every token with the first, one that sorts its tokens and returns the scores in that order, one that takes the padding to be at the end wherever it is, one that ignores the mask, and one whose mean over the set is divided by the length with padding. Correct models must pass. Some of them compute in `float32`, or return `-inf` or arbitrary numbers at padding: differences below $10^{-6}$ are rounding, those above $10^{-4}$ are not.
#
# *Before you code:* you reverse the order of the tokens. Which of the nine models does this not reveal? And which of `model(tokens[order], mask[order])[order]` and `model(tokens, mask)[order]` should `model(tokens[order], mask[order])` be equal to?
#
# <details><summary>Answers, after you have tried</summary>
#
# The one that depends on distances: two tokens are as far apart as before. Nor does it reveal the models that ignore the mask or count the padding: they do so in every order. The second: entry `i` of the new input is token `order[i]` of the old one.
# </details>
#
# <details><summary>Hint: which orders?</summary>
#
# A reversal keeps distances, and so does moving all tokens around the circle. A few orders from `torch.randperm` with a seeded generator do not.
# </details>
# <details><summary>Hint: padding</summary>
#
# Reorder the padding with the tokens, so that it is no longer at the end. Compare scores at real tokens only. `tokens[mask]` is the set without padding.
# </details>


# %% exercise="check_set_model"
def check_set_model(model) -> None:
    """Raise AssertionError if a model's scores depend on the order of a set or on its padding.

    model(tokens, mask): two tensors (length,); returns scores (length,).
    """
    ### BEGIN SOLUTION
    tokens = torch.tensor([3, 14, 7, 1, 12, 9, 5, 0, 10])
    mask = torch.arange(9) < 6
    scores = model(tokens, mask)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        order = torch.randperm(9, generator=generator)
        reordered = model(tokens[order], mask[order])
        off = (reordered - scores[order])[mask[order]].abs().max()
        assert off < 1e-5, f"in the order {order.tolist()}, a score changes by {off:.2g}"
    off = (model(tokens[mask], mask[mask]) - scores[mask]).abs().max()
    assert off < 1e-5, f"without the padding, a score changes by {off:.2g}"
    ### END SOLUTION


# %% [markdown]
# ## Look at what you built
#
# First, your decoding loop and your cross-attention with trained weights: `greedy_translation`, with `swapped_cross_attention` inside, translates dates that were not in the training data. (These cells are not graded.)

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
print(f"{share_right(answers):.1%} of {len(pairs)} are correct")

# %% [markdown]
# Next, see how little the loss alone reveals. Each row puts one wrong part into both layers: your part with a wrong argument. A training log shows only the first two columns; a comparison of logits shows the third. Look for the rows that you would have believed. One row changes nothing, as chapter 3 explained: a bias of the keys adds the same number to all scores of a query, which does not change the softmax.


# %%
def changing(names, change):
    """Run your part with changed weights, like a part that omits or scales something."""

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
    """Let target token i see only the first i + 1 source tokens."""
    places = torch.arange(memory.shape[1])
    columns = [
        swapped_cross_attention(column, memory, source_mask & (places <= i), *rest)
        for i, column in enumerate(x.split(1, dim=1))
    ]
    return torch.cat(columns, dim=1)


wrong = {
    "no bias of the keys": forgetting("key.bias"),
    "padding visible": padding_seen,
    "square root of d_model": scaling((16 / 64) ** 0.5),
    "no scale": scaling(16**0.5),
    "no gain of the norm": forgetting("gain", 1.0),
    "no bias of the values": forgetting("value.bias"),
    "no bias of the norm": forgetting("bias"),
    "no bias of the queries": forgetting("query.bias"),
    "causal mask on the source": causal_on_the_source,
}
mine = decode_with(swapped_cross_attention, target, memory, source_mask)
print(f"{'':30} nats per character correct  largest change of a logit")
print(f"{'yours':30} {nats_per_token(mine):18.6f} {share_right(answers):6.1%}")
for name, sublayer in wrong.items():
    logits = decode_with(sublayer, target, memory, source_mask)
    change = (logits - original).abs().max()
    right = share_right(translate_with(sublayer))
    print(f"{name:30} {nats_per_token(logits):18.6f} {right:6.1%}   {change:.5f}")

# %% [markdown]
# Last, see where the trained decoder attends. For one date, the plots show how much each generated character attends to each character of the source, in the second layer, for each of the four heads. The heads move from the year to the month to the day, wherever these are in the source.

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
figure.supxlabel("generated")
figure.supylabel("source")
figure.tight_layout()
plt.show()

# %% [markdown]
# {{question why_three_attentions}}
#
# An encoder-decoder has three kinds of attention. For each: where do its queries, keys and values come from, and which mask does it need in training and in generation? Why can the decoder be trained on all positions of a target in one forward pass, although it generates one token at a time? Answer in three to five sentences.

# %% [markdown] written="why_three_attentions" points=3
# **What earns the points**, one each:
#
# 1. Encoder: all from the source, padding mask. Decoder self-attention: all from the target, causal mask. Cross-attention: queries from the target, keys and values from the encoder's output, the source's padding mask.
# 2. In training the target is known and is the decoder's input, shifted by one position (teacher forcing).
# 3. The causal mask lets the output at each position depend on no later input, so all positions give the same predictions as in step-by-step decoding with the same tokens.
#
# **Often seen, and wrong:** A causal mask in the cross-attention; no padding mask there; “the model sees the target in training, so it learns to copy it”, which the shift and the mask prevent.
