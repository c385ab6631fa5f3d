"""Windows of training steps: queueing the steps, waiting for them, rates. Letters: R rounds."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxbench.analysis.rate import estimate
from jaxbench.analysis.statistics import autocorrelation, dependent, effective_size, held_up
from jaxbench.clock import Stopwatch
from jaxbench.errors import Diverged
from jaxbench.microbench.interleaved import Interleaved
from jaxbench.modes.runner import PreparedRun
from jaxbench.training.loss_scale import LOWEST_SCALE, describe_scales
from jaxbench.training.run import DispatchLimiter

# More batches than are ever taken: epoch after epoch, as training reads them.
ENDLESS = 2**40


def wait_for_steps(state: Any, metrics: Mapping[str, np.ndarray]) -> tuple[float, int]:
    """Wait for the last step; return its mean loss over the models, and the images it counted.

    Under fp16 a skipped step may have no finite loss; it does the same work as any other.

    Args:
      state: of the last step.
      metrics: of the last step, see `Network.unpack_train_sums`.

    Raises:
      Diverged: the loss is not finite; under fp16, a model's steps were skipped down to its
        lowest scale.
    """
    jax.block_until_ready(state)
    loss = float(np.mean(metrics["loss"] / metrics["count"]))
    lost, because = not math.isfinite(loss), ""
    if "loss_scale" in metrics:
        lost = metrics["loss_scale"].min() <= LOWEST_SCALE
        because = " and the gradients overflow float16 at every loss scale down to 1"
    if lost:
        raise Diverged(f"the training loss is {loss}{because}: rates of such steps mean nothing")
    return loss, round(float(metrics["count"].sum()))


class Stepper:
    """Queue training steps, one after another, on a state that only the stepper holds.

    Attributes:
      state, metrics: of the last queued step.
      losses: of the last step before each `wait`.
      images_counted: of the last step before the last `wait`.
      loss_scaling: the loss scale and the steps skipped, for a summary; {} without fp16.
    """

    def __init__(self, setup: PreparedRun, state: Any):
        self.state, self.metrics = state, None
        self.losses: list[float] = []
        self.images_counted: int | None = None
        self.loss_scaling: dict[str, Any] = {}
        self._data, self._network = setup.feed.train_data, setup.network
        self._limiter = DispatchLimiter()

    def queue(self, step: Callable, batch: Any) -> Any:
        """Queue one call of a training step; return its metrics, which are not ready yet."""
        self.state, self.metrics = step(self.state, self._data, batch)
        self._limiter.add(self.metrics)
        return self.metrics

    def wait(self) -> None:
        """Wait for everything that has been queued, as `wait_for_steps` does."""
        metrics = self._network.unpack_train_sums(self.metrics)
        loss, self.images_counted = wait_for_steps(self.state, metrics)
        self.losses.append(loss)
        if self._network.precision.scales_loss:
            self.loss_scaling = describe_scales(metrics)


class StepWindows(Interleaved):
    """Windows of calls of one training step.

    Attributes:
      batches: the batch of each call.
      images_per_step: over all devices and models.
      steps: taken so far, in and between windows.
      sync_residual_s: how long work continued after the windows: not, if they waited for it.
    """

    def __init__(
        self,
        name: str,
        setup: PreparedRun,
        stepper: Stepper,
        window_s: float,
        step: Callable,
        batches: Iterator[Any],
    ):
        super().__init__(name, window_s)
        self.setup, self.stepper = setup, stepper
        self.step, self.batches = step, batches
        self.images_per_step = setup.program.layout.images_per_step
        self.steps, self.sync_residual_s = 0, 0.0

    @property
    def steps_per_window(self) -> int:
        return self.warmup.calls_per_window

    @property
    def flops_per_image(self) -> int:
        return self.setup.network.analysis.training_flops

    def run(self, calls: int) -> None:
        for _ in range(calls):
            self.stepper.queue(self.step, next(self.batches))
        self.steps += calls
        self.stepper.wait()

    def measure(self) -> None:
        super().measure()
        watch = Stopwatch()
        jax.block_until_ready(self.results())
        self.sync_residual_s += watch.elapsed_s()

    def results(self) -> Any:
        """Return what is ready once every call has ended."""
        return self.stepper.state, self.stepper.metrics

    def describe_steps(self) -> dict[str, Any]:
        """Return the fields that the records of all stages share; no rate from a single window."""
        config = self.setup.config
        fields = {
            "precision": config.precision,
            "num_devices": self.setup.mesh.num_devices,
            "batch_size": config.batch_size,
            "warmup_steps": self.warmup and self.warmup.calls,
            "warmup_settled": self.warmup and self.warmup.settled,
        }
        if len(self.windows_s) < 2:
            return fields
        rates = describe_windows(self.images_per_step * self.steps_per_window, self.windows_s)
        rate = rates["images_per_s"]
        fields |= rates | self.setup.network.analysis.utilization(rate, self.flops_per_image)
        step_s = self.images_per_step / rate
        return fields | {"step_s": step_s, "steps_per_window": self.steps_per_window}


def describe_windows(images: float, windows_s: Sequence[float]) -> dict[str, Any]:
    """Return the rate of windows that hold this many images each, and its spread."""
    rates_R = [images / window_s for window_s in windows_s]
    rate = estimate(rates_R)
    spread = statistics.stdev(rates_R)
    return rate.fields("images_per_s") | {
        # Rates over equal work average harmonically.
        "images_per_s_mean": statistics.harmonic_mean(rates_R),
        "images_per_s_standard_error": spread / math.sqrt(effective_size(rates_R)),
        "autocorrelation": autocorrelation(rates_R),
        "jitter": 1.4826 * statistics.median(abs(r - rate.value) for r in rates_R) / rate.value,
        "windows_s": list(windows_s),
    }


def window_warnings(name: str, windows_s: Sequence[float]) -> list[str]:
    """Return the warnings about windows that depend on one another, or that were held up."""
    numbered = dict(enumerate(windows_s, 1))
    return [*dependent(f"{name}: windows", windows_s), *held_up(f"{name}: window", numbered)]


def falling_loss_warnings(losses: Sequence[float], name: str = "") -> list[str]:
    """Return the warning about steps that do not train, from their windows' losses in order."""
    # Under fp16 the first steps may be skipped ones.
    first = next(filter(math.isfinite, losses), math.nan)
    if len(losses) < 2 or losses[-1] < first:
        return []
    return [
        f"{name}{': ' if name else ''}the loss did not fall ({first:.4f} to {losses[-1]:.4f}): "
        "too few steps, or a step that does not train"
    ]
