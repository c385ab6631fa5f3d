"""Find run directories, sweeps and cards, and group them."""

import csv
import dataclasses
import itertools
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from jaxbench.cards.card import Card
from jaxbench.cards.card_file import CARD, read_card
from jaxbench.cards.check import check_card, own_limits
from jaxbench.errors import BadInput
from jaxbench.files import DOCUMENT_BYTES, open_regular
from jaxbench.offering.folder import Offer, read_offers
from jaxbench.paths import user_path
from jaxbench.records.reader import TRIALS, read_results
from jaxbench.records.schema.sweep import TrialResult
from jaxbench.reports.runs import UNKNOWN_DOCUMENT, ReportedRun, read_run
from jaxbench.terminal import printable

# Enough for years of runs; a mistyped `/` still ends soon.
_MOST_FOLDERS, _DEEPEST = 20_000, 12
# What a run directory holds besides, and what is never searched.
_NOT_SEARCHED = {"tensorboard", "wandb", "profile", "checkpoints", "node_modules", "__pycache__"}
# What a run says where its process ended without a word: the sweep knows better.
_WITHOUT_A_WORD = ("running", "killed", "corrupt")


class Sweep:
    """A sweep's folder.

    Attributes:
      name: its path below the folder that was given.
      missing: its trials that left no run directory.
      max_batches: the rows of max_batch.csv.
      problem: which of its results cannot be read, if so.
    """

    def __init__(self, name: str, path: pathlib.Path):
        self.name, self.path = name, path
        self.missing: list[ReportedRun] = []
        self.problem: str | None = None
        corrupt: list[int] = []
        try:
            self._results = list(read_results(path / "results.jsonl", corrupt).values())
        except (BadInput, OSError) as error:
            self._results, self.problem = [], str(error).replace(str(path), name)
        if corrupt:
            more = f" and {len(corrupt) - 1} more" if len(corrupt) > 1 else ""
            self.problem = f"{name}/results.jsonl: line {corrupt[0]} is corrupt{more}; left out"
        self.max_batches = _read_table(path / "max_batch.csv")

    def attempts(self) -> Iterator[tuple[TrialResult | None, pathlib.Path | None]]:
        """Yield every trial's result with its run directory, then the runs that have none yet."""
        ended = set()
        for record in self._results:
            run = pathlib.PurePath(record.run or "")
            ended.add(self.path / pathlib.PurePath(record.log or run).parent)
            # Only what lies in the sweep: nothing that a corrupt line points at elsewhere.
            path = self.path / run
            inside = run.parts and not run.is_absolute() and ".." not in run.parts
            yield record, path if inside and path.is_dir() else None
        for trial in sorted(self.path.glob(f"{TRIALS}/*")):
            runs = sorted(trial.glob("run*/run.json"), key=lambda path: (len(str(path)), path))
            if trial not in ended and runs:
                yield None, runs[-1].parent

    def add_missing(self, record: TrialResult, runs: Sequence[ReportedRun]) -> None:
        """Add a trial that left no run directory, described like a run of another batch or seed.

        Args:
          record: the trial's result.
          runs: those of the sweep's other trials.
        """
        point = record.place
        num_devices = _parse_number(point.get("num_devices")) or record.num_devices
        # The mode is the whole sweep's.
        modes = {run.mode for run in runs}
        like = dataclasses.replace(
            UNKNOWN_DOCUMENT,
            mode=modes.pop() if len(modes) == 1 else "",
            config={"precision": point.get("precision")},
            environment={"hostname": record.hostname, "num_devices": num_devices},
        )
        varied = {f: _parse_number(point[f]) for f in ("batch_size", "seed") if f in point}
        same_but = dict.fromkeys(varied)
        for run in reversed(runs):
            like = run.document if {**run.point, **same_but} == {**point, **same_but} else like
        document = dataclasses.replace(
            like,
            experiment=record.experiment,
            config=like.config | varied,
            started_at=record.finished_at,
            summary=None,
        )
        name = f"{self.name}: {', '.join(f'{key}={value}' for key, value in point.items())}"
        status, reason = record.status, record.reason
        self.missing.append(ReportedRun(None, name, self.path, document, (), status, reason, point))


@dataclasses.dataclass(frozen=True)
class ReportedCard:
    """A card that was found.

    Attributes:
      id: C1, C2 ..., as tables name it.
      name: its folder's path below the folder that was given.
      path: the file.
      problems: what is wrong with it, see `check_card`, and whether it has limits of its own.
    """

    id: str
    name: str
    path: pathlib.Path
    card: Card
    problems: Sequence[str]


class Collection:
    """All that a report is about; `notes` are what a reader must know of the search.

    `offers` are machines to rent, listed by `jaxbench offers`, and what came back of them lies in
    their folders.
    """

    def __init__(self):
        self.runs: list[ReportedRun] = []
        self.sweeps: list[Sweep] = []
        self.cards: list[ReportedCard] = []
        self.offers: list[Offer] = []
        self.notes: list[str] = []
        self._by_path: dict[pathlib.Path, ReportedRun | Sweep | ReportedCard] = {}

    def add_run(self, name: str, path: pathlib.Path) -> ReportedRun:
        """Read a run directory, unless that has been done."""
        own = path.resolve()
        if own not in self._by_path:
            run = read_run(f"R{len(self.runs) + 1}", name, path)
            self.runs.append(run)
            self._by_path[own] = run
        return self._by_path[own]

    def add_sweep(self, name: str, path: pathlib.Path) -> None:
        """Read a sweep and its runs, unless that has been done."""
        if path.resolve() in self._by_path:
            return
        sweep = Sweep(name, path)
        runs, missing = [], []
        for record, run_path in sweep.attempts():
            if run_path is None:
                missing.append(record)
                continue
            run = self.add_run(f"{name}/{run_path.relative_to(path)}", run_path)
            if record is None:
                continue
            runs.append(run)
            run.point = record.place
            status = record.status
            # A trial that took too long was asked to end, as one that is preempted is.
            silent = run.status in _WITHOUT_A_WORD and status not in (None, "done")
            if silent or status == "timeout":
                run.status, run.reason = status, record.reason
        for record in missing:
            sweep.add_missing(record, runs)
        self.sweeps.append(sweep)
        self._by_path[path.resolve()] = sweep

    def add_card(self, name: str, path: pathlib.Path) -> None:
        """Read a card, unless that has been done.

        Raises:
          BadInput: it cannot be read.
        """
        if path.resolve() not in self._by_path:
            card = read_card(path)
            remarks = [*check_card(path), *filter(None, [own_limits(card)])]
            card = ReportedCard(f"C{len(self.cards) + 1}", name, path.resolve(), card, remarks)
            self.cards.append(card)
            self._by_path[path.resolve()] = card

    def add_found_card(self, name: str, path: pathlib.Path) -> None:
        """Read a card that a search has found; one that cannot be read is a note."""
        try:
            self.add_card(name, path)
        except BadInput as error:
            self.notes.append(printable(f"The card {name} is left out: {error}."))


def collect(paths: Sequence[str]) -> Collection:
    """Read what lies in or below the folders, and cards that are given by their own path.

    Raises:
      BadInput: one of them is no folder and no card, or holds neither run, sweep nor card.
    """
    collection = Collection()
    for given in paths:
        top = user_path(given)
        if top.suffix == ".json" and top.is_file():
            collection.add_card(given, top)
            continue
        if not top.is_dir():
            what = "is a file; name a folder" if top.exists() else "no such folder"
            raise BadInput(f"{given}: {what}")
        searched = [*itertools.islice(_search(top), _MOST_FOLDERS)]
        if len(searched) == _MOST_FOLDERS:
            collection.notes.append(
                f"The search of {given} ended after {_MOST_FOLDERS:,} folders: there may be more "
                "runs."
            )
        found = [(path, kind) for path, kind in searched if kind]
        offers = read_offers(top)
        collection.offers += offers
        if not found and not offers:
            what = "holds no run directory (one has a run.json), sweep or card, nor do the folders"
            raise BadInput(f"{given}: {what} below it")
        for path, kind in found:
            add = {
                "run": collection.add_run,
                "sweep": collection.add_sweep,
                "card": collection.add_found_card,
            }[kind]
            relative, own = path.relative_to(top).as_posix(), top.name or top.resolve().name
            name = f"{own}/{relative}" if len(paths) > 1 else relative
            add(own if relative == "." else name, path / CARD if kind == "card" else path)
    return collection


def _search(top: pathlib.Path) -> Iterator[tuple[pathlib.Path, str | None]]:
    """Yield folders and their kinds, in order; do not go below a run directory or a sweep.

    A card's folder holds the runs that it is from.

    Linked folders count too, each once, so that a link to a folder above it ends.
    """
    seen = set()
    for folder, names, _ in os.walk(top, followlinks=True):
        path, own = pathlib.Path(folder), os.path.realpath(folder)
        kind = _kind(path)
        deep = len(path.parts) - len(top.parts) >= _DEEPEST
        inside = [n for n in names if n not in _NOT_SEARCHED and not n.startswith(".")]
        names[:] = [] if own in seen or deep or kind in ("run", "sweep") else sorted(inside)
        if own not in seen:
            yield path, kind
        seen.add(own)


def _kind(path: pathlib.Path) -> str | None:
    # os.path says no where a folder may not be looked into; pathlib raises.
    if os.path.exists(path / "run.json") or os.path.exists(path / "metrics.jsonl"):
        return "run"
    # A sweep whose first trial has not ended yet has no results.
    has_trials = os.path.isdir(path / TRIALS)
    begun = has_trials and os.path.exists(path / "lock")
    if begun or os.path.exists(path / "results.jsonl"):
        return "sweep"
    return "card" if os.path.exists(path / CARD) else None


def _parse_number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _read_table(path: pathlib.Path) -> list[dict[str, str]]:
    try:
        with open_regular(path, newline="", encoding="utf-8", most_bytes=DOCUMENT_BYTES) as file:
            return list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error):
        return []
