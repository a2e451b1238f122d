"""What figures compute in a browser is what groundup computes, and everyone can reach it."""

import itertools
import json
import math
import re
from functools import partial

import live_pages
import plotstyle
import pytest
import torch
from books import DESK, LOOKS, PHONE
from bs4 import BeautifulSoup
from live import caching, masking, positions, sampling
from live_pages import STATIC, THEMES, choose, open_page, says, scripts, violations

from groundup.core.masks import (
    causal_mask,
    combine_masks,
    masked_softmax,
    padding_mask,
    prefix_mask,
    sliding_window_mask,
)
from groundup.core.positions import alibi_bias, rotate, sinusoidal_table
from groundup.generation.sampling import temperature, top_k, top_p
from groundup.looking.accounting import cache_bytes, decoding_flops, forward_flops

PIECES = ["to", " be", "\n", "or", " not", "·", "·"]  # two fillers
LENGTH, REAL, WINDOW, PREFIX = 7, 5, 2, 3
READ_ALL_COMBINATIONS = """(root) => {
  const control = (name) => root.querySelector(`[name=${name}]`);
  const changed = () => control("causal").dispatchEvent(new Event("input", { bubbles: true }));
  const read = () => [...root.querySelectorAll("tbody tr")].map((row) =>
    [...row.querySelectorAll("[data-weight]")].map((cell) => cell.dataset.weight));
  return [...control("way").options].map((way) => Array.from({ length: 16 }, (_, number) => {
    control("way").value = way.value;
    ["causal", "window", "padding", "prefix"].forEach((name, bit) => {
      control(name).checked = Boolean(number & (1 << bit));
    });
    changed();
    return read();
  }));
}"""

# Fewer key heads than query heads: neither can pass for the other.
small_model = partial(live_pages.small_model, num_kv_heads=2)


def scores() -> torch.Tensor:
    return 2 * torch.randn(LENGTH, LENGTH, generator=torch.Generator().manual_seed(3))


def vectors() -> tuple[torch.Tensor, torch.Tensor]:
    query, key = torch.randn(2, 10, generator=torch.Generator().manual_seed(5))
    return query, key


TEXTS = {"unsure": "to be\nor", "sure": "to be or not to b"}
SLOPE, PLACES, SHIFT = 1 / 16, (11, 5), 7  # the slope of the first of two heads


def masks_figure():
    sizes = {"num_real": REAL, "window": WINDOW, "prefix": PREFIX}
    return masking.show(scores(), PIECES, name="one", **sizes)


def positions_figure():
    choices = {"slope": SLOPE, "places": PLACES, "shift": SHIFT, "furthest": 130}
    return positions.show(*vectors(), name="one", **choices)


def sampling_figure():
    return sampling.show(*small_model(), TEXTS, name="one")


def caching_figure():
    return caching.show(*small_model(), "to be", num_tokens=3, name="one")


FIGURES = {
    "masking": masks_figure,
    "positions": positions_figure,
    "sampling": sampling_figure,
    "caching": caching_figure,
}


@pytest.fixture
def opened(context, tab, tmp_path):
    return partial(open_page, context, tab, tmp_path)


# --- masks ---------------------------------------------------------------------------------


def combined(number: int) -> torch.Tensor:
    """Give the `and` of the masks whose bits are set in a number."""
    masks = (
        causal_mask(LENGTH),
        sliding_window_mask(LENGTH, WINDOW),
        padding_mask(torch.tensor([REAL]), LENGTH)[0, 0],
        prefix_mask(torch.tensor([PREFIX]), LENGTH)[0, 0],
    )
    everything = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    chosen = [mask for bit, mask in enumerate(masks) if number & (1 << bit)]
    return combine_masks(everything, *chosen)


def test_every_combination_of_masks_gives_the_weights_of_groundup(opened):
    page = opened(masks_figure())
    cells = page.locator(".masking").evaluate(READ_ALL_COMBINATIONS)
    seen = torch.tensor([[[list(map(float, row)) for row in m] for m in way] for way in cells])
    ways = {
        "zeros": masked_softmax,
        "infinity": lambda s, mask: s.masked_fill(~mask, -math.inf).softmax(dim=-1),
        "finite": lambda s, mask: s.masked_fill(~mask, -1e9).softmax(dim=-1),
        "after": lambda s, mask: s.softmax(dim=-1) * mask,
    }
    masks = [combined(number) for number in range(16)]
    true = torch.stack([torch.stack([f(scores(), mask) for mask in masks]) for f in ways.values()])
    torch.testing.assert_close(seen, true, rtol=0, atol=1e-6, equal_nan=True)
    assert true.isnan().any() and not true[0].isnan().any()  # some row is empty
    assert (true[0] - true[3]).abs().max() > 0.1  # and something is normalised again


def test_a_row_with_nothing_in_it_is_told_in_each_way(opened):
    page = opened(masks_figure())
    choose(page, query=6)
    nothing = "‘·’ (2nd) may look at nothing"
    endings = {
        "zeros": ": all its weights are 0.",
        "infinity": ", and its weights are not a number.",
        "finite": ", and looks at all 7 keys alike, the hidden ones.",
        "after": ": all its weights are 0.",
    }
    for way, ending in endings.items():
        choose(page, way=way)
        assert says(page) == f"{nothing}{ending} Empty rows: ‘·’ (2nd)."
    sums = page.locator("tbody td:last-child").all_inner_texts()
    assert sums[0] != "1.00" and sums[-1] == "0.00"  # what was cut off is not shared out
    choose(page, way="zeros", window=False)
    assert says(page).endswith("No row is empty.")


def test_a_place_is_switched_by_its_cell_and_by_its_box(opened):
    page = opened(masks_figure())
    back = page.get_by_role("button", name="Single places as they were")
    assert back.is_disabled()
    row = page.locator("tbody tr").nth(3)
    before = row.inner_text()
    allowed = combined(0b111)[3].clone()
    for key, is_by_cell in ((3, True), (0, False), (1, True), (3, True), (3, False)):
        if is_by_cell:
            row.locator("td").nth(key).click()
        else:
            page.locator(f"[name=key-{key}]").click()
        allowed[key] = ~allowed[key]
        seen = row.locator("[data-weight]").evaluate_all(
            "(cells) => cells.map((cell) => Number(cell.dataset.weight))"
        )
        true = masked_softmax(scores()[3:4], allowed[None])[0]
        assert (torch.tensor(seen) - true).abs().max() < 1e-6
        boxes = page.locator(".masking fieldset [type=checkbox]")
        assert [box.is_checked() for box in boxes.all()] == allowed.tolist()
    assert says(page).startswith("‘or’ may look at 3 of 7 keys: ‘to’ ")
    back.click()
    assert row.inner_text() == before


# --- positions -----------------------------------------------------------------------------


def true_scores(i: int, j: int) -> list[float]:
    """Ask groundup: four parts, their sum, both turned, a price on distance."""
    query, key = vectors()
    table, root = sinusoidal_table(200, len(query)), math.sqrt(len(query))
    parts = [a @ b for a, b in itertools.product((query, table[i]), (key, table[j]))]
    added = (query + table[i]) @ (key + table[j])
    turned = rotate(query[None], torch.tensor([i])) @ rotate(key[None], torch.tensor([j])).T
    biased = query @ key / root + alibi_bias(2, 200)[0, i, j]
    return [float(score) / root for score in (*parts, added, turned)] + [float(biased)]


def test_scores_at_any_places_are_those_of_groundup(opened):
    page = opened(positions_figure())
    for i, j, shift in ((11, 5, 7), (0, 63, 0), (63, 2, 130), (40, 40, 91)):
        choose(page, query=i, key=j, shift=shift)
        seen = page.locator("tbody tr").evaluate_all(
            """(rows) => rows.map((row) =>
              [...row.querySelectorAll("td")].map((cell) => Number(cell.dataset.score)))"""
        )
        places = ((i, j), (i + shift, j + shift), (i + shift, j))
        true = torch.tensor([true_scores(*pair) for pair in places]).T
        assert (torch.tensor(seen) - true).abs().max() < 1e-5
        written = [
            float(text.replace("−", "-")) for text in page.locator("tbody td").all_inner_texts()
        ]
        assert (torch.tensor(written).view_as(true) - true).abs().max() < 0.0051


def test_only_what_is_added_changes_when_both_move_on(opened):
    page = opened(positions_figure())
    heights = """(lines) => lines.map((line) => {
      const all = line.getAttribute("points").split(" ").map((p) => Number(p.split(",")[1]));
      return Math.max(...all) - Math.min(...all);
    })"""
    chart = page.locator(".positions-chart")
    added, rotary, bias = chart.first.locator("polyline").evaluate_all(heights)
    assert added > 20 and rotary == bias == 0
    assert min(chart.last.locator("polyline").evaluate_all(heights)) > 20
    assert re.search(r"rotary\) [−\d.]+ stays, linear bias [−\d.]+ stays", says(page))
    changed = page.locator("tbody tr:has(td:nth-child(3).positions-other) th").all_inner_texts()
    assert changed == ["what, where", "where, what", "sinusoids added"]


# --- sampling ------------------------------------------------------------------------------


@torch.no_grad()
def settled(text: str, tau: float, k: int, p: float) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Ask groundup for the logits, what is left of their softmax, and the share cut off."""
    model, tokenizer = small_model()
    logits = model(torch.tensor([tokenizer.encode(text)]))[0, -1]
    warm = temperature(logits, tau)
    after = top_p(top_k(warm, k), p).softmax(dim=-1).double()
    return logits, after, float(warm.softmax(dim=-1).double()[after == 0].sum())


KEPT = [1, 2, 3, 5, 10, 20, 40, 100, 200, 256]


def test_every_setting_leaves_what_groundup_leaves(opened):
    page = opened(sampling_figure())
    own = {}
    for place, tau, k, p in (
        ("unsure", 1.0, 256, 0.9),
        ("unsure", 0.5, 40, 0.75),
        ("unsure", 3.0, 20, 0.95),
        ("sure", 0.7, 256, 1.0),
        ("sure", 2.0, 1, 0.05),
        ("sure", 1.35, 100, 0.6),
    ):
        choose(page, place=list(TEXTS).index(place), temperature=tau, top_p=p)
        choose(page, top_k=KEPT.index(k))
        logits, after, lost = settled(TEXTS[place], tau, k, p)
        order = logits.argsort(descending=True, stable=True)
        true = torch.cat(
            (after[order[: sampling.NUM_SHOWN]], after[order[sampling.NUM_SHOWN :]].sum()[None])
        )
        seen = page.locator("tbody tr").evaluate_all(
            "(rows) => rows.map((row) => Number(row.dataset.share))"
        )
        assert (torch.tensor(seen, dtype=torch.double) - true).abs().max() < 1e-6
        assert (page.locator("tbody tr.sampling-cut").count() > 0) == bool((true == 0).any())
        entropy = float(torch.special.entr(after).sum())
        own[place] = float(torch.special.entr(logits.softmax(dim=-1)).sum())
        said = says(page)
        assert f"{int((after > 0).sum())} of 256 tokens are kept" in said
        assert f"{100 * lost:.1f}\xa0% of the probability is cut off" in said
        assert f"Entropy {entropy:.2f} nats, as of a die with {math.exp(entropy):.1f}" in said
        assert f"own is {own[place]:.2f} nats" in said
    assert own["sure"] != own["unsure"]


def test_draws_follow_the_distribution_that_is_shown(opened):
    page = opened(sampling_figure())
    choose(page, temperature=1.5, top_k=KEPT.index(10))
    assert page.locator(".sampling-drawn").inner_text() == "Nothing drawn yet."
    button = page.get_by_role("button", name="Draw 100", exact=True)
    for _ in range(30):
        button.click()
    page.get_by_role("button", name="Draw 1", exact=True).click()
    counts = torch.tensor([float(n) for n in page.locator("tbody td:last-child").all_inner_texts()])
    assert counts.sum() == 3001
    assert page.locator(".sampling-drawn").inner_text().startswith("3001 drawn, ")
    logits, after, _ = settled(TEXTS["unsure"], 1.5, 10, 0.9)
    order = logits.argsort(descending=True, stable=True)[: sampling.NUM_SHOWN]
    expected = 3001 * after[order]
    kept = expected > 0
    assert counts[:-1][~kept].sum() == counts[-1] == 0
    squares = ((counts[:-1] - expected)[kept] ** 2 / expected[kept]).sum()
    freedom = torch.tensor((int(kept.sum()) - 1) / 2)
    assert 1e-3 < torch.special.gammaincc(freedom, squares / 2) < 0.999  # neither far nor exact
    page.get_by_role("button", name="Forget draws").click()
    assert page.locator(".sampling-drawn").inner_text() == "Nothing drawn yet."


# --- caching -------------------------------------------------------------------------------


def test_each_step_counts_as_groundup_counts(opened):
    model, _ = small_model()
    config, prompt, num_tokens = model.config, 5, 3
    page = opened(caching_figure())
    read, reread, kept, again = 0, 0, 0, 0
    for number in range(num_tokens + 1):
        choose(page, step=number + 1)
        length, new = prompt + number, 1 if number else prompt
        read, reread = read + new, reread + length
        full = sum(forward_flops(config, 1, length).values())
        again += full
        kept += sum(decoding_flops(config, 1, length - 1).values()) if number else full
        cells = page.locator(".caching table").last.locator("td").all_inner_texts()
        assert cells[:6] == [
            *(str(read), str(reread)),
            *(f"{flops / 1e6:,.1f}" for flops in (kept, again)),
            *(f"{cache_bytes(config, 1, max_len=length):,}", "0"),
        ]
        assert cells[6] == cells[7]  # the same token, as probable
        words = page.locator(".caching-tokens tbody td").all_inner_texts()
        rows = [words[4 * row : 4 * row + 4] for row in range(prompt + num_tokens)]
        old = length - new
        assert rows[:old] == [["–", "kept", "again", "again"]] * old
        assert rows[old:length] == [["new"] * 4] * new
        assert rows[length:] == [[""] * 4] * (prompt + num_tokens - length)


def test_with_and_without_a_cache_the_model_writes_the_same():
    model, tokenizer = small_model()
    steps = caching.steps_of(model, tokenizer.encode("to be"), 3)
    for step in steps:
        assert step["kept"] == pytest.approx(step["again"], abs=1e-6)
        assert step["keptFlops"] <= step["againFlops"]
    assert steps[-1]["keptFlops"] < steps[-1]["againFlops"] / 4
    assert [step["new"] for step in steps] == [5, 1, 1, 1]


# --- all of them ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FIGURES)
def test_a_figure_says_the_same_with_and_without_its_script(opened, kind):
    texts = []
    for is_awake in (False, True):
        page = opened(FIGURES[kind](), java_script_enabled=is_awake)
        if not is_awake:
            assert page.locator("input, select, button, canvas").count() == 0
        width = page.locator("table").first.locator("thead tr").last.locator("td, th").count()
        width = min(width, 3) if kind == "sampling" else width  # draws need a script
        cells = [
            row.locator("td, th").all_inner_texts()[:width] for row in page.locator("tr").all()
        ]
        texts.append((says(page), [[text.strip() for text in row] for row in cells]))
        assert page.locator(".live-says").get_attribute("aria-live") == "polite"
    assert texts[0] == texts[1]
    assert len(texts[0][1]) > 4


def test_nothing_is_announced_before_a_slider_rests(opened):
    page = opened(FIGURES["sampling"](), viewport=DESK)  # in a tab with a clock of its own
    page.clock.install(time=0)
    page.clock.pause_at(1000)  # or it goes on by itself, beyond a rest if the machine is busy
    is_busy = page.locator(".live-says[aria-busy=true]")
    for warmer in (1.5, 1.6, 1.7):
        choose(page, temperature=warmer)
        page.clock.run_for(300)
        assert is_busy.count() == 1
        assert f"Temperature {warmer:.2f}" in says(page)
    page.clock.run_for(200)
    assert is_busy.count() == 0
    choose(page, temperature=1.7)
    assert is_busy.count() == 0


CONTROLS = {
    "masking": "causal window width padding prefix given way query BUTTON "
    "key-0 key-1 key-2 key-3 key-4 key-5 key-6",
    "positions": "query key shift",
    "sampling": "place temperature top-k top-p BUTTON BUTTON BUTTON",
    "caching": "step BUTTON BUTTON",
}

STATE = """() => document.querySelector("main").innerText +
  [...document.querySelectorAll("input")].map((input) => input.checked + input.value)"""


@pytest.mark.parametrize("kind", FIGURES)
def test_a_keyboard_reaches_everything_and_sees_where_it_is(opened, kind):
    page = opened(FIGURES[kind]())
    for control in page.locator(f".{kind} :is(input, select)").all():  # each has a name
        assert control.evaluate("(one) => [...one.labels].map((l) => l.innerText).join('')").strip()
    reached = []
    for _ in CONTROLS[kind].split():
        page.keyboard.press("Tab")
        active = page.evaluate("document.activeElement.name || document.activeElement.tagName")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", active
        before = page.evaluate(STATE)
        press = {"BUTTON": "Enter", "checkbox": "Space"}
        kind_of = page.evaluate("document.activeElement.type")
        page.keyboard.press(press.get(active) or press.get(kind_of) or "ArrowDown")
        is_idle = page.evaluate("document.activeElement.ariaDisabled") == "true"
        assert is_idle or page.evaluate(STATE) != before, active
        reached.append(active)
        if active in ("window", "padding"):  # as it was, or the next control would be hidden
            page.keyboard.press("Space")
    assert reached == CONTROLS[kind].split()


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("look", ["light", "phone"])
def test_figures_are_accessible_and_no_wider_than_a_phone(opened, theme, look):
    page = opened(*(make() for make in FIGURES.values()), theme=theme, **LOOKS[look])
    page.locator("[name=prefix]").check()
    page.get_by_role("button", name="Draw 100", exact=True).click()
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]


def test_fingers_find_what_can_be_touched_on_a_phone(opened):
    page = opened(*(make() for make in FIGURES.values()), viewport=PHONE)
    targets = page.locator(
        ".live :is(button, select, input[type=range], label:has(input)), td[data-weight]"
    )
    boxes = [target.bounding_box() for target in targets.all() if target.is_visible()]
    assert len(boxes) > 60
    assert min(min(box["width"], box["height"]) for box in boxes) >= 24  # WCAG 2.5.8
    for way in ("zeros", "infinity"):  # 100 and NaN are the longest
        choose(page, way=way)
        cut = page.locator(".masking td").evaluate_all(
            """(cells) => cells.filter((cell) => {
              const text = document.createRange();
              text.selectNodeContents(cell);
              const { paddingLeft, paddingRight } = getComputedStyle(cell);
              const room = cell.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight);
              return text.getBoundingClientRect().width > room;
            }).map((cell) => cell.textContent)"""
        )
        assert cut == []


def test_who_wants_no_motion_gets_none(opened):
    durations = []
    for wish in ("no-preference", "reduce"):
        page = opened(masks_figure(), reduced_motion=wish)
        durations.append(
            page.locator(".live-bar").first.evaluate(
                "(bar) => getComputedStyle(bar, '::before').transitionDuration"
            )
        )
    assert durations == ["0.15s", "0s"]


def test_two_figures_of_a_kind_do_not_meet(opened):
    pair = [caching.show(*small_model(), "to be", num_tokens=3, name=name) for name in ("a", "b")]
    page = opened(*pair)
    before = page.locator("#caching-b").inner_html()
    page.locator("#caching-a [name=step]").fill("4")
    assert page.locator("#caching-b").inner_html() == before
    assert page.locator("#caching-a .live-says").inner_text().startswith("Step 4 of 4: ")


def test_scripts_are_small_and_know_no_address():
    texts = [path.read_text(encoding="utf-8") for path in scripts()]
    assert len(texts) == 6
    assert sum(len(text.encode()) for text in texts) < 40_000
    assert not re.search(
        r"https?:(?!//www\.w3\.org/2000/svg)|fetch\(|import\(|XMLHttp", "".join(texts)
    )


def test_colours_are_those_of_the_book():
    style = (STATIC / "live.css").read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--live-(\w+): (#\w+);", block))
        for block in re.findall(r"\n[^\n]*\.live \{([^}]*--live-[^}]*)\}", style)[:2]
    )
    for name in ("blue", "orange", "green", "muted"):
        color = getattr(plotstyle, name.upper())
        assert (light[name], dark[name]) == (color, plotstyle.DARK[color])


def test_a_text_cannot_end_the_script_that_carries_it():
    pieces = ["</script>", "<b>&amp;"]
    sizes = {"num_real": 2, "window": 1, "prefix": 1}
    shown = masking.show(torch.zeros(2, 2), pieces, name="x", **sizes)._repr_html_()
    page = BeautifulSoup(shown, "html.parser")
    assert page.find("b") is None
    assert json.loads(page.script.string)["names"] == ["‘</script>’", "‘<b>&amp;’"]
    assert [cell.get_text() for cell in page.select("tbody th")] == pieces


def test_where_there_is_no_browser_a_sentence_says_so():
    assert all(repr(make()).endswith("(It needs a browser.)") for make in FIGURES.values())


WRONG = {
    "a long text": (
        lambda: masking.show(
            torch.zeros(9, 9), ["x"] * 9, num_real=5, window=3, prefix=3, name="x"
        ),
        r"scores must be a square for from 2 to 8 tokens, got shape \(9, 9\) for 9 tokens",
    ),
    "a wide window": (
        lambda: masking.show(torch.zeros(3, 3), "abc", num_real=2, window=5, prefix=1, name="x"),
        "window must be from 1 to 3 tokens, got window=5",
    ),
    "two widths": (
        lambda: positions.show(
            torch.ones(4), torch.ones(6), slope=1.0, places=(1, 2), shift=3, furthest=5, name="x"
        ),
        r"two vectors of one even width, got shapes \(4,\) and \(6,\)",
    ),
    "a far place": (
        lambda: positions.show(
            torch.ones(4), torch.ones(4), slope=1.0, places=(1, 64), shift=3, furthest=5, name="x"
        ),
        r"places must be from 0 to 63 and the shift from 0 to furthest, got places=\(1, 64\)",
    ),
    "no text": (
        lambda: sampling.show(*small_model(), {}, name="x"),
        "texts must hold at least one text, got none",
    ),
    "an empty text": (
        lambda: sampling.show(*small_model(), {"empty": ""}, name="x"),
        "a text must have from 1 to 40 tokens, got 0",
    ),
    "a window": (
        lambda: caching.show(*small_model(window=3), "to be", num_tokens=3, name="x"),
        "the cache must keep every token, got window=3",
    ),
    "a text with no room": (
        lambda: caching.show(*small_model(), "to be or not", num_tokens=5, name="x"),
        "together at most 16 tokens, got 12 and num_tokens=5",
    ),
    "a name": (
        lambda: caching.show(*small_model(), "to be", num_tokens=3, name="Two words"),
        "name must be small letters, digits and hyphens, got name='Two words'",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_shown_is_refused(wrong):
    show, message = WRONG[wrong]
    with pytest.raises(ValueError, match=message):
        show()
