"""Figures that compute on pages of their own, in the colours of the book, and in a browser."""

from pathlib import Path

import torch
from axe_playwright_python.sync_playwright import Axe
from books import AXE, BOOK
from live import Figure
from playwright.sync_api import Page

from groundup import presets
from groundup.core.models import DecoderOnly
from groundup.data.tokenizers import ByteTokenizer

THEMES = {  # the variables of the book's theme that the figures use
    "light": {"text-base": "#222832", "text-muted": "#48566b", "background": "#ffffff"},
    "dark": {"text-base": "#ced6dd", "text-muted": "#9ca4af", "background": "#121212"},
}
STATIC = BOOK / "_static"


def small_model(preset: str = "llama", **choices: object) -> tuple[DecoderOnly, ByteTokenizer]:
    """Two layers of four heads of random weights, large enough to look somewhere."""
    sizes = {"d_model": 24, "num_layers": 2, "num_heads": 4, "d_ff": 13, "dropout": 0.0}
    tokenizer = ByteTokenizer()
    config = presets.decoder_only(
        preset, vocab_size=tokenizer.vocab_size, max_len=40, **(sizes | choices)
    )
    generator = torch.Generator().manual_seed(7)
    model = DecoderOnly(config, generator).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) / 4)
    return model, tokenizer


def scripts() -> list[Path]:
    """List the scripts of the figures. `live.js` comes last: a book loads them in any order."""
    return [STATIC / "explorer.js", *sorted(STATIC.glob("live-*.js")), STATIC / "live.js"]


def written(shown: list[Figure], theme: str = "light") -> str:
    variables = "".join(f"--pst-color-{name}: {value};" for name, value in THEMES[theme].items())
    variables += "--pst-color-border: #8a929c; --pst-color-primary: #1971d5;"
    style = "".join(
        (STATIC / name).read_text("utf-8") for name in ("course.css", "explorer.css", "live.css")
    )
    script = "".join(f"<script>{path.read_text('utf-8')}</script>" for path in scripts())
    pieces = "".join(each._repr_html_() for each in shown).replace(
        "<table>", '<div class="wide"><table>'
    )
    pieces = pieces.replace("</table>", "</table></div>")  # as mended_html frames them
    return (
        f'<!DOCTYPE html><html lang="en" data-theme="{theme}"><head><meta charset="utf-8">'
        '<title>Page</title><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>html {{{variables}}} body {{margin: 24px; font: 16px system-ui, sans-serif;"
        "color: var(--pst-color-text-base); background: var(--pst-color-background)}"
        f"{style}</style>{script}</head><body><main><h1>Page</h1>{pieces}</main></body></html>"
    )


def open_page(
    context, tab: Page, folder: Path, *shown: Figure, theme: str = "light", **options
) -> Page:
    """Open figures in a browser; no script may complain, and nothing else may be asked for.

    A page without options opens in the tab that all tests share: a new one starts a process.
    """
    path = folder / "page.html"
    path.write_text(written(list(shown), theme), encoding="utf-8")
    page = context(**options).new_page() if options else tab
    page.mouse.move(0, 0)
    complaints, asked = [], []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    assert complaints == []
    assert asked == [path.as_uri()]
    return page


def violations(page: Page) -> list[tuple[str, list[str]]]:
    """List the rules of accessibility that a page breaks, each with the places."""
    found = Axe().run(page, options=AXE).response["violations"]
    return [(each["id"], [node["html"] for node in each["nodes"]]) for each in found]


def says(page: Page) -> str:
    return page.locator(".live-says").inner_text()


def choose(page: Page, **settings: object) -> None:
    """Set controls by their names, with `_` for a hyphen."""
    for name, value in settings.items():
        control = page.locator(f"[name={name.replace('_', '-')}]")
        if control.evaluate("(control) => control.tagName") == "SELECT":
            control.select_option(str(value))
        elif isinstance(value, bool):
            control.set_checked(value)
        else:
            control.fill(str(value))
