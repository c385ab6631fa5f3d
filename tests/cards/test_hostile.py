"""Cards that somebody made up: whatever stands in one, it is a line and no traceback."""

import copy
import json

import pytest

from jaxbench.cards.card_file import digest_of
from jaxbench.cards.check import check_card
from jaxbench.cards.compare import describe_cards
from jaxbench.errors import BadInput
from jaxbench.reports.collect import collect
from tests.cards import made
from tests.reports.pages import sections_of

ODD = (-1, True, None, "\x1b[2J", [[1]], {"id": [1]}, 1e308)


def places(value, path=()):
    """Yields the path of every value in a JSON value."""
    yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in pairs:
        if isinstance(one, (dict, list)):
            yield from places(one, (*path, key))
        else:
            yield (*path, key)


def put(content, path, value):
    *parents, last = path
    for key in parents:
        content = content[key]
    content[last] = value


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_no_value_ends_a_check(odd, tmp_path):
    card = made.write(tmp_path, made.judged(made.corruption(1, [(1, "a")])))
    original = json.loads(card.read_text())
    seen = set()
    for path in places(original):
        # Of a list of like ones the first is enough.
        kind = tuple("*" if isinstance(key, int) else key for key in path)
        if not path or kind in seen:
            continue
        seen.add(kind)
        content = copy.deepcopy(original)
        put(content, path, odd)
        content["digest"] = digest_of(content)
        card.write_text(json.dumps(content))
        assert all("\n" not in line for line in check_card(card)), path
    assert len(seen) > 80


@pytest.mark.parametrize("devices", [5, [{"id": [1]}], [{"id": 0, "kind": None}], None, "a"])
def test_one_bad_card_is_a_note_of_the_folder(devices, tmp_path):
    made.write(tmp_path / "a")
    bad = made.write(tmp_path / "b")
    made.alter(bad, lambda c: c["environment"].update(devices=devices))
    found = collect([str(tmp_path)])
    assert [card.name for card in found.cards] == ["a"]
    assert len(found.card_notes) == 1 and "environment.devices" in found.card_notes[0]
    assert "b is left out" in sections_of(tmp_path)["cards"].blocks[0]
    [line] = check_card(bad)
    assert "environment.devices" in line


def test_cards_without_a_common_figure_cannot_be_compared():
    with pytest.raises(BadInput, match="no figure in common"):
        [*describe_cards([made.card(), made.card(parts=(made.skipped("soak"),))])]
