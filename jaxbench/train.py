"""Trains an experiment, evaluates it after every epoch and records what the devices did."""

import contextlib
import dataclasses
import math
import os
import statistics
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxbench.clock import Clock, Stopwatch, now, wait_until
from jaxbench.config import Config
from jaxbench.data.dataset import Dataset
from jaxbench.data.resident import ResidentFeed
from jaxbench.data.sources import load_dataset
from jaxbench.devices import DataMesh, all_ready, create_mesh, peak_memory_bytes
from jaxbench.environment import describe_environment, host_peak_memory_bytes
from jaxbench.errors import BadInput, Diverged, Terminated
from jaxbench.flops import TRAINING_FLOPS_PER_MAC
from jaxbench.inflight import InFlight
from jaxbench.optim import tabulator
from jaxbench.precision import get_precision
from jaxbench.program import Program, build_program, compile_step
from jaxbench.rundir import RunDir, check_workdir, create_run_dir
from jaxbench.step import CORRECT, CORRECT_TOP5, COUNT, LOSS_SUM, NUM_METRICS, TrainState
from jaxbench.writers import Writer, Writers
from jaxbench.writers.console import Console, create_console, duration
from jaxbench.writers.files import CsvWriter, JsonlWriter
from jaxbench.writers.tensorboard import TensorBoardWriter

# Steps are counted in int32 on the devices.
_MOST_STEPS = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Result:
    """What `train_and_evaluate` hands back: the summary record, its folder, the final state."""

    summary: dict[str, Any]
    run_dir: RunDir
    state: TrainState


def train_and_evaluate(
    config: Config, workdir: str | None = None, console: Console | None = None
) -> Result:
    """Runs an experiment from its data to its last evaluation.

    Args:
      config: the experiment.
      workdir: a new or empty folder for the records; None makes `runs/NAME/TIME`.
      console: where progress is shown; None picks one for standard output.

    Raises:
      BadInput: before anything is written.
      Diverged: the loss is no longer finite. This, and whatever else ends the run early, is in
        the run directory's `status` and `reason` before it is raised.
    """
    config.validate()
    check_workdir(workdir, config.name)
    clock = Clock()
    with contextlib.ExitStack() as stack:
        stack.enter_context(get_precision(config.precision).enabled())
        console = console or create_console()
        stack.callback(console.close)
        mesh = create_mesh(
            config.num_devices, config.batch_size, config.parallelism, config.accumulate_steps
        )
        console.say(_headline(config, mesh))
        with clock.phase("read_data"), console.phase(f"reading {config.data.source} data"):
            dataset = load_dataset(config, console.say)
        with clock.phase("place_data"):
            feed = ResidentFeed(
                dataset,
                mesh,
                batch_size=config.batch_size,
                eval_batch_size=config.global_eval_batch,
                seed=config.seed,
                param_dtype=get_precision(config.precision).param_dtype,
            )
        if config.epochs * feed.steps_per_epoch > _MOST_STEPS:
            raise BadInput(
                f"epochs={config.epochs}: {feed.steps_per_epoch} steps each are more than "
                f"{_MOST_STEPS:,} steps; max_steps ends a run earlier"
            )
        program = build_program(config, mesh, feed.steps_per_epoch)
        program.check()
        run_dir = create_run_dir(workdir, config.name, _document(program, dataset, feed))
        writers = Writers()
        trainer = Trainer(program, feed, clock, writers, console)
        try:
            console.say(f"records in {run_dir.path}")
            for kind in (JsonlWriter, CsvWriter, TensorBoardWriter):
                writers.add(kind(run_dir.path))
            writers.add(console)
            trainer.train()
        except BaseException as error:
            # Whatever else fails now must not hide why the run ended, nor keep it untold.
            with contextlib.suppress(Exception):
                _finish(run_dir, trainer, writers, *_classify(error))
            with contextlib.suppress(Exception):
                writers.close()
            raise
        summary = _finish(run_dir, trainer, writers, "done", None)
        writers.close()
        return Result(summary, run_dir, trainer.state)


class Trainer:
    """The state on its way through the epochs, and what was seen on the way."""

    def __init__(
        self, program: Program, feed: ResidentFeed, clock: Clock, writer: Writer, console: Console
    ):
        self.state: TrainState | None = None
        self._program = program
        self._config = program.config
        self._mesh = program.mesh
        self._feed = feed
        self._clock = clock
        self._writer = writer
        self._console = console

        steps = self._config.epochs * feed.steps_per_epoch
        self._total_steps = min(steps, self._config.max_steps or steps)
        self._num_epochs = math.ceil(self._total_steps / feed.steps_per_epoch)
        self._steps_done = 0
        self._learning_rate: float | None = None
        self._tabulate_rates = tabulator(program.schedule, feed.steps_per_epoch)
        self._compile_s = 0.0
        self._first_step_s: float | None = None
        self._epochs: list[dict[str, Any]] = []

    def train(self) -> None:
        """Prepares, trains and evaluates."""
        self.prepare()
        for epoch in range(self._num_epochs):
            self._train_and_evaluate_epoch(epoch)

    def prepare(self) -> None:
        """Initialises the state and compiles both steps; nothing is trained yet."""
        with self._clock.phase("init"), self._console.phase("initialising the parameters"):
            self.state = self._mesh.replicate(self._program.create_train_state())
            wait_until(lambda: all_ready(self.state))
        self._compile(
            "train_step", self._program.train_step, self._feed.train_data, self._feed.train_order(0)
        )
        self._compile(
            "eval_step", self._program.eval_step, self._feed.eval_data, self._feed.eval_orders[0]
        )

    def _compile(self, name: str, step: Any, data: Any, order: Any) -> None:
        with self._console.phase(f"compiling {name} for {self._mesh.num_devices} device(s)"):
            record = compile_step(name, step, self.state, data, order, clock=self._clock)
        self._compile_s += record["lower_s"] + record["compile_s"]
        self._write(record)

    def _write(self, record: dict[str, Any]) -> None:
        with self._clock.phase("records"):
            self._writer.write(record)

    def _train_and_evaluate_epoch(self, epoch: int) -> None:
        """Does epoch `epoch` (0 is the first) and writes its record."""
        watch = Stopwatch()
        before_s = self._clock.totals_s()
        num_steps = min(self._feed.steps_per_epoch, self._total_steps - self._steps_done)
        with self._clock.phase("train"):
            train_M = self.train_epoch(epoch, num_steps)
        train_time_s = watch.elapsed_s()
        with self._clock.phase("eval"):
            eval_M = self._evaluate(epoch)
        epoch_time_s = watch.elapsed_s()
        after_s = self._clock.totals_s()
        images_per_s = train_M[COUNT] / train_time_s
        record = {
            "kind": "epoch",
            "epoch": epoch + 1,
            "epochs": self._num_epochs,
            "step": self._steps_done,
            # False where max_steps cut it short: its time is no epoch's time.
            "complete": num_steps == self._feed.steps_per_epoch,
            "epoch_time_s": epoch_time_s,
            "train_time_s": train_time_s,
            "data_wait_s": after_s["data_wait"] - before_s.get("data_wait", 0.0),
            "eval_time_s": epoch_time_s - train_time_s,
            "images": int(train_M[COUNT]),
            "images_per_s": images_per_s,
            "images_per_s_per_device": images_per_s / self._mesh.num_devices,
            "train_loss": train_M[LOSS_SUM] / train_M[COUNT],
            "train_top1": train_M[CORRECT] / train_M[COUNT],
            "eval_loss": eval_M[LOSS_SUM] / eval_M[COUNT],
            "eval_top1": eval_M[CORRECT] / eval_M[COUNT],
            "eval_top5": eval_M[CORRECT_TOP5] / eval_M[COUNT],
            "eval_count": int(eval_M[COUNT]),
            "learning_rate": self._learning_rate,
            "peak_memory_bytes": peak_memory_bytes(self._mesh.devices),
        }
        self._epochs.append(record)
        self._write(record)

    def train_epoch(self, epoch: int, num_steps: int) -> np.ndarray:
        """Trains `num_steps` steps; returns their metrics_M, summed."""
        watch = Stopwatch()
        epoch_M = np.zeros(NUM_METRICS)
        interval_M = np.zeros(NUM_METRICS)
        with self._clock.phase("data_wait"):
            order_DxSxB = self._feed.train_order(epoch)
            learning_rates_S = self._tabulate_rates(epoch * self._feed.steps_per_epoch)
        for done, metrics_M in enumerate(self._run_steps(order_DxSxB, num_steps), 1):
            self._steps_done += 1
            self._learning_rate = float(learning_rates_S[done - 1])
            epoch_M += metrics_M
            interval_M += metrics_M
            loss = metrics_M[LOSS_SUM] / metrics_M[COUNT]
            if not math.isfinite(loss):
                raise Diverged(
                    f"the training loss is {loss} at step {self._steps_done}, epoch {epoch + 1}"
                )
            if self._steps_done % self._config.log_every_steps == 0 or done == num_steps:
                self._write(
                    {
                        "kind": "step",
                        "step": self._steps_done,
                        "epoch": epoch + 1,
                        "loss": interval_M[LOSS_SUM] / interval_M[COUNT],
                        "top1": interval_M[CORRECT] / interval_M[COUNT],
                        "learning_rate": self._learning_rate,
                        "elapsed_s": self._clock.wall_s(),
                    }
                )
                interval_M = np.zeros(NUM_METRICS)
            step_time_s = watch.elapsed_s() / done
            self._console.progress(
                f"epoch {epoch + 1}/{self._num_epochs}",
                done,
                num_steps,
                f"{self._config.batch_size / step_time_s:,.1f} images/s  loss {loss:.4f}"
                f"  {duration(self._remaining_s(step_time_s))} left",
            )
        # The results of a step and its new state become ready together, on each device.
        wait_until(lambda: all_ready(self.state))
        return epoch_M

    def _run_steps(self, order_DxSxB: Any, num_steps: int) -> Iterator[np.ndarray]:
        """Queues the steps and yields each one's metrics_M once it has been computed.

        A step's result comes out some steps after it was queued, so that neither the host nor
        the devices wait for the other.
        """
        inflight = InFlight()
        for _ in range(num_steps):
            watch = Stopwatch()
            # The old state is donated: from here on only the new one may be read.
            self.state, metrics_M = self._program.train_step(
                self.state, self._feed.train_data, order_DxSxB
            )
            yield from inflight.push(metrics_M)
            if self._first_step_s is None:
                yield from inflight.drain()
                self._first_step_s = watch.elapsed_s()
        yield from inflight.drain()

    def _evaluate(self, epoch: int) -> np.ndarray:
        """Evaluates every test example once; returns their metrics_M, summed."""
        total_M = np.zeros(NUM_METRICS)
        results = self._run_eval_steps()
        for done, metrics_M in enumerate(results, 1):
            total_M += metrics_M
            self._console.progress(
                f"evaluating epoch {epoch + 1}/{self._num_epochs}", done, self._feed.eval_steps, ""
            )
        if not math.isfinite(total_M[LOSS_SUM]):
            # The last update of all may have done it, after the last training loss was seen.
            raise Diverged(
                f"the evaluation loss is {total_M[LOSS_SUM]} after step {self._steps_done}, "
                f"epoch {epoch + 1}"
            )
        if total_M[COUNT] != self._feed.num_eval:
            raise AssertionError(
                f"evaluated {total_M[COUNT]:.0f} examples, the split has {self._feed.num_eval}"
            )
        return total_M

    def _run_eval_steps(self) -> Iterator[np.ndarray]:
        inflight = InFlight()
        for order_Dx1xB in self._feed.eval_orders:
            metrics_M = self._program.eval_step(self.state, self._feed.eval_data, order_Dx1xB)
            yield from inflight.push(metrics_M)
        yield from inflight.drain()

    def _remaining_s(self, step_time_s: float) -> float:
        """The training steps and evaluations to come, at the present pace."""
        if self._epochs:
            eval_time_s = self._epochs[-1]["eval_time_s"]
        else:
            # Not seen yet; a forward pass is about a third of a training step.
            images_per_s = self._config.batch_size / step_time_s
            eval_time_s = self._feed.num_eval / (3 * images_per_s)
        evaluations = self._num_epochs - len(self._epochs)
        return (self._total_steps - self._steps_done) * step_time_s + evaluations * eval_time_s

    def summarize(self, status: str) -> dict[str, Any]:
        """Returns the summary record, of however much has been done."""
        complete = [record for record in self._epochs if record["complete"]]
        times_s = [record["epoch_time_s"] for record in complete]
        train_time_s = sum(record["train_time_s"] for record in self._epochs)
        images = sum(record["images"] for record in self._epochs)
        summary = {
            "kind": "summary",
            "status": status,
            "steps": self._steps_done,
            "epochs_done": len(self._epochs),
            "compile_s": self._compile_s,
            "first_step_s": self._first_step_s,
            # Neither holds compilation; a published first epoch usually does.
            "first_epoch_s": times_s[0] if times_s else None,
            "first_epoch_with_compile_s": times_s[0] + self._compile_s if times_s else None,
            "median_epoch_s": statistics.median(times_s[1:]) if times_s[1:] else None,
            "images_per_s": images / train_time_s if images else None,
            "images_per_s_per_device": (
                images / train_time_s / self._mesh.num_devices if images else None
            ),
            "peak_memory_bytes": peak_memory_bytes(self._mesh.devices),
            "host_peak_memory_bytes": host_peak_memory_bytes(),
        }
        if self._epochs:
            best = max(self._epochs, key=lambda record: record["eval_top1"])
            last = self._epochs[-1]
            summary |= {
                key: last[key] for key in ("eval_loss", "eval_top1", "eval_top5", "eval_count")
            }
            summary |= {"best_eval_top1": best["eval_top1"], "best_epoch": best["epoch"]}
        summary["phases_s"] = self._clock.totals_s()
        summary["wall_s"] = sum(summary["phases_s"].values())
        return summary


def _finish(
    run_dir: RunDir, trainer: Trainer, writer: Writer, status: str, reason: str | None
) -> dict[str, Any]:
    """Records how the run ended, its status before all else; returns the summary record."""
    summary = trainer.summarize(status)
    run_dir.update(status=status, reason=reason, finished_at=now().isoformat(), summary=summary)
    writer.write(summary)
    return summary


def _classify(error: BaseException) -> tuple[str, str]:
    """Returns the run's status and the reason in words."""
    if isinstance(error, KeyboardInterrupt):
        return "failed", "interrupted (Ctrl-C)"
    if isinstance(error, Terminated):
        return "preempted", "terminated (SIGTERM)"
    if isinstance(error, Diverged):
        return "diverged", str(error)
    message = f"{type(error).__name__}: {str(error).strip()}"
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in message:
        return "oom", message
    return "failed", message


def _headline(config: Config, mesh: DataMesh) -> str:
    return (
        f"{config.name or 'experiment'} on {mesh.num_devices} x {mesh.devices[0].device_kind}: "
        f"global batch {config.batch_size}, {config.precision}, {config.parallelism}, "
        f"batch norm {config.batch_norm}, {config.epochs} epoch(s), seed {config.seed}"
    )


def _document(program: Program, dataset: Dataset, feed: ResidentFeed) -> dict[str, Any]:
    """What run.json says before the run has begun."""
    config, mesh = program.config, program.mesh
    macs = sum(program.forward_macs().values())
    share = config.batch_size // mesh.num_devices
    seen = config.batch_size if config.batch_norm == "sync" else share
    return {
        "experiment": config.name,
        "config": dataclasses.asdict(config),
        "model": type(config.model).__name__.removesuffix("Config"),
        "parameters": program.num_parameters(),
        "forward_macs_per_image": macs,
        "training_flops_per_image": macs * TRAINING_FLOPS_PER_MAC,
        "data": {
            "description": dataset.description,
            "feed": feed.name,
            "train_examples": len(dataset.train),
            "eval_examples": len(dataset.eval),
            "steps_per_epoch": feed.steps_per_epoch,
            "resident_bytes_per_device": feed.bytes_per_device,
        },
        "batch_per_device": share,
        # How many images a batch-norm layer takes its statistics from.
        "batch_norm_examples": seen // config.accumulate_steps,
        "command_line": list(sys.orig_argv),
        "working_directory": os.getcwd(),
        "pid": os.getpid(),
        "environment": describe_environment(mesh.devices),
    }
