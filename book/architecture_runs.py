"""Small runs for the pages below chapter 6: the same small model of dates."""

from collections.abc import Callable

import torch
from descent import descend
from torch import Tensor, nn

from groundup import presets
from groundup.core.models import EncoderDecoder
from groundup.data.batches import pair_batches
from groundup.data.dates import Dates
from groundup.training.loop import cross_entropy

Inputs = dict[str, Tensor]

dates = Dates()
source_characters, target_characters = dates.tokenizers()
CONFIG = presets.encoder_decoder(
    "tiny",
    source_vocab_size=source_characters.vocab_size,
    source_max_len=64,
    vocab_size=target_characters.vocab_size,
    max_len=64,
    d_model=32,
    num_heads=2,
    d_ff=64,
    num_encoder_layers=1,
    num_layers=1,
)
"""A small encoder-decoder for dates."""


def learn_dates(
    num_steps: int,
    kind: type[EncoderDecoder] = EncoderDecoder,
    change: Callable[[Inputs, Tensor], Inputs] | None = None,
) -> tuple[EncoderDecoder, list[float]]:
    """Train a model to translate dates; `change` may give it other inputs than it should have."""
    model = kind(CONFIG, torch.Generator().manual_seed(0))
    draws = torch.Generator().manual_seed(1)

    def loss_of_a_batch(model: nn.Module) -> Tensor:
        pairs = dates.draw(24, draws, dates.train_days)
        inputs, targets = next(pair_batches(pairs, 24, source_characters, target_characters))
        if change is not None:
            inputs = change(inputs, targets)
        return cross_entropy(model(**inputs), targets)

    return model, descend(model, loss_of_a_batch, num_steps, peak=1e-2, warm_up=50)
