"""Read run directories and sweeps' results back, in the names of the present schema."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from jaxbench.errors import BadInput
from jaxbench.files import open_regular, read_lines, read_text
from jaxbench.paths import user_path
from jaxbench.schema import (
    SCHEMA_VERSION,
    EpochRecord,
    Record,
    RunDocument,
    Summary,
    TrialResult,
    decode_document,
    decode_record,
)

# More bytes than a run's records have, than those without its steps, and than a sweep's results.
_MOST_RECORDS = 2**34
_MOST_KEPT = 2**28
_MOST_RESULTS = 2**28
# Where a sweep has its trials' folders.
TRIALS = "trials"
Kind = TypeVar("Kind", bound=Record)


@dataclasses.dataclass(frozen=True)
class RunRecords:
    """What a run directory holds."""

    path: pathlib.Path
    document: RunDocument
    # The lines of metrics.jsonl, in order, without training steps: a run may have millions.
    records: list[Record]

    def of_kind(self, kind: type[Kind]) -> list[Kind]:
        return [record for record in self.records if isinstance(record, kind)]


def load_run(path: str) -> RunRecords:
    """Read a run directory.

    Raise BadInput if it is no run directory, cannot be read, or has another schema.
    """
    folder = user_path(path)
    records: list[Record] = []
    try:
        content = json.loads(read_text(folder / "run.json"))
        for number, line in enumerate(read_records(path), 1):
            if line.get("kind") != "step":
                records.append(
                    _decoded(decode_record, line, f"{path}: metrics.jsonl, record {number}")
                )
    except FileNotFoundError as error:
        missing = pathlib.Path(error.filename).name
        raise BadInput(f"{path}: no run directory, it has no {missing}") from error
    except OSError as error:
        name = pathlib.Path(error.filename or path).name
        raise BadInput(f"{path}: cannot be read: {name} {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # no text, no JSON, or an integer without end
        raise BadInput(f"{path}: cannot be read: {error}") from error
    if not isinstance(content, dict) or "status" not in content:
        raise BadInput(f"{path}: its run.json is not one")
    version = content.get("schema_version")
    if version != SCHEMA_VERSION:
        no_number = ", which is no number" if isinstance(version, str) else ""
        raise BadInput(
            f"{path}: has schema {version!r}{no_number}; this jaxbench reads {SCHEMA_VERSION}"
        )
    document = _decoded(decode_document, content, f"{path}: run.json")
    return RunRecords(folder, document, records)


def _decoded(decode: Callable[[Any], Any], value: Any, source: str) -> Any:
    try:
        return decode(value)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{source}: {error}") from error


def read_records(path: str | os.PathLike) -> Iterator[dict[str, Any]]:
    """Yield the lines of a run's metrics.jsonl as they are; one that a crash cut off is left out.

    Raises:
      BadInput: another one is corrupt.
      OSError, UnicodeDecodeError: the file cannot be read.
    """
    file = user_path(path) / "metrics.jsonl"
    kept = 0
    with open_regular(file, most_bytes=_MOST_RECORDS, encoding="utf-8") as opened:
        lines = enumerate(read_lines(opened), 1)
        for number, line in lines:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                if next(lines, None) is None:
                    return
                record = None
            if not isinstance(record, dict):
                raise BadInput(f"{path}/metrics.jsonl: line {number} is corrupt")
            kept += 0 if record.get("kind") == "step" else len(line)
            if kept > _MOST_KEPT:
                raise BadInput(f"{file}: has more than {_MOST_KEPT:,} bytes without its steps")
            yield record


def read_document(folder: pathlib.Path) -> RunDocument | None:
    """Return the run.json of a run directory; None if it cannot be read."""
    try:
        return decode_document(json.loads(read_text(folder / "run.json")))
    except (OSError, ValueError, RecursionError):
        return None


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the fields of nested dictionaries by their dotted names."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def missing_records(run: RunRecords) -> str | None:
    """Return which records of a run that has ended are missing or doubled; None if all is well."""
    # A running or killed run has no summary.
    if not run.document.summary or run.document.status == "running":
        return None
    summaries = len(run.of_kind(Summary))
    if not summaries:
        return "metrics.jsonl ends before its summary: records are lost"
    if summaries > 1:
        return f"metrics.jsonl has {summaries} summaries: records are doubled"
    counted, recorded = run.document.summary.get("epochs_done"), len(run.of_kind(EpochRecord))
    if counted is not None and counted != recorded:
        return (
            f"metrics.jsonl has {recorded} epochs, its summary counts {counted}: records are lost"
        )
    return None


def read_results(path: pathlib.Path, corrupt: list[int] | None = None) -> dict[str, TrialResult]:
    """Return {key: its last line} of a sweep's results.jsonl, which need not exist yet.

    A line that a crash cut off is dropped. `corrupt` gets the numbers of corrupt lines; without it
    raise BadInput.
    """
    results = {}
    try:
        with open_regular(path, "rb", most_bytes=_MOST_RESULTS) as file:
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    for number, line in enumerate(lines[:-1], 1):  # the last one has no end: it is unfinished
        if not line.strip():
            continue
        try:
            result = msgspec.convert(json.loads(line), TrialResult)
        except (ValueError, RecursionError) as error:
            if corrupt is None:
                raise BadInput(f"{path}: line {number} is corrupt: {error}") from error
            corrupt.append(number)
        else:
            results[result.key] = result
    return results
