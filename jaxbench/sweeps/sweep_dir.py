"""A sweep's folder: its trials, their results, whatever ended them, and its tables."""

import contextlib
import csv
import fcntl
import io
import itertools
import json
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxbench.errors import BadInput, as_refusal
from jaxbench.files import end_of_lines, open_own, replace_file
from jaxbench.launchers.launcher import TrialJob
from jaxbench.paths import check_can_be_made
from jaxbench.records.reader import TRIALS, read_results
from jaxbench.records.run_dir import close_abandoned
from jaxbench.schema import TrialResult
from jaxbench.sweeps.grid import Trial
from jaxbench.tables.spreadsheet import inert_cell

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
        self.results = read_results(path / _RESULTS)

    def add(self, result: TrialResult) -> None:
        """Append a trial's result; from then on it has ended, whatever happens."""
        path = self.path / _RESULTS
        with open_own(path, "r+b" if path.exists() else "w+b") as file:
            # A killed sweep may have left its last line unfinished.
            file.truncate(end_of_lines(file))
            file.seek(0, os.SEEK_END)
            file.write(json.dumps(result.to_json()).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.results[result.key] = result

    def open_attempt(self, trial: Trial) -> TrialJob | None:
        """Return a trial's last attempt that a launcher has noted.

        None if there is no note, or the attempt has its result.
        """
        notes = (self.path / TRIALS / trial.folder).glob("run*")
        numbers = [re.fullmatch(r"run(\d+)\.job\.json", path.name) for path in notes]
        number = max((int(match[1]) for match in numbers if match), default=None)
        if number is None:
            return None
        job, result = self._attempt(trial, number), self.results.get(trial.key)
        recorded = result is not None and result.log == str(job.log.relative_to(self.path))
        return None if recorded else job

    def new_attempt(self, trial: Trial) -> TrialJob:
        """Return a trial's next attempt; none of its earlier ones runs any more."""
        folder = self.path / TRIALS / trial.folder
        folder.mkdir(parents=True, exist_ok=True)
        for earlier in folder.glob("run*/run.json"):
            close_abandoned(earlier.parent, "failed", "killed with its sweep")
        used = {path.name.partition(".")[0] for path in folder.iterdir()}
        return self._attempt(trial, next(n for n in itertools.count(1) if f"run{n}" not in used))

    def _attempt(self, trial: Trial, number: int) -> TrialJob:
        run_path = self.path / TRIALS / trial.folder / f"run{number}"
        return TrialJob(trial.key, tuple(trial.arguments), run_path, run_path.with_suffix(".log"))

    def write_table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Replace a CSV file whole; all rows have the same columns."""
        replace_file(self.path / name, _csv(rows, with_header=True), newline="")

    def add_rows(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append to a CSV file, or make it; all rows have the same columns."""
        with open_own(self.path / name, "a", newline="", encoding="utf-8") as file:
            file.write(_csv(rows, with_header=not file.tell()))


def _csv(rows: Sequence[Mapping[str, Any]], *, with_header: bool) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    if with_header:
        writer.writeheader()
    for row in rows:
        writer.writerow({name: inert_cell(value) for name, value in row.items()})
    return text.getvalue()


@contextlib.contextmanager
def open_sweepdir(path: pathlib.Path) -> Iterator[SweepDir]:
    """Open a sweep's folder, or make it, for this process only.

    Raises:
      BadInput: another sweep is running there, or the folder cannot be used.
    """
    with as_refusal(f"--sweepdir={path}"):
        if path.is_file():
            raise BadInput(f"--sweepdir={path}: is a file; name a folder")
        if path.is_dir() and any(path.iterdir()) and not (path / _LOCK).exists():
            raise BadInput(
                f"--sweepdir={path}: is not empty and no sweep's; name a new folder, or that of a "
                "sweep"
            )
        check_can_be_made(path, "sweepdir")
        path.mkdir(parents=True, exist_ok=True)
        lock = open_own(path / _LOCK, "a")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BadInput(f"--sweepdir={path}: another sweep is running there") from error
        yield SweepDir(path)
