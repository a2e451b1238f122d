"""Small runs for chapters 3 and 4: other attentions and other feed-forward networks, on text.

All models have two blocks and read the characters of the Python reference; seeds, batches and the
schedule are the same. Attentions are compared at exactly equal parameters: what one saves or needs
more than multi-head attention, the feed-forward network gets or gives. Experts are compared with a
dense network at equal operations per token (but for the router's) and at equal parameters. From the
root of the project,

    python book/variant_runs.py

trains 18 models in about four minutes of CPU time and writes
`tests/benchmarks/records/variant_runs.json`.
"""

import datetime
import functools
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from groundup.core.config import DecoderOnlyConfig
from groundup.core.models import DecoderOnly
from groundup.core.positions import Rotary
from groundup.data.batches import Batch, language_model_batches
from groundup.data.texts import python_reference
from groundup.data.tokenizers import CharacterTokenizer
from groundup.looking.throughput import machine
from groundup.training.loop import TrainingConfig, adamw, cross_entropy, evaluate, train
from groundup.variants.latent_attention import LatentAttention
from groundup.variants.mixture_of_experts import MixtureOfExperts, balance_losses

D_MODEL, NUM_LAYERS, NUM_HEADS, D_HEAD, D_FF = 64, 2, 4, 16, 128
LENGTH, BATCH_SIZE, HELD_OUT = 64, 8, 12_800
SEEDS = (0, 1, 2)
RECIPE = TrainingConfig(steps=700, learning_rate=3e-3, warmup_steps=70)
EXPERTS = 4
ATTENTIONS: dict[str, dict[str, int]] = {
    "multi-head": {},
    "grouped-query, 2 heads": {"num_kv_heads": 2},
    "latent of 56 + 8": {"d_latent": 56, "d_rotary": 8, "d_ff": 88},
}
"""As in DeepSeek-V2, the rotated part of the latent's keys is half as wide as a head."""
FEED_FORWARDS: dict[str, dict[str, Any]] = {
    "dense": {},
    "4 experts": {"balance": 0.0},
    "4 experts, balance loss": {"balance": 0.01},
    "dense, as many parameters": {"d_ff": EXPERTS * D_FF + EXPERTS // 2},  # with the router's
}
"""The experts are as wide as the first dense network, and each token uses one."""
RECORD = Path(__file__).parents[1] / "tests" / "benchmarks" / "records" / "variant_runs.json"


@functools.cache
def text() -> tuple[Tensor, Batch, int]:
    """Return the training tokens, held-out windows as one batch, and the size of the vocabulary."""
    data = python_reference()
    tokenizer = CharacterTokenizer.fit([data.train, data.validation])
    tokens = torch.tensor(tokenizer.encode(data.train))
    held_out = torch.tensor(tokenizer.encode(data.validation))[: HELD_OUT + 1]
    windows = held_out.unfold(0, LENGTH + 1, LENGTH)
    return tokens, Batch({"tokens": windows[:, :-1]}, windows[:, 1:]), tokenizer.vocab_size


def new_model(
    seed: int,
    num_kv_heads: int = NUM_HEADS,
    d_latent: int | None = None,
    d_rotary: int = 0,
    d_ff: int | None = None,
    balance: float | None = None,
) -> DecoderOnly:
    """Make a model of two blocks.

    Args:
        seed: Of the initial weights.
        num_kv_heads: Heads of keys and values.
        d_latent: Width of the latent; None for an attention without one.
        d_rotary: Width of the rotated key beside the latent.
        d_ff: Width of the feed-forward network; by default as wide as leaves the parameters equal
            to those of multi-head attention.
        balance: Of the balance loss of a mixture of experts; None for a dense network.

    """
    saved = 2 * D_MODEL * (NUM_HEADS - num_kv_heads) * D_HEAD
    config = DecoderOnlyConfig(
        vocab_size=text()[2],
        max_len=LENGTH,
        d_model=D_MODEL,
        num_layers=NUM_LAYERS,
        num_heads=NUM_HEADS,
        num_kv_heads=num_kv_heads,
        d_ff=d_ff or D_FF + saved // (2 * D_MODEL),
        positions="rotary",
        norm="rms",
        norm_order="pre",
        activation="gelu",
        bias=False,
        dropout=0.0,
        tie_embeddings=False,
    )
    generator = torch.Generator().manual_seed(seed)
    model = DecoderOnly(config, generator)
    rotary = Rotary(LENGTH, d_rotary) if d_rotary else None
    for block in model.blocks:
        part: Any = block
        if d_latent is not None:
            sizes = (D_MODEL, NUM_HEADS, D_HEAD, d_latent)
            part.attention = LatentAttention(*sizes, rotary=rotary, is_causal=True)
            draw_weights(part.attention, generator)
        if balance is not None:
            part.feed_forward = MixtureOfExperts(D_MODEL, D_FF, EXPERTS, 1, "gelu", bias=False)
            draw_weights(part.feed_forward, generator)
    return model


def draw_weights(part: nn.Module, generator: torch.Generator) -> None:
    """Draw weights as the library does, by the width that a layer reads, but at most `D_MODEL`."""
    for name, weight in part.named_parameters():
        writers = 2 * NUM_LAYERS if name.endswith(("output.weight", "down.weight")) else 1
        std = math.sqrt(2 / (5 * min(weight.shape[1], D_MODEL) * writers))
        nn.init.normal_(weight, std=std, generator=generator)


def learn(model: DecoderOnly, seed: int, balance: float = 0.0) -> tuple[float, float]:
    """Train; give the held-out loss, in nats per character, and the CPU seconds of training."""
    tokens, held_out, _ = text()
    batches = language_model_batches(
        tokens, BATCH_SIZE, LENGTH, torch.Generator().manual_seed(seed)
    )
    start = time.process_time()
    with balance_losses(model) as losses:  # one for each mixture of experts, or none

        def loss(*given: Any) -> Tensor:
            nats = cross_entropy(*given) + balance * sum(losses)
            losses.clear()
            return nats

        list(train(model, batches, adamw(model, RECIPE), RECIPE, record_every=100, loss=loss))
    return evaluate(model, [held_out])[0], time.process_time() - start


def cache_bytes(model: DecoderOnly) -> int:
    """Count the bytes that each token adds to the cache, in float32."""
    layers: list[Any] = [block.attention for block in model.blocks]
    if isinstance(layers[0], LatentAttention):
        return sum(layer.new_cache(1, 1).num_bytes for layer in layers)
    return sum(layer.num_bytes for layer in model.new_cache(1, 1).layers)


@torch.no_grad()
def fractions_used(model: DecoderOnly) -> list[list[float]]:
    """Give the fraction of held-out tokens that each expert of each layer gets."""
    used = []

    def note(layer: MixtureOfExperts, inputs: tuple) -> None:
        _, chosen = layer.route(*inputs)
        used.append([round(x, 3) for x in chosen.float().flatten(0, -2).mean(dim=0).tolist()])

    hooks = [
        module.register_forward_pre_hook(note)
        for module in model.modules()
        if isinstance(module, MixtureOfExperts)
    ]
    model(**text()[1].inputs)
    for hook in hooks:
        hook.remove()
    return used


def measure(choices: dict[str, Any]) -> dict[str, Any]:
    """Train one kind of model from each seed."""
    nats, seconds, used = [], [], []
    for seed in SEEDS:
        model = new_model(seed, **choices)
        loss, cpu = learn(model, seed, choices.get("balance") or 0.0)
        nats.append(round(loss, 4))
        seconds.append(round(cpu, 1))
        used.append(fractions_used(model))
    row: dict[str, Any] = facts(choices) | {"nats": nats, "cpu_seconds": seconds}
    return row if "balance" not in choices else row | {"used": used}


def facts(choices: dict[str, Any]) -> dict[str, int]:
    """Count what needs no training."""
    model = new_model(0, **choices)
    parameters = sum(weight.numel() for weight in model.parameters())
    return {"parameters": parameters, "cache_bytes_per_token": cache_bytes(model)}


def main() -> None:
    """Train all models, and write the record."""
    torch.set_num_threads(1)
    record: dict[str, Any] = {
        "hardware": f"1 thread of {machine()['processor']}, torch {torch.__version__}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": "python book/variant_runs.py",
        "updates": RECIPE.steps,
        "attentions": {name: measure(choices) for name, choices in ATTENTIONS.items()},
    }
    record["feed_forwards"] = {
        name: measure(choices) if choices else record["attentions"]["multi-head"]
        for name, choices in FEED_FORWARDS.items()
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
