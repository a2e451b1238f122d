"""The page of measurements shows what the records say, the missed goals too."""

import json

from books import ROOT
from bs4 import BeautifulSoup, Tag

RECORDS = ROOT / "tests" / "benchmarks" / "records"


def _typed(cell: Tag) -> str:
    """Read a cell as it was typed: the page has other spaces and apostrophes."""
    return " ".join(cell.get_text().replace("’", "'").split())


def test_every_row_of_the_records_is_on_the_page_whether_it_met_its_goal_or_not(site):
    soup = BeautifulSoup((site / "measurements.html").read_text(encoding="utf-8"), "html.parser")
    shown = [[_typed(cell) for cell in row.select("td")] for row in soup.select("tr")]
    names = ("training_speed", "nanogpt_speed", "generation_speed", "learning")
    rows = [row for name in names for row in json.loads((RECORDS / f"{name}.json").read_text())]
    for row in rows:
        met = "yes" if row["met"] else "no"
        peer = f"{row['peer']:,}: {row['peer_name']}"
        told = [f"{row['ours']:,}", peer, f"{row['ratio']:.3f}", row["goal"], met]
        assert [cells[1:] for cells in shown].count(told) == 1, row["metric"]
    for name, row in json.loads((RECORDS / "install.json").read_text()).items():
        assert any(cells[:2] == [name, str(row["packages"])] for cells in shown)
    text = " ".join(soup.get_text().split())
    assert f"Of {len(rows)} comparisons" in text
    for row in json.loads((RECORDS / "training.json").read_text()):
        assert row["command"] in text
        assert f"{row['cpu_seconds']:.0f} s" in text
