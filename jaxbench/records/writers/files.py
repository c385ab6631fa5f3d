"""metrics.jsonl, the source of truth, and a CSV file of one kind of record for spreadsheets."""

import csv
import json
import os
import pathlib
from collections.abc import Collection

from jaxbench.records.run_dir import finite
from jaxbench.records.schema.base import Record


class JsonlWriter:
    """Append every record as a line and flush it: a killed run loses at most its last line."""

    def __init__(self, folder: pathlib.Path):
        self._file = open(folder / "metrics.jsonl", "a", encoding="utf-8")  # noqa: SIM115

    def write(self, record: Record) -> None:
        self._file.write(json.dumps(finite(record.to_json())) + "\n")
        self._file.flush()

    def flush(self) -> None:
        # To the disk itself: what a checkpoint counts on must outlive a loss of power.
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class CsvWriter:
    """Append the records of one kind as rows; an unknown value is an empty cell.

    A file that exists is continued.

    Args:
      path: the file.
      kind: the kind of record.
      names: the optional fields that get a column; None for all of them.
    """

    def __init__(
        self, path: pathlib.Path, kind: type[Record], names: Collection[str] | None = None
    ):
        self._kind = kind
        self._file = open(path, "a", encoding="utf-8", newline="")  # noqa: SIM115
        self._rows = csv.DictWriter(self._file, kind.csv_columns(names), extrasaction="ignore")
        if not self._file.tell():
            self._rows.writeheader()
            self._file.flush()

    def write(self, record: Record) -> None:
        if isinstance(record, self._kind):
            self._rows.writerow(finite(record.to_json()))
            self._file.flush()

    def flush(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
