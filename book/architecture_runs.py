"""Small runs for the pages below chapter 6: any model, and the same small model of dates."""

from collections.abc import Callable

import torch
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
    d_ff=128,
    num_encoder_layers=1,
    num_layers=1,
)
"""A small encoder-decoder for dates."""


def descend(
    model: nn.Module,
    loss_of_a_batch: Callable[[nn.Module], Tensor],
    num_steps: int,
    peak: float,
    warm_up: int = 30,
) -> list[float]:
    """Minimise a loss; the learning rate rises along a line and falls along another."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, betas=(0.9, 0.98), fused=True)
    losses = []
    for step in range(num_steps):
        for group in optimizer.param_groups:
            group["lr"] = peak * min(1, (step + 1) / warm_up) * (1 - 0.95 * step / num_steps)
        loss = loss_of_a_batch(model)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    return losses


def learn_dates(
    num_steps: int,
    kind: type[EncoderDecoder] = EncoderDecoder,
    change: Callable[[Inputs, Tensor], Inputs] | None = None,
) -> tuple[EncoderDecoder, list[float]]:
    """Train a model to translate dates; `change` may give it other inputs than it should have."""
    model = kind(CONFIG, torch.Generator().manual_seed(0))
    draws = torch.Generator().manual_seed(1)

    def loss_of_a_batch(model: nn.Module) -> Tensor:
        pairs = dates.draw(32, draws, dates.train_days)
        inputs, targets = next(pair_batches(pairs, 32, source_characters, target_characters))
        if change is not None:
            inputs = change(inputs, targets)
        return cross_entropy(model(**inputs), targets)

    return model, descend(model, loss_of_a_batch, num_steps, peak=1e-2, warm_up=50)
