"""A sweep's folder: its trials, their results, whatever ended them, and its tables."""

import contextlib
import csv
import fcntl
import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxbench.errors import BadInput
from jaxbench.records.reader import TRIAL_FOLDERS, read_results
from jaxbench.records.run_dir import close_abandoned
from jaxbench.records.schema.sweep import TrialResult

_RESULTS, _LOCK = "results.jsonl", "lock"


class SweepDir:
    """The folder of a sweep that is running.

    Attributes:
      path: the folder; `trials/` holds a folder for each trial, `results.jsonl` a line for each
        that has ended.
      results: {key: the last line of that key}.

    Raises:
      BadInput: a line of results.jsonl is corrupt.
    """

    def __init__(self, path: pathlib.Path):
        self.path = path
        lines = read_results(path / _RESULTS)
        try:
            self.results = {key: TrialResult.from_json(line) for key, line in lines.items()}
        except TypeError as error:
            raise BadInput(f"{path / _RESULTS}: cannot be read: {error}") from error

    def add(self, result: TrialResult) -> None:
        """Append a trial's result; from then on it has ended, whatever happens."""
        with open(
            self.path / _RESULTS, "r+b" if (self.path / _RESULTS).exists() else "w+b"
        ) as file:
            _drop_unfinished_line(file)
            file.write(json.dumps(result.to_json()).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.results[result.key] = result

    def new_attempt(self, folder: str) -> tuple[pathlib.Path, pathlib.Path]:
        """Return a run directory, not made yet, and a log file for a trial's next attempt."""
        trial = self.path / TRIAL_FOLDERS[0] / folder
        trial.mkdir(parents=True, exist_ok=True)
        for earlier in trial.glob("run*/run.json"):
            close_abandoned(earlier.parent, "failed", "killed with its sweep")
        number = 1
        while (trial / f"run{number}").exists() or (trial / f"run{number}.log").exists():
            number += 1
        return trial / f"run{number}", trial / f"run{number}.log"

    def write_table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Replace a CSV file whole; all rows have the same columns."""
        partial = self.path / f"{name}.partial"
        with open(partial, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        os.replace(partial, self.path / name)


def _drop_unfinished_line(file: Any) -> None:
    """Cut off the last line where a killed sweep left it unfinished."""
    content = file.read()
    file.seek(content.rfind(b"\n") + 1)
    file.truncate()


def check_sweepdir(path: pathlib.Path) -> None:
    """Raise BadInput where a folder is neither a sweep's nor new or empty; make nothing."""
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
    """Open a sweep's folder, or make it, for this process alone.

    Raises:
      BadInput: another sweep is running there, or the folder cannot be used.
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
            raise BadInput(f"--sweepdir={path}: another sweep is running there") from error
        yield SweepDir(path)
