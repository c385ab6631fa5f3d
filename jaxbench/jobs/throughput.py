"""Measures how fast the devices train: --mode=throughput.

Rates come from windows of many steps closed by one barrier, latencies from steps closed one by
one. Stages take turns, so that what drifts hits all alike. Letters: R rounds.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jaxbench.analysis.pricing import Price
from jaxbench.analysis.statistics import slowed_down
from jaxbench.clock import Stopwatch
from jaxbench.config import Config
from jaxbench.distributed.coordination import barrier_before_first_step, broadcast_value
from jaxbench.distributed.mesh import peak_memory_bytes
from jaxbench.errors import BadInput
from jaxbench.hardware.environment import host_peak_memory_bytes
from jaxbench.hardware.telemetry.sampler import INTERVAL_S
from jaxbench.hardware.utilization import utilization
from jaxbench.jobs.setup import Job, StagesResult, setup_job, with_feed
from jaxbench.jobs.windows import (
    DispatchLimiter,
    WarmUp,
    check_window_s,
    describe_windows,
    falling_loss_warnings,
    unsettled_warnings,
    wait_for_steps,
    warm_up,
)
from jaxbench.records.recorder import recording
from jaxbench.records.schema import record_from_json
from jaxbench.records.validity import impossible
from jaxbench.records.writers.console import Console
from jaxbench.tasks import COUNT
from jaxbench.training.loss_scale import describe_scales
from jaxbench.training.profiler import Profiler, check_end, parse_steps
from jaxbench.xla.compile_cache import without_cache
from jaxbench.xla.flops import TRAINING_FLOPS_PER_MAC

# Steps closed one by one in each round.
_LATENCY_STEPS = 20
# How far the stretch goes that --profile names steps of: any of them is as good as any other.
_MOST_PROFILE_STEPS = 1000
# More steps than are ever taken.
_ENDLESS = 2**40


def measure_throughput(
    config: Config,
    workdir: str | None = None,
    console: Console | None = None,
    *,
    feed: str = "synthetic",
    steps_per_call: int = 1,
    rounds: int = 11,
    window_s: float = 1.0,
    telemetry_s: float = INTERVAL_S,
    profile: str | None = None,
    price: Price | None = None,
) -> StagesResult:
    """Measures an experiment's training step and its forward pass.

    Args:
      config: the experiment.
      workdir: a new or empty folder for the records; None makes `runs/NAME/TIME`.
      console: where progress is shown; None picks one for standard output.
      feed: where batches come from. synthetic: one made-up batch lies on the devices, nothing is
        read: the devices alone. resident, stream: the experiment's data, fed that way.
      steps_per_call: also measure so many steps in one call, beside the loop over single ones.
      rounds: measurements of each stage.
      window_s: each holds as many steps as take about so long.
      telemetry_s: seconds between readings of the hardware, 0 for none.
      profile: "START:STOP", steps of a stretch after the measurement of which JAX's profiler
        leaves a trace, see `parse_steps`.
      price: what the hardware costs, recorded with the run; None if nobody said.

    Raises:
      BadInput: before anything is written.
      Diverged: the loss is no longer finite.
    """
    config = with_feed(config, feed)
    # A forward pass here is one of each image, whatever an evaluation looks at.
    config = dataclasses.replace(config, test_time_augmentation="none")
    check_window_s(window_s)
    if steps_per_call > 1 and feed == "stream":
        raise BadInput(
            f"--steps_per_call={steps_per_call} with --feed=stream: each step needs a batch of its "
            "own from the host; it goes with --feed=synthetic or resident"
        )
    traced_steps = parse_steps(profile)
    check_end(traced_steps, _MOST_PROFILE_STEPS, "the stretch after the measurement")
    with setup_job(config, workdir, console) as job:
        meter = _Meter(job, steps_per_call, window_s, rounds)
        flags = {"rounds": rounds, "steps_per_call": steps_per_call}
        document = job.document() | {"mode": "throughput", **flags}
        with recording(
            workdir, config, job.mesh, document, job.console, job.clock, telemetry_s, price
        ) as recorder:
            recorder.summarize = meter.summarize
            for record in meter.compile():
                recorder.writers.write(record)
            meter.warm_up()
            meter.measure(recorder.telemetry.measured)
            for name in meter.stages:
                record = meter.describe(name)
                meter.records.append(record)
                recorder.writers.write(record)
            if traced_steps:
                meter.profile(Profiler(traced_steps, recorder.folder))
        return StagesResult(meter.records, recorder.summary, recorder.run_dir)


class _Meter:
    """The state on its way through the windows, and what was seen on the way."""

    def __init__(self, job: Job, steps_per_call: int, window_s: float, rounds: int):
        self._job = job
        self._rounds = rounds
        self._window_s = window_s
        self._steps_per_call = steps_per_call
        self._images = job.config.batch_size * job.config.num_models(job.mesh.num_devices)
        self._state: Any = None
        self._batches: Any = None
        self._next_step = 0
        self._losses: list[float] = []
        self._loss_scaling: dict[str, float] = {}
        self._first_step_s: float | None = None
        self._compile_s = 0.0
        # Each takes a number of calls and returns once all that they compute is there.
        self.stages: dict[str, Callable[[int], None]] = {"train_step": self._train}
        self._steps_of = {"train_step": 1, "forward": 1}
        if steps_per_call > 1:
            self._repeated = job.program.repeat_train_step(steps_per_call)
            name = f"train_step_x{steps_per_call}"
            self.stages[name] = self._train_repeated
            self._steps_of[name] = steps_per_call
        self.stages["forward"] = self._forward
        self._calls: dict[str, int] = {}
        self._warmup: dict[str, tuple[WarmUp, int]] = {}
        self._windows_s: dict[str, list[float]] = {name: [] for name in self.stages}
        self._limiter = DispatchLimiter(job.mesh.devices)
        self._sync_residual_s = dict.fromkeys(self.stages, 0.0)
        self._metrics: Any = None
        self._images_counted: int | None = None
        self._latencies_s: list[float] = []
        self.records: list[dict[str, Any]] = []
        self._profiler: Profiler | None = None

    def compile(self) -> list[dict[str, Any]]:
        """Initialises, compiles, and takes the first step; returns the compile records."""
        job = self._job
        program, feed = job.program, job.feed
        self._state = job.place_train_state()
        with job.clock.phase("place_data"):
            batch = next(feed.train_batches(0, 1))
            eval_batch = next(feed.eval_batches())
        self._eval_batch, self._batch = eval_batch, batch
        steps = {
            "train_step": (program.train_step, feed.train_data, batch),
            "eval_step": (program.eval_step, feed.eval_data, eval_batch),
        }
        if self._steps_per_call > 1:
            name = f"train_step_x{self._steps_per_call}"
            steps[name] = (self._repeated, feed.train_data, batch)
        records = self._compile_cold_and_warm(steps)
        barrier_before_first_step(job.clock)
        # Images only, not what pads a batch that is not full.
        sums = job.program.eval_step(self._state, feed.eval_data, eval_batch)
        self._eval_images = int(np.asarray(sums).reshape(-1, sums.shape[-1])[:, COUNT].sum())
        self._xla_bytes = {record["function"]: record["xla_bytes_per_device"] for record in records}
        self._compile_s = sum(record["lower_s"] + record["compile_s"] for record in records)
        self._batches = feed.train_batches(0, _ENDLESS)
        with job.clock.phase("first_step"):
            watch = Stopwatch()
            self._train(1)
            self._first_step_s = watch.elapsed_s()
        return records

    def _compile_cold_and_warm(self, steps: dict[str, tuple]) -> list[dict[str, Any]]:
        """Compiles every step with nothing in the cache and, where there is one, out of it."""
        found: dict[str, dict[str, Any]] = {}

        def compile_all(how: str) -> None:
            jax.clear_caches()  # else what has been compiled here is not compiled again
            for name, (step, data, batch) in steps.items():
                record = self._job.compile(name, step, self._state, data, batch, how)
                temperature = "warm" if record["compile_cache"] == "hit" else "cold"
                first = found.setdefault(name, record)
                first.setdefault(f"{temperature}_compile_s", record["compile_s"])

        turns = [("", contextlib.nullcontext)]
        while turns:
            how, around = turns.pop(0)
            # One line for all turns: where a program is called from may be a part of its name in
            # the cache.
            with around():
                compile_all(how)
            if how:
                continue
            outcomes = set(broadcast_value([record["compile_cache"] for record in found.values()]))
            if "hit" in outcomes:
                turns.append((", cold cache", without_cache))
            # Leaves everything compiled for the measurements.
            if outcomes != {"off"}:
                turns.append((", warm cache", contextlib.nullcontext))
        return [{"cold_compile_s": None, "warm_compile_s": None, **r} for r in found.values()]

    @contextlib.contextmanager
    def _prefilled_stream(self, name: str) -> Iterator[int]:
        """Lets the host work ahead for what is measured inside the `with`, and for nothing else.

        Batches that were made ready in another stage's time would flatter this one. Yields how
        many steps that took.
        """
        streams = self._job.feed.name == "stream" and name != "forward"
        fill = self._job.config.data.prefetch_batches + 2 if streams else 0
        if streams:
            self._batches = self._job.feed.train_batches(0, _ENDLESS, self._next_step)
            self._train(fill)
        yield fill
        if streams:
            self._job.feed.close()

    def warm_up(self) -> None:
        """Runs windows until they agree; finds out how many calls a window holds."""
        with self._job.clock.phase("warm_up"):
            for place, (name, run) in enumerate(self.stages.items()):
                self._job.console.progress("warming up", place, len(self.stages), name)
                self._warm_up_stage(name, run)

    def _warm_up_stage(self, name: str, run: Callable[[int], None]) -> None:
        filled = 0

        def time_calls(calls: int) -> float:
            nonlocal filled
            with self._prefilled_stream(name) as fill:
                watch = Stopwatch()
                run(calls)
                elapsed_s = watch.elapsed_s()
            filled += fill
            # How long windows are and when they agree follows from it.
            return broadcast_value(elapsed_s)

        found = warm_up(time_calls, self._window_s, self._rounds)
        self._calls[name] = found.calls_per_window
        self._warmup[name] = found, filled + found.calls * self._steps_of[name]

    def measure(self, measured: Callable[[int], contextlib.AbstractContextManager]) -> None:
        """Takes every stage's windows; `measured(images)` goes round those of the training step."""
        with self._job.clock.phase("measure"):
            for number in range(self._rounds):
                # Forwards, then backwards.
                names = list(self.stages) if number % 2 == 0 else list(self.stages)[::-1]
                for name in names:
                    calls = self._calls[name]
                    around = contextlib.nullcontext()
                    if name == "train_step":
                        around = measured(calls * self._images)
                    with self._prefilled_stream(name), around:
                        watch = Stopwatch()
                        self.stages[name](calls)
                        self._windows_s[name].append(watch.elapsed_s())
                    # Nothing is left to wait for, or the window was closed before its work was.
                    watch = Stopwatch()
                    jax.block_until_ready((self._state, self._metrics))
                    self._sync_residual_s[name] += watch.elapsed_s()
                with self._prefilled_stream("train_step"):
                    for _ in range(min(_LATENCY_STEPS, self._calls["train_step"])):
                        watch = Stopwatch()
                        self._train(1)
                        self._latencies_s.append(watch.elapsed_s())
                self._job.console.progress("measuring", number + 1, self._rounds, "rounds")

    def profile(self, profiler: Profiler) -> None:
        """Traces steps after all measurements, with as many before them as were asked for."""
        self._profiler = profiler
        steps = profiler.steps
        what = f"profiling steps {steps[0]} to {steps[-1]} of a stretch of its own"
        job = self._job
        with (
            job.clock.phase("profile"),
            job.console.phase(what),
            self._prefilled_stream("train_step"),
        ):
            if steps.start > 1:
                self._train(steps.start - 1)
            profiler.trace(steps, self._batches, self._queue_step)

    def _queue_step(self, batch: Any) -> jax.Array:
        program, data = self._job.program, self._job.feed.train_data
        self._state, self._metrics = program.train_step(self._state, data, batch)
        self._limiter.add(self._metrics)
        self._next_step += 1
        return self._metrics

    def _train(self, calls: int) -> None:
        for _ in range(calls):
            self._queue_step(next(self._batches))
        self._close()

    def _train_repeated(self, calls: int) -> None:
        data = self._job.feed.train_data
        for _ in range(calls):
            self._state, self._metrics = self._repeated(self._state, data, self._batch)
            self._limiter.add(self._metrics)
        self._close()

    def _close(self) -> None:
        loss, self._images_counted = wait_for_steps(self._state, self._metrics)
        self._losses.append(loss)
        if self._job.program.precision.scales_loss:
            sums = np.asarray(self._metrics)
            self._loss_scaling = describe_scales(sums.reshape(-1, sums.shape[-1]))

    def _forward(self, calls: int) -> None:
        step, data = self._job.program.eval_step, self._job.feed.eval_data
        for _ in range(calls):
            self._metrics = step(self._state, data, self._eval_batch)
            self._limiter.add(self._metrics)
        jax.block_until_ready(self._metrics)

    def describe(self, name: str) -> dict[str, Any]:
        """Returns a stage's record."""
        steps = self._calls[name] * self._steps_of[name]
        images = self._eval_images if name == "forward" else self._images
        rates = describe_windows(images * steps, self._windows_s[name])
        rate = rates["images_per_s"]
        warmup, warmup_steps = self._warmup[name]
        devices = self._job.mesh.num_devices
        record: dict[str, Any] = {
            "kind": "throughput",
            "stage": name,
            "feed": self._job.feed.name,
            "precision": self._job.config.precision,
            "batch_size": self._job.config.batch_size,
            "num_devices": devices,
            **rates,
            "images_per_s_per_device": rate / devices,
            "steps_per_call": self._steps_of[name],
            "steps_per_window": steps,
            "step_s": images / rate,
            "warmup_steps": warmup_steps,
            "warmup_settled": warmup.settled,
            "sync_residual_s": self._sync_residual_s[name],
        }
        if name != "forward" and not self._job.feed.corrupt:
            record |= {"images_per_step": self._images, "images_counted": self._images_counted}
        record |= self._arithmetic(name, rate)
        if name == "train_step":
            p50, p95, p99 = (float(np.percentile(self._latencies_s, p)) for p in (50, 95, 99))
            record |= {
                "latency_p50_s": p50,
                "latency_p95_s": p95,
                "latency_p99_s": p99,
                "latency_steps": len(self._latencies_s),
                # What queueing ahead hides of each step: dispatch, transfers, waiting for both.
                "host_share": max(0.0, 1 - record["step_s"] / p50),
            }
        return record

    def _arithmetic(self, name: str, images_per_s: float) -> dict[str, Any]:
        """Sets a rate beside what the devices could do; null where the table has no such device."""
        job = self._job
        macs = sum(job.program.forward_macs().values())
        flops = macs * (2 if name == "forward" else TRAINING_FLOPS_PER_MAC)
        record = utilization(job.program.mesh, job.program.config.precision, images_per_s, flops)
        function = "eval_step" if name == "forward" else name
        xla_bytes = self._xla_bytes.get(function)
        if xla_bytes and self._steps_of[name] == 1:
            # The roofline: how many operations a byte that the compiled step reads or writes, and
            # how many the device can do in the time of one.
            images = self._eval_images if name == "forward" else self._images
            intensity = flops * images / job.mesh.num_devices / xla_bytes
            record["flops_per_byte"] = intensity
            peak = record["peak"]
            if peak and peak["bytes_per_s"]:
                ridge = peak["flops_per_s"] / peak["bytes_per_s"]
                record["flops_per_byte_at_ridge"] = ridge
                record["bound_by"] = "arithmetic" if intensity >= ridge else "memory"
        return record

    def summarize(self, status: str) -> dict[str, Any]:
        phases_s = self._job.clock.totals_s()
        summary: dict[str, Any] = {
            "kind": "summary",
            "status": status,
            "compile_s": self._compile_s or None,  # broken off before
            "first_step_s": self._first_step_s,
            "first_loss": self._losses[0] if self._losses else None,
            "last_loss": self._losses[-1] if self._losses else None,
            **self._loss_scaling,
            "corrupt": self._job.feed.corrupt,
            "peak_memory_bytes": peak_memory_bytes(self._job.mesh.devices),
            "host_peak_memory_bytes": host_peak_memory_bytes(),
            "phases_s": phases_s,
            "wall_s": self._job.clock.wall_s(),
        }
        if self._profiler:
            summary["profile"] = self._profiler.summary()
        for record in self.records:
            if record["stage"] == "train_step":
                summary |= {
                    key: record[key]
                    for key in ("images_per_s", "images_per_s_low", "images_per_s_high")
                }
        summary["invalid"] = [
            f"{record['stage']}: {reason}"
            for record in self.records
            for reason in impossible(record_from_json(record))
        ]
        summary["warnings"] = self._warnings()
        return summary

    def _warnings(self) -> list[str]:
        """What a reader must know before believing the figures."""
        told = unsettled_warnings(self._warmup) + falling_loss_warnings(self._losses)
        for name, windows_s in self._windows_s.items():
            told += slowed_down(f"{name}: windows", windows_s)
        return told
