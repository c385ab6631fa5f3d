"""A training run beside its arrays: its plan, its progress, the time of its steps, what it writes.

A step's metrics arrive some steps after it was queued, so that neither the host nor the devices
wait for the other.
"""

import collections
import contextlib
import dataclasses
import itertools
import math
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxbench.checkpoints.checkpoint import Checkpoints
from jaxbench.checkpoints.resume import mark_records
from jaxbench.clock import Clock, Stopwatch, duration, wait_until
from jaxbench.data.feeds.feed import Feed
from jaxbench.errors import BadInput, Diverged
from jaxbench.hardware.peaks import flops_limit
from jaxbench.hardware.telemetry.sampler import Telemetry, no_telemetry
from jaxbench.parallel import processes
from jaxbench.parallel.mesh import all_ready
from jaxbench.parallel.signals import defer_signals
from jaxbench.records.next_steps import say_time_left
from jaxbench.records.validity import impossible_arithmetic
from jaxbench.records.writers import Writer, Writers
from jaxbench.records.writers.console import Console
from jaxbench.records.writers.files import CsvWriter
from jaxbench.records.writers.rows import rate_in_words
from jaxbench.schema import (
    EpochRecord,
    Record,
    StepRecord,
    decode_record,
    has_field,
    metric_fields,
)
from jaxbench.training.loss_scale import LossScales
from jaxbench.training.profiler import Profiler
from jaxbench.training.program import Program

# Images that are shown in TensorBoard and in Weights & Biases.
_SAMPLE_IMAGES = 16
# The spread of the primary metric over several models: sample deviation, extremes.
_SPREAD = ("std", "min", "max")
# Deep enough that the device never waits for the host, shallow enough that the console is recent
# and that few steps' outputs are alive at once.
_DEPTH = 16
# Fewer of slow steps, because the end of a run waits for all that are queued.
_DEPTH_OF_SLOW = 3
# Polling ends at Ctrl-C, but on a CPU it takes processor time from the step (8 % of
# quickstart's). Waits shorter than this block in the runtime instead.
_BLOCKING_WAIT_S = 0.5
# The steps of so many seconds tell how long a run takes.
MEASURED_S = 10.0
# Calls queued on simulated devices.
_MAX_SIMULATED_CALLS = 4


def comparable(metric: float | None) -> float:
    """Return a metric for comparison: nan, or None in a record, is the lowest."""
    return -math.inf if metric is None or math.isnan(metric) else metric


@dataclasses.dataclass(frozen=True)
class TrainPlan:
    """The steps of a run. Epochs count from 0, and the numbers of steps from 1."""

    total_steps: int  # of the whole run, unless it reaches its target accuracy before
    steps_per_epoch: int  # of a complete epoch
    eval_every_epochs: int = 1  # from one evaluation to the next
    target_accuracy: float | None = None  # a fraction; an evaluation at or above it ends the run
    primary_metric: str = "top1"  # the metric that is to reach it

    @property
    def num_epochs(self) -> int:
        return math.ceil(self.total_steps / self.steps_per_epoch)

    def steps(self, epoch: int) -> range:
        """Return the numbers of an epoch's steps; `max_steps` may cut the last epoch short."""
        start = epoch * self.steps_per_epoch + 1
        return range(start, min(start + self.steps_per_epoch, self.total_steps + 1))

    def evaluates_after(self, epoch: int) -> bool:
        """Return whether an evaluation follows this epoch; one always follows the last."""
        return (epoch + 1) % self.eval_every_epochs == 0 or epoch + 1 == self.num_epochs

    def num_evaluations(self, epochs_done: int) -> int:
        """Return how many evaluations are left in a run that is not done."""
        every, num_epochs = self.eval_every_epochs, self.num_epochs
        return num_epochs // every - epochs_done // every + bool(num_epochs % every)

    def reaches_target(self, epoch: EpochRecord) -> bool:
        target = self.target_accuracy
        return target is not None and comparable(epoch.evaluated(self.primary_metric)) >= target

    def describe_target(
        self, epochs: Sequence[EpochRecord], images_per_step: int
    ) -> dict[str, Any] | None:
        """Return the summary's `target_accuracy`: what reaching it took."""
        if self.target_accuracy is None:
            return None
        reached = next((epoch for epoch in epochs if self.reaches_target(epoch)), None)
        return {
            "score": self.primary_metric,
            "value": self.target_accuracy,
            "reached": reached is not None,
            "epoch": reached and reached.epoch,
            "steps": reached and reached.step,
            "images": reached and reached.step * images_per_step,
            "time_s": reached and reached.elapsed_s,
            # Without compilation, reading and start-up: with evaluations, then without them.
            "epochs_time_s": reached and sum(epoch.epoch_time_s for epoch in epochs),
            "train_time_s": reached and sum(epoch.train_time_s for epoch in epochs),
        }


@dataclasses.dataclass
class EpochMetrics:
    """Sums over an epoch's steps in their order, so that a resumed epoch has the same sums.

    An interval is the steps since the last step record.
    """

    epoch: int  # 0 for the first
    total: dict[str, Any]  # {metric: sums_R}, over the epoch's steps and R models
    interval: dict[str, Any]
    steps: int = 0
    interval_steps: int = 0
    interval_time_s: float = 0.0
    images: int = 0  # as time_s, of the steps that were not profiled
    time_s: float = 0.0
    data_wait_s: float = 0.0  # the part of time_s spent waiting for data
    profiled_steps: int = 0

    def __post_init__(self):
        """Make arrays of the lists of a checkpoint."""
        for sums in (self.total, self.interval):
            sums.update({name: np.array(sums_R) for name, sums_R in sums.items()})

    def add(self, metrics: Mapping[str, np.ndarray]) -> None:
        """Add one more step."""
        for sums in (self.total, self.interval):
            for name in sums:
                sums[name] += metrics[name]
        self.steps += 1
        self.interval_steps += 1

    def begin_interval(self) -> None:
        """Begin a new interval after a step record."""
        self.interval = {name: np.zeros_like(sums_R) for name, sums_R in self.interval.items()}
        self.interval_steps, self.interval_time_s = 0, 0.0


@dataclasses.dataclass(kw_only=True)
class RunProgress:
    """The progress of a run since its first process."""

    step: int = 0  # the number of steps done
    # The epochs done; a checkpoint has their number only.
    epochs: list[EpochRecord] = dataclasses.field(default_factory=list)
    epoch_metrics: EpochMetrics | None = None  # None between two epochs
    learning_rate: float | None = None  # of the last step, the mean over the models
    # What the first process compiled, and the outcome for each of its programs.
    compile_s: float = 0.0
    compile_cache: list[str] = dataclasses.field(default_factory=list)
    first_step_s: float | None = None  # None if it was profiled
    # Seconds of the first process before its clock started, and up to the end of the first step.
    # They are in no checkpoint: the clock of a resumed run counts on.
    import_s: float | None = None
    startup_s: float | None = None
    # Metrics that fail a sanity check.
    invalid: list[str] = dataclasses.field(default_factory=list)
    # The numbers of the steps that the profiler has traced.
    traced: list[int] = dataclasses.field(default_factory=list)

    def end_first_step(self, step_time_s: float, wall_s: float) -> None:
        """Note the seconds of the first step, and those on the clock at its end."""
        self.first_step_s = step_time_s
        if self.import_s is not None:
            self.startup_s = self.import_s + wall_s

    def to_json(self) -> dict[str, Any]:
        """Return a copy of what a checkpoint keeps; JSON takes its arrays as lists."""
        kept = dataclasses.replace(self, epochs=[], import_s=None, startup_s=None)
        return dataclasses.asdict(kept) | {"epochs_done": len(self.epochs)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "RunProgress":
        """Read what `to_json` returned, and the `epochs` done."""
        names = {field.name for field in dataclasses.fields(cls)} & values.keys()
        progress = cls(**{name: values[name] for name in names})
        progress.epochs = [decode_record(epoch) for epoch in values.get("epochs", ())]
        if progress.epoch_metrics:
            progress.epoch_metrics = EpochMetrics(**progress.epoch_metrics)  # type: ignore[arg-type]
        return progress


@dataclasses.dataclass(kw_only=True)
class TrainRun:
    """The parts that the training loop calls."""

    program: Program
    feed: Feed
    plan: TrainPlan
    clock: Clock
    console: Console
    writer: Writer = dataclasses.field(default_factory=Writers)
    progress: RunProgress = dataclasses.field(default_factory=RunProgress)
    # Gets the times that are measured, for the energy of an image.
    telemetry: Telemetry = dataclasses.field(default_factory=no_telemetry)
    checkpoints: Checkpoints | None = None  # None in a run without a run directory
    profiler: Profiler = dataclasses.field(default_factory=lambda: Profiler(range(0), None))
    hooks: Sequence[Callable[..., None]] = ()  # called between two steps, see `train_epoch`
    # After the last step.
    loss_scales: LossScales = dataclasses.field(default_factory=lambda: LossScales(None, (), print))
    _kept_batch: tuple[tuple[int, int], Any] | None = None

    @property
    def seeds_R(self) -> tuple[int, ...]:
        """Return the seed of each model."""
        return self.program.config.seeds(self.program.mesh.num_devices)

    def check_progress(self, name: str) -> None:
        """Raise BadInput if the progress of a checkpoint is none that this run comes by."""
        progress, epoch, done = self.progress, self.progress.epoch_metrics, self.progress.epochs
        total_steps, max_steps = self.plan.total_steps, self.program.config.max_steps
        if progress.step > total_steps == max_steps:
            raise BadInput(
                f"{max_steps=}: must be at least {progress.step}: the run goes on from {name}"
            )
        step, fits = min(len(done) * self.plan.steps_per_epoch, total_steps), True
        if epoch:
            sums = dict.fromkeys(self.program.task.train_sums, (len(self.seeds_R),))
            shapes = [{n: s.shape for n, s in one.items()} for one in (epoch.total, epoch.interval)]
            step, fits = step + epoch.steps, epoch.epoch == len(done) and shapes == [sums, sums]
        if not fits or step != progress.step:
            raise BadInput(f"{name}: its metadata are not those of a checkpoint of this run")

    @property
    def is_done(self) -> bool:
        epochs, plan = self.progress.epochs, self.plan
        return len(epochs) == plan.num_epochs or any(map(plan.reaches_target, epochs[-1:]))

    def peek_batch(self, epoch: int, step: int) -> Any:
        """Return the batch of a step, both counted from 0, and keep it for `take_batches`.

        Compilation needs it before its step does.
        """
        batch = next(self.feed.train_batches(epoch, 1, step))
        self._kept_batch = (epoch, step), batch
        return batch

    def begin_epoch(self, epoch: int) -> Sequence[int]:
        """Return the steps that are left of an epoch."""
        if self.progress.epoch_metrics is None:  # else the run is resumed in the middle of it
            zeros = dict.fromkeys(self.program.task.train_sums, [0.0] * len(self.seeds_R))
            self.progress.epoch_metrics = EpochMetrics(epoch, zeros, dict(zeros))
        return self.plan.steps(epoch)[self.progress.epoch_metrics.steps :]

    def take_batches(self, epoch: int, num_steps: int) -> Iterator[Any]:
        """Return the batches, on the devices, of the last steps of an epoch."""
        first = len(self.plan.steps(epoch)) - num_steps
        kept, self._kept_batch = self._kept_batch, None
        if not num_steps or kept is None or kept[0] != (epoch, first):
            return self.feed.train_batches(epoch, num_steps, first)
        later = self.feed.train_batches(epoch, num_steps - 1, first + 1)
        # Only the iterator holds the kept batch, so that its memory is free after its step.
        return itertools.chain(iter([kept[1]]), later)

    def sample_images(self) -> np.ndarray:
        """Return a few training images as the feed has them, uint8 of shape (N, H, W, C).

        The images of a resident feed are cropped and flipped later, in the step.
        """
        _, batch = self._kept_batch
        held = batch if "images" in batch else self.feed.train_data
        images = held["images"].addressable_shards[0].data
        if images.ndim == 5:  # with an axis of devices
            images = images[0]
        return np.asarray(images[:_SAMPLE_IMAGES])

    def impossible_rates(self) -> list[str]:
        """Return why the fastest epoch's rate cannot be true, on devices like this process's."""
        rated = [epoch for epoch in self.progress.epochs if epoch.images_per_s_per_device]
        if not rated:
            return []
        fastest = max(rated, key=lambda epoch: epoch.images_per_s_per_device)
        flops_per_s = fastest.images_per_s_per_device * self.program.training_flops
        reasons = impossible_arithmetic(flops_per_s, flops_limit(self.program.mesh.devices))
        return [f"epoch {fastest.epoch}: {why}" for why in reasons]

    def write(self, record: Record) -> None:
        """Write a record to metrics.jsonl, its CSV file, the console and TensorBoard.

        `_recording` in modes/runner.py adds these writers; `writers/rows.py` formats the line.
        """
        with self.clock.phase("records"):
            self.writer.write(record)

    def checkpoint_due(self, epochs_done: int | None = None, last: bool = False) -> bool:
        """Return whether it is time for a checkpoint, see `Checkpoints.due`.

        If each process has a part of the state, all of them save it when it is due by process 0's
        clock. They ask it after epochs only: asking between steps would make them wait.
        """
        due = self.checkpoints is not None and self.checkpoints.due(epochs_done, last)
        if not self.program.is_state_across_processes:
            return due
        return epochs_done is not None and processes.broadcast_value(due)

    def checkpoint_metadata(self) -> dict[str, Any] | None:
        """Return what a checkpoint keeps beside the state; None if none are written."""
        if self.checkpoints is None:
            return None
        with self.clock.phase("checkpoint"), defer_signals():
            self.writer.flush()
            return self.progress.to_json() | {
                "records": mark_records(self.checkpoints.folder.parent),
                "totals_s": self.clock.totals_s(),
                "windows": [*self.telemetry.windows],
            }

    def save_checkpoint(self, state: Any, metadata: dict[str, Any] | None = None) -> None:
        """Save a checkpoint if any are written; nothing may be queued on the devices.

        `metadata` are those to resume from, if not the present ones.
        """
        if self.program.is_state_across_processes:
            state = self.program.sharding.fetch(state)
        if self.checkpoints is None:
            return
        epochs, score = self.progress.epochs, None
        if epochs and not self.progress.epoch_metrics:
            score = epochs[-1].evaluated(self.program.task.primary_metric)
        metadata = metadata or self.checkpoint_metadata()
        with self.clock.phase("checkpoint"), defer_signals():
            self.checkpoints.save(state, metadata, score)

    def wait_for_checkpoints(self) -> None:
        """Return when no checkpoint is being written any more."""
        if self.checkpoints is not None:
            with self.clock.phase("checkpoint"), defer_signals():
                self.checkpoints.wait()

    def check_losses(self, phase: str, metrics: Mapping[str, np.ndarray]) -> float:
        """Return the mean loss over the models; raise Diverged if no model has a finite one.

        `metrics` is {metric: values_R} of a training step or of an evaluation, as `phase` says.
        Under fp16 a loss that is not finite need not be the end: activations of some images
        overflow, the step is skipped, and the next may not be. A model has diverged when steps were
        skipped down to the lowest loss scale, or when nothing is trained after the evaluation.
        """
        progress, because = self.progress, ""
        losses_R = metrics["loss"] / metrics["count"]
        diverged_R = ~np.isfinite(losses_R)
        is_last = phase == "evaluation" and progress.step == self.plan.total_steps
        if self.loss_scales.lost_R is not None and not is_last:
            diverged_R = self.loss_scales.lost_R
            because = " and the gradients overflow float16 at every loss scale down to 1"
        if diverged_R.all():
            raise Diverged(
                f"the {phase} loss is {losses_R[0]}{because} at step {progress.step}, "
                f"epoch {len(progress.epochs) + 1}"
            )
        return float(np.mean(losses_R))


# ----------------------------------------------------------------------- the steps that are queued


class DispatchLimiter:
    """Keep calls from piling up on simulated devices, which share one pool of threads.

    If many calls are queued, replicas that wait for one another can hold the whole pool, and XLA
    ends the process after 40 s (seen with 2 devices on 2 busy cores).
    """

    def __init__(self) -> None:
        self._results: collections.deque[jax.Array] = collections.deque()

    def add(self, result: jax.Array) -> None:
        """Note a call's result, which must not be donated; wait while too many are queued."""
        devices = result.devices()
        if len(devices) == 1 or next(iter(devices)).platform != "cpu":
            return
        self._results.append(result)
        if len(self._results) > _MAX_SIMULATED_CALLS:
            self._results.popleft().block_until_ready()


class MetricsQueue:
    """A queue of steps' sums_M; returns them in order once they have been computed.

    With `one_by_one` each arrives as soon as it has been computed, so that its arrival is the end
    of its step. Otherwise several may arrive together, which takes less of the host's time.
    """

    def __init__(self, one_by_one: bool = False):
        self._one_by_one = one_by_one
        self._queue: collections.deque[jax.Array] = collections.deque()
        self._limiter = DispatchLimiter()
        self._last_wait_s = math.inf

    def push(self, sums_M: jax.Array) -> list[np.ndarray]:
        """Add the sums of a step just queued on the devices; return those that are computed."""
        sums_M.copy_to_host_async()
        self._limiter.add(sums_M)
        self._queue.append(sums_M)
        slow = self._last_wait_s >= _BLOCKING_WAIT_S
        if len(self._queue) > (_DEPTH_OF_SLOW if slow else _DEPTH):
            self._wait()
        return self._take_finished()

    def drain(self) -> Iterator[np.ndarray]:
        """Wait for every queued step; yield each one's sums as it finishes."""
        while self._queue:
            self._wait()
            yield from self._take_finished()

    def _wait(self) -> None:
        """Wait for the oldest step or, if steps are quick, for half the queue at once."""
        watch = Stopwatch()
        if self._last_wait_s < _BLOCKING_WAIT_S:
            self._queue[0 if self._one_by_one else len(self._queue) // 2].block_until_ready()
        else:
            wait_until(lambda: all_ready(self._queue[0]))
        self._last_wait_s = watch.elapsed_s()

    def _take_finished(self) -> list[np.ndarray]:
        finished = []
        while self._queue and all_ready(self._queue[0]):
            finished.append(jax.device_get(self._queue.popleft()))
        return finished


def as_they_arrive(queued: Iterable[jax.Array]) -> Iterator[np.ndarray]:
    """Yield the sums_M of evaluation steps, in order, once they have been computed."""
    queue = MetricsQueue()
    for sums_M in queued:
        yield from queue.push(sums_M)
    yield from queue.drain()


class StepMeter:
    """Add steps and their time to the metrics of the current epoch, and write their records."""

    def __init__(self, run: TrainRun):
        self._run = run
        # One for the whole run: it knows from earlier steps how long a step takes.
        self._queue = MetricsQueue(one_by_one=run.program.config.step_log)
        self._windows = contextlib.ExitStack()
        self._earlier_s = 0.0  # of measured steps, before the last `resume`
        self._has_said_time_left = False
        self.is_paused = True

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Count the time inside the `with` as the epoch's; no step may be queued at its ends."""
        self.resume()
        try:
            yield
        finally:
            self.pause()

    def resume(self) -> None:
        epoch = self._run.progress.epoch_metrics
        images, self._steps_before, self.is_paused = epoch.images, epoch.steps, False
        self._waited_s = self._data_wait_s()
        self._watch, self._interval_watch = Stopwatch(), Stopwatch()
        self._windows.enter_context(self._run.telemetry.measured(lambda: epoch.images - images))

    def pause(self) -> None:
        """Stop counting time, and images, until `resume`; no step may be queued."""
        if self.is_paused:
            return
        self._windows.close()
        epoch, self.is_paused = self._run.progress.epoch_metrics, True
        elapsed_s = self._watch.elapsed_s()
        epoch.time_s += elapsed_s
        self._earlier_s += elapsed_s
        epoch.data_wait_s += self._data_wait_s() - self._waited_s

    def _data_wait_s(self) -> float:
        return self._run.clock.totals_s().get("data_wait", 0.0)

    def push(self, sums_M: jax.Array) -> None:
        """Queue the sums of a step; count the steps whose sums have arrived."""
        self._count(self._queue.push(sums_M))

    def drain(self, state: Any) -> None:
        """Count all steps; return when none is queued on the devices."""
        self._count(self._queue.drain())
        # A step's sums and its new state become ready together, on each device.
        wait_until(lambda: all_ready(state))

    def _count(self, results: Iterable[np.ndarray]) -> None:
        run, progress = self._run, self._run.progress
        epoch = progress.epoch_metrics
        for packed in results:
            sums = run.program.unpack_train_sums(packed)
            loss = count_step(run, sums)
            if self.is_paused:
                epoch.profiled_steps += 1
                continue
            epoch.images += int(sums["count"].sum())
            epoch.interval_time_s += self._interval_watch.elapsed_s()
            if progress.step % run.program.config.log_every_steps == 0:
                write_step_record(run)
            self._interval_watch = Stopwatch()
            timed_s = self._watch.elapsed_s()
            step_time_s = timed_s / (epoch.steps - self._steps_before)
            _show_progress(run, loss, step_time_s)
            if not self._has_said_time_left and self._earlier_s + timed_s >= MEASURED_S:
                self._has_said_time_left = True
                left = run.plan.total_steps - progress.step
                say_time_left(
                    run.console,
                    _time_left_s(run, step_time_s),
                    f"{left:,} steps of {duration(step_time_s)} are left",
                )


def count_step(run: TrainRun, sums: Mapping[str, np.ndarray]) -> float:
    """Count a step whose sums have arrived; return its mean loss over the models."""
    run.progress.step += 1
    run.progress.learning_rate = float(np.mean(sums["learning_rate"], dtype=np.float64))
    run.loss_scales.update(run.progress.step, sums)
    run.progress.epoch_metrics.add(sums)
    return run.check_losses("training", sums)


def _show_progress(run: TrainRun, loss: float, step_time_s: float) -> None:
    """Show how far the epoch is, the rate, the last loss and the time left."""
    epoch, plan, layout = run.progress.epoch_metrics, run.plan, run.program.layout
    rate = rate_in_words(
        layout.images_per_step / step_time_s, run.program.config.data.sequence_length
    )
    run.console.progress(
        f"epoch {epoch.epoch + 1}/{plan.num_epochs}",
        epoch.steps,
        len(plan.steps(epoch.epoch)),
        f"{rate}  loss {loss:.4f}  {duration(_time_left_s(run, step_time_s))} left",
    )


def _time_left_s(run: TrainRun, step_time_s: float) -> float:
    """Return the seconds of the steps and evaluations that are left; the first is not known yet."""
    evaluations_s = [epoch.eval_time_s for epoch in run.progress.epochs if epoch.eval_time_s]
    left_s = (run.plan.total_steps - run.progress.step) * step_time_s
    return left_s + run.plan.num_evaluations(len(run.progress.epochs)) * sum(evaluations_s[-1:])


# ----------------------------------------------------------------------------------------- records


def write_step_record(run: TrainRun, *, profiled: bool = False) -> None:
    """Write the record of the steps since the last one, whose metrics have just arrived."""
    epoch, times = run.progress.epoch_metrics, dict[str, Any]()
    # Without step_log metrics arrive together, and the time between two of them means nothing.
    if run.program.config.step_log and not profiled:
        step_time_s = epoch.interval_time_s / epoch.interval_steps
        images_per_s = run.program.layout.images_per_step / step_time_s
        times = {"step_time_s": step_time_s, "images_per_s": images_per_s}
    record = StepRecord(
        step=run.progress.step,
        epoch=epoch.epoch + 1,
        **means_over_models(run, "", epoch.interval, run.program.task.train_metrics),
        learning_rate=run.progress.learning_rate,
        **run.loss_scales.describe(),
        elapsed_s=run.clock.wall_s(),
        profiled=profiled or None,
        **times,
    )
    if times:
        run.console.say(
            f"step {record.step}, loss = {record.loss:.2f} "
            f"({record.images_per_s:.1f} examples/sec; {record.step_time_s:.3f} sec/batch)"
        )
    run.write(record)
    epoch.begin_interval()


def means_over_models(
    run: TrainRun, prefix: str, sums: Mapping[str, np.ndarray], names: Sequence[str]
) -> dict[str, Any]:
    """Return the metrics of some sums as the fields of a record: means over the models.

    With several models, the spread of the primary metric and each model's metrics are added.
    """
    metrics, primary_metric = run.program.task.compute(sums), run.program.task.primary_metric
    means = {name: float(np.mean(metrics[name])) for name in names}
    models = {}
    if len(run.seeds_R) > 1:
        values_R = metrics[primary_metric]
        spread = (np.std(values_R, ddof=1), np.min(values_R), np.max(values_R))
        for statistic, value in zip(_SPREAD, spread, strict=True):
            means[f"{primary_metric}_{statistic}"] = float(value)
        models[f"{prefix}models"] = [
            {"seed": seed} | {name: float(metrics[name][r]) for name in names}
            for r, seed in enumerate(run.seeds_R)
        ]
    return metric_fields(EpochRecord if prefix else StepRecord, prefix, means) | models


def epochs_table(run: TrainRun, folder: pathlib.Path) -> CsvWriter:
    """Open epochs.csv, with the epochs that earlier processes have done."""
    task, columns = run.program.task, []  # of a custom task's metrics
    spread = [f"{task.primary_metric}_{s}" for s in _SPREAD] if len(run.seeds_R) > 1 else []
    for prefix, names in (("train_", task.train_metrics), ("eval_", task.eval_metrics)):
        columns += [
            f"{prefix}{name}"
            for name in (*names, *spread)
            if not has_field(EpochRecord, prefix, name)
        ]
    table = CsvWriter(folder / "epochs.csv", EpochRecord, columns)
    for epoch in run.progress.epochs:
        table.write(epoch)
    return table
