"""Find run directories, sweeps and cards, and group them."""

import dataclasses
import itertools
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from jaxbench.cards.card import Card
from jaxbench.cards.card_file import CARD, read_card
from jaxbench.cards.check import check_card
from jaxbench.errors import BadInput
from jaxbench.files import parse_rows, read_text
from jaxbench.paths import user_path
from jaxbench.records.reader import TRIALS, read_results
from jaxbench.records.same import others_of
from jaxbench.reports.runs import UNKNOWN_DOCUMENT, ReportedRun, read_run
from jaxbench.schema import TrialResult

# Enough for years of runs; a mistyped `/` still ends soon.
_MOST_FOLDERS, _DEEPEST = 20_000, 12
# What a run directory holds besides, and what is never searched.
_NOT_SEARCHED = {"tensorboard", "wandb", "profile", "checkpoints", "node_modules", "__pycache__"}
# The status of a run whose process ended without recording why: the sweep's result replaces it.
_UNEXPLAINED = ("running", "killed", "corrupt")


@dataclasses.dataclass
class Sweep:
    """A sweep's folder.

    Attributes:
      missing: its trials that left no run directory.
      problem: which of its results cannot be read, if so.
    """

    name: str
    path: pathlib.Path
    max_batches: Sequence[Mapping[str, str | None]]
    problem: str | None = None
    missing: list[ReportedRun] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class ReportedCard:
    """A card."""

    id: str
    name: str
    path: pathlib.Path
    card: Card
    problems: Sequence[str]


@dataclasses.dataclass
class Collection:
    """All that a report is about.

    Attributes:
      notes: what a reader must know of the search.
      card_notes: which cards are left out, and why.
    """

    runs: list[ReportedRun] = dataclasses.field(default_factory=list)
    sweeps: list[Sweep] = dataclasses.field(default_factory=list)
    cards: list[ReportedCard] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    card_notes: list[str] = dataclasses.field(default_factory=list)
    _by_path: dict[pathlib.Path, Any] = dataclasses.field(default_factory=dict)

    @property
    def all_runs(self) -> list[ReportedRun]:
        """All runs in their order; trials without a run at the end."""
        return [*self.runs, *(run for sweep in self.sweeps for run in sweep.missing)]

    def add(self, kind: str, name: str, path: pathlib.Path) -> Any:
        """Read a run, a sweep with its runs, or a card, which may raise BadInput; each once."""
        real = path.resolve()
        if real not in self._by_path:
            self._by_path[real] = getattr(self, f"_read_{kind}")(name, path)
        return self._by_path[real]

    def _read_run(self, name: str, path: pathlib.Path) -> ReportedRun:
        self.runs.append(read_run(f"R{len(self.runs) + 1}", name, path))
        return self.runs[-1]

    def _read_card(self, name: str, path: pathlib.Path) -> ReportedCard:
        card, path = read_card(path), path.resolve()
        number = len(self.cards) + 1
        self.cards.append(ReportedCard(f"C{number}", name, path, card, check_card(path)))
        return self.cards[-1]

    def _read_sweep(self, name: str, path: pathlib.Path) -> Sweep:
        sweep, results, corrupt = Sweep(name, path, _read_max_batches(path)), [], []
        try:
            results = [*read_results(path / "results.jsonl", corrupt).values()]
        except BadInput as error:
            sweep.problem = str(error).replace(str(path), name)
        if corrupt:
            more = f" and {len(corrupt) - 1} more" if len(corrupt) > 1 else ""
            sweep.problem = f"{name}/results.jsonl: line {corrupt[0]} is corrupt{more}; left out"
        runs, missing = [], []
        for result, run_path in _trials(path, results):
            if run_path is None:
                if result is not None:
                    missing.append(result)
                continue
            run = self.add("run", f"{name}/{run_path.relative_to(path)}", run_path)
            if result is None:
                continue
            runs.append(run)
            run.point = result.place
            # A trial that took too long was asked to end, as one that is preempted is.
            silent = run.status in _UNEXPLAINED and result.status != "done"
            if silent or result.status == "timeout":
                run.status, run.reason = result.status, result.reason
        sweep.missing += [_without_run(sweep, result, runs) for result in missing]
        self.sweeps.append(sweep)
        return sweep


def _trials(
    sweep: pathlib.Path, results: Sequence[TrialResult]
) -> Iterator[tuple[TrialResult | None, pathlib.Path | None]]:
    """Yield every trial's result with its run directory, then the runs that have none yet."""
    ended = set()
    for result in results:
        run = pathlib.PurePath(result.run or "")
        ended.add(sweep / pathlib.PurePath(result.log or run).parent)
        # Only what lies in the sweep: nothing that a corrupt line points at elsewhere.
        inside = run.parts and not run.is_absolute() and ".." not in run.parts
        # os.path says no to a name that is too long; pathlib raises.
        yield result, sweep / run if inside and os.path.isdir(sweep / run) else None
    for trial in sorted(sweep.glob(f"{TRIALS}/*")):
        runs = sorted(trial.glob("run*/run.json"), key=lambda path: (len(str(path)), path))
        if trial not in ended and runs:
            yield None, runs[-1].parent


def _without_run(sweep: Sweep, result: TrialResult, runs: Sequence[ReportedRun]) -> ReportedRun:
    """Return a trial that left no run directory, described like a run of another batch or seed."""
    point = result.place
    numbers = {f: _parse_number(point[f]) for f in ("batch_size", "seed") if f in point}
    others = others_of(point, *numbers)
    alike = [run.document for run in runs if others_of(run.point, *numbers) == others]
    if alike:
        document = alike[0]
    else:
        modes = {run.mode for run in runs}
        num_devices = _parse_number(point.get("num_devices")) or result.num_devices
        document = msgspec.structs.replace(
            UNKNOWN_DOCUMENT,
            experiment=result.experiment,
            # The mode is the whole sweep's.
            mode=modes.pop() if len(modes) == 1 else "",
            config={"precision": point.get("precision")},
            environment={"hostname": result.hostname, "num_devices": num_devices},
        )
    changed: Any = {"config": {**document.config, **numbers}, "started_at": result.finished_at}
    document = msgspec.structs.replace(document, **changed, summary=None)
    name = f"{sweep.name}: {', '.join(f'{key}={value}' for key, value in point.items())}"
    return ReportedRun(None, name, sweep.path, document, (), result.status, result.reason, point)


def collect(paths: Sequence[str]) -> Collection:
    """Read what lies in or below the folders, and cards that are given by their own path."""
    collection = Collection()
    for folder in paths:
        top = user_path(folder)
        if top.suffix == ".json" and top.is_file():
            collection.add("card", folder, top)
            continue
        if not top.is_dir():
            problem = "is a file; name a folder" if top.exists() else "no such folder"
            raise BadInput(f"{folder}: {problem}")
        searched = [*itertools.islice(_search(top), _MOST_FOLDERS)]
        if len(searched) == _MOST_FOLDERS:
            collection.notes.append(
                f"The search of {folder} ended after {_MOST_FOLDERS:,} folders: there may be more "
                "runs."
            )
        if not any(kind for _, kind in searched):
            raise BadInput(
                f"{folder}: holds no run directory (one has a run.json), sweep or card, nor do the "
                "folders below it"
            )
        for path, kind in searched:
            relative, top_name = path.relative_to(top).as_posix(), top.name or top.resolve().name
            name = f"{top_name}/{relative}" if len(paths) > 1 else relative
            name = top_name if relative == "." else name
            if kind == "card":
                try:
                    collection.add(kind, name, path / CARD)
                except BadInput as error:
                    collection.card_notes.append(f"The card {name} is left out: {error}.")
            elif kind:
                collection.add(kind, name, path)
    return collection


def _search(top: pathlib.Path) -> Iterator[tuple[pathlib.Path, str | None]]:
    """Yield folders and their kinds, in order; do not go below a run directory or a sweep.

    A card's folder holds the runs that it is from. Linked folders count too, each once, so that a
    link to a folder above it ends.
    """
    seen = set()
    for folder, names, _ in os.walk(top, followlinks=True):
        path, real = pathlib.Path(folder), os.path.realpath(folder)
        kind = _kind(path)
        deep = len(path.parts) - len(top.parts) >= _DEEPEST
        inside = [n for n in names if n not in _NOT_SEARCHED and not n.startswith(".")]
        names[:] = [] if real in seen or deep or kind in ("run", "sweep") else sorted(inside)
        if real not in seen:
            yield path, kind
        seen.add(real)


def _kind(path: pathlib.Path) -> str | None:
    # os.path says no if a folder may not be looked into; pathlib raises.
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
        number = float(value)
    except (TypeError, ValueError):
        return None
    return int(number) if number.is_integer() else number


def _read_max_batches(sweep: pathlib.Path) -> list[dict[str, str | None]]:
    try:
        return parse_rows(read_text(sweep / "max_batch.csv"), dict[str, str | None])
    except (OSError, ValueError):
        return []
