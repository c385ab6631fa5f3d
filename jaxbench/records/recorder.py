"""Record a run from its first moment to its end, however it ends."""

import contextlib
import dataclasses
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from jaxbench.analysis.pricing import Price, add_costs
from jaxbench.clock import Clock, now
from jaxbench.config import Experiment
from jaxbench.errors import (
    OUT_OF_MEMORY,
    Diverged,
    DoesNotFit,
    OtherProcessEnded,
    Terminated,
)
from jaxbench.hardware.environment import describe_environment
from jaxbench.hardware.telemetry.sampler import Telemetry, create_readers, merge, no_telemetry
from jaxbench.parallel import processes
from jaxbench.parallel.mesh import DataMesh, mixed_devices
from jaxbench.parallel.signals import defer_signals, reason_of
from jaxbench.records.attempts import changes, describe_changes
from jaxbench.records.next_steps import say_next_steps
from jaxbench.records.reader import read_document
from jaxbench.records.run_dir import RunDir, create_run_dir
from jaxbench.records.schema import Record, Summary
from jaxbench.records.schema.base import stated_fields
from jaxbench.records.schema.document import RunDocument
from jaxbench.records.validity import impossible_phases
from jaxbench.records.writers import Writers
from jaxbench.records.writers.console import Console
from jaxbench.records.writers.files import JsonlWriter


class Recorder:
    """A run's folder, its records and its end.

    Attributes:
      run_dir: the folder with run.json; None in all processes but the first, which alone writes.
      telemetry: reads the hardware meanwhile; the job marks what it measures.
      is_resumed: whether another process began the run.
      changes: {name: values} of the software, devices and price that changed meanwhile.
      writers: where records go; a job may add its own.
      records: what `write` was given, in order.
      summarize: status -> the summary of what has been done until then; the job sets it.
      summary: the summary record, once the job has ended.
    """

    def __init__(
        self,
        run_dir: RunDir | None,
        telemetry: Telemetry,
        price: Price | None = None,
        is_resumed: bool = False,
    ):
        self.run_dir = run_dir
        self.telemetry = telemetry
        self.is_resumed = is_resumed
        self.changes = changes(read_document(run_dir.path)) if is_resumed else {}
        self._usd_per_hour = price and price.usd_per_hour
        self.writers = Writers()
        self.records: list[Record] = []
        self.summarize: Callable[[str], Summary] = lambda status: Summary(status=status)
        self.summary: dict[str, Any] = {}

    @property
    def folder(self) -> pathlib.Path | None:
        """Where files go, None where nothing is written."""
        return self.run_dir and self.run_dir.path

    def write(self, record: Record) -> None:
        self.records.append(record)
        self.writers.write(record)

    def finish(self, status: str, reason: str | None) -> None:
        """End the telemetry and record how the job ended."""
        self.telemetry.stop()
        summary = self._summarize(status)
        if status == "done" and summary.invalid:
            status, reason = "invalid", "; ".join(summary.invalid)
            summary = dataclasses.replace(summary, status=status)
        self.summary = summary.to_json()
        # A run that is done is not resumed, so its records must be complete before it says so. Any
        # other status comes first, in case the rest cannot be written.
        is_complete = status in ("done", "invalid")
        if is_complete:
            self.writers.write(summary)
        if self.run_dir is not None:
            self.run_dir.end(status, reason, summary=self.summary)
        if not is_complete:
            self.writers.write(summary)

    def _summarize(self, status: str) -> Summary:
        """Return the summary with telemetry, costs and failed sanity checks."""
        try:
            summary = self.summarize(status)
        except Exception as error:  # the run's end must be recorded in any case
            warning = f"the summary could not be made: {type(error).__name__}: {error}"
            summary = Summary(status=status, warnings=[warning])
        fields = stated_fields(summary)
        merge(fields, self.telemetry)
        telemetry = fields.get("telemetry")
        if telemetry and self.is_resumed and telemetry["energy_covers"]:
            telemetry["energy_covers"] += "; without the work that was lost"
        if "price" in self.changes:
            told = describe_changes({"usd_per_hour": self.changes["price"]})
            fields["warnings"] = [*fields["warnings"], f"{told}: what it cost is unknown"]
        usd_per_hour = None if "price" in self.changes else self._usd_per_hour
        add_costs(fields, usd_per_hour, self.run_dir and self.run_dir.document.get("resumes"))
        impossible = impossible_phases(summary.phases_s, summary.wall_s)
        fields["invalid"] = [*summary.invalid, *impossible]
        return type(summary)(**fields)


@contextlib.contextmanager
def recording(
    workdir: str | None,
    experiment: Experiment,
    mesh: DataMesh,
    document: dict[str, Any],
    console: Console,
    clock: Clock,
    telemetry_s: float,
    price: Price | None = None,
    resume_into: Callable[[RunDocument], RunDir] | None = None,
) -> Iterator[Recorder]:
    """Make the run directory; when the `with` ends, record how, before an exception goes on.

    Args:
      workdir: a new or empty folder; None makes `runs/NAME/TIME`.
      experiment, mesh, clock: of the run.
      document: the job's own fields of run.json, `mode` among them.
      console: announces the folder, and gets every record.
      telemetry_s: seconds between readings of the hardware, 0 for none.
      price: what the hardware costs, where that is known.
      resume_into: opens the folder of the run to resume; None makes a new one.

    Raises:
      BadInput: the folder cannot be made.
      MixedDevices: in place of what a backend says of devices that it does not run together.
    """
    # Every process that cannot run has said so by now: nothing has been written then.
    processes.barrier("the record")
    if not processes.is_primary():
        recorder = Recorder(None, no_telemetry())
        yield recorder
        recorder.finish("done", None)
        return
    document = RunDocument(
        experiment=experiment.name,
        status="running",
        reason=None,
        started_at=now().isoformat(),
        **document,
        telemetry_s=telemetry_s,
        price=price and price._asdict(),
        command_line=list(sys.orig_argv),
        working_directory=os.getcwd(),
        pid=os.getpid(),
        environment=describe_environment(mesh.devices),
    )
    if resume_into is None:
        run_dir = create_run_dir(workdir, experiment.name, document)
    else:
        run_dir = resume_into(document)
    telemetry = _create_telemetry(run_dir, mesh, clock, telemetry_s)
    recorder = Recorder(run_dir, telemetry, price, is_resumed=resume_into is not None)
    with contextlib.closing(run_dir), _ended(recorder, mesh, console):
        console.say(f"records in {run_dir.path}")
        recorder.writers.add(JsonlWriter(run_dir.path))
        recorder.writers.add(console)
        with defer_signals():
            telemetry.start()
        yield recorder


def _create_telemetry(
    run_dir: RunDir, mesh: DataMesh, clock: Clock, telemetry_s: float
) -> Telemetry:
    own = mesh.local_devices
    readers = create_readers(own) if telemetry_s else []
    share = len(own) / mesh.num_devices
    return Telemetry(run_dir.path / "telemetry.csv", telemetry_s, clock, readers, share)


@contextlib.contextmanager
def _ended(recorder: Recorder, mesh: DataMesh, console: Console) -> Iterator[None]:
    """Record how the `with` ends, in whatever way it does, and say what can be done next."""
    # Another process has ended while this one's main thread hangs in a collective: a thread writes.
    processes.on_abort(lambda end: recorder.run_dir.end(end.status, str(end)))
    try:
        yield
    except BaseException as error:
        # A second signal or a full disk must not hide why the run ended, nor leave it unrecorded.
        with defer_signals():
            cause = processes.root_cause(mixed_devices(mesh.devices, error) or error)
            with contextlib.suppress(Exception):
                recorder.finish(*classify(cause))
            with contextlib.suppress(Exception):
                recorder.writers.close()
            with contextlib.suppress(Exception):
                say_next_steps(console, recorder.run_dir)
        if cause is not error:
            raise cause from error
        raise
    with defer_signals():
        recorder.finish("done", None)
        recorder.writers.close()
        say_next_steps(console, recorder.run_dir)


def classify(error: BaseException) -> tuple[str, str]:
    """Return the run's status and the reason in words."""
    error = reason_of(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", "interrupted (Ctrl-C)"
    if isinstance(error, Terminated):
        return "preempted", f"terminated ({str(error) or 'SIGTERM'})"
    if isinstance(error, Diverged):
        return "diverged", str(error)
    if isinstance(error, DoesNotFit):
        return "oom", str(error)
    if isinstance(error, OtherProcessEnded):
        return error.status, str(error)
    message = f"{type(error).__name__}: {str(error).strip()}"
    if OUT_OF_MEMORY.search(message):
        return "oom", message
    return "failed", message
