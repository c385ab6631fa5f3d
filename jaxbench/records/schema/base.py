"""The base of all records: how a field is declared, written and named elsewhere.

Units are in the names. A field that may be None is None where it is not given. A field with a
default is left out where it has that default; all others are in every record of their kind.
"""

import dataclasses
import functools
import inspect
import math
from typing import Any, ClassVar, TypedDict, get_args

from jaxbench.metrics import METRICS, metric_of

SCHEMA_VERSION = 2

# For classes that are only inherited from. Methods of their own would cost time at every start.
group = dataclasses.dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)


def column() -> Any:
    """Declare a field that has a column in the CSV file of its kind."""
    return dataclasses.field(metadata={"csv": True})


def custom_metrics() -> Any:
    """Declare a field that holds {name: value} of the metrics of a custom task.

    Each has a column, named by what precedes `metrics` in the name of the field, and a curve.
    """
    return dataclasses.field(metadata={"custom_metrics": True})


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

    def __init_subclass__(cls):
        # Records that are older than a field can be read, and no call has to name what is unknown.
        for name, type_ in inspect.get_annotations(cls).items():
            field = vars(cls).get(name)
            if type(None) in get_args(type_) and field is None:
                setattr(cls, name, None)
            elif type(None) in get_args(type_) and isinstance(field, dataclasses.Field):
                field.default = None

    def __getattr__(self, name: str) -> None:
        """Return None for a metric that only other kinds of records have."""
        # A field of its own is missing while msgspec decodes a line without it, and is an error.
        if name in METRICS and name not in self.__dataclass_fields__:
            return None
        raise AttributeError(f"{type(self).__name__} has no {name}")

    def to_json(self) -> dict[str, Any]:
        """Return the line as a dict, `kind` first."""
        return {"kind": self.kind, **stated_fields(self)}

    def points(self) -> dict[str, float]:
        """Return {curve: value} for TensorBoard and Weights & Biases; unknown values are absent."""
        values: dict[str, float | None] = {}
        for name, curve in _curves(type(self)).items():
            value = getattr(self, name)
            if curve.endswith(("/", "_")):
                values |= {f"{curve}{metric}": one for metric, one in (value or {}).items()}
            else:
                values[curve] = value
        return {curve: v for curve, v in values.items() if v is not None and math.isfinite(v)}

    def custom_columns(self) -> dict[str, float]:
        """Return {CSV column: value} of the metrics of a custom task."""
        return {
            f"{field.name.removesuffix('metrics')}{name}": value
            for field in dataclasses.fields(self)
            if "custom_metrics" in field.metadata
            for name, value in (getattr(self, field.name) or {}).items()
        }

    @classmethod
    def required(cls) -> set[str]:
        """Return the names of the fields that every record of this kind has."""
        return {
            field.name
            for field in dataclasses.fields(cls)
            if field.default is field.default_factory is dataclasses.MISSING
        }

    @classmethod
    def csv_columns(cls) -> list[str]:
        """Return the CSV columns in the order of the fields."""
        return [field.name for field in dataclasses.fields(cls) if field.metadata.get("csv")]


@functools.cache
def _curves(cls: type[Record]) -> dict[str, str]:
    """Return {field: curve}; a curve that ends in / or _ is the prefix of a custom task's."""
    curves = {one.name: metric_of(cls.kind, one.name).curve for one in dataclasses.fields(cls)}
    return {name: curve for name, curve in curves.items() if curve}


@group
class Rate(Record):
    """A rate from windows of work, with its 95 % interval (see analysis/statistics.py)."""

    images_per_s: float | None = column()
    images_per_s_low: float | None = column()
    images_per_s_high: float | None = column()


@group
class Windows(Rate):
    """The rate of windows of equal work, and their spread."""

    images_per_s_mean: float | None = None
    images_per_s_standard_error: float | None = None
    autocorrelation: float | None = None
    jitter: float | None = None
    windows_s: list[float] | None = None
    step_s: float | None = column()
    steps_per_window: int | None = None


class PeakRow(TypedDict, total=False):
    """A row of hardware/peaks.csv."""

    kind: str
    arithmetic: str
    flops_per_s: float
    bytes_per_s: float | None
    source: str


@group
class Utilization(Record):
    """The arithmetic of a rate against the devices' peak; None where no table has the devices."""

    tokens_per_image: int | None = None
    tokens_per_s: float | None = None
    flops_per_image: int | None = None
    flops_per_s_per_device: float | None = None
    mfu: float | None = None
    peak: PeakRow | None = None


class Telemetry(TypedDict, total=False):
    """Readings of devices and host, see hardware/telemetry/summary.py."""

    interval_s: float
    over: str
    measured_s: float | None
    measured_images: float | None
    host_busy: bool | None
    devices: dict[str, dict[str, float | str | dict[str, float]]]
    energy_j: float | None
    energy_covers: str | None
    energy_window_s: float | None
    energy_window_long_enough: bool | None
    joules_per_image: float | None
    images_per_kwh: float | None
    errors: dict[str, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary(Record):
    """The last record of a run, however it ended."""

    kind = "summary"
    status: str
    phases_s: dict[str, float] | None = None
    wall_s: float | None = None
    peak_memory_bytes: int | None = None
    host_peak_memory_bytes: int | None = None
    compile_s: float | None = None
    telemetry: Telemetry | None = None
    usd: float | None = None
    corrupt: dict[str, str] | None = None
    invalid: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)

    def points(self) -> dict[str, float]:
        """Return nothing: curves are over the training step."""
        return {}
