"""metrics.jsonl, the source of truth, and epochs.csv, the same by epoch for spreadsheets."""

import csv
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from jaxbench.rundir import finite

EPOCH_COLUMNS = (
    "epoch",
    "step",
    "complete",
    "epoch_time_s",
    "train_time_s",
    "data_wait_s",
    "eval_time_s",
    "images",
    "images_per_s",
    "images_per_s_per_device",
    "train_loss",
    "train_top1",
    "eval_loss",
    "eval_top1",
    "eval_top5",
    "eval_count",
    "learning_rate",
    "peak_memory_bytes",
)


class JsonlWriter:
    """Appends every record as a line and flushes it: a killed run loses at most its last line."""

    def __init__(self, folder: pathlib.Path):
        self._file = open(folder / "metrics.jsonl", "a", encoding="utf-8")  # noqa: SIM115

    def write(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(finite(dict(record))) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class CsvWriter:
    """Appends `epoch` records as rows; an unknown value is an empty cell."""

    def __init__(self, folder: pathlib.Path):
        self._file = open(folder / "epochs.csv", "a", encoding="utf-8", newline="")  # noqa: SIM115
        self._rows = csv.DictWriter(self._file, EPOCH_COLUMNS, extrasaction="ignore")
        self._rows.writeheader()
        self._file.flush()

    def write(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "epoch":
            self._rows.writerow(finite(dict(record)))
            self._file.flush()

    def close(self) -> None:
        self._file.close()
