"""Published rows beside measured ones: who wrote them, and on what."""

import re
from collections.abc import Callable
from typing import Any

from jaxbench.analysis.published import load_published
from jaxbench.data_config import PUBLIC_SETS
from jaxbench.reports.context import Measurement
from jaxbench.tables.columns import Cell, Column, metric_column

# The devices of published tables, without their number and provider: (JAX's name, JAX devices that
# each counts for). Others cannot be told for sure: there are two kinds of TITAN X.
_DEVICES = {
    "NVIDIA GeForce RTX 2080 Ti 11GB": ("GeForce RTX 2080 Ti", 1),
    "RTX 2080 Ti": ("GeForce RTX 2080 Ti", 1),
    "V100 16GB": ("Tesla V100-SXM2-16GB", 1),
    "TPU v2": ("TPU v2", 2),
    "Google Colab TPU v2": ("TPU v2", 1),
}
# A published row, or a measurement in its words.
Row = dict[str, Any]
MEASURED, PUBLISHED = Cell("measured", "measured"), Cell("published", "published")
# Of rows of both kinds.
ORIGIN = Column("origin", "origin", left=True)
HARDWARE = Column("hardware", "machine")
PRECISION = Column("precision", "precision")
BATCH = metric_column("batch_size", "global_batch")
SOURCE = Column("when, by whom", "cited")


class Sources:
    """Numbers the sources of a table's rows, for its note."""

    def __init__(self):
        self._numbers: dict[str, int] = {}

    def rows(self, table: str, keep: Callable[[Row], bool] = lambda row: True) -> list[Row]:
        """Return the rows of a published table that `keep` is true of, each with its source."""
        rows = []
        for row in filter(keep, load_published(table)):
            # The published words for the hardware, with the number of devices if they lack it.
            hardware, devices = row["hardware"], row.get("devices")
            counted = devices == 1 or "+" in hardware or hardware[0].isdigit() or "TPU" in hardware
            machine = hardware if counted else f"{devices} × {hardware}"
            rows.append(row | {"origin": PUBLISHED, "machine": machine, "cited": self._cite(row)})
        return rows

    def _cite(self, row: Row) -> str:
        name = "; ".join(filter(None, (row["source"], row.get("framework"))))
        number = self._numbers.setdefault(name, len(self._numbers) + 1)
        parts = (f"{row.get('date') or 'no date'} [{number}]", row.get("note"))
        return ", ".join(filter(None, parts))

    @property
    def note(self) -> str:
        return " ".join(f"[{number}] {name}." for name, number in self._numbers.items())


def measured_row(row: Measurement) -> Row:
    """Return a measurement in the words of published rows."""
    run = row.run
    return {
        "origin": MEASURED,
        "run": run,
        "feed": row.feed,
        "machine": run.machine,
        "precision": run.precision,
        "global_batch": run.batch_size,
        "cited": "; ".join((run.date, run.framework, row.data)),
    }


def published_devices(row: Row) -> tuple[str, int] | None:
    """Return the devices of a published row as JAX names and counts them; None for others."""
    name = re.sub(r"^\d+x | \(.*\)$", "", row["hardware"])
    if name not in _DEVICES:
        return None
    kind, each = _DEVICES[name]
    return kind, each * row["devices"]


def published_rate(row: Row) -> float | None:
    """Return the images/s of a published row; of a training, those of its median epoch."""
    if "images_per_s" in row:
        return row["images_per_s"]
    return row["median_epoch_s"] and PUBLIC_SETS[row["dataset"]][0] / row["median_epoch_s"]
