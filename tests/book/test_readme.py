"""What README shows is what the project computes."""

import json
import re

from books import BOOK, ROOT
from bs4 import BeautifulSoup


def test_the_picture_is_the_one_that_the_first_page_computes(site):
    page = BeautifulSoup((site / "index.html").read_text(encoding="utf-8"), "html.parser")
    light, dark = (
        image["src"] for image in page.select("figure#fig-look-back img, #fig-look-back img")[:2]
    )
    for built, kept in ((light, "look-back.svg"), (dark, "look-back-dark.svg")):
        drawn = (site / built).read_bytes()
        assert (BOOK / "_static" / kept).read_bytes() == drawn, "run `make picture`"


def test_every_path_in_the_readme_is_there():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    paths = re.findall(r"\b(?:book|exercises|solutions|lib|tests)/[\w./-]*\w", text)
    written_by_the_commands = ("book/_build",)
    for path in paths:
        if not path.startswith(written_by_the_commands):
            assert (ROOT / path).exists(), path


def test_the_training_results_are_those_of_the_record():
    records = ROOT / "tests" / "benchmarks" / "records" / "training.json"
    rows = {row["metric"]: row for row in json.loads(records.read_text(encoding="utf-8"))}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    dates = rows["exact match on unseen dates"]
    language = rows["held-out bits per byte of python-reference"]
    for row, told in (
        (dates, f"{dates['ours']:.2%}".replace("%", " %")),
        (language, f"| {language['ours']:.3f} | {language['peer']:.3f}:"),
    ):
        assert row["met"]
        assert told in text
        assert f"| {row['cpu_seconds']:.0f} s |" in text
        assert row["command"] in text
        assert row["date"] in text


def test_the_comparisons_are_those_of_the_records():
    """Every row, those that miss their goal too."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    records = ROOT / "tests" / "benchmarks" / "records"
    for name in ("training_speed", "nanogpt_speed", "generation_speed", "learning"):
        rows = json.loads((records / f"{name}.json").read_text(encoding="utf-8"))
        for row in rows:
            met = "yes" if row["met"] else "no"
            cells = (row["metric"], row["ours"], row["peer"], row["peer_name"], row["ratio"])
            line = " | ".join(map(str, (*cells, row["goal"], met)))
            assert f"| {line} |" in text, f"README lacks the line | {line} |"
