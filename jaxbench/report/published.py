"""Published rows beside measured ones: who wrote them, on what, and whether it is the same work."""

from collections.abc import Mapping
from typing import Any

from jaxbench.report.measurements import Measurement
from jaxbench.report.values import count

# Of the published data sets: training examples, image shape as the network gets it, classes, and
# what they are called in a config. Anything else is another piece of work.
_DATA = {
    "cifar10": (50_000, (32, 32, 3), 10, "cifar10"),
    "mnist": (60_000, (28, 28, 1), 10, "mnist"),
    "imagenet": (1_281_167, (224, 224, 3), 1000, "imagenet2012"),
}


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


def images_of(row: Measurement) -> tuple[str, str]:
    """Their shape and the number of classes, to group by."""
    return str(row.setting.get("data.image_shape")), str(row.setting.get("data.num_classes"))


def is_made_up(row: Measurement) -> bool:
    """Whether its images come from no data set."""
    return row.feed == "synthetic" or row.setting.get("data.source") == "synthetic"


def other_work(row: Measurement, network: str, dataset: str) -> str:
    """Why a run is not the published piece of work on this data set; empty if it is.

    What a record does not say is not held against it. Of made-up images their shape counts, and the
    number of classes.
    """
    if row.published_network != network:
        return "not the published network" if row.network else "network unknown"
    examples, shape, classes, name = _DATA[dataset]
    told = row.setting.get
    found = told("data.image_shape")
    if isinstance(found, list) and tuple(found) != shape:
        return f"images of {'×'.join(map(str, found))}"
    if told("data.num_classes") not in (None, classes):
        return f"{told('data.num_classes')} classes"
    if is_made_up(row):
        return ""
    if told("data.source") == "tfds" and told("data.name") not in (None, "", name):
        return f"data set {told('data.name')}"
    if row.train_examples not in (None, examples):
        return f"{count(row.train_examples)} training examples"
    return ""
