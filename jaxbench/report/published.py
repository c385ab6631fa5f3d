"""Published rows beside measured ones: who wrote them, on what, and whether it is the same work."""

from collections.abc import Mapping
from typing import Any

from jaxbench.report.measurements import Measurement
from jaxbench.report.values import count

# Training examples of the published data sets: an epoch of others is another piece of work.
_EXAMPLES = {"cifar10": 50_000, "mnist": 60_000, "imagenet": 1_281_167}


class Sources:
    """Numbers the sources of a table's rows, for its note."""

    def __init__(self):
        self._numbers: dict[str, int] = {}

    def cite(self, row: Mapping[str, Any], *more: str | None) -> str:
        """Returns when and by whom a published row was written."""
        name = "; ".join(filter(None, (row["source"], row.get("framework"))))
        number = self._numbers.setdefault(name, len(self._numbers) + 1)
        told = [f"{row.get('date') or 'no date'} [{number}]", *more]
        return ", ".join(filter(None, told))

    def note(self) -> str:
        return " ".join(f"[{number}] {name}." for name, number in self._numbers.items())


def hardware_of(row: Mapping[str, Any]) -> str:
    """The published words for it, and how many where they leave that out."""
    told = row["hardware"]
    counted = "+" in told or told[0].isdigit() or "TPU" in told
    return told if counted or row["devices"] == 1 else f"{row['devices']} × {told}"


def other_work(row: Measurement, network: str, dataset: str | None) -> str:
    """Why a run is not the published piece of work; empty if it is."""
    if row.published_network != network:
        return "not the published network" if row.network else "network unknown"
    if dataset and row.train_examples is not None and row.train_examples != _EXAMPLES.get(dataset):
        return f"{count(row.train_examples)} training examples"
    return ""
