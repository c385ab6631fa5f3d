"""A sweep's folder: what it has done, whatever ended it, and the tables made of that."""

import contextlib
import csv
import fcntl
import json
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxbench.errors import BadInput
from jaxbench.records.reader import read_results
from jaxbench.records.run_dir import close_abandoned

_RESULTS, _LOCK = "results.jsonl", "lock"


class SweepDir:
    """The folder of a sweep that is running.

    Attributes:
      path: the folder; `cells/` holds a folder for each cell, `results.jsonl` a line for each that
        has ended.
      results: {key: the last line of that key}.
    """

    def __init__(self, path: pathlib.Path):
        self.path = path
        self.results = read_results(path / _RESULTS)

    def add(self, record: dict[str, Any]) -> None:
        """Appends a cell's result; from then on it is done, whatever happens."""
        with open(
            self.path / _RESULTS, "r+b" if (self.path / _RESULTS).exists() else "w+b"
        ) as file:
            _drop_unfinished_line(file)
            file.write(json.dumps(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.results[record["key"]] = record

    def new_attempt(self, folder: str) -> tuple[pathlib.Path, pathlib.Path]:
        """Returns a run directory, not made yet, and a log file for the next try at a cell."""
        cell = self.path / "cells" / folder
        cell.mkdir(parents=True, exist_ok=True)
        for earlier in cell.glob("run*/run.json"):
            close_abandoned(earlier.parent, "failed", "killed with its sweep")
        number = 1
        while (cell / f"run{number}").exists() or (cell / f"run{number}.log").exists():
            number += 1
        return cell / f"run{number}", cell / f"run{number}.log"

    def write_table(self, name: str, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]):
        """Replaces a CSV file whole."""
        partial = self.path / f"{name}.partial"
        with open(partial, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        os.replace(partial, self.path / name)


def _drop_unfinished_line(file: Any) -> None:
    """Cuts off what a killed sweep left of its last line."""
    content = file.read()
    file.seek(content.rfind(b"\n") + 1)
    file.truncate()


def check_sweepdir(path: pathlib.Path) -> None:
    """Raises BadInput where a folder is neither a sweep's nor new or empty; makes nothing."""
    try:
        if path.is_file():
            raise BadInput(f"--sweepdir={path}: is a file; name a folder")
        if path.is_dir() and any(path.iterdir()) and not (path / _LOCK).exists():
            raise BadInput(
                f"--sweepdir={path}: holds something that is no sweep; nothing is overwritten, "
                "name a new folder or a sweep's"
            )
        parent = path.absolute()
        while not parent.exists():
            parent = parent.parent
    except OSError as error:
        raise BadInput(f"--sweepdir={path}: {error.strerror}") from error
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise BadInput(f"--sweepdir={path}: cannot write in {parent}")


@contextlib.contextmanager
def open_sweepdir(path: pathlib.Path) -> Iterator[SweepDir]:
    """Opens a sweep's folder, or makes it, for this process alone.

    Raises:
      BadInput: another sweep is at work there, or the folder cannot be used.
    """
    check_sweepdir(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = open(path / _LOCK, "a")  # noqa: SIM115
    except OSError as error:
        raise BadInput(f"--sweepdir={path}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BadInput(f"--sweepdir={path}: another sweep is at work there") from error
        yield SweepDir(path)
