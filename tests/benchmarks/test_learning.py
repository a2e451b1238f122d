"""How much is learned per processor second: our default recipe beside the classic one.

Text: Tiny Shakespeare, one token per character, context 64, 0.8 million parameters. The
last tenth is the validation set, and all of it is scored. The classic recipe is what small
character models are usually trained with: learned positions, LayerNorm, GELU, AdamW. Ours was
chosen on the first nine tenths alone, of which the last tenth was held out for that.

Run by `make bench`. Without `TINY_SHAKESPEARE=path` in the environment the text is downloaded.
"""

import os
import statistics
import time
from dataclasses import replace

import pytest
import torch

from groundup import presets
from groundup.core.models import DecoderOnly
from groundup.data.batches import Batch, language_model_batches
from groundup.data.texts import text_file, tiny_shakespeare
from groundup.data.tokenizers import CharacterTokenizer
from groundup.training.loop import TrainingConfig, evaluate, optimizers_for, train
from groundup.training.setup import choose_setup, set_up
from groundup.training.tasks import TextTask

pytestmark = [pytest.mark.benchmark, pytest.mark.filterwarnings("ignore")]  # the peers warn

FILE = "learning.json"
CONTEXT = 64
SEEDS = (0, 1, 2)
GOAL_NATS, GOAL_NATS_AT_ALL_SECONDS = 1.91, 1.60

CLASSIC = TrainingConfig(
    steps=2000, learning_rate=1e-3, warmup_steps=100, final_learning_rate=0.1, beta2=0.99
)
CLASSIC_BATCH = 12
BATCH = 20
RECIPE = TextTask.RECIPES["modern"].training
TIMED = 40
"""Updates by which the pace of a recipe is found."""
ROOM = 0.94
"""The share of the time that our updates are planned to take: what a shared machine adds comes on
top."""


@pytest.fixture(scope="module")
def text():
    path = os.environ.get("TINY_SHAKESPEARE")
    data = text_file(path) if path else tiny_shakespeare()
    tokenizer = CharacterTokenizer.fit(data.train + data.validation)
    parts = (data.train, data.validation)
    return tokenizer.vocab_size, *(torch.tensor(tokenizer.encode(part)) for part in parts)


def classic(vocab_size, seed):
    config = presets.decoder_only(
        "gpt2_small",
        vocab_size=vocab_size,
        max_len=CONTEXT,
        d_model=128,
        num_layers=4,
        num_heads=4,
        d_ff=512,
        activation="gelu",
        dropout=0.0,
    )
    return DecoderOnly(config, torch.Generator().manual_seed(seed))


def modern(vocab_size, seed):
    config = presets.decoder_only("modern", vocab_size=vocab_size, max_len=CONTEXT)
    return DecoderOnly(config, torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def setup(text):
    """What `groundup train` chooses for our recipe on this machine. The classic one is float32."""
    batches = language_model_batches(text[1], BATCH, CONTEXT, torch.Generator().manual_seed(0))
    # Compiling would take longer than it saves in a run of a minute or two.
    return choose_setup(modern(text[0], 0), next(iter(batches)), RECIPE, compiled=False)


def learn(text, build, config, batch_size, seed, setup=None):
    """Train once; give the model and processor seconds."""
    vocab_size, train_tokens, _ = text
    generator = torch.Generator().manual_seed(seed)
    model = build(vocab_size, seed)
    if setup is not None:
        set_up(model, setup)
        config = replace(config, precision=setup.precision)
    batches = language_model_batches(train_tokens, batch_size, CONTEXT, generator)
    optimizer = optimizers_for(model, config)
    start = time.process_time()
    for _ in train(model, batches, optimizer, config, record_every=100):
        pass
    return model, time.process_time() - start


def updates_within(share, text, setup):
    """Count the updates of ours that take a share of the classic recipe's processor seconds."""
    paces = []
    for seed in range(5):
        _, classic_seconds = learn(
            text, classic, replace(CLASSIC, steps=TIMED), CLASSIC_BATCH, seed
        )
        _, our_seconds = learn(text, modern, replace(RECIPE, steps=TIMED), BATCH, seed, setup)
        paces.append(classic_seconds / our_seconds)
    return int(share * ROOM * CLASSIC.steps * statistics.median(paces))


def score(model, tokens):
    """Average over the whole text, cut into windows of which none sees the one before it."""
    end = (len(tokens) - 1) // CONTEXT * CONTEXT
    inputs, targets = (tokens[i : end + i].view(-1, CONTEXT) for i in (0, 1))
    parts = zip(inputs.split(64), targets.split(64), strict=True)
    nats, _ = evaluate(model, [Batch({"tokens": tokens}, own) for tokens, own in parts])
    return nats


def learn_in_turns(text, setup, share):
    """Train by both recipes, seed by seed, so that whatever slows one slows the other."""
    steps = updates_within(share, text, setup)
    runs = {"classic": [], "ours": []}
    ours = replace(RECIPE, steps=steps)
    for seed in SEEDS:
        for name, learned in (
            ("classic", learn(text, classic, CLASSIC, CLASSIC_BATCH, seed)),
            ("ours", learn(text, modern, ours, BATCH, seed, setup)),
        ):
            model, seconds = learned
            runs[name].append((score(model, text[-1]), seconds))
    nats = {name: statistics.mean(n for n, _ in own) for name, own in runs.items()}
    seconds = {name: statistics.mean(s for _, s in own) for name, own in runs.items()}
    table = {
        "nats_per_token": {k: [round(n, 4) for n, _ in own] for k, own in runs.items()},
        "cpu_seconds": {k: [round(s, 1) for _, s in own] for k, own in runs.items()},
        "steps": {"classic": CLASSIC.steps, "ours": steps},
        "setup": setup.name,
        "seeds": len(SEEDS),
    }
    peer = f"the classic recipe, {CLASSIC.steps} steps, {nats['classic']:.3f} nats per token"
    return nats, seconds, peer, table


def test_the_default_recipe_learns_in_a_quarter_of_the_time(text, setup, record):
    nats, seconds, peer, table = learn_in_turns(text, setup, 0.25)
    share = seconds["ours"] / seconds["classic"]
    assert record(
        FILE,
        f"processor seconds to below {GOAL_NATS} nats per token of Tiny Shakespeare, "
        "and of the whole classic run",
        round(seconds["ours"], 1),
        round(seconds["classic"], 1),
        peer,
        round(share, 3),
        f"at most {GOAL_NATS} nats in at most 0.25 of the seconds",
        nats["ours"] <= GOAL_NATS and share <= 0.25,
        ours_nats=round(nats["ours"], 4),
        **table,
    )


def test_the_default_recipe_learns_more_in_the_same_time(text, setup, record):
    nats, seconds, peer, table = learn_in_turns(text, setup, 1.0)
    share = seconds["ours"] / seconds["classic"]
    assert record(
        FILE,
        "nats per token of Tiny Shakespeare in the processor seconds of the classic recipe",
        round(nats["ours"], 4),
        round(nats["classic"], 4),
        peer,
        round(nats["ours"] / nats["classic"], 4),
        f"at most {GOAL_NATS_AT_ALL_SECONDS} nats in at most as many seconds",
        nats["ours"] <= GOAL_NATS_AT_ALL_SECONDS and share <= 1.0,
        seconds_over_classic=round(share, 3),
        **table,
    )
