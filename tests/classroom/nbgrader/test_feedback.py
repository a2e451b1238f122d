import base64
import re
import time
from html.parser import HTMLParser

import nbformat
import pytest

from classroom.__main__ import _write_pages
from classroom.exercise.report import CheckResult, Report
from classroom.grader.verdicts import Grades, Line
from classroom.nbgrader.feedback import (
    MAX_HTML_LENGTH,
    MAX_MARKDOWN_LENGTH,
    page,
    reports_in,
    write_page,
)
from classroom.nbgrader.gradebook import with_first_words, with_scores

new = nbformat.v4
PNG = b"\x89PNG\r\n\x1a\n" + b"pixels"

ATTACKS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '<img src="https://evil.example/seen.png">',
    "<svg onload=alert(1)><script>alert(1)</script></svg>",
    '<math><mtext><table><mglyph><style><img src=x onerror="alert(1)">',
    '<iframe src="https://evil.example"></iframe>',
    '<iframe srcdoc="<script>alert(1)</script>"></iframe>',
    '<form action="https://evil.example"><input name=password><button>go</button></form>',
    '<link rel=stylesheet href="https://evil.example/a.css">',
    '<meta http-equiv=refresh content="0; url=https://evil.example">',
    '<base href="https://evil.example/">',
    '<style>@import url("https://evil.example/a.css"); main {display: none}</style>',
    '<div style="position: fixed; inset: 0; background: white">49 of 49 points</div>',
    '<a href="javascript:alert(1)">x</a>',
    '<a href=" java&#10;script:alert(1)">x</a>',
    '<a href="data:text/html,<script>alert(1)</script>">x</a>',
    '<a href="vbscript:x">x</a>',
    '<a href="//evil.example">x</a>',
    '<img src="data:image/svg+xml,<svg onload=alert(1)>">',
    "<video src=https://evil.example/v.mp4 autoplay></video>",
    '<object data="https://evil.example"></object><embed src="https://evil.example">',
    "<details open ontoggle=alert(1)>x</details>",
    "<b id=points class=total contenteditable tabindex=1 accesskey=x draggable=true>x</b>",
    "</div></section></main></body><script>alert(1)</script>",
    "<!--><script>alert(1)</script>-->",
    '<noscript><p title="</noscript><img src=x onerror=alert(1)>">',
    "<template><script>alert(1)</script></template>",
    "[x](javascript:alert(1)) ![x](https://evil.example/x.png) <javascript:alert(1)>",
]


class Reader(HTMLParser):
    """Lists what a browser would find in a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))


def grades(**about):
    lines = (Line("centre", 1, 3, comment="Nearly."), Line("twice", 2.5, 2, by_hand=True))
    return Grades("ada", "07_averages", **{"lines": lines, **about})


def report(exercise="centre"):
    results = (
        CheckResult("rows are moved", 1, 1),
        CheckResult("the mean is zero", 2, 0, "It is off.\nThis is the mistake “x”: y\n  a = 1"),
    )
    return Report(exercise, "7.1 Centre the rows", results)


def shown(*cells, reports=None, **about):
    return page(new.new_notebook(cells=list(cells)), grades(**about), reports or {})


def code(*outputs, source="x"):
    return new.new_code_cell(source, outputs=list(outputs))


def display(**data):
    forms = {kind.replace("_", "/"): value for kind, value in data.items()}
    return new.new_output("display_data", forms)


def locked(exercise, *outputs):
    about = {"grade": True, "solution": False, "grade_id": f"{exercise}-check", "points": 3}
    return new.new_code_cell(
        "assert secret == 4", metadata={"nbgrader": about}, outputs=list(outputs)
    )


# What a page says


def test_points_and_comments_come_first_then_what_was_found_then_the_notebook():
    text = shown(code(source="def f(): pass"), reports={"centre": report()}, penalty=0.5)
    order = ["3 of 5 points", "Nearly.", "−0.5", "It is off.", ">def<"]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert "points given by a person" in text


def test_a_comment_in_a_line_that_is_not_shown_makes_no_column():
    hidden = Line("twice", 0, 0, comment="No response.")
    assert ">comment</th>" in shown()
    assert ">comment</th>" not in shown(lines=(Line("centre", 1, 3), hidden))


def test_a_penalty_takes_no_more_than_was_earned():
    assert grades(penalty=11).earned == 0


def test_the_mistake_is_told_in_bold_and_the_example_as_it_stands():
    text = shown(reports={"centre": report()})
    assert "<b>This is the mistake “x”: y</b>" in text
    assert "<pre>  a = 1</pre>" in text


def test_the_checked_cell_leads_to_what_was_found_and_its_source_is_not_shown():
    text = shown(locked("centre"), reports={"centre": report()})
    tags = Reader(text).tags
    assert "secret" not in text
    target = next(a["href"] for tag, a in tags if tag == "a" and "exercise" in a["href"])
    assert target[1:] in [attributes.get("id") for _, attributes in tags]


def test_how_it_was_graded_and_what_was_odd_stand_before_the_points():
    remarks = new.new_markdown_cell("```text\n- <i>was</i> left out\n```", id="remarks")
    notebook = with_first_words(new.new_notebook(cells=[remarks, code()]), "Graded in a box.")
    text = page(notebook, grades(), {})
    places = [text.index(w) for w in ("Graded in a box.", "- &lt;i&gt;was&lt;/i&gt;", "Points")]
    assert places == sorted(places)
    assert "cell 1" in text and "cell 2" not in text


def test_reports_are_found_in_the_notebook_and_forged_ones_are_left_out():
    notebook = new.new_notebook(cells=[locked("centre"), locked("twice")])
    marked = with_scores(notebook, {"centre": report()})
    assert reports_in(marked) == {"centre": report()}
    for forged in ({}, [], "x", {"exercise": 1, "title": 2, "results": [{}]}, None):
        marked.cells[1].outputs[0].data["application/vnd.classroom.report+json"] = forged
        assert list(reports_in(marked)) == ["centre"]


# What is in a notebook


def test_code_is_coloured_and_its_text_kept():
    text = shown(code(source='def f(x):\n    return "<b>" + x'))
    assert '<span class="k">def</span>' in text
    assert "&lt;b&gt;" in text and "<b>" not in text


def test_pictures_are_part_of_the_page():
    coded = base64.b64encode(PNG).decode()
    svg = "<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
    text = shown(
        code(
            display(image_png=coded + "\n", text_plain="<Figure>"),
            display(**{"image_svg+xml": svg}),
        )
    )
    pictures = [attributes for tag, attributes in Reader(text).tags if tag == "img"]
    assert [p["src"].partition(",")[0] for p in pictures] == [
        "data:image/png;base64",
        "data:image/svg+xml;base64",
    ]
    assert pictures[0]["alt"] == "What cell 1 shows: <Figure>"
    assert base64.b64decode(pictures[0]["src"].partition(",")[2]) == PNG
    assert "<svg" not in text


@pytest.mark.parametrize("content", ["no base64!", base64.b64encode(b"<script>").decode(), ""])
def test_what_is_no_picture_is_not_taken_for_one(content):
    text = shown(code(display(image_png=content)))
    assert "<img" not in text and "cannot be read" in text


def test_text_is_what_a_terminal_would_leave_standing():
    text = shown(
        code(
            new.new_output("stream", text="\x1b[31mred\x1b[0m \x07<i>\n 10%\r100%\r\n"),
            new.new_output("error", ename="E", evalue="v", traceback=["\x1b[1mline\x1b[0m", "two"]),
        )
    )
    assert ">red �&lt;i&gt;\n100%\n</pre>" in text
    assert '<pre class="output error">line\ntwo</pre>' in text


def test_formulas_stay_as_they_were_typed_and_headings_below_those_of_the_page():
    text = shown(new.new_markdown_cell("# Mine\n\n$x_i^*$ and $y_j^*$\n\n$$a*b*c<d$$"))
    assert "<h3>Mine</h3>" in text
    assert "<code>$x_i^*$</code> and <code>$y_j^*$</code>" in text
    assert "<pre>$$a*b*c&lt;d$$</pre>" in text


def test_tables_of_a_library_keep_their_cells():
    table = '<style>x</style><table border="1" class="dataframe"><tr><th scope="row">a</th></tr>'
    assert '<table><tbody><tr><th scope="row">a</th>' in shown(code(display(text_html=table)))


def test_handed_out_folds_can_be_opened():
    text = shown(new.new_markdown_cell("<details><summary>Hint</summary>\n\nThink.\n\n</details>"))
    assert "<details><summary>Hint</summary>" in text


# What must not be in a page


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_of_a_strangers_acts_fetches_or_covers(attack):
    cells = [
        new.new_markdown_cell(attack, id="remarks"),
        new.new_markdown_cell(attack),
        new.new_raw_cell(attack),
        code(
            display(text_html=attack),
            display(text_markdown=attack),
            display(text_plain=attack),
            new.new_output("stream", text=attack),
            source=attack,
        ),
    ]
    found = Report("centre", attack, (CheckResult(attack, 1, 0, attack),))
    lines = (Line("centre", 1, 1, comment=attack),)
    text = page(
        new.new_notebook(cells=cells), Grades(attack, "07_averages", lines), {"centre": found}
    )
    tags = Reader(text).tags
    ours = [*Reader(shown(new.new_markdown_cell("x", id="remarks"))).tags[:8]]
    assert [tag for tag, _ in ours][-2:] == ["title", "style"]
    assert tags[: len(ours)] == ours
    ids = []
    for tag, attributes in tags[len(ours) :]:
        assert tag not in (
            *("script", "iframe", "form", "input", "button", "link", "meta", "base", "style"),
            *("svg", "math", "video", "object", "embed", "template", "noscript", "title"),
        )
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        assert "contenteditable" not in attributes and "accesskey" not in attributes
        assert attributes.get("src", "data:image/png").startswith("data:image/png")
        assert attributes.get("href", "#exercise-1") == "#exercise-1"
        ids += [attributes["id"]] if "id" in attributes else []
    assert ids == ["remarks", "points", "found", "exercise-1", "notebook"]
    assert text.count("<main>") == text.count("</main>") == 1


def test_a_name_does_not_turn_the_text_beside_it():
    text = page(new.new_notebook(), Grades("\u202eada", "07_averages", ()), {})
    assert "\u202e" not in text and r"\u202eada" in text


def test_the_policy_allows_our_style_and_pictures_in_the_page_and_nothing_else():
    text = shown()
    (policy,) = re.findall('Content-Security-Policy" content="([^"]*)"', text)
    assert "default-src &#39;none&#39;" in policy and "unsafe" not in policy
    assert text.index("Content-Security-Policy") < text.index("<title>") < text.index("<style>")


@pytest.mark.parametrize(
    "flood",
    [
        code(new.new_output("stream", text="x" * 30_000_000)),
        code(*[new.new_output("stream", text="x" * 9_999)] * 3_000),
        code(display(text_html="<b>" * 10_000_000, text_plain="short")),
        code(*[display(text_html="<div>" * 4_000)] * 40),
        code(display(image_png=base64.b64encode(PNG + b"x" * 9_000_000).decode())),
        code(source="(" * 250_000),
        new.new_markdown_cell("[" * 250_000),
        new.new_markdown_cell("> " * 2_000),
    ],
    ids=["line", "outputs", "html", "nested", "picture", "source", "brackets", "quotes"],
)
def test_what_is_long_is_cut_with_a_remark(flood):
    text = shown(flood)
    assert len(text) < 1_500_000
    assert "cut here" in text or "too l" in text or len(flood.source) < 5_000


@pytest.mark.parametrize(
    "bomb",
    [
        code(
            display(
                text_html="<p>"
                + "".join(f"<b {chr(0x4E00 + n)}>" for n in range(2000))
                + "<p>x" * 2499
            )
        ),
        new.new_markdown_cell(
            "<p>" + "".join(f"<i {chr(0x4E00 + n)}>" for n in range(400)) + "<p>x" * 490
        ),
        code(source=" \n" * 24_999 + "x = 1"),
    ],
    ids=["elements opened again", "the same in text", "blank lines"],
)
def test_what_is_short_and_costs_much_is_shown_as_text(bomb):
    started = time.process_time()
    text = shown(bomb)
    assert time.process_time() - started < 2
    assert len(text) < 1_500_000


def test_a_page_that_cannot_be_made_costs_no_other_one(tmp_path):
    written = []

    class Writer:
        def write_feedback(self, student, submitted):
            if student == "bo":
                raise MemoryError("too much")
            written.append(student)

    with pytest.raises(ValueError, match="no page for 'bo': MemoryError: too much"):
        _write_pages(Writer(), ["ada", "bo", "cy"], tmp_path)
    assert written == ["ada", "cy"]


def test_many_long_things_are_cut_as_one_is():
    cells = [new.new_markdown_cell("*a " * (MAX_MARKDOWN_LENGTH // 4) + str(n)) for n in range(500)]
    cells += [code(display(text_html="<i>" * (MAX_HTML_LENGTH // 4))) for _ in range(50)]
    assert len(shown(*cells)) < 3_000_000


# Where it is written


def test_a_page_lies_where_nbgrader_releases_it_with_what_goes_with_it(tmp_path):
    (tmp_path / "timestamp.txt").write_text("now")
    (tmp_path / "secret.txt").symlink_to("/etc/hostname")
    goes_with = [tmp_path / name for name in ("timestamp.txt", "secret.txt", "none.txt")]
    folder = tmp_path / "feedback" / "ada" / "07_averages"
    for text in ("first", "second \udcff"):
        path = write_page(folder, "averages", text, goes_with)
    assert path.read_text() == "second ?"
    assert sorted(p.name for p in folder.iterdir()) == ["averages.html", "timestamp.txt"]
