"""The answer of a card on a console: ten lines of 80 columns."""

import pathlib

import pytest
from msgspec.structs import replace

from jaxbench.qualification.console_card import answer_lines
from tests.cards import made

CARDS = {
    "healthy": made.judged(),
    "fails": made.judged(made.corruption(mismatches=2), load=(40.0, 1)),
    "slow": made.judged(made.ceilings(500.0), made.networks(3_000.0)),
    "a broken board": made.judged(made.soak(counter="row_remapping_failed", before=1)),
    "corrupted": made.judged(made.corruption(mismatches=2), made.ceilings(300.0)),
    "a problem": made.judged(made.doctor(driver="problem")),
    "left out": made.judged(made.skipped("soak"), made.skipped("networks", "failed")),
    "busy": made.judged(load=(40.0, 0)),
    "late": replace(made.judged(), minutes_taken=40.0),
    "a little late": replace(made.judged(), minutes_taken=11.0),
}


@pytest.mark.parametrize("name", CARDS)
def test_a_card_on_the_console(name, snapshot):
    card = CARDS[name]
    card = made.with_verdict(made.expected(card, []))
    lines = [*answer_lines(card, pathlib.Path("runs/qualify/first"))]
    assert len(lines) <= 10 and all(len(line) <= 80 for line in lines), lines
    assert "\n".join(lines) == snapshot
