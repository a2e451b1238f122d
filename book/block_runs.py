"""Small runs for chapter 4: one deep model of characters, its norms in different places.

Everything but the place of the norm, the size of the initial writes and the learning rate is the
same in all of them. From the root of the project,

    python book/block_runs.py

trains 45 models in about three minutes and writes `tests/benchmarks/records/post_norm.json`.
"""

import functools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groundup.core.blocks import Block
from groundup.data.texts import python_reference
from groundup.data.tokenizers import CharacterTokenizer

LENGTH, BATCH_SIZE, STEPS, WARM_UP = 16, 16, 200, 50
RECORD = Path(__file__).parents[1] / "tests" / "benchmarks" / "records" / "post_norm.json"


class PostNormBlock(Block):
    """The library's block with its norms in the stream, after each sum."""

    def __init__(self, *sizes: int, **choices: Any):
        super().__init__(*sizes, norm_order="post", **choices)


class OtherBlock(Block):
    """The block of the chapter's opening: it overwrites the stream with its norm."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, add, normalise, add."""
        x = self.attention_norm(x)
        x = x + self.attention(x)
        x = self.feed_forward_norm(x)
        return x + self.feed_forward(x)


class NormOnlyBlock(Block):
    """Each sub-layer reads through a norm and replaces what it has read."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, replace, normalise, replace."""
        x = self.attention(self.attention_norm(x))
        return self.feed_forward(self.feed_forward_norm(x))


class PlainBlock(Block):
    """Neither residual connections nor norms."""

    def forward(self, x: Tensor) -> Tensor:
        """Replace twice."""
        return self.feed_forward(self.attention(x))


@functools.cache
def reference() -> tuple[Tensor, int]:
    """Give the text as token ids, and the size of its vocabulary."""
    data = python_reference()
    tokenizer = CharacterTokenizer.fit(data.train + data.validation)
    return torch.tensor(tokenizer.encode(data.train)), tokenizer.vocab_size


class Model(nn.Module):
    """Characters in, logits of the next characters out; as on the chapter's first page."""

    def __init__(self, kind: type[Block], num_layers: int = 16, d_model: int = 32, seed: int = 0):
        super().__init__()
        vocab_size = reference()[1]
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(vocab_size, d_model)
        choices: dict[str, Any] = {"activation": "gelu", "is_causal": True}
        self.blocks = nn.Sequential(
            *[kind(d_model, 4, 4 * d_model, **choices) for _ in range(num_layers)]
        )
        self.final_norm = nn.LayerNorm(d_model)
        self.unembedding = nn.Linear(d_model, vocab_size)
        for part in self.modules():
            if isinstance(part, nn.Linear):  # outputs as large as inputs
                nn.init.normal_(part.weight, std=part.in_features**-0.5)
                nn.init.zeros_(part.bias)

    def features(self, tokens: Tensor) -> Tensor:
        """Give what the logits are computed from."""
        return self.final_norm(self.blocks(self.embedding(tokens)))

    def forward(self, tokens: Tensor) -> Tensor:
        """Give logits."""
        return self.unembedding(self.features(tokens))


def with_small_writes(model: Model) -> Model:
    """Scale the matrices that write to the stream by one over the root of their number."""
    scale = 1 / math.sqrt(2 * len(model.blocks))
    with torch.no_grad():
        for name, weight in model.blocks.named_parameters():
            if name.endswith(("attention.output.weight", "feed_forward.down.weight")):
                weight *= scale
    return model


def batches(seed: int = 1) -> Iterator[Tensor]:
    """Draw windows of the text, one token longer than the model reads."""
    text, random = reference()[0], torch.Generator().manual_seed(seed)
    while True:
        start = torch.randint(len(text) - LENGTH, (BATCH_SIZE, 1), generator=random)
        yield text[start + torch.arange(LENGTH + 1)]


def loss_of(model: Model, batch: Tensor) -> Tensor:
    """Give the mean loss, in nats per character."""
    return F.cross_entropy(model(batch[:, :-1]).mT, batch[:, 1:])


def learn(model: Model, steps: int, learning_rate: float = 3e-3, warm_up: int = 1) -> list[float]:
    """Train by AdamW and give the loss of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    losses = []
    for step, batch in zip(range(steps), batches(), strict=False):
        optimizer.param_groups[0]["lr"] = learning_rate * min(1.0, (step + 1) / warm_up)
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def variance_over_contexts(model: Model) -> float:
    """Tell how much a logit differs from one context to the next."""
    contexts = reference()[0][:4000].view(250, LENGTH)
    with torch.no_grad():
        return model(contexts).flatten(0, 1).var(dim=0).mean().item()


RUNS: dict[str, tuple[type[Block], bool, int]] = {
    "pre-norm": (Block, False, 1),
    "post-norm": (PostNormBlock, False, 1),
    "post-norm, warm-up": (PostNormBlock, False, WARM_UP),
    "post-norm, small writes": (PostNormBlock, True, 1),
    "post-norm, small writes, warm-up": (PostNormBlock, True, WARM_UP),
}
"""Block, whether its writes start small, and over how many steps the learning rate rises."""


def main() -> None:
    """Train each kind at three learning rates from three seeds, and write what came out."""
    torch.set_num_threads(1)
    rows = []
    for name, (kind, small, warm_up) in RUNS.items():
        for learning_rate in (3e-4, 1e-3, 3e-3):
            for seed in range(3):
                model = Model(kind, seed=seed)
                if small:
                    with_small_writes(model)
                losses = learn(model, STEPS, learning_rate, warm_up)
                row = {"run": name, "learning_rate": learning_rate, "seed": seed}
                row["loss"] = round(sum(losses[-20:]) / 20, 3)
                row["variance_over_contexts"] = float(f"{variance_over_contexts(model):.1e}")
                rows.append(row)
                print(row, flush=True)
    lines = ",\n".join(json.dumps(row) for row in rows)
    RECORD.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
