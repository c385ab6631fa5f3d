"""Queue steps on the devices, time them, and count their metrics as they arrive.

A step's metrics arrive some steps after it was queued, so that neither the host nor the devices
wait for the other.
"""

import collections
import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxbench.clock import Stopwatch, duration, wait_until
from jaxbench.parallel.mesh import all_ready
from jaxbench.records.writers.rows import rate_in_words
from jaxbench.training.records import write_step_record
from jaxbench.training.run import TrainRun

# Deep enough that the device never waits for the host, shallow enough that the console is recent
# and that few steps' outputs are alive at once.
_DEPTH = 16
# Fewer of slow steps, because the end of a run waits for all that are queued.
_DEPTH_OF_SLOW = 3
# Polling answers Ctrl-C at once, but on a CPU it takes processor time from the step (8 % of
# quickstart's). Waits shorter than this block in the runtime instead.
_BLOCKING_WAIT_S = 0.5
# Calls queued on simulated devices.
_MAX_SIMULATED_CALLS = 4


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


class StepMeter:
    """Add steps and their time to the metrics of the current epoch, and write their records."""

    def __init__(self, run: TrainRun):
        self._run = run
        # One for the whole run: it knows from earlier steps how long a step takes.
        self._queue = MetricsQueue(one_by_one=run.program.config.step_log)
        self._windows = contextlib.ExitStack()
        self._last_step = 0
        self.is_paused = True

    @contextlib.contextmanager
    def timed(self, steps: Sequence[int] = ()) -> Iterator[None]:
        """Count the time inside the `with` as the epoch's; no step may be queued at its ends.

        The last of these steps gets a record in any case.
        """
        self._last_step = steps[-1] if steps else 0
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
        epoch.time_s += self._watch.elapsed_s()
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
            log_every_steps = run.program.config.log_every_steps
            if progress.step % log_every_steps == 0 or progress.step == self._last_step:
                write_step_record(run)
            self._interval_watch = Stopwatch()
            step_time_s = self._watch.elapsed_s() / (epoch.steps - self._steps_before)
            _show_progress(run, loss, step_time_s)


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
    evaluations_s = [epoch.eval_time_s for epoch in run.progress.epochs if epoch.eval_time_s]
    left_s = (plan.total_steps - run.progress.step) * step_time_s
    left_s += plan.num_evaluations(len(run.progress.epochs)) * sum(evaluations_s[-1:])
    rate = rate_in_words(
        layout.images_per_step / step_time_s, run.program.config.data.sequence_length
    )
    run.console.progress(
        f"epoch {epoch.epoch + 1}/{plan.num_epochs}",
        epoch.steps,
        len(plan.steps(epoch.epoch)),
        f"{rate}  loss {loss:.4f}  {duration(left_s)} left",
    )
