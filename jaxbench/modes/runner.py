"""Run a mode. What all modes share is here: a mode itself only measures and summarizes.

A new mode is a `Measurement` and a function that passes it to `run_mode`, as in modes/memory.py,
with its line in modes/__init__.py. A summary with other fields belongs to the list RECORDS of
records/schema.
"""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from jaxbench.analysis.pricing import Price
from jaxbench.hardware.accelerators import unused_accelerators
from jaxbench.hardware.backend_flags import wrong_sums
from jaxbench.hardware.environment import host_peak_memory_bytes
from jaxbench.hardware.telemetry.sampler import INTERVAL_S
from jaxbench.modes.setup import RunContext
from jaxbench.parallel.mesh import peak_memory_bytes
from jaxbench.records.recorder import Recorder, recording
from jaxbench.records.run_dir import RunDir
from jaxbench.records.schema import CompileRecord, Record, Summary
from jaxbench.records.schema.document import RunDocument
from jaxbench.records.validity import clock_disagreements
from jaxbench.records.writers.files import CsvWriter


class Measurement(abc.ABC):
    """What a mode measures, and what its summary says.

    Attributes:
      mode: its name in run.json.
      csv_record: the kind of record that also goes into a CSV file, KIND.csv; None for no file.
    """

    mode: ClassVar[str]
    csv_record: ClassVar[type[Record] | None] = None

    def document(self) -> dict[str, Any]:
        """Return the mode's own fields of run.json."""
        return {}

    @abc.abstractmethod
    def measure(self, recorder: Recorder) -> None:
        """Measure, and write every record with `recorder.write`."""

    @abc.abstractmethod
    def summarize(self, status: str, records: Sequence[Record]) -> Summary:
        """Return the mode's own fields of the summary, from everything that was written."""


@dataclasses.dataclass(frozen=True)
class RunResult:
    """The outcome of a run."""

    records: list[Record]  # before the summary
    summary: dict[str, Any]
    run_dir: RunDir | None  # None in all processes but the first
    state: Any = None  # of --mode=train at its end; None if the run was done already

    def of_kind(self, kind: type[Record]) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]


def run_mode(
    context: RunContext,
    measurement: Measurement,
    workdir: str | None = None,
    *,
    telemetry_s: float = INTERVAL_S,
    price: Price | None = None,
    resume_into: Callable[[RunDocument], RunDir] | None = None,
) -> RunResult:
    """Run a mode from its run directory to its summary.

    Args:
      context: what `prepare_run` made.
      measurement: the mode.
      workdir: a new or empty folder for the records; None makes `runs/NAME/TIME`.
      telemetry_s: seconds between readings of the hardware, 0 for none.
      price: what the hardware costs, recorded with the run; None if it is unknown.
      resume_into: see `recording`.

    Raises:
      BadInput: before anything is written.
      Exception: whatever ended the measurement. Status and reason are in run.json by then.
    """
    platform = context.mesh.devices[0].platform
    with context.clock.phase("devices"):
        warnings = [*context.unused, *unused_accelerators(platform), *wrong_sums(platform)]
    for warning in warnings:
        context.console.say(f"warning: {warning}")
    document = {"mode": measurement.mode} | context.document() | measurement.document()
    with recording(
        workdir,
        context.config,
        context.mesh,
        document,
        context.console,
        context.clock,
        telemetry_s,
        price,
        resume_into,
    ) as recorder:
        recorder.summarize = lambda status: _summarize(
            context, measurement, recorder.records, warnings, status
        )
        if recorder.folder and (record := measurement.csv_record):
            recorder.writers.add(CsvWriter(recorder.folder / f"{record.kind}.csv", record))
        measurement.measure(recorder)
        if recorder.run_dir:
            recorder.run_dir.update(**context.document_at_end())
    return RunResult(recorder.records, recorder.summary, recorder.run_dir)


def _summarize(
    context: RunContext,
    measurement: Measurement,
    records: Sequence[Record],
    warnings: Sequence[str],
    status: str,
) -> Summary:
    # Read together: the phases are the whole time.
    phases_s, wall_s = context.clock.totals_s(), context.clock.wall_s()
    summary = measurement.summarize(status, records)
    compile_s = sum(r.lower_s + r.compile_s for r in records if isinstance(r, CompileRecord))
    return dataclasses.replace(
        summary,
        # A resumed run counts what earlier processes compiled, too.
        compile_s=summary.compile_s or compile_s or None,
        peak_memory_bytes=peak_memory_bytes(context.mesh.devices),
        host_peak_memory_bytes=host_peak_memory_bytes(),
        phases_s=phases_s,
        wall_s=wall_s,
        warnings=[
            *warnings,
            *context.warnings(records),
            *clock_disagreements(context.clock.elapsed_s()),
            *summary.warnings,
        ],
    )
