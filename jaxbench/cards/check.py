"""Check a card that somebody hands in."""

import collections
import os
import pathlib
from collections.abc import Iterator, Sequence

from jaxbench.cards.card import Card, Verdict
from jaxbench.cards.card_file import card_path, digest_file, list_files, read_card
from jaxbench.cards.plausibility import implausible
from jaxbench.cards.thresholds import Thresholds, load_thresholds
from jaxbench.cards.verdict import judge
from jaxbench.errors import BadInput
from jaxbench.records.reader import read_document

_MOST_NAMED, _MOST_FILES = 3, 10
# Figures that a run of their own must be behind, and what a run leaves.
_OF_RUNS, _FILES = ("images_per_s", "drift_percent"), ("run.json", "metrics.jsonl")


def check_card(given: str | pathlib.Path) -> list[str]:
    """Return what is wrong with a card and with the files beside it, a line each.

    A card may travel alone. Where one of its files is beside it, all must be, and no others.
    """
    try:
        card = read_card(given)
    except BadInput as error:
        return [str(error)]
    folder = card_path(given).parent
    reasons = [*implausible(card), *_misjudged(card)]
    return [*_altered(card, folder), *_unlike_runs(card, folder), *reasons]


def _altered(card: Card, folder: pathlib.Path) -> list[str]:
    """Return which files beside the card are not those that it was made of."""
    if not any(os.path.lexists(folder / name) for name in card.files):
        return []
    added = {*list_files(folder)} - {*card.files}
    problems = [f"{name}: was added to the card's files" for name in sorted(added)]
    for name, digest in card.files.items():
        try:
            if digest_file(folder / name) != digest:
                problems.append(f"{name}: is not the file that the card was made of")
        except FileNotFoundError:
            problems.append(f"{name}: was removed from the card's files")
        except OSError as error:
            problems.append(f"{name}: {error.strerror}")
    more = len(problems) - _MOST_FILES
    return [*problems[:_MOST_FILES], *([f"{more} more files"] if more > 0 else [])]


def _unlike_runs(card: Card, folder: pathlib.Path) -> Iterator[str]:
    """Yield which files of runs are not listed, and which rates are not those of their runs."""
    unlisted = {}
    for figure in card.figures():
        if figure.run is None:
            if figure.name in _OF_RUNS:
                yield f"{figure}: names no run"
            continue
        names = (f"{figure.run}/{name}" for name in _FILES)
        unlisted |= dict.fromkeys(name for name in names if name not in card.files)
        summary = read_document(folder / figure.run).get("summary")
        own = zip(("", "_low", "_high"), (figure.value, *figure.ends), strict=True)
        for end, value in own if isinstance(summary, dict) and figure.name in _OF_RUNS else ():
            if (told := summary.get(figure.name + end)) not in (None, value):
                what = f"{figure.name}{end} {value:g}"
                yield f"{figure}: {what} is not what its run has, {str(told)[:20]}"
    if unlisted:
        yield f"its files lack those of the runs: {_few([*unlisted])}"


def _misjudged(card: Card) -> list[str]:
    """Return where the verdict is not what the figures give by the limits that it names."""
    if card.verdict is None:
        return ["it has no verdict"]
    if unlike := {*card.verdict.thresholds} - {*load_thresholds()}:
        return [f"its verdict names limits that there are not: {_few(sorted(unlike))}"]
    found = judge(card, _limits(card.verdict))
    problems = []
    if found.outcome != card.verdict.outcome:
        problems.append(f"its verdict is {card.verdict.outcome}, its figures give {found.outcome}")
    # Their words, and what is not judged, may change from version to version.
    given, own = (
        collections.Counter(
            (one.part, one.rule, one.status)
            for one in verdict.findings
            if one.status != "not_judged"
        )
        for verdict in (card.verdict, found)
    )
    if unlike := (given - own) + (own - given):
        told = _few(sorted({f"{part}: {rule.replace('_', ' ')}" for part, rule, _ in unlike}))
        problems.append(f"its findings are not those that its figures give: {told}")
    return problems


def own_limits(card: Card) -> str | None:
    """Return a line with the limits that are not those that ship with jaxbench, None without."""
    if card.verdict is None:
        return None
    given = _limits(card.verdict)
    unlike = [
        f"{name} {_limit(given[name])} in place of {_limit(limit)}"
        for name, limit in load_thresholds().items()
        if given[name] != limit
    ]
    return f"judged by limits of its own: {_few(unlike)}" if unlike else None


def _limits(verdict: Verdict) -> Thresholds:
    """Return the limits of a verdict; None for those that its version did not have."""
    return {**dict.fromkeys(load_thresholds()), **verdict.thresholds}


def _limit(limit: float | None) -> str:
    return "none" if limit is None else f"{limit:g}"


def _few(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - _MOST_NAMED
    shown = ", ".join(name[:60] for name in names[:_MOST_NAMED])
    return f"{shown} and {more} more" if more > 0 else shown
