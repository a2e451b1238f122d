"""The class report of an assignment, `classroom report`: what was easy, and common mistakes.

Counts only: no student is named, so that all of it can be shown to the class.
"""

import html
import io
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from classroom.grader.verdicts import Verdict, aligned

MAX_MISTAKES = 5
MAX_IN_PICTURE = 12
_SHADES = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class NamedMistake:
    """A mistake that was recognised for certain.

    Attributes:
        title: Its name in words.
        explanation: What is wrong, in a sentence.
        count: How many made it.

    """

    title: str
    explanation: str
    count: int


@dataclass(frozen=True)
class ExerciseSummary:
    """What a class earned in an exercise.

    Attributes:
        title: Its number and title.
        points: What it is worth.
        counts: How many earned 0, 1, … points.
        mistakes: Those that were recognised for certain, the most common first.

    """

    title: str
    points: int
    counts: tuple[int, ...]
    mistakes: tuple[NamedMistake, ...]

    @property
    def mean(self) -> float:
        """Points earned, on average."""
        earned = sum(points * count for points, count in enumerate(self.counts))
        return earned / max(1, sum(self.counts))


def summarise(
    verdicts: Sequence[Verdict], known: Mapping[tuple[str, str], tuple[str, str]]
) -> list[ExerciseSummary]:
    """Return what a class earned, exercise by exercise, and which mistakes it made.

    Args:
        verdicts: One per student. One with a problem is not counted.
        known: The title and explanation of each mistake, by the names of exercise and mistake.

    """
    read = [verdict for verdict in verdicts if not verdict.problem]
    found = []
    for at, first in enumerate(read[0].reports if read else ()):
        reports = [verdict.reports[at] for verdict in read]
        earned = Counter(report.earned for report in reports)
        made = Counter(name for report in reports for name in report.mistakes)
        found.append(
            ExerciseSummary(
                first.title,
                first.points,
                tuple(earned[points] for points in range(first.points + 1)),
                tuple(
                    NamedMistake(*known.get((first.exercise, name), (name, "")), count)
                    for name, count in sorted(made.items(), key=lambda item: (-item[1], item[0]))
                ),
            )
        )
    return found


def to_text(found: Sequence[ExerciseSummary]) -> str:
    """Return a summary for a terminal."""
    if not found:
        return "no graded submission could be read"
    rows = [["exercise", "mean", "of", "full", "none", "0 … full"]]
    for each in found:
        numbers = f"{each.mean:.1f}", str(each.points), str(each.counts[-1]), str(each.counts[0])
        most = max(each.counts)
        bars = "".join(
            _SHADES[(count * (len(_SHADES) - 1) + most - 1) // most] if count else "·"
            for count in each.counts
        )
        rows.append([each.title, *numbers, bars])
    lines = [aligned(rows, left=(0, 5)), ""]
    for each in found:
        if each.mistakes:
            lines.append(each.title)
        for mistake in each.mistakes[:MAX_MISTAKES]:
            lines.append(f"  {mistake.count:>3} × {mistake.title}: {mistake.explanation}")
    return "\n".join(lines).rstrip()


def to_html(name: str, num_students: int, found: Sequence[ExerciseSummary], picture: str) -> str:
    """Return a summary as a page of its own.

    Args:
        name: Of the assignment.
        num_students: How many submissions were graded.
        found: As `summarise` returns it.
        picture: As `to_svg` returns it.

    """
    escape = html.escape
    rows = "".join(
        f'<tr><th scope="row">{escape(each.title)}</th><td>{each.mean:.1f}</td>'
        f"<td>{each.points}</td><td>{each.counts[-1]}</td><td>{each.counts[0]}</td></tr>"
        for each in found
    )
    mistakes = "".join(
        f"<h3>{escape(each.title)}</h3><ul>"
        + "".join(
            f"<li>{m.count} × <b>{escape(m.title)}</b>: {escape(m.explanation)}</li>"
            for m in each.mistakes[:MAX_MISTAKES]
        )
        + "</ul>"
        for each in found
        if each.mistakes
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(name)}: the class</title><style>{_STYLE}</style></head><body><main>"
        f"<h1>{escape(name)}: class report</h1><p>{num_students} submissions.</p>"
        '<div class="scrolls" role="group" aria-label="Scores" tabindex="0"><table><thead><tr>'
        '<th scope="col">exercise</th><th scope="col">mean</th><th scope="col">of</th>'
        '<th scope="col">full</th><th scope="col">none</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{picture}"
        f"<h2>The most common mistakes</h2>{mistakes or '<p>None was named.</p>'}"
        "</main></body></html>\n"
    )


_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0; }
main { max-width: 54rem; margin: 0 auto; padding: 1rem; }
.scrolls { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { padding: 0.2em 0.7em; text-align: right; font-weight: normal; }
th:first-child { text-align: left; }
thead th { font-weight: 600; }
svg { max-width: 100%; height: auto; background: #ffffff; }
"""


def to_svg(found: Sequence[ExerciseSummary], num_students: int) -> str:
    """Return a picture for a slide: for each exercise, how many made which mistake."""
    # Here, because it takes a second to import, and only this needs it.
    import matplotlib
    from matplotlib.figure import Figure

    blue, orange, ink = "#0b6fb8", "#c2570c", "#222832"
    made = [
        (f"{mistake.title}  {each.title.split()[0]}", mistake.count)
        for each in found
        for mistake in each.mistakes
    ]
    made = sorted(made, key=lambda row: -row[1])[:MAX_IN_PICTURE]
    means = [(each.title, 100 * each.mean / max(1, each.points)) for each in found]
    figure = Figure(figsize=(12.8, 7.2), layout="constrained")
    for axes, rows, colour, title in (
        (figure.add_subplot(1, 2, 1), means, blue, "points earned, on average, in percent"),
        (
            figure.add_subplot(1, 2, 2),
            made,
            orange,
            f"the same mistake, of {num_students} students",
        ),
    ):
        bars = axes.barh(range(len(rows)), [value for _, value in rows], color=colour)
        labels = ["\n".join(textwrap.wrap(label, 30)) for label, _ in rows]
        axes.set_yticks(range(len(rows)), labels)
        axes.bar_label(bars, [f"{value:.0f}" for _, value in rows], padding=3, color=ink)
        axes.set_xticks([])
        axes.set_title(title, color=ink)
        axes.invert_yaxis()
        axes.tick_params(colors=ink, length=0, labelsize=11)
        axes.spines[:].set_visible(False)
    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "summary", "svg.fonttype": "path"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    return (
        f'<svg role="img" aria-label="{html.escape(_in_words(found))}"' + text.partition("<svg")[2]
    )


def _in_words(found: Sequence[ExerciseSummary]) -> str:
    """Describe the picture in words."""
    parts = []
    for each in found:
        mean = f"{each.title}: {100 * each.mean / max(1, each.points):.0f} percent"
        made = (f"{m.count} times {m.title}" for m in each.mistakes[:MAX_MISTAKES])
        parts.append(", ".join([mean, *made]))
    return "Mean score and common mistakes. " + "; ".join(parts) + "."
