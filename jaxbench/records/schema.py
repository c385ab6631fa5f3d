"""The records: a class for each kind, for run.json and for what a sweep records.

The classes are made from `metrics.csv`. A line KIND.* describes a kind; the line of a metric names
the kinds that hold it. Files are decoded into these classes once, when they are read. A value of
another type is an error there, so no reader checks it.
"""

import collections
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, TypedDict, get_args

import msgspec

from jaxbench.metrics import METRICS, metric_of

SCHEMA_VERSION = 2
TrialStatus = Literal["done", "oom", "timeout", "failed", "invalid", "lost"]
# How a trial of a sweep may end.
TRIAL_STATUSES = get_args(TrialStatus)
# The metrics that networks are judged by, one for each task, and their titles.
SCORES = {"top1": "top-1", "dice": "Dice"}
# The metrics of tasks that have fields; those of custom tasks are in `metrics`.
_TASK_METRICS = {one.curve[len("eval/") :] for one in METRICS.values() if "eval/" in one.curve}
# {kind: {field: whether it is optional}}.
_FIELDS: dict[str, dict[str, bool]] = collections.defaultdict(dict)
for _metric in METRICS.values():
    for _holder in (*_metric.always.split(), *_metric.optional.split()):
        _FIELDS[_holder][_metric.name] = _holder in _metric.optional.split()


class Environment(TypedDict, total=False):
    """What a run ran on, see hardware/environment.py."""

    versions: dict[str, str]
    python: str
    platform: str
    hostname: str
    backend: str
    devices: list[dict[str, Any]]
    device_kind: str
    num_devices: int
    num_processes: int
    num_local_devices: int
    driver: str | None
    variables: dict[str, str]
    matmul_precision: str | None
    compile_cache: str | None
    git: dict[str, Any] | None
    cpu: str | None
    cpu_cores: int | None
    host_memory_bytes: int


class RecordedPrice(TypedDict):
    """The price of the hardware; analysis/pricing.py describes the rest of it."""

    usd_per_hour: float


class Resumption(TypedDict):
    """What a resumed process did again; records/attempts.py describes the rest of its entry."""

    step: int
    elapsed_s: float
    lost_s: float


class TargetAccuracy(TypedDict, total=False):
    """What reaching the target accuracy took; null if it never was reached."""

    score: str
    value: float
    reached: bool
    epoch: int | None
    steps: int | None
    images: int | None
    time_s: float | None
    epochs_time_s: float | None
    train_time_s: float | None
    energy_j: float | None
    energy_covers: str | None
    usd: float | None


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
    types = ("bool", "float", "int", "str", "TrialStatus")
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
RECORDS: dict[str, type[Record]] = {"summary": Summary}
for _name in METRICS:
    if _name.endswith(".*"):
        _kind = _name.removesuffix(".*")
        RECORDS[_kind] = _create(_kind, Summary if _kind.endswith("summary") else Record)
        RECORDS[_kind].__doc__ = METRICS[_name].meaning
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


def decode_record(line: Mapping[str, Any]) -> Record:
    """Return the record that a line of metrics.jsonl holds. Fields that are unknown are dropped.

    Which mode's summary it is follows from its fields.

    Raises:
      ValueError: no such kind, or a field is missing or has a value of another type.
    """
    kinds = [cls for cls in RECORDS.values() if cls.kind == line.get("kind")]
    if not kinds:
        raise ValueError(f"no kind of record: {line.get('kind')!r}")
    complete = [cls for cls in kinds if _REQUIRED[cls] <= line.keys()] or kinds[:1]
    # The one with most fields of the line, and fewest others.
    fields = {cls: cls.__dataclass_fields__.keys() for cls in complete}
    return msgspec.convert(
        line, max(complete, key=lambda cls: (len(fields[cls] & line.keys()), -len(fields[cls])))
    )


def decode_document(document: Mapping[str, Any]) -> RunDocument:
    """Return the content of a run.json, with all that its parts hold.

    Raises:
      ValueError: a field is missing or has a value of another type.
    """
    msgspec.convert(document, RunDocument)
    if document.get("summary"):
        decode_record({"kind": "summary", **document["summary"]})
    fields = RunDocument.__dataclass_fields__.keys() & document.keys()
    return RunDocument(**{name: document[name] for name in fields})


_REQUIRED = {cls: cls.required() for cls in RECORDS.values()}
