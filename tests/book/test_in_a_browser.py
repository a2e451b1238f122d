"""The built book as a reader meets it: in a browser, light, dark and on a phone, without a network.

Each page is opened once and seen in its looks; what was seen is kept, and the tests ask about it.
"""

import contextlib
import functools
import hashlib
import http.server
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from books import AXE, LOOKS, looks_at, pages
from playwright.sync_api import Browser, Locator, Page, expect

PAGES = [*pages(), "search"]
WRITTEN = [page for page in PAGES if not page.startswith("reference/")]  # by hand
OF_COLOURS = ["color-contrast", "link-in-text-block"]
COLOURS = AXE | {"runOnly": OF_COLOURS}
NO_COLOURS = AXE | {"rules": AXE["rules"] | {rule: {"enabled": False} for rule in OF_COLOURS}}
LOOK_AT_THE_PAGE = """() => {
  const root = document.documentElement;
  const seen = (element) => element.offsetParent !== null;
  const text = document.createElement("div");
  text.append(...[...document.querySelectorAll("article p, article li, article td, article dd")]
    .map((element) => element.cloneNode(true)));
  text.querySelectorAll("code, pre, mjx-container").forEach((element) => element.remove());
  return {
    tex: text.textContent.match(/\\\\[(\\[a-zA-Z]+/g) || [],
    formulas: document.querySelectorAll("mjx-container").length,
    broken_formulas: [...document.querySelectorAll("mjx-merror")].map((e) => e.textContent),
    nameless_images: [...document.images].filter((i) => i.alt === null || !i.hasAttribute("alt"))
      .map((i) => i.src),
    figures_without_text: [...document.querySelectorAll("article img")].filter((i) => !i.alt.trim())
      .map((i) => i.src),
    unloaded_images: [...document.images].filter((i) => seen(i) && !i.naturalWidth)
      .map((i) => i.src),
    figures: [...document.querySelectorAll("article .cell_output img")].filter(seen)
      .map((i) => i.className),
    wide_formulas: [...document.querySelectorAll("div.math mjx-container")]
      .filter((e) => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1)
      .map((e) => e.closest("div.math").id || e.textContent),
    overflow: Math.max(0, root.scrollWidth - root.clientWidth),
    unreachable_frames: [...document.querySelectorAll(".wide, div.math, div.math mjx-container")]
      .filter((e) => e.checkVisibility() && e.scrollWidth > e.clientWidth && e.tabIndex < 0)
      .map((e) => e.outerHTML),
    uncopyable_code: [...document.querySelectorAll("div.highlight pre")]
      .filter((pre) => seen(pre) && !pre.closest(".output") && !pre.parentElement
        .querySelector("button.copybtn")).length,
  };
}"""

# Colours that fade into others take a third of a second for each look.
AT_ONCE = """addEventListener("DOMContentLoaded", () => {
  document.head.append(document.createElement("style"));
  document.head.lastChild.textContent = "*, ::before, ::after { transition: none !important }";
})"""

# A page has thousands of pieces of code and of formulas, in a few colours: axe looks at the first
# of each kind, and at the others as plain text, which takes half of the time.
LEAVE_ONE_OF_A_KIND = """() => {
  const met = new Set(), again = [];
  for (const piece of document.querySelectorAll("div.highlight span[class], mjx-container")) {
    const background = getComputedStyle(piece.closest("div.highlight") ?? piece).backgroundColor;
    const kind = [piece.className, getComputedStyle(piece).color, background].join();
    if (met.has(kind)) again.push(piece);
    met.add(kind);
  }
  for (const piece of again)
    if (piece.localName === "span") piece.replaceWith(piece.textContent);
    else [piece.textContent, piece.style.lineHeight] = ["formula", "normal"];
  document.body.normalize();
}"""
# The same for the colours of text. A link has to differ from the text around it, so that one stays.
LEAVE_ONE_TEXT_OF_A_KIND = """() => {
  const met = new Set(), whole = new Set(), again = [];
  const isNew = (element) => {
    const { color, fontSize, fontWeight } = getComputedStyle(element);
    const kind = [color, fontSize, fontWeight];
    for (let above = element; above; above = above.parentElement)
      kind.push(above.localName, above.className, getComputedStyle(above).backgroundColor);
    return met.size < met.add(kind.join()).size;
  };
  const around = (element) => element.closest("p, li, td, dd") ?? element;
  for (const link of document.links) if (isNew(link)) whole.add(around(link));
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const own = texts.currentNode.parentElement;
    if (!whole.has(around(own)) && !isNew(own)) again.push(texts.currentNode);
  }
  again.forEach((text) => text.remove());
}"""


@dataclass
class Visit:
    """What happened when a page was opened, and for each look what was seen and what is wrong."""

    elsewhere: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    quizzes: list[list[tuple[bool, str, str]]] = field(default_factory=list)
    seen: dict[str, dict] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def found(self, what: str) -> dict:
        """Return what was seen of something that should not be there, by look."""
        return {look: seen[what] for look, seen in self.seen.items() if seen[what]}


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serve files without a line of log for each."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(QuietHandler, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def watched(page: Page, address: str) -> Iterator[Visit]:
    """Write down what a page asks for and says. This browser knows no other machine."""
    visit = Visit()

    def asked(request) -> None:
        if not request.url.startswith(address):
            visit.elsewhere.append(request.url)

    def heard(message) -> None:
        if message.type in ("error", "warning"):
            visit.complaints.append(message.text)

    def answered(response) -> None:
        if response.status >= 400:
            visit.missing.append(response.url)

    def failed(error) -> None:
        visit.complaints.append(str(error))

    told = {"request": asked, "console": heard, "pageerror": failed, "response": answered}
    for event, what in told.items():
        page.on(event, what)
    yield visit
    for event, what in told.items():
        page.remove_listener(event, what)


def settle(page: Page) -> None:
    """Wait until formulas are set, figures have come and colours have faded into others."""
    page.evaluate("() => Promise.all([window.MathJax?.startup?.promise, document.fonts.ready])")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")
    page.wait_for_function("document.getAnimations().every((one) => one.playState != 'running')")


def look_like(page: Page, look: str) -> None:
    page.emulate_media(color_scheme=LOOKS[look]["color_scheme"])
    page.set_viewport_size(LOOKS[look]["viewport"])


def turn_to(page: Page, look: str) -> None:
    look_like(page, look)
    settle(page)


def violated(page: Page, look: str, options: dict) -> list[str]:
    """Say what keeps some readers out, in colours or otherwise; the page has less text after it."""
    page.evaluate(Axe().axe_script)
    page.evaluate(LEAVE_ONE_OF_A_KIND)
    if options is COLOURS:
        page.evaluate(LEAVE_ONE_TEXT_OF_A_KIND)
    turn_to(page, look)
    if look == "phone":
        page.wait_for_timeout(400)  # the theme makes code that is too wide reachable 300 ms later
    run = "(options) => axe.run(document, options).then((result) => result.violations)"
    broken = page.evaluate(run, options)
    return [f"{rule['id']}: {node['html']}" for rule in broken for node in rule["nodes"]]


def quizzes(page: Page) -> list[Locator]:
    return page.locator("fieldset.quiz").all()


def answers(page: Page, quiz: Locator) -> Iterator[tuple[bool, str, str]]:
    status = quiz.get_by_role("status")
    options = quiz.get_by_role("radio").all()
    options[0].focus()
    for number, option in enumerate(options):
        page.keyboard.press("ArrowDown" if number else "Space")
        chosen, before = option.is_checked(), status.inner_text()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        yield chosen, before, status.inner_text()
        page.keyboard.press("Shift+Tab")


@pytest.fixture(scope="module")
def visits(browser: Browser, address: str, site: Path) -> Callable[[str], Visit]:
    page = browser.new_page()  # one for all: each would start a process, and fetch scripts again
    page.add_init_script(AT_ONCE)

    @functools.cache
    def visit(name: str) -> Visit:
        with watched(page, address) as result:
            looks = looks_at(name)
            look_like(page, looks[0])
            page.goto(f"{address}{name}.html")
            for look in looks:
                turn_to(page, look)
                result.seen[look] = page.evaluate(LOOK_AT_THE_PAGE)
            result.quizzes = [list(answers(page, quiz)) for quiz in quizzes(page)]
            # By turns, others when a page has changed: pages are alike, and a phone shows the
            # colours of a desk.
            number = hashlib.sha256((site / f"{name}.html").read_bytes()).digest()[0]
            options, looks = (COLOURS, looks[:2]) if number % 2 else (NO_COLOURS, looks[::2])
            look = looks[number // 2 % len(looks)]
            result.violations = violated(page, look, options)
        return result

    return visit


class OnEachPage:
    """What holds of every page in each of its looks."""

    pages: list[str]

    def test_a_page_asks_nothing_of_the_network(self, visit):
        assert visit.elsewhere == []

    def test_a_page_finds_all_its_files(self, visit):
        assert visit.missing == []
        assert visit.found("unloaded_images") == {}

    def test_no_script_complains(self, visit):
        assert visit.complaints == []

    def test_every_formula_is_set_and_none_is_cut_off(self, visit):
        assert visit.found("tex") == {}
        assert visit.found("broken_formulas") == {}
        assert visit.seen.get("phone", {}).get("wide_formulas", []) == []

    def test_a_page_is_accessible(self, visit):
        assert visit.violations == []

    def test_a_page_is_no_wider_than_its_window(self, visit):
        assert visit.found("overflow") == {}

    def test_what_scrolls_sideways_can_be_reached_by_keyboard(self, visit):
        assert visit.found("unreachable_frames") == {}

    def test_every_figure_says_what_it_shows(self, visit):
        assert visit.found("nameless_images") == {}
        assert visit.found("figures_without_text") == {}

    def test_every_figure_is_drawn_for_the_page_it_stands_on(self, visit):
        for look, seen in visit.seen.items():
            wanted = "figure-on-dark" if look == "dark" else "figure-on-light"
            assert [name for name in seen["figures"] if wanted not in name] == []

    def test_every_quiz_explains_every_answer_by_keyboard_alone(self, visit):
        for quiz in visit.quizzes:
            assert all(chosen and before == "" for chosen, before, _ in quiz)
            said = (words.partition("\n") for _, _, words in quiz)
            verdicts, _, explanations = zip(*said, strict=True)
            assert all(map(str.strip, explanations))
            assert sorted(verdicts) == ["Not quite."] * (len(quiz) - 1) + ["Right."]

    def test_code_can_be_copied(self, visits):
        written = [page for page in self.pages if page in WRITTEN]
        assert sum(visits(page).seen["light"]["uncopyable_code"] for page in written) == 0

    def test_there_is_something_to_look_at(self, visits):
        """Formulas, figures and quizzes, without which the tests above would hold of nothing."""
        written = [visits(page) for page in self.pages if page in WRITTEN]
        seen = [visit.seen["light"] for visit in written]
        assert sum(page["formulas"] for page in seen) > 20
        assert sum(len(page["figures"]) for page in seen) > 3
        assert sum(len(visit.quizzes) for visit in written) > 10


# One class for each of two processes.
class TestPagesOfOddNumber(OnEachPage):
    pages = PAGES[::2]

    @pytest.fixture(params=pages)
    def visit(self, request: pytest.FixtureRequest, visits: Callable[[str], Visit]) -> Visit:
        return visits(request.param)


class TestPagesOfEvenNumber(OnEachPage):
    pages = PAGES[1::2]

    @pytest.fixture(params=pages)
    def visit(self, request: pytest.FixtureRequest, visits: Callable[[str], Visit]) -> Visit:
        return visits(request.param)


@pytest.fixture(scope="module")
def attention(browser: Browser, address: str) -> Iterator[Page]:
    """A page that several tests look at; none of them changes what another one sees."""
    with browser.new_page() as page:
        page.goto(f"{address}01_attention.html")
        settle(page)
        yield page


def test_a_note_stands_in_the_margin_where_there_is_one(attention):
    note = attention.get_by_role("note").first
    for width in (700, 1000, 1199, 1200, 1600):
        attention.set_viewport_size({"width": width, "height": 900})
        settle(attention)
        text = note.locator("xpath=following-sibling::p[1]").bounding_box()
        place = note.bounding_box()
        assert text is not None
        assert place is not None
        is_beside = place["x"] >= text["x"] + text["width"]
        assert is_beside == (width >= 1200)
        assert place["x"] + place["width"] <= width
        assert attention.evaluate("document.documentElement.scrollWidth") <= width


def test_the_list_of_sections_marks_the_one_that_is_read_and_keeps_it_in_sight(attention):
    attention.set_viewport_size({"width": 1280, "height": 600})
    settle(attention)
    links = attention.locator(".page-toc a.nav-link")
    sections = [link.get_attribute("href") for link in links.all()]
    marked = attention.locator(".page-toc a.nav-link.active")
    for section in (*sections[:-1:2], *sections[:0:-2]):
        jump = "(place) => scrollTo(0, place.getBoundingClientRect().top + scrollY - 20)"
        attention.locator(section).evaluate(jump)
        expect(marked).to_have_attribute("href", section)
        expect(marked).to_have_count(1)
        expect(marked).to_be_in_viewport()


def test_a_formula_is_followed_by_its_full_stop_on_the_same_line(context, address):
    page = context(viewport={"width": 1280, "height": 900}).new_page()
    page.goto(f"{address}00_preliminaries.html")
    settle(page)
    tied = page.locator(".tied")
    assert tied.count() > 20
    lines = """(ties) => ties.map((tie) =>
        new Set([...tie.getClientRects()].map((part) => Math.round(part.top))).size)"""
    for width in (1280, 1001, 777, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert set(tied.evaluate_all(lines)) == {1}


def test_a_line_of_code_is_seen_whole_between_the_two_lists(attention):
    code = attention.locator(".cell_input pre").first
    for width, length in ((1280, 90), (1366, 100), (1600, 100)):
        attention.set_viewport_size({"width": width, "height": 900})
        settle(attention)
        code.evaluate("(pre, length) => { pre.textContent = '0'.repeat(length) }", length)
        assert code.evaluate("(pre) => pre.scrollWidth - pre.clientWidth") <= 0


def test_faint_text_and_a_link_that_looks_like_its_neighbours_are_seen(context, address):
    page = context(viewport=LOOKS["light"]["viewport"]).new_page()
    page.goto(f"{address}notation.html")
    settle(page)
    page.evaluate(
        """() => document.querySelector("article").insertAdjacentHTML("beforeend", `
          <p>One has a word that is <i class="faint" style="color: #ddd">faint</i>.</p>
          <p>Another has a <a href="#" class="plain"
            style="color: #555; text-decoration: none">link</a> in it.</p>
          <p><img src="nowhere.png"></p>`)"""
    )
    found = [*violated(page, "light", NO_COLOURS), *violated(page, "light", COLOURS)]
    assert [one.split(":")[0] for one in found] == ["image-alt", *OF_COLOURS]


def test_an_undefined_macro_is_seen_as_an_error(attention):
    attention.evaluate(
        """() => {
          const formula = document.createElement("p");
          formula.className = "math";
          formula.textContent = "\\\\(\\\\nosuchmacro{x}\\\\)";
          document.querySelector("article").append(formula);
          return MathJax.typesetPromise([formula]);
        }"""
    )
    assert len(attention.evaluate(LOOK_AT_THE_PAGE)["broken_formulas"]) == 1


def test_a_quiz_asks_for_an_answer_before_it_checks_one(attention):
    quiz = quizzes(attention)[0]
    quiz.get_by_role("button", name="Check").click()
    assert quiz.get_by_role("status").inner_text() == "Choose an answer first."


def test_without_scripts_a_page_can_be_read_and_no_button_is_dead(context, address):
    page = context(java_script_enabled=False).new_page()
    page.goto(f"{address}01_attention.html")
    quiz = quizzes(page)[0]
    assert not quiz.get_by_role("button").is_visible()
    quiz.locator("summary").click()
    assert quiz.locator(".quiz-explanation").first.is_visible()
    for figure in page.locator("article figure").all():
        assert sum(image.is_visible() for image in figure.locator("img").all()) == 1


def test_the_search_finds_chapters_names_and_formulas(context, address):
    opened = context().new_page()
    for words, page, place in (
        ("scaled dot-product attention", "01_attention.html", None),  # wherever
        ("scaled_dot_product_attention", "reference/attention.html", 1),
        ("scaled_dot_product", "reference/attention.html", 3),
        ("RMSNorm", "reference/layers.html", 2),
        ("rms norm", "04_blocks.html", 5),
        ("rotary", "groundup.core.positions.Rotary", 2),
        ("softmax", "00_preliminaries.html", 5),
        ("masked_softmax", "reference/attention.html", 1),
        ("cross-entropy", "glossary.html#term-cross-entropy", 1),
        ("nucleus", "08_generation.html", 3),
        ("classroom grade", "reference/commands.html", 3),
    ):
        opened.goto(f"{address}search.html?q={words.replace(' ', '+')}")
        opened.locator("#search-results ul.search li a").first.wait_for()
        opened.get_by_text("Search finished").wait_for()
        links = opened.locator("#search-results ul.search > li > a").all()
        found = [str(link.get_attribute("href")) for link in links]
        assert any(page in link for link in found[:place]), (words, found)


def test_the_search_shows_text_of_the_page_and_the_meaning_of_a_word(context, address):
    opened = context().new_page()
    opened.goto(f"{address}search.html?q=causal+mask")
    opened.get_by_text("Search finished").wait_for()
    results = opened.locator("#search-results ul.search > li")
    chapter = results.filter(has=opened.locator("a[href*='02_masking.html']")).first
    shown = chapter.locator("p.context")
    shown.wait_for()
    assert "mask" in shown.inner_text().lower()
    assert "Suggest edit" not in opened.locator("#search-results").inner_text()
    word = results.filter(has=opened.locator("a[href*='glossary.html#term-causal-mask']")).first
    meaning = word.locator("p.context").inner_text()
    assert meaning.startswith("causal mask: ")
    assert len(meaning) > 60


def test_the_theme_can_be_switched_and_the_figures_follow(context, address):
    page = context(color_scheme="light").new_page()
    page.goto(f"{address}index.html")
    settle(page)
    dark = page.locator("img.figure-on-dark").first
    assert not dark.is_visible()
    for _ in range(3):
        page.get_by_role("button", name="Color mode").locator("visible=true").first.click()
        if page.evaluate("document.documentElement.dataset.theme") == "dark":
            break
    assert dark.is_visible()
