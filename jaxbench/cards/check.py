"""Check a card that somebody hands in."""

import collections
import functools
import math
import os
import pathlib
from collections.abc import Iterator, Sequence

from jaxbench.cards.card import Card, Figure, Verdict
from jaxbench.cards.card_file import card_path, digest_file, list_files, read_card
from jaxbench.cards.plausibility import implausible
from jaxbench.cards.run_figures import figures_of_run
from jaxbench.cards.thresholds import Thresholds, load_thresholds
from jaxbench.cards.verdict import judge
from jaxbench.errors import BadInput
from jaxbench.records.reader import load_run

_MOST_NAMED, _MOST_FILES = 3, 10
# Figures that must name a run, and what a run leaves.
_OF_RUNS, _FILES = ("images_per_s", "drift_percent"), ("run.json", "metrics.jsonl")
# Of several runs' figures, what is computed again from the others instead.
_NOT_OF_ONE_RUN = "measured_peak_share"
_is_close = functools.partial(math.isclose, rel_tol=1e-9, abs_tol=1e-9)


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
    altered = _altered(card, folder)
    return [*altered, *_unlike_runs(card, folder, intact=not altered), *reasons]


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


def _unlike_runs(card: Card, folder: pathlib.Path, intact: bool) -> Iterator[str]:
    """Yield which files of runs are not listed, and which figures are not those of their runs."""
    unlisted = {}
    read = functools.cache(lambda run: _figures_of(folder, run))
    for figure in card.figures():
        if figure.run is None:
            if figure.name in _OF_RUNS:
                yield f"{figure}: names no run"
            continue
        names = (f"{figure.run}/{name}" for name in _FILES)
        unlisted |= dict.fromkeys(name for name in names if name not in card.files)
        figures = read(figure.run) if intact and figure.name != _NOT_OF_ONE_RUN else None
        if figures is not None:
            made = figures.get(figure.key)
            numbers = [one and (one.value, *one.ends) for one in (figure, made)]
            if made is None or not all(map(_is_close, *numbers)):
                yield f"{figure}: {_shown(figure)} is not what its run has, {_shown(made)}"
    if unlisted:
        yield f"its files lack those of the runs: {_few([*unlisted])}"


def _figures_of(folder: pathlib.Path, run: str) -> dict[tuple, Figure] | None:
    """Return the figures that a run makes; None if it is not there: a card may travel alone."""
    if not any(os.path.lexists(folder / run / name) for name in _FILES):
        return None
    try:
        return {one.key: one for one in figures_of_run(load_run(str(folder / run)), run)}
    # Anybody may have written it.
    except (BadInput, ValueError, TypeError, KeyError, AttributeError, ArithmeticError):
        return {}


def _shown(figure: Figure | None) -> str:
    if figure is None:
        return "none"
    ends = "" if figure.interval is None else " ({:g} to {:g})".format(*figure.interval)
    return f"{figure.value:g}{ends}"


def _misjudged(card: Card) -> Iterator[str]:
    """Yield if the verdict is not what the figures give by the limits that it names."""
    if card.verdict is None:
        yield "it has no verdict"
        return
    if unlike := {*card.verdict.thresholds} - {*load_thresholds()}:
        yield f"its verdict names limits that there are not: {_few(sorted(unlike))}"
        return
    judged = judge(card, _limits(card.verdict))
    if judged.outcome != card.verdict.outcome:
        yield f"its verdict is {card.verdict.outcome}, its figures give {judged.outcome}"
    # Their words, and what is not judged, may change from version to version.
    stated, expected = (
        collections.Counter(
            f"{one.part}: {one.rule.replace('_', ' ')} {one.status}"
            for one in verdict.findings
            if one.status != "not_judged"
        )
        for verdict in (card.verdict, judged)
    )
    if unlike := {one.rpartition(" ")[0] for one in (stated - expected) + (expected - stated)}:
        yield f"its findings are not those that its figures give: {_few(sorted(unlike))}"


def own_limits(card: Card) -> str | None:
    """Return a line with the limits that are not those that ship with jaxbench, None without."""
    limits = _limits(card.verdict) if card.verdict else load_thresholds()
    unlike = [
        f"{name} {_limit(limits[name])} in place of {_limit(limit)}"
        for name, limit in load_thresholds().items()
        if limits[name] != limit
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
