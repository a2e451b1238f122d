"""Training steps per second beside the libraries that a user would pick instead.

Sizes, data, loss and optimizer are the same for all: GPT-2's architecture with GELU in its exact
form, which is the faster one on processors, and AdamW in its fused form. Run by `make bench`, with
the peers of `pip install -e .[bench]`.
"""

import functools

import pytest
import torch
import torch.nn.functional as F
from peers import PEERS, NanoGPT
from torch import nn

from groundup import presets
from groundup.core.models import DecoderOnly, EncoderDecoder
from groundup.core.multihead import MultiHeadAttention

pytestmark = [pytest.mark.benchmark, pytest.mark.filterwarnings("ignore")]  # the peers warn

FILE = "training_speed.json"
VOCAB_SIZE = 256
SIZES = {
    "A": {"num_layers": 4, "d_model": 128, "num_heads": 4, "length": 64, "batch_size": 12},
    "B": {"num_layers": 6, "d_model": 384, "num_heads": 6, "length": 256, "batch_size": 8},
}
for sizes in SIZES.values():
    sizes["vocab_size"] = VOCAB_SIZE


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def groundup(num_layers, d_model, num_heads, length, attention, bias=True, **_):
    config = presets.decoder_only(
        "gpt2_small",
        vocab_size=VOCAB_SIZE,
        max_len=length,
        d_model=d_model,
        num_layers=num_layers,
        num_heads=num_heads,
        d_ff=4 * d_model,
        activation="gelu",
        bias=bias,
        dropout=0.0,
    )
    model = DecoderOnly(config, generator())
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.backend = attention
    return model


def training_step(model, inputs, targets, precision="float32", compiled=False):
    """Make a function that does one step; every call does the next one."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    forward = torch.compile(model, dynamic=False) if compiled else model

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            logits = forward(*inputs)
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


def compare(name, ours, peers, inputs, targets, interleaved, record, has_bf16, goals, tokens):
    """Write two rows: float32 and eager; then everybody at the best settings of their own."""
    eager = {
        (label, "float32 eager"): training_step(build(), inputs, targets)
        for label, build in {**ours, **peers}.items()
    }
    eager = interleaved(eager, calls=1 if tokens > 1000 else 10)
    own = min((k for k in eager if k[0] in ours), key=eager.get)
    peer = min((k for k in eager if k[0] in peers), key=eager.get)
    ratio = eager[peer] / eager[own]
    rates = {f"{k[0]}, {k[1]}": round(tokens / s) for k, s in eager.items()}
    goal_eager, goal_best, goal_own_best = goals
    met_eager = record(
        FILE,
        f"{name}: training tokens per second, float32 eager",
        round(tokens / eager[own]),
        round(tokens / eager[peer]),
        peer[0],
        round(ratio, 3),
        f"at least {goal_eager} times the fastest peer",
        ratio >= goal_eager,
        ours_settings=own[0],
        all_candidates=rates,
    )
    best = {}
    for label, build in {**ours, **peers}.items():
        for precision in ("float32", "bfloat16") if has_bf16 else ("float32",):
            settings = f"{precision} compiled"
            best[label, settings] = training_step(build(), inputs, targets, precision, True)
    # The fastest eager ones run along: ratios come from one run.
    reference = {k: training_step({**ours, **peers}[k[0]](), inputs, targets) for k in (own, peer)}
    best = interleaved(best | reference, calls=1 if tokens > 1000 else 10)
    own = min((k for k in best if k[0] in ours), key=best.get)
    own_peer = min((k for k in best if k[0] in peers), key=best.get)
    rates = {f"{k[0]}, {k[1]}": round(tokens / s) for k, s in best.items()}
    met_best = True
    for words, rival, goal in (
        ("its fastest float32 eager", peer, goal_best),
        ("its own best settings", own_peer, goal_own_best),
    ):
        if goal is None:
            continue
        ratio = best[rival] / best[own]
        met_best &= record(
            FILE,
            f"{name}: training tokens per second, our best settings, peer at {words}",
            round(tokens / best[own]),
            round(tokens / best[rival]),
            rival[0],
            round(ratio, 3),
            f"at least {goal}, with bf16 instructions",
            ratio >= goal,
            ours_settings=", ".join(own),
            peer_settings=rival[1],
            all_candidates=rates,
        )
    assert met_eager
    # What the goals count on is missing where bf16 is emulated: the rows say so.
    assert met_best or not has_bf16


@pytest.mark.parametrize(("size", "goals"), [("A", (1.0, 1.8, 1.1)), ("B", (1.0, 1.75, 1.1))])
def test_a_language_model_trains_faster_than_with_other_libraries(
    interleaved, record, has_bf16, size, goals
):
    sizes = SIZES[size]
    shape = (sizes["batch_size"], sizes["length"])
    numbers = torch.randint(VOCAB_SIZE, (shape[0], shape[1] + 1), generator=generator())
    ours = {
        f"groundup, {attention} attention": functools.partial(
            groundup, attention=attention, **sizes
        )
        for attention in ("explicit", "fused")
    }
    peers = {label: functools.partial(build, **sizes) for label, build in PEERS.items()}
    compare(
        f"language model {size}",
        ours,
        peers,
        (numbers[:, :-1],),
        numbers[:, 1:],
        interleaved,
        record,
        has_bf16,
        goals,
        tokens=shape[0] * shape[1],
    )


@pytest.mark.parametrize("size", SIZES)
def test_a_model_without_biases_trains_as_fast_as_nanogpt_s(interleaved, record, size):
    sizes = SIZES[size]
    shape = (sizes["batch_size"], sizes["length"] + 1)
    numbers = torch.randint(VOCAB_SIZE, shape, generator=generator())
    inputs, targets, num_tokens = (numbers[:, :-1],), numbers[:, 1:], numbers[:, 1:].numel()
    seconds = interleaved(
        {
            "ours": training_step(
                groundup(**sizes, attention="fused", bias=False), inputs, targets
            ),
            "nanoGPT": training_step(NanoGPT(**sizes), inputs, targets),
        },
        calls=1 if num_tokens > 1000 else 10,
    )
    ratio = seconds["nanoGPT"] / seconds["ours"]
    assert record(
        "nanogpt_speed.json",
        f"language model {size} without biases: training tokens per second, float32 eager",
        round(num_tokens / seconds["ours"]),
        round(num_tokens / seconds["nanoGPT"]),
        "nanoGPT's architecture",
        round(ratio, 3),
        "at least 1.0 times the peer",
        ratio >= 1.0,
    )


class TorchTranslator(nn.Module):
    def __init__(self, num_layers, d_model, num_heads, src_len, tgt_len):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB_SIZE, d_model)
        self.places = nn.Embedding(max(src_len, tgt_len), d_model)
        self.transformer = nn.Transformer(
            d_model,
            num_heads,
            num_layers,
            num_layers,
            4 * d_model,
            0.0,
            F.relu,
            batch_first=True,
            norm_first=True,
        )
        self.transformer.encoder.enable_nested_tensor = False
        mask = nn.Transformer.generate_square_subsequent_mask(tgt_len)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, source, target):
        source, target = (
            self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
            for tokens in (source, target)
        )
        out = self.transformer(source, target, tgt_mask=self.mask, tgt_is_causal=True)
        return out @ self.tokens.weight.T


def translator(num_layers, d_model, num_heads, src_len, tgt_len, attention):
    config = presets.encoder_decoder(
        "tiny",
        source_vocab_size=VOCAB_SIZE,
        vocab_size=VOCAB_SIZE,
        source_max_len=src_len,
        max_len=tgt_len,
        d_model=d_model,
        num_layers=num_layers,
        num_encoder_layers=num_layers,
        num_heads=num_heads,
        d_ff=4 * d_model,
        positions="learned",
        tie_source_embeddings=True,
    )
    model = EncoderDecoder(config, generator())
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.backend = attention
    return model


TRANSLATORS = {
    "1 M": {"num_layers": 2, "d_model": 128, "num_heads": 4, "src_len": 48, "tgt_len": 40},
    "6 M": {"num_layers": 4, "d_model": 224, "num_heads": 7, "src_len": 48, "tgt_len": 40},
}


@pytest.mark.parametrize("size", TRANSLATORS)
def test_a_translator_trains_faster_than_torch_s(interleaved, record, has_bf16, size):
    sizes, batch_size = TRANSLATORS[size], 16
    source = torch.randint(VOCAB_SIZE, (batch_size, sizes["src_len"]), generator=generator())
    target = torch.randint(VOCAB_SIZE, (batch_size, sizes["tgt_len"] + 1), generator=generator())
    ours = {
        f"groundup, {attention} attention": functools.partial(
            translator, attention=attention, **sizes
        )
        for attention in ("explicit", "fused")
    }
    compare(
        f"encoder-decoder of {size} parameters",
        ours,
        {"torch.nn.Transformer": functools.partial(TorchTranslator, **sizes)},
        (source, target[:, :-1]),
        target[:, 1:],
        interleaved,
        record,
        has_bf16,
        (1.05, 1.85, None),
        tokens=batch_size * sizes["tgt_len"],
    )
