"""The pages that students and a class read, in a real browser."""

import base64
import io

import nbformat
import pytest
from axe_playwright_python.sync_playwright import Axe
from matplotlib.figure import Figure

from classroom.exercise.report import CheckResult, Report
from classroom.grader.class_report import summarise, to_html, to_svg
from classroom.grader.verdicts import Grades, Line, Verdict
from classroom.nbgrader.feedback import page

new = nbformat.v4
LOOKS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1200, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1200, "height": 900}},
    "phone": {"color_scheme": "light", "viewport": {"width": 360, "height": 740}},
}
ATTACK = """<script>alert(1)</script>
<img alt="a plot" src="https://evil.invalid/a.png" onerror="alert(1)">
<style>main { display: none }</style><iframe src="https://evil.invalid"></iframe>
<div style="position: fixed; inset: 0">covered</div><b>fine</b> $a_b$
"""
CODE = '''@decorated
def attend(query: Tensor, key=None, *, scale: float = 0.5) -> "Tensor":
    """Say what."""
    # why
    if query is not None and key in {1: True}:
        return f"{query!r:>3}" + 'x' * 3 @ key
    raise ValueError(len(query), self)
class Block(nn.Module): pass
'''
MESSAGE = (
    "scores: wrong in 40 of 50 entries\nThis is the mistake “no scale”: it is.\nA small case:\n"
    f"  x = {[0.1] * 40}\n  y = 1"
)


def picture():
    figure = Figure(figsize=(9, 3))
    figure.add_subplot().plot([1, 3, 2])
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return base64.b64encode(file.getvalue()).decode()


def feedback():
    svg = "<svg xmlns='http://www.w3.org/2000/svg' width='2000' height='20' onload='alert(1)'/>"
    wide = "<table><tr><th>a</th>" + "<td>1234567890</td>" * 40 + "</tr></table>" + ATTACK
    outputs = [
        new.new_output("display_data", {"image/png": picture(), "text/plain": "<Figure>"}),
        new.new_output("display_data", {"image/svg+xml": svg}),
        new.new_output("display_data", {"text/html": wide}),
        new.new_output("stream", text="x" * 3000),
        new.new_output("error", ename="E", evalue="no", traceback=["Traceback", "E: no"]),
    ]
    cells = [
        new.new_markdown_cell("- cell 2 stopped", id="remarks"),
        new.new_markdown_cell("# Title\n\n<details><summary>Hint</summary>\n\nx\n\n</details>"),
        new.new_markdown_cell(ATTACK + "\n$$" + "x + " * 99 + "$$\n\n```python\n" + CODE + "```"),
        new.new_code_cell(CODE + "#" * 200, outputs=outputs),
    ]
    results = (CheckResult("rows are moved", 1, 1), CheckResult("it is zero", 2, 0, MESSAGE))
    lines = (
        Line("centre", 1, 3, comment="Nearly there, see the second line of your function."),
        Line("twice", 2.5, 2, by_hand=True),
    )
    grades = Grades("ada", "07_averages", lines, penalty=0.5)
    reports = {"centre": Report("centre", "7.1 Centre the rows of a matrix", results)}
    return page(new.new_notebook(cells=cells), grades, reports)


def summary():
    wrong = CheckResult("moved", 3, 0, "It is off.", ("NoScale",))
    reports = (Report("centre", "7.1 Centre the rows", (wrong,)),)
    verdicts = [Verdict(assignment="a", student="ada", key="k", reports=reports)]
    found = summarise(verdicts, {})
    return to_html("07_averages", 1, found, to_svg(found, 1))


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("make", [feedback, summary])
def test_a_page_is_accessible_fetches_nothing_and_runs_nothing(browser, tmp_path, make, look):
    path = tmp_path / "page.html"
    path.write_text(make(), encoding="utf-8")
    context = browser.new_context(**LOOKS[look])
    view, events = context.new_page(), []
    view.on("request", lambda request: events.append(request.url.partition(",")[0]))
    view.on("dialog", lambda dialog: (events.append(dialog.message), dialog.dismiss()))
    view.on("console", lambda message: events.append(message.text))
    view.on("pageerror", lambda error: events.append(str(error)))
    view.goto(path.as_uri())
    fetched = {url for url in events if not url.startswith("data:image/")}
    assert fetched == {path.as_uri()}
    assert view.locator("h1").is_visible()
    assert view.evaluate(
        "[...document.images].every(image => image.naturalWidth > 0 || !image.src)"
    )
    width = view.evaluate("document.documentElement.scrollWidth")
    assert width <= LOOKS[look]["viewport"]["width"]
    found = Axe().run(view).response["violations"]
    assert [f"{rule['id']}: {node['html']}" for rule in found for node in rule["nodes"]] == []
    context.close()


def test_what_came_through_all_the_same_would_not_run(browser, tmp_path):
    """The policy of the page is tried on what the sanitiser would have taken out."""
    path = tmp_path / "page.html"
    bad = '<script>document.title = "ran"</script><b onclick="x" style="color: red">b</b>'
    bad += '<img src="https://evil.invalid/a.png"><iframe src="data:text/html,x"></iframe>'
    path.write_text(feedback().replace("</main>", bad + "</main>"), encoding="utf-8")
    view, told = browser.new_page(), []
    view.on("console", lambda message: told.append(message.text))
    view.goto(path.as_uri())
    assert "ran" not in view.title()
    refused = " ".join(told)
    for directive in ("script-src", "style-src", "img-src", "frame-src"):
        assert directive in refused
    view.close()
