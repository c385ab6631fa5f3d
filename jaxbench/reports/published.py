"""Published rows beside measured ones: who wrote them, on what, and whether it is the same work."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from jaxbench.analysis.published import load_published
from jaxbench.data_config import PUBLIC_SETS
from jaxbench.metrics import count
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


def measured_row(row: Measurement, other: str) -> Row:
    """Return a measurement in the words of published rows; `other` is as in `other_work`."""
    run = row.run
    processor = f" ({run.processor})" if run.processor else ""
    parts = [run.date, run.framework, run.data]
    parts += [f"OTHER WORK: {other}"] if other else []
    parts += [] if row.usable else [f"status: {run.status}"]
    return {
        "origin": MEASURED,
        "run": run,
        "feed": row.feed,
        "machine": f"{run.hardware}{processor}",
        "precision": run.precision,
        "global_batch": run.batch_size,
        "cited": Cell("; ".join(parts), "soft" if other else ""),
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


def size_of(images: int, height: int, width: int) -> str:
    """Return how many images of which size a convolution had."""
    return f"{count(images)} of {count(height)}×{count(width)}"


def is_synthetic(row: Measurement) -> bool:
    """Return whether its images come from no data set."""
    return row.feed == "synthetic" or row.setting.get("data.source") == "synthetic"


def other_work(row: Measurement, network: str, dataset: str) -> str:
    """Return why a run is not the published piece of work on this data set; empty if it is.

    What a record does not say is not held against it. Of synthetic images their shape counts, and
    the number of classes.
    """
    run = row.run
    if run.published_network != network:
        return "not the published network" if run.network != "?" else "network unknown"
    if other := other_images(row.setting, dataset):
        return other
    examples, _, _, name = PUBLIC_SETS[dataset]
    setting = row.setting
    if is_synthetic(row):
        return ""
    if setting.get("data.source") == "tfds" and setting.get("data.name") not in (None, "", name):
        return f"data set {setting['data.name']}"
    if run.train_examples not in (None, examples):
        return f"{count(run.train_examples)} training examples"
    return ""


def other_images(setting: Mapping[str, Any], dataset: str) -> str:
    """Return how a run's images and classes differ from the data set's; empty if they do not."""
    _, shape, classes, _ = PUBLIC_SETS[dataset]
    image_shape, own_classes = setting.get("data.image_shape"), setting.get("data.num_classes")
    if isinstance(image_shape, list) and tuple(image_shape) != shape:
        return f"images of {'×'.join(map(str, image_shape))}"
    return f"{own_classes} classes" if own_classes not in (None, classes) else ""
