"""Questions a reader answers on the page, with every option explained.

    ```{quiz} All scores are equal. What does attention return?
    :name: quiz-equal-scores
    - [ ] Zeros
      > The weights sum to 1, so something is always handed over.
    - [x] The mean of the values
      > Equal scores give equal weights.
    ```

One option is right. Question and options are one line of text each, with formulas and code if
need be; explanations may be longer. Where the question holds code, fence the quiz with `~~~`: a
line that opens a fence of backticks cannot hold others.

What is built is a plain form group that a keyboard and a screen reader know. The script `quiz.js`
adds the button that checks an answer; without it, and on paper, the folded explanations remain.
"""

import re
from dataclasses import dataclass, field

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

OPTION = re.compile(r"- \[(?P<mark>[ xX])\] +(?P<text>\S.*)")


@dataclass
class Option:
    """One answer, whether it is right, and why."""

    text: str
    is_right: bool
    explanation: list[str] = field(default_factory=list)


def read_options(lines: list[str]) -> list[Option]:
    """Read the answers below a question.

    Raises:
        ValueError: If a line is neither an option nor an explanation, if an option is not
            explained, or if not exactly one of at least two options is right.

    """
    options: list[Option] = []
    for line in lines:
        if match := OPTION.match(line):
            options.append(Option(match["text"], match["mark"] != " "))
        elif line.strip().startswith(">") and options:
            options[-1].explanation.append(line.strip()[1:].removeprefix(" "))
        elif line.strip():
            raise ValueError(
                f"a quiz holds options (- [ ] or - [x]) and explanations (>), got {line.strip()!r}"
            )
    unexplained = [option.text for option in options if not "".join(option.explanation).strip()]
    if unexplained:
        raise ValueError(
            f"every option of a quiz needs an explanation, none for {unexplained[0]!r}"
        )
    right = sum(option.is_right for option in options)
    if len(options) < 2 or right != 1:
        raise ValueError(
            "a quiz needs at least two options, exactly one of them right, "
            f"got {len(options)} options with {right} right"
        )
    return options


class quiz_node(nodes.General, nodes.Element):
    """The whole question."""


class quiz_question(nodes.General, nodes.TextElement):
    """What is asked."""


class quiz_option(nodes.General, nodes.TextElement):
    """One answer to choose."""


class quiz_explanations(nodes.General, nodes.Element):
    """Why each answer is right or wrong."""


class quiz_explanation(nodes.General, nodes.Element):
    """Why one answer is right or wrong."""


class Quiz(SphinxDirective):
    """Build the nodes of one question."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec = {"name": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        try:
            options = read_options(list(self.content))
        except ValueError as error:
            raise self.error(str(error)) from error
        name = self.options.get("name") or f"quiz-{self.env.new_serialno('quiz') + 1}"
        quiz = quiz_node(ids=[nodes.make_id(name)])
        self.set_source_info(quiz)
        quiz += self._inline(quiz_question(), self.arguments[0])
        explanations = quiz_explanations()
        for number, option in enumerate(options, start=1):
            place = {"number": number, "group": quiz["ids"][0]}
            quiz += self._inline(quiz_option(**place), option.text)
            recalled = nodes.paragraph(classes=["quiz-recalled"])
            explanations += self._inline(recalled, option.text)
            explanation = quiz_explanation(is_right=option.is_right, **place)
            body = nodes.container()
            self.state.nested_parse(StringList(option.explanation), self.content_offset, body)
            explanation += body.children
            explanations += explanation
        quiz += explanations
        return [quiz]

    def _inline(self, node: nodes.TextElement, text: str) -> nodes.TextElement:
        children, messages = self.state.inline_text(text, self.lineno)
        node += children
        node += messages
        return node


def visit_quiz(self: HTML5Translator, node: quiz_node) -> None:
    self.body.append(self.starttag(node, "fieldset", CLASS="quiz"))


def depart_quiz(self: HTML5Translator, node: quiz_node) -> None:
    self.body.append("</fieldset>\n")


def visit_question(self: HTML5Translator, node: quiz_question) -> None:
    self.body.append('<legend><span class="quiz-tag">Check yourself</span> ')


def depart_question(self: HTML5Translator, node: quiz_question) -> None:
    self.body.append("</legend>\n")


def visit_option(self: HTML5Translator, node: quiz_option) -> None:
    group, number = node["group"], node["number"]
    self.body.append(
        f'<div class="quiz-option"><input type="radio" id="{group}-{number}" name="{group}"'
        f' value="{number}"/> <label for="{group}-{number}">'
    )


def depart_option(self: HTML5Translator, node: quiz_option) -> None:
    self.body.append("</label></div>\n")


def visit_explanations(self: HTML5Translator, node: quiz_explanations) -> None:
    self.body.append(
        '<div class="quiz-check"><button type="button" hidden>Check</button>'
        '<div role="status"></div></div>\n'
        '<details class="quiz-explanations"><summary>Every answer explained</summary>\n'
    )


def depart_explanations(self: HTML5Translator, node: quiz_explanations) -> None:
    self.body.append("</details>\n")


def visit_explanation(self: HTML5Translator, node: quiz_explanation) -> None:
    verdict = "Right" if node["is_right"] else "Not quite"
    self.body.append(
        f'<div class="quiz-explanation" data-option="{node["number"]}">'
        f'<p class="quiz-verdict quiz-{"right" if node["is_right"] else "wrong"}">{verdict}.</p>\n'
    )


def depart_explanation(self: HTML5Translator, node: quiz_explanation) -> None:
    self.body.append("</div>\n")


def pass_through(self: object, node: nodes.Node) -> None:
    """Where there is no form to fill in, the words are enough."""


def setup(app: Sphinx) -> dict:
    app.add_directive("quiz", Quiz)
    for node, visit, depart in (
        (quiz_node, visit_quiz, depart_quiz),
        (quiz_question, visit_question, depart_question),
        (quiz_option, visit_option, depart_option),
        (quiz_explanations, visit_explanations, depart_explanations),
        (quiz_explanation, visit_explanation, depart_explanation),
    ):
        plain = (pass_through, pass_through)
        app.add_node(node, html=(visit, depart), latex=plain, text=plain)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
