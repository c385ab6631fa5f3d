"""Find out whether a batch fits in memory: --mode=memory.

Both steps are compiled and run a few times, and nothing is timed. The records hold the memory that
the compiler estimates and the most that was used.
"""

from collections.abc import Sequence

import jax

from jaxbench.config import Config
from jaxbench.hardware.environment import private_memory_bytes
from jaxbench.hardware.telemetry.sampler import INTERVAL_S
from jaxbench.modes.runner import prepare_run, record_run, with_feed
from jaxbench.records.recorder import Recorder
from jaxbench.records.writers.console import Console
from jaxbench.schema import CompileRecord, MemorySummary

# The first runs with the state as it was placed, the second with a donated one, the third repeats.
_STEPS = 3


def measure_memory(
    config: Config,
    workdir: str | None = None,
    console: Console | None = None,
    *,
    feed: str = "synthetic",
    telemetry_s: float = INTERVAL_S,
) -> Recorder:
    """Train and evaluate a few batches; the run's status says whether they fit.

    Arguments and errors as for `measure_throughput`; a resident data set takes memory, too.
    """
    private_bytes = None

    def summarize(status: str, records: Sequence[CompileRecord]) -> MemorySummary:
        estimated_bytes = [record.memory["total_bytes"] for record in records if record.memory]
        return MemorySummary(
            status=status,
            planned_bytes_per_device=max(estimated_bytes, default=None),
            private_memory_before_bytes=private_bytes,
        )

    with (
        prepare_run(with_feed(config, feed), workdir, console) as setup,
        record_run(
            setup, "memory", workdir, summarize=summarize, telemetry_s=telemetry_s
        ) as recorder,
    ):
        program, data = setup.program, setup.feed
        state = setup.place_train_state()
        train = (data.train_data, next(data.train_batches(0, 1)))
        evaluation = (data.eval_data, next(data.eval_batches()))
        recorder.write(setup.compile("train_step", program.train_step, state, *train))
        recorder.write(setup.compile("eval_step", program.eval_step, state, *evaluation))
        private_bytes = private_memory_bytes()
        with setup.clock.phase("run"), setup.console.phase(f"running {_STEPS} steps of each"):
            for _ in range(_STEPS):
                state, metrics = program.train_step(state, *train)
            jax.block_until_ready((state, metrics))
            for _ in range(_STEPS):
                metrics = program.eval_step(state, *evaluation)
            jax.device_get(metrics)
    return recorder
