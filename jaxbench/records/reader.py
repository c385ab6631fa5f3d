"""Reads run directories and sweeps' results back, as they were left."""

import dataclasses
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from jaxbench.analysis.statistics import median_interval
from jaxbench.errors import BadInput

# How a cell of a sweep may end.
CELL_STATUSES = ("ok", "oom", "timeout", "failed", "invalid")


@dataclasses.dataclass(frozen=True)
class Run:
    """A run directory.

    Attributes:
      path: the folder.
      document: run.json.
      records: the lines of metrics.jsonl, in order; one that a crash cut off is left out.
    """

    path: pathlib.Path
    document: dict[str, Any]
    records: list[dict[str, Any]]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record.get("kind") == kind]

    def rates(self) -> dict[str, tuple[float, float, float]]:
        """Returns {stage: (images/s, lower, upper end of its 95 % interval)}.

        The stages of --mode=throughput, or `training` from the whole epochs of a training run but
        the first, which is warm-up.
        """
        stages = {
            record["stage"]: tuple(
                record[name] for name in ("images_per_s", "images_per_s_low", "images_per_s_high")
            )
            for record in self.of_kind("throughput")
        }
        epochs = [
            record["images_per_s"]
            for record in self.of_kind("epoch")
            if record["complete"] and record["epoch"] > 1
        ]
        if len(epochs) >= 3:
            stages["training"] = median_interval(epochs)
        return stages


def load_run(path: str) -> Run:
    """Reads a run directory.

    Raises:
      BadInput: it is none, or cannot be read.
    """
    folder = pathlib.Path(path).expanduser()
    try:
        document = json.loads(_read_file(folder / "run.json"))
        lines = _read_file(folder / "metrics.jsonl").splitlines()
    except FileNotFoundError as error:
        raise BadInput(
            f"{path}: no run directory, it has no {pathlib.Path(error.filename).name}"
        ) from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise BadInput(f"{path}: cannot be read: {error}") from error
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            if number < len(lines):
                raise BadInput(f"{path}/metrics.jsonl: line {number} is corrupt") from error
            continue
        if not isinstance(record, dict):
            raise BadInput(f"{path}/metrics.jsonl: line {number} is corrupt")
        records.append(record)
    if not isinstance(document, dict) or "status" not in document:
        raise BadInput(f"{path}: its run.json is not one")
    return Run(folder, document, records)


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the fields of dictionaries within dictionaries by their dotted names."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def missing_records(run: Run) -> str | None:
    """Says which records of a run that has ended are gone, None where all of them are there."""
    summary = run.document.get("summary")
    # One that is running has none yet, nor has one that was killed.
    if not isinstance(summary, dict) or not summary or run.document.get("status") == "running":
        return None
    if not run.of_kind("summary"):
        return "metrics.jsonl ends before its summary: records are lost"
    told, found = summary.get("epochs_done"), len(run.of_kind("epoch"))
    if isinstance(told, int) and told != found:
        return f"metrics.jsonl has {found} epochs, its summary counts {told}: records are lost"
    return None


def _read_file(path: pathlib.Path) -> str:
    if path.exists() and not path.is_file():  # to read a pipe would wait without end
        raise OSError(f"{path.name} is no regular file")
    return path.read_text()


def read_results(path: pathlib.Path, corrupt: list[int] | None = None) -> dict[str, dict[str, Any]]:
    """Reads a sweep's results.jsonl, which need not be there yet.

    Args:
      path: the file.
      corrupt: gets the numbers of lines that are none; without it the first of them is an error.

    Returns:
      {key: the last line of that key}; a line that a crash cut off is left out.

    Raises:
      BadInput: a line is corrupt.
    """
    if not path.exists():
        return {}
    if not path.is_file():
        raise BadInput(f"{path}: is no regular file")
    results = {}
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    for number, line in enumerate(lines[:-1], 1):  # what follows the last end of line is unfinished
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if record["status"] not in CELL_STATUSES or not {"figures", "wall_s"} <= set(record):
                raise ValueError("a field is missing")
            results[record["key"]] = record
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if corrupt is None:
                raise BadInput(f"{path}: line {number} is corrupt") from error
            corrupt.append(number)
    return results
