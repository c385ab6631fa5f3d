"""The schema: one dataclass for each kind of record, for run.json and for a sweep's trials.

CSV columns, and the curves of TensorBoard and Weights & Biases, are made from it. Console, report
and sweep tables name its fields: tests/reports/test_names.py checks the names. `base` says how a
field is declared.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxbench.records.schema.base import Record, Summary
from jaxbench.records.schema.measurements import (
    AllReduceRecord,
    Conv2dRecord,
    Conv2dSummary,
    DeviceRecord,
    InputRecord,
    InputSummary,
    MemorySummary,
    ScalingRecord,
    ScalingSummary,
    ThroughputRecord,
    ThroughputSummary,
)
from jaxbench.records.schema.targets import CompileSummary, TargetRecord
from jaxbench.records.schema.training import (
    CompileRecord,
    EpochRecord,
    StepRecord,
    TrainSummary,
)

# All kinds. A run that breaks before its job can sum it up has the plain Summary.
RECORDS = (
    CompileRecord,
    StepRecord,
    EpochRecord,
    ThroughputRecord,
    InputRecord,
    ScalingRecord,
    DeviceRecord,
    AllReduceRecord,
    Conv2dRecord,
    TargetRecord,
    Summary,
    TrainSummary,
    ThroughputSummary,
    InputSummary,
    ScalingSummary,
    MemorySummary,
    Conv2dSummary,
    CompileSummary,
)


def record_from_json(line: Mapping[str, Any]) -> Record:
    """Return the record that a line of metrics.jsonl holds.

    Which mode's summary it is follows from its fields.

    Raises:
      TypeError: no such kind, or a field is unknown or missing.
    """
    fields = {name: value for name, value in line.items() if name != "kind"}
    kinds = [cls for cls in RECORDS if cls.kind == line.get("kind")]
    if not kinds:
        raise TypeError(f"no kind of record: {line.get('kind')!r}")

    def known_and_missing(cls: type[Record]) -> tuple[int, int]:
        names = {field.name for field in dataclasses.fields(cls)}
        return len(names & fields.keys()), -len(cls.required() - fields.keys())

    return max(kinds, key=known_and_missing)(**fields)
