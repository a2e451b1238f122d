"""The terms that a learner of any course on transformers would look for are found."""

import re

from books import BOOK, chapters

LOOKED_FOR = """
ablation, activation checkpointing, activation patching, Adam, ALiBi, attention map, attention sink,
attention weight,
autoregressive, batch, beam search, bfloat16, BPE, byte-pair encoding, causal mask,
cross-attention, cross-entropy, decode step, decoder-only, direct logit attribution, dropout,
embedding, encoder-decoder, encoder-only, entropy, exposure bias, feed-forward network,
FlashAttention, FLOP, GELU, gradient accumulation, gradient clipping, greedy decoding,
grouped-query attention, induction head, key, KV cache, label smoothing, latent attention,
LayerNorm, learning rate, length penalty, linear attention, logit, logit lens, look-ahead mask,
LoRA, loss, mask, masked language modelling, MFU, mixed precision, mixture of experts, MLP,
multi-head attention, multi-query attention, n-gram, NTK, nucleus sampling, one-hot, online
softmax, OV circuit, padding, path patching, perplexity, position interpolation, positional
encoding, post-norm, pre-norm, prefill, prompt, QK circuit, quantisation, query, residual
connection, residual stream, RMSNorm, roofline, RoPE, rotary position embedding, scaled dot-product
attention, scaling law, self-attention, sinusoidal positions, skip connection, sliding window,
softmax, speculative decoding, SwiGLU, teacher forcing, temperature, tied embeddings, token,
tokenizer, top-k, top-p, unembedding, value, vocabulary, warm-up, weight decay, weight tying, YaRN
"""
TEXT = (BOOK / "glossary.md").read_text(encoding="utf-8")
ENTRIES = TEXT.split(":sorted:")[1].strip("`\n").split("\n\n")


def terms():
    return [line for line in TEXT.split(":sorted:")[1].splitlines() if re.match(r"[\w]", line)]


def headings():
    return [
        line
        for pages in chapters().values()
        for page in pages
        for line in re.findall(
            r"^#+ (.+)$", (BOOK / f"{page}.md").read_text(encoding="utf-8"), re.MULTILINE
        )
    ]


def test_what_a_learner_looks_for_is_a_term_or_stands_in_a_heading():
    looked_for = [" ".join(term.split()) for term in LOOKED_FOR.split(",")]
    assert len(looked_for) > 60
    there = "\n".join(terms() + headings())
    found = [re.search(rf"(?<!\w){re.escape(t)}(?!\w)", there, re.IGNORECASE) for t in looked_for]
    assert [term for term, match in zip(looked_for, found, strict=True) if not match] == []


def test_an_entry_has_one_to_three_sentences_that_a_tooltip_can_show():
    explained = [entry.split("\n  ", 1) for entry in ENTRIES if not entry.startswith("  {ref}")]
    assert len(explained) > 80
    for term, text in explained:
        assert 1 <= len(re.findall(r"[.?!](?=\s|$)", text)) <= 3, term
        assert "$" not in text and "`" not in text, term


def test_no_term_is_explained_twice():
    assert len(set(map(str.casefold, terms()))) == len(terms())
