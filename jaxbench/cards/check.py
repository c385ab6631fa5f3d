"""Check a card that somebody hands in."""

import pathlib

from jaxbench.cards.card import Card
from jaxbench.cards.card_file import card_path, digest_file, read_card
from jaxbench.cards.plausibility import implausible
from jaxbench.cards.verdict import judge
from jaxbench.errors import BadInput


def check_card(given: str | pathlib.Path) -> list[str]:
    """Return what is wrong with a card and with the files beside it, a line each.

    Files that are not there are none: a card may travel without its run directories.
    """
    try:
        card = read_card(given)
    except BadInput as error:
        return [str(error)]
    return [*_altered(card, card_path(given).parent), *implausible(card), *_misjudged(card)]


def _altered(card: Card, folder: pathlib.Path) -> list[str]:
    problems = []
    for name, digest in card.files.items():
        path = folder / name
        try:
            if digest_file(path) != digest:
                problems.append(f"{name}: is not the file that the card was made of")
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(f"{name}: {error.strerror}")
    return problems


def _misjudged(card: Card) -> list[str]:
    """Return whether the verdict is not what the figures give by the limits that it names."""
    if card.verdict is None:
        return ["it has no verdict"]
    try:
        found = judge(card, card.verdict.thresholds).outcome
    except KeyError as error:
        return [f"its verdict names no limit {error}"]
    if found == card.verdict.outcome:
        return []
    return [f"its verdict is {card.verdict.outcome}, its figures give {found}"]
