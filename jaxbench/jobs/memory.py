"""Finds out whether a batch fits in memory: --mode=memory.

Both steps are compiled and run a few times, and nothing is timed; what the compiler planned and
what was used at most are in the record.
"""

import functools
from typing import Any

import jax
import numpy as np

from jaxbench.config import Config
from jaxbench.distributed.mesh import peak_memory_bytes
from jaxbench.hardware.environment import host_peak_memory_bytes, private_memory_bytes
from jaxbench.hardware.telemetry.sampler import INTERVAL_S
from jaxbench.jobs.setup import Job, StagesResult, setup_job, with_feed
from jaxbench.records.recorder import recording
from jaxbench.records.writers.console import Console

# The first with the state as it was made, the second with a donated one, the third for good.
_STEPS = 3


def check_fit(
    config: Config,
    workdir: str | None = None,
    console: Console | None = None,
    *,
    feed: str = "synthetic",
    telemetry_s: float = INTERVAL_S,
) -> StagesResult:
    """Trains and evaluates a few batches; that they fit is told by the run's status.

    Args:
      config: the experiment.
      workdir: a new or empty folder for the records; None makes `runs/NAME/TIME`.
      console: where progress is shown; None picks one for standard output.
      feed: as for `measure_throughput`; what a resident data set takes is then counted too.
      telemetry_s: seconds between readings of the hardware, 0 for none.

    Raises:
      BadInput: before anything is written.
    """
    config = with_feed(config, feed)
    records: list[dict[str, Any]] = []
    before_bytes: list[int] = []
    with setup_job(config, workdir, console) as job:
        document = job.document() | {"mode": "memory"}
        with recording(
            workdir, config, job.mesh, document, job.console, job.clock, telemetry_s
        ) as recorder:
            recorder.summarize = functools.partial(_summarize, job, records, before_bytes)
            state = job.place_train_state()
            program, data = job.program, job.feed
            batches = list(data.train_batches(0, 1))
            eval_batches = [next(data.eval_batches())]
            for name, step, args in (
                ("train_step", program.train_step, (data.train_data, *batches)),
                ("eval_step", program.eval_step, (data.eval_data, *eval_batches)),
            ):
                records.append(job.compile(name, step, state, *args))
                recorder.writers.write(records[-1])
            # What else there is in the process than the steps' own memory.
            before_bytes.append(private_memory_bytes())
            with job.clock.phase("run"), job.console.phase(f"running {_STEPS} steps of each"):
                for _ in range(_STEPS):
                    state, metrics = program.train_step(state, data.train_data, *batches)
                jax.block_until_ready((state, metrics))
                for _ in range(_STEPS):
                    metrics = program.eval_step(state, data.eval_data, *eval_batches)
                np.asarray(jax.device_get(metrics))
        return StagesResult(records, recorder.summary, recorder.run_dir)


def _summarize(
    job: Job, records: list[dict[str, Any]], before_bytes: list[int], status: str
) -> dict[str, Any]:
    phases_s = job.clock.totals_s()
    planned = [record["memory"]["total_bytes"] for record in records if record["memory"]]
    return {
        "kind": "summary",
        "status": status,
        # Null where it was broken off before.
        "compile_s": sum(record["lower_s"] + record["compile_s"] for record in records) or None,
        # What the larger of both steps takes on each device; what else lies there is beside it.
        "planned_bytes_per_device": max(planned, default=None),
        "peak_memory_bytes": peak_memory_bytes(job.mesh.devices),
        "private_memory_before_bytes": before_bytes[0] if before_bytes else None,
        "host_peak_memory_bytes": host_peak_memory_bytes(),
        "phases_s": phases_s,
        "wall_s": job.clock.wall_s(),
    }
