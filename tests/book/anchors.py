"""The anchors of the built book that a reader may have kept, and the record of them.

    python tests/book/anchors.py book/_build/html

adds to `anchors.txt` what has come. Nothing is ever taken out: an anchor that has to go is listed
in `moved_anchors` in book/_config.yml, with the place to which it leads.
"""

import re
import sys
from pathlib import Path

RECORD = Path(__file__).with_name("anchors.txt")
OFFERED = re.compile(r'<a class="headerlink" href="#([^"]+)"|<dt\b[^>]*\bid="([^"]+)"')
PRESENT = re.compile(r'\bid="([^"]+)"')


def _anchors(site: Path, pattern: re.Pattern[str]) -> set[str]:
    found = set()
    for file in sorted(site.rglob("*.html")):
        page = file.relative_to(site).with_suffix("").as_posix()
        if not page.startswith("_") and page not in ("search", "genindex"):
            for match in pattern.finditer(file.read_text(encoding="utf-8")):
                found.add(f"{page}#{next(filter(None, match.groups()))}")
    return found


def offered(site: Path) -> set[str]:
    """List what the book offers to link to: the links beside headings, figures and names."""
    return _anchors(site, OFFERED)


def present(site: Path) -> set[str]:
    """List every anchor there is."""
    return _anchors(site, PRESENT)


def recorded() -> set[str]:
    return set(RECORD.read_text(encoding="utf-8").split())


if __name__ == "__main__":
    lines = sorted(recorded() | offered(Path(sys.argv[1])))
    RECORD.write_text("\n".join(lines) + "\n", encoding="utf-8")
