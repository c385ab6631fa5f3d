"""The schema: one dataclass for each kind of record, for run.json and for a sweep's trials.

CSV columns, curves, console lines and tables are made from it. `base` says how a field is declared.
"""

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
    Summary,
    TrainSummary,
    ThroughputSummary,
    InputSummary,
    ScalingSummary,
    MemorySummary,
    Conv2dSummary,
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
    return max(kinds, key=lambda cls: len(cls.required() & fields.keys()))(**fields)
