"""The schema: one dataclass for each kind of record, for run.json and for a sweep's trials.

`metrics.csv` says what a field means, its title, unit and curve. Files are decoded into these
classes once, when they are read. A value of another type is an error there, so no reader checks it.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from jaxbench.records.schema.base import Record, Summary
from jaxbench.records.schema.document import RunDocument
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


def decode_record(line: Mapping[str, Any]) -> Record:
    """Return the record that a line of metrics.jsonl holds. Fields that are unknown are dropped.

    Which mode's summary it is follows from its fields.

    Raises:
      ValueError: no such kind, or a field is missing or has a value of another type.
    """
    kinds = [cls for cls in RECORDS if cls.kind == line.get("kind")]
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
    return RunDocument(**{name: document[name] for name in _DOCUMENT if name in document})


_REQUIRED = {cls: cls.required() for cls in RECORDS}
_DOCUMENT = RunDocument.__dataclass_fields__
