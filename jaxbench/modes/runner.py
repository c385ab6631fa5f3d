"""Run a mode. What all modes share is here: a mode itself only measures and summarizes.

A new mode is a `Measurement` and a function that passes it to `run_mode`, as in modes/memory.py,
with its line in modes/__init__.py. A summary with other fields belongs to the list RECORDS of
records/schema.
"""

import abc
import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from jaxbench.analysis.pricing import Price
from jaxbench.clock import now
from jaxbench.hardware.accelerators import unused_accelerators
from jaxbench.hardware.backend_flags import wrong_sums
from jaxbench.hardware.environment import describe_environment, host_peak_memory_bytes
from jaxbench.hardware.telemetry.sampler import (
    INTERVAL_S,
    Telemetry,
    create_readers,
    no_telemetry,
)
from jaxbench.modes.setup import RunContext
from jaxbench.parallel import processes
from jaxbench.parallel.mesh import mixed_devices, peak_memory_bytes
from jaxbench.parallel.signals import defer_signals
from jaxbench.records.next_steps import say_next_steps
from jaxbench.records.recorder import Recorder, classify
from jaxbench.records.run_dir import RunDir, create_run_dir
from jaxbench.records.schema import CompileRecord, Record, RunDocument, Summary
from jaxbench.records.validity import clock_disagreements
from jaxbench.records.writers.files import CsvWriter, JsonlWriter


@dataclasses.dataclass
class Measurement(abc.ABC):
    """What a mode measures, and what its summary says.

    Attributes:
      setup: what `prepare_run` made.
      mode: its name in run.json.
      csv_record: the kind of record that also goes into a CSV file, KIND.csv; None for no file.
    """

    setup: RunContext
    mode: ClassVar[str]
    csv_record: ClassVar[type[Record] | None] = None

    def document(self) -> dict[str, Any]:
        """Return the mode's fields of run.json."""
        return {}

    @abc.abstractmethod
    def measure(self, recorder: Recorder) -> None:
        """Measure, and write every record with `recorder.write`."""

    @abc.abstractmethod
    def summarize(self, status: str, records: Sequence[Record]) -> Summary:
        """Return the mode's fields of the summary, from everything that was written."""


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
    measurement: Measurement,
    workdir: str | None = None,
    *,
    telemetry_s: float = INTERVAL_S,
    price: Price | None = None,
    resume_into: Callable[[RunDocument], RunDir] | None = None,
) -> RunResult:
    """Run a mode from its run directory to its summary.

    Args:
      measurement: the mode.
      workdir: a new or empty folder for the records; None makes `runs/NAME/TIME`.
      telemetry_s: seconds between readings of the hardware, 0 for none.
      price: what the hardware costs, recorded with the run; None if it is unknown.
      resume_into: opens the folder of the run to resume; None makes a new one.

    Raises:
      BadInput: before anything is written.
      MixedDevices: instead of a backend's error about devices that it does not run together.
      Exception: whatever ended the measurement. Status and reason are in run.json by then.
    """
    setup = measurement.setup
    platform = setup.mesh.devices[0].platform
    with setup.clock.phase("devices"):
        warnings = [*setup.unused, *unused_accelerators(platform), *wrong_sums(platform)]
    for warning in warnings:
        setup.console.say(f"warning: {warning}")
    fields = {"mode": measurement.mode} | setup.document() | measurement.document()
    # Every process that cannot run has said so by now: nothing has been written then.
    processes.barrier("the record")
    recorder = Recorder(None, no_telemetry())
    if processes.is_primary():
        document = RunDocument(
            experiment=setup.config.name,
            status="running",
            reason=None,
            started_at=now().isoformat(),
            **fields,
            telemetry_s=telemetry_s,
            price=price and price._asdict(),
            command_line=list(sys.orig_argv),
            working_directory=os.getcwd(),
            pid=os.getpid(),
            environment=describe_environment(setup.mesh.devices),
        )
        create = resume_into or (lambda new: create_run_dir(workdir, setup.config.name, new))
        run_dir, devices = create(document), setup.mesh.local_devices
        telemetry = Telemetry(
            run_dir.path / "telemetry.csv",
            telemetry_s,
            setup.clock,
            create_readers(devices) if telemetry_s else [],
            len(devices) / setup.mesh.num_devices,
        )
        recorder = Recorder(run_dir, telemetry, price, is_resumed=resume_into is not None)
    with _recording(recorder, setup):
        recorder.summarize = lambda status: _summarize(
            measurement, recorder.records, warnings, status
        )
        if recorder.folder and (record := measurement.csv_record):
            recorder.writers.add(CsvWriter(recorder.folder / f"{record.kind}.csv", record))
        measurement.measure(recorder)
        if recorder.run_dir:
            recorder.run_dir.update(**setup.document_at_end())
    return RunResult(recorder.records, recorder.summary, recorder.run_dir)


@contextlib.contextmanager
def _recording(recorder: Recorder, setup: RunContext) -> Iterator[None]:
    """Record how the `with` ends, in whatever way it does, and say what can be done next."""
    run_dir, console = recorder.run_dir, setup.console
    if run_dir is None:  # only the first process writes
        yield
        recorder.finish("done", None)
        return
    # Another process has ended while this one's main thread hangs in a collective: a thread writes.
    processes.on_abort(lambda end: run_dir.end(end.status, str(end)))
    with contextlib.closing(run_dir):
        try:
            console.say(f"records in {run_dir.path}")
            recorder.writers.add(JsonlWriter(run_dir.path))
            recorder.writers.add(console)
            with defer_signals():
                recorder.telemetry.start()
            yield
        except BaseException as error:
            # A second signal or a full disk must not hide why the run ended, nor leave it
            # unrecorded.
            with defer_signals():
                cause = processes.root_cause(mixed_devices(setup.mesh.devices, error) or error)
                with contextlib.suppress(Exception):
                    recorder.finish(*classify(cause))
                with contextlib.suppress(Exception):
                    recorder.writers.close()
                with contextlib.suppress(Exception):
                    say_next_steps(console, run_dir)
            if cause is not error:
                raise cause from error
            raise
        with defer_signals():
            recorder.finish("done", None)
            recorder.writers.close()
            say_next_steps(console, run_dir)


def _summarize(
    measurement: Measurement, records: Sequence[Record], warnings: Sequence[str], status: str
) -> Summary:
    setup = measurement.setup
    # Read together: the phases are the whole time.
    phases_s, wall_s = setup.clock.totals_s(), setup.clock.wall_s()
    summary = measurement.summarize(status, records)
    compile_s = sum(r.lower_s + r.compile_s for r in records if isinstance(r, CompileRecord))
    return dataclasses.replace(
        summary,
        # A resumed run counts what earlier processes compiled, too.
        compile_s=summary.compile_s or compile_s or None,
        peak_memory_bytes=peak_memory_bytes(setup.mesh.devices),
        host_peak_memory_bytes=host_peak_memory_bytes(),
        phases_s=phases_s,
        wall_s=wall_s,
        warnings=[
            *warnings,
            *setup.warnings(records),
            *clock_disagreements(setup.clock.elapsed_s()),
            *summary.warnings,
        ],
    )
