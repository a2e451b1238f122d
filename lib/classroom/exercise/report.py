"""The outcome of an exercise, as data, text, HTML and JSON."""

import html
import itertools
import re
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

MESSAGE_WIDTH = 96
MAX_MESSAGE_LINES = 25
DIAGNOSIS = re.compile(r"This is (the mistake|one of \d+ mistakes)")
"""Matches the beginning of the sentence in a message that names a mistake."""
_CASE = ("A small case to try it on:", "It was called with ")
_MAX_LATER_CASE = 300
# What may differ between two messages that say the same.
_NUMBERS = re.compile(r"-?\d[\d.e+-]*")


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check.

    Attributes:
        name: What is checked, in words.
        points: Points that it is worth.
        earned: Points earned: all of them, or none.
        message: Why it failed; empty if it passed.
        mistakes: Names of the known mistakes that behave exactly like this code.
        is_blank: Whether it failed because something is not written yet.
        is_waiting: Whether it found nothing, and counts only with another check that failed.

    """

    name: str
    points: int
    earned: int
    message: str = ""
    mistakes: tuple[str, ...] = ()
    is_blank: bool = False
    is_waiting: bool = False

    @property
    def has_failed(self) -> bool:
        """Whether it found something wrong itself."""
        return not self.earned and not self.is_waiting

    @property
    def mark(self) -> str:
        """What stands before it: earned, waiting, or failed."""
        return "✓" if self.earned else "–" if self.is_waiting else "✗"

    @property
    def score(self) -> str:
        """The points earned and those it is worth."""
        waits = ", counts once another check passes" if self.is_waiting else ""
        return f"{self.earned}/{self.points}{waits}"


def next_step(title: str, core: int | None = None) -> str:
    """Say which exercise comes next, and if it is beyond the core, that the core is done."""
    done = f"the core is done (all {core} points), and what follows goes deeper; " if core else ""
    return f"{done}next is {title}"


@dataclass(frozen=True)
class Report:
    """The outcome of one exercise.

    Attributes:
        exercise: Its name.
        title: Its number and title, as printed.
        results: One result per check.

    """

    exercise: str
    title: str
    results: tuple[CheckResult, ...]

    @property
    def points(self) -> int:
        """Points that the exercise is worth."""
        return sum(result.points for result in self.results)

    @property
    def earned(self) -> int:
        """Points earned."""
        return sum(result.earned for result in self.results)

    @property
    def is_blank(self) -> bool:
        """Whether nothing of the exercise is written yet."""
        return all(result.is_blank for result in self.results)

    @property
    def mistakes(self) -> list[str]:
        """Names of the mistakes that were identified uniquely, in the order found."""
        named = [result.mistakes[0] for result in self.results if len(result.mistakes) == 1]
        return list(dict.fromkeys(named))

    @property
    def messages(self) -> list[str]:
        """The messages to show to the student.

        The first failure in full, later ones without what is long, no repetition, and nothing
        more about a mistake that has been named, alone or among others.
        """
        messages: list[str] = []
        named: set[str] = set()
        problems: set[str] = set()
        for result in self.results:
            text = result.message if not messages else _shortened(result.message)
            problem = _NUMBERS.sub("0", text.split("\n")[0])
            is_named = not named.isdisjoint(result.mistakes)
            if not text or is_named or any(text in message for message in messages):
                continue
            if not result.mistakes and problem.startswith(tuple(problems)):
                if problem in problems:
                    continue
                text = text.split("\n")[0]  # a case has been shown
            messages.append(text)
            problems.add(problem)
            if len(result.mistakes) == 1:
                named.update(result.mistakes)
        return messages

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON types."""
        return {**asdict(self), "points": self.points, "earned": self.earned}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Report":
        """Rebuild a report from what `to_json` returned."""
        results = tuple(
            CheckResult(**{**result, "mistakes": tuple(result["mistakes"])})
            for result in record["results"]
        )
        return cls(record["exercise"], record["title"], results)

    @property
    def summary(self) -> str:
        """The exercise and its points in a line."""
        return f"{self.title}: {self.earned} of {self.points} points"

    def to_text(self) -> str:
        """Return the report as text of at most `MAX_MESSAGE_LINES` lines.

        Later messages that do not fit are counted, so that there is space for the first.
        """
        lines = [self.summary]
        for result in self.results:
            lines.append(f"  {result.mark} {result.name} ({result.score})")
        messages = self.messages
        for number, message in enumerate(messages):
            wrapped, left = ["", *_wrap(message)], len(messages) - number
            if number > 0 and len(lines) + len(wrapped) + 2 * (left > 1) > MAX_MESSAGE_LINES:
                more = f"({left} more message{'s' * (left > 1)} once this is fixed)"
                lines += ["", more] * (len(lines) + 2 <= MAX_MESSAGE_LINES)
                break
            lines.extend(wrapped)
        if len(lines) > MAX_MESSAGE_LINES:
            # The name of the mistake and the case come last, and what is expected at its end.
            last, count = len(lines), MAX_MESSAGE_LINES - 1
            named = next((n for n, line in enumerate(lines) if DIAGNOSIS.match(line)), 0)
            case = next((n for n, line in enumerate(lines) if line.startswith(_CASE)), 0)
            for start in (named, case, last - 2 * lines[-1].startswith("  ")):
                kept = count - (last - start)
                if last - start <= MAX_MESSAGE_LINES // 3 and not kept <= named < start:
                    break
            left_out, end = f"  … and {start - kept} more lines", lines[start:]
            lines = [*lines[:kept], left_out, *end]
        return "\n".join(lines)

    def to_html(self) -> str:
        """Return the report as HTML, with all text escaped."""
        rows = "".join(
            f"<tr><td>{r.mark}</td>"
            f'<td style="text-align:left">{html.escape(r.name)}</td>'
            f"<td>{r.score}</td></tr>"
            for r in self.results
        )
        messages = "".join(message_html(message) for message in self.messages)
        return (
            f"<table><caption><b>{html.escape(self.summary)}</b></caption>"
            f"<tbody>{rows}</tbody></table>{messages}"
        )


def _shortened(message: str) -> str:
    """Return the first line of a message, the diagnosis, and the case if that is short."""
    first, *rest = message.split("\n")
    start = next((at for at, line in enumerate(rest) if line.startswith(_CASE)), len(rest))
    case = rest[start:] if sum(map(len, rest[start:])) <= _MAX_LATER_CASE else []
    return "\n".join([first, *filter(DIAGNOSIS.match, rest[:start]), *case])


def _wrap(message: str) -> list[str]:
    """Wrap sentences at `MESSAGE_WIDTH`, but not examples, which are indented."""
    lines: list[str] = []
    for line in message.split("\n"):
        if line.startswith("  "):
            lines.append(f"  {textwrap.shorten(line, 398)}" if len(line) > 400 else line)
        else:
            lines.extend(textwrap.wrap(line, MESSAGE_WIDTH) or [""])
    return lines


def message_html(message: str) -> str:
    """Return sentences as paragraphs, the diagnosis in bold, and examples verbatim."""
    parts = []
    for indented, lines in itertools.groupby(message.split("\n"), lambda line: line[:2] == "  "):
        if indented:
            parts.append(f"<pre>{html.escape(chr(10).join(lines))}</pre>")
            continue
        for line in lines:
            text = html.escape(line)
            parts.append(f"<p><b>{text}</b></p>" if DIAGNOSIS.match(line) else f"<p>{text}</p>")
    return "".join(parts)
