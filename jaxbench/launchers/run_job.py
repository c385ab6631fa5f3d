"""Run a trial that outlives the sweep, by what a job file says.

For the machine that a launcher has found for the trial. It keeps the trial's limits, and writes how
the trial ended into a file, for whoever asks later. An exception such as `Terminated` ends the
trial, and no such file is written.
"""

import pathlib
import platform
import sys
from collections.abc import Mapping, Sequence

from jaxbench.launchers.launcher import read_json, write_json
from jaxbench.parallel.child import ProcessResult, run_child


def write_job(
    path: pathlib.Path,
    arguments: Sequence[str],
    limits: Mapping[str, float | None],
    variables: Mapping[str, str],
    *,
    run_path: pathlib.Path,
    log: pathlib.Path,
    end: pathlib.Path,
) -> None:
    """Write what `run_job` reads.

    Args:
      arguments: those of jaxbench.main, see `TrialJob`.
      limits: see `Limits`.
      variables: of the trial's environment, beside that of `run_job`.
      run_path, log, end: for its records, its output, and how it ended; on its own machine.
    """
    job = {
        "arguments": [*arguments, f"--workdir={run_path}"],
        "limits": dict(limits),
        "variables": dict(variables),
        "run_path": str(run_path),
        "log": str(log),
        "end": str(end),
    }
    write_json(path, job)


def run_job(path: pathlib.Path, prefix: Sequence[str] = (), more: Sequence[str] = ()) -> None:
    """Run the trial of a job file to its end, and write how it ended.

    Args:
      path: the job file.
      prefix: a program and its arguments that start the trial's.
      more: further arguments of jaxbench.main.
    """
    job = read_json(path)
    command = [*prefix, sys.executable, "-m", "jaxbench.main", *job["arguments"], *more]
    result = run_child(
        command, pathlib.Path(job["log"]), variables=job["variables"], **job["limits"]
    )
    write_json(pathlib.Path(job["end"]), result._asdict() | {"host": platform.node()})


def read_end(path: pathlib.Path) -> tuple[ProcessResult, str] | None:
    """Return how a job's trial ended, and on which host; None where it has not."""
    end = read_json(path)
    host = end.pop("host", None)
    return (ProcessResult(**end), host) if end else None
