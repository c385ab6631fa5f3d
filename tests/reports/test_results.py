"""The cards in results/: each is whole, and the table is that of the command.

tests/integration/test_texts.py reads the measurements beside them.
"""

import csv

from jaxbench.cards.card_file import CARD
from jaxbench.hardware.targets.target import parse_target
from jaxbench.paths import hide_paths
from jaxbench.reports.collect import collect
from jaxbench.reports.write import render_markdown
from tests.conftest import ROOT
from tests.reports.pages import sections_of

RESULTS = ROOT / "results"


def test_what_lies_in_results_can_be_published():
    cards = [*RESULTS.glob(f"*/{CARD}")]
    files = {path for path in RESULTS.rglob("*") if path.is_file() and path.suffix != ".csv"}
    table = [RESULTS / "cards.md"] if cards else []
    belong = {RESULTS / "README.md", *cards, *table}
    records = {path for path in files if path.match("*/runs/*/*")}
    assert files - records == belong, "something does not belong here"
    for path in RESULTS.glob("targets/*.csv"):
        rows = list(csv.DictReader(path.read_text().splitlines()))
        assert rows and {row["fits"] for row in rows} == {"yes", "no"}
        assert all(parse_target(row["target"]) and row["date"] and row["compiler"] for row in rows)
    if not cards:
        return
    found = collect([str(RESULTS)])
    assert found.notes + found.card_notes == []
    assert {card.name: card.problems for card in found.cards if card.problems} == {}
    texts = {path: path.read_text() for path in {*cards, *records}}
    assert [path for path, text in texts.items() if hide_paths(text) != text] == []
    text = render_markdown([sections_of(RESULTS)["cards"]], "jaxbench: cards")
    assert table[0].read_text() == text, "jaxbench qualify table results --out=results/cards.md"
