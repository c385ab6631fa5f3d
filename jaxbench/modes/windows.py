"""Windows of training steps: queueing the steps, waiting for them, rates. Letters: R rounds."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxbench.aliases import PyTree
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


class StepWindows(Interleaved):
    """Windows of calls of one training step, one after another, on a state that only it holds.

    Attributes:
      step, batches: the step, and the batch of each call.
      images_per_step: over all devices and models.
      state, metrics: of the last queued step.
      steps: queued so far, in and between windows.
      losses: of the last step before each `wait`.
      images_counted: of the last step before the last `wait`.
      loss_scaling: the loss scale and the steps skipped, for a summary; {} without fp16.
      sync_residual_s: how long work continued after the windows: not, if they waited for it.
    """

    def __init__(
        self,
        name: str,
        setup: PreparedRun,
        state: Any,
        window_s: float,
        step: Callable,
        batches: Iterator[Any],
    ):
        super().__init__(name, window_s)
        self.setup, self.step, self.batches = setup, step, batches
        self.images_per_step = setup.program.layout.images_per_step
        self.state: PyTree = state
        self.metrics: PyTree = None
        self.steps, self.sync_residual_s = 0, 0.0
        self.losses: list[float] = []
        self.images_counted: int | None = None
        self.loss_scaling: dict[str, Any] = {}
        self._limiter = DispatchLimiter()

    @property
    def flops_per_image(self) -> int:
        return self.setup.network.analysis.training_flops

    def run(self, calls: int) -> None:
        for _ in range(calls):
            self.queue()
        self.wait()

    def queue(self) -> Any:
        """Queue one call of the step; return its metrics, which are not ready yet."""
        batch = next(self.batches)
        self.state, self.metrics = self.step(self.state, self.setup.feed.train_data, batch)
        self._limiter.add(self.metrics)
        self.steps += 1
        return self.metrics

    def wait(self) -> None:
        """Wait for everything that has been queued, as `wait_for_steps` does."""
        metrics = self.setup.network.unpack_train_sums(self.metrics)
        loss, self.images_counted = wait_for_steps(self.state, metrics)
        self.losses.append(loss)
        if self.setup.network.precision.scales_loss:
            self.loss_scaling = describe_scales(metrics)

    def measure(self) -> None:
        super().measure()
        watch = Stopwatch()
        jax.block_until_ready((self.state, self.metrics))
        self.sync_residual_s += watch.elapsed_s()

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
        rates = describe_windows(self.images_per_step * self.calls_per_window, self.windows_s)
        rate = rates["images_per_s"]
        fields |= rates | self.setup.network.analysis.utilization(rate, self.flops_per_image)
        step_s = self.images_per_step / rate
        return fields | {"step_s": step_s, "steps_per_window": self.calls_per_window}


def describe_windows(images: float, windows_s: Sequence[float]) -> dict[str, Any]:
    """Return the rate of windows that hold this many images each, and its spread."""
    rates_R = [images / window_s for window_s in windows_s]
    rate = estimate(rates_R)
    median, spread = rate.span[0], statistics.stdev(rates_R)
    return rate.fields("images_per_s") | {
        # Rates over equal work average harmonically.
        "images_per_s_mean": statistics.harmonic_mean(rates_R),
        "images_per_s_standard_error": spread / math.sqrt(effective_size(rates_R)),
        "autocorrelation": autocorrelation(rates_R),
        "jitter": 1.4826 * statistics.median(abs(r - median) for r in rates_R) / median,
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
