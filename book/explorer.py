"""A sentence, a trained model, and a page on which a reader sees where each head looks.

In a code cell of a page, as its last line:

    import explorer
    from groundup.pretrained import load

    model, tokenizer = load("reader")
    code = '''def open_file(name):
        if name is None:
            raise ValueError("no name")
        return open_file(name)'''
    explorer.show(model, tokenizer, code, name="reader", layer=2, head=0, token=24)

What the reader can do there: point at a token, tap it, or reach it with Tab and the arrow keys,
and see its weights over the others; choose a head among small maps of them all; change the mask
(causal, past without the token itself, sliding window, none), the scale of the scores (one over
the root of `d_head`, one over `d_head`, none) and their sharpness. Each change is a real
computation: what goes into the page are the queries and keys of every head, after norms and turns
(as attention compares them), and `_static/explorer.js` takes scores and softmax from them. Rounding
them to 16 bits changes no weight of a trained model by 0.001; a test compares them in a browser.

The layers above the first read what those below made of the text with the mask and the scale that
the model was trained with. A switch does not change that; the page says so.

Without scripts, on paper and in JupyterLab, what remains is the text, one sentence and a table with
the three largest weights of each token, for the head that was asked for.

Good for 24 to 40 tokens: longer texts make the small maps unreadable, and 100 kB of page. Layers,
heads and tokens are counted from 0, here and on the page.
"""

import base64
import html
import math
from typing import Any, NamedTuple

import torch
from live import Figure, names_of, percent, sentence, shown

from groundup.core.models import DecoderOnly
from groundup.core.multihead import split_heads
from groundup.data.tokenizers import Tokenizer

MAX_LEN = 64
"""Most tokens; more would not be seen on a phone."""
LARGEST = 2**15 - 1
"""What the largest number of a head's queries, or of its keys, is rounded to."""
NUM_SAID = 3
"""How many keys a sentence names."""


def show(
    model: DecoderOnly,
    tokenizer: Tokenizer,
    text: str,
    *,
    name: str,
    layer: int = 0,
    head: int = 0,
    token: int | None = None,
) -> Figure:
    """Make a text explorable.

    Args:
        model: Whose heads look.
        tokenizer: Of the model.
        text: What is read, from 2 to `MAX_LEN` tokens.
        name: Small letters, digits and hyphens; tells several explorers of a page apart.
        layer: Of the head that is shown first.
        head: That is shown first.
        token: That looks first, by its place; by default the last one.

    Raises:
        ValueError: If the model's scores are not dot products alone, if the text is too short or
            too long, if there is no such layer, head or token, or if the name is none.

    """
    config = model.config
    if config.positions == "alibi" or config.window is not None:
        raise ValueError(
            "an explorer needs scores that are dot products alone, and the whole past, "
            f"got positions={config.positions}, window={config.window}"
        )
    ids = tokenizer.encode(text)
    longest = min(MAX_LEN, config.max_len)
    if not 2 <= len(ids) <= longest:
        raise ValueError(f"text must have from 2 to {longest} tokens, got {len(ids)}")
    token = len(ids) - 1 if token is None else token
    for what, number, count in (
        ("layer", layer, config.num_layers),
        ("head", head, config.num_heads),
        ("token", token, len(ids)),
    ):
        if not 0 <= number < count:
            raise ValueError(f"{what} must be from 0 to {count - 1}, got {what}={number}")

    queries, keys = map(_rounded, queries_and_keys(model, torch.tensor([ids])))
    # From what goes into the page, so that both order nearly equal weights alike.
    query, key = (vectors.read(layer, head) for vectors in (queries, keys))
    scores = query @ key.T / math.sqrt(config.d_head)
    future = torch.ones_like(scores, dtype=torch.bool).triu(diagonal=1)
    weights = scores.masked_fill(future, -math.inf).softmax(dim=-1)
    pieces = [tokenizer.decode([number]) for number in ids]
    names = names_of(pieces)
    data = {
        "layer": layer,
        "head": head,
        "token": token,
        "numLayers": config.num_layers,
        "numHeads": config.num_heads,
        "dHead": config.d_head,
        "names": names,
        "queries": queries.packed(),
        "keys": keys.packed(),
    }
    content = _content(data, pieces, weights.tolist())
    return Figure("explorer", name, data, content, f"An attention explorer of the text: {text}")


@torch.no_grad()
def queries_and_keys(model: DecoderOnly, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Give what the heads of every layer compare, each of shape (layers, heads, length, d_head)."""
    queries, keys = [], []
    positions = torch.arange(tokens.shape[1])
    x = model.embedding(tokens)
    for block in model.blocks:
        attention = block.attention
        read = block.attention_norm(x) if block.norm_order == "pre" else x
        query = attention.query_norm(split_heads(attention.query(read), attention.num_heads))
        key = attention.key_norm(split_heads(attention.key(read), attention.num_kv_heads))
        if attention.rotary is not None:
            query, key = attention.rotary(query, positions), attention.rotary(key, positions)
        key = key.repeat_interleave(attention.num_heads // attention.num_kv_heads, dim=1)
        queries.append(query[0])
        keys.append(key[0])
        x = block(x)
    return torch.stack(queries), torch.stack(keys)


class _Rounded(NamedTuple):
    """Vectors in 16 bits: whole numbers of steps, each head with a step of its own."""

    steps: torch.Tensor
    whole: torch.Tensor

    def read(self, layer: int, head: int) -> torch.Tensor:
        return self.steps[layer, head] * self.whole[layer, head].double()

    def packed(self) -> dict[str, Any]:
        numbers = self.whole.numpy().astype("<i2").tobytes()
        return {
            "steps": self.steps.flatten().tolist(),
            "numbers": base64.b64encode(numbers).decode(),
        }


def _rounded(vectors: torch.Tensor) -> _Rounded:
    largest = vectors.abs().amax(dim=(-2, -1)).clamp(min=torch.finfo(vectors.dtype).tiny)
    steps = largest.double() / LARGEST  # (layers, heads)
    whole = (vectors / steps[..., None, None]).round().to(torch.int16)
    return _Rounded(steps, whole)


def _largest(row: list[float]) -> list[int]:
    """Find the keys with the largest weights, of equal ones the first; those of weight 0 never."""
    order = sorted(range(len(row)), key=lambda key: (-row[key], key))
    return [key for key in order[:NUM_SAID] if row[key] > 0]


def _sentence(names: list[str], row: list[float], query: int) -> str:
    largest = _largest(row)
    said = ", ".join(f"{names[key]} {percent(row[key])}" for key in largest)
    others = sum(weight > 0 for weight in row) - len(largest)
    if not others:
        return f"{names[query]} looks at {said}."
    rest = percent(1 - sum(row[key] for key in largest))
    return f"{names[query]} looks at {said}, and at {others} more {rest}."


def _content(data: dict[str, Any], pieces: list[str], weights: list[list[float]]) -> str:
    """Write what stands on the page before the script wakes it up."""
    names, escape = data["names"], html.escape
    looks = data["token"]
    tokens = ""
    for index, (piece, weight) in enumerate(zip(pieces, weights[looks], strict=True)):
        gap = " explorer-gap" if piece[:1].isspace() else ""
        look = " explorer-looks" if index == looks else ""
        tokens += (
            f'<span class="explorer-token{gap}{look}" style="--shade: {math.sqrt(weight):.4f}">'
            f"{escape(shown(piece))}</span>"
        )
        if "\n" in piece:  # as in the text: a new line, and as far in
            indent = len(piece) - piece.rindex("\n") - 1
            tokens += f'<span class="explorer-line"></span><span style="width: {indent}ch"></span>'
    rows = []
    for name, row in zip(names, weights, strict=True):
        cells = [f"{names[key]} {percent(row[key])}" for key in _largest(row)]
        cells += [""] * (NUM_SAID - len(cells))
        rows.append(
            f'<tr><th scope="row">{escape(name)}</th>'
            + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            + "</tr>"
        )
    said = sentence(_sentence(names, weights[looks], looks))
    return f"""<div class="explorer-tokens">{tokens}</div>
{said}<details class="explorer-table">
<summary>Layer {data["layer"]}, head {data["head"]}: every token, as a table</summary>
<table>
<thead><tr><th scope="col">Token</th><th scope="col">looks most at</th>\
<th scope="col">second</th><th scope="col">third</th></tr></thead>
<tbody>{"".join(rows)}</tbody>
</table>
</details>
"""
