"""Windows of training steps: queueing the steps, waiting for them, rates. Letters: R rounds."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxbench.analysis.statistics import (
    autocorrelation,
    dependent,
    effective_size,
    held_up,
    median_interval,
)
from jaxbench.errors import Diverged
from jaxbench.modes.setup import RunSetup
from jaxbench.training.loss_scale import LOWEST_SCALE, describe_scales
from jaxbench.training.meter import DispatchLimiter

# More batches than are ever taken: epoch after epoch, as training reads them.
ENDLESS = 2**40


def wait_for_steps(state: Any, metrics: Mapping[str, np.ndarray]) -> tuple[float, int]:
    """Wait for the last step; return its mean loss over the models, and the images it counted.

    Under fp16 a skipped step may have no finite loss; it does the same work as any other.

    Args:
      state: of the last step.
      metrics: of the last step, see `Program.train_sums`.

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
    """Runs training steps, one after another, on a state that only it holds."""

    def __init__(self, setup: RunSetup, state: Any):
        # Of the last queued step.
        self.state, self.metrics = state, None
        # Of the last step before each `wait`, and of the last step before the last one.
        self.losses: list[float] = []
        self.images_counted: int | None = None
        # The loss scale and the steps skipped, as a summary has them; {} without fp16.
        self.loss_scaling: dict[str, float] = {}
        self._data = setup.feed.train_data
        self._program = setup.program
        self._limiter = DispatchLimiter()

    def queue(self, step: Callable, batch: Any) -> Any:
        """Queue one call of a training step; return its metrics, which are not ready yet."""
        self.state, self.metrics = step(self.state, self._data, batch)
        self._limiter.add(self.metrics)
        return self.metrics

    def wait(self) -> None:
        """Wait for everything that has been queued, as `wait_for_steps` does."""
        metrics = self._program.train_sums(self.metrics)
        loss, self.images_counted = wait_for_steps(self.state, metrics)
        self.losses.append(loss)
        if self._program.precision.scales_loss:
            self.loss_scaling = describe_scales(metrics)


def describe_windows(images: float, windows_s: Sequence[float]) -> dict[str, Any]:
    """Return the rate of windows that hold this many images each, and its spread."""
    rates_R = [images / window_s for window_s in windows_s]
    rate, low, high = median_interval(rates_R)
    return {
        "images_per_s": rate,
        "images_per_s_low": low,
        "images_per_s_high": high,
        # Rates over equal work average harmonically.
        "images_per_s_mean": statistics.harmonic_mean(rates_R),
        "images_per_s_standard_error": (
            statistics.stdev(rates_R) / math.sqrt(effective_size(rates_R))
        ),
        "autocorrelation": autocorrelation(rates_R),
        "jitter": 1.4826 * statistics.median(abs(r - rate) for r in rates_R) / rate,
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
