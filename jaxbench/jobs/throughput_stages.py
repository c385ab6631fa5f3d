"""The stages of --mode=throughput: single training steps, several in one call, the forward pass.

All stages use the same state; the training stages replace it.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from jaxbench.clock import Stopwatch
from jaxbench.jobs.setup import Job
from jaxbench.jobs.windows import Stepper, describe_windows
from jaxbench.microbench.interleaved import Interleaved
from jaxbench.records.schema import CompileRecord, ThroughputRecord
from jaxbench.training.dispatch import DispatchLimiter
from jaxbench.training.profiler import Profiler

# Steps closed one by one in each round.
_LATENCY_STEPS = 20
# More steps than are ever taken.
_ENDLESS = 2**40


class TimedStage(Interleaved):
    """A stage of a job, timed in windows."""

    def __init__(self, name: str, job: Job, stepper: Stepper, window_s: float):
        super().__init__(name, window_s)
        self.function = name  # of the compiled step that it calls
        # Over all devices and models.
        self.images_per_step = job.program.geometry.images_per_step
        self.steps_per_call = 1
        # Taken so far, in and between windows; of these, the steps of the warm-up.
        self.steps = self.warmup_steps = 0
        self.sync_residual_s = 0.0  # how long work went on after its windows
        self._job, self._stepper = job, stepper

    @property
    def steps_per_window(self) -> int:
        return self.warmup.calls_per_window * self.steps_per_call

    def warm_up(self, rounds: int) -> None:
        before = self.steps
        super().warm_up(rounds)
        self.warmup_steps = self.steps - before

    def wait_for_rest(self) -> None:
        """Wait for work that is left after a window: none, if the window waited for its work."""
        watch = Stopwatch()
        jax.block_until_ready(self._results())
        self.sync_residual_s += watch.elapsed_s()

    def _results(self) -> Any:
        return self._stepper.state, self._stepper.metrics

    def describe(self, compiled: Mapping[str, CompileRecord]) -> ThroughputRecord:
        """Return the stage's record, given the records of the compiled steps."""
        job, mesh = self._job, self._job.mesh
        rates = describe_windows(self.images_per_step * self.steps_per_window, self.windows_s)
        rate = rates["images_per_s"]
        step_s = self.images_per_step / rate
        flops = self._flops_per_image()
        used = job.program.utilization(rate, flops)
        return ThroughputRecord(
            stage=self.name,
            feed=job.feed.name,
            precision=job.config.precision,
            batch_size=job.config.batch_size,
            num_devices=mesh.num_devices,
            **rates,
            images_per_s_per_device=rate / mesh.num_devices,
            steps_per_call=self.steps_per_call,
            steps_per_window=self.steps_per_window,
            step_s=step_s,
            warmup_steps=self.warmup_steps,
            warmup_settled=self.warmup.settled,
            sync_residual_s=self.sync_residual_s,
            **used,
            **self._roofline(compiled[self.function].xla_bytes_per_device, flops, used["peak"]),
            **self._own_fields(step_s),
        )

    def _roofline(
        self, xla_bytes: float | None, flops_per_image: int, peak: dict[str, Any] | None
    ) -> dict[str, Any]:
        """Return a step's operations for each byte of memory, and the devices' in a byte's time."""
        if not xla_bytes or self.steps_per_call > 1:  # XLA counts a loop's body once
            return {}
        flops = flops_per_image * self.images_per_step
        intensity = flops / self._job.mesh.num_devices / xla_bytes
        if not peak or not peak["bytes_per_s"]:
            return {"flops_per_byte": intensity}
        ridge = peak["flops_per_s"] / peak["bytes_per_s"]
        return {
            "flops_per_byte": intensity,
            "flops_per_byte_at_ridge": ridge,
            "bound_by": "arithmetic" if intensity >= ridge else "memory",
        }

    def _flops_per_image(self) -> int:
        return self._job.program.training_flops

    def _own_fields(self, step_s: float) -> dict[str, Any]:
        """Return what only some stages' records have."""
        if self._job.feed.corrupt:  # then a step counts fewer images than it has places for
            return {}
        counted = self._stepper.images_counted
        return {"images_per_step": self.images_per_step, "images_counted": counted}


class TrainStage(TimedStage):
    """The loop over single training steps, each with the feed's next batch."""

    def __init__(self, job: Job, stepper: Stepper, window_s: float):
        super().__init__("train_step", job, stepper, window_s)
        self.latencies_s: list[float] = []
        self._fill = job.config.data.prefetch_batches + 2 if job.feed.name == "stream" else 0
        self._batches = job.feed.train_batches(0, _ENDLESS)

    @contextlib.contextmanager
    def around_window(self) -> Iterator[None]:
        """Let the host work ahead for this window only, and fill its buffers before it.

        Batches that were made ready in another stage's time would flatter this one.
        """
        if not self._fill:
            yield
            return
        self._batches = self._job.feed.train_batches(0, _ENDLESS, self.steps)
        self.run(self._fill)
        yield
        self._job.feed.close()

    def run(self, calls: int) -> None:
        for _ in range(calls):
            self._queue(next(self._batches))
        self._stepper.wait()

    def _queue(self, batch: Any) -> Any:
        self.steps += 1
        return self._stepper.queue(self._job.program.train_step, batch)

    def measure_latencies(self) -> None:
        with self.around_window():
            for _ in range(min(_LATENCY_STEPS, self.warmup.calls_per_window)):
                self.latencies_s.append(self._time(1))

    def profile(self, profiler: Profiler) -> None:
        """Trace steps, after as many steps before them as their numbers say."""
        with self.around_window():
            if profiler.steps.start > 1:
                self.run(profiler.steps.start - 1)
            profiler.trace(profiler.steps, self._batches, self._queue)

    def _own_fields(self, step_s: float) -> dict[str, Any]:
        p50, p95, p99 = map(float, np.percentile(self.latencies_s, (50, 95, 99)))
        return super()._own_fields(step_s) | {
            "latency_p50_s": p50,
            "latency_p95_s": p95,
            "latency_p99_s": p99,
            "latency_steps": len(self.latencies_s),
            # What queueing ahead hides of each step: dispatch, transfers, waiting for both.
            "host_share": max(0.0, 1 - step_s / p50),
        }


class RepeatedStage(TimedStage):
    """Several training steps in one call, all with the same batch."""

    def __init__(
        self,
        name: str,
        job: Job,
        stepper: Stepper,
        window_s: float,
        count: int,
        step: Any,
        batch: Any,
    ):
        super().__init__(name, job, stepper, window_s)
        self.steps_per_call, self._step, self._batch = count, step, batch

    def run(self, calls: int) -> None:
        for _ in range(calls):
            self._stepper.queue(self._step, self._batch)
        self.steps += calls * self.steps_per_call
        self._stepper.wait()


class ForwardStage(TimedStage):
    """The forward pass of one evaluation batch."""

    def __init__(self, job: Job, stepper: Stepper, window_s: float, batch: Any):
        super().__init__("forward", job, stepper, window_s)
        self.function = "eval_step"
        self._batch = batch
        self._limiter = DispatchLimiter()
        self._metrics: Any = None
        self.run(1)
        # Images only, not what pads a batch that is not full.
        self.images_per_step = int(job.program.eval_metrics(self._metrics)["count"].sum())

    def run(self, calls: int) -> None:
        step, data = self._job.program.eval_step, self._job.feed.eval_data
        for _ in range(calls):
            self._metrics = step(self._stepper.state, data, self._batch)
            self._limiter.add(self._metrics)
        self.steps += calls
        jax.block_until_ready(self._metrics)

    def _results(self) -> Any:
        return self._metrics

    def _flops_per_image(self) -> int:
        return 2 * self._job.program.forward_macs

    def _own_fields(self, step_s: float) -> dict[str, Any]:
        return {}
