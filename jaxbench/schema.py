"""The records: a class for each kind, for run.json and for what a sweep records.

The classes are made from `metrics.csv`. A line KIND.* describes a kind; the line of a metric names
the kinds that hold it. Files are decoded into these classes once, when they are read. A value of
another type, or an impossible one, is an error there, so no reader checks it.
"""

import collections
import csv
import dataclasses
import functools
import math
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Required, TypedDict, get_args

import msgspec
from msgspec import Meta

from jaxbench.clock import Moment
from jaxbench.metrics import Metric

SCHEMA_VERSION = 2


def _load() -> dict[str, Metric]:
    with pathlib.Path(__file__).with_name("metrics.csv").open(newline="", encoding="utf-8") as file:
        return {row["name"]: Metric(**row) for row in csv.DictReader(file)}


METRICS = _load()


@functools.cache
def shown_in(table: str) -> list[str]:
    """Return the metrics that a table has columns for, in their order."""
    return [metric.name for metric in METRICS.values() if table in metric.shown.split()]


def metric_of(kind: str | None, name: str) -> Metric:
    """Return a metric as a kind of record means it. Raise KeyError if there is none."""
    return METRICS.get(f"{kind}.{name}") or METRICS[name]


# Types of metrics.csv. A mean of float32 numbers may be a little more than the greatest of them.
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Amount = Annotated[float, Meta(ge=0)]
Above0 = Annotated[float, Meta(gt=0)]
Interval = Annotated[list[Above0], Meta(min_length=2, max_length=2)]
Fraction = Annotated[float, Meta(ge=0, le=1.0001)]
# A record keeps the text.
Date = Annotated[Moment, Meta(tz=True)]
Status = Literal[
    "running", "done", "failed", "oom", "interrupted", "preempted", "diverged", "invalid"
]
Scaling = Literal["weak", "strong"]
TrialStatus = Literal["done", "oom", "timeout", "failed", "invalid", "lost"]
# How a trial of a sweep may end.
TRIAL_STATUSES = get_args(TrialStatus)
# More than a float32 holds, such as a loss that diverges.
_TOO_LARGE = 1e40
# The metrics that networks are judged by, one for each task, and their titles.
SCORES = {name: METRICS[name].title for name in ("top1", "dice")}
# The metrics of tasks that have fields; those of custom tasks are in `metrics`.
_TASK_METRICS = {one.curve[len("eval/") :] for one in METRICS.values() if "eval/" in one.curve}
# {kind: {field: whether it is optional}}.
_FIELDS: dict[str, dict[str, bool]] = collections.defaultdict(dict)
for _metric in METRICS.values():
    for _holder in (*_metric.always.split(), *_metric.optional.split()):
        _FIELDS[_holder][_metric.name] = _holder in _metric.optional.split()


class DataSettings(TypedDict, total=False):
    """The fields of `Settings.data` that a reader takes."""

    source: str
    feed: str
    sequence_length: Count


class Settings(TypedDict, total=False):
    """The fields of an experiment that a reader takes."""

    batch_size: Positive
    seed: int
    precision: str
    replicas: str
    data: DataSettings


class LoadedData(TypedDict, total=False):
    """The data set as loaded."""

    feed: str
    description: str
    train_examples: Count
    eval_examples: Count
    train_checksum: int
    eval_checksum: int


class Git(TypedDict, total=False):
    """The commit of jaxbench, and whether files differ from it."""

    commit: str
    dirty: bool


class Environment(TypedDict, total=False):
    """What a run ran on, see hardware/environment.py."""

    versions: dict[str, str]
    python: str
    platform: str
    hostname: str
    backend: str
    devices: list[dict[str, Any]]
    device_kind: str
    num_devices: Positive
    num_processes: Positive
    num_local_devices: Count
    driver: str | None
    variables: dict[str, str]
    distorters: list[str]
    matmul_precision: str | None
    compile_cache: str | None
    git: Git | None
    cpu: str | None
    cpu_cores: Count | None
    cpu_quota: Above0 | None
    host_memory_bytes: Count | None


class RecordedPrice(TypedDict, total=False):
    """The price of the hardware, see `Price` in analysis/pricing.py."""

    offer: str
    hardware: str
    devices: Positive | None
    usd_per_hour: Required[Above0]
    date: str
    source: str


class AttemptDescription(TypedDict, total=False):
    """What a process ran on, see `describe_attempt` in records/attempts.py."""

    versions: dict[str, str | None]
    XLA_FLAGS: str | None
    distorters: list[str] | None
    device_kind: str | None
    num_devices: Positive | None
    batch_norm_examples: Count | None
    price: RecordedPrice | None


class Resumption(AttemptDescription, total=False):
    """What a resumed process ran on, and the work that it repeated."""

    step: Required[Count]
    elapsed_s: Required[Amount]
    lost_s: Required[Amount]
    before: AttemptDescription | None


class Attempt(TypedDict):
    """A process of a training run, see records/goodput.py."""

    started_at: Date
    import_s: float
    resumed_phases_s: dict[str, float]
    phases_s: dict[str, float]
    doing: str


class Readings(TypedDict, total=False):
    """The readings of a device or of the host."""

    samples: Amount
    load_percent_mean: Amount | None
    cpu_percent_mean: Amount | None
    other_cpu_percent_mean: Amount | None
    sm_clock_mhz_median: Amount | None
    memory_used_bytes_max: Amount | None
    temperature_c_max: float | None
    power_w_mean: Amount | None
    power_w_max: Amount | None
    throttle_reasons: dict[str, float] | None


class Telemetry(TypedDict, total=False):
    """Readings by device, and the energy of what was measured."""

    devices: dict[str, Readings]
    host_busy: bool | None
    energy_j: Amount | None
    energy_covers: str | None
    joules_per_image: Amount | None


class Peak(TypedDict, total=False):
    """A row of hardware/peaks.csv."""

    kind: Required[str]
    arithmetic: str
    source: Required[str]
    flops_per_s: Amount | None
    bytes_per_s: Amount | None


class Ceiling(TypedDict, total=False):
    """The most images/s of a compiled step, see analysis/ceiling.py."""

    images_per_s: Amount | None
    bound_by: str | None
    assumptions: str
    peak: Peak | None


class Predicted(TypedDict, total=False):
    """The rate to expect of a step, see modes/predictions.py."""

    images_per_s: Required[Above0]
    interval_80: Required[Interval]
    interval_90: Required[Interval]
    step_s: Amount
    bound_by: str
    parts_s: dict[str, Amount]
    origin: str
    basis: dict[str, Any]
    tokens_per_s: Amount
    efficiency: Amount
    epoch_s: Amount
    epoch_interval_80_s: Interval
    training_s: Amount
    training_interval_80_s: Interval
    usd_per_hour: Above0
    usd_per_million_images: Above0
    usd_per_million_images_interval_80: Interval
    training_usd: Amount
    training_usd_interval_80: Interval


class Efficiency(TypedDict):
    """The efficiency of a measured step."""

    scaling: Scaling
    num_devices: Positive
    efficiency: Amount | None


class Prediction(TypedDict):
    """An estimate of weak scaling, see analysis/scaling_model.py."""

    scaling: Scaling
    num_devices: Positive
    batch_per_device: Positive
    link_bytes_per_s: Amount
    link_source: str
    assumptions: str
    images_per_s_no_overlap: Amount
    images_per_s_full_overlap: Amount
    efficiency_no_overlap: Amount
    efficiency_full_overlap: Amount


class ModelMetrics(TypedDict, total=False):
    """The metrics of one of several models."""

    seed: Required[int]
    loss: float | None
    top1: Fraction | None
    dice: Fraction | None


class TargetAccuracy(TypedDict, total=False):
    """What reaching the target accuracy took; null if it never was reached."""

    score: str
    value: Fraction
    reached: bool
    epoch: Count | None
    steps: Count | None
    images: Count | None
    time_s: Amount | None
    epochs_time_s: Amount | None
    train_time_s: Amount | None
    energy_j: Amount | None
    energy_covers: str | None
    usd: Amount | None


def stated_fields(instance: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, without those that have their default."""
    return {
        field.name: getattr(instance, field.name)
        for field in dataclasses.fields(instance)
        if field.default is dataclasses.MISSING or getattr(instance, field.name) != field.default
    }


def _create(kind: str, base: type = object) -> type:
    """Make the class of a kind. An optional field is None by default, and left out of the file."""
    overrides = "summary" if kind.endswith("summary") else kind
    fields = []
    for name, is_optional in _FIELDS[kind].items():
        type_, default = metric_of(overrides, name).type or METRICS[name].type, {}
        if name in ("invalid", "warnings"):
            default = {"default_factory": list}
        elif is_optional:
            type_, default = f"{type_} | None", {"default": None}
        fields.append((name, type_, dataclasses.field(**default)))
    words = "".join(word.capitalize() for word in kind.split("_"))
    return dataclasses.make_dataclass(
        words if kind.endswith("summary") else f"{words}Record",
        fields,
        bases=(base,),
        namespace={"__module__": __name__, "kind": overrides},
        frozen=True,
        kw_only=True,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """One line of metrics.jsonl. Units are in the names of the fields."""

    kind = ""

    def __getattr__(self, name: str) -> Any:
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
        for name in self.__dataclass_fields__:
            curve, value = metric_of(self.kind, name).curve, getattr(self, name)
            if curve.endswith(("/", "_")):  # of the metrics of a custom task
                values |= {f"{curve}{metric}": one for metric, one in (value or {}).items()}
            elif curve:
                values[curve] = value
        return {curve: v for curve, v in values.items() if v is not None and math.isfinite(v)}

    def custom_columns(self) -> dict[str, float]:
        """Return {CSV column: value} of the metrics of a custom task."""
        return {
            f"{field.removesuffix('metrics')}{name}": value
            for field in self.__dataclass_fields__
            if field.endswith("metrics")
            for name, value in (getattr(self, field) or {}).items()
        }

    def evaluated(self, name: str) -> float | None:
        """Return an evaluation's metric by its task's name for it."""
        if has_field(type(self), "eval_", name):
            return getattr(self, f"eval_{name}")
        return (self.eval_metrics or {}).get(name)

    @classmethod
    def required(cls) -> set[str]:
        """Return the names of the fields that every record of this kind has."""
        return {
            field.name
            for field in dataclasses.fields(cls)
            if field.default is field.default_factory is dataclasses.MISSING
        }


def columns_of(cls: type) -> list[str]:
    """Return the fields of a class that have a column in its CSV file: numbers and words."""
    types = {"bool", "float", "int", "str", "Count", "Positive", "Amount", "Fraction"}
    types |= {"Date", "Scaling", "Status", "TrialStatus"}
    return [f.name for f in dataclasses.fields(cls) if f.type.removesuffix(" | None") in types]


class Summary(_create("summary", Record)):
    """The last record of a run, however it ended."""

    def points(self) -> dict[str, float]:
        """Return nothing: curves are over the training step."""
        return {}


class RunDocument(_create("run")):
    """What a run is, on what it ran, and how it ended.

    Optional fields are absent if they are unknown: `finished_at` and `summary` until the end,
    `resumes` of a run that was not resumed, and what belongs to other modes.
    """

    def to_json(self) -> dict[str, Any]:
        """Return the content of run.json, `schema_version` first."""
        return {"schema_version": SCHEMA_VERSION, **stated_fields(self)}


class TrialFigures(_create("figures")):
    """The metrics of a trial. Each has a column in sweep.csv."""

    def value(self, name: str) -> Any:
        """Return a metric; a target that was never reached takes and costs without end."""
        value = getattr(self, name)
        takes = {"target_usd": self.usd, "target_flops": self.training_flops}
        takes |= dict.fromkeys(("target_s", "target_epoch", "target_images"), 0)
        endless = self.target_reached is False and takes.get(name) is not None
        return math.inf if endless and value is None else value


class TrialResult(_create("trial")):
    """How one trial of a sweep ended: a line of results.jsonl, a row of sweep.csv."""

    def row(self) -> dict[str, Any]:
        """Return the row of sweep.csv; a field of the grid takes the place of a column."""
        parts = (self, self.figures)
        row = {name: getattr(one, name) for one in parts for name in columns_of(type(one))}
        return self.place | row | {"warnings": "; ".join(self.warnings)} | self.place

    def to_json(self) -> dict[str, Any]:
        """Return the line of results.jsonl."""
        return vars(self) | {"figures": stated_fields(self.figures)}


class MaxBatchResult(_create("max_batch")):
    """The largest batch of a trial's experiment that fits in memory: a row of max_batch.csv."""

    def row(self) -> dict[str, Any]:
        """Return the row of max_batch.csv; a field of the grid takes the place of a column."""
        columns = {name: value for name, value in vars(self).items() if name != "place"}
        return self.place | columns | self.place


# The kinds of lines of metrics.jsonl. A run that breaks before its mode can sum it up has the
# plain Summary.
RECORDS: dict[str, Any] = {"summary": Summary}
for _name in METRICS:
    if _name.endswith(".*"):
        _kind = _name.removesuffix(".*")
        RECORDS[_kind] = _create(_kind, Summary if _kind.endswith("summary") else Record)
        RECORDS[_kind].__doc__ = METRICS[_name].meaning
if TYPE_CHECKING:  # which cannot read metrics.csv

    def __getattr__(name: str) -> Any: ...

else:
    CompileRecord = RECORDS["compile"]
    StepRecord = RECORDS["step"]
    EpochRecord = RECORDS["epoch"]
    ThroughputRecord = RECORDS["throughput"]
    InputRecord = RECORDS["input"]
    ScalingRecord = RECORDS["scaling"]
    DeviceRecord = RECORDS["device"]
    AllReduceRecord = RECORDS["all_reduce"]
    Conv2dRecord = RECORDS["conv2d"]
    TargetRecord = RECORDS["target"]
    TrainSummary = RECORDS["train_summary"]
    ThroughputSummary = RECORDS["throughput_summary"]
    InputSummary = RECORDS["input_summary"]
    ScalingSummary = RECORDS["scaling_summary"]
    MemorySummary = RECORDS["memory_summary"]
    Conv2dSummary = RECORDS["conv2d_summary"]
    CompileSummary = RECORDS["compile_summary"]


def has_field(cls: type[Record], prefix: str, name: str) -> bool:
    """Return whether a record has a field for a task's metric, or for its spread."""
    return name in _TASK_METRICS and f"{prefix}{name}" in cls.__dataclass_fields__


def metric_fields(cls: type[Record], prefix: str, metrics: dict[str, float]) -> dict[str, Any]:
    """Return a task's metrics as the fields of a record; those without a field go into one."""
    custom = {name: v for name, v in metrics.items() if not has_field(cls, prefix, name)}
    fields = {f"{prefix}{name}": v for name, v in metrics.items() if name not in custom}
    return fields | ({f"{prefix}metrics": custom} if custom else {})


def decode_record(line: Mapping[str, Any]) -> Any:
    """Return the record that a line of metrics.jsonl holds. Fields that are unknown are dropped.

    Which mode's summary it is follows from its fields.

    Raises:
      ValueError: no such kind, or a field is missing or has a wrong value.
    """
    kinds = [cls for cls in RECORDS.values() if cls.kind == line.get("kind")]
    if not kinds:
        raise ValueError(f"no kind of record: {line.get('kind')!r}")
    complete = [cls for cls in kinds if _REQUIRED[cls] <= line.keys()] or kinds[:1]
    # The one with most fields of the line, and fewest others.
    fields = {cls: cls.__dataclass_fields__.keys() for cls in complete}
    return _decode(
        line, max(complete, key=lambda cls: (len(fields[cls] & line.keys()), -len(fields[cls])))
    )


def decode_document(document: Mapping[str, Any]) -> RunDocument:
    """Return the content of a run.json.

    Raises:
      ValueError: a field is missing or has a wrong value.
    """
    decoded = _decode(document, RunDocument)
    if f"{decoded.mode}_summary" not in RECORDS:
        raise ValueError(f"no such mode: {decoded.mode!r} - at `$.mode`")
    if decoded.summary:
        try:
            decode_record({"kind": "summary", **decoded.summary})
        except ValueError as error:
            raise ValueError(f"summary: {error}") from error
    return decoded


def _decode(content: Mapping[str, Any], cls: type) -> Any:
    """Return an instance of a class, its texts and parts as they are in the file."""
    check_numbers(content, "$")
    decoded = msgspec.convert(content, cls)
    for name in cls.__dataclass_fields__.keys() & content.keys():  # type: ignore[attr-defined]
        if type(content[name]) in (str, dict, list):
            vars(decoded)[name] = content[name]
    return decoded


def check_numbers(part: Any, path: str) -> None:
    """Raise ValueError for a number that is not finite, or that arithmetic would overflow with."""
    is_list = type(part) is list
    for name, value in enumerate(part) if is_list else part.items():
        kind = type(value)
        if kind is dict or kind is list:
            check_numbers(value, f"{path}[...]" if is_list else f"{path}.{name}")
        elif (kind is float or kind is int) and not -_TOO_LARGE < value < _TOO_LARGE:
            where = f"{path}[...]" if is_list else f"{path}.{name}"
            raise ValueError(f"Expected a number below {_TOO_LARGE:g} - at `{where}`")


_REQUIRED = {cls: cls.required() for cls in RECORDS.values()}
