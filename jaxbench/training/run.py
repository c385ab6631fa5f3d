"""What the training loop is made of: the plan, an epoch's sums, the progress, the queue, the time.

Nothing here calls the loop back. A step's metrics arrive some steps after it was queued, so that
neither the host nor the devices wait for the other.
"""

import collections
import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxbench.clock import Clock, Stopwatch
from jaxbench.errors import BadInput
from jaxbench.hardware.telemetry.sampler import Telemetry
from jaxbench.parallel.mesh import all_ready, wait_for
from jaxbench.schema import EpochRecord, decode_record

# Deep enough that the device never waits for the host, shallow enough that the console is recent
# and that few steps' outputs are alive at once.
_DEPTH = 16
# Fewer of slow steps, because the end of a run waits for all that are queued.
_DEPTH_OF_SLOW = 3
# Polling ends at Ctrl-C, but on a CPU it takes processor time from the step (8 % of
# quickstart's). Waits shorter than this block in the runtime instead.
_BLOCKING_WAIT_S = 0.5
# Calls queued on simulated devices.
_MAX_SIMULATED_CALLS = 4
# {metric: values_R} of a step, for R models.
Sums = dict[str, np.ndarray]


def comparable(metric: float | None) -> float:
    """Return a metric for comparison: nan, or None in a record, is the lowest."""
    return -math.inf if metric is None or math.isnan(metric) else metric


def score_of(epoch: EpochRecord, primary_metric: str) -> float | None:
    """Return the metric by which an epoch's evaluation is judged, larger is better."""
    value = epoch.evaluated(primary_metric)
    return -value if primary_metric == "loss" and value is not None else value


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
        up_to = [epoch for epoch in epochs if reached and epoch.epoch <= reached.epoch]
        return {
            "score": self.primary_metric,
            "value": self.target_accuracy,
            "reached": reached is not None,
            "epoch": reached and reached.epoch,
            "steps": reached and reached.step,
            "images": reached and reached.step * images_per_step,
            "time_s": reached and reached.elapsed_s,
            # Without compilation, reading and start-up: with evaluations, then without them.
            "epochs_time_s": reached and sum(epoch.epoch_time_s for epoch in up_to),
            "train_time_s": reached and sum(epoch.train_time_s for epoch in up_to),
        }


# ------------------------------------------------------------------------------------ the progress


@dataclasses.dataclass
class EpochSums:
    """Sums over an epoch's steps in their order, so that a resumed epoch has the same sums.

    An interval is the steps since the last step record.
    """

    epoch: int  # 0 for the first
    total: dict[str, np.ndarray]  # {metric: sums_R}, over the epoch's steps and R models
    interval: dict[str, np.ndarray]
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

    @classmethod
    def beginning(cls, epoch: int, names: Iterable[str], num_models: int) -> "EpochSums":
        """Return the sums of an epoch before its first step."""
        zeros = dict.fromkeys(names, np.zeros(num_models))
        return cls(epoch, zeros, dict(zeros))

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

    sums: EpochSums  # of the epoch that is under way, or comes next
    step: int = 0  # the number of steps done
    # The epochs done; a checkpoint has their number only.
    epochs: list[EpochRecord] = dataclasses.field(default_factory=list)
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

    def end_epoch(self, record: EpochRecord) -> None:
        """Note the record of the epoch that is done, and begin the sums of the next."""
        self.epochs.append(record)
        num_models = len(self.sums.total["count"])
        self.sums = EpochSums.beginning(len(self.epochs), self.sums.total, num_models)

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
        progress.sums = EpochSums(**values["sums"])
        return progress

    def check(self, plan: TrainPlan, beginning: EpochSums, max_steps: int, name: str) -> None:
        """Raise BadInput if a checkpoint's progress is not one that a run of this plan has.

        `beginning` has the sums before the run's first step; `name` is the checkpoint's.
        """
        if self.step > plan.total_steps == max_steps:
            raise BadInput(
                f"{max_steps=}: must be at least {self.step}: the run goes on from {name}"
            )
        step = min(len(self.epochs) * plan.steps_per_epoch, plan.total_steps) + self.sums.steps

        def shapes(sums: EpochSums) -> list[dict[str, tuple[int, ...]]]:
            return [{n: s.shape for n, s in one.items()} for one in (sums.total, sums.interval)]

        fits = self.sums.epoch == len(self.epochs) and shapes(self.sums) == shapes(beginning)
        if not fits or step != self.step:
            raise BadInput(f"{name}: its metadata are not those of a checkpoint of this run")


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
    """A queue of steps' sums_M; returns them unpacked, in order, once they have been computed.

    With `one_by_one` each arrives as soon as it has been computed, so that its arrival is the end
    of its step. Otherwise several may arrive together, which takes less of the host's time.
    """

    def __init__(self, unpack: Callable[[Any], Sums], one_by_one: bool = False):
        self._unpack, self._one_by_one = unpack, one_by_one
        self._queue: collections.deque[jax.Array] = collections.deque()
        self._limiter = DispatchLimiter()
        self._last_wait_s = math.inf

    def push(self, sums_M: jax.Array) -> list[Sums]:
        """Add the sums of a step just queued on the devices; return those that are computed."""
        sums_M.copy_to_host_async()
        self._limiter.add(sums_M)
        self._queue.append(sums_M)
        slow = self._last_wait_s >= _BLOCKING_WAIT_S
        if len(self._queue) > (_DEPTH_OF_SLOW if slow else _DEPTH):
            self._wait()
        return self._take_finished()

    def drain(self) -> Iterator[Sums]:
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
            wait_for(self._queue[0])
        self._last_wait_s = watch.elapsed_s()

    def _take_finished(self) -> list[Sums]:
        finished = []
        while self._queue and all_ready(self._queue[0]):
            finished.append(self._unpack(jax.device_get(self._queue.popleft())))
        return finished


def as_they_arrive(queued: Iterable[jax.Array], unpack: Callable[[Any], Sums]) -> Iterator[Sums]:
    """Yield the sums of evaluation steps, in order, once they have been computed."""
    queue = MetricsQueue(unpack)
    for sums_M in queued:
        yield from queue.push(sums_M)
    yield from queue.drain()


class StepTimer:
    """The time of an epoch's steps, and the images in it, added to `progress.sums`.

    It runs from `with` to its end, waits for data and step records included, except from `pause`
    to `resume`: while a checkpoint is saved, and while steps are traced. No step may be queued
    when it starts or stops.
    """

    def __init__(self, progress: RunProgress, clock: Clock, telemetry: Telemetry):
        self._progress, self._clock, self._telemetry = progress, clock, telemetry
        self._windows = contextlib.ExitStack()
        self._earlier_s = 0.0  # before the last `resume`
        self._is_paused = True

    def __enter__(self) -> None:
        self.resume()

    def __exit__(self, *_) -> None:
        self.pause()

    def resume(self) -> None:
        sums = self._progress.sums
        images, self._steps_before, self._is_paused = sums.images, sums.steps, False
        self._waited_s = self._data_wait_s()
        self._watch, self._interval_watch = Stopwatch(), Stopwatch()
        self._windows.enter_context(self._telemetry.measured(lambda: sums.images - images))

    def pause(self) -> None:
        if self._is_paused:
            return
        self._windows.close()
        sums, self._is_paused = self._progress.sums, True
        elapsed_s = self._watch.elapsed_s()
        sums.time_s += elapsed_s
        self._earlier_s += elapsed_s
        sums.data_wait_s += self._data_wait_s() - self._waited_s

    def _data_wait_s(self) -> float:
        return self._clock.totals_s().get("data_wait", 0.0)

    def count(self, images: int) -> None:
        """Count a step that has ended; `begin_interval` follows."""
        self._progress.sums.images += images
        self._progress.sums.interval_time_s += self._interval_watch.elapsed_s()

    def begin_interval(self) -> None:
        """Take the time of the next step from now on."""
        self._interval_watch = Stopwatch()

    def step_time_s(self) -> float:
        """Return the mean time of the steps since the last `resume`, while it runs."""
        return self._watch.elapsed_s() / (self._progress.sums.steps - self._steps_before)

    def total_s(self) -> float:
        """Return the time of all steps of this process, while it runs."""
        return self._earlier_s + self._watch.elapsed_s()
