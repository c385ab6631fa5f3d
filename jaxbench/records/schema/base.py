"""The base of all records: how a field is declared, written and named elsewhere.

Units are in the names. A field without a default is in every record of its kind, null where it is
unknown. A field with a default is left out where it has that default.
"""

import dataclasses
import math
from collections.abc import Collection
from typing import Any, ClassVar

SCHEMA_VERSION = 2
MODES = ("train", "throughput", "scaling", "input", "memory", "conv2d")


# For classes that are only inherited from. Methods of their own would cost time at every start.
group = dataclasses.dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)


def figure(tag: str | None = None, *, csv: bool = True, default: Any = dataclasses.MISSING) -> Any:
    """Declare a field's place outside metrics.jsonl.

    Args:
      tag: its curve in TensorBoard and Weights & Biases; None for no curve.
      csv: whether the CSV file of its kind has a column for it.
      default: the value that is left out of the record.
    """
    return dataclasses.field(default=default, metadata={"tag": tag, "csv": csv})


def optional(tag: str | None = None, *, csv: bool = True) -> Any:
    """Declare the same for a field that is None, and left out, where it does not apply."""
    return figure(tag, csv=csv, default=None)


def stated_fields(instance: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, without those that have their default."""
    return {
        field.name: getattr(instance, field.name)
        for field in dataclasses.fields(instance)
        if field.default is dataclasses.MISSING or getattr(instance, field.name) != field.default
    }


@group
class Record:
    """One line of metrics.jsonl."""

    kind: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """Return the line as a dict, `kind` first."""
        return {"kind": self.kind, **stated_fields(self)}

    def points(self) -> dict[str, float]:
        """Return {curve: value} for TensorBoard and Weights & Biases; unknown values are absent."""
        values = {
            field.metadata["tag"]: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.metadata.get("tag")
        }
        return {
            tag: value
            for tag, value in values.items()
            if value is not None and math.isfinite(value)
        }

    @classmethod
    def required(cls) -> set[str]:
        """Return the names of the fields that every record of this kind has."""
        missing = dataclasses.MISSING
        return {
            field.name
            for field in dataclasses.fields(cls)
            if field.default is missing and field.default_factory is missing
        }

    @classmethod
    def csv_columns(cls, names: Collection[str] | None = None) -> list[str]:
        """Return the columns of this kind's CSV file, in the order of the fields.

        Args:
          names: the optional fields that a run's records can have; None for all of them.
        """
        return [
            field.name
            for field in dataclasses.fields(cls)
            if field.metadata.get("csv")
            and (names is None or field.name in names or field.name in cls.required())
        ]


@group
class Rate(Record):
    """A rate from windows of work, with its 95 % interval (see analysis/statistics.py)."""

    images_per_s: float | None = figure()
    images_per_s_low: float | None = figure()
    images_per_s_high: float | None = figure()


@group
class Windows(Rate):
    """The rate that windows of equal work have, and their spread."""

    images_per_s_mean: float | None = None
    images_per_s_standard_error: float | None = None
    jitter: float | None = None
    windows_s: list[float] | None = None
    step_s: float | None = optional()
    steps_per_window: int | None = None


@group
class Utilization(Record):
    """The arithmetic of a rate against the devices' peak; None where no table has the devices."""

    flops_per_image: int | None = None
    flops_per_s_per_device: float | None = None
    mfu: float | None = None
    peak: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary(Record):
    """The last record of a run, however it ended.

    `status` is one of run_dir.STATUSES. `invalid` says which figures fail a sanity check. `usd` is
    what the whole run cost, where a price is known. `telemetry` is absent where nothing was read.
    """

    kind = "summary"
    status: str
    phases_s: dict[str, float] | None = None
    wall_s: float | None = None
    peak_memory_bytes: int | None = None
    host_peak_memory_bytes: int | None = None
    compile_s: float | None = None
    telemetry: dict[str, Any] | None = None
    usd: float | None = None
    corrupt: dict[str, str] | None = None
    invalid: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)

    def points(self) -> dict[str, float]:
        """Return nothing: curves are over the training step."""
        return {}
