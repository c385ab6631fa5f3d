"""metrics.jsonl, the source of truth, and a CSV file of one kind of record for spreadsheets."""

import csv
import json
import os
import pathlib
from collections.abc import Sequence

from jaxbench.files import open_own, read_lines
from jaxbench.records.run_dir import finite
from jaxbench.records.writers import Writer
from jaxbench.schema import Record, columns_of


class _FileWriter(Writer):
    """Append to a file; one that exists is continued."""

    def __init__(self, path: pathlib.Path):
        self._file = open_own(path, "a", encoding="utf-8", newline="")

    def flush(self) -> None:
        # To the disk itself: what a checkpoint counts on must outlive a loss of power.
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class JsonlWriter(_FileWriter):
    """Append every record as a line and flush it: a killed run loses at most its last line."""

    def __init__(self, folder: pathlib.Path):
        super().__init__(folder / "metrics.jsonl")

    def write(self, record: Record) -> None:
        self._file.write(json.dumps(finite(record.to_json())) + "\n")
        self._file.flush()


class CsvWriter(_FileWriter):
    """Append the records of one kind as rows; an unknown value is an empty cell.

    A file that exists keeps its columns. `more` are those of a custom task.
    """

    def __init__(self, path: pathlib.Path, kind: type[Record], more: Sequence[str] = ()):
        super().__init__(path)
        self._kind = kind
        with open(path, encoding="utf-8", newline="") as file:
            columns = next(csv.reader(read_lines(file)), [*columns_of(kind), *more])
        self._rows = csv.DictWriter(self._file, columns, extrasaction="ignore")
        if not self._file.tell():
            self._rows.writeheader()
            self._file.flush()

    def write(self, record: Record) -> None:
        if isinstance(record, self._kind):
            self._rows.writerow(finite(record.to_json() | record.custom_columns()))
            self._file.flush()
