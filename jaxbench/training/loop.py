"""The training loop: a state on its way through the epochs, and what is recorded of it."""

import contextlib
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxbench.analysis.pricing import first_at_target
from jaxbench.analysis.statistics import slowed_down
from jaxbench.checkpoints.checkpointer import Checkpoints
from jaxbench.clock import Clock, Stopwatch, duration, wait_until
from jaxbench.data.feeds.feed import Feed
from jaxbench.distributed.coordination import barrier_before_first_step
from jaxbench.distributed.mesh import all_ready, peak_memory_bytes
from jaxbench.distributed.signals import defer_signals, graceful_stop
from jaxbench.errors import Diverged, Terminated
from jaxbench.hardware.environment import host_peak_memory_bytes, process_memory_bytes
from jaxbench.hardware.utilization import utilization
from jaxbench.records.schema import record_from_json
from jaxbench.records.validity import impossible_epoch, impossible_total
from jaxbench.records.writers import Writer
from jaxbench.records.writers.console import Console
from jaxbench.tasks import COUNT, LOSS_SUM
from jaxbench.training.dispatch import MetricsQueue
from jaxbench.training.epoch_metrics import EpochProgress
from jaxbench.training.loss_scale import (
    FIRST_SCALE,
    LOWEST_SCALE,
    SCALE,
    SKIPPED_STEPS,
    describe_scales,
)
from jaxbench.training.optimizers import tabulator
from jaxbench.training.profiler import Profiler
from jaxbench.training.program import Program, compile_step
from jaxbench.training.train_step import TrainState
from jaxbench.xla.flops import TRAINING_FLOPS_PER_MAC

# Shown in TensorBoard and in Weights & Biases.
_SAMPLE_IMAGES = 16
# What a run with several says it had: only if all were kept was nothing compiled.
_OUTCOMES = ("miss", "off", "hit")
# What is said of several models' headline figure beside its mean: sample deviation, extremes.
_SPREAD = ("std", "min", "max")


def _known(value: float | None) -> float:
    """A figure that may be nan, or None where it was read back from a record; lower than any."""
    return -math.inf if value is None or math.isnan(value) else value


class Trainer:
    """The state on its way through the epochs, and what was seen on the way.

    `measured(images)` goes round what trains so many of them; an evaluation that reaches `target`
    is the last. `mark()` tells how far the records have come that belong to a checkpoint.
    `import_s` is what the process took before the clock was made.
    """

    def __init__(
        self,
        program: Program,
        feed: Feed,
        clock: Clock,
        writer: Writer,
        console: Console,
        measured: Callable[[int], contextlib.AbstractContextManager] = contextlib.nullcontext,
        target: float | None = None,
        profiler: Profiler | None = None,
        saver: Checkpoints | None = None,
        mark: Callable[[], dict[str, int]] = dict,
        import_s: float | None = None,
    ):
        self.state: TrainState | None = None
        self._saved_state: TrainState | None = None
        self._is_resumed = False
        self._corrupt_before: dict[str, str] = {}
        self._saver = saver
        self._mark = mark
        self._program = program
        self._config = program.config
        self._mesh = program.mesh
        self._task = program.task
        self._seeds_R = program.config.seeds(program.mesh.num_devices)
        self._feed = feed
        self._clock = clock
        self._writer = writer
        self._console = console
        self._measured = measured
        self._target = target
        self._profiler = profiler
        self._traced_steps = profiler.steps if profiler else range(0)

        self._total_steps = self._config.num_steps(feed.steps_per_epoch)
        self._num_epochs = math.ceil(self._total_steps / feed.steps_per_epoch)
        self._first_batch: Any = None
        self._steps_done = 0
        self._learning_rate: float | None = None
        # Of the present epoch: the numbers of its steps, and the learning rates from each model's
        # first update in it.
        self._epoch_steps = range(0)
        self._first_updates_R: Any = None
        self._learning_rates_RxS: Any = None
        # After the last step; only under fp16 is any skipped.
        self._scales_loss = program.precision.scales_loss
        self._scaling_Rx2 = np.tile([0.0, FIRST_SCALE], (len(self._seeds_R), 1))
        self._tabulate_rates = tabulator(program.schedule, feed.steps_per_epoch)
        self._compile_s = 0.0
        self._compile_cache: set[str] = set()
        self._first_step_s: float | None = None
        self._import_s, self._startup_s = import_s, None
        self._score = f"eval_{self._task.headline}"
        self._epochs: list[dict[str, Any]] = []
        self._progress: EpochProgress | None = None
        # One for all stretches: it knows from the ones before how long a step takes.
        self._metrics_queue = MetricsQueue(one_by_one=self._config.step_log)
        self._invalid: list[str] = []

    def sample_images(self) -> np.ndarray:
        """Returns a few training images as the feed hands them over, uint8 of shape (N, H, W, C).

        Those of a resident feed are cut and mirrored in the step only.
        """
        held = self._first_batch if "images" in self._first_batch else self._feed.train_data
        images = held["images"].addressable_shards[0].data
        if images.ndim == 5:  # with an axis of devices
            images = images[0]
        return np.asarray(images[:_SAMPLE_IMAGES])

    def train(self) -> None:
        """Trains and evaluates, once all is prepared; SIGTERM saves what has been done."""
        try:
            while len(self._epochs) < self._num_epochs and not self._is_at_target():
                self._train_and_evaluate_epoch(len(self._epochs))
                done = len(self._epochs)
                last = done == self._num_epochs or self._is_at_target()
                if self._saver and self._saver.due(done, last):
                    self._save()
        except Terminated:
            if self._saver:
                self._save()
            raise

    def _is_at_target(self) -> bool:
        if self._target is None or not self._epochs:
            return False
        return _known(self._epochs[-1].get(self._score)) >= self._target

    def _save(self) -> None:
        """Saves a checkpoint; nothing is queued on the devices."""
        with self._clock.phase("checkpoint"), defer_signals():
            whole = self._epochs and not self._progress
            score = self._epochs[-1].get(self._score) if whole else None
            self._saver.save(self.state, self._resume_metadata(), score)

    def _resume_metadata(self) -> dict[str, Any]:
        """How far the run has come, beside the state: what `restore` needs."""
        return {
            "step": self._steps_done,
            "epochs_done": len(self._epochs),
            "progress": self._progress and self._progress.to_json(),
            "compile_s": self._compile_s,
            "compile_cache": sorted(self._compile_cache),
            "first_step_s": self._first_step_s,
            "learning_rate": self._learning_rate,
            "invalid": self._invalid,
            "corrupt": self._corrupt,
            "traced": self._profiler.traced if self._profiler else [],
            "records": self._mark(),
            "totals_s": self._clock.totals_s(),
        }

    def restore(self, state: TrainState, point: dict[str, Any]) -> None:
        """Takes the run up where a checkpoint left it, before `prepare`.

        Args:
          state: the arrays, on the host, as `device_get` returns those of `program.init`, or with
            a leading axis of models.
          point: what `_resume_metadata` returned, and the records of the `epochs` that are done.
        """
        self._saved_state, self._is_resumed = state, True
        self._import_s = None  # the clock goes on from another process's
        self._steps_done = point["step"]
        if self._scales_loss:
            scaling = state.loss_scale
            self._scaling_Rx2 = np.stack([scaling.skipped_steps, scaling.scale], -1).reshape(-1, 2)
        self._epochs = list(point["epochs"])
        if point["progress"]:
            self._progress = EpochProgress.from_json(point["progress"])
        self._compile_s = point["compile_s"]
        self._compile_cache = set(point["compile_cache"])
        self._first_step_s = point["first_step_s"]
        self._learning_rate = point["learning_rate"]
        self._invalid = list(point["invalid"])
        self._corrupt_before = point["corrupt"]
        if self._profiler:
            self._profiler.traced = list(point["traced"])

    @property
    def _corrupt(self) -> dict[str, str]:
        return {**self._corrupt_before, **self._feed.corrupt}

    def prepare(self) -> None:
        """Makes the state and compiles both steps; nothing is trained yet."""
        resumed, self._saved_state = self._saved_state, None
        what = "initialising the parameters" if resumed is None else "placing the saved state"
        with self._clock.phase("init"), self._console.phase(what):
            self.state = (
                self._program.place_train_state()
                if resumed is None
                else self._program.place_saved_state(resumed)
            )
            del resumed
            wait_until(lambda: all_ready(self.state))
        with self._clock.phase("place_data"):
            train_batch = self._take_first_batch()
            eval_batch = next(self._feed.eval_batches())
        self._compile("train_step", self._program.train_step, self._feed.train_data, train_batch)
        self._compile("eval_step", self._program.eval_step, self._feed.eval_data, eval_batch)
        barrier_before_first_step(self._clock)

    def _take_first_batch(self) -> Any:
        """Takes the next step's batch, which is kept for it; the last one if none is left."""
        epoch = len(self._epochs)
        step = self._progress.steps if self._progress else 0
        last = self._total_steps - 1
        if epoch * self._feed.steps_per_epoch + step > last or step == self._feed.steps_per_epoch:
            epoch, step = divmod(min(self._steps_done - 1, last), self._feed.steps_per_epoch)
            return next(self._feed.train_batches(epoch, 1, step))
        self._first_batch = next(self._feed.train_batches(epoch, 1, step))
        return self._first_batch

    def _compile(self, name: str, step: Any, data: Any, batch: Any) -> None:
        with self._console.phase(f"compiling {name} for {self._mesh.num_devices} device(s)"):
            record = compile_step(name, step, self.state, data, batch, clock=self._clock)
        if not self._is_resumed:  # else the run has its records of it
            self._compile_s += record["lower_s"] + record["compile_s"]
            self._compile_cache.add(record["compile_cache"])
            self._write(record)

    def _write(self, record: dict[str, Any]) -> None:
        with self._clock.phase("records"):
            self._writer.write(record)

    def _train_and_evaluate_epoch(self, epoch: int) -> None:
        """Does epoch `epoch` (0 is the first), or what is left of it, and writes its record."""
        first_step = epoch * self._feed.steps_per_epoch
        num_steps = min(self._feed.steps_per_epoch, self._total_steps - first_step)
        with self._clock.phase("train"):
            trained = self.train_epoch(epoch, num_steps)
        evaluated, eval_time_s = {}, 0.0
        if self._is_evaluated(epoch + 1):
            watch = Stopwatch()
            with self._clock.phase("eval"):
                eval_RxM = self._evaluate(epoch)
            eval_time_s = watch.elapsed_s()
            evaluated = self._figures("eval_", eval_RxM, self._task.eval_figures)
            evaluated["eval_count"] = self._feed.eval_count
        # None where every step was profiled.
        images_per_s = trained.images / trained.time_s if trained.images else None
        record = {
            "kind": "epoch",
            "epoch": epoch + 1,
            "epochs": self._num_epochs,
            "step": self._steps_done,
            # False where max_steps cut it short or steps were profiled, which are in neither time
            # nor images: its time is no epoch's time.
            "complete": num_steps - trained.profiled_steps == self._feed.steps_per_epoch,
            "epoch_time_s": trained.time_s + eval_time_s,
            "train_time_s": trained.time_s,
            "data_wait_s": trained.data_wait_s,
            "eval_time_s": eval_time_s,
            "images": trained.images,
            "images_per_s": images_per_s,
            "images_per_s_per_device": images_per_s and images_per_s / self._mesh.num_devices,
            "mfu": self._utilization(images_per_s)["mfu"] if images_per_s else None,
            "profiled_steps": trained.profiled_steps,
            **self._figures("train_", trained.total_RxM, self._task.train_figures),
            **evaluated,
            "learning_rate": self._learning_rate,
            **self._loss_scaling(),
            "peak_memory_bytes": peak_memory_bytes(self._mesh.devices),
            "process_memory_bytes": process_memory_bytes(),
            # Since the run's first moment, this evaluation included.
            "elapsed_s": self._clock.wall_s(),
        }
        # In one piece: an epoch is either under way or has its record.
        with defer_signals():
            self._epochs.append(record)
            self._invalid += impossible_epoch(
                record_from_json(record),
                (num_steps - trained.profiled_steps) * self._images_per_step,
                len(self._corrupt) * len(self._seeds_R),
            )
            self._write(record)
            self._progress = None

    def _is_evaluated(self, epoch: int) -> bool:
        """Whether an evaluation follows this epoch, 1 the first; the last one's always does."""
        return epoch % self._config.eval_every_epochs == 0 or epoch == self._num_epochs

    def _utilization(self, images_per_s: float) -> dict[str, Any]:
        flops = sum(self._program.forward_macs().values()) * TRAINING_FLOPS_PER_MAC
        return utilization(self._program.mesh, self._program.config.precision, images_per_s, flops)

    def _figures(self, prefix: str, sums_RxM: np.ndarray, names: Any) -> dict[str, Any]:
        """Turns metrics into a record's figures: their means over the models.

        Where there are several models, the headline's spread and each one's figures are added.
        """
        figures_R = [self._task.compute(sums_M) for sums_M in sums_RxM]
        record: dict[str, Any] = {
            prefix + name: float(np.mean([figures[name] for figures in figures_R]))
            for name in names
        }
        if len(figures_R) > 1:
            headline = [figures[self._task.headline] for figures in figures_R]
            record |= {
                f"{prefix}{self._task.headline}_{statistic}": float(value)
                for statistic, value in zip(
                    _SPREAD, (np.std(headline, ddof=1), min(headline), max(headline)), strict=True
                )
            }
            record[f"{prefix}models"] = [
                {"seed": seed, **{name: float(figures[name]) for name in names}}
                for seed, figures in zip(self._seeds_R, figures_R, strict=True)
            ]
        return record

    def epoch_columns(self) -> list[str]:
        """The columns of epochs.csv, in the order of an epoch's record."""
        task = self._task
        spread = [f"{task.headline}_{name}" for name in _SPREAD if len(self._seeds_R) > 1]
        return [
            "epoch",
            "step",
            "complete",
            "epoch_time_s",
            "train_time_s",
            "data_wait_s",
            "eval_time_s",
            "images",
            "images_per_s",
            "images_per_s_per_device",
            "mfu",
            "profiled_steps",
            *(f"train_{name}" for name in (*task.train_figures, *spread)),
            *(f"eval_{name}" for name in (*task.eval_figures, *spread)),
            "eval_count",
            "learning_rate",
            *(name for name in ("loss_scale", "skipped_steps") if self._scales_loss),
            "peak_memory_bytes",
            "process_memory_bytes",
            "elapsed_s",
        ]

    def train_epoch(self, epoch: int, num_steps: int) -> EpochProgress:
        """Trains the steps that are left of an epoch's, those that are profiled apart.

        Raises:
          Terminated: between two steps, with none of them queued any more.
        """
        progress = self._begin_epoch(epoch)
        start = self._steps_done - progress.steps
        self._epoch_steps = range(start + 1, start + num_steps + 1)
        left = self._epoch_steps[progress.steps :]
        watch, waited_s = Stopwatch(), self._data_wait_s()
        with self._measured(0), self._clock.phase("data_wait"):
            batches = self._train_rows(epoch, len(left), progress.steps)
            self._first_updates_R = start - self._skipped_R
            self._learning_rates_RxS = np.stack(
                [self._tabulate_rates(int(first)) for first in self._first_updates_R]
            )
        progress.time_s += watch.elapsed_s()
        progress.data_wait_s += self._data_wait_s() - waited_s
        traced = self._traced_steps.__contains__
        with graceful_stop() as asked:
            for profiled, stretch in itertools.groupby(left, traced):
                steps = list(stretch)
                if profiled:
                    self._profile_steps(progress, steps, batches)
                while steps and not profiled and not asked():
                    self._train_stretch(progress, steps, batches, asked)
                    del steps[: self._steps_done + 1 - steps[0]]
                    if steps and not asked():
                        self._save()
                if asked():
                    break
        return progress

    def _begin_epoch(self, epoch: int) -> EpochProgress:
        """Returns how far an epoch has come, which is nowhere unless the run was resumed in it."""
        if self._progress is None or self._progress.epoch != epoch:
            self._progress = EpochProgress(epoch, self._zeros(), self._zeros())
        return self._progress

    def _data_wait_s(self) -> float:
        return self._clock.totals_s().get("data_wait", 0.0)

    def _train_stretch(
        self,
        progress: EpochProgress,
        steps: Sequence[int],
        batches: Iterator[Any],
        asked: Callable[[], bool],
    ) -> None:
        """Trains the next steps, up to the last of them or until a checkpoint is due.

        Nothing is queued on the devices at its end.
        """
        first_steps, first_images = progress.steps, progress.images
        watch, waited_s = Stopwatch(), self._data_wait_s()
        interval_watch, interval_before_s = Stopwatch(), progress.interval_time_s

        def pause() -> bool:
            return asked() or (self._saver is not None and self._saver.due())

        with self._measured(lambda: progress.images - first_images):
            for metrics_RxM in self._run_steps(batches, steps, pause):
                loss = self._count_step(progress, metrics_RxM)
                progress.images += int(metrics_RxM[:, COUNT].sum())
                progress.interval_time_s = interval_before_s + interval_watch.elapsed_s()
                done = progress.steps - first_steps
                if self._steps_done % self._config.log_every_steps == 0 or done == len(steps):
                    self._write_step(progress)
                    interval_watch, interval_before_s = Stopwatch(), 0.0
                step_time_s = watch.elapsed_s() / done
                self._console.progress(
                    f"epoch {progress.epoch + 1}/{self._num_epochs}",
                    progress.steps,
                    len(self._epoch_steps),
                    f"{self._images_per_step / step_time_s:,.1f} images/s  loss {loss:.4f}"
                    f"  {duration(self._remaining_s(step_time_s))} left",
                )
            # The results of a step and its new state become ready together, on each device.
            wait_until(lambda: all_ready(self.state))
        progress.time_s += watch.elapsed_s()
        progress.data_wait_s += self._data_wait_s() - waited_s

    def _profile_steps(
        self, progress: EpochProgress, steps: Sequence[int], batches: Iterator[Any]
    ) -> None:
        """Trains the next steps under JAX's profiler.

        What that takes, waiting for data included, is in the phase `profile` and in no other
        figure of time. It begins and ends with nothing queued on the devices.
        """

        def train_step(batch: Any) -> jax.Array:
            self.state, metrics = self._program.train_step(self.state, self._feed.train_data, batch)
            return metrics

        what = f"profiling steps {steps[0]} to {steps[-1]}"
        with self._clock.phase("profile"), self._console.phase(what):
            wait_until(lambda: all_ready(self.state))
            results = self._profiler.trace(steps, batches, train_step)
            wait_until(lambda: all_ready(self.state))
        for metrics_RxM in self._per_model(results):
            self._count_step(progress, metrics_RxM)
        progress.profiled_steps += len(steps)
        self._write_step(progress, profiled=True)

    def _count_step(self, progress: EpochProgress, metrics_RxM: np.ndarray) -> float:
        """Takes note that one more step has been done; returns its mean loss."""
        # A model's schedule counts its updates: a skipped step is none.
        places_R = self._steps_done - self._skipped_R - self._first_updates_R
        rates_R = np.take_along_axis(self._learning_rates_RxS, places_R[:, None], axis=1)
        self._learning_rate = float(np.mean(rates_R, dtype=np.float64))
        self._steps_done += 1
        if self._scales_loss:
            self._note_scales(metrics_RxM[:, [SKIPPED_STEPS, SCALE]])
            metrics_RxM = metrics_RxM[:, : self._task.num_metrics]
        progress.add(metrics_RxM)
        return self._check_losses("training", metrics_RxM, progress.epoch)

    @property
    def _skipped_R(self) -> np.ndarray:
        return self._scaling_Rx2[:, SKIPPED_STEPS].astype(int)

    def _note_scales(self, scaling_Rx2: np.ndarray) -> None:
        """Takes note of the loss scales after a step; says which have fallen."""
        before_R, scales_R = self._scaling_Rx2[:, SCALE], scaling_Rx2[:, SCALE]
        self._scaling_Rx2 = scaling_Rx2
        for seed, before, scale in zip(self._seeds_R, before_R, scales_R, strict=True):
            if scale < before:
                of = f" of seed {seed}" if len(self._seeds_R) > 1 else ""
                self._console.say(
                    f"step {self._steps_done}{of} skipped: it overflows float16 at loss scale "
                    f"{before:,.10g}, now {scale:,.10g}"
                )

    def _loss_scaling(self) -> dict[str, Any]:
        """What records say of the loss scale: nothing but under fp16."""
        if not self._scales_loss:
            return {}
        found: dict[str, Any] = describe_scales(self._scaling_Rx2)
        if len(self._seeds_R) > 1:
            found["loss_scale_models"] = [
                {"seed": seed, **describe_scales(row_2[None])}
                for seed, row_2 in zip(self._seeds_R, self._scaling_Rx2, strict=True)
            ]
        return found

    def _train_rows(self, epoch: int, num_steps: int, first_step: int) -> Iterator[Any]:
        if self._first_batch is None or not num_steps:
            return self._feed.train_batches(epoch, num_steps, first_step)
        # Compiling asked for the very first one already.
        first, self._first_batch = self._first_batch, None
        later = self._feed.train_batches(epoch, num_steps - 1, first_step + 1)
        return itertools.chain([first], later)

    def _write_step(self, progress: EpochProgress, profiled: bool = False) -> None:
        """Writes the record of the steps since the last one, whose results have just arrived.

        Those that were profiled have no time.
        """
        record = {
            "kind": "step",
            "step": self._steps_done,
            "epoch": progress.epoch + 1,
            **self._figures("", progress.interval_RxM, self._task.train_figures),
            "learning_rate": self._learning_rate,
            **self._loss_scaling(),
            "elapsed_s": self._clock.wall_s(),
        }
        if profiled:
            record["profiled"] = True
        elif self._config.step_log:  # else results arrive together, and their times tell nothing
            mean_step_s = progress.interval_time_s / progress.interval_steps
            record["step_time_s"] = mean_step_s
            record["images_per_s"] = self._images_per_step / mean_step_s
            self._console.say(
                f"step {record['step']}, loss = {record['loss']:.2f} "
                f"({record['images_per_s']:.1f} examples/sec; {mean_step_s:.3f} sec/batch)"
            )
        self._write(record)
        progress.begin_interval()

    def _zeros(self) -> np.ndarray:
        return np.zeros((len(self._seeds_R), self._task.num_metrics))

    @property
    def _images_per_step(self) -> int:
        return self._config.batch_size * len(self._seeds_R)

    def _check_losses(self, what: str, metrics_RxM: np.ndarray, epoch: int) -> float:
        """Returns the mean loss; raises Diverged where no model has a finite one any more.

        Under fp16 a loss that is not finite need not be the end: activations of some images
        overflow, the step is skipped, and the next may not. A model has diverged when steps were
        skipped down to the lowest loss scale, or when nothing is trained after the evaluation.
        """
        losses_R = metrics_RxM[:, LOSS_SUM] / metrics_RxM[:, COUNT]
        lost_R, because = ~np.isfinite(losses_R), ""
        if self._scales_loss and (what == "training" or self._steps_done < self._total_steps):
            lost_R = self._scaling_Rx2[:, SCALE] <= LOWEST_SCALE
            because = " and the gradients overflow float16 at every loss scale down to 1"
        if lost_R.all():
            raise Diverged(
                f"the {what} loss is {losses_R[0]}{because} at step {self._steps_done}, "
                f"epoch {epoch + 1}"
            )
        return float(np.mean(losses_R))

    def _run_steps(
        self, batches: Iterator[Any], steps: Sequence[int], pause: Callable[[], bool]
    ) -> Iterator[np.ndarray]:
        """Queues the steps and yields each one's metrics_RxM once it has been computed.

        A step's result comes out some steps after it was queued, so that neither the host nor
        the devices wait for the other. Once `pause()` is true no more are queued, but one is.
        """
        inflight = self._metrics_queue
        for number in steps:
            if number > steps[0] and pause():
                break
            with self._clock.phase("data_wait"):
                batch = next(batches)
            watch = Stopwatch()
            # The old state is donated: from here on only the new one may be read.
            self.state, metrics = self._program.train_step(self.state, self._feed.train_data, batch)
            yield from self._per_model(inflight.push(metrics))
            if number == 1:
                yield from self._per_model(inflight.drain())
                self._first_step_s = watch.elapsed_s()
                if self._import_s is not None:
                    self._startup_s = self._import_s + self._clock.wall_s()
        yield from self._per_model(inflight.drain())

    def _per_model(self, results: Any) -> Iterator[np.ndarray]:
        """Each metrics_M of one model as metrics_1xM; those of several are metrics_RxM already."""
        return (metrics.reshape(len(self._seeds_R), -1) for metrics in results)

    def _evaluate(self, epoch: int) -> np.ndarray:
        """Evaluates every test example once; returns their metrics_RxM, summed."""
        total_RxM = np.zeros((len(self._seeds_R), self._task.num_eval_metrics))
        for done, metrics_RxM in enumerate(self._run_eval_steps(), 1):
            total_RxM += metrics_RxM
            self._console.progress(
                f"evaluating epoch {epoch + 1}/{self._num_epochs}", done, self._feed.eval_steps, ""
            )
        if (total_RxM[:, COUNT] != self._feed.eval_count).any():
            raise AssertionError(
                f"evaluated {total_RxM[:, COUNT]} examples, the split has {self._feed.eval_count}"
            )
        # The last update of all may have broken it, after the last training loss was seen.
        self._check_losses("evaluation", total_RxM, epoch)
        return total_RxM

    def _run_eval_steps(self) -> Iterator[np.ndarray]:
        inflight = MetricsQueue()
        for batch in self._feed.eval_batches():
            metrics = self._program.eval_step(self.state, self._feed.eval_data, batch)
            yield from self._per_model(inflight.push(metrics))
        yield from self._per_model(inflight.drain())

    def _remaining_s(self, step_time_s: float) -> float:
        """The training steps and evaluations to come, at the present pace."""
        if evaluated := [e["eval_time_s"] for e in self._epochs if "eval_count" in e]:
            eval_time_s = evaluated[-1]
        else:
            # Not seen yet; a forward pass is about a third of a training step.
            images_per_s = self._images_per_step / step_time_s
            eval_time_s = len(self._seeds_R) * self._feed.num_eval / (3 * images_per_s)
        to_come = range(len(self._epochs) + 1, self._num_epochs + 1)
        evaluations = sum(map(self._is_evaluated, to_come))
        return (self._total_steps - self._steps_done) * step_time_s + evaluations * eval_time_s

    def _describe_target(self) -> dict[str, Any]:
        """What it took to reach the target; without end where the run never did, so null."""
        reached = first_at_target(self._epochs, self._score, self._target)
        return {
            "score": self._task.headline,
            "value": self._target,
            "reached": reached is not None,
            "epoch": reached and reached["epoch"],
            "steps": reached and reached["step"],
            "images": reached and reached["step"] * self._images_per_step,
            "time_s": reached and reached["elapsed_s"],
            # Compiling, reading and starting left out, evaluations not; then these too.
            "epochs_time_s": reached and sum(record["epoch_time_s"] for record in self._epochs),
            "train_time_s": reached and sum(record["train_time_s"] for record in self._epochs),
        }

    def summarize(self, status: str) -> dict[str, Any]:
        """Returns the summary record, of however much has been done."""
        whole = [record for record in self._epochs if record["complete"]]
        first_epoch_s = next((e["epoch_time_s"] for e in whole if e["epoch"] == 1), None)
        later = [record for record in whole if record["epoch"] > 1]
        evaluated_s = [record["epoch_time_s"] for record in later if "eval_count" in record]
        train_time_s = sum(record["train_time_s"] for record in self._epochs)
        images = sum(record["images"] for record in self._epochs)
        summary = {
            "kind": "summary",
            "status": status,
            "steps": self._steps_done,
            "epochs_done": len(self._epochs),
            "compile_s": self._compile_s or None,  # broken off before
            # hit: compile_s and first_epoch_with_compile_s hold the fetching of kept programs.
            "compile_cache": min(self._compile_cache, key=_OUTCOMES.index, default=None),
            "first_step_s": self._first_step_s,
            # From the start of the process to the end of the first step: before the clock
            # (interpreter, imports, flags), and with what the clock tells.
            "import_s": self._import_s,
            "startup_s": self._startup_s,
            # Neither holds compilation; a published first epoch usually does.
            "first_epoch_s": first_epoch_s,
            "first_epoch_with_compile_s": first_epoch_s and first_epoch_s + self._compile_s,
            # Of those with an evaluation: without one an epoch is less work.
            "median_epoch_s": statistics.median(evaluated_s) if evaluated_s else None,
            # Of all epochs; a run's way to its accuracy is the first without the second.
            "train_time_s": train_time_s,
            "eval_time_s": sum(record["eval_time_s"] for record in self._epochs),
            "images_per_s": images / train_time_s if images else None,
            "images_per_s_per_device": (
                images / train_time_s / self._mesh.num_devices if images else None
            ),
            "peak_memory_bytes": peak_memory_bytes(self._mesh.devices),
            "host_peak_memory_bytes": host_peak_memory_bytes(),
            **self._loss_scaling(),
        }
        if images:
            summary |= self._utilization(summary["images_per_s"])
        if evaluated := [record for record in self._epochs if "eval_count" in record]:
            score = self._score
            best = max(evaluated, key=lambda record: _known(record[score]))
            last = evaluated[-1]
            summary |= {
                key: value
                for key, value in last.items()
                if key.startswith("eval_") and key != "eval_time_s"
            }
            summary |= {f"best_{score}": best[score], "best_epoch": best["epoch"]}
            if len(self._seeds_R) > 1:
                # Under fp16 a model that skips all steps keeps its parameters, and their loss.
                skips_all_R = self._scaling_Rx2[:, SCALE] <= LOWEST_SCALE
                summary["diverged_seeds"] = [
                    model["seed"]
                    for model, skips_all in zip(last["eval_models"], skips_all_R, strict=True)
                    if skips_all or not math.isfinite(_known(model["loss"]))
                ]
        if self._target is not None:
            summary["target"] = self._describe_target()
        if self._profiler:
            summary["profile"] = self._profiler.summary()
        if self._corrupt:
            summary["corrupt"] = self._corrupt
        # The first epoch is warm-up; evaluations, which not every one has, are in none of these.
        summary["warnings"] = slowed_down("epochs", [record["train_time_s"] for record in later])
        if self._saver:
            summary["warnings"] += self._saver.warnings
        summary["phases_s"] = self._clock.totals_s()
        summary["wall_s"] = self._clock.wall_s()
        epoch_times_s = [record["epoch_time_s"] for record in self._epochs]
        summary["invalid"] = self._invalid + impossible_total(epoch_times_s, summary["wall_s"])
        return summary
