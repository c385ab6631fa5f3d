"""metrics.jsonl, the source of truth, and tables of one kind of record for spreadsheets."""

import csv
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from jaxbench.records.run_dir import finite


class JsonlWriter:
    """Appends every record as a line and flushes it: a killed run loses at most its last line."""

    def __init__(self, folder: pathlib.Path):
        self._file = open(folder / "metrics.jsonl", "a", encoding="utf-8")  # noqa: SIM115

    def write(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(finite(dict(record))) + "\n")
        self._file.flush()

    def flush(self) -> None:
        # To the disk itself: what a checkpoint counts on must outlive a loss of power.
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class CsvWriter:
    """Appends records of one kind as rows; an unknown value is an empty cell.

    A file that is there is gone on with.
    """

    def __init__(self, path: pathlib.Path, kind: str, columns: Sequence[str]):
        self._kind = kind
        self._file = open(path, "a", encoding="utf-8", newline="")  # noqa: SIM115
        self._rows = csv.DictWriter(self._file, columns, extrasaction="ignore")
        if not self._file.tell():
            self._rows.writeheader()
            self._file.flush()

    def write(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == self._kind:
            self._rows.writerow(finite(dict(record)))
            self._file.flush()

    def flush(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
