"""Measure how fast the devices train: --mode=throughput.

Rates come from windows of many steps closed by one barrier, latencies from steps closed one by
one. Stages take turns, so that drift hits all alike.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxbench.analysis.pricing import Price
from jaxbench.analysis.statistics import slowed_down
from jaxbench.clock import Stopwatch
from jaxbench.config import Config
from jaxbench.errors import BadInput
from jaxbench.hardware.peaks import flops_limit
from jaxbench.hardware.telemetry.sampler import INTERVAL_S
from jaxbench.microbench.interleaved import Interleaved, in_turn, unsettled_warnings
from jaxbench.modes.runner import Measurement, RunResult, run_mode
from jaxbench.modes.setup import RunSetup, prepare_run, with_feed
from jaxbench.modes.windows import (
    ENDLESS,
    Stepper,
    describe_windows,
    falling_loss_warnings,
    window_warnings,
)
from jaxbench.parallel.processes import barrier_before_first_step, broadcast_value
from jaxbench.records.recorder import Recorder
from jaxbench.records.schema import CompileRecord, Record, ThroughputRecord, ThroughputSummary
from jaxbench.records.validity import impossible
from jaxbench.records.writers.console import Console
from jaxbench.train import TrainState, train_step
from jaxbench.training.meter import DispatchLimiter
from jaxbench.training.profiler import Profiler, check_end, parse_steps
from jaxbench.training.program import Program
from jaxbench.xla.compile_cache import without_cache

# The last step that --profile may name, of the steps that follow the measurement.
_MOST_PROFILE_STEPS = 1000


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
) -> RunResult:
    """Measure an experiment's training step and its forward pass; see `OPTIONS`.

    Raises:
      BadInput: before anything is written.
      Diverged: the loss is no longer finite.
    """
    config = with_feed(config, feed)
    # One forward pass for each image, whatever an evaluation does.
    config = dataclasses.replace(
        config, test_time_augmentation="none", test_time_augmentation_fraction=1.0
    )
    if steps_per_call > 1 and feed == "stream":
        raise BadInput(
            f"--steps_per_call={steps_per_call} with --feed=stream: each step needs a batch of its "
            "own from the host; it goes with --feed=synthetic or resident"
        )
    profiled = parse_steps(profile)
    check_end(profiled, _MOST_PROFILE_STEPS, "those after the measurement")
    with prepare_run(config, workdir, console) as setup:
        benchmark = ThroughputBenchmark(setup, steps_per_call, rounds, window_s, profiled)
        return run_mode(setup, benchmark, workdir, telemetry_s=telemetry_s, price=price)


class ThroughputBenchmark(Measurement):
    mode = "throughput"

    def __init__(
        self,
        setup: RunSetup,
        steps_per_call: int,
        rounds: int,
        window_s: float,
        profiled_steps: range,
    ):
        self._setup, self._steps_per_call = setup, steps_per_call
        self._rounds, self._window_s = rounds, window_s
        self._profiled_steps = profiled_steps
        self._stepper = Stepper(setup, None)
        self._stages: list[Stage] = []
        self._first_step_s: float | None = None
        self._profiler: Profiler | None = None

    def document(self) -> dict[str, Any]:
        return {"rounds": self._rounds, "steps_per_call": self._steps_per_call}

    def measure(self, recorder: Recorder) -> None:
        clock, console, rounds = self._setup.clock, self._setup.console, self._rounds
        compiled = self._start()
        for record in compiled.values():
            recorder.write(record)
        train: TrainStage = self._stages[0]
        with clock.phase("first_step"):
            watch = Stopwatch()
            train.run(1)
            self._first_step_s = watch.elapsed_s()
        with clock.phase("warm_up"):
            for place, stage in enumerate(self._stages):
                console.progress("warming up", place, len(self._stages), stage.name)
                stage.warm_up(rounds)
        with clock.phase("measure"):
            for number in range(rounds):
                for stage in in_turn(self._stages, number):
                    images = stage.steps_per_window * stage.images_per_step
                    is_train = stage is train
                    measured = recorder.telemetry.measured if is_train else contextlib.nullcontext
                    with stage.around_window(), measured(images):
                        stage.measure()
                    stage.wait_for_rest()
                train.measure_latencies()
                console.progress("measuring", number + 1, rounds, "rounds")
        for stage in self._stages:
            recorder.write(stage.describe(compiled))
        if self._profiled_steps:
            self._profiler = Profiler(self._profiled_steps, recorder.folder)
            train.profile(self._profiler)

    def _start(self) -> dict[str, CompileRecord]:
        """Initialise, compile, and create the stages; return the compile records by function."""
        setup, program, feed = self._setup, self._setup.program, self._setup.feed
        state = setup.place_train_state()
        with setup.clock.phase("place_data"):
            batch = next(feed.train_batches(0, 1))
            eval_batch = next(feed.eval_batches())
        steps = {
            "train_step": (program.train_step, feed.train_data, batch),
            "eval_step": (program.eval_step, feed.eval_data, eval_batch),
        }
        count = self._steps_per_call
        repeated = f"train_step_x{count}"
        if count > 1:
            steps[repeated] = (repeat_train_step(program, count), feed.train_data, batch)
        compiled = _compile_cold_and_warm(setup, steps, state)
        barrier_before_first_step(setup.clock)
        self._stepper.state = state
        common = (setup, self._stepper, self._window_s)
        forward = ForwardStage(*common, eval_batch)
        self._stages = [TrainStage(*common), forward]
        if count > 1:
            step = steps[repeated][0]
            self._stages.insert(1, RepeatedStage(repeated, *common, count, step, batch))
        return compiled

    def summarize(self, status: str, records: Sequence[Record]) -> ThroughputSummary:
        stages = [record for record in records if isinstance(record, ThroughputRecord)]
        rates = ("images_per_s", "images_per_s_low", "images_per_s_high")
        train = next((record for record in stages if record.stage == "train_step"), None)
        losses, limit = self._stepper.losses, flops_limit(self._setup.mesh.devices)
        warmups = {
            stage.name: (stage.warmup, stage.warmup_steps) for stage in self._stages if stage.warmup
        }
        warnings = unsettled_warnings(warmups) + falling_loss_warnings(losses)
        for stage in self._stages:
            warnings += window_warnings(stage.name, stage.windows_s)
            warnings += slowed_down(f"{stage.name}: windows", stage.windows_s)
        return ThroughputSummary(
            status=status,
            **({name: getattr(train, name) for name in rates} if train else {}),
            first_step_s=self._first_step_s,
            first_loss=losses[0] if losses else None,
            last_loss=losses[-1] if losses else None,
            **self._stepper.loss_scaling,
            corrupt=self._setup.feed.corrupt,
            profile=self._profiler.summary() if self._profiler else None,
            invalid=[f"{one.stage}: {why}" for one in stages for why in impossible(one, limit)],
            warnings=warnings,
        )


def _compile_cold_and_warm(
    setup: RunSetup, steps: dict[str, tuple[Any, Any, Any]], state: TrainState
) -> dict[str, CompileRecord]:
    """Compile {name: (step, data, batch)} with a cold cache and, if there is one, a warm one."""
    passes: list[dict[str, CompileRecord]] = []
    todo: list[tuple[str, Callable]] = [("", contextlib.nullcontext)]
    while todo:
        title, around = todo.pop(0)
        jax.clear_caches()  # else what this process has compiled is not compiled again
        # Every pass compiles in this one line: a cache key may contain the line of the call.
        with around():
            compiled = {}
            for name, (step, *args) in steps.items():
                compiled[name] = setup.compile(name, step, state, *args, title)
        passes.append(compiled)
        if title:
            continue
        outcomes = set(broadcast_value([record.compile_cache for record in compiled.values()]))
        if "hit" in outcomes:
            todo.append((", cold cache", without_cache))
        # This pass leaves everything compiled for the measurements.
        if outcomes != {"off"}:
            todo.append((", warm cache", contextlib.nullcontext))

    def first_s(name: str, is_hit: bool) -> float | None:
        records = (records[name] for records in passes)
        return next((r.compile_s for r in records if (r.compile_cache == "hit") == is_hit), None)

    return {
        name: dataclasses.replace(
            record, cold_compile_s=first_s(name, False), warm_compile_s=first_s(name, True)
        )
        for name, record in passes[0].items()
    }


def repeat_train_step(program: Program, num_steps: int) -> Any:
    """Return one call of several training steps, all with the same batch.

    It is (state, train_data, batch) -> (state, metrics of the last step); the state given to it is
    gone afterwards.
    """

    def steps(state, data, batch):
        def one(state, _):
            # Tied to the state, or XLA would do once what each step does with the same batch.
            return train_step(program, *jax.lax.optimization_barrier((state, data, batch)))

        state, metrics_S = jax.lax.scan(one, state, length=num_steps)
        return state, metrics_S[-1]

    return program.pmap(steps, donate=(0,))


# Steps closed one by one in each round.
_LATENCY_STEPS = 20


class Stage(Interleaved):
    """A stage, timed in windows.

    Attributes:
      function: the name of the compiled step that it calls.
      images_per_step: over all devices and models.
      steps: taken so far, in and between windows; `warmup_steps` of them in the warm-up.
      sync_residual_s: how long work went on after its windows.
    """

    steps_per_call = 1

    def __init__(self, name: str, setup: RunSetup, stepper: Stepper, window_s: float):
        super().__init__(name, window_s)
        self.function = name
        self.images_per_step = setup.program.layout.images_per_step
        self.steps = self.warmup_steps = 0
        self.sync_residual_s = 0.0
        self._setup, self._stepper = setup, stepper

    @property
    def steps_per_window(self) -> int:
        return self.warmup.calls_per_window * self.steps_per_call

    @property
    def flops_per_image(self) -> int:
        return self._setup.program.training_flops

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
        """Return the stage's record, from the records of the compiled steps."""
        setup, devices = self._setup, self._setup.mesh.num_devices
        rates = describe_windows(self.images_per_step * self.steps_per_window, self.windows_s)
        rate = rates["images_per_s"]
        step_s = self.images_per_step / rate
        utilization = setup.program.utilization(rate, self.flops_per_image)
        roofline = {}
        xla_bytes = compiled[self.function].xla_bytes_per_device
        if xla_bytes and self.steps_per_call == 1:  # XLA counts a loop's body once
            flops = self.flops_per_image * self.images_per_step
            roofline = describe_roofline(flops / devices / xla_bytes, utilization["peak"])
        return ThroughputRecord(
            stage=self.name,
            feed=setup.feed.name,
            precision=setup.config.precision,
            batch_size=setup.config.batch_size,
            num_devices=devices,
            **rates,
            images_per_s_per_device=rate / devices,
            steps_per_call=self.steps_per_call,
            steps_per_window=self.steps_per_window,
            step_s=step_s,
            warmup_steps=self.warmup_steps,
            warmup_settled=self.warmup.settled,
            sync_residual_s=self.sync_residual_s,
            **utilization,
            **roofline,
            **self._fields(step_s),
        )

    def _fields(self, step_s: float) -> dict[str, Any]:
        """Return the fields that only some stages' records have."""
        if self._setup.feed.corrupt:  # then a step counts fewer images than it has places for
            return {}
        counted = self._stepper.images_counted
        return {"images_per_step": self.images_per_step, "images_counted": counted}


def describe_roofline(flops_per_byte: float, peak: dict[str, Any] | None) -> dict[str, Any]:
    """Return a step's operations for each byte of memory, and the devices' in a byte's time."""
    if not peak or not peak["bytes_per_s"]:
        return {"flops_per_byte": flops_per_byte}
    ridge = peak["flops_per_s"] / peak["bytes_per_s"]
    return {
        "flops_per_byte": flops_per_byte,
        "flops_per_byte_at_ridge": ridge,
        "bound_by": "arithmetic" if flops_per_byte >= ridge else "memory",
    }


class TrainStage(Stage):
    """The loop over single training steps, each with the feed's next batch."""

    def __init__(self, setup: RunSetup, stepper: Stepper, window_s: float):
        super().__init__("train_step", setup, stepper, window_s)
        self.latencies_s: list[float] = []
        self._fill = setup.config.data.prefetch_batches + 2 if setup.feed.name == "stream" else 0
        self._batches = setup.feed.train_batches(0, ENDLESS)

    @contextlib.contextmanager
    def around_window(self) -> Iterator[None]:
        """Let the host work ahead for this window only, and fill its buffers before it.

        Batches that were made ready in another stage's time would flatter this one.
        """
        if not self._fill:
            yield
            return
        self._batches = self._setup.feed.train_batches(0, ENDLESS, self.steps)
        self.run(self._fill)
        yield
        self._setup.feed.close()

    def run(self, calls: int) -> None:
        for _ in range(calls):
            self._queue(next(self._batches))
        self._stepper.wait()

    def _queue(self, batch: Any) -> Any:
        self.steps += 1
        return self._stepper.queue(self._setup.program.train_step, batch)

    def measure_latencies(self) -> None:
        with self.around_window():
            for _ in range(min(_LATENCY_STEPS, self.warmup.calls_per_window)):
                self.latencies_s.append(self._time(1))

    def profile(self, profiler: Profiler) -> None:
        """Trace steps, after as many steps before them as their numbers say."""
        with self.around_window():
            if profiler.steps.start > 1:
                self.run(profiler.steps.start - 1)
            with profiler:
                profiler.start(profiler.steps, self._setup.clock, self._setup.console)
                for number in profiler.steps:
                    with jax.profiler.StepTraceAnnotation("train", step_num=number):
                        self._queue(next(self._batches))
                self._stepper.wait()

    def _fields(self, step_s: float) -> dict[str, Any]:
        p50, p95, p99 = map(float, np.percentile(self.latencies_s, (50, 95, 99)))
        return super()._fields(step_s) | {
            "latency_p50_s": p50,
            "latency_p95_s": p95,
            "latency_p99_s": p99,
            "latency_steps": len(self.latencies_s),
            # What queueing ahead hides of each step: dispatch, transfers, waiting for both.
            "host_share": max(0.0, 1 - step_s / p50),
        }


class RepeatedStage(Stage):
    """Several training steps in one call, all with the same batch."""

    def __init__(self, name: str, setup, stepper, window_s, count: int, step: Any, batch: Any):
        super().__init__(name, setup, stepper, window_s)
        self.steps_per_call, self._step, self._batch = count, step, batch

    def run(self, calls: int) -> None:
        for _ in range(calls):
            self._stepper.queue(self._step, self._batch)
        self.steps += calls * self.steps_per_call
        self._stepper.wait()


class ForwardStage(Stage):
    """The forward pass of one evaluation batch."""

    def __init__(self, setup: RunSetup, stepper: Stepper, window_s: float, batch: Any):
        super().__init__("forward", setup, stepper, window_s)
        self.function, self._batch, self._limiter = "eval_step", batch, DispatchLimiter()
        self._metrics: Any = None
        self.run(1)
        # Images only, not what pads a batch that is not full.
        self.images_per_step = int(setup.program.eval_sums(self._metrics)["count"].sum())

    def run(self, calls: int) -> None:
        step, data = self._setup.program.eval_step, self._setup.feed.eval_data
        for _ in range(calls):
            self._metrics = step(self._stepper.state, data, self._batch)
            self._limiter.add(self._metrics)
        self.steps += calls
        jax.block_until_ready(self._metrics)

    @property
    def flops_per_image(self) -> int:
        return 2 * self._setup.program.forward_macs

    def _results(self) -> Any:
        return self._metrics

    def _fields(self, step_s: float) -> dict[str, Any]:
        return {}
