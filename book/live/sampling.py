"""The next token of a trained model, with the settings of a sampler to move, and draws from it.

    sampling.show(model, tokenizer, {"sure": text, "unsure": other}, name="next")

Temperature comes first, then top-k, then top-p, as `groundup generate` has it. The page gets the
logits of the whole vocabulary, in 32 bits, and filters, softmax, entropy and draws are worked out
there.
"""

from collections.abc import Mapping
from html import escape

import torch
from torch import Tensor

from groundup.core.models import DecoderOnly
from groundup.data.tokenizers import Tokenizer
from groundup.generation.sampling import top_p
from live import Figure, packed, sentence, table

NUM_SHOWN = 12
"""How many tokens have a row of their own; one more row takes the others together."""
NUCLEUS = 0.9
"""The share that top-p keeps at first."""


def show(
    model: DecoderOnly, tokenizer: Tokenizer, texts: Mapping[str, str], *, name: str
) -> Figure:
    """Make the settings of a sampler movable.

    Args:
        model: Whose next token is drawn.
        tokenizer: Of the model.
        texts: What comes before, by a name for each; the first is shown first.
        name: Small letters, digits and hyphens; tells several figures of a page apart.

    Raises:
        ValueError: If there is no text, or if one is empty or too long for the model.

    """
    if not texts:
        raise ValueError("texts must hold at least one text, got none")
    longest = model.config.max_len
    places = []
    for label, text in texts.items():
        ids = tokenizer.encode(text)
        if not 1 <= len(ids) <= longest:
            raise ValueError(f"a text must have from 1 to {longest} tokens, got {len(ids)}")
        with torch.no_grad():
            places.append((label, text, model(torch.tensor([ids]))[0, -1]))
    names = [visible(tokenizer.decode([token])) for token in range(model.config.vocab_size)]
    data = {
        "places": [
            {"name": label, "text": text, "logits": packed(logits)}
            for label, text, logits in places
        ],
        "names": names,
        "nucleus": NUCLEUS,
    }
    _, text, logits = places[0]
    content = (
        f'<p class="sampling-text">… <code>{escape(text.splitlines()[-1].strip())}</code></p>\n'
        + sentence(_said(logits))
        + table(["token", "model", "after"], _rows(logits, names))
    )
    about = "A distribution of the next token, with the settings of a sampler to move."
    return Figure("sampling", name, data, content, about)


def visible(piece: str) -> str:
    """Write a token so that its spaces and line breaks are seen."""
    return piece.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥")


def _rows(logits: Tensor, names: list[str]) -> list[list[str]]:
    before, after = logits.softmax(dim=-1), top_p(logits, NUCLEUS).softmax(dim=-1)
    order = logits.argsort(dim=-1, descending=True, stable=True).tolist()
    rows = [
        [f"<code>{escape(names[token])}</code>", _percent(before[token]), _percent(after[token])]
        for token in order[:NUM_SHOWN]
    ]
    rest = order[NUM_SHOWN:]
    others = [f"{len(rest):,} others", _percent(before[rest].sum()), _percent(after[rest].sum())]
    return [*rows, others]


def _percent(share: Tensor) -> str:
    return "cut" if share == 0 else f"{100 * share.item():.1f}\N{NO-BREAK SPACE}%"


def _entropy(probabilities: Tensor) -> float:
    return torch.special.entr(probabilities.double()).sum().item()


def _said(logits: Tensor) -> str:
    probabilities = logits.softmax(dim=-1)
    after = top_p(logits, NUCLEUS).softmax(dim=-1)
    kept = after > 0
    lost = 100 * probabilities[~kept].sum().item()
    mine, own = _entropy(after), _entropy(probabilities)
    alike = torch.tensor(mine).exp().item()
    return (
        f"Temperature 1.00, all tokens, top-p {NUCLEUS:.2f}: {int(kept.sum()):,} of "
        f"{len(logits):,} tokens are kept, {lost:.1f}\N{NO-BREAK SPACE}% of the probability is "
        f"cut off. Entropy {mine:.2f} nats, as of a die with {alike:.1f} faces; the model’s own is "
        f"{own:.2f} nats."
    )
