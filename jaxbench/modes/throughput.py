"""Measure how fast the devices train: --mode=throughput.

Rates come from windows of many steps closed by one barrier, latencies from steps closed one by
one. Stages take turns, so that drift hits all alike.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import msgspec
import numpy as np

from jaxbench.analysis.pricing import Price
from jaxbench.analysis.rate import Estimate, of_windows
from jaxbench.analysis.statistics import slowed_down
from jaxbench.clock import Stopwatch, duration
from jaxbench.config import Config
from jaxbench.hardware.peaks import flops_limit
from jaxbench.hardware.telemetry.sampler import INTERVAL_S, Telemetry
from jaxbench.microbench.interleaved import measure_in_turn, measuring_s, unsettled_warnings
from jaxbench.modes.runner import PreparedRun, prepare_run, record_run, with_feed
from jaxbench.modes.windows import (
    ENDLESS,
    StepWindows,
    falling_loss_warnings,
    window_warnings,
)
from jaxbench.parallel.processes import barrier_before_first_step, broadcast_value
from jaxbench.records.next_steps import say_time_left
from jaxbench.records.recorder import Recorder
from jaxbench.records.validity import impossible
from jaxbench.records.writers.console import Console
from jaxbench.schema import CompileRecord, Record, ThroughputRecord, ThroughputSummary
from jaxbench.train import TrainState
from jaxbench.xla.compile_cache import without_cache


def measure_throughput(
    config: Config,
    workdir: str | None = None,
    console: Console | None = None,
    *,
    feed: str = "synthetic",
    rounds: int = 11,
    window_s: float = 1.0,
    telemetry_s: float = INTERVAL_S,
    price: Price | None = None,
) -> Recorder:
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
    return measure_steps(config, workdir, console, rounds, window_s, telemetry_s, price)


def measure_steps(
    config: Config,
    workdir: str | None,
    console: Console | None,
    rounds: int,
    window_s: float,
    telemetry_s: float,
    price: Price | None = None,
    only_training: bool = False,
) -> Recorder:
    """Time windows of training and evaluation steps, and single training steps.

    Args:
      config: a valid experiment.
      only_training: measure only the training step, and compile it only once.
    """
    stages: list[StepWindows] = []
    first_step_s = None

    def summarize(status: str, records: Sequence[Record]) -> ThroughputSummary:
        measured = [record for record in records if isinstance(record, ThroughputRecord)]
        limit = flops_limit(setup.mesh.devices)
        warnings = unsettled_warnings({stage.name: stage.warmup for stage in stages})
        warnings += falling_loss_warnings(stages[0].losses if stages else [])
        for stage in stages:
            warnings += window_warnings(stage.name, stage.windows_s)
            warnings += slowed_down(f"{stage.name}: windows", stage.windows_s)
        return ThroughputSummary(
            status=status,
            first_step_s=first_step_s,
            **rate_and_losses(measured, stages[0] if stages else None),
            **(stages[0].loss_scaling if stages else {}),
            invalid=[f"{one.stage}: {why}" for one in measured for why in impossible(one, limit)],
            warnings=warnings,
        )

    with (
        prepare_run(config, workdir, console) as setup,
        record_run(
            setup,
            "throughput",
            workdir,
            summarize=summarize,
            document={"rounds": rounds},
            telemetry_s=telemetry_s,
            price=price,
        ) as recorder,
    ):
        clock, program, feed = setup.clock, setup.program, setup.feed
        state = setup.place_train_state()
        with clock.phase("place_data"):
            batch = next(feed.train_batches(0, 1))
            steps = {"train_step": (program.train_step, feed.train_data, batch)}
            if not only_training:
                eval_batch = next(feed.eval_batches())
                steps["eval_step"] = (program.eval_step, feed.eval_data, eval_batch)
        compiled = _compile_cold_and_warm(setup, steps, state, once=only_training)
        barrier_before_first_step(clock)
        train = TrainStage(setup, state, window_s, recorder.telemetry)
        forward = () if only_training else (ForwardStage(train, window_s, eval_batch),)
        stages += [train, *forward]
        for record in compiled.values():
            recorder.write(record)
        with clock.phase("first_step"):
            watch = Stopwatch()
            train.run(1)
            first_step_s = watch.elapsed_s()
        # The latencies of a round are a further window at most.
        left_s = (len(stages) + 1) * measuring_s(first_step_s, window_s, rounds)
        say_time_left(setup.console, left_s, f"a training step takes {duration(first_step_s)}")

        def end_round(number: int) -> None:
            train.measure_latencies()
            setup.console.progress("measuring", number, rounds, "rounds")

        with clock.phase("warm_up"):
            for position, stage in enumerate(stages):
                setup.console.progress("warming up", position, len(stages), stage.name)
                stage.warm_up(rounds)
        with clock.phase("measure"):
            measure_in_turn(stages, rounds, end_round=end_round)
        recorder.write(train.describe(compiled["train_step"]))
        for stage in forward:
            recorder.write(describe_stage(stage, compiled["eval_step"]))
    return recorder


def rate_and_losses(records: Sequence[Record], train: StepWindows | None) -> dict[str, Any]:
    """Return the summary's fields of a training step, as far as it has been measured."""
    record = next((one for one in records if isinstance(one, ThroughputRecord)), None)
    rate = of_windows(record, "images_per_s") if record else Estimate()
    fields: dict[str, Any] = rate.fields("images_per_s")
    if train and train.losses:
        fields |= {"first_loss": train.losses[0], "last_loss": train.losses[-1]}
    return fields


def _compile_cold_and_warm(
    setup: PreparedRun, steps: dict[str, tuple[Any, Any, Any]], state: TrainState, once: bool
) -> dict[str, CompileRecord]:
    """Compile {name: (step, data, batch)} with a cold cache and, if there is one, a warm one.

    If `once`, with the cache as it is: one of the record's two times is None.
    """
    passes: list[dict[str, CompileRecord]] = []
    todo: list[tuple[str, Callable]] = [("", contextlib.nullcontext)]
    for title, around in todo:
        jax.clear_caches()  # else what this process has compiled is not compiled again
        # Every pass compiles in this one line: a cache key may contain the line of the call.
        with around():
            compiled = {}
            for name, (step, *args) in steps.items():
                compiled[name] = setup.compile(name, step, state, *args, title)  # type: ignore[call-arg]
        passes.append(compiled)
        if not (title or once):
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
        name: msgspec.structs.replace(
            record, cold_compile_s=first_s(name, False), warm_compile_s=first_s(name, True)
        )
        for name, record in passes[0].items()
    }


# Steps closed one by one in each round.
_LATENCY_STEPS = 20


def describe_stage(stage: StepWindows, compiled: CompileRecord) -> ThroughputRecord:
    """Return a stage's record, given that of its compiled step."""
    fields = stage.describe_steps()
    rate, devices = fields["images_per_s"], stage.setup.mesh.num_devices
    xla_bytes, peak = compiled.xla_bytes_per_device, fields["peak"]
    if xla_bytes:
        flops_per_byte = stage.flops_per_image * stage.images_per_step / devices / xla_bytes
        fields["flops_per_byte"] = flops_per_byte
        if peak and peak["bytes_per_s"]:
            # The operations that the devices do in the time of a byte.
            ridge = peak["flops_per_s"] / peak["bytes_per_s"]
            fields["flops_per_byte_at_ridge"] = ridge
            fields["bound_by"] = "arithmetic" if flops_per_byte >= ridge else "memory"
    return ThroughputRecord(
        stage=stage.name,
        feed=stage.setup.feed.name,
        images_per_s_per_device=rate / devices,
        sync_residual_s=stage.sync_residual_s,
        **fields,
    )


class TrainStage(StepWindows):
    """The loop over single training steps, each with the feed's next batch."""

    def __init__(self, setup: PreparedRun, state: Any, window_s: float, telemetry: Telemetry):
        step, batches = setup.program.train_step, setup.feed.train_batches(0, ENDLESS)
        super().__init__("train_step", setup, state, window_s, step, batches)
        self.latencies_s: list[float] = []
        self._telemetry = telemetry
        self._fill = setup.config.data.prefetch_batches + 2 if setup.feed.name == "stream" else 0

    @contextlib.contextmanager
    def around_window(self) -> Iterator[None]:
        """Let the host work ahead for this window only, and fill its buffers before it.

        Batches that were made ready in another stage's time would flatter this one.
        """
        if not self._fill:
            yield
            return
        self.batches = self.setup.feed.train_batches(0, ENDLESS, self.steps)
        self.run(self._fill)
        yield
        self.setup.feed.close()

    def measure(self) -> None:
        with self._telemetry.measured(self.calls_per_window * self.images_per_step):
            super().measure()

    def measure_latencies(self) -> None:
        with self.around_window():
            for _ in range(min(_LATENCY_STEPS, self.calls_per_window)):
                self.latencies_s.append(self.time_calls(1))

    def describe(self, compiled: CompileRecord) -> ThroughputRecord:
        record, step_s = describe_stage(self, compiled), self.describe_steps()["step_s"]
        p50, p95, p99 = map(float, np.percentile(self.latencies_s, (50, 95, 99)))
        return msgspec.structs.replace(
            record,
            images_per_step=self.images_per_step,
            images_counted=self.images_counted,
            latency_p50_s=p50,
            latency_p95_s=p95,
            latency_p99_s=p99,
            latency_steps=len(self.latencies_s),
            # What queueing ahead hides of each step: dispatch, transfers, waiting for both.
            host_share=max(0.0, 1 - step_s / p50),
        )


class ForwardStage(StepWindows):
    """The forward pass of one evaluation batch, with the parameters as the training leaves them."""

    def __init__(self, train: TrainStage, window_s: float, batch: Any):
        program, batches = train.setup.program, itertools.repeat(batch)
        super().__init__("forward", train.setup, None, window_s, program.eval_step, batches)
        self._train = train
        self.run(1)
        # Images only, not what pads a batch that is not full.
        self.images_per_step = int(program.network.unpack_eval_sums(self.metrics)["count"].sum())

    def queue(self) -> Any:
        data = self.setup.feed.eval_data
        self.metrics = self.step(self._train.state, data, next(self.batches))
        self._limiter.add(self.metrics)
        self.steps += 1
        return self.metrics

    def wait(self) -> None:
        jax.block_until_ready(self.metrics)

    @property
    def flops_per_image(self) -> int:
        return 2 * self.setup.network.analysis.forward_macs
