"""Keeps a job's record from its first moment to its end, however it ends."""

import contextlib
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from jaxbench.analysis.pricing import Price, add_costs
from jaxbench.clock import Clock, now
from jaxbench.config import Experiment
from jaxbench.distributed import coordination
from jaxbench.distributed.mesh import DataMesh, mixed_devices
from jaxbench.distributed.signals import defer_signals
from jaxbench.errors import OUT_OF_MEMORY, Diverged, OtherProcessEnded, Terminated
from jaxbench.hardware.environment import describe_environment
from jaxbench.hardware.telemetry.sampler import Telemetry, check_interval, create_readers, merge
from jaxbench.records.run_dir import RunDir, create_run_dir, measure_records
from jaxbench.records.schema import record_from_json
from jaxbench.records.schema.document import RunDocument
from jaxbench.records.validity import impossible_phases
from jaxbench.records.writers import Writers
from jaxbench.records.writers.console import Console
from jaxbench.records.writers.files import JsonlWriter


class Recorder:
    """A job's folder and writers.

    Attributes:
      run_dir: the folder, with run.json in it; None in any process but the first, which alone
        writes.
      writers: where records go; the job adds its own kinds.
      telemetry: reads the hardware meanwhile; the job marks what it measures.
      is_resumed: whether another process began the run: what telemetry says is of this one alone.
      summarize: status -> the summary record of however much has been done; the job sets it.
      summary: that record, once the job has ended.
    """

    def __init__(
        self, run_dir: RunDir | None, telemetry: Telemetry, usd_per_hour: float | None = None
    ):
        self.run_dir = run_dir
        self._usd_per_hour = usd_per_hour
        self.telemetry = telemetry
        self.is_resumed = False
        self.writers = Writers()
        self.summarize: Callable[[str], dict[str, Any]] = lambda status: {
            "kind": "summary",
            "status": status,
        }
        self.summary: dict[str, Any] = {}

    @property
    def folder(self) -> pathlib.Path | None:
        """Where files go, None where nothing is written."""
        return self.run_dir and self.run_dir.path

    def mark(self) -> dict[str, int]:
        """Returns how long each file of records is, once all that was recorded is in them."""
        self.writers.flush()
        return measure_records(self.run_dir.path)

    def finish(self, status: str, reason: str | None) -> None:
        """Ends the telemetry and records how the job ended.

        Its status comes before all else, in case the rest cannot be written; where all went well,
        after it.
        """
        self.telemetry.stop()
        try:
            self.summary = self.summarize(status)
            record_from_json(self.summary)  # a field that is not in the schema
        except Exception as error:  # how it ended must be told in any case
            told = f"the summary could not be made: {type(error).__name__}: {error}"
            self.summary = {"kind": "summary", "status": status, "warnings": [told]}
        merge(self.summary, self.telemetry)
        if self.is_resumed and self.summary.get("telemetry"):
            self.summary["telemetry"]["over"] += " since the run was taken up again"
        add_costs(self.summary, self._usd_per_hour)
        if self.is_resumed and self.summary.get("target"):
            # What went before was another process's to measure.
            self.summary["target"] |= {"energy_j": None, "energy_covers": None}
        self.summary["invalid"] = [
            *self.summary.get("invalid", ()),
            *impossible_phases(self.summary.get("phases_s"), self.summary.get("wall_s")),
        ]
        if status == "done" and self.summary.get("invalid"):
            status, reason = "invalid", "; ".join(self.summary["invalid"])
            self.summary["status"] = status
        self.summary = record_from_json(self.summary).to_json()
        # One that is done has all its records first: it is not taken up again.
        if status in ("done", "invalid"):
            self.writers.write(self.summary)
        if self.run_dir is not None:
            self.run_dir.update(
                status=status, reason=reason, finished_at=now().isoformat(), summary=self.summary
            )
        if status not in ("done", "invalid"):
            self.writers.write(self.summary)


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
    """Makes the run directory; whatever ends the `with` is in it before it goes on.

    Args:
      workdir: a new or empty folder; None makes `runs/NAME/TIME`.
      experiment: names the run.
      mesh: the devices that take part.
      document: the job's own fields of run.json, `mode` among them.
      console: is told where the records are, and gets every record.
      clock: the run's.
      telemetry_s: seconds between readings of the hardware, 0 for none.
      price: what the hardware costs, where that is known.
      resume_into: document -> the folder of a run that goes on, in place of a new one.

    Raises:
      BadInput: the folder cannot be made, or there is no such interval.
      MixedDevices: in place of what a backend says of devices that it does not run together.
    """
    check_interval(telemetry_s)
    # Whoever cannot run has said so by now: nothing has been written then.
    coordination.barrier("the record")
    if not coordination.is_primary():
        recorder = Recorder(None, Telemetry(None, 0.0, clock, []))
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
    own = mesh.local_devices
    readers = create_readers(own) if telemetry_s else []
    telemetry = Telemetry(
        run_dir.path / "telemetry.csv", telemetry_s, clock, readers, len(own) / mesh.num_devices
    )
    # Where another process has ended and this one's main thread hangs.
    coordination.on_abort(
        lambda end: run_dir.update(
            status=end.status, reason=str(end), finished_at=now().isoformat()
        )
    )
    recorder = Recorder(run_dir, telemetry, price and price.usd_per_hour)
    recorder.is_resumed = resume_into is not None
    try:
        console.say(f"records in {run_dir.path}")
        recorder.writers.add(JsonlWriter(run_dir.path))
        recorder.writers.add(console)
        with defer_signals():
            telemetry.start()
        yield recorder
    except BaseException as error:
        # Whatever else happens now must not hide why the run ended, nor keep it untold.
        with defer_signals():
            cause = coordination.root_cause(mixed_devices(mesh.devices, error) or error)
            with contextlib.suppress(Exception):
                recorder.finish(*classify(cause))
            with contextlib.suppress(Exception):
                recorder.writers.close()
        if cause is not error:
            raise cause from error
        raise
    with defer_signals():
        recorder.finish("done", None)
        recorder.writers.close()


def classify(error: BaseException) -> tuple[str, str]:
    """Returns the run's status and the reason in words."""
    if isinstance(error, KeyboardInterrupt):
        return "failed", "interrupted (Ctrl-C)"
    if isinstance(error, Terminated):
        return "preempted", "terminated (SIGTERM)"
    if isinstance(error, Diverged):
        return "diverged", str(error)
    if isinstance(error, OtherProcessEnded):
        return error.status, str(error)
    message = f"{type(error).__name__}: {str(error).strip()}"
    if OUT_OF_MEMORY.search(message):
        return "oom", message
    return "failed", message
