import importlib
import inspect
import pkgutil
import re
import textwrap
from collections import Counter

import pytest
from books import BOOK, ROOT
from bs4 import BeautifulSoup
from library_reference import as_rst, describe, library, public_names

import groundup

CODE = '''
"""What the module is for, as `turn` shows."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

Choose = Callable[[Float[Tensor, "batch vocab"]], Tensor]
"""Turns logits into a token."""
_HIDDEN = 3


def turn(
    x: Float[Tensor, " length"],
    settings: "Settings | None" = None,
    *sizes: int,
    base: float = 10_000.0,
) -> Float[Tensor, " length"]:
    """Turn each pair of `x`, as `Settings` says.

    Args:
        x: What to turn.
        *sizes: How far,
            each.
        base: In tokens.

    Returns:
        Exit status: not a type, although a colon stands there.

    Raises:
        ValueError: If `x` is odd.

    Source:
        Somebody 2021, https://example.org/a

    """
    return x


class _Base:
    def shared(self) -> int:
        """Everybody's."""


@dataclass(frozen=True, kw_only=True)
class Settings(_Base):
    """How to turn.

    Attributes:
        width: Number of features.

    """

    width: int
    names: list[str] = field(default_factory=list)
    """Of the axes."""
    made: int = field(init=False, default=0)
    base: float = field(default=10_000.0)

    @property
    def half(self) -> "int | None":
        """Half the width."""

    @classmethod
    def tiny(cls, width: int = 5) -> "Settings":
        """A small one."""

    def _hidden(self):
        """Nobody's."""


class Pair(NamedTuple):
    """Two numbers."""

    first: int
    second: "int | None" = None
'''


@pytest.fixture
def lib(tmp_path):
    folder = tmp_path / "lib" / "groundup"
    folder.mkdir(parents=True)
    (folder / "turns.py").write_text(CODE, encoding="utf-8")
    return tmp_path / "lib"


def entry(lib, name):
    """Give the lines of an entry, without indents."""
    found = public_names("groundup.turns", lib)[name]
    return [line.strip() for line in describe(name, found) if line.strip()]


def test_shapes_defaults_and_later_types_are_shown_as_they_are_written(lib):
    assert entry(lib, "turn")[0] == (
        '.. py:function:: turn(x: Float[Tensor, " length"], settings: Settings | None = None, '
        '*sizes: int, base: float = 10_000.0) -> Float[Tensor, " length"]'
    )
    assert ':value: Callable[[Float[Tensor, "batch vocab"]], Tensor]' in entry(lib, "Choose")


def test_only_what_is_public_and_defined_here_is_a_name_of_a_module(lib):
    assert list(public_names("groundup.turns", lib)) == ["Choose", "turn", "Settings", "Pair"]


def test_a_class_is_shown_by_its_constructor_and_all_that_is_said_of_its_members(lib):
    first, *lines = entry(lib, "Settings")
    assert first == (
        ".. py:class:: Settings(*, width: int, names: list[str] = list(), base: float = 10_000.0)"
    )
    assert not any(line.startswith("Bases") for line in lines)
    directives = [line for line in lines if line.startswith(".. py:")]
    assert sorted(directives) == [
        ".. py:attribute:: names",
        ".. py:attribute:: width",
        ".. py:method:: shared() -> int",
        ".. py:method:: tiny(width: int = 5) -> Settings",
        ".. py:property:: half",
    ]
    for follow in (
        (".. py:attribute:: width", ":type: int", "Number of features."),
        (".. py:property:: half", ":type: int | None", "Half the width."),
        (".. py:method:: tiny(width: int = 5) -> Settings", ":classmethod:", "A small one."),
    ):
        start = lines.index(follow[0])
        assert tuple(lines[start : start + 3]) == follow


def test_a_named_tuple_is_shown_by_its_fields(lib):
    line, *_ = entry(lib, "Pair")
    assert line == ".. py:class:: Pair(first: int, second: int | None = None)"


def test_the_sections_of_a_docstring_become_fields(lib):
    lines = as_rst(public_names("groundup.turns", lib)["turn"].docstring.value)
    assert lines[0] == "Turn each pair of ``x``, as ``Settings`` says."
    for line in (
        ":param sizes: How far,",
        ":returns: Exit status: not a type, although a colon stands there.",
        ":raises ValueError: If ``x`` is odd.",
        ":Source: Somebody 2021, https://example.org/a",
    ):
        assert line in lines


def test_code_in_a_docstring_stays_code():
    lines = as_rst("Do this.\n\n    model = load(`x`)\n    again\n\nThen `that`.")
    assert lines[2:6] == [".. code-block:: python", "", "    model = load(`x`)", "    again"]
    assert "Then ``that``." in lines


PAGE = "# Reference\n\n```{eval-rst}\n.. library:: groundup.turns\n```\n"


@pytest.mark.slow
def test_an_entry_has_its_anchor_links_its_types_and_leads_to_its_source(small_book, lib):
    book = small_book("library_reference", library_root="../lib", nitpicky=True)
    book.write("page.md", PAGE)
    built = book.build()
    assert built.returncode == 0, built.stderr

    soup = BeautifulSoup(book.html("page"), "html.parser")
    entry = soup.find(id="groundup.turns.turn")
    assert 'Float[Tensor, " length"]' in entry.get_text()
    assert "10_000.0" in entry.get_text()
    assert entry.find("a", string="Settings")["href"] == "#groundup.turns.Settings"
    assert entry.find("a", class_="headerlink")["href"] == "#groundup.turns.turn"
    source = entry.find("span", string="[source]").parent["href"]
    assert source == "_modules/groundup/turns.html#turn"
    assert "def" in (book.folder / "out" / "_modules" / "groundup" / "turns.html").read_text()
    assert soup.find(id="groundup.turns.Settings.half") is not None
    assert soup.find(id="groundup.turns._HIDDEN") is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        ("*sizes: int", "*sizes: Tensr", "Tensr"),
        ("ValueError: If", "ValueEror: If", "ValueEror"),
    ],
)
def test_a_type_that_is_not_there_breaks_the_build(small_book, lib, right, wrong, complaint):
    (lib / "groundup" / "turns.py").write_text(CODE.replace(right, wrong), encoding="utf-8")
    book = small_book("library_reference", library_root="../lib", nitpicky=True)
    book.write("page.md", PAGE)
    built = book.build()
    assert built.returncode != 0
    assert f"reference target not found: {complaint}" in built.stderr


def described() -> list[str]:
    """Read from the pages which modules they describe, whole or in part."""
    text = "\n\n".join(p.read_text("utf-8") for p in sorted((BOOK / "reference").glob("*.md")))
    return re.findall(r"\b(?:groundup|classroom)[\w.]*", "".join(DIRECTIVES.findall(text)))


DIRECTIVES = re.compile(r"\.\. library::((?:.+\n)+)")


def public_modules() -> list[str]:
    found = [groundup.__name__]
    found += [each.name for each in pkgutil.walk_packages(groundup.__path__, "groundup.")]
    return [name for name in found if "._" not in name]


def test_the_modules_that_are_read_are_those_that_can_be_imported():
    def below(module):
        yield module.path
        for inner in module.modules.values():
            if not inner.is_alias:
                yield from below(inner)

    read = below(library(ROOT / "lib")["groundup"])
    assert sorted(name for name in read if "._" not in name) == sorted(public_modules())


def test_every_module_is_on_a_page_of_the_reference_and_on_one_only():
    rooms = {module.rpartition(".")[0] for module in public_modules()}  # these hold modules alone
    lacking = set(public_modules()) - rooms - set(described())
    assert not lacking, f"name them after `library::` on a page in book/reference: {lacking}"
    assert [name for name, times in Counter(described()).items() if times > 1] == []


def test_every_public_name_has_one_entry(site):
    """What Python finds in the modules, against what the pages describe."""
    pages = [page.read_text("utf-8") for page in sorted((site / "reference").glob("*.html"))]
    anchors = Counter(
        re.findall(r'<dt [^>]*\bid="((?:groundup|classroom)\.[^"]+)"', "".join(pages))
    )
    assert [name for name, times in anchors.items() if times > 1] == []
    wanted = {
        "classroom.check",
        "classroom.exercise.expect.expect_agrees",
        "classroom.calls.subject.Subject",
    }
    for module in map(importlib.import_module, public_modules()):
        for name, value in vars(module).items():
            is_here = getattr(value, "__module__", None) == module.__name__
            if is_here and not name.startswith("_") and inspect.isroutine(value):
                wanted.add(f"{module.__name__}.{name}")
            elif is_here and inspect.isclass(value) and not name.startswith("_"):
                wanted.add(f"{module.__name__}.{value.__name__}")
        text = inspect.getsource(module)
        for name in re.findall(r"^([A-Z]\w*)(?:: [^=\n]+)? = ", text, re.M):
            wanted.add(f"{module.__name__}.{name}")
    assert len(wanted) > 250
    assert sorted(wanted - set(anchors)) == []


def test_every_entry_shows_its_source_on_a_page_of_the_book(site):
    soup = BeautifulSoup((site / "reference" / "attention.html").read_text("utf-8"), "html.parser")
    (link,) = soup.find(id="groundup.core.attention.dot_scores").select("a:has(.viewcode-link)")
    file, _, anchor = link["href"].partition("#")
    page = BeautifulSoup((site / "reference" / file).read_text("utf-8"), "html.parser")
    code = textwrap.dedent(page.find(id=anchor).get_text())
    assert "def dot_scores(" in code and "transpose" in code


def test_every_option_of_the_command_lines_has_an_anchor(site):
    from command_reference import subcommands

    from classroom.__main__ import _parser as classroom_parser
    from groundup.__main__ import _parser as groundup_parser

    soup = BeautifulSoup((site / "reference" / "commands.html").read_text("utf-8"), "html.parser")
    num_options = 0
    for parser in (classroom_parser(), groundup_parser()):
        for name, (command, _) in subcommands(parser).items():
            section = soup.find(id=f"{parser.prog}-{name}")
            assert command.format_usage().split()[2] in section.get_text()
            for action in command._actions:
                for option in (each for each in action.option_strings if each.startswith("--")):
                    if option != "--help":
                        num_options += 1
                        anchor = f"cmdoption-{parser.prog}-{name}-{option.strip('-')}"
                        assert section.find(id=anchor) is not None, anchor
    assert num_options > 40
