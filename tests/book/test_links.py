"""Links, as far as they can be checked without a network; `make links` opens the outer ones."""

import re
from collections import defaultdict
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from books import BOOK, ROOT, pages
from bs4 import BeautifulSoup

WRITTEN = sorted(
    [
        *ROOT.glob("*.md"),
        *BOOK.rglob("*.md"),
        *BOOK.glob("*.py"),
        BOOK / "references.bib",
        *ROOT.glob("solutions/*/*.py"),
        *ROOT.glob("lib/*/**/*.py"),
    ]
)
WRITTEN = [file for file in WRITTEN if "_build" not in file.parts]
ADDRESS = re.compile(r"https?://[^\s\"'`<>{}\\]+")
NO_LINKS = {"localhost", "127.0.0.1", "10.0.0.7"}
"""What stands in an example."""


def addresses(text):
    """Give the addresses in a text, without the marks that follow them in a sentence."""
    for found in ADDRESS.findall(text):
        address = found.rstrip(".,;:!?*_…")
        while address.endswith((")", "]")) and address.count(address[-1]) > address.count(
            {")": "(", "]": "["}[address[-1]]
        ):
            address = address[:-1].rstrip(".,;:!?*_")
        host = urlsplit(address).hostname  # none where code puts one in
        if host and host not in NO_LINKS and not host.endswith(".invalid"):
            yield address


def target(address):
    """Bring different spellings of one target to one form."""
    parts = urlsplit(address)
    host = parts.hostname.removeprefix("www.").replace("dx.doi.org", "doi.org")
    path = unquote(parts.path).rstrip("/").removesuffix("/index.html")
    if host in ("arxiv.org", "export.arxiv.org"):
        path = re.sub(r"^/(pdf|html)/", "/abs/", path).removesuffix(".pdf")
        path = re.sub(r"v\d+$", "", path)
    if host == "github.com":
        path = re.sub(r"/pull/(\d+)$", r"/issues/\1", path.lower()).removesuffix(".git")
    if host == "doi.org":
        path = re.sub(r"^/10\.48550/arxiv\.", "/abs/", path.lower())
        host = "arxiv.org" if path.startswith("/abs/") else host
    return f"{host}{path}?{parts.query}"


@pytest.fixture(scope="module")
def links():
    """Each address with the files in which it stands."""
    found = defaultdict(set)
    for file in WRITTEN:
        for address in addresses(file.read_text(encoding="utf-8")):
            found[address].add(str(file.relative_to(ROOT)))
    return found


def test_there_are_links_to_look_at(links):
    assert len(links) > 200
    assert sum("github.com" in address for address in links) > 100


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("see [it](https://a.org/b_(c)).", ["https://a.org/b_(c)"]),
        ("(https://a.org/b), and <https://a.org/c/>.", ["https://a.org/b", "https://a.org/c/"]),
        ("url = {https://a.org/b}", ["https://a.org/b"]),
        ("`https://a.org/b`: tcp://10.0.0.7:8786, http://127.0.0.1:9/x", ["https://a.org/b"]),
    ],
)
def test_addresses_are_found_without_what_follows_them(sentence, expected):
    assert list(addresses(sentence)) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://arxiv.org/abs/1706.03762", "https://arxiv.org/pdf/1706.03762v5.pdf"),
        ("https://arxiv.org/abs/1706.03762", "https://doi.org/10.48550/arXiv.1706.03762"),
        ("https://doi.org/10.1/X", "https://dx.doi.org/10.1/x"),
        ("https://github.com/a/b/pull/3", "https://github.com/A/b/issues/3"),
        ("https://www.a.org/b/", "https://a.org/b"),
    ],
)
def test_spellings_of_one_target_are_known_as_one(one, other):
    assert target(one) == target(other)


def test_targets_that_differ_are_not_taken_for_one():
    different = ("https://a.org/b", "https://a.org/c", "https://a.org/b?c=1", "https://b.org/b")
    assert len({target(address) for address in different}) == 4


def test_every_link_that_leads_out_is_well_formed_and_encrypted(links):
    for address, files in links.items():
        parts = urlsplit(address)
        assert parts.scheme == "https", (address, files)
        assert re.fullmatch(r"([a-z0-9-]+\.)+[a-z]{2,}", parts.hostname), (address, files)
        assert parts.username is None and parts.port is None, (address, files)
        assert "//" not in parts.path and " " not in unquote(address), (address, files)


def test_one_target_is_spelled_in_one_way(links):
    spellings = defaultdict(set)
    for address in links:
        spellings[target(address)].add(address.partition("#")[0])
    twice = {same: sorted(found) for same, found in spellings.items() if len(found) > 1}
    assert twice == {}


def anchors(markdown):
    """Give the anchors that GitHub makes from headings, and those that a page names itself."""
    text = re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", h.lower()).strip().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("name", sorted(file.name for file in ROOT.glob("*.md")))
def test_files_and_headings_that_are_linked_in_the_root_exist(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    linked = re.findall(r"\]\((?!https?:)([^)\s]+)\)|(?:src|srcset)=\"(?!https?:)([^\"]+)\"", text)
    for link in ("".join(found) for found in linked):
        path, _, anchor = link.partition("#")
        file = ROOT / path if path else ROOT / name
        assert file.exists(), link
        if anchor:
            assert anchor in anchors(file.read_text(encoding="utf-8")), link


@pytest.mark.parametrize("name", ["CHANGELOG.md", "CONTRIBUTING.md", "RELEASING.md"])
def test_files_that_are_named_in_the_root_exist(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    for path in re.findall(r"`([\w.-]+/[\w./-]*|[\w-]+\.(?:md|toml|cff|txt))`", text):
        if not path.startswith("book/_build"):
            assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", pages())
def test_what_a_page_loads_lies_beside_it(site, page):
    file = site / f"{page}.html"
    soup = BeautifulSoup(file.read_text(encoding="utf-8"), "html.parser")
    loaded = [tag["src"] for tag in soup.select("[src]")]
    loaded += [tag["href"] for tag in soup.select("link[href]")]
    assert loaded
    for address in loaded:
        parts = urlsplit(address)
        if not parts.scheme:
            assert (file.parent / unquote(parts.path)).is_file(), address


def test_no_page_links_to_the_machine_it_was_built_on(site):
    for page in pages():
        text = (site / f"{page}.html").read_text(encoding="utf-8")
        assert not re.findall(r"(?:href|src)=\"(?:file:|/)[^\"]*\"", text), page
        assert str(Path.home()) + "/" not in text, page
