"""What the explorer shows is what the model computes, and everyone can reach it."""

import itertools
import json
import math
from functools import partial

import explorer
import pytest
import torch
from books import LOOKS, PHONE
from bs4 import BeautifulSoup
from live_pages import THEMES, choose, open_page, says, small_model, violations

from groundup.core.masks import causal_mask, masked_softmax, sliding_window_mask
from groundup.core.models import DecoderOnly
from groundup.data.tokenizers import ByteTokenizer
from groundup.pretrained import load

TEXT = (
    "If the name is bound, the value of the name is the value of the object; "
    "if it is not, the name is an error.\nThe end."
)
SHORT = "to be\nor not to be"
READ_ALL_WEIGHTS = """(root) => {
  const pick = (input) => { input.checked = true; input.dispatchEvent(new Event("change")); };
  const radios = (kind) => [...root.querySelectorAll(`.explorer-${kind} input`)];
  return radios("head").map((head) => {
    pick(head);
    return radios("token").map((token) => {
      pick(token);
      return [...root.querySelectorAll(".explorer-token")]
        .map((label) => Number(label.style.getPropertyValue("--weight")));
    });
  });
}"""


@torch.no_grad()
def weights_of(model: DecoderOnly, tokens: torch.Tensor) -> torch.Tensor:
    """Ask each layer itself: (layers, heads, length, length)."""
    x, weights = model.embedding(tokens), []
    for block in model.blocks:
        read = block.attention_norm(x) if block.norm_order == "pre" else x
        weights.append(block.attention.weights(read)[0])
        x = block(x)
    return torch.stack(weights)


@pytest.fixture
def opened(context, tab, tmp_path):
    return partial(open_page, context, tab, tmp_path)


@pytest.fixture(scope="module")
def reader():
    return load("reader")


def read_all(page) -> torch.Tensor:
    """Choose every head and every token, and read the weights that shade the text."""
    return torch.tensor(page.locator(".explorer").evaluate(READ_ALL_WEIGHTS))


def test_every_weight_that_a_reader_sees_is_one_of_the_trained_model(opened, reader):
    model, tokenizer = reader
    ids = tokenizer.encode(TEXT)
    assert 24 <= len(ids) <= 48
    seen = read_all(opened(explorer.show(model, tokenizer, TEXT, name="reader")))
    true = weights_of(model, torch.tensor([ids]))
    assert (seen - true.flatten(0, 1)).abs().max() < 1e-3
    assert true.max() > 0.5  # else near-uniform weights would agree with anything


@pytest.mark.parametrize(
    "choices",
    [
        {"preset": "llama"},  # rotary, and two query heads to a key head
        {"preset": "modern"},  # normalised queries and keys
        {"preset": "gpt2_small", "norm_order": "post"},  # learned positions, biases
    ],
)
def test_every_kind_of_model_is_shown_as_it_computes(opened, choices):
    model, tokenizer = small_model(**choices)
    seen = read_all(opened(explorer.show(model, tokenizer, SHORT, name="small")))
    true = weights_of(model, torch.tensor([tokenizer.encode(SHORT)]))
    assert (seen - true.flatten(0, 1)).abs().max() < 1e-3
    assert true[0].max() > 0.3


def test_a_switch_is_a_new_computation(opened):
    model, tokenizer = small_model()
    tokens = torch.tensor([tokenizer.encode(SHORT)])
    page = opened(explorer.show(model, tokenizer, SHORT, name="small"))
    queries, keys = explorer.queries_and_keys(model, tokens)
    d_head, length = queries.shape[-1], tokens.shape[1]
    masks = {
        "causal": causal_mask(length),
        "past": causal_mask(length).tril(diagonal=-1),
        "window": sliding_window_mask(length, 3),
        "none": torch.ones(length, length, dtype=torch.bool),
    }
    scales = {"root": (d_head**-0.5, 0), "one": (1.0, -1), "d": (1 / d_head, 2)}
    for mask, scale in itertools.product(masks, scales):
        factor, sharpness = scales[scale]
        choose(page, mask=mask, scale=scale, sharpness=sharpness)
        if mask == "window":
            choose(page, width=3)
        scores = factor * 2.0**sharpness * queries @ keys.mT
        true = masked_softmax(scores, masks[mask]).flatten(0, 1)
        assert (read_all(page) - true).abs().max() < 1e-3, (mask, scale)


def test_one_button_undoes_every_switch(opened):
    page = opened(explorer.show(*small_model(), SHORT, name="small"))
    before, back = read_all(page), page.get_by_role("button", name="As the model has it")
    assert back.is_disabled()
    choose(page, mask="none", scale="one", sharpness=3)
    assert (read_all(page) - before).abs().max() > 0.1
    back.click()
    assert torch.equal(read_all(page), before)
    assert back.is_disabled()


def test_a_width_that_is_no_number_does_not_break_the_window(opened):
    page = opened(explorer.show(*small_model(), SHORT, name="small"))
    assert not page.locator("[name=width]").is_visible()
    choose(page, mask="window", width="")
    assert torch.equal(read_all(page), torch.eye(len(SHORT)).expand(8, -1, -1))


def test_a_token_that_may_look_at_nothing_says_so(opened):
    page = opened(explorer.show(*small_model(), SHORT, name="small", token=0))
    choose(page, mask="past")
    assert says(page) == "‘t’ (1st) may look at nothing: all its weights are 0."


def test_the_page_says_the_same_with_and_without_its_script(opened, reader):
    shown = explorer.show(*reader, TEXT, name="reader", layer=1, head=2, token=13)
    pages = [opened(shown, java_script_enabled=is_awake) for is_awake in (False, True)]
    asleep, awake = (page.locator(".explorer") for page in pages)
    for part in (".live-says", "summary", "table"):
        texts = [root.locator(part).text_content() for root in (asleep, awake)]
        assert texts[0] == texts[1]
    colors = "(all) => all.map((one) => getComputedStyle(one).backgroundColor)"
    found = [root.locator(".explorer-token").evaluate_all(colors) for root in (asleep, awake)]
    assert found[0][13] == found[1][13]
    assert len(set(found[0])) > 1


def test_without_scripts_there_is_text_and_a_table_and_nothing_dead(opened):
    page = opened(explorer.show(*small_model(), SHORT, name="small"), java_script_enabled=False)
    assert page.locator("input, select, button, canvas").count() == 0
    assert "looks at" in says(page)
    page.locator("summary").click()
    assert page.get_by_role("row").count() == len(SHORT) + 1


def test_a_keyboard_reaches_everything(opened):
    page = opened(explorer.show(*small_model(), SHORT, name="small", token=3))
    assert says(page).startswith("‘b’ (1st) looks at ")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert says(page).startswith("‘e’ (1st) looks at ")
    page.keyboard.press("ArrowRight")
    assert says(page).startswith("line break looks at ")
    page.keyboard.press("ArrowLeft")
    before = says(page)
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert page.locator(".explorer-title").inner_text() == "Layer 0, head 1"
    assert says(page) != before
    assert says(page).startswith("‘e’ (1st) looks at ")
    reached = []
    for _ in range(6):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.name || document.activeElement.tagName")
        )
    assert reached == ["mask", "scale", "sharpness", "numbers", "BUTTON", "SUMMARY"]


def test_what_is_said_is_announced_and_only_when_it_changes(opened):
    page = opened(explorer.show(*small_model(), SHORT, name="small"))
    assert page.locator(".live-says").get_attribute("aria-live") == "polite"
    page.evaluate(
        """() => {
          window.changes = 0;
          new MutationObserver(() => { window.changes += 1; })
            .observe(document.querySelector(".live-says"), { childList: true });
        }"""
    )
    page.locator("[name=numbers]").check()
    last = page.locator(".explorer-token").last
    last.hover()
    assert page.evaluate("window.changes") == 0
    page.locator(".explorer-token").first.click()
    assert page.evaluate("window.changes") == 1


def test_pointing_shows_a_token_and_leaving_brings_back_the_chosen_one(opened):
    page = opened(explorer.show(*small_model(), SHORT, name="small", token=6))
    before = says(page)
    page.locator(".explorer-token").nth(4).hover()
    assert says(page).startswith("‘e’ (1st) ")
    page.mouse.move(0, 0)
    assert says(page) == before
    page.locator(".explorer-token").nth(4).click()
    page.mouse.move(0, 0)
    assert says(page).startswith("‘e’ (1st) ")


@pytest.mark.parametrize("has_touch", [False, True])
def test_a_cell_of_the_map_can_be_read_and_chooses_its_token(opened, has_touch):
    model, tokenizer = small_model()
    page = opened(explorer.show(model, tokenizer, SHORT, name="small"), has_touch=has_touch)
    length, query, key = len(SHORT), 9, 3
    frame = page.locator(".explorer-frame")
    box = frame.bounding_box()
    place = {
        "x": box["width"] * (key + 0.5) / length,
        "y": box["height"] * (query + 0.5) / length,
    }
    (frame.tap if has_touch else frame.click)(position=place)
    true = weights_of(model, torch.tensor([tokenizer.encode(SHORT)]))[0, 0, query, key].item()
    said = page.locator(".explorer-cell").inner_text()
    assert said == f"‘n’ gives ‘b’ (1st) {100 * true:.1f}\xa0%."
    assert says(page).startswith("‘n’ looks at ")
    assert page.locator(".explorer-token input").nth(query).is_checked()


def test_numbers_stand_below_the_tokens_when_asked_for(opened):
    page = opened(explorer.show(*small_model(), SHORT, name="small"))
    number = page.locator(".explorer-number").first
    assert not number.is_visible()
    page.locator("[name=numbers]").check()
    numbers = [float(text) for text in page.locator(".explorer-number").all_inner_texts()]
    assert sum(numbers) == pytest.approx(100, abs=1)


def test_the_table_follows_the_head(opened):
    page = opened(explorer.show(*small_model(), SHORT, name="small"))
    page.locator("summary").click()
    before = page.locator("table").inner_text()
    page.get_by_role("radio", name="1.2: layer 1, head 2").check(force=True)
    assert page.locator("summary").inner_text().startswith("Layer 1, head 2")
    assert page.locator("table").inner_text() != before


def test_two_explorers_on_a_page_do_not_meet(opened):
    shown = [explorer.show(*small_model(), SHORT, name=name) for name in ("one", "two")]
    page = opened(*shown)
    first, second = page.locator("#explorer-one"), page.locator("#explorer-two")
    before = second.inner_html()
    first.locator(".explorer-token").first.click()
    first.locator(".explorer-head").last.click()
    assert second.inner_html() == before
    assert second.locator("input:checked").count() == 2


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("look", ["light", "phone"])
def test_an_explorer_is_accessible_also_where_a_token_gets_everything(opened, theme, look):
    shown = explorer.show(*small_model(), SHORT, name="small", token=1)
    page = opened(shown, theme=theme, **LOOKS[look])
    page.locator("[name=numbers]").check()
    page.locator("summary").click()
    choose(page, mask="past")
    assert says(page) == "‘o’ (1st) looks at ‘t’ (1st) 100\xa0%."
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]


def test_fingers_find_the_tokens_and_heads_of_a_real_text_on_a_phone(opened, reader):
    page = opened(explorer.show(*reader, TEXT, name="reader"), viewport=PHONE)
    boxes = [target.bounding_box() for target in page.locator("label:has([type=radio])").all()]
    assert min(min(box["width"], box["height"]) for box in boxes) >= 24  # WCAG 2.5.8
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


class Spelled(ByteTokenizer):
    """Give some bytes a longer spelling, as trained tokenizers do."""

    def decode(self, tokens):
        return {b"1": "</script>", b"2": "<b>&amp;"}[bytes(tokens)]


def test_a_text_cannot_end_the_script_that_carries_it():
    model, _ = small_model()
    shown = explorer.show(model, Spelled(), "1221", name="small")._repr_html_()
    page = BeautifulSoup(shown, "html.parser")
    assert page.find("b") is None
    assert json.loads(page.script.string)["names"][:2] == ["‘</script>’ (1st)", "‘<b>&amp;’ (1st)"]
    texts = [token.get_text() for token in page.select(".explorer-token")]
    assert texts == ["</script>", "<b>&amp;", "<b>&amp;", "</script>"]


def test_a_text_of_forty_tokens_weighs_little(reader):
    model, tokenizer = reader
    text = tokenizer.decode(tokenizer.encode(TEXT * 2)[:40])
    assert len(explorer.show(model, tokenizer, text, name="reader")._repr_html_()) < 150_000


def test_tokens_that_are_spelled_alike_are_counted():
    text = "a" * 23
    page = BeautifulSoup(
        explorer.show(*small_model(), text, name="small")._repr_html_(), "html.parser"
    )
    names = json.loads(page.script.string)["names"]
    assert [names[number - 1] for number in (1, 2, 3, 4, 11, 12, 13, 21, 22, 23)] == [
        f"‘a’ ({ordinal})" for ordinal in "1st 2nd 3rd 4th 11th 12th 13th 21st 22nd 23rd".split()
    ]


def test_a_new_line_of_the_text_begins_a_new_line_on_the_page_as_far_in(opened):
    page = opened(explorer.show(*small_model(), "if x:\n    y\nz", name="small"))
    boxes = [token.bounding_box() for token in page.locator(".explorer-token").all()]
    assert len({box["y"] for box in boxes}) == 3
    first, z = boxes[0], boxes[-1]
    y = boxes[len("if x:\n    ")]
    assert first["x"] == pytest.approx(z["x"], abs=8)
    assert y["x"] > first["x"] + 20


def test_where_there_is_no_browser_a_sentence_says_so():
    assert "needs a browser" in repr(explorer.show(*small_model(), SHORT, name="small"))


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"name": "Two words"}, "name must be small letters, digits and hyphens, got name='Two"),
        ({"name": ""}, "name must be"),
        ({"text": "x"}, "text must have from 2 to 40 tokens, got 1"),
        ({"text": "x" * 41}, "text must have from 2 to 40 tokens, got 41"),
        ({"layer": 2}, "layer must be from 0 to 1, got layer=2"),
        ({"head": -1}, "head must be from 0 to 3, got head=-1"),
        ({"token": 18}, "token must be from 0 to 17, got token=18"),
    ],
)
def test_what_cannot_be_shown_is_refused(choices, message):
    with pytest.raises(ValueError, match=message):
        explorer.show(*small_model(), **{"text": SHORT, "name": "small"} | choices)


@pytest.mark.parametrize("choices", [{"positions": "alibi"}, {"window": 3}])
def test_scores_that_are_more_than_dot_products_are_refused(choices):
    with pytest.raises(ValueError, match="an explorer needs scores that are dot products alone"):
        explorer.show(*small_model(**choices), SHORT, name="small")


def test_queries_and_keys_give_the_scores_of_the_model():
    model, tokenizer = small_model()
    tokens = torch.tensor([tokenizer.encode(SHORT)])
    queries, keys = explorer.queries_and_keys(model, tokens)
    scores = queries @ keys.mT / math.sqrt(model.config.d_head)
    torch.testing.assert_close(
        masked_softmax(scores, causal_mask(scores.shape[-1])),
        weights_of(model, tokens),
        rtol=0,
        atol=1e-6,
    )
