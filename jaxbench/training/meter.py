"""Time the training steps, and take their metrics as they arrive.

A step's metrics arrive some steps after it was queued, so that neither the host nor the devices
wait for the other.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from jaxbench.clock import Stopwatch, duration, wait_until
from jaxbench.parallel.mesh import all_ready
from jaxbench.records.writers.rows import rate_in_words
from jaxbench.training.metric_queue import MetricsQueue
from jaxbench.training.records import write_step_record
from jaxbench.training.run import TrainRun


class StepMeter:
    """Add steps to the metrics of the epoch under way, and write their records."""

    def __init__(self, run: TrainRun):
        self._run = run
        # One for the whole run: it knows from earlier steps how long a step takes.
        self._queue = MetricsQueue(one_by_one=run.program.config.step_log)
        self._windows = contextlib.ExitStack()
        self._last_step = 0

    @contextlib.contextmanager
    def timed(self, last_step: int = 0) -> Iterator[None]:
        """Count the time inside the `with` as the epoch's; at its ends no step may be queued.

        The last step gets a record in any case.
        """
        self._last_step = last_step
        self._start()
        try:
            yield
        finally:
            self._stop()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time inside the `with`; no step may be queued."""
        self._stop()
        try:
            yield
        finally:
            self._start()

    def _start(self) -> None:
        epoch = self._run.progress.epoch_metrics
        images, self._steps_before = epoch.images, epoch.steps
        self._waited_s = self._data_wait_s()
        self._watch, self._interval_watch = Stopwatch(), Stopwatch()
        self._windows.enter_context(self._run.telemetry.measured(lambda: epoch.images - images))

    def _stop(self) -> None:
        self._windows.close()
        epoch = self._run.progress.epoch_metrics
        epoch.time_s += self._watch.elapsed_s()
        epoch.data_wait_s += self._data_wait_s() - self._waited_s

    def _data_wait_s(self) -> float:
        return self._run.clock.totals_s().get("data_wait", 0.0)

    def push(self, metrics: jax.Array) -> None:
        """Queue the metrics of a step; take those that have arrived."""
        self._take(self._queue.push(metrics))

    def drain(self, state: Any) -> None:
        """Take the metrics of all steps; return when none is queued on the devices."""
        self._take(self._queue.drain())
        # A step's metrics and its new state become ready together, on each device.
        wait_until(lambda: all_ready(state))

    def _take(self, results: Iterable[np.ndarray]) -> None:
        run, epoch = self._run, self._run.progress.epoch_metrics
        for packed in results:
            metrics = run.program.train_sums(packed)
            loss = count_step(run, metrics)
            epoch.images += int(metrics["count"].sum())
            epoch.interval_time_s += self._interval_watch.elapsed_s()
            step = run.progress.step
            if step % run.program.config.log_every_steps == 0 or step == self._last_step:
                write_step_record(run)
            self._interval_watch = Stopwatch()
            steps = epoch.steps - self._steps_before
            _show_progress(run, loss, step_time_s=self._watch.elapsed_s() / steps)


def count_step(run: TrainRun, metrics: Mapping[str, np.ndarray]) -> float:
    """Count a step whose metrics have arrived; return its mean loss over the models."""
    progress = run.progress
    progress.step += 1
    progress.learning_rate = float(np.mean(metrics["learning_rate"], dtype=np.float64))
    run.loss_scales.update(progress.step, metrics)
    progress.epoch_metrics.add(metrics)
    return run.check_losses("training", metrics)


def _show_progress(run: TrainRun, loss: float, step_time_s: float) -> None:
    """Show how far the epoch has come, the rate, the last loss and the time left."""
    epoch, images = run.progress.epoch_metrics, run.program.layout.images_per_step
    rate = rate_in_words(images / step_time_s, run.program.config.data.sequence_length)
    run.console.progress(
        f"epoch {epoch.epoch + 1}/{run.plan.num_epochs}",
        epoch.steps,
        len(run.plan.steps(epoch.epoch)),
        f"{rate}  loss {loss:.4f}  {duration(_remaining_s(run, step_time_s))} left",
    )


def _remaining_s(run: TrainRun, step_time_s: float) -> float:
    """Estimate the seconds of the steps and evaluations that are left, at the present rate."""
    epochs, plan, layout = run.progress.epochs, run.plan, run.program.layout
    evaluated = [epoch for epoch in epochs if epoch.eval_count is not None]
    if evaluated:
        eval_time_s = evaluated[-1].eval_time_s
    else:
        # None so far; a forward pass takes about a third of a training step.
        eval_images = layout.num_models * run.feed.num_eval
        eval_time_s = eval_images * step_time_s / layout.images_per_step / 3
    steps = plan.total_steps - run.progress.step
    return steps * step_time_s + plan.num_evaluations(len(epochs)) * eval_time_s
