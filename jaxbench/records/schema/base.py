"""The base of all records: how a field is declared, written and named elsewhere.

Units are in the names. A field that may be None is None where it is not given. A field with a
default is left out where it has that default; all others are in every record of their kind.
"""

import dataclasses
import inspect
import math
from typing import Any, ClassVar, get_args

SCHEMA_VERSION = 2

# For classes that are only inherited from. Methods of their own would cost time at every start.
group = dataclasses.dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)


def figure(tag: str | None = None) -> Any:
    """Declare a field that has a column in the CSV file of its kind.

    Args:
      tag: its curve in TensorBoard and Weights & Biases; None for no curve.
    """
    return dataclasses.field(metadata={"tag": tag, "csv": True})


def custom_metrics(tag: str) -> Any:
    """Declare a field that holds {name: value} of the metrics of a custom task.

    Each has a column, named by what precedes `metrics` in the name of the field, and the curve
    `tag` and its name.
    """
    return dataclasses.field(metadata={"custom_metrics": tag})


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
        for field in dataclasses.fields(self):
            if tag := field.metadata.get("custom_metrics"):
                own = getattr(self, field.name) or {}
                values |= {f"{tag}{name}": value for name, value in own.items()}
        return {tag: v for tag, v in values.items() if v is not None and math.isfinite(v)}

    def own_columns(self) -> dict[str, float]:
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


@group
class Rate(Record):
    """A rate from windows of work, with its 95 % interval (see analysis/statistics.py).

    Attributes:
      images_per_s: images per second over all devices: the steady state.
      images_per_s_low, images_per_s_high: ends of its 95 % interval.
    """

    images_per_s: float | None = figure()
    images_per_s_low: float | None = figure()
    images_per_s_high: float | None = figure()


@group
class Windows(Rate):
    """The rate of windows of equal work, and their spread.

    Attributes:
      images_per_s_mean: harmonic mean of the windows' rates.
      images_per_s_standard_error: standard error of that mean, wider where windows are correlated.
      autocorrelation: correlation of each window's rate with the next one's. Independent windows
        have about 0; the interval and the standard error are wider where it is more.
      jitter: relative deviation of the windows' rates: 1.4826 times the median absolute deviation,
        over the median.
      windows_s: seconds of each window, in order.
      step_s: seconds of a step, from the median rate.
      steps_per_window: steps in a window.
    """

    images_per_s_mean: float | None = None
    images_per_s_standard_error: float | None = None
    autocorrelation: float | None = None
    jitter: float | None = None
    windows_s: list[float] | None = None
    step_s: float | None = figure()
    steps_per_window: int | None = None


@group
class Utilization(Record):
    """The arithmetic of a rate against the devices' peak; None where no table has the devices.

    Attributes:
      tokens_per_image: tokens of a sequence, where images are sequences.
      tokens_per_s: tokens per second at this rate, where images are sequences.
      flops_per_image: floating-point operations for an image, by the network's own count.
      flops_per_s_per_device: floating-point operations per second of each device.
      mfu: model FLOPs utilization: the fraction of the peak that the network's own operations use.
      peak: the row of hardware/peaks.csv that the device was judged by.
    """

    tokens_per_image: int | None = None
    tokens_per_s: float | None = None
    flops_per_image: int | None = None
    flops_per_s_per_device: float | None = None
    mfu: float | None = None
    peak: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary(Record):
    """The last record of a run, however it ended.

    Attributes:
      status: how the run ended, one of run_dir.STATUSES.
      phases_s: seconds of each phase of the run; they add up to `wall_s`.
      wall_s: seconds from the start of the run's clock to its end.
      peak_memory_bytes: most memory in use on a device; absent where the device does not tell.
      host_peak_memory_bytes: most memory that the process used on the host.
      compile_s: seconds of lowering and compiling, over all programs; what is compiled at the same
        time counts once.
      telemetry: readings of devices and host over what was measured; absent where nothing was read.
      usd: cost of the time of all processes in USD, where a price is known; imports are left out.
      corrupt: {image: reason} of the corrupt images that were skipped.
      invalid: reasons why figures fail a sanity check.
      warnings: reasons to read the figures with care.
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
