"""What README shows is what the project computes."""

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
