"""Trains an experiment, evaluates it after every epoch and records what the devices did."""

import contextlib
import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxbench.clock import Clock, Stopwatch, wait_until
from jaxbench.config import Config
from jaxbench.data.feed import Feed
from jaxbench.devices import all_ready, peak_memory_bytes
from jaxbench.economics import first_at_target
from jaxbench.environment import host_peak_memory_bytes, process_memory_bytes
from jaxbench.errors import BadInput, Diverged
from jaxbench.flops import TRAINING_FLOPS_PER_MAC
from jaxbench.inflight import InFlight
from jaxbench.job import prepared
from jaxbench.optim import tabulator
from jaxbench.prices import Price
from jaxbench.profiler import Profiler, check_end, parse_steps
from jaxbench.program import Program, compile_step
from jaxbench.recorder import recording
from jaxbench.rundir import RunDir
from jaxbench.signals import postponed
from jaxbench.spread import slowed_down
from jaxbench.step import TrainState
from jaxbench.task import COUNT, LOSS_SUM
from jaxbench.telemetry.sampler import INTERVAL_S
from jaxbench.utilization import utilization
from jaxbench.validity import impossible_epoch, impossible_total
from jaxbench.writers import Writer
from jaxbench.writers.console import Console, duration
from jaxbench.writers.files import CsvWriter
from jaxbench.writers.tensorboard import TensorBoardWriter

# Shown in TensorBoard.
_SAMPLE_IMAGES = 16
# Steps are counted in int32 on the devices.
_MOST_STEPS = 2**31 - 1
# What a run with several says it had: only if all were kept was nothing compiled.
_OUTCOMES = ("miss", "off", "hit")
# What is said of several models' headline figure beside its mean: sample deviation, extremes.
_SPREAD = ("std", "min", "max")


@dataclasses.dataclass(frozen=True)
class Result:
    """What `train_and_evaluate` hands back: the summary record, its folder, the final state.

    Only the first process of a run has a folder.
    """

    summary: dict[str, Any]
    run_dir: RunDir | None
    state: TrainState


class _Trained(NamedTuple):
    """What an epoch's training steps gave.

    Attributes:
      metrics_RxM: summed over all steps.
      images, time_s: of those that were not profiled.
      profiled_steps: how many were.
    """

    metrics_RxM: np.ndarray
    images: int
    time_s: float
    profiled_steps: int


def train_and_evaluate(
    config: Config,
    workdir: str | None = None,
    console: Console | None = None,
    *,
    telemetry_s: float = INTERVAL_S,
    profile: str | None = None,
    stop_at_top1: float | None = None,
    price: Price | None = None,
) -> Result:
    """Runs an experiment from its data to its last evaluation.

    Args:
      config: the experiment.
      workdir: a new or empty folder for the records; None makes `runs/NAME/TIME`.
      console: where progress is shown; None picks one for standard output.
      telemetry_s: seconds between readings of the hardware, 0 for none.
      profile: "START:STOP", steps of which JAX's profiler leaves a trace, see `parse_steps`.
      stop_at_top1: ends the run with the first evaluation at or above it (a share); what it took
        is in the summary's `target`.
      price: what the hardware costs, recorded with the run; None if nobody said.

    Raises:
      BadInput: before anything is written.
      Diverged: the loss is no longer finite. This, and whatever else ends the run early, is in
        the run directory's `status` and `reason` before it is raised.
    """
    config.validate()
    check_target(config, stop_at_top1)
    traced_steps = parse_steps(profile)
    with prepared(config, workdir, console) as job:
        if config.epochs * job.feed.steps_per_epoch > _MOST_STEPS:
            raise BadInput(
                f"epochs={config.epochs}: {job.feed.steps_per_epoch} steps each are more than "
                f"{_MOST_STEPS:,} steps; max_steps ends a run earlier"
            )
        check_end(traced_steps, config.num_steps(job.feed.steps_per_epoch), "this run")
        program = job.program
        with recording(
            workdir, config, job.mesh, job.document(), job.console, job.clock, telemetry_s, price
        ) as recorder:
            folder = recorder.folder
            trainer = Trainer(
                program,
                job.feed,
                job.clock,
                recorder.writers,
                job.console,
                measured=recorder.telemetry.measured,
                target=stop_at_top1,
                profiler=Profiler(traced_steps, folder) if traced_steps else None,
            )
            recorder.summarize = trainer.summarize
            tensorboard = None
            if folder:
                columns = trainer.epoch_columns()
                recorder.writers.add(CsvWriter(folder / "epochs.csv", "epoch", columns))
                figures = (program.task.train_figures, program.task.eval_figures)
                tensorboard = TensorBoardWriter(folder, *figures, dataclasses.asdict(config))
                recorder.writers.add(tensorboard)
            trainer.prepare()
            if tensorboard:
                with job.clock.phase("records"), postponed():
                    tensorboard.add_images("train/images", trainer.sample_images(), step=0)
            trainer.train()
        return Result(recorder.summary, recorder.run_dir, trainer.state)


def check_target(config: Config, stop_at_top1: float | None) -> None:
    """Raises BadInput where a run cannot end at a top-1."""
    if stop_at_top1 is None:
        return
    given = f"--stop_at_top1={stop_at_top1:g}"
    if not 0 < stop_at_top1 <= 1:  # written so that nan fails it too
        raise BadInput(f"{given}: must be a share, such as 0.94")
    if config.task != "classification":
        raise BadInput(f"{given}: task={config.task!r} has no top-1; classification has")
    if config.replicas == "independent":
        raise BadInput(
            f"{given} with replicas='independent': its models get there at different times; give "
            "each seed a run (python -m jaxbench.sweep --grid=seed=0,1,2,3,4)"
        )


class Trainer:
    """The state on its way through the epochs, and what was seen on the way.

    `measured(images)` goes round what trains so many of them; an evaluation that reaches `target`
    is the last.
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
    ):
        self.state: TrainState | None = None
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
        self._first_row: Any = None
        self._steps_done = 0
        self._learning_rate: float | None = None
        # Of the present epoch: the numbers of its steps, and their learning rates.
        self._epoch_steps = range(0)
        self._learning_rates_S: Any = None
        self._tabulate_rates = tabulator(program.schedule, feed.steps_per_epoch)
        self._compile_s = 0.0
        self._compile_cache: set[str] = set()
        self._first_step_s: float | None = None
        self._score = f"eval_{self._task.headline}"
        self._epochs: list[dict[str, Any]] = []
        self._invalid: list[str] = []

    def sample_images(self) -> np.ndarray:
        """Returns a few training images as the feed hands them over, uint8 of shape (N, H, W, C).

        Those of a resident feed are cut and mirrored in the step only.
        """
        held = self._first_row if "images" in self._first_row else self._feed.train_data
        images = held["images"].addressable_shards[0].data
        if images.ndim == 5:  # with an axis of devices
            images = images[0]
        return np.asarray(images[:_SAMPLE_IMAGES])

    def train(self) -> None:
        """Trains and evaluates, once all is prepared."""
        for epoch in range(self._num_epochs):
            self._train_and_evaluate_epoch(epoch)
            if self._target is not None and self._epochs[-1][self._score] >= self._target:
                break

    def prepare(self) -> None:
        """Initialises the state and compiles both steps; nothing is trained yet."""
        with self._clock.phase("init"), self._console.phase("initialising the parameters"):
            self.state = self._program.place_train_state()
            wait_until(lambda: all_ready(self.state))
        with self._clock.phase("place_data"):
            self._first_row = next(self._feed.train_rows(0, 1))
            eval_row = next(self._feed.eval_rows())
        self._compile(
            "train_step", self._program.train_step, self._feed.train_data, self._first_row
        )
        self._compile("eval_step", self._program.eval_step, self._feed.eval_data, eval_row)

    def _compile(self, name: str, step: Any, data: Any, row: Any) -> None:
        with self._console.phase(f"compiling {name} for {self._mesh.num_devices} device(s)"):
            record = compile_step(name, step, self.state, data, row, clock=self._clock)
        self._compile_s += record["lower_s"] + record["compile_s"]
        self._compile_cache.add(record["compile_cache"])
        self._write(record)

    def _write(self, record: dict[str, Any]) -> None:
        with self._clock.phase("records"):
            self._writer.write(record)

    def _train_and_evaluate_epoch(self, epoch: int) -> None:
        """Does epoch `epoch` (0 is the first) and writes its record."""
        before_s = self._clock.totals_s()
        num_steps = min(self._feed.steps_per_epoch, self._total_steps - self._steps_done)
        with self._clock.phase("train"):
            trained = self.train_epoch(epoch, num_steps)
        watch = Stopwatch()
        with self._clock.phase("eval"):
            eval_RxM = self._evaluate(epoch)
        eval_time_s = watch.elapsed_s()
        after_s = self._clock.totals_s()
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
            "data_wait_s": after_s["data_wait"] - before_s.get("data_wait", 0.0),
            "eval_time_s": eval_time_s,
            "images": trained.images,
            "images_per_s": images_per_s,
            "images_per_s_per_device": images_per_s and images_per_s / self._mesh.num_devices,
            "mfu": self._utilization(images_per_s)["mfu"] if images_per_s else None,
            "profiled_steps": trained.profiled_steps,
            **self._figures("train_", trained.metrics_RxM, self._task.train_figures),
            **self._figures("eval_", eval_RxM, self._task.eval_figures),
            "eval_count": self._feed.eval_count,
            "learning_rate": self._learning_rate,
            "peak_memory_bytes": peak_memory_bytes(self._mesh.devices),
            "process_memory_bytes": process_memory_bytes(),
            # Since the run's first moment, this evaluation included.
            "elapsed_s": self._clock.wall_s(),
        }
        self._epochs.append(record)
        self._invalid += impossible_epoch(
            record,
            (num_steps - trained.profiled_steps) * self._images_per_step,
            len(self._feed.damaged) * len(self._seeds_R),
        )
        self._write(record)

    def _utilization(self, images_per_s: float) -> dict[str, Any]:
        flops = sum(self._program.forward_macs().values()) * TRAINING_FLOPS_PER_MAC
        return utilization(self._program, images_per_s, flops)

    def _figures(self, prefix: str, sums_RxM: np.ndarray, names: Any) -> dict[str, Any]:
        """Turns metrics into a record's figures: their means over the models.

        Where there are several models, the headline's spread and each one's figures are added.
        """
        figures_R = [self._task.figures(sums_M) for sums_M in sums_RxM]
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
            "peak_memory_bytes",
            "process_memory_bytes",
            "elapsed_s",
        ]

    def train_epoch(self, epoch: int, num_steps: int) -> _Trained:
        """Trains `num_steps` steps, those that are profiled apart from the others."""
        watch = Stopwatch()
        with self._measured(0), self._clock.phase("data_wait"):
            rows = self._train_rows(epoch, num_steps)
            self._learning_rates_S = self._tabulate_rates(epoch * self._feed.steps_per_epoch)
        time_s = watch.elapsed_s()
        timed_RxM, profiled_RxM, profiled_steps = self._zeros(), self._zeros(), 0
        first = self._steps_done + 1
        self._epoch_steps = range(first, first + num_steps)
        traced = self._traced_steps.__contains__
        for profiled, stretch in itertools.groupby(self._epoch_steps, traced):
            steps = list(stretch)
            if profiled:
                profiled_RxM += self._profile_steps(epoch, steps, rows)
                profiled_steps += len(steps)
            else:
                with self._measured(len(steps) * self._images_per_step):
                    watch = Stopwatch()
                    timed_RxM += self._train_steps(epoch, steps, rows)
                    time_s += watch.elapsed_s()
        images = int(timed_RxM[:, COUNT].sum())
        return _Trained(timed_RxM + profiled_RxM, images, time_s, profiled_steps)

    def _train_steps(self, epoch: int, steps: Sequence[int], rows: Iterator[Any]) -> np.ndarray:
        """Trains the next steps; returns their metrics_RxM, summed."""
        watch = Stopwatch()
        interval_watch, interval_start = Stopwatch(), 0
        total_RxM, interval_RxM = self._zeros(), self._zeros()
        for done, metrics_RxM in enumerate(self._run_steps(rows, steps), 1):
            loss = self._count_step(epoch, metrics_RxM)
            total_RxM += metrics_RxM
            interval_RxM += metrics_RxM
            if self._steps_done % self._config.log_every_steps == 0 or done == len(steps):
                mean_step_s = interval_watch.elapsed_s() / (done - interval_start)
                self._write_step(epoch, interval_RxM, mean_step_s)
                interval_watch, interval_start = Stopwatch(), done
                interval_RxM = self._zeros()
            step_time_s = watch.elapsed_s() / done
            self._console.progress(
                f"epoch {epoch + 1}/{self._num_epochs}",
                self._steps_done + 1 - self._epoch_steps.start,
                len(self._epoch_steps),
                f"{self._images_per_step / step_time_s:,.1f} images/s  loss {loss:.4f}"
                f"  {duration(self._remaining_s(step_time_s))} left",
            )
        # The results of a step and its new state become ready together, on each device.
        wait_until(lambda: all_ready(self.state))
        return total_RxM

    def _profile_steps(self, epoch: int, steps: Sequence[int], rows: Iterator[Any]) -> np.ndarray:
        """Trains the next steps under JAX's profiler; returns their metrics_RxM, summed.

        What that takes, waiting for data included, is in the phase `profile` and in no other
        figure of time. It begins and ends with nothing queued on the devices.
        """

        def train_step(row: Any) -> jax.Array:
            self.state, metrics = self._program.train_step(self.state, self._feed.train_data, row)
            return metrics

        what = f"profiling steps {steps[0]} to {steps[-1]}"
        with self._clock.phase("profile"), self._console.phase(what):
            wait_until(lambda: all_ready(self.state))
            results = self._profiler.trace(steps, rows, train_step)
            wait_until(lambda: all_ready(self.state))
        total_RxM = self._zeros()
        for metrics_RxM in self._per_model(results):
            self._count_step(epoch, metrics_RxM)
            total_RxM += metrics_RxM
        self._write_step(epoch, total_RxM, None)
        return total_RxM

    def _count_step(self, epoch: int, metrics_RxM: np.ndarray) -> float:
        """Takes note that one more step has been done; returns its mean loss."""
        self._steps_done += 1
        place = self._epoch_steps.index(self._steps_done)
        self._learning_rate = float(self._learning_rates_S[place])
        return self._check_losses("training", metrics_RxM, epoch)

    def _train_rows(self, epoch: int, num_steps: int) -> Iterator[Any]:
        if self._first_row is None:
            return self._feed.train_rows(epoch, num_steps)
        # Compiling asked for the very first one already.
        first, self._first_row = self._first_row, None
        return itertools.chain([first], self._feed.train_rows(epoch, num_steps - 1, first_step=1))

    def _write_step(self, epoch: int, sums_RxM: np.ndarray, mean_step_s: float | None) -> None:
        """Writes the record of some steps whose results have just arrived.

        Those that were profiled have no time.
        """
        record = {
            "kind": "step",
            "step": self._steps_done,
            "epoch": epoch + 1,
            **self._figures("", sums_RxM, self._task.train_figures),
            "learning_rate": self._learning_rate,
            "elapsed_s": self._clock.wall_s(),
        }
        if mean_step_s is None:
            record["profiled"] = True
        elif self._config.step_log:  # else results arrive together, and their times tell nothing
            record["step_time_s"] = mean_step_s
            record["images_per_s"] = self._images_per_step / mean_step_s
            self._console.say(
                f"step {record['step']}, loss = {record['loss']:.2f} "
                f"({record['images_per_s']:.1f} examples/sec; {mean_step_s:.3f} sec/batch)"
            )
        self._write(record)

    def _zeros(self) -> np.ndarray:
        return np.zeros((len(self._seeds_R), self._task.num_metrics))

    @property
    def _images_per_step(self) -> int:
        return self._config.batch_size * len(self._seeds_R)

    def _check_losses(self, what: str, metrics_RxM: np.ndarray, epoch: int) -> float:
        """Returns the mean loss; raises Diverged where no model has a finite one any more."""
        losses_R = metrics_RxM[:, LOSS_SUM] / metrics_RxM[:, COUNT]
        if not np.isfinite(losses_R).any():
            raise Diverged(
                f"the {what} loss is {losses_R[0]} at step {self._steps_done}, epoch {epoch + 1}"
            )
        return float(np.mean(losses_R))

    def _run_steps(self, rows: Iterator[Any], steps: Sequence[int]) -> Iterator[np.ndarray]:
        """Queues the steps and yields each one's metrics_RxM once it has been computed.

        A step's result comes out some steps after it was queued, so that neither the host nor
        the devices wait for the other.
        """
        inflight = InFlight(one_by_one=self._config.step_log)
        for number in steps:
            with self._clock.phase("data_wait"):
                row = next(rows)
            watch = Stopwatch()
            # The old state is donated: from here on only the new one may be read.
            self.state, metrics = self._program.train_step(self.state, self._feed.train_data, row)
            yield from self._per_model(inflight.push(metrics))
            if number == 1:
                yield from self._per_model(inflight.drain())
                self._first_step_s = watch.elapsed_s()
        yield from self._per_model(inflight.drain())

    def _per_model(self, results: Any) -> Iterator[np.ndarray]:
        """Each metrics_M of one model as metrics_1xM; those of several are metrics_RxM already."""
        return (metrics.reshape(len(self._seeds_R), -1) for metrics in results)

    def _evaluate(self, epoch: int) -> np.ndarray:
        """Evaluates every test example once; returns their metrics_RxM, summed."""
        total_RxM = self._zeros()
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
        inflight = InFlight()
        for row in self._feed.eval_rows():
            metrics = self._program.eval_step(self.state, self._feed.eval_data, row)
            yield from self._per_model(inflight.push(metrics))
        yield from self._per_model(inflight.drain())

    def _remaining_s(self, step_time_s: float) -> float:
        """The training steps and evaluations to come, at the present pace."""
        if self._epochs:
            eval_time_s = self._epochs[-1]["eval_time_s"]
        else:
            # Not seen yet; a forward pass is about a third of a training step.
            images_per_s = self._images_per_step / step_time_s
            eval_time_s = len(self._seeds_R) * self._feed.num_eval / (3 * images_per_s)
        evaluations = self._num_epochs - len(self._epochs)
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
            # Compiling, reading and starting left out, evaluations not.
            "epochs_time_s": reached and sum(record["epoch_time_s"] for record in self._epochs),
        }

    def summarize(self, status: str) -> dict[str, Any]:
        """Returns the summary record, of however much has been done."""
        times_s = {
            record["epoch"]: record["epoch_time_s"] for record in self._epochs if record["complete"]
        }
        first_epoch_s = times_s.pop(1, None)
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
            # Neither holds compilation; a published first epoch usually does.
            "first_epoch_s": first_epoch_s,
            "first_epoch_with_compile_s": first_epoch_s and first_epoch_s + self._compile_s,
            "median_epoch_s": statistics.median(times_s.values()) if times_s else None,
            "images_per_s": images / train_time_s if images else None,
            "images_per_s_per_device": (
                images / train_time_s / self._mesh.num_devices if images else None
            ),
            "peak_memory_bytes": peak_memory_bytes(self._mesh.devices),
            "host_peak_memory_bytes": host_peak_memory_bytes(),
        }
        if images:
            summary |= self._utilization(summary["images_per_s"])
        if self._epochs:
            score = self._score
            best = max(self._epochs, key=lambda record: record[score])
            last = self._epochs[-1]
            summary |= {
                key: value
                for key, value in last.items()
                if key.startswith("eval_") and key != "eval_time_s"
            }
            summary |= {f"best_{score}": best[score], "best_epoch": best["epoch"]}
            if len(self._seeds_R) > 1:
                summary["diverged_seeds"] = [
                    model["seed"]
                    for model in last["eval_models"]
                    if not math.isfinite(model["loss"])
                ]
        if self._target is not None:
            summary["target"] = self._describe_target()
        if self._profiler:
            summary["profile"] = self._profiler.summary()
        if self._feed.damaged:
            summary["damaged"] = self._feed.damaged
        # The first epoch is warm-up.
        later_s = [
            record["train_time_s"]
            for record in self._epochs
            if record["complete"] and record["epoch"] > 1
        ]
        summary["warnings"] = slowed_down("epochs", later_s)
        summary["phases_s"] = self._clock.totals_s()
        summary["wall_s"] = self._clock.wall_s()
        summary["invalid"] = self._invalid + impossible_total(self._epochs, summary["wall_s"])
        return summary
