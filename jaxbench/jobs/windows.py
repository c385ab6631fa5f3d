"""Windows: many steps timed together between two barriers.

A window ends when everything that its steps compute is ready. Windows are thrown away as warm-up
until they agree. Stages take turns, so that drift hits all alike. Letters: R rounds.
"""

import abc
import contextlib
import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxbench.analysis.statistics import autocorrelation, effective_size, median_interval
from jaxbench.clock import Stopwatch
from jaxbench.distributed.coordination import broadcast_value
from jaxbench.errors import BadInput, Diverged
from jaxbench.jobs.setup import Job
from jaxbench.training.dispatch import DispatchLimiter
from jaxbench.training.loss_scale import LOWEST_SCALE, describe_scales

# Throughput is stable when this many windows in a row are within this share of one another.
_AGREEING, _AGREEMENT = 3, 0.02
_MAX_WARMUP_WINDOWS = 6
_LONGEST_WINDOW_S = 3600.0


def check_window_s(window_s: float) -> None:
    """Raise BadInput for a window that does not end."""
    if not 0 < window_s <= _LONGEST_WINDOW_S:  # written so that nan fails it too
        raise BadInput(f"--window_s={window_s}: must be seconds, at most {_LONGEST_WINDOW_S:g}")


def wait_for_steps(state: Any, metrics: Mapping[str, np.ndarray]) -> tuple[float, int]:
    """Wait for the last step; return its mean loss over the models, and the images it counted.

    Under fp16 a skipped step may have no finite loss; it does the same work as any other.

    Args:
      state: of the last step.
      metrics: of the last step, see `Program.train_metrics`.

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

    def __init__(self, job: Job, state: Any):
        # Of the last queued step.
        self.state, self.metrics = state, None
        # Of the last step before each `wait`, and of the last step before the last one.
        self.losses: list[float] = []
        self.images_counted: int | None = None
        # The loss scale and the steps skipped, as a summary has them; {} without fp16.
        self.loss_scaling: dict[str, float] = {}
        self._data = job.feed.train_data
        self._program = job.program
        self._limiter = DispatchLimiter(job.mesh.devices)

    def queue(self, step: Callable, batch: Any) -> Any:
        """Queue one call of a training step; return its metrics, which are not ready yet."""
        self.state, self.metrics = step(self.state, self._data, batch)
        self._limiter.add(self.metrics)
        return self.metrics

    def wait(self) -> None:
        """Wait for everything that has been queued, as `wait_for_steps` does."""
        metrics = self._program.train_metrics(self.metrics)
        loss, self.images_counted = wait_for_steps(self.state, metrics)
        self.losses.append(loss)
        if self._program.precision.scales_loss:
            self.loss_scaling = describe_scales(metrics)


@dataclasses.dataclass(frozen=True)
class WarmUp:
    """The outcome of a warm-up."""

    calls_per_window: int
    calls: int  # that were thrown away
    settled: bool  # whether the last windows agreed


def _agree(rates: Sequence[float]) -> bool:
    last = rates[-_AGREEING:]
    return len(last) == _AGREEING and max(last) <= (1 + _AGREEMENT) * min(last)


def warm_up(time_calls: Callable[[int], float], window_s: float, rounds: int) -> WarmUp:
    """Run windows until they agree.

    Args:
      time_calls: makes a number of calls and returns the seconds that they took.
      window_s: how long a window should take.
      rounds: windows that will be measured; the warm-up has fewer.
    """
    most = min(_MAX_WARMUP_WINDOWS, rounds - 1)
    calls, total, rates = 1, 0, []
    while not _agree(rates) and len(rates) < most:
        elapsed_s = time_calls(calls)
        total += calls
        if elapsed_s < window_s / 2:  # too short to be a window
            calls = math.ceil(min(10 * calls, window_s / elapsed_s * calls))
        else:
            rates.append(calls / elapsed_s)
    return WarmUp(calls, total, _agree(rates))


class Interleaved(abc.ABC):
    """Something that is measured in windows, in turn with others.

    Args:
      name: for progress and warnings.
      window_s: how long a window should take.
    """

    def __init__(self, name: str, window_s: float):
        self.name, self._window_s = name, window_s
        self.warmup: WarmUp | None = None
        self.windows_s: list[float] = []

    @abc.abstractmethod
    def run(self, calls: int) -> None:
        """Make this many calls; return once everything that they compute is ready."""

    def around_window(self) -> contextlib.AbstractContextManager:
        """Return the context that each window runs in; entering and leaving it is not timed."""
        return contextlib.nullcontext()

    def warm_up(self, rounds: int) -> None:
        """Run windows until they agree, which fixes how many calls a window holds."""

        def time_calls(calls: int) -> float:
            with self.around_window():
                elapsed_s = self._time(calls)
            # In every process windows must hold as many calls, or they would wait for one another.
            return broadcast_value(elapsed_s)

        self.warmup = warm_up(time_calls, self._window_s, rounds)

    def measure(self) -> None:
        """Time one window; the caller has entered `around_window()`."""
        self.windows_s.append(self._time(self.warmup.calls_per_window))

    def _time(self, calls: int) -> float:
        watch = Stopwatch()
        self.run(calls)
        return watch.elapsed_s()


def in_turn(stages: Sequence[Any], round_number: int) -> Sequence[Any]:
    """Return the stages in the order of this round: forwards, then backwards."""
    return stages if round_number % 2 == 0 else stages[::-1]


def unsettled_warnings(warmups: Mapping[str, tuple[WarmUp, int]]) -> list[str]:
    """Return the warning about windows that never agreed, from {stage: (warm-up, its steps)}."""
    named = [f"{name} ({steps})" for name, (found, steps) in warmups.items() if not found.settled]
    told = f"throughput did not stabilise during warm-up, to within {_AGREEMENT:.0%}, in (steps): "
    return [told + ", ".join(named)] if named else []


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
