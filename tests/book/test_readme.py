"""What README shows is what the project computes."""

import json
import re
import tomllib

from books import BOOK, ROOT
from bs4 import BeautifulSoup

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_picture_is_the_one_that_the_first_page_computes(site):
    page = BeautifulSoup((site / "index.html").read_text(encoding="utf-8"), "html.parser")
    light, dark = (
        image["src"] for image in page.select("figure#fig-look-back img, #fig-look-back img")[:2]
    )
    for built, kept in ((light, "look-back.svg"), (dark, "look-back-dark.svg")):
        drawn = (site / built).read_bytes()
        assert (BOOK / "_static" / kept).read_bytes() == drawn, "run `make picture`"


def test_every_path_in_the_readme_is_there():
    paths = re.findall(r"\b(?:book|exercises|solutions|lib|tests)/[\w./-]*\w", README)
    written_by_the_commands = ("book/_build",)
    for path in paths:
        if not path.startswith(written_by_the_commands):
            assert (ROOT / path).exists(), path


def records(name):
    path = ROOT / "tests" / "benchmarks" / "records" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))


def test_it_is_short():
    assert len(README.splitlines()) <= 120


def test_the_training_results_are_those_of_the_record():
    dates, language = records("training")
    for row in (dates, language):
        assert row["met"]
        assert f"`{row['command']}`" in README
        assert f"after {row['cpu_seconds']:.0f} s" in README
    assert f"reads {100 * dates['ours']:.2f} % of the days" in README
    assert f"needs {language['ours']:.3f} bits per byte" in README
    assert f"5-gram of characters needs {language['peer']:.3f}" in README


def test_the_comparisons_are_counted_and_those_that_miss_their_goal_too():
    names = ("training_speed", "nanogpt_speed", "generation_speed", "learning")
    rows = [row for name in names for row in records(name)]
    missed = sum(not row["met"] for row in rows)
    assert f"all {len(rows)} comparisons; {missed} of them miss their goal" in README
    both = "language model B: training tokens per second, our best settings, peer at its own best"
    (row,) = (row for row in rows if row["metric"].startswith(both))
    assert (
        f"{row['ratio']} times as many tokens per second as that of\n  {row['peer_name']}" in README
    )


def test_the_language_models_have_the_sizes_that_are_measured():
    source = (ROOT / "tests" / "benchmarks" / "test_training_speed.py").read_text(encoding="utf-8")
    found = re.findall(
        r'"([AB])": \{"num_layers": (\d+), "d_model": (\d+),.*"length": (\d+)', source
    )
    (_, *a), (_, *b) = found
    page = " ".join((BOOK / "measurements.md").read_text(encoding="utf-8").split())
    assert "A has {} layers of width {} and reads {} tokens at once".format(*a) in page
    assert "B has {} layers of width {} and reads {}:".format(*b) in page
    assert "A model of {} layers and width {} trains".format(*b) in README


def test_what_installing_takes_is_what_was_measured():
    for name, row in records("install").items():
        cells = (
            f"`{name}`",
            f"{row['megabytes to download']} MB",
            f"{row['megabytes on disk']} MB",
            f"{row['minutes to install']} minutes",
        )
        assert f"| {' | '.join(cells)} |" in README
        assert f"Measured on {row['date']}, after the download, on {row['hardware']}." in README
    build = records("book_build")["build, cold"]
    assert f"about {build['seconds'] / 60:.1f} minutes on two cores" in README
    assert "2 cores" in build["hardware"]


def test_each_list_of_packages_is_named_in_one_place_only():
    lists = [(ROOT / name).read_text() for name in ("requirements-learn.txt", "requirements.txt")]
    learn, rest = ({*re.findall(r"^([\w.-]+)==", text, re.MULTILINE)} for text in lists)
    assert not learn & rest
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert learn == {*project["dependencies"], *extras["learn"]}
    assert {re.match(r"[\w.-]+", each)[0] for each in extras["teach"]} <= rest


def test_every_command_of_the_course_in_it_is_one():
    from classroom.__main__ import _parser

    typed = re.findall(r"^classroom ([^#\n]+)", README, re.MULTILINE)
    assert len(typed) >= 5
    for words in typed:
        _parser().parse_args(words.split())
