"""Keeps a job's record from its first moment to its end, however it ends."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from jaxbench.clock import now
from jaxbench.config import Experiment
from jaxbench.devices import DataMesh, mixed_devices
from jaxbench.environment import describe_environment
from jaxbench.errors import Diverged, Terminated
from jaxbench.rundir import RunDir, create_run_dir
from jaxbench.signals import postponed
from jaxbench.writers import Writers
from jaxbench.writers.console import Console
from jaxbench.writers.files import JsonlWriter


class Recorder:
    """A job's folder and writers.

    Attributes:
      run_dir: the folder, with run.json in it.
      writers: where records go; the job adds its own kinds.
      summarize: status -> the summary record of however much has been done; the job sets it.
      summary: that record, once the job has ended.
    """

    def __init__(self, run_dir: RunDir):
        self.run_dir = run_dir
        self.writers = Writers()
        self.summarize: Callable[[str], dict[str, Any]] = lambda status: {
            "kind": "summary",
            "status": status,
        }
        self.summary: dict[str, Any] = {}

    def finish(self, status: str, reason: str | None) -> None:
        """Records how the job ended, its status before all else."""
        self.summary = self.summarize(status)
        if status == "done" and self.summary.get("invalid"):
            status, reason = "invalid", "; ".join(self.summary["invalid"])
            self.summary["status"] = status
        self.run_dir.update(
            status=status, reason=reason, finished_at=now().isoformat(), summary=self.summary
        )
        self.writers.write(self.summary)


@contextlib.contextmanager
def recording(
    workdir: str | None,
    experiment: Experiment,
    mesh: DataMesh,
    document: dict[str, Any],
    console: Console,
) -> Iterator[Recorder]:
    """Makes the run directory; whatever ends the `with` is in it before it goes on.

    Args:
      workdir: a new or empty folder; None makes `runs/NAME/TIME`.
      experiment: names the run.
      mesh: the devices that take part.
      document: what run.json says of this job from the first moment on.
      console: is told where the records are, and gets every record.

    Raises:
      BadInput: the folder cannot be made.
      MixedDevices: in place of what a backend says of devices that it does not run together.
    """
    run_dir = create_run_dir(
        workdir,
        experiment.name,
        {
            "experiment": experiment.name,
            "job": experiment.job,
            **document,
            "command_line": list(sys.orig_argv),
            "working_directory": os.getcwd(),
            "pid": os.getpid(),
            "environment": describe_environment(mesh.devices),
        },
    )
    recorder = Recorder(run_dir)
    try:
        console.say(f"records in {run_dir.path}")
        recorder.writers.add(JsonlWriter(run_dir.path))
        recorder.writers.add(console)
        yield recorder
    except BaseException as error:
        mixed = mixed_devices(mesh.devices, error)
        # Whatever else happens now must not hide why the run ended, nor keep it untold.
        with postponed():
            with contextlib.suppress(Exception):
                recorder.finish(*classify(mixed or error))
            with contextlib.suppress(Exception):
                recorder.writers.close()
        if mixed:
            raise mixed from error
        raise
    with postponed():
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
    message = f"{type(error).__name__}: {str(error).strip()}"
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in message:
        return "oom", message
    return "failed", message
