"""Windows: many steps timed together between two barriers.

How steps end in a barrier, until when windows are warm-up, and what a stage's windows say. Letters:
R rounds.
"""

import collections
import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxbench.analysis.statistics import median_interval
from jaxbench.errors import BadInput, Diverged
from jaxbench.tasks import COUNT, LOSS_SUM
from jaxbench.training.loss_scale import LOWEST_SCALE, SCALE, LossScale

# Warm: so many windows in a row within this share of one another. Given up after so many.
_AGREEING, _AGREEMENT, _MOST_WARMUP = 3, 0.02, 6
_LONGEST_WINDOW_S = 3600.0


def check_window_s(window_s: float) -> None:
    """Raises BadInput for a window that does not end."""
    if not 0 < window_s <= _LONGEST_WINDOW_S:  # written so that nan fails it too
        raise BadInput(f"--window_s={window_s}: must be seconds, at most {_LONGEST_WINDOW_S:g}")


def wait_for_steps(state: Any, metrics: jax.Array) -> tuple[float, int]:
    """Waits for all that the last step computes.

    Returns:
      Its loss, the mean over the models, and how many images it counted, over all of them. Under
      fp16 the loss of a step that is skipped need not be finite; such a step does the same work.

    Raises:
      Diverged: the loss is not finite; under fp16, a model's steps were skipped down to its
        lowest scale.
    """
    jax.block_until_ready((state, metrics))
    sums_RxM = np.asarray(jax.device_get(metrics)).reshape(-1, metrics.shape[-1])
    loss = float(np.mean(sums_RxM[:, LOSS_SUM] / sums_RxM[:, COUNT]))
    lost, because = not math.isfinite(loss), ""
    if isinstance(getattr(state, "loss_scale", None), LossScale):
        lost = sums_RxM[:, SCALE].min() <= LOWEST_SCALE
        because = " and the gradients overflow float16 at every loss scale down to 1"
    if lost:
        raise Diverged(f"the training loss is {loss}{because}: rates of such steps mean nothing")
    return loss, round(float(sums_RxM[:, COUNT].sum()))


class DispatchLimiter:
    """Keeps calls from piling up on simulated devices.

    They share one pool of threads: with many calls queued, the replicas of one that wait for one
    another can hold all of it, and XLA ends the process after 40 s (seen with 2 devices on 2 busy
    cores). Real devices have a queue each, and no limit here.

    Args:
      devices: that the calls run on.
    """

    _MOST = 4

    def __init__(self, devices: Sequence[jax.Device]):
        self._limited = devices[0].platform == "cpu" and len(devices) > 1
        self._results: collections.deque[Any] = collections.deque()

    def add(self, result: Any) -> None:
        """Takes note of a call's result, which is not donated; waits while too many are queued."""
        if not self._limited:
            return
        self._results.append(result)
        if len(self._results) > self._MOST:
            jax.block_until_ready(self._results.popleft())


@dataclasses.dataclass(frozen=True)
class WarmUp:
    """What a warm-up found: calls that a window holds, calls thrown away, whether windows agree."""

    calls_per_window: int
    calls: int
    settled: bool


def warm_up(time_calls: Callable[[int], float], window_s: float, rounds: int) -> WarmUp:
    """Runs windows until they agree.

    Args:
      time_calls: number of calls -> seconds that they took.
      window_s: a window holds as many calls as take about so long.
      rounds: windows that will be measured; the warm-up has fewer.
    """
    most = min(_MOST_WARMUP, rounds - 1)
    calls, total, rates = 1, 0, []
    while not _agree(rates) and len(rates) < most:
        elapsed_s = time_calls(calls)
        total += calls
        if elapsed_s < window_s / 2:  # too short to tell anything
            calls = math.ceil(min(10 * calls, window_s / elapsed_s * calls))
        else:
            rates.append(calls / elapsed_s)
    return WarmUp(calls, total, _agree(rates))


def unsettled_warnings(warmups: Mapping[str, tuple[WarmUp, int]]) -> list[str]:
    """What to say of stages, each with its warm-up steps, whose windows never broadcast_value."""
    told = [f"{name} ({steps})" for name, (found, steps) in warmups.items() if not found.settled]
    if not told:
        return []
    return [
        f"windows still differed by more than {_AGREEMENT:.0%} after all warm-up steps of "
        + ", ".join(told)
    ]


def _agree(rates: Sequence[float]) -> bool:
    last = rates[-_AGREEING:]
    return len(last) == _AGREEING and max(last) <= (1 + _AGREEMENT) * min(last)


def describe_windows(images: float, windows_s: Sequence[float]) -> dict[str, Any]:
    """Returns the rate that windows of so many images each say together, and its spread."""
    rates_R = [images / window_s for window_s in windows_s]
    rate, low, high = median_interval(rates_R)
    return {
        "images_per_s": rate,
        "images_per_s_low": low,
        "images_per_s_high": high,
        # Rates over equal work average harmonically.
        "images_per_s_mean": statistics.harmonic_mean(rates_R),
        "images_per_s_standard_error": statistics.stdev(rates_R) / math.sqrt(len(rates_R)),
        "jitter": 1.4826 * statistics.median(abs(r - rate) for r in rates_R) / rate,
        "windows_s": list(windows_s),
    }


def falling_loss_warnings(losses: Sequence[float], name: str = "") -> list[str]:
    """What to say of steps that do not train, from the losses of their windows in order."""
    # Under fp16 the first steps may be skipped ones.
    first = next(filter(math.isfinite, losses), math.nan)
    if len(losses) < 2 or losses[-1] < first:
        return []
    return [
        f"{name}{': ' if name else ''}the loss did not fall ({first:.4f} to {losses[-1]:.4f}): "
        "too few steps, or a step that does not train"
    ]
