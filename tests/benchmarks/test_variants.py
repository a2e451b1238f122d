"""What the variants of attention lose or gain in loss where heads need keys of their own.

Latent attention is compared with other ways to shrink the cache at exactly equal parameters (what
a smaller attention saves goes into the feed-forward network) on a task for which heads need keys
of their own: twelve items have four attributes each, with a number attached to each attribute; a
question names four attributes, mostly of different items, and the numbers are to be returned.

On text, `book/variant_runs.py` compares attentions, and mixtures of experts with dense networks.

Run by `make bench`, or alone:

    pytest -o addopts=--import-mode=importlib -m benchmark tests/benchmarks/test_variants.py
"""

import statistics

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from groundup.core.layers import FeedForward
from groundup.core.multihead import MultiHeadAttention
from groundup.variants.latent_attention import LatentAttention

pytestmark = [pytest.mark.benchmark, pytest.mark.filterwarnings("ignore")]

FILE = "variants.json"
D_MODEL, NUM_LAYERS, NUM_HEADS, D_HEAD = 64, 2, 4, 16

LOOK_UP_SEEDS, LOOK_UP_STEPS = (0, 1, 2), 600
ITEMS, QUESTIONS, ATTRIBUTES, SYMBOLS = 12, 8, 4, 16
ATTENTIONS = {
    "multi-head": {"num_kv_heads": 4},
    "grouped-query, 2 heads": {"num_kv_heads": 2},
    "latent of 64": {"d_latent": 64},
    "multi-query": {"num_kv_heads": 1},
    "latent of 32": {"d_latent": 32},
}


class LookUp(nn.Module):
    """One attention layer and one feed-forward network, for items and then questions."""

    def __init__(self, attention, d_ff):
        super().__init__()
        self.attributes = nn.Embedding(ATTRIBUTES * SYMBOLS, D_MODEL)
        self.numbers = nn.Embedding(ATTRIBUTES * SYMBOLS, D_MODEL)
        self.attention = attention
        self.feed_forward = FeedForward(D_MODEL, d_ff, "gelu", bias=False)
        self.output = nn.Linear(D_MODEL, ATTRIBUTES * SYMBOLS)

    def forward(self, attributes, numbers, asked):
        items = self.attributes(attributes).sum(-2) + self.numbers(numbers).sum(-2)
        x = torch.cat((items, self.attributes(asked).sum(-2)), dim=1)
        is_item = torch.arange(x.shape[1]) < ITEMS
        x = x + self.attention(x, mask=is_item[None, None, None])
        x = x + self.feed_forward(x)
        return self.output(x[:, ITEMS:]).unflatten(-1, (ATTRIBUTES, SYMBOLS))


def draw_look_ups(batch_size, generator):
    """Each symbol of an attribute belongs to at most one item."""
    shuffled = torch.rand(batch_size, ATTRIBUTES, SYMBOLS, generator=generator).argsort(dim=-1)
    attributes = shuffled[..., :ITEMS].transpose(1, 2)  # (batch, items, attributes)
    numbers = torch.randint(SYMBOLS, attributes.shape, generator=generator)
    chosen = torch.randint(ITEMS, (batch_size, QUESTIONS, ATTRIBUTES), generator=generator)
    asked, answers = attributes.gather(1, chosen), numbers.gather(1, chosen)
    first = torch.arange(ATTRIBUTES) * SYMBOLS  # each attribute has its own rows of the tables
    return (attributes + first, numbers + first, asked + first), answers


def with_attention(seed, num_kv_heads=NUM_HEADS, d_latent=None):
    """Build a model with as many parameters as one of multi-head attention and d_ff of 128."""
    torch.manual_seed(seed)
    if d_latent is None:
        attention = MultiHeadAttention(D_MODEL, NUM_HEADS, num_kv_heads, bias=False)
    else:
        attention = LatentAttention(D_MODEL, NUM_HEADS, D_HEAD, d_latent)
    saved = 4 * D_MODEL**2 - sum(weight.numel() for weight in attention.parameters())
    return LookUp(attention, 128 + saved // (2 * D_MODEL))


def learn_to_look_up(model, seed):
    """Train; give the loss and the fraction of right answers on new items."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(LOOK_UP_STEPS):
        inputs, answers = draw_look_ups(32, generator)
        loss = F.cross_entropy(model(*inputs).flatten(0, -2), answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    inputs, answers = draw_look_ups(256, torch.Generator().manual_seed(99))
    with torch.no_grad():
        logits = model(*inputs)
    nats = F.cross_entropy(logits.flatten(0, -2), answers.flatten()).item()
    return nats, (logits.argmax(dim=-1) == answers).float().mean().item()


def test_latent_attention_beside_other_small_caches(record):
    rows = {name: {"nats": [], "right": []} for name in ATTENTIONS}
    for seed in LOOK_UP_SEEDS:
        for name, choices in ATTENTIONS.items():
            model = with_attention(seed, **choices)
            nats, right = learn_to_look_up(model, seed)
            kept = choices.get("d_latent") or 2 * choices["num_kv_heads"] * D_HEAD
            rows[name]["numbers_kept_per_token"] = kept
            rows[name]["parameters"] = sum(weight.numel() for weight in model.parameters())
            rows[name]["nats"].append(round(nats, 3))
            rows[name]["right"].append(round(right, 3))
    assert len({row["parameters"] for row in rows.values()}) == 1
    ours, peer = (mean(rows[name]) for name in ("latent of 32", "multi-query"))
    assert record(
        FILE,
        "nats per answer, four look-ups at once, latent attention at the cache of multi-query",
        ours,
        peer,
        "multi-query attention",
        round(ours / peer, 3),
        "less than the peer",
        ours < peer,
        attentions=rows,
        steps=LOOK_UP_STEPS,
    )


def mean(row):
    return round(statistics.mean(row["nats"]), 4)
