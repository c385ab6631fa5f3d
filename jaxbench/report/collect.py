"""Finds run directories and sweeps and reads them, whatever state they are in."""

import csv
import json
import os
import pathlib
import platform
from collections.abc import Iterator, Sequence
from typing import Any

import psutil

from jaxbench.clock import timestamp_s
from jaxbench.errors import BadInput
from jaxbench.records.reader import (
    TRIAL_FOLDERS,
    Run,
    flat,
    load_run,
    missing_records,
    read_results,
)
from jaxbench.report.values import find, items, mapping, number, text

# Enough for years of runs; a mistyped `/` still ends soon.
_MOST_FOLDERS, _DEEPEST = 20_000, 12
# What a run directory holds besides, and what is never searched.
_NOT_SEARCHED = {"tensorboard", "wandb", "profile", "checkpoints", "node_modules", "__pycache__"}
# What repeats differ in, what has a word of its own, and what makes points of one line.
_NOT_SETTINGS = {"batch_size", "seed", "name", "num_devices", "epochs", "max_steps"} | {
    "precision",
    "data.feed",
}
# Of networks, so much of the parameters may lie elsewhere (another number of classes).
_SAME_SIZE = 0.03
# The networks' names in analysis/published: {(class, parameters in millions): name}.
_PUBLISHED_NETWORKS = {
    ("Cnn10", 1.9): "cnn10",
    ("WideResNet", 36.5): "wrn28_10",
    ("ResNet", 25.6): "resnet50",
    ("Vgg", 15.0): "vgg_cifar10",
    ("MnistCnn", 1.2): "mnist_cnn",
}


class ReportedRun:
    """A run directory as the report sees it.

    Attributes:
      id: R1, R2 ...: what figures are marked with.
      name: its path below the folder that was given.
      document, records: as in `jaxbench.records.reader.Run`; empty where they cannot be read.
      status: as in run.json, or `corrupt` (see `reason`), or `killed`: its process is gone.
      reason: why it is not `done`.
    """

    def __init__(self, id: str, name: str, path: pathlib.Path):
        self.id, self.name, self.path = id, name, path
        self.document: dict[str, Any] = {}
        self.records: list[dict[str, Any]] = []
        self._read()

    def _read(self) -> None:
        try:
            run = load_run(str(self.path))
        except (BadInput, ValueError) as error:
            self.status = "corrupt"
            self.reason: str | None = str(error).replace(f"{self.path}", self.name)
            self.document = _read_document(self.path)
            return
        self._take(run)

    def _take(self, run: Run) -> None:
        self.document = run.document
        self.records = [record for record in run.records if isinstance(record, dict)]
        self.status = text(run.document, "status") or "corrupt"
        self.reason = text(run.document, "reason")
        if len(self.records) < len(run.records):
            self.status, self.reason = "corrupt", "metrics.jsonl holds lines that are no records"
        elif self.status == "corrupt":
            self.reason = "its run.json has no status"
        elif self.status == "running":
            self.status, self.reason = self._still_running()
        elif lost := missing_records(run):
            ended = f"; it ended as {self.status}: {self.reason}" if self.reason else ""
            self.status, self.reason = "corrupt", lost + ended

    def _still_running(self) -> tuple[str, str | None]:
        """Tells a run that goes on from one whose process is gone, where that can be known."""
        own = {"hostname": text(self.environment, "hostname"), **self.document}
        # A run that was taken up again has another process since.
        last = {**own, **(mapping((items(self.document, "resumes") or [{}])[-1]))}
        pid, host = number(last, "pid"), text(last, "hostname")
        if pid is None or host != platform.node():
            return "running", f"when last heard of, on {host or 'an unknown host'}"
        try:
            began_s = psutil.Process(int(pid)).create_time()
            started_s = timestamp_s(text(last, "started_at") or "")
            # A later process may have the same number; clocks agree to a second.
            if began_s <= started_s + 1:
                return "running", f"process {pid:.0f}"
        except (psutil.AccessDenied, ValueError, OverflowError):
            return "running", f"process {pid:.0f}"
        except psutil.NoSuchProcess:
            pass
        return "killed", "its process is gone and left no word"

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record.get("kind") == kind]

    @property
    def summary(self) -> dict[str, Any]:
        return mapping(self.document, "summary")

    @property
    def config(self) -> dict[str, Any]:
        return mapping(self.document, "config")

    @property
    def environment(self) -> dict[str, Any]:
        return mapping(self.document, "environment")

    @property
    def experiment(self) -> str:
        return text(self.document, "experiment") or "unnamed"

    @property
    def mode(self) -> str:
        """Which job it was: train, throughput, scaling, input, memory or conv2d."""
        return text(self.document, "mode") or "train"

    @property
    def network(self) -> str:
        """The network and its size, as one line."""
        name = text(self.document, "model") or ("convolution" if self.mode == "conv2d" else "?")
        parameters = number(self.document, "parameters")
        if parameters is None:
            return name
        size = f"{parameters / 1e6:.1f} M" if parameters >= 1e6 else f"{parameters / 1e3:.0f} k"
        return f"{name}, {size} parameters"

    @property
    def data(self) -> str:
        """What it was trained on."""
        if self.feed == "synthetic":
            return "one made-up batch"
        found = text(self.document, "data", "description") or text(self.config, "data", "source")
        return found or "–"

    @property
    def feed(self) -> str:
        return text(self.document, "data", "feed") or text(self.config, "data", "feed") or "–"

    @property
    def precision(self) -> str:
        """With what fp32 stands for, where the run asked for something."""
        precision = text(self.config, "precision") or "–"
        arithmetic = text(self.environment, "matmul_precision")
        return f"{precision} ({arithmetic})" if arithmetic else precision

    @property
    def batch_size(self) -> float | None:
        return number(self.config, "batch_size")

    @property
    def num_devices(self) -> float | None:
        return number(self.environment, "num_devices")

    @property
    def device_kind(self) -> str:
        return text(self.environment, "device_kind") or "–"

    @property
    def hardware(self) -> str:
        """The devices, as one line."""
        count = self.num_devices
        return f"{count:.0f} × {self.device_kind}" if count is not None else self.device_kind

    @property
    def processor(self) -> str | None:
        """The processor that CPU devices are made of; None for other devices."""
        return text(self.environment, "cpu") if self.device_kind == "cpu" else None

    @property
    def published_network(self) -> str | None:
        """What `jaxbench.analysis.published` calls this network, None where it is none of those."""
        own, parameters = text(self.document, "model"), number(self.document, "parameters")
        for (model, millions), name in _PUBLISHED_NETWORKS.items():
            if own == model and abs((parameters or 0) / 1e6 / millions - 1) <= _SAME_SIZE:
                return name
        return None

    def _commit(self) -> str:
        commit = text(self.environment, "git", "commit") or "unknown"
        # What was not committed nobody can look up.
        return commit[:9] + ("+changes" if find(self.environment, "git", "dirty") is True else "")

    def setting(self) -> dict[str, Any]:
        """All that must be equal for two figures to stand on one line, but for the batch size.

        Seed and name are left out: repeats differ in them.
        """
        config = {key: value for key, value in flat(self.config) if key not in _NOT_SETTINGS}
        return {
            "experiment": self.experiment,
            "mode": self.mode,
            "network": self.network,
            "feed": self.feed,
            "precision": self.precision,
            "num_devices": self.num_devices,
            "device_kind": self.device_kind,
            "cpu": text(self.environment, "cpu"),
            **config,
            "host": text(self.environment, "hostname"),
            **{
                name: find(self.environment, "versions", name) for name in ("jax", "jaxlib", "flax")
            },
            "driver": find(self.environment, "driver"),
            "commit": self._commit(),
            "XLA_FLAGS": find(self.environment, "variables", "XLA_FLAGS"),
        }


class Sweep:
    """A sweep's folder: what it has a line for, and which run directory that is.

    Attributes:
      name: its path below the folder that was given.
      cells: (its record in results.jsonl, the run or None).
      max_batches: the rows of max_batch.csv.
      problem: which of its results cannot be read, if so.
    """

    def __init__(self, name: str, path: pathlib.Path):
        self.name, self.path = name, path
        self.cells: list[tuple[dict[str, Any], ReportedRun | None]] = []
        self.problem: str | None = None
        corrupt: list[int] = []
        try:
            self.results = list(read_results(path / "results.jsonl", corrupt).values())
        except (BadInput, OSError) as error:
            self.results, self.problem = [], str(error).replace(str(path), name)
        if corrupt:
            more = f" and {len(corrupt) - 1} more" if len(corrupt) > 1 else ""
            self.problem = f"{name}/results.jsonl: line {corrupt[0]} is corrupt{more}; left out"
        self.max_batches = _read_table(path / "max_batch.csv")

    def attempts(self) -> Iterator[tuple[dict[str, Any] | None, pathlib.Path | None]]:
        """Yields every cell's result with its run directory, then the runs that have none yet."""
        ended = set()
        for record in self.results:
            run = pathlib.PurePath(text(record, "run") or "")
            ended.add(self.path / pathlib.PurePath(text(record, "log") or run).parent)
            # Only what lies in the sweep: nothing that a corrupt line points at elsewhere.
            path = self.path / run
            inside = run.parts and not run.is_absolute() and ".." not in run.parts
            yield record, path if inside and path.is_dir() else None
        for cell in sorted(path for name in TRIAL_FOLDERS for path in self.path.glob(f"{name}/*")):
            runs = sorted(cell.glob("run*/run.json"), key=lambda path: (len(str(path)), path))
            if cell not in ended and runs:
                yield None, runs[-1].parent


class Collection:
    """All that a report is about.

    Attributes:
      runs: in the order of their paths.
      sweeps: those that were found.
      notes: what a reader must know of the search.
    """

    def __init__(self):
        self.runs: list[ReportedRun] = []
        self.sweeps: list[Sweep] = []
        self.notes: list[str] = []
        self._by_path: dict[pathlib.Path, ReportedRun | Sweep] = {}

    def add_run(self, name: str, path: pathlib.Path) -> ReportedRun:
        """Reads a run directory, unless that has been done."""
        own = path.resolve()
        if own not in self._by_path:
            run = ReportedRun(f"R{len(self.runs) + 1}", name, path)
            self.runs.append(run)
            self._by_path[own] = run
        return self._by_path[own]

    def add_sweep(self, name: str, path: pathlib.Path) -> None:
        """Reads a sweep and its runs, unless that has been done."""
        if path.resolve() in self._by_path:
            return
        sweep = Sweep(name, path)
        for record, run_path in sweep.attempts():
            run = None
            if run_path is not None:
                run = self.add_run(f"{name}/{run_path.relative_to(path)}", run_path)
            if record is not None:
                sweep.cells.append((record, run))
        self.sweeps.append(sweep)
        self._by_path[path.resolve()] = sweep


def collect(paths: Sequence[str]) -> Collection:
    """Reads what lies in or below the folders.

    Raises:
      BadInput: one of them is no folder, or holds neither run nor sweep.
    """
    collection = Collection()
    left = _MOST_FOLDERS
    for given in paths:
        top = pathlib.Path(given).expanduser()
        if not top.is_dir():
            what = "is a file; name a folder" if top.exists() else "no such folder"
            raise BadInput(f"{given}: {what}")
        found = False
        for path in _search(top):
            left -= 1
            if left < 0:
                collection.notes.append(
                    f"The search ended after {_MOST_FOLDERS:,} folders: there may be more runs."
                )
                break
            kind = _kind(path)
            if kind is not None:
                found = True
                add = collection.add_sweep if kind == "sweep" else collection.add_run
                add(_name(top, path, several=len(paths) > 1), path)
        if not found:
            raise BadInput(
                f"{given}: holds no run directory (one has a run.json) and no sweep, nor do the "
                "folders below it"
            )
    return collection


def _search(top: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields folders, in order; does not go below a run directory or a sweep.

    Linked folders count too, each once, so that a link to a folder above it ends.
    """
    seen = set()
    for folder, names, _ in os.walk(top, followlinks=True):
        path, own = pathlib.Path(folder), os.path.realpath(folder)
        if own in seen:
            names.clear()
            continue
        seen.add(own)
        yield path
        depth = len(path.parts) - len(top.parts)
        if depth >= _DEEPEST or _kind(path) is not None:
            names.clear()
        names[:] = sorted(n for n in names if n not in _NOT_SEARCHED and not n.startswith("."))


def _kind(path: pathlib.Path) -> str | None:
    # os.path says no where a folder may not be looked into; pathlib raises.
    if os.path.exists(path / "run.json") or os.path.exists(path / "metrics.jsonl"):
        return "run"
    # A sweep whose first cell has not ended yet has no results.
    begun = os.path.exists(path / "lock") and any(
        os.path.isdir(path / name) for name in TRIAL_FOLDERS
    )
    return "sweep" if begun or os.path.exists(path / "results.jsonl") else None


def _name(top: pathlib.Path, path: pathlib.Path, several: bool) -> str:
    relative = path.relative_to(top)
    own = top.name or top.resolve().name
    if relative == pathlib.Path("."):
        return own
    return f"{own}/{relative.as_posix()}" if several else relative.as_posix()


def _read_document(path: pathlib.Path) -> dict[str, Any]:
    """What can be had of a corrupt run directory's run.json."""
    if not os.path.isfile(path / "run.json"):
        return {}
    try:
        document = json.loads((path / "run.json").read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _read_table(path: pathlib.Path) -> list[dict[str, str]]:
    if not os.path.isfile(path):
        return []
    try:
        with open(path, newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error):
        return []
