"""A text that a trained model writes token by token, with a cache and without one.

    caching.show(model, tokenizer, prompt, num_tokens=6, name="steps")

The model really writes it, both ways. What is counted for each step goes into the page: tokens
read, operations, bytes of keys and values, and the token that each way would write next.
"""

from html import escape
from typing import Any

import torch

from groundup.core.models import DecoderOnly
from groundup.data.tokenizers import Tokenizer
from groundup.looking.accounting import decoding_flops, forward_flops
from live import Figure, names_of, quoted, sentence, shown, table

MAX_LEN = 16
"""Most tokens at the end; each has a row."""
START = 2
"""The step that is shown first, counted from 1."""
GROUPS = {"with a cache": 2, "without": 2}
HEAD = ["token", "query", "key, value", "query", "key, value"]


def show(
    model: DecoderOnly, tokenizer: Tokenizer, prompt: str, *, num_tokens: int, name: str
) -> Figure:
    """Make the steps of writing walkable.

    Args:
        model: Writes, the most probable token each time.
        tokenizer: Of the model.
        prompt: Is read at once, in the first step.
        num_tokens: How many tokens follow it, each in a step of its own.
        name: Small letters, digits and hyphens; tells several figures of a page apart.

    Raises:
        ValueError: If the model has a window, if nothing is to be written, or if it gets too long.

    """
    if model.config.window is not None:
        raise ValueError(f"the cache must keep every token, got window={model.config.window}")
    ids = tokenizer.encode(prompt)
    if num_tokens < 1 or not 1 <= len(ids) <= MAX_LEN - num_tokens:
        raise ValueError(
            f"prompt and num_tokens must be at least 1 and together at most {MAX_LEN} tokens, "
            f"got {len(ids)} and num_tokens={num_tokens}"
        )
    steps = steps_of(model, ids, num_tokens)
    tokens = ids + [step["next"] for step in steps[:-1]]
    pieces = [tokenizer.decode([token]) for token in tokens]
    names = names_of(pieces)
    for step in steps:
        step["next"] = quoted(tokenizer.decode([step["next"]]))
    data = {"names": names, "pieces": list(map(shown, pieces)), "steps": steps, "start": START}
    content = (
        sentence(_said(steps, names, START))
        + f'<div class="caching-tokens">{table(HEAD, _rows(data, START), groups=GROUPS)}</div>\n'
        + table(["so far", "with a cache", "without"], _counts(steps, START))
    )
    return Figure("caching", name, data, content, "A text written with a cache and without.")


@torch.no_grad()
def steps_of(model: DecoderOnly, ids: list[int], num_tokens: int) -> list[dict[str, Any]]:
    """Let the model write, both ways at once, and count.

    Returns:
        For the prompt and each token after it: `new` tokens, the `length` of the text with them,
        the most probable `next` token, its probability with a cache (`kept`) and without
        (`again`), the operations of both (`keptFlops`, `againFlops`), and the `bytes` of the keys
        and values that are there after the step.

    """
    config = model.config
    cache = model.new_cache(batch_size=1)
    text, new, steps = list(ids), list(ids), []
    for _ in range(num_tokens + 1):
        with_cache = model(torch.tensor([new]), cache=cache)[0, -1].softmax(dim=-1)
        without = model(torch.tensor([text]))[0, -1].softmax(dim=-1)
        following = int(with_cache.argmax())
        assert following == int(without.argmax())
        again = sum(forward_flops(config, 1, len(text)).values())
        before = len(text) - len(new)
        kept = sum(decoding_flops(config, 1, before).values()) if before else again
        steps.append(
            {
                "new": len(new),
                "length": len(text),
                "next": following,
                "kept": with_cache[following].item(),
                "again": without[following].item(),
                "keptFlops": kept,
                "againFlops": again,
                "bytes": sum(each.keys.nbytes + each.values.nbytes for each in cache.layers),
            }
        )
        new = [following]
        text.append(following)
    return steps


def _rows(data: dict[str, Any], number: int) -> list[list[str]]:
    """Say of each token what is done for it: `new`, `again`, `kept`, or nothing."""
    step = data["steps"][number - 1]
    rows = []
    for place, piece in enumerate(data["pieces"]):
        cells = ["", "", "", ""]
        if place < step["length"]:
            is_new = place >= step["length"] - step["new"]
            cells = ["new"] * 4 if is_new else ["–", "kept", "again", "again"]
        rows.append([f"<code>{escape(piece)}</code>", *map(_cell, cells)])
    return rows


def _cell(word: str) -> str:
    return f'<td class="caching-{word}">{word}</td>' if word.isalpha() else word


def _counts(steps: list[dict[str, Any]], number: int) -> list[list[str]]:
    done = steps[:number]
    kept, again = (sum(step[f"{way}Flops"] for step in done) for way in ("kept", "again"))
    following = escape(done[-1]["next"])
    return [
        [
            "tokens read",
            f"{sum(step['new'] for step in done):,}",
            f"{sum(step['length'] for step in done):,}",
        ],
        ["million operations", f"{kept / 1e6:,.1f}", f"{again / 1e6:,.1f}"],
        ["bytes kept", f"{done[-1]['bytes']:,}", "0"],
        [
            "next token",
            *(
                f"{following} {100 * done[-1][way]:.1f}\N{NO-BREAK SPACE}%"
                for way in ("kept", "again")
            ),
        ],
    ]


def _said(steps: list[dict[str, Any]], names: list[str], number: int) -> str:
    step = steps[number - 1]
    new, length, before = step["new"], step["length"], step["length"] - step["new"]
    enters = f"{names[before]} enters" if before else f"the prompt enters, {new} tokens at once"
    reads = f"reads {new} token{'s' if new > 1 else ''}"
    return (
        f"Step {number} of {len(steps)}: {enters}. With a cache the model {reads}, uses the keys "
        f"and values of {before} that it kept, and keeps {step['bytes']:,} bytes from now on. "
        f"Without one it reads all {length}. Both say that {step['next']} comes next."
    )
