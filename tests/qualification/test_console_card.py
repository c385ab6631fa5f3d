"""The card on a console of 80 columns."""

import pytest
from msgspec.structs import replace

from jaxbench.qualification.console_card import card_lines
from tests.cards import made

CARDS = {
    "healthy": made.judged(),
    "fails": made.judged(made.corruption(mismatches=2), load=(40.0, 1)),
    "left out": made.judged(made.skipped("soak"), made.skipped("networks", "failed")),
    "busy": made.judged(load=(40.0, 0)),
    "late": replace(made.judged(), minutes_taken=40.0),
    "a little late": replace(made.judged(), minutes_taken=11.0),
}


@pytest.mark.parametrize("name", CARDS)
def test_a_card_on_the_console(name, snapshot):
    lines = [*card_lines(CARDS[name])]
    assert all(len(line) <= 80 for line in lines), max(lines, key=len)
    assert "\n".join(lines) == snapshot
