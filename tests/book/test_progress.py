"""What a reader has done is kept in their browser, and only there."""

import json

import pytest
from playwright.sync_api import expect

KEY = "attention-from-the-ground-up.progress"
PAGE = "02_masking.html"


@pytest.fixture
def opened(site, context):
    """Open a page of the book; pages of one context share what is kept."""
    contexts = []

    def new(name: str = PAGE, script: str | None = None, fresh: bool = False):
        if not contexts or fresh:
            contexts.append(context(viewport={"width": 1280, "height": 900}))
        page = contexts[-1].new_page()
        page.route("http*://**", lambda route: route.abort())
        if script:
            page.add_init_script(script)
        page.goto((site / name).as_uri())
        return page

    return new


def kept(page) -> dict:
    return json.loads(page.evaluate(f"localStorage.getItem({KEY!r})") or "{}")


def test_what_stands_at_the_end_of_a_page_is_seen_whole(opened):
    page = opened()
    page.get_by_role("checkbox", name="I have read this page").click()
    frame = page.locator(".reading-progress")
    assert frame.bounding_box()["height"] > 30
    assert frame.evaluate("(frame) => frame.scrollHeight - frame.clientHeight") <= 0
    assert (
        frame.evaluate("(frame) => getComputedStyle(frame).backgroundColor") == "rgba(0, 0, 0, 0)"
    )
    for control in ("checkbox", "button"):
        expect(frame.get_by_role(control)).to_be_in_viewport(ratio=1)


def test_what_was_done_is_there_again_on_the_next_visit_and_can_be_forgotten(opened):
    page = opened()
    forget = page.get_by_role("button", name="Forget my progress")
    assert not forget.is_visible()
    assert kept(page) == {}

    # by keyboard alone
    read = page.get_by_role("checkbox", name="I have read this page")
    read.focus()
    page.keyboard.press("Space")
    exercise = page.locator(".exercise-tick").first.get_by_role("checkbox")
    exercise.focus()
    page.keyboard.press("Space")
    quiz = page.locator("fieldset.quiz").first
    quiz.get_by_role("radio").first.check()
    quiz.get_by_role("button", name="Check").click()
    done = kept(page)
    assert done["pages"] == {"02_masking": True}
    assert len(done["exercises"]) == 1 and next(iter(done["exercises"])).startswith("02_masking/")
    assert list(done["quizzes"].values()) in (["right"], ["not quite"])

    again = opened()
    assert again.get_by_role("checkbox", name="I have read this page").is_checked()
    assert again.locator(".exercise-tick").first.get_by_role("checkbox").is_checked()
    assert not again.locator(".exercise-tick").nth(1).get_by_role("checkbox").is_checked()
    said = again.locator("fieldset.quiz").first.locator(".quiz-tag").inner_text().lower()
    assert "answered" in said and list(done["quizzes"].values())[0] in said

    first = opened("index.html")
    for place in ("nav.bd-links:visible", ".map-title"):
        link = first.locator(f"{place} a[href='{PAGE}']").first
        assert "read" in link.inner_text()  # what a screen reader says
        assert link.locator(".progress-mark").count() == 1
    assert first.locator(".map-rows .progress-mark").count() == 1

    first.get_by_role("button", name="Forget my progress").click()
    assert kept(first) == {} and first.locator(".progress-mark").count() == 0
    first.get_by_role("button", name="Take that back").click()
    assert kept(first) == done and first.locator(".map-rows .progress-mark").count() == 1
    first.get_by_role("button", name="Forget my progress").click()
    assert first.evaluate("localStorage.getItem(arguments)".replace("arguments", repr(KEY))) is None


def test_where_nothing_can_be_kept_nothing_is_offered_and_the_page_works(opened):
    locked = "Object.defineProperty(window, 'localStorage', { get() { throw new Error('no') } })"
    page = opened(script=locked, fresh=True)
    assert page.locator(".reading-progress, .exercise-tick label").count() == 0
    quiz = page.locator("fieldset.quiz").first
    quiz.get_by_role("radio").first.check()
    quiz.get_by_role("button", name="Check").click()
    assert quiz.get_by_role("status").inner_text()


def test_what_somebody_else_left_there_does_no_harm(opened):
    page = opened("references.html", fresh=True)
    for nonsense in ("{", "7", "null", '{"pages": 3, "other": []}'):
        page.evaluate("([key, text]) => localStorage.setItem(key, text)", [KEY, nonsense])
        page.reload()
        read = page.get_by_role("checkbox", name="I have read this page")
        assert not read.is_checked()
        read.check()
        assert kept(page)["pages"] == {"references": True}
